"""What pane 2 knows of chains: plain values."""

from __future__ import annotations

from typing import Final, Literal, Protocol

import msgspec

from odf_tui.state import BlockLine, Fact, Target

REVISED: Final = (
    "SetTransform", "SetPollingSource", "AddPushSource", "SetDataSchema", "SetInfo", "SetAttachments",
    "SetLicense", "SetVocab",
)  # fmt: skip
"""Kinds of events that take the place of an earlier one."""

Which = int | str
"""A block by its number, or by its hash."""


class Part(msgspec.Struct, frozen=True):
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

    parts: tuple[Part, ...]
    rows: tuple[int, int] | None
    size: int
    watermark: str | None
    state: int | None
    kept: bool
    query: tuple[Fact, ...]
    standing: Literal["", "flushed", "rebuilt"] = ""


class Link(msgspec.Struct, frozen=True):
    """A text in a block that leads somewhere; or names a checkpoint, when it has no target."""

    text: str
    target: Target | None


class BlockText(msgspec.Struct, frozen=True):
    """A block as YAML, with what leads on from it; one that is a transaction also in words.

    ``problem``: it cannot be read, for this reason, and there is no YAML. Its number may not be known then.
    ``proof``: in words, whether the dataset's owner stands behind it; empty where nothing was signed.
    """

    yaml: str
    transaction: Transaction | None = None
    kind: str = ""
    number: int | None = None
    hash: str = ""
    links: tuple[Link, ...] = ()
    problem: str = ""
    proof: str = ""


class Want(msgspec.Struct, frozen=True):
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
    lines: tuple[BlockLine, ...]
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


class Piece(msgspec.Struct, frozen=True):
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
    pieces: tuple[Piece, ...]
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


class BlockSource(Protocol):
    """What pane 2 asks the engine; everything may block."""

    def blocks(self, dataset: str, first: int | None, limit: int, want: Want) -> BlockPage:
        """At most ``limit`` blocks from a place on; without one the newest."""
        ...

    def block_kinds(self, dataset: str) -> dict[str, int]:
        """How many blocks there are of each kind of event."""
        ...

    def block_numbers(self, dataset: str, hashes: tuple[str, ...]) -> dict[str, int]:
        """The numbers of those blocks that the chain holds."""
        ...

    def find_block(self, dataset: str, text: str) -> int:
        """The number of the block that a person means by a number, hash, time or offset."""
        ...

    def block(self, dataset: str, which: Which) -> BlockText:
        """A block in full; of one that cannot be read, why not."""
        ...

    def holds_key(self, dataset: str) -> bool:
        """Whether the dataset's private key is here."""
        ...

    def prove(self, dataset: str, block: str) -> None:
        """Signs a block, by its hash, with the dataset's key: its owner stands behind it."""
        ...

    def revision(self, dataset: str, which: Which) -> Revision:
        """What a block changed, against the one before it of the same kind."""
        ...

    def block_bytes(self, dataset: str, which: Which) -> BlockBytes:
        """The bytes of a block, with the fields that lie in them."""
        ...

    def checkpoint(self, dataset: str, checkpoint: str, at: int) -> CheckpointFacts:
        """What is known of a checkpoint that block ``at`` names."""
        ...
