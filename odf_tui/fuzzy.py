"""Finding what somebody means from a few letters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def score(query: str, text: str) -> int | None:
    """How well ``query`` fits ``text``, more is better; None when its letters are not there in order.

    A part of the text in one piece beats scattered letters, beginnings of words beat middles.
    """
    query, text = query.lower().strip(), text.lower()
    if not query:
        return 0
    at = text.find(query)
    if at >= 0:
        return 1000 - at + (500 if at == 0 or not text[at - 1].isalnum() else 0)
    total, at = 0, -1
    for letter in query.replace(" ", ""):
        before, at = at, text.find(letter, at + 1)
        if at < 0:
            return None
        starts = at == 0 or not text[at - 1].isalnum()
        total += 10 if starts else 5 if at == before + 1 else 0
    return total - at // 4


def ranked(query: str, things: Iterable[tuple[str, T]]) -> list[T]:
    """The things whose texts fit, best first, else as they came."""
    found = [(score(query, text), thing) for text, thing in things]
    fitting = [(points, thing) for points, thing in found if points is not None]
    return [thing for _, thing in sorted(fitting, key=lambda each: -each[0])]
