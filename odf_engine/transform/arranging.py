"""The order of the rows of a stream: they come from Spark in any, and become rows of a slice in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.ingest.ordering import Order, gathered
from odf_engine.progress import Reporter
from odf_engine.spark.frames import arrow_batches
from odf_engine.spark.plans import by_all_columns, by_order
from odf_engine.spark.readers import spark_path
from odf_engine.spark.types import arrow_schema, spark_schema
from odf_engine.transform.output import Contract

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession


class Arranging:
    """Takes the rows of batches and puts them in order.

    Args:
        session: the job's own.
        folder: for files that last as long as the rows are wanted.
        reporter: hears of amounts, and is asked whether to stop.
    """

    def __init__(self, session: SparkSession, folder: Path, reporter: Reporter) -> None:
        self._session = session
        self._folder = folder
        self._reporter = reporter

    def sorted(self, frame: DataFrame, contract: Contract, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of batch ``number`` by event time and then every other column.

        All of them are there when this returns.

        Raises:
            BadData: a row has no event time.
        """
        time, path = contract.event_time, self._path(number)
        schema = arrow_schema(frame.schema)
        if any(types.is_nested(field.type) for field in schema):
            self._write(self._rows(frame, contract), schema, path)
            return arrow_batches(self._by_spark(schema, path, time), self._reporter, progress=False)[1]
        order = Order(tuple(sorted(schema.names, key=lambda name: name != time)))
        rows = self._rows(frame, contract)
        found = gathered(rows, order, path, lambda kind: self._by_spark(kind, path, time), self._reporter)
        first = next(found, None)
        return iter(()) if first is None else chain([first], found)

    def kept(self, frame: DataFrame, contract: Contract, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of batch ``number`` as they come, for :meth:`ordered`; all of them are there then.

        Raises:
            BadData: a row has no event time.
        """
        path = self._path(number)
        self._write(self._rows(frame, contract), arrow_schema(frame.schema), path)
        return pq.ParquetFile(path).iter_batches()

    def ordered(
        self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, order: Sequence[str], time: str
    ) -> Iterator[pa.RecordBatch]:
        """Rows as a query's ORDER BY says (:attr:`Stateful.order`), then by time and every other column."""
        path = self._folder / "unsorted.parquet"
        self._write(rows, schema, path)
        frame = by_order(self._read(schema, path), order, time)
        return arrow_batches(frame, self._reporter, progress=False)[1]

    def _path(self, number: int) -> Path:
        return self._folder / f"rows-{number}.parquet"

    def _rows(self, frame: DataFrame, contract: Contract) -> Iterator[pa.RecordBatch]:
        return map(contract.checked, arrow_batches(frame, self._reporter)[1])

    def _write(self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
        with pq.ParquetWriter(path, schema, compression="lz4") as writer:
            for batch in rows:
                writer.write_batch(batch)

    def _by_spark(self, schema: pa.Schema, path: Path, time: str) -> DataFrame:
        return by_all_columns(self._read(schema, path), time)

    def _read(self, schema: pa.Schema, path: Path) -> DataFrame:
        return self._session.read.schema(spark_schema(schema)).parquet(spark_path(path))
