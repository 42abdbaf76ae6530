"""Values of the model from YAML trees, with every mistake reported where it stands."""

from __future__ import annotations

import base64
import binascii
import difflib
import math
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from odf_engine.errors import InvalidIdentity, InvalidManifest
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.metadata._nodes import Mapping, Node, Scalar, Sequence
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.wire import (
    MAX_DEPTH,
    Blob,
    Choice,
    Field,
    Flag,
    Json,
    Layout,
    Moment,
    Number,
    Shape,
    Table,
    Text,
    Union,
    Vector,
    json_depth,
    layout_of,
    spellings,
    tag_of,
)

BAD: Final[Any] = object()
"""Stands for a value that could not be read; its problem has been noted."""

_MAX_SHOWN: Final = 20


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` was probably meant to be."""
    by_lower = {name.lower().replace("_", ""): name for name in known}
    found = difflib.get_close_matches(word.lower().replace("_", ""), by_lower, n=1)
    return by_lower[found[0]] if found else None


class TextReader:
    """Reads the trees of one source, and gathers what is wrong with them.

    A ``definition`` may use the fields that have a place in texts alone.
    """

    def __init__(self, source: str, *, definition: bool = False) -> None:
        self._source = source
        self._definition = definition
        self._problems: list[tuple[int, int, str, str | None]] = []

    def note(self, node: Node, path: str, message: str, hint: str | None = None) -> Any:
        """Remembers a problem; returns ``BAD``."""
        text = f"{path}: {message}" if path else message
        self._problems.append((node.line, node.column, text, hint))
        return BAD

    def check(self) -> None:
        """Ends the reading.

        Raises:
            InvalidManifest: with all problems, when there were any.
        """
        if not self._problems:
            return
        problems = sorted(self._problems, key=lambda problem: problem[:2])
        line, column, first, hint = problems[0]
        message = first
        if len(problems) > 1:
            message += f" ({hint})" if hint else ""
            hint = None
        for at_line, at_column, text, its_hint in problems[1:_MAX_SHOWN]:
            message += f"\n{self._source}:{at_line}:{at_column}: {text}"
            message += f" ({its_hint})" if its_hint else ""
        if len(problems) > _MAX_SHOWN:
            message += f"\n… and {len(problems) - _MAX_SHOWN} more"
        raise InvalidManifest(message, hint=hint, where=f"{self._source}:{line}:{column}")

    # --- Tables and unions ----------------------------------------------------------------

    def read(self, shape: Shape, node: Node, path: str) -> Any:
        """The value at ``node``, or ``BAD``."""
        match shape:
            case Table(kind):
                return self.table(layout_of(kind), node, path)
            case Union():
                return self._union(shape, node, path)
            case Vector(item):
                return self._vector(item, node, path)
            case Json():
                return self._json_object(node, path)
        if not isinstance(node, Scalar):
            return self.note(node, path, f"expected {_called(shape)}, found {_found(node)}")
        match shape:
            case Text():
                return self._text(shape, node, path)
            case Number():
                return self._number(shape, node, path)
            case Flag():
                value = node.value
                return value if isinstance(value, bool) else self._unexpected(shape, node, path)
            case Choice(enum):
                return self._choice(enum, node, path)
            case Moment():
                return self._moment(node, path)
            case Blob():
                return self._blob(shape, node, path)

    def table(self, layout: Layout, node: Node, path: str) -> Any:
        """A table from a mapping, or ``BAD``."""
        if not isinstance(node, Mapping):
            return self.note(node, path, f"expected {layout.type.__name__}, found {_found(node)}")
        known = _fields_by_key(layout, self._definition)
        values: dict[str, Any] = {}
        seen: set[str] = set()
        for key, child in node.entries:
            if layout.tag is not None and key.text == "kind":
                if "" in seen:
                    self.note(key, path, "the field 'kind' is there twice")
                seen.add("")
                continue
            field = _fitting(known.get(key.text, ()), child)
            if field is None:
                self.note(key, path, f"unknown field '{key.text}'", _suggest(key.text, known))
            elif field.name in seen:
                self.note(key, path, f"the field '{key.text}' is there twice")
            else:
                seen.add(field.name)
                values[field.name] = self._field(field, child, f"{path}.{key.text}" if path else key.text)
        return self._built(layout, node, path, values)

    def _built(self, layout: Layout, node: Node, path: str, values: dict[str, Any]) -> Any:
        for field in layout.fields:
            if not field.optional and field.name not in values:
                values[field.name] = self.note(node, path, f"the field '{field.key}' is missing")
        needed = layout.type.NEEDS_ONE_OF
        if needed and all(values.get(name) is None for name in needed):
            keys = " or ".join(f"'{field.newer_key}'" for field in layout.fields if field.name in needed)
            return self.note(node, path, f"one of the fields {keys} has to be there")
        if any(value is BAD for value in values.values()):
            return BAD
        return layout.type(**values)

    def _field(self, field: Field, node: Node, path: str) -> Any:
        if not (isinstance(node, Scalar) and node.is_null):
            return self.read(field.shape, node, path)
        return None if field.optional else self.note(node, path, "it has no value, and needs one")

    def _union(self, union: Union, node: Node, path: str) -> Any:
        if not isinstance(node, Mapping):
            return self.note(node, path, f"expected a {union.name} with a 'kind', found {_found(node)}")
        by_tag = {tag_of(member) or "": member for member in union.members}
        kinds = [value for key, value in node.entries if key.text == "kind"]
        if not kinds:
            choices = ", ".join(by_tag)
            return self.note(node, path, f"the field 'kind' is missing, which is one of {choices}")
        tag = self._spelled(kinds[0], by_tag, union.name, f"{path}.kind" if path else "kind")
        return BAD if tag is None else self.table(layout_of(by_tag[tag]), node, path)

    def _spelled(self, node: Node, names: Iterable[str], what: str, path: str) -> str | None:
        """Which of ``names`` the node spells, in an accepted way; None after noting the problem."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            self.note(node, path, f"expected one of {', '.join(names)}, found {_found(node)}")
            return None
        for name in names:
            if node.text in spellings(name):
                return name
        self.note(node, path, f"'{node.text}' is no {what}", _suggest(node.text, names))
        return None

    def _vector(self, item: Shape, node: Node, path: str) -> Any:
        if not isinstance(node, Sequence):
            return self.note(node, path, f"expected a list, found {_found(node)}")
        values = [self.read(item, child, f"{path}[{index}]") for index, child in enumerate(node.items)]
        return BAD if any(value is BAD for value in values) else values

    # --- Scalars --------------------------------------------------------------------------

    def _unexpected(self, shape: Shape, node: Scalar, path: str, hint: str | None = None) -> Any:
        return self.note(node, path, f"expected {_called(shape)}, found {_found(node)}", hint)

    def _text(self, shape: Text, node: Scalar, path: str) -> Any:
        if not isinstance(node.value, str):
            return self._unexpected(shape, node, path, f"quote it: '{node.text}'")
        if shape.is_ref and node.text[: len(DID_PREFIX)].lower() == DID_PREFIX:
            return BAD if self._parsed(DatasetId.parse, node, path) is BAD else node.text
        return node.text

    def _number(self, shape: Number, node: Scalar, path: str) -> Any:
        value = node.value
        if not isinstance(value, int) or isinstance(value, bool):
            return self._unexpected(shape, node, path)
        if not shape.low <= value <= shape.high:
            return self.note(node, path, f"{value} is not between {shape.low} and {shape.high}")
        return value

    def _choice(self, enum: type[Enum], node: Scalar, path: str) -> Any:
        name = self._spelled(node, [member.name for member in enum], enum.__name__, path)
        return BAD if name is None else enum[name]

    def _moment(self, node: Scalar, path: str) -> Any:
        try:
            return Timestamp.parse(node.text)
        except ValueError as error:
            return self.note(node, path, str(error))

    def _blob(self, shape: Blob, node: Scalar, path: str) -> Any:
        if not isinstance(node.value, str):
            return self._unexpected(shape, node, path)
        if not issubclass(shape.type, bytes):
            return self._parsed(shape.type.parse, node, path)
        try:
            return base64.b64decode(node.text, validate=True)
        except (binascii.Error, ValueError) as error:
            return self.note(node, path, f"it is not base64: {error}")

    def _parsed(self, parse: Any, node: Scalar, path: str) -> Any:
        try:
            return parse(node.text)
        except InvalidIdentity as error:
            return self.note(node, path, error.message, error.hint)

    # --- JSON -----------------------------------------------------------------------------

    def _json_object(self, node: Node, path: str) -> Any:
        if not isinstance(node, Mapping):
            return self.note(node, path, f"expected an object, found {_found(node)}")
        value = self._json(node, path)
        if value is not BAD and json_depth(value) > MAX_DEPTH:
            return self.note(node, path, "this nests too deeply")
        return value

    def _json(self, node: Node, path: str) -> Any:
        if isinstance(node, Sequence):
            items = [self._json(child, f"{path}[{index}]") for index, child in enumerate(node.items)]
            return BAD if any(item is BAD for item in items) else items
        if isinstance(node, Mapping):
            return self._json_members(node, path)
        assert isinstance(node, Scalar)
        value = node.value
        if isinstance(value, float) and not math.isfinite(value):
            return self.note(node, path, f"{node.text} is no number that JSON knows")
        return value

    def _json_members(self, node: Mapping, path: str) -> Any:
        members: dict[str, Any] = {}
        for key, child in node.entries:
            if not isinstance(key.value, str):
                self.note(
                    key, path, f"expected text as a key, found {_found(key)}", f"quote it: '{key.text}'"
                )
                members[key.text] = BAD
            elif key.text in members:
                members[key.text] = self.note(key, path, f"the field '{key.text}' is there twice")
            else:
                members[key.text] = self._json(child, f"{path}.{key.text}")
        return BAD if any(value is BAD for value in members.values()) else members


def _fields_by_key(layout: Layout, definition: bool) -> dict[str, tuple[Field, ...]]:
    known: dict[str, tuple[Field, ...]] = {}
    for field in (*layout.fields, *(layout.text_fields if definition else ())):
        for key in field.keys:
            known[key] = (*known.get(key, ()), field)
    return known


def _fitting(fields: Iterable[Field], node: Node) -> Field | None:
    """The field that a key means: since a renaming, a key may mean two, told apart by their values."""
    fields = tuple(fields)
    fitting = (field for field in fields if isinstance(node, _node_type(field.shape)))
    return next(fitting, fields[0] if fields else None)


def _node_type(shape: Shape) -> type[Node]:
    if isinstance(shape, Vector):
        return Sequence
    return Mapping if isinstance(shape, Table | Union | Json) else Scalar


def _suggest(word: str, known: Iterable[str]) -> str:
    known = tuple(known)
    guess = closest(word, known)
    if guess is not None:
        return f"did you mean '{guess}'?"
    return f"known are: {', '.join(known)}" if known else "there are none"


def _called(shape: Shape) -> str:
    match shape:
        case Number():
            return "a whole number"
        case Flag():
            return "true or false"
        case Choice(enum):
            return f"one of {', '.join(member.name for member in enum)}"
        case Moment():
            return "a time, such as 2024-01-31T12:00:00Z"
        case Blob(kind) if kind is bytes:
            return "bytes in base64"
        case Blob(kind):
            return f"a {kind.__name__}"
        case _:
            return "text"


def _found(node: Node) -> str:
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    assert isinstance(node, Scalar)
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the truth value {node.text}"
    if isinstance(value, int | float):
        return f"the number {node.text}"
    return f"the text '{value if len(value) <= 60 else value[:57] + '…'}'"
