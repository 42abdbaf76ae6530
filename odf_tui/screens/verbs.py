"""What each action does: a method ``do_<id>`` for every line of ``actions.ACTIONS``.

Dialogs are imported by the action that opens them: the first paint does not wait for them.
"""

from __future__ import annotations

from textual.widgets import Input

from odf_tui.actions.model import PANES
from odf_tui.screens.finding import Finding


class Verbs(Finding):
    """The part of the workbench that has the actions that every pane knows."""

    # --- Moving about ---

    def _move(self, move: str) -> None:
        self.front.move(move)

    def do_down(self) -> None:
        """Next."""
        self._move("down")

    def do_above(self) -> None:
        """Previous."""
        self._move("above")

    def do_left(self) -> None:
        """Left."""
        self._move("left")

    def do_right(self) -> None:
        """Right."""
        self._move("right")

    def do_first(self) -> None:
        """First."""
        self._move("first")

    def do_last(self) -> None:
        """Last."""
        self._move("last")

    def do_page_down(self) -> None:
        """Page down."""
        self._move("page_down")

    def do_page_up(self) -> None:
        """Page up."""
        self._move("page_up")

    def do_pane_1(self) -> None:
        """Datasets."""
        self.go_to(PANES[0])

    def do_pane_2(self) -> None:
        """Blocks."""
        self.go_to(PANES[1])

    def do_pane_3(self) -> None:
        """Rows."""
        self.go_to(PANES[2])

    def do_pane_4(self) -> None:
        """Jobs."""
        self.go_to(PANES[3])

    def do_next_pane(self) -> None:
        """The next pane."""
        self._close_filter_line()
        self.go_to(PANES[(PANES.index(self.pane) + 1) % len(PANES)])

    def do_previous_pane(self) -> None:
        """The pane before."""
        self._close_filter_line()
        self.go_to(PANES[PANES.index(self.pane) - 1])

    def do_zoom(self) -> None:
        """One pane alone, and back."""
        self.toggle_class("-zoomed")
        self.arrange_panes()

    def do_up(self) -> None:
        """Leaves the innermost thing: the filter, the zoom, the pane."""
        if self.query_one("#filter").display or self.front.filter:
            self._close_filter_line()
            self.query_one("#filter", Input).value = ""
            self.front.set_filter("")
        elif self.has_class("-zoomed"):
            self.do_zoom()
        else:
            self.go_to(PANES[0])
        self.show_hints()

    # --- Filter ---

    def do_filter(self) -> None:
        """Opens the line to type a filter in."""
        line = self.query_one("#filter", Input)
        self.query_one("#hints").display = False
        line.display = True
        line.value = self.front.filter
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The filter works while it is typed."""
        if event.input.id == "filter" and event.input.display:
            self.front.set_filter(event.value.strip())

    def on_input_submitted(self) -> None:
        """The filter stays."""
        self._close_filter_line()

    def _close_filter_line(self) -> None:
        line = self.query_one("#filter", Input)
        if line.display:
            line.display = False
            self.query_one("#hints").display = True
            self.go_to(self.pane)

    # --- The rest ---

    def do_copy(self) -> None:
        """Copies what is selected in the pane."""
        found = self.front.selection()
        if found is None:
            self.notify_line("nothing is selected here", "warn")
        else:
            self.copy_text(*found)

    def do_quit(self) -> None:
        """Leaves; what runs goes on."""
        self.station.leave([f"{job.kind} {job.target}" for job in self.book.active_jobs()])
