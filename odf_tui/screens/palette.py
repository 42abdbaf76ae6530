"""The list that finds everything by some of its letters, and the list of themes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from textual.widgets import Input

from odf_tui.fuzzy import ranked
from odf_tui.screens.dialogs import Picker
from odf_tui.state import DatasetRow
from odf_tui.widgets.choices import Choice, Choices
from odf_tui.widgets.lines import LineView

Blocks = Callable[[str], list[Choice]]
Preview = Callable[[str | None], None]

_MOST_NAMED: Final = 5
_BLOCK: Final = re.compile(r"(?:(?P<name>.*?)\s*#\s*)?(?P<what>\d+|[0-9a-f]{4,})")


class NamedBlock(NamedTuple):
    """What a text may mean: a number or the start of a hash, in these datasets, the likeliest first."""

    rows: list[DatasetRow]
    number: int | None
    hash: str


def named_block(text: str, rows: Sequence[DatasetRow], selected: DatasetRow | None) -> NamedBlock | None:
    """The block that ``12``, ``f16204a``, ``name#12`` or ``name#f16204a`` means; None for other texts."""
    match = _BLOCK.fullmatch(text.strip())
    if match is None:
        return None
    if match["name"]:
        found = ranked(match["name"], ((row.name, row) for row in rows))[:_MOST_NAMED]
    else:
        found = [selected] if selected is not None else []
    found = [row for row in found if row.blocks]
    what = match["what"]
    return (
        NamedBlock(found, int(what) if what.isdecimal() else None, what if len(what) > 3 else "")
        if found
        else None
    )


def block_choice(row: DatasetRow, number: int) -> Choice:
    """A block to go to."""
    return Choice(f"block {row.id} {number}", f"block {number} of {row.name}", remark="block")


class Palette(Picker):
    """Finds everything.

    Args:
        choices: all there is, but blocks.
        recent: ids of what was chosen last: that comes first while nothing is typed.
        blocks: the blocks that a text may mean.
        preview: shows the theme under the cursor; None shows the usual one.
    """

    def __init__(
        self, choices: Sequence[Choice], recent: Sequence[str], blocks: Blocks, preview: Preview
    ) -> None:
        by_id = {choice.id: choice for choice in choices}
        lately = [by_id[each] for each in recent if each in by_id]
        first = set(recent)
        self._rest = [choice for choice in choices if choice.id not in first]
        if lately:
            lately = [Choice("", "lately", heading=True), *lately, Choice("", "everything", heading=True)]
        super().__init__("Find", [*lately, *self._rest], typing=True)
        self._texts = [(f"{choice.title} {choice.remark}", choice) for choice in choices]
        self._blocks, self._preview = blocks, preview

    def remarks(self) -> str:
        """What the keys do."""
        return "12, name#12 or a hash: a block · ↑↓ move · ⏎ takes it · esc closes"

    def fitting(self, text: str) -> list[Choice]:
        """Blocks that were named, and what fits best; everything when nothing was typed."""
        self._preview(None)
        return [*self._blocks(text), *ranked(text, self._texts)] if text else self._choices

    def add(self, text: str, choice: Choice) -> None:
        """Puts first what was found for a text, if that still stands there."""
        choices = self.query_one(Choices)
        if self.query_one(Input).value.strip() == text:
            choices.set([choice, *(each for each in choices.choices if each.id != choice.id)])

    def on_line_view_moved(self, message: LineView.Moved) -> None:
        """Shows the theme that the cursor is on."""
        self._preview(_theme(self.query_one(Choices).choice))


class Themes(Picker):
    """Shows each theme while the cursor is on it."""

    def __init__(self, names: Sequence[str], chosen: str, preview: Preview) -> None:
        choices = [Choice(f"theme {name}", name, remark="now" if name == chosen else "") for name in names]
        super().__init__("Themes", choices, typing=False)
        self._preview = preview
        self.cursor = next((at for at, name in enumerate(names) if name == chosen), 0)

    def remarks(self) -> str:
        """What the keys do."""
        return "j k show another · ⏎ keeps it · esc takes the one before"

    def on_line_view_moved(self, message: LineView.Moved) -> None:
        """Shows the theme that the cursor is on."""
        self._preview(_theme(self.query_one(Choices).choice))


def _theme(choice: Choice | None) -> str | None:
    kind, _, name = (choice.id if choice is not None else "").partition(" ")
    return name if kind == "theme" else None
