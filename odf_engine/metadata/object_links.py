"""Attributes of linked objects: columns with links, and the summary of a block (RFC-017)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from odf_engine.errors import Unsupported
from odf_engine.metadata.model import (
    AddData,
    DataField,
    DataSchema,
    ExtraAttributes,
    List,
    Map,
    Option,
    String,
)
from odf_engine.metadata.model import Struct as StructType

_TYPE: Final = "opendatafabric.org/type"
_SUMMARY: Final = "opendatafabric.org/linkedObjects"
_MAX: Final = 2**63 - 1


class LinkedTotals(NamedTuple):
    """Number and size of linked objects. Each link counts, also further links to the same object.

    Attributes:
        objects: number of links that are not null.
        size: sum of the sizes of their objects in bytes.
    """

    objects: int = 0
    size: int = 0

    def plus(self, other: LinkedTotals) -> LinkedTotals:
        """Return the sum, at most the largest number that can be stored."""
        return LinkedTotals(min(self.objects + other.objects, _MAX), min(self.size + other.size, _MAX))


def find_link_columns(schema: DataSchema | None) -> list[str]:
    """Return the columns with links to objects of the dataset. Links that are not supported are left out."""
    return [] if schema is None else [field.name for field in schema.fields if _link_problem(field) == ""]


def check_link_columns(schema: DataSchema | None, where: str = "SetDataSchema") -> None:
    """Check that all links of a schema are supported.

    Args:
        schema: the schema; None has no links.
        where: what declares it, for the error.

    Raises:
        Unsupported: a link is not a multihash in a column of type String, or it is part of a nested type.
    """
    for field in [] if schema is None else schema.fields:
        problem = _link_problem(field) or _nested_problem(field.type)
        if problem:
            raise Unsupported(
                f"column '{field.name}': {problem}",
                where=where,
                hint="links to objects are columns of type String with linkType: {kind: Multihash}",
            )


def _link_problem(field: DataField) -> str | None:
    """Return why a link is not supported, or None if the field is not a link, empty if it is supported."""
    described = _entries(field.extra).get(_TYPE)
    if not isinstance(described, dict) or described.get("kind") != "ObjectLink":
        return None
    link = described.get("linkType")
    if not isinstance(link, dict) or link.get("kind") != "Multihash":
        return "unsupported linkType of an ObjectLink"
    inner = field.type.inner if isinstance(field.type, Option) else field.type
    return "" if isinstance(inner, String) else "an ObjectLink that is not a String"


def _nested_problem(data_type: Any) -> str:
    """Return the problem of a link within a nested type, or ""."""
    match data_type:
        case Option():
            return _nested_problem(data_type.inner)
        case List():
            return _nested_problem(data_type.item_type)
        case Map():
            return _nested_problem(data_type.key_type) or _nested_problem(data_type.value_type)
        case StructType():
            for field in data_type.fields:
                if _link_problem(field) is not None or _nested_problem(field.type):
                    return "an ObjectLink in a nested type"
    return ""


def read_totals(event: object) -> LinkedTotals:
    """Return the summary of an event; zeros if it has none, or an invalid one."""
    entry = _entries(event.extra).get(_SUMMARY) if isinstance(event, AddData) else None
    if not isinstance(entry, dict):
        return LinkedTotals()
    totals = LinkedTotals(entry.get("numObjectsNaive", 0), entry.get("sizeNaive", 0))
    is_valid = all(type(number) is int and 0 <= number <= _MAX for number in totals)
    return totals if is_valid else LinkedTotals()


def has_totals(event: object) -> bool:
    """Return whether an event has a summary."""
    return isinstance(event, AddData) and _SUMMARY in _entries(event.extra)


def totals_attribute(totals: LinkedTotals) -> ExtraAttributes:
    """Return the attribute with the summary of an event."""
    return ExtraAttributes({_SUMMARY: {"numObjectsNaive": totals.objects, "sizeNaive": totals.size}})


def _entries(extra: ExtraAttributes | None) -> dict[str, Any]:
    return {} if extra is None else extra.entries
