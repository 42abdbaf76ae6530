"""Small jobs that load what typical jobs need: to record a class-data archive, and to warm up Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.metadata.model import Csv, NdJson, SqlQueryStep
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.readers import ReadContext, read_csv, read_json, read_parquet
from odf_engine.spark.user_query import run_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS: Final = 2000
_QUERIES: Final = (
    "SELECT id, CAST(at AS TIMESTAMP) AS at, upper(name) AS name, price * 2 AS p FROM input WHERE id > 9",
    "SELECT day, count(*) AS n, sum(price) AS price FROM input GROUP BY day ORDER BY day",
    "SELECT l.id, r.name FROM input l JOIN input r ON l.id = r.id",
)


def training_job(session: SparkSession, scratch: Path) -> None:
    """Run typical work: read text and Parquet, query it, fetch the rows as Arrow batches."""
    rows = _rows(_ROWS)
    schema = _schema()
    lines, objects, parquet = (scratch / f"rows.{suffix}" for suffix in ("csv", "json", "parquet"))
    lines.write_text(_as_csv(rows))
    objects.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), parquet)
    frames = [
        read_csv(session, lines, Csv(), schema, ReadContext(scratch=scratch)),
        read_json(session, objects, NdJson(), schema, ReadContext(scratch=scratch)),
        read_parquet(session, parquet, None, scratch=scratch),
    ]
    for frame in frames:
        _fetch_all(frame)
        for query in _QUERIES:
            _fetch_all(run_query(session, {"input": frame}, [SqlQueryStep(query=query)]))


def warm_up_job(session: SparkSession, scratch: Path) -> None:
    """Run a query over a few rows of CSV, so that the JVM has loaded what the next job needs."""
    lines = scratch / "rows.csv"
    lines.write_text(_as_csv(_rows(50)))
    frame = read_csv(session, lines, Csv(), _schema(), ReadContext(scratch=scratch))
    _fetch_all(run_query(session, {"input": frame}, [SqlQueryStep(query=_QUERIES[0])]))


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "at": f"2024-01-{i % 28 + 1:02}T10:00:00Z",
            "day": "2024-01-31",
            "price": i / 4,
            "name": "a b",
        }
        for i in range(count)
    ]


def _schema() -> pa.Schema:
    timestamp, price = pa.timestamp("ms", "UTC"), pa.decimal128(12, 2)
    types = {"id": pa.int64(), "at": timestamp, "day": pa.date32(), "price": price, "name": pa.string()}
    return pa.schema(list(types.items()))


def _as_csv(rows: list[dict[str, Any]]) -> str:
    return "".join(",".join(map(str, row.values())) + "\n" for row in rows)


def _fetch_all(frame: DataFrame) -> None:
    for _ in arrow_batches(frame, Reporter())[1]:
        pass
