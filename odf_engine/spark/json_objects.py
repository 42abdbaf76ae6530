"""Strict parsing of JSON objects: each key once, within the limits of Spark's JSON reader."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from odf_engine.spark.errors import RejectedRow, truncate

_MAX_KEY_BYTES: Final = 50_000
"""Limit of Spark's JSON parser."""
_MAX_DEPTH: Final = 500
"""Depth that all JSON parsers in use support; they report a depth of about 1,000."""
_KEY_END: Final = b'":'
_FIX_HINT: Final = "correct the object in the source, or in a prepare step"

_raw_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """Return the values of a JSON object as JSON text.

    Args:
        line: the text of the object.
        where: name of the file and number of the line in errors.

    Raises:
        RejectedRow: the text is not one object, an object in it has a key twice, or Spark cannot read it.
    """
    try:
        values = _raw_object(line)
        if len(line) <= _MAX_KEY_BYTES and _has_unique_keys(line, values):
            return values
    except (msgspec.MsgspecError, RecursionError):
        pass
    return _parse_unusual_object(line, where)


def _has_unique_keys(line: bytes, values: dict[str, Any]) -> bool:
    """Return whether an object certainly has no key twice, at any depth.

    It compares the number of keys in the text with the number of different keys. A text value may look like
    a key, so that the first number may be too large.
    """
    if b" :" in line or b"\t:" in line or b"\r:" in line or b"\n:" in line:
        return False
    count = line.count(_KEY_END)
    if count == len(values):
        return True
    if b"\\u00" in line:  # Perhaps an escaped quote, which is encoded in another way.
        return False
    return msgspec.json.encode(msgspec.json.decode(line)).count(_KEY_END) == count


class _InvalidObject(Exception):
    """An object that JSON permits, but that cannot be stored exactly."""


def _unique_items(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of the standard parser.

    Raises:
        _InvalidObject: it has a key twice, or a key that is too long.
    """
    values = dict(items)
    if len(values) < len(items):
        names = [name for name, _ in items]
        duplicate = next(name for at, name in enumerate(names) if name in names[:at])
        raise _InvalidObject(f"the key '{_printable(duplicate)}' occurs twice in an object")
    for name in values:
        if len(name) > _MAX_KEY_BYTES >> 2 and len(name.encode("utf-8", "replace")) > _MAX_KEY_BYTES:
            raise _InvalidObject(f"a key is longer than {_MAX_KEY_BYTES:,} bytes: '{_printable(name)}'")
    return values


def _printable(name: str) -> str:
    return truncate(name.encode("utf-8", "backslashreplace").decode(), 60)


def _parse_unusual_object(line: bytes, where: str) -> dict[str, Any]:
    """Parse an unusual line: with a byte order mark, with numbers like NaN, or without an object."""
    text = line.decode("utf-8", "surrogatepass").removeprefix("\ufeff").strip(" \t\r")
    problem = "it is another type of value"
    try:
        # Numbers remain text: Python limits the digits of integers.
        value = json.loads(text, object_pairs_hook=_unique_items, parse_int=str)
        if isinstance(value, dict):
            "".join(value).encode()
            return {key: msgspec.Raw(msgspec.json.encode(member)) for key, member in value.items()}
    except _InvalidObject as error:
        raise RejectedRow(str(error), where=where, hint=_FIX_HINT, record=text) from None
    except RecursionError:
        problem = f"values are nested more than {_MAX_DEPTH} levels deep"
        raise RejectedRow(problem, where=where, hint=_FIX_HINT, record=text) from None
    except UnicodeEncodeError as error:
        escape = f"\\u{ord(error.object[error.start]):04x}"
        problem = f"a text has the escape {escape}, which is half of a character"
        raise RejectedRow(problem, where=where, hint=_FIX_HINT, record=text) from None
    except ValueError as error:
        problem = str(error).partition(": line ")[0]
    raise RejectedRow(
        f"a line is not one JSON object: {problem}",
        where=where,
        hint=f"write one JSON object per line; this line begins {truncate(text, 60)}",
        record=text,
    )
