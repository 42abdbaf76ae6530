"""Objects of S3, from a server on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from odf_engine.errors import Cancelled, InvalidManifest, SourceUnavailable
from odf_engine.metadata.model import FromSystemTime, Url
from odf_engine.workspace.workspace import Workspace
from tests.ingest.conftest import reply, web_server
from tests.ingest.fetching import get
from tests.ingest.recorder import Recorder
from tests.s3_server import S3Server, refuse, s3_server
from tests.waiting import run_with_timeout

pytestmark = pytest.mark.net

BODY = bytes(range(256)) * 40_000


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "my-key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "my-secret-key")
    with s3_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield server


def test_s3_object_is_fetched_with_etag_as_state(
    workspace: Workspace, s3: S3Server, reporter: Recorder
) -> None:
    s3.objects["bucket/folder/a b ü%20.csv"] = BODY
    step = Url("s3://bucket/folder/a b ü%20.csv")
    payload = get(workspace, step, reporter)
    assert payload is not None
    assert payload.path.read_bytes() == BODY
    assert payload.name == step.url
    assert payload.event_time is not None
    assert abs(payload.event_time.ns - time.time_ns()) < 60 * 10**9  # when it was stored
    assert payload.state is not None
    assert payload.state.kind == "odf/etag"
    assert reporter.amounts == {"bytes": len(BODY), "total_bytes": len(BODY)}
    assert s3.ranges == [None]
    assert "my-key-id" in str(s3.requests[0].authorization)
    assert "secret" not in str(reporter.lines)

    s3.forget()
    assert get(workspace, step, reporter, payload.state) is None
    assert [each.condition for each in s3.forget()] == [payload.state.value]
    s3.objects["bucket/folder/a b ü%20.csv"] = b"other"
    payload = get(workspace, Url(step.url, event_time=FromSystemTime()), reporter, payload.state)
    assert payload is not None
    assert payload.path.read_bytes() == b"other"
    assert payload.event_time is None


def test_s3_download_resumes_after_a_broken_connection(
    workspace: Workspace, s3: S3Server, reporter: Recorder
) -> None:
    s3.objects["bucket/big"] = BODY
    step = Url("s3://bucket/big")
    s3.cut = 5 << 20
    with pytest.raises(SourceUnavailable, match="s3://bucket/big: connection failed"):
        get(workspace, step, reporter, retries=0)
    s3.cut = None
    s3.forget()
    payload = get(workspace, step, reporter)
    assert payload is not None
    assert payload.path.read_bytes() == BODY
    (resumed,) = s3.ranges
    first = int(str(resumed).removeprefix("bytes=").removesuffix("-"))
    assert 4 << 20 <= first <= 5 << 20
    assert any(f"from byte {first:,}" in str(line) for line in reporter.lines)


def test_object_overwritten_during_download_is_fetched_again(
    workspace: Workspace, s3: S3Server, reporter: Recorder
) -> None:
    s3.objects["bucket/big"] = BODY
    s3.cut = 5 << 20

    def change(request: BaseHTTPRequestHandler) -> bool:
        if len(s3.ranges) == 2:
            s3.objects["bucket/big"] = b"new"
        return False

    s3.before = change
    payload = get(workspace, Url("s3://bucket/big"), reporter, longest_pause_seconds=0.01)
    assert payload is not None
    assert payload.path.read_bytes() == b"new"
    assert any("overwritten during the download" in str(line) for line in reporter.warnings)


@pytest.mark.parametrize(
    ("status", "code", "attempts", "text", "hint"),
    [
        (404, "NoSuchKey", 1, "object not found", "bucket and key"),
        (403, "AccessDenied", 1, "access to the object denied", "s3Anonymous"),
        (301, "PermanentRedirect", 1, "301", "s3Region"),
        (503, "SlowDown", 2, "503", "later"),
    ],
)
def test_s3_errors_are_reported_with_a_hint(
    workspace: Workspace,
    s3: S3Server,
    reporter: Recorder,
    status: int,
    code: str,
    attempts: int,
    text: str,
    hint: str,
) -> None:
    s3.before = lambda request: refuse(request, status, code)
    with pytest.raises(SourceUnavailable, match=f"s3://bucket/x.csv: .*{text}") as caught:
        get(workspace, Url("s3://bucket/x.csv"), reporter, retries=1, longest_pause_seconds=0.01)
    assert hint in str(caught.value.hint)
    assert len([each for each in s3.requests if each.path == "/bucket/x.csv"]) == attempts


def test_public_s3_object_is_read_without_credentials(
    workspace: Workspace, s3: S3Server, reporter: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.objects["bucket/x"] = b"1"
    s3.publish()
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    settings = {"s3_endpoint": s3.endpoint, "s3_region": "eu-west-1", "s3_anonymous": True}
    assert get(workspace, Url("s3://bucket/x"), reporter, **settings) is not None
    assert s3.requests[0].authorization is None
    with pytest.raises(SourceUnavailable, match=r"connection failed: .*127.0.0.1"):
        get(workspace, Url("s3://bucket/y"), reporter, s3_endpoint="http://127.0.0.1:9", retries=0)
    with pytest.raises(InvalidManifest, match="invalid S3 URL"):
        get(workspace, Url("s3://bucket"), reporter)


def test_untrusted_s3_source_cannot_reach_private_addresses(
    workspace: Workspace, s3: S3Server, reporter: Recorder
) -> None:
    with pytest.raises(SourceUnavailable, match=r"127.0.0.1 is not a public address"):
        get(workspace, Url("s3://bucket/x"), reporter, untrusted=True)
    assert s3.requests == []


def test_s3_download_can_be_cancelled(workspace: Workspace, s3: S3Server, reporter: Recorder) -> None:
    s3.objects["bucket/big"] = BODY
    s3.cut = 5 << 20
    s3.held.clear()
    reporter.on_amount = lambda amounts: threading.Timer(0.05, reporter.cancel).start()
    with pytest.raises(Cancelled):
        run_with_timeout(lambda: get(workspace, Url("s3://bucket/big"), reporter, read_timeout_seconds=600))
    s3.held.set()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("anonymous", [False, True])
def test_redirect_to_another_host_is_not_followed(
    workspace: Workspace,
    s3: S3Server,
    reporter: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    anonymous: bool,
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "my-session-token")
    with web_server() as other:
        other.answer = lambda request: reply(request, 200, b"inside")
        target = other.url.replace("127.0.0.1", "localhost")

        def redirect(request: BaseHTTPRequestHandler) -> bool:
            reply(request, status, Location=f"{target}/bucket/x")
            return True

        s3.before = redirect
        with pytest.raises(SourceUnavailable):
            get(workspace, Url("s3://bucket/x"), reporter, retries=0, s3_anonymous=anonymous)
        assert len(s3.requests) == 1
        assert other.requests == []
