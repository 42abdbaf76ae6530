"""Manifests of the shapes that another implementation ships as examples: 54 datasets in nine folders."""

# ruff: noqa: E501 (manifests)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Shape(NamedTuple):
    """A manifest; ``short`` if it uses short forms of the ODF schema, ``engine`` of its query."""

    folder: str
    name: str
    text: str
    short: bool = False
    engine: str = ""


def _manifest(name: str, kind: str, events: str) -> str:
    head = f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: {name}\n  kind: {kind}\n  metadata:\n"
    return head + "".join(f"    {line}\n" for line in events.strip("\n").splitlines())


def _fields(columns: str) -> str:
    """Columns such as ``id int64, x option`` in the short form of the ODF schema."""
    fields = []
    for column in columns.split(", "):
        name, kind = column.split(" ")
        kind = "{kind: option, inner: string}" if kind == "option" else kind
        fields.append(f"{{name: {name}, type: {kind}}}")
    return f", schema: {{fields: [{', '.join(fields)}]}}"


def _root(
    folder: str,
    name: str,
    fetch: str,
    read: str = "kind: Csv, header: true",
    *,
    columns: str = "",
    prepare: str = "",
    preprocess: str = "",
    merge: str = "{kind: Ledger, primaryKey: [id]}",
    time: str = "",
) -> Shape:
    fields = _fields(columns) if columns else ""
    events = f"- {{kind: SetVocab, eventTimeColumn: {time}}}\n" if time else ""
    events += f"- kind: SetPollingSource\n  fetch: {{{fetch}}}\n"
    events += f"  prepare: [{prepare}]\n" if prepare else ""
    events += f"  read: {{{read}{fields}}}\n"
    if preprocess:
        events += f"  preprocess:\n    kind: Sql\n    engine: datafusion\n    query: |\n      {preprocess}\n"
    events += f"  merge: {merge}\n- {{kind: SetInfo, description: {name}, keywords: [a, b]}}\n"
    # Kinds in lower case occur.
    events += "- kind: setAttachments\n  attachments:\n    kind: Embedded\n    items: [{path: README.md, content: text}]\n"
    return Shape(
        folder, name, _manifest(name, "Root", events), bool(fields), "datafusion" if preprocess else ""
    )


def _push(folder: str, name: str, columns: str, time: str) -> Shape:
    events = f"""
- {{kind: SetVocab, eventTimeColumn: {time}}}
- kind: AddPushSource
  sourceName: default
  read: {{kind: NdJson{_fields(columns)}}}
  merge: {{kind: Ledger, primaryKey: [match_id, player_id]}}
"""
    return Shape(folder, name, _manifest(name, "Root", events), True)


def _derived(
    folder: str, name: str, engine: str, inputs: Sequence[str], query: str, *, key: str = "", time: str = ""
) -> Shape:
    tables = f"    temporalTables: [{{name: {inputs[-1]}, primaryKey: [{key}]}}]\n" if key else ""
    listed = "".join(f"    - {{datasetRef: {each}, alias: {each}}}\n" for each in inputs)
    events = f"- {{kind: SetVocab, eventTimeColumn: {time}}}\n" if time else ""
    events += f"- kind: SetTransform\n  inputs:\n{listed}  transform:\n    kind: Sql\n    engine: {engine}\n{tables}"
    events += "    query: |\n" + "".join(f"      {line}\n" for line in query.strip().splitlines())
    return Shape(folder, name, _manifest(name, "Derivative", events), False, engine)


_PROVINCES = ("alberta", "british-columbia", "ontario", "quebec")
_CASE = "id, province, gender, age_group"
_UNION = "\nUNION ALL\n"


def covid() -> Iterator[Shape]:
    folder = "covid"
    for province in _PROVINCES:
        zipped = province in ("ontario", "quebec")
        yield _root(
            folder, f"cases.{province}", f'kind: Url, url: "https://example.com/{province}.csv"',
            columns="id int64, date_reported timestamp, gender string, age_group option",
            prepare="{kind: Decompress, format: Gzip}" if zipped else "",
            time="date_reported",
        )  # fmt: skip
    for province in _PROVINCES:
        query = (
            f"SELECT id, date_reported, '{province}' AS province, gender, age_group FROM \"cases.{province}\""
        )
        yield _derived(
            folder, f"cases.{province}.hm", "datafusion", [f"cases.{province}"], query, time="date_reported"
        )
    parts = [f'SELECT date_reported, {_CASE} FROM "cases.{each}.hm"' for each in _PROVINCES]
    query = _UNION.join(parts) + "\nORDER BY date_reported, province, id"
    inputs = [f"cases.{each}.hm" for each in _PROVINCES]
    yield _derived(folder, "cases.canada", "datafusion", inputs, query, time="date_reported")
    query = """
select window_end - interval '1 second' as date_reported, province, count(*) as total
from tumble("cases.canada", date_reported, interval '1 day')
group by window_end, province emit on window close
"""
    yield _derived(folder, "cases.canada.daily", "risingwave", ["cases.canada"], query, time="date_reported")


_CONVERSION = """
SELECT t.event_time, t.symbol, t.price AS usd, t.price * r.rate AS cad FROM `{left}` AS t
LEFT JOIN `{right}` FOR SYSTEM_TIME AS OF t.event_time AS r ON t.currency = r.currency AND r.target = 'CAD'
"""


def currency() -> Iterator[Shape]:
    folder = "currency_conversion"
    query = "SELECT date AS event_time, 'USD' AS currency, 'CAD' AS target, FXUSDCAD AS rate FROM input"
    yield _root(
        folder, "rates.daily", 'kind: Url, url: "https://example.com/rates.csv"',
        prepare="{kind: Pipe, command: [sed, -e, '1,/OBSERVATIONS/d']}",
        columns="date timestamp, FXAUDCAD float64, FXUSDCAD float64",
        preprocess=query, merge="{kind: Ledger, primaryKey: [event_time, currency]}",
    )  # fmt: skip
    yield _root(
        folder, "my.transactions", 'kind: FilesGlob, path: "data/*.csv", cache: {kind: Forever}, order: ByName',
        columns="id int64, event_time timestamp, symbol string, price float64, currency string",
    )  # fmt: skip
    query = _CONVERSION.format(left="my.transactions", right="rates.daily")
    yield _derived(
        folder, "my.transactions.cad", "flink", ["my.transactions", "rates.daily"], query, key="currency"
    )


def housing() -> Iterator[Shape]:
    folder = "housing_prices"
    for number, name in enumerate(("outlines", "local-areas", "parcels")):
        pipe = "{kind: Pipe, command: [jq, -c, .]}" if number == 0 else ""
        yield _root(
            folder, f"city.{name}", f'kind: Url, url: "https://example.com/{name}.geojson"', "kind: GeoJson",
            prepare=pipe, merge="{kind: Snapshot, primaryKey: [id]}",
        )  # fmt: skip
    yield _root(
        folder, "city.taxes", 'kind: Url, url: "https://example.com/taxes.csv"',
        'kind: Csv, separator: ";", header: true', merge="{kind: Snapshot, primaryKey: [id]}",
    )  # fmt: skip


_SCORES = "match_time timestamp, match_id int64, player_id string, score int64"


def leaderboard() -> Iterator[Shape]:
    yield _push("leaderboard", "scores", _SCORES, "match_time")
    query = """
select * from (
  select row_number() over (partition by 1 order by score desc) as place, match_time, player_id, score from scores
)
where place <= 2
"""
    yield _derived("leaderboard", "best", "risingwave", ["scores"], query, time="match_time")


def mqtt() -> Iterator[Shape]:
    yield _root(
        "mqtt", "temperature", "kind: mqtt, host: broker.example.com, port: 1883, topics: [{path: a/b}]",
        "kind: NdJson", columns="event_time timestamp, value float64",
        merge="{kind: Ledger, primaryKey: [event_time]}",
    )  # fmt: skip


def overdue() -> Iterator[Shape]:
    folder = "overdue_shipments"
    for name in ("orders", "shipments"):
        yield _root(folder, name, f'kind: FilesGlob, path: "data/{name}-*.csv", eventTime: {{kind: FromPath, pattern: "(\\\\d+-\\\\d+-\\\\d+)"}}, order: ByEventTime',
                    columns="id int64, order_id int64, quantity int64")  # fmt: skip
    query = """
SELECT TUMBLE_START(o.event_time, INTERVAL '1' DAY) AS event_time, o.order_id, COUNT(*) AS shipments
FROM orders AS o LEFT JOIN shipments AS s
  ON o.order_id = s.order_id AND s.event_time BETWEEN o.event_time AND o.event_time + INTERVAL '2' DAY
GROUP BY TUMBLE(o.event_time, INTERVAL '1' DAY), o.order_id
"""
    yield _derived(folder, "late", "flink", ["orders", "shipments"], query)


def private() -> Iterator[Shape]:
    folder = "private-datasets"
    for name in ("1priv1", "1priv2", "1pub1", "1pub2"):
        yield _push(folder, f"alice/{name}", _SCORES, "match_time")
    branches = {
        "alice/2priv": ("1pub1", "1priv1"), "alice/2pub": ("1pub2", "1priv2"), "alice/3pub": ("2pub", "2priv"),
        "alice/4priv": ("3pub",), "alice/4pub": ("3pub",), "alice/5priv1": ("4priv",), "alice/5priv2": ("4priv",),
        "alice/5pub1": ("4pub",), "alice/5pub2": ("4pub",), "bob/6pub1": ("5priv1", "5pub1"), "bob/6pub2": ("5pub2",),
    }  # fmt: skip
    for name, inputs in branches.items():
        query = _UNION.join(
            f'SELECT match_time, match_id, player_id, score FROM "alice/{each}"' for each in inputs
        )
        yield _derived(
            folder, name, "datafusion", [f"alice/{each}" for each in inputs], query, time="match_time"
        )


_TOTAL = "SUM({}) OVER (PARTITION BY symbol ORDER BY event_time ROWS UNBOUNDED PRECEDING)"
_VALUE = """
SELECT q.event_time, q.symbol, h.balance * q.close AS market_value FROM `{left}` AS q
JOIN `{right}` FOR SYSTEM_TIME AS OF q.event_time AS h ON q.symbol = h.symbol
"""


def rocket_pool() -> Iterator[Shape]:
    folder = "reth-vs-snp500"
    for name, action in (("transfers", "tokentx"), ("transactions", "txlist")):
        url = f"https://example.com/api?action={action}&apikey=${{{{ env.API_KEY }}}}"
        yield _root(folder, f"account.{name}", f'kind: Url, url: "{url}"', "kind: Json, subPath: result",
                    preprocess="SELECT CAST(blockNumber AS BIGINT) AS id, hash FROM input")  # fmt: skip
    yield _root(folder, "tickers.spy", 'kind: Url, url: "https://example.com/daily.csv"',
                columns="timestamp timestamp, close float64",
                preprocess="SELECT timestamp AS event_time, 'spy' AS symbol, close FROM input",
                merge="{kind: Ledger, primaryKey: [event_time]}")  # fmt: skip
    yield _root(folder, "prices.eth", 'kind: Container, image: "ghcr.io/example/fetch-prices:0.1.0", env: [{name: API_KEY}]',
                "kind: NdJson",
                merge="{kind: Ledger, primaryKey: [event_time]}")  # fmt: skip
    for name in ("minted", "burned"):
        signature = (
            f"Tokens{name.title()}(address indexed holder, uint256 amount, uint256 ethAmount, uint256 time)"
        )
        fetch = (
            "kind: EthereumLogs, chainId: 1, filter: \"address = X'ae78736cd615f374d3085123a210448e74fc6393' and "
            f'block_number > 13325304", signature: "{signature}"'
        )
        yield _root(folder, f"tokens.{name}", fetch, "kind: Parquet",
                    preprocess="SELECT block_timestamp AS event_time, block_number AS id, event.amount AS amount FROM input")  # fmt: skip
    parts = [
        f"SELECT event_time, '{each}' AS event_name, amount FROM \"tokens.{each}\""
        for each in ("minted", "burned")
    ]
    yield _derived(
        folder, "tokens.mint-burn", "datafusion", ["tokens.minted", "tokens.burned"], _UNION.join(parts)
    )
    query = f"SELECT event_time, symbol, {_TOTAL.format('amount')} AS balance FROM `account.transfers`"
    yield _derived(folder, "portfolio", "flink", ["account.transfers"], query)
    for name, left in (("portfolio.usd", "prices.eth"), ("portfolio.market-value", "tickers.spy")):
        query = _VALUE.format(left=left, right="portfolio")
        yield _derived(folder, name, "flink", [left, "portfolio"], query, key="symbol")
    query = f"SELECT event_time, symbol, {_TOTAL.format('amount')} AS balance FROM `tokens.mint-burn`"
    yield _derived(folder, "whatif.portfolio", "flink", ["tokens.mint-burn"], query)
    query = _VALUE.format(left="tickers.spy", right="whatif.portfolio")
    yield _derived(
        folder, "whatif.market-value", "flink", ["tickers.spy", "whatif.portfolio"], query, key="symbol"
    )


def trading() -> Iterator[Shape]:
    folder = "trading"
    for name in ("my.trades", "daily.tickers"):
        yield _root(folder, name, f'kind: FilesGlob, path: "data/{name}*.csv", eventTime: {{kind: FromMetadata}}, order: ByName',
                    columns="event_time timestamp, symbol string, quantity int64, close float64",
                    merge="{kind: Ledger, primaryKey: [event_time, symbol]}")  # fmt: skip
    query = f"SELECT event_time, symbol, {_TOTAL.format('quantity')} AS balance FROM `my.trades`"
    yield _derived(folder, "my.holdings", "flink", ["my.trades"], query)
    query = _VALUE.format(left="daily.tickers", right="my.holdings")
    yield _derived(
        folder, "my.holdings.value", "flink", ["daily.tickers", "my.holdings"], query, key="symbol"
    )


SHAPES = [
    shape
    for made in (covid, currency, housing, leaderboard, mqtt, overdue, private, rocket_pool, trading)
    for shape in made()
]
SHORT_TEXTS = {
    "eventTime": ("{kind: FromMetadata}", "FromMetadata"),
    "cache": ("{kind: Forever}", "Forever"),
}
"""Fields with a long form and its short form."""
