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

from odf_engine.api.model import (
    REVISABLE_EVENTS,
    BlockBytes,
    BlockDocument,
    BlockLink,
    BlockRef,
    CheckpointFacts,
    Revision,
    ShownTransaction,
    Target,
    TransactionInput,
)
from odf_engine.api.text import Section, format_bytes, format_count, format_zoned_time, printable
from odf_tui.panes.blocks.view import FINDING_MARK, PROOF_MARK
from odf_tui.text.format import Span, fit_width, right
from odf_tui.text.highlight import Text, fact_lines, yaml_spans
from odf_tui.widgets.dialogs import MOVE_KEYS, Dialog, TextDialog
from odf_tui.widgets.line_view import LineView, StaticLines

_Page = tuple[Text, Mapping[int, BlockLink]]
_NAME_WIDTH: Final = 12
_TEXT_WIDTH: Final = 70
_REASONS: Final = {
    "flushed": "no new input: the state of the query was flushed before it was replaced",
    "rebuilt": "no new input: the state of the new query was rebuilt",
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
    """Shows a block: a transaction as facts, any block as YAML.

    Hashes and ids that lead to a block, row, dataset or checkpoint are links. Up, down
    and tab select a link; enter follows it.

    Attributes:
        dataset, number, which: the block; its number is None if it is unknown.

    Args:
        title: title of the dialog.
        dataset: id of the dataset.
        block: the block.
        finding: the finding of the newest verification, or "" without one.
        copy: copies a text to the clipboard.
        navigation: runs the actions that lead to another block or dialog.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "follow", "follow the link", show=False),
        Binding("tab", "next_link(1)", "go to the next link", show=False),
        Binding("shift+tab", "next_link(-1)", "go to the previous link", show=False),
        Binding("ctrl+o,backspace", "back", "go back to the origin of the link", show=False),
        Binding("w", "toggle_yaml", "switch between facts and YAML", show=False),
        Binding("d", "diff", "show the changes of the block", show=False),
        Binding("b", "bytes", "show the bytes of the block and their fields", show=False),
    ]

    def __init__(
        self,
        title: str,
        dataset: str,
        block: BlockDocument,
        finding: str,
        copy: Callable[[str], None],
        navigation: BlockNavigation,
    ) -> None:
        super().__init__(title, [], copy, navigation.step_block)
        self._navigation = navigation
        self._shows_words = True
        self._load(title, dataset, block, finding)

    def open(self, title: str, dataset: str, block: BlockDocument, finding: str) -> None:
        """Show another block, in the same format if it has one."""
        self._load(title, dataset, block, finding)
        self.show(title, self._page())

    def _load(self, title: str, dataset: str, block: BlockDocument, finding: str) -> None:
        self._title, self._text = title, block.yaml
        self.dataset, self.number = dataset, block.number
        self.which: BlockRef = block.hash if block.number is None or block.problem else block.number
        self._is_revisable = block.kind in REVISABLE_EVENTS
        self._checkpoint_page: _Page | None = None
        self._yaml = _yaml_page(block)
        self._words: _Page | None = None
        if block.transaction is not None:
            lines, targets = transaction_lines(dataset, block.transaction)
            self._words = lines, {at: BlockLink("", target) for at, target in targets.items()}
        for text, style in (
            (block.proof and f"{PROOF_MARK} {block.proof}", "muted"),
            (finding and f"{FINDING_MARK} {finding}", "bad"),
        ):
            if text:
                self._yaml = _prepend(text, style, self._yaml)
                self._words = self._words and _prepend(text, style, self._words)
        self._select_first()
        self._lines = self._page()

    @property
    def _shown(self) -> _Page:
        if self._checkpoint_page is not None:
            return self._checkpoint_page
        return self._words if self._shows_words and self._words is not None else self._yaml

    @property
    def _links(self) -> Mapping[int, BlockLink]:
        return self._shown[1]

    def _select_first(self) -> None:
        self._selected = next(iter(self._links), -1)

    def _page(self) -> Text:
        return [mark_link(line) if at == self._selected else line for at, line in enumerate(self._shown[0])]

    def show_checkpoint(self, facts: CheckpointFacts) -> None:
        """Show the facts about a checkpoint. Back returns to the block."""
        self._checkpoint_page = checkpoint_lines(self.dataset, facts)
        self._select_first()
        self.show(self._title, self._page())

    def describe_keys(self) -> list[str]:
        """Return the hints on the keys."""
        hints = ["⏎ follows"] if self._links else []
        if self._checkpoint_page is not None:
            return [*hints, "backspace goes back"]
        if self._words is not None:
            hints.append("w YAML" if self._shown is self._words else "w facts")
        return [*hints, *(["d diff"] if self._is_revisable else []), "b bytes", "[ ] others"]

    def action_toggle_yaml(self) -> None:
        """Switch between the facts of a transaction and YAML."""
        if self._words is None or self._checkpoint_page is not None:
            return
        self._shows_words = not self._shows_words
        self._select_first()
        self.show(self._title, self._page())

    def action_move(self, move: str) -> None:
        """Select the next visible link in a direction; without one, scroll."""
        step = {"down": 1, "above": -1}.get(move, 0)
        links = list(self._links)
        at = links.index(self._selected) + step if step and links else -1
        top, height = self._body.scroll_offset.y, self._body.room.height
        if 0 <= at < len(links) and top <= links[at] < top + height:
            self._select(links[at])
        else:
            super().action_move(move)

    def action_next_link(self, step: int) -> None:
        """Select the next or previous link, and scroll to it. It wraps at the ends."""
        links = list(self._links)
        if not links:
            return
        self._select(links[(links.index(self._selected) + step) % len(links)])
        top, height = self._body.scroll_offset.y, self._body.room.height
        if not top <= self._selected < top + height:
            self._body.scroll_to(y=max(self._selected - height // 2, 0), animate=False)

    def _select(self, line: int) -> None:
        self._selected = line
        self._lines = self._page()
        self._body.set(self._lines)

    def action_follow(self) -> None:
        """Follow the selected link; without links, close."""
        link = self._links.get(self._selected)
        if link is None:
            self.dismiss(None)
        else:
            self._navigation.follow_link(self, link)

    def action_back(self) -> None:
        """Return from a checkpoint to its block, else to where a link was followed."""
        if self._checkpoint_page is None:
            self._navigation.back()
            return
        self._checkpoint_page = None
        self._select_first()
        self.show(self._title, self._page())

    def action_copy(self) -> None:
        """Copy the page; YAML without the marks of links."""
        if self._shown is self._yaml and self._text:
            self._copy(self._text)
        else:
            super().action_copy()

    def action_diff(self) -> None:
        """Show what the block changed."""
        self._navigation.open_revision()

    def action_bytes(self) -> None:
        """Show the bytes of the block."""
        self._navigation.open_bytes()


def _prepend(text: str, style: str, page: _Page) -> _Page:
    """Return a page below a finding or a signature of the owner."""
    lines, links = page
    head: Text = [*_paragraph(text, style), []]
    return [*head, *lines], {at + len(head): link for at, link in links.items()}


def _yaml_page(block: BlockDocument) -> _Page:
    """Return the block as YAML with its links, or why it cannot be read."""
    if block.problem:
        problem, _, hint = block.problem.partition("\n")
        lines: Text = [[(f" # {printable(block.hash)}", "muted")], []] if block.hash else []
        lines += [*_paragraph(f"{FINDING_MARK} this block cannot be read: {problem}", "bad"), []]
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
    return [[(f" {line}", style)] for line in wrap(printable(text), _TEXT_WIDTH)]


def checkpoint_lines(dataset: str, facts: CheckpointFacts) -> _Page:
    """Return the facts about a checkpoint, and their links."""
    lines: Text = [[(" Checkpoint", "title")], _fact_line("hash", facts.hash)]
    lines.append(_fact_line("size", format_bytes(facts.size) if facts.size is not None else "unknown"))
    links: dict[int, BlockLink] = {}
    if facts.made_by is None:
        lines.append(_fact_line("created by", "not found in the blocks that were searched", "warn"))
    else:
        links[len(lines)] = BlockLink("", Target(dataset, "blocks", facts.made_by))
        lines.append(
            _link_line("created by", f"block {facts.made_by}" + ("" if facts.sure else " or earlier"))
        )
    if facts.on_disk is None:
        lines.append(_fact_line("file", "missing: the next pull rebuilds the state", "warn"))
    elif facts.size is not None and facts.on_disk != facts.size:
        lines.append(_fact_line("file", f"damaged: its size is {format_bytes(facts.on_disk)}", "bad"))
    else:
        lines.append(_fact_line("file", "present"))
    return lines, links


def transaction_lines(dataset: str, transaction: ShownTransaction) -> tuple[Text, Mapping[int, Target]]:
    """Return a transaction as facts, and the targets of its lines."""
    lines: Text = [[(" Output", "title")]]
    links: dict[int, Target] = {}
    if transaction.rows is None:
        lines.append(_fact_line("rows", "no new rows"))
    else:
        links[len(lines)] = Target(dataset, "data", transaction.rows[0])
        lines.append(
            _link_line("rows", f"{_offsets_text(transaction.rows)}, {format_bytes(transaction.size)}")
        )
    lines.append(_fact_line("watermark", format_zoned_time(transaction.watermark) or "none yet"))
    lines.append(_fact_line("state", _state_text(transaction)))
    if transaction.standing:
        lines.append(_fact_line("", _REASONS[transaction.standing], "warn"))
    for part in transaction.parts:
        alias = f" as {part.alias}" if part.alias != part.name else ""
        lines += [[], [(f" {printable(part.name)}", "title"), (printable(alias), "muted")]]
        for text, target in _input_lines(part):
            if target is not None:
                links[len(lines)] = target
            lines.append(text)
    if transaction.query:
        lines += [[], *fact_lines(Section("Query", transaction.query))]
    return lines, links


def _input_lines(part: TransactionInput) -> list[tuple[list[Span], Target | None]]:
    """Return what a transaction read of an input: lines, each with its target."""
    rows = "no new rows" if part.rows is None else _offsets_text(part.rows)
    if not part.here:
        return [
            (_fact_line("rows", rows), None),
            (_fact_line("", "this input is not in this workspace", "warn"), None),
        ]
    if part.block is None:
        problem = "its chain lacks the blocks that were read: it was reset or replaced"
        return [(_fact_line("rows", rows), None), (_fact_line("", problem, "warn"), None)]
    lines: list[tuple[list[Span], Target | None]] = []
    blocks = f"up to {part.block}" if part.after is None else f"{part.after + 1} to {part.block}"
    if part.after == part.block:
        blocks = f"no new blocks after {part.block}"
    lines.append((_link_line("blocks", blocks), Target(part.dataset, "blocks", part.block)))
    if part.rows is None:
        lines.append((_fact_line("rows", rows), None))
    else:
        lines.append((_link_line("rows", rows), Target(part.dataset, "data", part.rows[0])))
    return lines


def _offsets_text(offsets: tuple[int, int]) -> str:
    first, last = offsets
    if first == last:
        return f"1, offset {format_count(first)}"
    return f"{format_count(last - first + 1)}, offsets {format_count(first)} to {format_count(last)}"


def _state_text(transaction: ShownTransaction) -> str:
    if transaction.state is None:
        return "none: stateless query"
    return f"{format_bytes(transaction.state)} in a checkpoint" + (
        ", unchanged" if transaction.state_unchanged else ""
    )


def _fact_line(name: str, text: str, style: str = "") -> list[Span]:
    return [(f"   {name:<{_NAME_WIDTH}}  ", "muted"), (printable(text), style)]


def _link_line(name: str, text: str) -> list[Span]:
    return [(f"   {name:<{_NAME_WIDTH}}  ", "muted"), (printable(text), "name"), (" →", "key")]


def mark_link(line: list[Span]) -> list[Span]:
    """Highlight the link of a line."""
    at = max((at for at, (_, style) in enumerate(line) if style in ("name", "title")), default=0)
    return [(text, "cursor") if index == at else (text, style) for index, (text, style) in enumerate(line)]


_NARROW: Final = 120
_MAX_COPIED: Final = 20_000
_HIDDEN_PREFIX: Final = "content."


class HexLines(StaticLines):
    """A hex dump of a block.

    Lines are rendered on demand: a block may have millions of them.
    """

    headed = True

    def __init__(self) -> None:
        super().__init__()
        self._block = BlockBytes(None, "", b"", ())
        self._starts: list[int] = []
        self._problem: list[str] = []

    def open(self, block: BlockBytes) -> None:
        """Show the bytes of a block."""
        self._block = block
        self._arrange()
        self.scroll_to(0, 0, animate=False)

    def on_resize(self) -> None:
        """Fit the number of bytes in a line to the width."""
        self._arrange()

    @property
    def bytes_per_line(self) -> int:
        """The number of bytes in a line."""
        return 8 if self.room.width < _NARROW else 16

    def _arrange(self) -> None:
        step = self.bytes_per_line
        heights = [-(-(piece.end - piece.start) // step) for piece in self._block.pieces]
        self._starts = [0, *accumulate(heights)]
        problem = f"{FINDING_MARK} {printable(self._block.problem)}" if self._block.problem else ""
        self._problem = wrap(problem, max(self.room.width - 2, 20))
        self.reset()

    def count(self) -> int:
        """Return the number of lines, including the problem above them."""
        return (self._starts[-1] if self._starts else 0) + len(self._problem)

    def widest(self) -> int:
        """Return 0: lines are truncated, not scrolled."""
        return 0

    def header(self) -> Sequence[Span]:
        """Return the names of the columns."""
        step = self.bytes_per_line
        return [(f" {'offset':<6}  {'bytes':<{3 * step}} {'text':<{step}}  field", "head")]

    def spans(self, index: int) -> Sequence[Span]:
        """Return offset, bytes, text and field of a line."""
        if index < len(self._problem):
            return [(f" {self._problem[index]}", "bad")]
        index -= len(self._problem)
        step = self.bytes_per_line
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
        name = piece.path.removeprefix(_HIDDEN_PREFIX) or "–"
        room = self.room.width - sum(len(text) for text, _ in spans)
        max_width = max(room * 3 // 5, 2)
        if len(name) > max_width:
            name = "…" + name[1 - max_width :]  # the end of a path is the most specific
        spans.append((printable(name) + "  ", "name" if piece.value else "muted"))
        return [*spans, (printable(piece.text), "strong" if piece.value else "muted")]

    def text(self) -> str:
        """Return all lines as text; of more than _MAX_COPIED lines only the hex digits."""
        if self.count() > _MAX_COPIED:
            return self._block.data.hex()
        return "\n".join(
            "".join(text for text, _ in self.spans(index)).rstrip() for index in range(self.count())
        )


class BlockBytesDialog(TextDialog):
    """Shows the bytes of blocks.

    Args:
        title: title of the dialog.
        block: the bytes.
        copy: copies a text to the clipboard.
        go: shows the bytes of another block, by its number.
    """

    def __init__(
        self, title: str, block: BlockBytes, copy: Callable[[str], None], go: Callable[[int], None]
    ) -> None:
        self._hex = HexLines()
        super().__init__(title, [], copy, self._step_by)
        self._block, self._go = block, go

    def body(self) -> StaticLines:
        """Return the widget with the bytes."""
        return self._hex

    def on_mount(self) -> None:
        """Show the bytes."""
        self.open(self._title, self._block)

    def open(self, title: str, block: BlockBytes) -> None:
        """Show the bytes of another block."""
        self._block = block
        self.show(title, [])
        self._hex.open(block)

    def action_copy(self) -> None:
        """Copy all bytes."""
        self._copy(self._hex.text())

    def _step_by(self, by: int) -> None:
        if self._block.number is not None:
            self._go(self._block.number + by)


class _KindList(LineView):
    """The kinds of events; selected ones are marked."""

    def __init__(self, kinds: Mapping[str, int], chosen: Sequence[str]) -> None:
        super().__init__(id="choices")
        self.kinds = list(kinds.items())
        self.chosen = {kind for kind in chosen if kind in kinds}
        self.active = True

    def on_mount(self) -> None:
        """Show the kinds."""
        self.reset()

    def count(self) -> int:
        """Return the number of kinds."""
        return len(self.kinds)

    def spans(self, index: int) -> Sequence[Span]:
        """Return the mark, the kind and its number of blocks."""
        kind, number = self.kinds[index]
        mark = "✓" if kind in self.chosen else " "
        return [(f" {mark} ", "good"), (fit_width(kind, 24), ""), (right(format_count(number), 12), "muted")]

    def toggle(self) -> None:
        """Select or deselect the kind under the cursor."""
        self.chosen ^= {self.kinds[self.cursor][0]}
        self.refresh_line(self.cursor)


class EventKindsDialog(Dialog[tuple[str, ...]]):
    """Selects kinds of events. Its result is the selected kinds; an empty selection means all.

    Args:
        kinds: number of blocks of each kind.
        chosen: the kinds that are selected at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "choose", "select or deselect the kind", show=False),
        Binding("enter", "apply", "show the selected kinds, or only this one", show=False),
        Binding("a", "all", "show all kinds", show=False),
        *MOVE_KEYS,
        Binding("escape,q", "dismiss(None)", "close", show=False),
    ]

    def __init__(self, kinds: Mapping[str, int], chosen: Sequence[str]) -> None:
        super().__init__()
        self._list = _KindList(kinds, chosen)

    def compose(self) -> ComposeResult:
        """Yield the list."""
        with Vertical(classes="dialog question") as box:
            box.border_title = Content("Kinds of events")
            box.border_subtitle = Content("space selects · ⏎ shows · a all · esc closes")
            yield self._list

    def on_line_view_opened(self, event: events.Event) -> None:
        """Close with the selection after a double click."""
        event.stop()
        self.action_apply()

    def action_choose(self) -> None:
        """Select or deselect a kind, and move to the next."""
        self._list.toggle()
        self._list.move("down")

    def action_all(self) -> None:
        """Close with all kinds."""
        self.dismiss(())

    def action_apply(self) -> None:
        """Close with the selected kinds, or with the one under the cursor if none is selected."""
        names = [kind for kind, _ in self._list.kinds]
        chosen = [kind for kind in names if kind in self._list.chosen] or [names[self._list.cursor]]
        self.dismiss(() if len(chosen) == len(names) else tuple(chosen))

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self._list.move(move)


_STYLES: Final = {"+": "good", "-": "bad", "~": "warn"}


class RevisionDialog(TextDialog):
    """Shows a revision: the changes of a block against the previous block of its kind.

    Args:
        title: title of the dialog.
        revision: the revision.
        copy: copies a text to the clipboard.
        go: shows the revision of another block, by its number.
    """

    def __init__(
        self, title: str, revision: Revision, copy: Callable[[str], None], go: Callable[[int], None]
    ) -> None:
        super().__init__(title, revision_lines(revision), copy, self._step_by)
        self._revision, self._go = revision, go

    def open(self, title: str, revision: Revision) -> None:
        """Show another revision."""
        self._revision = revision
        self.show(title, revision_lines(revision))

    def describe_keys(self) -> list[str]:
        """Return the hints on the keys for older and newer revisions, if there are any."""
        older = ["[ older"] if self._revision.older is not None else []
        return [*older, *(["] newer"] if self._revision.newer is not None else [])]

    def _step_by(self, by: int) -> None:
        other = self._revision.newer if by > 0 else self._revision.older
        if other is not None:
            self._go(other)


def revision_lines(revision: Revision) -> Text:
    """Return the changed lines, each after its sign."""
    if revision.before is None:
        head = "first block of this kind: no previous version"
    else:
        head = f"block {revision.number} compared with block {revision.before}"
    lines: Text = [[(f" {head}", "muted")], []]
    lines += [
        [(f" {printable(line)}", _STYLES.get(line[:1], "" if line.strip() != "…" else "muted"))]
        for line in revision.lines
    ]
    return lines
