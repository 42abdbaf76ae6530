"""Verbs that look into a dataset: log, schema, tail."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from odf_engine.errors import NotFound
from odf_engine.metadata.timestamp import Timestamp
from odf_tui import humane
from odf_tui.cli.output import open_workspace, options_of, print_json, print_table, say, verb

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.chain.chain import Dataset


@verb("log", example="odf log port-haven.stations -n 5 --json", json=True)
@click.argument("name")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many blocks.")
@click.option("--kind", "kinds", multiple=True, metavar="EVENT", help="Only such events, e.g. AddData.")
def log_verb(name: str, limit: int | None, kinds: tuple[str, ...]) -> None:
    """Shows the metadata chain, newest block first."""
    dataset = open_workspace().resolve(name).dataset
    wanted = _event_names(kinds)
    if options_of().json:
        from odf_engine.metadata.yaml import to_plain

        document = []
        for row in dataset.page(limit or sys.maxsize, kinds=wanted):
            stored = dataset.block(row.hash)
            plain = to_plain(stored.block)
            document.append(
                {
                    "hash": stored.hash,
                    "sequence_number": stored.block.sequence_number,
                    "prev_block_hash": stored.block.prev_block_hash,
                    "system_time": stored.block.system_time,
                    "block_version": stored.version,
                    "event": plain["event"],
                }
            )
        print_json(document)
        return
    print_table(
        ["block", "hash", "system time", "event", "what"],
        [
            [
                str(row.sequence_number),
                row.hash.short,
                str(row.system_time)[:19].replace("T", " "),
                row.kind,
                row.summary,
            ]
            for row in dataset.page(limit or sys.maxsize, kinds=wanted)
        ],
        right=["block"],
    )


def _event_names(kinds: tuple[str, ...]) -> set[str] | None:
    """Event names in their own spelling, however they were typed."""
    if not kinds:
        return None
    from difflib import get_close_matches
    from typing import get_args

    from odf_engine.metadata.model import MetadataEvent, Opaque

    names = {kind.__name__.lower(): kind.__name__ for kind in (*get_args(MetadataEvent), Opaque)}
    wanted: set[str] = set()
    for kind in kinds:
        if kind.lower() not in names:
            close = get_close_matches(kind.lower(), names, 1)
            raise NotFound(
                f"there is no event '{kind}'",
                hint=f"did you mean {names[close[0]]}?" if close else "events: " + ", ".join(names.values()),
            )
        wanted.add(names[kind.lower()])
    return wanted


@verb("schema", example="odf schema port-haven.stations --format ddl")
@click.argument("name")
@click.option(
    "--format",
    "form",
    type=click.Choice(["ddl", "arrow", "parquet", "json"]),
    default="ddl",
    show_default=True,
)
def schema_verb(name: str, form: str) -> None:
    """Prints the schema of the data."""
    dataset = open_workspace().resolve(name).dataset
    schema = _schema(dataset)
    if schema is None:
        raise NotFound(f"{name} has no data yet, so its schema is not known", hint=f"odf pull {name}")
    if form == "ddl":
        from odf_engine.data.ddl import to_ddl

        sys.stdout.write(",\n".join(to_ddl(schema)) + "\n")
    elif form == "arrow":
        sys.stdout.write(schema.to_string(show_schema_metadata=False, show_field_metadata=False) + "\n")
    elif form == "parquet":
        sys.stdout.write(_parquet_schema(schema))
    else:
        print_json(
            {
                "fields": [
                    {"name": field.name, "type": str(field.type), "nullable": field.nullable}
                    for field in schema
                ]
            }
        )


def _schema(dataset: Dataset) -> pa.Schema | None:
    from odf_engine.data.arrow_schema import decode_schema

    raw = dataset.state().schema
    return None if raw is None else decode_schema(raw)


def _parquet_schema(schema: pa.Schema) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink, version="2.6")
    text = str(pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema)
    return "\n".join(text.splitlines()[1:]) + "\n"


@verb("tail", example="odf tail port-haven.air-readings -n 20", json=True)
@click.argument("name")
@click.option("-n", "--rows", type=click.IntRange(min=1), default=10, show_default=True)
def tail_verb(name: str, rows: int) -> None:
    """Shows the newest rows by offset, oldest of them first."""
    from odf_engine.data.changelog import Op
    from odf_engine.workspace.preview import Preview

    entry = open_workspace().resolve(name)
    table = Preview(entry.dataset).tail(rows)
    records = [{key: json_value(value) for key, value in row.items()} for row in table.to_pylist()]
    if options_of().json:
        print_json(records)
        return
    if not records:
        say(f"{entry.alias} has no rows yet: odf pull {entry.alias}")
        return
    op = entry.dataset.state().vocabulary.operation_type_column
    for record in records:
        record[op] = Op(record[op]).code
    numbers = [name for name in table.column_names if is_number(table.schema.field(name).type)]
    print_table(
        table.column_names,
        [["" if cell is None else humane.plain(str(cell)) for cell in record.values()] for record in records],
        numbers,
    )


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a type are aligned to the right."""
    import pyarrow as pa

    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def json_value(value: Any) -> Any:
    """A value as JSON has it: times as RFC 3339, decimals and bytes as text."""
    if isinstance(value, datetime):
        return str(Timestamp.from_datetime(value.astimezone(UTC) if value.tzinfo else value))
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    return value
