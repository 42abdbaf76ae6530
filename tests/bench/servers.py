"""nginx and ``odf serve`` as separate processes, and a slow network before them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.measure import require
from tests.ports import unused_port

NGINX = """
worker_processes auto; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {root}; default_type application/octet-stream; }}
}}
"""


@contextlib.contextmanager
def run_nginx(folder: Path, root: Path) -> Iterator[str]:
    """Serve the files below a folder with nginx. Yields the URL."""
    require("nginx")
    port = unused_port()
    for parent in (folder, *(path for path in root.parents if folder in path.parents)):
        parent.chmod(0o755)  # its workers have another user
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, root=root))
    server = subprocess.Popen(["nginx", "-c", str(config)], stdout=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)


@contextlib.contextmanager
def run_odf_serve(workspace: Path) -> Iterator[tuple[str, int]]:
    """Serve a workspace with ``odf serve``, which must exit with 0. Yields the URL and the process id."""
    command = [sys.executable, "-m", "odf_tui", "serve", "-w", str(workspace), "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"], server.pid
    finally:
        server.terminate()
        code = server.wait(20)
    assert code == 0, f"odf serve exits with {code}"


@contextlib.contextmanager
def run_slow_network(url: str, seconds: float) -> Iterator[str]:
    """Forward connections to the server of a URL, with a latency (round trip). Yields the URL to use."""
    parts = urlsplit(url)
    loop = asyncio.new_event_loop()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)  # the handshake
        server_reader, server_writer = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(
            _forward(reader, server_writer, seconds / 2), _forward(server_reader, writer, seconds / 2)
        )

    server = loop.run_until_complete(asyncio.start_server(connect, "127.0.0.1"))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        port = server.sockets[0].getsockname()[1]
        yield parts._replace(netloc=f"127.0.0.1:{port}").geturl()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Forward bytes, each of them with the same delay."""
    loop = asyncio.get_running_loop()
    while data := await reader.read(1 << 16):
        loop.call_later(delay, writer.write, data)
    loop.call_later(delay, writer.close)
