"""A small pipeline whose rows must be the same wherever Spark runs, and a program that runs it.

    python tests/spark/pipeline.py PLACE JOBS

Both are JSON (:class:`Place`, a list of :class:`Job`); a line of JSON is printed for each job
(:class:`Done`). Spark is one a process, so that every place where it runs needs such a program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from odf_engine.base.config import SlicesConfig
from odf_engine.base.progress import Reporter
from odf_engine.data.digest import LogicalHasher
from odf_engine.data.parquet.slices import read_batches
from odf_engine.derive.run import transform
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.errors import OdfError
from odf_engine.ingest.polling_source import pull
from odf_engine.metadata.model import ExecuteTransform
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.executors.slice_downloads import run_downloads
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import COLUMNS, make_csv
from tests.waiting import wait_until

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import SparkRuntime

SCHEMA: Final = ", ".join(f'"{column}"' for column in COLUMNS)
ROOT: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: "file:{file}"}}
      read: {{kind: Csv, header: true, schema: [{schema}]}}
      merge: {merge}
"""
DERIVATIVE: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{inputs}]
      transform: {{kind: Sql, engine: spark, query: "{query}", temporalTables: [{tables}]}}
"""
MERGES: Final = {
    "readings": "{kind: Append}",
    "visits": "{kind: Snapshot, primaryKey: [id]}",
    "notes": "{kind: Append}",
}
"""The roots. The files of ``notes`` are larger than a partition of Spark, so that executors write them."""
NOTES: Final = 3000
"""Number of rows of a file with notes, which are longer than 6,000 characters."""
TARGET_RECORDS: Final = 500
"""Maximum number of rows of a slice."""
QUERIES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "warm": (
        ("readings",),
        "SELECT event_time, id, region, temperature * 1.8 + 32 AS fahrenheit FROM readings WHERE id % 50 = 7",
    ),
    "short": (("notes",), "SELECT event_time, id, left(note, 9) AS note FROM notes WHERE id % 3 < 2"),
    "hours": (
        ("readings",),
        "SELECT window.start AS event_time, region, sum(temperature) AS heat, avg(humidity) AS humidity, "
        "count(*) AS n FROM readings GROUP BY window(event_time, '1 hour'), region",
    ),
    "pairs": (
        ("readings", "warm"),
        "SELECT r.event_time, r.id, w.fahrenheit, w.id AS other FROM readings r JOIN warm w "
        "ON w.id = r.id + 3 AND w.event_time BETWEEN r.event_time AND r.event_time + INTERVAL 1 MINUTE",
    ),
    "regions": (
        ("visits",),
        "SELECT max(event_time) AS event_time, region, sum(visits) AS visits, avg(temperature) AS heat, "
        "count(*) AS n FROM visits GROUP BY region",
    ),
    "known": (
        ("readings", "visits"),
        "SELECT r.event_time, r.id, r.region, v.region AS moved FROM readings AS r "
        "LEFT JOIN visits FOR SYSTEM_TIME AS OF r.event_time AS v ON r.id = v.id",
    ),
    "totals": (
        ("readings", "visits"),
        "SELECT max(r.event_time) AS event_time, v.region, count(*) AS n, max(v.visits) AS most "
        "FROM readings AS r JOIN visits AS v ON r.id = v.id GROUP BY v.region",
    ),
    "ranks": (
        ("readings", "visits"),
        "SELECT r.event_time, r.id, v.region, rank() OVER (PARTITION BY v.region ORDER BY r.humidity) AS n, "
        "sum(r.temperature) OVER (PARTITION BY v.region) AS heat FROM readings AS r JOIN visits AS v "
        "ON r.id = v.id WHERE r.id IN (SELECT id FROM visits WHERE visits % 3 = 1)",
    ),
}
"""Without state, windows of DOUBLE, joins in time, groups that are corrected, versions of a key, and changes
of results: groups that are kept, and keys that are computed again.
"""
KEYS: Final = {"known": "{name: visits, primaryKey: [id]}"}


class Place(msgspec.Struct):
    """Where Spark runs.

    Attributes:
        scratch: for Spark's log and temporary files; on a cluster the executors see it.
        options: of :class:`odf_engine.spark.runtime.spark_conf.SparkOptions`.
    """

    scratch: str
    options: dict[str, Any]


class Job(msgspec.Struct, kw_only=True):
    """What to do.

    Attributes:
        make: a folder for a new workspace with the pipeline, or None for none.
        source: folder with the files to pull (:func:`make_sources`).
        queries: the derivatives in it.
        check: workspaces to verify.
        replayed: the derivatives in them that are run again.
        kill: name of a dataset during whose second pull or transform an executor is killed.
        store: URL of an object store for the datasets of new workspaces; a checked workspace that does not
            exist is a new one that opens the store.
    """

    make: str | None = None
    source: str = ""
    queries: list[str] = msgspec.field(default_factory=lambda: list(QUERIES))
    check: list[str] = []
    replayed: list[str] = msgspec.field(default_factory=lambda: list(QUERIES))
    kill: str | None = None
    store: str | None = None


class Done(msgspec.Struct, kw_only=True):
    """What came out.

    Attributes:
        hashes: for each dataset, the logical hash of all rows without the time at which they were made, and
            the last offsets of its slices.
        checkpoints: sizes of the files with the state, in the order of the transactions, by dataset.
        findings: of the verification.
        transforms: how many transactions were run again.
        lost: how many executors Spark lost.
        by_executors: how many pulls and transforms executors have read, and how many they have written.
        downloaded: how many slices executors have downloaded for the verification.
        seconds: from begin to end, without Spark's start.
    """

    hashes: dict[str, str]
    checkpoints: dict[str, list[int]]
    findings: list[str]
    transforms: int
    lost: int
    by_executors: tuple[int, int]
    downloaded: int = 0
    seconds: float


def make_sources(folder: Path, rows: int) -> None:
    """Files for two pulls: ``rows`` rows each of readings, and two states of a table of 1,000 rows."""
    folder.mkdir(parents=True)
    make_csv(folder / "all.csv", 2 * rows)
    head, *lines = (folder / "all.csv").read_text().splitlines(keepends=True)
    for number, part in enumerate((lines[:rows], lines[rows:]), 1):
        (folder / f"readings-{number}.csv").write_text(head + "".join(part))
    changed = [line for at, line in enumerate(lines[:1100]) if at % 9]
    changed = [line.replace("region-1,", "region-2,") if at % 5 else line for at, line in enumerate(changed)]
    notes = [_with_long_note(line, at) for at, line in enumerate(make_lines(folder, 2 * NOTES))]
    (folder / "notes-1.csv").write_text(head + "".join(notes[:NOTES]))
    (folder / "notes-2.csv").write_text(head + "".join(reversed(notes[NOTES:])))
    (folder / "visits-1.csv").write_text(head + "".join(lines[:1000]))
    (folder / "visits-2.csv").write_text(head + "".join(changed))
    (folder / "all.csv").unlink()


def make_lines(folder: Path, rows: int) -> list[str]:
    """Return the lines of a CSV file without the header."""
    make_csv(folder / "some.csv", rows)
    _, *lines = (folder / "some.csv").read_text().splitlines(keepends=True)
    (folder / "some.csv").unlink()
    return lines


def _with_long_note(line: str, number: int) -> str:
    *values, _ = line.split(",")
    return ",".join([*values, f"{number:06}" * (1000 + number % 50)]) + "\n"


class Pipeline:
    """A workspace with roots and derivatives.

    Args:
        folder: of the workspace, which is made when it is not there.
        runtime: a Spark that runs.
        queries: the derivatives.
        store: URL of an object store for the datasets of a new workspace.
    """

    def __init__(
        self,
        folder: Path,
        runtime: SparkRuntime,
        queries: Sequence[str] = tuple(QUERIES),
        store: str | None = None,
    ) -> None:
        self._runtime = runtime
        self._engine = SparkEngine(runtime)
        self.reporter = _CountingReporter()
        self._queries = queries
        self._open(folder, store)
        if (shared := self.workspace.store) is not None:
            shared.run_downloads = lambda downloads, reporter: run_downloads(
                runtime.session(), downloads, reporter
            )

    def _open(self, folder: Path, store: str | None) -> None:
        if (folder / ".odf").exists():
            self.workspace = Workspace.find(explicit=folder)
            return
        self.workspace = Workspace.init(folder, store)
        slices = SlicesConfig(target_records=TARGET_RECORDS)
        self.workspace.config = msgspec.structs.replace(self.workspace.config, slices=slices)
        if self.workspace.datasets():
            return
        for name, merge in MERGES.items():
            text = ROOT.format(name=name, file=folder / f"{name}.csv", schema=SCHEMA, merge=merge)
            self.workspace.add(read_manifests(text, name))
        for name in self._queries:
            inputs, query = QUERIES[name]
            listed = ", ".join(f"{{datasetRef: {each}, alias: {each}}}" for each in inputs)
            tables = KEYS.get(name, "")
            text = DERIVATIVE.format(name=name, inputs=listed, query=query, tables=tables)
            self.workspace.add(read_manifests(text, name))

    def make(self, source: Path, kill: str | None = None) -> int:
        """Pulls everything twice; returns how many executors were lost."""
        lost = 0
        for number in (1, 2):
            for name in MERGES:
                file = self.workspace.folder / f"{name}.csv"
                file.write_bytes((source / f"{name}-{number}.csv").read_bytes())
                os.utime(file, (number, number))
            for name in (*MERGES, *self._queries):
                killer = _Killer(self._runtime) if name == kill and number == 2 else None
                if killer is not None:
                    killer.start()
                if name in MERGES:
                    pull(self.workspace, self._entry(name), self._runtime, self.reporter)
                else:
                    transform(self.workspace, self._entry(name), self._engine, self.reporter)
                lost += 0 if killer is None else killer.finish()
        return lost

    def hashes(self) -> dict[str, str]:
        """See :class:`Done`."""
        return {entry.alias.name: _hash(entry) for entry in self.workspace.datasets()}

    def checkpoints(self) -> dict[str, list[int]]:
        """See :class:`Done`."""
        return {name: _sizes(self._entry(name)) for name in self._queries}

    def verify(self, replayed: Sequence[str]) -> tuple[list[str], int]:
        """Findings, and how many transactions of these derivatives were run again."""
        found: list[str] = []
        count = 0
        for entry in self.workspace.datasets():
            again = entry.alias.name in replayed
            replay = Replay(self.workspace, entry, self._engine, self.reporter) if again else None
            report = verify(entry.dataset, self.reporter, replay=replay)
            found += [f"{entry.alias}: {finding.message}" for finding in report.findings]
            count += report.transforms
        return found, count

    def _entry(self, name: str) -> DatasetEntry:
        return self.workspace.resolve(name)


class _CountingReporter(Reporter):
    """Counts the pulls and transforms that executors read and wrote, and the slices that they downloaded."""

    def __init__(self) -> None:
        super().__init__()
        self.by_executors = (0, 0)
        self.downloaded = 0

    def log(self, text: str, level: str = "info") -> None:
        read, written = self.by_executors
        self.by_executors = (read + ("read by executors" in text), written + ("written by executors" in text))
        self.downloaded += int(text.split()[0]) if "downloaded by executors" in text else 0


def _hash(entry: DatasetEntry) -> str:
    slices = entry.dataset.slices()
    paths = [entry.dataset.slice_path(row) for row in slices]
    table = pa.concat_tables(pa.Table.from_batches(read_batches(path)) for path in paths)
    table = table.drop_columns(["system_time"])
    with LogicalHasher(table.schema) as hasher:
        for batch in table.combine_chunks().to_batches():
            hasher.update(batch)
        return f"{hasher.finish()} {[row.end for row in slices]}"


def _sizes(entry: DatasetEntry) -> list[int]:
    blocks = [block.block.event for block in entry.dataset.blocks()]
    events = [event for event in reversed(blocks) if isinstance(event, ExecuteTransform)]
    return [event.new_checkpoint.size for event in events if event.new_checkpoint is not None]


class _Killer(threading.Thread):
    """Kills the first executor that is seen to work at something."""

    def __init__(self, runtime: SparkRuntime) -> None:
        super().__init__(daemon=True)
        self._runtime = runtime
        self._application = runtime.session().sparkContext.applicationId
        self._before = len(self._lost())
        self._over = threading.Event()
        self._killed = False

    def run(self) -> None:
        while not self._killed and not self._over.wait(0.01):
            for each in _executors(self._runtime):
                if each.isActive() and int(each.activeTasks()) > 0 and str(each.id()) != "driver":
                    self._kill(str(each.id()))
                    break

    def finish(self) -> int:
        """Waits until Spark knows; how many were lost."""
        self._over.set()
        self.join()
        if self._killed:
            wait_until(lambda: len(self._lost()) > self._before)
        return len(self._lost()) - self._before

    def _lost(self) -> list[Any]:
        return [each for each in _executors(self._runtime) if not each.isActive()]

    def _kill(self, name: str) -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if self._application in words and words[words.index("--executor-id") + 1] == name:
                    os.kill(int(folder.name), signal.SIGKILL)
                    self._killed = True


def _executors(runtime: SparkRuntime) -> list[Any]:
    java: Any = runtime.session().sparkContext._jsc
    found = java.sc().statusStore().executorList(False)
    return [found.apply(at) for at in range(found.size())]


def run(place: Place, jobs: Sequence[Job]) -> Iterator[Done]:
    """Does jobs, one after the other, with a Spark of its own."""
    from odf_engine.spark.executors import slice_writer
    from odf_engine.spark.runtime.session import SparkRuntime
    from odf_engine.spark.runtime.spark_conf import SparkOptions

    slice_writer.MAX_LOCAL_BYTES = 0  # executors write the few rows of this pipeline
    scratch = Path(place.scratch)
    runtime = SparkRuntime(
        SparkOptions(**place.options), scratch / "spark.log", scratch / "cache",
        java_flags=["-XX:TieredStopAtLevel=1"],
    )  # fmt: skip
    runtime.start()
    try:
        for job in jobs:
            yield _done(job, runtime)
    finally:
        runtime.stop()


def _done(job: Job, runtime: SparkRuntime) -> Done:
    began = monotonic()
    done = Done(hashes={}, checkpoints={}, findings=[], transforms=0, lost=0, by_executors=(0, 0), seconds=0)
    if job.make is not None:
        made = Pipeline(Path(job.make), runtime, job.queries, job.store)
        done.lost = made.make(Path(job.source), job.kill)
        done.hashes, done.checkpoints = made.hashes(), made.checkpoints()
        done.by_executors = made.reporter.by_executors
    for folder in job.check:
        checked = Pipeline(Path(folder), runtime, store=job.store)
        findings, count = checked.verify(job.replayed)
        done.downloaded += checked.reporter.downloaded
        done.findings += findings
        done.transforms += count
    done.seconds = monotonic() - began
    return done


def run_apart(place: Place, *jobs: Job) -> Iterator[Done]:
    """Does jobs in a process of their own; yields as each is done.

    Raises:
        OdfError: it failed; the message is the last line of what it said.
    """
    root = str(Path(__file__).resolve().parents[2])
    said = Path(place.scratch) / "program.log"
    command = [sys.executable, __file__, msgspec.json.encode(place), msgspec.json.encode(jobs)]
    with (
        said.open("wb") as errors,
        subprocess.Popen(
            command, cwd=root, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE, stderr=errors
        ) as program,
    ):
        assert program.stdout is not None
        for line in program.stdout:
            yield msgspec.json.decode(line, type=Done)
    if program.returncode:
        raise OdfError(said.read_text().strip().rpartition("\n")[2])


def main() -> None:
    place = msgspec.json.decode(sys.argv[1], type=Place)
    for done in run(place, msgspec.json.decode(sys.argv[2], type=list[Job])):
        print(msgspec.json.encode(done).decode(), flush=True)


if __name__ == "__main__":
    main()
