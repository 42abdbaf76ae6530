"""Arguments of the container images that run inside the process: ``odf/pages`` and ``odf/listing``."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, TypeVar
from urllib.parse import urlsplit

from odf_engine.base.config import DURATION, parse_duration
from odf_engine.errors import InvalidManifest
from odf_engine.metadata.model import Container
from odf_engine.metadata.timestamp import Timestamp

PAGES: Final = "odf/pages"
LISTING: Final = "odf/listing"
PagingKind = Literal["single", "page", "offset", "cursor", "next", "link-header", "window"]
_KINDS: Final[tuple[PagingKind, ...]] = ("page", "offset", "cursor", "next", "link-header", "window")
_PLACE: Final = "fetch.args"
_HINT: Final = "see odf help web-sources for the options"
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*)", re.DOTALL)
_RATE: Final = re.compile(r"(\d{1,6})/([smh])", re.ASCII)
_RATE_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MAX_PAGES: Final = 10_000
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Paging:
    """How the pages of a list are requested.

    Attributes:
        kind: the kind of paging; ``single`` for one page.
        parameter: the parameter for the page number, offset, cursor or start of a time window.
        path: the path of the next cursor or link in the body.
        end_parameter: the parameter for the end of a time window.
        limit: the parameter for the page size, or "" if it is not sent.
        size: the page size, or 0 if it is not known.
        first: the number of the first page.
        start: the start of the first time window as text.
        step: the length of a time window in seconds.
    """

    kind: PagingKind = "single"
    parameter: str = ""
    path: str = ""
    end_parameter: str = ""
    limit: str = ""
    size: int = 0
    first: int = 1
    start: str = ""
    step: int = 0


@dataclass(frozen=True)
class PagesArguments:
    """The arguments of ``odf/pages``. Variables in the URL, the headers and the body are not substituted.

    Attributes:
        url: URL of the first page.
        method: method of the requests.
        headers: names and values of the headers.
        body: JSON object that is sent, or "" for none.
        items: path of the list in a page, or "" for the only list.
        paging: how the pages are requested.
        total: path of the number of items in a page, or "" if it has none.
        since: the parameter that restricts the items, or "" if all are read.
        since_field: path of the value in an item that is sent in ``since``.
        pause: the min seconds between two requests.
        pages_per_batch: the max pages of a payload, 0 for one payload, or None for payloads of bounded size.
        max_pages: the max pages of a pull.
    """

    url: str
    method: Literal["GET", "POST"]
    headers: tuple[tuple[str, str], ...]
    body: str
    items: str
    paging: Paging
    total: str
    since: str
    since_field: str
    pause: float
    pages_per_batch: int | None
    max_pages: int

    def texts(self) -> list[str]:
        """Return the texts with variables."""
        return [self.url, *(value for _, value in self.headers), self.body]


@dataclass(frozen=True)
class ListingArguments:
    """The arguments of ``odf/listing``. Variables in the URL are not substituted.

    Attributes:
        url: URL of a folder, an index of files, or a bucket with a prefix.
        pattern: pattern of names relative to the folder; a wildcard does not match slashes.
        order: whether the names or the times determine the order.
        time_pattern: regular expression whose first group is the time in a name, or "" for the modification
            time.
    """

    url: str
    pattern: str
    order: Literal["name", "time"]
    time_pattern: str

    def texts(self) -> list[str]:
        """Return the texts with variables."""
        return [self.url]


def native_program(step: Container) -> Literal["odf/pages", "odf/listing"] | None:
    """Return the program of a container that runs inside the process, or None for other images."""
    name, at, _ = step.image.partition("@")
    name = name.partition(":")[0]
    if at:  # a digest selects an image
        return None
    return PAGES if name == PAGES else LISTING if name == LISTING else None


def check_native_program(step: Container) -> None:
    """Check a container for options that only a container runtime understands.

    Raises:
        InvalidManifest: it has a command, or sets variables.
    """
    if step.command:
        raise InvalidManifest(
            f"{native_program(step)} has no other command",
            where="fetch.command",
            hint="remove fetch.command",
        )
    for variable in step.env or ():
        if variable.value is not None:
            raise InvalidManifest(
                f"the value of variable {variable.name} has no effect",
                where="fetch.env",
                hint=f"write it in fetch.args instead of ${{{{ env.{variable.name} }}}}",
            )


def parse_pages(step: Container) -> PagesArguments:
    """Return the arguments of ``odf/pages``.

    Raises:
        InvalidManifest: an argument is invalid, or two contradict each other.
    """
    check_native_program(step)
    given = _pages_parser().read(step.args or ())
    if bool(given.since) != bool(given.since_field):
        raise _invalid("--since requires --since-field, and vice versa")
    paging = _paging(given)
    if given.since and paging.kind == "window":
        raise _invalid("--window contradicts --since: each pull continues after the last window")
    if given.body and given.method == "GET":
        raise _invalid("--body requires --method POST")
    return PagesArguments(
        url=given.url,
        method=given.method,
        headers=tuple(given.header),
        body=given.body or "",
        items=given.items or "",
        paging=paging,
        total=given.total or "",
        since=given.since or "",
        since_field=given.since_field or "",
        pause=given.rate,
        pages_per_batch=given.pages_per_batch,
        max_pages=given.max_pages,
    )


def parse_listing(step: Container) -> ListingArguments:
    """Return the arguments of ``odf/listing``.

    Raises:
        InvalidManifest: an argument is invalid, or two contradict each other.
    """
    check_native_program(step)
    parser = _Parser()
    parser.add_argument("--url", required=True, type=_value(_listing_url))
    parser.add_argument("--pattern", default="*", type=_value(_pattern))
    parser.add_argument("--order", choices=("name", "time"), default="name")
    parser.add_argument("--time-pattern", type=_value(_time_pattern))
    given = parser.read(step.args or ())
    if given.time_pattern and given.order != "time":
        raise _invalid("--time-pattern requires --order time")
    return ListingArguments(given.url, given.pattern, given.order, given.time_pattern or "")


def parse_native(step: Container) -> PagesArguments | ListingArguments | None:
    """Return the arguments of a program that runs inside the process, or None for other images.

    Raises:
        InvalidManifest: an argument is invalid.
    """
    match native_program(step):
        case "odf/pages":
            return parse_pages(step)
        case "odf/listing":
            return parse_listing(step)
        case _:
            return None


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors as errors of a manifest."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False, prog="")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the values of the options. A value may begin with a dash, such as ``-x``."""
        joined: list[str] = []
        for text in arguments:
            is_value = text.startswith("-") and text.partition("=")[0] not in self._option_string_actions
            before = self._option_string_actions.get(joined[-1]) if joined else None
            if is_value and before is not None and before.nargs is None:
                joined[-1] += f"={text}"
            else:
                joined.append(text)
        return self.parse_args(joined)

    def error(self, message: str) -> NoReturn:
        raise _invalid(message)


def _invalid(problem: str) -> InvalidManifest:
    return InvalidManifest(problem, where=_PLACE, hint=_HINT)


def _pages_parser() -> _Parser:
    parser = _Parser()
    parser.add_argument("--url", required=True, type=_value(_http_url))
    parser.add_argument("--method", choices=("GET", "POST"), default="GET")
    parser.add_argument("--header", action="append", default=[], type=_value(_header))
    parser.add_argument("--body", type=_value(_body))
    for option in ("items", "total", "since", "since-field", "limit"):
        parser.add_argument(f"--{option}", type=_value(_not_empty))
    for option in ("page", "offset", "cursor", "next-cursor", "next"):
        parser.add_argument(f"--{option}", type=_value(_not_empty))
    parser.add_argument("--link-header", action="store_true")
    parser.add_argument("--window", nargs=2, type=_value(_not_empty), metavar=("FROM", "TO"))
    parser.add_argument("--step", type=_value(_step))
    parser.add_argument("--start", type=_value(_start))
    parser.add_argument("--first", type=int)
    parser.add_argument("--size", type=_value(_positive), default=0)
    parser.add_argument("--rate", type=_value(_pause), default=0.0)
    parser.add_argument("--pages-per-batch", type=_value(_not_negative))
    parser.add_argument("--max-pages", type=_value(_positive), default=_MAX_PAGES)
    return parser


def _paging(given: argparse.Namespace) -> Paging:
    names: list[PagingKind] = [kind for kind in _KINDS if getattr(given, kind.replace("-", "_"))]
    if len(names) > 1:
        raise _invalid(f"--{names[0]} contradicts --{names[1]}: a list has one kind of paging")
    kind = names[0] if names else "single"
    _require_together(given, kind)
    if given.limit and not given.size:
        raise _invalid("--limit requires --size N")
    names_of = {"page": given.page, "offset": given.offset, "cursor": given.cursor}
    return Paging(
        kind=kind,
        parameter=given.window[0] if kind == "window" else names_of.get(kind) or "",
        path=(given.next_cursor if kind == "cursor" else given.next if kind == "next" else "") or "",
        end_parameter=given.window[1] if kind == "window" else "",
        limit=given.limit or "",
        size=given.size,
        first=1 if given.first is None else given.first,
        start=given.start or "",
        step=given.step or 0,
    )


def _require_together(given: argparse.Namespace, kind: PagingKind) -> None:
    """Check that options of a kind of paging are complete, and that there are none of other kinds."""
    for option, owner in (
        ("first", "page"),
        ("next_cursor", "cursor"),
        ("step", "window"),
        ("start", "window"),
    ):
        name = option.replace("_", "-")
        has_it, needs_it = getattr(given, option) is not None, kind == owner
        if has_it and not needs_it:
            raise _invalid(f"--{name} requires --{owner}")
        if needs_it and not has_it and option != "first":
            raise _invalid(f"--{owner} requires --{name}")
    if kind == "offset" and not (given.limit and given.size):
        raise _invalid("--offset requires --limit PARAM and --size N")


def _value(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """Return a type for argparse whose error has the text of the ValueError."""

    def convert(text: str) -> _Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("the value is empty")
    return text


def _http_url(text: str) -> str:
    return _url(text, ("http", "https"))


def _listing_url(text: str) -> str:
    return _url(text, ("http", "https", "ftp", "ftps", "s3"))


def _pattern(text: str) -> str:
    if any(part in ("", ".", "..", "**") for part in text.split("/")):
        raise ValueError(f"'{text}' is not a pattern of names such as *.csv or 2024-*/*.csv")
    return text


def _time_pattern(text: str) -> str:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"'{text}' is not a regular expression: {error}") from None
    if pattern.groups < 1:
        raise ValueError(f"'{text}' has no group: enclose the time in parentheses")
    return text


def _url(text: str, schemes: Sequence[str]) -> str:
    if text.startswith("${{"):
        return text
    scheme = urlsplit(text).scheme.lower()
    if scheme not in schemes:
        raise ValueError(f"'{text}' is not a URL of {', '.join(schemes[:-1])} or {schemes[-1]}")
    return text


def _header(text: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a header: write 'Name: value'")
    return match[1], match[2].strip()


def _body(text: str) -> str:
    """Return the text of a JSON object. Variables stand inside its strings."""
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError("the body is not a JSON object")
    return text


def _step(text: str) -> int:
    if not re.fullmatch(DURATION, text) or parse_duration(text) < 1:
        raise ValueError(f"'{text}' is not a duration such as 1d or 6h")
    return parse_duration(text)


def _start(text: str) -> str:
    Timestamp.parse(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text)
    return text


def _positive(text: str) -> int:
    number = _not_negative(text)
    if number == 0:
        raise ValueError("the value must be 1 or more")
    return number


def _not_negative(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"'{text}' is not a whole number")
    return int(text)


def _pause(text: str) -> float:
    """Return the seconds between two requests."""
    match = _RATE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"'{text}' is not a rate such as 5/s or 100/m")
    return _RATE_SECONDS[match[2]] / int(match[1])
