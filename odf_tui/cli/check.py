"""Check new rows of datasets before they are committed.

A check is a YAML file in the folder .odf/checks with targets and rules. Pulls, ingests and transforms
evaluate the rules on new rows. If a rule fails, nothing is committed. See `odf help checks`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import click

from odf_engine.api import (
    Check,
    CheckDefinition,
    CheckResult,
    JobState,
    RejectedBatch,
    Unreadable,
    branch_title,
    result_json,
)
from odf_engine.api.text import count_of, format_count, format_time_seconds, printable
from odf_engine.api.workspace import Workspace
from odf_tui.cli.shared.documents import DocumentCommands, entry_json, state_text
from odf_tui.cli.shared.job_progress import exit_code, follow, print_failure
from odf_tui.cli.shared.options import DATASET, CommandGroup, branch_option
from odf_tui.cli.shared.output import Table, print_note, print_table, show
from odf_tui.cli.shared.workspace import open_workspace, select_datasets, use_timezone

ORDER = 430
MEANINGS = "checks expectation expectations quality test tests rule rules assert"

command = CommandGroup("check", help=__doc__, example="odf check add cases.yaml")


class _CheckCommands(DocumentCommands[CheckDefinition]):
    kind, example = CheckDefinition, "cases"
    help: ClassVar = {
        "add": "Add checks from YAML files or standard input (-), and accept their queries.",
        "accept": "Accept the queries of new and changed checks. Review the files first.",
        "remove": "Remove checks. Their results are retained.",
    }

    def describe_added(self, workspace: Workspace, document: CheckDefinition) -> str:
        return f", {count_of(len(document.spec.rules), 'rule')}"


_CheckCommands().define(command)


@command.subcommand("list", example="odf check list", json=True)
def list_checks() -> None:
    """List the checks with their state, targets and rules."""
    entries = open_workspace().documents(CheckDefinition).entries()
    checks: list[dict[str, Any]] = []
    for entry in entries:
        spec = None if isinstance(entry, Unreadable) else entry.document.spec
        targets = list(map(str, spec.targets)) if spec else []
        rules = [rule.label for rule in spec.rules] if spec else []
        checks.append({**entry_json(entry), "targets": targets, "rules": rules})
    rows = [
        [
            check["name"],
            state_text(check),
            ", ".join(check["targets"]),
            printable(", ".join(check["rules"])),
        ]
        for check in checks
    ]
    empty = "no checks; to add one: odf check add FILE, see odf help checks"
    show(checks, Table(["check", "state", "target", "rules"], rows, empty=empty))


@command.subcommand("run", example="odf check run my.cases", json=True)
@click.argument("names", nargs=-1, type=DATASET)
@click.option("--all", "everything", is_flag=True, help="Check all datasets of the workspace.")
@branch_option("Check the rows of this branch of the datasets.")
def run_checks(names: tuple[str, ...], everything: bool, branch: str) -> None:
    """Evaluate the checks of datasets on their stored rows.

    RowCount and Retractions rules examine the newest commit. Exits with 3 if a rule fails.
    """
    workspace = open_workspace()
    selected = select_datasets(workspace, names, everything, recursive=False)
    datasets = [dataset.on_branch(branch) for dataset in selected]
    requests = [(Check(dataset.id, branch), branch_title(dataset.name, branch)) for dataset in datasets]
    jobs = follow(workspace, requests)
    results = [job.result_of(Check) for job in jobs if job.state is JobState.done]
    stopped = [job for job in jobs if job.state is not JobState.done]
    for job in stopped:
        print_failure(job)
    checked = [result for result in results if result is not None]
    show(
        [
            {"name": result.name, "results": [result_json(rule) for rule in result.results]}
            for result in checked
        ],
        lambda: _print_results(checked),
    )
    sys.exit(exit_code(jobs) if stopped else 3 if any(result.failed for result in checked) else 0)


def _print_results(results: Sequence[CheckResult]) -> None:
    rows = [
        [result.title, rule.check, rule.rule, rule.outcome, format_count(rule.examined), rule.message]
        for result in results
        for rule in result.results
    ]
    if rows:
        print_table(
            ["dataset", "check", "rule", "outcome", "rows", "problem"],
            [[printable(cell) for cell in row] for row in rows],
            right=["rows"],
        )
    for result in results:
        if not result.results:
            print_note(f"{result.title}: no checks or no rows")


@command.subcommand("results", example="odf check results my.cases", json=True)
@click.argument("name", type=DATASET)
@click.option("-n", "limit", type=click.IntRange(1), default=20, show_default=True, help="Number of blocks.")
def check_results(name: str, limit: int) -> None:
    """List the results of checks for the newest blocks of a dataset, newest first."""
    dataset = open_workspace().resolve(name)
    reports = dataset.checks(limit)[::-1]
    rows = [
        [
            str(report["block"]),
            printable(result["check"]),
            printable(result["rule"]),
            result["outcome"],
            format_count(result["examined"]),
            printable(result["message"] or ""),
            "yes" if report["signed"] else "no",
        ]
        for report in reports
        for result in report["results"]
    ]
    headers = ["block", "check", "rule", "outcome", "rows", "problem", "signed"]
    empty = "" if reports else f"{dataset.name}: no results of checks"
    show(reports, Table(headers, rows, ["block", "rows"], empty))


@command.subcommand("rejected", example="odf check rejected my.cases", json=True)
@click.argument("name", required=False, type=DATASET)
def rejected_rows(name: str | None) -> None:
    """List batches of rows that were not committed, with the violated rules.

    The cache of the workspace stores the rows of the newest 20 batches of each dataset, at most 1 GiB.
    """
    workspace = open_workspace()
    datasets = list(workspace) if name is None else [workspace.resolve(name)]
    aliases = {dataset.id: dataset.name for dataset in datasets}
    rejected = workspace.rejected_batches(list(aliases))
    documents = [
        {
            "dataset": aliases[batch.report.dataset_id],
            "time": batch.report.system_time,
            "rows": batch.rows,
            "file": str(batch.path),
            "results": [result_json(result) for result in batch.report.results],
        }
        for batch in rejected
    ]
    show(documents, lambda: _print_rejected(rejected, aliases, use_timezone(workspace)))


def _print_rejected(rejected: Sequence[RejectedBatch], aliases: Mapping[str, str], zone: str) -> None:
    if not rejected:
        print_note("no rejected rows")
    for batch in rejected:
        time = format_time_seconds(batch.report.system_time)
        rows = count_of(batch.rows, "row")
        sys.stdout.write(f"{aliases[batch.report.dataset_id]}  {time} {zone}  {rows}  {batch.path}\n")
        for result in batch.report.failed + batch.report.warnings:
            sys.stdout.write(f"  {result.outcome}: {printable(result.text)}\n")
            for row in result.sample:
                text = ", ".join(f"{key}={value}" for key, value in row.items())
                sys.stdout.write(f"    {printable(text)}\n")
