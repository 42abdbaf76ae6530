"""Immutable values about datasets and blocks: DatasetRow, Health, BlockSummary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from typing import Final, Literal

import msgspec

from odf_engine.api.model import DatasetRow


class Health(Enum):
    """The health of a dataset: value, glyph, name of the style. Each glyph is unique."""

    new = ("new", "·", "muted")
    current = ("current", "✓", "good")
    verified = ("verified", "✓✓", "good")  # current, and verified up to its head
    stale = ("stale", "~", "warn")
    queued = ("queued", "◦", "busy")
    running = ("running", "▸", "busy")
    failed = ("failed", "✗", "bad")
    diverged = ("diverged", "÷", "bad")
    invalid = ("invalid", "≠", "bad")
    damaged = ("damaged", "!", "bad")
    missing = ("missing", "?", "warn")

    @property
    def word(self) -> str:
        """The health as one or two words."""
        return self.value[0]

    @property
    def glyph(self) -> str:
        """One cell; two cells if verified."""
        return self.value[1]

    @property
    def style(self) -> str:
        """The name of the style."""
        return self.value[2]


def sort_by_dependency(rows: Sequence[DatasetRow], datasets: Iterable[str]) -> list[str]:
    """Return datasets and all their upstream datasets by id, upstream datasets first."""
    inputs = {row.id: row.inputs for row in rows}
    inputs_of: dict[str, Sequence[str]] = {}
    pending = list(datasets)
    while pending:
        dataset = pending.pop()
        if dataset not in inputs_of:
            inputs_of[dataset] = inputs.get(dataset, ())
            pending += inputs_of[dataset]
    try:
        return list(TopologicalSorter(inputs_of).static_order())
    except CycleError:  # only a damaged workspace has a cycle
        return list(inputs_of)


class ShownFinding(msgspec.Struct, frozen=True):
    """A finding of a verification.

    Attributes:
        block: the hash of the block, or ``head``.
        kind: the kind of finding.
        message: its description.
    """

    block: str
    kind: str
    message: str


Verdict = Literal["", "verified", "findings"]


UNTRUSTED: Final = "⊘"
BRANCH: Final = "⎇"
WARNED: Final = "!"
"""The mark of jobs, datasets and blocks with warnings."""
