"""Whether the slices and checkpoints of a dataset are what its chain says of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final

from odf_engine.chain.chain import Dataset
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import Checkpoint
from odf_engine.progress import Reporter
from odf_engine.storage.objects import LocalObjects, find_name
from odf_engine.verify.content import Expected, Known, Problem, check_object, check_rows

_REPORT_SECONDS: Final = 0.1


class Progress:
    """Tells amounts now and then: blocks as files, and bytes of everything that was read. From any thread."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._lock = Lock()
        self._blocks = self._bytes = 0
        self._next = 0.0
        self.total_blocks = 0

    def check(self) -> None:
        """Raises Cancelled when somebody asked to stop."""
        self._reporter.check()

    def block(self) -> None:
        """A block was checked."""
        with self._lock:
            self._blocks += 1
            self._tell_sometimes()

    def bytes(self, count: int) -> None:
        """So many bytes were read."""
        self._reporter.check()
        with self._lock:
            self._bytes += count
            self._tell_sometimes()

    def tell(self) -> None:
        """Tells the reporter now."""
        self._reporter.amount(files=self._blocks, total_files=self.total_blocks, bytes=self._bytes)

    def _tell_sometimes(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPORT_SECONDS
            self.tell()


class Files:
    """Checks files; slices from any thread.

    Args:
        dataset: which has them.
        known: slices whose rows were found right before.
        progress: is told of the bytes that were read.

    Attributes:
        rows_known: how many slices had bytes whose rows are known.
    """

    def __init__(self, dataset: Dataset, known: Known | None, progress: Progress) -> None:
        self._data = LocalObjects(dataset.folder / "data")
        self._checkpoints = LocalObjects(dataset.folder / "checkpoints")
        self._good_checkpoints: set[tuple[Multihash, int]] = set()
        self._known = known
        self._progress = progress
        self._lock = Lock()
        self.rows_known = 0

    def slice_problems(self, expected: Expected) -> Iterator[Problem]:
        """What is wrong with a slice: the file, then its rows.

        Raises:
            Cancelled: somebody asked to stop.
        """
        data, sound = expected.data, True
        path = _locate(self._data, data.physical_hash)
        for problem in check_object(path, "slice", data.physical_hash, data.size, self._progress.bytes):
            sound = False
            yield problem
        if path is None:
            return
        known = self._known if sound else None
        if known is not None and known.is_sound(expected.key):
            with self._lock:
                self.rows_known += 1
            return
        for problem in check_rows(path, expected, self._progress.check):
            known = None
            yield problem
        if known is not None:
            known.mark_sound(expected.key)

    def checkpoint_problems(self, checkpoint: Checkpoint) -> list[Problem]:
        """What is wrong with a checkpoint; one that several transactions share is read once."""
        identity = (checkpoint.physical_hash, checkpoint.size)
        if identity in self._good_checkpoints:
            return []
        path = _locate(self._checkpoints, checkpoint.physical_hash)
        problems = list(check_object(path, "checkpoint", *identity, self._progress.bytes))
        if not problems:
            self._good_checkpoints.add(identity)
        return problems


def _locate(objects: LocalObjects, object_hash: Multihash) -> Path | None:
    name = find_name(objects, object_hash)
    return None if name is None else objects.path(name)
