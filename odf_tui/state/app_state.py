"""AppState, which controllers share and observe, and Signal."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from textual.message import Message

from odf_engine.coordinator.protocol import Event, Job
from odf_tui.state.model import DatasetRow

EarlyReads = Future[tuple[list[DatasetRow], tuple[list[Job], int]]]
"""Datasets, jobs and the number of the last journal entry, read while Textual is being imported."""
WORKER_ENDED: Final = "the worker has ended"


@dataclass
class WorkerEvents(Message):
    """A batch of events from the worker, at most four a second."""

    events: list[Event]


@dataclass
class WorkerConnectionState(Message):
    """The connection to the worker: ``starting``, ``connected`` or ``gone``, why, and what to do.

    ``busy`` says that a worker of another version has so many jobs.
    """

    state: str
    detail: str = ""
    hint: str = ""
    busy: int = 0
