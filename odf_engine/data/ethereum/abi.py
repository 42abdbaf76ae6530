"""Decoding of Ethereum event logs: event signatures, selectors, and the contract ABI (Solidity, "Contract ABI
Specification").

The functions ``eth_…`` are those that queries can call. Engines register them; this module imports none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

WORD: Final = 32
"""Bytes of a word, of a topic and of a hash."""
_MAX_TOPICS: Final = 4
_MAX_SIGNATURE: Final = 10_000  # characters
_MAX_DEPTH: Final = 32
_MAX_VALUES: Final = 1_000_000
"""Values of one event. Offsets may point to the same bytes, so few bytes can describe many values."""
# Compiled when first used: few definitions have a signature.
_TOKEN: Final = r"\s*(?:(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)|(?P<number>[0-9]+)|(?P<sign>[()\[\],;])|\Z)"
_INTEGER: Final = r"(u?int)([0-9]*)"
_BYTES: Final = r"bytes([0-9]+)"
_FIXED: Final = r"(u?fixed)(?:([0-9]+)x([0-9]+))?"


class SignatureError(ValueError):
    """An event signature is invalid; the message has its column, from 1."""

    def __init__(self, problem: str, column: int) -> None:
        super().__init__(f"event signature, column {column}: {problem}")


class DecodeError(ValueError):
    """A log does not have the parameters of the event."""


Kind = Literal["uint", "int", "bool", "address", "bytes", "string", "fixed-bytes", "fixed", "array", "tuple"]


@dataclass(frozen=True)
class AbiType:
    """A type of the ABI.

    Attributes:
        kind: kind of the type.
        name: canonical name, as in selectors.
        size: bits of a number, bytes of ``fixed-bytes``, elements of an array, or None for a dynamic one.
        decimals: number of decimals of ``fixed``.
        signed: whether a ``fixed`` is signed.
        item: type of the items of an array.
        members: members of a tuple.
    """

    kind: Kind
    name: str
    size: int | None = None
    decimals: int = 0
    signed: bool = False
    item: AbiType | None = None
    members: tuple[Parameter, ...] = ()

    @property
    def is_dynamic(self) -> bool:
        """Whether the encoding has an offset to the value."""
        if self.kind == "array":
            assert self.item is not None
            return self.size is None or self.item.is_dynamic
        return self.kind in ("bytes", "string") or any(member.type.is_dynamic for member in self.members)

    @property
    def is_hashed(self) -> bool:
        """Whether an indexed parameter has the hash of the value as its topic."""
        return self.kind in ("bytes", "string", "array", "tuple")

    @property
    def head_size(self) -> int:
        """Bytes of the value, or of its offset."""
        if self.is_dynamic:
            return WORD
        if self.kind == "array":
            assert self.item is not None and self.size is not None
            return self.size * self.item.head_size
        return sum(member.type.head_size for member in self.members) if self.kind == "tuple" else WORD


@dataclass(frozen=True)
class Parameter:
    """A parameter of an event, or a member of a tuple; without a name it has its number, such as ``_0``."""

    name: str
    type: AbiType
    indexed: bool = False

    @property
    def log_type(self) -> AbiType:
        """The type of the value in a log: a hash for indexed parameters that do not fit a topic."""
        return _HASH if self.indexed and self.type.is_hashed else self.type


_HASH: Final = AbiType("fixed-bytes", "bytes32", WORD)


@dataclass(frozen=True)
class AbiEvent:
    """A parsed event signature.

    Attributes:
        name: name of the event.
        parameters: parameters in the order of the signature.
        anonymous: whether logs have no selector as first topic.
    """

    name: str
    parameters: tuple[Parameter, ...]
    anonymous: bool = False

    @property
    def canonical(self) -> str:
        """The text that the selector is a hash of, such as ``Transfer(address,address,uint256)``."""
        return f"{self.name}({','.join(parameter.type.name for parameter in self.parameters)})"

    @property
    def selector(self) -> bytes:
        """The first topic of logs of the event."""
        return keccak256(self.canonical.encode())

    @property
    def log_order(self) -> list[Parameter]:
        """The parameters in the order of logs: first those that are indexed."""
        return sorted(self.parameters, key=lambda parameter: not parameter.indexed)

    def decode(self, topics: Sequence[bytes], data: bytes) -> list[Any]:
        """Return the values of a log in :attr:`log_order`.

        Integers are ``int``, also in ``fixed`` types, which are not scaled; bytes and addresses
        ``bytes``; arrays and tuples ``list``. Strings with invalid UTF-8 have replacement characters.

        Args:
            topics: all topics, with the selector.
            data: the other parameters.

        Raises:
            DecodeError: the log is of another event, or its data are incomplete.
        """
        words = list(topics)
        if not all(isinstance(topic, bytes) and len(topic) == WORD for topic in words):
            raise DecodeError(f"a topic is not a binary value of {WORD} bytes")
        if not self.anonymous:
            if not words or words[0] != self.selector:
                first = words[0].hex() if words else "none"
                raise DecodeError(f"topic0 is not the selector of {self.canonical}: {first}")
            del words[0]
        indexed = [parameter for parameter in self.parameters if parameter.indexed]
        if len(indexed) != len(words):
            raise DecodeError(f"{self.name} has {len(indexed)} indexed parameters, the log has {len(words)}")
        reader = _Reader(data)
        topic_values = [
            _Reader(topic).value(declared.log_type, 0, 0, declared.name)
            for declared, topic in zip(indexed, words, strict=True)
        ]
        rest = tuple(parameter for parameter in self.parameters if not parameter.indexed)
        return topic_values + reader.values(rest, 0)


def keccak256(data: bytes) -> bytes:
    """Return the hash that Ethereum uses; it is not SHA3-256."""
    from Crypto.Hash import keccak  # deferred: few programs need it

    return keccak.new(digest_bits=256, data=data).digest()


def eth_event_selector(signature: str) -> bytes:
    """Return the selector of an event signature.

    Raises:
        SignatureError: it is invalid.
    """
    return parse_event(signature).selector


def eth_decode_event(
    signature: str,
    topic0: bytes | None,
    topic1: bytes | None,
    topic2: bytes | None,
    topic3: bytes | None,
    data: bytes | None,
) -> str:
    """Return the parameters of a log as a JSON object, with the name of the event as ``name``.

    A parameter ``name`` takes precedence. The keys are sorted. Bytes and addresses are hexadecimal without
    0x. Integers of at most 64 bits are numbers, others are strings. Tuples are objects.

    Raises:
        SignatureError: the signature is invalid.
        DecodeError: the log is of another event, or its data are incomplete.
    """
    event = parse_event(signature)
    given: list[bytes | None] = [topic0, topic1, topic2, topic3]
    topics = [topic for topic in given if topic is not None]
    if given[: len(topics)] != topics:
        raise DecodeError("a topic is missing before another")
    values = event.decode(topics, data or b"")
    members = zip(event.log_order, values, strict=True)
    shown = {member.name: plain_value(member.log_type, value, as_json=True) for member, value in members}
    shown.setdefault("name", event.name)
    return json.dumps(shown, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def eth_try_decode_event(signature: str, *log: bytes | None) -> str | None:
    """Return :func:`eth_decode_event`, or None for a log of another event, or with invalid data.

    Raises:
        SignatureError: the signature is invalid.
    """
    try:
        return eth_decode_event(signature, *log)
    except DecodeError:
        return None


def plain_value(kind: AbiType, value: Any, *, as_json: bool = False) -> Any:
    """Return a decoded value with tuples as mappings, and numbers of more than 64 bits as text.

    Args:
        kind: its type.
        value: as :meth:`AbiEvent.decode` returns it.
        as_json: bytes are hexadecimal text.
    """
    if kind.kind == "array":
        assert kind.item is not None
        return [plain_value(kind.item, element, as_json=as_json) for element in value]
    if kind.kind == "tuple":
        members = zip(kind.members, value, strict=True)
        return {member.name: plain_value(member.type, item, as_json=as_json) for member, item in members}
    if as_json and isinstance(value, bytes):
        return value.hex()
    return _format_number(kind, value) if is_text_number(kind) else value


def is_text_number(kind: AbiType) -> bool:
    """Return whether numbers of a type are shown as text, since they may have more than 64 bits."""
    return kind.kind == "fixed" or (kind.kind in ("uint", "int") and (kind.size or 0) > 64)


def _format_number(kind: AbiType, value: int) -> str:
    digits = str(abs(value)).rjust(kind.decimals + 1, "0")
    whole = digits if not kind.decimals else f"{digits[: -kind.decimals]}.{digits[-kind.decimals :]}"
    return f"-{whole}" if value < 0 else whole


@lru_cache(maxsize=256)
def parse_event(signature: str) -> AbiEvent:
    """Parse an event signature, such as ``event Transfer(address indexed from, address to, uint256 value)``.

    The word ``event`` and names of parameters may be missing. ``anonymous`` may follow.

    Raises:
        SignatureError: it is invalid.
    """
    return _SignatureParser(signature).event()


class _SignatureParser:
    def __init__(self, text: str) -> None:
        if len(text) > _MAX_SIGNATURE:
            raise SignatureError(f"longer than {_MAX_SIGNATURE:,} characters", _MAX_SIGNATURE)
        self._tokens: list[tuple[str, int]] = []
        at = 0
        while at < len(text):
            token = re.compile(_TOKEN).match(text, at)
            if token is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise SignatureError(f"unexpected character {text[at]!r}", at + 1)
            if word := token["name"] or token["number"] or token["sign"]:
                self._tokens.append((word, token.end() - len(word) + 1))
            at = token.end()
        self._tokens.append(("", len(text) + 1))
        self._at = 0

    def event(self) -> AbiEvent:
        if self._word == "event" and self._tokens[self._at + 1][0] not in ("(", ""):
            self._at += 1
        column = self._column
        name = self._take_name("the name of an event")
        self._expect("(")
        parameters = self._parameters(0, indexing=True)
        anonymous = self._accept("anonymous")
        self._accept(";")
        if self._word:
            raise self._unexpected("the end")
        max_indexed = _MAX_TOPICS - (not anonymous)
        if (indexed := sum(parameter.indexed for parameter in parameters)) > max_indexed:
            raise SignatureError(f"{indexed} indexed parameters; at most {max_indexed} are possible", column)
        return AbiEvent(name, parameters, anonymous)

    def _parameters(self, depth: int, *, indexing: bool) -> tuple[Parameter, ...]:
        """Parse parameters up to the closing parenthesis."""
        parameters: list[Parameter] = []
        if self._accept(")"):
            return ()
        while True:
            column = self._column
            kind = self._type(depth)
            indexed = indexing and self._accept("indexed")
            name = f"_{len(parameters)}"
            if self._word not in (",", ")"):
                column = self._column
                name = self._take_name("the name of a parameter, a comma or ')'")
            if any(parameter.name == name for parameter in parameters):
                raise SignatureError(f"parameter '{name}' exists twice", column)
            parameters.append(Parameter(name, kind, indexed))
            if self._accept(")"):
                return tuple(parameters)
            self._expect(",")

    def _type(self, depth: int) -> AbiType:
        column = self._column
        if depth > _MAX_DEPTH:
            raise SignatureError(f"types are nested deeper than {_MAX_DEPTH} levels", column)
        if self._word == "(" or (self._word == "tuple" and self._tokens[self._at + 1][0] == "("):
            self._accept("tuple")
            self._expect("(")
            members = self._parameters(depth + 1, indexing=False)
            if not members:
                raise SignatureError("a tuple without members", column)
            kind = AbiType("tuple", f"({','.join(member.type.name for member in members)})", members=members)
        else:
            kind = _elementary(self._take_name("a type"), column)
            if kind.kind == "address":
                self._accept("payable")
        while self._accept("["):
            column, size = self._column, None
            if not self._accept("]"):
                if not self._word.isdigit() or not 0 < int(self._word) <= _MAX_VALUES:
                    raise SignatureError(f"'{self._word}' is not the size of an array", column)
                size = int(self._word)
                self._at += 1
                self._expect("]")
            depth += 1
            if depth > _MAX_DEPTH:
                raise SignatureError(f"types are nested deeper than {_MAX_DEPTH} levels", column)
            kind = AbiType("array", f"{kind.name}[{size or ''}]", size, item=kind)
        return kind

    @property
    def _word(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _column(self) -> int:
        return self._tokens[self._at][1]

    def _accept(self, word: str) -> bool:
        if self._word != word:
            return False
        self._at += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._unexpected(f"'{word}'")

    def _take_name(self, what: str) -> str:
        word = self._word
        if not word or not (word[0].isalpha() or word[0] in "_$"):
            raise self._unexpected(what)
        self._at += 1
        return word

    def _unexpected(self, wanted: str) -> SignatureError:
        problem = f"found '{self._word}'" if self._word else "the signature ends"
        return SignatureError(f"expected {wanted}, {problem}", self._column)


def _elementary(word: str, column: int) -> AbiType:
    """Return an elementary type by its name in Solidity.

    Raises:
        SignatureError: it has none.
    """
    if match := re.fullmatch(_INTEGER, word):
        bits = int(match[2] or 256)
        if 0 < bits <= 256 and bits % 8 == 0 and not match[2].startswith("0"):
            return AbiType("uint" if match[1] == "uint" else "int", f"{match[1]}{bits}", bits)
    elif match := re.fullmatch(_BYTES, word):
        if 0 < int(match[1]) <= WORD and not match[1].startswith("0"):
            return AbiType("fixed-bytes", word, int(match[1]))
    elif match := re.fullmatch(_FIXED, word):
        bits, decimals = int(match[2] or 128), int(match[3] or 18)
        if 0 < bits <= 256 and bits % 8 == 0 and decimals <= 80:
            name = f"{match[1]}{bits}x{decimals}"
            return AbiType("fixed", name, bits, decimals, signed=match[1] == "fixed")
    elif word in ("bool", "address", "bytes", "string"):
        return AbiType(word, word)
    elif word == "function":
        return AbiType("fixed-bytes", word, 24)
    raise SignatureError(f"unknown type '{word}'", column)


class _Reader:
    """Decodes values; offsets and lengths are checked before they are used."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._values = 0

    def values(self, parameters: Sequence[Parameter], start: int, place: str = "") -> list[Any]:
        """Return the values of a tuple, whose offsets count from ``start``."""
        values: list[Any] = []
        at = start
        for parameter in parameters:
            values.append(self.value(parameter.type, start, at, f"{place}{parameter.name}"))
            at += parameter.type.head_size
        return values

    def value(self, kind: AbiType, start: int, at: int, place: str) -> Any:
        """Return the value whose head is at ``at``, in a tuple or array that begins at ``start``."""
        self._values += 1
        if self._values > _MAX_VALUES:
            raise DecodeError(f"{place}: more than {_MAX_VALUES:,} values")
        if kind.is_dynamic:
            at = start + self._number(at, place)
        if kind.kind == "tuple":
            return self.values(kind.members, at, f"{place}.")
        if kind.kind == "array":
            return self._array(kind, at, place)
        if kind.kind in ("bytes", "string"):
            content = self._bytes(at + WORD, self._number(at, place), place)
            return content if kind.kind == "bytes" else content.decode("utf-8", "replace")
        return _word_value(kind, self._bytes(at, WORD, place), place)

    def _array(self, kind: AbiType, at: int, place: str) -> list[Any]:
        assert kind.item is not None
        size = kind.size
        if size is None:
            size = self._number(at, place)
            at += WORD
        step = kind.item.head_size
        if at + size * step > len(self._data):
            raise DecodeError(f"{place}: the data end before the {size:,} elements of the array")
        return [self.value(kind.item, at, at + index * step, f"{place}[{index}]") for index in range(size)]

    def _number(self, at: int, place: str) -> int:
        number = int.from_bytes(self._bytes(at, WORD, place))
        if number > len(self._data):
            raise DecodeError(f"{place}: an offset or length is beyond the end of the data")
        return number

    def _bytes(self, at: int, size: int, place: str) -> bytes:
        if at + size > len(self._data):
            raise DecodeError(f"{place}: the data end after {len(self._data):,} bytes")
        return self._data[at : at + size]


def _word_value(kind: AbiType, word: bytes, place: str) -> Any:
    size = kind.size or 0
    if kind.kind == "fixed-bytes":
        return word[:size]
    signed = kind.kind == "int" or kind.signed
    number = int.from_bytes(word, signed=signed)
    if kind.kind == "address":
        if number >> 160:
            raise DecodeError(f"{place}: not an address")
        return word[12:]
    if kind.kind == "bool":
        if number > 1:
            raise DecodeError(f"{place}: not a bool")
        return bool(number)
    low, high = (-(1 << (size - 1)), 1 << (size - 1)) if signed else (0, 1 << size)
    if not low <= number < high:
        raise DecodeError(f"{place}: not a {kind.name}")
    return number
