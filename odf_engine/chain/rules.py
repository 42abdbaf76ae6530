"""What may follow what in a chain: one function a rule (specification: Metadata Chain; RFC-014).

:func:`check_append` looks at one block and the folded state before it, never at older blocks. Rules
raise :class:`ChainRuleViolated`, or :class:`NothingChanged` when a block would say nothing new. Parts
that are from a newer specification are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from odf_engine.chain import data_rules as data
from odf_engine.chain import setting_rules as setting
from odf_engine.chain.snapshots import check_snapshot, normalise_event, normalise_transform
from odf_engine.chain.state import ChainState, find_unstorable, fold
from odf_engine.chain.violations import broken
from odf_engine.errors import ChainRuleViolated
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    AddData,
    AddPushSource,
    DatasetKind,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
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

__all__ = [
    "check_append",
    "check_commit",
    "check_snapshot",
    "normalise_event",
    "normalise_transform",
    "violations",
]

Rule = Callable[[Any, MetadataBlock, Any], None]  # state before the block, block, its event

_ROOT_ONLY: Final = (SetPollingSource, AddPushSource, DisablePollingSource, DisablePushSource, AddData)
_DERIVATIVE_ONLY: Final = (SetTransform, ExecuteTransform)


def check_append(state: ChainState | None, block: MetadataBlock) -> None:
    """Whether ``block`` may follow the block whose state this is (None: it is the first).

    Raises:
        ChainRuleViolated: it may not; the error names the block and the rule.
        NothingChanged: it would change nothing.
    """
    for violation in violations(state, block):
        raise violation


def violations(state: ChainState | None, block: MetadataBlock) -> Iterator[ChainRuleViolated]:
    """Every rule that ``block`` breaks, the one that a person wants to hear of first at the front."""
    rules = _FIRST if state is None else (*_ALWAYS, *_BY_EVENT.get(type(block.event), ()))
    for rule in rules:
        try:
            rule(state, block, block.event)
        except ChainRuleViolated as violation:
            yield violation


def check_commit(state: ChainState | None, events: Sequence[MetadataEvent], system_time: Timestamp) -> None:
    """Whether these events may follow each other as the next blocks of a chain.

    Raises:
        ChainRuleViolated: one may not; the error names its block and the rule.
        NothingChanged: one would change nothing.
    """
    for event in events:
        block = MetadataBlock(
            system_time=system_time,
            prev_block_hash=None if state is None else state.head,
            sequence_number=0 if state is None else state.sequence_number + 1,
            event=event,
        )
        check_append(state, block)
        # No rule looks into a hash: that of the number serves as well as that of the bytes.
        state = fold(state, block, Multihash.sha3_256(str(block.sequence_number).encode()))


# --- The first block ---------------------------------------------------------------------------


def seed_first(state: None, block: MetadataBlock, event: Any) -> None:
    """The first block is a Seed and follows nothing."""
    if not isinstance(event, Seed):
        raise broken(block, "seed-first", f"the first block has to be a Seed, this one is {kind_of(event)}")
    if block.prev_block_hash is not None:
        raise broken(block, "seed-first", "a Seed follows no other block, this one says it does")


def first_sequence_number(state: None, block: MetadataBlock, event: Any) -> None:
    """Sequence numbers begin with 0."""
    if block.sequence_number != 0:
        raise broken(
            block, "sequence-number", f"the first block has number 0, this one {block.sequence_number}"
        )


def number_range(state: ChainState | None, block: MetadataBlock, event: Any) -> None:
    """Numbers are within the limits of what stores them."""
    if (problem := find_unstorable(state, block)) is not None:
        raise broken(block, "number-range", problem)


# --- Every other block -------------------------------------------------------------------------


def seed_once(state: ChainState, block: MetadataBlock, event: Any) -> None:
    """Only the first block is a Seed."""
    if isinstance(event, Seed):
        raise broken(block, "seed-once", "the dataset has its Seed already")


def prev_block(state: ChainState, block: MetadataBlock, event: Any) -> None:
    """A block names the block that it follows."""
    if block.prev_block_hash is None:
        raise broken(block, "prev-block", "a block that is not the first has to name the one before it")
    if block.prev_block_hash != state.head:
        raise broken(
            block, "prev-block", f"it follows block {block.prev_block_hash}, and the head is {state.head}"
        )


def sequence_number(state: ChainState, block: MetadataBlock, event: Any) -> None:
    """Sequence numbers grow by one."""
    if block.sequence_number != state.sequence_number + 1:
        raise broken(
            block,
            "sequence-number",
            f"number {state.sequence_number + 1} comes next, not {block.sequence_number}",
        )


def system_time(state: ChainState, block: MetadataBlock, event: Any) -> None:
    """System time never goes back."""
    if block.system_time < state.system_time:
        raise broken(
            block,
            "system-time",
            f"its system time {block.system_time} is before {state.system_time}, that of the block before",
            hint="check the clock of this computer",
        )


def event_fits_kind(state: ChainState, block: MetadataBlock, event: Any) -> None:
    """Root datasets have sources, derivative ones a transform."""
    misfits = _ROOT_ONLY if state.kind is DatasetKind.Derivative else _DERIVATIVE_ONLY
    if isinstance(event, misfits):
        raise broken(
            block, "event-fits-kind", f"{kind_of(event)} does not fit a {state.kind.value.lower()} dataset"
        )


# The order is that in which a person wants to hear of them: position first, then meaning.
_FIRST: Final[tuple[Rule, ...]] = (seed_first, first_sequence_number, number_range)
_ALWAYS: Final[tuple[Rule, ...]] = (
    seed_once,
    prev_block,
    sequence_number,
    system_time,
    event_fits_kind,
    number_range,
)
_DATA: Final[tuple[Rule, ...]] = (
    data.not_empty,
    data.watermark,
    data.prev_offset,
    data.offset_sequence,
    data.offset_interval,
    data.schema_before_data,
    data.prev_checkpoint,
)
_BY_EVENT: Final[dict[type, tuple[Rule, ...]]] = {
    AddData: (*_DATA, data.changes_something),
    ExecuteTransform: (
        *_DATA,
        data.transform_inputs,
        data.transform_intervals,
        data.changes_something,
    ),
    SetPollingSource: (
        setting.no_push_source,
        setting.one_read_schema,
        setting.ethereum_source,
        setting.preprocess_normalised,
    ),
    AddPushSource: (
        setting.no_polling_source,
        setting.push_source_new,
        setting.push_source_schema,
        setting.one_read_schema,
        setting.preprocess_normalised,
    ),
    DisablePollingSource: (setting.polling_source_there,),
    DisablePushSource: (setting.push_source_there,),
    SetTransform: (
        setting.transform_input_refs,
        setting.transform_inputs_once,
        setting.transform_normalised,
    ),
    SetVocab: (setting.vocabulary_fixed,),
    SetDataSchema: (setting.schema_given, setting.schema_new, setting.schema_evolution),
}
