"""FlowsScreen: the flows of the workspace, and their runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from textual.binding import Binding, BindingType

from odf_engine.api import Flow, Job, JobWarning, Run, Timestamp
from odf_engine.api.flows import FlowSummary, WorkspaceFlows
from odf_engine.api.text import count_of, format_time_seconds, printable, zone_label
from odf_tui.features.automation.document_editor import Lines
from odf_tui.features.automation.documents_screen import (
    STATE_STYLES,
    Column,
    DocumentLine,
    DocumentsScreen,
    Listing,
)
from odf_tui.features.automation.templates import Template, TemplateDataset, flow_templates
from odf_tui.services import tasks
from odf_tui.text.format import Span, fit_width, format_duration
from odf_tui.text.job_text import jobs_of_run, outcomes_of_run, trial_lines
from odf_tui.widgets.dialogs import TextDialog

_RUNS: Final = 50
_OUTPUT_LINES: Final = 20
"""Number of the last lines of the newest run's output in the list of runs."""
_OUTCOME: Final = 12


class RunLogs(NamedTuple):
    """What runs did.

    Attributes:
        jobs: jobs by id, as far as the job log has them.
        warnings: the warnings of the tasks, by the id of the run.
        outputs: outputs of the commands, by the id of the run.
    """

    jobs: Mapping[str, Job]
    warnings: Mapping[int, Sequence[JobWarning]]
    outputs: Mapping[int, str]


class FlowsScreen(DocumentsScreen[Flow]):
    """Lists the flows with the runs of one, and pauses, resumes and runs flows."""

    kind = Flow
    columns = (
        Column("flow"),
        Column("state", 9),
        Column("trigger", 24, wide=True),
        Column("next run", 14),
        Column("last run", _OUTCOME),
    )
    advice = (
        "no flows yet: press n",
        "A flow runs tasks by schedule, or when datasets change: odf help flows",
    )
    keys = "⏎ runs · p pauses · o output"
    poll_seconds = 1.0

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("5", "dismiss(None)", "close", show=False),
        Binding("enter", "run", "run the flow now", show=False),
        Binding("o", "output", "show the complete output of the runs", show=False),
        Binding("p", "pause", "pause the flow; or resume it, and accept its definition", show=False),
    ]
    _flows: WorkspaceFlows | None = None
    _summaries: Mapping[str, FlowSummary] = {}

    def heading(self) -> str:
        """Return the title."""
        return f"Flows (times: {zone_label()})"

    @property
    def flows(self) -> WorkspaceFlows:
        """The flows of the workspace."""
        if self._flows is None:
            self._flows = self.workspace.flows()
        return self._flows

    def on_unmount(self) -> None:
        """Close the file of states."""
        if self._flows is not None:
            self._flows.close()

    def on_line_view_opened(self) -> None:
        """Run the flow that was double-clicked."""
        self.action_run()

    def load(self, name: str) -> Listing:
        """Read the flows, and the runs of one."""
        summaries = self.flows.summaries()
        self._summaries = {flow.name: flow for flow in summaries}
        flow = self._summaries.get(name) or next(iter(summaries), None)
        lines = [_line(flow) for flow in summaries]
        if flow is None:
            return Listing(lines, "", [])
        runs = self.flows.runs(flow.name, _RUNS)
        jobs = self.flows.jobs_of(runs)
        logs = RunLogs(jobs, self.flows.warnings(runs, jobs), self.flows.outputs(runs[:1]))
        return Listing(lines, flow.name, about_lines(flow, runs, logs))

    def templates(self, dataset: TemplateDataset, used: Collection[str]) -> list[Template]:
        """Return the templates of flows."""
        return flow_templates(dataset, used)

    def accept(self, document: Flow) -> None:
        """Accept a flow. If it is paused, it stays paused."""
        self.flows.accept(document)

    def delete(self, name: str) -> None:
        """Remove a flow."""
        self.flows.remove(name)

    def trial(self) -> Callable[[str], Awaitable[Lines]] | None:
        """Return a function that checks whether a flow can run, and lists what would run."""
        return self._try

    async def _try(self, text: str) -> Lines:
        """Return what a run of a flow would do, and its next times.

        Raises:
            OdfError: the definition is invalid, or a target matches no dataset.
        """

        def lines() -> Lines:
            flow = self._parse(text, "")
            self.workspace.check_document(flow)
            return [
                [(f" {printable(line)}", style)] for line, style in trial_lines(self.workspace.try_flow(flow))
            ]

        return await asyncio.to_thread(lines)

    def remove_remark(self) -> str:
        """Return what remains of a removed flow."""
        return "Its history is retained."

    def action_run(self) -> None:
        """Run the flow under the cursor now."""
        flow = self._summaries.get(self.selected)
        if flow is None:
            return
        if flow.state in ("new", "changed", "invalid"):
            way_out = "press e to correct it" if flow.state == "invalid" else "press p to accept it"
            self.say(f"{flow.name} is {flow.state}: {way_out}", "warn")
            return
        self.start(self.change(lambda: self.flows.request(flow.name), f"{flow.name} runs now"))

    def action_output(self) -> None:
        """Show the output of the runs of the flow under the cursor."""
        if name := self.selected:
            self.start(self._show_output(name))

    async def _show_output(self, name: str) -> None:
        runs = await asyncio.to_thread(self.flows.runs, name, _RUNS)
        outputs = await asyncio.to_thread(self.flows.outputs, runs)
        shown = [run for run in runs if run.id in outputs]
        if not shown:
            self.say(f"no run of {name} has output: only tasks of the kind Command have some", "warn")
            return
        at = 0

        def page() -> tuple[str, list[list[Span]]]:
            run = shown[at]
            begun = format_time_seconds(Timestamp.from_seconds(run.begun))
            lines: list[list[Span]] = [[(f" {printable(line)}", "")] for line in outputs[run.id].splitlines()]
            return f"Output of {name}: run {run.id}, {begun}", lines

        def step(by: int) -> None:
            nonlocal at
            at = max(min(at - by, len(shown) - 1), 0)
            dialog.show(*page())

        dialog = TextDialog(*page(), lambda text: self.host.copy_text("output", text), step)
        await tasks.ask(self.app, dialog)

    def action_pause(self) -> None:
        """Pause the flow under the cursor; resume it, and accept its definition, if it is not active."""
        flow = self._summaries.get(self.selected)
        if flow is None:
            return
        if flow.state in ("active", "running"):
            self.start(self.change(lambda: self.flows.pause(flow.name), f"paused {flow.name}"))
        else:
            self.start(self.change(lambda: self.flows.resume(flow.name), f"resumed {flow.name}"))


def _line(flow: FlowSummary) -> DocumentLine:
    last = flow.last.state if flow.last else ""
    cells = [
        (flow.state, STATE_STYLES.get(flow.state, "")),
        (flow.triggers, "muted"),
        (until_text(flow.due, time.time()), ""),
        (last, STATE_STYLES.get(last, "")),
    ]
    return DocumentLine(flow.name, cells)


def until_text(due: float | None, now: float) -> str:
    """Return the time until a run as text."""
    if due is None:
        return "–"
    return "now" if due <= now else f"in {format_duration(max(due - now, 1))}"


def run_lines(runs: Sequence[Run], logs: RunLogs) -> list[list[Span]]:
    """Return the lines of runs, newest first: start, outcome, trigger, duration, reason, results, output."""
    lines: list[list[Span]] = []
    for run in runs:
        begun = format_time_seconds(Timestamp.from_seconds(run.begun))
        took = "" if run.ended is None else format_duration(run.ended - run.begun)
        trigger = run.trigger + (f" {run.attempt}" if run.attempt else "")
        jobs = f"  jobs {' '.join(run.jobs)}" if run.jobs else ""
        lines.append(
            [
                (f" {begun}  ", "muted"),
                (fit_width(run.state, _OUTCOME), STATE_STYLES.get(run.state, "")),
                (f"{fit_width(trigger, 10)} {fit_width(took, 8)}{jobs}", ""),
            ]
        )
        if run.reason:
            lines.append([(f"   {printable(run.reason)}", STATE_STYLES.get(run.state, ""))])
        for text in outcomes_of_run(jobs_of_run(run, logs.jobs), logs.warnings[run.id]):
            lines.append([(f"   {printable(text)}", "warn" if text.startswith("warning: ") else "muted")])
        output = logs.outputs.get(run.id, "").splitlines()
        if len(output) > _OUTPUT_LINES:
            lines.append([(f"   … {count_of(len(output) - _OUTPUT_LINES, 'line')} before: press o", "muted")])
        lines += [[(f"   {printable(text)}", "muted")] for text in output[-_OUTPUT_LINES:]]
    return lines


def about_lines(flow: FlowSummary, runs: Sequence[Run], logs: RunLogs) -> list[list[Span]]:
    """Return the lines about a flow: targets, triggers, reason, runs, output of the newest run."""
    lines: list[list[Span]] = []
    if flow.state in ("new", "changed"):
        lines.append([(f" {flow.state}: press a to review and accept it", "warn")])
    elif flow.reason:
        lines.append([(f" {printable(flow.reason)}", STATE_STYLES.get(flow.state, "warn"))])
    if flow.targets:
        lines.append([(" target ", "muted"), (printable(", ".join(flow.targets)), "name")])
        lines.append([(" starts ", "muted"), (printable(flow.triggers), "")])
    if not runs:
        return [*lines, [], [(" no runs yet", "muted")]]
    failed = sum(run.state == "failed" for run in runs)
    newest = f" newest {count_of(len(runs), 'run')}" + (f", {failed} failed" if failed else "")
    return [*lines, [], [(newest, "head")], *run_lines(runs, logs)]
