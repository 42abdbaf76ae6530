"""Check: evaluate the checks of a dataset on its stored rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import UNSET, UnsetType

from odf_engine.base.progress import Reporter, count_of
from odf_engine.checks.reports import RuleResult
from odf_engine.jobs.base import (
    JobContext,
    JobRequest,
    JobResult,
    JobSummary,
    branch_option,
    branch_title,
    release_arrow_memory,
)
from odf_engine.on_demand import check_gate


class CheckResult(JobResult, frozen=True):
    """Result of a check of stored rows.

    Attributes:
        name: alias of the dataset.
        results: results of the rules; empty without checks or rows.
        branch: the checked branch; absent for the head.
        is_trial: whether a definition was tried that is not stored; absent if not.
    """

    name: str = ""
    results: list[RuleResult] = []
    branch: str | UnsetType = UNSET
    is_trial: bool | UnsetType = UNSET

    @property
    def title(self) -> str:
        """The name of the dataset, followed by the branch."""
        return branch_title(self.name, self.branch)

    @property
    def failed(self) -> list[RuleResult]:
        """The results of violated rules with ``onFailure: block``."""
        return [rule for rule in self.results if rule.outcome == "failed"]


class Check(JobRequest[CheckResult], frozen=True, tag="check"):
    """Evaluate the checks of a dataset, or of its branch, on its stored rows. Nothing is changed.

    Attributes:
        definition: a check to try in place of the stored checks, or "" for these.
    """

    read_only = True

    dataset: str
    branch: str = ""
    definition: str = ""

    @property
    def needs_spark(self) -> bool:
        return False

    def run(self, context: JobContext, reporter: Reporter) -> CheckResult:
        workspace = context.workspace
        entry = workspace.resolve(self.dataset).on_branch(self.branch)
        branch = self.branch or UNSET
        session = partial(context.session, reporter)
        checks = check_gate.load_checks(workspace, entry, session, self.definition)
        if checks is None:
            reporter.log(f"{entry.alias} has no checks")
            return CheckResult(str(entry.alias), branch=branch)
        with release_arrow_memory():
            results = checks.check_stored(reporter)
        for rule in results:
            level = {"failed": "error", "warning": "warning"}.get(rule.outcome, "info")
            reporter.log(rule.text, level)
        return CheckResult(str(entry.alias), results, branch, bool(self.definition) or UNSET)

    @classmethod
    def summarize(cls, result: CheckResult) -> JobSummary:
        if not result.results:
            return JobSummary("no checks", "muted")
        if result.failed:
            return JobSummary(f"{count_of(len(result.failed), 'rule')} failed", "bad")
        warnings = sum(rule.outcome == "warning" for rule in result.results)
        if warnings:
            return JobSummary(count_of(warnings, "warning"), "warn")
        return JobSummary(f"{count_of(len(result.results), 'rule')} passed")

    @classmethod
    def failure(cls, result: CheckResult) -> str:
        return result.failed[0].text if result.failed else ""

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        return ["check", "run", name_of(self.dataset), *branch_option(self.branch)]
