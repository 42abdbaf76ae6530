"""What a verification found, in words. What is missing in a report of an earlier version is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from odf_tui import humane

Report = Mapping[str, Any]
"""The result of a job that verifies: a dataset's entry in ``odf verify --json``."""


def finding_lines(report: Report) -> Iterator[str]:
    """What is wrong."""
    for finding in report.get("findings", ()):
        block = f"block {finding['block']}: " if finding["block"] else ""
        yield f"{finding['kind']}: {block}{finding['message']}"


def unchecked_lines(report: Report) -> Iterator[str]:
    """What could not be checked, and why."""
    reasons = Counter((each["kind"], each["message"]) for each in report.get("unchecked", ()))
    for (kind, message), count in reasons.items():
        what = "proof" if kind.startswith("proof-") else "transaction"
        yield f"not checked: {kind}: {message} ({of(count, what)})"


def checked(report: Report) -> Iterator[str]:
    """What was looked at."""
    if "blocks" not in report:
        return
    yield of(report["blocks"], "block")
    known = (
        f", the rows of {humane.count(report['rows_known'])} as before" if report.get("rows_known") else ""
    )
    yield of(report["slices"], "slice") + known
    for use in report.get("engines", ()):
        engine = f"{use['engine']} {use['version'] or ''}".rstrip()
        made = use["made_by"]
        by = f", made by {made}" if made and use["version"] and made != use["version"] else ""
        yield (
            f"{of(use['transactions'], 'transaction')} with {of(use['records'], 'record')}"
            f" run again by {engine}{by}"
        )
    if report.get("proven") is not None:
        yield f"proven by its owner {up_to(report['proven'], report['newer'])}"


def up_to(block: int, newer: int) -> str:
    """Up to which block the holder of a dataset's key stands behind it, and how many came after."""
    if not newer:
        return f"up to block {humane.count(block)}, the newest"
    return f"up to block {humane.count(block)}, {of(newer, 'block')} {'is' if newer == 1 else 'are'} newer"


def origin_lines(reports: Sequence[Report]) -> Iterator[str]:
    """Who made what from what, each dataset once, for derivative datasets: a table for wide windows."""
    told = list(origins(reports))
    if told:
        yield "made from:"
    width = max((len(name) for name, _ in told), default=0)
    for name, lines in told:
        for at, line in enumerate(lines):
            yield f"  {name if not at else '':{width}}  {line}"


def origins(reports: Sequence[Report]) -> Iterator[tuple[str, list[str]]]:
    """Who made what from what: names of datasets, each once, and what there is to say of each."""
    told: dict[str, dict[str, Any]] = {}
    for report in reversed(reports):  # what was made last comes first
        if len(found := report.get("origins", ())) > 1:
            for origin in found:
                old = told.get(origin["id"])
                if old is None or old["records"] <= origin["records"]:
                    told[origin["id"]] = origin
    # What is not here is called as those call it that were made from it.
    aliases = {each["id"]: each.get("alias") for origin in told.values() for each in origin["inputs"]}
    for origin in told.values():
        yield origin["name"] or aliases.get(origin["id"]) or origin["id"], list(_told(origin))


def _told(origin: dict[str, Any]) -> Iterator[str]:
    if origin["problem"]:
        yield f"{origin['problem']}: {origin['id']}" if origin["name"] is None else origin["problem"]
        return
    records = f"{of(origin['records'], 'record')}{_between(origin)}"
    if origin["kind"] == "Root":
        yield f"{records}, from"
        for source in origin["sources"]:
            loads = f"{of(source['loads'], 'load')}, {of(source['records'], 'record')}{_between(source)}"
            yield f"  {source['kind']} {source['place']}: {loads}, since block {source['block'][-8:]}"
        return
    engine = f"{origin['engine']} {origin['version'] or ''}".rstrip()
    yield f"{records}, in {of(origin['transactions'], 'transaction')} of {engine}, from"
    for each in origin["inputs"]:
        name = each["name"] or each.get("alias") or each["id"]
        offset = "none of its records" if each["offset"] is None else f"to offset {each['offset']}"
        yield f"  {name}: {offset}, block {(each['block'] or '')[-8:]}"


def _between(times: dict[str, Any]) -> str:
    first, last = humane.moment(times["first"]), humane.moment(times["last"])
    if not first:
        return ""
    return f" of {first}" if first == last else f" of {first} to {last}"


def of(number: int, what: str) -> str:
    """A number of things."""
    return f"{humane.count(number)} {what}{'' if number == 1 else 's'}"
