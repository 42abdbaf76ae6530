"""Queries that keep state: the same rows however the inputs were taken in, corrections undone, late rows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import allowed_lateness
from odf_engine.data.digest import LogicalHasher
from odf_engine.derive.plan import plan_transaction
from odf_engine.derive.run import make_request
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.engines.stateful import checkpoint
from odf_engine.errors import BadData, Cancelled, InvalidQuery, OdfError, Unsupported
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot, ExecuteTransform
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.stateful import incremental
from odf_engine.spark.stateful.incremental import IncrementalPlanner
from odf_engine.workspace.dataset_folders import list_late_rows
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving
from tests.log_lines import LogLines
from tests.waiting import run_with_timeout, wait_until

A, R, CF, CT = 0, 1, 2, 3
Step = tuple[str, list[tuple[Any, ...]], str | None]
"""One commit: to which input, rows, and a watermark."""


def fed(
    deriving: Deriving,
    query: str,
    steps: Sequence[Step],
    *inputs: str,
    reporter: Reporter | None = None,
    parts: bool = False,
    names: Sequence[str] = ("once", "each", "parts"),
) -> list[DatasetEntry]:
    """Return datasets of one query: one read its inputs at once, the next one after every second step.

    With ``parts``, the second one reads after each step, and a third one in three parts.
    """
    roots = {name: deriving.root(name) for name in inputs or ("input",)}
    made = [deriving.derivative(query, *inputs, name=name) for name in names[: 3 if parts else 2]]
    for number, (name, rows, watermark) in enumerate(steps):
        deriving.rows(roots[name], *rows, watermark=watermark)
        if parts or number % 2 or number == len(steps) - 1:
            deriving.run(made[1])
        if parts and number in (len(steps) // 3, len(steps) - 2, len(steps) - 1):
            deriving.run(made[2])
    deriving.run(made[0], reporter)
    return made


def hashed(deriving: Deriving, entry: DatasetEntry, *, ordered: bool = True) -> str:
    """The logical hash of all rows, without what differs between two datasets."""
    table = deriving.table(entry).drop_columns(["system_time"] if ordered else ["system_time", "offset"])
    if not ordered:
        table = table.sort_by([(name, "ascending") for name in table.column_names])
    with LogicalHasher(table.schema) as hasher:
        for batch in table.combine_chunks().to_batches():
            hasher.update(batch)
        return str(hasher.finish())


START, END = (1, 1, 2), (9999, 12, 30)
DAYS: list[Step] = [
    ("input", [(1, "a", 1), (1.5, "b", 2)], None),
    ("input", [(1.75, "a", 5), (1.75, "a", 5), (2.5, "a", 7)], None),
    ("input", [(1.25, "a", 100), (2.75, "b", 3)], None),  # the first came too late
    ("input", [(6, "a", 1)], "2024-01-09T00:00:00Z"),
]


def test_tumbling_windows_drop_and_record_late_rows(deriving: Deriving) -> None:
    query = (
        "SELECT window.start AS event_time, city, sum(x) AS s, count(*) AS n, count(DISTINCT x) AS d,\n"
        "avg(CAST(x AS DECIMAL(9, 2))) AS a, avg(x) FILTER (WHERE x > 1) AS f, max(x) AS m\n"
        "FROM input GROUP BY window(event_time, '1 day'), city"
    )
    lines = LogLines()
    made = fed(deriving, query, DAYS, reporter=lines)
    assert lines.warnings == ["late rows dropped: 1 (input: 1)"]
    assert deriving.result(made[0], "op", "city", "s", "n", "d", "m") == [
        (A, "a", 11, 3, 2, 5), (A, "b", 2, 1, 1, 2),
        (A, "a", 7, 1, 1, 7), (A, "b", 3, 1, 1, 3),
        (A, "a", 1, 1, 1, 1),
    ]  # fmt: skip
    average, filtered = deriving.result(made[0], "a", "f")[0]
    assert (str(average), filtered) == ("3.666667", 5.0)
    assert len({hashed(deriving, each) for each in made}) == 1
    (once,), (each,) = (list_late_rows(entry.dataset) for entry in made[:2])
    assert (once.block, once.input, once.rows) == (str(made[0].dataset.head()), "input", 1)
    late = pq.read_table(once.path)
    assert late.to_pylist() == pq.read_table(each.path).to_pylist()
    assert late.select(["offset", "city", "x"]).to_pylist() == [{"offset": 5, "city": "a", "x": 100}]
    # The chain says which state each block left, and goes on from it.
    event = deriving.newest(made[1])
    assert event.new_checkpoint is not None and event.prev_checkpoint != event.new_checkpoint.physical_hash


def test_windows_support_event_times_from_year_1_to_9999(deriving: Deriving) -> None:
    first, last = (date(*parts).toordinal() - date(2024, 1, 1).toordinal() + 1 for parts in (START, END))
    before_1970 = date(1969, 12, 31).toordinal() - date(2024, 1, 1).toordinal() + 1
    steps: list[Step] = [
        ("input", [(first, "a", 1), (first + 0.5, "a", 2)], None),
        ("input", [(before_1970, "a", 4), (before_1970 + 0.75, "a", 8), (before_1970 + 1, "b", 16)], None),
        ("input", [(before_1970 + 1.25, "b", 32)], None),
        ("input", [(last, "a", 64)], None),
    ]
    windows = "SELECT window.start AS event_time, city, sum(x) AS x FROM input GROUP BY window, city"
    made = fed(deriving, windows.replace("BY window", "BY window(event_time, '1 day')"), steps)
    assert deriving.result(made[0], "city", "x") == [("a", 3), ("a", 12), ("b", 48)]
    assert len({hashed(deriving, each) for each in made}) == 1
    times = deriving.table(made[0]).column("event_time").cast(pa.int64()).to_pylist()
    assert times == [
        (each - 1) * 86_400_000 + 1704067200000 for each in (first, before_1970, before_1970 + 1)
    ]


def test_windows_are_in_utc_for_event_times_of_any_zone(deriving: Deriving) -> None:
    midnight = 1704063600000  # of 2024-01-01 in Berlin; 23:00 UTC
    for name, zone in (("berlin", "Europe/Berlin"), ("utc", "UTC")):
        kind = pa.timestamp("ms", zone)
        root = deriving.root(name, pa.schema([("event_time", kind), ("x", pa.int64())]))
        times = pa.array([midnight, midnight + 3_600_000, midnight + 48 * 3_600_000], kind)
        columns = {"event_time": times, "x": [1, 2, 4], "op": pa.array([0, 0, 0], pa.int32())}
        deriving.batch(root, pa.record_batch(columns), midnight + 72 * 3_600_000)
    made = deriving.derivative(
        "SELECT window.start AS event_time, count(*) AS n, sum(x) AS s\n"
        "FROM (SELECT event_time, x FROM berlin UNION ALL SELECT event_time, x FROM utc)\n"
        "GROUP BY window(event_time, '1 day')",
        "berlin", "utc",
    )  # fmt: skip
    deriving.run(made)
    found = [(row[0].isoformat()[:19], *row[1:]) for row in deriving.result(made, "event_time", "n", "s")]
    assert found == [
        ("2023-12-31T00:00:00", 2, 2), ("2024-01-01T00:00:00", 2, 4), ("2024-01-02T00:00:00", 2, 8),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT window.end AS event_time, sum(x) AS s FROM input "
            "GROUP BY window(event_time, '2 days', '1 day')",
            # The row that came late still belongs to the window that had not ended.
            [(2, 13), (3, 123), (4, 10), (7, 1), (8, 1)],
        ),
        (
            "SELECT session_window.end AS event_time, sum(x / 3) AS s FROM input "
            "GROUP BY session_window(event_time, '12 hours'), city",
            [(1.5, 1 / 3), (2, 2 / 3), (2.25, 10 / 3), (3, 7 / 3), (3.25, 1.0), (6.5, 1 / 3)],
        ),
    ],
)
@pytest.mark.complete(after=1)
def test_sliding_and_session_windows_do_not_depend_on_increments(
    deriving: Deriving, query: str, expected: list[Any]
) -> None:
    made = fed(deriving, query, DAYS)
    start = 1704067200
    rows = [
        ((row[0].timestamp() - start) / 86400 + 1, row[1])
        for row in deriving.result(made[0], "event_time", "s")
    ]
    assert rows == [(day, pytest.approx(value)) for day, value in expected]
    assert len({hashed(deriving, each) for each in made}) == 1


def test_a_final_order_by_orders_the_rows_of_a_transaction(deriving: Deriving) -> None:
    query = (
        "SELECT window.start AS event_time, sum(x) AS s, array(city) AS c FROM input\n"
        "GROUP BY window(event_time, '1 day'), city ORDER BY c[0] DESC, length(s) NULLS LAST"
    )
    root, made = deriving.root(), deriving.derivative(query)
    deriving.rows(root, *DAYS[0][1], *DAYS[1][1])
    deriving.rows(root, *DAYS[2][1])
    deriving.run(made)
    deriving.rows(root, *DAYS[3][1], watermark=DAYS[3][2])
    deriving.run(made)
    # 'a' of the first day had ended when 3 came in; the others ended with the second transaction.
    assert deriving.result(made, "s", "c") == [(2, ["b"]), (11, ["a"]), (3, ["b"]), (7, ["a"]), (1, ["a"])]


def test_groups_without_a_window_are_corrected(deriving: Deriving) -> None:
    query = (
        "SELECT max(event_time) AS event_time, city, sum(x) AS s, count(*) AS n FROM input\n"
        "GROUP BY city HAVING count(*) < 4"
    )
    steps: list[Step] = [
        ("input", [(1, "a", 1), (2, "b", 2)], None),
        ("input", [(3, "a", 5), (4, "c", 7)], None),
        ("input", [(5, "b", 2, R), (6, "c", 7, CF), (6, "c", 8, CT)], None),
        ("input", [(7, "a", 1), (7, "a", 1), (8, "b", 9), (9, "c", 0)], None),
    ]
    made = fed(deriving, query, steps)
    assert deriving.result(made[0], "op", "city", "s", "n") == [
        (A, "a", 1, 1), (A, "b", 2, 1),
        (CF, "a", 1, 1), (CT, "a", 6, 2), (A, "c", 7, 1),
        (R, "b", 2, 1), (CF, "c", 7, 1), (CT, "c", 8, 1),
        (R, "a", 6, 2), (A, "b", 9, 1), (CF, "c", 8, 1), (CT, "c", 8, 2),
    ]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1


JOINED: list[Step] = [
    ("l", [(1, "a", 1), (1.25, "b", 2), (1.5, "c", 3)], None),
    ("r", [(1.125, "a", 10), (1.25, "z", 11)], None),
    ("l", [(2, "a", 4), (9, "q", 1)], None),
    ("r", [(1.75, "c", 12), (2.125, "a", 13), (9, "p", 1)], None),
]
BOUND = "ON l.city = r.city AND r.event_time BETWEEN l.event_time AND l.event_time + INTERVAL 12 HOURS"


def test_time_bounded_left_join_emits_unmatched_rows(deriving: Deriving) -> None:
    query = f"SELECT l.event_time, l.city, l.x, r.x AS y FROM l LEFT JOIN r {BOUND}"
    made = fed(deriving, query, JOINED, "l", "r")
    found = deriving.result(made[0], "city", "x", "y")
    assert found == [("a", 1, 10), ("b", 2, None), ("c", 3, 12), ("a", 4, 13)]
    assert len({hashed(deriving, each) for each in made}) == 1


@pytest.mark.complete
def test_joins_deduplication_and_windows_can_be_chained(deriving: Deriving) -> None:
    query = (
        f"WITH pairs AS (SELECT l.event_time, l.city, r.x FROM l JOIN r {BOUND}),\n"
        "different AS (SELECT DISTINCT event_time, city, x FROM pairs),\n"
        "half AS (SELECT window AS w, city, sum(x) AS s FROM different\n"
        "GROUP BY window(event_time, '12 hours'), city)\n"
        "SELECT window.start AS event_time, sum(s) AS s, count(*) AS n FROM half GROUP BY window(w, '1 day')"
    )
    made = fed(deriving, query, JOINED, "l", "r")
    assert deriving.result(made[0], "s", "n") == [(22, 2), (13, 1)]
    assert len({hashed(deriving, each) for each in made}) == 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT DISTINCT event_time, city FROM input",
        "SELECT event_time, city FROM (SELECT *, row_number() OVER\n"
        "(PARTITION BY city, window(event_time, '1 day') ORDER BY offset) AS n FROM input) WHERE n = 1",
    ],
)
@pytest.mark.complete(after=1)
def test_duplicate_rows_are_dropped_across_increments(deriving: Deriving, query: str) -> None:
    steps: list[Step] = [
        ("input", [(1, "a", 1), (1.5, "a", 2), (1.5, "b", 1)], None),
        ("input", [(1.5, "a", 3), (1.75, "c", 3)], None),
        ("input", [(1.75, "c", 4), (2.5, "a", 1), (2.5, "a", 2)], None),
    ]
    made = fed(deriving, query, steps)
    cities = [row[0] for row in deriving.result(made[0], "city")]
    assert cities == (["a", "a", "b", "c", "a"] if "DISTINCT" in query else ["a", "b", "c", "a"])
    assert len({hashed(deriving, each) for each in made}) == 1


@pytest.mark.complete
def test_windows_apply_corrections_and_retractions(deriving: Deriving) -> None:
    query = (
        "SELECT window.start AS event_time, sum(x) AS s, count(*) AS n, avg(x) AS a FROM input\n"
        "GROUP BY window(event_time, '1 day'), city"
    )
    steps: list[Step] = [
        ("input", [(1, "a", 10), (1, "b", 5), (1.5, "a", 2)], None),
        ("input", [(1, "a", 10, CF), (1.25, "a", 12, CT), (1, "b", 5, R)], None),
        ("input", [(3, "a", 1)], None),
    ]
    made = fed(deriving, query, steps)
    assert deriving.result(made[0], "s", "n", "a") == [(14, 2, 7.0)]
    assert len({hashed(deriving, each) for each in made}) == 1
    # The state of max has merged values only, until a row must be retracted: then it is computed again.
    query = query.replace("input", "more")
    steps = [("more", *step[1:]) for step in steps]
    largest = fed(deriving, query.replace("sum(x)", "max(x)"), steps, "more", names=("most", "most-each"))
    assert deriving.result(largest[0], "s", "n") == [(12, 2)]
    assert len({hashed(deriving, each) for each in largest}) == 1
    # The query can also define what the operation means.
    said = deriving.derivative(query.replace("sum(x)", "max(x)").replace("more\n", "more WHERE op = 0\n"),
                               "more", name="said")  # fmt: skip
    deriving.run(said)
    assert deriving.result(said, "s", "n") == [(5, 1), (10, 2)]


def test_checkpoint_is_repeatable_and_damage_is_reported(deriving: Deriving, tmp_path: Path) -> None:
    root = deriving.root()
    query = (
        "SELECT window.start AS event_time, city, sum(x) AS s FROM input\n"
        "GROUP BY window(event_time, '1 day'), city"
    )
    made = deriving.derivative(query)
    deriving.rows(root, (1, "a", 1), (1.5, "b", 2))
    deriving.run(made)
    first = deriving.newest(made).new_checkpoint
    assert first is not None
    path = made.dataset.checkpoint_path(first.physical_hash)
    whole = path.read_bytes()
    deriving.rows(root, (1.75, "a", 2), (2, "a", 3))
    for damaged in (whole[:-20], b"no checkpoint"):
        path.chmod(0o644)
        path.write_bytes(damaged)
        with pytest.raises(BadData, match="checkpoint"):
            deriving.run(made)
    path.write_bytes(whole)
    # As after a crash before the commit: the same transaction once more.
    transaction = plan_transaction(deriving.workspace, made, 1000)
    assert transaction is not None
    hashes = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        request = make_request(
            transaction, folder, folder / "data", Timestamp.from_ms(1704067200000), Reporter()
        )
        written = deriving.engine.run("execute", request, None, Reporter()).written
        assert written is not None
        hashes.append(written.logical_hash)
    assert hashes[0] == hashes[1]
    assert deriving.run(made) == 1
    rows, second = deriving.result(made, "city", "s"), deriving.newest(made)
    assert rows == [("a", 3), ("b", 2)]
    assert second.prev_checkpoint == first.physical_hash
    assert list((deriving.workspace.odf / "cache").glob("transform-*")) == []


@pytest.mark.complete
def test_cancelling_stops_spark(deriving: Deriving, runtime: SparkRuntime) -> None:
    root = deriving.root()
    for x in range(200):  # Spark's tasks stop between files
        deriving.rows(root, (1, "a", x))
    made = deriving.derivative(
        "SELECT window.start AS event_time, count(DISTINCT x * y % 7) AS n FROM input\n"
        "LATERAL VIEW explode(sequence(1, 1000000)) AS y GROUP BY window(event_time, '1 day')"
    )
    reporter = Reporter()

    def cancel_when_it_runs() -> None:
        wait_until(lambda: runtime.tasks_running)
        reporter.cancel()

    threading.Thread(target=cancel_when_it_runs).start()
    with pytest.raises(Cancelled):
        run_with_timeout(lambda: deriving.run(made, reporter), 120)
    wait_until(lambda: not runtime.tasks_running)
    assert made.dataset.state().last_inputs is None


@pytest.mark.parametrize(
    ("query", "kind", "parts"),
    [
        ("SELECT l.event_time, x FROM input l JOIN input r USING (x) WHERE r.op = 0", Unsupported,
         ["system column", "`r`.`op`"]),
        ("SELECT max(event_time) AS event_time, x, system_time() AS t FROM (\n"
         "SELECT DISTINCT event_time, x FROM input WHERE x IN (SELECT x FROM input)) GROUP BY x", Unsupported,
         ["system_time()", "separate dataset"]),
        ("SELECT event_time, x AS op FROM input WHERE x IN (SELECT x FROM input)", Unsupported,
         ["returns operations ('op')", "remove"]),
        ("SELECT *, (SELECT avg(x / 3) FROM input) > x AND rand() < 1 AS b FROM input", InvalidQuery,
         ["rand() is not deterministic"]),
        ("SELECT * FROM input TABLESAMPLE (50 PERCENT)", Unsupported, ["deterministic"]),
        ("SELECT max(event_time) AS event_time, first(x) AS s FROM input", InvalidQuery, ["first()"]),
        ("SELECT max(event_time) AS event_time, collect_set(x) AS s FROM input", InvalidQuery, ["collect"]),
        ("SELECT * FROM (\n  SELECT DISTINCT event_time, city FROM input LIMIT 3\n) ORDER BY event_time",
         Unsupported, ["LIMIT without ORDER BY", "line 2, column"]),
        ("SELECT window.start AS s, count(*) AS n FROM input GROUP BY window(event_time, '1 day')",
         InvalidQuery, ["no event time"]),
    ],
)  # fmt: skip
@pytest.mark.complete(after=4)
def test_unsupported_stateful_queries_are_refused(
    deriving: Deriving, query: str, kind: type[OdfError], parts: list[str]
) -> None:
    root = deriving.root()
    deriving.rows(root, (1, "a", 1))
    made = deriving.derivative(query)
    with pytest.raises(kind) as caught:
        deriving.run(made)
    said = f"{caught.value} {caught.value.hint}"
    for part in parts:
        assert part in said, said
    assert made.dataset.state().last_inputs is None


def test_a_checkpoint_file_depends_on_its_content_alone(tmp_path: Path) -> None:
    about = checkpoint.CheckpointMetadata(
        format=2, engine="4.3.0+odf6", query="q", state="s", watermarks={"a": 1}, watermark=1
    )
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "state").mkdir(parents=True)
        for file in ("b", "a") if name == "one" else ("a", "b"):
            (folder / "state" / file).write_text(file)
        made.append(checkpoint.write_checkpoint(tmp_path / f"{name}.tar.zst", about, folder))
    assert made[0] == made[1]
    assert checkpoint.read_checkpoint(tmp_path / "one.tar.zst", tmp_path / "read") == about
    assert (tmp_path / "read" / "state" / "b").read_text() == "b"


DAILY_MINIMUM = (
    "SELECT window.start AS event_time, city, min(x) AS x, count(*) AS n\n"
    "FROM input GROUP BY window(event_time, '1 day'), city\n"
)


@pytest.mark.complete
def test_allowed_lateness_is_recorded_in_the_chain(deriving: Deriving) -> None:
    def configure(lateness: str | None) -> None:
        text = "" if lateness is None else f"allowedLateness: {{'inp%': {lateness}}}\n"
        (deriving.workspace.odf / "config.yaml").write_text(text)
        deriving.workspace = Workspace(deriving.workspace.odf.parent)  # settings are read once

    root = deriving.root()
    made = deriving.derivative(DAILY_MINIMUM)
    configure("1d")
    steps: list[tuple[list[tuple[Any, ...]], str | None]] = [
        ([(1, "a", 1), (1.5, "b", 2)], None),
        ([(2.5, "a", 7)], None),
        ([(1.25, "a", 0)], None),  # late, but the window is still open
        ([(3.25, "a", 4)], "0s"),
        ([(3.5, "a", 5), (2.75, "a", 3)], "2d"),  # the second one is late: its window is closed
        ([(3.5, "a", 5, R), (3.5, "a", 6)], None),  # the state is computed again, as each row was counted
        ([(8, "a", 1)], None),
    ]
    watermarks: list[str] = []
    for rows, lateness in steps:
        if lateness is not None:
            configure(lateness)
        deriving.rows(root, *rows)
        deriving.run(made)
        watermarks.append(str(made.dataset.state().watermark)[:16])
    assert deriving.result(made, "city", "x", "n") == [("a", 0, 2), ("b", 2, 1), ("a", 7, 1), ("a", 4, 2)]
    assert watermarks == [
        "2023-12-31T12:00", "2024-01-01T12:00", "2024-01-01T12:00", "2024-01-03T06:00", "2024-01-03T06:00",
        "2024-01-03T06:00", "2024-01-06T00:00",
    ]  # fmt: skip
    (late,) = list_late_rows(made.dataset)
    assert pq.read_table(late.path).column("x").to_pylist() == [3]
    transform = made.dataset.state().transform
    assert transform is not None and allowed_lateness(transform.transform) == {"input": "2d"}
    # Without the setting the same lateness applies, also in a definition that does not mention it.
    configure(None)
    report = verify(
        made.dataset, Reporter(), replay=Replay(deriving.workspace, made, deriving.engine, Reporter())
    )
    assert report.findings == []
    written = replace(transform, transform=replace(transform.transform, queries=None, query=DAILY_MINIMUM))
    (update,) = deriving.workspace.update([DatasetSnapshot("output", DatasetKind.Derivative, [written])])
    assert update.events == []


@pytest.mark.complete
def test_groups_apply_retractions_of_several_commits(deriving: Deriving) -> None:
    query = (
        "SELECT max(event_time) AS event_time, city, min(x) AS low, bool_and(x > 1) AS high,\n"
        "count_if(x > 1) AS n, avg(CAST(x AS DECIMAL(9, 2))) AS a,\n"
        "'\n-- odf.allowedLateness is text here' AS note FROM input GROUP BY city"
    )
    steps: list[Step] = [
        ("input", [(1, "a", 1), (1, "a", 2), (1, "b", 3)], None),
        ("input", [(2, "a", 1, R), (2, "a", 5)], None),
        ("input", [(3, "b", 3, R), (3, "a", 2, CF), (3, "a", 4, CT)], None),
    ]
    made = fed(deriving, query, steps, parts=True)
    last = ("a", 4, True, 2, Decimal("4.500000"))
    assert [deriving.result(each, "city", "low", "high", "n", "a")[-1] for each in made] == [last] * len(made)
    assert len({hashed(deriving, each) for each in made}) == 1


@pytest.mark.parametrize(
    ("query", "queries"),
    [
        (
            "SELECT max(event_time) AS event_time, city, count(*) AS n, avg(x / 3) AS a, min(x) AS m\n"
            "FROM input GROUP BY city HAVING count(*) < 4",
            1,
        ),
        (
            "SELECT session_window.start AS event_time, city, sum(x) AS s, count(DISTINCT x) AS d\n"
            "FROM input GROUP BY session_window(event_time, '1 day'), city",
            2,  # a row of the fourth commit could extend a session that was emitted
        ),
    ],
)
@pytest.mark.complete
def test_several_commits_are_processed_in_few_queries(
    deriving: Deriving, query: str, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0
    result = IncrementalPlanner.result

    def counted(planner: IncrementalPlanner, frame: Any) -> Any:
        nonlocal count
        count += 1
        return result(planner, frame)

    steps: list[Step] = [
        ("input", [(1, "a", 1), (1.5, "a", 2), (1.5, "b", 7)], None),
        ("input", [(2.25, "a", 5), (2.25, "c", 5)], None),
        ("input", [(4.5, "a", 7), (4.5, "b", 1)], None),
        ("input", [(3.75, "a", 3), (3.25, "b", 1), (6.5, "c", 2)], None),
        ("input", [(9, "a", 4)], None),
    ]
    made = fed(deriving, query, steps)
    again = deriving.derivative(query, name="again")
    monkeypatch.setattr(IncrementalPlanner, "result", counted)
    deriving.run(again)
    assert count == queries
    assert len({hashed(deriving, each) for each in (*made, again)}) == 1


@pytest.mark.complete
def test_large_state_is_extended_by_additional_files(
    deriving: Deriving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(incremental, "_LARGE_STATE", 4)
    query = (
        "SELECT window.start AS event_time, city, min(x) AS m, sum(x) AS s, count(DISTINCT x) AS d\n"
        "FROM input GROUP BY window(event_time, '2 days'), city"
    )
    steps: list[Step] = [
        ("input", [(1, "a", 1), (1, "b", 2), (1.5, "c", 3), (1.5, "d", 4), (1.5, "e", 4)], None),
        ("input", [(2.25, "a", 0), (2.5, "f", 6)], None),
        ("input", [(2.25, "a", 0, R), (3.25, "b", 5)], None),
        ("input", [(2.75, "a", 9), (3.5, "b", 4), (3.5, "c", 1), (3.5, "d", 4), (3.5, "e", 5)], None),
        ("input", [(3.75, "b", 4, R)], None),
        ("input", [(3.75, "z", 1)], "2024-01-09T00:00:00Z"),
    ]
    made = fed(deriving, query, steps, parts=True)
    assert sorted(deriving.result(made[1], "city", "m", "s", "d")) == [
        ("a", 1, 1, 1), ("a", 9, 9, 1), ("b", 2, 2, 1), ("b", 5, 5, 1), ("c", 1, 1, 1), ("c", 3, 3, 1),
        ("d", 4, 4, 1), ("d", 4, 4, 1), ("e", 4, 4, 1), ("e", 5, 5, 1), ("f", 6, 6, 1), ("z", 1, 1, 1),
    ]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1
    states: list[int] = []
    for number, stored in enumerate(made[1].dataset.blocks()):
        if isinstance(event := stored.block.event, ExecuteTransform) and event.new_checkpoint is not None:
            folder = tmp_path / str(number)
            checkpoint.read_checkpoint(
                made[1].dataset.checkpoint_path(event.new_checkpoint.physical_hash), folder
            )
            states.append(len(list(folder.rglob("*.parquet"))))
    assert max(states) > 1
    replay = Replay(deriving.workspace, made[1], deriving.engine, Reporter())
    report = verify(made[1].dataset, Reporter(), replay=replay)
    assert (report.findings, report.unchecked) == ([], [])
