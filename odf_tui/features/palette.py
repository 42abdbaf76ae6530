"""PaletteController: the command palette, the list of keys, and the list of themes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from odf_engine.api.model import DatasetRow, Target
from odf_tui.actions import table
from odf_tui.actions.model import ANYWHERE, Action, KeyMap, Situation
from odf_tui.features.help_topics import HelpTopicsController
from odf_tui.help.pages import TOPICS
from odf_tui.panes.blocks.view import FINDING_MARK, PROOF_MARK
from odf_tui.panes.data.view import DataPane
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.services.controller import Controller
from odf_tui.state.model import Health
from odf_tui.state.saved_session import MAX_RECENT
from odf_tui.text.format import OPERATION_SIGNS, OPERATION_WORDS
from odf_tui.text.job_text import job_outcome
from odf_tui.widgets.choice_list import Choice, Choices, fuzzy_rank, fuzzy_score
from odf_tui.widgets.dialogs import LIST_MOVES, Dialog, PickerDialog
from odf_tui.widgets.line_view import LineView

_DATASET_ACTION_IDS: Final = frozenset(
    action.id for action in (*table.DATASET_ACTIONS, *table.SHARING_ACTIONS, *table.DATASET_MENU_ACTIONS)
)


def _list_healths(*healths: Health) -> str:
    return " · ".join(f"{health.glyph} {health.word}" for health in healths)


_MARKS: Final[Mapping[str, Sequence[str]]] = {
    "datasets": (
        "◇ root · ◆ derivative · ⊘ untrusted · ⇣2 blocks to pull · ⇡2 to push",
        _list_healths(*list(Health)[:5]),
        _list_healths(*list(Health)[5:]),
    ),
    "blocks": (f"{FINDING_MARK} a finding of the verification · {PROOF_MARK} signed by the owner",),
    "data": (
        "┌ first row of a slice · ▸ marked row · ∅ null · ‹ › more columns",
        " · ".join(f"{sign} {OPERATION_WORDS[op]}" for op, (sign, _) in OPERATION_SIGNS.items()),
    ),
    "jobs": (
        "◦ queued · ▸ running · ✓ done · ✗ failed · ■ cancelled · ↯ interrupted",
        "in a log: ◆ committed block · ! warning · ✗ error · · debug line",
    ),
}
"""The explanation of the marks of each pane."""


class KeysDialog(Dialog[str]):
    """Lists the actions of the focused pane. A key or enter runs one.

    Args:
        keys: the keys in use.
        situation: the arguments of guards.
        label: the name of the focused pane.
        problems: errors in the keys that the user changed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "up", show=False, priority=True),
        Binding("enter", "pick", show=False, priority=True),
        Binding("tab", "toggle_refused", show=False, priority=True),
        Binding("down,ctrl+n", "move('down')", show=False, priority=True),
        Binding("up,ctrl+p", "move('above')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
    ]

    def __init__(self, keys: KeyMap, situation: Situation, label: str, problems: Sequence[str]) -> None:
        super().__init__()
        self._keys, self._situation, self._label, self._problems = keys, situation, label, problems
        self._shows_refused = False

    def compose(self) -> ComposeResult:
        """Create the list, and a line to filter it, hidden at first."""
        with Vertical(classes="dialog -typing") as box:
            box.border_title = Content("Keys")
            line = Input(placeholder="filter by title", compact=True)
            line.cursor_blink = False
            line.display = False
            yield line
            yield Choices(list(self._choices("")))

    def on_mount(self) -> None:
        """Show the keys of the dialog."""
        self._show()

    @property
    def _typing(self) -> bool:
        return self.query_one(Input).display

    def _show(self) -> None:
        self.query_one(Choices).set(list(self._choices(self.query_one(Input).value.strip())))
        toggle_hint = "tab hides unavailable" if self._shows_refused else "tab shows all"
        self.query_one(".dialog").border_subtitle = Content(
            f"a key or ⏎ runs it · / filters · {toggle_hint} · esc closes"
        )

    def _choices(self, text: str) -> Iterator[Choice]:
        groups: dict[str, list[Choice]] = {}
        for action in self._keys.actions_in(self._situation.pane):
            refusal = action.guard(self._situation)
            if action.id == "help" or (refusal is not None and not self._shows_refused):
                continue
            if fuzzy_score(text, action.title) is None:
                continue
            group = groups.setdefault(self._group_title(action), [])
            shown = self._keys.key_in(action, self._situation.pane)
            group.append(
                Choice(
                    action.id, action.title, action.keys, shown, refusal or "", disabled=refusal is not None
                )
            )
        for title, choices in groups.items():
            yield Choice("", title, heading=True)
            yield from choices
        if not text:
            yield Choice("", f"navigation: {self._move_keys()}", heading=True)
            yield Choice("", "marks", heading=True)
            for line in _MARKS.get(self._situation.pane, ()):
                yield Choice("", f"  {line}", heading=True)
            for problem in self._problems:
                yield Choice("", f"! {problem}", heading=True)

    def _group_title(self, action: Action) -> str:
        if action.scope != ANYWHERE:
            return f"in {self._label}"
        return "datasets" if action.id in _DATASET_ACTION_IDS else "all panes"

    def _move_keys(self) -> str:
        names = ("left", "down", "above", "right", "first", "last")
        letters = " ".join(filter(None, (self._keys.display_key(name) for name in names)))
        return f"{letters}, arrows, home, end, page keys"

    def on_input_changed(self) -> None:
        """Filter the list."""
        if self._typing:
            self._show()

    def on_key(self, event: events.Key) -> None:
        """Run the action of a key."""
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
        """Run the action that was clicked."""
        self.action_pick()

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self.query_one(Choices).move(move)

    def action_toggle_refused(self) -> None:
        """Show actions that are refused now, with the reason, or hide them."""
        self._shows_refused = not self._shows_refused
        self._show()

    def action_up(self) -> None:
        """Clear the filter; without one, close the dialog."""
        line = self.query_one(Input)
        if not line.display:
            self.dismiss(None)
            return
        line.value = ""
        line.display = False
        self.set_focus(None)
        self._show()

    def action_pick(self) -> None:
        """Run the action under the cursor, once the letters typed before it were processed."""
        self.query_one(Input).call_later(self.call_later, self._pick)

    def _pick(self) -> None:
        choice = self.query_one(Choices).choice
        if choice is not None:
            self.dismiss(choice.id)


BlockFinder = Callable[[str], list[Choice]]
Preview = Callable[[str | None], None]
_MAX_DATASETS: Final = 5
_MIN_HASH: Final = 4
_BLOCK: Final = re.compile(r"(?:(?P<name>.*?)\s*#\s*)?(?P<block>\d+|[0-9a-f]{4,})")


class BlockReference(NamedTuple):
    """A block by its number or the start of its hash.

    Attributes:
        rows: the datasets that may be meant, the best match first.
        number: the number of the block, or None.
        hash: the first digits of its hash, or empty.
    """

    rows: list[DatasetRow]
    number: int | None
    hash: str


def parse_block_reference(
    text: str, rows: Sequence[DatasetRow], selected: DatasetRow | None
) -> BlockReference | None:
    """Parse ``12``, ``f16204a``, ``name#12`` or ``name#f16204a``. Returns None for other texts.

    Args:
        text: the text that was typed.
        rows: all datasets.
        selected: the dataset that is meant without a name.
    """
    match = _BLOCK.fullmatch(text.strip())
    if match is None:
        return None
    if match["name"]:
        datasets = fuzzy_rank(match["name"], ((row.name, row) for row in rows))[:_MAX_DATASETS]
    else:
        datasets = [selected] if selected is not None else []
    datasets = [row for row in datasets if row.blocks]
    if not datasets:
        return None
    block = match["block"]
    return BlockReference(
        datasets, int(block) if block.isdecimal() else None, block if len(block) >= _MIN_HASH else ""
    )


def block_choice(row: DatasetRow, number: int) -> Choice:
    """Return the choice that opens a block."""
    return Choice(f"block {row.id} {number}", f"block {number} of {row.name}", remark="block")


class CommandPalette(PickerDialog):
    """Finds actions, datasets, blocks, columns, jobs and themes.

    Args:
        choices: all choices except blocks.
        recent: ids of the most recent choices, which come first while nothing is typed.
        blocks: returns the blocks that a text may mean.
        preview: shows the theme under the cursor; None restores the theme in use.
    """

    def __init__(
        self, choices: Sequence[Choice], recent: Sequence[str], blocks: BlockFinder, preview: Preview
    ) -> None:
        by_id = {choice.id: choice for choice in choices}
        recent_choices = [by_id[choice_id] for choice_id in recent if choice_id in by_id]
        recent_ids = set(recent)
        self._other_choices = [choice for choice in choices if choice.id not in recent_ids]
        if recent_choices:
            recent_choices = [
                Choice("", "recent", heading=True),
                *recent_choices,
                Choice("", "all", heading=True),
            ]
        super().__init__("Find", [*recent_choices, *self._other_choices], typing=True)
        self._texts = [(f"{choice.title} {choice.remark}", choice) for choice in choices]
        self._blocks, self._preview = blocks, preview

    def describe_keys(self) -> str:
        """Return the keys and their effects."""
        return "12, name#12 or a hash: a block · ↑↓ move · ⏎ selects · esc closes"

    def find_choices(self, text: str) -> list[Choice]:
        """Return blocks by number, then the best matches; all choices for an empty text."""
        self._preview(None)
        return [*self._blocks(text), *fuzzy_rank(text, self._texts)] if text else self._choices

    def add(self, text: str, choice: Choice) -> None:
        """Insert a choice for a text as the first, if that text is still typed."""
        choices = self.query_one(Choices)
        if self.query_one(Input).value.strip() == text:
            choices.set([choice, *(other for other in choices.choices if other.id != choice.id)])

    def on_line_view_moved(self, message: LineView.Moved) -> None:
        """Show the theme under the cursor."""
        self._preview(_theme_name(self.query_one(Choices).choice))


class ThemePicker(PickerDialog):
    """Lists the themes, and shows the one under the cursor."""

    def __init__(self, names: Sequence[str], chosen: str, preview: Preview) -> None:
        choices = [Choice(f"theme {name}", name, remark="in use" if name == chosen else "") for name in names]
        super().__init__("Themes", choices, typing=False)
        self._preview = preview
        self.cursor = next((at for at, name in enumerate(names) if name == chosen), 0)

    def describe_keys(self) -> str:
        """Return the keys and their effects."""
        return "j k preview · ⏎ selects · esc restores"

    def on_line_view_moved(self, message: LineView.Moved) -> None:
        """Show the theme under the cursor."""
        self._preview(_theme_name(self.query_one(Choices).choice))


def _theme_name(choice: Choice | None) -> str | None:
    kind, _, name = (choice.id if choice is not None else "").partition(" ")
    return name if kind == "theme" else None


class PaletteController(Controller):
    """Opens the command palette, the list of keys, and the list of themes."""

    _theme_before: str | None = None

    def show_keys(self) -> None:
        """List the keys that are valid now, and run the chosen action."""
        host = self.host
        self.host.open(
            KeysDialog(host.keys, host.situation(), host.front.label, host.key_problems), self._open_choice
        )

    def find(self) -> None:
        """Find an action, a dataset, a block, a column, a job or a theme."""
        recent = self.state.layout.recent
        choices = [*self._choices(), *self._recent_blocks(recent)]
        self.host.open(CommandPalette(choices, recent, self._find_blocks, self._preview), self._choose_found)

    def _choose_found(self, choice: str | None) -> None:
        """Open a choice, and save it as the most recent one."""
        self._preview(None)
        if choice is not None:
            layout = self.state.layout
            layout.recent = [choice, *(other for other in layout.recent if other != choice)][:MAX_RECENT]
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
            view = self.host.query_one(DataPane).view
            view.go_to(view.cursor, int(rest))
        elif kind == "topic":
            HelpTopicsController(self.host).show_page(rest)
        elif kind == "job":
            self.state.focus_pane("jobs")
            self.host.query_one(JobsPane).view.select(rest)
        elif kind:
            self.host.perform(kind)
        self.state.layout_changed.send(None)

    def _choices(self) -> Iterator[Choice]:
        keys = self.host.keys
        for action in keys.available_actions(self.host.situation()):
            if action.id != "palette":
                shown = keys.key_in(action, self.state.pane)
                yield Choice(action.id, action.title, action.keys, shown)
        for row in self.state.datasets:
            yield Choice(f"dataset {row.id}", row.name, remark="dataset")
        opened = self.host.query_one(DataPane).view.opened
        for at, name in enumerate(opened.columns.names if opened is not None else ()):
            yield Choice(f"column {at}", name, remark="column")
        for job in self.state.jobs.newest_first():
            outcome, _ = job_outcome(job)
            yield Choice(f"job {job.id}", f"{job.kind} {job.target}: {outcome}", remark=f"job {job.id}")
        for name in self.host.terminal.theme_names:
            yield Choice(f"theme {name}", name, remark="theme")
        for name, title in TOPICS.items():
            yield Choice(f"topic {name}", title, remark=f"help {name}")

    def _recent_blocks(self, recent: Sequence[str]) -> Iterator[Choice]:
        """Return the recent choices that are blocks, if they still exist."""
        for choice_id in recent:
            kind, _, rest = choice_id.partition(" ")
            dataset, _, number = rest.rpartition(" ")
            row = self.state.row_of(dataset) if kind == "block" and number.isdecimal() else None
            if row is not None and int(number) < row.blocks:
                yield block_choice(row, int(number))

    def _find_blocks(self, text: str) -> list[Choice]:
        """Return blocks by number. A block with a hash is added as soon as a thread has found it."""
        reference = parse_block_reference(text, self.state.datasets, self.state.row)
        if reference is None:
            return []
        if reference.hash:
            row, prefix = reference.rows[0], reference.hash

            def then(number: int | None, error: str) -> None:
                palette = self.host.top
                if isinstance(palette, CommandPalette) and number is not None:
                    palette.add(text, block_choice(row, number))

            self.host.read("find block", lambda: self.workspace.find_block(row.id, prefix), then)
        return [
            block_choice(row, reference.number)
            for row in reference.rows
            if reference.number is not None and reference.number < row.blocks
        ]

    def choose_theme(self) -> None:
        """List the themes; each is shown while the cursor is on it."""
        terminal = self.host.terminal
        picker = ThemePicker(terminal.theme_names, terminal.theme, self._preview)
        self.host.open(picker, self._theme_chosen)

    def _theme_chosen(self, choice: str | None) -> None:
        self._preview(None)
        self._open_choice(choice)

    def _preview(self, name: str | None) -> None:
        """Show a theme temporarily; None restores the theme in use."""
        terminal = self.host.terminal
        if self._theme_before is None:
            self._theme_before = terminal.theme
        name = name or self._theme_before
        if name != terminal.theme:
            terminal.use_theme(name)
        if name == self._theme_before:
            self._theme_before = None

    def _use_theme(self, name: str) -> None:
        """Use a theme, and save it."""
        if self.host.terminal.use_theme(name):
            self.host.notice(f"theme {name}")
            layout = self.state.layout
            layout.theme, layout.theme_setting = name, self.workspace.ui.theme
