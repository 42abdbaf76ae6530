"""DatasetActionsController: details, pull, verify, trust and rebuild of the selected dataset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace
from textual.binding import Binding, BindingType

from odf_engine.api import EXECUTION_KINDS, Job, JobState, Pull, Timestamp, Verify
from odf_engine.api.model import DatasetDetail, DatasetRow, Remote, TrustStatus
from odf_engine.api.text import count_of, format_count, format_zoned_time, printable, short_hash
from odf_tui.features.sharing.remote_picker import choose_remote
from odf_tui.services.controller import Controller, dataset_task, task
from odf_tui.state.model import UNTRUSTED, Health, sort_by_dependency
from odf_tui.text.format import Span, format_duration
from odf_tui.text.highlight import NAME_WIDTH, fact_lines, yaml_spans
from odf_tui.text.job_text import failure_spans, job_activity, job_outcome, job_seconds
from odf_tui.text.remotes import direction, diverged_remotes, pull_remotes, remote_text
from odf_tui.widgets.dialogs import TextDialog, TypedConfirmation
from odf_tui.widgets.line_view import WrappedLines

if TYPE_CHECKING:
    from odf_tui.text.highlight import Text

_STEP_WIDTH: Final = 30


class DatasetActionsController(Controller):
    """Pulls, verifies, trusts and rebuilds datasets, and shows their details."""

    def open_dataset(self) -> None:
        """Read and show the details of the selected dataset."""
        row = self.state.row
        if row is not None:
            read = partial(self.workspace.detail, row.id)
            self.host.read("open dataset", read, partial(self._show_detail, row.id))

    def _show_detail(self, dataset: str, detail: DatasetDetail | None, error: str) -> None:
        if error:
            self.host.notice(error, "bad")
        row = self.state.row_of(dataset)
        if detail is None or row is None or not self.host.is_front:
            return
        health = self.state.healths.get(dataset, Health.new)
        lines = detail_lines(row, health, detail, self.state.jobs.latest_ingest(dataset))
        dialog = DatasetDialog(row.name, lines, detail.text, partial(self.host.copy_text, "text"))
        self.host.open(dialog, self._perform)

    def _perform(self, action: str | None) -> None:
        if action is not None:
            self.host.perform(action)

    def pull(self) -> None:
        """Pull the selected dataset. An untrusted root dataset must be trusted first."""
        row = self.state.row
        if row is None:
            return
        if row.has_pull_remote:
            self._pull_from_remote(row)
        elif row.untrusted and not row.derivative:
            self._request_trust(row, pull=True)
        else:
            self.jobs.submit([(self._pull_request(row), row.name)])

    def _pull_from_remote(self, row: DatasetRow) -> None:
        remotes = pull_remotes(row.remotes)
        if len(remotes) == 1:
            self._submit_pull_from(row, remotes[0])
        else:
            self._pull_from_chosen_remote(row, remotes)

    @task
    async def _pull_from_chosen_remote(self, row: DatasetRow, remotes: Sequence[Remote]) -> None:
        remote = await choose_remote(self.host, f"Pull {row.name} from", remotes)
        if remote is not None:
            self._submit_pull_from(row, remote)

    def _submit_pull_from(self, row: DatasetRow, remote: Remote) -> None:
        self.jobs.submit([(Pull(dataset=row.id, url=remote.url), row.name)], f", from {remote.label}")

    def pull_all(self) -> None:
        """Pull all datasets, upstream datasets first.

        Datasets that are untrusted, diverged, or being pulled are skipped.
        """
        busy = {job.dataset for job in self.state.jobs.active_jobs() if job.kind == "pull"}
        by_id = {
            row.id: row
            for row in self.state.datasets
            if row.polls or row.has_pull_remote or (row.derivative and not row.missing)
        }
        order = sort_by_dependency(self.state.datasets, by_id)
        rows = [by_id[dataset] for dataset in order if dataset in by_id and dataset not in busy]
        healths = self.state.healths
        copies = [row for row in rows if healths.get(row.id) is Health.diverged and not row.diverged]
        rows = [row for row in rows if row not in copies]
        untrusted = sum(row.untrusted and not row.has_pull_remote for row in rows)
        diverged = sum(bool(row.diverged) for row in rows)
        remark = f"; {format_count(untrusted)} untrusted" if untrusted else ""
        remark += f"; {format_count(diverged)} diverged from upstream: D rebuilds them" if diverged else ""
        remark += (
            f"; {format_count(len(copies))} diverged from a remote: V shows the histories" if copies else ""
        )
        rows = [row for row in rows if row.has_pull_remote or not (row.untrusted or row.diverged)]
        self.jobs.submit([(self._pull_request(row), row.name) for row in rows], remark)

    def verify(self) -> None:
        """Verify the selected dataset."""
        row = self.state.row
        if row is not None:
            self.jobs.submit([(Verify(dataset=row.id), row.name)])

    def _pull_request(self, row: DatasetRow) -> Pull:
        """Return the request that pulls a dataset from its remote, or after its upstream datasets."""
        remotes = [remote.url for remote in pull_remotes(row.remotes)]
        return Pull.of_known_dataset(row.id, remotes, sort_by_dependency(self.state.datasets, [row.id]))

    def trust(self) -> None:
        """Show the commands and queries of the selected dataset, and trust it after confirmation."""
        row = self.state.row
        if row is not None:
            self._request_trust(row)

    @task
    async def _request_trust(self, row: DatasetRow, *, pull: bool = False) -> None:
        """Trust a dataset after confirmation, and pull it if ``pull`` is set."""
        request = await asyncio.to_thread(self.workspace.trust_status, row.id)
        title, prompt = f"Trust {row.name} to run this?", "type yes to trust it"
        lines = trust_request_lines(row, request)
        if not await self.host.ask(TypedConfirmation(title, lines, ("yes", row.name), prompt)):
            self.host.notice(f"{row.name} is still untrusted: nothing was run", "warn")
            return
        await asyncio.to_thread(self.workspace.trust, request)
        self.host.notice(f"{row.name} is trusted until a block changes its source; U revokes trust")
        self.state.datasets_outdated.send(None)
        if pull:
            self.jobs.submit([(self._pull_request(row), row.name)], "; U revokes trust")

    @dataset_task
    async def revoke_trust(self, row: DatasetRow) -> None:
        """Revoke the trust in the selected dataset."""
        await asyncio.to_thread(self.workspace.untrust, row.id)
        self.host.notice(f"{row.name} is untrusted now")
        self.state.datasets_outdated.send(None)

    @dataset_task
    async def rebuild(self, row: DatasetRow) -> None:
        """Rebuild the selected dataset from its upstream datasets, after its name was typed."""
        title, prompt = f"Rebuild {row.name}?", f"type {row.name} to rebuild it"
        lines = reset_lines(row, self.state.downstream_names(row))
        if await self.host.ask(TypedConfirmation(title, lines, [row.name], prompt)):
            request = replace(self._pull_request(row), reset_on_divergence=True)
            self.jobs.submit([(request, row.name)], ", with a rebuild")
        else:
            self.host.notice(f"{row.name} is unchanged", "warn")


class DatasetDialog(TextDialog):
    """Shows the details of a dataset as facts, or as YAML after tab.

    The result is the id of the action whose key was pressed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "toggle_yaml", show=False),
        Binding("p", "dismiss('pull')", show=False),
        Binding("e", "dismiss('edit')", show=False),
        Binding("D", "dismiss('begin_anew')", show=False),
        Binding("u", "dismiss('push')", show=False),
        Binding("m", "dismiss('look')", show=False),
        Binding("V", "dismiss('branches')", show=False),
    ]

    def __init__(self, title: str, lines: Text, yaml: str, copy: Callable[[str], None]) -> None:
        super().__init__(title, lines, copy)
        self._pages: list[Text] = [lines, yaml_spans(yaml)]

    def body(self) -> WrappedLines:
        """Return a view that wraps long values."""
        return WrappedLines()

    def describe_keys(self) -> list[str]:
        """Return the keys and their effects."""
        return ["p pulls", "e edits", "tab as YAML" if self._lines is self._pages[0] else "tab as text"]

    def action_toggle_yaml(self) -> None:
        """Show the details as YAML, or as facts again."""
        self.show(self._title, self._pages[self._lines is self._pages[0]])


def detail_lines(row: DatasetRow, health: Health, detail: DatasetDetail, job: Job | None) -> Text:
    """Return the details of a dataset as lines.

    Args:
        row: the dataset.
        health: its health.
        detail: its definition and state.
        job: its newest ingest job, successful or not, or None if absent.
    """
    kind = "derivative" if row.derivative else "root"
    lines: Text = [[(f" {kind}  ", "muted"), (f"{health.glyph} {health.word}", health.style)]]
    if row.untrusted:
        lines[0].append((f"  {UNTRUSTED} untrusted", "warn"))
    if row.diverged:
        names = printable(", ".join(row.diverged))
        lines += [
            [],
            [_label_span("why"), (f"upstream {names} was reset or replaced", "bad")],
        ]
        lines.append([_label_span("next"), ("D rebuilds it", "good")])
    if row.waiting is not None:
        lines += [[], [_label_span("why"), (printable(row.waiting.text), "warn")]]
    lines += _last_job_lines(row, job)
    lines += _remote_lines(row)
    for section in detail.sections:
        lines += [[], *fact_lines(section)]
    return lines


def _remote_lines(row: DatasetRow) -> Text:
    """Return the remotes of a dataset, their state, and what to do."""
    if not row.remotes:
        return []
    lines: Text = [[], [(" Remotes", "title")]]
    for remote in row.remotes:
        lines.append([_label_span(direction(remote)), (printable(remote_text(remote)), "")])
        if remote.label != remote.url:
            lines.append([_label_span(""), (printable(remote.url), "muted")])
    hint = "V shows both histories" if diverged_remotes(row.remotes) else "m checks for changes"
    return [*lines, [_label_span("next"), (hint, "good")]]


def _last_job_lines(row: DatasetRow, job: Job | None) -> Text:
    if job is None:
        title = f"last rows added {format_zoned_time(row.last_pulled)}" if row.last_pulled else "no rows yet"
        return [[], [(f" {title}", "title")], [_label_span("next"), (describe_next_step(row), "good")]]
    lines: Text = [[], [(f" Last {job.kind}", "title")]]
    outcome, style = (
        (job_activity(job, Timestamp.now()), "busy") if job.state is JobState.running else job_outcome(job)
    )
    if job.error is None:
        lines.append([_label_span("result"), (outcome, style)])
    seconds = job_seconds(job, Timestamp.now())
    duration = f", took {format_duration(seconds)}" if seconds is not None and job.state.final else ""
    lines.append([_label_span("when"), (format_zoned_time(job.started or job.created) + duration, "")])
    # Labels of the log are narrower than those of the details.
    for (name, style), *rest in failure_spans(job):
        lines.append([_label_span(name.strip()) if name.strip() else (" " * (NAME_WIDTH + 5), style), *rest])
    if job.error is not None and not job.error.hint:
        lines.append([_label_span("next"), ("see its log in pane 4", "good")])
    return lines


def _label_span(text: str) -> Span:
    return (f"   {text:<{NAME_WIDTH}}  ", "bad" if text == "failed" else "muted")


def describe_next_step(row: DatasetRow) -> str:
    """Return the action that adds rows to a dataset."""
    if row.has_pull_remote:
        return "p pulls new blocks from the remote"
    if row.polls:
        return "p shows its source, which requires trust" if row.untrusted else "p pulls them from the source"
    if row.push_sources:
        return "press , i to push rows from files"
    return "p computes them from its inputs" if row.derivative else "no source: e edits its definition"


def trust_request_lines(row: DatasetRow, request: TrustStatus) -> Sequence[Sequence[Span]]:
    """Return the origin of a dataset, and all commands and queries that it would run."""
    origin = f"was pulled from {printable(request.origin)}" if request.origin else "is by another author"
    lines: list[list[Span]] = [[(f" {printable(row.name)}", "strong"), (f" {origin}", "")]]
    if request.was_trusted:
        lines.append([(" It was trusted before. A block has changed its source since.", "warn")])
    block = ""
    for step in request.runs:
        if str(step.block) != block:
            block = str(step.block)
            lines += [[], [(" Block ", "muted"), (short_hash(block), "muted")]]
        for at, text in enumerate(step.text.splitlines() or [""]):
            label = EXECUTION_KINDS.get(step.kind, step.kind) if not at else ""
            lines.append([(f"   {label:<{_STEP_WIDTH}} ", "muted"), (printable(text), "strong")])
    return lines


def reset_lines(row: DatasetRow, downstream: Sequence[str]) -> list[list[Span]]:
    """Return the reason for a rebuild, what it deletes and creates, and which datasets must be rebuilt too.

    Args:
        row: the dataset.
        downstream: the names of its downstream datasets.
    """
    reason: list[list[Span]] = [[(" All rows are derived again by the current rules.", "")]]
    if row.diverged:
        names = printable(", ".join(row.diverged))
        reason = [
            [(" Its rows were derived from a history of ", ""), (names, "strong")],
            [(" that was reset or replaced.", "")],
        ]
    lines: list[list[Span]] = [
        *reason,
        [],
        [
            ("   drops  ", "bad"),
            (f"{count_of(row.records, 'row')} in {count_of(row.blocks, 'block')}", ""),
        ],
        [("   adds   ", "good"), ("the result of the same query over the current inputs", "")],
        [("   keeps  ", "muted"), ("the old chain, as refs/before-reset-… in the dataset's folder", "")],
    ]
    if downstream:
        datasets = printable(", ".join(downstream))
        lines.append([("   then   ", "warn"), (f"rebuild {datasets} too", "")])
    return lines
