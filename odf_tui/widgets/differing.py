"""Rows that differ as a table: a changed value shows what it was and what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from odf_engine.views.diff import CHANGE_COLUMN, Difference
from odf_tui.diffwords import ARROW, SIGNS, STYLES, RowTexts
from odf_tui.source import RowWindow
from odf_tui.widgets.chunks import Opened, open_window
from odf_tui.widgets.lines import Span
from odf_tui.widgets.rows import RowsView
from odf_tui.windows import Gap, read_part

_LONGEST: Final = 400
_NUMBERS: Final = ("int", "uint", "float", "double", "halffloat", "decimal")


class DifferenceWindow:
    """Rows that differ, as texts: what happened to a row, then each column once.

    After the key come the columns in which most rows have changed: they would be out of sight else.

    Attributes:
        found: the whole difference.
        shown: its columns in their order.
        file: the Parquet file.
    """

    system_columns = ("", "", "", "")

    def __init__(self, found: Difference, rows: RowWindow) -> None:
        self.found = found
        self.file = found.file
        self._rows = rows
        self.row_count = rows.row_count
        self.shown = sorted(
            found.columns, key=lambda each: (not each.key, -found.by_column.get(each.name, 0))
        )
        names = [CHANGE_COLUMN, *(each.name for each in self.shown)]
        self.columns = pa.schema([pa.field(name, pa.string()) for name in names])

    def window(self, start: int, count: int) -> pa.Table:
        """Some rows."""
        return self.part(start, count, range(len(self.columns)))[0]

    def part(self, start: int, count: int, columns: Sequence[int]) -> tuple[pa.Table, Sequence[Gap]]:
        """Some columns of some rows."""
        wanted = [column for column in columns if column]
        texts = self.texts(start, count, [column - 1 for column in wanted])
        rows = range(len(texts.changes))
        made = {column: [texts.cell(row, at) for row in rows] for at, column in enumerate(wanted)} | {
            0: [f"{SIGNS[change]} {change}" for change in texts.changes]
        }
        schema = pa.schema([self.columns.field(column) for column in columns])
        return pa.table([pa.array(made[column], pa.string()) for column in columns], schema=schema), ()

    def texts(self, start: int, count: int, columns: Sequence[int] | None = None) -> RowTexts:
        """Some rows; only these of the columns that are shown when they are named."""
        found = self.found.columns if columns is None else [self.shown[at] for at in columns]
        wanted = dict.fromkeys(name for each in found for name in (each.old, each.new) if name is not None)
        places = [self._rows.columns.names.index(name) for name in (CHANGE_COLUMN, *wanted)]
        table, _ = read_part(self._rows, start, count, places)
        return RowTexts(found, bool(self.found.key), table, None if columns is None else _LONGEST)


def open_difference(window: DifferenceWindow) -> Opened | None:
    """Reads what is needed to show rows; in a thread. None when there are none."""
    if not window.row_count:
        return None
    opened = open_window(window)
    opened.columns.right = [
        False,
        *(_is_number(each.new_type or each.old_type) for each in window.shown),
    ]
    opened.columns.fixed = 1 + len(window.found.key)
    return opened


def _is_number(kind: str | None) -> bool:
    return kind is not None and kind.startswith(_NUMBERS)


class DifferenceRows(RowsView):
    """The table. What differs has an arrow in it, and a colour where there are some."""

    def _cell(self, index: int, column: int, width: int, text: str | None) -> Span:
        fitted, style = super()._cell(index, column, width, text)
        if style in ("cursor", "strong") or text is None:
            return fitted, style
        if column == 0:
            return fitted, STYLES.get(text[:1], "")
        return (fitted, "warn") if ARROW in text and self.value(index, 0) == "~ changed" else (fitted, style)
