"""Many small files through one glob with a warm Spark: a commit for each of them.

    python tests/bench/bench_glob.py [FILES] [ROWS] [MERGE]

A pull of 100 such files warms Spark up. By default there are 1,000 files of 100 rows, merged by Append; MERGE
is append, ledger or snapshot. The rate of the last tenth of the files against that of the first shows whether
the cost of a file grows with the chain. Afterwards the same pull again, with nothing new, and a look over ten
times as many files.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from odf_engine.chain.dataset import Dataset
from odf_engine.ingest.fetch.files_glob import fetch_files
from odf_engine.ingest.fetch.model import FetchContext
from odf_engine.ingest.polling_source import pull
from odf_engine.metadata.model import FilesGlob
from odf_engine.metadata.yaml import read_manifests
from odf_engine.progress import Reporter
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import table, timed, verdict

GOAL = 3.0
MERGES = {
    "append": "{kind: Append}",
    "ledger": "{kind: Ledger, primaryKey: [id]}",
    "snapshot": "{kind: Snapshot, primaryKey: [id]}",
}
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
      merge: {merge}
"""


class Commits(Reporter):
    """When each commit happened."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[float] = []
        self.rows = 0

    def committed(self, dataset: str, block: str, event: str, rows: int) -> None:
        self.moments.append(time.perf_counter())
        self.rows += rows


def main() -> None:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    merge = sys.argv[3] if len(sys.argv) > 3 else "append"
    root = Path(tempfile.mkdtemp(prefix="odf-bench-"))
    try:
        report(root, files, rows, merge)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def report(root: Path, files: int, rows: int, merge: str) -> None:
    workspace = Workspace.init(root / "ws")
    spark = SparkRuntime(workspace.config.spark, root / "spark.log", root / "cache")
    spark.start()
    try:
        pull(workspace, make(workspace, "warm", 100, rows, merge), spark, Reporter())
        entry = make(workspace, "files", files, rows, merge)
        seen = Commits()
        began = time.perf_counter()
        pull(workspace, entry, spark, seen)
        seconds = seen.moments[-1] - began
        again = timed(lambda: pull(workspace, entry, spark, Reporter()))
    finally:
        spark.stop()
    tenth = max(1, files // 10)
    first, last = seen.moments[tenth - 1] - began, seen.moments[-1] - seen.moments[-1 - tenth]
    rate = files / seconds
    table(
        f"{files:,} files of {rows:,} rows, {merge}",
        [
            ("commits a second", f"{rate:.1f}", f"{GOAL:.0f}", verdict(rate / GOAL, 1, at_most=False)),
            ("rows a second", f"{seen.rows / seconds:,.0f}", "", ""),
            ("last tenth / first tenth", f"{last:.2f} s", f"{first:.2f} s", verdict(last / first, 1.5)),
            ("nothing new", f"{again:.3f} s", "", ""),
            look_at_many(workspace, root, files),
        ],
    )


def make(workspace: Workspace, name: str, files: int, rows: int, merge: str) -> DatasetEntry:
    """A dataset over so many new files."""
    folder = workspace.folder / name
    folder.mkdir()
    for number in range(files):
        lines = (f"{number * rows + row},city {row % 7},{row * 1000}" for row in range(rows))
        moment = time.strftime("%Y%m%d%H%M%S", time.gmtime(1_700_000_000 + number * 60))
        (folder / f"{moment}.csv").write_text("id,city,population\n" + "\n".join(lines) + "\n")
    text = MANIFEST.format(name=name, folder=folder, merge=MERGES[merge])
    return workspace.add(read_manifests(text, name))[0]


def look_at_many(workspace: Workspace, root: Path, files: int) -> tuple[str, str, str, str]:
    """What it costs to list files and to hash each of them, against ten times as many."""
    few, many = make(workspace, "few", files, 1, "append"), make(workspace, "many", files * 10, 1, "append")
    seconds, more = (timed(lambda entry=entry: look(workspace, entry, root)) for entry in (few, many))
    told = verdict(more / seconds, 12)
    return f"look at {files * 10:,} files", f"{more:.3f} s", f"{seconds:.3f} s for {files:,}", told


def look(workspace: Workspace, entry: DatasetEntry, root: Path) -> None:
    dataset: Dataset = entry.dataset
    source = dataset.state().polling_source
    assert source is not None
    assert isinstance(source.fetch, FilesGlob)
    context = FetchContext(
        workspace.resolve_path, workspace.folder, dataset, None, root, workspace.config.fetch, Reporter()
    )
    for _ in fetch_files(source.fetch, context):
        pass


if __name__ == "__main__":
    main()
