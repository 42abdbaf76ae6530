"""Append rules: which block may follow a chain, one function for each rule.

A rule receives the state before the block, the block and its event, and raises ChainRuleViolated.
Specification: "Metadata Chain", "Common Metadata Operations".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import astuple

from odf_engine.chain.normal_form import find_duplicate, normal_form_problem
from odf_engine.chain.schema_evolution import find_breaking_change, read_declaration, same_declaration
from odf_engine.chain.state import (
    ChainState,
    apply_block,
    contains_opaque,
    find_unstorable,
    next_block,
    parse_column_names,
    resolve_vocabulary,
)
from odf_engine.errors import ChainRuleViolated, InvalidIdentity, InvalidSchema, MalformedBlock, NoOpEvent
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    AddData,
    AddPushSource,
    DatasetKind,
    DisablePollingSource,
    DisablePushSource,
    EthereumLogs,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataBlock,
    MetadataEvent,
    Seed,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SetVocab,
    kind_of,
)
from odf_engine.metadata.timestamp import Timestamp

CONTENT_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that unexpected content of a block may cause. Other programs write chains too."""


def content_error(block_hash: Multihash, error: Exception) -> MalformedBlock:
    """Return the error for a block whose content caused one of the :data:`CONTENT_ERRORS`."""
    return MalformedBlock(
        f"block content cannot be processed: {type(error).__name__}: {error}",
        hint="report this as a bug; a dataset that cannot be read can still be deleted",
        where=f"block {block_hash}",
    )


def rule_violation(
    block: MetadataBlock, rule: str, message: str, hint: str | None = None
) -> ChainRuleViolated:
    """Return the error for a block that violates a rule."""
    return ChainRuleViolated(rule, message, block=str(block.sequence_number), hint=hint)


def no_op_event(block: MetadataBlock, rule: str, message: str) -> NoOpEvent:
    """Return the error for a block whose event would change nothing."""
    return NoOpEvent(rule, message, block=str(block.sequence_number))


def format_optional(value: object) -> str:
    """Return the value as text, ``none`` for None."""
    return "none" if value is None else str(value)


DataEvent = AddData | ExecuteTransform


def check_not_empty(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """A data block has data, a checkpoint, a watermark or a source state."""
    values = [event.new_data, event.new_checkpoint, event.new_watermark]
    if isinstance(event, AddData):
        values.append(event.new_source_state)
    if all(part is None for part in values):
        raise no_op_event(
            block, "data-not-empty", f"{kind_of(event)} has no data, checkpoint, watermark or source state"
        )


def check_watermark(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """A data block repeats the watermark or advances it. It never omits or lowers it."""
    if state.data_watermark is not None and event.new_watermark is None:
        raise rule_violation(
            block, "watermark", f"watermark is missing, expected {state.data_watermark} or later"
        )
    new = event.new_watermark
    if new is not None and state.watermark is not None and new < state.watermark:
        raise rule_violation(block, "watermark", f"watermark decreases from {state.watermark} to {new}")


def check_prev_offset(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """``prevOffset`` is the last offset of the chain."""
    if event.prev_offset != state.last_offset:
        raise rule_violation(
            block,
            "prev-offset",
            f"prevOffset is {format_optional(event.prev_offset)}, expected "
            f"{format_optional(state.last_offset)}",
        )


def check_offset_sequence(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """Offsets have no gaps and no overlaps."""
    if event.new_data is None:
        return
    expected = 0 if event.prev_offset is None else event.prev_offset + 1
    start = event.new_data.offset_interval.start
    if start != expected:
        raise rule_violation(block, "offset-sequence", f"first offset is {start}, expected {expected}")


def check_offset_interval(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """The last offset of a slice is not less than its first."""
    if event.new_data is None:
        return
    interval = event.new_data.offset_interval
    if interval.end < interval.start:
        raise rule_violation(
            block, "offset-interval", f"last offset {interval.end} is before first offset {interval.start}"
        )


def check_schema_before_data(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """SetDataSchema precedes data."""
    if event.new_data is not None and not state.has_schema:
        raise rule_violation(block, "schema-before-data", "data without a preceding SetDataSchema")


def check_prev_checkpoint(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """``prevCheckpoint`` is the checkpoint of the preceding data block."""
    expected = None if state.last_checkpoint is None else state.last_checkpoint.physical_hash
    if event.prev_checkpoint != expected:
        raise rule_violation(
            block,
            "prev-checkpoint",
            f"prevCheckpoint is {format_optional(event.prev_checkpoint)}, expected "
            f"{format_optional(expected)}",
        )


def check_changes_something(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """A data block changes at least one of the values that data blocks repeat, or adds data."""
    checkpoint = None if event.new_checkpoint is None else event.new_checkpoint.physical_hash
    changed = (
        event.new_data is not None
        or checkpoint != event.prev_checkpoint
        or event.new_watermark != state.data_watermark
    )
    if isinstance(event, AddData):
        changed = changed or event.new_source_state != state.data_source_state
    else:
        changed = changed or any(_advances(item) for item in event.query_inputs)
    if not changed:
        raise no_op_event(block, "data-changes-something", f"{kind_of(event)} changes nothing")


def check_transform_inputs(state: ChainState, block: MetadataBlock, event: ExecuteTransform) -> None:
    """The inputs are SetTransform's, in the same order."""
    if state.transform is not None:
        expected = state.inputs()
    elif state.last_inputs is not None:
        expected = [item.dataset_id for item in state.last_inputs]
    elif "SetTransform" in state.not_understood:
        return
    else:
        raise rule_violation(block, "transform-inputs", "transaction without a preceding SetTransform")
    if [item.dataset_id for item in event.query_inputs] != expected:
        raise rule_violation(
            block, "transform-inputs", "inputs differ from those of SetTransform in number or order"
        )


def check_transform_intervals(state: ChainState, block: MetadataBlock, event: ExecuteTransform) -> None:
    """The interval of each input starts where the preceding transaction ended."""
    before = {item.dataset_id: item for item in state.last_inputs or ()}
    for item in event.query_inputs:
        problem = _interval_problem(before.get(item.dataset_id), item)
        if problem is not None:
            raise rule_violation(block, "transform-intervals", f"input {item.dataset_id}: {problem}")


def _interval_problem(before: ExecuteTransformInput | None, item: ExecuteTransformInput) -> str | None:
    block, offset = (None, None) if before is None else (before.last_block, before.last_offset)
    if item.prev_block_hash != block:
        return f"prevBlockHash is {format_optional(item.prev_block_hash)}, expected {format_optional(block)}"
    if item.prev_offset != offset:
        return f"prevOffset is {format_optional(item.prev_offset)}, expected {format_optional(offset)}"
    if item.new_block_hash is not None and item.new_block_hash == item.prev_block_hash:
        return "newBlockHash equals prevBlockHash, but an input that does not advance has no newBlockHash"
    if item.new_offset is None:
        return None
    if item.new_block_hash is None:
        return "newOffset without newBlockHash"
    if item.prev_offset is not None and item.new_offset <= item.prev_offset:
        return f"newOffset {item.new_offset} is not after prevOffset {item.prev_offset}"
    return None


def _advances(item: ExecuteTransformInput) -> bool:
    return item.new_block_hash is not None or item.new_offset is not None


def check_push_source_differs(state: ChainState, block: MetadataBlock, event: AddPushSource) -> None:
    """A redefined push source differs from its previous definition."""
    if state.push_sources.get(event.source_name) == event:
        raise no_op_event(
            block, "push-source-new", f"push source '{event.source_name}' already has this definition"
        )


def check_one_read_schema(
    state: ChainState, block: MetadataBlock, event: SetPollingSource | AddPushSource
) -> None:
    """A read step does not have both ``schema`` and ``odfSchema``."""
    read: Any = event.read
    if getattr(read, "schema", None) is not None and getattr(read, "odf_schema", None) is not None:
        raise rule_violation(block, "one-read-schema", "the read step has both schema and odfSchema")


def check_ethereum_source(state: ChainState, block: MetadataBlock, event: SetPollingSource) -> None:
    """An EthereumLogs source has a chain id or a node URL."""
    fetch = event.fetch
    if isinstance(fetch, EthereumLogs) and fetch.chain_id is None and fetch.node_url is None:
        raise rule_violation(block, "ethereum-source", "an EthereumLogs source requires chainId or nodeUrl")


def check_preprocess_normalized(
    state: ChainState, block: MetadataBlock, event: SetPollingSource | AddPushSource
) -> None:
    """The preprocess query is in normal form."""
    if event.preprocess is not None:
        _check_normalized(block, event.preprocess)


def check_transform_normalized(state: ChainState, block: MetadataBlock, event: SetTransform) -> None:
    """The query is in normal form."""
    _check_normalized(block, event.transform)


def check_transform_input_refs(state: ChainState, block: MetadataBlock, event: SetTransform) -> None:
    """A transform has inputs, each with an id and an alias."""
    if not event.inputs:
        raise rule_violation(block, "transform-input-refs", "a transform requires at least one input")
    for item in event.inputs:
        if not isinstance(_id_or_text(item.dataset_ref), DatasetId):
            raise rule_violation(
                block, "transform-input-refs", f"input '{item.dataset_ref}' is not a dataset id"
            )
        if not item.alias:
            raise rule_violation(block, "transform-input-refs", f"input {item.dataset_ref} has no alias")


_USE_ONE_INPUT: Final = "declare it once; a query can join an alias with itself: FROM t AS a JOIN t AS b"


def check_unique_inputs(state: ChainState, block: MetadataBlock, event: SetTransform) -> None:
    """Inputs and aliases are unique."""
    for noun, values, hint in (
        ("input", [_id_or_text(item.dataset_ref) for item in event.inputs], _USE_ONE_INPUT),
        ("alias", [item.alias for item in event.inputs], None),
    ):
        duplicate = find_duplicate(values)
        if duplicate is not None:
            raise rule_violation(block, "transform-inputs-once", f"duplicate {noun} {duplicate}", hint)


def _id_or_text(ref: str) -> DatasetId | str:
    try:
        return DatasetId.parse(ref)
    except InvalidIdentity:
        return ref  # another rule reports it


def check_polling_source_exists(state: ChainState, block: MetadataBlock, event: DisablePollingSource) -> None:
    """Only an existing polling source can be disabled."""
    if state.polling_source is None and "SetPollingSource" not in state.not_understood:
        raise rule_violation(block, "source-there", "the dataset has no polling source to disable")


def check_push_source_exists(state: ChainState, block: MetadataBlock, event: DisablePushSource) -> None:
    """Only an existing push source can be disabled."""
    name = event.source_name
    if name not in state.push_sources and f"AddPushSource {name}" not in state.not_understood:
        raise rule_violation(block, "source-there", f"the dataset has no push source '{name}' to disable")


def _check_normalized(block: MetadataBlock, transform: Any) -> None:
    if contains_opaque(transform):
        return
    problem = normal_form_problem(transform)
    if problem is not None:
        raise rule_violation(block, "query-normalised", problem)


def check_vocabulary_fixed(state: ChainState, block: MetadataBlock, event: SetVocab) -> None:
    """System columns are not renamed after the first data, and the schema contains them."""
    vocabulary = resolve_vocabulary(event)
    if vocabulary == state.vocabulary:
        return
    if state.slices:
        problem = "system columns cannot be renamed: the dataset has rows"
    else:
        columns = parse_column_names(state.schema, state.odf_schema)
        missing = [name for name in astuple(vocabulary) if columns is not None and name not in columns]
        if not missing:
            return
        problem = f"the schema has no column '{missing[0]}'"
    raise rule_violation(block, "vocabulary-fixed", problem, hint="create a new dataset to use other names")


def check_schema_present(state: ChainState, block: MetadataBlock, event: SetDataSchema) -> None:
    """SetDataSchema has a valid schema."""
    if contains_opaque(event):
        return
    try:
        schema = read_declaration(event)
    except InvalidSchema as error:
        raise rule_violation(block, "schema-given", f"the schema cannot be read: {error.message}") from error
    if schema is None:
        raise rule_violation(block, "schema-given", "SetDataSchema has no schema")


def check_schema_differs(state: ChainState, block: MetadataBlock, event: SetDataSchema) -> None:
    """Check that a new schema differs from the previous one in its meaning."""
    if state.has_schema and _ignore_invalid_schema(lambda: same_declaration(state, event)):
        raise no_op_event(block, "schema-new", "the dataset already has this schema")


def check_schema_evolution(state: ChainState, block: MetadataBlock, event: SetDataSchema) -> None:
    """The new schema is compatible with readers of the old one."""
    breaking = _ignore_invalid_schema(lambda: find_breaking_change(state, event))
    if breaking:
        raise rule_violation(
            block,
            "schema-evolution",
            f"incompatible schema change: {breaking.problem}",
            hint=breaking.advice,
        )


def _ignore_invalid_schema(read: Callable[[], Any]) -> Any:
    # Another rule reports an unreadable schema; it is not compared.
    try:
        return read()
    except InvalidSchema:
        return None


Rule = Callable[[Any, MetadataBlock, Any], None]  # state before the block, block, its event
_ROOT_ONLY: Final = (SetPollingSource, AddPushSource, DisablePollingSource, DisablePushSource, AddData)
_DERIVATIVE_ONLY: Final = (SetTransform, ExecuteTransform)


def check_append(state: ChainState | None, block: MetadataBlock) -> None:
    """Check that ``block`` may follow the chain with this state (None: it is the first block).

    Raises:
        ChainRuleViolated: it may not; the error has the block and the rule.
        NoOpEvent: it would change nothing.
    """
    for violation in find_violations(state, block):
        raise violation


def find_violations(state: ChainState | None, block: MetadataBlock) -> Iterator[ChainRuleViolated]:
    """Yield the error of every rule that ``block`` violates, the most important first."""
    rules = (
        _FIRST_BLOCK_RULES if state is None else (*_COMMON_RULES, *_EVENT_RULES.get(type(block.event), ()))
    )
    for rule in rules:
        try:
            rule(state, block, block.event)
        except ChainRuleViolated as violation:
            yield violation


def check_commit(state: ChainState | None, events: Sequence[MetadataEvent], system_time: Timestamp) -> None:
    """Check that these events may be appended to a chain, one block for each.

    Raises:
        ChainRuleViolated: an event may not; the error has its block and the rule.
        NoOpEvent: an event would change nothing.
    """
    for event in events:
        block = next_block(state, event, system_time)
        check_append(state, block)
        # Rules only compare hashes, so the hash of the number is sufficient here.
        state = apply_block(state, block, Multihash.sha3_256(str(block.sequence_number).encode()))


def check_seed_first(state: None, block: MetadataBlock, event: Any) -> None:
    """The first block is a Seed without a previous block."""
    if not isinstance(event, Seed):
        raise rule_violation(block, "seed-first", f"the first block is {kind_of(event)}, expected Seed")
    if block.prev_block_hash is not None:
        raise rule_violation(block, "seed-first", "the Seed has a previous block")


def check_first_sequence_number(state: None, block: MetadataBlock, event: Any) -> None:
    """The first sequence number is 0."""
    if block.sequence_number != 0:
        raise rule_violation(
            block,
            "sequence-number",
            f"the first block has sequence number {block.sequence_number}, expected 0",
        )


def check_number_range(state: ChainState | None, block: MetadataBlock, event: Any) -> None:
    """Numbers are within the limits of the storage formats."""
    if (problem := find_unstorable(state, block)) is not None:
        raise rule_violation(block, "number-range", problem)


def check_single_seed(state: ChainState, block: MetadataBlock, event: Any) -> None:
    """Only the first block is a Seed."""
    if isinstance(event, Seed):
        raise rule_violation(block, "seed-once", "the chain already has a Seed")


def check_prev_block(state: ChainState, block: MetadataBlock, event: Any) -> None:
    """``prevBlockHash`` is the head of the chain."""
    if block.prev_block_hash is None:
        raise rule_violation(block, "prev-block", "prevBlockHash is missing")
    if block.prev_block_hash != state.head:
        raise rule_violation(
            block, "prev-block", f"prevBlockHash is {block.prev_block_hash}, but the head is {state.head}"
        )


def check_sequence_number(state: ChainState, block: MetadataBlock, event: Any) -> None:
    """Sequence numbers increase by one."""
    if block.sequence_number != state.sequence_number + 1:
        raise rule_violation(
            block,
            "sequence-number",
            f"sequence number is {block.sequence_number}, expected {state.sequence_number + 1}",
        )


def check_system_time(state: ChainState, block: MetadataBlock, event: Any) -> None:
    """System time never decreases."""
    if block.system_time < state.system_time:
        raise rule_violation(
            block,
            "system-time",
            f"system time {block.system_time} is before that of the previous block, {state.system_time}",
            hint="check the clock of this computer",
        )


def check_event_fits_kind(state: ChainState, block: MetadataBlock, event: Any) -> None:
    """Root datasets have sources, derivative datasets have a transform."""
    misfits = _ROOT_ONLY if state.kind is DatasetKind.Derivative else _DERIVATIVE_ONLY
    if isinstance(event, misfits):
        raise rule_violation(
            block,
            "event-fits-kind",
            f"{kind_of(event)} is not allowed in a {state.kind.value.lower()} dataset",
        )


# The order of the reports: position in the chain first, then content.
_FIRST_BLOCK_RULES: Final[tuple[Rule, ...]] = (
    check_seed_first,
    check_first_sequence_number,
    check_number_range,
)
_COMMON_RULES: Final[tuple[Rule, ...]] = (
    check_single_seed,
    check_prev_block,
    check_sequence_number,
    check_system_time,
    check_event_fits_kind,
    check_number_range,
)
_DATA_RULES: Final[tuple[Rule, ...]] = (
    check_not_empty,
    check_watermark,
    check_prev_offset,
    check_offset_sequence,
    check_offset_interval,
    check_schema_before_data,
    check_prev_checkpoint,
)
_EVENT_RULES: Final[dict[type, tuple[Rule, ...]]] = {
    AddData: (*_DATA_RULES, check_changes_something),
    ExecuteTransform: (
        *_DATA_RULES,
        check_transform_inputs,
        check_transform_intervals,
        check_changes_something,
    ),
    SetPollingSource: (
        check_one_read_schema,
        check_ethereum_source,
        check_preprocess_normalized,
    ),
    AddPushSource: (
        check_push_source_differs,
        check_one_read_schema,
        check_preprocess_normalized,
    ),
    DisablePollingSource: (check_polling_source_exists,),
    DisablePushSource: (check_push_source_exists,),
    SetTransform: (
        check_transform_input_refs,
        check_unique_inputs,
        check_transform_normalized,
    ),
    SetVocab: (check_vocabulary_fixed,),
    SetDataSchema: (check_schema_present, check_schema_differs, check_schema_evolution),
}
