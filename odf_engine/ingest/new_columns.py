"""New columns of the sources of a root dataset: finds them, and adds them to all parts of the definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.base.config import parse_size
from odf_engine.base.files import translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import DATAFUSION
from odf_engine.chain.schema_evolution import declare_schema, declared_schema, read_declaration
from odf_engine.chain.state import ChainState
from odf_engine.data.ddl import parse_comments, parse_ddl, to_ddl
from odf_engine.data.odf_schema import columns_of_step, stored_schema
from odf_engine.data.schema_enforcement import finest_timestamp_unit, match_columns, with_timestamp_unit
from odf_engine.ingest.inference.file_inference import FileChoices
from odf_engine.ingest.inference.file_sample import infer_file, read_sample
from odf_engine.ingest.polling_source import sample_file
from odf_engine.ingest.prep_step import PreparedFile, PrepareLimits
from odf_engine.ingest.preprocess import INPUT, PreprocessContext, PreprocessedRows, preprocess, steps_of
from odf_engine.ingest.raw_query import FindEngine
from odf_engine.ingest.read.read_step import ReadOptions, read
from odf_engine.ingest.read.text_file import csv_file, first_row
from odf_engine.ingest.result_schema import drop_column, operation_column, result_schema
from odf_engine.metadata.model import (
    AddPushSource,
    Csv,
    DatasetSnapshot,
    ReadStep,
    SetDataSchema,
    SetPollingSource,
    Sql,
    SqlQueryStep,
    kind_of,
)
from odf_engine.spark.sql_types import spark_schema
from odf_engine.sql.query_extension import add_columns, mentions
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.declared_schema import add_source_columns
from odf_engine.workspace.definitions.definition import PlannedUpdate, accepts_operations, error_context
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession
    from odf_engine.spark.runtime.session import SparkRuntime

Source = SetPollingSource | AddPushSource
_SAMPLE_NAME: Final = "file.csv"


class AcceptedColumns(NamedTuple):
    """A definition with the new columns of its sources.

    Attributes:
        definition: the definition as a user writes it.
        update: the events to append, in one commit.
        columns: names of the columns that the dataset gets.
    """

    definition: DatasetSnapshot
    update: PlannedUpdate
    columns: list[str]


class _ExtendedSource(NamedTuple):
    source: Source
    columns: list[pa.Field]  # that the dataset does not have


@dataclass(frozen=True)
class ColumnAcceptance:
    """Adds new columns to a definition of a root dataset: to ``read.schema``, the query and the schema.

    New columns are those that the definition declares in ``read.schema``, and the chain does not. Without
    such a column they are those in the header of the file that the source gives, else those that the last
    change of the source declared. All columns of the result are new that the dataset does not have.

    Attributes:
        workspace: the workspace of the dataset.
        entry: the dataset.
        runtime: a started Spark.
        reporter: receives phases and amounts; checked for cancellation.
        environment: values for ``${{ env.NAME }}`` in the request.
        find_engine: returns the external engines of preprocess queries.
        fetches: whether the source may be fetched.
    """

    workspace: Workspace
    entry: DatasetEntry
    runtime: SparkRuntime
    reporter: Reporter
    environment: Mapping[str, str]
    find_engine: FindEngine
    fetches: bool = True

    def plan(self, definition: DatasetSnapshot) -> AcceptedColumns:
        """Return the definition with the new columns, and its changes. Nothing is committed.

        Raises:
            InvalidQuery: a column cannot be added to the preprocess query automatically.
            InvalidSchema: columns are missing, or have another type than in the dataset.
            OdfError: the definition is invalid, or the source cannot be fetched.
        """
        planned = self._plan_update(definition)  # An invalid definition fails before the source is fetched.
        state = self.entry.dataset.state()
        stored = declared_schema(state)
        if stored is None:
            return AcceptedColumns(definition, planned, [])
        listed = next((event for event in planned.events if isinstance(event, SetDataSchema)), None)
        declared = read_declaration(listed or state) or stored
        events, new = list(definition.metadata), dict[str, pa.Field]()
        session = self.runtime.session()
        with (
            error_context(f"dataset {self.entry.alias}"),
            translate_os_errors(self.workspace.odf, "the definition was not changed"),
            job_scratch_folder(self.workspace.odf / "cache") as folder,
        ):
            extension = _SourceExtension(self, session, state, stored, declared, folder)
            for at, event in enumerate(events):
                if isinstance(event, SetPollingSource | AddPushSource):
                    events[at], columns = extension.extend(event)
                    new |= {field.name.casefold(): field for field in columns}
        complete = replace(definition, metadata=_with_listed(events, list(new.values())))
        schema = add_source_columns(declared, new.values(), (), state.vocabulary)
        names = [name for name in schema.names if name not in stored.names]
        if not new:
            return AcceptedColumns(complete, self._plan_update(complete), names)
        declaration = declare_schema(schema, listed or state, odf=False)
        others = [event for event in events if not isinstance(event, SetDataSchema)]
        update = self._plan_update(replace(definition, metadata=[*others, declaration]))
        return AcceptedColumns(complete, update, names)

    def _plan_update(self, definition: DatasetSnapshot) -> PlannedUpdate:
        (update,) = self.workspace.update([definition], dry_run=True, accepts_columns=True)
        return update


def _with_listed(events: Sequence[Any], new: Sequence[pa.Field]) -> list[Any]:
    """Return the events of a definition with new columns in its SetDataSchema, if it has one."""
    complete: list[Any] = []
    for event in events:
        if isinstance(event, SetDataSchema) and event.ddl is not None:
            event = replace(event, ddl=[*event.ddl, *to_ddl(pa.schema(new))])
        elif isinstance(event, SetDataSchema) and event.odf_schema is not None:
            fields = [*event.odf_schema.fields, *stored_schema(pa.schema(new)).fields]
            event = replace(event, odf_schema=replace(event.odf_schema, fields=fields))
        complete.append(event)
    return complete


@dataclass(frozen=True)
class _SourceExtension:
    """Adds new columns to a source.

    Attributes:
        context: the dataset.
        session: Spark session.
        state: the state of the chain.
        stored: its schema.
        declared: the schema after the changes of the definition.
        folder: a folder of temporary files.
    """

    context: ColumnAcceptance
    session: SparkSession
    state: ChainState
    stored: pa.Schema
    declared: pa.Schema
    folder: Path

    def extend(self, source: Source) -> _ExtendedSource:
        """Return the source with its new columns."""
        columns = columns_of_step(source.read)
        versions = list(self._versions(source))
        added = self._added_since(columns, versions[:1])
        if added or not isinstance(source, SetPollingSource) or not self.context.fetches:
            return self._complete(source, added or self._added_since(columns, versions[1:2]), None)
        with self._sample(source) as file:
            if file is not None:
                source, added = self._with_header_columns(source, columns, file)
            return self._complete(source, added or self._added_since(columns, versions[1:2]), file)

    def _versions(self, source: Source) -> Iterator[ReadStep]:
        """Yield the read steps of the source in the chain, newest first."""
        dataset, name = self.context.entry.dataset, getattr(source, "source_name", None)
        for row in dataset.list_blocks(self.state.blocks, kinds={kind_of(source)}):
            event = dataset.block(row.hash).block.event
            is_source = isinstance(event, SetPollingSource | AddPushSource)
            if is_source and getattr(event, "source_name", None) == name:
                yield event.read

    def _added_since(self, columns: pa.Schema | None, before: Sequence[ReadStep]) -> list[str]:
        """Return the names of columns that an earlier read step and the dataset do not have."""
        if columns is None or not before:
            return []
        earlier = columns_of_step(before[0])
        known = {name.casefold() for name in (*(earlier.names if earlier else ()), *self.stored.names)}
        return [name for name in columns.names if name.casefold() not in known]

    @contextmanager
    def _sample(self, source: SetPollingSource) -> Iterator[PreparedFile | None]:
        context = self.context
        with sample_file(
            context.workspace, context.entry, source, context.runtime, context.reporter, context.environment
        ) as file:
            yield None if file is None or file.path.stat().st_size == 0 else file

    def _with_header_columns(
        self, source: SetPollingSource, columns: pa.Schema | None, file: PreparedFile
    ) -> tuple[SetPollingSource, list[str]]:
        """Return the source with the columns of a header that it does not declare, and their names.

        Other formats match columns by name, and a source may leave out columns. Columns that are not
        declared are not new there.
        """
        step = source.read
        if columns is None or not isinstance(step, Csv) or not step.header:
            return source, []
        header = first_row(csv_file(step, file))
        known = {name.casefold() for name in columns.names}
        places = [at for at, name in enumerate(header) if name.strip().casefold() not in known]
        if len(places) != len(header) - len(columns):
            return source, []  # Columns are renamed or missing: reading the file reports it.
        types = self._infer_types(step, file)
        if len(types) != len(header):  # Reading the rows reports it.
            types = ["STRING"] * len(header)
        fields = {at: parse_ddl([column_ddl(header[at].strip(), types[at])]).field(0) for at in places}
        return replace(source, read=insert_columns(step, columns, fields)), [
            field.name for field in fields.values()
        ]

    def _infer_types(self, step: Csv, file: PreparedFile) -> list[str]:
        """Return the types of the columns of a CSV file as DDL."""
        reporter = self.context.reporter
        separator = None if step.separator is None else step.separator.replace("\\t", "\t")
        choices = FileChoices(separator or ",", step.quote or '"', step.encoding, header=True, unpivot=False)
        inferred = infer_file(read_sample(file.path, _SAMPLE_NAME, reporter), choices, reporter)
        # The read step has one format for all columns. Values in another one can be cast by the query.
        return ["STRING" if column.form else column.type for column in inferred.columns]

    def _complete(self, source: Source, added: Sequence[str], file: PreparedFile | None) -> _ExtendedSource:
        """Return the source whose query returns the added columns, with the new columns of the result."""
        columns = columns_of_step(source.read)
        frame = self._frame(source.read, columns, file)
        if frame is None:
            return _ExtendedSource(source, [])
        step = source.preprocess
        result = self._preprocess(frame, step)
        if step is not None:
            steps, returned = steps_of(step), {name.casefold() for name in result.schema.names}
            missing = [
                name for name in added if name.casefold() not in returned and not mentions(steps, name)
            ]
            if missing:
                quote = '"' if step.engine.lower() == DATAFUSION else "`"
                with error_context("preprocess"):
                    step = _with_steps(step, add_columns(steps, INPUT, missing, quote))
                source = replace(source, preprocess=step)
                result = self._preprocess(frame, step)
        return _ExtendedSource(source, self._new_columns(source, columns, result.schema))

    def _frame(
        self, step: ReadStep, columns: pa.Schema | None, file: PreparedFile | None
    ) -> DataFrame | None:
        """Return rows as the step reads them, or None if their columns are not known."""
        context, session = self.context, self.session
        if file is not None and (columns is None or isinstance(step, Csv)):
            limits = PrepareLimits.of(context.workspace.config)
            plan = read(session, step, file, self.folder, context.reporter, ReadOptions(limits))
            return None if plan is None else plan.frame
        return None if columns is None else session.createDataFrame([], spark_schema(columns))

    def _preprocess(self, frame: DataFrame, step: Sql | None) -> PreprocessedRows:
        context = self.context
        memory = parse_size(context.workspace.config.datafusion.memory)
        shared = PreprocessContext(
            self.session, self.folder, memory, context.reporter, context.find_engine, self.declared
        )
        result = preprocess(shared, frame, step)
        assert result is not None  # a result without rows has the dataset columns
        return result

    def _new_columns(self, source: Source, columns: pa.Schema | None, result: pa.Schema) -> list[pa.Field]:
        """Return the columns of a result that the dataset does not have.

        Raises:
            InvalidSchema: other columns differ from the dataset.
        """
        vocab = self.state.vocabulary
        operations = operation_column(result.names, vocab) if accepts_operations(source) else None
        result = drop_column(result, operations)
        read_columns = None if source.preprocess is not None else columns and drop_column(columns, operations)
        unit = "ms" if columns is None else finest_timestamp_unit(columns.types)
        fields = read_columns or pa.schema(
            [field.with_type(with_timestamp_unit(field.type, unit)) for field in result]
        )
        places = match_columns(self.declared.names, fields.names)
        new = [
            field.with_nullable(True) for field, place in zip(fields, places, strict=True) if place is None
        ]
        if isinstance(source, SetPollingSource) and (source.preprocess is not None or columns is not None):
            complete = add_source_columns(self.declared, new, (), vocab)
            result_schema(result, read_columns, complete, vocab, unit)
        return new


def column_ddl(name: str, data_type: str) -> str:
    return "`" + name.replace("`", "``") + "` " + data_type


def insert_columns(step: Csv, columns: pa.Schema, fields: Mapping[int, pa.Field]) -> Csv:
    """Return the read step with further columns, by their positions in the new list."""
    if not step.schema:
        assert step.odf_schema is not None
        declared = list(step.odf_schema.fields)
        for at, field in sorted(fields.items()):
            declared.insert(at, stored_schema(pa.schema([field])).fields[0])
        return replace(step, odf_schema=replace(step.odf_schema, fields=declared))
    entries = list(step.schema)
    if len(entries) != len(columns):  # an entry has several columns
        entries = to_ddl(columns, parse_comments(entries))
    for at, field in sorted(fields.items()):
        entries[at:at] = to_ddl(pa.schema([field]))
    return replace(step, schema=entries)


def _with_steps(step: Sql, steps: Sequence[SqlQueryStep]) -> Sql:
    if step.queries is None:
        return replace(step, query=steps[0].query)
    return replace(step, queries=list(steps))
