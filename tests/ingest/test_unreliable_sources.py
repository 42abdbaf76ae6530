"""Whole pulls from servers and files that misbehave: no row lost, none twice, none wrong."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from odf_engine.errors import BadData, NotTrusted, SourceUnavailable
from odf_engine.ingest.polling_source import pull
from odf_engine.metadata.model import SourceState
from odf_engine.workspace.dataset_folders import ORIGIN_FILE
from odf_engine.workspace.trust import Trust
from tests.ingest.conftest import WebServer, reply
from tests.ingest.ftp_server import ftp_server
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder
from tests.ingest.test_http_resume import ranged

pytestmark = pytest.mark.net

SOURCE = """
fetch: {{kind: Url, url: "{url}"}}
read: {{kind: Csv, header: true, schema: ["id BIGINT", "city STRING"]}}
merge: {{kind: Append}}
"""
ROWS = [(number, f"city {number}") for number in range(40_000)]


def text_of(rows: list[tuple[int, str]]) -> bytes:
    return ("id,city\n" + "".join(f"{number},{city}\n" for number, city in rows)).encode()


def test_interrupted_download_resumes_and_commits_one_version(pulled: Pulled, web: WebServer) -> None:
    body = text_of(ROWS)

    def answer(request: BaseHTTPRequestHandler) -> None:
        match len(web.requests):
            case 1:
                reply(request, 503, Retry_After="0")
            case 2:
                ranged(request, body, len(body) // 2, ETag='"one"')
            case _:
                ranged(request, body, ETag='"one"')

    web.answer = answer
    pulled.add(SOURCE.format(url=web.url))
    reporter = Recorder()

    def change(phase: str) -> None:
        if phase == "merge":
            web.answer = lambda request: reply(request, 200, text_of([(1, "new")]), ETag='"two"')

    reporter.on_phase = change
    assert pull(pulled.workspace, pulled.entry, pulled.runtime, reporter).records == len(ROWS)
    assert [each.headers["Range"] for each in web.requests] == [None, None, f"bytes={len(body) // 2}-"]
    assert ["retrying" in text for text in reporter.warnings] == [True, True]
    assert pulled.rows("id", "city") == ROWS
    # What was committed is what was fetched, and its state; the change is for the next pull.
    assert pulled.newest().new_source_state == SourceState("default", "odf/etag", '"one"')
    assert pulled.pull().records == 1
    assert pulled.newest().new_source_state == SourceState("default", "odf/etag", '"two"')


def test_bytes_that_failed_to_read_are_not_used_again(pulled: Pulled, web: WebServer) -> None:
    pulled.add(SOURCE.format(url=web.url))
    web.answer = lambda request: ranged(request, b"id,city\n1,a,b\n", ETag='"same"')
    pulled.fails(BadData, f"{web.url}: line 2")
    web.requests.clear()
    good = b"id,city\n1,a\n"
    web.answer = lambda request: (
        ranged(request, good, 9, ETag='"same"') if len(web.requests) == 1 else reply(request, 404)
    )
    pulled.fails(SourceUnavailable, "404")
    web.answer = lambda request: ranged(request, good, ETag='"same"')
    assert pulled.pull().records == 1
    assert [each.headers["Range"] for each in web.requests] == [None, "bytes=9-", "bytes=9-"]
    assert pulled.rows("id", "city") == [(1, "a")]


def test_file_that_shrinks_during_the_read_is_rejected(pulled: Pulled) -> None:
    path = pulled.write("cases.csv", text_of(ROWS))
    pulled.add(SOURCE.format(url=path))
    head, reporter = pulled.dataset.head(), Recorder()

    def shrink(phase: str) -> None:
        if phase == "read":
            path.write_bytes(text_of(ROWS)[:100_001])

    reporter.on_phase = shrink
    with pytest.raises(BadData, match=r"^cases\.csv: the file changed while it was read$"):
        pull(pulled.workspace, pulled.entry, pulled.runtime, reporter)
    assert pulled.dataset.head() == head
    path.write_bytes(text_of(ROWS))
    assert pulled.pull().records == len(ROWS)


def test_ftp_without_times_is_fetched_again_only_on_request(pulled: Pulled, tmp_path: Path) -> None:
    folder = tmp_path / "ftp"
    folder.mkdir()
    (folder / "x.csv").write_bytes(text_of(ROWS[:2]))
    with ftp_server(folder) as ftp:
        ftp.lacks = {"MDTM", "SIZE"}
        pulled.add(SOURCE.format(url=f"ftp://{ftp.address}/x.csv"))
        assert pulled.pull().records == 2
        assert pulled.pull().status == "up-to-date"
        assert "--fetch-uncacheable" in pulled.reporter.warnings[0]
        assert len(ftp.asked("RETR")) == 1
        assert pulled.pull(fetch_uncacheable=True).records == 2
        (folder / "x.csv").write_bytes(text_of(ROWS[2:4]))
        assert pulled.pull(fetch_uncacheable=True).records == 2


def test_third_party_dataset_needs_permission_for_private_network(pulled: Pulled, web: WebServer) -> None:
    web.answer = lambda request: reply(request, 200, text_of(ROWS[:2]))
    pulled.add(SOURCE.format(url=web.url))
    (pulled.dataset.folder / ORIGIN_FILE).write_text("https://elsewhere.example")
    pulled.fails(NotTrusted, f"it would run url `{web.url}`")
    Trust(pulled.workspace).grant(pulled.entry)
    pulled.fails(SourceUnavailable, "127.0.0.1 is not a public address", "--private-network")
    assert web.requests == []
    Trust(pulled.workspace).grant(pulled.entry, private_network=True)
    assert pulled.pull().records == 2
