"""Fetches HTTP URLs with conditional requests and resumption."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import format_datetime
from time import monotonic
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from odf_engine.errors import BadData, OdfError, SourceUnavailable
from odf_engine.ingest.fetch.model import ETAG, LAST_MODIFIED, SOURCE_NAME, FetchContext, Payload
from odf_engine.metadata.model import FromMetadata, FromSystemTime, SourceState, Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.address_policy import connect_tcp
from odf_engine.net.download import (
    AttemptFailed,
    PartialDownload,
    connection_failure,
    is_disk_error,
    parse_http_date,
    parse_retry_after,
    run_with_retries,
)
from odf_engine.net.urls import without_login

_CHUNK: Final = 1 << 18
_URL_SAFE: Final = "%/:=&?~#+!$,;'@()*[]"
_SURPLUS_WAIT: Final = 0.1
_STRONG_SECONDS: Final = 60
"""How much older than the answer a Last-Modified must be to tell versions apart (RFC 9110 §8.8.2.2)."""
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


def fetch_http(step: Url, context: FetchContext) -> Payload | None:
    """Downloads the URL unless it is as the source state remembers it.

    Raises:
        SourceUnavailable: names the URL and the status, or what went wrong with the connection.
        BadData: the server sent more than it announced.
    """
    url = context.substitute_variables(step.url)
    headers = {header.name: context.substitute_variables(header.value) for header in step.headers or ()}
    key = json.dumps([url, sorted(headers.items())])
    partial = PartialDownload(context.downloads or context.job / "downloads", key)
    attempt = _Attempt(step, url, headers, context, partial)
    return run_with_retries(
        attempt.run, partial=partial, abort=attempt.abort, config=context.config, reporter=context.reporter
    )


class _Attempt:
    """One request and its download, as often as it takes."""

    def __init__(
        self, step: Url, url: str, headers: Mapping[str, str], context: FetchContext, partial: PartialDownload
    ) -> None:
        self.step = step
        self.url = url
        self.headers = headers
        self.context = context
        self.partial = partial
        self.name = without_login(step.url)
        self.sockets: list[socket.socket] = []
        self.begun = monotonic()

    def run(self) -> Payload | None:
        try:
            return self._exchange()
        except urllib.error.HTTPError as error:
            raise self._status_failure(error) from None
        except urllib.error.URLError as error:
            raise connection_failure(error.reason, self.name) from None
        except OSError as error:
            if is_disk_error(error):
                raise
            raise connection_failure(error, self.name) from None
        except (http.client.InvalidURL, ValueError):
            error = SourceUnavailable(
                "the URL or a header has characters that are not allowed there",
                where=self.name,
                hint="write special characters of a URL as %XX",
            )
            raise AttemptFailed(error, again=False) from None
        except http.client.HTTPException as error:
            raise connection_failure(error, self.name) from None
        except OdfError as error:
            error.where = error.where or self.name
            raise

    def abort(self) -> None:
        for connected in self.sockets:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _exchange(self) -> Payload | None:
        reporter, partial = self.context.reporter, self.partial
        url = quote(without_login(self.url), safe=_URL_SAFE)
        request = urllib.request.Request(url, headers=self._request_headers())
        asked_from = partial.size if request.has_header("Range") else 0
        self.begun = monotonic()
        reporter.log(f"GET {self.name}" + (f" from byte {asked_from:,} on" if asked_from else ""))
        try:
            response = self._opener().open(request, timeout=self.context.config.connect_timeout_seconds)
        except urllib.error.HTTPError as error:
            if error.code == 304:
                partial.restart()
                reporter.log(f"{self.name} has not changed (304)")
                return None
            raise
        with response:
            if response.status == 206 and asked_from:
                known, total = self._goes_on(response.headers, asked_from)
            elif response.status == 200:
                if asked_from:
                    reporter.log(f"{self.name} cannot go on where it broke off: it starts anew")
                known, total = _version(response.headers), _number(response.headers.get("Content-Length"))
                partial.restart(**known if "validator" in known else {})
            else:
                raise urllib.error.HTTPError(
                    self.name, response.status, response.reason, response.headers, None
                )
            state = _state_of(known)
            if state is not None and state == self.context.state:
                partial.restart()
                reporter.log(f"{self.name} has not changed ({state.kind} {state.value})")
                return None
            self._download(response, total)
        return self._payload(known, state)

    def _payload(self, known: Mapping[str, str], state: SourceState | None) -> Payload:
        reporter, size = self.context.reporter, self.partial.size
        path = self.context.job / "fetched"
        self.partial.finish(path)
        version = f"{state.kind} {state.value}" if state else "no ETag"
        reporter.log(f"{self.name}, {size:,} bytes in {monotonic() - self.begun:.1f} s, {version}")
        modified = parse_http_date(known.get("modified"))
        event_time = None if isinstance(self.step.event_time, FromSystemTime) else modified
        if modified is None and isinstance(self.step.event_time, FromMetadata):
            reporter.log("the server gives no Last-Modified: event time is the time of ingestion", "warning")
        return Payload(path, self.name, state, event_time)

    def _request_headers(self) -> dict[str, str]:
        headers = {"User-Agent": "odf-workstation", "Accept": "*/*", "Accept-Encoding": "identity"}
        parts = urlsplit(self.url)
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        headers.update(self.headers)
        state = self.context.state
        if state is not None and state.kind == ETAG:
            headers["If-None-Match"] = state.value
        elif state is not None and state.kind == LAST_MODIFIED:
            with suppress(ValueError):
                headers["If-Modified-Since"] = format_datetime(
                    Timestamp.parse(state.value).to_datetime().replace(microsecond=0), usegmt=True
                )
        validator = self.partial.facts.get("validator")
        if self.partial.size and validator:
            headers |= {"Range": f"bytes={self.partial.size}-", "If-Range": validator}
        return headers

    def _opener(self) -> urllib.request.OpenerDirector:
        context = self.context
        private = {"authorization", *(name.lower() for name in self.headers)}
        handlers = [
            _Redirects(private, context.config.max_redirects),
            *_handlers(self.sockets, context.config.read_timeout_seconds, public_only=context.untrusted),
        ]
        if context.untrusted:
            handlers.append(urllib.request.ProxyHandler({}))  # a proxy hides where a connection goes
        return urllib.request.build_opener(*handlers)

    def _goes_on(self, headers: Any, asked_from: int) -> tuple[dict[str, str], int | None]:
        """Facts and total size of what a part belongs to; starts anew when it is not the one asked for."""
        partial = self.partial
        known, part = partial.facts, _RANGE.match(headers.get("Content-Range") or "")
        same = (
            headers.get("ETag") == known.get("etag")
            and headers.get("Last-Modified") in (None, known.get("modified"))
            and (part is None or part[2] in ("*", known.get("length", part[2])))
        )
        if part is None or int(part[1]) != asked_from or not same:
            partial.restart()
            error = SourceUnavailable("the server sent another part than it was asked for", where=self.name)
            raise AttemptFailed(error, again=True, pause=0)
        return dict(known), _number(part[2])

    def _download(self, response: Any, total: int | None) -> None:
        reporter, partial = self.context.reporter, self.partial
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            reporter.log(f"the server sends it packed as {encoding}, and it is taken like that", "warning")
        response.length = None  # what comes is looked at, and not only as much as was announced
        while total is None or partial.size < total:
            reporter.raise_if_cancelled()
            chunk = response.read1(_CHUNK)
            if not chunk:
                break
            partial.write(chunk)
            reporter.set_amounts(bytes=partial.size, total_bytes=total)
        if total is None:
            return
        if partial.size < total:
            raise http.client.HTTPException(f"the connection ended after {partial.size:,} of {total:,} bytes")
        if partial.size > total or self._surplus(response):
            partial.restart()
            error = BadData(
                f"the server sent more than the {total:,} bytes that it announced",
                where=self.name,
                hint="its Content-Length is wrong, so it cannot be known what is meant: tell its owner",
            )
            raise AttemptFailed(error, again=False)

    def _surplus(self, response: Any) -> bool:
        try:
            self.sockets[-1].settimeout(_SURPLUS_WAIT)
            return bool(response.read1(1))
        except OSError:
            return False

    def _status_failure(self, error: urllib.error.HTTPError) -> AttemptFailed:
        code, message = error.code, f"the server answered {error.code} {error.reason}".rstrip()
        hint, again = "pull again later", code in (408, 429) or code >= 500
        pause = parse_retry_after(error.headers.get("Retry-After")) if error.headers else None
        if code in (404, 410):
            hint = "check fetch.url in the manifest"
        elif code in (401, 403, 407):
            hint = "give what the server asks for in fetch.headers"
        elif code == 416 and self.partial.size:
            self.partial.restart()  # it has become shorter than what is here
            again, pause = True, 0
        elif 300 <= code < 400:
            hint = "the server redirects in a way that cannot be followed"
            if "infinite loop" in message:
                message = (
                    f"the server answered {code} again and again: it redirects in a circle,"
                    f" or more than {self.context.config.max_redirects} times"
                )
        error.close()
        return AttemptFailed(SourceUnavailable(message, where=self.name, hint=hint), again=again, pause=pause)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but does not hand the manifest's headers (keys, tokens) to another host."""

    def __init__(self, private: set[str], most: int) -> None:
        self.private = private
        # These are class variables to urllib, which looks them up on the instance.
        self.__dict__.update(max_redirections=most, max_repeats=max(1, min(4, most)))

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        fp.close()  # its body is of no use, however long it is
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("http", "https"):
            raise SourceUnavailable(
                f"the server answered {code} and redirects to {new.scheme}, which is not followed",
                hint="write that URL into the manifest if it is the right one",
            )
        if (old.scheme, new.scheme) == ("https", "http"):
            raise SourceUnavailable(
                f"the server answered {code} and redirects from https to http, where anybody can listen",
                hint="write the http URL into the manifest if that is all right",
            )
        request = super().redirect_request(req, fp, code, msg, headers, without_login(newurl))
        if request is not None and new.netloc.lower() != old.netloc.lower():
            request.headers = {
                name: value for name, value in request.headers.items() if name.lower() not in self.private
            }
        return request


def _handlers(
    sockets: list[socket.socket], read_timeout: float, *, public_only: bool
) -> list[urllib.request.BaseHandler]:
    """Handlers that note their sockets, so that a cancelled download can be cut off."""

    def noted(kind: type[http.client.HTTPConnection]) -> Callable[..., http.client.HTTPConnection]:
        def create(address: tuple[str, int], timeout: float | None, _source: object) -> socket.socket:
            sockets.append(connect_tcp(*address, timeout, public_only=public_only))
            return sockets[-1]

        class Noted(kind):
            def connect(self) -> None:
                self._create_connection = create
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


def _version(headers: Any) -> dict[str, str]:
    """What tells versions apart; with a ``validator`` if one can go on with a part of this one."""
    etag, modified = headers.get("ETag"), headers.get("Last-Modified")
    told = (("etag", etag), ("modified", modified), ("length", headers.get("Content-Length")))
    facts = {name: value for name, value in told if value}
    now, then = parse_http_date(headers.get("Date")), parse_http_date(modified)
    if etag and not etag.startswith("W/"):
        facts["validator"] = etag
    elif now and then and now.ns - then.ns >= _STRONG_SECONDS * 10**9:
        facts["validator"] = modified
    return facts


def _state_of(version: Mapping[str, str]) -> SourceState | None:
    if etag := version.get("etag"):
        return SourceState(SOURCE_NAME, ETAG, etag)
    modified = parse_http_date(version.get("modified"))
    return SourceState(SOURCE_NAME, LAST_MODIFIED, str(modified)) if modified else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.strip().isdigit() else None
