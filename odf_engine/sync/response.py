"""What a server answered: a body that is read piece by piece, within bounds, and looked at."""

from __future__ import annotations

import http.client
from collections.abc import Generator
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

from odf_engine.errors import BadData, OdfError, SourceUnavailable
from odf_engine.ingest.retries import Failed
from odf_engine.sync.connections import Connection, Watched
from odf_engine.workspace.remotes import bare_url

if TYPE_CHECKING:
    from odf_engine.sync.web import Web

_LONGEST_PIECE: Final = 0.5
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
        self, web: Web, url: str, connection: Connection, answer: http.client.HTTPResponse, watched: Watched
    ) -> None:
        self.url, self.status, self.headers = url, answer.status, answer.headers
        self.length = answer.length
        self._web, self._connection, self._answer, self._watched = web, connection, answer, watched
        self._left = answer.length
        self._whole, self._begun = answer.length == 0, False

    def pieces(self, at_most: int) -> Generator[bytes, None, None]:
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
            self._web.reporter.check()
            if isinstance(failure, http.client.IncompleteRead) and self._left is not None:
                problem = f"the connection ended {self._left:,} bytes before the end of the answer"
                raise Failed(SourceUnavailable(problem, where=shown(self.url)), again=True)
            if failure is not None:
                raise self._web.broken(failure, self.url) from None

    def whole(self, at_most: int) -> bytes:
        """The whole body, which has to be that of a file.

        Raises:
            Failed: it broke off, it has more than ``at_most`` bytes, or it is a page for people.
        """
        too_long = (self.length or 0) > at_most
        data = b"".join(self.pieces(at_most + 1)) if not too_long else self.beginning()
        self.check_file(data)
        if too_long or len(data) > at_most:
            problem = f"the server sends more than the {at_most:,} bytes that this may have"
            raise Failed(BadData(problem, where=shown(self.url)), again=False)
        return data

    def beginning(self) -> bytes:
        """The first bytes of a body that is not wanted, to see what it is."""
        with suppress(Failed):
            return next(self.pieces(512), b"")
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
            raise Failed(BadData(problem, where=shown(self.url), hint=hint), again=False)
        encoding = self.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            problem = f"the server sends the file packed as {printable(encoding)}, though it was asked not to"
            raise Failed(BadData(problem, where=shown(self.url), hint="tell its owner"), again=False)

    def close(self) -> None:
        """Lets go of the connection; one whose answer was read to its end is used again."""
        if not self._whole and not self._answer.will_close and (self._left or 0) <= _WORTH_READING:
            with suppress(Failed, OdfError):
                for _ in self.pieces(_WORTH_READING):
                    pass
        self._answer.close()
        if self._whole and not self._answer.will_close:
            self._web.connections.give(self._connection)
        else:
            self._web.connections.drop(self._connection)

    def _fill(self, view: memoryview) -> tuple[int, Exception | None]:
        """Fills the view, or as much of it as comes within a moment, or before what went wrong."""
        filled, begun = 0, monotonic()
        try:
            while filled < len(view) and (not filled or monotonic() - begun < _LONGEST_PIECE):
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


def shown(url: str) -> str:
    """A URL as it may be shown: without a login, and without a query, which may hold a signature."""
    parts = urlsplit(bare_url(url))
    return printable(urlunsplit(parts._replace(query="", fragment="")), 200)


def printable(text: str, at_most: int = 80) -> str:
    """What a server says, as it may be shown."""
    plain = text if text.isprintable() else "".join(char for char in text if char.isprintable())
    return plain if len(plain) <= at_most else plain[: at_most - 1] + "…"
