"""Taking a chain over from a remote, with all that its blocks speak of, into a dataset with a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from odf_engine.chain.adopting import Adoption
from odf_engine.chain.chain import Dataset
from odf_engine.errors import BadData, Cancelled, ChainRuleViolated, Conflict, NotFound, OdfError
from odf_engine.identity import proof as proofs
from odf_engine.identity.multiformats import Multihash
from odf_engine.progress import Reporter
from odf_engine.sync.compare import SOURCE_HINT, Diverged, Relation, Walked, checked, standing, walk
from odf_engine.sync.intake import Intake
from odf_engine.sync.remote import MOST_PROOF_BYTES, ObjectFile, RemoteDataset
from odf_engine.sync.trail import StoredFirst, Trail


class Taken(NamedTuple):
    """How much came: ``bytes`` are those of slices and checkpoints that were fetched."""

    blocks: int
    records: int
    bytes: int


def take(
    dataset: Dataset,
    remote: RemoteDataset,
    theirs: Multihash,
    reporter: Reporter,
    *,
    parallel: int,
    force: bool = False,
    first: Callable[[], None] = lambda: None,
    look: Callable[[Walked], None] = lambda walked: None,
) -> Taken:
    """Makes ``theirs`` the head of the dataset, or changes nothing.

    Args:
        dataset: where it goes; its folder has to be there, and may be empty.
        remote: where it comes from.
        theirs: the head there, which is not the one here.
        reporter: hears how far it is.
        parallel: how many objects travel at the same time.
        force: leaves blocks that only the dataset here has, and keeps its head as a reference.
        first: is called just before the head moves.
        look: is shown every new block as soon as it is known, in no certain order, and may raise.

    Raises:
        Diverged: the dataset has blocks of its own, and ``force`` is not given.
        Conflict: it is another dataset; or somebody committed meanwhile.
        OdfError: as :func:`odf_engine.sync.pull.pull_into` says.
    """
    with Adoption(dataset) as adoption:
        taking = _Taking(adoption, remote, theirs, reporter, look)
        try:
            taking.compare(parallel, force)
        except Conflict:
            adoption.discard()  # nobody is going on with it
            raise
        keep = f"before-pull-{taking.ours.short}" if taking.ours is not None and taking.leaves else None
        reporter.phase("commit")
        reporter.check()
        adoption.commit(taking.ours, keep=keep, first=first)
        return Taken(adoption.blocks, adoption.records, taking.bytes)


def restore(
    dataset: Dataset,
    remote: RemoteDataset,
    theirs: Multihash,
    reporter: Reporter,
    *,
    parallel: int,
    look: Callable[[Walked], None] = lambda walked: None,
) -> Taken:
    """Fetches the objects up to ``theirs`` that are damaged or missing here; the head does not move.

    Blocks are checked by their hashes, slices and checkpoints by their sizes.

    Args:
        dataset: the dataset to restore.
        remote: another copy of it.
        theirs: the head of that copy.
        reporter: receives the progress.
        parallel: how many objects are fetched at the same time.
        look: is called with every block of the copy, and may raise.

    Returns:
        How many blocks, and how many bytes of slices and checkpoints, were fetched.

    Raises:
        OdfError: an object cannot be fetched or stored.
    """
    reporter.phase("fetch")
    with Adoption(dataset) as adoption:
        blocks: list[Multihash] = []
        with Intake(dataset.folder, adoption.arriving, remote, reporter, parallel) as intake:
            intake.start()
            for walked in walk(StoredFirst(remote, adoption), theirs, lambda block: False, reporter):
                look(walked)
                blocks.append(walked.hash)
                for file in files_of(walked):
                    intake.want(file)
            intake.finish()
        restored = adoption.restore(blocks)
        adoption.discard()
        return Taken(restored, 0, intake.bytes)


class _Taking:
    """One transfer; ``leaves`` says whether blocks of the dataset are no part of the chain afterwards."""

    def __init__(
        self,
        adoption: Adoption,
        remote: RemoteDataset,
        theirs: Multihash,
        reporter: Reporter,
        look: Callable[[Walked], None],
    ) -> None:
        self.adoption, self.remote, self.theirs = adoption, remote, theirs
        self.dataset = adoption.dataset
        self.ours = self.dataset.head()
        self.leaves = False
        self.bytes = 0
        self._reporter, self._look = reporter, look

    def compare(self, parallel: int, force: bool) -> None:
        """Finds the new blocks, and brings them and their objects here."""
        if self.ours is not None and self.dataset.holds(self.theirs):
            self._only_leave(force)
            return
        with self._intake(parallel) as intake:
            batch = self.remote.batch(self.ours, self.theirs)
            if batch is not None:
                self._of_batch(batch, self.ours, intake)
            elif self.ours is None:
                self._new(intake)
            else:
                self._after_walk(intake, self.ours, force)
            intake.finish()
            self.bytes = intake.bytes

    # --- Ways ---

    def _only_leave(self, force: bool) -> None:
        """The head there is an older block of the dataset here."""
        if not force:
            raise _diverged(Relation("ahead", 0, 0, self.theirs), self.remote.url)
        self.adoption.follow(self.theirs)
        self.leaves = True

    def _new(self, intake: Intake) -> None:
        """Nothing is here: objects are fetched while older blocks are still being read."""
        self._reporter.phase("fetch")

        def met(walked: Walked) -> None:
            for file in files_of(walked):
                intake.want(file)

        intake.start(1)  # more of them would be in the way of the blocks, which come one after the other
        trail = self._walk(lambda block: False, met)
        intake.start()
        self.adoption.follow(None)
        for walked in trail.oldest_first(self.adoption, self.remote.url):
            self._append(walked)

    def _after_walk(self, intake: Intake, ours: Multihash, force: bool) -> None:
        oldest: list[Walked] = []

        def met(walked: Walked) -> None:
            oldest[:] = [walked]
            count = walked.block.sequence_number
            self._reporter.amount(files=len(trail) + 1, total_files=len(trail) + 1 + max(0, count - newest))

        newest = self.dataset.state().sequence_number + 1
        trail = Trail()
        self._walk(self.dataset.holds, met, trail)
        relation = standing(self.dataset, oldest[0], len(trail), self.remote.url)
        self.leaves = relation.kind == "diverged"
        if self.leaves and not force:
            raise _diverged(relation, self.remote.url)
        common = relation.common
        batch = self.remote.batch(common, self.theirs) if self.leaves else None
        if batch is not None:  # so that the protocol knows which objects it is about
            self._of_batch(batch, common, intake)
            return
        self._reporter.phase("fetch")
        intake.start()
        self.adoption.follow(common)
        for walked in trail.oldest_first(self.adoption, self.remote.url):
            self._append(walked)
            for file in files_of(walked):
                intake.want(file)

    def _of_batch(
        self, batch: Iterator[tuple[Multihash, bytes]], after: Multihash | None, intake: Intake
    ) -> None:
        """Blocks that come in one go, oldest first; objects are fetched once all of them are known."""
        self._reporter.phase("fetch")
        self.adoption.follow(after)
        files: dict[ObjectFile, None] = {}
        last = after
        for block_hash, data in batch:
            self._reporter.check()
            walked = checked(block_hash, data, self.remote.url)
            if walked.block.prev_block_hash != last:
                problem = f"block {block_hash} does not follow the one that was sent before it"
                raise BadData(problem, where=self.remote.url, hint=SOURCE_HINT)
            self._look(walked)
            self.adoption.store(block_hash, data)
            self._append(walked)
            files.update(dict.fromkeys(file for file in files_of(walked) if intake.is_missing(file)))
            last = block_hash
        if last != self.theirs:
            problem = f"the blocks that were sent do not end in {self.theirs}, the head"
            raise BadData(problem, where=self.remote.url, hint=SOURCE_HINT)
        self.remote.prepare(list(files))
        intake.start()
        for file in files:
            intake.want(file)

    # --- Steps ---

    def _intake(self, parallel: int) -> Intake:
        folder, arriving = self.dataset.folder, self.adoption.arriving
        return Intake(folder, arriving, self.remote, self._reporter, parallel)

    def _walk(
        self,
        known: Callable[[Multihash], bool],
        met: Callable[[Walked], None],
        trail: Trail | None = None,
    ) -> Trail:
        trail = Trail() if trail is None else trail
        for walked in walk(StoredFirst(self.remote, self.adoption), self.theirs, known, self._reporter):
            self._look(walked)
            met(walked)
            trail.add(walked)
        return trail

    def _append(self, walked: Walked) -> None:
        self._reporter.check()
        try:
            self.adoption.append(walked.stored)
        except ChainRuleViolated as error:
            problem = f"the chain breaks a rule ({error.rule}): {error.message}"
            found = ChainRuleViolated(error.rule, problem, block=error.block, hint=SOURCE_HINT)
            found.where = f"{self.remote.url}, block {error.block}"
            raise found from error


def files_of(walked: Walked) -> Iterator[ObjectFile]:
    """The slice and the checkpoint that a block speaks of."""
    event: Any = walked.block.event
    if (data := getattr(event, "new_data", None)) is not None:
        yield ObjectFile("data", data.physical_hash, data.size)
    if (checkpoint := getattr(event, "new_checkpoint", None)) is not None:
        yield ObjectFile("checkpoints", checkpoint.physical_hash, checkpoint.size)


def take_proof(dataset: Dataset, remote: RemoteDataset, head: Multihash, reporter: Reporter) -> None:
    """Takes over the proof of a head, if the remote has one; a wrong one is told of, and left there."""
    try:
        if proofs.read_proof(dataset.folder, head) is not None:
            return
        found = proofs.Proof.from_bytes(remote.read("proofs", head, MOST_PROOF_BYTES))
        proofs.check(found, dataset.state().dataset_id, head)
        proofs.store_proof(dataset.folder, found)
    except (NotFound, Cancelled):
        return  # the pull is done
    except BadData as error:
        reporter.line(f"the proof of ownership is not taken over: {error.message}", "warning")
    except OdfError as error:
        reporter.line(f"whether there is a proof of ownership is not known: {error.message}", "debug")
    except OSError as error:
        reporter.line(f"the proof of ownership cannot be stored: {error.strerror}", "warning")


def _diverged(relation: Relation, where: str) -> Diverged:
    here = f"{relation.ours:,} block{'' if relation.ours == 1 else 's'}"
    there = f"{relation.theirs:,}"
    error = Diverged(
        f"the histories diverged: {here} only here, {there} only there",
        where=where,
        hint="--force takes the history from there, and keeps the head of here as a reference",
    )
    error.relation = relation
    return error
