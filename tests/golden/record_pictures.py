"""Records the pictures of the README: ``tour.svg`` and ``workstation.svg``.

    python -m tests.golden.record_pictures [FOLDER]

The tour shows the output of commands in a terminal of 80 columns (tmux). The other picture shows the
workstation with the demo. Times, hashes and durations differ between runs and are replaced by fixed values of
the same width. The pictures are written to FOLDER, by default to ``tests/golden``.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.text import Text

os.environ |= {"COLORTERM": "truecolor", "TERM": "xterm-256color"}  # before the import of Textual

from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.workspace.workspace import Workspace
from odf_tui.app import Workstation
from odf_tui.help.pages import read_page

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT = 80, 200
TOUR = (
    "odf add cases.yaml",
    "odf pull my.cases",
    "odf tail my.cases",
    "echo '2024-01-02,north,4' >> cases.csv",
    "odf pull my.cases",
    "odf log my.cases -n 2",
    'odf sql "SELECT area, sum(cases) AS cases FROM my.cases GROUP BY area"',
    "odf verify my.cases",
)
"""The commands of the tour, in a workspace with the files of the page ``getting-started``."""

_CASES = "day,area,cases\n2024-01-01,north,3\n2024-01-01,south,5\n"
_END = "end of the tour"
_TIME = re.compile(r"20(?!24)\d\d-\d\d-\d\d[T \u00a0]\d\d:\d\d(:\d\d)?(\.\d+)?")
_DURATION = re.compile(r"\b\d+(\.\d)? (ms|s)\b")
_HASH = re.compile(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{8}\b")
_ID = re.compile(r"did:odf:f[0-9a-f]+")


def record(folder: Path) -> str:
    """Run the tour in a folder. Returns the text of the terminal with its colours."""
    tools = folder / "tools"
    tools.mkdir()
    program = tools / "odf"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m odf_tui "$@"\n')
    program.chmod(0o755)
    work = folder / "trial"
    work.mkdir()
    manifest = re.search(r"^```yaml cases\.yaml\n(.*?)^```$", read_page("getting-started"), re.M | re.S)
    assert manifest is not None
    (work / "cases.yaml").write_text(manifest[1])
    (work / "cases.csv").write_text(_CASES)
    lines = ["odf init --quiet"]
    for command in TOUR:
        lines += [f"printf '\\033[1;32m$\\033[0m %s\\n' {shlex.quote(command)}", command, "echo"]
    script = folder / "tour.sh"
    script.write_text("\n".join([*lines, "odf worker stop --quiet", f"echo '{_END}'", "sleep 60"]) + "\n")
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(folder / "configuration"),
    }
    environment.pop("NO_COLOR", None)
    tmux = ["tmux", "-L", f"odf-tour-{os.getpid()}", "-f", os.devnull]
    size = ["-x", str(WIDTH), "-y", str(HEIGHT)]
    subprocess.run(
        [*tmux, "new-session", "-d", *size, "-c", str(work), f"bash {script}"], env=environment, check=True
    )
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            time.sleep(0.2)
            done = subprocess.run(
                [*tmux, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True
            )
            if _END in done.stdout:
                return done.stdout.partition(_END)[0]
        raise TimeoutError(done.stdout)
    finally:
        subprocess.run([*tmux, "kill-server"], capture_output=True)


def with_fixed_values(text: str) -> str:
    """Replace system times, durations, ids and hashes; equal ones by equal ones, all in the same width."""
    times: dict[str, str] = {}
    hashes: dict[str, str] = {}
    seconds, numbers = count(), count()

    def fixed_time(match: re.Match[str]) -> str:
        minute = f"{match[0][:10]} {match[0][11:19]}"
        if minute not in times:
            times[minute] = f"2026-03-01 10:00:{next(seconds):02}"
        shown = times[minute][:10] + match[0][10] + times[minute][11:]
        return (shown + ".000000000")[: len(match[0])]

    def fixed_hash(match: re.Match[str]) -> str:
        if match[0] not in hashes:
            hashes[match[0]] = hashlib.sha256(f"block {next(numbers)}".encode()).hexdigest()[:8]
        return hashes[match[0]]

    text = _ID.sub(lambda match: "did:odf:fed01" + "0" * (len(match[0]) - 13), text)
    text = _TIME.sub(fixed_time, text)
    text = _HASH.sub(fixed_hash, text)
    return _DURATION.sub(lambda match: ("0.9" if match[1] else "9") + f" {match[2]}", text)


def picture(text: str) -> str:
    """Return the text of a terminal as an SVG document."""
    console = Console(file=io.StringIO(), width=WIDTH, record=True, force_terminal=True)
    console.print(Text.from_ansi(text.rstrip()), soft_wrap=True)
    return console.export_svg(title="odf", unique_id="tour")


SCREEN_SIZE = (132, 40)
SCREEN_KEYS = ("j", "l", "3", "down", "down", "down", "1")
"""Keys that select a derivative dataset and a row of it."""


async def record_workstation(folder: Path) -> str:
    """Create the demo in a folder. Returns a picture of the workstation as an SVG document."""
    odf = [sys.executable, "-m", "odf_tui"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*odf, "demo", str(folder / "demo"), "--no-tui"], env=environment, check=True)
    app = Workstation(OpenWorkspace(Workspace.find(folder / "demo")))
    try:
        async with app.run_test(size=SCREEN_SIZE) as pilot:
            await pilot.pause(3)
            for key in SCREEN_KEYS:
                await pilot.press(key)
                await pilot.pause(0.5)
            await pilot.pause(3)
            screen = app.export_screenshot(title="odf").replace("&#160;", "\u00a0")
            return with_fixed_values(screen).replace("\u00a0", "&#160;")
    finally:
        subprocess.run([*odf, "worker", "stop"], cwd=folder / "demo", env=environment, check=True)


def main() -> None:
    """Record the pictures, and write them."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "golden"
    with tempfile.TemporaryDirectory(prefix="odf-tour-") as folder:
        text = with_fixed_values(record(Path(folder)))
        screen = asyncio.run(record_workstation(Path(folder)))
    (target / "tour.svg").write_text(picture(text), encoding="utf-8")
    (target / "workstation.svg").write_text(screen, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
