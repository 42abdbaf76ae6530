"""Tasks of a cluster write the slices that one process writes."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet import row_groups
from odf_engine.data.parquet.row_groups import SliceLimits
from odf_engine.data.parquet.slice_tasks import (
    SliceTask,
    StoredRows,
    is_in_order,
    plan_slices,
    store_rows,
    write_rows,
)
from odf_engine.data.parquet.slices import SliceProperties, WrittenSlice, slice_schema, write_slices
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


def messages(table: pa.Table) -> Iterator[bytes]:
    return (batch.serialize().to_pybytes() for batch in table.to_batches(max_chunksize=3))


def store(task: SliceTask, partitions: Sequence[pa.Table]) -> list[StoredRows]:
    """Store the rows of partitions by tasks, which are sent to another process."""
    task = pickle.loads(pickle.dumps(task))
    parts = [part for table in partitions for part in store_rows(task, table.schema, messages(table))]
    assert not any(isinstance(part, OdfError) for part in parts), parts
    return parts  # type: ignore[return-value]


def write(task: SliceTask, parts: Sequence[StoredRows], counts: Sequence[int]) -> list[WrittenSlice]:
    spans = [(sum(counts[:number]), count) for number, count in enumerate(counts)]
    results = [pickle.loads(pickle.dumps(part)) for span in spans for part in write_rows(task, parts, [span])]
    return [result._replace(path=Path()) for result in results]


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
)
def test_tasks_write_the_slices_of_one_process(
    rows: list[tuple[object, ...]], cuts: list[int], limits: SliceLimits | None, max_rows: int
) -> None:
    table = pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * 4, schema=ROWS)
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    partitions = [table.slice(start, end - start) for start, end in pairwise(bounds)]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(row_groups, "MAX_ROWS", max_rows)
        patch.setattr(row_groups, "MAX_BYTES", 200)
        task = SliceTask(PROPERTIES, limits, Path(folder), pa.__version__)
        parts = store(task, partitions)
        by_tasks = write(task, parts, plan_slices(task, parts))
        paths = (Path(folder) / f"{number}" for number in range(len(rows)))
        alone = write_slices(
            table.to_batches(), PROPERTIES, new_path=lambda: next(paths), reporter=Reporter(), limits=limits
        )
    assert by_tasks == [written._replace(path=Path()) for written in alone]


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
    (error,) = store_rows(task, wrong.schema, messages(wrong))
    assert isinstance(error, BadData)
    other = replace(task, pyarrow="1.0")
    (error,) = store_rows(other, ROWS, [])
    assert isinstance(error, Unsupported)
    assert "not 1.0" in error.message
    (error,) = write_rows(other, [], [(0, 1)])
    assert isinstance(error, Unsupported)
    elsewhere = replace(task, folder=tmp_path / "missing")
    right = pa.table({"op": [0], "event_time": [None], "text": [None], "numbers": [None]}, schema=ROWS)
    (error,) = store_rows(elsewhere, ROWS, messages(right))
    assert isinstance(error, OdfError)
    assert str(tmp_path / "missing") in str(error)
