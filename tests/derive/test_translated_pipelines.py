"""Pipelines for other engines, translated into Spark SQL: the rows that those engines produce."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slices import read_batches
from odf_engine.derive.plan import plan_transaction
from odf_engine.derive.run import execute_transaction, make_request, transform
from odf_engine.engines.engine_router import EngineRouter, built_in_engines
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.ingest.polling_source import PullOptions, pull
from odf_engine.ingest.push_source import push
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.sql.manifest_translation import translate_manifest
from odf_engine.workspace.workspace import Workspace
from tests.changelog_state import latest_state
from tests.derive import translated_pipelines as data


class Pipeline:
    """A workspace in which manifests are translated, added and pulled."""

    def __init__(self, workspace: Workspace, runtime: SparkRuntime) -> None:
        self.workspace, self._runtime = workspace, runtime
        self.changes: list[str] = []

    def add(self, text: str) -> None:
        translation = translate_manifest(text, "test", self.workspace.column_types)
        self.workspace.add(translation.snapshots)
        self.changes += [change for query in translation.queries for change in query.changes]

    def file(self, path: str, text: str) -> Path:
        target = self.workspace.folder / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
        return target

    def poll(self, name: str, text: str = "", watermark: str | None = None) -> None:
        if text:
            self.file(f"{name}/1.csv", text)
        moment = None if watermark is None else Timestamp.parse(watermark)
        entry = self.workspace.resolve(name)
        pull(self.workspace, entry, self._runtime, Reporter(), PullOptions(set_watermark=moment))

    def push(self, name: str, *files: Path) -> None:
        push(self.workspace, self.workspace.resolve(name), self._runtime, Reporter(), files)

    def transform(self, name: str) -> None:
        transform(self.workspace, self.workspace.resolve(name), SparkEngine(self._runtime), Reporter())

    def same_on_datafusion(self, name: str, original: str) -> bool:
        """Return whether DataFusion computes the slice that Spark wrote for a dataset.

        ``name`` is the same dataset with its original query, and is not committed to.
        """
        workspace, folder = self.workspace, self.workspace.folder / "requests" / name
        folder.mkdir(parents=True)
        (expected,) = workspace.resolve(original).dataset.slices()
        engines = EngineRouter(workspace.config, built_in_engines(workspace, lambda: self._runtime))
        transaction = plan_transaction(workspace, workspace.resolve(name), 1000)
        assert transaction is not None and transaction.transform.transform.engine == "datafusion"
        request = make_request(transaction, folder, folder / "data", expected.system_time, Reporter())
        written = execute_transaction(workspace, engines, transaction, request, Reporter()).written
        return written is not None and written.logical_hash == expected.logical_hash

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """All rows of a dataset; times without their zone."""
        table = self._table(name)
        rows = [] if table is None else table.select(list(columns)).to_pylist()
        return [
            tuple(each.replace(tzinfo=None) if isinstance(each, datetime) else each for each in row.values())
            for row in rows
        ]

    def _table(self, name: str) -> pa.Table | None:
        dataset = self.workspace.resolve(name).dataset
        batches = [batch for row in dataset.slices() for batch in read_batches(dataset.slice_path(row))]
        return pa.Table.from_batches(batches) if batches else None

    def state(self, name: str, key: str) -> pa.Table:
        dataset = self.workspace.resolve(name).dataset
        batches = (batch for row in dataset.slices() for batch in read_batches(dataset.slice_path(row)))
        return latest_state(batches, [key], dataset.state().vocabulary)

    def watermark(self, name: str) -> str:
        return str(self.workspace.resolve(name).dataset.state().watermark)


@pytest.fixture
def pipeline(tmp_path: Path, runtime: SparkRuntime, generated_code: None) -> Pipeline:
    return Pipeline(Workspace.init(tmp_path / "w"), runtime)


def day(number: int) -> datetime:
    return datetime(2020, 1, number)


@pytest.mark.complete
def test_translated_query_finds_overdue_shipments(pipeline: Pipeline) -> None:
    pipeline.add(data.OVERDUE_ROOTS)
    pipeline.poll("shop.orders", data.ORDERS)
    pipeline.poll("shop.shipments", data.SHIPMENTS)
    pipeline.add(data.OVERDUE)
    assert pipeline.changes == []
    pipeline.transform("shop.overdue")
    first = (0, day(5), 3, 1, None, None, 9, 0)
    assert pipeline.rows("shop.overdue", *data.OVERDUE_COLUMNS) == [first]
    assert pipeline.watermark("shop.overdue") == "2020-01-08T00:00:00Z"
    pipeline.poll("shop.orders", watermark="2020-01-13T00:00:00Z")
    pipeline.transform("shop.overdue")
    second = (0, day(10), 4, 1, day(11), day(11), 110, 50)
    assert pipeline.rows("shop.overdue", *data.OVERDUE_COLUMNS) == [first, second]
    assert pipeline.watermark("shop.overdue") == "2020-01-11T00:00:00Z"


@pytest.mark.complete
def test_translated_leaderboard_has_expected_state_after_each_push(pipeline: Pipeline) -> None:
    pipeline.add(data.LEADERBOARD_ROOT)
    pipeline.add(data.LEADERBOARD)
    for number, (rows, expected) in enumerate(zip(data.MATCHES, data.STATES, strict=True), 1):
        pipeline.push("player-scores", pipeline.file(f"scores/{number}.ndjson", data.score_lines(rows)))
        pipeline.transform("leaderboard")
        state = pipeline.state("leaderboard", "place").sort_by("place")
        columns = ("place", "match_id", "player_id", "score")
        assert [tuple(row[name] for name in columns) for row in state.to_pylist()] == expected
        assert pipeline.watermark("leaderboard") == f"2000-01-0{number}T00:00:00Z"
    assert pipeline.state("leaderboard", "place").schema.field("place").type == pa.int64()


@pytest.mark.complete
def test_translated_holdings_and_market_value_have_expected_rows(pipeline: Pipeline) -> None:
    pipeline.add(data.TRADING_ROOTS)
    pipeline.poll("my.trades", data.TRADES)
    pipeline.poll("quotes", data.QUOTES)
    pipeline.add(data.HOLDINGS)
    pipeline.transform("my.holdings")
    holdings = pipeline.rows("my.holdings", "event_time", "cum_quantity", "cum_balance")
    assert [row[1] for row in holdings] == list(range(1, 49))
    balances = [round(row[2], 2) for row in holdings]
    assert balances[:5] == [-201.02, -394.67, -592.78, -799.70, -1007.67] and balances[-1] == -12176.5
    total = 0.0
    for row, (_, _, _, _, amount) in zip(holdings, data.trades(), strict=True):
        total += amount
        assert row[2] == total  # added in the order of time
    assert pipeline.watermark("my.holdings") == "2019-12-02T00:00:00Z"

    pipeline.add(data.MARKET_VALUE)
    assert pipeline.changes == []
    pipeline.transform("my.market-value")
    quotes = [row for row in pipeline.rows("quotes", "event_time", "symbol", "close") if row[1] == "SPY"]

    def expected(until: datetime) -> list[tuple[Any, ...]]:
        values = []
        for moment, symbol, close in quotes:
            held = [row[1] for row in holdings if row[0] <= moment]
            if held and moment <= until:
                values.append((moment, symbol, held[-1], close, held[-1] * close))
        return values

    columns = ("event_time", "symbol", "cum_quantity", "price", "market_value")
    found = pipeline.rows("my.market-value", *columns)
    assert found == expected(datetime(2019, 12, 2)) and len(found) == 205
    assert (found[0][:3], found[-1][:3]) == (
        (datetime(2016, 1, 4), "SPY", 1),
        (datetime(2019, 12, 2), "SPY", 48),
    )
    assert pipeline.watermark("my.market-value") == "2019-12-02T00:00:00Z"
    # The quotes after the last trade wait for the watermark of the trades.
    pipeline.poll("my.trades", watermark="2020-09-01T00:00:00Z")
    pipeline.transform("my.holdings")
    pipeline.transform("my.market-value")
    more = pipeline.rows("my.market-value", *columns)
    assert more == expected(datetime(2020, 9, 1)) and {row[2] for row in more[len(found) :]} == {48}


@pytest.mark.complete
def test_purchases_are_converted_at_the_rate_of_their_time(pipeline: Pipeline) -> None:
    pipeline.add(data.CURRENCY_ROOTS)
    pipeline.poll("rates", data.RATES)
    assert pipeline.rows("rates", "date", "currency_base", "currency_target", "rate")[0] == (
        datetime(2017, 1, 3), "USD", "CAD", 1.3435,
    )  # fmt: skip
    pipeline.poll("my.purchases", data.PURCHASES)
    pipeline.add(data.CURRENCY)
    assert pipeline.changes == []
    pipeline.transform("my.purchases.cad")
    columns = ("event_time", "price_usd", "price_cad", "settlement_usd", "settlement_cad", "rate")
    rates = {2: None, 3: 1.3435, 5: 1.3244, 7: 1.3244, 10: 1.3213}
    prices = {2: 220.5, 3: 225.24, 5: 226.5, 7: 227.0, 10: 226.25}
    assert pipeline.rows("my.purchases.cad", *columns) == [
        (
            datetime(2017, 1, number),
            prices[number],
            None if rate is None else prices[number] * rate,
            -prices[number],
            None if rate is None else -prices[number] * rate,
            rate,
        )
        for number, rate in rates.items()
    ]
    assert pipeline.watermark("my.purchases.cad") == "2017-01-10T00:00:00Z"


@pytest.mark.complete
def test_translated_and_original_queries_give_equal_rows(pipeline: Pipeline) -> None:
    """The queries on Spark, translated, and as they are on DataFusion."""
    pipeline.add(data.PRIVATE)
    assert pipeline.changes == []
    pipeline.workspace.add(read_manifests(data.branches(".original"), "test"))
    rows = [row for rows in data.MATCHES for row in rows]
    file = pipeline.file("scores/all.ndjson", data.score_lines(rows))
    for name in data.PRIVATE_ROOTS:
        pipeline.push(name, file)
    for name in data.BRANCHES:
        pipeline.transform(name)
        found = pipeline.rows(name, "op", "match_time", "match_id", "player_id", "score")
        assert len(found) == data.PRIVATE_ROWS[name]
        assert {row[0] for row in found} == {0}
        assert sorted({row[2:] for row in found}) == sorted({row[1:] for row in rows})
        assert pipeline.same_on_datafusion(f"{name}.original", name)
    times = {row[0] for row in pipeline.rows("bob/5pub", "match_time")}
    assert times == {datetime(2000, 1, number, tzinfo=UTC).replace(tzinfo=None) for number in (1, 2, 3)}
