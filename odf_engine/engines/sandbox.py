"""Runs queries of untrusted datasets in an isolated engine process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from odf_engine.base.config import Config, is_local
from odf_engine.base.files import open_file
from odf_engine.base.progress import Reporter
from odf_engine.engines.contract import Engine
from odf_engine.engines.forwarding_engine import ForwardingEngine, ResultT
from odf_engine.engines.grpc_client import EngineTimeout, FileExchange, GrpcEngine
from odf_engine.errors import OdfError, SourceUnavailable
from odf_engine.isolation.namespaces import MountSandbox, Program
from odf_engine.isolation.sandbox_process import (
    LimitWatch,
    find_program,
    kernel_limits,
    python_paths,
    sandbox_environment,
)
from odf_engine.metadata.model import Sql
from odf_engine.spark.runtime import class_data_archive
from odf_engine.spark.runtime.jvm import Java, find_java
from odf_engine.storage.scratch import job_scratch_folder

_SERVER: Final = "odf_engine.engines.grpc_server"
_START_SECONDS: Final = 120.0
_MAX_TAIL_BYTES: Final = 1 << 16
_EXCHANGE: Final = Path("/exchange")  # path of the file exchange folder in the engine


class Sandbox(ForwardingEngine):
    """The engine for the queries of an untrusted dataset or proof. It starts with the first query.

    Args:
        config: the limits (``sandbox``).
        cache: folder for input and output files, on the file system of the datasets, so that hard links work.
        log: file that receives the output of the engine.
        name: name of the dataset or other origin of the queries, for errors.
        fallback: runs the queries if no sandbox is available and the configuration allows that.
        dataset: whether the queries belong to a dataset, which can be trusted.

    Each request raises NotTrusted if no sandbox is available, and running without one is not allowed.
    """

    def __init__(
        self, config: Config, cache: Path, log: Path, name: str, fallback: Engine, *, dataset: bool = True
    ) -> None:
        self._config = config
        self._cache = cache
        self._log = log
        self._name = name
        self._fallback = fallback
        self._dataset = dataset
        self._process: _EngineProcess | None = None
        self._starting = threading.Lock()
        self._resources = ExitStack()  # the process and its folders

    def close(self) -> None:
        """Kill the engine and remove all files."""
        self._process = None
        self._resources.close()

    def _forward(self, query: Sql | None, reporter: Reporter, call: Callable[[Engine], ResultT]) -> ResultT:
        with self._starting:
            engine = self._start_engine(reporter)
        try:
            return call(engine)
        except EngineTimeout as error:
            self.close()
            hint = "increase the limit: odf config set sandbox.minutes N"
            raise EngineTimeout(error.message, where=error.where, hint=hint) from None
        except SourceUnavailable:
            process = self._process
            if process is None or process.is_running:
                raise
            self.close()
            if process.exceeded is not None:
                raise process.exceeded from None
            raise OdfError(
                "the engine in the sandbox exited before it finished" + process.last_output,
                hint=f"increase sandbox.memory ({self._config.sandbox.memory}) if it ran out of memory",
                where=str(self._log),
            ) from None

    def _start_engine(self, reporter: Reporter) -> Engine:
        if self._process is not None:
            return self._process.engine
        java = find_java(os.environ.get("ODF_JAVA"))
        with ExitStack() as folders:
            exchange = FileExchange(
                folders.enter_context(job_scratch_folder(self._cache, "sandbox")), _EXCHANGE
            )
            # A socket path must be short.
            sockets = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="odf-")))
            paths = (*python_paths(), java.home, class_data_archive.archive_folder())
            sandbox = MountSandbox(
                read={path: path for path in paths} | {_EXCHANGE / "in": exchange.inputs},
                write={
                    _EXCHANGE / "out": exchange.outputs,
                    _EXCHANGE / "scratch": exchange.scratch,
                    _EXCHANGE / "socket": sockets,
                },
                limits=kernel_limits(self._config.sandbox),
            )
            program = find_program(self._config.sandbox, sandbox, self._name, reporter, dataset=self._dataset)
            if program is None:
                return self._fallback
            process = _EngineProcess(
                self._config, sandbox, program, java, exchange, sockets / "engine", self._log
            )
            folders.callback(process.kill)
            process.wait_until_listening(reporter)
            self._process, self._resources = process, folders.pop_all()
            return process.engine


class _EngineProcess:
    """The process of a sandboxed engine."""

    def __init__(
        self,
        config: Config,
        sandbox: MountSandbox,
        program: Program,
        java: Java,
        exchange: FileExchange,
        socket: Path,
        log: Path,
    ) -> None:
        self._log = log
        self.engine = GrpcEngine(
            f"unix:{socket}", name="the sandbox", seconds=config.sandbox.minutes * 60, exchange=exchange
        )
        self._socket = socket
        command = [
            sys.executable, "-P", "-m", _SERVER,
            f"--socket={_EXCHANGE / 'socket' / socket.name}", f"--scratch={_EXCHANGE / 'scratch'}",
            f"--memory={config.sandbox.memory}",
        ]  # fmt: skip
        if is_local(config.spark.master):
            command.append(f"--master={config.spark.master}")
        with open_file(log, "ab") as output:
            self._begin = output.tell()
            # It exits when its standard input closes, which happens when this process exits.
            self._process = subprocess.Popen(
                sandbox.wrap_command(program, command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=_environment(java),
                start_new_session=True,
            )
        self._watch = LimitWatch(self._process, sandbox.write.values(), (log, self._begin), config.sandbox)
        self._watch.start()

    @property
    def exceeded(self) -> OdfError | None:
        """The exceeded limit that killed it, or None."""
        return self._watch.exceeded

    @property
    def is_running(self) -> bool:
        """Whether it still runs, after a short wait for a process that is about to exit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        return self._process.poll() is None

    @property
    def last_output(self) -> str:
        """The last output of the process, as suffix of an error message."""
        with self._log.open("rb") as file:
            file.seek(max(self._begin, self._log.stat().st_size - _MAX_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
        text = " / ".join(line.strip() for line in lines if line.strip() and "listens" not in line)
        return f": {text[-400:]}" if text else ""

    def wait_until_listening(self, reporter: Reporter) -> None:
        """Wait until the engine listens.

        Raises:
            OdfError: it does not start.
            Cancelled: the job was cancelled.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not self._socket.exists():
            reporter.raise_if_cancelled()
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self.exceeded or OdfError(
                    f"the engine in the sandbox did not start{self.last_output}", where=str(self._log)
                )
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the process and all of its descendants."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._watch.join()


def _environment(java: Java) -> dict[str, str]:
    """Return the environment of the engine, without the Spark settings of the workspace."""
    inherited = {
        name: os.environ[name]
        for name in ("LANG", "ODF_SPARK_ARCHIVE", "JAVA_TOOL_OPTIONS")
        if name in os.environ
    }
    return {
        **inherited,
        **sandbox_environment(_EXCHANGE / "scratch"),
        "XDG_CACHE_HOME": str(class_data_archive.archive_folder().parent.parent),
        "ODF_JAVA": str(java.home),
    }
