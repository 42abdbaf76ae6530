"""Datasets with links to objects."""

from __future__ import annotations

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.chain.linked_objects import store_object
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.odf_schema import stored_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddPushSource,
    Append,
    DataField,
    DataSchema,
    DatasetKind,
    ExtraAttributes,
    Int64,
    NdJson,
    Option,
    SetDataSchema,
    String,
)
from odf_engine.metadata.object_links import LinkedTotals, totals_attribute
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.slices import stage_slice
from tests.sync.builders import SECOND, START, commit

LINK = ExtraAttributes({"opendatafabric.org/type": {"kind": "ObjectLink", "linkType": {"kind": "Multihash"}}})
LINKED = DataSchema([DataField("photo", Option(String()), LINK), DataField("n", Option(Int64()))])
SCHEMA = slice_schema(pa.schema([("photo", pa.string()), ("n", pa.int64())]), DEFAULT_VOCABULARY)


def make_linked(
    workspace: Workspace, name: str = "photos", schema: DataSchema | None = LINKED
) -> DatasetEntry:
    """A root dataset with a push source and no rows.

    ``schema`` has the data columns; without it, the dataset has an Arrow schema, and no links.
    """
    reader = NdJson(schema=["photo STRING", "n BIGINT"])
    source = AddPushSource(source_name="main", read=reader, merge=Append())
    declared = SetDataSchema(encode_schema(SCHEMA))
    if schema is not None:
        system = stored_schema(SCHEMA).fields[: -len(schema.fields)]
        declared = SetDataSchema(odf_schema=DataSchema([*system, *schema.fields]))
    events = [declared, source]
    return workspace.create_dataset(DatasetAlias.parse(name), DatasetKind.Root, events, START)


def add_rows(entry: DatasetEntry, links: list[str | None], totals: LinkedTotals | None = None) -> None:
    """Commits rows with these links."""
    table = pa.table({"photo": pa.array(links, pa.string()), "n": range(len(links))})
    time = Timestamp(entry.dataset.state().system_time.ns + SECOND)
    extra = None if totals is None else totals_attribute(totals)
    event, path = stage_slice(entry.dataset, table, SCHEMA, time, new_watermark=time, extra=extra)
    commit(entry, [event], data=path)


def add_object(entry: DatasetEntry, content: bytes) -> str:
    path = entry.dataset.folder.parent / "source"
    path.write_bytes(content)
    return str(store_object(entry.dataset, path, Reporter()))
