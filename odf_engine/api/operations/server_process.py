"""The process of a server for the datasets of a workspace: start, log and stop."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO, Final, Self

from odf_engine.errors import OdfError

SERVER_MODULE: Final = "odf_engine.sync.server.__main__"
_MAX_LINES: Final = 500
_ERROR: Final = "error: "
_HINT: Final = "hint: "


class ServerProcess:
    """A running server. It stops when this process exits.

    Attributes:
        url: its URL.
        lines: the newest lines of its log.
    """

    def __init__(self, process: subprocess.Popen[str], lines: deque[str], url: str) -> None:
        self._process, self.lines, self.url = process, lines, url

    @classmethod
    def start(cls, workspace: Path, options: list[str]) -> Self:
        """Start a server, and wait until it is ready.

        Args:
            workspace: the folder of the workspace.
            options: the options of ``odf serve``.

        Raises:
            OdfError: the server does not start; with its message.
        """
        command = [sys.executable, "-m", SERVER_MODULE, "--workspace", str(workspace), "--json", "--verbose"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
        )
        atexit.register(_terminate, process)
        assert process.stdout is not None
        assert process.stderr is not None
        lines: deque[str] = deque(maxlen=_MAX_LINES)
        reader = Thread(target=_collect, args=(process.stderr, lines), name="server log", daemon=True)
        reader.start()
        ready = process.stdout.readline()
        if not ready:
            process.wait()
            reader.join()
            raise _start_error(list(lines))
        return cls(process, lines, str(json.loads(ready)["url"]))

    @property
    def is_running(self) -> bool:
        """Whether the server has not stopped."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Stop the server. Blocks until its transfers have ended, or were cancelled after some seconds."""
        _terminate(self._process)
        self._process.wait()
        atexit.unregister(_terminate)


def _terminate(process: subprocess.Popen[str]) -> None:
    with suppress(OSError):
        process.terminate()


def _collect(stream: IO[str], lines: deque[str]) -> None:
    for line in stream:
        lines.append(line.rstrip("\n"))


def _start_error(lines: list[str]) -> OdfError:
    """Return the error that a server has written before it stopped."""
    message = next((line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)), "")
    hint = next((line.strip().removeprefix(_HINT) for line in lines if line.strip().startswith(_HINT)), None)
    return OdfError(message or "the server does not start: " + " ".join(lines[-1:]), hint=hint)
