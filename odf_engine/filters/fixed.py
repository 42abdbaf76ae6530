"""Filters `fixed` and `rdb`: write columns of fixed widths, and USGS RDB, as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import BinaryIO, Final

from odf_engine.errors import BadData, UsageError
from odf_engine.filters.csv_filter import unique_names
from odf_engine.filters.text_input import decoding_error, open_text

_RDB_FORMAT: Final = re.compile(r"\d+[sdn]")


@dataclass(frozen=True)
class FixedOptions:
    """Options of the filter `fixed`.

    Attributes:
        widths: widths of the columns in characters.
        names: names of the columns; () if the first line has them.
        encoding: the encoding, or "" to detect it.
        comment: start of lines that are left out, or "".
    """

    widths: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    encoding: str = ""
    comment: str = ""


@dataclass(frozen=True)
class RdbOptions:
    """Options of the filter `rdb`; there are none."""


def filter_fixed(source: BinaryIO, target: BinaryIO, options: FixedOptions) -> None:
    """Write lines with columns of fixed widths as CSV. Blanks around values are removed.

    Raises:
        UsageError: the widths are invalid, or their number is not the number of names.
        BadData: the stream is not text, or a line is longer than all columns.
    """
    if not options.widths or min(options.widths) < 1:
        raise UsageError("invalid --widths", hint="list the width of each column, such as --widths 5,8,3")
    if options.names and len(options.names) != len(options.widths):
        raise UsageError(f"{len(options.names)} names for {len(options.widths)} widths")
    ends = list(accumulate(options.widths))
    spans = list(zip([0, *ends], ends, strict=False))

    def rows() -> Iterator[list[str]]:
        if options.names:
            yield unique_names(options.names)
        is_header = not options.names
        for number, line in _lines(source, options.encoding):
            if not line.strip() or (options.comment and line.startswith(options.comment)):
                continue
            if line[ends[-1] :].strip():
                problem = f"the line has more than {ends[-1]} characters"
                raise BadData(problem, where=f"line {number}", hint="check --widths")
            cells = [line[start:end].strip() for start, end in spans]
            yield unique_names(cells) if is_header else cells
            is_header = False

    _write(rows(), target)


def filter_rdb(source: BinaryIO, target: BinaryIO, options: RdbOptions) -> None:
    """Write RDB of the USGS as CSV: without comments, and without the formats below the header.

    Raises:
        BadData: a line has another number of values than the header.
    """

    def rows() -> Iterator[list[str]]:
        header: list[str] | None = None
        is_next = False
        for number, line in _lines(source, ""):
            if line.startswith("#") or not line.strip():
                continue
            cells = line.split("\t")
            if header is None:
                header, is_next = unique_names(cells), True
                yield header
                continue
            if is_next and all(_RDB_FORMAT.fullmatch(cell.strip()) for cell in cells):
                is_next = False
                continue
            is_next = False
            if len(cells) != len(header):
                raise BadData(f"{len(cells)} values for {len(header)} columns", where=f"line {number}")
            yield [cell.strip() for cell in cells]
        if header is None:
            raise BadData("the file has no header")

    _write(rows(), target)


def _lines(source: BinaryIO, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text without their ends, from 1."""
    number = 0
    try:
        for number, line in enumerate(open_text(source, encoding), start=1):
            yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise decoding_error(error, number) from None


def _write(rows: Iterator[list[str]], target: BinaryIO) -> None:
    output = io.TextIOWrapper(target, "utf-8", newline="")
    try:
        csv.writer(output, lineterminator="\n").writerows(rows)
        output.flush()
    finally:
        output.detach()
