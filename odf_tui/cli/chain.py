"""log, schema, tail, objects, block, digest: read the chain and the data of a dataset."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from odf_engine.api.text import count_of, format_bytes, format_count, format_time_seconds, printable
from odf_engine.checks.reports import read_report, read_summaries, result_json
from odf_engine.errors import AlreadyExists, InvalidManifest, NotFound, OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.workspace.block_warnings import blocks_with_warnings, read_block_warnings
from odf_engine.workspace.dataset_folders import Rejects, read_rejects
from odf_tui.cli.output import (
    branch_option,
    check_parent_folder,
    common_options,
    json_records,
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_table,
    read_bytes,
    use_timezone,
    verb,
)
from odf_tui.text.format import format_summary
from odf_tui.text.job_text import warnings_text
from odf_tui.text.pinned_blocks import as_at_text

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.chain.block_summary import BlockSummary
    from odf_engine.chain.dataset import Dataset
    from odf_engine.progress import JobWarning
    from odf_engine.workspace.dataset_summary import DatasetEntry


@verb("log", example="odf log port-haven.stations -n 5 --json", json=True)
@click.argument("name")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Maximum number of blocks.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="EVENT",
    help="Only events of this kind, such as AddData. Can be repeated.",
)
@click.option(
    "--as-at", metavar="TIME|BLOCK|REF", help="Start with the block at a time, a block, or a reference."
)
@branch_option("Show the chain of this branch.")
def log_verb(name: str, limit: int | None, kinds: tuple[str, ...], as_at: str | None, branch: str) -> None:
    """Show the metadata chain of a dataset, newest block first.

    A reset, or a pull or push with --force, replaces the history of a dataset. The earlier history
    remains under a reference such as before-reset-1a2b3c4d, which `odf show` lists and --as-at accepts.
    """
    workspace = open_workspace()
    entry = workspace.resolve(name).on_branch(branch)
    event_names = _parse_event_names(kinds)
    before = None
    if as_at is not None:
        from odf_engine.views.as_at import at_version, resolve_as_at

        version = resolve_as_at(entry, as_at)
        entry, before = at_version(entry, version), version.sequence_number + 1
    dataset = entry.dataset
    blocks = dataset.list_blocks(limit or sys.maxsize, before=before, kinds=event_names)
    rejects = read_rejects(dataset.folder)
    warnings = _read_warnings(dataset, blocks)
    if options_of().json:
        from odf_engine.metadata.yaml import to_builtins

        document = []
        for row in blocks:
            stored = dataset.block(row.hash)
            plain = to_builtins(stored.block)
            rejected = rejects.get(str(row.hash))
            document.append(
                {
                    "hash": stored.hash,
                    "sequence_number": stored.block.sequence_number,
                    "prev_block_hash": stored.block.prev_block_hash,
                    "system_time": stored.block.system_time,
                    "block_version": stored.version,
                    "event": plain["event"],
                    **_checks_json(entry, stored.block.event),
                    **({"rejected": rejected.rows, "rejects_file": str(rejected.file)} if rejected else {}),
                    **({"warnings": msgspec.to_builtins(warnings[row.hash])} if row.hash in warnings else {}),
                }
            )
        print_json(document)
        return
    summaries = read_summaries(entry.dataset.folder, entry.id, entry.dataset.slices())
    checks = {number: f", checks: {text}" for number, text in summaries.items()}
    zone = use_timezone(workspace)
    print_table(
        ["block", "hash", f"system time ({zone})", "event", "summary"],
        [
            [
                str(row.sequence_number),
                row.hash.abbreviated,
                format_time_seconds(row.system_time),
                row.kind,
                format_summary(row.summary)
                + _rejected_text(rejects.get(str(row.hash)))
                + (f", {warnings_text(warnings[row.hash])}" if row.hash in warnings else "")
                + checks.get(row.sequence_number, ""),
            ]
            for row in blocks
        ],
        right=["block"],
    )


def _checks_json(entry: DatasetEntry, event: object) -> dict[str, Any]:
    """Return the results of checks of an event for ``--json``; empty if it has none."""
    written = getattr(event, "new_data", None)
    try:
        stored = written and read_report(entry.dataset.folder, entry.id, written.physical_hash)
    except OdfError as error:
        return {"checks_error": error.message}
    if not stored:
        return {}
    results = [result_json(result) for result in stored.report.results]
    return {"checks": results, "checks_signed": stored.signed}


def _read_warnings(dataset: Dataset, blocks: Sequence[BlockSummary]) -> dict[Multihash, list[JobWarning]]:
    """Return the warnings of blocks; blocks without warnings are left out."""
    warned = blocks_with_warnings(dataset.folder)
    found = {
        row.hash: read_block_warnings(dataset.folder, str(row.hash))
        for row in blocks
        if str(row.hash) in warned
    }
    return {block: warnings for block, warnings in found.items() if warnings}


def _rejected_text(rejects: Rejects | None) -> str:
    return f", {count_of(rejects.rows, 'row')} rejected" if rejects else ""


def _parse_event_names(kinds: tuple[str, ...]) -> set[str] | None:
    """Return the names of events in their canonical spelling, or None for all events.

    Raises:
        NotFound: unknown event.
    """
    if not kinds:
        return None
    from difflib import get_close_matches
    from typing import get_args

    from odf_engine.metadata.model import MetadataEvent, Opaque

    names = {kind.__name__.lower(): kind.__name__ for kind in (*get_args(MetadataEvent), Opaque)}
    event_names: set[str] = set()
    for kind in kinds:
        if kind.lower() not in names:
            close = get_close_matches(kind.lower(), names, 1)
            raise NotFound(
                f"unknown event '{kind}'",
                hint=f"did you mean {names[close[0]]}?" if close else "events: " + ", ".join(names.values()),
            )
        event_names.add(names[kind.lower()])
    return event_names


@verb("schema", example="odf schema port-haven.stations --format ddl")
@click.argument("name", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["ddl", "arrow", "parquet", "json", "odf"]),
    default="ddl",
    show_default=True,
    help="Output format; odf is the ODF schema in YAML.",
)
@click.option(
    "--manifest-json-schema",
    is_flag=True,
    help="Print the JSON Schema of manifests instead, for use in editors.",
)
def schema_verb(name: str | None, form: str, manifest_json_schema: bool) -> None:
    """Print the schema of a dataset."""
    if manifest_json_schema:
        if name is not None:
            raise click.UsageError("--manifest-json-schema and NAME exclude each other")
        from odf_engine.metadata.descriptors import build_manifest_schema
        from odf_engine.metadata.model import DatasetSnapshot

        print_json(build_manifest_schema("DatasetSnapshot", 1, DatasetSnapshot))
        return
    if name is None:
        raise click.MissingParameter(param_type="argument", param_hint="'NAME'")
    from odf_engine.chain.schema_evolution import column_descriptions, odf_declaration, read_declaration

    state = open_workspace().resolve(name).dataset.state()
    schema = read_declaration(state)
    if schema is None:
        raise NotFound(f"{name} has no schema yet, because it has no data", hint=f"run odf pull {name}")
    if form == "ddl":
        from odf_engine.data.ddl import to_ddl

        sys.stdout.write(",\n".join(to_ddl(schema, column_descriptions(state))) + "\n")
    elif form == "arrow":
        sys.stdout.write(schema.to_string(show_schema_metadata=False, show_field_metadata=False) + "\n")
    elif form == "parquet":
        sys.stdout.write(_format_parquet_schema(schema))
    elif form == "odf":
        from odf_engine.metadata.yaml import to_yaml

        sys.stdout.write(to_yaml(odf_declaration(state)))
    else:
        described = column_descriptions(state)
        print_json(
            {
                "fields": [
                    {"name": field.name, "type": str(field.type), "nullable": field.nullable}
                    | ({"description": described[field.name]} if field.name in described else {})
                    for field in schema
                ]
            }
        )


def _format_parquet_schema(schema: pa.Schema) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink, version="2.6")
    text = str(pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema)
    return "\n".join(text.splitlines()[1:]) + "\n"


@verb("tail", example="odf tail port-haven.air-readings -n 20 --as-at 2026-03-01", json=True)
@click.argument("name")
@click.option(
    "-n", "--rows", type=click.IntRange(min=1), default=10, show_default=True, help="Number of rows."
)
@click.option(
    "--as-at", metavar="TIME|BLOCK|REF", help="State as known at a system time, a block or a reference."
)
@click.option("--as-of", metavar="TIME", help="State as of an event time, with all corrections.")
@click.option("--current", is_flag=True, help="Latest row of each key, without retracted keys.")
@click.option("--key", multiple=True, metavar="COLUMN", help="Key column. Can be repeated.")
@branch_option("Show rows of this branch.")
def tail_verb(
    name: str,
    rows: int,
    as_at: str | None,
    as_of: str | None,
    current: bool,
    key: tuple[str, ...],
    branch: str,
) -> None:
    """Show the last rows of a dataset.

    Rows are sorted by offset, oldest first. --as-of and --current use the primary key of the dataset,
    unless --key specifies its columns.
    """
    entry = open_workspace().resolve(name).on_branch(branch)
    if branch:  # a job reads a block of any chain
        from odf_engine.views.as_at import resolve_as_at

        as_at = resolve_as_at(entry, as_at).block
    if as_of is not None or current or key:
        table = _read_projection(entry, rows, as_at, as_of, key)
    else:
        table = _read_newest_rows(entry, rows, as_at)
    _print_rows(entry, table, empty=as_at is None and as_of is None)


def _read_newest_rows(entry: DatasetEntry, rows: int, as_at: str | None) -> pa.Table:
    """Return the newest rows, or those as known at a time or block, without a worker."""
    from odf_engine.views.as_at import at_version, resolve_as_at
    from odf_engine.views.row_window import RowWindowReader

    if as_at is None:
        return RowWindowReader(entry.dataset).tail(rows)
    version = resolve_as_at(entry, as_at)
    dataset = at_version(entry, version).dataset
    preview = RowWindowReader(dataset, last_offset=version.scan_offset)
    _print_version(as_at_text(version), preview.row_count)
    return preview.tail(rows)


def _read_projection(
    entry: DatasetEntry, rows: int, as_at: str | None, as_of: str | None, key: tuple[str, ...]
) -> pa.Table:
    """Return the last rows of a projection, which a job builds: as of an event time, or the latest state."""
    from pathlib import Path

    from odf_engine.coordinator.protocol import JobState
    from odf_engine.jobs.views import BuildProjection
    from odf_engine.metadata.timestamp import parse_user_time
    from odf_engine.views.query_results import ResultRows
    from odf_tui.cli.follow import exit_code, follow

    event_time = None if as_of is None else str(parse_user_time(as_of))
    request = BuildProjection(str(entry.id), list(key), as_at=as_at, as_of=event_time)
    (job,) = follow(open_workspace(), [(request, str(entry.alias))])
    if job.error is not None:
        raise job.error.to_error()
    result = job.result_of(BuildProjection)
    if job.state is not JobState.done or result is None:
        sys.exit(exit_code([job]))
    rows_file = ResultRows(Path(result.file))
    parts = [
        as_at_text(result.pin) if as_at and result.pin else "",
        f"as of {event_time}" if event_time else "",
    ]
    parts.append(f"by {', '.join(map(printable, result.key))}" if result.key else "")
    _print_version(" · ".join(part for part in parts if part), rows_file.row_count)
    return rows_file.window(rows_file.row_count - rows, rows + min(rows_file.row_count - rows, 0))


def _print_version(version: str, rows: int) -> None:
    """Print which version of the dataset the rows are read from."""
    print_note(f"{version} · {count_of(rows, 'row')}")


@verb("late", example="odf late port-haven.air-by-day --rows", json=True)
@click.argument("name")
@click.option("--rows", "show_rows", is_flag=True, help="Show the rows instead of their numbers.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Maximum number of blocks.",
)
def late_verb(name: str, show_rows: bool, limit: int) -> None:
    """List the rows that a derivative dataset dropped because they are late.

    A row is late if the watermark had passed its window before it was ingested. The rows remain in the
    input. Each Parquet file has those of one transaction and input. See `odf help event-time`.
    """
    import pyarrow.parquet as pq

    from odf_engine.workspace.dataset_folders import list_late_rows

    entry = open_workspace().resolve(name)
    files = list_late_rows(entry.dataset)
    blocks = list(dict.fromkeys(file.block for file in files))[:limit]
    documents: list[dict[str, Any]] = []
    for file in files:
        if file.block in blocks:
            block = entry.dataset.block(Multihash.parse(file.block)).block
            document = {"block": file.block, "system_time": block.system_time, "input": file.input,
                        "rows": file.rows, "file": str(file.path)}  # fmt: skip
            documents.append(document | ({"records": pq.read_table(file.path)} if show_rows else {}))
    if options_of().json:
        print_json([each | ({"records": json_records(each["records"])} if show_rows else {})
                    for each in documents])  # fmt: skip
    elif not documents:
        print_note(f"{entry.alias} has dropped no late rows")
    elif show_rows:
        for each in documents:
            block = Multihash.parse(each["block"]).abbreviated
            print_note(f"block {block}, input {each['input']}: {each['file']}")
            _print_rows(entry, each["records"], empty=False)
    else:
        print_table(
            ["block", "system time", "input", "rows"],
            [
                [
                    Multihash.parse(each["block"]).abbreviated,
                    format_time_seconds(each["system_time"]),
                    printable(each["input"]),
                    str(each["rows"]),
                ]
                for each in documents
            ],
            ["rows"],
        )


def _print_rows(entry: DatasetEntry, table: pa.Table, *, empty: bool) -> None:
    from odf_engine.data.changelog import Op
    from odf_tui.text.values import is_number

    records = json_records(table)
    if options_of().json:
        print_json(records)
        return
    if not records:
        if empty:
            print_note(f"{entry.alias} has no rows yet: run odf pull {entry.alias}")
        return
    op = entry.dataset.state().vocabulary.operation_type_column
    for record in records:
        if op in record:
            record[op] = Op(record[op]).code
    numbers = [name for name in table.column_names if is_number(table.schema.field(name).type)]
    print_table(
        table.column_names,
        [["" if cell is None else printable(str(cell)) for cell in record.values()] for record in records],
        numbers,
    )


@click.group("block")
def block_verb() -> None:
    """Encode and decode metadata blocks."""


@verb("encode", example="odf block encode block.yaml -o block.bin")
@click.argument("file", type=click.Path(), default="-")
@click.option(
    "--block-version",
    type=click.Choice(["2", "3"]),
    help="Version of the block. Default: that of the manifest, else 3.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Output file. Default: stdout."
)
def encode(file: str, block_version: str | None, output: Path | None) -> None:
    """Encode a MetadataBlock manifest from YAML to bytes.

    Chain rules are not checked. The hash of the block is printed to stdout, or to stderr if the block
    itself is written to stdout.
    """
    from odf_engine.metadata.flatbuffers import encode_block
    from odf_engine.metadata.yaml import read_block_manifest

    source = "stdin" if file == "-" else file
    try:
        text = read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidManifest("the file is not UTF-8 text", where=f"{source}: byte {error.start}") from None
    block, version = read_block_manifest(text, source)
    data = encode_block(block, int(block_version or version or 3))
    digest = Multihash.sha3_256(data)
    if output is None:
        if sys.stdout.isatty():
            raise UsageError("binary output cannot be written to a terminal", hint="use -o FILE, or a pipe")
        sys.stdout.buffer.write(data)
        sys.stderr.write(f"{digest}\n")
    else:
        output.write_bytes(data)
        sys.stdout.write(f"{digest}\n")


@verb("decode", example="odf block decode $(odf path NAME)/blocks/f1620…", json=True)
@click.argument("file", type=click.Path(), default="-")
def decode(file: str) -> None:
    """Decode a metadata block from bytes to YAML.

    Fields of newer versions of the specification are reported on stderr.
    """
    from odf_engine.metadata.flatbuffers import decode_block
    from odf_engine.metadata.yaml import block_to_yaml, to_builtins

    decoded = decode_block(read_bytes(file))
    if options_of().json:
        print_json(
            {"kind": "MetadataBlock", "version": decoded.version, "content": to_builtins(decoded.block)}
        )
    else:
        sys.stdout.write(block_to_yaml(decoded.block, decoded.version))
    for unknown in decoded.unknown:
        sys.stderr.write(f"unknown field, not decoded: {unknown}\n")


block_verb.add_command(encode)
block_verb.add_command(decode)


@click.group("objects", epilog="Example:  odf objects list my.photos")
@common_options
def objects_verb() -> None:
    """List and copy the linked objects of a dataset.

    Linked objects are files that columns with links refer to by their hashes.
    """


@verb("list", example="odf objects list my.photos --json", json=True)
@click.argument("name")
def list_objects(name: str) -> None:
    """List the linked objects of a dataset, with their size and their number of links."""
    from odf_engine.chain.linked_objects import linked_objects
    from odf_engine.progress import Reporter

    dataset = open_workspace().resolve(name).dataset
    rows: list[tuple[Multihash, int, int | None]] = []
    for link, links in linked_objects(dataset, Reporter()).items():
        path = dataset.slice_path(link)
        rows.append((link, links, path.stat().st_size if path.is_file() else None))
    if options_of().json:
        print_json([{"hash": link, "links": links, "size": size} for link, links, size in rows])
        return
    if not rows:
        print_note(f"{name} has no linked objects")
        return
    print_table(
        ["hash", "links", "size"],
        [
            [str(link), format_count(links), "missing" if size is None else format_bytes(size)]
            for link, links, size in rows
        ],
        right=["links", "size"],
    )


@verb("get", example="odf objects get my.photos f1620… photo.jpg")
@click.argument("name")
@click.argument("hash_", metavar="HASH")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def get_object(name: str, hash_: str, file: Path, force: bool) -> None:
    """Copy a linked object to a file. Its bytes are verified.

    HASH is the value in the column with the link.
    """
    from odf_engine.chain.linked_objects import export_object
    from odf_engine.progress import Reporter

    dataset = open_workspace().resolve(name).dataset
    if file.exists() and not force:
        raise AlreadyExists(f"{file} already exists", hint="use --force to overwrite it")
    check_parent_folder(file)
    export_object(dataset, Multihash.parse(hash_), file, Reporter())
    print_note(f"{file}: {format_bytes(file.stat().st_size)}")


objects_verb.add_command(list_objects)
objects_verb.add_command(get_object)


@verb("digest", example="odf digest data.parquet --json", json=True)
@click.argument("file", type=click.Path(path_type=Path))
def digest_verb(file: Path) -> None:
    """Print the logical and the physical hash of a data file.

    FILE is a Parquet or an Arrow IPC file.
    """
    from odf_engine.data.digest import digest_file

    if not file.is_file():
        raise NotFound(f"file not found: {file}")
    digest = digest_file(file)
    if options_of().json:
        print_json(
            {
                "logical_hash": digest.logical_hash,
                "physical_hash": digest.physical_hash,
                "size": digest.size,
                "rows": digest.rows,
            }
        )
    else:
        sys.stdout.write(
            f"logical   {digest.logical_hash}\nphysical  {digest.physical_hash}\n"
            f"size      {digest.size} bytes\nrows      {digest.rows}\n"
        )
