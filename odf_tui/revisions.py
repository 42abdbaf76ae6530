"""What is other in a revision of a query, source, schema or description than in the one before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.metadata import model

if TYPE_CHECKING:
    import pyarrow as pa

_Column = tuple[str, str, str]  # name, type, comment


def difference(
    event: model.MetadataEvent, before: model.MetadataEvent | None, names: Mapping[DatasetId, str]
) -> list[str]:
    """Lines that start with ``+`` (new), ``-`` (gone), ``~`` (another type or comment) or a space."""
    from odf_engine.workspace.definition import describe_change

    if isinstance(event, model.SetDataSchema):
        old = before if isinstance(before, model.SetDataSchema) else None
        columns = _columns(event), [] if old is None else _columns(old)
        if columns[0] is not None and columns[1] is not None:
            return list(_column_lines(columns[1], columns[0]))
    lines = describe_change(event, before, names).lines
    return lines or ["  nothing is other"]


def _columns(event: model.SetDataSchema) -> list[_Column] | None:
    """The columns; None where the bytes of the schema cannot be read."""
    if event.schema is not None:
        from odf_engine.chain.schema_evolution import read_schema
        from odf_engine.data.ddl import type_ddl

        try:
            schema = read_schema(event.schema)
        except OdfError:
            return None
        nulls = ("" if field.nullable else " NOT NULL" for field in schema)
        return [
            (field.name, type_ddl(field.type) + null, _comment(field))
            for field, null in zip(schema, nulls, strict=True)
        ]
    if event.odf_schema is None:
        return None
    from odf_engine.metadata.yaml import to_builtins

    return [(each.name, _type_text(to_builtins(each.type)), _extra(each)) for each in event.odf_schema.fields]


def _comment(field: pa.Field) -> str:
    pairs = (field.metadata or {}).items()
    return ", ".join(f"{_text(key)}={_text(value)}" for key, value in pairs)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _type_text(plain: Any) -> str:
    if not isinstance(plain, dict):
        return str(plain)
    parts = [f"{key}={_type_text(value)}" for key, value in plain.items() if key != "kind"]
    return str(plain.get("kind", "")) + (f"({', '.join(parts)})" if parts else "")


def _extra(field: model.DataField) -> str:
    return "" if field.extra is None else str(field.extra.entries)


def _column_lines(old: list[_Column], new: list[_Column]) -> Iterator[str]:
    """The columns in their new order; what is gone stands where it was."""
    width = max((len(name) for name, *_ in (*old, *new)), default=0)
    width = min(width, 30)
    before = {name: (kind, comment) for name, kind, comment in old}
    after = {name for name, *_ in new}
    gone = [column for column in old if column[0] not in after]
    places = {name: at for at, (name, *_) in enumerate(old)}
    for name, kind, comment in new:
        while gone and name in places and places[gone[0][0]] < places[name]:
            yield _line("-", *gone.pop(0), width)
        if name not in before:
            yield _line("+", name, kind, comment, width)
        elif before[name] == (kind, comment):
            yield _line(" ", name, kind, comment, width)
        else:
            was, said = before[name]
            yield _line("~", name, kind if was == kind else f"{was} → {kind}", "", width)
            if said != comment:
                yield from (f"{sign}   {text}" for sign, text in (("-", said), ("+", comment)) if text)
    for column in gone:
        yield _line("-", *column, width)
    if [name for name in before if name in after] != [name for name, *_ in new if name in before]:
        yield "  the columns are in another order"


def _line(sign: str, name: str, kind: str, comment: str, width: int) -> str:
    return f"{sign} {name:<{width}}  {kind}" + (f"  {comment}" if comment else "")
