"""From where a server says that objects can be read: asked in rounds, and again when URLs have expired."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from odf_engine.errors import NotFound, SourceUnavailable
from odf_engine.sync import messages as m
from odf_engine.sync.http import download
from odf_engine.sync.remote import ObjectFile
from odf_engine.sync.transfer_urls import Transfer, transfer_of
from odf_engine.sync.web import Web

ROUND: Final = 4000
"""How many objects are asked for at once: with signed URLs, an answer of some megabytes."""

Ask = Callable[[Sequence[ObjectFile]], Sequence[m.PullStrategy]]


class Strategies:
    """Where the objects of one pull are; safe from several threads."""

    def __init__(self, files: Sequence[ObjectFile], base: str, web: Web, ask: Ask) -> None:
        """``ask`` asks the server at ``base``."""
        self._base, self._web, self._ask = base, web, ask
        self._rounds = [files[start : start + ROUND] for start in range(0, len(files), ROUND)]
        self._round_of = {file: number for number, part in enumerate(self._rounds) for file in part}
        self._asked: set[int] = set()
        self._known: dict[ObjectFile, m.TransferUrl] = {}
        self._lock = threading.Lock()

    def first(self) -> Sequence[ObjectFile]:
        """What to ask for at the beginning."""
        return self._rounds[0] if self._rounds else ()

    def learn(self, number: int, told: Sequence[m.PullStrategy]) -> None:
        """Takes the answer to a round; what was not asked for is passed over."""
        self._asked.add(number)
        for each in told:
            if each.object_file.file in self._round_of:
                self._known[each.object_file.file] = each.download_from

    def chunks(self, file: ObjectFile, start: int) -> Iterator[bytes] | None:
        """The object from byte ``start`` on; None when the server has not said where it is.

        Raises:
            BadData: it said something that is not to be followed.
            OdfError: as the connection has it.
        """
        told = self._told(file)
        return None if told is None else self._read(file, start, told)

    def _told(self, file: ObjectFile, instead_of: m.TransferUrl | None = None) -> m.TransferUrl | None:
        """Where an object is; asks when that is not known, or only what is to be replaced."""
        number = self._round_of.get(file)
        if number is None:
            return None
        with self._lock:
            known = self._known.get(file)
            if number not in self._asked or (instead_of is not None and known == instead_of):
                self.learn(number, self._ask(self._rounds[number]))
            return self._known.get(file)

    def _read(self, file: ObjectFile, start: int, told: m.TransferUrl) -> Iterator[bytes]:
        begun = False
        try:
            for piece in self._download(file, start, transfer_of(told, self._base)):
                begun = True
                yield piece
            return
        except (SourceUnavailable, NotFound):
            fresh = None if begun else self._told(file, instead_of=told)
            if fresh is None or fresh == told:
                raise
        yield from self._download(file, start, transfer_of(fresh, self._base))

    def _download(self, file: ObjectFile, start: int, transfer: Transfer) -> Iterator[bytes]:
        return download(self._web, transfer.url, file.size, start, transfer.headers)
