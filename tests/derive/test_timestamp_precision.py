"""Timestamps of derivatives are as precise as those of their inputs."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.ddl import parse_ddl, type_ddl
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.metadata.model import SetDataSchema
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import Deriving

SECOND = 1577836800  # 2020-01-01
QUERIES = {
    "rows": "SELECT event_time, at, struct(at AS inner) AS s, t FROM input",
    "groups": "SELECT window.start AS event_time, max(at) AS at, max(struct(at AS inner)) AS s, max(t) AS t"
    " FROM input GROUP BY window(event_time, '1 day')",
}


def add_rows(deriving: Deriving, entry: DatasetEntry, *days: int) -> None:
    schema = declared_schema(entry.dataset.state())
    assert schema is not None
    micros = [(SECOND + day * 86400) * 10**6 + 123456 for day in days]
    values: dict[str, Any] = {
        "event_time": pa.array([micro // 1000 for micro in micros], pa.timestamp("ms", "UTC")),
        "at": pa.array(micros, pa.timestamp("us", "UTC")),
        "t": pa.array([3723123456789] * len(days), pa.time64("ns")),
    }
    batch = pa.record_batch({name: values[name] for name in schema.names[3:]})
    deriving.batch(entry, batch, micros[-1] // 1000)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.complete(after=1)
def test_output_has_the_precision_of_the_inputs(deriving: Deriving, query: str) -> None:
    """Both kinds of queries, and their verification."""
    root = deriving.root(schema=parse_ddl(["at TIMESTAMP(6)", "t TIME(9)"]))
    output = deriving.derivative(QUERIES[query])
    add_rows(deriving, root, 0, 1, 2)
    deriving.run(output)
    add_rows(deriving, root, 3, 4)
    deriving.run(output)
    schema = declared_schema(output.dataset.state())
    assert schema is not None
    assert [type_ddl(field.type) for field in list(schema)[3:]] == [
        "TIMESTAMP(3)", "TIMESTAMP(6)", "STRUCT<inner: TIMESTAMP(6)>", "TIME(9)",
    ]  # fmt: skip
    table = deriving.table(output)
    at = table.column("at").cast(pa.int64()).to_pylist()
    assert at == [(SECOND + day * 86400) * 10**6 + 123456 for day in range(len(at))]
    assert set(table.column("t").cast(pa.int64()).to_pylist()) == {3723123456789}
    replay = Replay(deriving.workspace, output, deriving.engine, Reporter())
    report = verify(output.dataset, Reporter(), 0, None, replay)
    assert (report.findings, report.unchecked, report.transforms) == ([], [], 2)


def test_a_dataset_with_a_schema_keeps_its_precision(deriving: Deriving) -> None:
    """Such as one that an earlier version created, before its input had microseconds."""
    root = deriving.root(schema=parse_ddl(["at TIMESTAMP(6)"]))
    output = deriving.derivative("SELECT event_time, at FROM input")
    vocab = output.dataset.state().vocabulary
    schema = slice_schema(parse_ddl(["at TIMESTAMP(3)"]), vocab)
    deriving.commit(output, [SetDataSchema(encode_schema(schema))])
    add_rows(deriving, root, 0)
    deriving.run(output)
    assert deriving.table(output).column("at").cast(pa.int64()).to_pylist() == [SECOND * 1000 + 123]


TIMES = ["event_time TIMESTAMP", "t TIME(3)", "l ARRAY<TIME(3)>", "s STRUCT<x: TIME(0), l: ARRAY<TIME(3)>>"]
TIME_QUERIES = {
    "rows": "SELECT event_time, t, l, s FROM input",
    "groups": "SELECT window.start AS event_time, max(t) AS t, max(l) AS l, max(s) AS s"
    " FROM input GROUP BY window(event_time, '1 day')",
}


@pytest.mark.parametrize("query", TIME_QUERIES)
@pytest.mark.complete
def test_millisecond_times_pass_through_queries(deriving: Deriving, query: str) -> None:
    """Spark cannot read them from Parquet as times."""
    root = deriving.root(schema=parse_ddl(TIMES))
    output = deriving.derivative(TIME_QUERIES[query])
    schema = declared_schema(root.dataset.state())
    assert schema is not None
    noon = time(12, 0, 0, 3000)
    row = {"t": noon, "l": [noon, None], "s": {"x": noon, "l": [noon]}}
    for day in range(3):
        row["event_time"] = datetime(2020, 1, 1 + day, 12, tzinfo=UTC)
        columns = {name: pa.array([row[name]], schema.field(name).type) for name in schema.names[3:]}
        deriving.batch(root, pa.record_batch(columns), (SECOND + day * 86400) * 1000)
        deriving.run(output)
    rows = deriving.table(output).select(["t", "l", "s"]).to_pylist()
    assert rows == [{name: row[name] for name in ("t", "l", "s")}] * (3 if query == "rows" else 2)
    replay = Replay(deriving.workspace, output, deriving.engine, Reporter())
    report = verify(output.dataset, Reporter(), 0, None, replay)
    assert (report.findings, report.unchecked, report.transforms) == ([], [], 3)
