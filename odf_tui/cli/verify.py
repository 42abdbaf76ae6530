"""Verify the integrity of datasets, and replay their queries.

NAMES are names of datasets, or patterns with %, such as 'weather.%'.

Checks chain rules, hashes of blocks and slices, sizes, offsets, logical hashes, checkpoints and
ownership proofs. Replays the transactions of derivative datasets and compares the results. A transaction
is replayed once for each version of the engine, unless the files of an input have changed.

Checks operations as well: a -C and its +C are adjacent, and a -R or -C repeats a row of the dataset. A
dataset whose only findings are about operations is reported as intact.

A replay repeats the transactions, and with them any fault of their rules. With --recompute, the query of
a derivative dataset runs once over the latest state of its inputs instead, and the rows are compared.

After an upgrade of an engine, --compatible replays all transactions with the new version. If the rows
are equal, the version is recorded in the chain, and pulls continue with it.

With --proof, checks the proof of a query result instead, and whether a CSV or Parquet file (NAMES) has the
rows of the proof. Exits with 3 if a dataset or a proof is invalid, or the file has other rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from odf_engine.api import CheckProof, CheckProofResult, JobState, Request, Verify, VerifyResult, branch_title
from odf_engine.api.administration import read_proof
from odf_engine.api.dataset import Dataset
from odf_engine.api.text import printable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import UsageError
from odf_tui.cli.shared.job_progress import exit_code, follow, print_failures, run_request
from odf_tui.cli.shared.options import DATASET, FILE, branch_option, define_command, options_of
from odf_tui.cli.shared.output import print_note, print_result, show
from odf_tui.cli.shared.workspace import open_workspace, select_datasets
from odf_tui.text.verification_text import origin_lines, proof_verdict, report_lines, verdict_advice

ORDER = 300
MEANINGS = "validate audit prove"


def check_proof(workspace: Workspace, file: Path, result: Path | None) -> NoReturn:
    """Check a proof and exit: 0 if it is valid, 3 if it is invalid, 1 if it cannot be checked.

    Args:
        workspace: the workspace.
        file: the proof.
        result: a file to compare with the rows of the proof.
    """
    request = CheckProof(proof=read_proof(file), file="" if result is None else str(result.absolute()))
    report = run_request(workspace, request, f"proof {file.name}")
    show(report, lambda: _print_proof_report(report, workspace))
    sys.exit(0 if report.valid else 3 if report.checked else 1)


def _print_proof_report(report: CheckProofResult, workspace: Workspace) -> None:
    names = {dataset.id: dataset.name for dataset in list(workspace)}
    sys.stdout.write(proof_verdict(report, names) + "\n")
    for finding in report.findings if not report.valid else ():
        sys.stdout.write(printable(f"  {finding.message}") + "\n")
        if finding.hint:
            print_note(printable(f"  hint: {finding.hint}"))


@define_command("verify", help=__doc__, example="odf verify --all", json=True)
@click.argument("names", nargs=-1, type=DATASET)
@click.option("--all", "everything", is_flag=True, help="Verify all datasets of the workspace.")
@click.option("-r", "--recursive", is_flag=True, help="Verify inputs too.")
@click.option(
    "--integrity", is_flag=True, help="Verify chains and files only, without replay of transactions."
)
@click.option(
    "--rows", is_flag=True, help="Verify rows and transactions again that were valid in an earlier run."
)
@click.option(
    "--recompute",
    is_flag=True,
    help="Instead of a replay, compare the rows with the query over the latest state of the inputs.",
)
@click.option(
    "--compatible",
    is_flag=True,
    help="Replay with the present version of the engine, and record it if all rows are equal.",
)
@click.option(
    "--range",
    "span",
    metavar="FROM..TO",
    help="Verify only blocks FROM to TO, as sequence numbers or hashes.",
)
@click.option("--proof", type=FILE, help="Verify a proof of odf sql --proof by a replay of its query.")
@branch_option("Verify this branch of the datasets instead of their heads.")
def command(
    names: tuple[str, ...],
    everything: bool,
    recursive: bool,
    span: str | None,
    proof: Path | None,
    branch: str,
    **options: bool,
) -> None:
    workspace = open_workspace()
    if proof is not None:
        if len(names) > 1 or everything or span:
            problem = "--proof and datasets exclude each other"
            raise UsageError(
                problem, hint="use --proof FILE, or --proof FILE RESULT for a file with its rows"
            )
        check_proof(workspace, proof, Path(names[0]) if names else None)
    modes = [f"--{name}" for name in ("integrity", "recompute", "compatible") if options[name]]
    modes += ["--range"] if options["compatible"] and span else []
    if len(modes) > 1:
        raise UsageError(f"{' and '.join(modes[:2])} exclude each other", hint="use one of them")
    if branch and recursive:
        raise UsageError("--branch and --recursive exclude each other", hint="verify the inputs separately")
    datasets = [
        dataset.on_branch(branch) for dataset in select_datasets(workspace, names, everything, recursive)
    ]
    requests: list[tuple[Request, str]] = []
    for dataset in datasets:
        first, last = _parse_range(dataset, span)
        request = Verify(dataset.id, first=first, last=last, branch=branch, **options)
        requests.append((request, branch_title(dataset.name, branch)))
    jobs = follow(workspace, requests)
    results = [job.result_of(Verify) for job in jobs if job.state is JobState.done]
    reports = [result for result in results if result is not None]
    valid = all(report.valid for report in reports)
    failure = exit_code(jobs)
    print_failures(jobs)
    show({"valid": valid and not failure, "datasets": reports}, lambda: print_reports(reports))
    sys.exit(failure or (0 if valid else 3))


def print_reports(reports: Sequence[VerifyResult]) -> None:
    """Print the results of verifications."""
    for report in reports:
        if report.valid and options_of().quiet:
            continue
        sys.stdout.writelines(f"{line}\n" for line in report_lines(report))
        for note in verdict_advice(report) if report.findings else ():
            print_note(f"  {note}")
    for line in origin_lines(reports):
        print_result(printable(line))


def _parse_range(dataset: Dataset, span: str | None) -> tuple[int | None, int | None]:
    if span is None:
        return None, None
    first, dots, last = span.partition("..")
    if not dots:
        raise UsageError(
            f"--range {span}: not of the form FROM..TO", hint="FROM or TO can be omitted, as in 10.."
        )

    def number(text: str) -> int | None:
        if not text:
            return None
        if text.isdecimal() and len(text) < 8:
            return int(text)
        return dataset.stored_block_number(text)

    return number(first), number(last)
