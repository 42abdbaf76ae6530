"""Reading datasets from web servers: what is asked, what goes along, and what happens when it breaks."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from odf_engine.base.config import Config, FetchConfig
from odf_engine.errors import BadData, Cancelled, NotFound, OdfError, SourceUnavailable
from odf_engine.identity.multiformats import Multihash, base58btc_encode
from odf_engine.net.credentials import Credentials, Login, RemoteAccess
from odf_engine.net.http_client import HttpClient, RequestBody
from odf_engine.sync.remotes.base import MAX_BLOCK_BYTES, ObjectFile
from odf_engine.sync.remotes.http_remote import HttpRemote
from odf_engine.sync.remotes.transports import open_remote
from tests.ingest.ftp_server import make_certificate
from tests.log_lines import LogLines
from tests.ports import unused_port
from tests.sync.hostile_server import Exchange, HostileServer, hostile
from tests.waiting import run_with_timeout

pytestmark = pytest.mark.net

BLOCK = b"a block, or what looks like one from here"
DATA = bytes(range(256)) * 4000
HEAD = Multihash.sha3_256(BLOCK)
FILE = ObjectFile("data", Multihash.sha3_256(DATA), len(DATA))
SECRET = "not-for-others"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, data in (
        ("refs/head", str(HEAD).encode() + b"\n"),
        (f"blocks/{HEAD}", BLOCK),
        (f"data/{FILE.hash}", DATA),
    ):
        (tmp_path / "web" / "ds" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "web" / "ds" / path).write_bytes(data)
    return tmp_path / "web"


@pytest.fixture
def server(folder: Path) -> Iterator[HostileServer]:
    with hostile(folder) as running:
        yield running


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteAccess:
    """Nobody waits between attempts, and for 2 s at most for an answer."""
    monkeypatch.setattr("odf_engine.net.download._PAUSE", 0)
    fetch = FetchConfig(read_timeout_seconds=2, connect_timeout_seconds=2, retries=2)
    return RemoteAccess(Config(fetch=fetch), Credentials(tmp_path / ".odf"), LogLines())


@pytest.fixture
def remote(server: HostileServer, access: RemoteAccess) -> Iterator[HttpRemote]:
    with closing(HttpRemote(f"{server.url}ds/", access)) as opened:
        yield opened


def whole(remote: HttpRemote, start: int = 0) -> bytes:
    return b"".join(map(bytes, remote.chunks(FILE, start)))


def ranges(server: HostileServer) -> list[str | None]:
    return [asked.headers.get("range") for asked in server.asked]


def test_all_requests_use_one_connection(remote: HttpRemote, server: HostileServer) -> None:
    assert remote.head() == HEAD
    assert remote.read("blocks", HEAD, MAX_BLOCK_BYTES) == BLOCK
    assert whole(remote) == DATA
    assert whole(remote, len(DATA)) == b""
    with pytest.raises(NotFound, match=f"blocks/{FILE.hash} not found"):
        remote.read("blocks", FILE.hash, MAX_BLOCK_BYTES)
    assert remote.read("blocks", HEAD, MAX_BLOCK_BYTES) == BLOCK
    assert server.connections == 1
    assert {asked.headers["accept-encoding"] for asked in server.asked} == {"identity"}
    with pytest.raises(BadData, match="more than 10 bytes"):
        remote.read("blocks", HEAD, 10)


def test_base58_names_are_tried_after_canonical_ones(
    remote: HttpRemote, server: HostileServer, folder: Path
) -> None:
    for kind, name in (("blocks", HEAD), ("data", FILE.hash)):
        path = folder / "ds" / kind / str(name)
        path.rename(path.with_name(base58btc_encode(bytes(name))))
    assert remote.read("blocks", HEAD, MAX_BLOCK_BYTES) == BLOCK
    assert whole(remote) == DATA
    assert [asked.path.split("/")[-1][0] for asked in server.asked] == ["f", "z", "z"]


def test_closed_keep_alive_connection_is_reopened(
    remote: HttpRemote, server: HostileServer, access: RemoteAccess
) -> None:
    server.says["ds/refs"] = lambda exchange: (exchange.well(), setattr(exchange, "open", False))[0]
    for _ in range(3):
        assert remote.head() == HEAD
    assert server.connections == 3
    assert access.reporter.lines == []  # type: ignore[attr-defined]


def cut(at: int, times: int) -> Callable[[Exchange], None]:
    """Breaks off after so many bytes of each answer, so many times."""
    left = [times]

    def behave(exchange: Exchange) -> None:
        if not left[0]:
            return exchange.well()
        left[0] -= 1
        start = int(exchange.asked.headers.get("range", "bytes=0-")[6:-1])
        data = exchange.file()
        span = f"Content-Range: bytes {start}-{len(data) - 1}/{len(data)}"
        rest = data[start:]
        return exchange.answer(206 if start else 200, rest[:at], span, length=len(rest))

    return behave


def test_interrupted_download_resumes_with_a_range(remote: HttpRemote, server: HostileServer) -> None:
    server.says["ds/data"] = cut(300_000, 2)
    assert whole(remote) == DATA
    assert ranges(server) == [None, "bytes=300000-", "bytes=600000-"]
    server.asked.clear()
    server.says["ds/data"] = cut(300_000, 5)
    with pytest.raises(SourceUnavailable, match="closed 123,000 bytes before the end"):
        whole(remote, 1000)
    assert ranges(server) == ["bytes=1000-", "bytes=301000-", "bytes=601000-"]


def _ranged(exchange: Exchange) -> bool:
    return "range" in exchange.asked.headers


def answer_part(status: int, start: int, total: str) -> Callable[[Exchange], None]:
    def behave(exchange: Exchange) -> None:
        if not _ranged(exchange):
            return exchange.well()
        data = exchange.file()
        return exchange.answer(status, data[start:], f"Content-Range: bytes {start}-{len(data) - 1}/{total}")

    return behave


@pytest.mark.parametrize(
    ("behave", "requests"),
    [
        (answer_part(200, 0, "*"), 1),  # ranges are not known there
        (answer_part(206, 0, "1024000"), 2),  # another range, so all of it
        (answer_part(206, 5001, "*"), 2),
        (answer_part(206, 5000, "*"), 1),
        (lambda exchange: exchange.answer(206, b"x" * 100) if _ranged(exchange) else exchange.well(), 2),
    ],
)
def test_partial_download_is_correct_for_any_range_response(
    remote: HttpRemote, server: HostileServer, behave: Callable[[Exchange], None], requests: int
) -> None:
    server.says["ds/data"] = behave
    assert whole(remote, 5000) == DATA[5000:]
    assert len(server.asked) == requests


def test_range_response_of_different_file_is_rejected(remote: HttpRemote, server: HostileServer) -> None:
    server.says["ds/data"] = answer_part(206, 5000, "7000")
    with pytest.raises(BadData, match="has 7,000 bytes, expected 1,024,000"):
        whole(remote, 5000)
    server.says["ds/data"] = lambda exchange: exchange.answer("416 No")
    with pytest.raises(BadData, match="shorter than expected"):
        whole(remote, 5000)
    server.says["ds/data"] = lambda exchange: exchange.answer(206, DATA[9:], "Content-Range: bytes 9-99/*")
    with pytest.raises(BadData, match="different range"):
        whole(remote, 5000)


def test_temporary_errors_are_retried(
    remote: HttpRemote, server: HostileServer, access: RemoteAccess
) -> None:
    answers = iter(["503 Busy", "429 Slow"])

    def behave(exchange: Exchange) -> None:
        if (status := next(answers, None)) is None:
            exchange.well()
        else:
            exchange.answer(status, b"later", "Retry-After: 0")

    server.says["ds/refs"] = behave
    assert remote.head() == HEAD
    first, second = access.reporter.lines  # type: ignore[attr-defined]
    assert "returned 503; retrying in 0.0 s" in first
    assert "too many requests (429); retrying" in second
    server.says["ds/refs"] = lambda exchange: exchange.answer("503 Busy")
    with pytest.raises(SourceUnavailable, match="returned 503") as caught:
        remote.head()
    assert caught.value.hint == "try again later"


def test_unreachable_server_is_reported(access: RemoteAccess) -> None:
    port = unused_port()
    with pytest.raises(SourceUnavailable, match="connection failed: Connection refused"):
        HttpRemote(f"http://127.0.0.1:{port}/ds/", access).head()
    with pytest.raises(SourceUnavailable, match="cannot resolve host name"):
        HttpRemote("http://nowhere.invalid/ds/", access).head()


@pytest.mark.parametrize("path", ["ds/refs", "ds/data"])
@pytest.mark.parametrize("end", ["cancel", "close"])
def test_cancel_or_close_ends_a_hanging_request(
    server: HostileServer, access: RemoteAccess, path: str, end: str
) -> None:
    """An answer that does not come, or stops in its middle: whoever waits for it is free at once."""
    fetch = msgspec.structs.replace(access.config.fetch, read_timeout_seconds=600)
    config = msgspec.structs.replace(access.config, fetch=fetch)
    remote = HttpRemote(f"{server.url}ds/", access._replace(config=config))

    def behave(exchange: Exchange) -> None:
        if path == "ds/data":
            exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1024000\r\n\r\nabc")
        stop = access.reporter.cancel if end == "cancel" else remote.close
        threading.Timer(0.05, stop).start()
        exchange.server.over.wait()

    server.says[path] = behave
    with pytest.raises(Cancelled):
        run_with_timeout(lambda: remote.head() if path == "ds/refs" else whole(remote))


def test_closing_the_iterator_releases_the_connection(remote: HttpRemote, server: HostileServer) -> None:
    """Closing the iterator lets go of the connection, and nothing is read for nobody."""
    ended = threading.Event()

    def behave(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1024000\r\n\r\nabc")
        assert exchange.sock.recv(1) == b""
        ended.set()

    server.says["ds/data"] = behave
    pieces = remote.chunks(FILE)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert ended.wait(60)
    assert remote.head() == HEAD


def test_extra_bytes_are_not_taken_for_the_next_response(remote: HttpRemote, server: HostileServer) -> None:
    """What comes behind an answer is not taken for the next one."""

    sent = threading.Event()

    def behave(exchange: Exchange) -> None:
        exchange.well()
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno" * 9999)
        sent.set()

    server.says["ds/data"] = behave
    assert whole(remote) == DATA
    assert sent.wait(60)
    assert remote.head() == HEAD


def test_credentials_are_not_sent_to_redirect_targets(
    server: HostileServer, access: RemoteAccess, folder: Path
) -> None:
    access.credentials.set(server.url, Login(token=SECRET))
    with hostile(folder) as other, closing(HttpRemote(f"{server.url}ds/", access)) as remote:
        server.says["ds/refs"] = lambda exchange: exchange.answer(302, b"", "Location: /moved/head")
        server.says["moved"] = lambda exchange: exchange.answer(
            307, b"", f"Location: {other.url.replace('//', '//user:word@')}ds/refs/head"
        )
        assert remote.head() == HEAD
        assert [asked.headers.get("authorization") for asked in server.asked] == [f"Bearer {SECRET}"] * 2
        [asked] = other.asked
        assert "authorization" not in asked.headers
        # Back home it goes along again, and what was given for one request only does not leave either.
        other.says["ds/refs"] = lambda exchange: exchange.answer(
            302, b"", f"Location: {server.url}ds/refs/head?home"
        )
        server.says["ds/refs/head?home"] = lambda exchange: exchange.answer(200, b"at home")
        with remote.web.request("GET", f"{server.url}ds/refs/head", headers={"X-Key": SECRET}) as response:
            assert response.read_all(100) == b"at home"
        assert "x-key" in server.asked[2].headers
        assert "x-key" not in other.asked[1].headers
        assert "authorization" in server.asked[-1].headers
    told = " ".join([*access.reporter.lines, repr(access.credentials.of(server.url))])  # type: ignore[attr-defined]
    assert SECRET not in told


@pytest.mark.parametrize(
    ("status", "login", "text", "hint"),
    [
        (401, None, "authentication required", "run odf repo login http://127.0.0.1:"),
        (401, Login(token=SECRET), "stored login was rejected", "run odf repo login"),
        (403, None, "access denied", "run odf repo login"),
        (403, Login(user="me", secret=SECRET), "access denied", "check the permissions"),
    ],
)
def test_denied_access_is_reported_with_a_hint(
    server: HostileServer, access: RemoteAccess, status: int, login: Login | None, text: str, hint: str
) -> None:
    if login is not None:
        access.credentials.set(server.url, login)
    server.says["ds"] = lambda exchange: exchange.answer(status, SECRET.encode())
    with pytest.raises(SourceUnavailable, match=text) as caught:
        HttpRemote(f"{server.url}ds/", access).head()
    assert str(caught.value.hint).startswith(hint)
    assert SECRET not in caught.value.format_line
    assert len(server.asked) == 1


def test_public_server_cannot_redirect_to_a_private_network(
    folder: Path, access: RemoteAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On this machine, for once, the second address stands for the internet.
    monkeypatch.setattr(
        "odf_engine.net.address_policy.is_public_address", lambda address: address == "127.0.0.2"
    )
    with hostile(folder, host="127.0.0.2") as public, hostile(folder) as inside:
        public.says["ds/refs"] = lambda exchange: exchange.answer(
            302, b"", f"Location: {inside.url}ds/refs/head"
        )
        remote = HttpRemote(f"{public.url}ds/", access)
        with pytest.raises(
            SourceUnavailable, match=r"redirect from a public server to 127\.0\.0\.1 in a private network"
        ):
            remote.head()
        assert inside.connections == 0
        inside.says["ds/refs"] = lambda exchange: exchange.answer(
            302, b"", f"Location: {public.url}ds/refs/head?"
        )
        public.says.clear()
        assert HttpRemote(f"{inside.url}ds/", access).head() is not None  # named by a person


def test_a_name_is_looked_up_once(
    server: HostileServer, access: RemoteAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = socket.getaddrinfo

    def look_up(host: str, *rest: object, **more: object) -> object:
        asked.append(host)
        return real("127.0.0.1" if host == "data.example" else host, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    port = server.url.rpartition(":")[2]
    remote = HttpRemote(f"http://data.example:{port}ds/", access)
    server.says["ds/refs"] = lambda exchange: (exchange.well(), setattr(exchange, "open", False))[0]
    assert [remote.head(), remote.head()] == [HEAD, HEAD]
    assert asked.count("data.example") == 1
    assert server.asked[0].headers["host"] == f"data.example:{port.rstrip('/')}"


def test_tls_certificate_is_verified_and_never_downgraded(
    server: HostileServer, access: RemoteAccess, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path / "localhost.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with hostile(folder, context) as secure:
        url = f"{secure.url}ds/"
        with pytest.raises(SourceUnavailable, match="invalid certificate: self-signed"):
            HttpRemote(url, access).head()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with closing(HttpRemote(url, access)) as remote:
            assert remote.head() == HEAD
            assert whole(remote) == DATA
            secure.says["ds/data"] = cut(300_000, 1)
            assert whole(remote) == DATA
            secure.says["ds/refs"] = lambda exchange: exchange.answer(
                302, b"", f"Location: {server.url}ds/refs/head"
            )
            with pytest.raises(SourceUnavailable, match="redirect from https to http"):
                remote.head()
        assert server.asked == []
        secure.says["ds/refs"] = lambda exchange: exchange.server.over.wait(5)
        with closing(HttpRemote(url, access)) as remote:
            threading.Timer(0.05, access.reporter.cancel).start()
            with pytest.raises(Cancelled):
                remote.head()


@pytest.mark.parametrize("url", ["ipfs://bafyCID/some/where/", "ipns://data.example.org/"])
def test_ipfs_urls_use_the_configured_gateway(
    server: HostileServer, access: RemoteAccess, folder: Path, url: str
) -> None:
    path = url.replace("://", "/")
    (folder / "gate" / path).parent.mkdir(parents=True)
    (folder / "ds").rename(folder / "gate" / path)
    sync = msgspec.structs.replace(access.config.sync, ipfs_gateway=f"{server.url}gate/")
    gated = access._replace(config=msgspec.structs.replace(access.config, sync=sync))
    with closing(open_remote(url, gated)) as remote:
        assert remote.url == url
        assert remote.head() == HEAD
        assert remote.read("blocks", HEAD, MAX_BLOCK_BYTES) == BLOCK
        assert b"".join(map(bytes, remote.chunks(FILE))) == DATA
        server.says["gate"] = lambda exchange: exchange.answer("500 No", b"no link named head")
        assert remote.head() is None


def test_put_resends_its_body_after_a_redirect(
    server: HostileServer, access: RemoteAccess, tmp_path: Path
) -> None:
    file = tmp_path / "slice"
    file.write_bytes(DATA)
    heard: list[int] = []
    server.says["ds"] = lambda exchange: exchange.answer("307 On", b"", "Location: /elsewhere?signed=1")
    server.says["elsewhere"] = lambda exchange: exchange.answer("201 Made")
    with closing(HttpClient.for_remote(f"{server.url}ds/", access)) as web:
        web.request("PUT", f"{server.url}ds/data/x", body=RequestBody(file, heard.append)).close()
        assert [asked.body for asked in server.asked] == [DATA, DATA]
        assert heard[-1] == len(DATA)
        server.says["ds"] = lambda exchange: exchange.answer("303 See", b"", "Location: /elsewhere")
        with pytest.raises(OdfError, match="cannot be redirected"):
            web.with_retries(lambda: web.request("PUT", f"{server.url}ds/data/x", body=RequestBody(b"abc")))


def test_early_rejection_of_a_put_is_reported(access: RemoteAccess) -> None:
    """A server that does not read to the end has said why."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        closing(HttpClient.for_remote(f"http://127.0.0.1:{listening.getsockname()[1]}/", access)) as web,
    ):

        def refuse() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(100)
                sock.sendall(b"HTTP/1.1 413 Too much\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(SourceUnavailable, match="file too large"):
            web.with_retries(
                lambda: web.request("PUT", f"{web.url}data/x", body=RequestBody(bytes(20 << 20)))
            )
        thread.join()


def test_requests_use_the_configured_proxy(
    server: HostileServer, access: RemoteAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.says["http://data.example/"] = lambda exchange: exchange.answer(200, str(HEAD).encode())
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//me:word@"))
    monkeypatch.setenv("no_proxy", "direct.invalid")
    with closing(HttpRemote("http://data.example/ds/", access)) as remote:
        assert [remote.head(), remote.head()] == [HEAD, HEAD]
    assert server.connections == 1
    asked = server.asked[0]
    assert asked.path == "http://data.example/ds/refs/head"
    assert asked.headers["host"] == "data.example"
    assert asked.headers["proxy-authorization"] == "Basic bWU6d29yZA=="
    with closing(HttpRemote(f"{server.url}ds/", access)) as remote:  # on this machine
        assert remote.head() == HEAD
        assert "proxy-authorization" not in server.asked[-1].headers
    with pytest.raises(SourceUnavailable, match="cannot resolve host name"):
        HttpRemote("http://direct.invalid/ds/", access).head()
    server.says["http://data.example/"] = lambda exchange: exchange.answer(
        302, b"", "Location: http://10.1.2.3/"
    )
    with pytest.raises(
        SourceUnavailable, match=r"redirect from a public server to 10\.1\.2\.3 in a private network"
    ):
        HttpRemote("http://data.example/ds/", access).head()
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:9")
    with pytest.raises(SourceUnavailable, match="unsupported proxy for http:"):
        HttpRemote("http://data.example/ds/", access).head()


def test_https_requests_use_a_proxy_tunnel(
    server: HostileServer, access: RemoteAccess, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path / "localhost.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("https_proxy", server.url)
    monkeypatch.setattr("odf_engine.net.connector._is_loopback", lambda host: False)

    def tunnel(exchange: Exchange) -> None:
        host, port = exchange.asked.path.split(":")
        assert (host, exchange.asked.method) == ("localhost", "CONNECT")
        with socket.create_connection((host, int(port))) as there:
            exchange.send(b"HTTP/1.1 200 Go\r\n\r\n")
            back = threading.Thread(target=_pump, args=(there, exchange.sock))
            back.start()
            _pump(exchange.sock, there)
            back.join()

    with hostile(folder, context) as secure:
        server.says["localhost:"] = tunnel
        with closing(HttpRemote(f"{secure.url}ds/", access)) as remote:
            assert remote.head() == HEAD
            assert whole(remote) == DATA
        assert len(server.asked) == 1
        with closing(open_remote(f"odf+{secure.url}ds/", access)) as remote:
            assert remote.block_batch(None, HEAD) is None  # a session is refused
        assert [asked.path for asked in secure.asked][-1] == "/ds/pull"
        assert len(server.asked) == 2
        server.says["localhost:"] = lambda exchange: exchange.answer("403 No")
        with pytest.raises(SourceUnavailable, match=r"proxy .* returned 403"):
            HttpRemote(f"{secure.url}ds/", access).head()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    for sock in (source, target):
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
