"""Replay of transactions, and comparison of their logical hashes and checkpoints."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import SPARK, engine_version, is_earlier_revision
from odf_engine.chain.state import ChainState
from odf_engine.data.arrow_compute import describe_row
from odf_engine.data.parquet.slices import WrittenSlice, read_batches
from odf_engine.derive.plan import Diverged, InputBehind, Transaction, transaction_of_block
from odf_engine.derive.run import CHECKPOINT, execute_transaction, make_request, output_watermark, to_event
from odf_engine.derive.verify.model import EngineReport
from odf_engine.derive.verify.replay_record import ReplayRecord
from odf_engine.derive.verify.report import ReplayResult
from odf_engine.derive.verify.slice_check import Problem, VerifiedSlices, check_object
from odf_engine.engines.contract import Engine, TransactionResult
from odf_engine.engines.engine_router import EngineMissing
from odf_engine.engines.stateful.checkpoint import read_checkpoint_metadata
from odf_engine.errors import (
    BadData,
    Cancelled,
    InvalidQuery,
    InvalidSchema,
    NotFound,
    OdfError,
    SourceUnavailable,
    Unsupported,
)
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import DataSlice, ExecuteTransform, MetadataBlock, SetTransform
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

_CARRIED: Final = "carried"


class Replay:
    """Replays transactions of one dataset, the oldest first. Stateless ones may run in several threads.

    Args:
        workspace: has the inputs.
        entry: the dataset.
        engine: runs the queries.
        reporter: receives amounts, and cancels the replay.
        known: transactions that were replayed before; None to replay all.
    """

    def __init__(
        self,
        workspace: Workspace,
        entry: DatasetEntry,
        engine: Engine,
        reporter: Reporter,
        known: VerifiedSlices | None = None,
    ) -> None:
        self._workspace = workspace
        self._entry = entry
        self._engine = engine
        self._reporter = reporter
        self._record = None if known is None else ReplayRecord(known, [*workspace.config.engines], reporter)
        self._folder: Path | None = None
        self._carried: Multihash | None = None  # The stored checkpoint that the replayed one replaces.

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold the files that transactions pass to later ones. All calls of :meth:`check` are within it."""
        with job_scratch_folder(self._workspace.odf / "cache", "replay") as self._folder:
            try:
                yield
            finally:
                self._folder = self._carried = None

    @staticmethod
    def is_stateless(state: ChainState, event: ExecuteTransform) -> bool:
        """Return whether a transaction neither reads nor writes a checkpoint.

        Args:
            state: the state of the chain before its block.
            event: the event of its block.
        """
        return state.last_checkpoint is None and event.new_checkpoint is None

    def check(self, state: ChainState, block_hash: Multihash, block: MetadataBlock) -> ReplayResult:
        """Replay a transaction and compare it with its block, unless this was done before.

        Args:
            state: the state of the chain before its block.
            block_hash: the hash of the block.
            block: the block.

        Raises:
            Cancelled: the verification was cancelled.
        """
        event, system_time, record = block.event, block.system_time, self._record
        assert isinstance(event, ExecuteTransform)
        if state.transform and len(read := state.transform.inputs) != len(event.query_inputs):
            message = f"the block has {len(event.query_inputs)} inputs, the query has {len(read)}"
            return ReplayResult([("input-interval", message)])
        try:
            transaction = transaction_of_block(self._workspace, self._entry, state, event, system_time)
        except BadData as error:
            return ReplayResult([("input-interval", str(error))])
        except OdfError as error:
            return ReplayResult(skipped=(_obstacle(error), _with_hint(error)))
        key = None if record is None else record.find_key(transaction, block_hash)
        if record is not None and key is not None and record.has(key):
            return ReplayResult(is_known=True)
        with self._job_folder() as folder:
            compared = self._compare(transaction, event, system_time, folder)
        if record is not None and key is not None and compared.is_confirmed:
            record.add(key)
        return compared.result

    def _compare(
        self, transaction: Transaction, event: ExecuteTransform, system_time: Timestamp, folder: Path
    ) -> _Comparison:
        """Replay a transaction and compare its rows and checkpoint."""
        staged = folder / "data"
        try:
            result = self._run(transaction, system_time, folder, staged)
        except Cancelled:
            raise
        except OdfError as error:
            self._reporter.raise_if_cancelled()  # A cancelled engine may raise any error.
            if _lacks_engine(error, transaction.transform):
                return _Comparison(ReplayResult(skipped=("engine-missing", str(error))))
            failed = _failed_replay(transaction, error)
            watermark = _compare_watermark(event, transaction.watermark)
            problem = self._find_damaged_input(transaction)
            if problem is None and not isinstance(error, InvalidQuery | BadData | InvalidSchema):
                return _Comparison(ReplayResult(watermark, skipped=("replay-failed", _with_hint(error))))
            return _Comparison(ReplayResult([*watermark, problem or failed]))
        checkpoint = self._compare_checkpoint(transaction, event, result, folder)
        rows = self._compare_rows(transaction, event, result, staged)
        watermark = _compare_watermark(event, output_watermark(transaction, result))
        doubts, sql = [*checkpoint.doubts], transaction.transform.transform
        if watermark and sql.version is not None and is_earlier_revision(sql.engine, sql.version):
            # Earlier rules stated other watermarks for the same rows.
            ((_, message),), watermark = watermark, []
            doubts.append(_version_problem(transaction, result.version, message))
        use = _engine_use(transaction.transform, result)
        problems = [*watermark, *checkpoint.problems, *rows]
        is_confirmed = (
            not problems
            and not doubts
            and result.version == engine_version(sql.engine)
            and to_event(transaction, result).new_checkpoint == event.new_checkpoint
        )
        return _Comparison(ReplayResult(problems, doubts, engine=use), is_confirmed)

    def _compare_rows(
        self, transaction: Transaction, event: ExecuteTransform, result: TransactionResult, staged: Path
    ) -> list[Problem]:
        written, data = result.written, event.new_data
        if written is None and data is None:
            return []
        if written is None or data is None:
            recorded, replayed = (
                0 if data_slice is None else _rows(data_slice) for data_slice in (data, written)
            )
            difference = f"number of rows: {recorded:,} stored, {replayed:,} replayed"
        elif written.logical_hash != data.logical_hash:
            path = self._entry.dataset.slice_path(data.physical_hash)
            difference = _difference(path, data, staged, written, self._reporter)
        else:
            return []
        problem = _transform_problem(transaction, result, "data", difference)
        return [self._find_damaged_input(transaction) or problem]

    def _run(
        self, transaction: Transaction, system_time: Timestamp, folder: Path, staged: Path
    ) -> TransactionResult:
        request = make_request(transaction, folder, staged, system_time, self._reporter)
        last = transaction.state.last_checkpoint
        if last is not None and last.physical_hash == self._carried:
            request = replace(request, prev_checkpoint_path=str(self._carried_path))
        return execute_transaction(self._workspace, self._engine, transaction, request, self._reporter)

    def _find_damaged_input(self, transaction: Transaction) -> Problem | None:
        """Return the first input slice that differs from its own chain, which explains other rows."""
        for plan in transaction.inputs:
            for row in plan.slices:
                path = plan.entry.dataset.slice_path(row)
                if path == plan.entry.dataset.equivalent_slice(row.physical_hash):
                    continue
                problems = check_object(
                    path, "slice", row.physical_hash, row.size, lambda _: self._reporter.raise_if_cancelled()
                )
                for _, message in problems:
                    return ("input-damaged", f"input '{plan.alias}' must be verified first: {message}")
        return None

    def _compare_checkpoint(
        self, transaction: Transaction, event: ExecuteTransform, result: TransactionResult, folder: Path
    ) -> ReplayResult:
        """Compare the checkpoint; keep the replayed one as the state of the next transaction."""
        recorded, replayed = event.new_checkpoint, result.checkpoint
        problems: list[Problem] = []
        if (recorded is None) != (to_event(transaction, result).new_checkpoint is None):
            stored, replayed_text = ("no", "a") if recorded is None else ("a", "no")
            problems.append(
                (
                    "transform-checkpoint",
                    f"the block has {stored} checkpoint, but the replay has {replayed_text} checkpoint",
                )
            )
        if replayed is None or recorded is None:
            return ReplayResult(problems)
        (folder / CHECKPOINT).replace(self._carried_path)
        self._carried = recorded.physical_hash
        if (
            recorded.physical_hash == replayed.physical_hash
            or transaction.transform.transform.engine.lower() != SPARK
        ):
            return ReplayResult(problems)
        # Equal state mostly has equal bytes, and always equal metadata, except for the fingerprint of the
        # query, which changes no rows.
        try:
            stored = read_checkpoint_metadata(self._entry.dataset.checkpoint_path(recorded.physical_hash))
        except OdfError:
            return ReplayResult(problems)  # The check of the file has reported it.
        carried = read_checkpoint_metadata(self._carried_path)
        if replace(stored, engine=carried.engine, state=carried.state) != carried:
            message = "the state in the checkpoint differs from the replayed state"
            return ReplayResult([*problems, _transform_problem(transaction, result, "checkpoint", message)])
        if stored.engine != carried.engine:
            return ReplayResult(problems)  # files of another version cannot be compared
        message = "the bytes of the checkpoint differ from the replayed one, which later transactions use"
        return ReplayResult(problems, doubts=[("checkpoint-other", message)])

    @property
    def _carried_path(self) -> Path:
        assert self._folder is not None
        return self._folder / _CARRIED

    @contextmanager
    def _job_folder(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class _Comparison(NamedTuple):
    """The comparison of a replayed transaction with its block.

    Attributes:
        result: the result of the replay.
        is_confirmed: the rows, the watermark and the bytes of the checkpoint are equal, and the engine is the
            installed built-in one. A later verification need not replay it again.
    """

    result: ReplayResult
    is_confirmed: bool = False


def _obstacle(error: OdfError) -> str:
    """Return the kind of the reason why a transaction cannot be replayed."""
    match error:
        case NotFound():
            return "input-missing"
        case InputBehind():
            return "input-behind"
        case Diverged():
            return "input-diverged"
        case Unsupported():
            return "engine-missing"
        case _:
            return "input-unreadable"


def _with_hint(error: OdfError) -> str:
    return f"{error.message}: {error.hint}" if error.hint else str(error)


def _engine_use(transform: SetTransform, result: TransactionResult) -> EngineReport:
    """Return the engine that replayed one transaction."""
    sql = transform.transform
    rows = 0 if result.written is None else result.written.rows
    return EngineReport(sql.engine, sql.version, result.version, 1, rows)


def _compare_watermark(event: ExecuteTransform, expected: Timestamp | None) -> list[Problem]:
    if event.new_watermark == expected:
        return []
    stored, computed = event.new_watermark or "none", expected or "none"
    return [
        ("transform-watermark", f"the watermark is {stored}, but the inputs and the engine give {computed}")
    ]


def _transform_problem(
    transaction: Transaction, result: TransactionResult, part: str, message: str
) -> Problem:
    """Return the problem of a transaction whose ``data`` or ``checkpoint`` differs after the replay."""
    version, replaying = transaction.transform.transform.version, result.version
    if replaying is None or version == replaying:
        return (f"transform-{part}", message)
    return _version_problem(transaction, replaying, f"so does the result: {message}")


def _failed_replay(transaction: Transaction, error: OdfError) -> Problem:
    sql, message = transaction.transform.transform, f"replay failed: {error}"
    if sql.version is not None and is_earlier_revision(sql.engine, sql.version):
        return _version_problem(transaction, engine_version(sql.engine), f"the {message}")
    return ("transform-failed", message)


def _version_problem(transaction: Transaction, replaying: str | None, message: str) -> Problem:
    recorded = transaction.transform.transform.version or "an unknown version"
    advice = f"odf pull --rederive {transaction.entry.alias} derives it by the present rules"
    versions = f"stored by {recorded}, replayed by {replaying}"
    return ("transform-version", f"engine version differs ({versions}), and {message}; {advice}")


def _lacks_engine(error: OdfError, transform: SetTransform) -> bool:
    """Return whether a transaction failed because the engine that ran it first is missing."""
    if isinstance(error, EngineMissing | SourceUnavailable):
        return True
    sql = transform.transform
    same = sql.version is not None and sql.version == engine_version(sql.engine)
    return isinstance(error, Unsupported) and not same


def _rows(data: DataSlice | WrittenSlice) -> int:
    return data.offset_interval.end - data.offset_interval.start + 1


def _difference(path: Path, data: DataSlice, staged: Path, written: WrittenSlice, reporter: Reporter) -> str:
    """Describe the first row that differs after the replay."""
    try:
        difference = first_difference(_cancellable(read_batches(path), reporter), read_batches(staged))
    except Cancelled:
        raise
    except OdfError as error:
        return f"the replayed rows differ; the stored data cannot be read: {error}"
    counts = f"rows: {_rows(data):,} stored, {_rows(written):,} replayed"
    if difference is None:
        return f"the replay has a different logical hash ({counts}): same values, different types"
    row, stored, replayed = difference
    return (
        f"row {data.offset_interval.start + row}: stored {_row_text(stored)}; replayed {_row_text(replayed)}"
    )


def _cancellable(batches: Iterator[pa.RecordBatch], reporter: Reporter) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        reporter.raise_if_cancelled()
        yield batch


def _row_text(row: pa.RecordBatch | None) -> str:
    return "missing" if row is None else describe_row(row, ("offset",))


Difference = tuple[int, pa.RecordBatch | None, pa.RecordBatch | None]


def first_difference(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> Difference | None:
    """Return the first differing row of two streams: its number and both rows, or None after the end."""
    row = 0
    ours, theirs = next(left, None), next(right, None)
    while ours is not None and theirs is not None:
        count = min(ours.num_rows, theirs.num_rows)
        if not ours.slice(0, count).equals(theirs.slice(0, count)):
            for at in range(count):
                one, other = ours.slice(at, 1), theirs.slice(at, 1)
                if not one.equals(other) and _row_text(one) != _row_text(other):
                    return row + at, one, other
        row += count
        ours = ours.slice(count) if ours.num_rows > count else next(left, None)
        theirs = theirs.slice(count) if theirs.num_rows > count else next(right, None)
    if ours is None and theirs is None:
        return None
    return row, ours and ours.slice(0, 1), theirs and theirs.slice(0, 1)
