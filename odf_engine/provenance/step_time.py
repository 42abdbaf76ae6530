"""When rows came in: the batches that a state was made by, and the watermark that each of them met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from odf_engine.errors import Unsupported
from odf_engine.metadata.model import TransformRequest
from odf_engine.spark.casts import identifier
from odf_engine.spark.lineage import BATCH, MARK, PLACES
from odf_engine.transform.as_of_query import input_frame
from odf_engine.transform.batches import (
    END_OF_TIME,
    Batch,
    Marks,
    batches,
    batches_by_watermark,
    read_slices,
)
from odf_engine.transform.contract import QueryInput
from odf_engine.transform.plan import Transaction

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

_MOST_SLICES: Final = 3000


@dataclass(frozen=True)
class Part:
    """Some of the history: a transaction as it was planned, and as it is asked for."""

    transaction: Transaction
    request: TransformRequest


@dataclass(frozen=True)
class Cutting:
    """How a query has its input cut into batches: as :mod:`odf_engine.transform.batches` says.

    Attributes:
        by_commit: rows come out as what they are made of comes in.
        update: groups without a window.
        as_of: it has as-of joins.
    """

    by_commit: bool
    update: bool
    as_of: bool

    def batches(self, part: Part, marks: Marks) -> list[Batch]:
        """The batches of a transaction that goes on from these watermarks."""
        inputs = part.request.query_inputs
        slices = read_slices(inputs)
        if self.as_of:
            each = self.update or self.by_commit
            return list(batches_by_watermark(slices, inputs, marks, each=each))
        if self.by_commit:
            return list(batches_by_watermark(slices, inputs, marks, each=True))
        return list(batches(slices, inputs, marks, each=self.update))


class Timeline:
    """All batches until the end of a transaction, numbered from the beginning of its state.

    Args:
        past: what lies before it; None when its state begins with it.
        own: the transaction itself.
        cutting: how its query is run.
        exact: whether rows whose time is exactly the watermark may still come.

    Attributes:
        first, last: numbers of the batches of the transaction itself.
        changing: the names of inputs that brought retractions or corrections.
        late: the names of inputs that brought rows from before the watermark of then.

    Raises:
        Unsupported: there are too many slices.
    """

    def __init__(self, past: Part | None, own: Part, cutting: Cutting, *, exact: bool) -> None:
        parts = [own] if past is None else [past, own]
        count = sum(len(each.data_paths) for part in parts for each in part.request.query_inputs)
        if count > _MOST_SLICES:
            raise Unsupported(f"the state was made of {count:,} slices, more than are followed at once")
        self._parts = parts
        self._request = own.request
        self._exact = exact
        marks, self._batches = Marks({}), list[Batch]()
        for part in parts:
            self.first = len(self._batches)
            if part is own and part.transaction.kind == "finish":
                self._batches.append(Batch([], END_OF_TIME))
            else:
                self._batches += cutting.batches(part, marks)
            marks = marks.after(part.request.query_inputs, None)
        self.last = len(self._batches) - 1
        aliases = [each.query_alias for each in own.request.query_inputs]
        slices = [each for batch in self._batches for each in batch.slices]
        self.changing = {aliases[each.at] for each in slices if each.changes}
        before = [0, *map(self._mark, self._batches)]
        self.late = {
            aliases[each.at]
            for number, batch in enumerate(self._batches)
            for each in batch.slices
            if each.earliest is not None and each.earliest <= before[number]
        }

    def after(self, *, exact: bool | None = None) -> list[tuple[int, int]]:
        """The watermarks that batches left, in milliseconds, and the number of each first one to do so.

        Args:
            exact: whether rows of the very time of the watermark may still come; as the query says, where
                nothing else is said.
        """
        less = self._exact if exact is None else exact
        found: list[tuple[int, int]] = []
        for number, batch in enumerate(self._batches):
            mark = max(0, (batch.watermark or 0) - less)
            if batch.watermark is not None and (not found or mark > found[-1][0]):
                found.append((mark, number))
        return found

    def before(self) -> str:
        """The watermark before each batch in milliseconds, as SQL over ``odf_batch``."""
        marks = [0, *map(self._mark, self._batches)]
        return _stepped(BATCH, list(enumerate(marks[:-1])))

    def frames(self, session: SparkSession) -> dict[str, DataFrame]:
        """The rows of each input as the query sees them."""
        hidden = (PLACES, BATCH, MARK)
        return {name: frame.drop(*hidden) for name, frame in self.tables(session).items()}

    def tables(self, session: SparkSession) -> dict[str, DataFrame]:
        """The rows of each input, with what :class:`odf_engine.spark.lineage.Lineage` wants of them."""
        return {
            each.query_alias: self._table(session, at) for at, each in enumerate(self._request.query_inputs)
        }

    def _table(self, session: SparkSession, at: int) -> DataFrame:
        input = self._request.query_inputs[at]
        ends = {
            str(plan.entry.dataset.slice_path(row)): row.end
            for part in self._parts
            for plan in [part.transaction.inputs[at]]
            for row in plan.slices
        }
        batch_of: dict[int, int] = {}
        paths: list[Path] = []
        for number, batch in enumerate(self._batches):
            for each in batch.slices:
                if each.at == at:
                    paths.append(each.path)
                    batch_of[ends[str(each.path)]] = number
        numbers = sorted(batch_of.items())
        marks = [
            (end, 0 if number == 0 else self._mark(self._batches[number - 1])) for end, number in numbers
        ]
        schema = pq.read_schema(input.schema_file)
        frame = input_frame(session, paths, QueryInput(input.query_alias, schema, input.vocab))
        offset = identifier(input.vocab.offset_column)
        return frame.selectExpr(
            "*",
            f"array(struct({at} AS at, {offset} AS offset)) AS {PLACES}",
            f"{_stepped(offset, numbers)} AS {BATCH}",
            f"timestamp_millis(CAST({_stepped(offset, marks)} AS BIGINT)) AS {MARK}",
        )

    def _mark(self, batch: Batch) -> int:
        return max(0, (batch.watermark or 0) - self._exact)


def _stepped(column: str, steps: Sequence[tuple[int, int]]) -> str:
    """A number for each value of a column: that of the first step that reaches it, looked for by halves."""
    joined: list[tuple[int, int]] = []
    for end, value in steps:
        if joined and joined[-1][1] == value:
            joined.pop()
        joined.append((end, value))
    return _halved(column, joined) if joined else "CAST(NULL AS INT)"


def _halved(column: str, steps: Sequence[tuple[int, int]]) -> str:
    if len(steps) == 1:
        return str(steps[0][1])
    middle = len(steps) // 2
    left, right = _halved(column, steps[:middle]), _halved(column, steps[middle:])
    return f"IF({column} <= {steps[middle - 1][0]}, {left}, {right})"
