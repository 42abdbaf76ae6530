"""Queries, inputs and schemas change: what lies before is finished, states are kept, ended or rebuilt."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from odf_engine.base.config import Config, TransformConfig
from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import read_batches, slice_schema
from odf_engine.derive.query_migration import (
    Choice,
    MigrationOptions,
    MigrationResult,
    migrate_query,
    preview_migration,
)
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.engines.contract import TransactionResult, ValidatedQuery
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.errors import InvalidManifest, InvalidQuery, Unsupported, UsageError
from odf_engine.metadata.model import (
    DatasetSnapshot,
    ExecuteTransform,
    SetDataSchema,
    SetTransform,
    Sql,
    TransformInput,
    kind_of,
)
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import current_definition
from tests.derive.deriving import DATA, Deriving

A, R, CF, CT = 0, 1, 2, 3
DAILY = (
    "SELECT window.start AS event_time, city, sum(x) AS s FROM input "
    "GROUP BY window(event_time, '1 day'), city"
)


def definition(
    entry: DatasetEntry, query: str, *inputs: str, engine: str = "spark", version: str | None = None
) -> DatasetSnapshot:
    named = [TransformInput(each, each) for each in inputs or ("input",)]
    transform = SetTransform(named, Sql(engine=engine, version=version, query=query))
    return DatasetSnapshot(str(entry.alias), entry.dataset.state().kind, [transform])


def becomes(
    deriving: Deriving, entry: DatasetEntry, query: str, *inputs: str, choice: Choice = "", **more: Any
) -> MigrationResult:
    snapshot = definition(entry, query, *inputs)
    return migrate_query(
        deriving.workspace,
        entry,
        snapshot,
        deriving.engine,
        Reporter(),
        MigrationOptions(choice=choice, **more),
    )


def history(entry: DatasetEntry) -> Iterator[tuple[str, int]]:
    """The kinds of blocks, oldest first, and how many rows each brought."""
    for stored in reversed(list(entry.dataset.blocks())):
        event = stored.block.event
        data = event.new_data if isinstance(event, ExecuteTransform) else None
        yield kind_of(event), 0 if data is None else data.offset_interval.end - data.offset_interval.start + 1


def read_slice(path: Path) -> pa.Table:
    return pa.Table.from_batches(read_batches(path))


def check(deriving: Deriving, entry: DatasetEntry) -> None:
    """Everybody can do it again."""
    replay = Replay(deriving.workspace, entry, deriving.engine, Reporter())
    report = verify(entry.dataset, Reporter(), replay=replay)
    assert report.findings == []


def test_stateless_query_change_applies_only_to_new_rows(deriving: Deriving) -> None:
    root = deriving.root()
    made = deriving.derivative("SELECT event_time, x FROM input")
    transform = made.dataset.state().transform
    assert transform is not None and transform.transform.version == spark_engine_version()
    with pytest.raises(InvalidManifest, match=r"unsupported engine version 3\.5\.0: this is"):
        deriving.workspace.update([definition(made, "SELECT event_time FROM input", version="3.5.0")])
    deriving.rows(root, (1, "a", 1))
    deriving.run(made)
    deriving.rows(root, (2, "b", 2))
    with pytest.raises(InvalidQuery, match="column 'x' is missing"):
        becomes(deriving, made, "SELECT event_time, city FROM input")
    outcome = becomes(deriving, made, "SELECT event_time, x * 10 AS x, city FROM input")
    assert outcome.state == "none"
    assert [change.title for change in outcome.changes] == ["SetDataSchema", "SetTransform"]
    deriving.rows(root, (3, "c", 3))
    deriving.run(made)
    # The old query did what was there before.
    slices = [deriving.workspace.resolve("output").dataset.slice_path(row) for row in made.dataset.slices()]
    rows = pa.concat_tables(map(read_slice, slices), promote_options="default")
    assert rows.select(["x", "city"]).to_pylist() == [
        {"x": 1, "city": None}, {"x": 2, "city": None}, {"x": 30, "city": "c"},
    ]  # fmt: skip
    assert list(history(made)) == [
        ("Seed", 0), ("SetTransform", 0), ("SetDataSchema", 0), ("ExecuteTransform", 1),
        ("ExecuteTransform", 1), ("SetDataSchema", 0), ("SetTransform", 0), ("ExecuteTransform", 1),
    ]  # fmt: skip
    check(deriving, made)


def test_run_requires_the_engine_version_of_the_chain(deriving: Deriving) -> None:
    root = deriving.root()
    made = deriving.derivative("SELECT event_time, x FROM input")
    transform = made.dataset.state().transform
    assert transform is not None
    older = replace(transform, transform=replace(transform.transform, version="4.2.0+odf1"))
    deriving.commit(made, [older])
    deriving.rows(root, (1, "a", 1))
    with pytest.raises(Unsupported, match=r"for version 4\.2\.0\+odf1 of the engine, but this is"):
        deriving.run(made)
    snapshot = current_definition(made)
    assert deriving.workspace.update([snapshot])[0].events == []  # the version is not said: it stays
    (said,) = snapshot.metadata
    assert isinstance(said, SetTransform)
    present = replace(said, transform=replace(said.transform, version=spark_engine_version()))
    (update,) = deriving.workspace.update([replace(snapshot, metadata=[present])])
    changed = [line.split(maxsplit=1) for line in update.changes[0].lines if line[0] in "+-"]
    assert changed == [["-", "version: 4.2.0+odf1"], ["+", f"version: {spark_engine_version()}"]]
    assert deriving.run(made) == 1


@pytest.mark.complete
def test_changed_window_query_keeps_flushes_or_rebuilds_state(deriving: Deriving) -> None:
    root = deriving.root()
    ended, built = (deriving.derivative(DAILY, name=name) for name in ("ended", "built"))
    deriving.rows(root, (1, "a", 1), (1.5, "b", 2), (2, "a", 4))
    # What is computed of the aggregates does not matter to the state.
    deriving.run(built)
    assert becomes(deriving, built, DAILY.replace("sum(x) AS s", "sum(x) + 0 AS s")).state == "kept"
    deriving.rows(root, (2.5, "a", 8))
    longer = DAILY.replace("1 day", "2 days")
    deriving.run(ended)
    with pytest.raises(UsageError, match="cannot continue from the state of the old one") as raised:
        becomes(deriving, ended, longer)
    assert "--flush" in str(raised.value.hint) and "--rebuild" in str(raised.value.hint)
    assert becomes(deriving, ended, longer, choice="flush").state == "flushed"
    assert becomes(deriving, built, longer, choice="rebuild").state == "rebuilt"
    deriving.rows(root, (2.75, "a", 16), (5, "c", 32))
    deriving.rows(root, (9, "c", 64))
    for entry in (ended, built):
        deriving.run(entry)
    # The first day is out already. What was open came out at once, and the rest comes by itself …
    assert deriving.result(ended, "city", "s") == [("a", 1), ("b", 2), ("a", 12), ("a", 16), ("c", 32)]
    assert list(history(ended))[3:] == [
        ("ExecuteTransform", 2), ("ExecuteTransform", 1), ("SetTransform", 0), ("ExecuteTransform", 2),
    ]  # fmt: skip
    # … or all of it as if the new query had been there from the start.
    assert deriving.result(built, "city", "s") == [("a", 1), ("b", 2), ("a", 28), ("c", 32)]
    assert list(history(built))[6:] == [
        ("SetTransform", 0), ("ExecuteTransform", 0), ("ExecuteTransform", 2)
    ]  # fmt: skip
    words = [row.summary for row in ended.dataset.list_blocks(10, kinds=("ExecuteTransform",))]
    check(deriving, ended)
    assert words[1].startswith("+1 row")
    assert words[1].endswith("state flushed")


@pytest.mark.complete
def test_state_is_flushed_when_the_query_becomes_stateless(deriving: Deriving) -> None:
    root = deriving.root()
    made = deriving.derivative(DAILY)
    deriving.rows(root, (1, "a", 1))
    deriving.run(made)
    plain = "SELECT event_time, city, x AS s FROM input"
    with pytest.raises(UsageError, match="cannot continue"):
        becomes(deriving, made, plain)
    with pytest.raises(UsageError, match="there is no state to rebuild"):
        becomes(deriving, made, plain, choice="rebuild")
    with pytest.raises(UsageError, match="requires a choice for the state of the old query"):
        deriving.workspace.update([definition(made, plain)])
    assert becomes(deriving, made, plain, choice="flush").state == "flushed"
    deriving.rows(root, (2, "b", 1))
    deriving.run(made)
    assert deriving.result(made, "city", "s") == [("a", 1), ("b", 1)]
    # There is nothing to end, and what is older than the dataset's watermark is late.
    assert becomes(deriving, made, DAILY, choice="flush").state == "none"
    deriving.rows(root, (1.5, "c", 1), (2.5, "c", 2), (4, "d", 1))
    deriving.run(made)
    assert deriving.result(made, "city", "s")[2:] == [("c", 2)]


@pytest.mark.complete
def test_rebuild_corrects_groups_of_a_changed_query(deriving: Deriving) -> None:
    root = deriving.root()
    query = "SELECT max(event_time) AS event_time, city, sum(x) AS s FROM input GROUP BY city"
    made = deriving.derivative(query)
    deriving.rows(root, (1, "a", 1), (1, "b", 2), (1, "c", 3))
    deriving.run(made)
    deriving.rows(root, (2, "b", 4))
    twice = query.replace("sum(x)", "2 * sum(x)") + " HAVING sum(x) <> 3"
    assert becomes(deriving, made, twice, choice="rebuild").state == "rebuilt"
    assert deriving.result(made, "op", "city", "s")[3:] == [
        (CF, "b", 2), (CT, "b", 6), (CF, "a", 1), (CT, "a", 2), (R, "c", 3), (CF, "b", 6), (CT, "b", 12),
    ]  # fmt: skip
    deriving.rows(root, (3, "a", 5))
    deriving.run(made)
    assert deriving.result(made, "op", "city", "s")[10:] == [(CF, "a", 2), (CT, "a", 12)]
    # Rows of groups are out already: nothing is to come of a state that ends.
    assert becomes(deriving, made, query, choice="flush").state == "flushed"
    assert [event.new_data is None for event in transactions(made)][-2:] == [False, True]
    check(deriving, made)


@pytest.mark.complete
def test_inputs_of_a_query_can_be_added_and_removed(deriving: Deriving) -> None:
    first, second = deriving.root("first"), deriving.root("second")
    made = deriving.derivative(DAILY.replace("input", "first"), "first")
    deriving.rows(first, (1, "a", 1), (2, "a", 2))
    deriving.run(made)
    deriving.rows(second, (1, "b", 4), (2, "b", 8), (4, "b", 0))
    both = "WITH input AS (SELECT * FROM first UNION ALL SELECT * FROM second) " + DAILY
    assert becomes(deriving, made, both, "first", "second", choice="rebuild").state == "rebuilt"
    deriving.run(made)
    # The new input is read from its start; its first day is late for a dataset that had closed that day.
    assert deriving.result(made, "city", "s") == [("a", 1)]
    deriving.rows(first, (4, "a", 0))
    deriving.run(made)
    assert deriving.result(made, "city", "s")[1:] == [("a", 2), ("b", 8)]
    only = DAILY.replace("input", "second")
    assert becomes(deriving, made, only, "second", choice="flush").state == "flushed"
    assert [len(event.query_inputs) for event in transactions(made)] == [1, 2, 2, 2, 2]
    check(deriving, made)


def transactions(entry: DatasetEntry) -> list[ExecuteTransform]:
    events = [stored.block.event for stored in reversed(list(entry.dataset.blocks()))]
    return [event for event in events if isinstance(event, ExecuteTransform)]


@pytest.mark.complete
def test_new_input_column_of_select_star_must_be_accepted(deriving: Deriving) -> None:
    root = deriving.root()
    star = deriving.derivative("SELECT * FROM input", name="star")
    named = deriving.derivative("SELECT DISTINCT event_time, city FROM input", name="named")
    deriving.rows(root, (1, "a", 1))
    for entry in (star, named):
        deriving.run(entry)
    deriving.rows(root, (2, "b", 2))
    vocab = root.dataset.state().vocabulary
    wide = slice_schema(pa.schema([*DATA, pa.field("extra", pa.string())]), vocab)
    deriving.commit(root, [SetDataSchema(schema=encode_schema(wide))])
    deriving.rows(root, (3, "c", 3))
    deriving.run(named)
    assert deriving.result(named, "city") == [("a",), ("b",), ("c",)]
    with pytest.raises(InvalidQuery, match="column 'extra' is new") as raised:
        deriving.run(star)
    assert "--accept-columns" in str(raised.value.hint)
    assert deriving.result(star, "x") == [(1,), (2,)]  # until there it went on
    snapshot = definition(star, "SELECT * FROM input")
    found = preview_migration(deriving.workspace, snapshot, deriving.engine)
    assert found is not None and (found.new, found.state) == (["extra"], "none")
    outcome = migrate_query(
        deriving.workspace,
        star,
        current_definition(star),
        deriving.engine,
        Reporter(),
        MigrationOptions(accept_columns=True),
    )
    assert outcome.changes[0].lines[-1] == "+ extra STRING"
    deriving.run(star)
    assert star.dataset.state().records == 3
    check(deriving, star)


class Foreign(SparkEngine):
    """An engine that can only run queries."""

    def validate(self, transform: Sql, inputs: Any, vocab: Any, declared: Any) -> ValidatedQuery:
        raise Unsupported("unsupported by the engine")

    def run(self, operation: Any, request: Any, declared: Any, reporter: Any) -> TransactionResult:
        """It does not report its version."""
        return dataclasses.replace(super().run(operation, request, declared, reporter), version=None)


def test_query_can_migrate_to_an_engine_without_validation(deriving: Deriving, runtime: SparkRuntime) -> None:
    root = deriving.root()
    engines = {"flink": "grpc://localhost:1"}
    deriving.workspace.config = Config(transform=TransformConfig(most_rows=2), engines=engines)
    made = deriving.derivative("SELECT event_time, x FROM input")
    deriving.rows(root, (1, "a", 1), (1, "b", 2))
    deriving.rows(root, (2, "a", 3))
    assert deriving.run(made) == 2  # no more rows at once than the configuration says
    deriving.rows(root, (3, "a", 4))
    deriving.engine = Foreign(runtime)
    foreign = definition(made, "SELECT event_time, x + 1 AS x FROM input", engine="flink", version="1.2")
    assert migrate_query(deriving.workspace, made, foreign, deriving.engine, Reporter()).state == "none"
    deriving.rows(root, (4, "a", 5))
    deriving.run(made)
    assert deriving.result(made, "x") == [(1,), (2,), (3,), (4,), (6,)]
    with pytest.raises(Unsupported, match="unsupported by the engine"):
        becomes(deriving, made, "SELECT event_time, x FROM input")
