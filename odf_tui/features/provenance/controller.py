"""ProvenanceController: traces rows and values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odf_engine.api import TraceStep, branch_title
from odf_engine.api.model import Target
from odf_engine.api.text import format_bytes
from odf_engine.errors import OdfError, Unsupported
from odf_tui.features.provenance.trace_screen import TraceScreen
from odf_tui.features.provenance.trace_text import complete_trace, trace_dot, trace_json
from odf_tui.features.provenance.trace_tree import TraceSession
from odf_tui.panes.data.view import QUERY, DataPane
from odf_tui.services.controller import Controller, task
from odf_tui.text.format import error_with_hint
from odf_tui.text.row_text import read_scalar
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import ConfirmDialog, PickerDialog, SaveDialog

if TYPE_CHECKING:
    from odf_engine.api.readers.row_window import RowWindow

_FORMS: Final = (
    ("json", "JSON, as printed by odf provenance --json", "j"),
    ("dot", "Graphviz, as printed by odf provenance --dot", "g"),
)


class ProvenanceController(Controller):
    """Traces the row under the cursor, and writes traces to files."""

    def trace_row(self) -> None:
        """Trace the row under the cursor."""
        row, pane = self.state.row, self.host.query_one(DataPane)
        window, view = pane.window, pane.view
        if row is None or window is None or not view.count():
            return
        if pane.front_view is not None and pane.front_view.kind == QUERY:
            self.host.notice("query results have no provenance: select rows of a dataset", "warn")
            return
        history = pane.time_view.history if pane.time_view is not None else ""
        self._trace(row.id, row.name, history, window, view.cursor, view.column)

    @task
    async def _trace(
        self, dataset: str, name: str, history: str, window: RowWindow, row: int, column: int
    ) -> None:
        def read() -> tuple[int, str, str]:
            names = window.columns.names
            at = names.index(window.system_columns[0]) if window.system_columns[0] in names else -1
            stored_offset = read_scalar(window, row, at) if at >= 0 else None
            if stored_offset is None or not stored_offset.is_valid:
                raise OdfError("this row has no offset or cannot be read")
            branch = self._branch_of(dataset, history) if history else ""
            return stored_offset.as_py(), names[column], branch

        offset, value, branch = await asyncio.to_thread(read)
        is_data_column = value not in window.system_columns[:3]
        self._show_trace(
            TraceSession(
                branch_title(dataset, branch),
                branch_title(name, branch),
                offset,
                value,
                self.workspace.rows,
                is_data_column=is_data_column,
            )
        )

    def _branch_of(self, dataset: str, block: str) -> str:
        """Return the branch or the tag whose newest block is the last one of a history.

        Raises:
            Unsupported: there is none.
        """
        branches = self.workspace.list_branches(dataset)
        branch = next((branch.name for branch in branches if str(branch.head) == block), None)
        if branch is None:
            hint = "press B in pane 2, then t to create a tag"
            raise Unsupported("rows of an earlier history cannot be traced without a tag", hint=hint)
        return branch

    async def trace_offset(self, dataset: str, name: str, offset: int, column: str | None) -> bool:
        """Trace a row by its offset, and wait until the trace is closed.

        Args:
            dataset: the id of the dataset; ``ID@NAME`` is a branch or a tag.
            name: its name.
            offset: the offset.
            column: the column whose value is traced, or None to trace the entire row.

        Returns:
            Whether the user closed the trace, instead of following a link.
        """
        is_value = column is not None
        session = TraceSession(
            dataset, name, offset, column or "", self.workspace.rows, is_data_column=is_value
        )
        session.column = column
        self.state.performed.send("trace")
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._show_trace(session, ended.set_result)
        return await ended

    def _show_trace(self, session: TraceSession, ended: Callable[[bool], None] = lambda _: None) -> None:
        if not self.host.is_front:  # another dialog was opened since
            ended(False)
            return
        screen = TraceScreen(
            session,
            self.workspace,
            self.state.jobs,
            submit=self.jobs.submit_one,
            cancel=self.jobs.cancel,
            copy=self.host.terminal.copy,
            save=self._save,
            edit=self.host.terminal.edit,
        )

        def closed(target: Target | None) -> None:
            if target is None:
                for job in screen.pending_jobs():
                    self.host.start(self.jobs.cancel(job))
                ended(True)
                return
            ended(False)
            self.navigator.follow(target, reopen=lambda: self.host.call_later(self._show_trace, session))
            self.host.notice("ctrl+o or backspace returns to the trace")

        self.host.open(screen, closed)

    def _save(self, screen: TraceScreen) -> None:
        if screen.trace.top.row(0).step is None:
            screen.show_message("no trace yet")
            return
        choices = [Choice(form, title, (key,), key) for form, title, key in _FORMS]

        def chosen(form: str | None) -> None:
            if form is not None:
                self._write(screen, form)

        self.host.open(PickerDialog("Write the trace as", choices, typing=False), chosen)

    @task
    async def _write(self, screen: TraceScreen, form: str) -> None:
        session, step = screen.session, await asyncio.to_thread(complete_trace, screen.trace)
        short = session.name.rpartition("/")[2].rpartition(".")[2]
        title = f"Write the trace of row {session.offset} to"
        path = await self.host.ask(SaveDialog(title, f"{short}-{session.offset}.{form}"))
        if path is None or step is None:
            return
        question = f"{path.name} already exists. Overwrite?"
        if path.is_file() and not await self.host.ask(ConfirmDialog(question, "Its contents will be lost.")):
            return
        try:
            written = await asyncio.to_thread(_write, path, trace_json if form == "json" else trace_dot, step)
        except OSError as error:
            screen.show_message(error_with_hint(error))
        else:
            screen.show_message(f"{path.name}: {format_bytes(written)} written")


def _write(path: Path, form: Callable[[TraceStep], str], step: TraceStep) -> int:
    return path.write_bytes(form(step).encode())
