"""The record of transactions that a verification has replayed, so that later ones need not."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from threading import Lock
from typing import Final

from odf_engine.base.progress import Reporter
from odf_engine.chain.compacted_history import find_current_number
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.normal_form import engine_version
from odf_engine.derive.plan import InputPlan, Transaction
from odf_engine.derive.verify.slice_check import VerifiedSlices, check_object
from odf_engine.errors import OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.workspace.seals import seal

_REPLAYS: Final = 1
"""Version of replay and comparison: a new one invalidates the transactions that were verified before."""


class ReplayRecord:
    """Knows which transactions were replayed with the same result as their blocks. Safe from several threads.

    The key of a transaction has everything that its result depends on: its block, and with it the chain
    before, the inputs, and the engine with its version. The files of the inputs are hashed in each
    verification, so that a replay of damaged inputs is neither recorded nor replaced by a record. The key
    also has the user's seal: records that come with somebody else's workspace do not count.

    Args:
        known: the store of the keys.
        configured: names of the configured engines, which replace built-in ones.
        reporter: checked for cancellation.
    """

    def __init__(self, known: VerifiedSlices, configured: list[str], reporter: Reporter) -> None:
        self._known = known
        self._configured = {name.lower() for name in configured}
        self._reporter = reporter
        self._seal: str | None = None
        with suppress(OdfError):  # without a seal, all transactions are replayed
            self._seal = seal("replays")
        self._lock = Lock()
        self._intact: dict[Multihash, int] = {}
        """The last offset of the intact slices of an input, by its head."""
        self._damaged: set[Multihash] = set()
        """Heads of the inputs with a slice that is not."""

    def find_key(self, transaction: Transaction, block: Multihash) -> bytes | None:
        """Return the key of a transaction, or None if it can neither be recorded nor be known.

        This is so if the engine is not a built-in one, a slice of an input is not the committed file, or the
        user has no seal.

        Args:
            transaction: the transaction.
            block: the hash of its block.

        Raises:
            Cancelled: the verification was cancelled.
        """
        name = transaction.transform.transform.engine.lower()
        version = None if name in self._configured else engine_version(name)
        if version is None or self._seal is None:
            return None
        properties = [self._seal, str(_REPLAYS), str(block), name, version]
        for plan in transaction.inputs:
            end = _current_end(plan)
            if not self._is_intact(plan.entry.dataset, plan.interval.last_offset):
                return None
            # After a compaction of the input, the rows are read from other slices.
            properties += [str(plan.entry.id), str(end), plan.schema.hex()]
        return hashlib.sha3_256(repr(properties).encode()).digest()

    def has(self, key: bytes) -> bool:
        """Return whether a transaction was replayed with the same result."""
        return self._known.is_verified(key)

    def add(self, key: bytes) -> None:
        """Record a transaction."""
        self._known.mark_verified(key)

    def _is_intact(self, dataset: Dataset, last: int | None) -> bool:
        """Return whether the slices up to an offset are the committed files.

        A transaction can read all rows up to the end of its interval again.
        """
        head = dataset.head()
        if head is None or last is None:
            return last is None
        with self._lock:
            intact = self._intact.get(head, -1)
            if head not in self._damaged:
                for row in dataset.slices(intact + 1, last) if intact < last else ():
                    path, name = dataset.slice_path(row), row.physical_hash
                    if any(check_object(path, "slice", name, row.size, self._check)):
                        self._damaged.add(head)
                        break
                    intact = self._intact[head] = row.end
        return last <= intact

    def _check(self, _: int) -> None:
        self._reporter.raise_if_cancelled()


def _current_end(plan: InputPlan) -> Multihash | None:
    """Return the block of the input's current chain that ends the interval, or None without an interval.

    Its hash covers all slices that the transaction can read.
    """
    last, dataset = plan.interval.last_block, plan.entry.dataset
    number = None if last is None else find_current_number(dataset, last)
    return None if number is None else dataset.list_blocks(1, before=number + 1)[0].hash
