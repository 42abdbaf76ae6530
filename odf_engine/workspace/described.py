"""What statistics of columns look like, and where they are kept. Nothing here computes any."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

VERSION: Final = 1


class Frequent(msgspec.Struct, frozen=True):
    """A value as text, and how often it is there."""

    value: str
    count: int


class ColumnStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a column's values; values are texts as in CSV, None is not known.

    Attributes:
        nulls: how many values are missing, ``not_numbers``: how many are NaN.
        distinct: how many different values there are; an estimate unless ``exact``.
        shortest, longest: characters of texts, bytes of binary values, items of lists.
        frequent: most frequent first; their counts are right unless ``exact`` is false, and then too low
            by at most ``lost``.
        bins: counts in parts of equal width of the range of numbers and times.
    """

    name: str
    type: str
    nulls: int | None = None
    not_numbers: int = 0
    distinct: int | None = None
    exact: bool = True
    least: str | None = None
    greatest: str | None = None
    mean: float | None = None
    shortest: int | None = None
    longest: int | None = None
    frequent: list[Frequent] = []
    lost: int = 0
    bins: list[int] = []


class Statistics(msgspec.Struct, frozen=True):
    """Statistics of all columns of these rows."""

    rows: int
    columns: list[ColumnStatistics]
    version: int = VERSION


def statistics_path(odf: Path, mark: str) -> Path:
    """The file with the statistics of rows, by the mark that tells them apart."""
    return odf / "cache" / "statistics" / f"{mark}.json"


def known_statistics(odf: Path, mark: str) -> Statistics | None:
    """The statistics of rows, if somebody has computed them."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = msgspec.json.decode(statistics_path(odf, mark).read_bytes(), type=Statistics)
        return found if found.version == VERSION else None
    return None
