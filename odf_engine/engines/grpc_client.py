"""Engine client over gRPC; checks the output of an external engine."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

import grpc
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyarrow import types

from odf_engine.base.progress import Reporter, count_of
from odf_engine.data.arrow_compute import pc
from odf_engine.data.digest import digest_file, physical_hash
from odf_engine.data.parquet.parquet_reader import parquet_errors, read_parquet_schema
from odf_engine.data.parquet.slices import TableFiles, WrittenSlice, read_batches, slice_schema
from odf_engine.data.schema_enforcement import cast_lossless, find_mismatch, is_required
from odf_engine.engines import grpc_messages as wire
from odf_engine.engines.contract import (
    ComputedResult,
    InputRows,
    LateRows,
    Operation,
    QueryInput,
    RowProvenance,
    TransactionResult,
    ValidatedQuery,
)
from odf_engine.errors import (
    BadData,
    Cancelled,
    InvalidManifest,
    InvalidQuery,
    InvalidSchema,
    OdfError,
    SourceUnavailable,
    Unsupported,
)
from odf_engine.ingest.raw_query import RawQueryResult
from odf_engine.metadata.flatbuffers import decode_table, encode_table
from odf_engine.metadata.model import (
    Checkpoint,
    DatasetVocabulary,
    OffsetInterval,
    RawQueryInternalError,
    RawQueryInvalidQuery,
    RawQueryProgress,
    RawQueryRequest,
    RawQueryResponse,
    RawQuerySuccess,
    Sql,
    TransformInternalError,
    TransformInvalidQuery,
    TransformProgress,
    TransformRequest,
    TransformResponse,
    TransformSuccess,
)


def check_engine_output(
    request: TransformRequest, interval: OffsetInterval | None, declared: pa.Schema | None
) -> TransactionResult:
    """Check the output of an engine in one pass, without the operations of the rows.

    Args:
        request: has the paths and the requirements.
        interval: offset interval reported by the engine, or None for no rows.
        declared: schema of the dataset, or None before it has one.

    Raises:
        BadData: the output violates the contract; the message is one sentence.
    """
    path = Path(request.new_data_path)
    if interval is None:
        if path.exists() and pq.read_metadata(path).num_rows:
            raise BadData("it wrote rows, but reported none")
        schema = declared if declared is not None else pa.schema([])
        return TransactionResult(None, schema, _read_output_checkpoint(request))
    if path.is_symlink() or not path.is_file():
        raise BadData("it reported rows, but wrote no file")
    schema = read_parquet_schema(path).remove_metadata()
    _check_schema(schema, request.vocab, declared)
    end = _check_rows(path, schema, request, declared)
    if (interval.start, interval.end) != (request.next_offset, end):
        raise BadData(f"it reported offsets {interval.start} to {interval.end}, but wrote others")
    digest = digest_file(path)
    written = WrittenSlice(
        path, digest.logical_hash, digest.physical_hash, digest.size, digest.rows, interval, None, None
    )
    return TransactionResult(
        written, schema if declared is None else declared, _read_output_checkpoint(request)
    )


def _check_schema(schema: pa.Schema, vocab: DatasetVocabulary, declared: pa.Schema | None) -> None:
    checks: dict[str, Callable[[pa.DataType], bool]] = {
        vocab.offset_column: types.is_integer,
        vocab.operation_type_column: types.is_integer,
        vocab.system_time_column: _is_utc_timestamp,
        vocab.event_time_column: lambda data_type: types.is_date(data_type) or _is_utc_timestamp(data_type),
    }
    if schema.names[: len(checks)] != list(checks):
        actual, expected = ", ".join(schema.names[: len(checks)]), ", ".join(checks)
        raise BadData(f"its columns begin with {actual}, not {expected}")
    for name, check in checks.items():
        if not check(schema.field(name).type):
            raise BadData(f"its column '{name}' has the type {schema.field(name).type}")
    if declared is not None and (mismatch := find_mismatch(schema, declared)) is not None:
        raise BadData(f"its columns are not those of the dataset: {mismatch}")


def _is_utc_timestamp(data_type: pa.DataType) -> bool:
    return types.is_timestamp(data_type) and data_type.unit == "ms" and data_type.tz in ("UTC", "+00:00")


def _check_rows(path: Path, schema: pa.Schema, request: TransformRequest, declared: pa.Schema | None) -> int:
    """Check offset, system time, event time and required values of each row; return the last offset."""
    expected = request.next_offset
    latest = request.system_time.ms
    offset, _, *times = schema.names[:4]
    data = [] if declared is None else [field for field in list(declared)[4:] if is_required(field)]
    for batch in read_batches(path, [offset, *times, *(field.name for field in data)]):
        offsets, system_times, event_times, *columns = batch.columns
        for field, column in zip(data, columns, strict=True):
            try:
                cast_lossless(column, field, expected - request.next_offset)
            except BadData as error:
                raise BadData(f"{error.where}: {error.message}") from error
        expected_offsets = pa.array(range(expected, expected + batch.num_rows), pa.int64())
        if offsets.null_count or not pc.all(pc.equal(offsets.cast(pa.int64()), expected_offsets)).as_py():
            raise BadData("its offsets do not continue those of the dataset")
        if event_times.null_count:
            raise BadData("it wrote rows without an event time")
        if system_times.null_count or pc.any(pc.greater(system_times.cast(pa.int64()), latest)).as_py():
            raise BadData("it wrote rows with a later system time than that of the transaction")
        expected += batch.num_rows
    return expected - 1


def _read_output_checkpoint(request: TransformRequest) -> Checkpoint | None:
    """Return the checkpoint of the engine, if it wrote one."""
    path = Path(request.new_checkpoint_path)
    if not path.exists() and not path.is_symlink():
        return None
    if path.is_symlink() or not path.is_file():
        raise BadData("its checkpoint is not a file")
    digest, size = physical_hash(path)
    return Checkpoint(physical_hash=digest, size=size)


_CHUNK = 1 << 20
_RAW_OUTPUT: Final = "output.parquet"


class FileExchange:
    """Folders of a transaction: input files, output files, and scratch space of the engine.

    Args:
        folder: local path; ``in``, ``out`` and ``scratch`` are created in it.
        engine_folder: path of the folder in the engine; the same by default.
        signed: whether the engine requires signed system columns: slices with unsigned ones are copied, and
            the columns of the output get the types of the dataset.
    """

    def __init__(self, folder: Path, engine_folder: PurePath | None = None, *, signed: bool = False) -> None:
        self.folder, self._signed = folder, signed
        self._engine_folder = folder if engine_folder is None else engine_folder
        self.inputs, self.outputs, self.scratch = (folder / name for name in ("in", "out", "scratch"))
        for path in (self.inputs, self.outputs, self.scratch):
            path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def staged_request(self, request: TransformRequest) -> Iterator[TransformRequest]:
        """Return the request with the engine's paths; the files exist during the block.

        Raises:
            OSError: the folder cannot be written.
        """
        clear_folder(self.inputs)
        clear_folder(self.outputs)
        try:
            yield replace(
                request,
                query_inputs=[
                    replace(
                        input,
                        data_paths=self._stage_slices(input.data_paths, f"{index}", input.vocab),
                        earlier_paths=None
                        if input.earlier_paths is None
                        else self._stage_slices(input.earlier_paths, f"{index}-earlier", input.vocab),
                        schema_file=self._stage_slice(
                            input.schema_file, f"{index}-schema.parquet", input.vocab
                        ),
                    )
                    for index, input in enumerate(request.query_inputs)
                ],
                prev_checkpoint_path=None
                if request.prev_checkpoint_path is None
                else self._stage(request.prev_checkpoint_path, "checkpoint"),
                new_checkpoint_path=str(self._engine_folder / "out" / "checkpoint"),
                new_data_path=str(self._engine_folder / "out" / "data"),
            )
        finally:
            clear_folder(self.inputs)
            clear_folder(self.outputs)

    @contextmanager
    def staged_raw_query(self, request: RawQueryRequest) -> Iterator[RawQueryRequest]:
        """Yield the request with the engine's paths; the files exist inside the ``with`` body.

        Raises:
            OSError: the folder cannot be written.
        """
        clear_folder(self.inputs)
        clear_folder(self.outputs)
        try:
            yield replace(
                request,
                input_data_paths=[
                    self._stage(path, f"input-{index}.parquet")
                    for index, path in enumerate(request.input_data_paths)
                ],
                output_data_path=str(self._engine_folder / "out" / _RAW_OUTPUT),
            )
        finally:
            clear_folder(self.inputs)
            clear_folder(self.outputs)

    def copy_raw_output(self, request: RawQueryRequest) -> None:
        """Copy the result of a raw query to the requested path, where the engine cannot change it any more.

        Raises:
            BadData: it is not a regular file.
        """
        _copy_regular_file(self.outputs / _RAW_OUTPUT, Path(request.output_data_path))

    @contextmanager
    def staged_tables(self, tables: Sequence[TableFiles]) -> Iterator[list[TableFiles]]:
        """Return the tables with the engine's paths; the files exist during the block.

        Raises:
            OSError: the folder cannot be written.
        """
        clear_folder(self.inputs)
        try:
            yield [
                dataclasses.replace(
                    table,
                    paths=[
                        Path(self._stage(str(path), f"{index}-{number}.parquet"))
                        for number, path in enumerate(table.paths)
                    ],
                )
                for index, table in enumerate(tables)
            ]
        finally:
            clear_folder(self.inputs)

    def copy_output(self, request: TransformRequest, declared: pa.Schema | None) -> None:
        """Copy the output to the requested paths, where the engine cannot change it any more.

        Args:
            request: has the paths.
            declared: schema of the dataset, or None before it has one.

        Raises:
            BadData: an output is not a regular file.
        """
        for name, target in (("data", request.new_data_path), ("checkpoint", request.new_checkpoint_path)):
            _copy_regular_file(self.outputs / name, Path(target))
        data = Path(request.new_data_path)
        if self._signed and data.exists():
            _convert_system_columns(data, request.vocab, declared)

    def _stage_slices(self, paths: Sequence[str], name: str, vocab: DatasetVocabulary) -> list[str]:
        return [
            self._stage_slice(path, f"{name}-{number}.parquet", vocab) for number, path in enumerate(paths)
        ]

    def _stage_slice(self, path: str, name: str, vocab: DatasetVocabulary) -> str:
        if self._signed:
            schema = read_parquet_schema(Path(path))
            signed = _with_types(schema, _signed_types(vocab))
            if signed != schema:
                _write_cast(Path(path), self.inputs / name, signed)
                return str(self._engine_folder / "in" / name)
        return self._stage(path, name)

    def _stage(self, path: str, name: str) -> str:
        link = self.inputs / name
        try:
            # Slices are immutable, so a hard link replaces a copy.
            link.hardlink_to(Path(path).resolve())
        except OSError:
            shutil.copyfile(path, link)
        return str(self._engine_folder / "in" / name)


def _signed_types(vocab: DatasetVocabulary) -> dict[str, pa.DataType]:
    return {vocab.offset_column: pa.int64(), vocab.operation_type_column: pa.int32()}


def _with_types(schema: pa.Schema, column_types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the schema with other types for columns that are integers."""
    fields = [
        field.with_type(column_types.get(field.name, field.type)) if types.is_integer(field.type) else field
        for field in schema
    ]
    return pa.schema(fields)


def _write_cast(source: Path, target: Path, schema: pa.Schema) -> None:
    with pq.ParquetWriter(target, schema, version="2.6", compression="snappy") as writer:
        for batch in read_batches(source):
            writer.write_batch(batch.cast(schema))


def _convert_system_columns(path: Path, vocab: DatasetVocabulary, declared: pa.Schema | None) -> None:
    """Cast the system columns of a file to the types of the dataset, by default of a new one."""
    expected = slice_schema(pa.schema([]), vocab) if declared is None else declared
    schema = read_parquet_schema(path)
    names = [name for name in _signed_types(vocab) if name in expected.names]
    converted = _with_types(schema, {name: expected.field(name).type for name in names})
    if converted == schema.remove_metadata():
        return
    part = path.with_name(f"{path.name}-converted")
    try:
        _write_cast(path, part, converted)
        part.replace(path)
    except pa.ArrowInvalid as error:
        raise BadData(f"its system columns have other values than those of the dataset: {error}") from None
    finally:
        part.unlink(missing_ok=True)


def clear_folder(folder: Path) -> None:
    """Remove the content of a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _copy_regular_file(source: Path, target: Path) -> None:
    """Copy a regular file. A link could point anywhere, and a pipe would never end."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError:
        raise BadData(f"its output is not a regular file: {source.name}") from None
    with os.fdopen(descriptor, "rb") as file, target.open("xb") as copy:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadData(f"its output is not a regular file: {source.name}")
        shutil.copyfileobj(file, copy, _CHUNK)
        copy.flush()
        os.fsync(copy.fileno())


_OPTIONS: Final = [
    ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
]
_CONNECT_SECONDS: Final = 30
_AMOUNTS: Final = frozenset(("rows", "bytes", "files", "total_rows", "total_bytes", "total_files"))
ResultT = TypeVar("ResultT")


class EngineTimeout(OdfError):
    """The engine did not respond within the time limit."""


_MAX_VERSION: Final = 100
_MAX_KIND: Final = 40


class _Success(NamedTuple):
    """The response of an engine to a transaction."""

    success: TransformSuccess
    extension: wire.ResponseExtension


class _RawSuccess(NamedTuple):
    """The response of an engine to a raw query."""

    success: RawQuerySuccess
    extension: wire.ResponseExtension


_Unfinished = (
    TransformProgress
    | TransformInvalidQuery
    | TransformInternalError
    | RawQueryProgress
    | RawQueryInvalidQuery
    | RawQueryInternalError
)
"""The responses of an engine other than a success."""


class GrpcEngine:
    """An engine at an address.

    Args:
        address: such as ``grpc://127.0.0.1:2884`` or ``unix:/run/engine.sock``. The engine reads the same
            files under the same paths. For an engine with access to one folder only, that folder and its path
            in the engine follow: ``grpc://127.0.0.1:2884?folder=/srv/exchange&as=/opt/engine``.
        name: name in errors; the address by default.
        seconds: time limit of a request; none by default.
        exchange: the shared folder, instead of the one in the address.

    Raises:
        InvalidManifest: the address is invalid.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str | None = None,
        seconds: float | None = None,
        exchange: FileExchange | None = None,
    ) -> None:
        self._address = name or address.partition("?")[0]
        self._target, parsed_exchange = _parse_address(address)
        self._seconds = seconds
        self._exchange = exchange or parsed_exchange
        # The folder serves one request at a time.
        self._exchange_lock: Any = nullcontext() if self._exchange is None else Lock()

    def run(
        self, operation: Operation, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :class:`odf_engine.engines.contract.Engine`.

        Raises:
            SourceUnavailable: the engine is unreachable, or ended the connection.
            BadData: its output violates the contract.
        """
        exchange = self._exchange
        with self._staged(request) as inner:
            work = self._execute if operation == "execute" else partial(self._migrate, operation)
            success, extension = work(inner, declared, reporter)
            try:
                if exchange is not None:
                    exchange.copy_output(request, declared)
                result = check_engine_output(request, success.new_offset_interval, declared)
                return dataclasses.replace(
                    result,
                    watermark=success.new_watermark,
                    late=[_parse_late_rows(rows, request) for rows in extension.late],
                    pending=extension.pending,
                    version=_version_of(extension),
                )
            except (BadData, InvalidSchema) as error:
                raise self._contract_violation(error.message) from None
            except parquet_errors() as error:
                raise self._contract_violation(f"its data cannot be read: {error}") from None

    def run_raw_query(self, request: RawQueryRequest, reporter: Reporter) -> RawQueryResult:
        """See :class:`odf_engine.ingest.raw_query.RawQueryEngine`."""
        exchange, output = self._exchange, Path(request.output_data_path)
        with (
            self._exchange_lock,
            nullcontext(request) if exchange is None else exchange.staged_raw_query(request) as inner,
        ):
            message = wire.encode_fields(encode_table(inner))
            method = f"/{wire.SERVICE}/{wire.RAW_QUERY}"
            success, extension = self._call(method, message, self._parse_raw_query_response, reporter)
            try:
                if exchange is not None:
                    exchange.copy_raw_output(request)
                _check_raw_output(output, success.num_records)
            except BadData as error:
                raise self._contract_violation(error.message) from None
            except parquet_errors() as error:
                raise self._contract_violation(f"its data cannot be read: {error}") from None
        return RawQueryResult(success.num_records, _version_of(extension))

    @contextmanager
    def _staged(self, request: TransformRequest) -> Iterator[TransformRequest]:
        """Yield a request with the engine's paths; see :class:`FileExchange`."""
        exchange = self._exchange
        with (
            self._exchange_lock,
            nullcontext(request) if exchange is None else exchange.staged_request(request) as inner,
        ):
            yield inner

    def _execute(self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter) -> _Success:
        extension = wire.RequestExtension(declared)
        message = wire.encode_fields(encode_table(request), wire.encode(extension))
        method = f"/{wire.SERVICE}/{wire.TRANSFORM}"
        return self._call(method, message, self._parse_transform_response, reporter)

    def _migrate(
        self,
        operation: Literal["finish", "rebuild", "recompute"],
        request: TransformRequest,
        declared: pa.Schema | None,
        reporter: Reporter,
    ) -> _Success:
        query = wire.MigrateQuery(operation, encode_table(request), declared)
        migrated = self._call_own_service(wire.MIGRATE, query, wire.Migrated, reporter)
        success = TransformSuccess(migrated.new_offset_interval, migrated.new_watermark)
        return _Success(success, wire.ResponseExtension(migrated.version))

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> ValidatedQuery:
        """See :class:`odf_engine.engines.contract.Engine`.

        Raises:
            SourceUnavailable: the engine is unreachable, or ended the connection.
        """
        query = wire.ValidateQuery(transform, list(inputs), vocab, declared)
        return self._call_own_service(wire.VALIDATE, query, ValidatedQuery, Reporter())

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> RowProvenance:
        """See the engine contract. Also raises the errors of :meth:`run`."""
        with self._staged(request) as inner:
            query = wire.DeriveProvenance(encode_table(inner), list(rows))
            answer = self._call_own_service(wire.PROVENANCE, query, RowProvenance, reporter)
        read = {input.query_alias: input.offset_interval for input in request.query_inputs}
        for feed in answer.feeds:
            interval = read.get(feed.alias)
            inside = (
                interval and interval.start <= row.start <= row.end <= interval.end for row in feed.rows
            )
            if not all(inside):
                alias = wire.strip_control_characters(feed.alias)
                raise self._contract_violation(f"it reported rows of '{alias}' that are not in the input")
        reason = None if answer.reason is None else wire.strip_control_characters(answer.reason)
        return replace(answer, reason=reason)

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> ComputedResult:
        """See the engine contract. Also raises the errors of :meth:`run`."""
        exchange = self._exchange
        with (
            self._exchange_lock,
            nullcontext(tables) if exchange is None else exchange.staged_tables(tables) as inner,
        ):
            query = wire.ComputeOutcome(sql, list(inner))
            return self._call_own_service(wire.OUTCOME, query, ComputedResult, reporter)

    def _call(
        self,
        method: str,
        message: bytes,
        parse: Callable[[bytes, Reporter], ResultT | None],
        reporter: Reporter,
    ) -> ResultT:
        """Send a request and read messages until ``parse`` returns a result."""
        with grpc.insecure_channel(self._target, options=_OPTIONS) as channel:
            stream: Any = channel.unary_stream(method)
            try:
                grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
                call = stream(message, timeout=self._seconds)
                with reporter.on_cancel(call.cancel):
                    for reply in call:
                        if (result := parse(reply, reporter)) is not None:
                            return result
            except grpc.FutureTimeoutError:
                raise SourceUnavailable(
                    "the engine does not respond", where=self._address, hint="check that it is running"
                ) from None
            except grpc.RpcError as error:
                raise self._failure(error, reporter) from None
            except (ValueError, msgspec.MsgspecError) as error:
                raise self._contract_violation(f"its response cannot be read: {error}") from None
        reporter.raise_if_cancelled()
        raise self._contract_violation("it ended without a response")

    def _call_own_service(
        self, method: str, query: wire.Wire, result_type: type[ResultT], reporter: Reporter
    ) -> ResultT:
        """Call this program's own service, which other engines do not have."""

        def parse(message: bytes, reporter: Reporter) -> ResultT | None:
            answer = wire.decode(wire.decode_field(message), wire.Answer)
            if isinstance(answer, wire.ProgressMessage):
                return _report_progress(answer, reporter)
            if isinstance(answer, wire.ErrorMessage):
                raise wire.to_exception(answer)
            if isinstance(answer, wire.UnimplementedMessage):
                raise Unsupported(answer.message, where=self._address)
            if not isinstance(answer, result_type):
                raise self._contract_violation(f"it responded with {type(answer).__name__}")
            return answer

        return self._call(
            f"/{wire.OWN_SERVICE}/{method}", wire.encode_fields(wire.encode(query)), parse, reporter
        )

    def _parse_transform_response(self, message: bytes, reporter: Reporter) -> _Success | None:
        """Parse a message of ExecuteTransform; None unless it is the last one."""
        response = decode_table(wire.decode_field(message), TransformResponse)
        extension = wire.decode_field(message, wire.EXTENSION)
        if isinstance(response, TransformSuccess):
            return _Success(response, wire.decode(extension or b"{}", wire.ResponseExtension))
        self._follow(response, extension, reporter)
        return None

    def _parse_raw_query_response(self, message: bytes, reporter: Reporter) -> _RawSuccess | None:
        """Parse a message of ExecuteRawQuery; None unless it is the last one."""
        response = decode_table(wire.decode_field(message), RawQueryResponse)
        extension = wire.decode_field(message, wire.EXTENSION)
        if isinstance(response, RawQuerySuccess):
            return _RawSuccess(response, wire.decode(extension or b"{}", wire.ResponseExtension))
        self._follow(response, extension, reporter)
        return None

    def _follow(self, response: _Unfinished, extension: bytes, reporter: Reporter) -> None:
        """Report the progress in a response, or raise its error.

        Raises:
            OdfError: the query is invalid, or the engine has failed.
        """
        match response:
            case TransformProgress() | RawQueryProgress():
                if extension:
                    _report_progress(wire.decode(extension, wire.ProgressMessage), reporter)
            case _ if extension:
                raise wire.to_exception(wire.decode(extension, wire.ErrorMessage))
            case TransformInvalidQuery() | RawQueryInvalidQuery():
                raise InvalidQuery(response.message, where="query")
            case _:
                raise OdfError(f"the engine failed: {response.message}", where=self._address)

    def _failure(self, error: grpc.RpcError, reporter: Reporter) -> OdfError:
        if reporter.cancelled:
            return Cancelled()
        code = error.code() if isinstance(error, grpc.Call) else None
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported("unsupported by the engine: it can only run queries", where=self._address)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return EngineTimeout(f"the query ran longer than {self._seconds:,g} s", where=self._address)
        details = error.details() if isinstance(error, grpc.Call) else str(error)
        return SourceUnavailable(f"connection to the engine lost: {details}", where=self._address)

    def _contract_violation(self, problem: str) -> BadData:
        return BadData(f"the engine violates the contract: {problem}", where=self._address)


def _parse_address(address: str) -> tuple[str, FileExchange | None]:
    """Return the gRPC target of an address, and its shared folder."""
    if address.startswith("unix:"):
        return address, None
    parts = urlsplit(address)
    try:
        valid = parts.scheme == "grpc" and parts.hostname and parts.port
        options = {
            name: values[-1]
            for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()
        }
    except ValueError:
        valid, options = False, {}
    if not valid or not options.keys() <= {"folder", "as"} or ("as" in options and "folder" not in options):
        raise InvalidManifest(
            f"invalid engine address: '{address}'",
            where="engines",
            hint="use grpc://127.0.0.1:2884, or grpc://127.0.0.1:2884?folder=/srv/exchange&as=/opt/engine",
        )
    if "folder" not in options:
        return parts.netloc, None
    folder = Path(options["folder"])
    return parts.netloc, FileExchange(folder, PurePosixPath(options.get("as", folder)))


def _version_of(extension: wire.ResponseExtension) -> str | None:
    """Return the version that an engine reports, or None if it reports none."""
    return wire.strip_control_characters(extension.version or "")[:_MAX_VERSION] or None


def _check_raw_output(path: Path, rows: int) -> None:
    """Check that the result of a raw query has as many rows as the engine reports.

    Raises:
        BadData: it has not, or it is not a regular file.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise BadData(f"its output is not a regular file: {path.name}")
    written = pq.read_metadata(path).num_rows if path.exists() else 0
    if written != rows:
        raise BadData(f"it reported {count_of(rows, 'row')}, but wrote {written:,}")


def _report_progress(message: wire.ProgressMessage, reporter: Reporter) -> None:
    if message.phase is not None:
        reporter.phase(wire.strip_control_characters(message.phase))
    amounts: dict[str, Any] = {name: value for name, value in message.amounts.items() if name in _AMOUNTS}
    if amounts:
        reporter.set_amounts(**amounts)
    for line in message.lines:
        text = wire.strip_control_characters(line.text)
        if line.level == "warning" and line.kind:
            reporter.warn(text, wire.strip_control_characters(line.kind)[:_MAX_KIND], line.count)
        else:
            reporter.log(text, line.level)


def _parse_late_rows(late: InputRows, request: TransformRequest) -> LateRows:
    """Return the late rows of an input.

    Raises:
        BadData: they are not among the rows of the request.
    """
    intervals = {input.query_alias: input.offset_interval for input in request.query_inputs}
    interval, chunks = intervals.get(late.alias), list[pa.Array]()
    next_offset = 0 if interval is None else interval.start
    for row in late.rows:
        if interval is None or not next_offset <= row.start <= row.end <= interval.end:
            raise BadData("it reported late rows that are not in the input")
        chunks.append(pa.array(range(row.start, row.end + 1), pa.int64()))
        next_offset = row.end + 1
    if not chunks:
        raise BadData("it reported an input without late rows")
    return LateRows(late.alias, pa.chunked_array(chunks))
