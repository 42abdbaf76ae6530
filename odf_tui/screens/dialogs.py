"""Small screens above the workbench: choose, confirm, read a text. Escape closes each.

What their keys do stands in the lower border; ``?`` (F1 where one types) lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Input

from odf_tui.actions.keymap import key_name
from odf_tui.fuzzy import ranked
from odf_tui.humane import plain
from odf_tui.widgets.choices import Choice, Choices
from odf_tui.widgets.lines import LineScroll, Paragraphs, Span

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


class Lines(LineScroll):
    """Lines that are given once."""

    def __init__(self, lines: Sequence[Sequence[Span]] = (), id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines = lines

    def on_mount(self) -> None:
        """Shows the lines."""
        self.reset()

    def set(self, lines: Sequence[Sequence[Span]]) -> None:
        """Shows other lines."""
        self.lines = lines
        self.reset()

    def count(self) -> int:
        """Lines."""
        return len(self.lines)

    def widest(self) -> int:
        """The longest line."""
        return max((sum(len(text) for text, _ in line) for line in self.lines), default=0)

    def spans(self, index: int) -> Sequence[Span]:
        """A line."""
        return self.lines[index]


class Above(Screen[Result]):
    """A screen above the workbench. ``?`` lists and runs its keys: those bindings that have a description."""

    CSS_PATH = "../dialogs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,f1", "show_keys", show=False)]

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Closes it, once: of two keys in a row the second must not close what lies below."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

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

        if not isinstance(self, Picker):
            self.app.push_screen(Picker(f"Keys here  ({_MOVES})", self.key_list(), typing=False), run)


class Dialog(ModalScreen[Result], Above[Result]):
    """One that leaves the workbench in sight."""


class Picker(Dialog[str]):
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
            box.border_subtitle = Content(self.remarks())
            if self._typing:
                line = Input(placeholder="type some letters of it", compact=True)
                line.cursor_blink = False
                yield line
            yield Choices(self._choices, self.cursor)

    def remarks(self) -> str:
        """What the keys do."""
        return "⏎ takes it · ↑↓ move · esc closes" if self._typing else "a key or ⏎ takes it · esc closes"

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrows the list."""
        self.query_one(Choices).set(self.fitting(event.value.strip()))

    def fitting(self, text: str) -> list[Choice]:
        """The choices that fit what was typed."""
        return ranked(text, ((f"{choice.title} {choice.remark}", choice) for choice in self._choices))

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


class Confirm(Dialog[bool]):
    """Asks before something cannot be taken back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)", "yes", show=False),
        Binding("n,escape,q", "dismiss(False)", "no", show=False),
    ]

    def __init__(self, question: str, *remarks: str) -> None:
        super().__init__()
        self._lines: list[Sequence[Span]] = [[], [(f" {plain(question)}", "strong")]]
        self._lines += [[(f" {plain(remark)}", "muted")] for remark in remarks]
        self._lines += [[], [(" y", "key"), (" yes   ", "muted"), ("n", "key"), (" no", "muted")]]

    def compose(self) -> ComposeResult:
        """The question."""
        with Vertical(classes="dialog question"):
            yield Lines(self._lines)


class Decision(Dialog[str]):
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
            box.border_title = Content(plain(self._title))
            words = (f"{key_name(keys[0])} {word}" for _, keys, word in self._answers)
            box.border_subtitle = Content(" · ".join(words))
            yield Paragraphs(self._lines)

    def on_key(self, event: events.Key) -> None:
        """The key of an answer ends it."""
        for answer, keys, _ in self._answers:
            if event.key in keys:
                event.stop()
                self.dismiss(answer)
                return
        if event.key == "q":
            event.stop()
            self._answer_to("escape")

    def key_list(self) -> list[Choice]:
        """The answers."""
        return [
            Choice(f"answer({answer!r})", word, tuple(keys), key_name(keys[0]))
            for answer, keys, word in self._answers
        ]

    def action_answer(self, answer: str) -> None:
        """Ends with an answer."""
        self.dismiss(answer)

    def _answer_to(self, key: str) -> None:
        for answer, keys, _ in self._answers:
            if key in keys:
                self.dismiss(answer)

    def action_move(self, move: str) -> None:
        """Scrolls."""
        self.query_one(Paragraphs).move(move)


class Oath(Dialog[bool]):
    """Shows what is at stake, and asks for a word that nobody types by mistake.

    Args:
        words: those that say yes.
        asks: what stands in the line before something is typed.
    """

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", "close: that is no", show=False),
        Binding("down", "move('down')", show=False, priority=True),
        Binding("up", "move('above')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
    ]

    def __init__(self, title: str, lines: Sequence[Sequence[Span]], words: Sequence[str], asks: str) -> None:
        super().__init__()
        self._title, self._lines, self._words, self._asks = title, lines, words, asks

    def compose(self) -> ComposeResult:
        """What it is about, and a line to type in."""
        with Vertical(classes="dialog oath") as box:
            box.border_title = Content(plain(self._title))
            box.border_subtitle = Content("⏎ decides · ↑↓ scroll · esc closes")
            yield Paragraphs(self._lines)
            line = Input(placeholder=self._asks, compact=True)
            line.cursor_blink = False
            yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Another word is no."""
        event.stop()
        self.dismiss(event.value.strip() in self._words)

    def action_move(self, move: str) -> None:
        """Scrolls."""
        self.query_one(Paragraphs).move(move)


class Reader(Dialog[str]):
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

    def body(self) -> Lines | Paragraphs:
        """What shows the text."""
        return Lines()

    def key_list(self) -> list[Choice]:
        """What its keys do."""
        return [each for each in super().key_list() if self._step or not each.id.startswith("step(")]

    def remarks(self) -> list[str]:
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
        box.border_title = Content(plain(title))
        box.border_subtitle = Content(" · ".join([*self.remarks(), "y copies", "esc closes"]))
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
