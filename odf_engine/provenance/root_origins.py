"""Sources of root rows, rows that later ones supersede, and their description."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import pyarrow as pa

from odf_engine.chain.block_summary import SliceSummary, StoredBlock
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import glob_root
from odf_engine.data.arrow_compute import hash_values, pc
from odf_engine.data.changelog import Op
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.ingest.fetch.files_glob import read_state
from odf_engine.ingest.fetch.model import ETAG, LAST_MODIFIED
from odf_engine.metadata import model
from odf_engine.progress import Reporter
from odf_engine.provenance.model import OffsetRange, ProducingTransaction, RowSource, row_count, to_ranges
from odf_engine.views.scan import Scan

_MOST: Final = 10_000
"""So many rows are looked up at most: nobody reads more of them, and memory is bounded."""
_Key = tuple[str, ...]


class ChangelogHistory:
    """What rows of a changelog do, and to which.

    Args:
        dataset: the changelog.
        runs: its rows in question, in order.
        reporter: is asked whether to stop.

    Attributes:
        counts: operations, and how many of the rows have each; empty for more rows than are looked at.
    """

    def __init__(self, dataset: Dataset, runs: Sequence[OffsetRange], reporter: Reporter) -> None:
        self._rows = Scan.of_dataset(dataset)
        self._reporter = reporter
        self._runs = runs
        self._offset, self._op, _ = self._rows.system_columns
        self._small = row_count(runs) <= _MOST
        found: Counter[int] = Counter()
        self._changing: list[int] = []
        for batch in self._batches([self._offset, self._op]) if self._small else ():
            ops = batch.column(1).to_pylist()
            found.update(ops)
            offsets = batch.column(0).to_pylist()
            self._changing += [at for at, op in zip(offsets, ops, strict=True) if op != Op.APPEND]
        self.counts = sorted(found.items())

    def superseded_rows(self, key: Sequence[str]) -> list[OffsetRange]:
        """The rows that were valid until these took them back or replaced them.

        Args:
            key: columns that tell rows apart; without any, rows are the same when all their values are.

        Raises:
            OdfError: rows cannot be read.
        """
        if not self._changing:
            return []
        columns = self._columns(key)
        targets = self._targets(columns, by_partner=not key)
        found: set[int] = set()
        for names, offsets in self._candidates(columns, targets):
            self._settle(targets, names, offsets, found)
            if not targets:
                break
        return to_ranges(sorted(found))

    def _columns(self, key: Sequence[str]) -> list[str]:
        available = self._rows.schema.names
        places = match_columns(available, list(key))
        if key and None not in places:
            return [available[place] for place in places if place is not None]
        return [name for name in available if name not in self._rows.system_columns]

    def _targets(self, columns: list[str], *, by_partner: bool) -> dict[_Key, list[int]]:
        """By the values that the earlier rows have: before which offsets they come."""
        wanted = dict(self._values_at(columns, self._changing))
        ops = dict(self._values_at([self._op], self._changing))
        if by_partner:  # a +C has other values than what it replaces, which the -C before it has
            after = [at for at in self._changing if ops[at] == (str(int(Op.CORRECT_TO)),) and at > 0]
            wanted |= {at + 1: values for at, values in self._values_at(columns, [at - 1 for at in after])}
        targets: dict[_Key, list[int]] = defaultdict(list)
        for at, values in wanted.items():
            targets[values].append(at)
        return {values: sorted(offsets) for values, offsets in targets.items()}

    def _values_at(self, columns: list[str], offsets: list[int]) -> Iterator[tuple[int, _Key]]:
        runs = to_ranges(sorted(offsets))
        for batch in self._batches([self._offset, *columns], runs):
            yield from zip(batch.column(0).to_pylist(), _keys(batch, columns), strict=True)

    def _candidates(
        self, columns: list[str], targets: dict[_Key, list[int]]
    ) -> Iterator[tuple[list[_Key], list[int]]]:
        """Rows that were valid once and have such values, newest slices first, in order within one."""
        wanted = _Wanted(columns, self._batches([self._offset, *columns], self._around()))
        end = max(offsets[-1] for offsets in targets.values())
        scan = self._rows.select([self._offset, self._op, *columns]).rows([(0, end)])
        for part in reversed(scan.by_file()):
            names: list[_Key] = []
            offsets: list[int] = []
            for batch in part.batches(self._reporter):
                valid = pc.is_in(batch.column(1), pa.array([Op.APPEND, Op.CORRECT_TO], batch.column(1).type))
                kept = batch.filter(valid)
                kept = kept.filter(wanted.may_be(kept))
                names += _keys(kept, columns)
                offsets += kept.column(0).to_pylist()
            yield names, offsets

    def _around(self) -> list[OffsetRange]:
        """The rows that change others, and those before them, which may be the other half of a pair."""
        return to_ranges(sorted({each for at in self._changing for each in (max(at - 1, 0), at)}))

    @staticmethod
    def _settle(
        targets: dict[_Key, list[int]], names: list[_Key], offsets: list[int], found: set[int]
    ) -> None:
        """Takes out the targets whose newest earlier row is among these."""
        by_name: dict[_Key, list[int]] = defaultdict(list)
        for name, offset in zip(names, offsets, strict=True):
            if name in targets:
                by_name[name].append(offset)
        for name, known in by_name.items():
            left: list[int] = []
            for target in targets[name]:
                place = bisect_left(known, target)
                if place:
                    found.add(known[place - 1])
                else:
                    left.append(target)
            if left:
                targets[name] = left
            else:
                del targets[name]

    def _batches(
        self, names: list[str], runs: Sequence[OffsetRange] | None = None
    ) -> Iterator[pa.RecordBatch]:
        spans = [(first, last + 1) for first, last in (self._runs if runs is None else runs)]
        yield from self._rows.select(list(dict.fromkeys(names))).rows(spans).batches(self._reporter)


class _Wanted:
    """Tells quickly which rows may have one of some values, by hashes of each column."""

    def __init__(self, columns: list[str], batches: Iterable[pa.RecordBatch]) -> None:
        self._hashes: dict[str, pa.Array] = {}
        parts: dict[str, list[pa.Array]] = defaultdict(list)
        for batch in batches:
            for name in columns:
                if not pa.types.is_nested(batch.column(name).type):
                    parts[name].append(hash_values(batch.column(name)))
        self._hashes = {name: pa.concat_arrays(each) for name, each in parts.items()}

    def may_be(self, batch: pa.RecordBatch) -> pa.Array:
        """For each row whether it may."""
        mask = pa.array([True]).take(pa.array([0] * batch.num_rows, pa.int64()))
        for name, hashes in self._hashes.items():
            mask = pc.and_(mask, pc.is_in(hash_values(batch.column(name)), hashes))
        return mask


def _keys(batch: pa.RecordBatch, columns: Sequence[str]) -> list[_Key]:
    """The values of each row in a form that can be compared: null is a value too."""
    values: list[list[Any]] = [batch.column(name).to_pylist() for name in columns]
    return [tuple(map(repr, row)) for row in zip(*values, strict=True)]


DeclaredSource = model.SetPollingSource | model.AddPushSource
_FORMATS: Final = {
    "Csv": "CSV",
    "GeoJson": "GeoJSON",
    "EsriShapefile": "an ESRI shapefile",
    "Parquet": "Parquet",
    "Json": "JSON",
    "NdJson": "JSON, an object a line",
    "NdGeoJson": "GeoJSON, a feature a line",
}
_NEWER: Final = "in a way that only a newer version understands"


def describe_location(fetch: Any, state: model.SourceState | None) -> str:
    """Where data came from: a URL, a file, a command, a topic.

    Args:
        fetch: the fetch step of a source.
        state: what its block says of the source; of sources with many files it names the one.
    """
    match fetch:
        case model.Url():
            return fetch.url
        case model.FilesGlob():
            name = _file_of(state)
            return fetch.path if name is None else str(PurePath(glob_root(fetch.path), name))
        case model.Container():
            return " ".join(["container", fetch.image, *(fetch.command or ()), *(fetch.args or ())])
        case model.Mqtt():
            topics = ", ".join(topic.path for topic in fetch.topics)
            return f"mqtt://{fetch.host}:{fetch.port} {topics}"
        case model.EthereumLogs():
            return f"logs of the Ethereum chain {fetch.chain_id or ''} {fetch.filter or ''}".strip()
        case _:
            return ""


def describe_source_state(fetch: Any, state: model.SourceState | None) -> str:
    """What a source said of its version; empty where it said nothing."""
    if state is None:
        return ""
    if isinstance(fetch, model.FilesGlob) and state.kind == ETAG:
        name, digest = read_state(state.value)
        return f"file {name}" + (f", SHA2-256 {digest.removeprefix('f1220')}" if digest else "")
    known = {ETAG: "ETag", LAST_MODIFIED: "changed at"}
    return f"{known.get(state.kind, state.kind)} {state.value}"


def _file_of(state: model.SourceState | None) -> str | None:
    return read_state(state.value)[0] if state is not None and state.kind == ETAG else None


def describe_steps(source: DeclaredSource) -> list[str]:
    """What is done to the data of a source, a line each: fetch, prepare, read, preprocess, merge."""
    steps: list[str] = []
    if isinstance(source, model.SetPollingSource):
        steps += [_fetched(source.fetch), *map(_prepared, source.prepare or ())]
    else:
        steps.append(f"pushed into the source '{source.source_name}'")
    steps.append(_read(source.read))
    steps += _preprocessed(source.preprocess)
    steps.append(_merged(source.merge))
    return steps


def _fetched(fetch: Any) -> str:
    match fetch:
        case model.Url():
            text = f"fetched from {fetch.url}"
        case model.FilesGlob():
            text = f"one of the files {fetch.path}"
        case model.Container():
            text = f"printed by the {describe_location(fetch, None)}"
        case model.Mqtt() | model.EthereumLogs():
            text = f"received from {describe_location(fetch, None)}"
        case _:
            return f"fetched {_NEWER}"
    match getattr(fetch, "event_time", None):
        case model.FromPath() as time:
            return f"{text}; its name says the event time ({time.pattern})"
        case model.FromMetadata():
            return f"{text}; the event time is when it was changed"
        case _:
            return text


def _prepared(step: Any) -> str:
    match step:
        case model.Decompress():
            inner = f", of it {step.sub_path}" if step.sub_path else ""
            return f"unpacked ({step.format.value.lower()}){inner}"
        case model.Pipe():
            return f"piped through: {' '.join(step.command)}"
        case _:
            return f"prepared {_NEWER}"


def _read(step: Any) -> str:
    name = _FORMATS.get(model.kind_of(step))
    if name is None:
        return f"read {_NEWER}"
    given = (
        (field.replace("_", " "), getattr(step, field))
        for field in step.__struct_fields__
        if field not in ("schema", "odf_schema")
    )
    options = [field if value is True else f"{field} {value!r}" for field, value in given if value]
    return ", ".join([f"read as {name}", *options])


def _preprocessed(query: Any) -> Iterator[str]:
    if query is None:
        return
    if not isinstance(query, model.Sql):
        yield f"preprocessed {_NEWER}"
        return
    for step in query.queries or ():
        name = f" {step.alias}" if step.alias else ""
        yield f"query{name} ({query.engine}): {' '.join(step.query.split())}"


def _merged(strategy: Any) -> str:
    key = ", ".join(getattr(strategy, "primary_key", ()))
    match strategy:
        case model.Append():
            return "added to what was there"
        case model.Ledger():
            return f"added where {key} was not there yet"
        case model.Snapshot():
            compared = f" in {', '.join(strategy.compare_columns)}" if strategy.compare_columns else ""
            return f"compared by {key} with what was there{compared}: the differences were added"
        case model.ChangelogStream():
            return f"added as the changes that they are, by {key}"
        case model.UpsertStream():
            return f"set in place of what was there, by {key}"
        case _:
            return f"merged {_NEWER}"


_DONE: Final = {
    Op.APPEND: "added",
    Op.RETRACT: "taken back",
    Op.CORRECT_FROM: "as it was before a correction",
    Op.CORRECT_TO: "as it was corrected",
}


def describe_operations(counts: Sequence[tuple[int, int]]) -> list[str]:
    """What rows do, such as ``2 rows added (+A)``; ``counts`` are operations and how many rows have each."""
    return [
        f"{count:,} {'row' if count == 1 else 'rows'} {_DONE[Op(op)]} ({Op(op).code})"
        if op in _DONE
        else f"{count:,} of an unknown operation {op}"
        for op, count in counts
    ]


def join_words(values: Sequence[str]) -> str:
    """Texts as in a sentence: ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(values[:-1]), *values[-1:]]))


_SETTINGS: Final = ("SetPollingSource", "DisablePollingSource", "AddPushSource", "DisablePushSource")
_PAGE: Final = 1000


class Origin(NamedTuple):
    """What the chain of a root dataset says of some of its rows; see :class:`..traced.Step`."""

    made: list[ProducingTransaction]
    sources: list[RowSource]
    how: list[str]
    earlier: list[OffsetRange]


def root_origin(dataset: Dataset, runs: Sequence[OffsetRange], reporter: Reporter) -> Origin:
    """Where rows came from.

    Args:
        dataset: a root dataset.
        runs: which of its rows, in order; all of them are there.
        reporter: is asked whether to stop.

    Raises:
        OdfError: a block or a slice is missing or damaged.
        Cancelled: in the middle.
    """
    known = _Sources(dataset)
    made: list[ProducingTransaction] = []
    sources: list[RowSource] = []
    keys: dict[tuple[str, ...], None] = {}
    for row, part in by_slice(dataset, runs):
        reporter.raise_if_cancelled()
        stored = dataset.block(row.sequence_number)
        candidates = known.then(row.sequence_number)
        sources.append(_source(stored, candidates, part))
        made.append(ProducingTransaction(str(stored.hash), row.sequence_number, str(row.system_time), part))
        keys.setdefault(_key(candidates))
    changes = ChangelogHistory(dataset, runs, reporter)
    earlier = changes.superseded_rows(next(iter(keys)) if len(keys) == 1 else ())
    return Origin(made, sources, describe_operations(changes.counts), earlier)


def by_slice(
    dataset: Dataset, runs: Sequence[OffsetRange]
) -> Iterator[tuple[SliceSummary, list[OffsetRange]]]:
    """Each slice that holds some of the rows, oldest first, and which of them."""
    if not runs:
        return
    at = 0
    for row in dataset.slices(runs[0][0], runs[-1][1]):
        part: list[OffsetRange] = []
        while at < len(runs) and runs[at][0] <= row.end:
            first, last = runs[at]
            part += [(max(first, row.start), min(last, row.end))] if last >= row.start else []
            if last > row.end:
                break
            at += 1
        if part:
            yield row, part


class _Sources:
    """The sources that a root dataset has had."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._settings: list[tuple[int, Any]] = []  # newest first
        before: int | None = None
        while rows := dataset.list_blocks(_PAGE, before=before, kinds=_SETTINGS):
            self._settings += [(row.sequence_number, dataset.block(row.hash).block.event) for row in rows]
            before = rows[-1].sequence_number

    def then(self, number: int) -> list[DeclaredSource]:
        """Those that were active at a block."""
        polling: model.SetPollingSource | None = None
        polled = False
        pushed: dict[str, model.AddPushSource | None] = {}
        for at, event in self._settings:
            if at >= number:
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
        if polling is not None:
            return [polling]
        return [each for each in reversed(pushed.values()) if each is not None]


def _source(stored: StoredBlock, candidates: Sequence[DeclaredSource], runs: list[OffsetRange]) -> RowSource:
    event: Any = stored.block.event
    found = candidates[0] if len(candidates) == 1 else None
    polling = found if isinstance(found, model.SetPollingSource) else None
    state = event.new_source_state if polling is not None else None
    kind = "polling" if polling is not None else "push" if candidates else "unknown"
    steps = [_either(candidates)] if found is None else describe_steps(found)
    return RowSource(
        block=str(stored.hash),
        kind=kind,
        name=found.source_name if isinstance(found, model.AddPushSource) else "",
        place="" if polling is None else describe_location(polling.fetch, state),
        ingested=str(stored.block.system_time),
        state="" if polling is None else describe_source_state(polling.fetch, state),
        steps=steps,
        runs=runs,
    )


def _either(candidates: Sequence[DeclaredSource]) -> str:
    """It is not known which source it was."""
    if not candidates:
        return "the chain names no source: whoever made these rows added them to it"
    return f"{' or '.join(describe_steps(each)[0] for each in candidates)}: the chain does not say which"


def _key(sources: Sequence[DeclaredSource]) -> tuple[str, ...]:
    """The primary key by which sources merge, where it is the same."""
    found = {tuple(getattr(each.merge, "primary_key", ())) for each in sources}
    return found.pop() if len(found) == 1 else ()
