"""Filter `sheet`: writes a sheet of a spreadsheet as CSV."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from odf_engine.errors import BadData, UsageError
from odf_engine.filters.csv_filter import join_header, unique_names

if TYPE_CHECKING:
    from python_calamine import CalamineSheet, CalamineWorkbook

_MAX_BYTES: Final = 1 << 30
_ERRORS: Final = frozenset({"#N/A", "#REF!", "#DIV/0!", "#VALUE!", "#NAME?", "#NUM!", "#NULL!"})
_RANGE: Final = re.compile(r"([A-Z]{1,3})?(\d+)?(?::([A-Z]{1,3})?(\d+)?)?", re.IGNORECASE)


@dataclass(frozen=True)
class SheetOptions:
    """Options of the filter.

    Attributes:
        sheet: name or number of the sheet, from 1; "" for the first one.
        range: the cells, such as ``A5:F20``, ``A5:F`` or ``A5``; "" for all of them.
        header_rows: number of rows of the header, whose texts are joined.
        all_rows: whether all rows of the sheet are written as they are, also empty ones, without a header.
    """

    sheet: str = ""
    range: str = ""
    header_rows: int = 1
    all_rows: bool = False


class _Range(NamedTuple):
    """Rows and columns from 0; None is the end of the sheet."""

    first_row: int
    last_row: int | None
    first_column: int
    last_column: int | None


def filter_sheet(source: BinaryIO, target: BinaryIO, options: SheetOptions) -> None:
    """Write a sheet as CSV. Formulas are written by their last values; macros and links are ignored.

    Raises:
        UsageError: the range is invalid.
        BadData: the stream is not a spreadsheet, or has no such sheet; ``where`` is the sheet and row.
    """
    sheet = _find_sheet(_open(source), options.sheet)
    top, left = sheet.start or (0, 0)
    start = _Range(0 if options.all_rows else top, None, left, None)
    cells = _parse_range(options.range) if options.range else start
    output = io.TextIOWrapper(target, "utf-8", newline="")
    write = csv.writer(output, lineterminator="\n").writerow
    rows = _rows(sheet, cells)
    if options.all_rows:
        for row in rows:
            write(map(_text, row))
        output.detach()
        return
    header = [[_text(value) for value in next(rows, [])] for _ in range(options.header_rows)]
    if header and not any(any(row) for row in header):
        raise BadData("the sheet has no header", where=f"sheet {sheet.name}", hint="set --range")
    try:
        _fill_merged(sheet, cells, header)
        if not header:
            first = next(rows, [])
            header, rows = [[""] * len(first)], itertools.chain([first], rows)
        names = unique_names(join_header(header))
        width = len(names)
        write(names)
        for row in rows:
            values = [_text(value) for value in row]
            if any(values):
                write([*values, *[""] * (width - len(values))])
        output.flush()
    finally:
        output.detach()


def _open(source: BinaryIO) -> CalamineWorkbook:
    from python_calamine import CalamineError, CalamineWorkbook

    data = source.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise BadData(f"the spreadsheet has more than {_MAX_BYTES:,} bytes", hint="export the sheet as CSV")
    try:
        return CalamineWorkbook.from_filelike(io.BytesIO(data))
    except (CalamineError, OSError, ValueError) as error:
        raise BadData(
            f"not a spreadsheet: {error}",
            hint="the formats are xlsx, xlsm, xlsb, xls and ods; a password has to be removed",
        ) from None


def _find_sheet(workbook: CalamineWorkbook, wanted: str) -> CalamineSheet:
    from python_calamine import CalamineError

    names = workbook.sheet_names
    at = int(wanted) - 1 if wanted.isdigit() and wanted not in names else None
    if wanted and wanted not in names and (at is None or not 0 <= at < len(names)):
        raise BadData(f"sheet '{wanted}' not found", hint=f"sheets: {', '.join(names)}")
    if not names:
        raise BadData("the spreadsheet has no sheet")
    name = names[at or 0] if at is not None or not wanted else wanted
    try:
        return workbook.get_sheet_by_name(name)
    except (CalamineError, ValueError) as error:
        raise BadData(f"the sheet cannot be read: {error}", where=f"sheet {name}") from None


def _parse_range(text: str) -> _Range:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"invalid range '{text}'", hint="use a range such as A5:F20, A5:F or A5")
    first_column, first_row, last_column, last_row = match.groups()
    return _Range(
        int(first_row or 1) - 1,
        None if last_row is None else int(last_row),
        0 if first_column is None else _column_number(first_column),
        None if last_column is None else _column_number(last_column) + 1,
    )


def _column_number(letters: str) -> int:
    number = 0
    for letter in letters.upper():
        number = number * 26 + ord(letter) - ord("A") + 1
    return number - 1


def _rows(sheet: CalamineSheet, cells: _Range) -> Iterator[list[Any]]:
    """Yield the rows of a range. The rows of the library begin at the first column with a value."""
    margin = [""] * (sheet.start or (0, 0))[1]
    for number, row in enumerate(sheet.iter_rows()):
        if cells.last_row is not None and number >= cells.last_row:
            return
        if number >= cells.first_row:
            yield [*margin, *row][cells.first_column : cells.last_column]


def _fill_merged(sheet: CalamineSheet, cells: _Range, header: list[list[str]]) -> None:
    """Write the text of merged cells of the header into all of their cells."""
    for (top, left), (bottom, right) in sheet.merged_cell_ranges or ():
        row, column = top - cells.first_row, left - cells.first_column
        if not (0 <= row < len(header) and 0 <= column < len(header[row])):
            continue
        for at in range(row, min(bottom - cells.first_row + 1, len(header))):
            last = min(right - cells.first_column + 1, len(header[at]))
            header[at][column:last] = [header[row][column] if at == row else ""] * (last - column)


def _text(value: Any) -> str:
    """Return the text of a value: numbers without a needless fraction, times in ISO 8601."""
    kind = type(value)
    if kind is str:
        return "" if value in _ERRORS else value
    if kind is float:
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is datetime:
        return value.date().isoformat() if value.time() == time() else value.isoformat()
    if kind is date or kind is time:
        return value.isoformat()
    return "" if value is None else str(value)
