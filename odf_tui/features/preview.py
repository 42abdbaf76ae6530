"""Shows the rows that the next pull of a dataset would commit."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.api import Preview
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import printable
from odf_tui.services.controller import Controller, dataset_task
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.widgets.dialogs import MOVE_KEYS, Dialog
from odf_tui.widgets.row_table import LoadedWindow, RowTable, load_window

_KEYS: Final = "p pull · h/l columns · esc"


class PreviewScreen(Dialog[str]):
    """Shows rows that are not committed. Returns ``pull`` to commit them, or None.

    Args:
        title: title of the dialog.
        opened: the rows.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("p", "dismiss('pull')", "pull the dataset", show=False),
        Binding("h,left", "move('left')", "previous column", show=False),
        Binding("l,right", "move('right')", "next column", show=False),
        *MOVE_KEYS,
    ]

    def __init__(self, title: str, opened: LoadedWindow) -> None:
        super().__init__()
        self._title, self._opened = title, opened
        self._rows = RowTable()

    def compose(self) -> ComposeResult:
        """Yield the rows."""
        with Vertical(classes="dialog reader difference") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content(_KEYS)
            yield self._rows

    def on_mount(self) -> None:
        """Show the rows."""
        self._rows.active = True
        self._rows.open(self._opened, stay=False)

    @on(RowTable.Failed)
    def _show_failure(self, message: RowTable.Failed) -> None:
        self._rows.show_message([(f" {printable(message.error)}", "bad")])

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self._rows.move(move)


class PreviewController(Controller):
    """Reads the source of the selected dataset as a pull does, and commits nothing."""

    @dataset_task
    async def show_preview(self, row: DatasetRow) -> None:
        """Show the rows that the next pull would commit, and pull the dataset if the user confirms."""
        title = f"Reading the source of {row.name}"
        try:
            result = await self.jobs.outcome(Preview(row.id), row.name, title, leaves=True)
        except LeftRunning:
            self.host.notice(f"the source of {row.name} is being read")
            return
        summary = Preview.summarize(result).text
        if not result.rows:
            self.host.notice(f"{row.name}: {summary}")
            return
        file = str(self.workspace.folder / result.path)
        opened = await asyncio.to_thread(lambda: load_window(self.workspace.file_rows(row.id, file)))
        title = f"{row.name}: {summary}, from {result.origin}"
        if await self.host.ask(PreviewScreen(title, opened)) == "pull":
            self.host.perform("pull")
