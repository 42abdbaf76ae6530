"""A reporter that remembers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odf_engine.base.progress import Reporter


class Recorder(Reporter):
    """Remembers what it was told; ``on_phase`` is called at each phase."""

    def __init__(self) -> None:
        super().__init__()
        self.phases: list[str] = []
        self.lines: list[tuple[str, str]] = []
        self.commits: list[tuple[str, int]] = []
        self.amounts: dict[str, int] = {}
        self.on_line: Callable[[str], object] = lambda text: None
        self.on_phase: Callable[[str], None] = lambda name: None
        self.on_amount: Callable[[dict[str, int]], object] = lambda amounts: None

    def phase(self, name: str) -> None:
        self.phases.append(name)
        self.on_phase(name)

    def set_amounts(self, **amounts: Any) -> None:
        self.amounts.update({name: value for name, value in amounts.items() if value is not None})
        self.on_amount(self.amounts)

    def log(self, text: str, level: str = "info") -> None:
        self.lines.append((level, text))
        self.on_line(text)

    def committed(self, dataset: str, block: str, event: str, rows: int) -> None:
        self.commits.append((event, rows))

    @property
    def warnings(self) -> list[str]:
        return [text for level, text in self.lines if level == "warning"]
