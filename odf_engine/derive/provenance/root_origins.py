"""Sources of root rows, rows that later ones supersede, and their descriptions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.block_summary import SliceSummary, StoredBlock
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import IDEMPOTENCY_KEY, PAYLOAD_HASH, glob_root, push_state
from odf_engine.data.arrow_compute import hash_values, pc, python_values
from odf_engine.data.changelog import Op
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.derive.provenance.model import (
    OffsetRange,
    ProducingTransaction,
    Retraction,
    RowSource,
    row_count,
    to_ranges,
)
from odf_engine.ingest.fetch.files_glob import read_state
from odf_engine.ingest.fetch.model import ETAG, LAST_MODIFIED
from odf_engine.metadata import model
from odf_engine.net.urls import without_login
from odf_engine.rows.scan import Scan
from odf_engine.workspace.documents.private_source import read_private_source

_MAX_ROWS: Final = 10_000
"""Maximum number of rows in a search for earlier rows; it bounds memory."""
_Key = tuple[str, ...]


class ChangelogHistory:
    """The changes that rows of a changelog make.

    Args:
        dataset: the changelog.
        runs: offset ranges of the rows, in order.
        reporter: checked for cancellation.

    Attributes:
        counts: operations with their number of rows; empty above the maximum number of rows.
    """

    def __init__(self, dataset: Dataset, runs: Sequence[OffsetRange], reporter: Reporter) -> None:
        self._rows = Scan.of_dataset(dataset)
        self._reporter = reporter
        self._runs = runs
        self._offset, self._operation, _ = self._rows.system_columns
        self._is_small = row_count(runs) <= _MAX_ROWS
        counts: Counter[int] = Counter()
        self._changing: list[int] = []
        self._added: list[int] = []
        self._retracting: list[int] = []
        for batch in self._batches([self._offset, self._operation]) if self._is_small else ():
            ops = batch.column(1).to_pylist()
            counts.update(ops)
            offsets = batch.column(0).to_pylist()
            for offset, op in zip(offsets, ops, strict=True):
                if op != Op.APPEND:
                    self._changing.append(offset)
                if op in (Op.APPEND, Op.CORRECT_TO):
                    self._added.append(offset)
                elif op == Op.RETRACT:
                    self._retracting.append(offset)
        self.counts = sorted(counts.items())

    def superseded_rows(self, key: Sequence[str]) -> list[OffsetRange]:
        """Return the rows that these rows retract or correct.

        Args:
            key: columns of the primary key; without one, rows are equal if all of their values are.

        Raises:
            OdfError: rows cannot be read.
        """
        if not self._changing:
            return []
        columns = self._key_columns(key)
        targets = self._find_targets(columns, by_partner=not key)
        superseded: set[int] = set()
        for names, offsets in self._candidates(columns, targets):
            self._resolve_targets(targets, names, offsets, superseded)
            if not targets:
                break
        return to_ranges(sorted(superseded))

    def retractions(self, key: Sequence[str]) -> dict[int, int]:
        """Map offsets of retracted rows to offsets of their retractions, and retractions to themselves.

        Args:
            key: columns of the primary key; without one, rows are equal if all of their values are.

        Raises:
            OdfError: rows cannot be read.
        """
        resolved = {offset: offset for offset in self._retracting}
        columns = self._key_columns(key)
        waiting: dict[_Key, list[int]] = defaultdict(list)
        for offset, values in self._values_at(columns, self._added):
            waiting[values].append(offset)
        for retraction, values in self._retractions_after(min(self._added, default=0), columns, waiting):
            offsets = waiting.pop(values, [])
            resolved |= {offset: retraction for offset in offsets if offset < retraction}
            if after := [offset for offset in offsets if offset > retraction]:
                waiting[values] = after
        return resolved

    def _retractions_after(
        self, first: int, columns: list[str], waiting: Collection[_Key]
    ) -> Iterator[tuple[int, _Key]]:
        """Yield the offset and the values of retractions, in order, until all waiting rows have one."""
        scan = self._rows.select([self._operation]).rows([(first, self._rows.end_offset)])
        for part in scan.by_file():
            if not waiting:
                return
            if any(_retracts(batch).true_count for batch in part.batches(self._reporter)):
                for batch in part.select([self._operation, self._offset, *columns]).batches(self._reporter):
                    rows = batch.filter(_retracts(batch))
                    yield from zip(rows.column(1).to_pylist(), _row_keys(rows, columns), strict=True)

    def _key_columns(self, key: Sequence[str]) -> list[str]:
        available = self._rows.schema.names
        indexes = match_columns(available, list(key))
        if key and None not in indexes:
            return [available[index] for index in indexes if index is not None]
        return [name for name in available if name not in self._rows.system_columns]

    def _find_targets(self, columns: list[str], *, by_partner: bool) -> dict[_Key, list[int]]:
        """Return the offsets that the superseded rows precede, by their values."""
        values_by_offset = dict(self._values_at(columns, self._changing))
        ops = dict(self._values_at([self._operation], self._changing))
        if by_partner:  # a +C has other values than the row that it replaces; the -C before it has them
            after = [
                offset
                for offset in self._changing
                if ops[offset] == (str(int(Op.CORRECT_TO)),) and offset > 0
            ]
            values_by_offset |= {
                offset + 1: values
                for offset, values in self._values_at(columns, [offset - 1 for offset in after])
            }
        targets: dict[_Key, list[int]] = defaultdict(list)
        for offset, values in values_by_offset.items():
            targets[values].append(offset)
        return {values: sorted(offsets) for values, offsets in targets.items()}

    def _values_at(self, columns: list[str], offsets: list[int]) -> Iterator[tuple[int, _Key]]:
        runs = to_ranges(sorted(offsets))
        for batch in self._batches([self._offset, *columns], runs):
            yield from zip(batch.column(0).to_pylist(), _row_keys(batch, columns), strict=True)

    def _candidates(
        self, columns: list[str], targets: dict[_Key, list[int]]
    ) -> Iterator[tuple[list[_Key], list[int]]]:
        """Yield once valid rows that may have such values, latest slices first, in order within a slice."""
        # A changing row may be the other half of the pair with the row before it.
        pairs = to_ranges(sorted({at for offset in self._changing for at in (max(offset - 1, 0), offset)}))
        hashes = _column_hashes(columns, self._batches([self._offset, *columns], pairs))
        end = max(offsets[-1] for offsets in targets.values())
        scan = self._rows.select([self._offset, self._operation, *columns]).rows([(0, end)])
        for part in reversed(scan.by_file()):
            names: list[_Key] = []
            offsets: list[int] = []
            for batch in part.batches(self._reporter):
                valid = pc.is_in(batch.column(1), pa.array([Op.APPEND, Op.CORRECT_TO], batch.column(1).type))
                candidates = batch.filter(valid)
                candidates = candidates.filter(_may_match(candidates, hashes))
                names += _row_keys(candidates, columns)
                offsets += candidates.column(0).to_pylist()
            yield names, offsets

    @staticmethod
    def _resolve_targets(
        targets: dict[_Key, list[int]], names: list[_Key], offsets: list[int], superseded: set[int]
    ) -> None:
        """Remove the targets whose latest earlier row is among these."""
        by_name: dict[_Key, list[int]] = defaultdict(list)
        for name, offset in zip(names, offsets, strict=True):
            if name in targets:
                by_name[name].append(offset)
        for name, candidates in by_name.items():
            unresolved: list[int] = []
            for target in targets[name]:
                position = bisect_left(candidates, target)
                if position:
                    superseded.add(candidates[position - 1])
                else:
                    unresolved.append(target)
            if unresolved:
                targets[name] = unresolved
            else:
                del targets[name]

    def _batches(
        self, names: list[str], runs: Sequence[OffsetRange] | None = None
    ) -> Iterator[pa.RecordBatch]:
        spans = [(first, last + 1) for first, last in (self._runs if runs is None else runs)]
        yield from self._rows.select(list(dict.fromkeys(names))).rows(spans).batches(self._reporter)


def _column_hashes(columns: list[str], batches: Iterable[pa.RecordBatch]) -> dict[str, pa.Array]:
    """Return the hashes of the values of each column that is not nested."""
    parts: dict[str, list[pa.Array]] = defaultdict(list)
    for batch in batches:
        for name in columns:
            if not pa.types.is_nested(batch.column(name).type):
                parts[name].append(hash_values(batch.column(name)))
    return {name: pa.concat_arrays(arrays) for name, arrays in parts.items()}


def _retracts(batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return a mask of the retractions; the first column has the operations."""
    return pc.equal(batch.column(0), Op.RETRACT)


def _may_match(batch: pa.RecordBatch, hashes: dict[str, pa.Array]) -> pa.Array:
    """Return a mask of the rows that may have values with these hashes."""
    mask = pa.array([True]).take(pa.array([0] * batch.num_rows, pa.int64()))
    for name, column_hashes in hashes.items():
        mask = pc.and_(mask, pc.is_in(hash_values(batch.column(name)), column_hashes))
    return mask


def _row_keys(batch: pa.RecordBatch, columns: Sequence[str]) -> list[_Key]:
    """Return the values of each row in comparable form; null equals null."""
    values: list[list[Any]] = [python_values(batch.column(name)) for name in columns]
    return [tuple(map(repr, row)) for row in zip(*values, strict=True)]


DeclaredSource = model.SetPollingSource | model.AddPushSource
_FORMATS: Final = {
    "Csv": "CSV",
    "GeoJson": "GeoJSON",
    "EsriShapefile": "an ESRI shapefile",
    "Parquet": "Parquet",
    "Json": "JSON",
    "NdJson": "JSON, one object per line",
    "NdGeoJson": "GeoJSON, one feature per line",
}
_NEWER: Final = "by a step from a newer specification"


def describe_location(fetch: Any, state: model.SourceState | None) -> str:
    """Return the location of data: a URL, a file, a command, a topic.

    Args:
        fetch: fetch step of a source.
        state: source state in the block; for sources with many files it contains the file name.
    """
    match fetch:
        case model.Url():
            return fetch.url
        case model.FilesGlob():
            if state is None or state.kind != ETAG:
                return fetch.path
            files = read_state(state.value)
            return fetch.path if len(files) > 1 else str(PurePath(glob_root(fetch.path), files[0][0]))
        case model.Container():
            return " ".join(["container", fetch.image, *(fetch.command or ()), *(fetch.args or ())])
        case model.Mqtt():
            topics = ", ".join(topic.path for topic in fetch.topics)
            return f"mqtt://{fetch.host}:{fetch.port} {topics}"
        case model.EthereumLogs():
            chain = "an Ethereum chain" if fetch.chain_id is None else f"the Ethereum chain {fetch.chain_id}"
            node = "" if fetch.node_url is None else f" at {without_login(fetch.node_url)}"
            return " ".join([f"logs of {chain}{node}", *(fetch.filter or "").split()])
        case _:
            return ""


def describe_source_state(fetch: Any, state: model.SourceState | None) -> str:
    """Describe the version reported by a source, or "" without one."""
    if state is None:
        return ""
    if state.kind == PAYLOAD_HASH:
        digest, event_time, *_ = f"{state.value}\t".split("\t")
        text = f"payload SHA2-256 {digest.removeprefix('f1220')}"
        return f"{text}, event time {event_time}" if event_time else text
    if state.kind == IDEMPOTENCY_KEY:
        return f"idempotency key {state.value}"
    if isinstance(fetch, model.FilesGlob) and state.kind == ETAG:
        (name, digest), *others = read_state(state.value)
        if others:
            return f"files {', '.join([*(other for other, _ in reversed(others)), name])}"
        return f"file {name}" + (f", SHA2-256 {digest.removeprefix('f1220')}" if digest else "")
    if isinstance(fetch, model.EthereumLogs) and state.kind == ETAG:
        number, _, block_hash = state.value.partition("@")
        return f"up to block {number}, hash 0x{block_hash}"
    known = {ETAG: "ETag", LAST_MODIFIED: "changed at"}
    return f"{known.get(state.kind, state.kind)} {state.value}"


def describe_steps(source: DeclaredSource) -> list[str]:
    """Describe the processing of a source's data, one line per step: fetch, prepare, read, preprocess,
    merge.
    """
    steps: list[str] = []
    if isinstance(source, model.SetPollingSource):
        steps += [_describe_fetch(source.fetch), *map(_describe_prepare, source.prepare or ())]
    else:
        steps.append(f"pushed to the source '{source.source_name}'")
    steps.append(_describe_read(source.read))
    steps += _describe_preprocess(source.preprocess)
    steps.append(_describe_merge(source.merge))
    return steps


def _describe_fetch(fetch: Any) -> str:
    match fetch:
        case model.Url():
            text = f"fetched from {fetch.url}"
        case model.FilesGlob():
            text = f"one of the files {fetch.path}"
        case model.Container():
            text = f"output of the {describe_location(fetch, None)}"
        case model.Mqtt() | model.EthereumLogs():
            text = f"received from {describe_location(fetch, None)}"
        case _:
            return f"fetched {_NEWER}"
    match getattr(fetch, "event_time", None):
        case model.FromPath() as time:
            place = "URL" if isinstance(fetch, model.Url) else "name"
            return f"{text}; event time from its {place} ({time.pattern})"
        case model.FromMetadata():
            return f"{text}; event time from its modification time"
        case _:
            return text


def _describe_prepare(step: Any) -> str:
    match step:
        case model.Decompress():
            inner = f", path {step.sub_path}" if step.sub_path else ""
            return f"unpacked ({step.format.value.lower()}){inner}"
        case model.Pipe():
            return f"piped through: {' '.join(step.command)}"
        case _:
            return f"prepared {_NEWER}"


def _describe_read(step: Any) -> str:
    name = _FORMATS.get(model.kind_of(step))
    if name is None:
        return f"read {_NEWER}"
    settings = (
        (field.replace("_", " "), getattr(step, field))
        for field in step.__struct_fields__
        if field not in ("schema", "odf_schema")
    )
    options = [field if value is True else f"{field} {value!r}" for field, value in settings if value]
    return ", ".join([f"read as {name}", *options])


def _describe_preprocess(query: Any) -> Iterator[str]:
    if query is None:
        return
    if not isinstance(query, model.Sql):
        yield f"preprocessed {_NEWER}"
        return
    for step in query.queries or ():
        name = f" {step.alias}" if step.alias else ""
        yield f"query{name} ({query.engine}): {' '.join(step.query.split())}"


def _describe_merge(strategy: Any) -> str:
    key = ", ".join(getattr(strategy, "primary_key", ()))
    match strategy:
        case model.Append():
            return "appended to the existing rows"
        case model.Ledger():
            return f"appended where {key} was new"
        case model.Snapshot():
            compared = f" in {', '.join(strategy.compare_columns)}" if strategy.compare_columns else ""
            return f"compared by {key} with the existing rows{compared}: the differences were appended"
        case model.ChangelogStream():
            return f"appended as changes by {key}"
        case model.UpsertStream():
            return f"inserted or updated by {key}"
        case _:
            return f"merged {_NEWER}"


_OPERATION_TEXTS: Final = {
    Op.APPEND: "appended",
    Op.RETRACT: "retracted",
    Op.CORRECT_FROM: "corrected, old values",
    Op.CORRECT_TO: "corrected, new values",
}


def describe_operations(counts: Sequence[tuple[int, int]]) -> list[str]:
    """Describe the operations of rows, such as ``2 rows appended (+A)``; ``counts`` are operations and row
    counts.
    """
    return [
        f"{count_of(count, 'row')} {_OPERATION_TEXTS[Op(op)]} ({Op(op).code})"
        if op in _OPERATION_TEXTS
        else f"{count_of(count, 'row')} with an unknown operation {op}"
        for op, count in counts
    ]


def join_words(values: Sequence[str]) -> str:
    """Join texts as in a sentence: ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(values[:-1]), *values[-1:]]))


_SETTINGS: Final = ("SetPollingSource", "DisablePollingSource", "AddPushSource", "DisablePushSource")
_PAGE: Final = 1000


class RootOrigin(NamedTuple):
    """The origin of rows in the chain of a root dataset; fields as in :class:`TraceStep`.

    Attributes:
        declared: the polling source and its state for each of ``sources``. Pushed rows have no source.
    """

    transactions: list[ProducingTransaction]
    sources: list[RowSource]
    operations: list[str]
    superseded: list[OffsetRange]
    declared: list[tuple[model.SetPollingSource | None, model.SourceState | None]]


def root_origin(dataset: Dataset, runs: Sequence[OffsetRange], reporter: Reporter) -> RootOrigin:
    """Return the origin of rows.

    Args:
        dataset: a root dataset.
        runs: offset ranges of existing rows, in order.
        reporter: checked for cancellation.

    Raises:
        OdfError: a block or a slice is missing or damaged.
        Cancelled: the job was cancelled.
    """
    history = _SourceHistory(dataset)
    commits = list(_commits(dataset, history, runs, reporter))
    keys = {
        tuple(getattr(getattr(candidate, "merge", None), "primary_key", ()))
        for commit in commits
        for candidate in commit.candidates or (None,)
    }
    key = keys.pop() if len(keys) == 1 else ()
    changes = ChangelogHistory(dataset, runs, reporter)
    sources = [commit.source for commit in commits]
    if history.can_retract:
        sources = _add_retractions(dataset, history, sources, changes.retractions(key), reporter)
    return RootOrigin(
        [commit.transaction for commit in commits],
        sources,
        describe_operations(changes.counts),
        changes.superseded_rows(key),
        [(commit.polling, commit.state) for commit in commits],
    )


class _Commit(NamedTuple):
    """A block that added rows, with the sources that may have had them."""

    transaction: ProducingTransaction
    source: RowSource
    candidates: list[DeclaredSource]
    state: model.SourceState | None

    @property
    def polling(self) -> model.SetPollingSource | None:
        """The polling source, or None for pushed rows and unknown sources."""
        only = self.candidates[0] if len(self.candidates) == 1 else None
        return only if isinstance(only, model.SetPollingSource) else None


def _commits(
    dataset: Dataset, history: _SourceHistory, runs: Sequence[OffsetRange], reporter: Reporter
) -> Iterator[_Commit]:
    """Yield the blocks that added rows, oldest first."""
    last: StoredBlock | None = None  # of the same commit
    for row, ranges in ranges_by_slice(dataset, runs):
        reporter.raise_if_cancelled()
        stored = dataset.block(row.sequence_number)
        if last is None or last.block.sequence_number < row.sequence_number:
            last = _last_of_commit(dataset, stored)
        candidates = history.candidates(last.block)
        event: Any = last.block.event
        yield _Commit(
            ProducingTransaction(str(stored.hash), row.sequence_number, str(row.system_time), ranges),
            _row_source(stored, event, candidates, ranges),
            candidates,
            event.new_source_state,
        )


def _add_retractions(
    dataset: Dataset,
    history: _SourceHistory,
    sources: Sequence[RowSource],
    retractions: Mapping[int, int],
    reporter: Reporter,
) -> list[RowSource]:
    """Return sources with the retractions of their rows, which are given by offset."""
    offsets = to_ranges(sorted(set(retractions.values())))
    commits = list(_commits(dataset, history, offsets, reporter))
    starts = [commit.source.runs[0][0] for commit in commits]
    result: list[RowSource] = []
    for source in sources:
        rows: dict[int, list[int]] = defaultdict(list)
        for offset in (offset for first, last in source.runs for offset in range(first, last + 1)):
            if (retraction := retractions.get(offset)) is not None:
                rows[bisect_right(starts, retraction) - 1].append(offset)
        parts = [_make_retraction(commits[at], offsets) for at, offsets in sorted(rows.items())]
        result.append(replace(source, retractions=parts))
    return result


def _make_retraction(commit: _Commit, offsets: Sequence[int]) -> Retraction:
    source, state = commit.source, commit.state
    changed = state.value if state is not None and state.kind == LAST_MODIFIED else ""
    return Retraction(
        to_ranges(offsets),
        source.block,
        source.place or source.name,
        changed or source.ingested,
        commit.polling is not None and isinstance(commit.polling.merge, model.Snapshot),
    )


def ranges_by_slice(
    dataset: Dataset, runs: Sequence[OffsetRange]
) -> Iterator[tuple[SliceSummary, list[OffsetRange]]]:
    """Yield each slice with some of the rows, oldest first, and their ranges in it."""
    if not runs:
        return
    index = 0
    for row in dataset.slices(runs[0][0], runs[-1][1]):
        ranges: list[OffsetRange] = []
        while index < len(runs) and runs[index][0] <= row.end:
            first, last = runs[index]
            ranges += [(max(first, row.start), min(last, row.end))] if last >= row.start else []
            if last > row.end:
                break
            index += 1
        if ranges:
            yield row, ranges


def _last_of_commit(dataset: Dataset, stored: StoredBlock) -> StoredBlock:
    """Return the block with the source state of the rows of a block.

    A payload with many rows is in several blocks with one system time. Only the last has its state; the
    others repeat the state before (:func:`odf_engine.ingest.payload.data_events`).
    """
    first: Any = stored.block.event
    state, number = first.new_source_state, stored.block.sequence_number
    before = dataset.list_blocks(1, before=number, kinds={"AddData"})
    earlier: Any = dataset.block(before[0].hash).block.event if before else None
    if state is not None and (earlier is None or earlier.new_source_state != state):
        return stored
    total = dataset.state().blocks
    while (number := number + 1) < total:
        later = dataset.block(number)
        event = later.block.event
        if not isinstance(event, model.AddData) or later.block.system_time != stored.block.system_time:
            break
        if event.new_source_state != state:
            return later if event.new_data is not None else stored
    return stored


class _SourceHistory:
    """The sources of a root dataset over time."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._private = read_private_source(dataset.folder)
        self._settings: list[tuple[int, Any]] = []  # newest first
        before: int | None = None
        while rows := dataset.list_blocks(_PAGE, before=before, kinds=_SETTINGS):
            self._settings += [(row.sequence_number, dataset.block(row.hash).block.event) for row in rows]
            before = rows[-1].sequence_number

    @property
    def can_retract(self) -> bool:
        """Whether a source may have retracted rows. It is true for a dataset without sources."""
        merges = [event.merge for _, event in self._settings if hasattr(event, "merge")]
        merges += [] if self._private is None else [self._private.source.merge]
        return not merges or any(not isinstance(merge, model.Append | model.Ledger) for merge in merges)

    def candidates(self, block: model.MetadataBlock) -> list[DeclaredSource]:
        """Return the sources that may have added the rows of a block: those that were active.

        It is one source, unless a push has recorded no state.
        """
        number, recorded = block.sequence_number, push_state(block.event)
        polling: model.SetPollingSource | None = None
        polled = False
        pushed: dict[str, model.AddPushSource | None] = {}
        for settings_number, event in self._settings:
            if settings_number >= number:
                continue
            match event:
                case model.SetPollingSource() | model.DisablePollingSource():
                    if not polled and isinstance(event, model.SetPollingSource):
                        polling = event
                    polled = True
                case model.AddPushSource():
                    pushed.setdefault(event.source_name, event)
                case _:
                    pushed.setdefault(event.source_name, None)
        if recorded is not None and (source := pushed.get(recorded.source_name)) is not None:
            return [source]
        if polling is None and self._private is not None:
            polling = self._private.source
        sources = [polling, *reversed(pushed.values())]
        return [source for source in sources if source is not None]


def _row_source(
    stored: StoredBlock, event: Any, candidates: Sequence[DeclaredSource], runs: list[OffsetRange]
) -> RowSource:
    """Return the source of rows of a block; ``event`` is the one with the state of the source."""
    declared = candidates[0] if len(candidates) == 1 else None
    polling = declared if isinstance(declared, model.SetPollingSource) else None
    state = event.new_source_state if polling is not None else push_state(event)
    kind = "polling" if polling is not None else "push" if candidates else "unknown"
    steps = [_describe_candidates(candidates)] if declared is None else describe_steps(declared)
    return RowSource(
        block=str(stored.hash),
        kind=kind,
        name=declared.source_name if isinstance(declared, model.AddPushSource) else "",
        place="" if polling is None else describe_location(polling.fetch, state),
        ingested=str(stored.block.system_time),
        state=describe_source_state(getattr(polling, "fetch", None), state),
        steps=steps,
        runs=runs,
    )


def _describe_candidates(candidates: Sequence[DeclaredSource]) -> str:
    """Describe an unknown source by the candidates."""
    if not candidates:
        return "the chain has no source: the rows were added to it directly"
    fetched = " or ".join(describe_steps(candidate)[0] for candidate in candidates)
    return f"{fetched}: the chain does not record which one"
