"""Fetching over HTTP: conditional requests, redirects, retries, and a download that can be stopped."""

from __future__ import annotations

import base64
import errno
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from time import monotonic, time
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from odf_engine.errors import Cancelled, SourceUnavailable
from odf_engine.ingest.fetch import ETAG, LAST_MODIFIED, SOURCE_NAME, FetchContext, Payload
from odf_engine.metadata.model import FromMetadata, FromSystemTime, SourceState, Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter

_CHUNK: Final = 1 << 18
_PAUSE_BASE: Final = 0.5
_PAUSE_LONGEST: Final = 30.0
_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_URL_SAFE: Final = "%/:=&?~#+!$,;'@()*[]"
_Result = TypeVar("_Result")


def fetch_http(step: Url, context: FetchContext) -> Payload | None:
    """Downloads the URL unless it is as the source state remembers it.

    Raises:
        SourceUnavailable: names the URL and the status, or what went wrong with the connection.
    """
    for attempt in range(context.config.retries + 1):
        try:
            return _Attempt(step, context).run()
        except _Failed as failure:
            if not failure.again or attempt == context.config.retries:
                raise failure.error from None
            pause = failure.pause if failure.pause is not None else _PAUSE_BASE * 2**attempt
            if pause > _PAUSE_LONGEST:
                raise failure.error from None
            context.reporter.line(f"{failure.error}; trying again in {pause:.1f} s", "warning")
            _sleep(pause, context.reporter)
    raise AssertionError("unreachable")


class _Failed(Exception):
    """An attempt that failed; ``again`` says whether another one makes sense, after ``pause`` seconds."""

    def __init__(self, error: SourceUnavailable, *, again: bool, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.again, self.pause = error, again, pause


class _Attempt:
    """One request and its download."""

    def __init__(self, step: Url, context: FetchContext) -> None:
        self.step = step
        self.context = context
        self.name = _without_login(step.url)
        self.sockets: list[socket.socket] = []

    def run(self) -> Payload | None:
        try:
            return _cancellable(self._exchange, self._abort, self.context.reporter)
        except urllib.error.HTTPError as error:
            raise self._status_failure(error) from None
        except urllib.error.URLError as error:
            raise self._broken(error.reason) from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in _DISK:
                raise
            raise self._broken(error) from None
        except ValueError as error:  # a URL or a header that http.client refuses
            raise _Failed(SourceUnavailable(str(error), where=self.name), again=False) from None

    def _exchange(self) -> Payload | None:
        reporter = self.context.reporter
        config = self.context.config
        url = quote(_without_login(self.step.url), safe=_URL_SAFE)
        request = urllib.request.Request(url, headers=self._headers())
        private = {"authorization", *(header.name.lower() for header in self.step.headers or ())}
        opener = urllib.request.build_opener(
            _Redirects(private, config.max_redirects), *_handlers(self.sockets, config.read_timeout_seconds)
        )
        reporter.line(f"GET {self.name}")
        try:
            response = opener.open(request, timeout=config.connect_timeout_seconds)
        except urllib.error.HTTPError as error:
            if error.code == 304:
                reporter.line(f"{self.name} has not changed (304)")
                return None
            raise
        with response:
            if response.status != 200:
                raise urllib.error.HTTPError(
                    self.name, response.status, response.reason, response.headers, None
                )
            state = _state_of(response.headers)
            if state is not None and state == self.context.state:
                reporter.line(f"{self.name} has not changed ({state.kind} {state.value})")
                return None
            path = self.context.job / "fetched"
            size = self._download(response, path)
        reporter.line(f"{self.name}, {size:,} bytes, {f'{state.kind} {state.value}' if state else 'no ETag'}")
        modified = _moment(response.headers.get("Last-Modified"))
        event_time = None if isinstance(self.step.event_time, FromSystemTime) else modified
        if modified is None and isinstance(self.step.event_time, FromMetadata):
            reporter.line("the server gives no Last-Modified: event time is the time of ingestion", "warning")
        return Payload(path, self.name, state, event_time)

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": "odf-workstation", "Accept": "*/*", "Accept-Encoding": "identity"}
        parts = urlsplit(self.step.url)
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        headers.update({header.name: header.value for header in self.step.headers or ()})
        state = self.context.state
        if state is not None and state.kind == ETAG:
            headers["If-None-Match"] = state.value
        elif state is not None and state.kind == LAST_MODIFIED:
            with suppress(ValueError):
                headers["If-Modified-Since"] = format_datetime(
                    Timestamp.parse(state.value).to_datetime().replace(microsecond=0), usegmt=True
                )
        return headers

    def _download(self, response: Any, path: Path) -> int:
        reporter = self.context.reporter
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        size = 0
        with path.open("wb") as file:
            while chunk := response.read(_CHUNK):
                reporter.check()
                file.write(chunk)
                size += len(chunk)
                reporter.amount(bytes=size, total_bytes=total)
        if total is not None and size != total:
            raise http.client.HTTPException(f"the connection ended after {size:,} of {total:,} bytes")
        return size

    def _abort(self) -> None:
        for connected in self.sockets:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _broken(self, reason: object) -> _Failed:
        if isinstance(reason, ssl.SSLCertVerificationError):
            text, again = f"its certificate is not valid: {reason.verify_message}", False
        elif isinstance(reason, socket.gaierror):
            text, again = "its host name is not known", False
        elif isinstance(reason, TimeoutError):
            text, again = "it did not answer in time", True
        elif isinstance(reason, OSError):
            text, again = f"the connection failed: {reason.strerror or reason}", True
        else:
            text, again = f"the connection broke: {reason}", True
        hint = "check the URL and the network, then pull again"
        return _Failed(SourceUnavailable(text, where=self.name, hint=hint), again=again)

    def _status_failure(self, error: urllib.error.HTTPError) -> _Failed:
        code = error.code
        hint = "pull again later"
        if code in (404, 410):
            hint = "check fetch.url in the manifest"
        elif code in (401, 403, 407):
            hint = "give what the server asks for in fetch.headers"
        elif 300 <= code < 400:
            hint = "the server redirects in a way that cannot be followed"
        message = f"the server answered {code} {error.reason}".rstrip()
        again = code == 429 or code >= 500
        pause = _retry_after(error.headers.get("Retry-After")) if error.headers else None
        error.close()
        return _Failed(SourceUnavailable(message, where=self.name, hint=hint), again=again, pause=pause)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but does not hand the manifest's headers (keys, tokens) to another host."""

    def __init__(self, private: set[str], most: int) -> None:
        self.private = private
        # These are class variables to urllib, which looks them up on the instance.
        self.__dict__.update(max_redirections=most, max_repeats=max(1, min(4, most)))

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            request.headers = {
                name: value for name, value in request.headers.items() if name.lower() not in self.private
            }
        return request


def _handlers(sockets: list[socket.socket], read_timeout: float) -> list[urllib.request.BaseHandler]:
    """Handlers that note their sockets, so that a cancelled download can be cut off."""

    def noted(kind: type[http.client.HTTPConnection]) -> Callable[..., http.client.HTTPConnection]:
        class Noted(kind):
            def connect(self) -> None:
                super().connect()
                self.sock.settimeout(read_timeout)
                sockets.append(self.sock)

        return Noted

    class Plain(urllib.request.HTTPHandler):
        def http_open(self, req: Any) -> Any:
            return self.do_open(noted(http.client.HTTPConnection), req)  # type: ignore[arg-type]

    class Secure(urllib.request.HTTPSHandler):
        def https_open(self, req: Any) -> Any:
            connection: Any = noted(http.client.HTTPSConnection)
            return self.do_open(connection, req, context=ssl.create_default_context())

    return [Plain(), Secure()]


def _cancellable(work: Callable[[], _Result], abort: Callable[[], None], reporter: Reporter) -> _Result:
    """Runs ``work`` in a thread, so that a cancel is heeded at once even while a connection hangs."""
    outcome: list[_Result] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def body() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()

    with reporter.on_cancel(done.set):
        threading.Thread(target=body, name="download", daemon=True).start()
        done.wait()
    if reporter.cancelled:
        abort()
        raise Cancelled
    if failure:
        raise failure[0]
    return outcome[0]


def _sleep(seconds: float, reporter: Reporter) -> None:
    end = monotonic() + seconds
    woken = threading.Event()
    with reporter.on_cancel(woken.set):
        woken.wait(max(0.0, end - monotonic()))
    reporter.check()


def _state_of(headers: Any) -> SourceState | None:
    if etag := headers.get("ETag"):
        return SourceState(SOURCE_NAME, ETAG, etag)
    modified = _moment(headers.get("Last-Modified"))
    return SourceState(SOURCE_NAME, LAST_MODIFIED, str(modified)) if modified else None


def _moment(text: str | None) -> Timestamp | None:
    if not text:
        return None
    try:
        return Timestamp.from_datetime(parsedate_to_datetime(text))
    except (ValueError, OverflowError):
        return None


def _retry_after(text: str | None) -> float | None:
    if not text:
        return None
    if text.strip().isdigit():
        return float(text)
    moment = _moment(text)
    return max(0.0, moment.ns / 1e9 - time()) if moment else None


def _without_login(url: str) -> str:
    """The URL without user and password, which are sent as a header and shown nowhere."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
