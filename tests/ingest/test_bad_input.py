"""Files that are not what the manifest says: one clear message, the head stays, the next pull is afresh."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from odf_engine.errors import BadData, InvalidQuery, InvalidSchema, OdfError, SourceUnavailable, Unsupported
from tests.ingest.conftest import WebServer, reply
from tests.ingest.pulling import Pulled

CSV = """
fetch: {kind: Url, url: cases.csv}
read: {kind: Csv, header: true, schema: [id BIGINT, name STRING, count BIGINT, day DATE]}
merge: {kind: Append}
"""
GOOD = "id,name,count,day\n1,a,10,2024-01-01\n2,b,20,2024-01-02\n"


@pytest.mark.parametrize(
    ("text", "kind", "parts"),
    [
        (GOOD + "3,c,abc,\n", BadData, ['cases.csv: line 4, column "count": \'abc\' is not a BIGINT']),
        (GOOD + '3,"c\nc",1,\n4,d,NA,\n', BadData, ['line 6, column "count": \'NA\'', "read.nullValue"]),
        (GOOD + "3,c,30,31.12.2024\n", BadData,
         ['line 4, column "day": \'31.12.2024\' is not a DATE', "dateFormat"]),
        (GOOD + "3,c\n", BadData, ["cases.csv: line 4: 2 values where there are 4 columns: 3,c"]),
        (GOOD + "3,c,1,2024-01-01,x\n", BadData, ["cases.csv: line 4: 5 values where there are 4 columns"]),
        (GOOD.encode() + "3,größe,1,\n".encode("latin-1"), BadData,
         ["cases.csv", "line 4", "UTF-8", "encoding"]),
        ("<html><body>Not found</body></html>", BadData, ["cases.csv: is a web page (HTML), not data"]),
        (gzip.compress(GOOD.encode()), BadData, ["cases.csv: is gzip, not text", "Decompress"]),
        (GOOD + "<<<<<<< HEAD\n3,c,1,\n=======\n3,c,2,\n>>>>>>> x\n", BadData,
         ["cases.csv: line 4: a version-control"]),
        (GOOD + '3,"c,1,\n4,d,1,\n', BadData, ["cases.csv", "line 4"]),
        ("id,name,day,count\n1,a,2024-01-01,10\n", InvalidSchema,
         ["cases.csv: line 1: column 'day' has another place"]),
        ("id,name\n1,a\n", InvalidSchema,
         ["the file has 2 columns and read.schema declares 4", "id, name, count, day"]),
    ],
)  # fmt: skip
def test_csv(pulled: Pulled, text: str | bytes, kind: type[OdfError], parts: list[str]) -> None:
    pulled.add(CSV)
    pulled.write("cases.csv", text)
    pulled.fails(kind, *parts)


def test_the_next_pull_starts_afresh(pulled: Pulled) -> None:
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
    pulled.fails(SourceUnavailable, "cases.csv: there is no such file")
    pulled.write("cases.csv", GOOD)
    assert pulled.pull().records == 2


def test_a_bad_file_among_many_keeps_those_before(pulled: Pulled, shared: Path) -> None:
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
        "2020-12-09-conflict.csv: line 1: a version-control conflict mark stands in the data: <<<<<<< HEAD"
    )
    assert "leave this file out" in (caught.value.hint or "")
    assert len(pulled.reporter.commits) == 2
    # Without its first line it is found further down.
    pulled.write("in/2020-12-09-conflict.csv", conflict.partition(b"\n")[2])
    pulled.fails(BadData, "2020-12-09-conflict.csv: line 179: a version-control conflict mark", "=======")
    (pulled.workspace.folder / "in" / "2020-12-09-conflict.csv").unlink()
    pulled.write("in/2020-12-09.csv", (data / "2020-12-09.csv").read_bytes())
    assert pulled.pull().blocks == 1


def test_http_errors(pulled: Pulled, web: WebServer) -> None:
    pulled.add(CSV.replace("cases.csv", web.url + "/cases.csv"))
    web.answer = lambda request: reply(request, 404, b"<html>")
    pulled.fails(SourceUnavailable, f"{web.url}/cases.csv: the server answered 404 Not Found", "fetch.url")
    web.answer = lambda request: reply(request, 500, Retry_After="0")
    pulled.fails(SourceUnavailable, "the server answered 500")
    web.answer = lambda request: reply(request, 200, b"<!DOCTYPE html><html>Log in", ETag='"login"')
    pulled.fails(BadData, f"{web.url}/cases.csv: is a web page", "error page")
    web.answer = lambda request: reply(request, 200, GOOD.encode(), ETag='"one"')
    assert pulled.pull().records == 2
    web.answer = lambda request: reply(request, 304)
    assert pulled.pull().status == "up-to-date"
    assert web.requests[-1].headers["If-None-Match"] == '"one"'


def test_sources_that_cannot_say_whether_they_changed(pulled: Pulled, web: WebServer) -> None:
    pulled.add(CSV.replace("cases.csv", web.url + "/cases.csv"))
    web.answer = lambda request: reply(request, 200, GOOD.encode())
    assert pulled.pull().records == 2
    assert pulled.pull().status == "up-to-date"
    assert "--fetch-uncacheable" in pulled.reporter.warnings[0]
    assert len(web.requests) == 1
    assert pulled.pull(fetch_uncacheable=True).records == 2


def test_cached_forever(pulled: Pulled, web: WebServer) -> None:
    pulled.add(CSV.replace("url: cases.csv", f"url: '{web.url}', cache: {{kind: Forever}}"))
    web.answer = lambda request: reply(request, 200, GOOD.encode(), ETag=f'"{len(web.requests)}"')
    assert pulled.pull().records == 2
    assert pulled.pull().status == "up-to-date"
    assert len(web.requests) == 1


def test_truncated_gzip(pulled: Pulled) -> None:
    pulled.add(CSV + "prepare: [{kind: Decompress, format: Gzip}]")
    packed = gzip.compress(GOOD.encode())
    pulled.write("cases.csv", packed[:-12])
    pulled.fails(BadData, "cases.csv: is gzip that was cut short")
    pulled.write("cases.csv", packed)
    assert pulled.pull().records == 2


QUERY = """
fetch: {{kind: Url, url: cases.csv}}
read: {{kind: Csv, header: true}}
preprocess: {{kind: Sql, engine: {engine}, query: "{query}"}}
merge: {merge}
"""


@pytest.mark.parametrize(
    ("query", "engine", "kind", "parts"),
    [
        ("SELEC id FROM input", "spark", InvalidQuery, ["syntax error", "line 1"]),
        ("SELECT nam FROM input", "spark", InvalidQuery, ["`nam`", "`name`", "line 1, column 8"]),
        ("SELECT * FROM inptu", "spark", InvalidQuery, ["`inptu`", "`input`"]),
        ("DROP TABLE input", "spark", InvalidQuery, ["SELECT"]),
        ("SELECT id FROM input", "datafusion", InvalidQuery,
         ["'datafusion', which is not here", "engines: spark"]),
        ("SELECT CAST(name AS INT) AS n FROM input", "spark", BadData,
         ['cases.csv: line 2, column "name": \'a\' is not an INT', "query"]),
        ("SELECT 1 / (id - 2) AS n FROM (SELECT CAST(id AS INT) AS id FROM input)", "spark", BadData,
         ["zero"]),
        ("SELECT id AS op FROM input", "spark", InvalidSchema, ["column 'op'", "SetVocab", "rename"]),
        ("SELECT id AS Offset FROM input", "spark", InvalidSchema, ["column 'Offset'"]),
        ("SELECT day AS event_time FROM input", "spark", InvalidSchema,
         ["event_time", "STRING", "CAST(event_time AS"]),
        ("SELECT id, name AS ID FROM input", "spark", InvalidSchema, ["'id' and 'ID'", "same name"]),
    ],
)  # fmt: skip
def test_queries(pulled: Pulled, query: str, engine: str, kind: type[OdfError], parts: list[str]) -> None:
    pulled.add(QUERY.format(query=query, engine=engine, merge="{kind: Append}"))
    pulled.write("cases.csv", GOOD)
    pulled.fails(kind, *parts)


@pytest.mark.parametrize("merge", ["Ledger", "Snapshot"])
def test_keys(pulled: Pulled, merge: str) -> None:
    query = "SELECT CAST(id AS INT) AS id, name FROM input"
    pulled.add(QUERY.format(query=query, engine="spark", merge=f"{{kind: {merge}, primaryKey: [id]}}"))
    pulled.write("cases.csv", "id,name\n1,a\n,b\n")
    pulled.fails(
        BadData, "the primary key id has no value in rows: event_time=None, id=None, name=b", "cases.csv"
    )
    pulled.write("cases.csv", "id,name\n1,a\n2,b\n1,c\n")
    pulled.fails(
        BadData, "the primary key id stands in several different rows", "id=1, name=a", "id=1, name=c"
    )
    pulled.write("cases.csv", "id,name\n1,a\n2,b\n")
    pulled.pull()
    # Also where the rows themselves are known already.
    pulled.write("cases.csv", "id,name\n1,a\n2,b\n2,c\n")
    pulled.fails(BadData, "stands in several different rows", "id=2, name=b")
    pulled.write("cases.csv", "id,name\n1,a\n2,b\n3,c\n3,c\n1,a\n")
    assert pulled.pull().records == 1


def test_keys_that_cannot_be(pulled: Pulled) -> None:
    pulled.add(
        QUERY.format(query="SELECT id FROM input", engine="spark", merge="{kind: Ledger, primaryKey: [no]}")
    )
    pulled.write("cases.csv", GOOD)
    pulled.fails(
        InvalidSchema, "merge.primaryKey: the primary key column 'no' is not there", "event_time, id"
    )


def test_a_schema_that_no_longer_matches(pulled: Pulled) -> None:
    pulled.add(QUERY.format(query="SELECT * FROM input", engine="spark", merge="{kind: Append}"))
    pulled.write("cases.csv", "id,name,day\n1,a,x\n")
    pulled.pull()
    pulled.write("cases.csv", "id,count,day,more\n1,2,x,y\n")
    pulled.fails(
        InvalidSchema,
        "column 'name' is missing; column 'count' is new; column 'more' is new",
        "start a new dataset",
    )
    # Another order of the columns is none of the dataset's business.
    pulled.write("cases.csv", "DAY,id,name\ny,2,b\n")
    assert pulled.pull().records == 1
    assert pulled.rows("id", "name", "day") == [("1", "a", "x"), ("2", "b", "y")]


def test_inferred_types_that_changed(pulled: Pulled) -> None:
    read = "read: {kind: Csv, header: true, inferSchema: true}"
    pulled.add(f"fetch: {{kind: Url, url: a.csv}}\n{read}\nmerge: {{kind: Append}}")
    pulled.write("a.csv", "id,price\n1,1.5\n")
    pulled.pull()
    pulled.write("a.csv", "id,price\nx1,1.5\n")
    pulled.fails(BadData, "a.csv: line 2, column \"id\": 'x1' is not a BIGINT")
    pulled.write("a.csv", "id,weight\n1,1.5\n")
    pulled.fails(
        InvalidSchema, "a.csv: the columns are not those", "'price' is missing; column 'weight' is new"
    )
    # What is not there, or a whole number by chance, has no other type for that.
    pulled.write("a.csv", "id,price\n,2\n")
    assert pulled.pull().records == 1


def test_not_null(pulled: Pulled) -> None:
    read = "read: {kind: Csv, schema: [id BIGINT NOT NULL, n INT]}"
    pulled.add(f"fetch: {{kind: Url, url: a.csv}}\n{read}\nmerge: {{kind: Append}}")
    pulled.write("a.csv", "1,1\n,2\n")
    pulled.fails(BadData, 'a.csv: line 2, column "id"', "NOT NULL")


JSON = """
fetch: {{kind: Url, url: a.json}}
read: {{kind: {kind}, schema: [id BIGINT, name STRING]}}
merge: {{kind: Append}}
"""


@pytest.mark.parametrize(
    ("kind", "text", "parts"),
    [
        ("NdJson", '{"id":1}\n{"id":"x"}\n', ['a.json: line 2, column "id": \'x\' is not a BIGINT']),
        ("NdJson", '{"id":1}\n{"id":\n', ["a.json, line 2", "not one JSON object"]),
        ("NdJson", '{"ID":1,"more":2}\n', ["none of the declared columns is in the data", "ID, more"]),
        ("Json", '[{"id":1},\n{"id":1.5}]', ['a.json: object 2, column "id": \'1.5\' is not a BIGINT']),
        ("Json", '[{"id":1},\n{"id":', ["a.json: line 2: ends in the middle: the file was cut short"]),
        ("Json", '{"error":"quota"}', ["a.json: line 1: the document is not an array", "subPath"]),
        ("Json", "<html>", ["a.json: is a web page"]),
    ],
)  # fmt: skip
def test_json(pulled: Pulled, kind: str, text: str, parts: list[str]) -> None:
    pulled.add(JSON.format(kind=kind))
    pulled.write("a.json", text)
    pulled.fails(OdfError, *parts)


def test_parquet(pulled: Pulled) -> None:
    pulled.add(JSON.format(kind="Parquet"))
    pulled.write("a.json", '{"id":1}')
    pulled.fails(BadData, "a.json", "not a Parquet file")


def test_formats_that_are_not_read(pulled: Pulled) -> None:
    pulled.add("fetch: {kind: Url, url: a.zip}\nread: {kind: EsriShapefile}\nmerge: {kind: Append}")
    pulled.write("a.zip", "x")
    pulled.fails(Unsupported, "EsriShapefile", "Csv, NdJson")


def test_full_disk(pulled: Pulled, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled.add(CSV + "prepare: [{kind: Decompress, format: Gzip}]")
    pulled.write("cases.csv", gzip.compress(GOOD.encode()))
    original = Path.open

    def full(path: Path, mode: str = "r", *args: object, **options: object) -> object:
        return original(
            Path("/dev/full") if path.name == "prepared-0" and "w" in mode else path, mode, *args, **options
        )  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        pulled.fails(OdfError, "the disk is full", "free some space")
    monkeypatch.setattr("odf_engine.chain.chain.Dataset.staging_path", lambda self, kind: Path("/dev/full"))
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)  # not that one
    pulled.fails(OdfError, "the disk is full", "nothing was committed")
