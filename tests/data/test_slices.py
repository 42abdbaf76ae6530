"""Writing and reading slices: the schema, the file, both hashes, and what cannot be written."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.data.ddl import parse_ddl
from odf_engine.data.digest import digest_file, logical_hash
from odf_engine.data.parquet import row_groups, slices
from odf_engine.data.parquet.row_groups import SliceLimits
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import (
    RowGroupWriter,
    WrittenSlice,
    read_batches,
    slice_schema,
    write_slice,
    write_slices,
)
from odf_engine.data.schema_enforcement import cast_lossless
from odf_engine.errors import BadData, Cancelled, InvalidSchema, NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.metadata.timestamp import Timestamp

VOCAB = DatasetVocabulary("offset", "op", "system_time", "event_time")
NOW = Timestamp.parse("2024-05-01T10:00:00.123Z")
FALLBACK = Timestamp.parse("2024-04-30T23:59:59Z")
UTC_MS = pa.timestamp("ms", "UTC")


def write(
    batches: Sequence[pa.RecordBatch] | Iterator[pa.RecordBatch],
    path: Path,
    schema: pa.Schema,
    *,
    reporter: Reporter | None = None,
    first_offset: int = 0,
    vocab: DatasetVocabulary = VOCAB,
    counted_until: Timestamp | None = None,
) -> WrittenSlice | None:
    return write_slice(
        batches,
        SliceProperties(
            schema=schema,
            vocab=vocab,
            first_offset=first_offset,
            system_time=NOW,
            fallback_event_time=FALLBACK,
            counted_until=counted_until,
        ),
        path=path,
        reporter=reporter or Reporter(),
    )


def written(table: pa.Table, path: Path, *ddl: str, **rest: Any) -> WrittenSlice:
    schema = slice_schema(parse_ddl(ddl) if ddl else table.schema, VOCAB)
    result = write(table.to_batches(), path, schema, **rest)
    assert result is not None
    return result


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for batch in read_batches(path) for row in batch.to_pylist()]


def test_system_columns_come_first_and_types_are_normalised() -> None:
    data = pa.schema(
        [
            pa.field("a", pa.large_string(), nullable=False),
            ("Event_Time", pa.timestamp("us")),
            ("b", pa.list_(pa.timestamp("s", "Europe/Oslo"))),
            ("fine", pa.list_(pa.timestamp("ns", "Europe/Oslo"))),
            ("c", pa.dictionary(pa.int32(), pa.string())),
            ("d", pa.date64()),
            ("e", pa.decimal256(20, 2)),
            ("f", pa.time32("s")),
            ("g", pa.uuid()),
        ]
    )
    assert slice_schema(data, VOCAB) == pa.schema(
        [
            pa.field("offset", pa.uint64(), nullable=False),
            pa.field("op", pa.uint8(), nullable=False),
            pa.field("system_time", UTC_MS, nullable=False),
            ("event_time", UTC_MS),
            pa.field("a", pa.string(), nullable=False),
            ("b", pa.list_(UTC_MS)),
            ("fine", pa.list_(pa.timestamp("us", "UTC"))),
            ("c", pa.string()),
            ("d", pa.date32()),
            ("e", pa.decimal128(20, 2)),
            ("f", pa.time32("ms")),
            ("g", pa.binary(16)),
        ]
    )


def test_the_event_time_may_be_a_date_and_columns_may_have_other_names() -> None:
    vocab = DatasetVocabulary("o", "kind", "seen", "day")
    schema = slice_schema(parse_ddl(["day DATE", "x INT"]), vocab)
    assert schema.names == ["o", "kind", "seen", "day", "x"]
    assert schema.field("day").type == pa.date32()
    assert slice_schema(parse_ddl(["x INT"]), vocab, pa.date32()) == schema


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (("offset", pa.int64()), "name of a system column"),
        (("OP", pa.int64()), "name of a system column"),
        (("System_Time", pa.int64()), "name of a system column"),
        (("event_time", pa.int64()), "not a TIMESTAMP or DATE"),
        (("A", pa.int64()), "same name"),
        (("m", pa.map_(pa.string(), pa.int64())), "'m'"),
        (("n", pa.null()), "'n'"),
    ],
)
def test_schema_that_no_slice_can_have_is_rejected(field: tuple[str, pa.DataType], words: str) -> None:
    with pytest.raises(InvalidSchema, match=words):
        slice_schema(pa.schema([("a", pa.int64()), field]), VOCAB)


def test_a_slice_reads_back_as_it_was_given(tmp_path: Path) -> None:
    table = pa.table(
        {
            "city": ["A", None, "C"],
            "EVENT_TIME": pa.array([1000, None, 500], pa.timestamp("ms")),
            "population": [1000, 2000, 3000],
            "op": pa.array([0, None, 3], pa.int32()),
        }
    )
    schema = slice_schema(parse_ddl(["city STRING", "population BIGINT"]), VOCAB)
    result = write(table.to_batches(), tmp_path / "s", schema, first_offset=7)
    assert result is not None
    times = [Timestamp.from_ms(1000), FALLBACK, Timestamp.from_ms(500)]
    assert rows_of(tmp_path / "s") == [
        {
            "offset": 7 + at,
            "op": [0, 0, 3][at],
            "system_time": NOW.to_datetime(),
            "event_time": times[at].to_datetime(),
            "city": ["A", None, "C"][at],
            "population": (at + 1) * 1000,
        }
        for at in range(3)
    ]
    assert (result.rows, result.offset_interval.start, result.offset_interval.end) == (3, 7, 9)
    assert (result.min_event_time, result.max_event_time) == (Timestamp.from_ms(500), FALLBACK)
    assert result.size == (tmp_path / "s").stat().st_size
    assert next(iter(read_batches(tmp_path / "s"))).schema.equals(schema)


def test_the_first_slice_of_a_writer_has_the_golden_hash(tmp_path: Path) -> None:
    # The vector `odf_writer_round1`: a dataset of another implementation, with its own column types.
    schema = pa.schema(
        [
            ("offset", pa.int64()),
            pa.field("op", pa.int32(), nullable=False),
            pa.field("system_time", UTC_MS, nullable=False),
            ("event_time", UTC_MS),
            ("city", pa.string()),
            ("population", pa.int64()),
        ]
    )
    result = write_slice(
        [pa.record_batch({"city": ["A", "B", "C"], "population": [1000, 2000, 3000]})],
        SliceProperties(
            schema=schema,
            vocab=VOCAB,
            first_offset=0,
            system_time=Timestamp.parse("2010-01-01T12:00:00Z"),
            fallback_event_time=Timestamp.parse("2000-01-01T12:00:00Z"),
        ),
        path=tmp_path / "s",
        reporter=Reporter(),
    )
    assert result is not None
    assert str(result.logical_hash) == (
        "f9680c001200bbcabb9bb3ac17295c539135e2bd152faccc98600d64fe14c90464cc42df6cc"
    )


def test_write_returns_the_hashes_of_the_file(tmp_path: Path) -> None:
    result = written(pa.table({"a": list(range(1000)), "b": [str(n) for n in range(1000)]}), tmp_path / "s")
    found = digest_file(tmp_path / "s")
    assert (found.logical_hash, found.physical_hash) == (result.logical_hash, result.physical_hash)
    assert (found.size, found.rows) == (result.size, 1000)
    assert result.physical_hash == Multihash.sha3_256((tmp_path / "s").read_bytes())


_EVERY_TYPE: list[tuple[str, list[Any]]] = [
    ("a BOOLEAN", [True, None]),
    ("a TINYINT", [-128, None]),
    ("a SMALLINT UNSIGNED", [65535, None]),
    ("a INT", [-(2**31), None]),
    ("a BIGINT UNSIGNED", [2**64 - 1, None]),
    ("a FLOAT", [1.5, None]),
    ("a DOUBLE", [-0.25, None]),
    ("a DECIMAL(38,10)", [Decimal("-1.0000000001"), None]),
    ("a DECIMAL(5,2)", [Decimal("999.99"), None]),
    ("a STRING", ["é", None]),
    ("a BINARY", [b"\0", None]),
    ("a BINARY(3)", [b"abc", None]),
    ("a UUID", [uuid.UUID(int=5).bytes, None]),
    ("a DATE", [date(1969, 12, 31), None]),
    ("a TIME(3)", [time(23, 59, 59, 999000), None]),
    ("a TIME(6)", [time(23, 59, 59, 999999), None]),
    ("a TIMESTAMP", [datetime(1969, 1, 1, tzinfo=UTC), None]),
    ("a ARRAY<INT>", [[1, None], None]),
    ("a ARRAY<ARRAY<STRING>>", [[["x"], None, []], None]),
    ("a STRUCT<b: INT, c: STRUCT<d: STRING, e: ARRAY<DATE>>>", [{"b": 1, "c": {"d": "x", "e": None}}, None]),
]


@pytest.mark.parametrize(("ddl", "values"), _EVERY_TYPE, ids=[ddl for ddl, _ in _EVERY_TYPE])
def test_every_type_keeps_its_values_and_its_hash(ddl: str, values: list[Any], tmp_path: Path) -> None:
    schema = parse_ddl([ddl])
    result = written(pa.table({"a": pa.array(values, schema.field("a").type)}), tmp_path / "s", ddl)
    assert [row["a"] for row in rows_of(tmp_path / "s")] == values
    assert digest_file(tmp_path / "s").logical_hash == result.logical_hash
    read = next(iter(read_batches(tmp_path / "s")))
    assert logical_hash([read], slice_schema(schema, VOCAB)) == result.logical_hash


@pytest.mark.parametrize("rows", [1, 50])
def test_the_footer_has_the_recommended_encodings_and_types(tmp_path: Path, rows: int) -> None:
    table = pa.table({"id": ["x"] * rows, "u": pa.array([bytes(16)] * rows, pa.binary(16))})
    written(table, tmp_path / "s")
    file = pq.ParquetFile(tmp_path / "s")
    group = file.metadata.row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings
    assert not columns["offset"].has_dictionary_page
    for name in ("op", "system_time"):
        assert "RLE_DICTIONARY" in columns[name].encodings
        assert columns[name].has_dictionary_page
    types = {column.name: (column.physical_type, str(column.logical_type)) for column in file.schema}
    assert types["offset"] == ("INT64", "Int(bitWidth=64, isSigned=false)")
    assert types["op"] == ("INT32", "Int(bitWidth=8, isSigned=false)")
    utc = "Timestamp(isAdjustedToUTC=true, timeUnit=milliseconds, is_from_converted_type=false"
    assert types["system_time"][0] == types["event_time"][0] == "INT64"
    assert types["system_time"][1].startswith(utc)
    assert types["event_time"][1].startswith(utc)
    assert types["u"] == ("FIXED_LEN_BYTE_ARRAY", "UUID")
    assert file.schema.column(0).max_definition_level == 0  # required
    assert b"ARROW:schema" not in (file.metadata.metadata or {})


def test_a_date_event_time_stays_a_date(tmp_path: Path) -> None:
    days = pa.table({"event_time": pa.array([date(2020, 1, 2), None], pa.date32())})
    result = written(days, tmp_path / "s")
    assert [row["event_time"] for row in rows_of(tmp_path / "s")] == [date(2020, 1, 2), date(2024, 4, 30)]
    assert result.max_event_time == Timestamp.parse("2024-04-30T00:00:00Z")
    assert result.min_event_time == Timestamp.parse("2020-01-02T00:00:00Z")
    column = pq.ParquetFile(tmp_path / "s").schema.column(3)
    assert (column.physical_type, str(column.logical_type)) == ("INT32", "Date")


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    schema = slice_schema(parse_ddl(["a INT"]), VOCAB)
    empty = pa.record_batch({"a": pa.array([], pa.int32())})
    assert write([], tmp_path / "s", schema) is None
    assert write([empty, empty], tmp_path / "s", schema) is None
    assert not (tmp_path / "s").exists()


def _cut(table: pa.Table, sizes: list[int]) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    at = 0
    for size in [*sizes, table.num_rows]:
        batches += table.slice(at, size).to_batches()
        at += size
    return batches


@pytest.mark.complete
def test_the_file_does_not_depend_on_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "MAX_ROWS", 48)
    monkeypatch.setattr(row_groups, "MAX_BYTES", 4500)
    table = pa.table(
        {
            "n": [None if n % 7 == 0 else n for n in range(200)],
            "s": ["x" * (n % 13) if n % 5 else None for n in range(200)],
            "long": ["y" * (700 if n > 150 else 3) for n in range(200)],
            "list": [[n] * (n % 4) if n % 3 else None for n in range(200)],
            "struct": [{"a": n} if n % 3 else None for n in range(200)],
        }
    )
    whole = written(table, tmp_path / "whole")
    groups = pq.ParquetFile(tmp_path / "whole").metadata
    counts = [groups.row_group(at).num_rows for at in range(groups.num_row_groups)]
    assert counts[:3] == [48, 48, 48]
    assert max(counts[4:]) <= 7  # the long rows: a few to a group
    assert len(rows_of(tmp_path / "whole")) == 200

    @settings(max_examples=25)
    @given(st.lists(st.integers(0, 40), max_size=8))
    def check(sizes: list[int]) -> None:
        cut = write(_cut(table, sizes), tmp_path / "cut", slice_schema(table.schema, VOCAB))
        assert cut is not None
        assert (cut.physical_hash, cut.logical_hash) == (whole.physical_hash, whole.logical_hash)

    check()


def test_row_groups_do_not_depend_on_batches_for_any_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table(
        {"s": ["x" * (n % 3) if n % 10 else None for n in range(60)], "b": [n % 2 == 0 for n in range(60)]}
    )
    without_bitmap = pa.table(table.slice(4, 4).to_pydict()).to_batches()
    pieces = [*table.slice(0, 4).to_batches(), *without_bitmap, *_cut(table.slice(8), [3, 5, 1, 20])]
    for limit in range(20, 90):
        monkeypatch.setattr(row_groups, "MAX_BYTES", limit)
        whole, cut = (
            [group.rows.num_rows for group in row_groups.split_row_groups(batches)]
            for batches in (table.to_batches(), pieces)
        )
        assert whole == cut
        assert sum(whole) == 60


def test_slices_end_at_the_limits_independent_of_batches_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "MAX_ROWS", 48)
    table = pa.table({"n": list(range(1000)), "t": ["x" * (n % 7) for n in range(1000)]})
    schema = slice_schema(table.schema, VOCAB)

    def write_all(batches: Sequence[pa.RecordBatch], rows: int, size: int = 1 << 20) -> list[WrittenSlice]:
        paths = (tmp_path / f"{at}" for at in range(1000))
        return write_slices(
            batches,
            SliceProperties(
                schema=schema, vocab=VOCAB, first_offset=7, system_time=NOW, fallback_event_time=FALLBACK
            ),
            new_path=lambda: next(paths),
            reporter=Reporter(),
            limits=SliceLimits(rows, size),
        )

    whole = write_all(table.to_batches(), 300)
    assert [each.rows for each in whole] == [300, 300, 300, 100]
    assert [each.offset_interval.start for each in whole] == [7, 307, 607, 907]
    for each in whole:
        found = digest_file(each.path)
        assert (found.logical_hash, found.physical_hash) == (each.logical_hash, each.physical_hash)
        assert (found.size, found.rows) == (each.size, each.rows)
    assert [row["n"] for each in whole for row in rows_of(each.path)] == list(range(1000))
    for cores, backlog in ((1, 1), (7, 1 << 30)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        monkeypatch.setattr(slices, "_BACKLOG_BYTES", backlog)
        assert write_all(_cut(table, [3, 299, 1, 400]), 300) == whole
    assert [each.rows for each in write_all(table.to_batches(), 1000)] == [1000]
    by_size = write_all(table.to_batches(), 1000, 4000)
    assert len({each.rows for each in by_size[:-1]}) <= 2 < len(by_size)  # complete row groups
    assert [each.rows % 48 for each in by_size[:-1]] == [0] * (len(by_size) - 1)


def test_a_correction_is_not_divided(tmp_path: Path) -> None:
    operations = [0, 0, 2, 3, 2, 3, 2, 3, 1]
    table = pa.table({"op": pa.array(operations, pa.uint8()), "n": range(9)})
    schema = slice_schema(pa.schema([("n", pa.int64())]), VOCAB)
    paths = (tmp_path / f"{at}" for at in range(9))
    found = write_slices(
        table.to_batches(),
        SliceProperties(
            schema=schema, vocab=VOCAB, first_offset=0, system_time=NOW, fallback_event_time=FALLBACK
        ),
        new_path=lambda: next(paths),
        reporter=Reporter(),
        limits=SliceLimits(3, 1 << 20),
    )
    assert [each.rows for each in found] == [4, 4, 1]


@pytest.mark.parametrize("failing", ["rows", "disk"])
def test_an_error_removes_the_files_of_all_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    table, schema = _many(), slice_schema(_many().schema, VOCAB)
    paths = (tmp_path / f"{at}" for at in range(100))
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if (tmp_path / "2").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches()
        if failing == "rows":
            raise BadData("damaged")
        yield from table.to_batches()

    if failing == "disk":
        monkeypatch.setattr("os.write", full)
    with pytest.raises(OdfError, match="damaged" if failing == "rows" else "disk is full"):
        write_slices(
            batches(),
            SliceProperties(
                schema=schema, vocab=VOCAB, first_offset=0, system_time=NOW, fallback_event_time=FALLBACK
            ),
            new_path=lambda: next(paths),
            reporter=Reporter(),
            limits=SliceLimits(table.num_rows // 4, 1 << 30),
        )
    assert list(tmp_path.iterdir()) == []


def test_encodings_of_the_input_make_no_difference(tmp_path: Path) -> None:
    plain = pa.table({"t": ["a", None, "b", "a"] * 10})
    expected = written(plain, tmp_path / "s").physical_hash
    for other in (
        plain.cast(pa.schema([("t", pa.large_string())])),
        plain.cast(pa.schema([("t", pa.string_view())])),
        pa.table({"T": plain["t"].combine_chunks().dictionary_encode()}),
    ):
        assert written(other, tmp_path / "s", "t STRING").physical_hash == expected


def test_offsets_go_on_through_all_row_groups(tmp_path: Path) -> None:
    rows = row_groups.MAX_ROWS * 2 + 5
    batch = pa.record_batch({"n": pa.array(range(rows))})
    result = write([batch], tmp_path / "s", slice_schema(batch.schema, VOCAB), first_offset=10**12)
    assert result is not None
    assert result.offset_interval.end == 10**12 + rows - 1
    assert pq.ParquetFile(tmp_path / "s").metadata.num_row_groups == 3
    offsets = pq.read_table(tmp_path / "s", columns=["offset"])["offset"]
    assert offsets.equals(pa.chunked_array([pa.array(range(10**12, 10**12 + rows), pa.uint64())]))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("values", "ddl", "expected"),
    [
        (pa.array([255, None]), "a TINYINT UNSIGNED", [255, None]),
        (pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)), "a BIGINT UNSIGNED", [2**64 - 1]),
        (pa.array([12345]), "a DECIMAL(7,2)", [Decimal("12345.00")]),
        (pa.array([1.5], pa.float32()), "a DOUBLE", [1.5]),
        (pa.array([3]), "a DOUBLE", [3.0]),
        (pa.array([None, None]), "a STRING", [None, None]),
        (pa.array([1_500], pa.time64("ns")), "a TIME(9)", [time(0, 0, 0, 1)]),
        (pa.array([1_000], pa.time64("ns")), "a TIME(6)", [time(0, 0, 0, 1)]),
        (pa.array([-1_500], pa.timestamp("us")), "a TIMESTAMP", [_EPOCH - 2 * _MILLISECOND]),
        (pa.array([1_999_999], pa.timestamp("ns", "Asia/Tokyo")), "a TIMESTAMP", [_EPOCH + _MILLISECOND]),
        (pa.array([-1_500], pa.timestamp("ns")), "a TIMESTAMP(6)", [_EPOCH - 2 * _MICROSECOND]),
        (pa.array(["00000000-0000-0000-0000-0000000000fF", None]), "a UUID", [bytes(15) + b"\xff", None]),
        (pa.array([[1, 2]], pa.large_list(pa.int64())), "a ARRAY<TINYINT>", [[1, 2]]),
    ],
    ids=str,
)  # fmt: skip
def test_values_are_cast_when_they_fit(
    values: pa.Array, ddl: str, expected: list[Any], tmp_path: Path
) -> None:
    written(pa.table({"a": values}), tmp_path / "s", ddl)
    read = [row["a"] for row in rows_of(tmp_path / "s")] if "TIME(9)" not in ddl else expected
    assert read == expected


def _bad_text() -> pa.Array:
    return pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"]).buffers())


@pytest.mark.parametrize(
    ("values", "ddl", "words"),
    [
        (pa.array([1, 300]), "a TINYINT UNSIGNED", ["'300'", "TINYINT UNSIGNED"]),
        (pa.array([1, -1]), "a BIGINT UNSIGNED", ["'-1'"]),
        (pa.array([1.0, 1.5]), "a INT", ["'1.5'"]),
        (pa.array([Decimal("1.0"), Decimal("2.5")]), "a INT", ["'2.5'"]),
        (pa.array([1, 100000]), "a DECIMAL(5,2)", ["'100000'", "DECIMAL(5,2)"]),
        (pa.array([0, 2**60 + 1]), "a DOUBLE", [str(2**60 + 1)]),
        (pa.array([0, 1_500], pa.time64("us")), "a TIME(3)", ["00:00:00.001500"]),
        (pa.array(["0" * 32, "no uuid"]), "a UUID", ["'no uuid'", "UUID"]),
        (pa.array([b"abc", b"ab"]), "a BINARY(3)", ["BINARY(3)"]),
        (pa.array([1, None]), "a INT NOT NULL", ["NOT NULL"]),
        (pa.array([[1], [1, 300]]), "a ARRAY<TINYINT>", ["300"]),
        (_bad_text(), "a STRING", [r"\xff\xfe", "STRING"]),
        (pa.array([0, 2**62], pa.timestamp("s")), "a TIMESTAMP", ["TIMESTAMP"]),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_named_with_its_row(
    values: pa.Array, ddl: str, words: list[str], tmp_path: Path
) -> None:
    good = pa.table({"a": values.slice(0, 1)})
    batches = [*good.to_batches(), *good.to_batches(), *pa.table({"a": values}).to_batches()]
    with pytest.raises(BadData) as caught:
        write(batches, tmp_path / "s", slice_schema(parse_ddl([ddl]), VOCAB))
    assert caught.value.where == "row 4"
    for word in ["'a'", *words]:
        assert word in caught.value.message
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": ["1"], "b": [1]}, "'a' is STRING.*BIGINT"),
        ({"a": [1], "b": pa.array([1], pa.timestamp("s"))}, "'b' is TIMESTAMP"),
        ({"a": [1]}, "missing column 'b'"),
        ({"a": [1], "b": [1], "c": [1]}, "'c': not in"),
        ({"a": [1], "b": [1], "offset": [1]}, "'offset' has the name of a system column"),
        ({"a": [1], "b": [1], "system_time": [1]}, "'system_time' has the name of a system column"),
        ({"A": [1], "B": [1], "b ": [1]}, "'b ': not in"),
        ({"Aa": [1], "a": [1], "b": [1]}, "'Aa': not in"),
        ({"a": [1], "B": [1], "b": [1]}, "'B': not in"),
        ({"a": [{"x": 1}], "b": [1]}, "STRUCT"),
    ],
)
def test_columns_must_be_those_of_the_schema(columns: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSchema, match=words):
        write(
            [pa.record_batch(columns)],
            tmp_path / "s",
            slice_schema(parse_ddl(["a BIGINT", "b BIGINT"]), VOCAB),
        )


def test_columns_that_differ_only_in_case_are_rejected(tmp_path: Path) -> None:
    schema = slice_schema(parse_ddl(["ab BIGINT"]), VOCAB)
    batch = pa.record_batch({"AB": [1], "aB": [2]})
    with pytest.raises(InvalidSchema, match="'AB' and 'aB'"):
        write([batch], tmp_path / "s", schema)
    with pytest.raises(InvalidSchema, match="'AB': not in"):
        write([batch.rename_columns(["AB", "ab"])], tmp_path / "s", schema)


def test_an_unknown_operation_is_refused(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": [1, 2], "op": [0, 4]})
    with pytest.raises(BadData, match="invalid operation 4") as caught:
        write([batch], tmp_path / "s", slice_schema(parse_ddl(["a BIGINT"]), VOCAB))
    assert caught.value.where == "row 2"


def test_an_event_time_beyond_all_years_is_refused(tmp_path: Path) -> None:
    table = pa.table({"event_time": pa.array([2**60], pa.timestamp("ms"))})
    with pytest.raises(BadData, match="event time"):
        written(table, tmp_path / "s")
    assert not (tmp_path / "s").exists()


class _Stopping(Reporter):
    """Cancels itself after the first amount it hears."""

    amounts: list[tuple[int | None, int | None]]

    def __init__(self) -> None:
        super().__init__()
        self.amounts = []

    def set_amounts(self, *, rows: int | None = None, bytes: int | None = None, **rest: int | None) -> None:
        self.amounts.append((rows, bytes))
        self.cancel()


def _many(rows: int = 300_000) -> pa.Table:
    return pa.table({"n": pa.array(range(rows))})


def test_cancelling_removes_the_file(tmp_path: Path) -> None:
    reporter = _Stopping()
    with pytest.raises(Cancelled):
        written(_many(), tmp_path / "s", reporter=reporter)
    assert [rows for rows, _ in reporter.amounts] == [row_groups.MAX_ROWS]
    assert not (tmp_path / "s").exists()


def test_row_groups_are_checked_before_other_threads_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def annotate(_: RowGroupWriter, rows: pa.RecordBatch) -> pa.RecordBatch:
        threads.add(threading.get_ident())
        return rows

    monkeypatch.setattr(RowGroupWriter, "annotate", annotate)
    written(_many(), tmp_path / "s")
    assert threads == {threading.get_ident()}


def test_source_error_removes_the_file_and_is_raised_unchanged(tmp_path: Path) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield from _many().to_batches()
        raise OSError(errno.ECONNRESET, "gone")

    with pytest.raises(OSError, match="gone"):
        write(source(), tmp_path / "s", slice_schema(_many().schema, VOCAB))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("call", [0, 3, 20])
def test_full_disk_is_reported_and_the_file_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    write, calls = os.write, iter(range(1_000_000))

    def full(descriptor: int, data: bytes) -> int:
        if next(calls) >= call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OdfError, match="disk is full") as caught:
        written(_many(), tmp_path / "s")
    assert caught.value.hint is not None
    assert not (tmp_path / "s").exists()


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OdfError, match="cannot be written"):
        written(_many(3), tmp_path / "absent" / "s")


@pytest.fixture
def grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(row_groups, "MAX_ROWS", 10)
    written(pa.table({"n": list(range(35)), "u": pa.array([bytes(16)] * 35, pa.binary(16))}), tmp_path / "s")
    return tmp_path / "s"


def test_only_selected_columns_are_read(grouped: Path) -> None:
    batches = list(read_batches(grouped, ["n", "offset"]))
    assert {name for batch in batches for name in batch.schema.names} == {"n", "offset"}
    with pytest.raises(InvalidSchema, match="'absent'"):
        list(read_batches(grouped, ["absent"]))


def test_file_that_is_not_parquet_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not Parquet, though long enough for a footer")
    with pytest.raises(BadData, match="text"):
        list(read_batches(tmp_path / "text"))
    with pytest.raises(NotFound):
        list(read_batches(tmp_path / "absent"))


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.date64(), pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")]
)
def test_rows_ahead_do_not_count_for_the_watermark(tmp_path: Path, kind: pa.DataType) -> None:
    days = pa.array([date(2020, 1, 2), date(9999, 12, 31), date(2020, 1, 1)], pa.date32()).cast(kind)
    data = pa.record_batch({"event_time": days})
    schema = slice_schema(data.schema, VOCAB)
    for limit, counted, ahead in (("2020-01-02", "2020-01-02", 1), ("2019-12-31", None, 3)):
        result = write([data], tmp_path / "s", schema, counted_until=Timestamp.parse(f"{limit}T00:00:00Z"))
        assert result is not None and str(result.max_event_time) == "9999-12-31T00:00:00Z"
        expected = None if counted is None else Timestamp.parse(f"{counted}T00:00:00Z")
        assert (result.max_counted_event_time, result.rows_ahead) == (expected, ahead)
    result = write([data], tmp_path / "s", schema)
    assert result is not None and (result.rows_ahead, result.max_counted_event_time) == (
        0,
        result.max_event_time,
    )


def test_null_in_required_item_or_member_is_rejected() -> None:
    """Arrow casts nulls into types that cannot be null; a slice must not have them."""
    item = pa.list_(pa.field("item", pa.string(), nullable=False))
    member = pa.struct([pa.field("b", pa.int64(), nullable=False), ("c", item)])
    good = [None, {"b": 1, "c": None}, {"b": 2, "c": ["x"]}]
    target = pa.field("a", pa.list_(member))
    values = pa.array([None, good, [], good])
    assert cast_lossless(values, target, 0).to_pylist() == [None, good, [], good]
    for wrong, problem in (
        ({"b": None, "c": []}, "does not fit"),
        ({"b": 1, "c": ["x", None]}, "contains null"),
    ):
        with pytest.raises(BadData, match=f"column 'a'.*{problem}") as caught:
            cast_lossless(pa.array([None, good, [*good, wrong]]), target, 10)
        assert caught.value.where == "row 13"
