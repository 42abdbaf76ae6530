"""Expressions that have another value in each run, found without an engine."""

from __future__ import annotations

import pytest

from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.repeatability import find_nonrepeatable


@pytest.mark.parametrize(
    ("query", "text", "line", "column"),
    [
        ("SELECT event_time,\n  rand() AS r FROM input", "rand()", 2, 3),
        ("SELECT event_time FROM input WHERE x > Random(42)", "random()", 1, 40),
        ("SELECT a.x FROM a JOIN b ON a.t < now() - INTERVAL 1 DAY", "now()", 1, 35),
        ("SELECT count(*) FILTER (WHERE x > system.builtin.rand()) FROM input", "rand()", 1, 50),
        ("WITH a AS (SELECT uuid() AS id FROM input) SELECT * FROM a", "uuid()", 1, 19),
        ("SELECT x, current_date AS day FROM input", "current_date", 1, 11),
        ("SELECT unix_timestamp() AS t FROM input", "unix_timestamp()", 1, 8),
        ("SELECT x FROM input WHERE t < TIMESTAMP 'now' OR rand() < 1", "TIMESTAMP 'now'", 1, 31),
        ("SELECT date ' Yesterday' AS day FROM input", "date ' Yesterday'", 1, 8),
        ("SELECT x FROM input GROUP BY window(t, '1 day') HAVING max(shuffle(y)) = y", "shuffle()", 1, 60),
        (r"SELECT TIMESTAMP r'now', 1", "TIMESTAMP r'now'", 1, 8),
        (r"SELECT TIMESTAMP 'n\u006fw'", r"TIMESTAMP 'n\u006fw'", 1, 8),
        ("SELECT x, CAST(' NOW ' AS TIMESTAMP) FROM input", "the time ' NOW '", 1, 16),
        ("SELECT 'tomorrow'::date", "the time 'tomorrow'", 1, 8),
        ("SELECT to_date(\"yesterday\")", 'the time "yesterday"', 1, 16),
        ("SELECT x FROM a WHERE a.event_time <= 'today'", "the time 'today'", 1, 39),
        ("SELECT x FROM a WHERE 'now' > event_time", "the time 'now'", 1, 23),
        ("SELECT version() AS v FROM input", "version()", 1, 8),
        ("SELECT aes_encrypt(x, k) FROM a", "aes_encrypt() without an initialization vector", 1, 8),
        ("SELECT aes_encrypt(x, k, 'CBC') FROM a", "aes_encrypt() without an initialization vector", 1, 8),
        ("SELECT x FROM a JOIN b FOR SYSTEM_TIME AS OF a.t AS b ON b.x AND rand() > 0", "rand()", 1, 66),
    ],
)  # fmt: skip
def test_nonrepeatable_expression_is_located(query: str, text: str, line: int, column: int) -> None:
    assert find_nonrepeatable([SqlQueryStep(query=query)]) == (text, 0, line, column)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 'rand()' AS x, `rand()`, /* now() */ y -- uuid()\nFROM input",
        "WITH rand (a) AS (SELECT 1) SELECT a, rand.a, now FROM rand",
        "SELECT system_time() AS t, user, input.current_date, `current_user` FROM input",
        "SELECT current_date FROM (SELECT max(day) AS current_date FROM input)",
        "SELECT unix_timestamp(t), TIMESTAMP '2024-01-01', DATE 'epoch' FROM input",
        "SELECT CAST('epoch' AS DATE), x FROM a WHERE x = 'now' AND y IN ('today') AND z = timestamp",
        "SELECT aes_encrypt(x, k, 'ECB'), aes_encrypt(x, k, 'GCM', 'DEFAULT', iv) FROM a",
        "SELEC rand() FROM",  # reported by the engine
        "SELECT " + "(" * 3000 + "rand()" + ")" * 3000,
    ],
)
def test_names_comments_and_unparsable_queries_pass(query: str) -> None:
    assert find_nonrepeatable([SqlQueryStep(query=query)]) is None


def test_nonrepeatable_expression_is_located_in_its_step() -> None:
    first = SqlQueryStep(query="SELECT x AS current_date FROM input", alias="a")
    assert find_nonrepeatable([first, SqlQueryStep(query="SELECT current_date FROM a")]) is None
    found = find_nonrepeatable([first, SqlQueryStep(query="SELECT *,\nrand()\nFROM a")])
    assert found == ("rand()", 1, 2, 1)
