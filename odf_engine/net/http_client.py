"""HTTP client: one bounded request with redirects, credentials and retries."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Final, Self, TypeVar
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from odf_engine.errors import BadData, NotFound, OdfError, SourceUnavailable
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.net.download import AttemptFailed, RetryPolicy, connection_failure, parse_retry_after
from odf_engine.net.http_connection import (
    Connection,
    ConnectionPool,
    GuardedReader,
    ResponseTooLarge,
    StoppableReporter,
    TransferTooSlow,
)
from odf_engine.net.urls import origin_of, redact_url, without_login

_SENT: Final = 1 << 16
_URL_SAFE: Final = "%/:=&?~#+!$,;'@()*[]"
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_OURS: Final = frozenset(("host", "connection", "content-length", "transfer-encoding", "te", "upgrade"))
"""Headers that say how an exchange goes: no server decides them for us."""
_NETWORK_HINT: Final = "check the address and the network, then try again"
_Result = TypeVar("_Result")


class HttpClient:
    """Speaks HTTP for one remote; safe from several threads. Proxies are those of the environment.

    Args:
        url: the address that a person named; ``odf+`` before its scheme is of no matter. Where a server
            leads to another origin, no login goes along, and what is no public address is not gone to
            unless this one is none either.
    """

    def __init__(self, url: str, access: RemoteAccess) -> None:
        self.url = url.removeprefix("odf+")
        self.config, self.reporter = access.config.fetch, StoppableReporter(access.reporter)
        self.connections = ConnectionPool(self.url, self.config, self.reporter)
        self._home = origin_of(url)
        self._credentials = access.credentials

    def get_bytes(self, url: str, at_most: int, missing: tuple[int, ...] = ()) -> bytes:
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
            with self.request("GET", url, missing=missing) as response:
                return response.read_all(at_most)

        return self.with_retries(get)

    def with_retries(self, once: Callable[[], _Result]) -> _Result:
        """Calls ``once`` until it does not raise :class:`AttemptFailed`, or not in a way that may pass."""
        retries = RetryPolicy(self.config, self.reporter)
        while True:
            try:
                return once()
            except AttemptFailed as failure:
                retries.wait(failure)

    @cached_property
    def _login(self) -> Login | None:
        return self._credentials.of(self.url)

    def close(self) -> None:
        """Lets go of all connections, and ends what goes on in other threads as a cancel does; for good."""
        self.reporter.end()

    # --- One attempt ---

    def request(
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
            raise AttemptFailed(SourceUnavailable(problem, where=printable_url(url)), again=False) from None
        if 200 <= response.status < 300:
            return response
        with response:
            raise self._refused(response, missing)

    def connection_error(self, reason: object, url: str) -> AttemptFailed:
        """What a connection amounts to that failed."""
        self.reporter.raise_if_cancelled()
        if isinstance(reason, TransferTooSlow):
            problem = (
                f"it sends too slowly: not even 1 KiB a second for {self.config.read_timeout_seconds:g} s"
            )
            return AttemptFailed(
                SourceUnavailable(problem, where=printable_url(url), hint=_NETWORK_HINT), again=True
            )
        if isinstance(reason, ResponseTooLarge):
            problem = "the server sends headers, or chunks, without end"
            return AttemptFailed(BadData(problem, where=printable_url(url)), again=False)
        if isinstance(reason, http.client.RemoteDisconnected):
            reason = "the server closed it without an answer"
        elif isinstance(reason, http.client.IncompleteRead):
            reason = "it ended before the end of the answer"
        elif isinstance(reason, http.client.BadStatusLine):
            reason = "the answer is not HTTP"
        elif isinstance(reason, http.client.HTTPException | ValueError) and not isinstance(reason, OSError):
            reason = sanitize_text(str(reason)) or "the answer is not HTTP"
        return connection_failure(reason, printable_url(url), _NETWORK_HINT)

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
            self.reporter.raise_if_cancelled()
            try:
                connection = self.connections.acquire(url, fresh=fresh)
            except OSError as error:
                raise self.connection_error(error, url) from None
            except OdfError as error:
                error.where = error.where or printable_url(url)
                raise AttemptFailed(error, again=False) from None
            try:
                self._send(connection, method, url, headers, body, told)
                answer, watched = connection.answer(self.config.read_timeout_seconds)
                return Response(self, url, connection, answer, watched)
            except (OSError, http.client.HTTPException) as error:
                self.connections.discard(connection)
                # A server may close a kept connection at any time: that is no failure.
                if connection.used and isinstance(error, ConnectionError) and not fresh:
                    fresh = True
                    continue
                if isinstance(error, OSError) and error.filename is not None:
                    raise  # the file that is sent
                raise self.connection_error(error, url) from None
            except BaseException:
                self.connections.discard(connection)
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
                self.reporter.raise_if_cancelled()
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
        raise AttemptFailed(SourceUnavailable(problem, where=printable_url(url), hint=hint), again=False)

    def _check_way(self, old: str, new: str) -> None:
        schemes = urlsplit(old).scheme, urlsplit(new).scheme
        problem = None
        if schemes[1] not in ("http", "https"):
            problem = f"the server leads to {sanitize_text(schemes[1])}:, which is not followed"
        elif schemes == ("https", "http"):
            problem = "the server leads from https to http, where anybody can listen"
        elif not urlsplit(new).hostname:
            problem = "the server leads to an address without a host"
        if problem:
            raise AttemptFailed(SourceUnavailable(problem, where=printable_url(old)), again=False)

    def _refused(self, response: Response, missing: tuple[int, ...]) -> AttemptFailed:
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
        error = kind(problem, where=printable_url(response.url), hint=hint)
        return AttemptFailed(error, again=again, pause=parse_retry_after(response.headers.get("Retry-After")))


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


_MAX_PIECE: Final = 0.5
"""Seconds after which a piece is handed on as it is."""
_WORTH_READING: Final = 1 << 14
"""Bytes that are read only so that the connection can be used again."""


class Response:
    """An answer, whose body comes piece by piece; a context manager.

    Attributes:
        url: where it came from, after all redirects.
        status: of HTTP.
        headers: as ``http.client`` has them.
        length: how many bytes the body has, where the server says that.
    """

    def __init__(
        self,
        web: HttpClient,
        url: str,
        connection: Connection,
        answer: http.client.HTTPResponse,
        watched: GuardedReader,
    ) -> None:
        self.url, self.status, self.headers = url, answer.status, answer.headers
        self.length = answer.length
        self._web, self._connection, self._answer, self._watched = web, connection, answer, watched
        self._left = answer.length
        self._whole, self._begun = answer.length == 0, False

    def iter_chunks(self, at_most: int) -> Generator[bytes, None, None]:
        """The body, up to ``at_most`` bytes of it, and what came of it where the connection broke.

        Raises:
            Failed: it broke, or is too slow. What ends early without a failure is not noticed here.
        """
        # Chunks need something around them; those of a few bytes each are made to keep us busy.
        self._watched.body(2 * at_most + (1 << 16))
        view = self._connection.buffer
        while at_most > 0 and not self._whole:
            count, failure = self._fill(view[: min(at_most, len(view), self._left or at_most)])
            at_most -= count
            if count:
                yield bytes(view[:count])
            self._web.reporter.raise_if_cancelled()
            if isinstance(failure, http.client.IncompleteRead) and self._left is not None:
                problem = f"the connection ended {self._left:,} bytes before the end of the answer"
                raise AttemptFailed(SourceUnavailable(problem, where=printable_url(self.url)), again=True)
            if failure is not None:
                raise self._web.connection_error(failure, self.url) from None

    def read_all(self, at_most: int) -> bytes:
        """The whole body, which has to be that of a file.

        Raises:
            Failed: it broke off, it has more than ``at_most`` bytes, or it is a page for people.
        """
        too_long = (self.length or 0) > at_most
        data = b"".join(self.iter_chunks(at_most + 1)) if not too_long else self.peek()
        self.check_file(data)
        if too_long or len(data) > at_most:
            problem = f"the server sends more than the {at_most:,} bytes that this may have"
            raise AttemptFailed(BadData(problem, where=printable_url(self.url)), again=False)
        return data

    def peek(self) -> bytes:
        """The first bytes of a body that is not wanted, to see what it is."""
        with suppress(AttemptFailed):
            return next(self.iter_chunks(512), b"")
        return b""

    def check_file(self, data: bytes) -> None:
        """Looks whether the first bytes of a body are those of a file, as it is.

        Raises:
            Failed: they are those of a page for people, or packed.
        """
        start = data[:512].lstrip()[:16].lower()
        typed = self.headers.get_content_type() in ("text/html", "application/xhtml+xml")
        if start.startswith((b"<!doctype html", b"<html")) or (typed and start.startswith(b"<")):
            problem = "the server answers with a web page (HTML) instead of a file of a dataset"
            hint = "is this the address of a dataset? perhaps one has to log in first: odf repo login URL"
            raise AttemptFailed(BadData(problem, where=printable_url(self.url), hint=hint), again=False)
        encoding = self.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            problem = (
                f"the server sends the file packed as {sanitize_text(encoding)}, though it was asked not to"
            )
            raise AttemptFailed(
                BadData(problem, where=printable_url(self.url), hint="tell its owner"), again=False
            )

    def close(self) -> None:
        """Lets go of the connection; one whose answer was read to its end is used again."""
        if not self._whole and not self._answer.will_close and (self._left or 0) <= _WORTH_READING:
            with suppress(AttemptFailed, OdfError):
                for _ in self.iter_chunks(_WORTH_READING):
                    pass
        self._answer.close()
        if self._whole and not self._answer.will_close:
            self._web.connections.release(self._connection)
        else:
            self._web.connections.discard(self._connection)

    def _fill(self, view: memoryview) -> tuple[int, Exception | None]:
        """Fills the view, or as much of it as comes within a moment, or before what went wrong."""
        filled, begun = 0, monotonic()
        try:
            while filled < len(view) and (not filled or monotonic() - begun < _MAX_PIECE):
                count = self._some(view[filled:])
                filled += count
                if self._left is not None:
                    self._left -= count
                    self._whole = self._left == 0
                if not count:
                    self._whole = self.length is None
                    return filled, None if self._whole else http.client.IncompleteRead(b"")
        except (OSError, ValueError, http.client.HTTPException) as error:
            return filled, error
        return filled, None

    def _some(self, view: memoryview) -> int:
        answer: Any = self._answer
        if answer.chunked:
            data = answer.read1(len(view))
            view[: len(data)] = data
            return len(data)
        if answer.fp is None:
            return 0
        if not self._begun:  # some came with the headers: no need to wait for more
            self._begun = True
            data = answer.fp.read1(len(view))
            view[: len(data)] = data
            return len(data)
        return answer.fp.readinto1(view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def printable_url(url: str) -> str:
    """A URL as it may be shown: without a login, and without a query, which may hold a signature."""
    parts = urlsplit(redact_url(url))
    return sanitize_text(urlunsplit(parts._replace(query="", fragment="")), 200)


def sanitize_text(text: str, at_most: int = 80) -> str:
    """What a server says, as it may be shown."""
    plain = text if text.isprintable() else "".join(char for char in text if char.isprintable())
    return plain if len(plain) <= at_most else plain[: at_most - 1] + "…"
