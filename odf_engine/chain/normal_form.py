"""Normal form of definitions in a chain: query steps, engine versions, lateness; checks of manifests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from odf_engine.base.config import DURATION, parse_duration
from odf_engine.errors import InvalidManifest, InvalidQuery, Unsupported
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
from odf_engine.sql.query_text import tokenize


def find_duplicate(values: Iterable[Any]) -> Any:
    """Return the first value that occurs twice, or None if all values differ."""
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
    """Return why a query is not in normal form, as a sentence, or None if it is."""
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
DATAFUSION: Final = "datafusion"
RULES_REVISION: Final = 6
"""Revision of the transformation rules of Spark; increment it when the same query returns other rows.

All queries run by these rules. Chains of earlier revisions stay readable: verification replays them by these
rules, and reports a difference as ``transform-version``. The next transaction records the present version. It
does not use a state of an earlier revision, but computes it again from the inputs, and fails if the rows of
the dataset are not those that the query returns now.
"""
_PACKAGES: Final = {SPARK: ("pyspark", RULES_REVISION), DATAFUSION: ("datafusion", 1)}
"""The package of each built-in engine, and the revision of its transformation rules."""
BUILT_IN_ENGINES: Final = tuple(_PACKAGES)
INSTALL_DATAFUSION: Final = "install it: pip install 'odf-workstation[datafusion]'"
"""Hint for a missing extra."""
_VERSION: Final = re.compile(r"(.*)\+odf([1-9][0-9]{0,3})")


def stateful_query_error(operation: str) -> Unsupported:
    """Return the error for a query of DataFusion that is not row-by-row.

    Args:
        operation: what the query has, in words.
    """
    return Unsupported(
        f"the query has {operation}: the engine datafusion runs only row-by-row queries",
        where="query",
        hint="use filters, projections and UNION ALL, or write the query for the engine spark",
    )


@cache
def _package_version(package: str) -> str | None:
    # Deferred: slow to import, and not required for the first paint.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def engine_version(name: str) -> str | None:
    """Return the version of a built-in engine: its installed package and the revision of its rules.

    None if the engine is not built in, or its package is not installed. The case of the name is ignored.
    """
    package, revision = _PACKAGES.get(name.lower(), ("", 0))
    installed = _package_version(package) if package else None
    return None if installed is None else f"{installed}+odf{revision}"


def spark_engine_version() -> str:
    """Return the version of the engine Spark, see :func:`engine_version`."""
    return str(engine_version(SPARK))


def rules_revision(version: str) -> int:
    """Return the revision of the rules in a version, or 0 if another program recorded it."""
    match = _VERSION.fullmatch(version)
    return 0 if match is None else int(match[2])


def is_earlier_revision(name: str, version: str) -> bool:
    """Return whether a version is the installed package of a built-in engine with earlier rules."""
    installed, recorded = _VERSION.fullmatch(engine_version(name) or ""), _VERSION.fullmatch(version)
    if installed is None or recorded is None:
        return False
    return recorded[1] == installed[1] and int(recorded[2]) < int(installed[2])


Versioned = TypeVar("Versioned", bound=SetTransform | SetPollingSource | AddPushSource)
"""An event with a query: the transform of a derivative dataset, or a source with a preprocess query."""


def query_of(event: SetTransform | SetPollingSource | AddPushSource) -> Sql | None:
    """Return the query of an event, or None for a source without one."""
    return event.transform if isinstance(event, SetTransform) else event.preprocess


def with_version(event: Versioned, version: str | None) -> Versioned:
    """Return the event whose query names this version of its engine. There must be a query."""
    if isinstance(event, SetTransform):
        return replace(event, transform=replace(event.transform, version=version))
    assert event.preprocess is not None
    return replace(event, preprocess=replace(event.preprocess, version=version))


def with_engine_version(event: Versioned) -> Versioned:
    """Return the event with the exact version of the engine, if its query is for a built-in engine.

    Raises:
        InvalidManifest: it requires another version.
    """
    query = query_of(event)
    installed = None if query is None else engine_version(query.engine)
    if query is None or installed is None or query.version == installed:
        return event
    if query.version is not None:
        raise InvalidManifest(
            f"unsupported engine version {query.version}: this is {installed}",
            where=kind_of(event),
            hint="omit `version`; it is recorded with the query",
        )
    return with_version(event, installed)


def without_engine_version(event: Versioned) -> Versioned:
    """Return the event without the version that :func:`with_engine_version` added."""
    query = query_of(event)
    if query is None or query.engine.lower() not in BUILT_IN_ENGINES:
        return event
    return with_version(event, None)


_LATENESS: Final = re.compile(
    r"\n?^[ \t]*(?P<comment>-- odf\.allowedLateness\b(?P<durations>.*))$", re.MULTILINE
)
"""Comment in the last step of a query that records the allowed lateness of its inputs.

ODF 0.34.1 has no field for it. In the text of the query it is in the chain, and the same on all machines.
"""
_Durations = dict[str, Annotated[str, msgspec.Meta(pattern=DURATION)]]


def allowed_lateness(transform: Sql) -> dict[str, str]:
    """Return how long a query waits for late rows, by the alias of the input, such as ``{"orders": "1h"}``.

    Raises:
        InvalidQuery: the comment that records it is invalid.
    """
    comment = next(_lateness_comments(transform), None)
    if comment is None:
        return {}
    try:
        return msgspec.json.decode(comment["durations"], type=_Durations)
    except msgspec.MsgspecError as error:
        raise InvalidQuery(
            f"invalid allowed lateness: {error}",
            where="query",
            hint='use a comment such as -- odf.allowedLateness {"orders": "1h"}, or remove it',
        ) from None


def with_allowed_lateness(event: SetTransform, durations: Mapping[str, str]) -> SetTransform:
    """Return a transform in normal form that records the allowed lateness of inputs, by their aliases.

    Durations of 0 and aliases of other inputs are omitted.
    """
    aliases = [input.alias or input.dataset_ref for input in event.inputs]
    kept = {name: durations[name] for name in aliases if parse_duration(durations.get(name, "0s"))}
    step = _last_step(event.transform)
    query = step.query
    for comment in [*_lateness_comments(event.transform)][::-1]:
        query = query[: comment.start()] + query[comment.end() :]
    if kept:
        query += f"\n-- odf.allowedLateness {msgspec.json.encode(kept).decode()}"
    steps = [*(event.transform.queries or [])[:-1], replace(step, query=query)]
    return replace(event, transform=replace(event.transform, queries=steps))


def _lateness_comments(transform: Sql) -> Iterator[re.Match[str]]:
    """Yield the comments that record the allowed lateness, but not a string of the query with such a line.

    In the strings of other engines a backslash can have another meaning, so that a line must be enough.
    """
    query = _last_step(transform).query
    is_spark = transform.engine.lower() == SPARK
    comments = {token.start for token in tokenize(query, comments=True) if token.kind == "comment"}
    for match in _LATENESS.finditer(query):
        if not is_spark or match.start("comment") in comments:
            yield match


def _last_step(transform: Sql) -> SqlQueryStep:
    return transform.queries[-1] if transform.queries else SqlQueryStep(query=transform.query or "")
