"""Programs that create a sandbox, its limits, and what a process in it can read."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import odf_engine
from odf_engine.base.config import SandboxConfig, parse_size
from odf_engine.base.progress import Reporter
from odf_engine.errors import NotTrusted, OdfError
from odf_engine.isolation.namespaces import (
    PROGRAMS,
    MountSandbox,
    Program,
    SandboxLimits,
    unavailable_reason,
)

_WATCH_SECONDS: Final = 0.5
_MIN_FREE_BYTES: Final = 1 << 30
_MAX_OUTPUT_BYTES: Final = 16 << 20
_BLOCK_BYTES: Final = 4096
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store")
_SETTINGS: Final = (
    "alternatives", "group", "host.conf", "hosts", "java*", "ld.so.*", "localtime", "nsswitch.conf", "passwd"
)  # fmt: skip


def find_program(
    config: SandboxConfig, sandbox: MountSandbox, name: str, reporter: Reporter, *, dataset: bool
) -> Program | None:
    """Return the program that creates a sandbox, or None if none is available and that is allowed.

    Args:
        config: the sandbox settings.
        sandbox: the sandbox.
        name: name of the dataset or other origin of the queries, for errors.
        reporter: receives how the query runs.
        dataset: whether the queries belong to a dataset, which can be trusted.

    Raises:
        NotTrusted: none is available.
    """
    reasons: list[str] = []
    for program in PROGRAMS if config.program == "auto" else (config.program,):
        reason = unavailable_reason(program, sandbox)
        if reason is None:
            reporter.log(f"{name} is untrusted: its query runs in a sandbox ({program})")
            return program
        reasons.append(f"{program}: {reason}")
    if config.allow_without:
        reporter.log("no sandbox is available: the query runs without one (sandbox.allowWithout)", "warning")
        return None
    raise NotTrusted(
        f"{name} is untrusted, and no sandbox is available for its query ({'; '.join(reasons)})",
        hint="install bubblewrap; "
        + (f"or run odf trust {name}; " if dataset else "")
        + "or run all untrusted queries without a sandbox: odf config set sandbox.allowWithout true",
    )


class LimitWatch(threading.Thread):
    """Kills a process whose sandbox exceeds a limit that the kernel does not enforce.

    Args:
        process: started with a command of :meth:`MountSandbox.wrap_command`.
        folders: its writable folders on disks of this machine.
        log: log file of the process, and the offset of its output.
        config: the limits.
        timed: whether ``sandbox.minutes`` limits the duration of the process.

    Attributes:
        exceeded: error for the exceeded limit; None otherwise.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        folders: Iterable[Path],
        log: tuple[Path, int],
        config: SandboxConfig,
        *,
        timed: bool = False,
    ) -> None:
        super().__init__(name="sandbox-watch", daemon=True)
        self._process = process
        self._folders = list(folders)
        self._log, self._begin = log
        self._config = config
        self._deadline = time.monotonic() + config.minutes * 60 if timed else math.inf
        # The folder does not show the space of files that are deleted but open.
        self._least_free = {
            folder: min(_MIN_FREE_BYTES, _free_bytes(folder) // 2) for folder in self._folders
        }
        self.exceeded: OdfError | None = None

    def run(self) -> None:
        """Check the limits until the process exits."""
        while self._process.poll() is None:
            try:
                self.exceeded = self._find_exceeded()
            except OSError as error:
                self.exceeded = _stopped_error(f"its limits cannot be checked: {error}", hint=None)
            if self.exceeded is not None:
                self._process.kill()
                self._process.wait()
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_WATCH_SECONDS)

    def _find_exceeded(self) -> OdfError | None:
        disk, processes = self._config.disk, self._config.processes
        if time.monotonic() > self._deadline:
            problem = f"it ran longer than sandbox.minutes ({self._config.minutes:g})"
            return _stopped_error(problem, hint="increase the limit: odf config set sandbox.minutes N")
        if _count_threads(self._process.pid, processes) > processes:
            problem = f"it started more than sandbox.processes ({processes})"
            return _stopped_error(problem, hint="increase the limit: odf config set sandbox.processes NUMBER")
        if sum(map(_disk_usage, self._folders)) > parse_size(disk):
            problem = f"it used more than sandbox.disk ({disk})"
            return _stopped_error(problem, hint="increase the limit: odf config set sandbox.disk SIZE")
        if any(_free_bytes(folder) < min_free for folder, min_free in self._least_free.items()):
            return _stopped_error("the disk is almost full", hint="free disk space and try again")
        if self._log.stat().st_size - self._begin > _MAX_OUTPUT_BYTES:
            return _stopped_error(
                f"it printed more than {_MAX_OUTPUT_BYTES >> 20} MiB", hint=f"see the log {self._log}"
            )
        return None


def _stopped_error(reason: str, hint: str | None) -> OdfError:
    return OdfError(f"the engine in the sandbox was stopped: {reason}", hint=hint)


def _disk_usage(folder: Path) -> int:
    """Return the disk usage of a folder in bytes; each file counts as one block at least.

    Raises:
        OSError: a folder is unreadable; the process could hide files in it.
    """
    used = 0
    pending = [folder]
    while pending:
        with contextlib.suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    used += max(entry.stat(follow_symlinks=False).st_blocks * 512, _BLOCK_BYTES)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
    return used


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _count_threads(pid: int, limit: int) -> int:
    """Return the number of threads of a process and its descendants. Counting stops above ``limit``."""
    count = 0
    pending = [pid]
    while pending and count <= limit:
        with contextlib.suppress(OSError):  # exited since it was listed
            for task in Path(f"/proc/{pending.pop()}/task").iterdir():
                count += 1
                pending += map(int, (task / "children").read_text().split())
    return count


def kernel_limits(config: SandboxConfig) -> SandboxLimits:
    """Return the limits of each process in a sandbox."""
    return SandboxLimits(
        memory=2 * parse_size(config.memory) + (1 << 30),  # Java needs more than its heap
        file=parse_size(config.disk),
        tmp=parse_size(config.tmp),
        processes=config.processes,
    )


def python_paths() -> list[Path]:
    """Return the paths of the system, of Python and of its packages, which a sandbox can read."""
    return [
        *map(Path, _SYSTEM),
        *(path for pattern in _SETTINGS for path in sorted(Path("/etc").glob(pattern))),
        *map(Path, dict.fromkeys((sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix))),
        *(Path(folder) for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")),
        Path(odf_engine.__path__[0]),  # of a source checkout, only this program's package
    ]


def sandbox_environment(scratch: Path) -> dict[str, str]:
    """Return the environment of a sandboxed process, without secrets."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/tmp",
        "TMPDIR": str(scratch),
        "PYTHONPATH": str(Path(odf_engine.__path__[0]).parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
