"""Whole pulls of small files: the loop, the source state, merges, event times."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime
from textwrap import indent

import pyarrow as pa
import pytest

from odf_engine.data.arrow_schema import decode_schema
from odf_engine.errors import BadData
from odf_engine.identity.names import DatasetAlias
from odf_engine.ingest.write_progress import WriteProgress
from odf_engine.metadata.model import DatasetKind
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from tests.ingest.pulling import MANIFEST, Pulled
from tests.ingest.recorder import Recorder

CSV = """
fetch: {kind: Url, url: data.csv}
read: {kind: Csv, header: true, schema: [id BIGINT, name STRING, at TIMESTAMP]}
preprocess: {kind: Sql, engine: spark, query: "SELECT at AS event_time, id, name FROM input"}
"""


def test_amounts_belong_to_their_phase() -> None:
    """A file of 100 bytes, whose rows have to be sorted: its bytes are complete long before the end."""
    reporter = Recorder()
    progress = WriteProgress(reporter, 100, total_known=True)
    progress.start()
    progress.reads.set_amounts(bytes=60)
    assert (reporter.phases, reporter.amounts) == ([], {"bytes": 60, "total_bytes": 100})
    reporter.amounts.clear()  # as a phase does
    progress.reads.set_amounts(bytes=140)
    assert (reporter.phases, reporter.amounts) == (["sort"], {"bytes": 40})
    progress.writes.set_amounts(rows=7, bytes=3)
    progress.reads.set_amounts(bytes=200)
    assert (reporter.phases, reporter.amounts) == (["sort", "write"], {"bytes": 40, "rows": 7})


def test_restarted_merge_reports_the_sort_phase() -> None:
    reporter = Recorder()
    progress = WriteProgress(reporter, 100, total_known=False)
    progress.start()
    progress.writes.set_amounts(rows=7)
    progress.reads.set_amounts(bytes=60)  # while rows are written; slices are read too
    assert (reporter.phases, reporter.amounts) == (["write"], {"rows": 7, "bytes": 60})
    progress.start()
    reporter.amounts.clear()
    progress.reads.set_amounts(bytes=30)
    assert (reporter.phases, reporter.amounts) == (["write", "sort"], {"bytes": 30})


def test_append_orders_rows_by_event_time_and_commits_state(pulled: Pulled) -> None:
    pulled.add(CSV + "merge: {kind: Append}")
    path = pulled.write(
        "data.csv",
        'id,name,at\n1,"a, ""b""",2024-03-02\n2,"two\nlines",2024-03-01T10:00:00.1239Z\n'
        "3,,\n4,d,2024-03-01T10:00:00.123+00:00\n",
    )
    os.utime(path, (1709287200, 1709287200.5))  # 2024-03-01 10:00:00
    result = pulled.pull()
    assert (result.status, result.blocks, result.records) == ("updated", 2, 4)
    assert result.new_head == pulled.dataset.head()
    assert pulled.kinds() == ["Seed", "SetPollingSource", "SetDataSchema", "AddData"]

    # By event time, the file's own where there is none; rows of the same time as they came.
    moment = datetime(2024, 3, 1, 10, tzinfo=UTC)
    assert pulled.rows("offset", "op", "event_time", "id", "name") == [
        (0, 0, moment.replace(microsecond=123000), 2, "two\nlines"),
        (1, 0, moment.replace(microsecond=123000), 4, "d"),
        (2, 0, moment.replace(microsecond=500000), 3, None),
        (3, 0, datetime(2024, 3, 2, tzinfo=UTC), 1, 'a, "b"'),
    ]
    schema = decode_schema(pulled.dataset.state().schema or b"")
    assert schema.names == ["offset", "op", "system_time", "event_time", "id", "name"]
    assert schema.field("offset").type == pa.uint64()
    assert schema.field("event_time").type == pa.timestamp("ms", "UTC")

    event = pulled.newest()
    assert event.prev_offset is None
    assert event.new_watermark == Timestamp.parse("2024-03-02T00:00:00Z")
    assert event.new_source_state is not None
    assert event.new_source_state.kind == "odf/last-modified"
    assert event.new_source_state.value == "2024-03-01T10:00:00.500Z"
    block = pulled.dataset.block(result.new_head).block  # type: ignore[arg-type]
    assert {row[0] for row in pulled.rows("system_time")} == {block.system_time.to_datetime()}
    assert [phase for phase in pulled.reporter.phases if phase != "sort"] == [
        "fetch", "read", "merge", "write", "commit", "fetch",
    ]  # fmt: skip
    assert pulled.reporter.commits == [("AddData", 4)]
    assert pulled.reporter.amounts["rows"] == 4

    again = pulled.pull()
    assert (again.status, again.blocks, again.records) == ("up-to-date", 0, 0)
    assert again.old_head == again.new_head == result.new_head
    assert pulled.reporter.phases == ["fetch"]
    assert pulled.pull(force=True).records == 4


def test_touched_file_changes_only_the_source_state(pulled: Pulled) -> None:
    pulled.add(CSV + "merge: {kind: Ledger, primaryKey: [id]}")
    path = pulled.write("data.csv", "id,name,at\n1,a,2024-03-02\n")
    pulled.pull()
    os.utime(path, (1, 1))
    result = pulled.pull()
    assert (result.status, result.blocks, result.records) == ("updated", 1, 0)
    event = pulled.newest()
    assert event.new_data is None
    assert event.prev_offset == 0
    assert event.new_watermark == Timestamp.parse("2024-03-02T00:00:00Z")
    assert event.new_source_state is not None
    assert event.new_source_state.value == "1970-01-01T00:00:01Z"


def test_ledger_adds_only_new_keys(pulled: Pulled) -> None:
    pulled.add(CSV + "merge: {kind: Ledger, primaryKey: [ID]}")
    pulled.write("data.csv", "id,name,at\n2,b,2024-03-02\n1,a,2024-03-01\n2,b,2024-03-02\n")
    assert pulled.pull().records == 2
    assert pulled.reporter.warnings == ["1 duplicate row dropped"]
    pulled.write(
        "data.csv", "id,name,at\n5,e,2024-02-01\n4,d,2024-02-01\n3,c,2024-03-03\n2,B,2024-03-02\n1,a,\n"
    )
    assert pulled.pull().records == 3
    assert len(pulled.reporter.warnings) == 1
    assert pulled.reporter.warnings[0].startswith("1 row with an existing primary key and different values")
    assert "id=2" in pulled.reporter.warnings[0]
    assert pulled.rows("offset", "op", "id") == [(0, 0, 1), (1, 0, 2), (2, 0, 5), (3, 0, 4), (4, 0, 3)]
    # Late rows do not move the watermark back, new ones move it on.
    assert pulled.newest().new_watermark == Timestamp.parse("2024-03-03T00:00:00Z")
    os.utime(pulled.write("data.csv", "id,name,at\n"), (5, 5))
    assert pulled.pull().records == 0


def test_snapshots_are_merged_as_a_changelog(pulled: Pulled) -> None:
    pulled.add(
        """
fetch: {kind: FilesGlob, path: "*.csv", eventTime: {kind: FromPath, pattern: "(.*).csv"}}
read: {kind: Csv, header: true, schema: [city STRING NOT NULL, population DOUBLE, at DATE]}
merge: {kind: Snapshot, primaryKey: [city]}
"""
    )
    days = {
        "2020-01-01": "van,1.5,2020-01-01\nsea,NaN,\nkyiv,3,\n",
        "2020-01-02": "sea,NaN,\nkyiv,4,\nodessa,5,\n",
        "2020-01-03": "sea,NaN,\nkyiv,4,\nodessa,5,\n",
        "2020-01-04": "van,1.5,2020-01-01\nodessa,,\n",
    }
    for day, rows in days.items():
        pulled.write(f"{day}.csv", "city,population,at\n" + rows)
    result = pulled.pull()
    assert (result.blocks, result.records) == (5, 12)
    d1, d2, d4 = (datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 4))
    rows = [
        tuple("nan" if value != value else value for value in row)
        for row in pulled.rows("offset", "op", "event_time", "city", "population", "at")
    ]
    assert rows == [
        (0, 0, d1, "kyiv", 3.0, None),
        (1, 0, d1, "sea", "nan", None),
        (2, 0, d1, "van", 1.5, date(2020, 1, 1)),
        (3, 2, d1, "kyiv", 3.0, None),
        (4, 3, d2, "kyiv", 4.0, None),
        (5, 0, d2, "odessa", 5.0, None),
        (6, 1, d1, "van", 1.5, date(2020, 1, 1)),
        (7, 1, d2, "kyiv", 4.0, None),
        (8, 2, d2, "odessa", 5.0, None),
        (9, 3, d4, "odessa", None, None),
        (10, 1, d1, "sea", "nan", None),
        (11, 0, d4, "van", 1.5, date(2020, 1, 1)),
    ]
    assert pulled.reporter.commits == [("AddData", 3), ("AddData", 4), ("AddData", 0), ("AddData", 5)]
    # An empty file says nothing, a file without rows says that nothing is there.
    pulled.write("2020-01-05.csv", "")
    pulled.write("2020-01-06.csv", "city,population,at\n")
    assert pulled.pull().records == 2
    assert pulled.reporter.commits == [("AddData", 0), ("AddData", 2)]
    assert {row[0] for row in pulled.rows("op")[-2:]} == {1}


WINDOW = """
fetch: {kind: FilesGlob, path: "*.csv"}
read: {kind: Csv, header: true, schema: [id BIGINT NOT NULL, event_time TIMESTAMP]}
merge: {kind: Snapshot, primaryKey: [id]}
"""


def test_snapshot_of_a_moving_window_warns_and_upserts_keep_its_rows(pulled: Pulled) -> None:
    def write(file: str, *days: int) -> None:
        rows = "".join(f"{day},2024-01-{day:02}T12:00:00Z\n" for day in days)
        pulled.write(file, "id,event_time\n" + rows)

    pulled.add(WINDOW)
    write("1.csv", *range(1, 21))
    assert pulled.pull().records == 20 and pulled.reporter.warnings == []
    write("2.csv", *range(11, 31))
    assert pulled.pull().records == 20
    assert pulled.reporter.warnings == [
        "10 rows left the file and were retracted; all are older than its first row of 2024-01-11T12:00:00Z;"
        " if the file holds only recent rows, use merge UpsertStream: set merge.kind in the manifest, and run"
        " odf add --update"
    ]
    # One of ten rows was withdrawn. Two of ten show that rows are removed for another reason.
    write("3.csv", *range(20, 30))
    assert pulled.pull().records == 10
    assert "10 rows left the file and were retracted; 9 are older" in pulled.reporter.warnings[0]
    write("4.csv", *range(23, 29))
    assert pulled.pull().records == 4 and pulled.reporter.warnings == []

    text = MANIFEST.format(name="data", source=indent(WINDOW.replace("Snapshot", "UpsertStream"), " " * 6))
    pulled.workspace.update(read_manifests(text, "test.yaml"))
    write("5.csv", *range(27, 32))
    assert pulled.pull().records == 3 and pulled.reporter.warnings == []
    assert pulled.rows("op", "id")[-3:] == [(0, 29), (0, 30), (0, 31)]


def test_snapshot_without_event_times_in_the_file_does_not_warn(pulled: Pulled) -> None:
    pulled.add(WINDOW.replace("event_time TIMESTAMP", "n BIGINT"))
    pulled.write("1.csv", "id,n\n1,1\n2,2\n")
    pulled.pull()
    pulled.write("2.csv", "id,n\n2,2\n")
    assert pulled.pull().records == 1 and pulled.reporter.warnings == []


@pytest.mark.parametrize(
    ("read", "rows", "blank"),
    [
        ("{kind: Csv, header: true, schema: [id BIGINT, name STRING]}", "id,name\n1,a\n", "fails"),
        ("{kind: Csv, header: true, inferSchema: true}", "id,name\n1,a\n", "fails"),
        ("{kind: Csv, schema: [id BIGINT, name STRING]}", "1,a\n", "is empty"),
        ("{kind: NdJson, schema: [id BIGINT, name STRING]}", '{"id":1,"name":"a"}\n', "is empty"),
    ],
)
def test_blank_file_retracts_no_rows(pulled: Pulled, read: str, rows: str, blank: str) -> None:
    """A file without its header is not a complete state."""
    source = "fetch: {{kind: Url, url: data}}\nread: {}\nmerge: {{kind: Snapshot, primaryKey: [id]}}"
    pulled.add(source.format(read))
    pulled.write("data", rows)
    pulled.pull()
    for text in (b"\n", b"\r\n \r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", "\n".encode("utf-16"), b"\xff\xfe"):
        pulled.write("data", text)
        if blank == "fails":
            pulled.fails(BadData, "data: the file has no header", force=True)
        else:
            assert pulled.pull(force=True).records == 0
            assert pulled.reporter.warnings == ["data: empty file"]
    assert pulled.rows("op", "id") == [(0, 1)]


def test_snapshot_compares_only_the_declared_columns(pulled: Pulled) -> None:
    pulled.add(
        """
fetch: {kind: Url, url: data.ndjson}
read: {kind: NdJson, schema: [id BIGINT, version INT, seen BIGINT, event_time TIMESTAMP]}
merge: {kind: Snapshot, primaryKey: [id], compareColumns: [version]}
"""
    )
    path = pulled.write(
        "data.ndjson", '{"id":1,"version":1,"seen":1}\n{"id":2,"version":1,"event_time":"2024-01-01"}\n'
    )
    os.utime(path, (0, 0))
    assert pulled.pull().records == 2
    pulled.write(
        "data.ndjson", '{"id":1,"version":1,"seen":2}\n{"id":2,"version":2,"event_time":"2024-01-02"}\n'
    )
    assert pulled.pull().records == 2
    assert pulled.rows("op", "id", "version", "event_time")[2:] == [
        (2, 2, 1, datetime(2024, 1, 1, tzinfo=UTC)),
        (3, 2, 2, datetime(2024, 1, 2, tzinfo=UTC)),
    ]


def test_event_time_alone_is_a_change(pulled: Pulled) -> None:
    pulled.add(
        """
fetch: {kind: Url, url: data.csv}
read: {kind: Csv, schema: [id BIGINT, event_time DATE]}
merge: {kind: Snapshot, primaryKey: [id]}
"""
    )
    os.utime(pulled.write("data.csv", "1,2020-01-01\n2,2020-01-01\n3,2020-01-01\n"), (1, 1))
    pulled.pull()
    # No event time says nothing about a change.
    os.utime(pulled.write("data.csv", "1,2020-01-01\n2,2021-01-01\n3,\n"), (2, 2))
    assert pulled.pull().records == 2
    assert pulled.rows("op", "id", "event_time")[3:] == [(2, 2, date(2020, 1, 1)), (3, 2, date(2021, 1, 1))]
    assert pulled.newest().new_watermark == Timestamp.parse("2021-01-01T00:00:00Z")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "windows-1252"])
def test_csv_and_json_are_decoded_in_their_encoding(pulled: Pulled, encoding: str) -> None:
    declared = "" if encoding == "utf-8-sig" else f", encoding: {encoding}"
    for kind, text in (("Csv", "id,größe\n1,naïve\n"), ("Json", '[{"id": 1, "größe": "naïve"}]')):
        header = ", header: true" if kind == "Csv" else ""
        read = f"read: {{kind: {kind}{header}{declared}}}"
        pulled.add(f"fetch: {{kind: Url, url: {kind}}}\n{read}\nmerge: {{kind: Append}}", name=kind)
        pulled.write(kind, text.encode(encoding))
        pulled.pull()
        assert [row[0] for row in pulled.rows("größe")] == ["naïve"]


def test_watermark_can_be_set_but_not_lowered(pulled: Pulled) -> None:
    pulled.add(CSV + "merge: {kind: Append}")
    os.utime(pulled.write("data.csv", "id,name,at\n1,a,2024-03-02\n"), (1, 1))
    pulled.pull()
    watermark = Timestamp.parse("2024-04-01T00:00:00Z")
    assert pulled.pull(set_watermark=watermark).blocks == 1
    event = pulled.newest()
    assert (event.new_watermark, event.prev_offset, event.new_data) == (watermark, 0, None)
    assert pulled.pull(set_watermark=watermark).status == "up-to-date" and not pulled.reporter.warnings
    assert pulled.pull(set_watermark=Timestamp.parse("2024-03-31T00:00:00Z")).status == "up-to-date"
    (warning,) = pulled.reporter.warnings
    assert warning.startswith(
        "watermark 2024-03-31T00:00:00Z is ignored: the dataset has the later watermark"
    )
    # The source is still known, and the watermark stays.
    assert pulled.pull().status == "up-to-date"
    os.utime(pulled.write("data.csv", "id,name,at\n1,a,2024-03-03\n"), (2, 2))
    assert pulled.pull().records == 1
    assert pulled.newest().new_watermark == watermark


def test_pull_without_polling_source_is_up_to_date(pulled: Pulled) -> None:
    pulled.entry = pulled.workspace.create_dataset(DatasetAlias(None, "data"), DatasetKind.Root)
    assert pulled.pull().status == "up-to-date"
    assert "no polling source" in pulled.reporter.lines[0][1]


def test_json_without_schema_keeps_the_inferred_columns(pulled: Pulled) -> None:
    pulled.add("fetch: {kind: Url, url: a.json}\nread: {kind: Json}\nmerge: {kind: Append}")
    pulled.write("a.json", '[{"id": 1, "name": "a", "at": {"lat": 1.5}}]')
    pulled.pull()
    pulled.write("a.json", '[{"id": 2, "name": null}]')
    pulled.pull()
    pulled.write("a.json", "[]")
    assert pulled.pull().records == 0
    assert pulled.rows("id", "name", "at") == [(1, "a", {"lat": 1.5}), (2, None, None)]


@pytest.mark.parametrize("merge", ["Ledger", "Snapshot"])
def test_column_names_with_special_characters_are_merged(pulled: Pulled, merge: str) -> None:
    key, value = "a `k\\e.y'", 'é "v",;'
    pulled.add(
        f"""
fetch: {{kind: Url, url: data.csv}}
read: {{kind: Csv, header: true}}
merge: {{kind: {merge}, primaryKey: [{json.dumps(key)}]}}
"""
    )
    header = f'{key},"{value.replace(chr(34), chr(34) * 2)}",n,r,o\n'
    os.utime(pulled.write("data.csv", header + "1,x,a,b,c\n2,y,a,b,c\n"), (1, 1))
    pulled.pull()
    os.utime(pulled.write("data.csv", header + "1,z,a,b,c\n3,y,a,b,c\n"), (2, 2))
    assert pulled.pull().records == {"Ledger": 1, "Snapshot": 4}[merge]
    expected = {
        "Ledger": [(0, "3", "y")],
        "Snapshot": [(2, "1", "x"), (3, "1", "z"), (1, "2", "y"), (0, "3", "y")],
    }
    assert pulled.rows("op", key, value)[2:] == expected[merge]
