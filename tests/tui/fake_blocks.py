"""Blocks in memory, made up from their numbers."""

from __future__ import annotations

from odf_engine.errors import NotFound, UsageError
from odf_tui.state.model import (
    BlockBytes,
    BlockDocument,
    BlockFilter,
    BlockLink,
    BlockPage,
    BlockRef,
    BlockSummary,
    ByteRange,
    CheckpointFacts,
    DatasetRow,
    Revision,
    Target,
    Transaction,
)

KINDS = ("Seed", "SetPollingSource", "SetInfo", "SetDataSchema")
WHAT = {"AddData": "+1 000 rows, watermark → 2024-03-10", "Seed": "of a root"}


def hash_of(number: int) -> str:
    """The hash of a block."""
    return f"f1620{number:064x}"


class FakeBlocks:
    """Chains of a few settings, then data.

    Attributes:
        asked: what was asked for: a dataset, the first place, how much, and which.
        transactions: blocks that are transactions.
        lines: blocks of a dataset in place of those made up.
        proven, owned: blocks that are signed, and whether the keys to sign are here.
        broken: datasets whose oldest line is that of a block that cannot be read.
    """

    rows_: list[DatasetRow]

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int | None, int, BlockFilter]] = []
        self.transactions: dict[tuple[str, int], Transaction] = {}
        self.lines: dict[str, list[BlockSummary]] = {}
        self.broken: set[str] = set()
        self.texts: dict[tuple[str, int], BlockDocument] = {}
        self.revisions: dict[tuple[str, int], Revision] = {}
        self.proven: set[str] = set()
        self.owned = True
        self.bytes: dict[tuple[str, BlockRef], BlockBytes] = {}

    def _chain(self, dataset: str) -> list[BlockSummary]:
        if dataset in self.lines:
            return self.lines[dataset]
        row = next(row for row in self.rows_ if row.id == dataset)
        return [fake_line(number) for number in range(row.blocks)]

    def blocks(self, dataset: str, first: int | None, limit: int, block_filter: BlockFilter) -> BlockPage:
        """Some blocks."""
        self.asked.append((dataset, first, limit, block_filter))
        text = block_filter.text.lower()
        found = [
            line
            for line in self._chain(dataset)
            if (not block_filter.kinds or line.event in block_filter.kinds)
            and text in f"{line.event} {line.summary} {line.hash}".lower()
        ]
        if dataset in self.broken:
            return BlockPage(len(found), 0, tuple(found), True)
        start = max(len(found) - limit, 0) if first is None else first
        lines = tuple(found[start : start + limit])
        return BlockPage(len(found), start, lines, proven=frozenset(self.proven))

    def holds_key(self, dataset: str) -> bool:
        """What the test says."""
        return self.owned

    def sign_block(self, dataset: str, block: str) -> None:
        """Notes it."""
        self.proven.add(block)

    def block_kinds(self, dataset: str) -> dict[str, int]:
        """How many there are of each."""
        events = [line.event for line in self._chain(dataset)]
        kinds = sorted(set(events), key=lambda event: (-events.count(event), event))
        return {event: events.count(event) for event in kinds}

    def block_numbers(self, dataset: str, hashes: tuple[str, ...]) -> dict[str, int]:
        """Numbers by hashes."""
        return {line.hash: line.sequence_number for line in self._chain(dataset) if line.hash in hashes}

    def find_block(self, dataset: str, text: str) -> int:
        """Numbers alone."""
        last = self._chain(dataset)[-1].sequence_number
        if not text.isdecimal():
            raise UsageError(f"'{text}' is no number, hash, date or offset such as #0")
        if int(text) > last:
            raise NotFound(f"there is no block {text}: they go from 0 to {last}")
        return int(text)

    def block(self, dataset: str, which: BlockRef) -> BlockDocument:
        """Some YAML; what the test says of it."""
        if isinstance(which, str):
            return BlockDocument("", hash=which, problem="its bytes are damaged\nget it again")
        if (dataset, which) in self.texts:
            return self.texts[dataset, which]
        yaml = f"kind: MetadataBlock\nversion: 3\ncontent:\n  sequenceNumber: {which}\n"
        links: tuple[BlockLink, ...] = ()
        if which:
            yaml += f"  prevBlockHash: {hash_of(which - 1)}\n"
            links = (BlockLink(hash_of(which - 1), Target(dataset, "blocks", which - 1)),)
        return BlockDocument(yaml, self.transactions.get((dataset, which)), "", which, hash_of(which), links)

    def revision(self, dataset: str, which: BlockRef) -> Revision:
        """What the test says."""
        if (dataset, which) in self.revisions:
            return self.revisions[dataset, int(which)]
        raise UsageError(f"block {which} is AddData: only queries, sources, schemas and descriptions change")

    def block_bytes(self, dataset: str, which: BlockRef) -> BlockBytes:
        """Four bytes; or what the test says."""
        number = which if isinstance(which, int) else None
        made = BlockBytes(
            number, hash_of(number or 0), b"\x14\0\0\0", (ByteRange(0, 4, "manifest", "begins", False),)
        )
        return self.bytes.get((dataset, which), made)

    def checkpoint(self, dataset: str, checkpoint: str, at: int) -> CheckpointFacts:
        """One whose file is gone."""
        return CheckpointFacts(checkpoint, 4096, at, True, None)


def fake_line(number: int) -> BlockSummary:
    """A block of a made up chain."""
    event = KINDS[number] if number < len(KINDS) else "AddData"
    rows = 1000 if event == "AddData" else None
    minute = f"2024-03-{number % 27 + 1:02d}T08:{number % 60:02d}:00Z"
    return BlockSummary(number, hash_of(number), minute, event, rows, WHAT.get(event, "of it"))
