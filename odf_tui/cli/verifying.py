"""The verb that checks datasets: verify."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click

from odf_engine.coordinator.protocol import JobState, Request, Verify
from odf_engine.errors import UsageError
from odf_engine.workspace.workspace import DatasetEntry
from odf_tui import humane
from odf_tui.cli.data import chosen, exit_code, say_failure
from odf_tui.cli.follow import follow
from odf_tui.cli.output import open_workspace, options_of, print_json, say, verb


@verb("verify", example="odf verify --all", json=True)
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All datasets of the workspace.")
@click.option("-r", "--recursive", is_flag=True, help="Verify inputs too.")
@click.option("--integrity", is_flag=True, help="Only chain and files; no replay of transformations.")
@click.option("--rows", is_flag=True, help="Check rows again that were found right in the same bytes before.")
@click.option(
    "--range", "span", metavar="FROM..TO", help="Only blocks FROM to TO: sequence numbers or hashes."
)
def verify_verb(
    names: tuple[str, ...], everything: bool, recursive: bool, integrity: bool, rows: bool, span: str | None
) -> None:
    """Checks chain rules, block and slice hashes, sizes, offsets, logical hashes and checkpoints."""
    workspace = open_workspace()
    entries = chosen(workspace, names, everything, recursive)
    requests: list[tuple[Request, str]] = []
    for entry in entries:
        first, last = _range(entry, span)
        request = Verify(dataset=str(entry.id), integrity=integrity, first=first, last=last, rows=rows)
        requests.append((request, str(entry.alias)))
    jobs = follow(workspace, requests)
    reports = [json.loads(job.result) for job in jobs if job.state is JobState.done and job.result]
    failed = [job for job in jobs if job.state is not JobState.done]
    valid = not failed and all(report["valid"] for report in reports)
    for job in failed:
        say_failure(job)
    if options_of().json:
        print_json({"valid": valid, "datasets": reports})
    else:
        for report in reports:
            _say_report(report)
        for line in _origin_lines(reports):
            sys.stdout.write(humane.plain(line) + "\n")
    sys.exit(exit_code(jobs) if failed else 0 if valid else 3)


def _range(entry: DatasetEntry, span: str | None) -> tuple[int | None, int | None]:
    if span is None:
        return None, None
    first, dots, last = span.partition("..")
    if not dots:
        raise UsageError(f"--range {span}: it reads FROM..TO", hint="either may be left out, as in 10..")

    def number(text: str) -> int | None:
        if not text:
            return None
        if text.isdecimal() and len(text) < 8:
            return int(text)
        return entry.dataset.block(entry.dataset.find_block(text)).block.sequence_number

    return number(first), number(last)


def _say_report(report: dict[str, Any]) -> None:
    name, findings, unchecked = report["name"], report["findings"], report["unchecked"]
    checked = ", ".join(_checked(report))
    if report["valid"]:
        sys.stdout.write(f"{name}: valid ({checked})\n")
    else:
        sys.stdout.write(f"{name}: NOT VALID ({checked}): {_of(len(findings), 'finding')}\n")
    for finding in findings:
        block = f"block {finding['block']}: " if finding["block"] else ""
        sys.stdout.write(humane.plain(f"  {finding['kind']}: {block}{finding['message']}") + "\n")
    reasons = Counter((each["kind"], each["message"]) for each in unchecked)
    for (kind, message), count in reasons.items():
        line = f"  not checked: {kind}: {message} ({_of(count, 'transaction')})"
        sys.stdout.write(humane.plain(line) + "\n")
    if findings:
        say("  what is not valid was changed or damaged after it was committed")
        say("  get it again from its publisher, or make it anew")


def _checked(report: dict[str, Any]) -> Iterator[str]:
    yield _of(report["blocks"], "block")
    known = f", the rows of {humane.count(report['rows_known'])} as before" if report["rows_known"] else ""
    yield _of(report["slices"], "slice") + known
    for use in report["engines"]:
        engine = f"{use['engine']} {use['version'] or ''}".rstrip()
        made = use["made_by"]
        by = f", made by {made}" if made and use["version"] and made != use["version"] else ""
        yield (
            f"{_of(use['transactions'], 'transaction')} with {_of(use['records'], 'record')}"
            f" run again by {engine}{by}"
        )


def _origin_lines(reports: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Who made what from what, each dataset once, for derivative datasets."""
    told: dict[str, dict[str, Any]] = {}
    for report in reports:
        if len(report["origins"]) > 1:
            for origin in report["origins"]:
                old = told.get(origin["id"])
                if old is None or old["records"] <= origin["records"]:
                    told[origin["id"]] = origin
    if told:
        yield "made from:"
    width = max((len(_name(origin)) for origin in told.values()), default=0)
    for origin in told.values():
        for at, line in enumerate(_told(origin)):
            yield f"  {_name(origin) if not at else '':{width}}  {line}"


def _name(origin: dict[str, Any]) -> str:
    return origin["name"] or origin["id"]


def _told(origin: dict[str, Any]) -> Iterator[str]:
    if origin["problem"]:
        yield origin["problem"]
        return
    records = f"{_of(origin['records'], 'record')}{_between(origin)}"
    if origin["kind"] == "Root":
        yield f"{records}, from"
        for source in origin["sources"]:
            loads = f"{_of(source['loads'], 'load')}, {_of(source['records'], 'record')}{_between(source)}"
            yield f"  {source['kind']} {source['place']}: {loads}, since block {source['block'][-8:]}"
        return
    engine = f"{origin['engine']} {origin['version'] or ''}".rstrip()
    yield f"{records}, in {_of(origin['transactions'], 'transaction')} of {engine}, from"
    for each in origin["inputs"]:
        name = each["name"] or each["id"]
        offset = "none of its records" if each["offset"] is None else f"to offset {each['offset']}"
        yield f"  {name}: {offset}, block {(each['block'] or '')[-8:]}"


def _between(times: dict[str, Any]) -> str:
    first, last = humane.moment(times["first"]), humane.moment(times["last"])
    if not first:
        return ""
    return f" of {first}" if first == last else f" of {first} to {last}"


def _of(number: int, what: str) -> str:
    return f"{humane.count(number)} {what}{'' if number == 1 else 's'}"
