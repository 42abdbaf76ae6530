"""The list of the datasets of a store, and the names of its files. Imports little: every command loads it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

CATALOG: Final = "odf-store.json"
"""The object with the list."""
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
