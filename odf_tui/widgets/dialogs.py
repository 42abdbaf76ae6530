"""Modal dialogs: pick, confirm, decide, read a text, type a line, wait for a job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Input

from odf_engine.errors import OdfError, UsageError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.timestamp import Timestamp, parse_user_time
from odf_tui.actions.model import key_name
from odf_tui.state.job_book import JobBook
from odf_tui.text.format import Span, error_with_hint, printable
from odf_tui.text.job_text import job_activity, job_outcome
from odf_tui.widgets.choice_list import Choice, Choices, fuzzy_rank
from odf_tui.widgets.line_view import StaticLines, WrappedLines

Result = TypeVar("Result")
MOVE_KEYS: Final[tuple[BindingType, ...]] = (
    Binding("j,down", "move('down')", show=False),
    Binding("k,up", "move('above')", show=False),
    Binding("g,home", "move('first')", show=False),
    Binding("G,end", "move('last')", show=False),
    Binding("pagedown,ctrl+d,ctrl+f", "move('page_down')", show=False),
    Binding("pageup,ctrl+u,ctrl+b", "move('page_up')", show=False),
)
"""Moving up and down in a list, for screens with an ``action_move``."""
LIST_MOVES: Final = {
    "j": "down", "k": "above", "g": "first", "home": "first", "G": "last", "end": "last",
    "ctrl+d": "page_down", "ctrl+f": "page_down", "ctrl+u": "page_up", "ctrl+b": "page_up",
}  # fmt: skip
_MOVES: Final = "move with j k, g G, arrows, page keys"


class OverlayScreen(Screen[Result]):
    """A screen above the workbench. ``?`` lists and runs its keys: those bindings that have a description."""

    CSS_PATH = Path(__file__).parents[1] / "dialogs.tcss"
    covers_workbench: ClassVar[bool] = False
    """Whether the workbench below must not be painted."""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,f1", "show_keys", show=False)]

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Closes it, once: of two keys in a row the second must not close what lies below."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def show_notice(self, text: str) -> None:
        """Show a notice here too. Most screens leave it to the workbench."""

    def key_list(self) -> list[Choice]:
        """What its keys do, each with the action that it runs."""
        found: dict[str, list[str]] = {}
        titles: dict[str, str] = {}
        for key, bindings in self._bindings.key_to_bindings.items():
            for binding in bindings:
                if binding.description:
                    found.setdefault(binding.action, []).append(key)
                    titles[binding.action] = binding.description
        return [
            Choice(action, titles[action], tuple(keys), key_name(keys[0])) for action, keys in found.items()
        ]

    def action_show_keys(self) -> None:
        """Lists the keys, and runs one."""

        async def run(action: str | None) -> None:
            if action is not None:
                await self.run_action(action)

        if not isinstance(self, PickerDialog):
            self.app.push_screen(PickerDialog(f"Keys here  ({_MOVES})", self.key_list(), typing=False), run)


class Dialog(ModalScreen[Result], OverlayScreen[Result]):
    """One that leaves the workbench in sight."""


class PickerDialog(Dialog[str]):
    """Chooses one of many. With ``typing``, letters narrow the list; without, a choice's key picks it."""

    AUTO_FOCUS = "Input"

    cursor = 0
    """The line to begin at."""

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
        """A line to type in, and the list."""
        with Vertical(classes="dialog -typing" if self._typing else "dialog") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content(self.describe_keys())
            if self._typing:
                line = Input(placeholder="type some letters of it", compact=True)
                line.cursor_blink = False
                yield line
            yield Choices(self._choices, self.cursor)

    def describe_keys(self) -> str:
        """What the keys do."""
        return "⏎ takes it · ↑↓ move · esc closes" if self._typing else "a key or ⏎ takes it · esc closes"

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrows the list."""
        self.query_one(Choices).set(self.find_choices(event.value.strip()))

    def find_choices(self, text: str) -> list[Choice]:
        """The choices that fit what was typed."""
        return fuzzy_rank(text, ((f"{choice.title} {choice.remark}", choice) for choice in self._choices))

    def on_key(self, event: events.Key) -> None:
        """A key of a choice picks it."""
        if self._typing:
            return
        for choice in self._choices:
            if event.key in choice.keys:
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
        """Clicked."""
        self.action_pick()

    def action_move(self, move: str) -> None:
        """Moves the cursor."""
        self.query_one(Choices).move(move)

    def action_pick(self) -> None:
        """Takes the choice under the cursor, after what was typed before: keys overtake letters."""
        for line in self.query(Input):
            line.call_later(self.call_later, self._pick)
            return
        self._pick()

    def _pick(self) -> None:
        choice = self.query_one(Choices).choice
        if choice is not None:
            self.dismiss(choice.id)


class ConfirmDialog(Dialog[bool]):
    """Asks before something cannot be taken back."""

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
        """The question."""
        with Vertical(classes="dialog question"):
            yield StaticLines(self._lines)


class DecisionDialog(Dialog[str]):
    """Shows something, and ends with the answer that belongs to the key that was pressed.

    Args:
        answers: an answer, its keys, and in words what it does.
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
        """What it is about."""
        with Vertical(classes="dialog decision") as box:
            box.border_title = Content(printable(self._title))
            words = (f"{key_name(keys[0])} {word}" for _, keys, word in self._answers)
            box.border_subtitle = Content(" · ".join(words))
            yield WrappedLines(self._lines)

    def on_key(self, event: events.Key) -> None:
        """The key of an answer ends it."""
        for answer, keys, _ in self._answers:
            if event.key in keys:
                event.stop()
                self.dismiss(answer)
                return
        if event.key == "q":
            event.stop()
            self._answer_by_key("escape")

    def key_list(self) -> list[Choice]:
        """The answers."""
        return [
            Choice(f"answer({answer!r})", word, tuple(keys), key_name(keys[0]))
            for answer, keys, word in self._answers
        ]

    def action_answer(self, answer: str) -> None:
        """Ends with an answer."""
        self.dismiss(answer)

    def _answer_by_key(self, key: str) -> None:
        for answer, keys, _ in self._answers:
            if key in keys:
                self.dismiss(answer)

    def action_move(self, move: str) -> None:
        """Scrolls."""
        self.query_one(WrappedLines).move(move)


class TypedConfirmation(Dialog[bool]):
    """Shows what is at stake, and asks for a word that nobody types by mistake.

    Args:
        accepted: those that say yes.
        placeholder: what stands in the line before something is typed.
    """

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", "close: that is no", show=False),
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
        """What it is about, and a line to type in."""
        with Vertical(classes="dialog oath") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ decides · ↑↓ scroll · esc closes")
            yield WrappedLines(self._lines)
            line = Input(placeholder=self._placeholder, compact=True)
            line.cursor_blink = False
            yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Another word is no."""
        event.stop()
        self.dismiss(event.value.strip() in self._accepted)

    def action_move(self, move: str) -> None:
        """Scrolls."""
        self.query_one(WrappedLines).move(move)


class TextDialog(Dialog[str]):
    """A text to scroll in, to copy from."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy", "copy the whole text", show=False),
        Binding("j,down", "move('down')", show=False),
        Binding("k,up", "move('above')", show=False),
        Binding("h,left", "move('left')", show=False),
        Binding("l,right", "move('right')", show=False),
        Binding("g,home", "move('first')", show=False),
        Binding("G,end", "move('last')", show=False),
        Binding("pagedown,space,ctrl+d,ctrl+f", "move('page_down')", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "move('page_up')", show=False),
        Binding("left_square_bracket", "step(-1)", "the older one", show=False),
        Binding("right_square_bracket", "step(1)", "the newer one", show=False),
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
        """What shows the text."""
        return StaticLines()

    def key_list(self) -> list[Choice]:
        """What its keys do."""
        return [each for each in super().key_list() if self._step or not each.id.startswith("step(")]

    def describe_keys(self) -> list[str]:
        """What the keys do."""
        return ["[ older · ] newer"] if self._step else []

    def compose(self) -> ComposeResult:
        """The text."""
        with Vertical(classes="dialog reader"):
            yield self._body

    def on_mount(self) -> None:
        """Shows the title."""
        self.show(self._title, self._lines)

    def show(self, title: str, lines: Sequence[Sequence[Span]]) -> None:
        """Shows another text."""
        self._lines = lines
        box = self.query_one(".dialog")
        box.border_title = Content(printable(title))
        box.border_subtitle = Content(" · ".join([*self.describe_keys(), "y copies", "esc closes"]))
        self._body.set(lines)
        self._body.scroll_to(0, 0, animate=False)

    def action_move(self, move: str) -> None:
        """Scrolls."""
        self._body.move(move)

    def action_copy(self) -> None:
        """Copies the whole text."""
        self._copy("\n".join("".join(text for text, _ in line) for line in self._lines))

    def action_step(self, by: int) -> None:
        """The text before or after this one."""
        if self._step is not None:
            self._step(by)


_EXAMPLE_WIDTH = 18


class GoToBlockDialog(Dialog[None]):
    """A line to type in.

    Args:
        examples: what may be typed, and what each means.
        range: what there is.
        resolve: takes what was typed, goes there, and tells what is wrong with it; nothing: it was right.
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
        """A line to type in, and what may be typed."""
        with Vertical(classes="dialog jump") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ goes there · esc closes")
            line = Input(placeholder=printable(self._range), compact=True)
            line.cursor_blink = False
            yield line
            yield StaticLines(self._lines(""))

    def _lines(self, error: str) -> list[list[Span]]:
        shown: list[list[Span]] = [
            [(f" {example:<{_EXAMPLE_WIDTH}}", "key"), (meaning, "muted")]
            for example, meaning in self._examples
        ]
        return [*shown, [(f" {printable(error)}", "bad")]]

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Goes there."""
        event.stop()
        if event.value.strip():
            self._resolve(event.value, self._show_outcome)

    def _show_outcome(self, error: str) -> None:
        if not self.is_attached:
            return
        if error:
            self.query_one(StaticLines).set(self._lines(error))
        else:
            self.dismiss(None)


_TIME_EXAMPLES = (("2026-03-01", "a day, at its beginning"), ("2026-03-01 14:00", "a time of day, in UTC"))


class TimeDialog(Dialog[str]):
    """Ends with the time as RFC 3339.

    Args:
        title: what it is for.
        about: what the time means.
    """

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, title: str, about: str) -> None:
        super().__init__()
        self._title, self._about = title, about

    def compose(self) -> ComposeResult:
        """A line to type in, and what may be typed."""
        with Vertical(classes="dialog jump") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ takes it · esc closes")
            line = Input(placeholder=self._about, compact=True)
            line.cursor_blink = False
            yield line
            yield StaticLines(self._lines(""))

    def _lines(self, error: str) -> list[list[Span]]:
        examples: list[list[Span]] = [
            [(f" {text:<18}", "key"), (about, "muted")] for text, about in _TIME_EXAMPLES
        ]
        return [*examples, [(f" {error}", "bad")]]

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Takes it, when it is a time."""
        event.stop()
        try:
            moment = parse_user_time(event.value)
        except UsageError as error:
            self.query_one(StaticLines).set(self._lines(error_with_hint(error)))
        else:
            self.dismiss(str(moment))


class PromptDialog(Dialog[str]):
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
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ goes on · esc closes")
            line = Input(self._value, compact=True)
            line.cursor_blink = False
            yield line
            yield StaticLines(self._lines(""))

    def _lines(self, error: str) -> list[list[Span]]:
        return [[(f" {printable(error)}", "bad") if error else (f" {self._remark}", "muted")]]

    def on_input_changed(self) -> None:
        """The old complaint goes."""
        self.query_one(StaticLines).set(self._lines(""))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ends, or says what is wrong."""
        event.stop()
        text = event.value.strip()
        error = self._check(text)
        if error:
            self.query_one(StaticLines).set(self._lines(error))
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


_POLL_SECONDS = 0.1


class JobProgressDialog(Dialog[str]):
    """Shows what a job does until it has ended; ends with ``ended``, ``stop`` or ``leave``.

    Args:
        title: what is being done.
        book: learns of the job.
        job: its id.
        leaves: whether the person may go on with other things meanwhile.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss('stop')", "stop it", show=False),
        Binding("b", "leave", "let it go on in the background", show=False),
    ]

    def __init__(self, title: str, book: JobBook, job: str, *, leaves: bool) -> None:
        super().__init__()
        self._title, self._book, self._job, self._leaves = title, book, job, leaves

    def compose(self) -> ComposeResult:
        """What it does."""
        with Vertical(classes="dialog question") as box:
            box.border_title = Content(printable(self._title))
            leave = "b lets it go on in the background · " if self._leaves else ""
            box.border_subtitle = f"{leave}esc stops it"
            yield StaticLines(self._lines())

    def on_mount(self) -> None:
        """Looks often whether it has ended; what it does is told once a second."""
        self.set_interval(_POLL_SECONDS, self._check_end)
        self.set_interval(1.0, self._update)

    def _lines(self) -> list[list[tuple[str, str]]]:
        job = self._book.jobs.get(self._job)
        if job is None or job.started is None:
            text = job_outcome(job)[0] if job is not None else "handed to the worker"
        else:
            text = job_activity(job, Timestamp.now())
        return [[], [(f" {printable(text)}", "")], []]

    def _check_end(self) -> None:
        job = self._book.jobs.get(self._job)
        if job is not None and job.state.final:
            self.dismiss("ended")

    def _update(self) -> None:
        view, lines = self.query_one(StaticLines), self._lines()
        if lines != view.lines:
            view.lines = lines
            view.refresh()

    def action_leave(self) -> None:
        """Goes on in the background."""
        if self._leaves:
            self.dismiss("leave")


class SaveDialog(Dialog[Path]):
    """A line with the path of a file; relative ones start where the program was started.

    Args:
        title: what is saved.
        path: what stands there at first.
    """

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, title: str, path: str) -> None:
        super().__init__()
        self._title, self._path = title, path

    def compose(self) -> ComposeResult:
        """The folder, and the line."""
        with Vertical(classes="dialog question") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = "⏎ saves · esc closes"
            yield StaticLines([[], [(" in ", "muted"), (printable(str(Path.cwd())), "")], []])
            line = Input(self._path, compact=True)
            line.cursor_blink = False
            yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Where to."""
        event.stop()
        if text := event.value.strip():
            self.dismiss(Path(text).expanduser().absolute())
