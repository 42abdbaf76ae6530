"""Opens every state of the disk that a power failure may leave during an operation.

    python -m tests.faults.crash_states [OPERATION…] [--most N]

The system calls of the operation are recorded (:mod:`tests.faults.system_calls`). A model of the file system
applies them. At a power failure it has everything that was synced, and any part of the rest: names that were
created, renamed or removed survive or not, independent of their order, until their folder is synced. Bytes
of a file survive, are lost, are zeros, or the file is cut off, until the file is synced. A rename within one
file system is atomic. Each different state is written to disk, opened and checked. After the end of a
successful operation, each state must be the new one. Prints the number of states and failures.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tests.faults.operations import OPERATIONS
from tests.faults.system_calls import WRITES, Harness, SystemCall, exit_untraced, record

_RECORDED: Final = (*WRITES, "lseek", "sendfile", "copy_file_range", "fallocate")
_MOST_COMBINED: Final = 6
"""All combinations of so many unsynced names are tried; of more, a selection."""
_SELECTED: Final = 24
_NAMING: Final = ("rename", "link", "symlink", "unlink", "mkdir", "rmdir")
_RESULT: Final = re.compile(r"\) += (-?\d+)")
_NUMBERS: Final = re.compile(r", (\d+)(?:, (\d+))?\) += ")

Content = Literal["complete", "lost", "zeros", "cut off"]
"""What survives of the unsynced bytes of a file."""
CONTENTS: Final[tuple[Content, ...]] = ("complete", "lost", "zeros", "cut off")


class _Names(NamedTuple):
    """One change of names, which survives as a whole or not: in a folder, a name gets or loses an inode."""

    changes: Sequence[tuple[int, str, int | None, int | None]]  # folder, name, old inode, new inode

    @property
    def folder(self) -> int:
        """The folder whose sync makes the change durable: that of the new name."""
        return self.changes[-1][0]


class _Bytes(NamedTuple):
    """Bytes written to a file; None: it is cut off or extended to the offset."""

    inode: int
    offset: int
    data: bytes | None


class _Sync(NamedTuple):
    """A sync of a file or folder, or of everything."""

    inode: int | None


_Step = _Names | _Bytes | _Sync


class Crash(NamedTuple):
    """A power failure.

    Attributes:
        at: the number of steps before it.
        lost: the numbers of the changes of names that do not survive.
        content: what survives of the unsynced bytes.
        is_end: whether the operation has ended.
    """

    at: int
    lost: frozenset[int]
    content: Content
    is_end: bool


@dataclass
class Disk:
    """The files of a folder, and the recorded changes of them.

    Attributes:
        folder: the folder.
        steps: the changes and syncs.
    """

    folder: Path
    steps: list[_Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read the files, which are durable."""
        self._entries: dict[int, dict[str, int]] = {0: {}}
        self._content: dict[int, bytes] = {}
        self._open: dict[int, tuple[int, int]] = {}  # descriptor: inode, position
        self._size: dict[int, int] = {}
        for path in sorted(self.folder.rglob("*")):
            parent, name = self._locate(str(path))
            inode = self._new(is_folder=path.is_dir())
            self._entries[parent][name] = inode
            if path.is_file():
                self._content[inode] = path.read_bytes()
                self._size[inode] = len(self._content[inode])
        self._before = {inode: dict(names) for inode, names in self._entries.items()}
        self._count = len(self._entries) + len(self._content)

    def _new(self, *, is_folder: bool) -> int:
        inode = self._count = getattr(self, "_count", 0) + 1
        if is_folder:
            self._entries[inode] = {}
        else:
            self._content[inode], self._size[inode] = b"", 0
        return inode

    def _locate(self, path: str) -> tuple[int, str]:
        """Return the folder and the name of a path."""
        *folders, name = Path(path).relative_to(self.folder).parts
        at = 0
        for folder in folders:
            at = self._entries[at][folder]
        return at, name

    def _find(self, path: str) -> int | None:
        if Path(path) == self.folder:
            return 0
        parent, name = self._locate(path)
        return self._entries[parent].get(name)

    def _is_inside(self, path: str) -> bool:
        return path == str(self.folder) or path.startswith(f"{self.folder}/")

    def _rename(self, *changes: tuple[int, str, int | None, int | None]) -> None:
        for parent, name, _, new in changes:
            if new is None:
                self._entries[parent].pop(name, None)
            else:
                self._entries[parent][name] = new
        self.steps.append(_Names(changes))

    def apply(self, call: SystemCall) -> None:
        """Add a successful call."""
        match = _RESULT.search(call.text)
        descriptor = int(call.text.split("<")[0]) if call.text[:1].isdigit() else -1
        if call.failed or match is None:
            return
        result = int(match[1])
        if call.name in ("open", "openat", "creat"):
            self._apply_open(call, result)
        elif call.name in ("fsync", "fdatasync", "syncfs"):
            if descriptor in self._open:
                self.steps.append(_Sync(None if call.name == "syncfs" else self._open[descriptor][0]))
        elif descriptor in self._open and not call.name.endswith("at"):
            self._apply_bytes(call, descriptor, result)
        elif call.name.startswith(_NAMING) and all(map(self._is_inside, call.paths)):
            self._apply_names(call)

    def _apply_open(self, call: SystemCall, descriptor: int) -> None:
        path = call.paths[0]
        if not self._is_inside(path):
            self._open.pop(descriptor, None)
            return
        inode = self._find(path)
        if inode is None:
            parent, name = self._locate(path)
            inode = self._new(is_folder=False)
            self._rename((parent, name, None, inode))
        if "O_TRUNC" in call.text and self._size[inode]:
            self._write(inode, 0, None)
        self._open[descriptor] = inode, self._size[inode] if "O_APPEND" in call.text else 0

    def _apply_bytes(self, call: SystemCall, descriptor: int, result: int) -> None:
        inode, position = self._open[descriptor]
        if call.name == "lseek":
            self._open[descriptor] = inode, result
        elif call.name == "write":
            self._write(inode, position, call.strings[1][1][:result])
            self._open[descriptor] = inode, position + result
        elif call.name == "pwrite64":
            numbers = _NUMBERS.search(call.text)
            assert numbers is not None
            self._write(inode, int(numbers[2]), call.strings[1][1][:result])
        elif call.name == "ftruncate":
            numbers = _NUMBERS.search(call.text)
            assert numbers is not None
            self._write(inode, int(numbers[1]), None)
        else:
            raise NotImplementedError(str(call))

    def _write(self, inode: int, offset: int, data: bytes | None) -> None:
        self._size[inode] = offset if data is None else max(self._size[inode], offset + len(data))
        self.steps.append(_Bytes(inode, offset, data))

    def _apply_names(self, call: SystemCall) -> None:
        places = [self._locate(path) for path in call.paths]
        inodes = [self._find(path) for path in call.paths]
        if call.name in ("mkdir", "mkdirat"):
            self._rename((*places[0], None, self._new(is_folder=True)))
        elif call.name in ("rmdir", "unlink", "unlinkat"):
            self._rename((*places[0], inodes[0], None))
        elif call.name.startswith("rename"):
            self._rename((*places[0], inodes[0], None), (*places[1], inodes[1], inodes[0]))
        elif call.name.startswith("link"):
            self._rename((*places[1], None, inodes[0]))
        else:
            raise NotImplementedError(str(call))

    def crashes(self) -> Iterator[Crash]:
        """Yield the power failures that leave different states.

        A power failure before other steps than a sync leaves states that one just before the sync leaves too.
        """
        chance = random.Random(1)
        seen: set[object] = set()
        for at in range(len(self.steps) + 1):
            is_end = at == len(self.steps)
            if not is_end and not isinstance(self.steps[at], _Sync):
                continue
            names, synced = self._unsynced(at)
            dirty = Counter(
                step.inode
                for number, step in enumerate(self.steps[:at])
                if isinstance(step, _Bytes) and number >= synced.get(step.inode, 0)
            )
            for lost, content in product(_selections(names, chance), CONTENTS if dirty else CONTENTS[:1]):
                places = self._place_files(at, lost)
                # Files with the same number of unsynced writes after the same sync have the same bytes.
                key = frozenset(
                    (path, inode, synced.get(inode, 0), dirty[inode] and (content, dirty[inode]))
                    for path, inode in places.items()
                )
                if (key, is_end) not in seen:
                    seen.add((key, is_end))
                    yield Crash(at, lost, content, is_end)

    def _unsynced(self, at: int) -> tuple[list[int], dict[int, int]]:
        """Return the unsynced changes of names before a step, and where the unsynced bytes of files begin."""
        names: list[int] = []
        synced: dict[int, int] = {}
        for number, step in enumerate(self.steps[:at]):
            if isinstance(step, _Names):
                names.append(number)
            elif isinstance(step, _Sync):
                names = [name for name in names if not self._is_durable(self.steps[name], step)]
                for inode in self._content if step.inode is None else [step.inode]:
                    synced[inode] = number
        return names, synced

    @staticmethod
    def _is_durable(step: _Step, sync: _Sync) -> bool:
        assert isinstance(step, _Names)
        return sync.inode is None or step.folder == sync.inode

    def _place_files(self, at: int, lost: frozenset[int]) -> dict[str, int]:
        """Return the inodes of all files and folders, by their paths."""
        entries = {inode: dict(names) for inode, names in self._before.items()}
        for number, step in enumerate(self.steps[:at]):
            if isinstance(step, _Names) and number not in lost:
                for parent, name, old, new in step.changes:
                    names = entries.setdefault(parent, {})
                    if new is not None:
                        names[name] = new
                    elif names.get(name) == old:
                        del names[name]
        places: dict[str, int] = {}
        folders = [("", 0)]
        while folders:
            prefix, folder = folders.pop()
            for name, inode in entries.get(folder, {}).items():
                if name.endswith("-shm"):
                    continue  # written through memory, and made again by the first reader
                places[f"{prefix}{name}"] = inode
                if inode not in self._content:
                    folders.append((f"{prefix}{name}/", inode))
        return places

    def write(self, crash: Crash) -> None:
        """Replace the folder by the state after a power failure."""
        _, synced = self._unsynced(crash.at)
        data = {inode: bytearray(each) for inode, each in self._content.items()}
        cut: dict[int, tuple[int, int]] = {}
        for number, step in enumerate(self.steps[: crash.at]):
            if not isinstance(step, _Bytes):
                continue
            is_durable = number < synced.get(step.inode, 0)
            if is_durable or crash.content != "lost":
                _apply(data[step.inode], step, zeros=not is_durable and crash.content == "zeros")
            if not is_durable and crash.content == "cut off":
                start, end = cut.get(step.inode, (step.offset, 0))
                cut[step.inode] = start, max(end, step.offset + len(step.data or b""))
        for inode, (start, end) in cut.items():
            del data[inode][(start + end) // 2 :]
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        for path, inode in sorted(self._place_files(crash.at, crash.lost).items()):
            if inode in data:
                (self.folder / path).write_bytes(data[inode])
            else:
                (self.folder / path).mkdir()


def _apply(data: bytearray, step: _Bytes, *, zeros: bool) -> None:
    if len(data) < step.offset:
        data.extend(bytes(step.offset - len(data)))
    if step.data is None:
        del data[step.offset :]
    else:
        written = bytes(len(step.data)) if zeros else step.data
        data[step.offset : step.offset + len(step.data)] = written


def _selections(names: Sequence[int], chance: random.Random) -> Iterator[frozenset[int]]:
    """Yield sets of the changes that are lost: all of them if there are few, otherwise a selection."""
    if len(names) <= _MOST_COMBINED:
        for chosen in product((False, True), repeat=len(names)):
            yield frozenset(name for name, lost in zip(names, chosen, strict=True) if lost)
        return
    for at in range(len(names) + 1):
        yield frozenset(names[at:])  # only the first ones survive
        yield frozenset(names[:at])  # only the last ones
    for name in names:
        yield frozenset([name])
        yield frozenset(names) - {name}
    for _ in range(_SELECTED):
        yield frozenset(name for name in names if chance.random() < 0.5)


class Crashes(NamedTuple):
    """The result of all crashes of an operation.

    Attributes:
        steps: number of recorded steps.
        states: number of different states.
        failures: reports of the failed checks.
    """

    steps: int
    states: int
    failures: list[str]


def crash_operation(name: str, most: int | None = None) -> Crashes:
    """Check the states of one operation, at most ``most`` of them, evenly chosen."""
    with tempfile.TemporaryDirectory(prefix="odf-crashes-") as base:
        harness = Harness(name, Path(base).resolve())
        disk = Disk(harness.folder)
        for call in record(harness.run, _RECORDED):
            disk.apply(call)
        crashes = list(disk.crashes())
        if most is not None:
            crashes = crashes[:: max(1, len(crashes) // most)]
        failures: list[str] = []
        for number, crash in enumerate(crashes):
            disk.write(crash)
            harness.tries = number
            try:
                found = harness.check(None, False)
                assert found == harness.new or not crash.is_end, "the operation was successful, and is lost"
            except Exception:
                failures.append(f"{name}, {crash}\n{traceback.format_exc(limit=-4)}")
        return Crashes(len(disk.steps), len(crashes), failures)


def main() -> int:
    """Check the operations that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.crash_states")
    parser.add_argument("operation", nargs="*", help=f"of {', '.join(OPERATIONS)}; all by default")
    parser.add_argument("--most", type=int, help="check at most about N states of each operation")
    options = parser.parse_args()
    exit_untraced()
    states = failures = 0
    for name in options.operation or OPERATIONS:
        begun = time.monotonic()
        done = crash_operation(name, options.most)
        for failure in done.failures:
            print(failure, flush=True)
        print(
            f"{name}: {done.steps} steps, {done.states} states, {len(done.failures)} failures,"
            f" {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        states += done.states
        failures += len(done.failures)
    print(f"{states} states, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
