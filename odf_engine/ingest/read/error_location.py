"""Location of the row of a file that caused a read error."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from json import JSONDecodeError
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pyarrow as pa

from odf_engine.base.progress import Reporter, count_of
from odf_engine.data.arrow_compute import pc
from odf_engine.data.ddl import type_ddl
from odf_engine.data.parquet.parquet_reader import parquet_errors, read_bounded, read_parquet_schema
from odf_engine.errors import BadData, InvalidSchema, OdfError
from odf_engine.ingest.read.json_lines import dump, load
from odf_engine.ingest.read.text_file import (
    TextFile,
    csv_rows,
    is_conflict_marker,
    merge_conflict_error,
    parse_csv,
    shorten,
)
from odf_engine.spark.errors import RejectedRow, with_article
from odf_engine.spark.text_files import detect_encoding

_MAX_SECONDS: Final = 60.0
_EXCERPT_WIDTH: Final = 160
_READ_CHARACTERS: Final = 1 << 16
LINE_PLACE: Final = re.compile(r": line ([0-9]+)")
"""The line in the place of an error, after the name of the file."""
_CUT: Final = 200
"""Number of characters of a value in an error of Spark."""
_IN_ZONE: Final = re.compile(r"\d{4}-\d{1,2}-\d{1,2}[T ][\d:.]+ ?[A-Za-z]{2}")
_NO_VALUE: Final = frozenset({"na", "n/a", "nan", "null", "none", "nil", "\\n", "-", "--", ".", "?", "#n/a"})


def locate_csv_error(error: BadData, file: TextFile, reporter: Reporter) -> BadData:
    """Return the error with its line and column in the CSV file, or with the file if they are not found."""
    is_rejected = _csv_row_test(error, file)
    if is_rejected is None:
        return _at_file(error, file)
    line, until = 0, monotonic() + _MAX_SECONDS
    try:
        for number, (line, row) in enumerate(csv_rows(file)):
            if number % 1000 == 0:
                reporter.raise_if_cancelled()
                if monotonic() > until:
                    break
            if is_conflict_marker(row[0]):
                return merge_conflict_error(f"{file.name}: line {line}", row[0])
            if not (number == 0 and file.header) and is_rejected(row):
                return _at_row(error, file, line, row)
    except csv.Error as problem:
        return BadData(f"invalid CSV: {problem}", where=f"{file.name}: line {line + 1}")
    return _at_file(error, file)


def _csv_row_test(error: BadData, file: TextFile) -> Callable[[list[str]], bool] | None:
    """Return a test for the row that caused the error, or None if the error names no value."""
    if not isinstance(error, RejectedRow):
        return None
    if error.value is not None:
        value = error.value
        if error.column in file.columns:
            at = file.columns.index(error.column)
            return lambda row: len(row) > at and _is_same(row[at], value)
        return lambda row: any(_is_same(text, value) for text in row)
    if error.column in file.columns:
        at = file.columns.index(error.column)
        return lambda row: len(row) <= at or row[at] == ""
    if file.columns and error.record is not None:
        return lambda row: len(row) != len(file.columns)
    return None


def _is_same(text: str, value: str) -> bool:
    return text == value or (len(value) >= _CUT and text.startswith(value))


def _at_row(error: BadData, file: TextFile, line: int, row: list[str]) -> BadData:
    place = f"{file.name}: line {line}"
    if not isinstance(error, RejectedRow) or (error.value is None and error.column is None):
        return BadData(_wrong_length(row, file), where=place, hint=RAGGED_HINT)
    column = error.column
    if column is None and error.value is not None:
        at = next(at for at, text in enumerate(row) if _is_same(text, error.value))
        column = file.columns[at] if at < len(file.columns) else None
    place += f', column "{column}"' if column else ""
    named = [text.casefold() for text in row] == [name.casefold() for name in file.columns]
    if named and not file.header:
        return bad_value(error, place, "set read.header to true: the line contains the column names")
    return bad_value(error, place, None)


RAGGED_HINT: Final = "check the row, and read.separator and read.quote in the manifest"


def _wrong_length(row: list[str], file: TextFile) -> str:
    values = count_of(len(row), "value")
    return f"{values} for {len(file.columns)} columns: {shorten(file.separator.join(row))}"


def describe_csv_record(record: str, file: TextFile) -> tuple[str | None, str]:
    """Return the reason why Spark cannot parse a record of a CSV file; the column is never known.

    Args:
        record: the record as :meth:`odf_engine.spark.text_files.RecordLines.number_csv` writes it.
        file: the file.
    """
    text = record.partition(file.separator)[2]
    try:
        _, row = next(parse_csv(text.splitlines(keepends=True), file), (0, []))
    except csv.Error as error:
        return None, f"invalid CSV: {error}"
    return None, _wrong_length(row, file)


def describe_json_record(record: str, schema: pa.Schema | None) -> tuple[str | None, str]:
    """Return the column with a value of another type, if it is found, and the reason.

    Args:
        record: a JSON object that does not match the schema.
        schema: the columns that were read.
    """
    with suppress(ValueError, RecursionError):
        values = {name.casefold(): value for name, value in load(record).items()}
        for field in schema or ():
            value = values.get(field.name.casefold())
            nested = pa.types.is_nested(field.type)
            wanted = dict if pa.types.is_struct(field.type) or pa.types.is_map(field.type) else list
            if nested and value is not None and not isinstance(value, wanted):
                return (
                    field.name,
                    f"'{shorten(_json_text(value))}' is not {with_article(type_ddl(field.type))}",
                )
    return None, "a value does not match the declared type"


def explain_json(error: BadData, file: TextFile, reporter: Reporter, place: Callable[[int], str]) -> BadData:
    """Return the error with its object in a file of JSON lines; ``place`` names the object of a line."""
    if isinstance(error, RejectedRow) and error.record is not None and error.where is not None:
        text = error.record.splitlines()[0] if error.record else ""
        return merge_conflict_error(error.where, text) if is_conflict_marker(text) else error
    until = monotonic() + _MAX_SECONDS
    with file.path.open(encoding=file.encoding) as rows:
        for number, line in enumerate(rows, 1):
            if number % 1000 == 0:
                reporter.raise_if_cancelled()
                if monotonic() > until:
                    break
            location = f"{file.name}: {place(number)}"
            if (problem := _line_problem(line.strip(), location, error, file.columns)) is not None:
                return problem
    return _at_file(error, file)


def explain_parquet(error: BadData, path: Path, name: str, reporter: Reporter) -> BadData:
    """Return the error with its row in a Parquet file, or with the file if it is not found."""
    place = error.where or name
    if isinstance(error, RejectedRow) and error.column is not None:
        try:
            row = _parquet_row(error, path, reporter)
        except (*parquet_errors(), InvalidSchema):
            row = None
        if row is not None:
            return bad_value(error, f'{name}: row {row:,}, column "{error.column}"', None)
    return BadData(error.message, where=place, hint=error.hint)


def _parquet_row(error: RejectedRow, path: Path, reporter: Reporter) -> int | None:
    """Return the number, from 1, of the first row with the value of the error, or None if absent."""
    column = str(error.column)
    names = [name for name in read_parquet_schema(path).names if name.casefold() == column.casefold()]
    names.sort(key=lambda spelling: spelling != column)  # The exact spelling is the one that is read.
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


def _line_problem(line: str, where: str, error: BadData, columns: Sequence[str]) -> BadData | None:
    if not line:
        return None
    if is_conflict_marker(line):
        return merge_conflict_error(where, line)
    try:
        row = load(line)
    except ValueError as problem:
        at = f", column {problem.colno}" if isinstance(problem, JSONDecodeError) else ""
        reason = problem.msg if isinstance(problem, JSONDecodeError) else str(problem)
        hint = "each line must be a JSON object; for a single document with an array use read.kind Json"
        return BadData(f"invalid JSON: {reason}: {shorten(line)}", where=where + at, hint=hint)
    if not isinstance(row, dict):
        return BadData(f"not a JSON object: {shorten(line)}", where=where)
    if not isinstance(error, RejectedRow):
        return None
    column = _json_column(row, error, columns)
    return bad_value(error, f'{where}, column "{column}"', None) if column is not None else None


def _json_column(row: dict[str, Any], error: RejectedRow, columns: Sequence[str]) -> str | None:
    """Return the column of the row that caused the error, or None if the row did not."""
    column, value = error.column, error.value
    if value is None:
        if column is None:
            return None
        path = [column] if column in columns else column.replace("[]", ".[]").split(".")
        return column if _is_null(row, path) else None
    for path, item in _values(row, ""):
        if (column is None or _is_path_of(path, column)) and _is_rejected(item, value):
            return path
    return None


def _is_null(value: Any, path: Sequence[str]) -> bool:
    """Return whether a value at a path such as ``at``, ``[]``, ``lat`` is null or missing, in its parents."""
    if not path:
        return value is None
    name, *rest = path
    if name == "[]":
        return isinstance(value, list) and any(_is_null(item, rest) for item in value)
    if not isinstance(value, dict):
        return False
    members = (item for key, item in value.items() if key.casefold() == name.casefold())
    return _is_null(next(members, None), rest)


def _values(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield all values at any depth with their paths, such as ``at.lat`` and ``tags[]``."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _values(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, f"{path}[]")


def _is_path_of(path: str, column: str) -> bool:
    """Return whether a path leads to a column. Spark names a member without its parents."""
    folded, name = path.casefold(), column.casefold()
    return folded == name or folded.endswith("." + name)


def _is_rejected(item: Any, value: str) -> bool:
    if value in ("{", "["):  # The value in Spark's error for an object or array.
        return isinstance(item, dict if value == "{" else list)
    return _is_same(_json_text(item), value)


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


def bad_value(error: BadData, where: str, hint: str | None = None) -> BadData:
    """Return the error for an invalid value at a location."""
    if not isinstance(error, RejectedRow) or error.value is None:
        return BadData(error.message, where=where, hint=hint or error.hint)
    wanted = error.expected or "value of its type"
    hint = hint or _advice(error.value, wanted) or error.hint
    message = f"'{shorten(error.value)}' is not {with_article(wanted)}"
    if error.where is not None:  # The location in the query that converts the value.
        message += f" ({error.where})"
    return BadData(message, where=where, hint=hint)


def _advice(value: str, wanted: str) -> str | None:
    if value.strip().lower() in _NO_VALUE:
        return f"if this is a null value, set read.nullValue to '{value}'"
    if wanted.startswith("DATE"):
        return "if the dates have another format, set read.dateFormat, such as MM/dd/yyyy"
    if wanted.startswith("TIMESTAMP") and _IN_ZONE.match(value):
        return (
            "if the local time does not exist in its time zone, or exists twice, write the offset from UTC,"
            " such as -05:00"
        )
    if wanted.startswith("TIMESTAMP"):
        return "if the times have another format, set read.timestampFormat, such as MM/dd/yyyy HH:mm"
    return None


def _at_file(error: BadData, file: TextFile) -> BadData:
    """Return the error with the name of the file."""
    place = file.name if error.where is None else f"{file.name}, {error.where}"
    if error.where is not None and error.where.startswith(file.name):
        return error
    return BadData(error.message, where=place, hint=error.hint)


@contextmanager
def excerpts(path: Path, name: str, encoding: str | None) -> Iterator[None]:
    """Add the line of the file to errors that name its number."""
    try:
        yield
    except OdfError as error:
        match = LINE_PLACE.match((error.where or "").removeprefix(name))
        if not error.excerpt and match is not None and (error.where or "").startswith(name):
            codec = detect_encoding(path, encoding) or "utf-8"
            error.excerpt = line_excerpt(path, int(match[1]), codec)
        raise


def line_excerpt(path: Path, number: int, encoding: str) -> tuple[str, ...]:
    """Return a line of the file with its number, truncated for display."""
    here = 1
    try:
        with path.open(encoding=encoding, errors="replace") as lines:
            while here < number and (part := lines.readline(_READ_CHARACTERS)):
                here += part.endswith("\n")  # A line can exceed the memory.
            line = lines.readline(_READ_CHARACTERS).rstrip()
    except (OSError, LookupError, UnicodeError):
        return ()
    # Control characters of a file must not reach a terminal.
    text = "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in line)
    return (
        (f"{number} | {text if len(text) <= _EXCERPT_WIDTH else text[:_EXCERPT_WIDTH] + '…'}",)
        if text
        else ()
    )
