"""Numbers, sizes, times and untrusted text for terminals; styled spans and wrapping.

Times are shown in the time zone of the setting ``ui.timezone``, which :func:`set_timezone` stores here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from rich.cells import cell_len, set_cell_size

from odf_engine.api import Timestamp
from odf_engine.api.text import count_of, format_time, format_zoned_time, printable
from odf_engine.errors import OdfError

# Control characters would control the terminal, and direction overrides would reorder text. C0 characters
# have pictures in Unicode (U+2400 and following); the others become a replacement character.


_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def with_spaced_thousands(text: str) -> str:
    """Return a message of the engine with thousands separators as in :func:`format_count`."""
    return _THOUSANDS.sub(" ", text)


def dataset_glyph(*, derivative: bool) -> str:
    """Return the sign of a kind of dataset, one cell."""
    return "◆" if derivative else "◇"


def format_count_short(number: int) -> str:
    """Return a number in at most five cells, such as ``12.5k``."""
    if number < 10_000:
        return str(number)
    value = float(number)
    for unit in "kMG":
        value /= 1000
        if value < 999.5:
            return f"{value:.1f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"
    return f"{value / 1000:.1f}T"


def format_duration(seconds: float) -> str:
    """Return a duration in seconds as text, such as ``3.2 s`` or ``1 m 04 s``."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"


AGE_WIDTH: Final = 10
"""The width of the longest text of :func:`format_age` in cells."""


def format_age(moment: Timestamp | str | None) -> str:
    """Return how long ago a time is, such as ``5 min ago``, or its day if it is a week ago or later than now.

    For lists, where the newest entries matter. Texts show the time (:func:`format_zoned_time`).
    """
    if not moment:
        return ""
    minutes = (Timestamp.now().ns - Timestamp.parse(str(moment)).ns) // 60_000_000_000
    if not 0 <= minutes < 7 * 24 * 60:
        return format_time(moment)[:10]
    if minutes < 60:
        return f"{minutes} min ago" if minutes else "just now"
    hours = minutes // 60
    return f"{hours} h ago" if hours < 24 else f"{count_of(hours // 24, 'day')} ago"


_WATERMARK: Final = re.compile(r"watermark → (\d{4}-\d\d-\d\d)(?: (\d\d:\d\d(?::\d\d)?)(?:\.\d+)?)?")


def format_summary(summary: str) -> str:
    """Return the summary of a block, which may have a watermark in UTC, with that time in the zone."""
    match = _WATERMARK.search(summary)
    if match is None:
        return summary
    time = f"{match[2] or '00:00'}:00"[:8]
    zoned = format_zoned_time(f"{match[1]}T{time}Z", seconds=len(match[2] or "") > 5)
    return summary[: match.start(1)] + zoned + summary[match.end() :]


def format_setting(value: object) -> str:
    """Return the value of a setting as text: lists with commas, mappings as ``key=value``."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={format_setting(text)}" for name, text in value.items())
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def fit_width(text: str, width: int) -> str:
    """Return a text in exactly ``width`` cells: truncated with an ellipsis, or padded with spaces."""
    if width <= 0:
        return ""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    return set_cell_size(text, width)


def ellipsize_middle(text: str, width: int) -> str:
    """Return a text in at most ``width`` cells, with an ellipsis in its middle if it is longer."""
    if cell_len(text) <= width:
        return text
    if width < 5:
        return fit_width(text, width)
    tail = (width - 1) // 2
    return set_cell_size(text, width - 1 - tail) + "…" + text[-tail:]


def shorten_name(name: str, width: int) -> str:
    """Return the name of a dataset in at most ``width`` cells, without its prefix if it is longer.

    Names of a workspace often have the same prefix, such as ``port-haven.air`` and ``port-haven.visits``.
    A query is truncated at its end.
    """
    if " " in name:
        return fit_width(name, min(width, cell_len(name)))
    tail = name.rpartition(".")[2]
    if cell_len(name) <= width or tail == name or cell_len(tail) >= width:
        return ellipsize_middle(name, width)
    return f"…{tail}"


def error_line(error: Exception) -> str:
    """Return an error in one line. Unexpected errors begin with their class."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) if isinstance(error, OdfError) else f"{type(error).__name__}: {error}"


def error_hint(error: Exception) -> str:
    """Return the hint of an error, to be appended to its message, or "" if it has none."""
    return f" – {error.hint}" if isinstance(error, OdfError) and error.hint else ""


def error_with_hint(error: Exception) -> str:
    """Return an error with its hint in one printable line."""
    return printable(error.format_line if isinstance(error, OdfError) else error_line(error))


Span = tuple[str, str]
"""A text and the name of its style, see ``themes.palette``."""
MAX_LINES: Final = 12


def wrapped(line: Sequence[Span], width: int, max_lines: int = MAX_LINES) -> list[list[Span]]:
    """Wrap a line at ``width`` cells, between words where possible. At most ``max_lines`` are returned.

    Of several spans, the first is never broken. Further lines are indented to the first word after it, or to
    the first word of the only span.
    """
    if sum(cell_len(text) for text, _ in line) <= width:
        return [list(line)]
    head, rest = (list(line[:1]), line[1:]) if len(line) > 1 else ([], line)
    text = "".join(part for part, _ in rest)
    blank = len(text) - len(text.lstrip())
    indent = min(sum(cell_len(part) for part, _ in head) + blank, width // 2)
    available = max(width - sum(cell_len(part) for part, _ in head), 1)
    lines: list[list[Span]] = []
    start = 0
    while start < len(text) and len(lines) < max_lines:
        remaining = text[start : start + 4 * width]  # a text may be megabytes long
        fits = max(_fitting_length(remaining, available), 1)
        cut = fits if fits == len(remaining) else remaining.rfind(" ", blank + 1, fits + 1) + 1 or fits
        if cell_len(remaining[cut:].partition(" ")[0]) > width - indent:
            cut = fits  # the next word is broken anyway
        lines.append([*head, *_slice_spans(rest, start, start + cut)])
        start, head, available, blank = start + cut, [(" " * indent, "")], width - indent, 0
    return lines


def _fitting_length(text: str, width: int) -> int:
    """Return the number of characters that fit into a width in cells."""
    used = accumulate(map(cell_len, text))
    return next((at for at, cells in enumerate(used) if cells > width), len(text))


def _slice_spans(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """Return the characters ``start`` to ``end`` of spans."""
    parts: list[Span] = []
    at = 0
    for text, style in spans:
        if part := text[max(start - at, 0) : max(end - at, 0)]:
            parts.append((part, style))
        at += len(text)
    return parts


def right(text: str, width: int) -> str:
    """Return a text padded on the left to ``width`` cells."""
    return " " * max(width - cell_len(text), 0) + text


NULL: Final = "∅"
"""The text of a null. It is compared by identity, to distinguish it from an equal string value."""


ENTER: Final = "⏎"
ASCII: Final[dict[str, str]] = {
    # Lines of boxes and graphs.
    **dict.fromkeys("─╌┄┈–—−", "-"), **dict.fromkeys("━═▬", "="),
    **dict.fromkeys("│┃╎┆┊║", "|"),
    **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋", "+"),
    # Kinds and states: different meanings have different characters.
    "◇": "o", "◆": "#", "✓": "v", "✗": "x", "·": "-", "◦": ":", "▸": ">", "▾": "v", "÷": "%", "≠": "*",
    "\N{REPLACEMENT CHARACTER}": "?",
    "∅": "_", "↯": "z", "⊘": "@", "●": "*", "○": "o", "•": "*",
    "⇣": "<", "⇡": "^", "⎇": "Y",
    # Bars of charts, and scroll bars.
    "▁": ".", "▂": "_", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%", "█": "#", "▐": "#", "▌": "*",
    "▀": '"', "░": ".", "▒": ":", "▓": "%", "■": "=",
    # Arrows and signs in texts.
    "→": ">", "←": "<", "›": ">", "‹": "<", "↑": "^", "↓": "v", "↵": "<", ENTER: "<", "…": ".", "×": "x",
    "±": "+", "≤": "<", "≥": ">", "≈": "~", "∞": "8", "µ": "u", "σ": "s", "Σ": "S", "°": "o", "√": "v",
    "§": "&",
    **dict.fromkeys("‘’‚", "'"), **dict.fromkeys("“”„«»", '"'),
    "\N{NO-BREAK SPACE}": " ", "\N{NARROW NO-BREAK SPACE}": " ", "\N{NON-BREAKING HYPHEN}": "-",
}  # fmt: skip
"""The characters that the program draws itself, in ASCII."""
OPERATION_SIGNS: Final = {"0": ("+A", "good"), "1": ("-R", "bad"), "2": ("-C", "warn"), "3": ("+C", "warn")}
"""The sign and its style of each operation of a row, by its number as text."""
OPERATION_WORDS: Final = {"0": "append", "1": "retract", "2": "correct from", "3": "correct to"}
