"""What stands beside the text of a query: words that can come next, why it is wrong, how it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from textual.geometry import Offset

from odf_engine.coordinator.protocol import Failure, Job, JobState, Query
from odf_engine.coordinator.results import PinnedBlock, QueryResult
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.humane import clip, count, elapsed, plain, shorten
from odf_tui.jobwords import amounts, seconds_of
from odf_tui.sql_words import Proposals
from odf_tui.state import known_result
from odf_tui.widgets.lines import LineScroll, LineView, Span, wrapped

_SHOWN: Final = 8
_WIDEST: Final = 44
_ABOUT: Final = 16
_ERROR_LINES: Final = 6
_PLACE: Final = re.compile(r"line (\d+), column (\d+)")


class WordList(LineView):
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
            min(max(cell_len(plain(word.text)) for word in found.words), _WIDEST),
            min(max(len(plain(word.about)) for word in found.words), _ABOUT),
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
            (f" {clip(shorten(plain(word.text), name), name)}  ", ""),
            (clip(plain(word.about), about) + " ", "muted"),
        ]


class SqlLine(LineScroll):
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
            said[-1] = (clip(text, max(cell_len(text) - over, 0)), kind)
        rest = max(self.size.width - sum(cell_len(text) for text, _ in said) - 8, 0)
        middle = [(" ", ""), *said, (" ", "")] if said else []
        return [("─", "rule"), (" SQL ", "head"), *middle, ("─" * (rest + (2 if not middle else 0)), "rule")]


class Wrong(LineScroll):
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
            lines = [[(" ✗ ", "bad"), (plain(failure.message), "bad")]]
            lines += [[(f"   {plain(line)}", "strong")] for line in failure.excerpt]
            lines += [[("   hint ", "muted"), (plain(failure.hint), "")]] if failure.hint else []
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


def pin_words(pins: Sequence[PinnedBlock], most: int | None = None) -> str:
    """Describe the blocks that a query was answered from, in the notation of a query: ``from name@hash, …``.

    Of more than ``most`` blocks, the number of the others is shown.
    """
    names = [f"{each.name}@{each.block[-8:]}{'' if each.head else ' (older)'}" for each in pins]
    more = f" +{len(names) - most}" if most is not None and len(names) > most else ""
    return plain(f"from {', '.join(names[:most])}{more}") if names else ""


def state_spans(job: Job) -> list[tuple[str, str]]:
    """A job of a query in a few words, for the line below it."""
    took = seconds_of(job, Timestamp.now())
    time = elapsed(took) if took is not None else ""
    match job.state:
        case JobState.queued:
            return [("waits for its turn", "muted")]
        case JobState.running:
            parts = [f"running {int(took or 0)} s", amounts(job)]
            return [(" · ".join(part for part in parts if part), "busy")]
        case JobState.done:
            result = known_result(job.result, Query) or QueryResult()
            first = "the first " if result.truncated else ""
            words = f"{first}{count(result.rows)} {'row' if result.rows == 1 else 'rows'} · {time}"
            pins = pin_words(result.pins)
            return [(words, "good"), (f" · {pins}", "muted")] if pins else [(words, "good")]
        case JobState.failed:
            place = _PLACE.search((job.error.where or "") if job.error else "")
            return [("not answered" + (f": line {place[1]}, column {place[2]}" if place else ""), "bad")]
    return [(f"{job.state.value} after {time}" if time else job.state.value, "warn")]
