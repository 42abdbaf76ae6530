"""Memory of a pull of 1 GB of JSON: as lines, as one document, and as GeoJSON, with a warm worker.

    python tests/bench/bench_ndjson.py [MEGABYTES] [FOLDER] [lines] [document] [features]

What counts is how much the worker and its Java grow beyond the size that they have when they are warm and
idle; the goal is 1.5 GB for both together at any one time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from odf_engine.coordinator.client import Client, run_jobs
from odf_engine.coordinator.protocol import JobState, Pull
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import children, table, timed

GOAL_MIB = 1500e6 / (1 << 20)
COLUMNS = "[id BIGINT NOT NULL, at TIMESTAMP, device STRING, temperature DOUBLE, note STRING"
NESTED = ', "place STRUCT<lat: DOUBLE, lon: DOUBLE, tags: ARRAY<STRING>>"'
MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: "file:{file}"}}
      read: {{kind: {read}}}
      merge: {{kind: Append}}
"""


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    root = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="odf-bench-"))
    root.mkdir(parents=True, exist_ok=True)
    kinds = {
        "lines": (f"NdJson, schema: {COLUMNS}{NESTED}]", make_lines),
        "document": (f"Json, subPath: data.rows, schema: {COLUMNS}{NESTED}]", make_document),
        "features": (f"GeoJson, schema: {COLUMNS}, geometry STRING]", make_features),
    }
    shutil.rmtree(root / "ws", ignore_errors=True)
    workspace = Workspace.init(root / "ws")
    for name, (read, make) in kinds.items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        small, large = root / f"{name}-1.json", root / f"{name}-{megabytes}.json"
        for file, size in ((small, 1), (large, megabytes)):
            if not file.exists():
                make(file, size * 1_000_000)
        try:
            found = measure(workspace, name, read, small, large)
        finally:
            asyncio.run(_stop(workspace))  # the next one begins with the memory of a new worker
        table(f"A pull of {megabytes} MB of JSON: memory beyond the idle size of a warm worker", [found])


def measure(
    workspace: Workspace, name: str, read: str, small: Path, large: Path
) -> tuple[str, str, str, str]:
    """Pulls the small file to warm up, then the large one under watch."""
    pull(workspace, _dataset(workspace, f"{name}-warm", small, read))
    worker = asyncio.run(_ping(workspace))
    pids = [worker, *children(worker)]
    gc.collect()
    idle = [_resident(pid) for pid in pids]
    entry = _dataset(workspace, name, large, read)
    grown = Grown(pids, sum(idle))
    with grown:
        seconds = timed(lambda: pull(workspace, entry))
    rows = entry.dataset.state().last_offset
    workspace.delete(entry)
    met = "met" if grown.together <= GOAL_MIB else "NOT met"
    each = ", ".join(f"{now - then:.0f}" for now, then in zip(grown.alone, idle, strict=True))
    return (
        f"{name}: {(rows or 0) + 1:,} rows in {seconds:.0f} s",
        f"{grown.together:.0f} MiB (alone {each})",
        f"idle {' + '.join(f'{mib:.0f}' for mib in idle)} MiB",
        f"(goal <= {GOAL_MIB:.0f} MiB: {met})",
    )


class Grown:
    """The largest growth of several processes together while it is entered, in MiB, sampled often."""

    def __init__(self, pids: list[int], idle: float) -> None:
        self._pids = pids
        self._idle = idle
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.together = 0.0
        self.alone = [0.0] * len(pids)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *args: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            now = [_resident(pid) for pid in self._pids]
            self.together = max(self.together, sum(now) - self._idle)
            self.alone = [max(pair) for pair in zip(self.alone, now, strict=True)]


def _resident(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def _row(number: int) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_000 + number))
    return (
        f'"id": {number}, "at": "{moment}", "device": "device-{number % 20_000}",'
        f' "temperature": {number % 4337 / 97!r}, "note": "reading nr {number % 977}"'
    )


def _place(number: int) -> str:
    return f'"place": {{"lat": {number % 180 / 2}, "lon": {number % 360}.25, "tags": ["a", "b{number % 7}"]}}'


def _write(path: Path, size: int, begin: str, end: str, between: str, each: Callable[[int], str]) -> None:
    written = number = 0
    with path.open("w") as file:
        file.write(begin)
        while written < size:
            written += file.write((between if number else "") + each(number))
            number += 1
        file.write(end)


def make_lines(path: Path, size: int) -> None:
    _write(path, size, "", "\n", "\n", lambda number: f"{{{_row(number)}, {_place(number)}}}")


def make_document(path: Path, size: int) -> None:
    """The rows stand behind a part that is skipped, a quarter of the whole."""
    skipped = json.dumps({"x": [1, 2, 3], "y": "z" * 80})
    begin = '{"meta": [' + ",\n".join([skipped] * (size // 4 // len(skipped))) + '], "data": {"rows": ['
    _write(
        path, size - len(begin), begin, "]}}", ",\n", lambda number: f"{{{_row(number)}, {_place(number)}}}"
    )


def make_features(path: Path, size: int) -> None:
    ring = ", ".join(f"[{at / 7}, {at / 3}]" for at in range(40))
    _write(
        path, size, '{"type": "FeatureCollection", "features": [', "]}", ",\n",
        lambda number: f'{{"type": "Feature", "properties": {{{_row(number)}}},'
        f' "geometry": {{"type": "Polygon", "coordinates": [[{ring}]]}}}}',
    )  # fmt: skip


def _dataset(workspace: Workspace, name: str, file: Path, read: str) -> DatasetEntry:
    return workspace.add(read_manifests(MANIFEST.format(name=name, file=file, read=read), name))[0]


def pull(workspace: Workspace, entry: DatasetEntry) -> None:
    (job,) = run_jobs(workspace.folder, [(Pull(dataset=str(entry.id)), str(entry.alias))])
    if job.state is not JobState.done:
        raise SystemExit(f"{entry.alias}: {job.state.value}: {job.error}")


async def _ping(workspace: Workspace) -> int:
    client = await Client.connect(workspace.folder)
    try:
        return (await client.ping()).pid
    finally:
        await client.close()


async def _stop(workspace: Workspace) -> None:
    try:
        client = await Client.connect(workspace.folder, start=False)
    except Exception:
        return
    await client.stop()


if __name__ == "__main__":
    main()
