"""What pane 4 asks of the engine, beside the jobs themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from odf_engine.coordinator.protocol import Job, Request
from odf_tui.logs import LogPage, Written


class JobSource(Protocol):
    """Logs, requests and blocks of jobs. Everything but :meth:`stop_worker` may block."""

    def log_page(
        self, job: str, *, after: int | None = None, before: int | None = None, limit: int = 2000
    ) -> LogPage:
        """Some events of a job: those after a journal number, those before one, or its last."""
        ...

    def find_in_log(self, job: str, text: str, start: int, *, back: bool) -> int | None:
        """The journal number of the next line, after or before another, that has a text in it."""
        ...

    def save_log(self, job: Job, path: Path, *, replace: bool) -> int:
        """Writes a job's whole log to a file; returns how many lines it has."""
        ...

    def written(self, job: str) -> list[Written]:
        """The blocks that a job wrote, newest first."""
        ...

    def request(self, job: Job) -> Request:
        """What a job was asked to do, to be asked again; an error says why that cannot be."""
        ...

    async def stop_worker(self) -> None:
        """Ends the worker, of whatever version it is; its jobs are cancelled."""
        ...
