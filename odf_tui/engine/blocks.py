"""What pane 2 reads: blocks."""

from __future__ import annotations

from typing import Final

from odf_engine.chain.rows import BlockRow
from odf_engine.errors import OdfError
from odf_engine.metadata import model
from odf_tui.engine.base import Entries
from odf_tui.humane import count
from odf_tui.state import BlockLine, BlockText

_KINDS: Final = [member.__name__ for member in model.MetadataEvent.__args__]


class BlockReads(Entries):
    """Reads blocks."""

    def blocks(self, dataset: str, limit: int, before: int | None, text: str) -> list[BlockLine]:
        """Blocks, newest first; ``text`` matches kinds of events, a sequence number or a hash."""
        chain = self.entry(dataset).dataset
        if not text:
            return [_line(row) for row in chain.page(limit, before)]
        kinds = {kind for kind in _KINDS if text.lower() in kind.lower()}
        found = [_line(row) for row in chain.page(limit, before, kinds)] if kinds else []
        if text.isdigit():
            found += [_line(row) for row in chain.page(1, int(text) + 1) if row.sequence_number == int(text)]
        if len(text) >= 4:
            found += self._by_hash(dataset, text)
        unique = {line.sequence_number: line for line in found}
        return sorted(unique.values(), key=lambda line: -line.sequence_number)

    def _by_hash(self, dataset: str, text: str) -> list[BlockLine]:
        chain = self.entry(dataset).dataset
        try:
            number = chain.block(chain.find_block(text)).block.sequence_number
        except OdfError:
            return []
        return [_line(row) for row in chain.page(1, number + 1)]

    def block(self, dataset: str, sequence_number: int) -> BlockText:
        """A block as its YAML manifest; what comes from a newer specification is named above it."""
        from odf_engine.metadata.yaml import block_to_yaml
        from odf_tui.transactions import transaction_of

        entry = self.entry(dataset)
        stored = entry.dataset.block(sequence_number)
        head = f"# {stored.hash}\n# {count(stored.size)} bytes\n"
        if stored.unknown:
            head += "# from a newer specification: " + ", ".join(stored.unknown) + "\n"
        text = head + block_to_yaml(stored.block, stored.version)
        return BlockText(text, transaction_of(self.workspace, entry, stored))


def _line(row: BlockRow) -> BlockLine:
    adds = row.kind in ("AddData", "ExecuteTransform")
    return BlockLine(
        row.sequence_number,
        str(row.hash),
        str(row.system_time),
        row.kind,
        row.rows if adds else None,
        row.summary,
    )
