"""Table functions of queries: what they mean, and where they are not written as they have to be."""

from __future__ import annotations

import pytest

from odf_engine.errors import InvalidQuery
from odf_engine.sql.query_text import table_names
from odf_engine.sql.table_functions import RewrittenQuery, TableFunctionCall, parse_sql_timestamp

KNOWN = ["port-haven.stations", "plain"]
_AT = "2024-03-05T10:00:00Z"


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("as_at(plain, timestamp '2024-03-05 10:00')", TableFunctionCall("", "plain", as_at=_AT)),
        ("AS_AT ( plain , '2024-03-05T12:00:00+02:00' )", TableFunctionCall("", "plain", as_at=_AT)),
        ("as_at(plain, 12)", TableFunctionCall("", "plain", as_at="12")),
        (
            "as_at(port-haven.stations, 'f1620ab')",
            TableFunctionCall("", "port-haven.stations", as_at="f1620ab"),
        ),
        ("current(`x y`, a, `b c`)", TableFunctionCall("", "x y", state="current", key=("a", "b c"))),
        ("changelog(plain)", TableFunctionCall("", "plain", state="changelog")),
        (
            "as_of(as_at(plain, 3), date '2024-03-05', a)",
            TableFunctionCall("", "plain", "3", "as of", "2024-03-05T00:00:00Z", ("a",)),
        ),
        ("as_at(current(plain), 3)", TableFunctionCall("", "plain", as_at="3", state="current")),
    ],
)
def test_table_function_calls_are_parsed(written: str, made: TableFunctionCall) -> None:
    query = RewrittenQuery(f"SELECT * FROM {written} AS t JOIN range(3)", KNOWN)
    ((name, found),) = query.calls.items()
    assert query.text == f"SELECT * FROM `{name}` AS t JOIN range(3)"
    assert found == TableFunctionCall(name, made.dataset, made.as_at, made.state, made.as_of, made.key)


def test_table_function_without_alias_is_named_after_its_dataset() -> None:
    written = "SELECT port-haven.stations.x\nFROM as_at(port-haven.stations, 3), current(plain)\nWHERE bad"
    query = RewrittenQuery(written, KNOWN)
    assert query.text == (
        "SELECT `port-haven.stations`.x\n"
        "FROM `as_at(port-haven.stations, 3)` AS `port-haven.stations`, `current(plain)` AS `plain`\n"
        "WHERE bad"
    )
    second = query.text.split("\n")[1]
    assert query.original_position(2, second.index("`current") + 1) == (2, 37)
    assert query.original_position(3, 7) == (3, 7)
    assert [(each.name, each.call) for each in table_names("FROM as_at(x, 3), current(y")] == [
        ("x", (5, 16)),
        ("y", (18, 27)),
    ]


@pytest.mark.parametrize(
    ("written", "column", "message"),
    [
        ("as_at(plain)", 15, "as_at requires one time or block"),
        ("as_at(plain, now() - 3)", 28, "not an expression"),
        ("as_at(plain, 'last week')", 28, "invalid time 'last week'"),
        ("as_of(plain, '2024-13-01')", 28, "invalid time"),
        ("as_of(plain)", 15, "as_of requires a time"),
        ("as_of(current(plain), '2024-01-01')", 15, "as_of and current cannot be combined"),
        ("as_at(as_at(plain, 1), 2)", 15, "occurs twice"),
        ("current(plain, a + b)", 30, "column names"),
        ("changelog(plain, a)", 15, "accepts only a dataset"),
        ("current()", 23, "requires the name of a dataset"),
        ("current(plain", 23, "is not closed"),
        ("current(plain a)", 29, "a comma"),
    ],
)
def test_invalid_table_function_is_rejected_with_its_column(written: str, column: int, message: str) -> None:
    with pytest.raises(InvalidQuery, match=message) as caught:
        RewrittenQuery(f"SELECT * FROM {written}", KNOWN)
    assert caught.value.where == f"query, line 1, column {column}"
    assert "write " in str(caught.value.hint)


def test_sql_timestamps_are_parsed_in_common_forms() -> None:
    assert str(parse_sql_timestamp(" 2024-03-05 ")) == "2024-03-05T00:00:00Z"
    assert str(parse_sql_timestamp("2024-03-05 10:00:00.5+01:00")) == "2024-03-05T09:00:00.500Z"
    assert parse_sql_timestamp("20240305") is None
