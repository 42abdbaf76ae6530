"""The line that says what a block did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from odf_engine.chain.block_summary import describe_event
from odf_engine.chain.state import parse_column_names
from odf_engine.metadata.model import (
    AddData,
    AddPushSource,
    AttachmentEmbedded,
    Container,
    Csv,
    DataField,
    DataSchema,
    DisablePollingSource,
    DisablePushSource,
    Embedded,
    EthereumLogs,
    ExecuteTransform,
    ExecuteTransformInput,
    FilesGlob,
    Int32,
    Ledger,
    Mqtt,
    NdJson,
    Opaque,
    Parquet,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetTransform,
    SetVocab,
    Snapshot,
    Sql,
    SqlQueryStep,
)

if TYPE_CHECKING:
    from tests.chain.conftest import Chains


def test_summary_describes_each_kind_of_event(chains: Chains) -> None:
    c = chains
    opaque: Any = Opaque("FetchStep", 9)
    expected: dict[str, Any] = {
        "+10 rows, watermark → 2024-01-03": AddData(
            new_data=c.slice(0, 9), new_watermark=type(c.day(0)).parse("2024-01-03T00:00:00Z")
        ),
        "+1 row": AddData(new_data=c.slice(7, 7)),
        "+1,234 rows, state stored": ExecuteTransform(
            [ExecuteTransformInput(c.ids[1], new_block_hash=c.hash("x"))],
            new_data=c.slice(0, 1233),
            new_checkpoint=c.checkpoint(b"c"),
            prev_checkpoint=c.hash("b"),
        ),
        "watermark → 1970-01-01 12:00": AddData(new_watermark=type(c.day(0))(c.day(1).ns // 2)),
        "no new rows, source state stored": AddData(new_source_state=c.source_state("x")),
        "no changes": ExecuteTransform([]),
        f"root dataset {c.ids[0]}": c.root,
        "source file:a.csv, read csv, merge snapshot": c.polling("file:a.csv", merge=Snapshot(["a"])),
        "source d/*.json, read ndJson, spark query, merge append": c.polling(
            fetch=FilesGlob("d/*.json"), read=NdJson(), preprocess=Sql("spark", query="SELECT 1")
        ),
        "source container img, read csv, merge append": c.polling(fetch=Container("img")),
        "source mqtt h:1, read csv, merge append": c.polling(fetch=Mqtt(host="h", port=1, topics=[])),
        "source ethereum logs 1, read parquet, merge append": c.polling(
            fetch=EthereumLogs(chain_id=1), read=Parquet()
        ),
        "source opaque, read csv, merge append": c.polling(fetch=opaque),
        "source 'p', read ndJson, merge ledger": AddPushSource(
            source_name="p", read=NdJson(), merge=Ledger(["a"])
        ),
        "source 'p' disabled": DisablePushSource("p"),
        "source disabled": DisablePollingSource(),
        "spark query over in0, in1": c.transform(c.ids[1], c.ids[2]),
        "offset column is o, event time column is t": SetVocab(offset_column="o", event_time_column="t"),
        "files README.md, LICENSE": SetAttachments(
            Embedded([AttachmentEmbedded("README.md", "x"), AttachmentEmbedded("LICENSE", "y")])
        ),
        "about cities": SetInfo("about\n  cities", ["k"]),
        "keywords k, l": SetInfo(None, ["k", "l"]),
        "licence CC-BY": SetLicense(short_name="CC-BY", name="x", website_url="y"),
        "schema of 5 columns": chains.schema(pa.field("a", pa.int32())),
        "schema of 3 bytes": SetDataSchema(b"abc"),
        "schema of 1 column": SetDataSchema(odf_schema=DataSchema([DataField("a", Int32())])),
        "event from a newer specification": Opaque("MetadataEvent", 14),
    }
    assert [describe_event(event) for event in expected.values()] == list(expected)
    assert describe_event(SetInfo("x" * 500)) == "x" * 99 + "…"


def test_foreign_text_cannot_move_the_cursor() -> None:
    assert describe_event(SetInfo("\x1b[2Jred\x07\x00 x\u202e")) == "[2Jred x"


def test_summary_describes_the_change_from_the_previous_state(chains: Chains) -> None:
    c = chains
    a, b = pa.field("a", pa.int32()), pa.field("b", pa.string())
    root = c.state(c.root, c.schema(a), c.polling("file:a.csv"), SetInfo("boats", ["k"]))
    query = c.transform(c.ids[1], c.ids[2])
    made = c.state(c.derivative, c.schema(a), query)
    day = type(c.day(0)).parse("2024-01-03T00:00:00Z")
    engine = Sql("spark", version="4.1", queries=[SqlQueryStep(query="SELECT 2")])
    consumed = [
        ExecuteTransformInput(c.ids[1], new_block_hash=c.hash("x"), new_offset=1199),
        ExecuteTransformInput(c.ids[2], c.hash("y"), c.hash("z"), 9, 9),
        ExecuteTransformInput(c.ids[3], c.hash("y"), c.hash("z"), 9, 12),
    ]
    expected: list[tuple[str, Any, Any]] = [
        ("no new rows", AddData(new_watermark=day), msgspec.structs.replace(root, watermark=day)),
        ("schema: +1 column b", c.schema(a, b), root),
        ("schema: +1 column b, -1 column a", c.schema(b), root),
        ("schema: types or comments changed", c.schema(pa.field("a", pa.int64())), root),
        ("source changed: url", c.polling("file:b.csv"), root),
        ("source changed: csv → ndJson, append → ledger, query", c.polling(
            "file:a.csv", read=NdJson(), merge=Ledger(["a"]), preprocess=Sql("spark", query="SELECT 1")
        ), root),
        ("source changed: separator", c.polling("file:a.csv", read=Csv(["a INT"], separator=";")), root),
        ("source unchanged", c.polling("file:a.csv"), root),
        ("keywords l", SetInfo("boats", ["l"]), root),
        ("ships", SetInfo("ships", ["k"]), root),
        ("query changed, spark → spark 4.1", SetTransform(query.inputs, engine), made),
        ("+ input in1, - input in1", c.transform(c.ids[1], c.ids[3]), made),
        ("query unchanged", query, made),
        ("+7 rows from in0 +1,200", ExecuteTransform(
            consumed[:1], new_data=c.slice(0, 6), new_watermark=day
        ), msgspec.structs.replace(made, watermark=day)),
        (f"no rows from in0 +1,200, in1 +0, {str(c.ids[3])[:21]}… +3, watermark → 2024-01-03",
         ExecuteTransform(consumed, new_watermark=day), made),
    ]  # fmt: skip
    assert [describe_event(event, before) for _, event, before in expected] == [text for text, *_ in expected]


def test_column_names_are_parsed_without_arrow(chains: Chains) -> None:
    schema = chains.schema(pa.field("a", pa.int32()), pa.field("ü", pa.struct([("x", pa.int8())]))).schema
    assert schema is not None
    names = [*(field.name for field in chains.system_columns), "a", "ü"]
    assert parse_column_names(schema, None) == names
    assert parse_column_names(None, DataSchema([DataField("a", Int32())])) == ["a"]
    assert parse_column_names(None, None) is None
    for at in range(len(schema)):  # whatever the bytes are, nothing breaks
        for changed in (schema[:at], schema[:at] + b"\xff" + schema[at + 1 :]):
            parse_column_names(changed, None)
