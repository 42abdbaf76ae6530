"""Copies of a dataset that was compacted: they follow by the record, or show diverged chains without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain import compaction
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import BadData
from odf_engine.net.credentials import RemoteAccess
from odf_engine.sync import compaction_records
from odf_engine.sync.history import HistoriesDiverged
from odf_engine.sync.pull import ChainPull, clone_dataset, pull_dataset
from odf_engine.sync.push import push
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import add_slices, copy_into, describe, make_root
from tests.sync.file_server import FileServer
from tests.sync.in_process_server import served


def run(entry: DatasetEntry) -> None:
    compact(entry.dataset, CompactionPolicy(), Reporter())


def pull(entry: DatasetEntry, url: str, access: RemoteAccess) -> ChainPull:
    with closing(open_remote(url, access)) as remote:
        return pull_dataset(entry, remote, Reporter(), force=False, parallel=2)


def assert_same(copy: DatasetEntry, source: DatasetEntry) -> None:
    assert copy.dataset.head() == source.dataset.head()
    assert copy.dataset.compactions.names() == source.dataset.compactions.names()
    assert copy.dataset.newest_compaction() == source.dataset.newest_compaction()
    assert verify(copy.dataset, Reporter()).findings == []


@pytest.fixture
def source(there: Workspace) -> DatasetEntry:
    return make_root(there, slices=4)


def test_copies_follow_two_compactions(
    here: Workspace, there: Workspace, source: DatasetEntry, access: RemoteAccess, files: FileServer
) -> None:
    copy = copy_into(here, source)
    old = copy.dataset.head()
    add_slices(source, 3)
    run(source)
    add_slices(source, 2)
    run(source)
    url = f"{files.url}there/.odf/datasets/{source.id.multibase}/"
    assert pull(copy, url, access).status == "updated"
    assert_same(copy, source)
    assert old in copy.dataset.references().values()
    with closing(open_remote(url, access)) as remote:
        other = Workspace.init(here.folder.parent / "other")
        clone, _ = clone_dataset(other, source.alias, remote, Reporter(), parallel=2)
    assert_same(clone, source)


def test_a_server_sends_records(
    here: Workspace, source: DatasetEntry, there: Workspace, access: RemoteAccess
) -> None:
    copy = copy_into(here, source)
    run(source)
    with served(there) as running:
        assert pull(copy, f"odf+{running.url}{source.alias}/", access).status == "updated"
    assert_same(copy, source)


def test_own_blocks_are_never_replaced(here: Workspace, source: DatasetEntry, access: RemoteAccess) -> None:
    copy = copy_into(here, source)
    describe(copy, "here")
    head = copy.dataset.head()
    run(source)
    with pytest.raises(HistoriesDiverged):
        pull(copy, f"file://{source.dataset.folder}/", access)
    assert copy.dataset.head() == head


def test_large_records_are_not_followed(
    here: Workspace, source: DatasetEntry, access: RemoteAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_into(here, source)
    head = copy.dataset.head()
    run(source)
    monkeypatch.setattr(compaction_records, "_MAX_TOTAL_BYTES", 100)
    with pytest.raises(HistoriesDiverged):
        pull(copy, f"file://{source.dataset.folder}/", access)
    assert copy.dataset.head() == head


def test_forged_rows_are_not_followed(here: Workspace, source: DatasetEntry, access: RemoteAccess) -> None:
    """A consistent chain and record whose slice has one other value, as its owner could make them."""
    copy = copy_into(here, source)
    head = copy.dataset.head()
    read = compaction._SliceWriter._batches

    def forge(*arguments: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(*arguments):
            people = pc.add(batch.column("people"), 1)
            yield batch.set_column(batch.schema.get_field_index("people"), "people", people)

    with mock.patch.object(compaction._SliceWriter, "_batches", forge):
        run(source)
    with pytest.raises(BadData, match="rows of offsets 0 to 2 differ"):
        pull(copy, f"file://{source.dataset.folder}/", access)
    assert (copy.dataset.head(), copy.dataset.compactions.names()) == (head, [])
    findings = verify(source.dataset, Reporter()).findings
    assert [finding.kind for finding in findings] == ["compaction-record"]


def test_push_of_compacted_dataset_requires_force(
    here: Workspace, source: DatasetEntry, tmp_path: Path, access: RemoteAccess
) -> None:
    url = f"file://{tmp_path / 'usb'}/"
    copy = copy_into(here, source)
    with closing(open_remote(url, access)) as remote:
        push(source, remote, Reporter(), force=False, parallel=2)
        run(source)
        with pytest.raises(HistoriesDiverged, match="was compacted") as raised:
            push(source, remote, Reporter(), force=False, parallel=2)
        assert "--force" in (raised.value.hint or "")
        push(source, remote, Reporter(), force=True, parallel=2)
    assert pull(copy, url, access).status == "updated"
    assert_same(copy, source)


def test_copy_of_a_dataset_that_was_reset_after_two_compactions_is_valid(
    here: Workspace, source: DatasetEntry, tmp_path: Path, access: RemoteAccess
) -> None:
    base, url = source.dataset.state().head, f"file://{tmp_path / 'usb'}/"
    old = copy_into(here, source, "old")
    for _ in range(2):
        add_slices(source, 1)
        run(source)
    compacted = source.dataset.state().head
    with closing(open_remote(url, access)) as remote:
        push(source, remote, Reporter(), force=False, parallel=2)
        assert pull(old, url, access).status == "updated"
        source.dataset.reset(base, expected_head=compacted)
        add_slices(source, 2, city="Thun")
        with pytest.raises(HistoriesDiverged, match="diverged"):
            push(source, remote, Reporter(), force=False, parallel=2)
        push(source, remote, Reporter(), force=True, parallel=2)
        with pytest.raises(HistoriesDiverged):
            pull(old, url, access)
        run(source)
        push(source, remote, Reporter(), force=True, parallel=2)
        with pytest.raises(HistoriesDiverged):
            pull(old, url, access)
        other = Workspace.init(here.folder.parent / "other")
        clone, _ = clone_dataset(other, source.alias, remote, Reporter(), parallel=2)
    assert clone.dataset.compactions.names() == [str(clone.dataset.head())]
    assert clone.dataset.newest_compaction() == clone.dataset.head()
    for each in (source, clone, old):
        assert verify(each.dataset, Reporter()).findings == []
