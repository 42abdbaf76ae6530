"""The number of function calls: a measure of work that is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def max_calls(limit: int) -> Iterator[None]:
    """Fail if the ``with`` body makes more function calls, of Python or of C, in this thread."""
    count, before = 0, sys.getprofile()

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")
        assert count <= limit, f"more than {limit:,} function calls"

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert count <= limit, f"{count:,} function calls"  # also if the error above was suppressed
