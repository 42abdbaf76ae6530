"""The Spark engine as a service for other coordinators: ``python -m odf_engine.transform.engine_server``."""

from __future__ import annotations

import argparse
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from odf_engine.errors import InvalidQuery, MalformedBlock, OdfError
from odf_engine.metadata.flatbuffers import decode_table, encode_table
from odf_engine.metadata.model import (
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
from odf_engine.progress import Reporter
from odf_engine.spark.session import SparkRuntime
from odf_engine.spark.settings import SparkConfig
from odf_engine.transform.grpc_wire import LARGEST_MESSAGE, RAW_QUERY, SERVICE, TRANSFORM, unwrap, wrap
from odf_engine.transform.raw_query import raw_query
from odf_engine.transform.spark_engine import SparkEngine

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.so_reuseport", 0),
]
_PROGRESS_SECONDS: Final = 1.0
_AT_ONCE: Final = 4


class EngineServer:
    """Serves a Spark that has started.

    Args:
        runtime: the Spark.
        address: host and port; port 0 takes a free one, which :attr:`port` names.

    Raises:
        OdfError: the address cannot be had.
    """

    def __init__(self, runtime: SparkRuntime, address: str) -> None:
        self._runtime = runtime
        self._engine = SparkEngine(runtime)
        self._server = grpc.server(ThreadPoolExecutor(2 * _AT_ONCE, "grpc"), options=_OPTIONS)
        methods = {TRANSFORM: self._transform, RAW_QUERY: self._raw_query}
        handlers = {
            name: grpc.unary_stream_rpc_method_handler(
                method, request_deserializer=unwrap, response_serializer=wrap
            )
            for name, method in methods.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OdfError(f"the engine cannot listen: {error}", where=address) from None

    def start(self) -> None:
        """Begins to answer."""
        self._server.start()

    def stop(self) -> None:
        """Ends running requests and stops."""
        self._server.stop(grace=1).wait()

    def _transform(self, message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        def work(reporter: Reporter) -> bytes:
            request = decode_table(message, TransformRequest)
            result = self._engine.execute(request, None, reporter)
            interval = None if result.written is None else result.written.offset_interval
            return encode_table(TransformSuccess(interval, _watermark(request)))

        return _answers(work, context, TransformProgress(), TransformInvalidQuery, TransformInternalError)

    def _raw_query(self, message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        def work(reporter: Reporter) -> bytes:
            request = decode_table(message, RawQueryRequest)
            return encode_table(RawQuerySuccess(raw_query(self._runtime.session(), request, reporter)))

        return _answers(work, context, RawQueryProgress(), RawQueryInvalidQuery, RawQueryInternalError)


def _watermark(request: TransformRequest) -> Timestamp | None:
    """The least of the inputs' newest watermarks; none while one has none in this request."""
    newest = [max((mark.event_time for mark in each.explicit_watermarks), default=None)
              for each in request.query_inputs]  # fmt: skip
    known = [mark for mark in newest if mark is not None]
    return min(known) if len(known) == len(newest) and known else None


def _answers(
    work: Callable[[Reporter], bytes],
    context: grpc.ServicerContext,
    progress: Any,
    invalid: Callable[[str], Any],
    failed: Callable[[str], Any],
) -> Iterator[bytes]:
    """Progress while the work runs, then what came of it. A client that goes away stops the work."""
    reporter = Reporter()
    done: queue.Queue[bytes] = queue.Queue()

    def run() -> None:
        try:
            done.put(work(reporter))
        except InvalidQuery as error:
            done.put(encode_table(invalid(_text(error))))
        except (OdfError, MalformedBlock) as error:
            done.put(encode_table(failed(_text(error))))
        except Exception as error:
            done.put(encode_table(failed(f"{type(error).__name__}: {error}")))

    context.add_callback(reporter.cancel)
    threading.Thread(target=run, name="engine-request", daemon=True).start()
    while True:
        try:
            yield done.get(timeout=_PROGRESS_SECONDS)
            return
        except queue.Empty:
            yield encode_table(progress)


def _text(error: OdfError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def serve(config: SparkConfig, address: str, said: Callable[[str], None]) -> None:
    """Serves until it is interrupted.

    Raises:
        OdfError: Spark does not start, or the address cannot be had.
    """
    stopped = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stopped.set())
    with tempfile.TemporaryDirectory(prefix="odf-engine-") as folder:
        runtime = SparkRuntime(config, Path(folder) / "spark.log", Path(folder))
        runtime.start()
        try:
            server = EngineServer(runtime, address)
            server.start()
            said(f"{runtime.detail}\nthe engine listens at grpc://{address.rpartition(':')[0]}:{server.port}")
            stopped.wait()
            server.stop()
        finally:
            runtime.stop()


def main() -> int:
    """The program: options as ``odf engine serve`` gives them."""
    from odf_engine.workspace.config import Config, load

    parser = argparse.ArgumentParser(prog="odf engine serve")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5544)
    parser.add_argument("--config", type=Path)
    given = parser.parse_args()
    try:
        config = load(given.config) if given.config else Config()
        serve(config.spark, f"{given.host}:{given.port}", lambda text: print(text, flush=True))
    except OdfError as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error}{hint}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
