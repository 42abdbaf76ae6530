"""How the screen was left in this workspace: taken up at the start, written now and then and at the end."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace
from textual.timer import Timer

from odf_tui.actions.model import PANES, Action
from odf_tui.screens.sizing import Sizing
from odf_tui.screens.verbs import Verbs
from odf_tui.state import saved_session
from odf_tui.state.saved_session import SavedLayout
from odf_tui.widgets.pane_frame import Pane

SAVE_SECONDS: Final = 3.0
_FILTERED: Final = ("datasets", "blocks", "jobs")  # a search through all rows is not begun unasked


class Remembering(Sizing, Verbs):
    """The part of the workbench that remembers."""

    _remember_timer: Timer | None = None
    _remembered_bytes: bytes | None = None

    def restore(self) -> None:
        """Shows what was shown when this workspace was left, as far as it is known already."""
        known = self.remembered
        self.shares = known.shares
        self.set_class(known.zoomed, "-zoomed")
        for name in _FILTERED:
            if text := known.filters.get(name, ""):
                self.query_one(f"#{name}", Pane).set_filter(text)
        self._restore_graph(known.graph)
        self.graph.selected = known.dataset or None
        for dataset, choice in known.columns.items():
            self.data_pane.set_arrangement(dataset, choice)
        if known.wrap is not None and known.wrap != self.jobs_pane.log_view.wrap:
            self.jobs_pane.log_view.wrap = known.wrap
        self.go_to(known.pane if known.pane in PANES else PANES[0])

    def _restore_graph(self, known: dict[str, Any]) -> None:
        match known:
            case {"mode": "list" | "graph" as mode, "sort": str(sort), "reverse": bool(reverse)}:
                self.datasets_pane.sort = (sort, reverse)
                self.datasets_pane.mode = mode
            case _:
                pass

    def _how_left(self) -> SavedLayout:
        """How the screen is now."""
        known, pane = self.remembered, self.datasets_pane
        sort, reverse = pane.sort
        usual = pane.mode == "graph" and not known.graph
        columns = dict(known.columns)
        for row in self.rows:
            if (choice := self.data_pane.arrangement(row.id)) != columns.get(row.id, {}):
                columns.pop(row.id, None)
                columns |= {row.id: choice} if choice else {}
        wrap = self.jobs_pane.log_view.wrap
        texts = {name: self.query_one(f"#{name}", Pane).filter for name in _FILTERED}
        return replace(
            known,
            pane=self.pane,
            zoomed=self.has_class("-zoomed"),
            shares=self.shares,
            dataset=self.graph.selected or known.dataset,
            filters={name: text for name, text in texts.items() if text},
            graph={} if usual else {"mode": pane.mode, "sort": sort, "reverse": reverse},
            columns=dict(list(columns.items())[-saved_session.MAX_DATASETS :]),
            wrap=known.wrap if wrap and known.wrap is None else wrap,
        )

    def perform(self, action: Action) -> None:
        """Does something; what it changed is written in a while."""
        super().perform(action)
        self._remember_soon()

    def picked(self, picked: str | None) -> None:
        """Does what was chosen."""
        super().picked(picked)
        self._remember_soon()

    def _remember_soon(self) -> None:
        if self._remember_timer is None and self.is_running:
            self._remember_timer = self.set_timer(SAVE_SECONDS, self._remember)

    def _remember(self) -> None:
        """Writes, in a thread, if something has changed."""
        self._remember_timer = None
        content, folder = saved_session.encode(self._how_left()), self.source.folder
        if content != self._remembered_bytes:
            self._remembered_bytes = content
            self.run_worker(lambda: saved_session.save_layout(folder, content), thread=True, group="remember")

    def do_quit(self) -> None:
        """Writes how the screen was left, and leaves."""
        saved_session.save_layout(self.source.folder, saved_session.encode(self._how_left()))
        super().do_quit()
