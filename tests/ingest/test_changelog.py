"""Pushes of rows with operations. See test_merge_rows for random changelogs."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

import pytest

from odf_engine.chain.state import ChainUpdate
from odf_engine.data.changelog import Op
from odf_engine.errors import BadData, InvalidQuery
from odf_engine.ingest.push_source import PushOptions, push
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: main
      read:
        kind: NdJson
        schema: [op STRING, event_time TIMESTAMP, id BIGINT, note STRING, "many ARRAY<INT>"]
      merge: {merge}
      {more}
"""
LEDGER = "{kind: Ledger, primaryKey: [id]}"
SNAPSHOT = "{kind: Snapshot, primaryKey: [id], compareColumns: [note]}"
APPEND = "{kind: Append}"
NOW = Timestamp.parse("2024-06-01T00:00:00Z")
T1, T2 = "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"
A, R, F, T = (op.code for op in Op)


class Log(Pulled):
    """A dataset that changelogs are pushed to; rows are (op, id, note, event time, many)."""

    def define(self, merge: str, *, name: str = "data", more: str = "") -> None:
        text = MANIFEST.format(name=name, merge=merge, more=more)
        (self.entry,) = self.workspace.add(read_manifests(text, "test.yaml"))

    def push(self, *rows: tuple[Any, ...]) -> ChainUpdate:
        names = ("op", "id", "note", "event_time", "many")
        text = "".join(json.dumps(dict(zip_longest(names, row))) + "\n" for row in rows)
        path = self.write("rows.ndjson", text)
        self.reporter = Recorder()
        options = PushOptions(event_time=NOW, force=True)
        done = push(self.workspace, self.entry, self.runtime, self.reporter, [path], options)
        return done.update

    def refuses(self, *rows: tuple[Any, ...]) -> str:
        head = self.dataset.head()
        with pytest.raises(BadData) as caught:
            self.push(*rows)
        assert self.dataset.head() == head
        assert list(self.dataset.folder.glob("*/.pending*")) == []
        return str(caught.value)

    def log(self) -> list[tuple[Any, ...]]:
        rows = self.rows("op", "id", "note", "event_time")
        return [(Op(op).code, number, note, f"{time:%m-%d}") for op, number, note, time in rows]


@pytest.fixture
def log(workspace: Workspace, runtime: SparkRuntime) -> Log:
    return Log(workspace, runtime)


def test_changelog_by_key_is_validated_against_the_dataset(log: Log) -> None:
    log.define(SNAPSHOT)
    first = [(A, 2, "b", T2, [1, None]), ("0", 1, "a", None, None), (A, 3, None, T1, [])]
    assert log.push(*first).records == 3
    # As they came; what is taken back gets the event time of the row that it takes back.
    many = [
        (F, 1, "a"), (T, 1, "A"), ("-r", 3, None, T1, []), (A, 4, "d", T1), (R, 4, "d", None),
        (F, 2, "b", T2, [1, None]), (T, 2, "b", T1, [1]), (A, 3, "c"), (F, 1, "A"), (T, 1, "AA", T1),
    ]  # fmt: skip
    assert log.push(*many).records == 10
    assert log.log() == [
        (A, 2, "b", "01-02"), (A, 1, "a", "06-01"), (A, 3, None, "01-01"),
        (F, 1, "a", "06-01"), (T, 1, "A", "06-01"), (R, 3, None, "01-01"), (A, 4, "d", "01-01"),
        (R, 4, "d", "01-01"), (F, 2, "b", "01-02"), (T, 2, "b", "01-01"), (A, 3, "c", "06-01"),
        (F, 1, "A", "06-01"), (T, 1, "AA", "01-01"),
    ]  # fmt: skip
    assert log.newest().new_watermark == NOW
    # Each push shows the first few of its rows that are wrong.
    for rows, texts in (
        (
            [(A, 9, "x"), (A, 1, "again"), (A, 9, "y"), (R, 4, "d", T1), (R, 7, "d", T1), (A, 2, "b")],
            (
                "5 invalid rows",
                "row 2 ",
                "id=1",
                "already exists",
                "row 3 ",
                "row 4 ",
                "does not exist",
                "row 5 ",
                "row 6 ",
            ),
        ),
        (
            [(R, 1, "A", T1), (R, 2, "b", T1, [1, None]), (R, 3, "c"), (R, 3, "c")],
            ("3 invalid rows", "row 1 ", "values differ", "row 2 ", "row 4 ", "does not exist"),
        ),
        ([(R, 1, "AA", T2)], ("1 invalid row", "values differ")),
        (
            [(F, 3, "c"), (A, 9, "x"), (T, 3, "d"), (F, 1, "AA"), (T, 2, "d"), (T, 8, "e")],
            (
                "5 invalid rows",
                "row 1 ",
                "followed by",
                "row 3 ",
                "follow the -C",
                "row 4 ",
                "row 5 ",
                "row 6 ",
            ),
        ),
        (
            [("+B", 9, "x"), (None, 8, "x"), (A, None, "x"), (A, 1, "x"), (A, 1, "x"), (A, 1, "x")],
            ("6 invalid rows", "invalid operation '+B'", "row 2 ", "row 3 ", "primary key is null", "row 5 "),
        ),
    ):
        said = log.refuses(*rows)
        for text in texts:
            assert text in said, said
    # The state is what it was, and without the keys that were remembered just as well.
    for path in (log.dataset.folder / "info" / "keys").glob("*/*"):
        path.unlink()
    assert log.push((R, 1, "AA", T1), (R, 2, "b", None, [1]), (R, 3, "c")).records == 3
    assert log.push((A, 1, "new")).records == 1


@pytest.mark.complete
def test_changelog_without_key_matches_rows_by_value(log: Log) -> None:
    log.define(APPEND)
    assert log.push((A, 1, "a", T1), (A, 1, "a", T2), (A, 1, "a", T1), (A, 2, None)).records == 4
    assert "does not exist" in log.refuses((R, 1, "b", T1))
    assert "row 3" in log.refuses((R, 1, "a", T2), (A, 5, "x"), (R, 1, "a", T2))
    assert "values differ" in log.refuses((R, 1, "a", "2020-01-01"))
    assert "followed by" in log.refuses((F, 1, "a"))
    assert log.push((R, 1, "a", T1), (F, 2, None), (T, 3, "c", T1), (R, 3, "c"), (R, 1, "a")).records == 5
    assert log.log()[4:] == [
        (R, 1, "a", "01-01"), (F, 2, None, "06-01"), (T, 3, "c", "01-01"), (R, 3, "c", "01-01"),
        (R, 1, "a", "01-01"),
    ]  # fmt: skip
    assert log.push((R, 1, "a")).records == 1
    assert log.log()[-1] == (R, 1, "a", "01-02")
    assert "does not exist" in log.refuses((R, 1, "a"))


def test_operations_need_an_order(log: Log) -> None:
    query = "SELECT op, id, max(note) AS note, max(event_time) AS event_time FROM input GROUP BY op, id"
    log.define(LEDGER, more=f'preprocess: {{kind: Sql, engine: spark, query: "{query}"}}')
    with pytest.raises(InvalidQuery, match="operations"):
        log.push((A, 1, "a"))
