"""Dialogs about manifests: add from a file, choose a data file, problems and plans."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from odf_engine.coordinator.results import ValidateResult
from odf_engine.errors import OdfError, has_surrogates
from odf_tui.features.definitions.file_manifest import is_url
from odf_tui.gateway.protocol import Gateway
from odf_tui.state.model import PendingEvent
from odf_tui.text.format import Span, format_bytes, printable
from odf_tui.text.highlight import yaml_spans
from odf_tui.widgets.choice_list import Choice, Choices, fuzzy_rank
from odf_tui.widgets.dialogs import Dialog, PickerDialog
from odf_tui.widgets.line_view import WrappedLines

_FILE: Final = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::(?P<column>\d+))?$", re.DOTALL)
_FURTHER: Final = re.compile(r"^\S.*?:(?P<line>\d+):(?P<column>\d+): (?P<message>.*)$")
_DATASET: Final = re.compile(r"^(?:dataset )?(?P<name>[\w./-]+)(?:, (?P<path>.*))?$")
_IN_QUERY: Final = re.compile(
    r"query(?: step (?P<step>\d+) of \d+)?, line (?P<line>\d+), column (?P<column>\d+)"
)
_QUERY: Final = re.compile(r"^(?P<before>\s*(?:- )*query:\s*)(?P<value>.*)$")
_QUOTED: Final = re.compile(r"'([^'\n]+)'")
_STATES: Final[Mapping[str, Sequence[Sequence[Span]]]] = {
    "none": [[("   ", ""), ("keeps no state: the rows to come are made by it", "")]],
    "kept": [[("   ", ""), ("goes on from the state of the old one", "good")]],
    "lost": [
        [("   ", ""), ("cannot go on from the state of the old one", "warn")],
        [
            ("   f  ", "key"),
            ("what was to come of the old one comes out; the new one begins with nothing", ""),
        ],
        [("   r  ", "key"), ("the new one reads its inputs anew, for the state it would have by now", "")],
    ],
}
_SHOWN: Final = 62  # cells of a line of an excerpt: it fits into a dialog of a small terminal


class TextPosition(msgspec.Struct, frozen=True):
    """A line of a file, and a column if it is known; both from 1."""

    line: int
    column: int | None = None


def error_position(error: OdfError, text: str) -> TextPosition | None:
    """Where in a manifest an error is: as it says itself, else where the field or word it names stands."""
    where = error.where or ""
    if match := _FILE.match(where):
        return TextPosition(int(match["line"]), int(match["column"]) if match["column"] else None)
    lines = text.splitlines()
    if (match := _IN_QUERY.search(where)) and (place := _in_query(lines, match)) is not None:
        return place
    match = _DATASET.match(where)
    at = _index(lines, 0, lambda line: _field(line) == ("name", match["name"])) if match else None
    path, _, rest = (match["path"] or "").partition(", ") if match else ("", "", where)
    for part in path.split("."):
        name = part.partition("[")[0].strip()
        found = _index(lines, at or 0, lambda line, name=name: f"{name}:" in line) if name else None
        at = at if found is None else found
    # Words as they stand in values and lists of columns, not keys of the same name.
    names = (re.escape(word) for word in _QUOTED.findall(f"{rest} {error.message}"))
    words = (re.compile(rf"(?<![\w.-]){name}(?![\w.:-])") for name in names)
    hits = (_index(lines, at or 0, lambda line, word=word: bool(word.search(line))) for word in words)
    at = next((line for line in hits if line is not None), at)
    return None if at is None else TextPosition(at + 1)


def _in_query(lines: Sequence[str], where: re.Match[str]) -> TextPosition | None:
    """A place in a query as a place in the manifest that has the query."""
    queries = [(at, match) for at, line in enumerate(lines) if (match := _QUERY.match(line))]
    step = int(where["step"] or 1) - 1
    if step >= len(queries):
        return None
    at, match = queries[step]
    line, column = int(where["line"]), int(where["column"])
    if match["value"][:1] != "|":  # one line, or folded: then only its start is known
        inline = line == 1 and match["value"][:1] not in ("", ">")
        quote = match["value"][:1] in ("'", '"')
        return TextPosition(at + 1, len(match["before"]) + quote + column) if inline else TextPosition(at + 1)
    first = next((each for each in lines[at + 1 :] if each.strip()), "")
    return TextPosition(at + 1 + line, len(first) - len(first.lstrip()) + column)


def _index(lines: Sequence[str], start: int, fits: Callable[[str], bool]) -> int | None:
    return next((at for at in range(start, len(lines)) if fits(lines[at])), None)


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.strip().removeprefix("- ").partition(":")
    return name, value.strip().strip("\"'")


def excerpt(text: str, place: TextPosition, around: int = 1) -> list[list[Span]]:
    """The line of a place with its neighbours, a mark under its column."""
    lines = text.splitlines()
    start = max((place.column or 1) - _SHOWN * 2 // 3, 0)
    found: list[list[Span]] = []
    for number in range(max(place.line - around, 1), min(place.line + around, len(lines)) + 1):
        here = number == place.line
        shown = printable(lines[number - 1])[start : start + _SHOWN]
        found.append([(f" {number:>5} ", "title" if here else "muted"), (shown, "" if here else "muted")])
        if here and place.column:
            found.append([(" " * (6 + place.column - start) + "^", "bad")])
    return found


def problem_lines(error: OdfError, text: str) -> list[list[Span]]:
    """An error in a manifest in full, see the module; a message may tell of further places."""
    first, *others = error.message.splitlines() or [""]
    lines: list[list[Span]] = [[(f" {printable(first)}", "bad")]]
    if error.where:
        lines.append([(" in ", "muted"), (printable(error.where), "strong")])
    if place := error_position(error, text):
        lines += excerpt(text, place)
    if error.hint:
        lines.append([(" try ", "muted"), (printable(error.hint), "good")])
    for other in others:
        match = _FURTHER.match(other)
        lines.append([(f" {printable(match['message'] if match else other)}", "bad")])
        if match:
            lines += excerpt(text, TextPosition(int(match["line"]), int(match["column"])), around=0)
    return lines


def migration_plan_lines(plan: ValidateResult) -> list[list[Span]]:
    """Describe the effects of a new query on a dataset that has data."""
    lines: list[list[Span]] = [[], [(" The query", "title")]]
    if plan.message:
        lines.append([("   ", ""), (printable(plan.message), "warn")])
    if plan.new:
        lines.append(
            [("   +  ", "good"), (f"{printable(', '.join(plan.new))}: new, empty in the rows before", "good")]
        )
    return lines + [list(line) for line in _STATES.get(plan.state, ())]


def change_lines(changes: Sequence[PendingEvent]) -> list[list[Span]]:
    """What is to be appended: a title each, and what comes and goes."""
    styles = {"+": "good", "-": "bad"}
    lines: list[list[Span]] = []
    for change in changes:
        lines += [*([[]] if lines else []), [(f" {printable(change.title)}", "title")]]
        for line in change.lines:
            mark, rest = line[:1] or " ", printable(line[1:])
            indent = rest[: len(rest) - len(rest.lstrip())]
            style = styles.get(mark, "muted")
            lines.append([(f"   {mark}{indent}", style), (rest[len(indent) :], style)])
    return lines


def text_of(path: Path) -> str:
    """The text of a file as far as it can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


_SKIPPED: Final = {".odf", ".git", "node_modules", ".venv", "__pycache__"}
_MAX_FILES: Final = 200
_DEPTH: Final = 4


def manifest_files(folder: Path) -> Iterator[Path]:
    """YAML files in a folder and some levels below, relative to it; those whose paths are UTF-8."""
    found = 0
    for root, folders, files in os.walk(folder):
        here = Path(root).relative_to(folder)
        folders[:] = [] if len(here.parts) >= _DEPTH else sorted(set(folders) - _SKIPPED)
        for name in sorted(files):
            if name.endswith((".yaml", ".yml")) and not has_surrogates(str(here / name)):
                yield here / name
                found += 1
                if found >= _MAX_FILES:
                    return


class AddDialog(Dialog[dict[str, str]]):
    """Takes the path of a manifest; ends with the names of the datasets that were added, by id."""

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", show=False),
        Binding("enter", "add", "add what the manifest holds", show=False, priority=True),
        Binding("tab", "complete", "complete the path", show=False, priority=True),
        Binding("down,ctrl+n", "move('down')", show=False, priority=True),
        Binding("up,ctrl+p", "move('above')", show=False, priority=True),
    ]

    class Tried(Message):
        """A file was tried."""

        def __init__(self, added: dict[str, str], problem: Sequence[Sequence[Span]] = ()) -> None:
            super().__init__()
            self.added, self.problem = added, problem

    class Found(Message):
        """Files to choose from."""

        def __init__(self, files: Sequence[Path]) -> None:
            super().__init__()
            self.files = files

    def __init__(self, source: Gateway) -> None:
        super().__init__()
        self._source = source
        self._files: list[Choice] = []
        self._busy = False

    def compose(self) -> ComposeResult:
        """A line for the path, files of the workspace, and what is wrong."""
        with Vertical(classes="dialog -typing") as box:
            box.border_title = "Add datasets from a manifest"
            box.border_subtitle = "tab takes a file from the list · ⏎ adds · esc closes"
            line = Input(placeholder="path of a YAML file, or letters of one below", compact=True)
            line.cursor_blink = False
            yield line
            yield Choices([])
            yield WrappedLines(id="problem")

    def on_mount(self) -> None:
        """Looks for files, in a thread."""
        self.query_one("#problem").display = False
        self.run_worker(
            lambda: self.post_message(self.Found(list(manifest_files(self._source.folder)))), thread=True
        )

    def on_add_dialog_found(self, message: Found) -> None:
        """Shows the files."""
        self._files = [Choice(str(path), str(path)) for path in message.files]
        self._narrow(self.query_one(Input).value)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrows the list; the old complaint goes."""
        self.query_one("#problem").display = False
        self.query_one(".dialog").remove_class("-wrong")
        self._narrow(event.value)

    def _narrow(self, text: str) -> None:
        self.query_one(Choices).set(fuzzy_rank(text, ((choice.title, choice) for choice in self._files)))

    def action_move(self, move: str) -> None:
        """Moves in the list."""
        self.query_one(Choices).move(move)

    def action_complete(self) -> None:
        """Puts the file under the cursor into the line."""
        choice = self.query_one(Choices).choice
        if choice is not None:
            line = self.query_one(Input)
            line.value = choice.id
            line.cursor_position = len(choice.id)

    def on_line_view_opened(self) -> None:
        """Clicked twice."""
        self.action_complete()

    def action_add(self) -> None:
        """Adds the file that is named; else the one under the cursor."""
        if self._busy:
            return
        text = self.query_one(Input).value.strip()
        path = self._path(text)
        if not text or not path.is_file():
            choice = self.query_one(Choices).choice
            if choice is not None:
                path = self._path(choice.id)
            elif not text:
                return
        self._busy = True
        self.run_worker(lambda: self._try(path), thread=True)

    def _path(self, text: str) -> Path:
        return self._source.folder / Path(text).expanduser()

    def _try(self, path: Path) -> None:
        try:
            added = self._source.add(path)
        except OdfError as error:
            self.post_message(self.Tried({}, problem_lines(error, text_of(path))))
        else:
            self.post_message(self.Tried(added))

    def on_add_dialog_tried(self, message: Tried) -> None:
        """Closes, or shows what is wrong."""
        self._busy = False
        if not message.problem:
            self.dismiss(message.added)
            return
        problem = self.query_one("#problem", WrappedLines)
        self.query_one(".dialog").add_class("-wrong")
        problem.display = True
        problem.set(message.problem)


class DataFilePicker(PickerDialog):
    """Chooses a data file of the workspace's folder; a path or a URL can be typed instead."""

    def __init__(self, folder: Path, files: Sequence[tuple[str, int]]) -> None:
        choices = [Choice(path, path, remark=format_bytes(bytes_)) for path, bytes_ in files]
        super().__init__("A dataset from which file?", choices, typing=True)
        self._folder = folder

    def on_mount(self) -> None:
        """Says what may be typed."""
        self.query_one(Input).placeholder = "letters of a file below, a path, or a URL"

    def find_choices(self, text: str) -> list[Choice]:
        """The files that fit; a place that was typed in full comes first."""
        found = super().find_choices(text)
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
