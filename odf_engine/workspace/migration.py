"""From the columns that a definition lists, or that its sources read, to the schema that a dataset gets next.

Columns that a dataset has already stay exactly as its chain declares them, whoever wrote that; what is
new takes the types that slices hold. Whether readers survive the result is for the chain's rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from odf_engine.chain.evolution import read_schema, same_schema
from odf_engine.chain.state import ChainState
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.conform import find_columns, stored_type
from odf_engine.data.ddl import TIMESTAMP, parse_ddl, to_ddl, type_ddl
from odf_engine.data.slices import slice_schema
from odf_engine.errors import InvalidSchema, Unsupported
from odf_engine.metadata.model import AddPushSource, DatasetVocabulary, SetDataSchema, SetPollingSource
from odf_engine.workspace.adding import data_columns

Source = SetPollingSource | AddPushSource


class Reading(NamedTuple):
    """A source as it shall be, and the one of the chain whose place it takes."""

    source: Source
    before: Source | None

    @property
    def changed(self) -> bool:
        """Whether the chain has it otherwise."""
        return self.before != self.source


def next_schema(
    state: ChainState, said: SetDataSchema | None, sources: Sequence[Reading], vocab: DatasetVocabulary
) -> SetDataSchema | None:
    """The migration that a definition asks for: outright, or because a source reads more columns.

    Args:
        state: of the chain.
        said: the schema in the definition.
        sources: the sources in the definition.
        vocab: names of the system columns by the definition.

    Raises:
        InvalidSchema: a malformed or impossible column.
        Unsupported: schemas in terms of a newer specification, which cannot be compared.
    """
    if state.has_schema and state.schema is None:
        if said is not None and (said.odf_schema is None or said.odf_schema != state.odf_schema):
            raise Unsupported(
                "the dataset's schema is written in terms of a newer specification",
                where="SetDataSchema",
                hint="leave SetDataSchema out; the rest of the definition can change",
            )
        return None
    if said is not None and said.odf_schema is not None:
        if state.schema is None:
            return said
        raise Unsupported(
            "a schema in the specification's newer terms cannot be compared with that of the dataset",
            where="SetDataSchema",
            hint='list the columns as DDL: schema: ["id BIGINT", …]',
        )
    declared = None if state.schema is None else read_schema(state.schema)
    wanted = declared if said is None else _said_schema(said, declared, vocab)
    if declared is not None and wanted is not None:
        for reading in sources:
            if reading.changed or said is not None:
                wanted = _with_columns_of(reading, wanted, declared, vocab)
    if wanted is None:
        return None  # the first rows will say it
    schema = encode_schema(wanted)
    if state.schema is not None and (wanted is declared or same_schema(state.schema, schema)):
        return None
    return SetDataSchema(schema)


def _said_schema(said: SetDataSchema, declared: pa.Schema | None, vocab: DatasetVocabulary) -> pa.Schema:
    if said.ddl is not None:
        return listed_schema(said.ddl, declared, vocab)
    return read_schema(said.schema or b"")


def _with_columns_of(
    reading: Reading, schema: pa.Schema, declared: pa.Schema, vocab: DatasetVocabulary
) -> pa.Schema:
    """The schema with what a source reads; columns that it does not read any more go."""
    columns = data_columns(reading.source, vocab)
    if columns is None:
        return schema
    had = None if reading.before is None else data_columns(reading.before, vocab)
    gone: list[str] = []
    if reading.changed:
        # A further push source may know fewer columns than there are.
        others = declared.names if isinstance(reading.source, SetPollingSource) else []
        now = {name.casefold() for name in (*columns.names, *msgspec.structs.astuple(vocab))}
        gone = [name for name in (others if had is None else had.names) if name.casefold() not in now]
    # Columns that the source read so already are as their chain declares them, whatever that is.
    told = [field for field in columns if had is None or field not in had or field.name not in schema.names]
    return grown_schema(schema, told, gone, vocab)


def listed_schema(ddl: Sequence[str], declared: pa.Schema | None, vocab: DatasetVocabulary) -> pa.Schema:
    """The schema of slices with exactly these data columns, in their order.

    Args:
        ddl: all data columns; the event time may be left out.
        declared: the schema that the dataset has; None when it has none.
        vocab: names of the system columns.

    Raises:
        InvalidSchema: a malformed or impossible column.
    """
    columns = parse_ddl(ddl)
    fresh = slice_schema(columns, vocab)
    if declared is None:
        return fresh
    places = dict(zip(columns.names, find_columns(declared.names, columns.names), strict=True))
    system = _system_names(vocab)
    given = {name.casefold(): name for name in columns.names}
    fields = [
        _evolved(field, columns.field(given[field.name.casefold()]), vocab)
        if field.name.casefold() in given
        else field
        for field in declared
        if field.name in system
    ]
    for column in columns:
        place = places[column.name]
        if place is None:
            fields.append(fresh.field(column.name))
        elif declared.field(place).name not in system:
            fields.append(_evolved(declared.field(place), column, vocab))
    return pa.schema(fields, declared.metadata)


def grown_schema(
    declared: pa.Schema, columns: Iterable[pa.Field], gone: Collection[str], vocab: DatasetVocabulary
) -> pa.Schema:
    """The schema with the columns of a source: those that it lacks are put at its end.

    Args:
        declared: the schema that the dataset has.
        columns: the columns that the source reads now.
        gone: those that it read before and does not read any more.
        vocab: names of the system columns.

    Raises:
        InvalidSchema: an impossible column.
    """
    told = pa.schema(columns)
    fresh = slice_schema(told, vocab)
    fields: list[pa.Field] = list(declared)
    for column, place in zip(told, find_columns(declared.names, told.names), strict=True):
        if place is None:
            fields.append(fresh.field(column.name))
        else:
            fields[place] = _evolved(fields[place], column, vocab)
    dropped = {name.casefold() for name in gone}
    return pa.schema([field for field in fields if field.name.casefold() not in dropped], declared.metadata)


def data_ddl(declared: pa.Schema, vocab: DatasetVocabulary) -> list[str] | None:
    """The data columns of a schema as :func:`listed_schema` takes them; None if DDL cannot say them."""
    system = _system_names(vocab) - {vocab.event_time_column}
    fields = [
        field
        for field in declared
        if field.name not in system and (field.name != vocab.event_time_column or field.type != TIMESTAMP)
    ]
    ddl = to_ddl(pa.schema(fields))
    try:
        same = listed_schema(ddl, declared, vocab).equals(declared, check_metadata=True)
    except InvalidSchema:
        return None
    return ddl if same else None


def _evolved(old: pa.Field, column: pa.Field, vocab: DatasetVocabulary) -> pa.Field:
    """The column of the dataset as it is declared now."""
    kind = old.type if type_ddl(column.type) == type_ddl(old.type) else stored_type(column.type)
    # Rows always have an event time: whether it may be null is not for a manifest to say.
    nullable = old.nullable if old.name == vocab.event_time_column else column.nullable
    return old.with_type(kind).with_nullable(nullable)


def _system_names(vocab: DatasetVocabulary) -> set[str]:
    return {
        vocab.offset_column,
        vocab.operation_type_column,
        vocab.system_time_column,
        vocab.event_time_column,
    }
