"""Terminal capabilities: colours, characters, clipboard, notifications, external editor."""

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

from odf_engine.api import open_file
from odf_engine.api.text import printable
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_tui.text.format import ellipsize_middle

NotifyBy = Literal["both", "bell", "osc9", "none"]
BELL: Final = "\a"
_MAX_TEXT: Final = 120
_TMUX_TIMEOUT: Final = 1.0
_NO_BACKGROUND: Final = ("linux", "vt", "screen", "ansi", "cons")
_NO_NOTIFICATIONS: Final = (
    "linux",
    "vt",
    "screen",
    "ansi",
    "cons",
)  # they would print it


def notification_sequence(text: str, by: NotifyBy, environ: Mapping[str, str] = os.environ) -> str:
    """Return the control sequence of a notification. It may run tmux, which takes up to a second.

    Args:
        text: the text; control characters are escaped, and a long text is shortened.
        by: the bell, a notification (OSC 9), or both. A terminal without notifications gets only the bell.
        environ: the environment.
    """
    bell = BELL if by in ("both", "bell") else ""
    return bell + (_osc9_sequence(text, environ) if by in ("both", "osc9") else "")


def reports_background(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal can be asked for its background colour. Some would print the request."""
    return not environ.get("TERM", "").startswith(_NO_BACKGROUND)


def _osc9_sequence(text: str, environ: Mapping[str, str]) -> str:
    sequence = f"\x1b]9;{ellipsize_middle(printable(text), _MAX_TEXT)}\a"
    if environ.get("TMUX"):
        # tmux passes the sequence on to the outer terminal, if that is allowed.
        return f"\x1bPtmux;\x1b{sequence}\x1b\\" if _allows_passthrough() else ""
    return "" if environ.get("TERM", "").startswith(_NO_NOTIFICATIONS) else sequence


def _allows_passthrough() -> bool:
    command = ["tmux", "show-options", "-Apqv", "allow-passthrough"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TMUX_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and done.stdout.strip() != "off"  # tmux before 3.3 lacks the option


_VARIABLES: Final = ("VISUAL", "EDITOR")
_DEFAULT_EDITORS: Final = ("nano", "vi", "vim")

# Editors by the syntax of their line argument; others open at the first line.
_PLUS: Final = frozenset({
    "vi", "vim", "nvim", "view", "vis", "nano", "pico", "emacs", "emacsclient", "micro", "kak", "joe", "jed",
    "mg", "ne", "mcedit",
})  # fmt: skip
_COLON: Final = frozenset(["hx", "helix", "subl", "zed"])
_GOTO: Final = frozenset(["code", "code-insiders", "codium", "cursor", "windsurf"])

# Editors that return at once unless they get --wait.
_WAIT: Final = frozenset({*_GOTO, "subl", "zed"})


class ExternalEditor(msgspec.Struct, frozen=True):
    """The command of an editor.

    Attributes:
        command: program and arguments.
        origin: the variable that names it, or "" for a default editor.
    """

    command: tuple[str, ...]
    origin: str = ""

    @property
    def name(self) -> str:
        """The file name of the program."""
        return Path(self.command[0]).name

    def build_command(self, path: Path, line: int | None = None) -> list[str]:
        """Return the command that opens a file, at a line from 1."""
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
    """Return the editor of ``$VISUAL`` or ``$EDITOR``, else the first installed one of nano, vi and vim.

    Raises:
        UsageError: a variable has unbalanced quotes.
        NotFound: no variable is set, and no default editor is installed.
    """
    for variable in _VARIABLES:
        if text := environ.get(variable, "").strip():
            try:
                command = shlex.split(text)
            except ValueError as error:
                raise UsageError(f"invalid command in ${variable} ({error}): {text}") from None
            return ExternalEditor(tuple(command), f"${variable}")
    for name in _DEFAULT_EDITORS:
        if shutil.which(name, path=environ.get("PATH")):
            return ExternalEditor((name,))
    raise NotFound("no editor found", hint="set EDITOR, or install nano or vi")


def run_editor(editor: ExternalEditor, path: Path, line: int | None, folder: Path) -> None:
    """Open a file in an editor, and wait until it ends.

    Args:
        editor: the editor.
        path: the file.
        line: the line, from 1, or None for the first.
        folder: the working folder of the editor.

    Raises:
        OdfError: the editor does not start, or exits with an error.
    """
    code = _start(editor, editor.build_command(path, line), folder)
    if code:
        how = f"exited with code {code}" if code > 0 else f"was terminated by signal {-code}"
        raise OdfError(f"the editor {editor.name} {how}")


def _start(editor: ExternalEditor, command: Sequence[str], folder: Path) -> int:
    try:
        return subprocess.run(command, cwd=folder, check=False).returncode
    except OSError as error:
        origin = f" (from {editor.origin})" if editor.origin else ""
        raise NotFound(
            f"the editor {editor.command[0]}{origin} cannot be started: {error.strerror}",
            hint="set EDITOR to an installed editor",
        ) from None


_OSC52_LIMIT: Final = 70_000  # bytes of base64; terminals and multiplexers drop longer sequences
_TMUX_TIMEOUT_SECONDS: Final = 0.5  # it blocks the screen
_DCS_LIMIT: Final = 250  # bytes that GNU screen passes on in one sequence
_COERCED: Final = ("C.UTF-8", "C.utf8", "UTF-8")  # values that Python sets for the locale C


def require_capable_terminal(environ: Mapping[str, str] = os.environ, *, tty: bool | None = None) -> None:
    """Check that the terminal can show the workstation.

    Raises:
        UsageError: the terminal lacks cursor movement, or input or output is not a terminal.
    """
    if environ.get("TERM", "") in ("dumb", "unknown"):
        raise UsageError(
            f"this terminal (TERM={environ['TERM']}) cannot show the workstation",
            hint="use the command line instead: odf --help",
        )
    # Textual draws on the standard error.
    if not (all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)) if tty is None else tty):
        raise UsageError(
            "the workstation requires a terminal, but input or output is redirected",
            hint="use commands in scripts, such as odf list or odf pull",
        )


def configure_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that Textual reads at its import. Variables that are set stay unchanged."""
    environ.setdefault("ESCDELAY", "25")
    environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    if _in_screen(environ):
        # GNU screen misreads 24-bit colours, and COLORTERM is that of the outer terminal.
        has_256 = environ["TERM"].endswith("256color")
        environ.setdefault("TEXTUAL_COLOR_SYSTEM", "256" if has_256 else "standard")
    if is_remote(environ):
        environ.setdefault("TEXTUAL_FPS", "15")
        environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    else:
        # A paint waits for the end of its frame: 17 ms per key press at the default of 60.
        environ.setdefault("TEXTUAL_FPS", "200")


def is_remote(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal is connected by SSH."""
    return bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"))


def _in_screen(environ: Mapping[str, str]) -> bool:
    """Return whether the program runs inside GNU screen."""
    return bool(environ.get("STY")) and environ.get("TERM", "").startswith("screen")


def supported_characters(setting: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the characters that a terminal can show: ``all``, ``console`` or ``ascii``.

    Args:
        setting: ``always`` or ``never`` for ASCII; ``auto`` derives it from the environment.
        environ: the environment, with the locale and the type of the terminal.
    """
    if setting != "auto":
        return "ascii" if setting == "always" else "all"
    if not _is_utf8(environ):
        return "ascii"
    return "console" if environ.get("TERM") == "linux" else "all"


def _is_utf8(environ: Mapping[str, str]) -> bool:
    """Return whether the locale uses UTF-8. No locale counts as UTF-8."""
    names = [environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    locale = next(filter(None, names), "")
    if not names[0] and locale in _COERCED and names[2] in ("C", "POSIX"):
        locale = _initial_value("LC_CTYPE") or names[2]  # Python may have set it, see PEP 538
    if not locale:
        return True
    charset = locale.partition(".")[2] or locale
    return charset.partition("@")[0].casefold().replace("-", "") == "utf8"


def _initial_value(name: str) -> str:
    """Return a variable as it was at the start of the process, or "" if the system lacks /proc."""
    try:
        lines = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    values = (line for line in lines if line.startswith(name.encode() + b"="))
    return next(values, b"").partition(b"=")[2].decode(errors="replace")


def copy(
    text: str,
    write: Callable[[str], object],
    folder: Path,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Copy a text to the clipboard. Returns a description of the method used.

    It uses the buffer of tmux inside tmux, else the clipboard of the terminal (OSC 52), else a file.
    If the buffer of tmux fails, it uses the file: tmux drops OSC 52 by default.

    Args:
        text: the text.
        write: writes a control sequence to the terminal.
        folder: the folder of the file.
        environ: the environment.
    """
    if environ.get("TMUX"):
        if _copy_to_tmux(text, environ):
            return "copied through tmux"
        return _write_to_file(text, folder, "tmux does not respond")
    data = base64.b64encode(text.encode()).decode("ascii")
    if len(data) > _OSC52_LIMIT:
        return _write_to_file(text, folder, "too long for the clipboard")
    sequence = f"\x1b]52;c;{data}\a"
    write(_wrap_for_screen(sequence) if _in_screen(environ) else sequence)
    return "copied with OSC 52, if the terminal allows it"


def _wrap_for_screen(sequence: str) -> str:
    """Return the sequence in the form that GNU screen passes on to the outer terminal."""
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
