"""What a person asked about where a row comes from, and all that is known by now."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from odf_engine.errors import NotFound
from odf_engine.provenance.model import ProducingTransaction, RowSource
from odf_tui.source import RowWindow
from odf_tui.tracenodes import Asked, EarlierGroup, FeedGroup, Group, Making, Node, Origin
from odf_tui.tracetree import Line, TraceTree
from odf_tui.windows import StoredWindow


class Inquiry:
    """A row, and the trees of it and of the value under the cursor; it outlives the screen that shows it.

    Attributes:
        dataset, name, offset: the row's.
        value: the column under the cursor.
        ours: whether the data has this column, and not the system alone.
        column: whose value is traced now; None: the whole row.

    Args:
        open_rows: opens the rows of a dataset; slow.
    """

    def __init__(
        self,
        dataset: str,
        name: str,
        offset: int,
        value: str,
        open_rows: Callable[[str], RowWindow | None],
        *,
        ours: bool,
    ) -> None:
        self.dataset, self.name, self.offset, self.value, self.ours = dataset, name, offset, value, ours
        self.column: str | None = None
        self._open_rows = open_rows
        self._trees: dict[str | None, TraceTree] = {}
        self._windows: dict[str, RowWindow | None] = {}
        self._lock = threading.Lock()

    @property
    def tree(self) -> TraceTree:
        """What is shown."""
        if self.column not in self._trees:
            run = (self.offset, self.offset)
            self._trees[self.column] = TraceTree(self.dataset, self.name, [run], self.column)
        return self._trees[self.column]

    @property
    def trees(self) -> list[TraceTree]:
        """All that were shown."""
        return list(self._trees.values())

    def rows(self, dataset: str) -> RowWindow | None:
        """The rows of a dataset, opened once; in a thread."""
        with self._lock:
            if dataset not in self._windows:
                self._windows[dataset] = self._open_rows(dataset)
            return self._windows[dataset]

    def row_of(self, dataset: str, offset: int) -> int:
        """The number of the row with an offset; in a thread.

        Raises:
            NotFound: it is not there.
        """
        window = self.rows(dataset)
        row = window.row_of_offset(offset) if isinstance(window, StoredWindow) else offset
        if row is None:
            raise NotFound(f"there is no row {offset} any more")
        return row


class Place(NamedTuple):
    """A row of a dataset, and the block that it came with, by number or hash; None: that is to be found."""

    dataset: str
    offset: int
    block: int | str | None = None


def place_of(line: Line) -> Place | None:
    """The row and block that a line is about, or the line that it is under."""
    if line.row >= 0 and isinstance(line.node, Group):
        return Place(line.node.dataset, line.node.offsets.at(line.row))
    node: Node | None = line.node
    while node is not None:
        if (found := _place(node)) is not None:
            return found
        node = node.above
    return None


def _place(node: Node) -> Place | None:
    match node:
        case Making():
            return _first(node.step.dataset, node.made, node.made.sequence_number)
        case Origin():
            return _first(node.step.dataset, node.source, node.source.block)
        case Asked() if node.row >= 0:
            return Place(node.group.dataset, node.group.offsets.at(node.row))
        case FeedGroup() | EarlierGroup() if node.opens:
            return Place(node.dataset, node.offsets.at(0))
        case _:
            return None


def _first(dataset: str, of: ProducingTransaction | RowSource, block: int | str) -> Place | None:
    return Place(dataset, of.runs[0][0], block) if of.runs else None


def making_of(line: Line) -> Making | None:
    """The transaction that a line is about: of the rows in it, else of those that it is under."""
    node: Node | None = line.node
    if line.row >= 0 and isinstance(node, Group):
        node = node.touched.get(line.row) or node
    while node is not None:
        if isinstance(node, Making):
            return node
        if isinstance(node, Asked) and (
            found := next((each for each in node.under if isinstance(each, Making)), None)
        ):
            return found
        node = node.above
    return None
