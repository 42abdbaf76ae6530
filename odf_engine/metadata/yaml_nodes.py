"""Nodes of a parsed YAML document, with their positions."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_INT: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_CONSTANTS: Final = dict.fromkeys(("", "~", "null", "Null", "NULL")) | {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MAX_DIGITS: Final = 400


class YamlNode(msgspec.Struct):
    """A node of the YAML tree; line and column count from 1."""

    line: int
    column: int


class Scalar(YamlNode):
    """A scalar; ``plain`` if it is not quoted and may thus be a number, a boolean or null."""

    text: str
    plain: bool

    @property
    def value(self) -> str | int | float | bool | None:
        """The value of the scalar."""
        return resolve_plain_scalar(self.text) if self.plain else self.text

    @property
    def is_null(self) -> bool:
        """Whether the value is null."""
        return self.plain and self.value is None


class Sequence(YamlNode):
    """A sequence."""

    items: list[YamlNode] = msgspec.field(default_factory=list)


class Mapping(YamlNode):
    """A mapping with its entries in order, including duplicate keys."""

    entries: list[tuple[Scalar, YamlNode]] = msgspec.field(default_factory=list)


def resolve_plain_scalar(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar (YAML 1.2, core schema)."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) <= _MAX_DIGITS:
        if _INT.fullmatch(text):
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        if _NOT_FINITE.fullmatch(text):
            return float(text.replace(".", ""))
    return text
