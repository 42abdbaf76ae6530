"""Start, monitoring and stop of Spark; one isolated session per job."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from odf_engine.base import processes
from odf_engine.base.atomic_files import replace_file
from odf_engine.base.files import ensure_folder, open_file
from odf_engine.errors import OdfError
from odf_engine.spark.errors import clean_message, throwable_chain, translate_errors
from odf_engine.spark.runtime import class_data_archive
from odf_engine.spark.runtime.jvm import (
    Java,
    JavaGateway,
    JvmOptions,
    SparkFailed,
    connect,
    find_java,
    launch,
)
from odf_engine.spark.runtime.spark_conf import (
    SparkSettings,
    check_executors,
    check_master,
    is_application_ended,
    is_local,
    is_on_this_machine,
    spark_settings,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from pyspark import SparkContext
    from pyspark.sql import SparkSession


CANCEL_GRACE_SECONDS: Final = 1.5
"""Seconds that cancelled tasks have to stop."""
_POLL_SECONDS: Final = 0.2


class TaskCounter(Protocol):
    """Reports the number of running tasks."""

    @property
    def tasks_running(self) -> int:
        """Number of running tasks, including tasks of cancelled jobs, or 0 if Spark has stopped."""
        ...


def has_runaway_tasks(spark: TaskCounter, busy: Callable[[], bool]) -> bool:
    """Return whether tasks still run although no job is active.

    Waits until no task runs, or until no job has been active for :data:`CANCEL_GRACE_SECONDS`.
    """
    since = time.monotonic()
    while spark.tasks_running:
        if busy():
            since = time.monotonic()
        elif time.monotonic() - since > CANCEL_GRACE_SECONDS:
            return True
        time.sleep(_POLL_SECONDS)
    return False


@dataclass(frozen=True)
class Memory:
    """Memory in bytes: used heap, maximum heap, and resident memory of the process."""

    heap: int
    heap_max: int
    resident: int


def read_memory(context: SparkContext, pid: int) -> Memory | None:
    """Return the memory of Spark's JVM, or None if it has stopped. A call takes about a millisecond."""
    # Deferred, as all imports of PySpark: they run while the JVM starts.
    from py4j.protocol import Py4JError

    java: Any = context._jvm
    try:
        runtime = java.java.lang.Runtime.getRuntime()
        used = int(runtime.totalMemory()) - int(runtime.freeMemory())
        return Memory(used, int(runtime.maxMemory()), read_resident_memory(pid))
    except (Py4JError, OSError):
        return None


def read_resident_memory(pid: int | str = "self") -> int:
    """Return the resident memory of a process in bytes, or 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


_log = logging.getLogger(__name__)
_MAX_LOG = 5_000_000
_MAX_SOCKET_FOLDER = 55
_PYTHON: Final = "spark.pyspark.python"
"""The Python of executors."""
QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers of PySpark that write every query error to standard error as JSON."""
_REMOVED_FUNCTIONS = (
    # They call arbitrary Java methods.
    "reflect", "java_method", "try_reflect",
    # They read a schema from a file that an argument names.
    "from_xml", "schema_of_xml", "from_protobuf", "to_protobuf",
    # They return file paths of this machine, which differ between runs.
    "input_file_name", "input_file_block_start", "input_file_block_length",
)  # fmt: skip
"""Built-in functions that are removed from every session."""


class SparkRuntime:
    """Spark with the settings that the engine requires. At most one per process.

    Args:
        config: master, memory and further settings.
        log_path: log file of Spark and Java.
        cache_dir: folder for temporary files; ``spark/`` in it is used and cleaned.
        java_flags: further JVM flags; no archive is used then.
    """

    def __init__(
        self,
        config: SparkSettings,
        log_path: Path,
        cache_dir: Path,
        *,
        java_flags: Sequence[str] | None = None,
    ) -> None:
        self._config = config
        self._java_flags = java_flags
        self._log = log_path
        self._scratch = cache_dir / "spark"
        self._lock = threading.RLock()
        self._launch = threading.Lock()  # held briefly only: `stop` takes it during a start
        self._launched: subprocess.Popen[bytes] | None = None
        self._interrupted = False
        self._folder: Path | None = None
        self._gateway: JavaGateway | None = None
        self._context: SparkContext | None = None
        self._root: SparkSession | None = None
        self._sockets: Path | None = None
        self._attached = self._stopping = False
        self._removed_functions: list[Any] = []
        self._java: Java | None = None
        self._detail = "not started"
        self._training: class_data_archive.ArchiveTrainer | None = None

    @property
    def detail(self) -> str:
        """Description for users: versions, master, how it was started."""
        return self._detail

    @property
    def scratch(self) -> Path:
        """Folder for temporary files, which exists after the start and which all executors can read."""
        return self._scratch

    @property
    def is_alive(self) -> bool:
        """Whether Spark was started and still runs. A cluster may end the application and leave the
        process.
        """
        gateway, context = self._gateway, self._context
        if self._root is None or context is None or gateway is None or gateway.process.poll() is not None:
            return False
        return is_local(self._config.master) or not is_application_ended(context)

    @property
    def pid(self) -> int | None:
        """Process id of Spark's JVM while it runs."""
        return self._gateway.process.pid if self._gateway is not None else None

    @property
    def tasks_running(self) -> int:
        """Number of running tasks, including tasks of cancelled jobs, or 0 if Spark does not run."""
        context = self._context
        if context is None or not self.is_alive:
            return 0
        from odf_engine.spark.arrow_batches import count_running_tasks

        return count_running_tasks(context)

    @property
    def memory(self) -> Memory | None:
        """Memory of the JVM, or None if Spark does not run."""
        context, pid = self._context, self.pid
        return None if context is None or pid is None else read_memory(context, pid)

    def start(self) -> None:
        """Start Spark and wait until it is ready; does nothing if it already runs.

        Raises:
            SparkFailed: it did not start (the log has the reason), a cluster does not respond, its executors
                cannot access ``cache_dir``, or :meth:`stop` was called during the start.
            JavaMissing: there is no suitable Java runtime.
            UsageError: the configuration changes a fixed setting.
        """
        with self._lock:
            if self.is_alive:
                return
            self._clear()
            check_master(self._config.master)
            started = time.monotonic()
            self._java = find_java(getattr(self._config, "java", None) or os.environ.get("ODF_JAVA"))
            _rotate(self._log)
            archive = class_data_archive.find_archive(self._java) if self._java_flags is None else None
            try:
                self._launch_spark(
                    [*(self._java_flags or ()), *class_data_archive.use_flags(self._java, archive)]
                )
            except SparkFailed:
                if archive is None or self._interrupted:
                    raise
                # A damaged archive must never prevent the start of Spark. It is the cause if Spark starts
                # without it.
                self._launch_spark([])
                class_data_archive.discard_archive(self._java)
                archive = None
            if not is_local(self._config.master):
                self._check_executors()
            self._detail = self._describe(time.monotonic() - started, archive)

    def session(self) -> SparkSession:
        """Return a new session for one job, without views and settings of other jobs.

        It becomes the active session of this thread, which must be the one that uses it.

        Raises:
            SparkFailed: Spark is not running.
        """
        root = self._root
        if root is None or not self.is_alive:
            raise SparkFailed("Spark is not running", hint=f"see the log {self._log}")
        _rotate(self._log)
        with translate_errors():
            session = root.newSession()
            # Spark's parser and many expressions read the settings of the thread's active session. Without
            # one they would use Spark's defaults.
            java: Any = session._jvm
            java.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
            self._remove_functions(session)
        return session

    def train_archive_in_background(self, busy: Callable[[], bool] | None = None) -> None:
        """Speed up later work: run a small job now, and record a class-data archive later.

        Returns immediately. The small job is omitted if ``busy`` returns True. The archive is recorded once
        for each Java runtime, by separate processes with the lowest priority, after ``busy`` has returned
        False for some seconds.
        """
        with self._lock:
            if self._java is not None and self._training is None:
                self._training = class_data_archive.ArchiveTrainer(
                    self._java, busy or (lambda: False), self.warm_up
                )
                self._training.start()

    def warm_up(self) -> None:
        """Run a small job, so that the first real job does not wait for class loading.

        Takes about two seconds. Ends early and silently if Spark is stopped.
        """
        folder = self._folder
        if folder is None or not self.is_alive:
            return
        from odf_engine.spark.runtime.training import warm_up_job  # deferred: it imports PySpark

        try:
            with tempfile.TemporaryDirectory(prefix="warm-", dir=folder) as scratch:
                warm_up_job(self.session(), Path(scratch))
        except Exception:  # jobs run without the warm-up
            if not self._stopping and self.is_alive:
                _log.warning("the warm-up job of Spark failed", exc_info=True)

    def wait_until_exited(self) -> None:
        """Wait until Spark's process exits by itself, after it has written its files."""
        with self._lock:
            self._detach()
            if self._gateway is not None and self._gateway.process.stdin is not None:
                self._gateway.process.stdin.close()
                self._gateway.process.wait()

    def stop(self) -> None:
        """Stop Spark immediately; no file or process remains. It can be started again.

        A start in progress in another thread fails: its process is killed.
        """
        with self._launch:
            self._interrupted = True
            if self._launched is not None:
                self._launched.kill()
        with self._lock:
            self._clear()
            self._interrupted = False

    def _clear(self) -> None:
        """Kill Spark's process and remove its files."""
        with self._lock:
            self._stopping = True
            if self._gateway is not None:
                self._gateway.kill()
                self._gateway = None
            self._detach()
            if self._training is not None:
                self._training.stop()
                self._training = None
            for folder in (self._folder, self._sockets):
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
            self._folder = self._sockets = None
            self._detail = "stopped"
            self._stopping = False

    def _launch_spark(self, flags: Sequence[str]) -> None:
        assert self._java is not None
        self._folder = create_run_folder(self._scratch)
        self._sockets = _socket_folder(self._folder)
        settings = spark_settings(self._config, self._folder / "local", self._sockets)
        local = is_local(self._config.master)
        process = None
        try:
            process = launch(
                self._java,
                JvmOptions(
                    memory=self._config.driver_memory,
                    flags=flags,
                    extra_class_path=() if local else _cluster_class_path(),
                    environment={"SPARK_LOCAL_IP": "127.0.0.1"}
                    if is_on_this_machine(self._config.master)
                    else {},
                ),
                settings=settings,
                folder=self._folder,
                log=self._log,
            )
            with self._launch:
                self._launched = process
                if self._interrupted:
                    process.kill()
            # PySpark does not exchange frames of pandas here. The warning would go to a notebook.
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
            # Import PySpark while the JVM starts.
            import pyspark.sql

            self._gateway = connect(process, self._folder, self._log)
            self._attach(pyspark.sql.SparkSession)
        except BaseException as error:
            reason = _failure_reason(error)
            if process is not None:
                process.kill()
                process.wait()
            self._clear()
            if self._interrupted:
                raise SparkFailed("Spark was stopped while it was starting") from None
            if isinstance(error, OdfError) or not isinstance(error, Exception):
                raise
            raise SparkFailed(f"Spark did not start: {reason}", hint=f"see the log {self._log}") from error
        finally:
            with self._launch:
                self._launched = None

    def _check_executors(self) -> None:
        assert self._folder is not None
        try:
            check_executors(self.session(), self._folder, self._scratch.parent)
        except BaseException:
            self._clear()
            raise

    def _remove_functions(self, session: SparkSession) -> None:
        """Remove the functions that call arbitrary Java methods: a query must only read its inputs."""
        java_session: Any = session._jsparkSession
        registry = java_session.sessionState().functionRegistry()
        for name in self._removed_functions:
            registry.dropFunction(name)

    def function_names(self, functions: Sequence[str] = _REMOVED_FUNCTIONS) -> list[Any]:
        """Return the Java identifiers of built-in functions, by default of those that are removed."""
        assert self._context is not None
        java: Any = self._context._jvm
        identifier, option = java.org.apache.spark.sql.catalyst.FunctionIdentifier, java.scala.Option
        return [identifier(name, option.apply("builtin"), option.apply("system")) for name in functions]

    def _attach(self, session_type: type[SparkSession]) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        assert self._gateway is not None
        _silence_stderr()
        self._attached = True
        os.environ["PYSPARK_GATEWAY_PORT"] = str(self._gateway.port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = self._gateway.secret
        try:
            gateway: Any = launch_gateway()
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        _cache_lookups(gateway)
        with _restore_python_state():
            self._context = SparkContext(conf=SparkConf(_jvm=gateway.jvm), gateway=gateway)
        self._context.pythonExec = self._config.conf.get(_PYTHON) or sys.executable
        accumulators: Any = getattr(self._context, "_accumulatorServer", None)
        if accumulators is not None:
            # It would print a stack trace when its connection to Java closes.
            accumulators.handle_error = lambda *_: None
        self._root = session_type(self._context)
        self._removed_functions = self.function_names()

    def _detach(self) -> None:
        """Reset PySpark's global state, so that Spark can be started again in the same process."""
        context, self._context, self._root, self._removed_functions = self._context, None, None, []
        if not self._attached:
            return
        self._attached = False
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        accumulators = getattr(context, "_accumulatorServer", None)
        if accumulators is not None:
            # Its thread polls every half second; do not wait for it.
            threading.Thread(target=accumulators.shutdown, daemon=True).start()
        gateway: Any = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None

    def _describe(self, seconds: float, archive: Path | None) -> str:
        assert self._java is not None and self._context is not None
        archive_text = "with class-data archive" if archive is not None else "without class-data archive"
        return (
            f"Spark {self._context.version} on {self._config.master}, "
            f"Java {self._java.full_version} ({self._java.origin}), {archive_text}, ready in {seconds:.1f} s"
        )


def _cache_lookups(gateway: Any) -> None:
    """Cache the Java packages, classes and static methods that PySpark uses by name.

    PySpark would search for them in all jars at each use, also for parts of names like `org.apache.spark`.
    """
    # Deferred, as all imports of PySpark: they run while the JVM starts.
    from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

    class CachingClass(JavaClass):  # pyright: ignore[reportIncompatibleMethodOverride]
        def __getattr__(self, name: str) -> Any:
            member = super().__getattr__(name)
            if isinstance(member, JavaMember):  # the value of a static field may change
                setattr(self, name, member)
            return member

    class CachingPackage(JavaPackage):
        def __getattr__(self, name: str) -> Any:
            return cache(self, name, super().__getattr__(name))

    class CachingView(JVMView):
        def __getattr__(self, name: str) -> Any:
            return cache(self, name, super().__getattr__(name))

    def cache(owner: JavaPackage | JVMView, name: str, member: Any) -> Any:
        if isinstance(member, JavaPackage):
            member = CachingPackage(member._fqn, member._gateway_client, member._jvm_id)
        elif isinstance(member, JavaClass):
            member = CachingClass(member._fqn, member._gateway_client)
        else:
            return member
        setattr(owner, name, member)
        return member

    plain: Any = gateway.jvm
    gateway.jvm = CachingView(plain._gateway_client, plain._jvm_name, id=plain._id)


def _silence_stderr() -> None:
    """Suppress output of PySpark to standard error: errors are raised and reported once."""
    import py4j.java_gateway

    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Py4J reports a lost connection through the root logger.
    py4j.java_gateway.logging = logging.getLogger("py4j")  # pyright: ignore[reportAttributeAccessIssue]
    for name in QUERY_LOGGERS:
        logging.getLogger(name).disabled = True


class _restore_python_state:
    """Restores the module path and the handler of ctrl-c, which Spark's context changes."""

    def __enter__(self) -> None:
        self._path = list(sys.path)
        self._main = threading.current_thread() is threading.main_thread()
        self._handler = signal.getsignal(signal.SIGINT) if self._main else None

    def __exit__(self, *_: object) -> None:
        sys.path[:] = self._path
        if self._main:
            signal.signal(signal.SIGINT, self._handler)


def create_run_folder(scratch: Path) -> Path:
    """Create a folder for this process, and remove folders of processes that exited without cleanup."""
    ensure_folder(scratch)
    for old in scratch.glob("run-*"):
        owner = old.name.split("-")[1]
        if owner.isdigit() and not processes.is_process_running(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=scratch))


def _socket_folder(folder: Path) -> Path:
    """Create a private folder for sockets between Spark and Python. A socket path must be short."""
    preferred = folder / "sockets"
    if len(str(preferred)) <= _MAX_SOCKET_FOLDER:
        preferred.mkdir()
        return preferred
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime) if runtime and len(runtime) < 20 and os.access(runtime, os.W_OK) else Path("/tmp")
    user_folder = base / f"odf-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        user_folder.mkdir(mode=0o700)
    status = user_folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
        return create_run_folder(user_folder)
    return Path(tempfile.mkdtemp(prefix="odf-", dir=base))  # another user owns the name


def _rotate(log: Path) -> None:
    """Move the end of a long log to another file. Java appends to the log itself, which is emptied."""
    with contextlib.suppress(OSError, OdfError):  # no job fails because of its log
        if log.stat().st_size > _MAX_LOG:
            with open_file(log, "r+b") as file:
                file.seek(-_MAX_LOG, os.SEEK_END)
                replace_file(log.with_name(f"{log.name}.1"), file.read(_MAX_LOG))
                file.truncate(0)


def _cluster_class_path() -> list[str]:
    """Return the folders with cluster settings in the user's environment."""
    names = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
    return [folder for name in names if (folder := os.environ.get(name))]


def _failure_reason(error: BaseException) -> str:
    """Return the reason of a failed start. Java must still run: it holds the reason of its exceptions."""
    causes = throwable_chain(error)
    if causes and "stopped SparkContext" in causes[-1].message:
        return "the cluster stopped it because no executor started; see the logs of its workers"
    return clean_message(causes[-1].message if causes else str(error)) or type(error).__name__
