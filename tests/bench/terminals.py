"""A program under tmux in 120 by 36 cells.

tmux runs in control mode: one connection takes keys and returns the bytes that the program writes, without
polling. The terminal is that of a plain SSH login: 256 colours, without ``COLORTERM``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.measure import read_status

ROOT = Path(__file__).resolve().parents[2]
ODF = (sys.executable, "-c", "from odf_tui.main import main; main()")
QUIET: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

_WIDTH, _HEIGHT = "120", "36"
_SETTINGS = "set -g default-terminal screen-256color\nset -s escape-time 25\nset -g remain-on-exit on\n"
_WITHOUT = "-u COLORTERM -u NO_COLOR -u PYTHONDONTWRITEBYTECODE"  # an installed program has its byte code
_OCTAL = re.compile(rb"\\([0-7]{3})")
_TICKS = os.sysconf("SC_CLK_TCK")
_numbers = itertools.count()


class Terminal:
    """Starts a program.

    Attributes:
        output: the bytes that it has written since the attribute was last emptied.
        written: the number of all bytes that it has written.
        pid: its process id.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="odf-terminal-"))
        (self._scratch / "tmux.conf").write_text(_SETTINGS)
        socket = f"odf-bench-{os.getpid()}-{next(_numbers)}"
        pid_file = self._scratch / "pid"
        # The program waits for enter, so that the start of tmux does not count.
        inner = f"stty -echo; echo $$ > {pid_file}; read go; stty echo; exec env {_WITHOUT} "
        inner += f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.join(command)}"
        self._tmux = subprocess.Popen(
            [
                "tmux", "-L", socket, "-f", str(self._scratch / "tmux.conf"), "-C", "new-session",
                "-x", _WIDTH, "-y", _HEIGHT, "-c", str(folder), inner,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self._buffer = b""
        self.output = b""
        self.written = 0
        self._command(f"refresh-client -C {_WIDTH}x{_HEIGHT}")
        while not (pid_file.is_file() and pid_file.read_text().endswith("\n")):
            self.read(0.02)
        self.read(0.1)
        self.pid = int(pid_file.read_text())
        self.output, self.written = b"", 0
        self._started = time.perf_counter()
        self.send("Enter")

    def send(self, *keys: str) -> None:
        """Press keys, named as in ``tmux send-keys``."""
        self._command("send-keys " + " ".join(shlex.quote(key) for key in keys))

    def _command(self, text: str) -> None:
        assert self._tmux.stdin is not None
        self._tmux.stdin.write(text.encode() + b"\n")
        self._tmux.stdin.flush()

    def read(self, seconds: float) -> bool:
        """Read the output that arrives within some seconds; return False at the end."""
        assert self._tmux.stdout is not None
        ready, _, _ = select.select([self._tmux.stdout], [], [], seconds)
        if not ready:
            return True
        data = os.read(self._tmux.stdout.fileno(), 1 << 18)
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            if line.startswith(b"%output "):
                text = line.split(b" ", 2)[2].rstrip(b"\r")
                text = _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), text)
                self.output += text
                self.written += len(text)
        return bool(data)

    def rest(self, seconds: float) -> None:
        """Wait, and read the output."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self.read(left)

    def wait(self, *marks: str, seconds: float = 30.0) -> float:
        """Read until the output matches all marks, regular expressions. Returns the seconds since the start.

        Raises:
            TimeoutError: a mark is missing.
        """
        patterns = [re.compile(mark.encode()) for mark in marks]
        deadline = time.perf_counter() + seconds
        while not all(pattern.search(self.output) for pattern in patterns):
            if time.perf_counter() > deadline or not self.read(0.5):
                raise TimeoutError(f"{marks} did not appear; the last output was {self.output[-600:]!r}")
        return time.perf_counter() - self._started

    def cpu(self) -> float:
        """Return the processor seconds of the program, without its child processes."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def megabytes(self) -> float:
        """Return the resident memory of the program in MB."""
        return read_status("VmRSS", self.pid) / 1000

    def end(self) -> None:
        """End the program and tmux."""
        with contextlib.suppress(BrokenPipeError):
            self._command("kill-server")
        self._tmux.communicate(timeout=10)
        shutil.rmtree(self._scratch)
