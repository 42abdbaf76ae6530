"""Fetches FTP and FTPS URLs."""

from __future__ import annotations

import ftplib
import json
import re
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from odf_engine.errors import BadData, OdfError, SourceUnavailable
from odf_engine.ingest.fetch.model import LAST_MODIFIED, SOURCE_NAME, FetchContext, Payload
from odf_engine.metadata.model import FromMetadata, FromSystemTime, SourceState, Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.address_policy import connect_tcp
from odf_engine.net.download import (
    AttemptFailed,
    PartialDownload,
    connection_failure,
    is_disk_error,
    run_with_retries,
)
from odf_engine.net.urls import without_login

_CHUNK: Final = 1 << 18
_IMPLICIT_PORT: Final = 990
_TIME: Final = re.compile(r"213 +(\d{14})(\.\d+)?")
_NO_REST: Final = ("500", "501", "502", "504")


def fetch_ftp(step: Url, context: FetchContext) -> Payload | None:
    """Downloads the file unless its modification time is the one that the source state remembers.

    A server that does not tell modification times gives nothing to remember.

    Raises:
        SourceUnavailable: names the URL and what the server answered, or what broke the connection.
        BadData: the file was written to all the while.
    """
    url = context.substitute_variables(step.url)
    partial = PartialDownload(context.downloads or context.job / "downloads", json.dumps([url]))
    attempt = _Attempt(step, url, context, partial)
    return run_with_retries(
        attempt.run, partial=partial, abort=attempt.abort, config=context.config, reporter=context.reporter
    )


class _Attempt:
    """One session with the server, as often as it takes."""

    def __init__(self, step: Url, url: str, context: FetchContext, partial: PartialDownload) -> None:
        self.step = step
        self.context = context
        self.partial = partial
        self.name = without_login(step.url)
        self.parts = urlsplit(url)
        self.path = unquote(self.parts.path.removeprefix("/")).partition(";type=")[0]
        self.sockets: list[socket.socket] = []

    def run(self) -> Payload | None:
        client = self._client()
        try:
            self._log_in(client)
            return self._exchange(client)
        except (ftplib.error_perm, ftplib.error_temp) as error:
            raise self._refused(str(error)) from None
        except OSError as error:
            if is_disk_error(error):
                raise
            raise connection_failure(error, self.name) from None
        except (EOFError, ftplib.Error) as error:
            raise connection_failure(str(error) or "the server closed it", self.name) from None
        except ValueError:
            error = SourceUnavailable("the URL has characters that FTP does not allow", where=self.name)
            raise AttemptFailed(error, again=False) from None
        except OdfError as error:
            error.where = error.where or self.name
            raise
        finally:
            client.close()

    def abort(self) -> None:
        for connected in self.sockets:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _client(self) -> _Client:
        if self.parts.scheme.lower() == "ftp":
            return _Client(self.sockets, self.context)
        return _SecureClient(self.sockets, self.context)

    def _log_in(self, client: _Client) -> None:
        secure = isinstance(client, _SecureClient)
        port = self.parts.port or (_IMPLICIT_PORT if secure else ftplib.FTP_PORT)
        self.context.reporter.log(f"connecting to {self.name}")
        client.open(self.parts.hostname or "", port)
        client.login(unquote(self.parts.username or ""), unquote(self.parts.password or ""))
        if isinstance(client, _SecureClient):
            client.prot_p()
        client.voidcmd("TYPE I")

    def _exchange(self, client: _Client) -> Payload | None:
        reporter, partial, begun = self.context.reporter, self.partial, monotonic()
        modified, total = version = self._version(client)
        state = SourceState(SOURCE_NAME, LAST_MODIFIED, str(modified)) if modified else None
        if state is not None and state == self.context.state:
            partial.restart()
            reporter.log(f"{self.name} has not changed since {modified}")
            return None
        self._download(client, {"modified": str(modified), "size": total} if modified else {}, total)
        if self._version(client) != version:
            partial.restart()
            error = BadData("was written to while it was downloaded", where=self.name, hint="pull again")
            raise AttemptFailed(error, again=True)
        path = self.context.job / "fetched"
        partial.finish(path)
        took = f"{path.stat().st_size:,} bytes in {monotonic() - begun:.1f} s"
        reporter.log(f"{self.name}, {took}, of {modified or 'an unknown time'}")
        if modified is None and isinstance(self.step.event_time, FromMetadata):
            reporter.log("the server tells no time: event time is the time of ingestion", "warning")
        return Payload(path, self.name, state, None if _by_clock(self.step) else modified)

    def _download(self, client: _Client, facts: dict[str, Any], total: int | None) -> None:
        reporter, partial = self.context.reporter, self.partial
        if not facts or partial.facts != facts:
            partial.restart(**facts)
        connection = self._transfer(client)
        try:
            while chunk := connection.recv(_CHUNK):
                reporter.raise_if_cancelled()
                partial.write(chunk)
                reporter.set_amounts(bytes=partial.size, total_bytes=total)
            if isinstance(connection, ssl.SSLSocket):
                with suppress(OSError):
                    connection.unwrap()
        finally:
            connection.close()
        client.voidresp()
        if total is not None and partial.size < total:
            raise EOFError(f"the connection ended after {partial.size:,} of {total:,} bytes")

    def _transfer(self, client: _Client) -> socket.socket:
        partial = self.partial
        if partial.size:
            self.context.reporter.log(f"RETR {self.name} from byte {partial.size:,} on")
            try:
                return self._noted(client.transfercmd(f"RETR {self.path}", partial.size))
            except ftplib.error_perm as error:
                if str(error)[:3] not in _NO_REST:
                    raise
                self.context.reporter.log(f"{self.name} cannot go on where it broke off: it starts anew")
                partial.restart(**partial.facts)
        return self._noted(client.transfercmd(f"RETR {self.path}"))

    def _noted(self, connection: socket.socket) -> socket.socket:
        self.sockets.append(connection)
        return connection

    def _version(self, client: _Client) -> tuple[Timestamp | None, int | None]:
        """Modification time and size, as far as the server tells them."""
        modified = size = None
        with suppress(ftplib.error_perm, ValueError):
            if found := _TIME.match(client.sendcmd(f"MDTM {self.path}")):
                moment = datetime.strptime(found[1], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
                modified = Timestamp.from_datetime(moment)
        with suppress(ftplib.error_perm, ValueError):
            size = client.size(self.path)
        return modified, size

    def _refused(self, answer: str) -> AttemptFailed:
        code = answer[:3]
        hint = "pull again later"
        if code == "550":
            hint = "check fetch.url in the manifest: there may be no such file, or it may not be read"
        elif code in ("530", "331", "332"):
            hint = "check the login: write it into the URL as ftp://USER:PASSWORD@HOST/PATH"
        error = SourceUnavailable(f"the server answered {answer}", where=self.name, hint=hint)
        return AttemptFailed(error, again=code.startswith("4"))


class _Client(ftplib.FTP):
    """A client that connects where it may only. Data come from the address that was connected to."""

    trust_server_pasv_ipv4_address = False

    def __init__(self, sockets: list[socket.socket], context: FetchContext) -> None:
        super().__init__()
        self._sockets = sockets
        self._fetching = context

    def open(self, host: str, port: int) -> None:
        """Connects, and waits for the greeting."""
        config = self._fetching.config
        self.host, self.port, self.timeout = host, port, config.read_timeout_seconds
        connected = connect_tcp(
            host, port, config.connect_timeout_seconds, public_only=self._fetching.untrusted
        )
        self._sockets.append(connected)
        self.sock = self._wrapped(connected)
        self.sock.settimeout(config.read_timeout_seconds)
        self._sockets.append(self.sock)
        self.af = self.sock.family
        self.file = self.sock.makefile("r", encoding=self.encoding)
        self.welcome = self.getresp()

    def _wrapped(self, connected: socket.socket) -> socket.socket:
        return connected


class _SecureClient(_Client, ftplib.FTP_TLS):
    """The same with TLS for commands and data."""

    def __init__(self, sockets: list[socket.socket], context: FetchContext) -> None:
        ftplib.FTP_TLS.__init__(self, context=ssl.create_default_context())
        self._sockets = sockets
        self._fetching = context

    def _wrapped(self, connected: socket.socket) -> socket.socket:
        if self.port != _IMPLICIT_PORT:
            return connected
        return self.context.wrap_socket(connected, server_hostname=self.host)

    def ntransfercmd(self, cmd: str, rest: int | str | None = None) -> tuple[socket.socket, int | None]:
        """Opens a connection for data in the TLS session of the commands, as many servers demand."""
        connection, size = ftplib.FTP.ntransfercmd(self, cmd, rest)  # type: ignore[arg-type]
        session = self.sock.session if isinstance(self.sock, ssl.SSLSocket) else None
        return self.context.wrap_socket(connection, server_hostname=self.host, session=session), size


def _by_clock(step: Url) -> bool:
    return isinstance(step.event_time, FromSystemTime)
