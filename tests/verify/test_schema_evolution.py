"""Schemas that change: whatever is allowed keeps old rows readable, and everything else is refused."""

from __future__ import annotations

import random
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import ChainRuleViolated
from odf_engine.identity.did import DatasetId
from odf_engine.metadata.model import DEFAULT_VOCABULARY, DatasetKind, Seed, SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows.row_window import RowWindowReader
from tests.slices import stage_slice

NOW = Timestamp.parse("2024-05-01T00:00:00Z")
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [1, None, -1]),
    (pa.string(), ["a", "", None]),
    (pa.date32(), [date(2024, 2, 29), None]),
    (pa.list_(pa.string()), [["x"], [], None]),
    (pa.struct([("lat", pa.float64())]), [{"lat": 1.5}, {"lat": None}, None]),
]
FIRST = slice_schema(pa.schema([pa.field("id", pa.int64(), False), ("x", pa.string())]), DEFAULT_VOCABULARY)


class Growing:
    """A dataset whose schema changes between slices, and the rows that it should have."""

    def __init__(self, folder: Path) -> None:
        self.dataset = Dataset(folder, BlockIndex(":memory:"))
        self.schema = FIRST
        self.rows: list[dict[str, Any]] = []
        self.commit(None, Seed(DatasetId(bytes(32)), DatasetKind.Root), SetDataSchema(encode_schema(FIRST)))

    def commit(self, data: Path | None, *events: Any) -> None:
        self.dataset.commit(events, system_time=NOW, expected_head=self.dataset.head(), data=data)

    def migrate(self, fields: list[pa.Field]) -> None:
        schema = pa.schema(fields)
        self.commit(None, SetDataSchema(encode_schema(schema)))
        self.schema = schema

    def append(self, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> None:
        schema = self.schema if schema is None else schema
        table = pa.Table.from_pylist(rows, self.data_columns(schema))
        event, path = stage_slice(self.dataset, table, schema, NOW)
        self.commit(path, event)
        self.rows += rows

    def data_columns(self, schema: pa.Schema) -> pa.Schema:
        system = FIRST.names[:4]
        return pa.schema([field for field in schema if field.name not in system])


@pytest.fixture
def folders(tmp_path: Path) -> Any:
    return (tmp_path / f"dataset{number}" for number in count())


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from("+~m"), min_size=1, max_size=5))
def test_allowed_migrations_keep_old_rows_readable(folders: Any, seed: int, steps: list[str]) -> None:
    """New columns (+), another order (~), attributes (m), with rows after each."""
    dice = random.Random(seed)
    growing = Growing(next(folders))
    values: dict[str, list[Any]] = {"id": [1, 2], "x": ["a", None]}
    for number, step in enumerate(["", *steps]):
        fields = list(growing.schema)
        if step == "+":
            kind, known = dice.choice(TYPES)
            fields.insert(dice.randint(4, len(fields)), pa.field(f"new{number}", kind))
            values[f"new{number}"] = known
        elif step == "~":
            dice.shuffle(fields)
        elif step == "m":
            at = dice.randrange(len(fields))
            fields[at] = fields[at].with_metadata({"number": str(number)})
        if not pa.schema(fields).equals(growing.schema, check_metadata=True):
            growing.migrate(fields)
        columns = growing.data_columns(growing.schema).names
        growing.append([{name: dice.choice(values[name]) for name in columns} for _ in range(2)])
    preview = RowWindowReader(growing.dataset)
    assert preview.columns.names == growing.schema.names
    wanted = [{name: row.get(name) for name in values} for row in growing.rows]
    for table in (preview.window(0, 99), preview.tail(99)):
        assert table.column_names == growing.schema.names
        assert table.select(list(values)).to_pylist() == wanted
        assert table["offset"].to_pylist() == list(range(len(wanted)))
    report = verify(growing.dataset, Reporter())
    assert report.valid, report.findings


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), wrong=st.sampled_from(["gone", "type", "null", "required", "renamed"]))
def test_other_migrations_are_refused(folders: Any, seed: int, wrong: str) -> None:
    """However much that is allowed comes along with them."""
    dice = random.Random(seed)
    growing = Growing(next(folders))
    fields = [*growing.schema, pa.field("good", pa.int32())]
    at = dice.randrange(len(growing.schema))
    field = fields[at]
    if wrong == "gone":
        del fields[at]
    elif wrong == "type":
        fields[at] = field.with_type(pa.float32())
    elif wrong == "null":
        fields[at] = field.with_nullable(not field.nullable)
    elif wrong == "renamed":
        fields[at] = field.with_name(field.name.upper())
    else:
        fields.append(pa.field("more", pa.int32(), nullable=False))
    dice.shuffle(fields)
    head = growing.dataset.head()
    with pytest.raises(ChainRuleViolated) as caught:
        growing.migrate(fields)
    assert caught.value.rule == "schema-evolution"
    assert caught.value.hint
    assert growing.dataset.head() == head


def test_slice_with_an_outdated_schema_is_found(folders: Any) -> None:
    """Neither one that comes later nor one that is past."""
    growing = Growing(next(folders))
    growing.append([{"id": 1, "x": "a"}])
    growing.migrate([*growing.schema, pa.field("y", pa.int32())])
    growing.append([{"id": 2, "x": "b"}], FIRST)
    report = verify(growing.dataset, Reporter())
    assert [finding.kind for finding in report.findings] == ["slice-schema"]
    assert report.findings[0].block == str(growing.dataset.head())


def test_null_in_a_required_column_is_found(folders: Any) -> None:
    growing = Growing(next(folders))
    growing.append([{"id": 1, "x": "a"}])
    loose = pa.schema([field.with_nullable(True) for field in FIRST])
    growing.append([{"id": 2, "x": "b"}, {"id": None, "x": "c"}], loose)
    report = verify(growing.dataset, Reporter())
    assert [(finding.kind, finding.message) for finding in report.findings] == [
        ("slice-null", "row 1 has no value in 'id', which is NOT NULL")
    ]
