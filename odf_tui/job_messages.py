"""What was read of jobs, or done with their logs."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from odf_engine.coordinator.protocol import Job, Request
from odf_tui.logs import LogPage, Written


@dataclass
class LogPageRead(Message):
    """A page of a job's log was read: ``place`` is ``end``, ``start``, ``older``, ``newer`` or ``found``.

    ``line`` is the journal number of the line that was looked for.
    """

    job: str
    place: str
    page: LogPage | None
    line: int = 0
    error: str = ""


@dataclass
class LogSaved(Message):
    """A log was written to a file, with so many lines; ``there``: the file is there already."""

    path: str
    lines: int
    there: bool = False
    error: str = ""


@dataclass
class WrittenRead(Message):
    """The blocks that a job wrote were read."""

    job: Job
    blocks: list[Written]
    error: str = ""


@dataclass
class RequestRead(Message):
    """What a job was asked to do was read, to be asked again."""

    job: Job
    request: Request | None
    error: str = ""
