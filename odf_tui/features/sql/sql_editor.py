"""The editor panel: highlighting, completion, errors, status."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Final

import msgspec
from rich.cells import cell_len
from rich.style import Style
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Offset
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import TextAreaTheme

from odf_engine.coordinator.protocol import Failure, Job, JobState, Query
from odf_engine.coordinator.results import QueryResult
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.sql.query_text import TABLE_FUNCTIONS, Token, line_and_column, table_names, tokenize
from odf_tui.text.format import (
    Span,
    count_of,
    ellipsize_middle,
    fit_width,
    format_duration,
    printable,
    wrapped,
)
from odf_tui.text.job_text import job_amounts, job_seconds, known_result
from odf_tui.text.pinned_blocks import pins_text
from odf_tui.theming.themes import palette_of
from odf_tui.widgets.line_view import LineScroll, LineView

KEYWORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "OFFSET", "JOIN", "LEFT JOIN",
    "RIGHT JOIN", "FULL JOIN", "CROSS JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "ON", "USING", "AS", "AND",
    "OR", "NOT", "IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "IS NULL", "IS NOT NULL", "CASE", "WHEN", "THEN",
    "ELSE", "END", "DISTINCT", "UNION ALL", "UNION", "EXCEPT", "INTERSECT", "WITH", "OVER", "PARTITION BY",
    "ROWS BETWEEN", "DESC", "ASC", "NULLS FIRST", "NULLS LAST", "EXISTS", "LATERAL VIEW", "CAST", "INTERVAL",
    "DATE", "TIMESTAMP", "VALUES", "TRUE", "FALSE", "NULL", "GROUPING SETS", "ROLLUP", "CUBE", "QUALIFY",
    "PIVOT", "UNPIVOT", "TABLESAMPLE", "WINDOW",
)  # fmt: skip
_NAMES: Final = """
abs add_months aggregate any_value approx_count_distinct approx_percentile array array_contains
array_distinct array_join array_sort array_union avg base64 bit_and bit_or bool_and bool_or ceil
char_length coalesce collect_list collect_set concat concat_ws contains corr count count_if covar_pop
cume_dist current_date current_timestamp date_add date_diff date_format date_sub date_trunc day
dayofweek dayofyear decode degrees dense_rank element_at endswith every exp explode extract filter
first first_value flatten floor format_number from_json from_unixtime get_json_object greatest hash
hex histogram_numeric hour if ifnull initcap instr isnan isnotnull isnull json_array_length kurtosis
lag last last_day last_value lead least left length levenshtein ln locate log log10 lower lpad ltrim
make_date make_timestamp map map_keys map_values max max_by md5 mean median min min_by minute mod mode
month months_between named_struct next_day now ntile nullif nvl octet_length percent_rank percentile
percentile_approx posexplode pow power quarter radians rand range rank regexp_count regexp_extract
regexp_extract_all regexp_like regexp_replace repeat replace reverse right round row_number rpad rtrim
second sequence sha2 sign size skewness slice some sort_array soundex split split_part sqrt startswith
std stddev stddev_pop string_agg struct substr substring substring_index sum timestampadd
timestampdiff to_date to_json to_number to_timestamp transform translate trim trunc try_add try_cast
try_divide try_to_date try_to_number try_to_timestamp typeof unbase64 unhex unix_seconds upper uuid
var_pop var_samp variance weekday weekofyear width_bucket window xxhash64 year zip_with
"""
FUNCTIONS: Final = tuple(_NAMES.split())
WORDS: Final = frozenset(word for phrase in KEYWORDS for word in phrase.split()) | frozenset({
    "GROUP", "ORDER", "BY", "IS", "SEMI", "ANTI", "INNER", "OUTER", "NATURAL", "LATERAL", "VIEW",
    "SETS", "ROWS", "RANGE", "UNBOUNDED", "PRECEDING", "FOLLOWING", "CURRENT", "ROW", "PARTITION",
    "ESCAPE", "FILTER", "ANY", "ALL", "FOR", "MINUS", "SORT", "CLUSTER", "DISTRIBUTE", "NULLS", "LEFT",
    "RIGHT", "FULL", "CROSS", "EXTRACT",
})  # fmt: skip
"""Single words of the language."""
_TABLE_FUNCTIONS: Final = tuple((f"{name}(", "function") for name in TABLE_FUNCTIONS)
MOST: Final = 200
_PLAIN: Final = re.compile(r"[^\W\d]\w*")
_PART: Final = re.compile(r"[\w./-]*\Z")
_WORD: Final = re.compile(r"\w*\Z")
Columns = Mapping[str, Sequence[tuple[str, str]]]
"""Names and types of the columns of datasets, by the names of these in small letters."""


class Completion(msgspec.Struct, frozen=True):
    """A word that can come: what is written, and what it is."""

    text: str
    about: str


class Proposals(msgspec.Struct, frozen=True):
    """Words for the place of the characters ``start`` to ``end``, the best first."""

    start: int
    end: int
    words: tuple[Completion, ...]

    @property
    def shared(self) -> str:
        """What all of them begin with, whatever its case."""
        first = self.words[0].text if self.words else ""
        for at in range(len(first), 0, -1):
            if all(word.text[:at].casefold() == first[:at].casefold() for word in self.words):
                return first[:at]
        return ""


def complete(sql: str, at: int, datasets: Sequence[str], columns: Columns) -> Proposals:
    """What can stand where the cursor is.

    Args:
        sql: the query so far.
        at: how many characters are before the cursor.
        datasets: the names of all datasets.
        columns: of the datasets whose columns are known.
    """
    before = sql[:at]
    opened = _open_quote(before)
    match = _PART.search(before, opened + 1 if opened is not None else 0)
    start = opened if opened is not None else match.start() if match else at
    if _is_table(before, start):
        typed = before[start:].lstrip("`")
        words = _ranked(typed, ((name, "dataset") for name in datasets), quoted=opened is not None)
        words += [] if opened is not None else _ranked(typed, _own_names(sql))
        words += [] if opened is not None or not typed else _ranked(typed, _TABLE_FUNCTIONS)
        return Proposals(start, at, tuple(words[:MOST]))
    if opened is not None:
        rest = before[:opened] + sql[at:]
        words = _ranked(before[opened + 1 :], _columns(rest, columns), quoted=True)
        return Proposals(opened, at, tuple(words[:MOST]))
    word = _WORD.search(before)
    begin = word.start() if word else at
    typed = before[begin:]
    if before[begin - 1 : begin] == ".":
        return Proposals(begin, at, tuple(_ranked(typed, _columns_of(sql, begin, columns))[:MOST]))
    words = _ranked(typed, _columns(sql, columns))
    words += _ranked(typed, ((name, "table") for name in aliases(sql)))
    words += _ranked(typed, ((f"{name}(", "function") for name in FUNCTIONS)) if typed else []
    words += _ranked(typed, ((name, "") for name in KEYWORDS))
    return Proposals(begin, at, tuple(words[:MOST]))


def datasets_in(sql: str, datasets: Iterable[str]) -> list[str]:
    """The datasets that a query reads, by their names."""
    known = {name.casefold(): name for name in datasets}
    return [known[each.name.casefold()] for each in table_names(sql) if each.name.casefold() in known]


def aliases(sql: str) -> dict[str, str]:
    """Other names that a query has for its tables, with the tables' names."""
    words = tokenize(sql)
    found: dict[str, str] = {}
    for table in table_names(sql):
        behind = [token for token in words if token.start >= table.alias_start][:2]
        if behind and behind[0].text.upper() == "AS":
            behind = behind[1:]
        if behind and _names(behind[0]):
            found[behind[0].name] = table.name
    return found


def highlight(sql: str) -> Iterator[tuple[Token, str]]:
    """The words of a query with the styles they are shown in."""
    words = tokenize(sql, comments=True)
    for at, token in enumerate(words):
        following = words[at + 1].text if at + 1 < len(words) else ""
        if token.kind == "comment":
            yield token, "muted"
        elif token.kind == "string" or (token.kind == "word" and token.text[0].isdigit()):
            yield token, "good"
        elif (
            token.kind == "word"
            and following == "("
            and token.text.upper() not in ("IN", "AND", "OR", "OVER")
        ):
            yield token, "title"
        elif token.kind == "word" and token.text.upper() in WORDS and words[at - 1 if at else 0].text != ".":
            yield token, "key"


def _names(token: Token) -> bool:
    return token.kind == "quoted" or (token.kind == "word" and token.text.upper() not in WORDS)


def _open_quote(before: str) -> int | None:
    """Where a name between backquotes begins that is not closed yet."""
    found = tokenize(before)
    last = found[-1] if found else None
    if last is None or last.kind != "quoted" or last.end != len(before):
        return None
    closed = len(last.text) > 1 and last.text.endswith("`") and last.text.count("`") % 2 == 0
    return None if closed else last.start


def _is_table(before: str, start: int) -> bool:
    names = table_names(before[:start] + "x")
    return bool(names) and names[-1].start == start


def _own_names(sql: str) -> Iterator[tuple[str, str]]:
    """What the WITH clauses of a query name."""
    for match in re.finditer(r"(?:\bWITH\s+|,\s*)(\w+)\s+AS\s*\(", sql, re.IGNORECASE):
        yield match[1], "of this query"


def _columns(sql: str, columns: Columns) -> Iterator[tuple[str, str]]:
    """The columns of all tables of a query, each name once."""
    seen: set[str] = set()
    for table in table_names(sql):
        for name, kind in columns.get(table.name.casefold(), ()):
            if name.casefold() not in seen:
                seen.add(name.casefold())
                yield name, kind


def _columns_of(sql: str, begin: int, columns: Columns) -> Iterator[tuple[str, str]]:
    """The columns of the table whose name stands before the dot before ``begin``."""
    qualifier = re.search(r"(`[^`]+`|[\w./-]+)\.\Z", sql[:begin])
    name = qualifier[1].strip("`").casefold() if qualifier else ""
    others = {alias.casefold(): table for alias, table in aliases(sql).items()}
    yield from columns.get(others.get(name, name).casefold(), ())


def _ranked(typed: str, words: Iterable[tuple[str, str]], *, quoted: bool = False) -> list[Completion]:
    """The words that begin with what was typed, then those in which a part does."""
    wanted = typed.casefold()
    begins: list[Completion] = []
    within: list[Completion] = []
    for name, about in words:
        text = f"`{name}`" if quoted or (about and not _plain(name, about)) else name
        if name.casefold().startswith(wanted):
            begins.append(Completion(text, about))
        elif wanted and re.search(rf"[^a-z0-9]{re.escape(wanted)}", name.casefold()):
            within.append(Completion(text, about))
    return begins + within


def _plain(name: str, about: str) -> bool:
    """Whether a name can be written as it is."""
    return about in ("dataset", "function") or _PLAIN.fullmatch(name) is not None


_SHOWN: Final = 8
_WIDEST: Final = 44
_ABOUT: Final = 16
_ERROR_LINES: Final = 6
_PLACE: Final = re.compile(r"line (\d+), column (\d+)")


class CompletionList(LineView):
    """Words that can come next, beside the cursor."""

    def __init__(self) -> None:
        super().__init__(id="words")
        self.active = True
        self.display = False
        self.found = Proposals(0, 0, ())
        self._widths = (0, 0)

    def offer(self, found: Proposals, cursor: Offset) -> None:
        """Shows words below the cursor, or above it where there is no room."""
        self.found, self.cursor = found, 0
        self._widths = (
            min(max(cell_len(printable(word.text)) for word in found.words), _WIDEST),
            min(max(len(printable(word.about)) for word in found.words), _ABOUT),
        )
        height = min(len(found.words), _SHOWN) + 2
        width = sum(self._widths) + 6 + (len(found.words) > _SHOWN)
        screen = self.screen.size
        above = cursor.y + 1 + height > screen.height
        left = max(min(cursor.x - (found.end - found.start) - 2, screen.width - width), 0)
        self.styles.width, self.styles.height = width, height
        self.absolute_offset = Offset(left, max(cursor.y - height, 0) if above else cursor.y + 1)
        self.display = True
        self.scroll_to(y=0, animate=False)
        self.reset()
        self.refresh(layout=True)

    def count(self) -> int:
        """The words."""
        return len(self.found.words)

    def spans(self, index: int) -> Sequence[Span]:
        """A word, and what it is."""
        word = self.found.words[index]
        name, about = self._widths
        return [
            (f" {fit_width(ellipsize_middle(printable(word.text), name), name)}  ", ""),
            (fit_width(printable(word.about), about) + " ", "muted"),
        ]


class QueryStatusLine(LineScroll):
    """The line between the query and its rows: how it is, or how it went."""

    def __init__(self) -> None:
        super().__init__(id="sql-line")
        self._said: Sequence[Span] = ()

    def tell(self, *said: Span) -> None:
        """Shows something else."""
        if said != self._said:
            self._said = said
            self.refresh()

    def count(self) -> int:
        """One."""
        return 1

    def spans(self, index: int) -> Sequence[Span]:
        """A rule with words in it; of too many, the last ones are cut."""
        said = list(self._said)
        over = sum(cell_len(text) for text, _ in said) + 8 - self.size.width
        if said and over > 0:
            text, kind = said[-1]
            said[-1] = (fit_width(text, max(cell_len(text) - over, 0)), kind)
        rest = max(self.size.width - sum(cell_len(text) for text, _ in said) - 8, 0)
        middle = [(" ", ""), *said, (" ", "")] if said else []
        return [("─", "rule"), (" SQL ", "head"), *middle, ("─" * (rest + (2 if not middle else 0)), "rule")]


class QueryErrorView(LineScroll):
    """Why a query cannot be answered, with its line and a mark under the place."""

    def __init__(self) -> None:
        super().__init__(id="sql-wrong")
        self.display = False
        self._failure: Failure | None = None
        self._lines: list[list[Span]] = []

    def show_failure(self, failure: Failure | None) -> None:
        """Shows an error, or none."""
        self._failure = failure
        self.display = failure is not None
        self._break()

    def on_resize(self) -> None:
        """Breaks the lines anew."""
        self._break()

    def _break(self) -> None:
        failure = self._failure
        lines: list[list[Span]] = []
        if failure is not None:
            lines = [[(" ✗ ", "bad"), (printable(failure.message), "bad")]]
            lines += [[(f"   {printable(line)}", "strong")] for line in failure.excerpt]
            lines += [[("   hint ", "muted"), (printable(failure.hint), "")]] if failure.hint else []
        width = max(self.size.width or self.screen.size.width // 2, 20)
        broken = [part for line in lines for part in wrapped(line, width)]
        if broken != self._lines:
            self._lines = broken
            self.styles.height = min(len(broken), _ERROR_LINES) or 1
            self.reset()

    def count(self) -> int:
        """The lines."""
        return len(self._lines)

    def spans(self, index: int) -> Sequence[Span]:
        """A line."""
        return self._lines[index]


def error_position(error: Failure | None) -> tuple[int, int] | None:
    """Return the line and column of an error in a query, from 1; None if the error has none."""
    found = _PLACE.search((error.where or "") if error is not None else "")
    return (int(found[1]), int(found[2])) if found else None


def state_spans(job: Job) -> list[tuple[str, str]]:
    """A job of a query in a few words, for the line below it."""
    took = job_seconds(job, Timestamp.now())
    time = format_duration(took) if took is not None else ""
    match job.state:
        case JobState.queued:
            return [("waits for its turn", "muted")]
        case JobState.running:
            parts = [f"running {int(took or 0)} s", job_amounts(job)]
            return [(" · ".join(part for part in parts if part), "busy")]
        case JobState.done:
            result = known_result(job.result, Query) or QueryResult()
            first = "the first " if result.truncated else ""
            words = f"{first}{count_of(result.rows, 'row')} · {time}"
            pins = pins_text(result.pins)
            return [(words, "good"), (f" · {pins}", "muted")] if pins else [(words, "good")]
        case JobState.failed:
            place = error_position(job.error)
            return [("not answered" + (f": line {place[0]}, column {place[1]}" if place else ""), "bad")]
    return [(f"{job.state.value} after {time}" if time else job.state.value, "warn")]


_KINDS: Final = ("key", "good", "title", "muted")


class SqlEditor(TextArea):
    """The text. Keys that mean something here are messages to the panel."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r,f5", "say('run')", show=False),
        Binding("tab", "say('complete')", show=False),
        Binding("shift+tab", "say('rows')", show=False),
        Binding("escape", "say('close')", show=False),
        Binding("ctrl+g", "say('stop')", show=False),
        Binding("ctrl+p", "say('older')", show=False),
        Binding("ctrl+o", "say('newer')", show=False),
        Binding("ctrl+l", "say('clear')", show=False),
    ]

    @dataclass
    class Pressed(Message):
        """A key of the panel: ``run``, ``complete``, ``rows``, ``close``, ``stop``, ``older``, ``newer``,
        ``clear``; with the list open ``up``, ``down`` and ``take``."""

        what: str

    choosing = False  # whether the list of words is open, which up, down and enter belong to then

    def __init__(self, text: str) -> None:
        super().__init__(text, id="sql", compact=True, tab_behavior="focus", highlight_cursor_line=False)
        self.cursor_blink = False

    def on_mount(self) -> None:
        """Use the theme of the workstation, and follow its changes."""
        self._apply_theme()
        self.app.theme_changed_signal.subscribe(self, self._apply_theme)
        self.move_cursor(self.document.end)

    def on_unmount(self) -> None:
        """Follow the theme no longer."""
        self.app.theme_changed_signal.unsubscribe(self)

    def _apply_theme(self, _: object = None) -> None:
        palette = palette_of(self.app)
        self.register_theme(
            TextAreaTheme(
                "odf",
                base_style=palette["base"],
                cursor_style=palette["base"] + Style(reverse=True),
                selection_style=palette["cursor"],
                bracket_matching_style=Style(bold=True, underline=True),
                syntax_styles={name: palette[name] for name in _KINDS},
            )
        )
        self.theme = "odf"
        self._build_highlight_map()
        self.refresh()

    def action_say(self, what: str) -> None:
        """Tells the panel of a key."""
        self.post_message(self.Pressed(what))

    def action_cursor_up(self, select: bool = False) -> None:
        """Up in the text, or in the list of words."""
        if self.choosing:
            self.post_message(self.Pressed("up"))
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Down in the text, or in the list of words."""
        if self.choosing:
            self.post_message(self.Pressed("down"))
        else:
            super().action_cursor_down(select)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter" and self.choosing:
            event.stop()
            event.prevent_default()
            self.post_message(self.Pressed("take"))
        else:
            await super()._on_key(event)

    # --- Places in the text, as numbers of characters ---

    @property
    def at(self) -> int:
        """How many characters are before the cursor."""
        row, column = self.cursor_location
        return sum(len(self.document[each]) + 1 for each in range(row)) + column

    def location_of(self, at: int) -> tuple[int, int]:
        """The line and column, from 0, of a character."""
        line, column = line_and_column(self.text, at)
        return line - 1, column - 1

    # --- Words in their colours ---

    def _build_highlight_map(self) -> None:
        # Textual asks a syntax tree here, which takes long to import; words are enough for a query.
        self._line_cache.clear()
        self._highlights.clear()
        text = self.document.text
        starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        for token, kind in highlight(text):
            line = bisect_right(starts, token.start) - 1
            column = token.start - starts[line]
            for number, part in enumerate(token.text.split("\n"), line):
                start = len(self.document[number][:column].encode())
                self._highlights[number].append((start, start + len(part.encode()), kind))
                column = 0


class SqlPanel(Vertical):
    """Editor, error and line of state."""

    @dataclass
    class Asked(Message):
        """A query is to be run."""

        sql: str

    @dataclass
    class Wanted(Message):
        """The panel asks for something: ``edit``, ``rows``, ``close``, ``stop``, ``older``, ``newer``."""

        what: str

    @dataclass
    class ColumnsWanted(Message):
        """The columns of these datasets are not known yet."""

        names: list[str]

    def __init__(self, text: str) -> None:
        super().__init__(id="sql-panel")
        self._text = text
        self.datasets: list[str] = []
        self.columns: dict[str, list[tuple[str, str]]] = {}
        self._awaited = False  # whether words are to be shown as soon as all columns are known

    def compose(self) -> ComposeResult:
        """Text, list, error, line."""
        yield SqlEditor(self._text)
        yield QueryErrorView()
        yield QueryStatusLine()
        yield CompletionList()

    @property
    def editor(self) -> SqlEditor:
        """The text."""
        return self.query_one(SqlEditor)

    @property
    def line(self) -> QueryStatusLine:
        """How it is."""
        return self.query_one(QueryStatusLine)

    @property
    def words(self) -> CompletionList:
        """The list of words."""
        return self.query_one(CompletionList)

    def write(self, text: str) -> None:
        """Puts another text there, with the cursor at its end."""
        self.editor.load_text("\n".join(text.splitlines()))
        self.editor.move_cursor(self.editor.document.end)

    def show_failure(self, failure: Failure | None, place: tuple[int, int] | None = None) -> None:
        """Shows an error, and goes to its line and column, from 1."""
        self.query_one(QueryErrorView).show_failure(failure)
        self.set_class(failure is not None, "-wrong")
        if place is not None:
            self.editor.move_cursor((place[0] - 1, place[1] - 1))

    def on_click(self, event: events.Click) -> None:
        """The mouse goes on writing; the pane itself would take the keys."""
        event.stop()
        self.post_message(self.Wanted("edit"))

    # --- Keys ---

    @on(SqlEditor.Pressed)
    def _pressed(self, message: SqlEditor.Pressed) -> None:
        message.stop()
        what = message.what
        if what in ("up", "down"):
            self.words.move("above" if what == "up" else what)
        elif what == "take" or (what == "complete" and self.words.display):
            self._take()
        elif what == "complete":
            self._complete()
        elif what == "close" and self.words.display:
            self._close_words()
        elif what == "clear":
            self.write("")
            self.show_failure(None)
        else:
            self._close_words()
            sql = self.editor.text
            self.post_message(self.Asked(sql) if what == "run" else self.Wanted(what))

    # --- Words ---

    def know_columns(self, name: str, columns: list[tuple[str, str]]) -> None:
        """The columns of a dataset are known now."""
        self.columns[name.casefold()] = columns
        if self._awaited and not self._unknown():
            self._awaited = False
            self._complete()

    @on(TextArea.Changed)
    def _changed(self) -> None:
        if self.words.display:
            self._offer()

    @on(TextArea.SelectionChanged)
    def _cursor_moved(self) -> None:
        found = self.words.found
        if self.words.display and not found.start <= self.editor.at <= found.end:
            self._offer()

    @on(LineView.Opened)
    def _clicked(self, message: LineView.Opened) -> None:
        message.stop()
        self._take()

    @on(LineView.Moved)
    def _word_moved(self, message: LineView.Moved) -> None:
        message.stop()

    def _complete(self) -> None:
        """Writes what can only be meant; shows a list where there is a choice."""
        if unknown := self._unknown():
            self._awaited = True
            self.post_message(self.ColumnsWanted(unknown))
            return
        found = self._found()
        typed = self.editor.text[found.start : found.end]
        if not found.words:
            self.line.tell(("no word is known that could come here", "warn"))
        elif len(found.words) == 1:
            self._put(found, found.words[0].text)
        else:
            if len(found.shared) > len(typed) and found.shared.casefold().startswith(typed.casefold()):
                self._put(found, found.shared)
            self._offer()

    def _unknown(self) -> list[str]:
        """The datasets that the query reads and whose columns are not known yet."""
        read = datasets_in(self.editor.text, self.datasets)
        return [name for name in read if name.casefold() not in self.columns]

    def _found(self) -> Proposals:
        return complete(self.editor.text, self.editor.at, self.datasets, self.columns)

    def _offer(self) -> None:
        found = self._found()
        typed = self.editor.text[found.start : found.end]
        if not found.words or [word.text for word in found.words] == [typed]:
            self._close_words()
            return
        self.editor.choosing = True
        self.words.offer(found, self.editor.cursor_screen_offset)

    def _take(self) -> None:
        found = self.words.found
        word = found.words[self.words.cursor].text if found.words else ""
        self._close_words()
        if word:
            self._put(found, word)

    def _put(self, found: Proposals, word: str) -> None:
        editor = self.editor
        end = found.end
        if word.endswith("`") and editor.text[end : end + 1] == "`":
            end += 1
        editor.replace(word, editor.location_of(found.start), editor.location_of(end))
        editor.move_cursor(editor.location_of(found.start + len(word)))

    def _close_words(self) -> None:
        self.editor.choosing = False
        self.words.display = False
