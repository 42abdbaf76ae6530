"""What is known of the columns of a table, and how it reads: statistics in words and small drawings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from rich.cells import cell_len

from odf_engine.coordinator.results import ExportResult
from odf_engine.views.statistics import ColumnStatistics, Statistics
from odf_tui.humane import clip, count, plain, short_count, size
from odf_tui.widgets.lines import Span, right

BLOCKS: Final = "▁▂▃▄▅▆▇█"
_BAR: Final = "▆"  # with some air above, so that bars do not run into each other
_HEIGHT: Final = 4
_BIN_CELLS: Final = 2
_NAMES: Final = 10
_MOST_SHOWN: Final = 12

Lines = list[list[Span]]


class Known(msgspec.Struct, frozen=True):
    """What is known of a table's columns.

    Attributes:
        statistics: ``whole`` or only what its files tell at once.
        types: as people call them, by column.
        required: columns that cannot be null.
        comments: what the schema says of columns.
    """

    statistics: Statistics
    whole: bool
    types: Mapping[str, str] = {}
    required: Sequence[str] = ()
    comments: Mapping[str, str] = {}


def sparkline(bins: Sequence[int]) -> str:
    """A cell for each count; what is there at all can be seen."""
    most = max(bins, default=0)
    return "".join(" " if not each else BLOCKS[_level(each, most, len(BLOCKS)) - 1] for each in bins)


def _level(number: int, most: int, levels: int) -> int:
    return max(1, -(-number * levels // most))


def chart(column: ColumnStatistics, cells: int) -> str:
    """The column as a sparkline: its values by size, or its most frequent values."""
    bins = column.bins
    while len(bins) > cells:  # wider ones, as they would be if there were fewer
        bins = [sum(bins[at : at + 2]) for at in range(0, len(bins), 2)]
    if bins:
        return sparkline(bins)
    if _tells(column):
        return sparkline([each.count for each in column.frequent[:8]])
    return ""


def _tells(column: ColumnStatistics) -> bool:
    """Whether some values are more frequent than others can be."""
    return bool(column.frequent) and column.frequent[0].count > 1


def share(part: int, whole: int) -> str:
    """A part in per cent, such as ``14.3 %``; never 0 or 100 when it is not."""
    if not whole:
        return ""
    per_cent = 100 * part / whole
    if 0 < per_cent < 0.1:
        return "< 0.1 %"
    if 99.9 < per_cent < 100:
        return "> 99.9 %"
    return f"{per_cent:.1f} %" if part not in (0, whole) else f"{per_cent:.0f} %"


def distinct(column: ColumnStatistics) -> str:
    """How many different values there are; an estimate has a sign before it."""
    if column.distinct is None:
        return ""
    if column.exact:
        return count(column.distinct)
    digits = max(len(str(column.distinct)) - 2, 0)  # more would look as if it were known
    return f"≈ {count(round(column.distinct, -digits))}"


def short_distinct(column: ColumnStatistics) -> str:
    """The same in at most six cells."""
    if column.distinct is None:
        return ""
    return ("" if column.exact else "≈") + short_count(column.distinct)


def value(text: str | None, column_type: str = "") -> str:
    """A value as the table shows it."""
    if text is None:
        return ""
    if column_type.startswith("timestamp"):
        return plain(text.replace("T", " ").removesuffix("Z").removesuffix(" 00:00:00"))
    return plain(text) or "an empty text"


def number(found: float) -> str:
    """A mean, with as many digits as tell something."""
    if found and not 1e-4 <= abs(found) < 1e15:
        return f"{found:.4g}"
    digits = max(6 - len(str(int(abs(found)))), 0)
    text = f"{found:,.{digits}f}".replace(",", " ")
    return text.rstrip("0").rstrip(".") if digits else text


# --- A column in full --------------------------------------------------------------------------------


def column_lines(column: ColumnStatistics, known: Known, width: int) -> Lines:
    """All that is known of a column."""
    rows = known.statistics.rows
    kind = known.types.get(column.name, column.type)
    lines: Lines = [[(f" {plain(column.name)}", "name"), (f"  {kind}", "muted")]]
    if column.name in known.required:
        lines[0].append(("  never null", "muted"))
    if comment := known.comments.get(column.name):
        lines.append([(f" {plain(comment)}", "")])
    lines.append([])
    facts = _facts(column, rows)
    if not known.whole and not column.distinct:
        facts.append(("distinct", "…"))
    lines += [[(f" {name:<{_NAMES}} ", "muted"), (text, "")] for name, text in facts]
    if column.bins:
        lines += [[], *_histogram(column, width)]
    if column.frequent:
        lines += [[], *_frequent(column, rows, width)]
    return lines


def _facts(column: ColumnStatistics, rows: int) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if column.nulls is not None:
        part = f" · {share(column.nulls, rows)}" if column.nulls else ""
        facts.append(("nulls", f"{count(column.nulls) if column.nulls else 'none'}{part}"))
    if column.not_numbers:
        facts.append(("NaN", f"{count(column.not_numbers)} · {share(column.not_numbers, rows)}"))
    if column.distinct is not None:
        facts.append(("distinct", distinct(column)))
    if column.least is not None:
        facts.append(("least", value(column.least, column.type)))
        facts.append(("greatest", value(column.greatest, column.type)))
    if column.mean is not None:
        facts.append(("mean", number(column.mean)))
    if column.shortest is not None and column.longest is not None:
        unit = "items" if column.type.startswith(("list", "large_list")) else "characters"
        unit = "bytes" if "binary" in column.type else unit
        ends = count(column.longest)
        if column.shortest != column.longest:
            ends = f"{count(column.shortest)} to {ends}"
        facts.append(("length", f"{ends} {unit if column.longest != 1 else unit[:-1]}"))
    return facts


def _histogram(column: ColumnStatistics, width: int) -> Lines:
    """Values by size: a column of blocks for each bin, the ends below."""
    bins, most = column.bins, max(column.bins)
    cells = _BIN_CELLS if len(bins) * _BIN_CELLS + 2 <= width else 1
    levels = [_level(each, most, _HEIGHT * len(BLOCKS)) if each else 0 for each in bins]
    lines: Lines = []
    for row in range(_HEIGHT - 1, -1, -1):
        parts = [min(max(level - row * len(BLOCKS), 0), len(BLOCKS)) for level in levels]
        drawn = "".join((" " if not part else BLOCKS[part - 1]) * cells for part in parts)
        lines.append([(f" {drawn.rstrip()}", "busy")])
    least, greatest = value(column.least, column.type), value(column.greatest, column.type)
    across = len(bins) * cells
    if cell_len(least) + cell_len(greatest) + 3 <= max(across, width - 2):
        lines.append(
            [(f" {least}{right(greatest, max(across - cell_len(least), cell_len(greatest) + 3))}", "muted")]
        )
    lines.append([(f" the highest: {count(most)} rows", "muted")])
    return lines


def _frequent(column: ColumnStatistics, rows: int, width: int) -> Lines:
    """The most frequent values, with bars."""
    if not _tells(column):
        return (
            [[(" every value is there once", "muted")]] if column.exact and (column.distinct or 0) > 1 else []
        )
    title = "most frequent" if column.exact else f"most frequent, each up to {count(column.lost)} more"
    shown = column.frequent[:_MOST_SHOWN]
    numbers = max(len(count(each.count)) for each in shown)
    shares = max(len(share(each.count, rows)) for each in shown)
    texts = [value(each.value, column.type) for each in shown]
    bar = max(min(16, (width - numbers - shares - 5) // 3), 4)
    name = max(min(max(map(cell_len, texts)), width - numbers - shares - bar - 5), 6)
    lines: Lines = [[(f" {title}", "title")]]
    for text, each in zip(texts, shown, strict=True):
        drawn = _BAR * _level(each.count, shown[0].count, bar)
        lines.append(
            [
                (f" {clip(text, name)} ", ""),
                (right(count(each.count), numbers) + " ", "strong"),
                (right(share(each.count, rows), shares) + " ", "muted"),
                (drawn, "busy"),
            ]
        )
    return lines


# --- Jobs --------------------------------------------------------------------------------------------


def written_words(result: ExportResult) -> str:
    """Describe an exported file, such as ``7 200 rows in air.csv, 412.0 kB``."""
    rows = f"{count(result.rows)} {'row' if result.rows == 1 else 'rows'}"
    return f"{rows} in {plain(result.path.rpartition('/')[2])}, {size(result.size)}"
