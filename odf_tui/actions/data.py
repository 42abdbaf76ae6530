"""Pane 3."""

from __future__ import annotations

from typing import Final

from odf_tui.actions.base import Action, need, readable

_ROWS: Final = need("has_rows", "there are no rows")


def _on_rows(name: str, key: str, title: str, hint: str = "") -> Action:
    return Action(name, (key,), title, "data", hint, _ROWS)


ACTIONS: Final = (
    _on_rows("open_row", "enter", "show the row, every value in full", "row"),
    _on_rows("jump", "J", "go to an offset, a row or a time", "go to"),
    _on_rows("find_rows", "slash", "look for a text in all rows", "look for"),
    _on_rows("next_match", "n", "next row that holds the text looked for with /"),
    _on_rows("previous_match", "N", "row before that holds the text looked for with /"),
    _on_rows("next_slice", "right_square_bracket", "next slice"),
    _on_rows("previous_slice", "left_square_bracket", "previous slice"),
    Action(
        "travel",
        ("at",),
        "see the rows as at an earlier block, or as of an event time",
        "data",
        "time",
        readable,
    ),
    _on_rows("trace", "w", "show where this row or value comes from, step by step", "where from"),
    Action(
        "differences",
        ("d",),
        "compare with an earlier version, or with another dataset",
        "data",
        "",
        readable,
    ),
    _on_rows("sort_up", "less_than_sign", "sort what is loaded by this column, least first"),
    _on_rows("sort_down", "greater_than_sign", "sort what is loaded by this column, greatest first"),
    _on_rows("keep_rows", "f", "keep rows by the value of this cell, of what is loaded", "keep"),
    _on_rows("row_among_all", "o", "show this row of a sorted or kept part among all rows"),
    _on_rows("columns", "c", "show, hide, move and freeze columns", "columns"),
    _on_rows("hide_column", "H", "hide this column"),
    _on_rows("freeze_columns", "F", "keep the columns up to this one in sight, and back"),
    _on_rows("mark_row", "space", "mark the row; a second time, the rows up to there"),
    Action("statistics", ("i",), "schema and statistics of all columns", "data", "statistics", readable),
    Action(
        "current_state", ("K",), "current state by key instead of all rows, and back", "data", "", readable
    ),
    Action("current_state_by", ("B",), "current state by columns of your choice", "data", "", readable),
    _on_rows("export", "E", "write rows to a file: CSV, JSON or Parquet"),
    _on_rows("copy_rows", "Y", "copy the marked rows, or this one"),
)
