"""HTTP client of sources and repositories: redirects, headers, URLs, cancellation, proxies."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from odf_engine.base.config import FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import Cancelled, SourceUnavailable
from odf_engine.metadata.model import RequestHeader, Url
from odf_engine.net import address_policy, connector
from odf_engine.net.address_policy import AddressPolicy, PublicAddresses
from odf_engine.net.download import AttemptFailed
from odf_engine.net.http_client import HttpClient, RequestBody, _may_forward
from odf_engine.workspace.workspace import Workspace
from tests.ingest.fetching import get
from tests.ingest.ftp_server import make_certificate
from tests.ingest.recorder import Recorder
from tests.sync.hostile_server import Exchange, HostileServer, hostile
from tests.waiting import run_with_timeout

pytestmark = pytest.mark.net


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HostileServer]:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "file").write_bytes(b"0123456789")
    with hostile(tmp_path / "web") as running:
        yield running


@pytest.fixture
def client(server: HostileServer) -> Iterator[HttpClient]:
    with closing(HttpClient(server.url, FetchConfig(), Reporter(), policy=AddressPolicy())) as opened:
        yield opened


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path / "ws")


def redirect(url: str) -> object:
    return lambda exchange: exchange.answer(302, b"", f"Location: {url}")


def test_redirects_send_conditions_everywhere_but_headers_to_origin_only(
    client: HttpClient, server: HostileServer, tmp_path: Path
) -> None:
    with hostile(tmp_path / "web") as other:
        server.says["start"] = redirect(f"{other.url}back")
        other.says["back"] = redirect(f"{server.url}file")
        with client.request(
            "GET", f"{server.url}start", headers={"X-Key": "k"}, conditions={"Range": "bytes=4-"}
        ) as response:
            assert (response.status, response.content_range) == (206, (4, 10))
            assert response.read_all(100) == b"456789"
        sent = [(asked.headers.get("x-key"), asked.headers["range"]) for asked in server.asked + other.asked]
    # Headers do not return with a redirect back, whose path another server chose.
    assert sent == [("k", "bytes=4-"), (None, "bytes=4-"), (None, "bytes=4-")]


def test_headers_follow_an_upgrade_to_tls() -> None:
    assert _may_forward("http://h.org/a", "https://h.org/b")
    for old, new in (
        ("https://h.org/", "http://h.org/"),
        ("http://h.org:81/", "https://h.org:81/"),
        ("http://h.org/", "https://h.org:444/"),
        ("http://h.org/", "https://sub.h.org/"),
    ):
        assert not _may_forward(old, new)


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("x?sig=a%2fb%3d&n=1;2", "/x?sig=a%2fb%3d&n=1;2"),  # a signature may cover the exact bytes
        ("a/../b//c", "/a/../b//c"),
        ("/a", "//a"),
        ("ü b?q=ü", "/%C3%BC%20b?q=%C3%BC"),
        ("x#part", "/x"),
    ],
)
def test_url_is_sent_unchanged_except_for_encoding(
    client: HttpClient, server: HostileServer, asked: str, sent: str
) -> None:
    server.says[""] = lambda exchange: exchange.answer(200, b"ok")
    assert client.get_bytes(server.url + asked, 10) == b"ok"
    assert server.asked[-1].path == sent


def test_international_host_names_are_sent_as_punycode(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.says[""] = lambda exchange: exchange.answer(200, b"ok")
    names: list[str] = []
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda host, *_, **__: names.append(host) or [(0, 0, 0, "", ("127.0.0.1", 0))]
    )
    url = f"http://bücher.example:{urlsplit(server.url).port}/x"
    with closing(HttpClient(url, FetchConfig(), Reporter(), policy=AddressPolicy())) as client:
        assert client.get_bytes(url, 10) == b"ok"
    assert names == ["xn--bcher-kva.example"]
    assert server.asked[0].headers["host"].startswith("xn--bcher-kva.example:")


@pytest.mark.parametrize("step", ["handshake", "upload"])
def test_cancellation_ends_handshake_and_upload(server: HostileServer, tmp_path: Path, step: str) -> None:
    """A cancellation ends a TLS handshake and an upload that do not progress."""
    reporter = Reporter()
    scheme = "https" if step == "handshake" else "http"
    url = server.url.replace("http:", f"{scheme}:")

    # The server accepts the connection and reads nothing.
    server.serve = lambda sock: server.over.wait() and sock.close()  # type: ignore[method-assign]
    threading.Timer(0.2, reporter.cancel).start()
    config = FetchConfig(connect_timeout_seconds=600, read_timeout_seconds=600)
    with (
        closing(HttpClient(url, config, reporter, policy=AddressPolicy())) as client,
        pytest.raises(Cancelled),
    ):
        verb = "PUT" if step == "upload" else "GET"
        run_with_timeout(lambda: client.request(verb, f"{url}x", body=RequestBody(bytes(1 << 27))))


def test_abort_does_not_end_the_client(client: HttpClient, server: HostileServer) -> None:
    server.says["slow"] = lambda exchange: exchange.server.over.wait(60)
    threading.Timer(0.1, client.abort).start()
    with pytest.raises(AttemptFailed, match="closed by the server without a response"):
        client.request("GET", f"{server.url}slow")
    assert client.get_bytes(f"{server.url}file", 10) == b"0123456789"


def test_conflicting_content_lengths_are_rejected(client: HttpClient, server: HostileServer) -> None:
    server.says["two"] = lambda exchange: exchange.answer(200, b"ok", "Content-Length: 3")
    with pytest.raises(AttemptFailed, match="Content-Length"):
        client.request("GET", f"{server.url}two")
    assert client.get_bytes(f"{server.url}file", 10) == b"0123456789"
    assert server.connections == 2


def test_sources_use_proxies(
    workspace: Workspace, server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.says["http://data.example/x"] = lambda exchange: exchange.answer(200, b"through")
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//me:word@"))
    step = Url("http://u:p@data.example/x", headers=[RequestHeader("Host", "other.example")])
    payload = get(workspace, step, Recorder())
    assert payload is not None
    assert payload.path.read_bytes() == b"through"
    [asked] = server.asked
    assert asked.path == "http://data.example/x"
    assert asked.headers["proxy-authorization"] == "Basic bWU6d29yZA=="
    assert asked.headers["authorization"] == "Basic dTpw"
    assert (asked.headers["host"], asked.headers["connection"]) == ("other.example", "close")
    # The address behind a proxy is unknown.
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: [(0, 0, 0, "", ("10.0.0.1", 0))])
    with pytest.raises(SourceUnavailable, match=r"data\.example \(10\.0\.0\.1\) is not a public"):
        get(workspace, step, Recorder(), untrusted=True)


def test_minimum_rate_applies_to_repositories_but_not_sources(
    workspace: Workspace, server: HostileServer
) -> None:
    """The minimum rate applies to repositories only."""

    def behave(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n")
        exchange.slowly(b"x" * 30, 0.03)

    server.says["slow"] = behave
    payload = get(workspace, Url(f"{server.url}slow"), Recorder(), retries=0, read_timeout_seconds=0.3)
    assert payload is not None
    assert payload.path.stat().st_size == 30
    client = HttpClient(
        server.url, FetchConfig(retries=0, read_timeout_seconds=0.3), Reporter(), policy=AddressPolicy()
    )
    with closing(client), pytest.raises(SourceUnavailable, match="too slow"):
        client.get_bytes(f"{server.url}slow", 100)


def test_address_policy_applies_to_each_redirect(
    server: HostileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy is applied before the TLS handshake."""
    certificate = make_certificate(tmp_path / "localhost.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setattr(address_policy, "is_public_address", lambda address: address == "127.0.0.1")
    monkeypatch.setattr(
        connector.socket, "getaddrinfo", lambda host, *_, **__: [
            (0, 0, 0, "", ("127.0.0.2" if host == "inside.example" else "127.0.0.1", 0))
        ]
    )  # fmt: skip
    with hostile(tmp_path / "web", context) as secure:
        port = urlsplit(secure.url).port
        secure.says["start"] = redirect(f"https://inside.example:{port}/file")
        client = HttpClient(secure.url, FetchConfig(), Reporter(), policy=PublicAddresses())
        with closing(client):
            assert client.get_bytes(f"{secure.url}file", 10) == b"0123456789"
            with pytest.raises(SourceUnavailable, match=r"inside\.example \(127\.0\.0\.2\) is not a public"):
                client.get_bytes(f"{secure.url}start", 10)
        assert [asked.path for asked in secure.asked] == ["/file", "/start"]
