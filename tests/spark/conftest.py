"""A session of its own for each test of Spark, and files written and read in one breath."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.metadata.model import Csv, NdJson

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odf_engine.spark.runtime.session import SparkRuntime

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _use_generated_code(request: pytest.FixtureRequest) -> None:
    """Tests of Spark evaluate queries as users do."""
    if "runtime" in request.fixturenames:
        request.getfixturevalue("generated_code")


@pytest.fixture
def session(runtime: SparkRuntime) -> SparkSession:
    """As a job gets it."""
    return runtime.session()


@pytest.fixture
def rows() -> Callable[[DataFrame], Rows]:
    """All rows of a frame, the way they leave Spark."""
    from odf_engine.spark.arrow_batches import arrow_batches

    def take(frame: DataFrame) -> Rows:
        return [row for batch in arrow_batches(frame, Reporter())[1] for row in batch.to_pylist()]

    return take


@pytest.fixture
def csv(session: SparkSession, rows: Callable[[DataFrame], Rows], tmp_path: Path) -> Callable[..., Rows]:
    """``csv(data, schema, **options of the step)``: the rows of a CSV file with this text or bytes."""
    from odf_engine.spark.readers import ReadContext, read_csv

    def read(data: str | bytes, schema: pa.Schema | None = None, **options: Any) -> Rows:
        file = tmp_path / "file.csv"
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        return rows(read_csv(session, file, Csv(**options), schema, ReadContext(scratch=tmp_path)))

    return read


@pytest.fixture
def ndjson(session: SparkSession, rows: Callable[[DataFrame], Rows], tmp_path: Path) -> Callable[..., Rows]:
    """``ndjson(data, schema, **options of the step)``: the rows of a file of JSON lines."""
    from odf_engine.spark.readers import ReadContext, read_json

    def read(data: str | bytes, schema: pa.Schema | None = None, **options: Any) -> Rows:
        file = tmp_path / "file.json"
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        return rows(read_json(session, file, NdJson(**options), schema, ReadContext(scratch=tmp_path)))

    return read
