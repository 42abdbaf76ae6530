"""A list of choices with keys and headings; fuzzy matching."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec
from rich.cells import cell_len

from odf_engine.api.text import printable
from odf_tui.text.format import Span, ellipsize_middle, fit_width
from odf_tui.widgets.line_view import LineView

T = TypeVar("T")
_SPREAD: Final = 4


def fuzzy_score(query: str, text: str) -> int | None:
    """Return how well a query matches a text; more is better, None means no match.

    The complete query as a substring scores highest, then its separate words, then its letters in order and
    near each other from the start of a word. Starts of words score higher than middles.
    """
    query, text = query.lower().strip(), text.lower()
    if not query:
        return 0
    if (score := _score_substring(query, text)) is not None:
        return 4000 + score
    words = query.split()
    if len(words) > 1:
        pieces = [_score_substring(word, text) for word in words]
        return None if None in pieces else 2000 + sum(filter(None, pieces)) // len(words)
    return _score_letters(query, text)


def _score_substring(query: str, text: str) -> int | None:
    """Return the score of a substring, up to 1000: higher if early, and at the start of a word."""
    at = text.find(query)
    if at < 0:
        return None
    for start in (at, text.find(f" {query}") + 1, text.find(f".{query}") + 1):
        if start == 0 and text.startswith(query):
            return 1000
        if start > 0 and not text[start - 1].isalnum():
            return 800 - min(start, 300)
    return 400 - min(at, 300)


def _score_letters(query: str, text: str) -> int | None:
    """Return the score of letters that occur in order: higher if they are near each other."""
    widest = _SPREAD * len(query)
    best: int | None = None
    start = text.find(query[0])
    while start >= 0:
        if start == 0 or not text[start - 1].isalnum():
            at = start
            for letter in query[1:]:
                at = text.find(letter, at + 1)
                if at < 0:
                    return best  # nor does it occur later
            if (width := at - start) < widest and (best is None or 1000 - width > best):
                best = 1000 - width
        start = text.find(query[0], start + 1)
    return best


def fuzzy_rank(query: str, items: Iterable[tuple[str, T]]) -> list[T]:
    """Return the items whose texts match, best first; equal scores keep their order."""
    scored = [(fuzzy_score(query, text), item) for text, item in items]
    fitting = [(points, item) for points, item in scored if points is not None]
    return [item for _, item in sorted(fitting, key=lambda entry: -entry[0])]


class Choice(msgspec.Struct, frozen=True):
    """A line of a list of choices.

    Attributes:
        id: the result of choosing it.
        title: its text.
        keys: the keys that choose it, as Textual names them.
        shown: the key to display.
        remark: a text at the right.
        heading: whether it is a heading, which cannot be chosen.
        disabled: whether it is unavailable; the remark contains the reason.
    """

    id: str
    title: str
    keys: tuple[str, ...] = ()
    shown: str = ""
    remark: str = ""
    heading: bool = False
    disabled: bool = False


class Choices(LineView):
    """A list of choices. The cursor skips headings."""

    def __init__(self, choices: Sequence[Choice], cursor: int = 0) -> None:
        super().__init__(id="choices")
        self.choices = list(choices)
        self.active = True
        self.cursor = cursor

    def on_mount(self) -> None:
        """Show the choices."""
        self.reset()

    def reset(self) -> None:
        """Update widths and cursor after the choices have changed."""
        self._key_width = max((len(choice.shown) for choice in self.choices), default=0)
        self.cursor = self._find_selectable(self.cursor, 1)
        super().reset()

    def set(self, choices: Sequence[Choice]) -> None:
        """Replace the choices, with the cursor on the first."""
        self.choices, self.cursor = list(choices), 0
        self.reset()
        self.scroll_to(y=0, animate=False)

    @property
    def choice(self) -> Choice | None:
        """The choice under the cursor, or None on a heading or in an empty list."""
        choice = self.choices[self.cursor] if self.cursor < len(self.choices) else None
        return None if choice is None or choice.heading else choice

    def _find_selectable(self, index: int, step: int) -> int:
        """Return the nearest line that can be chosen, first in the direction of ``step``."""
        last = len(self.choices) - 1
        index = max(min(index, last), 0)
        after, before = range(index, last + 1), range(min(index, last), -1, -1)
        lines = [*after, *before] if step > 0 else [*before, *after]
        return next((line for line in lines if not self.choices[line].heading), index)

    def go(self, index: int) -> None:
        """Move the cursor to a line, or to the next one that can be chosen."""
        super().go(self._find_selectable(index, 1 if index >= self.cursor else -1))
        if all(choice.heading for choice in self.choices[: self.cursor]):
            self.show(0)  # the headings above the first choice
        elif all(choice.heading for choice in self.choices[self.cursor + 1 :]):
            self.show(len(self.choices) - 1)  # the headings below the last choice

    def click_at(self, x: int, y: int) -> bool:
        """Choose the line at a cell of the window."""
        line = y + self.scroll_offset.y
        if not 0 <= line < len(self.choices) or self.choices[line].heading:
            return False
        self.go(line)
        self.post_message(self.Opened())
        return False

    def count(self) -> int:
        """Return the number of lines."""
        return len(self.choices)

    def spans(self, index: int) -> Sequence[Span]:
        """Return key, title and remark of a choice."""
        choice = self.choices[index]
        if choice.heading:
            return [(f" {fit_width(printable(choice.title), max(self.room.width - 2, 0))}", "head")]
        keys = f" {choice.shown:<{self._key_width}}  " if self._key_width else " "
        room = max(self.room.width - len(keys), 0)
        title = printable(choice.title)
        remark = (
            ellipsize_middle(printable(choice.remark), max(room - cell_len(title) - 3, room // 2))
            if choice.remark
            else ""
        )
        title = fit_width(title, max(room - cell_len(remark) - 2, 0))
        return [
            (keys, "muted" if choice.disabled else "key"),
            (title + " ", "muted" if choice.disabled else ""),
            (remark + " ", "muted"),
        ]

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the text of an empty list."""
        return [[(" no match", "muted")]]
