"""Lists of the datasets of a repository: what servers return, and the index of a repository in a folder.

The index is the file ``index.json`` in the folder. A web server without a program of its own serves the list
with it. Each push to the repository updates it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import msgspec

from odf_engine.base.atomic_files import atomic_file, read_small_file
from odf_engine.chain.state import ChainState
from odf_engine.errors import BadData, InvalidIdentity
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.http_client import printable_url, sanitize_text
from odf_engine.sync.remotes.base import RepositoryEntry

INDEX: Final = "index.json"
MAX_LIST_BYTES: Final = 16 << 20
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class RepositoryRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dataset in a list, with the size of its data in bytes. Unknown values are None."""

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
    datasets: list[RepositoryRow]


def parse_list(data: bytes, repository: str) -> list[RepositoryEntry]:
    """Parse the list of a repository, sorted by name. Its URLs are made from the names.

    Raises:
        BadData: the list is invalid.
    """
    try:
        rows = msgspec.json.decode(data, type=_List).datasets
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(sanitize_text(str(error)), repository) from None
    return sorted((list_entry(row, repository) for row in rows), key=lambda listed: listed.name.lower())


def list_entry(row: RepositoryRow, repository: str) -> RepositoryEntry:
    """Return a dataset of a list.

    Raises:
        BadData: a value is invalid.
    """
    try:
        alias = DatasetAlias.parse(row.name)
        dataset_id = None if row.id is None else str(DatasetId.parse(row.id))
        head = None if row.head is None else str(Multihash.parse(row.head))
    except InvalidIdentity as error:
        raise _damaged(sanitize_text(error.message, 120), repository) from None
    return RepositoryEntry(
        name=str(alias),
        url=f"{repository}{quote(str(alias))}/",
        id=dataset_id,
        kind=None if row.kind is None else sanitize_text(row.kind, 20),
        head=head,
        blocks=row.blocks,
        records=row.records,
        size=row.size,
        description=sanitize_text(" ".join((row.description or "").split()), 1000),
        keywords=tuple(sanitize_text(word) for word in (row.keywords or ())[:50]),
    )


def _damaged(problem: str, repository: str) -> BadData:
    hint = "check that this is the URL of a repository; if it is, report the error to its owner"
    return BadData(
        f"the list of datasets cannot be read: {problem}", where=printable_url(repository), hint=hint
    )


def read_index(folder: Path) -> list[RepositoryRow]:
    """Return the datasets in the index of a folder, or [] if there is no index or it is damaged."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(read_small_file(folder / INDEX), type=_List).datasets
    return []


def describe_state(name: str, state: ChainState) -> RepositoryRow:
    """Return the row of a dataset in the index."""
    info = state.info
    return RepositoryRow(
        name=name,
        id=str(state.dataset_id),
        kind=state.kind.name,
        head=str(state.head),
        blocks=state.blocks,
        records=state.records,
        size=state.data_size,
        description=info.description if info else None,
        keywords=list(info.keywords) if info and info.keywords else None,
    )


def write_index(folder: Path, rows: Sequence[RepositoryRow]) -> None:
    """Replace the index of a folder.

    Raises:
        OdfError: it cannot be written.
    """
    with atomic_file(folder / INDEX, 0o644) as new:
        new.write_bytes(msgspec.json.format(msgspec.json.encode(_List(list(rows))), indent=1))


@contextmanager
def lock_index(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the index of a folder. The repository needs no file for it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
