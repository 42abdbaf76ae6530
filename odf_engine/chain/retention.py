"""Old heads of a dataset: references to earlier histories, and the rules by which they expire."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from odf_engine.chain.compaction_record import COMPACTED_PREFIX
from odf_engine.chain.dataset import Dataset
from odf_engine.identity.multiformats import Multihash

DEFAULT_DAYS: Final = 7.0
_PREFIXES: Final = (COMPACTED_PREFIX, "before-reset-", "before-pull-", "before-push-")
_DAY: Final = 86_400.0


class RetentionRule(msgspec.Struct, frozen=True):
    """The rule by which old heads expire.

    Attributes:
        days: age in days after which they expire.
        last: number of the newest ones that never expire.
        compacted_only: only old heads of compactions expire. Their rows are in the new chain.
    """

    days: float = DEFAULT_DAYS
    last: int = 0
    compacted_only: bool = True


class OldHead(msgspec.Struct, frozen=True):
    """A reference to an old head; ``created`` is in seconds since 1970."""

    name: str
    block: Multihash
    created: float


def list_old_heads(dataset: Dataset) -> list[OldHead]:
    """Return the references to old heads, newest first."""
    found = [
        OldHead(name, block, dataset.reference_time(name))
        for name, block in dataset.references().items()
        if name.startswith(_PREFIXES)
    ]
    return sorted(found, key=lambda head: (-head.created, head.name))


def select_expired(heads: Sequence[OldHead], rule: RetentionRule, now: float | None = None) -> list[OldHead]:
    """Return those of the old heads, newest first, that have expired by a rule."""
    oldest = (time.time() if now is None else now) - rule.days * _DAY
    subject = [each for each in heads if not rule.compacted_only or each.name.startswith(COMPACTED_PREFIX)]
    return [each for each in subject[rule.last :] if each.created <= oldest]
