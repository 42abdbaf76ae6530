"""Typed keys wait for what the key before them has started: a dialog that opens, or a list that is read.

Otherwise, keys that are typed fast, or sent together by a slow connection, would act on the wrong screen.
"""

from __future__ import annotations

import time
from typing import Final
from weakref import WeakKeyDictionary

_MAX_SECONDS: Final = 1.0
_holders: Final[WeakKeyDictionary[object, float]] = WeakKeyDictionary()
"""The workers and screens that keys wait for, and the time at which the wait began."""


def hold(holder: object) -> None:
    """Let typed keys wait for a worker or a screen, for a second at most."""
    _holders[holder] = time.monotonic()


def release(holder: object) -> None:
    """Let typed keys no longer wait for a worker or a screen."""
    _holders.pop(holder, None)


def release_others(screen: object) -> None:
    """Let typed keys wait for no worker or screen except this screen, which has opened."""
    for holder in [holder for holder in _holders if holder is not screen]:
        release(holder)


def are_held() -> bool:
    """Return whether typed keys have to wait."""
    oldest = time.monotonic() - _MAX_SECONDS
    return any(
        since > oldest and not getattr(holder, "is_cancelled", False) for holder, since in _holders.items()
    )
