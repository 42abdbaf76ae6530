"""Fetches a list that an HTTP API returns in pages: the program ``odf/pages``.

The items become lines of JSON. A pull yields them in payloads of bounded size. The source state after a
payload is the position of the next page, so an interrupted pull continues there.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import quote, unquote_plus, urljoin, urlsplit, urlunsplit

import msgspec
from msgspec.structs import replace

from odf_engine.base.progress import Reporter, count_of
from odf_engine.errors import BadData
from odf_engine.ingest.fetch.http import SourceClient, login_header
from odf_engine.ingest.fetch.model import ETAG, SOURCE_NAME, FetchContext, Payload
from odf_engine.ingest.fetch.page_content import (
    PageBody,
    SinceValue,
    find_value,
    item_digest,
    read_body,
    scalar_text,
)
from odf_engine.metadata.model import Container, SourceState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.address_policy import HomeNetwork, PublicAddresses
from odf_engine.net.http_client import RequestBody, sanitize_text
from odf_engine.net.urls import origin_of, without_login
from odf_engine.workspace.definitions.fetch_arguments import PagesArguments, parse_pages

_BATCH_BYTES: Final = 64 << 20
_BATCH_ITEMS: Final = 1_000_000
_MAX_STATE: Final = 4096
_DAY: Final = 86_400
_TAIL: Final = 20
"""Number of items of the previous page whose repetition is detected after an interruption."""
_MAX_EQUAL: Final = 60
"""Number of items with the max value of ``--since-field`` that the next pull recognises."""
_AFTER_LAST: Final = (400, 404, 416, 422)
"""Statuses of servers for a page after the last one."""
_LINK: Final = re.compile(r'<([^>]*)>((?:\s*;\s*[\w!#$&+^`|~.*-]+(?:\s*=\s*(?:"[^"]*"|[^\s;,"]*))?)*)')
_REL: Final = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,"]+))', re.IGNORECASE)


Position = dict[str, str | int]
"""A page: its number, offset, cursor, URL or time window."""


class PagesState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The source state of a paged list, as JSON.

    Attributes:
        position: the next page; empty after the last page.
        pages: number of pages before that page.
        items: number of items before that page.
        size: the page size that the server permits, if it is smaller than the requested size.
        digest: hash of the items before that page, or of the complete list.
        tail: hashes of the last items before that page.
        since: the value that the list starts from.
        equal: hashes of the ingested items with this value.
        reached: the max value of the items before that page, or "" if it is ``since``.
        reached_equal: hashes of the items with the value ``reached``.
    """

    position: Position = {}
    pages: int = 0
    items: int = 0
    size: int = 0
    digest: str = ""
    tail: list[str] = []
    since: str = ""
    equal: list[str] = []
    reached: str = ""
    reached_equal: list[str] = []


class _Page(NamedTuple):
    """A page of the list.

    Attributes:
        position: its position.
        items: its items that the previous page does not have.
        digests: their hashes.
        name: the URL and the position, for messages.
        pages: number of pages before it.
        first: number of items before it.
    """

    position: Position
    items: list[bytes]
    digests: list[str]
    name: str
    pages: int
    first: int


def fetch_pages(step: Container, context: FetchContext) -> Iterator[Payload]:
    """Yield the items of a paged list since ``context.state``, as payloads of bounded size.

    Raises:
        InvalidManifest: an argument is invalid.
        SourceUnavailable: a status that is not one of success, or a broken connection, after the retries.
        BadData: a page is not a page of this list.
        Cancelled: immediately.
    """
    arguments = parse_pages(step)
    with closing(_PageReader(arguments, context)) as reader:
        yield from _payloads(arguments, context, reader)


def _payloads(arguments: PagesArguments, context: FetchContext, reader: _PageReader) -> Iterator[Payload]:
    before, progress, name = reader.state, _Progress(arguments, reader.state, context), reader.name
    batch = _Batch(arguments, context)
    number = 0
    try:
        for page in reader.pages():
            # The next page is requested first: the last payload has the state of a complete list.
            if batch.is_full() and page.items:
                number += 1
                state = _source_state(progress.state_before(page, reader.size), context, name)
                yield Payload(batch.finish(), f"{name}, batch {number}", state, None, has_more=True)
                batch.restart()
            batch.write(progress.add(page))
            context.reporter.set_amounts(rows=progress.items, bytes=reader.received)
        final = progress.final_state(reader.end)
        context.reporter.log(f"{name}: {count_of(reader.count, 'page')}, {count_of(progress.items, 'item')}")
        if not number and _is_unchanged(arguments, before, final, batch.items):
            context.reporter.log(f"{name}: no new data")
            return
        state = _source_state(final, context, name)
        yield Payload(batch.finish(), f"{name}, batch {number + 1}" if number else name, state, None)
    finally:
        batch.close()


def _is_unchanged(arguments: PagesArguments, before: PagesState, final: PagesState, items: int) -> bool:
    """Return whether a pull without an earlier payload has no new data, and need not store its state."""
    if arguments.since or arguments.paging.kind == "window":
        return items == 0 and (not before.position or arguments.paging.kind == "window")
    return final == before or (items == 0 and before == PagesState())


def _source_state(state: PagesState, context: FetchContext, name: str) -> SourceState:
    """Return the source state for the chain.

    Raises:
        BadData: it is too long, or contains the value of a variable.
    """
    value = msgspec.json.encode(state).decode()
    hint = "set --pages-per-batch 0 in fetch.args, which needs no position between pages"
    if context.redact(value) != value:
        raise BadData(
            "the position of the next page contains the value of a variable, which is not stored",
            where=name,
            hint=f"send the variable in a header, or {hint}",
        )
    if len(value.encode()) > _MAX_STATE:
        raise BadData(
            f"the position of the next page has more than {_MAX_STATE:,} bytes", where=name, hint=hint
        )
    return SourceState(SOURCE_NAME, ETAG, value)


def _read_state(context: FetchContext, name: str) -> PagesState:
    state = context.state
    if state is None or state.kind != ETAG:
        return PagesState()
    try:
        return msgspec.json.decode(state.value, type=PagesState)
    except msgspec.MsgspecError:
        context.reporter.log(f"{name}: unknown source state: starting with the first page", "warning")
        return PagesState()


class _Progress:
    """What was read of a list: the number of its items, their hash, and the max value for the next pull."""

    def __init__(self, arguments: PagesArguments, before: PagesState, context: FetchContext) -> None:
        self._arguments, self._context = arguments, context
        self._is_complete_list = not arguments.since and arguments.paging.kind != "window"
        self.items = 0
        self._digest = before.digest if before.position else ""
        self._tail = before.tail
        self._since = SinceValue.of(before.since) if before.since else None
        self._reached = SinceValue.of(before.reached) if before.reached else self._since
        self._known = before.equal
        self._equal = list(before.reached_equal if before.reached else before.equal)

    def add(self, page: _Page) -> list[bytes]:
        """Record the items of a page; return those that were not ingested before."""
        if self._is_complete_list and page.digests:
            text = "".join([self._digest, *page.digests])
            self._digest = blake2b(text.encode(), digest_size=16).hexdigest()
        self._tail = page.digests[-_TAIL:] or self._tail
        items = page.items
        if self._arguments.since:
            pairs = zip(page.items, page.digests, strict=True)
            items = [item for item, digest in pairs if self._is_new(item, digest, page.name)]
        self.items += len(items)
        return items

    def state_before(self, page: _Page, size: int) -> PagesState:
        """Return the state before a page; ``size`` is the page size that the server permits."""
        state = PagesState(
            position=page.position,
            pages=page.pages,
            items=page.first,
            size=size,
            digest=self._digest,
            tail=self._tail,
        )
        if self._since is None and self._reached is None:
            return state
        if self._reached == self._since:
            assert self._since is not None
            return replace(state, since=self._since.text, equal=self._stored_equal())
        assert self._reached is not None
        since = "" if self._since is None else self._since.text
        equal = self._stored_equal()
        return replace(state, since=since, equal=self._known, reached=self._reached.text, reached_equal=equal)

    def final_state(self, end: Position) -> PagesState:
        """Return the state after the last page; ``end`` is the end of the last time window."""
        if end:
            return PagesState(position=end, tail=self._tail)
        if self._arguments.since:
            reached = "" if self._reached is None else self._reached.text
            return PagesState(since=reached, equal=self._stored_equal())
        return PagesState(digest=self._digest or "empty")

    def _stored_equal(self) -> list[str]:
        return self._equal if len(self._equal) <= _MAX_EQUAL else []

    def _is_new(self, item: bytes, digest: str, page: str) -> bool:
        """Record the value of an item; return whether the item was not ingested by an earlier pull."""
        name = self._arguments.since_field
        text = scalar_text(find_value(item, name))
        if text is None:
            raise BadData(f"an item has no text or number '{name}' (--since-field)", where=page)
        value, reached = SinceValue.of(text), self._reached
        if reached is None:
            kind = "numbers" if value.is_number else "texts"
            self._context.reporter.log(
                f"{self._arguments.url}: the values of '{name}' are compared as {kind}"
            )
        elif value.is_number != reached.is_number:
            texts = " and ".join(
                f"'{sanitize_text(self._context.redact(text))}'" for text in (reached.text, text)
            )
            raise BadData(f"'{name}' has numbers and other texts, which have no order: {texts}", where=page)
        if value == self._since and digest in self._known:
            return False
        if reached is None or value.key > reached.key:
            self._reached, self._equal = value, [digest]
        elif value.key == reached.key:
            self._equal.append(digest)
        return True


class _Batch:
    """The file of a payload."""

    def __init__(self, arguments: PagesArguments, context: FetchContext) -> None:
        folder = context.job / "pages"
        folder.mkdir(exist_ok=True)
        self._path, self._context, self._url = folder / "items.ndjson", context, arguments.url
        self._max_pages = 0 if context.whole_payload else arguments.pages_per_batch
        self._file: BinaryIO
        self.restart()

    def restart(self) -> None:
        """Begin the next payload."""
        self._file = self._path.open("wb")
        self.items = self._bytes = self._pages = 0

    def is_full(self) -> bool:
        """Return whether the next page belongs to the next payload."""
        if self._max_pages is not None:
            return self._max_pages > 0 and self._pages >= self._max_pages and self.items > 0
        return self._bytes >= _BATCH_BYTES or self.items >= _BATCH_ITEMS

    def write(self, items: Sequence[bytes]) -> None:
        """Append the items of a page."""
        for item in items:
            self._file.write(item + b"\n")
            self._bytes += len(item) + 1
        self.items += len(items)
        self._pages += 1
        limit = self._context.config.max_bytes
        if self._bytes > limit:
            raise BadData(
                f"the items have more than {limit:,} bytes (fetch.maxBytes)",
                where=without_login(self._url),
                hint="check the source, or increase fetch.maxBytes",
            )

    def finish(self) -> Path:
        """Return the complete file, which exists until the next payload is requested."""
        self._file.close()
        return self._path

    def close(self) -> None:
        """Delete the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class _Pacer:
    """Waits between requests."""

    def __init__(self, pause: float, reporter: Reporter) -> None:
        self._pause, self._reporter = pause, reporter
        self._next = 0.0

    def wait(self) -> None:
        """Wait until the next request is permitted.

        Raises:
            Cancelled: immediately.
        """
        if (left := self._next - monotonic()) > 0:
            cancelled = threading.Event()
            with self._reporter.on_cancel(cancelled.set):
                cancelled.wait(left)
        self._reporter.raise_if_cancelled()
        self._next = monotonic() + self._pause


class _PagesClient(SourceClient):
    """HTTP client for pages; its errors name the page."""

    url_field = "the URL in fetch.args"
    headers_field = "fetch.args (--header)"
    keeps_alive = True


class _PageReader:
    """Requests the pages of a list, one after the other.

    Attributes:
        name: the URL for messages.
        state: the source state before the pull.
        size: the page size that the server permits if it is smaller than the requested size, else 0.
        end: the end of the last time window.
        count: number of pages of this pull.
        received: number of bytes of this pull.
    """

    def __init__(self, arguments: PagesArguments, context: FetchContext) -> None:
        self._arguments, self._context = arguments, context
        self._url = context.substitute_variables(arguments.url)
        self.name = without_login(arguments.url)
        self._headers = _request_headers(arguments, self._url, context)
        self._body = _substitute_strings(json.loads(arguments.body), context) if arguments.body else None
        policy = PublicAddresses() if context.untrusted else HomeNetwork.of(self._url)
        self._client = _PagesClient(self._url, self.name, context, policy)
        self._pacer = _Pacer(arguments.pause, context.reporter)
        self.state = _read_state(context, self.name)
        self.size, self.end = self.state.size, Position()
        self.count = self.received = 0
        self._is_probe = False
        self._seen = set[str]()
        self._link: str | None = None
        self._request_url = self._url
        self._sizes: list[int] = []

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def pages(self) -> Iterator[_Page]:
        """Yield the pages from the position of the state. The last one may be empty.

        Raises:
            BadData: a page is invalid, repeats the previous page, or there are too many pages.
        """
        position = self._first_position()
        previous, items = _Previous(self.state.tail), self.state.items
        while position:
            name = self._start_page(position)
            body = self._request(position, name)
            if body is None:
                return
            page = PageBody(body, name, self._context.redact)
            parsed = page.items(self._arguments.items, is_list=self._arguments.paging.kind != "single")
            digests = [item_digest(item) for item in parsed]
            if digests and digests == previous.digests:
                if self._is_probe:
                    return
                raise self._repeated_page(name, previous.name)
            following = self._next_position(position, page, len(parsed), items + len(parsed))
            dropped = previous.overlap(digests)
            if dropped:
                repeated = count_of(dropped, "item")
                self._warn(f"{name}: dropped the first {repeated}, which repeat the end of {previous.name}")
            self._check_size(len(parsed), previous.name)
            pages = self.state.pages + self.count - 1
            yield _Page(position, parsed[dropped:], digests[dropped:], name, pages, items)
            previous = _Previous(digests, name) if digests else previous
            items += len(parsed)
            position = following

    def _start_page(self, position: Position) -> str:
        """Return the name of the next page for messages. Cursors and links may contain secrets."""
        self.count += 1
        limit = self._arguments.max_pages
        if self.count > limit:
            raise BadData(
                f"the list has more than {count_of(limit, 'page')} (--max-pages)",
                where=self.name,
                hint="check the paging options, or increase --max-pages in fetch.args",
            )
        kind, value = next(iter(position.items()))
        is_named = kind in ("page", "offset", "from")
        place = f"{kind} {value}" if is_named else f"page {self.state.pages + self.count}"
        self._client.name = f"{self.name}, {place}"
        return self._client.name

    def _first_position(self) -> Position | None:
        paging, position = self._arguments.paging, self.state.position
        if paging.kind == "window":
            return _window(str(position.get("from", paging.start)), paging.step)
        if position:
            pages = count_of(self.state.pages, "page")
            self._context.reporter.log(f"{self.name}: continuing after {pages}")
            return position
        starts: dict[str, Position] = {"page": {"page": paging.first}, "offset": {"offset": 0}}
        return starts.get(paging.kind, {"start": 1})

    def _request(self, position: Position, name: str) -> bytes | None:
        """Return the body of a page, or None if the server says that there is no page after the last one."""
        url, parameters = self._url, self._parameters(position)
        if "url" in position:
            url = str(position["url"])
        document = self._body
        if document is None:
            for key, value in parameters.items():
                url = _with_parameter(url, key, value)
        else:
            for key, value in parameters.items():
                document = _with_field(document, key.split("."), value)
        body = None
        if self._arguments.method == "POST":
            body = RequestBody(b"" if document is None else json.dumps(document).encode())
        self._seen.add(url)
        accepted = _AFTER_LAST if self._is_probe else ()

        def attempt() -> bytes | None:
            self._pacer.wait()
            self._context.reporter.log(f"{self._arguments.method} {name}", "debug")
            with self._client.request(
                self._arguments.method, url, headers=self._headers, body=body, accepted=accepted
            ) as response:
                if response.status in accepted:
                    return None
                data = read_body(response, name)
                self._link = _next_link(response.headers.get("Link", ""))
                self._request_url = response.url
                self.received += len(data)
                return data

        return self._client.with_retries(attempt)

    def _parameters(self, position: Position) -> Position:
        """Return the parameters of a request."""
        paging, parameters = self._arguments.paging, Position()
        if "url" in position:  # a link has all parameters
            return parameters
        if paging.limit:
            parameters[paging.limit] = self.size or paging.size
        if self._arguments.since and self.state.since:
            parameters[self._arguments.since] = self.state.since
        if paging.kind == "window":
            parameters[paging.parameter] = position["from"]
            parameters[paging.end_parameter] = position["to"]
        elif paging.kind in position:
            parameters[paging.parameter] = position[paging.kind]
        return parameters

    def _next_position(self, position: Position, page: PageBody, count: int, items: int) -> Position | None:
        """Return the position of the next page, or None after the last page."""
        paging = self._arguments.paging
        if paging.kind == "window":
            self.end = {"from": position["to"]}
            return _window(str(position["to"]), paging.step)
        if paging.kind == "single":
            return None
        following = self._following(position, page, count)
        total = scalar_text(page.find(self._arguments.total)) if self._arguments.total else None
        if count == 0:
            if following is not None and paging.kind in ("cursor", "next", "link-header"):
                self._warn(f"{self._client.name} is empty: its link to the next page is not followed")
            if total is not None and total.isdigit() and items < int(total):
                self._warn(f"{self.name}: {items:,} of {int(total):,} items were received")
            return None
        if total is not None and total.isdigit() and items >= int(total):
            return None
        if self._is_probe:
            self._warn(f"{self.name}: the server returns {self.size:,} items a page, not {paging.size:,}")
            self._is_probe = False
        if paging.kind in ("page", "offset") and count < (self.size or paging.size) and total is None:
            if self.count > 1 or self.state.position:
                return None
            # A server may limit the size of pages, so a short first page is not the last one for sure.
            self._is_probe, self.size = True, count
        return following

    def _following(self, position: Position, page: PageBody, count: int) -> Position | None:
        """Return the position after a page, or None if the page has no link to a next page."""
        paging = self._arguments.paging
        match paging.kind:
            case "page":
                return {"page": int(position["page"]) + 1}
            case "offset":
                return {"offset": int(position["offset"]) + count}
            case "cursor":
                cursor = scalar_text(page.find(paging.path))
                return None if cursor is None else self._unseen("cursor", cursor)
            case "next":
                link = scalar_text(page.find(paging.path))
            case _:
                link = self._link
        if link is None:
            return None
        return self._unseen("url", self._resolve_link(link))

    def _resolve_link(self, link: str) -> str:
        """Return the absolute URL of a link to a next page.

        Raises:
            BadData: it leads to another server.
        """
        try:
            url = urljoin(self._request_url, link)
            parts = urlsplit(url)
            # Servers behind a proxy for TLS write http links to themselves.
            if parts.scheme == "http" and urlsplit(self._url).scheme == "https" and parts.port is None:
                url = urlunsplit(parts._replace(scheme="https"))
            if origin_of(url) == origin_of(self._url):
                return without_login(url)
        except ValueError:
            url = "an invalid URL"
        raise BadData(
            f"the link to the next page leads to another server: {sanitize_text(without_login(url), 200)}",
            where=self._client.name,
            hint="use the URL of this server in fetch.args if it is trustworthy",
        )

    def _unseen(self, kind: str, value: str) -> Position:
        """Return a position.

        Raises:
            BadData: the page was requested before.
        """
        if value in self._seen:
            raise BadData(
                f"the {'cursor' if kind == 'cursor' else 'link'} to the next page leads to an earlier page",
                where=self._client.name,
                hint="report the error to the operator of the server",
            )
        self._seen.add(value)
        return {kind: value}

    def _repeated_page(self, name: str, previous: str) -> BadData:
        paging = self._arguments.paging
        problem = f"the page equals {previous.removeprefix(f'{self.name}, ')}"
        if paging.parameter:
            problem += f": the server ignores the parameter '{paging.parameter}'"
        return BadData(problem, where=name, hint="check the paging options in fetch.args")

    def _check_size(self, count: int, previous: str) -> None:
        """Report the first page with another size, unless it is the last one: the next page shows that."""
        sizes = self._sizes
        if self._arguments.paging.kind not in ("page", "offset") or count == 0:
            return
        if len(sizes) == 2 and sizes[0] != sizes[1]:
            self._warn(
                f"{previous} has {count_of(sizes[1], 'item')}, and an earlier page has {sizes[0]:,}: items"
                " may be missing if the list changed"
            )
            sizes[:] = [0, 0, 0]  # once
        if len(sizes) < 3:
            sizes[1:] = [count]

    def _warn(self, text: str) -> None:
        self._context.reporter.warn(text, "paged-source")


class _Previous(NamedTuple):
    """The previous page: hashes of its items, and its name."""

    digests: list[str]
    name: str = "the previous page"

    def overlap(self, digests: Sequence[str]) -> int:
        """Return how many items at the start of a page are the last items of this one."""
        for count in range(min(len(digests), len(self.digests)), 0, -1):
            if digests[0] == self.digests[-count] and list(digests[:count]) == self.digests[-count:]:
                return count
        return 0


def _request_headers(arguments: PagesArguments, url: str, context: FetchContext) -> dict[str, str]:
    own = {name: context.substitute_variables(value) for name, value in arguments.headers}
    names = {name.lower() for name in own}
    defaults = {"Accept": "application/json", **login_header(url)}
    if arguments.body:
        defaults["Content-Type"] = "application/json"
    return {name: value for name, value in defaults.items() if name.lower() not in names} | own


def _window(start: str, step: int) -> Position | None:
    """Return the time window from a start, which ends now or before, or None if it would be empty.

    Windows from a date end at midnight UTC if the step is a number of days.
    """
    is_date = "T" not in start.upper()
    first = Timestamp.parse(f"{start}T00:00:00Z" if is_date else start).ns // 10**9
    by_day = is_date and step % _DAY == 0
    now = Timestamp.now().ns // 10**9
    end = min(first + step, now - now % _DAY if by_day else now)
    if end <= first:
        return None
    text = str(Timestamp.from_seconds(end))
    return {"from": start, "to": text[:10] if by_day else text}


def _next_link(header: str) -> str | None:
    """Return the target of the link with ``rel="next"`` in a Link header (RFC 8288), or None."""
    for match in _LINK.finditer(header):
        relation = _REL.search(match[2])
        if relation is not None and "next" in (relation[1] or relation[2] or "").lower().split():
            return match[1]
    return None


def _with_parameter(url: str, name: str, value: str | int) -> str:
    """Return a URL with another value of a parameter; the other parameters are not encoded again."""
    parts = urlsplit(url)
    pieces = [
        piece for piece in parts.query.split("&") if piece and unquote_plus(piece.partition("=")[0]) != name
    ]
    pieces.append(f"{quote(name, safe='[]')}={quote(str(value), safe='')}")
    return urlunsplit(parts._replace(query="&".join(pieces)))


def _with_field(document: Any, path: Sequence[str], value: str | int) -> Any:
    """Return a JSON object with another value of a field."""
    first, *rest = path
    inner = document.get(first)
    if rest:
        value = _with_field(inner if isinstance(inner, dict) else {}, rest, value)
    return {**document, first: value}


def _substitute_strings(document: Any, context: FetchContext) -> Any:
    """Return a JSON document whose texts have their variables substituted."""
    if isinstance(document, str):
        return context.substitute_variables(document)
    if isinstance(document, list):
        return [_substitute_strings(value, context) for value in document]
    if isinstance(document, dict):
        return {name: _substitute_strings(value, context) for name, value in document.items()}
    return document
