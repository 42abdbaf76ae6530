"""TourController: three hints for a first look at the demo."""

from __future__ import annotations

from typing import Final

from textual.content import Content
from textual.widgets import Static

from odf_tui.services.controller import Controller, Host
from odf_tui.state.saved_session import TOUR

_HINTS: Final = {
    "differences": "select stations, then 3 d p: its newest changes",
    "trace": "w on a row: its cause, down to the line of the file",
    "verify": "v: replay the dataset, which proves its rows",
}


class TourLine(Static):
    """The hint, above the status line."""


class TourController(Controller):
    """Shows hints one by one. A hint disappears when its action was performed."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._left[:] = [action for action in TOUR if action in self._left]  # the file may be edited
        self.state.performed.connect(self._performed)
        self._show()

    @property
    def _left(self) -> list[str]:
        """The actions whose hints are left, which are saved with the layout."""
        return self.state.layout.tour

    def leave(self) -> bool:
        """End the tour, if there is nothing else to leave."""
        if self.host.situation().up != "tour":
            return False
        self._left.clear()
        self._show()
        return True

    def _performed(self, action: str) -> None:
        if action in self._left:
            self._left.remove(action)
            self._show()
            if not self._left:
                self.host.notice("end of the tour: ? lists the keys of what is selected")

    def _show(self) -> None:
        line = self.host.find(TourLine)
        if not self._left:
            if line is not None:
                line.remove()
            return
        number = len(TOUR) - len(self._left) + 1
        text = Content(f" tour {number}/{len(TOUR)} · {_HINTS[self._left[0]]} · esc ends it")
        if line is None:
            self.host.mount(TourLine(text, id="tour"), before="#status")
        else:
            line.update(text)
