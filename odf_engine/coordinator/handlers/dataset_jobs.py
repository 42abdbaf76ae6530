"""Jobs on one dataset: definitions, statistics, states, export, diff, trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from odf_engine.coordinator.protocol import (
    BuildProjection,
    ComputeStatistics,
    Diff,
    Export,
    Trace,
    Update,
    Validate,
)
from odf_engine.errors import UsageError
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.coordinator.job_queue import JobContext
    from odf_engine.metadata.model import DatasetSnapshot
    from odf_engine.metadata.timestamp import Timestamp
    from odf_engine.views.scan import Scan


def validate(request: Validate, context: JobContext, reporter: Reporter) -> dict[str, Any]:
    """Looks whether a query can be run; the result is described with the request.

    Raises:
        OdfError: the definition or its query is wrong.
    """
    from odf_engine.data.ddl import to_ddl

    workspace = context.workspace
    snapshot = _definition(request.manifest)
    runtime = context.host.spark(reporter)
    from odf_engine.transform.engines.engine_router import (
        EngineRouter,  # after Spark has started, see warm_up
    )
    from odf_engine.transform.engines.spark_engine import SparkEngine
    from odf_engine.transform.query_migration import InputWithoutSchema, preview_migration

    reporter.phase("validate")
    result: dict[str, Any] = {
        "name": snapshot.name,
        "checked": False,
        "message": None,
        "schema": None,
        "new": [],
        "state": "none",
    }
    try:
        found = preview_migration(workspace, snapshot, EngineRouter(workspace.config, SparkEngine(runtime)))
    except InputWithoutSchema as error:
        return result | {"message": error.message}
    if found is None:
        return result | {"message": "the definition has no query"}
    columns = to_ddl(found.columns)
    return result | {"checked": True, "schema": columns, "new": found.new, "state": found.state}


def update(request: Update, context: JobContext, reporter: Reporter) -> dict[str, Any]:
    """Changes a dataset; the result is described with the request.

    Raises:
        OdfError: the definition or its query is wrong, or a transaction failed.
    """
    from odf_engine.workspace.definition import record_origin

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    snapshot = _definition(request.manifest)
    if snapshot.name.lower() != str(entry.alias).lower():
        raise UsageError(f"the definition is of {snapshot.name}, and not of {entry.alias}")
    runtime = context.host.spark(reporter)
    from odf_engine.chain.state import ChainUpdate  # after Spark has started, see warm_up
    from odf_engine.transform.engines.engine_router import engines_for
    from odf_engine.transform.query_migration import migrate_query

    before = entry.dataset.state()
    if request.origin is not None:  # so that its query runs shut in already now
        record_origin(entry, request.origin)
    with engines_for(workspace, entry, runtime) as engine:
        outcome = migrate_query(
            workspace,
            entry,
            snapshot,
            engine,
            reporter,
            choice=request.state,
            accept_columns=request.accept_columns,
            origin=request.origin,
        )
    result = ChainUpdate.from_states(before, entry.dataset.state())
    return {
        "name": str(entry.alias),
        "status": "updated" if result.blocks else "unchanged",
        "old_head": _text(result.old_head),
        "new_head": _text(result.new_head),
        "blocks": result.blocks,
        "records": result.records,
        "state": outcome.state,
        "changes": [{"title": each.title, "lines": each.lines} for each in outcome.changes],
    }


def _definition(manifest: str) -> DatasetSnapshot:
    from odf_engine.metadata.yaml import read_manifests

    found = read_manifests(manifest, "manifest")
    if len(found) != 1:
        raise UsageError(f"one definition is looked at at a time, and these are {len(found)}")
    return found[0]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def describe(request: ComputeStatistics, context: JobContext, reporter: Reporter) -> dict[str, Any]:
    """Computes statistics; the result is described with the request.

    Raises:
        OdfError: rows that cannot be read, or nothing can be written.
    """
    from odf_engine.views.statistics import compute_statistics

    rows, name = _rows(request.dataset, request.file, context)
    odf = context.workspace.odf
    with _memory_given_back():
        found = compute_statistics(odf, rows, reporter, None if request.file else request.dataset)
    return {"name": name, "rows": found.rows}


def project(request: BuildProjection, context: JobContext, reporter: Reporter) -> dict[str, Any]:
    """Makes the current state by key; the result is described with the request.

    Raises:
        OdfError: there is no such key, rows cannot be read, or nothing can be written.
    """
    from odf_engine.views.as_at import resolve_as_at
    from odf_engine.views.projection import build_projection

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    of = None if request.as_of is None else _moment(request.as_of)
    at = resolve_as_at(entry, request.as_at)
    with _memory_given_back():
        found = build_projection(
            workspace.odf, entry.dataset, request.key, reporter, last_offset=at.scan_offset, as_of=of
        )
    return {
        "name": str(entry.alias),
        "key": found.key,
        "rows": found.rows,
        "of": found.of,
        "file": str(found.file),
        "pin": msgspec.to_builtins(at),
    }


def export(request: Export, context: JobContext, reporter: Reporter) -> dict[str, Any]:
    """Writes rows to a file; the result is described with the request.

    Raises:
        OdfError: rows that cannot be read, or a file that cannot be written.
    """
    from odf_engine.views.export import export

    rows, name = _rows(request.dataset, request.file, context)
    with _memory_given_back():
        found = export(
            rows,
            Path(request.path),
            request.format,
            reporter,
            ranges=request.ranges,
            system=request.system,
            replace=request.replace,
        )
    reporter.log(f"wrote {found.path}")
    return {"name": name, "rows": found.rows, "size": found.size, "path": str(found.path)}


def diff(request: Diff, context: JobContext, reporter: Reporter) -> dict[str, Any]:
    """Compares versions; the result is described with the request.

    Raises:
        OdfError: one of them is not there, both are the same, the key is wrong, or rows cannot be read.
    """
    from odf_engine.views.row_diff import diff_datasets

    with _memory_given_back():
        found = diff_datasets(
            context.workspace,
            request.dataset,
            request.other,
            as_at=request.as_at,
            other_as_at=request.other_as_at,
            key=request.key,
            reporter=reporter,
        )
    return msgspec.to_builtins(found)


@contextmanager
def _memory_given_back() -> Iterator[None]:
    """The worker lives on, and Arrow keeps what it had."""
    import pyarrow as pa

    try:
        yield
    finally:
        pa.default_memory_pool().release_unused()


def _moment(text: str) -> Timestamp:
    from odf_engine.metadata.timestamp import Timestamp

    try:
        return Timestamp.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _rows(dataset: str, file: str | None, context: JobContext) -> tuple[Scan, str]:
    """The rows that a request is about, and the name of their dataset, if they are of one."""
    from odf_engine.views.scan import Scan

    if not dataset:
        if file is None:
            raise UsageError("neither a dataset nor a file says which rows")
        return Scan.of_file(Path(file)), ""
    entry = context.workspace.resolve(dataset)
    if file is None:
        return Scan.of_dataset(entry.dataset), str(entry.alias)
    return Scan.of_file(Path(file), entry.dataset.state().vocabulary), str(entry.alias)


def trace(request: Trace, context: JobContext, reporter: Reporter) -> dict[str, Any]:
    """Finds out where rows come from; the result is described with the request.

    Raises:
        OdfError: there are no such rows, or they cannot be read.
    """
    from msgspec import to_builtins

    from odf_engine.provenance.model import truncate_trace
    from odf_engine.provenance.trace import Tracer

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    tracer = Tracer(workspace, context.host.spark, reporter)
    found = tracer.trace(entry, request.runs, request.column, request.depth)
    result: dict[str, Any] = to_builtins(truncate_trace(found))
    if request.check:
        result["checked"] = tracer.check_newest_step(entry, found)
    return result
