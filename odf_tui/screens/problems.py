"""What is wrong with a text that somebody wrote: the message, the line it is about, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from odf_engine.coordinator.results import ValidateResult
from odf_engine.errors import OdfError
from odf_tui.humane import plain
from odf_tui.state import Change
from odf_tui.widgets.lines import Span

_FILE: Final = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::(?P<column>\d+))?$", re.DOTALL)
_FURTHER: Final = re.compile(r"^\S.*?:(?P<line>\d+):(?P<column>\d+): (?P<message>.*)$")
_DATASET: Final = re.compile(r"^(?:dataset )?(?P<name>[\w./-]+)(?:, (?P<path>.*))?$")
_IN_QUERY: Final = re.compile(
    r"query(?: step (?P<step>\d+) of \d+)?, line (?P<line>\d+), column (?P<column>\d+)"
)
_QUERY: Final = re.compile(r"^(?P<before>\s*(?:- )*query:\s*)(?P<value>.*)$")
_QUOTED: Final = re.compile(r"'([^'\n]+)'")
_STATES: Final[Mapping[str, Sequence[Sequence[Span]]]] = {
    "none": [[("   ", ""), ("keeps no state: the rows to come are made by it", "")]],
    "kept": [[("   ", ""), ("goes on from the state of the old one", "good")]],
    "lost": [
        [("   ", ""), ("cannot go on from the state of the old one", "warn")],
        [
            ("   f  ", "key"),
            ("what was to come of the old one comes out; the new one begins with nothing", ""),
        ],
        [("   r  ", "key"), ("the new one reads its inputs anew, for the state it would have by now", "")],
    ],
}
_SHOWN: Final = 62  # cells of a line of an excerpt: it fits into a dialog of a small terminal


class Place(msgspec.Struct, frozen=True):
    """A line of a file, and a column if it is known; both from 1."""

    line: int
    column: int | None = None


def place_of(error: OdfError, text: str) -> Place | None:
    """Where in a manifest an error is: as it says itself, else where the field or word it names stands."""
    where = error.where or ""
    if match := _FILE.match(where):
        return Place(int(match["line"]), int(match["column"]) if match["column"] else None)
    lines = text.splitlines()
    if (match := _IN_QUERY.search(where)) and (place := _in_query(lines, match)) is not None:
        return place
    match = _DATASET.match(where)
    at = _index(lines, 0, lambda line: _field(line) == ("name", match["name"])) if match else None
    path, _, rest = (match["path"] or "").partition(", ") if match else ("", "", where)
    for part in path.split("."):
        name = part.partition("[")[0].strip()
        found = _index(lines, at or 0, lambda line, name=name: f"{name}:" in line) if name else None
        at = at if found is None else found
    # Words as they stand in values and lists of columns, not keys of the same name.
    names = (re.escape(word) for word in _QUOTED.findall(f"{rest} {error.message}"))
    words = (re.compile(rf"(?<![\w.-]){name}(?![\w.:-])") for name in names)
    hits = (_index(lines, at or 0, lambda line, word=word: bool(word.search(line))) for word in words)
    at = next((line for line in hits if line is not None), at)
    return None if at is None else Place(at + 1)


def _in_query(lines: Sequence[str], where: re.Match[str]) -> Place | None:
    """A place in a query as a place in the manifest that has the query."""
    queries = [(at, match) for at, line in enumerate(lines) if (match := _QUERY.match(line))]
    step = int(where["step"] or 1) - 1
    if step >= len(queries):
        return None
    at, match = queries[step]
    line, column = int(where["line"]), int(where["column"])
    if match["value"][:1] != "|":  # one line, or folded: then only its start is known
        inline = line == 1 and match["value"][:1] not in ("", ">")
        quote = match["value"][:1] in ("'", '"')
        return Place(at + 1, len(match["before"]) + quote + column) if inline else Place(at + 1)
    first = next((each for each in lines[at + 1 :] if each.strip()), "")
    return Place(at + 1 + line, len(first) - len(first.lstrip()) + column)


def _index(lines: Sequence[str], start: int, fits: Callable[[str], bool]) -> int | None:
    return next((at for at in range(start, len(lines)) if fits(lines[at])), None)


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.strip().removeprefix("- ").partition(":")
    return name, value.strip().strip("\"'")


def excerpt(text: str, place: Place, around: int = 1) -> list[list[Span]]:
    """The line of a place with its neighbours, a mark under its column."""
    lines = text.splitlines()
    start = max((place.column or 1) - _SHOWN * 2 // 3, 0)
    found: list[list[Span]] = []
    for number in range(max(place.line - around, 1), min(place.line + around, len(lines)) + 1):
        here = number == place.line
        shown = plain(lines[number - 1])[start : start + _SHOWN]
        found.append([(f" {number:>5} ", "title" if here else "muted"), (shown, "" if here else "muted")])
        if here and place.column:
            found.append([(" " * (6 + place.column - start) + "^", "bad")])
    return found


def problem_lines(error: OdfError, text: str) -> list[list[Span]]:
    """An error in a manifest in full, see the module; a message may tell of further places."""
    first, *others = error.message.splitlines() or [""]
    lines: list[list[Span]] = [[(f" {plain(first)}", "bad")]]
    if error.where:
        lines.append([(" in ", "muted"), (plain(error.where), "strong")])
    if place := place_of(error, text):
        lines += excerpt(text, place)
    if error.hint:
        lines.append([(" try ", "muted"), (plain(error.hint), "good")])
    for other in others:
        match = _FURTHER.match(other)
        lines.append([(f" {plain(match['message'] if match else other)}", "bad")])
        if match:
            lines += excerpt(text, Place(int(match["line"]), int(match["column"])), around=0)
    return lines


def plan_lines(plan: ValidateResult) -> list[list[Span]]:
    """Describe the effects of a new query on a dataset that has data."""
    lines: list[list[Span]] = [[], [(" The query", "title")]]
    if plan.message:
        lines.append([("   ", ""), (plain(plan.message), "warn")])
    if plan.new:
        lines.append(
            [("   +  ", "good"), (f"{plain(', '.join(plan.new))}: new, empty in the rows before", "good")]
        )
    return lines + [list(line) for line in _STATES.get(plan.state, ())]


def change_lines(changes: Sequence[Change]) -> list[list[Span]]:
    """What is to be appended: a title each, and what comes and goes."""
    styles = {"+": "good", "-": "bad"}
    lines: list[list[Span]] = []
    for change in changes:
        lines += [*([[]] if lines else []), [(f" {plain(change.title)}", "title")]]
        for line in change.lines:
            mark, rest = line[:1] or " ", plain(line[1:])
            indent = rest[: len(rest) - len(rest.lstrip())]
            style = styles.get(mark, "muted")
            lines.append([(f"   {mark}{indent}", style), (rest[len(indent) :], style)])
    return lines


def text_of(path: Path) -> str:
    """The text of a file as far as it can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
