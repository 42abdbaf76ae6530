"""Limits on what a server may send, and on how long it may take."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from odf_engine.automation.alerts.definition import Email
from odf_engine.automation.alerts.mail import send_mail
from odf_engine.automation.alerts.store import Delivery
from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Cancelled, OdfError, SourceUnavailable
from odf_engine.metadata.model import Url
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.workspace.workspace import Workspace
from tests.ingest.fetching import get
from tests.ingest.recorder import Recorder
from tests.waiting import run_with_timeout

pytestmark = pytest.mark.net
OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Serve = Callable[[Callable[[socket.socket], None]], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that calls a function with each connection; returns its port."""
    listening: list[socket.socket] = []

    def start(talk: Callable[[socket.socket], None]) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def work() -> None:
            with suppress(OSError):
                while True:
                    connection = server.accept()[0]
                    threading.Thread(target=converse, args=(connection,), daemon=True).start()

        def converse(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                talk(connection)

        threading.Thread(target=work, daemon=True).start()
        return server.getsockname()[1]

    yield start
    for server in listening:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()


def repeat(first: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Return a peer that sends some bytes, and then others without end."""

    def talk(connection: socket.socket) -> None:
        if first.startswith(b"HTTP"):
            connection.recv(1 << 16)
        connection.sendall(first)
        while True:
            connection.sendall(piece * 1000)

    return talk


def drip(first: bytes) -> Callable[[socket.socket], None]:
    """Return a peer that sends some bytes, then one byte after another with pauses."""

    def talk(connection: socket.socket) -> None:
        if first.startswith(b"HTTP"):
            connection.recv(1 << 16)
        connection.sendall(first)
        pause = threading.Event()
        while not pause.wait(0.05):
            connection.sendall(b"x")

    return talk


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000001\r\n\r\n",
        OK,
    ],
)
def test_endless_body_is_refused(
    workspace: Workspace, serve: Serve, reporter: Recorder, answer: bytes
) -> None:
    port = serve(repeat(answer, b"3\r\nabc\r\n" if answer == OK else b"x"))
    with pytest.raises(BadData, match="larger than 1,000,000 bytes") as caught:
        get(workspace, Url(f"http://127.0.0.1:{port}/x"), reporter, max_bytes=1_000_000)
    assert caught.value.where == f"http://127.0.0.1:{port}/x"
    assert "fetch.maxBytes" in str(caught.value.hint)
    assert not any((workspace.odf / "cache" / "downloads").glob("*.part"))


@pytest.mark.parametrize(
    ("answer", "piece"),
    [
        (OK + b"1\r\na\r\n0\r\n", b"X-Trailer: a\r\n"),
        (OK + b"1\r\na\r\n0\r\n", b"x"),
        (OK, b"0"),
        (b"HTTP/1.1 200 OK\r\n", b"x"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_endless_lines_are_refused(
    workspace: Workspace, serve: Serve, reporter: Recorder, answer: bytes, piece: bytes
) -> None:
    port = serve(repeat(answer, piece))
    url = Url(f"http://127.0.0.1:{port}/x")
    with pytest.raises(OdfError, match=r"too many headers or chunks|invalid|connection|HTTP"):
        run_with_timeout(lambda: get(workspace, url, reporter, retries=0), 20)


@pytest.mark.parametrize(
    "first", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"220-", b"220 hello\r\n331-"]
)
def test_slow_transfers_end(workspace: Workspace, serve: Serve, reporter: Recorder, first: bytes) -> None:
    scheme = "http" if first.startswith(b"HTTP") else "ftp"
    url = f"{scheme}://127.0.0.1:{serve(drip(first))}/x"
    with pytest.raises(SourceUnavailable, match=r"takes longer than 0\.01 minutes") as caught:
        run_with_timeout(lambda: get(workspace, Url(url), reporter, max_minutes=0.01), 20)
    assert caught.value.where == url


@pytest.mark.parametrize("line", [b"220-hello\r\n", b"x"])
def test_endless_ftp_reply_is_refused(
    workspace: Workspace, serve: Serve, reporter: Recorder, line: bytes
) -> None:
    url = Url(f"ftp://127.0.0.1:{serve(repeat(b'220-', line))}/x")
    with pytest.raises(SourceUnavailable):
        run_with_timeout(lambda: get(workspace, url, reporter, retries=0), 20)


def mail(workspace: Workspace, port: int, reporter: Reporter) -> None:
    sink = Email(server=f"smtp://127.0.0.1:{port}", to=["a@b.example"], sender="c@d.example", starttls=False)
    delivery = Delivery(1, "id", "post", "JobFailed", "web", "", "failed", b"body", "queued", 0, 0)
    send_mail(sink, delivery, "ws", RemoteAccess(workspace.config, Credentials(workspace.odf), reporter))


@pytest.mark.parametrize(
    ("talk", "problem"),
    [
        (repeat(b"220 hello\r\n", b"250-x\r\n"), "sends replies without end"),
        (repeat(b"", b"220-x\r\n"), "sends replies without end"),
        (drip(b"220 hello\r\n"), "does not answer in time"),
        (drip(b"220-"), "does not answer in time"),
    ],
)
def test_endless_replies_of_a_mail_server_are_refused(
    workspace: Workspace,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    talk: Callable[[socket.socket], None],
    problem: str,
) -> None:
    monkeypatch.setattr("odf_engine.automation.alerts.mail.MAX_SECONDS", 1.0)
    port = serve(talk)
    with pytest.raises(SourceUnavailable, match=problem):
        run_with_timeout(lambda: mail(workspace, port, Reporter()), 20)


def test_cancellation_ends_a_conversation_with_a_mail_server(workspace: Workspace, serve: Serve) -> None:
    reporter, started = Reporter(), threading.Event()

    def talk(connection: socket.socket) -> None:
        started.set()
        drip(b"220-")(connection)

    port = serve(talk)
    threading.Thread(target=lambda: started.wait(20) and reporter.cancel(), daemon=True).start()
    with pytest.raises(Cancelled):
        run_with_timeout(lambda: mail(workspace, port, reporter), 20)
