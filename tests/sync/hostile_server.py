"""A server that means ill, over real sockets: it serves a folder well, but for what it was told about."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

Behaviour = Callable[["Exchange"], None]


class Asked(NamedTuple):
    """A request; names of headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Exchange:
    """One request, and the socket that the answer goes to; ``sent`` counts its bytes, ``open`` keeps it."""

    def __init__(self, server: HostileServer, sock: socket.socket, asked: Asked) -> None:
        self.server, self.sock, self.asked = server, sock, asked
        self.open = False

    def send(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self.sock.sendall(data)
        self.server.sent += len(data)

    def answer(self, status: int | str, body: bytes = b"", *headers: str, length: int | None = None) -> None:
        """A proper answer; the connection stays open for the next request."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
        self.send("\r\n".join([*lines, "", ""]).encode() + body)
        self.open = length is None or length == len(body)

    def file(self) -> bytes:
        """What should have been sent."""
        return (self.server.folder / self.asked.path.lstrip("/")).read_bytes()

    def well(self) -> None:
        """Sends the file as servers do."""
        try:
            data = self.file()
        except OSError:
            self.answer("404 Not Found", b"nothing here")
            return
        span = self.asked.headers.get("range")
        if span is None:
            self.answer("200 OK", data)
        else:
            start = int(span[6:].rstrip("-"))
            self.answer(206, data[start:], f"Content-Range: bytes {start}-{len(data) - 1}/{len(data)}")

    def reset(self) -> None:
        """Ends the connection the hard way."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def forever(self, data: bytes) -> None:
        """Sends the same until nobody wants it any more."""
        while not self.server.over.is_set():
            self.send(data)

    def slowly(self, data: bytes, pause: float = 0.02) -> None:
        """Sends a byte, and a while later another one."""
        for byte in data:
            if self.server.over.wait(pause):
                return
            self.send(bytes([byte]))


class HostileServer:
    """Attributes:
    url: with a slash at its end.
    says: what it does for paths that start with a text; for all others it serves the folder.
    asked: all requests in their order.
    sent: how many bytes of answers it could send.
    """

    def __init__(self, folder: Path, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.folder, self._tls = folder, tls
        host, port = listening.getsockname()
        self.url = f"{'https' if tls else 'http'}://{'localhost' if tls else host}:{port}/"
        self.says: dict[str, Behaviour] = {}
        self.asked: list[Asked] = []
        self.sent = 0
        self.connections = 0
        self.over = threading.Event()
        self._open: set[socket.socket] = set()

    def serve(self, sock: socket.socket) -> None:
        """Answers one connection after the other request."""
        self.connections += 1
        with suppress(OSError, ValueError), contextlib.ExitStack() as stack:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            self._open.add(sock)
            stack.callback(self._open.discard, sock)
            stack.enter_context(sock)
            reader = stack.enter_context(sock.makefile("rb"))
            while (asked := _read(reader)) is not None and not self.over.is_set():
                self.asked.append(asked)
                exchange = Exchange(self, sock, asked)
                found = [prefix for prefix in self.says if asked.path.lstrip("/").startswith(prefix)]
                self.says[max(found, key=len)](exchange) if found else exchange.well()
                if not exchange.open:
                    break
            reader.close()

    def stop(self) -> None:
        """Ends all connections."""
        self.over.set()
        for sock in list(self._open):
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _read(reader: object) -> Asked | None:
    line = reader.readline()  # type: ignore[attr-defined]
    if not line.strip():
        return None
    method, path, _ = line.decode().split(" ", 2)
    headers = {}
    while (line := reader.readline().decode().strip()) != "":  # type: ignore[attr-defined]
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = reader.read(int(headers.get("content-length", "0")))  # type: ignore[attr-defined]
    return Asked(method, path, headers, body)


@contextmanager
def hostile(
    folder: Path, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> Iterator[HostileServer]:
    """Serves a folder at a free port until the end of the block."""
    with socket.create_server((host, 0), backlog=64) as listening:
        server = HostileServer(folder, listening, tls)
        threads: list[threading.Thread] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    sock, _ = listening.accept()
                    thread = threading.Thread(target=server.serve, args=(sock,), daemon=True)
                    threads.append(thread)
                    thread.start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            server.stop()
            accepting.join(5)
            for thread in threads:
                thread.join(5)
