"""Terminals without capabilities, remote terminals, and the clipboard."""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from odf_engine.errors import UsageError
from odf_engine.workspace.workspace import Workspace
from odf_tui.app import Workstation
from odf_tui.theming import terminal, themes
from tests.tui.scripted_worker import Scenario


def test_dumb_terminals_are_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match="TERM=dumb") as refused:
        terminal.require_capable_terminal({"TERM": "dumb"}, tty=True)
    assert "odf --help" in str(refused.value.hint)
    with pytest.raises(UsageError, match="requires a terminal"):
        terminal.require_capable_terminal({"TERM": "xterm"}, tty=False)
    terminal.require_capable_terminal({"TERM": "xterm-256color"}, tty=True)


def test_remote_terminals_get_a_lower_frame_rate() -> None:
    near: dict[str, str] = {}
    terminal.configure_environment(near)
    assert near == {"ESCDELAY": "25", "TEXTUAL_ANIMATIONS": "none", "TEXTUAL_FPS": "200"}
    far = {"SSH_CONNECTION": "10.0.0.1 22", "TEXTUAL_FPS": "30"}
    terminal.configure_environment(far)
    assert far["TEXTUAL_FPS"] == "30"  # what the person has set stays
    assert far["TEXTUAL_SMOOTH_SCROLL"] == "0"
    assert "TEXTUAL_COLOR_SYSTEM" not in far
    other = {"SSH_TTY": "/dev/pts/1"}
    terminal.configure_environment(other)
    assert other["TEXTUAL_FPS"] == "15"


@pytest.mark.parametrize(
    ("environ", "colours"),
    [
        ({"STY": "4711.pts-0", "TERM": "screen-256color", "COLORTERM": "truecolor"}, "256"),
        ({"STY": "4711.pts-0", "TERM": "screen", "COLORTERM": "truecolor"}, "standard"),
        ({"STY": "4711.pts-0", "TERM": "screen", "TEXTUAL_COLOR_SYSTEM": "truecolor"}, "truecolor"),
        ({"TMUX": "x", "TERM": "screen-256color", "COLORTERM": "truecolor"}, None),
    ],
)
def test_gnu_screen_gets_no_colours_that_it_misreads(environ: dict[str, str], colours: str | None) -> None:
    terminal.configure_environment(environ)
    assert environ.get("TEXTUAL_COLOR_SYSTEM") == colours


def odf(arguments: str, shell_words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a terminal, with redirections in ``shell_words``."""
    program = f"{shlex.quote(sys.executable)} -m odf_tui {arguments} {shell_words}"
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *sys.path])
    return subprocess.run(
        ["script", "-qec", program, "/dev/null"],
        env=os.environ | {"PYTHONPATH": path} | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.skipif(shutil.which("script") is None, reason="needs script")
@pytest.mark.parametrize(
    ("words", "environ", "message"),
    [
        ("", {"TERM": "dumb"}, "this terminal (TERM=dumb) cannot show the workstation"),
        ("| cat", {"TERM": "xterm"}, "input or output is redirected"),
        ("< /dev/null", {"TERM": "xterm"}, "input or output is redirected"),
        ("2> errors; cat errors", {"TERM": "xterm"}, "input or output is redirected"),
    ],
)
def test_missing_terminal_is_an_error_with_hint(
    words: str, environ: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Workspace.init(tmp_path)
    monkeypatch.chdir(tmp_path)
    shown = odf("", words, **environ)
    assert message in shown.stdout
    assert "hint: " in shown.stdout
    assert "\x1b" not in shown.stdout


def test_copy_uses_osc_52(tmp_path: Path) -> None:
    written: list[str] = []
    message = terminal.copy("did:odf:ü", written.append, tmp_path, {})
    assert "OSC 52" in message
    data = written[0].removeprefix("\x1b]52;c;").removesuffix("\a")
    assert base64.b64decode(data).decode() == "did:odf:ü"


def test_copy_in_gnu_screen_is_split_into_parts(tmp_path: Path) -> None:
    written: list[str] = []
    text = "hash " * 100
    message = terminal.copy(text, written.append, tmp_path, {"STY": "1.pts-0", "TERM": "screen"})
    assert "OSC 52" in message
    parts = re.findall(r"\x1bP(.*?)\x1b\\", written[0], re.DOTALL)
    assert "".join(f"\x1bP{part}\x1b\\" for part in parts) == written[0]
    assert all(len(part) <= 250 for part in parts)
    data = "".join(parts).removeprefix("\x1b]52;c;").removesuffix("\a")
    assert base64.b64decode(data).decode() == text


def test_a_long_text_is_copied_to_a_file(tmp_path: Path) -> None:
    written: list[str] = []
    text = "x" * 60_000
    message = terminal.copy(text, written.append, tmp_path / "cache", {})
    assert not written
    assert str(tmp_path / "cache" / "clipboard.txt") in message
    assert (tmp_path / "cache" / "clipboard.txt").read_text() == text


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    message = terminal.copy("x" * 60_000, lambda text: None, tmp_path / "cache", {})
    assert message.startswith("not copied: too long for the clipboard, and ")
    assert "File exists" in message


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_copy_reaches_the_buffer_of_a_real_tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_TMUX_TIMEOUT_SECONDS", 30)

    def tmux(*words: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    try:
        tmux("new-session", "-d", "sleep 60")
        message = terminal.copy(
            "did:odf:ü\n", lambda text: None, tmp_path, os.environ | {"TMUX": f"{tmp_path}/tmux,1,0"}
        )
        assert message == "copied through tmux"
        assert tmux("show-buffer") == "did:odf:ü\n"
    finally:
        tmux("kill-server")
    message = terminal.copy(
        "gone", lambda text: None, tmp_path, os.environ | {"TMUX": f"{tmp_path}/tmux,1,0"}
    )
    assert message == f"tmux does not respond: written to {tmp_path}/clipboard.txt"


def test_copy_in_tmux_loads_its_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], bytes]] = []

    def run(command: list[str], *, input: bytes, **rest: object) -> subprocess.CompletedProcess[bytes]:
        asked.append((command, input))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    written: list[str] = []
    assert terminal.copy("hash", written.append, tmp_path, {"TMUX": "/tmp/tmux,1,0"}) == "copied through tmux"
    assert asked == [(["tmux", "load-buffer", "-w", "-"], b"hash")]
    assert not written


def test_the_text_is_not_lost_if_tmux_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*command: object, **rest: object) -> object:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", run)
    message = terminal.copy("hash", lambda text: None, tmp_path, {"TMUX": "/tmp/tmux,1,0"})
    assert "clipboard.txt" in message
    assert (tmp_path / "clipboard.txt").read_text() == "hash"


def test_no_color_removes_all_colours(source: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    source.ui = replace(source.ui, theme="tide")
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
    environment: dict[str, str], theme: str, source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLORTERM", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FORCE_COLOR", "1")
    source.ui = replace(source.ui, theme="auto")
    app = Workstation(source)
    assert app.theme == theme
    nearest = environment["TERM"].endswith("256color") and "COLORTERM" not in environment
    assert app._nearest.enabled is (nearest and "NO_COLOR" not in environment)
