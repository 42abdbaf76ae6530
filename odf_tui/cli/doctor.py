"""Check that jobs can run here.

Checks the installed packages, Java, DataFusion, memory, and in a workspace its settings, disk,
permissions, clock, versions of rows, worker and Spark. Each problem is printed with its remedy.
Nothing is changed.

Exits with 1 if a check failed. To check the files of the workspace, use `odf fsck`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from odf_engine.api import WORKSPACE_VARIABLE, Config
from odf_engine.api.operations.health import HealthCheck, check_installation, check_memory, failed_check
from odf_engine.api.text import printable
from odf_engine.errors import NotFound, OdfError
from odf_tui.cli.shared.options import define_command, options_of
from odf_tui.cli.shared.output import show
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 340
MEANINGS = "health diagnose selftest env"

_SIGNS: Final = {"ok": "✓", "warning": "!", "failed": "✗"}


@define_command("doctor", help=__doc__, example="odf doctor --spark", json=True)
@click.option("--spark", "start", is_flag=True, help="Start Spark too, which takes some seconds.")
def command(start: bool) -> None:
    checks = check_installation()
    try:
        workspace = open_workspace()
        _ = workspace.config
    except OdfError as error:
        if not isinstance(error, NotFound):
            checks.append(failed_check("workspace", error))
        elif options_of().workspace is not None or os.environ.get(WORKSPACE_VARIABLE):
            raise
        else:
            checks.append(HealthCheck("workspace", "ok", "none here: only the installation is checked"))
        checks.append(check_memory(Config()))
    else:
        checks += workspace.check_health(start_spark=start)
    failed = [check.name for check in checks if check.state == "failed"]
    show({"ok": not failed, "checks": checks}, lambda: _print_checks(checks))
    if failed:
        sys.stderr.write(f"error: failed checks: {', '.join(failed)}\n")
    sys.exit(1 if failed else 0)


def _print_checks(checks: Sequence[HealthCheck]) -> None:
    for check in checks:
        if check.state != "ok" or not options_of().quiet:
            sys.stdout.write(printable(f"{_SIGNS[check.state]} {check.name:<12} {check.message}") + "\n")
            if check.hint:
                sys.stdout.write(printable(f"{'':<15}hint: {check.hint}") + "\n")
