"""Pane 2."""

from __future__ import annotations

from typing import Final

from odf_tui.actions.base import Action, need

ACTIONS: Final = (
    Action(
        "open_block",
        ("enter",),
        "show the block in full",
        "blocks",
        "block",
        need("block", "no block is selected"),
    ),
)
