"""What a server of ours has: its list of datasets. Other servers have files, and no list of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final
from urllib.parse import quote

import msgspec

from odf_engine.errors import BadData, InvalidIdentity, NotFound, Unsupported
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.refs import DatasetAlias
from odf_engine.ingest.retries import Failed
from odf_engine.sync.places import Access
from odf_engine.sync.remote import Listed
from odf_engine.sync.response import printable, shown
from odf_engine.sync.web import Web

MOST_LIST_BYTES: Final = 16 << 20
_NO_LIST: Final = (400, 403, 404, 405, 406, 501)
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Row(msgspec.Struct, frozen=True):
    name: str
    id: str | None = None
    kind: str | None = None
    head: str | None = None
    blocks: _Count | None = None
    records: _Count | None = None
    size: _Count | None = None
    description: str | None = None
    keywords: list[str] | None = None


class _List(msgspec.Struct, frozen=True):
    datasets: list[_Row]


class ServerRepository:
    """The datasets of a server; ``url`` may start with ``odf+``, and then theirs do too."""

    def __init__(self, url: str, access: Access) -> None:
        self.url = url
        self._web = Web(url, access)

    def datasets(self) -> Iterator[Listed]:
        """What the server lists, in the order of names.

        Raises:
            Unsupported: it lists nothing.
            BadData: its list is damaged.
            SourceUnavailable, Cancelled: as the connection has it.
        """
        rows = self._parsed(self._web.retried(self._fetched))
        yield from sorted(map(self._listed, rows), key=lambda listed: listed.name.lower())

    def close(self) -> None:
        """Lets go of all connections."""
        self._web.close()

    def _fetched(self) -> bytes:
        headers = {"Accept": "application/json"}
        try:
            with self._web.once("GET", self._web.url, headers=headers, missing=_NO_LIST) as response:
                if response.headers.get_content_type() != "application/json":
                    raise Failed(self._no_list(), again=False)
                return response.whole(MOST_LIST_BYTES)
        except Failed as failure:
            if isinstance(failure.error, NotFound):
                raise Failed(self._no_list(), again=False) from None
            raise

    def _no_list(self) -> Unsupported:
        hint = f"name a dataset by its whole address: odf pull {self.url}NAME/"
        return Unsupported(
            "this server does not tell which datasets it has", where=shown(self.url), hint=hint
        )

    def _parsed(self, data: bytes) -> list[_Row]:
        try:
            return msgspec.json.decode(data, type=_List).datasets
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(printable(str(error))) from None

    def _listed(self, row: _Row) -> Listed:
        try:
            alias = DatasetAlias.parse(row.name)
            dataset_id = None if row.id is None else str(DatasetId.parse(row.id))
            head = None if row.head is None else str(Multihash.parse(row.head))
        except InvalidIdentity as error:
            raise self._damaged(printable(error.message, 120)) from None
        return Listed(
            name=str(alias),
            url=f"{self.url}{quote(str(alias))}/",
            id=dataset_id,
            kind=None if row.kind is None else printable(row.kind, 20),
            head=head,
            blocks=row.blocks,
            records=row.records,
            size=row.size,
            description=printable(" ".join((row.description or "").split()), 1000),
            keywords=tuple(printable(word) for word in (row.keywords or ())[:50]),
        )

    def _damaged(self, problem: str) -> BadData:
        hint = "is this the address of a repository? if it is, tell its owner"
        return BadData(f"the list of datasets cannot be read: {problem}", where=shown(self.url), hint=hint)
