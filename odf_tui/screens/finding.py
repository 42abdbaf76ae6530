"""From keys and lists to actions: what a key means, the list of keys, and the one that finds everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.message import Message

from odf_tui.actions.model import PANES, Action
from odf_tui.screens.places import Navigator
from odf_tui.state import saved_session
from odf_tui.state.model import Target
from odf_tui.text.job_text import job_outcome
from odf_tui.widgets.status_bar import KeyHints

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from odf_tui.widgets.choice_list import Choice


@dataclass
class BlockFound(Message):
    """The number of the block whose hash begins with a text, or None."""

    dataset: str
    text: str
    number: int | None


class Finding(Navigator):
    """The part of the workbench that hands keys and choices to actions."""

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

    @on(KeyHints.Chosen)
    def _hint_chosen(self, message: KeyHints.Chosen) -> None:
        if message.action in self.keys.by_id:
            self.perform(self.keys.by_id[message.action])

    # --- Lists ---

    def do_help(self) -> None:
        """The keys: those that are valid now, and if wanted the others."""
        from odf_tui.features.palette import KeysDialog

        self.app.push_screen(
            KeysDialog(self.keys, self.situation(), self.front.label, self.key_problems), self.picked
        )

    def do_palette(self) -> None:
        """Finds an action, a dataset, a block, a column, a job or a theme."""
        from odf_tui.features.palette import Palette

        lately = self.remembered.recent
        everything = [*self._everything(), *self._blocks_among(lately)]
        palette = Palette(everything, lately, self._named_blocks, self._preview)
        self.app.push_screen(palette, self._found_in_palette)

    def _everything(self) -> Iterator[Choice]:
        from odf_tui.widgets.choice_list import Choice

        for action in self.keys.valid(self.situation()):
            if action.id != "palette":
                shown = self.keys.key_in(action, self.pane)
                yield Choice(action.id, action.title, action.keys, shown)
        for row in self.rows:
            yield Choice(f"dataset {row.id}", row.name, remark="dataset")
        opened = self.data_pane.view.opened
        for at, name in enumerate(opened.columns.names if opened is not None else ()):
            yield Choice(f"column {at}", name, remark="column")
        for job in self.book.newest_first():
            words, _ = job_outcome(job)
            yield Choice(f"job {job.id}", f"{job.kind} {job.target}: {words}", remark=f"job {job.id}")
        for name in self.station.theme_names:
            yield Choice(f"theme {name}", name, remark="theme")

    def _blocks_among(self, chosen: Sequence[str]) -> Iterator[Choice]:
        """The blocks that were chosen once, and are still there."""
        from odf_tui.features.palette import block_choice

        for each in chosen:
            kind, _, rest = each.partition(" ")
            dataset, _, number = rest.rpartition(" ")
            row = self.row_of(dataset) if kind == "block" and number.isdecimal() else None
            if row is not None and int(number) < row.blocks:
                yield block_choice(row, int(number))

    def _named_blocks(self, text: str) -> list[Choice]:
        """Blocks by number; those by hash are looked for, and told by :class:`BlockFound`."""
        from odf_tui.features.palette import block_choice, named_block

        named = named_block(text, self.rows, self.graph.row)
        if named is None:
            return []
        if named.hash:
            row, prefix = named.rows[0], named.hash
            self.reads.start(
                "find block",
                lambda: self.source.find_block(row.id, prefix),
                lambda number, _: BlockFound(row.id, text, number),
            )
        return [
            block_choice(row, named.number)
            for row in named.rows
            if named.number is not None and named.number < row.blocks
        ]

    @on(BlockFound)
    def _block_found(self, message: BlockFound) -> None:
        from odf_tui.features.palette import Palette, block_choice

        palette, row = self.app.screen, self.row_of(message.dataset)
        if isinstance(palette, Palette) and row is not None and message.number is not None:
            palette.add(message.text, block_choice(row, message.number))

    def _found_in_palette(self, picked: str | None) -> None:
        """Does what was chosen, and remembers it."""
        self._preview(None)
        if picked is not None:
            recent = [each for each in self.remembered.recent if each != picked]
            self.remembered.recent = [picked, *recent][: saved_session.MAX_RECENT]
        self.picked(picked)

    def picked(self, picked: str | None) -> None:
        """Does what was chosen in a list: an action, or going to something."""
        kind, _, rest = (picked or "").partition(" ")
        if kind == "dataset":
            self.select_dataset(rest)
        elif kind == "theme":
            self.choose_theme(rest)
        elif kind == "block":
            dataset, _, number = rest.rpartition(" ")
            self.follow(Target(dataset, "blocks", int(number)))
        elif kind == "column":
            self.go_to("data")
            self.data_pane.view.go_to(self.data_pane.view.cursor, int(rest))
        elif kind == "job":
            self.go_to(PANES[3])
            self.jobs_pane.view.select(rest)
        elif kind:
            self.perform(self.keys.by_id[kind])

    # --- Themes ---

    def do_themes(self) -> None:
        """Shows the themes, each as soon as the cursor is on it."""
        from odf_tui.features.palette import ThemePicker

        self.app.push_screen(
            ThemePicker(self.station.theme_names, self.app.theme, self._preview), self._theme_picked
        )

    def _theme_picked(self, picked: str | None) -> None:
        self._preview(None)
        self.picked(picked)

    def _preview(self, name: str | None) -> None:
        """Shows a theme for a while; None goes back to the one that was chosen."""
        if self._theme_before is None:
            self._theme_before = self.app.theme
        name = name or self._theme_before
        if name != self.app.theme:
            self._take_theme(name)
        if name == self._theme_before:
            self._theme_before = None

    _theme_before: str | None = None

    def choose_theme(self, name: str) -> None:
        """Takes a theme, and remembers it."""
        if self._take_theme(name):
            self.notify_line(f"theme {name}")
            self.remembered.theme, self.remembered.theme_setting = name, self.source.ui.theme

    def _take_theme(self, name: str) -> bool:
        taken = self.station.use_theme(name)
        if taken:
            self.app.call_next(self.dress_panes)  # when the style sheet has the theme's colours
        return taken
