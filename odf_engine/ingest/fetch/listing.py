"""Fetches the files of a folder, an index or a bucket, each once: the program ``odf/listing``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from fnmatch import translate
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from odf_engine.base.progress import count_of
from odf_engine.errors import BadData, InvalidManifest, SourceUnavailable
from odf_engine.ingest.fetch.ftp import fetch_ftp, list_ftp_folder
from odf_engine.ingest.fetch.http import fetch_http
from odf_engine.ingest.fetch.model import ETAG, SOURCE_NAME, FetchContext, Payload
from odf_engine.ingest.fetch.object_index import IndexClient, IndexEntry, is_safe_name, quote_name
from odf_engine.ingest.fetch.page_content import item_digest
from odf_engine.ingest.fetch.s3 import fetch_s3, list_s3_objects
from odf_engine.metadata.model import Container, SourceState, Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.http_client import sanitize_text
from odf_engine.net.urls import without_login
from odf_engine.workspace.definitions.fetch_arguments import ListingArguments, parse_listing

_MAX_FOLDERS: Final = 10_000
_MAX_EQUAL: Final = 100
"""Number of files with the time of the last one that the next pull recognises."""
_MAX_NAME: Final = 1000
_SHOWN: Final = 3


class ListingState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The source state of a list of files, as JSON.

    Attributes:
        name: the last ingested name.
        time: the last time, or "" if the files are ordered by name.
        equal: hashes of the ingested names with this time, or [] if there are too many.
    """

    name: str = ""
    time: str = ""
    equal: list[str] = []


class _File(NamedTuple):
    """A file of the list; ``time`` is "" if the files are ordered by name."""

    time: str
    name: str


def fetch_listing(step: Container, context: FetchContext) -> Iterator[Payload]:
    """Yield the files after the one in ``context.state``, with one payload for each file.

    Raises:
        InvalidManifest: an argument is invalid.
        SourceUnavailable: the list or a file cannot be fetched, or no file was ever there.
        BadData: the list is invalid, or a file has no time.
        Cancelled: immediately.
    """
    arguments, reporter = parse_listing(step), context.reporter
    state = _read_state(context)
    listing = _Listing(arguments, context)
    files = sorted(file for file in listing.files(state) if _is_new(file, state))
    listing.report_ignored()
    name = without_login(arguments.url)
    if not listing.matched and state == ListingState():
        raise SourceUnavailable(
            f"no files match '{arguments.pattern}'",
            where=name,
            hint="check --url and --pattern in fetch.args",
        )
    reporter.log(f"{name}: {count_of(listing.matched, 'file')} listed, {len(files):,} new")
    for number, file in enumerate(files, 1):
        reporter.raise_if_cancelled()
        reporter.set_amounts(files=number, total_files=len(files))
        payload = listing.download(file.name)
        if payload is None:
            raise SourceUnavailable("the server sends no file", where=file.name)
        state = _state_after(file, state)
        yield replace(
            payload,
            name=file.name,
            state=_source_state(state, context, file.name),
            event_time=None,
            number=number,
            has_more=number < len(files),
        )


def _read_state(context: FetchContext) -> ListingState:
    state = context.state
    if state is None or state.kind != ETAG:
        return ListingState()
    try:
        return msgspec.json.decode(state.value, type=ListingState)
    except msgspec.MsgspecError:
        context.reporter.log("unknown source state: starting with the first file", "warning")
        return ListingState()


def _source_state(state: ListingState, context: FetchContext, name: str) -> SourceState:
    value = msgspec.json.encode(state).decode()
    if context.redact(value) != value:
        raise BadData("the name contains the value of a variable, which is not stored", where=name)
    return SourceState(SOURCE_NAME, ETAG, value)


def _is_new(file: _File, state: ListingState) -> bool:
    if not state.time or file.time != state.time:
        return file > _File(state.time, state.name)
    # A file may appear later with the same time, such as a minute.
    return item_digest(file.name.encode()) not in state.equal if state.equal else file.name > state.name


def _state_after(file: _File, state: ListingState) -> ListingState:
    if not file.time:
        return ListingState(file.name)
    digest = item_digest(file.name.encode())
    if file.time != state.time:
        return ListingState(file.name, file.time, [digest])
    equal = [*state.equal, digest] if 0 < len(state.equal) < _MAX_EQUAL else []
    return ListingState(max(file.name, state.name), file.time, equal)


class _Listing:
    """Lists and downloads files.

    Attributes:
        matched: number of files that match the pattern, as far as they were listed.
    """

    def __init__(self, arguments: ListingArguments, context: FetchContext) -> None:
        self._arguments, self._context = arguments, context
        self._url = context.substitute_variables(arguments.url)
        try:
            self._scheme = urlsplit(self._url).scheme.lower()
        except ValueError:
            raise InvalidManifest(f"invalid URL: '{arguments.url}'", where="fetch.args") from None
        if self._scheme not in ("http", "https", "ftp", "ftps", "s3"):
            raise InvalidManifest(
                f"'{arguments.url}': unsupported URL scheme {self._scheme}",
                where="fetch.args",
                hint="use http, https, ftp, ftps or s3",
            )
        self._patterns = [re.compile(translate(part)) for part in arguments.pattern.split("/")]
        self._time_pattern = re.compile(arguments.time_pattern) if arguments.time_pattern else None
        self.matched = 0
        self._ignored: list[str] = []
        self._base = _folder_url(arguments.url)

    def files(self, state: ListingState) -> Iterator[_File]:
        """Yield the files that match the pattern, unsorted.

        Args:
            state: the source state; files before it may be left out.
        """
        after = state.name if self._arguments.order == "name" else ""
        if self._scheme == "s3":
            name = without_login(self._arguments.url)
            for key, modified in list_s3_objects(self._url, name, after, self._context):
                yield from self._file(key, modified)
        elif self._scheme in ("http", "https"):
            with closing(IndexClient.open(self._url, self._base, self._context)) as client:
                yield from self._walk(client)
        else:
            yield from self._walk(None)

    def download(self, name: str) -> Payload | None:
        """Return the payload of a file."""
        # Variables in a name must not be substituted: quoted names have none, and other names are ignored.
        path = name if self._scheme == "s3" else quote_name(name)
        step, context = Url(self._base + path), replace(self._context, state=None)
        if self._scheme == "s3":
            return fetch_s3(step, context)
        return fetch_http(step, context) if self._scheme in ("http", "https") else fetch_ftp(step, context)

    def report_ignored(self) -> None:
        """Report entries of the list that are no files of the folder."""
        if self._ignored:
            count = count_of(len(self._ignored), "link" if self._scheme.startswith("http") else "name")
            names = ", ".join(f"'{sanitize_text(name)}'" for name in self._ignored[:_SHOWN])
            more = ", …" if len(self._ignored) > _SHOWN else ""
            text = (
                f"{without_login(self._arguments.url)}: ignored {count} that lead out of the folder: {names}"
            )
            self._context.reporter.warn(text + more, "ignored-files", len(self._ignored))

    def _walk(self, client: IndexClient | None) -> Iterator[_File]:
        """Yield the files of a folder, and of the folders inside it that match the pattern."""
        folders, seen = [""], 0
        while folders:
            folder = folders.pop()
            seen += 1
            if seen > _MAX_FOLDERS:
                raise BadData(f"more than {_MAX_FOLDERS:,} folders", where=without_login(self._arguments.url))
            self._context.reporter.raise_if_cancelled()
            depth = folder.count("/")
            for entry in self._entries(client, folder):
                name = folder + entry.name
                if not entry.is_folder:
                    yield from self._file(name, entry.modified)
                elif depth + 1 < len(self._patterns) and self._patterns[depth].fullmatch(entry.name):
                    if is_safe_name(name):
                        folders.append(f"{name}/")
                    else:
                        self._ignored.append(name)

    def _entries(self, client: IndexClient | None, folder: str) -> Iterator[IndexEntry]:
        path = quote_name(folder)
        shown = without_login(self._base) + path
        if client is None:
            url = _folder_url(self._url) + path
            for entry in list_ftp_folder(url, shown, self._context):
                yield IndexEntry(entry.name, entry.is_folder, entry.modified)
            return
        url = _folder_url(self._url) + path if folder else self._url
        for content in client.list_folder(url, shown):
            self._ignored += content.ignored
            yield from content.entries

    def _file(self, name: str, modified: Timestamp | None) -> Iterator[_File]:
        """Yield the file, if it matches the pattern."""
        if not is_safe_name(name) or len(name.encode()) > _MAX_NAME:
            self._ignored.append(name)
            return
        parts = name.split("/")
        if len(parts) != len(self._patterns):
            return
        if not all(pattern.fullmatch(part) for pattern, part in zip(self._patterns, parts, strict=True)):
            return
        self.matched += 1
        yield _File(self._time(name, modified), name)

    def _time(self, name: str, modified: Timestamp | None) -> str:
        """Return the time of a file as text that sorts, or "" if the files are ordered by name."""
        if self._arguments.order == "name":
            return ""
        if self._time_pattern is None:
            if modified is None:
                raise BadData(
                    "the modification time of the file is not known",
                    where=name,
                    hint="use --order name, or --time-pattern for a time in the name",
                )
            return modified.to_datetime().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        match = self._time_pattern.search(name)
        if match is None or not match[1]:
            raise BadData(
                f"the name does not match --time-pattern '{self._arguments.time_pattern}'",
                where=name,
                hint="restrict --pattern to the required files, or extend --time-pattern",
            )
        return match[1]


def _folder_url(url: str) -> str:
    """Return the URL of the folder that the names of a list are relative to."""
    path = url.partition("?")[0].partition("#")[0]
    last = path.rpartition("/")[2]
    is_page = path.count("/") > 2 and last.lower().endswith((".html", ".htm", ".php", ".xml"))
    return path.removesuffix(last) if is_page else f"{path.rstrip('/')}/"
