"""JSON documents as lines that Spark reads: one object a line.

The document is walked as a stream, an element at a time, and the text of each element is copied as
it stands: numbers keep every digit, and memory is bounded by the largest element.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from odf_engine.errors import BadData, InvalidManifest
from odf_engine.ingest.sniff import bad_bytes
from odf_engine.progress import Reporter

_CHUNK: Final = 1 << 20
_LARGEST: Final = 1 << 28
_NEAR_END: Final = 16
_LITERALS: Final = ("true", "false", "null")
_CUT: Final = "ends in the middle: the file was cut short"
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_KINDS: Final = {dict: "an object", list: "an array", str: "text", bool: "a truth value", type(None): "null"}


class JsonSource(NamedTuple):
    """A file of JSON: where it is, what people call it, and its encoding."""

    path: Path
    name: str
    encoding: str = "utf-8"

    @contextmanager
    def opened(self) -> Iterator[TextIO]:
        """The text; bytes that are not of the encoding are an error with their line.

        Raises:
            BadData: such bytes.
        """
        try:
            with self.path.open(encoding=self.encoding, newline="") as file:
                yield file
        except UnicodeDecodeError:
            raise bad_bytes(self.path, self.name, self.encoding) from None
        except LookupError:
            raise InvalidManifest(f"read.encoding '{self.encoding}' is not known") from None


def array_to_lines(source: JsonSource, sub_path: str | None, target: Path, reporter: Reporter) -> None:
    """Writes the objects of an array, the root's or the one at ``a.b.c``, as lines.

    Raises:
        BadData: not JSON (``where`` has the line), no array there, or an element that is no object.
    """
    _convert(source, sub_path.split(".") if sub_path else [], target, reporter, _as_it_is)


def features_to_lines(source: JsonSource, target: Path, reporter: Reporter) -> None:
    """Writes the features of a GeoJSON FeatureCollection as lines: properties, and ``geometry`` as text.

    Raises:
        BadData: not JSON, no FeatureCollection, or a feature without properties or geometry.
    """
    _convert(source, ["features"], target, reporter, _feature)


def feature_lines_to_lines(source: JsonSource, target: Path, reporter: Reporter) -> None:
    """The same for newline-delimited features.

    Raises:
        BadData: a line that is not a feature.
    """
    with source.opened() as lines, target.open("w", encoding="utf-8") as file:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            reporter.check()
            where = f"{source.name}: line {number}"
            try:
                value = _decoder.decode(line)
            except (ValueError, RecursionError) as error:
                raise BadData(f"is not JSON: {error}", where=where) from None
            file.write(_feature(value, line, where) + "\n")


class Number(str):
    """A number as its text, so that no digit is lost."""


_decoder: Final = json.JSONDecoder(parse_float=Number, parse_int=Number)


def _as_it_is(value: Any, text: str, where: str) -> str:
    if not isinstance(value, dict):
        raise BadData(f"an element is {_kind(value)}, not an object", where=where)
    # Line breaks in JSON stand between tokens only.
    return text.replace("\r", " ").replace("\n", " ")


def _feature(value: Any, text: str, where: str) -> str:
    if not isinstance(value, dict) or value.get("type") != "Feature":
        raise BadData("an element is not a GeoJSON feature", where=where)
    properties, geometry = value.get("properties"), value.get("geometry")
    if not isinstance(properties, dict) or not isinstance(geometry, dict):
        raise BadData("a feature has no properties or no geometry", where=where)
    row = {**properties, "geometry": dump(geometry, sort_keys=True)}
    return dump(row)


def dump(value: Any, *, sort_keys: bool = False) -> str:
    """A value as JSON without white space, its numbers as they were written."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        items = sorted(value.items()) if sort_keys else value.items()
        return (
            "{"
            + ",".join(f"{json.dumps(key)}:{dump(item, sort_keys=sort_keys)}" for key, item in items)
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(dump(item, sort_keys=sort_keys) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    return "a number" if isinstance(value, Number) else _KINDS.get(type(value), "something else")


def _convert(
    source: JsonSource,
    keys: list[str],
    target: Path,
    reporter: Reporter,
    form: Callable[[Any, str, str], str],
) -> None:
    size = 0
    with source.opened() as text, target.open("w", encoding="utf-8") as file:
        document = _Document(text, source.name)
        for value, part, line in _elements(document, keys, keys):
            reporter.check()
            size += file.write(form(value, part, f"{source.name}: line {line}") + "\n")
            reporter.amount(bytes=size)
        document.end()


def _elements(document: _Document, keys: list[str], all_keys: list[str]) -> Iterator[tuple[Any, str, int]]:
    """The elements of the array at ``keys``, each with its text and line; walks to the value's end."""
    shown = ".".join(all_keys)
    if not keys:
        if document.peek() != "[":
            if not document.peek():
                raise document.error("is empty, or ends in the middle")
            what = f"'{shown}' is not an array" if shown else "the document is not an array"
            raise document.error(
                what, hint="say where the array of objects is in read.subPath, such as a.b.c"
            )
        yield from document.members("[", "]", lambda line: (*document.value(), line))
        return
    names: list[str] = []
    if document.peek() != "{":
        raise document.error(f"there is no '{shown}': its parent is not an object")
    for key, _, _ in document.members("{", "}", lambda line: (*document.value(), line)):
        document.take(":")
        names.append(key)
        if key == keys[0] and names.count(key) == 1:
            yield from _elements(document, keys[1:], all_keys)
        else:
            document.value()
    if keys[0] not in names:
        hint = "names there: " + ", ".join(map(str, names[:10]))
        raise document.error(f"there is no '{shown}' (read.subPath) in the document", hint=hint)


class _Document:
    """A JSON text that is read as it is needed."""

    def __init__(self, source: TextIO, name: str) -> None:
        self._source = source
        self._name = name
        self._text = ""
        self._at = 0
        self._line = 1  # at the place _counted of _text
        self._counted = 0
        self._ended = False

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def take(self, choices: str) -> str:
        """Steps over one of these characters."""
        char = self.peek()
        if not char or char not in choices:
            wanted = " or ".join(f"'{choice}'" for choice in choices)
            raise self.error(
                f"ends where {wanted} is missing" if not char else f"{wanted} expected, '{char}' found"
            )
        self._at += 1
        return char

    def members(
        self, begin: str, end: str, read: Callable[[int], tuple[Any, str, int]]
    ) -> Iterator[tuple[Any, str, int]]:
        """What ``read`` finds between brackets and commas."""
        self.take(begin)
        if self.peek() == end:
            self.take(end)
            return
        while True:
            self.peek()
            yield read(self._line_here())
            if self.take("," + end) == end:
                return

    def value(self) -> tuple[Any, str]:
        """The next value, and its text."""
        if not self.peek():
            raise self.error(_CUT)
        while True:
            try:
                value, end = _decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                open_text = error.msg.startswith("Unterminated")
                rest = self._text[error.pos : error.pos + _NEAR_END]
                ahead = error.pos - self._at
                if (open_text or len(rest) < _NEAR_END) and self._more():
                    continue
                if open_text or any(literal.startswith(rest) for literal in _LITERALS):
                    raise self.error(_CUT) from None
                raise self.error(f"is not JSON: {error.msg}", self._at + ahead) from None
            except RecursionError:
                raise self.error("is nested too deeply") from None
            if end == len(self._text) and self._more():
                continue  # a number may go on
            text, self._at = self._text[self._at : end], end
            return value, text

    def end(self) -> None:
        """Looks that nothing stands after the document.

        Raises:
            BadData: something does.
        """
        if self.peek():
            raise self.error("goes on after the end of the document")

    def error(self, message: str, at: int | None = None, hint: str | None = None) -> BadData:
        """An error at a place in the text."""
        return BadData(message, where=f"{self._name}: line {self._line_here(at)}", hint=hint)

    def _line_here(self, at: int | None = None) -> int:
        at = self._at if at is None else at
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        return self._line

    def _more(self) -> bool:
        """Reads on, and forgets what was stepped over."""
        if self._ended:
            return False
        if len(self._text) - self._at > _LARGEST:
            raise self.error(f"one value has more than {_LARGEST:,} characters")
        self._line_here()
        rest = self._text[self._at :]
        added = self._source.read(max(_CHUNK, len(rest)))
        self._text, self._at, self._counted = rest + added, 0, 0
        self._ended = not added
        return bool(added)
