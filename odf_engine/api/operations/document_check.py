"""Definitions of checks, flows and alerts compared with the workspace: their targets and columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odf_engine.automation.alerts.definition import Alert
from odf_engine.automation.flows.definition import Flow
from odf_engine.checks.definition import CheckDefinition
from odf_engine.errors import InvalidManifest, OdfError
from odf_engine.identity.names import matches_pattern
from odf_engine.on_demand import check_gate
from odf_engine.workspace.documents.document import Document, Target, matches_target
from odf_engine.workspace.documents.store import Documents

if TYPE_CHECKING:
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace


def check_document(workspace: Workspace, document: Document[Any]) -> list[str]:
    """Check that the targets of a definition exist, and that the rules of a check fit their columns.

    A pattern may match nothing, since its datasets may be added later.

    Returns:
        The names of the datasets that are targets.

    Raises:
        InvalidManifest: a target or a column does not exist. ``where`` has its line and column.
        OdfError: a dataset cannot be read.
    """
    flows = _flow_names(workspace, document)
    entries: dict[str, DatasetEntry] = {}
    for at, target in enumerate(document.spec.targets):
        matches = [
            entry
            for entry in workspace.datasets()
            if matches_target(target, entry.alias, entry.id, workspace.config)
        ]
        if not matches and not any(matches_pattern(str(target), flow) for flow in flows):
            _require_pattern(workspace, document, target, at)
        entries.update((str(entry.alias), entry) for entry in matches)
    if isinstance(document, CheckDefinition):
        for entry in entries.values():
            check_gate.DatasetChecks(workspace, entry, None, [document])
    return list(entries)


def _flow_names(workspace: Workspace, document: Document[Any]) -> list[str]:
    """Return the flow names that an alert can have as targets, or [] if it has no events of flows."""
    if not isinstance(document, Alert) or not any(kind.startswith("Flow") for kind in document.spec.kinds):
        return []
    return list(Documents(workspace.odf, Flow).stamps())


def _require_pattern(workspace: Workspace, document: Document[Any], target: Target, at: int) -> None:
    """Check that a target without datasets is a pattern or a selector.

    Raises:
        InvalidManifest: it is the name of a dataset.
    """
    if not isinstance(target, str) or "%" in target:
        return
    try:
        workspace.resolve(target)
    except OdfError as error:
        place = document.source.where(".spec.target" + (f"[{at}]" if len(document.spec.targets) > 1 else ""))
        raise InvalidManifest(f"dataset '{target}' not found", where=place, hint=error.hint) from None
