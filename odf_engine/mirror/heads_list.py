"""The list of the heads of all datasets in a store: one object, so that a refresh is one request.

It is a hint. A dataset's ``refs/head`` is the truth, and commits move only that one. A machine writes the
list after its commits, in the background, by a conditional write. It corrects an entry that differs from a
head that it has read. Once an hour, one of the machines compares all entries with the heads, since a killed
machine or another program may not have written its commits to the list.
"""

from __future__ import annotations

import atexit
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from odf_engine.base.atomic_files import replace_file
from odf_engine.errors import ObjectUnchanged, OdfError, Unsupported, WriteConditionFailed
from odf_engine.mirror.catalog import HEADS, HEADS_VERSION, Heads, ListedHead

if TYPE_CHECKING:
    from obstore import PutMode

    from odf_engine.mirror.dataset_store import DatasetStore
    from odf_engine.net.bucket_client import StoredObject

CHECK_SECONDS: Final = 3600.0
"""Time after which the entries are compared with the heads."""
_MAX_BYTES: Final = 256 << 20
_ATTEMPTS: Final = 10
_DELAY_SECONDS: Final = 0.5
"""Delay of a write, which covers all commits until then."""
_FINISH_SECONDS: Final = 5.0
"""Maximum time that the end of a command waits for the list."""


class _CachedHeads(msgspec.Struct, frozen=True):
    """The newest list that was read, and its version for conditional requests."""

    heads: Heads
    tag: dict[str, str]


class HeadsList:
    """The list of the heads in a store. Creation sends no requests. Thread-safe and process-safe.

    Args:
        store: the store.
        describe: returns the current entry of a dataset, or None if the dataset cannot be read. The second
            argument is whether its head must be read from the store.
    """

    def __init__(self, store: DatasetStore, describe: Callable[[str, bool], ListedHead | None]) -> None:
        self._store, self._describe = store, describe
        self._cache = store.heads_cache
        self._lock = threading.Lock()
        self._pending: dict[str, str | None] = {}
        self._checked = 0.0
        self._hurry = threading.Event()
        self._writer: threading.Thread | None = None
        self._is_refused = False
        _ACTIVE.add(self)

    def read(self, max_age: float) -> Heads | None:
        """Return the list, by one conditional request, or None if the store has none.

        Args:
            max_age: return the cached list if it is at most so many seconds old.

        Raises:
            SourceUnavailable: it cannot be read.
        """
        known = self._cached()
        if known is not None and self._age() <= max_age:
            return known.heads
        try:
            current = self._read(known)
        except Unsupported:
            return None  # a newer version of the program has written it
        return None if current is None else current.heads

    def prefetch(self, max_age: float) -> None:
        """Read the list, so that :meth:`read` has it. Errors do not raise."""
        with suppress(OdfError):
            self.read(max_age)

    def note(self, heads: Mapping[str, str | None], *, checked: float = 0.0) -> None:
        """Write heads to the list, in the background.

        Args:
            heads: the heads by datasets, or None for a deleted dataset.
            checked: when all entries were compared with the heads, or 0 if they were not.
        """
        with self._lock:
            if self._is_refused:
                return
            self._pending |= heads
            self._checked = max(self._checked, checked)
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name="heads list", daemon=True)
                self._writer.start()

    def finish(self) -> None:
        """Write what is pending now, and wait for it for a few seconds at most."""
        self._hurry.set()
        with self._lock:
            writer = self._writer
        if writer is not None and writer is not threading.current_thread():
            writer.join(_FINISH_SECONDS)
        self._hurry.clear()

    def _write_all(self) -> None:
        while True:
            self._hurry.wait(_DELAY_SECONDS)
            with self._lock:
                pending, checked = self._pending, self._checked
                self._pending, self._checked = {}, 0.0
                if not pending and not checked:
                    self._writer = None
                    return
            try:
                self._write(pending, checked)
            except WriteConditionFailed:
                pass  # a check corrects the list
            except Exception:  # the list is a hint: nothing fails because of it
                with self._lock:
                    self._is_refused = True  # such as without the permission to write

    def _write(self, pending: Mapping[str, str | None], checked: float) -> None:
        current = self._cached()
        for attempt in range(_ATTEMPTS):
            if attempt or current is None:
                current = self._read(current)
            old = Heads() if current is None else current.heads
            new = self._edit(old, pending, checked, is_certain=attempt > 0)
            if current is not None and new == old:
                return
            mode: PutMode = "create" if current is None else dict(current.tag)  # type: ignore[assignment]
            try:
                tag = self._store.client.write(HEADS, msgspec.json.encode(new), mode)
            except WriteConditionFailed:
                if attempt + 1 == _ATTEMPTS:
                    raise
                time.sleep(random.uniform(0, 0.1 * (attempt + 1)))
                continue
            self._keep(_CachedHeads(new, dict(tag)))  # type: ignore[arg-type]
            return

    def _edit(
        self, old: Heads, pending: Mapping[str, str | None], checked: float, *, is_certain: bool
    ) -> Heads:
        heads = dict(old.heads)
        for name, head in pending.items():
            known = heads.get(name)
            if head is None:
                heads.pop(name, None)
            elif known is None or known.head != head:
                # After another machine's write, the entry may be newer than this machine's head.
                described = self._describe(name, is_certain)
                if not is_certain and described is not None and described.head != head:
                    described = self._describe(name, True)  # the commit has not moved the local head yet
                if described is not None:
                    heads[name] = described
        return Heads(heads, max(checked, old.checked))

    def _read(self, known: _CachedHeads | None) -> _CachedHeads | None:
        client, stored = self._store.client, None
        try:
            if known is None:
                stored = client.read(HEADS, _MAX_BYTES)
            else:
                stored = client.read_changed(HEADS, _MAX_BYTES, dict(known.tag))  # type: ignore[arg-type]
        except ObjectUnchanged:
            with suppress(OSError):
                self._cache.touch()
            return known
        if stored is None:
            return None
        current = _CachedHeads(self._decode(stored), dict(stored.version))  # type: ignore[arg-type]
        self._keep(current)
        return current

    def _decode(self, stored: StoredObject) -> Heads:
        try:
            heads = msgspec.json.decode(stored.data, type=Heads)
        except msgspec.MsgspecError:
            return Heads()  # damaged: it is written again
        if heads.version != HEADS_VERSION:
            problem = f"unsupported version {heads.version} of {HEADS}"
            raise Unsupported(problem, where=self._store.url, hint="use a newer version of odf")
        return heads

    def _cached(self) -> _CachedHeads | None:
        try:
            return msgspec.json.decode(self._cache.read_bytes(), type=_CachedHeads)
        except (OSError, msgspec.MsgspecError):
            return None

    def _age(self) -> float:
        try:
            return max(0.0, time.time() - self._cache.stat().st_mtime)
        except OSError:
            return float("inf")

    def _keep(self, current: _CachedHeads) -> None:
        with suppress(OdfError):  # a cache
            replace_file(self._cache, msgspec.json.encode(current))


_ACTIVE: Final = weakref.WeakSet["HeadsList"]()


@atexit.register
def finish_all() -> None:
    """Write what is pending of every list of this process, as at its exit."""
    for heads in list(_ACTIVE):
        heads.finish()
