"""Files over FTP and FTPS, from a real server on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_engine.errors import Cancelled, SourceUnavailable
from odf_engine.metadata.model import FromSystemTime, SourceState, Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net import ftp as ftp_module
from odf_engine.workspace.workspace import Workspace
from tests.ingest.fetching import get
from tests.ingest.ftp_server import Server, ftp_server, make_certificate
from tests.ingest.recorder import Recorder

pytestmark = pytest.mark.net

BODY = os.urandom(1 << 21)
MODIFIED = Timestamp.parse("2024-03-01T12:00:00Z")


@pytest.fixture
def ftp(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "ftp"
    (folder / "a folder").mkdir(parents=True)
    put(folder / "a folder" / "ü.csv")
    with ftp_server(folder) as server:
        yield server


def put(path: Path, body: bytes = BODY) -> None:
    path.write_bytes(body)
    os.utime(path, (MODIFIED.ns / 1e9, MODIFIED.ns / 1e9))


def test_ftp_download_records_modification_time_as_state(
    workspace: Workspace, ftp: Server, reporter: Recorder
) -> None:
    step = Url(f"ftp://{ftp.address}/a%20folder/%C3%BC.csv")
    payload = get(workspace, step, reporter)
    assert payload is not None
    assert payload.path.read_bytes() == BODY
    assert payload.state == SourceState("default", "odf/last-modified", str(MODIFIED))
    assert payload.event_time == MODIFIED
    assert reporter.amounts == {"bytes": len(BODY), "total_bytes": len(BODY)}
    assert ftp.asked("USER") == ["USER anonymous"]

    assert get(workspace, step, reporter, payload.state) is None
    assert len(ftp.asked("RETR")) == 1
    login = step.url.replace("ftp://", "ftp://me%40home:pa%20ss@")
    payload = get(workspace, Url(login, event_time=FromSystemTime()), reporter)
    assert payload is not None
    assert payload.name == step.url
    assert payload.event_time is None
    assert "pa ss" not in str(reporter.lines)
    assert "pa%20ss" not in str(reporter.lines)
    assert "USER me@home" in ftp.commands


def test_ftp_server_without_times_gives_no_state(
    workspace: Workspace, ftp: Server, reporter: Recorder
) -> None:
    ftp.lacks = {"MDTM", "SIZE"}
    payload = get(workspace, Url(f"ftp://{ftp.address}/a%20folder/%C3%BC.csv"), reporter)
    assert payload is not None
    assert payload.path.read_bytes() == BODY
    assert payload.state is None
    assert payload.event_time is None


@pytest.mark.parametrize("rest", [True, False])
def test_broken_ftp_transfer_is_retried(
    workspace: Workspace, ftp: Server, reporter: Recorder, rest: bool
) -> None:
    ftp.cut_after = 500_000
    ftp.lacks = set() if rest else {"REST"}
    payload = get(workspace, Url(f"ftp://{ftp.address}/a%20folder/%C3%BC.csv"), reporter)
    assert payload is not None
    assert payload.path.read_bytes() == BODY
    assert len(reporter.warnings) == 1
    assert len(ftp.asked("REST")) == 1
    assert len(ftp.asked("RETR")) == 2


def test_next_pull_resumes_the_ftp_download(workspace: Workspace, ftp: Server, reporter: Recorder) -> None:
    step = Url(f"ftp://{ftp.address}/a%20folder/%C3%BC.csv")
    ftp.cut_after = 500_000
    with pytest.raises(SourceUnavailable, match=r"%BC\.csv: connection error"):
        get(workspace, step, reporter, retries=0)
    assert get(workspace, step, reporter) is not None
    assert int(ftp.asked("REST")[0].split()[1]) >= 500_000
    # A file that is another one by now is downloaded from its beginning.
    ftp.cut_after = 500_000
    with pytest.raises(SourceUnavailable):
        get(workspace, step, reporter, retries=0)
    (ftp.folder / "a folder" / "ü.csv").write_bytes(b"new")
    payload = get(workspace, step, reporter)
    assert payload is not None
    assert payload.path.read_bytes() == b"new"
    assert len(ftp.asked("REST")) == 1


def test_file_modified_during_ftp_download_is_fetched_again(
    workspace: Workspace, ftp: Server, reporter: Recorder
) -> None:
    path = ftp.folder / "a folder" / "ü.csv"

    def change(amounts: dict[str, int]) -> None:
        reporter.on_amount = lambda amounts: None
        with path.open("ab") as file:
            file.write(b"more")

    reporter.on_amount = change
    payload = get(workspace, Url(f"ftp://{ftp.address}/a%20folder/%C3%BC.csv"), reporter)
    assert payload is not None
    assert payload.path.read_bytes() == BODY + b"more"
    assert "the file was modified during the download" in reporter.warnings[0]


def test_ftp_errors_are_reported_without_the_password(
    workspace: Workspace, ftp: Server, reporter: Recorder
) -> None:
    url = f"ftp://{ftp.address}"
    with pytest.raises(SourceUnavailable, match=r"none\.csv: the server returned 550") as caught:
        get(workspace, Url(f"{url}/none.csv"), reporter)
    assert "fetch.url" in str(caught.value.hint)
    with pytest.raises(SourceUnavailable, match="characters that FTP does not allow"):
        get(workspace, Url(f"{url}/a%0D%0ADELE%20b"), reporter)
    with pytest.raises(SourceUnavailable, match="Connection refused"):
        get(workspace, Url("ftp://127.0.0.1:9/x"), reporter, retries=0)
    with pytest.raises(SourceUnavailable, match="not a public address"):
        get(workspace, Url(f"{url}/a%20folder/%C3%BC.csv"), reporter, untrusted=True)
    assert len(ftp.asked("RETR")) == 1
    wrong = url.replace("ftp://", "ftp://me:wrong-password@")
    with pytest.raises(SourceUnavailable, match="530") as caught:
        get(workspace, Url(f"{wrong}/x.csv"), reporter)
    assert "wrong-password" not in f"{caught.value}{reporter.lines}"
    assert not reporter.warnings


def test_ftp_download_can_be_cancelled(workspace: Workspace, ftp: Server, reporter: Recorder) -> None:
    (ftp.folder / "big").write_bytes(bytes(1 << 27))
    reporter.on_amount = lambda amounts: reporter.cancel()
    with pytest.raises(Cancelled):
        get(workspace, Url(f"ftp://{ftp.address}/big"), reporter)
    assert 0 < reporter.amounts["bytes"] < 1 << 26


@pytest.mark.parametrize("implicit", [False, True])
def test_ftps_verifies_the_certificate_and_encrypts_data(
    workspace: Workspace,
    tmp_path: Path,
    reporter: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    implicit: bool,
) -> None:
    certificate = make_certificate(tmp_path / "localhost.pem")
    put(tmp_path / "x.csv")
    with ftp_server(tmp_path, certificate, implicit=implicit) as server:
        if implicit:
            monkeypatch.setattr(ftp_module, "_IMPLICIT_PORT", server.port)
        step = Url(f"ftps://{server.address}/x.csv")
        with pytest.raises(SourceUnavailable, match="invalid certificate"):
            get(workspace, step, reporter)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        server.cut_after = 500_000
        payload = get(workspace, step, reporter)
        assert payload is not None
        assert payload.path.read_bytes() == BODY
        assert payload.event_time == MODIFIED
        assert len(server.asked("REST")) == 1
        assert server.asked("PROT P")
