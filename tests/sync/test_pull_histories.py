"""Whatever two histories have in common, how they stand and what a pull makes of them is right."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.chain import quarantine
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.sync import chain_download, object_downloads
from odf_engine.sync.history import HistoriesDiverged, compare
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.sync import builders

STEPS = st.lists(st.sampled_from(["slice", "block", "info"]), max_size=4)


def go_on(entry: DatasetEntry, steps: list[str], who: str) -> None:
    for number, step in enumerate(steps):
        if step == "slice":
            builders.add_files(entry, 1, 50, seed=hash((who, number)))
        elif step == "block":
            builders.add_blocks(entry, 1)
        else:
            builders.describe(entry, f"{who} {number}")


def hashes(entry: DatasetEntry) -> list[Multihash]:
    """Oldest first, as they are linked, whatever the index says."""
    found: list[Multihash] = []
    at = entry.dataset.head()
    while at is not None:
        found.append(at)
        at = entry.dataset.block(at).block.prev_block_hash
    return found[::-1]


def shared_part(ours: list[Multihash], theirs: list[Multihash]) -> int:
    same = [at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other]
    return same[0] if same else min(len(ours), len(theirs))


class Whole(FolderRemote):
    """Sends all blocks in one go, as far as it knows where to begin."""

    prepared: list[Any] | None = None

    def block_batch(self, after: Multihash | None, head: Multihash) -> Any:
        found: list[tuple[Multihash, bytes]] = []
        at: Multihash | None = head
        while at is not None and at != after:
            data = self.read("blocks", at, 1 << 20)
            found.append((at, data))
            from odf_engine.metadata.flatbuffers import decode_block

            at = decode_block(data).block.prev_block_hash
        return None if at != after else iter(found[::-1])

    def prepare(self, files: Any, *, more: bool = False) -> None:
        self.prepared = list(files)


@settings(max_examples=40)
@given(common=STEPS, ours=STEPS, theirs=STEPS, force=st.booleans(), whole=st.booleans(), small=st.booleans())
@pytest.mark.complete
def test_pull_is_correct_for_any_two_histories(
    common: list[str], ours: list[str], theirs: list[str], force: bool, whole: bool, small: bool
) -> None:
    few = (
        mock.patch.multiple(chain_download, _MAX_BLOCKS=1, _FIRST_FILES=1),
        mock.patch.multiple(quarantine, _MAX_FOLDED=2, _BATCH=2),
    )
    with tempfile.TemporaryDirectory() as folder:
        there, here = Workspace.init(Path(folder) / "there"), Workspace.init(Path(folder) / "here")
        source = builders.make_root(there)
        go_on(source, common, "common")
        entry = builders.copy_into(here, source)
        go_on(source, theirs, "theirs")
        go_on(entry, ours, "ours")
        before, wanted = hashes(entry), hashes(source)
        same = shared_part(before, wanted)
        url = f"file://{source.dataset.folder}/"
        relation = compare(entry.dataset, FolderRemote(url), Reporter())
        assert (relation.ours, relation.theirs) == (len(before) - same, len(wanted) - same)
        remote = (Whole if whole else FolderRemote)(url)
        for patch in few if small else ():
            patch.start()
        try:
            if relation.kind == "diverged" and not force:
                with pytest.raises(HistoriesDiverged) as found:
                    pull_dataset(entry, remote, Reporter(), force=False, parallel=2)
                assert found.value.relation == relation
                assert hashes(entry) == before
                return
            pulled = pull_dataset(entry, remote, Reporter(), force=force, parallel=2)
        finally:
            mock.patch.stopall()
        taken = force or relation.kind == "behind"
        assert hashes(entry) == (wanted if taken else before)
        assert pulled.status == ("updated" if taken and before != wanted else "up-to-date")
        assert pulled.blocks == (len(wanted) - same if taken else 0)
        assert [row.hash for row in entry.dataset.list_blocks(99)] == hashes(entry)[::-1]
        assert entry.dataset.state() == (source if taken else entry).dataset.state()
        assert all(entry.dataset.slice_path(row).is_file() for row in entry.dataset.slices())
        kept = [path.read_text() for path in (entry.dataset.folder / "refs").glob("before-pull-*")]
        assert kept == ([str(before[-1])] if taken and relation.ours else [])


def test_clone_reads_all_blocks_in_one_transfer(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=3)
    remote = Whole(f"file://{source.dataset.folder}/")
    entry, pulled = clone_dataset(here, DatasetAlias(None, "pulled"), remote, Reporter(), parallel=2)
    assert remote.prepared is not None
    assert len(remote.prepared) == 3
    assert (pulled.blocks, pulled.bytes) == (5, source.dataset.state().data_size)
    assert entry.dataset.state() == source.dataset.state()


def test_blocks_beyond_the_memory_limit_are_read_again(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, blocks=300)
    builders.add_files(source, 40, 10)
    with (
        mock.patch.multiple(chain_download, _MAX_BLOCKS=8),
        mock.patch.multiple(quarantine, _MAX_FOLDED=8, _BATCH=50),
        mock.patch.multiple(object_downloads, _QUEUE_SIZE=2, _SYNC_FILES=5),
    ):
        url = f"file://{source.dataset.folder}/"
        entry, _ = clone_dataset(
            here, DatasetAlias(None, "pulled"), FolderRemote(url), Reporter(), parallel=2
        )
    assert entry.dataset.state() == source.dataset.state()
    assert builders.objects(entry.dataset.folder) == builders.objects(source.dataset.folder)
