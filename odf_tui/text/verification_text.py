"""Formats reports of verifications, proofs and workspace checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from odf_engine import api
from odf_engine.api import NOT_RECOMPUTED, CheckProofResult, OriginReport, SourceReport, VerifyResult
from odf_engine.api.text import (
    count_of,
    format_bytes,
    format_count,
    format_time,
    printable,
    short_hash,
    signed_range_text,
    zone_label,
)

if TYPE_CHECKING:
    from odf_engine.api import FsckFinding, FsckReport

# A checkpoint with other bytes leaves nothing unchecked: later rows were replayed from the rebuilt one.
# Neither does a proof of another dataset.
_SETTLED: Final = ("checkpoint-other", "proof-elsewhere", "proof-unknown", "slice-equivalent")

_MAX_ROWS: Final = 20
"""Number of differing rows that a report shows."""
_VERDICTS: Final = {
    "differs": "DIFFERS from its query",
    "not confirmed": "NOT CONFIRMED",
    "invalid changelog": "intact, but its changelog is INVALID",
    "invalid": "INVALID",
}


def report_lines(report: VerifyResult) -> Iterator[str]:
    """Yield a line with the verdict on a dataset, then indented lines for findings and skipped checks."""
    yield _verdict_text(report)
    lines = (finding_lines, _difference_lines, unchecked_lines, compatibility_lines, version_lines)
    for line in (line for lines_of in lines for line in lines_of(report)):
        yield printable(f"  {line}")


def _verdict_text(report: VerifyResult) -> str:
    name, findings = report.title, report.findings
    checked = ", ".join(verification_summary(report))
    if report.valid:
        limit = " as far as it could be checked" if _is_incomplete(report) else ""
        return f"{name}: valid{limit} ({checked})"
    return f"{name}: {_VERDICTS[report.verdict]} ({checked}): {count_of(len(findings), 'finding')}"


def _is_incomplete(report: VerifyResult) -> bool:
    return any(skipped.kind not in _SETTLED for skipped in report.unchecked)


def verdict_line(reports: Sequence[VerifyResult]) -> str:
    """Return the verdict on several datasets in one line: the worst one, then the number of others.

    The line ends with the first finding, or the first reason why something was not checked.
    """
    worst = min(reports, key=lambda report: (report.valid is True, not _is_incomplete(report)))
    problem = next(finding_lines(worst), None)
    if problem is None and _is_incomplete(worst):
        problem = next(unchecked_lines(worst))
    others = Counter("valid" if report.valid else "invalid" for report in reports if report is not worst)
    more = ", ".join(f"{format_count(count)} more {verdict}" for verdict, count in others.items())
    return printable("; ".join(filter(None, (_verdict_text(worst), problem, more))))


def verdict_advice(report: VerifyResult) -> tuple[str, str]:
    """Return what the findings of a report show, and what to do."""
    match report.verdict:
        case "differs":
            return (
                "the transactions are as committed, but not what the query returns for the latest inputs",
                f"derive it again: odf pull --rederive {report.name}",
            )
        case "not confirmed":
            return (
                "no file of this dataset was changed: its rows could not be confirmed",
                f"verify its inputs first, or derive it again: odf pull --rederive {report.name}",
            )
        case "invalid changelog":
            return (
                "no file was changed: the rows were committed with invalid operations",
                "the author has to correct the source or query and publish the dataset again",
            )
        case _:
            pass
    if report.is_damaged:
        return (
            "files were changed, damaged or lost after they were committed",
            "pull the dataset again from its author, or rebuild it",
        )
    return (
        "the files match their hashes, but their contents violate the rules or the query above",
        "report it to the author of the dataset, or rebuild it",
    )


def finding_lines(report: VerifyResult) -> Iterator[str]:
    """Yield a line for each finding."""
    for finding in report.findings:
        block = f"block {finding.block}: " if finding.block else ""
        yield f"{finding.kind}: {block}{finding.message}"


def _difference_lines(report: VerifyResult) -> Iterator[str]:
    """Yield a line for each of the first rows that differ from the recomputed ones."""
    result = report.recomputed or None
    if result is None:
        return
    for row in result.differences[:_MAX_ROWS]:
        offset = "" if row.offset is None else f"offset {row.offset}: "
        values = ", ".join(
            f"{name}={'null' if value is None else value}" for name, value in row.values.items()
        )
        yield f"{row.kind}: {offset}{values}"
    if (more := result.missing + result.extra - _MAX_ROWS) > 0:
        yield f"… and {count_of(more, 'row')} more: odf verify --recompute --json {report.name}"
    if result.late and not result.is_equal:
        yield f"{count_of(result.late, 'row')} late and dropped, a possible reason: odf late {report.name}"


def unchecked_lines(report: VerifyResult) -> Iterator[str]:
    """Yield a line for each reason why something was not checked."""
    reasons = Counter((skipped.kind, skipped.message) for skipped in report.unchecked)
    for (kind, message), count in reasons.items():
        if kind == "slice-equivalent":
            yield f"equivalent, not identical: {message} ({count_of(count, 'slice')})"
            continue
        if kind == NOT_RECOMPUTED:
            yield f"not recomputed: {message}"
            continue
        what = "proof" if kind.startswith("proof-") else "transaction"
        yield f"not checked: {kind}: {message} ({count_of(count, what)})"


def compatibility_lines(report: VerifyResult) -> Iterator[str]:
    """Yield a line with the version of the engine that returned the same rows, and where it is recorded."""
    result = report.compatible or None
    if result is None:
        return
    engine = " ".join(filter(None, (result.engine, result.made_by)))
    versions = engine if result.version in (None, result.made_by) else f"{engine} → {result.version}"
    place = result.note or f"recorded in block {short_hash(result.block or '')}"
    yield f"compatible: {versions} ({place})"


def version_lines(report: VerifyResult) -> Iterator[str]:
    """Yield a line if other versions of the engine wrote the rows, whose faults a replay repeats."""
    if report.written_by:
        branch = f" --branch {report.branch}" if report.branch else ""
        yield (
            f"written by another version of the engine ({', '.join(report.written_by)}): "
            f"odf verify --recompute {report.name}{branch} compares the rows with the result of this version"
        )


def verification_summary(report: VerifyResult) -> Iterator[str]:
    """Describe what was checked."""
    if report.blocks is None:
        return
    yield count_of(report.blocks, "block")
    known = f" (rows of {format_count(report.rows_known)} verified before)" if report.rows_known else ""
    rows = f"{count_of(report.origins[0].records, 'row')} in " if report.head and report.origins else ""
    yield rows + count_of(report.slices, "slice") + known
    if report.valid and report.intact:
        yield "hashes match"
    for use in report.engines:
        engine = f"{use.engine} {use.version or ''}".rstrip()
        by = (
            f", originally {use.made_by}"
            if use.made_by and use.version and use.made_by != use.version
            else ""
        )
        amounts = f"{count_of(use.transactions, 'transaction')} with {count_of(use.records, 'row')}"
        yield f"{amounts} replayed by {engine}{by}"
    if report.transforms_known:
        yield f"{count_of(report.transforms_known, 'transaction')} verified before"
    if report.recomputed:
        rounded = f", {count_of(report.recomputed.rounded, 'row')} up to rounding"
        yield f"{count_of(report.recomputed.rows, 'row')} compared" + (
            rounded if report.recomputed.rounded else ""
        )
    if report.proven is not None:
        yield f"ownership proven {signed_range_text(report.proven, report.newer, report.actor)}"


def origin_lines(reports: Sequence[VerifyResult]) -> Iterator[str]:
    """Yield the lines of a table of the datasets upstream of derivative datasets, each dataset once."""
    table = list(replay_summaries(reports))
    if table:
        yield "lineage:"
    width = max((len(name) for name, _ in table), default=0)
    for name, lines in table:
        for index, line in enumerate(lines):
            yield f"  {name if not index else '':{width}}  {line}"


def replay_summaries(reports: Sequence[VerifyResult]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each upstream dataset once, with lines that describe its origin."""
    newest: dict[str, OriginReport] = {}
    for report in reversed(reports):  # downstream datasets first
        if len(report.origins) > 1:
            for origin in report.origins:
                old = newest.get(origin.id)
                if old is None or old.records <= origin.records:
                    newest[origin.id] = origin
    # A dataset that is missing in the workspace has only the alias by which a query reads it.
    aliases = {dependency.id: dependency.alias for origin in newest.values() for dependency in origin.inputs}
    for origin in newest.values():
        yield origin.name or aliases.get(origin.id) or origin.id, list(_describe_origin(origin))


def _describe_origin(origin: OriginReport) -> Iterator[str]:
    if origin.problem:
        yield f"{origin.problem}: {origin.id}" if origin.name is None else origin.problem
        return
    rows = f"{count_of(origin.records, 'row')}{_between(origin)}"
    if origin.kind == "Root":
        yield f"{rows}, from"
        for source in origin.sources:
            amounts = (
                f"{count_of(source.records, 'row')} in {count_of(source.loads, 'commit')}{_between(source)}"
                if source.loads
                else "no rows yet"
            )
            yield f"  {source.kind} {source.place}: {amounts}, defined in block {short_hash(source.block)}"
        return
    engine = f"{origin.engine} {origin.version or ''}".rstrip()
    yield f"{rows}, in {count_of(origin.transactions, 'transaction')} of {engine}, from"
    for dependency in origin.inputs:
        name = dependency.name or dependency.alias or dependency.id
        offset = "no rows" if dependency.offset is None else f"to offset {dependency.offset}"
        yield f"  {name}: {offset}, block {short_hash(dependency.block or '')}"


def _between(times: OriginReport | SourceReport) -> str:
    first, last = format_time(times.first), format_time(times.last)
    if not first:
        return ""
    return f" ({first} {zone_label()})" if first == last else f" ({first} to {last} {zone_label()})"


def proof_verdict(report: CheckProofResult, names: Mapping[str, str]) -> str:
    """Return the verdict on the proof of a query result.

    Args:
        names: names of datasets by their ids, for the dataset with whose key the proof is signed.
    """
    query = printable(api.one_line_summary(report.query))
    if not report.valid:
        return f"{'proof INVALID' if report.checked else 'proof not checked'}: {query}"
    key = report.signed_by
    signed = f", signed with the key of {names.get(key, key)}" if key else ""
    return f"proof valid: {count_of(report.rows, 'row')} of {query}{signed}"


def workspace_check_lines(report: FsckReport) -> Iterator[str]:
    """Yield a line for each finding and each remark, or one that states that there are no findings."""
    for finding in report.findings:
        state = "repaired" if finding.repaired else "not repaired" if report.repair else "found"
        reason = f" ({finding.left})" if finding.left else ""
        yield f"{state}  {_workspace_finding_text(finding)}{reason}"
    for remark in report.remarks:
        yield f"note  {_workspace_finding_text(remark)}"
    if not report.findings:
        yield f"clean: {count_of(report.datasets, 'dataset')}, nothing to repair"


def _workspace_finding_text(finding: FsckFinding) -> str:
    files = f", {count_of(finding.count, 'file')}" if finding.count > 1 else ""
    size = f", {format_bytes(finding.size)}" if finding.size else ""
    return printable(f"{finding.kind}  {finding.where}{files}{size}: {finding.message}")
