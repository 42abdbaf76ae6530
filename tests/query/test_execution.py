"""Which block and which columns of a dataset a query sees; the answers themselves are in tests/cli."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from odf_engine.coordinator.handlers.query_jobs import check_table
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.errors import InvalidQuery, NotFound, OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import SetDataSchema
from odf_engine.progress import Reporter
from odf_engine.query.execution import (
    Tables,
    TimeTravelDefaults,
    columns_at,
    parse_time_travel,
    resolve,
    resolve_pin,
)
from odf_engine.sql.table_functions import parse_table_function
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import SCHEMA, add_slices, commit, make_root


def test_blocks_and_columns_of_a_time(tmp_path: Path) -> None:
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
