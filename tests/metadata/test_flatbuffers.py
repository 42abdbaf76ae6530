"""Blocks and messages as bytes: golden vectors, foreign and damaged buffers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odf_engine.errors import MalformedBlock
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.flatbuffers import decode_block, encode_block


@pytest.fixture(scope="session")
def vectors(shared: Path) -> list[dict[str, Any]]:
    return json.loads((shared / "golden" / "blocks.json").read_text())


def test_golden_blocks_decode_and_encode_to_the_same_bytes(vectors: list[dict[str, Any]]):
    assert len(vectors) == 38
    for vector in vectors:
        raw = bytes.fromhex(vector["manifest_hex"])
        decoded = decode_block(raw)
        block = decoded.block
        assert decoded.version == vector["block_version"]
        assert decoded.unknown == ()
        assert str(block.system_time) == vector["system_time"]
        assert block.sequence_number == vector["sequence_number"]
        assert (str(block.prev_block_hash) if block.prev_block_hash else None) == vector["prev_block_hash"]
        assert encode_block(block, decoded.version) == raw, vector["name"]
        assert str(Multihash.sha3_256(raw)) == vector["block_hash_multibase"]


def test_other_kinds_and_versions_are_refused(vectors: list[dict[str, Any]]):
    raw = bytes.fromhex(vectors[0]["manifest_hex"])
    at_version = raw.index(b"\x02\0\0\0", 24)
    for version, words in ((0, "0"), (1, "obsolete"), (4, "version 4")):
        with pytest.raises(MalformedBlock, match=words):
            decode_block(raw[:at_version] + bytes([version]) + raw[at_version + 1 :])
    kind = raw.index(b"\0\0\x40\0\0\0\0\0")
    with pytest.raises(MalformedBlock, match="not a metadata block"):
        decode_block(raw[:kind] + b"\x01" + raw[kind + 1 :])
