"""The program in a terminal: whatever arrives, and however it ends, the terminal is restored."""

from __future__ import annotations

import os
import pty
import re
import select
import selectors
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from odf_engine.chain.references import create_branch
from odf_engine.workspace.workspace import Workspace
from odf_tui.services.terminal_driver import TerminalDriver
from tests.sync.builders import make_root
from tests.tui.terminal_screen import TerminalScreen
from tests.waiting import read_until, wait_until

_SCREEN = b"\x1b[?1049h"
_HANGING = """
import time
from odf_tui.services.terminal_driver import TerminalDriver
from textual.app import App
class Hanging(App):
    def on_ready(self): self._driver.write("it hangs"); time.sleep(600)
Hanging(driver_class=TerminalDriver).run()
"""
_SLOW_BRANCHES = """
import time
from odf_engine.api.workspace import Workspace
read = Workspace.list_branches
Workspace.list_branches = lambda *arguments: (time.sleep(0.2), read(*arguments))[1]
from odf_tui.main import main
main()
"""


class Terminal:
    """A program in a terminal of its own."""

    def __init__(
        self, *arguments: str, folder: Path | None = None, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self.process, self.file = pty.fork()
        if not self.process:
            for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):  # ignored below nohup, for example
                signal.signal(number, signal.SIG_DFL)
            prepare()
            os.chdir(folder or Path.cwd())
            path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *sys.path])
            environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": path}
            os.execvpe(sys.executable, [sys.executable, *arguments], environment)
        self.before = termios.tcgetattr(self.file)
        self.output = b""
        self.has_ended = False

    def until(self, pattern: bytes) -> None:
        """Wait until the output has a text."""

        def search(shown: bytes) -> re.Match[bytes] | None:
            self.output = shown
            return re.search(pattern, shown)

        read_until(self.file, search, seconds=60)

    def press(self, data: bytes) -> None:
        os.write(self.file, data)

    def read_to_end(self) -> None:
        with suppress(OSError):
            while select.select([self.file], [], [], 60)[0] and (part := os.read(self.file, 1 << 16)):
                self.output += part

    def exit_code(self) -> int:
        """Read the output to its end; return the exit code, or a negative signal number."""
        self.read_to_end()
        return os.waitstatus_to_exitcode(wait_until(self.ended)[1])

    def ended(self) -> tuple[int, int] | None:
        """Return the process and its status, or None while it runs."""
        status = os.waitpid(self.process, os.WNOHANG)
        self.has_ended = bool(status[0])
        return status if self.has_ended else None

    @property
    def modes(self) -> set[str]:
        """The modes of the terminal that the program has set and not reset."""
        modes: set[str] = set()
        for mode, end in re.findall(r"\x1b\[\?(\d+)([hl])", self.output.decode(errors="replace")):
            (modes.add if end == "h" else modes.discard)(mode)
        return modes - {"7", "25", "2026"}  # wrapping, cursor, synchronized output


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "rows.csv").write_text("city,count\nBern,1\nBasel,2\n")
    terminal = Terminal("-m", "odf_tui", "view", str(tmp_path / "rows.csv"))
    terminal.until(b"Basel")
    yield terminal
    if not terminal.has_ended:
        os.kill(terminal.process, signal.SIGKILL)
    os.close(terminal.file)


def test_bytes_that_are_not_text_do_not_end_the_program(viewer: Terminal) -> None:
    viewer.press(b"\xe9x\xff\xfe\x80")
    viewer.press(b"\x1b[97;;1114112u\x1b[99999999999u\x1b[;;;u")
    viewer.press(b"\x1bP>|XTerm(388)\x1b\\\x1b]11;rgb:ffff/ffff/ffff\x07\x1b[?62;4c")
    viewer.press(b"\x1b[B")
    viewer.press(b"q")
    assert viewer.exit_code() == 0
    assert b"Traceback" not in viewer.output
    assert viewer.modes == set()
    assert termios.tcgetattr(viewer.file) == viewer.before


def test_a_suspended_program_leaves_the_terminal_until_it_continues(viewer: Terminal) -> None:
    viewer.press(b"\x1a")
    _, status = os.waitpid(viewer.process, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    viewer.until(rb"\x1b\[\?1004l")
    assert viewer.modes == set()
    assert termios.tcgetattr(viewer.file) == viewer.before
    os.kill(viewer.process, signal.SIGCONT)
    viewer.until(b"Basel")
    viewer.press(b"\x0c")
    viewer.until(b"Basel")
    viewer.press(b"q")
    assert viewer.exit_code() == 0


def test_a_program_that_continues_paints_the_complete_screen(viewer: Terminal) -> None:
    viewer.press(b"\x1a")
    os.waitpid(viewer.process, os.WUNTRACED)
    os.kill(viewer.process, signal.SIGCONT)
    viewer.until(b"Basel")
    viewer.press(b"q")
    assert viewer.exit_code() == 0
    start, end = viewer.output.rindex(_SCREEN), viewer.output.rindex(b"\x1b[?1049l")
    screen = TerminalScreen(80, 24)
    screen.feed(viewer.output[start:end].decode())
    lines = ["".join(cell[0] for cell in line) for line in screen.cells]
    assert all(len(line) == 80 for line in lines)
    assert any("Bern" in line for line in lines)


def test_a_light_terminal_gets_the_light_theme(viewer: Terminal) -> None:
    assert b"\x1b]11;?" in viewer.output
    viewer.press(b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\")
    viewer.until(rb"Basel")
    viewer.press(b"q")
    assert viewer.exit_code() == 0
    assert b"48;5;255m" in viewer.output or b"48;2;247;244;236m" in viewer.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_restores_the_terminal(viewer: Terminal, number: signal.Signals) -> None:
    os.kill(viewer.process, number)
    assert viewer.exit_code() == 128 + number
    assert b"Traceback" not in viewer.output
    assert viewer.modes == set()
    assert viewer.output.rindex(b"\x1b[?1049l") > viewer.output.rindex(_SCREEN)
    assert termios.tcgetattr(viewer.file) == viewer.before


def test_a_second_signal_ends_a_program_that_does_not_respond() -> None:
    terminal = Terminal("-c", _HANGING)
    terminal.until(b"it hangs")

    def end() -> tuple[int, int] | None:
        os.kill(terminal.process, signal.SIGTERM)
        return terminal.ended()

    assert os.waitstatus_to_exitcode(wait_until(end)[1]) == -signal.SIGTERM
    terminal.read_to_end()
    assert terminal.modes == set()
    assert termios.tcgetattr(terminal.file) == terminal.before
    os.close(terminal.file)


def test_a_closed_terminal_ends_the_program_that_ignores_hangups(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("city,count\nBern,1\n")
    terminal = Terminal(
        "-m", "odf_tui", "view", str(tmp_path / "rows.csv"),
        prepare=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN) and None,
    )  # fmt: skip
    terminal.until(b"Bern")
    os.close(terminal.file)
    assert os.waitstatus_to_exitcode(wait_until(terminal.ended)[1]) != 0


def test_keys_that_arrive_with_the_key_that_opens_a_dialog_reach_it(viewer: Terminal) -> None:
    viewer.press(b"fg")  # the second key is an entry of the dialog
    viewer.until(b"filtered: city > Bern")
    viewer.press(b"q")
    assert viewer.exit_code() == 0


def test_keys_wait_for_the_list_of_a_dialog(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "ws")
    dataset = make_root(workspace, slices=2).dataset
    create_branch(dataset, "review", dataset.state().head)
    terminal = Terminal("-c", _SLOW_BRANCHES, folder=workspace.folder)
    terminal.until(b"numbers")
    terminal.press(b"2Bjr")
    terminal.until(b"Rename.*numbers@review")
    os.kill(terminal.process, signal.SIGTERM)
    assert terminal.exit_code() == 128 + signal.SIGTERM
    os.close(terminal.file)
    subprocess.run([sys.executable, "-m", "odf_tui", "worker", "stop"], cwd=workspace.folder, check=True)


def test_a_paste_that_arrives_in_parts_is_read_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odf_tui.services.terminal_driver._READ_BYTES", 2048)
    driver = TerminalDriver.__new__(TerminalDriver)
    driver.fileno, sender = os.pipe()
    with selectors.SelectSelector() as selector:
        selector.register(driver.fileno, selectors.EVENT_READ)
        os.write(sender, b"x" * 10_000)
        assert driver._read(selector) == b"x" * 10_000
        os.write(sender, b"x" * 10)
        assert driver._read(selector) == b"x" * 10
        os.close(sender)
        assert driver._read(selector) == b""
    os.close(driver.fileno)
