"""Queries of clients: each runs in its own process, within the limits of the server."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import flight

from odf_engine.base.config import ServeConfig, parse_size
from odf_engine.base.progress import Reporter, count_of
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.errors import BadData, Cancelled, InvalidQuery, NotFound, OdfError, UsageError
from odf_engine.query_process.client import DUCKDB, QueryOptions, prepare_process, storable_schema
from odf_engine.rows.execution import Tables, TimeTravelDefaults, execute_with_duckdb, resolve
from odf_engine.sql.table_functions import RewrittenQuery, TableFunctionCall
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.sync.server.flight.clients import Client, Slots, remove_oldest
from odf_engine.sync.server.flight.status import NotSupported, StatusError, flight_error
from odf_engine.sync.server.service import DatasetService
from odf_engine.workspace.dataset_summary import DatasetEntry

CATALOG: Final = "odf"
SCHEMA: Final = "datasets"
"""The names before the name of a dataset, which a query may omit."""
_PREFIX: Final = f"{CATALOG}.{SCHEMA}."
_SMALL_RESULT_BYTES: Final = 1 << 20
_MAX_WAITING: Final = 256
_TICK_SECONDS: Final = 0.2
_OPTIONS: Final = QueryOptions(program=DUCKDB, only_tables=True, keeps_process=True)
_MAX_SPARK_ROWS: Final = 10_000_000
"""Maximum number of rows of a result of Spark, which is stored before it is sent."""
_SPARK_QUERIES: Final = 1
"""Maximum number of queries in Spark. The worker runs two read-only jobs at a time, and users need one."""
SparkQuery = Callable[[str, list[str], int, Path, Reporter], bool]
"""Runs a query with Spark. Its arguments are the query, the ids of the datasets that it can read, the maximum
number of rows, the Parquet file for the rows, and the reporter. Returns whether there are more rows."""


class RunningQuery:
    """A query whose first rows have been computed.

    Attributes:
        schema: the schema of its rows.
        row_count: number of rows, or -1 if it is not known yet.
        client: the name of the client.
        max_idle: seconds without a read, after which it ends.
        is_kept: whether it was started during its preparation, and a client has its ticket.
    """

    def __init__(self, limits: ServeConfig, client: str) -> None:
        self.client = client
        self.schema = pa.schema([])
        self.row_count = -1
        self.max_idle = limits.idle_seconds
        self.is_kept = False
        self.reporter = Reporter()
        self._limits = limits
        self._stack = ExitStack()
        self._lock = threading.Lock()  # held while rows are read, and at the end
        self._call_lock = threading.Lock()
        self._call: flight.ServerCallContext | None = None
        self._failure: flight.FlightError | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._ready: list[pa.RecordBatch] = []
        self._rows = 0
        self._began = self._idle_since = time.monotonic()

    @contextmanager
    def served_by(self, call: flight.ServerCallContext) -> Iterator[None]:
        """Stop the query if the client of a call disconnects inside the ``with`` body."""
        # The context of a call must not be used after its end.
        with self._call_lock:
            self._call = call
        try:
            yield
        finally:
            with self._call_lock:
                self._call, self._idle_since = None, time.monotonic()

    def open(
        self, prepare: Callable[[ExitStack, Reporter], tuple[pa.Schema, Iterator[pa.RecordBatch]]]
    ) -> None:
        """Start the query, and compute its first rows. Small results end here.

        Args:
            prepare: starts the query in the contexts of the stack, and returns its rows.

        Raises:
            FlightError, StatusError: the query failed.
        """
        with self._lock, self._reporting():
            self.schema, self._batches = prepare(self._stack, self.reporter)
            size = 0
            while size < _SMALL_RESULT_BYTES and (batch := next(self._batches, None)) is not None:
                self._ready.append(batch)
                size += batch.nbytes
            if size < _SMALL_RESULT_BYTES:
                self._stack.close()
                self.row_count = sum(batch.num_rows for batch in self._ready)

    def read(self) -> pa.RecordBatch | None:
        """Return the next rows, or None after the last ones.

        Raises:
            FlightError, StatusError: the query failed, was stopped or exceeds a limit.
        """
        with self._lock, self._reporting():
            if self._ready:
                batch = self._ready.pop(0)
            elif (batch := next(self._batches, None)) is None:
                self._stack.close()
                return None
            self._rows += batch.num_rows
            limit = self._limits.max_query_rows
            if limit and self._rows > limit:
                problem = f"the result has more than {count_of(limit, 'row')}, the limit of this server"
                raise flight.FlightServerError(f"{problem} (hint: add a LIMIT or a WHERE clause)")
            return batch

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Convert errors, and end the query after an error."""
        try:
            try:
                if self._failure is not None:
                    raise self._failure
                yield
                if self._failure is not None:  # it was stopped in the meantime
                    raise self._failure
            except BaseException as error:
                # The contexts of the query add its position to the error.
                self._stack.__exit__(type(error), error, error.__traceback__)
                raise
        except OdfError as error:
            raise self._failure or flight_error(error) from None
        except (flight.FlightError, StatusError):
            raise
        except Exception as error:
            raise flight.FlightInternalError(f"the query failed: {type(error).__name__}") from None

    def stop(self, error: flight.FlightError) -> None:
        """End the query in any state; its reader gets the error."""
        self._failure = self._failure or error
        self.reporter.cancel()
        if self._lock.acquire(blocking=False):  # otherwise the thread that holds it ends the query
            try:
                self._stack.close()
                self._ready.clear()
                self._batches = iter(())
            finally:
                self._lock.release()

    @property
    def is_stopped(self) -> bool:
        """Whether the query was stopped before its last row."""
        return self._failure is not None

    def check(self, now: float) -> flight.FlightError | None:
        """Return why the query must be stopped, or None."""
        limits = self._limits
        with self._call_lock:
            if self._call is not None and self._call.is_cancelled():
                return flight.FlightCancelledError("the client has disconnected")
            is_idle = self._call is None and now - self._idle_since > self.max_idle
        if is_idle:
            return flight.FlightTimedOutError(f"the client read no rows for {limits.idle_seconds:g} seconds")
        if now - self._began > limits.query_seconds:
            problem = f"the query took more than {limits.query_seconds:g} seconds, the limit of this server"
            return flight.FlightTimedOutError(problem)
        return None


class Queries:
    """The queries of all clients.

    Args:
        service: the datasets and limits.
        run_spark: runs queries of clients that request Spark, or None if they are refused.
    """

    def __init__(self, service: DatasetService, run_spark: SparkQuery | None) -> None:
        self._service = service
        self._run_spark = run_spark
        self._limits = service.limits
        self._memory = parse_size(service.workspace.config.sql.memory)
        self._slots = Slots(self._limits.queries)
        self._spark_slots = Slots(_SPARK_QUERIES)
        self._lock = threading.Lock()
        self._all: set[RunningQuery] = set()
        self._waiting: OrderedDict[bytes, RunningQuery] = OrderedDict()
        prepare_process()
        threading.Thread(target=self._watch, name="query limits", daemon=True).start()

    def describe(self, sql: str, client: Client, call: flight.ServerCallContext) -> tuple[pa.Schema, bytes]:
        """Return the schema of the rows of a query, and the schema of its parameters (IPC).

        Raises:
            FlightError, StatusError: it is invalid, or exceeds a limit.
        """
        if client.uses_spark:
            handle, query = self.start(sql, client, call)
            self.cancel(handle, client)
            return query.schema, pa.schema([]).serialize().to_pybytes()
        options = replace(_OPTIONS, describe=True)
        query = self._open(sql, client, call, options)
        try:
            batch = query.read()
            assert batch is not None
            schemas = batch.to_pylist()[0]
            return storable_schema(pa.ipc.read_schema(pa.py_buffer(schemas["result"]))), schemas["parameters"]
        finally:
            self.end(query)

    def start(
        self, sql: str, client: Client, call: flight.ServerCallContext, parameters: bytes | None = None
    ) -> tuple[bytes, RunningQuery]:
        """Start a query; return its handle, and the query after its first rows are computed.

        Args:
            sql: the query.
            client: the client.
            call: its call.
            parameters: the values of its parameters, see :class:`QueryOptions`.

        Raises:
            FlightError, StatusError: it is invalid, fails, or exceeds a limit.
        """
        options = replace(_OPTIONS, parameters=parameters)
        query = self._open(sql, client, call, options)
        handle = secrets.token_bytes(16)
        with self._lock:
            self._waiting[handle] = query
            oldest = remove_oldest(self._waiting, client.name, _MAX_WAITING)
        if oldest is not None:
            self.end(oldest)
        return handle, query

    def _open(
        self, sql: str, client: Client, call: flight.ServerCallContext, options: QueryOptions
    ) -> RunningQuery:
        query = RunningQuery(self._limits, client.name)
        with self._lock:
            own = sum(other.client == client.name for other in self._all)
            if own >= self._limits.connections_each or len(self._all) >= self._limits.connections:
                raise flight.FlightUnavailableError("too many concurrent queries (hint: try again later)")
            self._all.add(query)
        try:
            with query.served_by(call):
                query.open(lambda stack, reporter: self._execute(sql, client, options, stack, reporter))
        except BaseException:
            self.end(query)
            raise
        return query

    def keep(self, handle: bytes) -> RunningQuery | None:
        """Return a query that was started during its preparation, or None if it was stopped or is in use."""
        with self._lock:
            query = self._waiting.get(handle)
            if query is not None and not query.is_stopped and not query.is_kept:
                query.is_kept = True
                query.max_idle = self._limits.idle_seconds
                return query
        return None

    def claim(self, handle: bytes, client: Client) -> RunningQuery:
        """Return the query of a client with a handle. A handle can be used once.

        Raises:
            FlightError: it was read, or stopped.
        """
        query = self._take(handle, client)
        if query is None:
            raise flight.FlightServerError("the result was read or has expired (hint: run the query again)")
        return query

    def cancel(self, handle: bytes, client: Client) -> bool:
        """Stop the query of a client with a handle; return whether it was waiting for its reader."""
        query = self._take(handle, client)
        if query is not None:
            self.end(query)
        return query is not None

    def _take(self, handle: bytes, client: Client) -> RunningQuery | None:
        with self._lock:
            query = self._waiting.get(handle)
            return self._waiting.pop(handle) if query is not None and client.can_use(query) else None

    def end(self, query: RunningQuery) -> None:
        """Free everything that a query uses."""
        with self._lock:
            self._all.discard(query)
        query.stop(flight.FlightCancelledError("the query was cancelled"))

    def close(self) -> None:
        """Stop all queries."""
        with self._lock:
            queries = list(self._all)
        for query in queries:
            query.stop(flight.FlightUnavailableError("the server stops"))

    def _watch(self) -> None:
        while True:
            time.sleep(_TICK_SECONDS)
            with self._lock:
                queries, now = list(self._all), time.monotonic()
            for query in queries:
                if (error := query.check(now)) is not None:
                    query.stop(error)
                    with self._lock:
                        self._all.discard(query)

    def _execute(
        self, sql: str, client: Client, options: QueryOptions, stack: ExitStack, reporter: Reporter
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if client.uses_spark and self._run_spark is None:
            raise NotSupported(
                "Spark is not enabled on this server (hint: omit the header odf-engine, or ask the operator"
                " to set serve.spark)"
            )
        slots = self._spark_slots if client.uses_spark else self._slots
        while not slots.acquire(client.name, _TICK_SECONDS):
            reporter.raise_if_cancelled()
        stack.callback(slots.release, client.name)
        workspace = self._service.workspace
        folder = stack.enter_context(job_scratch_folder(workspace.odf / "cache", "query"))
        readable = client.readable_ids()
        if client.uses_spark:
            return self._execute_with_spark(sql, readable, options, folder, stack, reporter)
        tables = Tables(workspace, reporter, TimeTravelDefaults(), readable)

        def find(name: str, call: TableFunctionCall | None) -> TableFiles:
            call = call or TableFunctionCall(name, name)
            return tables.files(name, replace(call, dataset=_without_prefix(call.dataset)))

        names = [*tables.names, *(_PREFIX + name for name in tables.names)]
        query = execute_with_duckdb(sql, names, find, _refuse_file, folder, self._memory, reporter, options)
        answer = stack.enter_context(query)
        return answer.schema, answer.batches

    def _execute_with_spark(
        self,
        sql: str,
        readable: set[str],
        options: QueryOptions,
        folder: Path,
        stack: ExitStack,
        reporter: Reporter,
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        assert self._run_spark is not None
        if options.parameters is not None:
            raise NotSupported(
                "the query cannot have parameters in Spark (hint: write the values into the query)"
            )
        workspace = self._service.workspace
        query = RewrittenQuery(sql, Tables(workspace, reporter, TimeTravelDefaults(), readable).names)
        names = [*query.read, *(call.dataset for call in query.calls.values())]
        tables = {str(resolve(workspace, name, readable).id) for name in names}
        path = folder / "rows.parquet"
        limit = min(self._limits.max_query_rows or _MAX_SPARK_ROWS, _MAX_SPARK_ROWS)
        try:
            is_truncated = self._run_spark(sql, sorted(tables), limit, path, reporter)
        except (InvalidQuery, UsageError, BadData, NotFound, Cancelled):
            raise
        except OdfError as error:  # its hint is for users of the workspace
            raise OdfError(error.message, hint="try again later, or omit the header odf-engine") from None
        if is_truncated:
            problem = f"the result has more than {count_of(limit, 'row')}, the limit of this server for Spark"
            raise flight.FlightServerError(f"{problem} (hint: add a LIMIT or a WHERE clause)")
        file = stack.enter_context(pq.ParquetFile(path))
        return file.schema_arrow, file.iter_batches()


def find_served(client: Client, name: str) -> DatasetEntry:
    """Return the dataset that a client names.

    Raises:
        NotFound: it does not exist, or the client cannot read it.
    """
    return resolve(client.service.workspace, _without_prefix(name), client.readable_ids())


def _without_prefix(name: str) -> str:
    return name[len(_PREFIX) :] if name.lower().startswith(_PREFIX) else name


def _refuse_file(name: str) -> NoReturn:
    raise InvalidQuery(f"'{name}' is not a dataset: a client cannot read files", hint="read only datasets")
