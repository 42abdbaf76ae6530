"""Results as Arrow batches: order, memory, cancelling, progress, failures."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from odf_engine.base.progress import Reporter
from odf_engine.errors import Cancelled, InvalidSchema
from odf_engine.metadata.model import Csv
from odf_engine.spark.arrow_batches import arrow_batches, count_running_tasks
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.readers import ReadContext, read_csv
from odf_engine.spark.row_order import SortOrder, external_sort
from tests.waiting import run_with_timeout, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOREVER = "SELECT count(*) AS n FROM range(1000000000000) WHERE hash(id) = 3"


class Listener(Reporter):
    """Keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.amounts: list[dict[str, Any]] = []

    def set_amounts(self, **amounts: Any) -> None:
        self.amounts.append(amounts)


def test_batches_keep_spark_types_and_values(session: SparkSession) -> None:
    frame = session.sql(
        "SELECT CAST(1 AS TINYINT) AS i, 'x' AS s, timestamp_millis(1) AS t, TIME'10:11:12.5' AS tm,"
        " CAST(1.5 AS DECIMAL(10, 2)) AS d, array(1L) AS a, map('k', 2) AS m,"
        " struct(3 AS x) AS st, NULL AS n, X'00ff' AS b, DATE'2020-01-31' AS day"
    )
    schema, batches = arrow_batches(frame, Reporter())
    (batch,) = list(batches)
    assert batch.schema == schema
    assert str(schema.field("t").type) == "timestamp[us, tz=UTC]"
    assert str(schema.field("tm").type) == "time64[ns]"
    row = batch.to_pylist()[0]
    assert (row["i"], row["a"], row["m"], row["st"], row["b"]) == (1, [1], [("k", 2)], {"x": 3}, b"\x00\xff")
    batch.validate(full=True)


def test_no_rows_no_batches(session: SparkSession) -> None:
    schema, batches = arrow_batches(session.sql("SELECT 1 AS a WHERE false"), Reporter())
    assert schema.names == ["a"]
    assert list(batches) == []


def test_batches_are_of_bounded_size(session: SparkSession) -> None:
    sizes = [batch.num_rows for batch in arrow_batches(session.range(200_000), Reporter())[1]]
    assert sum(sizes) == 200_000
    assert max(sizes) <= 65536


def test_batches_keep_row_order_across_partitions(session: SparkSession) -> None:
    frame = session.range(0, 50_000, 1, 7)
    ids = pa.concat_arrays(batch["id"] for batch in arrow_batches(frame, Reporter())[1])
    assert ids.equals(pa.array(range(50_000), pa.int64()))
    ordered = session.sql("SELECT id FROM range(50000) ORDER BY id DESC")
    ids = pa.concat_arrays(batch["id"] for batch in arrow_batches(ordered, Reporter())[1])
    assert ids.equals(pa.array(range(49_999, -1, -1), pa.int64()))


def test_duplicate_column_names_are_rejected(session: SparkSession) -> None:
    with pytest.raises(InvalidSchema, match="two columns `ID`"):
        arrow_batches(session.sql("SELECT 1 AS id, 2 AS ID"), Reporter())


@pytest.mark.complete
def test_running_query_can_be_cancelled(session: SparkSession) -> None:
    reporter = Reporter()

    def cancel_when_it_runs() -> None:
        wait_until(lambda: count_running_tasks(session.sparkContext))
        reporter.cancel()

    threading.Thread(target=cancel_when_it_runs).start()
    with pytest.raises(Cancelled):
        run_with_timeout(lambda: list(arrow_batches(session.sql(FOREVER), reporter)[1]), 120)
    wait_until(lambda: not session.sparkContext.statusTracker().getActiveJobsIds())
    assert next(arrow_batches(session.sql("SELECT 1 AS a"), Reporter())[1]).to_pylist() == [{"a": 1}]


def test_cancellation_before_the_first_batch_raises(session: SparkSession) -> None:
    reporter = Reporter()
    _, batches = arrow_batches(session.sql(FOREVER), reporter)
    reporter.cancel()
    with pytest.raises(Cancelled):
        next(batches)


def test_cancellation_between_batches_raises(session: SparkSession) -> None:
    reporter = Reporter()
    _, batches = arrow_batches(session.range(0, 10_000_000, 1, 50), reporter)
    next(batches)
    reporter.cancel()
    with pytest.raises(Cancelled):
        list(batches)


def test_closing_the_batches_early_stops_the_job(session: SparkSession) -> None:
    threads = threading.active_count()
    _, batches = arrow_batches(session.range(0, 10_000_000, 1, 50), Reporter())
    assert next(batches).num_rows
    batches.close()  # type: ignore[attr-defined]
    wait_until(lambda: not session.sparkContext.statusTracker().getActiveJobsIds())
    assert threading.active_count() <= threads


def test_cancelling_one_job_leaves_a_concurrent_job_running(session: SparkSession) -> None:
    doomed = Reporter()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            list(arrow_batches(session.sql(FOREVER), doomed)[1])
        except Cancelled as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    rows = 0
    for batch in arrow_batches(session.range(0, 300_000, 1, 6), Reporter())[1]:
        rows += batch.num_rows
        doomed.cancel()
    thread.join(60)
    assert rows == 300_000
    assert len(raised) == 1


@pytest.mark.complete
def test_progress_reports_rows_and_bytes(session: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    with file.open("w") as out:
        out.writelines(f"{i},{'y' * 100}\n" for i in range(200_000))
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    frame = read_csv(session, file, Csv(), schema, ReadContext(scratch=tmp_path))
    listener = Listener()
    count = 0
    for batch in arrow_batches(frame, listener)[1]:
        count += batch.num_rows
        if count == 200_000:
            wait_until(lambda: listener.amounts and listener.amounts[-1]["rows"] == 200_000)
    rows = [amount["rows"] for amount in listener.amounts]
    sizes = [amount["bytes"] for amount in listener.amounts]
    assert rows == sorted(rows)
    assert rows[-1] == 200_000
    assert sizes[-1] >= file.stat().st_size

    silent = Listener()
    for _ in arrow_batches(frame, silent, progress=False)[1]:
        assert "spark-progress" not in {thread.name for thread in threading.enumerate()}
    assert silent.amounts == []


def test_rows_before_a_failing_partition_are_returned(session: SparkSession) -> None:
    frame = session.range(0, 100_000, 1, 10).selectExpr("IF(id = 95000, raise_error('late'), id) AS id")
    rows, before = 0, threading.active_count()
    with pytest.raises(RejectedRow, match="late"):
        for batch in arrow_batches(frame, Reporter())[1]:
            rows += batch.num_rows
    assert rows >= 70_000
    assert threading.active_count() < before + 10


def test_first_failure_in_row_order_is_reported(session: SparkSession) -> None:
    wrong = "IF(id % 1000 = 999, raise_error(concat('row ', id)), id) AS id"
    for partitions in (1, 2, 7):
        frame = session.range(0, 100_000, 1, partitions).selectExpr(wrong)
        with pytest.raises(RejectedRow, match=r"row 999$"):
            list(arrow_batches(frame, Reporter())[1])


def test_partition_that_fails_in_parallel_is_run_again(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odf_engine.spark import arrow_batches as batches_module

    made = batches_module._run_partition

    def unlucky(context: Any, partitions: Any, index: int) -> list[bytes]:
        if threading.current_thread() is not threading.main_thread() and index % 3 == 2:
            raise Py4JError("the connection was lost")
        return made(context, partitions, index)

    monkeypatch.setattr(batches_module, "_run_partition", unlucky)
    batches = arrow_batches(session.range(0, 10_000, 1, 10), Reporter())[1]
    ids = pa.concat_arrays(batch["id"] for batch in batches)
    assert ids.equals(pa.array(range(10_000), pa.int64()))


def test_batches_are_read_without_spark_internals(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odf_engine.spark import arrow_batches as batches_module

    monkeypatch.setattr(batches_module, "batch_partitions", lambda frame: None)
    schema, batches = arrow_batches(session.range(0, 1000, 1, 3), Reporter())
    table = pa.Table.from_batches(batches, schema)
    assert table["id"].to_pylist() == list(range(1000))


@pytest.mark.parametrize("memory", [1, 400, 1 << 20])
@pytest.mark.parametrize("size", [1, 7])
def test_rows_that_exceed_memory_are_merged_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, size: int
) -> None:
    monkeypatch.setattr("odf_engine.spark.row_order._MAX_MEMORY_BYTES", memory)
    monkeypatch.setattr("odf_engine.spark.row_order._BATCH_ROWS", size)
    random = Random(size)
    rows = [
        (random.choice([None, 1.0, 2.0]), random.choice(["a", "b", None]), number) for number in range(90)
    ]
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate(("x", "s", "n"))})
    for keys in (0,), (1, 0), (2,):
        batches = iter(table.to_batches(max_chunksize=11))
        order = SortOrder(tuple(table.column_names[at] for at in keys))
        found = pa.Table.from_batches(external_sort(batches, order, tmp_path / "rows"), table.schema)
        # Nulls first; rows with equal keys keep their order.
        expected = sorted(rows, key=lambda row: [(row[at] is not None, row[at] or 0) for at in keys])
        assert [tuple(row.values()) for row in found.to_pylist()] == expected
    assert not list(tmp_path.iterdir())
