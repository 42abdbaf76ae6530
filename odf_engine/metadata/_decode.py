"""Reading tables from FlatBuffers that anybody may have written: every step is checked.

Offsets only ever lead forward, so there are no cycles; but several may lead to one place. A budget
in proportion to the buffer's size bounds the work and the memory that such a buffer can ask for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date
from enum import Enum
from functools import cache
from typing import Any, Final, NoReturn

import msgspec

from odf_engine.errors import InvalidIdentity, MalformedBlock
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.wire import (
    MAX_DEPTH,
    Blob,
    Choice,
    Flag,
    Json,
    Moment,
    Number,
    Shape,
    Table,
    Text,
    Union,
    Vector,
    json_depth,
    layout_of,
)

_MAX_SLOTS: Final = 128
_MAX_NOTES: Final = 100  # to show; more would only take memory
_U8: Final = struct.Struct("<B")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_VTABLE_HEAD: Final = struct.Struct("<HH")
_SLOTS: Final = tuple(struct.Struct(f"<{count}H") for count in range(_MAX_SLOTS + 1))
_MOMENT: Final = struct.Struct("<iHxxII")
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()

_json_object: Final = msgspec.json.Decoder(dict[str, Any])

_Read = Callable[["Reader", int], Any]


class _Slot(msgspec.Struct, frozen=True, gc=False):
    """How one field is read: where from, and what to do when it is absent."""

    name: str
    key: str
    slot: int
    width: int
    read: _Read
    union: bool
    has_default: bool
    default: Any


class _Plan(msgspec.Struct, frozen=True, gc=False):
    """How a table is read; ``build`` makes the value of the fields that were there."""

    slots: tuple[_Slot, ...]
    count: int
    build: Callable[..., Any]
    needs_one_of: tuple[str, ...]


class Reader:
    """Reads one buffer.

    Attributes:
        unknown: newer slots and union members that were met, such as ``event: slot 9``.
    """

    def __init__(self, data: bytes) -> None:
        self.unknown: list[str] = []
        self._data = data
        self._size = len(data)
        self._path: list[str] = []
        self._depth = 0
        # Every object takes an offset of 4 bytes and its own bytes; the double is for vtables.
        self._budget = 2 * len(data) + 64

    def root(self, kind: type[model.Model] | Union) -> Any:
        """The value of the buffer's root table: a table, or a union within its wrapper.

        Raises:
            MalformedBlock: whatever is wrong with the bytes.
        """
        plan = _wrapper_plan(kind) if isinstance(kind, Union) else _table_plan(kind)
        try:
            return self._table(self._follow(0), plan)
        except struct.error:
            self._fail("it leads past the end of the bytes")

    def _fail(self, problem: str, hint: str | None = None) -> NoReturn:
        where = "".join(self._path).removeprefix(".")
        if not where:  # nothing of it could be read: not damaged, but something else
            raise MalformedBlock(f"these are not the bytes of a block or message: {problem}", hint=hint)
        raise MalformedBlock(problem, hint=hint, where=where)

    def _charge(self, cost: int) -> None:
        self._budget -= cost
        if self._budget < 0:
            self._fail("it holds more than its size allows")

    def _note(self, what: str) -> None:
        if len(self.unknown) < _MAX_NOTES:
            self.unknown.append(("".join(self._path) + f": {what}").removeprefix(".").removeprefix(": "))

    def _follow(self, at: int) -> int:
        offset = _U32.unpack_from(self._data, at)[0]
        if offset < 4 or at + offset > self._size:
            self._fail("it leads to a place that cannot be")
        return at + offset

    def _table(self, at: int, plan: _Plan) -> Any:
        data = self._data
        vtable = at - _I32.unpack_from(data, at)[0]
        if vtable < 0:
            self._fail("its list of fields lies outside of the bytes")
        vtable_size, size = _VTABLE_HEAD.unpack_from(data, vtable)
        count = (vtable_size - 4) >> 1
        if vtable_size & 1 or not 0 <= count <= _MAX_SLOTS:
            self._fail("its list of fields has an impossible size")
        if size < 4 or at + size > self._size:
            self._fail("it has an impossible size")
        offsets = _SLOTS[count].unpack_from(data, vtable + 4)
        extra = count - plan.count
        self._charge(4 if extra <= 0 else 4 + extra)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail("it nests too deeply")
        values = self._fields(at, size, offsets, plan)
        self._depth -= 1
        if extra > 0:
            for slot in range(plan.count, count):
                if offsets[slot]:
                    self._note(f"slot {slot}")
        if plan.needs_one_of and values.keys().isdisjoint(plan.needs_one_of):
            self._fail(f"it has none of {', '.join(plan.needs_one_of)}")
        return plan.build(**values)

    def _fields(self, at: int, size: int, offsets: tuple[int, ...], plan: _Plan) -> dict[str, Any]:
        values: dict[str, Any] = {}
        path = self._path
        count = len(offsets)
        for field in plan.slots:
            slot = field.slot
            offset = offsets[slot] if slot < count else 0
            if offset and field.union:
                offset = self._member(at, size, offsets, field, values)
            elif offset:
                if offset < 4 or offset + field.width > size:
                    path.append(field.key)
                    self._fail("it lies outside of its table")
                path.append(field.key)
                values[field.name] = field.read(self, at + offset)
                path.pop()
            if not offset:
                if field.has_default:
                    if field.default is not None:
                        values[field.name] = field.default
                else:
                    path.append(field.key)
                    self._fail("it is missing")
        return values

    def _member(
        self, at: int, size: int, offsets: tuple[int, ...], field: _Slot, values: dict[str, Any]
    ) -> int:
        """Reads a union's value; returns its number, 0 when there is none."""
        self._path.append(field.key)
        offset = offsets[field.slot]
        if not 4 <= offset < size:
            self._fail("it lies outside of its table")
        number = self._data[at + offset]
        if number:
            offset = offsets[field.slot + 1] if field.slot + 1 < len(offsets) else 0
            if offset < 4 or offset + 4 > size:
                self._fail("it has a kind and no value")
            values[field.name] = field.read(self, (at + offset) << 8 | number)
        self._path.pop()
        return number

    # --- Readers of the shapes; ``at`` is where the field lies within its table ---------------

    def _bytes(self, at: int) -> bytes:
        start = self._follow(at)
        length = _U32.unpack_from(self._data, start)[0]
        end = start + 4 + length
        if end > self._size:
            self._fail("it is longer than the bytes that are left")
        self._charge(4 + length)
        return self._data[start + 4 : end]

    def _text(self, at: int) -> str:
        try:
            return str(self._bytes(at), "utf-8")
        except UnicodeDecodeError:
            self._fail("its text is not UTF-8")

    def _json(self, at: int) -> dict[str, Any]:
        try:
            value = _json_object.decode(self._bytes(at))
        except (msgspec.MsgspecError, RecursionError, ValueError):
            self._fail("its text is not a JSON object")
        if json_depth(value) > MAX_DEPTH:
            self._fail("it nests too deeply")
        return value

    def _moment(self, at: int) -> Timestamp:
        year, day, second, ns = _MOMENT.unpack_from(self._data, at)
        if not (1 <= year <= 9999 and 1 <= day <= 366 and second < 86_400 and ns < 10**9):
            self._fail("it is not a time")
        first = date(year, 1, 1).toordinal()
        if day == 366 and date(year, 12, 31).toordinal() - first != 365:
            self._fail("it is not a time")
        return Timestamp(((first + day - 1 - _EPOCH_DAY) * 86_400 + second) * 10**9 + ns)

    def _vector(self, at: int, item: _Read) -> list[Any]:
        start = self._follow(at)
        length = _U32.unpack_from(self._data, start)[0]
        if start + 4 + 4 * length > self._size:
            self._fail("it is longer than the bytes that are left")
        self._charge(4)
        values: list[Any] = []
        path = self._path
        for index in range(length):
            path.append(f"[{index}]")
            values.append(item(self, start + 4 + 4 * index))
            path.pop()
        return values


# --- Plans -----------------------------------------------------------------------------------


@cache
def _table_plan(kind: type[model.Model]) -> _Plan:
    layout = layout_of(kind)
    slots: list[_Slot] = []
    for field in layout.fields:
        read, width, zero = _reader_of(field.shape)
        slots.append(
            _Slot(
                name=field.name,
                key="." + field.key,
                slot=field.slot,
                width=width,
                read=read,
                union=isinstance(field.shape, Union),
                has_default=field.optional or zero is not None,
                default=None if field.optional else zero,
            )
        )
    return _Plan(tuple(slots), layout.slots, kind, kind.NEEDS_ONE_OF)


@cache
def _wrapper_plan(union: Union) -> _Plan:
    read, width, _ = _reader_of(union)
    slot = _Slot(
        name="value", key="", slot=0, width=width, read=read, union=True, has_default=False, default=None
    )
    return _Plan((slot,), 2, lambda value: value, ())


def _reader_of(shape: Shape) -> tuple[_Read, int, Any]:
    """How a shape is read, its width within the table, and what its absence means, if anything."""
    match shape:
        case Number(format):
            return _number_reader(format), struct.calcsize("<" + format), 0
        case Flag():
            return (lambda reader, at: reader._data[at] != 0), 1, False
        case Choice(enum, format):
            return _choice_reader(enum, format), struct.calcsize("<" + format), next(iter(enum))
        case Moment():
            return Reader._moment, _MOMENT.size, None
        case Text():
            return Reader._text, 4, None
        case Json():
            return Reader._json, 4, None
        case Blob(kind):
            return (Reader._bytes if kind is bytes else _value_reader(kind)), 4, None
        case Table(kind):
            return _table_reader(kind), 4, None
        case Union():
            return _union_reader(shape), 1, None
        case Vector(item):
            return _vector_reader(item), 4, None


def _number_reader(format: str) -> _Read:
    unpack = struct.Struct("<" + format).unpack_from
    return lambda reader, at: unpack(reader._data, at)[0]


def _choice_reader(enum: type[Enum], format: str) -> _Read:
    unpack = struct.Struct("<" + format).unpack_from
    members = tuple(enum)

    def read(reader: Reader, at: int) -> Enum:
        number = unpack(reader._data, at)[0]
        if not 0 <= number < len(members):
            reader._fail(f"{number} is no {enum.__name__}")
        return members[number]

    return read


def _value_reader(kind: type[Any]) -> _Read:
    parse = kind.from_bytes

    def read(reader: Reader, at: int) -> Any:
        data = reader._bytes(at)
        try:
            return parse(data)
        except InvalidIdentity as error:
            reader._fail(error.message, error.hint)

    return read


def _table_reader(kind: type[model.Model]) -> _Read:
    return lambda reader, at: reader._table(reader._follow(at), _table_plan(kind))


def _wrapper_reader(union: Union) -> _Read:
    return lambda reader, at: reader._table(reader._follow(at), _wrapper_plan(union))


def _union_reader(union: Union) -> _Read:
    """Takes position and number in one argument, as ``position << 8 | number``."""
    members = union.members

    def read(reader: Reader, place: int) -> Any:
        number = place & 0xFF
        if number > len(members):
            reader._note(f"member {number}")
            return model.Opaque(union.name, number)
        return reader._table(reader._follow(place >> 8), _table_plan(members[number - 1]))

    return read


def _vector_reader(item: Shape) -> _Read:
    read_item = _wrapper_reader(item) if isinstance(item, Union) else _reader_of(item)[0]
    return lambda reader, at: reader._vector(at, read_item)
