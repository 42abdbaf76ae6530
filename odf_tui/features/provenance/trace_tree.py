"""The tree of a trace: rows, transactions, inputs, sources; reads its rows."""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from odf_engine.errors import NotFound
from odf_engine.provenance.model import (
    InputRows,
    OffsetRange,
    ProducingTransaction,
    RowSource,
    TraceStep,
    to_ranges,
)
from odf_tui.gateway.row_window import RowWindow, StoredWindow, read_part

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_tui.gateway.row_text import Record, Value
    from odf_tui.text.values import CellColumn


_MAX_COLUMNS: Final = 12


def _with_sign(value: Value) -> Value:
    """An operation as people write it."""
    from odf_tui.text.values import OPERATION_SIGNS

    sign = OPERATION_SIGNS.get(value.text or "", (value.text or "",))[0]
    return structs.replace(value, text=sign, lines=[sign])


class RowCells:
    """Some rows as cells.

    Attributes:
        columns: the cells, column by column, the rows in order.
        there: for each row whether it could be read.
    """

    def __init__(self, columns: Sequence[CellColumn], present: Sequence[bool]) -> None:
        self.columns, self.present = columns, present


class RowReader:
    """Rows of a window by their offsets.

    Attributes:
        names, right: the columns that pages have, and which of them are numbers.
        marked: which of them are those that were asked for.
        all_names: of all columns that are not the system's own.

    Args:
        first: the names of columns that come before the others.
    """

    def __init__(self, window: RowWindow, first: Sequence[str]) -> None:
        from odf_tui.gateway.row_text import Columns

        self.window = window
        self._lock = threading.Lock()
        columns, names = Columns(window), window.columns.names
        system = set(window.system_columns[:3])
        selected = [name for name in first if name in names]
        self.all_names = [name for name in names if name not in system]
        selected += [name for name in self.all_names if name not in selected]
        self._numbers = [names.index(name) for name in selected[:_MAX_COLUMNS]]
        self._op = names.index(window.system_columns[1]) if window.system_columns[1] in names else -1
        self._offset = names.index(window.system_columns[0]) if window.system_columns[0] in names else -1
        self.names = [columns.names[at] for at in self._numbers]
        self.right = [columns.right[at] for at in self._numbers]
        self.marked = [names[at] in set(first) for at in self._numbers]

    def page(self, offsets: Sequence[int]) -> RowCells:
        """Rows with these offsets; the first of the columns is the operation.

        Raises:
            OdfError: they cannot be read at all.
        """
        import pyarrow as pa

        from odf_tui.text.values import CellColumn, cell_column, release_memory

        selected = ([self._op] if self._op >= 0 else []) + self._numbers
        with self._lock:
            table, positions = self._read(offsets, selected)
        present = [offset in positions for offset in offsets]
        table = table.take(pa.array([positions.get(offset) for offset in offsets], pa.int64()))
        cells = [cell_column(table.column(at), op=not at and self._op >= 0) for at in range(len(selected))]
        if self._op < 0:
            cells.insert(0, CellColumn([""] * len(offsets), 0))
        del table
        release_memory()
        return RowCells(cells, present)

    def record(self, offset: int) -> Record:
        """A row in full.

        Raises:
            NotFound: it is not there.
        """
        from odf_tui.gateway.row_text import read_record

        with self._lock:
            row = self.row_of(offset)
            if row is None:
                raise NotFound(f"there is no row {offset}")
            found = read_record(self.window, row, range(len(self.window.columns.names)))
        op = self.window.system_columns[1]
        values = [_with_sign(value) if value.name == op else value for value in found.values]
        return structs.replace(found, values=values)

    def row_of(self, offset: int) -> int | None:
        """The number of a row by its offset."""
        if isinstance(self.window, StoredWindow):
            return self.window.row_of_offset(offset)
        return offset if 0 <= offset < self.window.row_count else None

    def _read(self, offsets: Sequence[int], selected: Sequence[int]) -> tuple[pa.Table, dict[int, int]]:
        """Rows, and where in the table each of the offsets is."""
        import pyarrow as pa

        parts: list[pa.Table] = []
        positions: dict[int, int] = {}
        rows = 0
        for first, last in to_ranges(offsets):
            for table, found in self._read_run(first, last, selected):
                parts.append(table)
                positions |= {offset: rows + at for at, offset in enumerate(found) if first <= offset <= last}
                rows += table.num_rows
        if not parts:
            schema = self.window.columns
            return pa.schema([schema.field(at) for at in selected]).empty_table(), positions
        return pa.concat_tables(parts), positions

    def _read_run(self, first: int, last: int, selected: Sequence[int]) -> list[tuple[pa.Table, list[int]]]:
        """Rows that follow each other; one by one where they are not stored so."""
        row = self.row_of(first)
        if row is not None:
            table, found = self._read_stored(row, last - first + 1, selected)
            if found == list(range(first, last + 1)):
                return [(table, found)]
        if first == last:
            return []
        rows = [self.row_of(offset) for offset in range(first, last + 1)]
        return [self._read_stored(row, 1, selected) for row in rows if row is not None]

    def _read_stored(self, row: int, count: int, selected: Sequence[int]) -> tuple[pa.Table, list[int]]:
        import pyarrow as pa

        from odf_engine.data.arrow_compute import pc  # deferred: Arrow is slow to import

        first = [self._offset] if self._offset >= 0 else []
        table, gaps = read_part(self.window, row, count, [*first, *selected])
        if not first:
            return table, list(range(row, row + table.num_rows))
        offsets = pc.fill_null(table.column(0).cast(pa.int64()), -1).to_pylist()
        for start, stop, _ in gaps:  # nulls, but they are known to be there
            offsets[start - row : stop - row] = [-1] * (stop - start)
        return table.select(range(1, table.num_columns)), offsets


OPENS_ALONE: Final = 8
"""Rows of an input up to this many are shown at once, without a key; those of the only one are always."""
_MAX_MADE: Final = 200
_JOB_LABELS: Final = frozenset({"job", "check", "failed", "stopped", "checked"})
_ANY_COLUMN: Final = "*"  # columns whose names are not known, see odf_engine.metadata.sql_columns
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

    def page(self, start: int, count: int) -> list[int]:
        """The offsets of some rows."""
        return [self.at(number) for number in range(start, min(start + count, len(self)))]


class Node:
    """Something that has a line of its own, and perhaps more under it.

    Attributes:
        above: what it is under.
        open: whether what is under it is shown.
    """

    def __init__(self, parent: Node | None) -> None:
        self.parent = parent
        self.open = False
        self.children: list[Node] = []

    @property
    def can_open(self) -> bool:
        """Whether there is something to open."""
        return bool(self.children)


class NoteNode(Node):
    """A remark: what it is about, a text and its style."""

    def __init__(self, parent: Node, label: str, text: str, style: str = "") -> None:
        super().__init__(parent)
        self.label, self.text, self.style = label, text, style


class QueryStep(NoteNode):
    """A step of a query, in one line; and as it was written."""

    def __init__(self, parent: Node, alias: str, query: str) -> None:
        super().__init__(parent, "query", " ".join(_COMMENT.sub("", query).split()))
        self.alias, self.query = alias, query


class TransactionNode(Node):
    """A transaction that made rows of a step."""

    def __init__(
        self, parent: TracedRows, made: ProducingTransaction, step: TraceStep, *, last: bool
    ) -> None:
        super().__init__(parent)
        self.made, self.step = made, step
        self.children += [QueryStep(self, alias, query) for alias, query in made.query]
        if last:
            self.children += [NoteNode(self, "how", line) for line in step.how]


class SourceNode(Node):
    """Where rows of a root dataset came from."""

    def __init__(self, parent: TracedRows, source: RowSource, step: TraceStep) -> None:
        super().__init__(parent)
        self.source, self.step = source, step
        if source.state:
            self.children.append(NoteNode(self, "version", source.state))
        self.children += [NoteNode(self, "step", each) for each in source.steps]


class Heading(Node):
    """The names of the columns above the rows of a group."""


class TracedRows(Node):
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
        self._note: NoteNode | None = None

    @property
    def can_open(self) -> bool:
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
    def needs_trace(self) -> bool:
        """Whether it has to be asked when it is opened."""
        return self.step is None and not self.job

    def set_pending(self, job: str, text: str, *, check: bool = False) -> None:
        """A job looks for it; or checks what is known, and that stays."""
        self.job, self.failed, self.open = job, False, True
        self._note = NoteNode(self, "check" if check else "job", text, "busy")
        self.children = self._result_nodes() if check else []
        self._insert_notes([self._note])

    def _result_nodes(self) -> list[Node]:
        """What is under it, without what jobs said."""
        return [each for each in self.children if getattr(each, "label", "") not in _JOB_LABELS]

    def _insert_notes(self, notes: Sequence[NoteNode]) -> None:
        """Puts remarks where they are seen: below what made the rows, above the many rows of inputs."""
        made = sum(isinstance(each, TransactionNode) for each in self.children)
        self.children[made:made] = notes

    def set_activity(self, text: str) -> bool:
        """What the job does; whether that is new."""
        if self._note is None or self._note.text == text:
            return False
        self._note.text = text
        return True

    def fail(self, text: str, style: str = "bad") -> None:
        """It is not known where they come from."""
        self.job, self.failed = "", True
        self._note = None
        self.children = self._result_nodes()
        self._insert_notes([NoteNode(self, "stopped" if style == "warn" else "failed", text, style)])

    def set_step(self, step: TraceStep, checked: Sequence[str] = ()) -> None:
        """Shows where they come from, and what came of checking it; what was opened under it stays."""
        self.job, self.failed = "", False
        self._note = None
        self.children = (
            self._result_nodes() if checked and self.step is not None else _nodes_of_step(self, step)
        )
        self.step = step
        notes = [
            NoteNode(self, "checked", line, "bad" if line.startswith("no: ") else "good") for line in checked
        ]
        made = sum(isinstance(each, TransactionNode) for each in self.children)
        self.children[made:made] = notes


def _nodes_of_step(traced: TracedRows, step: TraceStep) -> list[Node]:
    """What is under rows when it is known where they come from."""
    children: list[Node] = []
    if not step.sources:
        made = step.made[:_MAX_MADE]
        children += [TransactionNode(traced, each, step, last=each is made[-1]) for each in made]
        if more := len(step.made) - len(made):
            children.append(NoteNode(traced, "made by", f"{more} more transactions", "muted"))
    if not step.exact:
        children.append(NoteNode(traced, "because", step.reason or "nobody said why", "warn"))
    feeds = [InputGroup(traced, feed, traced.group.column) for feed in step.feeds]
    for feed in feeds:
        feed.open = feed.can_open and (len(feeds) == 1 or len(feed.offsets) <= OPENS_ALONE)
    children += feeds
    origins = [SourceNode(traced, source, step) for source in step.sources]
    for origin in origins:
        origin.open = len(origins) == 1 and origin.can_open
    children += [*origins, *([NoteNode(traced, "how", line) for line in step.how] if origins else [])]
    if step.earlier:
        children.append(EarlierGroup(traced, step))
    if step.problem:
        children.append(NoteNode(traced, "problem", step.problem, "warn"))
    return children


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

    def __init__(self, parent: Node | None, dataset: str, name: str, runs: Sequence[OffsetRange]) -> None:
        super().__init__(parent)
        self.dataset, self.name, self.offsets = dataset, name, Offsets(runs)
        self.column: str | None = None
        self.columns: dict[str, str] = {}
        self.missing = False
        self.traced: dict[int, TracedRows] = {}
        self.all_rows: TracedRows | None = None
        self.heading = Heading(self)
        self.cells: OrderedDict[int, RowCells] = OrderedDict()
        self.reader: RowReader | None = None
        self.problem = ""
        self.widths: list[int] = []

    @property
    def can_open(self) -> bool:
        """Whether its rows can be shown."""
        return not self.missing and len(self.offsets) > 0

    @property
    def header_nodes(self) -> list[Node]:
        """The lines above its rows; the names of the columns at the very top always stay in sight."""
        if self.parent is None:
            return []
        return [self.heading] if self.all_rows is None else [self.all_rows, self.heading]

    def row(self, number: int) -> TracedRows:
        """One of its rows, as something that can be opened."""
        if number not in self.traced:
            self.traced[number] = TracedRows(self, number)
        return self.traced[number]


class InputGroup(Group):
    """Rows of an input."""

    def __init__(self, parent: TracedRows, feed: InputRows, column: str | None) -> None:
        super().__init__(parent, feed.dataset, feed.name, feed.runs)
        self.feed = feed
        self.missing = feed.missing
        self.columns = dict(feed.columns)
        # A value that several columns made is followed no further than to their rows.
        one = column is not None and len(feed.columns) == 1 and feed.columns[0][0] != _ANY_COLUMN
        self.column = feed.columns[0][0] if one else None
        if len(self.offsets) > 1 and self.can_open:
            self.all_rows = TracedRows(self, -1)
            if feed.step is not None:
                self.all_rows.set_step(feed.step)
        elif feed.step is not None and self.can_open:
            self.row(0).set_step(feed.step)


class EarlierGroup(Group):
    """Rows of the same dataset that were taken back, or replaced."""

    def __init__(self, parent: TracedRows, step: TraceStep) -> None:
        super().__init__(parent, step.dataset, step.name, step.earlier)
        self.column = parent.group.column


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
        self.pending: dict[str, TracedRows] = {}
        self.cursor = 0
        self._segments: list[_Segment] = []
        self._starts: list[int] = []
        self.count = 0
        self.rebuild()

    # --- Lines ---

    def rebuild(self) -> None:
        """Counts the lines anew, after something was opened, closed or found."""
        self._segments, self._starts, self.count = [], [], 0
        self._add_group(self.top, None)

    def _add_children(self, node: Node, guides: str) -> None:
        if isinstance(node, Group):
            self._add_group(node, guides)
            return
        for at, each in enumerate(node.children):
            last = at == len(node.children) - 1
            self._add(Line(each), 1, guides, last=last)
            if each.open:
                self._add_children(each, guides + ("  " if last else "│ "))

    def _add_group(self, group: Group, guides: str | None) -> None:
        below = "" if guides is None else guides + "│ "
        for each in group.header_nodes:
            self._add(Line(each), 1, guides, last=False)
            if each.open:
                self._add_children(each, below)
        rows, done = len(group.offsets), 0
        for row in sorted(number for number, traced in group.traced.items() if traced.open):
            last = row == rows - 1
            self._add(Line(group, done), row - done + 1, guides, last=last)
            self._add_children(group.traced[row], "" if guides is None else guides + ("  " if last else "│ "))
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

    def index(self, target: Line) -> int | None:
        """The number of a line; None when it is not shown."""
        for start, (line, count, *_) in zip(self._starts, self._segments, strict=True):
            if line.node is target.node and (line.row < 0) == (target.row < 0):
                if target.row < 0:
                    return start
                if line.row <= target.row < line.row + count:
                    return start + target.row - line.row
        return None

    # --- What lines are about ---

    @staticmethod
    def group(line: Line) -> Group:
        """The group whose rows a line is one of, or is under."""
        node: Node | None = line.node
        while node is not None and not isinstance(node, Group):
            node = node.parent
        assert node is not None  # the top is one
        own = line.row < 0 and node is line.node  # that of the row above it
        return node.parent.group if own and isinstance(node.parent, TracedRows) else node

    @staticmethod
    def opener(line: Line) -> Node:
        """What is opened and closed at a line: the row, or the node."""
        return line.node.row(line.row) if line.row >= 0 and isinstance(line.node, Group) else line.node

    @staticmethod
    def parent(line: Line) -> Line | None:
        """The line that a line is under."""
        node = line.node if line.row >= 0 else line.node.parent
        if isinstance(node, TracedRows) and node.row >= 0:
            return Line(node.group, node.row)
        if isinstance(node, Group) and node.parent is None:
            return None
        return None if node is None else Line(node)

    def all_traced_rows(self) -> Iterator[TracedRows]:
        """Everything that was asked, from the top."""
        waiting: list[Node] = [self.top]
        while waiting:
            node = waiting.pop()
            if isinstance(node, TracedRows):
                yield node
            if isinstance(node, Group):
                waiting += [*node.traced.values(), *([node.all_rows] if node.all_rows else [])]
            waiting += node.children


class TraceSession:
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
        is_data_column: bool,
    ) -> None:
        self.dataset, self.name, self.offset, self.value, self.is_data_column = (
            dataset,
            name,
            offset,
            value,
            is_data_column,
        )
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


class RowLocation(NamedTuple):
    """A row of a dataset, and the block that it came with, by number or hash; None: that is to be found."""

    dataset: str
    offset: int
    block: int | str | None = None


def location_of(line: Line) -> RowLocation | None:
    """The row and block that a line is about, or the line that it is under."""
    if line.row >= 0 and isinstance(line.node, Group):
        return RowLocation(line.node.dataset, line.node.offsets.at(line.row))
    node: Node | None = line.node
    while node is not None:
        if (found := _node_location(node)) is not None:
            return found
        node = node.parent
    return None


def _node_location(node: Node) -> RowLocation | None:
    match node:
        case TransactionNode():
            return _first_location(node.step.dataset, node.made, node.made.sequence_number)
        case SourceNode():
            return _first_location(node.step.dataset, node.source, node.source.block)
        case TracedRows() if node.row >= 0:
            return RowLocation(node.group.dataset, node.group.offsets.at(node.row))
        case InputGroup() | EarlierGroup() if node.can_open:
            return RowLocation(node.dataset, node.offsets.at(0))
        case _:
            return None


def _first_location(
    dataset: str, of: ProducingTransaction | RowSource, block: int | str
) -> RowLocation | None:
    return RowLocation(dataset, of.runs[0][0], block) if of.runs else None


def transaction_at(line: Line) -> TransactionNode | None:
    """The transaction that a line is about: of the rows in it, else of those that it is under."""
    node: Node | None = line.node
    if line.row >= 0 and isinstance(node, Group):
        node = node.traced.get(line.row) or node
    while node is not None:
        if isinstance(node, TransactionNode):
            return node
        if isinstance(node, TracedRows) and (
            found := next((each for each in node.children if isinstance(each, TransactionNode)), None)
        ):
            return found
        node = node.parent
    return None
