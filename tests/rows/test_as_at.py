"""Places in a history: by a time, by a block, and what was known there."""

from __future__ import annotations

import pytest

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import MalformedBlock, NotFound, UsageError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import DatasetKind
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows import PinnedVersion
from odf_engine.rows.as_at import at_version, resolve_as_at
from odf_engine.rows.row_window import RowWindowReader
from odf_engine.rows.scan import Scan
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import SECOND, START, add_blocks, add_slices, describe, make_root


@pytest.fixture
def entry(workspace: Workspace) -> DatasetEntry:
    """Seed and schema at once, three slices of three rows each a second after the other, two watermarks."""
    return make_root(workspace, "numbers", slices=3, blocks=2)


def later(seconds: float) -> str:
    return str(Timestamp(START.ns + int(seconds * SECOND)))


def seen(found: PinnedVersion) -> tuple[int, int | None, bool]:
    return found.sequence_number, found.last_offset, found.head


def test_default_version_is_the_newest_block(entry: DatasetEntry) -> None:
    found = resolve_as_at(entry)
    state = entry.dataset.state()
    assert found == PinnedVersion(
        str(entry.id), "numbers", str(state.head), 6, str(state.system_time), 8, True
    )
    assert resolve_as_at(entry, "2999-01-01T00:00:00Z") == found


def test_time_resolves_to_the_newest_block_at_that_time(entry: DatasetEntry) -> None:
    assert seen(resolve_as_at(entry, later(0))) == (1, None, False)  # the newest of the blocks of that moment
    assert seen(resolve_as_at(entry, later(0.999))) == (1, None, False)
    assert [seen(resolve_as_at(entry, later(second)))[:2] for second in (1, 1.5, 2, 3)] == [
        (2, 2),
        (2, 2),
        (3, 5),
        (4, 8),
    ]
    assert seen(resolve_as_at(entry, later(4))) == (6, 8, True)
    assert seen(resolve_as_at(entry, "2024-05-01T02:00:02+02:00")) == (3, 5, False)
    with pytest.raises(
        UsageError, match=r"numbers has no blocks at .*: its first block is from 2024-05-01T00:00:00Z"
    ) as error:
        resolve_as_at(entry, "2024-04-30T23:59:59.999Z")
    assert "odf log" in (error.value.hint or "")


def test_block_is_found_by_hash_prefix_or_suffix(entry: DatasetEntry) -> None:
    block = entry.dataset.block(3).hash
    for text in (str(block), str(block)[:14], str(block)[-8:], str(block).upper()[-8:]):
        assert seen(resolve_as_at(entry, text)) == (3, 5, False)
    for text in ("f1620", "nothing", "f1620" + "0" * 64):
        with pytest.raises(NotFound):
            resolve_as_at(entry, text)


def test_pinned_version_shows_the_same_rows_after_appends(entry: DatasetEntry) -> None:
    block = str(entry.dataset.block(3).hash)
    before = resolve_as_at(entry, block)
    until = before.last_offset
    rows, window = Scan.of_dataset(entry.dataset, until), RowWindowReader(entry.dataset, last_offset=until)
    cities = [batch.to_pydict() for batch in rows.select(["city", "people"]).batches()]
    add_slices(entry, 2, city="Basel")
    assert resolve_as_at(entry, block) == before == resolve_as_at(entry, later(2))
    again = Scan.of_dataset(entry.dataset, until)
    assert [batch.to_pydict() for batch in again.select(["city", "people"]).batches()] == cities
    assert again.row_count == again.end_offset == 6
    assert (
        window.refresh()
        and window.row_count == 6 == RowWindowReader(entry.dataset, last_offset=until).row_count
    )
    assert window.tail(1)["people"].to_pylist() == [5]
    assert RowWindowReader(entry.dataset).row_count == 15 == Scan.of_dataset(entry.dataset).row_count


def test_offset_before_the_first_row_reads_no_rows(entry: DatasetEntry) -> None:
    assert (
        Scan.of_dataset(entry.dataset, -1).row_count
        == 0
        == RowWindowReader(entry.dataset, last_offset=-1).row_count
    )
    assert "city" in Scan.of_dataset(entry.dataset, -1).schema.names


def test_dataset_without_rows_resolves_but_without_blocks_fails(
    workspace: Workspace, entry: DatasetEntry
) -> None:
    empty = workspace.create_dataset(DatasetAlias.parse("empty"), DatasetKind.Root, [], START)
    assert seen(resolve_as_at(empty)) == (0, None, True)
    for name in ("refs/head", "refs/canonical"):
        (empty.dataset.folder / name).unlink(missing_ok=True)
    with pytest.raises(NotFound, match="empty has no blocks"):
        resolve_as_at(empty)


def test_stored_block_outside_the_chain_can_be_resolved(entry: DatasetEntry) -> None:
    head = entry.dataset.head()
    left = describe(entry, "one history")
    (entry.dataset.folder / "refs" / "head").write_text(str(head))
    describe(entry, "another one")
    for text in (str(left), str(left)[-8:], str(left)[:20]):
        found = resolve_as_at(entry, text)
        assert (*seen(found), found.block, found.in_chain) == (7, 8, False, str(left), False)
    info = at_version(entry, found).dataset.state().info
    assert info is not None and info.description == "one history"
    (entry.dataset.folder / "blocks" / str(left)).write_bytes(b"damaged")
    with pytest.raises(MalformedBlock):
        resolve_as_at(entry, str(left)[-8:])


def test_history_before_a_reset_can_be_read(entry: DatasetEntry) -> None:
    """Before a reset, as after it: the same rows, settings and blocks. The chain is unchanged by reading."""
    old = entry.dataset.state()
    older = [row.hash for row in entry.dataset.list_blocks(99)]
    shown = RowWindowReader(entry.dataset).tail(99).to_pydict()
    schema = entry.dataset.block(1).block.event
    later_time = Timestamp(START.ns + 60 * SECOND)
    entry.dataset.restart_chain([schema], system_time=later_time, expected_head=old.head)
    add_slices(entry, rows=2, city="Basel")
    name = f"before-reset-{old.head.abbreviated}"
    assert entry.dataset.references() == {name: old.head}
    for text in (name, f"refs/{name}", str(old.head), old.head.abbreviated):
        found = resolve_as_at(entry, text)
        assert (*seen(found), found.in_chain) == (6, 8, False, False)
    assert resolve_as_at(entry, "head") == resolve_as_at(entry)
    earlier = at_version(entry, found).dataset
    assert earlier.state() == old
    assert [row.hash for row in earlier.list_blocks(99)] == older
    assert RowWindowReader(earlier, last_offset=found.scan_offset).tail(99).to_pydict() == shown
    within = resolve_as_at(entry, str(older[3]))
    assert seen(within) == (3, 5, False) and not within.in_chain
    assert Scan.of_dataset(at_version(entry, within).dataset, within.scan_offset).row_count == 6
    first = resolve_as_at(entry, str(older[-1]))
    assert first.in_chain and at_version(entry, first) is entry
    assert entry.dataset.state().last_offset == 1 and RowWindowReader(entry.dataset).row_count == 2
    with pytest.raises(UsageError, match="earlier history"):
        earlier.commit([schema], system_time=later_time, expected_head=old.head)
    assert resolve_as_at(entry, "2").in_chain
    with pytest.raises(NotFound, match="block 'before-reset-0' not found") as error:
        resolve_as_at(entry, "before-reset-0")
    assert name in (error.value.hint or "")
    for text in ("refs/../refs/head", "../refs/head", "x" * 300, "refs/", "\0", "."):
        with pytest.raises(NotFound):
            resolve_as_at(entry, text)
    earlier.slice_path(earlier.slices()[0]).unlink()
    with pytest.raises(NotFound):
        Scan.of_dataset(earlier, found.scan_offset).to_arrow()
    (entry.dataset.folder / "blocks" / str(older[2])).unlink()
    with pytest.raises(NotFound, match="the block is missing"):
        resolve_as_at(
            DatasetEntry(entry.id, entry.alias, Dataset(entry.dataset.folder, BlockIndex(":memory:"))), name
        )


def test_blocks_without_rows_resolve_to_the_last_offset(workspace: Workspace) -> None:
    entry = make_root(workspace, "long", slices=1, blocks=40)
    assert seen(resolve_as_at(entry)) == (42, 2, True)
    assert seen(resolve_as_at(entry, str(entry.dataset.block(30).hash))) == (30, 2, False)
    moment = entry.dataset.block(20).block.system_time  # forty blocks have it
    assert resolve_as_at(entry, str(moment)).last_offset == 2
    add_blocks(entry)
    assert not resolve_as_at(entry, str(moment)).head
