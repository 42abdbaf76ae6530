"""Filter `sheet`: writes a sheet of a spreadsheet as CSV."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from odf_engine.errors import BadData, UsageError
from odf_engine.filters.csv_filter import count_lines, join_header, unique_names

if TYPE_CHECKING:
    from python_calamine import CalamineSheet, CalamineWorkbook

_MAX_BYTES: Final = 1 << 30
_BATCH: Final = 1000
"""Number of rows that are converted together, column by column, since most columns have one type."""
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
        lists: whether the names of the visible sheets are written instead, with the number of their values,
            and of values in rows with several values.
        locate: number of a line of the output, whose row in the sheet is written instead, or 0.
    """

    sheet: str = ""
    range: str = ""
    header_rows: int = 1
    all_rows: bool = False
    lists: bool = False
    locate: int = 0


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
    workbook = _open(source)
    if options.lists:
        _list_sheets(workbook, target)
        return
    sheet = _find_sheet(workbook, options.sheet)
    top, left = sheet.start or (0, 0)
    start = _Range(0 if options.all_rows else top, None, left, None)
    cells = _parse_range(options.range) if options.range else start
    rows = _rows(sheet, cells)
    if options.locate:
        first = 0 if options.all_rows else options.header_rows
        target.write(_locate(sheet.name, rows, cells.first_row + 1, first, options.locate).encode())
        return
    output = io.TextIOWrapper(target, "utf-8", newline="")
    if options.all_rows:
        csv.writer(output, lineterminator="\n").writerows(map(_text, row) for row in rows)
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
        csv.writer(output, lineterminator="\n").writerow(names)
        while batch := list(itertools.islice(rows, _BATCH)):
            output.write(_to_csv(batch, len(names)))
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


def _list_sheets(workbook: CalamineWorkbook, target: BinaryIO) -> None:
    from python_calamine import CalamineError, SheetVisibleEnum

    output = io.TextIOWrapper(target, "utf-8", newline="")
    write = csv.writer(output, lineterminator="\n").writerow
    write(["sheet", "values", "table_values"])
    for sheet in workbook.sheets_metadata:
        if sheet.visible != SheetVisibleEnum.Visible:
            continue
        counts: list[int] = []
        with suppress(CalamineError, ValueError):  # a sheet of diagrams
            rows = workbook.get_sheet_by_name(sheet.name).iter_rows()
            counts = [sum(cell != "" for cell in row) for row in rows]
        write([sheet.name, sum(counts), sum(count for count in counts if count > 1)])
    output.detach()


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
    """Return the rows of a range. The rows of the library begin at the first column with a value."""
    start = (sheet.start or (0, 0))[1]
    rows = itertools.islice(sheet.iter_rows(), cells.first_row, cells.last_row)
    if cells.first_column == start and cells.last_column is None:
        return rows
    margin = [""] * start
    return ([*margin, *row][cells.first_column : cells.last_column] for row in rows)


def _fill_merged(sheet: CalamineSheet, cells: _Range, header: list[list[str]]) -> None:
    """Write the text of merged cells of the header into all of their cells."""
    for (top, left), (bottom, right) in sheet.merged_cell_ranges or ():
        row, column = top - cells.first_row, left - cells.first_column
        if not (0 <= row < len(header) and 0 <= column < len(header[row])):
            continue
        for at in range(row, min(bottom - cells.first_row + 1, len(header))):
            last = min(right - cells.first_column + 1, len(header[at]))
            header[at][column:last] = [header[row][column] if at == row else ""] * (last - column)


def _locate(sheet: str, rows: Iterator[list[Any]], row: int, header_rows: int, line: int) -> str:
    """Return the place of the row of a line of the output, or "" for the header or an absent line.

    Args:
        sheet: the sheet name.
        rows: the rows.
        row: the number of the first one, from 1.
        header_rows: the number of header rows, or 0 if every row is written, also an empty one.
        line: the line, from 1.
    """
    end = 2 if header_rows else 1
    for number, values in enumerate(itertools.islice(rows, header_rows, None), row + header_rows):
        texts = list(map(_text, values))
        end += count_lines(texts) if not header_rows or any(texts) else 0
        if end > line:
            return f"sheet {sheet}, row {number}" if line > 1 or not header_rows else ""
    return ""


def _to_csv(rows: Sequence[Sequence[Any]], width: int) -> str:
    """Return the rows that are not empty as CSV."""
    columns = list(map(_texts, itertools.zip_longest(*rows, fillvalue="")))
    columns += [[""] * len(rows)] * (width - len(columns))
    texts = list(filter(any, zip(*columns, strict=True)))
    lines = "".join([f"{','.join(row)}\n" for row in texts])
    commas, ends = lines.count(","), lines.count("\n")
    if '"' not in lines and commas == len(texts) * (len(columns) - 1) and ends == len(texts):
        return lines
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerows(texts)
    return output.getvalue()


def _texts(column: Sequence[Any]) -> Sequence[str]:
    """Return the texts of the values of a column."""
    kinds = set(map(type, column))
    if kinds == {str} and _ERRORS.isdisjoint(column):
        return column
    if kinds == {date}:
        return list(map(date.isoformat, column))
    if kinds == {float} and not any(map(float.is_integer, column)):
        return list(map(repr, column))
    return list(map(_text, column))


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
