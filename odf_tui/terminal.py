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
from odf_engine.files import open_file

_OSC52_LIMIT: Final = 70_000  # of base64; more is dropped by terminals and multiplexers
_TMUX_SECONDS: Final = 0.5  # the screen waits for it
_DCS_LIMIT: Final = 250  # of bytes that GNU screen passes on at a time
_COERCED: Final = ("C.UTF-8", "C.utf8", "UTF-8")  # what Python makes of the locale C


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
    # Textual draws on the standard error.
    if not (all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)) if tty is None else tty):
        raise UsageError(
            "the workstation needs a terminal, and its input or output goes elsewhere",
            hint="for scripts there are verbs: odf list, odf pull, …",
        )


def set_switches(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets what Textual reads when it is imported; what the person has set stays."""
    environ.setdefault("ESCDELAY", "25")
    environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    if _in_screen(environ):
        # It takes 24-bit colours for something else, and COLORTERM is that of the terminal around it.
        many = environ["TERM"].endswith("256color")
        environ.setdefault("TEXTUAL_COLOR_SYSTEM", "256" if many else "standard")
    if is_remote(environ):
        environ.setdefault("TEXTUAL_FPS", "15")
        environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    else:
        # A paint waits for the end of its frame: at the usual 60 that alone is 17 ms of every key press.
        environ.setdefault("TEXTUAL_FPS", "200")


def is_remote(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the screen is at the other end of a line."""
    return bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"))


def _in_screen(environ: Mapping[str, str]) -> bool:
    """Whether GNU screen is between us and the terminal."""
    return bool(environ.get("STY")) and environ.get("TERM", "").startswith("screen")


def characters(setting: str, environ: Mapping[str, str] = os.environ) -> str:
    """Which characters a terminal has: ``all``, ``console`` or ``ascii``.

    Args:
        setting: ``always`` and ``never`` say whether it is ASCII; ``auto`` asks the environment.
        environ: what it is asked for: the locale, and the kind of terminal.
    """
    if setting != "auto":
        return "ascii" if setting == "always" else "all"
    if not _utf8(environ):
        return "ascii"
    return "console" if environ.get("TERM") == "linux" else "all"


def _utf8(environ: Mapping[str, str]) -> bool:
    """Whether the locale's characters are UTF-8; where none is set, most terminals are."""
    names = [environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    locale = next(filter(None, names), "")
    if not names[0] and locale in _COERCED and names[2] in ("C", "POSIX"):
        locale = _at_start("LC_CTYPE") or names[2]  # Python has put its own there, see PEP 538
    if not locale:
        return True
    charset = locale.partition(".")[2] or locale
    return charset.partition("@")[0].casefold().replace("-", "") == "utf8"


def _at_start(name: str) -> str:
    """A variable as it was when the program started; empty where the system does not say it."""
    try:
        lines = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    found = (line for line in lines if line.startswith(name.encode() + b"="))
    return next(found, b"").partition(b"=")[2].decode(errors="replace")


def copy(
    text: str,
    write: Callable[[str], object],
    folder: Path,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Puts text on the clipboard by the best way there is, and says by which.

    Inside tmux its own buffer, else the terminal's clipboard (OSC 52), else a file in ``folder``. tmux
    drops OSC 52 as it is usually set, so when its buffer cannot be had only the file is sure.

    Args:
        write: called with an escape sequence for the terminal.
    """
    if environ.get("TMUX"):
        if _tmux(text, environ):
            return "copied through tmux"
        return _into_file(text, folder, "tmux does not answer")
    data = base64.b64encode(text.encode()).decode("ascii")
    if len(data) > _OSC52_LIMIT:
        return _into_file(text, folder, "too long for the clipboard")
    sequence = f"\x1b]52;c;{data}\a"
    write(_through_screen(sequence) if _in_screen(environ) else sequence)
    return "copied with OSC 52, if the terminal allows it"


def _through_screen(sequence: str) -> str:
    """What GNU screen passes on to the terminal around it."""
    parts = (sequence[start : start + _DCS_LIMIT] for start in range(0, len(sequence), _DCS_LIMIT))
    return "".join(f"\x1bP{part}\x1b\\" for part in parts)


def _into_file(text: str, folder: Path, why: str) -> str:
    path = folder / "clipboard.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_file(path, "wb") as file:
            file.write(text.encode())
    except OSError as error:
        return f"not copied: {why}, and {path} cannot be written: {error.strerror}"
    return f"{why}: written to {path}"


def _tmux(text: str, environ: Mapping[str, str]) -> bool:
    try:
        command = ["tmux", "load-buffer", "-w", "-"]
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=_TMUX_SECONDS, env=dict(environ)
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
