"""Metrics and figures of the benchmarks, and the measuring of time and memory."""

from __future__ import annotations

import contextlib
import enum
import importlib
import multiprocessing
import os
import re
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from odf_engine.spark.runtime.session import read_resident_memory

T = TypeVar("T")

SPAWN = multiprocessing.get_context("spawn")

_GOAL = re.compile(r"(<=|>=) ([\d.]+)(x)?")
_TICKS = os.sysconf("SC_CLK_TCK")


class Unavailable(Exception):
    """The benchmark cannot run on this machine."""


class Size(enum.Enum):
    """The amount of data: ``FULL`` for measurements, ``QUICK`` to check that a benchmark works."""

    FULL = "full"
    QUICK = "quick"

    def pick(self, full: int, quick: int) -> int:
        """Return the number for this size."""
        return full if self is Size.FULL else quick


class Cost(NamedTuple):
    """Seconds on the clock, and processor seconds of the process and its child processes."""

    wall: float
    processor: float


class Metric(NamedTuple):
    """What is measured.

    Attributes:
        what: the measured operation.
        baseline: the operation that it is compared with, or "".
        goal: ``<= 1.5x`` limits the ratio to the baseline, ``<= 300 MB`` the value; "" if there is no goal.
        unit: the unit of the value.
    """

    what: str
    baseline: str = ""
    goal: str = ""
    unit: str = "s"

    def figure(self, measured: float | Cost, baseline: float | Cost | None = None) -> Figure:
        """Return the figure for a measured value and the value of the baseline."""
        if isinstance(measured, Cost) and isinstance(baseline, Cost):
            cpu_ratio = _divide(measured.processor, baseline.processor)
            return Figure(self, measured.wall, baseline.wall, cpu_ratio)
        assert not isinstance(baseline, Cost)
        return Figure(self, measured.wall if isinstance(measured, Cost) else measured, baseline)

    def format(self, value: float | None) -> str:
        """Return a value with its unit, or "" for None."""
        if value is None:
            return ""
        unit = self.unit
        if unit == "s" and value < 1:
            value, unit = value * 1000, "ms"
        return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


class Figure(NamedTuple):
    """A measured value.

    Attributes:
        metric: what was measured.
        measured: the value.
        baseline: the value of the baseline, or None.
        cpu_ratio: the ratio of the processor times, which other programs on the machine change less.
    """

    metric: Metric
    measured: float
    baseline: float | None = None
    cpu_ratio: float | None = None

    @property
    def ratio(self) -> float | None:
        """The measured value divided by the baseline."""
        return None if self.baseline is None else _divide(self.measured, self.baseline)

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met, or None if there is no goal."""
        goal = _GOAL.match(self.metric.goal)
        if goal is None:
            return None
        value = self.ratio if goal[3] else self.measured
        assert value is not None
        return value <= float(goal[2]) if goal[1] == "<=" else value >= float(goal[2])


def _divide(value: float, by: float) -> float | None:
    return value / by if by else None


def run_benchmark(module: str, size: Size) -> list[Figure]:
    """Run the benchmark of a module in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="odf-bench-", ignore_cleanup_errors=True) as folder:
        return importlib.import_module(module).run(size, Path(folder))


def run_in_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process, and return its result."""
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        return pool.submit(function, *arguments).result()


def require(*programs: str) -> None:
    """Raise :class:`Unavailable` if a program is not installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise Unavailable(f"requires {', '.join(missing)}")


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(work: Callable[[], object], times: int) -> float:
    """Return the median of the seconds of several calls."""
    return statistics.median(timed(work) for _ in range(times))


def cost(work: Callable[[], object]) -> Cost:
    """Return the cost of a call."""
    before = processor_seconds()
    return Cost(timed(work), processor_seconds() - before)


def best(costs: Sequence[Cost]) -> Cost:
    """Return the minimum of the times, and of the processor times."""
    return Cost(min(wall for wall, _ in costs), min(processor for _, processor in costs))


def middle(costs: Sequence[Cost]) -> Cost:
    """Return the median of the times, and of the processor times."""
    walls, processors = zip(*costs, strict=True)
    return Cost(statistics.median(walls), statistics.median(processors))


def processor_seconds(pid: int | None = None) -> float:
    """Return the processor time of a process and its child processes; by default, of this process."""
    total = 0.0
    if pid is None:
        pid = os.getpid()
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            usage = resource.getrusage(who)
            total += usage.ru_utime + usage.ru_stime
    else:
        total += _read_processor_time(pid)
    return total + sum(map(_read_processor_time, children(pid)))


def _read_processor_time(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            pids += map(int, (task / "children").read_text().split())
    return pids


def read_status(field: str, pid: int | str = "self") -> int:
    """Return a number of ``/proc/PID/status``; sizes such as ``VmHWM`` are in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def max_memory() -> float:
    """Return the maximum resident memory of this process in MB."""
    return read_status("VmHWM") * 1024 / 1e6


class Peaks:
    """The maximum resident memory of processes in MB.

    Attributes:
        alone: the maximum of each process.
        together: the maximum of the sum.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self.alone = [0.0] * len(pids)
        self.together = 0.0
        self._stop = threading.Event()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Sample the memory ten times a second."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            now = [read_resident_memory(pid) / 1e6 for pid in self._pids]
            self.together = max(self.together, sum(now))
            self.alone = [max(pair) for pair in zip(self.alone, now, strict=True)]
