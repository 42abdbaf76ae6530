"""flow, check: scheduled and triggered runs, checks of new rows."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
from msgspec import to_builtins

from odf_engine.api.flows import FlowSummary, WorkspaceFlows
from odf_engine.api.text import count_of, format_count, format_time_seconds, printable, zone_label
from odf_engine.checks.definition import CheckDefinition, accepted_checks, check_files
from odf_engine.checks.reports import list_rejected, read_report, report_json, result_json
from odf_engine.coordinator.client import Client
from odf_engine.coordinator.protocol import Job, JobState
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.flows.documents import Unreadable
from odf_engine.flows.store import FlowStore, Run
from odf_engine.jobs.base import branch_title
from odf_engine.jobs.check import Check
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.follow import exit_code, follow, print_failure
from odf_tui.cli.output import (
    branch_option,
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_table,
    read_bytes,
    use_timezone,
    verb,
)
from odf_tui.cli.pull import select_datasets
from odf_tui.text.format import format_duration
from odf_tui.text.job_text import job_outcome, jobs_of_run, outcomes_of_jobs


@click.group("flow", epilog="Example:  odf flow add nightly.yaml")
def flow_verb() -> None:
    """Run tasks by schedule, or when datasets change.

    A flow has targets, triggers and tasks. Its definition is a YAML file in the folder .odf/flows. The worker
    runs flows; `odf worker install` starts it with the computer. See odf help flows.
    """


@contextlib.contextmanager
def _open_flows() -> Iterator[tuple[Workspace, WorkspaceFlows]]:
    workspace = open_workspace()
    with contextlib.closing(WorkspaceFlows(workspace.odf)) as flows:
        use_timezone(workspace)
        yield workspace, flows


def _start_worker(workspace: Workspace) -> None:
    """Start the worker, which runs flows."""

    async def start() -> None:
        client = await Client.connect(workspace.folder, warm=False)  # a task starts Spark if it needs it
        await client.close()

    asyncio.run(start())


@verb("add", example="odf flow add nightly.yaml")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--replace", is_flag=True, help="Replace a flow of the same name.")
def add(files: Sequence[str], replace: bool) -> None:
    """Add flows from YAML files, or from standard input (-)."""
    with _open_flows() as (workspace, flows):
        for file in files:
            source = "standard input" if file == "-" else file
            flow = flows.add(read_bytes(file), source, replace=replace)
            print_note(f"added flow {flow.name}{_next_run(flow.due)}")
        _start_worker(workspace)


@verb("list", example="odf flow list", json=True)
def list_flows() -> None:
    """List the flows with their state, last and next run."""
    with _open_flows() as (_, flows):
        found = flows.summaries()
    if options_of().json:
        return print_json([_flow_json(flow) for flow in found])
    if not found:
        return print_note("no flows; odf flow add FILE adds one, see odf help flows")
    zone = zone_label()
    headers = ["flow", "state", "trigger", f"last run ({zone})", "outcome", f"next run ({zone})"]
    return print_table(
        headers,
        [
            [
                flow.name,
                flow.state,
                flow.triggers,
                format_time_seconds(_timestamp(flow.last.begun)) if flow.last else "",
                flow.last.state if flow.last else "",
                _when(flow.due),
            ]
            for flow in found
        ],
    )


def _flow_json(flow: FlowSummary) -> dict[str, Any]:
    """Return a flow for ``odf flow list --json``."""
    last = flow.last
    return {
        "name": flow.name,
        "state": flow.state,
        "reason": flow.reason or None,
        "triggers": flow.triggers,
        "targets": flow.targets,
        "last_run": _timestamp(last.begun) if last else None,
        "last_state": last.state if last else None,
        "last_reason": (last.reason or None) if last else None,
        "next_run": None if flow.due is None else _timestamp(flow.due),
    }


def _timestamp(seconds: float) -> str:
    return str(Timestamp.from_ms(int(seconds * 1000)))


def _when(due: float | None) -> str:
    if due is None:
        return ""
    return "now" if due <= time.time() else format_time_seconds(_timestamp(due)) or ""


def _next_run(due: float | None) -> str:
    return "" if due is None else f", next run: {_when(due)}"


@verb("show", example="odf flow show nightly")
@click.argument("flow_name", metavar="FLOW")
def show(flow_name: str) -> None:
    """Show the definition of a flow."""
    with _open_flows() as (_, flows):
        flows.files.read(flow_name)
        sys.stdout.write(flows.files.path(flow_name).read_text(encoding="utf-8"))


@verb("pause", example="odf flow pause nightly")
@click.argument("flow_names", nargs=-1, required=True, metavar="FLOW...")
def pause(flow_names: Sequence[str]) -> None:
    """Pause flows: no trigger starts them. A run in progress continues."""
    with _open_flows() as (_, flows):
        for name in flow_names:
            flows.pause(name)
            print_note(f"paused flow {name}")


@verb("resume", example="odf flow resume nightly")
@click.argument("flow_names", nargs=-1, required=True, metavar="FLOW...")
def resume(flow_names: Sequence[str]) -> None:
    """Resume paused flows, and accept new and changed definitions."""
    with _open_flows() as (workspace, flows):
        for name in flow_names:
            print_note(f"resumed flow {name}{_next_run(flows.resume(name).due)}")
        _start_worker(workspace)


@verb("remove", example="odf flow remove nightly")
@click.argument("flow_names", nargs=-1, required=True, metavar="FLOW...")
def remove(flow_names: Sequence[str]) -> None:
    """Remove flows. Their history is retained. A run in progress continues."""
    with _open_flows() as (_, flows):
        for name in flow_names:
            flows.remove(name)
            print_note(f"removed flow {name}")


@verb("run", example="odf flow run nightly")
@click.argument("flow_name", metavar="FLOW")
@click.option("--detach", is_flag=True, help="Do not wait for the end of the run.")
def run(flow_name: str, detach: bool) -> None:
    """Run a flow now, even if it is paused, and wait for its end."""
    with _open_flows() as (workspace, flows):
        flow = flows.summary(flow_name)
        if flow.state in ("new", "changed"):
            raise UsageError(
                f"flow '{flow_name}' is {flow.state}",
                hint=f"review the definition, then accept it: odf flow resume {flow_name}",
            )
        flows.request(flow_name)
        _start_worker(workspace)
        if detach:
            return print_note(
                f"requested a run of flow {flow_name}; odf flow history {flow_name} shows its result"
            )
        found = _wait_for_run(flows.store, flow_name, flow.last.id if flow.last else 0)
    if found.state != "done":
        raise OdfError(f"run {found.id} of flow {flow_name} {found.state}: {found.reason}")
    seconds = (found.ended or found.begun) - found.begun
    return print_note(f"run {found.id} of flow {flow_name}: done in {format_duration(seconds)}")


def _wait_for_run(store: FlowStore, name: str, after: int) -> Run:
    while True:
        found = [run for run in store.runs(name, 10) if run.id > after and run.trigger == "request"]
        if found and found[0].state != "running":
            return found[0]
        time.sleep(0.2)


@verb("history", example="odf flow history nightly", json=True)
@click.argument("flow_name", required=False, metavar="[FLOW]")
@click.option("-n", "limit", type=click.IntRange(1), default=30, show_default=True, help="Number of runs.")
def history(flow_name: str | None, limit: int) -> None:
    """List runs and skipped runs with their reasons, newest first."""
    with _open_flows() as (_, flows):
        runs = flows.store.runs(flow_name, limit)
        jobs = flows.jobs_of(runs)
        if flow_name is not None and not runs and flow_name not in flows.files.stamps():
            raise NotFound(f"flow '{flow_name}' not found", hint="list the flows: odf flow list")
    if options_of().json:
        return print_json([_run_json(run, jobs_of_run(run, jobs)) for run in runs])
    headers = [
        "run",
        "flow",
        f"started ({zone_label()})",
        "duration",
        "trigger",
        "state",
        "jobs",
        "reason or results",
    ]
    return print_table(
        headers,
        [
            [
                str(run.id),
                run.flow,
                format_time_seconds(_timestamp(run.begun)),
                "" if run.ended is None else format_duration(run.ended - run.begun),
                run.trigger + (f" {run.attempt}" if run.attempt else ""),
                run.state,
                " ".join(run.jobs),
                printable(
                    "; ".join([*filter(None, [run.reason]), *outcomes_of_jobs(jobs_of_run(run, jobs))])
                ),
            ]
            for run in runs
        ],
        right=["run", "duration"],
    )


def _run_json(run: Run, jobs: Sequence[Job]) -> dict[str, Any]:
    return {
        "id": run.id,
        "flow": run.flow,
        "trigger": run.trigger,
        "attempt": run.attempt,
        "state": run.state,
        "reason": run.reason or None,
        "due": _timestamp(run.due),
        "begun": _timestamp(run.begun),
        "ended": None if run.ended is None else _timestamp(run.ended),
        "jobs": run.jobs,
        "results": [
            {"job": job.id, "kind": job.kind, "dataset": job.target, "text": job_outcome(job)[0]}
            for job in jobs
        ],
        "warnings": [to_builtins(warning) for job in jobs for warning in job.warnings],
    }


for command in (add, list_flows, show, pause, resume, remove, run, history):
    flow_verb.add_command(command)


# --- check -------------------------------------------------------------------------------------------


@click.group("check", epilog="Example:  odf check add cases.yaml")
def check_verb() -> None:
    """Check new rows of datasets before they are committed.

    A check is a YAML file in the folder .odf/checks with targets and rules. Pulls, ingests and transforms
    evaluate the rules on new rows. If a rule fails, nothing is committed. See `odf help checks`.
    """


@verb("add", example="odf check add cases.yaml")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--replace", is_flag=True, help="Replace a check of the same name.")
def add_check(files: Sequence[str], replace: bool) -> None:
    """Add checks from YAML files or standard input (-), and accept their queries."""
    workspace = open_workspace()
    for file in files:
        source = "standard input" if file == "-" else file
        check = check_files(workspace.odf).write(read_bytes(file), source, replace=replace)
        accepted_checks(workspace.odf).accept(check.name, check.digest)
        print_note(f"added check {check.name}, {count_of(len(check.spec.rules), 'rule')}")


@verb("list", example="odf check list", json=True)
def list_checks() -> None:
    """List the checks with their state, targets and rules."""
    workspace = open_workspace()
    accepted = accepted_checks(workspace.odf).read()
    rows = [_check_json(each, accepted.get(each.name)) for each in check_files(workspace.odf).read_all()]
    if options_of().json:
        return print_json(rows)
    if not rows:
        return print_note("no checks; to add one: odf check add FILE, see odf help checks")
    return print_table(
        ["check", "state", "target", "rules"],
        [
            [
                row["name"],
                row["state"] + (f": {row['reason']}" if row["reason"] else ""),
                ", ".join(row["targets"]),
                printable(", ".join(row["rules"])),
            ]
            for row in rows
        ],
    )


def _check_json(check: CheckDefinition | Unreadable, accepted: str | None) -> dict[str, Any]:
    """Return a check for ``odf check list --json``."""
    if isinstance(check, Unreadable):
        reason = check.error.format_line
        return {"name": check.name, "state": "invalid", "reason": reason, "targets": [], "rules": []}
    state = "active"
    if check.has_queries and accepted != check.digest:
        state = "new" if accepted is None else "changed"
    return {
        "name": check.name,
        "state": state,
        "reason": None if state == "active" else f"odf check accept {check.name} accepts its queries",
        "targets": list(map(str, check.spec.targets)),
        "rules": [rule.label for rule in check.spec.rules],
    }


@verb("show", example="odf check show cases")
@click.argument("check_name", metavar="CHECK")
def show_check(check_name: str) -> None:
    """Show the definition of a check."""
    files = check_files(open_workspace().odf)
    sys.stdout.write(files.text(check_name).decode(errors="replace"))


@verb("accept", example="odf check accept cases")
@click.argument("check_names", nargs=-1, required=True, metavar="CHECK...")
def accept_checks(check_names: Sequence[str]) -> None:
    """Accept the queries of new and changed checks. Review the files first."""
    workspace = open_workspace()
    for name in check_names:
        check = check_files(workspace.odf).read(name)
        accepted_checks(workspace.odf).accept(name, check.digest)
        print_note(f"accepted check {name}")


@verb("remove", example="odf check remove cases")
@click.argument("check_names", nargs=-1, required=True, metavar="CHECK...")
def remove_checks(check_names: Sequence[str]) -> None:
    """Remove checks. Their results are retained."""
    workspace = open_workspace()
    for name in check_names:
        check_files(workspace.odf).remove(name)
        accepted_checks(workspace.odf).accept(name, None)
        print_note(f"removed check {name}")


@verb("run", example="odf check run my.cases", json=True)
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Check all datasets of the workspace.")
@branch_option("Check the rows of this branch of the datasets.")
def run_checks(names: tuple[str, ...], everything: bool, branch: str) -> None:
    """Evaluate the checks of datasets on their stored rows.

    RowCount and Retractions rules examine the newest commit. Exits with 3 if a rule fails.
    """
    workspace = open_workspace()
    selected = select_datasets(workspace, names, everything, recursive=False)
    entries = [entry.on_branch(branch) for entry in selected]
    requests = [(Check(str(entry.id), branch), branch_title(str(entry.alias), branch)) for entry in entries]
    jobs = follow(workspace, requests)
    results = [job.result_of(Check) for job in jobs if job.state is JobState.done]
    stopped = [job for job in jobs if job.state is not JobState.done]
    for job in stopped:
        print_failure(job)
    found = [result for result in results if result is not None]
    if options_of().json:
        print_json(
            [{"name": each.name, "results": [result_json(rule) for rule in each.results]} for each in found]
        )
    else:
        rows = [
            [each.title, rule.check, rule.rule, rule.outcome, format_count(rule.examined), rule.message]
            for each in found
            for rule in each.results
        ]
        if rows:
            print_table(
                ["dataset", "check", "rule", "outcome", "rows", "problem"],
                [[printable(cell) for cell in row] for row in rows],
                right=["rows"],
            )
        for each in found:
            if not each.results:
                print_note(f"{each.title}: no checks or no rows")
    sys.exit(exit_code(jobs) if stopped else 3 if any(each.failed for each in found) else 0)


@verb("results", example="odf check results my.cases", json=True)
@click.argument("name")
@click.option("-n", "limit", type=click.IntRange(1), default=20, show_default=True, help="Number of blocks.")
def check_results(name: str, limit: int) -> None:
    """List the results of checks for the newest blocks of a dataset, newest first."""
    workspace = open_workspace()
    entry = workspace.resolve(name)
    rows: list[dict[str, Any]] = []
    for data_slice in reversed(entry.dataset.slices()):
        stored = read_report(entry.dataset.folder, entry.id, data_slice.physical_hash)
        if stored is not None:
            rows.append({"block": data_slice.sequence_number, **report_json(stored)})
        if len(rows) == limit:
            break
    if options_of().json:
        return print_json(rows)
    if not rows:
        return print_note(f"{entry.alias}: no results of checks")
    return print_table(
        ["block", "check", "rule", "outcome", "rows", "problem", "signed"],
        [
            [
                str(row["block"]),
                printable(result["check"]),
                printable(result["rule"]),
                result["outcome"],
                format_count(result["examined"]),
                printable(result["message"] or ""),
                "yes" if row["signed"] else "no",
            ]
            for row in rows
            for result in row["results"]
        ],
        right=["block", "rows"],
    )


@verb("rejected", example="odf check rejected my.cases", json=True)
@click.argument("name", required=False)
def rejected_rows(name: str | None) -> None:
    """List batches of rows that were not committed, with the violated rules.

    The cache of the workspace stores the rows of the newest 20 batches of each dataset, at most 1 GiB.
    """
    workspace = open_workspace()
    entries = workspace.datasets() if name is None else [workspace.resolve(name)]
    aliases = {str(entry.id): str(entry.alias) for entry in entries}
    rejected = list_rejected(workspace.odf, [entry.id for entry in entries])
    if options_of().json:
        return print_json(
            [
                {
                    "dataset": aliases[each.report.dataset_id],
                    "time": each.report.system_time,
                    "rows": each.rows,
                    "file": str(each.path),
                    "results": [result_json(result) for result in each.report.results],
                }
                for each in rejected
            ]
        )
    if not rejected:
        return print_note("no rejected rows")
    zone = use_timezone(workspace)
    for each in rejected:
        when = format_time_seconds(each.report.system_time)
        rows = count_of(each.rows, "row")
        sys.stdout.write(f"{aliases[each.report.dataset_id]}  {when} {zone}  {rows}  {each.path}\n")
        for result in each.report.failed + each.report.warnings:
            sys.stdout.write(f"  {result.outcome}: {printable(result.text)}\n")
            for row in result.sample:
                text = ", ".join(f"{key}={value}" for key, value in row.items())
                sys.stdout.write(f"    {printable(text)}\n")
    return None


for command in (
    add_check, list_checks, show_check, accept_checks, remove_checks, run_checks, check_results, rejected_rows
):  # fmt: skip
    check_verb.add_command(command)
