"""Runs a query in the process of DataFusion or DuckDB, from the side of the job."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import pyarrow as pa

from odf_engine.base.processes import enlarge_pipe
from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import INSTALL_DATAFUSION, stateful_query_error
from odf_engine.data.arrow_compute import python_values
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.data.schema_enforcement import cast_lossless, slice_type
from odf_engine.errors import BadData, InvalidQuery, NotFound, OdfError, Unsupported
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.query_process.query_request import (
    END_OF_ROWS,
    LISTED_EXTENSION,
    PROPERTIES,
    ErrorReport,
    QueryRequest,
    QueryStep,
    QueryTable,
    ResultProperties,
)
from odf_engine.sql.query_text import make_names_unique

_MAX_TAIL_BYTES: Final = 1 << 16
_SPARE_SECONDS: Final = 600.0
_MAX_SPARE: Final = 4
_MAX_QUERIES: Final = 200
"""Maximum number of queries that one process of DuckDB runs, so that lost memory does not add up."""


@dataclass(frozen=True)
class QueryProgram:
    """A program that runs queries.

    Attributes:
        name: its name.
        module: the module that is started with ``python -m``.
        setting: the setting of its memory.
    """

    name: str
    module: str
    setting: str


DATAFUSION: Final = QueryProgram(
    "DataFusion", "odf_engine.query_process.datafusion_process", "datafusion.memory"
)
DUCKDB: Final = QueryProgram("DuckDB", "odf_engine.query_process.duckdb_process", "sql.memory")
"""It runs one step, without tracking, system time or isolation."""


class UnknownTable(InvalidQuery):
    """The query reads a table that does not exist.

    Attributes:
        table: its name.
    """

    table = ""


@dataclass(frozen=True)
class Isolation:
    """How a process is isolated. By default it is not.

    Attributes:
        wrap: returns the command that starts another command in isolation; it gets the folder of the query.
        inside: path of that folder in the process, or None if it is the same.
        environment: environment variables of the process, or None for this process's.
        watch: called with the process and the folder after the start; returns a function that is called after
            a failure, and raises the error of an exceeded limit.
    """

    wrap: Callable[[list[str], Path], list[str]] = lambda command, _: command
    inside: Path | None = None
    environment: dict[str, str] | None = None
    watch: Callable[[subprocess.Popen[bytes], Path], Callable[[], None]] = lambda *_: lambda: None


@dataclass(frozen=True)
class QueryRows:
    """The rows of a query.

    Attributes:
        schema: their schema, with the types of the program.
        properties: their order.
        batches: the rows; can be consumed once.
    """

    schema: pa.Schema
    properties: ResultProperties
    batches: Generator[pa.RecordBatch]


def check_installed() -> None:
    """Check that DataFusion is installed.

    Raises:
        Unsupported: it is not; the hint has the name of the extra.
    """
    if find_spec("datafusion") is None:
        raise Unsupported("the engine datafusion is not installed", hint=INSTALL_DATAFUSION)


def storable_rows(rows: QueryRows) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return rows with unique column names, and with types that a Parquet file of this program can have.

    Times have microseconds at most. Intervals, durations and columns without a type become text.
    """
    schema = storable_schema(rows.schema)
    return schema, (_storable(batch, schema) for batch in rows.batches)


def storable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of :func:`storable_rows`."""
    names = make_names_unique(schema.names)
    return pa.schema(
        [
            pa.field(name, pa.string() if _is_text(field.type) else slice_type(field.type))
            for name, field in zip(names, schema, strict=True)
        ]
    )


def _storable(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        _to_text(column) if _is_text(column.type) else cast_lossless(column, field, 0)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_text(data_type: pa.DataType) -> bool:
    return pa.types.is_null(data_type) or pa.types.is_duration(data_type) or pa.types.is_interval(data_type)


def _to_text(column: pa.Array) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in python_values(column)], pa.string())


@dataclass(frozen=True)
class QueryOptions:
    """How a query is run.

    Attributes:
        tracked: add the origin of each row, see :class:`QueryRequest`.
        system_columns: the tables are slices: the offset is read as BIGINT and the operation as INT.
        system_time: value of ``system_time()``, or None if there is no such function.
        isolation: how the process is isolated.
        program: the program that runs the query.
        parameters: values of the parameters of a query for DuckDB, as an Arrow IPC stream of one row.
        describe: the rows are the description of a query for DuckDB, see :class:`QueryRequest`.
        only_tables: a query for DuckDB must read only the tables, see :class:`QueryRequest`.
        keeps_process: a process of DuckDB that has run the query waits for the next one.
    """

    tracked: bool = False
    system_columns: bool = True
    system_time: str | None = None
    isolation: Isolation | None = None
    program: QueryProgram = DATAFUSION
    parameters: bytes | None = None
    describe: bool = False
    only_tables: bool = False
    keeps_process: bool = False


@contextmanager
def run_query(
    steps: Sequence[SqlQueryStep],
    tables: Sequence[TableFiles],
    folder: Path,
    memory: int,
    reporter: Reporter,
    options: QueryOptions = QueryOptions(),
) -> Iterator[QueryRows]:
    """Run a query in a separate process, which exits at the end of the block.

    Args:
        steps: the query.
        tables: all tables that it can read.
        folder: for links to the files and temporary files, on the file system of the datasets.
        memory: maximum memory for rows, in bytes.
        reporter: cancels the query.
        options: how the query is run.

    Raises:
        InvalidQuery: the query is invalid, with its position if known.
        BadData: an expression fails.
        Unsupported: a tracked query is not row-by-row, or DataFusion is not installed.
        NotFound: a file is missing.
        OdfError: the process failed.
        Cancelled: the query was cancelled.
    """
    program = options.program
    if program is DATAFUSION:
        check_installed()
    isolation, tracked = options.isolation or Isolation(), options.tracked
    with tempfile.TemporaryDirectory(dir=folder, prefix="query-") as name:
        files = _QueryFiles(Path(name), isolation)
        request = QueryRequest(
            steps=[QueryStep(step.query, step.alias) for step in steps],
            tables=[files.add_table(table, number, options) for number, table in enumerate(tables)],
            tracked=tracked,
            memory=memory,
            scratch=str(files.inside("scratch")),
            system_time=options.system_time,
            parameters=options.parameters,
            describe=options.describe,
            only_tables=options.only_tables,
            keep=options.keeps_process,
        )
        started = _spare.take() if program is DUCKDB else None
        started = started or _start(program, isolation, files.folder)
        try:
            with _running(started, request, files.folder, isolation, reporter):
                reader = _Reader(
                    started, program, is_isolated=isolation.inside is not None, keeps=options.keeps_process
                )
                try:
                    yield reader.open()
                finally:
                    reader.close()
        finally:
            if program is DUCKDB:
                _spare.prepare(started if started.is_free else None)


class _QueryFiles:
    """The folder of a query."""

    def __init__(self, folder: Path, isolation: Isolation) -> None:
        self.folder = folder
        self._inside = isolation.inside
        for name in ("in", "scratch"):
            (folder / name).mkdir()

    def inside(self, *parts: str) -> Path:
        """Return a path of the folder in the process."""
        return (self._inside or self.folder).joinpath(*parts)

    def add_table(self, table: TableFiles, number: int, options: QueryOptions) -> QueryTable:
        """Return a table for the process, with links to its files for DataFusion."""
        folder = None
        for path in table.paths:
            if not path.is_file():  # DataFusion would skip it
                raise NotFound("missing slice", where=str(path), hint="check the dataset with odf verify")
        if table.paths and options.program is DATAFUSION:
            (self.folder / "in" / str(number)).mkdir()
            for index, path in enumerate(table.paths):
                link = self.folder / "in" / str(number) / f"{index:09d}{LISTED_EXTENSION}"
                self._link(path.absolute(), link)
            folder = str(self.inside("in", str(number)))
        offset, operation = table.vocab.offset_column, table.vocab.operation_type_column
        types = {offset: pa.int64(), operation: pa.int32()} if options.system_columns else {}
        schema = pa.schema([field.with_type(types.get(field.name, field.type)) for field in table.schema])
        data = schema.serialize().to_pybytes()
        if options.program is DUCKDB:
            return QueryTable(table.name, data, paths=[str(path.resolve()) for path in table.paths])
        if not options.tracked:
            return QueryTable(table.name, data, folder)
        passed = [offset, operation, table.vocab.system_time_column]
        return QueryTable(table.name, data, folder, offset=offset, operation=operation, passed=passed)

    def _link(self, path: Path, link: Path) -> None:
        if self._inside is None:
            link.symlink_to(path)
            return
        try:
            # The target of a symbolic link would not exist in the process.
            link.hardlink_to(path.resolve())
        except OSError:
            import shutil

            shutil.copyfile(path, link)


@dataclass
class _Started:
    """A process, and the file of its errors.

    Attributes:
        queries: number of queries that it has run.
        is_free: whether it waits for the next one.
    """

    process: subprocess.Popen[bytes]
    errors: BinaryIO
    queries: int = 0
    is_free: bool = False

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            assert file is not None
            with suppress(BrokenPipeError):
                file.close()


def _start(program: QueryProgram, isolation: Isolation, folder: Path | None = None) -> _Started:
    environment = isolation.environment or {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
    }
    command = [sys.executable, "-P", "-m", program.module]
    errors = tempfile.TemporaryFile() if folder is None else (folder / "errors").open("w+b")  # noqa: SIM115
    process = subprocess.Popen(
        command if folder is None else isolation.wrap(command, folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    enlarge_pipe(process.stdout)
    return _Started(process, errors)


class _Spare:
    """Processes of DuckDB that wait for the next query, since their start takes longer than many queries.

    They exit with this process, and when no query needs one for some minutes. There is one, and more that
    have run queries with ``keeps_process``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Started] = []
        self._timer: threading.Timer | None = None

    def take(self) -> _Started | None:
        """Return a process, or None if there is none."""
        with self._lock:
            while self._waiting:
                started = self._waiting.pop(0)  # the one that has had the most time to prepare
                if started.process.poll() is None:
                    return started
                started.end()
        return None

    def prepare(self, free: _Started | None = None) -> None:
        """Keep a process that has run a query, or start one, unless enough wait."""
        required = 1 if free is None else 2
        with self._lock:
            if free is not None and len(self._waiting) < _MAX_SPARE and free.queries < _MAX_QUERIES:
                self._waiting.append(free)
                free = None
            if len(self._waiting) < required:
                with suppress(OSError):  # the next query starts its own, or fails with the reason
                    self._waiting.append(_start(DUCKDB, Isolation()))
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(_SPARE_SECONDS, self.end)
            self._timer.daemon = True
            self._timer.start()
        if free is not None:
            free.end()

    def end(self) -> None:
        """End the processes."""
        while (started := self.take()) is not None:
            started.end()


_spare: Final = _Spare()
atexit.register(_spare.end)


def prepare_process() -> None:
    """Start a process of DuckDB for the first query, unless one waits."""
    _spare.prepare()


@contextmanager
def _running(
    started: _Started,
    request: QueryRequest,
    folder: Path,
    isolation: Isolation,
    reporter: Reporter,
) -> Iterator[None]:
    """Send the process the request; kill it when the job is cancelled, and at the end unless it is free."""
    process, started.is_free = started.process, False
    started.queries += 1
    assert process.stdin is not None and process.stdout is not None
    try:
        check_limits = isolation.watch(process, folder)
        with reporter.on_cancel(process.kill):
            with suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(request) + b"\n")
                process.stdin.flush()
            try:
                yield
            except OdfError:
                reporter.raise_if_cancelled()
                process.kill()
                process.wait()
                check_limits()
                raise
    finally:
        started.is_free = started.is_free and not reporter.cancelled
        if not started.is_free:
            started.end()


class _Reader:
    """Reads the rows of a process, or its error."""

    def __init__(
        self, started: _Started, program: QueryProgram, *, is_isolated: bool, keeps: bool = False
    ) -> None:
        self._started = started
        self._keeps = keeps
        self._process = started.process
        self._errors = started.errors
        self._program = program
        self._is_isolated = is_isolated
        self._batches: Generator[pa.RecordBatch] | None = None

    def open(self) -> QueryRows:
        """Return the rows.

        Raises:
            OdfError: the query failed before its first row.
        """
        assert self._process.stdout is not None
        try:
            reader = pa.ipc.open_stream(self._process.stdout)
        except (pa.ArrowException, OSError, ValueError):
            raise self._error() from None
        try:
            properties = msgspec.json.decode(
                (reader.schema.metadata or {}).get(PROPERTIES, b"{}"), type=ResultProperties
            )
        except msgspec.MsgspecError:
            raise self._error() from None
        self._batches = self._read(reader)
        return QueryRows(reader.schema.remove_metadata(), properties, self._batches)

    def close(self) -> None:
        """Stop reading."""
        if self._batches is not None:
            self._batches.close()

    def _read(self, reader: pa.RecordBatchReader) -> Generator[pa.RecordBatch]:
        schema = reader.schema.remove_metadata()
        while True:
            try:
                batch = reader.read_next_batch()
                if self._is_isolated:  # Arrow's functions crash on invalid buffers.
                    batch.validate(full=True)
            except StopIteration:
                break
            except (pa.ArrowException, OSError, ValueError):
                raise self._error() from None
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        # The stream of a query that failed ends too.
        assert self._process.stdout is not None
        if self._keeps and self._process.stdout.read(1) == END_OF_ROWS:
            self._started.is_free = True
        elif self._process.wait() != 0 or self._keeps:
            raise self._error()

    def _error(self) -> OdfError:
        """Return the error of the process, after its end."""
        self._process.wait()
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - _MAX_TAIL_BYTES, 0))
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        try:
            report = msgspec.json.decode(lines[-1], type=ErrorReport)
        except (IndexError, msgspec.MsgspecError):
            text = b" / ".join(lines).decode("utf-8", "replace")[-400:]
            code = self._process.returncode
            return OdfError(
                f"the process of {self._program.name} ended with code {code}{f': {text}' if text else ''}",
                hint=f"if it ran out of memory, reduce {self._program.setting} so that more rows are stored"
                " on disk",
            )
        return _to_error(report)


def _to_error(report: ErrorReport) -> OdfError:
    if report.kind == "state":
        return stateful_query_error(report.message)
    if report.table:
        error = UnknownTable(report.message, where=report.where, hint=report.hint or None)
        error.table = report.table
        return error
    kind = {"query": InvalidQuery, "value": BadData}.get(report.kind, OdfError)
    return kind(report.message, where=report.where or None, hint=report.hint or None)
