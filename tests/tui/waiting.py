"""Waits for a condition, in tests of single widgets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot


async def until(pilot: Pilot[Any], condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait until a condition is true.

    Raises:
        AssertionError: it was false all the time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await pilot.pause(0.005)
