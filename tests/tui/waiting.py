"""Waits for what the workstation or a single widget shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen

from odf_tui.state import typed_keys
from tests.waiting import wait_until_async


def screen_text(screen: Screen[Any]) -> str:
    """Return a screen as text."""
    lines = ("".join(part.text for part in strip).rstrip() for strip in screen._compositor.render_strips())
    return "\n".join(lines) + "\n"


async def press(pilot: Pilot[Any], *keys: str) -> None:
    """Press keys, each after what the one before it has started, as the driver of terminals does."""
    for key in keys:
        await pilot.press(key)
        while typed_keys.are_held():
            await pilot.pause(0.01)
        await pilot.pause()


async def until(pilot: Pilot[Any], condition: Callable[[], object]) -> None:
    """Wait until a condition is true, and let the app handle its messages.

    Raises:
        AssertionError: it is still false; the message has the screen.
    """
    await wait_until_async(condition, what=lambda: screen_text(pilot.app.screen), pause=pilot.pause)
