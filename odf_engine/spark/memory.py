"""How much memory Spark's Java has."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


@dataclass(frozen=True)
class Memory:
    """Bytes: of Java's heap in use and at most, and what the process holds of the machine's memory."""

    heap: int
    heap_max: int
    resident: int


def memory_of(context: SparkContext, pid: int) -> Memory | None:
    """What the Java process of a Spark has; None when it has ended. It takes about a millisecond."""
    from py4j.protocol import Py4JError

    java: Any = context._jvm
    try:
        runtime = java.java.lang.Runtime.getRuntime()
        used = int(runtime.totalMemory()) - int(runtime.freeMemory())
        return Memory(used, int(runtime.maxMemory()), resident(pid))
    except (Py4JError, OSError):
        return None


def resident(pid: int | str = "self") -> int:
    """Bytes of the machine's memory that a process holds; 0 where that cannot be known."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
