"""Slices and checkpoints on their way to somewhere else: a damaged one does not get there."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, TypeVar

from odf_engine.errors import BadData, Cancelled, NotFound, UsageError
from odf_engine.identity.multiformats import HASH_NAMES, SHA2_256, SHA3_256, Multihash
from odf_engine.progress import Reporter
from odf_engine.sync.remote import ObjectFile

_T = TypeVar("_T")

PIECE: Final = 1 << 20
_LAYOUT: Final = ("refs", "blocks", "data", "checkpoints", "proofs", "info")
_HASHERS: Final = {SHA2_256: hashlib.sha256, SHA3_256: hashlib.sha3_256}
_MEND: Final = "it was not sent; odf verify shows what else is wrong, a copy of the dataset may have it right"


def pieces(file: ObjectFile, source: Path) -> Iterator[bytes]:
    """The bytes of an object that is here, at most :data:`PIECE` at a time.

    Whoever takes them publishes nothing before the iterator has ended: at its end it is known whether the
    bytes were right.

    Raises:
        NotFound: the file is not there, or cannot be read.
        BadData: it has other bytes than its hash and size say.
    """
    hasher, left = _hasher(file.hash), file.size
    try:
        with source.open("rb", buffering=0) as read:
            while piece := read.read(PIECE):
                left -= len(piece)
                if left < 0:
                    break
                hasher.update(piece)
                yield piece
    except FileNotFoundError:
        raise NotFound(f"{_name(file)} is not here", where=str(source), hint=_MEND) from None
    except OSError as error:
        problem = f"{_name(file)} cannot be read: {error.strerror}"
        raise NotFound(problem, where=str(source), hint=_MEND) from error
    if left:
        raise BadData(
            f"{_name(file)} is damaged here: it does not have {file.size:,} bytes",
            where=str(source),
            hint=_MEND,
        )
    if hasher.digest() != file.hash.digest:
        problem = f"{_name(file)} is damaged here: its bytes are not those that its hash was made of"
        raise BadData(problem, where=str(source), hint=_MEND)


def check_own_place(names: Iterable[str], url: str) -> None:
    """Sees that a place where a new dataset is to be has nothing else in it.

    Args:
        names: of files and folders there.

    Raises:
        UsageError: it has; perhaps it is a whole repository.
    """
    others = sorted(name for name in names if name not in _LAYOUT and not name.startswith("."))
    if others:
        problem = f"there is something else already, such as '{others[0]}'"
        raise UsageError(problem, where=url, hint=f"give the dataset a place of its own: {url}NAME/")


def _hasher(expected: Multihash) -> Any:
    if expected.code not in _HASHERS:
        raise BadData(f"an object is named by {HASH_NAMES[expected.code]}, which no bytes can be checked by")
    return _HASHERS[expected.code]()


def _name(file: ObjectFile) -> str:
    return f"{file.kind}/{file.hash}"


def send_each(
    items: Iterable[_T],
    work: Callable[[_T], None],
    *,
    parallel: int,
    reporter: Reporter,
    check: Callable[[], None],
    stop: Callable[[], None],
) -> None:
    """Calls ``work`` for each, begun in their order, so many at a time; the first failure ends it.

    Args:
        items: what is to be sent.
        work: sends one of them.
        parallel: how many at a time.
        reporter: knows whether all of it was cancelled.
        check: is called before each; raises Cancelled when the rest is not wanted.
        stop: makes ``check`` raise, and breaks off what is on its way.

    Raises:
        OdfError: the first failure that says why; Cancelled when there is none.
    """
    waiting, lock = iter(items), threading.Lock()

    def run() -> None:
        while True:
            check()
            with lock:
                try:
                    item = next(waiting)
                except StopIteration:
                    return
            work(item)

    with ThreadPoolExecutor(parallel, "send") as pool:
        futures = [pool.submit(run) for _ in range(parallel)]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        if any(future.exception() for future in done):
            stop()
    errors = [error for future in futures if (error := future.exception()) is not None]
    reporter.check()
    if errors:
        # Those that were only told to stop say nothing of the reason.
        raise next((error for error in errors if not isinstance(error, Cancelled)), errors[0])
