"""Fetches the batches that an OCI container prints."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_engine.base.config import FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, InvalidManifest, SourceUnavailable, Unsupported
from odf_engine.ingest.fetch.model import ETAG, LAST_MODIFIED, SOURCE_NAME, FetchContext, Payload
from odf_engine.ingest.prep_step import CommandOutput, CommandResult, run_command
from odf_engine.metadata.model import Container, SourceState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.environment import resolve_variable

BATCH_SIZE: Final = 10_000
"""Preferred number of rows in a batch; images may ignore it, and definitions may replace it."""
_OUT: Final = "/opt/odf/out"
_ETAG, _LAST_MODIFIED, _HAS_MORE = "new-etag", "new-last-modified", "new-has-more-data"
_MAX_STATE: Final = 4096
_MAX_PROCESSES: Final = 512
_KILL_SECONDS: Final = 10
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE: Final = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?/)?{_PART}(?:/{_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@[\w+.-]+:[0-9a-f]{32,})?",
    re.ASCII,
)
_NO_SERVICE: Final = re.compile(r"cannot connect to|daemon running|\.sock\b|unable to connect", re.IGNORECASE)


@dataclass(frozen=True)
class _Batch:
    path: Path
    state: SourceState | None
    has_more: bool


def fetch_container(step: Container, context: FetchContext) -> Iterator[Payload]:
    """Yield the output of a container since ``context.state``, one payload per batch.

    Raises:
        Unsupported: no container runtime is installed.
        SourceUnavailable: the runtime fails, the image is missing, or the container failed.
        BadData: the files of the container are invalid.
        InvalidManifest: the name of the image or of a variable is invalid.
        Cancelled: the container was killed.
    """
    runtime = ContainerRuntime.find(context.config, context.reporter, context.job)
    command = _command(step)
    variables = _variables(step, context)
    runtime.ensure_image(step.image)
    state, number = context.state, 1
    while True:
        name = step.image if number == 1 else f"{step.image}, batch {number}"
        with tempfile.TemporaryDirectory(
            dir=context.job, prefix="container-", ignore_cleanup_errors=True
        ) as folder:
            batch = _run(runtime, Path(folder), name, command, {**variables, **_state_variables(state)})
            if batch.state is not None and context.redact(batch.state.value) != batch.state.value:
                raise BadData(
                    "the new state of the container contains the value of a variable, which is not stored",
                    where=name,
                    hint="write a state without secrets",
                )
            if not _is_new(batch, state, name):
                context.reporter.log(f"{name}: no new data")
                return
            yield Payload(batch.path, name, batch.state, event_time=None)
        if not batch.has_more:
            return
        state, number = batch.state, number + 1


def _is_new(batch: _Batch, before: SourceState | None, name: str) -> bool:
    has_new_state = batch.state is not None and batch.state != before
    if batch.has_more and not has_new_state:
        raise BadData(
            "the container reports more data, but wrote no new state",
            where=name,
            hint="write the state to $ODF_NEW_ETAG_PATH or $ODF_NEW_LAST_MODIFIED_PATH",
        )
    return has_new_state or batch.path.stat().st_size > 0


def _run(
    runtime: ContainerRuntime, folder: Path, name: str, command: list[str], variables: Mapping[str, str]
) -> _Batch:
    out = folder / "out"
    out.mkdir()
    out.chmod(0o777)  # for any user of the container; the parent folder is private
    data = folder / "data"
    runtime.run(name, command, variables, out, data)
    return _Batch(data, _state(out, name), _has_more(out, name))


def _command(step: Container) -> list[str]:
    """Return the part of the command line that the definition determines: entry point, image, arguments."""
    if not _IMAGE.fullmatch(step.image):
        raise InvalidManifest(f"invalid name of a container image: '{step.image}'", where="fetch.image")
    first, *rest = step.command or [""]
    entry = [f"--entrypoint={first}"] if first else []
    return [*entry, "--", step.image, *rest, *(step.args or ())]


def _variables(step: Container, context: FetchContext) -> dict[str, str]:
    variables = {"ODF_BATCH_SIZE": str(BATCH_SIZE)}
    for variable in step.env or ():
        if not _VARIABLE.fullmatch(variable.name):
            raise InvalidManifest(f"invalid name of a variable: '{variable.name}'", where="fetch.env")
        if variable.value is None:
            value = resolve_variable(variable.name, context.environment, context.allowed, context.name)
        else:
            value = context.substitute_variables(variable.value)
        if any(char in value for char in "\n\r\0"):
            raise InvalidManifest(
                f"variable {variable.name}: line breaks are not supported",
                where="fetch.env",
            )
        variables[variable.name] = value
    return {
        **variables,
        "ODF_NEW_ETAG_PATH": f"{_OUT}/{_ETAG}",
        "ODF_NEW_LAST_MODIFIED_PATH": f"{_OUT}/{_LAST_MODIFIED}",
        "ODF_NEW_HAS_MORE_DATA_PATH": f"{_OUT}/{_HAS_MORE}",
    }


def _state_variables(state: SourceState | None) -> dict[str, str]:
    names = {ETAG: "ODF_ETAG", LAST_MODIFIED: "ODF_LAST_MODIFIED"}
    return {names[state.kind]: state.value} if state is not None and state.kind in names else {}


def _state(out: Path, name: str) -> SourceState | None:
    if etag := _read(out / _ETAG, name):
        return SourceState(SOURCE_NAME, ETAG, etag)
    if modified := _read(out / _LAST_MODIFIED, name):
        try:
            return SourceState(SOURCE_NAME, LAST_MODIFIED, str(Timestamp.parse(modified)))
        except ValueError:
            raise BadData(
                f"the container wrote an invalid modification time: '{modified}'",
                where=name,
                hint="use the format of RFC 3339, such as 2026-01-31T12:00:00Z",
            ) from None
    return None


def _has_more(out: Path, name: str) -> bool:
    text = _read(out / _HAS_MORE, name)
    return text is not None and text.lower() not in ("0", "no", "false")


def _read(path: Path, name: str) -> str | None:
    """Return the text of a file that a container wrote. Symbolic links are not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadData(f"{path.name} cannot be read: {error.strerror}", where=name) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadData(f"{path.name} is not a regular file", where=name)
        data = os.read(descriptor, _MAX_STATE + 1)
    finally:
        os.close(descriptor)
    if len(data) > _MAX_STATE:
        raise BadData(f"{path.name} has more than {_MAX_STATE:,} bytes", where=name)
    try:
        return data.decode().strip()
    except UnicodeDecodeError:
        raise BadData(f"{path.name} is not UTF-8 text", where=name) from None


@dataclass(frozen=True)
class ContainerRuntime:
    """The container runtime: podman, docker, or a program with the same commands."""

    program: str
    config: FetchConfig
    reporter: Reporter
    job: Path

    @classmethod
    def find(
        cls, config: FetchConfig, reporter: Reporter, job: Path, purpose: str = "the source is"
    ) -> ContainerRuntime:
        """Return the configured runtime.

        Args:
            config: names the runtime.
            reporter: receives the output of its commands.
            job: folder for temporary files.
            purpose: subject of the error, with its verb.

        Raises:
            Unsupported: no runtime is installed.
        """
        wanted = config.container_runtime
        for name in ("podman", "docker") if wanted == "auto" else (wanted,):
            if program := shutil.which(name):
                return cls(program, config, reporter, job)
        raise Unsupported(
            f"{purpose} a container, but neither podman nor docker is installed"
            if wanted == "auto"
            else f"{purpose} a container, but its runtime '{wanted}' is not installed",
            hint="install podman (such as: apt install podman, brew install podman), or set another"
            " runtime: odf config set fetch.containerRuntime PATH",
        )

    def ensure_image(self, image: str) -> None:
        """Pull the image, unless it is present."""
        target = self.job / "image"
        shown = self.run_command(["image", "inspect", "--format", "{{.Id}}", "--", image], target, "debug")
        if shown.code == 0:
            self.reporter.log(f"image {image}, {target.read_text(errors='replace').strip()}")
            return
        self.check_service(shown.remarks)
        self.reporter.log(f"pulling image {image}")
        pulled = self.run_command(["pull", "--", image], None, "info")
        if pulled.code != 0:
            raise SourceUnavailable(
                f"cannot pull the image: {pulled.remarks}",
                where=image,
                hint="check the name of the image and the connection to the registry",
            )

    def run(self, name: str, command: list[str], variables: Mapping[str, str], out: Path, data: Path) -> None:
        """Run a container; its standard output goes to ``data``, and it may write to ``out``."""
        if ":" in str(out):
            raise Unsupported(
                "the path of the folder contains a colon, which containers do not support",
                where=str(out),
                hint="use a workspace whose path has no colon",
            )
        listed = out.parent / "variables"  # not in the arguments, which every process can read
        listed.touch(mode=0o600)
        listed.write_text("".join(f"{key}={value}\n" for key, value in variables.items()))
        container = f"odf-{os.getpid()}-{secrets.token_hex(6)}"
        options = [
            *("run", "--rm", f"--name={container}", "--pull=never", "--log-driver=none"),
            *("--security-opt=no-new-privileges", f"--pids-limit={_MAX_PROCESSES}"),
            *([f"--memory={self.config.container_memory}"] if self.config.container_memory else ()),
            *(f"--env-file={listed}", f"--volume={out}:{_OUT}:Z"),
        ]
        try:
            ended = self.run_command([*options, *command], data, "info")
        except BaseException:
            self.remove(container)
            raise
        if ended.code != 0:
            self.check_service(ended.remarks)
            raise SourceUnavailable(f"container {ended}", where=name)

    def run_command(self, arguments: list[str], target: Path | None, level: str) -> CommandResult:
        """Run a command of the runtime until it ends; its output goes to ``target`` or to the log."""
        return run_command(
            [self.program, *arguments],
            folder=self.job,
            environment=os.environ,
            reporter=self.reporter,
            output=CommandOutput(target=target, level=level),
        )

    def remove(self, container: str) -> None:
        """Kill and remove a container. Errors are ignored."""
        # `rm` alone waits for the container.
        for arguments in (["kill", container], ["rm", "-f", container]):
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    [self.program, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_KILL_SECONDS,
                )

    def check_service(self, remarks: str) -> None:
        """Check whether an error of a command means that a service does not run.

        Raises:
            SourceUnavailable: it is.
        """
        if _NO_SERVICE.search(remarks):
            raise SourceUnavailable(
                f"{Path(self.program).name} cannot run containers: {remarks}",
                hint="start its service, or install podman, which does not need a service",
            )
