"""Locates the row of a file that a read error is about."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from json import JSONDecodeError
from pathlib import Path
from time import monotonic
from typing import Any, Final, TextIO

import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_engine.data.parquet_reader import UNREADABLE, read_bounded, read_parquet_schema
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.ingest.read.json_lines import dump, load
from odf_engine.progress import Reporter
from odf_engine.spark.errors import RejectedRow

_SECONDS: Final = 60.0
_MAX_FIELD: Final = 1 << 26
_SHOWN: Final = 120
_CUT: Final = 200
"""Spark's errors carry so many characters of a value."""
_MARK: Final = "\x1f"
"""Stands for a separator of several characters, which Python's reader does not know."""
_CONFLICT: Final = ("<<<<<<< ", "=======", ">>>>>>> ")
_NO_VALUE: Final = frozenset({"na", "n/a", "nan", "null", "none", "nil", "\\n", "-", "--", ".", "?", "#n/a"})


@dataclass(frozen=True)
class TextFile:
    """A text file and how values stand in it.

    Attributes:
        path: the file.
        name: what people call it.
        columns: names of the columns in the order of the file, where that is known.
        encoding: as Python names it.
        header: the first row has names.
        separator, quote, escape: of CSV; without a quote, quotes mean nothing.
    """

    path: Path
    name: str
    columns: tuple[str, ...] = ()
    encoding: str = "utf-8-sig"
    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = '"'


def csv_rows(file: TextFile) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not blank, each with the line where it begins, from 1.

    Raises:
        csv.Error: what cannot be read as CSV.
        UnicodeDecodeError: bytes that the encoding does not know.
    """
    csv.field_size_limit(_MAX_FIELD)
    long = len(file.separator) > 1
    with file.path.open(encoding=file.encoding, newline="") as lines:
        reader = csv.reader(
            (line.replace(file.separator, _MARK) for line in _lines(lines)) if long else _lines(lines),
            delimiter=_MARK if long else file.separator,
            quotechar=file.quote or None,
            quoting=csv.QUOTE_MINIMAL if file.quote else csv.QUOTE_NONE,
            escapechar=file.escape if file.quote and file.escape not in ("", file.quote) else None,
            doublequote=file.escape in ("", file.quote),
        )
        line = 1
        for row in reader:
            if row:
                yield line, [value.replace(_MARK, file.separator) for value in row] if long else row
            line = reader.line_num + 1


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(_MAX_FIELD):
        if len(line) == _MAX_FIELD:
            raise csv.Error("a line is too long")
        yield line


def locate_csv_error(error: BadData, file: TextFile, reporter: Reporter) -> BadData:
    """The error with the place in the CSV file that it is about, as far as it can be found."""
    meant = _csv_test(error, file)
    if meant is None:
        return _named(error, file)
    line, until = 0, monotonic() + _SECONDS
    try:
        for number, (line, row) in enumerate(csv_rows(file)):
            if number % 1000 == 0:
                reporter.raise_if_cancelled()
                if monotonic() > until:
                    break
            if row[0].startswith(_CONFLICT):
                return merge_conflict_error(f"{file.name}: line {line}", row[0])
            if not (number == 0 and file.header) and meant(row):
                return _placed(error, file, line, row)
    except csv.Error as problem:
        return BadData(f"is not CSV: {problem}", where=f"{file.name}: line {line + 1}")
    return _named(error, file)


def _csv_test(error: BadData, file: TextFile) -> Callable[[list[str]], bool] | None:
    """Recognises the row that the error is about."""
    if not isinstance(error, RejectedRow):
        return None
    if error.value is not None:
        value = error.value
        if error.column in file.columns:
            at = file.columns.index(error.column)
            return lambda row: len(row) > at and _same(row[at], value)
        return lambda row: any(_same(text, value) for text in row)
    if error.column in file.columns:
        at = file.columns.index(error.column)
        return lambda row: len(row) <= at or row[at] == ""
    if file.columns and error.record is not None:
        return lambda row: len(row) != len(file.columns)
    return None


def _same(text: str, value: str) -> bool:
    return text == value or (len(value) >= _CUT and text.startswith(value))


def _placed(error: BadData, file: TextFile, line: int, row: list[str]) -> BadData:
    where = f"{file.name}: line {line}"
    if not isinstance(error, RejectedRow) or (error.value is None and error.column is None):
        values = "1 value" if len(row) == 1 else f"{len(row)} values"
        return BadData(
            f"{values} where there are {len(file.columns)} columns: {shorten(file.separator.join(row))}",
            where=where,
            hint="check the row, and read.separator and read.quote in the manifest",
        )
    column = error.column
    if column is None and error.value is not None:
        at = next(at for at, text in enumerate(row) if _same(text, error.value))
        column = file.columns[at] if at < len(file.columns) else None
    where += f', column "{column}"' if column else ""
    named = [text.casefold() for text in row] == [name.casefold() for name in file.columns]
    if named and not file.header:
        return _bad_value(error, where, "the line has the names of the columns: set read.header to true")
    return _bad_value(error, where, None)


def explain_json(error: BadData, file: TextFile, reporter: Reporter, place: Callable[[int], str]) -> BadData:
    """The same for JSON lines; ``place`` is what people call the object of a line, from 1."""
    if isinstance(error, RejectedRow) and error.record is not None and error.where is not None:
        text = error.record.splitlines()[0] if error.record else ""
        return merge_conflict_error(error.where, text) if text.startswith(_CONFLICT) else error
    until = monotonic() + _SECONDS
    with file.path.open(encoding=file.encoding) as rows:
        for number, line in enumerate(rows, 1):
            if number % 1000 == 0:
                reporter.raise_if_cancelled()
                if monotonic() > until:
                    break
            if (problem := _line_problem(line.strip(), f"{file.name}: {place(number)}", error)) is not None:
                return problem
    return _named(error, file)


def explain_parquet(error: BadData, path: Path, name: str, reporter: Reporter) -> BadData:
    """The error with the row of a Parquet file that it is about, as far as it can be found."""
    where = error.where or name
    if isinstance(error, RejectedRow) and error.column is not None:
        try:
            row = _parquet_row(error, path, reporter)
        except (*UNREADABLE, InvalidSchema):
            row = None
        if row is not None:
            return _bad_value(error, f'{name}: row {row:,}, column "{error.column}"', None)
    return BadData(error.message, where=where, hint=error.hint)


def _parquet_row(error: RejectedRow, path: Path, reporter: Reporter) -> int | None:
    """The number, from 1, of the first row that has the error's value in the error's column."""
    column = str(error.column).casefold()
    names = [each for each in read_parquet_schema(path).names if each.casefold() == column]
    before = 0
    for batch in read_bounded(path, names[:1]) if names else ():
        reporter.raise_if_cancelled()
        values = batch.column(0)
        there = values.is_null() if error.value is None else values.cast(pa.string())
        place = pc.index(there, True if error.value is None else error.value).as_py()
        if place >= 0:
            return before + place + 1
        before += batch.num_rows
    return None


def _line_problem(line: str, where: str, error: BadData) -> BadData | None:
    if not line:
        return None
    if line.startswith(_CONFLICT):
        return merge_conflict_error(where, line)
    try:
        row = load(line)
    except ValueError as problem:
        at = f", column {problem.colno}" if isinstance(problem, JSONDecodeError) else ""
        reason = problem.msg if isinstance(problem, JSONDecodeError) else str(problem)
        hint = "every line has to be one JSON object; for one document with an array use read.kind Json"
        return BadData(f"is not JSON: {reason}: {shorten(line)}", where=where + at, hint=hint)
    if not isinstance(row, dict):
        return BadData(f"is not a JSON object: {shorten(line)}", where=where)
    if not isinstance(error, RejectedRow):
        return None
    column = _json_column(row, error)
    return _bad_value(error, f'{where}, column "{column}"', None) if column is not None else None


def _json_column(row: dict[str, Any], error: RejectedRow) -> str | None:
    """The column of the row that the error is about."""
    column, value = error.column, error.value
    if value is None:
        empty = column is not None and all(
            found is None for name, found in row.items() if name.casefold() == column.casefold()
        )
        return column if empty else None
    for path, found in _values(row, ""):
        if (column is None or _leads(path, column)) and _is_it(found, value):
            return path
    return None


def _values(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All values at any depth, as ``at.lat`` and ``tags[]``."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _values(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, f"{path}[]")


def _leads(path: str, column: str) -> bool:
    """Whether a path is the column's; Spark itself gives no more than a member's own name."""
    folded, wanted = path.casefold(), column.casefold()
    return folded == wanted or folded.endswith("." + wanted)


def _is_it(found: Any, value: str) -> bool:
    if value in ("{", "["):  # all that Spark says of an object or array
        return isinstance(found, dict if value == "{" else list)
    return _same(_json_text(found), value)


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


def _bad_value(error: BadData, where: str, hint: str | None) -> BadData:
    """The error for a value, with its place."""
    if not isinstance(error, RejectedRow) or error.value is None:
        return BadData(error.message, where=where, hint=hint or error.hint)
    wanted = error.wanted or "value of its type"
    article = "an" if wanted[0] in "AEIOU" else "a"
    hint = hint or _advice(error.value, wanted) or error.hint
    message = f"'{shorten(error.value)}' is not {article} {wanted}"
    if error.where is not None:  # a place in the query that had to do with the value
        message += f" ({error.where})"
    return BadData(message, where=where, hint=hint)


def _advice(value: str, wanted: str) -> str | None:
    if value.strip().lower() in _NO_VALUE:
        return f"if this stands for no value, set read.nullValue to '{value}'"
    if wanted.startswith("DATE"):
        return "if the column has dates of another form, set read.dateFormat, such as MM/dd/yyyy"
    if wanted.startswith("TIMESTAMP"):
        return "if the column has times of another form, set read.timestampFormat, such as MM/dd/yyyy HH:mm"
    return None


def merge_conflict_error(where: str, text: str) -> BadData:
    """The error for a file in which version control left a conflict."""
    return BadData(
        f"a version-control conflict mark stands in the data: {shorten(text)}",
        where=where,
        hint="resolve the conflict in the source, or leave this file out of fetch.path",
    )


def is_conflict_marker(text: str) -> bool:
    """Whether a line is a mark that version control leaves in a file."""
    return text.startswith(_CONFLICT)


def header_of(file: TextFile) -> tuple[int, list[str]]:
    """The first row and its line; (0, []) when there is none."""
    return next(islice(csv_rows(file), 1), (0, []))


def shorten(text: object) -> str:
    """A text short enough for a message."""
    line = re.sub(r"[\r\n]+", " ", str(text))
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def _named(error: BadData, file: TextFile) -> BadData:
    """The error with the name of the file, when no place was found in it."""
    where = file.name if error.where is None else f"{file.name}, {error.where}"
    if error.where is not None and error.where.startswith(file.name):
        return error
    return BadData(error.message, where=where, hint=error.hint)
