"""YAML text as a tree that knows its places: the subset that JSON could express, nothing cleverer.

Plain scalars mean what they mean in YAML 1.2 (``yes`` and ``12:30`` are text). Anchors, aliases
and tags are refused: a manifest is data, and an alias may unfold without end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from odf_engine.errors import InvalidManifest
from odf_engine.metadata.wire import MAX_TEXT_DEPTH

_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INT: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: Final = dict.fromkeys(("", "~", "null", "Null", "NULL")) | {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MAX_DIGITS: Final = 400


class Node(msgspec.Struct):
    """A place in the text; line and column count from 1."""

    line: int
    column: int


class Scalar(Node):
    """A single value; ``plain`` when it was not quoted, so that it may be a number."""

    text: str
    plain: bool

    @property
    def value(self) -> str | int | float | bool | None:
        """What the scalar means."""
        return plain_value(self.text) if self.plain else self.text

    @property
    def is_null(self) -> bool:
        """Whether it stands for nothing."""
        return self.plain and self.value is None


class Sequence(Node):
    """A list."""

    items: list[Node] = msgspec.field(default_factory=list)


class Mapping(Node):
    """Keys and values, in order, duplicates and all."""

    entries: list[tuple[Scalar, Node]] = msgspec.field(default_factory=list)


def plain_value(text: str) -> str | int | float | bool | None:
    """What an unquoted scalar means (YAML 1.2, core schema)."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= _MAX_DIGITS:
        if _INT.fullmatch(text):
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if _NOT_FINITE.fullmatch(text):
            return float(text.replace(".", ""))
    return text


def parse_documents(text: str | bytes, source: str) -> list[Node]:
    """The root nodes of all documents in ``text`` that are not empty.

    Raises:
        InvalidManifest: not UTF-8, not YAML, or more than the subset.
    """
    decoded = _decoded(text, source)
    try:
        roots = list(_Composer(source).documents(yaml.parse(decoded, Loader=_Loader)))
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, decoded, source) from error
    except yaml.reader.ReaderError as error:
        character = error.character if isinstance(error.character, str) else chr(error.character)
        line, column = _place(decoded, decoded.find(character))
        raise InvalidManifest(
            f"the character U+{ord(character):04X} must not stand in YAML as it is",
            hint='write it as an escape within double quotes, such as "\\u0007"',
            where=f"{source}:{line}:{column}",
        ) from error
    return [root for root in roots if not (isinstance(root, Scalar) and root.is_null)]


def _decoded(text: str | bytes, source: str) -> str:
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            line, column = _place(text, error.start)
            raise InvalidManifest(
                "the text is not valid Unicode", where=f"{source}:{line}:{column}"
            ) from error
        return text
    try:
        return str(text, "utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _place(text[: error.start].decode(), error.start)
        raise InvalidManifest(
            "the file is not UTF-8 text", hint="save it as UTF-8", where=f"{source}:{line}:{column}"
        ) from error


def _place(text: str, index: int) -> tuple[int, int]:
    before = text[: max(index, 0)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _not_yaml(error: yaml.MarkedYAMLError, text: str, source: str) -> InvalidManifest:
    mark = error.problem_mark or error.context_mark
    problem = " ".join(part for part in (error.context, error.problem) if part)
    if mark is None:
        return InvalidManifest(f"this is not YAML: {problem}", where=source)
    line = text.splitlines()[mark.line : mark.line + 1]
    tab = line and line[0][mark.column : mark.column + 1] == "\t"
    hint = "YAML is indented with spaces, not with tabs" if tab else None
    where = f"{source}:{mark.line + 1}:{mark.column + 1}"
    return InvalidManifest(f"this is not YAML: {problem}", hint=hint, where=where)


class _Composer:
    """Builds trees from the parser's events, without recursion."""

    def __init__(self, source: str) -> None:
        self._source = source

    def documents(self, events: Iterator[yaml.Event]) -> Iterator[Node]:
        stack: list[Sequence | Mapping] = []
        keys: list[Scalar | None] = []
        for event in events:
            if isinstance(event, yaml.AliasEvent):
                self._refuse(event, "aliases (*name) are not supported", "write the value out again")
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
                        self._refuse(event, "this nests too deeply", None)
            elif isinstance(event, yaml.CollectionEndEvent):
                stack.pop()
                keys.pop()

    def _node(self, event: yaml.NodeEvent) -> Node:
        tag = getattr(event, "tag", None)
        if event.anchor is not None:
            self._refuse(event, f"anchors (&{event.anchor}) are not supported", "write the value out")
        if tag is not None:
            self._refuse(event, f"tags ({tag}) are not supported", "leave it out, or quote the text")
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(line, column, event.value, plain=not event.style)
        return Mapping(line, column) if isinstance(event, yaml.MappingStartEvent) else Sequence(line, column)

    def _attach(
        self, parent: Sequence | Mapping, keys: list[Scalar | None], node: Node, event: yaml.NodeEvent
    ) -> None:
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif (key := keys[-1]) is not None:
            parent.entries.append((key, node))
            keys[-1] = None
        elif isinstance(node, Scalar):
            keys[-1] = node
        else:
            self._refuse(event, "a key has to be text", None)

    def _refuse(self, event: yaml.Event, message: str, hint: str | None) -> None:
        mark = event.start_mark
        raise InvalidManifest(message, hint=hint, where=f"{self._source}:{mark.line + 1}:{mark.column + 1}")
