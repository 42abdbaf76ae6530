"""UTC timestamps with nanosecond precision, and parsing of times as users type them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from functools import total_ordering
from typing import Final, Self

from odf_engine.errors import UsageError

_RFC_3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = 1_000_000_000
_MIN: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1) * _SECOND
_MAX: Final = ((datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1) + 1) * _SECOND - 1


@total_ordering
class Timestamp:
    """A point in time in UTC.

    Attributes:
        ns: nanoseconds since 1970-01-01T00:00:00Z, within years 1 to 9999.
    """

    __slots__ = ("ns",)

    ns: int

    def __init__(self, ns: int) -> None:
        if not _MIN <= ns <= _MAX:
            raise ValueError("time outside of the years 1 to 9999")
        object.__setattr__(self, "ns", ns)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Timestamp is immutable")

    @classmethod
    def now(cls) -> Self:
        """Return the current time, truncated to milliseconds, the precision of the system time column."""
        return cls.from_ms(time.time_ns() // 1_000_000)

    @classmethod
    def from_seconds(cls, seconds: float) -> Self:
        """Return the time from seconds since 1970."""
        return cls.from_ms(int(seconds * 1000))

    @classmethod
    def from_ms(cls, ms: int) -> Self:
        """Convert milliseconds since 1970."""
        return cls(ms * 1_000_000)

    @classmethod
    def from_datetime(cls, moment: datetime) -> Self:
        """Convert a datetime; a naive one is in UTC."""
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return cls((moment - _EPOCH) // timedelta(microseconds=1) * 1000)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse RFC 3339 with any UTC offset.

        Raises:
            ValueError: the text is not RFC 3339.
        """
        match = _RFC_3339.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not an RFC 3339 time, such as 2024-01-31T12:00:00Z")
        *parts, fraction, zone = match.groups()
        moment = datetime(*map(int, parts), tzinfo=UTC)  # type: ignore[arg-type]
        ns = (moment - _EPOCH) // timedelta(seconds=1) * _SECOND
        ns += int((fraction or "").ljust(9, "0"))
        if zone not in "Zz":
            hours, minutes = int(zone[1:3]), int(zone[4:6])
            if hours > 23 or minutes > 59:
                raise ValueError(f"'{text}' has an invalid UTC offset")
            ns -= (hours * 3600 + minutes * 60) * _SECOND * (-1 if zone[0] == "-" else 1)
        return cls(ns)

    @property
    def ms(self) -> int:
        """Milliseconds since 1970, rounded down."""
        return self.ns // 1_000_000

    def shifted(self, seconds: int = 0, *, ms: int = 0) -> Timestamp:
        """Return the time this many seconds and milliseconds later, within the supported range."""
        return Timestamp(min(max(self.ns + seconds * _SECOND + ms * 1_000_000, _MIN), _MAX))

    def to_datetime(self) -> datetime:
        """Return an aware datetime in UTC, truncated to microseconds."""
        return _EPOCH + timedelta(microseconds=self.ns // 1000)

    def __str__(self) -> str:
        seconds, ns = divmod(self.ns, _SECOND)
        text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
        if ns % 1_000_000 == 0:
            fraction = f".{ns // 1_000_000:03d}" if ns else ""
        elif ns % 1000 == 0:
            fraction = f".{ns // 1000:06d}"
        else:
            fraction = f".{ns:09d}"
        return f"{text}{fraction}Z"

    def __repr__(self) -> str:
        return f"Timestamp({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timestamp) and self.ns == other.ns

    def __lt__(self, other: Timestamp) -> bool:
        return self.ns < other.ns

    def __hash__(self) -> int:
        return hash(self.ns)

    def __reduce__(self) -> tuple[object, ...]:
        return (Timestamp, (self.ns,))


_USER_TIME: Final = re.compile(
    r"(\d{4})-(\d\d?)(?:-(\d\d?)(?:[T ](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?)?Z?", re.ASCII
)
_HINT: Final = "use 2026-03-01, 2026-03-01 14:00 (UTC) or 2026-03-01T14:00:00Z"


def looks_like_time(text: str) -> bool:
    """Return whether a text has the form of a time. Names of blocks do not."""
    return re.match(r"\d{4}-\d", text.strip()) is not None


def parse_user_time(text: str) -> Timestamp:
    """Parse a time that a user typed: RFC 3339, or a month, day or time of day in UTC, as its first instant.

    Raises:
        UsageError: the text is not a time.
    """
    text = text.strip()
    try:
        return Timestamp.parse(text.replace(" ", "T", 1))
    except ValueError:
        match = _USER_TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"'{text}' is not a time", hint=_HINT)
    year, month, day, hour, minute, second = (int(part) if part else 0 for part in match.groups()[:6])
    try:
        start = datetime(year, month, day if match[3] else 1, hour % 24, minute, second, tzinfo=UTC)
        moment = Timestamp.from_datetime(start + timedelta(days=hour // 24))
        return Timestamp(moment.ns + int((match[7] or "").ljust(9, "0")))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"'{text}' is not a time: {error}", hint=_HINT) from None
