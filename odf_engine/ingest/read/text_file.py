"""Text files: their format, the records of CSV, and conflict markers of version control."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TextIO

from odf_engine.errors import BadData
from odf_engine.ingest.prep_step import PreparedFile
from odf_engine.ingest.read.file_kind import reject_binary
from odf_engine.metadata.model import Csv
from odf_engine.spark.text_files import detect_encoding

_MAX_FIELD: Final = 1 << 26
_MAX_WIDTH: Final = 120
_MARK: Final = "\x1f"
"""Replaces a separator of several characters, which Python's CSV reader does not support."""
_CONFLICT: Final = ("<<<<<<< ", "=======", ">>>>>>> ")


@dataclass(frozen=True)
class TextFile:
    """A text file and its format.

    Attributes:
        path: the file.
        name: its name in messages.
        columns: names of the columns in the order of the file, or () if they are unknown.
        encoding: a codec of Python.
        header: the first row has the names.
        separator, quote, escape: of CSV; an empty quote disables quoting.
    """

    path: Path
    name: str
    columns: tuple[str, ...] = ()
    encoding: str = "utf-8-sig"
    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = '"'


def csv_file(step: Csv, prepared: PreparedFile) -> TextFile:
    """Return the file with the text options of the step.

    Raises:
        BadData: the file is not text.
    """
    encoding = detect_encoding(prepared.path, step.encoding)
    reject_binary(prepared.path, prepared.name, encoding)
    quote = '"' if step.quote is None else step.quote
    return TextFile(
        prepared.path,
        prepared.name,
        encoding=encoding or "utf-8",
        header=bool(step.header),
        separator="," if step.separator is None else step.separator.replace("\\t", "\t"),
        quote=quote,
        escape=step.escape or quote,
    )


def csv_rows(file: TextFile) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file that are not blank, each with its first line, from 1.

    Raises:
        csv.Error: the file is not CSV.
        UnicodeDecodeError: the file is not of the encoding.
    """
    with file.path.open(encoding=file.encoding, newline="") as lines:
        yield from parse_csv(_lines(lines), file)


def parse_csv(lines: Iterable[str], file: TextFile) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of lines that are not blank, each with its first line, from 1."""
    csv.field_size_limit(_MAX_FIELD)
    long = len(file.separator) > 1
    reader = csv.reader(
        (line.replace(file.separator, _MARK) for line in lines) if long else lines,
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
            raise csv.Error("line too long")
        yield line


def header_of(file: TextFile) -> tuple[int, list[str]]:
    """Return the line and the values of the first row; (0, []) for an empty file."""
    return next(islice(csv_rows(file), 1), (0, []))


def first_row(file: TextFile) -> list[str]:
    """Return the first row, which may be a header, or [] if only Spark can parse it.

    Raises:
        BadData: the row is a conflict marker of version control.
    """
    if not file.separator:
        return []
    try:
        line, row = header_of(file)
    except (UnicodeError, csv.Error, TypeError):
        return []  # The reader reports the error in detail.
    if row and is_conflict_marker(row[0]):
        raise merge_conflict_error(f"{file.name}: line {line}", row[0])
    return row


def merge_conflict_error(where: str, text: str) -> BadData:
    """Return the error for a conflict marker of version control."""
    return BadData(
        f"merge conflict marker in the data: {shorten(text)}",
        where=where,
        hint="resolve the conflict in the source, or exclude the file from fetch.path",
    )


def is_conflict_marker(text: str) -> bool:
    """Return whether a line is a conflict marker of version control."""
    return text.startswith(_CONFLICT)


def shorten(text: object) -> str:
    """Return a text as one line, truncated for a message."""
    line = re.sub(r"[\r\n]+", " ", str(text))
    return line if len(line) <= _MAX_WIDTH else line[: _MAX_WIDTH - 1] + "…"
