"""``odf FILE``: rows of data files in a pipe, without a workspace."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import call_odf

MIXED = (
    "id;day;when;amount;flag;note\n"
    '1;05.02.24;1.2.2024 10:00;1.234,5;yes;"a ""b"""\n'
    "2;15.02.24;13.2.2024 10:00:05;2,25;no;\n"
    "3;31.12.24;1.2.2024 10:00;1.000.000,00;yes;x\n"
)


def test_piped_rows_have_the_inferred_types(tmp_path: Path) -> None:
    (tmp_path / "mixed.csv").write_text(MIXED)
    rows = call_odf("mixed.csv", "--json", cwd=tmp_path).json
    assert rows[0] == {
        "id": 1,
        "day": "2024-02-05",
        "when": "2024-02-01T10:00:00Z",
        "amount": 1234.5,
        "flag": True,
        "note": 'a "b"',
    }
    assert rows[1]["when"] == "2024-02-13T10:00:05Z" and rows[1]["note"] is None
    plain = call_odf("mixed.csv", cwd=tmp_path)
    assert plain.code == 0 and plain.out.splitlines()[0].split() == [
        "ID", "DAY", "WHEN", "AMOUNT", "FLAG", "NOTE",
    ]  # fmt: skip
    assert "3 rows · Csv, separator ;" in plain.err
    limited = call_odf("view", "mixed.csv", "-n", "1", "--csv", cwd=tmp_path)
    assert len(limited.out.splitlines()) == 2
    assert call_odf("mixed.csv", "-o", "out.parquet", cwd=tmp_path).code == 0
    assert pq.read_table(tmp_path / "out.parquet").column("amount").to_pylist() == [1234.5, 2.25, 1e6]


def test_raw_prints_the_texts_of_the_cells(tmp_path: Path) -> None:
    (tmp_path / "mixed.csv").write_text(MIXED)
    rows = call_odf("mixed.csv", "--raw", "--json", cwd=tmp_path).json
    assert rows[1] == {
        "id": "2", "day": "15.02.24", "when": "13.2.2024 10:00:05",
        "amount": "2,25", "flag": "no", "note": "",
    }  # fmt: skip


def test_a_value_of_another_type_beyond_the_sample_makes_its_column_text(tmp_path: Path) -> None:
    lines = [f"{number},{number}" for number in range(12_000)]
    lines[11_000], lines[11_500] = "many,11000", "1.5,11500"
    (tmp_path / "cases.csv").write_text("cases,id\n" + "\n".join(lines) + "\n")
    shown = call_odf("cases.csv", "--json", cwd=tmp_path)
    rows = shown.json
    assert rows[11_000] == {"cases": "many", "id": 11_000} and rows[11_500]["cases"] == "1.5"
    assert rows[7] == {"cases": "7", "id": 7}
    assert "column cases: 2 values are not BIGINT, shown as text" in shown.err
    first = call_odf("cases.csv", "--json", "-n", "2", cwd=tmp_path)
    assert first.json[1] == {"cases": 1, "id": 1} and "shown as text" not in first.err


def test_lines_that_are_no_rows_are_skipped_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n4,5\n6,7,8\n")
    shown = call_odf("ragged.csv", "--json", cwd=tmp_path)
    assert [row["a"] for row in shown.json] == [1, 4]
    assert "2 lines skipped, the first is line 3" in shown.err
    (tmp_path / "bad.ndjson").write_text('{"a": 1}\nnot json\n[2]\n{"a": 3}\n{"a": 4}\n{"a": 5}\n')
    shown = call_odf("bad.ndjson", "--json", cwd=tmp_path)
    assert [row["a"] for row in shown.json] == [1, 3, 4, 5]
    assert "2 lines skipped: not a JSON object" in shown.err


def test_records_that_do_not_fit_a_messy_file_are_a_note(tmp_path: Path) -> None:
    rows = "".join(f"r{at},{at},{at}\n" for at in range(20_000))
    (tmp_path / "messy.csv").write_text(f"Report of the year\n\narea,cases,deaths\n{rows}x,1\n{rows}")
    shown = call_odf("messy.csv", "--json", "-n", "50000", cwd=tmp_path)
    assert len(shown.json) == 40_000
    assert "left out 1 record with another number of values, the first in line 20004" in shown.err


def test_standard_input_and_archives_are_read(tmp_path: Path) -> None:
    text = "x;y\n1;Ä\n2;b\n"
    expected = [{"x": 1, "y": "Ä"}, {"x": 2, "y": "b"}]
    assert call_odf("-", "--json", cwd=tmp_path, input=text).json == expected
    assert call_odf("-", "--json", cwd=tmp_path, input=gzip.compress(text.encode())).json == expected
    assert call_odf("-", "--json", cwd=tmp_path, input=text.encode("utf-16")).json == expected
    assert call_odf("-", "--json", cwd=tmp_path, input='{"x": 1, "y": {"z": 2}}\n{"x": 2}\n').json == [
        {"x": 1, "y": '{"z":2}'},
        {"x": 2, "y": None},
    ]
    with gzip.open(tmp_path / "a.csv.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    assert call_odf("a.csv.gz", "--json", cwd=tmp_path).json == expected
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("inner.csv", text)
    assert call_odf("a.zip", "--json", cwd=tmp_path).json == expected


def test_json_documents_and_features_are_rows(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(json.dumps({"data": {"a/b": [{"n": 1, "N": "x"}, {"n": 2}]}}))
    assert call_odf("d.json", "--json", cwd=tmp_path).json == [{"n": 1, "N_2": "x"}, {"n": 2, "N_2": None}]
    point = {"type": "Point", "coordinates": [1, 2]}
    features = [{"id": 7, "properties": {"name": "a"}, "geometry": point}, {"properties": {"name": "b"}}]
    (tmp_path / "f.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    rows = call_odf("f.geojson", "--json", cwd=tmp_path).json
    assert [(row["name"], row["id"]) for row in rows] == [("a", 7), ("b", None)]
    (tmp_path / "f.geojson").rename(tmp_path / "f.json")  # its content says what it is
    assert call_odf("f.json", "--json", cwd=tmp_path).json == rows
    assert json.loads(rows[0]["geometry"]) == point and rows[1]["geometry"] is None


def test_files_of_a_folder_are_united_by_column_name(tmp_path: Path) -> None:
    folder = tmp_path / "data [1]*"
    folder.mkdir()
    (folder / "1.csv").write_text("id,name\n1,a\n2,b\n")
    (folder / "2.csv").write_text("id,name\n3,c\n")
    (folder / "3.csv").write_text("name,size,id\nd,1.5,x9\n")
    (tmp_path / "data 1").mkdir()  # the name of the folder is no pattern
    (tmp_path / "data 1" / "1.csv").write_text("id,name\n9,z\n")
    rows = call_odf(f"./{folder.name}", "--json", cwd=tmp_path).json
    assert [row["id"] for row in rows] == ["1", "2", "3", "x9"]
    assert [row["size"] for row in rows] == [None, None, None, 1.5]
    pq.write_table(pa.table({"id": [1]}), folder / "4.parquet")
    mixed = call_odf(str(folder), cwd=tmp_path)
    assert mixed.code == 2 and "several formats: 3 Csv, 1 Parquet" in mixed.err
    (tmp_path / "empty").mkdir()
    empty = call_odf("./empty", cwd=tmp_path)
    assert empty.code == 1 and "the folder has no data files" in empty.err


def test_a_folder_that_is_not_read_completely_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(201):
        (folder / f"{number}.csv").write_text("a\n1\n")
    many = call_odf("./many", cwd=tmp_path)
    assert many.code == 2 and "200 data files or more" in many.err


def test_a_word_that_is_no_file_is_an_unknown_command(tmp_path: Path) -> None:
    unknown = call_odf("statu", cwd=tmp_path)
    assert unknown.code == 2 and "unknown command 'statu', did you mean 'status'?" in unknown.err
    missing = call_odf("cases.csv", cwd=tmp_path)
    assert missing.code == 1 and "file not found: cases.csv" in missing.err
    (tmp_path / "list").write_text("a,b\n1,2\n")
    assert call_odf("view", "list", "--json", cwd=tmp_path).json == [{"a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"PAR1 damaged", "cannot be read as Parquet"),
        ("a.csv", b"", "the file has no rows"),
        ("a.json", b"[1, 2", "cannot be read as Json"),
    ],
)
def test_an_unreadable_file_is_an_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    failed = call_odf(name, cwd=tmp_path)
    assert failed.code == 1 and message in failed.err


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    cache = tmp_path / "cache"
    stale = cache / "odf-workstation" / "files" / "view-999999999-old"
    stale.mkdir(parents=True)
    assert call_odf("a.csv", cwd=tmp_path, XDG_CACHE_HOME=str(cache)).code == 0
    assert not list(stale.parent.iterdir())
