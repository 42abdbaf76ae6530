"""Appending what definitions change to the chains of datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odf_engine.errors import NotSynced, OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import SetTransform
from odf_engine.workspace.folders import ORIGIN_FILE
from odf_engine.workspace.small_files import write_text
from odf_engine.workspace.summary import DatasetEntry

if TYPE_CHECKING:
    from odf_engine.workspace.updating import Update


def note_origin(entry: DatasetEntry, origin: str) -> None:
    """Notes where the definition of a dataset came from, when somebody else wrote it: such a dataset is
    not one's own any more (see :mod:`odf_engine.workspace.trust`).

    Raises:
        OdfError: it cannot be noted, or not durably: the definition must not be committed without it.
    """
    try:
        write_text(entry.dataset.folder / ORIGIN_FILE, origin)
    except NotSynced as error:
        raise error.as_failure() from error


def check_no_state(update: Update) -> None:
    """Lets pass what can be appended without an engine.

    Raises:
        UsageError: the query changes, and there is a state that the new one may not be able to go on from.
    """
    if update.entry is None or not any(isinstance(event, SetTransform) for event in update.events):
        return
    if update.entry.dataset.state().last_checkpoint is not None:
        raise UsageError(
            f"the query of {update.alias} has a state, which has to be seen to where another one takes over",
            hint="odf add --update does; it says what there is to choose",
        )


def append(
    entry: DatasetEntry,
    update: Update,
    origin: str | None = None,
    *,
    block_version: int,
    data: Path | None = None,
    checkpoint: Path | None = None,
) -> Multihash:
    """Appends what an update says in one commit; returns the new head.

    Args:
        entry: the dataset.
        update: its events, and the head that they follow.
        origin: where the definition came from, when somebody else wrote it.
        block_version: of the new blocks.
        data, checkpoint: staged files of a transaction among the events.

    Raises:
        Conflict: somebody else committed meanwhile; nothing is changed.
        OdfError: the events may not follow.
    """
    if origin is not None:  # before the blocks: nothing foreign may run in between
        note_origin(entry, origin)
    try:
        return entry.dataset.commit(
            update.events,
            system_time=update.system_time,
            expected_head=update.head,
            data=data,
            checkpoint=checkpoint,
            block_version=block_version,
        )
    except OdfError as error:
        error.where = f"dataset {entry.alias}" + (f", {error.where}" if error.where else "")
        raise
