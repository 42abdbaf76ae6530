"""The text of a query: which datasets it names, and where."""

from __future__ import annotations

import pytest

from odf_engine.sql.query_text import one_line_summary, table_names
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
