"""Wrong queries and inputs: each gets a sentence with its place, nothing is committed, the next pull goes.

What becomes of damaged checkpoints is tested with the queries that have them, and a Spark that has no
memory left with its session.
"""

from __future__ import annotations

import shutil

import pytest

from odf_engine.derive.plan import Diverged
from odf_engine.errors import BadData, InvalidQuery, NotFound, OdfError
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving

DAY = "GROUP BY window(event_time, '1 day')"
"""Queries that end in it keep state: they go another way through the engine."""
SAME = "not deterministic"

WRONG: list[tuple[str, type[OdfError], str, list[str]]] = [
    # A syntax error, and one that Spark reads as something else.
    ("SELECT event_time,\n  sum(x FROM input", InvalidQuery, "line 2, column 9", ["missing ')'"]),
    ("SELECT event_time,\n  x +\nFROM input", InvalidQuery, "line 1, column 8", ["has no FROM"]),
    # Names that are not there, or mean two things.
    ("SELECT event_time, cty FROM input", InvalidQuery, "line 1, column 20",
     ["`cty`", "did you mean `city`"]),
    (f"SELECT window.start AS event_time, sum(y) AS s FROM input {DAY}", InvalidQuery, "line 1, column 40",
     ["column `y` not found"]),
    ("SELECT event_time, foo(x) AS y FROM input", InvalidQuery, "line 1, column 20",
     ["function `foo` not found"]),
    ("SELECT event_time, x FROM input JOIN (VALUES (1)) AS v (x) ON v.x = input.x", InvalidQuery,
     "line 1, column 20", ["`x` is ambiguous", "`input`.`x` or `v`.`x`"]),
    ("SELECT event_time, city, sum(x) AS s FROM input GROUP BY city", InvalidQuery, "query",
     ["event_time is neither grouped by nor aggregated", "max(event_time)"]),
    ("SELECT event_time FROM input UNION ALL SELECT x FROM input", InvalidQuery, "line 1, column 1",
     ["UNION"]),
    # What is not deterministic.
    ("SELECT event_time, uuid() AS r FROM input", InvalidQuery, "query", ["uuid()", SAME, "system_time()"]),
    (f"SELECT window.start AS event_time, max(uuid()) AS s FROM input {DAY}", InvalidQuery,
     "line 1, column 40", ["max(uuid())", SAME, "system_time()"]),
    (f"SELECT window.start AS event_time, max(now()) AS s FROM input {DAY}", InvalidQuery, "query",
     ["now()", SAME]),
    ("SELECT event_time, monotonically_increasing_id() AS r FROM input", InvalidQuery, "query", [SAME]),
    (f"SELECT window.start AS event_time, first(x) AS s FROM input {DAY}", InvalidQuery, "query",
     ["first()", SAME]),
    ("SELECT event_time,\n  CAST(' NOW ' AS TIMESTAMP) AS t FROM input", InvalidQuery,
     "query, line 2, column 3", ["the time 'NOW'", SAME]),
    ("SELECT event_time, to_date('yesterday') AS d FROM input", InvalidQuery, "line 1, column 20",
     ["the time 'yesterday'", SAME]),
    ("SELECT event_time, x FROM input WHERE event_time < 'now'", InvalidQuery, "line 1, column 39",
     ["the time 'now'", SAME]),
    (f"SELECT window.start AS event_time FROM input WHERE event_time < concat('to', 'day') {DAY}",
     InvalidQuery, "line 1, column 52", ["the time 'today'", SAME]),
    ("SELECT event_time, DATE r'tomorrow' AS d FROM input", InvalidQuery, "line 1, column 20",
     ["DATE r'tomorrow'", SAME]),
    ("SELECT event_time, aes_encrypt(city, '0000111122223333') AS a FROM input", InvalidQuery,
     "line 1, column 20", ["aes_encrypt() without an initialization vector", SAME]),
    ("SELECT event_time, version() AS v FROM input", InvalidQuery, "query", ["version()", SAME]),
    (f"SELECT window.start AS event_time, kll_sketch_agg_bigint(x) AS k FROM input {DAY}", InvalidQuery,
     "query", ["kll_sketch_agg_bigint()", SAME]),
    ("SELECT event_time FROM input TABLESAMPLE (50 PERCENT)", OdfError, "", ["TABLESAMPLE"]),
    # Values without a type.
    ("SELECT event_time, struct() AS v FROM input", OdfError, "", ["`v`", "STRUCT<>", "CAST(v AS STRING)"]),
    (f"SELECT window.start AS event_time, struct() AS v FROM input {DAY}", OdfError, "", ["STRUCT<>"]),
    ("SELECT event_time, array() AS v FROM input", OdfError, "", ["`v`", "ARRAY<VOID>", "do not support"]),
    ("SELECT event_time, named_struct('a', map()) AS v FROM input", OdfError, "",
     ["`v.a`", "MAP<VOID,VOID>", "CAST(v.a AS STRING)"]),
    # More than a single SELECT over the inputs.
    ("SELECT event_time FROM input; DROP TABLE input", InvalidQuery, "line 1, column 29",
     ["only one statement", "queries:"]),
    ("SELECT event_time, x FROM parquet.`/etc/passwd`", InvalidQuery, "line 1, column 27",
     ["table or view", "use one of: `input`"]),
    ("SELECT * FROM read_files('/etc/passwd')", InvalidQuery, "line 1, column 15", ["table function"]),
    # Columns that a dataset has to have, and those that it may not.
    ("SELECT city, x FROM input", InvalidQuery, "query", ["no event time", "city, x"]),
    (f"SELECT window.start AS s, count(*) AS n FROM input {DAY}", InvalidQuery, "query", ["no event time"]),
    ("SELECT CAST(event_time AS STRING) AS event_time FROM input", InvalidQuery, "query", ["is STRING"]),
    (f"SELECT CAST(window.start AS BIGINT) AS event_time FROM input {DAY}", InvalidQuery, "query",
     ["BIGINT"]),
    ("SELECT event_time, x AS offset FROM input", InvalidQuery, "query", ["'offset'", "rename it"]),
    (f"SELECT window.start AS event_time, count(*) AS offset FROM input {DAY}", InvalidQuery, "query",
     ["'offset'", "rename it"]),
    # Windows that Spark cannot have.
    ("SELECT window.start AS event_time FROM input GROUP BY window(event_time, '1 month')", InvalidQuery,
     "query", ["fixed length", "date_trunc('MONTH'"]),
    ("SELECT window.start AS event_time FROM input GROUP BY window(event_time, '1 dya')", OdfError,
     "query", ["1 dya", "'15 minutes'"]),
    # Values that an expression cannot take.
    ("SELECT event_time,\n  100 / (x - 7) AS y FROM input", BadData, "line 2, column 3",
     ["division by zero", "`100 / (x - 7)`", "try_divide"]),
    (f"SELECT window.start AS event_time, sum(100 / (x - 7)) AS y FROM input {DAY}", BadData,
     "line 1, column 40", ["division by zero", "`100 / (x - 7)`"]),
    ("SELECT event_time, 9223372036854775807 + x AS y FROM input", BadData, "line 1, column 20",
     ["overflow", "`9223372036854775807 + x`", "try_add"]),
    (f"SELECT window.start AS event_time, sum(9223372036854775807) AS y FROM input {DAY}", BadData, "query",
     ["a sum", "overflows", "DECIMAL(38, 0)"]),
    ("SELECT event_time, CAST(city AS INT) AS y FROM input", BadData, "line 1, column 20",
     ["'a' is not an INT", "`CAST(city AS INT)`", "try_cast"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory, runtime: SparkRuntime) -> Deriving:
    """A workspace with an input in it; what fails leaves no trace there, so that all can use it."""
    trial = Deriving(Workspace.init(tmp_path_factory.mktemp("trial") / "home"), runtime)
    trial.rows(trial.root(), *((1 + x / 24, "abc"[x % 3], x) for x in range(48)))
    return trial


@pytest.mark.parametrize(("query", "kind", "place", "parts"), WRONG)
@pytest.mark.complete(after=10)
def test_invalid_query_is_reported_and_commits_nothing(
    trial: Deriving, query: str, kind: type[OdfError], place: str, parts: list[str]
) -> None:
    made = trial.derivative(query, name=f"wrong-{WRONG.index((query, kind, place, parts))}")
    head = made.dataset.head()
    with pytest.raises(kind) as caught:
        trial.run(made)
    assert place in str(caught.value.where), caught.value.where
    said = f"{caught.value.message} {caught.value.hint}"
    assert len(caught.value.message) < 300 and "\n" not in said and "SQLSTATE" not in said
    for part in parts:
        assert part in said, said
    assert made.dataset.head() == head
    assert list((trial.workspace.odf / "cache").glob("transform-*")) == []
    assert [path.name for path in made.dataset.folder.glob("*/.pending*")] == []


def test_missing_input_is_refused(trial: Deriving) -> None:
    before = len(trial.workspace.datasets())
    with pytest.raises(OdfError, match="nowhere"):
        trial.derivative("SELECT * FROM nowhere", "nowhere", name="of-nothing")
    assert len(trial.workspace.datasets()) == before


def test_missing_or_rolled_back_input_stops_the_pull(trial: Deriving) -> None:
    root = trial.root("fickle")
    trial.rows(root, (1, "a", 1))
    made = trial.derivative("SELECT event_time, x FROM fickle", "fickle", name="of-fickle")
    trial.run(made)
    taken, head = next(iter(root.dataset.blocks())), made.dataset.head()
    trial.rows(root, (2, "b", 2))
    refs = root.dataset.folder / "refs" / "head"
    # It was put back to before what was taken in.
    newest = refs.read_text()
    refs.write_text(str(taken.block.prev_block_hash))
    with pytest.raises(Diverged, match="and blocks that this dataset was derived from are missing") as caught:
        trial.run(made)
    assert caught.value.exit_code == 4 and "reset" in str(caught.value.hint)
    refs.write_text(newest)
    # Its folder is gone.
    away = trial.workspace.folder / "away"
    shutil.move(root.dataset.folder, away)
    with pytest.raises(NotFound, match="'fickle' is not in this workspace") as lost:
        trial.run(made)
    assert "pull it" in str(lost.value.hint)
    shutil.move(away, root.dataset.folder)
    assert made.dataset.head() == head
    assert trial.run(made) == 1
    assert trial.result(made, "x") == [(1,), (2,)]


def test_next_pull_works_after_failed_queries(trial: Deriving) -> None:
    """After all of that, in the same workspace and the same Spark."""
    made = trial.derivative(f"SELECT window.start AS event_time, sum(x) AS s FROM input {DAY}", name="right")
    assert trial.run(made) == 1
    assert trial.result(made, "s") == [(276,)]
