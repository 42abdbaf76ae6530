"""Engines in containers: the images of other ODF implementations, started for the queries of one job."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from shutil import rmtree
from threading import Lock
from typing import Final

from odf_engine.base.config import FetchConfig
from odf_engine.base.processes import is_process_running
from odf_engine.base.progress import Reporter
from odf_engine.engines.contract import Engine, TransactionResult
from odf_engine.engines.forwarding_engine import ForwardingEngine, ResultT
from odf_engine.engines.grpc_client import FileExchange, GrpcEngine
from odf_engine.errors import InvalidManifest, OdfError, SourceUnavailable, Unsupported
from odf_engine.ingest.fetch.container import ContainerRuntime
from odf_engine.ingest.raw_query import RawQueryResult
from odf_engine.metadata.model import RawQueryRequest, Sql

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
_PORTS: Final = (5544, 2884)
"""The port in the specification, and the port of kamu's images."""
_LABEL: Final = "org.opendatafabric.workspace"
_NAME: Final = re.compile(r"odf-engine-(?P<pid>\d+)-[0-9a-f]+")
_PUBLISHED: Final = re.compile(r":(\d+)\s*$", re.MULTILINE)
_TAG: Final = re.compile(r"(?::\w[\w.-]{0,127})?(?:@\S+)?$", re.ASCII)
_PINNED: Final = re.compile(r"(?P<repository>\S+)@sha256:[0-9a-f]{64}")
_ADDRESSES: Final = "{{range .NetworkSettings.Networks}}{{.IPAddress}}/{{.IPPrefixLen}} {{end}}"
_POLL_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 5
_LOG_LINES: Final = 5


@dataclass(frozen=True)
class _Container:
    """A running container.

    Attributes:
        name: name of the container and of its network.
        process: the runtime's command.
        engine: the engine in it.
        image: the image as requested.
        pinned: the image with its digest, or None for an image that is in no registry.
    """

    name: str
    process: subprocess.Popen[bytes]
    engine: GrpcEngine
    image: str
    pinned: str | None


class ContainerEngine(ForwardingEngine):
    """An engine in a container, started with the first request and stopped by :meth:`close`.

    The container has access to the files of one request only: they are linked or copied into a folder of the
    workspace's cache. It is in its own network and cannot reach other machines.

    The image with its digest is the version of the engine. A query with such a version runs in this image, if
    it is from the repository of the configured one.

    Args:
        name: name of the engine in queries.
        address: :data:`CONTAINER`, or ``container:IMAGE``.
        config: the runtime, and the time limit for the start.
        odf: the ``.odf`` folder of the workspace.
        is_unpinned: run the configured image, whatever version a query requires.

    Each request raises SourceUnavailable if the container does not start.

    Raises:
        InvalidManifest: no image is known for this engine.
    """

    def __init__(
        self, name: str, address: str, config: FetchConfig, odf: Path, *, is_unpinned: bool = False
    ) -> None:
        self._image = address.partition(":")[2] or IMAGES.get(name, "")
        if not self._image:
            raise InvalidManifest(
                f"no container image is known for the engine '{name}'",
                where=f"engines.{name}",
                hint=f"set the image: odf config set engines.{name} {CONTAINER}:IMAGE",
            )
        self._name, self._config, self._is_unpinned = name, config, is_unpinned
        self._folder = odf / "cache" / f"engine-{os.getpid()}-{secrets.token_hex(4)}"
        self._label = f"{_LABEL}={hashlib.sha256(os.fsencode(odf.resolve())).hexdigest()[:32]}"
        self._running: _Container | None = None
        self._runtime: ContainerRuntime | None = None
        self._lock = Lock()

    def close(self) -> None:
        """Stop the container."""
        with self._lock:
            self._stop()

    def run_raw_query(self, request: RawQueryRequest, reporter: Reporter) -> RawQueryResult:
        """See :class:`odf_engine.ingest.raw_query.RawQueryEngine`."""
        version = self._version_of(request.transform)
        with self._started(reporter, version) as container:
            result = container.engine.run_raw_query(request, reporter)
            return replace(result, version=_version_that_ran(container, result.version, version))

    def _version_of(self, query: Sql | None) -> str | None:
        """Return the version of the engine that a query requires, or None for the configured image."""
        return None if query is None or self._is_unpinned else query.version

    def _forward(self, query: Sql | None, reporter: Reporter, call: Callable[[Engine], ResultT]) -> ResultT:
        version = self._version_of(query)
        with self._started(reporter, version) as container:
            result = call(container.engine)
            if isinstance(result, TransactionResult):
                return replace(result, version=_version_that_ran(container, result.version, version))
            return result

    @contextmanager
    def _started(self, reporter: Reporter, version: str | None) -> Iterator[_Container]:
        """Return a running container for a version of the engine, for one request at a time."""
        image = self._find_image(version)
        with self._lock:
            running = self._running
            if running is not None and (
                running.process.poll() is not None or image not in (running.image, running.pinned)
            ):
                self._stop()
            if self._running is None:
                try:
                    self._running = self._start(reporter, image)
                except BaseException:
                    rmtree(self._folder, ignore_errors=True)
                    raise
            try:
                yield self._running
            except SourceUnavailable:
                self._stop()  # the connection is lost
                raise
            finally:
                if self._running is not None:
                    self._return_files(self._running.name)
                if self._name in _SINGLE_REQUEST:
                    self._stop()

    def _find_image(self, version: str | None) -> str:
        """Return the image for a version of the engine.

        Raises:
            Unsupported: the version is an image of another repository, which must not run unasked.
        """
        match = _PINNED.fullmatch(version or "")
        if version is None or match is None:
            return self._image
        if match["repository"] != _repository(self._image):
            raise Unsupported(
                f"the query is for the image {version}, but the engine's image is {self._image}",
                where=f"engines.{self._name}",
                hint=f"use its image: odf config set engines.{self._name} {CONTAINER}:{version}",
            )
        return version

    def _start(self, reporter: Reporter, image: str) -> _Container:
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
        runtime.ensure_image(image)
        pinned = _pin(runtime.program, image)
        name = f"odf-engine-{os.getpid()}-{secrets.token_hex(6)}"
        reporter.log(f"starting {pinned or image}")
        self._create_network(runtime, name)
        log = self._folder / "log"
        process = None
        try:
            process = self._run_image(runtime.program, name, pinned or image, exchange, log)
            host, port = self._wait_until_ready(runtime, name, process, log, reporter)
        except BaseException:
            self._remove(runtime, name)
            if process is not None:
                _wait(process)
            raise
        engine = GrpcEngine(f"grpc://{host}:{port}", name=image, exchange=exchange)
        return _Container(name, process, engine, image, pinned)

    def _create_network(self, runtime: ContainerRuntime, name: str) -> None:
        """Create a network without a route to other machines.

        Raises:
            SourceUnavailable: the runtime cannot create it.
        """
        options = ["--internal", f"--label={self._label}"]
        created = runtime.run_command(["network", "create", *options, "--", name], None, "debug")
        if created.code != 0:
            runtime.check_service(created.remarks)
            raise SourceUnavailable(
                f"cannot create a network for the container: {created.remarks}", where=self._image
            )

    def _run_image(
        self, program: str, name: str, image: str, exchange: FileExchange, log: Path
    ) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                [
                    *(program, "run", "--rm", f"--name={name}", f"--label={self._label}"),
                    *("--pull=never", "--security-opt=no-new-privileges", f"--network={name}"),
                    *(f"--publish=127.0.0.1::{port}" for port in _PORTS),
                    f"--volume={exchange.inputs}:{_FOLDER}/in:ro,Z",
                    f"--volume={exchange.outputs}:{_FOLDER}/out:Z",
                    *("--", image),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # ^C does not reach it
            )

    def _wait_until_ready(
        self,
        runtime: ContainerRuntime,
        name: str,
        process: subprocess.Popen[bytes],
        log: Path,
        reporter: Reporter,
    ) -> tuple[str, int]:
        """Wait until the engine accepts connections; return its host and port.

        Raises:
            SourceUnavailable: the container ended, or does not respond within the time limit.
            Cancelled: the job was cancelled.
        """
        seconds = self._config.container_start_seconds
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            reporter.raise_if_cancelled()
            if process.poll() is not None:
                runtime.check_service(_last_lines(log))
                raise SourceUnavailable(
                    f"the container ended while it started: {_last_lines(log)}",
                    where=self._image,
                    hint="check that the image is one of an ODF engine",
                )
            for host, port in _addresses(runtime.program, name):
                if _accepts(host, port):
                    return host, port
            time.sleep(_POLL_SECONDS)
        raise SourceUnavailable(
            f"the engine did not start within {seconds:g} s: {_last_lines(log)}",
            where=self._image,
            hint="set a longer time: odf config set fetch.containerStartSeconds SECONDS",
        )

    def _return_files(self, name: str) -> None:
        """Change the owner of the output files to this user: docker's files belong to root."""
        runtime = self._runtime
        if runtime is None or Path(runtime.program).name != "docker" or os.getuid() == 0:
            return
        owner = f"{os.getuid()}:{os.getgid()}"
        _run([runtime.program, "exec", name, "chown", "-Rf", owner, f"{_FOLDER}/out"])

    def _remove_leftovers(self, runtime: ContainerRuntime) -> None:
        """Remove containers and networks of this workspace whose worker was killed."""
        mine = f"--filter=label={self._label}"
        listed = _run([runtime.program, "ps", "-a", mine, "--format={{.Names}}"])
        listed += _run([runtime.program, "network", "ls", mine, "--format={{.Name}}"])
        for name in sorted(set(listed.split())):
            match = _NAME.fullmatch(name)
            if match is not None and not is_process_running(int(match["pid"])):
                self._remove(runtime, name)
        for folder in self._folder.parent.glob("engine-*-*"):
            pid = folder.name.split("-")[1]
            if pid.isdecimal() and not is_process_running(int(pid)):
                rmtree(folder, ignore_errors=True)

    def _remove(self, runtime: ContainerRuntime, name: str) -> None:
        """Remove a container and its network. Errors are ignored."""
        with suppress(OdfError):
            runtime.remove(name)
        _run([runtime.program, "network", "rm", name])

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None and self._runtime is not None:
            self._remove(self._runtime, running.name)
            _wait(running.process)
        rmtree(self._folder, ignore_errors=True)


def _version_that_ran(container: _Container, reported: str | None, required: str | None) -> str | None:
    """Return the version of an engine: its image, unless the engine or the query has another one.

    Args:
        container: the container that ran the query.
        reported: version that the engine reports, or None if it reports none.
        required: version that the query requires, or None.
    """
    return container.pinned if reported is None and required in (None, container.pinned) else reported


def _run(command: list[str]) -> str:
    """Return the output of a command, or "" if it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_STOP_SECONDS, check=False
        )
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
    return ""


def _repository(image: str) -> str:
    """Return the name of an image without tag and digest."""
    return _TAG.sub("", image)


def _pin(program: str, image: str) -> str | None:
    """Return an image with its digest, or None if it is in no registry."""
    if _PINNED.fullmatch(image):
        return image
    shown = _run(
        [program, "image", "inspect", "--format", "{{range .RepoDigests}}{{.}} {{end}}", "--", image]
    )
    repository = _repository(image)
    digests = [digest for digest in shown.split() if _PINNED.fullmatch(digest)]
    # Docker omits the registry and folder of its own images, podman does not.
    same = [digest for digest in digests if f"/{_repository(digest)}".endswith(f"/{repository}")] or digests
    return f"{repository}@{same[0].partition('@')[2]}" if same else None


def _addresses(program: str, name: str) -> list[tuple[str, int]]:
    """Return the hosts and ports where a container may listen.

    Docker publishes no ports of an internal network, and podman does only without root. This machine then is
    in the network of the container.
    """
    published = [("127.0.0.1", int(port)) for port in _PUBLISHED.findall(_run([program, "port", name]))]
    inspected = _run([program, "inspect", "--format", _ADDRESSES, name]).split()
    hosts = [host for address in inspected if (host := _direct_host(address)) is not None]
    return [*published, *((host, port) for host in hosts for port in _PORTS)]


def _direct_host(text: str) -> str | None:
    """Return the host of an address with prefix length if this machine is in its network.

    Otherwise another machine could have the address.
    """
    try:
        address = ipaddress.IPv4Interface(text)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address.ip), _PORTS[0]))
            own = ipaddress.IPv4Address(probe.getsockname()[0])
    except (ValueError, OSError):
        return None
    return str(address.ip) if own in address.network else None


def _accepts(host: str, port: int) -> bool:
    """Return whether a connection stays open. A proxy of the runtime closes it until the engine listens."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
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
