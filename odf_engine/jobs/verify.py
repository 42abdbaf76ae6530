"""Verify: check chain, slices and checkpoints, and replay or recompute the rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from odf_engine.base.html_text import table_html
from odf_engine.base.progress import Reporter, count_of
from odf_engine.data.row_differences import Recomputed
from odf_engine.derive.verify.finding_kinds import NOT_RECOMPUTED, ROWS_DIFFER, UNCONFIRMED, is_damage
from odf_engine.derive.verify.model import (
    Compatibility,
    EngineReport,
    IntegrityFinding,
    IntegrityReport,
    OriginReport,
)
from odf_engine.errors import NotFound, SourceUnavailable, Unsupported, UsageError
from odf_engine.jobs.base import JobContext, JobRequest, JobResult, JobSummary, branch_option, branch_title
from odf_engine.on_demand import (
    block_search,
    compatibility,
    derive_plan,
    engine_router,
    engine_versions,
    integrity,
    recompute,
    replay,
    verify_report,
)

if TYPE_CHECKING:
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace


class VerifyResult(JobResult, frozen=True):
    """Result of a verification: an entry of ``odf verify --json``.

    Attributes:
        name: alias of the dataset.
        head: hash of the newest block, if the complete chain up to it is valid; else None.
        valid: whether there are no findings. None where an older version stored no verdict.
        blocks, slices, transforms: number of checked blocks and slices, and of replayed transactions. No
            blocks where an older version did not store them.
        findings, unchecked, engines, rows_known, proofs, proven, actor, newer, intact: see
            :class:`odf_engine.derive.verify.model.IntegrityReport`. ``intact`` is None where an older version
            stored none.
        origins: the dataset and everything upstream of it.
        branch: the verified branch; absent for the head.
        recomputed: comparison with the query over the latest state of the inputs; absent without one.
        compatible: the version of the engine that returned the same rows; absent unless it was compared.
        written_by: other versions of the built-in engines that wrote rows which were not recomputed; absent
            if there are none.
        transforms_known: number of transactions that were not replayed, since an earlier verification has
            replayed them with the results in their blocks; absent for 0.
    """

    name: str = ""
    head: str | None = None
    valid: bool | None = None
    blocks: int | None = None
    slices: int = 0
    transforms: int = 0
    findings: list[IntegrityFinding] = []
    unchecked: list[IntegrityFinding] = []
    engines: list[EngineReport] = []
    rows_known: int = 0
    proofs: int = 0
    proven: int | None = None
    actor: str = ""
    newer: int = 0
    intact: bool | None = None
    origins: list[OriginReport] = []
    branch: str | UnsetType = UNSET
    recomputed: Recomputed | UnsetType = UNSET
    compatible: Compatibility | UnsetType = UNSET
    written_by: list[str] | UnsetType = UNSET
    transforms_known: int | UnsetType = UNSET

    @property
    def title(self) -> str:
        """The name of the dataset, followed by the branch."""
        return branch_title(self.name, self.branch)

    @property
    def is_damaged(self) -> bool:
        """Whether findings show that files are missing, or are not the committed ones."""
        return any(is_damage(finding.kind) for finding in self.findings)

    @property
    def verdict(self) -> Literal["differs", "not confirmed", "invalid changelog", "invalid"]:
        """What the findings show about the dataset. There is at least one."""
        if all(finding.kind == ROWS_DIFFER for finding in self.findings):
            return "differs"
        if {finding.kind for finding in self.findings} <= UNCONFIRMED:
            return "not confirmed"
        return "invalid changelog" if self.intact else "invalid"

    def _repr_html_(self) -> str:
        findings = [(finding.kind, finding.block, finding.message) for finding in self.findings]
        table = table_html(["finding", "block", "message"], findings) if findings else ""
        return super()._repr_html_() + table


class Verify(JobRequest[VerifyResult], frozen=True, tag="verify"):
    """Verify chain, slices and checkpoints of a dataset, and replay its transactions.

    Attributes:
        dataset: id of the dataset.
        integrity: do not replay transactions.
        first, last: sequence numbers of the blocks to verify, inclusive; by default the complete chain.
        rows: check also the rows of slices whose bytes are the same as in an earlier, valid check, and replay
            also transactions that were replayed before. The transactions in a range are always replayed.
        branch: the branch to verify, or "" for the head.
        recompute: instead of a replay, compare the latest state of a derivative dataset with its query over
            the latest state of the inputs.
        compatible: replay with the present version of the engine, and record the version in the chain if all
            transactions of a derivative dataset are equal.
    """

    repeatable = True

    dataset: str
    integrity: bool = False
    first: int | None = None
    last: int | None = None
    rows: bool = False
    branch: str = ""
    recompute: bool = False
    compatible: bool = False

    @property
    def needs_spark(self) -> bool:
        return not self.integrity

    def run(self, context: JobContext, reporter: Reporter) -> VerifyResult:
        is_partial = self.integrity or self.recompute or (self.first, self.last) != (None, None)
        if self.compatible and is_partial:
            raise UsageError(
                "a version of an engine is compatible if all transactions are replayed",
                hint="verify without a range, --integrity and --recompute",
            )
        workspace = context.workspace
        entry = workspace.resolve(self.dataset).on_branch(self.branch)
        derivative = block_search.is_derivative(entry.dataset)
        known = None if self.rows else workspace.index
        with ExitStack() as stack:
            replayed = None
            if not (self.integrity or self.recompute) and derivative:
                start = partial(context.host.spark, reporter)
                engine = stack.enter_context(
                    engine_router.engines_for(workspace, entry, start, is_unpinned=self.compatible)
                )
                replays_all = self.compatible or self.first is not None or self.last is not None
                replayed = replay.Replay(workspace, entry, engine, reporter, None if replays_all else known)
            report = integrity.verify(entry.dataset, reporter, self.first, self.last, replayed, known)
        head = None
        if report.valid and self.first is None and self.last is None:
            state = entry.dataset.state()
            head = state.head if state.blocks == report.blocks else None  # unless blocks were appended
        fields: dict[str, Any] = {
            "name": str(entry.alias),
            "head": None if head is None else str(head),
            **asdict(report),
            "origins": verify_report.dataset_origins(workspace, entry, self.last),
        }
        fields["transforms_known"] = report.transforms_known or UNSET
        if self.branch:
            fields["branch"] = self.branch
        if self.compatible and derivative:
            fields |= _record_compatibility(workspace, entry, report, reporter)
        if self.recompute and derivative:
            fields |= _recompute(entry, report, context, reporter)
        elif derivative:
            versions = engine_versions.other_versions(entry.dataset, workspace.config.engines)
            fields["written_by"] = versions or UNSET
        return VerifyResult(**fields)

    @classmethod
    def summarize(cls, result: VerifyResult) -> JobSummary:
        if result.valid is False:
            if result.verdict == "differs" and result.recomputed:
                differing = result.recomputed.missing + result.recomputed.extra
                return JobSummary(count_of(differing, "differing row"), "bad")
            intact = ", files intact" if result.intact else ""
            return JobSummary(f"{count_of(len(result.findings), 'finding')}{intact}", "bad")
        transactions, known = result.transforms, result.transforms_known or 0
        replayed = f", {count_of(transactions, 'transaction')} replayed" if transactions else ""
        if known:
            before = f"{known:,}" if transactions else count_of(known, "transaction")
            replayed += f", {before} verified before"
        if result.recomputed:
            replayed = f", {count_of(result.recomputed.rows, 'row')} recomputed"
        unchecked = [finding for finding in result.unchecked if "proof-" not in finding.kind]
        skipped = f", {len(unchecked):,} skipped" if unchecked else ""
        return JobSummary(f"valid{replayed}{skipped}")

    @classmethod
    def failure(cls, result: VerifyResult) -> str:
        if result.valid:
            return ""
        if not result.findings:
            return "invalid"
        if result.verdict == "differs" and result.recomputed:
            return f"differs from its query: {result.recomputed.text}"
        return result.verdict

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        options = {
            "--integrity": self.integrity,
            "--recompute": self.recompute,
            "--compatible": self.compatible,
            "--rows": self.rows,
        }
        arguments = [name for name, is_set in options.items() if is_set]
        return ["verify", name_of(self.dataset), *arguments, *branch_option(self.branch)]


def _record_compatibility(
    workspace: Workspace, entry: DatasetEntry, report: IntegrityReport, reporter: Reporter
) -> dict[str, Any]:
    """Record the version that replayed a dataset; return the fields of the result that change."""
    result = compatibility.record_compatibility(workspace, entry, report, reporter)
    if result.finding is not None:
        return {"valid": False, "head": None, "findings": [*report.findings, result.finding]}
    if result.compatibility is None:
        return {}
    fields: dict[str, Any] = {"compatible": result.compatibility}
    if result.compatibility.block is not None:
        fields["head"] = result.compatibility.block  # the only block after those that were verified
    return fields


def _recompute(
    entry: DatasetEntry, report: IntegrityReport, context: JobContext, reporter: Reporter
) -> dict[str, Any]:
    """Compare a dataset with its query over the latest state; return the fields of the result that change."""
    workspace = context.workspace
    start = partial(context.host.spark, reporter)
    try:
        with engine_router.engines_for(workspace, entry, start) as engine:
            session = context.session(reporter)
            recomputed = recompute.recompute_dataset(workspace, entry, engine, session, reporter)
    except (derive_plan.Diverged, NotFound, SourceUnavailable, Unsupported) as error:
        reporter.log(f"not recomputed: {error}")
        return {"unchecked": [*report.unchecked, IntegrityFinding(NOT_RECOMPUTED, "", str(error))]}
    if recomputed.is_equal:
        return {"recomputed": recomputed}
    reporter.log(recomputed.text)
    finding = IntegrityFinding(ROWS_DIFFER, recomputed.block, recomputed.text)
    return {
        "recomputed": recomputed, "valid": False, "head": None, "findings": [*report.findings, finding],
    }  # fmt: skip
