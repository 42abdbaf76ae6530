"""Transfer of the results of checks with pulls and pushes."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.checks.reports import (
    CheckReport,
    RuleResult,
    decode_report,
    encode_report,
    list_reports,
    read_report,
    report_path,
    store_report,
)
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.push import push
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.fsck import FsckReport, check_dataset
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import add_slices, copy_into, make_root
from tests.sync.file_server import FileServer
from tests.sync.in_process_server import Running, served

RESULT = RuleResult("c", "1", "NotNull(city)", "NotNull", "warn", 3)


def add_reports(entry: DatasetEntry, key: str | None) -> None:
    """Stores results for each slice that has none."""
    for each in entry.dataset.slices():
        if not report_path(entry.dataset.folder, each.physical_hash).exists():
            report = CheckReport(
                str(entry.id), str(each.physical_hash), each.start, each.end, str(each.system_time), [RESULT]
            )
            store_report(entry.dataset.folder, each.physical_hash, encode_report(report, key))


@pytest.fixture
def source(there: Workspace) -> DatasetEntry:
    entry = make_root(there, slices=3)
    add_reports(entry, there.keys.private_key_pem(entry.id))
    return entry


def signatures(entry: DatasetEntry) -> list[bool | None]:
    """Whether the results of each slice are signed, or None without results."""
    found = [
        read_report(entry.dataset.folder, entry.id, each.physical_hash) for each in entry.dataset.slices()
    ]
    return [None if each is None else each.signed for each in found]


def test_pulls_download_results(
    here: Workspace, there: Workspace, source: DatasetEntry, access: RemoteAccess, files: FileServer
) -> None:
    url = f"{files.url}there/.odf/datasets/{source.id.multibase}/"
    with closing(open_remote(url, access)) as remote:
        copy, _ = clone_dataset(here, source.alias, remote, Reporter(), parallel=2)
        assert signatures(copy) == [True] * 3
        add_slices(source, 6)
        add_reports(source, there.keys.private_key_pem(source.id))
        forged = report_path(source.dataset.folder, source.dataset.slices()[-2].physical_hash)
        forged.write_bytes(forged.read_bytes().replace(b"NotNull", b"notNull"))
        reporter = Reporter()
        pull_dataset(copy, remote, reporter, force=False, parallel=2)
        assert signatures(copy) == [True] * 7 + [None, True]
        add_slices(source, 1)  # a copy without results
        assert pull_dataset(copy, remote, Reporter(), force=False, parallel=2).blocks == 1
    assert signatures(copy)[-1] is None
    report = FsckReport(repair=False, now=True)
    check_dataset(report, here, copy, Reporter())
    assert report.findings == []


def test_pushes_send_results_and_compaction_records(
    here: Workspace, there: Workspace, source: DatasetEntry, tmp_path: Path, access: RemoteAccess
) -> None:
    with closing(open_remote(f"file://{tmp_path / 'usb'}/", access)) as remote:
        push(source, remote, Reporter(), force=False, parallel=2)
    assert list_reports(tmp_path / "usb") == list_reports(source.dataset.folder)
    copy = copy_into(Workspace.init(tmp_path / "third"), source)
    with served(here, allow_push=True) as server:
        access.credentials.set(server.url, Login(token=server.serving.tokens.create("laptop")[1]))
        url = f"odf+{server.url}numbers/"
        with closing(open_remote(url, access)) as remote:
            push(source, remote, Reporter(), force=False, parallel=2)
            pushed = here.resolve("numbers")
            assert signatures(pushed) == [True] * 3
            for number in range(2):  # the server verifies the older record by the newer one
                add_slices(source, 2 + number)
                compact(source.dataset, CompactionPolicy(), Reporter())
            push(source, remote, Reporter(), force=True, parallel=2)
            assert pushed.dataset.compactions.names() == source.dataset.compactions.names()
            assert pushed.dataset.newest_compaction() == source.dataset.newest_compaction()
            pull_dataset(copy, remote, Reporter(), force=False, parallel=2)
            assert copy.dataset.head() == source.dataset.head()

            # Invalid files are rejected.
            (last,) = (each.physical_hash for each in source.dataset.slices()[-1:])
            key = there.keys.private_key_pem(source.id)
            report = CheckReport(str(source.id), str(last), 0, 1, "2024-05-01T00:00:00Z", [RESULT])
            for data in (
                encode_report(report, key).replace(b"NotNull", b"notNull"),
                encode_report(msgspec.structs.replace(report, slice=str(source.dataset.head())), key),
                encode_report(msgspec.structs.replace(report, first_offset=1000, last_offset=2000), key),
            ):
                store_report(source.dataset.folder, last, data)
                assert put(server, f"checks/{last}", data) == 400
            assert signatures(pushed)[-1] is None
            record = source.dataset.compactions.folder / source.dataset.compactions.names()[0]
            assert put(server, f"compactions/{last}", record.read_bytes()) == 400
            assert put(server, f"compactions/{record.name}", record.read_bytes()[:-9]) == 400
            assert put(server, f"checks/{last}", encode_report(report, None), token="x") == 401
            assert put(server, f"checks/{last}", encode_report(report, key)) == 200
            assert put(server, f"checks/{last}", encode_report(report, None)) == 200
            assert decode_report(remote.read("checks", last, 1 << 20), source.id, last).signed
            assert signatures(pushed)[-1] is True  # unsigned results do not replace signed ones


def put(server: Running, path: str, data: bytes, token: str = "") -> int:
    """Uploads a file of the dataset; the status of the response."""
    token = token or server.serving.tokens.create(f"t{time.monotonic_ns()}")[1]
    request = urllib.request.Request(
        f"{server.url}numbers/{path}", data, {"Authorization": f"Bearer {token}"}, method="PUT"
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
