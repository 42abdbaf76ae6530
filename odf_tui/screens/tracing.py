"""The part of the workbench that shows where rows come from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odf_engine.coordinator.protocol import Trace
from odf_engine.errors import OdfError
from odf_engine.provenance.model import TraceStep
from odf_tui.panes.data.view import QUERY
from odf_tui.screens.reading_blocks import BlockReading
from odf_tui.screens.waiting import JobsClient
from odf_tui.state.model import Target
from odf_tui.text.format import error_with_hint, format_bytes

if TYPE_CHECKING:
    from odf_tui.features.provenance.trace_screen import TraceBase
    from odf_tui.features.provenance.trace_tree import TraceSession
    from odf_tui.gateway.row_window import RowWindow

_FORMS: Final = (
    ("json", "JSON, as odf provenance --json has it", "j"),
    ("dot", "a graph for Graphviz, as odf provenance --dot has it", "g"),
)


class TracingPart(JobsClient, BlockReading):
    """The part of the workbench that shows where rows come from.

    Attributes:
        left: what was asked when a place was gone to from there, and how many places were gone to then.
    """

    left: tuple[TraceSession, int] | None = None

    def do_trace(self) -> None:
        """Where the row under the cursor comes from."""
        row, pane = self.graph.row, self.data_pane
        window, view = pane.window, pane.view
        if row is None or window is None or not view.count():
            return
        if pane.front_view is not None and pane.front_view.kind == QUERY:
            self.notify_line("rows of a query have no origin of their own: go to a dataset's rows", "warn")
            return
        self.start(self._trace(row.id, row.name, window, view.cursor, view.column))

    async def _trace(self, dataset: str, name: str, window: RowWindow, row: int, column: int) -> None:
        def read() -> tuple[int, str]:
            from odf_tui.gateway.row_text import read_scalar

            names = window.columns.names
            at = names.index(window.system_columns[0]) if window.system_columns[0] in names else -1
            found = read_scalar(window, row, at) if at >= 0 else None
            if found is None or not found.is_valid:
                raise OdfError("this row has no offset, or cannot be read")
            return found.as_py(), names[column]

        offset, value = await asyncio.to_thread(read)
        ours = value not in window.system_columns[:3]
        from odf_tui.features.provenance.trace_tree import TraceSession  # deferred: after the first paint

        self._show_trace(TraceSession(dataset, name, offset, value, self.source.rows, ours=ours))

    def _show_trace(self, inquiry: TraceSession) -> None:
        from odf_tui.features.provenance.trace_screen import TraceScreen

        if self.app.screen is not self:  # the key was pressed twice, or another one since
            return

        screen = TraceScreen(
            inquiry,
            self.source,
            self.book,
            ask=self._ask_trace,
            stop=self._stop_trace,
            copy=self.station.copy,
            save=self._save_trace,
        )

        def ended(target: Target | None) -> None:
            if target is None:
                self.left = None
                for job in screen.waiting():
                    self.start(self._stop_trace(job))
                return
            self.follow(target)
            self.left = (inquiry, len(self.trail))
            self.notify_line("ctrl+o or backspace goes back to the trace")

        self.app.push_screen(screen, ended)

    async def _ask_trace(self, request: Trace, name: str) -> str:
        return await (await self.follower.link()).submit(request, name)

    async def _stop_trace(self, job: str) -> None:
        with suppress(OdfError):  # it may have ended meanwhile
            await (await self.follower.link()).cancel(job)

    def do_back(self) -> None:
        """Back to where a link was followed from; to the trace, if it was one of its lines."""
        from odf_tui.panes.blocks.block_dialogs import BlockDialog

        left = self.left
        if left is None or len(self.trail) != left[1]:
            super().do_back()
            return
        self.left = None
        self.return_to_spot()
        if isinstance(self.app.screen, BlockDialog):
            self.app.screen.dismiss(None)
        self.call_later(self._show_trace, left[0])

    # --- Files ---

    def _save_trace(self, screen: TraceBase) -> None:
        from odf_tui.widgets.choice_list import Choice
        from odf_tui.widgets.dialogs import PickerDialog

        if screen.trace.top.row(0).step is None:
            screen.say("nothing is known yet")
            return
        choices = [Choice(form, title, (key,), key) for form, title, key in _FORMS]

        def chosen(form: str | None) -> None:
            if form is not None:
                self.start(self._write_trace(screen, form))

        self.app.push_screen(PickerDialog("Write the trace as", choices, typing=False), chosen)

    async def _write_trace(self, screen: TraceBase, form: str) -> None:
        from odf_tui.features.provenance.trace_text import complete_trace, dot_of, json_of
        from odf_tui.widgets.dialogs import ConfirmDialog, SaveDialog

        inquiry, step = screen.inquiry, await asyncio.to_thread(complete_trace, screen.trace)
        short = inquiry.name.rpartition("/")[2].rpartition(".")[2]
        path = await self.app.push_screen_wait(
            SaveDialog(f"Write the trace of row {inquiry.offset} to", f"{short}-{inquiry.offset}.{form}")
        )
        if path is None or step is None:
            return
        question = f"{path.name} is there already. Write it anew?"
        if path.is_file() and not await self.app.push_screen_wait(
            ConfirmDialog(question, "What it has now is lost.")
        ):
            return
        try:
            written = await asyncio.to_thread(_write, path, json_of if form == "json" else dot_of, step)
        except OSError as error:
            screen.say(error_with_hint(error))
        else:
            screen.say(f"{path.name}: {format_bytes(written)} written")


def _write(path: Path, form: Callable[[TraceStep], str], step: TraceStep) -> int:
    return path.write_bytes(form(step).encode())
