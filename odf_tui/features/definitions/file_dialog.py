"""The dialog for a new dataset from a data file: raw lines, parsed rows, columns and their options."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final

import msgspec
from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message

from odf_engine.api import (
    ENCODINGS,
    MAX_ROWS,
    NUMBER_FORMS,
    TYPES,
    FileChoices,
    FileSample,
    InferredColumn,
    InferredFile,
    Reporter,
    infer_file,
    parsed_text,
)
from odf_engine.api.text import count_of, format_count, printable
from odf_engine.errors import Cancelled
from odf_tui.state import typed_keys
from odf_tui.text.format import NULL, Span, error_with_hint, fit_width, right
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import LINE_KEYS, Dialog, PickerDialog, PromptDialog
from odf_tui.widgets.line_view import LineScroll, LineView, StaticLines, WrappedLines

_SEPARATORS: Final = (",", ";", "\t", "|")
_SEPARATOR_NAMES: Final[Mapping[str, str]] = {"\t": "tab"}
_EVIDENCE_WIDTH: Final = 68
_QUOTES: Final = ('"', "'", "")
_MERGES: Final = ("Ledger", "Snapshot", "UpsertStream", "Append")
_MERGE_REMARKS: Final[Mapping[str, str]] = {
    "Ledger": "new keys of a file that grows; rows that left the file: kept",
    "Snapshot": "a complete list; rows that left the file: retracted",
    "UpsertStream": "new and changed rows; rows that left the file: kept",
    "Append": "every pull of a changed file adds all of its rows again",
}
_DATE_FORMS: Final = ("", "dd/MM/yyyy", "MM/dd/yyyy", "dd.MM.yyyy", "yyyy/MM/dd", "yyyyMMdd", "d MMM yyyy")
_CLOCKS: Final = (" HH:mm", " HH:mm:ss", " h:mm a")
_NUMBERS: Final = ("BIGINT", "DOUBLE")
_MAX_WIDTH: Final = 40
_MAX_LISTED: Final = 1000
_COLUMN_TITLES: Final = ("column", "type", "format", "nulls", "role")


class ImportedFile(msgspec.Struct, frozen=True):
    """The result of the dialog.

    Attributes:
        found: what to write into the manifest, or None if the file cannot be read.
        choices: the choices of the user.
        problem: why the file cannot be read.
        edits: whether the user edits the manifest next.
        rejects: whether pulls leave out bad rows (setting ``onBadRows``) instead of failing.
        caps: whether the watermark ignores the future times of a forecast (setting ``watermark.maxAhead``).
    """

    found: InferredFile | None
    choices: FileChoices
    problem: str = ""
    edits: bool = False
    rejects: bool = False
    caps: bool = False

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the new dataset, with their values."""
        settings = {"onBadRows": "reject"} if self.rejects else {}
        if self.found is not None and self.found.is_forecast and not self.caps:
            settings["watermark.maxAhead"] = "none"
        return settings


class RawLines(LineScroll):
    """The first lines of the file, with their numbers. Bad rows are marked."""

    def __init__(self) -> None:
        super().__init__(id="raw")
        self._lines: Sequence[str] = ()
        self._bad: frozenset[int] = frozenset()
        self._is_read = False

    def set(self, file: InferredFile | None, bad: frozenset[int]) -> None:
        """Show another file, or none if it could not be read; ``bad`` are the numbers of bad rows."""
        self._lines, self._bad, self._is_read = file.lines if file else (), bad, file is not None
        self.reset()

    def count(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def spans(self, index: int) -> Sequence[Span]:
        """Return a line with its number."""
        number = index + 1
        style = "bad" if number in self._bad else "muted"
        text = printable(self._lines[index].replace("\t", " → ")[:500])
        return [(f"{'!' if number in self._bad else ' '}{number:>5} ", style), (text, "")]

    def widest(self) -> int:
        """Return the width of the longest of the first lines."""
        return max((min(len(line), 500) + 8 for line in self._lines[:_MAX_LISTED]), default=0)

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the text for a format that is not text."""
        return [[(" this format has no lines of text: see its rows", "muted")]] if self._is_read else []

    def go_to(self, line: int) -> None:
        """Scroll to a line, from 1."""
        self.scroll_to(y=max(line - 2, 0), animate=False)


class ParsedRows(LineScroll):
    """The parsed rows, below the names of their columns."""

    headed = True

    def __init__(self) -> None:
        super().__init__(id="parsed")
        self._found: InferredFile | None = None
        self._bad: frozenset[int] = frozenset()
        self._widths: list[int] = []

    def set(self, file: InferredFile | None, bad: frozenset[int]) -> None:
        """Replace the rows; ``bad`` are the lines of bad rows."""
        self._found, self._bad = file, bad
        self._widths = [
            _fit_column(
                [column.name, *(_format_value(row[at], column) for _, row in file.rows[:_MAX_LISTED])]
            )
            for at, column in enumerate(file.columns if file else ())
            if file is not None
        ]
        self.reset()

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._found.rows) if self._found else 0

    def header(self) -> Sequence[Span]:
        """Return the names of the columns."""
        columns = self._found.columns if self._found else ()
        names = [
            _align(column.name, column, width) for column, width in zip(columns, self._widths, strict=True)
        ]
        return [(f"{'line':>6} ", "muted"), (" ".join(names), "title")]

    def widest(self) -> int:
        """Return the width of all columns."""
        return 7 + sum(self._widths) + len(self._widths)

    def spans(self, index: int) -> Sequence[Span]:
        """Return a row with its line in the file."""
        assert self._found is not None
        line, row = self._found.rows[index]
        bad = line in self._bad
        spans: list[Span] = [(f"{'!' if bad else ' '}{line:>5} ", "bad" if bad else "muted")]
        for value, column, width in zip(row, self._found.columns, self._widths, strict=True):
            style = "muted" if value is None else "bad" if value in column.invalid else ""
            spans.append((_align(_format_value(value, column), column, width) + " ", style))
        return spans

    def go_to(self, line: int) -> None:
        """Scroll to the row of a line, or to the next row."""
        rows = self._found.rows if self._found else ()
        at = next((index for index, row in enumerate(rows) if row[0] >= line), max(len(rows) - 1, 0))
        self.scroll_to(y=max(at - 1, 0), animate=False)


class ColumnTable(LineView):
    """The columns: name, type, format, nulls, role and examples."""

    headed = True

    def __init__(self) -> None:
        super().__init__(id="file-columns")
        self.active = True
        self._found: InferredFile | None = None
        self._widths = [len(title) for title in _COLUMN_TITLES]

    def set(self, file: InferredFile | None) -> None:
        """Replace the columns."""
        self._found = file
        cells = [[text for text, _ in self._cells(column)] for column in (file.columns if file else ())]
        self._widths = [_fit_column(texts) for texts in zip(_COLUMN_TITLES, *cells, strict=True)]
        self.reset()

    @property
    def column(self) -> InferredColumn | None:
        """The column under the cursor."""
        columns = self._found.columns if self._found else ()
        return columns[self.cursor] if self.cursor < len(columns) else None

    def count(self) -> int:
        """Return the number of columns."""
        return len(self._found.columns) if self._found else 0

    def header(self) -> Sequence[Span]:
        """Return the titles."""
        titles = (fit_width(title, width) for title, width in zip(_COLUMN_TITLES, self._widths, strict=True))
        return [(" " + "  ".join([*titles, "examples"]), "muted")]

    def spans(self, index: int) -> Sequence[Span]:
        """Return a column."""
        assert self._found is not None
        column = self._found.columns[index]
        cells = zip(self._cells(column), self._widths, strict=True)
        spans = [(fit_width(printable(text), width) + "  ", style) for (text, style), width in cells]
        return [(" ", ""), *spans, (", ".join(printable(example) for example in column.examples), "muted")]

    def _cells(self, column: InferredColumn) -> Sequence[Span]:
        assert self._found is not None
        is_key = column.name in self._found.key and self._found.merge != "Append"
        roles = ["key"] * is_key + ["time"] * (column.name == self._found.time)
        return [
            (column.name, "name"),
            (column.type, ""),
            (column.form, "warn" if column.invalid else "muted"),
            (format_count(column.nulls) if column.nulls else "", "muted"),
            (", ".join(roles), "good"),
        ]


class FormatPicker(PickerDialog):
    """Selects the format of the values of a column, or any Spark pattern that is typed."""

    def __init__(self, column: InferredColumn) -> None:
        if column.type in _NUMBERS:
            forms: Sequence[str] = tuple(NUMBER_FORMS)
        elif column.type == "DATE":
            forms = _DATE_FORMS
        else:
            clocks = [f"{day}{clock}" for day in _DATE_FORMS if day for clock in _CLOCKS]
            forms = ("", *clocks, "epoch s", "epoch ms")
        plain = "1234.5" if column.type in _NUMBERS else "ISO 8601"
        choices = [Choice(form or "plain", form or plain) for form in forms]
        super().__init__(f"Format of {printable(column.name)}", choices, typing=True)
        self._typed = column.type not in _NUMBERS

    def find_choices(self, text: str) -> list[Choice]:
        """Return the formats that match a text; the text itself is the last one."""
        choices = super().find_choices(text)
        return [*choices, Choice(text, text, remark="as typed")] if text and self._typed else choices


class DataFileDialog(Dialog[ImportedFile]):
    """Shows how a data file is read, and lets the user correct it.

    Inference runs in a thread. Each choice starts it again, and cancels the one before.

    Args:
        title: title of the dialog.
        load: reads the sample of the file; it may take a while.
        choices: the first choices.
        rejects: the first choice whether bad rows are left out.
        caps: the first choice whether the watermark ignores times in the future.
    """

    AUTO_FOCUS = ""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "accept(False)", "show the manifest, then add the dataset", show=False),
        Binding("e", "accept(True)", "edit the manifest in the editor", show=False),
        Binding("t", "choose_type", "type of the column", show=False),
        Binding("f", "choose_format", "format of the dates, times or numbers of the column", show=False),
        Binding("r", "rename", "rename the column", show=False),
        Binding("i", "set_time", "use the column as event time, or not", show=False),
        Binding("p", "toggle_key", "add the column to the primary key, or remove it", show=False),
        Binding("m", "next_merge", "next merge strategy", show=False),
        Binding("s", "next_separator", "next separator", show=False),
        Binding("u", "next_quote", "next quote", show=False),
        Binding("h", "toggle_header", "first row has names, or not", show=False),
        Binding("c", "choose_encoding", "encoding", show=False),
        Binding(
            "y",
            "toggle_periods",
            "columns of years, quarters, months or days become rows, or stay",
            show=False,
        ),
        Binding("b", "list_bad_rows", "list the bad rows, and go to one", show=False),
        Binding("n", "next_bad_row(1)", "next bad row", show=False),
        Binding("N", "next_bad_row(-1)", "previous bad row", show=False),
        Binding("w", "toggle_cap", "the watermark follows times in the future, or not", show=False),
        Binding("x", "toggle_rejects", "pulls fail at bad rows, or leave them out", show=False),
        Binding("a", "reset", "discard all choices", show=False),
        *LINE_KEYS,
        Binding("pagedown,space,ctrl+d", "scroll_rows('page_down')", "scroll the rows", show=False),
        Binding("pageup,ctrl+u", "scroll_rows('page_up')", show=False),
        Binding("l,right", "scroll_rows('right')", "scroll the rows sideways", show=False),
        Binding("left", "scroll_rows('left')", show=False),
        Binding("escape,q", "leave", "close", show=False),
    ]

    class Inferred(Message):
        """The sample was read and inferred, or could not be."""

        def __init__(self, reporter: Reporter, file: InferredFile | None, problem: str = "") -> None:
            super().__init__()
            self.reporter, self.found, self.problem = reporter, file, problem

    def __init__(
        self,
        title: str,
        load: Callable[[Reporter], FileSample],
        choices: FileChoices | None = None,
        *,
        rejects: bool = False,
        caps: bool = False,
    ) -> None:
        super().__init__()
        self._rejects, self._caps = rejects, caps
        self._title, self._load = title, load
        self._choices = choices or FileChoices()
        self._sample: FileSample | None = None
        self._found: InferredFile | None = None
        self._problem = ""
        self._reporter = Reporter()
        self._accepts: bool | None = None  # whether the answer `edits`, as soon as the file is inferred
        self._is_inferred = False
        self._line = 0

    def compose(self) -> ComposeResult:
        """Yield the format, the raw lines, the parsed rows, the columns and the explanation of one."""
        with Vertical(classes="dialog data-file") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ continues · e editor · ? keys · esc closes")
            yield StaticLines([[(" reading the beginning of the file…", "muted")]], id="file-format")
            yield RawLines()
            yield ParsedRows()
            yield ColumnTable()
            yield WrappedLines(id="about-file-column")

    def on_mount(self) -> None:
        """Read and infer the file, in a thread."""
        self._infer()

    def on_unmount(self) -> None:
        """Cancel the inference."""
        self._reporter.cancel()

    def _infer(self) -> None:
        self._reporter.cancel()
        self._reporter = reporter = Reporter()
        self._is_inferred, self._accepts = False, None
        choices = self._choices
        typed_keys.hold(self)

        def work() -> None:
            try:
                sample = self._sample or self._load(reporter)
                self._sample = sample
                message = self.Inferred(reporter, infer_file(sample, choices, reporter))
            except Cancelled:
                return
            except Exception as error:  # decoders raise any error for damaged files
                message = self.Inferred(reporter, None, error_with_hint(error))
            self.post_message(message)

        self.run_worker(work, thread=True, exclusive=True, group="infer", name="infer")

    def on_data_file_dialog_inferred(self, message: Inferred) -> None:
        """Show the result, unless a later choice started another inference."""
        if message.reporter is not self._reporter:
            return
        self._found, self._problem, self._is_inferred = message.found, message.problem, True
        self._show()
        typed_keys.release(self)
        if self._accepts is not None:
            self.action_accept(self._accepts)

    def _choose(self, choices: FileChoices) -> None:
        self._choices = choices
        self._infer()

    def _show(self) -> None:
        file = self._found
        bad = frozenset(row.line for row in file.bad_rows) if file else frozenset[int]()
        self.query_one("#file-format", StaticLines).set(self._format_lines())
        self.query_one(RawLines).set(file, bad)
        self.query_one(ParsedRows).set(file, bad)
        self.query_one(ColumnTable).set(file)
        self._show_column()

    def _format_lines(self) -> list[list[Span]]:
        file = self._found
        if file is None:
            return [
                [(f" {printable(self._problem)}", "bad")],
                [(" e edits a manifest with example columns", "muted")],
            ]
        form: list[Span] = [(f" {file.kind}", "strong")]
        if file.kind == "Csv":
            separator = _SEPARATOR_NAMES.get(file.separator, file.separator)
            for key, label, value in (
                ("s", "separator", separator),
                ("u", "quote", file.quote or "none"),
                ("h", "header", "yes" if file.header else "no"),
            ):
                form += [("  ", ""), (key, "key"), (f" {label} ", "muted"), (printable(value), "")]
        if file.lines:
            form += [("  ", ""), ("c", "key"), (" encoding ", "muted"), (file.encoding or "UTF-8", "")]
        rows = count_of(len(file.rows), "row") + ("" if file.complete else f" (the first {MAX_ROWS:,})")
        counts = [(f" {rows}", ""), *self._bad_rows_spans(file)]
        return [form, *_evidence_lines(file), [*_period_spans(file), *counts], *self._merge_lines(file)]

    def _bad_rows_spans(self, file: InferredFile) -> list[Span]:
        """Return the number of bad rows, and what a pull does with them."""
        if not file.bad_rows:
            return [(", no bad rows", "muted")]
        first = file.bad_rows[0]
        count = count_of(len(file.bad_rows), "bad row")
        reason = f", line {first.line}: {printable(first.reason)}"
        return [
            (", ", ""),
            (count, "bad"),
            (" (", "muted"),
            ("b", "key"),
            (" lists, ", "muted"),
            ("x", "key"),
            (" rejects them)" if not self._rejects else " fails): rejected", "muted"),
            (reason, "muted"),
        ]

    def _merge_lines(self, file: InferredFile) -> list[list[Span]]:
        style = "bad" if file.merge == "Append" or file.reason.startswith("NOT") else "muted"
        keys = ", ".join(map(printable, file.key)) if file.key else "none"
        reason = f" ({printable(file.reason)})" if file.reason else ""
        return [
            [(" ", ""), ("p", "key"), (" key ", "muted"), (keys, "strong"), (reason, style),
             ("  ", ""), ("i", "key"), (" time ", "muted"), (printable(file.time) or "none", "strong")],
            [(" ", ""), ("m", "key"), (" merge ", "muted"), (file.merge, "strong"),
             (f": {_MERGE_REMARKS[file.merge]}", style if file.merge == "Append" else "muted")],
            *([self._forecast_spans()] if file.is_forecast else []),
        ]  # fmt: skip

    def _forecast_spans(self) -> list[Span]:
        verb = "ignores" if self._caps else "follows"
        return [
            (" ", ""), ("w", "key"), (" watermark ", "muted"), (verb, "strong"),
            (" times in the future: most rows have one, as in a forecast", "muted"),
        ]  # fmt: skip

    def on_line_view_moved(self) -> None:
        """Explain the column under the cursor."""
        self._show_column()

    def _show_column(self) -> None:
        column = self.query_one(ColumnTable).column
        lines: list[list[Span]] = []
        if column is not None:
            name = (f" {printable(column.name)}: ", "name")
            lines = [[name, (printable(column.evidence) or f"all values are {column.type}", "muted")]]
            if column.invalid:
                values = ", ".join(f"'{printable(value)}'" for value in sorted(column.invalid)[:3])
                lines.append([(f" not of this type: {values}", "bad")])
        self.query_one("#about-file-column", WrappedLines).set(lines)

    def show_notice(self, text: str) -> None:
        """Show a text below the columns."""
        self.query_one("#about-file-column", WrappedLines).set([[(f" {text}", "warn")]])

    def action_accept(self, edits: bool) -> None:
        """Close with the result, after the inference has ended."""
        if not self._is_inferred:
            self._accepts = edits
        elif self._found is not None or (edits and self._problem):
            self.dismiss(
                ImportedFile(
                    self._found, self._choices, self._problem, edits, rejects=self._rejects, caps=self._caps
                )
            )

    def action_leave(self) -> None:
        """Close without a result."""
        self.dismiss(None)

    def action_move(self, move: str) -> None:
        """Move the cursor of the columns."""
        self.query_one(ColumnTable).move(move)

    def action_scroll_rows(self, move: str) -> None:
        """Scroll the raw lines and the parsed rows."""
        if move in ("left", "right"):
            for view in (self.query_one(RawLines), self.query_one(ParsedRows)):
                view.move(move)
            return
        self.query_one(RawLines).move(move)
        self.query_one(ParsedRows).go_to(int(self.query_one(RawLines).scroll_offset.y) + 2)

    def _column_at(self) -> tuple[int, InferredColumn] | None:
        table = self.query_one(ColumnTable)
        return None if table.column is None else (table.cursor, table.column)

    def action_choose_type(self) -> None:
        """Choose the type of the column under the cursor."""
        if (at := self._editable_column()) is None:
            return
        place, column = at

        def chosen(kind: str | None) -> None:
            if kind is not None:
                types = {**self._choices.types, place: (kind, column.form if kind == column.type else "")}
                self._choose(msgspec.structs.replace(self._choices, types=types))

        choices = [Choice(kind, kind, (kind[0].lower(),), kind[0].lower()) for kind in TYPES[:2]]
        choices += [Choice(kind, kind, (key,), key) for kind, key in zip(TYPES[2:], "dlat", strict=True)]
        self.app.push_screen(PickerDialog(f"Type of {printable(column.name)}", choices, typing=False), chosen)

    def _editable_column(self) -> tuple[int, InferredColumn] | None:
        """Return the column under the cursor, if the file does not declare its type."""
        if self._found is not None and self._found.kind in ("Parquet", "EsriShapefile"):
            self.show_notice(f"{self._found.kind} declares the types of its columns")
            return None
        return self._column_at()

    def action_choose_format(self) -> None:
        """Choose the format of the column under the cursor."""
        if (at := self._editable_column()) is None:
            return
        place, column = at
        if column.type not in (*_NUMBERS, "DATE", "TIMESTAMP"):
            self.show_notice("only numbers, dates and times have a format: t changes the type")
            return

        def chosen(form: str | None) -> None:
            if form is not None:
                kind = (column.type, "" if form == "plain" else form)
                types = {**self._choices.types, place: kind}
                self._choose(msgspec.structs.replace(self._choices, types=types))

        self.app.push_screen(FormatPicker(column), chosen)

    def action_rename(self) -> None:
        """Rename the column under the cursor."""
        if (at := self._column_at()) is None or self._found is None:
            return
        place, column = at
        others = {other.name.casefold() for other in self._found.columns if other is not column}

        def renamed(name: str | None) -> None:
            if name and name != column.name:
                names = {**self._choices.names, place: name}
                file = self._found
                key = tuple(name if part == column.name else part for part in file.key) if file else None
                time = name if file and file.time == column.name else self._choices.time
                key = key if self._choices.key is not None else None
                self._choose(msgspec.structs.replace(self._choices, names=names, key=key, time=time))

        def check(text: str) -> str:
            if not text:
                return "enter a name"
            return "another column has this name" if text.casefold() in others else ""

        self.app.push_screen(PromptDialog("Column name", column.name, "any text", check), renamed)

    def action_set_time(self) -> None:
        """Use the column under the cursor as event time; the second time, none."""
        if (at := self._column_at()) is None or self._found is None:
            return
        _, column = at
        if not column.type.startswith(("DATE", "TIMESTAMP")):
            self.show_notice(
                f"{printable(column.name)} is a {column.type}: the event time is a DATE or TIMESTAMP"
            )
            return
        time = "" if self._found.time == column.name else column.name
        self._choose(msgspec.structs.replace(self._choices, time=time))

    def action_toggle_key(self) -> None:
        """Add the column under the cursor to the primary key, or remove it."""
        if (at := self._column_at()) is None or self._found is None:
            return
        name, key = at[1].name, self._found.key
        key = tuple(part for part in key if part != name) if name in key else (*key, name)
        merge = None if self._choices.merge == "Append" else self._choices.merge
        self._choose(msgspec.structs.replace(self._choices, key=key, merge=merge))

    def action_next_merge(self) -> None:
        """Use the next merge strategy."""
        if self._found is None:
            return
        if not self._found.key:
            self.show_notice("Ledger, Snapshot and UpsertStream require a primary key: p adds a column to it")
            return
        merge = _MERGES[(_MERGES.index(self._found.merge) + 1) % len(_MERGES)]
        self._choose(msgspec.structs.replace(self._choices, merge=merge))

    def _is_csv(self) -> bool:
        if self._found is not None and self._found.kind != "Csv":
            self.show_notice(f"{self._found.kind} has no separator, quote or header")
        return self._found is not None and self._found.kind == "Csv"

    def _choose_dialect(self, **values: str | bool) -> None:
        """Change the dialect. Choices of columns belong to the old one."""
        choices = msgspec.structs.replace(self._choices, types={}, names={}, time=None, key=None)
        self._choose(msgspec.structs.replace(choices, **values))

    def action_next_separator(self) -> None:
        """Use the next separator."""
        if self._is_csv() and self._found is not None:
            self._choose_dialect(separator=_next(_SEPARATORS, self._found.separator))

    def action_next_quote(self) -> None:
        """Use the next quote."""
        if self._is_csv() and self._found is not None:
            self._choose_dialect(quote=_next(_QUOTES, self._found.quote))

    def action_toggle_header(self) -> None:
        """Read the first row as names, or as values."""
        if self._is_csv() and self._found is not None:
            self._choose_dialect(header=not self._found.header)

    def action_toggle_periods(self) -> None:
        """Turn columns of years, quarters, months or days into rows, or keep them."""
        if self._found is not None and self._found.periods:
            self._choose_dialect(unpivot=self._choices.unpivot is False)
        else:
            self.show_notice("no columns are years, quarters, months or days")

    def action_choose_encoding(self) -> None:
        """Choose the encoding."""
        if self._found is None or not self._found.lines:
            self.show_notice("only text has an encoding")
            return

        def chosen(encoding: str | None) -> None:
            if encoding is not None:
                self._choose(msgspec.structs.replace(self._choices, encoding=encoding))

        choices = [Choice(encoding, encoding) for encoding in ENCODINGS]
        self.app.push_screen(PickerDialog("Encoding", choices, typing=True), chosen)

    def action_toggle_cap(self) -> None:
        """Let the watermark follow times in the future, or ignore them."""
        if self._found is None or not self._found.is_forecast:
            self.show_notice("most event times are not in the future: the watermark follows the others")
            return
        self._caps = not self._caps
        self._show()

    def action_toggle_rejects(self) -> None:
        """Leave out bad rows in pulls, or fail at them."""
        self._rejects = not self._rejects
        self._show()

    def action_reset(self) -> None:
        """Discard all choices."""
        self._choose(FileChoices())

    def action_list_bad_rows(self) -> None:
        """List the bad rows, and go to the one that is chosen."""
        bad = self._found.bad_rows if self._found else ()
        if not bad:
            self.show_notice(f"no bad rows among the first {MAX_ROWS:,}")
            return
        choices = [
            Choice(str(row.line), f"line {row.line}: {printable(row.reason)}") for row in bad[:_MAX_LISTED]
        ]
        dialog = PickerDialog(count_of(len(bad), "bad row"), choices, typing=False)
        self.app.push_screen(dialog, lambda line: self._go_to(int(line)) if line else None)

    def action_next_bad_row(self, by: int) -> None:
        """Go to the next (1) or previous (-1) bad row."""
        lines = [row.line for row in self._found.bad_rows] if self._found else []
        after = [line for line in lines if (line > self._line if by > 0 else line < self._line)]
        if not lines:
            self.show_notice(f"no bad rows among the first {MAX_ROWS:,}")
        else:
            self._go_to((after or lines)[0 if by > 0 else -1])

    def _go_to(self, line: int) -> None:
        """Scroll to a line of the file, and explain why it is bad."""
        self._line = line
        self.query_one(RawLines).go_to(line)
        self.query_one(ParsedRows).go_to(line)
        reasons = [row.reason for row in self._found.bad_rows if row.line == line] if self._found else []
        self.show_notice(f"line {line}: {printable('; '.join(reasons))}")


def _fit_column(texts: Iterable[str]) -> int:
    """Return the width of a column for its texts."""
    return min(max(cell_len(printable(text)) for text in texts), _MAX_WIDTH)


def _format_value(value: str | None, column: InferredColumn) -> str:
    return NULL if value is None else parsed_text(value, column)


def _align(text: str, column: InferredColumn, width: int) -> str:
    """Return a value of a column in a number of cells, with numbers at the right."""
    text = fit_width(printable(text), width)
    return right(text.rstrip(), width) if column.type in _NUMBERS or column.type.startswith("DEC") else text


def _evidence_lines(file: InferredFile) -> list[list[Span]]:
    """Return why the file needs filters, in at most two lines."""
    name = "pages" if file.paging else "filter" if file.filters else "file"
    texts = textwrap.wrap(printable("; ".join(file.evidence)), _EVIDENCE_WIDTH, max_lines=2, placeholder=" …")
    return [
        [(f" {name if number == 0 else '':6} ", "muted"), (text, "strong")]
        for number, text in enumerate(texts)
    ]


def _period_spans(file: InferredFile) -> list[Span]:
    """Return what becomes of columns of years, quarters, months or days."""
    if not file.periods:
        return []
    effect = "rows" if any("--unpivot" in arguments for arguments in file.filters) else "columns"
    return [(" ", ""), ("y", "key"), (" periods ", "muted"), (effect, "strong"), (" ", "")]


def _next(values: Sequence[str], value: str) -> str:
    return values[(values.index(value) + 1) % len(values)] if value in values else values[0]
