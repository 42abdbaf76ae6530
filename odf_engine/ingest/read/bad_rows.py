"""Invalid rows of a file: search, list in an error, rejection."""

from __future__ import annotations

import csv
import heapq
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from odf_engine.base.progress import Reporter, count_of
from odf_engine.errors import BadData
from odf_engine.ingest.read.error_location import (
    RAGGED_HINT,
    bad_value,
    is_conflict_marker,
)
from odf_engine.ingest.read.read_step import ReadPlan
from odf_engine.ingest.read.text_file import merge_conflict_error, shorten
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.errors import SEPARATOR, RejectedRow, truncate
from odf_engine.spark.plan_rewrite import invalid_rows
from odf_engine.spark.sql_types import field_type_name, spark_type
from odf_engine.spark.text_files import PreparedTextFile, RecordLines, write_records

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


MAX_LISTED: Final = 100
"""Maximum number of rows that an error lists."""
_MAX_VALUE: Final = 200
_HEADER: Final = ("file", "line", "column", "reason", "record")
_NUMBER: Final = re.compile("[0-9]+")
"""The line of a numbered record, also in its text: Spark reads no value of some records."""
_ELIMINATION: Final = "spark.sql.subexpressionElimination.enabled"


class BadRow(NamedTuple):
    """An invalid row: the number of its record, its place in messages, the reason and a hint.

    ``column`` is empty if the complete record is invalid. The number counts lines, or objects of a
    document.
    """

    line: int
    place: str
    column: str
    reason: str
    hint: str | None = None

    def __str__(self) -> str:
        column = f', column "{self.column}"' if self.column else ""
        return f"{self.place}{column}: {self.reason}"


@dataclass(frozen=True)
class BadRowSearch:
    """The search for the invalid rows of a file.

    Attributes:
        session: Spark session.
        name: name of the file in messages.
        lines: numbers the records of the file.
        reading: the plan to read the numbered records.
        result: the result of the preprocess query over them.
    """

    session: SparkSession
    name: str
    lines: RecordLines
    reading: ReadPlan
    result: DataFrame

    def rows(self, reporter: Reporter) -> Iterator[BadRow]:
        """Yield the invalid rows in the order of the file.

        Raises:
            BadData: a record is a conflict marker of version control.
        """
        unread = map(self._unread_row, sorted(self.lines.invalid, key=lambda pair: pair[0]))
        yield from heapq.merge(unread, self._marked_rows(reporter), key=lambda row: row.line)

    def _unread_row(self, pair: tuple[int, BadData]) -> BadRow:
        line, error = pair
        place = (error.where or self.reading.place(line)).removeprefix(f"{self.name}: ")
        if isinstance(error, RejectedRow):
            self._raise_for_conflict(place, error.record)
            if error.column is not None:
                return BadRow(line, self.reading.place(line), error.column, error.message, error.hint)
        return BadRow(line, place, "", error.message, error.hint)

    def _raise_for_conflict(self, place: str, text: str | None) -> None:
        if text is not None and is_conflict_marker(text):
            raise merge_conflict_error(f"{self.name}: {place}", text)

    def _marked_rows(self, reporter: Reporter) -> Iterator[BadRow]:
        frame = invalid_rows(self.session, self.result)
        if frame is None:
            frame = invalid_rows(self.session, self.reading.frame)
        if frame is None:
            return
        with _without_common_subexpressions(self.session):
            for batch in arrow_batches(frame, reporter, progress=False)[1]:
                for line, record, problem in zip(
                    *(column.to_pylist() for column in batch.columns), strict=True
                ):
                    number = _NUMBER.search(record if line is None else str(line))
                    assert number is not None
                    yield self._bad_row(int(number[0]), record, problem)

    def _bad_row(self, line: int, record: str | None, problem: str | None) -> BadRow:
        place = self.reading.place(line)
        if record is not None:
            if self.lines.separator:
                self._raise_for_conflict(place, record.partition(self.lines.separator)[2])
            column, reason = self.reading.describe(record)
            return BadRow(line, place, column or "", reason, RAGGED_HINT if self.lines.separator else None)
        column, expected, name, *values = (problem or "").split(SEPARATOR, 3)
        value = values[0] if values else None
        self._raise_for_conflict(place, value)
        error = self._value_error(column, expected, value)
        suffix = f" (column {name} of the preprocess query)" if name else ""
        return BadRow(line, place, column, error.message + suffix, error.hint)

    def _value_error(self, column: str, expected: str, value: str | None) -> BadData:
        read = self.reading.columns
        field = read.field(column) if read is not None and column in read.names else None
        if value is None and field is not None and not field.nullable:
            return BadData("no value in a column declared NOT NULL")
        if value is None or not expected:
            return BadData("an expression fails" + ("" if value is None else f" for '{shorten(value)}'"))
        if field is not None:
            target = spark_type(field.type, column)
            # Spark writes the members of a struct in another way.
            if target.simpleString().upper().partition("<")[0] == expected.partition("<")[0]:
                expected = field_type_name(field, target)
        rejected = RejectedRow("", column=column, value=truncate(value, _MAX_VALUE), expected=expected)
        return bad_value(rejected, self.name)


@contextmanager
def _without_common_subexpressions(session: SparkSession) -> Iterator[None]:
    """Evaluate each expression where it is written: an error of a shared one would not be marked."""
    before = str(session.conf.get(_ELIMINATION))
    session.conf.set(_ELIMINATION, "false")
    try:
        yield
    finally:
        session.conf.set(_ELIMINATION, before)


def list_bad_rows(search: BadRowSearch, reporter: Reporter, error: BadData, hint: str) -> BadData | None:
    """Return the error with the count and the first of a file's invalid rows, or None if there are none.

    Args:
        search: the search.
        reporter: checked for cancellation.
        error: the error of one of the rows; it is returned if that is the only one.
        hint: what else the user can do.

    Raises:
        BadData: a record is a conflict marker of version control.
    """
    listed: list[BadRow] = []
    count = 0
    for row in search.rows(reporter):
        count += 1
        if count <= MAX_LISTED:
            listed.append(row)
    if not listed:
        return None
    if count == 1:
        error.hint = f"{error.hint}; {hint}" if error.hint else hint
        return error
    first = listed[0]
    listing = BadData(
        f"{count_of(count, 'invalid row')}, the first in {first}",
        where=search.name,
        hint=f"{first.hint}; {hint}" if first.hint else hint,
    )
    more = (f"… and {count_of(count - MAX_LISTED, 'more row')}",) if count > MAX_LISTED else ()
    listing.excerpt = (*map(str, listed), *more)
    return listing


class Rejection(NamedTuple):
    """Rejected rows of a file.

    Attributes:
        selected: the other rows.
        file: CSV file of the rejected rows with line, column and reason.
        rows: number of rejected rows.
        first: the first of them.
    """

    selected: PreparedTextFile
    file: Path
    rows: int
    first: BadRow


def reject_bad_rows(search: BadRowSearch, folder: Path, reporter: Reporter) -> Rejection | None:
    """Write the invalid rows of a file to another file, or None if there are none.

    Args:
        search: the search.
        folder: a folder for the files; the caller removes it.
        reporter: checked for cancellation.

    Raises:
        BadData: all rows are invalid, or one is a conflict marker of version control.
    """
    rows = search.rows(reporter)
    first = upcoming = next(rows, None)
    text = search.lines.text
    if first is None or text is None:
        return None
    path, count = folder / "rejects.csv", 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_HEADER)

        def write_until(line: int, record: bytes | None) -> bool:
            """Write the invalid rows up to a line; return whether the record of this line is one of them."""
            nonlocal upcoming, count
            is_line = False
            while upcoming is not None and upcoming.line <= line:
                is_line = upcoming.line == line
                content = record.decode("utf-8", "replace") if is_line and record is not None else ""
                writer.writerow((search.name, upcoming.line, upcoming.column, upcoming.reason, content))
                count += 1
                upcoming = next(rows, None)
            return is_line

        selected = write_records(
            text, lambda line, record: None if write_until(line, record) else record, reporter
        )
        while upcoming is not None:  # Elements after the last record.
            write_until(upcoming.line, None)
    if count >= search.lines.count:
        raise BadData(
            f"all rows are invalid ({count:,}), the first in {first}",
            where=search.name,
            hint=first.hint or "check that read in the manifest describes this file",
        )
    return Rejection(selected, path, count, first)
