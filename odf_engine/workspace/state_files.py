"""The files of projections in a workspace's cache, named for what they were made of.

The name of a current state says how many slices it was made of, and which: so the state of the same
slices is found again, and the one of most of them, from where to go on. What the chain has besides slices
makes no difference.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec
import pyarrow.parquet as pq

from odf_engine.data.parquet_reader import UNREADABLE
from odf_engine.workspace.stored import Part, StoredRows

_ABOUT: Final = b"odf.projection"


class Projection(msgspec.Struct, frozen=True):
    """A projection of a dataset: its file, its key, and how many rows of how many it has."""

    file: Path
    key: list[str]
    rows: int
    of: int


class About(msgspec.Struct):
    """What a file says of itself: its key, and of how many rows it was made."""

    key: list[str]
    of: int

    def metadata(self) -> dict[bytes, bytes]:
        """As the metadata of the file's schema."""
        return {_ABOUT: msgspec.json.encode(self)}


class StateFile:
    """The file of a projection, which may be there.

    Attributes:
        path: where it is, or would be.
    """

    def __init__(self, path: Path, family: str, marks: Sequence[str], rows: StoredRows) -> None:
        self.path = path
        self._family = family
        self._marks = marks
        self._rows = rows

    @classmethod
    def of(cls, folder: Path, rows: StoredRows, key: Sequence[str], more: str | None = None) -> Self:
        """The file of the current state of these rows by a key, or of what ``more`` says it is."""
        columns = [f"{field.name} {field.type}" for field in rows.columns]
        words = [*rows.system_columns, rows.vocabulary.event_time_column, str(len(key)), *key, *columns]
        if more is not None:
            words.append(f"as of {more}")
        family = hashlib.sha256("\0".join(words).encode()).hexdigest()[:20]
        running = hashlib.sha256()
        marks = [running.hexdigest()[:20]]
        for part in rows.parts:
            running.update(f"{part.mark}\n".encode())
            marks.append(running.hexdigest()[:20])
        return cls(folder / _name(family, len(rows.parts), marks[-1]), family, marks, rows)

    def known(self) -> Projection | None:
        """The projection, when it was made before."""
        found = _read(self.path)
        if found is not None:
            with suppress(OSError):
                os.utime(self.path)  # it was used just now
        return found

    def before(self) -> tuple[Path, StoredRows] | None:
        """The file of most of the slices, and rows that come to the same: its own, and the slices since."""
        known: list[tuple[int, Path]] = []
        for path in self.path.parent.glob(f"{self._family}-*.parquet"):
            count = path.stem.split("-")[1]
            if count.isdecimal() and int(count) < len(self._marks):
                known.append((int(count), path))
        for count, path in sorted(known, reverse=True):
            found = _read(path) if path.name == _name(self._family, count, self._marks[count]) else None
            if found is not None and count:
                state = Part(path, found.rows, path.stem, path.name)
                parts = [state, *self._rows.parts[count:]]
                return path, self._rows.of_parts(parts)
        return None


def _name(family: str, count: int, mark: str) -> str:
    return f"{family}-{count}-{mark}.parquet"


def _read(path: Path) -> Projection | None:
    with suppress(*UNREADABLE, msgspec.MsgspecError, KeyError, RecursionError):
        metadata = pq.read_metadata(path)
        about = msgspec.json.decode((metadata.metadata or {})[_ABOUT], type=About)
        return Projection(path, about.key, metadata.num_rows, about.of)
    return None
