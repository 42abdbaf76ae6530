"""Immutable values that the façade returns: datasets, blocks, remotes, pages of logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from odf_engine.api.text import Fact, Section
from odf_engine.data.waiting import Waiting
from odf_engine.worker.protocol import JournalEvent

if TYPE_CHECKING:
    from odf_engine.workspace.trust import Execution

REVISABLE_EVENTS: Final = (
    "SetTransform", "SetPollingSource", "AddPushSource", "SetDataSchema", "SetInfo", "SetAttachments",
    "SetLicense", "SetVocab",
)  # fmt: skip
"""Kinds of events that replace an earlier event."""
BlockRef = int | str
"""A block by its number, or by its hash."""
LOG_PAGE: Final = 2000
"""Number of events in a page of a log."""
LOG_LINES: Final = 5000
"""Number of newest lines of a log that are kept."""
Relation = Literal["", "equal", "ahead", "behind", "diverged", "new"]
WRITABLE: Final = ("file", "s3", "s3+http", "s3+https", "gs", "az", "odf+http", "odf+https")
"""Schemes of URLs that can be pushed to."""


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A remote of a dataset, and its relation to the dataset when the two were last compared.

    The local side is current: its chain is read each time.

    Attributes:
        url: URL of the dataset at the remote.
        label: ``repository/name``, else the URL.
        pull, push: whether the dataset is pulled from it, and pushed to it.
        relation: see ``odf_engine.sync.history.Relation``, or "" if it is unknown.
        ours, theirs: number of blocks that only the dataset has, and only the remote.
        common, their_head: hashes of the newest shared block and of the remote's head.
        at: time of the comparison (RFC 3339), or "" if there was none.
    """

    url: str
    label: str
    pull: bool = False
    push: bool = False
    relation: Relation = ""
    ours: int = 0
    theirs: int = 0
    common: str = ""
    their_head: str = ""
    at: str = ""

    @property
    def writable(self) -> bool:
        """Whether the remote can be pushed to."""
        return is_writable(self.url)


def is_writable(url: str) -> bool:
    """Return whether a URL can be pushed to."""
    return urlsplit(url).scheme.lower() in WRITABLE


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


class PendingEvent(msgspec.Struct, frozen=True):
    """An event that an update would append.

    Attributes:
        title: the kind of event.
        lines: the difference; each line starts with ``+``, ``-`` or a space.
        in_chain: False for a change to a source outside the chain, which appends no event.
    """

    title: str
    lines: tuple[str, ...]
    in_chain: bool = True


class TrustStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a dataset runs, and whether it may.

    Attributes:
        id, name: the dataset.
        trust: whether it is an own or a trusted dataset.
        origin: the URL that the definition of a third-party dataset comes from, or None if it is unknown.
        private_network: whether its sources may access private addresses.
        runs: the steps that need trust.
        claimable: whether its private key is in the workspace, but it was not created here.
        was_trusted: whether it was trusted before a block changed its source.
    """

    id: str
    name: str
    trust: Literal["own", "trusted", "not trusted"]
    origin: str | None
    private_network: bool
    runs: Sequence[Execution]
    claimable: bool = False
    was_trusted: bool = False


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
        standing: ``flushed`` or ``rebuilt`` if the query was replaced without new input: the old
            query's state was flushed, or the new query's state was rebuilt.
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
        kinds: the kinds of events, or no kinds for all events.
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
        signers: who signed blocks with the dataset's key, by the hash of the block. The name is "" if the
            signature does not name its actor.
    """

    total: int
    first: int
    lines: tuple[BlockLine, ...]
    broken: bool = False
    signers: Mapping[str, str] = {}


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


class ManifestChange(NamedTuple):
    """A manifest file, its text, and its new text."""

    path: Path
    old: str
    new: str


class FileTimeRange(msgspec.Struct, frozen=True):
    """Event times in the data file of a stop of a :class:`RowTimeline`.

    Attributes:
        stop: index of the stop, from 0.
        changes: whether the file has retractions or corrections.
        groups: number of rows, least and greatest event time of each row group, in milliseconds since 1970.
        moments: event times of some retractions and corrections, in milliseconds since 1970.
    """

    stop: int
    changes: bool
    groups: tuple[tuple[int, int, int], ...] = ()
    moments: tuple[int, ...] = ()


class NamedUrl(NamedTuple):
    """The name and the URL of a repository, or of a dataset in one."""

    name: str
    url: str


class DivergedBranches(msgspec.Struct, frozen=True):
    """The local blocks after the newest block that two chains share.

    Attributes:
        ours: the newest of these blocks, newest first.
        more: number of older blocks that ``ours`` leaves out.
        common: the newest shared block, or None if it is not in the local chain.
    """

    ours: tuple[BlockLine, ...]
    more: int
    common: BlockLine | None


class WrittenBlock(msgspec.Struct, frozen=True):
    """A block that a job wrote.

    Attributes:
        dataset: id of the dataset.
        number: sequence number of the block.
        hash: hash of the block.
        event: kind of its event.
        rows: number of rows that it added.
    """

    dataset: str
    number: int
    hash: str
    event: str
    rows: int


class LogPage(msgspec.Struct, frozen=True):
    """Events of a job, and whether the journal has older and newer ones."""

    events: list[JournalEvent]
    older: bool
    newer: bool
