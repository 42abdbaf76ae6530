"""The header of the CSV file that a dataset read last, to notice columns that were renamed or moved since.

Declared columns go by position, and their names may differ from those in the header. So only a comparison
with the header before shows such a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from odf_engine.base.atomic_files import atomic_file
from odf_engine.base.files import ensure_folder
from odf_engine.errors import InvalidSchema


class _Header(msgspec.Struct, frozen=True):
    """A header, and the columns that the definition declared for it."""

    names: tuple[str, ...]
    columns: tuple[str, ...]


class KnownHeader:
    """The header of the last file of a dataset.

    Args:
        file: the file with the header; losing it only loses the comparison.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._new: _Header | None = None

    def compare(self, names: Sequence[str], columns: Sequence[str], where: str) -> list[tuple[str, str]]:
        """Compare a header with the header before.

        Args:
            names: the names in the header.
            columns: the declared columns.
            where: the place of the header.

        Returns:
            Pairs of the old and the new name of each renamed column.

        Raises:
            InvalidSchema: a column has another position.
        """
        self._new = _Header(tuple(name.strip() for name in names), tuple(columns))
        old = self._read()
        if old is None or old.columns != self._new.columns or len(old.names) != len(self._new.names):
            return []
        renamed = [pair for pair in zip(old.names, self._new.names, strict=True) if pair[0] != pair[1]]
        moved = next((name for name, _ in renamed if name in self._new.names), None)
        if moved is not None:
            before, now = old.names.index(moved) + 1, self._new.names.index(moved) + 1
            raise InvalidSchema(
                f"column '{moved}' was column {before} at the last pull, and is column {now} now",
                where=where,
                hint="change the order of read.schema in the manifest, and run odf add --update",
            )
        return renamed

    def names(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the names in the header at the last pull, or () if unknown for these columns."""
        old = self._read()
        return old.names if old is not None and old.columns == tuple(columns) else ()

    def save(self) -> None:
        """Store the compared header, after its rows were committed."""
        if self._new is not None:
            with suppress(OSError):
                ensure_folder(self._file.parent)
                with atomic_file(self._file) as path:
                    path.write_bytes(msgspec.json.encode(self._new))

    def _read(self) -> _Header | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Header)
        except (OSError, msgspec.MsgspecError):
            return None
