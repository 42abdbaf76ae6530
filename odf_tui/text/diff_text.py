"""Formats differences between two versions of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from odf_engine import api
from odf_engine.api import CHANGE_COLUMN, DiffColumn, Difference, pa, pc
from odf_engine.api.text import count_of, format_count, format_time, printable
from odf_tui.text.format import NULL, ellipsize_middle
from odf_tui.text.pinned_blocks import history_text
from odf_tui.text.values import column_texts

Span = tuple[str, str]

SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}
STYLES: Final = {"+": "good", "-": "bad", "~": "warn"}
ARROW: Final = " → "


def compared_versions_text(difference: Difference, *, named: bool = True) -> str:
    """Describe the compared blocks with their times, with ``named`` also the dataset."""
    old, new = difference.old, difference.new
    times = time_pair_text(old.system_time, new.system_time)
    places = [
        f"block {format_count(at.sequence_number)}{history_text(at)} ({time})"
        for at, time in zip((old, new), times, strict=True)
    ]
    if old.dataset == new.dataset:
        return f"{f'{new.name}: ' if named else ''}{places[0]}{ARROW}{places[1]}"
    return f"{old.name}, {places[0]}{ARROW}{new.name}, {places[1]}"


def time_pair_text(old: str | None, new: str | None) -> tuple[str, str]:
    """Format two times to the minute; in full if they would be equal."""
    short = format_time(old) or "none", format_time(new) or "none"
    return (old, new) if short[0] == short[1] and old and new and old != new else short


def row_counts_text(difference: Difference) -> list[Span]:
    """Return the number of changed rows and the key."""
    spans: list[Span] = []
    for word, sign in SIGNS.items():
        number: int = getattr(difference, word)
        if word == "changed" and not difference.key:
            continue
        spans += [(f"{sign} {format_count(number)} {word}", STYLES[sign] if number else "muted"), ("  ", "")]
    key = "by " + ", ".join(map(printable, difference.key)) if difference.key else "entire rows (no key)"
    return [*spans, (f"{format_count(difference.unchanged)} unchanged", ""), (f" · {key}", "muted")]


def short_settings(difference: Difference) -> str:
    """Describe the changed columns and metadata in one line, or "" if there are none."""
    signs = [f"{_sign(change.old, change.new)} {printable(change.name)}" for change in difference.schema]
    parts = [f"columns {', '.join(signs)}"] if signs else []
    return " · ".join([*parts, *(printable(setting.title) for setting in difference.settings)])


def settings_changes(difference: Difference) -> Iterator[list[Span]]:
    """Yield the changed columns and metadata, one line each."""
    if difference.schema:
        yield [("columns", "strong")]
        width = min(max(len(entry.name) for entry in difference.schema), 30)
        for column in difference.schema:
            sign = _sign(column.old, column.new)
            kind = ARROW.join(kind for kind in (column.old, column.new) if kind is not None)
            yield [(f"  {sign} {printable(column.name):<{width}}  {printable(kind)}", STYLES[sign])]
    for change in difference.settings:
        yield [(printable(change.title), "strong")]
        yield from ([(f"  {printable(line)}", STYLES.get(line[:1], ""))] for line in change.lines)


def interval_text(difference: Difference) -> str:
    """Describe blocks, rows and watermarks between the two versions."""
    old, new = difference.records
    steps = None if difference.blocks is None else abs(difference.blocks)
    parts = [] if steps is None else [count_of(steps, "block")]
    parts.append(f"changelog {format_count(old)}{ARROW}{format_count(new)} rows")
    if difference.watermarks[0] != difference.watermarks[1]:
        parts.append(f"watermark {ARROW.join(time_pair_text(*difference.watermarks))}")
    return " · ".join(parts)


def _sign(old: object, new: object) -> str:
    return "+" if old is None else "-" if new is None else "~"


class DiffRowFormatter:
    """Formats rows of a difference file. Needs Arrow.

    Args:
        columns: the compared columns to format.
        keyed: whether rows are compared by a key; else, entire rows are compared.
        table: the rows, with the columns of the file.
        longest: maximum number of characters of a text, or None for no limit.

    Attributes:
        changes: for each row ``added``, ``removed`` or ``changed``.
    """

    def __init__(
        self, columns: Sequence[DiffColumn], keyed: bool, table: pa.Table, longest: int | None = None
    ) -> None:
        self._columns, self._keyed = columns, keyed
        self.changes: list[str] = table.column(CHANGE_COLUMN).to_pylist()
        self._other = {name: mask.to_pylist() for name, mask in api.changed_cells(table, columns).items()}
        self._texts = {name: column_texts(_short(table.column(name), longest)) for name in table.column_names}

    def cells(self, row: int, *, only_changed: bool) -> Iterator[tuple[str, str | None, str | None, bool]]:
        """Yield name, old value, new value (None for null or missing), and whether they differ, by column.

        With ``only_changed``, a changed row yields its key and the changed columns; other rows the non-null
        columns.
        """
        change = self.changes[row]
        for column in self._columns:
            old, new = self._text(column.old, row), self._text(column.new, row)
            differs = column.name in self._other and self._other[column.name][row]
            if column.key:
                if not only_changed or self._keyed or old is not None:
                    yield column.name, old, new, False
            elif not only_changed or differs or (change != "changed" and (old, new) != (None, None)):
                yield column.name, old, new, differs

    def cell(self, row: int, column: int) -> str | None:
        """Return the text of a table cell: both values if they differ."""
        compared = self._columns[column]
        old, new = self._text(compared.old, row), self._text(compared.new, row)
        if compared.name in self._other and self._other[compared.name][row]:
            return f"{_cut(old, None)}{ARROW}{_cut(new, None)}"
        return old if self.changes[row] == "removed" else new

    def _text(self, name: str | None, row: int) -> str | None:
        return None if name is None else self._texts[name][row]

    def spans(self, row: int, shorten: int | None = None) -> list[Span]:
        """Return a row as one line. A changed row has only its key and the changed columns.

        ``shorten`` is the maximum width of a value that is the same on both sides.
        """
        change = self.changes[row]
        sign = SIGNS[change]
        spans: list[Span] = [(sign, STYLES[sign])]
        for name, old, new, differs in self.cells(row, only_changed=True):
            values = [old, new] if differs else [old if change == "removed" else new]
            words = ARROW.join(_cut(value, None if differs else shorten) for value in values)
            spans.append((f"  {printable(name)}={words}", STYLES["~"] if differs else ""))
        return spans


def offset_texts(difference: Difference, table: pa.Table) -> list[str]:
    """Return the offsets of the older and the newer row as texts: ``#12 → #57``, or one of them."""
    pairs = row_offsets(difference, table)
    return [ARROW.join(f"#{offset}" for offset in pair if offset is not None) for pair in pairs]


def row_offsets(difference: Difference, table: pa.Table) -> list[tuple[int | None, int | None]]:
    """Return the offsets of the older and the newer row, or None on a side without the row."""
    if difference.offsets is None:
        return [(None, None)] * table.num_rows
    old, new = (table.column(name).to_pylist() for name in difference.offsets)
    return list(zip(old, new, strict=True))


def _short(column: pa.ChunkedArray, longest: int | None) -> pa.ChunkedArray:
    """Truncate long texts before they become Python objects: a value may have megabytes."""
    if longest is None or not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    return pc.utf8_slice_codeunits(column, 0, longest)


def _cut(value: str | None, width: int | None) -> str:
    text = NULL if value is None else printable(value)
    return text if width is None else ellipsize_middle(text, width)


def text_of(spans: Sequence[Span]) -> str:
    """Return the text of spans without styles."""
    return "".join(text for text, _ in spans)
