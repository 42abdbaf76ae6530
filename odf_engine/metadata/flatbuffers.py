"""Metadata blocks and engine messages as FlatBuffers (specification: Metadata Format, Block Hashing).

A block is a Manifest whose content is a separately finished MetadataBlock; its hash covers all of
the Manifest's bytes. Bytes that were received are kept as they are and never encoded again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from odf_engine.errors import MalformedBlock
from odf_engine.identity.multiformats import ODF_METADATA_BLOCK
from odf_engine.metadata._decode import Reader
from odf_engine.metadata._encode import encode_root
from odf_engine.metadata.model import Manifest, MetadataBlock, Model
from odf_engine.metadata.wire import Table, shape_of

BLOCK_VERSION: Final = 3
"""The version that blocks are written in; version 2 differs in how times are aligned."""

READABLE_VERSIONS: Final = (2, 3)


class DecodedBlock(msgspec.Struct, frozen=True):
    """A block, the version of its bytes, and what in it comes from a newer specification.

    ``unknown`` names places such as ``event: slot 9`` or ``event.fetch: member 7``; an unknown
    member of a union is a ``model.Opaque`` in the block.
    """

    block: MetadataBlock
    version: int
    unknown: tuple[str, ...]


def encode_block(block: MetadataBlock, version: int = BLOCK_VERSION) -> bytes:
    """The bytes of a block, which its hash is made of.

    Raises:
        ValueError: ``version`` is neither 2 nor 3.
        Unsupported: the block holds something of a newer specification.
    """
    if version not in READABLE_VERSIONS:
        raise ValueError(f"blocks are written in version 2 or 3, not {version}")
    content = encode_root(block, aligned=version > 2)
    return encode_root(Manifest(kind=ODF_METADATA_BLOCK, version=version, content=content))


def decode_block(data: bytes) -> DecodedBlock:
    """Reads a block's bytes, whoever wrote them.

    Raises:
        MalformedBlock: whatever is wrong with them; ``where`` names the field.
    """
    outer = Reader(data)
    manifest: Manifest = outer.root(Manifest)
    _check_manifest(manifest)
    inner = Reader(manifest.content)
    block: MetadataBlock = inner.root(MetadataBlock)
    unknown = [f"manifest: {name}" for name in outer.unknown] + inner.unknown
    return DecodedBlock(block, manifest.version, tuple(unknown))


def _check_manifest(manifest: Manifest) -> None:
    if manifest.kind != ODF_METADATA_BLOCK:
        raise MalformedBlock(f"this is not a metadata block: its kind is 0x{manifest.kind:x}", where="kind")
    if manifest.version == 1:
        raise MalformedBlock(
            "block version 1 is obsolete and cannot be read",
            hint="the dataset has to be created anew by its publisher",
            where="version",
        )
    if manifest.version not in READABLE_VERSIONS:
        raise MalformedBlock(
            f"block version {manifest.version} is not one of those that can be read: 2 and 3",
            hint="a newer version of this program may read it" if manifest.version > 3 else None,
            where="version",
        )


def encode_table(value: Model) -> bytes:
    """Any table as a buffer of its own; a response goes into the wrapper table of its union."""
    return encode_root(value)


def decode_table(data: bytes, kind: Any) -> Any:
    """Reads a buffer whose root is a table of type ``kind``, or a union such as ``RawQueryResponse``.

    Raises:
        MalformedBlock: whatever is wrong with the bytes.
    """
    shape, _ = shape_of(kind)
    return Reader(data).root(shape.type if isinstance(shape, Table) else shape)  # type: ignore[arg-type]
