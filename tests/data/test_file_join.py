"""Joined Parquet files are the file that one writer writes."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.data.parquet.file_join import decode_struct, encode_struct, join_files

COUNT = 3000
TABLE = pa.table({
    "a": range(COUNT),
    "text": [str(number % 100) if number % 7 else None for number in range(COUNT)],
    "float": [number * 1.5 for number in range(COUNT)],
    "list": [[number, None] for number in range(COUNT)],
    "flag": [number % 2 == 0 for number in range(COUNT)],
    "empty": pa.array([None] * COUNT, pa.decimal128(20, 2)),
    "time": pa.array(range(COUNT), pa.timestamp("ms", "UTC")),
    "struct": [{"x": number, "y": None} for number in range(COUNT)],
})  # fmt: skip
OPTIONS = {"version": "2.6", "compression": "zstd", "use_dictionary": ["text"], "store_schema": False}


def write(parts: list[pa.Table]) -> bytes:
    file = io.BytesIO()
    with pq.ParquetWriter(file, TABLE.schema, **OPTIONS) as writer:
        for part in parts:
            writer.write_batch(part.combine_chunks().to_batches()[0], row_group_size=COUNT)
    return file.getvalue()


@pytest.mark.parametrize("files", [[1], [1, 1], [2, 1, 3], [1] * 20])
def test_joined_files_are_the_file_of_one_writer(files: list[int], tmp_path: Path) -> None:
    size = COUNT // sum(files)
    groups = iter([TABLE.slice(start, size) for start in range(0, size * sum(files), size)])
    parts = [[next(groups) for _ in range(count)] for count in files]
    paths = [tmp_path / f"{number}" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(write(part))
    joined = bytearray()
    join_files(paths, joined.extend)
    assert joined == write([group for part in parts for group in part])
    assert pq.read_table(io.BytesIO(joined)).equals(TABLE.slice(0, size * sum(files)))


def test_file_that_is_not_parquet_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"PAR1 and more, but no end")
    with pytest.raises(pa.ArrowInvalid):
        join_files([path], lambda _: None)


@given(st.binary(max_size=60))
def test_malformed_structs_are_errors(data: bytes) -> None:
    try:
        fields = decode_struct(data)
    except pa.ArrowInvalid:
        return
    assert decode_struct(encode_struct(fields)) == fields
