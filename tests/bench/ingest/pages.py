"""A list of 1,000 pages from a server of this machine that waits 5 ms before a page.

The time is compared with the waits alone. The server is a separate process.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from odf_engine.base.config import FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.ingest.fetch.fetch_step import fetch
from odf_engine.ingest.fetch.model import FetchContext
from odf_engine.metadata.model import Container
from odf_engine.spark.runtime.session import read_resident_memory
from odf_engine.workspace.workspace import Workspace
from tests.bench.measure import SPAWN, Figure, Metric, Peaks, Size, processor_seconds, timed

ITEMS = 100
WAIT = 0.005
METRICS = {
    "pages": Metric("pages by number", "waits of the server", "<= 1.3x"),
    "links": Metric("pages by next links", "waits of the server", "<= 1.3x"),
    "processor": Metric("processor time of a page", unit="ms"),
    "memory": Metric("additional memory", goal="<= 150 MB", unit="MB"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    pages, workspace = size.pick(1000, 20), Workspace.init(folder / "ws")
    with run_server(5) as url:
        fetch_all(workspace, 5, ["--url", url, "--page", "page"])  # imports modules
    idle, processor = read_resident_memory(os.getpid()) / 1e6, processor_seconds()
    peaks = Peaks([os.getpid()])
    with run_server(pages) as url, peaks.watch():
        by_number = timed(lambda: fetch_all(workspace, pages, ["--url", url, "--page", "page"]))
        processor = processor_seconds() - processor
        by_link = timed(lambda: fetch_all(workspace, pages, ["--url", url, "--next", "next"]))
    return [
        METRICS["pages"].figure(by_number, pages * WAIT),
        METRICS["links"].figure(by_link, pages * WAIT),
        METRICS["processor"].figure(processor * 1000 / pages),
        METRICS["memory"].figure(peaks.together - idle),
    ]


def fetch_all(workspace: Workspace, pages: int, arguments: list[str]) -> None:
    """Fetch all pages of a list."""
    job = workspace.folder / "job"
    job.mkdir(exist_ok=True)
    context = FetchContext(
        resolve=workspace.resolve_path,
        root=workspace.folder,
        dataset=None,  # pyright: ignore[reportArgumentType]
        state=None,
        job=job,
        config=FetchConfig(),
        reporter=Reporter(),
    )
    lines = 0
    for payload in fetch(Container("odf/pages:1", args=arguments), context):
        with payload.path.open("rb") as file:
            lines += sum(1 for _ in file)
    assert lines == pages * ITEMS, f"{lines:,} items"


@contextlib.contextmanager
def run_server(pages: int) -> Iterator[str]:
    """Serve a list in a process. Yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/items"
        process = SPAWN.Process(target=serve, args=(listener, url, pages), daemon=True)
        process.start()
        try:
            with urllib.request.urlopen(url) as response:  # the process has started
                response.read()
            yield url
        finally:
            process.terminate()
            process.join()


def serve(listener: socket.socket, url: str, pages: int) -> None:
    """Answer requests, one connection after the other."""
    answers = [answer(url, number, pages) for number in range(1, pages + 2)]
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, contextlib.suppress(ConnectionError):
            while request := connection.recv(1 << 16):
                path = request.split(b" ", 2)[1]
                number = int(path.partition(b"page=")[2] or 1)
                time.sleep(WAIT)
                connection.sendall(answers[number - 1])


def answer(url: str, number: int, pages: int) -> bytes:
    """Return the response with a page."""
    first = (number - 1) * ITEMS
    items = [
        {"id": at, "at": "2024-01-02T03:04:05Z", "device": f"device-{at % 977}", "value": at / 97}
        for at in range(first, first + ITEMS if number <= pages else first)
    ]
    following = f"{url}?page={number + 1}" if number < pages else None
    body = json.dumps({"items": items, "total": pages * ITEMS, "next": following}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
