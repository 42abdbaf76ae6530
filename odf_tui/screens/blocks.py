"""A block to read: a transaction in words, any block as YAML, with links to what it read and made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType

from odf_tui.chain_state import REVISED, BlockText, CheckpointFacts, Link, Part, Transaction, Which
from odf_tui.humane import count, moment, plain, size
from odf_tui.screens.details import Text, fact_lines
from odf_tui.screens.dialogs import Reader
from odf_tui.screens.texts import yaml_spans
from odf_tui.state import Section, Target
from odf_tui.widgets.blocks import PROVEN, WRONG
from odf_tui.widgets.lines import Span

if TYPE_CHECKING:
    from odf_tui.screens.reading_blocks import BlockReading

_Page = tuple[Text, Mapping[int, Link]]

_NAMES: Final = 12
_TEXT: Final = 70
_STANDING: Final = {
    "flushed": "what was still to come of this query came out, before another took its place",
    "rebuilt": "no input moved: the state was made that this query would have by now",
}


class BlockReader(Reader):
    """Reads a block: a transaction in words, any block as YAML. What leads on is a link: down and up, and
    tab, walk from one to the next, and enter follows it.

    Attributes:
        dataset, number, which: the block; its number may not be known.

    Args:
        wrong: what a verification found on it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "follow", "go where the link leads", show=False),
        Binding("tab", "next_link(1)", "the next link", show=False),
        Binding("shift+tab", "next_link(-1)", "the link before", show=False),
        Binding("ctrl+o,backspace", "back", "back to where a link was followed from", show=False),
        Binding("w", "turn", "in words, or as YAML", show=False),
        Binding("d", "diff", "what it changed", show=False),
        Binding("b", "bytes", "its bytes, with the fields in them", show=False),
    ]

    def __init__(
        self,
        title: str,
        dataset: str,
        block: BlockText,
        wrong: str,
        copy: Callable[[str], None],
        bench: BlockReading,
    ) -> None:
        super().__init__(title, [], copy, bench.step_block)
        self._bench = bench
        self._in_words = True
        self._take(title, dataset, block, wrong)

    def open(self, title: str, dataset: str, block: BlockText, wrong: str) -> None:
        """Shows another block, in words if the one before was."""
        self._take(title, dataset, block, wrong)
        self.show(title, self._page())

    def _take(self, title: str, dataset: str, block: BlockText, wrong: str) -> None:
        self._title, self._text = title, block.yaml
        self.dataset, self.number = dataset, block.number
        self.which: Which = block.hash if block.number is None or block.problem else block.number
        self._revised = block.kind in REVISED
        self._aside: _Page | None = None
        self._yaml = _yaml_page(block)
        self._words: _Page | None = None
        if block.transaction is not None:
            lines, targets = transaction_lines(dataset, block.transaction)
            self._words = lines, {at: Link("", target) for at, target in targets.items()}
        for text, style in (
            (block.proof and f"{PROVEN} {block.proof}", "muted"),
            (wrong and f"{WRONG} {wrong}", "bad"),
        ):
            if text:
                self._yaml = _below(text, style, self._yaml)
                self._words = self._words and _below(text, style, self._words)
        self._choose_first()
        self._lines = self._page()

    # --- Pages ---

    @property
    def _shown(self) -> _Page:
        if self._aside is not None:
            return self._aside
        return self._words if self._in_words and self._words is not None else self._yaml

    @property
    def _links(self) -> Mapping[int, Link]:
        return self._shown[1]

    def _choose_first(self) -> None:
        self._chosen = next(iter(self._links), -1)

    def _page(self) -> Text:
        return [marked(line) if at == self._chosen else line for at, line in enumerate(self._shown[0])]

    def show_checkpoint(self, facts: CheckpointFacts) -> None:
        """Shows what is known of a checkpoint; back leads to the block again."""
        self._aside = checkpoint_lines(self.dataset, facts)
        self._choose_first()
        self.show(self._title, self._page())

    def remarks(self) -> list[str]:
        """What the keys do."""
        found = ["⏎ follows"] if self._links else []
        if self._aside is not None:
            return [*found, "backspace goes back"]
        if self._words is not None:
            found.append("w YAML" if self._shown is self._words else "w words")
        return [*found, *(["d diff"] if self._revised else []), "b bytes", "[ ] others"]

    def action_turn(self) -> None:
        """The other page."""
        if self._words is None or self._aside is not None:
            return
        self._in_words = not self._in_words
        self._choose_first()
        self.show(self._title, self._page())

    # --- Links ---

    def action_move(self, move: str) -> None:
        """To the next link, if one is in sight in that direction; else it scrolls."""
        step = {"down": 1, "above": -1}.get(move, 0)
        links = list(self._links)
        at = links.index(self._chosen) + step if step and links else -1
        top, height = self._body.scroll_offset.y, self._body.room.height
        if 0 <= at < len(links) and top <= links[at] < top + height:
            self._choose(links[at])
        else:
            super().action_move(move)

    def action_next_link(self, step: int) -> None:
        """To another link, wherever it is; after the last comes the first."""
        links = list(self._links)
        if not links:
            return
        self._choose(links[(links.index(self._chosen) + step) % len(links)])
        top, height = self._body.scroll_offset.y, self._body.room.height
        if not top <= self._chosen < top + height:
            self._body.scroll_to(y=max(self._chosen - height // 2, 0), animate=False)

    def _choose(self, line: int) -> None:
        self._chosen = line
        self._lines = self._page()
        self._body.set(self._lines)

    def action_follow(self) -> None:
        """Goes where the link leads; without links it closes."""
        link = self._links.get(self._chosen)
        if link is None:
            self.dismiss(None)
        else:
            self._bench.follow_link(self, link)

    def action_back(self) -> None:
        """From a checkpoint to its block; else to where a link was followed from."""
        if self._aside is None:
            self._bench.do_back()
            return
        self._aside = None
        self._choose_first()
        self.show(self._title, self._page())

    # --- More of the block ---

    def action_copy(self) -> None:
        """Copies the page; YAML as it is, without arrows."""
        if self._shown is self._yaml and self._text:
            self._copy(self._text)
        else:
            super().action_copy()

    def action_diff(self) -> None:
        """What it changed."""
        self._bench.do_diff_block()

    def action_bytes(self) -> None:
        """Its bytes."""
        self._bench.do_block_bytes()


def _below(text: str, style: str, page: _Page) -> _Page:
    """A page under what a verification found, or the owner says."""
    lines, links = page
    head: Text = [*_paragraph(text, style), []]
    return [*head, *lines], {at + len(head): link for at, link in links.items()}


def _yaml_page(block: BlockText) -> _Page:
    """The block as YAML, with its links; or why it cannot be read."""
    if block.problem:
        problem, _, hint = block.problem.partition("\n")
        lines: Text = [[(f" # {plain(block.hash)}", "muted")], []] if block.hash else []
        lines += [*_paragraph(f"{WRONG} This block cannot be read: {problem}", "bad"), []]
        lines += _paragraph(hint, "")
        if block.hash:
            lines.append([(" b", "key"), (" shows its bytes", "muted")])
        return lines, {}
    text = yaml_spans(block.yaml)
    links: dict[int, Link] = {}
    for at, line in enumerate(text):
        value = line[-1][0].strip() if len(line) > 2 else ""
        link = next((link for link in block.links if link.text == value), None)
        if link is not None:
            links[at] = link
            text[at] = [*line[:-1], (" → ", "key"), (value, "title")]
    return text, links


def _paragraph(text: str, style: str) -> Text:
    return [[(f" {line}", style)] for line in wrap(plain(text), _TEXT)]


def checkpoint_lines(dataset: str, facts: CheckpointFacts) -> _Page:
    """What is known of a checkpoint."""
    lines: Text = [[(" Checkpoint", "title")], _fact("hash", facts.hash)]
    lines.append(_fact("size", size(facts.size) if facts.size is not None else "no block says it"))
    links: dict[int, Link] = {}
    if facts.made_by is None:
        lines.append(_fact("made by", "no block of this chain, as far as was looked", "warn"))
    else:
        links[len(lines)] = Link("", Target(dataset, "blocks", facts.made_by))
        lines.append(
            _link("made by", f"block {facts.made_by}" + ("" if facts.sure else ", or one before it"))
        )
    if facts.on_disk is None:
        lines.append(_fact("file", "is not here: the next pull makes the state again", "warn"))
    elif facts.size is not None and facts.on_disk != facts.size:
        lines.append(_fact("file", f"has {size(facts.on_disk)}: it is damaged", "bad"))
    else:
        lines.append(_fact("file", "is here"))
    return lines, links


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
    at = max((at for at, (_, style) in enumerate(line) if style in ("name", "title")), default=0)
    return [(text, "cursor") if place == at else (text, style) for place, (text, style) in enumerate(line)]
