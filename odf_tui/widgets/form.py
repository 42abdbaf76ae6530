"""A form of switches, choices and text fields, and a list with a description of the line under the cursor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import msgspec
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.suggester import Suggester
from textual.widgets import Input

from odf_engine.api import parse_user_time
from odf_engine.api.text import printable
from odf_engine.errors import UsageError
from odf_tui.text.format import Span, error_with_hint
from odf_tui.widgets.choice_list import Choice, Choices
from odf_tui.widgets.dialogs import Dialog, PickerDialog
from odf_tui.widgets.line_view import StaticLines, WrappedLines

Lines = Sequence[Sequence[Span]]
Check = Callable[[str], str]
_MARGIN: Final = 3


class Field(msgspec.Struct, frozen=True):
    """A field of a form: a text, a switch, or a choice.

    Attributes:
        id: the key of its value in the result.
        label: one to three words.
        about: a sentence about its meaning, shown while the cursor is on it.
        value: the initial value: a text, the id of a choice, or whether the switch is on.
        choices: ids and labels of the choices. A text or a switch has none.
        check: returns why a text is invalid, or "" if it is valid.
        secret: whether the text is not displayed.
        is_path: whether the text is a path, which is completed.
        example: a valid text, shown in the empty input line.
    """

    id: str
    label: str
    about: str = ""
    value: str | bool = ""
    choices: tuple[tuple[str, str], ...] = ()
    check: Check | None = None
    secret: bool = False
    is_path: bool = False
    example: str = ""

    @property
    def has_input(self) -> bool:
        """Whether it is a text."""
        return not self.choices and not isinstance(self.value, bool)


class FormValues:
    """The values of a completed form."""

    def __init__(self, values: Mapping[str, str | bool]) -> None:
        self._values = values

    def text(self, field: str) -> str:
        """Return a text, or the id of a choice, or "" if the form has no such field."""
        return str(self._values.get(field, ""))

    def flag(self, field: str) -> bool:
        """Return whether a switch is on, or False if the form has no such field."""
        return self._values.get(field) is True


def required(problem: str) -> Check:
    """Return a check that refuses an empty text with this message."""
    return lambda text: "" if text else problem


def check_time(text: str) -> str:
    """Return why a text is no time, or "" if it is one, or empty."""
    try:
        if text:
            parse_user_time(text)
    except UsageError as error:
        return error_with_hint(error)
    return ""


def existing_file(text: str) -> str:
    """Return why a text is not the path of a file, or "" if it is."""
    path = Path(text).expanduser()
    if not text:
        return "enter the path of a file"
    if path.is_dir():
        return f"{text} is a folder: enter a file"
    return "" if path.is_file() else f"{text}: file not found"


class PathSuggester(Suggester):
    """Completes paths, relative to the current folder."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first path that starts with a text, or None if absent."""
        folder, _, start = value.rpartition("/")
        base = Path(f"{folder}/" if "/" in value else ".").expanduser()
        try:
            names = sorted(
                path.name + "/" * path.is_dir()
                for path in base.iterdir()
                if path.name.startswith(start) and (start or not path.name.startswith("."))
            )
        except OSError:
            return None
        return value[: len(value) - len(start)] + names[0] if names and value else None


class _FieldRow(Horizontal):
    """The line of a field: marker and label, then the input line or the value."""

    def __init__(self, field: Field, label_width: int) -> None:
        super().__init__(classes="field")
        self.field, self.value, self._label_width = field, field.value, label_width
        self._label, self._shown = StaticLines(), StaticLines()
        self._label.styles.width = label_width + _MARGIN
        self.input: Input | None = None

    def compose(self) -> ComposeResult:
        """Yield the label, and the input line or the value."""
        yield self._label
        if not self.field.has_input:
            yield self._shown
            return
        self.input = Input(  # not before: a line with completion requires the app
            str(self.field.value),
            placeholder=f"such as {self.field.example}" if self.field.example else "",
            password=self.field.secret,
            suggester=PathSuggester() if self.field.is_path else None,
            compact=True,
        )
        self.input.cursor_blink = False
        yield self.input

    def show(self, *, current: bool) -> None:
        """Show the value; ``current`` marks the line under the cursor."""
        marker, style = ("> ", "strong") if current else ("  ", "muted")
        self._label.set([[(marker, "key"), (f"{self.field.label:<{self._label_width}} ", style)]])
        if isinstance(self.value, bool):
            mark = "x" if self.value else " "
            self._shown.set([[(" [", "key"), (mark, "strong"), ("]", "key")]])
        elif self.field.choices:
            labels = dict(self.field.choices)
            at = list(labels).index(self.value) if self.value in labels else 0
            count = f"  {at + 1} of {len(labels)}" if current else ""
            self._shown.set(
                [[(" < ", "key"), (printable(labels[self.value]), "strong"), (" >", "key"), (count, "muted")]]
            )

    def change(self, by: int) -> None:
        """Turn the switch, or select the next or the previous choice."""
        if isinstance(self.value, bool):
            self.value = not self.value
        elif self.field.choices:
            ids = [choice_id for choice_id, _ in self.field.choices]
            self.value = ids[(ids.index(self.value) + by) % len(ids)]

    def result(self) -> str | bool:
        """Return the value, without spaces around a text."""
        if self.input is None:
            return self.value
        return self.input.value if self.field.secret else self.input.value.strip()


class FormDialog(Dialog[FormValues]):
    """Requests the values of some fields. The result are the values, once all are valid.

    Args:
        title: the title.
        fields: the fields, at least one.
        effect: a verb for the lower border, such as ``pulls``.
        lines: a text above the fields.
        check: returns why valid fields cannot be combined, or "" if they can.
    """

    AUTO_FOCUS = ""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", show=False),
        Binding("enter", "submit", "continue", show=False, priority=True),
        Binding("tab,down", "go(1)", "next field", show=False, priority=True),
        Binding("shift+tab,up", "go(-1)", "previous field", show=False, priority=True),
    ]

    def __init__(
        self,
        title: str,
        fields: Sequence[Field],
        effect: str,
        *,
        lines: Lines = (),
        check: Callable[[FormValues], str] = lambda form: "",
    ) -> None:
        super().__init__()
        self._title, self.fields, self._effect, self._lines, self.check = title, fields, effect, lines, check
        width = max(len(field.label) for field in fields)
        self._rows = [_FieldRow(field, width) for field in fields]
        self._at = 0

    def compose(self) -> ComposeResult:
        """Yield the text, the fields, and the description of the current field."""
        with Vertical(classes="dialog form") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content(f"↑↓ fields · space changes · ⏎ {self._effect} · esc closes")
            if self._lines:
                yield WrappedLines(self._lines, id="form-text")
            with VerticalScroll(can_focus=False, id="fields"):
                yield from self._rows
            yield WrappedLines(id="about-field")

    def on_mount(self) -> None:
        """Go to the first field."""
        self._show(0)

    def _show(self, at: int, problem: str = "") -> None:
        self._at = at
        row = self._rows[at]
        self.set_focus(row.input)
        for index, form_row in enumerate(self._rows):
            form_row.show(current=index == at)
        row.scroll_visible(animate=False)
        about: Span = (f" {printable(problem)}", "bad") if problem else (f" {row.field.about}", "muted")
        self.query_one("#about-field", WrappedLines).set([[about]])

    def action_go(self, by: int) -> None:
        """Go to the next or the previous field."""
        self._show((self._at + by) % len(self._rows))

    def on_key(self, event: events.Key) -> None:
        """Change a switch or a choice. In these fields, letters move like arrow keys."""
        row = self._rows[self._at]
        if row.input is not None:
            return
        if event.key in ("space", "right", "l", "left", "h"):
            event.stop()
            row.change(-1 if event.key in ("left", "h") else 1)
            self._show(self._at)
        elif event.key in ("j", "k"):
            event.stop()
            self.action_go(1 if event.key == "j" else -1)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Move the cursor after a click on an input line."""
        for at, row in enumerate(self._rows):
            if row.input is event.widget and at != self._at:
                self._show(at)

    def on_click(self, event: events.Click) -> None:
        """Go to the field under the mouse; a click on a switch or a choice changes it."""
        for at, row in enumerate(self._rows):
            if event.widget is not None and row in event.widget.ancestors and row.input is None:
                row.change(1)
                self._show(at)

    def on_input_changed(self) -> None:
        """Remove the error message."""
        field = self._rows[self._at].field
        self.query_one("#about-field", WrappedLines).set([[(f" {field.about}", "muted")]])

    def action_submit(self) -> None:
        """Close with the values, or show the first error."""
        for line in self.query(Input):
            if line.has_focus:  # letters that were typed before are still in its queue
                line.call_later(self.call_later, self._submit)
                return
        self._submit()

    def _submit(self) -> None:
        values = {row.field.id: row.result() for row in self._rows}
        for at, row in enumerate(self._rows):
            if row.field.check is not None and (problem := row.field.check(str(values[row.field.id]))):
                self._show(at, problem)
                return
        form = FormValues(values)
        if problem := self.check(form):
            self._show(self._at, problem)
        else:
            self.dismiss(form)


class DescribedPicker(PickerDialog):
    """A list of choices with a description of the one under the cursor.

    Args:
        title: the title.
        choices: the choices.
        about: the descriptions, by id of the choice.
        typing: as for :class:`PickerDialog`.
    """

    def __init__(
        self, title: str, choices: Sequence[Choice], about: Mapping[str, Lines], *, typing: bool = False
    ) -> None:
        super().__init__(title, choices, typing=typing)
        self._about = about

    def compose_below(self) -> ComposeResult:
        """Yield the description."""
        yield WrappedLines(id="about-choice")

    def on_mount(self) -> None:
        """Show the first description."""
        self.query_one(".dialog").add_class("described", "-typing")
        self._describe()

    def on_line_view_moved(self) -> None:
        """Show the description of the choice under the cursor."""
        self._describe()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the description of the first match, once the base class has filtered the list."""
        self.call_later(self._describe)

    def _describe(self) -> None:
        choice = self.query_one(Choices).choice
        self.query_one("#about-choice", WrappedLines).set(
            self._about.get(choice.id, ()) if choice is not None else ()
        )
