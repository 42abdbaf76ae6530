"""Runs queries of untrusted datasets in an isolated engine process."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import odf_engine
from odf_engine.base.config import Config, SandboxConfig, parse_size
from odf_engine.base.files import open_file
from odf_engine.base.progress import Reporter
from odf_engine.engines.contract import Engine
from odf_engine.engines.forwarding_engine import ForwardingEngine, ResultT
from odf_engine.engines.grpc_client import EngineTimeout, FileExchange, GrpcEngine
from odf_engine.engines.namespaces import (
    PROGRAMS,
    MountSandbox,
    Program,
    SandboxLimits,
    unavailable_reason,
)
from odf_engine.errors import NotTrusted, OdfError, SourceUnavailable
from odf_engine.metadata.model import Sql
from odf_engine.spark.runtime import class_data_archive
from odf_engine.spark.runtime.jvm import Java, find_java
from odf_engine.spark.runtime.spark_conf import is_local
from odf_engine.storage.scratch import job_scratch_folder

_SERVER: Final = "odf_engine.engines.grpc_server"
_START_SECONDS: Final = 120.0
_WATCH_SECONDS: Final = 0.5
_MIN_FREE_BYTES: Final = 1 << 30
_MAX_OUTPUT_BYTES: Final = 16 << 20
_BLOCK_BYTES: Final = 4096
_MAX_TAIL_BYTES: Final = 1 << 16
_EXCHANGE: Final = Path("/exchange")  # path of the file exchange folder in the engine
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store")
_SETTINGS: Final = (
    "alternatives", "group", "host.conf", "hosts", "java*", "ld.so.*", "localtime", "nsswitch.conf", "passwd"
)  # fmt: skip


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


def find_program(
    config: SandboxConfig, sandbox: MountSandbox, name: str, reporter: Reporter, *, dataset: bool
) -> Program | None:
    """Return the program that creates a sandbox, or None if none is available and that is allowed.

    Args:
        config: the sandbox settings.
        sandbox: the sandbox.
        name: name of the dataset or other origin of the queries, for errors.
        reporter: receives how the query runs.
        dataset: whether the queries belong to a dataset, which can be trusted.

    Raises:
        NotTrusted: none is available.
    """
    reasons: list[str] = []
    for program in PROGRAMS if config.program == "auto" else (config.program,):
        reason = unavailable_reason(program, sandbox)
        if reason is None:
            reporter.log(f"{name} is untrusted: its query runs in a sandbox ({program})")
            return program
        reasons.append(f"{program}: {reason}")
    if config.allow_without:
        reporter.log("no sandbox is available: the query runs without one (sandbox.allowWithout)", "warning")
        return None
    raise NotTrusted(
        f"{name} is untrusted, and no sandbox is available for its query ({'; '.join(reasons)})",
        hint="install bubblewrap; "
        + (f"or run odf trust {name}; " if dataset else "")
        + "or run all untrusted queries without a sandbox: odf config set sandbox.allowWithout true",
    )


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


class LimitWatch(threading.Thread):
    """Kills a process whose sandbox exceeds a limit that the kernel does not enforce.

    Args:
        process: started with a command of :meth:`MountSandbox.wrap_command`.
        folders: its writable folders on disks of this machine.
        log: log file of the process, and the offset of its output.
        config: the limits.
        timed: whether ``sandbox.minutes`` limits the duration of the process.

    Attributes:
        exceeded: error for the exceeded limit; None otherwise.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        folders: Iterable[Path],
        log: tuple[Path, int],
        config: SandboxConfig,
        *,
        timed: bool = False,
    ) -> None:
        super().__init__(name="sandbox-watch", daemon=True)
        self._process = process
        self._folders = list(folders)
        self._log, self._begin = log
        self._config = config
        self._deadline = time.monotonic() + config.minutes * 60 if timed else math.inf
        # The folder does not show the space of files that are deleted but open.
        self._least_free = {
            folder: min(_MIN_FREE_BYTES, _free_bytes(folder) // 2) for folder in self._folders
        }
        self.exceeded: OdfError | None = None

    def run(self) -> None:
        """Check the limits until the process exits."""
        while self._process.poll() is None:
            try:
                self.exceeded = self._find_exceeded()
            except OSError as error:
                self.exceeded = _stopped_error(f"its limits cannot be checked: {error}", hint=None)
            if self.exceeded is not None:
                self._process.kill()
                self._process.wait()
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_WATCH_SECONDS)

    def _find_exceeded(self) -> OdfError | None:
        disk, processes = self._config.disk, self._config.processes
        if time.monotonic() > self._deadline:
            problem = f"it ran longer than sandbox.minutes ({self._config.minutes:g})"
            return _stopped_error(problem, hint="increase the limit: odf config set sandbox.minutes N")
        if _count_threads(self._process.pid, processes) > processes:
            problem = f"it started more than sandbox.processes ({processes})"
            return _stopped_error(problem, hint="increase the limit: odf config set sandbox.processes NUMBER")
        if sum(map(_disk_usage, self._folders)) > parse_size(disk):
            problem = f"it used more than sandbox.disk ({disk})"
            return _stopped_error(problem, hint="increase the limit: odf config set sandbox.disk SIZE")
        if any(_free_bytes(folder) < min_free for folder, min_free in self._least_free.items()):
            return _stopped_error("the disk is almost full", hint="free disk space and try again")
        if self._log.stat().st_size - self._begin > _MAX_OUTPUT_BYTES:
            return _stopped_error(
                f"it printed more than {_MAX_OUTPUT_BYTES >> 20} MiB", hint=f"see the log {self._log}"
            )
        return None


def _stopped_error(reason: str, hint: str | None) -> OdfError:
    return OdfError(f"the engine in the sandbox was stopped: {reason}", hint=hint)


def _disk_usage(folder: Path) -> int:
    """Return the disk usage of a folder in bytes; each file counts as one block at least.

    Raises:
        OSError: a folder is unreadable; the process could hide files in it.
    """
    used = 0
    pending = [folder]
    while pending:
        with contextlib.suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    used += max(entry.stat(follow_symlinks=False).st_blocks * 512, _BLOCK_BYTES)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
    return used


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _count_threads(pid: int, limit: int) -> int:
    """Return the number of threads of a process and its descendants. Counting stops above ``limit``."""
    count = 0
    pending = [pid]
    while pending and count <= limit:
        with contextlib.suppress(OSError):  # exited since it was listed
            for task in Path(f"/proc/{pending.pop()}/task").iterdir():
                count += 1
                pending += map(int, (task / "children").read_text().split())
    return count


def kernel_limits(config: SandboxConfig) -> SandboxLimits:
    """Return the limits of each process in a sandbox."""
    return SandboxLimits(
        memory=2 * parse_size(config.memory) + (1 << 30),  # Java needs more than its heap
        file=parse_size(config.disk),
        tmp=parse_size(config.tmp),
        processes=config.processes,
    )


def python_paths() -> list[Path]:
    """Return the paths of the system, of Python and of its packages, which a sandbox can read."""
    return [
        *map(Path, _SYSTEM),
        *(path for pattern in _SETTINGS for path in sorted(Path("/etc").glob(pattern))),
        *map(Path, dict.fromkeys((sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix))),
        *(Path(folder) for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")),
        Path(odf_engine.__path__[0]),  # of a source checkout, only this program's package
    ]


def sandbox_environment(scratch: Path) -> dict[str, str]:
    """Return the environment of a sandboxed process, without secrets."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/tmp",
        "TMPDIR": str(scratch),
        "PYTHONPATH": str(Path(odf_engine.__path__[0]).parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


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
