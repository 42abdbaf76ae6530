"""Transforming a derivative dataset whose inputs may have been reset or replaced."""

from __future__ import annotations

from dataclasses import replace

from odf_engine.ingest.poll import PullResult
from odf_engine.progress import Reporter
from odf_engine.transform.contract import Engine
from odf_engine.transform.plan import Diverged
from odf_engine.transform.run import transform
from odf_engine.workspace.resetting import reset
from odf_engine.workspace.workspace import DatasetEntry, Workspace


def transform_or_begin_anew(
    workspace: Workspace, entry: DatasetEntry, engine: Engine, reporter: Reporter
) -> PullResult:
    """As :func:`odf_engine.transform.run.transform`, but where an input diverged, the dataset begins anew.

    Raises:
        Cancelled: what was committed until then stays: a dataset that began anew does not go back.
        OdfError: as above.
    """
    old = entry.dataset.state().head
    try:
        return transform(workspace, entry, engine, reporter)
    except Diverged as diverged:
        reporter.line(f"{diverged}; the dataset begins anew", "warning")
    before = entry.dataset.state().head  # transactions until the one that diverged may have been committed
    reset(workspace, entry)
    reporter.line(f"refs/before-reset-{before.short} keeps what was there, to block {before}")
    result = transform(workspace, entry, engine, reporter)
    blocks = entry.dataset.state().blocks - 1  # the first one stays
    return replace(result, status="updated", old_head=old, blocks=blocks)
