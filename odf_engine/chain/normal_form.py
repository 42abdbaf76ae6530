"""Normal form of definitions in a chain: query steps and engine versions; checks of manifests."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from odf_engine.errors import InvalidManifest, InvalidQuery
from odf_engine.metadata.model import (
    AddPushSource,
    DatasetKind,
    DatasetSnapshot,
    DisablePollingSource,
    DisablePushSource,
    MetadataEvent,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    Sql,
    SqlQueryStep,
    kind_of,
)


def find_duplicate(values: Iterable[Any]) -> Any:
    """Return the first value that occurs twice; None if all values differ."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


_ANY_KIND: Final = (SetDataSchema, SetVocab, SetInfo, SetLicense, SetAttachments)
_ALLOWED: Final = {
    DatasetKind.Root: (SetPollingSource, AddPushSource, *_ANY_KIND),
    DatasetKind.Derivative: (SetTransform, *_ANY_KIND),
}
_DISABLING: Final = (DisablePollingSource, DisablePushSource)
Event = TypeVar("Event", bound=MetadataEvent)


def check_snapshot(snapshot: DatasetSnapshot, *, exists: bool = False) -> None:
    """Check that a dataset can be created from this definition, or updated to it if ``exists``.

    Raises:
        InvalidManifest: an event is not allowed there; ``where`` is the name of the dataset.
    """
    for event in snapshot.metadata:
        if exists and snapshot.kind is DatasetKind.Root and isinstance(event, _DISABLING):
            continue
        problem = _find_misplacement(snapshot.kind, event)
        if problem is not None:
            raise InvalidManifest(problem, where=snapshot.name)
    problem = _find_contradiction(snapshot)
    if problem is not None:
        raise InvalidManifest(problem, where=snapshot.name)


def _find_contradiction(snapshot: DatasetSnapshot) -> str | None:
    """Return the contradiction between the sources of a definition, or None."""
    pushed = [event.source_name for event in snapshot.metadata if isinstance(event, AddPushSource)]
    polled = any(isinstance(event, SetPollingSource) for event in snapshot.metadata)
    duplicate = find_duplicate(pushed)
    if duplicate is not None:
        return f"duplicate push source '{duplicate}'"
    for event in snapshot.metadata:
        if isinstance(event, DisablePollingSource) and polled:
            return "the polling source is both defined and disabled"
        if isinstance(event, DisablePushSource) and event.source_name in pushed:
            return f"push source '{event.source_name}' is both defined and disabled"
    return None


def _find_misplacement(kind: DatasetKind, event: MetadataEvent) -> str | None:
    if isinstance(event, _ALLOWED[kind]):
        return None
    name = kind_of(event)
    if isinstance(event, Seed):
        return "a Seed is not allowed in a manifest: it is generated when the dataset is added"
    for other, allowed in _ALLOWED.items():
        if isinstance(event, allowed):
            return f"{name} is only allowed in {other.value} datasets, and this one is {kind.value}"
    return f"{name} is not allowed in a manifest: it is generated when the dataset changes"


def normalize_event(event: Event) -> Event:
    """Return the event with its query in normal form. An event without a query is unchanged.

    Raises:
        InvalidQuery: the query has no normal form.
    """
    match event:
        case SetTransform():
            return replace(event, transform=normalize_transform(event.transform))
        case SetPollingSource() | AddPushSource() if event.preprocess is not None:
            return replace(event, preprocess=normalize_transform(event.preprocess))
        case _:
            return event


def normalize_transform(transform: Sql) -> Sql:
    """Return the transform as a list of queries whose last one has no alias.

    Raises:
        InvalidQuery: no query, ``query`` and ``queries`` both, or not exactly one result.
    """
    if transform.query is not None and transform.queries is not None:
        raise InvalidQuery("a transform cannot have both 'query' and 'queries'")
    steps = transform.queries or []
    if transform.query is not None:
        steps = [SqlQueryStep(query=transform.query)]
    if not steps:
        raise InvalidQuery("the transform has no query", hint="add the field 'query'")
    results = [step for step in steps if step.alias is None]
    if len(results) != 1:
        raise InvalidQuery(
            f"{len(results)} of the queries have no alias; exactly one, the result, must have none",
            hint="add an alias to every query except the last",
        )
    named = [step for step in steps if step.alias is not None]
    normal = replace(transform, query=None, queries=[*named, *results])
    problem = normal_form_problem(normal)
    if problem is not None:
        raise InvalidQuery(problem)
    return normal


def normal_form_problem(transform: Sql) -> str | None:
    """Return why a query is not in normal form, as a sentence; None if it is."""
    steps = transform.queries
    if transform.query is not None:
        return "the transform has 'query'; a chain requires 'queries'"
    if not steps:
        return "the transform has no queries"
    if steps[-1].alias is not None:
        return "the last query is the result and must not have an alias"
    if any(not step.alias for step in steps[:-1]):
        return "every query except the last requires an alias"
    duplicate = find_duplicate(step.alias for step in steps[:-1])
    return None if duplicate is None else f"duplicate query alias '{duplicate}'"


SPARK: Final = "spark"
_RULES_REVISION: Final = "odf1"
"""Revision of the transformation rules; increment it when the same query returns other rows."""


@cache
def spark_engine_version() -> str:
    """Return the version of the engine: that of the installed Spark, and the revision of the rules."""
    # Deferred: slow to import, and not required for the first paint.
    from importlib.metadata import version

    return f"{version('pyspark')}+{_RULES_REVISION}"


def with_engine_version(event: SetTransform) -> SetTransform:
    """Return the transform with the exact version of the engine, if it is for the engine of this program.

    Raises:
        InvalidManifest: it requires another version.
    """
    transform = event.transform
    if transform.engine.lower() != SPARK:
        return event
    if transform.version not in (None, spark_engine_version()):
        raise InvalidManifest(
            f"unsupported engine version {transform.version}: this is {spark_engine_version()}",
            where="SetTransform",
            hint="omit `version`; it is recorded with the transform",
        )
    return replace(event, transform=replace(transform, version=spark_engine_version()))


def without_engine_version(event: SetTransform) -> SetTransform:
    """Return the transform without the version that :func:`with_engine_version` added."""
    if event.transform.engine.lower() != SPARK:
        return event
    return replace(event, transform=replace(event.transform, version=None))
