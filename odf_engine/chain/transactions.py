"""What a transaction of a derivative dataset did, as its block says it."""

from __future__ import annotations

from typing import Literal

from odf_engine.metadata.model import ExecuteTransform

Kind = Literal["execute", "finish", "rebuild"]


def kind_of_transaction(event: ExecuteTransform) -> Kind:
    """Whether the query was executed on what its inputs brought, or its state was finished or rebuilt.

    Where no input moves, a state that ends was finished, and one that begins was rebuilt.
    """
    if any(item.new_block_hash is not None for item in event.query_inputs):
        return "execute"
    if event.new_checkpoint is None:
        return "execute" if event.prev_checkpoint is None else "finish"
    return "execute" if event.new_checkpoint.physical_hash == event.prev_checkpoint else "rebuild"
