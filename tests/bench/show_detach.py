"""Shows that a job outlives its terminal: what two terminals show before, while and after they are lost.

Run: ``python tests/bench/show_detach.py [FILE]``, with tmux. It makes a workspace with a dataset whose source
takes half a minute and says what it does, pulls it, and then loses one terminal after the other: by closing
it (SIGHUP), by killing the workstation (SIGKILL), by ``q``. What the terminals show goes to FILE, or else to
``tests/golden/jobs-detach-reattach.txt``. That is a recording to read: its times are others each time.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from odf_engine.coordinator.client import read_journal
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "jobs-detach-reattach.txt"
ODF = (sys.executable, "-c", "from odf_tui.main import main; main()")
PARTS = 60

MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: harbour.tides
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: "file:tides.csv"}
      prepare:
        - kind: Pipe
          command: [sh, -c, "for n in $(seq 1 %d); do echo tide gauge $n of %d >&2; sleep 0.5; done; cat"]
      read: {kind: Csv, header: true, schema: ["event_time TIMESTAMP", "gauge INT", "level DOUBLE"]}
      merge: {kind: Append}
"""


class Terminals:
    """Terminals of one tmux server."""

    def __init__(self, folder: Path, size: tuple[int, int]) -> None:
        self._folder, self._size = folder, size
        self._name = f"odf-detach-{os.getpid()}"

    def run(self, *words: str) -> str:
        """A command of tmux; what it says."""
        command = ["tmux", "-L", self._name, "-f", os.devnull, *words]
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout

    def open(self, name: str) -> None:
        """A workstation on a new terminal."""
        words = f"exec env TERM=screen-256color PYTHONPATH={shlex.quote(str(ROOT))} {shlex.join(ODF)}"
        width, height = map(str, self._size)
        self.run("new-session", "-d", "-s", name, "-x", width, "-y", height, "-c", str(self._folder), words)
        self.until(name, lambda text: "4 Jobs" in text or "1 Datasets" in text)

    def press(self, name: str, *keys: str) -> None:
        """Presses keys."""
        self.run("send-keys", "-t", name, *keys)

    def shown(self, name: str) -> str:
        """What a terminal shows."""
        return self.run("capture-pane", "-p", "-t", name)

    def pid(self, name: str) -> int:
        """The workstation on a terminal."""
        return int(self.run("list-panes", "-t", name, "-F", "#{pane_pid}"))

    def until(self, name: str, condition: Callable[[str], bool], seconds: float = 90) -> str:
        """Waits until a terminal shows something; what it shows then."""
        end = time.monotonic() + seconds
        while not condition(text := self.shown(name)):
            if time.monotonic() > end:
                raise TimeoutError(f"it was never shown:\n{text}")
            time.sleep(0.2)
        return text


class Recording:
    """What was done, and what was seen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[str] = []

    def say(self, text: str) -> None:
        """Something that was done."""
        self._parts.append(f"### {text}\n")

    def show(self, text: str) -> None:
        """Something that was seen."""
        self._parts.append("\n".join(map(self._line, text.rstrip("\n").splitlines())) + "\n")

    def _line(self, line: str) -> str:
        """A line without the folder that this happened in; what stands at its right end stays there."""
        where = str(self._folder.parent)
        found = line.rstrip().replace(where, "~")
        if where in line and found.endswith("│"):
            end = 2 if found.endswith("▐│") else 1
            found = found[:-end] + " " * (len(line.rstrip()) - len(found)) + found[-end:]
        return found

    def save(self, path: Path) -> None:
        """Into a file."""
        path.write_text("\n".join(self._parts), encoding="utf-8")


def make(folder: Path) -> Workspace:
    """A workspace with one dataset, which takes its time."""
    workspace = Workspace.init(folder)
    rows = (f"2024-03-01T{n // 60:02d}:{n % 60:02d}:00Z,{n % 7},{n % 40 / 10}" for n in range(1440))
    (folder / "tides.csv").write_text("event_time,gauge,level\n" + "\n".join(rows) + "\n")
    workspace.add(read_manifests(MANIFEST % (PARTS, PARTS), "tides"))
    return workspace


def show(folder: Path, terminals: Terminals, note: Recording) -> None:
    """Loses terminals, and finds the job again."""
    journal = read_journal(folder)

    def lines(at_least: int) -> Callable[[str], bool]:
        def reached(text: str) -> bool:
            numbers = [int(part.split()[0]) for part in text.split("tide gauge ")[1:] if part[0].isdigit()]
            return max(numbers, default=0) >= at_least

        return reached

    note.say("A terminal: p pulls harbour.tides, 4 goes to the jobs")
    terminals.open("first")
    terminals.press("first", "p", "4")
    note.show(terminals.until("first", lines(4)))

    note.say("The terminal is closed (SIGHUP). odf jobs:")
    terminals.run("kill-session", "-t", "first")
    time.sleep(1)
    note.show(odf(folder, "jobs"))

    note.say("Two other terminals: both follow")
    for name in ("second", "third"):
        terminals.open(name)
        terminals.press(name, "4")
    note.show(terminals.until("second", lines(15)))
    note.show(terminals.until("third", lines(15)))

    note.say("The second is killed (SIGKILL), the third left by q. The job goes on; what the third printed:")
    os.kill(terminals.pid("second"), signal.SIGKILL)
    terminals.run("set", "-g", "remain-on-exit", "on")
    terminals.press("third", "q")
    note.show(terminals.until("third", lambda text: "goes on" in text))

    note.say("Another terminal, ⏎ opens the log: all of it is there")
    terminals.open("fourth")
    terminals.press("fourth", "4", "Enter")
    terminals.until("fourth", lines(30))
    terminals.press("fourth", "g")
    note.show(terminals.until("fourth", lambda text: "tide gauge 1 of" in text))
    terminals.press("fourth", "G")

    note.say("The end, and the block that it wrote (esc, b)")
    note.show(terminals.until("fourth", lambda text: "all in all" in text and "· done" in text))
    terminals.press("fourth", "Escape")
    time.sleep(1)
    terminals.press("fourth", "b")
    note.show(terminals.until("fourth", lambda text: "2 Blocks" in text and "AddData" in text))

    note.say("odf logs: no line is missing")
    text = odf(folder, "logs", journal.jobs(1)[0].id)
    note.show(text)
    missing = [n for n in range(1, PARTS + 1) if f"tide gauge {n} of" not in text]
    note.say(f"lines of the {PARTS} that are missing: {missing or 'none'}")


def odf(folder: Path, *words: str) -> str:
    """A command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*ODF, "-w", str(folder), *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
    return done.stdout + done.stderr


def main() -> None:
    """Records."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "port-haven"
        make(folder)
        terminals, note = Terminals(folder, (100, 30)), Recording(folder)
        try:
            show(folder, terminals, note)
        finally:
            terminals.run("kill-server")
            odf(folder, "worker", "stop")
    note.save(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)


if __name__ == "__main__":
    main()
