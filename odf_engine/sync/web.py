"""One exchange with a server over HTTP: what remotes of all kinds need of it, and nothing of datasets.

Logins go to the origin they were kept for, and stay at home when a server redirects elsewhere. What a server
answers is bounded in size, in time, and in how often it may lead on.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, TypeVar
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from odf_engine.errors import BadData, NotFound, OdfError, SourceUnavailable
from odf_engine.ingest.http import without_login  # which leaves what stands behind ?: a signature, perhaps
from odf_engine.ingest.retries import Failed, Retries, broken, retry_after
from odf_engine.sync.connections import Connection, Connections, Stop, TooMuch, TooSlow
from odf_engine.sync.places import Access
from odf_engine.sync.response import Response, printable, shown
from odf_engine.workspace.credentials import Login
from odf_engine.workspace.remotes import origin_of

_SENT: Final = 1 << 16
_URL_SAFE: Final = "%/:=&?~#+!$,;'@()*[]"
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_OURS: Final = frozenset(("host", "connection", "content-length", "transfer-encoding", "te", "upgrade"))
"""Headers that say how an exchange goes: no server decides them for us."""
_NETWORK_HINT: Final = "check the address and the network, then try again"

_Result = TypeVar("_Result")


class Web:
    """Speaks HTTP for one remote; safe from several threads. Proxies are those of the environment.

    Args:
        url: the address that a person named; ``odf+`` before its scheme is of no matter. Where a server
            leads to another origin, no login goes along, and what is no public address is not gone to
            unless this one is none either.
    """

    def __init__(self, url: str, access: Access) -> None:
        self.url = url.removeprefix("odf+")
        self.config, self.reporter = access.config.fetch, Stop(access.reporter)
        self.connections = Connections(self.url, self.config, self.reporter)
        self._home = origin_of(url)
        self._credentials = access.credentials

    def fetch(self, url: str, at_most: int, missing: tuple[int, ...] = ()) -> bytes:
        """The whole body of a small file.

        Args:
            url: http or https.
            at_most: how many bytes it may have.
            missing: further statuses by which this server says that there is nothing.

        Raises:
            BadData: it has more than ``at_most`` bytes, or is a web page instead.
            OdfError: those of :meth:`once`, after the retries that are set.
        """

        def get() -> bytes:
            with self.once("GET", url, missing=missing) as response:
                return response.whole(at_most)

        return self.retried(get)

    def retried(self, once: Callable[[], _Result]) -> _Result:
        """Calls ``once`` until it does not raise :class:`Failed`, or not in a way that may pass."""
        retries = Retries(self.config, self.reporter)
        while True:
            try:
                return once()
            except Failed as failure:
                retries.wait(failure)

    @cached_property
    def _login(self) -> Login | None:
        return self._credentials.of(self.url)

    def close(self) -> None:
        """Lets go of all connections, and ends what goes on in other threads as a cancel does; for good."""
        self.reporter.end()

    # --- One attempt ---

    def once(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Path | None = None,
        told: Callable[[int], None] | None = None,
        missing: tuple[int, ...] = (),
    ) -> Response:
        """Asks once, and follows redirects until there is an answer of success.

        Args:
            method: one that may be repeated: GET, HEAD, PUT.
            url: http or https.
            headers: go along as they are, but to this origin only.
            body: bytes, or a file.
            told: hears how many bytes of the body have gone so far.
            missing: further statuses by which this server says that there is nothing.

        Raises:
            Failed: with NotFound for 404 and 410, BadData for an answer that makes no sense, and
                SourceUnavailable for any other one, or none.
            Cancelled: at once.
        """
        given = {name: value for name, value in (headers or {}).items() if name.lower() not in _OURS}
        try:
            at, seen = quote(without_login(url), safe=_URL_SAFE), set[str]()
            self._check_way(self.url, at)
            while True:
                seen.add(at)
                own = given if given and origin_of(at) == origin_of(url) else {}
                response = self._exchange(method, at, own, body, told)
                if response.status not in _REDIRECTS:
                    break
                with response:
                    at = self._redirected(response, method, at, seen)
        except (ValueError, http.client.InvalidURL):
            problem = "the address, or a header that goes with it, has characters that are not allowed there"
            raise Failed(SourceUnavailable(problem, where=shown(url)), again=False) from None
        if 200 <= response.status < 300:
            return response
        with response:
            raise self._refused(response, missing)

    def broken(self, reason: object, url: str) -> Failed:
        """What a connection amounts to that failed."""
        self.reporter.check()
        if isinstance(reason, TooSlow):
            problem = (
                f"it sends too slowly: not even 1 KiB a second for {self.config.read_timeout_seconds:g} s"
            )
            return Failed(SourceUnavailable(problem, where=shown(url), hint=_NETWORK_HINT), again=True)
        if isinstance(reason, TooMuch):
            problem = "the server sends headers, or chunks, without end"
            return Failed(BadData(problem, where=shown(url)), again=False)
        if isinstance(reason, http.client.RemoteDisconnected):
            reason = "the server closed it without an answer"
        elif isinstance(reason, http.client.IncompleteRead):
            reason = "it ended before the end of the answer"
        elif isinstance(reason, http.client.BadStatusLine):
            reason = "the answer is not HTTP"
        elif isinstance(reason, http.client.HTTPException | ValueError) and not isinstance(reason, OSError):
            reason = printable(str(reason)) or "the answer is not HTTP"
        return broken(reason, shown(url), _NETWORK_HINT)

    def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | Path | None,
        told: Callable[[int], None] | None,
    ) -> Response:
        fresh = False
        while True:
            self.reporter.check()
            try:
                connection = self.connections.take(url, fresh=fresh)
            except OSError as error:
                raise self.broken(error, url) from None
            except OdfError as error:
                error.where = error.where or shown(url)
                raise Failed(error, again=False) from None
            try:
                self._send(connection, method, url, headers, body, told)
                answer, watched = connection.answer(self.config.read_timeout_seconds)
                return Response(self, url, connection, answer, watched)
            except (OSError, http.client.HTTPException) as error:
                self.connections.drop(connection)
                # A server may close a kept connection at any time: that is no failure.
                if connection.used and isinstance(error, ConnectionError) and not fresh:
                    fresh = True
                    continue
                if isinstance(error, OSError) and error.filename is not None:
                    raise  # the file that is sent
                raise self.broken(error, url) from None
            except BaseException:
                self.connections.drop(connection)
                raise

    def _send(
        self,
        connection: Connection,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | Path | None,
        told: Callable[[int], None] | None,
    ) -> None:
        client, parts = connection.client, urlsplit(url)
        every = {"User-Agent": "odf-workstation", "Accept": "*/*", "Accept-Encoding": "identity"}
        names = {name.lower() for name in headers}
        every = {name: value for name, value in every.items() if name.lower() not in names}
        login = self._login if origin_of(url) == self._home else None
        if login is not None and "authorization" not in names:
            every["Authorization"] = login.header
        target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
        if connection.proxy is not None:
            target = f"{parts.scheme}://{parts.netloc}{target}"
            if connection.proxy.login is not None:
                every["Proxy-Authorization"] = connection.proxy.login
        connection.sock.settimeout(self.config.read_timeout_seconds)
        client.putrequest(method, target, skip_accept_encoding=True)
        for name, value in (*every.items(), *headers.items()):
            client.putheader(name, value)
        if body is None:
            client.endheaders()
            return
        size = len(body) if isinstance(body, bytes) else body.stat().st_size
        client.putheader("Content-Length", str(size))
        client.endheaders()
        try:
            for sent in _sent(client, body, size):
                self.reporter.check()
                if told is not None:
                    told(sent)
        except (BrokenPipeError, ConnectionResetError):
            return  # whoever closes before the end may have said why

    def _redirected(self, response: Response, method: str, url: str, seen: set[str]) -> str:
        location = response.headers.get("Location")
        problem = hint = None
        if not location:
            problem = f"the server answered {response.status}, and not where it redirects to"
        elif method == "PUT" and response.status not in (307, 308):
            problem = f"the server answered {response.status} to what was sent, which cannot be followed"
        else:
            joined = urlsplit(quote(urljoin(url, location), safe=_URL_SAFE))._replace(fragment="")
            target = without_login(urlunsplit(joined))
            if target in seen:
                problem = "the server redirects in a circle"
            elif len(seen) > self.config.max_redirects:
                problem = f"the server redirects more than {self.config.max_redirects} times"
            else:
                self._check_way(url, target)
                return target
        raise Failed(SourceUnavailable(problem, where=shown(url), hint=hint), again=False)

    def _check_way(self, old: str, new: str) -> None:
        schemes = urlsplit(old).scheme, urlsplit(new).scheme
        problem = None
        if schemes[1] not in ("http", "https"):
            problem = f"the server leads to {printable(schemes[1])}:, which is not followed"
        elif schemes == ("https", "http"):
            problem = "the server leads from https to http, where anybody can listen"
        elif not urlsplit(new).hostname:
            problem = "the server leads to an address without a host"
        if problem:
            raise Failed(SourceUnavailable(problem, where=shown(old)), again=False)

    def _refused(self, response: Response, missing: tuple[int, ...]) -> Failed:
        """What an answer amounts to that is no success."""
        home = origin_of(response.url) == self._home
        login = f"odf repo login {self._home}" if home else f"it is not {self._home}, but where that leads to"
        known = home and self._login is not None
        kind: type[OdfError] = SourceUnavailable
        status, hint, again = response.status, None, False
        problem = f"the server answered {status}"
        if status in (404, 410, *missing):
            kind, problem = NotFound, f"there is nothing: {problem}"
        elif status == 401:
            problem = "does not accept the login that is kept for it" if known else "asks for a login"
            problem, hint = f"the server {problem} (401)", login
        elif status == 403:
            hint = "ask its owner whether this login may do that" if known else login
            problem = "the server forbids it (403)"
        elif status == 407:
            problem, hint = (
                "the proxy asks for a login (407)",
                "put it into http_proxy: http://user:word@host",
            )
        elif status == 413:
            problem, hint = "the server does not take files of this size (413)", "ask its owner for more"
        elif status == 416:
            kind, problem = BadData, "the file there is shorter than it should be (416)"
        elif status == 429:
            problem, hint = (
                "the server is asked too often (429)",
                "try again later, or set sync.parallel lower",
            )
            again = True
        elif status in (408, 425) or status >= 500:
            hint, again = "try again later", True
        error = kind(problem, where=shown(response.url), hint=hint)
        return Failed(error, again=again, pause=retry_after(response.headers.get("Retry-After")))


def _sent(client: http.client.HTTPConnection, body: bytes | Path, size: int) -> Iterator[int]:
    """Sends a body, and yields how much of it has gone."""
    if isinstance(body, bytes):
        for at in range(0, size, _SENT):
            client.send(body[at : at + _SENT])
            yield min(size, at + _SENT)
        return
    file: BinaryIO
    with body.open("rb") as file:
        at = 0
        while at < size and (data := file.read(min(_SENT, size - at))):
            client.send(data)
            at += len(data)
            yield at
