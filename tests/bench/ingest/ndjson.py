"""Memory of a pull of 1 GB of JSON: as lines, as one document, and as GeoJSON, with a warm worker.

The growth of the worker and Java together beyond their size when they are warm and idle is measured. Each
format has a new worker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from odf_engine.spark.runtime.session import read_resident_memory
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import make_dataset
from tests.bench.measure import Figure, Metric, Peaks, Size, children
from tests.bench.worker import pull, read_worker_status, stopping_worker

COLUMNS = "id BIGINT NOT NULL, at TIMESTAMP, device STRING, temperature DOUBLE, note STRING"
NESTED = f'[{COLUMNS}, "place STRUCT<lat: DOUBLE, lon: DOUBLE, tags: ARRAY<STRING>>"]'
READS = {
    "lines": f"kind: NdJson, schema: {NESTED}",
    "document": f"kind: Json, subPath: data.rows, schema: {NESTED}",
    "features": f"kind: GeoJson, schema: [{COLUMNS}, geometry STRING]",
}
METRICS = {
    "lines": Metric("JSON lines: additional memory", "idle worker", "<= 1500 MB", "MB"),
    "document": Metric("JSON document: additional memory", "idle worker", "<= 1500 MB", "MB"),
    "features": Metric("GeoJSON: additional memory", "idle worker", "<= 1500 MB", "MB"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    figures: list[Figure] = []
    workspace = Workspace.init(folder / "ws")
    for name, read in READS.items():
        warm, file = folder / f"{name}-warm.json", folder / f"{name}.json"
        WRITERS[name](warm, 1_000_000)
        WRITERS[name](file, size.pick(1_000_000_000, 3_000_000))
        with stopping_worker(workspace):
            pull(workspace, make_dataset(workspace, f"{name}-warm", warm, read))
            worker = read_worker_status(workspace).pid
            pids = [worker, *children(worker)]
            idle = sum(map(read_resident_memory, pids)) / 1e6
            entry, peaks = make_dataset(workspace, name, file, read), Peaks(pids)
            with peaks.watch():
                pull(workspace, entry)
            figures.append(METRICS[name].figure(peaks.together - idle, idle))
        workspace.delete(entry)
        file.unlink()
    return figures


def write_lines(path: Path, size: int) -> None:
    write(path, size, "", "\n", "\n", lambda number: f"{{{row(number)}, {place(number)}}}")


def write_document(path: Path, size: int) -> None:
    """Write rows behind a part that is skipped, a quarter of the file."""
    skipped = json.dumps({"x": [1, 2, 3], "y": "z" * 80})
    begin = '{"meta": [' + ",\n".join([skipped] * (size // 4 // len(skipped))) + '], "data": {"rows": ['
    write(path, size, begin, "]}}", ",\n", lambda number: f"{{{row(number)}, {place(number)}}}")


def write_features(path: Path, size: int) -> None:
    ring = ", ".join(f"[{number / 7}, {number / 3}]" for number in range(40))
    write(
        path, size, '{"type": "FeatureCollection", "features": [', "]}", ",\n",
        lambda number: f'{{"type": "Feature", "properties": {{{row(number)}}},'
        f' "geometry": {{"type": "Polygon", "coordinates": [[{ring}]]}}}}',
    )  # fmt: skip


WRITERS = {"lines": write_lines, "document": write_document, "features": write_features}


def write(path: Path, size: int, begin: str, end: str, between: str, item: Callable[[int], str]) -> None:
    """Write items until the file has a size."""
    number = 0
    with path.open("w") as file:
        written = file.write(begin)
        while written < size:
            written += file.write((between if number else "") + item(number))
            number += 1
        file.write(end)


def row(number: int) -> str:
    second = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_000 + number))
    return (
        f'"id": {number}, "at": "{second}", "device": "device-{number % 20_000}",'
        f' "temperature": {number % 4337 / 97!r}, "note": "reading nr {number % 977}"'
    )


def place(number: int) -> str:
    return f'"place": {{"lat": {number % 180 / 2}, "lon": {number % 360}.25, "tags": ["a", "b{number % 7}"]}}'
