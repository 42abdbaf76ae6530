"""Runs a program of a flow."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from odf_engine.automation.flows import command_guard
from odf_engine.errors import OdfError

MAX_OUTPUT: Final = 1 << 16
"""Characters of the output of a task that are stored: its start and its end."""
_CUT: Final = "\n… the middle of the output is left out …\n"
_MAX_REASON: Final = 1500
"""Characters at the end of a failed program's output that its error has. Errors have at most 2,000."""
_CONTROLS: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
"""Control sequences of a terminal, and other control characters except tab and line end."""
_KILL_SECONDS: Final = 5.0


class BoundedText:
    """A text that grows. If it is longer than :data:`MAX_OUTPUT`, its middle is left out."""

    def __init__(self) -> None:
        self._start = self._end = ""
        self._is_cut = False

    def add(self, text: str) -> None:
        """Append a text."""
        room = MAX_OUTPUT // 2 - len(self._start)
        self._start += text[:room]
        end = self._end + text[room:]
        self._is_cut = self._is_cut or len(end) > MAX_OUTPUT // 2
        self._end = end[-MAX_OUTPUT // 2 :]

    def __str__(self) -> str:
        return f"{self._start}{_CUT if self._is_cut else ''}{self._end}"


async def run_program(
    arguments: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    seconds: float,
    store_output: Callable[[str], None],
) -> None:
    """Run a program.

    Args:
        arguments: the program and its arguments.
        folder: its working directory.
        variables: environment variables to add to the environment of this process.
        seconds: the program is terminated after so many seconds.
        store_output: receives what the program wrote to standard output and standard error, without
            control characters, also if the program failed or was terminated. The middle of a long output is
            left out.

    Raises:
        OdfError: it cannot be started, fails, or takes too long.
    """
    guard = [sys.executable, "-I", "-S", command_guard.__file__, str(_KILL_SECONDS)]
    try:
        process = await asyncio.create_subprocess_exec(
            *guard,
            *arguments,
            cwd=folder,
            env=os.environ | variables,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise OdfError(f"{arguments[0]}: {error.strerror or error}") from None
    text, code = BoundedText(), None
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    try:
        async with asyncio.timeout(seconds):
            assert process.stdout is not None
            while data := await process.stdout.read(1 << 16):
                text.add(decode(data))
            code = await process.wait()
    except TimeoutError:
        raise OdfError(f"{arguments[0]} was terminated after {seconds:g} s") from None
    finally:
        if code is None:  # it, or a program that it started, still runs
            await _terminate(process)
        output = _plain_text(str(text))
        store_output(output)
    reason = output[-_MAX_REASON:].strip()
    if code == command_guard.NOT_STARTED:
        raise OdfError(f"{arguments[0]}: {reason or 'cannot be started'}")
    if code:
        raise OdfError(f"{arguments[0]} ended with exit code {code}: {reason}".rstrip(": "))


def _plain_text(output: str) -> str:
    """Return output without control characters, and without text that a carriage return overwrites."""
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in output.split("\n"))
    return _CONTROLS.sub("", "\n".join(lines)).strip("\n")


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """End a program and those that it started; with SIGKILL if they still run after the grace period."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_SECONDS):
                await process.wait()
