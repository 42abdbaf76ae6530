"""As-of joins with late rows and corrections on both sides, compared with an oracle."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.derive.provenance.trace import Tracer
from odf_engine.derive.verify.recompute import Recomputed, recompute_dataset
from odf_engine.metadata.model import SetDataSchema
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import DATA, Deriving
from tests.derive.test_replay import check
from tests.derive.test_stateful import CF, CT, A, R
from tests.log_lines import LogLines

INNER = (
    "SELECT t.event_time, t.city, t.x, r.x AS rate FROM trades t\n"
    "JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city"
)
OUTER = INNER.replace("JOIN", "LEFT JOIN")
GROUPED = (
    "SELECT max(t.event_time) AS event_time, t.city, count(*) AS n, sum(r.x) AS s FROM trades t\n"
    "JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city GROUP BY t.city"
)
Row = tuple[Any, ...]
Version = tuple[float, int, int | None]
"""The first day, the offset and the value of a version; None ends the key."""


def latest_state(rows: list[Row]) -> Counter[Row]:
    """Return the rows that a changelog leaves; the operation is the last value of each row."""
    state: Counter[Row] = Counter()
    for *values, operation in rows:
        state[tuple(values)] += 1 if operation in (A, CT) else -1
    assert min(state.values(), default=0) >= 0
    return +state


def versions_of(rows: list[Row]) -> dict[str, list[Version]]:
    """Return the versions of each key of a temporal table."""
    versions: dict[str, list[Version]] = {}
    for offset, (day, city, value, operation) in enumerate(rows):
        known = versions.setdefault(city, [])
        if operation == CF:
            new_day, _, new_value, _ = rows[offset + 1]
            if new_day < day:
                known.append((day, offset, new_value))
        else:
            known.append((day, offset, None if operation == R else value))
    return versions


def look_up(versions: dict[str, list[Version]], city: str, day: float) -> int | None:
    return max((each for each in versions.get(city, []) if each[0] <= day), default=(0, 0, None))[2]


def random_changes(random: Random, live: list[Row], days: int) -> list[Row]:
    """Return random additions, retractions and corrections, and apply them to the live rows."""
    changes: list[Row] = []
    for _ in range(random.randint(1, 4)):
        new = (random.randrange(1, days * 4) / 4, random.choice("abc"), random.randrange(1, 9))
        kind = random.choice([A, A, A, R, CF]) if live else A
        if kind == A:
            live.append(new)
            changes.append((*new, A))
            continue
        old = live.pop(random.randrange(len(live)))
        changes.append((*old, kind))
        if kind == CF:
            day = old[0] if random.random() < 0.5 else new[0]
            corrected = (day, old[1], new[2])
            live.append(corrected)
            changes.append((*corrected, CT))
    return changes


def expected_rows(query: str, history: dict[str, list[Row]]) -> Counter[Row]:
    rates = versions_of(history["rates"])
    found: Counter[Row] = Counter()
    for (day, city, x), count in latest_state(history["trades"]).items():
        rate = look_up(rates, city, day)
        if query == OUTER or rate is not None:
            found[day, city, x, rate] += count
    return found


def days(deriving: Deriving, entry: DatasetEntry, *columns: str) -> list[Row]:
    """Return all rows with the event time as a day of January, these columns and the operation."""
    if not entry.dataset.slices():
        return []
    rows = deriving.result(entry, "event_time", *columns, "op")
    return [((row[0].timestamp() - 1704067200) / 86400 + 1, *row[1:]) for row in rows]


def recompute(deriving: Deriving, entry: DatasetEntry, runtime: SparkRuntime) -> Recomputed:
    return recompute_dataset(deriving.workspace, entry, deriving.engine, runtime.session(), Reporter())


@pytest.mark.parametrize("query", [OUTER, GROUPED], ids=["outer", "grouped"])
@pytest.mark.complete
def test_latest_state_equals_the_oracle(deriving: Deriving, query: str) -> None:
    random = Random(1)
    names = ["rates", "trades"]
    roots = {name: deriving.root(name) for name in names}
    once, parts = (deriving.derivative(query, *names, name=name, rates="city") for name in ("once", "parts"))
    history: dict[str, list[Row]] = {name: [] for name in names}
    live: dict[str, list[Row]] = {name: [] for name in names}
    for step in range(7):
        name = random.choice(names)
        changes = random_changes(random, live[name], 2 + step // 2)
        history[name] += changes
        deriving.rows(roots[name], *changes)
        if step % 3 == 2:
            deriving.run(parts)
    for root in roots.values():
        deriving.rows(root, watermark="2024-02-01T00:00:00Z")
    deriving.run(parts)
    deriving.run(once)
    if query == GROUPED:
        joined = expected_rows(INNER, history)
        groups = {row[1] for row in joined}
        expected = Counter(
            (
                max(row[0] for row in joined if row[1] == city),
                city,
                sum(count for row, count in joined.items() if row[1] == city),
                sum(row[3] * count for row, count in joined.items() if row[1] == city),
            )
            for city in groups
        )
        columns = ["city", "n", "s"]
    else:
        expected, columns = expected_rows(query, history), ["city", "x", "rate"]
    for entry in (once, parts):
        assert latest_state(days(deriving, entry, *columns)) == expected, entry.alias


def test_correction_of_a_trade_in_a_later_pull_has_the_rate_at_its_time(deriving: Deriving) -> None:
    trades, rates = deriving.root("trades"), deriving.root("rates")
    entry = deriving.derivative(OUTER, "trades", "rates", rates="city")
    deriving.rows(rates, *((day, "a", day) for day in (1, 2, 3, 4)))
    deriving.rows(trades, (1, "a", 10), (2, "a", 11), (3, "a", 12))
    deriving.run(entry)
    deriving.rows(trades, (4, "a", 13))
    deriving.run(entry)
    deriving.rows(trades, (2, "a", 11, CF), (2, "a", 99, CT), (1, "a", 20))
    deriving.run(entry, lines := LogLines())
    assert days(deriving, entry, "x", "rate")[4:] == [(1, 20, 1, A), (2, 11, 2, CF), (2, 99, 2, CT)]
    assert lines.warnings == []


def test_late_rate_corrects_emitted_trades(deriving: Deriving) -> None:
    trades, rates = deriving.root("trades"), deriving.root("rates")
    entry = deriving.derivative(OUTER, "trades", "rates", rates="city")
    deriving.rows(rates, (1, "a", 10), (9, "b", 1))
    deriving.rows(trades, (2, "a", 1), (3, "a", 2), (4, "a", 3))
    deriving.run(entry)
    deriving.rows(rates, (3, "a", 30), (4, "a", 10))
    deriving.run(entry)
    assert days(deriving, entry, "x", "rate")[3:] == [(3, 2, 10, CF), (3, 2, 30, CT)]
    deriving.rows(rates, (1, "a", 10, R))
    deriving.run(entry)
    assert days(deriving, entry, "x", "rate")[5:] == [(2, 1, 10, CF), (2, 1, None, CT)]


@pytest.mark.complete
def test_corrections_after_compaction_and_a_new_column_have_the_rate_at_their_time(
    deriving: Deriving, runtime: SparkRuntime
) -> None:
    trades, rates = deriving.root("trades"), deriving.root("rates")
    entry = deriving.derivative(OUTER, "trades", "rates", rates="city")
    for day in (1, 2, 3):
        deriving.rows(rates, (day, "a", day * 10))
        deriving.rows(trades, (day, "a", day))
        deriving.run(entry)
    for root in (rates, trades):
        compact(root.dataset, CompactionPolicy(), Reporter())
    state = trades.dataset.state()
    wider = slice_schema(DATA.append(pa.field("note", pa.string())), state.vocabulary)
    deriving.commit(trades, [SetDataSchema(schema=encode_schema(wider))])
    deriving.rows(trades, (2, "a", 2, CF), (2, "a", 7, CT), (1, "a", 9))
    deriving.run(entry)
    assert days(deriving, entry, "x", "rate")[3:] == [(1, 9, 10, A), (2, 2, 20, CF), (2, 7, 20, CT)]
    assert recompute(deriving, entry, runtime).is_equal
    assert check(deriving, entry).findings == []
    found = Tracer(deriving.workspace, lambda _: runtime, Reporter()).trace(entry, [(5, 5)])
    assert {feed.alias: feed.runs for feed in found.feeds} == {"trades": [(3, 4)], "rates": [(1, 1)]}


@pytest.mark.complete
def test_row_corrected_by_a_late_rate_is_traced(deriving: Deriving, runtime: SparkRuntime) -> None:
    trades, rates = deriving.root("trades"), deriving.root("rates")
    entry = deriving.derivative(OUTER, "trades", "rates", rates="city")
    deriving.rows(rates, (1, "a", 10), (9, "b", 1))
    deriving.rows(trades, (2, "a", 1), (3, "a", 2))
    deriving.run(entry)
    deriving.rows(rates, (3, "a", 30))
    deriving.run(entry)
    assert days(deriving, entry, "x", "rate")[2:] == [(3, 2, 10, CF), (3, 2, 30, CT)]
    tracer = Tracer(deriving.workspace, lambda _: runtime, Reporter())
    both = [(0, 0), (2, 2)]  # the versions of a -C and its +C
    for offset, rates_of_row in ((1, [(0, 0)]), (2, both), (3, both)):
        found = tracer.trace(entry, [(offset, offset)])
        feeds = {feed.alias: feed.runs for feed in found.feeds}
        assert (found.exact, feeds) == (True, {"trades": [(1, 1)], "rates": rates_of_row})
