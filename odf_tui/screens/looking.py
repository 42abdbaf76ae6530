"""Looking closer at the rows of pane 3: statistics, the current state by key, files of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from odf_engine.coordinator.protocol import BuildProjection, ComputeStatistics, Export
from odf_engine.coordinator.results import ProjectionResult
from odf_engine.errors import OdfError
from odf_tui.panes.data.view import QUERY, STATE
from odf_tui.screens.places import Navigator
from odf_tui.screens.waiting import JobsClient, LeftRunning
from odf_tui.state.model import DatasetRow
from odf_tui.text.format import format_count

if TYPE_CHECKING:
    from odf_tui.features.export import ExportOptions
    from odf_tui.gateway.row_window import RowWindow


_WORDS = {STATE: "current state", QUERY: "result of the query"}


class ExportableRows(msgspec.Struct, frozen=True):
    """Rows that can be exported: in words, of which window (None: the dataset), and which of them."""

    words: str
    window: Any = None
    ranges: list[tuple[int, int]] = []


class LookingPart(JobsClient, Navigator):
    """The part of the workbench that looks closer at rows.

    Attributes:
        key_choices: the columns that were chosen as keys, by dataset.
    """

    key_choices: dict[str, list[str]]

    # --- Statistics ---

    def do_statistics(self) -> None:
        """Schema and statistics of what is shown, when a file has it, or else of the dataset."""
        row = self.graph.row
        if row is None:
            return
        file = _file_of(self.data_pane.window)
        view = self.data_pane.front_view
        dataset, name = self._subject(row)
        title, of = f"Statistics of {name}", "the whole changelog, retractions too"
        if file is not None and view is not None:
            when = f" {view.when}," if view.when else ""
            title, of = f"{title}{when}: {view.title}", "what pane 3 shows"
        self.show_statistics(dataset, name, file, title, of)

    def show_statistics(self, dataset: str, name: str, file: str | None, title: str, of: str) -> None:
        """Opens the statistics of a dataset, or of a file with rows of it."""
        from odf_tui.features.statistics import StatisticsScreen

        screen = StatisticsScreen(
            title,
            of,
            ComputeStatistics(dataset, file=file),
            lambda: asyncio.to_thread(self.source.described, dataset, file),
            partial(self._ask_for, name),
            self._stop_job,
            self.book,
            self.copy_text,
        )
        self.app.push_screen(screen)

    def _subject(self, row: DatasetRow) -> tuple[str, str]:
        """Id and name of the dataset whose rows are shown; those of a query are of none."""
        view = self.data_pane.front_view
        return ("", "a query") if view is not None and view.kind == QUERY else (row.id, row.name)

    async def _ask_for(self, name: str, request: ComputeStatistics) -> str:
        link = await self.follower.link()
        return await link.submit(request, name)

    async def _stop_job(self, job: str) -> None:
        with suppress(OdfError):  # it may have ended meanwhile
            await (await self.follower.link()).cancel(job)

    # --- The current state ---

    def do_current_state(self) -> None:
        """The current state by key instead of the changelog, and back."""
        row, view = self.graph.row, self.data_pane.front_view
        if view is not None and view.kind == STATE:
            self.data_pane.pop_view()
            self.show_hints()
        elif row is not None:
            self.start(self._current_state(row, choose=False))

    def do_current_state_by(self) -> None:
        """The same by other columns than the dataset's key."""
        row = self.graph.row
        if row is not None:
            self.start(self._current_state(row, choose=True))

    async def _current_state(self, row: DatasetRow, *, choose: bool) -> None:
        key = await self.key_for(row, choose=choose)
        if not key:
            return
        title = f"Current state of {row.name}"
        try:
            result = await self.result_of(BuildProjection(row.id, key), row.name, title, leaves=True)
        except LeftRunning:
            self.notify_line(f"the current state of {row.name} is being made: K shows it once it is there")
            return
        await self._show_state(row, result)

    async def key_for(self, row: DatasetRow, *, choose: bool) -> list[str] | None:
        """The key of a dataset; the person is asked where there is none, or to choose another."""
        primary = await asyncio.to_thread(self.source.primary_key, row.id)
        return primary if primary and not choose else await self._chosen_key(row, primary)

    async def _chosen_key(self, row: DatasetRow, primary: Sequence[str]) -> list[str] | None:
        from odf_tui.panes.data.row_dialogs import KeyColumnsDialog

        columns = await asyncio.to_thread(self.source.columns, row.id)
        window = self.data_pane.window
        system = () if window is None else window.system_columns[:3]
        columns = [each for each in columns if each[0] not in system]
        if not columns:
            raise OdfError(f"{row.name} has no rows yet", hint="p brings some in")
        before = [name for name in self._keys().get(row.id, primary) if name in dict(columns)]
        title = f"Current state of {row.name}: by which key?"
        key = await self.app.push_screen_wait(KeyColumnsDialog(title, columns, before))
        if key:
            self._keys()[row.id] = key
        return key

    def _keys(self) -> dict[str, list[str]]:
        if not hasattr(self, "key_choices"):
            self.key_choices = {}
        return self.key_choices

    async def _show_state(self, row: DatasetRow, result: ProjectionResult) -> None:
        from odf_tui.panes.data.view import TableView
        from odf_tui.widgets.row_table import load_window

        def opened() -> Any:
            return load_window(self.source.file_rows(row.id, result.file))

        shown = await asyncio.to_thread(opened)
        pane = self.data_pane
        if self.graph.row is None or self.graph.row.id != row.id or pane.dataset != row.id:
            self.notify_line(f"the current state of {row.name} is there: K shows it")
            return
        if pane.front_view is not None and pane.front_view.kind == STATE:
            pane.pop_view()
        key = ", ".join(result.key)
        rows = f"{format_count(result.rows)} of {format_count(result.of)} rows"
        below = (pane.view.cursor, pane.view.column)
        pane.push_view(
            TableView(shown, f"current state by {key} · {rows}", "K back to all rows", STATE, below)
        )
        self.show_hints()

    # --- Files ---

    def do_export(self) -> None:
        """Writes rows to a file."""
        row = self.graph.row
        if row is None:
            return
        from odf_tui.features.export import ExportDialog

        choices = self._exportable(row)
        dataset, name = self._subject(row)
        short = name.rpartition("/")[2].rpartition(".")[2] if dataset else "result"
        words = [each.words for each in choices]
        dialog = ExportDialog(f"Export {name}", words, short, system=_has_system(self.data_pane.window))

        def decided(order: ExportOptions | None) -> None:
            if order is not None:
                self.start(self._export(dataset, name, choices[order.rows], order))

        self.app.push_screen(dialog, decided)

    def _exportable(self, row: DatasetRow) -> list[ExportableRows]:
        """Which rows there are to choose from, what is most likely meant first."""
        pane = self.data_pane
        view, window, marked = pane.front_view, pane.window, pane.marked()
        found: list[ExportableRows] = []
        if marked:
            rows = sum(stop - start for start, stop in marked)
            of = window if view is not None else None
            found.append(ExportableRows(f"{format_count(rows)} marked", of, marked))
        if view is not None and window is not None:
            words = _WORDS.get(view.kind, "what is shown")
            found.append(ExportableRows(f"{words}: {format_count(window.row_count)}", window))
        if view is None or view.kind != QUERY:
            found.append(ExportableRows(f"all {format_count(row.records)} rows", None))
        return found

    async def _export(self, dataset: str, name: str, rows: ExportableRows, order: ExportOptions) -> None:
        file = _file_of(rows.window)
        spooled = ""
        if rows.window is not None and file is None:
            file = spooled = await asyncio.to_thread(self.source.spool, rows.window)
        request = Export(
            dataset,
            str(order.path),
            format=order.format,
            file=file,
            ranges=sorted(rows.ranges),
            system=order.system,
            replace=order.replace,
        )
        try:
            result = await self.result_of(request, name, f"Exporting {name}", leaves=True)
        except LeftRunning:
            self.notify_line(f"{order.path.name} is being written: pane 4 says when it is there")
            return
        except OdfError:
            await asyncio.to_thread(self.source.unspool, spooled)
            raise
        await asyncio.to_thread(self.source.unspool, spooled)
        from odf_tui.features.export import export_summary  # deferred: after the first paint

        self.notify_line(export_summary(result))


def _has_system(window: RowWindow | None) -> bool:
    return window is None or not set(window.system_columns[:3]).isdisjoint(window.columns.names)


def _file_of(window: RowWindow | None) -> str | None:
    """The Parquet file that has all rows of a window, if there is one."""
    return getattr(window, "file", None)
