"""The command line of the filters, for ``odf filter`` and for ``python -m odf_engine.filters``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, BinaryIO, Final, NamedTuple, NoReturn

from odf_engine.errors import OdfError, UsageError


class _Filter(NamedTuple):
    """A filter: its summary, and the names of its module, function and options."""

    summary: str
    module: str
    function: str
    options: str


FILTERS: Final = {
    "csv": _Filter("any CSV to RFC 4180 CSV with one header row", "csv_filter", "filter_csv", "CsvOptions"),
    "lines": _Filter("some lines of a text", "lines", "filter_lines", "LineOptions"),
    "sheet": _Filter("a sheet of a spreadsheet to CSV", "sheet", "filter_sheet", "SheetOptions"),
    "json": _Filter("the items of a JSON document as lines", "json_filter", "filter_json", "JsonOptions"),
    "xml": _Filter("the rows of an XML document as JSON lines", "json_filter", "filter_xml", "XmlOptions"),
    "fixed": _Filter("columns of fixed widths to CSV", "fixed", "filter_fixed", "FixedOptions"),
    "rdb": _Filter("RDB of the USGS to CSV", "fixed", "filter_rdb", "RdbOptions"),
    "unpack": _Filter("the members of an archive", "unpack", "filter_unpack", "UnpackOptions"),
}  # fmt: skip
"""The filters by their names."""


_MAX_MEMORY: Final = 8 << 30
_DASHES: Final = "--"
"""A value that ``argparse`` of Python 3.11 turns into an empty list."""


WARNING: Final = "warning: "
"""Prefix of a warning in the error output of ``python -m odf_engine.filters``."""


class _Parser(argparse.ArgumentParser):
    """Raises errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"odf filter: {message}", hint=f"see {self.prog} --help")


def run_filter(arguments: Sequence[str], source: BinaryIO, target: BinaryIO) -> str:
    """Run a filter.

    Args:
        arguments: its name and options.
        source: the input.
        target: the output.

    Returns:
        A warning, or "".

    Raises:
        UsageError: the filter is unknown, or an option is invalid.
        BadData: the input is not in the format of the filter.
        SystemExit: the arguments ask for help, which was printed.
    """
    name, *rest = arguments or [""]
    known = FILTERS.get(name)
    if known is None:
        raise UsageError(f"unknown filter '{name}'", hint=f"the filters are {', '.join(FILTERS)}")
    values = vars(_parser(name, known.summary).parse_args(rest))
    values = {key: _DASHES if value == [] else value for key, value in values.items()}
    module = import_module(f"odf_engine.filters.{known.module}")
    options: Any = getattr(module, known.options)(**values)
    run: Callable[[BinaryIO, BinaryIO, Any], str | None] = getattr(module, known.function)
    return run(source, target, options) or ""


def _parser(name: str, summary: str) -> argparse.ArgumentParser:
    """Return the parser of a filter's options. No option names a file: steps with a filter need no trust."""
    parser = _Parser(
        prog=f"odf filter {name}",
        description=f"{summary[0].upper()}{summary[1:]}. Reads standard input, writes standard output.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    match name:
        case "csv":
            _add_csv(add)
        case "lines":
            add("--skip", type=_number, default=0, metavar="N", help="leave out the first N lines")
            add("--from", dest="start", default="", metavar="REGEX", help="start at the first such line")
            add("--until", default="", metavar="REGEX", help="end before the first such line")
            add("--comment", default="", metavar="TEXT", help="leave out lines that start with this text")
            add("--drop-last", type=_number, default=0, metavar="N", help="leave out the last N lines")
            add("--stop-at-blank", action="store_true", help="end at the first blank line")
            _add_locate(add)
        case "sheet":
            add("--sheet", default="", metavar="NAME|N", help="the sheet; by default the first one")
            add("--range", default="", metavar="A5:F", help="the cells; by default all")
            add("--header-rows", type=_number, default=1, metavar="N", help="rows of the header, joined")
            _add_locate(add)
            add("--list", dest="lists", action="store_true", help="the sheets, and the sizes of their tables")
            add("--all-rows", action="store_true", help="all rows as they are, without a header")
        case "json":
            add("--items", default="", metavar="PATH", help="path of the list, such as data.items")
            add("--flatten", action="store_true", help="members of nested objects as a.b")
        case "xml":
            add("--row", required=True, metavar="PATH", help="the elements that are rows, such as list/item")
        case "fixed":
            add("--widths", type=_widths, required=True, metavar="5,8,3", help="widths in characters")
            add("--names", type=_names, default=(), metavar="A,B,C", help="names of the columns")
            add("--encoding", default="", help="by default it is detected")
            add("--comment", default="", metavar="TEXT", help="leave out lines that start with this text")
        case "unpack":
            add("--member", action=_Append, default=(), metavar="GLOB", help="the members; by default all")
            add(
                "--member-column",
                default="",
                metavar="NAME",
                help="column with the name of a CSV member",
            )
    return parser


def _add_csv(add: Callable[..., object]) -> None:
    add("--separator", default=",", type=_text, help=r"the separator, such as ; or \t")
    add("--quote", default='"', help='the quote; "" if there is none')
    add("--escape", default="", help="the character before a quote in a value")
    add("--encoding", default="", help="by default it is detected")
    add("--skip", type=_number, default=0, metavar="N", help="leave out N records before the header")
    add(
        "--header-rows",
        type=_number,
        default=1,
        metavar="N",
        help="records of the header, joined",
    )
    add("--names", type=_names, default=(), metavar="A,B,C", help="names of the columns")
    add("--until", default="", metavar="REGEX", help="end before the record whose first value matches")
    add("--drop-last", type=_number, default=0, metavar="N", help="leave out the last N records")
    add("--comment", default="", metavar="TEXT", help="leave out records that start with this text")
    add("--stop-at-blank", action="store_true", help="end at the first record without values")
    add("--decimal", default="", metavar=",", help="the decimal mark of numbers, which become plain")
    add("--thousands", default="", metavar=".", help="the mark between groups of digits")
    add("--null", dest="nulls", action=_Append, default=(), metavar="TEXT", help="a text that means null")
    add("--flag", dest="flags", action=_Append, default=(), metavar="COLUMN",
        help="add COLUMN_flag with the text that meant null")  # fmt: skip
    add("--ragged", choices=["error", "pad", "skip"], default="error", help="records with another length")
    add("--drop-empty", action="store_true", help="leave out empty records, and unnamed columns at the end")
    add("--unpivot", default="", metavar="REGEX", help="turn these columns into rows")
    add("--name", default="name", metavar="COLUMN", help="the column with the name of such a column")
    add("--value", default="value", metavar="COLUMN", help="the column with its value")
    _add_locate(add)


def _add_locate(add: Callable[..., object]) -> None:
    help_text = "only print which line or row of the input line N of the output comes from"
    add("--locate", type=_number, default=0, metavar="N", help=help_text)


class _Append(argparse.Action):
    """Collects values as a tuple."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option: object = None
    ) -> None:
        value = _DASHES if values == [] else values
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), value))


def _text(text: str) -> str:
    return text.replace("\\t", "\t")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number")
    return int(text)


def _widths(text: str) -> tuple[int, ...]:
    return tuple(map(_number, text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _limit_memory() -> None:
    """Limit the memory of this process, where the system can."""
    if sys.platform == "win32":
        return
    import resource  # only on Unix

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = _MAX_MEMORY if hard == resource.RLIM_INFINITY else min(_MAX_MEMORY, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def main() -> None:
    """Run the filter of the command line on standard input. Errors are one line on standard error."""
    _limit_memory()
    try:
        if warning := run_filter(sys.argv[1:], sys.stdin.buffer, sys.stdout.buffer):
            sys.stderr.write(f"{WARNING}{warning}\n")
    except BrokenPipeError:
        sys.exit(1)
    except OdfError as error:
        sys.stderr.write(f"error: {error}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
        sys.exit(2 if isinstance(error, UsageError) else 1)
