"""Filter `csv`: turns any CSV into UTF-8 RFC 4180 CSV with one header row."""

from __future__ import annotations

import codecs
import csv
import functools
import io
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO, Final

from odf_engine.base.lazy import LazyModule
from odf_engine.errors import BadData, UsageError
from odf_engine.filters.csv_options import CsvColumns, CsvOptions
from odf_engine.filters.text_input import compile_pattern, decoding_error, open_text

if TYPE_CHECKING:
    from odf_engine.filters import csv_blocks
else:
    csv_blocks = LazyModule("odf_engine.filters.csv_blocks")  # imports Arrow, which takes 200 ms

_BLOCK: Final = 1 << 20
_MAX_CELL: Final = 1 << 26
_MAX_NOTES: Final = 20
"""Number of records below a table that are notes. More of them are reported."""
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_MARK: Final = "\uffff"
"""Replaces a separator of several characters, which the reader of CSV does not support. No text has it."""
Record = tuple[int, list[str]]
"""A record and its first line, from 1."""


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
        table = _Table(options, output)
        if options.locate:
            output.write(table.locate(RecordReader(text, options)))
            output.flush()
            return ""
        csv.writer(output, lineterminator="\n").writerows(table.rows(RecordReader(text, options)))
        output.flush()
    finally:
        output.detach()
    if table.skipped:
        count = f"{table.skipped:,} record{'' if table.skipped == 1 else 's'}"
        place = f"the first in line {table.first_skipped}"
        table.warnings.insert(0, f"left out {count} with another number of values, {place}")
    return "; ".join(table.warnings)


class RecordReader:
    """Reads the records of a CSV stream, also blank ones.

    Attributes:
        take: a function that may take complete lines between two records, which are not read then. It
            returns whether it took them.

    Raises:
        UsageError: the separator, quote or escape is invalid.
    """

    def __init__(self, text: io.TextIOWrapper, options: CsvOptions) -> None:
        _check_dialect(options)
        csv.field_size_limit(_MAX_CELL)
        self.take: Callable[[str], bool] | None = None
        self._text = text
        self._line, self._taken = 1, 0
        self._separator = options.separator if len(options.separator) > 1 else ""
        self._reader = csv.reader(
            self._lines(),
            delimiter=_MARK if self._separator else options.separator,
            quotechar=options.quote or None,
            quoting=csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE,
            escapechar=options.escape or None,
            doublequote=not options.escape,
        )

    def __iter__(self) -> Iterator[Record]:
        """Yield the records.

        Raises:
            BadData: it is not CSV, or not of the encoding.
        """
        reader, separator = self._reader, self._separator
        try:
            for row in reader:
                if separator:
                    row = [cell.replace(_MARK, separator) for cell in row]
                yield self._line, row
                self._line = reader.line_num + self._taken + 1
        except csv.Error as error:
            raise BadData(f"invalid CSV: {error}", where=f"line {self._line}") from None
        except UnicodeDecodeError as error:
            raise decoding_error(error, reader.line_num + self._taken) from None

    def _lines(self) -> Iterator[str]:
        for block in _line_blocks(self._text):
            is_between = self._line == self._reader.line_num + self._taken + 1
            if is_between and self.take is not None and self.take(block):
                lines = block.count("\n")
                self._taken += lines
                self._line += lines
            elif self._separator:
                yield from io.StringIO(block.replace(self._separator, _MARK), newline="")
            else:
                yield from io.StringIO(block, newline="")


def _line_blocks(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield complete lines in blocks."""
    decode = codecs.getincrementaldecoder(text.encoding)().decode
    rest = ""
    while data := text.buffer.read(_BLOCK):
        rest += decode(data)
        end = rest.rfind("\n") + 1 or rest.rfind("\r", 0, -1) + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest := rest + decode(b"", final=True):
        yield rest


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
        line: the line of the record of the last row.
    """

    def __init__(self, options: CsvOptions, output: io.TextIOWrapper) -> None:
        self._options, self._output = options, output
        self.skipped = self.first_skipped = self.line = 0
        self.warnings: list[str] = []
        self._nulls = frozenset(options.nulls)
        self._convert = _number_converter(options.decimal, options.thousands)
        self._until = compile_pattern(options.until, "--until") if options.until else None

    def locate(self, reader: RecordReader) -> str:
        """Return the place of the record of an output line, or "" for the header or a line that is absent."""
        end = 1
        for row in self.rows(reader):
            end += count_lines(row)
            if end > self._options.locate:
                return f"line {self.line}" if self.line else ""
        return ""

    def rows(self, reader: RecordReader) -> Iterator[list[str]]:
        """Yield the header, and the rows that are not written in blocks."""
        options, records = self._options, iter(reader)
        names, first = self._header(records)
        columns = self._find_columns(names)
        width, names, flags, kept, turned = columns
        yield [*(names[at] for at in kept), *([options.name, options.value] if turned else [])]
        if not options.drop_last and not options.locate:
            reader.take = self._block_writer(columns)
        for line, record in self._body(reader, records, first):
            row = record if len(record) == width else self._fit(record, width, line)
            if row is None:
                continue
            self.line = line
            if self._nulls or flags or self._convert is not None:
                row = self._values(row, flags)
            if not turned:
                yield row
                continue
            common = [row[at] for at in kept]
            for at in turned:
                if row[at]:
                    yield [*common, names[at], row[at]]

    def _find_columns(self, names: Sequence[str]) -> CsvColumns:
        options = self._options
        width = len(names)
        flags = [self._column(names, name) for name in options.flags]
        turned: list[int] = []
        if options.unpivot:
            pattern = compile_pattern(options.unpivot, "--unpivot")
            turned = [at for at, name in enumerate(names) if pattern.search(name)]
            if not turned:
                raise UsageError(f"no column matches --unpivot {options.unpivot}")
        kept = [at for at in range(width + len(flags)) if at not in turned]
        return CsvColumns(width, [*names, *(f"{name}_flag" for name in options.flags)], flags, kept, turned)

    def _block_writer(self, columns: CsvColumns) -> Callable[[str], bool]:
        """Return a function that writes a block of lines if it has no special case."""

        @functools.cache
        def converter() -> csv_blocks.BlockConverter:
            return csv_blocks.BlockConverter(self._options, columns, self._convert, self._until)

        def write(block: str) -> bool:
            data = converter().convert(block)
            if data is not None:
                self._output.flush()
                self._output.buffer.write(data)
            return data is not None

        return write

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

    def _body(
        self, reader: RecordReader, records: Iterator[Record], first: Record | None
    ) -> Iterator[Record]:
        """Yield the records of the table."""
        options = self._options
        last: deque[Record] = deque()
        tests_empty = options.stop_at_blank or options.drop_empty
        comment, drop_last = options.comment, options.drop_last
        until = self._until
        for line, record in chain([] if first is None else [first], records):
            if tests_empty and not any(cell.strip() for cell in record):
                if options.stop_at_blank:
                    self._end(line, reader, records)
                    break
                continue
            if not record or (comment and self._is_comment(record)):
                continue
            if until is not None and until.search(next(filter(None, map(str.strip, record)), "")):
                self._end(line, reader, records)
                break
            if drop_last:
                last.append((line, record))
                if len(last) <= drop_last:
                    continue
                line, record = last.popleft()
            yield line, record

    def _end(self, line: int, reader: RecordReader, records: Iterator[Record]) -> None:
        """Count the records after the table: notes, or rows if the end is not where it was before."""
        reader.take = None
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


def count_lines(row: Iterable[str]) -> int:
    """Return the number of lines of a record that is written as CSV."""
    return 1 + sum(len(_LINE_END.findall(cell)) for cell in row)


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
