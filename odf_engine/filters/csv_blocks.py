"""Converts blocks of CSV with Arrow, which is quicker than the conversion of records."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow.csv

from odf_engine.base.arrow import pa, pc
from odf_engine.filters.csv_options import CsvColumns, CsvOptions

_SEPARATOR: Final = "\x1f"
"""Replaces a separator that Arrow does not support."""
_END: Final = "\x1e"
"""Values of the record below a block, which shows that no quoted value is open there."""
_BLANK: Final = bytes([*range(10), *range(11, 33), *range(128, 256)])
"""Bytes of characters without a glyph, and all that are not ASCII."""
_SPACES: Final = "\t\n\v\f\r\x1c\x1d\x1e\x1f "
_MARKS: Final = frozenset(".,'_ \u00a0\u202f\u2019\u00b7")
"""Marks of numbers that occur in no other part of a number."""


class BlockConverter:
    """Converts blocks of lines that have no special cases.

    Args:
        options: the options of the filter.
        columns: the columns.
        convert: rewrites a number, or None if numbers stay as they are.
        until: pattern of the first value below the table, or None.
    """

    def __init__(
        self,
        options: CsvOptions,
        columns: CsvColumns,
        convert: Callable[[str], str] | None,
        until: re.Pattern[str] | None,
    ) -> None:
        self._options, self._columns, self._convert, self._until = options, columns, convert, until
        long = len(options.separator) > 1 or not options.separator.isascii()
        self._separator = _SEPARATOR if long else options.separator
        self._nulls = pa.array(options.nulls, pa.string())
        self._number = _plain_number_pattern(options)
        blank = _BLANK + (options.quote + options.escape).encode()
        self._blank = bytes(byte for byte in blank if byte != ord(self._separator))
        self._empty = re.compile(b"\n" + re.escape(self._separator.encode()) + b"*\n")

    def convert(self, block: str) -> pa.Buffer | None:
        """Return the output of complete lines between two records, or None if they have a special case."""
        cells = self._parse(block)
        if cells is None or (self._until is not None and self._may_end(cells[0])):
            return None
        cells = self._values(cells)
        return (self._unpivoted if self._columns.turned else _lines)(cells)

    def _parse(self, block: str) -> list[pa.Array] | None:
        options, width = self._options, self._columns.width
        if not block.endswith("\n") or len(block) > csv.field_size_limit():
            return None
        # Whether csv quotes a lone carriage return depends on the release of Python.
        if "\r" in block and block.count("\r") != block.count("\r\n"):
            return None
        if any(special and special in block for special in (options.escape, options.comment)):
            return None
        if self._separator != options.separator:
            if _SEPARATOR in block or (options.quote and options.quote in block):
                return None
            block = block.replace(options.separator, _SEPARATOR)
        if (options.stop_at_blank or options.drop_empty) and self._has_empty(block):
            return None
        data = (block + self._separator.join([_END] * width) + "\n").encode()
        names = [str(at) for at in range(width)]
        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(data),
                pyarrow.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
                pyarrow.csv.ParseOptions(
                    delimiter=self._separator,
                    quote_char=options.quote or False,
                    double_quote=not options.escape,
                    newlines_in_values=True,
                ),
                pyarrow.csv.ConvertOptions(check_utf8=False, column_types=dict.fromkeys(names, pa.string())),
            )
        except pa.ArrowInvalid:  # a record with another number of values
            return None
        cells = [column.combine_chunks() for column in table.columns]
        if cells[-1][-1].as_py() != _END:
            return None
        return [column[:-1] for column in cells]

    def _has_empty(self, block: str) -> bool:
        """Return whether a record may have no value."""
        return self._empty.search(b"\n" + block.encode().translate(None, self._blank)) is not None

    def _may_end(self, column: pa.Array) -> bool:
        """Return whether the first value of a record may be the end of the table."""
        assert self._until is not None
        texts = map(str.strip, column.to_pylist())
        return any(not text or self._until.search(text) for text in texts)

    def _values(self, cells: list[pa.Array]) -> list[pa.Array]:
        flagged: list[pa.Array] = []
        if self._options.nulls or self._columns.flags:
            masks = [self._null_mask(column) for column in cells]
            flagged = [pc.if_else(masks[at], cells[at], "") for at in self._columns.flags]
            cells = [pc.if_else(mask, "", column) for mask, column in zip(masks, cells, strict=True)]
        if self._convert is not None:
            cells = [self._plain_numbers(column) for column in cells]
        return cells + flagged

    def _null_mask(self, column: pa.Array) -> pa.Array | pa.Scalar:
        data = _data(column)
        if not any(text.encode() in data for text in self._options.nulls):
            return pa.scalar(False)
        return pc.is_in(_trimmed(column, data), value_set=self._nulls)

    def _plain_numbers(self, column: pa.Array) -> pa.Array:
        assert self._convert is not None
        options, data = self._options, _data(column)
        if self._number is None or not data.isascii():
            return pa.array(map(self._convert, column.to_pylist()), pa.string())
        plain = _trimmed(column, data)
        marks = [
            (mark, other)
            for mark, other in ((options.thousands, ""), (options.decimal, "."))
            if mark and mark.encode() in data
        ]
        if not marks and plain.equals(column):
            return column
        mask = pc.match_substring_regex(plain, self._number)
        if not mask.true_count:
            return column
        for mark, other in marks:
            plain = pc.replace_substring(plain, mark, other)
        return pc.if_else(mask, plain, column)

    def _unpivoted(self, cells: list[pa.Array]) -> pa.Buffer:
        columns, quoted = self._columns, _quoted(cells)
        names = _quoted([pa.array([name], pa.string()) for name in columns.names])
        common = [quoted[at] for at in columns.kept]
        rows: list[pa.Array] = []
        for at in columns.turned:
            end = pc.binary_join_element_wise(quoted[at], "\n", "")
            row = pc.binary_join_element_wise(*common, names[at][0], end, ",")
            rows.append(pc.if_else(pc.equal(cells[at], ""), None, row))
        return _joined(pc.binary_join_element_wise(*rows, "", null_handling="skip"))


def _plain_number_pattern(options: CsvOptions) -> str | None:
    """Return the pattern of ASCII numbers whose marks may be replaced one by one, or None."""
    decimal, group = options.decimal or ".", options.thousands
    if decimal == group or not {decimal, group or "."} <= _MARKS:
        return None
    integer = rf"(?:[0-9]{{1,3}}(?:{re.escape(group)}[0-9]{{3}})+|[0-9]+)" if group else "[0-9]+"
    return rf"^[+-]?{integer}(?:{re.escape(decimal)}[0-9]+)?$"


def _lines(cells: Sequence[pa.Array]) -> pa.Buffer:
    """Return the rows as CSV."""
    quoted = _quoted(cells)
    quoted[-1] = pc.binary_join_element_wise(quoted[-1], "\n", "")
    return _joined(pc.binary_join_element_wise(*quoted, ","))


def _quoted(cells: Sequence[pa.Array]) -> list[pa.Array]:
    """Return values of CSV, which are quoted if they have to be, as :mod:`csv` writes them."""
    result: list[pa.Array] = []
    for column in cells:
        data = _data(column)
        masks = [pc.match_substring(column, special) for special in '",\n' if special.encode() in data]
        if len(cells) == 1:
            masks.append(pc.equal(column, ""))
        if masks:
            doubled = pc.replace_substring(column, '"', '""') if b'"' in data else column
            quoted = pc.binary_join_element_wise('"', doubled, '"', "")
            column = pc.if_else(functools.reduce(pc.or_, masks), quoted, column)
        result.append(column)
    return result


def _trimmed(column: pa.Array, data: bytes) -> pa.Array:
    """Return texts without white space at both ends, as ``str.strip``; ``data`` are their bytes."""
    return pc.ascii_trim(column, _SPACES) if data.isascii() else pc.utf8_trim_whitespace(column)


def _joined(texts: pa.Array) -> pa.Buffer:
    """Return the texts of a new array, one after the other."""
    size = pc.sum(pc.binary_length(texts)).as_py() or 0
    return texts.buffers()[2].slice(0, size) if size else pa.py_buffer(b"")


def _data(texts: pa.Array) -> bytes:
    """Return the bytes that the texts of an array are part of."""
    buffer = texts.buffers()[2]
    return b"" if buffer is None else buffer.to_pybytes()
