"""Writes rows to CSV, JSON or Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, Literal

import msgspec
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input

from odf_engine.coordinator.results import ExportResult
from odf_tui.text.format import Span, ellipsize_middle, format_bytes, format_count, printable
from odf_tui.widgets.dialogs import ConfirmDialog, Dialog
from odf_tui.widgets.line_view import LineView, StaticLines

# --- Jobs --------------------------------------------------------------------------------------------


def export_summary(result: ExportResult) -> str:
    """Describe an exported file, such as ``7 200 rows in air.csv, 412.0 kB``."""
    rows = f"{format_count(result.rows)} {'row' if result.rows == 1 else 'rows'}"
    return f"{rows} in {printable(result.path.rpartition('/')[2])}, {format_bytes(result.size)}"


Format = Literal["csv", "ndjson", "json", "parquet"]
FORMATS: Final[Sequence[tuple[Format, str, str]]] = (
    ("csv", "CSV", ".csv"),
    ("ndjson", "JSON lines", ".ndjson"),
    ("json", "JSON array", ".json"),
    ("parquet", "Parquet", ".parquet"),
)
_SUFFIXES: Final = tuple(suffix for _, _, suffix in FORMATS)
_COLUMNS: Final = ("the data's and the system's", "the data's")
_LABELS: Final = 9
_FOLDER: Final = 40


class ExportOptions(msgspec.Struct, frozen=True):
    """What was decided: which of the choices of rows, the format, with the system's columns or without."""

    rows: int
    format: Format
    system: bool
    path: Path
    replace: bool


class OptionList(LineView):
    """A line for each thing to decide, with all that can be chosen, and the chosen one in brackets."""

    def __init__(self, rows: Sequence[str], columns: Sequence[str]) -> None:
        super().__init__(id="options")
        self.active = True
        self.labels = ("rows", "format", "columns")
        self.values = (
            list(rows),
            [name for _, name, _ in FORMATS],
            list(columns),
        )
        self.chosen = [0, 0, 0]
        self.cursor = 1

    def on_mount(self) -> None:
        """Shows them."""
        self.reset()

    def count(self) -> int:
        """How many."""
        return len(self.labels)

    def turn(self, by: int) -> None:
        """Chooses the next, or the one before."""
        values = self.values[self.cursor]
        self.chosen[self.cursor] = (self.chosen[self.cursor] + by) % len(values)
        self.refresh_line(self.cursor)

    def style_of(self, index: int) -> str:
        """The line that the keys go to."""
        return "idle" if self.active and index == self.cursor else ""

    def spans(self, index: int) -> Sequence[Span]:
        """What can be chosen."""
        found: list[Span] = [(f" {self.labels[index]:<{_LABELS}}", "muted")]
        for at, text in enumerate(self.values[index]):
            if at == self.chosen[index]:
                found += [("[", "key"), (printable(text), "strong"), ("] ", "key")]
            else:
                found.append((f" {printable(text)}  ", ""))
        return found


class ExportDialog(Dialog[ExportOptions]):
    """Ends with what is to be written.

    Args:
        title: of what.
        rows: which rows there are to choose from.
        name: of the file, without its ending.
        system: whether the rows have columns that the system made.
    """

    AUTO_FOCUS = ""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", show=False),
        Binding("enter", "write", "write the file", show=False, priority=True),
        Binding("tab,down", "go(1)", "the next line", show=False, priority=True),
        Binding("shift+tab,up", "go(-1)", "the line before", show=False, priority=True),
    ]

    def __init__(self, title: str, rows: Sequence[str], name: str, *, system: bool = True) -> None:
        super().__init__()
        self._title, self._name = title, name
        self._options = OptionList(rows, _COLUMNS if system else ("all",))

    def compose(self) -> ComposeResult:
        """What to decide, and the line for the path."""
        with Vertical(classes="dialog export") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("↑ ↓ lines · ← → choose · ⏎ writes · esc closes")
            yield StaticLines([[]])
            yield self._options
            line = Input(self._name + FORMATS[0][2], compact=True)
            line.cursor_blink = False
            with Horizontal():
                yield StaticLines([[(" file", "muted")]])
                yield line
            folder = ellipsize_middle(printable(str(Path.cwd())), _FOLDER)
            yield StaticLines(
                [[], [(" " * (_LABELS + 1) + f"in {folder}, unless it says otherwise", "muted")]]
            )

    @property
    def _line(self) -> Input:
        return self.query_one(Input)

    def action_go(self, by: int) -> None:
        """The next line, or the one before; the path is the last one."""
        options = self._options
        at = (options.cursor if options.active else options.count()) + by
        at %= options.count() + 1
        options.active = at < options.count()
        if options.active:
            self.set_focus(None)
            options.cursor = at
        else:
            self._line.focus()
        options.refresh()

    def on_key(self, event: events.Key) -> None:
        """Chooses in a line; letters move like arrows where nothing is typed."""
        if not self._options.active:
            return
        if event.key in ("left", "h", "right", "l", "space"):
            self._options.turn(-1 if event.key in ("left", "h") else 1)
            self._rename()
        elif event.key in ("j", "k"):
            self.action_go(1 if event.key == "j" else -1)
        elif event.key == "q":
            self.dismiss(None)

    def _rename(self) -> None:
        """The path ends as the format does, unless somebody wanted another ending."""
        path, suffix = self._line.value, FORMATS[self._options.chosen[1]][2]
        known = next((each for each in _SUFFIXES if path.endswith(each)), None)
        if known is not None:
            self._line.value = path.removesuffix(known) + suffix

    def on_line_view_moved(self) -> None:
        """Clicked at another line."""
        self._options.active = True
        self.set_focus(None)

    def on_descendant_focus(self) -> None:
        """Clicked into the path."""
        self._options.active = False
        self._options.refresh()

    def action_write(self) -> None:
        """Done, unless the file is there already: then it is asked."""
        text = self._line.value.strip()
        if not text:
            return
        path = Path(text).expanduser().absolute()
        if path.is_file():
            question = ConfirmDialog(
                f"{path.name} is there already. Write it anew?", "What it has now is lost."
            )
            self.app.push_screen(question, lambda yes: self._end(path, replace=True) if yes else None)
        else:
            self._end(path, replace=False)

    def _end(self, path: Path, *, replace: bool) -> None:
        rows, form, columns = self._options.chosen
        self.dismiss(ExportOptions(rows, FORMATS[form][0], columns == 0, path, replace))
