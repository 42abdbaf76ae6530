"""List and copy the linked objects of a dataset.

Linked objects are files that columns with links refer to by their hashes.
"""

from __future__ import annotations

from pathlib import Path

import click

from odf_engine.api.text import format_bytes, format_count
from odf_engine.errors import AlreadyExists
from odf_tui.cli.shared.options import DATASET, FILE, CommandGroup
from odf_tui.cli.shared.output import Table, check_parent_folder, print_note, show
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 240
MEANINGS = "attachments files blobs links"

command = CommandGroup("objects", help=__doc__, example="odf objects list my.photos")


@command.subcommand("list", example="odf objects list my.photos --json", json=True)
@click.argument("name", type=DATASET)
def list_objects(name: str) -> None:
    """List the linked objects of a dataset, with their size and their number of links."""
    objects = open_workspace().resolve(name).linked_objects()
    rows = [
        [
            str(linked.hash),
            format_count(linked.links),
            "missing" if linked.size is None else format_bytes(linked.size),
        ]
        for linked in objects
    ]
    show(
        [linked._asdict() for linked in objects],
        Table(["hash", "links", "size"], rows, ["links", "size"], f"{name} has no linked objects"),
    )


@command.subcommand("get", example="odf objects get my.photos f1620… photo.jpg")
@click.argument("name", type=DATASET)
@click.argument("hash_", metavar="HASH")
@click.argument("file", type=FILE)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def get_object(name: str, hash_: str, file: Path, force: bool) -> None:
    """Copy a linked object to a file. Its bytes are verified.

    HASH is the value in the column with the link.
    """
    dataset = open_workspace().resolve(name)
    if file.exists() and not force:
        raise AlreadyExists(f"{file} already exists", hint="use --force to overwrite it")
    check_parent_folder(file)
    dataset.export_object(hash_, file)
    print_note(f"{file}: {format_bytes(file.stat().st_size)}")
