"""FTP client: sessions over FTP and FTPS, with resumable transfers."""

from __future__ import annotations

import ftplib
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.connector import Connector

_CHUNK: Final = 1 << 18
_IMPLICIT_PORT: Final = 990
_MAX_REPLY_BYTES: Final = 1 << 18
_TIME: Final = re.compile(r"213 +(\d{14})(\.\d+)?")
_MAX_LISTING_BYTES: Final = 256 << 20
_NO_COMMAND: Final = ("500", "501", "502", "504")


class FtpFileVersion(NamedTuple):
    """Modification time and size in bytes, as far as the server reports them."""

    modified: Timestamp | None
    size: int | None


class FtpEntry(NamedTuple):
    """A file or folder of a folder. A server may report no modification time."""

    name: str
    is_folder: bool
    modified: Timestamp | None


class FtpSession:
    """A session for one file or folder; a context manager.

    Methods raise:
        ftplib.Error: the server refuses.
        EOFError, OSError: the connection broke.
        ValueError: the path has characters that FTP does not allow.
        SourceUnavailable: the address policy forbids the host.
    """

    def __init__(self, url: str, connector: Connector, read_timeout: float) -> None:
        parts = urlsplit(url)
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        self._host, self._port = parts.hostname or "", parts.port
        self._path = unquote(parts.path.removeprefix("/")).partition(";type=")[0]
        self._connector = connector
        kind = _Client if parts.scheme.lower() == "ftp" else _TlsClient
        self._client = kind(connector, read_timeout)

    def __enter__(self) -> Self:
        """Connect and log in."""
        client = self._client
        try:
            client.open(self._host, self._port)
            client.login(self._user, self._password)
            if isinstance(client, _TlsClient):
                client.prot_p()
            client.voidcmd("TYPE I")
        except BaseException:
            client.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def version(self) -> FtpFileVersion:
        """Return modification time and size, or None where the server does not report them."""
        modified = size = None
        with suppress(ftplib.error_perm, ValueError):
            if match := _TIME.match(self._client.sendcmd(f"MDTM {self._path}")):
                modified = _parse_time(match[1])
        with suppress(ftplib.error_perm, ValueError):
            size = self._client.size(self._path)
        return FtpFileVersion(modified, size)

    def begin_transfer(self, start: int) -> socket.socket | None:
        """Return a data connection for the file from byte ``start``, or None if the server cannot resume."""
        try:
            sock = self._client.transfercmd(f"RETR {self._path}", start or None)
        except ftplib.error_perm as error:
            if start and str(error)[:3] in _NO_COMMAND:
                return None
            raise
        self._connector.register(sock)
        return sock

    def read_transfer(self, sock: socket.socket) -> Iterator[bytes]:
        """Yield the bytes of a transfer, and wait for its confirmation."""
        try:
            while chunk := sock.recv(_CHUNK):
                yield chunk
            if isinstance(sock, ssl.SSLSocket):
                with suppress(OSError):
                    sock.unwrap()
        finally:
            sock.close()
        self._client.voidresp()

    def list_folder(self) -> list[FtpEntry]:
        """Return the files and folders of the folder, unsorted.

        Without MLSD, the server reports names only: folders are not recognised.
        """
        path = self._path.rstrip("/")
        try:
            lines = self._read_lines(f"MLSD {path}".rstrip())
        except ftplib.error_perm as error:
            if str(error)[:3] not in _NO_COMMAND:
                raise
            names = self._read_lines(f"NLST {path}".rstrip())
            return [FtpEntry(line.rpartition("/")[2], False, None) for line in names]
        entries: list[FtpEntry] = []
        for line in lines:
            text, _, name = line.partition(" ")
            facts = dict(fact.lower().split("=", 1) for fact in text.split(";") if "=" in fact)
            if (kind := facts.get("type")) in ("cdir", "pdir"):
                continue
            entries.append(FtpEntry(name, kind == "dir", _parse_time(facts.get("modify", ""))))
        return entries

    def _read_lines(self, command: str) -> list[str]:
        sock = self._client.transfercmd(command)
        self._connector.register(sock)
        data = bytearray()
        for chunk in self.read_transfer(sock):
            data += chunk
            if len(data) > _MAX_LISTING_BYTES:
                raise ftplib.Error("the server sends a list of files without end")
        return data.decode("utf-8", "surrogateescape").splitlines()


def _parse_time(text: str) -> Timestamp | None:
    with suppress(ValueError):
        return Timestamp.from_datetime(datetime.strptime(text[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC))
    return None


class _Client(ftplib.FTP):
    """A client that connects through a connector; data come from the address of the control connection."""

    trust_server_pasv_ipv4_address = False
    _reply_bytes = 0

    def __init__(self, connector: Connector, read_timeout: float) -> None:
        super().__init__()
        self._connector, self._read_timeout = connector, read_timeout

    def getmultiline(self) -> str:
        """Read a reply.

        Raises:
            ftplib.Error: it does not end.
        """
        self._reply_bytes = 0
        return super().getmultiline()

    def getline(self) -> str:
        """Read a line of a reply."""
        line = super().getline()
        self._reply_bytes += len(line) + 2
        if self._reply_bytes > _MAX_REPLY_BYTES:
            raise ftplib.Error("the server sends a reply without end")
        return line

    def open(self, host: str, port: int | None) -> None:
        """Connect, and wait for the greeting."""
        default = _IMPLICIT_PORT if isinstance(self, _TlsClient) else ftplib.FTP_PORT
        self.host, self.port, self.timeout = host, port or default, self._read_timeout
        self.sock = self._wrap(self._connector.connect(host, self.port))
        self.sock.settimeout(self._read_timeout)
        self.af = self.sock.family
        self.file = self.sock.makefile("r", encoding=self.encoding)
        self.welcome = self.getresp()

    def _wrap(self, sock: socket.socket) -> socket.socket:
        return sock


class _TlsClient(_Client, ftplib.FTP_TLS):
    """:class:`_Client` with TLS for commands and data."""

    def __init__(self, connector: Connector, read_timeout: float) -> None:
        ftplib.FTP_TLS.__init__(self, context=connector.tls_context)
        self._connector, self._read_timeout = connector, read_timeout

    def ntransfercmd(self, cmd: str, rest: int | str | None = None) -> tuple[socket.socket, int | None]:
        """Open a data connection in the TLS session of the control connection, as many servers require."""
        sock, size = ftplib.FTP.ntransfercmd(self, cmd, rest)  # type: ignore[arg-type]
        session = self.sock.session if isinstance(self.sock, ssl.SSLSocket) else None
        return self.context.wrap_socket(sock, server_hostname=self.host, session=session), size

    def _wrap(self, sock: socket.socket) -> socket.socket:
        if self.port != _IMPLICIT_PORT:
            return sock
        return self.context.wrap_socket(sock, server_hostname=self.host)
