"""Fuzzing: mutated inputs for every decoder that reads bytes of others.

    python -m tests.faults.fuzzing [TARGET…] [--seconds N | --inputs N] [--seed S]

Each input must end in a result or in an error that the target allows, with at most 2,000 characters, within
5 seconds of processor time and limited memory, and without a crash of the process. An input that fails is
stored in ``corpus/TARGET/``, one for each place in the code that failed. The suite replays the corpus for
ever, so it keeps the inputs of repaired errors.

Inputs follow from the seed, their number and the seeds of the target, so that a run can be repeated. There
is no feedback of coverage. Targets run in forked processes; the first input that crashes a process is
reported by its parent, which continues with the next one.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import mmap
import os
import pkgutil
import random
import resource
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from odf_engine.errors import OdfError
from tests.faults.fuzz_scene import Scene, Target, make_workspace
from tests.faults.fuzz_targets import TARGETS

CORPUS: Final = Path(__file__).with_name("corpus")
_MAX_TEXT: Final = 2000
_MAX_SECONDS: Final = 5
_MAX_GROWTH: Final = 500 << 10
"""KiB that the memory of the process may grow with one input."""
_MAX_DATA: Final = 4 << 30
_MAX_INPUT: Final = 1 << 18
_HUNG: Final = 60
"""Seconds without a result until the parent kills a process, such as one that waits in a system call."""


_NUMBERS: Final = (0, 1, 2, 4, 127, 128, 255, 1 << 15, (1 << 16) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
                   (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
_DIGITS: Final = (b"0", b"-1", b"9" * 19, b"9" * 400, b"1e400", b"-0.0", b"1e-400", b"NaN", b"\xc2\xb2")
_WORDS: Final = (
    b"\x00", b"\x1b[2J", b"\xe2\x80\xae", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"%ff", b"\xef\xbb\xbf",
    b"[" * 3000, b'{"a":' * 3000, b"(" * 3000, b"- " * 3000, b"A" * 20_000, b"\xc3\xa4" * 9000, b"../" * 9,
    b"//", b"\r\n", b"\n", b" ", b'"', b"'", b"&a *a", b"null", b"{}", b"[]", b"true", b"",
)  # fmt: skip
_PARTS: Final = (b"\n", b",", b":", b"/", b'"', b" ")


def mutate(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """Return one of the seeds with one to eight changes."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5, 8))):
        _change(data, seeds, chance)
    return bytes(data[:_MAX_INPUT])


def _change(data: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    end = min(len(data), at + chance.choice((1, 2, 4, 8, 32, 200)))
    match chance.randrange(12):
        case 0 | 1 if at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        case 2 if at < len(data):
            data[at] = chance.randrange(256)
        case 3:
            del data[at:end]
        case 4:
            data[at:at] = data[at:end] * chance.choice((1, 1, 2, 50))
        case 5:
            del data[at:]
        case 6:
            other = chance.choice(seeds)
            data[at:] = other[chance.randrange(len(other) + 1) :]
        case 7:
            width, order = chance.choice((1, 2, 4, 8)), chance.choice(("little", "big"))
            number = chance.choice((*_NUMBERS, len(data), len(data) - at))
            data[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width, order)
        case 8:
            data[at : chance.choice((at, end))] = chance.choice(_WORDS)
        case 9:
            _replace_number(data, at, chance)
        case 10:
            parts = bytes(data).split(separator := chance.choice(_PARTS))
            parts[chance.randrange(len(parts))] = chance.choice((*parts, *_WORDS, *_DIGITS))
            data[:] = separator.join(parts)
        case _:
            data[at:at] = chance.randbytes(end - at)


def _replace_number(data: bytearray, at: int, chance: random.Random) -> None:
    while at < len(data) and not 48 <= data[at] < 58:
        at += 1
    end = at
    while end < len(data) and 48 <= data[end] < 58:
        end += 1
    data[at:end] = chance.choice(_DIGITS)


class Slow(BaseException):
    """An input takes too much time."""


class Failure(NamedTuple):
    """What an input did that it must not do; ``place`` identifies the code."""

    place: str
    text: str


def attempt(target: Target, scene: Scene, data: bytes) -> Failure | None:
    """Run a target on an input."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, _MAX_SECONDS)
    failure = None
    try:
        target.run(data, scene)
    except target.allowed as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        texts = (error.message, error.hint or "", error.where or "") if isinstance(error, OdfError) else ()
        if (length := max(map(len, texts), default=0)) > _MAX_TEXT:
            failure = Failure(f"{_place_of(error)} long", f"a text of {length:,} characters")
    except BaseException as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        failure = Failure(_place_of(error), "".join(traceback.format_exception(error)[-6:])[-3000:])
        del error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if failure is None and growth > _MAX_GROWTH:
        failure = Failure("memory", f"the memory has grown by {growth >> 10:,} MiB")
    return failure


def _place_of(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/odf_" in frame.filename]
    place = f"{Path(frames[-1].filename).stem} {frames[-1].name}" if frames else ""
    return f"{type(error).__name__} {place}"


class _Report:
    """Memory that a process shares with its parent: how far it is, and the input that it runs."""

    _HEAD: Final = struct.Struct("<QQQ")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._HEAD.size + _MAX_INPUT)
        self.inputs = self.failures = 0

    def start(self, data: bytes) -> None:
        self._memory.seek(0)
        self._memory.write(self._HEAD.pack(self.inputs, self.failures, len(data)) + data[:_MAX_INPUT])

    def read(self) -> bytes:
        """Update the counts, and return the input."""
        self.inputs, self.failures, length = self._HEAD.unpack_from(self._memory)
        return self._memory[self._HEAD.size : self._HEAD.size + length]


class Limits(NamedTuple):
    """How long a target runs: seconds, inputs besides the corpus, and the seed of the inputs."""

    seconds: float
    inputs: int
    seed: int


def run_target(target: Target, workspace: Path, limits: Limits) -> tuple[int, int]:
    """Run a target in processes; the number of inputs and of failures."""
    report, deadline = _Report(), time.monotonic() + limits.seconds
    while True:
        code = _fork(lambda: _run_inputs(target, workspace, limits, report, deadline), report)
        data = report.read()
        if code >= 0:
            return report.inputs, report.failures + code
        _store(target.name, Failure(f"signal {-code}", "the process has ended"), data)
        report.inputs += 1
        report.failures += 1
        report.start(b"")


def _fork(work: Callable[[], object], report: _Report) -> int:
    """Do some work in a process; its exit code, negative after a signal."""
    pid = os.fork()
    if pid:
        return _wait(pid, report)
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _wait(pid: int, report: _Report) -> int:
    """Wait for the end of a process; its exit code. One that does nothing for long is killed."""
    known, since = -1, time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        report.read()
        if report.inputs != known:
            known, since = report.inputs, time.monotonic()
        elif time.monotonic() - since > _HUNG:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _run_inputs(target: Target, workspace: Path, limits: Limits, report: _Report, deadline: float) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_DATA, _MAX_DATA))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _raise_slow)
    os.fsync = lambda _: None  # the machine does not crash here
    with tempfile.TemporaryDirectory(dir=workspace.parent) as folder:
        scene = Scene(Path(folder), workspace)
        for number, data in enumerate(_inputs(target, scene, limits)):
            if number < report.inputs:
                continue  # before the crash of an earlier process
            if time.monotonic() > deadline:
                break
            report.start(data)
            failure = attempt(target, scene, data)
            report.inputs += 1
            if failure is not None:
                _store(target.name, failure, data)
                report.failures += 1
        report.start(b"")


def _raise_slow(*_: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        raise Slow


def _inputs(target: Target, scene: Scene, limits: Limits) -> Iterator[bytes]:
    """The corpus, then mutations of the seeds."""
    yield from (path.read_bytes() for path in sorted((CORPUS / target.name).glob("*")))
    seeds = target.seeds(scene)
    for number in range(limits.inputs // target.cost):
        yield mutate(seeds, random.Random(f"{target.name} {limits.seed} {number}"))


def _store(name: str, failure: Failure, data: bytes) -> None:
    """Store a failing input in the corpus, unless it has one of the same place; print what failed."""
    path = CORPUS / name / hashlib.sha256(failure.place.encode()).hexdigest()[:12]
    if failure.place not in _printed:
        print(f"--- {name}: {failure.place}: {data[:80]!r}\n{failure.text}", flush=True)
        _printed.add(failure.place)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


_MODULES: Final = (
    "odf_tui.cli",
    "odf_engine.metadata",
    "odf_engine.data",
    "odf_engine.sync.remotes",
    "odf_engine.sql",
)
_printed: Final[set[str]] = set()


def main() -> int:
    """Run the chosen targets; the number of failures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--inputs", type=int, default=1 << 40, help="for each target, besides the corpus")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    limits = Limits(options.seconds, options.inputs, options.seed)
    unknown = set(options.targets) - {target.name for target in TARGETS}
    if unknown:
        parser.error(f"unknown targets: {', '.join(unknown)}")
    for name in _MODULES:  # those that are imported when they are first used
        for found in pkgutil.walk_packages(import_module(name).__path__, f"{name}."):
            import_module(found.name)
    gc.freeze()
    rows = []
    with tempfile.TemporaryDirectory(prefix="odf-fuzz-") as folder:
        workspace = Path(folder) / "workspace"
        # In a process: this one must not have threads or connections when it forks.
        if _fork(lambda: make_workspace(workspace), _Report()):
            return 1
        for target in TARGETS:
            if not options.targets or target.name in options.targets:
                began = time.monotonic()
                rows.append((target.name, *run_target(target, workspace, limits), time.monotonic() - began))
    print(f"{'target':<22}{'inputs':>12}{'failures':>10}{'seconds':>9}")
    for name, inputs, failures, seconds in [
        *rows,
        ("total", *(sum(row[at] for row in rows) for at in (1, 2, 3))),
    ]:
        print(f"{name:<22}{inputs:>12,}{failures:>10,}{seconds:>9.1f}")
    return min(1, sum(row[2] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
