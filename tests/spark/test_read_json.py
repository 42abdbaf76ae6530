"""Lines of JSON: one object each, missing keys are null, and nothing is dropped in silence."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from odf_engine.errors import BadData, Cancelled, InvalidManifest
from odf_engine.metadata.model import NdJson
from odf_engine.progress import Reporter
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.readers import read_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def test_objects(ndjson: Reader) -> None:
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


WRONG = [
    ('{"a":"x"}', "a", "x", "BIGINT"),
    ('{"a":1.0}', "a", "1.0", "BIGINT"),
    ('{"a":true}', "a", "true", "BIGINT"),
    ('{"a":9223372036854775808}', "a", "9223372036854775808", "BIGINT"),
    ('{"a":""}', "a", "", "BIGINT"),
    ('{"u":256}', "u", "256", "TINYINT UNSIGNED"),
    ('{"d":1.2345}', "d", "1.2345", "DECIMAL(10,3)"),
    ('{"t":1577836800}', "t", "1577836800", "TIMESTAMP"),
    ('{"t":"yesterday"}', "t", "yesterday", "TIMESTAMP"),
    ('{"n":{"x":"q"}}', "n.x", "q", "INT"),
    ('{"l":1}', "l", "1", "ARRAY"),
]


@pytest.mark.parametrize(("line", "column", "value", "wanted"), WRONG, ids=lambda part: str(part)[:30])
def test_values_that_do_not_fit(ndjson: Reader, line: str, column: str, value: str, wanted: str) -> None:
    with pytest.raises(RejectedRow) as caught:
        ndjson('{"a":1}\n' + line + "\n", SCHEMA)
    assert (caught.value.column, caught.value.value, caught.value.wanted) == (column, value, wanted)


NO_OBJECT = [
    "<html>", "[1,2]", '[{"a":1}]', "7", "null", '"x"', '{"a":1', '{"a":1}{"a":2}', '{"a":1} {"a":2}',
    '{"a":1} x', "}", "<<<<<<< HEAD",
]  # fmt: skip


@pytest.mark.parametrize("line", NO_OBJECT)
def test_lines_that_are_not_one_object(ndjson: Reader, line: str) -> None:
    with pytest.raises(RejectedRow) as caught:
        ndjson('{"a":1}\n\n' + line + '\n{"a":2}\n', SCHEMA)
    if line != "}":
        assert caught.value.where == "file.json: line 3"
        assert caught.value.record == line


@pytest.mark.parametrize("line", ["{'a':1}", '{"a":01}', "{a:1}", '{"a":1,}'])
def test_broken_json_that_ends_well(ndjson: Reader, line: str) -> None:
    with pytest.raises(RejectedRow, match=r"file\.json: line 1: a line is not one JSON object"):
        ndjson(line + "\n", SCHEMA)


def test_not_null(ndjson: Reader) -> None:
    schema = pa.schema([pa.field("a", pa.int32(), False)])
    assert ndjson('{"a":1}', schema) == [{"a": 1}]
    for line in ('{"a":null}', "{}"):
        with pytest.raises(RejectedRow, match="column `a` is declared NOT NULL"):
            ndjson(line, schema)


def test_encodings_and_marks(ndjson: Reader) -> None:
    schema = pa.schema([("b", pa.string())])
    assert ndjson('\ufeff{"b":"é"}\n', schema) == [{"b": "é"}]
    assert ndjson('{"b":"Ж"}\n'.encode("utf-16"), schema, encoding="utf-16") == [{"b": "Ж"}]
    with pytest.raises(BadData, match=r"file\.json: line 2"):
        ndjson(b'{"b":"x"}\n{"b":"\xff"}\n', schema)


def test_formats(ndjson: Reader) -> None:
    schema = pa.schema([("t", pa.timestamp("ms", "UTC")), ("d", pa.date32())])
    rows = ndjson(
        '{"t":"01/02/2020 10:11","d":"01.02.20"}', schema,
        timestamp_format="dd/MM/yyyy HH:mm", date_format="dd.MM.yy",
    )  # fmt: skip
    assert [str(value) for value in rows[0].values()] == ["2020-02-01 10:11:00+00:00", "2020-02-01"]
    with pytest.raises(InvalidManifest, match="dateFormat"):
        ndjson("{}", schema, date_format="what is this")


def test_inferred(session: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"b":1,"a":"x"}\n{"b":1.5,"c":[1],"t":"2020-01-01T00:00:00Z"}\n')
    frame = read_json(session, file, NdJson(), None, scratch=tmp_path)
    assert frame.schema.simpleString() == "struct<a:string,b:double,c:array<bigint>,t:string>"


def test_cancelled_while_it_infers(session: SparkSession, tmp_path: Path) -> None:
    class Deaf(Reporter):
        """Hears of the wish to stop by its hooks alone."""

        def check(self) -> None:
            pass

    file = tmp_path / "x.json"
    line = json.dumps({f"column {i}": {"x": i, "y": [i] * 5} for i in range(100)}) + "\n"
    file.write_text(line * 8000)
    reporter = Deaf()
    tracker = session.sparkContext.statusTracker()

    def cancel() -> None:
        while not tracker.getActiveJobsIds():
            time.sleep(0.01)
        reporter.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Cancelled):
        read_json(session, file, NdJson(), None, scratch=tmp_path, reporter=reporter)
    thread.join()
    assert tracker.getActiveJobsIds() == []
