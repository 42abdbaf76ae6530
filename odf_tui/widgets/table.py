"""The datasets as a list with columns, in an order to choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from rich.cells import cell_len
from textual.geometry import Size

from odf_tui import remotes
from odf_tui.humane import clip, count, moment, plain, shorten, size
from odf_tui.narrowing import kinds_of
from odf_tui.state import DatasetRow, Health
from odf_tui.widgets.drawing import UNTRUSTED, Board, Lineage, kind_glyph
from odf_tui.widgets.lines import Span, right
from odf_tui.widgets.states import fitting

_GAP: Final = "  "
_LEAD: Final = 4  # lineage, kind, and a blank after each
_NAME_WIDTH: Final = 40
_INPUTS_WIDTH: Final = 60
_REMOTE_WIDTH: Final = 26
_STATE_WIDTH: Final = 13

Value = str | int | None


class _Column(msgspec.Struct, frozen=True):
    """A column: its name, its cells (0: as wide as what is in it), which side, and what sorts it."""

    name: str
    width: int
    value: Callable[[DatasetRow, Board], Value]
    rightwards: bool = False


def _kind(row: DatasetRow, board: Board) -> str:
    return (kinds_of(row) or ("",))[-1]


def _state(row: DatasetRow, board: Board) -> int:
    return list(Health).index(board.health(row.id))


def _remote(row: DatasetRow) -> str:
    """Its mark, and where it comes from or goes to."""
    labels = ", ".join(dict.fromkeys(each.label for each in row.remotes))
    return plain(f"{remotes.mark(row.remotes)} {labels}".strip()) if labels else ""


_COLUMNS: Final = (
    _Column("name", 0, lambda row, board: row.name.lower()),
    _Column("kind", 10, _kind),
    _Column("state", _STATE_WIDTH, _state),
    _Column("remote", 0, lambda row, board: _remote(row) or None),
    _Column("rows", 9, lambda row, board: row.records, rightwards=True),
    _Column("size", 8, lambda row, board: row.size, rightwards=True),
    _Column("blocks", 7, lambda row, board: row.blocks, rightwards=True),
    _Column("watermark", 16, lambda row, board: row.watermark),
    _Column("last pull", 16, lambda row, board: row.last_pulled),
    _Column("inputs", 0, lambda row, board: len(row.inputs) or None),
)
SORTS: Final = tuple(column.name for column in _COLUMNS)
"""What the list can be sorted by."""
_REMOTE: Final = SORTS.index("remote")


class TableDrawing:
    """A line for each dataset. ``sort`` is a name of :data:`SORTS`, and whether the other way round."""

    headed = True

    def __init__(self, board: Board) -> None:
        self.board = board
        self.sort: tuple[str, bool] = (SORTS[0], False)
        self._columns: list[int] = []  # those that are shown
        self._order: list[str] = []
        self._at: dict[str, int] = {}
        self._widths: list[int] = []
        self._lineage = Lineage([], None)

    def load(self) -> None:
        """The board, or the order, has changed."""
        rows, board = sorted(self.board.rows.values(), key=lambda row: row.name.lower()), self.board
        name, reverse = self.sort
        column = next(each for each in _COLUMNS if each.name == name)
        known = [(value, row) for row in rows if (value := column.value(row, board)) is not None]
        known.sort(key=lambda each: each[0], reverse=reverse)  # type: ignore[arg-type, return-value]
        there = {row.id for _, row in known}
        self._order = [row.id for _, row in known] + [row.id for row in rows if row.id not in there]
        self._at = {dataset: at for at, dataset in enumerate(self._order)}
        names = max((cell_len(row.name) for row in rows), default=0)
        inputs = max((cell_len(self._inputs(row)) for row in rows), default=0)
        remote = max((cell_len(_remote(row)) for row in rows), default=0)
        self._widths = [each.width for each in _COLUMNS]
        self._widths[0] = min(max(names, 12), _NAME_WIDTH)
        self._widths[_REMOTE] = min(max(remote, 8), _REMOTE_WIDTH) if remote else 0
        self._widths[-1] = min(max(inputs, 8), _INPUTS_WIDTH)
        self._columns = [at for at, width in enumerate(self._widths) if width]

    @property
    def sorts(self) -> list[str]:
        """What it can be sorted by: the columns that are shown."""
        return [SORTS[at] for at in self._columns]

    def fit(self, width: int) -> bool:
        """A window of another width shows other cells of the same lines."""
        return False

    @property
    def size(self) -> Size:
        """Cells of all lines, without the header."""
        return Size(_LEAD + sum(self._widths) + len(_GAP) * (len(self._columns) - 1), len(self._order))

    @property
    def least(self) -> Size:
        """The same: all of it has to be seen."""
        return self.size

    def light(self, selected: str | None) -> set[int]:
        """What is made of the selected dataset, and what it is made of, is marked; the lines that change."""
        before = self._lineage
        self._lineage = Lineage(self.board.edges, selected)
        return {self._at[node] for node in before.nodes | self._lineage.nodes if node in self._at}

    # --- Where things are ---

    def first(self) -> str | None:
        """The dataset to begin with."""
        return next(iter(self._order), None)

    def row_of(self, dataset: str) -> int:
        """The line of a dataset."""
        return self._at[dataset]

    def extent_of(self, dataset: str) -> tuple[int, int]:
        """A line goes through the whole window."""
        return 0, 0

    def at(self, x: int, y: int) -> str | None:
        """The dataset in a line."""
        return self._order[y] if 0 <= y < len(self._order) else None

    def target(self, dataset: str, move: str, page: int) -> str | None:
        """Where a move leads from a dataset."""
        last = len(self._order) - 1
        at = self._at[dataset]
        found = {
            "down": at + 1, "above": at - 1, "first": 0, "last": last,
            "page_down": at + page, "page_up": at - page,
        }.get(move, at)  # fmt: skip
        return self._order[max(min(found, last), 0)]

    # --- Cells ---

    def header(self) -> list[Span]:
        """The names of the columns; an arrow stands at the one that sorts."""
        spans: list[Span] = [(" " * _LEAD, "head")]
        for at in self._columns:
            column, width = _COLUMNS[at], self._widths[at]
            sorts = column.name == self.sort[0]
            text = f"{column.name} {'↓' if self.sort[1] else '↑'}" if sorts else column.name
            cell = right(text, width) if column.rightwards else clip(text, width)
            spans += [(_GAP, "head")] * bool(at) + [(cell, "strong" if sorts else "head")]
        return spans

    def spans(self, index: int, selected: str | None, style: str) -> list[Span]:
        """A dataset."""
        row = self.board.rows[self._order[index]]
        health = self.board.health(row.id)
        above, below = row.id in self._lineage.above, row.id in self._lineage.below
        texts: Sequence[Span] = (
            (shorten(plain(row.name), self._widths[0]), "lineage" if above or below else ""),
            (_kind(row, self.board), "muted"),
            (self._state(row, health), health.style),
            (shorten(_remote(row), self._widths[_REMOTE]), remotes.style(row.remotes)),
            (count(row.records), ""),
            (size(row.size), "muted"),
            (count(row.blocks), "muted"),
            (moment(row.watermark), "muted"),
            (moment(row.last_pulled), "muted"),
            (self._inputs(row), "muted"),
        )
        mark = "<" if above else ">" if below else " "
        spans: list[Span] = [
            (f"{mark} ", "lineage"), (f"{kind_glyph(row)} ", "name" if row.derivative else "muted")
        ]  # fmt: skip
        for at in self._columns:
            column, width, (text, how) = _COLUMNS[at], self._widths[at], texts[at]
            cell = right(text, width) if column.rightwards else clip(text, width)
            spans += [(_GAP, "")] * bool(at) + [(cell, how)]
        return spans

    def _state(self, row: DatasetRow, health: Health) -> str:
        found = self.board.marks(row.id)
        mark = (
            fitting(found, _STATE_WIDTH - row.untrusted)
            if len(found) > 1
            else f"{health.glyph} {health.word}"
        )
        return f"{UNTRUSTED if row.untrusted else ''}{mark}"

    def _inputs(self, row: DatasetRow) -> str:
        return plain(", ".join(self.board.names.get(each, each) for each in row.inputs))
