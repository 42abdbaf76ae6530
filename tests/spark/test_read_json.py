"""Lines of JSON: one object each, missing keys are null, and nothing is dropped in silence."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Cancelled, InvalidManifest, OdfError
from odf_engine.metadata.model import NdJson
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.readers import ReadContext, read_json
from odf_engine.spark.text_files import JsonScan
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reader = Callable[..., list[dict[str, Any]]]
SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("d", pa.decimal128(10, 3)),
        ("t", pa.timestamp("ms", "UTC")),
        ("n", pa.struct([("x", pa.int32())])),
        ("l", pa.list_(pa.float64())),
        ("u", pa.uint8()),
    ]
)
EMPTY = dict.fromkeys(SCHEMA.names)


def test_json_objects_become_rows_and_missing_keys_null(ndjson: Reader) -> None:
    data = (
        '{"a":1,"b":"x","d":1.10,"t":"2020-01-01T00:00:00Z","n":{"x":1},"l":[1,2.5],"u":255,"other":[1]}\n'
        "\n"
        '{"a":"2","b":null}\r\n'
        '{"b":"line\\nend } {","n":null} '
    )
    first = {
        "a": 1, "b": "x", "d": Decimal("1.100"), "t": datetime(2020, 1, 1, tzinfo=UTC), "n": {"x": 1},
        "l": [1.0, 2.5], "u": 255,
    }  # fmt: skip
    assert ndjson(data, SCHEMA) == [first, EMPTY | {"a": 2}, EMPTY | {"b": "line\nend } {"}]


def test_text_of_other_values_is_kept_exactly(ndjson: Reader) -> None:
    schema = pa.schema([("b", pa.string())])
    data = '{"b":1.10}\n{"b":{"z":[1, 2]}}\n{"b":true}\n{"b":12345678901234567890.0}\n'
    assert [row["b"] for row in ndjson(data, schema)] == [
        "1.10",
        '{"z":[1, 2]}',
        "true",
        "12345678901234567890.0",
    ]


DAY = pa.struct([("day", pa.date32()), ("sum", pa.decimal128(5, 2)), ("t", pa.timestamp("ms", "UTC"))])
WRONG: list[tuple[pa.DataType, str, str, str, str]] = [
    (pa.int64(), '"x"', "", "x", "BIGINT"),
    (pa.int64(), "true", "", "true", "BIGINT"),
    (pa.int64(), '""', "", "", "BIGINT"),
    (pa.timestamp("ms", "UTC"), "1577836800", "", "1577836800", "TIMESTAMP"),
    # As strict at any depth.
    (DAY, '{"day": "2020-02-30"}', ".day", "2020-02-30", "DATE"),
    (DAY, '{"sum": 1.005}', ".sum", "1.005", "DECIMAL(5,2)"),
    (DAY, '{"t": 5}', ".t", "5", "TIMESTAMP"),
    (pa.list_(DAY), '[{"sum": 1}, null, {"sum": 1e9}]', "[].sum", "1e9", "DECIMAL(5,2)"),
    (pa.list_(pa.uint8()), "[1, -1]", "[]", "-1", "TINYINT UNSIGNED"),
]


def test_values_that_do_not_fit_their_type_are_rejected(
    session: SparkSession, rows: Callable[[DataFrame], Any], tmp_path: Path
) -> None:
    file = tmp_path / "x.json"
    file.write_text("{" + ", ".join(f'"c{at}": {each[1]}' for at, each in enumerate(WRONG)) + "}")
    schema = pa.schema([(f"c{at}", each[0]) for at, each in enumerate(WRONG)])
    frame = read_json(session, file, NdJson(), schema, ReadContext(scratch=tmp_path))
    for at, (_, _, path, value, wanted) in enumerate(WRONG):
        with pytest.raises(RejectedRow) as caught:
            rows(frame.select(f"c{at}"))
        error = caught.value
        assert (error.column, error.value, error.expected) == (f"c{at}{path}", value, wanted)


def test_texts_longer_than_the_spark_default_are_read(ndjson: Reader) -> None:
    """More than Spark takes by default."""
    (row,) = ndjson(b'{"b":"' + b"x" * 20_000_001 + b'"}', pa.schema([("b", pa.string())]))
    assert row["b"] == "x" * 20_000_001


def test_scalar_for_list_and_list_for_struct_are_rejected(ndjson: Reader) -> None:
    for kind, text, value, wanted in ((pa.list_(pa.int8()), "1", "1", "ARRAY"), (DAY, "[1]", "[", "STRUCT")):
        with pytest.raises(RejectedRow) as caught:
            ndjson(f'{{"c": {text}}}', pa.schema([("c", kind)]))
        error = caught.value
        assert (error.column, error.value, error.expected) == ("c", value, wanted)


def test_nested_values_are_converted(ndjson: Reader) -> None:
    place = pa.struct([("lat", pa.float64()), ("tags", pa.list_(pa.string())), ("raw", pa.string())])
    schema = pa.schema([("one", DAY), ("many", pa.list_(place)), ("matrix", pa.list_(pa.list_(pa.int32())))])
    data = (
        '{"one": {"day": "2020-01-31", "sum": "1.5", "t": "2020-01-01 10:00:00.25+02:00", "other": 1},'
        ' "many": [{"lat": 1, "tags": ["a", null, 2.50], "raw": {"z": [1, 2.50]}}, {}, null],'
        ' "matrix": [[1, "2"], [], null]}\n'
        '{"one": null, "many": [], "matrix": null}\n{}'
    )
    moment = datetime(2020, 1, 1, 8, 0, 0, 250000, UTC)
    empty = {"lat": None, "tags": None, "raw": None}
    assert ndjson(data, schema) == [
        {
            "one": {"day": date(2020, 1, 31), "sum": Decimal("1.50"), "t": moment},
            "many": [{"lat": 1.0, "tags": ["a", None, "2.50"], "raw": '{"z": [1, 2.50]}'}, empty, None],
            "matrix": [[1, 2], [], None],
        },
        {"one": None, "many": [], "matrix": None},
        {"one": None, "many": None, "matrix": None},
    ]


def test_keys_in_another_case_match_columns(
    session: SparkSession, rows: Callable[[DataFrame], Any], tmp_path: Path
) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("größe", pa.string()), ("At", pa.list_(pa.struct([("lat", pa.int32())])))]
    )
    file, lines = tmp_path / "x.json", []
    reporter = Reporter()
    reporter.log = lambda text, level="info": lines.append(text)  # type: ignore[method-assign]
    file.write_text('{"ID":1,"GRÖSSE":"x","at":[{"LAT":7,"lon":1}]}\n{"ID":2,"at":[null,{},{"LAT":8}]}\n')
    frame = read_json(
        session, file, NdJson(), schema, ReadContext(scratch=tmp_path, name="x", reporter=reporter)
    )
    assert rows(frame) == [
        {"id": 1, "größe": "x", "At": [{"lat": 7}]},
        {"id": 2, "größe": None, "At": [None, {"lat": None}, {"lat": 8}]},
    ]
    assert lines == [
        "x: names differ in case: 'ID' as `id`, 'GRÖSSE' as `größe`, 'at' as `At`, 'LAT' as `At.lat`"
    ]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (['{"id":1}', '{"Id":2}'], "`id` is written 'id' in line 1, and 'Id' in line 2"),
        (['{"ID":1}', "{}", '{"Id":2}'], "`id` is written 'ID' in line 1, and 'Id' in line 3"),
        (['{"id":1,"ID":2}', '{"ID":2}'], "`id` is written 'id' in line 1, and 'ID' in line 2"),
        (['{"n":{"X":1}}', '{"n":{"x":1}}'], "`n.x` is written 'X' in line 1, and 'x' in line 2"),
        (['{"l":[{"x":1},{"X":1}]}'], "`l.x` is written 'x' in line 1, and 'X' in line 1"),
        (['{"id":1}', '{"id\u200b":2}'], "line 2: 'id\\u200b' in the file looks like the column 'id'"),
        (['{"i\u0307d":1}', '{" id":2}'], "line 2: ' id' in the file looks like the column 'id'"),
        (['{"n":{"x\u00a0":1}}'], "line 1: 'x\\u00a0' in the file looks like the column 'n.x'"),
        # What is declared is always found first, and what is not does not matter.
        (['{"id":1,"ID":2}', '{"id":1,"Id":2}', '{"other":1}', '{"Other":1}', '{"id":null,"ID":2}'], None),
    ],
)
def test_column_key_in_several_cases_is_rejected(lines: list[str], problem: str | None) -> None:
    struct = pa.struct([("x", pa.int32())])
    scan = JsonScan("x", pa.schema([("id", pa.int64()), ("n", struct), ("l", pa.list_(struct))]))
    scan.feed("\n".join(lines).encode())
    if problem is None:
        scan.finish()
        assert scan.spelled == {}
        assert scan.keys == {"id": 1, "ID": 1, "Id": 2, "other": 3, "Other": 4}
        return
    with pytest.raises(BadData) as caught:
        scan.finish()
    assert problem in str(caught.value)


NO_OBJECT = [
    "<html>", "[1,2]", '[{"a":1}]', "7", "null", '"x"', '{"a":1', '{"a":1}{"a":2}', '{"a":1} {"a":2}',
    '{"a":1} x', "}", "<<<<<<< HEAD",
]  # fmt: skip


@pytest.mark.parametrize("line", NO_OBJECT)
def test_lines_that_are_not_one_object_are_rejected(ndjson: Reader, line: str) -> None:
    with pytest.raises(RejectedRow) as caught:
        ndjson('{"a":1}\n\n' + line + '\n{"a":2}\n', SCHEMA)
    if line != "}":
        assert caught.value.where == "file.json: line 3"
        assert caught.value.record == line


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (("d", pa.decimal128(38, 2)), "0.001"),
        (("d", pa.decimal128(38, 2)), "5e-3"),
        (("d", pa.struct([("x", pa.decimal128(38, 2))])), '{"x": 0.005}'),
        (("d", pa.list_(pa.decimal128(38, 2))), "[1.00, 0.001]"),
        (("d", pa.list_(pa.float64())), '["12D"]'),
    ],
)
def test_numbers_that_do_not_fit_are_rejected_at_any_depth(
    ndjson: Reader, column: tuple[str, pa.DataType], value: str
) -> None:
    with pytest.raises(RejectedRow, match="column `d"):
        ndjson(f'{{"d": {value}}}\n', pa.schema([column]))


def test_infinite_numbers_are_read(ndjson: Reader) -> None:
    schema = pa.schema([("f", pa.float64())])
    assert ndjson('{"f":Infinity}\n{"f":-Infinity}\n{"f":1}', schema) == [
        {"f": float("inf")}, {"f": float("-inf")}, {"f": 1.0},
    ]  # fmt: skip


@pytest.mark.parametrize("line", ["{'a':1}", '{"a":01}', "{a:1}", '{"a":1,}'])
def test_malformed_json_objects_are_rejected(ndjson: Reader, line: str) -> None:
    with pytest.raises(RejectedRow, match=r"file\.json: line 1: a line is not one JSON object"):
        ndjson(line + "\n", SCHEMA)


def test_null_in_not_null_column_is_rejected(ndjson: Reader) -> None:
    schema = pa.schema([pa.field("a", pa.int32(), False)])
    assert ndjson('{"a":1}', schema) == [{"a": 1}]
    for line in ('{"a":null}', "{}"):
        with pytest.raises(RejectedRow, match="column `a` is declared NOT NULL"):
            ndjson(line, schema)


def test_json_is_decoded_in_its_encoding(ndjson: Reader) -> None:
    schema = pa.schema([("b", pa.string())])
    assert ndjson('\ufeff{"b":"é"}\n', schema) == [{"b": "é"}]
    for codec, encoding in (("utf-16", None), ("utf-16-be", "utf-16"), ("gb18030", "GB18030")):
        assert ndjson('{"b":"Ж"}\n'.encode(codec), schema, encoding=encoding) == [{"b": "Ж"}]
    with pytest.raises(BadData, match=r"file\.json: line 2"):
        ndjson(b'{"b":"x"}\n{"b":"\xff"}\n', schema)


def test_date_and_timestamp_formats_apply_at_any_depth(ndjson: Reader) -> None:
    moment, day = pa.timestamp("ms", "UTC"), pa.date32()
    schema = pa.schema([("t", moment), ("d", day), ("n", pa.struct([("t", moment), ("d", pa.list_(day))]))])
    rows = ndjson(
        '{"t":"01/02/2020 10:11","d":"01.02.20","n":{"t":"02/02/2020 10:11","d":["02.02.20"]}}', schema,
        timestamp_format="dd/MM/yyyy HH:mm", date_format="dd.MM.yy",
    )  # fmt: skip
    assert rows == [
        {
            "t": datetime(2020, 2, 1, 10, 11, tzinfo=UTC), "d": date(2020, 2, 1),
            "n": {"t": datetime(2020, 2, 2, 10, 11, tzinfo=UTC), "d": [date(2020, 2, 2)]},
        }
    ]  # fmt: skip
    with pytest.raises(InvalidManifest, match="dateFormat"):
        ndjson("{}", schema, date_format="what is this")


def test_column_types_are_inferred_from_all_lines(session: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"b":1,"a":"x"}\n{"b":1.5,"c":[1],"t":"2020-01-01T00:00:00Z"}\n')
    frame = read_json(session, file, NdJson(), None, ReadContext(scratch=tmp_path))
    assert frame.schema.simpleString() == "struct<a:string,b:double,c:array<bigint>,t:string>"
    file.write_text('{"b":1,"B":2}\n')
    with pytest.raises(OdfError, match="column `b` already exists"):
        read_json(session, file, NdJson(), None, ReadContext(scratch=tmp_path))


def test_type_inference_can_be_cancelled(session: SparkSession, tmp_path: Path) -> None:
    class Deaf(Reporter):
        """Hears of the wish to stop by its hooks alone."""

        def raise_if_cancelled(self) -> None:
            pass

    file = tmp_path / "x.json"
    line = json.dumps({f"column {i}": {"x": i, "y": [i] * 5} for i in range(100)}) + "\n"
    file.write_text(line * 8000)
    reporter = Deaf()
    tracker = session.sparkContext.statusTracker()

    def cancel() -> None:
        wait_until(tracker.getActiveJobsIds)
        reporter.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Cancelled):
        read_json(session, file, NdJson(), None, ReadContext(scratch=tmp_path, reporter=reporter))
    thread.join()
    # Spark tells its tracker of the end of a job later than the caller of the job.
    wait_until(lambda: not tracker.getActiveJobsIds())
