"""Jobs that look at definitions of derivative datasets, and change datasets to what definitions say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odf_engine.coordinator.protocol import Update, Validate
from odf_engine.errors import UsageError
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.coordinator.operations import Context
    from odf_engine.metadata.model import DatasetSnapshot


def validate(request: Validate, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Looks whether a query can be run; the result is described with the request.

    Raises:
        OdfError: the definition or its query is wrong.
    """
    from odf_engine.data.ddl import to_ddl

    workspace = context.workspace
    snapshot = _definition(request.manifest)
    runtime = context.host.spark(reporter)
    from odf_engine.transform.engines import Engines  # after Spark has started, see warm_up
    from odf_engine.transform.prospects import NotYet, look
    from odf_engine.transform.spark_engine import SparkEngine

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
        found = look(workspace, snapshot, Engines(workspace.config, SparkEngine(runtime)))
    except NotYet as error:
        return result | {"message": error.message}
    if found is None:
        return result | {"message": "the definition has no query"}
    columns = to_ddl(found.columns)
    return result | {"checked": True, "schema": columns, "new": found.new, "state": found.state}


def update(request: Update, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Changes a dataset; the result is described with the request.

    Raises:
        OdfError: the definition or its query is wrong, or a transaction failed.
    """
    from odf_engine.workspace.appending import note_origin

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    snapshot = _definition(request.manifest)
    if snapshot.name.lower() != str(entry.alias).lower():
        raise UsageError(f"the definition is of {snapshot.name}, and not of {entry.alias}")
    runtime = context.host.spark(reporter)
    from odf_engine.ingest.poll import PullResult  # after Spark has started, see warm_up
    from odf_engine.transform.engines import engines_for
    from odf_engine.transform.migrate import change

    before = entry.dataset.state()
    if request.origin is not None:  # so that its query runs shut in already now
        note_origin(entry, request.origin)
    with engines_for(workspace, entry, runtime) as engine:
        outcome = change(
            workspace,
            entry,
            snapshot,
            engine,
            reporter,
            choice=request.state,
            accept_columns=request.accept_columns,
            origin=request.origin,
        )
    result = PullResult.between(before, entry.dataset.state())
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
