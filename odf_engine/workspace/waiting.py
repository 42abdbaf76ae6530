"""Stores what the results of a derivative dataset wait for, and finds the inputs that delay them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from odf_engine.base.atomic_files import read_small_file, replace_file
from odf_engine.base.files import translate_os_errors
from odf_engine.data.waiting import AwaitedInput, Waiting
from odf_engine.errors import OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.timestamp import Timestamp

_FILE: Final = "info/waiting"


class _Stored(msgspec.Struct):
    checkpoint: str
    waiting: Waiting


def find_slow_inputs(watermarks: dict[str, Timestamp | None]) -> list[AwaitedInput]:
    """Return the inputs with the smallest watermark, or without one; all of them if all are equal."""
    known = [time for time in watermarks.values() if time is not None]
    smallest = min(known) if len(known) == len(watermarks) else None
    return [
        AwaitedInput(name, None if watermark is None else str(watermark))
        for name, watermark in watermarks.items()
        if watermark == smallest
    ]


def store_waiting(folder: Path, checkpoint: Multihash | None, waiting: Waiting | None) -> None:
    """Store what a dataset waits for. It is local: other copies do not have it.

    Args:
        folder: folder of the dataset.
        checkpoint: the state of the query, which has the rows that wait, or None for a stateless query.
        waiting: what it waits for, or None.

    Raises:
        OdfError: the file cannot be written.
    """
    path = folder / _FILE
    with translate_os_errors(path, "what the dataset waits for is not stored"):
        if waiting is None or checkpoint is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(_Stored(str(checkpoint), waiting)))


def read_waiting(folder: Path, checkpoint: Multihash | None) -> Waiting | None:
    """Return what a dataset waits for with a state of its query, or None if it is unknown or nothing."""
    if checkpoint is None:
        return None
    try:
        stored = msgspec.json.decode(read_small_file(folder / _FILE), type=_Stored)
    except (OSError, OdfError, msgspec.MsgspecError):
        return None
    return stored.waiting if stored.checkpoint == str(checkpoint) else None
