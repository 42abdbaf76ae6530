"""A workspace, a reporter that remembers, and a web server, for tests of ingestion."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder


@pytest.fixture
def reporter() -> Recorder:
    return Recorder()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path / "ws")


class WebServer:
    """Answers what ``answer`` writes; counts and keeps the requests."""

    def __init__(self, server: ThreadingHTTPServer, scheme: str) -> None:
        self._server = server
        self._scheme = scheme
        self.requests: list[BaseHTTPRequestHandler] = []
        self.answer: Callable[[BaseHTTPRequestHandler], None] = lambda request: reply(request, 404)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"


def reply(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    """Sends an answer; underscores in names of headers become dashes."""
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    if status != 304 and "Content_Length" not in headers:
        request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


@contextmanager
def web_server(context: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    """Serves on a free port of this machine until the block ends; with a context, over TLS."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(self)
            server.answer(self)

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def finish_request(self, request: Any, client_address: Any) -> None:
            if context is not None:
                request = context.wrap_socket(request, server_side=True)
            super().finish_request(request, client_address)

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # clients that hang up are what is tested

    http = Server(("127.0.0.1", 0), Handler)
    server = WebServer(http, "http" if context is None else "https")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture
def pulled(workspace: Workspace, runtime: SparkRuntime) -> Pulled:
    return Pulled(workspace, runtime)
