"""Differences between two dataset versions: types, choice of the versions, settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from odf_engine.chain.block_summary import BlockSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.schema_evolution import read_declaration
from odf_engine.chain.state import ChainState, apply_block
from odf_engine.data.ddl import type_ddl
from odf_engine.errors import OdfError, Unsupported, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows import PinnedVersion
from odf_engine.rows.as_at import at_version, resolve_as_at
from odf_engine.storage.refs import is_branch_name
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import DatasetNames, PlannedChange, describe_change
from odf_engine.workspace.workspace import Workspace

_SETTINGS: Final = (
    "Seed", "SetVocab", "SetDataSchema", "SetPollingSource", "DisablePollingSource", "AddPushSource",
    "DisablePushSource", "SetTransform", "SetLicense", "SetInfo", "SetAttachments",
)  # fmt: skip
_FLIPPED: Final = {"+": "-", "-": "+"}


class ColumnChange(msgspec.Struct, frozen=True):
    """A column that was added (``old`` is None), removed (``new`` is None) or has another type, as DDL."""

    name: str
    old: str | None
    new: str | None


class _Pair(NamedTuple):
    old: model.MetadataEvent | None
    new: model.MetadataEvent | None


def settings_at(dataset: Dataset, number: int) -> ChainState:
    """Return the settings of a dataset at a block. Offsets, totals and the watermark are not filled in.

    Only the blocks with settings are read, not those with data.

    Raises:
        OdfError: a block cannot be read.
    """
    rows = []
    before = number + 1
    while page := dataset.list_blocks(_PAGE, before=before, kinds=_SETTINGS):
        rows += page
        before = page[-1].sequence_number
    state: ChainState | None = None
    for row in reversed(rows):
        state = apply_block(state, dataset.block(row.hash).block, row.hash)
    assert state is not None  # a chain begins with its Seed
    return state


def watermark_at(dataset: Dataset, number: int) -> Timestamp | None:
    """Return the newest watermark of a dataset at a block."""
    before = number + 1
    while page := dataset.list_blocks(_PAGE, before=before, kinds=_DATA):
        for row in page:
            event = dataset.block(row.hash).block.event
            if isinstance(event, model.AddData | model.ExecuteTransform) and event.new_watermark is not None:
                return event.new_watermark
        before = page[-1].sequence_number
    return None


def column_changes(old: ChainState, new: ChainState) -> list[ColumnChange]:
    """Return added and retyped columns in the newer order, then removed columns.

    Raises:
        OdfError: a schema cannot be read.
    """
    before, after = dict(_columns(old)), dict(_columns(new))
    changes = [ColumnChange(name, before.get(name), kind) for name, kind in after.items()]
    changes += [ColumnChange(name, kind, None) for name, kind in before.items() if name not in after]
    return [change for change in changes if change.old != change.new]


def _columns(state: ChainState) -> Iterator[tuple[str, str]]:
    schema = read_declaration(state)
    if schema is not None:
        for field in schema:
            yield field.name, type_ddl(field.type) + ("" if field.nullable else " NOT NULL")


def setting_changes(old: ChainState, new: ChainState, names: DatasetNames) -> list[PlannedChange]:
    """Return the other differences, one entry for each kind of event.

    Each line begins with ``+``, ``-`` or a space.
    """
    planned_changes: list[PlannedChange] = []
    if old.kind is not new.kind:
        planned_changes.append(
            PlannedChange("Seed", [f"- kind: {old.kind.value}", f"+ kind: {new.kind.value}"])
        )
    if _schema(old) != _schema(new) and not _columns_differ(old, new):
        planned_changes.append(
            PlannedChange("SetDataSchema", ["  only the order of columns, or their descriptions"])
        )
    planned_changes += [_change(pair, names) for pair in _pairs(old, new) if pair.old != pair.new]
    for key in sorted({*old.not_understood, *new.not_understood}):
        if old.not_understood.get(key) != new.not_understood.get(key):
            planned_changes.append(
                PlannedChange(key, ["  unsupported properties from a newer specification"])
            )
    return planned_changes


def _schema(state: ChainState) -> object:
    return state.schema if state.odf_schema is None else state.odf_schema


def _columns_differ(old: ChainState, new: ChainState) -> bool:
    try:
        return bool(column_changes(old, new))
    except OdfError:
        return False


def _pairs(old: ChainState, new: ChainState) -> Iterator[_Pair]:
    yield _Pair(_vocabulary(old), _vocabulary(new))
    yield _Pair(old.polling_source, new.polling_source)
    for name in dict.fromkeys([*old.push_sources, *new.push_sources]):
        yield _Pair(old.push_sources.get(name), new.push_sources.get(name))
    yield _Pair(old.transform, new.transform)
    yield _Pair(old.license, new.license)
    yield _Pair(old.info, new.info)
    yield _Pair(_attachments(old), _attachments(new))


def _vocabulary(state: ChainState) -> model.SetVocab:
    return model.SetVocab(**msgspec.structs.asdict(state.vocabulary))


def _attachments(state: ChainState) -> model.SetAttachments | None:
    return None if state.attachments is None else model.SetAttachments(state.attachments)


def _change(pair: _Pair, names: DatasetNames) -> PlannedChange:
    if pair.new is not None:
        return describe_change(pair.new, pair.old, names)
    assert pair.old is not None
    drop = describe_change(pair.old, None, names)
    return PlannedChange(drop.title, [_FLIPPED.get(line[:1], line[:1]) + line[1:] for line in drop.lines])


_DATA: Final = ("AddData", "ExecuteTransform")
_PAGE: Final = 200


class DiffColumn(msgspec.Struct, frozen=True):
    """A column of the differing rows.

    Attributes:
        name: its name on the newer side.
        key: whether it belongs to the key; then the file has it once.
        old_type, new_type: Arrow types, or None on a side without it.
        old, new: names of its values in the file, or None for a side without it.
        counts: whether a different value makes a row changed.
    """

    name: str
    key: bool
    old_type: str | None
    new_type: str | None
    old: str | None
    new: str | None
    counts: bool = True


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two sides.

    With a key, the latest states of both sides are compared. Without a key, rows are compared as multisets
    of all columns but the system columns: a retraction removes one of n equal rows, and no row is
    ``changed``. Floats are compared by their bits: ``-0.0`` differs from ``0.0``, and NaN equals NaN.

    Attributes:
        old, new: the compared versions.
        key: the columns of the key, by their names on the newer side, or [].
        added, removed, changed, unchanged: numbers of rows.
        rows: number of rows in the file: added, removed or changed.
        file: the absolute path of a Parquet file in the cache. Its columns are ``change`` (``added``,
            ``removed`` or ``changed``), then those in ``columns`` under the names given there, null on a
            side that lacks the row, then those in ``offsets``. It is sorted by the key.
        columns: columns of the rows.
        offsets: names of the columns with the offsets of the older and the newer row. Without a key, they
            are the newest of equal rows; an offset of the newer version on a removed row is its retraction.
            None in results of earlier versions.
        by_column: for each column, its number of changed rows; only columns that do.
        schema: columns that were added, removed, or have another type.
        settings: other differences.
        records: number of rows of each changelog; older, newer.
        watermarks: likewise, as RFC 3339.
        blocks: number of blocks between two versions of a dataset, including the newer one. Negative if the
            older side is the later version, or None for two datasets or two histories.
    """

    old: PinnedVersion
    new: PinnedVersion
    key: list[str]
    added: int
    removed: int
    changed: int
    unchanged: int
    rows: int
    file: str
    columns: list[DiffColumn]
    by_column: dict[str, int]
    schema: list[ColumnChange]
    settings: list[PlannedChange]
    records: tuple[int, int]
    watermarks: tuple[str | None, str | None]
    blocks: int | None
    offsets: tuple[str, str] | None = None

    def traceable_row(self, old: int | None, new: int | None) -> tuple[PinnedVersion, int]:
        """Return the version and the offset whose trace explains a row of the difference.

        The ``history`` of the version is the branch or tag with the row, or "" for the head.

        Args:
            old: the offset of the older row, or None if only the newer side has the row.
            new: likewise for the newer side.

        Raises:
            Unsupported: the row is in an earlier history, or in a branch that the caller has not named.
        """
        is_newer_chain = new is not None or (self.blocks or 0) > 0  # the newer chain also has the retraction
        side, offset = self.new if is_newer_chain else self.old, old if new is None else new
        assert offset is not None  # each row is on one of the sides
        if side.in_chain:
            return replace(side, history=""), offset
        if not is_branch_name(side.history):
            raise Unsupported(
                "rows of an earlier history cannot be traced without a tag",
                hint=f"create one: odf tag {side.name} TAG --at {side.block[:13]}, then compare with TAG",
            )
        return side, offset


class DiffSides(msgspec.Struct, frozen=True):
    """Two versions to be compared.

    Attributes:
        old, new: the datasets, each with the chain that contains its version.
        one_chain: whether both versions are in one chain.
    """

    old: DatasetEntry
    old_pin: PinnedVersion
    new: DatasetEntry
    new_pin: PinnedVersion
    one_chain: bool = False

    @property
    def same(self) -> bool:
        """Whether both are of one dataset."""
        return self.old.id == self.new.id

    @property
    def versions(self) -> tuple[tuple[Dataset, PinnedVersion], tuple[Dataset, PinnedVersion]]:
        """Chains and versions, older first."""
        return (self.old.dataset, self.old_pin), (self.new.dataset, self.new_pin)


def resolve_sides(
    workspace: Workspace,
    dataset: str,
    other: str = "",
    as_at: str | None = None,
    other_as_at: str | None = None,
) -> DiffSides:
    """Resolve the versions to be compared.

    Args:
        workspace: contains the datasets.
        dataset: the older side, an id or a name.
        other: the newer side, or "" for the same dataset.
        as_at: the block of the older side, see :func:`odf_engine.rows.as_at.resolve_as_at`. None: for two
            datasets the newest; for one dataset the block with data before the newer side's.
        other_as_at: the same for the newer side. None: the newest; or the newest with data if neither is
            given.

    Raises:
        UsageError: both sides are the same, or there is no block with data.
        NotFound: there is no such dataset or block.
    """
    old = workspace.resolve(dataset)
    new = workspace.resolve(other) if other else old
    if old.id != new.id:
        pins = resolve_as_at(old, as_at), resolve_as_at(new, other_as_at)
        return DiffSides(at_version(old, pins[0]), pins[0], at_version(new, pins[1]), pins[1])
    newer = resolve_as_at(new, other_as_at)
    new = at_version(new, newer)
    if as_at is not None:
        older = resolve_as_at(old, as_at)
    else:
        newest, before = _newest_data_blocks(new, newer)
        older = resolve_as_at(old, str(before))
        newer = resolve_as_at(new, str(newest)) if other_as_at is None else newer
    if older.block == newer.block:
        raise UsageError(
            f"both versions are block {newer.sequence_number} of {newer.name}",
            hint="run odf log to list the other blocks",
        )
    old = at_version(old, older)
    pairs = (old.dataset, newer), (new.dataset, older)
    one_chain = any(dataset.contains_block(Multihash.parse(pin.block)) for dataset, pin in pairs)
    return DiffSides(old, older, new, newer, one_chain)


def _newest_data_blocks(entry: DatasetEntry, newer: PinnedVersion) -> tuple[str, str]:
    """Return the hashes of the newest block with rows up to a version, and of the one before it with rows.

    If there is no earlier block with rows, the second is the previous block.
    """
    rows = _blocks_with_rows(entry.dataset, newer.sequence_number + 1)
    if not rows:
        raise UsageError(
            f"{entry.alias} has no rows up to block {newer.sequence_number}",
            hint="specify the two blocks to compare",
        )
    before = rows[1] if len(rows) > 1 else entry.dataset.list_blocks(1, before=rows[0].sequence_number)[0]
    return str(rows[0].hash), str(before.hash)


def _blocks_with_rows(dataset: Dataset, before: int) -> list[BlockSummary]:
    """Return at most two blocks with rows, newest first."""
    block_summaries: list[BlockSummary] = []
    while len(block_summaries) < 2 and (page := dataset.list_blocks(_PAGE, before=before, kinds=_DATA)):
        block_summaries += [row for row in page if row.rows]
        before = page[-1].sequence_number
    return block_summaries[:2]


CHANGE_COLUMN = "change"
"""The column of a difference file with ``added``, ``removed`` or ``changed``."""
