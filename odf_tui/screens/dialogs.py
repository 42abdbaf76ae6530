"""Small screens above the workbench: choose, confirm, read a text. Escape closes each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import msgspec
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input

from odf_tui.fuzzy import ranked
from odf_tui.humane import clip, plain
from odf_tui.widgets.lines import LineScroll, LineView, Paragraphs, Span

_SHOWN_KEYS: Final = {"enter": "⏎", "escape": "esc"}


class Choice(msgspec.Struct, frozen=True):
    """Something to choose: its id, its keys (as Textual names them, and to show), its title, a remark."""

    id: str
    title: str
    keys: tuple[str, ...] = ()
    shown: str = ""
    remark: str = ""


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


class Choices(LineView):
    """A list of choices."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        super().__init__(id="choices")
        self.choices = list(choices)
        self.active = True
        self._keys = max((len(choice.shown) for choice in choices), default=0)

    def on_mount(self) -> None:
        """Shows them."""
        self.reset()

    def set(self, choices: Sequence[Choice]) -> None:
        """Shows others."""
        self.choices, self.cursor = list(choices), 0
        self.reset()
        self.scroll_to(y=0, animate=False)

    @property
    def choice(self) -> Choice | None:
        """The one under the cursor."""
        return self.choices[self.cursor] if self.cursor < len(self.choices) else None

    def count(self) -> int:
        """How many."""
        return len(self.choices)

    def spans(self, index: int) -> Sequence[Span]:
        """Key, title, remark."""
        choice = self.choices[index]
        keys = f" {choice.shown:<{self._keys}}  " if self._keys else " "
        room = self.room.width - len(keys)
        remark = choice.remark[: max(room // 2, 0)]
        return [
            (keys, "key"),
            (clip(plain(choice.title), max(room - len(remark) - 1, 0)), ""),
            (remark + " ", "muted"),
        ]

    def empty(self) -> Sequence[Sequence[Span]]:
        """Nothing fits."""
        return [[(" nothing fits", "muted")]]


class Picker(ModalScreen[str]):
    """Chooses one of many. With ``typing``, letters narrow the list; without, a choice's key picks it."""

    AUTO_FOCUS = "Input"

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
            box.border_subtitle = "⏎ runs it · esc closes"
            if self._typing:
                line = Input(placeholder="type some letters of it", compact=True)
                line.cursor_blink = False
                yield line
            yield Choices(self._choices)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrows the list."""
        named = ((f"{choice.title} {choice.remark}", choice) for choice in self._choices)
        self.query_one(Choices).set(ranked(event.value, named))

    def on_key(self, event: events.Key) -> None:
        """A key of a choice picks it."""
        if self._typing:
            return
        if event.key in ("j", "k"):
            self.action_move("down" if event.key == "j" else "above")
            return
        for choice in self._choices:
            if event.key in choice.keys:
                event.stop()
                self.dismiss(choice.id)
                return

    def on_line_view_opened(self) -> None:
        """Clicked twice."""
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


class Confirm(ModalScreen[bool]):
    """Asks before something cannot be taken back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)", show=False),
        Binding("n,escape,q", "dismiss(False)", show=False),
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


class Decision(ModalScreen[str]):
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
            words = (f"{_SHOWN_KEYS.get(keys[0], keys[0])} {word}" for _, keys, word in self._answers)
            box.border_subtitle = Content(" · ".join(words))
            yield Paragraphs(self._lines)

    def on_key(self, event: events.Key) -> None:
        """The key of an answer ends it."""
        for answer, keys, _ in self._answers:
            if event.key in keys:
                event.stop()
                self.dismiss(answer)
                return

    def action_move(self, move: str) -> None:
        """Scrolls."""
        self.query_one(Paragraphs).move(move)


class Oath(ModalScreen[bool]):
    """Shows what is at stake, and asks for a word that nobody types by mistake.

    Args:
        words: those that say yes.
        asks: what stands in the line before something is typed.
    """

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", show=False),
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


class Reader(ModalScreen[str]):
    """A text to scroll in, to copy from."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss(None)", show=False),
        Binding("y", "copy", show=False),
        Binding("j,down", "move('down')", show=False),
        Binding("k,up", "move('above')", show=False),
        Binding("h,left", "move('left')", show=False),
        Binding("l,right", "move('right')", show=False),
        Binding("g,home", "move('first')", show=False),
        Binding("G,end", "move('last')", show=False),
        Binding("pagedown,space,ctrl+d,ctrl+f", "move('page_down')", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "move('page_up')", show=False),
        Binding("left_square_bracket", "step(-1)", show=False),
        Binding("right_square_bracket", "step(1)", show=False),
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
