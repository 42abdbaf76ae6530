"""Runs one micro-batch of a streaming query with given files, watermark and state."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.progress import Reporter
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import analyzed_plan, node_name, to_list
from odf_engine.spark.runtime.jvm import SparkFailed
from odf_engine.spark.sql_types import identifier, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


_STATE_FILE: Final = re.compile(r"(\d+)\.(delta|snapshot)")


def compact_state(session: SparkSession, root: Path, run: str, version: int) -> None:
    """Write every state store as a snapshot and unload it from memory.

    On a cluster the state is in the memory of executors. Most operators write it when their task ends
    (``unloadOnCommit``). The state of joins is read here from the files, store by store.

    Args:
        session: session of the query, with its settings.
        root: folder of the state, with one folder per operator.
        run: id of the query's run.
        version: version of the state after the batch.

    Raises:
        PySparkException, Py4JError: Spark cannot read or write the state.
    """
    java: Any = session._jvm
    package = java.org.apache.spark.sql.execution.streaming.state
    stores = getattr(getattr(package, "StateStore$"), "MODULE$")
    run_id = java.java.util.UUID.fromString(run)
    for operator, partition, name in _list_stores(root):
        first, store = (
            package.StateStoreProviderId(package.StateStoreId(f"file:{root}", operator, index, name), run_id)
            for index in (0, partition)
        )
        loaded = stores.isLoaded(store)
        if not loaded and _has_several_files(_store_folder(root, operator, partition, name)):
            _load_store(session, stores, first, store, version)
            loaded = True
        if loaded:
            stores.doMaintenanceAndUnload(store)


def prune_state(root: Path) -> None:
    """Remove files that the latest version of each store does not need."""
    for folder in {path.parent for path in root.rglob("*.delta")}:
        versions = _versions(folder)
        snapshot = _latest_snapshot(versions)
        for path, (number, kind) in versions.items():
            if number < snapshot or (number == snapshot and kind == "delta"):
                path.unlink(missing_ok=True)


def _load_store(session: SparkSession, stores: Any, first: Any, store: Any, version: int) -> None:
    """Load a store into this process; ``first`` is its first partition, which has the schema."""
    java: Any = session._jvm
    package = java.org.apache.spark.sql.execution.streaming.state
    state: Any = session._jsparkSession
    hadoop = state.sessionState().newHadoopConf()
    checker = package.StateSchemaCompatibilityChecker
    files = getattr(checker, "$lessinit$greater$default$3")()
    none = java.scala.Option.empty()
    schema = checker(first, hadoop, files, none, False).readSchemaFile().head()
    keys = package.NoPrefixKeyStateEncoderSpec(schema.keySchema())
    settings = package.StateStoreConf.apply(state.sessionState().conf())
    stores.getReadOnly(
        store, schema.keySchema(), schema.valueSchema(), keys, version, none, none, False, settings,
        hadoop, False,
    ).abort()  # fmt: skip


def _list_stores(root: Path) -> Iterator[tuple[int, int, str]]:
    """Yield operator, partition and name of each store of a state."""
    for partition in sorted(root.glob("[0-9]*/[0-9]*")):
        names = [each.name for each in partition.iterdir() if each.is_dir() and each.name != "_metadata"]
        for name in sorted(names) or ["default"]:
            yield int(partition.parent.name), int(partition.name), name


def _store_folder(root: Path, operator: int, partition: int, name: str) -> Path:
    folder = root / str(operator) / str(partition)
    return folder if name == "default" else folder / name


def _has_several_files(folder: Path) -> bool:
    """Return whether the latest version consists of more than one file."""
    versions = _versions(folder)
    snapshot = _latest_snapshot(versions)
    return sum(number > snapshot or kind == "snapshot" for number, kind in versions.values()) > 1


def _versions(folder: Path) -> dict[Path, tuple[int, str]]:
    found = {path: _STATE_FILE.fullmatch(path.name) for path in folder.iterdir()}
    return {path: (int(match[1]), match[2]) for path, match in found.items() if match}


def _latest_snapshot(versions: dict[Path, tuple[int, str]]) -> int:
    return max((number for number, kind in versions.values() if kind == "snapshot"), default=0)


SETTINGS: Final[Mapping[str, str]] = {
    # Files are written in place: this job alone uses the folder.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
    "spark.sql.streaming.stateStore.unloadOnCommit": "true",
    "spark.sql.streaming.fileSource.log.compactInterval": "1",
    "spark.sql.streaming.minBatchesToRetain": "1",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.unsupportedOperationCheck": "true",
}
_STATE_SETTINGS: Final = (
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled",
    "spark.sql.function.protobufExtensions.enabled",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.aggregation.stateFormatVersion",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
    "spark.sql.streaming.join.stateFormatVersion",
    "spark.sql.streaming.multipleWatermarkPolicy",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution",
    "spark.sql.streaming.stateStore.compression.codec",
    "spark.sql.streaming.stateStore.encodingFormat",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion",
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion",
    "spark.sql.streaming.stateStore.rowChecksum.enabled",
    "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled",
    "spark.sql.streaming.statefulOperator.useStrictDistribution",
)
"""Settings that belong to the state: each batch uses those of the first batch."""
_NO_QUERY: Final = "00000000-0000-4000-8000-000000000000"
_VERSION: Final = "v1"
_POLL_MILLISECONDS: Final = 100
_PLAIN_PATH: Final = re.compile(r"[\w/.-]+", re.ASCII)


class MicroBatchQuery:
    """The streaming query of one transaction.

    Args:
        session: session of the job; its streaming settings are changed.
        state: folder of the state, updated by each batch.
        folder: folder for Spark's other files. Both paths must satisfy :func:`is_safe_path`.
    """

    def __init__(self, session: SparkSession, state: Path, folder: Path) -> None:
        self._session = session
        self._folder = folder
        self._state = state
        with translate_errors():
            for name, value in SETTINGS.items():
                session.conf.set(name, value)

    def input_view(self, number: int, schema: pa.Schema, vocab: DatasetVocabulary) -> DataFrame:
        """Return input ``number`` as a stream.

        Args:
            number: index of the input.
            schema: schema of its files, with Spark's types of slices.
            vocab: column names of the input.
        """
        empty = self._folder / f"input-{number}"
        empty.mkdir(exist_ok=True)
        time = vocab.event_time_column
        with translate_errors():
            # The folder is empty: the files of a batch are written to the source log.
            frame = self._session.readStream.schema(spark_schema(schema)).parquet(f"{_uri(empty)}/*")
            if pa.types.is_date(schema.field(time).type):
                frame = frame.withColumn(time, frame[identifier(time)].cast("timestamp"))
            return frame.withWatermark(identifier(time), "0 seconds")

    def run(
        self,
        frame: DataFrame,
        mode: str,
        files: Sequence[Sequence[Path]],
        watermark: int,
        process_rows: Callable[[DataFrame], None],
        reporter: Reporter,
    ) -> int:
        """Run one batch.

        Args:
            frame: the query.
            mode: ``append`` or ``update``.
            files: the files to read, by input; their paths are safe.
            watermark: watermark after this batch, in milliseconds.
            process_rows: receives the rows of the result; it must read all of them exactly once.
            reporter: checked for cancellation.

        Returns:
            The number of late rows that were dropped.

        Raises:
            BadData, InvalidQuery, Cancelled, SparkFailed: the batch failed; the state is unusable then.
        """
        reporter.raise_if_cancelled()
        with translate_errors(reporter):
            number = self._write_batch_log(frame, files, watermark)
            handover = _BatchHandover(self._session)
            query = self._start_query(frame, mode, handover)
        try:
            with reporter.on_cancel(query.stop), translate_errors(reporter):
                if (rows := handover.receive(query)) is not None:
                    process_rows(rows)
                    handover.finish()
                query.awaitTermination()
            reporter.raise_if_cancelled()
            if not (self._state / "commits" / str(number)).exists():
                raise SparkFailed("the stream was stopped before its end", hint="try again")
            with translate_errors(reporter):
                compact_state(self._session, self._state / "state", str(query.runId), number + 1)
                progress = query.recentProgress
        finally:
            with translate_errors(reporter):
                query.stop()
        self._prune_files(number)
        return sum(
            int(each["numRowsDroppedByWatermark"]) for batch in progress for each in batch["stateOperators"]
        )

    def _start_query(self, frame: DataFrame, mode: str, handover: _BatchHandover) -> StreamingQuery:
        writer = frame.writeStream.outputMode(mode)
        java: Any = writer._jwrite
        java.foreachBatch(handover.function)
        return writer.option("checkpointLocation", _uri(self._state)).trigger(availableNow=True).start()

    # --- Logs of Spark ------------------------------------------------------------------------

    def _write_batch_log(self, frame: DataFrame, files: Sequence[Sequence[Path]], watermark: int) -> int:
        """Write the log entry of the next batch, as Spark does at its start."""
        previous = _latest_batch(self._state / "offsets")
        number = 0 if previous is None else previous + 1
        leaves = [each for each in _leaves(analyzed_plan(frame)) if node_name(each) == "StreamingRelation"]
        shutil.rmtree(self._state / "sources", ignore_errors=True)
        for source, index in enumerate(_input_indexes(leaves)):
            entries = [{"path": _uri(path), "timestamp": 0, "batchId": number} for path in files[index]]
            _write_log(self._state / "sources" / str(source) / f"{number}.compact", entries)
        # Spark stops a query when another one with the same id starts, anywhere.
        _write_text(self._state / "metadata", json.dumps({"id": str(uuid.uuid4())}))
        if previous is None:
            settings = {name: self._session.conf.get(name) for name in _STATE_SETTINGS}
        else:
            settings = json.loads((self._state / "offsets" / str(previous)).read_text().split("\n")[1])[
                "conf"
            ]
        metadata = {"batchWatermarkMs": watermark, "batchTimestampMs": 0, "conf": settings}
        _write_log(
            self._state / "offsets" / str(number), [metadata, *({"logOffset": number} for _ in leaves)]
        )
        return number

    # --- State --------------------------------------------------------------------------------

    def _prune_files(self, number: int) -> None:
        """Remove everything that the next batch does not need: equal states have equal files."""
        shutil.rmtree(self._state / "sources", ignore_errors=True)
        _write_text(self._state / "metadata", json.dumps({"id": _NO_QUERY}))
        # Spark may be cleaning up at the same time.
        for folder in ("offsets", "commits"):
            for file in (self._state / folder).iterdir():
                if file.name != str(number):
                    file.unlink(missing_ok=True)
        prune_state(self._state / "state")


class _BatchHandover:
    """Passes the rows of one batch from the thread of Spark's query to the Python thread that runs the batch.

    A Python function for ``foreachBatch`` is called over a connection that Java opens for the thread of the
    query. Neither side closes it: each batch would leave a socket in both processes and a thread in Python.
    The function built here consists of Java calls only. It puts the rows into a queue, and waits until Python
    has read them.

    Args:
        session: any session of the Spark that runs the query.
    """

    def __init__(self, session: SparkSession) -> None:
        java: Any = session._jvm
        self._context = session.sparkContext
        self._milliseconds = java.java.util.concurrent.TimeUnit.MILLISECONDS
        self._frames = java.java.util.concurrent.ArrayBlockingQueue(1)
        self._finished = java.java.util.concurrent.CountDownLatch(1)
        invoke, class_of = java.java.lang.invoke, java.java.lang.Class.forName
        void, object_class = java.java.lang.Void.TYPE, class_of("java.lang.Object")
        handles, method_type = invoke.MethodHandles, invoke.MethodType.methodType
        lookup = handles.publicLookup()
        put = lookup.findVirtual(self._frames.getClass(), "put", method_type(void, object_class))
        wait = lookup.findVirtual(self._finished.getClass(), "await", method_type(void))
        put_and_wait = handles.foldArguments(
            handles.dropArguments(wait.bindTo(self._finished), 0, [object_class]), put.bindTo(self._frames)
        )
        self.function: Any = invoke.MethodHandleProxies.asInterfaceInstance(
            class_of("org.apache.spark.api.java.function.VoidFunction2"),
            handles.dropArguments(put_and_wait, 1, [object_class]),  # the batch number
        )

    def receive(self, query: StreamingQuery) -> DataFrame | None:
        """Wait for the rows; None if the query has ended without any."""
        while (frame := self._frames.poll(_POLL_MILLISECONDS, self._milliseconds)) is None:
            if not query.isActive and self._frames.isEmpty():
                return None
        return DataFrame(frame, SparkSession(self._context, frame.sparkSession()))

    def finish(self) -> None:
        """Let the query continue after its rows were read."""
        self._finished.countDown()


def _input_indexes(leaves: Sequence[Any]) -> list[int]:
    """Return the indexes of the inputs that Spark reads, in the order in which they occur in a plan.

    An input that a query names twice is read once, or twice if its columns have new ids.
    """
    different: list[Any] = []
    for leaf in leaves:
        if not any(leaf.equals(other) for other in different):
            different.append(leaf)
    paths = [str(leaf.dataSource().options().apply("path")) for leaf in different]
    return [int(path.rpartition("input-")[2].removesuffix("/*")) for path in paths]


def _leaves(plan: Any) -> Iterator[Any]:
    children = to_list(plan.children())
    if not children:
        yield plan
    for child in children:
        yield from _leaves(child)


def _latest_batch(folder: Path) -> int | None:
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=None)


def _write_log(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    # Compared as text with Spark's own output, which has no spaces.
    lines = [json.dumps(entry, separators=(",", ":")) for entry in entries]
    _write_text(path, "\n".join([_VERSION, *lines]))


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def is_safe_path(path: Path) -> bool:
    """Return whether Spark interprets no character of the path, and escapes none."""
    return _PLAIN_PATH.fullmatch(str(path)) is not None


def _uri(path: Path) -> str:
    return path.absolute().as_uri()
