"""Immutable values about datasets and blocks: DatasetRow, Health, BlockSummary, TrustRequest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from odf_engine.data.waiting import Waiting
from odf_tui.text.format import Fact
from odf_tui.text.remotes import Remote

if TYPE_CHECKING:
    from odf_tui.text.format import Section


class DatasetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as lists and graphs show it. Times are RFC 3339.

    Attributes:
        derivative: whether it is derived from other datasets.
        inputs: ids of its upstream datasets.
        head: hash of its newest block.
        blocks, records: the number of its blocks and of its rows.
        size: bytes of data.
        watermark: the watermark, or None if absent.
        last_pulled: time of the newest block with data, or None if absent.
        polls: whether it has a polling source.
        push_sources: the names of its push sources.
        standing: the trust in its sources, see ``odf_engine.workspace.trust``.
        problem: why its chain cannot be read, or None if it can.
        missing: whether it is an input that is missing in this workspace.
        behind: whether its inputs have data that it has not processed.
        diverged: the names of inputs that were reset or replaced since it was derived from them.
        remotes: its remotes.
        branches: the names of its branches.
        waiting: what its results wait for, or None for nothing.
    """

    id: str
    name: str
    derivative: bool = False
    inputs: tuple[str, ...] = ()
    head: str = ""
    blocks: int = 0
    records: int = 0
    size: int = 0
    watermark: str | None = None
    last_pulled: str | None = None
    polls: bool = False
    push_sources: tuple[str, ...] = ()
    standing: Literal["own", "trusted", "not trusted"] = "own"
    problem: str | None = None
    missing: bool = False
    behind: bool = False
    diverged: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = ()
    branches: tuple[str, ...] = ()
    waiting: Waiting | None = None

    @property
    def untrusted(self) -> bool:
        """Whether its sources may not run."""
        return self.standing == "not trusted"

    @property
    def has_pull_remote(self) -> bool:
        """Whether it is pulled from a remote, and not derived or ingested here."""
        return any(remote.pull for remote in self.remotes)


class BlockLine(msgspec.Struct, frozen=True):
    """A block as a line of the list of blocks.

    Attributes:
        time: its system time, RFC 3339.
        event: the kind of its event.
        rows: the number of rows that it added, or None.
        summary: the event as text; for a broken block, the error.
        broken: whether the block cannot be read.
    """

    sequence_number: int
    hash: str
    time: str
    event: str
    rows: int | None
    summary: str
    broken: bool = False


class DatasetDetail(msgspec.Struct, frozen=True):
    """The definition and state of a dataset.

    Attributes:
        facts: the facts of the card.
        sections: all facts.
        text: the same as YAML.
    """

    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    text: str


class Target(msgspec.Struct, frozen=True):
    """The target of a link: a dataset, or a block or row of it.

    Attributes:
        dataset: the id of the dataset.
        pane: the pane that shows it.
        at: the number of the block, or of the row from 0.
    """

    dataset: str
    pane: Literal["blocks", "data", "datasets"]
    at: int = 0


class PendingEvent(msgspec.Struct, frozen=True):
    """An event that an update would append.

    Attributes:
        title: the kind of event.
        lines: the difference; each line starts with ``+``, ``-`` or a space.
    """

    title: str
    lines: tuple[str, ...]


class TrustedStep(msgspec.Struct, frozen=True):
    """A step that a source executes, or an address that it reads.

    Attributes:
        does: what it does, as a short text.
        text: the command, query or address.
        block: the hash of the block that defines it.
    """

    does: str
    text: str
    block: str


class TrustRequest(msgspec.Struct, frozen=True):
    """The steps of a third-party dataset that need trust.

    Attributes:
        origin: the URL of the dataset's origin, or "" if unknown.
        runs: the steps.
        before: whether the dataset was trusted before its source changed.
    """

    origin: str
    runs: tuple[TrustedStep, ...]
    before: bool = False


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


REVISABLE_EVENTS: Final = (
    "SetTransform", "SetPollingSource", "AddPushSource", "SetDataSchema", "SetInfo", "SetAttachments",
    "SetLicense", "SetVocab",
)  # fmt: skip
"""Kinds of events that replace an earlier event."""
BlockRef = int | str
"""A block by its number, or by its hash."""


class TransactionInput(msgspec.Struct, frozen=True):
    """An input of a transaction.

    Attributes:
        dataset, name, alias: its id, its name, and its alias in the query.
        rows: offsets of the new rows, both inclusive, or None if there are none.
        block: the number of the last block that was read, or None if the chain of the input does not have it.
        after: the number of the block before the first new one, or None if the chain does not have it.
        here: whether the input is in this workspace.
    """

    dataset: str
    name: str
    alias: str
    rows: tuple[int, int] | None
    block: int | None
    after: int | None
    here: bool = True


class ShownTransaction(msgspec.Struct, frozen=True):
    """A transaction of a derivative dataset.

    Attributes:
        parts: its inputs.
        rows: offsets of the rows that it wrote, both inclusive, or None if it wrote none.
        size: bytes of these rows.
        watermark: the watermark after it.
        state: bytes of the checkpoint after it, or None if absent.
        state_unchanged: whether that is the previous checkpoint.
        query: the query in force.
        standing: ``flushed`` or ``rebuilt`` if the query was replaced without new input: the state of
            the old query was flushed, or that of the new one was rebuilt.
    """

    parts: tuple[TransactionInput, ...]
    rows: tuple[int, int] | None
    size: int
    watermark: str | None
    state: int | None
    state_unchanged: bool
    query: tuple[Fact, ...]
    standing: Literal["", "flushed", "rebuilt"] = ""


class BlockLink(msgspec.Struct, frozen=True):
    """A text in a block that is a link; without a target, the name of a checkpoint."""

    text: str
    target: Target | None


class BlockDocument(msgspec.Struct, frozen=True):
    """A block as YAML, with its links.

    Attributes:
        yaml: the block, or "" if it cannot be read.
        transaction: the transaction of a derivative dataset that the block stores, or None.
        kind: the kind of its event.
        number: its number, or None if unknown.
        problem: why the block cannot be read; empty otherwise.
        proof: the state of the owner's signature as text, or "" without signatures.
    """

    yaml: str
    transaction: ShownTransaction | None = None
    kind: str = ""
    number: int | None = None
    hash: str = ""
    links: tuple[BlockLink, ...] = ()
    problem: str = ""
    proof: str = ""


class BlockFilter(msgspec.Struct, frozen=True):
    """A filter for blocks.

    Attributes:
        kinds: the kinds of events; empty for all.
        text: words that a block must contain.
    """

    kinds: tuple[str, ...] = ()
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.kinds or self.text)


class BlockLines(msgspec.Struct, frozen=True):
    """Consecutive blocks, oldest first. Indices count from the oldest block.

    Attributes:
        total: the number of blocks that match the filter.
        first: the index of the first line.
        broken: whether the chain cannot be read completely; the line of the broken block has the error.
        proven: the hashes of all blocks that the holder of the dataset's key has signed.
    """

    total: int
    first: int
    lines: tuple[BlockLine, ...]
    broken: bool = False
    proven: frozenset[str] = frozenset()


class Revision(msgspec.Struct, frozen=True):
    """The change of a query, source, schema or description by a block.

    Attributes:
        title: the kind of event, with the name of a push source.
        number: the number of the block.
        before: the number of the block that it is compared with, or None for the first of its kind.
        older, newer: the previous and the next block of the kind, or None.
        lines: each starts with ``+``, ``-``, ``~`` or a space, and a space.
    """

    title: str
    number: int
    before: int | None
    older: int | None
    newer: int | None
    lines: tuple[str, ...]


class ByteRange(msgspec.Struct, frozen=True):
    """Bytes ``start`` to ``end`` (exclusive) of a block.

    Attributes:
        path: the field that they belong to, or "" if there is none.
        text: their meaning.
        value: whether they are the value of the field, and not structure of the encoding.
    """

    start: int
    end: int
    path: str
    text: str
    value: bool


class BlockBytes(msgspec.Struct, frozen=True):
    """The bytes of a block.

    Attributes:
        pieces: consecutive ranges without gaps.
        problem: where and why the bytes cannot be decoded; empty otherwise.
    """

    number: int | None
    hash: str
    data: bytes
    pieces: tuple[ByteRange, ...]
    problem: str = ""


class CheckpointFacts(msgspec.Struct, frozen=True):
    """Facts about a checkpoint.

    Attributes:
        size: bytes, as stated in the block.
        made_by: the number of the oldest block found that has it, or None.
        sure: whether no older block can have it.
        on_disk: bytes of its file, or None if the file is missing.
    """

    hash: str
    size: int | None
    made_by: int | None
    sure: bool
    on_disk: int | None


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
