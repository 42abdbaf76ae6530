"""Beginning a derivative dataset anew, after an input was reset or replaced.

Its rows were made from a history that is not there any more. The new chain has the same first block, and
so the same identity, then the newest settings; its rows are made by the next transformation. The old head
stays as a reference, so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict

from odf_engine.chain.state import ChainState
from odf_engine.errors import Unsupported, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    DatasetKind,
    MetadataEvent,
    SetAttachments,
    SetDataSchema,
    SetVocab,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.versions import unversioned, versioned
from odf_engine.workspace.workspace import DatasetEntry, Workspace


def reset(workspace: Workspace, entry: DatasetEntry) -> Multihash:
    """Gives a derivative dataset a new chain with its newest settings and without data.

    Returns:
        The new head.

    Raises:
        UsageError: a root dataset, whose rows could not be made again.
        NotFound: an input is not here, so that the rows could not be made again.
        Unsupported: a setting of a newer specification, which cannot be taken over.
        Conflict: somebody else committed to the dataset meanwhile.
    """
    state = entry.dataset.state()
    if state.kind is not DatasetKind.Derivative:
        raise UsageError(f"{entry.alias} is a root dataset: only derivative ones can be made anew")
    if state.not_understood:
        setting, number = next(iter(state.not_understood.items()))
        raise Unsupported(
            f"{entry.alias} cannot be made anew: its {setting} is of a newer specification",
            where=f"block {number}",
            hint="a newer version can do it",
        )
    for source in state.inputs():
        workspace.resolve(str(source))
    return entry.dataset.begin_anew(
        list(settings_of(state)),
        system_time=max(Timestamp.now(), state.system_time),
        expected_head=state.head,
        block_version=workspace.config.block_version,
    )


def settings_of(state: ChainState) -> Iterator[MetadataEvent]:
    """The settings that a chain amounts to, as the events that make them."""
    if state.vocabulary != DEFAULT_VOCABULARY:
        yield SetVocab(**asdict(state.vocabulary))
    if state.schema is not None or state.odf_schema is not None:
        yield SetDataSchema(schema=state.schema, odf_schema=state.odf_schema)
    if state.transform is not None:
        yield versioned(unversioned(state.transform))  # it runs again, and on the engine of now
    for event in (state.info, state.license):
        if event is not None:
            yield event
    if state.attachments is not None:
        yield SetAttachments(state.attachments)
