"""Pulling a dataset from somewhere else: see what is new there, fetch it, prove it, then move the head."""

from __future__ import annotations

from typing import Literal

import msgspec

from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.refs import DatasetAlias
from odf_engine.progress import Reporter
from odf_engine.sync.compare import Relation
from odf_engine.sync.remote import RemoteDataset
from odf_engine.workspace.workspace import DatasetEntry, Workspace


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """What a pull did.

    Attributes:
        status: ``updated``, or ``up-to-date``, also when the dataset here has more.
        old_head, new_head: of the dataset here.
        their_head: of the one there.
        blocks, records: how many came.
        relation: how the two stand to each other afterwards.
    """

    status: Literal["updated", "up-to-date"]
    old_head: Multihash | None
    new_head: Multihash | None
    their_head: Multihash | None
    blocks: int
    records: int
    relation: Relation


def pull_into(
    entry: DatasetEntry, remote: RemoteDataset, reporter: Reporter, *, force: bool, parallel: int
) -> Pulled:
    """Takes over what is new at the remote.

    Raises:
        Conflict: both have changed since their common block, and ``force`` is not given; or it is another
            dataset, whatever is given.
        BadData, ChainRuleViolated: the source is damaged.
        NotFound, SourceUnavailable, Cancelled: nothing is changed; what came whole is kept for the next time.
    """
    raise NotImplementedError


def pull_new(
    workspace: Workspace, alias: DatasetAlias, remote: RemoteDataset, reporter: Reporter, *, parallel: int
) -> tuple[DatasetEntry, Pulled]:
    """Makes a dataset here of the one at the remote; it appears when it is whole.

    Raises:
        AlreadyExists: the name is taken, or the dataset is here under another one.
        OdfError: as :func:`pull_into`.
    """
    raise NotImplementedError
