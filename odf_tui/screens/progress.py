"""A small screen while the worker does what the person waits for."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.metadata.timestamp import Timestamp
from odf_tui.humane import plain
from odf_tui.jobwords import doing, outcome
from odf_tui.screens.dialogs import Dialog, Lines
from odf_tui.state import JobBook

_LOOK_SECONDS = 0.1


class JobDialog(Dialog[str]):
    """Shows what a job does until it has ended; ends with ``ended``, ``stop`` or ``leave``.

    Args:
        title: what is being done.
        book: learns of the job.
        job: its id.
        leaves: whether the person may go on with other things meanwhile.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss('stop')", "stop it", show=False),
        Binding("b", "leave", "let it go on in the background", show=False),
    ]

    def __init__(self, title: str, book: JobBook, job: str, *, leaves: bool) -> None:
        super().__init__()
        self._title, self._book, self._job, self._leaves = title, book, job, leaves

    def compose(self) -> ComposeResult:
        """What it does."""
        with Vertical(classes="dialog question") as box:
            box.border_title = Content(plain(self._title))
            leave = "b lets it go on in the background · " if self._leaves else ""
            box.border_subtitle = f"{leave}esc stops it"
            yield Lines(self._lines())

    def on_mount(self) -> None:
        """Looks often whether it has ended; what it does is told once a second."""
        self.set_interval(_LOOK_SECONDS, self._look)
        self.set_interval(1.0, self._tell)

    def _lines(self) -> list[list[tuple[str, str]]]:
        job = self._book.jobs.get(self._job)
        if job is None or job.started is None:
            text = outcome(job)[0] if job is not None else "handed to the worker"
        else:
            text = doing(job, Timestamp.now())
        return [[], [(f" {plain(text)}", "")], []]

    def _look(self) -> None:
        job = self._book.jobs.get(self._job)
        if job is not None and job.state.final:
            self.dismiss("ended")

    def _tell(self) -> None:
        view, lines = self.query_one(Lines), self._lines()
        if lines != view.lines:
            view.lines = lines
            view.refresh()

    def action_leave(self) -> None:
        """Goes on in the background."""
        if self._leaves:
            self.dismiss("leave")
