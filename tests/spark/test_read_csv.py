"""CSV as people have it: every option of the step, and no value that is silently something else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from odf_engine.data.ddl import uuid_type
from odf_engine.errors import BadData, InvalidManifest, InvalidSchema
from odf_engine.metadata.model import Csv
from odf_engine.spark import sql_types, text_files
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.readers import ReadContext, read_csv

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reader = Callable[..., list[dict[str, Any]]]
AB = pa.schema([("a", pa.int32()), ("b", pa.string())])


def pairs(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows]


def test_quoted_empty_and_padded_values_are_read(csv: Reader) -> None:
    data = 'a,b\n1,x\n 2 ,  y \n\n3,\n4,""\n5,"q""r, s"\r\n6,last without a line end'
    assert pairs(csv(data, AB, header=True)) == [
        (1, "x"), (2, "  y "), (3, None), (4, None), (5, 'q"r, s'), (6, "last without a line end"),
    ]  # fmt: skip


def test_declared_columns_match_by_position(csv: Reader) -> None:
    assert csv("other,names\n1,x\n", AB, header=True) == [{"a": 1, "b": "x"}]


def test_csv_with_bom_keeps_first_column_name(csv: Reader) -> None:
    assert csv("\ufeffa,b\n1,x\n", header=True) == [{"a": "1", "b": "x"}]
    assert pairs(csv('\ufeff"1",x\n', AB)) == [(1, "x")]
    assert pairs(csv('\ufeff"1","x\ny"\n', AB)) == [(1, "x\ny")]


def test_blank_or_header_only_csv_has_no_rows(csv: Reader) -> None:
    assert csv("\n \n", AB) == []
    assert csv("a,b", AB, header=True) == []


def test_all_line_endings_separate_rows(csv: Reader) -> None:
    for data in ("1,x\r2,y\r", "1,x\r\n2,y\n"):
        assert pairs(csv(data, AB)) == [(1, "x"), (2, "y")], data


def test_line_breaks_in_quotes_are_kept(csv: Reader) -> None:
    data = '1,"one\ntwo"\r\n2,"one\r\ntwo"\r\n3,"one\rtwo"\n4,"","x\n'.replace('4,"","x\n', '4,"x"\n')
    assert pairs(csv(data, AB)) == [(1, "one\ntwo"), (2, "one\r\ntwo"), (3, "one\rtwo"), (4, "x")]


def test_line_breaks_in_quotes_are_kept_across_chunks(csv: Reader) -> None:
    count = 40_000
    data = "a,b\n" + "".join(f'{i},"l{i}\n,""x"" {i}"\n' for i in range(count))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_READ_SIZE", 1 << 16)
        found = csv(data, AB, header=True)
    assert pairs(found) == [(i, f'l{i}\n,"x" {i}') for i in range(count)]


def test_stray_quotes_in_unquoted_values_are_kept(csv: Reader) -> None:
    assert pairs(csv('1,5" pipe\n2,6" pipe and a 7"\n3,"8\n9"\n', AB)) == [
        (1, '5" pipe'), (2, '6" pipe and a 7"'), (3, "8\n9"),
    ]  # fmt: skip


def test_separator_quote_and_escape_options_apply(csv: Reader) -> None:
    assert pairs(csv("1;'a;''b'''\n", AB, separator=";", quote="'")) == [(1, "a;'b'")]
    assert pairs(csv("1\tx\n", AB, separator="\t")) == [(1, "x")]
    assert pairs(csv("1||x,y\n", AB, separator="||")) == [(1, "x,y")]
    assert pairs(csv('1,"a\n2,b"\n', AB, quote="")) == [(1, '"a'), (2, 'b"')]
    assert pairs(csv('1,"a\\"b"\n2,"x\\\\"\n3,"m\\"\nn"\n', AB, escape="\\")) == [
        (1, 'a"b'), (2, "x\\"), (3, 'm"\nn'),
    ]  # fmt: skip


def test_null_value_and_unquoted_empty_value_are_null(csv: Reader) -> None:
    assert pairs(csv('1,\\N\n2,""\n3,\n\\N,z\n4,NA\n', AB, null_value="\\N")) == [
        (1, None), (2, ""), (3, None), (None, "z"), (4, "NA"),
    ]  # fmt: skip
    with pytest.raises(RejectedRow, match="column `a` has the value ''"):
        csv('"",x\n', AB, null_value="NA")


@pytest.mark.parametrize(
    ("encoding", "codec", "text"),
    [
        ("ISO-8859-1", "latin1", "é"),
        ("windows-1251", "cp1251", "Ж"),
        ("Shift_JIS", "shift_jis", "表,ソ"),  # the second bytes of these look like ASCII
        ("gb18030", "gb18030", "中\U00020000"),
        ("UTF-16", "utf-16", "Ж\nи"),
        ("UTF-16", "utf-16-be", "Ж"),
        ("UTF-16LE", "utf-16-le", "Ж"),
        (None, "utf-16", "Ж"),
        ("utf8", "utf-8-sig", "é"),
    ],
)
def test_csv_is_decoded_in_its_encoding(csv: Reader, encoding: str | None, codec: str, text: str) -> None:
    assert pairs(csv(f'1,"{text}"\n2,x\n'.encode(codec), AB, encoding=encoding)) == [(1, text), (2, "x")]


def test_unknown_encoding_is_rejected(csv: Reader) -> None:
    with pytest.raises(InvalidManifest, match="klingon"):
        csv("1,x\n", AB, encoding="klingon")


def test_undecodable_bytes_are_rejected_with_their_line(csv: Reader) -> None:
    with pytest.raises(BadData, match=r"file\.csv: line 2: byte 0xff at 6 is not UTF-8") as caught:
        csv(b"1,x\n2,\xff\n", AB)
    assert "encoding" in str(caught.value.hint)
    with pytest.raises(BadData, match="line 1") as caught:
        csv("1,x\n".encode("utf-16"), AB, encoding="utf-8")
    assert "utf-16" in str(caught.value.hint)
    with pytest.raises(BadData, match=r"line 3: byte 0xff at 10 is not SHIFT_JIS text"):
        csv("1,x\n2,y\n表".encode("shift_jis") + b"\xff", AB, encoding="shift_jis")
    with pytest.raises(BadData, match=r"line 2: byte 0xe9 at 6 is not ASCII"):
        csv(b"1,x\n2,\xe9\n", AB, encoding="us-ascii")
    with pytest.raises(BadData, match="line 1"):
        csv(b"1,\xc3", AB)  # a character that the end of the file cuts


def test_unclosed_quote_is_rejected_with_its_line(csv: Reader) -> None:
    with pytest.raises(BadData, match=r"file\.csv: line 2, column \"b\": a quote is not closed"):
        csv('1,x\n2,"y\n3,z\n', AB)


@pytest.mark.parametrize("data", ["1,x\n2\n", "1,x\n2,y,z\n"])
def test_ragged_row_is_rejected(csv: Reader, data: str) -> None:
    with pytest.raises(RejectedRow, match="more or fewer values") as caught:
        csv(data, AB)
    assert caught.value.record in data.splitlines()


def test_ragged_row_is_rejected_when_columns_are_pruned(
    session: SparkSession, rows: Callable[[DataFrame], Any], tmp_path: Path
) -> None:
    file = tmp_path / "x.csv"
    file.write_text("1,x\n2\n")
    frame = read_csv(session, file, Csv(), AB, ReadContext(scratch=tmp_path))
    with pytest.raises(RejectedRow):
        rows(frame.select("a"))


LONG = "1234567890123456789012345678.0123456789"
MOMENT = datetime(2020, 2, 1, 10, 11, tzinfo=UTC)
SUNDAY = datetime(2024, 11, 3, 7, 30, tzinfo=UTC)
MIDNIGHT = datetime(2020, 2, 1, tzinfo=UTC)
VALUES = [
    (pa.bool_(), "TRUE", True),
    (pa.bool_(), "f", False),
    (pa.int8(), " -128", -128),
    (pa.int64(), "+5", 5),
    (pa.uint8(), "255", 255),
    (pa.uint64(), "18446744073709551615", 2**64 - 1),
    (pa.float64(), " 1e3 ", 1000.0),
    (pa.float64(), "-Infinity", float("-inf")),
    (pa.float32(), "0.5", 0.5),
    (pa.decimal128(5, 2), "1.20000", Decimal("1.20")),
    (pa.float64(), ".5E-1", 0.05),
    (pa.float64(), "-0e-9 ", 0.0),
    (pa.float32(), "+Inf", float("inf")),
    (pa.uint64(), " +7 ", 7),
    (pa.decimal128(5, 2), "-999.99", Decimal("-999.99")),
    (pa.decimal128(5, 2), " 12.5e-1 ", Decimal("1.25")),
    (pa.decimal128(5, 2), "0.00100E3", Decimal("1.00")),
    (pa.decimal128(5, 2), "0e-9999", Decimal("0.00")),
    (pa.decimal128(38, 0), "1.5e1", Decimal(15)),
    (pa.decimal128(38, 38), "1e-38", Decimal("1e-38")),
    (pa.decimal128(38, 0), "9" * 38 + "." + "0" * 50, Decimal("9" * 38)),
    (pa.decimal128(38, 10), LONG, Decimal(LONG)),
    (pa.date32(), "2020-02-01", date(2020, 2, 1)),
    (pa.date32(), "2020-2-1 ", date(2020, 2, 1)),
    (pa.date32(), "2020-02-01T00:00:00.000", date(2020, 2, 1)),
    (pa.timestamp("ms", "UTC"), "2020-02-01T10:11:00Z", MOMENT),
    (pa.timestamp("ms", "UTC"), "2020-02-01 12:11:00+02:00", MOMENT),
    (pa.timestamp("ms", "UTC"), " 2020-02-01 10:11", MOMENT),
    (pa.timestamp("ms", "UTC"), "2020-02-01", MIDNIGHT),
    (pa.timestamp("ms", "UTC"), "2020-02-01T11:11:00 Europe/Paris", MOMENT),
    (pa.timestamp("ms", "UTC"), "2020-02-01T05:11:00America/New_York", MOMENT),
    (pa.timestamp("ms", "UTC"), "2020-02-01 23:11:00 NZ", MOMENT),
    (pa.timestamp("ms", "UTC"), "2020-02-01 05:11:00 EST5EDT", MOMENT),
    (pa.timestamp("ms", "UTC"), "2020-02-01 10:11:00 UTC", MOMENT),
    (pa.timestamp("ms", "UTC"), "2020-02-01 12:11:00 GMT+2", MOMENT),
    (pa.timestamp("ms", "UTC"), "2024-11-03T02:30:00 America/New_York", SUNDAY),
    (pa.timestamp("ms", "UTC"), "2024-11-03T03:30:00 America/Halifax", SUNDAY),
    (pa.time64("us"), "10:11:12.5", time(10, 11, 12, 500000)),
    (pa.binary(), "ab", b"ab"),
    (uuid_type(), "0189dc1e-7a00-7000-8000-00000000000f", bytes.fromhex("0189dc1e7a007000800000000000000f")),
]  # fmt: skip


def columns(kinds: list[pa.DataType]) -> pa.Schema:
    return pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds)])


def test_csv_values_are_parsed_by_type(csv: Reader) -> None:
    line = ";".join(text for _, text, _ in VALUES)
    (row, empty) = csv(
        f"{line}\n{';' * (len(VALUES) - 1)}\n", columns([kind for kind, _, _ in VALUES]), separator=";"
    )
    assert list(row.values()) == [value for _, _, value in VALUES]
    assert set(empty.values()) == {None}


WRONG = [
    (pa.bool_(), "2", "BOOLEAN"),
    (pa.int8(), "128", "TINYINT"),
    (pa.int64(), "1.0", "BIGINT"),
    (pa.uint8(), "256", "TINYINT UNSIGNED"),
    (pa.uint32(), "-1", "INT UNSIGNED"),
    (pa.float64(), "1e400", "DOUBLE"),
    (pa.float64(), "1,5", "DOUBLE"),
    (pa.decimal128(5, 2), "1.234", r"DECIMAL\(5,2\)"),
    (pa.decimal128(5, 2), "1234", r"DECIMAL\(5,2\)"),
    (pa.decimal128(38, 0), "1.5", r"DECIMAL\(38,0\)"),
    (pa.decimal128(38, 0), "15e-1", r"DECIMAL\(38,0\)"),
    (pa.decimal128(38, 2), "0.001", r"DECIMAL\(38,2\)"),
    (pa.decimal128(38, 18), "1e-19", r"DECIMAL\(38,18\)"),
    (pa.decimal128(38, 0), "9" * 39, r"DECIMAL\(38,0\)"),
    (pa.decimal128(10, 2), "1.23" + "0" * 38 + "1", r"DECIMAL\(10,2\)"),
    (pa.decimal128(5, 2), "\uff11\uff12", r"DECIMAL\(5,2\)"),
    (pa.decimal128(5, 2), "1d", r"DECIMAL\(5,2\)"),
    (pa.float64(), "12D", "DOUBLE"),
    (pa.float64(), "0x1p3", "DOUBLE"),
    (pa.float64(), "1e-400", "DOUBLE"),
    (pa.float64(), "\uff11", "DOUBLE"),
    (pa.float32(), "1f", "FLOAT"),
    (pa.float32(), "1e-60", "FLOAT"),
    (pa.uint64(), "1e1", "BIGINT UNSIGNED"),
    (pa.uint64(), "1.0", "BIGINT UNSIGNED"),
    (pa.int64(), "\uff11", "BIGINT"),
    (pa.date32(), "2020-02-01T10:11:00", "DATE"),
    (pa.date32(), "2020", "DATE"),
    (pa.date32(), "2020-02-30", "DATE"),
    (pa.timestamp("ms", "UTC"), "2020", "TIMESTAMP"),
    (pa.timestamp("ms", "UTC"), "10:11:00", "TIMESTAMP"),
    (pa.timestamp("ms", "UTC"), "1577836800", "TIMESTAMP"),
    (pa.timestamp("ms", "UTC"), "now", "TIMESTAMP"),
    (pa.timestamp("ms", "UTC"), "2024-03-10T02:30:00 America/New_York", "TIMESTAMP"),
    (pa.timestamp("ms", "UTC"), "2024-11-03T01:30:00 America/New_York", "TIMESTAMP"),
    (pa.timestamp("ms", "UTC"), "2024-04-07 01:45:00 Australia/Lord_Howe", "TIMESTAMP"),
    (pa.timestamp("ms", "UTC"), "2024-09-29 02:30:00 NZ", "TIMESTAMP"),
    (pa.timestamp("ms", "UTC"), "1993-08-21T12:00:00 Pacific/Kwajalein", "TIMESTAMP"),
    (uuid_type(), "0189dc1e", "UUID"),
]


def test_values_that_do_not_fit_their_type_are_rejected(
    session: SparkSession, rows: Callable[[DataFrame], Any]
) -> None:
    # Without a file, which would mean a job for each.
    held = session.sql("SELECT " + ", ".join(f"'{each[1]}' AS c{at}" for at, each in enumerate(WRONG)))
    frame = sql_types.cast_to_schema(held, columns([kind for kind, _, _ in WRONG]), sql_types.Formats())
    for at, (_, text, wanted) in enumerate(WRONG):
        with pytest.raises(
            RejectedRow, match=f"column `c{at}` has the value '{text}', which is not an? {wanted}"
        ) as caught:
            rows(frame.select(f"c{at}"))
        assert (caught.value.column, caught.value.value) == (f"c{at}", text)


def test_null_in_not_null_column_is_rejected(csv: Reader) -> None:
    schema = pa.schema([pa.field("a", pa.int32(), False), pa.field("b", pa.string(), False)])
    assert pairs(csv("1,x\n", schema)) == [(1, "x")]
    for data, column in ((",x\n", "a"), ("1,\n", "b")):
        with pytest.raises(RejectedRow, match=f"column `{column}` is declared NOT NULL"):
            csv(data, schema)


def test_date_and_timestamp_formats_apply(csv: Reader) -> None:
    moment = pa.schema([("t", pa.timestamp("ms", "UTC"))])
    for pattern in ("dd/MM/yyyy HH:mm", "%d/%m/%Y %H:%M"):
        assert csv("01/02/2020 10:11\n", moment, timestamp_format=pattern) == [{"t": MOMENT}]
    assert csv("2020-02-01T10:11:00Z\n", moment, timestamp_format="rfc3339") == [{"t": MOMENT}]
    assert csv("01.02.20\n", pa.schema([("d", pa.date32())]), date_format="dd.MM.yy") == [
        {"d": date(2020, 2, 1)}
    ]
    with pytest.raises(RejectedRow, match="'2020-02-01', which is not a TIMESTAMP"):
        csv("2020-02-01\n", moment, timestamp_format="dd/MM/yyyy HH:mm")
    for pattern in ("foo bar", "%Q"):
        with pytest.raises(InvalidManifest, match=pattern.split()[0]):
            csv("x\n", moment, timestamp_format=pattern)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2020-02-01T10:11:00Z", "2020-02-01T10:11:00"),
        ("2020-02-01t10:11:00z", "2020-02-01T10:11:00"),
        ("2020-02-01 11:11:00.250+01:00", "2020-02-01T10:11:00.250"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00"),
        ("2016-12-31T18:59:60.5-05:00", "2017-01-01T00:00:00.500"),
        ("2020-02-01T10:11:00-10:00", "2020-02-01T20:11:00"),
    ],
)
def test_rfc3339_takes_every_spelling_of_the_standard(csv: Reader, text: str, moment: str) -> None:
    schema = pa.schema([("t", pa.timestamp("ms", "UTC"))])
    expected = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert csv(f"{text}\n", schema, timestamp_format="rfc3339") == [{"t": expected}]


@pytest.mark.parametrize(
    "text",
    ["2020-02-01T10:11:00", "2020-02-01", "2020-02-01T10:60:00Z", "2020-02-01T10:11Z", "2020-2-1T10:11:00Z"],
)
def test_rfc3339_needs_seconds_and_an_offset(csv: Reader, text: str) -> None:
    with pytest.raises(RejectedRow, match=f"'{text}', which is not a TIMESTAMP"):
        csv(f"{text}\n", pa.schema([("t", pa.timestamp("ms", "UTC"))]), timestamp_format="rfc3339")


def test_without_a_schema_all_is_text(csv: Reader) -> None:
    assert csv("a,b\n01, x\n", header=True) == [{"a": "01", "b": " x"}]
    assert csv("1,x\n") == [{"_c0": "1", "_c1": "x"}]


def test_column_types_are_inferred(session: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text(
        "int,num,bool,day,at,zip,none,id,mixed,phone,code,small\n"
        "1,1.5,true,2020-02-01,2020-02-01T10:11:00Z,01234,,12345678901234567890,1,+4930123,1E5,1.5e-05\n"
        "-2,2,FALSE,2020-02-02,2020-02-01 10:11,10001,,1,x,4930123,12,1e-07\n"
    )
    frame = read_csv(session, file, Csv(header=True, infer_schema=True), None, ReadContext(scratch=tmp_path))
    assert frame.schema.simpleString() == (
        "struct<int:bigint,num:double,bool:boolean,day:date,at:timestamp,zip:string,none:string,id:string,"
        "mixed:string,phone:string,code:string,small:double>"
    )


def test_column_names_with_special_characters_are_read(csv: Reader) -> None:
    schema = pa.schema([("a`b'c\\ d.e", pa.int32()), ("${env:HOME}", pa.string()), ("é", pa.string())])
    assert pairs(csv("1,x,y\n", schema)) == [(1, "x", "y")]
    with pytest.raises(RejectedRow) as caught:
        csv("z,x,y\n", schema)
    assert caught.value.column == "a`b'c\\ d.e"


def test_file_names_with_spark_meaning_are_read(
    session: SparkSession, rows: Callable[[DataFrame], Any], tmp_path: Path
) -> None:
    folder = tmp_path / "_data[1] {a,b}*"
    folder.mkdir()
    for name in ("_hidden.csv", ".hidden", "x[1].csv.gz", "a*{b}, ü"):
        (folder / name).write_text("1,x\n")
        assert rows(read_csv(session, folder / name, Csv(), AB, ReadContext(scratch=folder))) == [
            {"a": 1, "b": "x"}
        ]


def test_rows_keep_the_order_of_the_file(
    session: SparkSession, rows: Callable[[DataFrame], Any], tmp_path: Path
) -> None:
    file = tmp_path / "x.csv"
    filler = "x" * 2000
    with file.open("w") as out:
        out.writelines(f"{i},{filler}\n" for i in range(18_000))
    assert file.stat().st_size > 32 << 20
    frame = read_csv(session, file, Csv(), AB, ReadContext(scratch=tmp_path)).select("a")
    assert [row["a"] for row in rows(frame)] == list(range(18_000))


def test_invalid_options_are_rejected(csv: Reader) -> None:
    for options in ({"quote": "ab"}, {"escape": "«"}, {"separator": ""}, {"separator": '"'}):
        with pytest.raises(InvalidManifest, match=next(iter(options))):
            csv("1,x\n", AB, **options)


def test_nested_types_are_rejected_in_csv(csv: Reader) -> None:
    with pytest.raises(InvalidSchema, match="column `l`") as caught:
        csv("1\n", pa.schema([("l", pa.list_(pa.int32()))]))
    assert "from_json" in str(caught.value.hint)
