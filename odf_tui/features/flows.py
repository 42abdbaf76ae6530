"""FlowsController: the flows with their runs, the checks of a dataset, the messages of alerts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.api import Check, CheckReport, Delivery, Job, Run, Timestamp
from odf_engine.api.flows import ChecksView, FlowSummary, WorkspaceFlows
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import count_of, format_time_seconds, printable, zone_label
from odf_engine.errors import OdfError
from odf_tui.services.controller import Controller, dataset_task, task
from odf_tui.text.format import Span, error_with_hint, fit_width, format_duration
from odf_tui.text.job_text import jobs_of_run, latest_check_spans, outcomes_of_jobs
from odf_tui.widgets.dialogs import MOVE_KEYS, ConfirmDialog, DecisionDialog, Dialog
from odf_tui.widgets.line_view import LineView, WrappedLines

_POLL_SECONDS: Final = 1.0
_RUNS: Final = 50
_COMMITS: Final = 20
"""Number of commits whose results of checks are shown."""
_KEYS: Final = "⏎ runs now · p pauses, resumes · x removes · esc closes"
_MESSAGES: Final = 50
_DELIVERY_STATE: Final = 8
_DELIVERY_STYLES: Final = {"sent": "good", "queued": "busy", "dead": "bad"}
_STATE: Final = 9
_NEXT: Final = 14
_OUTCOME: Final = 12
_TRIGGER: Final = 24
_WIDE: Final = 90
"""Width of the list in cells from which it shows triggers."""
_STYLES: Final = {
    "active": "good", "running": "busy", "paused": "warn", "new": "warn", "changed": "warn", "invalid": "bad",
    "done": "good", "failed": "bad", "skipped": "muted", "interrupted": "warn",
}  # fmt: skip


class FlowList(LineView):
    """The list of flows: name, state, triggers, time until the next run, outcome of the last run."""

    headed = True

    def __init__(self) -> None:
        super().__init__(id="flows")
        self.active = True
        self.flows: list[FlowSummary] | None = None

    def show_flows(self, flows: list[FlowSummary]) -> None:
        """Show flows. The cursor stays on its flow."""
        name = self.flow.name if self.flow else ""
        self.flows = flows
        self.cursor = next((at for at, flow in enumerate(flows) if flow.name == name), self.cursor)
        self.reset()

    @property
    def flow(self) -> FlowSummary | None:
        """The flow under the cursor."""
        return self.flows[self.cursor] if self.flows and self.cursor < len(self.flows) else None

    def count(self) -> int:
        """Return the number of flows."""
        return len(self.flows or ())

    def _widths(self) -> tuple[int, int]:
        """Return the widths of name and triggers in cells, or 0 for no triggers."""
        width = self.room.width
        trigger = _TRIGGER if width >= _WIDE else 0
        return max(width - trigger - _STATE - _NEXT - _OUTCOME - 5, 8), trigger

    def header(self) -> Sequence[Span]:
        """Return the header line."""
        name, trigger = self._widths()
        cells = [
            ("flow", name),
            ("state", _STATE),
            ("trigger", trigger),
            ("next run", _NEXT),
            ("last run", _OUTCOME),
        ]
        return [(" " + " ".join(fit_width(text, width) for text, width in cells if width), "head")]

    def spans(self, index: int) -> Sequence[Span]:
        """Return the line of a flow."""
        if self.flows is None:
            return ()
        flow = self.flows[index]
        name, trigger = self._widths()
        last = flow.last.state if flow.last else ""
        spans: list[Span] = [
            (f" {fit_width(printable(flow.name), name)} ", "name"),
            (fit_width(flow.state, _STATE) + " ", _STYLES.get(flow.state, "")),
        ]
        if trigger:
            spans.append((fit_width(printable(flow.triggers), trigger) + " ", "muted"))
        spans.append((fit_width(until_text(flow.due, time.time()), _NEXT) + " ", ""))
        return [*spans, (fit_width(last, _OUTCOME), _STYLES.get(last, ""))]

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the message for no flows."""
        if self.flows is None:
            return ()
        return [
            [],
            [(" no flows yet: odf flow add FILE", "")],
            [(" A flow runs tasks by schedule, or when datasets change: odf help flows", "muted")],
        ]


def until_text(due: float | None, now: float) -> str:
    """Return the time until a run as text."""
    if due is None:
        return "–"
    return "now" if due <= now else f"in {format_duration(max(due - now, 1))}"


def run_lines(runs: Sequence[Run], known: Mapping[str, Job], outputs: Mapping[int, str]) -> list[list[Span]]:
    """Return the lines of runs, newest first: start, outcome, trigger, duration, reason, results, output.

    Args:
        runs: the runs.
        known: their jobs by id, as far as the job log has them.
        outputs: outputs of their commands, by the id of the run.
    """
    lines: list[list[Span]] = []
    for run in runs:
        begun = format_time_seconds(Timestamp.from_seconds(run.begun))
        took = "" if run.ended is None else format_duration(run.ended - run.begun)
        trigger = run.trigger + (f" {run.attempt}" if run.attempt else "")
        jobs = f"  jobs {' '.join(run.jobs)}" if run.jobs else ""
        lines.append(
            [
                (f" {begun}  ", "muted"),
                (fit_width(run.state, _OUTCOME), _STYLES.get(run.state, "")),
                (f"{fit_width(trigger, 10)} {fit_width(took, 8)}{jobs}", ""),
            ]
        )
        if run.reason:
            lines.append([(f"   {printable(run.reason)}", _STYLES.get(run.state, ""))])
        for text in outcomes_of_jobs(jobs_of_run(run, known)):
            lines.append([(f"   {printable(text)}", "warn" if text.startswith("warning: ") else "muted")])
        for text in outputs.get(run.id, "").splitlines():
            lines.append([(f"   {printable(text)}", "muted")])
    return lines


class _Loaded(NamedTuple):
    flows: list[FlowSummary]
    runs: list[Run]
    jobs: dict[str, Job]
    outputs: dict[int, str]
    name: str


class FlowsScreen(Dialog[None]):
    """Shows the flows and the runs of one, and pauses, resumes, runs and removes flows.

    Args:
        open_flows: opens the flows of the workspace. It is called in a thread.
        notice: shows a notice after the screen was closed or covered.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,5", "dismiss(None)", "close", show=False),
        Binding("enter", "run", "run the flow now", show=False),
        Binding("p", "pause", "pause the flow; or resume it, and accept its definition", show=False),
        Binding("x", "remove", "remove the flow", show=False),
        *MOVE_KEYS,
    ]

    def __init__(self, open_flows: Callable[[], WorkspaceFlows], notice: Callable[[str, str], None]) -> None:
        super().__init__()
        self._open_flows, self._notice = open_flows, notice
        self._flows: WorkspaceFlows | None = None
        self._lock = asyncio.Lock()

    def compose(self) -> ComposeResult:
        """Yield the list, and the runs of one flow."""
        with Vertical(classes="dialog reader flows") as box:
            box.border_title = Content(f"Flows (times: {zone_label()})")
            box.border_subtitle = Content(_KEYS)
            yield FlowList()
            yield WrappedLines(id="about-flow")

    @property
    def _list(self) -> FlowList:
        return self.query_one(FlowList)

    def on_mount(self) -> None:
        """Read the flows, and again every second."""
        self._reload()
        self.set_interval(_POLL_SECONDS, self._reload)

    def on_unmount(self) -> None:
        """Close the file of states."""
        if self._flows is not None:
            self._flows.close()

    def on_line_view_moved(self) -> None:
        """Show the runs of the flow under the cursor."""
        self._reload()

    def on_line_view_opened(self) -> None:
        """Run the flow that was double-clicked."""
        self.action_run()

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self._list.move(move)

    def _reload(self) -> None:
        if not self._lock.locked():
            self.run_worker(self._show(), group="flows")

    async def _show(self) -> None:
        async with self._lock:
            name = self._list.flow.name if self._list.flow else ""
            try:
                loaded = await asyncio.to_thread(self._load, name)
            except OdfError as error:
                self.query_one("#about-flow", WrappedLines).set([[(f" {error_with_hint(error)}", "bad")]])
                return
        self._list.show_flows(loaded.flows)
        flow = self._list.flow
        if flow is not None and flow.name != loaded.name:
            self._reload()
            return
        self.query_one("#about-flow", WrappedLines).set(about_lines(flow, loaded) if flow else [])

    def _load(self, name: str) -> _Loaded:
        if self._flows is None:
            self._flows = self._open_flows()
        flows = self._flows.summaries()
        name = name or (flows[0].name if flows else "")
        runs = self._flows.store.runs(name, _RUNS) if name else []
        return _Loaded(flows, runs, self._flows.jobs_of(runs), self._flows.outputs(runs[:1]), name)

    def _change(self, change: Callable[[WorkspaceFlows, str], object], done: str) -> None:
        flow = self._list.flow
        if flow is not None:
            self.run_worker(self._apply(change, flow.name, done.format(flow.name)), group="change")

    async def _apply(self, change: Callable[[WorkspaceFlows, str], object], name: str, done: str) -> None:
        async with self._lock:
            try:
                assert self._flows is not None
                await asyncio.to_thread(change, self._flows, name)
            except OdfError as error:
                self._notice(error_with_hint(error), "bad")
                return
        self._notice(done, "good")
        self._reload()

    def action_run(self) -> None:
        """Run the flow under the cursor now."""
        flow = self._list.flow
        if flow is not None and flow.state in ("new", "changed", "invalid"):
            self._notice(f"{flow.name} is {flow.state}: press p to accept it", "warn")
        else:
            self._change(lambda flows, name: flows.request(name), "requested a run of {}")

    def action_pause(self) -> None:
        """Pause the flow under the cursor, or resume it."""
        flow = self._list.flow
        if flow is not None and flow.state in ("active", "running"):
            self._change(lambda flows, name: flows.pause(name), "paused {}")
        else:
            self._change(lambda flows, name: flows.resume(name), "resumed {}")

    def action_remove(self) -> None:
        """Remove the flow under the cursor after a confirmation."""
        flow = self._list.flow
        if flow is None:
            return

        def remove(confirmed: bool | None) -> None:
            if confirmed:
                self._change(lambda flows, name: flows.remove(name), "removed {}")

        question = ConfirmDialog(f"Remove the flow {flow.name}?", "Its history is retained.")
        self.app.push_screen(question, remove)


def about_lines(flow: FlowSummary, loaded: _Loaded) -> list[list[Span]]:
    """Return the lines about a flow: targets, triggers, reason, runs, output of the newest run."""
    runs = loaded.runs
    lines: list[list[Span]] = []
    if flow.reason:
        lines.append([(f" {printable(flow.reason)}", _STYLES.get(flow.state, "warn"))])
    if flow.targets:
        lines.append([(" target ", "muted"), (printable(", ".join(flow.targets)), "name")])
        lines.append([(" starts ", "muted"), (printable(flow.triggers), "")])
    if not runs:
        return [*lines, [], [(" no runs yet", "muted")]]
    failed = sum(run.state == "failed" for run in runs)
    newest = f" newest {count_of(len(runs), 'run')}" + (f", {failed} failed" if failed else "")
    return [*lines, [], [(newest, "head")], *run_lines(runs, loaded.jobs, loaded.outputs)]


def check_lines(checks: ChecksView, latest: Sequence[list[Span]] = ()) -> list[list[Span]]:
    """Return the lines about the checks of a dataset: rules, results of commits, rejected rows.

    Args:
        checks: the checks.
        latest: lines with the results of the newest check of all rows.
    """
    lines: list[list[Span]] = [[]]
    if checks.problem:
        lines += [[(f" {printable(checks.problem)}", "bad")], []]
    for name, rules in checks.rules.items():
        lines.append([(f" {printable(name)}  ", "name"), (printable(", ".join(rules)), "")])
    if not checks.rules and not checks.problem:
        lines.append([(" no checks: odf check add FILE adds one, see odf help checks", "muted")])
    has_results = bool(checks.commits or latest)
    lines += [[], [(" results", "head"), ("" if has_results else "  none", "muted")], *latest]
    for commit in checks.commits:
        report = commit.stored.report
        signed = "  signed" if commit.stored.signed else ""
        when = format_time_seconds(report.system_time)
        lines.append([(f" {when}  block {commit.block}  ", "muted"), (report.summary, _report_style(report)),
                      (signed, "muted")])  # fmt: skip
        lines += _result_lines(report)
    lines += [[], [(" rejected rows", "head"), ("" if checks.rejected else "  none", "muted")]]
    for batch in checks.rejected:
        when, rows = format_time_seconds(batch.report.system_time), count_of(batch.rows, "row")
        lines.append([(f" {when}  ", "muted"), (rows, "bad"), (f"  {printable(str(batch.path))}", "muted")])
        lines += _result_lines(batch.report)
    return lines


def _report_style(report: CheckReport) -> str:
    return "bad" if report.failed else "warn" if report.warnings else "good"


def _result_lines(report: CheckReport) -> list[list[Span]]:
    """Return the violated rules with their first failing rows."""
    lines: list[list[Span]] = []
    for result in report.failed + report.warnings:
        style = "bad" if result.outcome == "failed" else "warn"
        lines.append([(f"   {result.outcome:<7}  ", style), (printable(result.text), "")])
        for row in result.sample:
            values = ", ".join(f"{name}={value}" for name, value in row.items())
            lines.append([(f"            {printable(values)}", "muted")])
    return lines


def alert_lines(deliveries: Sequence[Delivery]) -> list[list[Span]]:
    """Return the lines about messages of alerts, newest first: time, alert, state, message, error."""
    lines: list[list[Span]] = [[]]
    if not deliveries:
        lines.append([(" no messages: odf alert add FILE adds an alert, see odf help alerts", "muted")])
    for delivery in deliveries:
        when = format_time_seconds(Timestamp.from_seconds(delivery.created))
        style = _DELIVERY_STYLES.get(delivery.state, "")
        lines.append(
            [
                (f" {when}  ", "muted"),
                (fit_width(delivery.state, _DELIVERY_STATE), style),
                (f"{printable(delivery.alert)}  ", "name"),
                (f"{delivery.kind}  {printable(delivery.message)}", ""),
            ]
        )
        if delivery.error:
            lines.append([(f"   {printable(delivery.error)}", style)])
    return lines


class FlowsController(Controller):
    """Opens the screens of the flows, of the checks of a dataset, and of the messages of alerts."""

    @dataset_task
    async def show_checks(self, row: DatasetRow) -> None:
        """Show the checks of the selected dataset, their results and the rejected rows."""
        checks = await asyncio.to_thread(self.workspace.dataset_checks, row.id, _COMMITS)
        run = [("run", ("r",), "runs the checks on all rows")] if checks.rules else []
        dialog = DecisionDialog(
            f"Checks of {row.name} (times: {zone_label()})",
            check_lines(checks, latest_check_spans(self.state.jobs.newest_first(), row.id)),
            [*run, ("leave", ("escape", "enter"), "closes")],
        )
        if await self.host.ask(dialog) == "run":
            self.jobs.submit([(Check(dataset=row.id), row.name)], ", results in pane 4")

    @task
    async def show_alerts(self) -> None:
        """Show the newest messages of alerts."""
        messages = await asyncio.to_thread(self.workspace.alert_messages, _MESSAGES)
        title = f"Messages of alerts (times: {zone_label()})"
        await self.host.ask(
            DecisionDialog(title, alert_lines(messages), [("leave", ("escape", "enter"), "closes")])
        )

    def show_flows(self) -> None:
        """Show the flows."""
        self.host.open(FlowsScreen(self.workspace.flows, self.host.notice))
