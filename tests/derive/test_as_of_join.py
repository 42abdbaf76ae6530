"""As-of joins: each row with the version of its key at its event time, however the inputs were taken in."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from odf_engine.data.changelog import OPERATION, POSITION
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.engines.contract import QueryInput
from odf_engine.errors import InvalidQuery, OdfError, Unsupported
from odf_engine.metadata.model import DatasetVocabulary, Sql, SqlQueryStep, TemporalTable
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.stateful.as_of_join import DUE, IS_OLDEST, TIME, add_due_time, retained_versions
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import DATA, Deriving
from tests.derive.test_stateful import CF, CT, A, R, Step, hashed
from tests.log_lines import LogLines

STEPS: list[Step] = [
    ("trades", [(1, "a", 1), (2.5, "a", 2), (2, "b", 3)], None),
    ("rates", [(1.5, "a", 10), (2, "b", 20), (3, "a", 11), (2.25, "a", 12)], None),
    ("trades", [(3, "a", 4), (3.5, "c", 5), (1.75, "a", 6), (4, "b", 7)], None),  # 1.75 is late
    ("rates", [(2.75, "a", 15), (3.75, "b", 20, R), (6, "a", 13)], None),  # 2.75 is: 3 came out with 11
    ("trades", [(5, "a", 8), (7, "a", 9)], None),
    ("rates", [(6.5, "a", 13, CF), (6.5, "a", 14, CT), (5, "z", 0)], "2024-01-08T00:00:00Z"),
]


def fed(
    deriving: Deriving, query: str, steps: Sequence[Step], lines: LogLines | None = None, **keys: str
) -> list[DatasetEntry]:
    """Return datasets of one query: one read its inputs at once, the other one in parts.

    With ``lines``, which receives the warnings of the first, the other one reads after every second step.
    """
    names = list(dict.fromkeys(step[0] for step in steps))
    roots = {name: deriving.root(name) for name in names}
    once, parts = (deriving.derivative(query, *names, name=name, **keys) for name in ("once", "parts"))
    for number, (name, rows, watermark) in enumerate(steps):
        deriving.rows(roots[name], *rows, watermark=watermark)
        if number == len(steps) - 1 or (number % 2 if lines else number == len(steps) - 3):
            deriving.run(parts)
    deriving.run(once, lines)
    return [once, parts]


def days(deriving: Deriving, entry: DatasetEntry, *columns: str) -> list[tuple[object, ...]]:
    """All rows, with the event time as day of January."""
    rows = deriving.result(entry, "event_time", *columns)
    return [((row[0].timestamp() - 1704067200) / 86400 + 1, *row[1:]) for row in rows]


@pytest.mark.complete
def test_rows_have_the_version_at_their_time(deriving: Deriving) -> None:
    query = (
        "SELECT t.*, r.x AS rate FROM trades AS t -- FOR SYSTEM_TIME AS OF is said below\n"
        "LEFT JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city"
    )
    made = fed(deriving, query, STEPS, lines := LogLines(), rates="city")
    assert days(deriving, made[0], "op", "city", "x", "rate") == [
        (1, A, "a", 1, None), (2, A, "b", 3, 20), (2.5, A, "a", 2, 12),
        (1.75, A, "a", 6, 10),
        (3, A, "a", 4, 11), (3.5, A, "c", 5, None), (4, A, "b", 7, None),
        (5, A, "a", 8, 11), (7, A, "a", 9, 14),
    ]  # fmt: skip
    assert lines.warnings == []
    assert len({hashed(deriving, each) for each in made}) == 1


def test_pending_rows_are_counted(deriving: Deriving) -> None:
    rates, trades = deriving.root("rates"), deriving.root("trades")
    made = deriving.derivative(
        "SELECT t.event_time, t.x * r.x AS y FROM trades t\n"
        "JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city",
        "trades", "rates", rates="city",
    )  # fmt: skip
    deriving.rows(rates, (1, "a", 10))
    deriving.rows(trades, (2, "a", 1), (3, "a", 2))
    deriving.run(made, said := LogLines())
    (line,) = [each for each in said.lines if "pending" in each]
    assert line.startswith("pending rows of the join with 'rates': 2,") and "2024-01-01T00:00:00Z" in line
    deriving.rows(rates, watermark="2024-01-03T00:00:00Z")
    deriving.run(made, said := LogLines())
    assert not any("pending" in each for each in said.lines)
    assert deriving.result(made, "y") == [(10,), (20,)]


@pytest.mark.complete
def test_consecutive_joins_keep_corrections(deriving: Deriving) -> None:
    query = (
        "SELECT t.event_time, t.city, t.x * r.x AS y, z.event_time AS since FROM trades t\n"
        "JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON r.city = t.city AND r.x > 0\n"
        "JOIN zones FOR SYSTEM_TIME AS OF t.event_time AS z ON t.city = z.city AND z.x = r.x\n"
        "WHERE t.x * r.x <> 21"
    )
    steps: list[Step] = [
        ("rates", [(1, "a", 2), (1, "b", 3), (1, "c", -1)], None),
        ("zones", [(1, "a", 2), (1, "b", 3), (1, "c", -1), (2, "a", 9)], None),
        ("trades", [(1, "a", 5), (1.5, "b", 7), (1.5, "c", 7)], None),
        ("trades", [(1, "a", 5, CF), (3, "a", 6, CT), (1.5, "b", 7, CF), (2, "b", 8, CT)], None),
        ("trades", [(2, "b", 8, R)], "2024-01-08T00:00:00Z"),
        ("rates", [], "2024-01-05T00:00:00Z"),
        ("zones", [(5, "q", 0)], None),
    ]
    made = fed(deriving, query, steps, rates="city", zones="city, x")
    assert days(deriving, made[0], "op", "city", "y") == [
        (1, A, "a", 10),
        (2, A, "b", 24),  # what it corrects is not among the rows
        (2, R, "b", 24), (1, CF, "a", 10), (3, CT, "a", 12),
    ]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1


@pytest.mark.complete
def test_corrections_of_emitted_rows_repeat_their_version(deriving: Deriving) -> None:
    query = (
        "SELECT t.event_time, t.city, t.x * r.x AS y, part FROM trades t\n"
        "JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city\n"
        "LATERAL VIEW explode(array(1, 2)) AS part"
    )
    steps: list[Step] = [
        ("rates", [(1, "a", 10), (2.5, "a", 20), (3, "q", 0)], None),
        ("trades", [(2, "a", 1), (3, "a", 2)], None),
        ("rates", [(5, "q", 0)], None),
        ("trades", [(2, "a", 1, CF), (4, "a", 5, CT), (5, "q", 0)], None),
    ]
    roots = {name: deriving.root(name) for name in ("rates", "trades")}
    made = deriving.derivative(query, *roots, rates="city")
    for number, (name, rows, watermark) in enumerate(steps):
        deriving.rows(roots[name], *rows, watermark=watermark)
        if number in (2, 3):
            deriving.run(made)
    assert days(deriving, made, "op", "y", "part")[:8] == [
        (2, A, 10, 1), (2, A, 10, 2), (3, A, 40, 1), (3, A, 40, 2),
        (2, R, 10, 1), (2, R, 10, 2), (4, A, 100, 1), (4, A, 100, 2),
    ]  # fmt: skip


@pytest.mark.complete
def test_retractions_of_late_rows_repeat_the_version_that_they_had(deriving: Deriving) -> None:
    query = (
        "SELECT t.event_time, t.city, t.x, r.x AS rate FROM trades t\n"
        "JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city"
    )
    steps: list[Step] = [
        ("rates", [(1, "a", 10), (2, "a", 20), (3, "a", 30), (5, "q", 0)], None),
        ("trades", [(4, "a", 1)], None),
        ("trades", [(1.5, "a", 7), (1.5, "a", 7)], None),  # late
        ("rates", [(3.5, "a", 35), (6, "q", 0)], None),  # late: 4 came out with 30
        ("trades", [(4.5, "a", 2)], None),
        ("trades", [(4, "a", 1, R), (1.5, "a", 7, CF), (4.75, "a", 8, CT)], None),
        ("trades", [(1.5, "a", 7, R), (4.5, "a", 2, R), (5, "q", 3)], None),
    ]
    made = fed(deriving, query, steps, rates="city")
    expected = [(1, 30), (7, 10), (7, 10), (1, 30), (1, 35), (2, 35), (1, 35), (7, 10), (8, 35), (7, 10),
                (2, 35), (3, 0)]  # fmt: skip
    assert [sorted(deriving.result(each, "x", "rate")) for each in made] == [sorted(expected)] * 2
    assert days(deriving, made[1], "op", "x", "rate")[6:] == [
        (4, R, 1, 35), (1.5, CF, 7, 10), (4.75, CT, 8, 35), (1.5, R, 7, 10), (4.5, R, 2, 35), (5, A, 3, 0),
    ]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1


@pytest.mark.complete
def test_rows_corrected_to_an_earlier_time_can_be_corrected_again(deriving: Deriving) -> None:
    query = (
        "SELECT t.event_time, t.city, t.x, r.x AS rate FROM trades t\n"
        "LEFT JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city"
    )
    steps: list[Step] = [
        ("rates", [(1, "a", 10)], None),
        ("trades", [(3, "a", 1)], None),
        ("trades", [(3, "a", 1, CF), (2, "a", 2, CT)], None),
        ("trades", [(2, "a", 2, CF), (2, "a", 3, CT)], None),
        ("rates", [(2.5, "a", 20)], None),  # the watermark is between the two times
        ("trades", [], "2024-01-05T00:00:00Z"),
        ("rates", [(5, "q", 0)], None),
    ]
    made = fed(deriving, query, steps, rates="city")
    assert days(deriving, made[0], "op", "x", "rate") == [
        (2, A, 2, 10), (2, CF, 2, 10), (2, CT, 3, 10), (3, A, 1, 20), (3, R, 1, 20),
    ]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1


def test_old_side_of_a_correction_waits_for_the_new_side(runtime: SparkRuntime) -> None:
    rows = [(3, 0, CF), (2, 1, CT), (1, 2, CF), (4, 3, CT), (1, 4, R), (5, 5, A)]
    values = ", ".join(f"(timestamp_millis({time}), {place}L, {op})" for time, place, op in rows)
    frame = runtime.session().sql(f"SELECT * FROM VALUES {values} AS v({TIME}, {POSITION}, {OPERATION})")

    def due(*, pairs: bool) -> list[int]:
        found = add_due_time(frame, pairs=pairs).sort(POSITION)
        return [each[0] for each in found.selectExpr(f"unix_millis({DUE})").collect()]

    assert due(pairs=False) == [3, 2, 1, 4, 1, 5]
    assert due(pairs=True) == [3, 2, 4, 4, 1, 5]


@pytest.mark.complete
def test_windows_may_follow_an_as_of_join(deriving: Deriving) -> None:
    query = (
        "SELECT window.start AS event_time, t.city, sum(t.x * r.x) AS s, count(*) AS n FROM trades t\n"
        "JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city\n"
        "GROUP BY window(t.event_time, '1 day'), t.city"
    )
    steps: list[Step] = [
        ("rates", [(1, "a", 10), (1.75, "a", 20), (1, "b", 1)], "2024-01-03T00:00:00Z"),
        ("trades", [(1.25, "a", 1), (1.5, "a", 2), (1.75, "a", 1), (2.5, "b", 4)], None),
        ("trades", [(1.75, "a", 1, R), (2.75, "a", 3), (4, "b", 2)], None),
        ("rates", [(3.5, "b", 2)], "2024-01-06T00:00:00Z"),
    ]
    made = fed(deriving, query, steps, rates="city")
    assert days(deriving, made[0], "op", "city", "s", "n") == [
        (1, A, "a", 50, 3), (2, A, "a", 60, 1), (2, A, "b", 4, 1)
    ]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1


def test_newest_version_up_to_the_watermark_is_retained(runtime: SparkRuntime) -> None:
    random = Random(1)
    rows = sorted((random.choice("abc"), random.randrange(6), place) for place in range(30))
    # Versions before the first one of this key have been dropped earlier.
    rows += [("d", 1, 30), ("e", 5, 31)]
    expected: list[tuple[str, int, int, bool]] = []
    for key in "abcde":
        past = [row for row in rows if row[0] == key and row[1] <= 3]
        expected += [(*row, len(past) > 1 or key == "d") for row in past[-1:]]
        expected += [(*row, False) for row in rows if row[0] == key and row[1] > 3]
    values = ", ".join(
        f"('{key}', timestamp_millis({time}), {place}, {key == 'd'})" for key, time, place in rows
    )
    names = f"k0, {TIME}, {POSITION}, {IS_OLDEST}"
    versions = runtime.session().sql(f"SELECT * FROM VALUES {values} AS v({names})")
    found = retained_versions(versions, ["k0"], until=3).sort("k0", TIME, POSITION)
    got = [(*row,) for row in found.selectExpr("k0", f"unix_millis({TIME})", POSITION, IS_OLDEST).collect()]
    assert got == expected
    assert retained_versions(versions, ["k0"], until=None) is versions


AS_OF = "SELECT t.event_time, r.x FROM trades t JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r"


@pytest.mark.parametrize(
    ("query", "kind", "parts"),
    [
        (f"{AS_OF} ON t.x = r.x", InvalidQuery, ["'city' of 'rates'", "ON t.city = rates.city"]),
        (AS_OF.replace("t.event_time AS r", "date(t.event_time) AS r") + " ON t.city = r.city", InvalidQuery,
         ["event time column", "ON t.currency"]),
        (f"{AS_OF} USING (city)", InvalidQuery, ["with USING", "ON t.currency = r.currency"]),
        (f"{AS_OF} ON t.city = r.town", InvalidQuery, ["column `r`.`town` not found"]),
        (AS_OF.replace("t.event_time AS r", "t.x AS r") + " ON t.city = r.city", InvalidQuery, ["event"]),
        (AS_OF.replace("JOIN rates", "JOIN trades") + " ON t.city = r.city", InvalidQuery,
         ["'trades'", "not a temporal table", "primaryKey"]),
        ("SELECT * FROM rates FOR SYSTEM_TIME AS OF trades.event_time", InvalidQuery, ["right of a JOIN"]),
        (f"{AS_OF} ON t.city = r.city WHERE t.op <> 2".replace("SELECT", "SELECT t.op + 1 AS was,"),
         Unsupported, ["column 'was'", "operation", "remove it"]),
        (f"{AS_OF} ON t.city = r.city".replace("trades t", "(SELECT DISTINCT * FROM trades) t"),
         Unsupported, ["DISTINCT", "separate dataset"]),
    ],
)  # fmt: skip
def test_invalid_as_of_joins_are_refused(
    deriving: Deriving, query: str, kind: type[OdfError], parts: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        validated(deriving, query, TemporalTable("rates", ["city"]))
    said = f"{caught.value} {caught.value.hint}"
    for part in parts:
        assert part in said, said


@pytest.mark.parametrize(("name", "key"), [("prices", "city"), ("rates", "town")])
def test_temporal_tables_are_inputs_with_a_key(deriving: Deriving, name: str, key: str) -> None:
    with pytest.raises(InvalidQuery, match=rf"'{name}' is not an input|no column '{key}'"):
        validated(deriving, f"{AS_OF} ON t.city = r.city", TemporalTable(name, [key]))
    with pytest.raises(InvalidQuery, match=rf"'{name}' is not an input|no column '{key}'"):
        validated(deriving, "SELECT * FROM trades", TemporalTable(name, [key]))


def test_join_state_is_reusable_only_if_selected_columns_change(deriving: Deriving) -> None:
    table, whole = TemporalTable("rates", ["city"]), f"{AS_OF} ON t.city = r.city"
    state = validated(deriving, whole, table)
    assert state == validated(deriving, whole.replace("r.x FROM", "r.x + t.x AS x FROM"), table)
    for new in (
        whole.replace("trades t", "(SELECT * FROM trades WHERE x > 0) t"),
        whole.replace("JOIN", "LEFT JOIN"),
        f"{whole} AND r.x > 0",
        f"SELECT DISTINCT event_time, x FROM ({whole})",
    ):
        assert validated(deriving, new, table) not in (state, None)


def validated(deriving: Deriving, query: str, table: TemporalTable) -> str | None:
    """Looks at a query over empty inputs: what its state depends on."""
    vocab = DatasetVocabulary("offset", "op", "system_time", "event_time")
    inputs = [QueryInput(name, slice_schema(DATA, vocab), vocab) for name in ("trades", "rates")]
    query_of = Sql(engine="spark", queries=[SqlQueryStep(query=query)], temporal_tables=[table])
    return deriving.engine.validate(query_of, inputs, vocab, None).state
