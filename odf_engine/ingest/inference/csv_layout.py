"""The layout of a CSV file: its dialect, and the records that are the header, the rows, titles and notes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, takewhile
from statistics import median
from typing import Final, NamedTuple

from odf_engine.base.progress import count_of
from odf_engine.filters.csv_filter import join_header, unique_names

_SEPARATORS: Final = {
    "\t": 1.05, ";": 1.0, "|": 1.0, ",": 1.0, ", ": 1.01, "\t\t": 1.05, "^": 0.95, "~": 0.95, ":": 0.8,
    " ": 0.7,
}  # fmt: skip
"""Separators with a factor of their score. A space or a colon is also part of texts and times."""
_MIN_SCORE: Final = 0.1
"""Score below which a file has one column."""
_SAMPLE_CHARS: Final = 100_000
_SAMPLE_RECORDS: Final = 200
_MULTIPLE: Final = "\ue000"
"""Stands for a separator of several characters while a text is parsed."""
_NULLS: Final = frozenset({
    "na", "n/a", "nan", "null", "none", "nil", "\\n", "-", "--", ".", "..", "...", "?", "#n/a", ":", "x", "*",
})  # fmt: skip
_NUMBER: Final = re.compile(
    r"[(<>~]?\s*[+-]?\s*[£$€¥]?\s*[+-]?(\d{1,3}([.,' \u00a0\u202f]\d{3})+|\d+|(?=[.,]\d))([.,]\d*)?"
    r"([eE][+-]?\d+)?\s*[%€*]?\)?",
)
_CLOCK: Final = r"\d{1,2}:\d\d(:\d\d([.,]\d+)?)?( ?[AaPp]\.?[Mm]\.?)?( ?(Z|UTC|[+-]\d\d:?\d\d))?"
_MONTH: Final = (
    r"(?i:jan|feb|fév|mar|mär|apr|abr|avr|may|mai|jun|juin|jul|juil|aug|ago|août|sep|oct|okt|nov|dec|dez|dic|"
    r"déc|ene)[a-zäéû]*\.?"
)
_DATE: Final = re.compile(
    rf"(\d{{4}}[-/.]\d{{1,2}}([-/.]\d{{1,2}})?|\d{{1,2}}[-/. ]\d{{1,2}}[-/. ]\d{{2,4}}"
    rf"|\d{{1,2}}[-/. ]{_MONTH}[-/. ,]+\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}})"
    rf"((T|,? ){_CLOCK})?"
    rf"|{_CLOCK}|{_MONTH}[- ]\d\d(\d\d)?"
)
_CODE: Final = re.compile(r"[a-z]+://\S+|\S+@\S+\.\w+|[A-Za-z]{0,4}[-_]?\d[\w/.:-]{2,}", re.ASCII)
_YEAR: Final = re.compile(r"(1[89]|20)\d\d", re.ASCII)
_NOTE: Final = re.compile(
    r"(?i)\W*(sources?|notes?|footnotes?|(last )?updated|quelle|hinweis|anmerkung|fuente|nota|bron)"
    r"\b.*:|copyright|[*†‡§©]|\(?\d{1,2}[).:] ?[A-Za-z]|\([a-z\d]\) "
)
_TOTAL: Final = re.compile(
    r"(?i)(grand |overall )?totals?( general)?:?|sum|summe|gesamt|insgesamt|totaal|totale"
)
_COMMENTS: Final = ("#", "//", "%")
_MAX_HEADER_ROWS: Final = 5
_MAX_REPEATED: Final = 2
_SENTENCE: Final = 30
"""Number of characters above which a value is a sentence."""
_SINGLE_QUOTED: Final = re.compile(r"(?m)(?:^|[,;\t|:^~ ])'[^'\n]*'(?=[,;\t|:^~ ]|\r?$)")
_RECORD_ENDS: Final = re.compile(r"\r\n|\n|\r")
_SEPARATOR_LINE: Final = re.compile(r"sep=([^\r\n]{1,2})(?:\r\n|\n|\r)", re.IGNORECASE)


class CsvRecord(NamedTuple):
    """A record: its first line in the file, from 1, and its values, none for a blank line."""

    line: int
    cells: list[str]

    @property
    def filled(self) -> int:
        """The number of values that are not empty."""
        return sum(1 for cell in self.cells if cell and not cell.isspace())

    @property
    def first(self) -> str:
        """The first value that is not empty, or ""."""
        return next(filter(None, map(str.strip, self.cells)), "")


class CsvDialect(NamedTuple):
    """How records are written.

    Attributes:
        separator: one or more characters.
        quote: the quote, or "" if values are not quoted.
        escape: the character before a quote in a value, or "" if the quote is doubled.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = ""


def dialect_options(dialect: CsvDialect) -> Iterator[str]:
    """Yield the options of the filter ``csv`` for a dialect."""
    for name, value, default in zip(
        ("--separator", "--quote", "--escape"), dialect, CsvDialect(), strict=True
    ):
        if value != default:
            yield from (name, value)


class CsvLayout(NamedTuple):
    """The parts of a file.

    Attributes:
        dialect: how records are written.
        header: the name of each column, or "" if the file has none.
        has_header: whether the table has a header.
        rows: the records of the table that have a value for each column.
        bad_rows: the records of the table that have another number of values.
        filter: arguments of ``odf filter``, or () if the readers can read the file.
        evidence: the reasons for the filter.
    """

    dialect: CsvDialect
    header: Sequence[str]
    has_header: bool
    rows: Sequence[CsvRecord]
    bad_rows: Sequence[CsvRecord]
    filter: tuple[str, ...]
    evidence: tuple[str, ...]


def sample_records(text: str, dialect: CsvDialect, limit: int, *, complete: bool) -> list[CsvRecord]:
    """Return the first records of a text, and of a complete file also the last ones.

    Of the records between them there is one without values, if there are such records.
    """
    records = _parse_records(text, dialect)
    first = list(islice(records, limit))
    if not complete:
        return first
    last: deque[CsvRecord] = deque(maxlen=_SAMPLE_RECORDS)
    blank: list[CsvRecord] = []
    for record in records:
        if len(last) == last.maxlen and not blank and not last[0].filled:
            blank.append(last[0])
        last.append(record)
    return [*first, *blank, *last]


def _parse_records(text: str, dialect: CsvDialect) -> Iterator[CsvRecord]:
    """Yield the records of a text. A blank line is a record without values."""
    csv.field_size_limit(1 << 26)
    separator, quote, escape = dialect
    is_multiple = len(separator) > 1
    reader = csv.reader(
        io.StringIO(text.replace(separator, _MULTIPLE) if is_multiple else text, newline=""),
        delimiter=_MULTIPLE if is_multiple else separator,
        quotechar=quote or None,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        escapechar=escape or None,
        doublequote=not escape,
    )
    line = 1
    with suppress(csv.Error):
        for cells in reader:
            if is_multiple:
                cells = [cell.replace(_MULTIPLE, separator) for cell in cells]
            yield CsvRecord(line, cells)
            line = reader.line_num + 1


def find_dialect(text: str, separator: str | None = None, quote: str | None = None) -> CsvDialect:
    """Return the dialect with the best score.

    The score is the share of records with the same number of values, times the share of values that look
    like numbers, dates, or texts without separators.

    Args:
        text: the beginning of a file.
        separator: the separator, or None to find it.
        quote: the quote, "" for none, or None to find it.
    """
    sample = _sample(text)
    if separator is None and (match := _SEPARATOR_LINE.match(sample)):
        separator = match[1]
    quotes = ['"', *("'" for _ in _SINGLE_QUOTED.findall(sample)[:1]), ""] if quote is None else [quote]
    lines = max(sum(1 for line in _RECORD_ENDS.split(sample) if line.strip()), 1)
    if separator is None:
        separators = [mark for mark in _SEPARATORS if 2 * sample.count(mark) >= lines or mark == ","]
    else:
        separators = [separator]
    best, best_score = CsvDialect(separators[-1] if separator else ",", quotes[0]), _MIN_SCORE
    for mark in separators:
        for quoted in quotes if '"' in sample or "'" in quotes else quotes[:1]:
            escapes = ("", "\\") if quoted and f"\\{quoted}" in sample else ("",)
            for dialect in (CsvDialect(mark, quoted, escape) for escape in escapes):
                score = _score(sample, dialect)
                if score > best_score + 1e-6:
                    best, best_score = dialect, score
    return best


def _sample(text: str) -> str:
    """Return the beginning of a text, and the lines of the first quote if the beginning has none."""
    sample = text[:_SAMPLE_CHARS]
    if '"' not in sample and (at := text.find('"')) >= 0:
        start = text.rfind("\n", 0, at - 1000) + 1
        sample = (
            sample[: sample.rfind("\n") + 1][: _SAMPLE_CHARS // 20] + text[start : start + _SAMPLE_CHARS // 2]
        )
    return sample


def _score(text: str, dialect: CsvDialect) -> float:
    records = [record for record in islice(_parse_records(text, dialect), _SAMPLE_RECORDS) if record.filled]
    if not records:
        return 0
    width = _table_width(records)
    if width < 2:
        return 0 if len(_SEPARATORS) > 1 else 1
    rows = [record.cells for record in records if len(record.cells) == width]
    ends = [at for at, record in enumerate(records) if len(record.cells) == width]
    outside = [record for at, record in enumerate(records) if not ends[0] <= at <= ends[-1]]
    titles = sum(1 for record in outside if len(record.cells) == 1)
    cells = [cell for row in rows for cell in row if cell]
    swallowed = sum(cell.count("\n") for cell in cells if 2 * cell.count(dialect.separator)
                    > cell.count("\n") * (width - 1) > 0)  # fmt: skip
    share = len(rows) / (len(records) - titles / 2 + swallowed)
    empty = sum(1 for column in list(zip(*rows, strict=True))[:-1] if not any(column))
    values = list(map(_plausibility, cells))
    if dialect.separator in " :" and not _is_split_by_space(records, rows, dialect):
        return 0
    plausible = sum(values) / max(len(values), 1)
    share = share if share >= 0.5 else share / 3
    return _SEPARATORS.get(dialect.separator, 1) * share * (1 - 1 / width) * plausible * (1 - empty / width)


def _is_split_by_space(
    records: Sequence[CsvRecord], rows: Sequence[Sequence[str]], dialect: CsvDialect
) -> bool:
    """Return whether a space or colon is a separator, and not part of texts or times."""
    joined = [dialect.separator.join(row) for row in rows]
    if 2 * sum(1 for text in joined if _kind(text) in ("number", "date")) > len(joined):
        return False
    typed = sum(1 for kind in _column_kinds(records, len(rows[0])) if kind)
    is_quoted = any(dialect.separator in cell for row in rows for cell in row)
    has_typed = typed > 0 and (is_quoted or (dialect.separator == ":" and len(rows[0]) > 2))
    return has_typed or 2 * typed >= len(rows[0])


@lru_cache(maxsize=1 << 14)
def _plausibility(cell: str) -> float:
    """Return how much a text looks like one value: from 0 to 1."""
    text = cell.strip()
    if _kind(text) in ("number", "date"):
        return 1
    if "\n" in text:
        return 0.7
    ends = [mark for mark in (text[:1], text[-1:]) if mark in ("'", '"')]
    if len(ends) == 2 or any(text.count(mark) % 2 for mark in ends) or '\\"' in text:
        return 0.3  # a quote that was not read as one
    if re.search(r"[;\t|^~]|,(?! )", text) and "://" not in text:
        return 0.2
    return 0.8 if text != cell else 0.9 if "," in text else 0.98


@lru_cache(maxsize=1 << 14)
def _kind(text: str) -> str:
    """Return ``number``, ``date``, ``code`` or ``text``, or "" for an empty text and words for null."""
    text = text.strip()
    if not text or text.lower() in _NULLS:
        return ""
    if _NUMBER.fullmatch(text):
        return "number"
    if _DATE.fullmatch(text):
        return "date"
    return "code" if _CODE.fullmatch(text) else "text"


def _table_width(records: Sequence[CsvRecord]) -> int:
    """Return the number of values of the largest number of records, of the wider ones if it is a tie."""
    widths = Counter(len(record.cells) for record in records)
    wide = {width: count for width, count in widths.items() if width > 1} or widths
    width, count = max(wide.items(), key=lambda item: (item[1], item[0]))
    return width if width == 1 or 4 * count >= widths.total() - count or count > 1 else 1


def _typical_rows(records: Sequence[CsvRecord], width: int) -> list[CsvRecord]:
    """Return rows that are below every header. They may be above or below others, such as notes."""
    full = [
        record
        for record in records
        if len(record.cells) == width and record.filled >= min(width, 2) and not _NOTE.match(record.cells[0])
    ]
    if len(full) > 2 * _MAX_HEADER_ROWS:
        return full[_MAX_HEADER_ROWS:_SAMPLE_RECORDS]
    return full[-max(len(full) // 3, 1) :] if len(full) > 1 else []


def _column_kinds(records: Sequence[CsvRecord], width: int) -> list[str]:
    """Return the kind of the values of each column, or "" for a column of texts."""
    rows = [record.cells for record in _typical_rows(records, width)]
    kinds: list[str] = []
    for at in range(width):
        counts = Counter(kind for row in rows if (kind := _kind(row[at])))
        kind, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        years = sum(1 for row in rows if _YEAR.fullmatch(row[at].strip()))
        kind = "year" if kind == "number" and 2 * years > count else kind
        kinds.append(kind if kind != "text" and 10 * count >= 7 * counts.total() else "")
    return kinds


def _header_width(records: Sequence[CsvRecord], width: int) -> int:
    """Return the number of columns of a header above records whose empty values at the end were cut, or 0."""
    widest = max(len(record.cells) for record in records)
    at = next(at for at, record in enumerate(records) if len(record.cells) == widest)
    names = {cell.strip().casefold() for cell in records[at].cells}
    is_header = (
        len(names) == widest
        and "" not in names
        and not any(_kind(name) in ("number", "date") for name in names)
    )
    is_first = all(len(record.cells) < width for record in records[:at])
    return widest if is_header and is_first and width > 1 and len(records) > at + 1 else 0


def _are_names(numbers: Sequence[str], first: str) -> bool:
    """Return whether numbers are names of columns: years, or after a text the numbers 1, 2, 3 …"""
    if all(map(_YEAR.fullmatch, numbers)):
        return len(numbers) > 2 or abs(int(numbers[0]) - int(numbers[1])) <= 10
    start = int(numbers[0]) if numbers[0].isdecimal() else -1
    is_row = list(numbers) == [str(start + at) for at in range(len(numbers))]
    return is_row and len(numbers) > 4 and _kind(first) == "text"


def find_layout(
    text: str,
    records: Sequence[CsvRecord],
    dialect: CsvDialect,
    *,
    complete: bool,
    header: bool | None = None,
) -> CsvLayout:
    """Find the table in the records of a file.

    Args:
        text: the text of the file.
        records: its records, at least one with values.
        dialect: how they are written.
        complete: whether the last records of the file are among them.
        header: whether there is a header, or None to find out.
    """
    return _LayoutSearch(text, records, dialect, complete).layout(header)


class _LayoutSearch:
    """Finds the parts of a file from the shapes of its records."""

    def __init__(self, text: str, records: Sequence[CsvRecord], dialect: CsvDialect, complete: bool) -> None:
        self._text, self._dialect, self._complete = text, dialect, complete
        self._all = records
        filled = [record for record in records if record.filled] or list(records)
        self._width = _table_width(filled)
        self._is_cut = (width := _header_width(filled, self._width)) > self._width
        self._width = max(width, self._width)
        self._lead = self._empty_columns(filled)
        self._comment = self._find_comment(records)
        self._records = [record for record in records if not self._is_comment(record)]
        self._rows = [at for at, record in enumerate(self._records) if record.filled]
        self._kinds = _column_kinds(self._records, self._width)
        rows = _typical_rows(self._records, self._width) or [
            record for record in self._records if record.filled
        ]
        self._typical = median([record.filled for record in rows] or [1])

    def layout(self, header: bool | None) -> CsvLayout:
        """Return the layout; see :func:`find_layout`."""
        records = self._records
        first = self._first_data()
        top = self._header_top(first) if header is not False else first
        if header is False:
            first = top = self._header_top(first)
        elif header and top == first:
            first = self._next_row(top)
        if top == len(records):  # no record has the shape of a header or row
            first = top = next(iter(self._rows), 0)
        last, has_total = self._table_end(first) if self._complete else (len(records), False)
        names = self._header_texts(records[top:first])
        return self._result(top, first, last, names, has_total)

    def _empty_columns(self, records: Sequence[CsvRecord]) -> int:
        """Return the number of columns without values at the beginning."""
        rows = [record.cells for record in records[:_SAMPLE_RECORDS] if len(record.cells) == self._width]
        empty = takewhile(lambda column: not any(cell.strip() for cell in column), zip(*rows, strict=True))
        return min(sum(1 for _ in empty), self._width - 1)

    def _is_title(self, record: CsvRecord) -> bool:
        """Return whether only the first value is not empty."""
        return record.filled == 1 and any(cell.strip() for cell in record.cells[: self._lead + 1])

    def _find_comment(self, records: Sequence[CsvRecord]) -> str:
        """Return the prefix of lines that are comments, or ""."""
        for prefix in _COMMENTS:
            filled = [record for record in records if record.filled]
            marked = [record for record in filled if record.cells[0].lstrip().startswith(prefix)]
            if 0 < len(marked) < len(filled) and all(map(self._is_aside, marked)):
                return prefix
        return ""

    def _is_aside(self, record: CsvRecord) -> bool:
        return self._width > 1 and (len(record.cells) != self._width or self._is_title(record))

    def _is_comment(self, record: CsvRecord) -> bool:
        return bool(self._comment and record.cells and record.cells[0].lstrip().startswith(self._comment))

    def _fit(self, record: CsvRecord) -> float | None:
        """Return the share of values that are of the kinds of their columns, or None without such columns."""
        cells = [(cell.strip(), kind) for cell, kind in zip(record.cells, self._kinds, strict=False)
                 if kind and _kind(cell)]  # fmt: skip
        numbers = [cell for cell, kind in cells if kind == "number" and _kind(cell) == "number"]
        if len(numbers) == 1 and _YEAR.fullmatch(numbers[0]):  # a value, or the name of a column
            cells = [(cell, kind) for cell, kind in cells if cell != numbers[0]]
        weights = {kind: 0.5 if kind == "code" else 1 for _, kind in cells}
        matches = sum(
            weights[kind] for cell, kind in cells if _kind(cell) == ("number" if kind == "year" else kind)
        )
        if matches == len(numbers) > 1 and _are_names(numbers, record.cells[self._lead]):
            matches = 0
        return matches / sum(weights[kind] for _, kind in cells) if cells else None

    def _first_data(self) -> int:
        """Return the index of the first record of data."""
        for at in self._rows:
            record = self._records[at]
            fit = self._fit(record)
            if fit is not None and fit >= 0.5 and record.filled > 0.5 * self._typical:
                return self._first_below_header(at)
        return self._first_text_data()

    def _first_below_header(self, at: int) -> int:
        """Return the index of the first record between the header and a row.

        Such records have few values, none of the kinds of the columns, or another number of values.
        """
        first = at
        for above in reversed([row for row in self._rows if row < at]):
            record = self._records[above]
            fit = self._fit(record)
            if fit is not None and fit < 0.5 and len(record.cells) == self._width:
                is_joined = all(self._records[between].filled for between in range(above, at))
                return first if self._is_full(record) or is_joined else at
            first = above
        return at

    def _first_text_data(self) -> int:
        """Return the index of the first record of data in a table of texts."""
        wide = [at for at in self._rows if self._is_full(self._records[at])] or self._rows or [0]
        start = wide[0]
        rows = [self._records[at] for at in wide[1:] if len(self._records[at].cells) == self._width]
        is_below_title = start > 0 and self._is_title(self._records[start - 1])
        if not _is_header(self._records[start].cells, [row.cells for row in rows], is_below_title):
            return start
        return self._next_row(start)

    def _next_row(self, at: int) -> int:
        return next((row for row in self._rows if row > at), len(self._records))

    def _is_full(self, record: CsvRecord) -> bool:
        return record.filled >= max(self._typical / 2, min(2, self._width)) and (
            len(record.cells) <= self._width or not any(record.cells[self._width :])
        )

    def _header_top(self, first: int) -> int:
        """Return the index of the first record of the header above the data."""
        top, below = first, None
        above = [row for row in reversed(self._rows) if row < first]
        for number, at in enumerate(above):
            record = self._records[at]
            is_apart = below is not None and top != at + 1
            upper = above[number + 1] if above[number + 1 : number + 2] == [at - 1] else None
            if is_apart or not self._is_header_row(
                record, below, None if upper is None else self._records[upper]
            ):
                break
            top = at
            below = record if below is None or record.filled > below.filled else below
            if number + 1 == _MAX_HEADER_ROWS or self._width == 1:
                break
        names = list(filter(None, self._header_texts(self._records[top:first])))
        is_short = len(names) * 2 < min(self._width, self._typical)
        return first if is_short or len(set(names)) < min(2, self._width) else top

    def _is_header_row(self, record: CsvRecord, below: CsvRecord | None, above: CsvRecord | None) -> bool:
        """Return whether a record is a part of the header.

        Args:
            record: the record.
            below: the part of the header below it that has the largest number of texts, or None.
            above: the record directly above it, or None.
        """
        cells = [cell.strip() for cell in record.cells]
        if self._width == 1:
            return True
        if self._is_title(record):
            return False
        used = cells[self._lead :]
        is_start = all(used[: record.filled]) and record.filled < self._width - self._lead
        if below is None:
            is_wide = record.filled >= min(0.5 * self._typical, 3)
            return not is_start or is_wide or (above is not None and self._completes(above, record))
        if self._width == 2:
            return not cells[0] or record.cells == below.cells
        if 2 * record.filled <= below.filled and used[0] and below.cells[self._lead].strip():
            return False  # a title with a date beside it
        return not is_start or (self._is_full(record) and below.filled <= record.filled)

    def _completes(self, above: CsvRecord, record: CsvRecord) -> bool:
        """Return whether a record has texts only where the record below it has none."""
        pairs = zip(above.cells, record.cells, strict=False)
        return self._is_full(above) and not any(upper.strip() and lower.strip() for upper, lower in pairs)

    def _header_texts(self, records: Sequence[CsvRecord]) -> list[str]:
        """Return the texts of each column. The first column may have no name, if its values name the rows."""
        rows = [record.cells for record in records if record.filled]
        names = (join_header(rows) if rows else [])[: self._width]
        if rows and len(names) == self._width - 1:
            full = [record.cells for record in self._records if len(record.cells) == self._width]
            if len(full) > 1 and len({row[0] for row in full}) == len(full) and any(row[-1] for row in full):
                names = ["", *names]
        return names + [""] * (self._width - len(names))

    def _table_end(self, first: int) -> tuple[int, bool]:
        """Return the index after the last record of the table, and whether a row of totals follows it."""
        rows = self._without_prose([at for at in self._rows if at >= first])
        singles = sum(1 for at in rows if self._is_title(self._records[at]))
        tail = 0
        while tail < len(rows) and self._is_note(self._records[rows[-1 - tail]]):
            tail += 1
        if self._width > 2 and singles > 2 * tail + 1 and len(self._records[rows[-1]].cells) == self._width:
            tail = self._noted_tail(rows)  # sections have titles
        rows = rows[: len(rows) - tail] if tail else rows
        totals = [at for at in rows if self._is_total(self._records[at])]
        has_total = len(rows) > 2 and totals == rows[-1:]
        rows = rows[:-1] if has_total else rows
        return (rows[-1] + 1 if rows else first), has_total

    def _without_prose(self, rows: list[int]) -> list[int]:
        """Return the rows above a blank record that only sentences follow."""
        full = [at for at in rows if len(self._records[at].cells) == self._width and self._width > 1]
        below = [at for at in rows if full and at > full[-1]]
        long = sum(1 for at in below if max(map(len, self._records[at].cells)) > _SENTENCE)
        is_apart = bool(below) and any(not record.filled for record in self._records[full[-1] : below[0]])
        return rows[: -len(below)] if is_apart and 2 * long >= len(below) else rows

    def _noted_tail(self, rows: Sequence[int]) -> int:
        tail = 0
        while tail < len(rows) and _NOTE.match(self._records[rows[-1 - tail]].cells[0].strip()):
            tail += 1
        return tail

    def _is_note(self, record: CsvRecord) -> bool:
        """Return whether a record below the table is a note."""
        first = next((cell.strip() for cell in record.cells if cell.strip()), "")
        fit = self._fit(record)
        is_other = fit is not None and fit < 0.5
        if self._width < 2:
            return False
        if len(record.cells) == self._width and record.filled >= 0.6 * self._typical:
            return is_other and bool(_NOTE.match(first))
        if self._is_title(record):
            if len(record.cells) == 1:
                return self._typical >= 2
            return bool(_NOTE.match(first)) or (self._width > 2 and self._is_no_name(first))
        is_prose = len(" ".join(record.cells).split()) >= 5 and len(record.cells) < self._width
        return (fit is None or is_other) and (bool(_NOTE.match(first)) or is_prose)

    def _is_no_name(self, text: str) -> bool:
        """Return whether a text differs from the values of the first column."""
        kind = self._kinds[self._lead]
        if kind:
            return _kind(text) != ("number" if kind == "year" else kind)
        rows = (self._records[at] for at in self._rows if self._is_full(self._records[at]))
        names = [row.cells[self._lead] for row in rows if len(row.cells) > self._lead]
        return len(text) > max(map(len, names), default=0) + 5

    def _is_total(self, record: CsvRecord) -> bool:
        cells = [cell.strip() for cell in record.cells if cell.strip()]
        return len(cells) > 1 and bool(_TOTAL.fullmatch(cells[0]))

    def _pads(self, record: CsvRecord) -> bool:
        """Return whether a record has the wrong number of values only because of empty values at its end."""
        if len(record.cells) > self._width:
            return not any(cell.strip() for cell in record.cells[self._width :])
        fit = self._fit(record)
        return fit == 1 or (self._is_cut and (fit is None or fit >= 0.5))

    def _result(self, top: int, first: int, last: int, header: list[str], has_total: bool) -> CsvLayout:
        records, width = self._records, self._width
        table = [record for record in records[first:last] if record.cells]
        ragged = [record for record in table if len(record.cells) != width and record.filled]
        pads = bool(ragged) and all(map(self._pads, ragged))
        has_header = top < first
        drops = has_header and bool(header[-1]) and width > 1
        drops = drops and any(record.cells and not record.filled for record in records[first:])
        evidence = self._format_evidence()
        options: list[str] = []
        if self._comment:
            options += ["--comment", self._comment]
            evidence.append(f"lines that start with {self._comment} are comments")
        for more, reasons in (
            self._top_options(top, first), self._end_options(top, first, last, drops, has_total)
        ):  # fmt: skip
            options += more
            evidence += reasons
        if drops:
            options.append("--drop-empty")
            evidence.append("rows without values")
        if pads:
            evidence.append(f"{count_of(len(ragged), 'row')} with more or fewer empty values at the end")
        elif ragged and evidence:
            evidence.append(f"left out: {count_of(len(ragged), 'row')} with another number of values")
        if ragged and evidence:
            options += ["--ragged", "pad" if pads else "skip"]
        if evidence and not has_header:
            options += ["--header-rows", "0"]
        rows, bad_rows = self._table_rows(table, pads=pads, drops=drops)
        return CsvLayout(
            dialect=self._dialect,
            header=header,
            has_header=has_header,
            rows=rows,
            bad_rows=bad_rows,
            filter=("csv", *dialect_options(self._dialect), *options) if evidence else (),
            evidence=tuple(evidence),
        )

    def _table_rows(
        self, table: Sequence[CsvRecord], *, pads: bool, drops: bool
    ) -> tuple[list[CsvRecord], list[CsvRecord]]:
        """Return the rows, and the records with another number of values, as the filter does."""
        rows: list[CsvRecord] = []
        bad: list[CsvRecord] = []
        for record in table:
            surplus = any(cell.strip() for cell in record.cells[self._width :])
            if drops and not record.filled:
                continue
            if len(record.cells) == self._width:
                rows.append(record)
            elif pads or (drops and len(record.cells) > self._width and not surplus):
                rows.append(record._replace(cells=(record.cells + [""] * self._width)[: self._width]))
            elif record.filled:
                bad.append(record)
        return rows, bad

    def _format_evidence(self) -> list[str]:
        """Return the parts of the format that the readers do not have."""
        evidence: list[str] = []
        separator, quote, escape = self._dialect
        if len(separator) > 1:
            evidence.append(f"{len(separator)} characters separate values: {json.dumps(separator)}")
        if escape:
            evidence.append("a backslash precedes quotes in values")
        if quote in self._text and self._has_stray_quotes():
            evidence.append("quotes inside quoted values")
        plain = re.sub(f"{quote}[^{quote}]*{quote}", "", self._text) if quote else self._text
        ends = set(_RECORD_ENDS.findall(plain))
        if "\r" in ends or len(ends) > 1:
            evidence.append(f"records end with {' and '.join(sorted(map(json.dumps, ends)))}")
        return evidence

    def _has_stray_quotes(self) -> bool:
        """Return whether text follows a quoted value, or its second quote is missing."""
        separator, quote, escape = self._dialect
        if not quote or len(separator) > 1:
            return False
        reader = csv.reader(
            io.StringIO(self._text, newline=""),
            delimiter=separator,
            quotechar=quote,
            escapechar=escape or None,
            doublequote=not escape,
            strict=True,
        )
        try:
            for _ in islice(reader, len(self._all)):
                pass
        except csv.Error:
            return self._complete or reader.line_num < self._text.count("\n")
        return False

    def _top_options(self, top: int, first: int) -> tuple[list[str], list[str]]:
        """Return options for the records above the table, and for its header."""
        options: list[str] = []
        evidence: list[str] = []
        if lines := sum(1 for record in self._records[:top] if record.filled):
            line = self._records[top].line
            options += ["--skip", str(sum(1 for record in self._all if record.line < line))]
            what = "header" if first > top else "table"
            evidence.append(f"{count_of(lines, 'title line')} above the {what}")
        header = [record for record in self._records[top:first] if record.filled]
        names = self._header_texts(header)
        width = max((len(record.cells) for record in header), default=self._width)
        if width != self._width:
            options += ["--names", ",".join(name.replace(",", " ") for name in unique_names(names))]
            evidence.append(f"{count_of(width, 'name')} for {count_of(self._width, 'column')}")
        if len(header) > 1:
            options += ["--header-rows", str(len(header))]
            evidence.append(f"the header is in lines {header[0].line} to {header[-1].line}")
        return options, evidence

    def _end_options(
        self, top: int, first: int, last: int, drops: bool, has_total: bool
    ) -> tuple[list[str], list[str]]:
        """Return options for the records below the table."""
        tail = self._records[last:]
        lines = sum(1 for record in tail if record.filled)
        count = lines if drops else sum(1 for record in tail if record.cells)
        if not count:
            return [], []
        evidence = ["a row of totals below the table"] if has_total else []
        if lines > has_total:
            evidence.append(f"{count_of(lines - has_total, 'line')} of notes below the table")
        if not lines:
            evidence.append("empty rows below the table")
        names = [at for at in range(top, first) if self._records[at].filled]
        table = self._records[names[-1] + 1 if names else first : last]
        if lines and not tail[0].filled and all(record.filled for record in table):
            return ["--stop-at-blank"], evidence
        if lines and (until := self._end_pattern(tail, table)):
            return ["--until", until], evidence
        return ["--drop-last", str(count)], evidence

    def _end_pattern(self, tail: Sequence[CsvRecord], table: Sequence[CsvRecord]) -> str:
        """Return a pattern of the first value below a table that no row of the table has, or "".

        Unlike a number of records, it loses no row if a later file has fewer notes.
        """
        end = next(record.first for record in tail if record.filled)
        word = end if _TOTAL.fullmatch(end) else end.split(maxsplit=1)[0]
        pattern = f"^{re.escape(word)}" + ("$" if word == end else "")
        if any(re.search(pattern, record.first) for record in table):
            return ""
        # Not all rows of a long file are among the records.
        lines = len(re.findall(rf"(?m)^[\W_]*{re.escape(word)}", self._text))
        return pattern if lines <= sum(1 for record in tail if word in record.first) else ""


def _is_header(first: Sequence[str], rows: Sequence[Sequence[str]], is_below_title: bool) -> bool:
    """Return whether the first record of a table of texts has names.

    They are different texts that no other record has in the same column. Records that repeat several names
    are ignored: they are headers too. Below a title, the first record has names also if a few others repeat
    one of them.
    """
    names = [cell.strip() for cell in first]
    used = [cell for cell in names if cell]
    is_start = len(used) > 2 and all(names[: len(used)])
    if (2 * len(used) < len(names) and not is_start) or len({cell.casefold() for cell in used}) < len(used):
        return False
    if not all(_YEAR.fullmatch(cell) or re.search(r"[^\W\d_]", cell) for cell in used):
        return False
    if any(_kind(cell) == "date" for cell in used) or all(map(_YEAR.fullmatch, used)):
        return False
    repeated = (sum(1 for at, name in enumerate(names) if name and row[at].strip() == name) for row in rows)
    return sum(1 for count in repeated if count == 1) <= (_MAX_REPEATED if is_below_title else 0)
