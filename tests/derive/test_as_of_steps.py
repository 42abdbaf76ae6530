"""As-of joins of tables that the query computes: earlier steps, and tables of WITH clauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.derive.provenance.step import trace_back
from odf_engine.derive.query_migration import MigrationOptions, migrate_query
from odf_engine.engines.contract import QueryInput, ValidatedQuery
from odf_engine.errors import InvalidQuery, OdfError, Unsupported
from odf_engine.metadata.model import (
    DatasetKind,
    DatasetSnapshot,
    DatasetVocabulary,
    SetTransform,
    Sql,
    SqlQueryStep,
    TemporalTable,
    TransformInput,
)
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import DATA, Deriving
from tests.derive.test_as_of_corrections import days, latest_state, random_changes, recompute
from tests.derive.test_changing_results import offsets
from tests.derive.test_replay import check
from tests.derive.test_stateful import CF, CT, A, R

Row = tuple[Any, ...]
Inputs = dict[str, Counter[Row]]
"""The latest state of each input: (day, city, x)."""

SALES = "SELECT event_time, IF(x = 5, NULL, event_time) AS at, nullif(city, 'c') AS city, x FROM trades"
PRICES = (
    "SELECT IF(x = 3, NULL, event_time) AS event_time, nullif(city, 'c') AS city, x * 2 AS price\nFROM rates"
)
DAILY = (
    "SELECT date_trunc('day', event_time) AS event_time, city, max(x) AS best FROM rates\n"
    "GROUP BY date_trunc('day', event_time), city"
)
JOIN = (
    "SELECT s.event_time, s.city, s.x, p.price FROM sales s\n"
    "JOIN prices FOR SYSTEM_TIME AS OF s.at AS p ON p.city = s.city"
)
LEFT_JOIN = JOIN.replace("JOIN", "LEFT JOIN")


class Query(NamedTuple):
    """A query over ``trades`` and ``rates``, the columns of its result, and an independent oracle."""

    steps: Sequence[tuple[str | None, str]]
    tables: Sequence[str]
    columns: Sequence[str]
    expected: Callable[[Inputs], Iterable[Row]]


def sales(inputs: Inputs) -> list[Row]:
    """Return (day, time of the lookup, city, x)."""
    return [
        (day, None if x == 5 else day, None if city == "c" else city, x)
        for day, city, x in inputs["trades"].elements()
    ]


def prices(inputs: Inputs) -> list[Row]:
    """Return (day, city, price)."""
    return [
        (None if x == 3 else day, None if city == "c" else city, x * 2)
        for day, city, x in inputs["rates"].elements()
    ]


def daily(inputs: Inputs) -> list[Row]:
    best: dict[tuple[int, str], int] = {}
    for day, city, x in inputs["rates"]:
        best[int(day), city] = max(x, best.get((int(day), city), 0))
    return [(*key, value) for key, value in best.items()]


def look_up(versions: list[Row], city: str | None, day: float | None) -> Row | None:
    """Return the last version of a key at or before a time; of versions of one time, the greatest."""
    if city is None or day is None:
        return None
    known = [row for row in versions if row[1] == city and row[0] is not None and row[0] <= day]
    return max(known, default=None)


def inner(inputs: Inputs) -> Iterable[Row]:
    return [row for row in left(inputs) if row[-1] is not None]


def left(inputs: Inputs) -> Iterable[Row]:
    for day, at, city, x in sales(inputs):
        found = look_up(prices(inputs), city, at)
        yield day, city, x, found and found[2]


def condition(inputs: Inputs) -> Iterable[Row]:
    return [(*row, price if price is not None and price > row[2] else None) for *row, price in left(inputs)]


def two_joins(inputs: Inputs) -> Iterable[Row]:
    for day, city, x, price in left(inputs):
        best = look_up(daily(inputs), city, day)
        if best is not None:
            yield day, city, x, price, best[2], best[0]


def versions_joined(inputs: Inputs) -> Iterable[Row]:
    for day, city, best in daily(inputs):
        before = look_up([(row[0] + 1, *row[1:]) for row in daily(inputs)], city, day)
        yield day, city, best, before and before[2]


def grouped(inputs: Inputs) -> Iterable[Row]:
    rows: dict[str, list[Row]] = {}
    for row in inputs["trades"].elements():
        rows.setdefault(row[1], []).append(row)
    for city, group in rows.items():
        last = max(row[0] for row in group)
        found = look_up(prices(inputs), None if city == "c" else city, last)
        if found:
            yield last, city, len(group), found[2]


def totals(inputs: Inputs) -> Iterable[Row]:
    rows: dict[str, list[Row]] = {}
    for row in inner(inputs):
        rows.setdefault(row[1], []).append(row)
    for city, group in rows.items():
        yield max(row[0] for row in group), city, sum(row[2] * row[3] for row in group), len(group)


STEPS = [("sales", SALES), ("prices", PRICES)]
QUERIES = {
    "inner": Query([*STEPS, (None, JOIN)], ["prices"], ["city", "x", "price"], inner),
    "left": Query([*STEPS, (None, LEFT_JOIN)], ["prices"], ["city", "x", "price"], left),
    "with": Query(
        [(None, f"WITH sales AS ({SALES}), prices AS (SELECT *, struct(map(city, x), x / 3) AS more FROM (\n"
          + f"{PRICES.replace('price', 'price, x')}) WHERE city IS NOT NULL)\n"
          + JOIN.replace("p.price", "coalesce(p.price, p.more.col2) AS price"))],
        ["Prices"], ["city", "x", "price"], inner,
    ),
    "with in a step": Query(
        [("joined", f"WITH sales AS ({SALES}), prices AS ({PRICES})\n{LEFT_JOIN}"),
         (None, "SELECT * FROM joined WHERE price IS NOT NULL")],
        ["prices"], ["city", "x", "price"], inner,
    ),
    "condition": Query(
        [*STEPS, (None, f"{LEFT_JOIN} AND p.price > s.x")],
        ["prices"], ["city", "x", "price"], condition,
    ),
    "two joins": Query(
        [*STEPS, ("daily", DAILY),
         (None, LEFT_JOIN.replace("p.price", "p.price, d.best, d.event_time AS since")
          + "\nJOIN daily FOR SYSTEM_TIME AS OF s.event_time AS d ON d.city = s.city")],
        ["prices", "daily"], ["city", "x", "price", "best", "since"], two_joins,
    ),
    "versions joined": Query(
        [("daily", DAILY),
         ("earlier", "SELECT event_time + INTERVAL 1 DAY AS event_time, city, best FROM daily"),
         (None, "SELECT d.event_time, d.city, d.best, e.best AS previous FROM daily d\n"
          "LEFT JOIN earlier FOR SYSTEM_TIME AS OF d.event_time AS e ON e.city = d.city")],
        ["earlier"], ["city", "best", "previous"], versions_joined,
    ),
    "grouped rows": Query(
        [("prices", PRICES),
         (None, "SELECT t.event_time, t.city, t.n, p.price FROM (\n"
          "SELECT max(event_time) AS event_time, city, count(*) AS n FROM trades GROUP BY city) t\n"
          "JOIN prices FOR SYSTEM_TIME AS OF t.event_time AS p ON t.city = p.city")],
        ["prices"], ["city", "n", "price"], grouped,
    ),
    "totals": Query(
        [*STEPS,
         (None, "SELECT max(event_time) AS event_time, city, sum(x * price) AS total, count(*) AS n FROM (\n"
          f"{JOIN}) GROUP BY city")],
        ["prices"], ["city", "total", "n"], totals,
    ),
}  # fmt: skip


def transform_of(steps: Sequence[tuple[str | None, str]], tables: Sequence[str], key: str = "city") -> Sql:
    return Sql(
        engine="spark",
        queries=[SqlQueryStep(alias=alias, query=query) for alias, query in steps],
        temporal_tables=[TemporalTable(name, [key]) for name in tables],
    )


def snapshot_of(query: Query, name: str) -> DatasetSnapshot:
    transform = transform_of(query.steps, query.tables)
    inputs = [TransformInput(each, each) for each in ("trades", "rates")]
    return DatasetSnapshot(name, DatasetKind.Derivative, [SetTransform(inputs, transform)])


def joined(deriving: Deriving, query: Query, name: str = "output") -> DatasetEntry:
    return deriving.add_unchecked(snapshot_of(query, name))


class History:
    """Commits rows to both inputs, and knows their latest states."""

    def __init__(self, deriving: Deriving) -> None:
        self._deriving = deriving
        self._roots = {name: deriving.root(name) for name in ("trades", "rates")}
        self._rows: dict[str, list[Row]] = {name: [] for name in self._roots}

    def add(self, name: str, *rows: Row) -> None:
        self._deriving.rows(self._roots[name], *rows)
        self._rows[name] += [row if len(row) > 3 else (*row, A) for row in rows]

    def inputs(self) -> Inputs:
        return {name: latest_state(rows) for name, rows in self._rows.items()}


def assert_result(deriving: Deriving, entry: DatasetEntry, query: Query, history: History) -> None:
    found = latest_state(days(deriving, entry, *query.columns))
    if "since" in query.columns:
        found = Counter(
            {(*row, (time.timestamp() - 1704067200) / 86400 + 1): n for (*row, time), n in found.items()}
        )
    assert found == Counter(query.expected(history.inputs()))


TRANSACTIONS: list[list[tuple[str, list[Row]]]] = [
    [("trades", [(1, "a", 1), (2.5, "a", 2), (2.5, "a", 2), (2, "b", 4), (2, "c", 4), (3, "a", 5)]),
     ("rates", [(1.5, "a", 10), (2, "b", 20), (3, "a", 11)])],
    [("rates", [(2.25, "a", 1), (2.25, "a", 6), (1, "c", 8)])],  # late, and two at one time
    [("trades", [(1, "a", 1, CF), (2.25, "a", 7, CT), (2.5, "a", 2, R), (1, "b", 9)])],
    [("rates", [(2.25, "a", 6, R), (2, "b", 20, CF), (0.5, "b", 21, CT)])],
    [("rates", [(2.25, "a", 1, R), (1.5, "a", 10, R)]), ("trades", [(4, "a", 3)])],
    [("rates", [(0.5, "b", 21, R), (1, "a", 3), (1.75, "a", 4)]), ("trades", [(2, "b", 4, R)])],
]  # fmt: skip


@pytest.mark.parametrize("name", ["left", "with", "condition", "grouped rows", "two joins"])
@pytest.mark.complete(after=1)
def test_latest_state_has_the_versions_of_the_latest_inputs(
    deriving: Deriving, runtime: SparkRuntime, name: str
) -> None:
    query, history = QUERIES[name], History(deriving)
    entry = joined(deriving, query)
    for number, commits in enumerate(TRANSACTIONS):
        for root, rows in commits:
            history.add(root, *rows)
        if number % 2 == 1:
            deriving.run(entry)
            assert_result(deriving, entry, query, history)
    result = recompute(deriving, entry, runtime)
    assert (result.missing, result.extra, result.differences) == (0, 0, [])
    assert result.rows > 0


@pytest.mark.complete
def test_random_changes_and_pulls_give_the_latest_versions(deriving: Deriving) -> None:
    random, history = Random(5), History(deriving)
    names = random.sample(sorted(QUERIES), 2)
    entries = {name: joined(deriving, QUERIES[name], f"output{number}") for number, name in enumerate(names)}
    live: dict[str, list[Row]] = {"trades": [], "rates": []}
    for step in range(5):
        # A query begins when all its inputs have rows.
        for root in random.sample(sorted(live), random.randint(1, 2) if step else 2):
            history.add(root, *random_changes(random, live[root], 4))
        for name, entry in entries.items():
            if step == 4 or random.random() < 0.6:
                deriving.run(entry)
                assert_result(deriving, entry, QUERIES[name], history)
    assert check(deriving, entries[names[0]]).findings == []


def validated(
    deriving: Deriving, steps: Sequence[tuple[str | None, str]], tables: Sequence[str], key: str = "city"
) -> ValidatedQuery:
    vocab = DatasetVocabulary("offset", "op", "system_time", "event_time")
    inputs = [QueryInput(name, slice_schema(DATA, vocab), vocab) for name in ("trades", "rates")]
    return deriving.engine.validate(transform_of(steps, tables, key), inputs, vocab, None)


FINAL = (
    "SELECT t.event_time, p.price FROM trades t\nJOIN prices FOR SYSTEM_TIME AS OF t.event_time AS p ON {}"
)
ON_CITY = FINAL.format("t.city = p.city")
PRICED = ("prices", PRICES)


@pytest.mark.parametrize(
    ("steps", "tables", "kind", "parts"),
    [
        ([PRICED,
          (None, f"{ON_CITY}\nJOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city")],
         ["prices", "rates"], Unsupported, ["'prices'", "the input 'rates'", "in a separate dataset"]),
        ([PRICED, (None, FINAL.format("t.x = p.price"))], ["prices"], InvalidQuery,
         ["key column 'city' of 'prices'", "ON t.city = prices.city", "query step 2 of 2"]),
        ([("prices", "SELECT city, x AS price FROM rates"), (None, ON_CITY)], ["prices"], InvalidQuery,
         ["'prices' has no event time column 'event_time'", "AS event_time", "query step 2 of 2, line 2"]),
        ([("prices", "SELECT event_time, x AS price FROM rates"), (None, FINAL.format("t.city = p.price"))],
         ["prices"], InvalidQuery, ["has no column 'city'", "columns: event_time, price", "line 2, column"]),
        ([("prices", "SELECT x AS event_time, city, x AS price FROM rates"), (None, ON_CITY)],
         ["prices"], InvalidQuery, ["has the type BIGINT", "TIMESTAMP or DATE", "line 2"]),
        ([PRICED, (None, ON_CITY.replace("OF t.event_time", "OF t.x"))], ["prices"], InvalidQuery,
         ["has the type BIGINT"]),
        ([PRICED, (None, ON_CITY.replace("OF t.event_time", "OF p.event_time"))], ["prices"], InvalidQuery,
         ["not a column of the left rows"]),
        ([PRICED, (None, ON_CITY.replace("OF t.event_time", "OF t.no"))], ["prices"], InvalidQuery,
         ["`t`.`no` not found"]),
        ([PRICED, (None, ON_CITY + " AND p.price IN (SELECT x FROM trades)")], ["prices"], InvalidQuery,
         ["'prices'", "has a subquery", "earlier step"]),
        ([PRICED, (None, ON_CITY)], ["costs"], InvalidQuery,
         ["'costs' is not an input", "inputs: trades, rates", "steps: prices"]),
        ([(None, f"WITH prices AS ({PRICES}) {ON_CITY}")], ["costs"], InvalidQuery, ["WITH tables: prices"]),
        ([PRICED, (None, ON_CITY)], [], InvalidQuery, ["'prices'", "not a temporal table", "primaryKey"]),
        ([(None, f"WITH prices AS ({PRICES}) {ON_CITY}")], [], InvalidQuery, ["not a temporal table"]),
        ([(None, ON_CITY)], [], InvalidQuery, ["table or view `prices` not found"]),
        ([(None, ON_CITY.replace("prices", f"({PRICES})"))], [], InvalidQuery,
         ["cannot follow a subquery", "WITH", "earlier step", "query, line 3"]),
        ([PRICED, (None, ON_CITY.replace("prices FOR", "prices p FOR"))], ["prices"], InvalidQuery,
         ["syntax error", "FROM trades AS t JOIN rates FOR"]),
        ([PRICED, (None, f"SELECT * FROM trades WHERE x IN (SELECT 1 FROM ({ON_CITY}))")], ["prices"],
         InvalidQuery, ["subquery of an expression", "an earlier step"]),
        ([("prices", f"SELECT *, city COLLATE UTF8_LCASE AS name FROM ({PRICES})"), (None, ON_CITY)],
         ["prices"], Unsupported, ["p.name has a collation", "query step 2 of 2, line 2"]),
        ([PRICED, (None, ON_CITY.replace("JOIN", "RIGHT JOIN"))], ["prices"], InvalidQuery, ["RIGHT OUTER"]),
        ([PRICED, (None, ON_CITY.replace("JOIN", "FULL JOIN"))], ["prices"], InvalidQuery,
         ["'prices' cannot be joined with FULL OUTER", "query step 2 of 2"]),
        ([PRICED, (None, ON_CITY.replace("ON t.city = p.city", "USING (city)"))], ["prices"], InvalidQuery,
         ["with USING"]),
        ([PRICED, (None, ON_CITY.replace("t.event_time, p", "system_time() AS event_time, p"))], ["prices"],
         Unsupported, ["system_time()"]),
    ],
)  # fmt: skip
@pytest.mark.complete(after=6)
def test_invalid_joins_are_refused(
    deriving: Deriving,
    steps: Sequence[tuple[str | None, str]],
    tables: Sequence[str],
    kind: type[OdfError],
    parts: list[str],
) -> None:
    with pytest.raises(kind) as caught:
        validated(deriving, steps, tables)
    said = f"{caught.value.where}: {caught.value} {caught.value.hint}"
    for part in parts:
        assert part in said, said


def test_state_depends_on_the_key_of_the_table(deriving: Deriving) -> None:
    steps = [PRICED, (None, FINAL.format("t.city = p.city AND t.x = p.price"))]
    by_city, by_price = (validated(deriving, steps, ["prices"], key) for key in ("city", "price"))
    assert by_city.rereads and by_price.rereads and by_city.state != by_price.state
    # A temporal table that no join reads has no effect.
    plain = [PRICED, (None, "SELECT * FROM prices")]
    assert not validated(deriving, plain, ["prices"]).rereads


@pytest.mark.complete
def test_rows_are_traced_to_their_row_and_their_version(deriving: Deriving, runtime: SparkRuntime) -> None:
    query, history = QUERIES["left"], History(deriving)
    entry = joined(deriving, query)
    history.add("trades", (2, "a", 1), (2, "b", 2))
    history.add("rates", (1, "a", 1), (1.5, "a", 2), (3, "a", 4))
    deriving.run(entry)
    history.add("rates", (1.75, "a", 6))
    deriving.run(entry)
    assert days(deriving, entry, *query.columns) == [
        (2, "a", 1, 4, A), (2, "b", 2, None, A), (2, "a", 1, 4, R), (2, "a", 1, 12, A),
    ]  # fmt: skip
    expected = {0: [{0}, {1}], 1: [{1}, set[int]()], 2: [{0}, {1}], 3: [{0}, {3}]}
    for offset, origins in expected.items():
        trace = trace_back(deriving.workspace, entry, [(offset, offset)], runtime, Reporter())[-1]
        assert ([offsets(runs) for _, _, runs in trace.feeds], trace.exact) == (origins, True)
        assert trace.operations == ["joined as of the event time with the version of each key"]


@pytest.mark.complete
def test_another_key_replaces_the_rows(deriving: Deriving, runtime: SparkRuntime) -> None:
    on = "t.city = p.city AND t.x = p.price"
    final = FINAL.format(on).replace("JOIN", "LEFT JOIN")
    steps = [("prices", PRICES), (None, final)]
    history = History(deriving)
    entry = joined(deriving, Query(steps, ["prices"], [], left))
    history.add("trades", (2, "a", 4), (2, "a", 8))
    history.add("rates", (1, "a", 2), (1.5, "a", 4))
    deriving.run(entry)
    assert latest_state(days(deriving, entry, "price")) == {(2, 8): 1, (2, None): 1}
    transform = transform_of(steps, ["prices"], "price")
    inputs = [TransformInput(each, each) for each in ("trades", "rates")]
    snapshot = DatasetSnapshot(str(entry.alias), DatasetKind.Derivative, [SetTransform(inputs, transform)])
    migrate_query(
        deriving.workspace, entry, snapshot, deriving.engine, Reporter(), MigrationOptions(choice="rebuild")
    )
    assert latest_state(days(deriving, entry, "price")) == {(2, 8): 1, (2, 4): 1}
    history.add("rates", (1, "a", 2, R))
    deriving.run(entry)
    assert latest_state(days(deriving, entry, "price")) == {(2, 8): 1, (2, None): 1}
    assert recompute(deriving, entry, runtime).differences == []
    assert check(deriving, entry).findings == []
