"""The reader's own editor: which one it is, and how it opens a file at a line."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from odf_engine.errors import NotFound, OdfError, UsageError

_VARIABLES: Final = ("VISUAL", "EDITOR")
_USUAL: Final = ("nano", "vi", "vim")

# How editors are told of a line; others open at the top.
_PLUS: Final = frozenset({
    "vi", "vim", "nvim", "view", "vis", "nano", "pico", "emacs", "emacsclient", "micro", "kak", "joe", "jed",
    "mg", "ne", "mcedit",
})  # fmt: skip
_COLON: Final = frozenset(["hx", "helix", "subl", "zed"])
_GOTO: Final = frozenset(["code", "code-insiders", "codium", "cursor", "windsurf"])
# These return at once, with the file still open, unless they are told to wait.
_WAIT: Final = frozenset({*_GOTO, "subl", "zed"})


class Editor(msgspec.Struct, frozen=True):
    """An editor as a command; ``origin`` says where it was named, empty for one of the usual ones."""

    command: tuple[str, ...]
    origin: str = ""

    @property
    def name(self) -> str:
        """What the program is called."""
        return Path(self.command[0]).name

    def opening(self, path: Path, line: int | None = None) -> list[str]:
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


def find(environ: Mapping[str, str] = os.environ) -> Editor:
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
            return Editor(tuple(command), f"${variable}")
    for name in _USUAL:
        if shutil.which(name, path=environ.get("PATH")):
            return Editor((name,))
    raise NotFound("there is no editor", hint="set EDITOR to one, or install nano or vi")


def run(editor: Editor, path: Path, line: int | None, folder: Path) -> None:
    """Opens a file and waits until the editor has ended; ``folder`` is where it starts.

    Raises:
        OdfError: it could not be started, or it says that something went wrong.
    """
    code = _call(editor, editor.opening(path, line), folder)
    if code:
        how = f"ended with code {code}" if code > 0 else f"was ended by signal {-code}"
        raise OdfError(f"the editor {editor.name} {how}")


def _call(editor: Editor, command: Sequence[str], folder: Path) -> int:
    try:
        return subprocess.run(command, cwd=folder, check=False).returncode
    except OSError as error:
        origin = f" (from {editor.origin})" if editor.origin else ""
        raise NotFound(
            f"the editor {editor.command[0]}{origin} cannot be started: {error.strerror}",
            hint="set EDITOR to one that is there",
        ) from None
