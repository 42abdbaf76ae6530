"""Random stateful queries over random changelogs, compared with Spark's batch query over the latest state.

Each case has a random query of a supported shape, random commits of its inputs, and random cuts into
transactions. After the end of event time, the latest state of the result must equal the plain batch query
over the latest state of the inputs. Rows are never late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.transform.deriving import Deriving

A, R, CF, CT = 0, 1, 2, 3
_AGGREGATES: Final = (
    "count(*)",
    "count(x)",
    "sum(x)",
    "min(x)",
    "max(x)",
    "avg(x)",
    "count(DISTINCT x)",
    "sum(x) FILTER (WHERE x > 2)",
    "min(x) FILTER (WHERE x > 2)",
    "sum(x / 4)",
    "avg(CAST(x AS DECIMAL(9, 2)))",
    "stddev(x)",
    "bool_or(x > 4)",
    "size(collect_set(x))",
    "max(x) - min(x)",
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
END: Final = "2024-03-01T00:00:00Z"
Row = tuple[float, str | None, int | None]


@dataclass(frozen=True)
class Case:
    """A query.

    Attributes:
        query: the query.
        inputs: its inputs; ``s`` has retractions and corrections.
        hidden: columns that are not compared.
    """

    query: str
    inputs: Sequence[str]
    hidden: Sequence[str] = ()


def random_case(random: Random) -> Case:
    """Return a random query."""
    return random.choice((_windows, _windows, _running, _join, _distinct, _first, _chain))(random)


def _aggregates(random: Random) -> str:
    chosen = random.sample(_AGGREGATES, random.randint(1, 4))
    return ", ".join(f"{each} AS a{index}" for index, each in enumerate(chosen))


def _windows(random: Random) -> Case:
    window = random.choice(_WINDOWS)
    name = window.split("(")[0]
    keys = random.choice(("", ", city"))
    source, inputs = random.choice((("s", ["s"]), ("s", ["s"]), ("l", ["l"]), _union()))
    columns = f"{name}.end AS event_time{keys}, {_aggregates(random)}"
    where = random.choice(("", "", "WHERE x <> 1 "))
    return Case(f"SELECT {columns} FROM {source} {where}GROUP BY {window}{keys}", inputs)


def _union() -> tuple[str, list[str]]:
    rows = "(SELECT event_time, city, x FROM l UNION ALL SELECT event_time, city, x + 1 AS x FROM s)"
    return rows, ["l", "s"]


def _running(random: Random) -> Case:
    source = random.choice(("s", "l"))
    having = random.choice(("", " HAVING count(*) < 5"))
    return Case(
        f"SELECT max(event_time) AS event_time, city, {_aggregates(random)} FROM {source} "
        f"GROUP BY city{having}",
        [source],
        ["event_time"],
    )


def _join(random: Random) -> Case:
    kind = random.choice(("", "LEFT ", "RIGHT ", "FULL "))
    bound = _BOUND.format(random.randint(0, 30), random.randint(0, 30))
    return Case(
        "SELECT coalesce(l.event_time, r.event_time) AS event_time, l.city, l.x, r.x AS y "
        f"FROM l {kind}JOIN r ON {bound}",
        ["l", "r"],
    )


def _distinct(random: Random) -> Case:
    return Case("SELECT DISTINCT event_time, city, x % 2 AS z FROM l", ["l"])


def _first(random: Random) -> Case:
    return Case(
        "SELECT event_time, city, x FROM (SELECT *, row_number() OVER "
        "(PARTITION BY city, window(event_time, '1 day') ORDER BY offset) AS n FROM l) WHERE n = 1",
        ["l"],
    )


def _chain(random: Random) -> Case:
    bound = _BOUND.format(random.randint(0, 30), random.randint(0, 30))
    first = random.choice((
        f"SELECT l.event_time, l.city, l.x + r.x AS x FROM l JOIN r ON {bound}",
        "SELECT DISTINCT event_time, city, x FROM l",
        "SELECT window AS event_time, city, sum(x) AS x FROM s "
        "GROUP BY window(event_time, '12 hours'), city",
    ))  # fmt: skip
    inputs = [name for name in ("l", "r", "s") if f"FROM {name} " in f"{first} " or f"JOIN {name} " in first]
    return Case(
        f"WITH first AS ({first}) SELECT window.end AS event_time, city, sum(x) AS a, count(*) AS n, "
        "min(x) AS m FROM first GROUP BY window(event_time, '1 day'), city",
        inputs,
    )


class RandomInput:
    """A root dataset with random commits."""

    def __init__(self, deriving: Deriving, name: str, random: Random) -> None:
        self._deriving = deriving
        self._random = random
        self._changes = name == "s"
        self._watermark = 1.0
        self.entry = deriving.root(name)
        self.rows: list[Row] = []
        """Rows of the latest state, in the order of their commits."""

    def commit(self) -> None:
        """Commit random rows; the watermark may advance."""
        random = self._random
        committed: list[tuple[Any, ...]] = []
        for _ in range(random.randint(0 if self.rows else 1, 5)):
            open_rows = [row for row in self.rows if row[0] > self._watermark]
            if self._changes and open_rows and random.random() < 0.4:
                old = random.choice(open_rows)
                self.rows.remove(old)
                if random.random() < 0.4:
                    committed.append((*old, R))
                else:
                    new = self._new_row()
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


def compare_case(deriving: Deriving, runtime: SparkRuntime, random: Random) -> str | None:
    """Run a random case; return a description of the difference, or None."""
    case = random_case(random)
    inputs = {name: RandomInput(deriving, name, random) for name in case.inputs}
    made = deriving.derivative(case.query, *case.inputs)
    for each in inputs.values():
        each.commit()
    for _ in range(random.randint(1, 6)):
        random.choice(list(inputs.values())).commit()
        if random.random() < 0.4:
            deriving.run(made)
    for each in inputs.values():
        each.end()
    deriving.run(made)
    actual = _latest_state(deriving, made, case.hidden)
    expected = _batch_result(runtime, case, {name: each.rows for name, each in inputs.items()})
    if actual == expected:
        return None
    missing, surplus = expected - actual, actual - expected
    return f"{case.query}\nmissing {dict(missing)}\nsurplus {dict(surplus)}"


def _latest_state(deriving: Deriving, made: DatasetEntry, hidden: Sequence[str]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    if not list(made.dataset.slices()):
        return found
    for row in deriving.table(made).to_pylist():
        operation = row.pop("op")
        values = tuple(
            _comparable(value)
            for name, value in sorted(row.items())
            if name not in ("offset", "system_time", *hidden)
        )
        found[values] += -1 if operation in (R, CF) else 1
    return +found


def _batch_result(runtime: SparkRuntime, case: Case, rows: dict[str, list[Row]]) -> Counter[tuple[Any, ...]]:
    session = runtime.session()
    for name, each in rows.items():
        data = [
            (offset, datetime(2024, 1, 1) + timedelta(days=row[0] - 1), row[1], row[2])
            for offset, row in enumerate(each)
        ]
        schema = "offset BIGINT, event_time TIMESTAMP, city STRING, x BIGINT"
        session.createDataFrame(data, schema).createOrReplaceTempView(name)
    table = session.sql(case.query).toArrow().to_pylist()
    return Counter(
        tuple(_comparable(value) for name, value in sorted(row.items()) if name not in case.hidden)
        for row in table
    )


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 9)
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
