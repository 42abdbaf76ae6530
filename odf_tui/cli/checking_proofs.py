"""Checking what proves the answer of a query: the part of verify about files of ``odf sql --proof``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NoReturn

from odf_engine.coordinator.protocol import CheckProof, JobState
from odf_engine.coordinator.results import CheckProofResult
from odf_engine.errors import NotFound, UsageError
from odf_engine.sql.query_text import one_line_summary
from odf_engine.workspace.workspace import Workspace
from odf_tui import humane
from odf_tui.cli.data import exit_code, say_failure
from odf_tui.cli.follow import follow
from odf_tui.cli.output import options_of, print_json, say

_LONGEST: Final = 4 << 20


def check_proof(workspace: Workspace, file: Path) -> NoReturn:
    """Checks a proof and ends: 0 when it is right, 3 when it is wrong, 1 when that cannot be seen here."""
    (job,) = follow(workspace, [(CheckProof(proof=_read(file)), f"proof {file.name}")])
    report = job.result_of(CheckProof)
    if job.state is not JobState.done or report is None:
        say_failure(job)
        sys.exit(exit_code([job]))
    if options_of().json:
        print_json(report)
    else:
        _say(report, workspace)
    sys.exit(0 if report.valid else 3 if report.checked else 1)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as source:
            data = source.read(_LONGEST + 1)
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > _LONGEST:
        raise UsageError(f"{file} is too long for a proof")
    return data.decode("utf-8", "replace")


def _say(report: CheckProofResult, workspace: Workspace) -> None:
    out = sys.stdout.write
    query = humane.plain(one_line_summary(report.query))
    if report.valid:
        rows = report.rows
        names = {str(entry.id): str(entry.alias) for entry in workspace.datasets()}
        key = report.signed_by
        signed = f", signed with the key of {names.get(key, key)}" if key else ""
        out(f"right: {humane.count(rows)} {'row' if rows == 1 else 'rows'} of {query}{signed}\n")
        return
    out(f"{'WRONG' if report.checked else 'cannot be checked here'}: {query}\n")
    for each in report.findings:
        out(humane.plain(f"  {each.message}") + "\n")
        if each.hint:
            say(humane.plain(f"  hint: {each.hint}"))
