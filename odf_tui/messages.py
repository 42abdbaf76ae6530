"""What the parts of the workstation tell each other: small facts, never widgets or engine objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from odf_engine.coordinator.protocol import Event, Job, JournalEvent
from odf_tui.state import DatasetRow, Detail

if TYPE_CHECKING:
    from odf_tui.widgets.chunks import Opened


@dataclass
class DatasetsRead(Message):
    """The workspace was read; ``error`` says why it could not be."""

    rows: list[DatasetRow]
    error: str = ""


@dataclass
class DetailRead(Message):
    """What is known of a dataset was read; ``wanted``: to be opened, not for the card alone."""

    dataset: str
    detail: Detail | None
    error: str = ""
    wanted: bool = False


@dataclass
class RowsOpened(Message):
    """The rows of a dataset can be shown."""

    dataset: str
    opened: Opened | None
    error: str = ""


@dataclass
class LogRead(Message):
    """The journal of a job was read."""

    job: str
    events: Sequence[JournalEvent]
    error: str = ""


@dataclass
class JobsRead(Message):
    """The jobs were read, as they stand at a journal number."""

    jobs: list[Job]
    last_seq: int
    error: str = ""


@dataclass
class EventsArrived(Message):
    """A batch of events from the worker, at most four a second."""

    events: list[Event]


@dataclass
class WorkerChanged(Message):
    """The connection to the worker: ``starting``, ``connected`` or ``gone``, why, and what to do.

    ``busy`` says that a worker of another version has so many jobs.
    """

    state: str
    detail: str = ""
    hint: str = ""
    busy: int = 0


@dataclass
class Notice(Message):
    """Something to tell the person: in the line of hints, until the next one or for some seconds."""

    text: str
    style: str = "good"
