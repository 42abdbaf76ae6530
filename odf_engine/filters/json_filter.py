"""Filters `json` and `xml`: write the items of a document as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, BinaryIO, Final
from xml.parsers import expat

import msgspec

from odf_engine.errors import BadData
from odf_engine.filters.csv_filter import unique_names

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")
_MAX_BYTES: Final = 256 << 20
_CHUNK: Final = 1 << 16
_MAX_DEPTH: Final = 100


@dataclass(frozen=True)
class JsonOptions:
    """Options of the filter.

    Attributes:
        items: path of the list of items, such as ``data.items`` or ``1.rows``, with numbers from 0 for
            members of lists; "" for the document, or its only list.
        flatten: whether members of nested objects become members such as ``a.b``.
    """

    items: str = ""
    flatten: bool = False


def filter_json(source: BinaryIO, target: BinaryIO, options: JsonOptions) -> None:
    """Write the items of a JSON document as lines. Lists with a first row of names become objects.

    Raises:
        BadData: the stream is not JSON, is too large, or has no such list.
    """
    data = source.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise BadData(f"the document has more than {_MAX_BYTES >> 20} MiB", hint="use a source of JSON lines")
    try:
        # Decimals keep their digits.
        document = json.loads(data, parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise BadData(f"invalid JSON: {error}", where=None if line is None else f"line {line}") from None
    for item in as_objects(find_items(document, options.items)):
        target.write(_line(flattened(item) if options.flatten else item))
    target.flush()


def find_items(document: Any, path: str) -> list[Any]:
    """Return the list of items in a document.

    Raises:
        BadData: there is no such list.
    """
    value = document
    for part in path.split(".") if path else ():
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
            continue
        if not isinstance(value, dict) or part not in value:
            names = ", ".join(value) if isinstance(value, dict) else "none"
            raise BadData(f"'{part}' of --items {path} not found", hint=f"members: {names}")
        value = value[part]
    if isinstance(value, dict) and not path:
        lists = [member for member in value.values() if isinstance(member, list)]
        value = lists[0] if len(lists) == 1 else value
    if not isinstance(value, list):
        raise BadData("the document has no list of items", hint="set --items to the path of the list")
    return value


def as_objects(items: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield items as objects; of lists, the first one has the names.

    Raises:
        BadData: an item is neither.
    """
    names: list[str] | None = None
    for number, item in enumerate(items, start=1):
        if isinstance(item, dict):
            yield item
        elif not isinstance(item, list):
            raise BadData("an item is not an object", where=f"item {number}")
        elif names is None:
            names = unique_names([str(name) for name in item])
        elif len(item) != len(names):
            raise BadData(f"{len(item)} values for {len(names)} names", where=f"item {number}")
        else:
            yield dict(zip(names, item, strict=True))


def flattened(item: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return an object without nested objects."""
    flat: dict[str, Any] = {}
    for name, value in item.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _line(item: dict[str, Any]) -> bytes:
    try:
        return _ENCODER.encode(item) + b"\n"
    except UnicodeEncodeError:  # lone surrogates stay escapes of JSON
        text = json.dumps(item, ensure_ascii=False, separators=(",", ":"), default=float)
        return text.encode(errors="backslashreplace") + b"\n"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


@dataclass(frozen=True)
class XmlOptions:
    """Options of the filter.

    Attributes:
        row: path of the elements that are rows, such as ``Cube/Cube``: the last names of the path.
    """

    row: str = ""


class _Element:
    """An element inside a row."""

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name = name
        self.members: dict[str, Any] = dict(attributes)
        self.text: list[str] = []

    def value(self) -> Any:
        """Return the object of the element, or its text."""
        text = "".join(self.text).strip()
        if not self.members:
            return text or None
        return self.members | ({"text": text} if text else {})

    def add(self, name: str, value: Any) -> None:
        """Add a child. Several children of a name are a list."""
        if name not in self.members:
            self.members[name] = value
        elif isinstance(self.members[name], list):
            self.members[name].append(value)
        else:
            self.members[name] = [self.members[name], value]


def filter_xml(source: BinaryIO, target: BinaryIO, options: XmlOptions) -> None:
    """Write the rows of an XML document as lines of JSON: attributes and children are members.

    Names have no namespace. Declarations of entities and document types are refused.

    Raises:
        BadData: the stream is not XML, declares entities, or has no such row.
    """
    reader = _XmlRows(options.row.strip("/").split("/"), target)
    try:
        while chunk := source.read(_CHUNK):
            reader.parser.Parse(chunk, False)
        reader.parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise BadData(
            f"invalid XML: {expat.errors.messages[error.code]}", where=f"line {error.lineno}"
        ) from None
    except (LookupError, ValueError) as error:
        raise BadData(f"invalid XML: {error}", hint="convert the document to UTF-8") from None
    if not reader.rows:
        raise BadData(f"no element {options.row} found", hint="set --row to the path of the rows")
    target.flush()


class _XmlRows:
    def __init__(self, path: Sequence[str], target: BinaryIO) -> None:
        self.parser = expat.ParserCreate(namespace_separator="}")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._add_text
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self.rows = 0
        self._row = list(path)
        self._target = target
        self._path: list[str] = []
        self._open: list[_Element] = []

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition("}")[2]
        self._path.append(name)
        if len(self._path) > _MAX_DEPTH:
            raise BadData("elements are nested too deeply", where=f"line {self.parser.CurrentLineNumber}")
        if self._open or self._path[-len(self._row) :] == self._row:
            plain = {key.rpartition("}")[2]: value for key, value in attributes.items()}
            self._open.append(_Element(name, plain))

    def _end(self, name: str) -> None:
        self._path.pop()
        if not self._open:
            return
        element = self._open.pop()
        value = element.value()
        if self._open:
            self._open[-1].add(element.name, value)
            return
        self.rows += 1
        self._target.write(_line(value if isinstance(value, dict) else {element.name: value}))

    def _add_text(self, text: str) -> None:
        if self._open:
            self._open[-1].text.append(text)

    def _refuse(self, *_: object) -> None:
        line = self.parser.CurrentLineNumber
        raise BadData("the document declares a document type or entities", where=f"line {line}")
