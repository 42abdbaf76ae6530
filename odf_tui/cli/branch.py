"""List, create, promote and delete branches of a dataset.

Without BRANCH, lists the branches of a dataset, or of all datasets. With BRANCH, creates a branch: a
second chain that begins with the blocks of the dataset. Commands with the option --branch, such as
`odf pull`, change or read the branch instead of the dataset. See `odf help branches`.

--promote moves the head of the dataset to the newest block of the branch. If the head has blocks
that the branch lacks, nothing is changed, and the exit code is 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from odf_engine.api.dataset import Dataset
from odf_engine.api.text import count_of, format_count, format_time_seconds, printable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import UsageError
from odf_tui.cli.shared.options import BRANCH, DATASET, define_command
from odf_tui.cli.shared.output import Table, print_result, show
from odf_tui.cli.shared.workspace import open_workspace, use_timezone

ORDER = 200
MEANINGS = "branches fork staging promote"


@define_command("branch", help=__doc__, example="odf branch port-haven.stations staging", json=True)
@click.argument("name", required=False, type=DATASET)
@click.argument("branch", required=False, type=BRANCH)
@click.option("--at", "start", metavar="BLOCK|TIME|REF", help="Start at this version. Default: the head.")
@click.option("-f", "--force", is_flag=True, help="Move an existing branch; delete an unpromoted one.")
@click.option("--promote", metavar="BRANCH", type=BRANCH, help="Move the head of the dataset to this branch.")
@click.option("-d", "--delete", metavar="BRANCH", type=BRANCH, help="Delete this branch.")
@click.option("-m", "--rename", nargs=2, metavar="OLD NEW", type=BRANCH, help="Rename a branch.")
def command(
    name: str | None,
    branch: str | None,
    start: str | None,
    force: bool,
    promote: str | None,
    delete: str | None,
    rename: tuple[str, str] | None,
) -> None:
    actions = [value for value in (branch, promote, delete, rename) if value is not None]
    if len(actions) > 1:
        raise UsageError("BRANCH, --promote, --delete and --rename exclude each other")
    if start is not None and branch is None:
        raise UsageError("--at requires the name of a new branch", hint="odf branch NAME BRANCH --at BLOCK")
    if force and branch is None and delete is None:
        raise UsageError("--force requires a branch to move or to delete")
    workspace = open_workspace()
    if not actions:
        _list_branches(workspace, [workspace.resolve(name)] if name is not None else list(workspace))
        return
    if name is None:
        raise UsageError("no dataset specified", hint="odf branch NAME lists the branches of a dataset")
    dataset = workspace.resolve(name)
    document: dict[str, Any] = {"dataset": dataset.name, "branch": branch or promote or delete}
    if branch is not None:
        document["head"] = block = dataset.create_branch(branch, start, force=force)
        text = f"{dataset.name}: branch {branch} at block {block.abbreviated}"
    elif promote is not None:
        promotion = dataset.promote_branch(promote)
        document |= msgspec.structs.asdict(promotion)
        document["status"] = "updated" if promotion.blocks else "up-to-date"
        added = f"{count_of(promotion.blocks, 'block')}, {count_of(promotion.records, 'row')}"
        text = f"{dataset.name}: promoted {promote}, {added}, head {promotion.new_head.abbreviated}"
        if not promotion.blocks:
            text = f"{dataset.name}: up to date, the head has all blocks of {promote}"
    elif delete is not None:
        document["head"] = block = dataset.delete_branch(delete, force=force)
        text = f"{dataset.name}: deleted branch {delete}, which was at block {block.abbreviated}"
    else:
        assert rename is not None
        document |= {"branch": rename[1], "head": dataset.rename_branch(*rename)}
        text = f"{dataset.name}: renamed branch {rename[0]} to {rename[1]}"
    show(document, lambda: print_result(text))


def _list_branches(workspace: Workspace, datasets: Sequence[Dataset]) -> None:
    branches = [(dataset.name, branch) for dataset in datasets for branch in dataset.branches()]
    documents: list[dict[str, Any]] = []
    for alias, branch in branches:
        fields = msgspec.structs.asdict(branch)
        documents.append({"dataset": alias, "branch": fields.pop("name"), **fields})
    zone = use_timezone(workspace)
    rows = [
        [
            alias,
            branch.name,
            branch.head.abbreviated if branch.head else printable(branch.problem or ""),
            format_count(branch.blocks),
            format_count(branch.records),
            str(branch.ahead),
            str(branch.behind),
            format_time_seconds(branch.system_time) if branch.system_time else "",
        ]
        for alias, branch in branches
    ]
    headers = ["dataset", "branch", "head", "blocks", "rows", "ahead", "behind", f"system time ({zone})"]
    empty = "no branches: odf branch NAME BRANCH creates one"
    show(documents, Table(headers, rows, ["blocks", "rows", "ahead", "behind"], empty))
