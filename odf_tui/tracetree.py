"""The tree of a trace: rows, what made them, the rows of inputs under that, step by step to the sources.

It has as many lines as it has rows that could be seen, which may be millions: rows are not objects until
one of them is opened.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from odf_engine.workspace.traced import Feed, Made, Run, Source, Step

if TYPE_CHECKING:
    from odf_tui.tracerows import RowCells, RowReader

OPENS_ALONE: Final = 8
"""Rows of an input up to this many are shown at once, without a key."""
_MOST_MADE: Final = 200
_COMMENT: Final = re.compile(r"--[^\n]*")


class Offsets:
    """Rows of a dataset in order: which offset the n-th has."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        self._ends = list(accumulate(last - first + 1 for first, last in runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, number: int) -> int:
        """The offset of a row."""
        run = bisect_right(self._ends, number)
        return self.runs[run][1] - (self._ends[run] - 1 - number)

    def some(self, start: int, count: int) -> list[int]:
        """The offsets of some rows."""
        return [self.at(number) for number in range(start, min(start + count, len(self)))]


class Node:
    """Something that has a line of its own, and perhaps more under it.

    Attributes:
        above: what it is under.
        open: whether what is under it is shown.
    """

    def __init__(self, above: Node | None) -> None:
        self.above = above
        self.open = False
        self.under: list[Node] = []

    @property
    def opens(self) -> bool:
        """Whether there is something to open."""
        return bool(self.under)


class Note(Node):
    """A remark: what it is about, a text and its style."""

    def __init__(self, above: Node, label: str, text: str, style: str = "") -> None:
        super().__init__(above)
        self.label, self.text, self.style = label, text, style


class QueryStep(Note):
    """A step of a query, in one line; and as it was written."""

    def __init__(self, above: Node, alias: str, query: str) -> None:
        super().__init__(above, "query", " ".join(_COMMENT.sub("", query).split()))
        self.alias, self.query = alias, query


class Making(Node):
    """A transaction that made rows of a step."""

    def __init__(self, above: Asked, made: Made, step: Step, *, last: bool) -> None:
        super().__init__(above)
        self.made, self.step = made, step
        self.under += [QueryStep(self, alias, query) for alias, query in made.query]
        if last:
            self.under += [Note(self, "how", line) for line in step.how]


class Origin(Node):
    """Where rows of a root dataset came from."""

    def __init__(self, above: Asked, source: Source, step: Step) -> None:
        super().__init__(above)
        self.source, self.step = source, step
        if source.state:
            self.under.append(Note(self, "version", source.state))
        self.under += [Note(self, "step", each) for each in source.steps]


class Heading(Node):
    """The names of the columns above the rows of a group."""


class Asked(Node):
    """Rows that can be traced: one of a group, or all of it at once.

    Attributes:
        group: whose rows.
        row: the number of the row in the group; -1: all of them.
        job: that looks where they come from.
        step: what it found.
        failed: why it found nothing.
    """

    def __init__(self, group: Group, row: int) -> None:
        super().__init__(group)
        self.group, self.row = group, row
        self.job = ""
        self.step: Step | None = None
        self.failed = False

    @property
    def opens(self) -> bool:
        """Where it is known there may be nothing, else it is asked."""
        return not self.group.missing

    @property
    def runs(self) -> list[Run]:
        """Which offsets."""
        if self.row < 0:
            return self.group.offsets.runs
        offset = self.group.offsets.at(self.row)
        return [(offset, offset)]

    @property
    def wanted(self) -> bool:
        """Whether it has to be asked when it is opened."""
        return self.step is None and not self.job

    def wait(self, job: str, text: str) -> None:
        """A job looks for it."""
        self.job, self.failed, self.open = job, False, True
        self.under = [Note(self, "job", text, "busy")]

    def tell(self, text: str) -> bool:
        """What the job does; whether that is new."""
        note = self.under[0] if self.under else None
        if not isinstance(note, Note) or note.text == text:
            return False
        note.text = text
        return True

    def fail(self, text: str, style: str = "bad") -> None:
        """It is not known where they come from."""
        self.job, self.failed = "", True
        self.under = [Note(self, "stopped" if style == "warn" else "failed", text, style)]

    def take(self, step: Step) -> None:
        """Shows where they come from."""
        self.job, self.failed, self.step = "", False, step
        self.under = _found(self, step)


def _found(asked: Asked, step: Step) -> list[Node]:
    """What is under rows when it is known where they come from."""
    under: list[Node] = []
    if not step.sources:
        made = step.made[:_MOST_MADE]
        under += [Making(asked, each, step, last=each is made[-1]) for each in made]
        if more := len(step.made) - len(made):
            under.append(Note(asked, "made by", f"{more} more transactions", "muted"))
    if not step.exact:
        under.append(Note(asked, "maybe", f"the larger set: {step.reason or 'nobody said why'}", "warn"))
    for feed in step.feeds:
        under.append(FeedGroup(asked, feed, asked.group.column))
    under += [Origin(asked, source, step) for source in step.sources]
    if step.earlier:
        under.append(EarlierGroup(asked, step))
    if step.problem:
        under.append(Note(asked, "problem", step.problem, "warn"))
    return under


class Group(Node):
    """Rows of a dataset.

    Attributes:
        dataset, name: of the dataset.
        offsets: which rows.
        column: whose value is traced; None: whole rows.
        columns: those that made the value of the row above, and how.
        missing: the dataset is not here.
        touched: rows that were opened once, by their numbers.
        whole: all rows at once, where there are several.
        cells: rows that were read, by pages.
        reader: reads more of them; None: not known yet.
        trouble: why they cannot be read.
    """

    def __init__(self, above: Node | None, dataset: str, name: str, runs: Sequence[Run]) -> None:
        super().__init__(above)
        self.dataset, self.name, self.offsets = dataset, name, Offsets(runs)
        self.column: str | None = None
        self.columns: dict[str, str] = {}
        self.missing = False
        self.touched: dict[int, Asked] = {}
        self.whole: Asked | None = None
        self.heading = Heading(self)
        self.cells: OrderedDict[int, RowCells] = OrderedDict()
        self.reader: RowReader | None = None
        self.trouble = ""
        self.widths: list[int] = []

    @property
    def opens(self) -> bool:
        """Whether its rows can be shown."""
        return not self.missing and len(self.offsets) > 0

    @property
    def heads(self) -> list[Node]:
        """The lines above its rows; the names of the columns at the very top always stay in sight."""
        if self.above is None:
            return []
        return [self.heading] if self.whole is None else [self.whole, self.heading]

    def row(self, number: int) -> Asked:
        """One of its rows, as something that can be opened."""
        if number not in self.touched:
            self.touched[number] = Asked(self, number)
        return self.touched[number]


def _over(group: Group) -> Group:
    """The group of the row that a group is under."""
    assert isinstance(group.above, Asked)
    return group.above.group


class FeedGroup(Group):
    """Rows of an input."""

    def __init__(self, above: Asked, feed: Feed, column: str | None) -> None:
        super().__init__(above, feed.dataset, feed.name, feed.runs)
        self.feed = feed
        self.missing = feed.missing
        self.columns = dict(feed.columns)
        # A value that several columns made is followed no further than to their rows.
        self.column = feed.columns[0][0] if column is not None and len(feed.columns) == 1 else None
        self.open = self.opens and len(self.offsets) <= OPENS_ALONE
        if len(self.offsets) > 1 and self.opens:
            self.whole = Asked(self, -1)
            if feed.step is not None:
                self.whole.take(feed.step)
        elif feed.step is not None and self.opens:
            self.row(0).take(feed.step)


class EarlierGroup(Group):
    """Rows of the same dataset that were taken back, or replaced."""

    def __init__(self, above: Asked, step: Step) -> None:
        super().__init__(above, step.dataset, step.name, step.earlier)
        self.column = above.group.column


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

    def __init__(self, dataset: str, name: str, runs: Sequence[Run], column: str | None) -> None:
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
        return node if line.row >= 0 or node is not line.node or node.above is None else _over(node)

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


__all__ = [
    "OPENS_ALONE", "Asked", "EarlierGroup", "FeedGroup", "Group", "Heading", "Line", "Making", "Node", "Note",
    "Offsets", "Origin", "QueryStep", "TraceTree",
]  # fmt: skip
