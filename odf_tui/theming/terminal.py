"""What the terminal can do: colours, characters, clipboard, notifications, an external editor."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.files import open_file

NotifyBy = Literal["both", "bell", "osc9", "none"]
BELL: Final = "\a"
_MAX_TEXT: Final = 120
_TMUX_TIMEOUT: Final = 1.0
_NO_NOTIFICATIONS: Final = ("linux", "vt", "screen", "ansi", "cons")  # what would show the sequence as text


def notification_sequence(text: str, by: NotifyBy, environ: Mapping[str, str] = os.environ) -> str:
    """What to write to the terminal; asks tmux, so it is called in a thread.

    Args:
        text: what happened; it is made safe and short.
        by: the wanted ways; a terminal that knows no notifications gets the bell where both are.
    """
    bell = BELL if by in ("both", "bell") else ""
    return bell + (_osc9_sequence(text, environ) if by in ("both", "osc9") else "")


def _osc9_sequence(text: str, environ: Mapping[str, str]) -> str:
    from odf_tui.text.format import ellipsize_middle, printable

    sequence = f"\x1b]9;{ellipsize_middle(printable(text), _MAX_TEXT)}\a"
    if environ.get("TMUX"):
        # Through tmux to the terminal around it, if it lets that through.
        return f"\x1bPtmux;\x1b{sequence}\x1b\\" if _allows_passthrough() else ""
    return "" if environ.get("TERM", "").startswith(_NO_NOTIFICATIONS) else sequence


def _allows_passthrough() -> bool:
    command = ["tmux", "show-options", "-Apqv", "allow-passthrough"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TMUX_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and done.stdout.strip() != "off"  # before 3.3 there is no such option


_VARIABLES: Final = ("VISUAL", "EDITOR")
_DEFAULT_EDITORS: Final = ("nano", "vi", "vim")

# How editors are told of a line; others open at the top.
_PLUS: Final = frozenset({
    "vi", "vim", "nvim", "view", "vis", "nano", "pico", "emacs", "emacsclient", "micro", "kak", "joe", "jed",
    "mg", "ne", "mcedit",
})  # fmt: skip
_COLON: Final = frozenset(["hx", "helix", "subl", "zed"])
_GOTO: Final = frozenset(["code", "code-insiders", "codium", "cursor", "windsurf"])

# These return at once, with the file still open, unless they are told to wait.
_WAIT: Final = frozenset({*_GOTO, "subl", "zed"})


class ExternalEditor(msgspec.Struct, frozen=True):
    """An editor as a command; ``origin`` says where it was named, empty for one of the usual ones."""

    command: tuple[str, ...]
    origin: str = ""

    @property
    def name(self) -> str:
        """What the program is called."""
        return Path(self.command[0]).name

    def build_command(self, path: Path, line: int | None = None) -> list[str]:
        """The command that opens a file at a line (from 1)."""
        command = list(self.command)
        if self.name in _WAIT and not {"--wait", "-w"} & set(command):
            command.append("--wait")
        if line is None or line < 1:
            return [*command, str(path)]
        if self.name in _PLUS:
            return [*command, f"+{line}", str(path)]
        if self.name in _GOTO:
            return [*command, "--goto", f"{path}:{line}"]
        return [*command, f"{path}:{line}" if self.name in _COLON else str(path)]


def find_editor(environ: Mapping[str, str] = os.environ) -> ExternalEditor:
    """The editor that ``$VISUAL`` or ``$EDITOR`` name, else nano or vi, whichever is there.

    Raises:
        UsageError: a variable is no command, as the shell would read it.
        NotFound: no editor is named, and none of the usual ones is there.
    """
    for variable in _VARIABLES:
        if text := environ.get(variable, "").strip():
            try:
                command = shlex.split(text)
            except ValueError as error:
                raise UsageError(f"${variable} is no command ({error}): {text}") from None
            return ExternalEditor(tuple(command), f"${variable}")
    for name in _DEFAULT_EDITORS:
        if shutil.which(name, path=environ.get("PATH")):
            return ExternalEditor((name,))
    raise NotFound("there is no editor", hint="set EDITOR to one, or install nano or vi")


def run_editor(editor: ExternalEditor, path: Path, line: int | None, folder: Path) -> None:
    """Opens a file and waits until the editor has ended; ``folder`` is where it starts.

    Raises:
        OdfError: it could not be started, or it says that something went wrong.
    """
    code = _start(editor, editor.build_command(path, line), folder)
    if code:
        how = f"ended with code {code}" if code > 0 else f"was ended by signal {-code}"
        raise OdfError(f"the editor {editor.name} {how}")


def _start(editor: ExternalEditor, command: Sequence[str], folder: Path) -> int:
    try:
        return subprocess.run(command, cwd=folder, check=False).returncode
    except OSError as error:
        origin = f" (from {editor.origin})" if editor.origin else ""
        raise NotFound(
            f"the editor {editor.command[0]}{origin} cannot be started: {error.strerror}",
            hint="set EDITOR to one that is there",
        ) from None


_OSC52_LIMIT: Final = 70_000  # of base64; more is dropped by terminals and multiplexers
_TMUX_TIMEOUT_SECONDS: Final = 0.5  # the screen waits for it
_DCS_LIMIT: Final = 250  # of bytes that GNU screen passes on at a time
_COERCED: Final = ("C.UTF-8", "C.utf8", "UTF-8")  # what Python makes of the locale C


def require_capable_terminal(environ: Mapping[str, str] = os.environ, *, tty: bool | None = None) -> None:
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


def configure_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets what Textual reads when it is imported; what the person has set stays."""
    environ.setdefault("ESCDELAY", "25")
    environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    if _in_screen(environ):
        # It takes 24-bit colours for something else, and COLORTERM is that of the terminal around it.
        has_256 = environ["TERM"].endswith("256color")
        environ.setdefault("TEXTUAL_COLOR_SYSTEM", "256" if has_256 else "standard")
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


def supported_characters(setting: str, environ: Mapping[str, str] = os.environ) -> str:
    """Which characters a terminal has: ``all``, ``console`` or ``ascii``.

    Args:
        setting: ``always`` and ``never`` say whether it is ASCII; ``auto`` asks the environment.
        environ: what it is asked for: the locale, and the kind of terminal.
    """
    if setting != "auto":
        return "ascii" if setting == "always" else "all"
    if not _is_utf8(environ):
        return "ascii"
    return "console" if environ.get("TERM") == "linux" else "all"


def _is_utf8(environ: Mapping[str, str]) -> bool:
    """Whether the locale's characters are UTF-8; where none is set, most terminals are."""
    names = [environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    locale = next(filter(None, names), "")
    if not names[0] and locale in _COERCED and names[2] in ("C", "POSIX"):
        locale = _initial_value("LC_CTYPE") or names[2]  # Python has put its own there, see PEP 538
    if not locale:
        return True
    charset = locale.partition(".")[2] or locale
    return charset.partition("@")[0].casefold().replace("-", "") == "utf8"


def _initial_value(name: str) -> str:
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
        if _copy_to_tmux(text, environ):
            return "copied through tmux"
        return _write_to_file(text, folder, "tmux does not answer")
    data = base64.b64encode(text.encode()).decode("ascii")
    if len(data) > _OSC52_LIMIT:
        return _write_to_file(text, folder, "too long for the clipboard")
    sequence = f"\x1b]52;c;{data}\a"
    write(_wrap_for_screen(sequence) if _in_screen(environ) else sequence)
    return "copied with OSC 52, if the terminal allows it"


def _wrap_for_screen(sequence: str) -> str:
    """What GNU screen passes on to the terminal around it."""
    parts = (sequence[start : start + _DCS_LIMIT] for start in range(0, len(sequence), _DCS_LIMIT))
    return "".join(f"\x1bP{part}\x1b\\" for part in parts)


def _write_to_file(text: str, folder: Path, reason: str) -> str:
    path = folder / "clipboard.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_file(path, "wb") as file:
            file.write(text.encode())
    except OSError as error:
        return f"not copied: {reason}, and {path} cannot be written: {error.strerror}"
    return f"{reason}: written to {path}"


def _copy_to_tmux(text: str, environ: Mapping[str, str]) -> bool:
    try:
        command = ["tmux", "load-buffer", "-w", "-"]
        done = subprocess.run(
            command,
            input=text.encode(),
            capture_output=True,
            timeout=_TMUX_TIMEOUT_SECONDS,
            env=dict(environ),
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
