"""The dialog that adds datasets from a manifest file, and shows where it is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from odf_engine.errors import OdfError, has_surrogates
from odf_tui.fuzzy import ranked
from odf_tui.screens.dialogs import Dialog
from odf_tui.screens.problems import problem_lines, text_of
from odf_tui.source import Source
from odf_tui.widgets.choices import Choice, Choices
from odf_tui.widgets.lines import Paragraphs, Span

_SKIPPED: Final = {".odf", ".git", "node_modules", ".venv", "__pycache__"}
_MOST_FILES: Final = 200
_DEPTH: Final = 4


def manifest_files(folder: Path) -> Iterator[Path]:
    """YAML files in a folder and some levels below, relative to it; those whose paths are UTF-8."""
    found = 0
    for root, folders, files in os.walk(folder):
        here = Path(root).relative_to(folder)
        folders[:] = [] if len(here.parts) >= _DEPTH else sorted(set(folders) - _SKIPPED)
        for name in sorted(files):
            if name.endswith((".yaml", ".yml")) and not has_surrogates(str(here / name)):
                yield here / name
                found += 1
                if found >= _MOST_FILES:
                    return


class AddDialog(Dialog[dict[str, str]]):
    """Takes the path of a manifest; ends with the names of the datasets that were added, by id."""

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", show=False),
        Binding("enter", "add", "add what the manifest holds", show=False, priority=True),
        Binding("tab", "complete", "complete the path", show=False, priority=True),
        Binding("down,ctrl+n", "move('down')", show=False, priority=True),
        Binding("up,ctrl+p", "move('above')", show=False, priority=True),
    ]

    class Tried(Message):
        """A file was tried."""

        def __init__(self, added: dict[str, str], problem: Sequence[Sequence[Span]] = ()) -> None:
            super().__init__()
            self.added, self.problem = added, problem

    class Found(Message):
        """Files to choose from."""

        def __init__(self, files: Sequence[Path]) -> None:
            super().__init__()
            self.files = files

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._files: list[Choice] = []
        self._busy = False

    def compose(self) -> ComposeResult:
        """A line for the path, files of the workspace, and what is wrong."""
        with Vertical(classes="dialog -typing") as box:
            box.border_title = "Add datasets from a manifest"
            box.border_subtitle = "tab takes a file from the list · ⏎ adds · esc closes"
            line = Input(placeholder="path of a YAML file, or letters of one below", compact=True)
            line.cursor_blink = False
            yield line
            yield Choices([])
            yield Paragraphs(id="problem")

    def on_mount(self) -> None:
        """Looks for files, in a thread."""
        self.query_one("#problem").display = False
        self.run_worker(
            lambda: self.post_message(self.Found(list(manifest_files(self._source.folder)))), thread=True
        )

    def on_add_dialog_found(self, message: Found) -> None:
        """Shows the files."""
        self._files = [Choice(str(path), str(path)) for path in message.files]
        self._narrow(self.query_one(Input).value)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrows the list; the old complaint goes."""
        self.query_one("#problem").display = False
        self.query_one(".dialog").remove_class("-wrong")
        self._narrow(event.value)

    def _narrow(self, text: str) -> None:
        self.query_one(Choices).set(ranked(text, ((choice.title, choice) for choice in self._files)))

    def action_move(self, move: str) -> None:
        """Moves in the list."""
        self.query_one(Choices).move(move)

    def action_complete(self) -> None:
        """Puts the file under the cursor into the line."""
        choice = self.query_one(Choices).choice
        if choice is not None:
            line = self.query_one(Input)
            line.value = choice.id
            line.cursor_position = len(choice.id)

    def on_line_view_opened(self) -> None:
        """Clicked twice."""
        self.action_complete()

    def action_add(self) -> None:
        """Adds the file that is named; else the one under the cursor."""
        if self._busy:
            return
        text = self.query_one(Input).value.strip()
        path = self._path(text)
        if not text or not path.is_file():
            choice = self.query_one(Choices).choice
            if choice is not None:
                path = self._path(choice.id)
            elif not text:
                return
        self._busy = True
        self.run_worker(lambda: self._try(path), thread=True)

    def _path(self, text: str) -> Path:
        return self._source.folder / Path(text).expanduser()

    def _try(self, path: Path) -> None:
        try:
            added = self._source.add(path)
        except OdfError as error:
            self.post_message(self.Tried({}, problem_lines(error, text_of(path))))
        else:
            self.post_message(self.Tried(added))

    def on_add_dialog_tried(self, message: Tried) -> None:
        """Closes, or shows what is wrong."""
        self._busy = False
        if not message.problem:
            self.dismiss(message.added)
            return
        problem = self.query_one("#problem", Paragraphs)
        self.query_one(".dialog").add_class("-wrong")
        problem.display = True
        problem.set(message.problem)
