"""Single rows of a slice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.data.parquet.parquet_reader import read_bounded
from odf_engine.data.parquet.slice_file import FileLabel, SliceFile
from odf_engine.errors import BadData


def test_single_rows_decode_only_their_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows"
    pq.write_table(pa.table({"n": range(20)}), path, row_group_size=5)
    spans: list[tuple[int, int]] = []

    def watched(path: Path, names: Any, start: int, stop: int, **options: Any) -> Any:
        spans.append((start, stop))
        return read_bounded(path, names, start, stop, **options)

    monkeypatch.setattr("odf_engine.data.parquet.slice_file.read_bounded", watched)
    schema = pa.schema([("n", pa.int32()), ("more", pa.string())])
    with SliceFile(path, FileLabel("here")) as file:
        table = pa.Table.from_batches(file.take(schema, pa.array([1, 3, 10, 14, 15], pa.int64())), schema)
        assert table.to_pydict() == {"n": [1, 3, 10, 14, 15], "more": [None] * 5}
        assert spans == [(0, 4), (10, 15), (15, 16)]
        assert list(file.take(schema, pa.array([], pa.int64()))) == []
        with pytest.raises(BadData, match="slice has fewer rows than its block declares"):
            next(file.take(schema, pa.array([20], pa.int64())))
