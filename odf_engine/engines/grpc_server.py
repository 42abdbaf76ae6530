"""Server of the Spark engine over gRPC (``python -m``)."""

from __future__ import annotations

import argparse
import asyncio
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import grpc
import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.base.settings import load_config, load_workspace, user_file
from odf_engine.base.terminal_text import escape_standard_streams
from odf_engine.chain.normal_form import normalize_transform, spark_engine_version
from odf_engine.engines import grpc_messages as wire
from odf_engine.engines.contract import Engine, InputRows, TransactionResult
from odf_engine.engines.input_intervals import with_rows_of_intervals
from odf_engine.engines.row_provenance import to_intervals
from odf_engine.engines.spark_engine import SparkEngine, run_raw_query
from odf_engine.errors import InvalidQuery, OdfError
from odf_engine.metadata.flatbuffers import decode_table, encode_table
from odf_engine.metadata.model import (
    OffsetInterval,
    RawQueryInternalError,
    RawQueryInvalidQuery,
    RawQueryProgress,
    RawQueryRequest,
    RawQuerySuccess,
    TransformInternalError,
    TransformInvalidQuery,
    TransformProgress,
    TransformRequest,
    TransformSuccess,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.runtime.session import SparkRuntime, has_runaway_tasks
from odf_engine.spark.runtime.spark_conf import SparkOptions, SparkSettings

_PROGRESS_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.25


class ResponseTables(NamedTuple):
    """The FlatBuffers of a method's responses, which have a JSON document as extension."""

    progress: Any
    invalid: Callable[[str], Any]
    failed: Callable[[str], Any]


_TABLES: Final = {
    wire.TRANSFORM: ResponseTables(TransformProgress(), TransformInvalidQuery, TransformInternalError),
    wire.RAW_QUERY: ResponseTables(RawQueryProgress(), RawQueryInvalidQuery, RawQueryInternalError),
}
"""By method. The other methods respond with one JSON document."""


def _progress_message(message: wire.ProgressMessage, tables: ResponseTables | None) -> bytes:
    if tables is None:
        return wire.encode_fields(wire.encode(message))
    return wire.encode_fields(encode_table(tables.progress), wire.encode(message))


def _error_message(error: Exception, tables: ResponseTables | None) -> bytes:
    if isinstance(error, OdfError):
        failure = wire.to_error_message(error)
    elif isinstance(error, msgspec.MsgspecError):
        failure = wire.ErrorMessage(f"the request cannot be read: {error}")
    else:
        failure = wire.ErrorMessage(f"{type(error).__name__}: {error}")
    if tables is None:
        return wire.encode_fields(wire.encode(failure))
    location = f"{failure.where}: " if failure.where else ""
    hint = f" ({failure.hint})" if failure.hint else ""
    table = tables.invalid if isinstance(error, InvalidQuery) else tables.failed
    return wire.encode_fields(encode_table(table(f"{location}{failure.message}{hint}")), wire.encode(failure))


class _ProgressBuffer(Reporter):
    """Collects progress for the next message."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer_lock = threading.Lock()
        self._phase: str | None = None
        self._amounts: dict[str, int] = {}
        self._lines: list[wire.Line] = []

    def phase(self, name: str) -> None:
        """See :class:`Reporter`."""
        with self._buffer_lock:
            self._phase, self._amounts = name, {}

    def set_amounts(self, **amounts: int | str | None) -> None:
        """See :class:`Reporter`."""
        with self._buffer_lock:
            self._amounts |= {name: value for name, value in amounts.items() if isinstance(value, int)}

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        """See :class:`Reporter`."""
        with self._buffer_lock:
            self._lines.append(wire.Line(text, "warning", kind, count))

    def log(self, text: str, level: Any = "info") -> None:
        """See :class:`Reporter`."""
        with self._buffer_lock:
            self._lines.append(wire.Line(text, level))

    def take_message(self) -> wire.ProgressMessage:
        """Return the progress since the last call."""
        with self._buffer_lock:
            message = wire.ProgressMessage(self._phase, self._amounts, self._lines)
            self._phase, self._amounts, self._lines = None, {}, []
        return message


class Requests:
    """The requests in progress.

    Args:
        on_cancelled: called in a separate thread after a request was cancelled.
    """

    def __init__(self, on_cancelled: Callable[[], None]) -> None:
        self._on_cancelled = on_cancelled
        self._gate = threading.Condition()
        self._open = 0
        self._paused = False

    def is_busy(self) -> bool:
        """Return whether there are any."""
        return self._open > 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Delay new requests until the end of the block."""
        with self._gate:
            self._paused = True
        try:
            yield
        finally:
            with self._gate:
                self._paused = False
                self._gate.notify_all()

    def run_streamed(
        self, work: Callable[[Reporter], bytes], context: grpc.ServicerContext, tables: ResponseTables | None
    ) -> Iterator[bytes]:
        """Yield progress while the work runs, then its result. The work is cancelled when the client
        disconnects.
        """
        reporter = _ProgressBuffer()
        results: queue.Queue[bytes] = queue.Queue()
        context.add_callback(reporter.cancel)
        threading.Thread(
            target=self._run, args=(work, reporter, tables, results), name="engine-request", daemon=True
        ).start()
        idle_seconds = 0.0
        answer: bytes | None = None
        while answer is None:
            try:
                answer = results.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                idle_seconds += _POLL_SECONDS
            message = reporter.take_message()
            if message != wire.ProgressMessage() or (answer is None and idle_seconds >= _PROGRESS_SECONDS):
                idle_seconds = 0.0
                yield _progress_message(message, tables)
        yield answer

    def _run(
        self,
        work: Callable[[Reporter], bytes],
        reporter: Reporter,
        tables: ResponseTables | None,
        results: queue.Queue[bytes],
    ) -> None:
        with self._gate:
            self._gate.wait_for(lambda: not self._paused)
            self._open += 1
        try:
            results.put(work(reporter))
        except Exception as error:
            results.put(_error_message(error, tables))
        finally:
            with self._gate:
                self._open -= 1
        if reporter.cancelled:
            self._on_cancelled()


_OPTIONS: Final = [
    ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
]
_MAX_PARALLEL: Final = 4


class EngineServer:
    """Serves a running Spark.

    Args:
        runtime: the Spark.
        address: host and port, or ``unix:`` and a path. Port 0 selects a free port, see :attr:`port`.

    Raises:
        OdfError: the address is not available.
    """

    def __init__(self, runtime: SparkRuntime, address: str) -> None:
        self._runtime = runtime
        self._requests = Requests(self._on_cancelled)
        self._engine: Engine = SparkEngine(runtime)
        self._server = grpc.server(ThreadPoolExecutor(2 * _MAX_PARALLEL, "grpc"), options=_OPTIONS)
        self._add_handlers(wire.SERVICE, {wire.TRANSFORM: self._transform, wire.RAW_QUERY: self._raw_query})
        own_methods = {
            wire.VALIDATE: self._validate,
            wire.MIGRATE: self._migrate,
            wire.PROVENANCE: self._provenance,
            wire.OUTCOME: self._outcome,
        }
        self._add_handlers(wire.OWN_SERVICE, own_methods)
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OdfError(f"the engine cannot listen: {error}", where=address) from None

    def start(self) -> None:
        """Start to accept requests."""
        self._server.start()

    def stop(self) -> None:
        """Cancel running requests and stop."""
        self._server.stop(grace=1).wait()

    def _add_handlers(self, service: str, methods: Mapping[str, Callable[[bytes, Reporter], bytes]]) -> None:
        def handler(name: str) -> grpc.RpcMethodHandler:
            def run(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
                work = partial(methods[name], message)
                return self._requests.run_streamed(work, context, _TABLES.get(name))

            return grpc.unary_stream_rpc_method_handler(run)

        handlers = {name: handler(name) for name in methods}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def _on_cancelled(self) -> None:
        """Restart Spark if the tasks of a cancelled request do not stop."""
        if has_runaway_tasks(self._runtime, self._requests.is_busy):
            with self._requests.paused():
                if not self._requests.is_busy():
                    self._runtime.stop()
                    self._runtime.start()

    def _transform(self, message: bytes, reporter: Reporter) -> bytes:
        received = _decode_request(wire.decode_field(message), TransformRequest)
        extension = wire.decode(wire.decode_field(message, wire.EXTENSION) or b"{}", wire.RequestExtension)
        with with_rows_of_intervals(received, self._runtime.scratch) as request:
            result = self._engine.run("execute", request, extension.declared, reporter)
        watermark = result.watermark or _combined_watermark(request)
        late = [InputRows(rows.alias, to_intervals(rows.offsets.to_pylist())) for rows in result.late]
        return wire.encode_fields(
            encode_table(TransformSuccess(_written_interval(result), watermark)),
            wire.encode(wire.ResponseExtension(result.version, late, result.pending)),
        )

    def _raw_query(self, message: bytes, reporter: Reporter) -> bytes:
        request = _decode_request(wire.decode_field(message), RawQueryRequest)
        rows = run_raw_query(self._runtime.session(), request, reporter)
        extension = wire.ResponseExtension(spark_engine_version())
        return wire.encode_fields(encode_table(RawQuerySuccess(rows)), wire.encode(extension))

    def _validate(self, message: bytes, reporter: Reporter) -> bytes:
        query = wire.decode(wire.decode_field(message), wire.ValidateQuery)
        valid = self._engine.validate(query.transform, query.inputs, query.vocab, query.declared)
        return wire.encode_fields(wire.encode(valid))

    def _migrate(self, message: bytes, reporter: Reporter) -> bytes:
        query = wire.decode(wire.decode_field(message), wire.MigrateQuery)
        received = _decode_request(query.request, TransformRequest)
        with with_rows_of_intervals(received, self._runtime.scratch) as request:
            result = self._engine.run(query.how, request, query.declared, reporter)
        migrated = wire.Migrated(_written_interval(result), result.watermark, result.version)
        return wire.encode_fields(wire.encode(migrated))

    def _provenance(self, message: bytes, reporter: Reporter) -> bytes:
        query = wire.decode(wire.decode_field(message), wire.DeriveProvenance)
        received = _decode_request(query.request, TransformRequest)
        with with_rows_of_intervals(received, self._runtime.scratch) as request:
            derived = self._engine.provenance(request, query.rows, reporter)
        return wire.encode_fields(wire.encode(derived))

    def _outcome(self, message: bytes, reporter: Reporter) -> bytes:
        query = wire.decode(wire.decode_field(message), wire.ComputeOutcome)
        outcome = self._engine.compute_outcome(query.query, query.tables, reporter)
        return wire.encode_fields(wire.encode(outcome))


_Request = TypeVar("_Request", TransformRequest, RawQueryRequest)


def _decode_request(data: bytes, kind: type[_Request]) -> _Request:
    """Decode a request. Other coordinators may send a single query without a list of queries.

    Raises:
        InvalidQuery: there is no query, or it has no normal form.
    """
    request = decode_table(data, kind)
    return msgspec.structs.replace(request, transform=normalize_transform(request.transform))


def _written_interval(result: TransactionResult) -> OffsetInterval | None:
    return None if result.written is None else result.written.offset_interval


def _combined_watermark(request: TransformRequest) -> Timestamp | None:
    """Return the minimum of the inputs' latest watermarks, or None if an input has none in this request."""
    latest = [max((watermark.event_time for watermark in input.explicit_watermarks), default=None)
              for input in request.query_inputs]  # fmt: skip
    known = [watermark for watermark in latest if watermark is not None]
    return min(known) if len(known) == len(latest) and known else None


async def _serve(config: SparkSettings, address: str, scratch: Path | None) -> None:
    """Serve until a signal or, at a socket, until the end of standard input; print the address.

    Args:
        config: settings of Spark.
        address: where to listen, as HOST:PORT or unix:PATH.
        scratch: folder for temporary files, or None for the system's.

    Raises:
        OdfError: Spark does not start, or the address is not available.
    """
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # also those that the system delivers to other threads
        loop.add_signal_handler(number, stopped.set)
    if address.startswith("unix:"):
        threading.Thread(target=_call_at_end_of_input, args=(loop, stopped.set), daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="odf-engine-", dir=scratch) as folder:
        runtime = SparkRuntime(config, Path(folder) / "spark.log", Path(folder))
        runtime.start()
        try:
            server = EngineServer(runtime, address)
            server.start()
            location = (
                address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{server.port}"
            )
            print(f"{runtime.detail}\nthe engine listens at grpc://{location}", flush=True)
            await stopped.wait()
            server.stop()
        finally:
            runtime.stop()


def main() -> int:
    """Run the program with the options of ``odf engine serve`` and of a sandbox."""
    escape_standard_streams()
    arguments = _parse_arguments()
    try:
        if arguments.socket is None:
            odf, address = arguments.settings_of, f"{arguments.host}:{arguments.port}"
            config = (load_workspace(odf) if odf else load_config(user_file())).spark
            if odf is not None:  # the executors of a cluster can access the workspace, not /tmp
                arguments.scratch = odf / "cache"
                arguments.scratch.mkdir(exist_ok=True)
        else:
            config = SparkOptions(arguments.master, driver_memory=arguments.memory)
            address = f"unix:{arguments.socket}"
        asyncio.run(_serve(config, address, arguments.scratch))
    except OdfError as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error}{hint}\n")
        return error.exit_code
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="odf engine serve")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5544)
    parser.add_argument("--settings-of", type=Path, help="The `.odf` folder of a workspace.")
    sandbox = parser.add_argument_group("sandbox (runs until standard input is closed)")
    sandbox.add_argument("--socket", type=Path, help="Listen on this socket instead.")
    sandbox.add_argument("--scratch", type=Path, help="Folder for temporary files.")
    sandbox.add_argument("--master", default="local[*]", help="Spark master URL.")
    sandbox.add_argument("--memory", default="1g", help="Memory of the Spark process.")
    return parser.parse_args()


def _call_at_end_of_input(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    sys.stdin.read()
    with suppress(RuntimeError):  # the loop has been closed after a signal
        loop.call_soon_threadsafe(function)


if __name__ == "__main__":
    sys.exit(main())
