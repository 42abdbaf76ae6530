"""Dialogs about manifests: add from a file, choose a data file; lines of problems and plans."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input

from odf_engine.api import (
    ArchiveListing,
    RemoteInputs,
    TextPosition,
    ValidateResult,
    error_position,
    group_files,
    is_url,
)
from odf_engine.api.model import PendingEvent
from odf_engine.api.text import count_of, format_bytes, format_count, printable
from odf_engine.errors import Cancelled, OdfError, has_surrogates
from odf_tui.text.format import Span
from odf_tui.text.highlight import yaml_spans
from odf_tui.widgets.choice_list import Choice, Choices, fuzzy_rank
from odf_tui.widgets.dialogs import Dialog, PickerDialog
from odf_tui.widgets.line_view import WrappedLines

if TYPE_CHECKING:
    from odf_engine.api import TranslatedQuery
    from odf_engine.api.workspace import Workspace

_OTHER_PROBLEM: Final = re.compile(r"^\S.*?:(?P<line>\d+):(?P<column>\d+): (?P<message>.*)$")
_STATES: Final[Mapping[str, Sequence[Sequence[Span]]]] = {
    "none": [[("   ", ""), ("no state: the new query computes all new rows", "")]],
    "kept": [[("   ", ""), ("continues from the state of the old query", "good")]],
    "lost": [
        [("   ", ""), ("incompatible with the state of the old query", "warn")],
        [
            ("   f  ", "key"),
            ("flush: emit the pending rows of the old query, start with empty state", ""),
        ],
        [("   r  ", "key"), ("rebuild: read all inputs again to compute the state of the new query", "")],
    ],
    "replaced": [
        [("   r  ", "key"), ("rebuild: replace the rows by those of the new query", "")],
    ],
}
_ADD_KEYS: Final = "tab completes the path · ⏎ adds · esc closes"
_EXCERPT_WIDTH: Final = 62  # cells; fits a dialog of 80 columns


def excerpt_lines(text: str, position: TextPosition, around: int = 1) -> list[list[Span]]:
    """Return the line of a position with ``around`` lines above and below, and a mark under its column."""
    lines = text.splitlines()
    start = max((position.column or 1) - _EXCERPT_WIDTH * 2 // 3, 0)
    excerpt: list[list[Span]] = []
    for number in range(max(position.line - around, 1), min(position.line + around, len(lines)) + 1):
        here = number == position.line
        visible = printable(lines[number - 1])[start : start + _EXCERPT_WIDTH]
        excerpt.append([(f" {number:>5} ", "title" if here else "muted"), (visible, "" if here else "muted")])
        if here and position.column:
            excerpt.append([(" " * (6 + position.column - start) + "^", "bad")])
    return excerpt


def problem_lines(error: OdfError, text: str) -> list[list[Span]]:
    """Return an error in a manifest with an excerpt. The message may name further positions."""
    first, *others = error.message.splitlines() or [""]
    lines: list[list[Span]] = [[(f" {printable(first)}", "bad")]]
    if error.where:
        lines.append([(" in ", "muted"), (printable(error.where), "strong")])
    if position := error_position(error, text):
        lines += excerpt_lines(text, position)
    if error.hint:
        lines.append([(" hint ", "muted"), (printable(error.hint), "good")])
    for other in others:
        match = _OTHER_PROBLEM.match(other)
        lines.append([(f" {printable(match['message'] if match else other)}", "bad")])
        if match:
            lines += excerpt_lines(text, TextPosition(int(match["line"]), int(match["column"])), around=0)
    return lines


def migration_plan_lines(plan: ValidateResult) -> list[list[Span]]:
    """Return the effects of a new query on a dataset that has data."""
    lines: list[list[Span]] = [[], [(" The query", "title")]]
    for message in filter(None, (plan.message, plan.warning)):
        lines.append([("   ", ""), (printable(message), "warn")])
    if plan.new:
        lines.append(
            [("   +  ", "good"), (f"{printable(', '.join(plan.new))}: new, null in existing rows", "good")]
        )
    state = "replaced" if plan.state == "lost" and plan.reads is not None else plan.state
    return lines + [list(line) for line in _STATES.get(state, ())]


def difference_lines(differences: Sequence[str]) -> list[list[Span]]:
    """Return what changed in the file of a source, with a blank line below."""
    return [*([(f" {printable(text)}", "strong")] for text in differences), []]


def change_lines(changes: Sequence[PendingEvent]) -> list[list[Span]]:
    """Return the events to append: titles, added and removed lines."""
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


def manifest_change_lines(old: str, new: str) -> list[list[Span]]:
    """Return the changed lines of a manifest file with their context."""
    lines = list(unified_diff(old.splitlines(), new.splitlines(), lineterm=""))[2:]
    return change_lines([PendingEvent("Changes of the file", tuple(lines))])


def translation_lines(queries: Sequence[TranslatedQuery]) -> list[list[Span]]:
    """Return the old and the new text of translated queries, and the changes of their results."""
    lines = change_lines(
        [
            PendingEvent(f"{query.dataset}: from {query.engine} to Spark", tuple(query.diff()))
            for query in queries
        ]
    )
    changes = [change for query in queries for change in query.changes]
    return lines + [[(" changed result ", "warn"), (printable(change), "")] for change in changes]


def read_manifest_text(path: Path) -> str:
    """Return the text of a file. Invalid bytes are replaced; an unreadable file is empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


_SKIPPED: Final = {".odf", ".git", "node_modules", ".venv", "__pycache__"}
_MAX_FILES: Final = 200
_DEPTH: Final = 4


def find_manifest_files(folder: Path) -> Iterator[Path]:
    """Yield the YAML files in a folder, at most 4 levels deep and 200 files.

    Paths are relative to the folder. Paths that are not UTF-8 are skipped.
    """
    count = 0
    for root, folders, files in os.walk(folder):
        here = Path(root).relative_to(folder)
        folders[:] = [] if len(here.parts) >= _DEPTH else sorted(set(folders) - _SKIPPED)
        for name in sorted(files):
            if name.endswith((".yaml", ".yml")) and not has_surrogates(str(here / name)):
                yield here / name
                count += 1
                if count >= _MAX_FILES:
                    return


class UnresolvedManifest(msgspec.Struct, frozen=True):
    """A manifest file whose datasets were not added, because of an error that has a remedy."""

    path: Path
    error: OdfError


class AddManifestDialog(Dialog[dict[str, str] | UnresolvedManifest]):
    """Adds the datasets of a manifest file.

    Its result is the names of the datasets, by id; or the file, if its inputs are in remotes or its queries
    can be translated.
    """

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", show=False),
        Binding("enter", "add", "add the datasets of the manifest", show=False, priority=True),
        Binding("tab", "complete", "complete the path", show=False, priority=True),
        Binding("down,ctrl+n", "move('down')", show=False, priority=True),
        Binding("up,ctrl+p", "move('above')", show=False, priority=True),
    ]

    class Ended(Message):
        """The datasets of a file were added, or could not be added."""

        def __init__(
            self, added: dict[str, str] | UnresolvedManifest, problem: Sequence[Sequence[Span]] = ()
        ) -> None:
            super().__init__()
            self.added, self.problem = added, problem

    class Progressed(Message):
        """A part of the datasets was added."""

    class FilesFound(Message):
        """The manifest files of the workspace."""

        def __init__(self, files: Sequence[Path]) -> None:
            super().__init__()
            self.files = files

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self._workspace = workspace
        self._files: list[Choice] = []
        self._busy = False
        self._percent = 0
        self._is_cancelled = threading.Event()

    def compose(self) -> ComposeResult:
        """Yield the input for a path, the files of the workspace, and the problem."""
        with Vertical(classes="dialog -typing") as box:
            box.border_title = "Add datasets from a manifest"
            box.border_subtitle = _ADD_KEYS
            line = Input(placeholder="path of a YAML file, or part of a path below", compact=True)
            line.cursor_blink = False
            yield line
            yield Choices([])
            yield WrappedLines(id="problem")

    def on_mount(self) -> None:
        """List the manifest files, in a thread."""
        self.query_one("#problem").display = False
        self.run_worker(
            lambda: self.post_message(self.FilesFound(list(find_manifest_files(self._workspace.folder)))),
            thread=True,
        )

    def on_add_manifest_dialog_files_found(self, message: FilesFound) -> None:
        """Show the files."""
        self._files = [Choice(str(path), str(path)) for path in message.files]
        self._filter(self.query_one(Input).value)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter the files, and hide the problem."""
        self.query_one("#problem").display = False
        self.query_one(".dialog").remove_class("-wrong")
        self._filter(event.value)

    def _filter(self, text: str) -> None:
        self.query_one(Choices).set(fuzzy_rank(text, ((choice.title, choice) for choice in self._files)))

    def action_move(self, move: str) -> None:
        """Move the cursor of the list."""
        self.query_one(Choices).move(move)

    def action_complete(self) -> None:
        """Copy the path of the file under the cursor into the input."""
        choice = self.query_one(Choices).choice
        if choice is not None:
            line = self.query_one(Input)
            line.value = choice.id
            line.cursor_position = len(choice.id)

    def on_line_view_opened(self) -> None:
        """Copy the path after a double click."""
        self.action_complete()

    def action_add(self) -> None:
        """Add the file in the input, else the one under the cursor."""
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
        self._busy, self._percent = True, 0
        self.run_worker(lambda: self._add(path), thread=True)

    def _path(self, text: str) -> Path:
        return self._workspace.folder / Path(text).expanduser()

    def _add(self, path: Path) -> None:
        try:
            added = self._workspace.add_manifest(path, self._report)
        except Cancelled:
            return
        except RemoteInputs as error:
            self.post_message(self.Ended(UnresolvedManifest(path, error)))
        except OdfError as error:
            if self._workspace.can_translate(path):
                self.post_message(self.Ended(UnresolvedManifest(path, error)))
                return
            self.post_message(self.Ended({}, problem_lines(error, read_manifest_text(path))))
        else:
            self.post_message(self.Ended(added))

    def _report(self, percent: float) -> None:
        if self._is_cancelled.is_set():
            raise Cancelled()
        if int(percent) > self._percent:
            self._percent = int(percent)
            self.post_message(self.Progressed())

    def on_unmount(self) -> None:
        """Stop an addition: no dataset is added."""
        self._is_cancelled.set()

    def on_add_manifest_dialog_progressed(self) -> None:
        """Show the progress."""
        self.query_one(".dialog").border_subtitle = f"adding: {self._percent} % · esc cancels"

    def on_add_manifest_dialog_ended(self, message: Ended) -> None:
        """Close, or show the problem."""
        self._busy = False
        if not message.problem:
            self.dismiss(message.added)
            return
        problem = self.query_one("#problem", WrappedLines)
        self.query_one(".dialog").border_subtitle = _ADD_KEYS
        self.query_one(".dialog").add_class("-wrong")
        problem.display = True
        problem.set(message.problem)


class DataFilePicker(PickerDialog):
    """Selects a data file of the workspace, or any path or URL that is typed."""

    def __init__(self, folder: Path, files: Sequence[tuple[str, int]]) -> None:
        choices = [
            Choice(
                group.pattern,
                group.pattern,
                remark=f"{count_of(group.files, 'file')}, one dataset · {format_bytes(group.size)}",
            )
            for group in group_files(files)
        ]
        choices += [Choice(path, path, remark=format_bytes(bytes_)) for path, bytes_ in files]
        super().__init__("Data file of the new dataset", choices, typing=True)
        self._folder = folder

    def on_mount(self) -> None:
        """Set the placeholder of the input."""
        self.query_one(Input).placeholder = "part of a path below, another path, a pattern, or a URL"

    def find_choices(self, text: str) -> list[Choice]:
        """Return the files that match a text; a complete path or URL comes first."""
        choices = super().find_choices(text)
        known = {choice.id for choice in choices}
        is_known = is_url(text) or (self._folder / Path(text).expanduser()).is_file()
        typed = is_known or "*" in text
        return (
            [Choice(text, text, remark="as typed"), *choices]
            if text and typed and text not in known
            else choices
        )


class MemberPicker(PickerDialog):
    """Selects the members of an archive that are the rows of a dataset: one, several, or a typed pattern.

    The result is the names or patterns, one a line.

    Args:
        title: the title.
        listing: the data files of the archive.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus", "mark", "mark or unmark the member", show=False, priority=True),
    ]

    def __init__(self, title: str, listing: ArchiveListing) -> None:
        choices = [
            Choice(
                pattern,
                printable(pattern),
                remark=f"{count_of(len(members), 'file')}, one dataset · "
                f"{format_bytes(sum(member.size for member in members))}",
            )
            for pattern, members in listing.groups
        ]
        choices += [
            Choice(member.name, printable(member.name), remark=format_bytes(member.size))
            for member in listing.members
        ]
        super().__init__(title, choices, typing=True)
        self._marked: dict[str, None] = {}

    def on_mount(self) -> None:
        """Set the placeholder of the input."""
        self.query_one(Input).placeholder = "part of a name below, or a pattern such as week-*.csv"

    def describe_keys(self) -> str:
        """Return a description of the keys, for the lower border."""
        marked = f"{format_count(len(self._marked))} marked · " if self._marked else ""
        return f"{marked}⏎ selects · + marks several · esc closes"

    def find_choices(self, text: str) -> list[Choice]:
        """Return the members that match a text; a pattern comes first. Marked members have a plus sign."""
        marked = self._marked
        choices = [
            msgspec.structs.replace(choice, title=f"+ {choice.title}") if choice.id in marked else choice
            for choice in super().find_choices(text)
        ]
        return [Choice(text, text, remark="as typed"), *choices] if "*" in text else choices

    def action_mark(self) -> None:
        """Mark the member under the cursor, or remove its mark, and move to the next."""
        # Typed keys that are still queued for the input change the list first.
        line = self.query_one(Input)
        line.call_later(self.call_later, self._mark)

    def _mark(self) -> None:
        shown = self.query_one(Choices)
        if (choice := shown.choice) is None:
            return
        if choice.id in self._marked:
            del self._marked[choice.id]
        else:
            self._marked[choice.id] = None
        cursor = shown.cursor
        shown.set(self.find_choices(self.query_one(Input).value.strip()))
        shown.go(cursor + 1)
        self.query_one(".dialog").border_subtitle = Content(self.describe_keys())

    def _pick(self) -> None:
        if self._marked:
            self.dismiss("\n".join(self._marked))
        else:
            super()._pick()


def manifest_lines(text: str) -> list[list[Span]]:
    """Return the source of an inferred manifest, without comments that explain the options."""
    body = text.partition("  metadata:\n")[2].partition("    - kind: SetInfo")[0]
    lines = [line.removeprefix("    ") for line in body.splitlines()]
    kept = [line for line in lines if not line.strip().startswith(("#   ", "# Merge ", "# Each "))]
    return [[], *([(" ", ""), *spans] for spans in yaml_spans("\n".join(kept))), []]
