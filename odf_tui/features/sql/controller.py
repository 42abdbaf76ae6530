"""Runs queries as jobs, shows their results, keeps their history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from odf_engine.coordinator.protocol import Job

if TYPE_CHECKING:
    from odf_tui.widgets.row_table import LoadedWindow


@dataclass
class HistoryRead(Message):
    """The queries that were asked before, the newest last."""

    queries: list[str]


@dataclass
class QueryNoted(Message):
    """A query was remembered, or could not be."""

    nothing: None
    error: str


@dataclass
class ColumnsRead(Message):
    """The columns of a dataset."""

    name: str
    columns: list[tuple[str, str]]


@dataclass
class QuestionRead(Message):
    """The query of a job."""

    job: Job
    sql: str
    error: str = ""


@dataclass
class ResultOpened(Message):
    """The rows of a result can be shown."""

    job: Job
    opened: LoadedWindow | None
    error: str = ""


@dataclass
class Accepted(Message):
    """The worker has a query, as this job; empty when it does not take it."""

    job: str
