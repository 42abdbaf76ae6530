"""Queries of the Nexmark benchmark in ten increments, compared with Spark's one batch in the same Java.

The events are two million persons, auctions and bids. A value is the number of events that are processed in a
second of processor time. Spark reads the files of all increments in one batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.auction_events import SCHEMAS, AuctionEvents
from tests.bench.measure import Figure, Metric, Size, cost
from tests.bench.spark import copy_newest_slice, start_spark
from tests.derive.deriving import Deriving

_LEVELS: Final = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000",
                  "rank3": "price >= 1000000"}  # fmt: skip


def _by_level(name: str, aggregate: str) -> str:
    """Return an aggregate over all bids, and over those of each level of prices."""
    levels = [f"{aggregate} FILTER (WHERE {condition}) AS {level}_{name}"
              for level, condition in _LEVELS.items()]  # fmt: skip
    return ", ".join([f"{aggregate} AS total_{name}", *levels])


_BIDS: Final = _by_level("bids", "count(*)")
_STATISTICS: Final = ", ".join([
    _BIDS, _by_level("bidders", "count(DISTINCT bidder)"), _by_level("auctions", "count(DISTINCT auction)"),
])  # fmt: skip
_CHANNEL_ID: Final = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
QUERIES: Final = {
    "q0": "SELECT auction, bidder, price, event_time, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, event_time, extra FROM bid",
    "q2": "SELECT auction, price, event_time FROM bid WHERE auction % 123 = 0",
    "q3": """
SELECT p.name, p.city, p.state, a.id, a.event_time FROM auction AS a JOIN person AS p ON a.seller = p.id
WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA')""",
    "q4": """
SELECT category, CAST(avg(final) AS BIGINT) AS final, max(event_time) AS event_time FROM (
    SELECT a.category, max(b.price) AS final, max(b.event_time) AS event_time FROM auction AS a
    JOIN bid AS b ON a.id = b.auction AND b.event_time BETWEEN a.event_time AND a.expires
    GROUP BY a.id, a.category
) GROUP BY category""",
    "q5": """
SELECT b.auction, b.num, b.start AS event_time FROM (
    SELECT auction, count(*) AS num, window.start, window.end FROM bid
    GROUP BY auction, window(event_time, '10 seconds', '2 seconds')
) AS b JOIN (
    SELECT max(num) AS max_num, start, end FROM (
        SELECT count(*) AS num, window.start, window.end FROM bid
        GROUP BY auction, window(event_time, '10 seconds', '2 seconds')
    ) GROUP BY start, end
) AS m ON b.start = m.start AND b.end = m.end AND b.num >= m.max_num""",
    "q7": """
SELECT b.auction, b.bidder, b.price, b.event_time, b.extra FROM bid AS b JOIN (
    SELECT max(price) AS max_price, window.end FROM bid GROUP BY window(event_time, '10 seconds')
) AS m ON b.price = m.max_price
WHERE b.event_time BETWEEN m.end - INTERVAL 10 SECONDS AND m.end""",
    "q8": """
SELECT p.id, p.name, p.start AS event_time FROM (
    SELECT id, name, window.start, window.end FROM person GROUP BY id, name, window(event_time, '10 seconds')
) AS p JOIN (
    SELECT seller, window.start, window.end FROM auction GROUP BY seller, window(event_time, '10 seconds')
) AS a ON p.id = a.seller AND p.start = a.start AND p.end = a.end""",
    "q9": """
SELECT * EXCEPT (n) FROM (
    SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.event_time, a.expires, a.seller,
        a.category, a.extra, b.auction, b.bidder, b.price, b.event_time AS bid_time, b.extra AS bid_extra,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.event_time) AS n
    FROM auction AS a JOIN bid AS b ON a.id = b.auction AND b.event_time BETWEEN a.event_time AND a.expires
) WHERE n <= 1""",
    "q11": """
SELECT bidder, count(*) AS bids, session_window.start AS event_time, session_window.end FROM bid
GROUP BY bidder, session_window(event_time, '10 seconds')""",
    "q13": """
SELECT b.auction, b.bidder, b.price, b.event_time, s.value
FROM bid AS b JOIN side AS s ON b.auction % 10000 = s.key""",
    "q14": """
SELECT auction, bidder, 0.908 * price AS price,
    CASE WHEN hour(event_time) BETWEEN 8 AND 18 THEN 'dayTime'
        WHEN hour(event_time) <= 6 OR hour(event_time) >= 20 THEN 'nightTime' ELSE 'otherTime'
    END AS bid_time_type,
    event_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"""
SELECT date_format(event_time, 'yyyy-MM-dd') AS day, min(event_time) AS event_time, {_STATISTICS}
FROM bid GROUP BY date_format(event_time, 'yyyy-MM-dd')""",
    "q16": f"""
SELECT channel, date_format(event_time, 'yyyy-MM-dd') AS day, min(event_time) AS event_time,
    max(date_format(event_time, 'HH:mm')) AS minute, {_STATISTICS}
FROM bid GROUP BY channel, date_format(event_time, 'yyyy-MM-dd')""",
    "q17": f"""
SELECT auction, date_format(event_time, 'yyyy-MM-dd') AS day, min(event_time) AS event_time, {_BIDS},
    min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
FROM bid GROUP BY auction, date_format(event_time, 'yyyy-MM-dd')""",
    "q18": """
SELECT auction, bidder, price, channel, url, event_time, extra FROM (
    SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY event_time DESC) AS n FROM bid
) WHERE n <= 1""",
    "q19": """
SELECT auction, bidder, price, channel, url, event_time, extra, n FROM (
    SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS n FROM bid
) WHERE n <= 10""",
    "q20": """
SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.event_time, b.extra, a.item_name, a.description,
    a.initial_bid, a.reserve, a.event_time AS auction_time, a.expires, a.seller, a.category,
    a.extra AS auction_extra
FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.category = 10""",
    "q21": f"""
SELECT auction, bidder, price, channel, event_time,
    CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
        WHEN 'baidu' THEN '3' ELSE {_CHANNEL_ID} END AS channel_id
FROM bid WHERE {_CHANNEL_ID} IS NOT NULL OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
SELECT auction, bidder, price, channel, event_time, split_part(url, '/', 4) AS dir1,
    split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
FROM bid""",
    "q23": """
SELECT b.bidder, b.price, b.channel, b.url, b.event_time, b.extra AS bid_extra, p.id AS person_id, p.name,
    p.email_address, p.credit_card, p.city, p.state, p.extra AS person_extra, a.item_name, a.description,
    a.initial_bid, a.reserve, a.event_time AS auction_time, a.expires, a.seller, a.category,
    a.extra AS auction_extra
FROM bid AS b JOIN person AS p ON p.id = b.bidder JOIN auction AS a ON a.seller = b.bidder""",
}  # fmt: skip
"""The queries of Nexmark for Flink, except those that depend on the time of processing (q6, q10, q12)."""
MEASURED: Final[Sequence[str]] = ("q3", "q4", "q5", "q7", "q9", "q16", "q20")
INCREMENTS: Final = 10
METRICS: Final[dict[str, Metric]] = {
    name: Metric(f"Nexmark {name}, ten increments, events per second and core", "one batch", "", "/s")
    for name in MEASURED
}


def inputs_of(query: str) -> list[str]:
    """Return the names of the tables that a query reads."""
    return [name for name in SCHEMAS if re.search(rf"\b(FROM|JOIN) {name}\b", query)]


def run(size: Size, folder: Path) -> list[Figure]:
    events, parts = size.pick(2_000_000, 5000), size.pick(INCREMENTS, 2)
    with start_spark(folder) as spark:
        deriving = Deriving(Workspace.init(folder / "ws"), spark)
        roots = {name: deriving.root(name, SCHEMAS[name]) for name in ("person", "auction", "bid")}
        entries = {
            name: deriving.derivative(QUERIES[name], *inputs_of(QUERIES[name]), name=name)
            for name in MEASURED
        }
        seconds: dict[str, float] = dict.fromkeys(MEASURED, 0.0)
        for number in range(parts):
            append_events(deriving, roots, AuctionEvents(number * events // parts, events // parts))
            for name, root in roots.items():
                (folder / name).mkdir(exist_ok=True)
                copy_newest_slice(root, folder / name / f"{number}.parquet")
            for name, entry in entries.items():
                seconds[name] += cost(lambda entry=entry: deriving.run(entry)).processor
        batch = {
            name: cost(lambda name=name: query_files(spark, folder, name)).processor for name in MEASURED
        }
        return [METRICS[name].figure(events / seconds[name], events / batch[name]) for name in MEASURED]


def append_events(deriving: Deriving, roots: Mapping[str, DatasetEntry], events: AuctionEvents) -> None:
    """Commit the events of each kind to the root of its name."""
    for name, batch in events.batches().items():
        deriving.batch(roots[name], batch, events.watermark)


def query_files(spark: SparkRuntime, folder: Path, name: str) -> None:
    """Run a query over the files of the events in bare Spark, and write the result."""
    session = spark.session()
    for table in inputs_of(QUERIES[name]):
        session.read.parquet(str(folder / table)).createOrReplaceTempView(table)
    session.sql(QUERIES[name]).write.mode("overwrite").parquet(str(folder / "bare"))
