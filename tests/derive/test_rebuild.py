"""Missing and damaged slices of derivative datasets are rebuilt, identical or as equivalents."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.data.digest import digest_file
from odf_engine.derive import rebuild
from odf_engine.derive.rebuild import rebuild_slices
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.model import IntegrityReport
from odf_engine.derive.verify.replay import Replay
from odf_engine.errors import BadData, NotFound
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.sync.push import push
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.fsck import check_workspace
from tests.derive.deriving import Deriving

WINDOWS = "SELECT window.start AS event_time, sum(x) AS s FROM input GROUP BY window(event_time, '1 day')"


@pytest.fixture
def made(deriving: Deriving) -> list[DatasetEntry]:
    """A dataset computed row by row, and one with a state, of three slices."""
    root = deriving.root()
    made = [
        deriving.derivative("SELECT event_time, city, x * 10 AS y FROM input", name="rows"),
        deriving.derivative(WINDOWS, name="windows"),
    ]
    for day in (1, 3, 5, 7):
        deriving.rows(root, (day, "a", day), (day, "b", -day))
        for entry in made:
            deriving.run(entry)
    return made


def paths(entry: DatasetEntry) -> list[Path]:
    return [entry.dataset.object_path("data", row.physical_hash) for row in entry.dataset.slices()]


def run(deriving: Deriving, entry: DatasetEntry) -> int:
    return rebuild_slices(deriving.workspace, entry, deriving.engine, Reporter())


def check(deriving: Deriving, entry: DatasetEntry) -> IntegrityReport:
    replay = Replay(deriving.workspace, entry, deriving.engine, Reporter())
    return verify(entry.dataset, Reporter(), replay=replay)


def findings(deriving: Deriving) -> list[tuple[str, str, int]]:
    report = check_workspace(deriving.workspace, Reporter())
    return [(finding.kind, finding.where, finding.count) for finding in report.findings]


def encode_otherwise(path: Path) -> None:
    """The same rows in other bytes, as another version of a library writes them."""
    table = pq.read_table(path)
    path.unlink()
    pq.write_table(table, path, compression="gzip", write_statistics=False)


def test_lost_slices_are_rebuilt_with_the_committed_bytes(
    deriving: Deriving, made: list[DatasetEntry]
) -> None:
    for entry in made:
        before = {path: path.read_bytes() for path in paths(entry)}
        missing, damaged, *_ = before
        missing.unlink()
        data = bytearray(before[damaged])
        data[len(data) // 2] ^= 0x10
        damaged.write_bytes(data)
        assert findings(deriving) == [("missing-slice", str(entry.alias), 1)]
        assert not check(deriving, entry).valid
        head = entry.dataset.head()
        assert run(deriving, entry) == 2
        assert {path: path.read_bytes() for path in paths(entry)} == before
        assert entry.dataset.head() == head and run(deriving, entry) == 0
        report = check(deriving, entry)
        assert (report.findings, report.unchecked) == ([], [])
        assert findings(deriving) == []


def test_slice_in_other_bytes_is_equivalent_and_never_pushed(
    deriving: Deriving, made: list[DatasetEntry], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = made[0]
    table = deriving.table(entry)
    first, second = paths(entry)[:2]
    encode_otherwise(first)  # in its place, as a copy of another program
    second.unlink()
    execute = rebuild.execute_transaction

    def another_writer(*arguments: Any) -> Any:
        result = execute(*arguments)
        path = Path(arguments[3].new_data_path)
        encode_otherwise(path)
        digest = digest_file(path)
        assert result.written is not None
        written = result.written._replace(physical_hash=digest.physical_hash, size=digest.size)
        return replace(result, written=written)

    monkeypatch.setattr(rebuild, "execute_transaction", another_writer)
    assert run(deriving, entry) == 1 and run(deriving, entry) == 0
    assert not second.exists()
    assert deriving.table(entry).equals(table)
    report = check(deriving, entry)
    assert (report.valid, report.slices) == (True, 4)
    assert [each.kind for each in report.unchecked] == ["slice-equivalent"] * 2
    assert findings(deriving) == []
    access = RemoteAccess(deriving.workspace.config, Credentials(deriving.workspace.odf), Reporter())
    url = f"file://{tmp_path / 'usb'}/"
    with closing(open_remote(url, access)) as remote, pytest.raises((NotFound, BadData)):
        push(entry, remote, Reporter(), force=False, parallel=1)
    assert not list((tmp_path / "usb").rglob("refs/head"))

    monkeypatch.undo()
    equivalent = entry.dataset.slice_path(entry.dataset.slices()[1])
    equivalent.write_bytes(equivalent.read_bytes()[:-20] + bytes(20))
    assert not check(deriving, entry).valid
    assert run(deriving, entry) == 1
    assert second.is_file() and not equivalent.exists()


def test_other_rows_are_never_stored(
    deriving: Deriving, made: list[DatasetEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = paths(made[0])[2]
    before = sorted(lost.parent.iterdir())
    lost.unlink()
    other = paths(made[0])[1]
    execute = rebuild.execute_transaction

    def another_result(*arguments: Any) -> Any:
        result = execute(*arguments)
        found = digest_file(other)
        assert result.written is not None
        return replace(result, written=result.written._replace(logical_hash=found.logical_hash))

    monkeypatch.setattr(rebuild, "execute_transaction", another_result)
    with pytest.raises(BadData, match="the replay has other rows"):
        run(deriving, made[0])
    assert sorted(lost.parent.iterdir()) == [path for path in before if path != lost]
