"""Derivative datasets with rows of another version of a built-in engine than the installed one."""

from __future__ import annotations

import sys
from collections.abc import Collection

from odf_engine.chain.dataset import Dataset
from odf_engine.chain.normal_form import engine_version
from odf_engine.metadata.model import SetTransform


def other_versions(dataset: Dataset, configured: Collection[str]) -> list[str]:
    """Return the other versions of built-in engines that ran transactions, such as ``spark 4.1.1+odf3``.

    Queries without a recorded version are not considered.

    Args:
        dataset: the dataset.
        configured: names of the configured engines, which replace built-in ones.
    """
    replaced = {name.lower() for name in configured}
    nones: dict[str, None] = {}
    before = sys.maxsize
    for row in dataset.list_blocks(sys.maxsize, kinds=("SetTransform",)):
        executed = dataset.list_blocks(1, before=before, kinds=("ExecuteTransform",))
        before = row.sequence_number
        event = dataset.block(row.hash).block.event
        if not isinstance(event, SetTransform) or not executed or executed[0].sequence_number < before:
            continue
        sql = event.transform
        installed = None if sql.engine.lower() in replaced else engine_version(sql.engine)
        if installed is not None and sql.version not in (None, installed):
            nones[f"{sql.engine.lower()} {sql.version}"] = None
    return list(nones)[::-1]
