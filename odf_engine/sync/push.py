"""Pushes a dataset to a remote."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.chain.compacted_history import reaches_chain
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.linked_objects import linked_objects
from odf_engine.errors import BadData, Cancelled, Conflict, NotFound, Unsupported
from odf_engine.identity import ownership_proof as proofs
from odf_engine.identity.multiformats import Multihash
from odf_engine.storage.refs import HEAD
from odf_engine.sync.check_reports import send_reports
from odf_engine.sync.compaction_records import send_newest_record_name, send_records
from odf_engine.sync.history import HistoriesDiverged, Relation, compare
from odf_engine.sync.remotes.base import ObjectFile, RemoteDataset, WritableRemote, upload_parallel
from odf_engine.workspace.dataset_summary import DatasetEntry

_OLD_HEAD_PREFIX: Final = "before-push-"
_T = TypeVar("_T")


class ChainPush(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a push.

    Attributes:
        status: ``updated`` or ``up-to-date``.
        old_head, new_head: heads of the remote dataset.
        blocks, objects, bytes: number of uploaded blocks, objects and bytes.
        relation: relation after the push.
    """

    status: Literal["updated", "up-to-date"]
    old_head: Multihash | None
    new_head: Multihash | None
    blocks: int
    objects: int
    bytes: int
    relation: Relation


@runtime_checkable
class RemoteWithPush(Protocol):
    """A remote with its own push protocol."""

    def push(
        self, dataset: Dataset, relation: Relation, reporter: Reporter, *, force: bool, parallel: int
    ) -> ChainPush:
        """Upload what the remote lacks according to ``relation``, and move its head."""
        ...


def push(
    entry: DatasetEntry, remote: RemoteDataset, reporter: Reporter, *, force: bool, parallel: int
) -> ChainPush:
    """Push the new blocks of the local dataset to a remote.

    Raises:
        HistoriesDiverged: the remote has blocks that the local dataset lacks, without ``force``.
        Conflict: its head has moved; or it is another dataset.
        Unsupported: the remote is read-only.
        BadData, MalformedBlock: a local object or block is damaged.
        OdfError: as raised by the remote; its head is unchanged.
    """
    if not isinstance(remote, RemoteWithPush | WritableRemote):
        scheme = remote.url.partition(":")[0]
        hint = "push to a folder (file:), a bucket (s3:, gs:, az:) or a server (odf+https:)"
        if entry.dataset.reference != HEAD and scheme.startswith("odf+"):
            hint = "push it to a folder or a bucket, or promote it and push the dataset"
            raise Unsupported("the smart transfer protocol has no branches", where=remote.url, hint=hint)
        raise Unsupported(f"cannot push to {scheme}: URLs", where=remote.url, hint=hint)
    reporter.phase("compare")
    remote_head = remote.head()
    if entry.dataset.is_tag and remote_head not in (None, entry.dataset.head()):
        raise Conflict(
            "the remote has another version under this tag", where=remote.url, hint="use another tag"
        )
    relation = _compare(entry.dataset, remote, reporter)
    if remote_head is None and entry.dataset.reference != HEAD:
        relation = _compare_new_branch(entry, remote)
    if not force:
        _require_fast_forward(entry.dataset, remote_head, relation, remote.url)
    if isinstance(remote, RemoteWithPush):
        return remote.push(entry.dataset, relation, reporter, force=force, parallel=parallel)
    return _FilePush(entry, remote, reporter, parallel).run(relation, remote_head)


def _compare(dataset: Dataset, remote: RemoteDataset, reporter: Reporter) -> Relation:
    if dataset.head() is None:
        raise NotFound("the dataset is empty: there is nothing to push", where=str(dataset.folder))
    try:
        return compare(dataset, remote, reporter)
    except Conflict as error:
        raise Conflict(error.message, where=error.where, hint="push it to another URL") from None


def _compare_new_branch(entry: DatasetEntry, remote: RemoteDataset) -> Relation:
    """Return the relation of a branch to a remote dataset that does not have this branch.

    Raises:
        NotFound: there is no dataset.
    """
    head, branch = remote.reference(HEAD), entry.dataset
    if head is None:
        hint = f"push the dataset first: odf push {entry.alias} --to {remote.url}"
        raise NotFound("the remote has no such dataset, and a branch alone cannot be read", hint=hint)
    if not branch.contains_block(head):  # all of its blocks are sent, unless they are there
        return Relation("new", branch.state().blocks, 0, None)
    number = branch.block(head).block.sequence_number
    return Relation("ahead", branch.state().sequence_number - number, 0, head)


def _require_fast_forward(
    dataset: Dataset, remote_head: Multihash | None, relation: Relation, url: str
) -> None:
    their_blocks = _count_text(relation.theirs, "block")
    is_compacted = remote_head is not None and reaches_chain(dataset, remote_head)
    if relation.kind == "diverged" and is_compacted:
        message = "the dataset was compacted; the remote has the chain before the compaction"
        hint = "use --force to replace it: no rows change, and other copies can pull without --force"
    elif relation.kind == "behind":
        message = f"the remote dataset is {their_blocks} ahead"
        hint = "pull first, or use --force to discard them; a reference to the remote head is stored"
    elif relation.kind == "diverged":
        message = (
            f"the histories have diverged: {_count_text(relation.ours, 'block')} ahead, {their_blocks} behind"
        )
        hint = "use --force to replace the remote history; a reference to the remote head is stored"
    else:
        return
    error = HistoriesDiverged(message, where=url, hint=hint)
    error.relation = relation
    raise error


def linked_files(dataset: Dataset, common: Multihash | None, reporter: Reporter) -> list[ObjectFile]:
    """Return the linked objects of the slices after a block. Missing objects are logged and left out.

    Raises:
        NotFound, BadData: a slice with links is missing or damaged.
    """
    after = -1 if common is None else dataset.block(common).block.sequence_number
    files: list[ObjectFile] = []
    absent = 0
    for link in linked_objects(dataset, reporter, after):
        path = dataset.slice_path(link)
        if path.is_file():
            files.append(ObjectFile("data", link, path.stat().st_size))
        else:
            absent += 1
    if absent:
        reporter.log(f"{_count_text(absent, 'linked object')} missing, not sent", "warning")
    return files


class _Outgoing(NamedTuple):
    """Blocks, oldest first, and the objects that they refer to."""

    head: Multihash
    blocks: list[Multihash]
    files: list[ObjectFile]


class _FilePush:
    """A push to a remote whose files are written one by one."""

    def __init__(
        self, entry: DatasetEntry, remote: WritableRemote, reporter: Reporter, parallel: int
    ) -> None:
        self.dataset = entry.dataset
        self.id = entry.id
        self.remote = remote
        self.reporter = reporter
        self.parallel = parallel
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.blocks = self.objects = self.bytes = 0
        self.done_files = self.done_bytes = 0

    def run(self, relation: Relation, remote_head: Multihash | None) -> ChainPush:
        new = self._collect(relation.common)
        if new.blocks:
            objects = _count_text(len(new.files), "object")
            self.reporter.log(f"pushing {_count_text(len(new.blocks), 'block')} and {objects}")
        self.reporter.phase("send")
        total = sum(file.size for file in new.files)
        self.reporter.set_amounts(
            bytes=0, total_bytes=total, files=0, total_files=len(new.files) + len(new.blocks)
        )
        self._upload_all(new.files, self._send_file)
        self._send_proof(new.head)
        self._upload_all(new.blocks, self._send_block)
        send_records(self.dataset, self.remote, self.reporter)
        send_newest_record_name(self.dataset, self.remote)
        send_reports(self.dataset, self.remote, relation.common, self.reporter)
        if new.head != remote_head:
            self.reporter.phase("commit")
            if remote_head is not None and relation.kind in ("behind", "diverged"):
                self.remote.set_ref(f"{_OLD_HEAD_PREFIX}{remote_head.abbreviated}", remote_head)
            self.reporter.raise_if_cancelled()
            self.remote.set_head(remote_head, new.head)
        sent = self.objects or new.head != remote_head
        return ChainPush(
            status="updated" if sent else "up-to-date",
            old_head=remote_head,
            new_head=new.head,
            blocks=self.blocks,
            objects=self.objects,
            bytes=self.bytes,
            relation=Relation("equal", 0, 0, new.head),
        )

    def _collect(self, common: Multihash | None) -> _Outgoing:
        """Return the content since ``common``. Every block is read, to find damage before the upload."""
        head = block_hash = self.dataset.head()
        assert head is not None  # the dataset was compared
        blocks: list[Multihash] = []
        files: dict[ObjectFile, None] = {}
        while block_hash is not None and block_hash != common:
            self.reporter.raise_if_cancelled()
            block = self.dataset.block(block_hash).block
            if (data := getattr(block.event, "new_data", None)) is not None:
                files[ObjectFile("data", data.physical_hash, data.size)] = None
            if (checkpoint := getattr(block.event, "new_checkpoint", None)) is not None:
                files[ObjectFile("checkpoints", checkpoint.physical_hash, checkpoint.size)] = None
            blocks.append(block_hash)
            block_hash = block.prev_block_hash
        if block_hash != common:
            place = str(self.dataset.folder)
            raise Conflict("the dataset was reset during the push", where=place, hint="push again")
        linked = linked_files(self.dataset, common, self.reporter)
        return _Outgoing(head, blocks[::-1], [*list(files)[::-1], *linked])

    def _send_file(self, file: ObjectFile) -> None:
        if self.remote.holds(file.kind, file.hash, file.size):
            self._add_bytes(file.size)
        else:
            path = self.dataset.object_path(file.kind, file.hash)
            reported = 0

            def report(sent: int) -> None:
                nonlocal reported
                self._add_bytes(sent - reported)
                reported = sent

            self.remote.upload(file, path, report)
            with self.lock:
                self.objects += 1
                self.bytes += file.size
        self._add_file()

    def _add_bytes(self, size: int) -> None:
        with self.lock:
            self.done_bytes += size
            self.reporter.set_amounts(bytes=self.done_bytes)
        self._raise_if_stopped()

    def _send_proof(self, head: Multihash) -> None:
        """Upload the ownership proof of the head, if there is a valid one."""
        try:
            proof = proofs.read_proof(self.dataset.folder, head)
            if proof is None:
                return
            proofs.verify_proof(proof, self.id, head)
        except BadData as error:
            self.reporter.log(
                f"ownership proof of block {head.abbreviated} not sent: {error.message}", "warning"
            )
            return
        data = bytes(proof)
        if not self.remote.holds("proofs", head, len(data)):
            self.remote.write("proofs", head, data)
            self.objects += 1
            self.bytes += len(data)

    def _send_block(self, block: Multihash) -> None:
        data = self.dataset.block_bytes(block)
        if Multihash.sha3_256(data) != block:
            raise BadData(f"local block {block} is damaged", where=str(self.dataset.folder))
        if not self.remote.holds("blocks", block, len(data)):
            self.remote.write("blocks", block, data)
            with self.lock:
                self.blocks += 1
                self.bytes += len(data)
        self._add_file()

    def _add_file(self) -> None:
        with self.lock:
            self.done_files += 1
            self.reporter.set_amounts(files=self.done_files)

    def _upload_all(self, items: Iterable[_T], work: Callable[[_T], None]) -> None:
        """Call ``work`` for each item, in order, in parallel; stop at the first failure."""
        upload_parallel(
            items,
            work,
            parallel=self.parallel,
            reporter=self.reporter,
            check=self._raise_if_stopped,
            stop=self.stopped.set,
        )

    def _raise_if_stopped(self) -> None:
        self.reporter.raise_if_cancelled()
        if self.stopped.is_set():
            raise Cancelled


def _count_text(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
