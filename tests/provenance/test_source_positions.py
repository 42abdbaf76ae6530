"""Positions of root rows in the files of their publisher."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.derive.provenance.model import RowSource, SourcePosition
from odf_engine.ingest.row_positions import is_same_value
from odf_engine.metadata.model import (
    FilesGlob,
    Json,
    NdJson,
    Pipe,
    SetPollingSource,
    Snapshot,
    SourceState,
    Sql,
    SqlQueryStep,
    Url,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.provenance.test_trace_roots import CF, CHANGED, CT, ETAG, R, Rooted, polling


@pytest.fixture
def rooted(tmp_path: Path) -> Rooted:
    return Rooted(tmp_path / "a [b] 100%")


def write(rooted: Rooted, text: str, name: str = "x.csv") -> Path:
    """A file in the workspace; commits then have the state that a pull of it records."""
    path = rooted.workspace.folder / name
    path.write_text(text, encoding="utf-8")
    rooted.state = SourceState(
        "default", CHANGED, str(Timestamp.from_ms(path.stat().st_mtime_ns // 1_000_000))
    )
    return path


def source_of(rooted: Rooted, root: DatasetEntry, *runs: tuple[int, int]) -> RowSource:
    (source,) = rooted.trace(root, *runs).sources
    return source


def places(source: RowSource) -> list[tuple[int, str, str]]:
    assert not source.unlocated
    return [(position.offset, position.place, position.text) for position in source.positions]


def test_a_row_has_the_line_with_its_values(rooted: Rooted) -> None:
    """Quoted line ends, blank lines, several spellings of a number, and repeated rows."""
    root = rooted.root()
    path = write(rooted, 'City,X\n"a\nb",1\n\n c ,2.0\nd,003\nd,3\nd,4\n')
    rooted.commit(root, [polling(Url("x.csv"))])
    rooted.rows(root, (1, "a\nb", 1), (1, "c", 2), (1, "d", 3))
    source = source_of(rooted, root, (0, 2))
    assert places(source) == [(2, "line 6, 7", "d,003"), (1, "line 5", " c ,2.0"), (0, "line 2", '"a')]
    assert source.positions[0] == SourcePosition(2, str(path), "line 6, 7", 6, "d,003")


def test_corrected_and_retracted_rows_are_searched_by_their_key(rooted: Rooted) -> None:
    root = rooted.root()
    write(rooted, "city,x\na,1\nb,2\n")
    rooted.commit(root, [polling(Url("file:x.csv"), Snapshot(["city"]))])
    rooted.rows(root, (1, "a", 1), (1, "b", 2))
    write(rooted, "city,x\na,10\n")
    rooted.rows(root, (1, "a", 1, CF), (2, "a", 10, CT), (2, "b", 2, R))
    assert places(source_of(rooted, root, (2, 4))) == [(3, "line 2", "a,10")]


def test_a_retracted_row_names_the_file_without_it(rooted: Rooted) -> None:
    """The row and its retraction name the file of the first retraction, also after the file has changed."""
    root = rooted.root()
    rooted.commit(root, [polling(FilesGlob("w*.csv"), Snapshot(["city"]))])
    rooted.state = SourceState("default", ETAG, "w1.csv\tf1220" + "0" * 64)
    rooted.rows(root, (1, "a", 1), (1, "b", 2), (1, "c", 3))
    rooted.state = SourceState("default", ETAG, "w2.csv\tf1220" + "1" * 64)
    rooted.rows(root, (1, "b", 2, CF), (2, "b", 3, CT), (1, "a", 1, R))
    rooted.state = SourceState("default", ETAG, "w3.csv\tf1220" + "2" * 64)
    rooted.rows(root, (3, "a", 1), (2, "b", 3, R))
    rooted.state = SourceState("default", ETAG, "w4.csv\tf1220" + "3" * 64)
    rooted.rows(root, (3, "a", 1, R))
    sources = rooted.trace(root, (0, 2), (4, 7)).sources
    assert [
        (retraction.place, retraction.runs, retraction.is_absence)
        for source in sources
        for retraction in source.retractions
    ] == [
        ("w2.csv", [(0, 0)], True),  # a
        ("w3.csv", [(1, 1)], True),  # b, after a correction
        ("w2.csv", [(5, 5)], True),  # its retraction
        ("w3.csv", [(4, 4)], True),  # the corrected b
        ("w3.csv", [(7, 7)], True),
        ("w4.csv", [(6, 6)], True),  # the later a
    ]
    assert sources[0].retractions[0].time == sources[1].ingested
    path = write(rooted, "city,x\n", "w5.csv")
    rooted.rows(root, (3, "c", 3, R))
    (retraction,) = source_of(rooted, root, (2, 2)).retractions
    assert retraction.time == str(Timestamp.from_ms(path.stat().st_mtime_ns // 1_000_000))


def test_lines_before_filters_are_reported(rooted: Rooted) -> None:
    root = rooted.root()
    write(rooted, "Report;\n\nCity;X\na;1\nb;2\nTotal;3\n")
    steps = [Pipe(["odf", "filter", "csv", "--separator", ";", "--skip", "1", "--drop-last", "1"])]
    rooted.commit(root, [polling(Url("x.csv"), prepare=steps)])
    rooted.rows(root, (1, "a", 1), (1, "b", 2))
    assert places(source_of(rooted, root, (0, 1))) == [(1, "line 5", "b;2"), (0, "line 4", "a;1")]


def test_files_of_a_glob_are_compared_by_their_hash(rooted: Rooted) -> None:
    root = rooted.root()
    (rooted.workspace.folder / "in").mkdir()
    write(rooted, "city,x\na,1\n", "in/1.csv")
    path = write(rooted, "city,x\nb,2\n", "in/2.csv")
    digests = [
        "f1220" + "1" * 64,
        "f1220" + hashlib.sha256(path.read_bytes()).hexdigest(),
    ]
    rooted.commit(root, [polling(FilesGlob("in/*.csv"))])
    rooted.state = SourceState("default", ETAG, f"2.csv\t{digests[1]}")
    rooted.rows(root, (1, "b", 2))
    assert places(source_of(rooted, root, (0, 0))) == [(0, "line 2", "b,2")]
    rooted.state = SourceState("default", ETAG, f"2.csv\t{digests[0]}\t1.csv")
    rooted.rows(root, (1, "a", 1))
    changed = source_of(rooted, root, (1, 1))
    assert changed.positions == [] and "1.csv was modified after" in changed.unlocated


def test_json_lines_and_columns_copied_by_a_query_are_found(rooted: Rooted) -> None:
    root = rooted.root()
    write(rooted, '{"name": "a", "n": 1}\n{"name": "b", "n": 2, "more": [1]}\n')
    query = Sql(engine="spark", queries=[SqlQueryStep(query="SELECT name AS city, n * 2 AS x FROM input")])
    read = NdJson(schema=["name STRING", "n BIGINT"])
    source = SetPollingSource(fetch=Url("x.csv"), read=read, merge=Snapshot(["city"]), preprocess=query)
    rooted.commit(root, [source])
    rooted.rows(root, (1, "b", 4))
    assert places(source_of(rooted, root, (0, 0))) == [(0, "line 2", '{"name": "b", "n": 2, "more": [1]}')]
    rooted.commit(root, [polling(Url("x.csv"))])
    assert "query of the source was replaced" in source_of(rooted, root, (0, 0)).unlocated


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (polling(Url("https://a.example/x.csv")), "the fetched file is not kept"),
        (polling(Url("y.csv")), "y.csv no longer exists"),
        (polling(Url("file://[y.csv")), "Invalid"),
        (SetPollingSource(fetch=Url("x.csv"), read=Json(), merge=Snapshot(["city"])), "only CSV and NDJSON"),
        (polling(Url("x.csv"), prepare=[Pipe(["touch", "made"])]), "prepared by the command touch made"),
    ],
)
def test_rows_without_a_readable_file_have_a_reason(
    rooted: Rooted, source: SetPollingSource, reason: str
) -> None:
    root = rooted.root()
    write(rooted, "city,x\na,1\n")
    rooted.commit(root, [source])
    rooted.rows(root, (1, "a", 1))
    assert reason in source_of(rooted, root, (0, 0)).unlocated
    assert not (rooted.workspace.folder / "made").exists()


def test_a_modified_file_has_no_positions(rooted: Rooted) -> None:
    root = rooted.root()
    path = write(rooted, "city,x\na,1\n")
    rooted.commit(root, [polling(Url("x.csv"))])
    rooted.rows(root, (1, "a", 1))
    assert places(source_of(rooted, root, (0, 0))) == [(0, "line 2", "a,1")]
    path.write_text("city,x\nb,2\na,1\n")
    os.utime(path, ns=(0, 0))
    assert "x.csv was modified after the rows were ingested" in source_of(rooted, root, (0, 0)).unlocated


def test_only_the_newest_rows_of_many_are_searched_for(rooted: Rooted) -> None:
    root = rooted.root()
    write(rooted, "city,x\n" + "".join(f"a,{number}\n" for number in range(50)))
    rooted.commit(root, [polling(Url("x.csv"))])
    rooted.rows(root, *((1, "a", number) for number in range(50)))
    found = places(source_of(rooted, root, (0, 49)))
    assert [(offset, place) for offset, place, _ in found] == [
        (offset, f"line {offset + 2}") for offset in range(49, 29, -1)
    ]


@pytest.mark.parametrize(
    ("text", "value", "same"),
    [
        ("1,5", 1.5, None),
        ("1.50", Decimal("1.5"), True),
        ("7", 8, False),
        ("nan", float("nan"), True),
        ("Yes", True, True),
        ("2024-03-01", date(2024, 3, 1), True),
        ("01/03/2024", date(2024, 3, 1), None),
        ("2024-03-01T01:00:00+01:00", datetime(2024, 3, 1, tzinfo=UTC), True),
        ("2024-03-01T01:00:00Z", datetime(2024, 3, 1, tzinfo=UTC), False),
        ("2024-03-01 01:00", datetime(2024, 3, 1, tzinfo=UTC), None),
        ("", None, True),
        ("-", None, None),
        ("", 0, False),
        ("x", "", False),
    ],
)
def test_values_are_compared_with_the_texts_of_a_file(text: str, value: Any, same: bool | None) -> None:
    assert is_same_value(text, value) is same


@given(st.one_of(st.integers(), st.decimals(allow_nan=False, allow_infinity=False), st.dates(), st.text()))
def test_a_value_is_the_same_as_its_text(value: Any) -> None:
    assert is_same_value(str(value), value) is True
