"""What pane 2 reads: blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from odf_engine.chain.block_summary import BlockSummary
from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.errors import OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.ownership_proof import PROOFS_FOLDER
from odf_tui.chain_state import BlockPage, BlockText, Want, Which
from odf_tui.engine.revisions import RevisionReads
from odf_tui.humane import count
from odf_tui.state import BlockLine

_DATA: Final = ("AddData", "ExecuteTransform")
_COMMA: Final = re.compile(r"(?<=\d),(?=\d{3})")  # the screen separates thousands by a space
_DAMAGED: Final = (
    "get it again from where the dataset was published, or from a copy; v says what else is wrong"
)


class BlockReads(RevisionReads):
    """Reads blocks."""

    def blocks(self, dataset: str, first: int | None, limit: int, want: Want) -> BlockPage:
        """Blocks from a place on, oldest first; of a chain that breaks, all that can be read."""
        from odf_engine.chain.block_search import find_blocks

        chain = self.entry(dataset).dataset
        try:
            found = find_blocks(chain, first, limit, want.kinds, want.text)
        except OdfError:
            return self._broken(dataset, want)
        return BlockPage(
            found.total, found.first, tuple(map(_line, found.rows)), proven=frozenset(self._proven(dataset))
        )

    def _proven(self, dataset: str) -> Mapping[str, int]:
        """The blocks that the dataset's owner has signed, with their numbers, newest first; looked at again
        when there are other proofs."""
        from odf_engine.workspace.trust import list_proven_blocks

        entry = self.entry(dataset)
        try:
            changed = (entry.dataset.folder / PROOFS_FOLDER).stat().st_mtime_ns
            about = (changed, str(entry.dataset.head()))
            known = self._proofs.get(dataset)
            if known is None or known[0] != about:
                known = about, {str(each.hash): each.number for each in list_proven_blocks(entry)}
                self._proofs[dataset] = known
        except (OSError, OdfError):  # there are none, or the chain cannot be read
            return {}
        return known[1]

    @cached_property
    def _proofs(self) -> dict[str, tuple[tuple[int, str], Mapping[str, int]]]:
        return {}

    def holds_key(self, dataset: str) -> bool:
        """Whether the dataset's private key is here."""
        return self.workspace.keys.has_key(self.entry(dataset).id)

    def prove(self, dataset: str, block: str) -> None:
        """Signs a block with the dataset's key."""
        from odf_engine.workspace.trust import prove_block

        prove_block(self.workspace, self.entry(dataset), Multihash.parse(block))
        notify_datasets_changed(self.folder)

    def _broken(self, dataset: str, want: Want) -> BlockPage:
        from odf_engine.chain.block_search import read_from_head

        walked = read_from_head(self.entry(dataset).dataset)
        lines = list(map(_line, walked.rows))
        if want.kinds:
            lines = [line for line in lines if line.event in want.kinds]
        if want.text:
            text = want.text.lower()
            lines = [
                line
                for line in lines
                if text in f"{line.event} {line.summary} {line.sequence_number}".lower()
            ]
        number = -1 if walked.number is None else walked.number
        if walked.error is not None:
            what = walked.error.message
            lines.insert(0, BlockLine(number, walked.block, "", "not readable", None, what, True))
        elif walked.block:
            what = "this and older blocks were not looked at: somewhere there the chain breaks"
            lines.insert(0, BlockLine(number, walked.block, "", "not read", None, what, True))
        return BlockPage(len(lines), 0, tuple(lines), True)

    def block_kinds(self, dataset: str) -> dict[str, int]:
        """How many blocks there are of each kind of event."""
        from odf_engine.chain.block_search import count_kinds

        return count_kinds(self.entry(dataset).dataset)

    def block_numbers(self, dataset: str, hashes: tuple[str, ...]) -> dict[str, int]:
        """The numbers of those blocks that the chain holds."""
        from odf_engine.chain.block_search import block_numbers

        return block_numbers(self.entry(dataset).dataset, hashes)

    def find_block(self, dataset: str, text: str) -> int:
        """The number of the block that a person means."""
        from odf_engine.chain.block_search import resolve_block_number

        return resolve_block_number(self.entry(dataset).dataset, text)

    def block(self, dataset: str, which: Which) -> BlockText:
        """A block as its YAML manifest; what comes from a newer specification is named above it."""
        from odf_engine.metadata.model import kind_of
        from odf_engine.metadata.yaml import block_to_yaml
        from odf_tui.links import links_of
        from odf_tui.transactions import transaction_of

        entry = self.entry(dataset)
        number = which if isinstance(which, int) else None
        block_hash = None
        try:
            block_hash = self.hash_of(entry.dataset, which)
            stored = entry.dataset.block(block_hash)
        except OdfError as error:
            problem = f"{error.message}\n{error.hint or _DAMAGED}"
            return BlockText("", number=number, hash=str(block_hash or ""), problem=problem)
        head = f"# {stored.hash}\n# {count(stored.size)} bytes\n"
        if stored.unknown:
            head += "# from a newer specification: " + ", ".join(stored.unknown) + "\n"
        try:
            transaction, links = (
                transaction_of(self.workspace, entry, stored),
                links_of(self.workspace, entry, stored),
            )
        except OdfError:  # the rest of the chain cannot be read: the block can
            transaction, links = None, ()
        event: Any = stored.block.event
        text = head + block_to_yaml(stored.block, stored.version)
        return BlockText(
            text,
            transaction,
            kind_of(event),
            stored.block.sequence_number,
            str(stored.hash),
            links,
            proof=_proof_words(self._proven(dataset), stored.block.sequence_number),
        )


def _proof_words(proven: Mapping[str, int], number: int) -> str:
    """Whether the owner stands behind a block."""
    if not proven:
        return ""
    if number in proven.values():
        return "signed by the dataset's owner, who stands behind it and all blocks before it"
    newest = max(proven.values())
    if number > newest:
        return f"newer than what the dataset's owner has signed: block {count(newest)}"
    return f"the dataset's owner stands behind it: block {count(newest)} is signed"


def _line(row: BlockSummary) -> BlockLine:
    adds = row.kind in _DATA
    return BlockLine(
        row.sequence_number,
        str(row.hash),
        str(row.system_time),
        row.kind,
        row.rows if adds else None,
        _COMMA.sub(" ", row.summary) if adds else row.summary,
    )
