"""The command palette, the list of keys, the list of themes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from odf_tui.actions import table
from odf_tui.actions.model import ANYWHERE, Action, KeyMap, Situation
from odf_tui.panes.data.view import DataPane
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.services.controller import Controller
from odf_tui.state.model import DatasetRow, Target
from odf_tui.state.saved_session import MAX_RECENT
from odf_tui.text.job_text import job_outcome
from odf_tui.widgets.choice_list import Choice, Choices, fuzzy_rank, fuzzy_score
from odf_tui.widgets.dialogs import LIST_MOVES, Dialog, PickerDialog
from odf_tui.widgets.line_view import LineView

_OF_THE_DATASET: Final = frozenset(action.id for action in (*table.DATASET_ACTIONS, *table.SHARING_ACTIONS))


class KeysDialog(Dialog[str]):
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
            if fuzzy_score(text, action.title) is None:
                continue
            group = groups.setdefault(self._group(action), [])
            shown = self._keys.key_in(action, self._situation.pane)
            group.append(
                Choice(action.id, action.title, action.keys, shown, why or "", disabled=why is not None)
            )
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


Blocks = Callable[[str], list[Choice]]
Preview = Callable[[str | None], None]
_MAX_NAMED: Final = 5
_BLOCK: Final = re.compile(r"(?:(?P<name>.*?)\s*#\s*)?(?P<what>\d+|[0-9a-f]{4,})")


class NamedBlock(NamedTuple):
    """What a text may mean: a number or the start of a hash, in these datasets, the likeliest first."""

    rows: list[DatasetRow]
    number: int | None
    hash: str


def named_block(text: str, rows: Sequence[DatasetRow], selected: DatasetRow | None) -> NamedBlock | None:
    """The block that ``12``, ``f16204a``, ``name#12`` or ``name#f16204a`` means; None for other texts."""
    match = _BLOCK.fullmatch(text.strip())
    if match is None:
        return None
    if match["name"]:
        found = fuzzy_rank(match["name"], ((row.name, row) for row in rows))[:_MAX_NAMED]
    else:
        found = [selected] if selected is not None else []
    found = [row for row in found if row.blocks]
    what = match["what"]
    return (
        NamedBlock(found, int(what) if what.isdecimal() else None, what if len(what) > 3 else "")
        if found
        else None
    )


def block_choice(row: DatasetRow, number: int) -> Choice:
    """A block to go to."""
    return Choice(f"block {row.id} {number}", f"block {number} of {row.name}", remark="block")


class Palette(PickerDialog):
    """Finds everything.

    Args:
        choices: all there is, but blocks.
        recent: ids of what was chosen last: that comes first while nothing is typed.
        blocks: the blocks that a text may mean.
        preview: shows the theme under the cursor; None shows the usual one.
    """

    def __init__(
        self, choices: Sequence[Choice], recent: Sequence[str], blocks: Blocks, preview: Preview
    ) -> None:
        by_id = {choice.id: choice for choice in choices}
        lately = [by_id[each] for each in recent if each in by_id]
        first = set(recent)
        self._rest = [choice for choice in choices if choice.id not in first]
        if lately:
            lately = [Choice("", "lately", heading=True), *lately, Choice("", "everything", heading=True)]
        super().__init__("Find", [*lately, *self._rest], typing=True)
        self._texts = [(f"{choice.title} {choice.remark}", choice) for choice in choices]
        self._blocks, self._preview = blocks, preview

    def describe_keys(self) -> str:
        """What the keys do."""
        return "12, name#12 or a hash: a block · ↑↓ move · ⏎ takes it · esc closes"

    def find_choices(self, text: str) -> list[Choice]:
        """Blocks that were named, and what fits best; everything when nothing was typed."""
        self._preview(None)
        return [*self._blocks(text), *fuzzy_rank(text, self._texts)] if text else self._choices

    def add(self, text: str, choice: Choice) -> None:
        """Puts first what was found for a text, if that still stands there."""
        choices = self.query_one(Choices)
        if self.query_one(Input).value.strip() == text:
            choices.set([choice, *(each for each in choices.choices if each.id != choice.id)])

    def on_line_view_moved(self, message: LineView.Moved) -> None:
        """Shows the theme that the cursor is on."""
        self._preview(_theme(self.query_one(Choices).choice))


class ThemePicker(PickerDialog):
    """Shows each theme while the cursor is on it."""

    def __init__(self, names: Sequence[str], chosen: str, preview: Preview) -> None:
        choices = [Choice(f"theme {name}", name, remark="now" if name == chosen else "") for name in names]
        super().__init__("Themes", choices, typing=False)
        self._preview = preview
        self.cursor = next((at for at, name in enumerate(names) if name == chosen), 0)

    def describe_keys(self) -> str:
        """What the keys do."""
        return "j k show another · ⏎ keeps it · esc takes the one before"

    def on_line_view_moved(self, message: LineView.Moved) -> None:
        """Shows the theme that the cursor is on."""
        self._preview(_theme(self.query_one(Choices).choice))


def _theme(choice: Choice | None) -> str | None:
    kind, _, name = (choice.id if choice is not None else "").partition(" ")
    return name if kind == "theme" else None


class PaletteController(Controller):
    """The command palette, the list of keys, and the colour themes."""

    _theme_before: str | None = None

    def show_keys(self) -> None:
        """List the keys that are valid now, and run one."""
        host = self.host
        self.host.open(
            KeysDialog(host.keys, host.situation(), host.front.label, host.key_problems), self._open_choice
        )

    def find(self) -> None:
        """Find an action, a dataset, a block, a column, a job or a theme."""
        recent = self.state.layout.recent
        choices = [*self._choices(), *self._recent_blocks(recent)]
        self.host.open(Palette(choices, recent, self._named_blocks, self._preview), self._found)

    def _found(self, choice: str | None) -> None:
        """Open a choice, and save it as the most recent one."""
        self._preview(None)
        if choice is not None:
            layout = self.state.layout
            layout.recent = [choice, *(each for each in layout.recent if each != choice)][:MAX_RECENT]
        self._open_choice(choice)

    def _open_choice(self, choice: str | None) -> None:
        """Run an action, or go to a dataset, block, column, job or theme."""
        kind, _, rest = (choice or "").partition(" ")
        if kind == "dataset":
            self.navigator.select_dataset(rest)
        elif kind == "theme":
            self._use_theme(rest)
        elif kind == "block":
            dataset, _, number = rest.rpartition(" ")
            self.navigator.follow(Target(dataset, "blocks", int(number)))
        elif kind == "column":
            self.state.focus_pane("data")
            view = self.host.widget(DataPane).view
            view.go_to(view.cursor, int(rest))
        elif kind == "job":
            self.state.focus_pane("jobs")
            self.host.widget(JobsPane).view.select(rest)
        elif kind:
            self.host.perform(kind)
        self.host.save_soon()

    # --- What can be found ---

    def _choices(self) -> Iterator[Choice]:
        keys = self.host.keys
        for action in keys.valid(self.host.situation()):
            if action.id != "palette":
                shown = keys.key_in(action, self.state.pane)
                yield Choice(action.id, action.title, action.keys, shown)
        for row in self.state.datasets:
            yield Choice(f"dataset {row.id}", row.name, remark="dataset")
        opened = self.host.widget(DataPane).view.opened
        for at, name in enumerate(opened.columns.names if opened is not None else ()):
            yield Choice(f"column {at}", name, remark="column")
        for job in self.state.jobs.newest_first():
            outcome, _ = job_outcome(job)
            yield Choice(f"job {job.id}", f"{job.kind} {job.target}: {outcome}", remark=f"job {job.id}")
        for name in self.host.station.theme_names:
            yield Choice(f"theme {name}", name, remark="theme")

    def _recent_blocks(self, recent: Sequence[str]) -> Iterator[Choice]:
        """Return the recent choices that are blocks, if they still exist."""
        for each in recent:
            kind, _, rest = each.partition(" ")
            dataset, _, number = rest.rpartition(" ")
            row = self.state.row_of(dataset) if kind == "block" and number.isdecimal() else None
            if row is not None and int(number) < row.blocks:
                yield block_choice(row, int(number))

    def _named_blocks(self, text: str) -> list[Choice]:
        """Return blocks by number; a block named by its hash is read, and added when it is found."""
        named = named_block(text, self.state.datasets, self.state.row)
        if named is None:
            return []
        if named.hash:
            row, prefix = named.rows[0], named.hash

            def then(number: int | None, error: str) -> None:
                palette = self.host.top
                if isinstance(palette, Palette) and number is not None:
                    palette.add(text, block_choice(row, number))

            self.reader.read("find block", lambda: self.gateway.find_block(row.id, prefix), then)
        return [
            block_choice(row, named.number)
            for row in named.rows
            if named.number is not None and named.number < row.blocks
        ]

    # --- Themes ---

    def choose_theme(self) -> None:
        """Show the themes, each as soon as the cursor is on it."""
        station = self.host.station
        picker = ThemePicker(station.theme_names, station.current_theme_name, self._preview)
        self.host.open(picker, self._theme_chosen)

    def _theme_chosen(self, choice: str | None) -> None:
        self._preview(None)
        self._open_choice(choice)

    def _preview(self, name: str | None) -> None:
        """Show a theme for a while; None returns to the one in use before."""
        station = self.host.station
        if self._theme_before is None:
            self._theme_before = station.current_theme_name
        name = name or self._theme_before
        if name != station.current_theme_name:
            station.use_theme(name)
        if name == self._theme_before:
            self._theme_before = None

    def _use_theme(self, name: str) -> None:
        """Use a theme, and save it."""
        if self.host.station.use_theme(name):
            self.host.notice(f"theme {name}")
            layout = self.state.layout
            layout.theme, layout.theme_setting = name, self.gateway.ui.theme
