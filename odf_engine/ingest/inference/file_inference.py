"""Infers the dialect and the columns of a data file from its first rows, without Spark."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from odf_engine.base.arrow import pa, types
from odf_engine.base.progress import Reporter, count_of
from odf_engine.data.ddl import type_ddl
from odf_engine.errors import BadData
from odf_engine.ingest.inference.csv_layout import find_dialect, find_layout, sample_records

MAX_ROWS: Final = 10_000
"""Number of rows that are inspected."""
TYPES: Final = ("STRING", "BIGINT", "DOUBLE", "BOOLEAN", "DATE", "TIMESTAMP")
"""Types that a column of texts can have."""


class FileChoices(msgspec.Struct, frozen=True):
    """What the user chose; None, or a missing column, is inferred.

    Attributes:
        separator, quote, encoding, header: of CSV.
        types: type and format of columns by their position; see :class:`InferredColumn`.
        names: names of columns by their position.
        time: name of the event time column, or "".
        key: names of the columns of the primary key.
        merge: ``Append``, ``Ledger``, ``Snapshot`` or ``UpsertStream``.
    """

    separator: str | None = None
    quote: str | None = None
    encoding: str | None = None
    header: bool | None = None
    types: Mapping[int, tuple[str, str]] = {}
    names: Mapping[int, str] = {}
    time: str | None = None
    key: tuple[str, ...] | None = None
    merge: str | None = None


class InferredColumn(msgspec.Struct, frozen=True):
    """A column.

    Attributes:
        source: its name in the file, or "" if it has none.
        name: its name in the dataset.
        type: its type as DDL.
        form: how the file writes its values: a Spark pattern of a date or time, an example of a number such
            as ``1.234,5``, ``epoch s`` or ``epoch ms``, or "" for ISO 8601 and plain numbers.
        nulls: number of null values.
        null_texts: texts that mean null, such as ``n/a``.
        examples: the first different values.
        evidence: the reason for the type or format, if it is not obvious.
        invalid: texts that are not of the type.
    """

    source: str
    name: str
    type: str = "STRING"
    form: str = ""
    nulls: int = 0
    null_texts: frozenset[str] = frozenset()
    examples: tuple[str, ...] = ()
    evidence: str = ""
    invalid: frozenset[str] = frozenset()


class UnreadableRow(msgspec.Struct, frozen=True):
    """A row that cannot be read: its line in the file, from 1, and the reason."""

    line: int
    reason: str


class InferredFile(msgspec.Struct, frozen=True, kw_only=True):
    """Format and columns of a data file.

    Attributes:
        kind, compression, entry: as in :class:`FileSample`.
        sub_path: path of the list of objects in a JSON document.
        encoding: empty for UTF-8.
        separator, quote, header: of CSV.
        filters: the arguments of each ``odf filter`` that converts the file, in order, or () if the reader
            can read it. The columns and rows describe the converted file.
        paging: the arguments of ``odf/pages`` after ``--url``, or () if the list is in one file.
        evidence: why the file needs the filters, or is a list in pages.
        columns: the columns in the order of the file.
        lines: the first lines of the file.
        rows: the values of each inspected row as text, with its line; None is null.
        bad_rows: rows that cannot be read. They are not in ``rows`` if their number of values is wrong.
        complete: whether all rows were inspected.
        time: name of the event time column, or "" for none.
        key: the columns of the primary key, or ().
        merge: the merge strategy.
        reason: why this key and strategy were chosen.
        is_forecast: whether most event times are later than today.
    """

    kind: str
    compression: str = ""
    entry: str = ""
    sub_path: str = ""
    encoding: str = ""
    separator: str = ","
    quote: str = '"'
    header: bool = False
    filters: tuple[tuple[str, ...], ...] = ()
    paging: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    columns: tuple[InferredColumn, ...] = ()
    lines: Sequence[str] = ()
    rows: Sequence[tuple[int, Sequence[str | None]]] = ()
    bad_rows: Sequence[UnreadableRow] = ()
    complete: bool = True
    time: str = ""
    key: tuple[str, ...] = ()
    merge: str = "Append"
    reason: str = ""
    is_forecast: bool = False

    def column(self, name: str) -> InferredColumn | None:
        """Return the column of a name."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def is_untyped(self) -> bool:
        """Whether the values of objects are texts, also numbers."""
        return bool(self.filters) and self.filters[-1][0] == "xml"

    @property
    def is_normalized(self) -> bool:
        """Whether the reader gets CSV of RFC 4180 with a header from the last filter."""
        return bool(self.filters) and self.filters[-1][0] == "csv"


def infer_csv(
    text: str,
    choices: FileChoices,
    reporter: Reporter,
    *,
    encoding: str = "",
    damaged: Sequence[int] = (),
    complete: bool = True,
) -> InferredFile:
    """Infer a CSV file from its beginning.

    Args:
        text: complete lines.
        choices: the choices of the user.
        reporter: its cancellation ends the inference.
        encoding: the encoding of the file, or "" for UTF-8.
        damaged: lines that the encoding cannot decode.
        complete: whether the text is the complete file.

    Raises:
        BadData: the file has no rows.
    """
    dialect = find_dialect(text, choices.separator, choices.quote)
    records = sample_records(text, dialect, MAX_ROWS + _FEW, complete=complete)
    if not any(record.cells for record in records):
        raise BadData("the file has no rows", hint="choose a file with at least one row")
    reporter.raise_if_cancelled()
    layout = find_layout(text, records, dialect, complete=complete, header=choices.header)
    rows, width = layout.rows[:MAX_ROWS], len(layout.header)
    complete = complete and len(rows) == len(layout.rows)
    comma = _has_decimal_comma([row for _, row in rows[:1000]], dialect.separator)
    columns: list[InferredColumn] = []
    for at, name in enumerate(_column_names(layout.header, choices)):
        reporter.raise_if_cancelled()
        values = [row[at] for _, row in rows]
        column = _infer_text(name, values, choices.types.get(at), _Numbers(True, comma))
        columns.append(msgspec.structs.replace(column, source=layout.header[at]))
    bad = [UnreadableRow(line, "the encoding cannot decode it") for line in damaged]
    bad += [
        UnreadableRow(line, f"{count_of(len(row), 'value')} for {count_of(width, 'column')}")
        for line, row in layout.bad_rows
    ]
    bad += _invalid_values(columns, rows)
    shown = [(line, tuple(_nullable(cell, column) for cell, column in zip(row, columns, strict=True)))
             for line, row in rows]  # fmt: skip
    filter_ = layout.filter
    if filter_ and encoding:
        filter_ = (filter_[0], "--encoding", encoding, *filter_[1:])
    return InferredFile(
        kind="Csv",
        encoding=encoding,
        separator=dialect.separator,
        quote=dialect.quote,
        header=layout.has_header,
        filters=(filter_,) if filter_ else (),
        evidence=layout.evidence,
        columns=tuple(columns),
        rows=shown,
        bad_rows=sorted(bad, key=lambda bad_row: bad_row.line),
        complete=complete,
    )


def infer_rows(
    kind: str,
    rows: Sequence[tuple[int, Mapping[str, Any]]],
    choices: FileChoices,
    reporter: Reporter,
    *,
    schema: pa.Schema | None = None,
    bad_rows: Sequence[UnreadableRow] = (),
    complete: bool = True,
    is_untyped: bool = False,
) -> InferredFile:
    """Infer a file of objects, such as JSON, or of rows with types, such as Parquet.

    Args:
        kind: kind of the read step.
        rows: the rows, each with its line or number.
        choices: the choices of the user.
        reporter: its cancellation ends the inference.
        schema: the columns if the file declares them.
        bad_rows: lines that are not objects.
        complete: whether these are all rows.
        is_untyped: whether all values are texts, also numbers, as in XML.

    Raises:
        BadData: the file has no rows.
    """
    if not rows:
        raise BadData("the file has no rows", hint="choose a file with at least one row")
    rows, complete = rows[:MAX_ROWS], complete and len(rows) <= MAX_ROWS
    sources = (
        schema.names if schema is not None else list(dict.fromkeys(key for _, row in rows for key in row))
    )
    names = _column_names(sources, choices)
    columns: list[InferredColumn] = []
    for at, (source, name) in enumerate(zip(sources, names, strict=True)):
        reporter.raise_if_cancelled()
        values = [row.get(source) for _, row in rows]
        if schema is not None:
            column = _typed_column(name, values, _ddl(schema.field(source).type))
        elif all(value is None or isinstance(value, str) for value in values):
            column = _infer_text(name, values, choices.types.get(at), _Numbers(is_untyped, None))
        else:
            column = _typed_column(name, values, _type_of_values(values))
        columns.append(msgspec.structs.replace(column, source=source))
    shown = [(line, tuple(_nullable(_as_text(row.get(source)), column)
              for source, column in zip(sources, columns, strict=True))) for line, row in rows]  # fmt: skip
    bad = [*bad_rows, *_invalid_values(columns, [(line, [_as_text(row.get(path)) for path in sources])
                                                 for line, row in rows])]  # fmt: skip
    return InferredFile(
        kind=kind,
        columns=tuple(columns),
        rows=shown,
        bad_rows=sorted(bad, key=lambda bad_row: bad_row.line),
        complete=complete,
    )


def _nullable(cell: str | None, column: InferredColumn) -> str | None:
    return None if not cell or cell in column.null_texts else cell


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return (
        json.dumps(value, ensure_ascii=False, default=str)
        if isinstance(value, list | dict | bool)
        else str(value)
    )


def _invalid_values(
    columns: Sequence[InferredColumn], rows: Sequence[tuple[int, Sequence[str | None]]]
) -> Iterator[UnreadableRow]:
    """Yield the first invalid value of each row."""
    checked = [(at, column) for at, column in enumerate(columns) if column.invalid]
    for line, row in rows if checked else ():
        for at, column in checked:
            if row[at] in column.invalid:
                kind = f"{column.type} written {column.form}" if column.form else column.type
                yield UnreadableRow(line, f"{column.name}: '{row[at]}' is not a {kind}")
                break


def _column_names(header: Sequence[str], choices: FileChoices) -> list[str]:
    """Return unique names of columns that are not names of system columns."""
    names: list[str] = []
    used: set[str] = set()
    for at, text in enumerate(header):
        name = choices.names.get(at) or " ".join(text.split()) or f"c{at + 1}"
        name = f"source_{name}" if name.lower() in ("offset", "op", "system_time") else name
        base, number = name, 1
        while name.casefold() in used:
            number += 1
            name = f"{base}_{number}"
        used.add(name.casefold())
        names.append(name)
    return names


def _typed_column(name: str, values: Sequence[Any], kind: str) -> InferredColumn:
    real = [value for value in values if value is not None]
    examples = dict.fromkeys(_as_text(value) or "" for value in real[:100])
    return InferredColumn(
        name, name, kind, nulls=len(values) - len(real), examples=tuple(islice(examples, _EXAMPLES))
    )


def _type_of_values(values: Sequence[Any]) -> str:
    """Return the type of JSON values. Mixed ones are STRING: their JSON text."""
    try:
        return _ddl(pa.array(values).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return "STRING"


def _ddl(kind: pa.DataType) -> str:
    """Return the type of a column in the schema of a reader as DDL."""
    return type_ddl(_readable_type(kind)).replace("TIMESTAMP(3)", "TIMESTAMP")


def _readable_type(kind: pa.DataType) -> pa.DataType:
    if types.is_timestamp(kind):
        return pa.timestamp("ms", "UTC")
    if types.is_null(kind) or types.is_time(kind) or types.is_duration(kind):
        return pa.string()
    if types.is_list(kind):
        return pa.list_(_readable_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _readable_type(field.type)) for field in kind])
    return kind


def _has_decimal_comma(rows: Sequence[Sequence[str]], separator: str) -> bool | None:
    """Return whether numbers have a decimal comma, or None if no value shows it."""
    commas = sum(bool(_ONLY_COMMA.fullmatch(cell.strip())) for row in rows for cell in row)
    points = sum(bool(_ONLY_POINT.fullmatch(cell.strip())) for row in rows for cell in row)
    if commas == points:
        return True if separator == ";" and not points else None
    return commas > points


_NULLS: Final = frozenset({"na", "n/a", "nan", "null", "none", "nil", "\\n", "-", "--", ".", "?", "#n/a"})
BOOLEANS: Final = frozenset({"true", "false", "yes", "no", "t", "f", "y", "n"})
_IDENTIFIER: Final = re.compile(r"0\d+|\d{19,}|\+\d.*|\d+[eE]\d+", re.ASCII)
"""Texts that lose their form as numbers: with leading zeros, a plus sign, too many digits, or such as 1E5."""
INTEGER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
NUMBER_FORMS: Final[Mapping[str, re.Pattern[str]]] = {
    "": re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII),
    "1.234,5": re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?", re.ASCII),
    "1,234.5": re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?", re.ASCII),
    "1 234,5": re.compile(r"[+-]?(\d{1,3}([ \u00a0\u202f]\d{3})+|\d+)(,\d+)?", re.ASCII),
    "1 234.5": re.compile(r"[+-]?(\d{1,3}([ \u00a0\u202f]\d{3})+|\d+)(\.\d+)?", re.ASCII),
    "1'234.5": re.compile(r"[+-]?(\d{1,3}('\d{3})+|\d+)(\.\d+)?", re.ASCII),
}
"""How numbers are written, by an example."""
_ONLY_COMMA: Final = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+,\d+|\d+,(\d{1,2}|\d{4,}))", re.ASCII)
_ONLY_POINT: Final = re.compile(r"[+-]?(\d{1,3}(,\d{3})+\.\d+|\d+\.(\d{1,2}|\d{4,}))", re.ASCII)
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_CLOCK: Final = (
    r"(?:(?P<join>T| |, )(?P<hour>\d{1,2}):(?P<minute>\d\d)(?P<second>:\d\d)?(?P<fraction>[.,]\d{1,9})?"
    r"(?P<half> ?[AaPp][Mm])?(?P<zone> ?(?:Z|UTC|[+-]\d\d(?::?\d\d)?))?)?"
)
_DATES: Final = tuple(
    re.compile(each + _CLOCK)
    for each in (
        r"(?P<year>\d{4})(?P<sep>[-/.])(?P<month>\d{1,2})(?P=sep)(?P<day>\d{1,2})",
        r"(?P<first>\d{1,2})(?P<sep>[-/. ])(?P<second_>\d{1,2})(?P=sep)(?P<year>\d{4}|\d\d)",
        r"(?P<day>\d{1,2})(?P<sep>[-/. ])(?P<name>[A-Za-z]{3,9})(?P=sep)(?P<year>\d{4}|\d\d)",
        r"(?P<name>[A-Za-z]{3,9}) (?P<day>\d{1,2})(?P<sep>,? )(?P<year>\d{4})",
        r"(?P<year>(?:19|20)\d\d)(?P<month>\d\d)(?P<day>\d\d)",
    )
)
TIME_NAME: Final = re.compile(r"(?i)date|time|datum|zeit|^ts$|^day$|^tag$|when|epoch|stamp|fecha|jour|_at$")
_Layout = tuple[int, str, int, str, str, str]
"""Number of the pattern, separator, digits of the year, month name, and styles of clock and zone."""
EPOCHS: Final = (("epoch s", 946_684_800, 4_102_444_800), ("epoch ms", 946_684_800_000, 4_102_444_800_000))
_MAX_INVALID: Final = 0.1
"""Share of the values of a column that may be invalid in its type."""
_EXAMPLES: Final = 3
_FEW: Final = 300
"""Number of texts or rows that are sufficient to exclude a type or a separator."""


def _infer_text(
    name: str, values: Sequence[str | None], chosen: tuple[str, str] | None, dialect: _Numbers
) -> InferredColumn:
    """Infer the type of a column of texts.

    Args:
        name: its name.
        values: None and empty texts are null.
        chosen: type and format that the user chose; an empty format is inferred.
        dialect: how the file writes numbers.
    """
    counts = Counter(value for value in values if value)
    nulls = len(values) - counts.total()
    column = InferredColumn(name, name, nulls=nulls, examples=tuple(islice(counts, _EXAMPLES)))
    if chosen is not None and chosen[0] == "STRING":
        return msgspec.structs.replace(column, evidence="chosen")
    null_texts = frozenset(word for word in counts if word.strip().lower() in _NULLS)
    real = Counter({value: count for value, count in counts.items() if value not in null_texts})
    if not real:
        kind = "STRING" if chosen is None else chosen[0]
        evidence = "all values are null" if not counts else ""
        return msgspec.structs.replace(column, type=kind, evidence=evidence)
    best, invalid = _best_type(name, real, chosen, dialect)
    if best is None:
        code = None if chosen is not None else next(filter(_IDENTIFIER.fullmatch, real), None)
        text = f"text: {code} {_code_problem(code)}" if code else ""
        return msgspec.structs.replace(column, evidence=text)
    evidence = [best.evidence] if best.evidence else []
    if null_texts:
        evidence.append(f"null is written {', '.join(sorted(null_texts))}")
    return msgspec.structs.replace(
        column,
        type=best.type,
        form=best.form,
        nulls=nulls + sum(counts[word] for word in null_texts),
        null_texts=null_texts,
        examples=tuple(islice(real, _EXAMPLES)),
        evidence="; ".join(evidence),
        invalid=invalid,
    )


def _code_problem(code: str) -> str:
    """Return why a text that could be a number is not read as one."""
    if code.startswith("+"):
        return "has a plus sign"
    if code.startswith("0"):
        return "has a leading zero"
    return "has too many digits" if code.isdigit() else "may be a code"


class _Numbers(NamedTuple):
    """How a file writes numbers.

    Attributes:
        has_numbers: whether texts may be numbers; in JSON they are not.
        comma: whether they have a decimal comma, or None if unknown.
    """

    has_numbers: bool
    comma: bool | None


class _TextType(NamedTuple):
    """A type, the format of its values, a test for them, and the reason for the format."""

    type: str
    form: str
    accepts: Callable[[str], bool]
    evidence: str = ""


def _best_type(
    name: str, real: Counter[str], chosen: tuple[str, str] | None, dialect: _Numbers
) -> tuple[_TextType | None, frozenset[str]]:
    """Return the type that holds most values, or the chosen one, or None for STRING; and the other values."""
    total = real.total()
    max_invalid = total * _MAX_INVALID if total >= 10 else 1 if total >= 5 else 0
    few = list(islice(real, _FEW))
    best: _TextType | None = None
    best_invalid: frozenset[str] = frozenset()
    for candidate in _candidates(name, real, chosen, dialect):
        if chosen is None and 2 * sum(map(candidate.accepts, few)) < len(few):
            continue
        if chosen is not None and candidate.type != chosen[0]:
            continue
        invalid = frozenset(text for text in real if not candidate.accepts(text))
        if chosen is not None:
            return candidate, invalid
        count = sum(real[text] for text in invalid)
        if count < max_invalid or (best is None and count == max_invalid):
            best, best_invalid, max_invalid = candidate, invalid, count
            if not count:
                break
    return (
        (best, best_invalid) if chosen is None else (_TextType(*chosen, lambda text: False), frozenset(real))
    )


def _candidates(
    name: str, real: Counter[str], chosen: tuple[str, str] | None, dialect: _Numbers
) -> Iterator[_TextType]:
    """Yield the types to try. A chosen type is among them."""
    kind, form = chosen or ("", "")
    if dialect.has_numbers:
        yield _TextType("BOOLEAN", "", lambda text: text.strip().lower() in BOOLEANS)
        is_padded = any(_IDENTIFIER.fullmatch(word.strip()) for word in real)
        if form.startswith("epoch") or (not kind and not is_padded):
            yield from (epoch for epoch in _epochs(name, real) if form in ("", epoch.form))
        if kind == "BIGINT" or (not kind and not is_padded):
            compact = _date_type(real, "") if TIME_NAME.search(name) and not kind else None
            if compact is not None and compact.form == "yyyyMMdd":
                yield compact
            if not form:
                yield _TextType("BIGINT", "", lambda text: bool(INTEGER.fullmatch(text.strip())))
        if kind in ("BIGINT", "DOUBLE") or (not kind and not is_padded):
            yield from _numbers(real, form, dialect.comma, kind)
    if kind in ("", "DATE", "TIMESTAMP") and (dates := _date_type(real, form, kind)) is not None:
        yield dates


def _epochs(name: str, real: Counter[str]) -> Iterator[_TextType]:
    if TIME_NAME.search(name):
        for form, first, last in EPOCHS:
            yield _TextType(
                "TIMESTAMP",
                form,
                lambda text, first=first, last=last: (
                    bool(INTEGER.fullmatch(text)) and first <= int(text) < last
                ),
                f"numbers since 1970 in {'seconds' if form == 'epoch s' else 'milliseconds'}",
            )


def _numbers(real: Counter[str], form: str, comma: bool | None, kind: str) -> Iterator[_TextType]:
    """Yield the way to write numbers that holds most values."""
    forms = [form] if form in NUMBER_FORMS and form else list(NUMBER_FORMS)
    # Without a decisive value, a comma before three digits separates thousands.
    forms.sort(key=lambda form: form.endswith(",5") != bool(comma))

    few = list(islice(real, _FEW))

    def score(form: str) -> int:
        return sum(real[text] for text in few if NUMBER_FORMS[form].fullmatch(text.strip()))

    form = max(forms, key=score)
    pattern, mark = NUMBER_FORMS[form], "," if form.endswith(",5") else "."
    evidence = ""
    if form:
        only = _ONLY_COMMA if mark == "," else _ONLY_POINT
        decisive = sum(count for text, count in real.items() if only.fullmatch(text.strip()))
        word = "comma" if mark == "," else "point"
        evidence = f"{decisive:,} of {real.total():,} values can only have a decimal {word}"
        if not decisive:
            evidence = f"written like {form}, but no value is decisive: check it"
    kind = kind or ("DOUBLE" if not form or any(mark in text for text in real) else "BIGINT")
    yield _TextType(kind, form, lambda text: bool(pattern.fullmatch(text.strip())), evidence)


def _date_type(real: Counter[str], form: str, kind: str = "") -> _TextType | None:
    """Return the type of dates or times, or None if there are none.

    Args:
        real: the texts.
        form: their Spark pattern; empty to infer it.
        kind: the type; empty to infer it.
    """
    if form:
        return _TextType(kind or ("TIMESTAMP" if "m" in form else "DATE"), form, _accepts(form))
    few = list(islice(real, _FEW))
    if 2 * sum(any(pattern.fullmatch(text) for pattern in _DATES) for text in few) < len(few):
        return None
    layouts: Counter[_Layout] = Counter()
    parts: list[tuple[_Layout, dict[str, str], int]] = []
    for text, count in real.items():
        for number, pattern in enumerate(_DATES):
            if match := pattern.fullmatch(text):
                part = {key: value for key, value in match.groupdict().items() if value}
                layout = _layout(number, part)
                if layout is not None:
                    layouts[layout] += count
                    parts.append((layout, part, count))
                break
    if not layouts:
        return None
    (best, _), *_ = layouts.most_common(1)
    number, sep = best[0], best[1]
    if number == 0 and sep == "-" and _is_iso(best):
        clocks = any(date_parts[0][0] == 0 and "hour" in date_parts[1] for date_parts in parts)
        iso = [item for item in layouts if item[0] == 0 and item[1] == "-" and _is_iso(item)]
        kind = kind or ("TIMESTAMP" if clocks else "DATE")
        return _TextType(kind, "", lambda text: _is_iso_text(text, iso))
    chosen = [(part, count) for layout, part, count in parts if layout == best]
    best_type = _pattern_type(best, chosen, real.total())
    return best_type._replace(type=kind or best_type.type)


def _layout(number: int, part: Mapping[str, str]) -> _Layout | None:
    """Return what all values of a column have in common."""
    month = part.get("name", "").lower()
    if month and month[:3] not in _MONTHS:
        return None
    zone = part.get("zone", "")
    style = "Z" if zone.strip() in ("Z", "UTC") else "±:" if ":" in zone else "±" if zone else ""
    half = part.get("half", "")
    clock = part.get("join", "") + ("_" if half.startswith(" ") else "") + ("a" if half else "")
    long = "MMMM" if len(month) > 3 else "MMM" if month else ""
    style = (" " if zone.startswith(" ") else "") + (zone.strip() if style == "Z" else style)
    return number, part.get("sep", ""), len(part["year"]), long, clock, style


def _is_iso(layout: _Layout) -> bool:
    return layout[4] in ("", " ", "T") and layout[5] in ("", "Z", "±:")


def _is_iso_text(text: str, layouts: Sequence[_Layout]) -> bool:
    match = _DATES[0].fullmatch(text)
    if match is None or (match["fraction"] or "").startswith(","):
        return False
    part = {key: value for key, value in match.groupdict().items() if value}
    return _layout(0, part) in layouts and _iso_text(part, day_first=True) is not None


def _iso_text(part: Mapping[str, str], *, day_first: bool) -> str | None:
    """Return the parts as ISO 8601, without zone and fraction, or None if there is no such time."""
    if "first" in part:
        order = (part["second_"], part["first"]) if day_first else (part["first"], part["second_"])
    else:
        name = part.get("name", "").lower()[:3]
        order = (str(_MONTHS.index(name) + 1) if name in _MONTHS else part.get("month", "0"), part["day"])
    year = int(part["year"]) + (2000 if len(part["year"]) == 2 else 0)
    try:
        day = date(year, int(order[0]), int(order[1]))
    except ValueError:
        return None
    if "hour" not in part:
        return str(day)
    hour, minute, second = int(part["hour"]), int(part.get("minute", 0)), int(part.get("second", ":0")[1:])
    if half := part.get("half", "").strip().lower():
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half == "pm")
    return f"{day} {time(hour, minute, second)}" if hour < 24 and minute < 60 and second < 60 else None


def _pattern_type(layout: _Layout, parts: Sequence[tuple[dict[str, str], int]], total: int) -> _TextType:
    """Return the Spark pattern of a layout, with day and month in the order of the decisive values."""
    number, sep, year, month_name, clock, zone = layout
    days = sum(count for part, count in parts if int(part.get("first", 0)) > 12)
    months = sum(count for part, count in parts if int(part.get("second_", 0)) > 12)
    day_first = days > months or (days == months and "a" not in clock)
    evidence = ""
    if number == 1:
        order = "day" if day_first else "month"
        decisive = max(days, months)
        evidence = f"{decisive:,} of {total:,} values can only be {order} first"
        if days == months:
            evidence = f"no value shows the order: {order} first is assumed, check it"

    def width(key: str, letter: str) -> str:
        return letter * (2 if all(len(part[key]) == 2 for part, _ in parts if key in part) else 1)

    first, second = width("first", "d" if day_first else "M"), width("second_", "M" if day_first else "d")
    years = "y" * year
    text = {
        0: f"{years}{sep}{width('month', 'M')}{sep}{width('day', 'd')}",
        1: f"{first}{sep}{second}{sep}{years}",
        2: f"{width('day', 'd')}{sep}{month_name}{sep}{years}",
        3: f"{month_name} {width('day', 'd')}{sep}{years}",
        4: "yyyyMMdd",
    }[number]
    timed = "join" in parts[0][0]
    if timed:
        text += "'T'" if clock[0] == "T" else ", " if clock.startswith(",") else " "
        text += width("hour", "h" if "a" in clock else "H") + ":mm" + _seconds(parts)
        text += (" a" if "_" in clock else "a") if "a" in clock else ""
        style = {"": "", "Z": "X", "UTC": "z", "±:": "XXX", "±": "XX"}[zone.strip()]
        text += (" " if zone.startswith(" ") else "") + style
    return _TextType("TIMESTAMP" if timed else "DATE", text, _accepts(text), evidence)


def _seconds(parts: Sequence[tuple[dict[str, str], int]]) -> str:
    """Return the pattern of seconds and fractions, in brackets if some values have none."""
    fraction = ""
    for key, pattern in (("fraction", "S"), ("second", ":ss")):
        having = [part[key] for part, _ in parts if key in part]
        if having:
            if key == "fraction":
                pattern = having[0][0] + pattern * max(len(digits) - 1 for digits in having)
            fraction = pattern + fraction if len(having) == len(parts) else f"[{pattern}{fraction}]"
    return fraction


def time_parser(form: str) -> Callable[[str], str | None]:
    """Return a function that converts times in a Spark pattern to ISO 8601, and other texts to None."""
    pattern, day_first = pattern_regex(form), form.find("d") < form.find("M")

    def parse(text: str) -> str | None:
        match = pattern.fullmatch(text)
        if match is None:
            return None
        part = {key: value for key, value in match.groupdict().items() if value}
        part.setdefault("year", "2000")
        part.setdefault("day", "1")
        if "name" not in part:
            part.setdefault("month", "1")
        elif part["name"].lower()[:3] not in _MONTHS:
            return None
        return _iso_text(part, day_first=day_first)

    return parse


def parsed_text(value: str | None, column: InferredColumn) -> str:
    """Return the text of a value after the conversion from the format of its column."""
    if value is None:
        return "null"
    form = column.form
    if not form or value in column.invalid or form.startswith("epoch"):
        return value
    if column.type in ("BIGINT", "DOUBLE"):
        plain = re.sub("[ \u00a0\u202f]" if form[1] == " " else re.escape(form[1]), "", value)
        return plain.replace(",", ".") if form.endswith(",5") else plain
    return time_parser(form)(value) or value


def _accepts(form: str) -> Callable[[str], bool]:
    parse = time_parser(form)
    return lambda text: parse(text) is not None


_LETTERS: Final[Mapping[str, str]] = {
    "yyyy": r"(?P<year>\d{4})", "yy": r"(?P<year>\d\d)", "y": r"(?P<year>\d{1,4})",
    "MMMM": r"(?P<name>[A-Za-z]{3,9})", "MMM": r"(?P<name>[A-Za-z]{3})",
    "MM": r"(?P<month>\d\d)", "M": r"(?P<month>\d{1,2})", "dd": r"(?P<day>\d\d)", "d": r"(?P<day>\d{1,2})",
    "HH": r"(?P<hour>\d\d)", "H": r"(?P<hour>\d{1,2})", "hh": r"(?P<hour>\d\d)", "h": r"(?P<hour>\d{1,2})",
    "mm": r"(?P<minute>\d\d)", "m": r"(?P<minute>\d{1,2})", "a": r"(?P<half>[AaPp][Mm])",
    "X": r"(?:Z|[+-]\d\d(?:\d\d)?)", "XX": r"(?:Z|[+-]\d{4})", "XXX": r"(?:Z|[+-]\d\d:\d\d)",
    "z": r"[A-Z]{3,4}", "[": "(?:", "]": ")?",
}  # fmt: skip


def pattern_regex(form: str) -> re.Pattern[str]:
    """Return a regular expression for a Spark pattern; it matches nothing if the pattern is unknown."""
    regex = form.replace(":ss", "\0")
    out: list[str] = []
    for match in re.finditer(r"'([^']*)'|([A-Za-z])\2*|.", regex, re.DOTALL):
        token = match[0]
        if match[1] is not None:
            out.append(re.escape(match[1] or "'"))
        elif token == "\0":
            out.append(r"(?P<second>:\d\d)")
        elif token[0] == "S":
            out.append(rf"\d{{1,{len(token)}}}")
        elif token in _LETTERS:
            out.append(_LETTERS[token])
        elif token[0].isalpha():
            return re.compile(r"(?!)")
        else:
            out.append(re.escape(token))
    try:
        return re.compile("".join(out))
    except re.error:
        return re.compile(r"(?!)")
