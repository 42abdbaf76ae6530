"""Whether a derivative dataset's rows are what its query makes of its inputs: every transaction is run
again as its block says, and compared by logical hash (specification: Derivative Data Verification)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from odf_engine.chain.state import ChainState
from odf_engine.data.slices import WrittenSlice, read_batches
from odf_engine.errors import Cancelled, NotFound, OdfError
from odf_engine.ingest.shape import declared_schema
from odf_engine.metadata.model import DataSlice, ExecuteTransform
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.transform.contract import Engine
from odf_engine.transform.plan import Diverged, Transaction, recorded_transaction
from odf_engine.transform.run import make_request
from odf_engine.verify.content import Problem
from odf_engine.workspace.workspace import DatasetEntry, Workspace


class Replay:
    """Runs transactions of one dataset again.

    Args:
        workspace: where the inputs are.
        entry: the dataset.
        engine: what runs the query.
        reporter: hears of amounts, and is asked whether to stop.
    """

    def __init__(self, workspace: Workspace, entry: DatasetEntry, engine: Engine, reporter: Reporter) -> None:
        self._workspace = workspace
        self._entry = entry
        self._engine = engine
        self._reporter = reporter

    def problems(
        self, state: ChainState, event: ExecuteTransform, system_time: Timestamp
    ) -> Iterator[Problem]:
        """What is wrong with a transaction.

        Args:
            state: of the chain before its block.
            event: what the block says.
            system_time: of the block.

        Raises:
            Cancelled: somebody asked to stop.
        """
        try:
            transaction = recorded_transaction(self._workspace, self._entry, state, event)
        except NotFound as error:
            yield ("input-missing", f"it cannot be run again: {error}")
            return
        except Diverged as error:
            yield ("input-diverged", str(error))
            return
        except OdfError as error:
            yield ("input-interval", str(error))
            return
        if event.new_watermark != transaction.watermark:
            yield (
                "transform-watermark",
                f"its watermark is {event.new_watermark or 'none'}, and that of its inputs "
                f"{transaction.watermark or 'none'}",
            )
        with self._folder() as folder:
            yield from self._compared(transaction, event, system_time, folder)

    def _compared(
        self, transaction: Transaction, event: ExecuteTransform, system_time: Timestamp, folder: Path
    ) -> Iterator[Problem]:
        staged = folder / "data"
        try:
            request = make_request(transaction, folder, staged, system_time)
            result = self._engine.execute(request, declared_schema(transaction.state), self._reporter)
        except Cancelled:
            raise
        except OdfError as error:
            yield ("transform-failed", f"it cannot be run again: {error}")
            return
        written, data = result.written, event.new_data
        if written is None and data is None:
            return
        if written is None or data is None:
            recorded, made = (0 if each is None else _rows(each) for each in (data, written))
            yield ("transform-data", f"its block has {recorded:,} records; run again there are {made:,}")
        elif written.logical_hash != data.logical_hash:
            path = self._entry.dataset.slice_path(data.physical_hash)
            yield ("transform-data", _difference(path, data, staged, written))

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        cache = self._workspace.odf / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="replay-", dir=cache))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _rows(data: DataSlice | WrittenSlice) -> int:
    return data.offset_interval.end - data.offset_interval.start + 1


def _difference(path: Path, data: DataSlice, staged: Path, written: WrittenSlice) -> str:
    """The first row that is another one when the transaction is run again."""
    try:
        found = first_difference(read_batches(path), read_batches(staged))
    except OdfError as error:
        return f"run again it gives other data; its own cannot be compared: {error}"
    counts = f"{_rows(data):,} records, run again {_rows(written):,}"
    if found is None:
        return f"run again it gives another logical hash ({counts}), with the same values in other types"
    row, stored, made = found
    return f"record {data.offset_interval.start + row} is {_shown(stored)}; run again it is {_shown(made)}"


def _shown(row: dict[str, object] | None) -> str:
    if row is None:
        return "not there"
    text = ", ".join(f"{name}={value}" for name, value in row.items() if name != "offset")
    return text if len(text) <= 300 else text[:299] + "…"


Difference = tuple[int, dict[str, object] | None, dict[str, object] | None]


def first_difference(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> Difference | None:
    """The first row in which two streams differ: its number and both rows, None where one has ended."""
    row = 0
    ours, theirs = next(left, None), next(right, None)
    while ours is not None and theirs is not None:
        count = min(ours.num_rows, theirs.num_rows)
        if not ours.slice(0, count).equals(theirs.slice(0, count)):
            for at in range(count):
                one, other = ours.slice(at, 1).to_pylist()[0], theirs.slice(at, 1).to_pylist()[0]
                if not _same(one, other):
                    return row + at, one, other
        row += count
        ours = ours.slice(count) if ours.num_rows > count else next(left, None)
        theirs = theirs.slice(count) if theirs.num_rows > count else next(right, None)
    if ours is None and theirs is None:
        return None
    return row, ours and ours.slice(0, 1).to_pylist()[0], theirs and theirs.slice(0, 1).to_pylist()[0]


def _same(one: dict[str, object], other: dict[str, object]) -> bool:
    return one == other or repr(one) == repr(other)  # not a number equals itself
