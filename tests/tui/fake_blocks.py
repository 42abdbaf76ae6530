"""FakeBlocks, chains in memory with generated blocks."""

from __future__ import annotations

from odf_engine.api.model import (
    BlockBytes,
    BlockDocument,
    BlockFilter,
    BlockLine,
    BlockLines,
    BlockLink,
    BlockRef,
    ByteRange,
    CheckpointFacts,
    DatasetRow,
    Revision,
    ShownTransaction,
    Target,
)
from odf_engine.chain.references import Branch
from odf_engine.errors import NotFound, UsageError
from odf_engine.rows.as_at import PinnedVersion

KINDS = ("Seed", "SetPollingSource", "SetInfo", "SetDataSchema")
WHAT = {"AddData": "+1 000 rows, watermark → 2024-03-10", "Seed": "of a root"}


def hash_of(number: int) -> str:
    """Return the hash of a generated block."""
    return f"f1620{number:08x}{number:056x}"


class FakeBlocks:
    """Chains of four setting blocks, followed by data.

    Attributes:
        asked: dataset, first index, limit and filter of each page that was read.
        lines: blocks of a dataset instead of generated ones.
        transactions, texts, revisions, bytes: contents of blocks, by dataset and number.
        proven: hashes of the signed blocks.
        owned: whether the private keys are in the workspace.
        broken: datasets whose oldest block cannot be read.
    """

    rows_: list[DatasetRow]

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int | None, int, BlockFilter]] = []
        self.transactions: dict[tuple[str, int], ShownTransaction] = {}
        self.lines: dict[str, list[BlockLine]] = {}
        self.broken: set[str] = set()
        self.texts: dict[tuple[str, int], BlockDocument] = {}
        self.revisions: dict[tuple[str, int], Revision] = {}
        self.proven: set[str] = set()
        self.owned = True
        self.bytes: dict[tuple[str, BlockRef], BlockBytes] = {}

    def _chain(self, dataset: str) -> list[BlockLine]:
        if dataset in self.lines:
            return self.lines[dataset]
        row = next(row for row in self.rows_ if row.id == dataset)
        return [fake_line(number) for number in range(row.blocks)]

    def blocks(self, dataset: str, first: int | None, limit: int, block_filter: BlockFilter) -> BlockLines:
        """Return a page of blocks, and record the arguments."""
        self.asked.append((dataset, first, limit, block_filter))
        text = block_filter.text.lower()
        found = [
            line
            for line in self._chain(dataset)
            if (not block_filter.kinds or line.event in block_filter.kinds)
            and text in f"{line.event} {line.summary} {line.hash}".lower()
        ]
        if dataset in self.broken:
            return BlockLines(len(found), 0, tuple(found), True)
        start = max(len(found) - limit, 0) if first is None else first
        lines = tuple(found[start : start + limit])
        return BlockLines(len(found), start, lines, proven=frozenset(self.proven))

    def holds_key(self, dataset: str) -> bool:
        """Return ``owned``."""
        return self.owned

    def sign_block(self, dataset: str, block: str) -> None:
        """Add the block to ``proven``."""
        self.proven.add(block)

    def block_kinds(self, dataset: str) -> dict[str, int]:
        """Return the number of blocks by kind, the most frequent first."""
        events = [line.event for line in self._chain(dataset)]
        kinds = sorted(set(events), key=lambda event: (-events.count(event), event))
        return {event: events.count(event) for event in kinds}

    def block_numbers(self, dataset: str, hashes: tuple[str, ...]) -> dict[str, int]:
        """Return the numbers of blocks by hash."""
        return {line.hash: line.sequence_number for line in self._chain(dataset) if line.hash in hashes}

    def find_block(self, dataset: str, text: str) -> int:
        """Return a number; other texts are invalid."""
        last = self._chain(dataset)[-1].sequence_number
        if not text.isdecimal():
            raise UsageError(f"'{text}' is no number, hash, date or offset such as #0")
        if int(text) > last:
            raise NotFound(f"there is no block {text}: they go from 0 to {last}")
        return int(text)

    def histories(self, dataset: str) -> list[tuple[str, PinnedVersion]]:
        """No dataset was reset."""
        return []

    def list_branches(self, dataset: str) -> list[Branch]:
        """No dataset has branches."""
        return []

    def find_version(self, dataset: str, text: str) -> int | PinnedVersion:
        """As :meth:`find_block`."""
        return self.find_block(dataset, text)

    def block(self, dataset: str, which: BlockRef) -> BlockDocument:
        """Return a block as YAML; hashes are those of damaged blocks."""
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
        """Return a prepared revision."""
        if (dataset, which) in self.revisions:
            return self.revisions[dataset, int(which)]
        raise UsageError(
            f"block {which} is AddData: only queries, sources, schemas and descriptions have diffs"
        )

    def block_bytes(self, dataset: str, which: BlockRef) -> BlockBytes:
        """Return prepared bytes, else four bytes with one field."""
        number = which if isinstance(which, int) else None
        made = BlockBytes(
            number, hash_of(number or 0), b"\x14\0\0\0", (ByteRange(0, 4, "manifest", "begins", False),)
        )
        return self.bytes.get((dataset, which), made)

    def checkpoint(self, dataset: str, checkpoint: str, at: int) -> CheckpointFacts:
        """Return a checkpoint without a file."""
        return CheckpointFacts(checkpoint, 4096, at, True, None)


def fake_line(number: int) -> BlockLine:
    """Return a generated block."""
    event = KINDS[number] if number < len(KINDS) else "AddData"
    rows = 1000 if event == "AddData" else None
    minute = f"2024-03-{number % 27 + 1:02d}T08:{number % 60:02d}:00Z"
    return BlockLine(number, hash_of(number), minute, event, rows, WHAT.get(event, "of it"))
