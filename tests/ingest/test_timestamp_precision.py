"""Timestamps and times keep the precision that is declared."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.data.ddl import type_ddl
from odf_engine.errors import InvalidSchema
from odf_engine.metadata.model import SetPollingSource
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark import row_order
from odf_engine.workspace.definitions.definition import current_definition
from odf_engine.workspace.workspace import Workspace
from tests.ingest.pulling import Pulled

SOURCE = """
fetch: {{kind: FilesGlob, path: '*.{kind}', order: ByName}}
read: {{kind: {format}, schema: [{schema}]}}
merge: {merge}
"""


def source(schema: str, merge: str = "{kind: Append}", kind: str = "json", format: str = "NdJson") -> str:
    return SOURCE.format(schema=schema, merge=merge, kind=kind, format=format)


def types(pulled: Pulled) -> dict[str, str]:
    schema = declared_schema(pulled.dataset.state())
    assert schema is not None
    return {field.name: type_ddl(field.type) for field in list(schema)[3:]}


def micros(pulled: Pulled, name: str) -> list[int]:
    return pulled.table().column(name).cast(pa.int64()).to_pylist()


def test_microseconds_are_stored_and_compared(pulled: Pulled) -> None:
    schema = "id BIGINT, at TIMESTAMP(6), ms TIMESTAMP, l 'ARRAY<TIMESTAMP(6)>', t TIME(9), u TIME(6)"
    columns = schema.replace("'", '"').replace('l "ARRAY<TIMESTAMP(6)>"', "'l ARRAY<TIMESTAMP(6)>'")
    pulled.add(source(columns, "{kind: Ledger, primaryKey: [id, at]}"))
    row = (
        '{"id": 1, "at": "%s", "ms": "2020-01-01T00:00:00.123456Z", "l": ["1960-01-01T00:00:00.000001Z"],'
        ' "t": "01:02:03.123456789", "u": "01:02:03.123456"}\n'
    )
    first = row % "2020-01-01T00:00:00.000001Z" + row % "1960-01-01T00:00:00.000001Z"
    pulled.write("1.json", first)
    pulled.pull()
    assert types(pulled) == {
        "event_time": "TIMESTAMP(3)", "id": "BIGINT", "at": "TIMESTAMP(6)", "ms": "TIMESTAMP(3)",
        "l": "ARRAY<TIMESTAMP(6)>", "t": "TIME(9)", "u": "TIME(6)",
    }  # fmt: skip
    assert micros(pulled, "at") == [1577836800000001, -315619199999999]
    assert micros(pulled, "ms") == [1577836800123] * 2
    assert micros(pulled, "t") == [3723123456789] * 2
    assert micros(pulled, "u") == [3723123456] * 2
    assert pulled.rows("l")[0] == ([datetime(1960, 1, 1, 0, 0, 0, 1, UTC)],)
    # Keys that differ by a microsecond are two keys; known rows are not repeated.
    pulled.write("2.json", first + row % "2020-01-01T00:00:00.000002Z")
    assert pulled.pull().records == 1


def test_a_change_of_microseconds_is_a_correction(pulled: Pulled) -> None:
    pulled.add(source("id BIGINT, at TIMESTAMP(6)", "{kind: Snapshot, primaryKey: [id]}"))
    for number in (1, 2, 2):
        pulled.write(f"{number}.json", f'{{"id": 1, "at": "2020-01-01T00:00:00.00000{number}Z"}}\n')
        pulled.pull()
    assert micros(pulled, "at") == [1577836800000000 + number for number in (1, 1, 2)]
    assert [row[0] for row in pulled.rows("op")] == [0, 2, 3]


@pytest.mark.parametrize("merge", ["Ledger", "Snapshot"])
def test_millisecond_times_are_stored_and_compared(
    pulled: Pulled, merge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored times are compared with new ones, also by a sort that exceeds memory."""
    monkeypatch.setattr(row_order, "_MAX_MEMORY_BYTES", 1)
    pulled.add(source("id BIGINT, t TIME(3)", f"{{kind: {merge}, primaryKey: [id, t]}}"))
    for times in (["01:02:03.004"], ["01:02:03.004", "01:02:03.005"], ["01:02:03.005"]):
        pulled.write(
            f"{len(times)}{times[0][-1]}.json", "".join(f'{{"id": 1, "t": "{time}"}}\n' for time in times)
        )
        pulled.pull()
    assert set(types(pulled).values()) == {"TIMESTAMP(3)", "BIGINT", "TIME(3)"}
    expected = [(0, 4000), (0, 5000)] + ([(1, 4000)] if merge == "Snapshot" else [])
    assert [(op, at.microsecond) for op, at in pulled.rows("op", "t")] == expected


@pytest.mark.parametrize(("digits", "expected"), [("6", "TIMESTAMP(6)"), ("3", "TIMESTAMP(3)")])
def test_a_query_returns_the_precision_that_it_reads(pulled: Pulled, digits: str, expected: str) -> None:
    text = source(f"id BIGINT, at TIMESTAMP({digits})")
    query = "SELECT id, at AS other, named_struct('x', at) AS s, at AS event_time FROM input"
    pulled.add(f'{text}preprocess: {{kind: Sql, engine: spark, query: "{query}"}}')
    pulled.write("1.json", '{"id": 1, "at": "2020-01-01T00:00:00.123456Z"}\n')
    pulled.pull()
    assert types(pulled) == {
        "event_time": "TIMESTAMP(3)", "id": "BIGINT", "other": expected, "s": f"STRUCT<x: {expected}>",
    }  # fmt: skip
    assert micros(pulled, "other") == [1577836800123456 if digits == "6" else 1577836800123]


def test_undeclared_timestamps_of_a_parquet_file_are_reported(pulled: Pulled) -> None:
    moment = datetime(2020, 1, 1, 0, 0, 0, 123456)
    table = pa.table({"at": [moment], "ms": pa.array([moment], pa.timestamp("ms")), "event_time": [moment]})
    pulled.add("fetch: {kind: FilesGlob, path: '*.parquet'}\nread: {kind: Parquet}\nmerge: {kind: Append}")
    pq.write_table(table, pulled.workspace.folder / "1.parquet")
    pulled.pull()
    assert types(pulled) == dict.fromkeys(("event_time", "at", "ms"), "TIMESTAMP(3)")
    (text,) = [text for text in pulled.reporter.warnings if "truncated" in text]
    assert text.startswith("1.parquet: timestamps truncated to milliseconds: at; to keep")


def lost_digits(pulled: Pulled) -> str | None:
    """The columns in the warning about lost digits."""
    found = [text for text in pulled.reporter.warnings if "times truncated" in text]
    assert len(found) <= 1, found
    return found[0].partition("columns: ")[2].partition("; to keep")[0] if found else None


TIMES = "t TIMESTAMP, u TIME, s STRING, m TIMESTAMP(6), l ARRAY<TIMESTAMP>"


def test_times_that_lose_digits_in_json_are_counted(pulled: Pulled) -> None:
    columns = ", ".join(f"'{each}'" for each in TIMES.split(", "))
    pulled.add(source(columns))
    row = '{"t": "2024-01-01T10:00:00.%sZ", "u": "10:00:00.%s", "s": "10:00:00.123456", "m": %s, "l": %s}\n'
    exact = row % ("123000", "123456", '"2024-01-01T10:00:00.123456Z"', "[]")
    lossy = row % ("1239", "1234567", '"2024-01-01T10:00:00.1234567Z"', '["2024-01-01 10:00:00.0001"]')
    pulled.write("1.json", exact)
    pulled.pull()
    assert lost_digits(pulled) is None
    pulled.write("2.json", lossy + exact + lossy)
    pulled.pull()
    assert lost_digits(pulled) == (
        "t TIMESTAMP(3) (2 rows), u TIME(6) (2 rows), m TIMESTAMP(6) (2 rows), l ARRAY<TIMESTAMP(3)> (2 rows)"
    )


def test_times_that_lose_digits_in_csv_are_counted_once(pulled: Pulled) -> None:
    """Two rows with times that differ by less than a millisecond have one key."""
    merge = "{kind: Ledger, primaryKey: [at]}"
    read = "fetch: {{kind: Url, url: in}}\nread: {{kind: Csv, {}}}\nmerge: {}"
    pulled.add(read.format("schema: [id BIGINT, at TIMESTAMP]", merge))
    (pulled.workspace.odf / "config.yaml").write_text("onBadRows: {data: reject}\n")
    pulled.workspace = Workspace(pulled.workspace.folder)
    pulled.entry = pulled.workspace.resolve("data")
    pulled.write("in", "1,2024-01-01T10:00:00.0001Z\n1,2024-01-01T10:00:00.0005Z\nx,2024-01-01\n")
    assert pulled.pull().records == 1
    assert lost_digits(pulled) == "at TIMESTAMP(3) (2 rows)"
    pulled.add(read.format("header: true, inferSchema: true", "{kind: Append}"), name="inferred")
    pulled.write("in", "id,at\n1,2024-01-01T10:00:00.0001Z\n")
    pulled.pull()
    assert lost_digits(pulled) == "at TIMESTAMP(3) (1 row)"
    format = "schema: [id BIGINT, at TIMESTAMP], timestampFormat: yyyyMMddHHmmss.SSSSSS"
    pulled.add(read.format(format, "{kind: Append}"), name="formatted")
    pulled.write("in", "1,20240101100000.123000\n1,20240101100000.123001\n")
    pulled.pull()
    assert lost_digits(pulled) == "at TIMESTAMP(3) (1 row)"


@pytest.mark.parametrize(("unit", "value", "lost"), [("ns", 1, 1), ("us", 1001, 1), ("ns", 1_000_000, 0)])
def test_times_that_lose_digits_in_parquet_are_counted(
    pulled: Pulled, unit: str, value: int, lost: int
) -> None:
    kind = pa.struct([("x", pa.timestamp(unit, "UTC"))])
    table = pa.table(
        {"at": pa.array([value, None], pa.timestamp(unit)), "s": pa.array([{"x": value}] * 2, kind)}
    )
    pq.write_table(table, pulled.workspace.folder / "1.parquet")
    pulled.add(source("at TIMESTAMP, 's STRUCT<x: TIMESTAMP>'", kind="parquet", format="Parquet"))
    pulled.pull()
    assert lost_digits(pulled) == (
        "at TIMESTAMP(3) (1 row), s STRUCT<x: TIMESTAMP(3)> (2 rows)" if lost else None
    )


EARLIER = "id BIGINT, at TIMESTAMP({}), t TIME(9), event_time TIMESTAMP({})"


def test_earlier_sources_with_higher_precision_keep_milliseconds(pulled: Pulled) -> None:
    """Earlier versions stored milliseconds for every precision."""
    pulled.add(source(EARLIER.format(3, 3)))
    pulled.write("1.json", '{"id": 1, "at": "2020-01-01T00:00:00.123456Z"}\n')
    pulled.pull()
    state = pulled.dataset.state()
    assert isinstance(state.polling_source, SetPollingSource)
    for digits in (6, 9):
        (text,) = source(EARLIER.format(digits, digits)).partition("schema: [")[2].partition("]}")[:1]
        read: Any = replace(state.polling_source.read, schema=text.split(", "))
        pulled.dataset.commit(
            [replace(state.polling_source, read=read)],
            system_time=Timestamp.now(),
            expected_head=pulled.dataset.head(),
        )
        pulled.write(f"{digits}.json", '{"id": 2, "at": "2020-01-01T00:00:00.123456Z"}\n')
        pulled.pull()
        # Its definition stays valid.
        (update,) = pulled.workspace.update([current_definition(pulled.entry)])
        assert update.events == []
    assert micros(pulled, "at") == [1577836800123] * 3
    assert types(pulled)["at"] == "TIMESTAMP(3)"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("at TIMESTAMP(9)", "column 'at' is TIMESTAMP(9), but timestamps have at most 6 digits"),
        ("s STRUCT<x TIMESTAMP(7)>", "column 's' is STRUCT<x: TIMESTAMP(9)>"),
        ("event_time TIMESTAMP(6)", "the event time 'event_time' is TIMESTAMP(6), but the specification"),
    ],
)
def test_a_precision_that_cannot_be_stored_is_refused(pulled: Pulled, column: str, message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        pulled.add(source(f"id BIGINT, '{column}'"))
    assert message in caught.value.message
    assert caught.value.where == "dataset data, read.schema"
    with pytest.raises(InvalidSchema, match=r"digits|milliseconds"):
        pulled.add(source("id BIGINT"), more=f"- kind: SetDataSchema\n  schema: [id BIGINT, '{column}']")
    # The same applies to a change of the definition.
    pulled.add(source("id BIGINT"))
    definition = current_definition(pulled.entry)
    changed: Any = definition.metadata[0]
    changed = replace(changed, read=replace(changed.read, schema=["id BIGINT", column]))
    with pytest.raises(InvalidSchema, match=r"digits|milliseconds"):
        pulled.workspace.update([replace(definition, metadata=[changed])])


def test_the_precision_of_a_column_cannot_change(pulled: Pulled) -> None:
    pulled.add(source("id BIGINT, at TIMESTAMP"))
    pulled.write("1.json", '{"id": 1, "at": "2020-01-01T00:00:00Z"}\n')
    pulled.pull()
    definition = current_definition(pulled.entry)
    changed: Any = definition.metadata[0]
    changed = replace(changed, read=replace(changed.read, schema=["id BIGINT", "at TIMESTAMP(6)"]))
    with pytest.raises(Exception, match=r"column 'at' changed from TIMESTAMP\(3\) to TIMESTAMP\(6\)"):
        pulled.workspace.update([replace(definition, metadata=[changed])])
