"""The verb that checks datasets: verify."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from odf_engine.coordinator.protocol import JobState, Request, Verify
from odf_engine.coordinator.results import VerifyResult
from odf_engine.errors import UsageError
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_tui import humane
from odf_tui.cli.checking_proofs import check_proof
from odf_tui.cli.data import chosen, exit_code, say_failure
from odf_tui.cli.follow import follow
from odf_tui.cli.output import open_workspace, options_of, print_json, say, verb
from odf_tui.verdict import checked, finding_lines, of, origin_lines, unchecked_lines


@verb("verify", example="odf verify --all", json=True)
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All datasets of the workspace.")
@click.option("-r", "--recursive", is_flag=True, help="Verify inputs too.")
@click.option("--integrity", is_flag=True, help="Only chain and files; no replay of transformations.")
@click.option("--rows", is_flag=True, help="Check rows again that were found right in the same bytes before.")
@click.option(
    "--range", "span", metavar="FROM..TO", help="Only blocks FROM to TO: sequence numbers or hashes."
)
@click.option(
    "--proof",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Check what odf sql --proof wrote: the query is asked again.",
)
def verify_verb(
    names: tuple[str, ...],
    everything: bool,
    recursive: bool,
    integrity: bool,
    rows: bool,
    span: str | None,
    proof: Path | None,
) -> None:
    """Checks chain rules, block and slice hashes, sizes, offsets, logical hashes and checkpoints."""
    workspace = open_workspace()
    if proof is not None:
        if names or everything or span:
            raise UsageError("the proof itself says of which datasets it is", hint="give --proof FILE alone")
        check_proof(workspace, proof)
    entries = chosen(workspace, names, everything, recursive)
    requests: list[tuple[Request, str]] = []
    for entry in entries:
        first, last = _range(entry, span)
        request = Verify(dataset=str(entry.id), integrity=integrity, first=first, last=last, rows=rows)
        requests.append((request, str(entry.alias)))
    jobs = follow(workspace, requests)
    results = [job.result_of(Verify) for job in jobs if job.state is JobState.done]
    reports = [result for result in results if result is not None]
    failed = [job for job in jobs if job.state is not JobState.done]
    valid = not failed and all(report.valid for report in reports)
    for job in failed:
        say_failure(job)
    if options_of().json:
        print_json({"valid": valid, "datasets": reports})
    else:
        for report in reports:
            _say_report(report)
        for line in origin_lines(reports):
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


def _say_report(report: VerifyResult) -> None:
    name, findings = report.name, report.findings
    words = ", ".join(checked(report))
    if report.valid:
        # A checkpoint with other bytes leaves nothing unchecked: later rows were replayed from the rebuilt
        # one. Neither does a proof of another dataset.
        settled = ("checkpoint-other", "proof-elsewhere", "proof-unknown")
        left = [each for each in report.unchecked if each.kind not in settled]
        limit = " as far as it could be checked" if left else ""
        sys.stdout.write(f"{name}: valid{limit} ({words})\n")
    else:
        sys.stdout.write(f"{name}: NOT VALID ({words}): {of(len(findings), 'finding')}\n")
    for line in (*finding_lines(report), *unchecked_lines(report)):
        sys.stdout.write(humane.plain(f"  {line}") + "\n")
    if findings:
        say("  what is not valid was changed or damaged after it was committed")
        say("  get it again from its publisher, or make it anew")
