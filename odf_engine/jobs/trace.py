"""Trace: the provenance of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from odf_engine.base.progress import Reporter, count_of
from odf_engine.jobs.base import JobContext, JobRequest, JobSummary, branch_option
from odf_engine.on_demand import provenance_model, provenance_trace

if TYPE_CHECKING:
    from odf_engine.derive.provenance.model import TraceResult


class Trace(JobRequest["TraceResult"], frozen=True, tag="trace"):
    """Trace the provenance of rows.

    Attributes:
        dataset: id of the dataset.
        runs: inclusive ranges of offsets.
        column: trace the values of this column instead of complete rows.
        depth: number of datasets upstream; by default up to the sources.
        check: run the newest step again with only the traced rows, and without them.
        branch: the branch or the tag with the rows, or "" for the head.
    """

    read_only = True
    has_screen = True
    is_silent = True

    dataset: str
    runs: list[tuple[int, int]]
    column: str | None = None
    depth: int | None = None
    check: bool = False
    branch: str = ""

    @classmethod
    def result_type(cls) -> type[TraceResult]:
        return provenance_model.TraceResult

    def run(self, context: JobContext, reporter: Reporter) -> TraceResult:
        workspace = context.workspace
        entry = workspace.resolve(self.dataset).on_branch(self.branch)
        tracer = provenance_trace.Tracer(workspace, context.host.spark, reporter)
        step = tracer.trace(entry, self.runs, self.column, self.depth)
        checked = tracer.check_newest_step(entry, step) if self.check else None
        truncated = provenance_model.truncate_trace(step)
        return provenance_model.TraceResult(**asdict(truncated), checked=checked)

    @classmethod
    def summarize(cls, result: TraceResult) -> JobSummary:
        return JobSummary("" if result.problem else f"{count_of(result.rows, 'row')} traced")

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        first, last = self.runs[0][0], self.runs[-1][1]
        column = [] if self.column is None else ["--column", self.column]
        offsets = str(first) if first == last else f"{first}..{last}"
        return ["provenance", name_of(self.dataset), offsets, *column, *branch_option(self.branch)]
