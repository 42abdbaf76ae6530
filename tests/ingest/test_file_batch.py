"""Several files of a folder in one commit: the rows of one commit for each file, or one commit for each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from odf_engine.base.settings import set_value
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.chain.dataset import Dataset
from odf_engine.derive.provenance.root_origins import describe_location, describe_source_state
from odf_engine.errors import BadData
from odf_engine.ingest import file_batch
from odf_engine.ingest.fetch.files_glob import IngestedFiles, read_state
from odf_engine.metadata.model import FilesGlob
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder

FROM_PATH = 'eventTime: {kind: FromPath, pattern: "(.*).csv"}'
CSV = "read: {kind: Csv, header: true, schema: [%s]}"
PLAIN = CSV % "id BIGINT, city STRING"
TIMED = CSV % "event_time TIMESTAMP, id BIGINT"
SUMS = """
preprocess:
  kind: Sql
  engine: spark
  query: SELECT city, sum(id) AS id FROM input GROUP BY city
"""
LEDGER = "merge: {kind: Ledger, primaryKey: [id]}"
APPEND = "merge: {kind: Append}"
CASES = {
    "append": ("", PLAIN, APPEND),
    "inferred": ("", "read: {kind: Csv, header: true, inferSchema: true}", APPEND),
    "event time of the file": (FROM_PATH, PLAIN, APPEND),
    "event time of some rows": (FROM_PATH, TIMED, APPEND),
    "query over each file": (FROM_PATH, PLAIN + SUMS, APPEND),
    "ledger": (FROM_PATH, PLAIN, LEDGER),
    "ledger with event times": (FROM_PATH, TIMED, LEDGER),
}


def add(pulled: Pulled, name: str, case: tuple[str, str, str], files: int = 100) -> None:
    event_time, read, merge = case
    fetch = f'fetch: {{kind: FilesGlob, path: "{name}/*.csv"{event_time and ", "}{event_time}}}'
    pulled.add("\n".join([fetch, read, merge]), name=name)
    config = set_value(pulled.workspace.config, f"fetch.filesPerCommit.{name}", str(files))
    pulled.workspace.config = config


def write(pulled: Pulled, name: str, day: int, *rows: str, header: str = "id,city") -> None:
    pulled.write(f"{name}/2024-01-{day:02}.csv", "\n".join([header, *rows, ""]))


def commits(pulled: Pulled) -> int:
    return sum(kind == "AddData" for kind in pulled.kinds())


@pytest.mark.parametrize("name", CASES)
def test_one_commit_has_the_rows_of_a_commit_for_each_file(pulled: Pulled, name: str) -> None:
    tables = []
    is_timed = TIMED in CASES[name][1]
    for folder, limit in (("single", 1), ("batch", 4)):
        add(pulled, folder, CASES[name], limit)
        for days in ([5, 2, 8, 3], [1, 9, 7, 6, 4]):
            for day in days:
                times = ("2024-02-01,", f"2024-01-{10 - day:02},", ",") if is_timed else ("", "", "")
                rows = [
                    f"{times[at]}{100 * day + at}" + ("" if is_timed else f",c{at % 2}") for at in range(3)
                ]
                write(pulled, folder, day, *rows, header="event_time,id" if is_timed else "id,city")
            write(pulled, folder, 10, header="event_time,id" if is_timed else "id,city")
            update = pulled.pull()
            assert update.records == (len(days) * (2 if "query" in name else 3))
        system = ["system_time"] if CASES[name][0] else ["system_time", "event_time"]
        tables.append(pulled.table().drop_columns(system))
        watermark = pulled.dataset.state().watermark
        assert commits(pulled) == (10 if folder == "single" else 4), pulled.reporter.lines
        assert pulled.pull().blocks == 0
    single, batch = tables
    assert batch.equals(single)
    assert (watermark is not None) and (not is_timed or str(watermark).startswith("2024-02-01"))


def test_files_of_a_commit_are_fetched_once(pulled: Pulled, tmp_path: Path) -> None:
    add(pulled, "data", CASES["append"])
    for day in (3, 5, 7):
        write(pulled, "data", day, f"{day},x")
    pulled.pull()
    for day in (1, 4, 9):  # late files with earlier names
        write(pulled, "data", day, f"{day},x")
    assert (pulled.pull().records, commits(pulled)) == (3, 2)
    state = pulled.dataset.state().source_state
    assert state is not None and state.value.startswith("2024-01-09.csv\tf1220")
    assert [name[8:10] for name, _ in read_state(state.value)] == ["09", "04", "01"]
    glob = FilesGlob("data/*.csv")
    assert describe_source_state(glob, state) == "files 2024-01-01.csv, 2024-01-04.csv, 2024-01-09.csv"
    assert describe_location(glob, state) == "data/*.csv"
    write(pulled, "data", 4, "4,y")
    for compacted in (False, True):
        if compacted:
            compact(pulled.dataset, CompactionPolicy(), Recorder())
            assert commits(pulled) == 1
        clone = tmp_path / f"clone-{compacted}"
        shutil.copytree(pulled.dataset.folder, clone)
        shutil.rmtree(clone / "info", ignore_errors=True)
        taken = ingested_names(Dataset(clone, BlockIndex(tmp_path / f"{compacted}.sqlite")))
        assert taken == [f"2024-01-{day:02}.csv" for day in (1, 3, 4, 5, 7, 9)]
        assert pulled.pull().records == 0
        assert any(
            "2024-01-04.csv was ingested before and has changed" in text for text in pulled.reporter.warnings
        )
    assert pulled.pull(force=True).records == 1


def ingested_names(dataset: Dataset) -> list[str]:
    files = IngestedFiles(dataset, read_state)
    names = sorted(f"2024-01-{day:02}.csv" for day in range(1, 10) if files.has(f"2024-01-{day:02}.csv"))
    files.close()
    return names


def test_files_that_cannot_share_a_commit_are_ingested_one_by_one(pulled: Pulled) -> None:
    """A key of two files, rows that repeat those of another file, and a snapshot."""
    for name, case in (
        ("keys", CASES["ledger"]),
        ("repeated", CASES["append"]),
        ("states", ("", PLAIN, "merge: {kind: Snapshot, primaryKey: [id]}")),
    ):
        add(pulled, name, case)
        write(pulled, name, 1, "1,a", "2,b")
        write(pulled, name, 2, "3,a")
        write(pulled, name, 3, "2,b" if name == "repeated" else "2,c")
        pulled.pull()
        assert commits(pulled) == 3
        ids = {"keys": [1, 2, 3], "repeated": [1, 2, 3, 2], "states": [1, 2, 1, 2, 3, 2, 3]}
        assert [row for (row,) in pulled.rows("id")] == ids[name]
        expected = {"keys": ["existing primary key"], "repeated": ["2024-01-03.csv: all 1 row"], "states": []}
        texts = pulled.reporter.warnings
        assert all(part in text for part, text in zip(expected[name], texts, strict=True))


def test_an_invalid_file_leaves_the_files_before_it_committed(pulled: Pulled) -> None:
    add(pulled, "data", CASES["append"])
    for day in (1, 2, 4):
        write(pulled, "data", day, f"{day},x")
    write(pulled, "data", 3, "3,x", "three,x")
    with pytest.raises(BadData) as caught:
        pulled.pull()
    assert caught.value.where == '2024-01-03.csv: line 3, column "id"'
    assert [row for (row,) in pulled.rows("id")] == [1, 2]
    write(pulled, "data", 3, "3,x")
    assert (pulled.pull().records, commits(pulled)) == (2, 3)


def test_progress_names_the_number_of_the_file(pulled: Pulled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files have commits of their own."""
    add(pulled, "data", CASES["append"])
    for day in range(1, 6):
        write(pulled, "data", day, f"{day},{'x' * (1000 if day == 3 else 1)}")
    monkeypatch.setattr(file_batch, "MAX_BYTES", 500)
    seen: list[tuple[str, int | None, int | None]] = []
    named: set[tuple[int, str]] = set()

    class Watching(Recorder):
        def set_amounts(self, **amounts: Any) -> None:
            super().set_amounts(**amounts)
            if "files" in amounts:
                seen.append((self.phases[-1], amounts["files"], self.amounts.get("total_files")))
                named.add((amounts["files"], Path(amounts["file"]).name))

    monkeypatch.setattr("tests.ingest.pulling.Recorder", Watching)
    pulled.pull()
    assert commits(pulled) == 3
    assert {files for phase, files, total in seen if (phase, total) == ("read", 5)} == {1, 2, 3, 4, 5}
    assert {files for phase, files, total in seen if (phase, total) == ("commit", 5)} == {2, 3, 5}
    assert named == {(day, f"2024-01-0{day}.csv") for day in range(1, 6)}
