"""Files that are not what the manifest says: one clear message, the head stays, the next pull is afresh."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.base.settings import set_value
from odf_engine.errors import BadData, InvalidQuery, InvalidSchema, OdfError, SourceUnavailable
from tests.ingest.conftest import WebServer, reply
from tests.ingest.pulling import Pulled

CSV = """
fetch: {kind: Url, url: cases.csv}
read: {kind: Csv, header: true, schema: [id BIGINT, name STRING, count BIGINT, day DATE]}
merge: {kind: Append}
"""
GOOD = "id,name,count,day\n1,a,10,2024-01-01\n2,b,20,2024-01-02\n"


CSV_THAT_IS_WRONG: list[tuple[str | bytes, type[OdfError], list[str]]] = [
    (GOOD + "3,c,abc,\n", BadData, ['cases.csv: line 4, column "count": \'abc\' is not a BIGINT']),
    (GOOD + '3,"c\nc",1,\n4,d,NA,\n', BadData, ['line 6, column "count": \'NA\'', "read.nullValue"]),
    (GOOD + "3,c,9223372036854775808,\n", BadData,
     ['cases.csv: line 4, column "count": \'9223372036854775808\' is not a BIGINT']),
    (GOOD + "3,c,30,31.12.2024\n", BadData,
     ['line 4, column "day": \'31.12.2024\' is not a DATE', "dateFormat"]),
    # A byte order mark, line ends of Windows, and a line end within quotes.
    ("\ufeffid,name,count,day\r\n1,\"a\r\nb\",10,\r\n2,c,1,\r\nx,d,1,\r\n", BadData,
     ['cases.csv: line 5, column "id": \'x\' is not a BIGINT']),
    ((GOOD + "x,größe,1,\n").encode("utf-16"), BadData,
     ['cases.csv: line 4, column "id": \'x\' is not a BIGINT', "4 | x,größe,1,"]),
    (GOOD + "3,c\n", BadData, ["cases.csv: line 4: 2 values for 4 columns: 3,c"]),
    (GOOD + "3,c,1,2024-01-01,x\n", BadData, ["cases.csv: line 4: 5 values for 4 columns"]),
    (GOOD.encode() + "3,größe,1,\n".encode("latin-1"), BadData,
     ["cases.csv: line 4: byte 0xf6 at 58 is not UTF-8 text", "read.encoding"]),
    ("<html><body>Not found</body></html>", BadData, ["cases.csv: not a data file: HTML page"]),
    (gzip.compress(GOOD.encode()), BadData, ["cases.csv: not a text file: gzip", "Decompress"]),
    (GOOD + "<<<<<<< HEAD\n3,c,1,\n=======\n3,c,2,\n>>>>>>> x\n", BadData,
     ["cases.csv: line 4: merge conflict marker"]),
    (GOOD + '3,"c,1,\n4,d,1,\n', BadData,
     ['cases.csv: line 4, column "name": a quote is not closed: "c,1,', "read.quote"]),
    ("id,name,day,count\n1,a,2024-01-01,10\n", InvalidSchema,
     ["cases.csv: line 1: column 'day' has different positions"]),
    ("id,name,count,day,\n1,a,1,,\n", InvalidSchema,
     ["line 1: the header ends with a separator", "`unused STRING`"]),
    ("id,,name,count,day\n1,,a,1,\n", InvalidSchema, ["column 2 has no name in the header: add one"]),
    ("id,name,count,day,x\u200b\n1,a,1,,\n", InvalidSchema, ["read.schema declares 4; new: x\\u200b"]),
    ("id,name\n1,a\n", InvalidSchema,
     ["the file has 2 columns, read.schema declares 4", "id, name, count, day"]),
]  # fmt: skip


def test_invalid_csv_is_reported_with_its_location(pulled: Pulled) -> None:
    pulled.add(CSV)
    for text, kind, parts in CSV_THAT_IS_WRONG:
        pulled.write("cases.csv", text)
        pulled.fails(kind, *parts)
    # Nothing of all that is left behind.
    text = '\ufeffid,name,count,day\r\n\r\n1,"a\r\nb",10,2024-01-01\r\n2,"""c""",,'
    pulled.write("cases.csv", text)
    assert pulled.pull().records == 2
    assert pulled.rows("id", "name", "count") == [(1, "a\r\nb", 10), (2, '"c"', None)]
    pulled.write("cases.csv", "")
    assert pulled.pull().records == 0
    assert pulled.reporter.warnings == ["cases.csv: empty file"]


def test_renamed_columns_are_a_warning_and_moved_columns_an_error(pulled: Pulled) -> None:
    """The names of declared columns may differ from the header: only the header before shows a change."""
    read = "read: {kind: Csv, header: true, schema: [day STRING, place STRING, cases BIGINT, deaths BIGINT]}"
    pulled.add(f"fetch: {{kind: Url, url: a.csv}}\n{read}\nmerge: {{kind: Append}}")
    pulled.write("a.csv", "Date,Area,Confirmed,Died\n1,n,1,0\n")
    assert pulled.pull().records == 1 and pulled.reporter.warnings == []
    pulled.write("a.csv", "Date,Region,Confirmed,Died\n2,n,1,0\n")
    assert pulled.pull().records == 1
    assert pulled.reporter.warnings == [
        "a.csv: columns renamed since the last pull: Area is now Region; their values are read as before"
    ]
    pulled.write("a.csv", "Date,Region,Died,Confirmed\n3,n,0,1\n")
    pulled.fails(
        InvalidSchema,
        "a.csv: line 1: column 'Confirmed' was column 3 at the last pull, and is column 4 now",
        "change the order of read.schema",
    )
    pulled.fails(InvalidSchema, "'Confirmed' was column 3")  # until the definition or the file changes
    pulled.write("a.csv", "Date,Region,Confirmed,Died\n3,n,1,0\n")
    assert pulled.pull().records == 1 and pulled.reporter.warnings == []


def test_local_time_in_a_gap_or_overlap_is_reported_with_advice(pulled: Pulled) -> None:
    read = "read: {kind: Csv, schema: [id BIGINT, at TIMESTAMP]}"
    pulled.add(f"fetch: {{kind: Url, url: a.csv}}\n{read}\nmerge: {{kind: Append}}")
    for time in ("2024-03-10T02:30:00 America/New_York", "2024-11-03T01:30:00 America/New_York"):
        pulled.write("a.csv", f"1,2024-01-01\n2,{time}\n")
        pulled.fails(BadData, f"a.csv: line 2, column \"at\": '{time}' is not a TIMESTAMP", "such as -05:00")


def test_ragged_line_far_down_is_reported_with_its_line(pulled: Pulled) -> None:
    read = "read: {kind: Csv, schema: [a STRING, b STRING]}"
    pulled.add(f"fetch: {{kind: Url, url: a.csv}}\n{read}\nmerge: {{kind: Append}}")
    pulled.write("a.csv", ",\n" * 200_000 + "x\n" + ",\n")
    pulled.fails(BadData, "a.csv: line 200001: 1 value for 2 columns: x")


def test_file_is_fetched_again_after_a_failed_pull(pulled: Pulled) -> None:
    pulled.add(CSV)
    path = pulled.write("cases.csv", GOOD + "3,c,abc,\n")
    stamp = (path.stat().st_atime, path.stat().st_mtime)
    pulled.fails(BadData, "'abc'")
    # Not even the time of the file has changed.
    pulled.write("cases.csv", GOOD)
    os.utime(path, stamp)
    assert pulled.pull().records == 2
    # The same after data.
    pulled.write("cases.csv", GOOD + "x,c,1,\n")
    pulled.fails(BadData, "'x' is not a BIGINT")
    path.unlink()
    pulled.fails(SourceUnavailable, "cases.csv: file not found")
    pulled.write("cases.csv", GOOD + "3,c,1,\n")
    assert pulled.pull().records == 3


def test_files_before_an_invalid_file_are_committed(pulled: Pulled, shared: Path) -> None:
    pulled.add(
        """
fetch: {kind: FilesGlob, path: "in/*.csv"}
read: {kind: Csv, header: true}
preprocess:
  kind: Sql
  engine: spark
  query: SELECT CAST(MODIFIED_ZCTA AS INT) AS zcta, CAST(COVID_CASE_COUNT AS INT) AS cases FROM input
merge: {kind: Snapshot, primaryKey: [zcta]}
"""
    )
    data = shared / "data" / "nyc-modzcta"
    conflict = (data / "2020-12-09-conflict.csv").read_bytes()
    for day in ("2020-12-07", "2020-12-08"):
        pulled.write(f"in/{day}.csv", (data / f"{day}.csv").read_bytes())
    pulled.write("in/2020-12-09-conflict.csv", conflict)
    with pytest.raises(BadData) as caught:
        pulled.pull()
    assert str(caught.value) == (
        "2020-12-09-conflict.csv: line 1: merge conflict marker in the data: <<<<<<< HEAD"
    )
    assert "exclude the file" in (caught.value.hint or "")
    assert len(pulled.reporter.commits) == 2
    # Without its first line it is found further down.
    pulled.write("in/2020-12-09-conflict.csv", conflict.partition(b"\n")[2])
    pulled.fails(BadData, "2020-12-09-conflict.csv: line 179: merge conflict marker", "=======")
    (pulled.workspace.folder / "in" / "2020-12-09-conflict.csv").unlink()
    pulled.write("in/2020-12-09.csv", (data / "2020-12-09.csv").read_bytes())
    assert pulled.pull().blocks == 1


@pytest.mark.net
def test_http_errors_and_html_pages_leave_the_head(pulled: Pulled, web: WebServer) -> None:
    pulled.add(CSV.replace("cases.csv", web.url + "/cases.csv"))
    web.answer = lambda request: reply(request, 404, b"<html>")
    pulled.fails(SourceUnavailable, f"{web.url}/cases.csv: the server returned 404 Not Found", "fetch.url")
    web.answer = lambda request: reply(request, 500, Retry_After="0")
    pulled.fails(SourceUnavailable, "the server returned 500")
    web.answer = lambda request: reply(request, 200, b"<!DOCTYPE html><html>Log in", ETag='"login"')
    pulled.fails(BadData, f"{web.url}/cases.csv: not a data file: HTML page", "error page")
    web.answer = lambda request: reply(request, 200, GOOD.encode(), ETag='"one"')
    assert pulled.pull().records == 2
    web.answer = lambda request: reply(request, 304)
    assert pulled.pull().status == "up-to-date"
    assert web.requests[-1].headers["If-None-Match"] == '"one"'


@pytest.mark.net
def test_uncacheable_source_is_fetched_again_only_on_request(pulled: Pulled, web: WebServer) -> None:
    pulled.add(CSV.replace("cases.csv", web.url + "/cases.csv"))
    web.answer = lambda request: reply(request, 200, GOOD.encode())
    assert pulled.pull().records == 2
    assert pulled.pull().status == "up-to-date"
    (warning,) = pulled.reporter.warnings
    assert "cannot report changes" in warning and "--fetch-uncacheable" in warning
    assert "odf config set fetch.cache.data never" in warning
    assert len(web.requests) == 1
    assert pulled.pull(fetch_uncacheable=True).records == 2  # Append has no deduplication
    web.answer = lambda request: reply(request, 200, GOOD.encode() + b"3,c,1,\n")
    assert pulled.pull(fetch_uncacheable=True).records == 3
    pulled.workspace.config = set_value(pulled.workspace.config, "fetch.cache.d%", "never")
    assert pulled.pull().records == 3 and "cannot" not in str(pulled.reporter.warnings)
    pulled.workspace.config = set_value(pulled.workspace.config, "fetch.cache.data", "once")
    assert pulled.pull().status == "up-to-date"


@pytest.mark.net
def test_source_with_cache_forever_is_fetched_once(pulled: Pulled, web: WebServer) -> None:
    pulled.add(CSV.replace("url: cases.csv", f"url: '{web.url}', cache: {{kind: Forever}}"))
    web.answer = lambda request: reply(request, 200, GOOD.encode(), ETag=f'"{len(web.requests)}"')
    assert pulled.pull().records == 2
    assert pulled.pull().status == "up-to-date"
    assert len(web.requests) == 1


def test_truncated_gzip_is_rejected(pulled: Pulled) -> None:
    pulled.add(CSV + "prepare: [{kind: Decompress, format: Gzip}]")
    packed = gzip.compress(GOOD.encode())
    pulled.write("cases.csv", packed[:-12])
    pulled.fails(BadData, "cases.csv: truncated gzip file")
    pulled.write("cases.csv", packed)
    assert pulled.pull().records == 2


QUERY = """
fetch: {{kind: Url, url: cases.csv}}
read: {{kind: Csv, header: true}}
preprocess: {{kind: Sql, engine: {engine}, query: "{query}"}}
merge: {merge}
"""


@pytest.mark.parametrize(
    ("query", "kind", "parts"),
    [
        ("SELEC id FROM input", InvalidQuery, ["syntax error", "line 1"]),
        ("SELECT nam FROM input", InvalidQuery, ["`nam`", "`name`", "line 1, column 8"]),
        ("SELECT * FROM inptu", InvalidQuery, ["`inptu`", "`input`"]),
        ("DROP TABLE input", InvalidQuery, ["SELECT"]),
        ("SELECT CAST(name AS INT) AS n FROM input", BadData,
         ['cases.csv: 2 invalid rows, the first in line 2, column "name": \'a\' is not an INT', "query"]),
        ("SELECT 1 / (id - 2) AS n FROM (SELECT CAST(id AS INT) AS id FROM input)", BadData,
         ["zero"]),
        ("SELECT id AS op FROM input", InvalidSchema, ["column 'op'", "SetVocab", "rename"]),
        ("SELECT id AS Offset FROM input", InvalidSchema, ["column 'Offset'"]),
        ("SELECT day AS event_time FROM input", InvalidSchema,
         ["event_time", "STRING", "CAST(event_time AS"]),
        ("SELECT id, name AS ID FROM input", InvalidSchema, ["'id' and 'ID'", "same name"]),
    ],
)  # fmt: skip
def test_failing_preprocess_query_is_reported_with_its_cause(
    pulled: Pulled, query: str, kind: type[OdfError], parts: list[str]
) -> None:
    pulled.add(QUERY.format(query=query, engine="spark", merge="{kind: Append}"))
    pulled.write("cases.csv", GOOD)
    pulled.fails(kind, *parts)


@pytest.mark.parametrize("merge", ["Ledger", "Snapshot"])
@pytest.mark.complete
def test_null_and_duplicate_primary_keys_are_rejected(pulled: Pulled, merge: str) -> None:
    query = "SELECT CAST(id AS INT) AS id, name FROM input"
    pulled.add(QUERY.format(query=query, engine="spark", merge=f"{{kind: {merge}, primaryKey: [id]}}"))
    pulled.write("cases.csv", "id,name\n1,a\n,b\n")
    pulled.fails(BadData, "the primary key id is null: event_time=None, id=None, name=b", "cases.csv")
    pulled.write("cases.csv", "id,name\n1,a\n2,b\n1,c\n")
    pulled.fails(BadData, "the primary key id is not unique", "id=1, name=a", "id=1, name=c")
    pulled.write("cases.csv", "id,name\n1,a\n2,b\n")
    pulled.pull()
    # Also where the rows themselves are known already.
    pulled.write("cases.csv", "id,name\n1,a\n2,b\n2,c\n")
    pulled.fails(BadData, "is not unique", "id=2, name=b")
    pulled.write("cases.csv", "id,name\n1,a\n2,b\n3,c\n3,c\n1,a\n")
    assert pulled.pull().records == 1


def test_unknown_primary_key_column_is_rejected(pulled: Pulled) -> None:
    pulled.add(
        QUERY.format(query="SELECT id FROM input", engine="spark", merge="{kind: Ledger, primaryKey: [no]}")
    )
    pulled.write("cases.csv", GOOD)
    pulled.fails(InvalidSchema, "merge.primaryKey: primary key column 'no' not found", "event_time, id")


def test_changed_columns_are_rejected_but_column_order_is_free(pulled: Pulled) -> None:
    pulled.add(QUERY.format(query="SELECT * FROM input", engine="spark", merge="{kind: Append}"))
    pulled.write("cases.csv", "id,name,day\n1,a,x\n")
    pulled.pull()
    pulled.write("cases.csv", "id,count,day,more\n1,2,x,y\n")
    pulled.fails(
        InvalidSchema,
        "column 'name' is missing; column 'count' is new; column 'more' is new",
        "add count STRING, more STRING to the dataset",
    )
    # Another order of the columns is none of the dataset's business.
    pulled.write("cases.csv", "DAY,id,name\ny,2,b\n")
    assert pulled.pull().records == 1
    assert pulled.rows("id", "name", "day") == [("1", "a", "x"), ("2", "b", "y")]


@pytest.mark.complete
def test_data_that_contradicts_the_inferred_schema_is_rejected(pulled: Pulled) -> None:
    read = "read: {kind: Csv, header: true, inferSchema: true}"
    pulled.add(f"fetch: {{kind: Url, url: a.csv}}\n{read}\nmerge: {{kind: Append}}")
    pulled.write("a.csv", "id,price\n1,1.5\n")
    pulled.pull()
    pulled.write("a.csv", "id,price\nx1,1.5\n")
    pulled.fails(BadData, "a.csv: line 2, column \"id\": 'x1' is not a BIGINT")
    pulled.write("a.csv", "id,weight\n1,1.5\n")
    pulled.fails(
        InvalidSchema, "a.csv: the columns differ from those", "'price' is missing; column 'weight' is new"
    )
    # What is not there, or a whole number by chance, has no other type for that.
    pulled.write("a.csv", "id,price\n,2\n")
    assert pulled.pull().records == 1


def test_null_in_not_null_column_is_rejected(pulled: Pulled) -> None:
    read = "read: {kind: Csv, schema: [id BIGINT NOT NULL, n INT]}"
    pulled.add(f"fetch: {{kind: Url, url: a.csv}}\n{read}\nmerge: {{kind: Append}}")
    pulled.write("a.csv", "1,1\n,2\n")
    pulled.fails(BadData, 'a.csv: line 2, column "id"', "NOT NULL")


JSON = """
fetch: {{kind: Url, url: a.json}}
read: {{kind: {kind}, schema: [id BIGINT NOT NULL, name STRING, "at STRUCT<lat: DOUBLE, day: DATE>"]}}
merge: {{kind: Append}}
"""
FEATURE = '{"type": "Feature", "properties": {"id": 1}, "geometry": {"type": "Point", "coordinates": [1, 2]}}'
JSON_THAT_IS_WRONG: dict[str, list[tuple[str | bytes, list[str]]]] = {
    "NdJson": [
        ('{"id":1}\n{"id":"x"}\n', ['a.json: line 2, column "id": \'x\' is not a BIGINT']),
        ('{"id":1}\n{"id":\n{"id":2}\n', ["a.json: line 2: a line is not one JSON object: Exp"]),
        ('{"id":1}\n\n{"name":"x"}\n', ['a.json: line 3, column "id"', "NOT NULL"]),
        ('{"key":1,"more":2}\n', ["a.json: none of the declared columns found in the data", "key, more"]),
        ('{"id":1}\n{"ID":2}\n', ["a.json: line 2: the column `id` is written 'id' in line 1, and 'ID'"]),
        ('{"id":1,"at":{"lat":1}}\n{"id":2,"at":{"lat":"north"}}\n',
         ['a.json: line 2, column "at.lat": \'north\' is not a DOUBLE']),
        ('{"id":1,"at":{"day":"2024-02-30"}}\n', ['line 1, column "at.day": \'2024-02-30\' is not a DATE']),
        ('{"id":1,"at":[2]}\n', ['line 1, column "at": \'[\' is not a STRUCT']),
        ('{"id":1}\n<<<<<<< HEAD\n', ["a.json: line 2: merge conflict marker"]),
        ('{"id":1}\n{"name":"größe"}\n'.encode("cp1252"), ["a.json: line 2: byte 0xf6 at 20 is not UTF-8"]),
    ],
    "Json": [
        ('[{"id":1},\n{"id":1.5}]', ['a.json: object 2, column "id": \'1.5\' is not a BIGINT']),
        ('[{"id":1},\n{"id":', ["a.json: line 2: unexpected end of file"]),
        ('{"error":"quota"}', ["a.json: line 1: the document is not an array", "subPath"]),
        ('\n<html>', ["a.json: not a data file: HTML page"]),
    ],
    "Json, subPath: data.rows": [
        ('{"data": {\n"items": [], "n": 0}}', ["a.json: line 2: 'data.rows' (read.subPath) not", "items, n"]),
        ('{"data": {"rows": {"id": 1}}}', ["a.json: line 1: 'data.rows' is not an array"]),
    ],
    "GeoJson": [
        ('{"type": "FeatureCollection", "features": [\n{"type": "Feature", "properties": {"id": 1}}]}',
         ["a.json: line 2: the feature has no geometry"]),
        ('{"type": "Point"}', ["a.json: line 1: 'features' (read.subPath) not found"]),
        ('{"type": "FeatureCollection", "features": [' + FEATURE.replace("1}", '"x"}') + "]}",
         ['a.json: feature 1, column "id": \'x\' is not a BIGINT']),
    ],
    "NdGeoJson": [
        (FEATURE + "\n" + FEATURE.replace("Point", "Po\nint"),
         ["a.json: 2 invalid rows, the first in line 2: invalid JSON"]),
    ],
    "Parquet": [('{"id":1}', ["a.json: the Parquet file cannot be read"])],
    "EsriShapefile": [('{"id":1}', ["a.json: not a zip archive"])],
}  # fmt: skip


@pytest.mark.parametrize("kind", JSON_THAT_IS_WRONG)
def test_invalid_json_geojson_parquet_and_shapefile_are_rejected(pulled: Pulled, kind: str) -> None:
    pulled.add(JSON.format(kind=kind))
    for text, parts in JSON_THAT_IS_WRONG[kind]:
        pulled.write("a.json", text)
        pulled.fails(OdfError, *parts)


def test_parquet_is_cast_to_the_schema_or_rejected(pulled: Pulled) -> None:
    pulled.add(JSON.format(kind="Parquet"))
    path = pulled.workspace.folder / "a.json"
    ids = pa.array([1, None, 3])
    pq.write_table(pa.table({"key": ids, "name": ["a", "b", "c"]}), path)
    pulled.fails(InvalidSchema, "a.json: the file has no column `id`", "`key`, `name`")
    at = pa.array([{"lat": 1.5, "day": None}] * 3, pa.struct([("lat", pa.float64()), ("day", pa.date32())]))
    pq.write_table(pa.table({"id": ids, "name": ["a", "b", "c"], "at": at}), path)
    pulled.fails(BadData, 'a.json: row 2, column "id"', "NOT NULL")
    pq.write_table(pa.table({"ID": pa.array([1.0, 2.0, 3.5]), "name": ["a", "b", "c"], "at": at}), path)
    pulled.fails(BadData, "a.json: row 3, column \"id\": '3.5' is not a BIGINT")
    pq.write_table(pa.table({"ID": pa.array([1.0]), "name": ["a"], "at": at[:1]}), path)
    assert pulled.pull().records == 1
    assert pulled.rows("id", "at") == [(1, {"lat": 1.5, "day": None})]


def test_full_disk_is_reported_and_nothing_is_committed(
    pulled: Pulled, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled.add(CSV + "prepare: [{kind: Decompress, format: Gzip}]")
    pulled.write("cases.csv", gzip.compress(GOOD.encode()))
    original = Path.open

    def full(path: Path, mode: str = "r", *args: object, **options: object) -> object:
        return original(
            Path("/dev/full") if path.name == "prepared-0" and "w" in mode else path, mode, *args, **options
        )  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        pulled.fails(OdfError, "the disk is full", "free disk space")
    monkeypatch.setattr("odf_engine.chain.dataset.Dataset.staging_path", lambda self, kind: Path("/dev/full"))
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)  # not that one
    pulled.fails(OdfError, "the disk is full", "nothing was committed")
