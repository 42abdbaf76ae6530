"""Compares two versions of a dataset, or two datasets: rows, columns, and all that describes them.

What is here is plain and quick to import; the work on rows is in ``differing_rows``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from odf_engine.chain.chain import Dataset
from odf_engine.chain.rows import BlockRow
from odf_engine.errors import UsageError
from odf_engine.progress import Reporter
from odf_engine.workspace.definitions import Change
from odf_engine.workspace.differing_settings import (
    ColumnChange,
    column_changes,
    setting_changes,
    settings_at,
    watermark_at,
)
from odf_engine.workspace.pins import Pin, pin
from odf_engine.workspace.workspace import DatasetEntry, Workspace

_DATA: Final = ("AddData", "ExecuteTransform")
_PAGE: Final = 200


class ComparedColumn(msgspec.Struct, frozen=True):
    """A column of the rows that differ.

    Attributes:
        name: as the newer side calls it.
        key: whether it tells rows apart; it is in the file once then.
        old_type, new_type: as Arrow calls them; None on the side that does not have it.
        old, new: what its values are called in the file; None where there are none.
        counts: whether another value in it makes a row a changed one.
    """

    name: str
    key: bool
    old_type: str | None
    new_type: str | None
    old: str | None
    new: str | None
    counts: bool = True


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two sides.

    With a key, the current states of both sides are compared: of each key its newest row. Without one, rows
    are compared as a whole, without the columns of the system: one that is there n times counts n times, a
    retraction takes one away, and nothing is ``changed``.

    Attributes:
        old, new: what is compared.
        key: the columns that tell rows apart, as the newer side calls them; empty for none.
        added, removed, changed, unchanged: how many rows.
        rows: how many are in the file: those that were added, removed or changed.
        file: the absolute path of a Parquet file in the cache. Its columns are ``change`` (``added``,
            ``removed`` or ``changed``), then those of ``columns`` under the names that these say, with
            nulls on the side where a row is not. It is in the order of the key, unless it is very large.
        columns: those of the rows.
        by_column: in how many changed rows each column has another value; without those where it is none.
        schema: columns that are new, gone, or of another type.
        settings: what else describes the sides and is other.
        records: how many rows each changelog has; older, newer.
        watermarks: likewise, as RFC 3339.
        blocks: how many blocks lie between two versions of a dataset, the newer one included; negative
            when the older side is the later one, and None for two datasets.
    """

    old: Pin
    new: Pin
    key: list[str]
    added: int
    removed: int
    changed: int
    unchanged: int
    rows: int
    file: str
    columns: list[ComparedColumn]
    by_column: dict[str, int]
    schema: list[ColumnChange]
    settings: list[Change]
    records: tuple[int, int]
    watermarks: tuple[str | None, str | None]
    blocks: int | None


class Sides(msgspec.Struct, frozen=True):
    """Two versions that shall be compared."""

    old: DatasetEntry
    old_pin: Pin
    new: DatasetEntry
    new_pin: Pin

    @property
    def same(self) -> bool:
        """Whether they are of one dataset."""
        return self.old.id == self.new.id

    @property
    def places(self) -> tuple[tuple[Dataset, Pin], tuple[Dataset, Pin]]:
        """The chains, and where in them."""
        return (self.old.dataset, self.old_pin), (self.new.dataset, self.new_pin)


def compare(
    workspace: Workspace,
    dataset: str,
    other: str = "",
    *,
    as_at: str | None = None,
    other_as_at: str | None = None,
    key: Sequence[str] = (),
    reporter: Reporter,
) -> Difference:
    """Compares what :func:`sides_of` finds.

    Args:
        workspace: keeps the rows that differ in its cache.
        dataset, other, as_at, other_as_at: as there.
        key: columns that tell rows apart; by default what both datasets have as theirs.
        reporter: hears of phases and rows, and is asked whether to stop.

    Raises:
        OdfError: there is no such side, they are the same, there is no such key, rows cannot be read, or the
            file cannot be written.
        Cancelled: the reporter was cancelled.
    """
    from odf_engine.workspace.differing_rows import compare_rows

    sides = sides_of(workspace, dataset, other, as_at, other_as_at)
    reporter.phase("compare blocks")
    old, new = (settings_at(chain, place.sequence_number) for chain, place in sides.places)
    names = {each.id: str(each.alias) for each in workspace.datasets()}
    schema, settings = column_changes(old, new), setting_changes(old, new, names)
    marks = [watermark_at(chain, place.sequence_number) for chain, place in sides.places]
    found = compare_rows(workspace.odf, sides, key, reporter)
    steps = sides.new_pin.sequence_number - sides.old_pin.sequence_number
    records = [0 if place.last_offset is None else place.last_offset + 1 for _, place in sides.places]
    return Difference(
        old=sides.old_pin,
        new=sides.new_pin,
        key=found.key,
        added=found.added,
        removed=found.removed,
        changed=found.changed,
        unchanged=found.unchanged,
        rows=found.added + found.removed + found.changed,
        file=str(found.file),
        columns=found.columns,
        by_column=found.by_column,
        schema=schema,
        settings=settings,
        records=(records[0], records[1]),
        watermarks=(_text(marks[0]), _text(marks[1])),
        blocks=steps if sides.same else None,
    )


def sides_of(
    workspace: Workspace,
    dataset: str,
    other: str = "",
    as_at: str | None = None,
    other_as_at: str | None = None,
) -> Sides:
    """What is to be compared.

    Args:
        workspace: where the datasets are.
        dataset: the older side, an id or a name.
        other: the newer side; empty for the same dataset.
        as_at: which block the older side is seen at, see :func:`odf_engine.workspace.pins.pin`. None: for two
            datasets the newest; for one the block with data before the newest with data of the newer side.
        other_as_at: the newer side's. None: the newest; or the newest with data when neither is said.

    Raises:
        UsageError: both sides are the same, or there is no block with data to choose.
        NotFound: there is no such dataset or block.
    """
    old = workspace.resolve(dataset)
    new = workspace.resolve(other) if other else old
    if old.id != new.id:
        return Sides(old, pin(old, as_at), new, pin(new, other_as_at))
    newer = pin(new, other_as_at)
    if as_at is not None:
        older = pin(old, as_at)
    else:
        newest, before = _newest_data(old, newer)
        older = pin(old, str(before))
        newer = pin(new, str(newest)) if other_as_at is None else newer
    if older.block == newer.block:
        raise UsageError(
            f"both sides are block {newer.sequence_number} of {newer.name}",
            hint="odf log shows the other blocks and their times",
        )
    return Sides(old, older, new, newer)


def _newest_data(entry: DatasetEntry, newer: Pin) -> tuple[str, str]:
    """The hashes of the newest block with rows up to a place, and of the one before it with rows; of the
    block just before it where it has the first rows of all."""
    rows = _with_rows(entry.dataset, newer.sequence_number + 1)
    if not rows:
        raise UsageError(
            f"{entry.alias} has no rows up to block {newer.sequence_number}",
            hint="any two blocks can be compared: say which",
        )
    before = rows[1] if len(rows) > 1 else entry.dataset.page(1, before=rows[0].sequence_number)[0]
    return str(rows[0].hash), str(before.hash)


def _with_rows(dataset: Dataset, before: int) -> list[BlockRow]:
    """At most two blocks with rows, newest first."""
    found: list[BlockRow] = []
    while len(found) < 2 and (page := dataset.page(_PAGE, before=before, kinds=_DATA)):
        found += [row for row in page if row.rows]
        before = page[-1].sequence_number
    return found[:2]


def _text(value: object) -> str | None:
    return None if value is None else str(value)
