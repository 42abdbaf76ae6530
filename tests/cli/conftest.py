"""Runs the command line in one workspace that holds the demo.

A process for each command would take most of the time. Only tests of processes (pipes, signals, exit codes
of a shell) start them; the others call the entry point in this process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from odf_tui.main import main


@dataclass(frozen=True)
class Ran:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Odf = Callable[..., Ran]


def _environment(**more: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "ODF_WORKSPACE"} | more


def run_odf(*arguments: str, cwd: Path, input: str | bytes | None = None, **environment: str) -> Ran:
    """Runs ``odf`` in a process of its own."""
    data = input.encode() if isinstance(input, str) else input
    done = subprocess.run(
        [sys.executable, "-m", "odf_tui", *arguments],
        cwd=cwd,
        input=data if data is not None else b"",
        capture_output=True,
        env=_environment(**environment),
        timeout=180,
    )
    return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def call_odf(*arguments: str, cwd: Path, input: str | bytes | None = None, **environment: str) -> Ran:
    """Runs ``odf`` within this process; an error that it does not catch is one of the test."""
    data = input.encode() if isinstance(input, str) else input or b""
    streams = [io.TextIOWrapper(io.BytesIO(), write_through=True, encoding="utf-8") for _ in range(2)]
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, _environment(**environment), clear=True),
        mock.patch.object(sys, "argv", ["odf", *arguments]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")),
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    out, err = (stream.buffer.getvalue().decode(errors="replace") for stream in streams)  # type: ignore[attr-defined]
    return Ran(int(ended.value.code or 0), out, err)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Ran]]:
    """A workspace that ``odf demo --no-tui`` made, and what that printed."""
    # Characters that shells, URLs and Spark's file patterns give a meaning to.
    folder = tmp_path_factory.mktemp("demo") / "a [b] {c}*d 100%"
    ran = run_odf("demo", str(folder), "--no-tui", cwd=folder.parent)
    yield folder, ran
    call_odf("worker", "stop", cwd=folder)


@pytest.fixture
def odf(demo: tuple[Path, Ran]) -> Odf:
    """Runs ``odf`` within the demo's workspace."""
    folder, _ = demo

    def run(*arguments: str, input: str | bytes | None = None, **environment: str) -> Ran:
        return call_odf(*arguments, cwd=folder, input=input, **environment)

    return run


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Odf]:
    """Runs ``odf`` within a new, empty workspace."""
    call_odf("init", cwd=tmp_path)

    def run(*arguments: str, input: str | bytes | None = None, **environment: str) -> Ran:
        return call_odf(*arguments, cwd=tmp_path, input=input, **environment)

    yield run
    call_odf("worker", "stop", cwd=tmp_path)
