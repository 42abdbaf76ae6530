"""DatasetActionsController: details, pull, verify, trust, rebuild after divergence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace
from textual.binding import Binding, BindingType

from odf_engine.coordinator.protocol import Job, JobState, Pull, Verify
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.features.sharing.remote_picker import choose_remote
from odf_tui.services.controller import Controller
from odf_tui.state.model import (
    UNTRUSTED,
    DatasetDetail,
    DatasetRow,
    Health,
    TrustRequest,
    in_dependency_order,
)
from odf_tui.text.format import Span, format_count, format_duration, format_time, printable
from odf_tui.text.highlight import _NAMES, fact_lines, yaml_spans
from odf_tui.text.job_text import failure_spans, job_activity, job_outcome, job_seconds
from odf_tui.text.remotes import Remote, direction, diverged_remotes, pull_remotes, remote_text
from odf_tui.widgets.dialogs import TextDialog, TypedConfirmation
from odf_tui.widgets.line_view import WrappedLines

if TYPE_CHECKING:
    from odf_tui.text.highlight import Text

_DOES: Final = 30


class DatasetActionsController(Controller):
    """Pulls, verifies, trusts and rebuilds datasets, and shows their details."""

    # --- Details ---

    def open_dataset(self) -> None:
        """Read and show the details of the selected dataset."""
        row = self.state.row
        if row is not None:
            read = partial(self.gateway.detail, row.id)
            self.reader.read("wanted detail", read, partial(self._show_detail, row.id))

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

    # --- Pull and verify ---

    def pull(self) -> None:
        """Pull the selected dataset. An untrusted root dataset must be trusted first."""
        row = self.state.row
        if row is None:
            return
        if row.comes_from_elsewhere:
            self._pull_from_remote(row)
        elif row.untrusted and not row.derivative:
            self.host.start(self._request_trust(row, pull=True))
        else:
            self.jobs.submit([(self._pull_request(row), row.name)])

    def _pull_from_remote(self, row: DatasetRow) -> None:
        remotes = pull_remotes(row.remotes)
        if len(remotes) == 1:
            self._submit_pull_from(row, remotes[0])
        else:
            self.host.start(self._pull_from_chosen_remote(row, remotes))

    async def _pull_from_chosen_remote(self, row: DatasetRow, remotes: Sequence[Remote]) -> None:
        remote = await choose_remote(self.host, f"Pull {row.name} from", remotes)
        if remote is not None:
            self._submit_pull_from(row, remote)

    def _submit_pull_from(self, row: DatasetRow, remote: Remote) -> None:
        self.jobs.submit([(Pull(dataset=row.id, url=remote.url), row.name)], f", from {remote.label}")

    def pull_all(self) -> None:
        """Pull all datasets, upstream ones first.

        Untrusted and diverged datasets, and those that are being pulled, are skipped.
        """
        busy = {job.dataset for job in self.state.jobs.active_jobs() if job.kind == "pull"}
        by_id = {
            row.id: row
            for row in self.state.datasets
            if row.polls or row.comes_from_elsewhere or (row.derivative and not row.missing)
        }
        order = in_dependency_order(self.state.datasets, by_id)
        rows = [by_id[dataset] for dataset in order if dataset in by_id and dataset not in busy]
        healths = self.state.healths
        apart = [row for row in rows if healths.get(row.id) is Health.diverged and not row.diverged]
        rows = [row for row in rows if row not in apart]
        refused = sum(row.untrusted and not row.comes_from_elsewhere for row in rows)
        diverged = sum(bool(row.diverged) for row in rows)
        remark = f"; {format_count(refused)} not trusted" if refused else ""
        remark += f"; {format_count(diverged)} diverged: D makes them anew" if diverged else ""
        remark += f"; {format_count(len(apart))} went apart from elsewhere: V shows how" if apart else ""
        rows = [row for row in rows if row.comes_from_elsewhere or not (row.untrusted or row.diverged)]
        self.jobs.submit([(self._pull_request(row), row.name) for row in rows], remark)

    def verify(self) -> None:
        """Verify the selected dataset."""
        row = self.state.row
        if row is not None:
            self.jobs.submit([(Verify(dataset=row.id), row.name)])

    def _pull_request(self, row: DatasetRow) -> Pull:
        """Return the request that pulls a dataset from its remote, or after its upstream datasets."""
        if remotes := pull_remotes(row.remotes):
            return Pull(dataset=row.id, url=remotes[0].url)
        after = in_dependency_order(self.state.datasets, [row.id])
        return Pull(dataset=row.id, after=[each for each in after if each != row.id])

    # --- Trust ---

    def trust(self) -> None:
        """Show what the selected dataset would run, and trust it after confirmation."""
        row = self.state.row
        if row is not None:
            self.host.start(self._request_trust(row))

    async def _request_trust(self, row: DatasetRow, *, pull: bool = False) -> None:
        """Trust a dataset after confirmation; with ``pull``, pull it then."""
        request = await asyncio.to_thread(self.gateway.trust_request, row.id)
        title, asks = f"May {row.name} run this here?", "type yes to allow exactly this"
        lines = trust_request_lines(row, request)
        if not await self.host.ask(TypedConfirmation(title, lines, ("yes", row.name), asks)):
            self.host.notice(f"{row.name} is not trusted: nothing of it ran", "warn")
            return
        await asyncio.to_thread(self.gateway.trust, row.id, request)
        self.host.notice(f"{row.name} is trusted, until a block changes its source; U takes it back")
        self.state.datasets_outdated.send(None)
        if pull:
            self.jobs.submit([(self._pull_request(row), row.name)], "; U takes the trust back")

    def revoke_trust(self) -> None:
        """Revoke the trust in the selected dataset."""
        row = self.state.row
        if row is not None:
            self.host.start(self._revoke_trust(row))

    async def _revoke_trust(self, row: DatasetRow) -> None:
        await asyncio.to_thread(self.gateway.untrust, row.id)
        self.host.notice(f"{row.name} is not trusted any more")
        self.state.datasets_outdated.send(None)

    # --- Rebuild after divergence ---

    def rebuild(self) -> None:
        """Rebuild the selected dataset from the start of its upstream datasets, after its name was typed."""
        row = self.state.row
        if row is not None:
            self.host.start(self._rebuild(row))

    async def _rebuild(self, row: DatasetRow) -> None:
        title, asks = f"Make {row.name} anew?", f"type {row.name} to make it anew"
        lines = reset_lines(row, self.state.downstream_names(row))
        if await self.host.ask(TypedConfirmation(title, lines, [row.name], asks)):
            request = replace(self._pull_request(row), reset_on_divergence=True)
            self.jobs.submit([(request, row.name)], ", anew")
        else:
            self.host.notice(f"{row.name} stays as it is", "warn")


class DatasetDialog(TextDialog):
    """Reads a dataset's detail in words; tab shows it as YAML. Ends with the action whose key was pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "turn", show=False),
        Binding("p", "dismiss('pull')", show=False),
        Binding("e", "dismiss('edit')", show=False),
        Binding("D", "dismiss('begin_anew')", show=False),
        Binding("u", "dismiss('push')", show=False),
        Binding("m", "dismiss('look')", show=False),
        Binding("V", "dismiss('branches')", show=False),
    ]

    def __init__(self, title: str, words: Text, yaml: str, copy: Callable[[str], None]) -> None:
        super().__init__(title, words, copy)
        self._pages: list[Text] = [words, yaml_spans(yaml)]

    def body(self) -> WrappedLines:
        """Long values go on in the next line."""
        return WrappedLines()

    def describe_keys(self) -> list[str]:
        """What the keys do."""
        return ["p pulls", "e edits", "tab as YAML" if self._lines is self._pages[0] else "tab in words"]

    def action_turn(self) -> None:
        """The other page."""
        self.show(self._title, self._pages[self._lines is self._pages[0]])


def detail_lines(row: DatasetRow, health: Health, detail: DatasetDetail, job: Job | None) -> Text:
    """The page in words.

    Args:
        job: the newest that brought data, or tried to.
    """
    kind = "derivative" if row.derivative else "root"
    lines: Text = [[(f" {kind}  ", "muted"), (f"{health.glyph} {health.word}", health.style)]]
    if row.untrusted:
        lines[0].append((f"  {UNTRUSTED} not trusted", "warn"))
    if row.diverged:
        names = printable(", ".join(row.diverged))
        lines += [[], [_name("why"), (f"{names}, which it was made from, was reset or replaced", "bad")]]
        lines.append([_name("next"), ("D makes it anew", "good")])
    lines += _last_job(row, job)
    lines += _remotes(row)
    for section in detail.sections:
        lines += [[], *fact_lines(section)]
    return lines


def _remotes(row: DatasetRow) -> Text:
    """Where it comes from and goes to, and what can be done."""
    if not row.remotes:
        return []
    lines: Text = [[], [(" Elsewhere", "title")]]
    for each in row.remotes:
        lines.append([_name(direction(each)), (printable(remote_text(each)), "")])
        if each.label != each.url:
            lines.append([_name(""), (printable(each.url), "muted")])
    both = "V shows both histories" if diverged_remotes(row.remotes) else "m looks how it stands now"
    return [*lines, [_name("next"), (both, "good")]]


def _last_job(row: DatasetRow, job: Job | None) -> Text:
    if job is None:
        when = f"rows came last {format_time(row.last_pulled)}" if row.last_pulled else "no rows yet"
        return [[], [(f" {when}", "title")], [_name("next"), (what_next(row), "good")]]
    lines: Text = [[], [(f" Last {job.kind}", "title")]]
    words, style = (
        (job_activity(job, Timestamp.now()), "busy") if job.state is JobState.running else job_outcome(job)
    )
    if job.error is None:
        lines.append([_name("did"), (words, style)])
    took = job_seconds(job, Timestamp.now())
    after = f", took {format_duration(took)}" if took is not None and job.state.final else ""
    lines.append([_name("when"), (format_time(job.started or job.created) + after, "")])
    # The log says the same with narrower names.
    for (name, how), *rest in failure_spans(job):
        lines.append([_name(name.strip()) if name.strip() else (" " * (_NAMES + 5), how), *rest])
    if job.error is not None and not job.error.hint:
        lines.append([_name("next"), ("its log in pane 4 says more", "good")])
    return lines


def _name(text: str) -> Span:
    return (f"   {text:<{_NAMES}}  ", "bad" if text == "failed" else "muted")


def what_next(row: DatasetRow) -> str:
    """What brings rows into a dataset, in a few words."""
    if row.comes_from_elsewhere:
        return "p takes over what is new there"
    if row.polls:
        return "p shows what it would run here, and asks" if row.untrusted else "p pulls them from the source"
    if row.push_sources:
        return f"odf ingest {row.name} FILE pushes them"
    return "p makes them of its inputs" if row.derivative else "it has no source: e edits its definition"


def trust_request_lines(row: DatasetRow, request: TrustRequest) -> Sequence[Sequence[Span]]:
    """Return the origin of a dataset, and all commands and queries that it would run."""
    whence = f"came from {printable(request.origin)}" if request.origin else "was written by somebody else"
    lines: list[list[Span]] = [[(f" {printable(row.name)}", "strong"), (f" {whence}", "")]]
    if request.before:
        lines.append([(" It was trusted before; then a block changed its source.", "warn")])
    block = ""
    for run in request.runs:
        if run.block != block:
            block = run.block
            lines += [[], [(" As block ", "muted"), (f"…{block[-8:]}", "muted"), (" says, it", "muted")]]
        for at, text in enumerate(run.text.splitlines() or [""]):
            does = run.does if not at else ""
            lines.append([(f"   {does:<{_DOES}} ", "muted"), (printable(text), "strong")])
    return lines


def reset_lines(row: DatasetRow, downstream: Sequence[str]) -> list[list[Span]]:
    """Return the reason for a rebuild, what it deletes and creates, and which datasets must follow.

    Args:
        row: the dataset.
        downstream: the names of its downstream datasets.
    """
    lines: list[list[Span]] = [
        [(" It was made from another history of ", ""), (printable(", ".join(row.diverged)), "strong")],
        [(" than the one that is here: that was reset or replaced.", "")],
        [],
        [
            ("   goes   ", "bad"),
            (f"{format_count(row.records)} records in {format_count(row.blocks)} blocks", ""),
        ],
        [("   comes  ", "good"), ("the same query over all that its inputs have now", "")],
        [("   stays  ", "muted"), ("the old chain, as refs/before-reset-… in the dataset's folder", "")],
    ]
    if downstream:
        names = printable(", ".join(downstream))
        lines.append([("   then   ", "warn"), (f"the same has to be done with {names}", "")])
    return lines
