"""Filters: the throughput of a core, and a spreadsheet of 500,000 rows compared with calamine alone.

Processor time is measured, since other programs on the machine change it less.
"""

from __future__ import annotations

import gzip
import io
import time
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pyarrow.csv
from python_calamine import CalamineWorkbook

from odf_engine.filters.command_line import run_filter
from tests.bench.common import make_csv, make_rows
from tests.bench.measure import Figure, Metric, Size

METRICS = {
    "lines": Metric("lines", goal=">= 150 MB/s", unit="MB/s"),
    "clean": Metric("csv: commas", goal=">= 150 MB/s", unit="MB/s"),
    "decimal": Metric("csv: semicolons and decimal commas", goal=">= 150 MB/s", unit="MB/s"),
    "quoted": Metric("csv: quoted values", goal=">= 150 MB/s", unit="MB/s"),
    "unpack": Metric("unpack: gzip", goal=">= 150 MB/s", unit="MB/s"),
    "sheet": Metric("sheet: 500,000 rows", "calamine", "<= 1.6x"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    rows = size.pick(1_000_000, 20_000)
    clean, decimal, quoted = (folder / f"{name}.csv" for name in ("clean", "decimal", "quoted"))
    make_csv(clean, rows)
    write_decimal_commas(clean, decimal)
    pyarrow.csv.write_csv(make_rows(0, rows), quoted, pyarrow.csv.WriteOptions(quoting_style="all_valid"))
    packed = folder / "clean.csv.gz"
    packed.write_bytes(gzip.compress(clean.read_bytes(), 1))
    filters = {
        "lines": (clean, ["lines", "--skip", "1"]),
        "clean": (clean, ["csv"]),
        "decimal": (decimal, ["csv", "--separator", ";", "--decimal", ","]),
        "quoted": (quoted, ["csv"]),
        "unpack": (packed, ["unpack"]),
    }
    figures: list[Figure] = []
    for name, (file, arguments) in filters.items():
        content = clean if name == "unpack" else file
        figures.append(METRICS[name].figure(content.stat().st_size / 1e6 / filter_seconds(file, arguments)))
    sheet = folder / "sheet.xlsx"
    write_sheet(sheet, size.pick(500_000, 5_000))
    alone = min(processor_time(lambda: read_sheet(sheet)) for _ in range(3))
    figures.append(METRICS["sheet"].figure(filter_seconds(sheet, ["sheet"]), alone))
    return figures


def filter_seconds(file: Path, arguments: list[str]) -> float:
    """Return the processor time of a filter, the best of three runs."""

    def run_once() -> None:
        with file.open("rb") as source, Path("/dev/null").open("wb") as target:
            run_filter(arguments, source, target)

    return min(processor_time(run_once) for _ in range(3))


def processor_time(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def write_decimal_commas(source: Path, target: Path) -> None:
    """Write a CSV file with semicolons, and with commas in its numbers."""
    with source.open() as lines, target.open("w") as file:
        for line in lines:
            moment, *values = line.split(",")
            file.write(";".join([moment, *(value.replace(".", ",") for value in values)]))


def write_sheet(path: Path, rows: int) -> None:
    """Write a spreadsheet of eight columns."""
    workbook = openpyxl.Workbook(write_only=True)
    sheet = workbook.create_sheet("Data")
    table = make_rows(0, rows)
    sheet.append(table.column_names)
    for batch in table.to_batches(10_000):
        for row in batch.to_pylist():
            sheet.append([row.pop("event_time").replace(tzinfo=None), *row.values()])
    workbook.save(path)


def read_sheet(path: Path) -> None:
    """Read the values of a spreadsheet."""
    sheet = CalamineWorkbook.from_filelike(io.BytesIO(path.read_bytes())).get_sheet_by_index(0)
    for _ in sheet.iter_rows():
        pass
