"""Which block and which columns of a dataset a query sees; the answers themselves are in tests/cli."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.derive.verify.proof_check import check_table
from odf_engine.errors import BadData, Cancelled, InvalidQuery, NotFound, OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import SetDataSchema
from odf_engine.rows.execution import (
    Tables,
    TimeTravelDefaults,
    columns_at,
    execute_with_datafusion,
    parse_time_travel,
    resolve,
    resolve_pin,
)
from odf_engine.sql.table_functions import parse_table_function
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


@pytest.mark.complete
def test_datafusion_runs_queries_without_spark(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "a [b]*")
    entry = make_root(workspace, "port.numbers", slices=2)
    make_root(workspace, "town", slices=1)

    def run(sql: str, reporter: Reporter | None = None, **defaults: Any) -> list[dict[str, Any]]:
        reporter = reporter or Reporter()
        tables = Tables(workspace, reporter, TimeTravelDefaults(**defaults))
        with execute_with_datafusion(sql, tables.names, tables.files, tmp_path, 64 << 20, reporter) as answer:
            return pa.Table.from_batches(list(answer.batches), answer.schema).to_pylist()

    # A name unquoted, in double quotes, in another case, as qualifier; the offset is a BIGINT.
    grouped = 'SELECT city, sum("offset") AS n, count(*) AS "Rows" FROM "Port.Numbers" GROUP BY city;'
    assert run(grouped) == [{"city": "Bern", "n": 15, "Rows": 6}]
    joined = (
        "SELECT port.numbers.people AS people, t.* FROM port.numbers"
        " JOIN town t ON t.people = port.numbers.people WHERE t.people = 2"
    )
    (row,) = run(joined)
    assert row["people"] == 2 and row["people_2"] == 2 and row["city"] == "Bern"
    assert run("SELECT count(*) AS n FROM as_at(port.numbers, 2) WHERE people >= 0") == [{"n": 3}]
    assert run("SELECT city FROM current(port.numbers, city)") == [{"city": "Bern"}]
    assert run("SELECT count(*) AS n FROM port.numbers", blocks={str(entry.id): "2"}) == [{"n": 3}]
    assert run("SELECT NULL AS x, to_timestamp('1969-12-31T23:59:59.123456789') AS t") == [
        {"x": None, "t": datetime(1969, 12, 31, 23, 59, 59, 123456, UTC)}
    ]
    for sql, kind, message, where in (
        (
            "SELECT x FROM port.number",
            InvalidQuery,
            "dataset 'port.number' not found",
            "query, line 1, column 15",
        ),
        ("SELECT 1,\n  2 FRM town t", InvalidQuery, "found: town", "query, line 2, column 9"),
        ('SELECT "City" FROM town', InvalidQuery, "column 'City' not found", "query"),
        ("SELECT people / 0 AS n FROM town", BadData, "divide by zero error", "query"),
        ("COPY town TO 'x.csv'", InvalidQuery, "must be a SELECT", "query"),
        ("SELECT * FROM 'x.csv'", InvalidQuery, "dataset 'x.csv' not found", "query, line 1, column 16"),
    ):
        with pytest.raises(kind, match=message) as error:
            run(sql)
        assert error.value.where == where
    reporter = Reporter()
    threading.Timer(1, reporter.cancel).start()
    with pytest.raises(Cancelled):
        run("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.value * b.value = 7", reporter)
    entry.dataset.slice_path(entry.dataset.slices()[0]).unlink()
    with pytest.raises(NotFound, match="missing slice"):
        run("SELECT * FROM port.numbers")
    assert list(tmp_path.glob("query-*")) == []
