"""Reads metadata blocks: pages, text, links, revisions, bytes, checkpoints, signatures."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from odf_engine.api.model import (
    REVISABLE_EVENTS,
    BlockBytes,
    BlockDocument,
    BlockFilter,
    BlockLine,
    BlockLines,
    BlockLink,
    BlockRef,
    ByteRange,
    CheckpointFacts,
    DivergedBranches,
    Revision,
    ShownTransaction,
    Target,
    TransactionInput,
)
from odf_engine.api.readers.dataset_detail import query_facts
from odf_engine.api.readers.dataset_reader import WorkspaceEntries
from odf_engine.api.text import count_of, format_count, printable, signer_text
from odf_engine.chain.block_search import count_kinds, find_blocks, read_from_head, resolve_block_number
from odf_engine.chain.block_summary import BlockSummary, StoredBlock
from odf_engine.chain.compacted_history import find_current_number
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.references import Branch, list_branches, list_tags
from odf_engine.chain.schema_evolution import read_declaration
from odf_engine.checks.reports import read_report
from odf_engine.data.ddl import type_ddl
from odf_engine.errors import InvalidIdentity, NotFound, OdfError, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.ownership_proof import PROOFS_FOLDER
from odf_engine.metadata import model
from odf_engine.metadata.block_layout import parse_block_layout
from odf_engine.metadata.data_types import DESCRIPTION
from odf_engine.metadata.model import ExecuteTransform, ExecuteTransformInput, SetTransform
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.on_demand import definitions, metadata_yaml
from odf_engine.rows.as_at import resolve_as_at
from odf_engine.storage.refs import is_branch_name, tag_name
from odf_engine.worker.endpoint import notify_datasets_changed
from odf_engine.workspace.block_warnings import blocks_with_warnings, read_block_warnings
from odf_engine.workspace.dataset_folders import read_rejects
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import ProvenBlock, list_proven_blocks, prove_block
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.rows import PinnedVersion

_PAGE: Final = 50
_MAX_SEARCHED: Final = 2000


class RevisionReader(WorkspaceEntries):
    """Reads single blocks: revisions, bytes and checkpoints."""

    def hash_of(self, chain: Dataset, which: BlockRef) -> Multihash:
        """Return the hash of a block; of the head for an empty text.

        Raises:
            NotFound: there is no such block.
        """
        if which == "":
            head = chain.head()
            if head is None:
                raise NotFound("this chain has no blocks")
            return head
        if isinstance(which, str):
            return Multihash.parse(which)
        try:
            rows = chain.list_blocks(1, before=which + 1)
        except OdfError:  # the chain is broken: the blocks above the damage can be read
            rows = [row for row in read_from_head(chain).rows if row.sequence_number == which]
            if not rows:
                raise
        if not rows or rows[0].sequence_number != which:
            raise NotFound(f"this dataset has no block {which}")
        return rows[0].hash

    def revision(self, dataset: str, which: BlockRef) -> Revision:
        """Return the changes of a block against the previous block of its kind.

        Raises:
            UsageError: events of this kind have no revisions.
            OdfError: the chain cannot be read.
        """

        chain = self.entry(dataset).dataset
        stored = chain.block(self.hash_of(chain, which))
        event, number = stored.block.event, stored.block.sequence_number
        kind = model.kind_of(event)
        if kind not in REVISABLE_EVENTS:
            raise UsageError(
                f"block {number} is {kind}: only queries, sources, schemas and descriptions have diffs"
            )
        older = next(_find_older(chain, event, number), None)
        before = None if older is None else chain.block(older).block.event
        names = {entry.id: str(entry.alias) for entry in self._workspace.datasets()}
        name = getattr(event, "source_name", None)
        return Revision(
            title=kind if name is None else f"{kind} '{name}'",
            number=number,
            before=older,
            older=older,
            newer=_find_newer(chain, event, number),
            lines=tuple(compare_events(event, before, names)),
        )

    def block_bytes(self, dataset: str, which: BlockRef) -> BlockBytes:
        """Return the bytes of a block, and the fields in them.

        Raises:
            OdfError: there is no such block.
        """
        chain = self.entry(dataset).dataset
        block_hash = self.hash_of(chain, which)
        data = chain.block_bytes(block_hash)
        layout = parse_block_layout(data)
        problems = []
        if Multihash.sha3_256(data) != block_hash:
            problems.append("the bytes do not match the hash")
        if (fault := layout.fault) is not None:
            problems.append(f"at {fault.at:#06x}, {fault.path or 'manifest'}: {fault.message}")
        pieces = (ByteRange(span.start, span.end, span.path, span.text, span.value) for span in layout.spans)
        number = which if isinstance(which, int) else None
        return BlockBytes(number, str(block_hash), data, tuple(pieces), "; ".join(problems))

    def checkpoint(self, dataset: str, checkpoint: str, at: int) -> CheckpointFacts:
        """Return the facts about a checkpoint of block ``at``."""
        chain = self.entry(dataset).dataset
        checkpoint_hash = Multihash.parse(checkpoint)
        size, made_by, sure = _find_checkpoint(chain, checkpoint_hash, at)
        try:
            on_disk = chain.checkpoint_path(checkpoint_hash).stat().st_size
        except OSError:
            on_disk = None
        return CheckpointFacts(checkpoint, size, made_by, sure, on_disk)


def _find_older(chain: Dataset, event: Any, number: int) -> Iterator[int]:
    """Yield the numbers of the blocks below ``number`` with the same kind of event, newest first."""
    kind, name = model.kind_of(event), getattr(event, "source_name", None)
    before = number
    while rows := chain.list_blocks(_PAGE, before=before, kinds={kind}):
        for row in rows:
            if name is None or getattr(chain.block(row.hash).block.event, "source_name", None) == name:
                yield row.sequence_number
        before = rows[-1].sequence_number


def _find_newer(chain: Dataset, event: Any, number: int) -> int | None:
    newest = chain.state().sequence_number + 1
    newer = None
    for candidate in _find_older(chain, event, newest):
        if candidate <= number:
            break
        newer = candidate
    return newer


def _find_checkpoint(
    chain: Dataset, checkpoint_hash: Multihash, at: int
) -> tuple[int | None, int | None, bool]:
    """Find the oldest of the consecutive blocks that have a checkpoint.

    Returns:
        The size in bytes, the number of the block, and whether it is certainly the oldest.
    """
    size, first, searched, before = None, None, 0, at + 1
    while rows := chain.list_blocks(_PAGE, before=before, kinds={"AddData", "ExecuteTransform"}):
        for row in rows:
            try:
                event: Any = chain.block(row.hash).block.event
            except OdfError:
                return size, first, False
            new: model.Checkpoint | None = event.new_checkpoint
            if new is not None and new.physical_hash == checkpoint_hash:
                size, first = new.size, row.sequence_number
            elif first is not None:
                return size, first, True
            searched += 1
            if searched >= _MAX_SEARCHED:
                return size, first, False
        before = rows[-1].sequence_number
    return size, first, first is not None


_DATA: Final = ("AddData", "ExecuteTransform")
_COMMA: Final = re.compile(r"(?<=\d),(?=\d{3})")  # the workstation separates thousands by a space
_DAMAGED: Final = "restore it from a remote or a backup; press v to verify the dataset"


class BlockReader(RevisionReader):
    """Reads pages of blocks and single blocks, and signs blocks."""

    def blocks(self, dataset: str, first: int | None, limit: int, block_filter: BlockFilter) -> BlockLines:
        """Return blocks from a position, oldest first; of a broken chain, all readable blocks."""
        chain = self.entry(dataset).dataset
        try:
            blocks = find_blocks(chain, first, limit, block_filter.kinds, block_filter.text)
        except OdfError:
            return self._read_broken_chain(dataset, block_filter)
        warned = blocks_with_warnings(chain.folder)
        return BlockLines(
            blocks.total,
            blocks.first,
            tuple(_block_line(row, warned) for row in blocks.rows),
            signers={block: proven.actor for block, proven in self._proven(dataset).items()},
        )

    def _proven(self, dataset: str) -> Mapping[str, ProvenBlock]:
        """Return the signed blocks by hash, newest first.

        Cached until the head or the folder of proofs changes.
        """
        entry = self.entry(dataset)
        try:
            changed = (entry.dataset.folder / PROOFS_FOLDER).stat().st_mtime_ns
            cache_key = (changed, str(entry.dataset.head()))
            known = self._proofs.get(dataset)
            if known is None or known[0] != cache_key:
                known = cache_key, {str(block.hash): block for block in list_proven_blocks(entry)}
                self._proofs[dataset] = known
        except (OSError, OdfError):  # there are no proofs, or the chain cannot be read
            return {}
        return known[1]

    @cached_property
    def _proofs(self) -> dict[str, tuple[tuple[int, str], Mapping[str, ProvenBlock]]]:
        return {}

    def holds_key(self, dataset: str) -> bool:
        """Return whether the private key of a dataset is in this workspace."""
        return self._workspace.keys.has_key(self.entry(dataset).id)

    def sign_block(self, dataset: str, block: str) -> None:
        """Sign a block with the private key of the dataset.

        Raises:
            NotFound: the key is not in this workspace.
        """
        prove_block(self._workspace, self.entry(dataset), Multihash.parse(block))
        notify_datasets_changed(self.folder)

    def _read_broken_chain(self, dataset: str, block_filter: BlockFilter) -> BlockLines:
        chain_part = read_from_head(self.entry(dataset).dataset)
        lines = list(map(_block_line, chain_part.rows))
        if block_filter.kinds:
            lines = [line for line in lines if line.event in block_filter.kinds]
        if block_filter.text:
            text = block_filter.text.lower()
            lines = [
                line
                for line in lines
                if text in f"{line.event} {line.summary} {line.sequence_number}".lower()
            ]
        number = -1 if chain_part.number is None else chain_part.number
        if chain_part.error is not None:
            what = chain_part.error.message
            lines.insert(0, BlockLine(number, chain_part.block, "", "unreadable", None, what, True))
        elif chain_part.block:
            what = "this block and older ones were not read: the chain is broken"
            lines.insert(0, BlockLine(number, chain_part.block, "", "not read", None, what, True))
        return BlockLines(len(lines), 0, tuple(lines), True)

    def branches(self, dataset: str, common: str, limit: int) -> DivergedBranches:
        """Return the blocks since the common block of diverged chains, newest first, at most ``limit``."""
        number = self.block_numbers(dataset, (common,)).get(common)
        last = self.entry(dataset).dataset.state().blocks - 1
        first = max(last - limit + 1, 0 if number is None else number + 1)
        ours = self.blocks(dataset, first, last - first + 1, BlockFilter()).lines if first <= last else ()
        if number is None:
            return DivergedBranches(ours[::-1], first, None)
        (shared,) = self.blocks(dataset, number, 1, BlockFilter()).lines
        return DivergedBranches(ours[::-1], first - number - 1, shared)

    def block_kinds(self, dataset: str) -> dict[str, int]:
        """Return the number of blocks of each kind of event."""
        return count_kinds(self.entry(dataset).dataset)

    def find_block(self, dataset: str, text: str) -> int:
        """Return the number of a block by its number, hash, time or offset.

        Raises:
            UsageError: the text is something else.
            NotFound: there is no such block.
        """
        return resolve_block_number(self.entry(dataset).dataset, text)

    def histories(self, dataset: str) -> list[tuple[str, PinnedVersion]]:
        """Return the earlier histories by their references, newest first, without branches and tags."""
        entry = self.entry(dataset)
        others = entry.dataset.references()
        names = [name for name in others if not (is_branch_name(name) or tag_name(name))]
        histories = [(name, resolve_as_at(entry, name)) for name in names]
        earlier = [history for history in histories if not history[1].in_chain]
        # Not as texts, which have fewer digits for a whole second.
        return sorted(earlier, key=lambda history: Timestamp.parse(history[1].system_time), reverse=True)

    def list_branches(self, dataset: str) -> list[Branch]:
        """Return the branches of a dataset, then its tags, compared with its head."""
        entry = self.entry(dataset)
        return [*list_branches(entry.dataset), *list_tags(entry.dataset)]

    def find_version(self, dataset: str, text: str) -> int | PinnedVersion:
        """Return the number of a block as :meth:`find_block`, or a block of an earlier history.

        Raises:
            UsageError, NotFound: as :meth:`find_block`.
        """
        try:
            return self.find_block(dataset, text)
        except OdfError:
            with suppress(OdfError):
                version = resolve_as_at(self.entry(dataset), text)
                if not version.in_chain:
                    return version
            raise

    def block(self, dataset: str, which: BlockRef) -> BlockDocument:
        """Return a block as YAML. Fields of a newer specification are named above it."""
        entry = self.entry(dataset)
        number = which if isinstance(which, int) else None
        block_hash = None
        try:
            block_hash = self.hash_of(entry.dataset, which)
            stored = entry.dataset.block(block_hash)
        except OdfError as error:
            problem = f"{error.message}\n{error.hint or _DAMAGED}"
            return BlockDocument("", number=number, hash=str(block_hash or ""), problem=problem)
        head = f"# {stored.hash}\n# {format_count(stored.size)} bytes\n"
        if stored.unknown:
            head += "# from a newer specification: " + ", ".join(stored.unknown) + "\n"
        if rejects := read_rejects(entry.dataset.folder).get(str(stored.hash)):
            head += f"# {count_of(rejects.rows, 'invalid row')} rejected: {rejects.file}\n"
        for warning in read_block_warnings(entry.dataset.folder, str(stored.hash)):
            head += f"# warning: {printable(warning.text)}\n"
        head += _check_lines(entry, stored.block.event)
        try:
            transaction, links = (
                read_transaction(self._workspace, entry, stored),
                find_links(self._workspace, entry, stored),
            )
        except OdfError:  # other blocks of the chain cannot be read
            transaction, links = None, ()
        if "@" in dataset:  # links lead to blocks of the current chain
            links = tuple(
                link for link in links if link.target is None or link.target.dataset != str(entry.id)
            )
        event: Any = stored.block.event
        text = head + metadata_yaml.block_to_yaml(stored.block, stored.version)
        return BlockDocument(
            text,
            transaction,
            model.kind_of(event),
            stored.block.sequence_number,
            str(stored.hash),
            links,
            proof=_describe_proof(self._proven(dataset).values(), stored.block.sequence_number),
        )


def _describe_proof(proven: Collection[ProvenBlock], number: int) -> str:
    """Return who signed a block with the dataset's key, as text. ``proven`` is sorted, newest first."""
    if not proven:
        return ""
    for block in proven:
        if block.number == number:
            return f"signed {signer_text(block.actor)}; covers this block and all earlier blocks"
    newest = next(iter(proven)).number
    if number > newest:
        return f"not signed: the owner's newest signature is on block {format_count(newest)}"
    return f"covered by the owner's signature on block {format_count(newest)}"


def _block_line(row: BlockSummary, warned: Collection[str] = ()) -> BlockLine:
    """Return a block as a line of the list. ``warned``: hashes of the blocks with warnings."""
    adds = row.kind in _DATA
    summary = _COMMA.sub(" ", row.summary) if adds else row.summary
    return BlockLine(
        row.sequence_number,
        str(row.hash),
        str(row.system_time),
        row.kind,
        row.rows if adds else None,
        f"! {summary}" if str(row.hash) in warned else summary,
    )


def read_transaction(
    workspace: Workspace, entry: DatasetEntry, stored: StoredBlock
) -> ShownTransaction | None:
    """Return the transaction of a block, or None for other kinds of events.

    Raises:
        OdfError: the chain cannot be read.
    """
    event = stored.block.event
    if not isinstance(event, ExecuteTransform):
        return None
    entries = {dataset.id: dataset for dataset in workspace.datasets()}
    transform = _find_transform(entry.dataset, stored.block.sequence_number)
    aliases = {item.dataset_ref: item.alias for item in transform.inputs} if transform else {}
    data, checkpoint = event.new_data, event.new_checkpoint
    return ShownTransaction(
        parts=tuple(
            _transaction_input(entries, item, aliases.get(str(item.dataset_id)))
            for item in event.query_inputs
        ),
        rows=None if data is None else (data.offset_interval.start, data.offset_interval.end),
        size=0 if data is None else data.size,
        watermark=None if event.new_watermark is None else str(event.new_watermark),
        state=None if checkpoint is None else checkpoint.size,
        state_unchanged=checkpoint is not None and checkpoint.physical_hash == event.prev_checkpoint,
        query=tuple(query_facts(transform.transform)) if transform else (),
        standing=_find_reason(entry.dataset, event, stored.block.sequence_number),
    )


def _find_reason(dataset: Dataset, event: ExecuteTransform, number: int) -> Literal["", "flushed", "rebuilt"]:
    """Return why there is a transaction without new input.

    See ``odf_engine.derive.query_migration``.
    """
    if any(item.new_block_hash is not None or item.new_offset is not None for item in event.query_inputs):
        return ""
    before = dataset.list_blocks(1, before=number)
    return "rebuilt" if before and before[0].kind == "SetTransform" else "flushed"


def _find_transform(dataset: Dataset, number: int) -> SetTransform | None:
    """Return the query that a block was computed with."""
    rows = dataset.list_blocks(1, before=number, kinds={"SetTransform"})
    event = dataset.block(rows[0].hash).block.event if rows else None
    return event if isinstance(event, SetTransform) else None


def _transaction_input(
    entries: dict[DatasetId, DatasetEntry], item: ExecuteTransformInput, alias: str | None
) -> TransactionInput:
    entry = entries.get(item.dataset_id)
    name = str(item.dataset_id if entry is None else entry.alias)
    first = 0 if item.prev_offset is None else item.prev_offset + 1
    return TransactionInput(
        dataset=str(item.dataset_id),
        name=name,
        alias=alias or name,
        rows=None if item.new_offset is None else (first, item.new_offset),
        block=find_block_number(entry, item.new_block_hash or item.prev_block_hash),
        after=find_block_number(entry, item.prev_block_hash),
        here=entry is not None,
    )


def _check_lines(entry: DatasetEntry, event: object) -> str:
    """Return the results of checks of an event as comments, or "" if it has none."""
    written = getattr(event, "new_data", None)
    if written is None:
        return ""
    try:
        stored = read_report(entry.dataset.folder, entry.id, written.physical_hash)
    except OdfError as error:
        return f"# checks: {error.message}\n"
    if stored is None:
        return ""
    signed = ", signed" if stored.signed else ""
    lines = [f"# checks: {stored.report.summary}{signed}\n"]
    for result in stored.report.results:
        lines.append(f"#   {result.outcome:<7}  {result.text} ({format_count(result.examined)} examined)\n")
        for row in result.sample:
            lines.append("#            " + ", ".join(f"{key}={value}" for key, value in row.items()) + "\n")
    return "".join(lines)


def find_block_number(entry: DatasetEntry | None, block: Multihash | None) -> int | None:
    """Return the number of a block, or of the one that a compaction replaced it with, or None without one."""
    if entry is None or block is None:
        return None
    try:
        return find_current_number(entry.dataset, block)
    except OdfError:
        return None


_Entries = Mapping[DatasetId, DatasetEntry]


def find_links(workspace: Workspace, entry: DatasetEntry, stored: StoredBlock) -> tuple[BlockLink, ...]:
    """Return the texts in a block that lead to blocks, rows, datasets and checkpoints of the workspace.

    Raises:
        OdfError: the workspace cannot be read.
    """
    block, dataset = stored.block, str(entry.id)
    links: list[BlockLink] = []
    if block.prev_block_hash is not None:
        links.append(
            BlockLink(str(block.prev_block_hash), Target(dataset, "blocks", block.sequence_number - 1))
        )
    event = block.event
    if isinstance(event, model.AddData | model.ExecuteTransform):
        links += _data_links(dataset, event)
    if isinstance(event, model.ExecuteTransform | model.SetTransform):
        entries = {dataset_entry.id: dataset_entry for dataset_entry in workspace.datasets()}
        links += _input_links(entries, event)
    return tuple(links)


def _data_links(dataset: str, event: model.AddData | model.ExecuteTransform) -> Iterator[BlockLink]:
    data = event.new_data
    if data is not None:
        rows = Target(dataset, "data", data.offset_interval.start)
        yield from (BlockLink(str(data_hash), rows) for data_hash in (data.logical_hash, data.physical_hash))
    if event.new_checkpoint is not None:
        yield BlockLink(str(event.new_checkpoint.physical_hash), None)
    if event.prev_checkpoint is not None:
        yield BlockLink(str(event.prev_checkpoint), None)


def _input_links(
    entries: _Entries, event: model.ExecuteTransform | model.SetTransform
) -> Iterator[BlockLink]:
    if isinstance(event, model.SetTransform):
        for transform_input in event.inputs:
            if _parse_dataset_id(transform_input.dataset_ref) in entries:
                yield BlockLink(
                    transform_input.dataset_ref,
                    Target(str(_parse_dataset_id(transform_input.dataset_ref)), "datasets"),
                )
        return
    for item in event.query_inputs:
        dataset = str(item.dataset_id)
        entry = entries.get(item.dataset_id)
        if entry is not None:
            yield BlockLink(dataset, Target(dataset, "datasets"))
        for block in (item.prev_block_hash, item.new_block_hash):
            number = find_block_number(entry, block)
            if number is not None:
                yield BlockLink(str(block), Target(dataset, "blocks", number))


def _parse_dataset_id(text: str) -> DatasetId | None:
    try:
        return DatasetId.parse(text)
    except InvalidIdentity:
        return None


_Column = tuple[str, str, str]  # name, type, comment


def compare_events(
    event: model.MetadataEvent, before: model.MetadataEvent | None, names: Mapping[DatasetId, str]
) -> list[str]:
    """Return the differences of two events as lines.

    Lines start with ``+`` (added), ``-`` (removed), ``~`` (other type or comment) or a space.
    """
    if isinstance(event, model.SetDataSchema):
        old = before if isinstance(before, model.SetDataSchema) else None
        columns = _read_columns(event), [] if old is None else _read_columns(old)
        if columns[0] is not None and columns[1] is not None:
            return list(_column_lines(columns[1], columns[0]))
    lines = definitions.describe_change(event, before, names).lines
    return lines or ["  no differences"]


def _read_columns(event: model.SetDataSchema) -> list[_Column] | None:
    """Return the columns, or None if the schema cannot be read."""

    try:
        schema = read_declaration(event)
    except OdfError:
        return None
    if schema is None:
        return None
    comments = [_comment(field) for field in schema]
    if event.odf_schema is not None:
        comments = [_extra_text(field) for field in event.odf_schema.fields]
    return [
        (field.name, type_ddl(field.type) + ("" if field.nullable else " NOT NULL"), comment)
        for field, comment in zip(schema, comments, strict=True)
    ]


def _comment(field: pa.Field) -> str:
    pairs = (field.metadata or {}).items()
    return ", ".join(f"{_decode(key)}={_decode(value)}" for key, value in pairs)


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _extra_text(field: model.DataField) -> str:
    """Return the description of a column, then its other attributes."""
    if field.extra is None:
        return ""
    entries = dict(field.extra.entries)
    description = entries.pop(DESCRIPTION, None)
    parts = [] if description is None else [str(description)]
    return ", ".join([*parts, *(f"{key}={value}" for key, value in entries.items())])


def _column_lines(old: list[_Column], new: list[_Column]) -> Iterator[str]:
    """Yield the columns in their new order; removed columns are at their old position."""
    width = max((len(name) for name, *_ in (*old, *new)), default=0)
    width = min(width, 30)
    before = {name: (kind, comment) for name, kind, comment in old}
    after = {name for name, *_ in new}
    removed = [column for column in old if column[0] not in after]
    positions = {name: at for at, (name, *_) in enumerate(old)}
    for name, kind, comment in new:
        while removed and name in positions and positions[removed[0][0]] < positions[name]:
            yield _revision_line("-", *removed.pop(0), width)
        if name not in before:
            yield _revision_line("+", name, kind, comment, width)
        elif before[name] == (kind, comment):
            yield _revision_line(" ", name, kind, comment, width)
        else:
            old_kind, old_comment = before[name]
            yield _revision_line("~", name, kind if old_kind == kind else f"{old_kind} → {kind}", "", width)
            if old_comment != comment:
                yield from (f"{sign}   {text}" for sign, text in (("-", old_comment), ("+", comment)) if text)
    for column in removed:
        yield _revision_line("-", *column, width)
    if [name for name in before if name in after] != [name for name, *_ in new if name in before]:
        yield "  column order changed"


def _revision_line(sign: str, name: str, kind: str, comment: str, width: int) -> str:
    return f"{sign} {name:<{width}}  {kind}" + (f"  {comment}" if comment else "")
