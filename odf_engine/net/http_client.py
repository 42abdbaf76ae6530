"""HTTP client: requests with redirects, credentials, limits and retries."""

from __future__ import annotations

import http.client
import io
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self, TypeVar
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import urllib3

from odf_engine.base.config import FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Cancelled, NotFound, OdfError, SourceUnavailable
from odf_engine.net.address_policy import AddressPolicy, HomeNetwork
from odf_engine.net.connector import Connector
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.net.download import (
    AttemptFailed,
    RetryPolicy,
    StoppableReporter,
    connection_failure,
    parse_retry_after,
)
from odf_engine.net.http_connection import (
    MIN_BYTES_PER_SECOND,
    ConnectionPool,
    GuardedConnection,
    ResponseLimits,
    ResponseTooLarge,
    TransferTooSlow,
)
from odf_engine.net.urls import origin_of, redact_url, without_login

_SENT_BYTES: Final = 1 << 16
_DRAIN_BYTES: Final = 1 << 14  # read only so that the connection can be used again
_ENCODED: Final = re.compile(r"https?://[a-z0-9.:-]+/[A-Za-z0-9%/:=&?~+._-]*")
_URL_SAFE: Final = "%/:=&?~#+!$,;'@()*[]"
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_PERMANENT: Final = (301, 308)
_DEFAULTS: Final = {"User-Agent": "odf-workstation", "Accept": "*/*", "Accept-Encoding": "identity"}
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-\d+/(\d{1,18}|\*)", re.ASCII)
_CONNECTION_ERRORS: Final = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)
_Result = TypeVar("_Result")
RedirectProblem = Literal["no location", "method", "circle", "too many", "scheme", "insecure", "no host"]

_REDIRECT_ERRORS: Final[dict[RedirectProblem, str]] = {
    "no location": "the server returned {status} without a redirect target",
    "method": "the server returned {status} for an upload, which cannot be redirected",
    "circle": "redirect loop",
    "too many": "more than {most} redirects",
    "scheme": "redirect to {scheme}: is not followed",
    "insecure": "redirect from https to http is not followed",
    "no host": "redirect to a URL without a host",
}
_STATUS_ERRORS: Final = {
    401: ("authentication required (401)", None),
    403: ("access denied (403)", None),
    407: ("proxy authentication required (407)", "set the login in http_proxy: http://USER:PASSWORD@HOST"),
    413: ("file too large for the server (413)", "request a higher limit from the operator of the server"),
    416: ("the file on the server is shorter than expected (416)", None),
    421: (
        "the server does not have this host name (421)",
        "use a host name of the server; odf serve --host-name NAME adds one",
    ),
    429: ("too many requests (429)", "try again later, or reduce sync.parallel"),
}


class RequestBody(NamedTuple):
    """The body of a request: bytes or a file, and what receives the number of bytes that have been sent."""

    data: bytes | Path
    on_sent: Callable[[int], None] | None = None

    def size(self) -> int:
        """Return its number of bytes."""
        return len(self.data) if isinstance(self.data, bytes) else self.data.stat().st_size


class HttpClient:
    """HTTP client for one origin and its redirect targets; safe from several threads.

    Credentials are not sent to another origin. Redirects from https to http are not followed. Subclasses
    replace the texts of errors.

    Args:
        url: http or https; its origin is the one that the login is for.
        config: timeouts, retries, redirects.
        reporter: its cancellation ends all requests immediately.
        policy: the addresses that may be reached.
        login: returns the login, when it is first needed.
        keep_alive: use a connection for several requests. Without it, a body that is longer than its
            Content-Length can be detected.
        min_rate: bytes per second below which a transfer fails.
    """

    network_hint = "check the URL and the network, then try again"

    def __init__(
        self,
        url: str,
        config: FetchConfig,
        reporter: Reporter,
        *,
        policy: AddressPolicy,
        login: Callable[[], Login | None] = lambda: None,
        keep_alive: bool = True,
        min_rate: int = MIN_BYTES_PER_SECOND,
    ) -> None:
        self.url, self.config, self.reporter = url, config, StoppableReporter(reporter)
        self.keep_alive = keep_alive
        self._find_login = login
        connector = Connector(policy, config.connect_timeout_seconds, self.reporter)
        limits = ResponseLimits(config.read_timeout_seconds, min_rate, enforce_length=keep_alive)
        self._pool = ConnectionPool(connector, limits)
        self._link = ExitStack()
        self._link.enter_context(self.reporter.on_cancel(self._pool.close))

    @classmethod
    def for_remote(cls, url: str, access: RemoteAccess) -> Self:
        """Return a client for the server of a remote, with its stored login.

        The URL may start with ``odf+``. See :class:`HomeNetwork` for the addresses that may be reached.
        """
        url = url.removeprefix("odf+")
        policy = HomeNetwork.of(url)
        login = partial(access.credentials.of, url)
        return cls(url, access.config.fetch, access.reporter, policy=policy, login=login)

    def get_bytes(self, url: str, max_bytes: int, missing: tuple[int, ...] = ()) -> bytes:
        """Return the body of a small file.

        Args:
            url: http or https.
            max_bytes: the max bytes of the body.
            missing: statuses besides 404 and 410 that mean that there is no such file.

        Raises:
            BadData: it has more than ``max_bytes`` bytes, or is an HTML page instead.
            OdfError: as :meth:`request`, after the retries.
        """

        def get() -> bytes:
            with self.request("GET", url, missing=missing) as response:
                return response.read_all(max_bytes)

        return self.with_retries(get)

    def with_retries(self, attempt: Callable[[], _Result]) -> _Result:
        """Call ``attempt`` until it raises no temporary :class:`AttemptFailed`."""
        retries = RetryPolicy(self.config, self.reporter)
        while True:
            try:
                return attempt()
            except AttemptFailed as failure:
                retries.wait(failure)

    def abort(self) -> None:
        """End all requests that are running in other threads."""
        self._pool.close()

    def release(self, connection: GuardedConnection) -> None:
        """Keep a connection whose response was read, unless this client is closed."""
        if self.reporter.cancelled:
            connection.close()
        else:
            self._pool.release(connection)

    def close(self) -> None:
        """Close all connections, and cancel what runs in other threads; final."""
        self.reporter.end()
        self._link.close()

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        conditions: Mapping[str, str] | None = None,
        body: RequestBody | None = None,
        accepted: tuple[int, ...] = (),
        missing: tuple[int, ...] = (),
    ) -> Response:
        """Send a request, follow redirects, and return the response: one attempt.

        Args:
            method: the method of a request that may be repeated: GET, HEAD, PUT, or POST of a query.
            url: http or https.
            headers: sent to the origin of ``url`` (also over TLS) until a redirect leaves it.
            conditions: headers such as Range, which are sent to redirect targets too.
            body: the body.
            accepted: statuses besides 2xx to return.
            missing: statuses besides 404 and 410 that mean that there is no such file.

        Raises:
            AttemptFailed: with NotFound for 404 and 410, BadData for an invalid response, and
                SourceUnavailable for any other status, or a broken connection.
            Cancelled: immediately.
        """
        private = headers or {}
        try:
            at, seen, moved_to, is_permanent = _encode_url(url), set[str](), "", True
            self._raise_redirect(_redirect_problem(self.url, at), None, self.url, at)
            while True:
                seen.add(at)
                response = self._exchange(method, at, private, conditions or {}, body)
                if response.status not in _REDIRECTS:
                    break
                with response:
                    target = self._redirect_target(response, method, at, seen)
                if not _may_forward(at, target):
                    private = {}
                at = target
                is_permanent = is_permanent and response.status in _PERMANENT
                moved_to = at if is_permanent else moved_to
        except ValueError:
            raise AttemptFailed(self.address_error(url), again=False) from None
        if 200 <= response.status < 300 or response.status in accepted:
            response.moved_to = moved_to
            return response
        with response:
            raise self.status_error(response, missing)

    def where(self, url: str) -> str:
        """Return the form of a URL for error messages."""
        return printable_url(url)

    def address_error(self, url: str) -> OdfError:
        """Return the error for a URL or header that cannot be sent."""
        problem = "the URL or a header contains invalid characters"
        return SourceUnavailable(problem, where=self.where(url))

    def connection_error(self, error: BaseException, url: str) -> AttemptFailed:
        """Return the failure for an error of a connection.

        Raises:
            Cancelled: the connection was closed by the cancellation.
        """
        self.reporter.raise_if_cancelled()
        reason: object = _original_error(error)
        if isinstance(reason, TransferTooSlow):
            seconds = self.config.read_timeout_seconds
            problem = f"transfer too slow: less than 1 KiB/s for {seconds:g} s"
            slow = SourceUnavailable(problem, where=self.where(url), hint=self.network_hint)
            return AttemptFailed(slow, again=True)
        if isinstance(reason, ResponseTooLarge):
            problem = "invalid response: too many headers or chunks"
            return AttemptFailed(BadData(problem, where=self.where(url)), again=False)
        if isinstance(reason, http.client.RemoteDisconnected):
            reason = "closed by the server without a response"
        elif isinstance(reason, http.client.IncompleteRead):
            reason = "closed before the end of the response"
        elif isinstance(reason, http.client.BadStatusLine):
            reason = "the response is not HTTP"
        elif not isinstance(reason, OSError):
            reason = sanitize_text(str(reason)) or "the response is not HTTP"
        return connection_failure(reason, self.where(url), self.network_hint)

    def redirect_error(
        self, problem: RedirectProblem, response: Response | None, old: str, new: str
    ) -> OdfError:
        """Return the error for a redirect from the URL ``old`` to ``new`` that is not followed.

        ``response`` is None if ``old`` is the URL of this client.
        """
        status = response.status if response is not None else None
        scheme, max_redirects = sanitize_text(urlsplit(new).scheme), self.config.max_redirects
        text = _REDIRECT_ERRORS[problem].format(status=status, scheme=scheme, most=max_redirects)
        return SourceUnavailable(text, where=self.where(old))

    def status_error(self, response: Response, missing: tuple[int, ...] = ()) -> AttemptFailed:
        """Return the failure for a status that is not one of success."""
        status, again = response.status, is_temporary(response.status)
        kind: type[OdfError] = SourceUnavailable
        text = f"the server returned {status}"
        text, hint = _STATUS_ERRORS.get(status, (text, "try again later" if again else None))
        if status in (404, 410, *missing):
            kind, again, text, hint = NotFound, False, f"not found: the server returned {status}", None
        elif status == 416:
            kind = BadData
        elif status in (401, 403):
            home = origin_of(response.url) == self._home
            hint = f"run odf repo login {self._home}"
            if not home:
                hint = f"check the redirect from {self._home}"
            elif self._login is not None and status == 401:
                text = "the stored login was rejected (401)"
            elif self._login is not None:
                hint = "check the permissions of the login with the operator of the server"
        error = kind(text, where=self.where(response.url), hint=hint)
        return AttemptFailed(error, again=again, pause=parse_retry_after(response.headers.get("Retry-After")))

    @cached_property
    def _home(self) -> str:
        return origin_of(_encode_url(self.url))

    @cached_property
    def _login(self) -> Login | None:
        return self._find_login()

    def _exchange(
        self,
        method: str,
        url: str,
        private: Mapping[str, str],
        conditions: Mapping[str, str],
        body: RequestBody | None,
    ) -> Response:
        parts = urlsplit(url)
        headers = self._headers(url, private, conditions)
        size = 0 if body is None else body.size()
        if body is not None:
            headers["Content-Length"] = str(size)
        while True:
            self.reporter.raise_if_cancelled()
            connection: GuardedConnection | None = None
            try:
                connection = self._pool.acquire(parts)
                target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                if (proxy := connection.proxy_used) is not None and parts.scheme == "http":
                    target = f"http://{parts.netloc}{target}"
                    headers |= {"Proxy-Authorization": proxy.login} if proxy.login is not None else {}
                pieces = None if body is None else self._body_pieces(body, size)
                return Response(self, url, connection, connection.exchange(method, target, headers, pieces))
            except BaseException as error:
                if connection is not None:
                    connection.close()
                self.reporter.raise_if_cancelled()
                if isinstance(error, OdfError) and not isinstance(error, Cancelled):
                    error.where = error.where or self.where(url)
                    raise AttemptFailed(error, again=False) from None
                if not isinstance(error, _CONNECTION_ERRORS) or getattr(error, "filename", None) is not None:
                    raise  # also for the file that is sent
                # A server may close an idle connection at any time: that is no failure.
                if connection is None or not connection.is_reused or not isinstance(error, ConnectionError):
                    raise self.connection_error(error, url) from None

    def _headers(self, url: str, private: Mapping[str, str], conditions: Mapping[str, str]) -> dict[str, str]:
        given = {**private, **conditions}
        names = {name.lower() for name in given}
        headers = {name: value for name, value in _DEFAULTS.items() if name.lower() not in names} | given
        login = self._login
        if login is not None and "authorization" not in names and origin_of(url) == self._home:
            headers["Authorization"] = login.header
        return headers if self.keep_alive else {**headers, "Connection": "close"}

    def _body_pieces(self, body: RequestBody, size: int) -> Iterator[bytes]:
        with io.BytesIO(body.data) if isinstance(body.data, bytes) else body.data.open("rb") as file:
            sent = 0
            while sent < size and (piece := file.read(min(_SENT_BYTES, size - sent))):
                yield piece
                sent += len(piece)
                self.reporter.raise_if_cancelled()
                if body.on_sent is not None:
                    body.on_sent(sent)

    def _redirect_target(self, response: Response, method: str, url: str, seen: set[str]) -> str:
        location = response.headers.get("Location", "")
        # Headers are decoded as ISO 8859-1: the same restores the bytes that the server sent.
        target = _encode_url(urljoin(url, quote(location, safe=_URL_SAFE, encoding="iso-8859-1")))
        problem = _redirect_problem(url, target)
        if not location:
            problem = "no location"
        elif method == "PUT" and response.status not in (307, 308):
            problem = "method"
        elif target in seen:
            problem = "circle"
        elif len(seen) > self.config.max_redirects:
            problem = "too many"
        self._raise_redirect(problem, response, url, target)
        return target

    def _raise_redirect(
        self, problem: RedirectProblem | None, response: Response | None, old: str, new: str
    ) -> None:
        if problem is not None:
            raise AttemptFailed(self.redirect_error(problem, response, old, new), again=False)


class Response:
    """A response whose body is read in pieces; a context manager.

    Attributes:
        url: after all redirects.
        moved_to: after the permanent redirects that came first, or "" if there are none.
        length: bytes of the body by Content-Length, if there is one.
    """

    def __init__(
        self, client: HttpClient, url: str, connection: GuardedConnection, raw: http.client.HTTPResponse
    ) -> None:
        self._client, self._connection, self._raw = client, connection, raw
        self._reader = connection.reader
        self._is_broken = False
        self.moved_to = ""
        self.url, self.status, self.reason = url, raw.status, sanitize_text(raw.reason or "")
        self.headers: Mapping[str, str] = urllib3.HTTPHeaderDict(raw.headers.items())
        self.length = raw.length if client.keep_alive else _number(self.headers.get("Content-Length"))

    @property
    def content_type(self) -> str:
        """Media type in lower case, without parameters, or ""."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def content_range(self) -> tuple[int, int | None] | None:
        """First byte of a part and total size (if known), by Content-Range, or None if absent."""
        match = _CONTENT_RANGE.match(self.headers.get("Content-Range", ""))
        return (int(match[1]), None if match[2] == "*" else int(match[2])) if match else None

    def iter_chunks(self, max_bytes: int) -> Generator[bytes, None, None]:
        """Yield the body, up to ``max_bytes`` of it; also what arrived before the connection broke.

        Raises:
            AttemptFailed: the connection broke, or is too slow. An early end of a body without Content-Length
                is not detected.
        """
        with closing(self.iter_views(max_bytes)) as views:
            for view in views:
                yield bytes(view)

    def iter_views(self, max_bytes: int) -> Generator[memoryview, None, None]:
        """Yield the body as :meth:`iter_chunks` does, without copies: a view is valid until the next one."""
        # Chunk headers need some bytes. A server could send chunks of one byte without end.
        self._reader.start_body(2 * max_bytes + (1 << 16))
        while max_bytes > 0 and not self._raw.isclosed():
            view, failure = self._read_piece(max_bytes)
            max_bytes -= len(view)
            if view:
                yield view
            self._client.reporter.raise_if_cancelled()
            if failure is not None:
                raise self._body_failure(failure)

    def read_all(self, max_bytes: int) -> bytes:
        """Return the body, which must be a file.

        Raises:
            AttemptFailed: it broke off, it has more than ``max_bytes`` bytes, or it is an HTML page.
        """
        too_long = (self.length or 0) > max_bytes
        data = b"".join(self.iter_chunks(max_bytes + 1)) if not too_long else self.peek()
        self.check_file(data)
        if too_long or len(data) > max_bytes:
            raise self._invalid(f"response too large: more than {max_bytes:,} bytes")
        return data

    def peek(self) -> bytes:
        """Return the first bytes of a body that may be left unread."""
        with suppress(AttemptFailed), closing(self.iter_chunks(512)) as pieces:
            return next(pieces, b"")
        return b""

    def check_file(self, data: bytes | memoryview) -> None:
        """Check the first bytes of a body.

        Raises:
            AttemptFailed: they belong to an HTML page, or the body is compressed.
        """
        start = bytes(data[:512]).lstrip()[:16].lower()
        is_html = self.content_type in ("text/html", "application/xhtml+xml")
        if start.startswith((b"<!doctype html", b"<html")) or (is_html and start.startswith(b"<")):
            hint = "check that the URL is that of a dataset, or run odf repo login URL"
            raise self._invalid("the server returned an HTML page instead of a dataset file", hint)
        encoding = self.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            problem = f"unexpected Content-Encoding {sanitize_text(encoding)}"
            raise self._invalid(problem, "report the error to the operator of the server")

    def has_surplus(self, seconds: float) -> bool:
        """Return whether more bytes arrive within some seconds. Requires a client without keep-alive."""
        self._reader.limit_wait(seconds)
        try:
            return not self._raw.isclosed() and bool(self._raw.read1(1))
        except _CONNECTION_ERRORS:
            return False

    def close(self) -> None:
        """Release the connection; it is used again if the rest of the body is short."""
        if self._client.keep_alive and not self._raw.isclosed() and (self._raw.length or 0) <= _DRAIN_BYTES:
            with suppress(AttemptFailed, OdfError):
                for _ in self.iter_chunks(_DRAIN_BYTES):
                    pass
        if self._raw.isclosed() and not self._is_broken and self._connection.sock is not None:
            self._client.release(self._connection)
        else:
            self._raw.close()
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_piece(self, max_bytes: int) -> tuple[memoryview, Exception | None]:
        """Wait for the first byte; return the available bytes, and the error that followed."""
        buffer, count = self._connection.buffer[:max_bytes], 0
        try:
            while count < len(buffer) and (size := self._read_into(buffer[count:])):
                count += size
                if self._raw.isclosed() or not self._reader.has_more():
                    break
        except (*_CONNECTION_ERRORS, ValueError) as error:
            self._is_broken = True
            return buffer[:count], error
        return buffer[:count], None

    def _read_into(self, buffer: memoryview) -> int:
        """Read available bytes of the body; return their number, which is 0 at its end."""
        if not self._raw.chunked:
            count = self._raw.readinto(buffer)
            if not count and self._raw.length:
                raise http.client.IncompleteRead(b"", self._raw.length)
            return count
        data = self._raw.read1(len(buffer))  # to fill the buffer, chunks would be waited for
        buffer[: len(data)] = data
        if not data:
            self._raw.close()
        return len(data)

    def _body_failure(self, error: Exception) -> AttemptFailed:
        left = self._raw.length
        if left is None or not isinstance(_original_error(error), http.client.IncompleteRead):
            return self._client.connection_error(error, self.url)
        problem = f"connection error: closed {left:,} bytes before the end of the response"
        return AttemptFailed(SourceUnavailable(problem, where=self._client.where(self.url)), again=True)

    def _invalid(self, problem: str, hint: str | None = None) -> AttemptFailed:
        return AttemptFailed(BadData(problem, where=self._client.where(self.url), hint=hint), again=False)


def printable_url(url: str) -> str:
    """Return a URL without login and query, which may hold a signature, and without control characters."""
    return sanitize_text(redact_url(url), 200)


def sanitize_text(text: str, max_length: int = 80) -> str:
    """Return a text of a server without control characters, shortened."""
    plain = text if text.isprintable() else "".join(char for char in text if char.isprintable())
    return plain if len(plain) <= max_length else plain[: max_length - 1] + "…"


def is_temporary(status: int) -> bool:
    """Return whether a request with this response status may succeed later."""
    return status in (408, 425, 429) or status >= 500


def _encode_url(url: str) -> str:
    """Return the URL of a request: ASCII only, without login and fragment.

    Raises:
        ValueError: the host has no ASCII form, or the port is invalid.
    """
    if _ENCODED.fullmatch(url):  # most are: faster
        return url
    parts = urlsplit(without_login(url))
    if not parts.netloc.isascii():
        parts = parts._replace(netloc=parts.netloc.encode("idna").decode())
    return quote(urlunsplit(parts._replace(fragment="")), safe=_URL_SAFE)


def _redirect_problem(old: str, new: str) -> RedirectProblem | None:
    schemes = urlsplit(old).scheme, urlsplit(new).scheme
    if schemes[1] not in ("http", "https"):
        return "scheme"
    if schemes == ("https", "http"):
        return "insecure"
    return None if urlsplit(new).hostname else "no host"


def _may_forward(old: str, new: str) -> bool:
    """Return whether headers for one URL may be sent to another: the same origin, or the same over TLS."""
    origin = origin_of(old)
    over_tls = origin.replace("http://", "https://", 1) if urlsplit(origin).port is None else origin
    return origin_of(new) in (origin, over_tls)


def _original_error(error: BaseException) -> BaseException:
    """Return the error that urllib3 wrapped."""
    while isinstance(error, urllib3.exceptions.HTTPError):
        wrapped = [error.__cause__, *error.args]
        nested = next((reason for reason in wrapped if isinstance(reason, BaseException)), None)
        if nested is None:
            break
        error = nested
    return error


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.strip().isdigit() else None
