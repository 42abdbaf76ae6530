"""Everything that can be wrong with a dataset is found, named, and does not hide the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.model import IntegrityReport
from odf_engine.errors import Cancelled, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    AddData,
    DatasetKind,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
    SetTransform,
    SetVocab,
    Sql,
    TransformInput,
)
from odf_engine.metadata.timestamp import Timestamp


def check(builder: Any, first: int | None = None, last: int | None = None) -> IntegrityReport:
    return verify(builder.dataset, Reporter(), first, last)


def found(report: IntegrityReport) -> list[tuple[str, str]]:
    """Kinds of findings, with the first 8 digits of the block."""
    assert report.valid == (not report.findings)
    return [(finding.kind, finding.block.removeprefix("f1620")[:8]) for finding in report.findings]


def kinds(report: IntegrityReport) -> list[str]:
    return [kind for kind, _ in found(report)]


def file(builder: Any, kind: str, name: object) -> Path:
    return builder.dataset.folder / kind / str(name)


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(bytes(data))


def test_a_sound_dataset_is_valid(builder: Any) -> None:
    report = check(builder)
    assert report == IntegrityReport(valid=True, blocks=6, slices=3, transforms=0, findings=[])
    assert msgspec.json.decode(msgspec.json.encode(report))["findings"] == []


def test_a_range_checks_only_its_blocks(builder: Any) -> None:
    names = builder.blocks
    flip(builder.slices[0], 5)
    report = check(builder, 3, 4)
    assert (report.valid, report.blocks, report.slices) == (True, 2, 1)
    assert found(check(builder, 2, 2))[0] == ("slice-physical-hash", names[2].abbreviated)
    assert check(builder, last=1).blocks == 2 and check(builder, first=5).blocks == 1
    assert check(builder, first=99).blocks == 0
    with pytest.raises(UsageError):
        check(builder, 3, 2)


def test_verified_rows_are_not_decoded_again(empty: Any) -> None:
    """While the file has the same bytes, and the chain says the same of it."""
    known = BlockIndex(":memory:")
    builder = empty
    for cities in ("ABC", "D", "EF"):
        builder.data(list(cities))

    def again() -> IntegrityReport:
        return verify(builder.dataset, Reporter(), known=known)

    assert (again().rows_known, again().rows_known) == (0, 3)
    block = builder.data(["G"], edit=lambda t: set_column(t, "op", [9]))
    for _ in range(2):  # what is wrong is not remembered
        report = again()
        assert (report.rows_known, found(report)) == (3, [("slice-op", block.abbreviated)])
    flip(builder.slices[0], 5)
    assert ("slice-physical-hash", builder.blocks[2].abbreviated) in found(again())
    data = builder.dataset.block(builder.blocks[3]).block.event.new_data
    wrong = msgspec.structs.replace(data, logical_hash=Multihash(data.logical_hash.code, bytes(32)))
    block = builder.block(AddData(prev_offset=6, new_data=wrong, new_watermark=LATER))
    assert ("slice-logical-hash", block.abbreviated) in found(again())


def test_findings_come_in_the_order_of_the_chain(empty: Any) -> None:
    for number in range(40):
        empty.data(["x"] * 5, edit=lambda t, bad=number % 2: set_column(t, "op", [9 * bad] * 5))
    assert found(check(empty)) == [("slice-op", block.abbreviated) for block in empty.blocks[3::2]]


def test_progress_is_reported_and_cancelling_stops(builder: Any) -> None:
    class Listening(Reporter):
        def __init__(self) -> None:
            super().__init__()
            self.phases: list[str] = []
            self.last: dict[str, Any] = {}

        def phase(self, name: str) -> None:
            self.phases.append(name)

        def set_amounts(self, **amounts: Any) -> None:
            self.last = amounts

    reporter = Listening()
    verify(builder.dataset, reporter)
    folder = builder.dataset.folder
    size = sum(
        path.stat().st_size
        for kind in ("blocks", "data", "checkpoints")
        for path in (folder / kind).iterdir()
    )
    assert reporter.phases == ["chain", "verify"]
    assert reporter.last == {"files": 6, "total_files": 6, "bytes": size}
    reporter.cancel()
    with pytest.raises(Cancelled):
        verify(builder.dataset, reporter)


def test_lost_head_is_a_finding_and_blocks_are_checked(builder: Any) -> None:
    file(builder, "refs", "head").unlink()
    report = check(builder)
    assert found(report) == [("head-missing", "head")] and report.blocks == 6 and report.slices == 3


@pytest.mark.parametrize("text", ["garbage", "", "f1620abcd"])
def test_a_head_that_is_no_hash_is_a_finding(builder: Any, text: str) -> None:
    file(builder, "refs", "head").write_text(text)
    report = check(builder)
    assert found(report) == [("head-malformed", "head")] and report.blocks == 6


def test_a_head_that_names_no_block_is_a_finding(builder: Any) -> None:
    name = Multihash.sha3_256(b"nothing")
    file(builder, "refs", "head").write_text(str(name))
    report = check(builder)
    assert found(report) == [("block-missing", name.abbreviated)] and report.blocks == 7


def test_an_empty_folder_has_no_head(tmp_path: Path, builder: Any) -> None:
    shutil.rmtree(builder.dataset.folder)
    builder.dataset.folder.mkdir()
    report = check(builder)
    assert found(report) == [("head-missing", "head"), ("chain-incomplete", "head")]


@pytest.mark.complete
def test_each_flipped_byte_of_a_block_is_one_finding(builder: Any) -> None:
    path = file(builder, "blocks", builder.blocks[3])
    whole = path.read_bytes()
    for at in range(len(whole)):
        flip(path, at)
        assert found(check(builder)) == [("block-hash", builder.blocks[3].abbreviated)], at
        path.write_bytes(whole)


def test_malformed_block_is_found(builder: Any) -> None:
    data = b"not a block, by its right name"
    name = Multihash.sha3_256(data)
    builder.put("blocks", name, data)
    file(builder, "refs", "head").write_text(str(name))
    assert found(check(builder)) == [("block-malformed", name.abbreviated)]


def test_a_damaged_block_does_not_hide_what_is_behind_it(builder: Any) -> None:
    names = builder.blocks
    flip(file(builder, "blocks", names[3]), 30)
    for number in (0, 2):
        flip(builder.slices[number], 5)
    report = check(builder)
    assert (report.blocks, report.slices) == (6, 3)
    first = [kind for kind, block in found(report)].index("block-hash")
    assert {block for _, block in found(report)[:first]} == {names[2].abbreviated}
    assert {block for _, block in found(report)[first + 1 :]} == {names[5].abbreviated}


@pytest.mark.parametrize("number", range(6))
def test_any_lost_block_is_one_finding(builder: Any, number: int) -> None:
    names = builder.blocks
    file(builder, "blocks", names[number]).unlink()
    report = check(builder)
    if number == 0:
        assert found(report) == [
            ("chain-incomplete", names[0].abbreviated),
            ("block-missing", names[0].abbreviated),
        ]
    else:
        assert found(report) == [("block-missing", names[number].abbreviated)]
    assert report.blocks == 6
    assert report.slices == (2 if number in (2, 4, 5) else 3)


def test_swapped_blocks_are_both_found(builder: Any) -> None:
    names = builder.blocks
    one, other = file(builder, "blocks", names[2]), file(builder, "blocks", names[4])
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    assert found(check(builder)) == [
        ("block-hash", names[2].abbreviated),
        ("block-hash", names[4].abbreviated),
    ]


def test_a_truncated_block_is_found(builder: Any) -> None:
    names = builder.blocks
    path = file(builder, "blocks", names[5])
    for length in (0, 1, 40):
        path.write_bytes(path.read_bytes()[:length])
        assert found(check(builder)) == [("block-hash", names[5].abbreviated)]


def test_the_chain_of_another_dataset_is_found(builder: Any, tmp_path: Path) -> None:
    def in_folder_of(dataset_id: DatasetId) -> IntegrityReport:
        folder = tmp_path / dataset_id.multibase
        shutil.copytree(builder.dataset.folder, folder)
        return verify(Dataset(folder, BlockIndex(":memory:")), Reporter())

    assert kinds(in_folder_of(DatasetId(bytes(32)))) == ["identity"]
    assert in_folder_of(DatasetId(bytes(range(32)))).valid


LATER = Timestamp.parse("2030-01-01T00:00:00Z")
INPUT = [TransformInput(str(DatasetId(bytes(32))), "a")]
SHA = Multihash.sha3_256(b"x")
INFO = SetInfo("x", None)


@pytest.mark.parametrize(
    ("rule", "store"),
    [
        ("sequence-number", lambda b: b.block(INFO, sequence_number=9)),
        ("system-time", lambda b: b.block(INFO, system_time=Timestamp(0))),
        ("seed-once", lambda b: b.block(Seed(DatasetId(bytes(32)), DatasetKind.Root))),
        ("prev-offset", lambda b: b.block(AddData(prev_offset=3, new_watermark=LATER))),
        ("offset-sequence", lambda b: b.data(["x"], prev_offset=4)),
        ("watermark", lambda b: b.data(["x"], new_watermark=Timestamp.parse("2020-01-01T00:00:00Z"))),
        ("watermark", lambda b: b.data(["x"], new_watermark=None)),
        ("prev-checkpoint", lambda b: b.data(["x"], prev_checkpoint=SHA)),
        ("data-not-empty", lambda b: b.block(AddData(prev_offset=5))),
        ("event-fits-kind", lambda b: b.block(SetTransform(INPUT, Sql("spark")))),
        ("schema-given", lambda b: b.block(SetDataSchema(b"not a schema"))),
    ],
)  # fmt: skip
def test_a_broken_append_rule_is_a_finding(
    builder: Any, rule: str, store: Callable[[Any], Multihash]
) -> None:
    broken = store(builder)
    assert (rule, broken.abbreviated) in found(check(builder))


def test_the_first_block_must_be_a_seed(tmp_path: Path, builder: Any) -> None:
    alone = type(builder)(tmp_path / "alone")
    name = alone.block(INFO)
    assert found(check(alone)) == [("seed-first", name.abbreviated)]


def test_data_before_its_schema_is_found(tmp_path: Path, builder: Any) -> None:
    early = type(builder)(tmp_path / "early")
    early.block(Seed(DatasetId(bytes(32)), DatasetKind.Root))
    early.data(["A"])
    assert kinds(check(early)) == ["schema-before-data"]


def test_findings_behind_a_broken_rule_are_found_too(builder: Any) -> None:
    one = builder.block(INFO, system_time=Timestamp(0))
    builder.data(["x"], new_watermark=None)
    flip(builder.slices[3], 5)
    report = check(builder)
    assert ("system-time", one.abbreviated) in found(report)
    assert {"watermark", "slice-physical-hash"} <= set(kinds(report))


ROWS = {
    "slice-physical-hash",
    "slice-malformed",
    "slice-logical-hash",
    "slice-schema",
    "slice-rows",
    "slice-offset",
    "slice-op",
    "slice-system-time",
    "slice-event-time",
}


@pytest.mark.complete
def test_each_flipped_byte_of_a_slice_is_found(builder: Any) -> None:
    path = builder.slices[0]
    block = builder.blocks[2].abbreviated
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        flip(path, at)
        report = check(builder)
        assert ("slice-physical-hash", block) in found(report), at
        assert {name for _, name in found(report)} == {block}, at
        assert set(kinds(report)) <= ROWS, at
        path.write_bytes(whole)


def test_a_lost_slice_is_found(builder: Any) -> None:
    builder.slices[1].unlink()
    assert found(check(builder)) == [("slice-missing", builder.blocks[4].abbreviated)]


def test_a_truncated_slice_is_found(builder: Any) -> None:
    path = builder.slices[0]
    path.write_bytes(path.read_bytes()[:-10])
    assert kinds(check(builder)) == ["slice-size", "slice-physical-hash", "slice-malformed"]
    path.write_bytes(b"")
    assert kinds(check(builder)) == ["slice-size", "slice-physical-hash", "slice-malformed"]


def test_swapped_slices_are_found(builder: Any) -> None:
    one, other = builder.slices[0], builder.slices[2]
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    report = check(builder)
    names = builder.blocks
    for block in (names[2].abbreviated, names[5].abbreviated):
        mine = {kind for kind, where in found(report) if where == block}
        assert {"slice-physical-hash", "slice-logical-hash", "slice-rows", "slice-offset"} <= mine


def test_rewritten_slice_differs_in_bytes_but_not_in_rows(builder: Any) -> None:
    path = builder.slices[0]
    pq.write_table(pq.read_table(path), path, compression="gzip")
    assert set(kinds(check(builder))) == {"slice-size", "slice-physical-hash"}


def set_column(table: pa.Table, name: str, values: Any, kind: pa.DataType | None = None) -> pa.Table:
    at = table.schema.get_field_index(name)
    kind = kind or table.schema.field(name).type
    return table.set_column(at, pa.field(name, kind), pa.array(values, kind))


LATE = 4_102_444_800_000  # in 2100


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        ("slice-offset", lambda t: set_column(t, "offset", [0, 2, 1])),
        ("slice-offset", lambda t: set_column(t, "offset", [1, 2, 3])),
        ("slice-offset", lambda t: set_column(t, "offset", [0, None, 2])),
        ("slice-offset", lambda t: set_column(t, "offset", [0, 1, 2**64 - 1])),
        ("slice-offset", lambda t: set_column(t, "offset", ["0", "1", "2"], pa.string())),
        ("slice-rows", lambda t: t.slice(0, 2)),
        ("slice-op", lambda t: set_column(t, "op", [0, 2**64 - 1, 0], pa.uint64())),
        ("slice-op", lambda t: set_column(t, "op", [0, -1, 0], pa.int32())),
        ("slice-op", lambda t: set_column(t, "op", [0, 4, 0])),
        ("slice-op", lambda t: set_column(t, "op", [0, 3, 0])),
        ("slice-op", lambda t: set_column(t, "op", [0, 2, 0])),
        ("slice-op", lambda t: set_column(t, "op", [0, 0, 2])),
        ("slice-op", lambda t: set_column(t, "op", [3, 0, 0])),
        ("slice-op", lambda t: set_column(t, "op", [None, 0, 0])),
        ("slice-system-time", lambda t: set_column(t, "system_time", [0, 0, LATE])),
        ("slice-system-time", lambda t: set_column(t, "system_time", [0, None, 0])),
        ("slice-event-time", lambda t: set_column(t, "event_time", [0, 0, None])),
        ("slice-schema", lambda t: set_column(t, "people", [1, 2, 3], pa.int32())),
        ("slice-schema", lambda t: t.rename_columns([*t.column_names[:4], "people", "city"])),
        ("slice-schema", lambda t: t.drop_columns(["people"])),
        ("slice-schema", lambda t: t.append_column("more", pa.array([1, 2, 3]))),
        ("slice-event-time", lambda t: t.drop_columns(["event_time"])),
    ],
)  # fmt: skip
def test_wrong_rows_in_a_committed_slice_are_found(
    empty: Any, kind: str, edit: Callable[[pa.Table], pa.Table]
) -> None:
    block = empty.data(["A", "B", "C"], edit=edit)
    report = check(empty)
    assert (kind, block.abbreviated) in found(report)
    assert report.intact == (set(kinds(report)) <= {"slice-op", "slice-retraction"})
    assert len(kinds(report)) == len(set(kinds(report)))
    assert "slice-logical-hash" not in kinds(report)


def operations(ops: list[int], people: list[int] | None = None) -> Callable[[pa.Table], pa.Table]:
    """Rows with these operations and equal data fields, except for ``people``."""

    def edit(table: pa.Table) -> pa.Table:
        return set_column(set_column(table, "op", ops), "people", people or [0] * len(ops))

    return edit


def test_correction_across_batches_is_valid(empty: Any) -> None:
    empty.data(["A"] * 4, edit=operations([0, 2, 3, 1]))
    assert check(empty).valid


def test_a_retraction_of_a_row_that_does_not_exist_is_found(empty: Any) -> None:
    times = [1_714_521_600_000] * 3

    def at_one_time(edit: Callable[[pa.Table], pa.Table]) -> Callable[[pa.Table], pa.Table]:
        return lambda table: set_column(edit(table), "event_time", times[: table.num_rows])

    known = BlockIndex(":memory:")

    def again() -> IntegrityReport:
        return verify(empty.dataset, Reporter(), known=known)

    empty.data(["A", None, "B"], edit=at_one_time(operations([0, 0, 0])))
    assert (again().valid, again().rows_known) == (True, 1)
    empty.data([None, "A"], edit=at_one_time(operations([2, 3])))
    assert again().valid
    other_value = empty.data(["A", "B"], edit=at_one_time(operations([1, 1], [0, 1])))
    other_time = empty.data(["B"], edit=operations([1]))
    for report in (check(empty), again(), again()):
        assert report.intact and not report.valid
        assert found(report) == [
            ("slice-retraction", other_value.abbreviated), ("slice-retraction", other_time.abbreviated)
        ]  # fmt: skip
    assert [finding.message[:6] for finding in again().findings] == ["row 1 ", "row 0 "]
    empty.data(["A"], edit=at_one_time(operations([1])))  # the second of two rows
    twice = empty.data(["A"], edit=at_one_time(operations([1])))
    assert found(again())[2:] == [("slice-retraction", twice.abbreviated)]
    assert found(check(empty, first=7)) == [("slice-retraction", twice.abbreviated)]
    # Nothing is concluded from the rows of a damaged slice.
    flip(empty.slices[0], 5)
    report = check(empty)
    assert not report.intact
    assert {finding.kind for finding in report.findings} & {"slice-retraction"} == set()
    assert check(empty, first=7).valid


def test_rows_older_than_the_slice_before_are_found(empty: Any) -> None:
    empty.data(["A"])
    block = empty.data(["B"], edit=lambda t: set_column(t, "system_time", [0]))
    assert found(check(empty)) == [("slice-system-time", block.abbreviated)]


def test_the_message_names_the_row(empty: Any) -> None:
    empty.data(["A", "B", "C"], edit=lambda t: set_column(t, "op", [0, 0, 9]))
    (finding,) = check(empty).findings
    assert finding.message == "row 2 has invalid operation 9, expected 0 to 3"


def test_rows_are_checked_across_batches(empty: Any) -> None:
    rows = 1 << 18
    half = rows // 2  # where the second row group begins
    ops = [0] * rows
    ops[half - 1 : half + 1] = [2, 3]
    empty.data(["x"] * rows, edit=operations(ops))
    assert check(empty).valid
    block = empty.data(
        ["x"] * rows, edit=lambda t: set_column(t, "offset", [*t["offset"].to_pylist()[:-1], 0])
    )
    (finding,) = check(empty).findings
    assert (finding.kind, finding.block) == ("slice-offset", str(block))
    assert finding.message.startswith(f"row {rows - 1} has offset 0")


def test_system_column_names_must_match_the_vocabulary(empty: Any) -> None:
    vocabulary = empty.block(SetVocab(offset_column="row"))
    block = empty.data(["A"])
    assert found(check(empty)) == [
        ("vocabulary-fixed", vocabulary.abbreviated),
        ("slice-offset", block.abbreviated),
    ]


def test_interval_and_rows_must_agree(empty: Any) -> None:
    block = empty.data(["A", "B"])
    data = empty.dataset.block(block).block.event.new_data
    for start, end in ((2, 5), (5, 2), (0, 2**64 - 1), (2**64 - 1, 2**64 - 1)):
        wrong = msgspec.structs.replace(data, offset_interval=OffsetInterval(start, end))
        last = empty.block(AddData(prev_offset=1, new_data=wrong, new_watermark=LATER))
        assert ("slice-rows", last.abbreviated) in found(check(empty))


def test_a_damaged_checkpoint_is_found(builder: Any) -> None:
    (path,) = (builder.dataset.folder / "checkpoints").iterdir()
    block = builder.blocks[5].abbreviated
    flip(path)
    assert found(check(builder)) == [("checkpoint-physical-hash", block)]
    path.write_bytes(b"short")
    assert found(check(builder)) == [("checkpoint-size", block), ("checkpoint-physical-hash", block)]
    path.unlink()
    assert found(check(builder)) == [("checkpoint-missing", block)]
