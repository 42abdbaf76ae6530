"""Executes SQL over datasets as tables, each at a block and in a state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import Reporter
from odf_engine.chain.schema_evolution import Declaration, read_declaration
from odf_engine.data.ddl import type_ddl
from odf_engine.data.digest import LogicalHasher
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.errors import InvalidIdentity, InvalidQuery, NotFound, OdfError, UsageError
from odf_engine.metadata.model import SetDataSchema, SqlQueryStep
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.query_process.client import DUCKDB, QueryOptions, UnknownTable, run_query, storable_rows
from odf_engine.rows import PinnedVersion
from odf_engine.rows.as_at import at_version, resolve_as_at
from odf_engine.rows.projection import Projection, build_projection, dataset_key
from odf_engine.rows.query_proof import ProofColumn, ProofTable, ResultSummary
from odf_engine.sql.table_functions import RewrittenQuery, TableFunctionCall, parse_sql_timestamp

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from odf_engine.chain.block_summary import SliceSummary
    from odf_engine.spark import DataFrame, SparkSession, arrow_batches, readers, row_order, user_query
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace
else:  # these import PySpark, and are first used after Spark has started
    arrow_batches = LazyModule("odf_engine.spark.arrow_batches")
    readers = LazyModule("odf_engine.spark.readers")
    row_order = LazyModule("odf_engine.spark.row_order")
    user_query = LazyModule("odf_engine.spark.user_query")

_PARTITION_BYTES: Final = 32 << 20
_MAX_PARTITIONS: Final = 200
_DUCKDB: Final = QueryOptions(program=DUCKDB)


@dataclass(frozen=True)
class TimeTravelDefaults:
    """The versions and states of datasets that the query does not specify.

    Attributes:
        as_at: a system time or a block.
        as_of: an event time.
        blocks: blocks of datasets by their ids.
        tables: tables of an earlier execution by their names in lower case; they override all else.
    """

    as_at: str | None = None
    as_of: Timestamp | None = None
    blocks: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, ProofTable] | None = None


def parse_time_travel(
    workspace: Workspace, as_at: str | None, as_of: str | None, pins: Mapping[str, str]
) -> TimeTravelDefaults:
    """Parse the time travel options of a request.

    Raises:
        UsageError: a time is malformed.
        NotFound: there is no such dataset.
    """
    event_time = None if as_of is None else parse_sql_timestamp(as_of)
    if as_of is not None and event_time is None:
        raise UsageError(f"'{as_of}' is not a time", hint="use a time such as 2024-03-05T10:00:00Z")
    blocks = {str(resolve(workspace, name).id): block for name, block in pins.items()}
    return TimeTravelDefaults(as_at, event_time, blocks)


class Tables:
    """Resolves the tables of one query.

    Args:
        workspace: the workspace.
        reporter: receives log lines.
        seen: versions and states that the query does not specify.
        readable: the ids of the only datasets that the query can read, or None for all.

    Attributes:
        read: the tables resolved so far, in order.
        pins: their versions, each once.
    """

    def __init__(
        self,
        workspace: Workspace,
        reporter: Reporter,
        seen: TimeTravelDefaults,
        readable: Collection[str] | None = None,
    ) -> None:
        self._workspace = workspace
        self._readable = readable
        self._reporter = reporter
        self._seen = seen
        self.read: list[ProofTable] = []
        self.pins: list[PinnedVersion] = []

    @property
    def names(self) -> list[str]:
        """Names and ids of all datasets."""
        known = self._seen.tables or {}
        return [
            *(
                name
                for dataset in _readable_datasets(self._workspace, self._readable)
                for name in (str(dataset.alias), str(dataset.id))
            ),
            *(table.table for table in known.values()),
        ]

    def files(self, name: str, call: TableFunctionCall | None = None) -> TableFiles:
        """Return the files with the rows of a table, and the columns that the dataset had at its block.

        Args:
            name: the name of the table.
            call: the table function in its place, or None if the query names a dataset.

        Raises:
            NotFound: there is no dataset of this name, or no such block.
            InvalidQuery: it has no columns yet.
            UsageError: the time is before its first block or in the future, or it has no key.
            InvalidSchema: the key is not among its columns.
        """
        if self._seen.tables is None:
            call = call or TableFunctionCall(name, name)
            entry = resolve(self._workspace, call.dataset, self._readable)
            pin = self._pin(entry, call)
        else:
            entry, pin, call = self._recorded_table(name, self._seen.tables)
        files = self._files(at_version(entry, pin), pin, call, name)
        if pin not in self.pins:
            self.pins.append(pin)
        return files

    def check_all_used(self) -> None:
        """Check that the query reads every dataset with a given block.

        Raises:
            UsageError: it does not.
        """
        unused = self._seen.blocks.keys() - {entry.id for entry in self.read}
        if unused:
            name = self._workspace.resolve(min(unused)).alias
            raise UsageError(
                f"a block was specified for {name}, but the query reads it only with its own time travel",
                hint="omit the block",
            )

    def _pin(self, entry: DatasetEntry, call: TableFunctionCall) -> PinnedVersion:
        as_at = call.as_at or self._seen.blocks.get(str(entry.id)) or self._seen.as_at
        return resolve_pin(entry, as_at)

    def _recorded_table(
        self, name: str, tables: Mapping[str, ProofTable]
    ) -> tuple[DatasetEntry, PinnedVersion, TableFunctionCall]:
        table = tables.get(name.casefold())
        if table is None:
            raise NotFound(f"dataset '{name}' not found")
        entry = self._workspace.resolve(table.id)
        call = TableFunctionCall(
            table.table, table.name, state=table.state, as_of=table.as_of, key=tuple(table.key)
        )
        return entry, resolve_pin(entry, table.block), call

    def _files(
        self, entry: DatasetEntry, pin: PinnedVersion, call: TableFunctionCall, name: str
    ) -> TableFiles:
        of_all = self._seen.as_of if call.state is None else None
        state = call.state or ("changelog" if of_all is None else "as of")
        as_of = parse_sql_timestamp(call.as_of) if call.as_of is not None else of_all
        schema, vocabulary = columns_at(entry, pin), entry.dataset.state().vocabulary
        slices = [] if pin.last_offset is None else entry.dataset.slices(0, pin.last_offset)
        rows = sum(data_slice.end - data_slice.start + 1 for data_slice in slices)
        block = f"{entry.alias} at block {pin.sequence_number}"
        key: list[str] = []
        if state == "changelog":
            self._reporter.log(f"reading {block}: {_row_count(rows)} in {_slice_count(slices)}")
            paths = entry.dataset.slice_paths(slices, self._reporter)
        else:
            projection = self._projection(entry, pin, call.key, as_of)
            described = state if as_of is None else f"as of {as_of}"
            self._reporter.log(f"reading {block}, {described}: {projection.rows} of {_row_count(rows)}")
            paths, key = [projection.file], list(projection.key)
        self.read.append(
            ProofTable(
                table=name,
                name=str(entry.alias),
                id=str(entry.id),
                block=pin.block,
                sequence_number=pin.sequence_number,
                system_time=pin.system_time,
                state=state,
                as_of=None if as_of is None else str(as_of),
                key=key,
            )
        )
        return TableFiles(name, paths, schema, vocabulary)

    def _projection(
        self, entry: DatasetEntry, pin: PinnedVersion, key: Sequence[str], as_of: Timestamp | None
    ) -> Projection:
        if as_of is None and not key and not dataset_key(entry.dataset):
            problem = f"the primary key of {entry.alias} is unknown"
            raise UsageError(problem, hint=f"specify it: current({entry.alias}, key, …)")
        return build_projection(
            self._workspace.odf, entry.dataset, key, self._reporter, last_offset=pin.scan_offset, as_of=as_of
        )


def resolve_pin(entry: DatasetEntry, as_at: str | None) -> PinnedVersion:
    """Resolve the version of a dataset at a system time or a block, which may also be its number.

    Raises:
        UsageError: the time is before the first block, or in the future.
        NotFound: there is no such block.
    """
    if as_at is None:
        return resolve_as_at(entry)
    time = parse_sql_timestamp(as_at)
    if time is None:
        try:
            return resolve_as_at(entry, as_at)
        except NotFound as error:
            hint = error.hint or f"use a time or a block; odf log {entry.alias} lists both"
            raise NotFound(error.message, hint=hint) from None
    if time > Timestamp.now():
        raise UsageError(
            f"{time} is in the future",
            hint="omit the time to read the current version",
        )
    return resolve_as_at(entry, str(time))


def resolve(workspace: Workspace, name: str, readable: Collection[str] | None = None) -> DatasetEntry:
    """Return the dataset that a query names.

    Args:
        workspace: the workspace.
        name: the name or the id of the dataset.
        readable: the ids of the only datasets that the query can read, or None for all.

    Raises:
        NotFound: it does not exist, or the query cannot read it; the hint has a similar name.
    """
    from difflib import get_close_matches

    with suppress(NotFound, InvalidIdentity):
        entry = workspace.resolve(name)
        if readable is None or str(entry.id) in readable:
            return entry
    aliases = [str(dataset.alias) for dataset in _readable_datasets(workspace, readable)]
    names = {alias.lower(): alias for alias in aliases}
    holding = [tables for tables in names if name.lower() in tables]
    close = [*get_close_matches(name.lower(), names, 1), *holding][:1]
    hint = "list all datasets: odf list" if readable is None else "list the tables of this server"
    if close:
        hint = f"did you mean {names[close[0]]}?"
    raise NotFound(f"dataset '{name}' not found", hint=hint)


def _readable_datasets(workspace: Workspace, readable: Collection[str] | None) -> list[DatasetEntry]:
    datasets = workspace.datasets()
    return datasets if readable is None else [entry for entry in datasets if str(entry.id) in readable]


def columns_at(entry: DatasetEntry, pin: PinnedVersion) -> pa.Schema:
    """Return the columns that a dataset had at a block.

    Raises:
        InvalidQuery: it had none yet.
    """
    state = entry.dataset.state()
    declaration: Declaration = state
    if str(state.head) != pin.block:
        rows = entry.dataset.list_blocks(1, before=pin.sequence_number + 1, kinds=("SetDataSchema",))
        event = entry.dataset.block(rows[0].hash).block.event if rows else None
        declaration = event if isinstance(event, SetDataSchema) else SetDataSchema()
    if (schema := read_declaration(declaration)) is not None:
        return schema
    if pin.head:
        problem = f"{entry.alias} has no rows yet, so its columns are unknown"
        raise InvalidQuery(problem, hint=f"ingest data first: odf pull {entry.alias}")
    problem = f"{entry.alias} had no rows at block {pin.sequence_number}, so its columns were unknown"
    raise InvalidQuery(problem, hint=f"use a later block: odf log {entry.alias}")


def _row_count(rows: int) -> str:
    return f"{rows} row{'' if rows == 1 else 's'}"


def _slice_count(slices: list[SliceSummary]) -> str:
    return "1 slice" if len(slices) == 1 else f"{len(slices)} slices"


class QueryAnswer:
    """The result of a query.

    Attributes:
        schema: the schema of the rows.
        batches: the rows; can be consumed once.
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        hasher: LogicalHasher | None,
        ordered: bool,
    ) -> None:
        self.schema = schema
        self._hasher = hasher
        self._ordered = ordered
        self._rows = 0
        self.batches = self._counted(batches)

    @property
    def columns(self) -> list[ProofColumn]:
        """Names and types of the columns."""
        return [ProofColumn(field.name, type_ddl(field.type)) for field in self.schema]

    def summarize(self, reporter: Reporter) -> ResultSummary:
        """Return the summary for a proof. Consumes the remaining rows."""
        assert self._hasher is not None
        for _ in self.batches:
            reporter.raise_if_cancelled()
        return ResultSummary(
            columns=self.columns,
            rows=self._rows,
            hash=str(self._hasher.finish()),
            order="query" if self._ordered else "all columns",
        )

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        for batch in batches:
            if self._hasher is not None:
                self._hasher.update(batch)
            self._rows += batch.num_rows
            yield batch


@contextmanager
def execute_query(
    sql: str,
    names: Collection[str],
    find: Callable[[str, TableFunctionCall | None], TableFiles],
    session: SparkSession,
    reporter: Reporter,
    *,
    proven: bool = False,
) -> Iterator[QueryAnswer]:
    """Run a query. Errors in the block, also while rows are read, get their position in the query.

    Args:
        sql: the query.
        names: the names of all tables that it can read.
        find: returns the files of a table by its name, and the table function in its place, if any.
        session: used by this query alone.
        reporter: receives progress, and can cancel.
        proven: whether the rows get a total order and are hashed.

    Raises:
        InvalidQuery: it is invalid, or cannot be proven.
        OdfError: an invalid value in an expression, a missing slice, or a failure of Spark.
        Cancelled: the reporter was cancelled; Spark's jobs are stopped.
    """
    question = user_query.AdHocQuery(sql, names)
    size = 0

    def table_frame(name: str) -> DataFrame:
        nonlocal size
        files = find(name, question.rewritten.calls.get(name))
        frame = readers.slices_frame(session, files.paths, files.schema, files.vocab)
        size += sum(path.stat().st_size for path in files.paths)
        return frame

    with question.rewritten.locate_errors():
        frame = question.run(session, table_frame)
        # Each partition that Spark sorts or groups has to fit in memory.
        partitions = min(max(2, size // _PARTITION_BYTES + 1), _MAX_PARTITIONS)
        session.conf.set("spark.sql.shuffle.partitions", str(partitions))
        if not proven:  # more partitions would change sums of DOUBLE, and with them the hash of a proof
            ranges = user_query.count_range_partitions(frame)
            session.conf.set("spark.sql.leafNodeDefaultParallelism", str(ranges))
        reporter.phase("query")
        ordered = False
        if proven:
            frame, ordered = row_order.with_total_order(session, frame, question.rewritten.text)
        schema, batches = arrow_batches.arrow_batches(frame, reporter)
        with LogicalHasher(schema) if proven else nullcontext() as hasher:
            answer = QueryAnswer(schema, batches, hasher, ordered)
            try:
                yield answer
            finally:
                answer.batches.close()  # stop reading ahead


def check_query(
    sql: str,
    names: Collection[str],
    find: Callable[[str, TableFunctionCall | None], TableFiles],
    session: SparkSession,
) -> None:
    """Check tables, columns and types of a query without running it. See :func:`execute_query`.

    Raises:
        InvalidQuery: it is invalid.
    """
    question = user_query.AdHocQuery(sql, names)

    def table_frame(name: str) -> DataFrame:
        files = find(name, question.rewritten.calls.get(name))
        return readers.slices_frame(session, files.paths, files.schema, files.vocab)

    with question.rewritten.locate_errors():
        question.run(session, table_frame)


@contextmanager
def execute_with_duckdb(
    sql: str,
    names: Collection[str],
    find: Callable[[str, TableFunctionCall | None], TableFiles],
    open_file: Callable[[str], TableFiles],
    folder: Path,
    memory: int,
    reporter: Reporter,
    options: QueryOptions = _DUCKDB,
) -> Iterator[QueryAnswer]:
    """Run a query without Spark, as :func:`execute_query` does with it; its rows cannot be proven.

    Args:
        sql: the query, in the dialect of DuckDB.
        names: the names of all datasets that it can read.
        find: returns the files of a dataset by its name, and the table function in its place, if any.
        open_file: returns the rows of a file that the query names.
        folder: for temporary files, on the file system of the datasets.
        memory: memory for rows, in bytes; more are stored on disk.
        reporter: receives progress, and can cancel.
        options: parameters, and what happens to the process.

    Raises:
        InvalidQuery: it is invalid.
        OdfError: an invalid value in an expression, a missing slice, or a file that cannot be read.
        Cancelled: the reporter was cancelled; the process of the query is killed.
    """
    query = RewrittenQuery(sql, names, for_duckdb=True)
    with query.locate_errors():
        for table in query.unknown:
            line, column = query.position_of(table)
            _find_unknown(find, table.name, f"query, line {line}, column {column}")
        tables = [find(name, None) for name in query.read]
        tables += [find(name, call) for name, call in query.calls.items()]
        tables += map(open_file, query.files)
        reporter.phase("query")
        steps = [SqlQueryStep(query=query.text)]
        try:
            with run_query(steps, tables, folder, memory, reporter, options) as rows:
                schema, batches = storable_rows(rows)
                answer = QueryAnswer(schema, batches, None, rows.properties.ordered)
                try:
                    yield answer
                finally:
                    answer.batches.close()
        except UnknownTable as error:
            _find_unknown(find, error.table, error.where)
            raise


def _find_unknown(
    find: Callable[[str, TableFunctionCall | None], TableFiles], name: str, where: str | None
) -> None:
    """Raise the error for a name that no dataset has, with its position."""
    try:
        find(name, None)
    except OdfError as error:
        raise InvalidQuery(error.message, hint=error.hint, where=where) from None
