"""Runs filters for the program itself. A native library that may abort runs in a process of its own."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO, Final

from odf_engine.base.processes import build_python_environment, enlarge_pipe
from odf_engine.errors import BadData, OdfError, UsageError
from odf_engine.filters.command_line import WARNING, run_filter

_CHUNK: Final = 1 << 20
_USAGE: Final = 2
_NATIVE: Final = ("sheet",)
"""Filters whose library allocates as much memory as a damaged file requests, and then aborts."""
_NO_MEMORY: Final = "memory allocation of"
"""Beginning of the last message of such a library."""


def run_contained(
    arguments: Sequence[str], source: BinaryIO, target: BinaryIO, limit: int | None = None
) -> str:
    """Run a filter that cannot end this process.

    Args:
        arguments: its name and options.
        source: the input.
        target: the output.
        limit: the number of bytes after which the filter ends, or None for all of them.

    Returns:
        A warning, or "".

    Raises:
        BadData: the input is not in the format of the filter, or requires too much memory.
    """
    if arguments[0] in _NATIVE:
        return _run_process(arguments, source, target, limit)
    if limit is None:
        return run_filter(arguments, source, target)
    output = _LimitedOutput(limit)
    with suppress(_OutputFull):
        run_filter(arguments, source, output)
    target.write(output.getvalue())
    return ""


class _OutputFull(Exception):
    """The output has as many bytes as needed."""


class _LimitedOutput(io.BytesIO):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def write(self, data: object) -> int:
        if self.tell() > self.limit:
            raise _OutputFull
        return super().write(data)  # pyright: ignore[reportArgumentType]


def _run_process(arguments: Sequence[str], source: BinaryIO, target: BinaryIO, limit: int | None) -> str:
    with tempfile.TemporaryFile() as spooled, tempfile.TemporaryFile() as log:
        shutil.copyfileobj(source, spooled, _CHUNK)
        spooled.seek(0)
        command = [sys.executable, "-P", "-m", "odf_engine.filters", *arguments]
        environment = build_python_environment()
        with subprocess.Popen(
            command, stdin=spooled, stdout=subprocess.PIPE, stderr=log, env=environment
        ) as process:
            assert process.stdout is not None
            enlarge_pipe(process.stdout)
            size = 0
            while chunk := process.stdout.read(_CHUNK):
                size += target.write(chunk)
                if limit is not None and size > limit:
                    return ""
        log.seek(0)
        remarks = log.read().decode("utf-8", "replace").strip()
    if process.returncode:
        raise filter_error(remarks, process.returncode)
    return remarks.removeprefix(WARNING) if remarks.startswith(WARNING) else ""


def filter_error(remarks: str, code: int) -> OdfError:
    """Return the error of a process that ran a filter.

    Args:
        remarks: its error output; lines may be joined by `` / ``.
        code: its exit code, or the negative number of the signal that killed it.
    """
    if code < 0 or _NO_MEMORY in remarks:
        hint = "remove cells far below or beside the table of a spreadsheet, or export it as CSV"
        return BadData("the filter requires too much memory", hint=hint)
    problem, _, hint = remarks.replace("\n", " / ").removeprefix("error: ").partition(" / ")
    kind = UsageError if code == _USAGE else BadData
    return kind(problem or f"exit code {code}", hint=hint.strip().removeprefix("hint: ") or None)
