"""The pipeline of New York's published numbers, as a whole: day by day, at once, verified, tampered with.

    python tests/bench/show_city.py [FOLDER]

Takes the files as the city put them out (December 2020 to October 2021), one pull for each day, and once more
all of them in one pull. Prints what every dataset amounts to, whether both ways gave the same logical
hashes, what is wrong against the numbers computed from the files without the engine (nothing), how long
verification took, and what it says of ten ways of tampering. With a folder, both workspaces stay there.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.metadata.model import SetTransform
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.verify.integrity import verify
from odf_engine.verify.replay import Replay
from odf_engine.workspace.workspace import Workspace
from tests.transform.city import City
from tests.transform.test_city import check_boroughs, check_the_rest
from tests.verify.test_derivatives import Tampering

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
NAME = "nyc.weeks"
LONG_HASH = re.compile("(?<=f1620[0-9a-f]{8})[0-9a-f]+")


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="odf-city-"))
    runtime = SparkRuntime(SparkOptions(), root / "spark.log", root / "cache")
    runtime.start()
    try:
        daily = show_both_ways(root, runtime)
        show_verification(daily)
        show_tampering(daily, root)
    finally:
        runtime.stop()
        if len(sys.argv) < 2:
            shutil.rmtree(root, ignore_errors=True)


def show_both_ways(root: Path, runtime: SparkRuntime) -> City:
    """Pulls day by day and at once, compares, and checks both against the files; the first of them."""
    areas = sorted((DATA / "nyc-modzcta").glob("*[0-9].csv"))
    days = sorted((DATA / "nyc-cases-by-day").glob("*.csv"))
    daily, once = (City(root / name, runtime, DATA) for name in ("daily", "once"))
    began, pulls = perf_counter(), 0
    for day in sorted({file.stem for file in (*areas, *days)}):
        daily.publish(*(file for file in (*areas, *days) if file.stem == day))
        daily.pull()
        check_boroughs(daily, [file for file in areas if file.stem <= day][-1])
        pulls += 1
    between = perf_counter()
    once.publish(*areas, *days)
    once.pull()
    ended = perf_counter()
    for city in (daily, once):
        check_the_rest(city, areas, days[-1], DATA)
    hashes = daily.hashes(), once.hashes()
    print(f"{len(areas)} days of areas and {len(days)} publications of all days")
    print(f"in {pulls} pulls: {between - began:.1f} s, at once: {ended - between:.1f} s\n")
    print(
        f"{'dataset':18} {'rows':>6} {'+A':>6} {'-R':>4} {'-C/+C':>6} {'blocks':>7} {'at once':>8}"
        "  logical hash"
    )
    for entry, other in zip(daily.entries, once.entries, strict=True):
        name = str(entry.alias)
        ops = daily.table(entry).column("op").to_pylist()
        counts = [len(ops), ops.count(0), ops.count(1), ops.count(2)]
        blocks = entry.dataset.state().blocks, other.dataset.state().blocks
        same = "the same" if hashes[0][name] == hashes[1][name] else "DIFFERENT"
        print(f"{name:18} {counts[0]:6} {counts[1]:6} {counts[2]:4} {counts[3]:6} {blocks[0]:7} {blocks[1]:8}"
              f"  {hashes[0][name][-12:]} {same}")  # fmt: skip
    print("\nall numbers are those computed from the files without the engine")
    return daily


def show_verification(city: City) -> None:
    began = perf_counter()
    names = [str(entry.alias).removeprefix("nyc.") for entry in city.entries]
    reports = city.verify(*names)
    transactions = sum(report.transforms for report in reports)
    found = [finding for report in reports for finding in report.findings]
    blocks = sum(report.blocks for report in reports)
    print(f"\nverified: {blocks} blocks, {transactions} transactions run again in "
          f"{perf_counter() - began:.1f} s: {len(found)} findings")  # fmt: skip


def show_tampering(city: City, root: Path) -> None:
    """Does it to a copy of the workspace, and prints what verification finds."""
    entry = city.entry("weeks")
    last = entry.dataset.state().sequence_number
    slices = [row.sequence_number for row in entry.dataset.slices()]
    print(f"\nten ways of tampering with {NAME}:")
    for what, do in tamperings(slices[-1], last):
        folder = root / "tampered"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(city.workspace.folder, folder, symlinks=True)
        do(Tampering(Workspace(folder), NAME))
        workspace = Workspace(folder)
        changed = workspace.resolve(NAME)
        dataset = Dataset(changed.dataset.folder, BlockIndex(":memory:"))
        report = verify(dataset, Reporter())
        if report.valid:  # files and chain agree with each other: it takes running transactions again
            replay = Replay(workspace, changed, city.engine, Reporter())
            report = verify(dataset, Reporter(), slices[-1], None, replay)
        said = f"{report.findings[0].kind}: {report.findings[0].message}" if report.findings else "NOT FOUND"
        said = said.replace(f"{changed.dataset.folder}/", "")
        print(f"  {what:34} {LONG_HASH.sub('…', said)[:150]}")


def tamperings(data: int, last: int) -> list[tuple[str, Callable[[Tampering], None]]]:
    """Ten of them.

    Args:
        data: number of a block with rows.
        last: number of the last block.
    """

    def an_input(t: Tampering, at: int, **changes: object) -> None:
        inputs = list(t.event(last).query_inputs)
        inputs[at] = replace(inputs[at], **changes)
        t.change(last, query_inputs=inputs)

    def another_query(t: Tampering) -> None:
        for number, block in enumerate(t.blocks):
            if isinstance(block.event, SetTransform):
                transform = block.event.transform
                first, second = transform.queries or []
                first = replace(first, query=first.query.replace("b.cases,", "b.cases + 1 AS cases,"))
                t.change(number, transform=replace(transform, queries=[first, second]))

    def later(t: Tampering) -> None:
        block = t.blocks[last]
        t.rewrite({last: replace(block, system_time=Timestamp(block.system_time.ns + 60_000_000_000))})

    return [
        ("a byte of a block", lambda t: t.flip("blocks", t.hash(data))),
        ("a byte of a slice", lambda t: t.flip("data", t.event(data).new_data.physical_hash)),
        ("a byte of a checkpoint",
         lambda t: t.flip("checkpoints", t.event(last).new_checkpoint.physical_hash)),
        ("the query", another_query),
        ("a number of cases, consistently",
         lambda t: t.change(data, new_data=t.values(data, "cases", lambda v: [v[0] - 1000, *v[1:]]))),
        ("rows left out", lambda t: t.change(data, new_data=None)),
        ("the watermark", lambda t: t.change(last, new_watermark=Timestamp.parse("2030-01-01T00:00:00Z"))),
        ("up to where an input was read", lambda t: an_input(t, 0, new_offset=1)),
        ("a block left out", lambda t: t.rewrite({data: None})),
        ("the checkpoint before", lambda t: t.change(last, prev_checkpoint=t.hash(0))),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
