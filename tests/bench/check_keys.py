"""500 random keys on a real workspace: nothing breaks, and the screen still answers.

    python tests/bench/check_keys.py [SEED] [KEYS] [SESSIONS]

The demo's workspace with its worker and Spark, under tmux in 80 by 24 cells; jobs that keys start really run.
Keys that leave are left out; the editor is ``true``. After every 25 keys escape has to lead back, and `2` and
`1` have to be heard; the process must be the same, and no traceback on the screen.
"""

from __future__ import annotations

import random
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from terminals import ODF, QUIET, Terminal

MOVES = ["j", "k", "h", "l", "1", "2", "3", "4", "Tab", "Enter", "Escape", "Up", "Down", "Left", "Right"]
CONTROL = ["C-d", "C-f", "C-g", "C-l", "C-o", "C-p", "C-r", "C-s", "C-u"]
LETTERS = string.ascii_letters.replace("q", "")
KEYS = [
    *LETTERS,
    *string.digits,
    *"/:?+-=<>[]{}.,!",
    "Space",
    "BSpace",
    "NPage",
    "PPage",
    *CONTROL,
    *MOVES * 4,
]


def answers(terminal: Terminal) -> bool:
    """Whether escape leads back and keys are heard."""
    for _ in range(15):
        terminal.send("Escape")
        terminal.rest(0.05)
    terminal.rest(0.5)  # a key that comes right behind it would be taken for one with alt
    for key, label in (("2", "2 Blocks"), ("1", "1 Datasets")):
        terminal.send(key)
        deadline = time.perf_counter() + 10
        while label not in terminal.screen():
            if time.perf_counter() > deadline or not Path(f"/proc/{terminal.pid}").is_dir():
                return False
            terminal.rest(0.1)
    return "Traceback" not in terminal.screen()


def session(folder: Path, seed: int, keys: int) -> bool:
    """Presses keys; whether all went well."""
    chance = random.Random(seed)
    terminal = Terminal(ODF, folder, (80, 24), {"EDITOR": "true", "VISUAL": ""})
    pressed: list[str] = []
    try:
        terminal.wait("ready", seconds=120)
        for number in range(1, keys + 1):
            pressed.append(chance.choice(KEYS))
            terminal.send(pressed[-1])
            terminal.rest(chance.choice([0.0, 0.01, 0.05]))
            if number % 25 == 0 and not answers(terminal):
                print(f"seed {seed}: after {number} keys, the last {' '.join(pressed[-60:])}")
                print(terminal.screen(above=300))
                return False
        return True
    finally:
        terminal.end()


def main() -> None:
    """Makes the demo, and plays with it."""
    numbers = [int(text) for text in sys.argv[1:]]
    first, keys, sessions = (*numbers, *(7, 500, 1)[len(numbers) :])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "demo"
        subprocess.run([*ODF, "demo", str(folder), "--no-tui"], check=True, **QUIET)
        try:
            good = [session(folder, seed, keys) for seed in range(first, first + sessions)]
        finally:
            subprocess.run([*ODF, "-w", str(folder), "worker", "stop"], check=False, **QUIET)
    print(f"{sum(good)} of {sessions} sessions of {keys} random keys (seeds from {first}): nothing broke")
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
