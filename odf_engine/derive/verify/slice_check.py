"""Checks of single objects: bytes of files, rows and system columns of slices, checkpoints."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from msgspec.structs import astuple
from pyarrow import types

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.linked_objects import read_links
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import OperationCheck
from odf_engine.data.digest import LogicalHasher, SerialExecutors
from odf_engine.data.parquet.slices import read_batches
from odf_engine.data.schema_enforcement import without_layout
from odf_engine.errors import BadData, InvalidSchema, NotFound
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import Checkpoint, DatasetVocabulary, DataSlice
from odf_engine.metadata.object_links import LinkedTotals
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.object_store import LocalObjectStore, find_object_name, hash_file

_CHECKS: Final = 1
"""Version of :func:`check_rows`: a new one invalidates the slices that were verified before."""
DAMAGED_SLICE: Final = frozenset(
    {"slice-missing", "slice-size", "slice-physical-hash", "slice-malformed", "slice-logical-hash"}
)
"""Kinds of findings about a file that is not the committed one."""
Problem = tuple[str, str]
"""Kind and message of a finding."""


class ExpectedSlice(NamedTuple):
    """The properties of a slice according to the chain.

    Attributes:
        data: hashes, size and offsets.
        vocabulary: names of the system columns.
        schema: the schema of the dataset, or None if it is not known.
        earliest, latest: bounds of the system time.
        links: columns with links to objects.
        linked: totals of the linked objects as the block declares them, or None if it does not.
        is_derived: it is a slice of a derivative dataset, which a replay can write with other bytes.
    """

    data: DataSlice
    vocabulary: DatasetVocabulary
    schema: pa.Schema | None
    earliest: Timestamp | None
    latest: Timestamp
    links: tuple[str, ...] = ()
    linked: LinkedTotals | None = None
    is_derived: bool = False

    @property
    def key(self) -> bytes:
        """Hash of all properties. Equal bytes with an equal key need no second check."""
        data, schema = self.data, self.schema
        properties = (
            _CHECKS,
            *map(str, (data.physical_hash, data.logical_hash, data.size)),
            *map(str, astuple(data.offset_interval)),
            *astuple(self.vocabulary),
            "" if schema is None else schema.remove_metadata().serialize().to_pybytes().hex(),
            *map(str, (self.earliest, self.latest)),
        )
        return hashlib.sha3_256(repr(properties).encode()).digest()


class VerifiedSlices(Protocol):
    """A store of the keys of verified content: slices by :attr:`ExpectedSlice.key`, and transactions."""

    def is_verified(self, key: bytes) -> bool:
        """Return whether the content with this key was verified."""
        ...

    def mark_verified(self, key: bytes) -> None:
        """Store that the content with this key was verified."""
        ...


def check_object(
    path: Path | None, what: str, expected: Multihash, size: int, progress: Callable[[int], None]
) -> Iterator[Problem]:
    """Check existence, size and hash of an object.

    Args:
        path: the path of the object, or None if it is missing.
        what: ``slice`` or ``checkpoint``.
        expected, size: physical hash, and size in bytes.
        progress: receives the number of bytes of each read.

    Yields:
        kinds ``<what>-missing``, ``<what>-size``, ``<what>-physical-hash``.
    """
    if path is None:
        yield f"{what}-missing", f"{what} {expected} is missing"
        return
    try:
        actual_size = path.stat().st_size
        if actual_size != size:
            yield f"{what}-size", f"{what} {expected} has {actual_size} bytes, expected {size}"
        actual = hash_file(path, expected.code, progress)
    except OSError as error:
        yield f"{what}-missing", f"{what} {expected} cannot be read: {error.strerror}"
        return
    if actual != expected:
        yield f"{what}-physical-hash", f"{what} {expected} has a different hash: {actual}"


def check_rows(
    path: Path,
    expected: ExpectedSlice,
    check: Callable[[], None],
    executors: SerialExecutors,
    operations: OperationCheck,
) -> Iterator[Problem]:
    """Check schema, logical hash, number and order of rows, and values of the system columns.

    Each kind of problem is reported once for a slice, with its first row.

    Args:
        path: the file.
        expected: the properties of the slice.
        check: called for each batch; may raise to cancel.
        executors: threads that hash the columns.
        operations: receives the operations of the rows.

    Yields:
        kinds ``slice-malformed``, ``slice-schema``, ``slice-null``, ``slice-logical-hash``,
        ``slice-rows``, ``slice-offset``, ``slice-op``, ``slice-system-time``, ``slice-event-time``.
    """
    rows = _Rows(expected, operations)
    try:
        batches = read_batches(path)
        first = next(batches, None)
        if first is not None:
            yield from _check_schema(first.schema, expected)
            yield from _check_batches(first, batches, rows, check, executors)
    except (BadData, NotFound, ValueError) as error:  # A column name that is not UTF-8 is a ValueError.
        yield "slice-malformed", f"the slice cannot be read: {error}"
        return
    yield from rows.finish()


def _check_batches(
    first: pa.RecordBatch,
    rest: Iterator[pa.RecordBatch],
    rows: _Rows,
    check: Callable[[], None],
    executors: SerialExecutors,
) -> Iterator[Problem]:
    expected = rows.expected.data.logical_hash
    try:
        hasher = LogicalHasher(first.schema, executors)
        for batch in chain([first], rest):
            check()
            hasher.update(batch)
            yield from rows.check(batch)
        actual = hasher.finish()
    except InvalidSchema as error:
        yield "slice-logical-hash", f"the logical hash of the rows cannot be computed: {error}"
        return
    if actual != expected:
        yield (
            "slice-logical-hash",
            f"the rows differ from the committed ones: logical hash is {actual}, expected {expected}",
        )


def _check_schema(stored: pa.Schema, expected: ExpectedSlice) -> Iterator[Problem]:
    if expected.schema is None:
        return
    if stored.names != expected.schema.names:
        yield (
            "slice-schema",
            f"columns are {', '.join(stored.names)}, expected {', '.join(expected.schema.names)}",
        )
        return
    for field, declared in zip(stored, expected.schema, strict=True):
        if without_layout(field.type) != without_layout(declared.type):
            yield ("slice-schema", f"column '{field.name}' is {field.type}, expected {declared.type}")


class _Rows:
    """Checks the system columns of a slice, batch after batch. Each kind of problem is reported once."""

    def __init__(self, expected: ExpectedSlice, operations: OperationCheck) -> None:
        self.expected = expected
        self._count = 0
        self._reported: set[str] = set()
        self._next_offset = expected.data.offset_interval.start
        self._operations = operations
        declared = expected.schema if expected.schema is not None else pa.schema([])
        system = astuple(expected.vocabulary)  # These columns have their own checks.
        self._required = [field.name for field in declared if not field.nullable and field.name not in system]

    def check(self, batch: pa.RecordBatch) -> Iterator[Problem]:
        """Yield the problems of the next rows."""
        vocabulary = self.expected.vocabulary
        yield from self._nulls(batch)
        for column, check, kind in (
            (vocabulary.offset_column, self._offsets, "slice-offset"),
            (vocabulary.operation_type_column, self._operations.check, "slice-op"),
            (vocabulary.system_time_column, self._system_times, "slice-system-time"),
            (vocabulary.event_time_column, self._event_times, "slice-event-time"),
        ):
            if kind in self._reported:
                continue
            message = self._column(batch, column, check)
            if message is not None:
                self._reported.add(kind)
                yield kind, message
        self._count += batch.num_rows

    def finish(self) -> Iterator[Problem]:
        """Yield the problems that are known after the last row."""
        interval = self.expected.data.offset_interval
        rows = interval.end - interval.start + 1
        if self._count != rows:
            yield (
                "slice-rows",
                f"the slice has {self._count} rows, expected {rows} "
                f"for offsets {interval.start} to {interval.end}",
            )
        if "slice-op" not in self._reported and (problem := self._operations.finish()) is not None:
            yield "slice-op", problem

    def _nulls(self, batch: pa.RecordBatch) -> Iterator[Problem]:
        for name in self._required:
            at = batch.schema.get_field_index(name)
            if at >= 0 and batch.column(at).null_count and "slice-null" not in self._reported:
                self._reported.add("slice-null")
                row = self._row(pc.is_null(batch.column(at)))
                yield "slice-null", f"row {row} has no value in '{name}', which is NOT NULL"

    def _column(
        self, batch: pa.RecordBatch, name: str, check: Callable[[pa.Array], str | None]
    ) -> str | None:
        if batch.schema.get_field_index(name) < 0:
            return f"column '{name}' is missing"
        column = batch.column(name)
        if column.null_count:
            return f"row {self._row(pc.is_null(column))} has no value in '{name}'"
        try:
            return check(column)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return f"column '{name}' is {column.type}"

    def _row(self, matches: pa.Array) -> int:
        return self._count + pc.index(matches, True).as_py()

    def _offsets(self, column: pa.Array) -> str | None:
        if not types.is_integer(column.type):
            return self._not_an_integer(column)
        if not len(column):
            return None
        if column[0].as_py() == self._next_offset:
            wrong = pc.not_equal(pc.subtract(column[1:], column[:-1]), pa.scalar(1, column.type))
            if not pc.any(wrong).as_py():
                self._next_offset = column[-1].as_py() + 1
                return None
            at = pc.index(wrong, True).as_py() + 1
        else:
            at = 0
        expected = column[at - 1].as_py() + 1 if at else self._next_offset
        return f"row {self._count + at} has offset {column[at]}, expected {expected}"

    @staticmethod
    def _not_an_integer(column: pa.Array) -> str:
        return f"the column is {column.type}, expected an integer type"

    def _system_times(self, column: pa.Array) -> str | None:
        column = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        latest, earliest = self.expected.latest, self.expected.earliest
        late = pc.greater(column, latest.ms)
        if pc.any(late).as_py():
            return f"row {self._row(late)} has a system time after that of its block, {latest}"
        early = pc.less(column, earliest.ms) if earliest else None
        if early is not None and pc.any(early).as_py():
            return f"row {self._row(early)} has a system time before that of earlier rows, {earliest}"
        return None

    def _event_times(self, column: pa.Array) -> str | None:
        if types.is_timestamp(column.type) or types.is_date(column.type):
            return None
        return f"column '{self.expected.vocabulary.event_time_column}' is {column.type}, expected a time type"


_REPORT_SECONDS: Final = 0.1


class VerifyProgress:
    """Reports amounts at intervals, from any thread: blocks as files, and bytes that were read."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._lock = Lock()
        self._blocks = self._bytes = 0
        self._next = 0.0
        self.total_blocks = 0

    def check(self) -> None:
        """Raise Cancelled if the verification was cancelled."""
        self._reporter.raise_if_cancelled()

    def block(self) -> None:
        """Count a block."""
        with self._lock:
            self._blocks += 1
            self._report_at_intervals()

    def bytes(self, count: int) -> None:
        """Count bytes that were read.

        Raises:
            Cancelled: the verification was cancelled.
        """
        self._reporter.raise_if_cancelled()
        with self._lock:
            self._bytes += count
            self._report_at_intervals()

    def report(self) -> None:
        """Report the amounts."""
        self._reporter.set_amounts(files=self._blocks, total_files=self.total_blocks, bytes=self._bytes)

    def _report_at_intervals(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPORT_SECONDS
            self.report()


class SliceResult(NamedTuple):
    """The result of checking a slice.

    Attributes:
        problems: the problems of the file and of the rows.
        rows_known: the rows were not read, since they were verified before and the bytes are the same.
        only_appends: the slice has neither problems nor retractions, or False if that is unknown.
        is_equivalent: the file has other bytes than the committed one, and the same rows.
    """

    problems: list[Problem]
    rows_known: bool = False
    only_appends: bool = False
    is_equivalent: bool = False


class FileChecks:
    """Checks slices, from any thread, and checkpoints, from one.

    Args:
        dataset: the dataset that has the files.
        known: slices whose rows were verified before.
        progress: receives the number of bytes that were read.
    """

    def __init__(self, dataset: Dataset, known: VerifiedSlices | None, progress: VerifyProgress) -> None:
        self._dataset = dataset
        self._data = dataset.objects("data")
        self._checkpoints = dataset.objects("checkpoints")
        self._valid_objects: set[tuple[Multihash, int]] = set()
        self._valid_checkpoints: set[tuple[Multihash, int]] = set()
        self._known = known
        self._progress = progress

    def check_slice(self, expected: ExpectedSlice) -> SliceResult:
        """Check the file of a slice, and its rows at the same time unless they were verified before.

        Raises:
            Cancelled: the verification was cancelled.
        """
        data, known = expected.data, self._known
        if problem := check_store(self._dataset, "data", data.physical_hash):
            return SliceResult([problem])
        path = locate_object(self._data, data.physical_hash)
        check_file = partial(check_object, path, "slice", data.physical_hash, data.size, self._progress.bytes)
        is_known = path is not None and known is not None and known.is_verified(expected.key)
        if path is not None and is_known and not any(check_file()):
            return SliceResult(list(self._check_links(path, expected)), rows_known=True)
        source = path
        if source is None and expected.is_derived:
            source = self._dataset.equivalent_slice(data.physical_hash)
        if source is None:
            return SliceResult(list(check_file()))
        operations = OperationCheck()
        problems: list[Problem] = []
        with SerialExecutors() as executors:
            # The file is read ahead of its rows, which are decoded from the page cache.
            file = executors.new_executor()
            file.submit(lambda: problems.extend(check_file()))
            of_rows = list(check_rows(source, expected, self._progress.check, executors, operations))
            file.wait()
        if problems and expected.is_derived and not of_rows:
            return SliceResult([], only_appends=not operations.has_retractions, is_equivalent=True)
        if path is None:
            return SliceResult(problems)
        problems += of_rows
        if known is not None and not problems:
            known.mark_verified(expected.key)
        problems += self._check_links(path, expected)
        return SliceResult(problems, only_appends=not problems and not operations.has_retractions)

    def _check_links(self, path: Path, expected: ExpectedSlice) -> Iterator[Problem]:
        """Check the objects that a slice links to.

        Yields:
            kinds ``link-invalid``, ``object-missing``, ``object-physical-hash``, ``linked-objects``.
        """
        if not expected.links:
            return
        try:
            links = read_links(path, expected.links)
        except (BadData, NotFound):
            return  # The check of the rows has reported it.
        if links.invalid is not None:
            yield "link-invalid", links.invalid
        objects = size = 0
        is_complete = True
        for link, count in links.counts.items():
            self._progress.check()
            location = locate_object(self._data, link)
            is_complete = is_complete and location is not None
            of_object = 0 if location is None else location.stat().st_size
            if (link, of_object) not in self._valid_objects:
                problems = list(check_object(location, "object", link, of_object, self._progress.bytes))
                yield from problems
                if not problems:
                    self._valid_objects.add((link, of_object))
            objects, size = objects + count, size + count * of_object
        actual, declared = LinkedTotals(objects, size), expected.linked
        if is_complete and declared is not None and declared != actual:
            yield (
                "linked-objects",
                f"the block declares {declared.objects} links to {declared.size} bytes, the slice has"
                f" {actual.objects} links to {actual.size} bytes",
            )

    def checkpoint_problems(self, checkpoint: Checkpoint) -> list[Problem]:
        """Check a checkpoint. One that several transactions share is read once."""
        identity = (checkpoint.physical_hash, checkpoint.size)
        if identity in self._valid_checkpoints:
            return []
        if problem := check_store(self._dataset, "checkpoints", checkpoint.physical_hash):
            return [problem]
        path = locate_object(self._checkpoints, checkpoint.physical_hash)
        problems = list(check_object(path, "checkpoint", *identity, self._progress.bytes))
        if not problems:
            self._valid_checkpoints.add(identity)
        return problems


_STORE_NAMES: Final = {"data": "slice", "checkpoints": "checkpoint", "blocks": "block"}


def check_store(dataset: Dataset, kind: str, object_hash: Multihash) -> Problem | None:
    """Fetch an object again if the dataset is in an object store: the local copy does not verify the store.

    Returns:
        The problem of the object in the store, if there is one; kinds as for files.
    """
    if dataset.origin is None:
        return None
    name = _STORE_NAMES[kind]
    try:
        if dataset.origin.fetch(kind, str(object_hash)):
            return None
    except BadData as error:
        return f"{name}-physical-hash", error.message
    return f"{name}-missing", f"the {name} is missing in the store: {object_hash}"


def locate_object(objects: LocalObjectStore, object_hash: Multihash) -> Path | None:
    """Return the path of an object, or None if it is missing."""
    name = find_object_name(objects, object_hash)
    return None if name is None else objects.path(name)
