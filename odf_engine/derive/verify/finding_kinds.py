"""Kinds of findings of a verification, by what they show about the dataset."""

from __future__ import annotations

from typing import Final

import msgspec

INVALID_CHANGELOG: Final = frozenset({"slice-op", "slice-retraction"})
"""Findings about operations that were committed, in a dataset whose files are intact."""
NOT_REPLAYED: Final = "not-replayed"
"""Finding of a dataset with transactions that the present version of the engine could not replay."""
UNCONFIRMED: Final = frozenset({"input-damaged", "transform-version", NOT_REPLAYED})
"""Findings that do not show that the dataset itself is invalid."""
ROWS_DIFFER: Final = "rows-differ"
"""Finding of a dataset whose rows differ from its query over the latest state of its inputs."""
NOT_RECOMPUTED: Final = "not-recomputed"
"""Remark about a dataset whose rows cannot be recomputed."""
EQUIVALENT: Final = "slice-equivalent"
"""Remark about a slice with the committed rows in other bytes."""
_DAMAGED: Final = ("block-hash", "chain-incomplete", "head")
_DAMAGED_ENDINGS: Final = ("-missing", "-size", "-physical-hash")


def is_damage(kind: str) -> bool:
    """Return whether a finding shows that a file is missing, or is not the committed one."""
    return kind in _DAMAGED or kind.endswith(_DAMAGED_ENDINGS)


class ProofFinding(msgspec.Struct, frozen=True):
    """A reason why a query proof is invalid or cannot be checked; ``hint`` may be empty."""

    kind: str = ""
    message: str = ""
    hint: str = ""
