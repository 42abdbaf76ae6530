"""A small server that speaks as much of the S3 protocol as reading objects takes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

MODIFIED = "Fri, 01 Mar 2024 12:00:00 GMT"


@dataclass(frozen=True)
class Asked:
    """A request, as it was; the server's handlers live longer than one."""

    command: str
    path: str
    authorization: str | None
    range: str | None


class S3Server:
    """Has objects by ``bucket/key``; ``before`` sees each request, and may answer it and return True."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.endpoint = f"http://127.0.0.1:{server.server_port}"
        self.objects: dict[str, bytes] = {}
        self.requests: list[Asked] = []
        self.before: Callable[[BaseHTTPRequestHandler], bool] = lambda request: False

    @property
    def ranges(self) -> list[str | None]:
        """The ranges that were asked for, in their order."""
        return [request.range for request in self.requests if request.command == "GET"]


def refuse(request: BaseHTTPRequestHandler, status: int, code: str) -> bool:
    """Answers with an error of S3."""
    body = f"<Error><Code>{code}</Code><Message>{code} it is</Message></Error>".encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/xml")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
    return True


def _answer(server: S3Server, request: BaseHTTPRequestHandler) -> None:
    headers = request.headers
    server.requests.append(Asked(request.command, request.path, headers["Authorization"], headers["Range"]))
    body = server.objects.get(unquote(urlsplit(request.path).path.removeprefix("/")))
    if server.before(request):
        return
    if body is None:
        refuse(request, 404, "NoSuchKey")
        return
    first, last = 0, len(body) - 1
    if asked := request.headers["Range"]:
        begin, _, end = asked.removeprefix("bytes=").partition("-")
        first, last = int(begin), min(int(end or last), last)
    request.send_response(206 if asked else 200)
    if asked:
        request.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
    request.send_header("Content-Length", str(last - first + 1))
    request.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
    request.send_header("Last-Modified", MODIFIED)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body[first : last + 1])


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Serves on a free port of this machine until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(server, self)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = S3Server(http)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    http.shutdown()
    http.server_close()
    thread.join()
