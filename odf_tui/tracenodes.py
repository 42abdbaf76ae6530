"""What the tree of a trace consists of: rows, what made them, rows of inputs, sources, remarks."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from odf_engine.provenance.model import InputRows, OffsetRange, ProducingTransaction, RowSource, TraceStep

if TYPE_CHECKING:
    from odf_tui.tracerows import RowCells, RowReader

OPENS_ALONE: Final = 8
"""Rows of an input up to this many are shown at once, without a key; those of the only one are always."""
_MOST_MADE: Final = 200
_JOBS: Final = frozenset({"job", "check", "failed", "stopped", "checked"})
_ANY: Final = "*"  # columns whose names are not known, see odf_engine.metadata.sql_columns
_COMMENT: Final = re.compile(r"--[^\n]*")


class Offsets:
    """Rows of a dataset in order: which offset the n-th has."""

    def __init__(self, runs: Sequence[OffsetRange]) -> None:
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

    def __init__(self, above: Asked, made: ProducingTransaction, step: TraceStep, *, last: bool) -> None:
        super().__init__(above)
        self.made, self.step = made, step
        self.under += [QueryStep(self, alias, query) for alias, query in made.query]
        if last:
            self.under += [Note(self, "how", line) for line in step.how]


class Origin(Node):
    """Where rows of a root dataset came from."""

    def __init__(self, above: Asked, source: RowSource, step: TraceStep) -> None:
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
        self.step: TraceStep | None = None
        self.failed = False
        self._note: Note | None = None

    @property
    def opens(self) -> bool:
        """Where it is known there may be nothing, else it is asked."""
        return not self.group.missing

    @property
    def runs(self) -> list[OffsetRange]:
        """Which offsets."""
        if self.row < 0:
            return self.group.offsets.runs
        offset = self.group.offsets.at(self.row)
        return [(offset, offset)]

    @property
    def wanted(self) -> bool:
        """Whether it has to be asked when it is opened."""
        return self.step is None and not self.job

    def wait(self, job: str, text: str, *, check: bool = False) -> None:
        """A job looks for it; or checks what is known, and that stays."""
        self.job, self.failed, self.open = job, False, True
        self._note = Note(self, "check" if check else "job", text, "busy")
        self.under = self._answer() if check else []
        self._put([self._note])

    def _answer(self) -> list[Node]:
        """What is under it, without what jobs said."""
        return [each for each in self.under if getattr(each, "label", "") not in _JOBS]

    def _put(self, notes: Sequence[Note]) -> None:
        """Puts remarks where they are seen: below what made the rows, above the many rows of inputs."""
        made = sum(isinstance(each, Making) for each in self.under)
        self.under[made:made] = notes

    def tell(self, text: str) -> bool:
        """What the job does; whether that is new."""
        if self._note is None or self._note.text == text:
            return False
        self._note.text = text
        return True

    def fail(self, text: str, style: str = "bad") -> None:
        """It is not known where they come from."""
        self.job, self.failed = "", True
        self._note = None
        self.under = self._answer()
        self._put([Note(self, "stopped" if style == "warn" else "failed", text, style)])

    def take(self, step: TraceStep, checked: Sequence[str] = ()) -> None:
        """Shows where they come from, and what came of checking it; what was opened under it stays."""
        self.job, self.failed = "", False
        self._note = None
        self.under = self._answer() if checked and self.step is not None else _found(self, step)
        self.step = step
        notes = [
            Note(self, "checked", line, "bad" if line.startswith("no: ") else "good") for line in checked
        ]
        made = sum(isinstance(each, Making) for each in self.under)
        self.under[made:made] = notes


def _verdict(line: str) -> str:
    return "bad" if line.startswith("no: ") else "good"


def _found(asked: Asked, step: TraceStep) -> list[Node]:
    """What is under rows when it is known where they come from."""
    under: list[Node] = []
    if not step.sources:
        made = step.made[:_MOST_MADE]
        under += [Making(asked, each, step, last=each is made[-1]) for each in made]
        if more := len(step.made) - len(made):
            under.append(Note(asked, "made by", f"{more} more transactions", "muted"))
    if not step.exact:
        under.append(Note(asked, "because", step.reason or "nobody said why", "warn"))
    feeds = [FeedGroup(asked, feed, asked.group.column) for feed in step.feeds]
    for feed in feeds:
        feed.open = feed.opens and (len(feeds) == 1 or len(feed.offsets) <= OPENS_ALONE)
    under += feeds
    origins = [Origin(asked, source, step) for source in step.sources]
    for origin in origins:
        origin.open = len(origins) == 1 and origin.opens
    under += [*origins, *([Note(asked, "how", line) for line in step.how] if origins else [])]
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

    def __init__(self, above: Node | None, dataset: str, name: str, runs: Sequence[OffsetRange]) -> None:
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


class FeedGroup(Group):
    """Rows of an input."""

    def __init__(self, above: Asked, feed: InputRows, column: str | None) -> None:
        super().__init__(above, feed.dataset, feed.name, feed.runs)
        self.feed = feed
        self.missing = feed.missing
        self.columns = dict(feed.columns)
        # A value that several columns made is followed no further than to their rows.
        one = column is not None and len(feed.columns) == 1 and feed.columns[0][0] != _ANY
        self.column = feed.columns[0][0] if one else None
        if len(self.offsets) > 1 and self.opens:
            self.whole = Asked(self, -1)
            if feed.step is not None:
                self.whole.take(feed.step)
        elif feed.step is not None and self.opens:
            self.row(0).take(feed.step)


class EarlierGroup(Group):
    """Rows of the same dataset that were taken back, or replaced."""

    def __init__(self, above: Asked, step: TraceStep) -> None:
        super().__init__(above, step.dataset, step.name, step.earlier)
        self.column = above.group.column
