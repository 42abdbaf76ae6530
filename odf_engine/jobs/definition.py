"""Validate and update the definition of a derivative dataset."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from odf_engine.jobs.base import JobRequest, JobSummary


class ValidateResult(msgspec.Struct, frozen=True):
    """Result of the validation of a query: an entry of ``odf add --check --json``.

    Attributes:
        name: name of the dataset.
        checked: False when the query cannot be validated yet, because an input has no schema.
        message: a remark for the user, if there is one.
        schema: the columns of the query's result as DDL, or None when it was not checked.
        new: names of the columns which the dataset does not have yet.
        state: effect of an :class:`Update` on the state of the query: ``none`` (it has no state), ``kept``,
            or ``lost`` (it has to be flushed or rebuilt).
        reads: size in bytes of the slices that each pull reads, if the query reads earlier rows again.
        warning: set if this size exceeds ``transform.mostReadBytes``.
    """

    name: str = ""
    checked: bool = False
    message: str | None = None
    schema: list[str] | None = None
    new: list[str] = []
    state: str = "none"
    reads: int | None = None
    warning: str | None = None


class Validate(JobRequest[ValidateResult], frozen=True, tag="validate"):
    """Validate the query of a derivative dataset; nothing is changed, and an invalid query fails the job.

    ``manifest`` is the definition as YAML. ``dataset`` is empty for a dataset that does not exist yet.
    """

    has_screen = True
    is_silent = True

    manifest: str
    dataset: str = ""

    @classmethod
    def summarize(cls, result: ValidateResult) -> JobSummary:
        text = result.warning or result.message or "query valid"
        return JobSummary(text, "good" if result.checked and not result.warning else "warn")


class AppendedEvent(msgspec.Struct, frozen=True):
    """An appended event: its title, and lines that start with ``+``, ``-`` or a space."""

    title: str = ""
    lines: list[str] = []


class UpdateResult(msgspec.Struct, frozen=True):
    """Result of an update.

    Attributes:
        name: alias of the dataset.
        status: ``updated`` or ``unchanged``.
        old_head, new_head: head before and after the job.
        blocks, records: number of appended blocks, and of the rows in them.
        state: what happened to the state of the query: ``none``, ``kept``, ``flushed`` or ``rebuilt``.
        changes: the appended events.
        added, retracted, corrected: as in :class:`odf_engine.jobs.pull.PullResult`.
        message: a remark on the new query for the user, if there is one.
    """

    name: str = ""
    status: str = ""
    old_head: str | None = None
    new_head: str | None = None
    blocks: int = 0
    records: int = 0
    state: str = ""
    changes: list[AppendedEvent] = []
    added: int | UnsetType = UNSET
    retracted: int | UnsetType = UNSET
    corrected: int | UnsetType = UNSET
    message: str | None = None


class Update(JobRequest[UpdateResult], frozen=True, tag="update"):
    """Update a derivative dataset to a definition, after the current query has processed earlier rows.

    Attributes:
        dataset: id of the dataset.
        manifest: the definition as YAML.
        state: what to do if the new query cannot continue from the state of the current one: ``flush`` emits
            the pending rows and starts with an empty state, ``rebuild`` computes the state which the new
            query would have. Empty: the job fails.
        accept_columns: add new columns of the query to the schema, even if the definition is unchanged.
        origin: URL of a third party's definition.
    """

    dataset: str
    manifest: str
    state: Literal["", "flush", "rebuild"] = ""
    accept_columns: bool = False
    origin: str | None = None

    @classmethod
    def summarize(cls, result: UpdateResult) -> JobSummary:
        return JobSummary((result.status or "done") + (f", state {result.state}" if result.state else ""))
