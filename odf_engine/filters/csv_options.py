"""Options of the filter `csv`, and the columns that they select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


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
        locate: number of a line of the output, whose line in the input is written instead, or 0.
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
    locate: int = 0


class CsvColumns(NamedTuple):
    """The columns of a table.

    Attributes:
        width: number of columns in the source.
        names: names of the columns, with the columns of flags.
        flags: the columns whose texts that mean null are kept.
        kept: the columns that stay.
        turned: the columns that become rows.
    """

    width: int
    names: Sequence[str]
    flags: Sequence[int]
    kept: Sequence[int]
    turned: Sequence[int]
