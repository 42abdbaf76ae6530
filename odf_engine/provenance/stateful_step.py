"""Row provenance of windows, joins, groupings and deduplication."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.errors import Unsupported
from odf_engine.metadata.model import TransformRequest
from odf_engine.progress import Reporter
from odf_engine.provenance.model import OffsetSet
from odf_engine.provenance.stateless_step import LOST, SoughtRows, StepResult, note
from odf_engine.spark.arrow_batches import arrow_batches, cancellable
from odf_engine.spark.plan_rewrite import OPERATION
from odf_engine.spark.readers import query_schema
from odf_engine.spark.sql_types import arrow_schema, identifier
from odf_engine.spark.streaming.micro_batch import MicroBatchQuery
from odf_engine.spark.streaming.row_lineage import (
    BATCH,
    KEY_PREFIX,
    LAST_BATCH_COLUMN,
    ORIGINS_COLUMN,
    WATERMARK_COLUMN,
    Lineage,
    PrefixLineage,
)
from odf_engine.spark.streaming.row_match import (
    LAST_BATCH,
    MATCH_COUNT,
    OFFSET,
    SLICE_COUNT,
    in_ranges,
    key_columns,
    match_rows,
    origins_by_key,
    prefilter,
    stored_form,
)
from odf_engine.spark.streaming.stateful_query import ROWS, StreamingPlan, plan_stream
from odf_engine.spark.text_files import spark_path
from odf_engine.spark.user_query import run_query
from odf_engine.transform.engines.as_of_transaction import input_frame
from odf_engine.transform.engines.contract import QueryInput
from odf_engine.transform.engines.stateful_transaction import (
    END_OF_TIME,
    Batch,
    Watermarks,
    batches_by_slice,
    batches_by_watermark,
    read_slices,
)
from odf_engine.transform.plan import Transaction

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


Take = Callable[["DataFrame"], Iterator[pa.RecordBatch]]
Group = tuple[Any, ...]
_WANTED: Final = "odf_wanted"
_MOST: Final = 200_000


@dataclass
class Entries:
    """The changelog entries of a group, and the batches in which it had rows.

    Attributes:
        wanted: for each entry, whether it is to be traced.
        batches: in ascending order.
        retracts: whether a traced row retracts another one.
    """

    wanted: list[bool] = field(default_factory=list[bool])
    batches: list[int] = field(default_factory=list[int])
    retracts: bool = False


@dataclass(frozen=True)
class Groups:
    """The groups of the traced rows.

    Attributes:
        entries: by the comparable values of the group.
        keys: ``g0``, … and ``odf_key_0``, …: the comparable and the original values of each group.
    """

    entries: dict[Group, Entries]
    keys: DataFrame


def groups_of(
    lineage: Lineage, sought: SoughtRows, rows: DataFrame, first: int, last: int, take: Take
) -> Groups:
    """Return the groups of the traced rows.

    Args:
        lineage: the tracked query.
        sought: the traced rows.
        rows: rows of their slice.
        first, last: batches of the transaction.
        take: runs a frame.

    Raises:
        Unsupported: there are too many entries.
    """
    names, under = lineage.group_columns or [], lineage.grouping_rows()
    keys = [f"{KEY_PREFIX}{at}" for at in range(len(names))]
    columns = [f"g{at}" for at in range(len(names))]
    theirs = compared_groups(names, rows)
    ours = compared_groups(names, rows, keys)
    offset, operation = sought.vocab.offset_column, sought.vocab.operation_type_column
    asked = in_ranges(identifier(offset), sought.runs)
    under = under.selectExpr(*ours, *keys, BATCH)
    log = rows.selectExpr(
        *theirs, f"{identifier(offset)} AS place", f"{identifier(operation)} AS op", f"{asked} AS {_WANTED}"
    )
    if columns:
        under, log = prefilter(rows.sparkSession, under, log, columns)
    touched = under.where(f"{BATCH} BETWEEN {first} AND {last}").select(*columns, BATCH).distinct()
    entries: dict[Group, Entries] = {}
    _read_log(_few(take, log.sort("place")), columns, entries)
    for batch in _few(take, touched.sort(BATCH)):
        for row in batch.to_pylist():
            found = entries.get(_group(row, columns))
            if found is not None:
                found.batches.append(row[BATCH])
    return Groups(entries, under.select(*columns, *keys).distinct() if columns else under.limit(0))


def compared_groups(names: Sequence[str], rows: DataFrame, keys: Sequence[str] | None = None) -> list[str]:
    """Return the columns that identify groups as ``g0``, …, in the form in which slices store them.

    Args:
        names: columns of the result.
        rows: rows of a slice.
        keys: other columns with the same values.
    """
    found: list[str] = []
    places = match_columns(rows.columns, list(names))
    for at, (name, place) in enumerate(zip(names, places, strict=True)):
        kind = rows.schema[rows.columns[place or 0]].dataType
        found.append(f"{stored_form(identifier(keys[at] if keys else name), kind)} AS g{at}")
    return found


def _read_log(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str], entries: dict[Group, Entries]
) -> None:
    for batch in batches:
        for row in batch.to_pylist():
            group = entries.setdefault(_group(row, columns), Entries())
            if row["op"] == Op.CORRECT_TO and group.wanted:
                group.wanted[-1] = group.wanted[-1] or row[_WANTED]
            else:
                group.wanted.append(row[_WANTED])
            gone = row["op"] in (Op.RETRACT, Op.CORRECT_FROM)
            group.retracts = group.retracts or (row[_WANTED] and gone)


def last_batch_of(entries: Entries, batches: Sequence[int]) -> int | None:
    """Return the batch of the last traced entry; None if entries and batches do not match one to one."""
    if len(entries.wanted) != len(batches):
        return None
    return max(batch for batch, asked in zip(batches, entries.wanted, strict=True) if asked)


def changing_batches(values: Sequence[tuple[int, dict[str, Any]]], first: int) -> list[int]:
    """Return the batches in which the row of a group changed.

    Args:
        values: row of the group after batches, in their order.
        first: first batch of the transaction.
    """
    emitted: dict[str, Any] | None = None
    found: list[int] = []
    for batch, row in values:
        alive = row[ROWS] > 0
        own = {name: value for name, value in row.items() if name not in (ROWS, LAST_BATCH_COLUMN)}
        changes = emitted is not None if not alive else emitted is None or not _same(own, emitted)
        if changes and batch >= first:
            found.append(batch)
        if changes:
            emitted = own if alive else None
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (
            math.isclose(one, other, rel_tol=1e-12) or one == other or (math.isnan(one) and math.isnan(other))
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return one == other


def group_key(row: dict[str, Any], columns: Sequence[str]) -> Group:
    """Return the values of a group in comparable form."""
    return _group(row, columns)


def _group(row: dict[str, Any], columns: Sequence[str]) -> Group:
    values = (row[name] for name in columns)
    return tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in values)


def _few(take: Take, frame: DataFrame) -> Iterator[pa.RecordBatch]:
    count = 0
    for batch in take(frame):
        count += batch.num_rows
        if count > _MOST:
            raise Unsupported(f"the groups of these rows changed more than {_MOST:,} times")
        yield batch


_MAX_SLICES: Final = 3000


@dataclass(frozen=True)
class PlannedTransaction:
    """A transaction as planned, with its request."""

    transaction: Transaction
    request: TransformRequest


@dataclass(frozen=True)
class BatchPolicy:
    """How the input of a query is split into batches
    (:mod:`odf_engine.transform.engines.stateful_transaction`).

    Attributes:
        by_commit: rows are emitted in the order of the inputs' commits.
        update: groups without a window.
        as_of: the query has as-of joins.
    """

    by_commit: bool
    update: bool
    as_of: bool

    def batches(self, part: PlannedTransaction, marks: Watermarks) -> list[Batch]:
        """Return the batches of a transaction that continues from these watermarks."""
        inputs = part.request.query_inputs
        slices = read_slices(inputs)
        if self.as_of:
            each = self.update or self.by_commit
            return list(batches_by_watermark(slices, inputs, marks, each=each))
        if self.by_commit:
            return list(batches_by_watermark(slices, inputs, marks, each=True))
        return list(batches_by_slice(slices, inputs, marks, each=self.update))


class Timeline:
    """All batches up to the end of a transaction, numbered from the beginning of its state.

    Args:
        past: the earlier transactions as one; None if the state begins with this transaction.
        own: the transaction.
        cutting: how its query is split into batches.
        exact: whether rows with a time equal to the watermark may still arrive.

    Attributes:
        first, last: numbers of the batches of the transaction itself.
        changing: names of inputs with retractions or corrections.
        late: names of inputs with late rows.

    Raises:
        Unsupported: there are too many slices.
    """

    def __init__(
        self, past: PlannedTransaction | None, own: PlannedTransaction, cutting: BatchPolicy, *, exact: bool
    ) -> None:
        parts = [own] if past is None else [past, own]
        count = sum(len(each.data_paths) for part in parts for each in part.request.query_inputs)
        if count > _MAX_SLICES:
            raise Unsupported(f"the state was made of {count:,} slices, more than are followed at once")
        self._parts = parts
        self._request = own.request
        self._exact = exact
        marks, self._batches = Watermarks({}), list[Batch]()
        for part in parts:
            self.first = len(self._batches)
            if part is own and part.transaction.kind == "finish":
                self._batches.append(Batch([], END_OF_TIME))
            else:
                self._batches += cutting.batches(part, marks)
            marks = marks.after(part.request.query_inputs, None)
        self.last = len(self._batches) - 1
        aliases = [each.query_alias for each in own.request.query_inputs]
        slices = [each for batch in self._batches for each in batch.slices]
        self.changing = {aliases[each.input_index] for each in slices if each.changes}
        before = [0, *map(self._mark, self._batches)]
        self.late = {
            aliases[each.input_index]
            for number, batch in enumerate(self._batches)
            for each in batch.slices
            if each.earliest is not None and each.earliest <= before[number]
        }

    def after(self, *, exact: bool | None = None) -> list[tuple[int, int]]:
        """Return the watermarks after batches, in milliseconds, each with the first batch that reached it.

        Args:
            exact: whether rows with a time equal to the watermark may still arrive; by default as for the
                query.
        """
        less = self._exact if exact is None else exact
        found: list[tuple[int, int]] = []
        for number, batch in enumerate(self._batches):
            mark = max(0, (batch.watermark or 0) - less)
            if batch.watermark is not None and (not found or mark > found[-1][0]):
                found.append((mark, number))
        return found

    def before(self) -> str:
        """Return the watermark before each batch in milliseconds, as SQL over ``odf_batch``."""
        marks = [0, *map(self._mark, self._batches)]
        return _stepped(BATCH, list(enumerate(marks[:-1])))

    def frames(self, session: SparkSession) -> dict[str, DataFrame]:
        """Return the rows of each input as the query reads them."""
        hidden = (ORIGINS_COLUMN, BATCH, WATERMARK_COLUMN)
        return {name: frame.drop(*hidden) for name, frame in self.tables(session).items()}

    def tables(self, session: SparkSession) -> dict[str, DataFrame]:
        """Return the rows of each input, with the columns for row lineage."""
        return {
            each.query_alias: self._table(session, at) for at, each in enumerate(self._request.query_inputs)
        }

    def _table(self, session: SparkSession, at: int) -> DataFrame:
        input = self._request.query_inputs[at]
        ends = {
            str(plan.entry.dataset.slice_path(row)): row.end
            for part in self._parts
            for plan in [part.transaction.inputs[at]]
            for row in plan.slices
        }
        batch_of: dict[int, int] = {}
        paths: list[Path] = []
        for number, batch in enumerate(self._batches):
            for each in batch.slices:
                if each.input_index == at:
                    paths.append(each.path)
                    batch_of[ends[str(each.path)]] = number
        numbers = sorted(batch_of.items())
        marks = [
            (end, 0 if number == 0 else self._mark(self._batches[number - 1])) for end, number in numbers
        ]
        schema = pq.read_schema(input.schema_file)
        frame = input_frame(session, paths, QueryInput(input.query_alias, schema, input.vocab))
        offset = identifier(input.vocab.offset_column)
        return frame.selectExpr(
            "*",
            f"array(struct({at} AS at, {offset} AS offset)) AS {ORIGINS_COLUMN}",
            f"{_stepped(offset, numbers)} AS {BATCH}",
            f"timestamp_millis(CAST({_stepped(offset, marks)} AS BIGINT)) AS {WATERMARK_COLUMN}",
        )

    def _mark(self, batch: Batch) -> int:
        return max(0, (batch.watermark or 0) - self._exact)


def _stepped(column: str, steps: Sequence[tuple[int, int]]) -> str:
    """Return an SQL expression of the value of the first step that reaches a column, as binary search."""
    joined: list[tuple[int, int]] = []
    for end, value in steps:
        if joined and joined[-1][1] == value:
            joined.pop()
        joined.append((end, value))
    return _halved(column, joined) if joined else "CAST(NULL AS INT)"


def _halved(column: str, steps: Sequence[tuple[int, int]]) -> str:
    if len(steps) == 1:
        return str(steps[0][1])
    middle = len(steps) // 2
    left, right = _halved(column, steps[:middle]), _halved(column, steps[middle:])
    return f"IF({column} <= {steps[middle - 1][0]}, {left}, {right})"


_FINISHED: Final = "its transaction ended the state of a query, and gave what was still to come"


class StatefulTrace:
    """Traces a transaction of a stateful query.

    Args:
        session: created by :func:`odf_engine.provenance.stateless_step.transaction_session`.
        past: the earlier transactions as one; None if the state begins with this transaction.
        own: the transaction.
        sought: the rows.
        folder: folder for temporary files, with a safe path (see :func:`is_safe_path`).
        reporter: receives amounts; checked for cancellation.
    """

    def __init__(
        self,
        session: SparkSession,
        past: PlannedTransaction | None,
        own: PlannedTransaction,
        sought: SoughtRows,
        folder: Path,
        reporter: Reporter,
    ) -> None:
        self._session = session
        self._past, self._own = past, own
        self._sought = sought
        self._folder = folder
        self._reporter = reporter
        self._request = own.request

    def trace(self) -> StepResult:
        """Trace the rows.

        Raises:
            StatefulQueryError: the query is not supported.
            OdfError: the query cannot run any more.
        """
        query = self._query()
        cutting = BatchPolicy(query.by_commit, query.mode == "update", as_of=self._as_of)
        time = Timeline(self._past, self._own, cutting, exact=query.exact)
        lineage = self._lineage(time)
        made = lineage.recomputed_rows(self._frame(time))
        if query.mode == "update":
            traced = self._of_groups(lineage, time)
        else:
            traced = self._of_rows(lineage, made, query, time)
        traced.how += lineage.operations
        if self._own.transaction.kind == "finish":
            traced.how.append(_FINISHED)
        return traced

    def _lineage(self, time: Timeline, kind: type[Lineage] = Lineage) -> Lineage:
        return kind(
            self._session,
            {each.query_alias: each.vocab for each in self._request.query_inputs},
            self._request.vocab.event_time_column,
            time.changing,
            time.tables(self._session),
            time.after(),
        )

    def _frame(self, time: Timeline) -> DataFrame:
        """Return the query over streams without rows, of which only the plan is used."""
        return self._streamed

    def _query(self) -> StreamingPlan:
        """Return the streaming plan of the query."""
        streams = MicroBatchQuery(self._session, self._folder / "state", self._folder)
        views: dict[str, DataFrame] = {}
        for at, each in enumerate(self._request.query_inputs):
            schema = query_schema(pq.read_schema(each.schema_file), each.vocab)
            views[each.query_alias] = streams.view(at, schema, each.vocab)
        self._streamed = run_query(self._session, views, self._request.transform.queries or [])
        inputs = {each.query_alias: each.vocab for each in self._request.query_inputs}
        time = self._request.vocab.event_time_column
        return plan_stream(self._session, self._streamed, inputs, time, set())

    _as_of = False
    _ranked = True

    def _signed(self, own: Sequence[str]) -> bool:
        """Return whether the operation distinguishes a row from its retraction."""
        return False

    # --- Rows that are final ------------------------------------------------------------------

    def _of_rows(self, lineage: Lineage, made: DataFrame, query: StreamingPlan, time: Timeline) -> StepResult:
        made = made.where(f"{BATCH} IS NULL OR {BATCH} BETWEEN {time.first} AND {time.last}")
        own = query.query_columns(arrow_schema(query.frame.schema).names)
        keys = key_columns(made.columns)
        identity = [BATCH, *(keys if lineage.grouping_input is not None else [ORIGINS_COLUMN])]
        traced = self._new()
        for close in (False, True):
            wanted = self._sought.wanted(
                self._session, signed=self._signed(own), close=close, ranked=self._ranked
            )
            found = match_rows(made, own, OPERATION, identity, wanted)
            traced = self._new()
            if lineage.grouping_input is None:
                self._take(found, traced)
            else:
                self._take_groups(found, keys, lineage, traced)
            if not traced.lost:
                break
        return traced

    def _take(self, found: DataFrame, traced: StepResult) -> None:
        """Add the origins that rows carry."""
        rows = found.selectExpr(OFFSET, SLICE_COUNT, MATCH_COUNT, f"explode_outer({ORIGINS_COLUMN}) AS place")
        rows = rows.selectExpr(OFFSET, SLICE_COUNT, MATCH_COUNT, "place.at AS at", "place.offset AS offset")
        alike = False
        for batch in self._batches(rows):
            traced.lost = traced.lost or batch.column(MATCH_COUNT).null_count > 0
            alike = (
                alike
                or pc.any(pc.not_equal(batch.column(SLICE_COUNT), batch.column(MATCH_COUNT))).as_py() is True
            )
            self._fold(batch, traced)
        if traced.lost:
            traced.reason = LOST
        elif alike:
            traced.reason = _ALIKE

    def _take_groups(
        self, found: DataFrame, keys: Sequence[str], lineage: Lineage, traced: StepResult
    ) -> None:
        """Add the origins of the rows of the matched groups."""
        path = self._folder / f"groups-{len(list(self._folder.iterdir()))}"
        with cancellable(self._session, self._reporter):
            found.write.parquet(spark_path(path))
        groups = self._session.read.schema(found.schema).parquet(spark_path(path))
        for batch in self._batches(groups.select(OFFSET, SLICE_COUNT, MATCH_COUNT)):
            note(batch, traced)
        if traced.lost:
            return
        assert lineage.grouping_input is not None
        of_groups = groups.select(*keys).distinct() if keys else groups.selectExpr("1 AS one").limit(1)
        self._take_places(lineage, of_groups, traced)

    def _take_places(self, lineage: Lineage, groups: DataFrame, traced: StepResult) -> None:
        assert lineage.grouping_input is not None
        sessions = lineage.grouping_input.sessions
        for batch in self._batches(origins_by_key(lineage.grouping_rows(), groups, sessions)):
            self._fold(batch, traced)

    # --- Groups without a window --------------------------------------------------------------

    def _of_groups(self, lineage: Lineage, time: Timeline) -> StepResult:
        traced = self._new()
        rows = self._sought.wanted(self._session, signed=False, ranked=True).rows
        groups = groups_of(lineage, self._sought, rows, time.first, time.last, self._batches)
        rebuilt = self._own.transaction.kind == "rebuild"
        asked = {group: found for group, found in groups.entries.items() if any(found.wanted)}
        if not all(found.batches or rebuilt for found in asked.values()):
            traced.lost, traced.reason = True, LOST
            return traced
        if rebuilt and any(found.retracts for found in asked.values()):
            traced.lost, traced.reason = True, _INSTEAD
            return traced
        cuts = {
            group: time.last if rebuilt else last_batch_of(found, found.batches)
            for group, found in asked.items()
        }
        if None in cuts.values():
            cuts |= self._computed(groups, [group for group, cut in cuts.items() if cut is None], time)
        if None in cuts.values():
            traced.reason = _SOMETIME
        self._take_places(lineage, self._cut(groups, cuts, time.last), traced)
        return traced

    def _computed(self, groups: Groups, which: Sequence[Group], time: Timeline) -> dict[Group, int | None]:
        """Compute the last batches of groups whose result did not change with every batch."""
        batches = sorted({batch for group in which for batch in groups.entries[group].batches})
        if len(batches) > _MAX_PREFIXES:
            return {}
        numbers = ", ".join(map(str, [time.first - 1, *batches]))
        keys = key_columns(groups.keys.columns)
        prefixes = groups.keys.select(*keys).distinct() if keys else self._session.sql("SELECT 1 AS one")
        lineage = self._lineage(time, PrefixLineage)
        assert isinstance(lineage, PrefixLineage)
        lineage.targets = prefixes.selectExpr(*keys, f"explode(array({numbers})) AS {LAST_BATCH_COLUMN}")
        made = lineage.recomputed_rows(self._frame(time))
        rows = self._sought.wanted(self._session, signed=False, ranked=True).rows
        compared = compared_groups(lineage.group_columns or [], rows)
        columns = [f"g{at}" for at in range(len(compared))]
        values: dict[Group, list[tuple[int, dict[str, Any]]]] = {group: [] for group in which}
        for batch in self._batches(made.selectExpr("*", *compared)):
            for row in batch.to_pylist():
                group = group_key(row, columns)
                if group in values:
                    own = {name: value for name, value in row.items() if name not in columns}
                    values[group].append((row[LAST_BATCH_COLUMN], own))
        return {
            group: last_batch_of(
                groups.entries[group], changing_batches(sorted(rows, key=_prefix), time.first)
            )
            for group, rows in values.items()
        }

    def _cut(self, groups: Groups, cuts: Mapping[Group, int | None], last: int) -> DataFrame:
        """Return the keys of groups with their last batches; ``last`` if unknown."""
        names = [name for name in groups.keys.columns if not name.startswith(KEY_PREFIX)]
        if not names:
            return groups.keys.sparkSession.sql(f"SELECT {cuts.get((), last) or last} AS {LAST_BATCH}")
        kinds = arrow_schema(groups.keys.select(*names).schema)
        columns = [
            pa.array([_value(group[at], kind) for group in cuts], kind) for at, kind in enumerate(kinds.types)
        ]
        values = [last if cut is None else cut for cut in cuts.values()]
        table = pa.table([*columns, pa.array(values, pa.int32())], names=[*names, LAST_BATCH])
        self._session.createDataFrame(table).createOrReplaceTempView("odf_cuts")
        groups.keys.createOrReplaceTempView("odf_groups")
        same = " AND ".join(f"a.{name} <=> b.{name}" for name in names)
        keys = ", ".join(f"a.{name}" for name in key_columns(groups.keys.columns))
        return self._session.sql(
            f"SELECT DISTINCT {keys}, b.{LAST_BATCH} FROM odf_groups a JOIN odf_cuts b ON {same}"
        )

    # --- What comes from Spark ----------------------------------------------------------------

    def _new(self) -> StepResult:
        return StepResult([OffsetSet() for _ in self._request.query_inputs])

    def _batches(self, frame: DataFrame) -> Iterator[pa.RecordBatch]:
        for batch in arrow_batches(frame, self._reporter)[1]:
            self._reporter.raise_if_cancelled()
            yield batch

    def _fold(self, batch: pa.RecordBatch, traced: StepResult) -> None:
        inputs, offsets = batch.column("at"), batch.column("offset")
        for at, folding in enumerate(traced.feeds):
            folding.add(offsets.filter(pc.equal(inputs, at)).drop_null())


def _prefix(value: tuple[int, dict[str, Any]]) -> int:
    return value[0]


def _value(value: Any, kind: pa.DataType) -> Any:
    return math.nan if value == "NaN" and pa.types.is_floating(kind) else value


_MAX_PREFIXES: Final = 200
_INSTEAD: Final = (
    "the row is one of the query before, which a new query took back when its state was made anew"
)
_SOMETIME: Final = (
    "its group changed often in this transaction, and it cannot be said by which rows the group was this row"
)
_ALIKE: Final = "several rows are the same in all columns, and it cannot be said which of them came out here"
