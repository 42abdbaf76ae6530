"""Chains as kamu writes them today: only an ODF schema, signed system columns, slices in several layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from odf_engine.base.config import MetadataConfig
from odf_engine.base.progress import Reporter
from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.data.digest import digest_file
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.errors import ChainRuleViolated
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata import model
from odf_engine.metadata.model import AddData, DataField, DataSchema, DataSlice, OffsetInterval, SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows.row_window import RowWindowReader
from odf_engine.rows.scan import Scan
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.sync.pull import clone_dataset
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import current_definition
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import ROOT, Deriving
from tests.derive.test_query_migration import becomes
from tests.sync.push_helpers import folder_remote, send

TIME = model.TimestampType(model.TimeUnit.Millisecond, "UTC")
DESCRIBED = model.ExtraAttributes({"opendatafabric.org/description": "name of the city"})
KAMU = [
    DataField("offset", model.Int64()),
    DataField("op", model.Int32()),
    DataField("system_time", TIME),
    DataField("event_time", TIME),
    DataField("city", model.Option(model.String()), DESCRIBED),
    DataField("x", model.Int64()),
]
NOTE = DataField("note", model.Option(model.String()))
DAY = 86_400_000


def with_forms(workspace: Workspace, **forms: Any) -> None:
    workspace.__dict__["config"] = replace(workspace.config, metadata=MetadataConfig(**forms))


class KamuRoot:
    """A root dataset as kamu writes it: no Arrow schema, and the layout of Arrow in the Parquet files."""

    def __init__(self, deriving: Deriving) -> None:
        self.deriving = deriving
        (self.entry,) = deriving.workspace.add(read_manifests(ROOT.format(name="input"), "test"))
        self.declare(KAMU)

    def declare(self, fields: list[DataField]) -> None:
        extra = model.ExtraAttributes({"kamu.dev/archetype": "Collection"})
        self.deriving.commit(self.entry, [SetDataSchema(odf_schema=DataSchema(fields, extra))])

    def append(self, *rows: tuple[int, str | None, int], text: pa.DataType, **more: list[str | None]) -> None:
        """One slice: day of January 1970, city and x of each row, with texts in this layout."""
        state = self.entry.dataset.state()
        first = 0 if state.last_offset is None else state.last_offset + 1
        now = max(Timestamp.now(), state.system_time)
        times = pa.array([(row[0] - 1) * DAY for row in rows], pa.timestamp("ms", "UTC"))
        columns = {
            "offset": pa.array(range(first, first + len(rows)), pa.int64()),
            "op": pa.array([0] * len(rows), pa.int32()),
            "system_time": pa.array([now.ms] * len(rows), pa.timestamp("ms", "UTC")),
            "event_time": times,
            "city": pa.array([row[1] for row in rows], text),
            "x": pa.array([row[2] for row in rows], pa.int64()),
            **{name: pa.array(values, text) for name, values in more.items()},
        }
        optional = {"city", *more}
        schema = pa.schema([pa.field(name, each.type, name in optional) for name, each in columns.items()])
        staged = self.entry.dataset.staging_path("data")
        pq.write_table(pa.table(columns, schema=schema), staged, version="1.0", compression="snappy")
        assert pq.read_schema(staged).field("city").type == text
        digest = digest_file(staged)
        interval = OffsetInterval(first, first + len(rows) - 1)
        data = DataSlice(digest.logical_hash, digest.physical_hash, interval, staged.stat().st_size)
        event = AddData(
            prev_offset=state.last_offset,
            new_data=data,
            new_watermark=Timestamp.from_ms(max((row[0] - 1) * DAY for row in rows)),
        )
        self.deriving.commit(self.entry, [event], now, data=staged)


def check(deriving: Deriving, entry: DatasetEntry) -> int:
    """Verifies a dataset with its transactions; returns their number."""
    replay = Replay(deriving.workspace, entry, deriving.engine, Reporter())
    report = verify(entry.dataset, Reporter(), None, None, replay)
    assert (report.valid, report.findings) == (True, [])
    return report.transforms


@pytest.fixture
def root(deriving: Deriving) -> KamuRoot:
    return KamuRoot(deriving)


def test_chain_with_odf_schema_is_transformed_verified_and_transferred(
    deriving: Deriving, root: KamuRoot, tmp_path: Path, runtime: SparkRuntime
) -> None:
    """Read, transformed, verified, evolved, and transferred to a workspace where all of it works too."""
    root.append((1, "a", 1), (2, None, 2), text=pa.string())
    root.append((3, "b", 3), text=pa.large_string())
    with_forms(deriving.workspace, data_schema="odf", system_columns="kamu")
    derived = deriving.derivative("SELECT event_time, upper(city) AS city, x * 2 AS y FROM input")
    sums = deriving.derivative(
        "SELECT window.start AS event_time, sum(x) AS total FROM input GROUP BY window(event_time, '1 day')",
        name="sums",
    )
    assert deriving.run(derived) == 1
    deriving.run(sums)
    root.declare([*KAMU, NOTE])
    root.append((4, "c", 4), text=pa.string_view(), note=["new"])
    assert deriving.run(derived) == 1
    deriving.run(sums)
    assert deriving.result(derived, "offset", "op", "city", "y") == [
        (0, 0, "A", 2), (1, 0, None, 4), (2, 0, "B", 6), (3, 0, "C", 8),
    ]  # fmt: skip
    assert deriving.result(sums, "total") == [(1,), (2,), (3,)]
    state = derived.dataset.state()
    assert state.schema is None and state.odf_schema is not None
    assert [(field.name, field.type) for field in state.odf_schema.fields] == [
        ("offset", model.Int64()), ("op", model.Int32()), ("system_time", TIME), ("event_time", TIME),
        ("city", model.Option(model.String())), ("y", model.Option(model.Int64())),
    ]  # fmt: skip
    assert [check(deriving, entry) for entry in (root.entry, derived, sums)] == [0, 2, 2]
    # Rows of older slices, in any layout, with null for the column that they lack.
    rows = RowWindowReader(root.entry.dataset).tail(10)
    assert rows.column("note").to_pylist() == [None, None, None, "new"]
    assert rows.column("city").to_pylist() == ["a", None, "b", "c"]
    assert Scan.of_dataset(root.entry.dataset).schema.field("offset").type == pa.int64()
    # Another workspace.
    other = Deriving(Workspace.init(tmp_path / "other"), runtime)
    copies = []
    for entry in (root.entry, derived, sums):
        remote = folder_remote(tmp_path / "remote" / str(entry.alias))
        send(entry, remote)
        alias = DatasetAlias(None, str(entry.alias))
        copy, _ = clone_dataset(other.workspace, alias, remote, Reporter(), parallel=1)
        assert copy.dataset.head() == entry.dataset.head()
        copies.append(copy)
    assert [check(other, entry) for entry in copies] == [0, 2, 2]
    again = other.derivative("SELECT event_time, city FROM input", name="again")
    other.run(again)
    assert other.result(again, "city") == [("a",), (None,), ("b",), ("c",)]
    schema = declared_schema(again.dataset.state())
    assert schema is not None and schema.field("op").type == pa.uint8()  # the forms of that workspace


def test_owner_can_append_rows_and_evolve_the_schema(deriving: Deriving, root: KamuRoot) -> None:
    root.append((1, "a", 1), text=pa.large_string())
    batch = pa.record_batch(
        {"event_time": pa.array([DAY], pa.timestamp("ms", "UTC")), "city": ["b"], "x": [2]}
    )
    deriving.batch(root.entry, batch, DAY)
    file = pq.ParquetFile(root.entry.dataset.slice_path(root.entry.dataset.slices()[-1]))
    assert (
        file.schema_arrow.field("offset").type == pa.int64()
        and file.schema_arrow.field("op").type == pa.int32()
    )
    (snapshot,) = [current_definition(root.entry)]
    declared = next(event for event in snapshot.metadata if isinstance(event, SetDataSchema))
    assert declared.odf_schema is not None and declared.odf_schema.fields[4].extra == DESCRIBED
    assert not deriving.workspace.update([snapshot])[0].events
    grown = replace(snapshot, metadata=[SetDataSchema(ddl=["city STRING", "x BIGINT NOT NULL", "z INT"])])
    (update,) = deriving.workspace.update([grown])
    odf_schema = root.entry.dataset.state().odf_schema
    assert odf_schema == DataSchema(
        [*KAMU, DataField("z", model.Option(model.Int32()))],
        model.ExtraAttributes({"kamu.dev/archetype": "Collection"}),
    )
    assert [change.lines for change in update.changes if change.title == "SetDataSchema"]
    wrong = replace(
        snapshot, metadata=[SetDataSchema(ddl=["city INT", "x BIGINT NOT NULL", "z INT", "w INT"])]
    )
    with pytest.raises(ChainRuleViolated, match="'city' changed from STRING to INT"):
        deriving.workspace.update([wrong])
    assert check(deriving, root.entry) == 0


@pytest.mark.complete
def test_changed_query_adds_columns_to_the_odf_schema(deriving: Deriving, root: KamuRoot) -> None:
    """New columns come into the ODF schema, whether the query has a state or not."""
    with_forms(deriving.workspace, data_schema="odf", system_columns="kamu")
    plain = deriving.derivative("SELECT event_time, x FROM input", name="plain")
    daily = "SELECT window.start AS event_time, %s FROM input GROUP BY window(event_time, '1 day')"
    sums = deriving.derivative(daily % "sum(x) AS total", name="sums")
    root.append((1, "a", 1), (2, "b", 2), text=pa.string())
    for entry in (plain, sums):
        deriving.run(entry)
    with_forms(deriving.workspace)  # a dataset keeps its form
    becomes(deriving, plain, "SELECT event_time, x, city FROM input")
    changed = daily % "sum(x) AS total, count(*) AS rows"
    becomes(deriving, sums, changed, choice="rebuild", accept_columns=True)
    root.append((3, "c", 3), text=pa.large_string())
    for entry, column in ((plain, "city"), (sums, "rows")):
        deriving.run(entry)
        odf_schema = entry.dataset.state().odf_schema
        assert odf_schema is not None and entry.dataset.state().schema is None
        assert odf_schema.fields[1] == DataField("op", model.Int32())
        last = odf_schema.fields[-1]
        assert last.name == column and isinstance(last.type, model.Option)
        check(deriving, entry)
    assert RowWindowReader(sums.dataset).tail(5).column("rows").to_pylist() == [None, 1]
