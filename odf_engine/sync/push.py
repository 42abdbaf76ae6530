"""Pushing a dataset to somewhere else."""

from __future__ import annotations

from typing import Literal

import msgspec

from odf_engine.identity.multiformats import Multihash
from odf_engine.progress import Reporter
from odf_engine.sync.compare import Relation
from odf_engine.sync.remote import RemoteDataset
from odf_engine.workspace.workspace import DatasetEntry


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """What a push did.

    Attributes:
        status: ``updated`` or ``up-to-date``.
        old_head, new_head: of the dataset there.
        blocks, objects, bytes: how much went there.
        relation: how the two stand to each other afterwards.
    """

    status: Literal["updated", "up-to-date"]
    old_head: Multihash | None
    new_head: Multihash | None
    blocks: int
    objects: int
    bytes: int
    relation: Relation


def push(
    entry: DatasetEntry, remote: RemoteDataset, reporter: Reporter, *, force: bool, parallel: int
) -> Pushed:
    """Brings the remote up to date with the dataset here.

    Raises:
        Conflict: the remote has blocks that are not here, and ``force`` is not given; it moved meanwhile;
            or it is another dataset, whatever is given.
        Unsupported: the remote cannot be written to.
        OdfError: as the remote has it; its head is what it was.
    """
    raise NotImplementedError
