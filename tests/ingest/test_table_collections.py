"""Manifests for the tables of archives, GTFS feeds, Data Packages and CSVW metadata, and pulls of them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from odf_engine.errors import (
    BadData,
    Cancelled,
    NotFound,
    OdfError,
    SourceUnavailable,
    Unsupported,
    UsageError,
)
from odf_engine.ingest.fetch import shared_downloads
from odf_engine.ingest.fetch.shared_downloads import SharedDownloads
from odf_engine.ingest.inference.file_groups import FileGroup, group_files, resolve_pattern
from odf_engine.ingest.inference.file_sample import load_sample
from odf_engine.ingest.inference.table_collection import open_tables, propose_manifests
from odf_engine.metadata.model import (
    CompressionFormat,
    Csv,
    DatasetSnapshot,
    Decompress,
    FilesGlob,
    Pipe,
    SetInfo,
    SetLicense,
    SetPollingSource,
    Snapshot,
    Url,
)
from odf_engine.metadata.yaml import read_manifests
from odf_engine.net import address_policy
from odf_engine.workspace.workspace import Workspace
from tests.ingest.conftest import WebServer, reply
from tests.ingest.fetching import get
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder
from tests.waiting import wait_until

FEED = {
    "agency.txt": "agency_id,agency_name\n1,City\n",
    "stops.txt": "\ufeffstop_id,stop_name,stop_lat,stop_lon\n1,A,52.1,13.2\n2,B,52.2,13.3\n",
    "routes.txt": "route_id,route_short_name,route_type\n10,100,3\n11,101,3\n",
    "stop_times.txt": "trip_id,arrival_time,stop_id,stop_sequence\n1,23:59:00,1,1\n1,24:20:00,2,2\n",
    "calendar_dates.txt": "service_id,date,exception_type\n1,20240501,2\n1,20240502,2\n",
    "license.txt": "free\n",
}


def archive(files: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as target:
        for name, text in files.items():
            target.writestr(name, text)
    return data.getvalue()


def propose(folder: Path, location: str, reporter: Recorder, *members: str) -> dict[str, DatasetSnapshot]:
    """Proposes valid manifests; they are read as one stream."""
    text = "---\n".join(propose_manifests(location, "my", folder, reporter, members))
    return {snapshot.name: snapshot for snapshot in read_manifests(text, location)}


def source_of(snapshot: DatasetSnapshot) -> SetPollingSource:
    return next(event for event in snapshot.metadata if isinstance(event, SetPollingSource))


def columns(snapshot: DatasetSnapshot) -> list[str]:
    step = source_of(snapshot).read
    assert isinstance(step, Csv) and step.schema is not None
    return [str(column).replace("`", "") for column in step.schema]


def write_package(folder: Path, *resources: dict[str, Any], **package: Any) -> None:
    (folder / "datapackage.json").write_text(json.dumps({"resources": list(resources), **package}))


def test_a_gtfs_feed_becomes_a_dataset_for_each_table(tmp_path: Path, reporter: Recorder) -> None:
    (tmp_path / "feed.zip").write_bytes(archive(FEED))
    proposed = propose(tmp_path, "feed.zip", reporter)
    assert list(proposed) == ["my.agency", "my.stops", "my.routes", "my.stop-times", "my.calendar-dates"]
    assert columns(proposed["my.stops"]) == [
        "stop_id STRING NOT NULL", "stop_name STRING", "stop_lat DOUBLE", "stop_lon DOUBLE",
    ]  # fmt: skip
    assert columns(proposed["my.routes"])[1:] == ["route_short_name STRING", "route_type BIGINT"]
    assert columns(proposed["my.stop-times"])[1] == "arrival_time STRING"
    merge, read = (
        source_of(proposed["my.calendar-dates"]).merge,
        source_of(proposed["my.calendar-dates"]).read,
    )
    assert isinstance(merge, Snapshot) and merge.primary_key == ["service_id", "date"]
    assert isinstance(read, Csv) and read.date_format == "yyyyMMdd"
    assert reporter.warnings == []


def test_a_key_column_with_nulls_is_left_out_of_the_key(tmp_path: Path, reporter: Recorder) -> None:
    rows = "from_stop_id,to_stop_id,from_trip_id,transfer_type\n1,2,,0\n2,1,,0\n"
    (tmp_path / "feed.zip").write_bytes(archive(FEED | {"transfers.txt": rows}))
    merge = source_of(propose(tmp_path, "feed.zip", reporter, "transfers.txt")["my"]).merge
    assert isinstance(merge, Snapshot) and merge.primary_key == ["from_stop_id", "to_stop_id"]
    assert "from_trip_id" in reporter.warnings[0]


def test_one_member_of_an_archive_has_the_name_of_the_dataset(tmp_path: Path, reporter: Recorder) -> None:
    (tmp_path / "tables.zip").write_bytes(
        archive({"a/one.csv": "id,n\na,1\nb,2\n", "two.tsv": "x\ty\n1\t2\n"})
    )
    assert list(propose(tmp_path, "tables.zip", reporter)) == ["my.one", "my.two"]
    assert list(propose(tmp_path, "tables.zip", reporter, "one.csv")) == ["my"]
    with pytest.raises(NotFound, match="three"):
        propose(tmp_path, "tables.zip", reporter, "three.csv")
    (tmp_path / "single.zip").write_bytes(archive({"one.csv": "id,n\na,1\nb,2\n", "readme.txt": "text"}))
    assert list(propose(tmp_path, "single.zip", reporter)) == ["my"]
    (tmp_path / "noted.zip").write_bytes(archive({"one.txt": "id,n\na,1\nb,2\n", "README.txt": "x\n" * 99}))
    (snapshot,) = propose(tmp_path, "noted.zip", reporter).values()
    assert columns(snapshot) == ["id STRING NOT NULL", "n BIGINT"]
    assert list(propose(tmp_path, "single.zip", reporter, "one.csv")) == ["my"]
    (tmp_path / "one.csv").write_text("id,n\na,1\nb,2\n")
    with pytest.raises(UsageError):
        propose(tmp_path, "one.csv", reporter, "one.csv")


def tar_archive(files: dict[str, str]) -> bytes:
    """Return a compressed tar archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as target:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            target.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


@pytest.mark.parametrize("name", ["weeks.zip", "weeks.tar.gz"])
def test_members_of_an_archive_are_one_table(tmp_path: Path, reporter: Recorder, name: str) -> None:
    pack = archive if name.endswith(".zip") else tar_archive
    weeks = {f"week-{week:02}.csv": f"id,cases\nw{week},{week}\n" for week in range(1, 7)}
    files = {"readme.txt": "about\n", **weeks}
    (tmp_path / name).write_bytes(pack(files))

    def steps(*members: str, other: str = name) -> list[Any]:
        (snapshot,) = propose(tmp_path, other, reporter, *members).values()
        return list(source_of(snapshot).prepare or ())

    # All data files are one table; notes are none of it.
    assert steps() == [Pipe(["odf", "filter", "unpack", "--member", "*.csv"])]
    assert steps("week-0[1-3].csv") == [Pipe(["odf", "filter", "unpack", "--member", "week-0[1-3].csv"])]
    chosen = ["--member", "week-01.csv", "--member", "week-04.csv"]
    assert steps("week-01.csv", "week-04.csv") == [Pipe(["odf", "filter", "unpack", *chosen])]
    (only,) = steps("week-03.csv")
    tarred = Pipe(["odf", "filter", "unpack", "--member", "week-03.csv"])
    assert only == (Decompress(CompressionFormat.Zip, "week-03.csv") if name == "weeks.zip" else tarred)
    with pytest.raises(NotFound, match=r"no table 'day-\*.csv'"):
        steps("day-*.csv")
    # Another table beside them: the group is one dataset, and the other file another.
    (tmp_path / f"two-{name}").write_bytes(pack({**files, "regions.csv": "region,name,size\n1,A,2\n2,B,3\n"}))
    assert list(propose(tmp_path, f"two-{name}", reporter)) == ["my.week", "my.regions"]
    assert steps("week-*.csv", other=f"two-{name}")[0].command[-1] == "week-*.csv"
    with pytest.raises(BadData, match=r"2 members have different columns: regions\.csv, week-01\.csv"):
        steps("week-01.csv", "regions.csv", other=f"two-{name}")
    with pytest.raises(BadData, match=r"has 7 data files: regions\.csv, week-01\.csv"):
        load_sample(f"two-{name}", tmp_path, reporter)


def test_a_member_without_rows_is_left_out(tmp_path: Path, reporter: Recorder) -> None:
    (tmp_path / "tables.zip").write_bytes(archive({"a.csv": "", "b.csv": "id\n1\n2\n"}))
    assert list(propose(tmp_path, "tables.zip", reporter)) == ["my.b"]
    assert "a.csv" in reporter.warnings[0]
    (tmp_path / "empty.zip").write_bytes(archive({"a.csv": "", "b.tsv": ""}))
    with pytest.raises(BadData):
        propose(tmp_path, "empty.zip", reporter)


CASES = {
    "name": "Cases_2020",
    "path": "data/cases.csv",
    "title": "Cases by day",
    "dialect": {"delimiter": ";"},
    "schema": {
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "day", "type": "date", "format": "%m.%d.%Y"},
            {"name": "n", "type": "integer"},
            {"name": "rate", "type": "number", "decimalChar": ","},
        ],
        "primaryKey": "id",
        "missingValues": ["", "-9"],
    },
    "unknown": {},
}


def test_a_data_package_declares_types_key_nulls_and_texts(tmp_path: Path, reporter: Recorder) -> None:
    write_package(
        tmp_path, CASES, title="All", keywords=["a b", "c: d"], licenses=[{"name": "CC-BY-4.0"}]
    )  # fmt: skip
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cases.csv").write_text("id;day;n;rate\n01;01.02.2020;5;1,5\n2;02.02.2020;-9;2,5\n")
    for location in ("datapackage.json", "data/cases.csv"):
        (snapshot,) = propose(tmp_path, location, reporter).values()
        assert columns(snapshot)[:3] == ["id STRING NOT NULL", "day DATE", "n BIGINT"]
        source = source_of(snapshot)
        assert isinstance(source.fetch, Url) and source.fetch.url == "file:data/cases.csv"
        assert isinstance(source.read, Csv) and source.read.separator == ";"
        assert source.read.date_format == "MM.dd.yyyy" and source.read.null_value == "-9"
        assert SetInfo("Cases by day", ["a b", "c: d"]) in snapshot.metadata
        license = next(event for event in snapshot.metadata if isinstance(event, SetLicense))
        assert (license.spdx_id, license.website_url[:17]) == ("CC-BY-4.0", "https://spdx.org/")
    assert reporter.warnings == []


@pytest.mark.parametrize(
    ("rows", "warning", "column"),
    [
        ("x;01.02.2020;many;1,5\ny;02.02.2020;2;2,5\n", "declared as BIGINT, but has 'many'", "n STRING"),
        ("x;2020-01-02;1;1,5\ny;2020-01-03;2;2,5\n", "but has '2020-01-02'", "day DATE"),
        ("x;01.02.2020;1;1,5\nx;02.02.2020;2;2,5\n", "declared as the primary key", "id STRING"),
        ("x;01.02.2020;1;1.5\ny;02.02.2020;2;2.5\n", "column 'rate': declared as DOUBLE", "rate DOUBLE"),
    ],
)
def test_values_that_contradict_the_metadata_are_inferred(
    tmp_path: Path, reporter: Recorder, rows: str, warning: str, column: str
) -> None:
    write_package(tmp_path, CASES)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cases.csv").write_text(f"id;day;n;rate\n{rows}")
    (snapshot,) = propose(tmp_path, "datapackage.json", reporter).values()
    assert any(warning in text for text in reporter.warnings)
    assert any(text.startswith(column) for text in columns(snapshot))


@pytest.mark.parametrize("path", ["../a.csv", "/etc/passwd", "data/../../a.csv", "~/a.csv", "..\\a.csv", ""])
def test_a_path_outside_the_folder_of_a_package_is_refused(
    tmp_path: Path, reporter: Recorder, path: str
) -> None:
    write_package(tmp_path, {"path": path, "profile": "tabular-data-resource"})
    with pytest.raises(BadData, match=r"datapackage.json: resources\[0\].path: .* not in the folder"):
        propose(tmp_path, "datapackage.json", reporter)


@pytest.mark.parametrize(
    ("resource", "problem"),
    [
        (
            {"path": "file:///a.csv", "type": "table"},
            r"resources\[0\].path: unsupported URL scheme: file",
        ),
        ({"path": ["a.csv", "b.csv"]}, r"resources\[0\].path: a table of 2 files"),
        ({"path": 5}, r"resources\[0\].path: expected"),
        ({"path": "a.csv", "encoding": "utf-99"}, r'resources\[0\].encoding: unknown encoding "utf-99"'),
        (
            {"path": "a.csv", "schema": {"fields": [{"name": "x", "type": "foo"}]}},
            r'resources\[0\].schema.fields\[0\].type: unknown type "foo"',
        ),
    ],
)
def test_errors_name_the_property(
    tmp_path: Path, reporter: Recorder, resource: dict[str, Any], problem: str
) -> None:
    write_package(tmp_path, resource)
    with pytest.raises((BadData, Unsupported), match=f"datapackage.json: {problem}"):
        propose(tmp_path, "datapackage.json", reporter)


def test_a_package_in_an_archive_describes_its_members(tmp_path: Path, reporter: Recorder) -> None:
    files = {
        "p/datapackage.json": json.dumps({"resources": [CASES, {"name": "b", "path": "b.csv"}]}),
        "p/data/cases.csv": "id;day;n;rate\n1;01.02.2020;5;1,5\n2;02.02.2020;1;2,5\n",
        "p/b.csv": "x,y\n1,2\n",
    }
    (tmp_path / "package.zip").write_bytes(archive(files))
    proposed = propose(tmp_path, "package.zip", reporter)
    assert list(proposed) == ["my.cases-2020", "my.b"]
    (step,) = source_of(proposed["my.cases-2020"]).prepare or [None]
    assert getattr(step, "sub_path", "") == "p/data/cases.csv"
    assert columns(proposed["my.cases-2020"])[0] == "id STRING NOT NULL"


def test_declared_columns_of_years_stay_columns(tmp_path: Path, reporter: Recorder) -> None:
    fields = [{"name": name, "type": "string" if name == "area" else "integer"} for name in YEARS]
    package = {"resources": [{"name": "a", "path": "a.csv", "schema": {"fields": fields}}]}
    (tmp_path / "datapackage.json").write_text(json.dumps(package))
    (tmp_path / "a.csv").write_text(",".join(YEARS) + "\nA,1,2,3\nB,4,5,6\n")
    proposed = propose(tmp_path, "datapackage.json", reporter)
    assert [text.split()[0].strip("`") for text in columns(proposed["my"])] == YEARS
    assert source_of(proposed["my"]).prepare is None


def test_a_package_on_a_server_has_urls_relative_to_it(
    tmp_path: Path, reporter: Recorder, web: WebServer
) -> None:
    files = {
        "/p/datapackage.json": json.dumps({"resources": [{"path": "a b.csv"}, {"path": f"{web.url}/c.csv"}]}),
        "/p/a%20b.csv": "id,n\na,1\n",
        "/c.csv": "id,n\na,1\n",
    }
    web.answer = lambda request: reply(request, 200, files[request.path].encode())
    proposed = propose(tmp_path, f"{web.url}/p/datapackage.json", reporter)
    urls = [getattr(source_of(snapshot).fetch, "url", "") for snapshot in proposed.values()]
    assert urls == [f"{web.url}/p/a%20b.csv", f"{web.url}/c.csv"]


def test_a_package_on_a_public_server_names_no_file_in_a_private_network(
    tmp_path: Path, reporter: Recorder, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = web.url.replace("127.0.0.1", "127.0.0.2") + "/inside.csv"
    package = json.dumps({"resources": [{"path": inside}]}).encode()
    web.answer = lambda request: reply(request, 200, package)
    monkeypatch.setattr(address_policy, "is_public_address", lambda address: address == "127.0.0.1")
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.2"):
        propose(tmp_path, f"{web.url}/datapackage.json", reporter)
    assert [request.path for request in web.requests] == ["/datapackage.json"]


YEARS = ["area", "2019", "2020", "2021"]
CSVW: dict[str, Any] = {
    "@context": ["http://www.w3.org/ns/csvw", {"@language": "en"}],
    "url": "c.csv",
    "dc:title": {"@value": "Trees"},
    "dcat:keyword": ["park"],
    "dialect": {"delimiter": ";", "skipRows": 1},
    "tableSchema": {
        "primaryKey": "id",
        "columns": [
            {"name": "id", "titles": "ID"},
            {
                "name": "day",
                "titles": {"en": ["The day"]},
                "datatype": {"base": "date", "format": "dd/MM/yyyy"},
            },
            {"name": "value", "titles": "Value", "null": "-", "datatype": "integer"},
        ],
    },
}


def test_csvw_metadata_beside_a_file_are_used(tmp_path: Path, reporter: Recorder) -> None:
    (tmp_path / "c.csv").write_text("0;01/01/2019;5\nID;The day;Value\n1;01/02/2020;7\n2;02/02/2020;-\n")
    (tmp_path / "c.csv-metadata.json").write_text(json.dumps(CSVW))
    for location in ("c.csv", "c.csv-metadata.json"):
        (snapshot,) = propose(tmp_path, location, reporter).values()
        assert columns(snapshot) == ["id BIGINT NOT NULL", "day DATE", "value BIGINT"]
        source = source_of(snapshot)
        assert isinstance(source.read, Csv) and source.read.date_format == "dd/MM/yyyy"
        (step,) = source.prepare or [None]
        assert getattr(step, "command", []) == ["odf", "filter", "csv", "--separator", ";", "--skip", "1"]
        assert SetInfo("Trees", ["park"]) in snapshot.metadata
    group = {"@context": CSVW["@context"], "tables": [CSVW, {"url": "%2e%2e/d.csv"}]}
    (tmp_path / "csv-metadata.json").write_text(json.dumps(group))
    with pytest.raises(BadData, match=r"csv-metadata.json: tables\[1\].url"):
        propose(tmp_path, "csv-metadata.json", reporter)


def test_invalid_metadata_beside_a_file_are_a_warning(tmp_path: Path, reporter: Recorder) -> None:
    (tmp_path / "c.csv").write_text("id,n\n1,2\n2,3\n")
    (tmp_path / "c.csv-metadata.json").write_text("{")
    assert list(propose(tmp_path, "c.csv", reporter)) == ["my"]
    assert "c.csv-metadata.json" in reporter.warnings[0]
    (tmp_path / "x-metadata.json").write_text('[{"id": 1}, {"id": 2}]')
    assert list(propose(tmp_path, "x-metadata.json", reporter)) == ["my"], "a data file"


def test_an_archive_on_a_server_is_downloaded_once_for_its_tables(
    tmp_path: Path, reporter: Recorder, web: WebServer
) -> None:
    web.answer = lambda request: reply(request, 200, archive(FEED))
    assert len(propose(tmp_path, f"{web.url}/feed.zip", reporter)) == 5
    assert len(web.requests) == 1
    assert len(propose(tmp_path, f"{web.url}/feed?format=zip", reporter)) == 5, "recognized by its content"
    with open_tables(f"{web.url}/feed.zip", tmp_path, reporter) as tables:
        assert tables.is_collection


def test_pulls_of_one_archive_download_it_once(workspace: Workspace, web: WebServer) -> None:
    version, sent = ['"one"'], []

    def answer(request: Any) -> None:
        if request.headers.get("If-None-Match") == version[0]:
            reply(request, 304, ETag=version[0])
        else:
            sent.append(version[0])
            reply(request, 200, version[0].encode() * 1000, ETag=version[0])

    web.answer = answer
    step = Url(web.url + "/feed.zip")
    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(get, workspace, step, Recorder(), shares=True) for _ in range(4)]
        payloads = [payload for job in jobs if (payload := job.result()) is not None]
    assert sent == ['"one"'] and len(web.requests) == 4
    assert len(payloads) == 4
    for payload in payloads:
        assert payload.path.read_bytes() == b'"one"' * 1000
        assert payload.state is not None and payload.state.value == '"one"'
    assert get(workspace, step, Recorder(), payloads[0].state, shares=True) is None, "unchanged"
    version[0] = '"two"'
    payload = get(workspace, step, Recorder(), payloads[0].state, shares=True)
    assert payload is not None and payload.path.read_bytes() == b'"two"' * 1000
    assert get(workspace, step, Recorder(), shares=True) is not None
    assert get(workspace, Url(step.url + "?x"), Recorder(), shares=True) is not None
    assert sent == ['"one"', '"two"', '"two"']


def test_a_download_without_a_version_is_not_shared(workspace: Workspace, web: WebServer) -> None:
    web.answer = lambda request: reply(request, 200, b"%d" % len(web.requests))
    for number in (b"1", b"2"):
        payload = get(workspace, Url(web.url + "/a.zip"), Recorder(), shares=True)
        assert payload is not None and payload.path.read_bytes() == number


def test_a_pull_that_waits_for_a_shared_download_can_be_cancelled(tmp_path: Path) -> None:
    shared, waiting = SharedDownloads(), Recorder()
    with shared.open(tmp_path, "a", Recorder()), ThreadPoolExecutor(1) as threads:
        job = threads.submit(lambda: shared.open(tmp_path, "a", waiting).__enter__())
        waiting.cancel()
        with pytest.raises(Cancelled):
            job.result(timeout=10)


def test_a_shared_download_is_removed_after_its_last_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_downloads, "_KEPT_SECONDS", 0.05)
    source = tmp_path / "fetched"
    source.write_bytes(b"data")
    with SharedDownloads().open(tmp_path, "a", Recorder()) as file:
        file.replace(source, {"etag": '"1"'})
        assert file.path.read_bytes() == b"data"
    wait_until(lambda: not file.path.parent.exists())
    assert source.exists()


@pytest.mark.spark
def test_two_tables_of_a_feed_are_pulled_with_one_download(
    pulled: Pulled, reporter: Recorder, web: WebServer
) -> None:
    sent: list[str] = []

    def answer(request: Any) -> None:
        if request.headers.get("If-None-Match") == '"1"':
            reply(request, 304, ETag='"1"')
            return
        sent.append(request.path)
        reply(request, 200, archive(FEED), ETag='"1"')

    web.answer = answer
    proposed = propose(pulled.workspace.folder, f"{web.url}/feed.zip", reporter)
    sent.clear()
    for name, rows in (("my.stop-times", 2), ("my.calendar-dates", 2)):
        (pulled.entry,) = pulled.workspace.add([proposed[name]])
        assert pulled.pull().records == rows
    assert sent == ["/feed.zip"]
    assert pulled.rows("service_id", "date")[0] == ("1", date(2024, 5, 1))
    pulled.entry = pulled.workspace.resolve("my.stop-times")
    assert pulled.rows("trip_id", "arrival_time") == [("1", "23:59:00"), ("1", "24:20:00")]


def test_an_archive_that_is_damaged_is_an_error(tmp_path: Path, reporter: Recorder) -> None:
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(OdfError):
        propose(tmp_path, "bad.zip", reporter)
    data = bytearray(archive(FEED))
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # as if it was encrypted
        at = -1
        while (at := data.find(mark, at + 1)) >= 0:
            data[at + flags] |= 1
    (tmp_path / "encrypted.zip").write_bytes(data)
    with pytest.raises(BadData, match="encrypted"):
        propose(tmp_path, "encrypted.zip", reporter)


def test_files_whose_names_differ_in_numbers_are_one_dataset(tmp_path: Path) -> None:
    files = [
        ("a/week-2024-01.csv", 10), ("a/week-2024-02.csv", 20), ("a/other.csv", 1), ("b/week-1.csv", 1),
        ("c/1.csv", 1), ("c/2.csv", 1), ("c/x.csv", 1), ("d [1]/1.csv", 1), ("d [1]/2.csv", 1),
    ]  # fmt: skip
    # `*.csv` would also match c/x.csv.
    assert group_files(files) == [FileGroup("a/week-*.csv", 2, 30)]


def test_a_pattern_is_proposed_as_a_source_of_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, text in ((1, "id\n1\n"), (2, "id,name\n1,a\n2,b\n")):
        (tmp_path / f"in/week-{number}.csv").write_text(text)
    (snapshot,) = propose(tmp_path, "in/week-*.csv", Recorder()).values()
    source = source_of(snapshot)
    assert isinstance(source.fetch, FilesGlob) and source.fetch.path == "in/week-*.csv"
    assert columns(snapshot) == ["id BIGINT NOT NULL", "name STRING"]  # of the newest file
    with pytest.raises(NotFound, match="no file matches"):
        propose(tmp_path, "in/month-*.csv", Recorder())
    assert resolve_pattern("in/week-1.csv", tmp_path) == ("in/week-1.csv", "")


@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.zip", "rows.tar.gz", "rows.tar.bz2", "rows.tar.xz"])
def test_damaged_compressed_data_is_an_error_with_the_name_of_the_file(
    tmp_path: Path, reporter: Recorder, name: str
) -> None:
    rows = "id,name\n" + "".join(f"{number},{number * 7919 % 10007}\n" for number in range(20_000))
    path, member = tmp_path / name, tmp_path / "rows.csv"
    member.write_text(rows)
    if name.endswith(".csv.gz"):
        path.write_bytes(gzip.compress(rows.encode()))
    elif name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
            target.write(member, "rows.csv")
    else:
        with tarfile.open(path, f"w:{name.rpartition('.')[2]}") as target:  # type: ignore[call-overload]
            target.add(member, "rows.csv")
    data = bytearray(path.read_bytes())
    data[300:400] = b"\xff" * 100
    path.write_bytes(data)
    with pytest.raises(BadData) as caught:
        load_sample(name, tmp_path, reporter)
    assert caught.value.where == name
