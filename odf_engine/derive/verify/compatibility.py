"""Compatibility of a dataset with the present version of its engine (specification: Engine Deprecation)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.normal_form import engine_version, with_version
from odf_engine.derive.verify.finding_kinds import NOT_REPLAYED
from odf_engine.derive.verify.model import Compatibility, EngineReport, IntegrityFinding, IntegrityReport
from odf_engine.errors import Conflict
from odf_engine.metadata.model import Sql
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.query_check import is_external
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.workspace import Workspace


class CompatibilityResult(NamedTuple):
    """The outcome of a comparison.

    Attributes:
        compatibility: the versions, or None if the rows differ or could not be compared.
        finding: why nothing was recorded though no row differs, or None.
    """

    compatibility: Compatibility | None = None
    finding: IntegrityFinding | None = None


def record_compatibility(
    workspace: Workspace, entry: DatasetEntry, report: IntegrityReport, reporter: Reporter
) -> CompatibilityResult:
    """Record that the present version of the engine returns the rows of a dataset, if it does.

    The record is a SetTransform with the same query and the new version. Later transactions run by it, here
    and wherever the dataset is copied. Nothing is recorded unless all transactions were replayed, and all
    rows are equal.

    Args:
        workspace: its configuration lists the engines.
        entry: a derivative dataset.
        report: the report of a replay of the complete chain with the present engines.
        reporter: receives the commit.

    Raises:
        Conflict: the dataset was changed in the meantime.
    """
    state = entry.dataset.state()
    if not report.valid or state.transform is None:
        return CompatibilityResult()
    if state.blocks != report.blocks:
        raise Conflict(f"{entry.alias} was changed while it was verified", hint="verify it again")
    query = state.transform.transform
    total = len(entry.dataset.list_blocks(sys.maxsize, kinds=("ExecuteTransform",)))
    if report.transforms < total:
        skipped = count_of(total - report.transforms, "transaction")
        message = f"{skipped} could not be replayed: the compatibility of the engine is not confirmed"
        return CompatibilityResult(finding=IntegrityFinding(NOT_REPLAYED, "", message))
    version = _present_version(query, report.engines, workspace)
    compatible = Compatibility(query.engine, query.version, version)
    urls = Remotes(workspace.odf).get(entry.id).pull
    if version is None:
        return CompatibilityResult(replace(compatible, note="the engine reports no version"))
    if version == query.version:
        return CompatibilityResult(replace(compatible, note="this is the version of the query"))
    if urls:
        note = f"not recorded: the dataset is pulled from {urls[0]}, and only its author can record it"
        return CompatibilityResult(replace(compatible, note=note))
    head = entry.dataset.commit(
        [with_version(state.transform, version)],
        system_time=max(Timestamp.now(), state.system_time),
        expected_head=state.head,
        block_version=workspace.config.block_version,
    )
    reporter.log(f"{query.engine} {version} returns the rows of the dataset: recorded in block {head}")
    reporter.committed(str(entry.id), str(head), "SetTransform", 0)
    return CompatibilityResult(replace(compatible, block=str(head)))


def _present_version(query: Sql, engines: Sequence[EngineReport], workspace: Workspace) -> str | None:
    """Return the version of the engine that replayed the query, or None if it reports none."""
    name = query.engine.lower()
    versions = {use.version for use in engines if use.engine.lower() == name}
    if not versions and not is_external(name, workspace.config.engines):
        return engine_version(name)
    return versions.pop() if len(versions) == 1 else None
