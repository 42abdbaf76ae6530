"""A block to read: a transaction in words, with links to what it read and made; any block as YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from textual.binding import Binding, BindingType

from odf_tui.humane import count, moment, plain, size
from odf_tui.screens.details import Text, fact_lines
from odf_tui.screens.dialogs import Reader
from odf_tui.screens.texts import yaml_spans
from odf_tui.state import BlockText, Part, Section, Target, Transaction
from odf_tui.widgets.lines import Span

_NAMES: Final = 12
_STANDING: Final = {
    "flushed": "what was still to come of this query came out, before another took its place",
    "rebuilt": "no input moved: the state was made that this query would have by now",
}


class BlockReader(Reader):
    """Reads a block. In a transaction, down and up walk its links, and enter follows one.

    Args:
        go: follows a link; the dialog is closed then.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "turn", show=False),
        Binding("enter", "follow", show=False),
    ]

    def __init__(
        self,
        title: str,
        dataset: str,
        block: BlockText,
        copy: Callable[[str], None],
        step: Callable[[int], None],
        go: Callable[[Target], None],
    ) -> None:
        super().__init__(title, [], copy, step)
        self._go = go
        self._in_words = True
        self._take(dataset, block)

    def open(self, title: str, dataset: str, block: BlockText) -> None:
        """Shows another block, in words if the one before was."""
        self._take(dataset, block)
        self.show(title, self._page())

    def _take(self, dataset: str, block: BlockText) -> None:
        self._yaml = yaml_spans(block.yaml)
        self._words, self._links = [], {}
        if block.transaction is not None:
            self._words, self._links = transaction_lines(dataset, block.transaction)
        self._chosen = next(iter(self._links), -1)
        self._lines = self._page()

    @property
    def _shows_words(self) -> bool:
        return self._in_words and bool(self._words)

    def _page(self) -> Text:
        if not self._shows_words:
            return self._yaml
        return [marked(line) if at == self._chosen else line for at, line in enumerate(self._words)]

    def remarks(self) -> list[str]:
        """What the keys do."""
        found = ["⏎ goes there"] if self._shows_words and self._links else []
        if self._words:
            found.append("tab YAML" if self._shows_words else "tab words")
        return [*found, *super().remarks()]

    def action_turn(self) -> None:
        """The other page."""
        self._in_words = not self._in_words
        self.show(self._title, self._page())

    def action_move(self, move: str) -> None:
        """To the next link, if there is one in that direction; else it scrolls."""
        links = list(self._links) if self._shows_words else []
        step = {"down": 1, "above": -1}.get(move, 0)
        at = links.index(self._chosen) + step if links else -1
        if not step or not 0 <= at < len(links):
            super().action_move(move)
            return
        self._chosen = links[at]
        self._lines = self._page()
        self._body.set(self._lines)
        top, height = self._body.scroll_offset.y, self._body.room.height
        if not top <= self._chosen < top + height:
            self._body.scroll_to(y=max(self._chosen - height // 2, 0), animate=False)

    def action_follow(self) -> None:
        """Goes where the link leads; closes the dialog anyway."""
        target = self._links.get(self._chosen) if self._shows_words else None
        self.dismiss(None)
        if target is not None:
            self._go(target)


def transaction_lines(dataset: str, transaction: Transaction) -> tuple[Text, Mapping[int, Target]]:
    """A transaction in words, and where its lines lead."""
    lines: Text = [[(" What it made", "title")]]
    links: dict[int, Target] = {}
    if transaction.rows is None:
        lines.append(_fact("rows", "no new ones"))
    else:
        links[len(lines)] = Target(dataset, "data", transaction.rows[0])
        lines.append(_link("rows", f"{_rows(transaction.rows)}, {size(transaction.size)}"))
    lines.append(_fact("watermark", moment(transaction.watermark) or "none yet"))
    lines.append(_fact("state", _state(transaction)))
    if transaction.standing:
        lines.append(_fact("", _STANDING[transaction.standing], "warn"))
    for part in transaction.parts:
        alias = f" as {part.alias}" if part.alias != part.name else ""
        lines += [[], [(f" {plain(part.name)}", "title"), (plain(alias), "muted")]]
        for text, target in _read(part):
            if target is not None:
                links[len(lines)] = target
            lines.append(text)
    if transaction.query:
        lines += [[], *fact_lines(Section("Query", transaction.query))]
    return lines, links


def _read(part: Part) -> list[tuple[list[Span], Target | None]]:
    """What was read of an input, and where that is."""
    rows = "no new ones" if part.rows is None else _rows(part.rows)
    if not part.here:
        return [(_fact("rows", rows), None), (_fact("", "it is not in this workspace", "warn"), None)]
    if part.block is None:
        gone = "its chain does not hold the blocks that were read: it was reset or replaced"
        return [(_fact("rows", rows), None), (_fact("", gone, "warn"), None)]
    found: list[tuple[list[Span], Target | None]] = []
    blocks = f"up to {part.block}" if part.after is None else f"{part.after + 1} to {part.block}"
    if part.after == part.block:
        blocks = f"no new ones after {part.block}"
    found.append((_link("blocks", blocks), Target(part.dataset, "blocks", part.block)))
    if part.rows is None:
        found.append((_fact("rows", rows), None))
    else:
        found.append((_link("rows", rows), Target(part.dataset, "data", part.rows[0])))
    return found


def _rows(offsets: tuple[int, int]) -> str:
    first, last = offsets
    if first == last:
        return f"1, offset {count(first)}"
    return f"{count(last - first + 1)}, offsets {count(first)} to {count(last)}"


def _state(transaction: Transaction) -> str:
    if transaction.state is None:
        return "none: the query needs none"
    return f"{size(transaction.state)} in a checkpoint" + (", as before" if transaction.kept else "")


def _fact(name: str, text: str, style: str = "") -> list[Span]:
    return [(f"   {name:<{_NAMES}}  ", "muted"), (plain(text), style)]


def _link(name: str, text: str) -> list[Span]:
    return [(f"   {name:<{_NAMES}}  ", "muted"), (plain(text), "name"), (" →", "key")]


def marked(line: list[Span]) -> list[Span]:
    """A line with a link, under the cursor."""
    name, (text, _), (arrow, _) = line
    return [name, (text, "cursor"), (arrow, "key")]
