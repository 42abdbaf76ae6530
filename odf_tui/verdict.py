"""Describes the results of verifications; what a result of an earlier version lacks is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from odf_engine.coordinator.results import Origin, OriginSource, VerifyResult
from odf_tui import humane


def finding_lines(report: VerifyResult) -> Iterator[str]:
    """Yield a line for each finding."""
    for finding in report.findings:
        block = f"block {finding.block}: " if finding.block else ""
        yield f"{finding.kind}: {block}{finding.message}"


def unchecked_lines(report: VerifyResult) -> Iterator[str]:
    """Yield a line for each reason why something was not checked."""
    reasons = Counter((each.kind, each.message) for each in report.unchecked)
    for (kind, message), count in reasons.items():
        what = "proof" if kind.startswith("proof-") else "transaction"
        yield f"not checked: {kind}: {message} ({of(count, what)})"


def checked(report: VerifyResult) -> Iterator[str]:
    """Describe what was checked."""
    if report.blocks is None:
        return
    yield of(report.blocks, "block")
    known = f", the rows of {humane.count(report.rows_known)} as before" if report.rows_known else ""
    yield of(report.slices, "slice") + known
    for use in report.engines:
        engine = f"{use.engine} {use.version or ''}".rstrip()
        by = f", made by {use.made_by}" if use.made_by and use.version and use.made_by != use.version else ""
        amounts = f"{of(use.transactions, 'transaction')} with {of(use.records, 'record')}"
        yield f"{amounts} run again by {engine}{by}"
    if report.proven is not None:
        yield f"proven by its owner {up_to(report.proven, report.newer)}"


def up_to(block: int, newer: int) -> str:
    """Describe the newest block with a valid ownership proof, and the number of blocks after it."""
    if not newer:
        return f"up to block {humane.count(block)}, the newest"
    return f"up to block {humane.count(block)}, {of(newer, 'block')} {'is' if newer == 1 else 'are'} newer"


def origin_lines(reports: Sequence[VerifyResult]) -> Iterator[str]:
    """Yield the lines of a table of the datasets upstream of derivative datasets, each dataset once."""
    table = list(origins(reports))
    if table:
        yield "made from:"
    width = max((len(name) for name, _ in table), default=0)
    for name, lines in table:
        for index, line in enumerate(lines):
            yield f"  {name if not index else '':{width}}  {line}"


def origins(reports: Sequence[VerifyResult]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each upstream dataset once, with lines that describe its origin."""
    newest: dict[str, Origin] = {}
    for report in reversed(reports):  # downstream datasets first
        if len(report.origins) > 1:
            for origin in report.origins:
                old = newest.get(origin.id)
                if old is None or old.records <= origin.records:
                    newest[origin.id] = origin
    # A dataset that is missing in the workspace has only the alias by which a query reads it.
    aliases = {each.id: each.alias for origin in newest.values() for each in origin.inputs}
    for origin in newest.values():
        yield origin.name or aliases.get(origin.id) or origin.id, list(_describe_origin(origin))


def _describe_origin(origin: Origin) -> Iterator[str]:
    if origin.problem:
        yield f"{origin.problem}: {origin.id}" if origin.name is None else origin.problem
        return
    records = f"{of(origin.records, 'record')}{_between(origin)}"
    if origin.kind == "Root":
        yield f"{records}, from"
        for source in origin.sources:
            loads = f"{of(source.loads, 'load')}, {of(source.records, 'record')}{_between(source)}"
            yield f"  {source.kind} {source.place}: {loads}, since block {source.block[-8:]}"
        return
    engine = f"{origin.engine} {origin.version or ''}".rstrip()
    yield f"{records}, in {of(origin.transactions, 'transaction')} of {engine}, from"
    for each in origin.inputs:
        name = each.name or each.alias or each.id
        offset = "none of its records" if each.offset is None else f"to offset {each.offset}"
        yield f"  {name}: {offset}, block {(each.block or '')[-8:]}"


def _between(times: Origin | OriginSource) -> str:
    first, last = humane.moment(times.first), humane.moment(times.last)
    if not first:
        return ""
    return f" of {first}" if first == last else f" of {first} to {last}"


def of(number: int, what: str) -> str:
    """Return a number of things, such as ``1 block`` or ``3 blocks``."""
    return f"{humane.count(number)} {what}{'' if number == 1 else 's'}"
