"""Running a command of somebody's manifest: its output into a file, its remarks into the job's log."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from odf_engine.errors import BadData, Unsupported
from odf_engine.progress import Reporter

_CHUNK: Final = 1 << 18
_PATIENCE: Final = 0.2
"""Seconds until a cancelled command is killed, at most."""
_MOST_LINES: Final = 2000
_LONGEST_LINE: Final = 2000
_LAST_LINES: Final = 5


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, minus the signal that killed it, and its last remarks."""

    code: int
    remarks: str

    def __str__(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"
        return f"{how}: {self.remarks}" if self.remarks else how


def run_command(
    argv: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    reporter: Reporter,
    stdin: Path | None = None,
    target: Path | None = None,
    most_bytes: int | None = None,
    level: str = "info",
) -> Ended:
    """Runs a command without a shell, in a process group of its own, until it has ended.

    Args:
        argv: the program and its arguments.
        folder: where it runs.
        environment: all that it gets of variables.
        reporter: gets its remarks as they come, and how much it has written; cancels it.
        stdin: what it reads; None: nothing.
        target: the file that takes its output; None: that is remarks too.
        most_bytes: how much it may write to ``target``.
        level: of its remarks in the log.

    Raises:
        Unsupported: there is no such program, or it may not run.
        BadData: it wrote too much.
        Cancelled: its whole process group was killed.
    """
    with Path(os.devnull if stdin is None else stdin).open("rb") as source:
        process = _start(argv, folder, environment, source)
    with process:
        try:
            remarks = _attend(process, argv[0], reporter, target, most_bytes, level)
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return Ended(process.wait(_PATIENCE), remarks)
                reporter.check()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def clean_environment(folder: Path) -> dict[str, str]:
    """What a command gets of variables: where programs are, and nothing that may be secret."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **kept, "TMPDIR": str(folder)}


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
        problem = "is not installed" if isinstance(error, FileNotFoundError) else "cannot be started"
        because = (
            "" if isinstance(error, FileNotFoundError) else f": {getattr(error, 'strerror', None) or error}"
        )
        raise Unsupported(
            f"the command '{argv[0]}' {problem}{because}",
            hint=f"it is looked for in {environment.get('PATH', 'no folder')}",
        ) from None


def _attend(
    process: subprocess.Popen[bytes],
    program: str,
    reporter: Reporter,
    target: Path | None,
    most_bytes: int | None,
    level: str,
) -> str:
    """Takes what a process writes until it closes both ends; its last remarks."""
    assert process.stdout is not None
    assert process.stderr is not None
    remarks = _Remarks(Path(program).name, reporter, level)
    size = 0
    with selectors.DefaultSelector() as ready, Path(target or os.devnull).open("wb") as file:
        ready.register(process.stdout, selectors.EVENT_READ)
        ready.register(process.stderr, selectors.EVENT_READ)
        while ready.get_map():
            for key, _ in ready.select(_PATIENCE):
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    ready.unregister(key.fileobj)
                elif key.fileobj is process.stderr or target is None:
                    remarks.take(chunk)
                else:
                    size += len(chunk)
                    if most_bytes is not None and size > most_bytes:
                        raise BadData(
                            f"the command '{program}' wrote more than {most_bytes:,} bytes",
                            hint="raise the bound if that is right: odf config set prepare.mostBytes BYTES",
                        )
                    file.write(chunk)
                    reporter.amount(bytes=size)
            reporter.check()
    return remarks.end()


class _Remarks:
    """Lines of a command's error output: into the log as they come, the last of them kept."""

    def __init__(self, program: str, reporter: Reporter, level: str) -> None:
        self._program = program
        self._reporter = reporter
        self._level = level
        self._rest = b""
        self._lines = 0
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    def take(self, chunk: bytes) -> None:
        # A carriage return alone draws a line again, as progress bars do.
        *lines, self._rest = (self._rest + chunk).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._say(line)

    def end(self) -> str:
        self._say(self._rest)
        if self._lines > _MOST_LINES:
            self._reporter.line(f"{self._program}: … {self._lines - _MOST_LINES:,} more lines", "warning")
        return " / ".join(self._last)

    def _say(self, line: bytes) -> None:
        text = "".join(char if char.isprintable() else " " for char in line.decode(errors="replace")).strip()
        if not text:
            return
        if len(text) > _LONGEST_LINE:
            text = text[:_LONGEST_LINE] + " …"
        self._last.append(text)
        self._lines += 1
        if self._lines <= _MOST_LINES:
            self._reporter.line(f"{self._program}: {text}", self._level)
