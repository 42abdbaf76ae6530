"""A reporter that keeps what is logged."""

from __future__ import annotations

from odf_engine.base.progress import Reporter


class LogLines(Reporter):
    """Keeps the lines of a log, and its warnings also separately."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.warnings: list[str] = []

    def log(self, text: str, level: str = "info") -> None:
        self.lines.append(text)
        if level == "warning":
            self.warnings.append(text)
