"""MessagesController: the newest messages of the status line, and the warnings of recent jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.api import Job, JobWarning
from odf_engine.api.text import format_time_seconds, printable, zone_label
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.services.controller import Controller
from odf_tui.state.model import WARNED
from odf_tui.state.notice_log import PastNotice
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.format import AGE_WIDTH, Span, fit_width, format_age, shorten_name
from odf_tui.widgets.dialogs import MOVE_KEYS, DecisionDialog, Dialog
from odf_tui.widgets.line_view import LineView, WrappedLines

_TIME: Final = AGE_WIDTH
_JOB: Final = 10
_MAX_NAME: Final = 30
_MIN_TEXT: Final = 24


class WarningLine(NamedTuple):
    """A warning of a job.

    Attributes:
        job: the job.
        warning: the warning.
        is_new: whether the user has not seen it before.
    """

    job: Job
    warning: JobWarning
    is_new: bool


class WarningsView(LineView):
    """The list of warnings, newest first: time, job, dataset, text."""

    headed = True

    def __init__(self, lines: Sequence[WarningLine]) -> None:
        super().__init__(id="warnings")
        self.active = True
        self._warnings = lines

    @property
    def selected(self) -> WarningLine | None:
        """The warning under the cursor."""
        return self._warnings[self.cursor] if self._warnings else None

    def count(self) -> int:
        """Return the number of warnings."""
        return len(self._warnings)

    def _columns(self, time: str, job: str, name: str, text: str) -> list[str]:
        longest = max((len(line.job.target) for line in self._warnings), default=0)
        room = self.room.width - _TIME - _JOB - 6
        width = max(min(longest, _MAX_NAME, room - _MIN_TEXT), 8)
        return [
            f"{fit_width(time, _TIME)}  {fit_width(job, _JOB)} ",
            f"{fit_width(shorten_name(name, width), width)}  ",
            text,
        ]

    def header(self) -> Sequence[Span]:
        """Return the names of the columns."""
        return [(f"  {''.join(self._columns('time', 'job', 'dataset', 'warning'))}", "head")]

    def spans(self, index: int) -> Sequence[Span]:
        """Return the line of a warning. A mark precedes new ones."""
        job, warning, is_new = self._warnings[index]
        time, name, text = self._columns(
            format_age(job.ended), f"{job.id} {job.kind}", printable(job.target), printable(warning.text)
        )
        return [(f"{WARNED if is_new else ' '} ", "warn"), (time, "muted"), (name, "name"), (text, "")]

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the message for no warnings."""
        return [[], [(" no recent job has warnings", "muted")]]


class WarningsDialog(Dialog[str]):
    """Lists warnings, with the one under the cursor in full below. The result is the id of the chosen job.

    Args:
        lines: the warnings, newest first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("enter", "open_job", "go to the job", show=False),
        *MOVE_KEYS,
    ]

    def __init__(self, lines: Sequence[WarningLine]) -> None:
        super().__init__()
        self._warnings = lines

    def compose(self) -> ComposeResult:
        """Yield the list, and the text of one warning."""
        with Vertical(classes="dialog reader warnings") as box:
            box.border_title = "Warnings of recent jobs"
            box.border_subtitle = Content("⏎ goes to the job · esc closes")
            yield WarningsView(self._warnings)
            yield WrappedLines(id="about-warning")

    def on_mount(self) -> None:
        """Show the text of the newest warning."""
        self.on_line_view_moved()

    def on_line_view_moved(self) -> None:
        """Show the text of the warning under the cursor."""
        selected = self.query_one(WarningsView).selected
        self.query_one(WrappedLines).set([[(f" {printable(selected.warning.text)}", "")]] if selected else [])

    def on_line_view_opened(self) -> None:
        """Go to the job of the warning that was double-clicked."""
        self.action_open_job()

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self.query_one(WarningsView).move(move)

    def action_open_job(self) -> None:
        """Close with the job of the warning under the cursor."""
        selected = self.query_one(WarningsView).selected
        self.dismiss(selected.job.id if selected else None)


def notice_lines(notices: Sequence[PastNotice]) -> list[list[Span]]:
    """Return notices as lines, newest first. A mark precedes unread errors."""
    if not notices:
        return [[], [(" no messages yet", "muted")]]
    return [
        [
            ("• " if notice.unread else "  ", "bad"),
            (f"{format_time_seconds(notice.time)}  ", "muted"),
            (printable(notice.text), "" if notice.style == "good" else notice.style),
        ]
        for notice in reversed(notices)
    ]


class MessagesController(Controller):
    """Shows messages and warnings that have left the screen, and marks them as seen."""

    def show_messages(self) -> None:
        """List the newest messages. Errors among them are read then."""
        title = f"Messages (times: {zone_label()})"
        lines = notice_lines(list(self.host.notices.notices))
        self.host.mark_notices_read()
        self.host.open(DecisionDialog(title, lines, [("leave", ("escape", "enter"), "closes")]))

    def show_warnings(self) -> None:
        """List the warnings of recent jobs. They are seen then."""
        seen = self.state.seen_warnings
        lines = [
            WarningLine(job, warning, job.ended not in seen)
            for job in self.state.jobs.warned_jobs()
            for warning in job.warnings
        ]
        self.state.see_warnings()
        self.host.open(WarningsDialog(lines), self._show_job)

    def save(self, layout: SavedLayout) -> SavedLayout:
        """Save which warnings were seen."""
        return replace(layout, seen_warnings=sorted(self.state.seen_warnings))

    def _show_job(self, job: str | None) -> None:
        if job is not None:
            pane = self.host.query_one(JobsPane)
            pane.set_filter("")
            self.state.focus_pane("jobs")
            pane.view.select(job)
            self.state.layout_changed.send(None)
