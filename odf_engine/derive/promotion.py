"""Promotion of branches: heads of derivative datasets only refer to blocks in the heads of their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odf_engine.chain.compacted_history import find_branch, find_current_number
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.references import Promotion, promote_branch, read_branch
from odf_engine.errors import Conflict, NotFound
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash

if TYPE_CHECKING:
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace


def promote(
    workspace: Workspace, entry: DatasetEntry, name: str, expected: Multihash | None = None
) -> Promotion:
    """Move the head of a dataset to the newest block of a branch.

    Args:
        workspace: has the inputs. Inputs that it lacks are not checked.
        entry: the dataset.
        name: the name of the branch.
        expected: see :func:`odf_engine.chain.references.promote_branch`.

    Raises:
        NotFound: there is no such branch.
        Conflict: as by :func:`odf_engine.chain.references.promote_branch` and :func:`check_inputs`.
    """
    checked = check_inputs(workspace, entry, name)
    return promote_branch(entry.dataset, name, expected or checked)


def check_inputs(workspace: Workspace, entry: DatasetEntry, name: str) -> Multihash | None:
    """Check that the heads of the inputs have the blocks that a branch was derived from.

    Returns:
        The newest block of the branch that was checked.

    Raises:
        NotFound: there is no such branch.
        Conflict: the head of an input lacks blocks.
    """
    entry.dataset.refresh_branches()
    branch = entry.dataset.branch(name)
    checked = branch.head()
    for dataset_id, block in _blocks_read(entry.dataset, branch, name).items():
        try:
            source = workspace.resolve(str(dataset_id))
        except NotFound:
            continue
        if find_current_number(source.dataset, block) is None:
            other = find_branch(source.dataset, block) or name
            raise Conflict(
                f"branch '{name}' was derived from blocks that the head of {source.alias} lacks",
                hint=f"promote {source.alias} first: odf branch {source.alias} --promote {other}",
            )
    return checked


def _blocks_read(dataset: Dataset, branch: Dataset, name: str) -> dict[DatasetId, Multihash]:
    """Return the last block of each input that the transactions of a branch have read since its fork."""
    compared = read_branch(dataset, name)
    if not compared.ahead or compared.fork is None:
        return {}
    blocks: dict[DatasetId, Multihash] = {}
    for row in branch.list_blocks(compared.ahead, kinds=("ExecuteTransform",)):
        if row.sequence_number <= compared.fork:
            break
        event: Any = branch.block(row.hash).block.event
        for item in event.query_inputs:
            if item.last_block is not None:
                blocks.setdefault(item.dataset_id, item.last_block)
    return blocks
