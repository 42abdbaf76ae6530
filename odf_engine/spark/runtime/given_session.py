"""Jobs on a Spark session that the caller started, such as in a notebook."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from odf_engine.errors import Unsupported, UsageError
from odf_engine.spark.runtime.jvm import SparkFailed
from odf_engine.spark.runtime.session import QUERY_LOGGERS, SparkRuntime, create_run_folder
from odf_engine.spark.runtime.spark_conf import (
    DEFAULTS,
    FIXED,
    SparkSettings,
    check_executors,
    check_fixed_settings,
    is_application_ended,
    is_local,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OTHER_SPARK: Final = "or let the worker run the jobs: odf.open(path, in_process=False)"
_IRRELEVANT: Final = frozenset({
    # Every session has `spark.sql.leafNodeDefaultParallelism`, which takes precedence in queries.
    "spark.default.parallelism",
    # A limit: a larger result is an error, not another result.
    "spark.driver.maxResultSize",
})  # fmt: skip
"""Fixed settings of Spark's start that do not change results."""
_EXTENSIONS: Final = "spark.sql.extensions"
_XML_PROPERTY: Final = "javax.xml.accessExternalDTD"
_XML_FUNCTIONS: Final = (
    "xpath", "xpath_boolean", "xpath_double", "xpath_float", "xpath_int", "xpath_long", "xpath_number",
    "xpath_short", "xpath_string",
)  # fmt: skip
"""Functions that read files named by XML, unless a flag of the JVM forbids that."""
_FILE_SYSTEM: Final = {
    # See DEFAULTS. File systems are cached by scheme alone: the cached one may write checksum files.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
    "fs.defaultFS": "file:///",
}


class GivenSpark(SparkRuntime):
    """A Spark session of the caller. Jobs use new sessions of it with the required settings.

    The settings, views and functions of the given session stay as they are, and do not apply to jobs. Results
    are those of a Spark that the engine starts. ``master`` and ``driver_memory`` of the configuration do not
    apply.

    Args:
        session: the session.
        config: further settings; those that Spark reads at its start do not apply.
        cache_dir: folder for temporary files.

    Raises:
        UsageError: the session was started with a setting that changes results, or the configuration changes
            a fixed setting.
        Unsupported: a session of Spark Connect, or of another version than the installed PySpark.
        SparkFailed: the session was stopped.
    """

    def __init__(self, session: SparkSession, config: SparkSettings, cache_dir: Path) -> None:
        super().__init__(config, cache_dir.parent / "spark.log", cache_dir)
        check_fixed_settings(config.conf)
        _check_kind(session)
        self._root, self._context = session, session.sparkContext
        self._check_running()
        _check_start_settings(session, config.conf)
        self._settings = {
            **{name: value for name, value in DEFAULTS.items() if name.startswith("spark.sql.")},
            **{name: value for name, value in config.conf.items() if name.startswith("spark.sql.")},
            **FIXED,
        }
        self._master = str(self._context.master)
        self._checked = is_local(self._master)
        self._removed_functions = [*self.function_names(), *self._unsafe_functions()]
        self._detail = f"Spark {session.version} on {self._master}, started by the caller"

    @property
    def is_alive(self) -> bool:
        """Whether the caller has not stopped it."""
        context = self._context
        # PySpark removes the Java context when it stops.
        return context is not None and context._jsc is not None and not is_application_ended(context)

    @property
    def pid(self) -> int | None:
        """None: its process belongs to the caller."""
        return None

    def start(self) -> None:
        """Check that the executors of a cluster can read and write files in the workspace; once.

        Raises:
            SparkFailed: they cannot, or the session was stopped.
        """
        self._check_running()
        with self._lock:
            if self._checked:
                return
            folder = create_run_folder(self._scratch)
            try:
                check_executors(self.session(), folder, self._scratch.parent)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            self._checked = True

    def session(self) -> SparkSession:
        """Return a new session for one job.

        Raises:
            SparkFailed: the caller has stopped Spark.
        """
        self._check_running()
        session = super().session()
        conf = session.conf
        inherited: Mapping[str, str] = conf.getAll
        for name in inherited:
            # Set when Spark was started. A name that cannot be changed cannot be unset either.
            if name.startswith("spark.sql.") and name not in self._settings:
                with suppress(Exception):
                    conf.unset(name)
        for name, value in {**self._settings, **_FILE_SYSTEM}.items():
            if name in _FILE_SYSTEM or conf.isModifiable(name):
                conf.set(name, value)
        return session

    @contextmanager
    def job(self) -> Iterator[None]:
        """Hide a job in the block from the caller.

        The active session, which creating a frame changes, is restored. PySpark does not log errors of
        queries as JSON to standard error: they are raised.
        """
        from pyspark.sql import SparkSession

        before = SparkSession._activeSession
        loggers = [logging.getLogger(name) for name in QUERY_LOGGERS]
        disabled = [logger.disabled for logger in loggers]
        for logger in loggers:
            logger.disabled = True
        try:
            yield
        finally:
            for silenced, was in zip(loggers, disabled, strict=True):
                silenced.disabled = was
            SparkSession._activeSession = before
            if before is not None and self.is_alive:
                java: Any = before._jvm
                java.org.apache.spark.sql.classic.SparkSession.setActiveSession(before._jsparkSession)

    def stop(self) -> None:
        """Do nothing: the caller stops it."""

    def _check_running(self) -> None:
        if not self.is_alive:
            raise SparkFailed(
                "the given Spark session was stopped", hint="open the workspace with a running session"
            )

    def _unsafe_functions(self) -> list[Any]:
        """Return the functions that read files, unless the flags of all JVMs forbid that."""
        context: Any = self._context
        driver = context._jvm.java.lang.System.getProperty(_XML_PROPERTY)
        flags = [
            context.getConf().get(f"spark.executor.{name}JavaOptions", "") for name in ("default", "extra")
        ]
        executors = is_local(self._master) or any(f"-D{_XML_PROPERTY}=" in flag for flag in flags)
        return [] if driver == "" and executors else self.function_names(_XML_FUNCTIONS)


def _check_kind(session: object) -> None:
    from pyspark import __version__
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession) or getattr(session, "_jsparkSession", None) is None:
        raise Unsupported(
            f"not a Spark session with a JVM of this process: {type(session).__module__}",
            hint=f"create it with SparkSession.builder.master(...), {_OTHER_SPARK}",
        )
    if session.sparkContext._jsc is not None and session.version != __version__:
        raise Unsupported(
            f"the session is Spark {session.version}, PySpark is {__version__}",
            hint=f"unset SPARK_HOME, {_OTHER_SPARK}",
        )


def _check_start_settings(session: SparkSession, configured: Mapping[str, str]) -> None:
    """Check the settings that cannot be set for one session.

    Raises:
        UsageError: one differs from the required value.
    """
    required = {
        **{name: value for name, value in FIXED.items() if name not in _IRRELEVANT},
        _EXTENSIONS: configured.get(_EXTENSIONS, ""),
    }
    for name, value in required.items():
        if session.conf.isModifiable(name):
            continue
        actual = str(session.conf.get(name, value) or "")
        if actual != value:
            wanted = f"with {name}={value}" if value else f"without {name}"
            raise UsageError(
                f"the given Spark session was started with {name}={actual}, which can change results",
                hint=f"start it {wanted}, {_OTHER_SPARK}",
            )
