"""Streams JSON documents into newline-delimited JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import msgspec

from odf_engine.errors import BadData
from odf_engine.progress import Reporter
from odf_engine.spark.text_files import undecodable_error

_CHUNK: Final = 1 << 20
_LARGEST: Final = 1 << 28
_NEAR_END: Final = 16
_NUMBER_TAIL: Final = len("e+1")  # what is cut in it ends a number too early
_LITERALS: Final = ("true", "false", "null")
_CUT: Final = "ends in the middle: the file was cut short"
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_KINDS: Final = {
    "{": "an object", "[": "an array", '"': "text", "t": "a truth value", "f": "a truth value", "n": "null",
}  # fmt: skip


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
        except UnicodeError:
            raise undecodable_error(self.path, self.name, self.encoding) from None


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
    size = 0
    with source.opened() as lines, target.open("wb") as file:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            reporter.raise_if_cancelled()
            where = f"{source.name}: line {number}"
            try:
                _decoder.decode(line)
            except (ValueError, RecursionError) as error:
                raise BadData(f"is not JSON: {error}", where=where) from None
            size += file.write(_feature(line.strip(), where))
            reporter.set_amounts(bytes=size)


class Number(str):
    """A number as its text, so that no digit is lost."""


def load(text: str) -> Any:
    """JSON with its numbers as text.

    Raises:
        ValueError: it is not JSON.
    """
    return json.loads(text, parse_int=Number, parse_float=Number)


# Only finds where values end: numbers are not made.
_decoder: Final = json.JSONDecoder(parse_float=str, parse_int=str)
_raw_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_raw_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _as_it_is(text: str, where: str) -> bytes:
    if not text.startswith("{"):
        raise BadData(f"an element is {_kind(text)}, not an object", where=where)
    # Line breaks in JSON stand between tokens only.
    return (text.replace("\r", " ").replace("\n", " ") + "\n").encode("utf-8", "surrogatepass")


def _feature(text: str, where: str) -> bytes:
    """A feature's properties with its geometry as text, as one line."""
    if not text.startswith("{"):
        raise BadData(f"an element is {_kind(text)}, not a GeoJSON feature", where=where)
    feature = _raws(text)
    if feature.get("type") != b'"Feature"':
        raise BadData("an element is not a GeoJSON feature", where=where)
    for part in ("properties", "geometry"):
        if not feature.get(part, b"null").startswith(b"{"):
            raise BadData(
                f"a feature has no {part}",
                where=where,
                hint="leave such features out in the source, or with a prepare step",
            )
    properties = feature["properties"]
    if "geometry" in _raws(properties):
        raise BadData(
            "a feature has a property 'geometry', which is the name of the column for its shape",
            where=where,
            hint="rename it in the source, or with a prepare step",
        )
    rest = properties[1:-1].strip().replace(b"\r", b" ").replace(b"\n", b" ")
    shape = json.dumps(_compact(feature["geometry"]).decode(), ensure_ascii=False).encode()
    return b"{" + rest + (b"," if rest else b"") + b'"geometry":' + shape + b"}\n"


def _raws(text: str | bytes) -> dict[str, bytes]:
    """The values of an object as their text."""
    try:
        return {key: bytes(memoryview(value)) for key, value in _raw_object(text).items()}
    except (msgspec.MsgspecError, RecursionError):  # numbers such as NaN
        values = load(text if isinstance(text, str) else text.decode())
        return {key: dump(value).encode() for key, value in values.items()}


def _compact(text: bytes) -> bytes:
    """JSON without white space, keys in alphabetical order, numbers as they are written."""
    if b'"' not in text:
        return text.translate(None, b" \t\r\n")
    try:
        if text.startswith(b"{"):
            pairs = sorted(_raws(text).items())
            return b"{" + b",".join(_text(key) + b":" + _compact(value) for key, value in pairs) + b"}"
        if text.startswith(b"["):
            return b"[" + b",".join(_compact(bytes(memoryview(item))) for item in _raw_items(text)) + b"]"
    except (msgspec.MsgspecError, RecursionError):
        return dump(load(text.decode()), sort_keys=True).encode()
    return text


def _text(value: str) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


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


def _kind(text: str) -> str:
    return _KINDS.get(text[:1], "a number")


def _convert(
    source: JsonSource,
    keys: list[str],
    target: Path,
    reporter: Reporter,
    form: Callable[[str, str], bytes],
) -> None:
    size = 0
    with source.opened() as text, target.open("wb") as file:
        document = _Document(text, source.name)
        for part, line in _elements(document, keys, keys):
            reporter.raise_if_cancelled()
            size += file.write(form(part, f"{source.name}: line {line}"))
            reporter.set_amounts(bytes=size)
        document.end()


def _elements(document: _Document, keys: list[str], all_keys: list[str]) -> Iterator[tuple[str, int]]:
    """The elements of the array at ``keys``, each as its text and line; walks to the value's end."""
    shown = ".".join(all_keys)
    if not keys:
        if document.peek() != "[":
            if not document.peek():
                raise document.error("is empty, or ends in the middle")
            what = f"'{shown}' is not an array" if shown else "the document is not an array"
            raise document.error(
                what, hint="say where the array of objects is in read.subPath, such as a.b.c"
            )
        for line in document.members("[", "]"):
            yield document.value()[1], line
        return
    names: list[str] = []
    if document.peek() != "{":
        raise document.error(f"there is no '{shown}': its parent is not an object")
    for _ in document.members("{", "}"):
        key = document.key()
        names.append(key)
        if key == keys[0] and names.count(key) == 1:
            yield from _elements(document, keys[1:], all_keys)
        else:
            document.skip()
    if keys[0] not in names:
        hint = "names there: " + ", ".join(names[:10])
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

    def members(self, begin: str, end: str) -> Iterator[int]:
        """Stops at each member between brackets, which has to be read then; gives its line."""
        self.take(begin)
        if self.peek() == end:
            self.take(end)
            return
        while True:
            self.peek()
            yield self._line_here()
            if self.take("," + end) == end:
                return

    def key(self) -> str:
        """The name of a member of an object."""
        if self.peek() != '"':
            raise self.error(_CUT if not self.peek() else "is not JSON: a name in quotes is expected")
        name, _ = self.value()
        self.take(":")
        return name

    def skip(self) -> None:
        """Steps over a value, however large it is."""
        begin = self.peek()
        if begin not in ("{", "["):
            self.value()
            return
        if len(self._text) - self._at < _CHUNK:
            self._more()
        try:
            self._at = _decoder.raw_decode(self._text, self._at)[1]
            return
        except (json.JSONDecodeError, RecursionError):
            pass  # too large to be looked at at once, or wrong: what is in it is looked at one by one
        try:
            for _ in self.members(begin, "}" if begin == "{" else "]"):
                if begin == "{":
                    self.key()
                self.skip()
        except RecursionError:
            raise self.error("is nested too deeply") from None

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
            length = end - self._at  # what was stepped over is forgotten when more is read
            if len(self._text) - end < _NUMBER_TAIL and self._more():
                continue  # a number may go on
            text = self._text[self._at : self._at + length]
            self._at += length
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
