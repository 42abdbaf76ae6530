"""The list of keys: those that are valid now in groups, the others with the reason why they are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from odf_tui.actions import datasets, sharing
from odf_tui.actions.base import ANYWHERE, Action, Situation
from odf_tui.actions.keymap import KeyMap
from odf_tui.fuzzy import score
from odf_tui.screens.dialogs import LIST_MOVES, Dialog
from odf_tui.widgets.choices import Choice, Choices

_OF_THE_DATASET: Final = frozenset(action.id for action in (*datasets.ACTIONS, *sharing.ACTIONS))


class Help(Dialog[str]):
    """Lists actions and runs one, by its key or with enter.

    Args:
        keys: what there is.
        situation: what guards look at.
        label: the name of the pane that has the keys.
        problems: what is wrong with keys that somebody has changed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "up", show=False, priority=True),
        Binding("enter", "pick", show=False, priority=True),
        Binding("tab", "turn", show=False, priority=True),
        Binding("down,ctrl+n", "move('down')", show=False, priority=True),
        Binding("up,ctrl+p", "move('above')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
    ]

    def __init__(self, keys: KeyMap, situation: Situation, label: str, problems: Sequence[str]) -> None:
        super().__init__()
        self._keys, self._situation, self._label, self._problems = keys, situation, label, problems
        self._all = False

    def compose(self) -> ComposeResult:
        """A line to type in, hidden at first, and the list."""
        with Vertical(classes="dialog -typing") as box:
            box.border_title = Content("Keys")
            line = Input(placeholder="only what holds these letters", compact=True)
            line.cursor_blink = False
            line.display = False
            yield line
            yield Choices(list(self._lines("")))

    def on_mount(self) -> None:
        """Shows what its own keys do."""
        self._show()

    @property
    def _typing(self) -> bool:
        return self.query_one(Input).display

    def _show(self) -> None:
        self.query_one(Choices).set(list(self._lines(self.query_one(Input).value.strip())))
        others = "tab hides the others" if self._all else "tab shows the others"
        self.query_one(".dialog").border_subtitle = Content(
            f"a key or ⏎ runs it · / finds · {others} · esc closes"
        )

    # --- What is listed ---

    def _lines(self, text: str) -> Iterator[Choice]:
        groups: dict[str, list[Choice]] = {}
        for action in self._keys.reachable(self._situation.pane):
            why = action.guard(self._situation)
            if action.id == "help" or (why is not None and not self._all):
                continue
            if score(text, action.title) is None:
                continue
            group = groups.setdefault(self._group(action), [])
            shown = self._keys.key_in(action, self._situation.pane)
            group.append(Choice(action.id, action.title, action.keys, shown, why or "", off=why is not None))
        for title, choices in groups.items():
            yield Choice("", title, heading=True)
            yield from choices
        if not text:
            yield Choice("", f"move about: {self._moves()}", heading=True)
            for problem in self._problems:
                yield Choice("", f"! {problem}", heading=True)

    def _group(self, action: Action) -> str:
        if action.scope != ANYWHERE:
            return f"in {self._label}"
        return "datasets" if action.id in _OF_THE_DATASET else "everywhere"

    def _moves(self) -> str:
        names = ("left", "down", "above", "right", "first", "last")
        letters = " ".join(filter(None, (self._keys.shown(name) for name in names)))
        return f"{letters}, arrows, home, end, page keys"

    # --- What is done ---

    def on_input_changed(self) -> None:
        """Narrows the list."""
        if self._typing:
            self._show()

    def on_key(self, event: events.Key) -> None:
        """A key of an action runs it."""
        if self._typing:
            return
        event.stop()
        if event.key == "slash":
            event.prevent_default()
            line = self.query_one(Input)
            line.display = True
            line.focus()
        elif event.key in ("q", "question_mark", "f1"):
            self.dismiss(None)
        elif event.key in LIST_MOVES:
            self.action_move(LIST_MOVES[event.key])
        elif (action := self._keys.find(event.key, self._situation.pane)) is not None and action.listed:
            self.dismiss(action.id)

    def on_line_view_opened(self) -> None:
        """Clicked."""
        self.action_pick()

    def action_move(self, move: str) -> None:
        """Moves the cursor."""
        self.query_one(Choices).move(move)

    def action_turn(self) -> None:
        """Shows what makes no sense now too, and back."""
        self._all = not self._all
        self._show()

    def action_up(self) -> None:
        """Leaves the filter, then the list."""
        line = self.query_one(Input)
        if not line.display:
            self.dismiss(None)
            return
        line.value = ""
        line.display = False
        self.set_focus(None)
        self._show()

    def action_pick(self) -> None:
        """Runs what is under the cursor, after what was typed before: keys overtake letters."""
        self.query_one(Input).call_later(self.call_later, self._pick)

    def _pick(self) -> None:
        choice = self.query_one(Choices).choice
        if choice is not None:
            self.dismiss(choice.id)
