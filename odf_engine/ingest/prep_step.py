"""Prepare phase: decompression and pipes, subprocesses with bounded output."""

from __future__ import annotations

import errno
import fnmatch
import lzma
import os
import selectors
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO, Final

from odf_engine.base.config import Config, PrepareConfig, SandboxConfig
from odf_engine.base.processes import enlarge_pipe
from odf_engine.base.progress import Reporter
from odf_engine.data.zip_archive import ZipArchive
from odf_engine.errors import BadData, InvalidManifest, Unsupported
from odf_engine.filters.command_line import WARNING
from odf_engine.filters.filter_process import filter_error
from odf_engine.isolation.namespaces import PROGRAMS, MountSandbox, unavailable_reason
from odf_engine.isolation.sandbox_process import kernel_limits, python_paths, sandbox_environment
from odf_engine.metadata.model import CompressionFormat, Pipe, PrepStep

if TYPE_CHECKING:
    from odf_engine.spark.text_files import PreparedTextFile, RecordLines


def run_pipe(
    step: Pipe, file: PreparedFile, root: Path, target: Path, reporter: Reporter, limits: PrepareLimits
) -> None:
    """Run a command on a file and write its output to ``target``.

    The working directory is ``root``, the folder of the workspace, so that the command can be a script there.
    A filter of this program runs isolated from files and the network, if the system can do that.

    Raises:
        BadData: the command failed, or wrote more than the limit.
        InvalidManifest: the step has no command.
        Unsupported: the program is not installed.
        Cancelled: the command and its child processes were killed.
    """
    if not step.command or not step.command[0]:
        raise InvalidManifest("missing command in a Pipe step", where="prepare")
    reporter.log(f"{file.name} | {shlex.join(step.command)}")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="pipe-") as folder:
        command, environment = list(step.command), clean_environment(Path(folder))
        if is_filter(step):
            command, environment = _isolated_filter(command, Path(folder), limits)
        ended = run_command(
            command,
            folder=root,
            environment=environment,
            reporter=reporter,
            stdin=file.path,
            output=CommandOutput(target=target, most_bytes=limits.most_bytes),
        )
    if ended.code == 0 and is_filter(step) and ended.remarks.startswith(WARNING):
        reporter.warn(f"{file.name}: {ended.remarks.removeprefix(WARNING)}", "skipped-records")
    if ended.code != 0 and is_filter(step):
        error = filter_error(ended.remarks, ended.code)
        raise BadData(error.message, where=file.name, hint=error.hint)
    if ended.code != 0:
        raise BadData(f"command {shlex.join(step.command)} {ended}", where=file.name)


_SCRATCH: Final = Path("/scratch")
"""Path of the temporary folder in a sandbox."""


def is_filter(step: Pipe) -> bool:
    """Return whether a step runs a filter of this program, which has no access to files and the network."""
    return step.command[:2] == ["odf", "filter"]


def _isolated_filter(
    command: Sequence[str], folder: Path, limits: PrepareLimits
) -> tuple[list[str], dict[str, str]]:
    """Return the command and environment of a filter, in a sandbox if there is one."""
    own = [sys.executable, "-P", "-m", "odf_engine.filters", *command[2:]]
    paths = {path: path for path in python_paths()}
    sandbox = MountSandbox(paths, {_SCRATCH: folder}, limits=kernel_limits(limits.sandbox))
    for program in PROGRAMS if limits.sandbox.program == "auto" else (limits.sandbox.program,):
        if unavailable_reason(program, sandbox) is None:
            return sandbox.wrap_command(program, own), sandbox_environment(_SCRATCH)
    return own, sandbox_environment(folder)


_GZIP: Final = 31  # Window bits of zlib for a gzip stream.


@dataclass(frozen=True)
class PrepareLimits:
    """Limits for the output of a step.

    Attributes:
        most_bytes: maximum number of bytes.
        most_ratio: maximum ratio to the compressed size.
        ratio_from: minimum number of bytes for the check of the ratio. A small file may be all zeros.
        sandbox: the limits of filters.
    """

    most_bytes: int = PrepareConfig().most_bytes
    most_ratio: int = PrepareConfig().most_ratio
    ratio_from: int = 256 << 20
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)

    @classmethod
    def of(cls, config: Config) -> PrepareLimits:
        """Return the limits of the workspace's configuration."""
        return cls(config.prepare.most_bytes, config.prepare.most_ratio, sandbox=config.sandbox)


@dataclass(frozen=True)
class PreparedFile:
    """A prepared file, and its name in messages.

    Attributes:
        path, name: the file, and its name.
        lines: numbers the records when the file is read to find its invalid rows.
        selected: the records to read when invalid rows are left out.
    """

    path: Path
    name: str
    lines: RecordLines | None = None
    selected: PreparedTextFile | None = None

    @property
    def on_invalid(self) -> Callable[[int, BadData], None] | None:
        """What a conversion to lines does with an invalid element, or None if it fails."""
        if self.lines is not None:
            return self.lines.add_invalid
        return None if self.selected is None else lambda line, error: None


def prepare(
    steps: Sequence[PrepStep] | None,
    fetched: PreparedFile,
    root: Path,
    job: Path,
    reporter: Reporter,
    limits: PrepareLimits | None = None,
) -> PreparedFile:
    """Run the steps on a fetched file. Without steps, return the file itself.

    Args:
        steps: the steps.
        fetched: the file.
        root: the workspace folder, which is the working directory of commands.
        job: the folder for prepared files.
        reporter: receives what is done, and can cancel.
        limits: the size limits, or None for the defaults.

    Raises:
        BadData: the archive is of another format, truncated, damaged, unsafe or beyond the limits, or has
            no entry of that name; or a command failed.
        Unsupported: a command is not installed.
        Cancelled: the job was cancelled.
    """
    limits = limits or PrepareLimits()
    path, name = fetched.path, fetched.name
    packed = path.stat().st_size  # Nested archives are compared with the outermost one.
    for number, step in enumerate(steps or ()):
        target, started = job / f"prepared-{number}", monotonic()
        if isinstance(step, Pipe):
            run_pipe(step, PreparedFile(path, name), root, target, reporter, limits)
            words = step.command[:3] if is_filter(step) else [Path(step.command[0]).name]
            name = f"{name} | {' '.join(words)}"
            packed = target.stat().st_size
        elif step.format is CompressionFormat.Zip:
            name = f"{name}/{_unzip(path, name, target, step.sub_path, packed, reporter, limits)}"
        else:
            _gunzip(path, name, target, packed, reporter, limits)
            name = name.removesuffix(".gz")
        reporter.log(f"prepared {name}, {target.stat().st_size:,} bytes in {monotonic() - started:.1f} s")
        if number:
            path.unlink()  # The output of the previous step.
        path = target
    return PreparedFile(path, name)


def _gunzip(
    path: Path, name: str, target: Path, packed: int, reporter: Reporter, limits: PrepareLimits
) -> None:
    with path.open("rb") as source:
        if source.read(2) != b"\x1f\x8b":
            raise BadData(
                "not a gzip file", where=name, hint="check the fetched file, or remove the prepare step"
            )
        source.seek(0)
        try:
            _write(_gunzipped(source, name), target, packed, name, reporter, limits)
        except zlib.error as error:
            text = str(error).rpartition(": ")[2]
            raise BadData(f"damaged gzip file: {text}", where=name, hint="fetch the file again") from None


def _gunzipped(source: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the content of all gzip members. Zero bytes after a member are padding."""
    stream = None
    data = source.read(_CHUNK)
    while data:
        if stream is None:
            data = data.lstrip(b"\0")
            stream = zlib.decompressobj(_GZIP) if data else None
        if stream is not None:
            yield stream.decompress(data, _CHUNK * 4)
            data = stream.unconsumed_tail
            if stream.eof:
                data, stream = stream.unused_data, None
        data = data or source.read(_CHUNK)
    if stream is not None:
        yield stream.flush()
        if not stream.eof:
            raise BadData("truncated gzip file", where=name, hint="fetch the file again")


def _unzip(
    path: Path,
    name: str,
    target: Path,
    sub_path: str | None,
    packed: int,
    reporter: Reporter,
    limits: PrepareLimits,
) -> str:
    try:
        with ZipArchive(path) as archive:
            entry = _choose(archive, sub_path, name)
            if entry.flag_bits & 1:
                raise BadData(
                    f"entry '{entry.filename}' is encrypted",
                    where=name,
                    hint="extract it before the pull or in a Pipe step; passwords are not supported",
                )
            with archive.open(entry) as source:
                chunks = iter(lambda: source.read(_CHUNK), b"")
                _write(chunks, target, min(packed, entry.compress_size), name, reporter, limits)
            return entry.filename
    except BadData as error:
        error.where = error.where or name
        raise
    except zipfile.BadZipFile as error:
        raise BadData(f"invalid zip archive: {error}", where=name, hint="fetch the file again") from None
    except (NotImplementedError, RuntimeError) as error:
        raise BadData(f"unsupported zip archive: {error}", where=name) from None
    except ZIP_ERRORS as error:
        if is_disk_error(error):
            raise
        raise BadData(f"damaged zip archive: {error}", where=name, hint="fetch the file again") from None


ZIP_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    IndexError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
"""Errors of ``zipfile`` for damaged archives. An OSError can also be a disk error."""


def is_disk_error(error: Exception) -> bool:
    """Return whether an error while reading an archive is one of the disk, not of the archive."""
    return isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)


def _choose(archive: zipfile.ZipFile, sub_path: str | None, name: str) -> zipfile.ZipInfo:
    entries = archive.infolist()
    for entry in entries:
        if _escapes(entry.orig_filename):
            raise BadData(
                f"the archive has an entry outside its root folder: '{_printable(entry.orig_filename)}'",
                where=name,
                hint="check the source of the archive; nothing was extracted",
            )
    files = [entry for entry in entries if not entry.is_dir() and not entry.filename.startswith("__MACOSX/")]
    names = ", ".join(_printable(entry.filename) for entry in files[:10]) + (", …" if len(files) > 10 else "")
    if not files:
        raise BadData("the archive contains no files", where=name)
    if sub_path is None:
        if len(files) > 1:
            raise BadData(
                f"the archive contains {len(files)} files and subPath is not set: {names}",
                where=name,
                hint=f"set subPath in the Decompress step, such as subPath: {_printable(files[0].filename)}",
            )
        return files[0]
    matches = [entry for entry in files if entry.filename == sub_path] or [
        entry for entry in files if fnmatch.fnmatchcase(entry.filename, sub_path)
    ]
    if len(matches) != 1:
        problem = "no files" if not matches else f"{len(matches)} files"
        raise BadData(
            f"{problem} in the archive match subPath '{sub_path}'", where=name, hint=f"choose one of: {names}"
        )
    return matches[0]


def _escapes(name: str) -> bool:
    """Return whether the path of an entry is absolute or leaves the target folder."""
    path = PureWindowsPath(name)  # It splits at both kinds of slashes, and detects drives.
    return bool(path.anchor) or ".." in path.parts


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else "�" for char in name)


def _write(
    chunks: Iterable[bytes], target: Path, packed: int, name: str, reporter: Reporter, limits: PrepareLimits
) -> None:
    size = 0
    with target.open("wb") as file:
        for chunk in chunks:
            reporter.raise_if_cancelled()
            size += len(chunk)
            if size > limits.most_bytes or (
                size > limits.ratio_from and size > limits.most_ratio * max(packed, 1)
            ):
                raise BadData(
                    f"decompression bomb suspected: more than {size:,} bytes from {packed:,}",
                    where=name,
                    hint="if the file is valid, increase the limit: odf config set prepare.mostRatio N",
                )
            file.write(chunk)
            reporter.set_amounts(bytes=size)


_CHUNK: Final = 1 << 18
_POLL_SECONDS: Final = 0.2
"""Interval in seconds at which a running command is checked for cancellation."""
_MAX_LINES: Final = 2000
_MAX_LINE: Final = 2000
_LAST_LINES: Final = 5


@dataclass(frozen=True)
class CommandOutput:
    """Where the output of a command goes.

    Attributes:
        target: output file; None to log the output like error output.
        most_bytes: maximum size of ``target``.
        level: log level of logged lines.
    """

    target: Path | None = None
    most_bytes: int | None = None
    level: str = "info"


@dataclass(frozen=True)
class CommandResult:
    """Exit code of a command, or the negative signal that killed it, and the last lines of its output."""

    code: int
    remarks: str

    def __str__(self) -> str:
        status = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with code {self.code}"
        return f"{status}: {self.remarks}" if self.remarks else status


def run_command(
    argv: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    reporter: Reporter,
    stdin: Path | None = None,
    output: CommandOutput,
) -> CommandResult:
    """Run a command without a shell, in its own process group, until it exits.

    Args:
        argv: the program and its arguments.
        folder: working directory.
        environment: all environment variables of the command.
        reporter: receives the lines of its error output and the bytes written; cancels it.
        stdin: input file, or None for empty input.
        output: where the output goes.

    Raises:
        Unsupported: the program does not exist, or cannot be started.
        BadData: the output is too large.
        Cancelled: the job was cancelled, and the process group killed.
    """
    with Path(os.devnull if stdin is None else stdin).open("rb") as source:
        process = _start(argv, folder, environment, source)
    with process:
        try:
            remarks = _collect_output(process, argv[0], reporter, output)
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return CommandResult(process.wait(_POLL_SECONDS), remarks)
                reporter.raise_if_cancelled()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def clean_environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of a command: the search path, but nothing that can be secret."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **inherited, "TMPDIR": str(folder)}


def _start(
    argv: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: BinaryIO
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            cwd=folder,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        problem = "not found" if isinstance(error, FileNotFoundError) else "cannot be started"
        reason = (
            "" if isinstance(error, FileNotFoundError) else f": {getattr(error, 'strerror', None) or error}"
        )
        raise Unsupported(
            f"command '{argv[0]}' {problem}{reason}",
            hint=f"install it in a folder of PATH: {environment.get('PATH', 'not set')}",
        ) from None


def _collect_output(
    process: subprocess.Popen[bytes], program: str, reporter: Reporter, output: CommandOutput
) -> str:
    """Read the output of a process until it closes both streams; return the last lines of its errors."""
    assert process.stdout is not None
    assert process.stderr is not None
    enlarge_pipe(process.stdout)
    log = _StderrLog(Path(program).name, reporter, output.level)
    target, most_bytes, size = output.target, output.most_bytes, 0
    with selectors.DefaultSelector() as ready, Path(target or os.devnull).open("wb") as file:
        ready.register(process.stdout, selectors.EVENT_READ)
        ready.register(process.stderr, selectors.EVENT_READ)
        while ready.get_map():
            for key, _ in ready.select(_POLL_SECONDS):
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    ready.unregister(key.fileobj)
                elif key.fileobj is process.stderr or target is None:
                    log.add(chunk)
                else:
                    size += len(chunk)
                    if most_bytes is not None and size > most_bytes:
                        raise BadData(
                            f"command '{program}' wrote more than {most_bytes:,} bytes",
                            hint="increase the limit if required: odf config set prepare.mostBytes BYTES",
                        )
                    file.write(chunk)
                    reporter.set_amounts(bytes=size)
            reporter.raise_if_cancelled()
    return log.end()


class _StderrLog:
    """Logs the lines of a command's error output, and stores the last ones."""

    def __init__(self, program: str, reporter: Reporter, level: str) -> None:
        self._program = program
        self._reporter = reporter
        self._level = level
        self._rest = b""
        self._lines = 0
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    def add(self, chunk: bytes) -> None:
        """Log the complete lines so far."""
        # Progress bars separate lines by a carriage return.
        *lines, self._rest = (self._rest + chunk).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > _MAX_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._log_line(line)

    def end(self) -> str:
        """Log the rest; return the last lines."""
        self._log_line(self._rest)
        if self._lines > _MAX_LINES:
            self._reporter.log(f"{self._program}: … {self._lines - _MAX_LINES:,} more lines", "warning")
        return " / ".join(self._last)

    def _log_line(self, line: bytes) -> None:
        text = "".join(char if char.isprintable() else " " for char in line.decode(errors="replace")).strip()
        if not text:
            return
        if len(text) > _MAX_LINE:
            text = text[:_MAX_LINE] + " …"
        self._last.append(text)
        self._lines += 1
        if self._lines <= _MAX_LINES:
            self._reporter.log(f"{self._program}: {text}", self._level)
