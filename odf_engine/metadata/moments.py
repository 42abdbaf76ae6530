"""Moments as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from odf_engine.errors import UsageError
from odf_engine.metadata.timestamp import Timestamp

_MOMENT: Final = re.compile(
    r"(\d{4})-(\d\d?)(?:-(\d\d?)(?:[T ](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?)?Z?", re.ASCII
)
_HINT: Final = "write 2026-03-01, 2026-03-01 14:00 (UTC) or 2026-03-01T14:00:00Z"


def looks_like_a_time(text: str) -> bool:
    """Whether a text is meant as a time: blocks are not named so."""
    return re.match(r"\d{4}-\d", text.strip()) is not None


def moment_of(text: str) -> Timestamp:
    """A moment that was typed: RFC 3339, or a month, day or time of day in UTC, at its beginning.

    Raises:
        UsageError: it is none.
    """
    text = text.strip()
    try:
        return Timestamp.parse(text.replace(" ", "T", 1))
    except ValueError:
        found = _MOMENT.fullmatch(text)
    if found is None:
        raise UsageError(f"'{text}' is not a time", hint=_HINT)
    year, month, day, hour, minute, second = (int(part) if part else 0 for part in found.groups()[:6])
    try:
        start = datetime(year, month, day if found[3] else 1, hour % 24, minute, second, tzinfo=UTC)
        moment = Timestamp.from_datetime(start + timedelta(days=hour // 24))
        return Timestamp(moment.ns + int((found[7] or "").ljust(9, "0")))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"'{text}' is no day or time: {error}", hint=_HINT) from None
