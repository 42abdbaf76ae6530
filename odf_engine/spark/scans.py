"""What a file of text is asked while it is looked through, chunk by chunk, at the speed of the disk."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from odf_engine.errors import BadData
from odf_engine.spark.encodings import bad_bytes
from odf_engine.spark.errors import RejectedRow, shortened

_LONGEST_LINE: Final = 256 << 20
_MOST_KEYS: Final = 10_000


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written; every part is one ASCII character, except the separator.

    Attributes:
        separator: between values.
        quote: around values; empty where quotes mean nothing.
        escape: before a quote within quotes; equal to ``quote`` where it is doubled instead.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = '"'


class Utf8Scan:
    """Checks that a file is UTF-8: Spark would make question marks of what is not.

    Args:
        path: the file, to find the line of a wrong byte.
        name: how errors name it.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def feed(self, chunk: bytes) -> None:
        """The next part of the file.

        Raises:
            BadData: it is not UTF-8.
        """
        if self._decoder.getstate()[0] or not chunk.isascii():
            self._decode(chunk, final=False)

    def finish(self) -> None:
        """The file has ended; raises as :meth:`feed` does."""
        self._decode(b"", final=True)

    def _decode(self, chunk: bytes, *, final: bool) -> None:
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError:
            raise bad_bytes(self._path, self._name, "utf-8") from None


class QuoteScan:
    """Finds out whether a line holds an odd number of quotes: only then may a line end be quoted.

    Attributes:
        found: whether line ends may stand within quotes, after :meth:`finish`.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._quote = dialect.quote.encode()
        self._escape = dialect.escape.encode() if dialect.escape != dialect.quote else b""
        self._others = bytes(set(range(256)) - set(self._quote) - {0x0A})
        self._rest = b""
        self._quotes = self._odd = self._lone = False
        self.found = False

    def feed(self, chunk: bytes) -> None:
        """The next part of the file."""
        if not self._lone and b"\r" in chunk:
            # One that ends the chunk may belong to a line end: the rare false alarm costs little.
            self._lone = chunk.count(b"\r") != chunk.count(b"\r\n")
        if self._odd or (not self._rest and self._quote not in chunk):
            return
        self._quotes = True
        if self._lone:
            self._rest = b""  # enough is known, and lines may have no end that is counted
            return
        lines, end, rest = (self._rest + chunk).rpartition(b"\n")
        self._count(lines + end)
        # What begins a line and has no quote yet does not matter to the count.
        self._rest = rest if self._quote in rest else b""

    def finish(self) -> None:
        """The file has ended."""
        self._count(self._rest)
        self.found = self._odd or (self._lone and self._quotes)

    def _count(self, lines: bytes) -> None:
        if self._escape:
            lines = lines.replace(self._escape * 2, b"").replace(self._escape + self._quote, b"")
        left = lines.translate(None, self._others).replace(self._quote * 2, b"")
        self._odd = self._odd or self._quote in left


class LineScan:
    """Checks that no line is longer than memory should hold: Spark takes every line as a whole.

    Args:
        name: how errors name the file.
        hint: what to do.
    """

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint
        self._lines = self._length = 0

    def feed(self, chunk: bytes) -> None:
        """The next part of the file.

        Raises:
            BadData: a line is too long.
        """
        last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        self._length = self._length + len(chunk) if last < 0 else len(chunk) - last - 1
        self._lines += chunk.count(b"\n")
        if self._length > _LONGEST_LINE:
            raise BadData(
                f"a line is longer than {_LONGEST_LINE >> 20} MB",
                where=f"{self._name}: line {self._lines + 1}",
                hint=self._hint,
            )

    def finish(self) -> None:
        """The file has ended."""


class JsonScan:
    """Looks at every line of a file with one JSON object a line: is it one, and which keys has it?

    Spark would read the first object of a line and drop the rest, and finds keys in the case of the
    declared columns only.

    Args:
        name: how errors name the file.
        schema: the declared columns.

    Attributes:
        keys: of all objects, each with the line where it comes first; no more than
            10,000 that are not names of columns.
        spelled: how the file writes the names of columns, and of members of structs (by the names that
            lead to them), where it differs from the declaration in case.
    """

    def __init__(self, name: str, schema: pa.Schema | None = None) -> None:
        self._name = name
        self._rest = b""
        self._lines = 0
        self._level = _Level([] if schema is None else list(schema))
        self.keys = self._level.keys
        self.spelled: dict[tuple[str, ...], str] = {}

    def feed(self, chunk: bytes) -> None:
        """The next part of the file.

        Raises:
            RejectedRow: a line that is not one object.
            BadData: a column's name is written in more than one way.
        """
        lines, end, self._rest = (self._rest + chunk).rpartition(b"\n")
        if end:
            self._check(lines)

    def finish(self) -> None:
        """The file has ended; raises as :meth:`feed` does."""
        self._check(self._rest)
        self.spelled = dict(self._level.spelled(self._name, ()))

    def _check(self, block: bytes) -> None:
        number, level, known = self._lines, self._level, self._level.keys
        for number, line in enumerate(block.split(b"\n"), self._lines + 1):
            if not line or line.isspace():
                continue
            try:
                found = _raw_object(line)
            except (msgspec.MsgspecError, RecursionError):
                found = self._by_itself(line, number)
            if level.every or not known.keys() >= found.keys():
                level.look(found, number)
        self._lines = number

    def _by_itself(self, line: bytes, number: int) -> dict[str, Any]:
        """The object of a line that is unusual: a mark at its beginning, numbers like NaN, or no object."""
        text = line.decode().removeprefix("\ufeff").strip(" \t\r")
        problem = "it is another kind of value"
        try:
            value = json.loads(text)
            if isinstance(value, dict):
                return {key: msgspec.Raw(msgspec.json.encode(each)) for key, each in value.items()}
        except (ValueError, RecursionError) as error:
            problem = str(error).partition(": line ")[0]
        raise RejectedRow(
            f"a line is not one JSON object: {problem}",
            where=f"{self._name}: line {number}",
            hint=f"the line begins {shortened(text, 60)}",
            record=text,
        )


class _Level:
    """The names of columns, or of the members of a struct, and how a file writes them.

    Attributes:
        keys: of all objects, each with the line where it comes first; no more than
            10,000 that are not names of columns.
    """

    def __init__(self, fields: list[pa.Field]) -> None:
        self._folded = {field.name.casefold(): field.name for field in fields}
        self._written: dict[str, dict[str, int]] = {}
        self._odd = False
        self._inner = {field.name: inner for field in fields if (inner := _within(field.type)) is not None}
        self.keys: dict[str, int] = {}

    @property
    def every(self) -> bool:
        """Whether every object has to be looked at, not those with new keys alone."""
        return self._odd or bool(self._inner)

    def look(self, found: dict[str, Any], number: int) -> None:
        """Notes the keys of an object, those that are names of columns whatever their case."""
        if self._odd or not self.keys.keys() >= found.keys():
            self._learn(found, number)
        for name, (members, decode) in self._inner.items():
            for key in self._written.get(name, ()):
                if (raw := found.get(key)) is not None:
                    try:
                        inner = decode(raw)
                    except (msgspec.MsgspecError, RecursionError):
                        continue  # something else: left to those who read values
                    for each in _objects(inner):
                        members.look(each, number)

    def _learn(self, found: dict[str, Any], number: int) -> None:
        for key in found:
            name = self._folded.get(key.casefold())
            if name is not None or len(self.keys) < _MOST_KEYS:
                self.keys.setdefault(key, number)
            if name is None:
                continue
            self._odd |= key != name
            if key == name or name not in found:  # of two that fit, the one in the right case is meant
                self._written.setdefault(name, {}).setdefault(key, number)

    def spelled(self, file: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
        """What is written in another case than declared.

        Raises:
            BadData: a name is written in several ways, so that no one of them would find all values.
        """
        for name, written in self._written.items():
            (first, *others) = written.items()
            if others:
                shown = ".".join((*path, name))
                raise BadData(
                    f"the column `{shown}` is written '{first[0]}' in line {first[1]:,}, and"
                    f" '{others[0][0]}' in line {others[0][1]:,}",
                    where=f"{file}: line {others[0][1]}",
                    hint="make the keys of all objects the same in the source, or in a prepare step",
                )
            if first[0] != name:
                yield (*path, name), first[0]
        for name, (members, _) in self._inner.items():
            yield from members.spelled(file, (*path, name))


def _within(kind: pa.DataType) -> tuple[_Level, Callable[[Any], Any]] | None:
    """The members of a struct or of lists of structs, and what decodes a value to objects in such lists."""
    held: Any = dict[str, msgspec.Raw] | None
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, held = kind.value_type, list[held] | None
    return (_Level(list(kind)), msgspec.json.Decoder(held).decode) if pa.types.is_struct(kind) else None


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _objects(item)
    elif value is not None:
        yield value


_raw_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
