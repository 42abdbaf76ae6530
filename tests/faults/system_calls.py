"""Interrupts operations at each of their system calls: by a kill, and by an error of the disk.

    python -m tests.faults.system_calls [OPERATION…] [--every N | --most N] [--reads]

The operation runs in a process of its own, which strace traces. A first run records the system calls that
change files of the workspace. Each further run kills the process just before one of them, or makes this call
fail with EIO or ENOSPC; the workspace is checked after each run. With ``--reads`` calls that read files fail
with EIO, too. Prints the number of tries and failures.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from tests.faults.operations import (
    OPERATIONS,
    State,
    check,
    describe_outcome,
    list_files,
    read_state,
    repair,
)
from tests.waiting import wait_until

WRITES: Final = (
    "write", "pwrite64", "writev", "pwritev", "fsync", "fdatasync", "syncfs", "ftruncate", "truncate",
    "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat",
    "rmdir", "mkdir", "mkdirat", "open", "openat", "creat",
)  # fmt: skip
READS: Final = ("open", "openat", "newfstatat", "statx", "getdents64", "read", "pread64", "flock")
CHANGED: Final = (".odf", "usb")
"""Folders below that of an operation in which calls fail; others are those of a remote workspace."""
_OPENS: Final = ("open", "openat")
_PR_SET_PTRACER: Final = 0x59616D61
_LINE: Final = re.compile(r"(\d+) +(\w+)\((.*)")
_RESUMED: Final = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")
_UNFINISHED: Final = " <unfinished ...>"
_KILL: Final = "signal=KILL"
_FAULTS: Final = (_KILL, "error=EIO", "error=ENOSPC")
UNTRACED: Final = 77
"""The exit code if processes cannot be traced here."""
_libc: Final = ctypes.CDLL(None, use_errno=True)


class SystemCall(NamedTuple):
    """A system call of a recorded run.

    Attributes:
        thread: the number of its thread, in the order in which threads start.
        name: its name.
        ordinal: its number among the calls of this name in this thread, from 1 on.
        text: its arguments and its result.
        failed: whether it returned an error.
    """

    thread: int
    name: str
    ordinal: int
    text: str
    failed: bool

    @property
    def strings(self) -> list[tuple[str, bytes]]:
        """The strings among the arguments, in order: ``fd`` (the path of a descriptor), or ``text``."""
        found = re.finditer(r'([<"])((?:\\x[0-9a-f]{2})*)[>"]', self.text)
        kinds = {"<": "fd", '"': "text"}
        return [(kinds[each[1]], bytes.fromhex(each[2].replace("\\x", ""))) for each in found]

    @property
    def paths(self) -> list[str]:
        """The paths that the call concerns."""
        strings = self.strings
        if self.name in ("write", "pwrite64", "writev", "pwritev", "read", "pread64", "getdents64"):
            return [each.decode() for kind, each in strings[:1] if kind == "fd"]
        base, found = "", []
        for kind, each in strings:
            if kind == "text":
                found.append(os.path.join(base, os.fsdecode(each)))  # noqa: PTH118
            else:
                base = os.fsdecode(each)
        return found or [base]

    def __str__(self) -> str:
        return f"{self.name} #{self.ordinal} of thread {self.thread} ({', '.join(self.paths)})"


def missing_tracer() -> str:
    """Return why processes cannot be traced here; empty if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    try:
        _trace(lambda: None, [], Path(os.devnull))
    except RuntimeError as error:
        return str(error)
    return ""


def record(run: Callable[[], object], calls: Iterable[str] = WRITES) -> list[SystemCall]:
    """Run something in a process of its own; return its system calls."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        names = ",".join(f"?{name}" for name in calls)
        outcome = _trace(run, ["-y", "-xx", "-s", "100000000", "-e", f"trace={names}"], log)
        assert outcome == "", f"without a fault: {outcome}"
        return list(_parse(log.read_text().splitlines()))


def interrupt(
    run: Callable[[], object], name: str, ordinal: int, thread: int, fault: str, stride: int
) -> tuple[str | None, bool]:
    """Run something in a process of its own, of which one system call is the place of a fault.

    Args:
        run: the change.
        name, ordinal, thread: the system call.
        fault: as in the option ``inject`` of strace.
        stride: more than the ordinals of all calls with this name in one thread.

    Returns:
        The error text of the change, None if it was killed; and whether the call was reached.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        options = ["-e", f"trace={name}", "-e", f"inject={name}:{fault}:when={thread * stride + ordinal}"]
        outcome = _trace(run, options, log, (name, stride))
        hit = outcome is None if fault == _KILL else "(INJECTED)" in log.read_text()
        return outcome, hit


def _trace(
    run: Callable[[], object], options: Sequence[str], log: Path, counted: tuple[str, int] | None = None
) -> str | None:
    """Run something in a process of its own with strace; return its error text, None if it was killed.

    Raises:
        RuntimeError: the process cannot be traced.
    """
    (started, start), (reading, writing) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
            os.read(started, 1)
            _number_threads(counted)
            text = describe_outcome(run)
            os.write(writing, text.encode(errors="replace")[-60_000:])
        finally:
            os._exit(0)
    for descriptor in (started, writing):
        os.close(descriptor)
    command = ["strace", "-f", "-qq", "-o", str(log), *options, "-p", str(pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        status = Path(f"/proc/{pid}/status")
        wait_until(lambda: "TracerPid:\t0" not in status.read_text() or tracer.poll() is not None, 60, 0.001)
        if tracer.poll() is not None:
            os.kill(pid, signal.SIGKILL)
            assert tracer.stderr is not None
            raise RuntimeError(f"strace does not work here: {tracer.stderr.read().decode().strip()}")
        os.write(start, b"x")
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read().decode()
    finally:
        os.close(start)
        _, status = os.waitpid(pid, 0)
        tracer.communicate()
    return None if os.WIFSIGNALED(status) else text


def _number_threads(counted: tuple[str, int] | None) -> None:
    """Let each thread start with a call by which a log shows its number.

    strace counts calls of each thread. ``counted`` is the name of a system call and a number of calls, by
    which each thread is ahead of the one before: then a count stands for one thread.
    """
    numbers, run_thread = count(1), threading.Thread.run

    def run(self: threading.Thread) -> None:
        number = next(numbers)
        _libc.write(-1, f"thread {number}".encode(), 20)
        if counted is not None:
            name, stride = counted
            call = getattr(_libc, name)
            for _ in range(number * stride):
                call(-1, -1, -1, -1)
        run_thread(self)

    threading.Thread.run = run


def _parse(lines: Iterable[str]) -> Iterator[SystemCall]:
    """Yield the calls in a log, in the order in which they ended."""
    numbers: dict[str, int] = {}
    ordinals: Counter[tuple[str, str]] = Counter()
    pending: dict[str, tuple[int, str]] = {}
    for line in lines:
        if match := _LINE.match(line):
            thread, name, rest = match.groups()
            numbers.setdefault(thread, len(numbers))
            ordinals[thread, name] += 1
            ordinal = ordinals[thread, name]
            if rest.endswith(_UNFINISHED):
                pending[thread] = ordinal, rest.removesuffix(_UNFINISHED)
                continue
        elif match := _RESUMED.match(line):
            thread, name, rest = match.groups()
            ordinal, start = pending.pop(thread)
            rest = start + rest
        else:
            continue  # the end of a thread
        call = SystemCall(numbers[thread], name, ordinal, rest, " = -1 " in rest)
        if call.strings and call.strings[0][1].startswith(b"thread "):
            numbers[thread] = int(call.strings[0][1].split(b"\0")[0][7:])
            continue
        yield call


class Try(NamedTuple):
    """A system call and the fault that it has."""

    call: SystemCall
    fault: str


class Harness:
    """Tries of one operation, in a folder that it may fill.

    Attributes:
        folder: the folder of the workspace, which is the same in all tries.
        old, new: the states before and after the operation.
        tries, missed, failures: counts and reports of the tries.
    """

    def __init__(self, name: str, base: Path) -> None:
        self.name, self.operation = name, OPERATIONS[name]
        self.folder, self._made = base / "work", base / "made"
        self.folder.mkdir()
        self.operation.make(self.folder)
        shutil.copytree(self.folder, self._made, symlinks=True)
        self._files: set[str] = set()
        self.old = self._read()
        self.run()  # imports all modules
        self.new = self._read()
        self.tries = self.missed = 0
        self.failures: list[str] = []

    def _read(self) -> State:
        """Return the state, and remember the files after a repair; then restore the workspace."""
        state = read_state(self.folder)
        repair(self.folder)
        self._files |= list_files(self.folder)
        self.restore()
        return state

    def restore(self) -> None:
        """Restore the workspace as before the operation."""
        shutil.rmtree(self.folder)
        shutil.copytree(self._made, self.folder, symlinks=True)

    def run(self) -> None:
        """Run the operation."""
        self.operation.run(self.folder)

    def plan(self, reads: bool = False) -> list[Try]:
        """Record the operation; return all tries."""
        calls = [call for call in record(self.run) if self._is_change(call)]
        tries = [Try(call, fault) for call in calls for fault in _FAULTS]
        self.restore()
        if reads:
            tries += [Try(call, "error=EIO") for call in record(self.run, READS) if self._is_read(call)]
            self.restore()
        strides: Counter[str] = Counter()
        for each in tries:
            strides[each.call.name] = max(strides[each.call.name], each.call.ordinal + 1)
        self._strides = strides
        return tries

    def _is_inside(self, call: SystemCall) -> bool:
        homes = [f"{self.folder}/{each}" for each in CHANGED]
        return any(path == home or path.startswith(f"{home}/") for path in call.paths for home in homes)

    def _is_change(self, call: SystemCall) -> bool:
        return self._is_inside(call) and (call.name not in _OPENS or "O_CREAT" in call.text)

    def _is_read(self, call: SystemCall) -> bool:
        return self._is_inside(call) and "O_CREAT" not in call.text and not call.failed

    def attempt(self, each: Try) -> None:
        """Run the operation with a fault, and check the workspace."""
        call, fault = each
        outcome, hit = interrupt(
            self.run, call.name, call.ordinal, call.thread, fault, self._strides[call.name]
        )
        try:
            self.check(outcome, hit)
        except Exception:
            last = "" if outcome is None else f"\n  reported: {outcome or 'success'}"
            self.failures.append(f"{self.name}, {fault} at {call}{last}\n{traceback.format_exc(limit=-4)}")
        self.tries += 1
        self.missed += not hit
        self.restore()

    def check(self, outcome: str | None, is_faulty: bool) -> State:
        """Check the workspace after a run; return the state that it was found in.

        Args:
            outcome: the error text, which is empty after success, or None if the process was killed.
            is_faulty: whether there was a fault.
        """
        found = check(self.operation, self.folder, self.old, self.new, self.tries)
        stray = list_files(self.folder) - self._files
        assert not stray, f"files remain after the repair: {stray}"
        if outcome is None:
            return found
        assert is_faulty or not outcome, "an error without a fault"
        assert not outcome.startswith("untyped"), "an error of the disk was not translated"
        if not outcome:
            assert found == self.new, "success is reported, but nothing was changed"
            return found
        assert "hint:" in outcome, "no remedy is reported"
        is_reported_as_made = "but could not be synced" in outcome
        if self.old != self.new:
            assert is_reported_as_made == (found == self.new), (
                f"made: {found == self.new}, reported otherwise"
            )
        return found


def try_operation(name: str, every: int = 1, most: int | None = None, reads: bool = False) -> Harness:
    """Run each n-th try of an operation, or about ``most`` of them, evenly chosen."""
    with tempfile.TemporaryDirectory(prefix="odf-calls-") as base:
        harness = Harness(name, Path(base).resolve())
        tries = harness.plan(reads)
        if most is not None:
            every = max(1, len(tries) // most)
            every += every > 1 and every % len(_FAULTS) == 0  # otherwise all tries have the same fault
        for each in tries[::every]:
            harness.attempt(each)
        return harness


def exit_untraced() -> None:
    """End the program, with an own code, if processes cannot be traced here."""
    if problem := missing_tracer():
        print(problem)
        sys.exit(UNTRACED)


def main() -> int:
    """Run the tries that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.system_calls")
    parser.add_argument("operation", nargs="*", help=f"of {', '.join(OPERATIONS)}; all by default")
    parser.add_argument("--every", type=int, default=1, help="run only each N-th try")
    parser.add_argument("--most", type=int, help="run at most about N tries of each operation")
    parser.add_argument("--reads", action="store_true", help="also let calls fail that read")
    options = parser.parse_args()
    exit_untraced()
    failures, tries = 0, 0
    for name in options.operation or OPERATIONS:
        begun = time.monotonic()
        done = try_operation(name, options.every, options.most, options.reads)
        seconds = time.monotonic() - begun
        for failure in done.failures:
            print(failure, flush=True)
        print(
            f"{name}: {done.tries} tries, {len(done.failures)} failures, {done.missed} not reached,"
            f" {seconds:.0f} s",
            flush=True,
        )
        failures += len(done.failures)
        tries += done.tries
    print(f"{tries} tries, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
