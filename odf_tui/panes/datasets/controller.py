"""DatasetsController: reads the datasets; updates selection, filter, order and health in pane 1."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace
from textual.message import Message
from textual.timer import Timer

from odf_engine.api import JobState
from odf_engine.api.model import DatasetDetail, DatasetRow
from odf_engine.api.text import format_count
from odf_tui.panes.datasets.dataset_filter import count_terms, parse_filter, toggle_term
from odf_tui.panes.datasets.view import DatasetsPane, GraphView, find_card_jobs
from odf_tui.services.controller import Controller, Host
from odf_tui.services.jobs_client import JobNews
from odf_tui.state.app_state import WORKSPACE_DELETED
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.job_text import transfer_rates
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import PickerDialog
from odf_tui.widgets.status_bar import StatusLine

SHOW_SECONDS: Final = 0.08
REOPEN_SECONDS: Final = 2.0
READ_SECONDS: Final = 1.0
WATCH_SECONDS: Final = 2.0
"""Seconds between two checks for changes by other programs while no worker reports them."""


class DatasetsController(Controller):
    """Pane 1: the datasets, the selected one, and its card."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.pane = self.host.query_one(DatasetsPane)
        self.graph = self.pane.view
        self._details: dict[str, DatasetDetail] = {}
        self._card_remotes: object = None
        self._card_health: object = None
        self._shown_at = self._read_at = float("-inf")
        self._shown_name = ""
        self._show_timer: Timer | None = None
        self._read_timer: Timer | None = None
        self._watch_timer: Timer | None = None
        self._fingerprint = ""
        state = self.state
        state.datasets_changed.connect(lambda _: self._load())
        state.datasets_outdated.connect(lambda _: self._read())
        state.jobs_changed.connect(self._jobs_changed)
        state.warnings_seen.connect(lambda _: self._show_status())
        state.worker_changed.connect(lambda _: self._watch_files())
        state.second.connect(lambda _: self._show_status())
        state.shown_changed.connect(self._read_detail)
        state.pane_changed.connect(lambda _: self.pane.place_card())
        self.navigator.selecting.connect(self._select)
        self.host.set_interval(60.0, self.graph.refresh)  # the list shows how long ago datasets changed

    def routes(self) -> Mapping[type[Message], Callable[[Any], object]]:
        """Return the handler of cursor moves."""
        return {GraphView.Moved: lambda _: self._moved()}

    @property
    def waiting(self) -> bool:
        """Whether a timer will read the datasets, or show the selected one in the other panes."""
        return self._show_timer is not None or self._read_timer is not None

    def refresh(self) -> None:
        """Read datasets and jobs again."""
        self.state.shown = ("", "")
        self.state.jobs.logs.clear()
        self.state.jobs_outdated.send(None)
        self.state.datasets_outdated.send(None)
        self.host.notice("reloaded")

    def _read(self) -> None:
        self.host.read("datasets", self.workspace.datasets, self._datasets_read)

    def _datasets_read(self, rows: list[DatasetRow] | None, error: str) -> None:
        self.graph.problem = WORKSPACE_DELETED if self.state.is_deleted and not rows else error
        if rows is None:
            self.host.notice(error, "bad")
            self.graph.refresh()
        else:
            self.state.set_datasets(rows)

    def _read_soon(self) -> None:
        """Read the datasets, at most once a second while commits follow each other quickly."""
        if self._read_timer is None:
            wait = max(self._read_at + READ_SECONDS - time.monotonic(), 0.001)
            self._read_timer = self.host.set_timer(wait, self._read_now)

    def _read_now(self) -> None:
        self._read_timer, self._read_at = None, time.monotonic()
        self._read()

    def _watch_files(self) -> None:
        """Watch the files of the workspace for changes while there is no worker."""
        if self._watch_timer is not None:
            self._watch_timer.stop()
            self._watch_timer = None
        if self.state.worker == "gone":
            self._fingerprint = ""
            self._check_files()
            self._watch_timer = self.host.set_interval(WATCH_SECONDS, self._check_files)

    def _check_files(self) -> None:
        def then(fingerprint: str | None, error: str) -> None:
            if fingerprint is not None and fingerprint != self._fingerprint:
                # Also for the first one: files may have changed since the worker stopped.
                self._fingerprint = fingerprint
                self._read()

        self.host.read("files", self.workspace.data_fingerprint, then)

    def _load(self) -> None:
        self.graph.is_read = self.state.are_datasets_read
        self.graph.load(self.state.datasets, self.state.healths, self.pane.filter)
        self.pane.place_card()
        self._moved()
        row = self.graph.row
        if row is not None and self._card_remotes not in (None, row.remotes):
            self._show_card()

    def _read_detail(self, row: DatasetRow | None) -> None:
        if row is not None and not (row.missing or row.problem):
            dataset = row.id

            def then(detail: DatasetDetail | None, error: str) -> None:
                if detail is not None:
                    self._details[dataset] = detail
                if self.graph.selected == dataset:
                    self._show_card()

            self.host.read("detail", lambda: self.workspace.detail(dataset), then)

    def _jobs_changed(self, news: JobNews) -> None:
        if news.changed_jobs:
            self.graph.set_healths(self.state.healths)
            if self._card_health is not self.state.healths.get(self.graph.selected or ""):
                self._show_card()
            self._show_status()
        if news.changed_datasets:
            self._read_soon()

    def _moved(self) -> None:
        """Store the selected dataset. A timer shows it, or its new head, in the other panes."""
        row = self.graph.row
        self.state.select("" if row is None else row.id)
        self._show_status()
        selected, shown = ("", "") if row is None else (row.id, row.head), self.state.shown
        if selected == shown and (row is None or row.name == self._shown_name):
            return
        wait = SHOW_SECONDS
        if selected[0] != shown[0]:
            self._show_card()
        else:
            wait = max(wait, self._shown_at + REOPEN_SECONDS - time.monotonic())
        if self._show_timer is not None:
            self._show_timer.stop()
        self._show_timer = self.host.set_timer(wait, self._show_selected)

    def _show_selected(self) -> None:
        self._show_timer, self._shown_at = None, time.monotonic()
        row, target = self.graph.row, self.navigator.target
        if target is not None and (row is None or target.dataset != row.id):
            self.navigator.clear_target()  # the user selected another dataset
        self._shown_name = "" if row is None else row.name
        self.state.show(row)

    def _select(self, dataset: str) -> None:
        """Select a dataset, even if the filter hides it."""
        if self.pane.filter and all(row.id != dataset for row in self.pane.shown):
            self.pane.set_filter("")
        self.graph.select(dataset)
        self.state.select(self.graph.selected or "")

    def _show_card(self) -> None:
        row = self.graph.row
        dataset = row.id if row is not None else ""
        self._card_health, detail = self.state.healths.get(dataset), self._details.get(dataset)
        self._card_remotes = None if row is None else row.remotes
        self.pane.card.load(row, self._card_health, detail, find_card_jobs(self.state.jobs, dataset))
        self.pane.place_card()

    def _show_status(self) -> None:
        """Show the selected dataset and the running jobs in the status line, the graph and the card."""
        row, jobs = self.graph.row, self.state.jobs.active_jobs()
        health = self.state.healths.get(row.id) if row is not None else None
        status = self.host.query_one(StatusLine)
        datasets = len(self.state.datasets) if self.state.are_datasets_read else None
        status.show(row, health, datasets, jobs, self.state.unseen_warnings)
        running = {job.dataset: job for job in jobs if job.state is JobState.running}
        rates, selected = transfer_rates(running.values(), self.state.rates), self.graph.selected or ""
        self.graph.set_jobs(running, rates, self.state.warned)
        self.pane.card.show_progress(running.get(selected), rates.get(selected, ""))
        self.host.show_hints()

    def toggle_list(self) -> None:
        """Show the datasets as a list, or as a graph."""
        self.pane.mode = "graph" if self.pane.mode == "list" else "list"
        self.pane.place_card()

    def sort(self) -> None:
        """Sort the list by its next column. A graph is replaced by the list."""
        if self.pane.mode == "graph":
            self.toggle_list()
        else:
            sorts, name = self.graph.sorts, self.pane.sort[0]
            at = sorts.index(name) if name in sorts else -1
            self.pane.sort = (sorts[(at + 1) % len(sorts)], False)

    def reverse_sort(self) -> None:
        """Reverse the order of the list. A graph is replaced by the list."""
        if self.pane.mode == "graph":
            self.toggle_list()
        self.pane.sort = (self.pane.sort[0], not self.pane.sort[1])

    def choose_filter(self) -> None:
        """Choose a kind, a state or a remote, and show only its datasets; again to remove it."""
        terms = {
            (term.key, alternative)
            for term in parse_filter(self.pane.filter)
            for alternative in term.alternatives
        }
        choices = [
            Choice(
                f"{key}:{word}",
                f"{'✓' if (key, word) in terms else ' '} {key} {word.replace('-', ' ')}",
                remark=format_count(count),
            )
            for key, word, count in count_terms(self.state.datasets, self.state.healths)
        ]
        self.host.open(PickerDialog("Show only", choices, typing=False), self._filter_chosen)

    def _filter_chosen(self, term: str | None) -> None:
        if term:
            self.pane.set_filter(toggle_term(self.pane.filter, *term.split(":")))
            self.host.show_hints()

    def restore(self, layout: SavedLayout) -> None:
        """Restore the selection, the mode and the order."""
        match layout.graph:
            case {"mode": "list" | "graph" as mode, "sort": str(sort), "reverse": bool(reverse)}:
                self.pane.sort = (sort, reverse)
                self.pane.mode = mode
            case _:
                pass
        self.graph.selected = layout.dataset or None

    def save(self, layout: SavedLayout) -> SavedLayout:
        """Save the selection, the mode and the order."""
        sort, reverse = self.pane.sort
        is_default = self.pane.mode == "graph" and not layout.graph
        return replace(
            layout,
            dataset=self.graph.selected or layout.dataset,
            graph={} if is_default else {"mode": self.pane.mode, "sort": sort, "reverse": reverse},
        )
