"""Rules of the blocks that set something: sources, transforms, schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import astuple

from odf_engine.chain.evolution import breaking_change, read_schema, same_schema
from odf_engine.chain.snapshots import not_normalised
from odf_engine.chain.state import ChainState, holds_opaque, vocabulary_of
from odf_engine.chain.violations import broken, repeated, unchanged
from odf_engine.errors import InvalidIdentity, InvalidSchema
from odf_engine.identity.did import DatasetId
from odf_engine.metadata.model import (
    AddPushSource,
    Csv,
    DisablePollingSource,
    DisablePushSource,
    EthereumLogs,
    GeoJson,
    Json,
    MetadataBlock,
    NdGeoJson,
    NdJson,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SetVocab,
)

# The other formats carry the types of their columns in themselves.
_UNTYPED_FORMATS: Final = (Csv, Json, NdJson, GeoJson, NdGeoJson)


# --- Sources and transforms --------------------------------------------------------------------


def no_push_source(state: ChainState, block: MetadataBlock, event: SetPollingSource) -> None:
    """A dataset is polled or pushed to, not both."""
    names = [*state.push_sources, *(key for key in state.not_understood if key.startswith("AddPushSource "))]
    if names:
        raise broken(
            block,
            "polling-or-push",
            f"the dataset has the push source '{names[0].removeprefix('AddPushSource ')}'",
            hint="disable its push sources first",
        )


def no_polling_source(state: ChainState, block: MetadataBlock, event: AddPushSource) -> None:
    """A dataset is polled or pushed to, not both."""
    if state.polling_source is not None or "SetPollingSource" in state.not_understood:
        raise broken(
            block, "polling-or-push", "the dataset has a polling source", hint="disable that source first"
        )


def push_source_new(state: ChainState, block: MetadataBlock, event: AddPushSource) -> None:
    """A push source that is defined again differs from what it was."""
    if state.push_sources.get(event.source_name) == event:
        raise unchanged(block, "push-source-new", f"push source '{event.source_name}' is defined so already")


def push_source_schema(state: ChainState, block: MetadataBlock, event: AddPushSource) -> None:
    """A push source says what columns it takes, unless its format does."""
    read: Any = event.read
    if isinstance(read, _UNTYPED_FORMATS) and not read.schema and read.odf_schema is None:
        raise broken(
            block, "push-source-schema", f"push source '{event.source_name}' needs a schema in its read step"
        )


def one_read_schema(state: ChainState, block: MetadataBlock, event: SetPollingSource | AddPushSource) -> None:
    """A read step has its schema in one way of writing, not in two."""
    read: Any = event.read
    if getattr(read, "schema", None) is not None and getattr(read, "odf_schema", None) is not None:
        raise broken(block, "one-read-schema", "its read step has both a DDL schema and another one")


def ethereum_source(state: ChainState, block: MetadataBlock, event: SetPollingSource) -> None:
    """Ethereum logs come from a chain or a node that is named."""
    fetch = event.fetch
    if isinstance(fetch, EthereumLogs) and fetch.chain_id is None and fetch.node_url is None:
        raise broken(block, "ethereum-source", "an EthereumLogs source needs a chainId or a nodeUrl")


def preprocess_normalised(
    state: ChainState, block: MetadataBlock, event: SetPollingSource | AddPushSource
) -> None:
    """The preprocess query is in its normal form."""
    if event.preprocess is not None:
        _check_normalised(block, event.preprocess)


def transform_normalised(state: ChainState, block: MetadataBlock, event: SetTransform) -> None:
    """The query is in its normal form."""
    _check_normalised(block, event.transform)


def transform_input_refs(state: ChainState, block: MetadataBlock, event: SetTransform) -> None:
    """A transform has inputs, each with an id and an alias."""
    if not event.inputs:
        raise broken(block, "transform-input-refs", "a transform needs at least one input")
    for item in event.inputs:
        if not isinstance(_id_or_text(item.dataset_ref), DatasetId):
            raise broken(block, "transform-input-refs", f"input '{item.dataset_ref}' is no id of a dataset")
        if not item.alias:
            raise broken(block, "transform-input-refs", f"input {item.dataset_ref} has no alias")


def transform_inputs_once(state: ChainState, block: MetadataBlock, event: SetTransform) -> None:
    """No input and no alias is there twice."""
    for what, values in (
        ("input", [_id_or_text(item.dataset_ref) for item in event.inputs]),
        ("alias", [item.alias for item in event.inputs]),
    ):
        twice = repeated(values)
        if twice is not None:
            raise broken(block, "transform-inputs-once", f"{what} {twice} is there more than once")


def _id_or_text(ref: str) -> DatasetId | str:
    try:
        return DatasetId.parse(ref)
    except InvalidIdentity:
        return ref  # which is the finding of another rule


def polling_source_there(state: ChainState, block: MetadataBlock, event: DisablePollingSource) -> None:
    """Only what is there can be disabled."""
    if state.polling_source is None and "SetPollingSource" not in state.not_understood:
        raise broken(block, "source-there", "the dataset has no polling source to disable")


def push_source_there(state: ChainState, block: MetadataBlock, event: DisablePushSource) -> None:
    """Only what is there can be disabled."""
    name = event.source_name
    if name not in state.push_sources and f"AddPushSource {name}" not in state.not_understood:
        raise broken(block, "source-there", f"the dataset has no push source '{name}' to disable")


def _check_normalised(block: MetadataBlock, transform: Any) -> None:
    if holds_opaque(transform):
        return
    problem = not_normalised(transform)
    if problem is not None:
        raise broken(block, "query-normalised", problem)


# --- SetVocab ----------------------------------------------------------------------------------


def vocabulary_fixed(state: ChainState, block: MetadataBlock, event: SetVocab) -> None:
    """Records keep the names of their system columns, and a schema has them."""
    vocabulary = vocabulary_of(event)
    if vocabulary == state.vocabulary:
        return
    if state.slices:
        raise broken(
            block,
            "vocabulary-fixed",
            "the system columns cannot be called otherwise: the dataset has records that name them",
            hint="make a new dataset for other names",
        )
    columns = _readable(lambda: read_schema(state.schema or b"").names) if state.schema else None
    missing = [name for name in astuple(vocabulary) if columns is not None and name not in columns]
    if missing:
        raise broken(
            block,
            "vocabulary-fixed",
            f"the schema of the dataset has no column '{missing[0]}'",
            hint="make a new dataset for other names",
        )


# --- SetDataSchema -----------------------------------------------------------------------------


def schema_given(state: ChainState, block: MetadataBlock, event: SetDataSchema) -> None:
    """A SetDataSchema has a schema, and it can be read."""
    if event.schema is None:
        if event.odf_schema is None:
            raise broken(block, "schema-given", "SetDataSchema has no schema")
        return
    try:
        read_schema(event.schema)
    except InvalidSchema as error:
        raise broken(block, "schema-given", f"its schema cannot be read: {error.message}") from error


def schema_new(state: ChainState, block: MetadataBlock, event: SetDataSchema) -> None:
    """A schema that is set again differs from what it was."""
    same = event.schema == state.schema and event.odf_schema == state.odf_schema
    if not same and _both_arrow(state, event) and event.odf_schema == state.odf_schema:
        same = _readable(lambda: same_schema(state.schema or b"", event.schema or b""))
    if same and state.has_schema:
        raise unchanged(block, "schema-new", "the dataset has this schema already")


def schema_evolution(state: ChainState, block: MetadataBlock, event: SetDataSchema) -> None:
    """Readers of the old schema survive the new one."""
    if not _both_arrow(state, event):
        return
    breaking = _readable(lambda: breaking_change(state.schema or b"", event.schema or b""))
    if breaking:
        raise broken(
            block,
            "schema-evolution",
            f"the schema changes so that its readers break: {breaking.problem}",
            hint=breaking.advice,
        )


def _both_arrow(state: ChainState, event: SetDataSchema) -> bool:
    return state.schema is not None and event.schema is not None


def _readable(compare: Callable[[], Any]) -> Any:
    # An unreadable schema in the chain is its own finding, and compares with nothing.
    try:
        return compare()
    except InvalidSchema:
        return None
