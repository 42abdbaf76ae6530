"""What a look over a workspace found: leftovers, orphans, damaged caches; and what became of each."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from odf_engine.errors import OdfError

_SETTLED_SECONDS: Final = 3600.0
TOO_FRESH: Final = "it was touched within the last hour: --now takes it too"


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Something that should not be, or that a person should know.

    Attributes:
        kind: stable name in kebab case.
        where: the dataset's name, or a path from ``.odf`` on.
        message: what it is, as a person reads it.
        count, size: how many files it is, and their bytes.
        repaired: whether it is gone, or was made anew.
        left: why it was left alone; empty when it was repaired, or nobody asked for that.
    """

    kind: str
    where: str
    message: str
    count: int = 1
    size: int = 0
    repaired: bool = False
    left: str = ""


class Checkup(msgspec.Struct):
    """A look over a workspace, while it goes on and afterwards.

    Attributes:
        repair: whether what is found is removed or made anew, as far as history does not need it.
        now: whether that is done also to what was touched within the last hour.
        findings: what is wrong, or in the way.
        remarks: what a person should know, and is no fault.
        datasets: how many were looked at.
    """

    repair: bool = False
    now: bool = False
    findings: list[Trouble] = []
    remarks: list[Trouble] = []
    datasets: int = 0

    @property
    def left(self) -> list[Trouble]:
        """What is still there."""
        return [each for each in self.findings if not each.repaired]

    def find(
        self,
        kind: str,
        where: str,
        message: str,
        fix: Callable[[], object] | None = None,
        *,
        count: int = 1,
        size: int = 0,
        left: str = "",
    ) -> None:
        """Notes a finding, and repairs it with ``fix`` if that is wanted and nothing is ``left`` to say
        against it."""
        repaired = False
        if self.repair and not left:
            if fix is None:
                left = "it is not repaired by itself"
            else:
                try:
                    fix()
                    repaired = True
                except OSError as error:
                    left = f"it could not be repaired: {error.strerror or error}"
                except OdfError as error:
                    left = f"it could not be repaired: {error.message}"
        left = left if self.repair else ""
        self.findings.append(
            Trouble(
                kind=kind, where=where, message=message, count=count, size=size, repaired=repaired, left=left
            )
        )

    def remark(self, kind: str, where: str, message: str, count: int = 1) -> None:
        """Notes what is no fault."""
        self.remarks.append(Trouble(kind=kind, where=where, message=message, count=count))

    def files(
        self,
        kind: str,
        where: str,
        message: str,
        paths: Iterable[Path],
        *,
        left: str = "",
        sure: bool = False,
    ) -> None:
        """Notes files or folders that nobody needs, if there are some; the repair removes them.

        Args:
            paths: those that were looked at.
            left: why nothing may be done with them now.
            sure: whether it is known that nobody is at work on them, however fresh they are.
        """
        fresh: list[tuple[Path, int]] = []
        settled: list[tuple[Path, int]] = []
        for path in paths:
            size, touched = _about(path)
            old = sure or self.now or time.time() - touched > _SETTLED_SECONDS
            (settled if old else fresh).append((path, size))
        for found, why in ((settled, left), (fresh, left or TOO_FRESH)):
            if found:
                gone = [path for path, _ in found]
                size = sum(size for _, size in found)
                self.find(
                    kind,
                    where,
                    message,
                    lambda gone=gone: _remove(gone),
                    count=len(found),
                    size=size,
                    left=why,
                )


def _about(path: Path) -> tuple[int, float]:
    """The bytes of a file, or of all files in a folder, and when the newest of them was touched."""
    size, touched = 0, 0.0
    for each in path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,):
        with suppress(OSError):  # its owner was quicker
            found = each.lstat()
            if not stat.S_ISDIR(found.st_mode):
                size += found.st_size
                touched = max(touched, found.st_mtime)
    return size, touched


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
