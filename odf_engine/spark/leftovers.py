"""Tasks that go on although nobody waits for them any more.

Spark tells the tasks of a cancelled job that they should stop, and a task looks whenever it has read some
rows. One that makes endlessly many rows of a few never looks, and nothing but the end of Spark stops it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

PATIENCE: Final = 1.5
"""Seconds that tasks get to notice."""
_LOOK_SECONDS: Final = 0.2


class Working(Protocol):
    """What has tasks."""

    @property
    def tasks_running(self) -> int:
        """How many run right now, those of cancelled jobs included; 0 when it has ended."""
        ...


def has_leftovers(spark: Working, busy: Callable[[], bool]) -> bool:
    """Whether tasks do not stop. Waits until they have stopped, or nobody has been busy for a while."""
    since = time.monotonic()
    while spark.tasks_running:
        if busy():
            since = time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            return True
        time.sleep(_LOOK_SECONDS)
    return False
