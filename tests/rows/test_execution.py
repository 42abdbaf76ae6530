"""Which block and which columns of a dataset a query sees; the answers themselves are in tests/cli."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.derive.verify.proof_check import check_table
from odf_engine.errors import BadData, Cancelled, InvalidQuery, NotFound, OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import SetDataSchema
from odf_engine.rows.execution import (
    Tables,
    TimeTravelDefaults,
    columns_at,
    execute_query,
    execute_with_duckdb,
    parse_time_travel,
    resolve,
    resolve_pin,
)
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.sql.table_functions import TableFunctionCall, parse_table_function
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import SCHEMA, add_slices, commit, make_root


def test_query_sees_the_block_and_columns_of_its_time(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path)
    entry = make_root(workspace, "numbers", slices=2)
    commit(entry, [SetDataSchema(encode_schema(SCHEMA.append(pa.field("more", pa.string()))))])
    add_slices(entry)

    def at(text: str | None) -> tuple[int, int | None, bool]:
        """Block, newest record, and whether the column that came later is seen."""
        pin = resolve_pin(entry, text)
        return pin.sequence_number, pin.last_offset, "more" in columns_at(entry, pin).names

    times = [row.system_time for row in reversed(entry.dataset.list_blocks(9))]
    assert at(None) == (5, 8, True)
    assert at(str(times[4])) == at(str(entry.dataset.block(4).hash)) == at("4") == (4, 5, True)
    assert at("2024-05-01 00:00:02") == at("3") == at(str(entry.dataset.block(3).hash)[5:13]) == (3, 5, False)
    assert at("1") == (1, None, False)
    with pytest.raises(InvalidQuery, match="had no rows at block 0"):
        at("0")
    wrong: list[tuple[str, type[OdfError], str]] = [
        ("2024-04-30", UsageError, "has no blocks at"),
        ("2999-01-01", UsageError, "is in the future"),
        ("6", NotFound, "block 6 not found"),
        ("yesterday", NotFound, "block 'yesterday' not found"),
    ]
    for text, kind, message in wrong:
        with pytest.raises(kind, match=message):
            at(text)
    state = entry.dataset.state()
    seed_schema = entry.dataset.block(1).block.event
    entry.dataset.restart_chain([seed_schema], system_time=state.system_time, expected_head=state.head)
    name = f"before-reset-{state.head.abbreviated}"
    tables = Tables(workspace, Reporter(), TimeTravelDefaults(blocks={str(entry.id): name}))
    files = tables.files("numbers")
    assert len(files.paths) == 3 and all(path.is_file() for path in files.paths)
    assert "more" in files.schema.names and tables.pins[0].block == str(state.head)
    assert "more" not in Tables(workspace, Reporter(), TimeTravelDefaults()).files("numbers").schema.names
    (table,) = tables.read
    assert check_table(workspace, table) == []  # a proof of an answer from the earlier history
    missing = msgspec.structs.replace(table, block=str(Multihash.sha3_256(b"elsewhere")))
    assert [each.kind for each in check_table(workspace, missing)] == ["block-missing"]
    call = parse_table_function(f"as_at(numbers, '{name}')", 0)
    assert call.as_at == name and len(tables.files("numbers", call).paths) == 3
    assert parse_time_travel(workspace, None, "2024-05-02", {"Numbers": "3"}).blocks == {str(entry.id): "3"}
    with pytest.raises(UsageError, match="'soon' is not a time"):
        parse_time_travel(workspace, None, "soon", {})
    with pytest.raises(NotFound, match="dataset 'number' not found") as caught:
        resolve(workspace, "number")
    assert caught.value.hint == "did you mean numbers?"


class _Queries:
    """Runs queries with DuckDB over the datasets of a workspace."""

    def __init__(self, workspace: Workspace, folder: Path) -> None:
        self.workspace = workspace
        self.folder = folder

    def run(self, sql: str, reporter: Reporter | None = None, **defaults: Any) -> pa.Table:
        reporter = reporter or Reporter()
        tables = Tables(self.workspace, reporter, TimeTravelDefaults(**defaults))

        def open_file(name: str) -> TableFiles:
            raise NotFound(f"file not found: {name}")

        with execute_with_duckdb(
            sql, tables.names, tables.files, open_file, self.folder, 64 << 20, reporter
        ) as answer:
            return pa.Table.from_batches(list(answer.batches), answer.schema)


@pytest.fixture
def queries(tmp_path: Path) -> _Queries:
    workspace = Workspace.init(tmp_path / "a [b]*")
    make_root(workspace, "port.numbers", slices=2)
    make_root(workspace, "town", slices=1)
    return _Queries(workspace, tmp_path)


def test_duckdb_reads_datasets_by_name(queries: _Queries) -> None:
    run = queries.run
    # A name unquoted, in double quotes, in another case, as qualifier; the offset is a BIGINT.
    grouped = 'SELECT city, max(offset) AS n, count(*) AS "Rows" FROM "Port.Numbers" GROUP BY city;'
    assert run(grouped).to_pylist() == [{"city": "Bern", "n": 5, "Rows": 6}]
    joined = (
        "SELECT port.numbers.people AS people, t.* FROM port.numbers"
        " JOIN town t ON t.people = port.numbers.people WHERE t.people = 2"
    )
    (row,) = run(joined).to_pylist()
    assert row["people"] == 2 and row["people_2"] == 2 and row["city"] == "Bern"
    assert run("SELECT count(*) AS n FROM as_at(port.numbers, 2) WHERE people >= 0").to_pylist() == [{"n": 3}]
    assert run("SELECT city FROM current(port.numbers, city)").to_pylist() == [{"city": "Bern"}]
    id = str(queries.workspace.resolve("port.numbers").id)
    assert run("SELECT count(*) AS n FROM port.numbers", blocks={id: "2"}).to_pylist() == [{"n": 3}]
    assert run(r"SELECT 'a\' || city AS c FROM town LIMIT 1").to_pylist() == [{"c": "a\\Bern"}]


def test_types_that_only_duckdb_has_become_types_of_parquet(queries: _Queries) -> None:
    table = queries.run(
        "SELECT NULL AS a, INTERVAL 1 MONTH AS b, TIME '10:00' AS c, sum(9223372036854775807::BIGINT) AS d,"
        " 'x'::ENUM('x') AS e, TIMESTAMPTZ '1969-12-31 23:59:59.123456Z' AS f, MAP {'k': [1]} AS g"
    )
    assert table.to_pylist() == [
        {
            "a": None,
            "b": "1 month",
            "c": "10:00:00",
            "d": Decimal(9223372036854775807),
            "e": "x",
            "f": datetime(1969, 12, 31, 23, 59, 59, 123456, UTC),
            "g": [("k", [1])],
        }
    ]


@pytest.mark.parametrize(
    ("sql", "kind", "message", "where"),
    [
        ("SELECT x FROM port.number", InvalidQuery, "dataset 'port.number' not found", "line 1, column 15"),
        ("SELECT x FROM connection", InvalidQuery, "dataset 'connection' not found", "line 1, column 15"),
        ("SELECT 1,\n  2 FRM town t", InvalidQuery, 'at or near "town"', "line 2, column 9"),
        ("SELECT 1,\n 'é', port.numbers.cty FROM port.numbers", InvalidQuery, "cty", "line 2, column 7"),
        ("SELECT city::INT FROM town", BadData, "Could not convert string 'Bern'", "line 1, column 12"),
        ("SELECT 9223372036854775807 + people FROM town", BadData, "Overflow", None),
        ("COPY town TO 'x.csv'", InvalidQuery, "must be one SELECT", None),
        ("SELECT 1; SELECT 2", InvalidQuery, "must be one SELECT", None),
        ("SET threads = 1", InvalidQuery, "must be one SELECT", None),
        ("SELECT * FROM read_text('/etc/passwd')", InvalidQuery, "Cannot access file", "line 1, column 15"),
        ("SELECT * FROM glob('/*')", InvalidQuery, "Cannot access file", "line 1, column 15"),
        ("SELECT * FROM 'x.csv'", NotFound, "file not found: x.csv", None),
    ],
)
def test_errors_of_duckdb_have_a_position(
    queries: _Queries, sql: str, kind: type[OdfError], message: str, where: str | None
) -> None:
    with pytest.raises(kind, match=message) as error:
        queries.run(sql)
    assert where is None or error.value.where == f"query, {where}"
    assert list(queries.folder.glob("query-*")) == []


def test_a_query_that_is_cancelled_leaves_no_process_and_no_file(queries: _Queries) -> None:
    reporter = Reporter()
    threading.Timer(1, reporter.cancel).start()
    with pytest.raises(Cancelled):
        queries.run(
            "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range = 7", reporter
        )
    assert list(queries.folder.glob("query-*")) == []


def test_a_query_over_a_missing_slice_fails(queries: _Queries) -> None:
    entry = queries.workspace.resolve("port.numbers")
    entry.dataset.slice_path(entry.dataset.slices()[0]).unlink()
    with pytest.raises(NotFound, match="missing slice"):
        queries.run("SELECT * FROM port.numbers")


def test_a_query_that_needs_more_memory_than_allowed_fails(queries: _Queries) -> None:
    with pytest.raises(OdfError, match="emory") as error:
        queries.run("SELECT string_agg(repeat('x', 100000)) FROM range(100000)")
    assert "sql.memory" in (error.value.hint or "")


@pytest.mark.complete
def test_computed_rows_larger_than_memory_are_read_in_parts(runtime: SparkRuntime) -> None:
    def find(name: str, call: TableFunctionCall | None) -> TableFiles:
        raise NotFound(name)

    sql = "WITH t AS (SELECT id FROM range(7000000)) SELECT id, -id AS b, id + 1 AS c, id * 2 AS d FROM t"
    with execute_query(sql, (), find, runtime.session(), Reporter()) as answer:
        ids = [(batch["id"][0].as_py(), batch["id"][-1].as_py()) for batch in answer.batches]
    assert [first for first, _ in ids] == [0, *(last + 1 for _, last in ids[:-1])]
    assert ids[-1][1] == 6_999_999
