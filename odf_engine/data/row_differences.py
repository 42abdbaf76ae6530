"""Result of the comparison of a dataset with its query over the latest state of its inputs."""

from __future__ import annotations

from typing import Literal

import msgspec

from odf_engine.base.progress import count_of


class RowDifference(msgspec.Struct, frozen=True):
    """A row that only the dataset or only the recomputed result has.

    Attributes:
        kind: ``missing`` in the dataset, or ``extra`` in it.
        values: the values as text by column, or None for null.
        offset: the offset of an extra row.
    """

    kind: Literal["missing", "extra"]
    values: dict[str, str | None]
    offset: int | None = None


class Recomputed(msgspec.Struct, frozen=True):
    """Comparison of the latest state of a derivative dataset with the recomputed result.

    Attributes:
        block: hash of the head.
        rows: number of rows of the latest state.
        missing, extra: number of rows that only the recomputed result or only the dataset has.
        differences: the first 100 of these rows.
        rounded: number of rows that differ only in the last digits of floating point numbers.
        complete_until: the latest event time of the search for missing rows, or None for all times.
        late: number of late rows that the transactions dropped, which can explain differences.
    """

    block: str
    rows: int
    missing: int
    extra: int
    differences: list[RowDifference] = []
    rounded: int = 0
    complete_until: str | None = None
    late: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether no row differs."""
        return self.missing == self.extra == 0

    @property
    def text(self) -> str:
        """The numbers of rows that differ."""
        differing = [
            f"{count_of(count, 'row')} {'is' if count == 1 else 'are'} {kind}"
            for count, kind in ((self.missing, "missing"), (self.extra, "extra"))
            if count
        ]
        return f"compared with the query over the latest state of the inputs, {' and '.join(differing)}"
