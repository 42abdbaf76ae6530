"""Multibase, multicodec, varint and multihash codecs."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import Any, Final, Self

from odf_engine.errors import InvalidIdentity

SHA2_256: Final = 0x12
SHA3_256: Final = 0x16
ED25519_PUB: Final = 0xED
ARROW0_SHA3_256: Final = 0x300016
ODF_METADATA_BLOCK: Final = 0x400000
HASH_NAMES: Final = {SHA2_256: "sha2-256", SHA3_256: "sha3-256", ARROW0_SHA3_256: "arrow0-sha3-256"}
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUE: Final = {char: value for value, char in enumerate(_BASE58)}
_MAX_TEXT: Final = 1024  # ids and hashes have less than 100 characters; base58 decoding is quadratic


def _base58_decode(text: str) -> bytes:
    number = 0
    for char in text:
        number = number * 58 + _BASE58_VALUE[char]
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def base58btc_encode(data: bytes) -> str:
    """Encode ``data`` as multibase base58btc (``z…``), the form of object names in older repositories."""
    number = int.from_bytes(data, "big")
    digits = ""
    while number:
        number, rest = divmod(number, 58)
        digits = _BASE58[rest] + digits
    zeros = len(data) - len(data.lstrip(b"\0"))
    return "z" + "1" * zeros + digits


def _base32_decode(text: str) -> bytes:
    return _check_canonical(base64.b32decode(text.upper() + "=" * (-len(text) % 8)), text, _base32_encode)


def _base64_decode(text: str, altchars: bytes = b"+/") -> bytes:
    padded = text + "=" * (-len(text) % 4)
    data = base64.b64decode(padded, altchars=altchars, validate=True)
    return _check_canonical(data, text, lambda raw: base64.b64encode(raw, altchars).decode().rstrip("="))


def _base64_padded_decode(text: str) -> bytes:
    if len(text) % 4:
        raise ValueError("length is not a multiple of 4")
    return _base64_decode(text.rstrip("="), b"-_") if text else b""


def _base32_encode(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=")


def _base64url_encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _check_canonical(data: bytes, text: str, encode: Callable[[bytes], str]) -> bytes:
    # Without this check, unused low bits would give two texts for one value.
    if encode(data).upper() != text.upper():
        raise ValueError("not a canonical encoding")
    return data


_DECODERS: Final[dict[str, Callable[[str], bytes]]] = {
    "f": bytes.fromhex,
    "F": bytes.fromhex,
    "b": _base32_decode,
    "B": _base32_decode,
    "z": _base58_decode,
    "m": _base64_decode,
    "u": lambda text: _base64_decode(text, b"-_"),
    "U": _base64_padded_decode,
}
MULTIBASE_PREFIXES: Final = "fzFbBuU"
"""Prefixes of the encodings for names of files; most names are in the first two."""
_ENCODERS: Final[dict[str, Callable[[bytes], str]]] = {
    "f": bytes.hex,
    "z": lambda data: base58btc_encode(data)[1:],
    "F": lambda data: data.hex().upper(),
    "b": lambda data: _base32_encode(data).lower(),
    "B": _base32_encode,
    "u": lambda data: _base64url_encode(data).rstrip("="),
    "U": _base64url_encode,
}


def multibase_encode(data: bytes, prefix: str = "f") -> str:
    """Encode ``data`` in the encoding with a multibase prefix: ``f`` base16, ``z`` base58btc, …"""
    return prefix + _ENCODERS[prefix](data)


def multibase_decode(text: str) -> bytes:
    """Decode a multibase text in any *final* encoding.

    Raises:
        InvalidIdentity: empty, in an unknown encoding, or malformed.
    """
    if not text:
        raise InvalidIdentity("empty multibase text")
    decoder = _DECODERS.get(text[0])
    if decoder is None:
        raise InvalidIdentity(
            f"'{_truncate(text)}' starts with '{text[0]}', which is not a supported multibase encoding",
            hint="supported prefixes: " + " ".join(_DECODERS),
        )
    body = text[1:]
    if len(text) > _MAX_TEXT or not body.isascii() or (body and body.split() != [body]):
        raise InvalidIdentity(f"invalid multibase text '{_truncate(text)}'")
    try:
        return decoder(body)
    except (ValueError, KeyError, binascii.Error) as error:
        raise InvalidIdentity(f"malformed multibase text '{_truncate(text)}'") from error


def _truncate(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "…"


def varint_encode(number: int) -> bytes:
    """Encode ``number`` as an unsigned LEB128 varint."""
    out = bytearray()
    while True:
        number, byte = number >> 7, number & 0x7F
        out.append(byte | (0x80 if number else 0))
        if not number:
            return bytes(out)


def varint_decode(data: bytes, at: int = 0) -> tuple[int, int]:
    """Decode the varint at the offset ``at``; return the number and the offset after it.

    Raises:
        InvalidIdentity: truncated, longer than 9 bytes, or not in its shortest form.
    """
    number = 0
    for index, byte in enumerate(data[at : at + 9]):
        number |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            if byte == 0 and index:
                break
            return number, at + index + 1
    raise InvalidIdentity("malformed varint")


class Multihash:
    """A hash with the code of its algorithm. Equality compares values, not the encoding of the text.

    Attributes:
        code: multicodec code of the algorithm.
        digest: the raw digest, 32 bytes.
    """

    __slots__ = ("code", "digest")

    code: int
    digest: bytes

    def __init__(self, code: int, digest: bytes) -> None:
        if code not in HASH_NAMES:
            raise InvalidIdentity(f"unknown hash algorithm 0x{code:x}")
        if len(digest) != 32:
            raise InvalidIdentity(f"invalid {HASH_NAMES[code]} digest: {len(digest)} bytes instead of 32")
        object.__setattr__(self, "code", code)
        object.__setattr__(self, "digest", digest)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Multihash is immutable")

    @classmethod
    def sha3_256(cls, data: bytes) -> Self:
        """Return the SHA3-256 hash of ``data``."""
        return cls(SHA3_256, hashlib.sha3_256(data).digest())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the binary form: varint code, varint length, digest.

        Raises:
            InvalidIdentity: malformed, an unknown algorithm, or a wrong length.
        """
        code, at = varint_decode(data)
        length, at = varint_decode(data, at)
        if length != len(data) - at:
            raise InvalidIdentity(
                f"invalid multihash: it declares {length} digest bytes and has {len(data) - at}"
            )
        return cls(code, bytes(data[at:]))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a multihash in multibase, such as ``f1620…``.

        Raises:
            InvalidIdentity: malformed.
        """
        return cls.from_bytes(multibase_decode(text))

    def __bytes__(self) -> bytes:
        return varint_encode(self.code) + varint_encode(len(self.digest)) + self.digest

    def __str__(self) -> str:
        return multibase_encode(bytes(self))

    @property
    def abbreviated(self) -> str:
        """The first 8 hexadecimal digits of the digest, for display."""
        return self.digest[:4].hex()

    def __repr__(self) -> str:
        return f"Multihash({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Multihash) and self.digest == other.digest and self.code == other.code

    def __hash__(self) -> int:
        return hash((self.code, self.digest))

    def __reduce__(self) -> tuple[object, ...]:
        return (Multihash, (self.code, self.digest))


def hash_bytes(data: bytes, code: int) -> Multihash:
    """Return the hash of ``data`` by the algorithm with this multicodec code (SHA2-256 or SHA3-256)."""
    hasher = new_hasher(code)
    hasher.update(data)
    return Multihash(code, hasher.digest())


def new_hasher(code: int) -> Any:
    """Return a hash object for the algorithm with this multicodec code (SHA2-256 or SHA3-256)."""
    return hashlib.sha256() if code == SHA2_256 else hashlib.sha3_256()
