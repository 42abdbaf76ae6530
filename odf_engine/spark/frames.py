"""A result of Spark as a stream of Arrow batches: in order, in bounded memory, and cancellable."""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError

from odf_engine.errors import InvalidSchema
from odf_engine.progress import Reporter
from odf_engine.spark.errors import translated
from odf_engine.spark.progress import Watcher, java_spark
from odf_engine.spark.types import arrow_schema

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_AHEAD: Final = 4
"""Batches that may wait between Spark and whoever takes them."""

_INT: Final = struct.Struct(">i")
_MORE: Final = _INT.pack(1)
_HERE, _FAILED, _END = 1, -1, -1


def arrow_batches(
    frame: DataFrame, reporter: Reporter, *, progress: bool = True
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of a frame, in its order.

    Nothing runs until the first batch is asked for. One partition (16 MB of text) is read ahead, so
    the memory in use does not grow with the result. When the reporter is cancelled the running job
    stops within two seconds; closing the iterator early stops it as well.

    Args:
        frame: what to run.
        reporter: is told rows and bytes read four times a second, unless ``progress`` is off, and
            asked whether to stop.

    Returns:
        The schema (see :func:`odf_engine.spark.types.arrow_schema`) and the batches, none empty.

    Raises:
        InvalidSchema: a type that has no place in Arrow batches, or two columns of one name.
        BadData, InvalidQuery, Cancelled, SparkFailed: while iterating.
    """
    with translated():
        schema = arrow_schema(frame.schema)
    _check_names(schema)
    return schema, _run(frame, schema, reporter, progress)


@contextmanager
def cancellable(session: SparkSession, reporter: Reporter) -> Iterator[None]:
    """Jobs that this thread starts within stop when the reporter is cancelled; errors are translated.

    Raises:
        BadData, InvalidQuery, Cancelled, SparkFailed: as the jobs end.
    """
    reporter.check()
    context = session.sparkContext
    with translated(reporter), _job(context, reporter, progress=False) as group, _in_group(context, group):
        yield


def _check_names(schema: pa.Schema) -> None:
    known: set[str] = set()
    for name in schema.names:
        if name.lower() in known:
            raise InvalidSchema(
                f"the result has two columns `{name}`", hint="give one of them another name with AS"
            )
        known.add(name.lower())


def _run(frame: DataFrame, schema: pa.Schema, reporter: Reporter, progress: bool) -> Iterator[pa.RecordBatch]:
    reporter.check()
    with translated(reporter), _job(frame.sparkSession.sparkContext, reporter, progress) as group:
        with _in_group(frame.sparkSession.sparkContext, group):
            served = _serve(frame)
            # Without it, through the public interface alone, which holds the whole result in memory.
            whole = [] if served is not None else frame.toArrow().to_batches()
        if served is None:
            yield from (batch.cast(schema) for batch in whole if batch.num_rows)
            return
        with _Partitions(*served) as partitions:
            for data in partitions:
                reporter.check()
                batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
                if batch.num_rows:
                    yield batch


def _serve(frame: DataFrame) -> tuple[int | str, str | None, Any] | None:
    """Opens the inner door of Spark through which Arrow batches leave; None where it has gone."""
    java: Any = frame.sparkSession._jvm
    frame_in_java: Any = frame._jdf
    try:
        batches = frame_in_java.toArrowBatchRdd()
        address, secret, server = java.PythonRDD.toLocalIteratorAndServe(batches, True)
    except Py4JError as error:
        if "does not exist" in str(error) and not isinstance(error, Py4JJavaError):
            return None
        raise
    return address, secret, server


@contextmanager
def _job(context: SparkContext, reporter: Reporter, progress: bool) -> Iterator[str]:
    """The name of a group of jobs that is watched within, and cancelled with the reporter or on failure."""
    group = f"odf-{uuid.uuid4().hex}"
    over = threading.Event()

    def cancel() -> None:
        if not over.is_set():
            java_spark(context).cancelJobGroupAndFutureJobs(group)

    watcher = Watcher(context, group, reporter) if progress else None
    if watcher is not None:
        watcher.start()
    finished = False
    try:
        with reporter.on_cancel(cancel):
            yield group
            finished = True
    finally:
        if not finished:
            cancel()
        over.set()
        if watcher is not None:
            watcher.finish()


@contextmanager
def _in_group(context: SparkContext, group: str) -> Iterator[None]:
    """Whatever this thread starts within belongs to a group, and so does what that starts later."""
    context.setJobGroup(group, "odf", interruptOnCancel=True)
    try:
        yield
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # pyright: ignore[reportArgumentType]


class _Partitions:
    """The serialized batches of an RDD, partition by partition, read ahead by a thread.

    Spark's side: for every integer 1 that it is sent it answers 1 and the next partition (each
    batch with its length before it, then -1), 0 when there are no more, or -1 after a failure that
    ``server.getResult()`` raises.
    """

    def __init__(self, address: int | str, secret: str | None, server: Any) -> None:
        self._address = (address, secret)
        self._server = server
        self._queue: Queue[bytes | BaseException | None] = Queue(_AHEAD)
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, name="spark-batches", daemon=True)

    def __enter__(self) -> _Partitions:
        from pyspark.util import _create_local_socket

        self._file: BinaryIO
        self._socket: socket.socket
        self._file, self._socket = _create_local_socket(self._address)  # pyright: ignore
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with self._queue.mutex:
            self._queue.queue.clear()
            self._queue.not_full.notify_all()
        with suppress(OSError):  # the other side may have been faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        for part in (self._file, self._socket):
            with suppress(OSError):  # what was not sent cannot be sent any more
                part.close()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def _read(self) -> None:
        try:
            self._read_partitions()
        except BaseException as error:
            self._put(error)
        else:
            self._put(None)

    def _read_partitions(self) -> None:
        while True:
            self._file.write(_MORE)
            self._file.flush()
            status = self._number()
            if status == _FAILED:
                self._server.getResult()
            if status != _HERE:
                return
            while (length := self._number()) != _END:
                if not self._put(self._file.read(length)):
                    return

    def _number(self) -> int:
        data = self._file.read(_INT.size)
        if len(data) < _INT.size:
            raise EOFError("Spark closed the connection")
        return _INT.unpack(data)[0]

    def _put(self, item: bytes | BaseException | None) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except Full:
                continue
            return True
        return False
