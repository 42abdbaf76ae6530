"""How much a query whose rows can change at any time reads in a transaction, and the limit for it."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace as structs_replace

from odf_engine.base.config import TransformConfig
from odf_engine.base.progress import size_of
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.derive.plan import Transaction, boundary_transaction
from odf_engine.engines.contract import Engine, QueryInput
from odf_engine.errors import Unsupported
from odf_engine.metadata.model import SetTransform
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

_UNITS: Final = "kmgt"


def size_of_inputs(workspace: Workspace, transform: SetTransform) -> int:
    """Return the total size of the slices of the inputs as they are now, in bytes."""
    datasets = [workspace.resolve(item.dataset_ref).dataset for item in transform.inputs]
    return sum(row.size for dataset in datasets for row in dataset.slices())


def size_of_rows_read(transaction: Transaction) -> int:
    """Return the total size of the slices with the earlier and the new rows of a transaction, in bytes."""
    total = 0
    for plan in transaction.inputs:
        last = plan.interval.prev_offset
        earlier = [] if last is None else plan.entry.dataset.slices(0, last)
        # By hash: a compaction can merge earlier and new rows into one slice.
        total += sum({row.physical_hash: row.size for row in (*earlier, *plan.slices)}.values())
    return total


def find_excess(transaction: Transaction, config: TransformConfig) -> Unsupported | None:
    """Return the error of a transaction that would read more than the limit, or None."""
    return None if config.most_read is None else excessive_read(size_of_rows_read(transaction), config)


def excessive_read(size: int, config: TransformConfig) -> Unsupported | None:
    """Return the error of a read of more than ``transform.mostReadBytes``, or None."""
    if config.most_read is None or size <= config.most_read:
        return None
    return Unsupported(
        f"a pull would read {size_of(size)}, more than transform.mostReadBytes ({config.most_read_bytes}): "
        "the query reads earlier rows of its inputs again",
        where="transform",
        hint=f"raise the limit, such as odf config set transform.mostReadBytes {_setting_for(2 * size)}; or "
        "restrict the query by time, with a window or a time bound: odf help transforms",
    )


def _setting_for(size: int) -> str:
    """Return a value of the setting that allows at least ``size`` bytes."""
    power = min(max((size.bit_length() - 1) // 10, 1), len(_UNITS))
    return f"{-(-size >> 10 * power)}{_UNITS[power - 1]}"


def check_read_after_reset(workspace: Workspace, entry: DatasetEntry, engine: Engine) -> None:
    """Check that a derivative dataset can be derived from the start of its inputs within the limit.

    Raises:
        Unsupported: a transaction would read more than the limit.
    """
    state = entry.dataset.state()
    if state.transform is None:
        return
    excess = excessive_read(size_of_inputs(workspace, state.transform), workspace.config.transform)
    if excess is None:
        return
    start = structs_replace(state, last_inputs=None)
    if rereads(engine, boundary_transaction(workspace, entry, start, "rebuild", Timestamp.now())):
        raise excess


def rereads(engine: Engine, transaction: Transaction) -> bool:
    """Return whether the transactions of a query read earlier rows of its inputs again.

    An engine that cannot validate queries has no such queries.
    """
    inputs = [QueryInput(plan.alias, decode_schema(plan.schema), plan.vocab) for plan in transaction.inputs]
    try:
        checked = engine.validate(transaction.transform.transform, inputs, transaction.state.vocabulary, None)
    except Unsupported:
        return False
    return checked.rereads
