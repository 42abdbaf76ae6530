"""Runs foreign queries in an isolated engine process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

import odf_engine
from odf_engine.errors import NotTrusted, OdfError, SourceUnavailable
from odf_engine.files import open_file
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval, Sql, TransformRequest
from odf_engine.progress import Reporter
from odf_engine.query.execution import TableFiles
from odf_engine.settings import Config, SandboxConfig
from odf_engine.spark.runtime import class_data_archive
from odf_engine.spark.runtime.jvm import Java, find_java
from odf_engine.spark.runtime.spark_conf import is_local
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.transform.engines.contract import (
    Computed,
    Engine,
    QueryInput,
    RowProvenance,
    TransactionResult,
    ValidatedQuery,
)
from odf_engine.transform.engines.grpc_client import FileExchange, GrpcEngine, TookTooLong
from odf_engine.transform.engines.namespaces import (
    PROGRAMS,
    Limits,
    MountSandbox,
    Program,
    unavailable_reason,
)

_SERVER: Final = "odf_engine.transform.engines.grpc_server"
_START_SECONDS: Final = 120.0
_WATCH_SECONDS: Final = 0.5
_MIN_FREE: Final = 1 << 30
_MAX_PRINTED: Final = 16 << 20
_BLOCK: Final = 4096
_LAST_BYTES: Final = 1 << 16
_EXCHANGE: Final = Path("/exchange")  # what the engine calls the folder of its files
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store")
_SETTINGS: Final = (
    "alternatives", "group", "host.conf", "hosts", "java*", "ld.so.*", "localtime", "nsswitch.conf", "passwd"
)  # fmt: skip

T = TypeVar("T")


class Sandbox:
    """The engine for the queries of a dataset or proof. It starts with the first query and is then reused.

    Args:
        config: says what may be used (``sandbox``).
        cache: a folder for the files that go in and out; it is on the file system of the datasets, so
            that they need not be copied.
        log: what the engine prints is appended there.
        name: of the dataset, or of what else the queries are from, for errors.
        without: runs the queries where no sandbox can be had, if the configuration allows that.
        dataset: whether the queries are those of a dataset, which can be trusted.
    """

    def __init__(
        self, config: Config, cache: Path, log: Path, name: str, without: Engine, *, dataset: bool = True
    ) -> None:
        self._config = config
        self._cache = cache
        self._log = log
        self._name = name
        self._without = without
        self._dataset = dataset
        self._process: _Process | None = None
        self._starting = threading.Lock()
        self._kept = ExitStack()  # the process, and its folders

    def close(self) -> None:
        """Ends the engine at once, and leaves no file behind."""
        self._process = None
        self._kept.close()

    def execute(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :class:`odf_engine.transform.engines.contract.Engine`.

        Raises:
            NotTrusted: there is no sandbox here, and nobody has allowed to do without.
        """
        return self._asked(reporter, lambda engine: engine.execute(request, declared, reporter))

    def finish(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :meth:`execute`."""
        return self._asked(reporter, lambda engine: engine.finish(request, declared, reporter))

    def rebuild(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :meth:`execute`."""
        return self._asked(reporter, lambda engine: engine.rebuild(request, declared, reporter))

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> ValidatedQuery:
        """See :meth:`execute`."""
        return self._asked(Reporter(), lambda engine: engine.validate(transform, inputs, vocab, declared))

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> RowProvenance:
        """See :meth:`execute`."""
        return self._asked(reporter, lambda engine: engine.provenance(request, rows, reporter))

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> Computed:
        """See :meth:`execute`."""
        return self._asked(reporter, lambda engine: engine.compute_outcome(sql, tables, reporter))

    def _asked(self, reporter: Reporter, ask: Callable[[Engine], T]) -> T:
        with self._starting:
            engine = self._engine(reporter)
        try:
            return ask(engine)
        except TookTooLong as error:
            self.close()
            hint = "allow such queries more: odf config set sandbox.minutes N"
            raise TookTooLong(error.message, where=error.where, hint=hint) from None
        except SourceUnavailable:
            process = self._process
            if process is None or process.running:
                raise
            self.close()
            if process.exceeded is not None:
                raise process.exceeded from None
            raise OdfError(
                "the engine in the sandbox ended in the midst of its work" + process.last_words,
                hint=f"it may have needed more than sandbox.memory ({self._config.sandbox.memory})",
                where=str(self._log),
            ) from None

    def _engine(self, reporter: Reporter) -> Engine:
        if self._process is not None:
            return self._process.engine
        java = find_java(os.environ.get("ODF_JAVA"))
        with ExitStack() as folders:
            exchange = FileExchange(
                folders.enter_context(job_scratch_folder(self._cache, "sandbox")), _EXCHANGE
            )
            # The path of a socket must be short.
            sockets = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="odf-")))
            walls = MountSandbox(
                read={each: each for each in _readable(java)} | {_EXCHANGE / "in": exchange.inputs},
                write={
                    _EXCHANGE / "out": exchange.outputs,
                    _EXCHANGE / "scratch": exchange.scratch,
                    _EXCHANGE / "socket": sockets,
                },
                limits=_limits(self._config.sandbox),
            )
            program = self._program(walls)
            if program is None:
                reporter.log("there is no sandbox here: the query runs like one's own, as allowed", "warning")
                return self._without
            reporter.log(f"{self._name} is not trusted: its query runs in a sandbox ({program})")
            process = _Process(self._config, walls, program, java, exchange, sockets / "engine", self._log)
            folders.callback(process.end)
            process.wait(reporter)
            self._process, self._kept = process, folders.pop_all()
            return process.engine

    def _program(self, walls: MountSandbox) -> Program | None:
        """What shuts in here; None when nothing does, and that is allowed."""
        chosen = self._config.sandbox.program
        reasons: list[str] = []
        for program in PROGRAMS if chosen == "auto" else (chosen,):
            reason = unavailable_reason(program, walls)
            if reason is None:
                return program
            reasons.append(f"{program}: {reason}")
        if self._config.sandbox.allow_without:
            return None
        raise NotTrusted(
            f"{self._name} is not trusted, and there is no sandbox for its query ({'; '.join(reasons)})",
            hint="install bubblewrap; "
            + (f"or trust the dataset: odf trust {self._name}; " if self._dataset else "")
            + "or run all such queries like your own: odf config set sandbox.allowWithout true",
        )


class _Process:
    """The process of an engine that is shut in."""

    def __init__(
        self,
        config: Config,
        walls: MountSandbox,
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
            # It ends by itself when its standard input closes, which it does with this process.
            self._process = subprocess.Popen(
                walls.wrap_command(program, command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=_environment(java),
                start_new_session=True,
            )
        self._watch = Watch(self._process, walls.write.values(), (log, self._begin), config.sandbox)
        self._watch.start()

    @property
    def exceeded(self) -> OdfError | None:
        """The limit for which it was killed; None when it was not."""
        return self._watch.exceeded

    @property
    def running(self) -> bool:
        """Whether it still runs; one that is about to end gets a moment for it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """What it printed last, for a sentence."""
        with self._log.open("rb") as file:
            file.seek(max(self._begin, self._log.stat().st_size - _LAST_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
        shown = " / ".join(line.strip() for line in lines if line.strip() and "listens" not in line)
        return f": {shown[-400:]}" if shown else ""

    def wait(self, reporter: Reporter) -> None:
        """Waits until it answers.

        Raises:
            OdfError: it does not start.
            Cancelled: meanwhile.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not self._socket.exists():
            reporter.raise_if_cancelled()
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self.exceeded or OdfError(
                    f"the engine in the sandbox does not start{self.last_words}", where=str(self._log)
                )
            time.sleep(0.05)

    def end(self) -> None:
        """Kills it, and everything that it started."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._watch.join()


class Watch(threading.Thread):
    """Kills a process whose sandbox exceeds a limit that the kernel does not enforce; ends with the process.

    Args:
        process: started with a command of :meth:`MountSandbox.around`.
        folders: those that it may write, on disks of this machine.
        log: the file that it prints to, and where its output begins.
        config: the limits.

    Attributes:
        exceeded: the error that names the limit; None while all are kept.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        folders: Iterable[Path],
        log: tuple[Path, int],
        config: SandboxConfig,
    ) -> None:
        super().__init__(name="sandbox-watch", daemon=True)
        self._process = process
        self._folders = list(folders)
        self._log, self._begin = log
        self._config = config
        # Space of files that are deleted and still open is not seen in a folder.
        self._least_free = {each: min(_MIN_FREE, _free(each) // 2) for each in self._folders}
        self.exceeded: OdfError | None = None

    def run(self) -> None:
        """The thread itself."""
        while self._process.poll() is None:
            try:
                self.exceeded = self._found()
            except OSError as error:
                self.exceeded = _stopped(f"its limits cannot be checked: {error}", hint=None)
            if self.exceeded is not None:
                self._process.kill()
                self._process.wait()
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_WATCH_SECONDS)

    def _found(self) -> OdfError | None:
        disk, processes = self._config.disk, self._config.processes
        if _tasks(self._process.pid, processes) > processes:
            problem = f"it started more than sandbox.processes ({processes})"
            return _stopped(problem, hint="allow more: odf config set sandbox.processes NUMBER")
        if sum(map(_used, self._folders)) > _bytes(disk):
            problem = f"it used more than sandbox.disk ({disk})"
            return _stopped(problem, hint="allow more: odf config set sandbox.disk SIZE")
        if any(_free(folder) < least for folder, least in self._least_free.items()):
            return _stopped("the disk is almost full", hint="make room and try again")
        if self._log.stat().st_size - self._begin > _MAX_PRINTED:
            return _stopped(f"it printed more than {_MAX_PRINTED >> 20} MiB", hint=f"see {self._log}")
        return None


def _stopped(reason: str, hint: str | None) -> OdfError:
    return OdfError(f"the engine in the sandbox was stopped: {reason}", hint=hint)


def _used(folder: Path) -> int:
    """Bytes on disk of everything in a folder; each file counts as a block at least.

    Raises:
        OSError: a folder cannot be read: the process may hide files in it.
    """
    used = 0
    waiting = [folder]
    while waiting:
        with contextlib.suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for each in entries:
                with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                    used += max(each.stat(follow_symlinks=False).st_blocks * 512, _BLOCK)
                    if each.is_dir(follow_symlinks=False):
                        waiting.append(Path(each.path))
    return used


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _tasks(pid: int, most: int) -> int:
    """How many threads a process and its descendants have; some number above ``most`` if they have more."""
    count = 0
    waiting = [pid]
    while waiting and count <= most:
        with contextlib.suppress(OSError):  # it ended meanwhile
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                count += 1
                waiting += map(int, (task / "children").read_text().split())
    return count


def _limits(config: SandboxConfig) -> Limits:
    return Limits(
        memory=2 * _bytes(config.memory) + (1 << 30),  # Java needs more than its heap
        file=_bytes(config.disk),
        tmp=_bytes(config.tmp),
        processes=config.processes,
    )


def _bytes(size: str) -> int:
    """The bytes of a size such as ``64m`` or ``2g``."""
    return int(size[:-1]) << {"m": 20, "g": 30}[size[-1].lower()]


def _readable(java: Java) -> list[Path]:
    """What Python and Java consist of."""
    return [
        *map(Path, _SYSTEM),
        *(found for pattern in _SETTINGS for found in sorted(Path("/etc").glob(pattern))),
        *map(Path, dict.fromkeys((sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix))),
        *_packages(),
        java.home,
        class_data_archive.folder(),
    ]


def _packages() -> Iterator[Path]:
    """Where modules are; of a folder that is no such place by itself, this program's alone."""
    yield from (Path(each) for each in sys.path if Path(each).name in ("site-packages", "dist-packages"))
    yield Path(odf_engine.__path__[0])


def _environment(java: Java) -> dict[str, str]:
    """Nothing that is secret; the settings of Spark are not those of the workspace either."""
    kept = {name: os.environ[name] for name in ("LANG", "ODF_SPARK_ARCHIVE") if name in os.environ}
    return {
        **kept,
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/tmp",
        "TMPDIR": str(_EXCHANGE / "scratch"),
        "XDG_CACHE_HOME": str(class_data_archive.folder().parent.parent),
        "ODF_JAVA": str(java.home),
        "PYTHONPATH": str(Path(odf_engine.__path__[0]).parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
