"""What the coordinator asks of an engine, and what it gets (specification: Engine)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from odf_engine.data.slices import WrittenSlice
from odf_engine.metadata.model import Checkpoint, TransformRequest
from odf_engine.progress import Reporter


@dataclass(frozen=True)
class Result:
    """What a transaction gave.

    Attributes:
        written: the slice with the new rows; None when there are none.
        schema: of that slice.
        checkpoint: the state after it, at the path that the request says; None when the query keeps
            none, or what it keeps has not changed.
    """

    written: WrittenSlice | None
    schema: pa.Schema
    checkpoint: Checkpoint | None = None


class Engine(Protocol):
    """Runs queries of derivative datasets."""

    def execute(self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter) -> Result:
        """Runs one transaction.

        Args:
            request: the query, its inputs and where to write.
            declared: the schema of the dataset, which the result has to have; None before the first.
            reporter: hears of amounts, and is asked whether to stop.

        Raises:
            InvalidQuery: the query is wrong, or its result breaks the output contract.
            BadData: a value that cannot be computed or stored.
            Unsupported: the query needs what this engine cannot do.
            Cancelled: nothing is left.
        """
        ...
