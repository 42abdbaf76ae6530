"""The verbs about trust: what somebody else's dataset would run, and allowing it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from odf_engine.errors import UsageError
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import KINDS, Execution, Trust
from odf_tui.cli.output import console, open_workspace, options_of, print_json, say, verb


@verb("trust", example="odf trust com.example.cases", json=True)
@click.argument("name")
@click.option("--private-network", is_flag=True, help="May ask addresses of this machine and its network.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def trust_verb(name: str, private_network: bool, yes: bool) -> None:
    """Lets the source of a dataset that somebody else wrote run; shows first what exactly that is.

    What is allowed is what the source runs now: when a later block changes the source, it has to be
    allowed again. The query of a derivative dataset runs without it too, shut in: with no network, and
    no files but the rows of its inputs.
    """
    workspace = open_workspace()
    entry, trust = workspace.resolve(name), Trust(workspace)
    runs = trust.list_executions(entry)
    asked = not trust.is_own(entry) and bool(runs)
    if not options_of().json:
        _show(trust, entry, runs)
    if asked and not yes:
        _ask(trust, entry, runs, private_network)
    if asked:
        trust.grant(entry, private_network=private_network, shown=runs)
    if options_of().json:
        print_json(_document(trust, entry, runs))
    elif asked:
        say(f"{entry.alias} is trusted, until a block changes its source")


@verb("untrust", example="odf untrust com.example.cases", json=True)
@click.argument("name")
def untrust_verb(name: str) -> None:
    """Takes back what `odf trust` allowed."""
    workspace = open_workspace()
    entry, trust = workspace.resolve(name), Trust(workspace)
    was = trust.revoke(entry)
    if options_of().json:
        print_json(_document(trust, entry, trust.list_executions(entry)))
    elif trust.is_own(entry):
        say(f"{entry.alias} is your own, and needs no trust")
    else:
        say(f"{entry.alias} is not trusted any more" if was else f"{entry.alias} was not trusted")


def _ask(trust: Trust, entry: DatasetEntry, runs: Sequence[Execution], private_network: bool) -> None:
    if not sys.stdin.isatty():
        if options_of().json:
            print_json(_document(trust, entry, runs))
        raise UsageError(
            f"{entry.alias} is not trusted: nobody is here to be asked",
            hint="look at what it runs, and add --yes to allow it without a question",
        )
    also = ", also on this machine and in its network" if private_network else ""
    click.confirm(f"Let {entry.alias} do that whenever it is pulled{also}?", abort=True, err=True)


def _show(trust: Trust, entry: DatasetEntry, runs: Sequence[Execution]) -> None:
    if trust.is_own(entry):
        say(f"{entry.alias} is your own, and needs no trust")
        return
    if not runs:
        say(f"{entry.alias} has no source: nothing of it runs")
        return
    out = console()
    origin = trust.read_origin(entry)
    out.print(f"{entry.alias} was written by somebody else" + (f" ({origin})" if origin else "") + ".")
    block = None
    for each in runs:
        if each.block != block:
            block = each.block
            out.print(f"\nAs block {block} says, it", soft_wrap=True)
        lines = each.text.splitlines() or [""]
        out.print(f"  {KINDS.get(each.kind, each.kind):<32}  {lines[0]}", soft_wrap=True)
        for line in lines[1:]:
            out.print(f"{'':36}{line}", soft_wrap=True)
    kinds = {each.kind for each in runs}
    out.print()
    if "variable" in kinds:
        out.print("It reads only the variables that the setting allowedEnv names for it.")
    if kinds & {"pipe", "image"}:
        out.print("Commands and containers may reach whatever address they want; commands run as you.")
    if kinds & {"variable", "pipe", "image"}:
        out.print()


def _document(trust: Trust, entry: DatasetEntry, runs: Sequence[Execution]) -> dict[str, Any]:
    return {
        "id": entry.id,
        "name": str(entry.alias),
        "trust": trust.describe_status(entry),
        "origin": trust.read_origin(entry),
        "private_network": trust.allows_private_network(entry),
        "runs": [{"kind": each.kind, "text": each.text, "block": each.block} for each in runs],
    }
