"""Pane 3: the rows of the selected dataset."""

from __future__ import annotations

from functools import partial

from textual import on

from odf_tui.humane import count
from odf_tui.messages import RowsOpened
from odf_tui.screens.verbs import Verbs
from odf_tui.state import DatasetRow, Health, Target
from odf_tui.widgets.rows import RowsView


class DataPart(Verbs):
    """The part of the workbench about rows."""

    # --- What is learnt ---

    @on(RowsOpened)
    def _rows_opened(self, message: RowsOpened) -> None:
        row = self.graph.row
        if row is None or row.id != message.dataset:
            return
        if message.opened is not None:
            self.data_pane.show(row.id, message.opened)
            self.arrive()
        elif message.error:
            self.data_pane.say(row.id, [(f" {message.error}", "bad")])
        else:
            self.data_pane.say(row.id, *self._no_rows(row))
        self.show_hints()

    def _no_rows(self, row: DatasetRow) -> list[list[tuple[str, str]]]:
        health = self.healths.get(row.id)
        if health in (Health.queued, Health.running):
            return [[(" No rows yet. They show here as soon as the job commits them.", "muted")]]
        if health is Health.failed:
            job = self.book.intake_of(row.id)
            return [
                [(f" No rows: the last {job.kind if job else 'pull'} did not succeed.", "bad")],
                [
                    (" ⏎", "key"),
                    (" in pane ", "muted"),
                    ("1", "key"),
                    (" says why, and what to do.", "muted"),
                ],
            ]
        if row.last_pulled or health is Health.current:
            return [[(" No rows: there were none to take in.", "muted")]]
        if row.derivative:
            return [[(" No rows yet. ", "muted"), ("p", "key"), (" makes them of other datasets.", "muted")]]
        if row.polls:
            return [
                [(" No rows yet. Press ", "muted"), ("p", "key"), (" to pull them from the source.", "muted")]
            ]
        if row.push_sources:
            return [[(" No rows yet. They are pushed: ", "muted"), (f"odf ingest {row.name} FILE", "strong")]]
        return [
            [(" No rows: there is no source. ", "muted"), ("e", "key"), (" edits the definition.", "muted")]
        ]

    @on(RowsView.Failed)
    def _rows_failed(self, message: RowsView.Failed) -> None:
        self.notify_line(message.error, "bad")

    # --- What is done ---

    def do_up(self) -> None:
        """Leaves the table that is in front of the dataset's rows, then what every pane leaves."""
        typing = self.query_one("#filter").display
        if self.pane == "data" and not typing and self.data_pane.leave():
            self.show_hints()
        else:
            super().do_up()

    def follow(self, target: Target) -> None:
        """Goes to a block or a row of a dataset: for a row, its rows come to the front."""
        if target.pane == "data":
            self.data_pane.leave_all()
        super().follow(target)

    def do_open_row(self) -> None:
        """A row, a line for each column."""
        view = self.data_pane.view
        if (record := view.record()) is None:
            return
        from odf_tui.screens.dialogs import Reader
        from odf_tui.screens.texts import record_spans

        title = f"row {count(view.cursor + 1)}"
        self.app.push_screen(Reader(title, record_spans(record), partial(self.copy_text, "row")))
