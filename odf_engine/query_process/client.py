"""Runs a query in the DataFusion process, from the side of the job."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import INSTALL_DATAFUSION, stateful_query_error
from odf_engine.data.arrow_compute import python_values
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.data.schema_enforcement import cast_lossless, slice_type
from odf_engine.query_process.query_request import (
    LISTED_EXTENSION,
    PROPERTIES,
    ErrorReport,
    QueryRequest,
    QueryStep,
    QueryTable,
    ResultProperties,
)
from odf_engine.errors import BadData, InvalidQuery, NotFound, OdfError, Unsupported
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.query_text import make_names_unique

_PROCESS: Final = "odf_engine.query_process.datafusion_process"
_MAX_TAIL_BYTES: Final = 1 << 16


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
        schema: their schema, with the types of DataFusion.
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
    names = make_names_unique(rows.schema.names)
    fields = [
        pa.field(name, pa.string() if _is_text(field.type) else slice_type(field.type))
        for name, field in zip(names, rows.schema, strict=True)
    ]
    schema = pa.schema(fields)
    return schema, (_storable(batch, schema) for batch in rows.batches)


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
    """

    tracked: bool = False
    system_columns: bool = True
    system_time: str | None = None
    isolation: Isolation | None = None


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
    check_installed()
    isolation, tracked = options.isolation or Isolation(), options.tracked
    with tempfile.TemporaryDirectory(dir=folder, prefix="query-") as name:
        files = _QueryFiles(Path(name), isolation)
        request = QueryRequest(
            steps=[QueryStep(step.query, step.alias) for step in steps],
            tables=[
                files.add_table(each, number, tracked=tracked, system_columns=options.system_columns)
                for number, each in enumerate(tables)
            ],
            tracked=tracked,
            memory=memory,
            scratch=str(files.inside("scratch")),
            system_time=options.system_time,
        )
        with (
            (files.folder / "errors").open("w+b") as errors,
            _running(request, files.folder, isolation, errors, reporter) as process,
        ):
            assert process.stdout is not None
            reader = _Reader(process, errors, is_isolated=isolation.inside is not None)
            try:
                yield reader.open()
            finally:
                reader.close()


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

    def add_table(self, table: TableFiles, number: int, *, tracked: bool, system_columns: bool) -> QueryTable:
        """Link the files of a table, and return it for the process."""
        folder = None
        if table.paths:
            (self.folder / "in" / str(number)).mkdir()
            for index, path in enumerate(table.paths):
                link = self.folder / "in" / str(number) / f"{index:09d}{LISTED_EXTENSION}"
                if not path.is_file():  # DataFusion would skip it.
                    raise NotFound("missing slice", where=str(path), hint="check the dataset with odf verify")
                self._link(path.absolute(), link)
            folder = str(self.inside("in", str(number)))
        offset, operation = table.vocab.offset_column, table.vocab.operation_type_column
        types = {offset: pa.int64(), operation: pa.int32()} if system_columns else {}
        schema = pa.schema([field.with_type(types.get(field.name, field.type)) for field in table.schema])
        data = schema.serialize().to_pybytes()
        if not tracked:
            return QueryTable(table.name, data, folder)
        passed = [offset, operation, table.vocab.system_time_column]
        return QueryTable(table.name, data, folder, offset, operation, passed)

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


@contextmanager
def _running(
    request: QueryRequest, folder: Path, isolation: Isolation, errors: BinaryIO, reporter: Reporter
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process and send it the request; kill it at the end, and when the job is cancelled."""
    environment = isolation.environment or {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
    }
    process = subprocess.Popen(
        isolation.wrap([sys.executable, "-P", "-m", _PROCESS], folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        check_limits = isolation.watch(process, folder)
        with reporter.on_cancel(process.kill):
            with suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(request) + b"\n")
                process.stdin.flush()
            try:
                yield process
            except OdfError:
                reporter.raise_if_cancelled()
                process.kill()
                process.wait()
                check_limits()
                raise
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()


class _Reader:
    """Reads the rows of a process, or its error."""

    def __init__(self, process: subprocess.Popen[bytes], errors: BinaryIO, *, is_isolated: bool) -> None:
        self._process = process
        self._errors = errors
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
        if self._process.wait() != 0:
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
                f"the DataFusion process ended with code {code}{f': {text}' if text else ''}",
                hint="if it ran out of memory, reduce datafusion.memory so that more rows are stored on disk",
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
