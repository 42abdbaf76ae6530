"""Pull of 1,000 small CSV files through one glob with a warm Spark: a commit for each file.

The rate of the last tenth of the files is compared with the first tenth, which shows whether the cost of a
file grows with the chain. Listing and hashing is compared with ten times as many files.
"""

from __future__ import annotations

import time
from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.ingest.fetch.files_glob import fetch_files
from odf_engine.ingest.fetch.model import FetchContext
from odf_engine.ingest.polling_source import pull
from odf_engine.metadata.model import FilesGlob
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.measure import Figure, Metric, Size, timed
from tests.bench.spark import start_spark

MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: "{folder}/*.csv"
        eventTime: {{kind: FromPath, pattern: '(\\d+)', timestampFormat: yyyyMMddHHmmss}}
      read: {{kind: Csv, header: true, schema: ["id BIGINT", "city STRING", "population BIGINT"]}}
      merge: {{kind: Append}}
"""
METRICS = {
    "commits": Metric("commits per second", "", ">= 3 per second", "per second"),
    "growth": Metric("the last tenth of the files", "the first tenth", "<= 1.5x"),
    "unchanged": Metric("pull without new files"),
    "list": Metric("list and hash 10,000 files", "1,000 files", "<= 12x"),
}


class CommitTimes(Reporter):
    """Records the time of each commit."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def committed(self, dataset: str, block: str, event: str, rows: int) -> None:
        self.times.append(time.perf_counter())


def run(size: Size, folder: Path) -> list[Figure]:
    files, rows = size.pick(1000, 20), 100
    workspace = Workspace.init(folder / "ws")
    with start_spark(folder) as spark:
        pull(workspace, make(workspace, "warm", files // 10, rows), spark, Reporter())
        entry, commits = make(workspace, "files", files, rows), CommitTimes()
        began = time.perf_counter()
        pull(workspace, entry, spark, commits)
        unchanged = timed(lambda: pull(workspace, entry, spark, Reporter()))
    tenth, times = files // 10, commits.times
    few, many = make(workspace, "few", files, 1), make(workspace, "many", files * 10, 1)
    base, more = (timed(lambda entry=entry: list_files(workspace, entry, folder)) for entry in (few, many))
    return [
        METRICS["commits"].figure(files / (times[-1] - began)),
        METRICS["growth"].figure(times[-1] - times[-1 - tenth], times[tenth - 1] - began),
        METRICS["unchanged"].figure(unchanged),
        METRICS["list"].figure(more, base),
    ]


def make(workspace: Workspace, name: str, files: int, rows: int) -> DatasetEntry:
    """Create a dataset of new files."""
    folder = workspace.folder / name
    folder.mkdir()
    for number in range(files):
        lines = (f"{number * rows + row},city {row % 7},{row * 1000}" for row in range(rows))
        minute = time.strftime("%Y%m%d%H%M%S", time.gmtime(1_700_000_000 + number * 60))
        (folder / f"{minute}.csv").write_text("id,city,population\n" + "\n".join(lines) + "\n")
    return workspace.add(read_manifests(MANIFEST.format(name=name, folder=folder), name))[0]


def list_files(workspace: Workspace, entry: DatasetEntry, scratch: Path) -> None:
    """List and hash the files of a source."""
    source = entry.dataset.state().polling_source
    assert source is not None and isinstance(source.fetch, FilesGlob)
    context = FetchContext(
        workspace.resolve_path, workspace.folder, entry.dataset, None, scratch, workspace.config.fetch,
        Reporter(),
    )  # fmt: skip
    for _ in fetch_files(source.fetch, context):
        pass
