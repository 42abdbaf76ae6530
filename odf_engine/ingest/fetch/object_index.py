"""Indexes of files on web servers: HTML pages of nginx and Apache, and XML lists of S3 services."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlencode, urljoin, urlsplit
from xml.etree import ElementTree

from odf_engine.errors import BadData
from odf_engine.ingest.fetch.http import SourceClient, login_header
from odf_engine.ingest.fetch.model import FetchContext
from odf_engine.ingest.fetch.page_content import read_body
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.address_policy import HomeNetwork, PublicAddresses
from odf_engine.net.http_client import sanitize_text

_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d|\d\d-[A-Z][a-z]{2}-\d{4}) (\d\d:\d\d)", re.ASCII)
_FORMATS: Final = ("%Y-%m-%d %H:%M", "%d-%b-%Y %H:%M")
_MAX_LISTS: Final = 10_000
_TEXT_CHARACTERS: Final = 500


class IndexEntry(NamedTuple):
    """A file or folder of an index. Its modification time may be unknown."""

    name: str
    is_folder: bool
    modified: Timestamp | None


class IndexContent(NamedTuple):
    """The content of an index.

    Attributes:
        entries: its files and folders.
        ignored: links that lead out of the folder.
        following: parameters of the request for the next part of the list, or {} if it is complete.
    """

    entries: list[IndexEntry]
    ignored: list[str]
    following: dict[str, str]


class IndexClient(SourceClient):
    """HTTP client for indexes."""

    url_field = "the URL in fetch.args"
    headers_field = "the URL in fetch.args (https://USER:PASSWORD@HOST/)"
    keeps_alive = True

    @classmethod
    def open(cls, url: str, name: str, context: FetchContext) -> IndexClient:
        """Return a client for an index and its folders."""
        policy = PublicAddresses() if context.untrusted else HomeNetwork.of(url)
        return cls(url, name, context, policy)

    def list_folder(self, url: str, name: str) -> Iterator[IndexContent]:
        """Yield the parts of an index.

        Args:
            url: URL of the index, with its variables substituted.
            name: the URL for messages.

        Raises:
            SourceUnavailable: a status that is not one of success, or a broken connection, after the retries.
            BadData: the page is not an index, or its list does not end.
        """
        self.name = name
        query = urlsplit(url).query
        following, seen = dict[str, str](), set[str]()
        while True:
            place = url.partition("?")[0] + "?" + "&".join(filter(None, [query, urlencode(following)]))
            content = self._read(place.removesuffix("?"), name)
            yield content
            following = content.following
            key = urlencode(following)
            if not key:
                return
            if key in seen or len(seen) > _MAX_LISTS:
                raise BadData("the list of objects does not end", where=name)
            seen.add(key)

    def _read(self, url: str, name: str) -> IndexContent:
        def attempt() -> bytes:
            with self.request("GET", url, headers=login_header(url)) as response:
                return read_body(response, name)

        data = self.with_retries(attempt)
        return parse_index(data, url, name)


def parse_index(data: bytes, url: str, where: str) -> IndexContent:
    """Return the content of an index.

    Args:
        data: an HTML page or an XML list.
        url: URL of the index.
        where: the URL for errors.

    Raises:
        BadData: it is neither.
    """
    start = data[:2000].lstrip()
    if b"<ListBucketResult" in start:
        return _parse_bucket_list(data, where)
    is_other_xml = start.startswith(b"<?xml") and b"<html" not in start.lower()
    if b"<" not in start or is_other_xml:
        raise BadData(
            f"not an index of files: '{sanitize_text(start.decode('utf-8', 'replace'))}'",
            where=where,
            hint="check the URL in fetch.args",
        )
    return _parse_html_index(data.decode("utf-8", "replace"), url)


def _parse_bucket_list(data: bytes, where: str) -> IndexContent:
    """Return the objects of an S3 list (ListObjects, ListObjectsV2)."""
    try:
        if b"<!DOCTYPE" in data:
            raise BadData("the list of objects has a document type, which is not supported", where=where)
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise BadData(f"the list of objects is not XML: {error}", where=where) from None
    fields = {_local(child.tag): child.text or "" for child in root}
    entries: list[IndexEntry] = []
    for child in root:
        if _local(child.tag) == "Contents":
            values = {_local(value.tag): value.text or "" for value in child}
            key = values.get("Key", "")
            key = unquote(key) if fields.get("EncodingType") == "url" else key
            if key and not key.endswith("/"):
                entries.append(IndexEntry(key, False, _parse_rfc_3339(values.get("LastModified", ""))))
    following: dict[str, str] = {}
    if fields.get("IsTruncated", "").strip().lower() == "true":
        if token := fields.get("NextContinuationToken"):
            following = {"list-type": "2", "continuation-token": token}
        else:
            marker = fields.get("NextMarker") or (entries[-1].name if entries else "")
            following = {"marker": marker} if marker else {}
    return IndexContent(entries, [], following)


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _parse_rfc_3339(text: str) -> Timestamp | None:
    try:
        return Timestamp.parse(text)
    except ValueError:
        return None


class _LinkParser(HTMLParser):
    """Collects the targets of links, with the text from their end up to the next link."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, list[str]]] = []
        self._is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a" and (target := dict(attrs).get("href")):
            self.links.append((target.strip(), []))
            self._is_inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self._is_inside = False

    def handle_data(self, data: str) -> None:
        if self.links and not self._is_inside:
            self.links[-1][1].append(data[:_TEXT_CHARACTERS])


def _parse_html_index(text: str, url: str) -> IndexContent:
    parser = _LinkParser()
    with closing(parser):
        parser.feed(text)
    folder = urlsplit(urljoin(url, "."))
    entries: dict[str, IndexEntry] = {}
    ignored: list[str] = []
    for target, texts in parser.links:
        # Column titles of Apache link to other orders of the same index.
        if target.startswith(("?", "#")) or _is_parent(target, folder.path):
            continue
        path = target.removeprefix("./").partition("#")[0]
        name = unquote(path.rstrip("/"))
        parts = urlsplit(target)
        if parts.scheme or parts.netloc or "?" in path or not is_safe_name(name) or "/" in name:
            ignored.append(target)
            continue
        entries[name] = IndexEntry(name, path.endswith("/"), _find_time(texts))
    return IndexContent(list(entries.values()), ignored, {})


def _is_parent(target: str, folder: str) -> bool:
    """Return whether a link leads to a folder that contains the folder of the index."""
    return target in ("..", "../", "./") or (target.endswith("/") and folder.startswith(target))


def is_safe_name(name: str) -> bool:
    """Return whether a name is one of a file in the folder or its folders, and cannot be misunderstood."""
    parts = name.split("/")
    is_relative = not any(part in ("", ".", "..") for part in parts)
    return is_relative and name.isprintable() and "\\" not in name and "${{" not in name


def _find_time(texts: Sequence[str]) -> Timestamp | None:
    """Return the time after a link. Indexes have no time zone: it is read as UTC."""
    match = _TIME.search(" ".join(texts))
    for form in _FORMATS if match else ():
        try:
            return Timestamp.from_datetime(datetime.strptime(match[0], form).replace(tzinfo=UTC))  # type: ignore[index]
        except ValueError:
            continue
    return None


def quote_name(name: str) -> str:
    """Return a name as the path of a URL."""
    return quote(name, safe="/")
