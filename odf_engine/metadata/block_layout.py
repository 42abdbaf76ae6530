"""Maps the bytes of an encoded block to the fields that they encode, for the hex view."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from odf_engine.errors import InvalidIdentity
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import ED25519_PUB, HASH_NAMES, ODF_METADATA_BLOCK, varint_decode
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
)

_MAX_SLOTS: Final = 128
_MAX_TEXT: Final = 80
_ROOT: Final = "manifest"
_INSTANT_PARTS: Final = (
    ("year", 0, "i"),
    ("dayOfYear", 4, "H"),
    ("secondOfDay", 8, "I"),
    ("nanosecond", 12, "I"),
)
_INSTANT_SIZE: Final = 16
_ALIGNMENT: Final = 8


class ByteSpan(msgspec.Struct, frozen=True):
    """The bytes from ``start`` to ``end`` (exclusive), the path of their field, and their meaning.

    Attributes:
        path: the field, or "" for padding and for bytes that were not read.
        text: the meaning, for display.
        value: whether the bytes are a value, not an offset or a length.
    """

    start: int
    end: int
    path: str
    text: str
    value: bool = False


class LayoutError(msgspec.Struct, frozen=True):
    """An encoding error: its position, the path of the field, and the message."""

    at: int
    path: str
    message: str


class BlockLayout(msgspec.Struct, frozen=True):
    """All bytes of a block as spans, in order and without gaps, and the first encoding error, if any."""

    spans: tuple[ByteSpan, ...]
    fault: LayoutError | None


class _InvalidLayout(Exception):
    def __init__(self, at: int, path: str, message: str) -> None:
        super().__init__(message)
        self.fault = LayoutError(at, path, message)


def parse_block_layout(data: bytes) -> BlockLayout:
    """Assign the bytes of a block to fields. Accepts any bytes and never raises."""
    spans = _Spans(len(data))
    fault = None
    try:
        _Walker(data, 0, len(data), spans, "").root(model.Manifest)
    except _InvalidLayout as broken:
        fault = broken.fault
    return BlockLayout(spans.tiled(data, fault), fault)


class _Spans:
    """Spans that do not overlap: bytes that several offsets refer to are assigned once."""

    def __init__(self, size: int) -> None:
        self._taken = bytearray(size)
        self._budget = 4 * size + 1024
        self._spans: list[ByteSpan] = []

    def charge(self, cost: int) -> bool:
        """Deduct work from the budget, in bytes; return whether any is left."""
        self._budget -= cost
        return self._budget >= 0

    def add(self, start: int, end: int, path: str, text: str, value: bool = False) -> None:
        """Add a span, unless one of its bytes is already assigned."""
        if start < end and self._taken.find(1, start, end) < 0:
            self._taken[start:end] = b"\1" * (end - start)
            self._spans.append(ByteSpan(start, end, path, text, value))

    def tiled(self, data: bytes, fault: LayoutError | None) -> tuple[ByteSpan, ...]:
        """Return the spans in order, with spans for the bytes that belong to no field."""
        tiles: list[ByteSpan] = []
        at = 0
        for span in sorted(self._spans, key=lambda span: span.start):
            if span.start > at:
                tiles.append(_gap_span(data, at, span.start, fault))
            tiles.append(span)
            at = span.end
        if at < len(data):
            tiles.append(_gap_span(data, at, len(data), fault))
        return tuple(tiles)


def _gap_span(data: bytes, start: int, end: int, fault: LayoutError | None) -> ByteSpan:
    read = fault is None or (end - start < _ALIGNMENT and not any(data[start:end]))
    return ByteSpan(start, end, "", "padding" if read else "not read")


class _Walker:
    """Walks one buffer, which is the bytes ``base`` to ``end`` of the data."""

    def __init__(self, data: bytes, base: int, end: int, spans: _Spans, prefix: str) -> None:
        self._data, self._base, self._end = data, base, end
        self._spans = spans
        self._prefix = prefix
        self._seen: set[tuple[int, type]] = set()
        self._depth = 0

    def root(self, kind: type[model.Model]) -> None:
        """Walk the root table of the buffer."""
        at = self._follow(self._base, self._prefix)
        self._spans.add(self._base, self._base + 4, self._prefix or _ROOT, f"begins at {at:#x}")
        self._table(at, kind, self._prefix)

    def _unpack(self, format: str, at: int, path: str) -> Any:
        if at < self._base or at + struct.calcsize("<" + format) > self._end:
            raise _InvalidLayout(max(min(at, self._end - 1), 0), path, "offset past the end of the data")
        return struct.unpack_from("<" + format, self._data, at)[0]

    def _follow(self, at: int, path: str) -> int:
        offset = self._unpack("I", at, path)
        if offset < 4 or at + offset > self._end:
            raise _InvalidLayout(at, path, "invalid offset")
        return at + offset

    def _charge(self, at: int, path: str, cost: int) -> None:
        # Several offsets may point to the same bytes. The budget bounds the work.
        if not self._spans.charge(cost + 8):
            raise _InvalidLayout(at, path, "more content than its size allows")

    def _bytes(self, at: int, path: str) -> tuple[int, int]:
        """Add spans for the offset and the length of a text or a byte vector; return its bounds."""
        start = self._follow(at, path)
        self._spans.add(at, at + 4, path, f"at {start:#x}")
        length = self._unpack("I", start, path)
        if start + 4 + length > self._end:
            raise _InvalidLayout(start, path, "longer than the remaining bytes")
        self._charge(start, path, length)
        self._spans.add(start, start + 4, path, f"{length} bytes")
        return start + 4, start + 4 + length

    def _table(self, at: int, kind: type[model.Model], path: str) -> None:
        self._charge(at, path, 0)
        if (at, kind) in self._seen:
            return
        self._seen.add((at, kind))
        layout = describe_table(kind)
        size, offsets = self._vtable(at, path, [field.key for field in layout.fields])
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _InvalidLayout(at, path, "nested too deeply")
        for field in layout.fields:
            offset = offsets[field.slot] if field.slot < len(offsets) else 0
            if not offset:
                continue
            field_path = f"{path}.{field.key}".removeprefix(".")
            if not 4 <= offset < size:
                raise _InvalidLayout(at, field_path, "outside of its table")
            if isinstance(field.shape, UnionType):
                self._union(at, offsets, field, field.shape, field_path)
            else:
                self._field(at + offset, field.shape, field_path)
        self._depth -= 1

    def _vtable(self, at: int, path: str, keys: list[str]) -> tuple[int, tuple[int, ...]]:
        """Add spans for a table's vtable; return the size of the table and the offsets of its fields."""
        vtable = at - self._unpack("i", at, path)
        if not self._base <= vtable <= self._end - 4:
            raise _InvalidLayout(at, path, "vtable outside of the data")
        self._spans.add(at, at + 4, path or _ROOT, f"vtable at {vtable:#x}")
        length, size = self._unpack("H", vtable, path), self._unpack("H", vtable + 2, path)
        slots = (length - 4) >> 1
        if length & 1 or not 0 <= slots <= _MAX_SLOTS or vtable + length > self._end:
            raise _InvalidLayout(vtable, path, "invalid vtable size")
        if size < 4 or at + size > self._end:
            raise _InvalidLayout(vtable, path, "invalid table size")
        offsets = struct.unpack_from(f"<{slots}H", self._data, vtable + 4)
        known = dict(enumerate(keys))
        present = [
            f"{known.get(slot, f'slot {slot}')} +{offset}" for slot, offset in enumerate(offsets) if offset
        ]
        self._spans.add(vtable, vtable + length, path or _ROOT, "fields: " + (", ".join(present) or "none"))
        return size, offsets

    def _union(
        self, at: int, offsets: tuple[int, ...], field: FieldDescriptor, shape: UnionType, path: str
    ) -> None:
        position = at + offsets[field.slot]
        number = self._unpack("B", position, path)
        known = 0 < number <= len(shape.members)
        name = shape.members[number - 1].__name__ if known else "nothing" if not number else "newer version"
        self._spans.add(position, position + 1, path, f"{name}, number {number}", True)
        offset = offsets[field.slot + 1] if field.slot + 1 < len(offsets) else 0
        if not number:
            return
        if not offset:
            raise _InvalidLayout(position, path, "union type without a value")
        try:
            start = self._follow(at + offset, path)
        except _InvalidLayout:
            if known:
                raise
            return  # the decoder does not follow the offset of a newer member
        self._spans.add(at + offset, at + offset + 4, path, f"at {start:#x}")
        if known:
            self._table(start, shape.members[number - 1], path)

    def _field(self, at: int, shape: FieldType, path: str) -> None:
        match shape:
            case IntegerType(format):
                self._scalar(at, format, path)
            case BoolType():
                self._spans.add(at, at + 1, path, "yes" if self._unpack("B", at, path) else "no", True)
            case EnumType(enum, format):
                number, members = self._unpack(format, at, path), tuple(enum)
                if not 0 <= number < len(members):
                    raise _InvalidLayout(at, path, f"unknown {enum.__name__} {number}")
                end = at + struct.calcsize("<" + format)
                self._spans.add(at, end, path, f"{members[number].value}, number {number}", True)
            case InstantType():
                self._instant(at, path)
            case StringType() | JsonType():
                self._text(at, path)
            case BytesType(kind):
                self._blob(at, kind, path)
            case TableType(kind):
                start = self._follow(at, path)
                self._spans.add(at, at + 4, path, f"at {start:#x}")
                self._table(start, kind, path)
            case VectorType(item):
                self._vector(at, item, path)
            case UnionType():  # in a vector: in a wrapper table
                self._wrapped(at, shape, path)

    def _scalar(self, at: int, format: str, path: str) -> None:
        number = self._unpack(format, at, path)
        text = (
            f"{number}, a metadata block" if number == ODF_METADATA_BLOCK and path == "kind" else str(number)
        )
        self._spans.add(at, at + struct.calcsize("<" + format), path, text, True)

    def _instant(self, at: int, path: str) -> None:
        self._unpack(f"{_INSTANT_SIZE}B", at, path)
        for name, offset, format in _INSTANT_PARTS:
            self._scalar(at + offset, format, f"{path}.{name}")

    def _text(self, at: int, path: str) -> None:
        start, end = self._bytes(at, path)
        try:
            text = str(self._data[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise _InvalidLayout(start + error.start, path, "not UTF-8 text") from None
        self._spans.add(start, end, path, text[:_MAX_TEXT], True)

    def _blob(self, at: int, kind: type, path: str) -> None:
        start, end = self._bytes(at, path)
        if kind is not bytes:
            self._multiformat(start, end, kind, path)
        elif path == "content" and not self._prefix:
            _Walker(self._data, start, end, self._spans, path).root(model.MetadataBlock)
        else:
            self._spans.add(start, end, path, "an Arrow schema" if path.endswith("chema") else "bytes", True)

    def _multiformat(self, start: int, end: int, kind: type, path: str) -> None:
        """Add spans for the parts of a hash or an id: code, length, digest or key."""
        data = self._data[start:end]
        try:
            code, at = varint_decode(data)
            name = HASH_NAMES.get(code, "") if kind is not DatasetId else "ed25519" * (code == ED25519_PUB)
            self._spans.add(start, start + at, path, f"{name or 'unknown'}, code {code:#x}", True)
            if kind is not DatasetId:
                length, after = varint_decode(data, at)
                self._spans.add(start + at, start + after, path, f"{length} bytes of digest", True)
                at = after
            kind.from_bytes(data)
        except InvalidIdentity as error:
            raise _InvalidLayout(start, path, error.message) from None
        self._spans.add(start + at, end, path, "public key" if kind is DatasetId else "digest", True)

    def _vector(self, at: int, item: FieldType, path: str) -> None:
        start = self._follow(at, path)
        self._spans.add(at, at + 4, path, f"at {start:#x}")
        length = self._unpack("I", start, path)
        if start + 4 + 4 * length > self._end:
            raise _InvalidLayout(start, path, "longer than the remaining bytes")
        self._charge(start, path, 4 * length)
        self._spans.add(start, start + 4, path, f"{length} items")
        for index in range(length):
            self._field(start + 4 + 4 * index, item, f"{path}[{index}]")

    def _wrapped(self, at: int, shape: UnionType, path: str) -> None:
        start = self._follow(at, path)
        self._spans.add(at, at + 4, path, f"at {start:#x}")
        _, offsets = self._vtable(start, path, ["kind", "value"])
        if offsets and offsets[0]:
            self._union(
                start, offsets, FieldDescriptor(path, path, path, 0, shape, False, False), shape, path
            )
