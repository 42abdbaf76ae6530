"""Verification of a dataset: blocks, append rules, slices, checkpoints, ownership proofs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.chain import append_rules
from odf_engine.chain.block_search import BlockFiles, WalkedChain
from odf_engine.chain.compacted_history import reaches_chain
from odf_engine.chain.compaction_check import OffsetFile, check_record
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.schema_evolution import read_declaration
from odf_engine.chain.state import ChainState, apply_block, record_count
from odf_engine.derive.verify.finding_kinds import EQUIVALENT, INVALID_CHANGELOG, UNCONFIRMED
from odf_engine.derive.verify.model import EngineReport, IntegrityFinding, IntegrityReport
from odf_engine.derive.verify.report import ReplayResult
from odf_engine.derive.verify.retraction_check import ChainSlice, check_retractions
from odf_engine.derive.verify.slice_check import (
    DAMAGED_SLICE,
    ExpectedSlice,
    FileChecks,
    Problem,
    VerifiedSlices,
    VerifyProgress,
    check_store,
)
from odf_engine.errors import (
    BadData,
    Cancelled,
    ChainRuleViolated,
    InvalidIdentity,
    InvalidSchema,
    MalformedBlock,
    NotFound,
    OdfError,
    UsageError,
)
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.multiformats import SHA3_256, Multihash, hash_bytes
from odf_engine.identity.ownership_proof import PROOFS_FOLDER, list_proof_files, read_proof, verify_proof
from odf_engine.metadata.flatbuffers import DecodedBlock, decode_block
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddData,
    ExecuteTransform,
    MetadataBlock,
    Seed,
    kind_of,
)
from odf_engine.metadata.object_links import find_link_columns, has_totals, read_totals
from odf_engine.storage.object_store import hash_file

if TYPE_CHECKING:
    from odf_engine.derive.verify.replay import Replay


class ProofCheck(NamedTuple):
    """The result of checking the ownership proofs of a dataset.

    Attributes:
        valid: number of valid proofs.
        newest: sequence number of the newest block with a valid proof.
        actor: who signed that block, or "" if the proof does not name the actor.
        invalid: findings about invalid proofs.
        unchecked: proofs of other chains, or of an owner that is not known.
    """

    valid: int
    newest: int | None
    actor: str
    invalid: list[IntegrityFinding]
    unchecked: list[IntegrityFinding]


def check_proofs(folder: Path, owner: DatasetId | None, numbers: Mapping[Multihash, int]) -> ProofCheck:
    """Check all ownership proofs of a dataset, also of blocks outside of the verified range.

    Args:
        folder: the folder of the dataset.
        owner: the dataset id in the first block, or None if that block is lost.
        numbers: sequence numbers of the blocks of the chain.
    """
    valid: list[tuple[int, str]] = []
    invalid: list[IntegrityFinding] = []
    unchecked: list[IntegrityFinding] = []
    for name in list_proof_files(folder):
        try:
            block = Multihash.parse(name)
            proof = read_proof(folder, block) if str(block) == name else None
            if proof is None:
                raise BadData(f"{PROOFS_FOLDER}/{name} is not named after a block")
            if owner is None:
                unchecked.append(_proof_finding("proof-unknown", name, "the owner of the dataset is unknown"))
                continue
            verify_proof(proof, owner, block)
        except (BadData, InvalidIdentity) as error:
            invalid.append(_proof_finding("proof-wrong", name, error.message))
            continue
        if block in numbers:
            valid.append((numbers[block], proof.actor))
        else:
            message = "a proof is for a block that is not in the chain"
            unchecked.append(_proof_finding("proof-elsewhere", name, message))
    newest, actor = max(valid, default=(None, ""))
    return ProofCheck(len(valid), newest, actor, invalid, unchecked)


def _proof_finding(kind: str, block: str, message: str) -> IntegrityFinding:
    return IntegrityFinding(kind, block[:100], message)


_THREADS: Final = os.cpu_count() or 1
_AHEAD: Final = 4 * _THREADS
"""Number of tasks that are submitted ahead of the oldest one that runs."""
_Result = TypeVar("_Result")


class Done(NamedTuple, Generic[_Result]):
    """A result that needs no thread. It is cheaper than a Future that is done."""

    value: _Result

    def done(self) -> bool:
        return True

    def result(self) -> _Result:
        return self.value


Task = Callable[[], _Result] | Done[_Result]


def run_in_order(tasks: Iterable[Task[_Result]]) -> Generator[_Result, None, None]:
    """Run tasks in threads, and yield their results in the order of the tasks.

    An exception of a task, or of ``tasks``, waits for the tasks that run. These must end on cancellation.
    """
    waiting: deque[Future[_Result] | Done[_Result]] = deque()
    threads = ThreadPoolExecutor(_THREADS, "verify")
    try:
        for task in tasks:
            waiting.append(task if isinstance(task, Done) else threads.submit(task))
            while waiting and (len(waiting) > _AHEAD or waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


# Rules that cannot be checked after a lost block until the next data block,
_CARRIED: Final = frozenset(
    {"watermark", "prev-offset", "prev-checkpoint", "data-changes-something", "transform-intervals"}
)

# and rules that cannot be checked at all then: the lost block may have been the setting that they use.
_FROM_SETTINGS: Final = frozenset(
    {
        "schema-before-data",
        "schema-new",
        "schema-evolution",
        "vocabulary-fixed",
        "transform-inputs",
        "push-source-new",
        "source-there",
    }
)


class VerifiedTransaction(NamedTuple):
    """A transaction to replay: its block, and the state of the chain before it."""

    block_hash: Multihash
    state: ChainState
    block: MetadataBlock


class BlockResult(NamedTuple):
    """The result of checking one block, its slice and its checkpoint.

    Attributes:
        findings: problems, in the order of the checks.
        blocks, slices: number of blocks and slices that were checked: 0 or 1.
        rows_known: number of slices whose rows were verified before: 0 or 1.
        transaction: to replay, or None if the block has none.
        doubts: why the transaction of the block cannot be replayed, and that its slice is an equivalent.
        only_appends: the block, if its slice is known to have no retractions.
    """

    findings: Sequence[IntegrityFinding] = ()
    blocks: int = 0
    slices: int = 0
    rows_known: int = 0
    transaction: VerifiedTransaction | None = None
    doubts: Sequence[IntegrityFinding] = ()
    only_appends: frozenset[str] = frozenset()


def verify(
    dataset: Dataset,
    reporter: Reporter,
    first: int | None = None,
    last: int | None = None,
    replay: Replay | None = None,
    known: VerifiedSlices | None = None,
) -> IntegrityReport:
    """Verify a dataset, or its blocks ``first`` to ``last``.

    Args:
        dataset: the dataset to verify.
        reporter: receives amounts and findings, and cancels the verification.
        first, last: sequence numbers, both included, or None for the first and the last block.
        replay: replays the transactions of a derivative dataset; None to skip them.
        known: slices whose rows were verified before; None to check the rows of all slices.

    Raises:
        UsageError: the range is empty.
        Cancelled: the verification was cancelled.
    """
    if first is not None and last is not None and first > last:
        raise UsageError(f"the range {first}..{last} is empty", hint="specify the older block first")
    reporter.phase("chain")
    files = BlockFiles(dataset)
    chain = files.walk(reporter)
    findings: list[IntegrityFinding] = []
    unchecked: list[IntegrityFinding] = []
    if chain.head_problem is not None:
        findings += _log_findings([_finding("head", chain.head_problem)], reporter)

    reporter.phase("verify")
    blocks = slices = rows_known = 0
    transactions: list[VerifiedTransaction] = []
    only_appends: set[str] = set()
    check = _ChainCheck(dataset, files, reporter, known, replays=replay is not None)
    with closing(run_in_order(check.tasks(chain, first or 0, last))) as results:
        for result in results:
            findings += _log_findings(result.findings, reporter)
            blocks, slices = blocks + result.blocks, slices + result.slices
            rows_known += result.rows_known
            only_appends |= result.only_appends
            unchecked += _log_unchecked(list(result.doubts), unchecked, reporter)
            if result.transaction is not None:
                transactions.append(result.transaction)
    check.progress.report()
    numbers = {str(block_hash): number for number, block_hash in enumerate(chain.hashes, chain.first_number)}
    if not check.is_incomplete:
        damaged = {finding.block for finding in findings if finding.kind in DAMAGED_SLICE}
        for block, problem in check_retractions(
            dataset, check.slices, damaged, only_appends, known, reporter
        ):
            findings += _log_findings([_finding(block, problem)], reporter)
    findings.sort(key=lambda finding: numbers.get(finding.block, -1))

    replayed: list[tuple[Multihash, ReplayResult]] = []
    engines: list[EngineReport] = []
    if replay is not None and transactions:
        reporter.phase("replay")
        with closing(_replay(replay, transactions, reporter)) as replays:
            for transaction, result in zip(transactions, replays, strict=True):
                block = str(transaction.block_hash)
                findings += _log_findings([_finding(block, problem) for problem in result.problems], reporter)
                replayed.append((transaction.block_hash, result))
                engines = _add_engine_use(engines, result.engine, reporter)
        unchecked += [_finding(str(block), doubt) for block, result in replayed for doubt in result.doubts]
        skipped = [_finding(str(block), result.skipped) for block, result in replayed if result.skipped]
        unchecked += _log_unchecked(skipped, unchecked, reporter)

    proofs = check_proofs(
        dataset.folder, check.owner, {block_hash: numbers[str(block_hash)] for block_hash in chain.hashes}
    )
    findings += _log_findings(proofs.invalid, reporter)
    unchecked += proofs.unchecked
    if first is None and last is None:
        findings += _log_findings(check_compactions(dataset, known, reporter), reporter)
    last_number = chain.first_number + len(chain.hashes) - 1
    return IntegrityReport(
        valid=not findings,
        intact=all(finding.kind in INVALID_CHANGELOG | UNCONFIRMED for finding in findings),
        blocks=blocks,
        slices=slices,
        transforms=sum(result.skipped is None and not result.is_known for _, result in replayed),
        transforms_known=sum(result.is_known for _, result in replayed),
        rows_known=rows_known,
        findings=findings,
        unchecked=unchecked,
        engines=engines,
        proofs=proofs.valid,
        proven=proofs.newest,
        actor=proofs.actor,
        newer=0 if proofs.newest is None else last_number - proofs.newest,
    )


def check_compactions(
    dataset: Dataset, known: VerifiedSlices | None, reporter: Reporter
) -> list[IntegrityFinding]:
    """Check the records of the compactions that led to the current chain.

    Args:
        dataset: the dataset.
        known: records that were verified before, like slices.
        reporter: receives the phase; checked for cancellation.
    """
    findings: list[IntegrityFinding] = []
    names = dataset.compactions.names()
    if names:
        reporter.phase("compactions")
    for name in names:
        try:
            record = dataset.compactions.read(name)
            if not reaches_chain(dataset, record.header.new_head):
                continue  # not committed, or of a chain before a reset or of another branch
            path = dataset.compactions.folder / name
            key = bytes(hash_file(path, SHA3_256, lambda _: reporter.raise_if_cancelled()))
            if known is not None and known.is_verified(key):
                continue
            slices = [OffsetFile(row.start, row.end, dataset.slice_path(row)) for row in dataset.slices()]
            check_record(record, lambda block: dataset.block(block).block, slices, reporter)
            if known is not None:
                known.mark_verified(key)
        except Cancelled:
            raise
        except (OdfError, OSError) as error:
            message = error.message if isinstance(error, OdfError) else str(error.strerror)
            findings.append(IntegrityFinding("compaction-record", name[:100], message))
    return findings


def _finding(block: str, problem: Problem) -> IntegrityFinding:
    kind, message = problem
    return IntegrityFinding(kind, block, message)


def _log_findings(findings: Sequence[IntegrityFinding], reporter: Reporter) -> Sequence[IntegrityFinding]:
    """Log findings as errors, and return them."""
    for finding in findings:
        reporter.log(
            f"{finding.kind}: block {finding.block.removeprefix('f1620')[:8]}: {finding.message}", "error"
        )
    return findings


def _log_unchecked(
    skipped: list[IntegrityFinding], before: list[IntegrityFinding], reporter: Reporter
) -> list[IntegrityFinding]:
    """Log why transactions were not replayed, each message once, and return them."""
    logged = {finding.message for finding in before}
    for kind, message in dict.fromkeys((problem.kind, problem.message) for problem in skipped):
        if message not in logged:
            reporter.log(f"{kind if kind == EQUIVALENT else 'not replayed'}: {message}", "warning")
    return skipped


def _add_engine_use(
    uses: list[EngineReport], use: EngineReport | None, reporter: Reporter
) -> list[EngineReport]:
    """Return the uses with another one added to the use of the same engine and version."""
    if use is None:
        return uses
    same = next((at for at, other in enumerate(uses) if _engine_key(other) == _engine_key(use)), None)
    if same is None:
        if None not in (use.made_by, use.version) and use.made_by != use.version:
            reporter.log(f"created by {use.engine} {use.made_by}, replayed by {use.version}", "warning")
        return [*uses, use]
    before = uses[same]
    total = replace(
        before, transactions=before.transactions + use.transactions, records=before.records + use.records
    )
    return [*uses[:same], total, *uses[same + 1 :]]


def _engine_key(use: EngineReport) -> tuple[str, str | None]:
    return use.engine, use.made_by


def _replay(
    replay: Replay, transactions: list[VerifiedTransaction], reporter: Reporter
) -> Generator[ReplayResult, None, None]:
    """Replay transactions, stateless ones in threads, and yield their results in order."""

    def tasks() -> Iterator[Task[ReplayResult]]:
        for at, transaction in enumerate(transactions):
            reporter.raise_if_cancelled()
            task = partial(_replay_one, replay, transaction, at, len(transactions), reporter)
            stateless = replay.is_stateless(transaction.state, _transform(transaction))
            yield task if stateless else Done(task())

    with replay.running():
        yield from run_in_order(tasks())


def _replay_one(
    replay: Replay, transaction: VerifiedTransaction, at: int, total: int, reporter: Reporter
) -> ReplayResult:
    """Replay transaction number ``at`` of ``total``."""
    block, event = transaction.block, _transform(transaction)
    records = record_count(event.new_data)
    reporter.set_amounts(files=at + 1, total_files=total)
    reporter.log(
        f"transaction {at + 1} of {total}: block {block.sequence_number}, "
        f"{records:,} row{'' if records == 1 else 's'}",
        "debug",
    )
    return replay.check(transaction.state, transaction.block_hash, block)


def _transform(transaction: VerifiedTransaction) -> ExecuteTransform:
    event = transaction.block.event
    assert isinstance(event, ExecuteTransform)
    return event


def _equivalence(block: Multihash, is_equivalent: bool) -> Iterator[IntegrityFinding]:
    if is_equivalent:
        message = "the file has other bytes than the committed slice, and the same rows (logical hash)"
        yield _finding(str(block), (EQUIVALENT, message))


class _LostBlock(Exception):
    """A block that is missing, or cannot be read: kind and message of the finding."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.problem: Problem = (kind, message)


class _ChainCheck:
    """Checks the blocks of a chain in order, each against the state of the earlier ones.

    Args:
        dataset: the dataset to verify.
        files: its blocks.
        reporter: receives amounts and messages.
        known: slices whose rows were verified before.
        replays: the transactions are replayed later.

    Attributes:
        slices: all slices so far, also those before the verified range.
        is_incomplete: whether blocks are lost.
    """

    def __init__(
        self,
        dataset: Dataset,
        files: BlockFiles,
        reporter: Reporter,
        known: VerifiedSlices | None,
        *,
        replays: bool,
    ) -> None:
        self._dataset = dataset
        self._blocks = files
        self._reporter = reporter
        self._replays = replays
        self.progress = VerifyProgress(reporter)
        self._files = FileChecks(dataset, known, self.progress)
        self.slices: list[ChainSlice] = []
        self.is_incomplete = False
        self._state: ChainState | None = None
        self._lost_settings = self._lost_data = False

    @property
    def owner(self) -> DatasetId | None:
        """The dataset id in the first block, else in the name of the folder, or None if both are lost."""
        return self._id_of_folder() if self._state is None else self._state.dataset_id

    def tasks(self, chain: WalkedChain, first: int, last: int | None) -> Iterator[Task[BlockResult]]:
        """Yield a task for each block of the chain up to ``last``.

        A block before ``first`` only adds to the state.
        """
        self.progress.total_blocks = len(chain.hashes)
        if not chain.complete:
            self.is_incomplete = True
            self._lost_settings = self._lost_data = True
            oldest = str(chain.hashes[0]) if chain.hashes else "head"
            problem = "chain-incomplete", "the blocks before this one cannot be found"
            yield Done(BlockResult([_finding(oldest, problem)]))
        for number, block_hash in enumerate(chain.hashes, chain.first_number):
            if last is not None and number > last:
                break
            self._reporter.raise_if_cancelled()
            yield self._task(block_hash, number, is_checked=first <= number)
            self.progress.block()

    def _task(self, block_hash: Multihash, number: int, *, is_checked: bool) -> Task[BlockResult]:
        """Check a block, and return the task that checks its slice."""
        try:
            decoded = self._read(block_hash)
        except _LostBlock as lost:
            self._skip(block_hash, number)
            self.is_incomplete = True
            findings = [_finding(str(block_hash), lost.problem)]
            return Done(BlockResult(findings, blocks=1) if is_checked else BlockResult())
        task: Task[BlockResult] = Done(BlockResult())
        if is_checked:
            for part in decoded.unknown:
                self._reporter.log(f"block {number}: {part} is from a newer specification", "warning")
            task = self._check(block_hash, decoded.block)
        data = getattr(decoded.block.event, "new_data", None)
        if data is not None:
            vocabulary = self._state.vocabulary if self._state else DEFAULT_VOCABULARY
            self.slices.append(ChainSlice(str(block_hash), data, vocabulary, is_checked))
        self._follow(block_hash, decoded.block)
        return task

    def _check(self, block_hash: Multihash, block: MetadataBlock) -> Task[BlockResult]:
        event, state = block.event, self._state
        result = BlockResult(
            [_finding(str(block_hash), problem) for problem in self._rule_problems(block)], 1
        )
        if not isinstance(event, AddData | ExecuteTransform):
            return Done(result)
        if self._replays and isinstance(event, ExecuteTransform):
            if state is None or self._lost_settings or self._lost_data:
                lost = "before-lost", "blocks before it are lost or damaged"
                result = result._replace(doubts=[_finding(str(block_hash), lost)])
            else:
                result = result._replace(transaction=VerifiedTransaction(block_hash, state, block))
        checkpoint = event.new_checkpoint
        of_checkpoint = [] if checkpoint is None else self._files.checkpoint_problems(checkpoint)
        if event.new_data is None:
            findings = [_finding(str(block_hash), problem) for problem in of_checkpoint]
            return Done(result._replace(findings=[*result.findings, *findings]))
        return partial(self._check_slice, block_hash, self._expected_slice(block), of_checkpoint, result)

    def _check_slice(
        self,
        block_hash: Multihash,
        expected: ExpectedSlice,
        of_checkpoint: list[Problem],
        result: BlockResult,
    ) -> BlockResult:
        """Add the findings about a slice and a checkpoint to the result of their block."""
        check = self._files.check_slice(expected)
        findings = [_finding(str(block_hash), problem) for problem in (*check.problems, *of_checkpoint)]
        return result._replace(
            findings=[*result.findings, *findings],
            doubts=[*result.doubts, *_equivalence(block_hash, check.is_equivalent)],
            slices=1,
            rows_known=int(check.rows_known),
            only_appends=frozenset({str(block_hash)} if check.only_appends else ()),
        )

    def _read(self, block_hash: Multihash) -> DecodedBlock:
        """Read a block.

        Raises:
            _LostBlock: it is missing or damaged.
        """
        if problem := check_store(self._dataset, "blocks", block_hash):
            kind = "block-hash" if problem[0] == "block-physical-hash" else problem[0]
            raise _LostBlock(kind, problem[1])
        try:
            data = self._blocks.read(block_hash)
            self.progress.bytes(len(data))
            actual = hash_bytes(data, block_hash.code)
            if actual != block_hash:
                # Other bytes are not decoded: their content cannot be trusted.
                raise _LostBlock("block-hash", f"the block has a different hash: {actual}")
            return decode_block(data)
        except NotFound:
            raise _LostBlock("block-missing", "the block is missing") from None
        except MalformedBlock as error:
            raise _LostBlock("block-malformed", f"the block cannot be read: {error}") from None

    def _skip(self, block_hash: Multihash, number: int) -> None:
        """Continue after a lost block."""
        self._lost_settings = self._lost_data = True
        if self._state is not None:
            self._state = replace(self._state, head=block_hash, sequence_number=number)

    def _follow(self, block_hash: Multihash, block: MetadataBlock) -> None:
        """Add a block to the state."""
        if isinstance(block.event, AddData | ExecuteTransform):
            self._lost_data = False
        try:
            self._state = apply_block(self._state, block, block_hash)
        except ChainRuleViolated:  # No Seed, or invalid numbers: a rule has reported it.
            if self._state is not None:
                self._skip(block_hash, block.sequence_number)

    def _rule_problems(self, block: MetadataBlock) -> Iterator[Problem]:
        """Yield the append rules that a block violates; their names are the kinds."""
        if isinstance(block.event, Seed):
            expected = self._id_of_folder()
            if expected is not None and expected != block.event.dataset_id:
                yield ("identity", f"the chain belongs to {block.event.dataset_id}, the folder to {expected}")
        if self._state is None and self._lost_settings:
            return  # The first block is lost, and this is not the first block.
        try:
            for violation in append_rules.find_violations(self._state, block):
                lost = violation.rule in _CARRIED and self._lost_data
                if not lost and not (violation.rule in _FROM_SETTINGS and self._lost_settings):
                    yield violation.rule, violation.message
        except OdfError:
            return  # A rule failed on a value that another rule has reported.

    def _id_of_folder(self) -> DatasetId | None:
        """Return the dataset id in the name of the folder, or None for a folder with another name."""
        try:
            return DatasetId.parse(DID_PREFIX + self._dataset.folder.name)
        except InvalidIdentity:
            return None

    def _expected_slice(self, block: MetadataBlock) -> ExpectedSlice:
        event, state = block.event, self._state
        assert isinstance(event, AddData | ExecuteTransform)
        assert event.new_data is not None
        data = event.new_data
        self._reporter.log(
            f"block {block.sequence_number}: {kind_of(event)}, offsets {data.offset_interval.start} to "
            f"{data.offset_interval.end}, slice {data.physical_hash.abbreviated}",
            "debug",
        )
        return ExpectedSlice(
            data=data,
            vocabulary=state.vocabulary if state else DEFAULT_VOCABULARY,
            schema=self._schema(),
            earliest=state.last_data_time if state else None,
            latest=block.system_time,
            links=tuple(self._link_columns(event)),
            linked=read_totals(event) if has_totals(event) else None,
            is_derived=isinstance(event, ExecuteTransform),
        )

    def _link_columns(self, event: AddData | ExecuteTransform) -> list[str]:
        """Return the columns with links, or [] if the schema is lost. Only root datasets have objects."""
        if self._state is None or self._lost_settings or not isinstance(event, AddData):
            return []
        return find_link_columns(self._state.odf_schema)

    def _schema(self) -> pa.Schema | None:
        """Return the schema of the dataset, or None if it is lost or invalid."""
        if self._state is None or self._lost_settings:
            return None
        try:
            return read_declaration(self._state)
        except InvalidSchema:
            return None  # The rule about SetDataSchema has reported it.
