"""Terminals that cannot, terminals far away, and the ways to the clipboard."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from odf_engine.errors import UsageError
from odf_tui import terminal, themes
from odf_tui.workstation import Workstation
from tests.tui.fake import FakeSource


def test_dumb_terminals_are_told_of_the_command_line() -> None:
    with pytest.raises(UsageError, match="TERM=dumb") as refused:
        terminal.check({"TERM": "dumb"}, tty=True)
    assert "odf --help" in str(refused.value.hint)
    with pytest.raises(UsageError, match="needs a terminal"):
        terminal.check({"TERM": "xterm"}, tty=False)
    terminal.check({"TERM": "xterm-256color"}, tty=True)


def test_switches_for_near_and_far() -> None:
    near: dict[str, str] = {}
    terminal.set_switches(near)
    assert near == {"ESCDELAY": "25", "TEXTUAL_ANIMATIONS": "none", "TEXTUAL_FPS": "200"}
    far = {"SSH_CONNECTION": "10.0.0.1 22", "TEXTUAL_FPS": "30"}
    terminal.set_switches(far)
    assert far["TEXTUAL_FPS"] == "30"  # what the person has set stays
    assert far["TEXTUAL_SMOOTH_SCROLL"] == "0"
    other = {"SSH_TTY": "/dev/pts/1"}
    terminal.set_switches(other)
    assert other["TEXTUAL_FPS"] == "15"


def test_copying_through_the_terminal(tmp_path: Path) -> None:
    written: list[str] = []
    said = terminal.copy("did:odf:ü", written.append, tmp_path, {})
    assert "OSC 52" in said
    data = written[0].removeprefix("\x1b]52;c;").removesuffix("\a")
    assert base64.b64decode(data).decode() == "did:odf:ü"


def test_what_is_too_long_goes_into_a_file(tmp_path: Path) -> None:
    written: list[str] = []
    text = "x" * 60_000
    said = terminal.copy(text, written.append, tmp_path / "cache", {})
    assert not written
    assert str(tmp_path / "cache" / "clipboard.txt") in said
    assert (tmp_path / "cache" / "clipboard.txt").read_text() == text


def test_copying_inside_tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], bytes]] = []

    def run(command: list[str], *, input: bytes, **rest: object) -> subprocess.CompletedProcess[bytes]:
        asked.append((command, input))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    written: list[str] = []
    assert terminal.copy("hash", written.append, tmp_path, {"TMUX": "/tmp/tmux,1,0"}) == "copied through tmux"
    assert asked == [(["tmux", "load-buffer", "-w", "-"], b"hash")]
    assert not written


def test_a_tmux_that_fails_does_not_swallow_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*command: object, **rest: object) -> object:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", run)
    said = terminal.copy("hash", lambda text: None, tmp_path, {"TMUX": "/tmp/tmux,1,0"})
    assert "clipboard.txt" in said
    assert (tmp_path / "clipboard.txt").read_text() == "hash"


def test_without_colours_there_are_none(source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    source.theme = "tide"  # type: ignore[misc]
    app = Workstation(source)
    drawn = Style.parse("bold red on blue")
    segments = [Segment("x", drawn)]
    for each in app.get_line_filters():
        segments = each.apply(segments, Color(0, 0, 0))
    style = segments[0].style
    assert style is not None
    assert style.bold
    assert style.color is not None
    assert style.color.is_default
    assert style.bgcolor is not None
    assert style.bgcolor.is_default
    assert app.theme == themes.FEW_COLOURS


@pytest.mark.parametrize(
    ("environment", "theme"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "tide"),
        ({"TERM": "tmux-256color"}, "tide"),
        ({"TERM": "linux"}, themes.FEW_COLOURS),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, themes.FEW_COLOURS),
    ],
)
def test_the_theme_suits_the_terminal(
    environment: dict[str, str], theme: str, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLORTERM", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FORCE_COLOR", "1")
    source.theme = "auto"  # type: ignore[misc]
    app = Workstation(source)
    assert app.theme == theme
    nearest = environment["TERM"].endswith("256color") and "COLORTERM" not in environment
    assert app._nearest.enabled is (nearest and "NO_COLOR" not in environment)
