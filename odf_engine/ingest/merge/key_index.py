"""Index of the primary keys of a dataset: sorted files of row hashes below ``info/keys``."""

from __future__ import annotations

import hashlib
import json
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from shutil import move
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.ingest.merge.key_file import (
    COMPARED,
    KEY,
    OFFSET,
    SECOND,
    TIME,
    VALUES,
    CorruptKeyFile,
    KeyFile,
    KeySorter,
    RepeatedKey,
    merge_files,
)
from odf_engine.spark import sql_types

if TYPE_CHECKING:
    from collections.abc import Callable


_FORM: Final = 1
NO_TIME: Final = "-9223372036854775807L"


@dataclass(frozen=True)
class RowHasher:
    """SQL expressions for the hashes of rows.

    Attributes:
        schema: the schema of the slice.
        keys: the primary key.
        values: all other columns except the event time.
        compared: changed columns of a row, unless these are all ``values``.
        uuid_texts: UUID columns that are text in new rows.
        nullable: a null in a key is a value; otherwise the hash of such a key is null.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    values: tuple[str, ...]
    compared: tuple[str, ...] | None = None
    uuid_texts: frozenset[str] = frozenset()
    nullable: bool = False

    @property
    def names(self) -> list[str]:
        """The columns of hashes of new rows."""
        return [KEY, SECOND, VALUES, *([COMPARED] if self.compared is not None else [])]

    @property
    def columns(self) -> list[str]:
        """The columns of the key file."""
        return [KEY, SECOND, OFFSET, TIME, *self.names[2:]]

    def name(self, live: bool) -> str:
        """Return the folder name of the index. Sources of a dataset may have different keys."""
        return _digest([live, self.keys, self.compared])[:16]

    def form(self, live: bool, version: str) -> str:
        """Return a digest of the hash definition. Hashes of different forms are not comparable."""
        fields = [[field.name, str(field.type)] for field in self.schema]
        return _digest([_FORM, version, live, self.keys, self.values, self.compared, fields])

    def hash_new_rows(self) -> str:
        """Return the columns of hashes of new rows, see ``nullable`` for null keys."""
        key, second, *others = self._all(self.uuid_texts)
        if not self.nullable:
            key = f"if({sql_types.any_null(self.keys)}, NULL, {key})"
        return ", ".join((f"{key} AS {KEY}", f"{second} AS {SECOND}", *others))

    def hash_slice_rows(self, offset: str, op: str, event_time: str) -> str:
        """Return the columns of the key file for rows of slices.

        Args:
            offset, op, event_time: names of the system columns.
        """
        key, second, *others = self._all(frozenset())
        op, place, time = sql_types.column(op), sql_types.column(offset), sql_types.column(event_time)
        is_date = types.is_date(self.schema.field(event_time).type)
        moment = f"unix_date({time})" if is_date else f"unix_millis(CAST({time} AS TIMESTAMP))"
        columns = (
            f"{key} AS {KEY}",
            f"{second} AS {SECOND}",
            f"if({op} IN ({Op.APPEND:d}, {Op.CORRECT_TO:d}), {place}, ~{place}) AS {OFFSET}",
            f"coalesce(CAST({moment} AS BIGINT), {NO_TIME}) AS {TIME}",
        )
        return ", ".join((*columns, *others))

    def _all(self, texts: frozenset[str]) -> list[str]:
        """Return the hashes; hashes of the key have no alias."""
        expressions = [self._hash(1, self.keys, texts), self._hash(2, self.keys, texts)]
        expressions.append(f"{self._hash(3, self.values, texts)} AS {VALUES}")
        if self.compared is not None:
            expressions.append(f"{self._hash(3, self.compared, texts)} AS {COMPARED}")
        return expressions

    def _hash(self, seed: int, names: Sequence[str], texts: frozenset[str]) -> str:
        parts = [str(seed)]
        for name in names:
            value = sql_types.column(name)
            value = f"unhex(replace({value}, '-', ''))" if name in texts else value
            parts.append(_marked(value, self.schema.field(name).type))
        return f"xxhash64({', '.join(parts)})"


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _marked(value: str, kind: pa.DataType) -> str:
    """Return hash arguments that mark nulls and lengths of lists, which Spark's hashes ignore."""
    return _nested(value, kind, 0) if types.is_nested(kind) else f"{value}, {value} IS NULL"


def _nested(value: str, kind: pa.DataType, depth: int) -> str:
    """Return a nested value with a null mark and length at each level; ``depth`` makes names unique."""
    parts = [("n", f"{value} IS NULL")]
    if types.is_struct(kind):
        parts += [
            (f"m{at}", _nested(sql_types.column(member.name, value), member.type, depth))
            for at, member in enumerate(kind)
        ]
    elif types.is_map(kind):
        parts.append(("v", f"to_json(map_entries({value}), map('ignoreNullFields', 'false'))"))
    elif types.is_nested(kind):
        item = f"y{depth}"
        parts.append(("s", f"size({value})"))
        parts.append(("v", f"transform({value}, {item} -> {_nested(item, kind.value_type, depth + 1)})"))
    else:
        parts.append(("v", value))
    return sql_types.struct(parts)


_GROWTH: Final = 4
"""A file that has less than this many times the keys of the next one is merged with it."""
_NUMBER: Final = pa.int64()


@dataclass(frozen=True)
class KeyIndexLocation:
    """Location and definition of an index.

    Attributes:
        dataset: the dataset whose keys are indexed.
        scratch: folder for temporary files; the caller removes it.
        hashes: columns of the key files.
        history: reads the columns of the key file for slices.
        live: the index may drop retracted keys.
        name: see :meth:`RowHasher.name`.
        form: see :meth:`RowHasher.form`.
        reporter: receives a debug message after an update.
    """

    dataset: Dataset
    scratch: Path
    hashes: RowHasher
    history: Callable[[Sequence[SliceSummary]], Iterator[pa.RecordBatch]]
    live: bool
    name: str
    form: str
    reporter: Reporter

    @property
    def folder(self) -> Path:
        """Folder of the key files."""
        return self.dataset.cache_folder / "keys" / self.name

    def new_file(self) -> Path:
        """Return a unique path for a new key file."""
        return self.scratch / f"{uuid.uuid4().hex}.keys"


class KeyIndex:
    """The keys of all rows up to the newest slice of a dataset.

    Raises:
        CorruptKeyFile: by any method; remove the index and open it again.
    """

    def __init__(self, location: KeyIndexLocation) -> None:
        """Open the index and add the keys of slices that it lacks."""
        self._location = location
        self._files: list[KeyFile] = []
        self._offset, self._slice = -1, ""
        with suppress(CorruptKeyFile):
            self._load()
        missing = location.dataset.slices(first_offset=self._offset + 1)
        if missing:
            self._catch_up(missing)

    @property
    def rows(self) -> int:
        """Number of entries of all files, including superseded ones."""
        return sum(file.rows for file in self._files)

    def find(self, keys: pa.Array, seconds: pa.Array) -> pa.Table:
        """Find keys in the index.

        Args:
            keys, seconds: the two hashes of each key, without nulls.

        Returns:
            ``row``, an index into the arguments; ``place``, a number unique to the key; and the columns
            of the key file after the two hashes. All are 64-bit integers.
        """
        order = pc.sort_indices(keys).cast(_NUMBER)
        keys, seconds = keys.take(order), seconds.take(order)
        names = self._location.hashes.columns[2:]
        schema = pa.schema([(name, _NUMBER) for name in ("row", "place", *names)])
        parts: list[pa.RecordBatch] = []
        for file, start in reversed(list(self._starts())):
            rows, places = file.find(keys, seconds)
            if len(rows):
                columns = [file.take(name, places) for name in names]
                place = pc.add(places, pa.scalar(start, _NUMBER))
                parts.append(pa.RecordBatch.from_arrays([order.take(rows), place, *columns], schema=schema))
                left = pc.scatter(pa.repeat(True, len(rows)), rows, max_index=len(keys) - 1).is_null()
                keys, seconds, order = keys.filter(left), seconds.filter(left), order.filter(left)
        return pa.Table.from_batches(parts, schema).combine_chunks()

    def live_keys_except(self, seen: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        """Yield hashes and offset of the live keys that are not at these positions.

        Args:
            seen: positions as returned by :meth:`find`.

        Raises:
            RepeatedKey: a position occurs twice.
        """
        count = sum(map(len, seen))
        over = self._superseded()
        count += sum(map(len, over))
        marks = pa.nulls(self.rows, _NUMBER)
        if count:
            marks = pc.inverse_permutation(pa.chunked_array([*seen, *over], _NUMBER), max_index=self.rows - 1)
            marks = marks.combine_chunks() if isinstance(marks, pa.ChunkedArray) else marks
        if self.rows - marks.null_count < count:
            raise RepeatedKey
        for file, start in self._starts():
            places = pc.indices_nonzero(marks.slice(start, file.rows).is_null()).cast(_NUMBER)
            offsets = file.take(OFFSET, places)
            live = pc.greater_equal(offsets, 0)
            places = places.filter(live)
            columns = [file.take(KEY, places), file.take(SECOND, places), offsets.filter(live)]
            yield pa.RecordBatch.from_arrays(columns, names=[KEY, SECOND, OFFSET])

    def _starts(self) -> Iterator[tuple[KeyFile, int]]:
        """Return each file with the position of its first key."""
        rows = [file.rows for file in self._files]
        return zip(self._files, accumulate(rows, initial=0), strict=False)

    def _superseded(self) -> list[pa.Array]:
        """Return the positions of keys that occur in a newer file."""
        superseded: list[pa.Array] = []
        starts = list(self._starts())
        for at in range(1, len(starts)):
            for part in starts[at][0].ranges([]):
                keys, seconds = part.column(KEY), part.column(SECOND)
                for file, start in reversed(starts[:at]):
                    rows, places = file.find(keys, seconds)
                    superseded.append(pc.add(places, pa.scalar(start, _NUMBER)))
                    if len(rows):
                        left = pc.scatter(pa.repeat(True, len(rows)), rows, max_index=len(keys) - 1).is_null()
                        keys, seconds = keys.filter(left), seconds.filter(left)
        return superseded

    def add(self, file: Path, end: int, physical_hash: str) -> None:
        """Add the keys of the slices of a commit.

        Args:
            file: key file of the slices; it is moved.
            end: last offset of the slices.
            physical_hash: hash of the last slice.
        """
        folder = self._location.folder
        folder.mkdir(parents=True, exist_ok=True)
        if KeyFile(file).rows:
            move(file, folder / file.name)
            self._files.append(KeyFile(folder / file.name))
        while len(self._files) > 1 and self._files[-2].rows < _GROWTH * self._files[-1].rows:
            older, newer = self._files[-2:]
            merged = folder / self._location.new_file().name
            merge_files(older, newer, merged, drop_gone=self._location.live and len(self._files) == 2)
            self._files[-2:] = [KeyFile(merged)]
        self._offset, self._slice = end, physical_hash
        self._save()

    def remove(self) -> None:
        """Remove the files. The index is rebuilt when it is opened again."""
        remove_key_files(self._location)

    def _load(self) -> None:
        """Open the key files, unless they are of another form, or of slices that the chain does not have."""
        location = self._location
        facts = _read_checked_json(location.folder / "index.json")
        if facts is None or facts["form"] != location.form:
            return
        offset = facts["offset"]
        covered = location.dataset.slices(first_offset=offset, last_offset=offset)
        if not covered or covered[-1].end != offset or str(covered[-1].physical_hash) != facts["slice"]:
            return
        files = [KeyFile(location.folder / name) for name in facts["files"]]
        if all(file.facts.get("form") == location.form for file in files):
            self._files, self._offset, self._slice = files, offset, facts["slice"]

    def _save(self) -> None:
        """Write ``index.json`` and remove all other files."""
        folder = self._location.folder
        facts = {
            "form": self._location.form,
            "offset": self._offset,
            "slice": self._slice,
            "files": [file.path.name for file in self._files],
        }
        body = json.dumps(facts).encode()
        staged = folder / f"{uuid.uuid4().hex}.new"
        staged.write_bytes(b"%08x\n" % zlib.crc32(body) + body)
        staged.replace(folder / "index.json")
        for path in folder.iterdir():
            if path.name not in ("index.json", *facts["files"]):
                path.unlink(missing_ok=True)

    def _catch_up(self, slices: Sequence[SliceSummary]) -> None:
        """Add the keys of slices that other programs or sources committed."""
        location = self._location
        sorter = KeySorter(location.hashes.columns, location.scratch, unique=False)
        for batch in location.history(slices):
            sorter.add(batch.columns)
        file = location.new_file()
        sorter.finish(file, form=location.form)
        self.add(file, slices[-1].end, str(slices[-1].physical_hash))
        location.reporter.log(f"key index updated to offset {self._offset:,}", "debug")


def remove_key_files(location: KeyIndexLocation) -> None:
    """Remove the files of an index. It is rebuilt when it is opened."""
    if location.folder.is_dir():
        for path in location.folder.iterdir():
            path.unlink(missing_ok=True)


def _read_checked_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a file that starts with its CRC-32, or None if it is missing or damaged."""
    try:
        checksum, _, body = path.read_bytes().partition(b"\n")
        return json.loads(body) if int(checksum, 16) == zlib.crc32(body) else None
    except (OSError, ValueError, RecursionError):
        return None
