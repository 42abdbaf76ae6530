"""Manifests and rows of five pipelines for Flink, RisingWave and DataFusion, as other peers define them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from textwrap import indent
from typing import Any, NamedTuple


class Transformed(NamedTuple):
    """A derivative dataset: its engine, its inputs, and its query or its steps (alias and query)."""

    name: str
    engine: str
    inputs: Sequence[str]
    query: str | Sequence[tuple[str, str]]
    event_time: str = "event_time"
    key: tuple[str, str] | None = None
    """Temporal table with its primary key."""


def polled(name: str, columns: str, merge: str, *, prepare: str = "", more: str = "") -> str:
    """A root dataset that reads CSV files from the folder of its name."""
    return f"""---
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: FilesGlob, path: "{name}/*.csv", order: ByName}}
{prepare}      read:
        kind: Csv
        header: true
        schema: [{columns}]
{more}      merge: {merge}
"""


def pushed(name: str, columns: str, merge: str, event_time: str = "match_time") -> str:
    """A root dataset with a push source of JSON rows."""
    return f"""---
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - {{kind: SetVocab, eventTimeColumn: {event_time}}}
    - kind: AddPushSource
      sourceName: default
      read: {{kind: NdJson, schema: [{columns}]}}
      merge: {merge}
"""


def derived(made: Transformed) -> str:
    """The manifest of a derivative dataset."""
    steps = [("", made.query)] if isinstance(made.query, str) else made.query
    if isinstance(made.query, str):
        queries = "        query: |\n" + indent(made.query.strip(), " " * 10)
    else:
        queries = "        queries:\n" + "\n".join(
            "          - "
            + (f"alias: {alias}\n            " if alias else "")
            + "query: |\n"
            + indent(query.strip(), " " * 14)
            for alias, query in steps
        )
    tables = (
        f"        temporalTables: [{{name: {made.key[0]}, primaryKey: [{made.key[1]}]}}]\n"
        if made.key
        else ""
    )
    inputs = "\n".join(f"        - {{datasetRef: {each}, alias: {each}}}" for each in made.inputs)
    return f"""---
kind: DatasetSnapshot
version: 1
content:
  name: {made.name}
  kind: Derivative
  metadata:
    - {{kind: SetVocab, eventTimeColumn: {made.event_time}}}
    - kind: SetTransform
      inputs:
{inputs}
      transform:
        kind: Sql
        engine: {made.engine}
{tables}{queries}
"""


def csv(header: str, rows: Sequence[Sequence[Any]]) -> str:
    return header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)


ORDERS = csv(
    "event_time,order_id,quantity",
    [("2020-01-01", 1, 10), ("2020-01-01", 2, 120), ("2020-01-05", 3, 9), ("2020-01-10", 4, 110)],
)
SHIPMENTS = csv(
    "event_time,shipment_id,order_id,quantity",
    [
        ("2020-01-01", 1, 1, 4), ("2020-01-02", 2, 1, 6), ("2020-01-02", 3, 2, 120), ("2020-01-08", 4, 3, 9),
        ("2020-01-11", 5, 4, 50), ("2020-01-13", 6, 4, 6),
    ],
)  # fmt: skip
OVERDUE_ROOTS = polled(
    "shop.orders",
    '"event_time TIMESTAMP", "order_id BIGINT", "quantity BIGINT"',
    "{kind: Ledger, primaryKey: [order_id]}",
) + polled(
    "shop.shipments",
    '"event_time TIMESTAMP", "shipment_id BIGINT", "order_id BIGINT", "quantity BIGINT"',
    "{kind: Ledger, primaryKey: [shipment_id]}",
)
OVERDUE = derived(
    Transformed(
        "shop.overdue",
        "flink",
        ["shop.orders", "shop.shipments"],
        [
            (
                "shipped",
                """
SELECT
  o.event_time AS order_time, o.order_id, o.quantity AS ordered,
  CAST(s.event_time AS TIMESTAMP(3)) AS shipped_time, COALESCE(s.quantity, 0) AS shipped
FROM `shop.orders` AS o
LEFT JOIN `shop.shipments` AS s
  ON o.order_id = s.order_id
  AND s.event_time BETWEEN o.event_time AND o.event_time + INTERVAL '2' DAY
""",
            ),
            (
                "totals",
                """
SELECT
  TUMBLE_START(order_time, INTERVAL '1' DAY) AS order_time, order_id,
  COUNT(*) AS num_shipments, MIN(shipped_time) AS first_shipment, MAX(shipped_time) AS last_shipment,
  MIN(ordered) AS order_quantity, SUM(shipped) AS shipped_quantity_total
FROM shipped
GROUP BY TUMBLE(order_time, INTERVAL '1' DAY), order_id
""",
            ),
            ("", "SELECT * FROM totals WHERE order_quantity <> shipped_quantity_total"),
        ],
        event_time="order_time",
    )
)
OVERDUE_COLUMNS = (
    "op", "order_time", "order_id", "num_shipments", "first_shipment", "last_shipment", "order_quantity",
    "shipped_quantity_total",
)  # fmt: skip


_SCORE = '"match_time TIMESTAMP", "match_id BIGINT", "player_id STRING", "score BIGINT"'
_MATCH = "{kind: Ledger, primaryKey: [match_id, player_id]}"
LEADERBOARD_ROOT = pushed("player-scores", _SCORE, _MATCH)
LEADERBOARD = derived(
    Transformed(
        "leaderboard",
        "risingwave",
        ["player-scores"],
        [
            (
                "ranked",
                """
create materialized view ranked as
select * from (
  select row_number() over (partition by 1 order by score desc) as place,
    match_time, match_id, player_id, score
  from "player-scores"
)
where place <= 2
""",
            ),
            ("", "select * from ranked"),
        ],
        event_time="match_time",
    )
)
MATCHES = [
    [("2000-01-01", 1, "Alice", 100), ("2000-01-01", 1, "Bob", 80)],
    [("2000-01-02", 2, "Alice", 70), ("2000-01-02", 2, "Charlie", 90)],
    [("2000-01-03", 3, "Bob", 60), ("2000-01-03", 3, "Charlie", 110)],
]
STATES = [
    [(1, 1, "Alice", 100), (2, 1, "Bob", 80)],
    [(1, 1, "Alice", 100), (2, 2, "Charlie", 90)],
    [(1, 3, "Charlie", 110), (2, 1, "Alice", 100)],
]
"""Place, match, player and score after each file."""


def score_lines(rows: Sequence[tuple[str, int, str, int]]) -> str:
    """Rows as JSON, one a line."""
    names = ("match_time", "match_id", "player_id", "score")
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


PRICES = {0: 201.02, 1: 193.65, 2: 198.11, 3: 206.92, 4: 207.97, 47: 233.08}


def trades() -> Iterator[tuple[str, str, int, float, float]]:
    """48 purchases of one share each, one a month: time, symbol, quantity, price, amount."""
    first_days = {0: 4, 47: 2}
    for number in range(48):
        price = PRICES.get(number, 254 + number / 4)
        day = f"{2016 + number // 12}-{number % 12 + 1:02}-{first_days.get(number, 1):02}"
        yield day, "SPY", 1, price, -price


TRADES = csv("event_time,symbol,quantity,price,settlement", list(trades()))
_START = date(2015, 12, 28)
QUOTES = csv(
    "event_time,symbol,close",
    [
        (_START + timedelta(days=days), symbol, close + days / 8)
        for days in range(0, 1800, 7)
        for symbol, close in (("SPY", 180.0), ("IPO", 20.0))
    ],
)
TRADING_ROOTS = polled(
    "my.trades",
    '"event_time TIMESTAMP", "symbol STRING", "quantity BIGINT", "price DOUBLE", "settlement DOUBLE"',
    "{kind: Ledger, primaryKey: [event_time, symbol]}",
) + polled(
    "quotes",
    '"event_time TIMESTAMP", "symbol STRING", "close DOUBLE"',
    "{kind: Ledger, primaryKey: [event_time, symbol]}",
)
HOLDINGS = derived(
    Transformed(
        "my.holdings",
        "flink",
        ["my.trades"],
        """
SELECT event_time, symbol, quantity,
  SUM(quantity) OVER (PARTITION BY symbol ORDER BY event_time ROWS UNBOUNDED PRECEDING) AS cum_quantity,
  SUM(settlement) OVER (PARTITION BY symbol ORDER BY event_time ROWS UNBOUNDED PRECEDING) AS cum_balance
FROM `my.trades`
""",
    )
)
MARKET_VALUE = derived(
    Transformed(
        "my.market-value",
        "flink",
        ["quotes", "my.holdings"],
        """
SELECT q.event_time, q.symbol, h.cum_quantity, q.close AS price, h.cum_quantity * q.close AS market_value
FROM `quotes` AS q
JOIN `my.holdings` FOR SYSTEM_TIME AS OF q.event_time AS h ON q.symbol = h.symbol
""",
        key=("my.holdings", "symbol"),
    )
)


RATES = (
    "Terms and conditions\n\nOBSERVATIONS\n"
    + csv(
        "date,FXUSDCAD,FXEURCAD",
        [
            ("2017-01-03", 1.3435, 1.4), ("2017-01-04", 1.3315, 1.4), ("2017-01-05", 1.3244, 1.4),
            ("2017-01-09", 1.3240, 1.4), ("2017-01-10", 1.3213, 1.4),
        ],
    )
)  # fmt: skip
"""Five days with a gap from January 6 to 8, and lines before the header."""
PURCHASES = csv(
    "event_time,symbol,quantity,price,settlement,settlement_currency",
    [
        (day, "SPY", 1, price, -price, "USD")
        for day, price in (
            ("2017-01-02", 220.5), ("2017-01-03", 225.24), ("2017-01-05", 226.5), ("2017-01-07", 227.0),
            ("2017-01-10", 226.25),
        )
    ],
)  # fmt: skip
CURRENCY_ROOTS = polled(
    "rates",
    '"date TIMESTAMP", "FXUSDCAD DOUBLE", "FXEURCAD DOUBLE"',
    "{kind: Ledger, primaryKey: [date]}",
    prepare="      prepare: [{kind: Pipe, command: [sed, -e, '1,/OBSERVATIONS/d']}]\n",
    more="""      preprocess:
        kind: Sql
        engine: datafusion
        query: |
          SELECT "date", 'USD' AS currency_base, 'CAD' AS currency_target, FXUSDCAD AS rate FROM input
""",
).replace("  metadata:\n", "  metadata:\n    - {kind: SetVocab, eventTimeColumn: date}\n") + polled(
    "my.purchases",
    '"event_time TIMESTAMP", "symbol STRING", "quantity BIGINT", "price DOUBLE", "settlement DOUBLE", '
    '"settlement_currency STRING"',
    "{kind: Ledger, primaryKey: [event_time, symbol]}",
)
CURRENCY = derived(
    Transformed(
        "my.purchases.cad",
        "flink",
        ["my.purchases", "rates"],
        """
SELECT t.event_time, t.symbol, t.quantity, t.price AS price_usd, t.price * r.rate AS price_cad,
  t.settlement AS settlement_usd, t.settlement * r.rate AS settlement_cad, r.rate
FROM `my.purchases` AS t
LEFT JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r
  ON t.settlement_currency = r.currency_base AND r.currency_target = 'CAD'
""",
        key=("rates", "currency_base"),
    )
)


_UNION = "\nUNION ALL\n".join
_SELECT = 'SELECT op, match_time, match_id, player_id, score FROM "{}"'
BRANCHES: dict[str, Sequence[str]] = {
    "alice/2priv": ["alice/1pub1", "alice/1priv1"],
    "alice/2pub": ["alice/1pub2", "alice/1priv2"],
    "alice/3pub": ["alice/2pub", "alice/2priv"],
    "alice/4priv": ["alice/3pub"],
    "bob/5pub": ["alice/4priv", "alice/3pub"],
}
"""Inputs of each derivative dataset."""
PRIVATE_ROOTS = ("alice/1priv1", "alice/1priv2", "alice/1pub1", "alice/1pub2")


def branches(suffix: str = "") -> str:
    """Manifests of the derivative datasets, with a suffix to their names but not to those of inputs."""
    return "".join(
        derived(
            Transformed(
                name + suffix,
                "datafusion",
                inputs,
                _UNION(_SELECT.format(each) for each in inputs),
                event_time="match_time",
            )
        )
        for name, inputs in BRANCHES.items()
    )


PRIVATE = "".join(pushed(name, _SCORE, _MATCH) for name in PRIVATE_ROOTS) + branches()
PRIVATE_ROWS = {
    "alice/2priv": 12, "alice/2pub": 12, "alice/3pub": 24, "alice/4priv": 24, "bob/5pub": 48,
}  # fmt: skip
