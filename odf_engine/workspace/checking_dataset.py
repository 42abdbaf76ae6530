"""Looking over a dataset's folder: objects that nothing names, and what interrupted work has left.

Nothing goes that the head or a kept reference needs: where a chain cannot be followed to its first block,
no object goes at all. Objects go only under the locks under which others bring them in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from odf_engine.chain.adopting import ARRIVING, Adoption
from odf_engine.chain.chain import Dataset
from odf_engine.chain.index import ChainIndex
from odf_engine.errors import Conflict, InvalidIdentity, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.proof import PROOFS
from odf_engine.progress import Reporter
from odf_engine.storage.objects import LocalObjects
from odf_engine.storage.refs import HEAD, LocalRefs
from odf_engine.workspace.checkup import Checkup
from odf_engine.workspace.summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

_KINDS: Final = {"blocks": "block", "data": "slice", "checkpoints": "checkpoint"}
_HALF: Final = (".pending-*", ".partial-*", ".new-*")
_BATCH: Final = 4096
_BUSY: Final = "a job is at work on the dataset"


def check_dataset(
    checkup: Checkup,
    workspace: Workspace,
    entry: DatasetEntry,
    reporter: Reporter,
    *,
    busy: bool = False,
    has_index: bool = True,
) -> None:
    """Looks over a dataset.

    Args:
        busy: a job works on it, so that nothing may be repaired.
        has_index: the index of blocks can be read.
    """
    _DatasetCheck(checkup, workspace, entry, reporter, busy).run(has_index)


class _DatasetCheck:
    def __init__(
        self,
        checkup: Checkup,
        workspace: Workspace,
        entry: DatasetEntry,
        reporter: Reporter,
        busy: bool,
    ) -> None:
        self._checkup, self._workspace, self._reporter = checkup, workspace, reporter
        self._entry, self._name = entry, str(entry.alias)
        self._folder = entry.dataset.folder
        self._refs = LocalRefs(self._folder / "refs", self._folder / "info" / "lock")
        self._left = _BUSY if busy else ""
        self._needed: dict[str, set[Multihash]] = {kind: set() for kind in _KINDS}

    def run(self, has_index: bool) -> None:
        """All of it."""
        self._checkup.datasets += 1
        is_whole = self._follow(tell=True)
        if is_whole and has_index:
            self._index()
        with ExitStack() as stack:
            if self._checkup.repair and not self._left:
                self._lock(stack)
            if is_whole and (not self._checkup.repair or self._left or self._follow(tell=False)):
                self._orphans()
            self._half_written()

    def _lock(self, stack: ExitStack) -> None:
        """Keeps others from bringing something in; says so where somebody does just that."""
        try:
            adoption = stack.enter_context(Adoption(self._entry.dataset))
            if not any(_files(adoption.arriving)):
                stack.callback(adoption.discard)  # which entering has made
            stack.enter_context(self._refs.locked())
        except (Conflict, OSError, OdfError) as error:
            reason = error.message if isinstance(error, OdfError) else str(error.strerror)
            self._left = f"it cannot be locked: {reason}"

    # --- What is needed ---

    def _follow(self, *, tell: bool) -> bool:
        """Learns what all references need; whether that could be found out."""
        is_whole = self._refs.text(HEAD) is not None or not any(self._folder.glob("blocks/*"))
        if not is_whole and tell:
            message = "refs/head is missing, which names the newest block: bring it back from a copy"
            self._checkup.find("chain-damaged", self._name, message)
        for name in self._references():
            try:
                at = self._refs.get(name)
                while at is not None and at not in self._needed["blocks"]:
                    self._reporter.check()
                    at = self._need(at)
            except OdfError as error:
                is_whole = False
                if tell:
                    self._tell_broken(name, error)
        return is_whole

    def _references(self) -> Iterator[str]:
        names = sorted(path.name for path in self._refs.folder.glob("*"))
        yield from (name for name in names if not name.startswith("."))

    def _need(self, block_hash: Multihash) -> Multihash | None:
        stored = self._entry.dataset.block(block_hash)
        event: Any = stored.block.event
        for kind, part in (("data", "new_data"), ("checkpoints", "new_checkpoint")):
            if (named := getattr(event, part, None)) is not None:
                self._needed[kind].add(named.physical_hash)
        self._needed["blocks"].add(block_hash)
        return stored.block.prev_block_hash

    def _tell_broken(self, name: str, error: OdfError) -> None:
        if name == HEAD:
            message = f"the chain cannot be followed: {error}; odf verify {self._name} tells more"
            self._checkup.find("chain-damaged", self._name, message)
        else:
            message = f"the kept reference refs/{name} cannot be followed: {error}"
            self._checkup.find("reference-broken", self._name, message)

    # --- The index ---

    def _index(self) -> None:
        """Compares what the index says with what the blocks say."""
        index, head = self._workspace.index, self._entry.dataset.head()
        if head is None:
            return
        fresh = Dataset(self._folder, ChainIndex(":memory:"))
        try:
            state = fresh.state()
        except OdfError as error:
            self._tell_broken(HEAD, error)
            return
        try:
            known = index.state(head)  # where there is none, the next reader brings the index up to the head
            if known is None or (state == known and _is_same(fresh, Dataset(self._folder, index))):
                return
        except OdfError as error:
            self._reporter.line(f"{self._name}: {error}", "debug")
        message = "the index says something else than the blocks"
        self._checkup.find("index-wrong", self._name, message, self._index_anew)

    def _index_anew(self) -> None:
        self._workspace.index.remake()
        self._entry.dataset.state()

    # --- What nobody needs ---

    def _orphans(self) -> None:
        needed = {**self._needed, PROOFS: self._needed["blocks"]}
        for kind, word in {**_KINDS, PROOFS: "proof"}.items():
            objects = LocalObjects(self._folder / kind)
            orphans: list[Path] = []
            strange = 0
            for name in objects.names():
                try:
                    if Multihash.parse(name) not in needed[kind]:
                        orphans.append(objects.path(name))
                except InvalidIdentity:
                    strange += 1
            message = f"no block or reference needs {'them' if len(orphans) > 1 else 'it'}"
            self._checkup.files(f"orphan-{word}", self._name, message, orphans, left=self._left)
            if strange:
                message = f"not named as an object of a repository is, in {kind}/"
                self._checkup.remark("unknown-file", self._name, message, strange)

    def _half_written(self) -> None:
        folders = (*_KINDS, "refs", PROOFS, "info")
        paths = [path for name in folders for half in _HALF for path in (self._folder / name).glob(half)]
        self._checkup.files("half-written", self._name, "interrupted work left it", paths, left=self._left)
        arriving = [path] if any(_files(path := self._folder / ARRIVING)) else []
        message = "an interrupted pull left it; the next one would go on from there"
        self._checkup.files("arriving", self._name, message, arriving, left=self._left)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if not path.is_dir())


def _is_same(one: Dataset, other: Dataset) -> bool:
    """Whether two indices say the same of all blocks and slices."""
    if one.slices() != other.slices():
        return False
    before: int | None = None
    while rows := one.page(_BATCH, before):
        if rows != other.page(_BATCH, before):
            return False
        before = rows[-1].sequence_number
    return not other.page(1, before)
