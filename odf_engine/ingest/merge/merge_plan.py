"""Plans of a merge: the options of an attempt, and the fallbacks after an abandoned attempt."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slices import WrittenSlice
from odf_engine.errors import BadData
from odf_engine.ingest.merge.key_file import CorruptKeyFile, NullKey, RepeatedKey
from odf_engine.ingest.merge.key_index import KeyIndex
from odf_engine.spark.row_order import OrderedFrame, UnsortedResult


class Fallback(Enum):
    """Why an attempt was abandoned. Another plan can produce a result, or a message that shows the rows."""

    UNSORTED_ROWS = auto()
    """A large result was not in the order of event time."""
    SUSPECT_KEYS = auto()
    """A primary key was null or occurred twice."""
    CORRUPT_KEY_INDEX = auto()
    """A key file has changed since it was written."""


@dataclass(frozen=True)
class MergePlan:
    """Options of a merge attempt. The first plan is the fastest one; each fallback adds work.

    Attributes:
        sort: Spark sorts the rows.
        check_keys: Spark checks the primary keys before the merge, and drops exact copies of rows.
        index_rebuilt: the key index was removed, so that it is rebuilt from the slices.
    """

    sort: bool = False
    check_keys: bool = False
    index_rebuilt: bool = False


@dataclass(frozen=True)
class PendingKeys:
    """The keys of slices that are not yet committed.

    Attributes:
        index: the key index that they extend.
        file: the key file of the slices.
    """

    index: KeyIndex
    file: Path

    def commit(self, end: int, physical_hash: str, reporter: Reporter) -> None:
        """Add the keys to the index. A failure removes the index: the next merge rebuilds it.

        Args:
            end: last offset of the slices.
            physical_hash: hash of the last slice.
            reporter: receives a debug message about a failure.
        """
        try:
            self.index.add(self.file, end, physical_hash)
        except (CorruptKeyFile, OSError) as error:
            with suppress(OSError):  # what remains is valid up to an earlier slice
                self.index.remove()
            reporter.log(f"the key index could not be updated: {error}", "debug")


MergeRows = Generator[pa.RecordBatch, None, PendingKeys | None]
"""Yields the rows to write, in order, with their operations; returns their keys if the merge has an index."""
WriteRows = Callable[[Iterator[pa.RecordBatch]], list[WrittenSlice]]
"""Writes slices; returns none if there are no rows. An exception of the iterator discards the slices."""


@dataclass(frozen=True)
class PreparedMerge:
    """A merge that has not started.

    Attributes:
        rows: starts an attempt.
        remove_index: removes the key index.
        frame: a frame with the same rows, or None if the merge changes the rows of its frames.
    """

    rows: Callable[[MergePlan], MergeRows]
    remove_index: Callable[[], None] = lambda: None
    frame: OrderedFrame | None = None


@dataclass(frozen=True)
class MergedSlices:
    """The result of a merge.

    Attributes:
        written: the slices; none if there are no rows.
        keys: of all slices, to add to the key index after the commit.
    """

    written: list[WrittenSlice]
    keys: PendingKeys | None


def run_merge(merge: PreparedMerge, write: WriteRows, reporter: Reporter) -> MergedSlices:
    """Run attempts until one writes the slices. Each reason to abandon an attempt occurs at most once.

    Raises:
        BadData: null or conflicting primary keys, invalid operations and the like; the message shows rows.
        CorruptKeyFile: the rebuilt key index is corrupt too.
    """
    plan = MergePlan()
    while True:
        match _attempt(merge, plan, write):
            case MergedSlices() as merged:
                return merged
            case Fallback.UNSORTED_ROWS:
                reporter.log("the rows are not ordered by event time: sorting them")
                plan = replace(plan, sort=True)
            case Fallback.SUSPECT_KEYS if plan.check_keys:
                raise BadData(
                    "the result of the preprocess query is not deterministic",
                    hint="remove random functions from the preprocess query",
                )
            case Fallback.SUSPECT_KEYS:
                plan = replace(plan, check_keys=True)
            case Fallback.CORRUPT_KEY_INDEX:
                reporter.log("the key index is damaged: rebuilding it", "warning")
                merge.remove_index()
                plan = replace(plan, index_rebuilt=True)


def _attempt(merge: PreparedMerge, plan: MergePlan, write: WriteRows) -> MergedSlices | Fallback:
    """Write the rows as planned; return the slices, or why they were discarded."""
    keys: PendingKeys | None = None

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal keys
        keys = yield from merge.rows(plan)

    # Errors from within the stream of rows make the writer discard its files.
    try:
        written = write(rows())
    except UnsortedResult:
        return Fallback.UNSORTED_ROWS
    except (NullKey, RepeatedKey):
        return Fallback.SUSPECT_KEYS
    except CorruptKeyFile:
        if plan.index_rebuilt:
            raise
        return Fallback.CORRUPT_KEY_INDEX
    return MergedSlices(written, keys)
