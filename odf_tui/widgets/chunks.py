"""Rows by pieces, which are read in a thread when they come into the window, and kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from textual.message import Message

from odf_tui.humane import remedy, said
from odf_tui.source import RowWindow, Source
from odf_tui.widgets.lines import LineView
from odf_tui.windows import goes_on

if TYPE_CHECKING:
    from odf_tui.widgets.cells import Chunk, Columns

CHUNK: Final = 256
KEPT: Final = 12
_FIRST_COLUMNS: Final = 8


class Opened(msgspec.Struct, frozen=True):
    """Rows that can be shown: the window over them, its columns, and its first chunk."""

    window: RowWindow
    columns: Columns
    first: Chunk


def open_window(window: RowWindow) -> Opened:
    """Reads what is needed to show a window; in a thread."""
    from odf_tui.widgets.cells import Columns, read_chunk  # brings Arrow, off the event loop

    columns = Columns(window)
    return Opened(window, columns, read_chunk(window, 0, CHUNK, range(len(columns.names))[:_FIRST_COLUMNS]))


def open_rows(source: Source, dataset: str) -> Opened | None:
    """Opens the rows of a dataset; in a thread. None when there are none."""
    window = source.rows(dataset)
    return open_window(window) if window is not None and window.row_count else None


def _share_rows(one: RowWindow, other: RowWindow) -> bool:
    """Whether all rows of one of them are the first rows of the other."""
    return goes_on(one, other) or goes_on(other, one)


class ChunkView(LineView):
    """Lines that are made of chunks. What is not here yet is read when it is asked for."""

    @dataclass
    class ChunkRead(Message):
        """Some columns of a chunk were read, or could not be."""

        window: RowWindow
        number: int
        chunk: Chunk | None
        error: str = ""

    @dataclass
    class Failed(Message):
        """Rows could not be read."""

        error: str

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._opened: Opened | None = None
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._wanted: list[int] = []
        self._bad: set[int] = set()
        self._busy = False

    def seen_columns(self) -> Sequence[int]:
        """The columns that are in the window."""
        return ()

    def take(self, opened: Opened | None) -> None:
        """Another window; chunks that are in both stay."""
        before, self._opened = self._opened, opened
        kept: dict[int, Chunk] = {}
        if before is not None and opened is not None and _share_rows(before.window, opened.window):
            full = min(before.window.row_count, opened.window.row_count) // CHUNK
            kept = {number: chunk for number, chunk in self._chunks.items() if number < full}
        self._chunks = OrderedDict(kept)
        if opened is not None:
            self._chunks.setdefault(0, opened.first)
        self._wanted, self._bad = [], set()

    def chunk_of(self, index: int) -> tuple[Chunk | None, int]:
        """The chunk of a row if it is here, and the row in it."""
        return self._chunks.get(index // CHUNK), index % CHUNK

    def chunks_seen(self) -> range:
        """The numbers of the chunks that are in the window."""
        top = int(self.scroll_offset.y)
        return range(top // CHUNK, (top + max(self.room.height - 1, 0)) // CHUNK + 1)

    def go(self, index: int) -> None:
        """Puts the cursor on a line, and reads ahead what the next page would show."""
        ahead = index + 2 * self.room.height * (1 if index > self.cursor else -1)
        super().go(index)
        number = ahead // CHUNK
        if 0 <= ahead < self.count() and number in self._near() and number not in self._chunks:
            self.want(number)

    def _near(self) -> range:
        """The numbers of the chunks that are in the window or beside it."""
        seen = self.chunks_seen()
        return range(seen.start - 1, seen.stop + 1)

    def want(self, number: int) -> None:
        """Reads a chunk soon."""
        if number in self._wanted or number in self._bad:
            return
        self._wanted.append(number)
        if not self._busy:
            self._busy = True
            self.call_later(self._read_next)

    def _read_next(self) -> None:
        """Reads what is wanted and still in the window; what has gone by is forgotten."""
        near, opened = self._near(), self._opened
        while self._wanted and opened is not None:
            number = self._wanted.pop(0)
            here = self._chunks.get(number)
            columns = [each for each in self.seen_columns() if here is None or each not in here.columns]
            if number in near and columns:  # none are missing when it was asked for while it was read
                self.run_worker(partial(self._read, opened.window, number, columns), thread=True)
                return
        self._wanted, self._busy = [], False

    def _read(self, window: RowWindow, number: int, columns: Sequence[int]) -> None:
        from odf_tui.widgets.cells import read_chunk

        try:
            chunk = read_chunk(window, number * CHUNK, CHUNK, columns)
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self.post_message(self.ChunkRead(window, number, None, said(error) + remedy(error)))
        else:
            self.post_message(self.ChunkRead(window, number, chunk))

    def on_chunk_view_chunk_read(self, message: ChunkRead) -> None:
        """Shows a chunk."""
        message.stop()
        if self._opened is not None and message.window is self._opened.window:
            if message.chunk is None or not message.chunk.rows:
                self._bad.add(message.number)
                if message.number in self.chunks_seen():
                    self.post_message(self.Failed(message.error or "these rows are not there"))
            elif message.number in self._chunks:
                self._chunks[message.number].merge(message.chunk)
            else:
                self._chunks[message.number] = message.chunk
            if message.number in self._chunks:
                self._chunks.move_to_end(message.number)
            while len(self._chunks) > KEPT:
                self._chunks.popitem(last=False)
            if message.number in self.chunks_seen():
                self.refresh()
        self._read_next()
