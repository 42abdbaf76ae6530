"""What the workstation takes: at rest, with ten million rows, with a chain of 100,000 blocks; and its jumps.

Run: ``python tests/bench/bench_screen.py [ROWS] [BLOCKS]``. It runs under tmux in 120 by 36 cells, over an
empty workspace, one with a dataset of 10 million rows in 20 slices, and one with a chain of 100,000 blocks.
Memory is what is resident after everything was shown and jumped about in. At rest nothing is pressed for 30
seconds, while the worker and its Spark are there.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import append_blocks, append_rows, make_empty, table
from terminals import ODF, QUIET, Terminal

from odf_engine.workspace.workspace import Workspace

ROWS, BLOCKS, SLICES = 10_000_000, 100_000, 20
REST = 30.0
JUMPS = 9

Line = tuple[str, str, str, str]


@contextmanager
def opened(folder: Path, *marks: str) -> Iterator[Terminal]:
    """A workstation that has shown these marks."""
    terminal = Terminal(ODF, folder)
    try:
        terminal.wait(*marks, seconds=120)
        terminal.rest(10)  # Spark may still say where it runs
        yield terminal
    finally:
        terminal.end()


def with_rows(folder: Path, rows: int) -> Workspace:
    """A workspace with a dataset of so many rows."""
    workspace = Workspace.init(folder)
    entry = make_empty(workspace, "many-rows")
    for _ in range(SLICES):
        append_rows(entry, rows // SLICES)
    return workspace


def with_blocks(folder: Path, blocks: int) -> Workspace:
    """A workspace with a chain of so many blocks."""
    workspace = Workspace.init(folder)
    append_blocks(make_empty(workspace, "many-blocks"), blocks)
    return workspace


def at_rest(terminal: Terminal) -> list[Line]:
    """Bytes to the terminal and CPU while nothing is pressed."""
    written, cpu, began = terminal.written, terminal.cpu(), time.perf_counter()
    terminal.rest(REST)
    seconds = time.perf_counter() - began
    rate = (terminal.written - written) / seconds
    share = (terminal.cpu() - cpu) / seconds * 100
    return [
        ("at rest: to the terminal", f"{rate:.1f} B/s", "", _told(rate, 0, "B/s")),
        ("at rest: CPU", f"{share:.2f} %", "", _told(share, 0.3, "%")),
    ]


def jumps(terminal: Terminal, there: tuple[str, str], back: tuple[str, str]) -> list[float]:
    """Seconds of jumps to one end; each begins at the other. ``(key, what is painted then)``."""
    times: list[float] = []
    terminal.send(there[0])
    terminal.wait(there[1])
    for _ in range(JUMPS):
        for (key, mark), kept in ((back, False), (there, True)):
            terminal.rest(0.4)
            terminal.output = b""
            start = time.perf_counter()
            terminal.send(key)
            terminal.wait(mark)
            if kept:
                times.append(time.perf_counter() - start)
    return times


def _told(value: float, goal: float, unit: str) -> str:
    return f"goal <= {goal:g} {unit}: {'met' if value <= goal else 'NOT met'}"


def _memory(what: str, terminal: Terminal, goal: float) -> Line:
    megabytes = terminal.megabytes()
    return f"memory: {what}", f"{megabytes:.0f} MB", "", _told(megabytes, goal, "MB")


def _jump(what: str, times: list[float]) -> Line:
    middle = statistics.median(times) * 1000
    return what, f"{middle:.0f} ms (longest {max(times) * 1000:.0f})", "", _told(middle, 100, "ms")


def spaced(number: int) -> str:
    """A number as it stands on the screen, as a regular expression."""
    return f"{number:,}".replace(",", ".")


def main() -> None:
    """Measures, and prints a table."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    blocks = int(sys.argv[2]) if len(sys.argv) > 2 else BLOCKS
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as temporary:
        empty = Workspace.init(Path(temporary) / "empty")
        wide = with_rows(Path(temporary) / "rows", rows)
        long = with_blocks(Path(temporary) / "blocks", blocks)
        try:
            with opened(empty.folder, "no datasets yet", "ready") as terminal:
                lines.append(_memory("empty workspace", terminal, 70))
                lines += at_rest(terminal)
            with opened(wide.folder, f"row 1 of {spaced(rows)}", "ready") as terminal:
                terminal.send("3")
                times = jumps(terminal, ("G", f"row {spaced(rows)} "), ("g", "row 1 "))
                lines.append(_jump(f"jump to the last of {rows:,} rows", times))
                lines.append(_memory(f"{rows:,} rows open", terminal, 140))
            with opened(long.folder, str(blocks - 1), "ready") as terminal:
                terminal.send("2")
                times = jumps(terminal, ("G", "Seed"), ("g", str(blocks - 1)))
                lines.append(_jump(f"jump to the first of {blocks:,} blocks", times))
                lines.append(_memory(f"chain of {blocks:,} blocks open", terminal, 90))
        finally:
            for workspace in (empty, wide, long):
                stop = [*ODF, "-w", str(workspace.folder), "worker", "stop"]
                subprocess.run(stop, check=False, **QUIET)
    table("the workstation, under tmux, 120 x 36", lines)


if __name__ == "__main__":
    main()
