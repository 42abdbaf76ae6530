"""Writing tables as FlatBuffers, in the one order that makes hashes stable (metadata block hashing)."""

from __future__ import annotations

import struct
from datetime import date
from typing import Final

import flatbuffers
import msgspec
from flatbuffers import number_types as numbers

from odf_engine.errors import Unsupported
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.wire import (
    MAX_DEPTH,
    Blob,
    Choice,
    Field,
    Flag,
    Json,
    Moment,
    Number,
    Shape,
    Table,
    Text,
    Union,
    Vector,
    layout_of,
    tag_of,
    union_of,
)

_FLAGS: Final = {
    "Q": numbers.Uint64Flags,
    "q": numbers.Int64Flags,
    "I": numbers.Uint32Flags,
    "i": numbers.Int32Flags,
    "h": numbers.Int16Flags,
}
_MOMENT: Final = struct.Struct("<iHxxII")
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_NS: Final = 86_400 * 10**9


def encode_root(value: model.Model, *, aligned: bool = True) -> bytes:
    """``value`` as a finished buffer; a union's member goes into the wrapper table of its union.

    ``aligned`` false leaves times where they fall, as block version 2 did.

    Raises:
        Unsupported: something within comes from a newer specification, or nests too deeply.
        InvalidIdentity: a dataset reference starts like an id and is none.
    """
    writer = _Writer(aligned)
    if tag_of(type(value)) is None:
        root = writer.table(value)
    else:
        root = writer.wrapper(union_of(type(value)), value)
    return writer.finish(root)


class _Writer:
    def __init__(self, aligned: bool) -> None:
        self._builder = flatbuffers.Builder(512)
        self._moment_alignment = 4 if aligned else 1
        self._depth = 0

    def finish(self, root: int) -> bytes:
        self._builder.Finish(root)
        return bytes(self._builder.Output())

    def table(self, value: model.Model) -> int:
        """Children first, then the fields, both in order of slots."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported(f"data types must not nest deeper than {MAX_DEPTH} levels")
        layout = layout_of(type(value))
        values = [getattr(value, field.name) for field in layout.fields]
        children = [
            None if item is None else self._child(field.shape, item)
            for field, item in zip(layout.fields, values, strict=True)
        ]
        self._builder.StartObject(layout.slots)
        for field, item, child in zip(layout.fields, values, children, strict=True):
            if item is not None:
                self._field(field, item, child)
        self._depth -= 1
        return self._builder.EndObject()

    def wrapper(self, union: Union, value: model.Model) -> int:
        """A table around a union's value, for where a union cannot stand by itself."""
        child = self._union_value(value)
        self._builder.StartObject(2)
        self._union_slots(0, union, value, child)
        return self._builder.EndObject()

    def _child(self, shape: Shape, value: object) -> int | None:
        match shape:
            case Text():
                return self._builder.CreateString(_ref_text(value) if shape.is_ref else value)
            case Json():
                return self._builder.CreateString(msgspec.json.encode(value, order="sorted"))
            case Blob():
                return self._builder.CreateByteVector(bytes(value))  # type: ignore[arg-type]
            case Table():
                return self.table(value)  # type: ignore[arg-type]
            case Union():
                return self._union_value(value)  # type: ignore[arg-type]
            case Vector():
                return self._vector(shape.item, value)  # type: ignore[arg-type]
            case _:
                return None

    def _union_value(self, value: model.Model) -> int:
        if isinstance(value, model.Opaque):
            raise Unsupported(
                f"{value.union} number {value.discriminant} comes from a newer specification "
                "and cannot be written",
                hint="blocks that were received are kept and passed on as they are",
            )
        return self.table(value)

    def _vector(self, item: Shape, values: list[object]) -> int:
        if isinstance(item, Union):
            offsets = [self.wrapper(item, value) for value in values]  # type: ignore[arg-type]
        else:
            offsets = [self._child(item, value) for value in values]
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return self._builder.EndVector()

    def _field(self, field: Field, value: object, child: int | None) -> None:
        # An optional scalar has no default, so that a zero is told from nothing.
        default = None if field.optional else 0
        match field.shape:
            case Number(format):
                self._builder.PrependSlot(_FLAGS[format], field.slot, value, default)
            case Flag():
                self._builder.PrependSlot(numbers.BoolFlags, field.slot, value, default)
            case Choice(enum, format):
                index = list(enum).index(value)  # type: ignore[arg-type]
                self._builder.PrependSlot(_FLAGS[format], field.slot, index, default)
            case Moment():
                self._moment(field.slot, value)  # type: ignore[arg-type]
            case Union() as union:
                self._union_slots(field.slot, union, value, child)
            case _:
                self._offset(field.slot, child)

    def _union_slots(self, slot: int, union: Union, value: object, child: int | None) -> None:
        self._builder.PrependUint8Slot(slot, union.members.index(type(value)) + 1, 0)  # type: ignore[arg-type]
        self._offset(slot + 1, child)

    def _offset(self, slot: int, child: int | None) -> None:
        self._builder.PrependUOffsetTRelative(child)
        self._builder.Slot(slot)

    def _moment(self, slot: int, value: Timestamp) -> None:
        builder = self._builder
        builder.Prep(self._moment_alignment, _MOMENT.size)
        builder.head -= _MOMENT.size
        _MOMENT.pack_into(builder.Bytes, builder.head, *_moment_parts(value))
        builder.Slot(slot)


def _moment_parts(moment: Timestamp) -> tuple[int, int, int, int]:
    """Year, day of the year from 1, second of the day, nanosecond."""
    days, rest = divmod(moment.ns, _DAY_NS)
    day = date.fromordinal(_EPOCH_DAY + days)
    return day.year, day.timetuple().tm_yday, rest // 10**9, rest % 10**9


def _ref_text(value: object) -> str:
    text = str(value)
    return str(DatasetId.parse(text)) if text[: len(DID_PREFIX)].lower() == DID_PREFIX else text
