"""Sources whose file has changed since the last pull: address, format, columns."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

import odf_engine as odf
from odf_engine.errors import InvalidSchema, OdfError
from odf_engine.jobs.definition import InferSource, InferSourceResult, Update
from odf_engine.metadata.model import SetPollingSource
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from tests.api.conftest import on_runtime
from tests.ingest.conftest import WebServer, reply, web_server
from tests.ingest.ftp_server import make_certificate

DEFINITION = """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: URL}
      read: {kind: Csv, header: true, schema: [id BIGINT NOT NULL, city STRING, people BIGINT]}
      merge: {kind: Ledger, primaryKey: [id]}
"""
ROWS = "id,city,people\n1,Gent,7\n2,Köln,\n3,Brugge,9\n"


class Cities:
    """A dataset of a file that changes."""

    def __init__(self, workspace: odf.Workspace) -> None:
        self.workspace = workspace
        self.time = 1_700_000_000

    def add(self, url: str = "cities.csv", definition: str = DEFINITION) -> None:
        self.workspace.add(definition.replace("URL", url))

    @property
    def dataset(self) -> odf.Dataset:
        return self.workspace["cities"]

    def write(self, text: str | bytes) -> None:
        """Write the file, with a new modification time."""
        path = self.workspace.folder / "cities.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        self.time += 60
        os.utime(path, (self.time, self.time))

    def infer(self) -> InferSourceResult:
        return self.workspace._runner.run(InferSource(dataset=self.dataset.id), "cities")

    def adapt(self) -> tuple[InferSourceResult, SetPollingSource]:
        """Adapt the source and append it to the chain; return it."""
        result = self.infer()
        definitions = read_manifests(result.definition, "test")
        if result.new:
            request = Update(dataset=self.dataset.id, manifest=result.definition, accept_columns=True)
            self.workspace._runner.run(request, "cities")
        else:
            self.workspace._workspace.update(definitions)
        (source,) = [event for event in definitions[0].metadata if isinstance(event, SetPollingSource)]
        return result, source

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        table = self.dataset.scan(["offset", *columns]).to_arrow().sort_by("offset").select(list(columns))
        return [tuple(row.values()) for row in table.to_pylist()]


@pytest.fixture
def cities(tmp_path: Path, runtime: SparkRuntime) -> Iterator[Cities]:
    with odf.init(tmp_path / "ws", in_process=True) as workspace:
        yield Cities(on_runtime(workspace, runtime))


def pulled(cities: Cities, text: str | bytes = ROWS) -> None:
    cities.add()
    cities.write(text)
    assert cities.dataset.pull().records == 3


def test_unchanged_file_needs_no_adaptation(cities: Cities) -> None:
    pulled(cities)
    result, _ = cities.adapt()
    assert (result.differences, result.new) == ([], [])
    assert cities.dataset.pull().records == 0


@pytest.mark.parametrize(
    ("text", "difference", "fields"),
    [
        (
            "id;city;people\n3;Brugge;9\n4;Löwen;1\n5;Mons;2\n",
            "separator: ',' is now ';'",
            {"separator": ";", "encoding": None},
        ),
        (
            "id,city,people\n3,Brugge,9\n4,Löwen,1\n5,Mons,2\n".encode("latin-1"),
            "encoding: 'UTF-8' is now 'ISO-8859-1'",
            {"separator": None, "encoding": "ISO-8859-1"},
        ),
    ],
    ids=["separator", "encoding"],
)
def test_format_of_the_reader_is_adapted(
    cities: Cities, text: str | bytes, difference: str, fields: dict[str, str | None]
) -> None:
    pulled(cities)
    cities.write(text)
    with pytest.raises(OdfError) as caught:
        cities.dataset.pull()
    assert "odf add --update --infer cities" in str(caught.value.hint)
    result, source = cities.adapt()
    assert result.differences == [difference]
    assert {name: getattr(source.read, name) for name in fields} == fields
    assert source.read.schema == ["id BIGINT NOT NULL", "city STRING", "people BIGINT"]
    assert source.prepare is None
    cities.dataset.pull()
    assert cities.rows("city") == [("Gent",), ("Köln",), ("Brugge",), ("Löwen",), ("Mons",)]


def test_lines_above_the_header_get_a_filter_that_is_removed_again(cities: Cities) -> None:
    pulled(cities)
    table = ROWS + "4,Mons,2\n"
    cities.write("Cities of the region\nUpdated on Monday\n\n" + table)
    with pytest.raises(OdfError) as caught:
        cities.dataset.pull()
    assert "odf add --update --infer cities" in str(caught.value.hint)
    result, source = cities.adapt()
    assert result.differences == ["the file needs a filter: 2 title lines above the header"]
    assert source.prepare is not None and source.prepare[0].command[:3] == ["odf", "filter", "csv"]
    assert cities.dataset.pull().records == 1
    cities.write(table + "5,Namur,3\n")
    result, source = cities.adapt()
    assert (result.differences, source.prepare) == (["the filter is not needed"], None)
    assert cities.dataset.pull().records == 1


def test_new_columns_are_added_with_a_new_separator(cities: Cities) -> None:
    pulled(cities)
    cities.write("id;area;city;people\n3;1.5;Brugge;9\n4;2.5;Mons;2\n")
    result, source = cities.adapt()
    assert result.differences == ["separator: ',' is now ';'", "new columns: area"]
    assert source.read.schema == ["id BIGINT NOT NULL", "area DOUBLE", "city STRING", "people BIGINT"]
    assert cities.dataset.pull().records == 1
    assert cities.rows("city", "area")[-1] == ("Mons", 2.5)


def test_renamed_columns_keep_their_names(cities: Cities) -> None:
    pulled(cities)
    cities.write("id;town;people\n3;Brugge;9\n4;Mons;2\n")
    result, source = cities.adapt()
    assert result.differences[-1] == (
        "renamed in the file: city is now town (column city); read by position as before"
    )
    assert source.read.schema == ["id BIGINT NOT NULL", "city STRING", "people BIGINT"]
    assert cities.dataset.pull().records == 1
    assert cities.rows("city")[-1] == ("Mons",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id,people\n3,9\n4,2\n", "columns that disappeared from the file: city"),
        ("id,people,city\n3,9,Brugge\n4,2,Mons\n", "column 'people' moved: it is column 2 of the file"),
        ("id;city;people\n3;Brugge;9.5\n4;Mons;2\n", "people is BIGINT, line 2 has '9.5'"),
    ],
    ids=["removed", "moved", "type"],
)
def test_columns_that_cannot_be_adapted_change_nothing(cities: Cities, text: str, problem: str) -> None:
    pulled(cities)
    cities.write(text)
    with pytest.raises(InvalidSchema, match=problem):
        cities.infer()


def test_permanent_redirects_replace_the_url(
    cities: Cities, web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        if request.path == "/new.csv":
            reply(request, 200, ROWS.encode(), ETag='"1"')
        elif request.path == "/old.csv":
            reply(request, 301, Location="/newer.csv")
        elif request.path == "/newer.csv":
            reply(request, 308, Location="/new.csv")
        else:
            reply(request, 302, Location="/new.csv")

    web.answer = answer
    cities.add(web.url + "/temporary.csv")
    assert cities.infer().differences == []
    cities.workspace._workspace.delete(cities.dataset._entry)

    cities.add(web.url + "/old.csv")
    cities.dataset.pull()
    result, source = cities.adapt()
    assert result.differences == [f"the file moved permanently to {web.url}/new.csv"]
    assert source.fetch.url == web.url + "/new.csv"
    assert cities.infer().differences == []

    certificate = make_certificate(tmp_path / "localhost.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with web_server(context) as secure:
        secure.answer = answer
        web.answer = lambda request: reply(request, 301, Location=secure.url + "/new.csv")
        _, source = cities.adapt()
        assert source.fetch.url == secure.url + "/new.csv"


def test_headers_of_a_source_are_not_sent_to_another_host(cities: Cities, web: WebServer) -> None:
    other = web.url.replace("127.0.0.1", "localhost")
    web.answer = lambda request: (
        reply(request, 200, ROWS.encode())
        if request.path == "/new.csv"
        else reply(request, 301, Location=other + "/new.csv")
    )
    url = f"'{web.url}/old.csv', headers: [{{name: X-Key, value: k}}]"
    cities.add(url)
    result, source = cities.adapt()
    assert "if this host may get fetch.headers" in result.differences[0]
    assert source.fetch.url == web.url + "/old.csv"
