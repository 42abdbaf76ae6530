"""Formats of times in manifests: SimpleDateFormat (chapter "EventTimeSource::FromPath") or strftime."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

from odf_engine.errors import InvalidManifest
from odf_engine.metadata.timestamp import Timestamp

DEFAULT_FORMAT: Final = "yyyy-MM-dd"
_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_ZONE: Final = r"Z|UTC|GMT|[+-]\d\d(?::?\d\d)?"
_SPARK_LETTERS: Final = "GyMLdDHhkKmsSaXxZzVO"
_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|.", re.DOTALL)


def parse_time(text: str, form: str) -> Timestamp:
    """Parse a time in a SimpleDateFormat or strftime format.

    Raises:
        ValueError: the text does not match the format, or is an impossible time.
        InvalidManifest: the format has an unknown letter.
    """
    try:
        if "%" in form:
            return Timestamp.from_datetime(_strptime(text, form))
        return _parse_java(text, form)
    except (ValueError, OverflowError):
        raise ValueError(f"'{text}' does not match the time format '{form}'") from None


def check_time_format(form: str) -> None:
    """Check that a format can be parsed.

    Raises:
        InvalidManifest: it has an unknown letter or directive, or a component twice.
    """
    with suppress(ValueError):
        parse_time("", form)


def check_spark_format(form: str) -> None:
    """Check the letters of a format for dates or timestamps in a read step, which Spark parses.

    Raises:
        InvalidManifest: it has a letter that Spark does not parse.
    """
    if "%" in form or form.lower() == "rfc3339":
        return
    for token in _TOKEN.finditer(form):
        if token[2] and token[2] not in _SPARK_LETTERS:
            raise InvalidManifest(
                f"time format '{form}': Spark cannot parse the letter '{token[2]}'",
                hint="use y M d D H h k K m s S a X x Z z V O, quoted text, or a strftime format",
            )


def _strptime(text: str, form: str) -> datetime:
    try:
        return datetime.strptime(text, form)
    except ValueError as error:
        if "directive" in str(error) or "stray" in str(error):
            raise InvalidManifest(f"time format '{form}': {error}") from None
        raise


@lru_cache(maxsize=64)
def _java_regex(form: str) -> re.Pattern[str]:
    out: list[str] = []
    for token in _TOKEN.finditer(form):
        letter, width = token[2], len(token[0])
        if token[1] is not None:
            out.append(re.escape(token[1].replace("''", "'") or "'"))
        elif letter is None:
            out.append(re.escape(token[0]))
        else:
            out.append(_java_letter(letter, width, form))
    try:
        return re.compile("".join(out), re.IGNORECASE | re.ASCII)
    except re.error:
        raise InvalidManifest(f"time format '{form}': repeated component") from None


def _java_letter(letter: str, width: int, form: str) -> str:
    if letter == "y":
        return (
            r"(?P<year2>\d\d)" if width == 2 else rf"(?P<year>\d{{{max(width, 4) if width > 1 else '1,4'}}})"
        )
    if letter in "ML":
        return r"(?P<month_name>[a-z]{3,9})" if width >= 3 else rf"(?P<month>{_digits(width)})"
    if letter == "E":
        return r"[a-z]{2,9}"
    if letter == "u":
        if width > 1:  # a year in other classes of Java
            raise InvalidManifest(
                f"time format '{form}': u is the number of the weekday", hint="use yyyy for the year"
            )
        return "[1-7]"
    if letter == "a":
        return r"(?P<half>am|pm)"
    if letter == "S":
        return rf"(?P<fraction>\d{{{width}}})"
    if letter in "zZXxV":
        return rf"(?P<zone>{_ZONE})"
    if letter == "D":
        return r"(?P<day_of_year>\d{3})" if width == 3 else r"(?P<day_of_year>\d{1,3})"
    names = {
        "d": "day",
        "H": "hour",
        "k": "hour24",
        "h": "hour12",
        "K": "hour11",
        "m": "minute",
        "s": "second",
    }
    if letter in names:
        return rf"(?P<{names[letter]}>{_digits(width)})"
    raise InvalidManifest(
        f"time format '{form}': unknown letter '{letter}'",
        hint="use y M d D E u H k h K m s S a z X, quoted text, or a strftime format such as %Y-%m-%d",
    )


def _digits(width: int) -> str:
    return r"\d{1,2}" if width == 1 else rf"\d{{{width}}}"


def _parse_java(text: str, form: str) -> Timestamp:
    match = _java_regex(form).fullmatch(text)
    if match is None:
        raise ValueError(text)
    part: dict[str, str] = {name: value for name, value in match.groupdict().items() if value is not None}
    number: Callable[[str, int], int] = lambda name, other: int(part.get(name, other))  # noqa: E731
    year = number("year", 1970)
    if "year2" in part:
        year = 2000 + int(part["year2"]) if int(part["year2"]) < 69 else 1900 + int(part["year2"])
    if "day_of_year" in part:
        day = date(year, 1, 1) + timedelta(days=int(part["day_of_year"]) - 1)
        if day.year != year or part["day_of_year"].strip("0") == "":
            raise ValueError(text)
    else:
        day = date(year, _month(part), number("day", 1))
    moment = datetime(
        day.year, day.month, day.day, _hour(part, number), number("minute", 0), number("second", 0),
        tzinfo=_zone(part.get("zone")),
    )  # fmt: skip
    return Timestamp(Timestamp.from_datetime(moment).ns + int(part.get("fraction", "0")[:9].ljust(9, "0")))


def _month(part: dict[str, str]) -> int:
    if name := part.get("month_name", "").lower():
        for number, month in enumerate(_MONTHS, 1):
            if name in (month, month[:3]):
                return number
        raise ValueError(name)
    return int(part.get("month", 1))


def _hour(part: dict[str, str], number: Callable[[str, int], int]) -> int:
    if "hour12" in part or "hour11" in part:
        hour = number("hour12", 0) % 12 + number("hour11", 0)
        return hour + (12 if part.get("half", "am").lower() == "pm" else 0)
    return number("hour", 0) + number("hour24", 0) % 24


def _zone(text: str | None) -> timezone:
    if text is None or text.upper() in ("Z", "UTC", "GMT"):
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)
