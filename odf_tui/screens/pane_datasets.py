"""Pane 1: what can be done with datasets, and what the screen learns of them."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from textual import on
from textual.timer import Timer
from textual.widgets import Input

from odf_engine.coordinator.protocol import JobState, Verify
from odf_tui.gateway.protocol import Gateway
from odf_tui.panes.datasets.dataset_filter import counts, parse_filter, toggle_term
from odf_tui.panes.datasets.view import DatasetsPane, jobs_of
from odf_tui.screens.base import CARD_SIZE
from odf_tui.screens.browsing import Browsing
from odf_tui.screens.resetting import Resetting
from odf_tui.screens.verbs import Verbs
from odf_tui.services.controller import DatasetsRead, DetailRead
from odf_tui.state.app_state import EarlyReads
from odf_tui.state.job_book import dataset_healths
from odf_tui.state.model import DatasetDetail, DatasetRow, Health, in_dependency_order
from odf_tui.text.format import ellipsize_middle, format_count, printable
from odf_tui.text.job_text import transfer_rates
from odf_tui.widgets.line_view import LineView

LOOK_SECONDS: Final = 0.08
REOPEN_SECONDS: Final = 2.0
READ_SECONDS: Final = 1.0
_CARD_HEIGHT: Final = 13
_MIN_CARD: Final = 8
_LETTERS: Final = "only what holds these letters"
_FILTERS: Final = "letters · kind:root · state:failed,stale · remote:behind · !letters without"


class DatasetsPart(Browsing, Resetting, Verbs):
    """The part of the workbench about datasets.

    Attributes:
        seen: the dataset, and its head, that the panes show.
    """

    def __init__(self, source: Gateway, early: EarlyReads | None = None) -> None:
        super().__init__(source, early)
        self.seen: tuple[str, str] = ("", "")
        self._details: dict[str, DatasetDetail] = {}
        self._looked = float("-inf")
        self._look: Timer | None = None
        self._read_at = float("-inf")
        self._reading: Timer | None = None

    # --- What is learnt ---

    @on(DatasetsRead)
    def _datasets_read(self, message: DatasetsRead) -> None:
        self.graph.problem = message.error
        if message.error:
            self.notify_line(message.error, "bad")
            self.graph.refresh()
        else:
            self.show_datasets(message.rows)

    def show_datasets(self, rows: list[DatasetRow]) -> None:
        """Shows these datasets."""
        before = self.graph.row
        self.rows = rows
        self.healths = dataset_healths(rows, self.book)
        self.graph.load(rows, self.healths, self.datasets_pane.filter)
        self.make_room_for_card()
        self._selected()
        if (row := self.graph.row) is not None and before is not None and row.remotes != before.remotes:
            self._show_card()

    @on(LineView.Moved, "#graph")
    def _selected(self) -> None:
        """Another dataset is selected, or there is news of it: its neighbours follow in a moment."""
        row = self.graph.row
        self._show_status()
        seen = ("", "") if row is None else (row.id, row.head)
        if seen == self.seen:
            return
        if seen[0] != self.seen[0]:
            self._show_card()
            wait = LOOK_SECONDS
        else:
            wait = max(LOOK_SECONDS, self._looked + REOPEN_SECONDS - time.monotonic())
        if self._look is not None:
            self._look.stop()
        self._look = self.set_timer(wait, self._look_at)

    def _look_at(self) -> None:
        row = self.graph.row
        self._look = None
        self._looked = time.monotonic()
        self.seen = ("", "") if row is None else (row.id, row.head)
        if self.target is not None and self.target.dataset != self.seen[0]:
            self.target = None  # the person went elsewhere
        if row is None:
            self.blocks_pane.view.open("", 0)
            self.data_pane.show_message("", [(" Rows show here.", "muted")])
            return
        self.blocks_pane.set_context(row.name)
        if row.missing or row.problem:
            why = printable(row.problem or "This input is not in the workspace.")
            self.blocks_pane.view.open(row.id, row.blocks)
            self.data_pane.show_message(row.id, [(f" {why}", "warn")])
            return
        self.blocks_pane.view.open(row.id, row.blocks)
        self.arrive()
        self.reads.detail(row.id)
        self.reads.rows(row.id)

    def _show_card(self) -> None:
        row = self.graph.row
        dataset = row.id if row is not None else ""
        health, detail = self.healths.get(dataset), self._details.get(dataset)
        self.datasets_pane.card.load(row, health, detail, jobs_of(self.book, dataset))
        self.make_room_for_card()

    @on(DatasetsPane.Resized)
    def _pane_resized(self) -> None:
        self.make_room_for_card()

    def make_room_for_card(self) -> None:
        """The card leaves the rows their room; in the list the columns go before it."""
        super().make_room_for_card()
        pane, need, card = self.datasets_pane, self.graph.size_needed, self.datasets_pane.card
        below = self.query_one("#home").has_class("-below")
        if self.graph.row is None:  # nothing fits the filter
            card.display = False
        elif pane.mode == "list" and not below and pane.size.width - need.width < CARD_SIZE.width:
            card.display = False
            pane.set_subtitle(ellipsize_middle(card.why, max(pane.size.width - 4, 0)))
        room = min(_CARD_HEIGHT, pane.size.height - need.height - 1)
        card.styles.height = max(room, _MIN_CARD) if below and card.display else None

    def _show_status(self) -> None:
        """What is selected, and what runs; graph and card say how far it is."""
        super()._show_status()
        running = {job.dataset: job for job in self.book.active_jobs() if job.state is JobState.running}
        rates, selected = transfer_rates(running.values(), self.jobs_pane.pace), self.graph.selected or ""
        self.graph.set_jobs(running, rates)
        self.datasets_pane.card.progress(running.get(selected), rates.get(selected, ""))

    @on(DetailRead)
    def _detail_read(self, message: DetailRead) -> None:
        if message.detail is not None:
            self._details[message.dataset] = message.detail
        if self.graph.selected == message.dataset:
            self._show_card()

    def _read_soon(self) -> None:
        """Reads the datasets, at most once a second while commits come quickly."""
        if self._reading is None:
            wait = max(self._read_at + READ_SECONDS - time.monotonic(), 0.001)
            self._reading = self.set_timer(wait, self._read_now)

    def _read_now(self) -> None:
        self._reading, self._read_at = None, time.monotonic()
        self.reads.datasets()

    # --- What is done ---

    def do_pull(self) -> None:
        """Pulls the selected dataset; a source of somebody else's is looked at first, a query is shut in."""
        row = self.graph.row
        if row is not None and row.comes_from_elsewhere:
            self.synchronise(row)
        elif row is not None and row.untrusted and not row.derivative:
            self.ask_for_trust(row, pull=True)
        elif row is not None:
            self.submit([(self.pull_of(row), row.name)])

    def do_pull_all(self) -> None:
        """Pulls all datasets that may run here, did not diverge and are not being pulled, inputs first."""
        busy = {job.dataset for job in self.book.active_jobs() if job.kind == "pull"}
        by_id = {
            row.id: row
            for row in self.rows
            if row.polls or row.comes_from_elsewhere or (row.derivative and not row.missing)
        }
        order = in_dependency_order(self.rows, by_id)
        wanted = [by_id[dataset] for dataset in order if dataset in by_id and dataset not in busy]
        apart = [row for row in wanted if self.healths.get(row.id) is Health.diverged and not row.diverged]
        wanted = [row for row in wanted if row not in apart]
        refused = sum(row.untrusted and not row.comes_from_elsewhere for row in wanted)
        diverged = sum(bool(row.diverged) for row in wanted)
        remark = f"; {format_count(refused)} not trusted" if refused else ""
        remark += f"; {format_count(diverged)} diverged: D makes them anew" if diverged else ""
        remark += f"; {format_count(len(apart))} went apart from elsewhere: V shows how" if apart else ""
        wanted = [row for row in wanted if row.comes_from_elsewhere or not (row.untrusted or row.diverged)]
        self.submit([(self.pull_of(row), row.name) for row in wanted], remark)

    def do_verify(self) -> None:
        """Verifies the selected dataset."""
        row = self.graph.row
        if row is not None:
            self.submit([(Verify(dataset=row.id), row.name)])

    def do_list(self) -> None:
        """The datasets as a list, or as a graph."""
        pane = self.datasets_pane
        pane.mode = "graph" if pane.mode == "list" else "list"
        self.make_room_for_card()

    def do_sort(self) -> None:
        """The list by its next column; a graph becomes the list."""
        pane = self.datasets_pane
        if pane.mode == "graph":
            self.do_list()
        else:
            sorts, name = self.graph.sorts, pane.sort[0]
            at = sorts.index(name) if name in sorts else -1
            pane.sort = (sorts[(at + 1) % len(sorts)], False)

    def do_sort_back(self) -> None:
        """The list the other way round; a graph becomes the list."""
        pane = self.datasets_pane
        if pane.mode == "graph":
            self.do_list()
        pane.sort = (pane.sort[0], not pane.sort[1])

    def do_filter(self) -> None:
        """Opens the line to type a filter in; here it knows more than letters."""
        super().do_filter()
        line = self.query_one("#filter", Input)
        line.placeholder = _FILTERS if self.pane == "datasets" else _LETTERS

    def do_narrow(self) -> None:
        """Chooses a kind, a state or a remote to show only that; what is shown already is taken back."""
        from odf_tui.widgets.choice_list import Choice
        from odf_tui.widgets.dialogs import PickerDialog

        pane = self.datasets_pane
        asked = {(word.key, each) for word in parse_filter(pane.filter) for each in word.alternatives}
        choices = [
            Choice(
                f"{key}:{word}",
                f"{'✓' if (key, word) in asked else ' '} {key} {word.replace('-', ' ')}",
                remark=format_count(found),
            )
            for key, word, found in counts(self.rows, self.healths)
        ]
        self.app.push_screen(PickerDialog("Show only", choices, typing=False), self._narrowed)

    def _narrowed(self, picked: str | None) -> None:
        if picked:
            pane = self.datasets_pane
            pane.set_filter(toggle_term(pane.filter, *picked.split(":")))
            self.show_hints()

    def do_open_dataset(self) -> None:
        """Everything about the dataset."""
        row = self.graph.row
        if row is not None:
            self.reads.detail(row.id, wanted=True)

    def show_detail(self, dataset: str, detail: DatasetDetail) -> None:
        """Shows everything about a dataset."""
        from odf_tui.features.dataset_actions import DatasetDialog, detail_lines

        row = next((row for row in self.rows if row.id == dataset), None)
        if row is None or self.app.screen is not self:
            return
        lines = detail_lines(
            row, self.healths.get(dataset, Health.new), detail, self.book.latest_ingest(dataset)
        )
        reader = DatasetDialog(row.name, lines, detail.text, partial(self.copy_text, "text"))
        self.app.push_screen(reader, self.picked)

    def do_refresh(self) -> None:
        """Reads everything again."""
        self.seen = ("", "")
        self.book.logs.clear()
        self.reads.jobs()
        self.reads.datasets()
        self.notify_line("read again")
