"""Data files as DuckDB relations: the values are those of the inference."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.ingest.inference.file_inference import parsed_text
from odf_engine.ingest.read.file_relation import file_relation, open_data_files
from odf_engine.sql.duckdb_text import PREPARATION
from tests.ingest.recorder import Recorder


def _read(path: Path, scratch: Path) -> tuple[list[tuple[Any, ...]], Any]:
    files = open_data_files([path], scratch, Reporter())
    with duckdb.connect() as connection:
        for statement in PREPARATION:
            connection.execute(statement)
        rows = connection.sql(f"SELECT * FROM {file_relation(files)}").fetchall()
    return rows, files[0].inferred


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return str(value) if not isinstance(value, float) else f"{value:g}"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("DATE", ["2024-01-31", "2024-2-1"]),
        ("DATE", ["31.12.2024", "01.02.2024"]),
        ("DATE", ["1/2/24", "1/31/99"]),
        ("DATE", ["5 Mar 2024", "17 Apr 2024"]),
        ("DATE", ["March 5, 2024", "April 17, 2024"]),
        ("TIMESTAMP", ["2024-01-31 10:11:12", "2024-02-01T00:00:00"]),
        ("TIMESTAMP", ["31.12.2024 1:02", "01.02.2024 13:04:05"]),
        ("TIMESTAMP", ["12/31/2024 1:02 PM", "1/2/2024 11:04 AM"]),
        ("DOUBLE", ["1.234,5", "-2,25", "1.000.000,75"]),
        ("DOUBLE", ["1 234.5", "2.25"]),
        ("BIGINT", ["1,234", "12,345,678"]),
        ("DOUBLE", ["1.5", ".5", "-2"]),
        ("BIGINT", [" 12", "-7"]),
    ],
)
def test_values_are_those_of_the_inference(kind: str, values: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("day;id\n" + "".join(f"{value};x{at}\n" for at, value in enumerate(values)))
    rows, inferred = _read(path, tmp_path)
    column = inferred.columns[0]
    assert column.type == kind
    for (value, _), text in zip(rows, values, strict=True):
        expected = parsed_text(text, column).strip()
        if kind == "DATE":
            assert value == date.fromisoformat("-".join(part.zfill(2) for part in expected.split("-")))
        elif kind == "TIMESTAMP":
            assert _text(value) == expected.replace("T", " ")
        else:
            assert value == float(expected)


def test_zones_and_epochs_are_instants(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "seen_at,created_at,made_at\n"
        "2024-01-31T10:00:00+02:00,1706695200,31/01/2024 10:00:00 +0200\n"
        "2024-01-31T08:00:00Z,1706695200,31/01/2024 08:00:00 +0000\n"
    )
    rows, inferred = _read(path, tmp_path)
    assert [column.type for column in inferred.columns] == ["TIMESTAMP"] * 3
    assert {value.astimezone(UTC) for row in rows for value in row} == {
        datetime(2024, 1, 31, 8, tzinfo=UTC),
        datetime(2024, 1, 31, 10, tzinfo=UTC),
    }


@pytest.mark.parametrize("bad", ["1.5", "1e3", "1_0", "", "x"])
def test_a_value_of_another_type_is_an_error_and_never_null(bad: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,id\n" + "".join(f"{at},x{at}\n" for at in range(10_500)) + f"{bad},last\n")
    if not bad:
        assert _read(path, tmp_path)[0][-1] == (None, "last")
        return
    with pytest.raises(duckdb.InvalidInputException, match=f"column n: {bad} is not a BIGINT"):
        _read(path, tmp_path)


def test_notes_below_many_rows_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{at},x{at}\n" for at in range(11_000))
    for notes, options in (
        ("\nSource: register\n", ("--stop-at-blank",)),
        ("Source: register\n", ("--until", "^Source:")),
    ):
        path.write_text(f"n,id\n{rows}{notes}")
        read, inferred = _read(path, tmp_path)
        assert inferred.filters == (("csv", *options),)
        assert (len(read), read[-1], len(inferred.rows)) == (11_000, (10_999, "x10999"), 10_000)


def test_rows_of_a_published_file_are_read_through_its_filter(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Report of 2024,,\n\nArea,Cases,Rate\nNorth,12,1.5\nSouth,7,0.5\n\nSource: register\n")
    rows, inferred = _read(path, tmp_path)
    assert inferred.filters == (("csv", "--skip", "2", "--stop-at-blank"),)
    assert rows == [("North", 12, 1.5), ("South", 7, 0.5)]


def test_a_row_that_a_filter_leaves_out_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{at},x{at}\n" for at in range(11_000))
    path.write_text(f"Report of 2024,\n\nn,id\n{rows}1,2,3\n{rows}")
    reporter = Recorder()
    (file,) = open_data_files([path], tmp_path, reporter)
    assert len(file.path.read_text().splitlines()) == 22_001
    assert reporter.warnings == [
        "a.csv: left out 1 record with another number of values, the first in line 11004"
    ]
