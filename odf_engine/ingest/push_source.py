"""Which push source takes what is pushed (specification: AddPushSource, DisablePushSource)."""

from __future__ import annotations

from odf_engine.errors import Unsupported, UsageError
from odf_engine.metadata.model import AddPushSource, DatasetKind
from odf_engine.workspace.workspace import DatasetEntry


def push_source(entry: DatasetEntry, name: str | None) -> AddPushSource:
    """The active push source of this name, or the only one.

    Raises:
        Unsupported: the dataset is not pushed to, or the source is of a newer specification.
        UsageError: there are several, or none of that name.
    """
    state = entry.dataset.state()
    if state.kind is not DatasetKind.Root:
        raise Unsupported(
            f"{entry.alias} is a derivative dataset, and only root datasets can be pushed to",
            hint="push into the datasets that it reads",
        )
    if state.polling_source is not None or "SetPollingSource" in state.not_understood:
        raise Unsupported(
            f"{entry.alias} polls its source, so that nothing can be pushed into it",
            hint=f"pull it: odf pull {entry.alias}",
        )
    sources = state.push_sources
    for key, block in state.not_understood.items():
        if key.startswith("AddPushSource ") and name in (None, key.removeprefix("AddPushSource ")):
            raise Unsupported(
                "the push source is of a kind that only a newer version understands", where=f"block {block}"
            )
    listed = ", ".join(f"'{each}'" for each in sorted(sources))
    if name is None:
        if len(sources) == 1:
            return next(iter(sources.values()))
        if sources:
            raise UsageError(
                f"{entry.alias} has {len(sources)} push sources: {listed}", hint="say which with --source"
            )
        raise Unsupported(
            f"{entry.alias} has no push source{_disabled(entry, None)}",
            hint="add an AddPushSource to its manifest: odf add --update MANIFEST",
        )
    if name not in sources:
        problem = f"{entry.alias} has no push source '{name}'{_disabled(entry, name)}"
        raise UsageError(problem, hint=f"it has {listed}" if sources else "it has none at all")
    return sources[name]


def _disabled(entry: DatasetEntry, name: str | None) -> str:
    """Says whether the source, or any, was there once."""
    dataset = entry.dataset
    for row in dataset.page(dataset.state().blocks, kinds={"DisablePushSource"}):
        gone = getattr(dataset.block(row.hash).block.event, "source_name", None)
        if name is None or gone == name:
            return f": '{gone}' was disabled by block {row.sequence_number}"
    return ""
