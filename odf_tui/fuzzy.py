"""Finding what somebody means from a few letters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")

_SPREAD: Final = 4


def score(query: str, text: str) -> int | None:
    """How well ``query`` fits ``text``, more is better; None when it does not.

    The whole query in one piece beats its words each by itself, and those beat letters that stand near each
    other in order, from the beginning of a word on. Beginnings of words beat middles.
    """
    query, text = query.lower().strip(), text.lower()
    if not query:
        return 0
    if (found := _piece(query, text)) is not None:
        return 4000 + found
    words = query.split()
    if len(words) > 1:
        pieces = [_piece(word, text) for word in words]
        return None if None in pieces else 2000 + sum(filter(None, pieces)) // len(words)
    return _letters(query, text)


def _piece(query: str, text: str) -> int | None:
    """How well a text has another in it: early, and at the beginning of a word."""
    at = text.find(query)
    if at < 0:
        return None
    for start in (at, text.find(f" {query}") + 1, text.find(f".{query}") + 1):
        if start == 0 and text.startswith(query):
            return 1000
        if start > 0 and not text[start - 1].isalnum():
            return 800 - min(start, 300)
    return 400 - min(at, 300)


def _letters(query: str, text: str) -> int | None:
    """How well a text has some letters in order, near each other."""
    widest = _SPREAD * len(query)
    best: int | None = None
    start = text.find(query[0])
    while start >= 0:
        if start == 0 or not text[start - 1].isalnum():
            at = start
            for letter in query[1:]:
                at = text.find(letter, at + 1)
                if at < 0:
                    return best  # nor is it there further on
            if (width := at - start) < widest and (best is None or 1000 - width > best):
                best = 1000 - width
        start = text.find(query[0], start + 1)
    return best


def ranked(query: str, things: Iterable[tuple[str, T]]) -> list[T]:
    """The things whose texts fit, best first, else as they came."""
    found = [(score(query, text), thing) for text, thing in things]
    fitting = [(points, thing) for points, thing in found if points is not None]
    return [thing for _, thing in sorted(fitting, key=lambda each: -each[0])]
