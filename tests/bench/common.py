"""What the measurements share: made data, a worker to measure, and the table they print."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.slices import slice_schema, write_slice
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddData,
    DataSlice,
    MetadataEvent,
    SetDataSchema,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.progress import Reporter
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

COLUMNS = (
    "event_time TIMESTAMP", "id BIGINT NOT NULL", "device STRING", "region STRING", "temperature DOUBLE",
    "humidity DOUBLE", "visits INT", "note STRING",
)  # fmt: skip

MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: "file:{file}"}}
      read:
        kind: Csv
        header: true
        schema: [{schema}]
      merge: {{kind: Append}}
"""


ROOT = "{{kind: DatasetSnapshot, version: 1, content: {{name: {name}, kind: Root, metadata: []}}}}"


def make_csv(path: Path, rows: int) -> None:
    """Writes a CSV of eight columns, about 94 bytes a row; one note in ten is missing."""
    step = 500_000
    schema: pa.Schema | None = None
    with path.open("wb") as file:
        for first in range(0, rows, step):
            table = _rows(first, min(step, rows - first))
            schema = schema or table.schema
            options = pyarrow.csv.WriteOptions(include_header=first == 0, quoting_style="none")
            pyarrow.csv.write_csv(table, file, options)


def make_rows(first: int, count: int, step: int = 1) -> pa.Table:
    """Rows from a number on, as in the CSV, event times as timestamps of milliseconds."""
    table = _rows(first, count, step)
    times = table.column("event_time").cast(pa.timestamp("ms", "UTC"))
    return table.set_column(0, "event_time", times)


def _rows(first: int, count: int, step: int = 1) -> pa.Table:
    number = pa.array(range(first, first + count * step, step), pa.int64())

    def modulo(by: int) -> pa.Array:
        return pc.subtract(number, pc.multiply(pc.divide(number, by), by))

    def text(prefix: str, values: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise(prefix, pc.cast(values, pa.string()), "")

    millis = pc.add(pc.multiply(number, 1000), 1_700_000_000_000)
    moments = pc.strftime(pc.cast(millis, pa.timestamp("ms", "UTC")), "%Y-%m-%dT%H:%M:%SZ")
    note = pc.if_else(pc.equal(modulo(10), 3), None, text("reading nr ", modulo(977)))
    return pa.table(
        {
            "event_time": moments,
            "id": number,
            "device": text("device-", modulo(20_000)),
            "region": text("region-", modulo(13)),
            "temperature": pc.divide(pc.cast(modulo(4_337), pa.float64()), 97.0),
            "humidity": pc.divide(pc.cast(modulo(99_991), pa.float64()), 1024.0),
            "visits": modulo(5_000),
            "note": note,
        }
    )


SCHEMA = slice_schema(make_rows(0, 1).schema, DEFAULT_VOCABULARY)


def make_dataset(workspace: Workspace, name: str, file: Path) -> DatasetEntry:
    """A root dataset that appends this CSV."""
    schema = ", ".join(f'"{column}"' for column in COLUMNS)
    text = MANIFEST.format(name=name, file=file, schema=schema)
    return workspace.add(read_manifests(text, name))[0]


def make_empty(workspace: Workspace, name: str) -> DatasetEntry:
    """A root dataset of rows as :func:`make_rows` makes them, without any."""
    (entry,) = workspace.add(read_manifests(ROOT.format(name=name), name))
    commit(entry, [SetDataSchema(schema=encode_schema(SCHEMA))])
    return entry


def commit(entry: DatasetEntry, events: Sequence[MetadataEvent], data: Path | None = None) -> None:
    """Appends events."""
    state = entry.dataset.state()
    entry.dataset.commit(
        events, system_time=max(Timestamp.now(), state.system_time), expected_head=state.head, data=data
    )


def append_rows(entry: DatasetEntry, count: int) -> None:
    """Commits one slice of so many rows."""
    state = entry.dataset.state()
    first = 0 if state.last_offset is None else state.last_offset + 1
    staged = entry.dataset.staging_path("data")
    step = 500_000
    batches = (
        batch
        for at in range(first, first + count, step)
        for batch in make_rows(at, min(step, first + count - at)).to_batches()
    )
    written = write_slice(
        batches, schema=SCHEMA, vocab=DEFAULT_VOCABULARY, path=staged, first_offset=first,
        system_time=Timestamp.now(), fallback_event_time=Timestamp.now(), reporter=Reporter(),
    )  # fmt: skip
    assert written is not None
    data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
    event = AddData(prev_offset=state.last_offset, new_data=data, new_watermark=written.max_event_time)
    commit(entry, [event], staged)


def append_blocks(entry: DatasetEntry, until: int) -> None:
    """Lets a chain grow to so many blocks, each with a watermark, without waiting for the disk."""
    with mock.patch("os.fsync", lambda descriptor: None):
        while (made := entry.dataset.state().blocks) < until:
            numbers = range(made, min(until, made + 1000))
            commit(entry, [AddData(new_watermark=Timestamp(at * 86_400 * 10**9)) for at in numbers])


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(work: Callable[[], object], times: int) -> float:
    """Median of so many runs, in seconds."""
    return statistics.median(timed(work) for _ in range(times))


def processor_seconds() -> float:
    """Return the processor time of this process and of Java so far."""
    total = 0
    for pid in [os.getpid(), *children(os.getpid())]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Return the time of a call, and its processor time."""
    before = processor_seconds()
    return timed(work), processor_seconds() - before


class Peaks:
    """The largest resident memory of processes while they are watched, in MiB."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self.mib = dict.fromkeys(pids, 0.0)
        self._stop = threading.Event()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Samples ten times a second."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            for pid in self._pids:
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{pid}/status").read_text()
                    line = next(
                        (each for each in status.splitlines() if each.startswith("VmRSS")), "VmRSS: 0 kB"
                    )
                    self.mib[pid] = max(self.mib[pid], int(line.split()[1]) / 1024)


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, (task / "children").read_text().split())
    return found


def table(title: str, rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Prints rows of (what, measured, baseline, verdict)."""
    head = ("what", "measured", "baseline", "ratio and goal")
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(4)]
    print(f"\n{title}")
    for row in (head, tuple("-" * width for width in widths), *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def verdict(ratio: float, goal: float, at_most: bool = True) -> str:
    """The ratio, the goal and whether it is met."""
    met = ratio <= goal if at_most else ratio >= goal
    return f"{ratio:.2f}x  (goal {'<=' if at_most else '>='} {goal}x: {'met' if met else 'NOT met'})"
