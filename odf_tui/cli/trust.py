"""Trust the source of a third-party dataset.

Prints what the source runs, and prompts for confirmation. If a later block changes the source,
the dataset is untrusted again.

The query of an untrusted derivative dataset runs in a sandbox. It has no network access, and reads
no files except the rows of its inputs.

Your own datasets need no trust. With --own, you confirm that you created this workspace, for example
on another machine: its datasets with private keys are your own from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from odf_engine.errors import UsageError
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import KINDS, Execution, Trust
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared.input import confirm, is_interactive
from odf_tui.cli.shared.options import DATASET, define_command, options_of
from odf_tui.cli.shared.output import console, print_json, print_note
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
    entry, trust = workspace.resolve(name), Trust(workspace)
    runs = trust.list_executions(entry)
    needs_grant = not trust.is_own(entry) and bool(runs)
    if not options_of().json:
        _print_executions(trust, entry, runs)
    if needs_grant and not yes:
        _confirm_trust(trust, entry, runs, private_network)
    if needs_grant:
        trust.grant(entry, private_network=private_network, shown=runs)
    if options_of().json:
        print_json(trust_json(trust, entry, runs))
    elif needs_grant:
        print_note(f"{entry.alias} is trusted until a block changes its source")


def _claim_datasets(workspace: Workspace, name: str | None, yes: bool) -> None:
    """Record datasets with private keys as own ones, after a confirmation."""
    trust = Trust(workspace)
    entries = workspace.datasets() if name is None else [workspace.resolve(name)]
    entries = [entry for entry in entries if trust.is_claimable(entry)]
    runs = {entry.id: trust.list_executions(entry) for entry in entries}
    if not options_of().json:
        for entry in entries:
            _print_executions(trust, entry, runs[entry.id])
    if entries and not yes:
        datasets = "this dataset" if len(entries) == 1 else f"these {len(entries)} datasets"
        hint = "check that you created the datasets, then use --yes to skip the prompt"
        confirm(f"Did you create {datasets}?", "this", hint)
    trust.claim(entries)
    if options_of().json:
        print_json([trust_json(trust, entry, runs[entry.id]) for entry in entries])
    elif entries:
        print_note(f"{', '.join(str(entry.alias) for entry in entries)}: recorded as your own")
    else:
        print_note("there is no dataset with a private key that is not your own already")


def _confirm_trust(
    trust: Trust, entry: DatasetEntry, runs: Sequence[Execution], private_network: bool
) -> None:
    if options_of().json and not is_interactive():
        print_json(trust_json(trust, entry, runs))
    also = " with access to the private network" if private_network else ""
    question = f"Allow {entry.alias} to run this on each pull{also}?"
    confirm(question, f"trusting {entry.alias}", "check what it runs, then use --yes to skip the prompt")


def _print_executions(trust: Trust, entry: DatasetEntry, runs: Sequence[Execution]) -> None:
    if trust.is_own(entry):
        print_note(f"{entry.alias} is your own dataset and needs no trust")
        return
    if not runs:
        print_note(f"{entry.alias} has no source and needs no trust")
        return
    out = console()
    if trust.is_claimable(entry):
        out.print(f"{entry.alias} has its private key in this workspace, but was not created by you here.")
    else:
        origin = trust.read_origin(entry)
        out.print(f"{entry.alias} is a third-party dataset" + (f" ({origin})" if origin else "") + ".")
    block = None
    for run in runs:
        if run.block != block:
            block = run.block
            out.print(f"\nDefined by block {block}:", soft_wrap=True)
        lines = run.text.splitlines() or [""]
        out.print(f"  {KINDS.get(run.kind, run.kind):<32}  {lines[0]}", soft_wrap=True)
        for line in lines[1:]:
            out.print(f"{'':36}{line}", soft_wrap=True)
    kinds = {run.kind for run in runs}
    out.print()
    if "variable" in kinds:
        out.print("The source reads only the variables that the setting allowedEnv lists for it.")
    if kinds & {"pipe", "image"}:
        out.print("Commands and containers have full network access. Commands run with your permissions.")
    if kinds & {"variable", "pipe", "image"}:
        out.print()


def trust_json(trust: Trust, entry: DatasetEntry, runs: Sequence[Execution]) -> dict[str, Any]:
    """Return what a dataset runs and whether it may, for ``--json``."""
    return {
        "id": entry.id,
        "name": str(entry.alias),
        "trust": trust.describe_status(entry),
        "origin": trust.read_origin(entry),
        "private_network": trust.allows_private_network(entry),
        "runs": runs,
    }
