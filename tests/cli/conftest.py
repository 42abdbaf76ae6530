"""The command line as a person or a script uses it: real processes, one workspace with the demo in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


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


def run_odf(*arguments: str, cwd: Path, input: str | bytes | None = None, **environment: str) -> Ran:
    """Runs ``odf`` in a process of its own."""
    data = input.encode() if isinstance(input, str) else input
    env = {key: value for key, value in os.environ.items() if key != "ODF_WORKSPACE"}
    done = subprocess.run(
        [sys.executable, "-m", "odf_tui", *arguments],
        cwd=cwd,
        input=data if data is not None else b"",
        capture_output=True,
        env={**env, **environment},
        timeout=180,
    )
    return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Ran]]:
    """A workspace that ``odf demo --no-tui`` made, and what that printed."""
    folder = tmp_path_factory.mktemp("demo") / "port-haven"
    ran = run_odf("demo", str(folder), "--no-tui", cwd=folder.parent)
    yield folder, ran
    run_odf("worker", "stop", cwd=folder)


@pytest.fixture
def odf(demo: tuple[Path, Ran]) -> Odf:
    """Runs ``odf`` within the demo's workspace."""
    folder, _ = demo

    def run(*arguments: str, input: str | bytes | None = None, **environment: str) -> Ran:
        return run_odf(*arguments, cwd=folder, input=input, **environment)

    return run


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Odf]:
    """Runs ``odf`` within a new, empty workspace."""
    run_odf("init", cwd=tmp_path)

    def run(*arguments: str, input: str | bytes | None = None, **environment: str) -> Ran:
        return run_odf(*arguments, cwd=tmp_path, input=input, **environment)

    yield run
    run_odf("worker", "stop", cwd=tmp_path)
