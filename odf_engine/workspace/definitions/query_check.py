"""Static checks of the queries in definitions, before their events are appended. No engine runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

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
from odf_engine.errors import InvalidQuery
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import (
    AddPushSource,
    DatasetSnapshot,
    MetadataEvent,
    SetPollingSource,
    SetTransform,
    Sql,
    SqlQueryStep,
)
from odf_engine.sql.query_text import attach_query_excerpt, with_backquotes
from odf_engine.sql.variables import find_variable
from odf_engine.workspace.definitions.definition import error_context

if TYPE_CHECKING:
    from odf_engine.sql import repeatability
else:  # imports sqlglot
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
