"""Run tasks by schedule, or when datasets change.

A flow has targets, triggers and tasks. Its definition is a YAML file in the folder .odf/flows. The worker
runs flows; `odf worker install` starts it with the computer. See odf help flows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import click

from odf_engine.api import Flow, Job, JobWarning, Run, Timestamp
from odf_engine.api.flows import FlowSummary, WorkspaceFlows
from odf_engine.api.text import format_time_seconds, printable, zone_label
from odf_engine.api.workspace import Workspace
from odf_engine.errors import OdfError, UsageError
from odf_tui.cli.shared.documents import DocumentCommands
from odf_tui.cli.shared.options import CommandGroup, options_of
from odf_tui.cli.shared.output import Table, print_note, print_result, select_fields, show
from odf_tui.cli.shared.workspace import open_workspace, start_worker, use_timezone
from odf_tui.text.format import format_duration
from odf_tui.text.job_text import job_outcome, jobs_of_run, outcomes_of_run, trial_lines

ORDER = 420
MEANINGS = "flows schedule cron timer trigger pipeline automate"

command = CommandGroup("flow", help=__doc__, example="odf flow add nightly.yaml")


@contextlib.contextmanager
def _open_flows() -> Iterator[tuple[Workspace, WorkspaceFlows]]:
    workspace = open_workspace()
    with contextlib.closing(workspace.flows()) as flows:
        use_timezone(workspace)
        yield workspace, flows


class _FlowCommands(DocumentCommands[Flow]):
    kind, example, accepted = Flow, "nightly", "resumed"
    help: ClassVar = {
        "add": "Add flows from YAML files, or from standard input (-).",
        "accept": "Resume paused flows, and accept new and changed definitions.",
        "remove": "Remove flows. Their history is retained. A run in progress continues.",
    }

    def open(self) -> Workspace:
        workspace = open_workspace()
        use_timezone(workspace)
        return workspace

    def accept(self, workspace: Workspace, document: Flow) -> str:
        with contextlib.closing(workspace.flows()) as flows:
            due = flows.resume(document.name).due
        return "" if due is None else f", next run: {_due_text(due)}"

    def remove(self, workspace: Workspace, name: str) -> None:
        with contextlib.closing(workspace.flows()) as flows:
            flows.remove(name)

    def finish(self, workspace: Workspace) -> None:
        start_worker(workspace)


_FlowCommands().define(command)


@command.subcommand("list", example="odf flow list", json=True)
def list_flows() -> None:
    """List the flows with their state, last and next run."""
    with _open_flows() as (_, flows):
        summaries = flows.summaries()
    zone = zone_label()
    rows = [
        [
            flow.name,
            flow.state,
            flow.triggers,
            format_time_seconds(_timestamp(flow.last.begun)) if flow.last else "",
            flow.last.state if flow.last else "",
            _due_text(flow.due),
        ]
        for flow in summaries
    ]
    headers = ["flow", "state", "trigger", f"last run ({zone})", "outcome", f"next run ({zone})"]
    empty = "no flows; odf flow add FILE adds one, see odf help flows"
    show([_flow_json(flow) for flow in summaries], Table(headers, rows, empty=empty))


def _flow_json(flow: FlowSummary) -> dict[str, Any]:
    """Return a flow for ``--json``, where times are RFC 3339 and missing texts are null."""
    last = flow.last
    return {
        **select_fields(flow, "name", "state"),
        "reason": flow.reason or None,
        **select_fields(flow, "triggers", "targets"),
        "last_run": _timestamp(last.begun) if last else None,
        "last_state": last.state if last else None,
        "last_reason": (last.reason or None) if last else None,
        "next_run": None if flow.due is None else _timestamp(flow.due),
    }


def _timestamp(seconds: float) -> str:
    return str(Timestamp.from_ms(int(seconds * 1000)))


def _due_text(due: float | None) -> str:
    if due is None:
        return ""
    return "now" if due <= time.time() else format_time_seconds(_timestamp(due)) or ""


@command.subcommand("pause", example="odf flow pause nightly")
@click.argument("flow_names", nargs=-1, required=True, metavar="FLOW...")
def pause(flow_names: Sequence[str]) -> None:
    """Pause flows: no trigger starts them. A run in progress continues."""
    with _open_flows() as (_, flows):
        for name in flow_names:
            flows.pause(name)
            print_note(f"paused flow {name}")


@command.subcommand("run", example="odf flow run nightly")
@click.argument("flow_name", metavar="FLOW")
@click.option("--detach", is_flag=True, help="Do not wait for the end of the run.")
@click.option("--dry-run", is_flag=True, help="Only check the flow, and print what would run and when.")
def run(flow_name: str, detach: bool, dry_run: bool) -> None:
    """Run a flow now, even if it is paused, and wait for its end."""
    with _open_flows() as (workspace, flows):
        if dry_run:
            flow_trial = workspace.try_flow(flows.documents.read(flow_name))
            print_result("\n".join(printable(line) for line, _ in trial_lines(flow_trial)))
            if flow_trial.problems:
                replace = f"if you change the flow, replace it: odf flow add {flow_name}.yaml --replace"
                raise OdfError(f"flow '{flow_name}' cannot run", hint=f"fix the problems above; {replace}")
            return
        flow = flows.summary(flow_name)
        if flow.state in ("new", "changed"):
            raise UsageError(
                f"flow '{flow_name}' is {flow.state}",
                hint=f"review the definition, then accept it: odf flow resume {flow_name}",
            )
        flows.request(flow_name)
        start_worker(workspace)
        if detach:
            print_note(f"requested a run of flow {flow_name}; odf flow history {flow_name} shows its result")
            return
        ended = _wait_for_run(flows, flow_name, flow.last.id if flow.last else 0)
    if ended.state != "done":
        raise OdfError(f"run {ended.id} of flow {flow_name} {ended.state}: {ended.reason}")
    seconds = (ended.ended or ended.begun) - ended.begun
    print_note(f"run {ended.id} of flow {flow_name}: done in {format_duration(seconds)}")


def _wait_for_run(flows: WorkspaceFlows, name: str, after: int) -> Run:
    while True:
        runs = [run for run in flows.runs(name, 10) if run.id > after and run.trigger == "request"]
        if runs and runs[0].state != "running":
            return runs[0]
        time.sleep(0.2)


@command.subcommand("history", example="odf flow history nightly", json=True)
@click.argument("flow_name", required=False, metavar="[FLOW]")
@click.option("-n", "limit", type=click.IntRange(1), default=30, show_default=True, help="Number of runs.")
@click.option("--logs", is_flag=True, help="Show also the output of the commands of the runs.")
def history(flow_name: str | None, limit: int, logs: bool) -> None:
    """List runs and skipped runs with their reasons, newest first."""
    with _open_flows() as (_, flows):
        runs = flows.runs(flow_name, limit)
        jobs, outputs = flows.jobs_of(runs), flows.outputs(runs)
        warnings = flows.warnings(runs, jobs)
        if flow_name is not None and not runs:
            flows.documents.require(flow_name)

    def outcomes(run: Run) -> Iterator[str]:
        return outcomes_of_run(jobs_of_run(run, jobs), warnings[run.id])

    rows = [
        [
            str(run.id),
            run.flow,
            format_time_seconds(_timestamp(run.begun)),
            "" if run.ended is None else format_duration(run.ended - run.begun),
            run.trigger + (f" {run.attempt}" if run.attempt else ""),
            run.state,
            " ".join(run.jobs),
            printable("; ".join([*filter(None, [run.reason]), *outcomes(run)])),
        ]
        for run in runs
    ]
    headers = ["run", "flow", f"started ({zone_label()})", "duration", "trigger", "state", "jobs"]
    show(
        [_run_json(run, jobs_of_run(run, jobs), warnings[run.id], outputs.get(run.id)) for run in runs],
        Table([*headers, "reason or results"], rows, ["run", "duration"]),
    )
    if logs and not options_of().json:
        for run in runs:
            if run.id in outputs:
                print_result(f"\nrun {run.id} of flow {run.flow}:\n{outputs[run.id].rstrip()}")


def _run_json(
    run: Run, jobs: Sequence[Job], warnings: Sequence[JobWarning], output: str | None
) -> dict[str, Any]:
    """Return a run for ``--json``, with the results and warnings of its jobs, and the output of its commands.

    Times are RFC 3339.
    """
    return {
        **select_fields(run, "id", "flow", "trigger", "attempt", "state"),
        "reason": run.reason or None,
        "due": _timestamp(run.due),
        "begun": _timestamp(run.begun),
        "ended": None if run.ended is None else _timestamp(run.ended),
        "jobs": run.jobs,
        "results": [
            {"job": job.id, "kind": job.kind, "dataset": job.target, "text": job_outcome(job)[0]}
            for job in jobs
        ],
        "warnings": warnings,
        "output": output,
    }
