"""Random stateful queries over random changelogs, compared with Spark's batch query over the latest state.

A seed has random commits of some inputs, random cuts into transactions, and several random queries of
supported shapes. Queries that can be combined are one dataset, as branches of a UNION ALL. Cases of one shape
that differ in their aggregates can be one wide query. After the end of
event time, the latest state of each result must equal the plain batch query over the latest state of the
inputs. Rows are never late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import Deriving

A, R, CF, CT = 0, 1, 2, 3
_PARTIAL_AGGREGATES: Final = (
    "count(*)",
    "count(x)",
    "sum(x)",
    "min(x)",
    "max(x)",
    "sum(x) FILTER (WHERE x > 2)",
    "min(x) FILTER (WHERE x > 2)",
    "sum(x / 4)",
    "avg(x)",
    "bool_or(x > 4)",
    "max(x) - min(x)",
)
"""Aggregates whose state is a few values for each group."""
_AGGREGATES: Final = (
    *_PARTIAL_AGGREGATES,
    "count(DISTINCT x)",
    "avg(CAST(x AS DECIMAL(9, 2)))",
    "stddev(x)",
    "size(collect_set(x))",
    "count_if(x = 3)",
    "max_by(x, x)",
)
_WINDOWS: Final = (
    "window(event_time, '1 day')",
    "window(event_time, '2 days', '1 day')",
    "window(event_time, '36 hours', '12 hours')",
    "session_window(event_time, '12 hours')",
)
_BOUND: Final = (
    "l.city <=> r.city AND r.event_time BETWEEN l.event_time - INTERVAL {} HOURS "
    "AND l.event_time + INTERVAL {} HOURS"
)
_WIDTH: Final = 4
"""Number of values in a row of the result of one case."""
_INPUTS: Final = ("l", "r", "s", "u")
COMBINED: Final = 3
"""Number of cases that are combined in one dataset."""
_OLD_CHANGES: Final = "u"
"""The input with retractions and corrections of rows that the watermark has passed."""
END: Final = "2024-03-01T00:00:00Z"
Row = tuple[float, str | None, int | None]
Result = Counter[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """A query.

    Attributes:
        query: its columns are the event time, the city and numbers, at most four in each set of aggregates.
        inputs: its inputs.
        expected: the batch query, if it is another one.
        has_time: whether the event time is compared.
        key: input with a primary key, for as-of joins.
    """

    query: str
    inputs: Sequence[str]
    expected: str = ""
    has_time: bool = True
    key: str = ""


def _row(time: str, *values: str, city: str = "city") -> str:
    """The columns of a query; all of the same types in all queries of one set of aggregates."""
    numbers = [*values, *["NULL"] * (_WIDTH - len(values))]
    cast = ", ".join(f"round(CAST({each} AS DOUBLE), 6) AS v{index}" for index, each in enumerate(numbers))
    return f"{time} AS event_time, {city} AS city, {cast}"


def _aggregates(random: Random, sets: int) -> list[str]:
    if sets == 1:
        return random.sample(_AGGREGATES, random.randint(1, _WIDTH))
    # Single values, in the state of nearly all wide queries, would hide faults of partial values.
    pool = random.choice((_AGGREGATES, _PARTIAL_AGGREGATES))
    return random.sample(pool, min(_WIDTH * sets, len(pool)))


def _windows(random: Random, sets: int = 1) -> Case:
    window = random.choice(_WINDOWS)
    time, by_city = f"{window.split('(')[0]}.end", random.random() < 0.5
    source, inputs = random.choice((("s", ["s"]), ("s", ["s"]), ("l", ["l"]), _union()))
    where = random.choice(("", "", "WHERE x <> 1 "))
    city = "city" if by_city else "CAST(NULL AS STRING)"
    columns = _row(time, *_aggregates(random, sets), city=city)
    return Case(
        f"SELECT {columns} FROM {source} {where}GROUP BY {window}{', city' if by_city else ''}", inputs
    )


def _union() -> tuple[str, list[str]]:
    rows = "(SELECT event_time, city, x FROM l UNION ALL SELECT event_time, city, x + 1 AS x FROM s)"
    return rows, ["l", "s"]


def _running(random: Random, sets: int = 1) -> Case:
    source = random.choice(_INPUTS)
    having = random.choice(("", " HAVING count(*) < 5"))
    columns = _row("max(event_time)", *_aggregates(random, sets))
    return Case(f"SELECT {columns} FROM {source} GROUP BY city{having}", [source], has_time=False)


def _join(random: Random) -> Case:
    kind = random.choice(("", "LEFT ", "RIGHT ", "FULL "))
    columns = _row("coalesce(l.event_time, r.event_time)", "l.x", "r.x", city="coalesce(l.city, r.city)")
    return Case(f"SELECT {columns} FROM l {kind}JOIN r ON {_bound(random)}", ["l", "r"])


def _bound(random: Random) -> str:
    return _BOUND.format(random.randint(-6, 30), random.randint(7, 30))


def _distinct(random: Random) -> Case:
    source = random.choice("lrs")
    rows = f"(SELECT DISTINCT event_time, city, x % 2 AS z FROM {source})"
    return Case(f"SELECT {_row('event_time', 'z')} FROM {rows}", [source])


def _first(random: Random) -> Case:
    source = random.choice("lrs")
    order = random.choice(("offset", "offset", "event_time DESC, offset", "x DESC NULLS LAST, offset"))
    keys = "PARTITION BY city, window(event_time, '1 day')"
    rows = f"(SELECT *, row_number() OVER ({keys} ORDER BY {order}) AS n FROM {source})"
    return Case(f"SELECT {_row('event_time', 'x')} FROM {rows} WHERE n = 1", [source])


def _top(random: Random) -> Case:
    source, inputs = random.choice((("u", ["u"]), ("u", ["u"]), ("s", ["s"]), _daily()))
    keys = random.choice(("", "PARTITION BY city ", "PARTITION BY x % 2 "))
    order = random.choice(("x DESC NULLS LAST", "x", "event_time DESC", "x, event_time"))
    function = random.choice(("row_number()", "row_number()", "rank()", "dense_rank()"))
    if function == "row_number()":
        order += ", offset" if source in _INPUTS else ", event_time, city, x"
    limit = random.choice(("n = 1", "n <= 2", "n < 4", "n BETWEEN 2 AND 3", "n <= 2 AND x > 1"))
    rows = f"(SELECT *, {function} OVER ({keys}ORDER BY {order}) AS n FROM {source})"
    values = random.choice((["n", "x"], ["x"]))
    return Case(f"SELECT {_row('event_time', *values)} FROM {rows} WHERE {limit}", inputs)


def _daily() -> tuple[str, list[str]]:
    window = "window(event_time, '1 day')"
    return f"(SELECT {window}.end AS event_time, city, sum(x) AS x FROM s GROUP BY {window}, city)", ["s"]


def _totals(random: Random) -> Case:
    source = random.choice("lssuuu")
    functions = random.sample(
        ("sum(x)", "count(*)", "count(x)", "min(x)", "max(x)", "avg(x)", "sum(x / 4)"), random.randint(1, 3)
    )
    orders = ("event_time, offset ROWS UNBOUNDED PRECEDING", "event_time, x, offset", "event_time")
    keys = ("PARTITION BY city ", "PARTITION BY city ", "PARTITION BY x % 2 ", "")
    totals = [
        f"{function} OVER ({random.choice(keys)}ORDER BY {random.choice(orders)})" for function in functions
    ]
    return Case(f"SELECT {_row('event_time', 'x', *totals)} FROM {source}", [source])


def _chain(random: Random, sets: int = 1) -> Case:
    first = random.choice((
        f"SELECT l.event_time, l.city, l.x + r.x AS x FROM l JOIN r ON {_bound(random)}",
        "SELECT DISTINCT event_time, city, x FROM l",
        "SELECT window AS event_time, city, sum(x) AS x FROM s "
        "GROUP BY window(event_time, '12 hours'), city",
    ))  # fmt: skip
    inputs = [name for name in _INPUTS if f"FROM {name} " in f"{first} " or f"JOIN {name} " in first]
    aggregates = ["sum(x)", "count(*)", "min(x)"] if sets == 1 else _aggregates(random, sets)
    columns = _row("window.end", *aggregates)
    return Case(f"SELECT {columns} FROM ({first}) GROUP BY window(event_time, '1 day'), city", inputs)


def _as_of(random: Random) -> Case:
    kind = random.choice(("", "LEFT "))
    other = random.choice(("", " AND k.x > 1"))
    where = random.choice(("", " WHERE l.x <> 2"))
    columns = _row("l.event_time", "l.x", "k.x", city="l.city")
    query = f"SELECT {columns} FROM l {kind}JOIN k FOR SYSTEM_TIME AS OF l.event_time AS k ON l.city = k.city"
    versions = (
        "(SELECT l.offset AS o, max_by(struct(k.city, k.x), struct(k.event_time, k.offset)) AS k FROM l "
        "JOIN k ON l.city = k.city AND k.event_time <= l.event_time GROUP BY l.offset)"
    )
    joined = f"(SELECT o, k.* FROM {versions})"
    expected = f"SELECT {columns} FROM l {kind}JOIN {joined} k ON l.offset = k.o"
    return Case(f"{query}{other}{where}", ["l", "k"], f"{expected}{other}{where}", key="k")


_COMBINABLE: Final = (_windows, _windows, _join, _distinct, _first, _chain, _top, _totals)
"""Queries that can be branches of a UNION ALL."""
_SINGLE: Final = (*_COMBINABLE, _running, _as_of)
_WIDE: Final[Mapping[str, Callable[[Random, int], Case]]] = {
    "windows": _windows, "running": _running, "chain": _chain,
}  # fmt: skip
"""Shapes with aggregates."""
_NARROW: Final[Mapping[str, Callable[[Random], Case]]] = {
    "totals": _totals, "join": _join, "distinct": _distinct, "first": _first, "top": _top, "as_of": _as_of,
}  # fmt: skip


class RandomInput:
    """A root dataset with random commits."""

    def __init__(self, deriving: Deriving, name: str, random: Random) -> None:
        self._deriving = deriving
        self._random = random
        self._changes = name in "su" or (name != "k" and random.random() < 0.6)
        self._old_changes = name == _OLD_CHANGES
        self._watermark = 1.0
        self.entry = deriving.root(name)
        self.rows: list[Row] = []
        """Rows of the latest state, in the order of their commits."""

    def commit(self) -> None:
        """Commit random rows; the watermark may advance."""
        random = self._random
        committed: list[tuple[Any, ...]] = []
        for _ in range(random.randint(0 if self.rows else 1, 5)):
            rows = [row for row in self.rows if row[0] > self._watermark or self._old_changes]
            if self._changes and rows and random.random() < 0.4:
                old = random.choice(rows)
                self.rows.remove(old)
                if random.random() < 0.4:
                    committed.append((*old, R))
                else:
                    new = self._new_row()
                    if self._old_changes and random.random() < 0.5:
                        new = (old[0], *new[1:])
                    self.rows.append(new)
                    committed += [(*old, CF), (*new, CT)]
            else:
                row = self._new_row()
                self.rows.append(row)
                committed.append(row)
        if not committed or random.random() < 0.5:
            self._watermark += random.choice((0.25, 0.5, 1, 2))
        self._deriving.rows(self.entry, *committed, watermark=_time(self._watermark), advances=False)

    def end(self) -> None:
        """Commit the last watermark."""
        self._deriving.rows(self.entry, watermark=END)

    def _new_row(self) -> Row:
        random = self._random
        time = self._watermark + random.choice((0.125, 0.25, 0.5, 0.5, 1, 1.75))
        return time, random.choice(("a", "b", None)), random.choice((0, 1, 2, 3, 4, 5, None))


def _time(day: float) -> str:
    return (datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=day - 1)).isoformat()


def compare_seed(deriving: Deriving, runtime: SparkRuntime, seed: int, *, combined: int) -> list[str]:
    """Run the cases of a seed; return a description of each difference.

    Args:
        deriving: an empty workspace.
        runtime: the Spark of the batch queries.
        seed: the seed.
        combined: number of cases to combine; 1 for a case of any shape.
    """
    random = Random(seed)
    shapes = random.sample(_COMBINABLE, combined) if combined > 1 else [random.choice(_SINGLE)]
    return [
        f"seed {seed}: {each}" for each in _compare(deriving, runtime, random, [s(random) for s in shapes])
    ]


def compare_shape(deriving: Deriving, runtime: SparkRuntime, shape: str, seed: int, sets: int) -> list[str]:
    """Run a random query of a shape; return a description of each difference.

    Args:
        deriving: an empty workspace.
        runtime: the Spark of the batch queries.
        shape: ``windows``, ``running`` or ``chain`` for a wide query, or ``totals``, ``join``, ``distinct``,
            ``first``, ``top`` or ``as_of``.
        seed: the seed.
        sets: number of sets of aggregates in a wide query: each is a case.
    """
    random = Random(seed)
    case = _WIDE[shape](random, sets) if shape in _WIDE else _NARROW[shape](random)
    return _compare(deriving, runtime, random, [case])


def _compare(deriving: Deriving, runtime: SparkRuntime, random: Random, cases: Sequence[Case]) -> list[str]:
    names = sorted({name for case in cases for name in case.inputs})
    inputs = {name: RandomInput(deriving, name, random) for name in names}
    keys = {case.key: "city" for case in cases if case.key}
    made = deriving.derivative(_combine([case.query for case in cases]), *names, **keys)
    for each in inputs.values():
        each.commit()
    for number in range(random.randint(1, 4) * len(inputs)):
        random.choice(list(inputs.values())).commit()
        if number % len(inputs) == 0 and random.random() < 0.4:
            deriving.run(made)
    for each in inputs.values():
        each.end()
    deriving.run(made)
    actual = _latest_state(deriving, made, cases)
    query = _combine([case.expected or case.query for case in cases])
    expected = _batch_result(runtime, query, {name: each.rows for name, each in inputs.items()}, cases)
    return [
        f"{case.query}\nmissing {dict(expected[at] - actual[at])}\nsurplus {dict(actual[at] - expected[at])}"
        for at, case in enumerate(cases)
        if actual[at] != expected[at]
    ]


def _combine(queries: Sequence[str]) -> str:
    return "\nUNION ALL ".join(
        each.replace("SELECT ", f"SELECT {at} AS q, ", 1) for at, each in enumerate(queries)
    )


def _latest_state(deriving: Deriving, made: DatasetEntry, cases: Sequence[Case]) -> list[Result]:
    found: list[Result] = [Counter() for _ in cases]
    if list(made.dataset.slices()):
        for row in deriving.table(made).drop_columns(["offset", "system_time"]).to_pylist():
            sign = -1 if row.pop("op") in (R, CF) else 1
            found[row["q"]][_values(row, cases)] += sign
    for each in found:
        assert min(each.values(), default=0) >= 0, "the result retracts more rows than it has"
    return [+each for each in found]


def _batch_result(
    runtime: SparkRuntime, query: str, rows: dict[str, list[Row]], cases: Sequence[Case]
) -> list[Result]:
    session = runtime.session()
    for name, each in rows.items():
        data = [
            (offset, datetime(2024, 1, 1) + timedelta(days=row[0] - 1), row[1], row[2])
            for offset, row in enumerate(each)
        ]
        schema = "offset BIGINT, event_time TIMESTAMP, city STRING, x BIGINT"
        session.createDataFrame(data, schema).createOrReplaceTempView(name)
    found: list[Result] = [Counter() for _ in cases]
    for row in session.sql(query).toArrow().to_pylist():
        found[row["q"]][_values(row, cases)] += 1
    return found


def _values(row: dict[str, Any], cases: Sequence[Case]) -> tuple[Any, ...]:
    """The values of a row that are compared."""
    has_time = cases[row["q"]].has_time
    return tuple(
        each.replace(tzinfo=UTC) if isinstance(each, datetime) else each
        for name, each in row.items()
        if name != "q" and (name != "event_time" or has_time)
    )
