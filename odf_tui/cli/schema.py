"""Print the schema of a dataset."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from odf_engine.api import DatasetSnapshot, build_manifest_schema, to_ddl, to_yaml
from odf_engine.errors import NotFound
from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import print_json
from odf_tui.cli.shared.workspace import open_workspace

if TYPE_CHECKING:
    import pyarrow as pa

ORDER = 140
MEANINGS = "columns ddl types"


@define_command("schema", help=__doc__, example="odf schema port-haven.stations --format ddl")
@click.argument("name", required=False, type=DATASET)
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
def command(name: str | None, form: str, manifest_json_schema: bool) -> None:
    if manifest_json_schema:
        if name is not None:
            raise click.UsageError("--manifest-json-schema and NAME exclude each other")
        print_json(build_manifest_schema("DatasetSnapshot", 1, DatasetSnapshot))
        return
    if name is None:
        raise click.MissingParameter(param_type="argument", param_hint="'NAME'")
    dataset = open_workspace().resolve(name)
    schema = dataset.schema
    if schema is None:
        raise NotFound(f"{name} has no schema yet, because it has no data", hint=f"run odf pull {name}")
    descriptions = dataset.column_descriptions
    if form == "ddl":
        sys.stdout.write(",\n".join(to_ddl(schema, descriptions)) + "\n")
    elif form == "arrow":
        sys.stdout.write(schema.to_string(show_schema_metadata=False, show_field_metadata=False) + "\n")
    elif form == "parquet":
        sys.stdout.write(_format_parquet_schema(schema))
    elif form == "odf":
        sys.stdout.write(to_yaml(dataset.odf_schema))
    else:
        fields = [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            | ({"description": descriptions[field.name]} if field.name in descriptions else {})
            for field in schema
        ]
        print_json({"fields": fields})


def _format_parquet_schema(schema: pa.Schema) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink, version="2.6")
    text = str(pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema)
    return "\n".join(text.splitlines()[1:]) + "\n"
