"""Transactions that this program's own engine does not run again by itself: whoever runs them is asked.

Queries of somebody else run in the sandbox, as when they are verified; those of other engines there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from odf_engine.errors import Cancelled, OdfError
from odf_engine.ingest.folders import job_folder
from odf_engine.metadata.model import OffsetInterval
from odf_engine.progress import Reporter
from odf_engine.provenance.step import StepOf
from odf_engine.provenance.step_history import History, histories
from odf_engine.transform.contract import Derived, Engine
from odf_engine.transform.engines import engines_for
from odf_engine.transform.run import make_request
from odf_engine.workspace.traced import Run
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.versions import SPARK
from odf_engine.workspace.workspace import DatasetEntry, Workspace

if TYPE_CHECKING:
    from odf_engine.spark.session import SparkRuntime


def ask_elsewhere(
    workspace: Workspace,
    entry: DatasetEntry,
    steps: Sequence[StepOf],
    spark: SparkRuntime,
    reporter: Reporter,
) -> list[StepOf]:
    """The same steps, exact where the engine that runs the query could say more.

    Args:
        workspace: where the inputs are.
        entry: the dataset.
        steps: as :func:`odf_engine.provenance.step.step` found them.
        spark: what engines are made of that are none of this process.
        reporter: is asked whether to stop.

    Raises:
        Cancelled: somebody asked to stop.
    """
    here = {SPARK} - set(map(str.lower, workspace.config.engines))
    trusted = Trust(workspace).is_trusted(entry)
    if trusted and all(each.exact or each.engine.partition(" ")[0].lower() in here for each in steps):
        return list(steps)
    found: list[StepOf] = []
    with engines_for(workspace, entry, spark) as engine:
        for each in steps:
            (history, _), *_rest = histories(entry, each.runs)
            # Of rows that were made with a state, an engine that sees one transaction knows little.
            if each.exact or history.keeps_state:
                found.append(each)
            else:
                found.append(_asked(workspace, history, each, engine, reporter))
    return found


def _asked(
    workspace: Workspace, history: History, step: StepOf, engine: Engine, reporter: Reporter
) -> StepOf:
    rows = [OffsetInterval(first, last) for first, last in step.runs]
    try:
        with job_folder(workspace.odf / "cache", "replay") as folder:
            system_time = history.block.block.system_time
            request = make_request(history.own(workspace), folder, folder / "data", system_time)
            derived = engine.provenance(request, rows, reporter)
    except Cancelled:
        raise
    except OdfError as error:
        reporter.check()
        return replace(step, reason=f"{step.reason}; asked for more, it says: {error}")
    return _with(step, derived)


def _with(step: StepOf, derived: Derived) -> StepOf:
    runs: dict[str, list[Run]] = {
        alias: [(each.start, each.end) for each in rows] for alias, rows in derived.feeds
    }
    return replace(
        step,
        exact=derived.exact,
        reason=derived.reason,
        feeds=[(alias, dataset, runs.get(alias, [])) for alias, dataset, _ in step.feeds],
        how=[*step.how, "row by row: each row is made of one row of an input, as its engine says"]
        if derived.exact
        else step.how,
    )
