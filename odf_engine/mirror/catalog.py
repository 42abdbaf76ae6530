"""The list of the datasets of a store, and the names of its files. Imports little: every command loads it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

CATALOG: Final = "odf-store.json"
"""The object with the list."""
HEADS: Final = "odf-heads.json"
"""The object with the heads of the datasets, see :mod:`odf_engine.mirror.heads_list`."""
HEADS_VERSION: Final = 1
MARKER: Final = "info/store.json"
"""In the folder of a mirror: the newest head that was read, and its version."""


ORIGIN_FILE: Final = "info/origin"
"""In a dataset's folder, here and in a store: the origin of its definition, if it is third-party."""


class CatalogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The name of a dataset, and the origin of its definition, if it is by a third party."""

    alias: str
    origin: str = ""


class Operation(msgspec.Struct, frozen=True):
    """A creation or deletion in progress. Only its owner writes and deletes the objects of the dataset.

    Attributes:
        kind: what the owner does.
        token: unique for the operation.
        since: its start, in seconds since 1970.
    """

    kind: Literal["create", "delete"]
    token: str
    since: float


class Catalog(msgspec.Struct, frozen=True):
    """The datasets of a store by the multibase form of their ids.

    Attributes:
        revision: unique for each change, so that a client recognizes its own write.
        version: of this format.
        pending: datasets that are being created or deleted.
    """

    datasets: dict[str, CatalogEntry] = {}
    revision: str = ""
    version: int = 1
    pending: dict[str, Operation] = {}


class CachedCatalog(msgspec.Struct, frozen=True):
    """The newest list that was read, and its version for conditional requests."""

    catalog: Catalog
    tag: dict[str, str]


class KnownHead(msgspec.Struct, frozen=True):
    """The head of a dataset in the store when it was last read, and its version."""

    head: str
    tag: dict[str, str]


class ListedHead(msgspec.Struct, frozen=True):
    """The entry of a dataset: its head, and the summary at the head, which the mirror does not interpret."""

    head: str
    summary: msgspec.Raw


class Heads(msgspec.Struct, frozen=True):
    """The heads of the datasets of a store.

    Attributes:
        heads: the entries by the multibase form of ids.
        checked: when all entries were last compared with the heads, in seconds since 1970.
        version: of this format.
    """

    heads: dict[str, ListedHead] = {}
    checked: float = 0.0
    version: int = HEADS_VERSION
