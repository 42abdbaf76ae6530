"""What the terminal can do: colours, speed, the clipboard; and what has to be set before Textual starts."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Final

from odf_engine.errors import UsageError

_OSC52_LIMIT: Final = 70_000  # of base64; more is dropped by terminals and multiplexers
_TMUX_SECONDS: Final = 2.0


def check(environ: Mapping[str, str] = os.environ, *, tty: bool | None = None) -> None:
    """Refuses terminals that the workstation cannot draw on.

    Raises:
        UsageError: not a terminal, or one without cursor movement.
    """
    if environ.get("TERM", "") in ("dumb", "unknown"):
        raise UsageError(
            f"this terminal (TERM={environ['TERM']}) cannot show the workstation",
            hint="everything works from the command line too: odf --help",
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty() if tty is None else tty):
        raise UsageError(
            "the workstation needs a terminal", hint="for scripts there are verbs: odf list, odf pull, …"
        )


def set_switches(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets what Textual reads when it is imported; what the person has set stays."""
    environ.setdefault("ESCDELAY", "25")
    environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    if is_remote(environ):
        environ.setdefault("TEXTUAL_FPS", "15")
        environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    else:
        # A paint waits for the end of its frame: at the usual 60 that alone is 17 ms of every key press.
        environ.setdefault("TEXTUAL_FPS", "200")


def is_remote(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the screen is at the other end of a line."""
    return bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"))


def copy(
    text: str,
    write: Callable[[str], object],
    folder: Path,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Puts text on the clipboard by the best way there is, and says by which.

    Inside tmux its own buffer, else the terminal's clipboard (OSC 52), else a file in ``folder``.

    Args:
        write: called with an escape sequence for the terminal.
    """
    if environ.get("TMUX") and _tmux(text):
        return "copied through tmux"
    data = base64.b64encode(text.encode()).decode("ascii")
    if not environ.get("TMUX") and len(data) <= _OSC52_LIMIT:
        write(f"\x1b]52;c;{data}\a")
        return "copied with OSC 52, if the terminal allows it"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "clipboard.txt"
    path.write_text(text, encoding="utf-8")
    return f"too long for the clipboard: written to {path}"


def _tmux(text: str) -> bool:
    try:
        command = ["tmux", "load-buffer", "-w", "-"]
        done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=_TMUX_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
