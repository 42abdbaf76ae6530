"""Queries over datasets."""

from __future__ import annotations

from typing import Final

from odf_tui.actions.base import Action

ACTIONS: Final = (
    Action("sql", ("s",), "ask a query in SQL; on the job of one: that query and its result", hint="sql"),
)
