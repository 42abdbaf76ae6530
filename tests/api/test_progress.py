"""Progress bars of jobs, without Spark."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import odf_engine as odf
from odf_engine.api.progress import JobStatus, NoDisplay, NotebookDisplay, StatusReporter, bar, create_display

SCRIPT = """
import sys, threading
import odf_engine as odf
from odf_engine.api import jobs
from odf_engine.jobs.verify import Verify, VerifyResult

def run(request, context, reporter):
    reporter.phase("check")
    reporter.set_amounts(rows=1234, total_rows=2468)
    while drawn.acquire(blocking=False):
        pass
    for _ in range(3):
        assert drawn.acquire(timeout=60)
    if sys.argv[3] == "fail":
        raise odf.OdfError("no")
    return VerifyResult(valid=True)

Verify.run = run
options = {"progress": {"none": None, "no": False, "yes": True}[sys.argv[2]]}
workspace = odf.open(sys.argv[1], in_process=True, **options)
display, drawn = workspace._runner._display, threading.Semaphore(0)
update = display.update
display.update = lambda status: (update(status), drawn.release())
try:
    workspace["my.cases"].verify()
except odf.OdfError as error:
    print("failed", error)
print("end")
"""
MANIFEST = "{kind: DatasetSnapshot, version: 1, content: {name: my.cases, kind: Root, metadata: []}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    workspace = odf.init(tmp_path / "ws")
    workspace.add(MANIFEST)
    return workspace.folder


def run_in_terminal(command: list[str], columns: int, **environment: str) -> str:
    """Run a command in a pseudo-terminal; return everything that it writes."""
    master, slave = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "LINES": "24", **environment}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env) as process:
        os.close(slave)
        written = b""
        while select.select([master], [], [], 60)[0]:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end was closed
                break
            written += part
        process.wait()
    os.close(master)
    return written.decode()


@pytest.mark.parametrize("outcome", ["done", "fail"])
def test_terminal_shows_a_bar_and_removes_it(folder: Path, outcome: str) -> None:
    written = run_in_terminal([sys.executable, "-c", SCRIPT, str(folder), "none", outcome], 100)
    lines = written.split("\r\x1b[2K")
    shown = "━" * 12 + "─" * 12 + "  50% verify my.cases: check, 1,234 rows"
    assert lines.count(shown) > 1  # drawn again and again
    # The bar is removed before anything else is written.
    assert lines[-1].split() == (["end"] if outcome == "done" else ["failed", "no", "end"])


def test_narrow_ascii_terminal_gets_a_truncated_ascii_bar(folder: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(folder), "none", "done"]
    written = run_in_terminal(command, 40, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    drawn = written.split("\r\x1b[2K")[1:-1]
    assert drawn[-1] == "#" * 12 + "-" * 12 + "  50% verify my.cases"[: 39 - 24]


def test_no_bar_when_it_is_silenced(folder: Path) -> None:
    written = run_in_terminal([sys.executable, "-c", SCRIPT, str(folder), "no", "done"], 80)
    assert written.split() == ["end"]


@pytest.mark.parametrize(("progress", "shown"), [("none", False), ("yes", True)])
def test_bar_without_terminal_appears_only_on_request(folder: Path, progress: str, shown: bool) -> None:
    command = [sys.executable, "-c", SCRIPT, str(folder), progress, "done"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["end"] and ("verify my.cases" in done.stderr) == shown


def test_notebook_display_is_updated_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, dict[str, Any]]] = []

    def note(kind: str) -> Any:
        return lambda data, raw, display_id: shown.append((f"{kind} {display_id}", data))

    pytest.importorskip("IPython.display")
    monkeypatch.setattr("IPython.display.display", note("display"))
    monkeypatch.setattr("IPython.display.update_display", note("update"))
    status, display = JobStatus("pull <my.cases>"), NotebookDisplay()
    reporter = StatusReporter(status)
    display.close(status, "done")
    assert shown == []  # a job that ends at once displays nothing
    display.update(status)
    reporter.phase("read")
    reporter.set_amounts(bytes=3, total_bytes=4, rows=1)
    display.update(status)
    display.close(status, "done")
    (first, start), (second, middle), (third, end) = shown
    ids = {each.split()[1] for each in (first, second, third)}
    assert [each.split()[0] for each in (first, second, third)] == ["display", "update", "update"]
    assert len(ids) == 1
    assert start["text/html"] == "<progress></progress> pull &lt;my.cases&gt;: starting"
    assert middle["text/html"] == '<progress value="0.750"></progress> pull &lt;my.cases&gt;: read, 1 row'
    assert re.fullmatch(r"pull <my\.cases>: done in \d+\.\d s", end["text/plain"])


def test_bar_shows_percentage_or_moving_block() -> None:
    assert bar(0, 1, "#-") == "-" * 24 + "   0%" and bar(1, 1, "#-") == "#" * 24 + " 100%"
    assert bar(None, 0, "#-") == "####" + "-" * 20 + "     "
    assert len({bar(None, at / 10) for at in range(60)}) == 21  # it moves through all positions
    assert isinstance(create_display(False), NoDisplay)
    status = JobStatus("pull a\x1b]0;b\nc")
    assert status.text == "pull a\\x1b]0;b c: starting"
