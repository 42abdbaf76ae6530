"""Streaming conversion of JSON documents to newline-delimited JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import msgspec

from odf_engine.base.progress import Reporter, count_of
from odf_engine.errors import BadData
from odf_engine.spark.json_objects import parse_object
from odf_engine.spark.text_files import undecodable_error

_CHUNK: Final = 1 << 20
_MAX_CHARACTERS: Final = 1 << 28
_TAIL: Final = 16
_NUMBER_TAIL: Final = len("e+1")  # A number that ends at a shorter distance to the end may be incomplete.
_LITERALS: Final = ("true", "false", "null")
_CUT: Final = "unexpected end of file"
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_KINDS: Final = {
    "{": "an object", "[": "an array", '"': "text", "t": "a Boolean", "f": "a Boolean", "n": "null",
}  # fmt: skip

_WGS_84: Final = re.compile(r"(^|[:/ ])(CRS:?84h?|4326|4979)(/|$)|^WGS[ _]?(19)?84$", re.IGNORECASE)


class JsonSource(NamedTuple):
    """A JSON file, its name in messages, and its encoding."""

    path: Path
    name: str
    encoding: str = "utf-8"

    @contextmanager
    def opened(self) -> Iterator[TextIO]:
        """Open the text.

        Raises:
            BadData: bytes are not of the encoding; ``where`` has their line.
        """
        try:
            with self.path.open(encoding=self.encoding, newline="") as file:
                yield file
        except UnicodeError:
            raise undecodable_error(self.path, self.name, self.encoding) from None


OnInvalid = Callable[[int, BadData], None]
"""Receives the number of an element that cannot be converted, from 1, and the error."""


def array_to_lines(
    source: JsonSource,
    sub_path: str | None,
    target: Path,
    reporter: Reporter,
    on_invalid: OnInvalid | None = None,
) -> None:
    """Write the objects of an array as lines.

    Args:
        source: the document.
        sub_path: path of the array, such as ``a.b.c``, or None if it is the document.
        target: the file to write.
        reporter: receives the number of bytes, and cancels the conversion.
        on_invalid: makes the line of an invalid element blank, instead of an error.

    Raises:
        BadData: the document is not JSON (``where`` has the line), has no such array, or an element is not
            an object.
    """
    path = _ArrayPath(sub_path.split(".") if sub_path else [])
    _convert(source, path, target, reporter, _object_line, on_invalid)


def features_to_lines(
    source: JsonSource,
    target: Path,
    reporter: Reporter,
    on_invalid: OnInvalid | None = None,
    *,
    with_id: bool = False,
) -> None:
    """Write the features of a GeoJSON FeatureCollection as lines: properties, and ``geometry`` as text.

    Args:
        source: the document.
        target: the file to write.
        reporter: receives the number of bytes, and cancels the conversion.
        on_invalid: makes the line of an invalid feature blank, instead of an error.
        with_id: write the id of a feature as ``id``, unless it has a property of this name.

    Raises:
        BadData: the document is not a FeatureCollection, its coordinates are not WGS 84, or a feature has no
            properties or geometry.
    """
    features = _FeatureLines(with_id)
    path = _ArrayPath(["features"], {"crs": lambda value, where: _check_document_crs(value, where, reporter)})
    _convert(source, path, target, reporter, features.line, on_invalid)
    features.report(source.name, reporter)


def feature_lines_to_lines(
    source: JsonSource,
    target: Path,
    reporter: Reporter,
    on_invalid: OnInvalid | None = None,
    *,
    with_id: bool = False,
) -> None:
    """Write newline-delimited GeoJSON features as lines, as :func:`features_to_lines` does.

    Raises:
        BadData: a line is not a feature.
    """
    size = count = 0
    features = _FeatureLines(with_id)

    def convert(line: str, where: str) -> bytes:
        try:
            _decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise BadData(f"invalid JSON: {error}", where=where) from None
        return features.line(line, where)

    with source.opened() as lines, target.open("wb") as file:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            reporter.raise_if_cancelled()
            count += 1
            place = f"{source.name}: line {number}"
            size += file.write(_convert_element(convert, line.strip(), place, count, on_invalid))
            reporter.set_amounts(bytes=size)
    features.report(source.name, reporter)


class Number(str):
    """A number as text, which preserves all digits."""


def load(text: str) -> Any:
    """Parse JSON, with numbers as :class:`Number`.

    Raises:
        ValueError: the text is not JSON.
    """
    return json.loads(text, parse_int=Number, parse_float=Number)


# Finds the ends of values; numbers remain text, which is faster.
_decoder: Final = json.JSONDecoder(parse_float=str, parse_int=str)
_raw_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_raw_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _object_line(text: str, where: str) -> bytes:
    if not text.startswith("{"):
        raise BadData(f"the element is {_kind(text)}, not an object", where=where)
    line = text.encode("utf-8", "surrogatepass")
    parse_object(line, where)
    # Line breaks in JSON only occur between tokens.
    return line.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


class _FeatureLines:
    """Converts GeoJSON features to lines.

    Args:
        with_id: write the id of a feature as ``id``, unless it has a property of this name.
    """

    def __init__(self, with_id: bool) -> None:
        self._with_id = with_id
        self._dropped_ids = 0

    def line(self, text: str, where: str) -> bytes:
        """Return the properties and the id of a feature, and its geometry as text, as one line.

        Properties and geometry may be null (RFC 7946, section 3.2).

        Raises:
            BadData: the text is not a feature, or an object in it cannot be stored exactly.
        """
        if not text.startswith("{"):
            raise BadData(f"the element is {_kind(text)}, not a GeoJSON feature", where=where)
        parse_object(text.encode("utf-8", "surrogatepass"), where)
        feature = _raw_values(text)
        if '"crs"' in text:
            _check_feature_crs(load(text), where)
        if feature.get("type") != b'"Feature"':
            raise BadData("the element is not a GeoJSON feature", where=where)
        for part in ("properties", "geometry"):
            value = feature.get(part, b"")
            if value != b"null" and not value.startswith(b"{"):
                raise BadData(
                    f"the feature has no {part}",
                    where=where,
                    hint=f"set {part} to null or to an object in the source or in a prepare step",
                )
        properties = b"{}" if feature["properties"] == b"null" else feature["properties"]
        names = _raw_values(properties)
        if "geometry" in names:
            raise BadData(
                "the feature has a property 'geometry', which is the name of the geometry column",
                where=where,
                hint="rename it in the source or in a prepare step",
            )
        parts = [properties[1:-1].strip(), self._id(feature, names)]
        parts.append(b'"geometry":' + _geometry_text(feature["geometry"]))
        line = b",".join(part for part in parts if part)
        return b"{" + line.replace(b"\r", b" ").replace(b"\n", b" ") + b"}\n"

    def _id(self, feature: dict[str, bytes], properties: dict[str, bytes]) -> bytes:
        value = feature.get("id", b"null")
        if value == b"null":
            return b""
        if self._with_id and not any(name.casefold() == "id" for name in properties):
            return b'"id":' + value
        self._dropped_ids += value != properties.get("id")
        return b""

    def report(self, name: str, reporter: Reporter) -> None:
        """Log that ids were dropped."""
        if self._dropped_ids:
            reason = (
                "the features have another property of this name"
                if self._with_id
                else "declare the column id in read.schema to read them"
            )
            reporter.log(f"{name}: ids of {count_of(self._dropped_ids, 'feature')} dropped: {reason}")


def _check_document_crs(crs: Any, where: str, reporter: Reporter) -> None:
    if crs is None:
        reporter.warn(f"{where}: crs is null, the coordinate system is unknown", "coordinates")
    else:
        _check_crs(crs, where)


def _check_feature_crs(feature: dict[str, Any], where: str) -> None:
    for owner in (feature, feature.get("geometry")):
        if isinstance(owner, dict) and owner.get("crs") is not None:
            _check_crs(owner["crs"], where)


def _check_crs(crs: Any, where: str) -> None:
    """Check the coordinate system that GeoJSON had before RFC 7946.

    Raises:
        BadData: it is not WGS 84.
    """
    properties = crs.get("properties") if isinstance(crs, dict) else crs
    texts = [str(value) for value in (properties.values() if isinstance(properties, dict) else [properties])]
    if not any(map(_WGS_84.search, texts)):
        system = ", ".join(texts)
        raise BadData(
            f"the coordinates are in the system '{system if len(system) <= 80 else system[:79] + '…'}',"
            " and GeoJSON has WGS 84",
            where=where,
            hint="convert them in a prepare step, such as ogr2ogr -f GeoJSON -t_srs EPSG:4326 /vsistdout/"
            " /vsistdin/; or read the file with read.kind Json and subPath features",
        )


def _geometry_text(geometry: bytes) -> bytes:
    if geometry == b"null":
        return geometry
    return json.dumps(_compact(geometry).decode(), ensure_ascii=False).encode()


def _raw_values(text: str | bytes) -> dict[str, bytes]:
    """Return the values of an object as JSON text."""
    try:
        return {key: bytes(memoryview(value)) for key, value in _raw_object(text).items()}
    except (msgspec.MsgspecError, RecursionError):  # The strict parser rejects numbers such as NaN.
        values = load(text if isinstance(text, str) else text.decode())
        return {key: dump(value).encode() for key, value in values.items()}


def _compact(text: bytes) -> bytes:
    """Return JSON without white space and with sorted keys. Numbers keep their digits."""
    if b'"' not in text:
        return text.translate(None, b" \t\r\n")
    try:
        if text.startswith(b"{"):
            pairs = sorted(_raw_values(text).items())
            return b"{" + b",".join(_text(key) + b":" + _compact(value) for key, value in pairs) + b"}"
        if text.startswith(b"["):
            return b"[" + b",".join(_compact(bytes(memoryview(item))) for item in _raw_items(text)) + b"]"
    except (msgspec.MsgspecError, RecursionError):
        return dump(load(text.decode()), sort_keys=True).encode()
    return text


def _text(value: str) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def dump(value: Any, *, sort_keys: bool = False) -> str:
    """Return a value as JSON without white space. Numbers keep their digits."""
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
    path: _ArrayPath,
    target: Path,
    reporter: Reporter,
    form: Callable[[str, str], bytes],
    on_invalid: OnInvalid | None,
) -> None:
    size = 0
    with source.opened() as text, target.open("wb") as file:
        document = _Document(text, source.name)
        for number, (part, line) in enumerate(_elements(document, path.keys, path), 1):
            reporter.raise_if_cancelled()
            place = f"{source.name}: line {line}"
            size += file.write(_convert_element(form, part, place, number, on_invalid))
            reporter.set_amounts(bytes=size)
        document.end()


def _convert_element(
    form: Callable[[str, str], bytes], part: str, where: str, number: int, on_invalid: OnInvalid | None
) -> bytes:
    """Return the line of an element; a blank line if it is invalid and ``on_invalid`` receives it."""
    try:
        return form(part, where)
    except BadData as error:
        if on_invalid is None:
            raise
        on_invalid(number, error)
        return b"\n"


class _ArrayPath(NamedTuple):
    """The path of an array in a document, and checks of other members of the document by their names.

    A check receives the value and its location.
    """

    keys: list[str]
    checks: Mapping[str, Callable[[Any, str], None]] = {}


def _elements(document: _Document, keys: list[str], array: _ArrayPath) -> Iterator[tuple[str, int]]:
    """Yield the elements of the array at ``keys`` with their lines, and read to the end of the value.

    Raises:
        BadData: there is no array at the complete path, or a check fails.
    """
    path = ".".join(array.keys)
    if not keys:
        if document.peek() != "[":
            if not document.peek():
                raise document.error("empty or truncated document")
            what = f"'{path}' is not an array" if path else "the document is not an array"
            raise document.error(
                what, hint="set read.subPath to the path of the array of objects, such as a.b.c"
            )
        for line in document.members("[", "]"):
            yield document.value()[1], line
        return
    names: list[str] = []
    if document.peek() != "{":
        raise document.error(f"'{path}' not found: its parent is not an object")
    for line in document.members("{", "}"):
        key = document.key()
        if key == keys[0] and key in names:
            raise document.error(f"the key '{key}' occurs twice in an object")
        names.append(key)
        if key == keys[0]:
            yield from _elements(document, keys[1:], array)
        elif key in array.checks and len(keys) == len(array.keys):
            array.checks[key](document.value()[0], f"{document.name}: line {line}")
        else:
            document.skip()
    if keys[0] not in names:
        hint = "available names: " + ", ".join(names[:10])
        raise document.error(f"'{path}' (read.subPath) not found in the document", hint=hint)


class _Document:
    """A JSON text that is read incrementally.

    Attributes:
        name: name of the file in errors.
    """

    def __init__(self, source: TextIO, name: str) -> None:
        self._source = source
        self.name = name
        self._text = ""
        self._at = 0
        self._line = 1  # Of position _counted in _text.
        self._counted = 0
        self._ended = False

    def peek(self) -> str:
        """Return the next character that is not white space, without reading it; empty at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._read_more():
                return self._text[self._at : self._at + 1]

    def take(self, choices: str) -> str:
        """Read one of these characters.

        Raises:
            BadData: the next character is another one.
        """
        char = self.peek()
        if not char or char not in choices:
            wanted = " or ".join(f"'{choice}'" for choice in choices)
            raise self.error(
                f"expected {wanted}, found the end of the file"
                if not char
                else f"expected {wanted}, found '{char}'"
            )
        self._at += 1
        return char

    def members(self, begin: str, end: str) -> Iterator[int]:
        """Yield the line of each member between brackets. The caller reads the member."""
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
        """Read the name of a member of an object."""
        if self.peek() != '"':
            raise self.error(_CUT if not self.peek() else "invalid JSON: expected a name in quotes")
        name, _ = self.value()
        self.take(":")
        return name

    def skip(self) -> None:
        """Skip a value, which may be larger than the memory."""
        begin = self.peek()
        if begin not in ("{", "["):
            self.value()
            return
        if len(self._text) - self._at < _CHUNK:
            self._read_more()
        try:
            self._at = _decoder.raw_decode(self._text, self._at)[1]
            return
        except (json.JSONDecodeError, RecursionError):
            pass  # It is too large for the buffer, or invalid: its members are read one by one.
        try:
            for _ in self.members(begin, "}" if begin == "{" else "]"):
                if begin == "{":
                    self.key()
                self.skip()
        except RecursionError:
            raise self.error("nested too deeply") from None

    def value(self) -> tuple[Any, str]:
        """Read the next value; return it and its text."""
        if not self.peek():
            raise self.error(_CUT)
        while True:
            try:
                value, end = _decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                open_text = error.msg.startswith("Unterminated")
                rest = self._text[error.pos : error.pos + _TAIL]
                ahead = error.pos - self._at
                if (open_text or len(rest) < _TAIL) and self._read_more():
                    continue
                if open_text or any(literal.startswith(rest) for literal in _LITERALS):
                    raise self.error(_CUT) from None
                raise self.error(f"invalid JSON: {error.msg}", self._at + ahead) from None
            except RecursionError:
                raise self.error("nested too deeply") from None
            length = end - self._at  # Reading more drops the text before _at.
            if len(self._text) - end < _NUMBER_TAIL and self._read_more():
                continue  # A number may be incomplete.
            text = self._text[self._at : self._at + length]
            self._at += length
            return value, text

    def end(self) -> None:
        """Check that the document is complete.

        Raises:
            BadData: there is text after it.
        """
        if self.peek():
            raise self.error("unexpected text after the end of the document")

    def error(self, message: str, at: int | None = None, hint: str | None = None) -> BadData:
        """Return an error with its line."""
        return BadData(message, where=f"{self.name}: line {self._line_here(at)}", hint=hint)

    def _line_here(self, at: int | None = None) -> int:
        at = self._at if at is None else at
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        return self._line

    def _read_more(self) -> bool:
        """Read more text, and discard text that was already parsed; return False at the end.

        Raises:
            BadData: a value is too large.
        """
        if self._ended:
            return False
        if len(self._text) - self._at > _MAX_CHARACTERS:
            raise self.error(f"a value exceeds {_MAX_CHARACTERS:,} characters")
        self._line_here()
        rest = self._text[self._at :]
        added = self._source.read(max(_CHUNK, len(rest)))
        self._text, self._at, self._counted = rest + added, 0, 0
        self._ended = not added
        return bool(added)
