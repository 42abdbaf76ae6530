"""The two lines at the bottom: how things are, and what the keys do (or a notice)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from textual.timer import Timer

from odf_engine.coordinator.protocol import WorkerStatus
from odf_tui.humane import count, moment, plain, shorten, size
from odf_tui.state import DatasetRow, Health
from odf_tui.widgets.lines import LineScroll, Span

NOTICE_SECONDS: Final = 8.0


class StatusLine(LineScroll):
    """Workspace and selected dataset at the left, jobs and worker at the right.

    Only weight tells parts apart: the bar's ground is not made for coloured text.
    """

    ground = "bar"

    def __init__(self, workspace: str) -> None:
        super().__init__(id="status")
        self._workspace = workspace
        self._row: DatasetRow | None = None
        self._health: Health | None = None
        self._datasets = 0
        self._doing: list[str] = []
        self._worker: tuple[str, str] = ("worker: starting", "")

    def show(
        self, row: DatasetRow | None, health: Health | None, datasets: int, running: Sequence[str]
    ) -> None:
        """What is selected, how many datasets there are, and what the running jobs do."""
        self._row, self._health, self._datasets, self._doing = row, health, datasets, list(running)
        self.refresh()

    def show_worker(self, state: str, status: WorkerStatus | None) -> None:
        """How the worker is."""
        self._worker = worker_words(state, status)
        self.refresh()

    def count(self) -> int:
        """One."""
        return 1

    def spans(self, index: int) -> Sequence[Span]:
        """The line."""
        width = self.size.width
        words, matters = self._worker
        tail: list[Span] = []
        if len(self._doing) == 1:
            tail.append((f"▸ {shorten(plain(self._doing[0]), max(width // 2 - 8, 10))}   ", "strong"))
        elif self._doing:
            tail.append((f"▸ {len(self._doing)} jobs run   ", "strong"))
        tail += [(words, "strong" if matters else ""), (" ", "")]
        room = width - sum(cell_len(text) for text, _ in tail) - 1
        head: list[Span] = [(f" {shorten(plain(self._workspace), 24)} ", "strong")]
        room -= cell_len(head[0][0])
        for text in self._facts():
            if cell_len(text) + 3 > room:
                continue
            head.append((" · " + text, ""))
            room -= cell_len(text) + 3
        return [*head, (" " * max(room + 1, 1), ""), *tail]

    def _facts(self) -> list[str]:
        facts: list[str] = []
        row = self._row
        if row is not None and self._health is not None:
            facts.append(f"{shorten(plain(row.name), 28)} {self._health.glyph} {self._health.word}")
            facts.append(f"{count(row.records)} records")
            facts.append(size(row.size))
            if row.watermark:
                facts.append(f"watermark {moment(row.watermark)}")
        return [*facts, f"{count(self._datasets)} dataset" + ("" if self._datasets == 1 else "s")]


def worker_words(state: str, status: WorkerStatus | None) -> tuple[str, str]:
    """The worker in a few words, and whether they matter (then not empty)."""
    if state == "gone":
        return "✗ worker gone, R restarts it", "bad"
    if state == "starting" or status is None:
        return "◦ starting the worker…", ""
    if status.spark == "starting":
        return "◦ starting Spark…", ""
    if status.spark == "ready":
        return "● ready", ""
    if status.spark == "failed":
        return f"✗ Spark failed: {shorten(plain(status.spark_detail), 30)}", "bad"
    return "● worker ready", ""


class HintLine(LineScroll):
    """Keys for the focused pane; a notice takes the place for some seconds."""

    def __init__(self) -> None:
        super().__init__(id="hints")
        self._hints: Sequence[tuple[str, str]] = ()
        self._notice: Span | None = None
        self._timer: Timer | None = None

    def show(self, hints: Sequence[tuple[str, str]]) -> None:
        """Keys and words."""
        if hints != self._hints:
            self._hints = hints
            self.refresh()

    def tell(self, text: str, style: str) -> None:
        """A notice."""
        self._notice = (plain(text), style)
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(NOTICE_SECONDS, self.clear)
        self.refresh()

    def clear(self) -> None:
        """The notice was seen."""
        if self._notice is not None:
            self._notice = None
            self.refresh()

    def count(self) -> int:
        """One."""
        return 1

    def spans(self, index: int) -> Sequence[Span]:
        """The line."""
        if self._notice is not None:
            return [(" ", ""), self._notice]
        spans: list[Span] = [(" ", "")]
        room = self.size.width - 1
        for key, word in self._hints:
            cells = cell_len(key) + cell_len(word) + 3
            if cells > room:
                break
            spans += [(key, "key"), (f" {word}  ", "muted")]
            room -= cells
        return spans
