"""Blocks and messages as bytes: golden vectors, foreign and damaged buffers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import flatbuffers
import pytest

from odf_engine.errors import MalformedBlock
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.flatbuffers import decode_block, encode_block, encode_table
from odf_engine.metadata.model import Manifest
from odf_engine.metadata.timestamp import Timestamp
from tests.call_count import max_calls


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


class Hand:
    """Builds tables slot by slot, in ways that the encoder would not."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(256)

    def table(self, **slots: Any) -> int:
        """``o3=offset``, ``b3=byte`` and ``t3=True`` (a time) put something into slot 3."""
        self.builder.StartObject(40)
        for name, value in slots.items():
            slot = int(name[1:])
            if name[0] == "o":
                self.builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            elif name[0] == "b":
                self.builder.PrependUint8Slot(slot, value, None)
            elif name[0] == "i":
                self.builder.PrependInt32Slot(slot, value, None)
            else:
                self.builder.Prep(4, 16)
                self.builder.head -= 16
                struct.pack_into("<iHxxII", self.builder.Bytes, self.builder.head, *value)
                self.builder.Slot(slot)
        return self.builder.EndObject()

    def text(self, text: str | bytes) -> int:
        return self.builder.CreateString(text)

    def bytes(self, data: bytes) -> int:
        return self.builder.CreateByteVector(data)

    def vector(self, *offsets: int) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def finish(self, root: int) -> bytes:
        self.builder.Finish(root)
        return bytes(self.builder.Output())

    def block(self, kind: int, event: int, **more: Any) -> bytes:
        """A whole block around an event."""
        moment = more.pop("moment", (2020, 1, 0, 0))
        content = self.finish(self.table(o4=event, b3=kind, t0=moment, **more))
        return encode_table(Manifest(kind=0x400000, version=3, content=content))


def broken(data: bytes) -> MalformedBlock:
    with pytest.raises(MalformedBlock) as caught:
        decode_block(data)
    return caught.value


def test_newer_slots_and_members_are_kept_as_unknown():
    hand = Hand()
    event = hand.table(o9=hand.text("new"), b12=1, b11=0)
    decoded = decode_block(hand.block(1, event, b9=1))
    assert decoded.block.event == model.AddData()
    assert decoded.unknown == ("event: slot 9", "event: slot 11", "event: slot 12", "slot 9")

    hand = Hand()
    decoded = decode_block(hand.block(77, hand.table()))
    assert decoded.block.event == model.Opaque("MetadataEvent", 77)
    assert decoded.unknown == ("event: member 77",)
    assert model.kind_of(decoded.block.event) == "Opaque"

    hand = Hand()
    empty = hand.table()
    step = hand.table(b0=9, o1=empty)
    event = hand.table(b0=7, o1=empty, o2=hand.vector(step, step), b3=1, o4=empty, b7=1, o8=empty)
    decoded = decode_block(hand.block(4, event))
    opaque = model.Opaque("PrepStep", 9)
    assert decoded.block.event == model.SetPollingSource(
        fetch=model.Opaque("FetchStep", 7),  # type: ignore[arg-type]
        prepare=[opaque, opaque],  # type: ignore[list-item]
        read=model.Csv(),
        merge=model.Append(),
    )
    assert decoded.unknown == (
        "event.fetch: member 7",
        "event.prepare[0]: member 9",
        "event.prepare[1]: member 9",
    )


def test_missing_and_wrong_fields_are_named():
    def event_error(kind: int, build: Any) -> tuple[str | None, str]:
        hand = Hand()
        error = broken(hand.block(kind, build(hand)))
        return error.where, error.message

    assert event_error(9, lambda hand: hand.table(o1=hand.text("n"))) == ("event.shortName", "missing")
    assert event_error(10, lambda hand: hand.table())[0] == "event"
    assert event_error(12, lambda hand: hand.table(o0=hand.text(b"\xff"))) == (
        "event.sourceName",
        "not UTF-8 text",
    )
    assert event_error(3, lambda hand: hand.table(o0=hand.bytes(b"\xed\x01" + bytes(32)), i1=2)) == (
        "event.datasetKind",
        "unknown DatasetKind 2",
    )
    assert (
        event_error(1, lambda hand: hand.table(o0=hand.bytes(b"\x16\x20\x00")))[0] == "event.prevCheckpoint"
    )
    assert event_error(1, lambda hand: hand.table(o6=hand.table(o0=hand.text("[1]")))) == (
        "event.extra.entries",
        "not a JSON object",
    )
    assert event_error(3, lambda hand: hand.table(o0=hand.bytes(b"\xed\x01" + bytes(32)), i1=-1))[1] == (
        "unknown DatasetKind -1"
    )
    deep = "[" * 500 + "]" * 500
    assert event_error(1, lambda hand: hand.table(o6=hand.table(o0=hand.text(f'{{"a":{deep}}}'))))[1] == (
        "nested too deeply"
    )

    def queries(hand: Hand) -> int:
        good, bad = hand.table(o1=hand.text("q")), hand.table()
        sql = hand.table(o0=hand.text("spark"), o3=hand.vector(good, bad))
        return hand.table(o0=hand.vector(), b1=1, o2=sql)

    assert event_error(5, queries) == ("event.transform.queries[1].query", "missing")
    assert broken(Hand().block(0, 0)).where == "event"
    assert broken(Hand().block(1, 0)).message == "union type without a value"


@pytest.mark.parametrize(
    "moment",
    [(0, 1, 0, 0), (10_000, 1, 0, 0), (2021, 366, 0, 0), (2020, 367, 0, 0), (2020, 0, 0, 0),
     (2020, 1, 86_400, 0), (2020, 1, 0, 10**9), (-2020, 1, 0, 0)],
)  # fmt: skip
def test_impossible_times_are_refused(moment: tuple[int, int, int, int]):
    hand = Hand()
    assert broken(hand.block(8, hand.table(), moment=moment)).where == "systemTime"


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ((1, 1, 0, 0), "0001-01-01T00:00:00Z"),
        ((2020, 366, 86_399, 999_999_999), "2020-12-31T23:59:59.999999999Z"),
        ((9999, 365, 86_399, 999_999_999), "9999-12-31T23:59:59.999999999Z"),
        ((1969, 365, 1, 500_000_000), "1969-12-31T00:00:01.500Z"),
    ],
)
def test_boundary_times_round_trip(moment: tuple[int, int, int, int], text: str):
    hand = Hand()
    data = hand.block(8, hand.table(), moment=moment)
    block = decode_block(data).block
    assert block.system_time == Timestamp.parse(text)
    assert decode_block(encode_block(block)).block == block


def test_dataset_id_from_before_034_is_reported():
    hand = Hand()
    old_id = b"\x01\xed\x01\x16\x20" + bytes(32)
    error = broken(hand.block(3, hand.table(o0=hand.bytes(old_id))))
    assert error.where == "event.datasetId"
    assert "before Open Data Fabric 0.34" in error.message
    assert error.hint


def _schema_event(hand: Hand, data_type: tuple[int, int]) -> int:
    number, offset = data_type
    column = hand.table(o0=hand.text("c"), b1=number, o2=offset)
    return hand.table(o1=hand.table(o0=hand.vector(column)))


def test_tables_that_expand_exponentially_are_rejected_quickly():
    hand = Hand()
    inner = hand.table()
    number = 2
    for _ in range(24):  # each map takes the one before as its key and as its value
        inner = hand.table(b0=number, o1=inner, b2=number, o3=inner)
        number = 18
    data = hand.block(10, _schema_event(hand, (18, inner)))
    with max_calls(20_000):
        error = broken(data)
    assert error.message == "more content than its size allows"


def test_strings_shared_too_often_are_rejected():
    hand = Hand()
    text = hand.text("x" * 100_000)
    error = broken(hand.block(8, hand.table(o1=hand.vector(*[text] * 10_000))))
    assert error.message == "more content than its size allows"


def test_nesting_is_limited():
    def nested(levels: int) -> bytes:
        hand = Hand()
        inner, number = hand.table(), 2
        for _ in range(levels):
            inner, number = hand.table(b0=number, o1=inner), 20
        return hand.block(10, _schema_event(hand, (number, inner)))

    assert isinstance(decode_block(nested(50)).block.event, model.SetDataSchema)
    assert broken(nested(5_000)).message == "nested too deeply"


def test_truncation_anywhere_is_malformed(vectors: list[dict[str, Any]]):
    raw = bytes.fromhex(vectors[2]["manifest_hex"])
    for size in range(len(raw)):
        assert broken(raw[:size])


def _raw(root: int, *parts: tuple[str, int]) -> bytes:
    """A buffer of 64 bytes: the root's offset, and numbers at their places."""
    data = bytearray(64)
    struct.pack_into("<I", data, 0, root)
    for form, number in parts:
        struct.pack_into("<" + form[0], data, int(form[1:]), number)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (_raw(0), "invalid offset"),
        (_raw(3), "invalid offset"),
        (_raw(65), "invalid offset"),
        (_raw(62), "offset past the end of the data"),
        (_raw(4, ("i4", 8)), "vtable outside of the data"),
        (_raw(4, ("i4", -60)), "offset past the end of the data"),
        (_raw(4, ("i4", -20), ("H24", 3), ("H26", 4)), "invalid vtable size"),
        (_raw(4, ("i4", -20), ("H24", 5), ("H26", 4)), "invalid vtable size"),
        (_raw(4, ("i4", -20), ("H24", 1000), ("H26", 4)), "invalid vtable size"),
        (_raw(4, ("i4", -20), ("H24", 60), ("H26", 4)), "offset past the end of the data"),
        (_raw(4, ("i4", -20), ("H24", 4), ("H26", 3)), "invalid table size"),
        (_raw(4, ("i4", -20), ("H24", 4), ("H26", 61)), "invalid table size"),
        (_raw(4, ("i4", -20), ("H24", 6), ("H26", 8), ("H28", 2)), "outside of its table"),
        (_raw(4, ("i4", -20), ("H24", 6), ("H26", 8), ("H28", 5)), "outside of its table"),
    ],
)
def test_invalid_offsets_and_vtables_are_rejected(data: bytes, problem: str):
    assert broken(data).message.endswith(problem)


def test_a_list_longer_than_the_bytes_is_refused_before_it_is_read():
    hand = Hand()
    keywords = hand.bytes(b"")  # a length with nothing behind it, where offsets are expected
    data = bytearray(hand.block(8, hand.table(o1=keywords)))
    error = None
    for at in range(0, len(data), 4):  # whichever of these is the length
        patched = bytes(data[:at]) + (2**30).to_bytes(4, "little") + bytes(data[at + 4 :])
        try:
            decode_block(patched)
        except MalformedBlock as caught:
            if caught.where == "event.keywords":
                error = caught
    assert error is not None
    assert error.message == "longer than the remaining bytes"


def test_attributes_are_written_compactly_and_sorted():
    entries = {"b": 1, "a": {"d": [1, 2.5], "c": "é"}}
    event = model.AddData(extra=model.ExtraAttributes(entries=entries))
    assert '{"a":{"c":"é","d":[1,2.5]},"b":1}'.encode() in encode_table(event)


def test_blocks_are_written_in_version_2_or_3():
    block = model.MetadataBlock(
        system_time=Timestamp.parse("2050-01-01T12:00:00Z"),
        sequence_number=0,
        event=model.SetInfo(description="foo"),
    )
    assert (len(encode_block(block, 2)), len(encode_block(block, 3))) == (112, 120)
    assert encode_block(block) == encode_block(block, 3)
    with pytest.raises(ValueError, match="expected 2 or 3"):
        encode_block(block, 4)
