"""Plain values about datasets and blocks: DatasetRow, Health, BlockSummary, TrustRequest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from odf_tui.text.format import Fact
from odf_tui.text.remotes import Remote

if TYPE_CHECKING:
    from odf_tui.text.format import Section


class DatasetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as the graph shows it; times are RFC 3339, ``size`` is in bytes of data.

    ``head`` changes with every commit. ``polls``: there is a source to poll; ``push_sources``: the names of
    those that take what is pushed. ``standing``: own, trusted or not trusted, see
    ``odf_engine.workspace.trust``. ``missing``: others read it, and it is not in this workspace.
    ``behind``: its inputs have more than it has taken in. ``diverged``: the names of inputs that were reset
    or replaced since it was made from them. ``remotes``: where it comes from and goes to.
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

    @property
    def untrusted(self) -> bool:
        """Whether its sources may not run."""
        return self.standing == "not trusted"

    @property
    def has_pull_remote(self) -> bool:
        """Whether it is taken over from other places, and not made here."""
        return any(each.pull for each in self.remotes)


class BlockSummary(msgspec.Struct, frozen=True):
    """A block as a line of the explorer; ``broken``: it cannot be read, and the summary says why."""

    sequence_number: int
    hash: str
    time: str
    event: str
    rows: int | None
    summary: str
    broken: bool = False


class DatasetDetail(msgspec.Struct, frozen=True):
    """What is known of a dataset: a few facts for the card, all of it in words, and all of it as YAML."""

    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    text: str


class Target(msgspec.Struct, frozen=True):
    """A place to go to: a block by its number, a row by its number from 0, or a dataset."""

    dataset: str
    pane: Literal["blocks", "data", "datasets"]
    at: int = 0


class PendingEvent(msgspec.Struct, frozen=True):
    """An event that is to be appended: its title, and lines that start with ``+``, ``-`` or a space."""

    title: str
    lines: tuple[str, ...]


class TrustedStep(msgspec.Struct, frozen=True):
    """One thing that a source runs or reads: in words what it does, with what, and the block that says so."""

    does: str
    text: str
    block: str


class TrustRequest(msgspec.Struct, frozen=True):
    """Somebody else's dataset: where it came from, if that is known, what runs, whether it was trusted."""

    origin: str
    runs: tuple[TrustedStep, ...]
    before: bool = False


class Health(Enum):
    """How a dataset is: value, glyph, name of its style. The glyph alone tells them apart."""

    new = ("new", "·", "muted")
    current = ("current", "✓", "good")
    verified = ("verified", "✓✓", "good")  # current, and found right up to its present head
    stale = ("stale", "~", "warn")
    queued = ("queued", "◦", "busy")
    running = ("running", "▸", "busy")
    failed = ("failed", "✗", "bad")
    diverged = ("diverged", "÷", "bad")
    invalid = ("not valid", "≠", "bad")
    damaged = ("damaged", "!", "bad")
    missing = ("not here", "?", "warn")

    @property
    def word(self) -> str:
        """One word for people."""
        return self.value[0]

    @property
    def glyph(self) -> str:
        """One cell; two for those that are verified."""
        return self.value[1]

    @property
    def style(self) -> str:
        """Name of the style."""
        return self.value[2]


def sort_by_dependency(rows: Sequence[DatasetRow], datasets: Iterable[str]) -> list[str]:
    """The wanted datasets (ids) and all that they are made from, inputs before what is made from them."""
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
    except CycleError:  # only a damaged workspace has one
        return list(inputs_of)


REVISABLE_EVENTS: Final = (
    "SetTransform", "SetPollingSource", "AddPushSource", "SetDataSchema", "SetInfo", "SetAttachments",
    "SetLicense", "SetVocab",
)  # fmt: skip
"""Kinds of events that take the place of an earlier one."""
BlockRef = int | str
"""A block by its number, or by its hash."""


class TransactionInput(msgspec.Struct, frozen=True):
    """What an input brought to a transaction.

    ``rows`` are offsets, both inclusive, or None when there were no new ones; ``block`` is the number of the
    block up to which the input was read, ``after`` that of the one before the first that was new. A
    block that the input's chain does not hold (any more) has the number None. ``here``: the input is in this
    workspace.
    """

    dataset: str
    name: str
    alias: str
    rows: tuple[int, int] | None
    block: int | None
    after: int | None
    here: bool = True


class Transaction(msgspec.Struct, frozen=True):
    """A transaction of a derivative dataset.

    ``rows`` are the offsets that it made, both inclusive, ``size`` their bytes;
    ``state`` is the size of the query's state after it in bytes, None when there is none, and ``kept``
    whether that is the state from before. ``query`` is what was in force. ``standing``: no input moved,
    because one query took the place of another: the state of the old one was flushed, or that of the new
    one rebuilt.
    """

    parts: tuple[TransactionInput, ...]
    rows: tuple[int, int] | None
    size: int
    watermark: str | None
    state: int | None
    kept: bool
    query: tuple[Fact, ...]
    standing: Literal["", "flushed", "rebuilt"] = ""


class BlockLink(msgspec.Struct, frozen=True):
    """A text in a block that leads somewhere; or names a checkpoint, when it has no target."""

    text: str
    target: Target | None


class BlockDocument(msgspec.Struct, frozen=True):
    """A block as YAML, with what leads on from it; one that is a transaction also in words.

    ``problem``: it cannot be read, for this reason, and there is no YAML. Its number may not be known then.
    ``proof``: in words, whether the dataset's owner stands behind it; empty where nothing was signed.
    """

    yaml: str
    transaction: Transaction | None = None
    kind: str = ""
    number: int | None = None
    hash: str = ""
    links: tuple[BlockLink, ...] = ()
    problem: str = ""
    proof: str = ""


class BlockFilter(msgspec.Struct, frozen=True):
    """Which blocks of a chain are wanted: of some kinds of event (none: all), with some words."""

    kinds: tuple[str, ...] = ()
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.kinds or self.text)


class BlockPage(msgspec.Struct, frozen=True):
    """Some blocks, oldest first, from place ``first`` of ``total``; places count from the oldest block.

    ``broken``: the chain cannot be read to its end; the line of the block where it breaks says why.
    ``proven``: the hashes of all blocks of the chain that the holder of the dataset's key has signed.
    """

    total: int
    first: int
    lines: tuple[BlockSummary, ...]
    broken: bool = False
    proven: frozenset[str] = frozenset()


class Revision(msgspec.Struct, frozen=True):
    """What a block changed of a query, source, schema or description.

    Attributes:
        title: the kind of event, with the name of a push source.
        number: the block.
        before: the block that it is compared with; None for the first of its kind.
        older, newer: blocks of the same kind beside it, where there are some.
        lines: each starts with ``+``, ``-``, ``~`` or a space, and a space.
    """

    title: str
    number: int
    before: int | None
    older: int | None
    newer: int | None
    lines: tuple[str, ...]


class ByteRange(msgspec.Struct, frozen=True):
    """Bytes ``start`` up to ``end`` of a block: the field they belong to (or none), and what they say."""

    start: int
    end: int
    path: str
    text: str
    value: bool


class BlockBytes(msgspec.Struct, frozen=True):
    """The bytes of a block, in pieces without gaps; ``problem`` says where they break, and why."""

    number: int | None
    hash: str
    data: bytes
    pieces: tuple[ByteRange, ...]
    problem: str = ""


class CheckpointFacts(msgspec.Struct, frozen=True):
    """What is known of a checkpoint.

    Attributes:
        size: in bytes, as the block says.
        made_by: the block that made it first, as far as was looked.
        sure: whether no older block can have made it.
        on_disk: size of its file in bytes; None: the file is not there.
    """

    hash: str
    size: int | None
    made_by: int | None
    sure: bool
    on_disk: int | None


class Finding(msgspec.Struct, frozen=True):
    """What a verification found on a block: its hash (or ``head``), what kind, and in words."""

    block: str
    kind: str
    message: str


Verdict = Literal["", "verified", "findings"]


UNTRUSTED: Final = "⊘"
