"""TraceTree: the nodes and lines of a trace. RowReader reads the rows in it."""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from msgspec import structs

from odf_engine.api import (
    OffsetRange,
    ProducingTransaction,
    RowSource,
    TracedInput,
    TraceStep,
    branch_title,
    pa,
    pc,
    to_ranges,
)
from odf_engine.api.readers.row_window import RowWindow, StoredWindow, read_part
from odf_engine.api.text import count_of
from odf_engine.errors import NotFound
from odf_tui.text.format import OPERATION_SIGNS
from odf_tui.text.row_text import Columns, Record, Value, read_record
from odf_tui.text.row_trace import line_texts
from odf_tui.text.values import CellColumn, cell_column, release_memory

_MAX_COLUMNS: Final = 12


def _with_sign(value: Value) -> Value:
    """Return an operation with its sign as the text."""
    sign = OPERATION_SIGNS.get(value.text or "", (value.text or "",))[0]
    return structs.replace(value, text=sign, lines=[sign])


class RowCells:
    """Cells of some rows.

    Attributes:
        columns: the cells by column, in the order of the rows.
        present: for each row whether it could be read.
    """

    def __init__(self, columns: Sequence[CellColumn], present: Sequence[bool]) -> None:
        self.columns, self.present = columns, present


class TracedRowReader:
    """Reads rows of a window by their offsets.

    Attributes:
        names, right: the names of the columns of pages, and whether they are aligned right.
        marked: for each column whether it is one of ``first``.
        all_names: the names of all columns but the system columns.

    Args:
        window: the rows.
        first: the names of the columns in front.
    """

    def __init__(self, window: RowWindow, first: Sequence[str]) -> None:
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
        """Read rows by their offsets. The first column is the operation.

        Raises:
            OdfError: the rows cannot be read.
        """
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
        """Read a complete row by its offset.

        Raises:
            NotFound: there is no such row.
        """
        with self._lock:
            row = self.row_of(offset)
            if row is None:
                raise NotFound(f"row {offset} not found")
            record = read_record(self.window, row, range(len(self.window.columns.names)))
        op = self.window.system_columns[1]
        values = [_with_sign(value) if value.name == op else value for value in record.values]
        return structs.replace(record, values=values)

    def row_of(self, offset: int) -> int | None:
        """Return the number of a row by its offset, or None if there is no such row."""
        if isinstance(self.window, StoredWindow):
            return self.window.row_of_offset(offset)
        return offset if 0 <= offset < self.window.row_count else None

    def _read(self, offsets: Sequence[int], selected: Sequence[int]) -> tuple[pa.Table, dict[int, int]]:
        """Read rows. Returns a table, and the position of each offset in it."""
        parts: list[pa.Table] = []
        positions: dict[int, int] = {}
        rows = 0
        for first, last in to_ranges(sorted(offsets)):
            for table, stored in self._read_run(first, last, selected):
                parts.append(table)
                positions |= {
                    offset: rows + at for at, offset in enumerate(stored) if first <= offset <= last
                }
                rows += table.num_rows
        if not parts:
            schema = self.window.columns
            return pa.schema([schema.field(at) for at in selected]).empty_table(), positions
        return pa.concat_tables(parts), positions

    def _read_run(self, first: int, last: int, selected: Sequence[int]) -> list[tuple[pa.Table, list[int]]]:
        """Read consecutive rows; one at a time if they are not stored consecutively."""
        row = self.row_of(first)
        if row is not None:
            table, offsets = self._read_stored(row, last - first + 1, selected)
            if offsets == list(range(first, last + 1)):
                return [(table, offsets)]
        if first == last:
            return []
        rows = [self.row_of(offset) for offset in range(first, last + 1)]
        return [self._read_stored(row, 1, selected) for row in rows if row is not None]

    def _read_stored(self, row: int, count: int, selected: Sequence[int]) -> tuple[pa.Table, list[int]]:
        first = [self._offset] if self._offset >= 0 else []
        table, gaps = read_part(self.window, row, count, [*first, *selected])
        if not first:
            return table, list(range(row, row + table.num_rows))
        offsets = pc.fill_null(table.column(0).cast(pa.int64()), -1).to_pylist()
        for start, stop, _ in gaps:  # unreadable rows are nulls in the table
            offsets[start - row : stop - row] = [-1] * (stop - start)
        return table.select(range(1, table.num_columns)), offsets


OPENS_ALONE: Final = 8
"""Maximum number of rows of an input that opens by itself. The only input always does."""
_MAX_MADE: Final = 200
_JOB_LABELS: Final = frozenset({"job", "check", "failed", "stopped", "checked"})
UNKNOWN_REASON: Final = "the reason is unknown"
_ANY_COLUMN: Final = "*"  # columns with unknown names, see odf_engine.metadata.sql_columns
_COMMENT: Final = re.compile(r"--[^\n]*")


class Offsets:
    """The offsets of rows, newest first, addressed by number.

    Attributes:
        runs: the offsets as ranges, in ascending order.
    """

    def __init__(self, runs: Sequence[OffsetRange]) -> None:
        self.runs = list(runs)
        self._ends = list(accumulate(last - first + 1 for first, last in reversed(self.runs)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, number: int) -> int:
        """Return the offset of a row."""
        run = bisect_right(self._ends, number)
        return self.runs[-1 - run][0] + (self._ends[run] - 1 - number)

    def page(self, start: int, count: int) -> list[int]:
        """Return the offsets of up to ``count`` rows."""
        return [self.at(number) for number in range(start, min(start + count, len(self)))]


class TraceNode:
    """A line of the tree that may have children.

    Attributes:
        parent: the node above, or None for the root.
        open: whether the children are shown.
        children: the nodes below.
    """

    def __init__(self, parent: TraceNode | None) -> None:
        self.parent = parent
        self.open = False
        self.children: list[TraceNode] = []

    @property
    def can_open(self) -> bool:
        """Whether there are children to show."""
        return bool(self.children)


class NoteNode(TraceNode):
    """A remark: a label, a text and its style."""

    def __init__(self, parent: TraceNode, label: str, text: str, style: str = "") -> None:
        super().__init__(parent)
        self.label, self.text, self.style = label, text, style


class TracedQuery(NoteNode):
    """A step of a query, shown in one line."""

    def __init__(self, parent: TraceNode, alias: str, query: str) -> None:
        super().__init__(parent, "query", " ".join(_COMMENT.sub("", query).split()))
        self.alias, self.query = alias, query


class TransactionNode(TraceNode):
    """A transaction that produced rows of a step."""

    def __init__(
        self, parent: TracedRows, transaction: ProducingTransaction, step: TraceStep, *, last: bool
    ) -> None:
        super().__init__(parent)
        self.made, self.step = transaction, step
        self.children += [TracedQuery(self, alias, query) for alias, query in transaction.query]
        if last:
            self.children += [NoteNode(self, "how", line) for line in step.how]


class SourceNode(TraceNode):
    """A source of the rows of a root."""

    def __init__(self, parent: TracedRows, source: RowSource, step: TraceStep) -> None:
        super().__init__(parent)
        self.source, self.step = source, step
        self.children += [NoteNode(self, "line", text) for text in line_texts(source)]
        if source.unlocated:
            self.children.append(NoteNode(self, "line", f"unknown: {source.unlocated}", "muted"))
        if source.state:
            self.children.append(NoteNode(self, "version", source.state))
        self.children += [NoteNode(self, "step", text) for text in source.steps]


class Heading(TraceNode):
    """The names of the columns above the rows of a group."""


class TracedRows(TraceNode):
    """Rows that can be traced: one row of a group, or all of them.

    Attributes:
        group: the group of the rows.
        row: number of the row in the group; -1 for all rows.
        job: id of the job that traces them; empty without one.
        step: the result, or None until there is one.
        failed: whether the job failed or was cancelled.
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
        """Whether the rows can be opened. Rows that are not traced yet can be opened too."""
        return not self.group.missing

    @property
    def runs(self) -> list[OffsetRange]:
        """The ranges of the offsets."""
        if self.row < 0:
            return self.group.offsets.runs
        offset = self.group.offsets.at(self.row)
        return [(offset, offset)]

    @property
    def needs_trace(self) -> bool:
        """Whether a job must trace the rows when they are opened."""
        return self.step is None and not self.job

    def set_pending(self, job: str, text: str, *, check: bool = False) -> None:
        """Store the job that traces the rows. With ``check`` the children stay."""
        self.job, self.failed, self.open = job, False, True
        self._note = NoteNode(self, "check" if check else "job", text, "busy")
        self.children = self._result_nodes() if check else []
        self._insert_notes([self._note])

    def _result_nodes(self) -> list[TraceNode]:
        """Return the children without the notes about jobs."""
        return [child for child in self.children if getattr(child, "label", "") not in _JOB_LABELS]

    def _insert_notes(self, notes: Sequence[NoteNode]) -> None:
        """Insert notes below the transactions and above the inputs, where they are visible."""
        count = sum(isinstance(child, TransactionNode) for child in self.children)
        self.children[count:count] = notes

    def set_activity(self, text: str) -> bool:
        """Show the activity of the job. Returns whether it changed."""
        if self._note is None or self._note.text == text:
            return False
        self._note.text = text
        return True

    def fail(self, text: str, style: str = "bad") -> None:
        """Show why the trace failed."""
        self.job, self.failed = "", True
        self._note = None
        self.children = self._result_nodes()
        self._insert_notes([NoteNode(self, "stopped" if style == "warn" else "failed", text, style)])

    def set_step(self, step: TraceStep, checked: Sequence[str] = ()) -> None:
        """Show the result, and the findings of a check. Open children of a checked step stay open."""
        self.job, self.failed = "", False
        self._note = None
        self.children = (
            self._result_nodes() if checked and self.step is not None else _nodes_of_step(self, step)
        )
        self.step = step
        notes = [
            NoteNode(self, "checked", line, "bad" if line.startswith("no: ") else "good") for line in checked
        ]
        count = sum(isinstance(child, TransactionNode) for child in self.children)
        self.children[count:count] = notes


def _nodes_of_step(traced: TracedRows, step: TraceStep) -> list[TraceNode]:
    """Return the children of traced rows."""
    children: list[TraceNode] = []
    if not step.sources:
        transactions = step.made[:_MAX_MADE]
        children += [
            TransactionNode(traced, transaction, step, last=transaction is transactions[-1])
            for transaction in transactions
        ]
        if more := len(step.made) - len(transactions):
            children.append(NoteNode(traced, "made by", count_of(more, "more transaction"), "muted"))
    if not step.exact:
        children.append(NoteNode(traced, "because", step.reason or UNKNOWN_REASON, "warn"))
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


class Group(TraceNode):
    """Rows of a dataset.

    Attributes:
        dataset, name: id and name of the dataset.
        offsets: the offsets of the rows.
        column: the column whose value is traced, or None for complete rows.
        columns: the columns that contribute to the value of the row above, each with its transformation.
        missing: whether the dataset is not in the workspace.
        traced: the rows that were opened, by their numbers.
        all_rows: all rows together, or None for a single row.
        heading: the names of the columns.
        cells: the cells that were read, by page.
        reader: reads the rows, or None until the first page was read.
        problem: why the rows cannot be read.
        widths: the widths of the columns in cells.
    """

    def __init__(
        self, parent: TraceNode | None, dataset: str, name: str, runs: Sequence[OffsetRange]
    ) -> None:
        super().__init__(parent)
        self.dataset, self.name, self.offsets = dataset, name, Offsets(runs)
        self.column: str | None = None
        self.columns: dict[str, str] = {}
        self.missing = False
        self.traced: dict[int, TracedRows] = {}
        self.all_rows: TracedRows | None = None
        self.heading = Heading(self)
        self.cells: OrderedDict[int, RowCells] = OrderedDict()
        self.reader: TracedRowReader | None = None
        self.problem = ""
        self.widths: list[int] = []

    @property
    def can_open(self) -> bool:
        """Whether there are rows to show."""
        return not self.missing and len(self.offsets) > 0

    @property
    def header_nodes(self) -> list[TraceNode]:
        """The nodes above the rows. The root has none: its heading is always visible."""
        if self.parent is None:
            return []
        return [self.heading] if self.all_rows is None else [self.all_rows, self.heading]

    def row(self, number: int) -> TracedRows:
        """Return a row as rows that can be traced."""
        if number not in self.traced:
            self.traced[number] = TracedRows(self, number)
        return self.traced[number]


class InputGroup(Group):
    """Rows of an input."""

    def __init__(self, parent: TracedRows, feed: TracedInput, column: str | None) -> None:
        key, name = branch_title(feed.dataset, feed.branch), branch_title(feed.name, feed.branch)
        super().__init__(parent, key, name, feed.runs)
        self.feed = feed
        self.missing = feed.missing
        self.columns = dict(feed.columns)
        # A value made of several columns is traced to their rows only.
        one = column is not None and len(feed.columns) == 1 and feed.columns[0][0] != _ANY_COLUMN
        self.column = feed.columns[0][0] if one else None
        if len(self.offsets) > 1 and self.can_open:
            self.all_rows = TracedRows(self, -1)
            if feed.step is not None:
                self.all_rows.set_step(feed.step)
        elif feed.step is not None and self.can_open:
            self.row(0).set_step(feed.step)


class EarlierGroup(Group):
    """Rows of the same dataset that were retracted or corrected."""

    def __init__(self, parent: TracedRows, step: TraceStep) -> None:
        super().__init__(parent, parent.group.dataset, parent.group.name, step.earlier)
        self.column = parent.group.column


class TraceLine(NamedTuple):
    """A line of the tree: a node, or a row of a group by its number; -1 for the node."""

    node: TraceNode
    row: int = -1


class _Segment(NamedTuple):
    line: TraceLine
    lines: int
    guides: str | None  # None for lines of the root
    last: bool


class TraceTree:
    """The lines of all open nodes.

    Attributes:
        top: the group of the traced row.
        pending: the rows that jobs trace, by the id of the job.
        cursor: index of the line under the cursor.
        count: number of lines.
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

    def rebuild(self) -> None:
        """Count the lines again, after a node was opened, closed or changed."""
        self._segments, self._starts, self.count = [], [], 0
        self._add_group(self.top, None)

    def _add_children(self, node: TraceNode, guides: str) -> None:
        if isinstance(node, Group):
            self._add_group(node, guides)
            return
        for at, child in enumerate(node.children):
            last = at == len(node.children) - 1
            self._add(TraceLine(child), 1, guides, last=last)
            if child.open:
                self._add_children(child, guides + ("  " if last else "│ "))

    def _add_group(self, group: Group, guides: str | None) -> None:
        below = "" if guides is None else guides + "│ "
        for node in group.header_nodes:
            self._add(TraceLine(node), 1, guides, last=False)
            if node.open:
                self._add_children(node, below)
        rows, done = len(group.offsets), 0
        for row in sorted(number for number, traced in group.traced.items() if traced.open):
            last = row == rows - 1
            self._add(TraceLine(group, done), row - done + 1, guides, last=last)
            self._add_children(group.traced[row], "" if guides is None else guides + ("  " if last else "│ "))
            done = row + 1
        self._add(TraceLine(group, done), rows - done, guides, last=True)

    def _add(self, line: TraceLine, count: int, guides: str | None, *, last: bool) -> None:
        if count:
            self._segments.append(_Segment(line, count, guides, last))
            self._starts.append(self.count)
            self.count += count

    def _segment(self, index: int) -> tuple[_Segment, int]:
        """Return the segment of a line, and its position in the segment."""
        at = bisect_right(self._starts, index) - 1
        return self._segments[at], index - self._starts[at]

    def line(self, index: int) -> TraceLine:
        """Return a line by its index."""
        segment, within = self._segment(index)
        node, row = segment.line
        return segment.line if row < 0 else TraceLine(node, row + within)

    def guides(self, index: int) -> str:
        """Return the guides that connect a line with its parents."""
        segment, within = self._segment(index)
        if segment.guides is None:
            return ""
        if isinstance(segment.line.node, Heading):
            return segment.guides + "│ "
        last = segment.last and within == segment.lines - 1
        return segment.guides + ("└─" if last else "├─")

    def index(self, target: TraceLine) -> int | None:
        """Return the index of a line, or None if it is not shown."""
        for start, (line, count, *_) in zip(self._starts, self._segments, strict=True):
            if line.node is target.node and (line.row < 0) == (target.row < 0):
                if target.row < 0:
                    return start
                if line.row <= target.row < line.row + count:
                    return start + target.row - line.row
        return None

    @staticmethod
    def group(line: TraceLine) -> Group:
        """Return the group of a line's row, or of the nearest parent."""
        node: TraceNode | None = line.node
        while node is not None and not isinstance(node, Group):
            node = node.parent
        assert node is not None  # the root is a group
        own = line.row < 0 and node is line.node  # the group of the row above
        return node.parent.group if own and isinstance(node.parent, TracedRows) else node

    @staticmethod
    def opener(line: TraceLine) -> TraceNode:
        """Return the node that is opened and closed at a line."""
        return line.node.row(line.row) if line.row >= 0 and isinstance(line.node, Group) else line.node

    @staticmethod
    def parent(line: TraceLine) -> TraceLine | None:
        """Return the parent of a line, or None at the root."""
        node = line.node if line.row >= 0 else line.node.parent
        if isinstance(node, TracedRows) and node.row >= 0:
            return TraceLine(node.group, node.row)
        if isinstance(node, Group) and node.parent is None:
            return None
        return None if node is None else TraceLine(node)

    def all_traced_rows(self) -> Iterator[TracedRows]:
        """Yield all rows that can be traced, from the root."""
        waiting: list[TraceNode] = [self.top]
        while waiting:
            node = waiting.pop()
            if isinstance(node, TracedRows):
                yield node
            if isinstance(node, Group):
                waiting += [*node.traced.values(), *([node.all_rows] if node.all_rows else [])]
            waiting += node.children


class TraceSession:
    """A row with the trees of the row and its values. It stays valid after the screen is closed.

    Attributes:
        dataset, name, offset: id and name of the dataset, and offset of the row.
        value: the column under the cursor.
        is_data_column: whether ``value`` is a column of the data, and no system column.
        column: the column whose value is traced, or None for the complete row.

    Args:
        open_rows: opens the rows of a dataset. It blocks.
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
        """The tree of ``column``, created on first use."""
        if self.column not in self._trees:
            run = (self.offset, self.offset)
            self._trees[self.column] = TraceTree(self.dataset, self.name, [run], self.column)
        return self._trees[self.column]

    @property
    def trees(self) -> list[TraceTree]:
        """All trees."""
        return list(self._trees.values())

    def rows(self, dataset: str) -> RowWindow | None:
        """Return the rows of a dataset, opened once. Called in a thread."""
        with self._lock:
            if dataset not in self._windows:
                self._windows[dataset] = self._open_rows(dataset)
            return self._windows[dataset]

    def row_of(self, dataset: str, offset: int) -> int:
        """Return the number of the row with an offset. Called in a thread.

        Raises:
            NotFound: there is no such row.
        """
        window = self.rows(dataset)
        row = window.row_of_offset(offset) if isinstance(window, StoredWindow) else offset
        if row is None:
            raise NotFound(f"row {offset} no longer exists")
        return row


class RowLocation(NamedTuple):
    """A row of a dataset, and its block by number or hash, or None if the block is unknown."""

    dataset: str
    offset: int
    block: int | str | None = None


def location_of(line: TraceLine) -> RowLocation | None:
    """Return the row and block of a line, or of its nearest parent."""
    if line.row >= 0 and isinstance(line.node, Group):
        return RowLocation(line.node.dataset, line.node.offsets.at(line.row))
    node: TraceNode | None = line.node
    while node is not None:
        if (location := _node_location(node)) is not None:
            return location
        node = node.parent
    return None


def _node_location(node: TraceNode) -> RowLocation | None:
    match node:
        case TransactionNode():
            key = branch_title(node.step.dataset, node.step.branch)
            return _first_location(key, node.made, node.made.sequence_number)
        case SourceNode():
            key = branch_title(node.step.dataset, node.step.branch)
            return _first_location(key, node.source, node.source.block)
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


def transaction_at(line: TraceLine) -> TransactionNode | None:
    """Return the transaction of a line's row, or of the nearest parent."""
    node: TraceNode | None = line.node
    if line.row >= 0 and isinstance(node, Group):
        node = node.traced.get(line.row) or node
    while node is not None:
        if isinstance(node, TransactionNode):
            return node
        if isinstance(node, TracedRows) and (
            transaction := next(
                (child for child in node.children if isinstance(child, TransactionNode)), None
            )
        ):
            return transaction
        node = node.parent
    return None
