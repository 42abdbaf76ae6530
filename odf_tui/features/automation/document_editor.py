"""DocumentEditor: edits the YAML of a check, flow or alert, and validates it during typing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widgets import TextArea

from odf_engine.api.text import printable
from odf_engine.errors import OdfError
from odf_tui.services import tasks
from odf_tui.text.format import Span, error_with_hint
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.code_editor import YamlEditor
from odf_tui.widgets.dialogs import ConfirmDialog, Dialog
from odf_tui.widgets.line_view import WrappedLines

VALIDATION_SECONDS: Final = 0.3
"""Time without typing before a text is validated."""
_POSITION: Final = re.compile(r":(\d+):(\d+)(?:: (.*))?$", re.DOTALL)
Lines = Sequence[Sequence[Span]]


class DocumentActions(NamedTuple):
    """What an editor does with its text. All raise OdfError.

    Attributes:
        validate: validates a text, and returns what it is about. It is called in a thread.
        store: stores a text, and returns a note about it. It is called in a thread.
        edit: edits a text in the user's editor, with the cursor in a line.
        trial: tries a text, and returns the lines of the result, or None if there is no trial.
    """

    validate: Callable[[str], str]
    store: Callable[[str], str]
    edit: Callable[[str, int], Awaitable[str]]
    trial: Callable[[str], Awaitable[Lines]] | None = None


class DocumentEditor(Dialog[str]):
    """Edits the YAML of a definition. The result is the note about the stored definition.

    Args:
        title: the title.
        text: the YAML.
        actions: validates, stores and tries the text.
        is_new: whether the text is not stored yet.
    """

    AUTO_FOCUS = "YamlEditor"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "store", "store the definition", show=False, priority=True),
        Binding("ctrl+r,f5", "try", "try the definition without storing it", show=False, priority=True),
        Binding("ctrl+o", "edit", "edit it in your editor", show=False, priority=True),
        Binding("escape", "close", "close", show=False, priority=True),
    ]

    def __init__(self, title: str, text: str, actions: DocumentActions, *, is_new: bool) -> None:
        super().__init__()
        self._title, self._actions, self._is_new = title, actions, is_new
        self._initial = text
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Yield the text, and the line of its problem."""
        with Vertical(classes="dialog reader document-editor") as box:
            box.border_title = Content(printable(self._title))
            tries = "^r tries it · " if self._actions.trial else ""
            box.border_subtitle = Content(f"^s stores · {tries}^o opens your editor · esc closes")
            yield YamlEditor(self._initial)
            yield WrappedLines(id="verdict")

    def key_list(self) -> list[Choice]:
        """Return the keys, without the one for a trial if there is none."""
        return [key for key in super().key_list() if key.id != "try" or self._actions.trial is not None]

    @property
    def editor(self) -> YamlEditor:
        """The text area."""
        return self.query_one(YamlEditor)

    @property
    def text(self) -> str:
        """The YAML with line feeds."""
        return "".join(f"{line}\n" for line in self.editor.text.splitlines())

    def on_mount(self) -> None:
        """Validate the text."""
        self._start_validation()

    def show_notice(self, text: str) -> None:
        """Show a notice below the text."""
        self._show([[(f" {printable(text)}", "warn")]])

    def _show(self, lines: Lines) -> None:
        self.query_one("#verdict", WrappedLines).set(lines)

    def _show_error(self, error: Exception, *, moves: bool = False) -> None:
        """Show an error with its line and column; with ``moves`` the cursor goes there."""
        position = _POSITION.search(error.where or "") if isinstance(error, OdfError) else None
        if position is None or not isinstance(error, OdfError):
            self._show([[(" ✗ ", "bad"), (error_with_hint(error), "bad")]])
            return
        line, column, inner = int(position[1]), int(position[2]), position[3]
        hint = f" – {error.hint}" if error.hint else ""
        place = f"line {line}, column {column}" + (f" ({inner})" if inner else "")
        self._show([[(" ✗ ", "bad"), (printable(f"{place}: {error.message}{hint}"), "bad")]])
        if moves:
            self.editor.move_cursor((line - 1, column - 1))

    @on(TextArea.Changed)
    def _text_changed(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(VALIDATION_SECONDS, self._start_validation)

    def _start_validation(self) -> None:
        self.run_worker(self._validate(self.text), group="validation", exclusive=True)

    async def _validate(self, text: str) -> None:
        try:
            about = await asyncio.to_thread(self._actions.validate, text)
        except OdfError as error:
            self._show_error(error)
        else:
            self._show([[(" ✓ ", "good"), (printable(about), "muted")]])

    def action_store(self) -> None:
        """Store the definition, and close."""
        self._run(self._store())

    async def _store(self) -> None:
        self.dismiss(await asyncio.to_thread(self._actions.store, self.text))

    def action_try(self) -> None:
        """Try the definition."""
        if self._actions.trial is not None:
            self._run(self._try(self._actions.trial))

    async def _try(self, trial: Callable[[str], Awaitable[Lines]]) -> None:
        self._show(await trial(self.text))

    def action_edit(self) -> None:
        """Edit the definition in the user's editor."""
        self._run(self._edit())

    async def _edit(self) -> None:
        text = await self._actions.edit(self.text, self.editor.cursor_location[0] + 1)
        if text != self.text:
            self.editor.load_text(text)

    def _run(self, steps: Awaitable[None]) -> None:
        if self._timer is not None:
            self._timer.stop()

        async def run() -> None:
            try:
                await steps
            except OdfError as error:
                self._show_error(error, moves=True)

        tasks.run_steps(self, run())

    def action_close(self) -> None:
        """Close, after a confirmation if changes are lost."""
        if self.text == self._initial:
            self.dismiss(None)
            return

        def discard(confirmed: bool | None) -> None:
            if confirmed:
                self.dismiss(None)

        what = "It is not stored." if self._is_new else "The stored definition stays as it is."
        self.app.push_screen(ConfirmDialog("Discard the changes?", what), discard)
