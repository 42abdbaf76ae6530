"""Static checks of the queries in definitions, before their events are appended. No engine runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from odf_engine.chain.normal_form import SPARK
from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import AddPushSource, MetadataEvent, SetPollingSource, SetTransform, Sql
from odf_engine.sql.query_text import attach_query_excerpt


def check_queries(events: Sequence[MetadataEvent], configured: Collection[str]) -> None:
    """Check the queries of events that are new in a chain.

    Preprocess queries run once, when data is ingested, so they need not be deterministic.

    Args:
        events: the events, with queries in normal form.
        configured: names of the configured engines.

    Raises:
        InvalidQuery: an engine is unknown, or the query of a derivative dataset is not deterministic.
    """
    for event in events:
        if isinstance(event, SetTransform):
            check_engine(event.transform.engine, configured)
            _check_repeatable(event.transform)
        elif isinstance(event, SetPollingSource | AddPushSource) and event.preprocess is not None:
            check_preprocess_engine(event.preprocess.engine)


def check_engine(name: str, configured: Collection[str], kind: type[InvalidQuery] = InvalidQuery) -> None:
    """Check that the engine of a transform is available: built in, or configured.

    Args:
        name: its name in the query; case is ignored.
        configured: names of the configured engines.
        kind: type of the error.

    Raises:
        InvalidQuery: it is not.
    """
    available = {SPARK, *(each.lower() for each in configured)}
    if name.lower() not in available:
        raise kind(
            f"the query is for the engine '{name}', which is not configured",
            where="transform",
            hint=f"use {', '.join(sorted(available))}, or configure the engine: "
            f"odf config set engines.{name.lower()} grpc://HOST:PORT",
        )


def check_preprocess_engine(name: str) -> None:
    """Check the engine of a preprocess query.

    Raises:
        InvalidQuery: it is not supported.
    """
    if name.lower() != SPARK:
        raise InvalidQuery(
            f"unsupported engine of the preprocess query: '{name}'",
            where="preprocess",
            hint=f"set engine to spark and write the query in Spark SQL; supported engines: {SPARK}",
        )


def _check_repeatable(transform: Sql) -> None:
    # Deferred: sqlglot is slow to import, and most commands have no query.
    from odf_engine.sql.repeatability import find_nonrepeatable

    steps = transform.queries or []
    if transform.engine.lower() != SPARK or (found := find_nonrepeatable(steps)) is None:
        return
    step = f" step {found.step + 1} of {len(steps)}" if len(steps) > 1 else ""
    hint = "use system_time() for the time of the transaction, and columns of the inputs otherwise"
    if not found.text.endswith((")", "'", '"')):
        hint += f"; quote a column of this name: `{found.text}`"
    with attach_query_excerpt(steps):
        raise InvalidQuery(
            f"{found.text} is not deterministic, so the result cannot be verified",
            where=f"query{step}, line {found.line}, column {found.column}",
            hint=hint,
        )
