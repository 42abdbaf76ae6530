"""A program on a pseudo-terminal, for measuring what a person waits for."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ODF = (sys.executable, "-c", "from odf_tui.cli.main import main; main()")


class Terminal:
    """Starts a program on a terminal of 120 by 36 cells; times are in seconds since its start."""

    def __init__(self, command: Sequence[str], folder: Path, size: tuple[int, int] = (120, 36)) -> None:
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "PYTHONPATH": str(ROOT),
        }
        self.started = time.perf_counter()
        self.output = b""
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], list(command), environment)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def send(self, keys: str) -> None:
        """Types."""
        os.write(self._file, keys.encode())

    def read(self, seconds: float) -> bool:
        """Takes in what comes within some time; False at the end."""
        ready, _, _ = select.select([self._file], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self._file, 65536)
        except OSError:
            return False
        self.output += data
        return bool(data)

    def wait(self, *marks: str, seconds: float = 30.0) -> float:
        """Reads until every mark has been seen; returns when that was.

        Raises:
            TimeoutError: it was not.
        """
        wanted = [mark.encode() for mark in marks]
        deadline = time.perf_counter() + seconds
        while not all(mark in self.output for mark in wanted):
            if time.perf_counter() > deadline or not self.read(0.5):
                raise TimeoutError(f"never saw {marks}; the last was {self.output[-600:]!r}")
        return time.perf_counter() - self.started

    def end(self) -> float:
        """Ends the program; returns the CPU seconds that it and its children took."""
        os.kill(self.pid, signal.SIGKILL)
        _, _, usage = os.wait4(self.pid, 0)
        os.close(self._file)
        return usage.ru_utime + usage.ru_stime
