"""Append rules: what may follow what, and what each mistake is called."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.chain.append_rules import check_append, find_violations
from odf_engine.chain.block_summary import describe_event
from odf_engine.chain.state import ChainState, apply_block, decode_state, encode_state
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.errors import ChainRuleViolated, NoOpEvent
from odf_engine.metadata.flatbuffers import decode_block
from odf_engine.metadata.model import (
    AddData,
    AddPushSource,
    Append,
    Csv,
    DataField,
    DataSchema,
    Decimal,
    DisablePollingSource,
    DisablePushSource,
    EthereumLogs,
    ExecuteTransformInput,
    ExtraAttributes,
    Int8,
    Int32,
    Int64,
    Ledger,
    List,
    MetadataBlock,
    NdJson,
    Opaque,
    Option,
    Parquet,
    SetDataSchema,
    SetInfo,
    SetTransform,
    SetVocab,
    Sql,
    SqlQueryStep,
    String,
    TimestampType,
    TimeUnit,
    TransformInput,
)
from odf_engine.metadata.timestamp import Timestamp

if TYPE_CHECKING:
    from tests.chain.conftest import Chains

replace = msgspec.structs.replace
A = pa.field("a", pa.int64())


def refusal(state: ChainState | None, block: MetadataBlock) -> ChainRuleViolated:
    with pytest.raises(ChainRuleViolated) as caught:
        check_append(state, block)
    assert caught.value.block == str(block.sequence_number)
    assert caught.value.where == f"block {block.sequence_number}"
    return caught.value


steps = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(1, 5)),
        st.tuples(st.just("watermark"), st.integers(1, 3)),
        st.tuples(st.just("checkpoint"), st.integers(0, 99)),
        st.tuples(st.just("drop checkpoint"), st.just(0)),
        st.tuples(st.just("source state"), st.integers(0, 99)),
        st.tuples(st.just("info"), st.integers(0, 99)),
        st.tuples(st.just("column"), st.just(0)),
        st.tuples(st.just("poll"), st.integers(0, 3)),
        st.tuples(st.just("later"), st.integers(1, 3)),
    ),
    max_size=12,
)


def grown(chains: Chains, plan: list[tuple[str, int]]) -> ChainState:
    """A chain that follows the plan; the rules accept every block of it."""
    state, columns, time = chains.state(chains.root, chains.schema(A)), [A], 0
    for step, amount in plan:
        event: Any = None
        match step:
            case "data":
                event = chains.add_data(state, rows=amount)
            case "watermark":
                days = 0 if state.watermark is None else state.watermark.ns // chains.day(1).ns
                event = chains.add_data(state, new_watermark=chains.day(days + amount))
            case "checkpoint":
                event = chains.add_data(state, rows=1, new_checkpoint=chains.checkpoint(bytes([amount])))
            case "drop checkpoint" if state.last_checkpoint is not None:
                event = chains.add_data(state, rows=1, new_checkpoint=None)
            case "source state":
                event = chains.add_data(state, rows=1, new_source_state=chains.source_state(str(amount)))
            case "info":
                event = SetInfo(str(amount))
            case "column":
                columns = [*columns, pa.field(f"c{len(columns)}", pa.string())]
                event = chains.schema(*columns)
            case "poll":
                event = chains.polling(f"https://example.com/{amount}.csv")
            case "later":
                time += amount
            case _:
                pass
        if event is not None:
            block = chains.block(state, event, system_time=max(state.system_time, chains.day(time)))
            state = chains.follow(state, block)
    return state


def mistakes(chains: Chains, state: ChainState, good: MetadataBlock) -> dict[str, tuple[str, MetadataBlock]]:
    """Every mistake that can be made here instead of ``good``, and the rule that finds it."""
    event: Any = good.event
    data, interval, last = event.new_data, event.new_data.offset_interval, state.last_offset

    def block(**changes: Any) -> MetadataBlock:
        return replace(good, **changes)

    def altered(**changes: Any) -> MetadataBlock:
        return block(event=replace(event, **changes))

    def records(start: int, end: int) -> MetadataBlock:
        return altered(new_data=replace(data, offset_interval=replace(interval, start=start, end=end)))

    number = good.sequence_number
    found = {
        "number skipped": ("sequence-number", block(sequence_number=number + 1)),
        "number repeated": ("sequence-number", block(sequence_number=number - 1)),
        "another block before": ("prev-block", block(prev_block_hash=chains.hash("no"))),
        "no block before": ("prev-block", block(prev_block_hash=None)),
        "another Seed": ("seed-once", block(event=chains.root)),
        "earlier": ("system-time", block(system_time=chains.day(-1))),
        "another kind of dataset": ("event-fits-kind", block(event=chains.transform(chains.ids[1]))),
        "gap": ("offset-sequence", records(interval.start + 1, interval.end)),
        "carried offset too high": ("prev-offset", altered(prev_offset=(last or 0) + 1)),
        "checkpoint that never was": ("prev-checkpoint", altered(prev_checkpoint=chains.hash("no"))),
        "offset too large": ("number-range", records(interval.start, 2**63)),
        "more records than can be counted": ("number-range", records(interval.start, 2**64 - 1)),
        "data too large": ("number-range", altered(new_data=replace(data, size=2**63))),
        "all data too large": ("number-range", altered(new_data=replace(data, size=2**63 - state.data_size))),
        "checkpoint too large": (
            "number-range",
            altered(new_checkpoint=replace(chains.checkpoint(b"c"), size=2**63)),
        ),
        "empty": ("data-not-empty", block(event=AddData(prev_offset=last))),
        "same schema": ("schema-new", block(event=SetDataSchema(state.schema))),
        "column gone": ("schema-evolution", block(event=chains.schema())),
    }
    if last is not None:
        found |= {
            "overlap": ("offset-sequence", records(interval.start - 1, interval.end)),
            "end before start": ("offset-interval", records(interval.start, interval.start - 1)),
            "carried offset dropped": ("prev-offset", altered(prev_offset=None)),
        }
    if state.watermark is not None:
        back = Timestamp(state.watermark.ns - 1)
        again = chains.add_data(state, new_source_state=state.data_source_state)
        found |= {
            "watermark back": ("watermark", altered(new_watermark=back)),
            "watermark dropped": ("watermark", altered(new_watermark=None)),
            "nothing new": ("data-changes-something", block(event=again)),
        }
    if state.last_checkpoint is not None:
        found["checkpoint dropped"] = ("prev-checkpoint", altered(prev_checkpoint=None))
    return found


@settings(max_examples=30, deadline=None)
@given(plan=steps)
def test_a_valid_chain_is_accepted_and_each_mistake_is_named(chains: Chains, plan: Any) -> None:
    state = grown(chains, plan)
    good = chains.block(state, chains.add_data(state, rows=2))
    check_append(state, good)
    for name, (rule, bad) in mistakes(chains, state, good).items():
        error = refusal(state, bad)
        assert error.rule == rule, name
        assert isinstance(error, NoOpEvent) == (
            rule in ("data-not-empty", "data-changes-something", "schema-new")
        ), name


def test_first_block_must_be_a_seed(chains: Chains) -> None:
    check_append(None, chains.block(None, chains.root))
    assert refusal(None, chains.block(None, SetInfo("x"))).rule == "seed-first"
    assert refusal(None, chains.block(None, Opaque("MetadataEvent", 99))).rule == "seed-first"
    assert (
        refusal(None, chains.block(None, chains.root, prev_block_hash=chains.hash("x"))).rule == "seed-first"
    )
    assert refusal(None, chains.block(None, chains.root, sequence_number=1)).rule == "sequence-number"


def test_data_needs_a_schema(chains: Chains) -> None:
    state = chains.state(chains.root)
    assert refusal(state, chains.block(state, chains.add_data(state, rows=1))).rule == "schema-before-data"
    check_append(state, chains.block(state, chains.add_data(state, new_watermark=chains.day(1))))


def test_the_first_slice_carries_no_offset(chains: Chains) -> None:
    state = chains.state(chains.root, chains.schema(A))
    event = chains.add_data(state, prev_offset=9, new_data=chains.slice(10, 12))
    assert refusal(state, chains.block(state, event)).rule == "prev-offset"


def test_a_checkpoint_has_to_be_restated_to_survive(chains: Chains) -> None:
    state = chains.state(chains.root, chains.schema(A))
    kept = chains.checkpoint(b"c")
    state = chains.follow(state, chains.block(state, chains.add_data(state, rows=1, new_checkpoint=kept)))
    state = chains.follow(state, chains.block(state, chains.add_data(state, rows=1, new_checkpoint=None)))
    stale = chains.add_data(state, rows=1, prev_checkpoint=kept.physical_hash)
    assert refusal(state, chains.block(state, stale)).rule == "prev-checkpoint"


def test_data_event_must_change_something(chains: Chains) -> None:
    state = chains.state(chains.root, chains.schema(A))
    event = chains.add_data(
        state, new_watermark=chains.day(1), new_source_state=chains.source_state("1"), rows=1
    )
    state = chains.follow(state, chains.block(state, event))
    assert isinstance(refusal(state, chains.block(state, chains.add_data(state))), NoOpEvent)
    for difference in (
        {"new_watermark": chains.day(2)},
        {"new_source_state": chains.source_state("2")},
        {"new_checkpoint": chains.checkpoint(b"c")},
        {"rows": 1},
    ):
        check_append(state, chains.block(state, chains.add_data(state, **difference)))


def test_transaction_continues_where_the_previous_one_ended(chains: Chains) -> None:
    one, two = chains.ids[1], chains.ids[2]
    b1, b2, b3 = map(chains.hash, "123")
    state = chains.state(chains.derivative, chains.transform(one, two), chains.schema(A))
    first = chains.execute(
        state,
        [ExecuteTransformInput(one, None, b1, None, 9), ExecuteTransformInput(two)],
        new_data=chains.slice(0, 4),
        new_watermark=chains.day(1),
    )
    state = chains.follow(state, chains.block(state, first))

    def rule(*inputs: ExecuteTransformInput, **changes: Any) -> str | None:
        event = chains.execute(state, inputs, **({"new_data": chains.slice(5, 6)} | changes))
        try:
            check_append(state, chains.block(state, event))
        except ChainRuleViolated as error:
            return error.rule
        return None

    still = ExecuteTransformInput(two)
    assert rule(ExecuteTransformInput(one, b1, b2, 9, 12), still) is None
    assert rule(ExecuteTransformInput(one, b1, b2, 9), still) is None
    assert (
        rule(ExecuteTransformInput(one, b1, None, 9), ExecuteTransformInput(two, None, b3, None, 0)) is None
    )
    # Advancing an input is worth a block even when nothing came of it.
    assert rule(ExecuteTransformInput(one, b1, b2, 9), still, new_data=None) is None
    assert rule(ExecuteTransformInput(one, b1, None, 9), still, new_data=None) == "data-changes-something"
    assert rule(ExecuteTransformInput(one, b1, b2, 9), still, new_data=None, new_watermark=None) == (
        "data-not-empty"
    )
    assert rule(still, ExecuteTransformInput(one, b1, b2, 9)) == "transform-inputs"
    assert rule(ExecuteTransformInput(one, b1, b2, 9)) == "transform-inputs"
    for wrong in (
        ExecuteTransformInput(one, None, b2, 9),
        ExecuteTransformInput(one, b2, b3, 9),
        ExecuteTransformInput(one, b1, b2, None, 12),
        ExecuteTransformInput(one, b1, b2, 8, 12),
        ExecuteTransformInput(one, b1, b1, 9),
        ExecuteTransformInput(one, b1, b2, 9, 9),
        ExecuteTransformInput(one, b1, b2, 9, 3),
        ExecuteTransformInput(one, b1, None, 9, 12),
    ):
        assert rule(wrong, still) == "transform-intervals", wrong
    assert rule(ExecuteTransformInput(one, b1, b2, 9), still, prev_checkpoint=b1) == "prev-checkpoint"
    assert rule(ExecuteTransformInput(one, b1, b2, 9), still, new_watermark=None) == "watermark"
    assert (
        rule(ExecuteTransformInput(one, b1, b2, 9), still, new_data=chains.slice(7, 8)) == "offset-sequence"
    )


def test_a_transform_comes_before_its_first_transaction(chains: Chains) -> None:
    state = chains.state(chains.derivative)
    event = chains.execute(state, [ExecuteTransformInput(chains.ids[1])], new_watermark=chains.day(1))
    assert refusal(state, chains.block(state, event)).rule == "transform-inputs"


def test_input_added_by_new_transform_starts_at_the_beginning(chains: Chains) -> None:
    one, two = chains.ids[1], chains.ids[2]
    b1, b2 = chains.hash("1"), chains.hash("2")
    state = chains.state(chains.derivative, chains.transform(one))
    event = chains.execute(
        state, [ExecuteTransformInput(one, None, b1, None, 9)], new_watermark=chains.day(1)
    )
    state = chains.follow(state, chains.block(state, event))
    state = chains.follow(state, chains.block(state, chains.transform(two, one)))
    good = [ExecuteTransformInput(two, None, b2), ExecuteTransformInput(one, b1, None, 9)]
    check_append(state, chains.block(state, chains.execute(state, good)))
    bad = [ExecuteTransformInput(two, b1, b2), ExecuteTransformInput(one, b1, None, 9)]
    assert refusal(state, chains.block(state, chains.execute(state, bad))).rule == "transform-intervals"


def push(name: str = "p", **changes: Any) -> AddPushSource:
    parts: dict[str, Any] = {"read": Csv(schema=["a INT"]), "merge": Append()}
    return AddPushSource(source_name=name, **(parts | changes))


def test_polling_source_and_push_sources_can_coexist(chains: Chains) -> None:
    """Push sources beside a polling source are for corrections of its rows."""
    both = chains.state(chains.root, chains.polling(), push())
    assert both.polling_source is not None and list(both.push_sources) == ["p"]
    chains.state(chains.root, push("p"), chains.polling())
    chains.state(chains.root, chains.polling(), DisablePollingSource(), push())
    chains.state(chains.root, push("p"), DisablePushSource("p"), chains.polling(), chains.polling("file:b"))


def test_only_existing_sources_can_be_disabled(chains: Chains) -> None:
    state = chains.state(chains.root, push("p"), DisablePushSource("p"))
    assert refusal(state, chains.block(state, DisablePushSource("p"))).rule == "source-there"
    assert refusal(state, chains.block(state, DisablePollingSource())).rule == "source-there"


def test_unchanged_push_source_and_two_read_schemas_are_rejected(chains: Chains) -> None:
    state = chains.state(chains.root, push("p"))
    again = refusal(state, chains.block(state, push("p")))
    assert (again.rule, type(again)) == ("push-source-new", NoOpEvent)
    check_append(state, chains.block(state, push("p", merge=Ledger(["a"]))))
    for read in (Csv(), Csv(schema=[]), NdJson(), Parquet()):  # a schema is optional
        check_append(state, chains.block(state, push("q", read=read)))
    both = Csv(schema=["a INT"], odf_schema=DataSchema([DataField("a", Int32())]))
    assert refusal(state, chains.block(state, push("q", read=both))).rule == "one-read-schema"


def test_ethereum_sources_name_a_chain(chains: Chains) -> None:
    state = chains.state(chains.root)
    event = chains.polling(fetch=EthereumLogs(filter="x"))
    assert refusal(state, chains.block(state, event)).rule == "ethereum-source"
    check_append(state, chains.block(state, chains.polling(fetch=EthereumLogs(chain_id=1))))


@pytest.mark.parametrize(
    "wrong",
    [
        Sql("spark", query="SELECT 1"),
        Sql("spark", query="SELECT 1", queries=[SqlQueryStep(query="SELECT 1")]),
        Sql("spark"),
        Sql("spark", queries=[]),
        Sql("spark", queries=[SqlQueryStep(alias="a", query="SELECT 1")]),
        Sql("spark", queries=[SqlQueryStep(query="SELECT 1"), SqlQueryStep(query="SELECT 2")]),
        Sql("spark", queries=[SqlQueryStep(alias="a", query="1")] * 2 + [SqlQueryStep(query="2")]),
    ],
)
def test_query_that_is_not_normalised_is_rejected(chains: Chains, wrong: Sql) -> None:
    root, derivative = chains.state(chains.root), chains.state(chains.derivative)
    for state, event in (
        (root, chains.polling(preprocess=wrong)),
        (root, push(preprocess=wrong)),
        (derivative, replace(chains.transform(chains.ids[1]), transform=wrong)),
    ):
        assert refusal(state, chains.block(state, event)).rule == "query-normalised"


def test_transform_inputs_must_be_unique_ids_with_aliases(chains: Chains) -> None:
    state = chains.state(chains.derivative)
    one, two = str(chains.ids[1]), str(chains.ids[2])

    def rule(*inputs: TransformInput) -> str:
        event = SetTransform(list(inputs), chains.transform().transform)
        return refusal(state, chains.block(state, event)).rule

    assert rule() == "transform-input-refs"
    assert rule(TransformInput("cities", "c")) == "transform-input-refs"
    assert rule(TransformInput(one)) == "transform-input-refs"
    assert rule(TransformInput(one, "a"), TransformInput(one, "b")) == "transform-inputs-once"
    assert rule(TransformInput(one, "a"), TransformInput(two, "a")) == "transform-inputs-once"


def test_event_fits_kind(chains: Chains) -> None:
    root, derivative = chains.state(chains.root), chains.state(chains.derivative)
    only_root = [chains.polling(), push(), DisablePollingSource(), DisablePushSource("p")]
    for event in (*only_root, chains.add_data(derivative, new_watermark=chains.day(1))):
        assert refusal(derivative, chains.block(derivative, event)).rule == "event-fits-kind"
    for event in (
        chains.transform(chains.ids[1]),
        chains.execute(root, [ExecuteTransformInput(chains.ids[1])], new_watermark=chains.day(1)),
    ):
        assert refusal(root, chains.block(root, event)).rule == "event-fits-kind"


def test_schema_may_reorder_and_add_nullable_columns_only(chains: Chains) -> None:
    b = pa.field("b", pa.string(), nullable=False)
    state = chains.state(chains.root, chains.schema(A, b))

    def rule(*columns: pa.Field) -> str | None:
        try:
            check_append(state, chains.block(state, chains.schema(*columns)))
        except ChainRuleViolated as error:
            return error.rule
        return None

    assert rule(A, b, pa.field("c", pa.string())) is None
    assert rule(b, A) is None
    assert rule(A.with_metadata({"unit": "m"}), b) is None
    assert rule(A, b) == "schema-new"
    assert rule(A) == "schema-evolution"
    assert rule(A, b.with_name("bb")) == "schema-evolution"
    assert rule(pa.field("a", pa.int32()), b) == "schema-evolution"
    assert rule(A.with_nullable(False), b) == "schema-evolution"
    assert rule(A, b.with_nullable(True)) == "schema-evolution"
    assert rule(A, b, pa.field("c", pa.string(), nullable=False)) == "schema-evolution"


def test_a_broken_schema_rule_says_how_to_migrate(chains: Chains) -> None:
    state = chains.state(chains.root, chains.schema(pa.field("city", pa.string())))

    def hint(*columns: pa.Field) -> str:
        return refusal(state, chains.block(state, chains.schema(*columns))).hint or ""

    assert "CAST(NULL AS STRING) AS city" in hint()
    assert "keep 'city' as STRING" in hint(pa.field("city", pa.int32()))
    assert "without NOT NULL" in hint(pa.field("city", pa.string(), nullable=False))
    more = pa.field("more", pa.int32(), nullable=False)
    assert hint(pa.field("city", pa.string()), more) == "declare it without NOT NULL"


def test_records_keep_the_names_of_their_system_columns(chains: Chains) -> None:
    other = SetVocab(event_time_column="at")
    state = chains.state(chains.root, other)
    check_append(state, chains.block(state, SetVocab()))
    state = chains.state(chains.root, chains.schema(A))
    assert refusal(state, chains.block(state, other)).rule == "vocabulary-fixed"
    check_append(state, chains.block(state, SetVocab(event_time_column="a")))
    state = chains.follow(state, chains.block(state, chains.add_data(state, rows=1)))
    for event in (other, SetVocab(event_time_column="a")):
        assert refusal(state, chains.block(state, event)).rule == "vocabulary-fixed"
    check_append(state, chains.block(state, SetVocab(offset_column="offset")))


def test_unreadable_schema_is_rejected(chains: Chains) -> None:
    state = chains.state(chains.root)
    for event in (SetDataSchema(b""), SetDataSchema(b"\xff" * 40), SetDataSchema()):
        assert refusal(state, chains.block(state, event)).rule == "schema-given"


def test_odf_schema_permits_data_and_must_change(chains: Chains) -> None:
    newer = SetDataSchema(odf_schema=DataSchema([DataField("a", Int32())]))
    state = chains.state(chains.root, newer)
    assert refusal(state, chains.block(state, newer)).rule == "schema-new"
    check_append(state, chains.block(state, chains.add_data(state, rows=1)))


MS: Final = TimeUnit.Millisecond
FIELDS: Final = [
    DataField("a", Int32()),
    DataField("b", Option(String())),
    DataField("c", TimestampType()),
    DataField("d", Option(Decimal(9, 2))),
    DataField("e", List(String())),
]


def change_of(fields: list[DataField], extra: ExtraAttributes | None = None) -> SetDataSchema:
    return SetDataSchema(odf_schema=DataSchema(fields, extra))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        (FIELDS, "schema-new"),
        (
            [*FIELDS[:2], DataField("c", TimestampType(TimeUnit.Millisecond, "UTC")), *FIELDS[3:]],
            "schema-new",
        ),
        ([*FIELDS, DataField("f", Option(Int8()))], None),
        ([DataField("f", Option(Int8())), *FIELDS], None),
        ([*FIELDS, DataField("f", Int8())], "schema-evolution"),
        (FIELDS[::-1], None),
        (FIELDS[:-1], "schema-evolution"),
        ([*FIELDS[:-1], DataField("f", Option(Int8()))], "schema-evolution"),
        ([DataField("a", Int32(), ExtraAttributes({"x.y/z": 1})), *FIELDS[1:]], None),
        ([DataField("a", Int64()), *FIELDS[1:]], "schema-evolution"),
        # A change of a type is refused beside another change too.
        ([DataField("a", Int64()), *FIELDS[1:], DataField("f", Option(Int8()))], "schema-evolution"),
        ([DataField("a", Option(Int32())), *FIELDS[1:]], "schema-evolution"),
        ([FIELDS[0], DataField("b", String()), *FIELDS[2:]], "schema-evolution"),
        ([*FIELDS[:2], DataField("c", TimestampType(timezone="+00:00")), *FIELDS[3:]], "schema-evolution"),
        ([*FIELDS[:3], DataField("d", Option(Decimal(10, 2))), FIELDS[4]], "schema-evolution"),
        ([*FIELDS[:4], DataField("e", List(Option(String())))], "schema-evolution"),
        ([*FIELDS[:4], DataField("e", Option(Option(String())))], "schema-given"),
    ],
)
def test_odf_schema_may_reorder_and_add_optional_fields_only(
    chains: Chains, fields: list[DataField], rule: str | None
) -> None:
    state = chains.state(chains.root, change_of(FIELDS))
    block = chains.block(state, change_of(fields))
    if rule is None:
        check_append(state, block)
    else:
        assert refusal(state, block).rule == rule


def test_changed_schema_attributes_are_a_schema_change(chains: Chains) -> None:
    state = chains.state(chains.root, change_of(FIELDS, ExtraAttributes({"a.b/c": 1})))
    check_append(state, chains.block(state, change_of(FIELDS)))
    check_append(state, chains.block(state, change_of(FIELDS, ExtraAttributes({"a.b/c": True}))))
    same = chains.block(state, change_of(FIELDS, ExtraAttributes({"a.b/c": 1})))
    assert refusal(state, same).rule == "schema-new"


def test_odf_schema_may_change_optionality_of_arrow_schema(chains: Chains) -> None:
    """Only this one may change optionality."""
    raw = pa.schema([
        pa.field("a", pa.int32()),
        pa.field("b", pa.large_string()),
        pa.field("c", pa.timestamp("ms"), nullable=False),
        pa.field("d", pa.decimal128(9, 2)),
        pa.field("e", pa.list_(pa.field("element", pa.string()))),
    ])  # fmt: skip
    state = chains.state(chains.root, SetDataSchema(encode_schema(raw)))
    same = [DataField("a", Option(Int32())), *FIELDS[1:4], DataField("e", Option(List(Option(String()))))]
    assert refusal(state, chains.block(state, change_of(same))).rule == "schema-new"
    check_append(state, chains.block(state, change_of(FIELDS)))
    check_append(state, chains.block(state, change_of([*same, DataField("f", Option(Int8()))])))
    for fields in (
        FIELDS[1:],
        [DataField("a", Int64()), *FIELDS[1:]],
        [*FIELDS, DataField("f", Int8())],
    ):
        assert refusal(state, chains.block(state, change_of(fields))).rule == "schema-evolution"
    after = chains.follow(state, chains.block(state, change_of(FIELDS)))
    assert refusal(after, chains.block(after, change_of(same))).rule == "schema-evolution"
    assert refusal(after, chains.block(after, SetDataSchema(encode_schema(raw)))).rule == "schema-evolution"


def test_unknown_events_and_members_are_not_rejected(chains: Chains) -> None:
    opaque: Any = Opaque("MergeStrategy", 9)
    state = chains.state(chains.root, Opaque("MetadataEvent", 99), push(merge=opaque))
    check_append(state, chains.block(state, chains.polling()))
    check_append(state, chains.block(state, DisablePushSource("p")))
    strange: Any = replace(chains.transform(chains.ids[1]), transform=Opaque("Transform", 9))
    derivative = chains.state(chains.derivative, strange)
    event = chains.execute(derivative, [ExecuteTransformInput(chains.ids[3])], new_watermark=chains.day(1))
    check_append(derivative, chains.block(derivative, event))


def test_rules_apply_to_all_golden_events(chains: Chains, shared: Path) -> None:
    root = grown(chains, [("data", 2), ("watermark", 2), ("checkpoint", 1), ("poll", 1)])
    derivative = chains.state(chains.derivative, chains.transform(chains.ids[1]), chains.schema(A))
    for vector in json.loads((shared / "golden" / "blocks.json").read_text()):
        event = decode_block(bytes.fromhex(vector["manifest_hex"])).block.event
        assert len(describe_event(event)) <= 100
        for state in (None, root, derivative):
            block = chains.block(state, event)
            for violation in find_violations(state, block):
                assert re.fullmatch(r"[a-z]+(-[a-z]+)*", violation.rule)
            if state is not None:
                after = apply_block(state, block, chains.hash(vector["name"]))
                assert decode_state(encode_state(after)) == after


def test_every_violated_rule_is_reported(chains: Chains) -> None:
    state = chains.state(chains.root, chains.schema(A))
    wrong = chains.add_data(
        state, prev_offset=3, new_data=chains.slice(9, 8), prev_checkpoint=chains.hash("x")
    )
    block = chains.block(state, wrong, sequence_number=7)
    found = [violation.rule for violation in find_violations(state, block)]
    expected = ["sequence-number", "prev-offset", "offset-sequence", "offset-interval", "prev-checkpoint"]
    assert found == expected
    assert refusal(state, block).rule == "sequence-number"
