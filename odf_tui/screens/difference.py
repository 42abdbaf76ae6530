"""What differs: how much of it, what else is other, and the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.views.diff import Difference
from odf_tui import diffwords
from odf_tui.humane import clip, explained, plain
from odf_tui.screens.dialogs import MOVE_KEYS, Dialog, Lines, Reader
from odf_tui.widgets.lines import Span
from odf_tui.windows import NULL

if TYPE_CHECKING:
    from odf_tui.widgets.chunks import Opened
    from odf_tui.widgets.differing import DifferenceRows, DifferenceWindow

_KEYS: Final = "⏎ row · m what else · B other key · d compare · E export · esc"
Lines_ = list[Sequence[Span]]


class DifferenceScreen(Dialog[str]):
    """Shows a difference; ends with ``key``, ``again`` or ``export`` where the person wants that.

    Args:
        title: what it is of.
        window: the rows.
        opened: what is shown of them at first; None when there are none.
        copy: takes what it is and its text.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("enter", "row", "show the row, every value in full", show=False),
        Binding("m", "settings", "show what else differs: columns, licence, sources, query", show=False),
        Binding("B", "dismiss('key')", "compare by other columns", show=False),
        Binding("d", "dismiss('again')", "compare something else", show=False),
        Binding("E", "dismiss('export')", "write the rows to a file", show=False),
        Binding("y", "copy", "copy the row", show=False),
        Binding("h,left", "move('left')", show=False),
        Binding("l,right", "move('right')", show=False),
        *MOVE_KEYS,
    ]

    def __init__(
        self, title: str, window: DifferenceWindow, opened: Opened | None, copy: Callable[[str, str], None]
    ) -> None:
        from odf_tui.widgets.differing import DifferenceRows

        super().__init__()
        self._title, self._window, self._opened, self._copy = title, window, opened, copy
        self._rows: DifferenceRows = DifferenceRows()

    def compose(self) -> ComposeResult:
        """What was compared and how much differs, and the rows."""
        with Vertical(classes="dialog reader difference") as box:
            box.border_title = Content(plain(self._title))
            box.border_subtitle = Content(_KEYS)
            yield Head(head_lines(self._window.found), id="difference-head")
            yield self._rows

    def on_mount(self) -> None:
        """Shows the rows."""
        self._rows.active = True
        if self._opened is None:
            self._rows.say(*_no_rows(self._window.found))
        else:
            self._rows.open(self._opened, stay=False)

    def on_chunk_view_failed(self, message: DifferenceRows.Failed) -> None:
        """Rows cannot be read."""
        self.query_one("#difference-head", Head).set([[(f" {plain(message.error)}", "bad")]])

    def on_line_view_opened(self) -> None:
        """Clicked twice."""
        self.action_row()

    def action_move(self, move: str) -> None:
        """Moves through the rows and columns."""
        self._rows.move(move)

    def action_settings(self) -> None:
        """Columns, and all that describes the two."""
        lines: Lines_ = [[(" ", ""), *line] for line in diffwords.settings(self._window.found)]
        lines = lines or [[(" nothing else differs", "muted")]]
        lines = [[(f" {diffwords.between(self._window.found)}", "muted")], [], *lines]
        self.app.push_screen(
            Reader("What else differs", lines, lambda text: self._copy("what differs", text))
        )

    def action_row(self) -> None:
        """A row in full."""
        if self._opened is not None:
            self.run_worker(self._show_row(self._rows.cursor), group="row", exclusive=True)

    async def _show_row(self, row: int, reader: Reader | None = None) -> None:
        try:
            lines = await asyncio.to_thread(self._row_lines, row)
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self.query_one("#difference-head", Head).set([[(f" {explained(error)}", "bad")]])
            return
        title = f"Row {row + 1} of {self._window.row_count}"
        if reader is not None:
            reader.show(title, lines)
            return
        shown: list[Reader] = []

        def step(by: int) -> None:
            to = self._rows.cursor + by
            if 0 <= to < self._window.row_count:
                self._rows.go(to)
                shown[0].run_worker(self._show_row(to, shown[0]), group="row", exclusive=True)

        shown.append(RowReader(title, lines, lambda text: self._copy("row", text), step))
        self.app.push_screen(shown[0])

    def _row_lines(self, row: int) -> Lines_:
        texts = self._window.texts(row, 1)
        lines: Lines_ = []
        width = max(len(each.name) for each in self._window.found.columns)
        for name, old, new, differs in texts.cells(0, only_changed=False):
            label = f" {plain(name):<{width}} "
            if differs:
                lines += [
                    [(label, "name"), (f" - {_said(old)}", "bad")],
                    [(" " * len(label), ""), (f" + {_said(new)}", "good")],
                ]
            else:
                value = old if texts.changes[0] == "removed" else new
                lines.append([(label, "name"), (f"   {_said(value)}", "muted" if value is None else "")])
        sign = diffwords.SIGNS[texts.changes[0]]
        return [[(f" {sign} {texts.changes[0]}", diffwords.STYLES[sign])], [], *lines]

    def action_copy(self) -> None:
        """Copies the row."""
        if self._opened is not None:
            self.run_worker(self._copy_row(self._rows.cursor), group="copy", exclusive=True)

    async def _copy_row(self, row: int) -> None:
        texts = await asyncio.to_thread(self._window.texts, row, 1)
        self._copy("row", diffwords.text_of(texts.spans(0)))


class Head(Lines):
    """Lines that end in an ellipsis where there is no room for all of them."""

    def spans(self, index: int) -> Sequence[Span]:
        """A line."""
        spans, room = list(super().spans(index)), self.room.width
        while room > 0 and sum(cell_len(text) for text, _ in spans) > room:
            *spans, (text, style) = spans
            left = room - sum(cell_len(text) for text, _ in spans)
            if left > 1:
                return [*spans, (clip(text, left), style)]
        return spans


class RowReader(Reader):
    """A row in full; those beside it are a key away."""

    def remarks(self) -> list[str]:
        """What the keys do."""
        return ["[ row before · ] next"]


def head_lines(found: Difference) -> list[list[Span]]:
    """What was compared, how much differs, and what else does."""
    lines = [
        [(f" {plain(diffwords.sides(found, named=False))}", "strong")],
        [(" ", ""), *diffwords.counts(found)],
        [(f" {diffwords.between(found)}", "muted")],
    ]
    other = diffwords.short_settings(found)
    lines.append([(f" {other}" if other else " nothing else differs", "warn" if other else "muted")])
    return lines


def _no_rows(found: Difference) -> list[list[Span]]:
    if not found.unchanged:
        return [[(" There are no rows on either side.", "muted")]]
    return [[(" No row differs.", "muted")]]


def _said(text: str | None) -> str:
    return NULL if text is None else plain(text)
