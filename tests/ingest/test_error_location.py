from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData
from odf_engine.ingest.read.error_location import explain_json, locate_csv_error
from odf_engine.ingest.read.text_file import TextFile
from odf_engine.spark.errors import RejectedRow

COLUMNS = ("id", "name", "n")
TEXT = 'id,name,n\n1,"two\nlines",2\n\n3,x,abc\n4,y\n'


def csv(tmp_path: Path, error: BadData, text: str = TEXT, **options: object) -> tuple[str, str]:
    path = tmp_path / "a"
    path.write_text(text, encoding="utf-8")
    file = TextFile(path, "a.csv", **{"columns": COLUMNS, "header": True, **options})  # type: ignore[arg-type]
    found = locate_csv_error(error, file, Reporter())
    return str(found), found.hint or ""


def value(
    text: str, wanted: str = "BIGINT", column: str | None = "n", where: str | None = None
) -> RejectedRow:
    return RejectedRow("a message", column=column, value=text, expected=wanted, hint="a hint", where=where)


def test_rejected_csv_value_is_located_by_line_and_column(tmp_path: Path) -> None:
    assert csv(tmp_path, value("abc")) == ("a.csv: line 5, column \"n\": 'abc' is not a BIGINT", "a hint")
    # A value that a query refused, in whichever column it is.
    assert csv(tmp_path, value("abc", "INT", None, "query, line 1"))[0] == (
        "a.csv: line 5, column \"n\": 'abc' is not an INT (query, line 1)"
    )
    assert csv(tmp_path, value("not there")) == ("a.csv: a message", "a hint")
    # Only the beginning of long values is known.
    assert "line 2" in csv(tmp_path, value("x" * 200), "id,name,n\n1,y," + "x" * 300)[0]


@pytest.mark.parametrize(
    ("text", "wanted", "hint"),
    [
        ("NA", "BIGINT", "set read.nullValue to 'NA'"),
        ("1.2.2024", "DATE", "read.dateFormat"),
        ("1.2.2024", "TIMESTAMP", "read.timestampFormat"),
    ],
)
def test_hint_names_the_read_option_for_the_value(tmp_path: Path, text: str, wanted: str, hint: str) -> None:
    assert hint in csv(tmp_path, value(text, wanted), f"id,name,n\n1,x,{text}")[1]


def test_null_in_not_null_column_is_located(tmp_path: Path) -> None:
    error = RejectedRow("column `n` is declared NOT NULL", column="n", expected="NOT NULL")
    assert csv(tmp_path, error, "id,name,n\n1,x,2\n2,y,\n")[0] == (
        'a.csv: line 3, column "n": column `n` is declared NOT NULL'
    )


def test_ragged_row_is_located_with_value_counts(tmp_path: Path) -> None:
    error = RejectedRow("a row has more or fewer values", record="4,y")
    assert csv(tmp_path, error)[0] == "a.csv: line 6: 2 values for 3 columns: 4,y"
    assert "line 1: 1 value for" in csv(tmp_path, error, "x\n", header=False)[0]


def test_undeclared_header_line_suggests_read_header(tmp_path: Path) -> None:
    message, hint = csv(tmp_path, value("n"), header=False)
    assert message.startswith("a.csv: line 1")
    assert "set read.header to true" in hint


def test_merge_conflict_marker_is_reported_before_the_value(tmp_path: Path) -> None:
    text = "id,name,n\n1,x,2\n<<<<<<< HEAD\n2,y,abc\n"
    assert csv(tmp_path, value("abc"), text)[0].startswith("a.csv: line 3: merge conflict marker")


def test_csv_errors_are_located_in_other_dialects(tmp_path: Path) -> None:
    text = "1;'a\\';b';abc\n"
    found = csv(tmp_path, value("abc"), text, header=False, separator=";", quote="'", escape="\\")
    assert found[0].startswith('a.csv: line 1, column "n"')
    assert csv(tmp_path, value('"abc"'), '1,2,"abc"\n', header=False, quote="")[0].startswith("a.csv: line 1")
    found = csv(tmp_path, value("abc|"), '1||"2||\n"||abc|\n', separator="||", header=False)
    assert found[0] == "a.csv: line 1, column \"n\": 'abc|' is not a BIGINT"


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ('{"n": "abc"}', value("abc"), "line 3, column \"n\": 'abc' is not a BIGINT"),
        ('{"n": 1.50}', value("1.50"), "line 3, column \"n\": '1.50' is not a BIGINT"),
        ('{"m": [1, 2]}', value("[1,2]", column="m"), "line 3, column \"m\": '[1,2]' is not a BIGINT"),
        ('{"m": true}', value("true", column=None), "line 3, column \"m\": 'true' is not a BIGINT"),
        ('{"n": null}', RejectedRow("no value", column="n"), 'line 3, column "n": no value'),
        ('{"N": null}', RejectedRow("no value", column="n"), 'line 3, column "n": no value'),
        (
            '{"n": {"x": [{"y": 1}, {}]}}',
            RejectedRow("no value", column="n.x[].y"),
            'line 3, column "n.x[].y": no',
        ),
        (
            '{"m": 1, "n": {"X": [1, null]}}',
            RejectedRow("no value", column="n.x[]"),
            'line 3, column "n.x[]": no',
        ),
        ('{"n": {"x": ["y"]}}', value("y", column="n.x[]"), "line 3, column \"n.x[]\": 'y' is not a BIGINT"),
        ('{"m": [1], "n": [1]}', value("[", "STRUCT"), "line 3, column \"n\": '[' is not a STRUCT"),
        ('{"n": 1', BadData("a message"), "line 3, column 8: invalid JSON"),
        ("[1]", BadData("a message"), "line 3: not a JSON object: [1]"),
        ("=======", BadData("a message"), "line 3: merge conflict marker"),
    ],
)
def test_json_errors_are_located_by_line_and_field(
    tmp_path: Path, line: str, error: BadData, message: str
) -> None:
    path = tmp_path / "a"
    path.write_text('{"n": 1}\n\n' + line + "\n")
    file = TextFile(path, "a", COLUMNS)
    assert str(explain_json(error, file, Reporter(), "line {}".format)).startswith(f"a: {message}")
    # In a document the lines are not those that people see.
    assert str(explain_json(error, file, Reporter(), "object {}".format)).startswith("a: object 3")
