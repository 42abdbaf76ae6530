from __future__ import annotations

import tempfile
import threading
import time
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from odf_engine.errors import Cancelled, InvalidManifest, SourceUnavailable, Unsupported
from odf_engine.ingest.fetch import FetchContext, Payload, fetch
from odf_engine.metadata.model import FromPath, FromSystemTime, RequestHeader, SourceState, Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.config import FetchConfig
from odf_engine.workspace.workspace import Workspace
from tests.ingest.conftest import WebServer, reply
from tests.ingest.recorder import Recorder

MODIFIED = Timestamp.parse("2024-03-01T12:00:00Z")
HTTP_DATE = format_datetime(MODIFIED.to_datetime(), usegmt=True)


def get(
    workspace: Workspace,
    step: Url,
    reporter: Recorder,
    state: SourceState | None = None,
    *,
    untrusted: bool = False,
    environment: dict[str, str] | None = None,
    **config: float | str,
) -> Payload | None:
    """Fetches in a job's folder of its own; the dataset may read the variable TOKEN."""
    job = Path(tempfile.mkdtemp(dir=workspace.odf))
    context = FetchContext(
        resolve=workspace.resolve_path,
        root=workspace.folder,
        dataset=None,  # type: ignore[arg-type] - not looked at for a URL
        state=state,
        job=job,
        config=FetchConfig(**config),  # type: ignore[arg-type]
        reporter=reporter,
        environment=environment or {},
        allowed=["TOKEN"],
        name="my.data",
        untrusted=untrusted,
        downloads=workspace.odf / "cache" / "downloads",
    )
    return next(fetch(step, context), None)


def test_etag_and_last_modified(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    web.answer = lambda request: reply(request, 200, b"a,b\n", ETag='"one"', Last_Modified=HTTP_DATE)
    payload = get(workspace, Url(web.url + "/data.csv"), reporter)
    assert payload is not None
    assert payload.path.read_bytes() == b"a,b\n"
    assert payload.state == SourceState("default", "odf/etag", '"one"')
    assert payload.event_time == MODIFIED
    assert reporter.amounts["bytes"] == 4

    web.answer = lambda request: reply(request, 200, b"a,b\n", Last_Modified=HTTP_DATE)
    payload = get(workspace, Url(web.url, event_time=FromSystemTime()), reporter)
    assert payload is not None
    assert payload.state == SourceState("default", "odf/last-modified", "2024-03-01T12:00:00Z")
    assert payload.event_time is None

    web.answer = lambda request: reply(request, 200, b"a,b\n")
    payload = get(workspace, Url(web.url), reporter)
    assert payload is not None
    assert payload.state is None
    assert payload.event_time is None


@pytest.mark.parametrize(
    ("state", "header", "value"),
    [
        (SourceState("default", "odf/etag", 'W/"one"'), "If-None-Match", 'W/"one"'),
        (SourceState("default", "odf/last-modified", "2024-03-01T12:00:00Z"), "If-Modified-Since", HTTP_DATE),
    ],
)
def test_asks_for_what_changed(
    workspace: Workspace, web: WebServer, reporter: Recorder, state: SourceState, header: str, value: str
) -> None:
    web.answer = lambda request: reply(request, 304)
    assert get(workspace, Url(web.url), reporter, state) is None
    assert web.requests[0].headers[header] == value
    # A server that ignores the condition, but says the same state.
    web.answer = lambda request: reply(request, 200, b"a", ETag='W/"one"', Last_Modified=HTTP_DATE)
    if state.kind == "odf/etag":
        assert get(workspace, Url(web.url), reporter, state) is None
    else:
        assert get(workspace, Url(web.url), reporter, state) is not None


def test_retries_what_may_pass(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        match len(web.requests):
            case 1:
                reply(request, 503, b"busy", Retry_After="0")
            case 2:
                reply(request, 200, b"only ten..", Content_Length="100")
            case _:
                reply(request, 200, b"whole")

    web.answer = answer
    payload = get(workspace, Url(web.url), reporter)
    assert payload is not None
    assert payload.path.read_bytes() == b"whole"
    assert len(web.requests) == 3
    assert "503" in reporter.warnings[0]
    assert "10 of 100 bytes" in reporter.warnings[1]


@pytest.mark.parametrize(
    ("status", "attempts", "hint"), [(404, 1, "fetch.url"), (403, 1, "headers"), (500, 3, "later")]
)
def test_gives_up(
    workspace: Workspace, web: WebServer, reporter: Recorder, status: int, attempts: int, hint: str
) -> None:
    web.answer = lambda request: reply(request, status, Retry_After="0")
    with pytest.raises(SourceUnavailable, match=f"{web.url}/x.csv: the server answered {status}") as caught:
        get(workspace, Url(web.url + "/x.csv"), reporter, retries=2)
    assert hint in (caught.value.hint or "")
    assert len(web.requests) == attempts


def test_waits_no_longer_than_it_makes_sense(
    workspace: Workspace, web: WebServer, reporter: Recorder
) -> None:
    web.answer = lambda request: reply(request, 503, Retry_After="3600")
    with pytest.raises(SourceUnavailable):
        get(workspace, Url(web.url), reporter)
    assert len(web.requests) == 1


def test_nobody_there(workspace: Workspace, reporter: Recorder) -> None:
    with pytest.raises(
        SourceUnavailable, match=r"http://127.0.0.1:9/x: the connection failed: Connection refused"
    ):
        get(workspace, Url("http://127.0.0.1:9/x"), reporter, retries=0)


def test_silent_server(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    held = threading.Event()
    web.answer = lambda request: held.wait(5) and None
    with pytest.raises(SourceUnavailable, match="did not answer in time"):
        get(
            workspace,
            Url(web.url),
            reporter,
            retries=0,
            connect_timeout_seconds=0.2,
            read_timeout_seconds=0.2,
        )
    held.set()


def test_cancel_while_the_server_dawdles(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000000")
        request.end_headers()
        request.wfile.write(b"x" * 300_000)
        held.wait(10)

    held = threading.Event()
    web.answer = answer
    reporter.on_amount = lambda amounts: threading.Timer(0.05, reporter.cancel).start()
    begun = time.monotonic()
    with pytest.raises(Cancelled):
        get(workspace, Url(web.url), reporter)
    assert time.monotonic() - begun < 2
    held.set()


def test_redirects_keep_secrets_at_home(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        if request.path == "/start":
            reply(request, 302, Location="/same-host")
        elif request.path == "/same-host":
            reply(request, 302, Location=web.url.replace("127.0.0.1", "localhost") + "/other-host")
        else:
            reply(request, 200, b"data")

    web.answer = answer
    login = web.url.replace("://", "://me:secret@")
    step = Url(login + "/start", headers=[RequestHeader("X-Key", "k")])
    assert get(workspace, step, reporter) is not None
    sent = [(request.headers["X-Key"], request.headers["Authorization"]) for request in web.requests]
    assert sent == [("k", "Basic bWU6c2VjcmV0"), ("k", "Basic bWU6c2VjcmV0"), (None, None)]
    assert "secret" not in str(reporter.lines)

    web.answer = lambda request: reply(request, 302, Location=web.url + "/again")
    with pytest.raises(SourceUnavailable, match="302"):
        get(workspace, Url(web.url), reporter)
    web.answer = lambda request: reply(request, 302, Location="file:///etc/passwd")
    with pytest.raises(SourceUnavailable, match=r"302 .*file:///etc/passwd.* is not allowed"):
        get(workspace, Url(web.url), reporter)


def test_local_files(workspace: Workspace, reporter: Recorder) -> None:
    path = workspace.folder / "data x.csv"
    path.write_bytes(b"a,b\n")
    payload = get(workspace, Url("data x.csv"), reporter)
    assert payload is not None
    assert payload.path == path
    assert payload.state is not None
    assert payload.state.kind == "odf/last-modified"
    assert Timestamp.parse(payload.state.value) == payload.event_time
    assert get(workspace, Url("file:data%20x.csv"), reporter, payload.state) is None
    assert get(workspace, Url(path.as_uri()), reporter, payload.state) is None
    with pytest.raises(SourceUnavailable, match=r"missing\.csv: there is no such file"):
        get(workspace, Url("file:missing.csv"), reporter)
    with pytest.raises(SourceUnavailable, match="is not a file"):
        get(workspace, Url(str(workspace.folder)), reporter)


def test_what_cannot_be_fetched(workspace: Workspace, reporter: Recorder, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="gopher"):
        get(workspace, Url("gopher://example.com/x"), reporter)
    with pytest.raises(InvalidManifest, match="FromPath"):
        get(workspace, Url("x.csv", event_time=FromPath("(.*)")), reporter)
