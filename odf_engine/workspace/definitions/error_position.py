"""Finds the line of a manifest that an error is about, after the manifest was parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from odf_engine.errors import OdfError

_FILE: Final = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::(?P<column>\d+))?(?:: .*)?$", re.DOTALL)
_DATASET: Final = re.compile(r"^(?:dataset )?(?P<name>[\w./-]+)(?:, (?P<path>.*))?$")
_INPUT_OF: Final = re.compile(r"\(input of (?P<name>[\w./-]+)\)$")
_IN_QUERY: Final = re.compile(
    r"query(?: step (?P<step>\d+) of \d+)?, line (?P<line>\d+), column (?P<column>\d+)"
)
_QUERY: Final = re.compile(r"^(?P<before>\s*(?:- )*query:\s*)(?P<value>.*)$")
_QUOTED: Final = re.compile(r"'([^'\n]+)'")


class TextPosition(msgspec.Struct, frozen=True):
    """A line of a file and, if known, a column. Both count from 1."""

    line: int
    column: int | None = None

    def __str__(self) -> str:
        return str(self.line) if self.column is None else f"{self.line}:{self.column}"


@contextmanager
def locate_errors(manifests: Mapping[str, str]) -> Iterator[None]:
    """Add the file, the line and, if known, the column to an error about a definition in the block.

    Args:
        manifests: the texts of the manifests, by the name of their file.

    Raises:
        OdfError: the error of the block.
    """
    try:
        yield
    except OdfError as error:
        match = _DATASET.match(error.where or "") or _INPUT_OF.search(error.message)
        name = match["name"] if match else None
        for file, text in manifests.items():
            is_defined = name is not None and _find_definition(text.splitlines(), name) is not None
            if is_defined and (position := error_position(error, text)) is not None:
                error.where = f"{file}:{position}" + (f": {error.where}" if error.where else "")
                break
        raise


def error_position(error: OdfError, text: str) -> TextPosition | None:
    """Return the position of an error in a manifest, or None if it is unknown.

    It is the position that the error has, else the position of the field or word that it names.
    """
    location = error.where or ""
    if match := _FILE.match(location):
        return TextPosition(int(match["line"]), int(match["column"]) if match["column"] else None)
    lines = text.splitlines()
    match = _DATASET.match(location)
    at = _find_definition(lines, match["name"]) if match else None
    if in_query := _IN_QUERY.search(location):
        position = _query_position(lines, at or 0, in_query)
        if position is not None:
            return position
    path, _, rest = (match["path"] or "").partition(", ") if match else ("", "", location)
    for part in path.split("."):
        name = part.partition("[")[0].strip()
        line = _find_line(lines, at or 0, lambda line, name=name: f"{name}:" in line) if name else None
        at = at if line is None else line
    # Match values and names in lists, not keys of the same name.
    for name in map(re.escape, _QUOTED.findall(f"{rest} {error.message}")):
        word = re.compile(rf"(?<![\w.-]){name}(?![\w.:-])")
        line = _find_line(lines, at or 0, lambda line, word=word: bool(word.search(line)))
        if line is not None and (found := word.search(lines[line])):
            return TextPosition(line + 1, found.start() + 1)
    return None if at is None else TextPosition(at + 1)


def _query_position(lines: Sequence[str], start: int, location: re.Match[str]) -> TextPosition | None:
    """Return a position in a query as a position in the manifest; the definition begins at line ``start``."""
    queries = [
        (at, match) for at in range(start, len(lines)) if (match := _QUERY.match(lines[at])) is not None
    ]
    step = int(location["step"] or 1) - 1
    if step >= len(queries):
        return None
    at, match = queries[step]
    line, column = int(location["line"]), int(location["column"])
    if match["value"][:1] != "|":  # in a folded scalar only the start is known
        inline = line == 1 and match["value"][:1] not in ("", ">")
        quote = match["value"][:1] in ("'", '"')
        return TextPosition(at + 1, len(match["before"]) + quote + column) if inline else TextPosition(at + 1)
    first = next((text for text in lines[at + 1 :] if text.strip()), "")
    return TextPosition(at + 1 + line, len(first) - len(first.lstrip()) + column)


def _find_definition(lines: Sequence[str], name: str) -> int | None:
    return _find_line(lines, 0, lambda line: _parse_field(line) == ("name", name))


def _find_line(lines: Sequence[str], start: int, matches: Callable[[str], bool]) -> int | None:
    return next((at for at in range(start, len(lines)) if matches(lines[at])), None)


def _parse_field(line: str) -> tuple[str, str]:
    name, _, value = line.strip().removeprefix("- ").partition(":")
    return name, value.strip().strip("\"'")
