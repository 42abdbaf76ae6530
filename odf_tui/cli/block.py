"""Encode and decode metadata blocks."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from odf_engine.api import (
    Multihash,
    block_to_yaml,
    decode_block,
    encode_block,
    read_block_manifest,
    to_builtins,
)
from odf_engine.errors import InvalidManifest, UsageError
from odf_tui.cli.shared.input import read_bytes
from odf_tui.cli.shared.options import FILE, CommandGroup
from odf_tui.cli.shared.output import show

ORDER = 500

command = CommandGroup("block", help=__doc__, example="odf block encode block.yaml -o block.bin")


@command.subcommand("encode", example="odf block encode block.yaml -o block.bin")
@click.argument("file", type=click.Path(), default="-")
@click.option(
    "--block-version",
    type=click.Choice(["2", "3"]),
    help="Version of the block. Default: the version of the manifest, else 3.",
)
@click.option("-o", "--output", type=FILE, help="Output file. Default: stdout.")
def encode(file: str, block_version: str | None, output: Path | None) -> None:
    """Encode a MetadataBlock manifest from YAML to bytes.

    Chain rules are not checked. The hash of the block is printed to stdout, or to stderr if the block
    itself is written to stdout.
    """
    source = "stdin" if file == "-" else file
    try:
        text = read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidManifest("the file is not UTF-8 text", where=f"{source}: byte {error.start}") from None
    block, version = read_block_manifest(text, source)
    data = encode_block(block, int(block_version or version or 3))
    digest = Multihash.sha3_256(data)
    if output is None:
        if sys.stdout.isatty():
            raise UsageError("binary output cannot be written to a terminal", hint="use -o FILE, or a pipe")
        sys.stdout.buffer.write(data)
        sys.stderr.write(f"{digest}\n")
    else:
        output.write_bytes(data)
        sys.stdout.write(f"{digest}\n")


@command.subcommand("decode", example="odf block decode $(odf path NAME)/blocks/f1620…", json=True)
@click.argument("file", type=click.Path(), default="-")
def decode(file: str) -> None:
    """Decode a metadata block from bytes to YAML.

    Fields of newer versions of the specification are reported on stderr.
    """
    decoded = decode_block(read_bytes(file))
    show(
        {"kind": "MetadataBlock", "version": decoded.version, "content": to_builtins(decoded.block)},
        lambda: sys.stdout.writelines([block_to_yaml(decoded.block, decoded.version)]),
    )
    for unknown in decoded.unknown:
        sys.stderr.write(f"unknown field, not decoded: {unknown}\n")
