"""Any window over the rows of all slices, without reading more than it shows."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.chain.dataset import Dataset
from odf_engine.data.parquet.slice_file import SliceFile
from odf_engine.errors import BadData, NotFound
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import DatasetKind
from odf_engine.rows.row_window import RowWindowReader
from odf_engine.workspace.workspace import Workspace
from tests.open_files import count_open_files


@pytest.fixture
def dataset(workspace: Workspace) -> Dataset:
    return workspace.create_dataset(DatasetAlias.parse("rows"), DatasetKind.Root).dataset


def numbers(start: int, count: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, start + count), pa.int64())})


def shown(preview: RowWindowReader, start: int, count: int) -> list[int]:
    return preview.window(start, count)["n"].to_pylist()


def test_a_dataset_without_rows_has_an_empty_window(workspace: Workspace, dataset: Dataset) -> None:
    preview = RowWindowReader(dataset)
    assert (preview.row_count, preview.columns.names) == (0, [])
    assert preview.window(0, 10).num_rows == 0 and preview.tail(3).num_rows == 0
    assert RowWindowReader(Dataset(workspace.folder / "nowhere", workspace.index)).row_count == 0


def test_windows_go_across_slices(dataset: Dataset, append: Any) -> None:
    for start, count in ((0, 5), (5, 1), (6, 4)):
        append(dataset, numbers(start, count))
    preview = RowWindowReader(dataset)
    assert preview.row_count == 10
    assert preview.columns.names == ["offset", "op", "system_time", "event_time", "n"]
    for start in range(11):
        for count in range(12):
            window = preview.window(start, count)
            assert window["n"].to_pylist() == list(range(start, min(start + count, 10)))
            assert window["offset"].to_pylist() == window["n"].to_pylist()
            assert window.schema == preview.columns
    assert shown(preview, -3, 2) == [0, 1]
    assert preview.tail(3)["n"].to_pylist() == [7, 8, 9]
    assert preview.tail(99)["n"].to_pylist() == list(range(10))
    assert preview.tail(0).num_rows == 0


def test_windows_go_across_row_groups_and_decode_only_those(
    dataset: Dataset, append: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 3 << 17  # three row groups
    append(dataset, numbers(0, rows))
    read: list[int] = []
    whole = SliceFile.read

    def watched(self: SliceFile, group: int, columns: list[str], rows: range) -> pa.Table:
        read.append(group)
        return whole(self, group, columns, rows)

    monkeypatch.setattr(SliceFile, "read", watched)
    preview = RowWindowReader(dataset, cache_bytes=1 << 26)
    assert read == []
    assert shown(preview, (1 << 17) - 2, 4) == list(range((1 << 17) - 2, (1 << 17) + 2))
    assert read == [0, 1]
    assert shown(preview, rows - 1, 9) == [rows - 1]
    assert shown(preview, (1 << 17) - 9, 1) == [(1 << 17) - 9]
    assert read == [0, 1, 2]
    small = RowWindowReader(dataset, cache_bytes=1)
    for start in (0, 1, 1 << 17, 0):
        assert shown(small, start, 1) == [start]
    assert read == [0, 1, 2, 0, 1, 0]


def test_small_and_large_windows_share_what_was_decoded(dataset: Dataset, append: Any) -> None:
    append(dataset, numbers(0, 150_000))
    preview = RowWindowReader(dataset)
    assert preview.window(0, 100_000, ["n"])["n"][99_999].as_py() == 99_999
    for start in (0, 40_000, 131_070, 140_000):
        table = preview.window(start, 5, ["offset", "n", "op"])
        assert table["n"].to_pylist() == table["offset"].to_pylist() == list(range(start, start + 5))
    assert preview.window(0, 150_000, ["n", "offset"])["n"].to_pylist() == list(range(150_000))


def test_a_column_that_came_later_is_null_before(dataset: Dataset, append: Any) -> None:
    append(dataset, numbers(0, 2))
    preview = RowWindowReader(dataset)
    assert shown(preview, 0, 9) == [0, 1]
    append(dataset, pa.table({"n": [2], "more": ["x"]}))
    assert preview.row_count == 2
    assert preview.refresh() and not preview.refresh()
    table = preview.window(0, 9)
    assert table["n"].to_pylist() == [0, 1, 2] and table["more"].to_pylist() == [None, None, "x"]
    assert preview.columns.names == ["offset", "op", "system_time", "event_time", "n", "more"]


def test_all_types_of_a_schema_are_shown(dataset: Dataset, append: Any) -> None:
    columns = {
        "b": pa.array([True, None]),
        "u": pa.array([bytes(16), None], pa.binary(16)),
        "d": pa.array([1, None], pa.date32()),
        "l": pa.array([[1, 2], None]),
        "s": pa.array([{"x": 1}, None]),
        "t": pa.array([1, None], pa.timestamp("ms", "UTC")),
    }
    append(dataset, pa.table(columns))
    window = RowWindowReader(dataset).window(0, 2)
    for name, column in columns.items():
        assert window[name].to_pylist() == column.to_pylist()


def test_rows_that_are_stored_out_of_order_have_an_ordered_tail(dataset: Dataset, append: Any) -> None:
    append(dataset, numbers(0, 3))
    (row,) = dataset.slices()
    path = dataset.slice_path(row)
    pq.write_table(pq.read_table(path).take([2, 0, 1]), path)
    assert RowWindowReader(dataset).tail(3)["n"].to_pylist() == [0, 1, 2]


def test_a_lost_or_damaged_slice_is_an_error_that_names_it(dataset: Dataset, append: Any) -> None:
    for start in (0, 1, 2):
        append(dataset, numbers(start, 1))
    first, second, third = (dataset.slice_path(row) for row in dataset.slices())
    first.unlink()
    second.write_bytes(b"not Parquet")
    pq.write_table(pq.read_table(third).slice(0, 0), third)
    preview = RowWindowReader(dataset)
    with pytest.raises(NotFound, match=first.name[5:13]):
        preview.window(0, 1)
    with pytest.raises(BadData, match=second.name[5:13]):
        preview.window(1, 1)
    with pytest.raises(BadData, match="has 0 rows, but its block declares 1"):
        preview.window(2, 1)
    assert preview.row_count == 3


def test_a_column_of_another_type_is_an_error(dataset: Dataset, append: Any) -> None:
    append(dataset, numbers(0, 1))
    path: Path = dataset.slice_path(dataset.slices()[0])
    table = pq.read_table(path)
    pq.write_table(table.set_column(4, "n", pa.array(["text"])), path)
    with pytest.raises(BadData, match="column 'n' is string, but int64 in the schema of the dataset"):
        RowWindowReader(dataset).window(0, 1)


def test_many_slices_need_few_open_files(dataset: Dataset, append: Any) -> None:
    for start in range(40):
        append(dataset, numbers(start, 1))
    preview = RowWindowReader(dataset, cache_bytes=1)
    assert shown(preview, 0, 40) == list(range(40))
    assert shown(preview, 0, 40) == list(range(40))
    assert 1 <= count_open_files(dataset.folder / "data") <= 16


def test_threads_can_share_a_row_window_reader(dataset: Dataset, append: Any) -> None:
    for start in range(0, 200, 10):
        append(dataset, numbers(start, 10))
    preview = RowWindowReader(dataset, cache_bytes=1)
    wrong: list[object] = []

    def scroll(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(50):
            start = chance.randrange(200)
            try:
                if shown(preview, start, 15) != list(range(start, min(start + 15, 200))):
                    wrong.append(start)
            except Exception as error:  # a thread's error would be lost
                wrong.append(error)

    threads = [threading.Thread(target=scroll, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
