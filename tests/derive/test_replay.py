"""Verification of derivatives by running every transaction again."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import read_batches, write_slice
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.model import IntegrityReport
from odf_engine.derive.verify.replay import Replay, first_difference
from odf_engine.errors import InvalidQuery, OdfError
from odf_engine.metadata.model import DataSlice, ExecuteTransform
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import Deriving


def check(deriving: Deriving, entry: DatasetEntry, first: int | None = None) -> IntegrityReport:
    replay = Replay(deriving.workspace, entry, deriving.engine, Reporter())
    return verify(entry.dataset, Reporter(), first, None, replay)


@pytest.fixture
def made(deriving: Deriving) -> DatasetEntry:
    root = deriving.root()
    made = deriving.derivative("SELECT event_time, city, x * 10 AS y, system_time() AS known FROM input")
    for day in (1, 2, 3):
        deriving.rows(root, (day, "a", day), (day, "b", -day))
        deriving.run(made)
    return made


def test_unchanged_dataset_replays_without_findings(deriving: Deriving, made: DatasetEntry) -> None:
    report = check(deriving, made)
    assert (report.valid, report.transforms, report.findings) == (True, 3, [])
    last = made.dataset.state().sequence_number
    assert check(deriving, made, first=last).transforms == 1
    assert list((deriving.workspace.odf / "cache").glob("replay-*")) == []


def forge(entry: DatasetEntry, value: int) -> None:
    """Another value in the newest slice, and a block that agrees with it, as whoever holds the files can."""
    dataset = entry.dataset
    newest = next(iter(dataset.blocks()))
    event = newest.block.event
    assert isinstance(event, ExecuteTransform) and event.new_data is not None
    table = pa.Table.from_batches(read_batches(dataset.slice_path(event.new_data.physical_hash)))
    column = pa.array([value, *table.column("y").to_pylist()[1:]], pa.int64())
    table = table.set_column(table.schema.get_field_index("y"), "y", column)
    staged = dataset.staging_path("data")
    written = write_slice(
        table.drop_columns(["offset", "system_time"]).to_batches(),
        SliceProperties(
            schema=table.schema,
            vocab=dataset.state().vocabulary,
            first_offset=event.new_data.offset_interval.start,
            system_time=newest.block.system_time,
            fallback_event_time=Timestamp.now(),
        ),
        path=staged,
        reporter=Reporter(),
    )
    assert written is not None
    data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
    before = newest.block.prev_block_hash
    assert before is not None
    (dataset.folder / "refs" / "head").write_text(str(before))
    dataset.commit(
        [replace(event, new_data=data)],
        system_time=newest.block.system_time, expected_head=before, data=staged,
    )  # fmt: skip


def test_consistently_forged_value_is_found(deriving: Deriving, made: DatasetEntry) -> None:
    forge(made, value=31)
    assert verify(made.dataset, Reporter()).valid  # chain and files agree with each other
    (finding,) = check(deriving, made).findings
    assert finding.kind == "transform-data"
    assert finding.block == str(made.dataset.head())
    assert "row 4: stored" in finding.message and "y=31" in finding.message and "y=30" in finding.message


def test_input_that_ends_earlier_leaves_transactions_unchecked(
    deriving: Deriving, made: DatasetEntry
) -> None:
    """The copy of the input is behind, or was reset: nothing shows that this dataset is invalid."""
    dataset = deriving.workspace.resolve("input").dataset
    blocks = list(dataset.blocks())
    (dataset.folder / "refs" / "head").write_text(str(blocks[1].hash))
    for stored in (True, False):
        if not stored:
            (dataset.folder / "blocks" / str(blocks[0].hash)).unlink()
        report = check(deriving, made)
        assert (report.findings, report.valid, report.transforms) == ([], True, 2)
        (remark,) = report.unchecked
        assert remark.kind == "input-behind"
        assert remark.message.startswith("input 'input' ends at block 3, and blocks that this dataset was")
        assert "odf pull input" in remark.message


def test_input_with_another_history_leaves_transactions_unchecked(
    deriving: Deriving, made: DatasetEntry
) -> None:
    root = deriving.workspace.resolve("input")
    blocks = list(root.dataset.blocks())
    (root.dataset.folder / "refs" / "head").write_text(str(blocks[-2].hash))
    for day in (1, 2, 3, 4):
        deriving.rows(root, (day, "a", 7), (day, "b", 7))
    for stored in (True, False):
        if not stored:
            for block in blocks[:-2]:
                (root.dataset.folder / "blocks" / str(block.hash)).unlink()
        report = check(deriving, made)
        assert (report.findings, report.valid, report.transforms) == ([], True, 0)
        assert {each.kind for each in report.unchecked} == {"input-diverged"}
        assert "does not have the history that this dataset was derived from" in report.unchecked[0].message


def test_replay_that_fails_for_another_reason_than_the_query_shows_nothing(
    deriving: Deriving, made: DatasetEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: OdfError) -> None:
        def run(*_: object) -> None:
            raise error

        monkeypatch.setattr("odf_engine.derive.verify.replay.execute_transaction", run)

    fail(OdfError("the disk is full", hint="free disk space"))
    report = check(deriving, made)
    assert report.valid and {each.kind for each in report.unchecked} == {"replay-failed"}
    assert "the disk is full: free disk space" in report.unchecked[0].message
    fail(InvalidQuery("unknown column"))
    assert {finding.kind for finding in check(deriving, made).findings} == {"transform-failed"}


def test_unreadable_block_of_an_input_is_not_blamed_on_the_dataset(
    deriving: Deriving, made: DatasetEntry
) -> None:
    dataset = deriving.workspace.resolve("input").dataset
    block = next(iter(dataset.blocks()))
    (dataset.folder / "blocks" / str(block.hash)).write_bytes(b"damaged")
    report = check(deriving, made)
    assert report.valid and {each.kind for each in report.unchecked} == {"input-unreadable"}


def test_first_difference_ignores_batch_boundaries() -> None:
    def batches(*parts: list[int]) -> list[pa.RecordBatch]:
        return [pa.record_batch({"x": part}) for part in parts]

    assert first_difference(iter(batches([1, 2], [3])), iter(batches([1], [2, 3]))) is None
    three, four, two = (batches([value])[0] for value in (3, 4, 2))
    assert first_difference(iter(batches([1, 2], [3])), iter(batches([1], [2, 4]))) == (2, three, four)
    assert first_difference(iter(batches([1])), iter(batches([1], [2]))) == (1, None, two)
    nan = float("nan")
    assert (
        first_difference(iter([pa.record_batch({"x": [nan]})]), iter([pa.record_batch({"x": [nan]})])) is None
    )
