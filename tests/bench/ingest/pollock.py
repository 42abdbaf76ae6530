"""Scores how well messy CSV files are read, with the measures of the Pollock benchmark.

``python -m tests.bench.ingest.pollock FOLDER`` scores the files ``FOLDER/csv/*`` against the clean files of
the same names in ``FOLDER/clean``: RFC 4180, with the header first. ``FOLDER/weights.json`` may have a weight
for each file. As a benchmark, the module scores the generated files of the tests.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb

from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError
from odf_engine.ingest.read.file_relation import open_data_files, raw_relation
from odf_engine.sql.duckdb_text import PREPARATION
from tests.bench.measure import Figure, Metric, Size
from tests.ingest.polluted_files import KINDS, polluted_files

METRICS = {
    "simple": Metric("Polluted CSV files: mean score", "", ">= 9.97 of 10", "of 10"),
}
MEASURES = (
    "success",
    *(
        f"{part} {measure}"
        for part in ("header", "record", "cell")
        for measure in ("precision", "recall", "F1")
    ),
)


class LoadedTable(NamedTuple):
    """A header and rows, as texts."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def run(size: Size, folder: Path) -> list[Figure]:
    kinds = list(KINDS) if size is Size.FULL else list(KINDS)[:3]
    scores: list[float] = []
    with connected() as connection:
        for kind in kinds:
            for file in polluted_files(kind):
                path = folder / file.name
                path.write_bytes(file.data)
                table = load_table(path, connection)
                scores.append(sum(measures(LoadedTable(file.header, file.rows), table)))
    return [METRICS["simple"].figure(sum(scores) / len(scores))]


def connected() -> duckdb.DuckDBPyConnection:
    """Return a connection that can read the relation of a file."""
    connection = duckdb.connect()
    for statement in PREPARATION:
        connection.execute(statement)
    return connection


def load_table(path: Path, connection: duckdb.DuckDBPyConnection) -> LoadedTable | None:
    """Return the table of a file as ``odf FILE`` reads it, or None if it cannot be read."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            (file,) = open_data_files([path], Path(scratch), Reporter())
            rows = connection.sql(f"SELECT * FROM {raw_relation([file])}").fetchall()
        except (OdfError, duckdb.Error):
            return None
    columns = file.inferred.columns
    has_names = any(column.source for column in columns)
    return LoadedTable([column.source if has_names else column.name for column in columns], rows)


def measures(clean: LoadedTable, loaded: LoadedTable | None) -> list[float]:
    """Return the values of the ten measures, in the order of :data:`MEASURES`."""
    table = loaded or LoadedTable([], [])
    values = [float(loaded is not None)]
    for parts in (_header_values, _records, _cells):
        values += _overlap(Counter(parts(clean)), Counter(parts(table)))
    return values


def _header_values(table: LoadedTable) -> Iterable[str]:
    return map(normalized, table.header)


def _records(table: LoadedTable) -> Iterable[str]:
    return (",".join(normalized(value) or "null" for value in row) for row in table.rows)


def _cells(table: LoadedTable) -> Iterable[str]:
    return (normalized(value) for row in table.rows for value in row)


def _overlap(clean: Counter[str], loaded: Counter[str]) -> tuple[float, float, float]:
    """Return precision, recall and F1 of two multisets."""
    if not clean:
        return 1, 1, 1
    common = (clean & loaded).total()
    if not common:
        return 0, 0, 0
    precision, recall = common / clean.total(), common / loaded.total()
    return precision, recall, 2 * precision * recall / (precision + recall)


def normalized(value: str | None) -> str:
    """Return a value in the form in which values are compared."""
    text = (value or "").strip()
    try:
        return str(int(text))
    except ValueError:
        pass
    try:
        return str(float(text))
    except ValueError:
        return text.lower()


def read_clean(path: Path) -> LoadedTable:
    """Return the table of a clean file."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    return LoadedTable(header, rows)


def weighted_mean(scores: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the mean of scores. A file without a weight does not count."""
    total = sum(weights.get(name, 0) for name in scores)
    return sum(score * weights.get(name, 0) for name, score in scores.items()) / total if total else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ingest.pollock")
    parser.add_argument("folder", type=Path, help="has the folders csv and clean, and may have weights.json")
    parser.add_argument("--list", action="store_true", help="print the measures of every file")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    csv.field_size_limit(sys.maxsize)
    results: dict[str, list[float]] = {}
    with connected() as connection:
        for path in sorted((folder / "csv").iterdir()):
            clean = read_clean(folder / "clean" / path.name)
            results[path.name] = measures(clean, load_table(path, connection))
    if not results:
        parser.error(f"no files in {folder / 'csv'}")
    if arguments.list:
        for name, values in sorted(results.items(), key=lambda item: sum(item[1])):
            print(f"{sum(values):6.3f}  {name}: " + " ".join(f"{value:.2f}" for value in values))
    for name, column in zip(MEASURES, zip(*results.values(), strict=True), strict=True):
        print(f"{name:<18} {sum(column) / len(column):.4f}")
    scores = {name: sum(values) for name, values in results.items()}
    print(f"{'simple score':<18} {sum(scores.values()) / len(scores):.4f}  ({len(scores)} files)")
    weights = folder / "weights.json"
    if weights.is_file():
        print(f"{'weighted score':<18} {weighted_mean(scores, json.loads(weights.read_text())):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
