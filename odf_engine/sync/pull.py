"""Pulling a dataset from somewhere else: see what is new there, fetch it, prove it, then move the head."""

from __future__ import annotations

from typing import Literal

import msgspec

from odf_engine.errors import AlreadyExists
from odf_engine.identity.did import DatasetId
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
        bytes: how much was fetched.
        relation: how the two stand to each other afterwards.
    """

    status: Literal["updated", "up-to-date"]
    old_head: Multihash | None
    new_head: Multihash | None
    their_head: Multihash | None
    blocks: int
    records: int
    bytes: int = 0
    relation: Relation


class HereAlready(AlreadyExists):
    """The dataset of a remote is in the workspace under another name; ``dataset`` is which."""

    dataset: DatasetId | None = None


def pull_into(
    entry: DatasetEntry, remote: RemoteDataset, reporter: Reporter, *, force: bool, parallel: int
) -> Pulled:
    """Takes over what is new at the remote.

    Raises:
        Diverged: both have changed since their common block, and ``force`` is not given.
        Conflict: it is another dataset, whatever is given.
        BadData, ChainRuleViolated: the source is damaged.
        NotFound, SourceUnavailable, Cancelled: nothing is changed; what came whole is kept for the next time.
    """
    raise NotImplementedError


def pull_new(
    workspace: Workspace, alias: DatasetAlias, remote: RemoteDataset, reporter: Reporter, *, parallel: int
) -> tuple[DatasetEntry, Pulled]:
    """Makes a dataset here of the one at the remote; it appears when it is whole.

    Raises:
        AlreadyExists: the name is taken.
        HereAlready: the dataset is here under another name.
        OdfError: as :func:`pull_into`.
    """
    raise NotImplementedError
