from __future__ import annotations

import errno
import ssl
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from odf_engine.errors import BadData, Cancelled, InvalidManifest, OdfError, SourceUnavailable, Unsupported
from odf_engine.ingest.fetch.model import require_readable
from odf_engine.metadata.model import FilesGlob, FromPath, FromSystemTime, RequestHeader, SourceState, Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net import address_policy
from odf_engine.workspace.workspace import Workspace
from tests.ingest.conftest import WebServer, reply, web_server
from tests.ingest.fetching import HTTP_DATE, MODIFIED, get
from tests.ingest.ftp_server import make_certificate
from tests.ingest.recorder import Recorder
from tests.waiting import run_with_timeout

pytestmark = pytest.mark.net


def test_etag_or_last_modified_becomes_source_state(
    workspace: Workspace, web: WebServer, reporter: Recorder
) -> None:
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
def test_stored_state_is_sent_as_request_condition(
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


def test_temporary_failures_are_retried(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
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
def test_only_server_errors_are_retried_before_failing(
    workspace: Workspace, web: WebServer, reporter: Recorder, status: int, attempts: int, hint: str
) -> None:
    web.answer = lambda request: reply(request, status, Retry_After="0")
    with pytest.raises(SourceUnavailable, match=f"{web.url}/x.csv: the server returned {status}") as caught:
        get(workspace, Url(web.url + "/x.csv"), reporter, retries=2)
    assert hint in (caught.value.hint or "")
    assert len(web.requests) == attempts


def test_retry_after_is_honoured_up_to_the_longest_pause(
    workspace: Workspace, web: WebServer, reporter: Recorder
) -> None:
    web.answer = lambda request: reply(request, 503, Retry_After="3600")
    with pytest.raises(SourceUnavailable, match=r"503 .*; retry after 3,600 s") as caught:
        get(workspace, Url(web.url), reporter, longest_pause_seconds=60)
    assert "fetch.longestPauseSeconds" in str(caught.value.hint)
    assert len(web.requests) == 1
    web.requests.clear()

    def answer(request: BaseHTTPRequestHandler) -> None:
        soon = datetime.now(UTC) + timedelta(seconds=1.5)  # an HTTP date has whole seconds
        match len(web.requests):
            case 1:
                reply(request, 429, Retry_After=format_datetime(soon, usegmt=True))
            case 2:
                reply(request, 429, Retry_After="0")
            case _:
                reply(request, 200, b"whole")

    web.answer = answer
    began = time.monotonic()
    assert get(workspace, Url(web.url), reporter, longest_pause_seconds=60) is not None
    assert time.monotonic() - began > 0.4
    assert ["429" in text and "retrying in" in text for text in reporter.warnings] == [True, True]


def test_pauses_between_retries_grow(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    web.answer = lambda request: reply(request, 500)
    reporter.on_line = lambda text: reporter.cancel() if reporter.warnings[2:] else None
    with pytest.raises(Cancelled):
        get(workspace, Url(web.url), reporter, longest_pause_seconds=60)
    pauses = [float(text.split()[-2]) for text in reporter.warnings]
    assert 0.4 < pauses[0] < 0.7
    assert 0.9 < pauses[1] < 1.4
    assert 1.9 < pauses[2] < 2.6


def test_refused_connection_is_reported(workspace: Workspace, reporter: Recorder) -> None:
    with pytest.raises(
        SourceUnavailable, match=r"http://127.0.0.1:9/x: connection failed: Connection refused"
    ):
        get(workspace, Url("http://127.0.0.1:9/x"), reporter, retries=0)


def test_silent_server_times_out(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    held = threading.Event()
    web.answer = lambda request: held.wait(600) and None
    with pytest.raises(SourceUnavailable, match="no response: timeout"):
        get(
            workspace,
            Url(web.url),
            reporter,
            retries=0,
            connect_timeout_seconds=0.2,
            read_timeout_seconds=0.2,
        )
    held.set()


def test_stalled_download_can_be_cancelled(workspace: Workspace, web: WebServer, reporter: Recorder) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000000")
        request.end_headers()
        request.wfile.write(b"x" * 300_000)
        held.wait(600)

    held = threading.Event()
    web.answer = answer
    reporter.on_amount = lambda amounts: threading.Timer(0.05, reporter.cancel).start()
    with pytest.raises(Cancelled):
        run_with_timeout(lambda: get(workspace, Url(web.url), reporter, read_timeout_seconds=600))
    held.set()


def test_redirects_do_not_send_credentials_to_other_hosts(
    workspace: Workspace, web: WebServer, reporter: Recorder
) -> None:
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
    web.answer = lambda request: reply(request, 302, Location="ftp://127.0.0.1:9/x")
    with pytest.raises(SourceUnavailable, match="302: redirect to ftp, which is not followed"):
        get(workspace, Url(web.url), reporter)


def test_redirect_loops_fail_and_redirect_bodies_are_not_read(
    workspace: Workspace, web: WebServer, reporter: Recorder
) -> None:
    web.answer = lambda request: reply(request, 302, Location=f"/{len(web.requests)}")
    with pytest.raises(SourceUnavailable, match="redirect loop, or more than 3 redirects"):
        get(workspace, Url(web.url), reporter, max_redirects=3)
    assert len(web.requests) == 4
    # A huge page beside the redirect is not read.
    sent: list[int] = []
    web.answer = lambda request: (
        reply(request, 200, b"data") if request.path == "/there" else _huge(request, "/there", sent)
    )
    assert get(workspace, Url(web.url), reporter) is not None
    assert len(sent) < 1_000


def _huge(request: BaseHTTPRequestHandler, location: str, sent: list[int]) -> None:
    request.send_response(302)
    request.send_header("Location", location)
    request.end_headers()
    with suppress(OSError):
        sent.extend(request.wfile.write(bytes(1 << 16)) for _ in range(1_000))


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        ("Friday, 01-Mar-24 12:00:00 GMT", MODIFIED),
        ("Fri Mar  1 12:00:00 2024", MODIFIED),
        ("Fri, 01 Mar 2024 12:00:00 -0000", MODIFIED),
        ("yesterday", None),
        ("0", None),
    ],
)
def test_last_modified_dates_are_parsed_or_ignored(
    workspace: Workspace, web: WebServer, reporter: Recorder, told: str, seen: Timestamp | None
) -> None:
    web.answer = lambda request: reply(request, 200, b"a", Last_Modified=told)
    payload = get(workspace, Url(web.url), reporter)
    assert payload is not None
    assert payload.event_time == seen
    assert (payload.state is None) == (seen is None)


def test_redirect_from_https_to_http_is_refused(
    workspace: Workspace,
    web: WebServer,
    reporter: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate = make_certificate(tmp_path / "localhost.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    plain = web.url
    with web_server(context) as secure:
        secure.answer = lambda request: reply(request, 302, Location=plain + "/data.csv")
        with pytest.raises(SourceUnavailable, match="invalid certificate: self-signed") as caught:
            get(workspace, Url(secure.url), reporter)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with pytest.raises(SourceUnavailable, match="302: redirect from https to http") as caught:
            get(workspace, Url(secure.url), reporter)
        assert "use the http URL" in str(caught.value.hint)
        assert web.requests == []
        secure.answer = lambda request: reply(request, 200, b"data")
        web.answer = lambda request: reply(request, 302, Location=secure.url)
        assert get(workspace, Url(web.url), reporter) is not None


def test_variables_in_url_and_headers_are_filled_and_hidden(
    workspace: Workspace, web: WebServer, reporter: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "of-this-process")
    monkeypatch.setenv("OTHER", "never")
    web.answer = lambda request: reply(request, 500, Retry_After="0")
    step = Url(
        web.url + "/x?key=${{ env.TOKEN }}", headers=[RequestHeader("X-Key", "Bearer ${{ env.TOKEN }}")]
    )
    with pytest.raises(SourceUnavailable) as caught:
        get(workspace, step, reporter, environment={"TOKEN": "s3cr t"}, retries=1)
    assert [each.path for each in web.requests] == ["/x?key=s3cr%20t"] * 2
    assert web.requests[0].headers["X-Key"] == "Bearer s3cr t"
    said = f"{caught.value}{caught.value.hint}{reporter.lines}"
    assert "x?key=${{ env.TOKEN }}: the server returned 500" in said
    assert "s3cr" not in said

    web.answer = lambda request: reply(request, 302, Location="gopher://x/" + request.path)
    with pytest.raises(SourceUnavailable) as caught:
        get(workspace, step, reporter)
    assert web.requests[-1].path == "/x?key=of-this-process"
    assert "of-this-process" not in f"{caught.value}{reporter.lines}"
    with pytest.raises(
        SourceUnavailable, match=r"my\.data is not allowed to read the environment variable OTHER"
    ):
        get(workspace, Url(web.url + "/${{ env.OTHER }}"), reporter)
    with pytest.raises(
        InvalidManifest, match="variables are supported in URLs and headers only, not in paths"
    ):
        get(workspace, FilesGlob("${{ env.TOKEN }}/*"), reporter)


def test_untrusted_source_reaches_public_addresses_only(
    workspace: Workspace, web: WebServer, reporter: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.answer = lambda request: reply(request, 200, b"inside")
    for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "169.254.169.254", "[::ffff:127.0.0.1]"):
        url = web.url.replace("127.0.0.1", host)
        with pytest.raises(SourceUnavailable, match="is not a public address") as caught:
            get(workspace, Url(url), reporter, untrusted=True)
        assert "--private-network" in str(caught.value.hint)
    assert web.requests == []

    # As if this machine's first address were a public one.
    monkeypatch.setattr(address_policy, "is_public_address", lambda address: address == "127.0.0.1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.2:9")
    assert get(workspace, Url(web.url), reporter, untrusted=True) is not None
    web.answer = lambda request: reply(request, 302, Location="http://127.0.0.2/")
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.2 is not a public address"):
        get(workspace, Url(web.url), reporter, untrusted=True)


def test_own_source_is_not_redirected_from_a_public_server_to_a_private_one(
    workspace: Workspace, web: WebServer, reporter: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        if request.path == "/x":
            reply(request, 302, Location=target)
        else:
            reply(request, 200, b"inside")

    web.answer = answer
    target = web.url.replace("127.0.0.1", "localhost") + "/inside"
    assert get(workspace, Url(web.url + "/x"), reporter) is not None  # both are private
    target = web.url.replace("127.0.0.1", "127.0.0.2") + "/inside"
    monkeypatch.setattr(address_policy, "is_public_address", lambda address: address == "127.0.0.1")
    with pytest.raises(SourceUnavailable, match=r"redirect from a public server to 127\.0\.0\.2 in a"):
        get(workspace, Url(web.url + "/x"), reporter)
    target = web.url + "/inside"
    assert get(workspace, Url(web.url + "/x"), reporter) is not None


@pytest.mark.parametrize("etag", ['"s3cr t"', '"v1-s3cr%20t"', 'W/"s3cr t-2"'])
def test_variable_that_a_server_repeats_is_not_stored(
    workspace: Workspace, web: WebServer, reporter: Recorder, etag: str
) -> None:
    web.answer = lambda request: reply(request, 200, b"data", ETag=etag, Content_Length="4")
    step = Url(web.url, headers=[RequestHeader("X-Key", "${{ env.TOKEN }}")])
    variables = {"TOKEN": "s3cr t"}
    payload = get(workspace, step, reporter, environment=variables)
    assert payload is not None and payload.state is not None
    assert payload.state.kind == "odf/etag" and "s3cr" not in payload.state.value
    # It still identifies the version, also for chains that have the complete ETag.
    assert get(workspace, step, reporter, payload.state, environment=variables) is None
    stored = SourceState("default", "odf/etag", etag)
    assert get(workspace, step, reporter, stored, environment=variables) is None

    web.answer = lambda request: reply(request, 200, b"da", ETag=etag, Content_Length="4")
    with pytest.raises(SourceUnavailable):
        get(workspace, step, reporter, environment=variables, retries=0)
    kept = [path.read_bytes() for path in (workspace.odf / "cache").rglob("*") if path.is_file()]
    assert not any(b"s3cr" in data for data in kept)


def test_local_file_is_fetched_by_path_or_file_url(workspace: Workspace, reporter: Recorder) -> None:
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
    with pytest.raises(SourceUnavailable, match=r"missing\.csv: file not found"):
        get(workspace, Url("file:missing.csv"), reporter)
    for mark, escaped in (("#", "%23"), ("?", "%3F")):
        (workspace.folder / f"a{mark}1.csv").write_bytes(b"a\n")
        with pytest.raises(InvalidManifest) as caught:
            get(workspace, Url(f"file:a{mark}1.csv"), reporter)
        assert f"write {escaped} instead of {mark}" in (caught.value.hint or "")
        for url in (f"file:a{escaped}1.csv", f"a{mark}1.csv"):
            found = get(workspace, Url(url), reporter)
            assert found is not None and found.path.name == f"a{mark}1.csv"
    with pytest.raises(SourceUnavailable, match="not a regular file"):
        get(workspace, Url(str(workspace.folder)), reporter)


def test_disk_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, **_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(Path, "stat", fail)
    with pytest.raises(OdfError, match=r"data\.csv: a file cannot be read or written: Input/output error"):
        require_readable(tmp_path / "data.csv")


def test_unsupported_and_invalid_urls_are_rejected(
    workspace: Workspace, reporter: Recorder, tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match="gopher"):
        get(workspace, Url("gopher://example.com/x"), reporter)
    with pytest.raises(InvalidManifest, match="invalid URL"):
        get(workspace, Url("http://[::1/x"), reporter)
    for url in ("http://127.0.0.1:port/x", "http://127.0.0.1/\r\nX: y", "http:///x", "ftp://h:port/x"):
        with pytest.raises(SourceUnavailable):
            get(workspace, Url(url), reporter, retries=0)


def test_event_time_is_extracted_from_the_url(
    workspace: Workspace, web: WebServer, reporter: Recorder
) -> None:
    day, later = Timestamp.parse("2024-03-01T00:00:00Z"), Timestamp.parse("2024-04-02T00:00:00Z")
    (workspace.folder / "data 2024-03-01.csv").write_bytes(b"a\n")
    from_path = FromPath(r"(\d+-\d+-\d+)")
    for url in ("data 2024-03-01.csv", "file:data%202024-03-01.csv"):
        payload = get(workspace, Url(url, event_time=from_path), reporter)
        assert payload is not None and payload.event_time == day

    web.answer = lambda request: reply(request, 200, b"a\n", Last_Modified=HTTP_DATE)
    for url, step, expected in (
        ("/2024-03-01/x.csv", from_path, day),
        ("/2024-03-01/2024-04-02.csv", from_path, later),  # the file name first
        ("/x?until=1&from=2024-03-01", from_path, day),
        ("/x/${{ env.TOKEN }}.csv", FromPath(r"(\d{8})\.csv", "yyyyMMdd"), later),
    ):
        environment = {"TOKEN": "20240402"}
        source = Url(web.url + url, event_time=step)
        payload = get(workspace, source, reporter, environment=environment)
        assert payload is not None and payload.event_time == expected
        assert payload.state is not None and payload.state.kind == "odf/last-modified"
        assert get(workspace, source, reporter, payload.state, environment=environment) is None

    sent = len(web.requests)
    for url, problem in (
        (web.url + "/${{ env.TOKEN }}/x.csv", "the URL does not match eventTime.pattern"),
        (
            web.url.replace("//", "//me:secret@") + "/2024-99-01",
            "'2024-99-01' does not match the time format",
        ),
    ):
        with pytest.raises(BadData) as caught:
            get(workspace, Url(url, event_time=from_path), reporter, environment={"TOKEN": "s3cret"})
        assert problem in caught.value.message
        assert "secret" not in f"{caught.value}{caught.value.hint}" and "s3cret" not in str(caught.value)
    assert len(web.requests) == sent  # nothing is downloaded without an event time
