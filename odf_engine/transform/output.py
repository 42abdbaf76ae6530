"""What a query's result has to be, to become rows of a dataset (the output contract)."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from odf_engine.data.changelog import Op
from odf_engine.data.conform import find_columns, stored_type
from odf_engine.data.ddl import type_ddl
from odf_engine.data.kernels import pc
from odf_engine.data.slices import slice_schema
from odf_engine.errors import BadData, InvalidQuery
from odf_engine.metadata.model import DatasetVocabulary


class Contract:
    """The columns of a result.

    Args:
        own: the query's own columns.
        vocab: the dataset's column names.
        declared: the schema that the dataset has; None before it has one.

    Attributes:
        schema: of the slice.
        event_time: what the query calls the event time.
        operation: what the query calls the operation; None when it does not give one.

    Raises:
        InvalidQuery: no event time, a column of a reserved name, or other columns than the dataset has.
    """

    def __init__(self, own: pa.Schema, vocab: DatasetVocabulary, declared: pa.Schema | None) -> None:
        self._own = own
        self._vocab = vocab
        self.operation = _one(own, vocab.operation_type_column)
        _check_columns(own, vocab)
        self.event_time = str(_one(own, vocab.event_time_column))
        data = pa.schema([field.with_nullable(True) for field in own if field.name != self.operation])
        if declared is not None:
            _check_same(data, declared, vocab)
        self.schema = declared if declared is not None else slice_schema(data, vocab)

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Lets pass rows that have an event time.

        Raises:
            BadData: shows the first that has none.
        """
        times = batch.column(self.event_time)
        if times.null_count:
            row = (
                batch.slice(pc.index(times.is_null(), True).as_py(), 1).select(self._own.names).to_pylist()[0]
            )
            shown = ", ".join(f"{column}={value}" for column, value in list(row.items())[:8])
            raise BadData(
                f"the event time '{self.event_time}' of a result row is null: {shown}",
                where="query",
                hint=f"filter such rows out, or give them a time: coalesce({self.event_time}, …)",
            )
        return batch

    def finished(self, batch: pa.RecordBatch, operations: pa.Array) -> pa.RecordBatch:
        """The query's own columns, with these operations unless it gives them itself."""
        batch = batch.select(self._own.names)
        if self.operation is not None:
            return batch
        return batch.append_column(self._vocab.operation_type_column, operations)


def _one(schema: pa.Schema, name: str) -> str | None:
    """What the schema calls a column, whatever the case of its letters."""
    (place,) = find_columns(schema.names, [name])
    return None if place is None else schema.names[place]


def _check_columns(own: pa.Schema, vocab: DatasetVocabulary) -> None:
    for name in (vocab.offset_column, vocab.system_time_column):
        if (found := _one(own, name)) is not None:
            raise InvalidQuery(
                f"the query gives a column '{found}', which the engine fills in itself",
                where="query",
                hint="leave it out, or give it another name with AS",
            )
    time = _one(own, vocab.event_time_column)
    if time is None:
        raise InvalidQuery(
            f"the query gives no event time: a column '{vocab.event_time_column}' is missing",
            where="query",
            hint=f"its columns are {', '.join(own.names)}; select one AS {vocab.event_time_column}",
        )
    kind = own.field(time).type
    if not (types.is_timestamp(kind) or types.is_date(kind)):
        raise InvalidQuery(
            f"the event time '{time}' is {type_ddl(kind)}, not TIMESTAMP or DATE",
            where="query",
            hint=f"CAST({time} AS TIMESTAMP) AS {time}",
        )
    operation = _one(own, vocab.operation_type_column)
    if operation is not None and not types.is_integer(own.field(operation).type):
        raise InvalidQuery(
            f"the operation '{operation}' is {type_ddl(own.field(operation).type)}, not INT",
            where="query",
            hint=f"operations are {', '.join(f'{each:d} ({each.code})' for each in Op)}",
        )


def grown(declared: pa.Schema, made: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    """The schema of a dataset with the columns that a query gives and it does not have yet, at its end.

    Args:
        declared: the schema that the dataset has.
        made: of the slices that the query makes.
        vocab: the dataset's column names.

    Raises:
        InvalidQuery: the query lacks columns, or gives them in other types.
    """
    wrong, new = _differences(made, declared, vocab)
    if wrong:
        raise InvalidQuery(
            "the query's columns are not those of the dataset: " + "; ".join(wrong),
            where="query",
            hint="give them as they were, with CAST(… AS …) AS name, or make a new dataset",
        )
    return pa.schema([*declared, *(made.field(name).with_nullable(True) for name in new)], declared.metadata)


def _check_same(data: pa.Schema, declared: pa.Schema, vocab: DatasetVocabulary) -> None:
    wrong, new = _differences(data, declared, vocab)
    if not wrong and not new:
        return
    hint = "name the columns in the query, instead of SELECT *"
    if not wrong:
        hint += ", or take in what is new: odf add --update MANIFEST --accept-columns"
    raise InvalidQuery(
        "the query's columns are not those of the dataset: "
        + "; ".join([*wrong, *(f"column '{name}' is new" for name in new)]),
        where="query",
        hint=hint,
    )


def _differences(
    data: pa.Schema, declared: pa.Schema, vocab: DatasetVocabulary
) -> tuple[list[str], list[str]]:
    """What is missing or of another type, as people read it; and the names of columns that are new."""
    system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    wanted = pa.schema([field for field in declared if field.name not in system])
    given = pa.schema([field for field in data if field.name not in system])
    wrong: list[str] = []
    places = find_columns(given.names, wanted.names)
    for field, place in zip(wanted, places, strict=True):
        if place is None:
            wrong.append(f"column '{field.name}' is missing")
        elif stored_type(given.field(place).type) != field.type:
            kind = type_ddl(given.field(place).type)
            wrong.append(f"column '{field.name}' was {type_ddl(field.type)}, is {kind}")
    return wrong, [name for at, name in enumerate(given.names) if at not in places]
