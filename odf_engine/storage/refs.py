"""References such as ``refs/head``, changed by compare-and-swap under a lock."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from odf_engine.base.atomic_files import make_folder
from odf_engine.base.files import fsync_folder, open_no_follow, remove_temporary, sync_change
from odf_engine.errors import Conflict, InvalidIdentity, MalformedBlock, NotFound, OdfError, disk_hint
from odf_engine.identity.multiformats import Multihash
from odf_engine.storage.object_store import STAGING_PREFIX

HEAD: Final = "head"
COMPACTION_REF: Final = "compaction"
"""Reference to the new head of the newest compaction. Other programs find its record by this name."""
COMPACTED_PREFIX: Final = "compacted-"
"""References with this prefix and a time are the old heads of compactions."""
OLD_HEAD_PREFIXES: Final = (COMPACTED_PREFIX, "before-reset-", "before-pull-", "before-push-")
"""References with these prefixes are old heads: earlier histories of the dataset."""
TAG_PREFIX: Final = "tag-"
"""References with this prefix are tags: ``refs/tag-NAME`` is the tag NAME."""
_BRANCH: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")
_RESERVED: Final = ("before-", COMPACTED_PREFIX, TAG_PREFIX)
_LOCK_SECONDS: Final = 30.0
_MAX_BYTES: Final = 4096  # bytes; a hash has less than 100 characters


def is_branch_name(name: str) -> bool:
    """Return whether a reference with this name is a branch, not the head or one that the program writes.

    A name begins with a letter, and has at most 100 letters, digits, dots, hyphens and underscores.
    """
    lower = name.lower()  # some file systems do not distinguish case
    is_reserved = lower in (HEAD, COMPACTION_REF) or lower.startswith(_RESERVED)
    return _BRANCH.fullmatch(name) is not None and not is_reserved


def tag_name(reference: str) -> str:
    """Return the name of the tag that is stored under a reference, or "" if that is not a tag."""
    name = reference.removeprefix(TAG_PREFIX)
    return name if name != reference and is_branch_name(name) else ""


class RefStore:
    """References as files of one folder, changed under a lock that all processes share."""

    def __init__(self, folder: Path, lock: Path | None = None) -> None:
        """``lock`` is the lock file; the default is ``info/lock`` next to the folder of references."""
        self.folder = folder
        self._lock_path = lock or folder.parent / "info" / "lock"
        self._mutex = threading.RLock()
        self._depth = 0

    def read(self, name: str) -> str | None:
        """Return the text of the reference without surrounding white space, or None if it does not exist.

        Raises:
            NotFound: the file exists but cannot be read.
        """
        try:
            with (self.folder / name).open("rb") as file:
                raw = file.read(_MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise NotFound(
                f"reference '{name}' cannot be read: {error.strerror}",
                where=str(self.folder / name),
                hint=disk_hint(error),
            ) from error
        return raw.decode("ascii", "replace").strip(" \t\r\n\v\f")

    def get(self, name: str) -> Multihash | None:
        """Return the hash of the block that the reference points to, or None if there is no such reference.

        Raises:
            MalformedBlock: the file does not contain a hash.
        """
        text = self.read(name)
        if text is None:
            return None
        try:
            return Multihash.parse(text)
        except InvalidIdentity as error:
            raise MalformedBlock(
                f"refs/{name} does not contain the hash of a block: {error.message}",
                hint="restore it from a copy of the dataset",
                where=str(self.folder / name),
            ) from error

    def names(self) -> list[str]:
        """Return the names of all references, sorted, without temporary files.

        Raises:
            NotFound: the folder cannot be read. A missing folder has no references.
        """
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 (only names are needed)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            problem = f"the references cannot be read: {error.strerror}"
            hint = "check the permissions of the folder, and the disk"
            raise NotFound(problem, where=str(self.folder), hint=hint) from error
        return sorted(name for name in names if not name.startswith("."))

    def compare_and_set(
        self, name: str, expected: Multihash | None, new: Multihash, *, is_commit: bool = False
    ) -> None:
        """Set ``name`` to ``new``, durably, if its value is ``expected`` (None: it does not exist).

        Args:
            name: the reference.
            expected: its value.
            new: its new value.
            is_commit: whether this completes a commit. For the head, it always does.

        Raises:
            Conflict: it has another value, which is unchanged.
            NotSynced: the commit is complete, but a power failure may undo it.
            OSError: the reference cannot be written; one that completes no commit may be written but not
                synced.
        """
        with self.locked():
            if self.get(name) != expected:
                raise Conflict(
                    f"reference '{name}' was changed by another process",
                    hint="check the new blocks, then try again",
                    where=str(self.folder),
                )
            make_folder(self.folder)
            staged = self.folder / f"{STAGING_PREFIX}{secrets.token_hex(8)}"
            try:
                with staged.open("xb") as file:
                    file.write(str(new).encode())
                    file.flush()
                    os.fsync(file.fileno())
                staged.replace(self.folder / name)
            finally:
                remove_temporary(staged)
            if is_commit or name == HEAD:
                sync_change(self.folder, "committed")
            else:
                fsync_folder(self.folder)

    def remove(self, name: str, expected: Multihash) -> None:
        """Remove a reference, durably, if its value is ``expected``.

        Raises:
            Conflict: it has another value, or does not exist.
            OSError: it cannot be removed.
        """
        with self.locked():
            if self.get(name) != expected:
                raise Conflict(f"reference '{name}' was changed by another process", where=str(self.folder))
            (self.folder / name).unlink()
            fsync_folder(self.folder)

    def discard(self, name: str) -> None:
        """Remove a reference of a mirror, which does not exist in its origin any more."""
        with self.locked():
            (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock against other processes and threads. Reentrant.

        Raises:
            Conflict: another process held the lock for 30 seconds.
            OdfError: the lock file cannot be used.
        """
        with self._mutex:
            if self._depth:
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
                return
            try:
                descriptor = self._acquire()
            except OSError as error:
                raise OdfError(
                    f"the dataset cannot be locked: {error.strerror or error}",
                    where=str(self._lock_path),
                    hint=disk_hint(error),
                ) from error
            self._depth = 1
            try:
                yield
            finally:
                self._depth = 0
                os.close(descriptor)  # releases the lock

    def _acquire(self) -> int:
        self._lock_path.parent.mkdir(exist_ok=True)
        descriptor = open_no_follow(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline, pause = time.monotonic() + _LOCK_SECONDS, 0.001
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return descriptor
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise Conflict(
                            "another process holds the dataset's lock",
                            hint="wait for the end of its commit, or stop that process",
                            where=str(self._lock_path),
                        ) from None
                time.sleep(pause)
                pause = min(pause * 2, 0.05)
        except BaseException:
            os.close(descriptor)
            raise
