"""Text areas for code: with the theme of the workstation, and styles for the parts of the text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, Literal

from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widgets import TextArea
from textual.widgets.text_area import TextAreaTheme

from odf_tui.text.highlight import yaml_spans
from odf_tui.theming.themes import palette_of

_STYLES: Final = ("key", "good", "title", "muted", "name")


class CodeEditor(TextArea):
    """A text area for code. A subclass returns the styled parts of the text.

    Args:
        text: the initial text.
        id: id of the widget.
        tab_behavior: ``indent``: the key tab inserts spaces.
    """

    def __init__(self, text: str, *, id: str, tab_behavior: Literal["focus", "indent"]) -> None:
        super().__init__(text, id=id, compact=True, tab_behavior=tab_behavior, highlight_cursor_line=False)
        self.cursor_blink = False

    def styled_parts(self) -> Iterator[tuple[int, str, str]]:
        """Yield the index of the first character, the text and the style of the parts with a style."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Use the theme of the workstation, and follow its changes."""
        self._apply_theme()
        self.app.theme_changed_signal.subscribe(self, self._apply_theme)

    def on_unmount(self) -> None:
        """Stop following the theme."""
        self.app.theme_changed_signal.unsubscribe(self)

    def _apply_theme(self, _: object = None) -> None:
        palette = palette_of(self.app)
        self.register_theme(
            TextAreaTheme(
                "odf",
                base_style=palette["base"],
                cursor_style=palette["base"] + Style(reverse=True),
                selection_style=Style(reverse=True),  # readable with all colours of the text
                bracket_matching_style=Style(bold=True, underline=True),
                syntax_styles={name: palette[name] for name in _STYLES},
            )
        )
        self.theme = "odf"
        self._build_highlight_map()
        self.refresh()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return blank lines if the editor has been removed.

        The screen can be painted between the removal and the next layout. The component styles that
        ``TextArea`` requires are gone by then.
        """
        if not self.is_attached:
            return [Strip.blank(crop.width)] * crop.height
        return super().render_lines(crop)

    def _build_highlight_map(self) -> None:
        # Textual uses a syntax tree here, which is slow to import.
        self._line_cache.clear()
        self._highlights.clear()
        starts = [0, *accumulate(len(line) + 1 for line in self.document.text.split("\n"))]
        for index, text, style in self.styled_parts():
            line = bisect_right(starts, index) - 1
            column = index - starts[line]
            for number, part in enumerate(text.split("\n"), line):
                start = len(self.document[number][:column].encode())
                self._highlights[number].append((start, start + len(part.encode()), style))
                column = 0


class YamlEditor(CodeEditor):
    """A text area for YAML."""

    def __init__(self, text: str) -> None:
        super().__init__(text, id="yaml", tab_behavior="indent")
        self.indent_width = 2

    async def _on_key(self, event: events.Key) -> None:
        """Indent a new line as the line above."""
        if event.key != "enter":
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()
        line = self.document[self.cursor_location[0]]
        self.replace("\n" + line[: len(line) - len(line.lstrip(" "))], *self.selection)

    def styled_parts(self) -> Iterator[tuple[int, str, str]]:
        """Yield the keys, the comments, and the parts of queries."""
        start = 0
        for line, spans in zip(self.document.lines, yaml_spans(self.document.text), strict=False):
            index = start
            for text, style in spans:
                if style in _STYLES:
                    yield index, text, style
                index += len(text)
            start += len(line) + 1
