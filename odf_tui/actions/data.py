"""Pane 3."""

from __future__ import annotations

from typing import Final

from odf_tui.actions.base import Action, need

ACTIONS: Final = (
    Action(
        "open_row",
        ("enter",),
        "show the row, a line for each column",
        "data",
        "row",
        need("has_rows", "there are no rows"),
    ),
)
