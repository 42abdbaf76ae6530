"""HelpTopicsController: the list of help topics, and their pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.content import Content

from odf_engine.api import LazyModule
from odf_tui.help.pages import TOPICS, read_page
from odf_tui.services.controller import Controller
from odf_tui.text.format import Span
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import PickerDialog, TextDialog
from odf_tui.widgets.line_view import StaticLines

if TYPE_CHECKING:
    from odf_tui.help import markdown
else:
    markdown = LazyModule("odf_tui.help.markdown")

Render = Callable[[str, int], list[list[Span]]]
_LIST: Final = "list"
_SCROLL_BAR: Final = 1
_MARGIN: Final = 1
_KEYS: Final = "[ ] other topics · y copies · esc topics · q closes"


class HelpTopicsController(Controller):
    """Shows the list of help topics, and the page of a topic above it."""

    def show_topics(self, topic: str = "") -> None:
        """List the topics, with the cursor on one of them, and show the page of the chosen one."""
        choices = [Choice(name, title, remark=name) for name, title in TOPICS.items()]
        dialog = PickerDialog("Help topics", choices, typing=True)
        dialog.cursor = list(TOPICS).index(topic) if topic else 0
        self.host.open(dialog, self.show_page)

    def show_page(self, topic: str | None) -> None:
        """Show the page of a topic; None shows nothing."""
        if topic is not None:
            self.host.read("help page", _load_renderer, partial(self._show, topic), opens=True)

    def _show(self, topic: str, render: Render | None, error: str) -> None:
        if render is None:
            self.host.notice(error, "bad")
        elif self.host.is_front:
            dialog = HelpPageDialog(topic, render, partial(self.host.copy_text, "help page"))
            self.host.open(dialog, lambda result: self._closed(result, dialog.topic))

    def _closed(self, result: str | None, topic: str) -> None:
        if result == _LIST:
            self.show_topics(topic)


def _load_renderer() -> Render:
    return markdown.render_page  # in a thread: it loads the Markdown parser


class HelpPageDialog(TextDialog):
    """Shows a help page. The result is ``list`` for the list of topics, or None.

    Args:
        topic: the first topic; brackets show the previous and the next one.
        render: renders Markdown for a width in cells.
        copy: copies a text to the clipboard.

    Attributes:
        topic: the topic that is shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", f"dismiss('{_LIST}')", "back to the topics", show=False),
        Binding("q,enter", "dismiss(None)", "close", show=False),
        Binding("left_square_bracket", "step(-1)", "previous topic", show=False),
        Binding("right_square_bracket", "step(1)", "next topic", show=False),
    ]

    def __init__(self, topic: str, render: Render, copy: Callable[[str], None]) -> None:
        self.topic = topic
        self._page = HelpPage(render)
        super().__init__(f"Help: {topic}", [], copy, self._show_other)

    def body(self) -> StaticLines:
        """Return the view of the page."""
        return self._page

    def show(self, title: str, lines: Sequence[Sequence[Span]]) -> None:
        """Show the title and the page."""
        super().show(title, lines)
        self.query_one(".dialog").border_subtitle = Content(_KEYS)
        self._page.show_page(read_page(self.topic))

    def action_copy(self) -> None:
        """Copy the Markdown text of the page."""
        self._copy(read_page(self.topic))

    def _show_other(self, by: int) -> None:
        names = list(TOPICS)
        self.topic = names[(names.index(self.topic) + by) % len(names)]
        self.show(f"Help: {self.topic}", [])


class HelpPage(StaticLines):
    """A page that is rendered for the width of the window."""

    def __init__(self, render: Render) -> None:
        super().__init__()
        self._render_markdown = render
        self._text = ""

    def show_page(self, text: str) -> None:
        """Show a page from its start."""
        self._text = text
        self._update_lines()
        self.scroll_to(0, 0, animate=False)

    def on_resize(self) -> None:
        """Render the page for the new width."""
        self._update_lines()

    def _update_lines(self) -> None:
        width = self.outer_size.width - _SCROLL_BAR - 2 * _MARGIN
        margin: Span = (" " * _MARGIN, "")
        self.set([[margin, *line] for line in self._render_markdown(self._text, width)])
