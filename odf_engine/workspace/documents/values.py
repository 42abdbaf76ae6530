"""Values of documents that are written as text: durations, cron expressions, time zones."""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, datetime
from typing import Final

from cronsim import CronSim, CronSimError

_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)? *(?:ms|s|sec|min|m|h|d|w) *)+")
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(ms|sec|s|min|m|h|d|w)")
_UNITS: Final = {"ms": 0.001, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_MAX_SECONDS: Final = 100 * 366 * 86400
_MACROS: Final = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip


class _Value:
    """A value that is written as text. Not a dataclass, because msgspec reads one as an object."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class DurationText(_Value):
    """A length of time, such as ``10min`` or ``1h 30min``."""

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(self.text))

    @classmethod
    def parse(cls, text: str) -> DurationText:
        """Parse the text.

        Raises:
            ValueError: it is not a duration, is 0, or is too long.
        """
        if not _DURATION.fullmatch(text):
            raise ValueError(f"'{text}' is not a duration; write for example 30s, 10min, 1h 30min or 1d")
        duration = cls(text)
        if duration.seconds <= 0:
            raise ValueError("the duration must be positive")
        if duration.seconds > _MAX_SECONDS:
            raise ValueError("the duration is longer than 100 years")
        return duration


class Cron(_Value):
    """A cron expression of five fields, or a macro such as ``@daily``."""

    @property
    def fields(self) -> str:
        """The five fields."""
        return _MACROS.get(self.text.strip().lower(), self.text)

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Parse the text.

        Raises:
            ValueError: it is not an expression of five fields, or never matches.
        """
        fields = cls(text).fields
        if len(fields.split()) != 5:
            macros = ", ".join(_MACROS)
            raise ValueError(
                f"'{text}' is not a cron expression: write minute, hour, day of the month, month and day "
                f"of the week, or one of {macros}"
            )
        try:
            next(CronSim(fields, datetime(2024, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            raise ValueError(f"'{text}' is not a cron expression: {str(error).lower()}") from None
        except StopIteration:
            raise ValueError(f"'{text}' never matches a date") from None
        return cls(text)


class Zone(_Value):
    """A time zone of the IANA database."""

    @property
    def info(self) -> zoneinfo.ZoneInfo:
        """The rules of the zone."""
        return zoneinfo.ZoneInfo(self.text)

    @classmethod
    def parse(cls, text: str) -> Zone:
        """Parse the name.

        Raises:
            ValueError: there is no such zone.
        """
        try:
            zoneinfo.ZoneInfo(text)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"unknown time zone '{text}'; write for example UTC or Europe/Oslo") from None
        return cls(text)
