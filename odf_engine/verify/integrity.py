"""Verifies a dataset: blocks, append rules, slices, checkpoints, ownership proofs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.chain import append_rules
from odf_engine.chain.block_search import BlockFiles, WalkedChain
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState, apply_block, record_count
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.errors import (
    BadData,
    ChainRuleViolated,
    InvalidIdentity,
    InvalidSchema,
    MalformedBlock,
    NotFound,
    OdfError,
    UsageError,
)
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.multiformats import Multihash, hash_bytes
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
from odf_engine.progress import Reporter
from odf_engine.verify.report import Finding, Report
from odf_engine.verify.slice_check import ExpectedSlice, FileChecks, Problem, VerifiedSlices, VerifyProgress

if TYPE_CHECKING:
    from odf_engine.verify.replay import NotReplayable, Replay


class ProofCheck(NamedTuple):
    """What was found of the proofs of a dataset.

    Attributes:
        right: how many are right.
        newest: the number of the newest block that has a right one.
        wrong: those that are not.
        elsewhere: those that say nothing of this chain.
    """

    right: int
    newest: int | None
    wrong: list[Finding]
    elsewhere: list[Finding]


def check_proofs(folder: Path, owner: DatasetId | None, numbers: Mapping[Multihash, int]) -> ProofCheck:
    """Checks all proofs of a dataset.

    Args:
        folder: the dataset's.
        owner: its id, as the first block says; None where that is lost.
        numbers: the blocks of the chain.
    """
    right: list[int] = []
    wrong: list[Finding] = []
    elsewhere: list[Finding] = []
    for name in list_proof_files(folder):
        try:
            block = Multihash.parse(name)
            proof = read_proof(folder, block) if str(block) == name else None
            if proof is None:
                raise BadData(f"{PROOFS_FOLDER}/{name} is not named after a block")
            if owner is None:
                elsewhere.append(_finding("proof-unknown", name, "whose dataset this is, is lost"))
                continue
            verify_proof(proof, owner, block)
        except (BadData, InvalidIdentity) as error:
            wrong.append(_finding("proof-wrong", name, error.message))
            continue
        if block in numbers:
            right.append(numbers[block])
        else:
            message = "a proof is for a block that is not in the chain"
            elsewhere.append(_finding("proof-elsewhere", name, message))
    return ProofCheck(len(right), max(right, default=None), wrong, elsewhere)


def _finding(kind: str, block: str, message: str) -> Finding:
    return Finding(kind, block[:100], message)


_THREADS: Final = os.cpu_count() or 1
_AHEAD: Final = 4 * _THREADS  # so that no thread waits for the one with the oldest check
Check = Callable[[], Iterable[Problem]]


class ParallelChecks:
    """Checks of blocks, which run within a ``with`` block; its end waits for them.

    After an exception they should end by themselves: they heed a cancellation.

    Args:
        found: is told each problem with its block, by the thread that calls, in the order of the calls.
    """

    def __init__(self, found: Callable[[str, Problem], None]) -> None:
        self._found = found
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[str, Future[list[Problem]]]] = deque()

    def submit(self, block: str, check: Check) -> None:
        """Runs a check; waits first where too many are under way."""
        assert self._threads is not None  # within `with`
        self._waiting.append((block, self._threads.submit(lambda: list(check()))))
        self._tell(at_most=_AHEAD)

    def add_result(self, block: str, problem: Problem) -> None:
        """Something that was found already."""
        known: Future[list[Problem]] = Future()
        known.set_result([problem])
        self._waiting.append((block, known))
        self._tell(at_most=_AHEAD)

    def _tell(self, at_most: int) -> None:
        """Tells what is known up to the first check that is under way; waits for what is too many."""
        while self._waiting and (len(self._waiting) > at_most or self._waiting[0][1].done()):
            block, future = self._waiting.popleft()
            for problem in future.result():
                self._found(block, problem)

    def __enter__(self) -> Self:
        self._threads = ThreadPoolExecutor(_THREADS, "verify")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._threads is not None
        try:
            if error is None:
                self._tell(at_most=0)
        finally:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None


# Behind a lost block these cannot be judged: until the next data block …
_CARRIED: Final = frozenset(
    {
        "watermark",
        "prev-offset",
        "prev-checkpoint",
        "data-changes-something",
        "transform-intervals",
    }
)

# … and for good, because the lost block may have been the setting that they look at.
_FROM_SETTINGS: Final = frozenset(
    {
        "schema-before-data",
        "schema-new",
        "schema-evolution",
        "vocabulary-fixed",
        "transform-inputs",
        "polling-or-push",
        "push-source-new",
        "source-there",
    }
)


def verify(
    dataset: Dataset,
    reporter: Reporter,
    first: int | None = None,
    last: int | None = None,
    replay: Replay | None = None,
    known: VerifiedSlices | None = None,
) -> Report:
    """Checks a dataset, or its blocks ``first`` to ``last`` by sequence number, both included.

    Args:
        dataset: what is checked.
        reporter: hears of amounts and findings, and is asked whether to stop.
        first, last: None for the first and the last block.
        replay: runs the transactions of a derivative dataset again, to compare them.
        known: slices whose rows were found right before; None checks all of them.

    Raises:
        UsageError: the range is empty.
        Cancelled: somebody asked to stop.
    """
    if first is not None and last is not None and first > last:
        raise UsageError(
            f"the range {first}..{last} is empty", hint="it goes from the older block to the newer"
        )
    return _Integrity(dataset, reporter, first or 0, last, replay, known).run()


class _Lost(Exception):
    """A block that says nothing."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


class _Integrity:
    def __init__(
        self,
        dataset: Dataset,
        reporter: Reporter,
        first: int,
        last: int | None,
        replay: Replay | None,
        known: VerifiedSlices | None,
    ) -> None:
        self._dataset = dataset
        self._replay = replay
        self._transactions: list[tuple[Multihash, ChainState, MetadataBlock]] = []
        self._reporter = reporter
        self._first, self._last = first, last
        self._blocks = BlockFiles(dataset)
        self._progress = VerifyProgress(reporter)
        self._files = FileChecks(dataset, known, self._progress)
        self._beside = ParallelChecks(self._add)
        self._findings: list[Finding] = []
        self._unchecked: list[Finding] = []
        self._checked = self._slices = 0
        self._state: ChainState | None = None
        self._lost_settings = self._lost_data = False

    def run(self) -> Report:
        self._reporter.phase("chain")
        found = self._blocks.walk(self._reporter)
        if found.head_problem is not None:
            self._find("head", *found.head_problem)
        self._reporter.phase("verify")
        self._progress.total_blocks = len(found.hashes)
        if not found.complete:
            self._lost_settings = self._lost_data = True
            oldest = str(found.hashes[0]) if found.hashes else "head"
            self._find(oldest, "chain-incomplete", "what came before this block cannot be found")
        with self._beside:
            for number, block_hash in enumerate(found.hashes, found.first_number):
                if self._last is not None and number > self._last:
                    break
                self._block(block_hash, number)
                self._progress.block()
        self._progress.report()
        transforms = self._replay_transactions()
        proofs = self._proofs(found)
        return Report(
            valid=not self._findings,
            blocks=self._checked,
            slices=self._slices,
            transforms=transforms,
            rows_known=self._files.rows_known,
            findings=self._findings,
            unchecked=self._unchecked,
            engines=[] if self._replay is None else self._replay.engines,
            proofs=proofs.right,
            proven=proofs.newest,
            newer=0 if proofs.newest is None else found.first_number + len(found.hashes) - 1 - proofs.newest,
        )

    def _proofs(self, found: WalkedChain) -> ProofCheck:
        """Checks the proofs of ownership, also those of blocks outside of the range."""
        owner = self._named() if self._state is None else self._state.dataset_id
        numbers = {block_hash: number for number, block_hash in enumerate(found.hashes, found.first_number)}
        proofs = check_proofs(self._dataset.folder, owner, numbers)
        for finding in proofs.wrong:
            self._find(finding.block, finding.kind, finding.message)
        self._unchecked += proofs.elsewhere
        return proofs

    def _replay_transactions(self) -> int:
        """Runs them again, those that keep no state beside each other; how many of them."""
        replay = self._replay
        if replay is None or not self._transactions:
            return 0
        self._reporter.phase("replay")
        left: dict[int, NotReplayable] = {}
        with replay.running(), self._beside:
            for at, (block_hash, state, block) in enumerate(self._transactions):
                self._reporter.raise_if_cancelled()
                assert isinstance(block.event, ExecuteTransform)
                check = partial(self._replay_one, replay, at, left)
                if replay.is_stateless(state, block.event):
                    self._beside.submit(str(block_hash), check)
                    continue
                self._found(block_hash, check())
                while replay.doubts:
                    kind, message = replay.doubts.pop()
                    self._unchecked.append(Finding(kind, str(block_hash), message))
        for at, reason in sorted(left.items()):
            self._leave(self._transactions[at][0], reason.kind, reason.message)
        return len(self._transactions) - len(left)

    def _replay_one(self, replay: Replay, at: int, left: dict[int, NotReplayable]) -> list[Problem]:
        """What is wrong with transaction number ``at``; why it was not run goes to ``left``."""
        from odf_engine.verify.replay import NotReplayable

        _, state, block = self._transactions[at]
        assert isinstance(block.event, ExecuteTransform)
        total, records = len(self._transactions), record_count(block.event.new_data)
        self._reporter.set_amounts(files=at + 1, total_files=total)
        self._reporter.log(
            f"transaction {at + 1} of {total}: block {block.sequence_number}, {records:,} records", "debug"
        )
        try:
            return list(replay.problems(state, block.event, block.system_time))
        except NotReplayable as reason:
            left[at] = reason
            return []

    def _leave(self, block_hash: Multihash, kind: str, message: str) -> None:
        """Notes that a transaction is not run again; the reason is logged once for all of them."""
        if message not in (each.message for each in self._unchecked):
            self._reporter.log(f"not run again: {message}", "warning")
        self._unchecked.append(Finding(kind, str(block_hash), message))

    def _find(self, block: str, kind: str, message: str) -> None:
        self._beside.add_result(block, (kind, message))

    def _add(self, block: str, problem: Problem) -> None:
        kind, message = problem
        self._findings.append(Finding(kind, block, message))
        self._reporter.log(f"{kind}: block {block[-8:]}: {message}", "error")

    def _found(self, block_hash: Multihash, problems: Iterable[Problem]) -> None:
        for kind, message in problems:
            self._find(str(block_hash), kind, message)

    # --- Blocks -------------------------------------------------------------------------------

    def _block(self, block_hash: Multihash, number: int) -> None:
        self._reporter.raise_if_cancelled()
        inside = self._first <= number
        self._checked += inside
        try:
            decoded = self._read(block_hash)
        except _Lost as lost:
            if inside:
                self._find(str(block_hash), lost.kind, lost.message)
            self._skip(block_hash, number)
            return
        if inside:
            for part in decoded.unknown:
                self._reporter.log(f"block {number}: {part} is of a newer specification", "warning")
            self._rules(block_hash, decoded.block)
            self._objects(block_hash, decoded.block)
            if self._replay is not None and isinstance(decoded.block.event, ExecuteTransform):
                self._transaction(block_hash, decoded.block)
        self._follow(block_hash, decoded.block)

    def _transaction(self, block_hash: Multihash, block: MetadataBlock) -> None:
        if self._state is None or self._lost_settings or self._lost_data:
            self._leave(block_hash, "before-lost", "blocks before it are lost or damaged")
        else:
            self._transactions.append((block_hash, self._state, block))

    def _read(self, block_hash: Multihash) -> DecodedBlock:
        try:
            data = self._blocks.read(block_hash)
            self._progress.bytes(len(data))
            actual = hash_bytes(data, block_hash.code)
            if actual != block_hash:
                # Nothing that these bytes say is to be relied on.
                raise _Lost("block-hash", f"the block has other bytes: their hash is {actual}")
            return decode_block(data)
        except NotFound:
            raise _Lost("block-missing", "the block is not here") from None
        except MalformedBlock as error:
            raise _Lost("block-malformed", f"the block cannot be read: {error}") from None

    def _skip(self, block_hash: Multihash, number: int) -> None:
        """Goes on behind a block that says nothing."""
        self._lost_settings = self._lost_data = True
        if self._state is not None:
            self._state = replace(self._state, head=block_hash, sequence_number=number)

    def _follow(self, block_hash: Multihash, block: MetadataBlock) -> None:
        if isinstance(block.event, AddData | ExecuteTransform):
            self._lost_data = False
        try:
            self._state = apply_block(self._state, block, block_hash)
        except ChainRuleViolated:  # no Seed, or numbers that cannot be stored: there is a finding already
            if self._state is not None:
                self._skip(block_hash, block.sequence_number)

    def _rules(self, block_hash: Multihash, block: MetadataBlock) -> None:
        if isinstance(block.event, Seed):
            self._identity(block_hash, block.event)
        if self._state is None and self._lost_settings:
            return  # not the first block: that one is lost
        try:
            for violation in append_rules.find_violations(self._state, block):
                lost = violation.rule in _CARRIED and self._lost_data
                if not lost and not (violation.rule in _FROM_SETTINGS and self._lost_settings):
                    self._find(str(block_hash), violation.rule, violation.message)
        except OdfError:
            return  # a rule that stumbles over what another rule has found

    def _identity(self, block_hash: Multihash, seed: Seed) -> None:
        named = self._named()
        if named is not None and named != seed.dataset_id:
            self._find(
                str(block_hash),
                "identity",
                f"the chain is that of {seed.dataset_id}, in the folder of {named}",
            )

    def _named(self) -> DatasetId | None:
        """The id that the folder is named after, if it is one."""
        try:
            return DatasetId.parse(DID_PREFIX + self._dataset.folder.name)
        except InvalidIdentity:
            return None  # a folder by another name, such as one that was copied here to be looked at

    # --- Slices and checkpoints ---------------------------------------------------------------

    def _objects(self, block_hash: Multihash, block: MetadataBlock) -> None:
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform):
            return
        data, state = event.new_data, self._state
        if data is not None:
            self._slices += 1
            self._reporter.log(
                f"block {block.sequence_number}: {kind_of(event)}, offsets {data.offset_interval.start} to "
                f"{data.offset_interval.end}, slice {data.physical_hash.abbreviated}",
                "debug",
            )
            expected = ExpectedSlice(
                data=data,
                vocabulary=state.vocabulary if state else DEFAULT_VOCABULARY,
                schema=self._schema(),
                earliest=state.last_data_time if state else None,
                latest=block.system_time,
            )
            self._beside.submit(str(block_hash), lambda: self._files.slice_problems(expected))
        checkpoint = event.new_checkpoint
        if checkpoint is not None:
            self._found(block_hash, self._files.checkpoint_problems(checkpoint))

    def _schema(self) -> pa.Schema | None:
        if self._state is None or self._state.schema is None or self._lost_settings:
            return None
        try:
            return decode_schema(self._state.schema)
        except InvalidSchema:
            return None  # the rule about SetDataSchema has found it
