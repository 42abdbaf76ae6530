"""A small HTTP server of files over a real socket: it notes what it is asked for, and fails when told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request for a file: its path below the server, and the first byte that was asked for."""

    path: str
    start: int


class FileServer:
    """Serves a folder with ranges.

    Attributes:
        url: with a slash at its end.
        asked: every GET in its order.
        fault: called before a file is sent with its path and its bytes; what it returns is sent under the
            right Content-Length (so that fewer bytes break off); None means 404.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}/"
        self.asked: list[Asked] = []
        self.fault: Callable[[str, bytes], bytes | None] = lambda path, data: data
        self.lock = threading.Lock()

    def forget(self) -> list[Asked]:
        """What was asked for since the last time."""
        with self.lock:
            asked, self.asked = self.asked, []
        return asked


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: FileServer

    def do_GET(self) -> None:
        start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        path = self.path.lstrip("/")
        with self.files.lock:
            self.files.asked.append(Asked(path, start))
        try:
            data = (self.files.folder / path).read_bytes()
        except OSError:
            data = None
        sent = None if data is None else self.files.fault(path, data)
        if data is None or sent is None:
            self.send_error(404)
            return
        ranged = "Range" in self.headers
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        length = max(len(data), len(sent)) - start
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(sent[start:])
        if len(sent[start:]) < length:
            self.close_connection = True

    def do_HEAD(self) -> None:
        path = self.files.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[FileServer]:
    """Serves a folder at a free port of this machine until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    files = FileServer(folder, server.server_address[1])
    server.RequestHandlerClass = type("Handler", (_Handler,), {"files": files})
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
