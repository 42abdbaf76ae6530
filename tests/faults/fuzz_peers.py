"""Targets that hear from sockets: answers of servers, requests to ``odf serve``, commands to the worker.

Servers run in threads of the process of the target, and end with it.
"""

from __future__ import annotations

import ftplib
import json
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.query import Query
from odf_engine.net.address_policy import AddressPolicy
from odf_engine.net.connector import Connector
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.net.ftp import FtpSession
from odf_engine.sync.remotes.base import ObjectFile
from odf_engine.sync.remotes.transports import open_remote, open_repository
from odf_engine.sync.server.service import DatasetService
from odf_engine.worker import protocol
from odf_engine.worker.process import Worker
from odf_engine.workspace.workspace import Workspace
from tests.faults.fuzz_scene import Scene
from tests.sync.in_process_server import Running
from tests.worker.programs import FakeSpark

_SECONDS: Final = 3.0
_HASH: Final = Multihash.sha3_256(b"x")


class _AnswerServer:
    """Sends the same bytes to every client; ``by_line``: a line of them for each line that it receives."""

    def __init__(self, by_line: bool = False) -> None:
        self.data = b""
        self._by_line = by_line
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_SECONDS)
        with suppress(OSError), connection, connection.makefile("rb") as requests:
            if self._by_line:
                for line in self.data.splitlines(keepends=True):
                    connection.sendall(line)
                    requests.readline()
            else:
                while requests.readline().strip():
                    pass
                connection.sendall(self.data)


@cache
def _answers(by_line: bool = False) -> _AnswerServer:
    return _AnswerServer(by_line)


@cache
def _access(workspace: Path) -> RemoteAccess:
    config = Workspace(workspace).config
    patience = {"read_timeout_seconds": _SECONDS, "connect_timeout_seconds": _SECONDS, "retries": 0}
    config = msgspec.structs.replace(config, fetch=msgspec.structs.replace(config.fetch, **patience))
    return RemoteAccess(config, Credentials(workspace / ".odf"), Reporter())


def _try_each(*calls: Callable[[], object]) -> None:
    for call in calls:
        try:
            call()
        except OdfError as error:
            assert error.format_line.isprintable(), f"not printable: {error.format_line!r}"
            assert len(error.format_line) <= 2000, "a long error"


_HEADERS: Final = (
    *(f"Content-Length: {length}" for length in ("68", "99", "-5", "\xb2", "1_0", "9" * 5000)),
    *(f"Content-Range: {span}" for span in ("bytes 5-9/300", f"bytes {'5' * 5000}-9/*", "\xb2")),
    *(f"Retry-After: {wait}" for wait in ("\xb2", "9" * 5000, "-1", "Thu, 99 Zzz 9999")),
    *(f"Location: {url}" for url in ("//[::1", "http://a:99999999/", "?", "//", "http://[v1.x]/")),
    *("Location: http://\xff\xff/", "Content-Type: text/html; charset=\xff", "Content-Type: ;;;="),
    *("Content-Encoding: \x1b[0m", "Content-Encoding: gzip", "Transfer-Encoding: chunked"),
    *("Connection: close", ": nothing", "no colon", " folded", "\x00: \x00"),
)  # fmt: skip
_STATUS: Final = ("200 OK", "206 Part", "302 Go", "503 Busy", "2000")
_BODIES: Final = (str(_HASH).encode(), b"5;x=y\r\nhello\r\n0\r\n\r\n")
HTTP_ANSWERS: Final = [
    f"HTTP/1.1 {_STATUS[at % 5]}\r\n{header}\r\n\r\n".encode("latin-1") + _BODIES[at % 2]
    for at, header in enumerate(_HEADERS)
]


def run_http_answer(data: bytes, scene: Scene) -> None:
    """A server of a dataset."""
    server = _answers()
    server.data = data
    file = ObjectFile("data", _HASH, 300)
    with closing(open_remote(f"http://127.0.0.1:{server.port}/x/", _access(scene.workspace))) as remote:
        _try_each(
            remote.head,
            lambda: remote.read("blocks", _HASH, 1 << 20),
            lambda: b"".join(map(bytes, remote.chunks(file))),
            lambda: b"".join(map(bytes, remote.chunks(file, 5))),
        )


_ROW: Final = {"name": "a.b", "kind": "Root", "blocks": 7, "head": str(_HASH), "keywords": ["x"]}
LISTS: Final = [json.dumps({"datasets": [_ROW]}).encode()]


def run_list(data: bytes, scene: Scene) -> None:
    """A list of datasets; the answer around it is well-formed."""
    server = _answers()
    server.data = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    )
    with closing(open_repository(f"http://127.0.0.1:{server.port}/", _access(scene.workspace))) as repository:
        _try_each(lambda: list(repository.datasets()))


S3_LISTS: Final = [
    b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
    b"<Prefix></Prefix><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><Delimiter>/</Delimiter><IsTruncated>false"
    b"</IsTruncated><CommonPrefixes><Prefix>city/</Prefix></CommonPrefixes><Contents><Key>x&amp;y</Key><Size>7"
    b"</Size><LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>",
    b"<Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>",
]  # fmt: skip


def run_s3_list(data: bytes, scene: Scene) -> None:
    """A list of a bucket; the answer around it is well-formed."""
    server = _answers()
    server.data = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    )
    url = f"s3+http://127.0.0.1:{server.port}/bucket/"
    with closing(open_repository(url, _access(scene.workspace))) as repository:
        _try_each(lambda: list(repository.datasets()))


FTP_ANSWERS: Final = [
    b"220 ready\r\n331 password\r\n230 in\r\n200 binary\r\n213 20240305100000\r\n213 1234\r\n"
    b"227 passive (127,0,0,1,0,9)\r\n350 rest\r\n150 opening\r\n226 done\r\n",
    b"220-hello\r\n220 all\r\n230 in\r\n200 I\r\n550 no\r\n213 x\r\n229 (|||9|)\r\n425 no\r\n",
]  # fmt: skip
FTP_ERRORS: Final = (OdfError, *ftplib.all_errors, ValueError)
"""Those that :class:`FtpSession` documents; the fetch step translates them."""


def run_ftp_answer(data: bytes, scene: Scene) -> None:
    """A server of files."""
    server = _answers(by_line=True)
    server.data = data
    url = f"ftp://user:password@127.0.0.1:{server.port}/x"
    with FtpSession(url, Connector(AddressPolicy(), 0.3, Reporter()), 0.3) as session:
        session.version()
        if (transfer := session.begin_transfer(5)) is not None:
            list(session.read_transfer(transfer))


def requests(scene: Scene) -> list[bytes]:
    """Requests to a server of datasets."""
    dataset = Workspace(scene.workspace).resolve("numbers").dataset
    data = next(iter(dataset.slices())).physical_hash
    headers = (
        b"Host: h:1\r\nAccept: application/json\r\nX-Forwarded-Host: a;b\r\nForwarded: for=1;proto=https\r\n"
    )
    lines = [
        b"GET /", b"GET /numbers/refs/head", b"HEAD /numbers/?a=b",
        f"PUT /numbers/data/{data}".encode(), f"GET /numbers/data/{data}".encode(),
        f"GET /numbers/blocks/{dataset.head()}".encode(),
        b"GET /a%20b/refs/%2e%2e", b"GET http://h/numbers/",
    ]  # fmt: skip
    ranged = b'Range: bytes=1-2\r\nIf-None-Match: "x"\r\nAuthorization: Bearer odf_x\r\n'
    upgrade = (
        b"GET /numbers/pull HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        b"\x81\x82\x00\x00\x00\x00{}"
    )
    return [upgrade, *(line + b" HTTP/1.1\r\n" + headers + ranged + b"\r\n" for line in lines)]


@cache
def _served(workspace: Path) -> Running:
    opened = Workspace(workspace)
    limits = msgspec.structs.replace(opened.config.serve, idle_seconds=1)
    running = Running(DatasetService(opened, limits=limits, allow_push=True, patterns=()))
    running.start()
    return running


def run_request(data: bytes, scene: Scene) -> None:
    """A request, and the end of the connection: an answer, and no failure within the server."""
    server = _served(scene.workspace)
    with socket.create_connection(server.address, _SECONDS) as connection, suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
    failures, server.failures[:] = list(server.failures), []
    assert not failures, failures[0]


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class _WorkerThread:
    """The worker of an empty workspace, whose jobs do nothing."""

    def __init__(self, folder: Path) -> None:
        Workspace.init(folder)
        self.errors = _Errors()
        logging.getLogger("odf_engine").addHandler(self.errors)
        self.worker = Worker(
            folder, start_spark=lambda begin: FakeSpark(folder), executor=lambda *_: {}, spark_later=True
        )
        self._thread = threading.Thread(target=self.worker.run, daemon=True)
        self._thread.start()
        self._address = str(folder / ".odf" / "worker.sock")

    def exchange(self, data: bytes) -> list[bytes]:
        """Send lines, and the end of the connection; the answers."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            while True:
                with suppress(FileNotFoundError, ConnectionRefusedError):
                    connection.connect(self._address)
                    break
            received = b""
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while chunk := connection.recv(1 << 16):
                    received += chunk
        return received.splitlines()


@cache
def _worker(folder: Path) -> _WorkerThread:
    return _WorkerThread(folder / "home")


COMMANDS: Final = [
    protocol.encode_line(each)
    for each in (
        protocol.Submit(Pull("x", after=["y"]), "x", "t", {"A": "b"}), protocol.Cancel("12", "t"),
        protocol.Subscribe(since=7), protocol.Ping(), protocol.NotifyChanged(),
        protocol.Submit(Query("SELECT 1", pins={"a": "b"}), "x", "t"),
    )
]  # fmt: skip


def run_command(data: bytes, scene: Scene) -> None:
    """Lines to the worker: each is answered or refused, and the worker answers the next client."""
    worker = _worker(scene.folder)
    for line in worker.exchange(data):
        protocol.decode_event(line)
    assert worker.exchange(protocol.encode_line(protocol.Ping())), "the worker does not answer"
    failed, worker.errors.records = worker.errors.records, []
    assert not failed, failed[0].getMessage()
