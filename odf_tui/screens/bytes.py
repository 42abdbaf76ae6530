"""The bytes of a block as hex, with the fields that lie in them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from textwrap import wrap
from typing import Final

from odf_tui.chain_state import BlockBytes
from odf_tui.humane import plain
from odf_tui.screens.dialogs import Lines, Reader
from odf_tui.widgets.blocks import WRONG
from odf_tui.widgets.lines import Span

_NARROW: Final = 120
_MOST_COPIED: Final = 20_000
_HIDDEN: Final = "content."


class HexLines(Lines):
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
        problem = f"{WRONG} {plain(self._block.problem)}" if self._block.problem else ""
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
        spans.append((plain(name) + "  ", "name" if piece.value else "muted"))
        return [*spans, (plain(piece.text), "strong" if piece.value else "muted")]

    def text(self) -> str:
        """All of it; of very many bytes only the hex."""
        if self.count() > _MOST_COPIED:
            return self._block.data.hex()
        return "\n".join(
            "".join(text for text, _ in self.spans(index)).rstrip() for index in range(self.count())
        )


class BytesReader(Reader):
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

    def body(self) -> Lines:
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
