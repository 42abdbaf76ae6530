"""Telling somebody who looks elsewhere: the terminal's bell, and its notifications (OSC 9)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Final, Literal

from odf_tui.humane import plain, shorten

By = Literal["both", "bell", "osc9", "none"]

BELL: Final = "\a"
_LONGEST: Final = 120
_TMUX_SECONDS: Final = 1.0
_PRINTS_THEM: Final = ("linux", "vt", "screen", "ansi", "cons")  # what would show the sequence as text


def sequences(text: str, by: By, environ: Mapping[str, str] = os.environ) -> str:
    """What to write to the terminal; asks tmux, so it is called in a thread.

    Args:
        text: what happened; it is made safe and short.
        by: the wanted ways; a terminal that knows no notifications gets the bell where both are.
    """
    bell = BELL if by in ("both", "bell") else ""
    return bell + (_notification(text, environ) if by in ("both", "osc9") else "")


def _notification(text: str, environ: Mapping[str, str]) -> str:
    sequence = f"\x1b]9;{shorten(plain(text), _LONGEST)}\a"
    if environ.get("TMUX"):
        # Through tmux to the terminal around it, if it lets that through.
        return f"\x1bPtmux;\x1b{sequence}\x1b\\" if _passes_through() else ""
    return "" if environ.get("TERM", "").startswith(_PRINTS_THEM) else sequence


def _passes_through() -> bool:
    command = ["tmux", "show-options", "-Apqv", "allow-passthrough"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TMUX_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and done.stdout.strip() != "off"  # before 3.3 there is no such option
