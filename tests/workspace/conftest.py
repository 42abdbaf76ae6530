"""A workspace in a fresh folder, a way to put rows into a dataset without ingestion, and stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.metadata.model import SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.workspace import Workspace
from tests.s3_server import S3Server, s3_server
from tests.slices import stage_slice

Append = Callable[[Dataset, pa.Table], None]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.delenv("ODF_WORKSPACE", raising=False)
    return Workspace.init(tmp_path / "ws")


@pytest.fixture
def append() -> Append:
    """Commits a table as the next slice, with its schema when that is new; it may have operations."""

    def commit(dataset: Dataset, table: pa.Table) -> None:
        state, now = dataset.state(), Timestamp.now()
        data_columns = table.select([name for name in table.column_names if name != "op"])
        schema = slice_schema(data_columns.schema, state.vocabulary)
        if state.schema != encode_schema(schema):
            set_schema = SetDataSchema(encode_schema(schema))
            dataset.commit([set_schema], system_time=now, expected_head=state.head)
        event, path = stage_slice(dataset, table, schema, now)
        dataset.commit([event], system_time=now, expected_head=dataset.head(), data=path)

    return commit


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "store").mkdir()
    return (tmp_path / "store").as_uri()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-environment")
    with s3_server() as server:
        yield server
