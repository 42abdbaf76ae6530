"""Preview: show the rows that a pull of a root dataset would commit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from odf_engine.base.progress import Reporter, count_of
from odf_engine.errors import UsageError
from odf_engine.jobs.base import JobContext, JobRequest, JobSummary, release_arrow_memory
from odf_engine.jobs.pull import change_counts
from odf_engine.metadata.model import DatasetKind
from odf_engine.on_demand import (
    engine_router,
    operation_counts,
    polling_source,
    query_results,
    remotes,
    slices,
)

if TYPE_CHECKING:
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace


class PreviewResult(msgspec.Struct, frozen=True):
    """Result of a preview: the document of ``odf preview --json``, with the rows.

    Attributes:
        name: alias of the dataset.
        origin: the path or URL of the first file with new rows, or "" if there are none.
        rows: number of rows that the file adds to the dataset, with retractions and corrections.
        added, retracted, corrected: numbers by operation.
        path: the Parquet file with the first rows, relative to the workspace's folder; evicted when newer
            results need the space.
    """

    name: str = ""
    origin: str = ""
    rows: int = 0
    added: int = 0
    retracted: int = 0
    corrected: int = 0
    path: str = ""


class Preview(JobRequest[PreviewResult], frozen=True, tag="preview"):
    """Fetch and read the source of a root dataset as a pull does, and commit nothing.

    Checks of the dataset are not evaluated.

    Attributes:
        dataset: id of the dataset.
        limit: the maximum number of rows in the result.
        force: fetch even if the source reports no change.
    """

    read_only = True
    repeatable = True
    has_screen = True
    is_silent = True

    dataset: str
    limit: int = 1000
    force: bool = False

    def run(self, context: JobContext, reporter: Reporter) -> PreviewResult:
        workspace = context.workspace
        entry = workspace.resolve(self.dataset)
        _check_reads_source(workspace, entry)
        runtime = context.host.spark(reporter)
        name, vocabulary = str(entry.alias), entry.dataset.state().vocabulary
        with ExitStack() as stack:
            engines = stack.enter_context(engine_router.engines_for(workspace, entry, lambda: runtime))
            options = polling_source.PullOptions(
                force=self.force, environment=context.environment, find_engine=engines.find_external
            )
            new = stack.enter_context(polling_source.preview(workspace, entry, runtime, reporter, options))
            stack.enter_context(release_arrow_memory())
            if new is None:
                return PreviewResult(name)
            files = [part.path for part in new.slices]
            counts = operation_counts.count_operations(files, vocabulary.operation_type_column)
            batches = (batch for file in files for batch in slices.read_batches(file))
            first = next(batches)
            with query_results.new_result(workspace.odf) as (part, path):
                query_results.write(part, first.schema, chain([first], batches), self.limit)
            return PreviewResult(
                name,
                new.origin,
                sum(part.rows for part in new.slices),
                counts.added,
                counts.retracted,
                counts.corrected,
                str(path.relative_to(workspace.folder)),
            )

    @classmethod
    def summarize(cls, result: PreviewResult) -> JobSummary:
        if not result.rows:
            return JobSummary("no new rows", "muted")
        changes = change_counts(result.added, result.retracted, result.corrected)
        return JobSummary(f"{changes or count_of(result.rows, 'new row')}, not committed")

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        return ["preview", name_of(self.dataset), *(["--force"] if self.force else [])]


def _check_reads_source(workspace: Workspace, entry: DatasetEntry) -> None:
    """Check that a pull of the dataset reads a source.

    Raises:
        UsageError: it runs a query, or synchronizes with a remote.
    """
    if entry.dataset.state().kind is not DatasetKind.Root:
        raise UsageError(
            f"{entry.alias} is a derivative dataset: only sources have a preview",
            hint="run its query with odf sql",
        )
    if remotes.Remotes(workspace.odf).get(entry.id).pull:
        raise UsageError(
            f"{entry.alias} is pulled from a remote: its source does not run",
            hint=f"compare it with the remote: odf repo status {entry.alias}",
        )
