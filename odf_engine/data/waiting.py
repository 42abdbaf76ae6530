"""What the results of a derivative dataset wait for."""

from __future__ import annotations

from typing import Final

import msgspec

from odf_engine.base.progress import count_of

_MIDNIGHT: Final = "T00:00:00Z"


class AwaitedInput(msgspec.Struct, frozen=True):
    """An input that delays results.

    Attributes:
        name: name of the input.
        watermark: its watermark, RFC 3339, or None if it has none.
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
        rows: number of rows that wait, or None if it is unknown.
    """

    inputs: list[AwaitedInput]
    rows: int | None = None

    @property
    def text(self) -> str:
        """The rows and the inputs, such as ``90 rows wait for population, complete up to 2023-12-31``."""
        inputs = "; ".join(waiting_input.text for waiting_input in self.inputs)
        if self.rows is not None:
            return f"{count_of(self.rows, 'row')} {'waits' if self.rows == 1 else 'wait'} for {inputs}"
        return f"waits for {inputs}" if self.inputs[0].reason else f"results wait for {inputs}"
