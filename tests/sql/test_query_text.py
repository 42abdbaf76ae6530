"""The text of a query: which datasets it names, and where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.sql.query_text import one_line_summary, spark_spelling, table_names
from odf_engine.sql.table_functions import RewrittenQuery

KNOWN = ["port-haven.air-readings", "port-haven.stations", "air.by.day", "somebody/tides", "Plain"]


@pytest.mark.parametrize(
    ("written", "for_spark"),
    [
        ("SELECT * FROM port-haven.stations s", "SELECT * FROM `port-haven.stations` s"),
        ("select * from AIR.by.day, somebody/tides", "select * from `AIR.by.day`, `somebody/tides`"),
        ("SELECT * FROM `port-haven`.`stations`", "SELECT * FROM `port-haven.stations`"),
        ("SELECT * FROM plain JOIN `air.by.day`", "SELECT * FROM plain JOIN `air.by.day`"),
        (
            "SELECT port-haven.stations.name, air.by FROM port-haven.stations, air",
            "SELECT `port-haven.stations`.name, air.by FROM `port-haven.stations`, air",
        ),
        ("SELECT a.b, air.by.day FROM t", "SELECT a.b, air.by.day FROM t"),
        ("SELECT 'FROM air.by.day' -- FROM air.by.day", "SELECT 'FROM air.by.day' -- FROM air.by.day"),
        ("SELECT (SELECT max(x) FROM air.by.day), 1", "SELECT (SELECT max(x) FROM `air.by.day`), 1"),
    ],
)
def test_dataset_names_are_quoted_in_table_positions(written: str, for_spark: str) -> None:
    query = RewrittenQuery(written, KNOWN)
    assert query.text == for_spark
    assert query.unknown == []


@pytest.mark.parametrize(
    ("written", "for_duckdb"),
    [
        ("SELECT * FROM port-haven.stations s", 'SELECT * FROM "port-haven.stations" s'),
        ('SELECT * FROM "AIR.by.day"', 'SELECT * FROM "AIR.by.day"'),
        (r"SELECT 'it''s \' FROM air.by.day", r"""SELECT 'it''s \' FROM "air.by.day" """.rstrip()),
        ("SELECT 'FROM air.by.day' -- FROM air.by.day", "SELECT 'FROM air.by.day' -- FROM air.by.day"),
        ("SELECT air.by.day.n FROM air.by.day", 'SELECT "air.by.day".n FROM "air.by.day"'),
        ("SELECT 1 FROM 'a b.csv'", 'SELECT 1 FROM "a b.csv" AS "a b"'),
        ("SELECT 1 FROM 'it''s.csv' t, '/x/y.csv' AS u", """SELECT 1 FROM "it's.csv" t, "/x/y.csv" AS u"""),
        ("SELECT a FROM t JOIN 'b.csv' USING (k)", 'SELECT a FROM t JOIN "b.csv" AS "b" USING (k)'),
        ("SELECT extract('year' FROM day)", "SELECT extract('year' FROM day)"),
        ("SELECT offset, max(offset) FROM t", 'SELECT "offset", max("offset") FROM t'),
        (
            "SELECT 1 FROM t WHERE offset > 1 LIMIT 2 OFFSET 3",
            'SELECT 1 FROM t WHERE "offset" > 1 LIMIT 2 OFFSET 3',
        ),
        (
            "SELECT t.offset FROM t ORDER BY offset OFFSET 1",
            'SELECT t.offset FROM t ORDER BY "offset" OFFSET 1',
        ),
        ("SELECT 1 FROM (SELECT 2) OFFSET 1", "SELECT 1 FROM (SELECT 2) OFFSET 1"),
    ],
)
def test_names_of_a_query_for_duckdb_are_in_double_quotes(written: str, for_duckdb: str) -> None:
    assert RewrittenQuery(written, KNOWN, for_duckdb=True).text == for_duckdb


def test_positions_map_back_to_a_query_for_duckdb() -> None:
    written = "SELECT offset,\n  wrong FROM 'a.csv', port-haven.stations WHERE wrong"
    query = RewrittenQuery(written, KNOWN, for_duckdb=True)
    second = query.text.split("\n")[1]
    assert query.original_position(2, second.rindex("wrong") + 1) == (
        2,
        written.split("\n")[1].rindex("wrong") + 1,
    )
    assert query.files == ["a.csv"]


@given(st.text("'\"`\\-/*\na. "))
def test_spark_spelling_keeps_all_positions(sql: str) -> None:
    spelled = spark_spelling(sql)
    assert len(spelled) == len(sql)
    assert [at for at, char in enumerate(spelled) if char == "\n"] == [
        at for at, char in enumerate(sql) if char == "\n"
    ]


def test_unknown_dataset_names_are_listed() -> None:
    query = RewrittenQuery("SELECT 1 FROM x JOIN port-haven.nothing ON a-b = 1", KNOWN)
    assert [(each.name, each.start) for each in query.unknown] == [("port-haven.nothing", 21)]


def test_positions_map_back_to_the_original_query() -> None:
    written = "SELECT *\nFROM air.by.day AS d, port-haven.stations s WHERE wrong = 1\nORDER BY 1"
    query = RewrittenQuery(written, KNOWN)
    for word in ("SELECT", "air.by.day", "AS d", "port-haven.stations", "s WHERE", "wrong", "ORDER"):
        line, start = next((n, each) for n, each in enumerate(written.split("\n"), 1) if word in each)
        new = query.text.split("\n")[line - 1]
        quoted = f"`{word}`" if word in KNOWN else word
        assert query.original_position(line, new.index(quoted) + 1) == (line, start.index(word) + 1)


def test_table_names_are_found_in_an_unfinished_query() -> None:
    names = table_names("SELECT st FROM port-haven.stations JOIN range(3) JOIN `broken off")
    assert [name.name for name in names] == ["port-haven.stations", "broken off"]
    assert table_names("SELECT * FROM") == []


def test_query_summary_is_one_line_without_comments() -> None:
    assert one_line_summary("-- why\nSELECT 1,\n\t'--x' /* not\nthis */ FROM x") == "SELECT 1, '--x' FROM x"
    assert one_line_summary("SELECT " + "x" * 100) == "SELECT " + "x" * 52 + "…"
