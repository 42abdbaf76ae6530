"""Replays transactions and compares their logical hashes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.chain.state import ChainState
from odf_engine.data.slices import WrittenSlice, read_batches
from odf_engine.errors import Cancelled, NotFound, OdfError, SourceUnavailable, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import Checkpoint, DataSlice, ExecuteTransform, SetTransform
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.transform.engines.checkpoint import ENGINE, read_checkpoint_metadata
from odf_engine.transform.engines.contract import Engine, TransactionResult
from odf_engine.transform.engines.engine_router import EngineMissing
from odf_engine.transform.plan import Diverged, Transaction, transaction_of_block
from odf_engine.transform.run import CHECKPOINT, execute_transaction, make_request, to_event
from odf_engine.verify.report import EngineUse
from odf_engine.verify.slice_check import Problem, check_object
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

_SPARK: Final = "spark"
_CARRIED: Final = "carried"


class NotReplayable(Exception):
    """A transaction cannot be run again, and that says nothing against it: ``kind`` and ``message``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


class Replay:
    """Runs transactions of one dataset again, oldest first; those that stand alone may run beside others.

    Args:
        workspace: where the inputs are.
        entry: the dataset.
        engine: what runs the query.
        reporter: hears of amounts, and is asked whether to stop.

    Attributes:
        doubts: what could not be confirmed, and is not wrong for that: kinds and messages.
    """

    def __init__(self, workspace: Workspace, entry: DatasetEntry, engine: Engine, reporter: Reporter) -> None:
        self._workspace = workspace
        self._entry = entry
        self._engine = engine
        self._reporter = reporter
        self.doubts: list[Problem] = []
        self._folder: Path | None = None
        self._carried: Multihash | None = None  # the stored checkpoint in whose place the one made again is
        self._uses: dict[tuple[str, str | None], EngineUse] = {}
        self._lock = Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around all calls of :meth:`problems`: holds the files that they hand to each other."""
        with job_scratch_folder(self._workspace.odf / "cache", "replay") as self._folder:
            try:
                yield
            finally:
                self._folder = self._carried = None

    @property
    def engines(self) -> list[EngineUse]:
        """Which engines ran what until now."""
        return list(self._uses.values())

    @staticmethod
    def is_stateless(state: ChainState, event: ExecuteTransform) -> bool:
        """Whether a transaction goes on from no state and leaves none; ``state`` is that of the chain."""
        return state.last_checkpoint is None and event.new_checkpoint is None

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
            NotReplayed: an input, the engine or a newer version would be needed.
        """
        if state.transform and len(read := state.transform.inputs) != len(event.query_inputs):
            yield (
                "input-interval",
                f"its block names {len(event.query_inputs)} inputs, and the query has {len(read)}",
            )
            return
        try:
            transaction = transaction_of_block(self._workspace, self._entry, state, event, system_time)
        except NotFound as error:
            raise NotReplayable("input-missing", str(error)) from error
        except Unsupported as error:
            raise NotReplayable("engine-missing", str(error)) from error
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
        with self._job_folder() as folder:
            yield from self._compared(transaction, event, system_time, folder)

    def _compared(
        self, transaction: Transaction, event: ExecuteTransform, system_time: Timestamp, folder: Path
    ) -> Iterator[Problem]:
        staged = folder / "data"
        try:
            result = self._run(transaction, system_time, folder, staged)
        except Cancelled:
            raise
        except OdfError as error:
            self._reporter.raise_if_cancelled()  # what was stopped may fail in any way
            if _lacks_engine(error, transaction.transform):
                raise NotReplayable("engine-missing", str(error)) from error
            yield self._damage(transaction) or ("transform-failed", f"it cannot be run again: {error}")
            return
        self._note(transaction.transform, result)
        yield from self._checkpoint(transaction, event, result, folder)
        written, data = result.written, event.new_data
        if written is None and data is None:
            return
        if written is None or data is None:
            recorded, made = (0 if each is None else _rows(each) for each in (data, written))
            difference = f"its block has {recorded:,} records; run again there are {made:,}"
        elif written.logical_hash != data.logical_hash:
            path = self._entry.dataset.slice_path(data.physical_hash)
            difference = _difference(path, data, staged, written, self._reporter)
        else:
            return
        version = transaction.transform.transform.version
        if _is_spark(transaction.transform) and version != ENGINE:
            difference += f" (the engine was {version or 'of no version'}, and is {ENGINE} now)"
        yield self._damage(transaction) or ("transform-data", difference)

    def _run(
        self, transaction: Transaction, system_time: Timestamp, folder: Path, staged: Path
    ) -> TransactionResult:
        request = make_request(transaction, folder, staged, system_time)
        last = transaction.state.last_checkpoint
        if last is not None and last.physical_hash == self._carried:
            request = replace(request, prev_checkpoint_path=str(self._carried_path))
        return execute_transaction(self._engine, transaction, request, self._reporter)

    def _read(self, _: int) -> None:
        self._reporter.raise_if_cancelled()

    def _damage(self, transaction: Transaction) -> Problem | None:
        """An input's slice that is not what its own chain says, and so to blame for what came out."""
        for each in transaction.inputs:
            for row in each.slices:
                path = each.entry.dataset.slice_path(row)
                found = check_object(path, "slice", row.physical_hash, row.size, self._read)
                for _, message in found:
                    return ("input-damaged", f"input '{each.alias}' has to be verified first: {message}")
        return None

    def _checkpoint(
        self, transaction: Transaction, event: ExecuteTransform, result: TransactionResult, folder: Path
    ) -> Iterator[Problem]:
        """Whether there is a checkpoint where there should be, of the right state; keeps what was made."""
        recorded, made = event.new_checkpoint, result.checkpoint
        if (recorded is None) != (to_event(transaction, result).new_checkpoint is None):
            has, there = ("has none", "is one") if recorded is None else ("has one", "is none")
            yield ("transform-checkpoint", f"its block {has}: run again there {there}")
        if made is None or recorded is None:
            return
        (folder / CHECKPOINT).replace(self._carried_path)
        self._carried = recorded.physical_hash
        if recorded.physical_hash != made.physical_hash and _is_spark(transaction.transform):
            yield from self._other_checkpoint(recorded)

    def _other_checkpoint(self, recorded: Checkpoint) -> Iterator[Problem]:
        """Equal state has equal bytes mostly, and never another account of itself."""
        try:
            stored = read_checkpoint_metadata(self._entry.dataset.checkpoint_path(recorded.physical_hash))
        except OdfError:
            return  # which is a finding about the file
        if stored != read_checkpoint_metadata(self._carried_path):
            yield ("transform-checkpoint", "its checkpoint holds another state than the one made again")
        else:
            self.doubts.append(
                (
                    "checkpoint-other",
                    "its checkpoint has other bytes than the one made again; the rows after it were made "
                    "from the latter",
                )
            )

    def _note(self, transform: SetTransform, result: TransactionResult) -> None:
        sql = transform.transform
        present = ENGINE if _is_spark(transform) else None
        rows = 0 if result.written is None else result.written.rows
        with self._lock:
            use = self._uses.get((sql.engine, sql.version))
            if use is None:
                use = EngineUse(sql.engine, sql.version, present, 0, 0)
                if None not in (sql.version, present) and sql.version != present:
                    said = f"made by {sql.engine} {sql.version}, run again by {present}"
                    self._reporter.log(said, "warning")
            more = replace(use, transactions=use.transactions + 1, records=use.records + rows)
            self._uses[sql.engine, sql.version] = more

    @property
    def _carried_path(self) -> Path:
        assert self._folder is not None  # within `running`
        return self._folder / _CARRIED

    @contextmanager
    def _job_folder(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _lacks_engine(error: OdfError, transform: SetTransform) -> bool:
    """Whether a transaction failed for want of the engine that ran it, which says nothing against it."""
    if isinstance(error, EngineMissing | SourceUnavailable):
        return True
    same = _is_spark(transform) and transform.transform.version == ENGINE
    return isinstance(error, Unsupported) and not same


def _is_spark(transform: SetTransform) -> bool:
    return transform.transform.engine.lower() == _SPARK


def _rows(data: DataSlice | WrittenSlice) -> int:
    return data.offset_interval.end - data.offset_interval.start + 1


def _difference(path: Path, data: DataSlice, staged: Path, written: WrittenSlice, reporter: Reporter) -> str:
    """The first row that is another one when the transaction is run again."""
    try:
        found = first_difference(_heeding(read_batches(path), reporter), read_batches(staged))
    except Cancelled:
        raise
    except OdfError as error:
        return f"run again it gives other data; its own cannot be compared: {error}"
    counts = f"{_rows(data):,} records, run again {_rows(written):,}"
    if found is None:
        return f"run again it gives another logical hash ({counts}), with the same values in other types"
    row, stored, made = found
    return f"record {data.offset_interval.start + row} is {_shown(stored)}; run again it is {_shown(made)}"


def _heeding(batches: Iterator[pa.RecordBatch], reporter: Reporter) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        reporter.raise_if_cancelled()
        yield batch


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
