"""The folded state: what a chain amounts to, and its stored form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from odf_engine.chain.state import ChainState, apply_block, decode_state, encode_state, is_same_source
from odf_engine.errors import ChainRuleViolated
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddPushSource,
    Append,
    AttachmentEmbedded,
    Container,
    DataField,
    DataSchema,
    DisablePollingSource,
    DisablePushSource,
    Embedded,
    ExecuteTransformInput,
    ExtraAttributes,
    FetchStep,
    FilesGlob,
    Forever,
    FromSystemTime,
    Int32,
    Json,
    Opaque,
    RequestHeader,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetVocab,
    Snapshot,
    SourceOrdering,
    SourceState,
    Url,
)

if TYPE_CHECKING:
    from tests.chain.conftest import Chains


def test_state_contains_sources_schema_and_metadata(chains: Chains) -> None:
    polling, schema = chains.polling(merge=Snapshot(["a"])), chains.schema(pa.field("a", pa.int64()))
    licence = SetLicense(short_name="CC", name="Creative Commons", website_url="https://x")
    attachments = Embedded([AttachmentEmbedded("README.md", "# Ä")])
    state = chains.state(
        chains.root, polling, SetInfo("d", ["k"]), licence, SetAttachments(attachments), schema
    )
    assert (state.kind, state.dataset_id, state.blocks) == (chains.root.dataset_kind, chains.ids[0], 6)
    assert (state.polling_source, state.schema, state.license) == (polling, schema.schema, licence)
    assert (state.info, state.attachments) == (SetInfo("d", ["k"]), attachments)
    assert state.vocabulary == DEFAULT_VOCABULARY
    assert decode_state(encode_state(state)) == state


def test_vocabulary_is_not_merged_with_older_ones(chains: Chains) -> None:
    state = chains.state(chains.root, SetVocab(offset_column="o"), SetVocab(event_time_column="t"))
    assert state.vocabulary.offset_column == "offset"
    assert state.vocabulary.event_time_column == "t"


def test_data_events_update_counts_offset_and_watermark(chains: Chains) -> None:
    state = chains.state(chains.root, chains.schema())
    event = chains.add_data(
        state,
        rows=10,
        new_watermark=chains.day(3),
        new_source_state=chains.source_state("a"),
        new_checkpoint=chains.checkpoint(b"c"),
    )
    state = chains.follow(state, chains.block(state, event, system_time=chains.day(9)))
    state = chains.follow(state, chains.block(state, chains.add_data(state, rows=5, new_checkpoint=None)))
    assert (state.records, state.slices, state.data_size, state.last_offset) == (15, 2, 8, 14)
    assert (state.watermark, state.last_data_time) == (chains.day(3), chains.day(9))
    assert state.source_state == chains.source_state("a")
    assert state.last_checkpoint is None
    state = chains.follow(state, chains.block(state, SetInfo("x"), system_time=chains.day(10)))
    assert (state.system_time, state.last_data_time) == (chains.day(10), chains.day(9))
    assert decode_state(encode_state(state)) == state


def test_source_state_is_kept_until_the_location_changes(chains: Chains) -> None:
    """It lasts when the source is read otherwise, and goes when it is somewhere else."""
    fetch = Url("https://example.com/a.csv")
    start = chains.state(chains.root, chains.polling(fetch=fetch))
    assert not start.was_polled
    event = chains.add_data(start, new_source_state=chains.source_state("a"))
    state = chains.follow(start, chains.block(start, event))
    same: tuple[dict[str, Any], ...] = (
        {"fetch": fetch, "merge": Snapshot(["a"])},
        {"fetch": Url(fetch.url, headers=[RequestHeader("Authorization", "x")])},
        {"fetch": Url(fetch.url, event_time=FromSystemTime(), cache=Forever())},
    )
    for changes in same:
        kept = chains.follow(state, chains.block(state, chains.polling(**changes)))
        assert (kept.source_state, kept.was_polled) == (chains.source_state("a"), True)
    for other in (chains.polling("https://example.com/b.csv"), DisablePollingSource()):
        forgotten = chains.follow(state, chains.block(state, other))
        assert (forgotten.source_state, forgotten.was_polled) == (None, False)
        assert forgotten.data_source_state == chains.source_state("a")


def test_push_state_does_not_replace_polling_source_state(chains: Chains) -> None:
    start = chains.state(chains.root, chains.polling("https://example.com/a.csv"))
    event = chains.add_data(start, new_source_state=SourceState("main", "odf/payload-hash", "f1220ab"))
    state = chains.follow(start, chains.block(start, event))
    assert (state.source_state, state.was_polled) == (None, False)
    state = chains.follow(
        state, chains.block(state, chains.add_data(state, new_source_state=chains.source_state("a")))
    )
    state = chains.follow(state, chains.block(state, event))
    assert (state.source_state, state.was_polled) == (chains.source_state("a"), True)
    assert state.data_source_state == event.new_source_state


def test_rows_but_not_a_watermark_mark_a_source_as_polled(chains: Chains) -> None:
    """Not every source has a state; a watermark that somebody set is no sign of it."""
    state = chains.state(chains.root, chains.polling(), chains.schema())
    watermark = chains.add_data(state, new_watermark=chains.day(1))
    state = chains.follow(state, chains.block(state, watermark))
    assert not state.was_polled
    state = chains.follow(state, chains.block(state, chains.add_data(state, rows=1)))
    assert state.was_polled
    state = chains.follow(state, chains.block(state, chains.polling(merge=Snapshot(["a"]))))
    assert state.was_polled


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (FilesGlob("in/*.csv"), FilesGlob("in/**/*.txt", order=SourceOrdering.ByName), True),
        (FilesGlob("in/*.csv"), FilesGlob("./in/x-*.csv"), True),
        (FilesGlob("in/*.csv"), FilesGlob("out/*.csv"), False),
        (FilesGlob("a.csv"), Url("a.csv"), False),
        (Container("ghcr.io:80/x/y:1"), Container("ghcr.io:80/x/y@sha256:00"), True),
        (Container("ghcr.io:80/x/y:1"), Container("ghcr.io:81/x/y:1"), False),
        (Container("x", args=["a"]), Container("x", args=["b"]), False),
    ],
)
def test_is_same_source_compares_the_location(old: FetchStep, new: FetchStep, same: bool) -> None:
    assert is_same_source(old, new) is same


def test_a_manual_watermark_does_not_forget_the_source_state(chains: Chains) -> None:
    state = chains.state(chains.root, chains.polling())
    for event in (
        chains.add_data(state, new_source_state=chains.source_state("a")),
        chains.add_data(state, new_watermark=chains.day(1), new_source_state=None),
    ):
        state = chains.follow(state, chains.block(state, event))
    assert state.source_state == chains.source_state("a")


def test_state_lists_active_push_sources(chains: Chains) -> None:
    def push(name: str) -> AddPushSource:
        return AddPushSource(source_name=name, read=Json(schema=["a INT"]), merge=Append())

    state = chains.state(chains.root, push("a"), push("b"), DisablePushSource("a"))
    assert state.push_sources == {"b": push("b")}
    assert decode_state(encode_state(state)) == state


def test_state_contains_inputs_of_the_last_transaction(chains: Chains) -> None:
    one, two = chains.ids[1], chains.ids[2]
    state = chains.state(chains.derivative, chains.transform(one, two), chains.schema())
    inputs = [ExecuteTransformInput(one, None, chains.hash("1"), None, 4), ExecuteTransformInput(two)]
    event = chains.execute(state, inputs, new_data=chains.slice(0, 0))
    state = chains.follow(state, chains.block(state, event))
    assert state.inputs() == [one, two]
    assert state.last_inputs == inputs
    assert state.records == 1
    assert decode_state(encode_state(state)) == state


def test_inputs_without_ids_are_omitted(chains: Chains) -> None:
    transform = chains.transform(chains.ids[1])
    named = msgspec.structs.replace(transform.inputs[0], dataset_ref="cities")
    strange = msgspec.structs.replace(transform, inputs=[named, *transform.inputs])
    state = chains.state(chains.derivative)
    state = apply_block(state, chains.block(state, strange), chains.hash("x"))
    assert state.inputs() == [chains.ids[1]]


def test_unknown_settings_are_counted_as_not_understood(chains: Chains) -> None:
    opaque: Any = Opaque("FetchStep", 77)
    state = chains.state(chains.root, chains.polling())
    state = chains.follow(state, chains.block(state, chains.polling(fetch=opaque)))
    assert state.polling_source is None
    assert state.not_understood == {"SetPollingSource": 2}
    assert decode_state(encode_state(state)) == state
    state = chains.follow(state, chains.block(state, chains.polling()))
    assert state.polling_source == chains.polling()
    assert state.not_understood == {}
    state = chains.follow(state, chains.block(state, Opaque("MetadataEvent", 14)))
    assert state.not_understood == {"event 14": 4}
    assert state.blocks == 5


def test_state_contains_odf_schema(chains: Chains) -> None:
    newer = DataSchema([DataField("a", Int32(), ExtraAttributes({"x": [1, {"y": None}]}))])
    state = chains.state(chains.root, SetDataSchema(odf_schema=newer))
    assert (state.schema, state.odf_schema, state.has_schema) == (None, newer, True)
    assert decode_state(encode_state(state)) == state


def test_a_chain_without_a_seed_has_no_state(chains: Chains) -> None:
    with pytest.raises(ChainRuleViolated) as caught:
        apply_block(None, chains.block(None, SetInfo("x")), chains.hash("x"))
    assert (caught.value.rule, caught.value.block) == ("seed-first", str(chains.hash("x")))


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x80", msgspec.msgpack.encode({"head": "f1620"})])
def test_invalid_stored_state_is_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match="not the stored state"):
        decode_state(data)


def test_states_are_small(chains: Chains) -> None:
    state: ChainState = chains.state(chains.root, chains.schema())
    assert len(encode_state(state)) < 1500


@pytest.mark.complete
def test_states_are_decoded_first_by_several_threads() -> None:
    for _ in range(10):  # a crash of the process is a matter of chance
        ran = subprocess.run(
            [sys.executable, "-m", "tests.chain.first_states"], cwd=Path(__file__).parents[2], check=False
        )
        assert ran.returncode == 0
