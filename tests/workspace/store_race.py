"""Two machines that commit to one dataset in a store at the same time, many times.

    python -m tests.workspace.store_race WORKSPACE

is one of the machines: for each line of its standard input, it reads the head or commits a slice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from odf_engine.errors import Conflict, OdfError
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import add_slices, make_root

_PROJECT = Path(__file__).parents[2]


def run_store_race(folder: Path, url: str, rounds: int) -> tuple[int, int]:
    """Run the race between two workspaces with separate folders.

    Returns:
        Number of rounds with exactly one winner, whose block is the new head of both; and of other rounds.
    """
    workspaces = [Workspace.init(folder / name, url) for name in ("here", "there")]
    make_root(workspaces[0])
    racers = [_start(workspace) for workspace in workspaces]
    right = 0
    try:
        known = _ask(racers, "read")
        assert known[0] == known[1]
        for number in range(rounds):
            outcomes = _ask(racers, "commit")
            after = _ask(racers, "read")
            if sorted(outcome == "conflict" for outcome in outcomes) == [False, True] and set(after) == (
                set(outcomes) - {"conflict"}
            ):
                right += 1
            else:
                print(f"round {number}: {outcomes}, then {after}", flush=True)
    finally:
        for racer in racers:
            racer.communicate(timeout=60)
    reader = Workspace.init(folder / "reader", url).resolve("numbers").dataset
    blocks = sum(1 for _ in reader.blocks())
    assert blocks == rounds + 2, f"{blocks} blocks after {rounds} rounds"
    return right, rounds - right


def _start(workspace: Workspace) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.workspace.store_race", str(workspace.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_PROJECT,
        bufsize=1,
    )


def _ask(racers: Sequence[subprocess.Popen[str]], command: str) -> list[str]:
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(f"{command}\n")
    return [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]


def main() -> None:
    """Read heads and commit slices."""
    entry = Workspace.find(explicit=Path(sys.argv[1])).resolve("numbers")
    for line in sys.stdin:
        try:
            if line.strip() == "commit":
                add_slices(entry, city=str(os.getpid()))  # identical blocks would not conflict
            else:
                entry.dataset.refresh()
            print(entry.dataset.head(), flush=True)
        except Conflict:
            print("conflict", flush=True)
        except OdfError as error:
            print(f"error: {error}", flush=True)


if __name__ == "__main__":
    main()
