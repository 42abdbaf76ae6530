"""Datasets of the tests of tables."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import odf_engine
from odf_engine.api.dataset import Dataset
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.chain.schema_evolution import declare_schema
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddPushSource,
    DatasetKind,
    Ledger,
    NdJson,
    SetDataSchema,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.slices import stage_slice
from tests.sync.builders import SCHEMA, SECOND, START, add_slices, commit, make_root
from tests.workspace.conftest import s3 as s3

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, None, False]),
    "a.b, größe": (pa.int32(), [3, None, -7]),
    "tiny": (pa.uint16(), [0, 65535, None]),
    "big": (pa.uint64(), [0, 2**63 - 1, None]),
    "share": (pa.float64(), [0.5, float("nan"), float("inf")]),
    "price": (pa.decimal128(20, 2), [Decimal("12345678901234567.89"), None, Decimal("-1.10")]),
    "day": (pa.date32(), [date(2024, 2, 29), date(1, 1, 1), None]),
    "at": (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, 1, 2, 3, 456789, UTC), None, None]),
    "text": (pa.string(), ["ü" * 40, "", None]),
    "raw": (pa.binary(), [b"\0\xff", None, b""]),
    "none": (pa.string(), [None, None, None]),
    "tags": (pa.list_(pa.string()), [["a", None], [], None]),
    "place": (
        pa.struct([("a.b", pa.float64()), ("names", pa.list_(pa.string()))]),
        [{"a.b": 1.5, "names": ["x"]}, None, {"a.b": None, "names": None}],
    ),
    "last": (pa.int64(), [1, 2, 3]),
}
"""Types and values of columns."""


def make_wide(workspace: Workspace, name: str = "wide") -> DatasetEntry:
    """A dataset with columns of all types that tables have, of two slices."""
    schema = slice_schema(pa.schema({name: kind for name, (kind, _) in VALUES.items()}), DEFAULT_VOCABULARY)
    events = [declare_schema(schema, None, odf=True)]
    entry = workspace.create_dataset(DatasetAlias.parse(name), DatasetKind.Root, events, START)
    for rows in ([0, 1, 2], [1]):
        columns = {
            name: pa.array([values[row] for row in rows], kind) for name, (kind, values) in VALUES.items()
        }
        add_rows(entry, pa.table(columns), schema)
    return entry


def add_rows(entry: DatasetEntry, rows: pa.Table, schema: pa.Schema) -> None:
    """Commit rows in a slice."""
    state = entry.dataset.state()
    time = Timestamp(state.system_time.ns + SECOND)
    event, path = stage_slice(entry.dataset, rows, schema, time, new_watermark=state.watermark)
    commit(entry, [event], data=path)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path)


@pytest.fixture
def numbers(workspace: Workspace) -> DatasetEntry:
    """A dataset with a block without rows between two slices, and two more slices."""
    entry = make_root(workspace, slices=1, blocks=1)
    add_slices(entry, 3)
    return entry


def opened(workspace: Workspace, name: str = "numbers") -> Dataset:
    """The dataset of the façade."""
    return open_workspace(workspace)[name]


def open_workspace(workspace: Workspace) -> OpenWorkspace:
    return odf_engine.open(workspace.folder, in_process=True)


def as_values(table: pa.Table) -> list[str]:
    """The rows in the order of their offsets, in a form that has equal NaN."""
    rows = sorted(table.to_pylist(), key=lambda row: row["offset"])
    return [json.dumps(row, default=str, sort_keys=True) for row in rows]


def make_keyed(workspace: Workspace, key: str = "city", name: str = "numbers") -> DatasetEntry:
    """A dataset with a primary key, without rows."""
    events = [
        SetDataSchema(encode_schema(SCHEMA)),
        AddPushSource(source_name="default", read=NdJson(), merge=Ledger([key])),
    ]
    return workspace.create_dataset(DatasetAlias.parse(name), DatasetKind.Root, events, START)
