"""The tree of a trace: rows, what made them, the rows of inputs under that, step by step to the sources.

It has as many lines as it has rows that could be seen, which may be millions: rows are not objects until
one of them is opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from odf_engine.provenance.model import OffsetRange
from odf_tui.tracenodes import Asked, Group, Heading, Node


class Line(NamedTuple):
    """A line of the tree: that of a node, or of a row of a group by its number (else -1)."""

    node: Node
    row: int = -1


class _Segment(NamedTuple):
    line: Line
    lines: int
    guides: str | None  # None: nothing is above it
    last: bool


class TraceTree:
    """Lines of everything that is open.

    Attributes:
        top: the rows that are asked about.
        pending: what jobs look for, by their ids.
    """

    def __init__(self, dataset: str, name: str, runs: Sequence[OffsetRange], column: str | None) -> None:
        self.top = Group(None, dataset, name, runs)
        self.top.column = column
        self.top.columns = {} if column is None else {column: ""}
        self.top.open = True
        self.pending: dict[str, Asked] = {}
        self.cursor = 0
        self._segments: list[_Segment] = []
        self._starts: list[int] = []
        self.count = 0
        self.lay()

    # --- Lines ---

    def lay(self) -> None:
        """Counts the lines anew, after something was opened, closed or found."""
        self._segments, self._starts, self.count = [], [], 0
        self._lay_group(self.top, None)

    def _lay_under(self, node: Node, guides: str) -> None:
        if isinstance(node, Group):
            self._lay_group(node, guides)
            return
        for at, each in enumerate(node.under):
            last = at == len(node.under) - 1
            self._add(Line(each), 1, guides, last=last)
            if each.open:
                self._lay_under(each, guides + ("  " if last else "│ "))

    def _lay_group(self, group: Group, guides: str | None) -> None:
        below = "" if guides is None else guides + "│ "
        for each in group.heads:
            self._add(Line(each), 1, guides, last=False)
            if each.open:
                self._lay_under(each, below)
        rows, done = len(group.offsets), 0
        for row in sorted(number for number, asked in group.touched.items() if asked.open):
            last = row == rows - 1
            self._add(Line(group, done), row - done + 1, guides, last=last)
            self._lay_under(group.touched[row], "" if guides is None else guides + ("  " if last else "│ "))
            done = row + 1
        self._add(Line(group, done), rows - done, guides, last=True)

    def _add(self, line: Line, count: int, guides: str | None, *, last: bool) -> None:
        if count:
            self._segments.append(_Segment(line, count, guides, last))
            self._starts.append(self.count)
            self.count += count

    def _segment(self, index: int) -> tuple[_Segment, int]:
        """What a line is in, and how many lines it is below its start."""
        at = bisect_right(self._starts, index) - 1
        return self._segments[at], index - self._starts[at]

    def line(self, index: int) -> Line:
        """A line by its number."""
        segment, within = self._segment(index)
        node, row = segment.line
        return segment.line if row < 0 else Line(node, row + within)

    def guides(self, index: int) -> str:
        """What leads from the lines above to a line."""
        segment, within = self._segment(index)
        if segment.guides is None:
            return ""
        if isinstance(segment.line.node, Heading):
            return segment.guides + "│ "
        last = segment.last and within == segment.lines - 1
        return segment.guides + ("└─" if last else "├─")

    def index(self, wanted: Line) -> int | None:
        """The number of a line; None when it is not shown."""
        for start, (line, count, *_) in zip(self._starts, self._segments, strict=True):
            if line.node is wanted.node and (line.row < 0) == (wanted.row < 0):
                if wanted.row < 0:
                    return start
                if line.row <= wanted.row < line.row + count:
                    return start + wanted.row - line.row
        return None

    # --- What lines are about ---

    @staticmethod
    def group(line: Line) -> Group:
        """The group whose rows a line is one of, or is under."""
        node: Node | None = line.node
        while node is not None and not isinstance(node, Group):
            node = node.above
        assert node is not None  # the top is one
        own = line.row < 0 and node is line.node  # that of the row above it
        return node.above.group if own and isinstance(node.above, Asked) else node

    @staticmethod
    def opener(line: Line) -> Node:
        """What is opened and closed at a line: the row, or the node."""
        return line.node.row(line.row) if line.row >= 0 and isinstance(line.node, Group) else line.node

    @staticmethod
    def above(line: Line) -> Line | None:
        """The line that a line is under."""
        node = line.node if line.row >= 0 else line.node.above
        if isinstance(node, Asked) and node.row >= 0:
            return Line(node.group, node.row)
        if isinstance(node, Group) and node.above is None:
            return None
        return None if node is None else Line(node)

    def asked(self) -> Iterator[Asked]:
        """Everything that was asked, from the top."""
        waiting: list[Node] = [self.top]
        while waiting:
            node = waiting.pop()
            if isinstance(node, Asked):
                yield node
            if isinstance(node, Group):
                waiting += [*node.touched.values(), *([node.whole] if node.whole else [])]
            waiting += node.under
