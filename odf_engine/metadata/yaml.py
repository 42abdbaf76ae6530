"""YAML codec of manifests, blocks and events; reports errors with line and column."""

from __future__ import annotations

import base64
import binascii
import difflib
import math
import re
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as Versions
from contextlib import suppress
from enum import Enum
from typing import Any, Final

import yaml

from odf_engine.errors import InvalidIdentity, InvalidManifest
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.metadata.data_types import find_type_problem
from odf_engine.metadata.descriptors import (
    MAX_DEPTH,
    MAX_TEXT_DEPTH,
    BoolType,
    BytesType,
    EnumType,
    FieldDescriptor,
    FieldType,
    InstantType,
    IntegerType,
    JsonType,
    StringType,
    TableDescriptor,
    TableType,
    UnionType,
    VectorType,
    accepted_spellings,
    describe_table,
    field_type_of,
    json_depth,
    required_keys,
    union_tag,
)
from odf_engine.metadata.model import DatasetSnapshot, ExtraAttributes, MetadataBlock, MetadataEvent, Model
from odf_engine.metadata.resources import (
    SCHEMA,
    SourceDefinition,
    ValueSet,
    convert_resource,
    is_value_set,
    join_sources,
    read_value_set,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml_nodes import Mapping, Scalar, Sequence, YamlNode, resolve_plain_scalar

_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TOO_DEEP: Final = "nested too deeply"
_START_TOKENS: Final = (
    yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken,
    yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken,
)  # fmt: skip
_END_TOKENS: Final = (yaml.BlockEndToken, yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)


def parse_documents(text: str | bytes, source: str) -> list[YamlNode]:
    """Parse the non-empty documents in ``text``; return their root nodes.

    Raises:
        InvalidManifest: not UTF-8, not YAML, or with YAML features that are not supported.
    """
    decoded = _decode_text(text, source)
    try:
        roots = list(_Composer(source).documents(yaml.parse(decoded, Loader=_Loader)))
    except yaml.MarkedYAMLError as error:
        raise _nesting_error(decoded, source) or _yaml_error(error, decoded, source) from error
    except yaml.reader.ReaderError as error:
        character = error.character if isinstance(error.character, str) else chr(error.character)
        line, column = _line_and_column(decoded, decoded.find(character))
        raise InvalidManifest(
            f"the character U+{ord(character):04X} must be escaped in YAML",
            hint='write it as an escape within double quotes, such as "\\u0007"',
            where=f"{source}:{line}:{column}",
        ) from error
    return [root for root in roots if not (isinstance(root, Scalar) and root.is_null)]


def _decode_text(text: str | bytes, source: str) -> str:
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            line, column = _line_and_column(text, error.start)
            raise InvalidManifest(
                "the text is not valid Unicode", where=f"{source}:{line}:{column}"
            ) from error
        return text
    try:
        return str(text, "utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _line_and_column(text[: error.start].decode(), error.start)
        raise InvalidManifest(
            "the file is not UTF-8 text", hint="save it as UTF-8", where=f"{source}:{line}:{column}"
        ) from error


def _line_and_column(text: str, index: int) -> tuple[int, int]:
    before = text[: max(index, 0)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _yaml_error(error: yaml.MarkedYAMLError, text: str, source: str) -> InvalidManifest:
    mark = error.problem_mark or error.context_mark
    problem = " ".join(part for part in (error.context, error.problem) if part)
    if mark is None:
        return InvalidManifest(f"invalid YAML: {problem}", where=source)
    line = text.splitlines()[mark.line : mark.line + 1]
    tab = line and line[0][mark.column : mark.column + 1] == "\t"
    hint = "indent with spaces; YAML does not allow tabs" if tab else None
    position = f"{source}:{mark.line + 1}:{mark.column + 1}"
    return InvalidManifest(f"invalid YAML: {problem}", hint=hint, where=position)


def _nesting_error(text: str, source: str) -> InvalidManifest | None:
    """Return the error for the first collection that is nested too deeply, or None.

    The parser of PyYAML >= 6.0.4 has its own limit and reads ahead, so it can fail before
    :class:`_Composer` receives the collection.
    """
    depth = 0
    with suppress(yaml.YAMLError):
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            depth += isinstance(token, _START_TOKENS) - isinstance(token, _END_TOKENS)
            if depth > MAX_TEXT_DEPTH:
                return _error_at(token.start_mark, source, _TOO_DEEP)
    return None


def _error_at(mark: yaml.Mark, source: str, message: str, hint: str | None = None) -> InvalidManifest:
    return InvalidManifest(message, hint=hint, where=f"{source}:{mark.line + 1}:{mark.column + 1}")


class _Composer:
    """Builds node trees from the parser's events without recursion."""

    def __init__(self, source: str) -> None:
        self._source = source

    def documents(self, events: Iterator[yaml.Event]) -> Iterator[YamlNode]:
        stack: list[Sequence | Mapping] = []
        keys: list[Scalar | None] = []
        for event in events:
            if isinstance(event, yaml.AliasEvent):
                self._refuse(event, "aliases (*name) are not supported", "repeat the value")
            elif isinstance(event, yaml.NodeEvent):
                node = self._node(event)
                if stack:
                    self._attach(stack[-1], keys, node, event)
                else:
                    yield node
                if isinstance(node, Sequence | Mapping):
                    stack.append(node)
                    keys.append(None)
                    if len(stack) > MAX_TEXT_DEPTH:
                        self._refuse(event, _TOO_DEEP, None)
            elif isinstance(event, yaml.CollectionEndEvent):
                stack.pop()
                keys.pop()

    def _node(self, event: yaml.NodeEvent) -> YamlNode:
        tag = getattr(event, "tag", None)
        if event.anchor is not None:
            self._refuse(event, f"anchors (&{event.anchor}) are not supported", "write the value itself")
        if tag is not None:
            self._refuse(event, f"tags ({tag}) are not supported", "remove the tag, or quote the text")
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(line, column, event.value, plain=not event.style)
        return Mapping(line, column) if isinstance(event, yaml.MappingStartEvent) else Sequence(line, column)

    def _attach(
        self, parent: Sequence | Mapping, keys: list[Scalar | None], node: YamlNode, event: yaml.NodeEvent
    ) -> None:
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif (key := keys[-1]) is not None:
            parent.entries.append((key, node))
            keys[-1] = None
        elif isinstance(node, Scalar):
            keys[-1] = node
        else:
            self._refuse(event, "a key must be text", None)

    def _refuse(self, event: yaml.Event, message: str, hint: str | None) -> None:
        raise _error_at(event.start_mark, self._source, message, hint)


# Attempts at nested short forms, which do not exist.
_NESTED_TYPE: Final = re.compile(r"\?$|^(?:option|list|array|map|struct|decimal)(?=[<(\[])", re.IGNORECASE)
_NESTED_HINTS: Final = {
    "?": "a type that may be null is {kind: Option, inner: …}",
    "list": "write it as {kind: List, itemType: …}",
    "array": "write it as {kind: List, itemType: …}",
    "map": "write it as {kind: Map, keyType: …, valueType: …}",
    "struct": "write it as {kind: Struct, fields: […]}",
    "decimal": "write it as {kind: Decimal, precision: …, scale: …}",
}
INVALID: Final[Any] = object()
"""Placeholder for an invalid value whose problem has been recorded."""
_MAX_SHOWN: Final = 20


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to ``word``, or None."""
    by_lower = {name.lower().replace("_", ""): name for name in known}
    matches = difflib.get_close_matches(word.lower().replace("_", ""), by_lower, n=1)
    return by_lower[matches[0]] if matches else None


class ModelReader:
    """Converts node trees of one source to model values, and collects all problems.

    Args:
        source: name of the source in messages.
        definition: whether fields are allowed that only exist in the text of definitions.
    """

    def __init__(self, source: str, *, definition: bool = False) -> None:
        self._source = source
        self._definition = definition
        self._problems: list[tuple[int, int, str, str | None]] = []

    def add_problem(self, node: YamlNode, path: str, message: str, hint: str | None = None) -> Any:
        """Record a problem; return ``INVALID``."""
        text = f"{path}: {message}" if path else message
        self._problems.append((node.line, node.column, text, hint))
        return INVALID

    def raise_problems(self) -> None:
        """Raise the recorded problems, if any.

        Raises:
            InvalidManifest: with all problems.
        """
        if not self._problems:
            return
        problems = sorted(self._problems, key=lambda problem: problem[:2])
        line, column, first, hint = problems[0]
        message = first
        if len(problems) > 1:
            message += f" ({hint})" if hint else ""
            hint = None
        for at_line, at_column, text, problem_hint in problems[1:_MAX_SHOWN]:
            message += f"\n{self._source}:{at_line}:{at_column}: {text}"
            message += f" ({problem_hint})" if problem_hint else ""
        if len(problems) > _MAX_SHOWN:
            message += f"\n… and {len(problems) - _MAX_SHOWN} more"
        raise InvalidManifest(message, hint=hint, where=f"{self._source}:{line}:{column}")

    def read(self, shape: FieldType, node: YamlNode, path: str) -> Any:
        """Return the value of ``node``, or ``INVALID``."""
        match shape:
            case TableType(kind) if kind is ExtraAttributes:
                return self._extra_attributes(node, path)
            case TableType(kind):
                return self.table(describe_table(kind), node, path)
            case UnionType():
                return self._union(shape, node, path)
            case VectorType(item):
                return self._vector(item, node, path)
            case JsonType():
                return self._json_object(node, path)
        if not isinstance(node, Scalar):
            return self.add_problem(
                node, path, f"expected {_describe_type(shape)}, found {_describe_node(node)}"
            )
        match shape:
            case StringType():
                return self._text(shape, node, path)
            case IntegerType():
                return self._number(shape, node, path)
            case BoolType():
                value = node.value
                return value if isinstance(value, bool) else self._unexpected(shape, node, path)
            case EnumType(enum):
                return self._enum(enum, node, path)
            case InstantType():
                return self._instant(node, path)
            case BytesType():
                return self._blob(shape, node, path)

    def table(self, layout: TableDescriptor, node: YamlNode, path: str) -> Any:
        """Convert a mapping to a table; return ``INVALID`` if it has problems."""
        if not isinstance(node, Mapping):
            return self.add_problem(
                node, path, f"expected {layout.type.__name__}, found {_describe_node(node)}"
            )
        known = _fields_by_key(layout, self._definition)
        values: dict[str, Any] = {}
        seen: set[str] = set()
        for key, child in node.entries:
            if layout.tag is not None and key.text == "kind":
                if "" in seen:
                    self.add_problem(key, path, "duplicate field 'kind'")
                seen.add("")
                continue
            field = _select_field(known.get(key.text, ()), child)
            if field is None:
                self.add_problem(key, path, f"unknown field '{key.text}'", _suggest(key.text, known))
            elif field.name in seen:
                self.add_problem(key, path, f"duplicate field '{key.text}'")
            else:
                seen.add(field.name)
                values[field.name] = self._field(field, child, f"{path}.{key.text}" if path else key.text)
        return self._build(layout, node, path, values)

    def _build(self, layout: TableDescriptor, node: YamlNode, path: str, values: dict[str, Any]) -> Any:
        for field in layout.fields:
            if not field.optional and field.name not in values:
                values[field.name] = self.add_problem(node, path, f"missing field '{field.key}'")
        needed = layout.type.NEEDS_ONE_OF
        if needed and all(values.get(name) is None for name in needed):
            keys = " or ".join(f"'{field.newer_key}'" for field in layout.fields if field.name in needed)
            return self.add_problem(node, path, f"missing field: {keys}")
        exclusive = [field for field in layout.fields if field.name in layout.type.AT_MOST_ONE_OF]
        if self._definition and sum(values.get(field.name) is not None for field in exclusive) > 1:
            keys = " and ".join(f"'{field.newer_key}'" for field in exclusive)
            return self.add_problem(node, path, f"{keys} exclude each other", "remove one of them")
        if any(value is INVALID for value in values.values()):
            return INVALID
        value = layout.type(**values)
        problem = find_type_problem(value) if self._definition else None
        if problem is not None:
            name, message, hint = problem
            key = next(field.key for field in layout.fields if field.name == name)
            entries = node.entries if isinstance(node, Mapping) else []
            at = next((child for entry, child in entries if entry.text == key), node)
            return self.add_problem(at, f"{path}.{key}", message, hint)
        return value

    def _field(self, field: FieldDescriptor, node: YamlNode, path: str) -> Any:
        if not (isinstance(node, Scalar) and node.is_null):
            return self.read(field.shape, node, path)
        return None if field.optional else self.add_problem(node, path, "missing value")

    def _union(self, union: UnionType, node: YamlNode, path: str) -> Any:
        if union.has_short_form and isinstance(node, Scalar):
            return self._short_form(union, node, path)
        if not isinstance(node, Mapping):
            return self.add_problem(
                node, path, f"expected a {union.name} with a 'kind', found {_describe_node(node)}"
            )
        by_tag = {union_tag(member) or "": member for member in union.members}
        kinds = [value for key, value in node.entries if key.text == "kind"]
        if not kinds:
            choices = ", ".join(by_tag)
            return self.add_problem(node, path, f"missing field 'kind', one of {choices}")
        tag = self._match_spelling(kinds[0], by_tag, union.name, f"{path}.kind" if path else "kind")
        return INVALID if tag is None else self.table(describe_table(by_tag[tag]), node, path)

    def _short_form(self, union: UnionType, node: Scalar, path: str) -> Any:
        """Convert the name of a member that needs no fields."""
        by_tag = {union_tag(member) or "": member for member in union.members}
        tag = self._match_spelling(node, by_tag, union.name, path)
        if tag is None:
            return INVALID
        needed = required_keys(by_tag[tag])
        if not needed:
            return by_tag[tag]()
        fields = ", ".join(f"{key}: …" for key in needed)
        return self.add_problem(
            node, path, f"{tag} requires {', '.join(needed)}", f"write it as {{kind: {tag}, {fields}}}"
        )

    def _match_spelling(self, node: YamlNode, names: Iterable[str], type_name: str, path: str) -> str | None:
        """Return the name in ``names`` that the node spells; otherwise record a problem and return None."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            self.add_problem(node, path, f"expected one of {', '.join(names)}, found {_describe_node(node)}")
            return None
        for name in names:
            if node.text in accepted_spellings(name):
                return name
        hint = _suggest(node.text, names)
        if type_name == "DataType" and (nested := _NESTED_TYPE.search(node.text)):
            hint = _NESTED_HINTS.get(nested[0].lower(), _NESTED_HINTS["?"])
        self.add_problem(node, path, f"unknown {type_name} '{node.text}'", hint)
        return None

    def _vector(self, item: FieldType, node: YamlNode, path: str) -> Any:
        if not isinstance(node, Sequence):
            return self.add_problem(node, path, f"expected a list, found {_describe_node(node)}")
        values = [self.read(item, child, f"{path}[{index}]") for index, child in enumerate(node.items)]
        return INVALID if any(value is INVALID for value in values) else values

    def _unexpected(self, shape: FieldType, node: Scalar, path: str, hint: str | None = None) -> Any:
        return self.add_problem(
            node, path, f"expected {_describe_type(shape)}, found {_describe_node(node)}", hint
        )

    def _text(self, shape: StringType, node: Scalar, path: str) -> Any:
        if not isinstance(node.value, str):
            return self._unexpected(shape, node, path, f"quote it: '{node.text}'")
        if shape.is_ref and node.text[: len(DID_PREFIX)].lower() == DID_PREFIX:
            return INVALID if self._parse(DatasetId.parse, node, path) is INVALID else node.text
        return node.text

    def _number(self, shape: IntegerType, node: Scalar, path: str) -> Any:
        value = node.value
        if not isinstance(value, int) or isinstance(value, bool):
            return self._unexpected(shape, node, path)
        if not shape.low <= value <= shape.high:
            return self.add_problem(node, path, f"{value} is not between {shape.low} and {shape.high}")
        return value

    def _enum(self, enum: type[Enum], node: Scalar, path: str) -> Any:
        name = self._match_spelling(node, [member.name for member in enum], enum.__name__, path)
        return INVALID if name is None else enum[name]

    def _instant(self, node: Scalar, path: str) -> Any:
        try:
            return Timestamp.parse(node.text)
        except ValueError as error:
            return self.add_problem(node, path, str(error))

    def _blob(self, shape: BytesType, node: Scalar, path: str) -> Any:
        if not isinstance(node.value, str):
            return self._unexpected(shape, node, path)
        if not issubclass(shape.type, bytes):
            return self._parse(shape.type.parse, node, path)
        try:
            return base64.b64decode(node.text, validate=True)
        except (binascii.Error, ValueError) as error:
            return self.add_problem(node, path, f"invalid base64: {error}")

    def _parse(self, parse: Any, node: Scalar, path: str) -> Any:
        try:
            return parse(node.text)
        except InvalidIdentity as error:
            return self.add_problem(node, path, error.message, error.hint)

    def _extra_attributes(self, node: YamlNode, path: str) -> Any:
        """Convert custom attributes. Earlier versions wrote them under the key ``entries``."""
        if isinstance(node, Mapping) and len(node.entries) == 1:
            (key, inner), *_ = node.entries
            if key.text == "entries" and isinstance(inner, Mapping):
                node = inner
        entries = self._json_object(node, path)
        if self._definition and isinstance(node, Mapping):
            for key, _ in node.entries:
                if not re.fullmatch(ExtraAttributes.KEY, key.text):
                    hint = "keys have the form domain/name, such as example.com/unit"
                    entries = self.add_problem(key, path, f"invalid key '{key.text}'", hint)
        return INVALID if entries is INVALID else ExtraAttributes(entries)

    def _json_object(self, node: YamlNode, path: str) -> Any:
        if not isinstance(node, Mapping):
            return self.add_problem(node, path, f"expected an object, found {_describe_node(node)}")
        value = self._json(node, path)
        if value is not INVALID and json_depth(value) > MAX_DEPTH:
            return self.add_problem(node, path, "nested too deeply")
        return value

    def _json(self, node: YamlNode, path: str) -> Any:
        if isinstance(node, Sequence):
            items = [self._json(child, f"{path}[{index}]") for index, child in enumerate(node.items)]
            return INVALID if any(item is INVALID for item in items) else items
        if isinstance(node, Mapping):
            return self._json_members(node, path)
        assert isinstance(node, Scalar)
        value = node.value
        if isinstance(value, float) and not math.isfinite(value):
            return self.add_problem(node, path, f"{node.text} is not a JSON number")
        return value

    def _json_members(self, node: Mapping, path: str) -> Any:
        members: dict[str, Any] = {}
        for key, child in node.entries:
            if not isinstance(key.value, str):
                self.add_problem(
                    key,
                    path,
                    f"expected text as a key, found {_describe_node(key)}",
                    f"quote it: '{key.text}'",
                )
                members[key.text] = INVALID
            elif key.text in members:
                members[key.text] = self.add_problem(key, path, f"duplicate field '{key.text}'")
            else:
                members[key.text] = self._json(child, f"{path}.{key.text}")
        return INVALID if any(value is INVALID for value in members.values()) else members


def _fields_by_key(layout: TableDescriptor, definition: bool) -> dict[str, tuple[FieldDescriptor, ...]]:
    known: dict[str, tuple[FieldDescriptor, ...]] = {}
    for field in (*layout.fields, *(layout.text_fields if definition else ())):
        for key in field.keys:
            known[key] = (*known.get(key, ()), field)
    return known


def _select_field(fields: Iterable[FieldDescriptor], node: YamlNode) -> FieldDescriptor | None:
    """Return the field that a key refers to.

    A renamed key may refer to two fields, which differ in the type of their value.
    """
    fields = tuple(fields)
    fitting = (field for field in fields if isinstance(node, _node_type(field.shape)))
    return next(fitting, fields[0] if fields else None)


def _node_type(shape: FieldType) -> type[YamlNode]:
    if isinstance(shape, VectorType):
        return Sequence
    return Mapping if isinstance(shape, TableType | UnionType | JsonType) else Scalar


def _suggest(word: str, known: Iterable[str]) -> str:
    known = tuple(known)
    guess = closest_match(word, known)
    if guess is not None:
        return f"did you mean '{guess}'?"
    return f"use one of: {', '.join(known)}" if known else "remove it"


def _describe_type(shape: FieldType) -> str:
    match shape:
        case IntegerType():
            return "an integer"
        case BoolType():
            return "true or false"
        case EnumType(enum):
            return f"one of {', '.join(member.name for member in enum)}"
        case InstantType():
            return "a time, such as 2024-01-31T12:00:00Z"
        case BytesType(kind) if kind is bytes:
            return "bytes in base64"
        case BytesType(kind):
            return f"a {kind.__name__}"
        case _:
            return "text"


def _describe_node(node: YamlNode) -> str:
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    assert isinstance(node, Scalar)
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {node.text}"
    if isinstance(value, int | float):
        return f"the number {node.text}"
    return f"the text '{value if len(value) <= 60 else value[:57] + '…'}'"


# Characters that need no escape in YAML. Others are escaped (some readers end lines at U+0085), or
# quoted, so that output to a terminal can escape them (bidirectional controls).
_UNESCAPED: Final = re.compile(
    r"[\t\n\x20-\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe"
    r"\U00010000-\U0010ffff]*"
)

# Text that readers of YAML 1.1 parse as a date.
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")


def to_builtins(value: Model) -> dict[str, Any]:
    """Convert ``value`` to builtins: camelCase keys, ``kind`` first, absent fields omitted.

    A table with a field of a newer specification uses the field names of that specification.
    """
    if isinstance(value, ExtraAttributes):
        return value.entries
    layout = describe_table(type(value))
    fields = (*layout.fields, *layout.text_fields)
    present = {field.name: getattr(value, field.name) for field in fields}
    newer = any(field.is_newer and present[field.name] is not None for field in fields)
    plain: dict[str, Any] = {} if layout.tag is None else {"kind": layout.tag}
    for field in fields:
        if present[field.name] is not None:
            plain[field.newer_key if newer else field.key] = _to_builtin(present[field.name])
    return plain


def _to_builtin(value: Any) -> Any:
    if isinstance(value, Model):
        return to_builtins(value)
    if isinstance(value, list):
        return [_to_builtin(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str | int | float | dict):
        return value
    return str(value)  # hashes, ids and times


def to_yaml(value: Any) -> str:
    """Serialize ``value``, a model value or builtins, as one YAML document in block style."""
    plain = to_builtins(value) if isinstance(value, Model) else value
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


class _Dumper(yaml.SafeDumper):
    """Indents lists under their key, writes no aliases, and quotes ambiguous text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    style = None
    if not _UNESCAPED.fullmatch(text):
        style = '"'
    elif "\n" in text:
        style = "|"  # the dumper falls back to quotes if a literal block would lose spaces
    elif not isinstance(resolve_plain_scalar(text), str) or _DAY.fullmatch(text):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)

# Times are text in YAML 1.2 and need no quotes.
_Dumper.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()
}


# Kinds of manifests: the type of their content, and the supported versions.
_CONTENTS: Final[Versions[str, tuple[Any, tuple[int, ...]]]] = {
    "DatasetSnapshot": (DatasetSnapshot, (1,)),
    "MetadataEvent": (MetadataEvent, (1,)),
    "MetadataBlock": (MetadataBlock, (2, 3)),
}
_WRAPPER: Final = ("kind", "version", "content")


def read_manifests(text: str | bytes, source: str) -> list[DatasetSnapshot]:
    """Read all definitions of datasets of ``text``, which may have several documents.

    A definition is a DatasetSnapshot manifest, or a Dataset or Source resource (RFC-018). See
    :func:`read_value_sets` for VariableSet and SecretSet resources, which are omitted.

    Args:
        text: YAML; bytes must be UTF-8.
        source: name of the source in messages, such as the path of the file.

    Raises:
        InvalidManifest: with all problems, each with its line and column.
    """
    roots = parse_documents(text, source)
    if not roots:
        raise InvalidManifest("no manifest found", where=source)
    reader = ModelReader(source, definition=True)
    roots = [root for root in roots if not is_value_set(root)]
    snapshots = [_read(reader, root, "DatasetSnapshot", bare=False)[0] for root in roots]
    reader.raise_problems()
    return join_sources(snapshots)


def read_value_sets(text: str | bytes, source: str) -> list[ValueSet]:
    """Read the VariableSet and SecretSet resources (RFC-018) of ``text``, without other documents.

    Raises:
        InvalidManifest: with all problems, each with its line and column.
    """
    reader = ModelReader(source, definition=True)
    roots = parse_documents(text, source)
    sets = [
        read_value_set(reader, root) for root in roots if isinstance(root, Mapping) and is_value_set(root)
    ]
    reader.raise_problems()
    return [item for item in sets if item is not None]


def read_block_manifest(text: str | bytes, source: str) -> tuple[MetadataBlock, int | None]:
    """Read a block and its version from a MetadataBlock manifest; a block without a wrapper has no version.

    Raises:
        InvalidManifest: with all problems.
    """
    return _read_one(text, source, "MetadataBlock")


def read_event(text: str | bytes, source: str) -> MetadataEvent:
    """Read an event, with or without the wrapper of a MetadataEvent manifest.

    Raises:
        InvalidManifest: with all problems.
    """
    return _read_one(text, source, "MetadataEvent")[0]


def block_to_yaml(block: MetadataBlock, version: int) -> str:
    """Serialize a block as a MetadataBlock manifest."""
    return to_yaml({"kind": "MetadataBlock", "version": version, "content": to_builtins(block)})


def snapshot_to_yaml(snapshot: DatasetSnapshot) -> str:
    """Serialize a definition; see :func:`snapshot_documents`."""
    return "---\n".join(map(to_yaml, snapshot_documents(snapshot)))


def snapshot_documents(snapshot: DatasetSnapshot) -> list[dict[str, Any]]:
    """Return the documents of a definition: a DatasetSnapshot manifest, or resources (RFC-018).

    A definition whose source is outside the chain is a Source, with a Dataset before it if it has settings
    that a Source cannot have.
    """
    if isinstance(snapshot, SourceDefinition):
        return _resources(snapshot)
    return [{"kind": "DatasetSnapshot", "version": 1, "content": to_builtins(snapshot)}]


def _resources(definition: SourceDefinition) -> list[dict[str, Any]]:
    account, _, name = definition.name.rpartition("/")
    headers = {"name": name, **({"account": account} if account else {})}
    spec: dict[str, Any] = {"config": definition.config} if definition.config else {}
    others: list[Any] = []
    for event in map(to_builtins, definition.metadata):
        kind = event.pop("kind")
        if kind == "SetPollingSource":
            fetch = event.pop("fetch")
            ingress = {**fetch, "kind": fetch["kind"].replace("EthereumLogs", "EvmLogs")}
            spec |= {"ingress": ingress, **event}
        elif kind == "SetVocab":
            spec["vocab"] = event
        else:
            others.append({"kind": kind, **event})
    resource_id = {"id": definition.resource_id} if definition.resource_id else {}
    documents = [_resource("source", "Source", {**headers, **resource_id}, spec)]
    if others:
        dataset = {"kind": definition.kind.value, "metadata": others}
        documents.insert(0, _resource("dataset", "Dataset", headers, dataset))
    return documents


def _resource(context: str, name: str, headers: Any, spec: Any) -> dict[str, Any]:
    schema = f"https://opendatafabric.org/schemas/{context}/v1alpha1/{name}"
    return {SCHEMA: schema, "headers": headers, "spec": spec}


def _read_one(text: str | bytes, source: str, kind: str) -> tuple[Any, int | None]:
    roots = parse_documents(text, source)
    if len(roots) != 1:
        raise InvalidManifest(f"expected one {kind}, found {len(roots)} documents", where=source)
    reader = ModelReader(source)
    value = _read(reader, roots[0], kind, bare=True)
    reader.raise_problems()
    return value


def _read(reader: ModelReader, root: YamlNode, kind: str, *, bare: bool) -> tuple[Any, int | None]:
    """Return the content and the version of a manifest; ``bare`` allows content without a wrapper."""
    if not isinstance(root, Mapping):
        return reader.add_problem(
            root, "", f"expected a manifest with the fields {', '.join(_WRAPPER)}"
        ), None
    shape, _ = field_type_of(_CONTENTS[kind][0])
    keys = {key.text for key, _ in root.entries}
    if SCHEMA in keys and kind == "DatasetSnapshot":
        resource = convert_resource(reader, root)
        snapshot = INVALID if resource is None else reader.read(shape, resource.content, "spec")
        if resource is None or resource.config is None or snapshot is INVALID:
            return snapshot, 1
        fields = snapshot.name, snapshot.kind, snapshot.metadata
        return SourceDefinition(*fields, resource.config, resource.resource_id), 1
    if "content" not in keys and "version" not in keys:
        if bare:
            return reader.read(shape, root, ""), None
        reader.add_problem(
            root,
            "",
            "not a manifest: the fields 'version' and 'content' are missing",
            f"start it with 'kind: {kind}', 'version: 1' and 'content:'",
        )
        return INVALID, None
    version, content = _parse_wrapper(reader, root, kind)
    if version is None or content is None:
        return INVALID, None
    return reader.read(shape, content, "content"), version


def _parse_wrapper(reader: ModelReader, root: Mapping, kind: str) -> tuple[int | None, YamlNode | None]:
    parts: dict[str, YamlNode] = {}
    for key, value in root.entries:
        if key.text not in _WRAPPER:
            guess = closest_match(key.text, _WRAPPER)
            hint = f"did you mean '{guess}'?" if guess else "a manifest has kind, version and content"
            reader.add_problem(key, "", f"unknown field '{key.text}'", hint)
        elif key.text in parts:
            reader.add_problem(key, "", f"duplicate field '{key.text}'")
        parts.setdefault(key.text, value)
    for name in _WRAPPER:
        if name not in parts:
            reader.add_problem(root, "", f"missing field '{name}'")
    if not all(name in parts for name in _WRAPPER) or not _check_kind(reader, parts["kind"], kind):
        return None, None
    return _parse_version(reader, parts["version"], kind), parts["content"]


def _check_kind(reader: ModelReader, node: YamlNode, kind: str) -> bool:
    actual = node.text if isinstance(node, Scalar) else None
    if actual == kind:
        return True
    reader.add_problem(node, "kind", f"expected {kind}" + (f", found '{actual}'" if actual else ""))
    return False


def _parse_version(reader: ModelReader, node: YamlNode, kind: str) -> int | None:
    known = _CONTENTS[kind][1]
    version = node.value if isinstance(node, Scalar) else None
    if version in known and not isinstance(version, bool):
        return version  # type: ignore[return-value]
    if not isinstance(version, int) or isinstance(version, bool):
        reader.add_problem(node, "version", f"expected {' or '.join(map(str, known))}")
    elif version < known[0]:
        reader.add_problem(node, "version", f"version {version} of {kind} is obsolete and unsupported")
    else:
        hint = "use a newer version of odf"
        reader.add_problem(node, "version", f"unknown version {version} of {kind}", hint)
    return None
