"""Clients that mean ill, over real sockets: they are refused, in bounded time, and nothing has changed."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.ownership_proof import OwnershipProof, create_and_store_proof
from odf_engine.sync.remotes.base import ObjectFile
from odf_engine.sync.server import __main__
from odf_engine.sync.server.service import PushSession, PushTarget
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.tokens import Tokens
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import add_files, copy_into, make_root, objects
from tests.sync.in_process_server import Running, served
from tests.waiting import wait_until

pytestmark = pytest.mark.net

CONTENT = b"rows of somebody" * 10_000
NAME = Multihash.sha3_256(CONTENT)


@pytest.fixture
def numbers(here: Workspace, there: Workspace) -> DatasetEntry:
    """A dataset of somebody else, which was pulled: its key is not here."""
    return copy_into(there, make_root(here, slices=1))


@pytest.fixture
def token(there: Workspace) -> str:
    """A token for it."""
    return Tokens(there.odf).create("friend", ["num%"])[1]


@pytest.fixture
def server(there: Workspace, numbers: DatasetEntry) -> Iterator[Running]:
    """Takes pushes."""
    with served(there, allow_push=True, idle_seconds=0.4) as running:
        yield running


def say(server: Running, *parts: bytes, patience: float = 10) -> bytes:
    """Sends bytes as they are; what comes back until the server closes the connection."""
    with socket.create_connection(server.address, timeout=patience) as connection:
        heard = b""
        try:
            for part in parts:
                connection.sendall(part)
            while data := connection.recv(1 << 16):
                heard += data
        except (ConnectionResetError, BrokenPipeError):
            pass
        return heard


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    """A request as it goes over the wire; it is the last of its connection."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def status(heard: bytes) -> int:
    """The status of the answer."""
    return int(heard.split(b" ", 2)[1]) if heard else 0


def put(
    server: Running,
    token: str | None,
    content: bytes = CONTENT,
    name: object = NAME,
    to: str = "numbers",
) -> int:
    """Uploads an object; the status of the answer."""
    login = [] if token is None else [f"Authorization: Bearer {token}"]
    headers = [f"Content-Length: {len(content)}", *login]
    return status(say(server, request("PUT", f"/{to}/data/{name}", *headers, body=content)))


@contextmanager
def announced(
    server: Running, entry: DatasetEntry, token: str, size: int = len(CONTENT)
) -> Iterator[PushSession]:
    """A push that has announced the object."""
    serving = server.serving
    known = serving.tokens.find(token)
    assert known is not None
    target = PushTarget(serving, entry.alias, entry, f"{server.url}{entry.alias}/", known, f"Bearer {token}")
    with serving.push_session(target) as session:
        session.folder = entry.dataset.folder
        session.announce([ObjectFile("data", NAME, size)])
        yield session


class TestUploads:
    def test_announced_object_is_accepted(self, server: Running, numbers: DatasetEntry, token: str) -> None:
        with announced(server, numbers, token) as session:
            assert put(server, token) == 200
            assert session.arrived == 1
        assert (numbers.dataset.folder / "data" / str(NAME)).read_bytes() == CONTENT

    def test_expect_continue_is_answered_only_with_credentials(
        self, server: Running, numbers: DatasetEntry, token: str
    ) -> None:
        headers = [f"Content-Length: {len(CONTENT)}", "Expect: 100-continue"]
        path = f"/numbers/data/{NAME}"
        heard = say(server, request("PUT", path, *headers))
        assert status(heard) == 401 and b"100 Continue" not in heard
        with announced(server, numbers, token):
            login = f"Authorization: Bearer {token}"
            heard = say(server, request("PUT", path, *headers, login), CONTENT)
        assert heard.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")

    def test_upload_without_permission_is_rejected(
        self, server: Running, there: Workspace, numbers: DatasetEntry, token: str
    ) -> None:
        before = objects(there.odf / "datasets")
        tokens = Tokens(there.odf)
        other = tokens.create("other", ["else%"])[1]
        expired = tokens.create("expired", days=1e-9)[1]
        revoked = tokens.create("revoked")[1]
        tokens.revoke("revoked")
        everything = tokens.create("everything")[1]
        make_root(there, "mine")
        with announced(server, numbers, token):
            assert [put(server, each) for each in (None, "", "nonsense", "ü" * 20, "x" * 5000)] == [401] * 5
            assert put(server, expired) == put(server, revoked) == 401
            assert put(server, other) == 403  # another token than that of the push
            assert put(server, everything) == 403
            assert put(server, everything, to="mine") == 403  # its key is here
            assert put(server, everything, to="new") == 403  # nobody announced it
            assert put(server, token, name=Multihash.sha3_256(b"another")) == 403
            assert put(server, token, name="nonsense") == 400
        assert put(server, token) == 403  # that push is over
        made = {name for name in objects(there.odf / "datasets") if NAME.abbreviated in name}
        assert not made and before.items() <= objects(there.odf / "datasets").items()
        assert len(tokens.list_tokens()) == 4

    def test_invalid_upload_leaves_no_files(self, server: Running, numbers: DatasetEntry, token: str) -> None:
        before = objects(numbers.dataset.folder)
        login = f"Authorization: Bearer {token}"
        path = f"/numbers/data/{NAME}"
        with announced(server, numbers, token) as session:
            assert put(server, token, CONTENT[::-1]) == 400  # of the right size
            assert put(server, token, CONTENT[1:]) == put(server, token, CONTENT + b"x") == 400
            packed = f"Content-Length: {len(CONTENT)}", "Content-Encoding: gzip"
            assert status(say(server, request("PUT", path, login, *packed, body=CONTENT))) == 400
            # Without its length, as for a body that never ends.
            chunks = b"%x\r\n%b\r\n" % (len(CONTENT), CONTENT)
            heard = say(server, request("PUT", path, login, "Transfer-Encoding: chunked"), *[chunks] * 40)
            assert status(heard) in (411, 0)  # 0: what it went on to send undid the answer
            assert session.arrived == 0 and not session.uploading
        assert objects(numbers.dataset.folder) == before

    def test_abandoned_upload_leaves_no_files(
        self, server: Running, numbers: DatasetEntry, token: str
    ) -> None:
        before = objects(numbers.dataset.folder)
        headers = f"Authorization: Bearer {token}", f"Content-Length: {len(CONTENT)}"
        begun = request("PUT", f"/numbers/data/{NAME}", *headers, body=CONTENT[:1000])
        with announced(server, numbers, token) as session:
            assert say(server, begun) == b""  # it waits, and is let go
            with socket.create_connection(server.address) as connection:
                connection.sendall(begun)
                wait_until(lambda: bool(session.uploading))
            wait_until(lambda: not session.uploading)
            assert put(server, token) == 200  # which the others did not keep from coming
        after = objects(numbers.dataset.folder)
        assert after == {**before, f"data/{NAME}": len(CONTENT)}

    def test_compaction_records_are_received_in_few_files(
        self, there: Workspace, numbers: DatasetEntry, token: str
    ) -> None:
        """Their memory and disk space do not grow with the number of connections."""
        before = objects(numbers.dataset.folder)
        headers = f"Authorization: Bearer {token}", f"Content-Length: {100 << 20}"
        begun = request("PUT", f"/numbers/compactions/{NAME}", *headers, body=bytes(3 << 20))
        folder = numbers.dataset.folder / "compactions"
        with served(there, allow_push=True, pushes=1) as server:
            with socket.create_connection(server.address) as connection:
                connection.sendall(begun)
                wait_until(lambda: any(path.stat().st_size for path in folder.glob(".pending-*")))
                assert status(say(server, request("PUT", f"/numbers/compactions/{NAME}", *headers))) == 503
            wait_until(lambda: objects(numbers.dataset.folder) == before)
            small = f"Authorization: Bearer {token}", "Content-Length: 9"
            path = f"/numbers/compactions/{NAME}"
            wait_until(lambda: status(say(server, request("PUT", path, *small, body=b"no record"))) == 400)
            too_large = f"Authorization: Bearer {token}", f"Content-Length: {129 << 20}"
            assert status(say(server, request("PUT", path, *too_large))) == 400
        assert objects(numbers.dataset.folder) == before

    def test_push_beyond_the_limits_is_rejected(
        self, there: Workspace, numbers: DatasetEntry, token: str
    ) -> None:
        from odf_engine.sync.server.service import Forbidden

        with (
            served(there, allow_push=True, most_push_bytes=100, most_push_objects=2) as server,
            announced(server, numbers, token, size=60) as session,
        ):
            with pytest.raises(Forbidden):
                session.announce([ObjectFile("data", Multihash.sha3_256(b"2"), 41)])
            with pytest.raises(Forbidden):
                session.announce([ObjectFile("data", Multihash.sha3_256(b"2"), -5)])
            session.announce([ObjectFile("data", Multihash.sha3_256(b"2"), 1)])
            with pytest.raises(Forbidden):
                session.announce([ObjectFile("data", Multihash.sha3_256(b"3"), 1)])

    def test_proofs_are_taken_when_they_are_right(
        self, server: Running, here: Workspace, numbers: DatasetEntry, token: str
    ) -> None:
        head = numbers.dataset.head()
        assert head is not None
        key = here.keys.private_key_pem(numbers.id)
        right = bytes(create_and_store_proof(here.resolve("numbers").dataset.folder, numbers.id, key, head))
        parsed = OwnershipProof.from_bytes(right)
        wrong = bytes(OwnershipProof(parsed.dataset_id, head, parsed.signature[::-1]))
        login = f"Authorization: Bearer {token}"

        def offered(body: bytes, block: object = head, *headers: str) -> int:
            length = f"Content-Length: {len(body)}"
            return status(
                say(server, request("PUT", f"/numbers/proofs/{block}", length, *headers, body=body))
            )

        assert offered(right) == 401
        assert offered(wrong, head, login) == offered(b"{}", head, login) == 400
        assert offered(b" " * 5000, head, login) == 400
        assert offered(right, Multihash.sha3_256(b"no block"), login) == 404
        assert not (numbers.dataset.folder / "proofs").exists()
        assert offered(right, head, login) == 200
        assert (numbers.dataset.folder / "proofs" / str(head)).read_bytes() == right


class TestSlowOnes:
    def test_slow_headers_are_disconnected(self, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(__main__, "HEADER_SECONDS", 0.3)
        with served(server.serving.workspace) as quick:
            with socket.create_connection(quick.address, timeout=60) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
                connection.settimeout(0.05)

                def send_byte() -> bool:
                    """Send the next byte; return whether the server has closed the connection."""
                    try:
                        connection.sendall(b"a")
                        return not connection.recv(100)
                    except TimeoutError:
                        return False
                    except (BrokenPipeError, ConnectionResetError):
                        return True

                wait_until(send_byte)
            assert say(quick, b"") == b""  # who says nothing at all is let go too

    def test_slow_reader_does_not_block_others(self, server: Running, numbers: DatasetEntry) -> None:
        (name,) = add_files(numbers, 1, 30_000_000)
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(60)
            connection.connect(server.address)
            connection.sendall(request("GET", f"/numbers/data/{name}"))
            assert status(say(server, request("GET", "/"))) == 200  # others do not wait for it
            wait_until(lambda: any("data" in line for line in server.lines))
            assert "aborted" in next(line for line in server.lines if "data" in line)

    def test_connections_beyond_the_limit_are_rejected(self, there: Workspace, numbers: DatasetEntry) -> None:
        with served(there, connections=20, connections_each=5) as server:
            held = [socket.create_connection(server.address, timeout=60) for _ in range(5)]
            for _ in range(30):
                heard = say(server, request("GET", "/numbers/refs/head"))
                assert status(heard) == 429 and b"Retry-After" in heard
            for connection in held:
                connection.close()
            wait_until(lambda: status(say(server, request("GET", "/numbers/refs/head"))) == 200)
        with served(there, connections=3, connections_each=5) as server:
            held = [socket.create_connection(server.address, timeout=60) for _ in range(3)]
            assert status(say(server, request("GET", "/"))) == 503
            for connection in held:
                connection.close()

    def test_pipelined_requests_are_throttled(self, server: Running) -> None:
        with socket.create_connection(server.address, timeout=60) as connection:
            connection.setblocking(False)
            sent, one = 0, b"GET /numbers/refs/head HTTP/1.1\r\nHost: localhost\r\n\r\n"
            with suppress(ConnectionResetError, BrokenPipeError):
                # It reads no more of them than it answers, and nobody reads the answers.
                while sent < 50_000_000 and select.select([], [connection], [], 0.5)[1]:
                    sent += connection.send(one * 1000)
            assert sent < 50_000_000
        assert status(say(server, request("GET", "/"))) == 200


class TestRequests:
    @pytest.mark.parametrize("headers", [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Content-Length: 0\r\nContent-Length: 40",
        b"Content-Length: +0", b"Content-Length: -1", b"Content-Length: 0x1", b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding : chunked", b"A: b\r\n c: d", b"A: b\0c",
        b"Host: y", b"A: " + b"b" * 100_000, b"A: b\r\n" * 10_000 + b"A: b", b"A\x7f: b", b"no colon",
    ], ids=lambda sent: sent[:24].decode())  # fmt: skip
    def test_malformed_headers_are_rejected(self, lasting: Running, headers: bytes) -> None:
        inner = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self.refuses(lasting, b"GET /a HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n\r\n" + inner)

    @pytest.mark.parametrize("sent", [
        b"GET /a\r\nHost: localhost\r\n\r\n", b"GET /a HTTP/9.9\r\nHost: x\r\n\r\n", b"\0" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ], ids=range(5))  # fmt: skip
    def test_malformed_request_lines_are_rejected(self, lasting: Running, sent: bytes) -> None:
        self.refuses(lasting, sent)

    @staticmethod
    def refuses(lasting: Running, sent: bytes) -> None:
        """Sends it; nothing of it is done."""
        heard = say(lasting, sent)
        assert status(heard) in (400, 0)  # 0: it went away in the middle of what was sent
        assert not any("smuggled" in line for line in lasting.lines)
        assert b"Traceback" not in heard and b"aiohttp" not in heard

    def test_body_of_get_is_not_a_second_request(self, lasting: Running) -> None:
        inner = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
        heard = say(lasting, request("GET", "/", f"Content-Length: {len(inner)}", body=inner))
        assert status(heard) == 200 and heard.count(b"HTTP/1.1 ") == 1
        assert not any("smuggled" in line for line in lasting.lines)

    def test_no_secret_is_ever_told(self, server: Running, token: str) -> None:
        path = f"/numbers/refs/head?token={token}"
        say(server, request("GET", path, f"Authorization: Bearer {token}"))
        say(server, request("GET", "/%0d%0aerror:%1b[31m", f"Authorization: Bearer {token}"))
        assert len(server.lines) == 2
        assert token not in "".join(server.lines)
        assert all(line.isprintable() for line in server.lines)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server for tests that change nothing."""
    workspace = Workspace.init(tmp_path_factory.mktemp("lasting") / "there")
    with served(workspace) as running:
        yield running
