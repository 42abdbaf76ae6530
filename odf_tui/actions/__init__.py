"""Every action once: its key, where it is valid, what it is called. Keys, help and palette come from here.

An action's work is the method ``do_<id>`` of the workbench.
"""

from __future__ import annotations

from typing import Final

from odf_tui.actions import blocks, data, datasets, general, jobs, sharing, sql
from odf_tui.actions.base import Action
from odf_tui.actions.keymap import KeyMap

ACTIONS: Final[tuple[Action, ...]] = (
    *datasets.ACTIONS, *sharing.ACTIONS, *jobs.ACTIONS, *blocks.ACTIONS, *data.ACTIONS, *sql.ACTIONS,
    *general.ACTIONS,
)  # fmt: skip

USUAL: Final = KeyMap(ACTIONS)
BY_ID: Final = USUAL.by_id

all_keys, find, valid = USUAL.all_keys, USUAL.find, USUAL.valid
