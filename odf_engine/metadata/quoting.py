"""The line of a query that an error is about, with a mark under the place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from odf_engine.errors import OdfError
from odf_engine.metadata.model import SqlQueryStep

_PLACE: Final = re.compile(
    r"query(?: step (?P<step>\d+) of \d+)?, line (?P<line>\d+), column (?P<column>\d+)"
)
_FRAGMENT: Final = re.compile(r", in `(.+?)…?`$")
_SHOWN: Final = 60  # characters of the line: it fits into a terminal of 80


@contextmanager
def quoting(steps: Sequence[SqlQueryStep]) -> Iterator[None]:
    """Gives errors whose ``where`` is a place in a query its line as their ``excerpt``."""
    try:
        yield
    except OdfError as error:
        error.excerpt = error.excerpt or excerpt_of(error, steps)
        raise


def excerpt_of(error: OdfError, steps: Sequence[SqlQueryStep]) -> tuple[str, ...]:
    """The line of the query that the error names, with its number before it, and a caret under the column.

    Nothing when it names none, or one that could be in several steps.
    """
    found = _PLACE.match(error.where or "")
    if found is None:
        return ()
    at, column = int(found["line"]) - 1, int(found["column"]) - 1
    fragment = _FRAGMENT.search(error.message)
    chosen = steps if found["step"] is None else steps[int(found["step"]) - 1 :][:1]
    fitting = [line for step in chosen if (line := _line(step.query, at, column)) is not None]
    if fragment is not None and len(fitting) > 1:
        fitting = [line for line in fitting if line.startswith(fragment[1].partition("\n")[0], column)]
    if len(fitting) != 1:
        return ()
    start = max(column - _SHOWN * 2 // 3, 0)
    # A terminal must not obey what stands in a query; a tab is one column to Spark.
    text = "".join(char if char.isprintable() else " " for char in fitting[0][start : start + _SHOWN])
    number = str(at + 1)
    return f"{number} | {text.rstrip()}", f"{' ' * len(number)} | {' ' * (column - start)}^"


def _line(query: str, at: int, column: int) -> str | None:
    lines = query.split("\n")
    return lines[at] if at < len(lines) and column <= len(lines[at]) else None
