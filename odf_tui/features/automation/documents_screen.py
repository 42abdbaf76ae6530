"""DocumentsScreen: lists the checks, flows or alerts of a workspace, and creates, edits and removes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.timer import Timer

from odf_engine.api import Document, DocumentEntry, Unreadable
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import count_of, printable
from odf_engine.errors import InvalidManifest, OdfError
from odf_tui.features.automation.document_editor import DocumentActions, DocumentEditor, Lines
from odf_tui.features.automation.templates import Template, TemplateDataset
from odf_tui.services import tasks
from odf_tui.state import typed_keys
from odf_tui.text.format import Span, error_with_hint, fit_width
from odf_tui.text.highlight import yaml_spans
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import LINE_KEYS, ConfirmDialog, DecisionDialog, Dialog, PickerDialog
from odf_tui.widgets.line_view import LineView, WrappedLines
from odf_tui.widgets.status_bar import NOTICE_SECONDS

if TYPE_CHECKING:
    from odf_tui.services.controller import Host

_WIDE: Final = 90
"""Minimum width in cells of a list with all columns."""
_SYSTEM_COLUMNS: Final = ("offset", "op", "system_time")
STATE_STYLES: Final = {
    "active": "good", "running": "busy", "paused": "warn", "new": "warn", "changed": "warn", "invalid": "bad",
    "done": "good", "failed": "bad", "skipped": "muted", "interrupted": "warn", "incomplete": "warn",
}  # fmt: skip
D = TypeVar("D", bound=Document[Any])


class Column(NamedTuple):
    """A column of a list.

    Attributes:
        title: its header.
        width: its width in cells; 0: what the other columns leave.
        wide: whether only wide lists show it.
    """

    title: str
    width: int = 0
    wide: bool = False


class DocumentLine(NamedTuple):
    """A line of a list: the name of the document, and the cells of the other columns."""

    name: str
    cells: Sequence[Span]


class DocumentList(LineView):
    """A list of documents.

    Args:
        columns: the columns. The first one is the name.
        advice: the lines of an empty list.
    """

    headed = True

    def __init__(self, columns: Sequence[Column], advice: Sequence[str]) -> None:
        super().__init__(id="documents")
        self.active = True
        self._columns, self._advice = columns, advice
        self.lines: Sequence[DocumentLine] | None = None

    def show_lines(self, lines: Sequence[DocumentLine]) -> None:
        """Show documents. The cursor stays on its document."""
        name = self.selected
        self.lines = lines
        self.cursor = next((at for at, line in enumerate(lines) if line.name == name), self.cursor)
        self.reset()

    @property
    def selected(self) -> str:
        """The name of the document under the cursor, or "" in an empty list."""
        return self.lines[self.cursor].name if self.lines and self.cursor < len(self.lines) else ""

    def select(self, name: str) -> None:
        """Move the cursor to a document."""
        self.go(next((at for at, line in enumerate(self.lines or ()) if line.name == name), self.cursor))

    def count(self) -> int:
        """Return the number of documents."""
        return len(self.lines or ())

    def _widths(self) -> list[int]:
        """Return the widths of the columns in cells, 0 for those that are not shown."""
        room = self.room.width
        shown = [room >= _WIDE or not column.wide for column in self._columns]
        columns = list(zip(self._columns, shown, strict=True))
        fixed = sum(column.width + 1 for column, is_shown in columns if is_shown)
        rest = max(room - fixed - 1, 8)
        return [(column.width or rest) if is_shown else 0 for column, is_shown in columns]

    def _line(self, cells: Sequence[Span]) -> list[Span]:
        widths = zip(cells, self._widths(), strict=True)
        shown = [(fit_width(printable(text), width) + " ", style) for (text, style), width in widths if width]
        return [(" ", ""), *shown]

    def header(self) -> Sequence[Span]:
        """Return the header line."""
        return self._line([(column.title, "head") for column in self._columns])

    def spans(self, index: int) -> Sequence[Span]:
        """Return the line of a document."""
        if self.lines is None:
            return ()
        name, cells = self.lines[index]
        return self._line([(name, "name"), *cells])

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the message for no documents."""
        return () if self.lines is None else [[], *([(f" {line}", "muted")] for line in self._advice)]


class Listing(NamedTuple):
    """What a screen shows: the lines of the list, and the lines about the document ``name``."""

    lines: Sequence[DocumentLine]
    name: str
    about: Lines


def entry_spans(entry: DocumentEntry[Any] | Unreadable) -> list[list[Span]]:
    """Return why a document does not take effect, or [] if it does."""
    if entry.state == "active":
        return []
    style = STATE_STYLES[entry.state]
    if isinstance(entry, Unreadable):
        return [[(f" {printable(entry.reason)}", style)]]
    return [[(f" {entry.state}: press a to review and accept it", style)]]


def _yaml_lines(text: bytes) -> list[list[Span]]:
    return [[(" ", ""), *line] for line in yaml_spans(text.decode(errors="replace"))]


class DocumentsScreen(Dialog[None], Generic[D]):
    """Lists documents of a kind, with lines about the one under the cursor.

    A subclass loads them, and overrides what the kind does besides.

    Attributes:
        kind: the kind of the documents.
        columns: the columns of the list.
        keys: keys of the subclass for the lower border.
        poll_seconds: interval between two reads; 0: only after changes.

    Args:
        host: has the workspace and the jobs, and shows notices.
        dataset: the dataset that templates are about, or None to use the selected one.
    """

    kind: ClassVar[type[Document[Any]]]
    columns: ClassVar[Sequence[Column]]
    advice: ClassVar[Sequence[str]]
    keys: ClassVar[str] = ""
    poll_seconds: ClassVar[float] = 0

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("n", "new", "create one from a template", show=False),
        Binding("e", "edit", "edit the definition", show=False),
        Binding("d,x", "remove", "remove it, after a question", show=False),
        Binding("a", "accept", "review and accept a new or changed definition", show=False),
        *LINE_KEYS,
        Binding("pagedown,ctrl+d,ctrl+f", "scroll('page_down')", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "scroll('page_up')", show=False),
    ]

    def __init__(self, host: Host, dataset: DatasetRow | None = None) -> None:
        super().__init__()
        self.host, self.workspace = host, host.workspace
        self._dataset = dataset if dataset is not None else host.state.row
        self._lock = asyncio.Lock()
        self._hiding: Timer | None = None

    def heading(self) -> str:
        """Return the title."""
        raise NotImplementedError

    def load(self, name: str) -> Listing:
        """Read the documents, and the lines about one, or about the first one if the name is "".

        It is called in a thread.

        Raises:
            OdfError: they cannot be read.
        """
        raise NotImplementedError

    def templates(self, dataset: TemplateDataset, used: Collection[str]) -> list[Template]:
        """Return the templates of new documents."""
        raise NotImplementedError

    def accept(self, document: D) -> None:
        """Accept a document. It is called in a thread."""
        self.workspace.documents(self.kind).accept(document)

    def delete(self, name: str) -> None:
        """Remove a document. It is called in a thread."""
        self.workspace.documents(self.kind).remove(name)

    def remove_remark(self) -> str:
        """Return what remains of a removed document."""
        return ""

    def trial(self) -> Callable[[str], Awaitable[Lines]] | None:
        """Return what tries a definition, or None if there is no trial."""
        return None

    def compose(self) -> ComposeResult:
        """Yield the list, the lines about one document, and the line of a message."""
        with Vertical(classes="dialog reader documents") as box:
            box.border_title = Content(printable(self.heading()))
            box.border_subtitle = Content(f"n new · e edits · {self.keys} · ? keys · esc closes")
            yield DocumentList(self.columns, self.advice)
            yield WrappedLines(id="about-document")
            yield WrappedLines(id="message")

    @property
    def _list(self) -> DocumentList:
        return self.query_one(DocumentList)

    @property
    def selected(self) -> str:
        """The name of the document under the cursor, or "" in an empty list."""
        return self._list.selected

    def on_mount(self) -> None:
        """Read the documents."""
        self._hide_message()
        typed_keys.hold(self)
        self.reload()
        if self.poll_seconds:
            self.set_interval(self.poll_seconds, self.reload)

    def on_line_view_moved(self) -> None:
        """Show the lines about the document under the cursor."""
        self.reload()

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self._list.move(move)

    def action_scroll(self, move: str) -> None:
        """Scroll the lines about the document."""
        self.query_one("#about-document", WrappedLines).move(move)

    def show_notice(self, text: str) -> None:
        """Show a notice of the workbench here too, for as long as there."""
        self.say(text, "")
        self._hiding = self.set_timer(NOTICE_SECONDS, self._hide_message)

    def say(self, text: str, style: str = "bad") -> None:
        """Show a message in the last line."""
        self._hide_message()
        line = self.query_one("#message", WrappedLines)
        line.display = True
        line.set([[(f" {printable(text)}", style)]])

    def _hide_message(self) -> None:
        if self._hiding is not None:
            self._hiding.stop()
            self._hiding = None
        self.query_one("#message").display = False

    def reload(self) -> None:
        """Read the documents, unless they are being read or changed."""
        if not self._lock.locked():
            self.run_worker(self._show(), group="documents")

    async def _show(self) -> None:
        async with self._lock:
            try:
                listing = await asyncio.to_thread(self.load, self._list.selected)
            except OdfError as error:
                self.query_one("#about-document", WrappedLines).set([[(f" {error_with_hint(error)}", "bad")]])
                return
            finally:
                typed_keys.release(self)
        self._list.show_lines(listing.lines)
        if self._list.selected != listing.name:
            self.reload()
            return
        self.query_one("#about-document", WrappedLines).set(listing.about)

    def start(self, steps: Coroutine[Any, Any, None]) -> None:
        """Run steps. An error is shown in the last line."""
        self._hide_message()

        async def run() -> None:
            try:
                await steps
            except OdfError as error:
                self.say(error_with_hint(error))
            self.reload()

        tasks.run_steps(self, run())

    async def change(self, change: Callable[[], object], done: str) -> None:
        """Run a change in a thread, and show a notice.

        Raises:
            OdfError: the change failed.
        """
        async with self._lock:
            await asyncio.to_thread(change)
        self.host.notice(done)

    def action_new(self) -> None:
        """Create a document from a template."""
        self.start(self._create())

    async def _create(self) -> None:
        templates = await asyncio.to_thread(self._read_templates)
        choices = [Choice(key, title, (key,), key) for key, title, _ in templates]
        title = f"New {self.kind.word}"
        key = await tasks.ask(self.app, PickerDialog(title, choices, typing=False))
        text = next((template.text for template in templates if template.key == key), None)
        if text is not None:
            await self._open_editor(title, text, "")

    def _read_templates(self) -> list[Template]:
        row = self._dataset
        used = self.workspace.documents(self.kind).stamps()
        if row is None:
            return self.templates(TemplateDataset(), used)
        columns = [column for column in self.workspace.columns(row.id) if column[0] not in _SYSTEM_COLUMNS]
        key = self.workspace.primary_key(row.id)
        return self.templates(TemplateDataset(row.name, columns, key, row.derivative), used)

    def action_edit(self) -> None:
        """Edit the document under the cursor."""
        if name := self.selected:
            self.start(self._edit(name))

    async def _edit(self, name: str) -> None:
        text = await asyncio.to_thread(self._read, name)
        await self._open_editor(f"{self.kind.word.capitalize()} {name}", text, name)

    def _read(self, name: str) -> str:
        return self.workspace.documents(self.kind).text(name).decode("utf-8-sig", "replace")

    async def _open_editor(self, title: str, text: str, name: str) -> None:
        """Edit a text until it is stored.

        Args:
            title: title of the editor.
            text: the text, as it is stored.
            name: name of the stored document, or "" for a new one.
        """
        stored: list[str] = []

        def store(new: str) -> str:
            document = self._parse(new, name)
            self.workspace.check_document(document)
            if name and self._read(name) != text:
                raise OdfError(
                    f"the file of {self.kind.word} {name} was changed meanwhile",
                    hint="copy your changes, close the editor, and press e again",
                )
            self._write(new, document.name, replaces=bool(name))
            stored.append(document.name)
            return f"{'changed' if name else 'added'} {self.kind.word} {document.name}"

        actions = DocumentActions(
            lambda new: self._describe(self._parse(new, name)), store, self._edit_outside, self.trial()
        )
        note = await tasks.ask(self.app, DocumentEditor(title, text, actions, is_new=not name))
        if note is not None:
            self.host.notice(note)
            await self._show()
            self._list.select(stored[-1])

    def _parse(self, text: str, name: str) -> D:
        """Parse a definition.

        Raises:
            InvalidManifest: it is invalid, or has another name than the stored document.
        """
        document: Any = self.workspace.documents(self.kind).parse(text.encode(), "definition")
        if name and document.name != name:
            raise InvalidManifest(
                f"the {self.kind.word} is named '{document.name}'",
                where=document.source.where(".headers.name"),
                hint=f"write {name}, or close and press n for a new {self.kind.word}",
            )
        return document

    def _describe(self, document: D) -> str:
        """Return what a valid definition is about.

        Raises:
            InvalidManifest: a target or a column does not exist.
        """
        names = self.workspace.check_document(document)
        if not names:
            return "valid; no dataset matches the target yet"
        shown = ", ".join(names[:3]) + (f" and {count_of(len(names) - 3, 'other')}" if len(names) > 3 else "")
        return f"valid; for {shown}"

    def _write(self, text: str, name: str, *, replaces: bool) -> None:
        documents = self.workspace.documents(self.kind)
        if not replaces and name in documents.stamps():
            raise OdfError(
                f"{self.kind.word} '{name}' already exists", hint="enter another name, or edit that one"
            )
        document: Any = documents.write(text.encode(), name, replace=replaces)
        self.accept(document)

    async def _edit_outside(self, text: str, line: int) -> str:
        """Edit a text in the user's editor.

        Raises:
            OdfError: the editor failed.
        """
        folder = self.workspace.folder / ".odf" / "cache" / "edit"
        path = folder / f"{self.kind.word}.yaml"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            await self.host.terminal.edit(path, line)
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise OdfError(f"the text cannot be edited: {error.strerror}", where=str(path)) from None
        finally:
            path.unlink(missing_ok=True)

    def action_accept(self) -> None:
        """Accept the document under the cursor, after a review."""
        if name := self.selected:
            self.start(self._accept(name))

    async def _accept(self, name: str) -> None:
        documents = self.workspace.documents(self.kind)
        entry = await asyncio.to_thread(documents.entry, name)
        if entry.state == "active":
            self.say(f"{self.kind.word} {name} is already accepted", "warn")
            return
        text = await asyncio.to_thread(documents.text, name)
        document: Any = documents.parse(text, name)  # what is shown, if the file changes meanwhile
        answers = [("accept", ("a",), "accepts it"), ("leave", ("escape", "enter"), "closes")]
        dialog = DecisionDialog(f"Accept {self.kind.word} {name}?", _yaml_lines(text), answers)
        if await tasks.ask(self.app, dialog) == "accept":
            await self.change(lambda: self.accept(document), f"accepted {self.kind.word} {name}")

    def action_remove(self) -> None:
        """Remove the document under the cursor, after a question."""
        if name := self.selected:
            self.start(self._remove(name))

    async def _remove(self, name: str) -> None:
        question = ConfirmDialog(f"Remove the {self.kind.word} {name}?", self.remove_remark())
        if await tasks.ask(self.app, question):
            await self.change(lambda: self.delete(name), f"removed {self.kind.word} {name}")
