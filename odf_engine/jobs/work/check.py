"""Work of the jobs in :mod:`odf_engine.jobs.check`."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET

from odf_engine.base.progress import Reporter
from odf_engine.checks.gate import load_checks
from odf_engine.jobs.base import JobContext, release_arrow_memory
from odf_engine.jobs.check import Check, CheckResult


def run_check(request: Check, context: JobContext, reporter: Reporter) -> CheckResult:
    """Run the job, see :class:`odf_engine.jobs.check.Check`."""
    workspace = context.workspace
    entry = workspace.resolve(request.dataset).on_branch(request.branch)
    branch = request.branch or UNSET
    checks = load_checks(workspace, entry, partial(context.session, reporter))
    if checks is None:
        reporter.log(f"{entry.alias} has no checks")
        return CheckResult(str(entry.alias), branch=branch)
    with release_arrow_memory():
        results = checks.check_stored(reporter)
    for rule in results:
        level = {"failed": "error", "warning": "warning"}.get(rule.outcome, "info")
        reporter.log(rule.text, level)
    return CheckResult(str(entry.alias), results, branch)
