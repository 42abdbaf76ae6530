"""FlatBuffers codec of blocks and engine messages, with a bounds-checked decoder.

Specification: "Metadata Format".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date
from enum import Enum
from functools import cache
from typing import Any, Final, NoReturn

import msgspec

from odf_engine.errors import InvalidIdentity, MalformedBlock, Unsupported
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.multiformats import ODF_METADATA_BLOCK
from odf_engine.metadata import model
from odf_engine.metadata.descriptors import (
    MAX_DEPTH,
    BoolType,
    BytesType,
    EnumType,
    FieldDescriptor,
    FieldType,
    InstantType,
    IntegerType,
    JsonType,
    StringType,
    TableType,
    UnionType,
    VectorType,
    describe_table,
    field_type_of,
    find_union,
    json_depth,
    union_tag,
)
from odf_engine.metadata.model import Manifest, MetadataBlock, Model
from odf_engine.metadata.timestamp import Timestamp

_DAY_NS: Final = 86_400 * 10**9


def encode_root(value: model.Model, *, aligned: bool = True) -> bytes:
    """Encode ``value`` as a FlatBuffers buffer.

    A member of a union is encoded in the wrapper table of its union.

    Args:
        value: the table.
        aligned: whether times are aligned to 4 bytes. Block version 2 does not align them.

    Raises:
        Unsupported: a part is from a newer specification, or nested too deeply.
        InvalidIdentity: a dataset reference with the prefix of an id is not a valid id.
    """
    writer = _Writer(aligned)
    if union_tag(type(value)) is None:
        root = writer.table(value)
    else:
        root = writer.wrapper(find_union(type(value)), value)
    return writer.finish(root)


class _Writer:
    def __init__(self, aligned: bool) -> None:
        import flatbuffers  # Deferred: it imports NumPy, and decoding needs neither.

        self._builder = builder = flatbuffers.Builder(512)
        self._integer_slots = {
            "Q": builder.PrependUint64Slot,
            "q": builder.PrependInt64Slot,
            "I": builder.PrependUint32Slot,
            "i": builder.PrependInt32Slot,
            "h": builder.PrependInt16Slot,
        }
        self._instant_alignment = 4 if aligned else 1
        self._depth = 0

    def finish(self, root: int) -> bytes:
        self._builder.Finish(root)
        return bytes(self._builder.Output())

    def table(self, value: model.Model) -> int:
        """Write the children, then the fields, both in order of slots."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported(f"data types are nested deeper than {MAX_DEPTH} levels")
        layout = describe_table(type(value))
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

    def wrapper(self, union: UnionType, value: model.Model) -> int:
        """Write a table with a union's value, where FlatBuffers does not support unions."""
        child = self._union_value(value)
        self._builder.StartObject(2)
        self._union_slots(0, union, value, child)
        return self._builder.EndObject()

    def _child(self, shape: FieldType, value: object) -> int | None:
        match shape:
            case StringType():
                return self._builder.CreateString(_ref_text(value) if shape.is_ref else value)
            case JsonType():
                return self._builder.CreateString(msgspec.json.encode(value, order="sorted"))
            case BytesType():
                return self._builder.CreateByteVector(bytes(value))  # type: ignore[arg-type]
            case TableType():
                return self.table(value)  # type: ignore[arg-type]
            case UnionType():
                return self._union_value(value)  # type: ignore[arg-type]
            case VectorType():
                return self._vector(shape.item, value)  # type: ignore[arg-type]
            case _:
                return None

    def _union_value(self, value: model.Model) -> int:
        if isinstance(value, model.Opaque):
            raise Unsupported(
                f"{value.union} number {value.discriminant} is from a newer specification "
                "and cannot be written",
                hint="received blocks are stored and transferred unchanged",
            )
        return self.table(value)

    def _vector(self, item: FieldType, values: list[object]) -> int:
        if isinstance(item, UnionType):
            offsets = [self.wrapper(item, value) for value in values]  # type: ignore[arg-type]
        else:
            offsets = [self._child(item, value) for value in values]
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return self._builder.EndVector()

    def _field(self, field: FieldDescriptor, value: object, child: int | None) -> None:
        # An optional scalar has no default, to distinguish zero from absent.
        default = None if field.optional else 0
        match field.shape:
            case IntegerType(format):
                self._integer_slots[format](field.slot, value, default)
            case BoolType():
                self._builder.PrependBoolSlot(field.slot, value, default)
            case EnumType(enum, format):
                index = list(enum).index(value)  # type: ignore[arg-type]
                self._integer_slots[format](field.slot, index, default)
            case InstantType():
                self._instant(field.slot, value)  # type: ignore[arg-type]
            case UnionType() as union:
                self._union_slots(field.slot, union, value, child)
            case _:
                self._offset(field.slot, child)

    def _union_slots(self, slot: int, union: UnionType, value: object, child: int | None) -> None:
        self._builder.PrependUint8Slot(slot, union.members.index(type(value)) + 1, 0)  # type: ignore[arg-type]
        self._offset(slot + 1, child)

    def _offset(self, slot: int, child: int | None) -> None:
        self._builder.PrependUOffsetTRelative(child)
        self._builder.Slot(slot)

    def _instant(self, slot: int, value: Timestamp) -> None:
        builder = self._builder
        builder.Prep(self._instant_alignment, _INSTANT.size)
        builder.head -= _INSTANT.size
        _INSTANT.pack_into(builder.Bytes, builder.head, *_instant_parts(value))
        builder.Slot(slot)


def _instant_parts(moment: Timestamp) -> tuple[int, int, int, int]:
    """Return the year, the day of the year (from 1), the second of the day and the nanosecond."""
    days, rest = divmod(moment.ns, _DAY_NS)
    day = date.fromordinal(_EPOCH_DAY + days)
    return day.year, day.timetuple().tm_yday, rest // 10**9, rest % 10**9


def _ref_text(value: object) -> str:
    text = str(value)
    return str(DatasetId.parse(text)) if text[: len(DID_PREFIX)].lower() == DID_PREFIX else text


_MAX_SLOTS: Final = 128
_MAX_NOTES: Final = 100  # for display; bounds the memory
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_VTABLE_HEAD: Final = struct.Struct("<HH")
_SLOTS: Final = tuple(struct.Struct(f"<{count}H") for count in range(_MAX_SLOTS + 1))
_INSTANT: Final = struct.Struct("<iHxxII")
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_json_object: Final = msgspec.json.Decoder(dict[str, Any])
_Read = Callable[["BufferDecoder", int], Any]


class _Slot(msgspec.Struct, frozen=True, gc=False):
    """How one field is decoded: its slot, its reader, and its default."""

    name: str
    key: str
    slot: int
    width: int
    read: _Read
    union: bool
    has_default: bool
    default: Any


class _Plan(msgspec.Struct, frozen=True, gc=False):
    """How a table is decoded; ``build`` creates the value from the present fields."""

    slots: tuple[_Slot, ...]
    count: int
    build: Callable[..., Any]
    needs_one_of: tuple[str, ...]


class BufferDecoder:
    """Decodes one buffer with bounds checks.

    Attributes:
        unknown: newer slots and union members in the buffer, such as ``event: slot 9``.
    """

    def __init__(self, data: bytes) -> None:
        self.unknown: list[str] = []
        self._data = data
        self._size = len(data)
        self._path: list[str] = []
        self._depth = 0
        # Each object has an offset of 4 bytes and its own bytes; twice that, for vtables.
        self._budget = 2 * len(data) + 64

    def root(self, kind: type[model.Model] | UnionType) -> Any:
        """Decode the root table: a table, or a union in its wrapper table.

        Raises:
            MalformedBlock: the bytes are invalid.
        """
        plan = _wrapper_plan(kind) if isinstance(kind, UnionType) else _table_plan(kind)
        try:
            return self._table(self._follow(0), plan)
        except struct.error:
            self._fail("offset past the end of the data")

    def _fail(self, problem: str, hint: str | None = None) -> NoReturn:
        path = "".join(self._path).removeprefix(".")
        if not path:  # nothing could be decoded: not a damaged block, but another format
            raise MalformedBlock(f"not a block or message: {problem}", hint=hint)
        raise MalformedBlock(problem, hint=hint, where=path)

    def _charge(self, cost: int) -> None:
        self._budget -= cost
        if self._budget < 0:
            self._fail("more content than its size allows")

    def _note(self, part: str) -> None:
        if len(self.unknown) < _MAX_NOTES:
            self.unknown.append(("".join(self._path) + f": {part}").removeprefix(".").removeprefix(": "))

    def _follow(self, at: int) -> int:
        offset = _U32.unpack_from(self._data, at)[0]
        if offset < 4 or at + offset > self._size:
            self._fail("invalid offset")
        return at + offset

    def _table(self, at: int, plan: _Plan) -> Any:
        data = self._data
        vtable = at - _I32.unpack_from(data, at)[0]
        if vtable < 0:
            self._fail("vtable outside of the data")
        vtable_size, size = _VTABLE_HEAD.unpack_from(data, vtable)
        count = (vtable_size - 4) >> 1
        if vtable_size & 1 or not 0 <= count <= _MAX_SLOTS:
            self._fail("invalid vtable size")
        if size < 4 or at + size > self._size:
            self._fail("invalid table size")
        offsets = _SLOTS[count].unpack_from(data, vtable + 4)
        extra = count - plan.count
        self._charge(4 if extra <= 0 else 4 + extra)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail("nested too deeply")
        values = self._fields(at, size, offsets, plan)
        self._depth -= 1
        if extra > 0:
            for slot in range(plan.count, count):
                if offsets[slot]:
                    self._note(f"slot {slot}")
        if plan.needs_one_of and values.keys().isdisjoint(plan.needs_one_of):
            self._fail(f"requires one of {', '.join(plan.needs_one_of)}")
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
                    self._fail("outside of its table")
                path.append(field.key)
                values[field.name] = field.read(self, at + offset)
                path.pop()
            if not offset:
                if field.has_default:
                    if field.default is not None:
                        values[field.name] = field.default
                else:
                    path.append(field.key)
                    self._fail("missing")
        return values

    def _member(
        self, at: int, size: int, offsets: tuple[int, ...], field: _Slot, values: dict[str, Any]
    ) -> int:
        """Decode the value of a union; return its number, 0 if it is absent."""
        self._path.append(field.key)
        offset = offsets[field.slot]
        if not 4 <= offset < size:
            self._fail("outside of its table")
        number = self._data[at + offset]
        if number:
            offset = offsets[field.slot + 1] if field.slot + 1 < len(offsets) else 0
            if offset < 4 or offset + 4 > size:
                self._fail("union type without a value")
            values[field.name] = field.read(self, (at + offset) << 8 | number)
        self._path.pop()
        return number

    def _bytes(self, at: int) -> bytes:
        start = self._follow(at)
        length = _U32.unpack_from(self._data, start)[0]
        end = start + 4 + length
        if end > self._size:
            self._fail("longer than the remaining bytes")
        self._charge(4 + length)
        return self._data[start + 4 : end]

    def _text(self, at: int) -> str:
        try:
            return str(self._bytes(at), "utf-8")
        except UnicodeDecodeError:
            self._fail("not UTF-8 text")

    def _json(self, at: int) -> dict[str, Any]:
        try:
            value = _json_object.decode(self._bytes(at))
        except (msgspec.MsgspecError, RecursionError, ValueError):
            self._fail("not a JSON object")
        if json_depth(value) > MAX_DEPTH:
            self._fail("nested too deeply")
        return value

    def _instant(self, at: int) -> Timestamp:
        year, day, second, ns = _INSTANT.unpack_from(self._data, at)
        if not (1 <= year <= 9999 and 1 <= day <= 366 and second < 86_400 and ns < 10**9):
            self._fail("invalid time")
        first = date(year, 1, 1).toordinal()
        if day == 366 and date(year, 12, 31).toordinal() - first != 365:
            self._fail("invalid time")
        return Timestamp(((first + day - 1 - _EPOCH_DAY) * 86_400 + second) * 10**9 + ns)

    def _vector(self, at: int, item: _Read) -> list[Any]:
        start = self._follow(at)
        length = _U32.unpack_from(self._data, start)[0]
        if start + 4 + 4 * length > self._size:
            self._fail("longer than the remaining bytes")
        self._charge(4)
        values: list[Any] = []
        path = self._path
        for index in range(length):
            path.append(f"[{index}]")
            values.append(item(self, start + 4 + 4 * index))
            path.pop()
        return values


@cache
def _table_plan(kind: type[model.Model]) -> _Plan:
    layout = describe_table(kind)
    slots: list[_Slot] = []
    for field in layout.fields:
        read, width, zero = _field_reader(field.shape)
        slots.append(
            _Slot(
                name=field.name,
                key="." + field.key,
                slot=field.slot,
                width=width,
                read=read,
                union=isinstance(field.shape, UnionType),
                has_default=field.optional or zero is not None,
                default=None if field.optional else zero,
            )
        )
    return _Plan(tuple(slots), layout.slots, kind, kind.NEEDS_ONE_OF)


@cache
def _wrapper_plan(union: UnionType) -> _Plan:
    read, width, _ = _field_reader(union)
    slot = _Slot(
        name="value", key="", slot=0, width=width, read=read, union=True, has_default=False, default=None
    )
    return _Plan((slot,), 2, lambda value: value, ())


def _field_reader(shape: FieldType) -> tuple[_Read, int, Any]:
    """Return the reader of a field type, its width in bytes within the table, and its default or None."""
    match shape:
        case IntegerType(format):
            return _number_reader(format), struct.calcsize("<" + format), 0
        case BoolType():
            return (lambda reader, at: reader._data[at] != 0), 1, False
        case EnumType(enum, format):
            return _enum_reader(enum, format), struct.calcsize("<" + format), next(iter(enum))
        case InstantType():
            return BufferDecoder._instant, _INSTANT.size, None
        case StringType():
            return BufferDecoder._text, 4, None
        case JsonType():
            return BufferDecoder._json, 4, None
        case BytesType(kind):
            return (BufferDecoder._bytes if kind is bytes else _value_reader(kind)), 4, None
        case TableType(kind):
            return _table_reader(kind), 4, None
        case UnionType():
            return _union_reader(shape), 1, None
        case VectorType(item):
            return _vector_reader(item), 4, None


def _number_reader(format: str) -> _Read:
    unpack = struct.Struct("<" + format).unpack_from
    return lambda reader, at: unpack(reader._data, at)[0]


def _enum_reader(enum: type[Enum], format: str) -> _Read:
    unpack = struct.Struct("<" + format).unpack_from
    members = tuple(enum)

    def read(reader: BufferDecoder, at: int) -> Enum:
        number = unpack(reader._data, at)[0]
        if not 0 <= number < len(members):
            reader._fail(f"unknown {enum.__name__} {number}")
        return members[number]

    return read


def _value_reader(kind: type[Any]) -> _Read:
    parse = kind.from_bytes

    def read(reader: BufferDecoder, at: int) -> Any:
        data = reader._bytes(at)
        try:
            return parse(data)
        except InvalidIdentity as error:
            reader._fail(error.message, error.hint)

    return read


def _table_reader(kind: type[model.Model]) -> _Read:
    return lambda reader, at: reader._table(reader._follow(at), _table_plan(kind))


def _wrapper_reader(union: UnionType) -> _Read:
    return lambda reader, at: reader._table(reader._follow(at), _wrapper_plan(union))


def _union_reader(union: UnionType) -> _Read:
    """Return a reader that takes position and number in one argument, as ``position << 8 | number``."""
    members = union.members

    def read(reader: BufferDecoder, position_and_number: int) -> Any:
        number = position_and_number & 0xFF
        if number > len(members):
            reader._note(f"member {number}")
            return model.Opaque(union.name, number)
        return reader._table(reader._follow(position_and_number >> 8), _table_plan(members[number - 1]))

    return read


def _vector_reader(item: FieldType) -> _Read:
    read_item = _wrapper_reader(item) if isinstance(item, UnionType) else _field_reader(item)[0]
    return lambda reader, at: reader._vector(at, read_item)


BLOCK_VERSION: Final = 3
"""The version of new blocks. Version 2 differs in the alignment of times."""
READABLE_VERSIONS: Final = (2, 3)


class DecodedBlock(msgspec.Struct, frozen=True):
    """A block, its manifest version, and its parts from a newer specification.

    ``unknown`` lists locations such as ``event: slot 9`` or ``event.fetch: member 7``. An unknown member of a
    union is a ``model.Opaque`` in the block.
    """

    block: MetadataBlock
    version: int
    unknown: tuple[str, ...]


def encode_block(block: MetadataBlock, version: int = BLOCK_VERSION) -> bytes:
    """Encode a block as the bytes that its hash is computed from. Specification: "Metadata Block Hashing".

    Raises:
        ValueError: ``version`` is neither 2 nor 3.
        Unsupported: a part is from a newer specification.
    """
    if version not in READABLE_VERSIONS:
        raise ValueError(f"unsupported block version {version}: expected 2 or 3")
    content = encode_root(block, aligned=version > 2)
    return encode_root(Manifest(kind=ODF_METADATA_BLOCK, version=version, content=content))


def decode_block(data: bytes) -> DecodedBlock:
    """Decode the bytes of a block from any source.

    Raises:
        MalformedBlock: the bytes are invalid; ``where`` is the field.
    """
    outer = BufferDecoder(data)
    manifest: Manifest = outer.root(Manifest)
    _check_manifest(manifest)
    inner = BufferDecoder(manifest.content)
    block: MetadataBlock = inner.root(MetadataBlock)
    unknown = [f"manifest: {name}" for name in outer.unknown] + inner.unknown
    return DecodedBlock(block, manifest.version, tuple(unknown))


def _check_manifest(manifest: Manifest) -> None:
    if manifest.kind != ODF_METADATA_BLOCK:
        raise MalformedBlock(f"not a metadata block: kind is 0x{manifest.kind:x}", where="kind")
    if manifest.version == 1:
        raise MalformedBlock(
            "block version 1 is obsolete and unsupported",
            hint="request a dataset in a current format from its publisher",
            where="version",
        )
    if manifest.version not in READABLE_VERSIONS:
        raise MalformedBlock(
            f"unsupported block version {manifest.version}: expected 2 or 3",
            hint="use a newer version of odf" if manifest.version > 3 else None,
            where="version",
        )


def encode_table(value: Model) -> bytes:
    """Encode a table of the engine protocol; a response is encoded in the wrapper table of its union."""
    return encode_root(value)


def decode_table(data: bytes, kind: Any) -> Any:
    """Decode a buffer whose root is a table of type ``kind``, or a union such as ``RawQueryResponse``.

    Raises:
        MalformedBlock: the bytes are invalid.
    """
    shape, _ = field_type_of(kind)
    return BufferDecoder(data).root(shape.type if isinstance(shape, TableType) else shape)  # type: ignore[arg-type]
