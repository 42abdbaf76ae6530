"""What is asked before a new dataset is written: of which file, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from odf_engine.errors import OdfError
from odf_engine.identity.names import DatasetAlias
from odf_tui.datafiles import is_url
from odf_tui.humane import plain, size
from odf_tui.screens.dialogs import Dialog, Lines, Picker
from odf_tui.screens.texts import yaml_spans
from odf_tui.widgets.choices import Choice
from odf_tui.widgets.lines import Span


class Ask(Dialog[str]):
    """A line to type in; ends with what was typed, once it is right.

    Args:
        value: what stands there at first.
        remark: what it is for.
        check: what is wrong with a text; empty: nothing.
    """

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, title: str, value: str, remark: str, check: Callable[[str], str]) -> None:
        super().__init__()
        self._title, self._value, self._remark, self._check = title, value, remark, check

    def compose(self) -> ComposeResult:
        """The line, and what it is for."""
        with Vertical(classes="dialog jump") as box:
            box.border_title = Content(plain(self._title))
            box.border_subtitle = Content("⏎ goes on · esc closes")
            line = Input(self._value, compact=True)
            line.cursor_blink = False
            yield line
            yield Lines(self._lines(""))

    def _lines(self, error: str) -> list[list[Span]]:
        return [[(f" {plain(error)}", "bad") if error else (f" {self._remark}", "muted")]]

    def on_input_changed(self) -> None:
        """The old complaint goes."""
        self.query_one(Lines).set(self._lines(""))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ends, or says what is wrong."""
        event.stop()
        text = event.value.strip()
        error = self._check(text)
        if error:
            self.query_one(Lines).set(self._lines(error))
        else:
            self.dismiss(text)


def name_check(taken: Collection[str]) -> Callable[[str], str]:
    """What is wrong with the name of a new dataset."""
    used = {name.lower() for name in taken}

    def check(text: str) -> str:
        try:
            DatasetAlias.parse(text)
        except OdfError as error:
            return f"{error}: {error.hint}" if error.hint else str(error)
        return f"a dataset named {text} exists already" if text.lower() in used else ""

    return check


class PlacePicker(Picker):
    """Chooses a data file of the workspace's folder; a path or a URL can be typed instead."""

    def __init__(self, folder: Path, files: Sequence[tuple[str, int]]) -> None:
        choices = [Choice(path, path, remark=size(bytes_)) for path, bytes_ in files]
        super().__init__("A dataset from which file?", choices, typing=True)
        self._folder = folder

    def on_mount(self) -> None:
        """Says what may be typed."""
        self.query_one(Input).placeholder = "letters of a file below, a path, or a URL"

    def fitting(self, text: str) -> list[Choice]:
        """The files that fit; a place that was typed in full comes first."""
        found = super().fitting(text)
        known = {choice.id for choice in found}
        typed = is_url(text) or (self._folder / Path(text).expanduser()).is_file()
        return (
            [Choice(text, text, remark="as typed"), *found] if text and typed and text not in known else found
        )


def manifest_lines(text: str) -> list[list[Span]]:
    """What matters of a manifest that was made for a file: its source, without what explains the choices."""
    body = text.partition("  metadata:\n")[2].partition("    - kind: SetInfo")[0]
    lines = [line.removeprefix("    ") for line in body.splitlines()]
    kept = [line for line in lines if not line.strip().startswith(("#   ", "# How ", "# Every "))]
    return [[], *([(" ", ""), *spans] for spans in yaml_spans("\n".join(kept))), []]
