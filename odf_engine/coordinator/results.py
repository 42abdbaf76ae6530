"""Results of jobs, one struct for each type of request.

They are stored as JSON in the job log, and the command line prints most of them with ``--json``: names and
order of the fields are part of that format. Fields have defaults because results of older versions lack some.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from odf_engine.checks.reports import RuleResult
from odf_engine.data.finding_kinds import ROWS_DIFFER, UNCONFIRMED, is_damage
from odf_engine.data.row_differences import Recomputed
from odf_engine.data.waiting import Waiting
from odf_engine.progress import JobWarning


def branch_title(name: str, branch: str | UnsetType = "") -> str:
    """Return the name of a dataset, with that of the branch if a job is about one."""
    return f"{name}@{branch}" if branch else name


class JobResult(msgspec.Struct, frozen=True):
    """A result that notebooks display as a table of its fields."""

    def _repr_html_(self) -> str:
        from odf_engine.html_text import fields_html  # deferred: only notebooks need it

        names = self.__struct_fields__
        values = [(name, getattr(self, name)) for name in names]
        known = [(name.replace("_", " "), value) for name, value in values if value is not UNSET]
        return fields_html(known, type(self).__name__)


class Change(msgspec.Struct, frozen=True):
    """An appended event: its title, and lines that start with ``+``, ``-`` or a space."""

    title: str = ""
    lines: list[str] = []


class PinnedBlock(msgspec.Struct, frozen=True):
    """A dataset as of a block, as :class:`odf_engine.views.as_at.PinnedVersion` describes it."""

    dataset: str = ""
    name: str = ""
    block: str = ""
    sequence_number: int = 0
    system_time: str = ""
    last_offset: int | None = None
    head: bool = False
    in_chain: bool = True


class PullResult(JobResult, frozen=True):
    """Result of a pull or an ingest: an entry of ``odf pull --json``.

    Attributes:
        name: alias of the dataset.
        status: ``updated`` or ``up-to-date``; ``failed`` only in the output of the command line.
        old_head, new_head: head before and after the job.
        blocks, records: number of appended blocks, and of the rows in them.
        added, retracted, corrected: numbers of added rows (+A), retracted rows (-R) and corrections (a -C and
            a +C row) among the appended rows; each absent for 0.
        waiting: what the results of a derivative dataset wait for; absent if it waits for nothing.
        warnings: the warnings of the job, in the output of the command line and the Python API; absent if it
            has none.
        error: always null; the command line puts a failed job's error here.
        url, label: the remote and its display name. Only pulls from a remote have these and the next two.
        bytes: number of bytes transferred.
        ahead: number of blocks which the remote does not have.
        already_ingested: number of files that the push source has already ingested; absent for 0.
        repeated: number of appended rows from files of which all rows repeat earlier rows; absent for 0.
        late: number of late rows that the transactions of a derivative dataset dropped; absent for 0.
        rejected: number of invalid rows that were left out of the appended blocks; absent for 0.
        branch: the branch that received the blocks; absent for the head.
    """

    name: str = ""
    status: str = ""
    old_head: str | None = None
    new_head: str | None = None
    blocks: int = 0
    records: int = 0
    error: None = None
    url: str | UnsetType = UNSET
    label: str | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    ahead: int | UnsetType = UNSET
    already_ingested: int | UnsetType = UNSET
    repeated: int | UnsetType = UNSET
    late: int | UnsetType = UNSET
    rejected: int | UnsetType = UNSET
    branch: str | UnsetType = UNSET
    added: int | UnsetType = UNSET
    retracted: int | UnsetType = UNSET
    corrected: int | UnsetType = UNSET
    waiting: Waiting | UnsetType = UNSET
    warnings: list[JobWarning] | UnsetType = UNSET

    @property
    def title(self) -> str:
        """The name of the dataset, with that of the branch."""
        return branch_title(self.name, self.branch)


class PushResult(JobResult, frozen=True):
    """Result of a push: an entry of ``odf push --json``.

    Attributes:
        name: alias of the dataset.
        url, label: the remote and its display name.
        status: ``updated`` or ``up-to-date``; ``failed`` only in the output of the command line.
        old_head, new_head: the remote's head before and after the job.
        blocks, objects, bytes: number of blocks, other files and bytes sent.
        branch: the branch that was pushed; absent for the head.
    """

    name: str = ""
    url: str = ""
    label: str = ""
    status: str = ""
    old_head: str | None = None
    new_head: str | None = None
    blocks: int = 0
    objects: int = 0
    bytes: int = 0
    branch: str | UnsetType = UNSET


class RemoteRelation(msgspec.Struct, frozen=True):
    """A :class:`odf_engine.workspace.remotes.RemoteStatus` with the display name of the remote."""

    url: str = ""
    relation: Literal["", "equal", "ahead", "behind", "diverged", "new"] = ""
    ours: int = 0
    theirs: int = 0
    common: str | None = None
    our_head: str | None = None
    their_head: str | None = None
    at: str = ""
    label: str = ""


class RemoteProblem(msgspec.Struct, frozen=True):
    """A remote that could not be compared, with its display name and the reason."""

    url: str = ""
    label: str = ""
    message: str = ""


class CompareResult(msgspec.Struct, frozen=True):
    """Result of a comparison: the remotes that were compared (``seen``), and those that were not."""

    name: str = ""
    seen: list[RemoteRelation] = []
    problems: list[RemoteProblem] = []


class FoundDataset(msgspec.Struct, frozen=True):
    """A dataset of a repository; fields that the repository does not provide are None or empty."""

    repository: str = ""
    name: str = ""
    url: str = ""
    id: str | None = None
    kind: str | None = None
    head: str | None = None
    blocks: int | None = None
    records: int | None = None
    size: int | None = None
    description: str = ""
    keywords: tuple[str, ...] = ()


class RepositoryProblem(msgspec.Struct, frozen=True):
    """A repository that could not be searched, and the reason."""

    repository: str = ""
    message: str = ""


class SearchResult(msgspec.Struct, frozen=True):
    """Result of a search."""

    datasets: list[FoundDataset] = []
    problems: list[RepositoryProblem] = []


class Finding(msgspec.Struct, frozen=True):
    """A violation; see :class:`odf_engine.verify.report.Finding`."""

    kind: str = ""
    block: str = ""
    message: str = ""


class EngineUse(msgspec.Struct, frozen=True):
    """An engine that replayed transactions; see :class:`odf_engine.verify.report.EngineUse`."""

    engine: str
    made_by: str | None
    version: str | None
    transactions: int
    records: int


class OriginInput(msgspec.Struct, frozen=True):
    """An input of a dataset; see :class:`odf_engine.verify.report.Input`."""

    id: str
    name: str | None
    alias: str = ""
    block: str | None = None
    offset: int | None = None


class OriginSource(msgspec.Struct, frozen=True):
    """A source of a root dataset; see :class:`odf_engine.verify.report.Source`."""

    kind: str
    place: str
    block: str
    since: str = ""
    loads: int = 0
    records: int = 0
    first: str | None = None
    last: str | None = None


class Origin(msgspec.Struct, frozen=True):
    """The origin of a dataset; see :class:`odf_engine.verify.report.DatasetOrigin`."""

    id: str
    name: str | None
    kind: str | None
    block: str | None = None
    records: int = 0
    engine: str | None = None
    version: str | None = None
    query: list[str] = []
    transactions: int = 0
    first: str | None = None
    last: str | None = None
    inputs: list[OriginInput] = []
    sources: list[OriginSource] = []
    problem: str | None = None


class VerifyResult(JobResult, frozen=True):
    """Result of a verification: an entry of ``odf verify --json``.

    Attributes:
        name: alias of the dataset.
        head: hash of the newest block, if the complete chain up to it is valid; else None.
        valid: whether there are no findings. None where an older version stored no verdict.
        blocks, slices, transforms: number of checked blocks and slices, and of replayed transactions. No
            blocks where an older version did not store them.
        findings, unchecked, engines, rows_known, proofs, proven, newer, intact: see
            :class:`odf_engine.verify.report.Report`. ``intact`` is None where an older version stored none.
        origins: the dataset and everything upstream of it.
        branch: the verified branch; absent for the head.
        recomputed: comparison with the query over the latest state of the inputs; absent without one.
        written_by: other versions of the built-in engines that wrote rows which were not recomputed; absent
            if there are none.
    """

    name: str = ""
    head: str | None = None
    valid: bool | None = None
    blocks: int | None = None
    slices: int = 0
    transforms: int = 0
    findings: list[Finding] = []
    unchecked: list[Finding] = []
    engines: list[EngineUse] = []
    rows_known: int = 0
    proofs: int = 0
    proven: int | None = None
    newer: int = 0
    intact: bool | None = None
    origins: list[Origin] = []
    branch: str | UnsetType = UNSET
    recomputed: Recomputed | UnsetType = UNSET
    written_by: list[str] | UnsetType = UNSET

    @property
    def title(self) -> str:
        """The name of the dataset, with that of the branch."""
        return branch_title(self.name, self.branch)

    @property
    def is_damaged(self) -> bool:
        """Whether findings show that files are missing, or are not the committed ones."""
        return any(is_damage(each.kind) for each in self.findings)

    @property
    def verdict(self) -> Literal["differs", "not confirmed", "invalid changelog", "invalid"]:
        """What the findings show about the dataset. There is at least one."""
        if all(each.kind == ROWS_DIFFER for each in self.findings):
            return "differs"
        if {each.kind for each in self.findings} <= UNCONFIRMED:
            return "not confirmed"
        return "invalid changelog" if self.intact else "invalid"

    def _repr_html_(self) -> str:
        from odf_engine.html_text import table_html

        findings = [(each.kind, each.block, each.message) for each in self.findings]
        table = table_html(["finding", "block", "message"], findings) if findings else ""
        return super()._repr_html_() + table


class ValidateResult(msgspec.Struct, frozen=True):
    """Result of the validation of a query: an entry of ``odf add --check --json``.

    Attributes:
        name: name of the dataset.
        checked: False when the query cannot be validated yet, because an input has no schema.
        message: a remark for the user, if there is one.
        schema: the columns of the query's result as DDL; None when it was not checked.
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


class UpdateResult(msgspec.Struct, frozen=True):
    """Result of an update.

    Attributes:
        name: alias of the dataset.
        status: ``updated`` or ``unchanged``.
        old_head, new_head: head before and after the job.
        blocks, records: number of appended blocks, and of the rows in them.
        state: what happened to the state of the query: ``none``, ``kept``, ``flushed`` or ``rebuilt``.
        changes: the appended events.
        added, retracted, corrected: as in :class:`PullResult`.
        message: a remark on the new query for the user, if there is one.
    """

    name: str = ""
    status: str = ""
    old_head: str | None = None
    new_head: str | None = None
    blocks: int = 0
    records: int = 0
    state: str = ""
    changes: list[Change] = []
    added: int | UnsetType = UNSET
    retracted: int | UnsetType = UNSET
    corrected: int | UnsetType = UNSET
    message: str | None = None


class CompactResult(JobResult, frozen=True):
    """Result of a compaction: the output of ``odf compact --json``.

    Attributes:
        name: alias of the dataset.
        status: ``compacted``, ``unchanged``, or ``planned`` for a dry run that would merge slices; ``failed``
            only in the output of the command line.
        old_head, new_head: head before and after the job.
        old_blocks, new_blocks, old_slices, new_slices: numbers in the chain before and after it.
        merged_bytes: size of the slices that were, or would be, merged.
        written_bytes: size of the new slices.
        reference: the reference to the old head.
    """

    name: str = ""
    status: str = ""
    old_head: str | None = None
    new_head: str | None = None
    old_blocks: int = 0
    new_blocks: int = 0
    old_slices: int = 0
    new_slices: int = 0
    merged_bytes: int = 0
    written_bytes: int = 0
    reference: str = ""


class StatisticsResult(msgspec.Struct, frozen=True):
    """Result of a computation of statistics: alias of the dataset, number of rows."""

    name: str = ""
    rows: int = 0


class ProjectionResult(msgspec.Struct, frozen=True):
    """Result of a projection.

    Attributes:
        name: alias of the dataset.
        key: the columns of the key.
        rows: number of rows of the projection.
        of: number of rows of the changelog.
        file: absolute path of the Parquet file.
        pin: the block which it was built from.
    """

    name: str = ""
    key: list[str] = []
    rows: int = 0
    of: int = 0
    file: str = ""
    pin: PinnedBlock | None = None


class ExportResult(msgspec.Struct, frozen=True):
    """Result of an export: alias of the dataset, number of rows, size in bytes and path of the file."""

    name: str = ""
    rows: int = 0
    size: int = 0
    path: str = ""


class ResultColumn(msgspec.Struct, frozen=True):
    """A column of a query result; its type as DDL."""

    name: str = ""
    type: str = ""


class QueryResult(msgspec.Struct, frozen=True):
    """Result of a query.

    Attributes:
        sql: the query.
        pins: the blocks that it was answered from.
        columns: the columns of its rows.
        proof: the query proof, see :mod:`odf_engine.query.query_proof`; None if none was requested.
        seconds: duration of the job.
        path: the Parquet file of the rows, relative to the workspace's folder; evicted when newer results
            need the space. Empty with ``output``.
        output: the file that the rows were written to, if one was requested.
        rows: number of rows.
        truncated: whether the query has more rows than the limit.
    """

    sql: str = ""
    pins: list[PinnedBlock] = []
    columns: list[ResultColumn] = []
    proof: dict[str, Any] | None = None
    seconds: float = 0.0
    path: str = ""
    output: str | None = None
    rows: int = 0
    truncated: bool = False


class ProofFinding(msgspec.Struct, frozen=True):
    """A reason why a query proof is invalid or cannot be checked; ``hint`` may be empty."""

    kind: str = ""
    message: str = ""
    hint: str = ""


class CheckResult(JobResult, frozen=True):
    """Result of a check of stored rows.

    Attributes:
        name: alias of the dataset.
        results: results of the rules; empty without checks or rows.
        branch: the checked branch; absent for the head.
    """

    name: str = ""
    results: list[RuleResult] = []
    branch: str | UnsetType = UNSET

    @property
    def title(self) -> str:
        """The name of the dataset, with that of the branch."""
        return branch_title(self.name, self.branch)

    @property
    def failed(self) -> list[RuleResult]:
        """The results of violated rules with ``onFailure: block``."""
        return [each for each in self.results if each.outcome == "failed"]


class CheckProofResult(msgspec.Struct, frozen=True):
    """Result of the check of a query proof: the document of ``odf verify --proof --json``.

    Attributes:
        valid: whether the same query over the same blocks returned the same rows, and the signature is valid.
        checked: False when the query was not run because blocks are missing.
        findings: the reasons why the proof is not valid.
        query: the query.
        rows, hash: number and hash of the rows according to the proof.
        signed_by: id of the dataset whose key signed the proof, if it is signed.
        seconds: duration of the job.
    """

    valid: bool = False
    checked: bool = True
    findings: list[ProofFinding] = []
    query: str = ""
    rows: int = 0
    hash: str = ""
    signed_by: str | None = None
    seconds: float = 0.0
