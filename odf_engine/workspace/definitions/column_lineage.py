"""Column lineage across the datasets of a workspace, as a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from odf_engine.base.lazy import LazyModule
from odf_engine.chain.normal_form import BUILT_IN_ENGINES, DATAFUSION
from odf_engine.chain.state import ChainState, parse_column_names
from odf_engine.data.odf_schema import columns_of_step
from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddPushSource,
    DatasetVocabulary,
    SetPollingSource,
    SetTransform,
    Sql,
    SqlQueryStep,
)
from odf_engine.sql.lineage_model import (
    ANY_COLUMN,
    ColumnLineage,
    InputColumn,
    TransformationType,
    unknown_lineage,
)
from odf_engine.sql.query_text import with_backquotes
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import accepts_operations, has_read_schema
from odf_engine.workspace.documents.private_source import local_state
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.sql import query_lineage
else:  # imports sqlglot
    query_lineage = LazyModule("odf_engine.sql.query_lineage")

SOURCE: Final = "input"
"""Name of the input of a root dataset: the data that were read, before the preprocess query."""
_MAX_DEPTH: Final = 100


class LineageInput(msgspec.Struct, frozen=True):
    """An input of a dataset.

    Attributes:
        alias: its alias in the query.
        dataset: its id.
        name: its name in the workspace; its alias if it is missing.
        missing: whether the workspace does not have it.
    """

    alias: str
    dataset: str
    name: str
    missing: bool = False


class DatasetColumns(msgspec.Struct, frozen=True):
    """The columns of a dataset and their lineage.

    Attributes:
        id: the id of the dataset.
        name: its name in the workspace.
        columns: all columns, in order, or [] if they are unknown.
        inputs: its inputs; a root dataset has none.
        lineage: the lineage of the columns. Each :class:`InputColumn` refers to an input by its alias; for a
            root dataset the input is :data:`SOURCE`.
    """

    id: str
    name: str
    columns: list[str]
    inputs: list[LineageInput]
    lineage: ColumnLineage


def dataset_lineage(workspace: Workspace, entry: DatasetEntry) -> ColumnLineage:
    """Return the lineage of a dataset's columns according to its current query.

    ``offset`` and ``system_time`` have no inputs. ``problem`` states what could not be resolved; the affected
    columns are ``unknown``.

    Raises:
        OdfError: the chain of the dataset cannot be read.
    """
    return _LineageReader(workspace).read(entry).lineage


def read_columns(workspace: Workspace, entries: Iterable[DatasetEntry] | None = None) -> list[DatasetColumns]:
    """Return the columns of all datasets, or of ``entries``.

    An unreadable dataset has no columns, but a problem.
    """
    reader = _LineageReader(workspace)
    return [reader.read_safely(entry) for entry in (workspace.datasets() if entries is None else entries)]


class _LineageReader:
    def __init__(self, workspace: Workspace) -> None:
        self._entries = {entry.id: entry for entry in workspace.datasets()}
        self._known: dict[DatasetId, DatasetColumns] = {}
        self._reading: list[DatasetId] = []

    def read_safely(self, entry: DatasetEntry) -> DatasetColumns:
        """Return the columns of a dataset; if it is unreadable, no columns and the problem."""
        try:
            return self.read(entry)
        except OdfError as error:
            return DatasetColumns(
                str(entry.id), str(entry.alias), [], [], ColumnLineage({}, [], error.format_line)
            )

    def read(self, entry: DatasetEntry) -> DatasetColumns:
        """Return the columns of a dataset.

        Raises:
            OdfError: the chain of the dataset cannot be read.
        """
        if entry.id not in self._known:
            self._reading.append(entry.id)
            try:
                self._known[entry.id] = self._read(entry)
            finally:
                self._reading.pop()
        return self._known[entry.id]

    def _read(self, entry: DatasetEntry) -> DatasetColumns:
        state = local_state(entry.dataset)
        if state.transform is None:
            lineage, inputs = _root_lineage(state), []
        else:
            inputs = [self._lineage_input(item.alias, item.dataset_ref) for item in state.transform.inputs]
            lineage = self._of_derivative(state, state.transform)
        names = _declared_columns(state) or ([] if ANY_COLUMN in lineage.outputs else list(lineage.outputs))
        return DatasetColumns(str(entry.id), str(entry.alias), names, inputs, lineage)

    def _lineage_input(self, alias: str | None, ref: str) -> LineageInput:
        entry = self._entry(ref)
        name = str(entry.alias) if entry is not None else alias or ref
        return LineageInput(alias or ref, ref, name, entry is None)

    def _entry(self, ref: str) -> DatasetEntry | None:
        try:
            return self._entries.get(DatasetId.parse(ref))
        except OdfError:
            return None

    def _of_derivative(self, state: ChainState, transform: SetTransform) -> ColumnLineage:
        inputs: dict[str, list[str] | None] = {}
        vocabs: dict[str, DatasetVocabulary] = {}
        for item in transform.inputs:
            alias, entry = item.alias or item.dataset_ref, self._entry(item.dataset_ref)
            inputs[alias], vocabs[alias] = self._columns(entry)
        declared = _declared_columns(state)
        data_columns = (
            None
            if declared is None
            else [name for name in declared if name not in _generated_columns(state.vocabulary)]
        )
        if transform.transform.engine.casefold() not in BUILT_IN_ENGINES:
            problem = f"unsupported query engine '{transform.transform.engine}': lineage unknown"
            lineage = unknown_lineage(inputs, data_columns, problem)
        else:
            tables = [table.name for table in transform.transform.temporal_tables or ()]
            times = {name: vocabs.get(name, state.vocabulary).event_time_column for name in tables}
            lineage = query_lineage.trace_columns(
                _steps(transform.transform), inputs, outputs=data_columns, times=times
            )
        return _add_system_columns(lineage, state.vocabulary, vocabs, inputs, declared)

    def _columns(self, entry: DatasetEntry | None) -> tuple[list[str] | None, DatasetVocabulary]:
        """Return the columns of an input, or None if they are unknown, and its vocabulary."""
        if entry is None or entry.id in self._reading or len(self._reading) > _MAX_DEPTH:
            return None, DEFAULT_VOCABULARY
        try:
            state = entry.dataset.state()
            names = _declared_columns(state) or self.read(entry).columns
        except OdfError:
            return None, DEFAULT_VOCABULARY
        return names or None, state.vocabulary


def _steps(query: Sql) -> list[SqlQueryStep]:
    steps = query.queries or [SqlQueryStep(query=query.query or "")]
    return with_backquotes(steps) if query.engine.casefold() == DATAFUSION else steps


def _declared_columns(state: ChainState) -> list[str] | None:
    """Return the columns of the schema in the chain, or None."""
    return parse_column_names(state.schema, state.odf_schema)


def _generated_columns(vocab: DatasetVocabulary) -> tuple[str, str]:
    """Return the columns that every dataset generates."""
    return vocab.offset_column, vocab.system_time_column


def _add_system_columns(
    lineage: ColumnLineage,
    vocab: DatasetVocabulary,
    vocabs: Mapping[str, DatasetVocabulary],
    inputs: Mapping[str, Sequence[str] | None],
    declared: Sequence[str] | None,
) -> ColumnLineage:
    """Return the lineage with the system columns of the dataset, which replace its inputs' columns."""
    own = {name.casefold() for name in declared or ()}
    input_system_columns = {
        name for name, value in lineage.outputs.items() if _is_input_system_column(name, value, vocabs)
    }
    generated = {name.casefold() for name in _generated_columns(vocab)}
    remaining = {
        name: value
        for name, value in lineage.outputs.items()
        if name.casefold() not in generated and (name not in input_system_columns or name.casefold() in own)
    }
    operation = vocab.operation_type_column
    spelling = {name.casefold(): name for name in remaining}
    operation_inputs = remaining.pop(spelling.pop(operation.casefold(), ""), None) or _operation_inputs(
        lineage, vocabs, inputs
    )
    event_time = spelling.get(vocab.event_time_column.casefold())
    outputs: dict[str, list[InputColumn]] = {
        vocab.offset_column: [],
        operation: operation_inputs,
        vocab.system_time_column: [],
    }
    if event_time is not None:
        outputs[event_time] = remaining.pop(event_time)
    outputs |= remaining
    if declared is not None:
        by_name = {name.casefold(): value for name, value in outputs.items()}
        extra = {name: value for name, value in outputs.items() if name.casefold() not in own}
        outputs = {name: by_name.get(name.casefold(), []) for name in declared} | extra
    return replace(lineage, outputs=outputs)


def _is_input_system_column(
    name: str, value: Sequence[InputColumn], vocabs: Mapping[str, DatasetVocabulary]
) -> bool:
    """Return whether this is a system column of an input, which a dataset does not store."""
    return bool(value) and all(
        part.how == "identity"
        and part.column.casefold() == name.casefold()
        and part.column in (*_generated_columns(vocabs[part.input]), vocabs[part.input].operation_type_column)
        for part in value
    )


def _operation_inputs(
    lineage: ColumnLineage,
    vocabs: Mapping[str, DatasetVocabulary],
    inputs: Mapping[str, Sequence[str] | None],
) -> list[InputColumn]:
    """Return the lineage of the operation column if the query does not select it: all inputs' columns."""
    by_row = len(inputs) == 1 and not any(row.how in ("group_by", "window", "join") for row in lineage.rows)
    how = "unknown" if lineage.problem else "identity" if by_row else "transformation"
    return [InputColumn(alias, vocab.operation_type_column, how) for alias, vocab in vocabs.items()]


def _root_lineage(state: ChainState) -> ColumnLineage:
    """Return the lineage of a root dataset's columns: the columns of its sources, before their queries."""
    sources = [item for item in (state.polling_source, *state.push_sources.values()) if item is not None]
    declared = _declared_columns(state)
    generated = {*_generated_columns(state.vocabulary), state.vocabulary.operation_type_column}
    data_columns = None if declared is None else [name for name in declared if name not in generated]
    outputs: dict[str, list[InputColumn]] = {name: [] for name in declared or (state.vocabulary.offset_column,
        state.vocabulary.operation_type_column, state.vocabulary.system_time_column)}  # fmt: skip
    rows: list[InputColumn] = []
    problems: list[str] = []
    for source in sources:
        source_lineage = _source_lineage(source, data_columns, state.vocabulary.operation_type_column)
        for name, value in source_lineage.outputs.items():
            if declared is None or name in outputs or name == ANY_COLUMN:
                outputs[name] = list(dict.fromkeys([*outputs.get(name, ()), *value]))
        rows += [*source_lineage.rows, *_key_inputs(source, source_lineage)]
        problems += [source_lineage.problem] if source_lineage.problem else []
    return ColumnLineage(outputs, list(dict.fromkeys(rows)), "; ".join(problems) or None)


def _key_inputs(source: SetPollingSource | AddPushSource, lineage: ColumnLineage) -> list[InputColumn]:
    """Return the lineage of the primary key, which determines the rows that a merge adds."""
    keys: list[str] = getattr(source.merge, "primary_key", [])
    by_name = {name.casefold(): value for name, value in lineage.outputs.items()}
    parts = [part for key in keys for part in by_name.get(key.casefold(), ())]
    return [InputColumn(part.input, part.column, "filter") for part in parts]


def _source_lineage(
    source: SetPollingSource | AddPushSource, data_columns: Sequence[str] | None, operation: str
) -> ColumnLineage:
    read = _read_columns(source)
    if source.preprocess is None:
        names = list(data_columns if data_columns is not None else read or [ANY_COLUMN])
        if (
            data_columns is not None
            and accepts_operations(source)
            and (read is None or operation.casefold() in map(str.casefold, read))
        ):
            names.append(operation)  # the rows contain their operation
        spelling = {name.casefold(): name for name in read or names}
        return ColumnLineage(
            {name: [InputColumn(SOURCE, spelling[name.casefold()], "identity")] for name in names
             if name.casefold() in spelling}, [],
        )  # fmt: skip
    inputs = {SOURCE: read}
    if source.preprocess.engine.casefold() not in BUILT_IN_ENGINES:
        problem = f"unsupported query engine '{source.preprocess.engine}': lineage unknown"
        return unknown_lineage(inputs, data_columns, problem)
    return query_lineage.trace_columns(_steps(source.preprocess), inputs, outputs=data_columns)


def _read_columns(source: SetPollingSource | AddPushSource) -> list[str] | None:
    """Return the columns that a source declares, or None if they are inferred from the data."""
    if not has_read_schema(source.read):
        return None
    try:
        columns = columns_of_step(source.read)
    except OdfError:
        return None
    return None if columns is None else columns.names


ROWS: Final = ""
"""Column name that represents the set of rows of a dataset."""
_STRENGTH: Final[dict[TransformationType, int]] = {
    "identity": 0,
    "transformation": 1,
    "aggregation": 2,
    "unknown": 3,
}


class ColumnRef(NamedTuple):
    """A column of a dataset, by the id of the dataset.

    ``source:`` with the id of a root dataset represents the data that it reads, before its query.
    """

    dataset: str
    column: str


class ColumnEdge(NamedTuple):
    """A column that contributes to another one, or to the selection of rows if the target is :data:`ROWS`."""

    source: ColumnRef
    target: ColumnRef
    how: TransformationType


class ReachableColumn(NamedTuple):
    """A column that is connected with another one.

    Attributes:
        column: the column.
        how: the strongest transformation on the path.
        steps: the number of datasets on the path; 1 for a neighbour.
    """

    column: ColumnRef
    how: TransformationType
    steps: int


class ColumnGraph:
    """Columns and the edges between them.

    Attributes:
        datasets: the columns of each dataset by its id. A missing input has the columns that queries refer
            to. A root dataset has a source with the columns that it reads.
        edges: all edges.
    """

    def __init__(self, datasets: Sequence[DatasetColumns]) -> None:
        self.datasets: dict[str, DatasetColumns] = {dataset.id: dataset for dataset in datasets}
        self.edges: list[ColumnEdge] = []
        self._edges_to: dict[ColumnRef, list[ColumnEdge]] = {}
        self._edges_from: dict[ColumnRef, list[ColumnEdge]] = {}
        self._spelled = {
            dataset.id: {name.casefold(): name for name in dataset.columns} for dataset in datasets
        }
        for dataset in datasets:
            self._add(dataset)

    def _add(self, reader: DatasetColumns) -> None:
        sources = {item.alias: item.dataset for item in reader.inputs}
        for target, value in [*reader.lineage.outputs.items(), (ROWS, reader.lineage.rows)]:
            for part in value:
                source = sources.get(part.input) if reader.inputs else source_id(reader.id)
                if source is not None:
                    self._add_edge(
                        ColumnEdge(
                            self._column_ref(source, part, reader), ColumnRef(reader.id, target), part.how
                        )
                    )

    def _add_edge(self, edge: ColumnEdge) -> None:
        self.edges.append(edge)
        self._edges_to.setdefault(edge.target, []).append(edge)
        self._edges_from.setdefault(edge.source, []).append(edge)

    def _column_ref(self, dataset: str, part: InputColumn, reader: DatasetColumns) -> ColumnRef:
        known = self.datasets.get(dataset)
        if known is None:
            name = next(
                (item.name for item in reader.inputs if item.dataset == dataset),
                reader.name,
            )
            known = DatasetColumns(dataset, name, [], [], ColumnLineage({}, []))
            self.datasets[dataset] = known
        spelled = self._spelled.setdefault(dataset, {})
        if part.column.casefold() not in spelled:
            spelled[part.column.casefold()] = part.column
            known.columns.append(part.column)
        return ColumnRef(dataset, spelled[part.column.casefold()])

    def is_in_workspace(self, dataset: str) -> bool:
        """Return whether this is a dataset of the workspace, not a source or a missing input."""
        known = self.datasets.get(dataset)
        return known is not None and not dataset.startswith(_SOURCE_PREFIX) and bool(known.lineage.outputs)

    def inputs_of(self, column: ColumnRef) -> list[ColumnEdge]:
        """Return the edges to a column, or to the rows of a dataset."""
        return self._edges_to.get(column, [])

    def outputs_of(self, column: ColumnRef) -> list[ColumnEdge]:
        """Return the edges from a column."""
        return self._edges_from.get(column, [])

    def upstream(self, *columns: ColumnRef) -> dict[ColumnRef, ReachableColumn]:
        """Return all columns that contribute to these columns, nearest first."""
        return self._reach(columns, self._edges_to, up=True)

    def downstream(self, *columns: ColumnRef) -> dict[ColumnRef, ReachableColumn]:
        """Return all columns and sets of rows that these columns contribute to, nearest first."""
        return self._reach(columns, self._edges_from, up=False)

    def _reach(
        self, columns: Sequence[ColumnRef], edges: Mapping[ColumnRef, list[ColumnEdge]], *, up: bool
    ) -> dict[ColumnRef, ReachableColumn]:
        reachable_columns: dict[ColumnRef, ReachableColumn] = {}
        todo = [ReachableColumn(column, "identity", 0) for column in columns]
        while todo:
            current, todo = todo, []
            for reach in current:
                for edge in edges.get(reach.column, ()):
                    column = edge.source if up else edge.target
                    how = _stronger(reach.how, edge.how)
                    old = reachable_columns.get(column)
                    if old is None:
                        reachable_columns[column] = ReachableColumn(column, how, reach.steps + 1)
                        todo.append(reachable_columns[column])
                    elif _stronger(old.how, how) != old.how:
                        reachable_columns[column] = old._replace(how=_stronger(old.how, how))
                        todo.append(reachable_columns[column])  # propagate the stronger transformation
        return reachable_columns


_SOURCE_PREFIX: Final = "source:"


def source_id(dataset: str) -> str:
    """Return the id that represents the source of a root dataset."""
    return _SOURCE_PREFIX + dataset


def is_source(dataset: str) -> bool:
    """Return whether this id represents the source of a root dataset."""
    return dataset.startswith(_SOURCE_PREFIX)


def _stronger(one: TransformationType, other: TransformationType) -> TransformationType:
    """Return the stronger transformation; one that affects rows is returned unchanged."""
    if other not in _STRENGTH:
        return other
    return max(one, other, key=lambda how: _STRENGTH.get(how, 0)) if one in _STRENGTH else one


def build_column_graph(workspace: Workspace, around: Iterable[DatasetId] | None = None) -> ColumnGraph:
    """Return the graph of all datasets, or of the datasets connected with ``around``."""
    entries = workspace.datasets()
    if around is not None:
        graph = DatasetGraph(workspace.summaries(entries))
        ids = set(around)
        for dataset in list(ids):
            ids |= graph.upstream(dataset) | graph.downstream(dataset)
        entries = [entry for entry in entries if entry.id in ids]
    return ColumnGraph(read_columns(workspace, entries))
