"""Shapes of queries over random rows, and whether what is said of where their rows come from is so.

Of each row that is looked at, the transaction is run again with the rows of the answer alone, which has to
make it again, and without them, which must not (:mod:`odf_engine.derive.provenance.trace_check`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from odf_engine.base.progress import Reporter
from odf_engine.derive.provenance.step import trace_back
from odf_engine.derive.provenance.trace_check import check_trace
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import Deriving

A, R, CF, CT = 0, 1, 2, 3
_INPUTS: Final = ("l", "r", "snap")
_CITIES: Final = ("a", "b", "c", None)
Row = tuple[float, str | None, int, int]


class Shape(NamedTuple):
    """A query over the inputs ``l`` and ``r`` (rows that are added) and ``snap`` (a changelog by city)."""

    name: str
    query: str
    inputs: Sequence[str]
    keys: Mapping[str, str] = MappingProxyType({})


UNION: Final = "SELECT event_time, city, x FROM l UNION ALL SELECT event_time, city, -x AS x FROM r"

SHAPES: Final = (
    Shape("map", "SELECT event_time, city, x * 2 AS y FROM snap WHERE x > 2", ["snap"]),
    Shape("exploded", "SELECT event_time, city, e FROM l LATERAL VIEW explode(sequence(0, x)) AS e", ["l"]),
    Shape("union", UNION, ["l", "r"]),
    Shape("ordered", "SELECT event_time, city, x FROM l ORDER BY x DESC, city", ["l"]),
    Shape(
        "windows",
        "SELECT window.start AS event_time, city, sum(x) AS s, count(*) AS n FROM l\n"
        "GROUP BY window(event_time, '1 day'), city",
        ["l"],
    ),
    Shape(
        "union-windows",
        f"WITH both AS ({UNION})\n"
        "SELECT window.start AS event_time, city, sum(x) AS s, max(x) AS m FROM both\n"
        "GROUP BY window(event_time, '2 days', '1 day'), city",
        ["l", "r"],
    ),
    Shape(
        "sessions",
        "SELECT session_window.end AS event_time, city, count(*) AS n FROM l\n"
        "GROUP BY session_window(event_time, '12 hours'), city",
        ["l"],
    ),
    Shape(
        "snapshot-windows",
        "SELECT window.start AS event_time, sum(x) AS s, count(*) AS n FROM snap\n"
        "GROUP BY window(event_time, '1 day')",
        ["snap"],
    ),
    Shape(
        "changes",
        "SELECT max(event_time) AS event_time, city, sum(x) AS s, count(*) AS n FROM l GROUP BY city",
        ["l"],
    ),
    Shape(
        "join",
        "SELECT l.event_time, l.city, l.x, r.x AS rx FROM l JOIN r ON l.city = r.city\n"
        "AND r.event_time BETWEEN l.event_time - INTERVAL 1 DAY AND l.event_time + INTERVAL 1 DAY",
        ["l", "r"],
    ),
    Shape("distinct", "SELECT DISTINCT event_time, city FROM l", ["l"]),
    Shape(
        "as-of",
        "SELECT t.event_time, t.city, t.x * s.x AS cost FROM l AS t\n"
        "LEFT JOIN snap FOR SYSTEM_TIME AS OF t.event_time AS s ON t.city = s.city",
        ["l", "snap"],
        {"snap": "city"},
    ),
    Shape(
        "as-of-windows",
        "WITH priced AS (SELECT t.event_time, t.city, t.x * s.x AS cost FROM l AS t\n"
        "JOIN snap FOR SYSTEM_TIME AS OF t.event_time AS s ON t.city = s.city)\n"
        "SELECT window.end AS event_time, city, sum(cost) AS s FROM priced\n"
        "GROUP BY window(event_time, '2 days', '1 day'), city",
        ["l", "snap"],
        {"snap": "city"},
    ),
)


class Shapes:
    """A workspace with inputs of random rows, and datasets of all shapes.

    Args:
        deriving: an empty workspace.
        seed: of the rows.
        shapes: which.
        commits: how many each input has; after every other one the datasets are brought up to date.
    """

    def __init__(
        self, deriving: Deriving, seed: int, shapes: Sequence[Shape] = SHAPES, commits: int = 4
    ) -> None:
        self.deriving = deriving
        self.random = Random(seed)
        self._now: dict[str, tuple[float, int]] = {}
        roots = {name: deriving.root(name) for name in _INPUTS}
        self.made = {
            shape.name: deriving.derivative(shape.query, *shape.inputs, name=shape.name, **shape.keys)
            for shape in shapes
        }
        for number in range(commits):
            for name, root in roots.items():
                rows = self._changes(number) if name == "snap" else self._rows(number)
                last = number == commits - 1
                deriving.rows(root, *rows, watermark="2024-02-01T00:00:00Z" if last else None)
            if number % 2:
                for entry in self.made.values():
                    deriving.run(entry)

    def _rows(self, number: int) -> list[tuple[float, str | None, int]]:
        """Some of them are too late for their windows, and some are the same."""
        times = [max(1.0, 1 + number + self.random.choice((-2, -0.5, 0, 0, 0.25, 0.25, 0.75)))
                 for _ in range(self.random.randint(2, 5))]  # fmt: skip
        return [(at, self.random.choice(_CITIES), self.random.randint(0, 4)) for at in times]

    def _changes(self, number: int) -> list[Row]:
        """What a snapshot of cities becomes."""
        rows: list[Row] = []
        for city in self.random.sample(("a", "b", "c"), 2):
            old = self._now.get(city)
            new = 1 + number + self.random.choice((0, 0.25, 0.5)), self.random.randint(1, 6)
            if old is None:
                rows.append((new[0], city, new[1], A))
            elif self.random.random() < 0.25:
                rows.append((old[0], city, old[1], R))
                del self._now[city]
                continue
            else:
                rows += [(old[0], city, old[1], CF), (new[0], city, new[1], CT)]
            self._now[city] = new
        return rows

    def wrong(self, entry: DatasetEntry, runtime: SparkRuntime, rows: int) -> tuple[list[str], int]:
        """What does not hold of some rows of a dataset, and how many of them were told exactly.

        Args:
            entry: one of :attr:`made`.
            runtime: runs the queries again.
            rows: how many rows are looked at, chosen at random.
        """
        count = (entry.dataset.state().last_offset or -1) + 1
        found: list[str] = []
        exact = 0
        for offset in sorted(self.random.sample(range(count), min(rows, count))):
            steps = trace_back(self.deriving.workspace, entry, [(offset, offset)], runtime, Reporter())
            exact += all(step.exact for step in steps)
            said = check_trace(self.deriving.workspace, entry, steps, self.deriving.engine, Reporter())
            feeds = [(alias, runs) for step in steps for alias, _, runs in step.feeds]
            found += [f"{entry.alias} {offset} {feeds}: {line}" for line in said
                      if not line.startswith("yes: ")]  # fmt: skip
        return found, exact
