"""Filter `csv`: turns any CSV into UTF-8 RFC 4180 CSV with one header row."""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO, Final, Literal

from odf_engine.errors import BadData, UsageError
from odf_engine.filters.text_input import compile_pattern, decoding_error, open_text

_MAX_CELL: Final = 1 << 26
_MAX_NOTES: Final = 20
"""Number of records below a table that are notes. More of them are reported."""
_MARK: Final = "\uffff"
"""Replaces a separator of several characters, which the reader of CSV does not support. No text has it."""
Record = tuple[int, list[str]]
"""A record and its first line, from 1."""


@dataclass(frozen=True)
class CsvOptions:
    """Options of the filter.

    Attributes:
        separator: the separator, of one or more characters.
        quote: the character around values, or "" if there is none.
        escape: the character before a quote inside a value, or "" if the quote is doubled.
        encoding: the encoding, or "" to detect it.
        skip: number of records before the header.
        header_rows: number of records of the header, whose texts are joined.
        names: names of the columns, in place of those in the header.
        until: pattern of the first value of the record after the table, or "".
        drop_last: number of records at the end that are left out.
        comment: start of records that are left out, or "".
        stop_at_blank: whether the table ends at the first record without a value.
        decimal, thousands: how numbers are written; "" if they are not rewritten.
        nulls: texts that mean null.
        flags: columns that get a column NAME_flag with the text that meant null.
        ragged: what happens to records with another number of values.
        drop_empty: whether records without a value, and columns at the end without a name, are left out.
        unpivot: pattern of the names of columns that become rows, or "".
        name, value: columns with the name and the value of such a column.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = ""
    encoding: str = ""
    skip: int = 0
    header_rows: int = 1
    names: tuple[str, ...] = ()
    until: str = ""
    drop_last: int = 0
    comment: str = ""
    stop_at_blank: bool = False
    decimal: str = ""
    thousands: str = ""
    nulls: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    ragged: Literal["error", "pad", "skip"] = "error"
    drop_empty: bool = False
    unpivot: str = ""
    name: str = "name"
    value: str = "value"


def filter_csv(source: BinaryIO, target: BinaryIO, options: CsvOptions) -> str:
    """Write a CSV stream as UTF-8 RFC 4180 CSV.

    Returns:
        A warning of records that were left out, or "".

    Raises:
        UsageError: an option is invalid, or names a column that does not exist.
        BadData: the stream is not such a CSV; ``where`` is the line.
    """
    text = open_text(source, options.encoding)
    output = io.TextIOWrapper(target, "utf-8", newline="")
    try:
        table = _Table(options)
        csv.writer(output, lineterminator="\n").writerows(table.rows(read_records(text, options)))
        output.flush()
    finally:
        output.detach()
    if table.skipped:
        count = f"{table.skipped:,} record{'' if table.skipped == 1 else 's'}"
        place = f"the first in line {table.first_skipped}"
        table.warnings.insert(0, f"left out {count} with another number of values, {place}")
    return "; ".join(table.warnings)


def read_records(text: io.TextIOWrapper, options: CsvOptions) -> Iterator[Record]:
    """Yield the records of a CSV stream, also blank ones.

    Raises:
        UsageError: the separator, quote or escape is invalid.
        BadData: it is not CSV, or not of the encoding.
    """
    _check_dialect(options)
    csv.field_size_limit(_MAX_CELL)
    is_long = len(options.separator) > 1
    reader = csv.reader(
        (line.replace(options.separator, _MARK) for line in text) if is_long else text,
        delimiter=_MARK if is_long else options.separator,
        quotechar=options.quote or None,
        quoting=csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE,
        escapechar=options.escape or None,
        doublequote=not options.escape,
    )
    line = 1
    try:
        for row in reader:
            if is_long:
                row = [cell.replace(_MARK, options.separator) for cell in row]
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise BadData(f"invalid CSV: {error}", where=f"line {line}") from None
    except UnicodeDecodeError as error:
        raise decoding_error(error, reader.line_num) from None


def _check_dialect(options: CsvOptions) -> None:
    for name, text in (("quote", options.quote), ("escape", options.escape)):
        if len(text) > 1 or text in ("\r", "\n"):
            raise UsageError(f"invalid --{name}", hint="use one character")
    if not options.separator or "\n" in options.separator or "\r" in options.separator:
        raise UsageError("invalid --separator", hint="use one or more characters of a line")
    if options.separator in (options.quote, options.escape):
        raise UsageError("--separator is also the quote or the escape", hint="use different characters")


class _Table:
    """Converts records.

    Attributes:
        skipped: number of records that were left out because of the number of their values.
        first_skipped: the line of the first of them.
        warnings: other records that were left out.
    """

    def __init__(self, options: CsvOptions) -> None:
        self._options = options
        self.skipped = self.first_skipped = 0
        self.warnings: list[str] = []
        self._nulls = frozenset(options.nulls)
        self._convert = _number_converter(options.decimal, options.thousands)

    def rows(self, records: Iterator[Record]) -> Iterator[list[str]]:
        """Yield the header, and the rows."""
        options = self._options
        names, first = self._header(records)
        width = len(names)
        flags = [self._column(names, name) for name in options.flags]
        names += [f"{name}_flag" for name in options.flags]
        kept, turned = list(range(len(names))), list[int]()
        if options.unpivot:
            pattern = compile_pattern(options.unpivot, "--unpivot")
            turned = [at for at, name in enumerate(names[:width]) if pattern.search(name)]
            if not turned:
                raise UsageError(f"no column matches --unpivot {options.unpivot}")
            kept = [at for at in kept if at not in turned]
            yield [*(names[at] for at in kept), options.name, options.value]
        else:
            yield names
        for line, record in self._body(records, first):
            row = record if len(record) == width else self._fit(record, width, line)
            if row is None:
                continue
            if self._nulls or self._convert is not None:
                row = self._values(row, flags)
            if not turned:
                yield row
                continue
            common = [row[at] for at in kept]
            for at in turned:
                if row[at]:
                    yield [*common, names[at], row[at]]

    def _header(self, records: Iterator[Record]) -> tuple[list[str], Record | None]:
        """Return unique names of the columns, and the first record below them if it was read."""
        options = self._options
        for _ in range(options.skip):
            if next(records, None) is None:
                raise BadData(f"the file has no more than {options.skip} records", hint="check --skip")
        header: list[list[str]] = []
        while len(header) < options.header_rows:
            _, record = next(records, (0, None))
            if record is None:
                raise BadData("the file has no header", hint="check --skip and --header-rows")
            if any(cell.strip() for cell in record) and not self._is_comment(record):
                header.append(record)
        first: Record | None = None
        if not header:
            first = next(((line, record) for line, record in records if self._is_row(record)), None)
            header = [[""] * (0 if first is None else len(first[1]))]
        names = list(options.names) or join_header(header)
        if options.drop_empty and (options.header_rows or options.names):
            while names and not names[-1]:
                names.pop()
        return unique_names(names), first

    def _is_comment(self, record: Sequence[str]) -> bool:
        comment = self._options.comment
        return bool(comment and record and record[0].lstrip().startswith(comment))

    def _is_row(self, record: Sequence[str]) -> bool:
        return bool(record) and not self._is_comment(record)

    def _body(self, records: Iterator[Record], first: Record | None) -> Iterator[Record]:
        """Yield the records of the table."""
        options = self._options
        last: deque[Record] = deque()
        tests_empty = options.stop_at_blank or options.drop_empty
        comment, drop_last = options.comment, options.drop_last
        until = compile_pattern(options.until, "--until") if options.until else None
        for line, record in chain([] if first is None else [first], records):
            if tests_empty and not any(cell.strip() for cell in record):
                if options.stop_at_blank:
                    self._end(line, records)
                    break
                continue
            if not record or (comment and self._is_comment(record)):
                continue
            if until is not None and until.search(next(filter(None, map(str.strip, record)), "")):
                self._end(line, records)
                break
            if drop_last:
                last.append((line, record))
                if len(last) <= drop_last:
                    continue
                line, record = last.popleft()
            yield line, record

    def _end(self, line: int, records: Iterator[Record]) -> None:
        """Count the records after the table: notes, or rows if the end is not where it was before."""
        notes = sum(1 for _, record in records if any(map(str.strip, record)))
        if notes > _MAX_NOTES:
            self.warnings.append(f"left out {notes:,} records below the end of the table in line {line}")

    def _fit(self, record: list[str], width: int, line: int) -> list[str] | None:
        """Return a record of another length with the number of columns, or None if it is left out."""
        options = self._options
        surplus = any(cell.strip() for cell in record[width:])
        if options.drop_empty and len(record) > width and not surplus:
            return record[:width]
        if options.ragged == "skip":
            self.first_skipped = self.first_skipped or line
            self.skipped += 1
            return None
        if options.ragged == "pad" and not surplus:
            return [*record[:width], *[""] * (width - len(record))]
        values = "1 value" if len(record) == 1 else f"{len(record)} values"
        raise BadData(
            f"{values} for {width} column{'' if width == 1 else 's'}",
            where=f"line {line}",
            hint="use --ragged pad to fill short records, or --ragged skip to leave them out",
        )

    def _values(self, row: list[str], flags: Sequence[int]) -> list[str]:
        nulls, convert = self._nulls, self._convert
        flagged = [row[at] if row[at].strip() in nulls else "" for at in flags]
        values = ["" if cell.strip() in nulls else cell for cell in row] if nulls else row
        return [*(values if convert is None else map(convert, values)), *flagged]

    @staticmethod
    def _column(names: Sequence[str], name: str) -> int:
        if name not in names:
            raise UsageError(f"column '{name}' not found", hint=f"columns: {', '.join(names)}")
        return names.index(name)


def join_header(header: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of columns from several rows.

    A text of an upper row is also above the empty cells after it, if the row has several texts.
    """
    width = max(map(len, header))
    rows = [[*row, *[""] * (width - len(row))] for row in header]
    for row in rows[:-1]:
        if sum(bool(cell.strip()) for cell in row) > 1:
            for at in range(1, width):
                if not row[at].strip() and any(lower[at].strip() for lower in rows[1:]):
                    row[at] = row[at - 1]
    return [" ".join(" ".join(parts).split()) for parts in zip(*rows, strict=True)]


def unique_names(names: Sequence[str]) -> list[str]:
    """Return names that differ, also in case. A column without a name gets its number."""
    used: set[str] = set()
    result: list[str] = []
    for at, text in enumerate(names, start=1):
        base = name = " ".join(text.split()) or f"c{at}"
        number = 1
        while name.casefold() in used:
            number += 1
            name = f"{base}_{number}"
        used.add(name.casefold())
        result.append(name)
    return result


def _number_converter(decimal: str, thousands: str) -> Callable[[str], str] | None:
    """Return a function that rewrites numbers, or None if they are plain."""
    if not decimal and not thousands:
        return None
    mark, group = re.escape(decimal or "."), re.escape(thousands)
    integer = rf"(?:\d{{1,3}}(?:{group}\d{{3}})+|\d+)" if thousands else r"\d+"
    number = re.compile(rf"\s*([+-]?{integer})(?:{mark}(\d+))?\s*")

    def convert(text: str) -> str:
        match = number.fullmatch(text)
        if match is None:
            return text
        whole = match[1].replace(thousands, "") if thousands else match[1]
        return whole if match[2] is None else f"{whole}.{match[2]}"

    return convert
