"""Pane 2."""

from __future__ import annotations

from typing import Final

from odf_tui.actions.base import Action, Situation, need, readable
from odf_tui.chain_state import REVISED

_BLOCK: Final = need("block", "no block is selected")
_FOUND: Final = need("findings", "nothing was found on these blocks: v verifies the dataset")
_TRAIL: Final = need("trail", "no link was followed yet")


def _signed(situation: Situation) -> str | None:
    if (block := situation.block) is None or not block.broken:
        return _BLOCK(situation)
    return "this block cannot be read"


def _revised(situation: Situation) -> str | None:
    if (block := situation.block) is None or block.event in REVISED:
        return _BLOCK(situation)
    if block.broken:
        return "this block cannot be read: b shows its bytes"
    what = f"block {block.sequence_number} is {block.event}"
    return f"{what}: only queries, sources, schemas and descriptions change"


ACTIONS: Final = (
    Action("open_block", ("enter",), "show the block in full", "blocks", "block", _BLOCK),
    Action(
        "diff_block",
        ("d",),
        "what the block changed of a query, source or schema",
        "blocks",
        "diff",
        _revised,
    ),
    Action(
        "block_bytes", ("b",), "the bytes of the block, with the fields in them", "blocks", "bytes", _BLOCK
    ),
    Action(
        "prove_block", ("S",), "sign the block with the dataset's key, as its owner", "blocks", "", _signed
    ),
    Action("block_kinds", ("f",), "show only some kinds of events", "blocks", "kinds", readable),
    Action("jump_block", ("J",), "go to a number, hash, time or offset", "blocks", "jump", readable),
    Action("next_finding", ("n", "right_curly_bracket"), "next finding", "blocks", "finding", _FOUND),
    Action("previous_finding", ("N", "left_curly_bracket"), "previous finding", "blocks", guard=_FOUND),
    Action("leave_blocks", ("escape",), "one level up", "blocks", listed=False),
    Action("back", ("ctrl+o", "backspace"), "back to where a link was followed from", guard=_TRAIL),
)
