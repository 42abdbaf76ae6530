"""Plans of pulls from crates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odf_engine.api.plans.pull_plan import PullPlan, PullSelection, PullTarget
from odf_engine.base.progress import Reporter
from odf_engine.errors import AlreadyExists, UsageError
from odf_engine.identity.names import DatasetAlias
from odf_engine.on_demand import crate_data
from odf_engine.workspace.workspace import Workspace


class NameTaken(AlreadyExists):
    """Another dataset of the workspace has the name of the dataset that a crate is about.

    Attributes:
        name: the name.
    """

    name: str = ""


@contextmanager
def plan_crate_pull(
    workspace: Workspace, crate: str, selection: PullSelection, reporter: Reporter
) -> Iterator[PullPlan]:
    """Yield the datasets to pull from a crate, which is unpacked until the end of the ``with`` body.

    Datasets that the workspace has already are updated.

    Args:
        workspace: the workspace.
        crate: the path of the crate, which the selection names.
        selection: what is pulled.
        reporter: receives the progress of the check.

    Raises:
        UsageError: the selection has more than the crate.
        NameTaken: another dataset of the workspace has the name of the new dataset that is cited.
        AlreadyExists: another dataset of the workspace has the name of a new input.
        BadData, NotFound: the crate is damaged, or has no data.
        Cancelled: the check was cancelled.
    """
    if len(selection.names) > 1 or selection.everything or selection.source is not None:
        raise UsageError("a crate is pulled alone", hint=f"use odf pull {crate}")
    path = Path(crate).expanduser().resolve()
    with crate_data.opened_crate(workspace, path, reporter) as packed:
        entries = {entry.id: entry for entry in workspace.datasets()}
        names = {entry.alias for entry in entries.values()}
        targets: list[PullTarget] = []
        for dataset in packed:
            origin = f"{path.as_uri()}#{dataset.name}"
            if (entry := entries.get(dataset.id)) is not None:
                targets.append(PullTarget(str(entry.alias), entry, dataset.url, crate=origin))
                continue
            alias = DatasetAlias.parse(selection.alias or dataset.name if dataset.is_cited else dataset.name)
            if alias in names:
                problem, place = f"{alias}: a different dataset has this name", str(path)
                if not dataset.is_cited:
                    raise AlreadyExists(problem, where=place, hint=f"rename it: odf rename {alias} NEW")
                error = NameTaken(problem, where=place, hint=f"use odf pull {crate} --as NAME")
                error.name = str(alias)
                raise error
            targets.append(PullTarget(str(alias), None, dataset.url, str(alias), crate=origin))
        yield PullPlan(targets)
