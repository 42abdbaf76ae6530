"""A number of New York's weeks, traced to the cells of the files that the city published, as text.

    python tests/bench/show_city_provenance.py [FOLDER]

Makes the pipeline of tests/transform/city.py over the city's files (December 2020 to October 2021), in
three pulls. Then: which datasets one weekly number comes from, down to the cells of the
files; the same for one of all days, which the city has corrected since; and what was known of that day as
at the pull before the correction and after it. With a folder, the workspace stays there.
"""

from __future__ import annotations

import csv
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from odf_engine.progress import Reporter
from odf_engine.provenance.model import InputRows, OffsetRange, TraceStep
from odf_engine.provenance.trace import Tracer
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.views.as_at import resolve_as_at
from odf_engine.views.scan import Scan
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_tui.cli.history import print_trace
from tests.transform.city import City

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="odf-city-"))
    runtime = SparkRuntime(SparkOptions(), root / "spark.log", root / "cache")
    runtime.start()
    try:
        city = pulled(root / "city", runtime)
        show_week(city, runtime)
        show_correction(city, runtime)
    finally:
        runtime.stop()
        if len(sys.argv) < 2:
            shutil.rmtree(root, ignore_errors=True)


def pulled(folder: Path, runtime: SparkRuntime) -> City:
    """The pipeline with all files in it."""
    city = City(folder, runtime, DATA)
    areas, days = ((DATA / name).glob("*[0-9].csv") for name in ("nyc-modzcta", "nyc-cases-by-day"))
    published = sorted(days)
    files = sorted([*areas, *published], key=lambda file: file.stem)
    for file in files:
        city.publish(file)
        if file in (*published[:2], files[-1]):
            city.pull()
    return city


def show_week(city: City, runtime: SparkRuntime) -> None:
    """A week of a borough, down to the cells."""
    entry = city.entry("weeks")
    rows = city.table(entry).to_pylist()
    row = next(each for each in rows if each["borough"] == "Bronx" and each["days"] > 1)
    print(f"How many cases were known in the {row['borough']} at the end of the week of "
          f"{row['event_time']:%d %B %Y}: {row['cases']:,}. Where does that come from?\n")  # fmt: skip
    step = timed(city, runtime, entry, row["offset"], "cases")
    areas = last_feed(step, "nyc.areas")
    newest = newest_of_each(city, areas.runs)
    print(f"\n{areas.rows:,} rows of nyc.areas; of each area the newest, added up: "
          f"{sum(each['cases'] for each in newest):,}. Cells of the city's files:")  # fmt: skip
    show_cells(city, step, newest[:6])


def timed(city: City, runtime: SparkRuntime, entry: DatasetEntry, offset: int, column: str) -> TraceStep:
    """Traces, prints and checks a value."""
    began = perf_counter()
    tracer = Tracer(city.workspace, lambda _: runtime, Reporter())
    step = tracer.trace(entry, [(offset, offset)], column)
    seconds = perf_counter() - began
    print_trace(city.workspace, step, tracer.check_newest_step(entry, step))
    print(f"\nodf provenance {entry.alias} {offset} --column {column}: {seconds:.1f} s")
    return step


def last_feed(step: TraceStep, name: str) -> InputRows:
    """The rows of a dataset in a trace."""
    for feed in step.feeds:
        if feed.name == name:
            return feed
        if feed.step is not None and any(each.name == name for each in feed.step.feeds):
            return last_feed(feed.step, name)
    raise LookupError(name)


def read(entry: DatasetEntry, runs: Sequence[OffsetRange]) -> list[dict[str, Any]]:
    rows = Scan.of_dataset(entry.dataset)
    spans = [(first, last + 1) for first, last in runs]
    return [row for batch in rows.rows(spans).batches() for row in batch.to_pylist()]


def newest_of_each(city: City, runs: Sequence[OffsetRange]) -> list[dict[str, Any]]:
    """Of each area the newest of the rows that took part."""
    newest = {row["area"]: row for row in read(city.entry("areas"), runs)}
    return [row for _, row in sorted(newest.items()) if row["op"] in (0, 3)]


def show_cells(city: City, step: TraceStep, rows: Sequence[dict[str, Any]]) -> None:
    """The cells of the files where numbers of areas stand."""
    areas = last_feed(step, "nyc.areas").step
    assert areas is not None
    for row in rows:
        source = next(each for each in areas.sources
                      if any(first <= row["offset"] <= last for first, last in each.runs))  # fmt: skip
        file = city.workspace.folder / source.place
        with file.open(newline="") as lines:
            for number, line in enumerate(csv.DictReader(lines), 2):
                if line["MODIFIED_ZCTA"] == row["area"]:
                    print(f"  {source.place} line {number}, COVID_CASE_COUNT of {row['area']}: "
                          f"{line['COVID_CASE_COUNT']} = {row['cases']} (row {row['offset']})")  # fmt: skip


def show_correction(city: City, runtime: SparkRuntime) -> None:
    """A past day that the city counted again: as at before and after, and where the correction came from."""
    entry = city.entry("borough-days")
    rows = city.table(entry).to_pylist()
    # Its row for the day becomes five: they are taken back, and given anew.
    back = next(row for row in rows if row["op"] == 1 and row["cases"] > 500)
    fixed = next(row for row in rows[back["offset"] + 1 :]
                 if (row["event_time"], row["borough"]) == (back["event_time"], back["borough"])
                 and row["cases"] != back["cases"])  # fmt: skip
    day = f"{fixed['event_time']:%d %B %Y}"

    def same(row: dict[str, Any]) -> bool:
        return (row["event_time"], row["borough"]) == (fixed["event_time"], fixed["borough"])

    print(f"\n\nCases of {day} in {fixed['borough']}, as at each block of nyc.borough-days:")
    for block in reversed(entry.dataset.list_blocks(100, kinds=("ExecuteTransform",))):
        at = resolve_as_at(entry, str(block.hash))
        last = -1 if at.last_offset is None else at.last_offset
        known = [row for row in rows[: last + 1] if same(row)]
        said = f"{known[-1]['cases']:,}" if known else "not known"
        print(f"  block {at.sequence_number:3} of {at.system_time}: {said}")
    print(f"\nWhere the corrected number of {day} comes from:\n")
    timed(city, runtime, entry, fixed["offset"], "cases")


if __name__ == "__main__":
    main()
