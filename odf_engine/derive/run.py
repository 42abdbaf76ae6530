"""Runs transactions until a derivative dataset is up to date; resets it after divergence."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import asdict
from msgspec.structs import replace as structs_replace

from odf_engine.base.files import remove_temporary, translate_os_errors
from odf_engine.base.progress import Reporter, count_of, size_of
from odf_engine.chain.normal_form import (
    BUILT_IN_ENGINES,
    allowed_lateness,
    engine_version,
    is_earlier_revision,
    with_allowed_lateness,
    with_engine_version,
    without_engine_version,
)
from odf_engine.chain.schema_evolution import declare_schema, declared_schema
from odf_engine.chain.state import ChainState, ChainUpdate
from odf_engine.checks.gate import DatasetChecks, StartSession, load_checks
from odf_engine.data.arrow_compute import describe_row, pc
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.data.changelog import Op, OperationCheck
from odf_engine.data.parquet.parquet_reader import read_parquet_schema
from odf_engine.data.parquet.slices import copy_rows, read_batches, read_rows_at, with_kamu_types
from odf_engine.data.retractions import find_unmatched_row, hash_data_fields
from odf_engine.data.waiting import Waiting
from odf_engine.derive.history import transactions_of_state, without_state
from odf_engine.derive.plan import Diverged, InputPlan, Transaction, plan_transaction
from odf_engine.derive.read_limit import check_read_after_reset, find_excess, rereads, size_of_rows_read
from odf_engine.engines.contract import Engine, LateRows, QueryInput, TransactionResult
from odf_engine.errors import BadData, EarlierRowsRequired, OdfError, StateUnusable, Unsupported, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    DatasetKind,
    DatasetVocabulary,
    DataSlice,
    ExecuteTransform,
    MetadataEvent,
    OffsetInterval,
    SetAttachments,
    SetDataSchema,
    SetVocab,
    SqlQueryStep,
    TransformRequest,
    TransformRequestInput,
    Watermark,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.sql.query_text import attach_query_excerpt
from odf_engine.storage.refs import HEAD
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.workspace.dataset_folders import LATE_ROWS
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.waiting import find_slow_inputs, store_waiting
from odf_engine.workspace.workspace import Workspace

CHECKPOINT: Final = "checkpoint"
_ADDING: Final = pa.array([Op.APPEND, Op.CORRECT_TO], pa.int32())


def transform(
    workspace: Workspace,
    entry: DatasetEntry,
    engine: Engine,
    reporter: Reporter,
    session: StartSession | None = None,
) -> ChainUpdate:
    """Run transactions until the dataset is up to date with its inputs; each is one commit.

    Args:
        workspace: the workspace of the inputs.
        entry: a derivative dataset.
        engine: runs the query.
        reporter: receives phases, amounts and commits; checked for cancellation.
        session: returns a Spark session for the queries of checks.

    Raises:
        Cancelled: earlier commits stay.
        OdfError: a transaction failed; earlier ones stay, and the next pull continues from there.
    """
    before = entry.dataset.state()
    checks = load_checks(workspace, entry, session)
    while True:
        reporter.phase("plan")
        transaction = plan_transaction(workspace, entry, workspace.config.transform.most_rows)
        if transaction is None:
            break
        _check_version(transaction, workspace.config.engines)
        if _record_lateness(workspace, transaction, reporter):
            continue
        with (
            translate_os_errors(workspace.odf, "the transaction was not committed"),
            job_scratch_folder(workspace.odf / "cache", "transform") as folder,
        ):
            _TransactionRun(workspace, transaction, engine, folder, reporter, checks).run()
    return ChainUpdate.from_states(before, entry.dataset.state())


def _check_version(transaction: Transaction, configured: Collection[str]) -> None:
    """Check that a query for a built-in engine is for its installed version, or for its earlier rules.

    Args:
        transaction: has the query.
        configured: names of the configured engines, which replace built-in ones.

    Raises:
        Unsupported: the chain requires another version.
    """
    sql = transaction.transform.transform
    installed = engine_version(sql.engine)
    if installed is None or sql.engine.lower() in map(str.lower, configured):
        return
    if sql.version in (None, installed) or is_earlier_revision(sql.engine, sql.version):
        return
    raise _other_version(transaction, installed)


def _other_version(transaction: Transaction, actual: str) -> Unsupported:
    required, alias = transaction.transform.transform.version, transaction.entry.alias
    return Unsupported(
        f"the query is for version {required} of the engine, but this is {actual}",
        where="transform",
        hint=f"to use this version if it returns the same rows, run odf verify --compatible {alias}; "
        f"to use it anyway, set `version: {actual}` in the manifest and run odf add --update",
    )


def _record_lateness(workspace: Workspace, transaction: Transaction, reporter: Reporter) -> bool:
    """Record the configured allowed lateness of the inputs in the chain; return whether it has changed.

    Inputs without a setting keep the recorded one, which another workspace may have set.
    """
    recorded, configured = allowed_lateness(transaction.transform.transform), dict[str, str]()
    for plan in transaction.inputs:
        lateness = workspace.config.allowed_lateness_of(str(plan.entry.alias), str(plan.entry.id))
        if lateness is not None:
            configured[plan.alias] = lateness
    transform = with_allowed_lateness(transaction.transform, recorded | configured)
    if not configured or allowed_lateness(transform.transform) == recorded:
        return False
    state = transaction.state
    head = transaction.entry.dataset.commit(
        [transform],
        system_time=max(Timestamp.now(), state.system_time),
        expected_head=state.head,
        block_version=workspace.config.block_version,
    )
    reporter.log(f"the allowed lateness of inputs changed: block {head}")
    reporter.committed(str(transaction.entry.id), str(head), "SetTransform", 0)
    return True


@dataclass
class _TransactionRun:
    """Runs and commits one transaction."""

    _workspace: Workspace
    _transaction: Transaction
    _engine: Engine
    _folder: Path
    _reporter: Reporter
    _checks: DatasetChecks | None

    def __post_init__(self) -> None:
        self._dataset, self._state = self._transaction.entry.dataset, self._transaction.state
        self._system_time = max(Timestamp.now(), self._state.system_time)
        self._events: list[MetadataEvent] = []  # further events of the commit

    def run(self) -> None:
        started = monotonic()
        staged = self._dataset.staging_path("data")
        try:
            for plan in self._transaction.inputs:
                self._reporter.log(_describe_input(plan))
            self._reporter.phase("query")
            request = make_request(self._transaction, self._folder, staged, self._system_time, self._reporter)
            queried = monotonic()
            result = execute_transaction(
                self._workspace, self._engine, self._transaction, request, self._reporter, is_new=True
            )
            check_changelog(self._transaction, result, self._reporter)
            self._record_version(result.version)
            self._reporter.log(_describe_result(result, monotonic() - queried))
            self._commit(result, staged, started)
        finally:
            remove_temporary(staged)

    def _record_version(self, version: str | None) -> None:
        """Record the version that the engine reports, unless the chain has it already.

        Raises:
            Unsupported: the query is for another version.
        """
        sql = self._transaction.transform.transform
        if sql.engine.lower() not in BUILT_IN_ENGINES or version != sql.version:
            self._reporter.log(f"version of the engine {sql.engine}: {version or 'not reported'}")
        if version is None or version == sql.version:
            return
        is_earlier = sql.version is not None and is_earlier_revision(sql.engine, sql.version)
        if sql.version is not None and not is_earlier:
            raise _other_version(self._transaction, version)
        if is_earlier or sql.engine.lower() not in BUILT_IN_ENGINES:
            transform = self._transaction.transform
            self._events.append(structs_replace(transform, transform=structs_replace(sql, version=version)))

    def _commit(self, result: TransactionResult, staged: Path, begun: float) -> None:
        state, reporter, written = self._state, self._reporter, result.written
        check_rows(self._checks, self._transaction, result, self._system_time, reporter)
        config = self._workspace.config
        reporter.phase("commit")
        reporter.raise_if_cancelled()
        reporter.raise_if_warned()
        events = list(self._events)
        # Without rows too: queries over this dataset need its columns, which some engines do not return then.
        if not state.has_schema and (written is not None or len(result.schema)):
            events.append(declare_schema(result.schema, None, odf=config.metadata.data_schema == "odf"))
        events.append(to_event(self._transaction, result))
        head = self._dataset.commit(
            events,
            system_time=self._system_time,
            expected_head=state.head,
            data=staged if written is not None else None,
            checkpoint=self._folder / CHECKPOINT if result.checkpoint is not None else None,
            block_version=config.block_version,
        )
        self._store_late_rows(head, result.late)
        record_waiting(self._transaction, result, reporter)
        rows = written.rows if written is not None else 0
        reporter.log(f"committed block {head}, {count_of(rows, 'row')}, in {monotonic() - begun:.1f} s")
        reporter.committed(str(self._transaction.entry.id), str(head), "ExecuteTransform", rows)

    def _store_late_rows(self, block: Multihash, late: Sequence[LateRows]) -> None:
        try:
            for path in store_late_rows(self._transaction, block, late):
                self._reporter.log(f"late rows: {path}")
        except OdfError as error:  # The block is committed, and the rows remain in the inputs.
            self._reporter.log(f"late rows are not listed: {error}", "warning")


def record_waiting(transaction: Transaction, result: TransactionResult, reporter: Reporter) -> None:
    """Store what the results wait for after a committed transaction, for lists and messages."""
    dataset = transaction.entry.dataset
    if dataset.reference != HEAD:
        return
    slow = find_slow_inputs({str(plan.entry.alias): plan.watermark for plan in transaction.inputs})
    # Without a number, rows are known to wait only if an input is ahead of another.
    waits = result.pending if result.pending is not None else len(slow) < len(transaction.inputs)
    checkpoint = result.checkpoint or transaction.state.last_checkpoint
    try:
        store_waiting(
            dataset.folder,
            None if checkpoint is None else checkpoint.physical_hash,
            Waiting(slow, result.pending) if waits else None,
        )
    except OdfError as error:  # The block is committed.
        reporter.log(str(error), "warning")


def store_late_rows(transaction: Transaction, block: Multihash, late: Sequence[LateRows]) -> list[Path]:
    """Store the late rows of a transaction as Parquet files, one for each input; return the files.

    They are in the folder of the dataset, but no part of it: other copies do not have them.

    Args:
        transaction: the transaction, with the slices of its inputs.
        block: block of the transaction.
        late: the rows that it dropped.

    Raises:
        OdfError: a slice cannot be read, or a file cannot be written.
    """
    paths: list[Path] = []
    inputs = {plan.alias: plan for plan in transaction.inputs}
    for rows in late:
        source = inputs[rows.alias]
        metadata = {"odf.input": rows.alias, "odf.dataset": str(source.entry.id), "odf.block": str(block)}
        schema = decode_schema(source.schema).with_metadata(metadata)
        path = transaction.entry.dataset.folder / LATE_ROWS / f"{block}-{rows.alias.encode().hex()}.parquet"
        part = path.with_name(f".{path.name}.part")
        with translate_os_errors(path, "the late rows are not listed"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(part, schema, compression="zstd") as writer:
                for batch in _rows_at(source, rows.offsets, schema):
                    writer.write_batch(batch)
            part.replace(path)
        paths.append(path)
    return paths


def _rows_at(input: InputPlan, offsets: pa.ChunkedArray, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows of an input by offset, with the columns of its last schema."""
    for row in input.slices:
        own = offsets.filter(pc.and_(pc.greater_equal(offsets, row.start), pc.less_equal(offsets, row.end)))
        if not len(own):
            continue
        positions = pc.subtract(own.combine_chunks(), row.start)
        for batch in read_rows_at(input.entry.dataset.slice_path(row), positions, schema.names):
            columns = [
                batch.column(field.name).cast(field.type)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.record_batch(columns, schema=schema)


def execute_transaction(
    workspace: Workspace,
    engine: Engine,
    transaction: Transaction,
    request: TransformRequest,
    reporter: Reporter,
    *,
    is_new: bool = False,
) -> TransactionResult:
    """Run a transaction with an engine. A state that the engine cannot use is computed again.

    Args:
        workspace: the workspace of the inputs.
        engine: runs the query.
        transaction: the transaction.
        request: its request (:func:`make_request`).
        reporter: receives amounts; checked for cancellation.
        is_new: whether the transaction will be committed. Then the limit ``transform.mostReadBytes`` applies,
            and a state is only computed again if the query still returns the rows of the dataset.

    Raises:
        Unsupported: the transaction would read more than the limit, or its state cannot be computed.
        OdfError: see the methods of :class:`odf_engine.engines.contract.Engine`.
    """
    excess = find_excess(transaction, workspace.config.transform) if is_new else None
    continues = transaction.kind == "execute" and transaction.state.last_checkpoint is not None
    if excess is not None and not continues and rereads(engine, transaction):
        raise excess
    declared = declared_schema(transaction.state)
    if declared is None and workspace.config.metadata.system_columns == "kamu":
        declared = _kamu_schema(engine, transaction)
    has_earlier_rows, computed = False, set[bool]()
    with ExitStack() as folders, attach_query_excerpt(request.transform.queries or []):
        while True:
            try:
                return engine.run(transaction.kind, request, declared, reporter)
            except EarlierRowsRequired:
                if excess is not None:
                    raise excess from None
                if has_earlier_rows:
                    raise
                size = size_of(size_of_rows_read(transaction))
                reporter.log(f"the query reads earlier rows of its inputs again: {size} of slices")
                request, has_earlier_rows = with_earlier_rows(request, transaction, reporter), True
            except StateUnusable as error:
                if transaction.kind == "rebuild" or error.lacks_values in computed:
                    raise
                reporter.log(f"{error}; computing the state again from the inputs")
                computed.add(error.lacks_values)
                folder = folders.enter_context(job_scratch_folder(workspace.odf / "cache", "transform"))
                rebuild = _StateRebuild(workspace, engine, transaction, folder, reporter)
                state = rebuild.run(error, compared=is_new and not error.lacks_values)
                request = structs_replace(request, prev_checkpoint_path=state)


def with_earlier_rows(
    request: TransformRequest, transaction: Transaction, reporter: Reporter
) -> TransformRequest:
    """Return a request with the files of all rows that earlier transactions have read."""
    inputs: list[TransformRequestInput] = []
    for query_input, plan in zip(request.query_inputs, transaction.inputs, strict=True):
        last = plan.interval.prev_offset
        paths: list[str] = []
        if last is not None:
            earlier = replace(
                plan, offsets=OffsetInterval(0, last), slices=plan.entry.dataset.slices(0, last)
            )
            folder = Path(query_input.schema_file).with_suffix("")
            folder.mkdir(exist_ok=True)
            paths = _interval_files(earlier, f"{folder}/", reporter)
        inputs.append(structs_replace(query_input, earlier_paths=paths))
    return structs_replace(request, query_inputs=inputs)


def _kamu_schema(engine: Engine, transaction: Transaction) -> pa.Schema | None:
    """Return the schema of the first result with kamu's types of system columns.

    None if the engine cannot determine it: engines of other implementations use these types themselves.
    """
    inputs = [QueryInput(plan.alias, decode_schema(plan.schema), plan.vocab) for plan in transaction.inputs]
    vocab = transaction.state.vocabulary
    try:
        checked = engine.validate(transaction.transform.transform, inputs, vocab, None)
    except Unsupported:
        return None
    return with_kamu_types(checked.schema, vocab)


@dataclass
class _StateRebuild:
    """Computes the state before a transaction from the inputs."""

    _workspace: Workspace
    _engine: Engine
    _transaction: Transaction
    _folder: Path
    _reporter: Reporter

    def run(self, reason: StateUnusable, *, compared: bool) -> str | None:
        """Return the path of the new checkpoint, or None if no state is required.

        Args:
            reason: why the present state cannot be used.
            compared: check that the rows of the dataset are the rows that belong to the new state.

        Raises:
            Unsupported: the rows differ.
            OdfError: an input is missing or has changed, or the query cannot run.
        """
        past = transactions_of_state(self._workspace, self._transaction)
        if past is None:
            return None
        past = without_state(past)
        staged = self._folder / "data"
        request = make_request(past, self._folder, staged, past.state.system_time, self._reporter)
        declared = declared_schema(self._transaction.state)
        operation = "rebuild" if reason.lacks_values else "execute"
        result = self._engine.run(operation, request, declared, self._reporter)
        if compared and not self._has_rows(past, [] if result.written is None else [staged]):
            alias = self._transaction.entry.alias
            raise Unsupported(
                f"{alias} cannot be continued: {reason.message}, and the query now returns other rows",
                where=reason.where,
                hint=f"odf pull --rederive {alias} derives the dataset again; odf verify --recompute {alias} "
                "lists the rows that differ",
            )
        return None if result.checkpoint is None else request.new_checkpoint_path

    def _has_rows(self, past: Transaction, computed: Sequence[Path]) -> bool:
        """Return whether the dataset has the rows that its past transactions compute now."""
        dataset = self._transaction.entry.dataset
        # A state that was rebuilt for a changed query belongs to all rows of the dataset.
        is_whole = all(plan.interval.prev_block_hash is None for plan in past.inputs)
        last = past.state.last_offset
        start = 0 if is_whole or last is None else last + 1
        slices = [row for row in dataset.slices() if row.end >= start]
        stored = dataset.slice_paths(slices, self._reporter)
        return self._sum_rows(stored, start) == self._sum_rows(computed, 0)

    def _sum_rows(self, slices: Sequence[Path], start: int) -> int:
        """Return a number that is equal for slices with the same rows after all retractions, in any order.

        Rows before the offset ``start`` are skipped.
        """
        vocab, total = self._transaction.state.vocabulary, 0
        for path in slices:
            for batch in read_batches(path):
                self._reporter.raise_if_cancelled()
                own = batch.filter(pc.greater_equal(batch.column(vocab.offset_column), start))
                hashes = hash_data_fields(own, vocab)
                adds = pc.is_in(own.column(vocab.operation_type_column).cast(pa.int32()), _ADDING)
                for rows, sign in ((hashes.filter(adds), 1), (hashes.filter(pc.invert(adds)), -1)):
                    total += sign * (pc.sum(rows.cast(pa.decimal128(38, 0))).as_py() or 0)
        return int(total)


def check_rows(
    checks: DatasetChecks | None,
    transaction: Transaction,
    result: TransactionResult,
    system_time: Timestamp,
    reporter: Reporter,
) -> None:
    """Apply the checks of a dataset, if it has any, to the rows of a transaction before the commit."""
    if checks is not None and result.written is not None:
        watermark = output_watermark(transaction, result)
        checks.check_slices(
            [result.written], result.schema, system_time=system_time, watermark=watermark, reporter=reporter
        )


def check_changelog(transaction: Transaction, result: TransactionResult, reporter: Reporter) -> None:
    """Check before the commit that the operations of the result are a valid changelog of the dataset.

    The same rules apply to every engine. A replay does not check them: verification reports operations that
    were committed, see :mod:`odf_engine.derive.verify.slice_check`
    and :mod:`odf_engine.derive.verify.integrity`.

    Raises:
        BadData: a row has an invalid operation, a correction is incomplete, or a retracted row is not in the
            dataset.
        NotFound, BadData: a slice of the dataset is missing or damaged.
        Cancelled: the job was cancelled.
    """
    written, vocab = result.written, transaction.state.vocabulary
    if written is None:
        return
    operations, problem = OperationCheck(), None
    for batch in read_batches(written.path, [vocab.operation_type_column]):
        reporter.raise_if_cancelled()
        problem = problem or operations.check(batch.column(0))
    problem = problem or operations.finish()
    if problem is not None:
        raise BadData(
            f"the result of the query is not a valid changelog: {problem}",
            where="query",
            hint=f"remove '{vocab.operation_type_column}' from the query, which then has the operations of "
            "the input, or return a -C and its +C as adjacent rows",
        )
    if result.retracts_emitted or not operations.has_retractions:
        return
    dataset = transaction.entry.dataset
    history = dataset.slice_paths(dataset.slices(), reporter)
    row = find_unmatched_row(written.path, history, vocab, reporter.raise_if_cancelled)
    if row is not None:
        raise BadData(
            "the result of the query retracts a row that is not in the dataset: "
            f"row {row}: {_stored_row_text(written.path, row, vocab)}",
            where="query",
            hint=_unmatched_row_hint(transaction.transform.transform.queries or []),
        )


def _unmatched_row_hint(steps: Sequence[SqlQueryStep]) -> str:
    hint = "a -R or -C repeats all columns of the row that it retracts: "
    # Whether an input ever has retractions cannot be known when the query is added.
    if any("system_time(" in step.query.lower().replace(" ", "") for step in steps):
        return hint + "remove system_time() from the query, which has another value in each transaction"
    return hint + "check columns that the query computes, and verify the inputs with odf verify"


def _stored_row_text(path: Path, row: int, vocab: DatasetVocabulary) -> str:
    """Return the first columns of a row of a slice as text, without offset and system time."""
    hidden = (vocab.offset_column, vocab.system_time_column)
    columns = [name for name in read_parquet_schema(path).names if name not in hidden][:8]
    return describe_row(next(iter(read_rows_at(path, pa.array([row], pa.int64()), columns))))


def to_event(transaction: Transaction, result: TransactionResult) -> ExecuteTransform:
    """Return the event of a completed transaction."""
    state, written = transaction.state, result.written
    before = state.last_checkpoint
    return ExecuteTransform(
        query_inputs=[plan.interval for plan in transaction.inputs],
        prev_checkpoint=before.physical_hash if before else None,
        prev_offset=state.last_offset,
        new_data=None
        if written is None
        else DataSlice(
            logical_hash=written.logical_hash,
            physical_hash=written.physical_hash,
            offset_interval=written.offset_interval,
            size=written.size,
        ),
        new_checkpoint=None if transaction.kind == "finish" else result.checkpoint or before,
        new_watermark=output_watermark(transaction, result),
    )


def output_watermark(transaction: Transaction, result: TransactionResult) -> Timestamp | None:
    """Return the watermark of the dataset after a transaction.

    It is the inputs' watermark, or the engine's if it is earlier, and never below the previous one.
    """
    watermark = transaction.watermark
    if watermark is None or result.watermark is None or result.watermark >= watermark:
        return watermark
    before = transaction.state.watermark
    return result.watermark if before is None else max(before, result.watermark)


def make_request(
    transaction: Transaction, folder: Path, staged: Path, system_time: Timestamp, reporter: Reporter
) -> TransformRequest:
    """Return the engine request of a transaction.

    Args:
        transaction: the transaction.
        folder: folder for temporary files; must exist until the engine has finished.
        staged: path of the slice to write.
        system_time: system time of the rows.
        reporter: receives the bytes of fetched slices, and can cancel.
    """
    state = transaction.state
    dataset, last = transaction.entry.dataset, state.last_checkpoint
    fresh = last is None or transaction.kind == "rebuild"
    return TransformRequest(
        dataset_id=transaction.entry.id,
        dataset_alias=str(transaction.entry.alias),
        system_time=system_time,
        vocab=state.vocabulary,
        transform=transaction.transform.transform,
        query_inputs=[
            _request_input(plan, folder / f"{index}.parquet", reporter, fresh=fresh)
            for index, plan in enumerate(transaction.inputs)
        ],
        next_offset=0 if state.last_offset is None else state.last_offset + 1,
        prev_checkpoint_path=None if last is None else str(dataset.checkpoint_path(last.physical_hash)),
        new_checkpoint_path=str(folder / CHECKPOINT),
        new_data_path=str(staged),
    )


def _request_input(
    plan: InputPlan, schema_file: Path, reporter: Reporter, *, fresh: bool
) -> TransformRequestInput:
    """Return the request of an input. ``fresh``: no state contains the previous watermark of the input."""
    # An empty file with the schema at the interval's end, which no slice may have yet.
    pq.write_table(decode_schema(plan.schema).empty_table(), schema_file)
    return TransformRequestInput(
        dataset_id=plan.entry.id,
        dataset_alias=str(plan.entry.alias),
        query_alias=plan.alias,
        vocab=plan.vocab,
        offset_interval=plan.offsets,
        data_paths=_interval_files(plan, f"{schema_file.with_suffix('')}-", reporter),
        schema_file=str(schema_file),
        explicit_watermarks=[*(_previous_watermark(plan) if fresh else ()), *plan.explicit],
    )


def _interval_files(plan: InputPlan, prefix: str, reporter: Reporter) -> list[str]:
    """Return the files of the slices of an input. Slices with rows outside of the interval are copied.

    A compaction merges slices, and intervals that were read earlier can end within a merged one.

    Args:
        plan: the input.
        prefix: the path prefix of the copies, which have only the rows of the interval.
        reporter: see :func:`make_request`.
    """
    interval = plan.offsets
    files = plan.entry.dataset.slice_paths(plan.slices, reporter)
    for number, row in enumerate(plan.slices):
        if interval is not None and not (interval.start <= row.start and row.end <= interval.end):
            rows = max(row.start, interval.start) - row.start, min(row.end, interval.end) + 1 - row.start
            cut = Path(f"{prefix}{row.start}.parquet")
            copy_rows(files[number], cut, rows, vocab=plan.vocab, reporter=reporter)
            files[number] = cut
    return [str(file) for file in files]


def _previous_watermark(plan: InputPlan) -> Iterator[Watermark]:
    """Yield the watermark before the transaction; rows up to it are late."""
    if plan.before is None:
        return
    block = plan.interval.prev_block_hash
    system_time = plan.entry.dataset.block(block).block.system_time if block else Timestamp.from_ms(0)
    yield Watermark(system_time=system_time, event_time=plan.before)


def _describe_result(result: TransactionResult, seconds: float) -> str:
    written = result.written
    rows = "no rows"
    if written is not None:
        rows = f"{count_of(written.rows, 'row')}, {count_of(written.size, 'byte')}"
    state = ", with state" if result.checkpoint is not None else ""
    return f"the query returned {rows} in {seconds:.1f} s{state}"


def _describe_input(plan: InputPlan) -> str:
    rows = sum(row.end - row.start + 1 for row in plan.slices)
    watermark = f", watermark {plan.watermark}" if plan.watermark is not None else ""
    slices = count_of(len(plan.slices), "slice")
    reference = plan.entry.dataset.reference
    branch = "" if reference == HEAD else f"@{reference}"
    return f"input {plan.alias}{branch}: {count_of(rows, 'new row')} in {slices}{watermark}"


def reset_dataset(workspace: Workspace, entry: DatasetEntry) -> Multihash:
    """Restart the chain of a derivative dataset with its current settings and without data.

    Returns:
        The new head.

    Raises:
        UsageError: a root dataset, whose rows cannot be recomputed.
        NotFound: an input is not in the workspace, so the rows cannot be recomputed.
        Unsupported: a setting is from a newer specification.
        Conflict: another process has committed to the dataset.
    """
    state = entry.dataset.state()
    if state.kind is not DatasetKind.Derivative:
        raise UsageError(f"{entry.alias} is a root dataset: only derivative datasets can be rebuilt")
    if state.not_understood:
        setting, number = next(iter(state.not_understood.items()))
        raise Unsupported(
            f"{entry.alias} cannot be rebuilt: its {setting} is from a newer specification",
            where=f"block {number}",
            hint="use a newer version of odf",
        )
    for source in state.inputs():
        workspace.resolve(str(source))
    return entry.dataset.restart_chain(
        list(settings_events(state)),
        system_time=max(Timestamp.now(), state.system_time),
        expected_head=state.head,
        block_version=workspace.config.block_version,
    )


def settings_events(state: ChainState) -> Iterator[MetadataEvent]:
    """Yield the current settings of a chain as events."""
    if state.vocabulary != DEFAULT_VOCABULARY:
        yield SetVocab(**asdict(state.vocabulary))
    if state.schema is not None or state.odf_schema is not None:
        yield SetDataSchema(schema=state.schema, odf_schema=state.odf_schema)
    if state.transform is not None:
        yield with_engine_version(
            without_engine_version(state.transform)
        )  # the query runs again, on the current engine version
    for event in (state.info, state.license):
        if event is not None:
            yield event
    if state.attachments is not None:
        yield SetAttachments(state.attachments)


def transform_or_reset(
    workspace: Workspace,
    entry: DatasetEntry,
    engine: Engine,
    reporter: Reporter,
    session: StartSession | None = None,
) -> ChainUpdate:
    """Run :func:`transform`; if an input has diverged, reset the dataset and run it again.

    Raises:
        Cancelled: earlier commits stay; a reset is not reverted.
        OdfError: as above.
    """
    old = entry.dataset.state().head
    try:
        return transform(workspace, entry, engine, reporter, session)
    except Diverged as diverged:
        reporter.log(f"{diverged}; rebuilding the dataset", "warning")
    # Transactions before the diverged one may have been committed.
    return replace(rederive(workspace, entry, engine, reporter, session), old_head=old)


def rederive(
    workspace: Workspace,
    entry: DatasetEntry,
    engine: Engine,
    reporter: Reporter,
    session: StartSession | None = None,
) -> ChainUpdate:
    """Reset a derivative dataset, and derive it from the start of its inputs by the current rules.

    Raises:
        Cancelled: earlier commits stay; the reset is not reverted.
        OdfError: as for :func:`reset_dataset` and :func:`transform`.
    """
    before = entry.dataset.state().head
    check_read_after_reset(workspace, entry, engine)
    reset_dataset(workspace, entry)
    reporter.log(
        f"the previous chain up to block {before} is stored as refs/before-reset-{before.abbreviated}"
    )
    result = transform(workspace, entry, engine, reporter, session)
    blocks = entry.dataset.state().blocks - 1  # the first block stays
    return replace(result, status="updated", old_head=before, blocks=blocks)
