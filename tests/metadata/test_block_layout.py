"""Which field lies where in the bytes of a block, also of one that is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.block_layout import BlockLayout, ByteSpan, parse_block_layout
from odf_engine.metadata.descriptors import describe_table
from odf_engine.metadata.flatbuffers import decode_block, encode_block
from odf_engine.metadata.timestamp import Timestamp
from tests.call_count import max_calls
from tests.metadata.test_flatbuffers import Hand
from tests.metadata.test_round_trips import FAST, tables


@pytest.fixture(scope="module")
def blocks(shared: Path) -> list[bytes]:
    vectors: list[dict[str, Any]] = json.loads((shared / "golden" / "blocks.json").read_text())
    return [bytes.fromhex(vector["manifest_hex"]) for vector in vectors]


def check_tiles(anatomy: BlockLayout, size: int) -> None:
    """Spans follow each other without gaps or overlaps."""
    at = 0
    for span in anatomy.spans:
        assert span.start == at
        assert span.end > at
        at = span.end
    assert at == size


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of all fields that are written, from the decoded model."""
    if isinstance(value, model.Model):
        for field in describe_table(type(value)).fields:
            yield from leaves(getattr(value, field.name), f"{path}.{field.key}".removeprefix("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    elif value is not None:
        yield path, value


def written(span: ByteSpan, data: bytes, value: Any) -> bool:
    """Whether a span holds this value."""
    raw = data[span.start : span.end]
    match value:
        case Enum():
            return list(type(value)).index(value) == int.from_bytes(raw, "little")
        case bool():
            return raw == bytes([value])
        case int():
            return value == int.from_bytes(raw, "little", signed=value < 0)
        case str():
            return raw == value.encode()
        case bytes():
            return raw == value
        case Multihash():
            return raw == value.digest
        case DatasetId():
            return raw == value.public_key
        case Timestamp():
            return span.path.endswith(".nanosecond") and int.from_bytes(raw, "little") == value.ns % 10**9
        case dict():
            return json.loads(raw) == value
        case _:
            raise TypeError(type(value))


def check_named(anatomy: BlockLayout, data: bytes, block: model.MetadataBlock) -> None:
    """Every value of the block lies where its name says it does."""
    # What is not written means zero, the first of an enum, or nothing.
    for path, value in leaves(block, "content"):
        zero = value in (0, b"", "") and not isinstance(value, bool)
        if zero or (isinstance(value, Enum) and value is next(iter(type(value)))):
            continue
        spans = [span for span in anatomy.spans if span.value and span.path.startswith(path)]
        assert any(written(span, data, value) for span in spans), (path, value, spans)


def test_every_field_of_real_blocks_is_named(blocks: list[bytes]):
    kinds: set[str] = set()
    for data in blocks:
        anatomy, block = parse_block_layout(data), decode_block(data).block
        assert anatomy.fault is None
        check_tiles(anatomy, len(data))
        check_named(anatomy, data, block)
        kinds.add(model.kind_of(block.event))
    assert len(kinds) == 12


@FAST
@given(block=tables(model.MetadataBlock), version=st.sampled_from([2, 3]))
def test_every_field_of_any_block_is_named(block: model.MetadataBlock, version: int):
    data = encode_block(block, version)
    anatomy = parse_block_layout(data)
    assert anatomy.fault is None
    check_tiles(anatomy, len(data))
    check_named(anatomy, data, block)


def test_parts_of_a_hash_and_an_id_are_told_apart():
    seed = model.Seed(DatasetId(bytes(range(32))), model.DatasetKind.Derivative)
    block = model.MetadataBlock(
        system_time=Timestamp.parse("2024-03-01T00:00:07Z"),
        prev_block_hash=Multihash.sha3_256(b"before"),
        sequence_number=7,
        event=seed,
    )
    spans = parse_block_layout(encode_block(block)).spans
    told = [(span.path.removeprefix("content."), span.text, span.end - span.start) for span in spans]
    assert ("kind", "4194304, a metadata block", 8) in told
    assert ("version", "3", 4) in told
    assert ("prevBlockHash", "sha3-256, code 0x16", 1) in told
    assert ("prevBlockHash", "digest", 32) in told
    assert ("event", "Seed, number 3", 1) in told
    assert ("event.datasetId", "ed25519, code 0xed", 2) in told
    assert ("event.datasetId", "public key", 32) in told
    assert ("event.datasetKind", "Derivative, number 1", 4) in told
    assert ("systemTime.dayOfYear", "61", 2) in told


def test_damaged_block_is_laid_out_up_to_the_fault():
    block = model.MetadataBlock(
        system_time=Timestamp.parse("2024-03-01T00:00:00Z"), sequence_number=1, event=model.SetInfo("boats")
    )
    data = encode_block(block)
    at = data.index(b"boats") - 4
    anatomy = parse_block_layout(data[:at] + b"\xff\xff" + data[at + 2 :])
    assert anatomy.fault is not None
    assert (anatomy.fault.at, anatomy.fault.path) == (at, "content.event.description")
    assert "longer than the remaining bytes" in anatomy.fault.message
    assert any(span.path == "content.event" for span in anatomy.spans)
    assert anatomy.spans[-1].text == "not read"
    text = parse_block_layout(data.replace(b"boats", b"bo\xffts")).fault
    assert text is not None
    assert (text.at, text.message) == (at + 6, "not UTF-8 text")
    for other in (b"", b"\0", b"no block at all, just some words"):
        nothing = parse_block_layout(other)
        assert nothing.fault is not None
        check_tiles(nothing, len(other))


def test_event_of_newer_version_is_shown_without_its_fields():
    hand = Hand()
    data = hand.block(77, hand.table(o3=hand.text("new")))
    anatomy = parse_block_layout(data)
    assert anatomy.fault is None
    check_tiles(anatomy, len(data))
    assert any(span.text == "newer version, number 77" for span in anatomy.spans)


def test_strings_shared_too_often_are_rejected_quickly():
    hand = Hand()
    text = hand.text("x" * 200_000)
    words = hand.vector(*[text] * 20_000)
    data = hand.block(8, hand.table(o1=words))
    with max_calls(3_000):
        anatomy = parse_block_layout(data)
    assert anatomy.fault is not None
    assert "more content than its size allows" in anatomy.fault.message
    check_tiles(anatomy, len(data))
