"""Messages of Flight SQL, as in FlightSql.proto of Apache Arrow; in Flight they are wrapped in an ``Any``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from odf_engine.net.protobuf import encode_bytes, read_fields, read_varint

_TYPE: Final = "type.googleapis.com/arrow.flight.protocol.sql."
_TYPE_FIELD: Final = 1
_VALUE_FIELD: Final = 2
CANCELLED: Final = 1
NOT_CANCELLABLE: Final = 3
"""Values of CancelStatus."""


class Message:
    """A decoded message.

    Attributes:
        name: the name of its type, such as ``CommandGetTables``, or "" if it is not one of Flight SQL.
    """

    def __init__(self, data: bytes, name: str = "") -> None:
        """Raises:
        ValueError: not a protobuf message.
        """
        self.name = name
        self._values: dict[int, list[bytes | int]] = defaultdict(list)
        for number, value in read_fields(data):
            self._values[number].append(value)

    @classmethod
    def unwrap(cls, data: bytes) -> Message:
        """Decode the message in an ``Any``.

        Raises:
            ValueError: not a protobuf message.
        """
        wrapper = cls(data)
        kind = wrapper.text(_TYPE_FIELD) or ""
        return cls(wrapper.data(_VALUE_FIELD), kind[len(_TYPE) :] if kind.startswith(_TYPE) else "")

    def data(self, number: int) -> bytes:
        """Return the bytes of a field, or b"" if it is missing."""
        value = self._values[number][-1] if self._values[number] else b""
        return value if isinstance(value, bytes) else b""

    def messages(self, number: int) -> list[Message]:
        """Return the messages of a repeated field."""
        return [Message(value) for value in self._values[number] if isinstance(value, bytes)]

    def text(self, number: int) -> str | None:
        """Return the text of a field, or None if it is missing."""
        return self.data(number).decode() if self._values[number] else None

    def texts(self, number: int) -> list[str]:
        """Return the texts of a repeated field."""
        return [value.decode() for value in self._values[number] if isinstance(value, bytes)]

    def numbers(self, number: int) -> list[int]:
        """Return the numbers of a repeated field, packed or not."""
        return [part for value in self._values[number] for part in _unpack(value)]


def _unpack(value: bytes | int) -> Iterator[int]:
    if isinstance(value, int):
        yield value
        return
    position = 0
    while position < len(value):
        number, position = read_varint(value, position)
        yield number


def wrap(name: str, value: bytes) -> bytes:
    """Return a message of Flight SQL in an ``Any``."""
    return encode_bytes(_TYPE_FIELD, (_TYPE + name).encode()) + encode_bytes(_VALUE_FIELD, value)
