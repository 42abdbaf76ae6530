"""Fetches HTTP URLs with conditional requests and resumption."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from email.utils import format_datetime
from typing import Final
from urllib.parse import unquote, urlsplit

from odf_engine.errors import BadData, OdfError, SourceUnavailable
from odf_engine.ingest.fetch.model import ETAG, LAST_MODIFIED, FetchContext, Payload, infer_command
from odf_engine.ingest.fetch.shared_downloads import SHARED_DOWNLOADS, SharedFile
from odf_engine.ingest.fetch.transfer import Transfer, source_state
from odf_engine.metadata.model import Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.address_policy import AddressPolicy, HomeNetwork
from odf_engine.net.credentials import Login
from odf_engine.net.download import AttemptFailed, connection_failure, parse_http_date, parse_retry_after
from odf_engine.net.http_client import HttpClient, RedirectProblem, Response, is_temporary
from odf_engine.net.urls import without_login

_NO_TIME: Final = "the server sends no Last-Modified"
_SURPLUS_SECONDS: Final = 0.1
_STRONG_SECONDS: Final = 60
"""Minimum age of a Last-Modified that identifies a version (RFC 9110, section 8.8.2.2)."""


def fetch_http(step: Url, context: FetchContext) -> Payload | None:
    """Download the URL, unless it has the source state of the chain.

    Raises:
        SourceUnavailable: with the URL and the status, or the error of the connection.
        BadData: the server sent more bytes than it announced.
    """
    return _HttpTransfer(step, context.substitute_variables(step.url), context).fetch()


class SourceClient(HttpClient):
    """HTTP client for a source; its errors show the URL of the manifest.

    Attributes:
        name: the URL of the manifest.
        url_field: the field of the URL in the manifest, for hints.
        headers_field: the field of the headers.
        keeps_alive: whether a connection is used for several requests.
    """

    network_hint = "check the URL and the network, then try again"
    url_field = "fetch.url in the manifest"
    headers_field = "fetch.headers"
    keeps_alive = False

    def __init__(self, url: str, name: str, context: FetchContext, policy: AddressPolicy) -> None:
        # Sources may be slow: some compute each row.
        super().__init__(
            url, context.config, context.reporter, policy=policy, keep_alive=self.keeps_alive, min_rate=0
        )
        self.name = name

    def where(self, url: str) -> str:
        return self.name

    def address_error(self, url: str) -> OdfError:
        problem = "the URL or a header contains invalid characters"
        return SourceUnavailable(problem, where=self.name, hint="encode special characters in the URL as %XX")

    def redirect_error(
        self, problem: RedirectProblem, response: Response | None, old: str, new: str
    ) -> OdfError:
        if response is None or problem == "no host":
            return connection_failure("no host in the URL", self.name).error
        text, scheme = f"the server returned {response.status}", urlsplit(new).scheme
        hint = f"check {self.url_field}; the redirect cannot be followed"
        if problem in ("circle", "too many"):
            limit = self.config.max_redirects
            text += f": redirect loop, or more than {limit} redirects"
        elif problem == "insecure":
            text += ": redirect from https to http, which is not encrypted"
            hint = "use the http URL in the manifest to allow an unencrypted connection"
        elif problem == "scheme" and scheme == "ftp":
            text += ": redirect to ftp, which is not followed"
            hint = "use the ftp URL in the manifest"
        else:
            text = f"{text} {response.reason}".rstrip()
            text += f": redirect to '{new}' is not allowed" if problem == "scheme" else ""
        return SourceUnavailable(text, where=self.name, hint=hint)

    def status_error(self, response: Response, missing: tuple[int, ...] = ()) -> AttemptFailed:
        status, hint = response.status, "try again later"
        if status in (404, 410):
            hint = f"check {self.url_field}"
        elif status in (401, 403, 407):
            hint = f"add the required credentials to {self.headers_field}"
        elif 300 <= status < 400:
            hint = f"check {self.url_field}; the redirect cannot be followed"
        text = f"the server returned {status} {response.reason}".rstrip()
        error = SourceUnavailable(text, where=self.name, hint=hint)
        pause = parse_retry_after(response.headers.get("Retry-After"))
        return AttemptFailed(error, again=is_temporary(status), pause=pause)


class _HttpTransfer(Transfer):
    """A download over HTTP; each attempt is a request."""

    def __init__(self, step: Url, url: str, context: FetchContext) -> None:
        self._headers = {
            header.name: context.substitute_variables(header.value) for header in step.headers or ()
        }
        key = [url, sorted(self._headers.items())]
        super().__init__(step, without_login(step.url), context, key)
        self._url, self._key = url, json.dumps(key)
        self._shared: SharedFile | None = None
        self._downloaded: dict[str, str] | None = None  # the version that the server sent
        self._client: SourceClient | None = None

    def fetch(self) -> Payload | None:
        """Return the payload, as the base class does. Pulls that share a download wait for each other."""
        context = self.context
        if not context.shares_download or context.downloads is None:
            return super().fetch()
        with SHARED_DOWNLOADS.open(context.downloads.parent, self._key, self.reporter) as shared:
            self._shared = shared
            payload = super().fetch()
            if payload is not None and self._downloaded is not None:
                shared.replace(payload.path, self._downloaded)
            return payload

    def attempt(self) -> Payload | None:
        self._client = client = SourceClient(self._url, self.name, self.context, self.address_policy)
        try:
            return self._exchange(client)
        finally:
            client.close()

    def abort(self) -> None:
        if self._client is not None:
            self._client.abort()

    def _exchange(self, client: SourceClient) -> Payload | None:
        partial, conditions = self.partial, self._conditions()
        first = partial.size if "Range" in conditions else 0
        self.reporter.log(f"GET {self.name}" + (f" from byte {first:,}" if first else ""))
        accepted = (304, 416) if first else (304,)
        headers = login_header(self._url) | self._headers
        with client.request(
            "GET", self._url, headers=headers, conditions=conditions, accepted=accepted
        ) as response:
            if response.status == 304:
                partial.restart()
                if self._shared is not None and self._shared.version:
                    return self._use_shared(self._shared)
                self.reporter.log(f"{self.name} not modified (304)")
                return None
            if response.status == 416:  # the file is shorter than the bytes that are here
                partial.restart()
                failure = client.status_error(response)
                raise AttemptFailed(failure.error, again=True, pause=0)
            if response.status == 206 and first:
                known, total = self._check_part(response, first)
            elif response.status == 200:
                if first:
                    self.reporter.log(f"{self.name}: the download cannot be resumed; restarting")
                known, total = _version(response.headers), response.length
                is_storable = all(self.context.redact(value) == value for value in known.values())
                partial.restart(**known if "validator" in known and is_storable else {})
            else:
                raise client.status_error(response)
            modified = parse_http_date(known.get("modified"))
            state = source_state(known.get("etag"), modified)
            if state is not None and self.is_unchanged(state, f"({state.kind} {state.value})"):
                return None
            self._download(response, total)
            moved_to = self.context.redact(response.moved_to)
        if moved_to:
            self.reporter.log(
                f"{self.name} moved permanently to {moved_to}: to change the source, run"
                f" {infer_command(self.context.name)}"
            )
        version = f"{state.kind} {state.value}" if state else "no ETag"
        is_exact = "etag" in known or "validator" in known
        self._downloaded = {name: known[name] for name in ("etag", "modified") if is_exact and name in known}
        payload = self.finish(state, modified, version, _NO_TIME)
        return replace(payload, moved_to=moved_to)

    def _use_shared(self, shared: SharedFile) -> Payload | None:
        """Return the payload with the file that another pull downloaded, or None if it is unchanged.

        Raises:
            AttemptFailed: the file was removed.
        """
        modified = parse_http_date(shared.version.get("modified"))
        state = source_state(shared.version.get("etag"), modified)
        if self.is_unchanged(state, "(304)"):
            return None
        if not shared.copy_to(self.path):
            error = SourceUnavailable("the shared download was removed", where=self.name)
            raise AttemptFailed(error, again=True, pause=0)
        self.reporter.log(f"{self.name} not modified (304) since the download for another dataset")
        return self.make_payload(state, modified, _NO_TIME)

    @property
    def address_policy(self) -> AddressPolicy:
        """The addresses of the URL and of redirects: a public server does not redirect to a private one."""
        return super().address_policy if self.context.untrusted else HomeNetwork.of(self._url)

    def _conditions(self) -> dict[str, str]:
        """Return the headers of a conditional request (RFC 9110, sections 13 and 14)."""
        conditions: dict[str, str] = {}
        state = self.context.state
        if self._shared is not None and (version := self._shared.version):
            state = source_state(version.get("etag"), parse_http_date(version.get("modified")))
        if state is not None and state.kind == ETAG:
            conditions["If-None-Match"] = state.value
        elif state is not None and state.kind == LAST_MODIFIED:
            with suppress(ValueError):
                modified = Timestamp.parse(state.value).to_datetime().replace(microsecond=0)
                conditions["If-Modified-Since"] = format_datetime(modified, usegmt=True)
        validator = self.partial.facts.get("validator")
        if self.partial.size and validator:
            conditions |= {"Range": f"bytes={self.partial.size}-", "If-Range": validator}
        return conditions

    def _check_part(self, response: Response, first: int) -> tuple[dict[str, str], int | None]:
        """Return the facts and the total size of the file that a part belongs to.

        Raises:
            AttemptFailed: it is not the part that was requested.
        """
        headers, known, part = response.headers, self.partial.facts, response.content_range
        same = (
            headers.get("ETag") == known.get("etag")
            and headers.get("Last-Modified") in (None, known.get("modified"))
            and (part is None or part[1] is None or str(part[1]) == known.get("length", str(part[1])))
        )
        if part is None or part[0] != first or not same:
            self.partial.restart()
            error = SourceUnavailable("the server sent a different range than requested", where=self.name)
            raise AttemptFailed(error, again=True, pause=0)
        return dict(known), part[1]

    def _download(self, response: Response, total: int | None) -> None:
        partial = self.partial
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            self.reporter.log(
                f"the server sends the file with Content-Encoding {encoding}; it is not decoded", "warning"
            )
        self.store(response.iter_chunks(sys.maxsize if total is None else total - partial.size), total)
        if total is None:
            return
        if partial.size < total:
            text = f"closed after {partial.size:,} of {total:,} bytes"
            raise connection_failure(text, self.name)
        if partial.size > total or response.has_surplus(_SURPLUS_SECONDS):
            partial.restart()
            error = BadData(
                f"the server sent more than the {total:,} bytes of its Content-Length",
                where=self.name,
                hint="report the wrong Content-Length to the operator of the server",
            )
            raise AttemptFailed(error, again=False)


def login_header(url: str) -> dict[str, str]:
    """Return the header for the login in a URL, or {} if it has none."""
    parts = urlsplit(url)
    if parts.username is None:
        return {}
    return {"Authorization": Login(unquote(parts.username), unquote(parts.password or "")).header}


def _version(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what identifies a version; with a ``validator`` if a part of it can be resumed."""
    etag, modified = headers.get("ETag"), headers.get("Last-Modified")
    given = (("etag", etag), ("modified", modified), ("length", headers.get("Content-Length")))
    facts = {name: value for name, value in given if value}
    now, then = parse_http_date(headers.get("Date")), parse_http_date(modified)
    if etag and not etag.startswith("W/"):
        facts["validator"] = etag
    elif modified and now and then and now.ns - then.ns >= _STRONG_SECONDS * 10**9:
        facts["validator"] = modified
    return facts
