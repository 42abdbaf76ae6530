"""Verbs that look into a dataset: log, schema, tail."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from odf_engine.errors import BadData, NotFound, OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_tui import humane
from odf_tui.cli.output import open_workspace, options_of, print_json, print_table, say, verb

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.chain.dataset import Dataset
    from odf_engine.coordinator.results import PinnedBlock
    from odf_engine.views.as_at import PinnedVersion
    from odf_engine.workspace.dataset_summary import DatasetEntry


@verb("log", example="odf log port-haven.stations -n 5 --json", json=True)
@click.argument("name")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many blocks.")
@click.option("--kind", "kinds", multiple=True, metavar="EVENT", help="Only such events, e.g. AddData.")
def log_verb(name: str, limit: int | None, kinds: tuple[str, ...]) -> None:
    """Shows the metadata chain, newest block first."""
    dataset = open_workspace().resolve(name).dataset
    wanted = _event_names(kinds)
    if options_of().json:
        from odf_engine.metadata.yaml import to_builtins

        document = []
        for row in dataset.list_blocks(limit or sys.maxsize, kinds=wanted):
            stored = dataset.block(row.hash)
            plain = to_builtins(stored.block)
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
                row.hash.abbreviated,
                str(row.system_time)[:19].replace("T", " "),
                row.kind,
                row.summary,
            ]
            for row in dataset.list_blocks(limit or sys.maxsize, kinds=wanted)
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
@click.argument("name", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["ddl", "arrow", "parquet", "json"]),
    default="ddl",
    show_default=True,
)
@click.option(
    "--manifest-json-schema",
    is_flag=True,
    help="Print the JSON Schema of manifests instead, for editors.",
)
def schema_verb(name: str | None, form: str, manifest_json_schema: bool) -> None:
    """Prints the schema of the data."""
    if manifest_json_schema:
        if name is not None:
            raise click.UsageError("--manifest-json-schema takes no NAME")
        from odf_engine.metadata.descriptors import build_manifest_schema
        from odf_engine.metadata.model import DatasetSnapshot

        print_json(build_manifest_schema("DatasetSnapshot", 1, DatasetSnapshot))
        return
    if name is None:
        raise click.MissingParameter(param_type="argument", param_hint="'NAME'")
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


@verb("tail", example="odf tail port-haven.air-readings -n 20 --as-at 2026-03-01", json=True)
@click.argument("name")
@click.option("-n", "--rows", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--as-at", metavar="TIME|BLOCK", help="What was known then: at a system time, or at a block.")
@click.option("--as-of", metavar="TIME", help="What had happened by an event time, with all corrections.")
@click.option("--current", is_flag=True, help="Of each key the newest row, unless it takes it away.")
@click.option("--key", multiple=True, metavar="COLUMN", help="A column that tells rows apart.")
def tail_verb(
    name: str, rows: int, as_at: str | None, as_of: str | None, current: bool, key: tuple[str, ...]
) -> None:
    """Shows the newest rows by offset, oldest of them first.

    Without a time these are the newest that there are. The key of --as-of and --current is that of the
    dataset, unless --key names its columns.
    """
    entry = open_workspace().resolve(name)
    if as_of is not None or current or key:
        table = _projected(entry, rows, as_at, as_of, key)
    else:
        table = _newest(entry, rows, as_at)
    _print_rows(entry, table, empty=as_at is None and as_of is None)


def _newest(entry: DatasetEntry, rows: int, as_at: str | None) -> pa.Table:
    """The newest rows, or those of then; no worker is needed."""
    from odf_engine.views.as_at import resolve_as_at
    from odf_engine.views.row_window import RowWindowReader

    if as_at is None:
        return RowWindowReader(entry.dataset).tail(rows)
    at = resolve_as_at(entry, as_at)
    preview = RowWindowReader(entry.dataset, last_offset=at.scan_offset)
    _say_seen(_as_at_words(at), preview.row_count)
    return preview.tail(rows)


def _projected(
    entry: DatasetEntry, rows: int, as_at: str | None, as_of: str | None, key: tuple[str, ...]
) -> pa.Table:
    """Rows of a file that the worker makes: what had happened by a time, or a state."""
    from pathlib import Path

    from odf_engine.coordinator.protocol import BuildProjection, JobState
    from odf_engine.metadata.timestamp import parse_user_time
    from odf_engine.views.query_results import ResultRows
    from odf_tui.cli.data import exit_code
    from odf_tui.cli.follow import follow

    moment = None if as_of is None else str(parse_user_time(as_of))
    request = BuildProjection(str(entry.id), list(key), as_at=as_at, as_of=moment)
    (job,) = follow(open_workspace(), [(request, str(entry.alias))])
    if job.error is not None:
        raise OdfError(job.error.message, hint=job.error.hint, where=job.error.where)
    result = job.result_of(BuildProjection)
    if job.state is not JobState.done or result is None:
        sys.exit(exit_code([job]))
    found = ResultRows(Path(result.file))
    parts = [_as_at_words(result.pin) if as_at and result.pin else "", f"as of {moment}" if moment else ""]
    parts.append(f"by {', '.join(map(humane.plain, result.key))}" if result.key else "")
    _say_seen(" · ".join(part for part in parts if part), found.row_count)
    return found.window(found.row_count - rows, rows + min(found.row_count - rows, 0))


def _as_at_words(pin: PinnedVersion | PinnedBlock) -> str:
    """Describe the block that rows are read at."""
    return f"as at {pin.system_time} · block {humane.count(pin.sequence_number)} {pin.block}"


def _say_seen(words: str, rows: int) -> None:
    """That these are not simply the newest rows."""
    say(f"{words} · {humane.count(rows)} {'row' if rows == 1 else 'rows'}")


def _print_rows(entry: DatasetEntry, table: pa.Table, *, empty: bool) -> None:
    from odf_engine.data.changelog import Op

    columns = [_json_values(*each) for each in zip(table.column_names, table.columns, strict=True)]
    records = [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    if options_of().json:
        print_json(records)
        return
    if not records:
        if empty:
            say(f"{entry.alias} has no rows yet: odf pull {entry.alias}")
        return
    op = entry.dataset.state().vocabulary.operation_type_column
    for record in records:
        if op in record:
            record[op] = Op(record[op]).code
    numbers = [name for name in table.column_names if is_number(table.schema.field(name).type)]
    print_table(
        table.column_names,
        [["" if cell is None else humane.plain(str(cell)) for cell in record.values()] for record in records],
        numbers,
    )


def _json_values(name: str, column: pa.ChunkedArray) -> list[Any]:
    """The values of a column as JSON has them; times that Python does not have as text.

    Raises:
        BadData: a value cannot be shown.
    """
    from odf_engine.data.arrow_compute import to_text

    try:
        return [json_value(value) for value in column.to_pylist()]
    except (OverflowError, ValueError):
        try:
            return to_text(column).to_pylist()
        except (OverflowError, ValueError) as error:
            raise BadData(f"a value of column '{name}' cannot be shown: {error}") from None


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
