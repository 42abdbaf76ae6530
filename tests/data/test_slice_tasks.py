"""Tasks of a cluster write the slices that one process writes."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet import row_groups, slice_tasks
from odf_engine.data.parquet.row_groups import SliceLimits
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slice_tasks import (
    SliceTask,
    SourceRows,
    StoredRows,
    is_in_order,
    join_row_groups,
    plan_calls,
    plan_slices,
    run_calls,
    store_partition,
    store_rows,
    write_task_slices,
)
from odf_engine.data.parquet.slices import WrittenSlice, slice_schema
from odf_engine.errors import BadData, OdfError, Unsupported
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.metadata.timestamp import Timestamp

ROWS = pa.schema([
    ("op", pa.uint8()), ("event_time", pa.timestamp("ms", "UTC")), ("text", pa.string()),
    ("numbers", pa.list_(pa.int64())),
])  # fmt: skip
PROPERTIES = SliceProperties(
    slice_schema(ROWS.remove(0), DEFAULT_VOCABULARY),
    DEFAULT_VOCABULARY,
    first_offset=7,
    system_time=Timestamp.from_ms(1000),
    fallback_event_time=Timestamp.from_ms(500),
)

SOURCE = SourceRows(PROPERTIES)


def store(task: SliceTask, partitions: Sequence[pa.Table]) -> list[StoredRows]:
    """Store the rows of partitions by tasks, which are sent to another process."""
    task = pickle.loads(pickle.dumps(task))
    results = [
        result
        for table in partitions
        for result in store_partition(task, SourceRows(task.properties), table.schema, messages(table))
    ]
    return [part for parts in require(results) for part in parts]


def messages(table: pa.Table) -> Iterator[bytes]:
    return (batch.serialize().to_pybytes() for batch in table.to_batches(max_chunksize=3))


def write(task: SliceTask, parts: Sequence[StoredRows]) -> list[WrittenSlice]:
    slices = plan_slices(task, parts)
    calls = plan_calls(task, parts, slices)
    results = require(pickle.loads(pickle.dumps(list(run_calls(pickle.loads(pickle.dumps(calls)))))))
    return [join_row_groups(task, results)] if len(slices) == 1 else results


def require(results: list[Any]) -> list[Any]:
    assert not any(isinstance(result, OdfError) for result in results), results
    return results


values = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2]),
    st.none() | st.integers(0, 9),
    st.none() | st.text(max_size=12),
    st.none() | st.lists(st.none() | st.integers(0, 9), max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(values, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    limits=st.none() | st.builds(SliceLimits, st.integers(1, 40), st.integers(1, 400)),
    max_rows=st.integers(1, 20),
    counted_until=st.none() | st.just(Timestamp.from_ms(4)),
)
def test_tasks_write_the_slices_of_one_process(
    rows: list[tuple[object, ...]],
    cuts: list[int],
    limits: SliceLimits | None,
    max_rows: int,
    counted_until: Timestamp | None,
) -> None:
    table = pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * 4, schema=ROWS)
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    partitions = [table.slice(start, end - start) for start, end in pairwise(bounds)]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(row_groups, "MAX_ROWS", max_rows)
        patch.setattr(row_groups, "MAX_BYTES", 200)
        patch.setattr(slice_tasks, "_MAX_FILE_BYTES", 300)
        patch.setattr(slice_tasks, "_GROUPS_OF_TASK", 2)
        properties = replace(PROPERTIES, counted_until=counted_until)
        task = SliceTask(properties, limits, Path(folder), pa.__version__)
        by_tasks = write(task, store(task, partitions))
        paths = (Path(folder) / f"{number}" for number in range(len(rows)))
        alone = write_task_slices(table.to_batches(), task, lambda: next(paths), Reporter())
        assert [part.path.read_bytes() for part in by_tasks] == [part.path.read_bytes() for part in alone]
    assert [part._replace(path=Path()) for part in by_tasks] == [part._replace(path=Path()) for part in alone]


def test_row_group_of_a_correction_beyond_the_limit_stays_apart(tmp_path: Path) -> None:
    rows = pa.table([[0, 0, 2, 3], [1] * 4, ["a"] * 4, [[]] * 4], schema=ROWS)
    task = SliceTask(PROPERTIES, SliceLimits(3, 1 << 20), tmp_path, pa.__version__)
    (by_tasks,) = write(task, store(task, [rows.slice(0, 2), rows.slice(2)]))
    (alone,) = write_task_slices(rows.to_batches(), task, lambda: tmp_path / "alone", Reporter())
    assert by_tasks.path.read_bytes() == alone.path.read_bytes()


@pytest.mark.parametrize(
    ("times", "ascends"),
    [
        ([[1, 2], [2, 3]], True),
        ([[1, 2, None], [499]], False),
        ([[None], [500, 501]], True),
        ([[2], [1]], False),
        ([[1, 3, 2], [4]], False),
        ([[1, 2, 3, 9, 4], [10]], False),
        ([[], [], []], True),
    ],
)
def test_order_of_event_times(times: list[list[int | None]], ascends: bool, tmp_path: Path) -> None:
    task = SliceTask(PROPERTIES, None, tmp_path, pa.__version__)
    partitions = [
        pa.table([[0] * len(part), part, ["a"] * len(part), [[]] * len(part)], schema=ROWS) for part in times
    ]
    assert is_in_order(store(task, partitions)) == ascends


def test_errors_are_results(tmp_path: Path) -> None:
    task = SliceTask(PROPERTIES, None, tmp_path, pa.__version__)
    wrong = pa.table({"op": [9], "event_time": [None], "text": [None], "numbers": [None]}, schema=ROWS)
    (error,) = store_partition(task, SOURCE, wrong.schema, messages(wrong))
    assert isinstance(error, BadData)
    (error,) = store_partition(replace(task, pyarrow="1.0"), SOURCE, ROWS, [])
    assert isinstance(error, Unsupported)
    assert "not 1.0" in error.message
    elsewhere = replace(task, folder=tmp_path / "missing")
    right = pa.table({"op": [0], "event_time": [None], "text": [None], "numbers": [None]}, schema=ROWS)
    (error,) = store_partition(elsewhere, SOURCE, ROWS, messages(right))
    assert isinstance(error, OdfError)
    assert str(tmp_path / "missing") in str(error)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_rows_remove_the_files(tmp_path: Path) -> None:
    def rows() -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        yield from SOURCE(table.to_batches())
        raise BadData("the end is damaged")

    table = pa.table({"op": [0], "event_time": [None], "text": [None], "numbers": [None]}, schema=ROWS)
    with pytest.raises(BadData):
        store_rows(SliceTask(PROPERTIES, None, tmp_path, pa.__version__), rows())
    assert list(tmp_path.iterdir()) == []
