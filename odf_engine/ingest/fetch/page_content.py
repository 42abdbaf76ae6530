"""The content of a page: items, values at a path, and the text of pages that are not JSON."""

from __future__ import annotations

import html
import re
import zlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from odf_engine.errors import BadData
from odf_engine.net.http_client import Response, sanitize_text

MAX_PAGE_BYTES: Final = 256 << 20
_INVISIBLE: Final = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>", re.DOTALL | re.IGNORECASE)
_EXCERPT_CHARACTERS: Final = 100
_EXCERPT_BYTES: Final = 16 << 10
_NUMBER: Final = re.compile(r"-?\d{1,300}(\.\d{1,300})?([eE][+-]?\d{1,3})?", re.ASCII)


class SinceValue(NamedTuple):
    """The value of an item that later pulls start from.

    Numbers, and texts that are numbers, are compared as numbers. Other texts are compared as texts.
    """

    text: str
    is_number: bool

    @classmethod
    def of(cls, text: str) -> SinceValue:
        """Return the value for a text."""
        return cls(text, _NUMBER.fullmatch(text) is not None)

    @property
    def key(self) -> tuple[Decimal, str]:
        """What values of the same kind are ordered by."""
        return (Decimal(self.text), "") if self.is_number else (Decimal(0), self.text)


class PageBody:
    """The body of a page.

    Args:
        data: the bytes.
        where: the page, for errors.
        redact: removes secrets from a text of the server; an error shows the first characters of it.
    """

    def __init__(self, data: bytes, where: str, redact: Callable[[str], str]) -> None:
        self._where, self._redact = where, redact
        try:
            # Raw keeps the digits of numbers, which a conversion to floats would change.
            self._document = bytes(msgspec.json.decode(data, type=msgspec.Raw)).strip()
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._not_json(data, error) from None

    def items(self, path: str, *, is_list: bool) -> list[bytes]:
        """Return the items, each as JSON on one line.

        Args:
            path: the path of the list, or "" for the document or its only list.
            is_list: whether a document without a list is an error, not an item itself.

        Raises:
            BadData: the page has no such list, or an item is not an object.
        """
        if path:
            content = self.find(path)
            if content is None:
                raise BadData(
                    f"the page has no '{path}': {self._describe()}",
                    where=self._where,
                    hint="set --items in fetch.args to the path of the list, such as data.items",
                )
        else:
            content = self._only_list(is_list=is_list)
        if content == b"null":
            return []
        if content.startswith(b"{") and not is_list:
            parts: Sequence[msgspec.Raw] = [msgspec.Raw(content)]
        elif content.startswith(b"["):
            parts = msgspec.json.decode(content, type=list[msgspec.Raw])
        else:
            subject = f"'{path}'" if path else "the page"
            raise BadData(f"{subject} is not a list: {self._shorten(content)}", where=self._where)
        return [self._item(number, bytes(part).strip()) for number, part in enumerate(parts, 1)]

    def find(self, path: str) -> bytes | None:
        """Return the JSON text at a path, or None if there is none."""
        return find_value(self._document, path)

    def _only_list(self, *, is_list: bool) -> bytes:
        if not self._document.startswith(b"{"):
            return self._document
        fields = _fields(self._document)
        names = [name for name, value in fields.items() if bytes(value).lstrip().startswith(b"[")]
        if len(names) == 1:
            return bytes(fields[names[0]]).strip()
        if not names and not is_list:
            return self._document
        problem = f"the page has {len(names)} lists ({', '.join(names)})" if names else "the page has no list"
        raise BadData(
            problem if names else f"{problem}: {self._describe()}",
            where=self._where,
            hint="set --items in fetch.args to the path of the list, such as data.items",
        )

    def _describe(self) -> str:
        """Return the names of the document, or its first characters, for errors."""
        if self._document.startswith(b"{") and (fields := _fields(self._document)):
            text = ", ".join(fields)
            return f"it has {text if len(text) < _EXCERPT_CHARACTERS else self._shorten(self._document)}"
        return f"it is {self._shorten(self._document)}"

    def _shorten(self, data: bytes) -> str:
        text = self._redact(data[:_EXCERPT_BYTES].decode("utf-8", "replace"))
        return f"'{sanitize_text(' '.join(text.split()), _EXCERPT_CHARACTERS)}'"

    def _item(self, number: int, item: bytes) -> bytes:
        if not item.startswith(b"{"):
            raise BadData(
                f"item {number} is not an object: {self._shorten(item)}",
                where=self._where,
                hint="set --items in fetch.args to the path of a list of objects",
            )
        return msgspec.json.format(item, indent=-1)

    def _not_json(self, data: bytes, error: Exception) -> BadData:
        start = data[:_EXCERPT_BYTES].decode("utf-8", "replace").strip()
        if not start.startswith("<"):
            text = f"the page is not JSON: {self._shorten(data)}" if start else "the page is empty, not JSON"
            return BadData(f"{text} ({error})" if start[:1] in ("{", "[") else text, where=self._where)
        text = self._redact(html.unescape(_INVISIBLE.sub(" ", start)))
        kind = "XML" if start.startswith("<?xml") else "HTML"
        return BadData(
            f"the server returned an {kind} page instead of JSON: "
            f"'{sanitize_text(' '.join(text.split()), _EXCERPT_CHARACTERS)}'",
            where=self._where,
            hint="check the URL in fetch.args, and whether the server requires a login",
        )


def read_body(response: Response, where: str) -> bytes:
    """Return the body of a page as UTF-8, decompressed.

    Raises:
        AttemptFailed: the connection broke.
        BadData: it is too large, or has an unknown encoding.
    """
    data = b"".join(response.iter_chunks(MAX_PAGE_BYTES + 1))
    if response.headers.get("Content-Encoding", "").strip().lower() in ("gzip", "x-gzip", "deflate"):
        try:
            data = zlib.decompressobj(wbits=47).decompress(data, MAX_PAGE_BYTES + 1)
        except zlib.error:
            raise BadData("the page is not compressed as its Content-Encoding says", where=where) from None
    if len(data) > MAX_PAGE_BYTES:
        raise BadData(
            f"the page is larger than {MAX_PAGE_BYTES >> 20} MiB", where=where, hint="request smaller pages"
        )
    return data.removeprefix(b"\xef\xbb\xbf")


def find_value(document: bytes, path: str) -> bytes | None:
    """Return the JSON text at a path, or None if there is none.

    A path has names with dots between them, and numbers from 0 for items of lists. The last name may have
    dots, such as ``@odata.nextLink``.
    """
    name, _, rest = path.partition(".")
    if document.startswith(b"{"):
        fields = _fields(document)
        name, rest = (path, "") if path in fields else (name, rest)
        value = fields.get(name)
    elif document.startswith(b"[") and name.isdecimal():
        items = msgspec.json.decode(document, type=list[msgspec.Raw])
        value = items[int(name)] if int(name) < len(items) else None
    else:
        value = None
    if value is None:
        return None
    inner = bytes(value).strip()
    return find_value(inner, rest) if rest else inner


def scalar_text(value: bytes | None) -> str | None:
    """Return the text of a JSON text or number, or None for null, false, "" and other values."""
    if value is None or value[:1] not in b'"-0123456789':
        return None
    return (msgspec.json.decode(value, type=str) or None) if value.startswith(b'"') else value.decode()


def item_digest(item: bytes) -> str:
    """Return a short hash of an item."""
    return blake2b(item, digest_size=6).hexdigest()


def _fields(document: bytes) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(document, type=dict[str, msgspec.Raw])
