"""Dialogs about a block: text with links, revision, bytes, kinds of events."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from textwrap import wrap
from typing import ClassVar, Final, Protocol

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_tui.panes.blocks.view import PROVEN, WRONG
from odf_tui.state.model import (
    REVISABLE_EVENTS,
    BlockBytes,
    BlockDocument,
    BlockLink,
    BlockRef,
    CheckpointFacts,
    Revision,
    Target,
    Transaction,
    TransactionInput,
)
from odf_tui.text.format import (
    Section,
    Span,
    fit_width,
    format_bytes,
    format_count,
    format_time,
    printable,
    right,
)
from odf_tui.text.highlight import Text, fact_lines, yaml_spans
from odf_tui.widgets.dialogs import Dialog, TextDialog
from odf_tui.widgets.line_view import LineView, StaticLines

_Page = tuple[Text, Mapping[int, BlockLink]]
_NAMES: Final = 12
_TEXT: Final = 70
_STANDING: Final = {
    "flushed": "what was still to come of this query came out, before another took its place",
    "rebuilt": "no input moved: the state was made that this query would have by now",
}


class BlockNavigation(Protocol):
    """The actions of a block dialog that lead to another block or dialog."""

    def step_block(self, by: int) -> None:
        """Show the next newer (1) or older (-1) block."""

    def follow_link(self, reader: BlockDialog, link: BlockLink) -> None:
        """Go to the target of a link."""

    def back(self) -> None:
        """Go back to where the last link was followed."""

    def open_revision(self) -> None:
        """Show what the block changed."""

    def open_bytes(self) -> None:
        """Show the bytes of the block."""


class BlockDialog(TextDialog):
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
        block: BlockDocument,
        wrong: str,
        copy: Callable[[str], None],
        navigation: BlockNavigation,
    ) -> None:
        super().__init__(title, [], copy, navigation.step_block)
        self._navigation = navigation
        self._in_words = True
        self._take(title, dataset, block, wrong)

    def open(self, title: str, dataset: str, block: BlockDocument, wrong: str) -> None:
        """Shows another block, in words if the one before was."""
        self._take(title, dataset, block, wrong)
        self.show(title, self._page())

    def _take(self, title: str, dataset: str, block: BlockDocument, wrong: str) -> None:
        self._title, self._text = title, block.yaml
        self.dataset, self.number = dataset, block.number
        self.which: BlockRef = block.hash if block.number is None or block.problem else block.number
        self._revised = block.kind in REVISABLE_EVENTS
        self._aside: _Page | None = None
        self._yaml = _yaml_page(block)
        self._words: _Page | None = None
        if block.transaction is not None:
            lines, targets = transaction_lines(dataset, block.transaction)
            self._words = lines, {at: BlockLink("", target) for at, target in targets.items()}
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
    def _links(self) -> Mapping[int, BlockLink]:
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

    def describe_keys(self) -> list[str]:
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
            self._navigation.follow_link(self, link)

    def action_back(self) -> None:
        """From a checkpoint to its block; else to where a link was followed from."""
        if self._aside is None:
            self._navigation.back()
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
        self._navigation.open_revision()

    def action_bytes(self) -> None:
        """Its bytes."""
        self._navigation.open_bytes()


def _below(text: str, style: str, page: _Page) -> _Page:
    """A page under what a verification found, or the owner says."""
    lines, links = page
    head: Text = [*_paragraph(text, style), []]
    return [*head, *lines], {at + len(head): link for at, link in links.items()}


def _yaml_page(block: BlockDocument) -> _Page:
    """The block as YAML, with its links; or why it cannot be read."""
    if block.problem:
        problem, _, hint = block.problem.partition("\n")
        lines: Text = [[(f" # {printable(block.hash)}", "muted")], []] if block.hash else []
        lines += [*_paragraph(f"{WRONG} This block cannot be read: {problem}", "bad"), []]
        lines += _paragraph(hint, "")
        if block.hash:
            lines.append([(" b", "key"), (" shows its bytes", "muted")])
        return lines, {}
    text = yaml_spans(block.yaml)
    links: dict[int, BlockLink] = {}
    for at, line in enumerate(text):
        value = line[-1][0].strip() if len(line) > 2 else ""
        link = next((link for link in block.links if link.text == value), None)
        if link is not None:
            links[at] = link
            text[at] = [*line[:-1], (" → ", "key"), (value, "title")]
    return text, links


def _paragraph(text: str, style: str) -> Text:
    return [[(f" {line}", style)] for line in wrap(printable(text), _TEXT)]


def checkpoint_lines(dataset: str, facts: CheckpointFacts) -> _Page:
    """What is known of a checkpoint."""
    lines: Text = [[(" Checkpoint", "title")], _fact("hash", facts.hash)]
    lines.append(_fact("size", format_bytes(facts.size) if facts.size is not None else "no block says it"))
    links: dict[int, BlockLink] = {}
    if facts.made_by is None:
        lines.append(_fact("made by", "no block of this chain, as far as was looked", "warn"))
    else:
        links[len(lines)] = BlockLink("", Target(dataset, "blocks", facts.made_by))
        lines.append(
            _link("made by", f"block {facts.made_by}" + ("" if facts.sure else ", or one before it"))
        )
    if facts.on_disk is None:
        lines.append(_fact("file", "is not here: the next pull makes the state again", "warn"))
    elif facts.size is not None and facts.on_disk != facts.size:
        lines.append(_fact("file", f"has {format_bytes(facts.on_disk)}: it is damaged", "bad"))
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
        lines.append(_link("rows", f"{_rows(transaction.rows)}, {format_bytes(transaction.size)}"))
    lines.append(_fact("watermark", format_time(transaction.watermark) or "none yet"))
    lines.append(_fact("state", _state(transaction)))
    if transaction.standing:
        lines.append(_fact("", _STANDING[transaction.standing], "warn"))
    for part in transaction.parts:
        alias = f" as {part.alias}" if part.alias != part.name else ""
        lines += [[], [(f" {printable(part.name)}", "title"), (printable(alias), "muted")]]
        for text, target in _read(part):
            if target is not None:
                links[len(lines)] = target
            lines.append(text)
    if transaction.query:
        lines += [[], *fact_lines(Section("Query", transaction.query))]
    return lines, links


def _read(part: TransactionInput) -> list[tuple[list[Span], Target | None]]:
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
        return f"1, offset {format_count(first)}"
    return f"{format_count(last - first + 1)}, offsets {format_count(first)} to {format_count(last)}"


def _state(transaction: Transaction) -> str:
    if transaction.state is None:
        return "none: the query needs none"
    return f"{format_bytes(transaction.state)} in a checkpoint" + (", as before" if transaction.kept else "")


def _fact(name: str, text: str, style: str = "") -> list[Span]:
    return [(f"   {name:<{_NAMES}}  ", "muted"), (printable(text), style)]


def _link(name: str, text: str) -> list[Span]:
    return [(f"   {name:<{_NAMES}}  ", "muted"), (printable(text), "name"), (" →", "key")]


def marked(line: list[Span]) -> list[Span]:
    """A line with a link, under the cursor."""
    at = max((at for at, (_, style) in enumerate(line) if style in ("name", "title")), default=0)
    return [(text, "cursor") if place == at else (text, style) for place, (text, style) in enumerate(line)]


_NARROW: Final = 120
_MAX_COPIED: Final = 20_000
_HIDDEN: Final = "content."


class HexLines(StaticLines):
    """Lines of bytes, made when they are seen: a block may have millions of them."""

    headed = True

    def __init__(self) -> None:
        super().__init__()
        self._block = BlockBytes(None, "", b"", ())
        self._starts: list[int] = []
        self._problem: list[str] = []

    def open(self, block: BlockBytes) -> None:
        """Shows the bytes of a block."""
        self._block = block
        self._arrange()
        self.scroll_to(0, 0, animate=False)

    def on_resize(self) -> None:
        """There is room for more or fewer bytes in a line."""
        self._arrange()

    @property
    def per_line(self) -> int:
        """How many bytes a line shows."""
        return 8 if self.room.width < _NARROW else 16

    def _arrange(self) -> None:
        step = self.per_line
        heights = [-(-(piece.end - piece.start) // step) for piece in self._block.pieces]
        self._starts = [0, *accumulate(heights)]
        problem = f"{WRONG} {printable(self._block.problem)}" if self._block.problem else ""
        self._problem = wrap(problem, max(self.room.width - 2, 20))
        self.reset()

    def count(self) -> int:
        """Lines; what is wrong comes first."""
        return (self._starts[-1] if self._starts else 0) + len(self._problem)

    def widest(self) -> int:
        """They are cut."""
        return 0

    def header(self) -> Sequence[Span]:
        """Names of the columns."""
        step = self.per_line
        return [(f" {'at':<6}  {'bytes':<{3 * step}} {'text':<{step}}  field", "head")]

    def spans(self, index: int) -> Sequence[Span]:
        """Where, the bytes, what they are as text, the field."""
        if index < len(self._problem):
            return [(f" {self._problem[index]}", "bad")]
        index -= len(self._problem)
        step = self.per_line
        at = bisect_right(self._starts, index) - 1
        piece = self._block.pieces[at]
        start = piece.start + (index - self._starts[at]) * step
        data = self._block.data[start : min(start + step, piece.end)]
        style = "" if piece.value else "muted"
        ascii_text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in data)
        spans: list[Span] = [
            (f" {start:06x}  ", "muted"),
            (f"{data.hex(' '):<{3 * step}} ", style),
            (f"{ascii_text:<{step}}  ", style),
        ]
        if start != piece.start:
            return spans
        name = piece.path.removeprefix(_HIDDEN) or "–"
        room = self.room.width - sum(len(text) for text, _ in spans)
        most = max(room * 3 // 5, 2)
        if len(name) > most:
            name = "…" + name[1 - most :]  # its end tells most
        spans.append((printable(name) + "  ", "name" if piece.value else "muted"))
        return [*spans, (printable(piece.text), "strong" if piece.value else "muted")]

    def text(self) -> str:
        """All of it; of very many bytes only the hex."""
        if self.count() > _MAX_COPIED:
            return self._block.data.hex()
        return "\n".join(
            "".join(text for text, _ in self.spans(index)).rstrip() for index in range(self.count())
        )


class BlockBytesDialog(TextDialog):
    """Reads the bytes of blocks.

    Args:
        go: shows the bytes of another block, by its number.
    """

    def __init__(
        self, title: str, block: BlockBytes, copy: Callable[[str], None], go: Callable[[int], None]
    ) -> None:
        self._hex = HexLines()
        super().__init__(title, [], copy, self._go_by)
        self._block, self._go = block, go

    def body(self) -> StaticLines:
        """The bytes."""
        return self._hex

    def on_mount(self) -> None:
        """Shows the bytes."""
        self.open(self._title, self._block)

    def open(self, title: str, block: BlockBytes) -> None:
        """Shows the bytes of another block."""
        self._block = block
        self.show(title, [])
        self._hex.open(block)

    def action_copy(self) -> None:
        """Copies all of it."""
        self._copy(self._hex.text())

    def _go_by(self, by: int) -> None:
        if self._block.number is not None:
            self._go(self._block.number + by)


class _Kinds(LineView):
    """The kinds, those that are chosen with a mark."""

    def __init__(self, kinds: Mapping[str, int], chosen: Sequence[str]) -> None:
        super().__init__(id="choices")
        self.kinds = list(kinds.items())
        self.chosen = {kind for kind in chosen if kind in kinds}
        self.active = True

    def on_mount(self) -> None:
        """Shows them."""
        self.reset()

    def count(self) -> int:
        """How many."""
        return len(self.kinds)

    def spans(self, index: int) -> Sequence[Span]:
        """A mark, the kind, how many there are."""
        kind, number = self.kinds[index]
        mark = "✓" if kind in self.chosen else " "
        return [(f" {mark} ", "good"), (fit_width(kind, 24), ""), (right(format_count(number), 12), "muted")]

    def toggle(self) -> None:
        """Chooses the kind under the cursor, or takes that back."""
        self.chosen ^= {self.kinds[self.cursor][0]}
        self.refresh_line(self.cursor)


class EventKindsDialog(Dialog[tuple[str, ...]]):
    """Chooses some of the kinds of events; ends with them, or with none for all.

    Args:
        kinds: how many blocks there are of each.
        chosen: those that are shown now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "choose", "choose this one too, or not", show=False),
        Binding("enter", "apply", "show those that are chosen, or this one alone", show=False),
        Binding("a", "all", "show all", show=False),
        Binding("j,down", "move('down')", show=False),
        Binding("k,up", "move('above')", show=False),
        Binding("g,home", "move('first')", show=False),
        Binding("G,end", "move('last')", show=False),
        Binding("escape,q", "dismiss(None)", "close", show=False),
    ]

    def __init__(self, kinds: Mapping[str, int], chosen: Sequence[str]) -> None:
        super().__init__()
        self._list = _Kinds(kinds, chosen)

    def compose(self) -> ComposeResult:
        """The kinds."""
        with Vertical(classes="dialog question") as box:
            box.border_title = Content("Kinds of events")
            box.border_subtitle = Content("space chooses · ⏎ shows · a all · esc closes")
            yield self._list

    def on_line_view_opened(self, event: events.Event) -> None:
        """Clicked twice."""
        event.stop()
        self.action_apply()

    def action_choose(self) -> None:
        """Chooses, and goes on to the next."""
        self._list.toggle()
        self._list.move("down")

    def action_all(self) -> None:
        """All kinds."""
        self.dismiss(())

    def action_apply(self) -> None:
        """Those that are chosen."""
        names = [kind for kind, _ in self._list.kinds]
        chosen = [kind for kind in names if kind in self._list.chosen] or [names[self._list.cursor]]
        self.dismiss(() if len(chosen) == len(names) else tuple(chosen))

    def action_move(self, move: str) -> None:
        """Moves the cursor."""
        self._list.move(move)


_STYLES: Final = {"+": "good", "-": "bad", "~": "warn"}


class RevisionDialog(TextDialog):
    """Reads revisions; the older and the newer one of the same kind are a key away.

    Args:
        go: shows the revision of another block.
    """

    def __init__(
        self, title: str, revision: Revision, copy: Callable[[str], None], go: Callable[[int], None]
    ) -> None:
        super().__init__(title, revision_lines(revision), copy, self._go_by)
        self._revision, self._go = revision, go

    def open(self, title: str, revision: Revision) -> None:
        """Shows another revision."""
        self._revision = revision
        self.show(title, revision_lines(revision))

    def describe_keys(self) -> list[str]:
        """What the keys do, as far as there are others."""
        older = ["[ older"] if self._revision.older is not None else []
        return [*older, *(["] newer"] if self._revision.newer is not None else [])]

    def _go_by(self, by: int) -> None:
        other = self._revision.newer if by > 0 else self._revision.older
        if other is not None:
            self._go(other)


def revision_lines(revision: Revision) -> Text:
    """What is other, each line after its sign."""
    if revision.before is None:
        head = "the first of its kind: nothing was there before"
    else:
        head = f"block {revision.number} compared with block {revision.before}"
    lines: Text = [[(f" {head}", "muted")], []]
    lines += [
        [(f" {printable(line)}", _STYLES.get(line[:1], "" if line.strip() != "…" else "muted"))]
        for line in revision.lines
    ]
    return lines
