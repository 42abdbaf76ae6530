"""A program under tmux, for measuring what a person waits for and what goes over the line.

tmux is driven in control mode: one connection takes the keys and gives back every byte that the program
writes, so that nothing has to be polled. The terminal is that of a plain SSH login: 256 colours, no
``COLORTERM``.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ODF = (sys.executable, "-c", "from odf_tui.main import main; main()")

QUIET: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

_SETTINGS = "set -g default-terminal screen-256color\nset -s escape-time 25\nset -g remain-on-exit on\n"
_WITHOUT = "-u COLORTERM -u NO_COLOR -u PYTHONDONTWRITEBYTECODE"  # what is installed has its byte code
_OCTAL = re.compile(rb"\\([0-7]{3})")
_TICKS = os.sysconf("SC_CLK_TCK")
_numbers = itertools.count()


class Terminal:
    """Starts a program; times are in seconds since its start.

    Attributes:
        output: what it wrote since this was last emptied.
        written: how many bytes it has written in all.
        pid: its process.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        size: tuple[int, int] = (120, 36),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="odf-terminal-"))
        (self._scratch / "tmux.conf").write_text(_SETTINGS)
        self._socket = f"odf-bench-{os.getpid()}-{next(_numbers)}"
        settings = {"PYTHONPATH": str(ROOT), **(environment or {})}
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
        pid_file = self._scratch / "pid"
        # It waits for enter, so that the time until tmux itself is there does not count.
        inner = f"stty -echo; echo $$ > {pid_file}; read go; stty echo; exec env {_WITHOUT} {words} "
        self._tmux = subprocess.Popen(
            [
                "tmux", "-L", self._socket, "-f", str(self._scratch / "tmux.conf"), "-C", "new-session",
                "-x", str(size[0]), "-y", str(size[1]), "-c", str(folder), inner + shlex.join(command),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self._buffer = b""
        self.output = b""
        self.written = 0
        self._command(f"refresh-client -C {size[0]}x{size[1]}")
        while not (pid_file.is_file() and pid_file.read_text().endswith("\n")):
            self.read(0.02)
        self.read(0.1)
        self.pid = int(pid_file.read_text())
        self.output, self.written = b"", 0
        self.started = time.perf_counter()
        self.send("Enter")

    def send(self, *keys: str) -> None:
        """Presses keys, as ``tmux send-keys`` names them."""
        self._command("send-keys " + " ".join(shlex.quote(key) for key in keys))

    def _command(self, text: str) -> None:
        assert self._tmux.stdin is not None
        self._tmux.stdin.write(text.encode() + b"\n")
        self._tmux.stdin.flush()

    def read(self, seconds: float) -> bool:
        """Takes in what comes within some time; False at the end."""
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
                text = _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), text)
                self.output += text
                self.written += len(text)
        return bool(data)

    def rest(self, seconds: float) -> None:
        """Lets so much time go by, and takes in what comes."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self.read(left)

    def wait(self, *marks: str, seconds: float = 30.0) -> float:
        """Reads until every mark, a regular expression, has been seen; returns when that was.

        Raises:
            TimeoutError: it was not.
        """
        wanted = [re.compile(mark.encode()) for mark in marks]
        deadline = time.perf_counter() + seconds
        while not all(mark.search(self.output) for mark in wanted):
            if time.perf_counter() > deadline or not self.read(0.5):
                raise TimeoutError(f"never saw {marks}; the last was {self.output[-600:]!r}")
        return time.perf_counter() - self.started

    def screen(self, above: int = 0) -> str:
        """What is on the screen, as text, and so many lines of what was above it."""
        command = ["tmux", "-L", self._socket, "capture-pane", "-p", "-S", str(-above)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def cpu(self) -> float:
        """CPU seconds that the program has taken."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def megabytes(self) -> float:
        """Its resident memory in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1000

    def end(self) -> None:
        """Ends the program and its tmux."""
        with contextlib.suppress(BrokenPipeError):
            self._command("kill-server")
        self._tmux.communicate(timeout=10)
        shutil.rmtree(self._scratch)
