"""Trust the source of a third-party dataset.

Prints what the source runs, and prompts for confirmation. If a later block changes the source,
the dataset is untrusted again.

The query of an untrusted derivative dataset runs in a sandbox. It has no network access, and reads
no files except the rows of its inputs.

Your own datasets need no trust. With --own, you confirm that you created this workspace, for example
on another machine: its datasets with private keys are your own from then on.
"""

from __future__ import annotations

from typing import Any

import click

from odf_engine.api import EXECUTION_KINDS
from odf_engine.api.model import TrustStatus
from odf_engine.api.workspace import Workspace
from odf_engine.errors import UsageError
from odf_tui.cli.shared.input import confirm, is_interactive
from odf_tui.cli.shared.options import DATASET, define_command, options_of
from odf_tui.cli.shared.output import console, print_json, print_note, select_fields
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 280


@define_command("trust", help=__doc__, example="odf trust com.example.cases", json=True)
@click.argument("name", required=False, type=DATASET)
@click.option(
    "--own",
    is_flag=True,
    help="Confirm that you created the datasets whose private keys are in the workspace.",
)
@click.option(
    "--private-network", is_flag=True, help="Allow requests to this machine and its private network."
)
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def command(name: str | None, own: bool, private_network: bool, yes: bool) -> None:
    workspace = open_workspace()
    if own or name is None:
        if not own or private_network:
            raise UsageError("use either NAME or --own", hint="trust one dataset: odf trust NAME")
        _claim_datasets(workspace, name, yes)
        return
    status = workspace.trust_status(workspace.resolve(name).id)
    needs_grant = status.trust != "own" and bool(status.runs)
    if not options_of().json:
        _print_executions(status)
    if needs_grant and not yes:
        _confirm_trust(status, private_network)
    if needs_grant:
        workspace.trust(status, private_network=private_network)
    if options_of().json:
        print_json(trust_json(workspace.trust_status(status.id)))
    elif needs_grant:
        print_note(f"{status.name} is trusted until a block changes its source")


def _claim_datasets(workspace: Workspace, name: str | None, yes: bool) -> None:
    """Record datasets with private keys as own ones, after a confirmation."""
    datasets = list(workspace) if name is None else [workspace.resolve(name)]
    statuses = [workspace.trust_status(dataset.id) for dataset in datasets]
    statuses = [status for status in statuses if status.claimable]
    ids = [status.id for status in statuses]
    if not options_of().json:
        for status in statuses:
            _print_executions(status)
    if statuses and not yes:
        subject = "this dataset" if len(statuses) == 1 else f"these {len(statuses)} datasets"
        hint = "check that you created the datasets, then use --yes to skip the prompt"
        confirm(f"Did you create {subject}?", "this", hint)
    workspace.claim(ids)
    if options_of().json:
        print_json([trust_json(workspace.trust_status(dataset)) for dataset in ids])
    elif statuses:
        print_note(f"{', '.join(status.name for status in statuses)}: recorded as your own")
    else:
        print_note("there is no dataset with a private key that is not your own already")


def _confirm_trust(status: TrustStatus, private_network: bool) -> None:
    if options_of().json and not is_interactive():
        print_json(trust_json(status))
    also = " with access to the private network" if private_network else ""
    question = f"Allow {status.name} to run this on each pull{also}?"
    confirm(question, f"trusting {status.name}", "check what it runs, then use --yes to skip the prompt")


def _print_executions(status: TrustStatus) -> None:
    if status.trust == "own":
        print_note(f"{status.name} is your own dataset and needs no trust")
        return
    if not status.runs:
        print_note(f"{status.name} has no source and needs no trust")
        return
    out = console()
    if status.claimable:
        out.print(f"{status.name} has its private key in this workspace, but was not created by you here.")
    else:
        origin = f" ({status.origin})" if status.origin else ""
        out.print(f"{status.name} is a third-party dataset{origin}.")
    block = None
    for run in status.runs:
        if run.block != block:
            block = run.block
            out.print(f"\nDefined by block {block}:", soft_wrap=True)
        lines = run.text.splitlines() or [""]
        out.print(f"  {EXECUTION_KINDS.get(run.kind, run.kind):<32}  {lines[0]}", soft_wrap=True)
        for line in lines[1:]:
            out.print(f"{'':36}{line}", soft_wrap=True)
    kinds = {run.kind for run in status.runs}
    out.print()
    if "variable" in kinds:
        out.print("The source reads only the variables that the setting allowedEnv lists for it.")
    if kinds & {"pipe", "image"}:
        out.print("Commands and containers have full network access. Commands run with your permissions.")
    if kinds & {"variable", "pipe", "image"}:
        out.print()


def trust_json(status: TrustStatus) -> dict[str, Any]:
    """Return what a dataset runs and whether it may, for ``--json``."""
    return select_fields(status, "id", "name", "trust", "origin", "private_network", "runs")
