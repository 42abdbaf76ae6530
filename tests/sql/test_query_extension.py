"""Columns that are added to the result of a query, within its text."""

from __future__ import annotations

import pytest

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.query_extension import add_columns, mentions


def extended(*queries: str, names: tuple[str, ...] = ("people",), quote: str = "`") -> list[str]:
    """Add columns to a query whose steps are named a, b, …, except the last one."""
    steps = [
        SqlQueryStep(query=query, alias=None if at == len(queries) - 1 else "abc"[at])
        for at, query in enumerate(queries)
    ]
    return [step.query for step in add_columns(steps, "input", names, quote)]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("SELECT id, upper(city) AS city FROM input", "SELECT id, upper(city) AS city, people FROM input"),
        ("select id from INPUT where id > 1", "select id, people from INPUT where id > 1"),
        (
            "SELECT\n  id,\n  extract(YEAR FROM t) y -- the year\nFROM input i",
            "SELECT\n  id,\n  extract(YEAR FROM t) y,\n  people -- the year\nFROM input i",
        ),
        ("SELECT id\n     , city\nFROM input", "SELECT id\n     , city\n     , people\nFROM input"),
        ("SELECT *, 1 AS one FROM input", "SELECT *, 1 AS one FROM input"),
        (
            "SELECT id, row_number() OVER (ORDER BY id) AS n FROM input",
            "SELECT id, row_number() OVER (ORDER BY id) AS n, people FROM input",
        ),
    ],
)
def test_column_is_added_to_the_select_list(query: str, wanted: str) -> None:
    assert extended(query) == [wanted]


def test_names_are_quoted_in_the_dialect_of_the_query() -> None:
    names = ("Big city", "from", "plain", "a`b")
    assert extended("SELECT id FROM input", names=names) == [
        "SELECT id, `Big city`, `from`, plain, `a``b` FROM input"
    ]
    assert extended("SELECT id FROM input", names=names, quote='"') == [
        'SELECT id, "Big city", "from", plain, "a`b" FROM input'
    ]


def test_column_passes_through_the_steps_that_lead_to_the_result() -> None:
    assert extended("SELECT id FROM input", "SELECT 1 AS x FROM input", "SELECT id FROM a") == [
        "SELECT id, people FROM input",
        "SELECT 1 AS x FROM input",
        "SELECT id, people FROM a",
    ]
    assert extended("SELECT id FROM input", "SELECT * FROM a") == [
        "SELECT id, people FROM input",
        "SELECT * FROM a",
    ]


@pytest.mark.parametrize(
    ("query", "why", "column"),
    [
        ("SELECT id FROM input GROUP BY id", "GROUP BY", 10),
        ("SELECT count(*) AS n FROM input", "an aggregation", 21),
        ("SELECT DISTINCT id FROM input", "DISTINCT", 19),
        ("SELECT a.id FROM input a JOIN input b ON a.id = b.id", "a join", 12),
        ("WITH t AS (SELECT id FROM input) SELECT id FROM t", "a WITH clause", 43),
        ("SELECT id FROM input UNION ALL SELECT id FROM input", "several SELECT clauses", 10),
        ("SELECT id FROM (SELECT id FROM input)", "no table after FROM", 10),
        ("SELECT id FROM elsewhere", "elsewhere", 10),
    ],
)
def test_query_that_cannot_be_extended_names_the_position(query: str, why: str, column: int) -> None:
    with pytest.raises(InvalidQuery) as caught:
        extended(query)
    assert why in caught.value.message
    assert caught.value.where == f"query, line 1, column {column}"
    assert caught.value.hint == "add people to the query here, then run the command again"
    assert caught.value.excerpt[1].endswith("^")


def test_a_query_mentions_columns_and_no_texts() -> None:
    steps = [SqlQueryStep(query="SELECT id AS `Big City`, 'people' AS x -- lat\nFROM input")]
    assert mentions(steps, "ID") and mentions(steps, "big city")
    assert not mentions(steps, "people") and not mentions(steps, "lat")
