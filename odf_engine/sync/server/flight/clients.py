"""The clients of a Flight SQL server: what they can read, and their share of the limits."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias
from odf_engine.sync.server.service import DatasetService
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.tokens import AccessToken

_SHARE: Final = 2
"""A client has at most the limit divided by this number."""


class Owned(Protocol):
    """An object that belongs to a client."""

    @property
    def client(self) -> str:
        """The name of the client."""
        ...


@dataclass(frozen=True)
class Client:
    """A client, and the datasets that it can read.

    Attributes:
        service: the datasets of the server.
        name: the hash of its token, or its address if the server requires no token. All connections of a
            client have the same name.
        token: its token, or None if the server requires none.
        uses_spark: whether its call requests Spark for its queries.
    """

    service: DatasetService
    name: str
    token: AccessToken | None = None
    uses_spark: bool = False

    def datasets(self) -> list[DatasetEntry]:
        """Return the datasets by name."""
        return [entry for entry in self.service.datasets() if self.can_read(entry.alias, entry.id)]

    def readable_ids(self) -> set[str]:
        """Return the ids of the datasets."""
        return {str(entry.id) for entry in self.datasets()}

    def can_read(self, alias: DatasetAlias, dataset_id: DatasetId) -> bool:
        """Return whether a dataset is served, and permitted by the token."""
        is_permitted = self.token is None or self.token.permits(alias, dataset_id)
        return is_permitted and self.service.is_served(alias, dataset_id)

    def can_use(self, owned: Owned) -> bool:
        """Return whether it is permitted to use an object: with tokens, only if it belongs to it."""
        return self.token is None or owned.client == self.name


class Slots:
    """The slots for queries that run at the same time. A client has at most half of them.

    Args:
        count: the number of slots.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._max = max(1, count // _SHARE)
        self._used: Counter[str] = Counter()
        self._changed = threading.Condition()

    def acquire(self, client: str, timeout: float) -> bool:
        """Take a slot; return False if there is none for the client within some seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free and self._used[client] < self._max, timeout):
                return False
            self._free -= 1
            self._used[client] += 1
            return True

    def release(self, client: str) -> None:
        """Give a slot back."""
        with self._changed:
            self._free += 1
            self._used[client] -= 1
            self._used += Counter()  # without the clients that have none
            self._changed.notify_all()


OwnedT = TypeVar("OwnedT", bound=Owned)


def remove_oldest(objects: OrderedDict[bytes, OwnedT], client: str, limit: int) -> OwnedT | None:
    """Remove and return an object if there are too many.

    It is the oldest one of the client if the client has more than half of them, and else the oldest of all.

    Args:
        objects: the objects by their handles.
        client: the name of the client that added the newest object.
        limit: the maximum number of objects.
    """
    own = [handle for handle, owned in objects.items() if owned.client == client]
    if len(own) > max(1, limit // _SHARE):
        return objects.pop(own[0])
    return objects.popitem(last=False)[1] if len(objects) > limit else None
