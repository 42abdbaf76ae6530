"""The S3 server of moto, behind a proxy that records requests and injects faults."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.exceptions import MissingBucket
from moto.s3.models import get_canned_acl, s3_backends
from moto.server import ThreadedMotoServer


@dataclass(frozen=True)
class Request:
    """A request that arrived; the handler of the server is used for several."""

    command: str
    path: str
    authorization: str | None
    range: str | None
    condition: str | None


class S3Server:
    """A service with one bucket, ``bucket``.

    Attributes:
        objects: the objects of the service, by ``BUCKET/KEY``.
        before: is called with each request; may answer it and return True.
        key: access key that requests must have; None: any, or none.
        page: maximum number of entries of a list; None: as requested.
        cut: number of bytes after which bodies of responses break off; None: never.
        held: is waited for before a body breaks off.
        ignores_conditions: whether conditional writes succeed always.
    """

    def __init__(self, server: ThreadingHTTPServer, moto: tuple[str, int]) -> None:
        self.endpoint = f"http://127.0.0.1:{server.server_port}"
        self.moto = moto
        self.objects = _Objects()
        self.requests: list[Request] = []
        self.before: Callable[[BaseHTTPRequestHandler], bool] = lambda request: False
        self.key: str | None = None
        self.page: int | None = None
        self.cut: int | None = None
        self.held = threading.Event()
        self.held.set()
        self.ignores_conditions = False

    @property
    def ranges(self) -> list[str | None]:
        """The requested ranges, in order."""
        return [request.range for request in self.requests if request.command == "GET"]

    @property
    def uploads(self) -> int:
        """Number of incomplete multipart uploads."""
        return len(_backend().buckets["bucket"].multiparts)

    def publish(self) -> None:
        """Let everybody read the objects, without credentials."""
        for key in _backend().buckets["bucket"].keys.values():
            key.set_acl(get_canned_acl("public-read"))

    def forget(self) -> list[Request]:
        """Return the requests since the last call."""
        found, self.requests = self.requests, []
        return found


class _Objects(MutableMapping[str, bytes]):
    """The objects of moto, without requests."""

    def __getitem__(self, path: str) -> bytes:
        bucket, _, key = path.partition("/")
        try:
            found = _backend().get_object(bucket, key)
        except MissingBucket:
            raise KeyError(path) from None
        if found is None:
            raise KeyError(path)
        return found.value

    def __setitem__(self, path: str, data: bytes) -> None:
        bucket, _, key = path.partition("/")
        _backend().put_object(bucket, key, data)

    def __delitem__(self, path: str) -> None:
        bucket, _, key = path.partition("/")
        _backend().delete_object(bucket, key)

    def __iter__(self) -> Iterator[str]:
        return iter([f"bucket/{key}" for key in list(_backend().buckets["bucket"].keys)])

    def __len__(self) -> int:
        return len(list(iter(self)))


def _backend() -> Any:
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]


def refuse(request: BaseHTTPRequestHandler, status: int, code: str) -> bool:
    """Answer with an error of S3."""
    answer(request, f"<Error><Code>{code}</Code><Message>{code} it is</Message></Error>".encode(), status)
    return True


def answer(request: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    """Answer with XML."""
    request.send_response(status)
    request.send_header("Content-Type", "application/xml")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


class _Handler(BaseHTTPRequestHandler):
    """Forwards requests to moto."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_of: S3Server
    content = b""
    _moto: http.client.HTTPConnection | None = None

    def do_GET(self) -> None:
        server, headers = self.server_of, self.headers
        size = int(headers["Content-Length"] or 0)
        if len(body := self.rfile.read(size)) < size:
            raise ConnectionError("the client is gone")
        self.content = body
        condition = headers["If-Match"] or headers["If-None-Match"]
        request = Request(self.command, self.path, headers["Authorization"], headers["Range"], condition)
        server.requests.append(request)
        if server.before(self):
            return
        if server.key is not None and f"Credential={server.key}/" not in (request.authorization or ""):
            refuse(self, 403, "AccessDenied" if request.authorization is None else "InvalidAccessKeyId")
            return
        self._forward(server, body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _forward(self, server: S3Server, body: bytes) -> None:
        hidden = ("if-match", "if-none-match") if server.ignores_conditions else ()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in hidden}
        path = self.path
        if server.page is not None and "list-type=2" in path:
            path += f"&max-keys={server.page}"
        if self._moto is None:
            self._moto = http.client.HTTPConnection(*server.moto)
        with _moto_lock:
            self._moto.request(self.command, path, body, headers)
            response = self._moto.getresponse()
            data = response.read()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "server", "date"):
                self.send_header(name, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(data[: server.cut])
        if server.cut is not None and len(data) > server.cut:
            self.wfile.flush()
            server.held.wait(600)
            raise ConnectionError("cut")

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()
        if self._moto is not None:
            self._moto.close()

    def log_message(self, *args: object) -> None:
        pass


_moto: ThreadedMotoServer | None = None
# moto shares state between requests: an abort beside the upload of a part can fail with status 500.
_moto_lock = threading.Lock()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Serve on a free port of this machine until the block ends; moto itself runs until the process ends."""
    global _moto
    if _moto is None:
        _moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        _moto.start()
    s3_backends.reset()
    _backend().create_bucket("bucket", "us-east-1")
    handler = type("Handler", (_Handler,), {})
    web = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    web.daemon_threads = True
    handler.server_of = server = S3Server(web, _moto.get_host_and_port())
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    web.shutdown()
    web.server_close()
    thread.join()
