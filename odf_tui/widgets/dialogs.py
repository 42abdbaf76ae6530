"""Modal dialogs: choose, confirm, decide, read a text, enter a line, wait for a job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import ModalScreen, Screen
from textual.widgets import Input

from odf_engine.api import DatasetAlias, parse_user_time
from odf_engine.api.text import printable
from odf_engine.errors import OdfError, UsageError
from odf_tui.actions.model import key_name
from odf_tui.state import typed_keys
from odf_tui.text.format import Span, error_with_hint
from odf_tui.theming.themes import palette_of
from odf_tui.widgets.choice_list import Choice, Choices, fuzzy_rank
from odf_tui.widgets.line_view import StaticLines, WrappedLines

Result = TypeVar("Result")
LINE_KEYS: Final[tuple[BindingType, ...]] = (
    Binding("j,down", "move('down')", show=False),
    Binding("k,up", "move('above')", show=False),
    Binding("g,home", "move('first')", show=False),
    Binding("G,end", "move('last')", show=False),
)
"""Bindings that move by a line and to the ends, for screens with an ``action_move``."""
MOVE_KEYS: Final[tuple[BindingType, ...]] = (
    *LINE_KEYS,
    Binding("pagedown,ctrl+d,ctrl+f", "move('page_down')", show=False),
    Binding("pageup,ctrl+u,ctrl+b", "move('page_up')", show=False),
)
""":data:`LINE_KEYS`, and those that move by a page."""
LIST_MOVES: Final = {
    "j": "down", "k": "above", "g": "first", "home": "first", "G": "last", "end": "last",
    "ctrl+d": "page_down", "ctrl+f": "page_down", "ctrl+u": "page_up", "ctrl+b": "page_up",
}  # fmt: skip
_TEXTUAL_ACTIONS: Final = {binding.action for binding in Screen.BINDINGS if isinstance(binding, Binding)}
_MOVES: Final = "move with j k, g G, arrows, page keys"


class OverlayScreen(Screen[Result]):
    """A screen above the workbench. ``?`` lists its keys: the bindings with a description."""

    CSS_PATH = Path(__file__).parents[1] / "dialogs.tcss"
    covers_workbench: ClassVar[bool] = False
    """Whether the workbench below is not painted."""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,f1", "show_keys", show=False)]

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close the screen, once: a second key in a row must not close the screen below."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def _on_mount(self, event: events.Mount) -> None:
        typed_keys.release_others(self)

    async def _message_loop_exit(self) -> None:
        # Textual cancels the workers after it removed the widgets, which a worker may still look for.
        self.workers.cancel_node(self)
        await super()._message_loop_exit()

    def show_notice(self, text: str) -> None:
        """Show a notice of the workbench here too. The default does nothing."""

    def key_list(self) -> list[Choice]:
        """Return the keys with a description, each with the action that it runs."""
        keys_by_action: dict[str, list[str]] = {}
        titles: dict[str, str] = {}
        for key, bindings in self._bindings.key_to_bindings.items():
            for binding in bindings:
                if binding.description and binding.action not in _TEXTUAL_ACTIONS:
                    keys_by_action.setdefault(binding.action, []).append(key)
                    titles[binding.action] = binding.description
        return [
            Choice(action, titles[action], tuple(keys), key_name(keys[0]))
            for action, keys in keys_by_action.items()
        ]

    def action_show_keys(self) -> None:
        """List the keys, and run one."""

        async def run(action: str | None) -> None:
            if action is not None:
                await self.run_action(action)

        if not isinstance(self, PickerDialog):
            self.app.push_screen(PickerDialog(f"Keys  ({_MOVES})", self.key_list(), typing=False), run)


class _DimmedScreen(BackgroundScreen):
    """A screen below a dialog, in one style: other ways to dim it take many bytes, or 24-bit colours."""

    def __init__(self, screen: Screen[Any], style: Style) -> None:
        self.screen, self._style = screen, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, _, control in console.render(self.screen._compositor, options):
            yield Segment(text, None if control else self._style, control)


class Dialog(ModalScreen[Result], OverlayScreen[Result]):
    """A modal screen that leaves the workbench visible, but dimmed."""

    def render(self) -> RenderableType:
        """Render the screen below."""
        below = super().render()
        if isinstance(below, BackgroundScreen):
            return _DimmedScreen(below.screen, palette_of(self.app)["below"])
        return below


class PickerDialog(Dialog[str]):
    """Lets the user choose from a list. The result is the id of the choice, or None if it was closed.

    Args:
        title: the title.
        choices: the choices.
        typing: whether typed letters filter the list; otherwise the keys of the choices choose them.
    """

    AUTO_FOCUS = "Input"

    cursor = 0
    """The line of the list with the cursor at first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False),
        Binding("enter", "pick", show=False, priority=True),
        Binding("down,ctrl+n", "move('down')", show=False, priority=True),
        Binding("up,ctrl+p", "move('above')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
    ]

    def __init__(self, title: str, choices: Sequence[Choice], *, typing: bool) -> None:
        super().__init__()
        self._title, self._choices, self._typing = title, list(choices), typing

    def compose(self) -> ComposeResult:
        """Yield the input line, if there is one, and the list."""
        with Vertical(classes="dialog -typing" if self._typing else "dialog") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content(self.describe_keys())
            if self._typing:
                line = Input(placeholder="type to filter", compact=True)
                line.cursor_blink = False
                yield line
            yield Choices(self._choices, self.cursor)
            yield from self.compose_below()

    def compose_below(self) -> ComposeResult:
        """Yield the widgets below the list."""
        yield from ()

    def describe_keys(self) -> str:
        """Return a description of the keys, for the lower border."""
        return "⏎ selects · ↑↓ move · esc closes" if self._typing else "a key or ⏎ selects · esc closes"

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter the list."""
        self.query_one(Choices).set(self.find_choices(event.value.strip()))

    def find_choices(self, text: str) -> list[Choice]:
        """Return the choices that match a text, best first."""
        return fuzzy_rank(text, ((f"{choice.title} {choice.remark}", choice) for choice in self._choices))

    def on_key(self, event: events.Key) -> None:
        """Choose by the key of a choice, or move the cursor."""
        if self._typing:
            return
        for choice in self._choices:
            if event.key in choice.keys and event.key != "escape":  # which closes this list
                event.stop()
                self.dismiss(choice.id)
                return
        if event.key in LIST_MOVES:
            event.stop()
            self.action_move(LIST_MOVES[event.key])
        elif event.key == "q":
            event.stop()
            self.dismiss(None)

    def on_line_view_opened(self) -> None:
        """Choose the clicked line."""
        self.action_pick()

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self.query_one(Choices).move(move)

    def action_pick(self) -> None:
        """Choose the line under the cursor, once the letters typed before were handled."""
        for line in self.query(Input):
            line.call_later(self.call_later, self._pick)
            return
        self._pick()

    def _pick(self) -> None:
        choice = self.query_one(Choices).choice
        if choice is not None:
            self.dismiss(choice.id)


class ConfirmDialog(Dialog[bool]):
    """Requires a confirmation, by y or enter. The result is whether the user confirmed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)", "yes", show=False),
        Binding("n,escape,q", "dismiss(False)", "no", show=False),
    ]

    def __init__(self, question: str, *remarks: str) -> None:
        super().__init__()
        self._lines: list[Sequence[Span]] = [[], [(f" {printable(question)}", "strong")]]
        self._lines += [[(f" {printable(remark)}", "muted")] for remark in remarks]
        self._lines += [[], [(" y", "key"), (" yes   ", "muted"), ("n", "key"), (" no", "muted")]]

    def compose(self) -> ComposeResult:
        """Yield the question."""
        with Vertical(classes="dialog question"):
            yield WrappedLines(self._lines)


class DecisionDialog(Dialog[str]):
    """Shows lines and offers answers. The result is the answer of the pressed key.

    Args:
        title: the title.
        lines: what the decision is about.
        answers: for each answer its name, its keys and its label.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move('down')", show=False),
        Binding("k,up", "move('above')", show=False),
        Binding("pagedown,space,ctrl+d", "move('page_down')", show=False),
        Binding("pageup,ctrl+u", "move('page_up')", show=False),
    ]

    def __init__(
        self, title: str, lines: Sequence[Sequence[Span]], answers: Sequence[tuple[str, Sequence[str], str]]
    ) -> None:
        super().__init__()
        self._title, self._lines, self._answers = title, lines, answers

    def compose(self) -> ComposeResult:
        """Yield the lines."""
        with Vertical(classes="dialog decision") as box:
            box.border_title = Content(printable(self._title))
            words = (f"{key_name(keys[0])} {word}" for _, keys, word in self._answers)
            box.border_subtitle = Content(" · ".join(words))
            yield WrappedLines(self._lines)

    def on_key(self, event: events.Key) -> None:
        """Close with the answer of a key; q is escape."""
        for answer, keys, _ in self._answers:
            if event.key in keys:
                event.stop()
                self.dismiss(answer)
                return
        if event.key == "q":
            event.stop()
            self._answer_by_key("escape")

    def key_list(self) -> list[Choice]:
        """Return the answers with their keys."""
        return [
            Choice(f"answer({answer!r})", word, tuple(keys), key_name(keys[0]))
            for answer, keys, word in self._answers
        ]

    def action_answer(self, answer: str) -> None:
        """Close with an answer."""
        self.dismiss(answer)

    def _answer_by_key(self, key: str) -> None:
        for answer, keys, _ in self._answers:
            if key in keys:
                self.dismiss(answer)

    def action_move(self, move: str) -> None:
        """Scroll."""
        self.query_one(WrappedLines).move(move)


class TypedConfirmation(Dialog[bool]):
    """Requires a typed word as confirmation. The result is whether it was typed.

    Args:
        title: the title.
        lines: the consequences.
        accepted: the words that confirm.
        placeholder: the text of the empty input line.
    """

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", "close without confirming", show=False),
        Binding("down", "move('down')", show=False, priority=True),
        Binding("up", "move('above')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
    ]

    def __init__(
        self, title: str, lines: Sequence[Sequence[Span]], accepted: Sequence[str], placeholder: str
    ) -> None:
        super().__init__()
        self._title, self._lines, self._accepted, self._placeholder = title, lines, accepted, placeholder

    def compose(self) -> ComposeResult:
        """Yield the lines and the input line."""
        with Vertical(classes="dialog oath") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ confirms · ↑↓ scroll · esc closes")
            yield WrappedLines(self._lines)
            line = Input(placeholder=self._placeholder, compact=True)
            line.cursor_blink = False
            yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close; any other word does not confirm."""
        event.stop()
        self.dismiss(event.value.strip() in self._accepted)

    def action_move(self, move: str) -> None:
        """Scroll."""
        self.query_one(WrappedLines).move(move)


class TextDialog(Dialog[str]):
    """Shows a text, which can be scrolled and copied.

    Args:
        title: the title.
        lines: the text.
        copy: copies a text to the clipboard.
        step: shows the newer (1) or older (-1) text, or None if there are no others.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy", "copy the complete text", show=False),
        *LINE_KEYS,
        Binding("h,left", "move('left')", show=False),
        Binding("l,right", "move('right')", show=False),
        Binding("pagedown,space,ctrl+d,ctrl+f", "move('page_down')", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "move('page_up')", show=False),
        Binding("left_square_bracket", "step(-1)", "show the older one", show=False),
        Binding("right_square_bracket", "step(1)", "show the newer one", show=False),
        Binding("escape,q,enter", "dismiss(None)", "close", show=False),
    ]

    def __init__(
        self,
        title: str,
        lines: Sequence[Sequence[Span]],
        copy: Callable[[str], None],
        step: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self._title, self._lines, self._copy, self._step = title, lines, copy, step
        self._body = self.body()

    def body(self) -> StaticLines | WrappedLines:
        """Return the widget that shows the text."""
        return StaticLines()

    def key_list(self) -> list[Choice]:
        """Return the keys, without those for steps if there are none."""
        return [choice for choice in super().key_list() if self._step or not choice.id.startswith("step(")]

    def describe_keys(self) -> list[str]:
        """Return a description of the keys, for the lower border."""
        return ["[ older · ] newer"] if self._step else []

    def compose(self) -> ComposeResult:
        """Yield the text."""
        with Vertical(classes="dialog reader"):
            yield self._body

    def on_mount(self) -> None:
        """Show title and text."""
        self.show(self._title, self._lines)

    def show(self, title: str, lines: Sequence[Sequence[Span]]) -> None:
        """Replace title and text, scrolled to the start."""
        self._lines = lines
        box = self.query_one(".dialog")
        box.border_title = Content(printable(title))
        box.border_subtitle = Content(" · ".join([*self.describe_keys(), "y copies", "esc closes"]))
        self._body.set(lines)
        self._body.scroll_to(0, 0, animate=False)

    def action_move(self, move: str) -> None:
        """Scroll."""
        self._body.move(move)

    def action_copy(self) -> None:
        """Copy the complete text."""
        self._copy("\n".join("".join(text for text, _ in line) for line in self._lines))

    def action_step(self, by: int) -> None:
        """Show the newer (1) or older (-1) text."""
        if self._step is not None:
            self._step(by)


_EXAMPLE_WIDTH = 18


class GoToBlockDialog(Dialog[None]):
    """Goes to the block that the user enters.

    Args:
        title: the title.
        examples: valid inputs, each with its meaning.
        range: the range of block numbers, for the empty input line.
        resolve: goes to the entered block, then calls its second argument with an error message; empty
            if it succeeded.
    """

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(
        self,
        title: str,
        examples: Sequence[tuple[str, str]],
        range: str,
        resolve: Callable[[str, Callable[[str], None]], None],
    ) -> None:
        super().__init__()
        self._title, self._examples, self._range, self._resolve = title, examples, range, resolve

    def compose(self) -> ComposeResult:
        """Yield the input line and the examples."""
        with Vertical(classes="dialog jump") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ goes there · esc closes")
            line = Input(placeholder=printable(self._range), compact=True)
            line.cursor_blink = False
            yield line
            yield WrappedLines(self._lines(""))

    def _lines(self, error: str) -> list[list[Span]]:
        shown: list[list[Span]] = [
            [(f" {example:<{_EXAMPLE_WIDTH}}", "key"), (meaning, "muted")]
            for example, meaning in self._examples
        ]
        return [*shown, [(f" {printable(error)}", "bad")]]

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Resolve the input, if there is one."""
        event.stop()
        if event.value.strip():
            self._resolve(event.value, self._show_outcome)

    def _show_outcome(self, error: str) -> None:
        if not self.is_attached:
            return
        if error:
            self.query_one(WrappedLines).set(self._lines(error))
        else:
            self.dismiss(None)


_TIME_EXAMPLES = (("2026-03-01", "start of a day, in UTC"), ("2026-03-01 14:00", "time, in UTC"))


class TimeDialog(Dialog[str]):
    """Requests a time. The result is the time as RFC 3339 text.

    Args:
        title: the title.
        about: the meaning of the time, for the empty input line.
    """

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, title: str, about: str) -> None:
        super().__init__()
        self._title, self._about = title, about

    def compose(self) -> ComposeResult:
        """Yield the input line and the examples."""
        with Vertical(classes="dialog jump") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ applies · esc closes")
            line = Input(placeholder=self._about, compact=True)
            line.cursor_blink = False
            yield line
            yield WrappedLines(self._lines(""))

    def _lines(self, error: str) -> list[list[Span]]:
        examples: list[list[Span]] = [
            [(f" {text:<18}", "key"), (about, "muted")] for text, about in _TIME_EXAMPLES
        ]
        return [*examples, [(f" {error}", "bad")]]

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with a valid time, or show the error."""
        event.stop()
        try:
            moment = parse_user_time(event.value)
        except UsageError as error:
            self.query_one(WrappedLines).set(self._lines(error_with_hint(error)))
        else:
            self.dismiss(str(moment))


class PromptDialog(Dialog[str]):
    """Requests a line of text. The result is the text, once it is valid.

    Args:
        title: the title.
        value: the initial text.
        remark: the purpose of the text.
        check: returns why a text is invalid, or "" if it is valid.
    """

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, title: str, value: str, remark: str, check: Callable[[str], str]) -> None:
        super().__init__()
        self._title, self._value, self._remark, self._check = title, value, remark, check

    def compose(self) -> ComposeResult:
        """Yield the input line and the remark."""
        with Vertical(classes="dialog jump") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ continues · esc closes")
            line = Input(self._value, compact=True)
            line.cursor_blink = False
            yield line
            yield WrappedLines(self._lines(""))

    def _lines(self, error: str) -> list[list[Span]]:
        return [[(f" {printable(error)}", "bad") if error else (f" {self._remark}", "muted")]]

    def on_input_changed(self) -> None:
        """Remove the error message."""
        self.query_one(WrappedLines).set(self._lines(""))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with a valid text, or show the error."""
        event.stop()
        text = event.value.strip()
        error = self._check(text)
        if error:
            self.query_one(WrappedLines).set(self._lines(error))
        else:
            self.dismiss(text)


def name_check(names: Collection[str]) -> Callable[[str], str]:
    """Return a check of the name of a new dataset, for :class:`PromptDialog`.

    Args:
        names: the names in use. They are compared without case.
    """
    used = {name.lower() for name in names}

    def check(text: str) -> str:
        try:
            DatasetAlias.parse(text)
        except OdfError as error:
            return f"{error}: {error.hint}" if error.hint else str(error)
        return f"a dataset named {text} already exists" if text.lower() in used else ""

    return check


class ProgressDialog(Dialog[str]):
    """Shows the progress of an operation until it ends. Returns ``ended``, ``stop`` or ``leave``.

    Args:
        title: title of the dialog.
        progress: returns the current progress in one line.
        wait: returns after the end of the operation.
        leaves: whether the user may leave the dialog while the operation runs.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss('stop')", "cancel the operation", show=False),
        Binding("b", "leave", "continue in the background", show=False),
    ]

    def __init__(
        self,
        title: str,
        progress: Callable[[], str],
        wait: Callable[[], Awaitable[object]],
        *,
        leaves: bool = False,
    ) -> None:
        super().__init__()
        self._title, self._progress, self._wait, self._leaves = title, progress, wait, leaves
        self._has_ended = False

    def compose(self) -> ComposeResult:
        """Yield the progress."""
        with Vertical(classes="dialog question") as box:
            box.border_title = Content(printable(self._title))
            leave = "b continues in the background · " if self._leaves else ""
            box.border_subtitle = f"{leave}esc cancels"
            yield StaticLines(self._lines())

    def on_mount(self) -> None:
        """Wait for the end of the operation, and update its progress every second."""
        self.run_worker(self._wait_for_end(), group="stories", name="stories")
        self.set_interval(1.0, self._show_progress)

    def on_screen_resume(self) -> None:
        """Close if the operation ended while another dialog was open above."""
        if self._has_ended:
            self.dismiss("ended")

    async def _wait_for_end(self) -> None:
        await self._wait()
        self._has_ended = True
        self.dismiss("ended")

    def _lines(self) -> list[list[tuple[str, str]]]:
        return [[], [(f" {printable(self._progress())}", "")], []]

    def _show_progress(self) -> None:
        view, lines = self.query_one(StaticLines), self._lines()
        if lines != view.lines:
            view.lines = lines
            view.refresh()

    def action_leave(self) -> None:
        """Close the dialog; the operation continues in the background."""
        if self._leaves:
            self.dismiss("leave")


class SaveDialog(Dialog[Path]):
    """Requests the path of a file. Relative paths start at the current folder.

    The result is an absolute path.

    Args:
        title: the title.
        path: the initial path.
    """

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, title: str, path: str) -> None:
        super().__init__()
        self._title, self._path = title, path

    def compose(self) -> ComposeResult:
        """Yield the current folder and the input line."""
        with Vertical(classes="dialog question") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = "⏎ saves · esc closes"
            yield StaticLines([[], [(" in ", "muted"), (printable(str(Path.cwd())), "")], []])
            line = Input(self._path, compact=True)
            line.cursor_blink = False
            yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the absolute path."""
        event.stop()
        if text := event.value.strip():
            self.dismiss(Path(text).expanduser().absolute())
