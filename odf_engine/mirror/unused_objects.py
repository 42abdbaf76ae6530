"""The unused objects of a dataset in a store, which are deleted in two phases.

A machine that collects garbage first stores the names of unused objects. At least an hour later, a machine
claims those that are still unused, checks the references once more, and deletes them. A commit that uses
existing objects withdraws the names; while objects are being deleted, it is refused.

A commit moves its reference at most half an hour after it has withdrawn the names, and a machine deletes
objects for at most half an hour. The other half hour is for requests that take long, and for clocks that
differ: a request must reach the store within 15 minutes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec

from odf_engine.errors import BadData, Conflict, SourceUnavailable, WriteConditionFailed

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion

    from odf_engine.mirror.store_client import StoreClient

UNUSED_FILE: Final = "info/unused.json"
"""In the folder of a dataset in a store."""
_GRACE_SECONDS: Final = 3600.0
"""Minimum time between the two phases, and time after which other machines ignore a claim."""
CHECKED_SECONDS: Final = _GRACE_SECONDS / 2
"""Time after which a commit checks its objects again, and a claim ends."""
_MAX_BYTES: Final = 64 << 20
_ATTEMPTS: Final = 10


class _Unused(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the file.

    Attributes:
        objects: names such as ``data/HASH``.
        since: when they were stored or claimed, in seconds since 1970.
        claimed: whether a machine is deleting them.
        revision: unique for each change.
    """

    objects: list[str] = []
    since: float = 0.0
    claimed: bool = False
    revision: str = ""


class UnusedObjects:
    """The names of the unused objects of a dataset.

    Args:
        client: the client of the store.
        dataset: the folder of the dataset in the store.
        where: the URL of the dataset, for messages.
    """

    def __init__(self, client: StoreClient, dataset: str, where: str) -> None:
        self._client, self._key, self._where = client, f"{dataset}/{UNUSED_FILE}", where
        self._claim: UpdateVersion | None = None
        self._claimed_at = 0.0

    def withdraw(self) -> str:
        """Keep all objects, before a commit that uses existing ones.

        Returns:
            A text that changes whenever objects may have been deleted, or "" if none ever were.

        Raises:
            Conflict: another machine is deleting objects.
        """
        for _ in range(_ATTEMPTS):
            unused, version = self._read()
            if not unused.objects:
                return unused.revision
            if unused.claimed and time.time() - unused.since < _GRACE_SECONDS:
                raise self._busy()
            try:
                new = _Unused(revision=uuid.uuid4().hex)
                self._write(new, version)
                return new.revision
            except WriteConditionFailed:
                continue
        raise self._busy()

    def claim(self, unused: Collection[str], *, now: bool) -> list[str]:
        """Return the objects that may be deleted; store the names of the others for the next call.

        Args:
            unused: names of objects that no reference uses.
            now: whether objects may be deleted that were not unused an hour ago.

        Raises:
            Conflict: another machine is doing this.
        """
        stored, version = self._read()
        age = time.time() - stored.since
        if stored.claimed and stored.objects and age < _GRACE_SECONDS:
            raise self._busy()
        ready = sorted(unused) if now else sorted({*stored.objects} & {*unused})
        if not now and stored.objects and age < _GRACE_SECONDS:
            return []  # an earlier call has stored the names
        new = _Unused(ready or sorted(unused), time.time(), bool(ready), uuid.uuid4().hex)
        self._claimed_at = new.since
        try:
            self._claim = self._write(new, version)
        except WriteConditionFailed:
            raise self._busy() from None
        return ready

    def holds_claim(self) -> bool:
        """Return whether no other machine may use the claimed objects yet."""
        return time.time() - self._claimed_at <= CHECKED_SECONDS

    def release(self) -> None:
        """End a claim, after the objects were deleted or kept."""
        assert self._claim is not None
        self._write(_Unused(revision=uuid.uuid4().hex), self._claim)

    def _read(self) -> tuple[_Unused, UpdateVersion | None]:
        stored = self._client.read(self._key, _MAX_BYTES)
        if stored is None:
            return _Unused(), None
        try:
            return msgspec.json.decode(stored.data, type=_Unused), stored.version
        except msgspec.MsgspecError as error:
            raise BadData(
                f"{UNUSED_FILE} is damaged: {error}", where=self._where, hint="delete it in the store"
            ) from None

    def _write(self, unused: _Unused, version: UpdateVersion | None) -> UpdateVersion:
        mode: PutMode = "create" if version is None else version
        try:
            return self._client.write(self._key, msgspec.json.encode(unused), mode)
        except (WriteConditionFailed, SourceUnavailable):
            stored, version = self._read()  # the response to a successful request can be lost
            if version is None or stored.revision != unused.revision:
                raise
            return version

    def _busy(self) -> Conflict:
        return Conflict(
            "another machine is deleting unused objects of the dataset", where=self._where, hint="try again"
        )
