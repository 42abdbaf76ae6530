"""Routes HTTP requests; dataset listing as HTML and JSON."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import sha256
from html import escape
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, unquote_to_bytes

import msgspec
from aiohttp import web

from odf_engine.base.progress import size_of
from odf_engine.errors import (
    AlreadyExists,
    BadData,
    Conflict,
    InvalidIdentity,
    NotFound,
    OdfError,
    SourceUnavailable,
    UsageError,
)
from odf_engine.identity.did import DatasetId
from odf_engine.sync.server.object_handlers import LengthRequired, receive_object, send_head, send_object
from odf_engine.sync.server.receive_pack import serve_push
from odf_engine.sync.server.service import (
    COMMON_HEADERS,
    DatasetService,
    Forbidden,
    ServedDataset,
    Unauthorized,
    UnknownHost,
)
from odf_engine.sync.server.upload_pack import serve_pull
from odf_engine.workspace.dataset_summary import DatasetEntry, Summary
from odf_engine.workspace.workspace import Workspace

_MAX_SHOWN: Final = 1000
_STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin:0}"
    "article{border-top:1px solid;padding:1rem 0}p{margin:.3rem 0}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.5rem 0}dd{margin:0}"
    "code,dd.hash{font-family:ui-monospace,monospace;overflow-wrap:anywhere}"
)
POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    f"style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
)
"""Content-Security-Policy of the HTML pages."""

# Control characters, and characters that change the text direction.
_REMOVED: Final = {
    **dict.fromkeys((*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0)), "\ufffd"),
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"),
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset in the listing; ``size`` in bytes of data, ``watermark`` in RFC 3339.

    The numbers are invalid if it is ``damaged``.
    """

    name: str
    id: str
    kind: str
    head: str | None
    blocks: int
    records: int
    size: int
    watermark: str | None
    description: str
    keywords: tuple[str, ...]
    damaged: bool


class DatasetListing:
    """The served datasets, cached for one second; not thread-safe."""

    def __init__(self, serving: DatasetService) -> None:
        self._serving = serving
        self._rows: list[Row] = []
        self._valid_until = 0.0
        self._row_cache: dict[DatasetId, tuple[Summary, Row]] = {}

    def rows(self) -> list[Row]:
        """Return all rows by name."""
        if time.monotonic() >= self._valid_until:
            entries = self._serving.datasets()
            summaries = self._serving.workspace.summaries(entries)
            cached, self._row_cache = self._row_cache, {}
            for entry, summary in zip(entries, summaries, strict=True):
                old = cached.get(entry.id)
                current = old if old is not None and old[0] == summary else (summary, self._row(summary))
                self._row_cache[entry.id] = current
            self._rows = [row for _, row in self._row_cache.values()]
            self._valid_until = time.monotonic() + _FRESH_SECONDS
        return self._rows

    def _row(self, summary: Summary) -> Row:
        description, keywords = "", ()
        if summary.head is not None:
            try:
                state = self._serving.workspace.index.state(summary.head)
                if state is not None and state.info is not None:
                    description, keywords = state.info.description or "", tuple(state.info.keywords or ())
            except OdfError:
                pass
        return Row(
            name=summary.name,
            id=str(summary.id),
            kind=summary.kind.name,
            head=None if summary.head is None else str(summary.head),
            blocks=summary.blocks,
            records=summary.records,
            size=summary.size,
            watermark=None if summary.watermark is None else str(summary.watermark),
            description=description,
            keywords=keywords,
            damaged=summary.problem is not None,
        )


CollectMetrics = Callable[[Workspace, Sequence[Summary]], str]
"""Returns the metrics of a workspace with some of its datasets, in the text format of Prometheus."""


class ServedMetrics:
    """The metrics of the workspace and its served datasets, cached for some seconds; not thread-safe."""

    def __init__(self, serving: DatasetService, collect: CollectMetrics) -> None:
        self._serving, self._collect = serving, collect
        self._text = ""
        self._valid_until = 0.0

    def text(self) -> str:
        """Return the metrics."""
        if time.monotonic() >= self._valid_until:
            workspace = self._serving.workspace
            self._text = self._collect(workspace, workspace.summaries(self._serving.datasets()))
            self._valid_until = time.monotonic() + _METRICS_SECONDS
        return self._text


class DatasetDescriber(Protocol):
    """Describes datasets as JSON-LD, see :mod:`odf_engine.publication.catalog`."""

    def catalog(self, entries: Sequence[DatasetEntry], base: str) -> bytes:
        """Return the catalog of datasets."""
        ...

    def dataset(self, entry: DatasetEntry, base: str) -> bytes:
        """Return the description of one dataset."""
        ...


def render_json(rows: Sequence[Row]) -> bytes:
    """Return the listing as JSON."""
    return msgspec.json.encode({"datasets": rows})


def render_html(
    rows: Sequence[Row], base: str, is_single: bool = False, description: bytes | None = None
) -> str:
    """Return the HTML page of the listing.

    Args:
        rows: the datasets.
        base: URL of the server, with a trailing slash.
        is_single: whether it is the page of one dataset.
        description: the dataset as JSON-LD, b"" for the listing, or None without a catalog.
    """
    title = _escape_text(rows[0].name) if is_single else "Datasets"
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>',
        f"{title} – Open Data Fabric</title>",
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{_STYLE}</style>",
        "" if description is None else _catalog_link(base, description),
        "</head><body><header><h1>",
        f'<a href="{_escape_text(base)}">Datasets</a> / {title}' if is_single else title,
        "</h1></header><main>",
    ]
    if not is_single:
        number = len(rows)
        parts.append(f"<p>{number:,} dataset{'' if number == 1 else 's'} of Open Data Fabric</p>")
    parts += [_article(row, base) for row in rows[:_MAX_SHOWN]]
    if len(rows) > _MAX_SHOWN:
        parts.append(f"<p>{len(rows) - _MAX_SHOWN:,} more in the JSON listing</p>")
    parts.append("</main></body></html>\n")
    return "".join(parts)


def _catalog_link(base: str, description: bytes) -> str:
    """Return the link to the catalog, and the description of the dataset of the page."""
    href = _escape_text(f"{base}{_CATALOG_PATH[1:]}")
    link = f'<link rel="alternate" type="{_CATALOG_TYPE}" href="{href}">'
    text = description.decode().replace("<", "\\u003c")  # third-party text must not end the element
    return f'{link}<script type="{_CATALOG_TYPE}">{text}</script>' if text else link


def _article(row: Row, base: str) -> str:
    url = f"{base}{quote(row.name)}/"
    facts = [
        ("kind", row.kind.lower(), ""),
        ("rows", f"{row.records:,}", ""),
        ("size", size_of(row.size), ""),
        ("blocks", f"{row.blocks:,}", ""),
        ("watermark", row.watermark or "none", ""),
        ("keywords", ", ".join(row.keywords), ""),
        ("head", row.head or "none", "hash"),
        ("id", row.id, "hash"),
    ]
    details = "".join(
        f"<dt>{name}</dt><dd{f' class={css_class}' if css_class else ''}>"
        f"<bdi>{_escape_text(value)}</bdi></dd>"
        for name, value, css_class in facts
        if value
    )
    damaged = "<p><strong>This dataset is damaged.</strong></p>" if row.damaged else ""
    description = f'<p dir="auto">{_escape_text(row.description)}</p>' if row.description else ""
    return (
        f'<article><h2><a href="{_escape_text(url)}">{_escape_text(row.name)}</a></h2>'
        f"{description}{damaged}<dl>{details}</dl>"
        f"<p>Pull: <code>odf pull odf+{_escape_text(url)}</code></p></article>"
    )


def _escape_text(value: str) -> str:
    return escape(value.translate(_REMOVED))


_KINDS: Final = frozenset({"refs", "blocks", "data", "checkpoints", "proofs", "compactions", "checks"})
_SMART_KINDS: Final = frozenset({"pull", "push"})
_UPLOAD_KINDS: Final = frozenset({"data", "checkpoints", "proofs", "compactions", "checks"})
_MAX_PATH: Final = 1024
_FRESH_SECONDS: Final = 1.0
_METRICS_SECONDS: Final = 5.0
_METRICS_PATH: Final = "/metrics"
_CATALOG_PATH: Final = "/catalog.jsonld"
_CATALOG_TYPE: Final = "application/ld+json"
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_STATUS: Final = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (UnknownHost, 421),
    (NotFound, 404),
    (AlreadyExists, 409),
    (Conflict, 409),
    (LengthRequired, 411),
    (SourceUnavailable, 503),
    (InvalidIdentity, 400),
    (UsageError, 400),
    (BadData, 400),
)
SILENT: Final = logging.Logger("silent")
SILENT.disabled = True


class _Route(NamedTuple):
    """A parsed path: dataset (empty for the listing), kind of object (empty for the dataset's page), and
    name.
    """

    dataset: str
    kind: str
    name: str


class RequestRouter:
    """Handles requests.

    Args:
        serving: the served workspace.
        on_request: receives a log line for each request.
        on_failure: receives unexpected errors.
        metrics: returns the metrics, which are served at ``/metrics``; None to serve none.
        make_catalog: returns what describes the datasets at ``/catalog.jsonld`` and in their pages; called
            when it is first needed. None for no catalog.
    """

    def __init__(
        self,
        serving: DatasetService,
        on_request: Callable[[str], None] | None = None,
        on_failure: Callable[[str], None] = lambda text: None,
        *,
        metrics: CollectMetrics | None = None,
        make_catalog: Callable[[], DatasetDescriber] | None = None,
    ) -> None:
        self.serving = serving
        self._on_request = on_request
        self._on_failure = on_failure
        self._listing = DatasetListing(serving)
        self._listing_lock = asyncio.Lock()
        self._metrics = ServedMetrics(serving, metrics) if metrics else None
        self._make_catalog = make_catalog
        self._dataset_cache: dict[str, tuple[float, DatasetEntry]] = {}
        self._request_count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @cached_property
    def _catalog(self) -> DatasetDescriber | None:
        return None if self._make_catalog is None else self._make_catalog()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle a request."""
        started = time.monotonic()
        self._request_count += 1
        self._idle.clear()
        status, length = 0, 0
        try:
            async with asyncio.timeout(self.serving.limits.session_minutes * 60):
                response = await self._handle_errors(request)
                await self._send(request, response)
            status, length = response.status, response.content_length or 0
            return response
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("timeout of the client") from None
        finally:
            self._request_count -= 1
            if not self._request_count:
                self._idle.set()
            if self._on_request is not None:
                # without the query, which may contain secrets
                path = quote(request.rel_url.raw_path[:200], safe="/:%", errors="replace")
                duration = f"{(time.monotonic() - started) * 1000:.0f} ms"
                outcome = str(status) if status else "aborted"
                self._on_request(
                    f"{request.remote} {request.method} {path} {outcome} {length} bytes {duration}"
                )

    async def drain(self, seconds: float) -> bool:
        """Wait until no request is in progress; return False after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _send(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        if isinstance(response, web.WebSocketResponse):
            return
        if not response.prepared:
            response.headers.update(COMMON_HEADERS)
        async with asyncio.timeout(self.serving.limits.idle_seconds):
            await response.prepare(request)
            await response.write_eof()

    async def _handle_errors(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._route(request)
        except OdfError as error:
            return _error_response(error)
        except (ConnectionError, TimeoutError, asyncio.CancelledError, web.HTTPException):
            raise
        except web.RequestPayloadError:  # the body ended early
            raise ConnectionResetError("the client has disconnected") from None
        except Exception as error:
            self._on_failure(f"error: {type(error).__name__}: {error}\n{traceback.format_exc()}")
            return _error_response(OdfError("internal server error"))

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.version < (1, 0):
            raise UsageError("unsupported HTTP version")
        self.serving.check_host_and_origin(request)
        read_path = request.rel_url.raw_path if request.method in ("GET", "HEAD") else ""
        if self._metrics is not None and read_path == _METRICS_PATH:
            return await self._send_metrics(self._metrics)
        if self._make_catalog is not None and read_path == _CATALOG_PATH:
            return await self._send_catalog(request)
        route = _parse_path(request.rel_url.raw_path)
        if request.method == "PUT" and route.kind in _UPLOAD_KINDS:
            await receive_object(self.serving, route.dataset, route.kind, route.name, request)
            return web.Response(text="")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="not allowed\n", headers={"Allow": "GET, HEAD"})
        if route.kind in _SMART_KINDS:
            return await self._open_session(route, request)
        if not route.dataset:
            return await self._send_listing(request, None)
        if not route.kind:
            return await self._send_listing(request, await self._find(route.dataset))
        served = ServedDataset(self.serving, await self._find(route.dataset), "")
        if route.kind == "refs":
            return await send_head(served, route.name, request)
        return await send_object(served, route.kind, route.name, request)

    async def _open_session(self, route: _Route, request: web.BaseRequest) -> web.StreamResponse:
        if route.kind == "push":
            target = await self.serving.run(self.serving.authorize_push, route.dataset, request)
            return await serve_push(request, target)
        url = f"{self.serving.base_url(request)}{route.dataset}/"
        served = ServedDataset(self.serving, await self._find(route.dataset), url)
        with self.serving.pull_session(self.serving.client_address(request)):
            return await serve_pull(request, served)

    async def _find(self, text: str) -> DatasetEntry:
        """Return the dataset with this name; results are cached for one second."""
        known = self._dataset_cache.get(text)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        entry = await self.serving.run(self.serving.find, text)
        if len(self._dataset_cache) > 1000:
            self._dataset_cache.clear()
        self._dataset_cache[text] = (time.monotonic() + _FRESH_SECONDS, entry)
        return entry

    async def _send_metrics(self, metrics: ServedMetrics) -> web.StreamResponse:
        async with self._listing_lock:  # both use the summaries of the workspace
            text = await self.serving.run(metrics.text)
        headers = {"Content-Type": _METRICS_TYPE, "Cache-Control": "no-cache"}
        return web.Response(body=text.encode(), headers=headers)

    async def _send_catalog(self, request: web.BaseRequest) -> web.StreamResponse:
        base = self.serving.base_url(request)
        async with self._listing_lock:  # descriptions are cached
            body = await self.serving.run(self._read_catalog, base)
        headers = {"Content-Type": _CATALOG_TYPE, "Cache-Control": "no-cache"}
        return web.Response(body=body, headers=headers)

    def _read_catalog(self, base: str, dataset: DatasetEntry | None = None) -> bytes:
        """Return the description of a dataset, or of all served datasets; it may import the catalog."""
        catalog = self._catalog
        assert catalog is not None
        return catalog.dataset(dataset, base) if dataset else catalog.catalog(self.serving.datasets(), base)

    async def _send_listing(
        self, request: web.BaseRequest, dataset: DatasetEntry | None
    ) -> web.StreamResponse:
        base = self.serving.base_url(request)
        async with self._listing_lock:
            rows = await self.serving.run(self._listing.rows)
        if dataset is not None:
            rows = [row for row in rows if row.id == str(dataset.id)]
            if not rows:
                raise NotFound("dataset not found")
        headers = {"Cache-Control": "no-cache", "Vary": "Accept"}
        if _prefers_json(request.headers.get("Accept", "")):
            body = await self.serving.run(render_json, rows)
            return web.Response(body=body, content_type="application/json", headers=headers)
        headers |= {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
        description = None if self._make_catalog is None else b""
        if self._make_catalog is not None and dataset is not None:
            async with self._listing_lock:
                description = await self.serving.run(self._read_catalog, base, dataset)
        page = await self.serving.run(render_html, rows, base, dataset is not None, description)
        return web.Response(text=page, content_type="text/html", headers=headers)


def _parse_path(raw: str) -> _Route:
    """Parse a path.

    Raises:
        UsageError: it is invalid on this server.
        NotFound: it does not exist.
    """
    if len(raw) > _MAX_PATH or not raw.startswith("/"):
        raise UsageError("invalid path")
    try:
        parts = [unquote_to_bytes(part).decode("utf-8") for part in raw[1:].split("/")]
    except UnicodeError:  # one of the two parsers of aiohttp returns bytes as surrogates
        raise UsageError("the path is not UTF-8") from None
    if any(part in (".", "..") or "/" in part or not part.isprintable() for part in parts):
        raise UsageError("invalid path")
    kind, name = "", ""
    if parts[-1] in _SMART_KINDS and len(parts) > 1:
        kind = parts.pop()
    elif len(parts) > 2 and parts[-2] in _KINDS and parts[-1]:
        name, kind = parts.pop(), parts.pop()
    elif not parts[-1]:
        parts.pop()
    if len(parts) > 2 or (kind and not parts):
        raise NotFound("not found")
    return _Route("/".join(parts), kind, name)


def _prefers_json(accept: str) -> bool:
    """Return whether a client prefers JSON; a client that accepts anything gets the HTML page."""
    return "application/json" in accept.lower() and "text/html" not in accept.lower()


def _error_response(error: OdfError) -> web.Response:
    """Return the response for an error: only its message, since the rest contains local paths."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    response = web.Response(status=status, text=f"{error.message}\n")
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        response.headers["Retry-After"] = "5"
    return response
