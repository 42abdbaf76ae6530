"""Runs a program of a flow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from odf_engine.automation.flows import command_guard
from odf_engine.errors import OdfError

_MAX_OUTPUT: Final = 1500
"""Characters at the end of a failed program's output that are stored. Errors have at most 2,000."""
_KILL_SECONDS: Final = 5.0


async def run_program(
    arguments: Sequence[str], folder: Path, variables: Mapping[str, str], seconds: float
) -> None:
    """Run a program.

    Args:
        arguments: the program and its arguments.
        folder: its working directory.
        variables: environment variables to add to the environment of this process.
        seconds: the program is terminated after so many seconds.

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
    tail, code = "", None
    try:
        async with asyncio.timeout(seconds):
            assert process.stdout is not None
            while data := await process.stdout.read(1 << 16):
                tail = (tail + data.decode(errors="replace"))[-_MAX_OUTPUT:]
            code = await process.wait()
    except TimeoutError:
        raise OdfError(f"{arguments[0]} was terminated after {seconds:g} s") from None
    finally:
        if code is None:  # it, or a program that it started, still runs
            await _terminate(process)
    if code == command_guard.NOT_STARTED:
        raise OdfError(f"{arguments[0]}: {tail.strip() or 'cannot be started'}")
    if code:
        raise OdfError(f"{arguments[0]} ended with exit code {code}: {tail.strip()}".rstrip(": "))


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """End a program and those that it started; with SIGKILL if they still run after the grace period."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_SECONDS):
                await process.wait()
