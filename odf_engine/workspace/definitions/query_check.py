"""Static checks of the queries in definitions, before their events are appended. No engine runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import astuple

from odf_engine.base.lazy import LazyModule
from odf_engine.chain.normal_form import (
    BUILT_IN_ENGINES,
    DATAFUSION,
    INSTALL_DATAFUSION,
    SPARK,
    allowed_lateness,
    engine_version,
    stateful_query_error,
)
from odf_engine.chain.schema_evolution import read_declaration
from odf_engine.chain.state import ChainState
from odf_engine.data.odf_schema import columns_of_step
from odf_engine.errors import InvalidQuery, InvalidSchema
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import (
    AddPushSource,
    DatasetSnapshot,
    MetadataEvent,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    Sql,
    SqlQueryStep,
    kind_of,
)
from odf_engine.sql.lineage_model import ANY_COLUMN
from odf_engine.sql.query_text import attach_query_excerpt, with_backquotes
from odf_engine.sql.variables import find_variable
from odf_engine.workspace.definitions.definition import PlannedUpdate, error_context

if TYPE_CHECKING:
    from odf_engine.sql import query_lineage, repeatability
else:  # imports sqlglot
    query_lineage = LazyModule("odf_engine.sql.query_lineage")
    repeatability = LazyModule("odf_engine.sql.repeatability")


class _PlannedDataset(Protocol):
    @property
    def alias(self) -> DatasetAlias: ...

    @property
    def events(self) -> Sequence[MetadataEvent]: ...


def check_queries(plans: Iterable[_PlannedDataset], configured: Collection[str]) -> None:
    """Check the queries of events that are new in the chains of datasets.

    Preprocess queries run once, when data is ingested, so they need not be deterministic.

    Args:
        plans: the datasets and their new events, with queries in normal form.
        configured: names of the configured engines.

    Raises:
        InvalidQuery: an engine is unknown, a query for Spark contains a variable, or the query of a
            derivative dataset is not deterministic or has an invalid allowed lateness.
        Unsupported: DataFusion cannot run the query of a derivative dataset.
    """
    for plan in plans:
        with error_context(f"dataset {plan.alias}"):
            _check_events(plan.events, configured)


def _check_events(events: Sequence[MetadataEvent], configured: Collection[str]) -> None:
    for event in events:
        if isinstance(event, SetTransform):
            check_engine(event.transform.engine, configured)
            _check_variables(event.transform)
            _check_repeatable(event.transform)
            if event.transform.engine.lower() == DATAFUSION and DATAFUSION not in map(str.lower, configured):
                _check_stateless(event.transform)
            _check_lateness(event)
        elif isinstance(event, SetPollingSource | AddPushSource) and event.preprocess is not None:
            check_engine(event.preprocess.engine, configured, where="preprocess")
            _check_variables(event.preprocess)


def is_external(name: str, configured: Collection[str]) -> bool:
    """Return whether the queries for an engine run outside: a setting replaces built-in engines.

    Args:
        name: its name in the query; case is ignored.
        configured: names of the configured engines.
    """
    return name.lower() in {engine.lower() for engine in configured}


def check_engine(
    name: str, configured: Collection[str], kind: type[InvalidQuery] = InvalidQuery, where: str = "transform"
) -> None:
    """Check that the engine of a query is available: built in, or configured.

    Args:
        name: its name in the query; case is ignored.
        configured: names of the configured engines.
        kind: type of the error.
        where: the field of the event that has the query: ``transform`` or ``preprocess``.

    Raises:
        InvalidQuery: it is not.
    """
    if is_external(name, configured):
        return
    _check_installed(name, where, kind)
    if name.lower() not in BUILT_IN_ENGINES:
        available = {*BUILT_IN_ENGINES, *map(str.lower, configured)}
        raise kind(
            f"the query is for the engine '{name}', which is not configured",
            where=where,
            hint=f"use {' or '.join(sorted(available))}; {_describe_ways(name)}",
        )


def _check_installed(name: str, where: str, kind: type[InvalidQuery]) -> None:
    """Check that an engine is installed if it is an optional one.

    Raises:
        InvalidQuery: it is not.
    """
    if name.lower() == DATAFUSION and engine_version(DATAFUSION) is None:
        raise kind("the engine datafusion is not installed", where=where, hint=INSTALL_DATAFUSION)


def _check_stateless(transform: Sql) -> None:
    stateful_operation = repeatability.find_stateful_operation(with_backquotes(transform.queries or []))
    if stateful_operation is not None:
        raise stateful_query_error(stateful_operation)


_TRANSLATED: Final = ("datafusion", "flink", "risingwave")
_TRANSLATE: Final = "odf add --translate spark MANIFEST"


def _describe_ways(name: str) -> str:
    """Return the ways to run a transform for an engine that is not configured."""
    key = name.lower()
    configure = f"configure a running engine: odf config set engines.{key} grpc://HOST:PORT"
    if key not in _TRANSLATED:
        return f"or {configure}"
    run = f"run its image: odf config set engines.{key} container"
    return f"translate the query: {_TRANSLATE}; {run}; or {configure}"


def can_translate(snapshots: Sequence[DatasetSnapshot], configured: Collection[str]) -> bool:
    """Return whether a query of the definitions can be translated from a missing engine."""
    for event in (event for snapshot in snapshots for event in snapshot.metadata):
        query = event.transform if isinstance(event, SetTransform) else getattr(event, "preprocess", None)
        if query is None or query.engine.lower() not in _TRANSLATED:
            continue
        try:
            check_engine(query.engine, configured)
        except InvalidQuery:
            return True
    return False


def _check_repeatable(transform: Sql) -> None:
    steps, engine = transform.queries or [], transform.engine.lower()
    if engine == DATAFUSION:
        steps = with_backquotes(steps)
    if engine not in BUILT_IN_ENGINES or (word := repeatability.find_nonrepeatable(steps)) is None:
        return
    hint = "use system_time() for the time of the transaction, and columns of the inputs otherwise"
    if not word.text.endswith((")", "'", '"')):
        hint += f"; quote a column of this name: `{word.text}`"
    with attach_query_excerpt(steps):
        raise InvalidQuery(
            f"{word.text} is not deterministic, so the result cannot be verified",
            where=f"{_step_name(word.step, steps)}, line {word.line}, column {word.column}",
            hint=hint,
        )


def _step_name(index: int, steps: Sequence[SqlQueryStep]) -> str:
    return f"query step {index + 1} of {len(steps)}" if len(steps) > 1 else "query"


def _check_variables(transform: Sql) -> None:
    """Check that a query for Spark has no variable, which other engines for Spark's dialect replace."""
    steps = transform.queries or []
    if transform.engine.lower() != SPARK:
        return
    for index, step in enumerate(steps):
        if (variable := find_variable(step.query)) is not None:
            place = f"{_step_name(index, steps)}, line {variable.line}, column {variable.column}"
            with attach_query_excerpt(steps):
                raise InvalidQuery(variable.message, where=place, hint=variable.hint)


def _check_lateness(event: SetTransform) -> None:
    aliases = [query_input.alias or query_input.dataset_ref for query_input in event.inputs]
    for name in allowed_lateness(event.transform):
        if name not in aliases:
            raise InvalidQuery(
                f"the allowed lateness is for '{name}', which is not an input of the query",
                where="query",
                hint=f"use an alias of an input: {', '.join(aliases)}",
            )


_INPUT: Final = "input"
_NAME: Final = re.compile(r"\w+")
ACCEPT_COLUMNS: Final = "odf add --update --accept-columns MANIFEST"


def check_result_columns(update: PlannedUpdate) -> list[str]:
    """Check that the changed preprocess queries of a dataset return columns of its schema only.

    Queries whose columns cannot be resolved without an engine are not checked.

    Returns:
        The columns that are new in ``read.schema``, and neither returned nor used by the query.

    Raises:
        InvalidSchema: a query returns a new column; all following pulls would fail.
    """
    if update.entry is None:
        return []
    state = update.entry.dataset.state()
    declarations = [event for event in update.events if isinstance(event, SetDataSchema)]
    declared = read_declaration(declarations[-1] if declarations else state)
    if declared is None:
        return []
    known = {name.casefold() for name in (*declared.names, *astuple(state.vocabulary))}
    unused: list[str] = []
    with error_context(f"dataset {update.alias}"):
        for event in update.events:
            if isinstance(event, SetPollingSource | AddPushSource) and event.preprocess is not None:
                unused += _check_source_columns(event, event.preprocess, state, known)
    return unused


def _check_source_columns(
    event: SetPollingSource | AddPushSource, step: Sql, state: ChainState, known: set[str]
) -> list[str]:
    before = state.polling_source
    if isinstance(event, AddPushSource):
        before = state.push_sources.get(event.source_name)
    read = _column_names(event)
    lineage = query_lineage.trace_columns(with_backquotes(step.queries or []), {_INPUT: read})
    if lineage.problem or ANY_COLUMN in lineage.outputs:
        return []
    old = known | {name.casefold() for name in _column_names(before) or ()}
    new_in_file = {name.casefold(): name for name in read or () if name.casefold() not in old}
    # The engine names other expressions that have no alias.
    new = [name for name in lineage.outputs if _NAME.fullmatch(name) and name.casefold() not in known]
    if new:
        it = "it" if len(new) == 1 else "them"
        parts = "the preprocess query returns"
        if all(name.casefold() in new_in_file for name in new):
            parts = "read.schema declares and the preprocess query returns"
        raise InvalidSchema(
            f"new {'column' if len(new) == 1 else 'columns'} {', '.join(new)}:"
            f" {parts} {it}, but SetDataSchema lacks {it}",
            where=kind_of(event),
            hint=f"to add {it} to the missing parts too, run {ACCEPT_COLUMNS}",
        )
    sources = [*lineage.outputs.values(), lineage.rows]
    used = {column.column.casefold() for columns in sources for column in columns}
    return [name for folded, name in new_in_file.items() if folded not in used]


def _column_names(source: SetPollingSource | AddPushSource | None) -> list[str] | None:
    columns = None if source is None else columns_of_step(source.read)
    return None if columns is None else columns.names
