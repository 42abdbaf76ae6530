"""The datasets of a workspace as its store lists them, see :mod:`odf_engine.mirror.heads_list`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from odf_engine.chain.block_index import BlockIndex
from odf_engine.errors import OdfError
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.mirror.catalog import Heads, ListedHead
from odf_engine.mirror.dataset_mirror import DatasetMirror
from odf_engine.mirror.dataset_store import DatasetStore
from odf_engine.mirror.heads_list import CHECK_SECONDS, HeadsList
from odf_engine.workspace.dataset_summary import DatasetEntry, Summary, list_summary, read_listed, summarize

_EMPTY: Final = Heads()


class StoreOverview:
    """Reads the datasets that have changed by the list of heads in the store, and corrects the list.

    Args:
        store: the store.
        index: the index of blocks.
        open_entry: returns a dataset of the store, or None if this machine does not have it.

    Attributes:
        heads: the list.
    """

    def __init__(
        self,
        store: DatasetStore,
        index: BlockIndex,
        open_entry: Callable[[DatasetId], DatasetEntry | None],
    ) -> None:
        self._store, self._index, self._open = store, index, open_entry
        self.heads = HeadsList(store, self._describe)

    def follow(
        self, entries: Sequence[DatasetEntry], max_age: float, *, is_overview: bool
    ) -> dict[DatasetId, Summary]:
        """Read the datasets whose heads differ from the list of heads in the store.

        Args:
            entries: all datasets.
            max_age: maximum age in seconds of cached lists and heads.
            is_overview: whether datasets that were never read may remain so.

        Returns:
            The summaries in the list, by datasets that were never read.

        Raises:
            SourceUnavailable: the store cannot be read.
        """
        unread: dict[DatasetId, Summary] = {}
        started, listed = time.time(), self.heads.read(max_age) or Heads()
        is_due = started - listed.checked > CHECK_SECONDS
        checked: list[tuple[DatasetEntry, DatasetMirror, str]] = []
        for entry in entries:
            mirror = entry.dataset.origin
            if not isinstance(mirror, DatasetMirror):
                continue
            head, item = read_local_head(entry), listed.heads.get(entry.id.multibase)
            if not head and item and is_overview and (summary := read_listed(entry, item)):
                unread[entry.id] = summary
                checked += [(entry, mirror, item.head)] if is_due and mirror.age() > max_age else []
            elif not head or ((is_due or not item or item.head != head) and mirror.age() > max_age):
                checked.append((entry, mirror, ""))

        def follow(work: tuple[DatasetEntry, DatasetMirror, str]) -> None:
            entry, mirror, expected = work
            if not expected or str(mirror.newest_head()) != expected:
                unread.pop(entry.id, None)
                entry.dataset.refresh()

        self._store.run_parallel(follow, checked)
        self.note([work[0] for work in checked], listed, started if is_due else 0.0)
        return unread

    def note(self, entries: Sequence[DatasetEntry], listed: Heads = _EMPTY, checked: float = 0.0) -> None:
        """Correct the list of heads in the store.

        Args:
            entries: datasets that were read.
            listed: the list.
            checked: when all heads were compared with the list, or 0 if they were not.
        """
        corrected: dict[str, str | None] = {}
        for entry in entries:
            item, head = listed.heads.get(entry.id.multibase), read_local_head(entry)
            if head and (item is None or item.head != head):
                corrected[entry.id.multibase] = head
        if checked:
            existing = self._store.read().catalog.datasets  # after the list, which may have newer datasets
            corrected |= dict.fromkeys(name for name in listed.heads if name not in existing)
        if corrected or checked:
            self.heads.note(corrected, checked=checked)

    def _describe(self, name: str, is_certain: bool) -> ListedHead | None:
        """Return the current entry of a dataset, see :class:`HeadsList`."""
        with suppress(OdfError, OSError):
            entry = self._open(DatasetId.parse(DID_PREFIX + name))
            if entry is not None:
                if is_certain:
                    entry.dataset.refresh()
                (summary,) = summarize([entry], self._index, {})
                return None if summary.head is None else list_summary(summary)
        return None


def read_local_head(entry: DatasetEntry) -> str:
    """Return the head of a dataset on this machine, or "" if it was not read or is damaged."""
    try:
        return str(entry.dataset.head() or "")
    except OdfError:
        return ""
