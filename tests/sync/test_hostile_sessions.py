"""Clients of the smart protocol that mean ill: silent, slow, endless or wrong sessions over real sockets."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import RemoteAccess
from odf_engine.sync.pull import clone_dataset
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.tokens import Tokens
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import copy_into, describe, make_root, objects
from tests.sync.in_process_server import Running, served

pytestmark = pytest.mark.net

ASK = json.dumps({"begin_after": None, "stop_at": None, "force_update_if_diverged": False}).encode()
TEXT, BINARY, CLOSE, PING = 0x81, 0x82, 0x88, 0x89


class Session:
    """A WebSocket by hand: everything that is wrong can be sent.

    Attributes:
        status: of the answer to the upgrade; 101 when there is a session.
    """

    def __init__(self, server: Running, path: str, *headers: str, buffer: int = 0) -> None:
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(60)
        self.socket.connect(server.address)
        lines = [
            f"GET {path} HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", *headers, "", "",
        ]  # fmt: skip
        self.socket.sendall("\r\n".join(lines).encode())
        self._heard = b""
        while b"\r\n\r\n" not in self._heard and (data := self.socket.recv(4096)):
            self._heard += data
        head, _, self._heard = self._heard.partition(b"\r\n\r\n")
        self.status = int(head.split(b" ", 2)[1]) if head else 0

    def send(self, payload: bytes, first: int = TEXT, masked: bool = True) -> None:
        """Sends a frame."""
        size, mask = len(payload), 0x80 if masked else 0
        if size < 126:
            header = struct.pack("!BB", first, mask | size)
        elif size < 1 << 16:
            header = struct.pack("!BBH", first, mask | 126, size)
        else:
            header = struct.pack("!BBQ", first, mask | 127, size)
        self.socket.sendall(header + (bytes(4) if masked else b"") + payload)  # a mask of zeros

    def rest(self) -> bytes:
        """All that comes until the server ends the session."""
        with suppress(ConnectionResetError, BrokenPipeError):
            while data := self.socket.recv(1 << 16):
                self._heard += data
        return self._heard

    def close(self) -> None:
        """Goes away."""
        self.socket.close()


@pytest.fixture
def numbers(here: Workspace, there: Workspace) -> DatasetEntry:
    """A dataset of somebody else."""
    return copy_into(there, make_root(here, slices=1))


@pytest.fixture
def server(there: Workspace, numbers: DatasetEntry) -> Iterator[Running]:
    """Serves it, and takes pushes."""
    with served(there, allow_push=True, idle_seconds=0.3, most_message_bytes=1 << 16) as running:
        yield running


@pytest.fixture
def login(there: Workspace) -> str:
    """What may push."""
    return "Authorization: Bearer " + Tokens(there.odf).create("friend")[1]


@pytest.mark.parametrize("what", ["pull", "push"])
def test_silence_ends_a_session(server: Running, login: str, what: str) -> None:
    for sent in (b"", ASK, b'{"current_head": null, "transfer_plan"'):
        with closing(Session(server, f"/numbers/{what}", login)) as session:
            assert session.status == 101
            if sent:
                session.send(sent)
            session.rest()


@pytest.mark.parametrize("what", ["pull", "push"])
@pytest.mark.parametrize(
    ("payload", "first"),
    [
        (b"", TEXT), (b"[]", TEXT), (b"null", TEXT), (b'"\xff"', TEXT), (b"{" * 50_000, TEXT), (b"{}", TEXT),
        (ASK, BINARY), (b"x" * 200, PING), (b"{}", 0x00), (ASK, 0xF1), (b"x", CLOSE), (b"\x03", 0x8F),
        (b'{"begin_after": "f1620", "stop_at": 5}', TEXT), (b"a" * (1 << 17), TEXT),
        (b'{"current_head": 7, "transfer_plan": {"num_blocks": -1}}', TEXT),
    ],
    ids=range(15),
)  # fmt: skip
@pytest.mark.complete(after=10)
def test_wrong_messages_end_a_session(
    server: Running, numbers: DatasetEntry, login: str, what: str, payload: bytes, first: int
) -> None:
    if what == "pull" and payload == b"{}" and first == TEXT:
        return  # which asks for everything
    before = objects(numbers.dataset.folder)
    with closing(Session(server, f"/numbers/{what}", login)) as session:
        with suppress(ConnectionResetError, BrokenPipeError):
            session.send(payload, first)
            session.send(ASK)
        heard = session.rest()
        assert b"Traceback" not in heard and str(numbers.dataset.folder).encode() not in heard
    assert objects(numbers.dataset.folder) == before


def test_session_without_permission_is_rejected(server: Running, there: Workspace, login: str) -> None:
    make_root(there, "mine")
    for path, status in (("/numbers/push", 401), ("/numbers/pull", 101), ("/nothing/pull", 404)):
        with closing(Session(server, path)) as session:
            assert session.status == status
    for path, status in (("/mine/push", 403), ("/info/numbers/x/push", 404), ("/numbers/push", 101)):
        with closing(Session(server, path, login)) as session:
            assert session.status == status
    other = Tokens(there.odf).create("other", ["oth%"])[1]
    with closing(Session(server, "/numbers/push", f"Authorization: Bearer {other}")) as session:
        assert session.status == 403
    with served(there) as read_only, closing(Session(read_only, "/numbers/push", login)) as session:
        assert session.status == 403


def test_sessions_beyond_the_limit_are_rejected(there: Workspace, numbers: DatasetEntry, login: str) -> None:
    with served(there, allow_push=True, sessions=8, sessions_each=3, pushes=2) as server:
        sessions = [Session(server, "/numbers/pull") for _ in range(6)]
        assert sorted(session.status for session in sessions) == [101] * 3 + [503] * 3
        pushes = [Session(server, "/numbers/push", login), Session(server, "/a/push", login)]
        pushes += [Session(server, "/NUMBERS/push", login), Session(server, "/b/push", login)]
        assert [pushe.status for pushe in pushes] == [101, 101, 409, 503]
        for session in sessions + pushes:
            session.close()
    assert server.lines  # it has ended: nothing of them keeps it


def test_slow_readers_do_not_delay_others(there: Workspace, here: Workspace, access: RemoteAccess) -> None:
    numbers, chance = make_root(there), random.Random(1)
    for _ in range(10):
        describe(numbers, chance.randbytes(200_000).hex())  # which packs to half, and is long as a message
    with served(there) as server:
        slow = [Session(server, "/numbers/pull", buffer=4096) for _ in range(12)]
        for session in slow:
            session.send(ASK)
            session.send(b"{}")
        remote = open_remote(f"odf+{server.url}numbers/", access)
        with closing(remote):
            pulled, _ = clone_dataset(here, DatasetAlias(None, "pulled"), remote, access.reporter, parallel=2)
        assert objects(pulled.dataset.folder) == objects(numbers.dataset.folder)
        assert any("/numbers/pull 101" in line for line in server.lines)
        assert len(list((there.odf / "cache").iterdir())) == 0  # messages have no names
        for session in slow:
            session.close()
