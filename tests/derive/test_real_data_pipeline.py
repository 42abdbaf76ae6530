"""Real data through a pipeline of datasets: taken in day by day and at once, right, and verified."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from odf_engine.spark.runtime.session import SparkRuntime
from tests.derive.city import City, borough_totals, day_counts, extents, weeks

DAYS = ("2020-12-05", "2020-12-06", "2020-12-07")
PUBLISHED = ("2020-12-22", "2021-01-31")


@pytest.mark.complete
def test_daily_pulls_and_one_pull_give_equal_hashes(
    shared: Path, runtime: SparkRuntime, tmp_path: Path
) -> None:
    data = shared / "data"
    days = [data / "nyc-modzcta" / f"{day}.csv" for day in DAYS]
    published = [data / "nyc-cases-by-day" / f"{day}.csv" for day in PUBLISHED]
    daily, once = (City(tmp_path / name, runtime, data) for name in ("daily", "once"))
    for files in ([published[0], days[0]], [published[1], *days[1:]]):
        daily.publish(*files)
        daily.pull()
        check_boroughs(daily, files[-1])
    once.publish(*days, *published)
    once.pull()
    assert once.hashes() == daily.hashes()
    assert once.pull() == daily.pull() == 0
    check_the_rest(once, days, published[-1], data)
    assert [(report.valid, report.transforms) for report in daily.verify("weeks", "areas")] == [
        (True, 2), (True, 0)
    ]  # fmt: skip


def check_boroughs(city: City, day: Path) -> None:
    """The totals are those of the newest file, whatever was there before."""
    found = city.current("boroughs", "borough")
    assert {
        key[0]: (row["areas"], row["cases"], row["deaths"]) for key, row in found.items()
    } == borough_totals(day)
    assert {row["event_time"] for row in found.values()} == {datetime.fromisoformat(f"{day.stem}T00:00:00Z")}


def check_the_rest(city: City, days: list[Path], published: Path, data: Path) -> None:
    """What the files amount to, computed without the engine."""
    places = extents(data / "nyc-modzcta.geo.json")
    assert {
        key[0]: tuple(row[name] for name in ("shapes", "west", "east", "south", "north"))
        for key, row in city.current("extents", "borough").items()
    } == places
    expected = weeks(days)
    found = city.current("weeks", "event_time", "borough")
    assert {key: (row["days"], row["cases_before"], row["cases"]) for key, row in found.items()} == expected
    for (_, borough), row in found.items():
        place = places.get(borough)
        assert (row["shapes"], row["west"], row["north"]) == (
            (place[0], place[1], place[4]) if place else (None, None, None)
        )
    counts = day_counts(published)
    assert {
        (key[0].date(), key[1]): row["cases"]
        for key, row in city.current("borough-days", "event_time", "borough").items()
    } == counts
    sums: dict[tuple[datetime, str], int] = {}
    for (day, borough), cases in counts.items():
        monday = datetime.fromordinal(day.toordinal() - day.weekday()).replace(tzinfo=UTC)
        sums[monday, borough] = sums.get((monday, borough), 0) + cases
    assert {
        key: row["cases"] for key, row in city.current("borough-weeks", "week", "borough").items()
    } == sums
