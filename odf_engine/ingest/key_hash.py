"""Hashes of rows, computed in Spark: by these a merge knows what the dataset has.

Rows that come in and rows of a slice give the same hashes, as both are cast to the slice's types, and
values that are equal (``<=>``) do: nulls are equal to each other, not a number to itself, zero to
minus zero. A key has two hashes of 64 bits with different seeds, which no two keys share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from odf_engine.data.changelog import Op
from odf_engine.ingest import sql
from odf_engine.ingest.key_spool import COMPARED, KEY, OFFSET, SECOND, TIME, VALUES

_FORM: Final = 1
NO_TIME: Final = "-9223372036854775807L"


@dataclass(frozen=True)
class Hashes:
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

    def of_new(self) -> str:
        """The hashes of rows that come in; the first is null when one of the key's columns is."""
        key, second, *others = self._all(self.uuid_texts)
        if not self.nullable:
            key = f"if({sql.any_null(self.keys)}, NULL, {key})"
        return ", ".join((f"{key} AS {KEY}", f"{second} AS {SECOND}", *others))

    def of_old(self, offset: str, op: str, event_time: str) -> str:
        """The columns of the key file for rows of slices."""
        key, second, *others = self._all(frozenset())
        op, place, time = sql.column(op), sql.column(offset), sql.column(event_time)
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
            value = sql.column(name)
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
            (f"m{at}", _nested(sql.column(member.name, value), member.type, depth))
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
    return sql.struct(parts)
