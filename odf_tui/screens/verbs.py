"""What each action does: a method ``do_<id>`` for every line of ``actions.ACTIONS``.

Dialogs are imported by the action that opens them: the first paint does not wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import on
from textual.widgets import Input

from odf_tui import actions
from odf_tui.actions import PANES, Action, key_name
from odf_tui.messages import ThemeSaved
from odf_tui.screens.places import Places

if TYPE_CHECKING:
    from odf_tui.screens.dialogs import Choice


class Verbs(Places):
    """The part of the workbench that hands keys to actions, and has those that every pane knows."""

    # --- From keys to actions ---

    def action_press(self, key: str) -> None:
        """A key was pressed."""
        self.press(key)

    def press(self, key: str) -> None:
        """Does what a key means here."""
        action = self.keys.find(key, self.pane)
        if action is not None:
            self.perform(action)

    def perform(self, action: Action) -> None:
        """Does something, or says why it makes no sense now."""
        why = action.guard(self.situation())
        if why is not None:
            self.notify_line(why, "warn")
            return
        getattr(self, f"do_{action.id}")()

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

    # --- Copying, finding, helping ---

    def do_copy(self) -> None:
        """Copies what is selected in the pane."""
        found = self.front.copied()
        if found is None:
            self.notify_line("nothing is selected here", "warn")
        else:
            self.copy_text(*found)

    def do_palette(self) -> None:
        """Finds an action or a dataset."""
        from odf_tui.screens.dialogs import Choice, Picker

        situation = self.situation()
        choices = [_choice(action) for action in self.keys.valid(situation) if action.id != "palette"]
        choices += [Choice(f"dataset {row.id}", f"go to {row.name}", remark="dataset") for row in self.rows]
        choices += [
            Choice(f"theme {name}", f"colour theme {name}", remark="theme")
            for name in self.station.theme_names
        ]
        self.app.push_screen(Picker("Find", choices, typing=True), self.picked)

    def do_help(self) -> None:
        """The keys that are valid now."""
        from odf_tui.screens.dialogs import Picker

        choices = [_choice(action) for action in self.keys.valid(self.situation()) if action.id != "help"]
        title = f"Keys in {self.front.label}  (move with h j k l, g G, arrows, page up and down)"
        self.app.push_screen(Picker(title, choices, typing=False), self.picked)

    def picked(self, picked: str | None) -> None:
        """Does what was chosen in a list: an action, or going to a dataset or a theme."""
        kind, _, name = (picked or "").partition(" ")
        if kind == "dataset":
            self.select_dataset(name)
        elif kind == "theme":
            self._set_theme(name)
        elif kind:
            self.perform(actions.BY_ID[kind])

    # --- The rest ---

    def do_next_theme(self) -> None:
        """The next theme."""
        names = self.station.theme_names
        at = names.index(self.app.theme) if self.app.theme in names else -1
        self._set_theme(names[(at + 1) % len(names)])

    def _set_theme(self, name: str) -> None:
        if self.station.use_theme(name):
            self.dress_panes()
            self.notify_line(f"theme {name}")
            self.reads.save_theme(name)

    @on(ThemeSaved)
    def _theme_saved(self, message: ThemeSaved) -> None:
        if message.error:
            self.notify_line(f"theme {message.name}, for now: {message.error}", "warn")

    def do_quit(self) -> None:
        """Leaves; what runs goes on."""
        self.station.leave([f"{job.kind} {job.target}" for job in self.book.open()])


def _choice(action: Action) -> Choice:
    from odf_tui.screens.dialogs import Choice

    return Choice(action.id, action.title, action.keys, key_name(action.keys[0]))
