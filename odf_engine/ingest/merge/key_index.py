"""Index of the primary keys of a dataset, as sorted files of row hashes."""

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
from odf_engine.progress import Reporter
from odf_engine.spark import sql_types

if TYPE_CHECKING:
    from collections.abc import Callable


_FORM: Final = 1
NO_TIME: Final = "-9223372036854775807L"


@dataclass(frozen=True)
class RowHasher:
    """Which columns are hashed.

    Attributes:
        schema: of the slice.
        keys: the primary key.
        values: all other columns but the event time.
        compared: those whose change makes a row another one, where these are not all ``values``.
        uuid_texts: columns of UUIDs that come in as text.
        nullable: nulls in a key are values as others.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    values: tuple[str, ...]
    compared: tuple[str, ...] | None = None
    uuid_texts: frozenset[str] = frozenset()
    nullable: bool = False

    @property
    def names(self) -> list[str]:
        """The columns of hashes."""
        return [KEY, SECOND, VALUES, *([COMPARED] if self.compared is not None else [])]

    @property
    def columns(self) -> list[str]:
        """The columns of the key file."""
        return [KEY, SECOND, OFFSET, TIME, *self.names[2:]]

    def name(self, live: bool) -> str:
        """Says which hashes are asked for: a dataset may have sources with different keys."""
        return _digest([live, self.keys, self.compared])[:16]

    def form(self, live: bool, version: str) -> str:
        """Says what the hashes mean: those of another form cannot be compared."""
        fields = [[field.name, str(field.type)] for field in self.schema]
        return _digest([_FORM, version, live, self.keys, self.values, self.compared, fields])

    def hash_new_rows(self) -> str:
        """The hashes of rows that come in; the first is null when one of the key's columns is."""
        key, second, *others = self._all(self.uuid_texts)
        if not self.nullable:
            key = f"if({sql_types.any_null(self.keys)}, NULL, {key})"
        return ", ".join((f"{key} AS {KEY}", f"{second} AS {SECOND}", *others))

    def hash_slice_rows(self, offset: str, op: str, event_time: str) -> str:
        """The columns of the key file for rows of slices."""
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
        found = [self._hash(1, self.keys, texts), self._hash(2, self.keys, texts)]
        found.append(f"{self._hash(3, self.values, texts)} AS {VALUES}")
        if self.compared is not None:
            found.append(f"{self._hash(3, self.compared, texts)} AS {COMPARED}")
        return found

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
    """Arguments for a hash; Spark's hashes pass over nulls and do not tell where a list ends."""
    return _nested(value, kind, 0) if types.is_nested(kind) else f"{value}, {value} IS NULL"


def _nested(value: str, kind: pa.DataType, depth: int) -> str:
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


_MUCH: Final = 4
_NUMBER: Final = pa.int64()


@dataclass(frozen=True)
class KeyIndexLocation:
    """Where the keys are kept, and of what form.

    Attributes:
        scratch: folder for temporary files, which whoever calls removes.
        history: the columns of the key file for the rows of some slices.
        live: keys that were taken away need not be remembered.
        name: see :meth:`RowHasher.name`.
        form: see :meth:`RowHasher.form`.
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
        return self.dataset.folder / "info" / "keys" / self.name

    def new_file(self) -> Path:
        """A fresh name for a key file in the making."""
        return self.scratch / f"{uuid.uuid4().hex}.keys"


class KeyIndex:
    """The keys of all rows up to the dataset's newest slice.

    Raises:
        DamagedKeys: by any method: forget the index and open it again.
    """

    def __init__(self, place: KeyIndexLocation) -> None:
        """Opens it, and brings it up to the head of the chain."""
        self._place = place
        self._files: list[KeyFile] = []
        self._offset, self._slice = -1, ""
        with suppress(CorruptKeyFile):
            self._load()
        behind = place.dataset.slices(first_offset=self._offset + 1)
        if behind:
            self._catch_up(behind)

    @property
    def rows(self) -> int:
        """How many entries the files have, those that count no more among them."""
        return sum(file.rows for file in self._files)

    # --- Looking up ---------------------------------------------------------------------------

    def find(self, keys: pa.Array, seconds: pa.Array) -> pa.Table:
        """What is known of those of the keys that were seen.

        Args:
            keys, seconds: the two hashes of each.

        Returns:
            ``row``, an index into the arguments, ``place``, which is another one for every key, and the
            columns of the key file but the hashes of the key.
        """
        order = pc.sort_indices(keys).cast(_NUMBER)
        keys, seconds = keys.take(order), seconds.take(order)
        names = self._place.hashes.columns[2:]
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
        """The live keys at other places than these: the two hashes and the offset of each.

        Raises:
            RepeatedKey: a place was seen twice.
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
        rows = [file.rows for file in self._files]
        return zip(self._files, accumulate(rows, initial=0), strict=False)

    def _superseded(self) -> list[pa.Array]:
        """The places of keys that a newer file has too."""
        found: list[pa.Array] = []
        starts = list(self._starts())
        for at in range(1, len(starts)):
            for part in starts[at][0].ranges([]):
                keys, seconds = part.column(KEY), part.column(SECOND)
                for file, start in reversed(starts[:at]):
                    rows, places = file.find(keys, seconds)
                    found.append(pc.add(places, pa.scalar(start, _NUMBER)))
                    if len(rows):
                        left = pc.scatter(pa.repeat(True, len(rows)), rows, max_index=len(keys) - 1).is_null()
                        keys, seconds = keys.filter(left), seconds.filter(left)
        return found

    # --- Keeping ------------------------------------------------------------------------------

    def add(self, file: Path, end: int, physical_hash: str) -> None:
        """Takes over the file with the keys of the slice that ends at offset ``end``."""
        folder = self._place.folder
        folder.mkdir(parents=True, exist_ok=True)
        if KeyFile(file).rows:
            move(file, folder / file.name)
            self._files.append(KeyFile(folder / file.name))
        while len(self._files) > 1 and self._files[-2].rows < _MUCH * self._files[-1].rows:
            older, newer = self._files[-2:]
            made = folder / self._place.new_file().name
            merge_files(older, newer, made, drop_gone=self._place.live and len(self._files) == 2)
            self._files[-2:] = [KeyFile(made)]
        self._offset, self._slice = end, physical_hash
        self._save()

    def forget(self) -> None:
        """Removes all files."""
        forget(self._place)

    def _load(self) -> None:
        place = self._place
        facts = _read(place.folder / "index.json")
        if facts is None or facts["form"] != place.form:
            return
        offset = facts["offset"]
        covered = place.dataset.slices(first_offset=offset, last_offset=offset)
        if not covered or covered[-1].end != offset or str(covered[-1].physical_hash) != facts["slice"]:
            return
        files = [KeyFile(place.folder / name) for name in facts["files"]]
        if all(file.facts.get("form") == place.form for file in files):
            self._files, self._offset, self._slice = files, offset, facts["slice"]

    def _save(self) -> None:
        folder = self._place.folder
        facts = {
            "form": self._place.form,
            "offset": self._offset,
            "slice": self._slice,
            "files": [file.path.name for file in self._files],
        }
        body = json.dumps(facts).encode()
        made = folder / f"{uuid.uuid4().hex}.new"
        made.write_bytes(b"%08x\n" % zlib.crc32(body) + body)
        made.replace(folder / "index.json")
        for path in folder.iterdir():
            if path.name not in ("index.json", *facts["files"]):
                path.unlink(missing_ok=True)

    def _catch_up(self, slices: Sequence[SliceSummary]) -> None:
        place = self._place
        spool = KeySorter(place.hashes.columns, place.scratch, unique=False)
        for batch in place.history(slices):
            spool.add(batch.columns)
        made = place.new_file()
        spool.finish(made, form=place.form)
        self.add(made, slices[-1].end, str(slices[-1].physical_hash))
        place.reporter.log(f"remembers the keys up to offset {self._offset:,}", "debug")


def forget(place: KeyIndexLocation) -> None:
    """Removes the files of an index that is damaged: it is made anew when it is opened."""
    if place.folder.is_dir():
        for path in place.folder.iterdir():
            path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        checksum, _, body = path.read_bytes().partition(b"\n")
        return json.loads(body) if int(checksum, 16) == zlib.crc32(body) else None
    except (OSError, ValueError, RecursionError):
        return None
