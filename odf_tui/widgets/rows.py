"""A table of any number of rows: it draws only what is in the window, and reads only what it draws."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from rich.cells import cell_len
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from odf_tui.humane import clip, said
from odf_tui.source import RowWindow, Source
from odf_tui.widgets.lines import LineView, Span, right

if TYPE_CHECKING:
    from odf_tui.widgets.cells import Chunk, Columns

CHUNK: Final = 256
KEPT: Final = 32
MAX_WIDTH: Final = 36
_SPACE: Final = 2


class Opened(msgspec.Struct, frozen=True):
    """Rows that can be shown: the window over them, its columns, and its first chunk."""

    window: RowWindow
    columns: Columns
    first: Chunk


def open_window(window: RowWindow) -> Opened:
    """Reads what is needed to show a window; in a thread."""
    from odf_tui.widgets.cells import Chunk, Columns  # brings Arrow, off the event loop

    first = window.window(0, CHUNK)
    return Opened(window, Columns(window), Chunk(first, window.system_columns))


def open_rows(source: Source, dataset: str) -> Opened | None:
    """Opens the rows of a dataset; in a thread. None when there are none."""
    window = source.rows(dataset)
    return open_window(window) if window.row_count else None


class RowsView(LineView):
    """The table. Chunks that are not here are read in a thread, and show as ellipses until then."""

    headed = True

    @dataclass
    class ChunkRead(Message):
        """A chunk was read, or could not be."""

        window: RowWindow
        number: int
        chunk: Chunk | None
        error: str = ""

    @dataclass
    class Failed(Message):
        """Rows could not be read."""

        error: str

    def __init__(self) -> None:
        super().__init__(id="rows")
        self.column = 0
        self._opened: Opened | None = None
        self._words: Sequence[Sequence[Span]] = [[(" Rows show here.", "muted")]]
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._widths: list[int] = []
        self._left = 0  # the first column that is shown behind the fixed ones
        self._wanted: list[int] = []
        self._bad: set[int] = set()
        self._reading = False

    @property
    def opened(self) -> Opened | None:
        """What is shown."""
        return self._opened

    def open(self, opened: Opened, *, stay: bool) -> None:
        """Shows rows; with ``stay`` the cursor and the columns stay where they are."""
        if not stay or self._opened is None or self._opened.columns.names != opened.columns.names:
            self.cursor = self.column = self._left = 0
            self._widths = [min(cell_len(name), MAX_WIDTH) for name in opened.columns.names]
            self.scroll_to(y=0, animate=False)
        self._opened = opened
        self._chunks = OrderedDict({0: opened.first})
        self._wanted, self._bad = [], set()
        self.reset()

    def say(self, *lines: Sequence[Span]) -> None:
        """Shows words instead of rows."""
        self._opened, self._words = None, lines
        self.cursor = 0
        self._chunks.clear()
        self.reset()

    def value(self, row: int, column: int) -> str | None:
        """A value in full: empty for null, None while it is being read."""
        chunk = self._chunks.get(row // CHUNK)
        return None if chunk is None else chunk.value(row % CHUNK, column) or ""

    def record(self) -> list[tuple[str, str, str]] | None:
        """The row under the cursor as (column, type, text), or None while it is being read."""
        chunk = self._chunks.get(self.cursor // CHUNK)
        if self._opened is None or chunk is None:
            return None
        columns, row = self._opened.columns, self.cursor % CHUNK
        values = [chunk.value(row, index) for index in range(len(columns.names))]
        texts = ["∅" if value is None else value for value in values]
        return list(zip(columns.names, columns.types, texts, strict=True))

    def move(self, move: str) -> None:
        """Moves the cursor through rows and columns."""
        if self._opened is None:
            return
        if move not in ("left", "right"):
            super().move(move)
            return
        last = len(self._opened.columns.names) - 1
        self.column = max(0, min(self.column + (1 if move == "right" else -1), last))
        self._show_column()
        self.refresh()
        self.post_message(self.Moved(self))

    def go_to(self, row: int, column: int) -> None:
        """Puts the cursor on a cell."""
        if self._opened is not None:
            self.column = max(0, min(column, len(self._opened.columns.names) - 1))
            self._show_column()
            self.refresh()
            self.go(row)

    def _show_column(self) -> None:
        if self._opened is None or self.column < (fixed := self._opened.columns.fixed):
            return
        start = fixed + self._left
        if self.column < start:
            self._left = self.column - fixed
        while self.column not in self._visible() and self._left < self.column - fixed:
            self._left += 1

    def _visible(self) -> list[int]:
        """The columns that are wholly in the window, or the first that is not."""
        if self._opened is None:
            return []
        fixed = self._opened.columns.fixed
        found = list(range(fixed))
        room = self.room.width - 1 - sum(self._widths[index] + _SPACE for index in found)
        for index in range(fixed + self._left, len(self._widths)):
            room -= self._widths[index]
            if room < 0 and len(found) > fixed:
                break
            found.append(index)
            room -= _SPACE
        return found

    # --- Drawing ---

    def count(self) -> int:
        """All rows."""
        return 0 if self._opened is None else self._opened.window.row_count

    def style_of(self, index: int) -> str:
        """The cursor's row; its cell is marked in the row."""
        return "idle" if index == self.cursor else ""

    def empty(self) -> Sequence[Sequence[Span]]:
        """The words."""
        return self._words

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draws, once the columns are wide enough for what comes into the window."""
        if self._opened is not None and self._widen():
            self.call_later(self.refresh)
        return super().render_lines(crop)

    def _widen(self) -> bool:
        """Columns grow with what is shown: measuring every value would read them all."""
        top = int(self.scroll_offset.y)
        chunks = range(top // CHUNK, (top + self.room.height) // CHUNK + 1)
        grown = False
        for number in chunks:
            if (chunk := self._chunks.get(number)) is None:
                continue
            for column in self._visible():
                width = min(chunk.width(column), MAX_WIDTH)
                if width > self._widths[column]:
                    self._widths[column], grown = width, True
        if grown:
            self._show_column()
        return grown

    def header(self) -> Sequence[Span]:
        """Names of the columns."""
        if self._opened is None:
            return ()
        columns = self._opened.columns
        return [(" ", ""), *((self._fit(columns.names[index], index), "head") for index in self._all_seen())]

    def _all_seen(self) -> list[int]:
        """The visible columns, and what can be seen of the next."""
        found = self._visible()
        after = found[-1] + 1 if found else 0
        return [*found, after] if after < len(self._widths) else found

    def _fit(self, text: str, column: int) -> str:
        width = self._widths[column]
        if self._opened is not None and self._opened.columns.right[column] and cell_len(text) <= width:
            return right(text, width) + " " * _SPACE
        return clip(text, width) + " " * _SPACE

    def spans(self, index: int) -> Sequence[Span]:
        """A row."""
        if self._opened is None:
            return ()
        number, row = divmod(index, CHUNK)
        chunk = self._chunks.get(number)
        if chunk is None:
            self._want(number)
        spans: list[Span] = [(" ", "")]
        for column in self._all_seen():
            text = "…" if chunk is None or row >= chunk.rows else chunk.cell(row, column)
            fitted = self._fit(text, column)
            if index == self.cursor and column == self.column:
                width = len(fitted) - _SPACE
                spans += [(fitted[:width], "cursor" if self.active else "strong"), (fitted[width:], "")]
            else:
                spans.append((fitted, self._style(text, column)))
        return spans

    def _style(self, text: str, column: int) -> str:
        columns = self._opened.columns if self._opened is not None else None
        if columns is None or text in ("∅", "…"):
            return "muted"
        if column == columns.op:
            return {"+A": "good", "-R": "bad"}.get(text, "warn")
        return "muted" if columns.muted[column] else ""

    # --- Reading ---

    def _want(self, number: int) -> None:
        if number in self._wanted or number in self._bad:
            return
        self._wanted.append(number)
        if not self._reading:
            self._reading = True
            self.call_later(self._read_next)

    def _read_next(self) -> None:
        """Reads what is wanted and still in the window; what has gone by is forgotten."""
        top = int(self.scroll_offset.y)
        seen = range(top // CHUNK, (top + self.room.height) // CHUNK + 1)
        self._wanted = [number for number in self._wanted if number in seen]
        if not self._wanted or self._opened is None:
            self._reading = False
            return
        number, window = self._wanted.pop(0), self._opened.window
        self.run_worker(lambda: self._read(window, number), thread=True)

    def _read(self, window: RowWindow, number: int) -> None:
        from odf_tui.widgets.cells import Chunk

        try:
            chunk = Chunk(window.window(number * CHUNK, CHUNK), window.system_columns)
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self.post_message(self.ChunkRead(window, number, None, said(error)))
        else:
            self.post_message(self.ChunkRead(window, number, chunk))

    def on_rows_view_chunk_read(self, message: ChunkRead) -> None:
        """Shows a chunk."""
        message.stop()
        if self._opened is not None and message.window is self._opened.window:
            if message.chunk is None or not message.chunk.rows:
                self._bad.add(message.number)
                self.post_message(self.Failed(message.error or "these rows are not there"))
            else:
                self._chunks[message.number] = message.chunk
                while len(self._chunks) > KEPT:
                    self._chunks.popitem(last=False)
            self.refresh()
        self._read_next()
