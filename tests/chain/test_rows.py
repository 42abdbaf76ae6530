"""The line that says what a block did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from odf_engine.chain.rows import summarise
from odf_engine.metadata.model import (
    AddData,
    AddPushSource,
    AttachmentEmbedded,
    Container,
    DataField,
    DataSchema,
    DisablePollingSource,
    DisablePushSource,
    Embedded,
    ExecuteTransform,
    FilesGlob,
    Int32,
    Ledger,
    Mqtt,
    NdJson,
    Opaque,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetVocab,
    Snapshot,
    Sql,
)

if TYPE_CHECKING:
    from tests.chain.conftest import Chains


def test_summaries(chains: Chains) -> None:
    c = chains
    opaque: Any = Opaque("FetchStep", 9)
    expected: dict[str, Any] = {
        "10 records, watermark 2024-01-03": AddData(
            new_data=c.slice(0, 9), new_watermark=type(c.day(0)).parse("2024-01-03T00:00:00Z")
        ),
        "1 record": AddData(new_data=c.slice(7, 7)),
        "1,234 records, checkpoint": AddData(new_data=c.slice(0, 1233), new_checkpoint=c.checkpoint(b"c")),
        "watermark 1970-01-01T12:00:00Z": AddData(new_watermark=type(c.day(0))(c.day(1).ns // 2)),
        "source state": AddData(new_source_state=c.source_state("x")),
        "nothing new": ExecuteTransform([]),
        f"root dataset {c.ids[0]}": c.root,
        "source file:a.csv, read csv, merge snapshot": c.polling("file:a.csv", merge=Snapshot(["a"])),
        "source d/*.json, read ndJson, spark query, merge append": c.polling(
            fetch=FilesGlob("d/*.json"), read=NdJson(), preprocess=Sql("spark", query="SELECT 1")
        ),
        "source container img, read csv, merge append": c.polling(fetch=Container("img")),
        "source mqtt h:1, read csv, merge append": c.polling(fetch=Mqtt(host="h", port=1, topics=[])),
        "source opaque, read csv, merge append": c.polling(fetch=opaque),
        "source 'p', read ndJson, merge ledger": AddPushSource(
            source_name="p", read=NdJson(), merge=Ledger(["a"])
        ),
        "source 'p'": DisablePushSource("p"),
        "": DisablePollingSource(),
        "spark query over in0, in1": c.transform(c.ids[1], c.ids[2]),
        "o, t": SetVocab(offset_column="o", event_time_column="t"),
        "README.md, LICENSE": SetAttachments(
            Embedded([AttachmentEmbedded("README.md", "x"), AttachmentEmbedded("LICENSE", "y")])
        ),
        "about cities": SetInfo("about\n  cities", ["k"]),
        "k, l": SetInfo(None, ["k", "l"]),
        "CC-BY": SetLicense(short_name="CC-BY", name="x", website_url="y"),
        "schema of 5 columns": chains.schema(pa.field("a", pa.int32())),
        "schema of 3 bytes": SetDataSchema(b"abc"),
        "schema of 1 column": SetDataSchema(odf_schema=DataSchema([DataField("a", Int32())])),
        "an event of a newer specification": Opaque("MetadataEvent", 14),
    }
    assert {summarise(event): event for event in expected.values()} == expected
    assert summarise(SetInfo("x" * 500)) == "x" * 99 + "…"


def test_foreign_text_cannot_move_the_cursor() -> None:
    assert summarise(SetInfo("\x1b[2Jred\x07\x00 x\u202e")) == "[2Jred x"
