"""The programs of ``odf help peers`` read what they are said to read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bench.peers import PAGE

pytestmark = [pytest.mark.net, pytest.mark.complete]


def test_every_program_of_the_help_page_reads_all_rows() -> None:
    # In a process of its own, since it starts a Spark.
    command = [sys.executable, "-m", "tests.bench.peers"]
    ran = subprocess.run(command, cwd=PAGE.parents[2], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran
    assert _without_versions(ran.stdout) == _without_versions(PAGE.read_text())


def _without_versions(text: str) -> list[list[str]]:
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[row[0], *row[2:]] for row in rows]
