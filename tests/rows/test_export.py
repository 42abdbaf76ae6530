"""Rows as files for other programs, which read back what was there."""

from __future__ import annotations

import csv
import json
import os
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_compute import to_csv_fields
from odf_engine.errors import AlreadyExists, BadData, Cancelled, OdfError, UsageError
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows.export import Format, export
from odf_engine.rows.scan import Scan
from odf_engine.rows.statistics import compute_statistics
from odf_engine.workspace.workspace import Workspace
from tests.workspace.conftest import Append

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: all
  kind: Root
  metadata: []
"""
FORMATS: list[Format] = ["csv", "json", "ndjson", "parquet"]
BIG = Decimal("12345678901234567890123456789012345.678")
TABLE = pa.table(
    {
        "event_time": pa.array(
            [datetime(2024, 3, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 123000, tzinfo=UTC)] * 3,
            pa.timestamp("ms", "UTC"),
        ),
        "text": ["plain", "", None, 'a "word", and', "two\nlines\r\tand \\ \x01", " Łódź 🦀 "],
        "whole": pa.array([0, -(2**63), 2**63 - 1, None, 5, 6], pa.int64()),
        "big": pa.array([2**64 - 1, 0, None, 1, 2, 3], pa.uint64()),
        "real": [0.1, -0.0, 1e300, float("nan"), None, 5e-324],
        "money": pa.array([BIG, -BIG, None, Decimal("0.001"), Decimal(0), Decimal(1)], pa.decimal128(38, 3)),
        "yes": [True, False, None, True, False, True],
        "day": pa.array([date(2024, 2, 29), None, date(1, 1, 1)] * 2, pa.date32()),
        "clock": pa.array([time(1, 2, 3), None, time(23, 59, 59, 999000)] * 2, pa.time32("ms")),
        "raw": pa.array([b"\x00\xff", b"", None] * 2, pa.binary()),
        "many": pa.array([["a", None, 'b"'], [], None] * 2, pa.list_(pa.string())),
        "two": pa.array([{"x": 1, "y": "ü"}, None, {"x": None, "y": None}] * 2),
    }
)


@pytest.fixture
def rows(workspace: Workspace, append: Append) -> Scan:
    dataset = workspace.add(read_manifests(MANIFEST, "all.yaml"))[0].dataset
    append(dataset, TABLE.slice(0, 4))
    append(dataset, TABLE.slice(4))
    return Scan.of_dataset(dataset)


def as_json(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat(timespec="auto").replace(".123000", ".123").replace("+00:00", "Z")
        case date() | time():
            return value.isoformat().replace(".999000", ".999")
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case float() if value != value:
            return None
    return value


EXPECTED = [{name: as_json(value) for name, value in row.items()} for row in TABLE.to_pylist()]


def test_csv_export_round_trips(rows: Scan, tmp_path: Path) -> None:
    done = export(rows, tmp_path / "all.csv", "csv", Reporter(), system=False)
    text = (tmp_path / "all.csv").read_bytes().decode()
    assert (done.rows, done.size) == (6, len(text.encode()))
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == TABLE.column_names
    for row, expected in zip(found, EXPECTED, strict=True):
        for name, value in expected.items():
            read: Any = row[name]
            if name in ("whole", "big", "real", "many", "two"):
                read = None if read in ("", "nan") else json.loads(read)
            elif name == "yes":
                read = {"true": True, "false": False, "": None}[read]
            else:
                value = value or ""  # what tells them apart is below
            assert read == value, name
    lines = text.split("\r\n")
    assert lines[0].startswith("event_time,text,whole")
    assert lines[1].startswith("2024-03-01T00:00:00Z,plain,0,")
    assert lines[2].startswith('1969-12-31T23:59:59.123Z,"",-9')  # an empty text
    assert lines[3].startswith("2024-03-01T00:00:00Z,,9")  # no text
    assert text.endswith("\r\n")


def test_ndjson_and_json_exports_round_trip(rows: Scan, tmp_path: Path) -> None:
    export(rows, tmp_path / "all.ndjson", "ndjson", Reporter(), system=False)
    lines = (tmp_path / "all.ndjson").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == EXPECTED
    assert lines[-1] == ""
    assert '"money":"12345678901234567890123456789012345.678"' in lines[0]
    export(rows, tmp_path / "all.json", "json", Reporter(), system=False)
    assert json.loads((tmp_path / "all.json").read_text(encoding="utf-8")) == EXPECTED


def test_parquet_export_round_trips(rows: Scan, tmp_path: Path) -> None:
    export(rows, tmp_path / "all.parquet", "parquet", Reporter(), system=False)
    found = pq.read_table(tmp_path / "all.parquet")
    assert found.schema.names == TABLE.schema.names
    assert [as_json(value) for value in found["real"].to_pylist()] == [row["real"] for row in EXPECTED]
    assert found.drop_columns(["real"]).to_pylist() == TABLE.drop_columns(["real"]).to_pylist()
    chunk = pq.read_metadata(tmp_path / "all.parquet").row_group(0).column(1)
    assert chunk.compression == "ZSTD"


@pytest.mark.parametrize("form", FORMATS)
def test_row_ranges_are_exported_with_system_columns(rows: Scan, tmp_path: Path, form: Format) -> None:
    path = tmp_path / "some"
    done = export(rows, path, form, Reporter(), ranges=[(1, 2), (3, 6)])
    assert done.rows == 4
    match form:
        case "csv":
            offsets = [row.split(",")[0] for row in path.read_bytes().decode().split("\r\n")[1:-1]]
        case "parquet":
            offsets = list(map(str, pq.read_table(path)["offset"].to_pylist()))
        case "json":
            offsets = [str(row["offset"]) for row in json.loads(path.read_text())]
        case _:
            offsets = [str(json.loads(line)["offset"]) for line in path.read_text().splitlines()]
    assert offsets == ["1", "3", "4", "5"]


@pytest.mark.parametrize(("form", "text"), [("csv", "a\r\n"), ("json", "[]\n"), ("ndjson", "")])
def test_export_without_rows_is_a_valid_file(tmp_path: Path, form: Format, text: str) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "none.parquet")
    export(Scan.of_file(tmp_path / "none.parquet"), tmp_path / "none", form, Reporter())
    assert (tmp_path / "none").read_bytes().decode() == text


@pytest.mark.parametrize("form", FORMATS)
def test_a_stopped_export_leaves_nothing(rows: Scan, tmp_path: Path, form: Format) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    reporter = Reporter()
    reporter.set_amounts = lambda **amounts: reporter.cancel()  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        export(rows, folder / "all", form, reporter)
    assert list(folder.iterdir()) == []


def test_existing_file_is_replaced_only_on_request(rows: Scan, tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text("mine")
    with pytest.raises(AlreadyExists, match="already exists"):
        export(rows, path, "csv", Reporter())
    assert path.read_text() == "mine"
    export(rows, path, "csv", Reporter(), replace=True)
    assert path.read_text().startswith("offset,op,")
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_unwritable_target_is_reported(rows: Scan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="folder not found"):
        export(rows, tmp_path / "no" / "all.csv", "csv", Reporter())
    with pytest.raises(AlreadyExists, match="a folder with this name"):
        export(rows, tmp_path, "csv", Reporter(), replace=True)
    full = tmp_path / "full"
    full.mkdir()

    def refuses(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("odf_engine.rows.export._write_lines", refuses)
    with pytest.raises(OdfError, match="the disk is full") as error:
        export(rows, full / "all.csv", "csv", Reporter())
    assert "free disk space" in (error.value.hint or "")
    assert list(full.iterdir()) == []
    with pytest.raises(OdfError, match="the file cannot be written: ") as error:
        export(rows, Path("/proc/all.csv"), "csv", Reporter())
    assert "another folder" in (error.value.hint or "")


def test_damaged_slice_fails_the_export_without_a_file(
    workspace: Workspace, append: Append, tmp_path: Path
) -> None:
    dataset: Dataset = workspace.add(read_manifests(MANIFEST, "all.yaml"))[0].dataset
    append(dataset, TABLE)
    path = dataset.slice_path(dataset.slices()[0])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadData, match="cannot be read"):
        export(Scan.of_dataset(dataset), tmp_path / "all.csv", "csv", Reporter())
    assert not (tmp_path / "all.csv").exists()


def test_query_only_types_can_be_exported(tmp_path: Path) -> None:
    table = pa.table(
        {
            "view": pa.array(["a", None], pa.string_view()),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
            "span": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
        }
    )
    pq.write_table(table.drop_columns(["span"]), tmp_path / "odd.parquet")
    rows = Scan.of_file(tmp_path / "odd.parquet")
    export(rows, tmp_path / "odd.csv", "csv", Reporter())
    assert (tmp_path / "odd.csv").read_text().splitlines() == ["view,map", 'a,"[[""k"", 1]]"', ","]
    assert compute_statistics(tmp_path, rows, Reporter()).columns[0].distinct == 1
    assert to_csv_fields(table["span"].combine_chunks()).to_pylist()[1] == ""


def test_csv_times_keep_zone_and_fraction(tmp_path: Path) -> None:
    table = pa.table(
        {
            "us": pa.array([1_500_000, 1, 10**15], pa.timestamp("us")),
            "ns": pa.array([10, 1_000_000, 2_000], pa.timestamp("ns", "UTC")),
            "far": pa.array([10**14, -(10**14), 0], pa.timestamp("ms", "UTC")),
        }
    )
    pq.write_table(table, tmp_path / "times.parquet")
    export(Scan.of_file(tmp_path / "times.parquet"), tmp_path / "times.csv", "csv", Reporter())
    assert (tmp_path / "times.csv").read_text().split() == [
        "us,ns,far",
        "1970-01-01T00:00:01.500,1970-01-01T00:00:00.000000010Z,5138-11-16T09:46:40Z",
        "1970-01-01T00:00:00.000001,1970-01-01T00:00:00.001Z,-1199-02-15T14:13:20Z",
        "2001-09-09T01:46:40,1970-01-01T00:00:00.000002Z,1970-01-01T00:00:00Z",
    ]
