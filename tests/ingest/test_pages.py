"""Lists in pages, from a web server of this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from odf_engine.base.config import FetchConfig
from odf_engine.errors import BadData, Cancelled, InvalidManifest, OdfError, SourceUnavailable
from odf_engine.ingest.fetch.fetch_step import fetch
from odf_engine.ingest.fetch.model import FetchContext
from odf_engine.ingest.inference.file_inference import FileChoices
from odf_engine.ingest.inference.file_manifest import manifest_text
from odf_engine.ingest.inference.file_sample import download_sample, infer_file
from odf_engine.metadata.model import Container, EnvVar, SetPollingSource, SourceState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from tests.ingest.conftest import WebServer, reply
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder

Handler = BaseHTTPRequestHandler
Items = list[dict[str, Any]]


@pytest.fixture
def context(workspace: Workspace, reporter: Recorder) -> FetchContext:
    (workspace.odf / "cache" / "job").mkdir(parents=True)
    return FetchContext(
        resolve=workspace.resolve_path,
        root=workspace.folder,
        dataset=None,  # type: ignore[arg-type]
        state=None,
        job=workspace.odf / "cache" / "job",
        config=FetchConfig(longest_pause_seconds=0.05),
        reporter=reporter,
        environment={"TOKEN": "s3cret-token"},
        allowed=["TOKEN"],
        name="my.data",
    )


def pages_step(*arguments: str) -> Container:
    return Container("odf/pages:1", args=list(arguments))


def payloads(
    context: FetchContext, *arguments: str
) -> Generator[tuple[Items, SourceState, bool], None, None]:
    for payload in fetch(pages_step(*arguments), context):
        assert payload.state is not None
        assert payload.event_time is None
        lines = payload.path.read_text().splitlines()
        yield [json.loads(line) for line in lines], payload.state, payload.has_more


def items_of(context: FetchContext, *arguments: str) -> Items:
    return [item for items, _, _ in payloads(context, *arguments) for item in items]


def fails(context: FetchContext, kind: type[OdfError], text: str, *arguments: str) -> OdfError:
    with pytest.raises(kind) as caught:
        list(payloads(context, *arguments))
    assert text in str(caught.value), str(caught.value)
    return caught.value


def query(request: Handler) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(request.path).query))


def send(request: Handler, document: Any, **headers: str) -> None:
    reply(request, 200, json.dumps(document).encode(), **headers)


def rows(first: int, end: int) -> Items:
    return [{"id": number} for number in range(first, end)]


def serve_pages(web: WebServer, items: Items, size: int) -> None:
    """Serve pages by number, offset and cursor."""

    def answer(request: Handler) -> None:
        asked = query(request)
        start = int(asked.get("offset", asked.get("cursor", (int(asked.get("page", 1)) - 1) * size)))
        part = items[start : start + min(size, int(asked.get("limit", size)))]
        after = start + size
        send(request, {"results": part, "total": len(items), "next": after if after < len(items) else None})

    web.answer = answer


def queries(web: WebServer) -> list[dict[str, str]]:
    return [query(request) for request in web.requests]


def test_page_numbers_until_an_empty_page(context: FetchContext, web: WebServer) -> None:
    serve_pages(web, rows(0, 6), 3)
    ((items, state, has_more),) = payloads(context, "--url", f"{web.url}/list?a=%2f", "--page", "page")
    assert items == rows(0, 6)
    assert not has_more
    assert queries(web) == [{"a": "/", "page": str(number)} for number in (1, 2, 3)]
    assert all("a=%2f" in request.path for request in web.requests)
    assert json.loads(state.value).keys() == {"digest"}


def test_unchanged_list_yields_nothing(context: FetchContext, web: WebServer, reporter: Recorder) -> None:
    arguments = ("--url", web.url, "--page", "page")
    serve_pages(web, rows(0, 6), 3)
    ((_, state, _),) = payloads(context, *arguments)
    again = replace(context, state=state)
    assert list(payloads(again, *arguments)) == []
    assert any("no new data" in text for _, text in reporter.lines)
    serve_pages(web, rows(0, 7), 3)
    assert items_of(again, *arguments) == rows(0, 7)
    serve_pages(web, [], 3)
    assert [items for items, _, _ in payloads(again, *arguments)] == [[]]


def test_size_and_total_avoid_a_request(context: FetchContext, web: WebServer) -> None:
    serve_pages(web, rows(0, 8), 3)
    arguments = ("--url", web.url, "--page", "page")
    assert items_of(context, *arguments, "--size", "3", "--limit", "limit") == rows(0, 8)
    assert [asked["page"] for asked in queries(web)] == ["1", "2", "3"]
    assert queries(web)[0]["limit"] == "3"
    web.requests.clear()
    serve_pages(web, rows(0, 6), 3)
    assert items_of(context, *arguments, "--total", "total") == rows(0, 6)
    assert [asked["page"] for asked in queries(web)] == ["1", "2"]


def test_offsets_with_a_server_that_limits_the_page_size(
    context: FetchContext, web: WebServer, reporter: Recorder
) -> None:
    serve_pages(web, rows(0, 8), 3)
    arguments = ("--url", web.url, "--offset", "offset", "--limit", "limit")
    assert items_of(context, *arguments, "--size", "3") == rows(0, 8)
    assert [asked["offset"] for asked in queries(web)] == ["0", "3", "6"]
    web.requests.clear()
    assert items_of(context, *arguments, "--size", "500") == rows(0, 8)
    assert reporter.warnings == [f"{web.url}: the server returns 3 items a page, not 500"]
    web.requests.clear()
    serve_pages(web, rows(0, 2), 3)
    assert items_of(context, *arguments, "--size", "500") == rows(0, 2)
    assert len(web.requests) == 2  # the second one shows that the first page is complete


def test_page_after_a_short_one_may_be_missing_or_the_same(context: FetchContext, web: WebServer) -> None:
    arguments = ("--url", web.url, "--page", "page", "--size", "100")
    web.answer = lambda request: (
        send(request, rows(0, 2)) if query(request)["page"] == "1" else reply(request, 404)
    )
    assert items_of(context, *arguments) == rows(0, 2)
    web.answer = lambda request: send(request, rows(0, 2))
    assert items_of(context, *arguments) == rows(0, 2)


def test_cursors(context: FetchContext, web: WebServer) -> None:
    serve_pages(web, rows(0, 8), 3)
    arguments = ("--url", web.url, "--cursor", "cursor", "--next-cursor", "next", "--items", "results")
    assert items_of(context, *arguments) == rows(0, 8)
    assert queries(web) == [{}, {"cursor": "3"}, {"cursor": "6"}]


def serve_links(web: WebServer, links: dict[str, str | None], in_header: bool = False) -> None:
    """Serve a page for each path, with the link to the next one."""

    def answer(request: Handler) -> None:
        link = links[request.path]
        items = [{"path": request.path}]
        if in_header:
            header = f'<{web.url}/>; rel="first", <{link}>; title="a, b"; rel="last next"'
            send(request, items, **({"Link": header} if link else {}))
        else:
            send(request, {"data": {"items": items}, "links": {"next": link}})

    web.answer = answer


@pytest.mark.parametrize("in_header", [False, True])
def test_next_links(context: FetchContext, web: WebServer, in_header: bool) -> None:
    serve_links(web, {"/a?x=1": "?page=2", "/a?page=2": f"{web.url}/b", "/b": None}, in_header)
    paging = ["--link-header"] if in_header else ["--next", "links.next", "--items", "data.items"]
    items = items_of(context, "--url", f"{web.url}/a?x=1", *paging)
    assert [item["path"] for item in items] == ["/a?x=1", "/a?page=2", "/b"]


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("/a", "the link to the next page leads to an earlier page"),
        ("https://elsewhere.example/b?key=1", "leads to another server: https://elsewhere.example/b"),
        ("//elsewhere.example/b", "leads to another server"),
    ],
)
def test_next_link_in_a_circle_or_to_another_server_is_an_error(
    context: FetchContext, web: WebServer, link: str, problem: str
) -> None:
    serve_links(web, {"/a": "/b", "/b": link})
    fails(context, BadData, problem, "--url", f"{web.url}/a", "--next", "links.next", "--items", "data.items")
    assert len(web.requests) == 2


def test_body_of_a_post_has_the_parameters(context: FetchContext, web: WebServer) -> None:
    bodies: list[Any] = []

    def answer(request: Handler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        bodies.append((request.command, request.headers["Content-Type"], body))
        page = body["variables"]["page"]
        send(request, {"data": {"list": rows(page, page + 1) if page < 3 else []}})

    web.answer = answer
    arguments = ["--method", "POST", "--body", '{"query": "${{ env.TOKEN }}", "variables": {"x": 1}}']
    arguments += ["--page", "variables.page", "--items", "data.list"]
    assert items_of(context, "--url", web.url, *arguments) == rows(1, 3)
    expected = {"query": "s3cret-token", "variables": {"x": 1, "page": 1}}
    assert bodies[0] == ("POST", "application/json", expected)


def test_variables_are_sent_but_not_shown(context: FetchContext, web: WebServer, reporter: Recorder) -> None:
    def answer(request: Handler) -> None:
        if query(request).get("page") == "2":
            reply(request, 200, b"<html><title>No</title><body>bad s3cret-token</body></html>")
        else:
            send(request, rows(0, 1))

    web.answer = answer
    error = fails(
        context,
        BadData,
        "HTML page instead of JSON: 'No bad ***'",
        *("--url", f"{web.url}/?key=${{{{ env.TOKEN }}}}", "--page", "page"),
        *("--header", "X-Key: ${{ env.TOKEN }}"),
    )
    assert web.requests[0].headers["X-Key"] == "s3cret-token"
    assert query(web.requests[0])["key"] == "s3cret-token"
    assert error.where is not None
    assert error.where.endswith("/?key=${{ env.TOKEN }}, page 2")
    web.answer = answer_text(f"<html>{'x' * 92} s3cret-token")  # an excerpt would end within the secret
    cut = fails(context, BadData, "HTML page", "--url", web.url)
    assert "s3cret" not in f"{error} {error.hint} {cut} {reporter.lines}"


def test_position_with_a_secret_is_not_stored(context: FetchContext, web: WebServer) -> None:
    serve_links(web, {"/a?key=s3cret-token": "/b?key=s3cret-token", "/b?key=s3cret-token": None})
    arguments = ["--url", f"{web.url}/a?key=${{{{ env.TOKEN }}}}", "--next", "links.next"]
    arguments += ["--items", "data.items"]
    fails(context, BadData, "contains the value of a variable", *arguments, "--pages-per-batch", "1")
    assert len(items_of(context, *arguments)) == 2


def test_time_windows_until_now(
    context: FetchContext, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [Timestamp.parse("2024-01-03T12:30:00Z")]
    monkeypatch.setattr("odf_engine.ingest.fetch.pages.Timestamp.now", lambda: now[0])
    web.answer = lambda request: send(request, [{"from": query(request)["since"]}])
    arguments = ["--url", web.url, "--window", "since", "until", "--step", "1d", "--start"]
    ((items, state, _),) = payloads(context, *arguments, "2024-01-01T00:00:00Z")
    assert [item["from"][:10] for item in items] == ["2024-01-01", "2024-01-02", "2024-01-03"]
    assert queries(web)[-1] == {"since": "2024-01-03T00:00:00Z", "until": "2024-01-03T12:30:00Z"}
    now[0] = Timestamp.parse("2024-01-03T12:40:00Z")
    web.requests.clear()
    assert len(items_of(replace(context, state=state), *arguments, "2024-01-01T00:00:00Z")) == 1
    assert queries(web) == [{"since": "2024-01-03T12:30:00Z", "until": "2024-01-03T12:40:00Z"}]
    web.requests.clear()
    ((_, state, _),) = payloads(context, *arguments, "2024-01-01")
    assert queries(web)[-1] == {"since": "2024-01-02", "until": "2024-01-03"}  # complete days only
    assert list(payloads(replace(context, state=state), *arguments, "2024-01-01")) == []
    assert len(web.requests) == 2


def test_next_pull_requests_newer_items_only(context: FetchContext, web: WebServer) -> None:
    items = [{"id": 1, "at": 9}, {"id": 2, "at": 10}, {"id": 3, "at": 10}]

    def answer(request: Handler) -> None:
        since, page = int(query(request).get("since", 0)), int(query(request)["page"])
        send(request, [item for item in items if item["at"] >= since][page - 1 : page])

    web.answer = answer
    arguments = ("--url", web.url, "--page", "page", "--since", "since", "--since-field", "at")
    ((got, state, _),) = payloads(context, *arguments)
    assert got == items
    assert json.loads(state.value)["since"] == "10"
    later = replace(context, state=state)
    assert list(payloads(later, *arguments)) == []
    new = [{"id": 4, "at": 10}, {"id": 5, "at": 100}]
    items += new
    ((got, state, _),) = payloads(later, *arguments)
    assert got == new  # an item with the time of an earlier one is not lost, and none is read twice
    assert json.loads(state.value)["since"] == "100"


def test_since_compares_texts_and_rejects_a_mixture(
    context: FetchContext, web: WebServer, reporter: Recorder
) -> None:
    arguments = ("--url", web.url, "--since", "since", "--since-field", "m.at")
    web.answer = lambda request: send(request, [{"m": {"at": text}} for text in ("2024-02", "2023-10")])
    ((_, state, _),) = payloads(context, *arguments)
    assert json.loads(state.value)["since"] == "2024-02"
    assert any("'m.at' are compared as texts" in text for _, text in reporter.lines)
    web.answer = lambda request: send(request, [{"m": {"at": "x"}}, {"m": {"at": 1}}])
    fails(context, BadData, "numbers and other texts, which have no order: 'x' and '1'", *arguments)
    web.answer = lambda request: send(request, [{"m": {}}])
    fails(context, BadData, "an item has no text or number 'm.at' (--since-field)", *arguments)


@pytest.mark.parametrize("since", [False, True])
def test_interrupted_batches_continue_without_duplicates(
    context: FetchContext, web: WebServer, since: bool
) -> None:
    serve_pages(web, rows(0, 10), 2)
    arguments = ["--url", web.url, "--page", "page", "--pages-per-batch", "2"]
    arguments += ["--since", "since", "--since-field", "id"] if since else []
    whole = list(payloads(context, *arguments))
    assert [len(items) for items, _, _ in whole] == [4, 4, 2]
    assert [has_more for _, _, has_more in whole] == [True, True, False]
    interrupted = payloads(context, *arguments)
    _, state, _ = next(interrupted)
    interrupted.close()
    assert len(state.value) < 4096
    web.requests.clear()
    rest = list(payloads(replace(context, state=state), *arguments))
    assert [item for items, _, _ in rest for item in items] == rows(4, 10)
    assert queries(web)[0]["page"] == "3"
    assert "since" not in queries(web)[0]
    assert rest[-1][1] == whole[-1][1]


def test_list_that_shrank_during_an_interruption_is_completed(context: FetchContext, web: WebServer) -> None:
    serve_pages(web, rows(0, 10), 2)
    arguments = ("--url", web.url, "--page", "page", "--pages-per-batch", "2")
    _, state, _ = next(payloads(context, *arguments))
    serve_pages(web, rows(0, 4), 2)
    ((items, state, _),) = payloads(replace(context, state=state), *arguments)
    assert items == []
    assert "position" not in json.loads(state.value)


def test_snapshot_is_not_divided(context: FetchContext, web: WebServer) -> None:
    serve_pages(web, rows(0, 10), 2)
    arguments = ("--url", web.url, "--page", "page", "--pages-per-batch", "1")
    assert len(list(payloads(replace(context, whole_payload=True), *arguments))) == 1


def test_items_that_a_page_repeats_are_dropped(
    context: FetchContext, web: WebServer, reporter: Recorder
) -> None:
    pages = [rows(0, 3), rows(1, 4), rows(4, 6), [{"id": 5}, {"id": 7}], []]
    web.answer = lambda request: send(request, pages[int(query(request)["page"]) - 1])
    assert items_of(context, "--url", web.url, "--page", "page") == [*rows(0, 6), {"id": 7}]
    dropped = f"{web.url}, page 2: dropped the first 2 items, which repeat the end of {web.url}, page 1"
    assert reporter.warnings[0] == dropped
    assert "page 4: dropped the first 1 item" in " ".join(reporter.warnings)
    assert any("page 3 has 2 items, and an earlier page has 3" in text for text in reporter.warnings)
    first = payloads(context, "--url", web.url, "--page", "page", "--pages-per-batch", "1")
    _, state, _ = next(first)
    first.close()
    rest = items_of(replace(context, state=state), "--url", web.url, "--page", "page")
    assert rest == [*rows(3, 6), {"id": 7}]


def answer_text(text: str, **headers: str) -> Callable[[Handler], None]:
    return lambda request: reply(request, 200, text.encode(), **headers)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!DOCTYPE html><style>x</style><h1>Log&nbsp;in</h1>", "HTML page instead of JSON: 'Log in'"),
        ("<?xml version='1.0'?><error>Quota</error>", "XML page instead of JSON: 'Quota'"),
        ("Too many requests", "the page is not JSON: 'Too many requests'"),
        ('{"a": [}', "the page is not JSON: '{\"a\": [}' ("),
        ("", "the page is empty, not JSON"),
        ('{"a": [], "b": []}', "the page has 2 lists (a, b)"),
        ('{"error": "quota"}', "the page has no list: it has error"),
        ("[1, 2]", "item 1 is not an object: '1'"),
        ("3", "the page is not a list: '3'"),
    ],
)
def test_pages_that_are_not_lists_of_objects(
    context: FetchContext, web: WebServer, text: str, problem: str
) -> None:
    web.answer = answer_text(text)
    error = fails(context, BadData, problem, "--url", web.url, "--page", "page")
    assert error.where == f"{web.url}, page 1"


def test_missing_path_of_items_names_the_fields(context: FetchContext, web: WebServer) -> None:
    web.answer = answer_text('{"data": {"rows": []}, "page": 1}')
    arguments = ("--url", web.url, "--items", "data.items")
    fails(context, BadData, "the page has no 'data.items': it has data, page", *arguments)


def test_numbers_keep_their_digits_and_items_are_one_line(context: FetchContext, web: WebServer) -> None:
    web.answer = answer_text('\ufeff{\n "value": 1.10,\n "big": 12345678901234567890123 }')
    for payload in fetch(pages_step("--url", web.url), context):
        assert payload.path.read_text() == '{"value":1.10,"big":12345678901234567890123}\n'


def test_server_that_ignores_the_page_or_never_ends(context: FetchContext, web: WebServer) -> None:
    web.answer = answer_text('[{"id": 1}]')
    problem = "the page equals page 1: the server ignores the parameter 'page'"
    fails(context, BadData, problem, "--url", web.url, "--page", "page")
    web.answer = lambda request: send(request, [query(request)])
    problem = "the list has more than 4 pages (--max-pages)"
    fails(context, BadData, problem, "--url", web.url, "--page", "page", "--max-pages", "4")


def test_busy_server_is_asked_again(context: FetchContext, web: WebServer, reporter: Recorder) -> None:
    def answer(request: Handler) -> None:
        if len(web.requests) in (1, 3):
            reply(request, 429 if len(web.requests) == 1 else 503, Retry_After="0")
        else:
            send(request, rows(0, 1) if query(request)["page"] == "1" else [])

    web.answer = answer
    assert items_of(context, "--url", web.url, "--page", "page") == rows(0, 1)
    assert len(web.requests) == 4
    web.answer = lambda request: reply(request, 429, Retry_After="3600")
    fails(context, SourceUnavailable, "retry after 3,600 s", "--url", web.url, "--page", "page")
    web.answer = lambda request: reply(request, 403)
    error = fails(context, SourceUnavailable, "page 1: the server returned 403", "--url", web.url)
    assert error.hint == "add the required credentials to fetch.args (--header)"


def test_rate_limits_requests_and_cancellation_ends_the_pause(
    context: FetchContext, web: WebServer, reporter: Recorder
) -> None:
    serve_pages(web, rows(0, 9), 3)
    arguments = ("--url", web.url, "--page", "page", "--rate")
    reporter.on_amount = lambda amounts: reporter.cancel()
    with pytest.raises(Cancelled):
        list(payloads(context, *arguments, "1/h"))
    assert len(web.requests) == 1


def test_untrusted_source_reaches_public_addresses_only(context: FetchContext, web: WebServer) -> None:
    untrusted = replace(context, untrusted=True)
    fails(untrusted, SourceUnavailable, "127.0.0.1 is not a public address", "--url", web.url)
    assert web.requests == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "the following arguments are required: --url"),
        (("--url", "ftp://x/"), "argument --url: 'ftp://x/' is not a URL of http or https"),
        (("--url", "http://x", "--page", "p", "--offset", "o"), "--page contradicts --offset"),
        (("--url", "http://x", "--offset", "o"), "--offset requires --limit PARAM and --size N"),
        (("--url", "http://x", "--cursor", "c"), "--cursor requires --next-cursor"),
        (("--url", "http://x", "--next-cursor", "c"), "--next-cursor requires --cursor"),
        (("--url", "http://x", "--since", "s"), "--since requires --since-field"),
        (("--url", "http://x", "--header", "x"), "argument --header: 'x' is not a header"),
        (("--url", "http://x", "--rate", "0/s"), "argument --rate: '0/s' is not a rate"),
        (("--url", "http://x", "--body", "{}"), "--body requires --method POST"),
        (("--url", "http://x", "--pages", "3"), "unrecognized arguments: --pages 3"),
    ],
)
def test_invalid_arguments_are_errors_of_the_manifest(
    context: FetchContext, arguments: tuple[str, ...], problem: str
) -> None:
    error = fails(context, InvalidManifest, problem, *arguments)
    assert error.where == "fetch.args"


def test_command_and_set_variables_are_rejected(context: FetchContext) -> None:
    for step in (
        Container("odf/pages", command=["sh"], args=["--url", "http://x"]),
        Container("odf/pages", args=["--url", "http://x"], env=[EnvVar("A", "1")]),
    ):
        with pytest.raises(InvalidManifest):
            next(fetch(step, context))


SOURCE = """
fetch:
  kind: Container
  image: odf/pages:1
  args: [--url, "{url}/list", --page, page, --pages-per-batch, "1"]
read:
  kind: NdJson
  schema: [id BIGINT]
merge:
  kind: Append
"""


def test_pull_that_was_interrupted_continues_after_its_commits(pulled: Pulled, web: WebServer) -> None:
    serve_pages(web, rows(0, 6), 2)
    pulled.add(SOURCE.format(url=web.url))
    working = web.answer

    def fail_after_first_commit(request: Handler) -> None:
        page = int(query(request)["page"])
        working(request) if page < 3 else reply(request, 400)

    web.answer = fail_after_first_commit
    with pytest.raises(SourceUnavailable, match="page 3: the server returned 400"):
        pulled.pull()
    assert [row for (row,) in pulled.rows("id")] == [0, 1]
    web.answer = working
    pulled.pull()
    assert [row for (row,) in pulled.rows("id")] == list(range(6))
    head = pulled.dataset.head()
    state = pulled.newest().new_source_state
    assert state is not None
    assert "position" not in state.value
    serve_pages(web, [], 2)
    pulled.pull()
    assert pulled.dataset.head() != head  # the state of the empty list, and no rows
    assert len(pulled.rows("id")) == 6


def test_invalid_arguments_are_reported_when_a_dataset_is_added(pulled: Pulled) -> None:
    with pytest.raises(InvalidManifest, match="unrecognized arguments: --pages-per-pull 1"):
        pulled.add(SOURCE.replace("per-batch", "per-pull").format(url="http://x"))


def test_trust_in_pages_is_trust_in_the_url(pulled: Pulled, web: WebServer) -> None:
    source = SOURCE.replace('"1"]', '"1", --header, "Key: ${{{{ env.TOKEN }}}}"]')
    entry = pulled.add(source.format(url=web.url))
    runs = [(run.kind, run.text) for run in Trust(pulled.workspace).list_executions(entry)]
    assert runs == [
        ("url", f"{web.url}/list"),
        ("header", "Key: ${{ env.TOKEN }}"),
        ("variable", "TOKEN"),
    ]


def odata(url: str, part: Items, start: int, more: bool) -> Any:
    return {"value": part, **({"@odata.nextLink": f"{url}/list?offset={start + len(part)}"} if more else {})}


API_STYLES: dict[str, Callable[[str, Items, int, bool], Any]] = {
    "next link": lambda url, part, start, more: {
        "next": f"{url}/list?offset={start + 2}" if more else None, "previous": None, "results": part},
    "relative link": lambda url, part, start, more: {
        "success": True, "result": {"records": part, "_links": {"next": f"/list?offset={start + 2}"}}},
    "links object": lambda url, part, start, more: {
        "_embedded": {"rows": part},
        "_links": {"next": {"href": f"{url}/list?offset={start + 2}"}} if more else {}},
    "odata": odata,
    "cursor": lambda url, part, start, more: {
        "items": part, "nextPageToken": f"c{start + 2}" if more else ""},
    "page number": lambda url, part, start, more: {
        "meta": {"found": 5, "page": start // 2 + 1, "limit": 2}, "results": part},
    "offset": lambda url, part, start, more: {"total_count": 5, "offset": start, "limit": 2, "results": part},
    "two lists": lambda url, part, start, more: [
        {"page": start // 2 + 1, "per_page": "2", "total": 5}, part or None],
}  # fmt: skip


@pytest.mark.parametrize("style", API_STYLES)
def test_inferred_paging_reads_all_items(style: str, context: FetchContext, web: WebServer) -> None:
    def answer(request: Handler) -> None:
        asked = query(request)
        start = int(asked.get("offset", asked.get("pageToken", "c0").removeprefix("c")))
        start += 2 * (int(asked.get("page", 1)) - 1)
        send(request, API_STYLES[style](web.url, rows(start, min(start + 2, 5)), start, start + 2 < 5))

    web.answer = answer
    url = f"{web.url}/list"
    found = infer_file(
        download_sample(url, context.config, context.reporter), FileChoices(), context.reporter
    )
    assert (found.kind, [column.name for column in found.columns]) == ("NdJson", ["id"])
    assert items_of(context, "--url", url, *found.paging) == rows(0, 5)
    (manifest,) = read_manifests(manifest_text(url, "my.list", found), "list.yaml")
    (source, *_) = manifest.metadata
    assert isinstance(source, SetPollingSource)
    assert source.fetch == pages_step("--url", url, *found.paging)


def test_complete_lists_have_no_paging(context: FetchContext, web: WebServer) -> None:
    for document in ({"total": 2, "rows": rows(0, 2)}, rows(0, 2), {"data": rows(0, 2), "page": 1}):
        web.answer = lambda request, document=document: send(request, document)
        sample = download_sample(f"{web.url}/list.json", context.config, context.reporter)
        found = infer_file(sample, FileChoices(), context.reporter)
        assert (found.kind, found.paging, found.complete) == ("Json", (), True)
