"""Downloads over HTTP that break off, and go on."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler

import pytest

from odf_engine.errors import BadData, Cancelled, SourceUnavailable
from odf_engine.metadata.model import RequestHeader, SourceState, Url
from odf_engine.workspace.workspace import Workspace
from tests.ingest.conftest import WebServer, reply
from tests.ingest.fetching import HTTP_DATE, MODIFIED, get
from tests.ingest.recorder import Recorder

pytestmark = pytest.mark.net

BODY = bytes(range(256)) * 4_000
OLD = {"Last_Modified": HTTP_DATE}


def ranged(request: BaseHTTPRequestHandler, body: bytes, cut: int | None = None, **validator: str) -> None:
    """Sends the part that is asked for, of which only so many bytes arrive."""
    first, status, headers = 0, 200, {}
    value = next((text for text in validator.values() if not text.startswith("W/")), None)
    if (asked := request.headers["Range"]) and request.headers["If-Range"] == value:
        first, status = int(asked.removeprefix("bytes=").removesuffix("-")), 206
        headers = {"Content_Range": f"bytes {first}-{len(body) - 1}/{len(body)}"}
        validator = {name: text for name, text in validator.items() if name == "ETag"}
    length = str(len(body) - first)
    reply(
        request,
        status,
        body[first : first + (cut or len(body))],
        Content_Length=length,
        **headers,
        **validator,
    )


@pytest.mark.parametrize("validator", [{"ETag": '"one"'}, OLD, {"ETag": 'W/"weak"', **OLD}, {}])
def test_broken_download_resumes_if_the_version_is_known(
    workspace: Workspace, web: WebServer, reporter: Recorder, validator: dict[str, str]
) -> None:
    seen: list[int] = []
    reporter.on_amount = lambda amounts: seen.append(amounts["bytes"])
    cuts = iter([300_000, 300_000, None] if validator else [300_000, None])
    web.answer = lambda request: ranged(request, BODY, next(cuts), **validator)
    payload = get(workspace, Url(web.url), reporter)
    assert payload is not None
    assert payload.path.read_bytes() == BODY
    sent = [(each.headers["Range"], each.headers["If-Range"]) for each in web.requests]
    if validator:
        value = list(validator.values())[-1]
        assert sent == [(None, None), ("bytes=300000-", value), ("bytes=600000-", value)]
        assert seen == sorted(seen)
        assert payload.state is not None
        assert payload.event_time == (MODIFIED if validator.get("Last_Modified") else None)
    else:
        assert sent == [(None, None), (None, None)]
    assert reporter.amounts == {"bytes": len(BODY), "total_bytes": len(BODY)}
    assert all("closed after" in text for text in reporter.warnings)


def test_next_pull_resumes_the_download(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    step = Url(web.url + "/x", headers=[RequestHeader("Accept", "text/csv")])
    web.answer = lambda request: ranged(request, BODY, 300_000, ETag='"one"')
    with pytest.raises(SourceUnavailable, match="300,000 of 1,024,000 bytes"):
        get(workspace, step, reporter, retries=0)
    kept = list((workspace.odf / "cache" / "downloads").iterdir())
    assert len(kept) == 2
    # Another header may mean other data.
    web.answer = lambda request: ranged(request, BODY, ETag='"one"')
    assert get(workspace, Url(web.url + "/x"), reporter) is not None
    assert web.requests[-1].headers["Range"] is None
    payload = get(workspace, step, reporter)
    assert payload is not None
    assert payload.path.read_bytes() == BODY
    assert web.requests[-1].headers["Range"] == "bytes=300000-"
    # What was downloaded as a whole is never used again.
    payload = get(workspace, step, reporter)
    assert payload is not None
    assert web.requests[-1].headers["Range"] is None
    assert not any((workspace.odf / "cache" / "downloads").iterdir())


def test_cancelled_download_is_resumed(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    held = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        ranged(request, BODY, 300_000, ETag='"one"')
        held.wait(10)

    web.answer = answer
    reporter.on_amount = lambda amounts: amounts["bytes"] == 300_000 and reporter.cancel()
    with pytest.raises(Cancelled):
        get(workspace, Url(web.url), reporter)
    held.set()
    web.answer = lambda request: ranged(request, BODY, ETag='"one"')
    assert get(workspace, Url(web.url), Recorder()) is not None
    assert web.requests[-1].headers["Range"] == "bytes=300000-"


def test_changed_source_restarts_the_download(
    workspace: Workspace, web: WebServer, reporter: Recorder
) -> None:
    web.answer = lambda request: ranged(
        request, BODY if len(web.requests) == 1 else b"new", 300_000, ETag=f'"{len(web.requests)}"'
    )
    payload = get(workspace, Url(web.url), reporter)
    assert payload is not None
    assert payload.path.read_bytes() == b"new"
    assert payload.state == SourceState("default", "odf/etag", '"2"')
    assert any("restarting" in text for _, text in reporter.lines)


@pytest.mark.parametrize(
    "oddity", ["a different range", "another version", "another length", "no version", "416"]
)
def test_mismatched_range_response_restarts_the_download(
    workspace: Workspace, web: WebServer, reporter: Recorder, oddity: str
) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        if len(web.requests) != 2:
            ranged(request, BODY, 300_000 if len(web.requests) == 1 else None, ETag='"one"')
        elif oddity == "416":
            reply(request, 416, Content_Range="bytes */10")
        else:
            first = 0 if oddity == "a different range" else 300_000
            length = 1_024_001 if oddity == "another length" else 1_024_000
            etag = {"no version": {}, "another version": {"ETag": '"two"'}}.get(oddity, {"ETag": '"one"'})
            part = f"bytes {first}-{length - 1}/{length}"
            reply(request, 206, BODY[first:], Content_Range=part, **etag)

    web.answer = answer
    payload = get(workspace, Url(web.url), reporter)
    assert payload is not None
    assert payload.path.read_bytes() == BODY
    assert [each.headers["Range"] for each in web.requests] == [None, "bytes=300000-", None]


def test_failed_attempts_with_progress_do_not_use_up_retries(
    workspace: Workspace, web: WebServer, reporter: Recorder
) -> None:
    web.answer = lambda request: ranged(request, BODY * 5, 1_100_000, ETag='"one"')
    payload = get(workspace, Url(web.url), reporter, retries=1)
    assert payload is not None
    assert payload.path.read_bytes() == BODY * 5
    assert len(web.requests) == 5


@pytest.mark.parametrize("length", [5, 0])
def test_body_longer_than_content_length_is_rejected(
    workspace: Workspace, web: WebServer, reporter: Recorder, length: int
) -> None:
    web.answer = lambda request: reply(request, 200, b"0123456789", Content_Length=str(length), ETag='"one"')
    with pytest.raises(BadData, match=f"the server sent more than the {length} bytes of its Content-Length"):
        get(workspace, Url(web.url), reporter)
    assert len(web.requests) == 1
    assert not any((workspace.odf / "cache" / "downloads").iterdir())


def test_truncated_chunked_body_is_retried(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    def chunked(request: BaseHTTPRequestHandler) -> None:
        request.protocol_version = "HTTP/1.1"
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        whole = b"5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"
        request.wfile.write(whole[:15] if len(web.requests) == 1 else whole)
        request.close_connection = True

    web.answer = chunked
    payload = get(workspace, Url(web.url), reporter)
    assert payload is not None
    assert payload.path.read_bytes() == b"0123456789"
    assert len(web.requests) == 2
