"""Errors about queries show the line that they are about."""

from __future__ import annotations

import pytest

from odf_engine.errors import BadData, InvalidQuery, OdfError
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.query_text import attach_query_excerpt

ONE = [SqlQueryStep(query="SELECT event_time,\n\t1 / nothing AS x\nFROM input")]
TWO = [SqlQueryStep(alias="a", query="SELECT 1 / y FROM i"), SqlQueryStep(query="SELECT 2 / z FROM a, b, c")]


def excerpt(error: OdfError, steps: list[SqlQueryStep]) -> tuple[str, ...]:
    """What the error gets."""
    with pytest.raises(type(error)), attach_query_excerpt(steps):
        raise error
    return error.excerpt


def test_the_line_has_a_caret_under_the_column() -> None:
    error = InvalidQuery("there is no column `nothing`", where="query, line 2, column 6")
    assert excerpt(error, ONE) == ("2 |  1 / nothing AS x", "  |      ^")
    assert excerpt(InvalidQuery("no", where="query, line 9, column 1"), ONE) == ()
    assert excerpt(InvalidQuery("no", where="query"), ONE) == ()
    assert excerpt(BadData("no", where="stations.csv:2"), ONE) == ()


def test_excerpt_shows_the_named_or_only_matching_step() -> None:
    named = InvalidQuery("no", where="query step 2 of 2, line 1, column 8")
    assert excerpt(named, TWO) == ("1 | SELECT 2 / z FROM a, b, c", "  |        ^")
    assert excerpt(BadData("division by zero", where="query, line 1, column 8"), TWO) == ()
    said = BadData("division by zero, in `1 / y`", where="query, line 1, column 8")
    assert excerpt(said, TWO) == ("1 | SELECT 1 / y FROM i", "  |        ^")
    assert excerpt(BadData("no", where="query, line 1, column 22"), TWO)[0].endswith("b, c")


def test_long_lines_are_cut_around_the_place() -> None:
    steps = [SqlQueryStep(query="x" * 500 + "\x1bwrong" + "y" * 500)]
    line, mark = excerpt(InvalidQuery("no", where="query, line 1, column 502"), steps)
    assert line[mark.index("^") :].startswith("wrong")
    assert len(line) < 70
    assert "\x1b" not in line
