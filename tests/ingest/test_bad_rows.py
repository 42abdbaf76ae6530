"""Invalid rows: all of them in one error, or in a file of rejects with the other rows ingested."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from odf_engine.errors import BadData
from odf_engine.workspace.dataset_folders import Rejects, read_rejects
from odf_engine.workspace.workspace import Workspace
from tests.ingest.pulling import Pulled

SOURCE = """
fetch: {{kind: Url, url: in}}
read: {read}
merge: {{kind: Append}}
"""
MESSY = (
    "day;town;n;price\n"
    '01/02/2024;"b\nb";1;1,5\n'
    "02/02/2024;c;x;2\n"
    "\n"
    "bad;d;3;4\n"
    "03/02/2024;e\n"
    '04/02/2024;"f\ng";5;n/a\n'
    "05/02/2024;h;6;7,25\n"
)
"""Semicolons, decimal commas, days first, a line break within quotes."""
QUERY = (
    "WITH a AS (SELECT *, CAST(replace(price, ',', '.') AS DOUBLE) AS amount FROM input WHERE n < 100) "
    "SELECT CAST(day AS TIMESTAMP) AS event_time, town, n, amount, 2 * amount AS twice FROM a"
)
CSV = "{{kind: Csv, header: true, separator: ';', dateFormat: dd/MM/yyyy, schema: [{}]}}".format(
    "day DATE, town STRING, n BIGINT NOT NULL, price STRING"
)
PREPROCESS = f"\npreprocess: {json.dumps({'kind': 'Sql', 'engine': 'spark', 'query': QUERY})}"


def reject(pulled: Pulled, name: str = "data") -> None:
    """Makes the workspace reject invalid rows of a dataset."""
    (pulled.workspace.odf / "config.yaml").write_text(f"onBadRows: {{{name}: reject}}\n")
    pulled.workspace = Workspace(pulled.workspace.folder)
    pulled.entry = pulled.workspace.resolve(str(pulled.entry.alias))


def rejects(pulled: Pulled) -> list[list[str]]:
    """The rejected rows of the newest block: line, column, reason and text."""
    found = read_rejects(pulled.dataset.folder)[str(pulled.dataset.head())]
    head, *rows = csv.reader(found.file.open(newline=""))
    assert head == ["file", "line", "column", "reason", "record"]
    assert (len(rows), {row[0] for row in rows}) == (found.rows, {"in"})
    return [row[1:] for row in rows]


def test_all_invalid_csv_rows_are_listed_or_rejected(pulled: Pulled) -> None:
    pulled.write("in", MESSY)
    pulled.add(SOURCE.format(read=CSV) + PREPROCESS)
    error = pulled.fails(
        BadData, "in: 4 invalid rows, the first in line 4, column \"n\": 'x' is not a BIGINT",
        "odf config set onBadRows.data reject",
    )  # fmt: skip
    assert error.excerpt == (
        "line 4, column \"n\": 'x' is not a BIGINT",
        "line 6, column \"day\": 'bad' is not a DATE",
        "line 7: 2 values for 4 columns: 03/02/2024;e",
        "line 8, column \"price\": 'n/a' is not a DOUBLE (column amount of the preprocess query)",
    )
    reject(pulled)
    assert pulled.pull().records == 2
    assert pulled.rows("event_time", "town", "n", "amount", "twice") == [
        (datetime(2024, 2, 1, tzinfo=UTC), "b\nb", 1, 1.5, 3),
        (datetime(2024, 2, 5, tzinfo=UTC), "h", 6, 7.25, 14.5),
    ]
    assert rejects(pulled) == [
        ["4", "n", "'x' is not a BIGINT", "02/02/2024;c;x;2"],
        ["6", "day", "'bad' is not a DATE", "bad;d;3;4"],
        ["7", "", "2 values for 4 columns: 03/02/2024;e", "03/02/2024;e"],
        [
            "8",
            "price",
            "'n/a' is not a DOUBLE (column amount of the preprocess query)",
            '04/02/2024;"f\ng";5;n/a',
        ],
    ]
    assert any("2 rows, 4 rows rejected" in text for text in [line for _, line in pulled.reporter.lines])
    assert pulled.pull().status == "up-to-date"


def test_rejecting_invalid_rows_does_not_change_valid_rows(pulled: Pulled) -> None:
    rows = [f"{n},{n / 4},2024-01-{n % 28 + 1:02},v{n}\r\n" for n in range(200)]
    bad = rows.copy()
    for at in (150, 3, 0):
        bad.insert(at, f"x,1,2024-01-01,bad{at}\r\n")
    read = "{kind: Csv, schema: [a INT, 'b DECIMAL(9, 2)', c DATE, d STRING], encoding: utf-16}"
    pulled.write("in", "".join(rows).encode("utf-16"))
    pulled.add(SOURCE.format(read=read), name="plain")
    pulled.pull()
    expected, schema = pulled.rows("a", "b", "c", "d"), pulled.table().schema
    pulled.write("in", "".join(bad).encode("utf-16"))
    pulled.add(SOURCE.format(read=read))
    reject(pulled, "'%'")
    pulled.pull()
    assert (pulled.rows("a", "b", "c", "d"), pulled.table().schema) == (expected, schema)
    assert [row[0] for row in rejects(pulled)] == ["1", "5", "153"]
    assert pulled.reporter.warnings[0] == (
        "in: 3 invalid rows rejected, the first in line 1, column \"a\": 'x' is not an INT"
    )


INVALID_TEXT = [
    (
        '1,"MEGA ROAD\n2,plain\n3,said "hi"\n4,z\n',
        [["2", "name", 'a quote is not closed: "MEGA ROAD', '1,"MEGA ROAD']],
        "read.quote",
        [(2, "plain"), (3, 'said "hi"'), (4, "z")],
    ),
    (
        '1,"fine"\n2,"not \\"fine"\n3,"x" \n4,5" and 6"\n',
        [
            ["3", "name", 'text follows a closing quote: "not \\"fine"', '2,"not \\"fine"'],
            ["4", "name", 'text follows a closing quote: "x" ', '3,"x" '],
        ],
        "set read.escape to '\\'",
        [(1, "fine"), (4, '5" and 6"')],
    ),
    (
        '1,"a\nb"\n5","y\n2,"b\nc"d\n3,x',
        [
            ["4", "name", 'a quote is not closed: "y', '5","y'],
            ["5", "name", 'a quote is not closed: "b', '2,"b'],
            ["6", "", '1 value for 2 columns: c"d', 'c"d'],
        ],
        "read.quote",
        [(1, "a\nb"), (3, "x")],
    ),
    (
        '1,"ye\0ar"\n\0\0\0\n2,b\n"\0003",c\n',
        [
            ["2", "name", "byte 0x00 is not text", '1,"ye\0ar"'],
            ["3", "id", "byte 0x00 is not text", "\0\0\0"],
            ["5", "id", "byte 0x00 is not text", '"\0003",c'],
        ],
        "set read.encoding",
        [(2, "b")],
    ),
]


@pytest.mark.parametrize(("text", "invalid", "hint", "valid"), INVALID_TEXT)
def test_stray_quotes_and_zero_bytes_invalidate_only_their_row(
    pulled: Pulled, text: str, invalid: list[list[str]], hint: str, valid: list[Any]
) -> None:
    pulled.add(SOURCE.format(read="{kind: Csv, header: true, schema: [id BIGINT, name STRING]}"))
    pulled.write("in", "id,name\n" + text)
    line, column, reason, _ = invalid[0]
    pulled.fails(BadData, f'line {line}, column "{column}": {reason}', hint)
    reject(pulled)
    pulled.pull()
    assert rejects(pulled) == invalid
    assert pulled.rows("id", "name") == valid


@pytest.mark.parametrize("header", ['"id"x,name', "i\0d,name"])
def test_invalid_header_fails_the_file(pulled: Pulled, header: str) -> None:
    pulled.add(SOURCE.format(read="{kind: Csv, header: true, schema: [id BIGINT, name STRING]}"))
    pulled.write("in", f"{header}\n1,a\n")
    reject(pulled)
    pulled.fails(BadData, 'in: line 1, column "id":')


def test_utf_16_without_a_byte_order_mark_is_not_read_as_utf_8(pulled: Pulled) -> None:
    read = "{{kind: Csv, header: true, schema: [id BIGINT, name STRING]{}}}"
    pulled.add(SOURCE.format(read=read.format("")))
    pulled.write("in", "id,name\n1,a\n".encode("utf-16-le"))
    pulled.fails(BadData, "in: line 1", "set read.encoding, such as utf-16")
    pulled.add(SOURCE.format(read=read.format(", encoding: utf-16")), name="marked")
    pulled.pull()
    assert pulled.rows("id", "name") == [(1, "a")]


JSON_FORMATS = [
    (
        "{kind: NdJson, schema: [n BIGINT, 'at STRUCT<x: INT>', t UUID]}",
        '{"n": 1, "at": {"x": 1}}\n[1]\n\n{"n": "y"}\n{"at": {"x": "z"}}\n{"n": 2, "at": "w"}\n{}\nnull\n'
        '{"n": 3, "t": "00000000-0000-0000-0000-00000000000g"}\n',
        [1, None],
        [
            ["2", "", "a line is not one JSON object: it is another type of value"],
            ["4", "n", "'y' is not a BIGINT"],
            ["5", "at", "'{z}' is not a STRUCT<x: INT>"],
            ["6", "at", "'w' is not a STRUCT<x: INT>"],
            ["8", "", "a line is not one JSON object: it is another type of value"],
            ["9", "t", "'00000000-0000-0000-0000-00000000000g' is not a UUID"],
        ],
    ),
    (
        "{kind: NdJson, schema: [n BIGINT, s STRING, 'at STRUCT<x: INT>']}",
        f'{{"n": 1, "n": 2}}\n{{"n": 1, "other": {{"a": 1, "b": [{{"k\u0301": 1, "k\\u0301": 1}}]}}}}\n'
        f'{{"n": 2, "x": {"[" * 1500}{"]" * 1500}}}\n{{"s": "a\\ud800"}}\n{{"s": ["\\udc00"]}}\n'
        f'{{"n": {"9" * 1200}}}\n{{"n": 3, "x": {"9" * 5000}}}\n{{"{"k" * 60_000}": 4}}\n'
        f'{{"n": 5, "x": {"9" * (1 << 20)}9}}\n{{"n" : 6, "at" : {{"x" : 1, "x" : 1}}}}\n'
        '{"n": 7, "s": "\\u0022:", "N": 8}\n',
        [3, 7],
        [
            ["1", "", "the key 'n' occurs twice in an object"],
            ["2", "", "the key 'k\u0301' occurs twice in an object"],
            ["3", "", "values are nested more than 500 levels deep"],
            ["4", "", "a text has the escape \\ud800, which is half of a character"],
            ["5", "", "a text has the escape \\udc00, which is half of a character"],
            ["6", "n", None],
            ["8", "", f"a key is longer than 50,000 bytes: '{'k' * 59}…'"],
            ["9", "", "a value does not match the declared type"],
            ["10", "", "the key 'x' occurs twice in an object"],
        ],
    ),
    (
        "{kind: NdJson, schema: [n INT, 's CHAR(2)', 'at STRUCT<x INT NOT NULL, y VARCHAR(1)>',"
        " 'l VARCHAR(1)[]', 'b BINARY(2)', 'v VARBINARY(2)']}",
        '{"n": 1, "s": "\U0001d11eé", "at": {"x": 1, "y": null}, "l": ["a", null],'
        ' "b": "YWI=", "v": "YQ=="}\n'
        '{"n": 2, "at": null}\n{"s": "abc"}\n{"at": {}}\n{"at": {"x": 1, "y": "ab"}}\n{"l": ["a", "ab"]}\n'
        '{"b": "YQ=="}\n{"v": "YWJj"}\n',
        [1, 2],
        [
            ["3", "s", "'abc' is not a CHAR(2)"],
            ["4", "at", "'{null, null}' is not a STRUCT<x: INT NOT NULL, y: VARCHAR(1)>"],
            ["5", "at", "'{1, ab}' is not a STRUCT<x: INT NOT NULL, y: VARCHAR(1)>"],
            ["6", "l", "'[a, ab]' is not an ARRAY<VARCHAR(1)>"],
            ["7", "b", "'a' is not a BINARY(2)"],
            ["8", "v", "'abc' is not a VARBINARY(2)"],
        ],
    ),
    (
        "{kind: Json, schema: {fields: [{name: n, type: {kind: Option, inner: Int32}}, {name: at, type:"
        " {kind: Option, inner: {kind: Struct, fields: [{name: x, type: Int32}]}}}, {name: l, type:"
        " {kind: Option, inner: {kind: List, itemType: Int32}}}]}}",
        '[{"n": 1, "at": {"x": 1}, "l": [1]},\n{"at": {"x": null}},\n{"l": [null]}]',
        [1],
        [["2", "at", None], ["3", "l", None]],
    ),
    ("{kind: NdJson}", '{"n": 1}\nx\n{"n": 2}\n', [1, 2], [["2", "", None]]),
    (
        "{kind: Json, subPath: a, schema: [n TINYINT NOT NULL]}",
        '{"a": [{"n": 1}, 7, {"n": null},\n\n {"n": 300}, {"n": 2}, "x",\n{"n": 3, "x": {"b": 1, "b": 2}}]}',
        [1, 2],
        [
            ["2", "", "the element is a number, not an object"],
            ["3", "n", "no value in a column declared NOT NULL"],
            ["4", "n", "'300' is not a TINYINT"],
            ["6", "", "the element is text, not an object"],
            ["7", "", "the key 'b' occurs twice in an object"],
        ],
    ),
    (
        "{kind: NdGeoJson, schema: [n INT, geometry STRING]}",
        '{"type": "Feature", "properties": {"n": 1}, "geometry": null}\n\n{"type": "Feature"}\n{"type": \n'
        '{"type": "Feature", "properties": {"n": "b"}, "geometry": null}\n'
        '{"type": "Feature", "properties": {"n": 1, "n": 2}, "geometry": null}\n'
        '{"type": "Feature", "properties": {"n": 1, "x": NaN, "y": "\\ud800"}, "geometry": null}\n',
        [1],
        [
            ["2", "", "the feature has no properties"],
            ["3", "", None],
            ["4", "n", "'b' is not an INT"],
            ["5", "", "the key 'n' occurs twice in an object"],
            ["6", "", "a text has the escape \\ud800, which is half of a character"],
        ],
    ),
]


@pytest.mark.parametrize(("read", "text", "expected", "lines"), JSON_FORMATS)
def test_invalid_json_rows_are_rejected_with_line_and_reason(
    pulled: Pulled, read: str, text: str, expected: list[int | None], lines: list[list[str | None]]
) -> None:
    pulled.write("in", text)
    pulled.add(SOURCE.format(read=read))
    reject(pulled)
    pulled.pull()
    assert pulled.rows("n") == [(n,) for n in expected]
    found = [row[:3] for row in rejects(pulled)]
    assert [row[:2] for row in found] == [row[:2] for row in lines]
    assert [(row[2], wanted[2]) for row, wanted in zip(found, lines, strict=True)
            if wanted[2] not in (None, row[2])] == []  # fmt: skip


@pytest.mark.complete
def test_invalid_row_list_is_truncated_and_all_invalid_fails(pulled: Pulled) -> None:
    pulled.write("in", "".join("x\n" if n % 2 else f"{n}\n" for n in range(300)))
    pulled.add(SOURCE.format(read="{kind: Csv, schema: [n INT]}"))
    error = pulled.fails(BadData, "150 invalid rows, the first in line 2")
    assert (len(error.excerpt), error.excerpt[-1]) == (101, "… and 50 more rows")
    pulled.write("in", "x\ny\n")
    reject(pulled)  # A file without a valid row is rather not what the manifest describes.
    pulled.fails(BadData, "all rows are invalid (2), the first in line 1, column \"n\": 'x' is not an INT")
    pulled.write("in", "1\n<<<<<<< HEAD\n2\n")
    pulled.fails(BadData, "in: line 2: merge conflict marker")
    pulled.add(SOURCE.format(read="{kind: NdJson, schema: [n INT]}"), name="lines")
    reject(pulled, "lines")
    pulled.write("in", '{"n": 1}\n<<<<<<< HEAD\n')
    pulled.fails(BadData, "in: line 2: merge conflict marker")


@pytest.mark.complete
def test_invalid_value_inside_an_aggregation_fails_the_pull(pulled: Pulled) -> None:
    query = "SELECT town, sum(CAST(n AS INT)) AS n FROM (SELECT upper(town) AS town, n FROM input) GROUP BY 1"
    read = "{kind: Csv, header: true, inferSchema: true}"
    more = f"\npreprocess: {json.dumps({'kind': 'Sql', 'engine': 'spark', 'query': query})}"
    pulled.write("in", "town,n\na,1\nb,2,3\na,5\n")
    pulled.add(SOURCE.format(read=read) + more)
    reject(pulled)
    pulled.pull()
    assert pulled.rows("town", "n") == [("A", 6)]
    # The row is not known for a value that only an aggregation converts.
    pulled.write("in", "town,n\na,1\nb,x\n")
    pulled.fails(BadData, "'x' is not an INT")


def test_only_complete_reject_files_are_listed(pulled: Pulled) -> None:
    folder = pulled.workspace.folder
    assert read_rejects(folder) == {}
    (folder / "info" / "rejects").mkdir(parents=True)
    for name in ("f1620ab-12.csv", ".f1620ab-12.csv.part", "notes.txt"):
        (folder / "info" / "rejects" / name).touch()
    assert read_rejects(folder) == {"f1620ab": Rejects(12, folder / "info/rejects/f1620ab-12.csv")}
