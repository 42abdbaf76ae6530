"""Name versions of a dataset for citations.

Without TAG, lists the tags of a dataset, or of all datasets. With TAG, creates a tag: a branch that cannot
move. Pulls, resets and promotions never change the blocks and rows that it names, and `odf gc` keeps them.
Commands accept NAME@TAG wherever they have the option --branch, and TAG as a reference, such as --as-at
TAG. See `odf help branches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from odf_engine.api.dataset import Dataset
from odf_engine.api.text import format_count, format_time_seconds, printable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import UsageError
from odf_tui.cli.shared.options import BRANCH, DATASET, define_command
from odf_tui.cli.shared.output import Table, print_result, show
from odf_tui.cli.shared.workspace import open_workspace, use_timezone

ORDER = 201
MEANINGS = "tags release version pin"


@define_command("tag", help=__doc__, example="odf tag port-haven.stations report-2024", json=True)
@click.argument("name", required=False, type=DATASET)
@click.argument("tag", required=False)
@click.option("--at", "version", metavar="BLOCK|TIME|REF", help="Tag this version. Default: the head.")
@click.option("-d", "--delete", metavar="TAG", type=BRANCH, help="Delete this tag. No blocks are removed.")
def command(name: str | None, tag: str | None, version: str | None, delete: str | None) -> None:
    if tag is not None and delete is not None:
        raise UsageError("TAG and --delete exclude each other")
    if version is not None and tag is None:
        raise UsageError("--at requires the name of a new tag", hint="odf tag NAME TAG --at BLOCK")
    workspace = open_workspace()
    if tag is None and delete is None:
        _list_tags(workspace, [workspace.resolve(name)] if name is not None else list(workspace))
        return
    if name is None:
        raise UsageError("no dataset specified", hint="odf tag NAME lists the tags of a dataset")
    dataset = workspace.resolve(name)
    if tag is not None:
        block = dataset.create_tag(tag, version)
        text = f"{dataset.name}: tag {tag} at block {block.abbreviated}"
    else:
        assert delete is not None
        block = dataset.delete_tag(delete)
        text = f"{dataset.name}: deleted tag {delete}, which was at block {block.abbreviated}"
    show({"dataset": dataset.name, "tag": tag or delete, "head": block}, lambda: print_result(text))


def _list_tags(workspace: Workspace, datasets: Sequence[Dataset]) -> None:
    documents: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    zone = use_timezone(workspace)
    for dataset in datasets:
        for tag in dataset.tags():
            fields = msgspec.structs.asdict(tag)
            documents.append({"dataset": dataset.name, "tag": fields.pop("name"), **fields})
            block = tag.head.abbreviated if tag.head else printable(tag.problem or "")
            time = format_time_seconds(tag.system_time) if tag.system_time else ""
            counts = [format_count(tag.blocks), format_count(tag.records)]
            rows.append([dataset.name, tag.name, block, *counts, time])
    headers = ["dataset", "tag", "block", "blocks", "rows", f"system time ({zone})"]
    show(documents, Table(headers, rows, ["blocks", "rows"], "no tags: odf tag NAME TAG creates one"))
