"""What the results of a derivative dataset wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from odf_engine.errors import OdfError
from odf_engine.files import translate_os_errors
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import count_of
from odf_engine.storage.atomic_files import read_small_file, replace_file

_FILE: Final = "info/waiting"
_MIDNIGHT: Final = "T00:00:00Z"


class AwaitedInput(msgspec.Struct, frozen=True):
    """An input that delays results.

    Attributes:
        name: name of the input.
        watermark: its watermark, RFC 3339; None if it has none.
        reason: why the query cannot read it yet: ``no-rows`` if it has neither rows nor a watermark,
            ``no-columns`` if it has a watermark, but its columns are unknown. Empty if the query can read it.
    """

    name: str
    watermark: str | None = None
    reason: str = ""

    @property
    def text(self) -> str:
        """The input and what is known about it."""
        if self.reason == "no-rows":
            return f"the first rows of {self.name}"
        if self.reason == "no-columns":
            return f"the columns of {self.name}, which has no rows and declares no columns"
        if self.watermark is None:
            return f"{self.name}, which has no watermark"
        return f"{self.name}, complete up to {self.watermark.removesuffix(_MIDNIGHT)}"


class Waiting(msgspec.Struct, frozen=True):
    """What a derivative dataset waits for.

    Attributes:
        inputs: the inputs that it waits for.
        rows: number of rows that wait; None if it is unknown.
    """

    inputs: list[AwaitedInput]
    rows: int | None = None

    @property
    def text(self) -> str:
        """The rows and the inputs, such as ``90 rows wait for population, complete up to 2023-12-31``."""
        inputs = "; ".join(each.text for each in self.inputs)
        if self.rows is not None:
            return f"{count_of(self.rows, 'row')} {'waits' if self.rows == 1 else 'wait'} for {inputs}"
        return f"waits for {inputs}" if self.inputs[0].reason else f"results wait for {inputs}"


class _Stored(msgspec.Struct):
    checkpoint: str
    waiting: Waiting


def find_slow_inputs(watermarks: dict[str, Timestamp | None]) -> list[AwaitedInput]:
    """Return the inputs with the smallest watermark, or without one; all of them if all are equal."""
    known = [each for each in watermarks.values() if each is not None]
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
        checkpoint: the state of the query, which has the rows that wait; None for a stateless query.
        waiting: what it waits for; None for nothing.

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
    """Return what a dataset waits for with a state of its query; None for nothing, or if it is unknown."""
    if checkpoint is None:
        return None
    try:
        found = msgspec.json.decode(read_small_file(folder / _FILE), type=_Stored)
    except (OSError, OdfError, msgspec.MsgspecError):
        return None
    return found.waiting if found.checkpoint == str(checkpoint) else None
