"""Engines in containers: the images of other ODF implementations, started for the queries of one job."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from shutil import rmtree
from threading import Lock
from typing import Final

import pyarrow as pa

from odf_engine.config import FetchConfig
from odf_engine.data.slices import TableFiles
from odf_engine.errors import InvalidManifest, OdfError, SourceUnavailable, Unsupported
from odf_engine.ingest.fetch.container import ContainerRuntime
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval, Sql, TransformRequest
from odf_engine.processes import is_process_running
from odf_engine.progress import Reporter
from odf_engine.transform.engines.contract import (
    ComputedResult,
    QueryInput,
    RowProvenance,
    TransactionResult,
    ValidatedQuery,
)
from odf_engine.transform.engines.grpc_client import FileExchange, GrpcEngine

CONTAINER: Final = "container"
"""Address of an engine that is started as a container; ``container:IMAGE`` sets the image."""
IMAGES: Final = {
    "spark": "ghcr.io/kamu-data/engine-spark:0.23.1-spark_3.5.0",
    "flink": "ghcr.io/kamu-data/engine-flink:0.18.2-flink_1.16.0-scala_2.12-java8",
    "datafusion": "ghcr.io/kamu-data/engine-datafusion:0.9.0",
    "risingwave": "ghcr.io/kamu-data/engine-risingwave:0.3.0",
}
"""Default images by the name of the engine."""
_SINGLE_REQUEST: Final = ("risingwave",)
"""Engines whose working folder must be empty: each request gets a new container."""
_FOLDER: Final = PurePosixPath("/opt/engine")
_PORT: Final = 2884
_LABEL: Final = "org.opendatafabric.workspace"
_NAME: Final = re.compile(r"odf-engine-(?P<pid>\d+)-[0-9a-f]+")
_PUBLISHED: Final = re.compile(r":(\d+)\s*$", re.MULTILINE)
_POLL_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 5
_LOG_LINES: Final = 5


class _Container:
    """A running container."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], engine: GrpcEngine) -> None:
        self.name, self.process, self.engine = name, process, engine


class ContainerEngine:
    """An engine in a container, started with the first request and stopped by :meth:`close`.

    The container has access to the files of one request only: they are linked or copied into a folder of the
    workspace's cache. Its port is published on the loopback address.

    Args:
        name: name of the engine in queries.
        address: :data:`CONTAINER`, or ``container:IMAGE``.
        config: the runtime, and the time limit for the start.
        odf: the ``.odf`` folder of the workspace.

    Raises:
        InvalidManifest: no image is known for this engine.
    """

    def __init__(self, name: str, address: str, config: FetchConfig, odf: Path) -> None:
        self._image = address.partition(":")[2] or IMAGES.get(name, "")
        if not self._image:
            raise InvalidManifest(
                f"no container image is known for the engine '{name}'",
                where=f"engines.{name}",
                hint=f"set the image: odf config set engines.{name} {CONTAINER}:IMAGE",
            )
        self._name, self._config = name, config
        self._folder = odf / "cache" / f"engine-{os.getpid()}-{secrets.token_hex(4)}"
        self._label = f"{_LABEL}={hashlib.sha256(os.fsencode(odf.resolve())).hexdigest()[:32]}"
        self._running: _Container | None = None
        self._runtime: ContainerRuntime | None = None
        self._lock = Lock()

    def close(self) -> None:
        """Stop the container."""
        with self._lock:
            self._stop()

    def execute(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See the engine contract. Raises SourceUnavailable if the container does not start."""
        with self._started(reporter) as engine:
            return engine.execute(request, declared, reporter)

    def finish(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See the engine contract."""
        with self._started(reporter) as engine:
            return engine.finish(request, declared, reporter)

    def recompute(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See the engine contract."""
        with self._started(reporter) as engine:
            return engine.recompute(request, declared, reporter)

    def rebuild(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See the engine contract."""
        with self._started(reporter) as engine:
            return engine.rebuild(request, declared, reporter)

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> ValidatedQuery:
        """See the engine contract."""
        with self._started(Reporter()) as engine:
            return engine.validate(transform, inputs, vocab, declared)

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> RowProvenance:
        """See the engine contract."""
        with self._started(reporter) as engine:
            return engine.provenance(request, rows, reporter)

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> ComputedResult:
        """See the engine contract."""
        with self._started(reporter) as engine:
            return engine.compute_outcome(sql, tables, reporter)

    # --- The container ----------------------------------------------------------------------------

    @contextmanager
    def _started(self, reporter: Reporter) -> Iterator[GrpcEngine]:
        """Return the engine in a running container, for one request at a time."""
        with self._lock:
            if self._running is not None and self._running.process.poll() is not None:
                self._stop()
            if self._running is None:
                try:
                    self._running = self._start(reporter)
                except BaseException:
                    rmtree(self._folder, ignore_errors=True)
                    raise
            try:
                yield self._running.engine
            except SourceUnavailable:
                self._stop()  # the connection is lost
                raise
            finally:
                if self._running is not None:
                    self._return_files(self._running.name)
                if self._name in _SINGLE_REQUEST:
                    self._stop()

    def _start(self, reporter: Reporter) -> _Container:
        reporter.phase("start engine")
        self._folder.mkdir(parents=True, mode=0o700)
        exchange = FileExchange(self._folder, _FOLDER, signed=True)
        exchange.outputs.chmod(0o777)  # for any user of the container; the parent folder is private
        purpose = f"the engine '{self._name}' is"
        runtime = self._runtime = ContainerRuntime.find(self._config, reporter, self._folder, purpose)
        if ":" in str(self._folder):
            raise Unsupported(
                "the path of the workspace contains a colon, which containers do not support",
                where=str(self._folder),
                hint="use a workspace whose path has no colon",
            )
        self._remove_leftovers(runtime)
        runtime.ensure_image(self._image)
        name = f"odf-engine-{os.getpid()}-{secrets.token_hex(6)}"
        reporter.log(f"starting {self._image}")
        log = self._folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(runtime.program, "run", "--rm", f"--name={name}", f"--label={self._label}"),
                    *("--pull=never", "--security-opt=no-new-privileges", f"--publish=127.0.0.1::{_PORT}"),
                    f"--volume={exchange.inputs}:{_FOLDER}/in:ro,Z",
                    f"--volume={exchange.outputs}:{_FOLDER}/out:Z",
                    *("--", self._image),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # ^C does not reach it
            )
        try:
            port = self._wait_until_ready(runtime, name, process, log, reporter)
        except BaseException:
            runtime.remove(name)
            _wait(process)
            raise
        address = f"grpc://127.0.0.1:{port}"
        return _Container(name, process, GrpcEngine(address, name=self._image, exchange=exchange))

    def _wait_until_ready(
        self,
        runtime: ContainerRuntime,
        name: str,
        process: subprocess.Popen[bytes],
        log: Path,
        reporter: Reporter,
    ) -> int:
        """Wait until the engine accepts connections; return its port on this machine.

        Raises:
            SourceUnavailable: the container ended, or does not respond within the time limit.
            Cancelled: the job was cancelled.
        """
        seconds = self._config.container_start_seconds
        deadline = time.monotonic() + seconds
        port = None
        while time.monotonic() < deadline:
            reporter.raise_if_cancelled()
            if process.poll() is not None:
                runtime.check_service(_last_lines(log))
                raise SourceUnavailable(
                    f"the container ended while it started: {_last_lines(log)}",
                    where=self._image,
                    hint="check that the image is one of an ODF engine",
                )
            port = port or _published_port(runtime.program, name)
            if port is not None and _accepts(port):
                return port
            time.sleep(_POLL_SECONDS)
        raise SourceUnavailable(
            f"the engine did not start within {seconds:g} s: {_last_lines(log)}",
            where=self._image,
            hint="set a longer time: odf config set fetch.containerStartSeconds SECONDS",
        )

    def _return_files(self, name: str) -> None:
        """Change the owner of the output files to this user: those of docker belong to root."""
        runtime = self._runtime
        if runtime is None or Path(runtime.program).name != "docker" or os.getuid() == 0:
            return
        owner = f"{os.getuid()}:{os.getgid()}"
        _run([runtime.program, "exec", name, "chown", "-Rf", owner, f"{_FOLDER}/out"])

    def _remove_leftovers(self, runtime: ContainerRuntime) -> None:
        """Remove containers of this workspace whose worker was killed."""
        listed = _run([runtime.program, "ps", "-a", f"--filter=label={self._label}", "--format={{.Names}}"])
        for name in listed.split():
            match = _NAME.fullmatch(name)
            if match is not None and not is_process_running(int(match["pid"])):
                runtime.remove(name)
        for folder in self._folder.parent.glob("engine-*-*"):
            pid = folder.name.split("-")[1]
            if pid.isdecimal() and not is_process_running(int(pid)):
                rmtree(folder, ignore_errors=True)

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None and self._runtime is not None:
            with suppress(OdfError):
                self._runtime.remove(running.name)
            _wait(running.process)
        rmtree(self._folder, ignore_errors=True)


def _run(command: list[str]) -> str:
    """Return the output of a command; empty if it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_STOP_SECONDS, check=False
        )
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
    return ""


def _published_port(program: str, name: str) -> int | None:
    match = _PUBLISHED.search(_run([program, "port", name, f"{_PORT}/tcp"]))
    return None if match is None else int(match[1])


def _accepts(port: int) -> bool:
    """Return whether a connection stays open. A proxy of the runtime closes it until the engine listens."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.settimeout(1)
            try:
                return bool(connection.recv(1))
            except TimeoutError:
                return True
    except OSError:
        return False


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    text = " ".join(line.strip() for line in lines[-_LOG_LINES:] if line.strip())
    return "".join(char if char.isprintable() else " " for char in text)[-500:] or "no output"
