"""Verbs about bytes: block encode, block decode, digest."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from odf_engine.errors import InvalidManifest, NotFound, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_tui.cli.output import options_of, print_json, read_bytes, verb


@click.group("block")
def block_verb() -> None:
    """Metadata blocks between YAML and bytes."""


@verb("encode", example="odf block encode block.yaml -o block.bin")
@click.argument("file", type=click.Path(), default="-")
@click.option("--block-version", type=click.Choice(["2", "3"]), help="Else as the manifest says, else 3.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Else to stdout.")
def encode(file: str, block_version: str | None, output: Path | None) -> None:
    """Encodes a YAML MetadataBlock manifest to bytes, without checking chain rules."""
    from odf_engine.metadata.flatbuffers import encode_block
    from odf_engine.metadata.yaml import read_block_manifest

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
            raise UsageError("a terminal cannot show the bytes of a block", hint="add -o FILE, or a pipe")
        sys.stdout.buffer.write(data)
        sys.stderr.write(f"{digest}\n")
    else:
        output.write_bytes(data)
        sys.stdout.write(f"{digest}\n")


@verb("decode", example="odf block decode $(odf path NAME)/blocks/f1620…", json=True)
@click.argument("file", type=click.Path(), default="-")
def decode(file: str) -> None:
    """Decodes a block to its YAML manifest; what a newer specification added is named on stderr."""
    from odf_engine.metadata.flatbuffers import decode_block
    from odf_engine.metadata.yaml import block_to_yaml, to_builtins

    decoded = decode_block(read_bytes(file))
    if options_of().json:
        print_json(
            {"kind": "MetadataBlock", "version": decoded.version, "content": to_builtins(decoded.block)}
        )
    else:
        sys.stdout.write(block_to_yaml(decoded.block, decoded.version))
    for unknown in decoded.unknown:
        sys.stderr.write(f"not understood, kept in the bytes: {unknown}\n")


block_verb.add_command(encode)
block_verb.add_command(decode)


@verb("digest", example="odf digest data.parquet --json", json=True)
@click.argument("file", type=click.Path(path_type=Path))
def digest_verb(file: Path) -> None:
    """Prints the logical and the physical hash of a Parquet or Arrow IPC file."""
    from odf_engine.data.digest import digest_file

    if not file.is_file():
        raise NotFound(f"there is no file {file}")
    digest = digest_file(file)
    if options_of().json:
        print_json(
            {
                "logical_hash": digest.logical_hash,
                "physical_hash": digest.physical_hash,
                "size": digest.size,
                "rows": digest.rows,
            }
        )
    else:
        sys.stdout.write(
            f"logical   {digest.logical_hash}\nphysical  {digest.physical_hash}\n"
            f"size      {digest.size} bytes\nrows      {digest.rows}\n"
        )
