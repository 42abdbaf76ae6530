"""Pagination: the arguments of ``odf/pages`` for a list that an HTTP API returns, from its first page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

_NEXT: Final = re.compile(r"next([-_]?(page|results?))?([-_]?(url|uri|link|href))?|@?odata\.nextlink", re.I)
_NEXT_CURSOR: Final = re.compile(r"next[-_]?((page)?[-_]?)(cursor|token|marker)|cursor|continuation", re.I)
_TOTAL: Final = re.compile(
    r"total([-_]?(count|records|results|items|hits))?|count|found|num(ber)?[-_]?(found|matched|results)"
    r"|record[-_]?count",
    re.IGNORECASE,
)
_PAGE: Final = re.compile(r"(page|current|p)([-_]?(no|number|num|index))?", re.I)
_OFFSET: Final = re.compile(r"\$?(offset|start|skip|start[-_]?index)", re.I)
_LIMIT: Final = re.compile(r"\$?(limit|(per|page)[-_]?(page|size)|size|rows|count|top|max[-_]?results)", re.I)
_MAX_DEPTH: Final = 3


class ListPaging(NamedTuple):
    """How the pages of a list are requested.

    Attributes:
        arguments: arguments of ``odf/pages`` after ``--url``.
        evidence: why the list has several pages.
    """

    arguments: tuple[str, ...]
    evidence: str


def find_paging(document: Any, url: str, items: str, count: int) -> ListPaging | None:
    """Return the paging of a list, or None if nothing shows that it has several pages.

    Args:
        document: the first page.
        url: its URL.
        items: the path of the list in the page, or "".
        count: the number of items in the page.
    """
    members = dict(_members(document, ""))
    path = ("--items", items) if items else ()
    for name, value in members.items():
        is_link = isinstance(value, str) and value.startswith(("http://", "https://", "/", "?"))
        if _NEXT.fullmatch(_last_name(name)) and (is_link or value is None):
            return ListPaging((*path, "--next", name), f"the link to the next page is in {name}")
    for name, value in members.items():
        if _NEXT_CURSOR.fullmatch(_last_name(name)) and isinstance(value, str | int) and value:
            parameter = re.sub(r"(?i)^next[-_]?", "", _last_name(name))
            parameter = parameter[:1].lower() + parameter[1:]
            evidence = (
                f"the cursor of the next page is in {name}; check the name of the parameter {parameter}"
            )
            return ListPaging((*path, "--cursor", parameter, "--next-cursor", name), evidence)
    return _numbered_pages(members, url, path, count)


def _last_name(path: str) -> str:
    """Return the name at the end of a path, whose names may have dots only after ``@``."""
    before, mark, name = path.rpartition("@")
    if mark:
        return mark + name
    parent, _, name = before.rpartition(".") if before else path.rpartition(".")
    return parent.rpartition(".")[2] if name.lower() == "href" else name


def _members(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the members of objects that are texts, numbers or null, with their paths."""
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        for name, inner in value.items():
            yield from _members(inner, f"{path}.{name}" if path else name, depth + 1)
    elif isinstance(value, list) and not path:
        for at, inner in enumerate(value[:2]):
            if isinstance(inner, dict):
                yield from _members(inner, str(at), depth + 1)
    elif path and not isinstance(value, list | dict):
        yield path, value


def _numbered_pages(
    members: Mapping[str, Any], url: str, path: Sequence[str], count: int
) -> ListPaging | None:
    """Return the paging by page numbers or offsets of a list that has more items than its first page."""
    totals = [
        (name, value)
        for name, value in members.items()
        if _TOTAL.fullmatch(_last_name(name)) and isinstance(value, int) and value > count
    ]
    if not totals or not count:
        return None
    total, number = max(totals, key=lambda item: item[1])
    parameters = dict(parse_qsl(urlsplit(url).query))
    echoed = {_last_name(name): value for name, value in members.items()}

    def name_of(pattern: re.Pattern[str]) -> str:
        names = [*parameters, *(name for name, value in echoed.items() if _is_number(value))]
        return next((name for name in names if pattern.fullmatch(name)), "")

    page, offset, limit = name_of(_PAGE), name_of(_OFFSET), name_of(_LIMIT)
    evidence = f"the page has {count:,} of {number:,} items ({total})"
    ending = ("--size", str(count), "--total", total)
    sized = ("--limit", limit) if limit else ()
    if page:
        first = str(parameters.get(page, echoed.get(page, 1)))
        start = () if first == "1" else ("--first", first)
        return ListPaging((*path, "--page", page, *start, *sized, *ending), evidence)
    if offset and limit:
        return ListPaging((*path, "--offset", offset, *sized, *ending), evidence)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.isdecimal())
