"""The selected dataset: details, pull, verify, trust, reset after divergence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from odf_engine.coordinator.protocol import Job, JobState
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.state.model import UNTRUSTED, DatasetDetail, DatasetRow, Health
from odf_tui.text.format import Span, format_duration, format_time, printable
from odf_tui.text.highlight import _NAMES, fact_lines, yaml_spans
from odf_tui.text.job_text import failure_spans, job_activity, job_outcome, job_seconds
from odf_tui.text.remotes import direction, diverged_remotes, remote_text
from odf_tui.widgets.dialogs import TextDialog
from odf_tui.widgets.line_view import WrappedLines

if TYPE_CHECKING:
    from odf_tui.text.highlight import Text


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

    def remarks(self) -> list[str]:
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
