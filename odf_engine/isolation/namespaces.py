"""Isolates a process with Linux namespaces; also a script that imports no other module of this program."""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Program = Literal["bwrap", "unshare"]
PROGRAMS: Final[tuple[Program, ...]] = ("bwrap", "unshare")

_LIMIT_SCRIPT: Final = """\
import os, resource, sys
for each in sys.argv[1].split():
    name, _, value = each.partition("=")
    kind = getattr(resource, "RLIMIT_" + name)
    least = min(limit for limit in (int(value), *resource.getrlimit(kind)) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(kind, (least, least))
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Sets kernel limits, then runs a command. It runs in the sandbox: the kernel counts processes per user
namespace in which the limit is set.
"""

_PYTHON: Final = (sys.executable, "-I", "-S")
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_PROBE_SECONDS: Final = 20


@dataclass(frozen=True)
class SandboxLimits:
    """Resource limits of processes in a sandbox.

    Attributes:
        memory: memory of each process, in bytes.
        file: size of each file, in bytes.
        tmp: size of ``/tmp`` and of ``/dev/shm``, in bytes of memory.
        processes: number of concurrent processes and threads. Some kernels do not enforce it, and none does
            for root: :class:`odf_engine.isolation.sandbox_process.LimitWatch` does.
    """

    memory: int
    file: int
    tmp: int
    processes: int


@dataclass(frozen=True)
class MountSandbox:
    """The file system of a sandbox: these files and folders, by their path inside, and an empty ``/tmp``.

    Attributes:
        read: read-only paths; missing ones are skipped.
        write: writable folders.
        limits: resource limits.
    """

    read: Mapping[Path, Path]
    write: Mapping[Path, Path]
    limits: SandboxLimits

    def wrap_command(self, program: Program, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` in the sandbox; it ends with its parent process."""
        read = {inside: outside for inside, outside in self.read.items() if outside.exists()}
        if program == "unshare":
            wrapper = [
                "setpriv",
                "--pdeathsig",
                "KILL",
                "--",
                "unshare",
                "--user",
                "--map-root-user",
                "--net",
            ]
            wrapper += ["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--"]
            wrapper += [*_PYTHON, str(Path(__file__).resolve()), "--tmp", str(self.limits.tmp)]
            names, suffix = ("--read", "--write"), []
        else:
            wrapper = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
            wrapper += ["--proc", "/proc", "--dev", "/dev", "--chdir", "/"]
            for folder in ("/tmp", "/dev/shm"):
                wrapper += ["--size", str(self.limits.tmp), "--tmpfs", folder]
            names = "--ro-bind", "--bind"
            # /dev and / are in memory, without a limit. In /proc root could change settings of the machine.
            suffix = [part for folder in ("/dev", "/proc", "/") for part in ("--remount-ro", folder)]
        for name, places in zip(names, (read, self.write), strict=True):
            for inside, outside in places.items():
                wrapper += [name, str(outside), str(inside)]
        limited = [*_PYTHON, "-c", _LIMIT_SCRIPT, self._kernel_limits(), *command]
        return [*wrapper, *suffix, "--", *limited]

    def _kernel_limits(self) -> str:
        """Return the limits that the kernel enforces per process, in the format of :data:`_LIMIT_SCRIPT`."""
        limits = f"DATA={self.limits.memory} FSIZE={self.limits.file} CORE=0"
        release = re.match(r"(\d+)\.(\d+)", platform.release())
        # An older kernel would count all processes of the user on this machine.
        counts = release is not None and (int(release[1]), int(release[2])) >= (5, 14)
        return f"{limits} NPROC={self.limits.processes}" if counts else limits


def unavailable_reason(program: Program, sandbox: MountSandbox) -> str | None:
    """Return why a program cannot create a sandbox here, in a few words, or None if it can."""
    if shutil.which(program) is None:
        return "not installed"
    command = sandbox.wrap_command(program, [*_PYTHON, "-c", ""])
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = completed.stderr.strip().splitlines()
    return None if completed.returncode == 0 else lines[-1] if lines else f"exit code {completed.returncode}"


_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
_MS_NOATIME, _MS_NODIRATIME, _MS_BIND, _MS_REC = 0x400, 0x800, 0x1000, 0x4000
_MS_PRIVATE, _MS_RELATIME, _MNT_DETACH = 0x40000, 0x200000, 2
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
"""Number of the system call, for which C libraries have no function."""
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _MAX_CAPABILITIES = 24, 38, 64
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_OLD, _NEW = Path("/old"), Path("/new")


def _call_libc(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    c_arguments = [
        os.fsencode(argument) if isinstance(argument, str | Path) else argument for argument in arguments
    ]
    if getattr(libc, function)(*c_arguments) != 0:
        call_text = " ".join(str(argument) for argument in arguments)
        raise SystemExit(f"{function} {call_text}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str | Path, target: Path, filesystem: str, flags: int, data: str = "") -> None:
    _call_libc("mount", source, target, filesystem, ctypes.c_ulong(flags), data)


def _pivot_root(root: Path, old: Path) -> None:
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise SystemExit(f"not known for {platform.machine()}")
    _call_libc("syscall", ctypes.c_long(number), root, old)


def _build_root(read: Sequence[Sequence[Path]], write: Sequence[Sequence[Path]], tmp: int) -> None:
    """Build a file system of these paths alone, and make it the root."""
    _mount("none", Path("/"), "", _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", Path("/tmp"), "tmpfs", _MS_NOSUID | _MS_NODEV)
    for folder in (_OLD, _NEW):
        (Path("/tmp") / folder.name).mkdir()
    _pivot_root(Path("/tmp"), Path("/tmp") / _OLD.name)
    os.chdir("/")
    _mount("tmpfs", _NEW, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=64m,mode=0755")
    for name in ("proc", "tmp", "dev"):
        (_NEW / name).mkdir()
    _mount("tmpfs", _NEW / "tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={tmp}")
    # In /proc root could change settings of the machine.
    _mount("proc", _NEW / "proc", "proc", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    for name in _DEVICES:
        _bind_mount(Path("/dev") / name, Path("/dev") / name, write=True)
    for path, inside in read:
        _bind_mount(path, inside, write=False)
    for outside, inside in write:
        _bind_mount(outside, inside, write=True)
    os.chdir(_NEW)
    _pivot_root(Path(), Path())
    _call_libc("umount2", Path(), _MNT_DETACH)
    os.chdir("/")
    _mount("none", Path("/"), "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _bind_mount(path: Path, inside: Path, *, write: bool) -> None:
    """Mount a file or folder of the old root at a path of the new one."""
    # The kernel would resolve links relative to the current root.
    source, target = _resolve_link(_OLD / path.relative_to("/")), _NEW / inside.relative_to("/")
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(source, target, "", _MS_BIND | (_MS_REC if write else 0))
    flags = _MS_REMOUNT | _MS_BIND | _MS_NOSUID | _locked_flags(target) | (0 if write else _MS_RDONLY)
    _mount("none", target, "", flags)


def _resolve_link(path: Path) -> Path:
    for _ in range(40):
        if not path.is_symlink():
            return path
        link = path.readlink()
        path = _OLD / link.relative_to("/") if link.is_absolute() else path.parent / link
    raise SystemExit(f"{path}: too many links")


def _locked_flags(target: Path) -> int:
    """Return the mount flags that must stay: only the owner of the mount may change them."""
    flags = os.statvfs(target).f_flag
    names = {os.ST_NODEV: _MS_NODEV, os.ST_NOEXEC: _MS_NOEXEC, os.ST_NOATIME: _MS_NOATIME,
             os.ST_NODIRATIME: _MS_NODIRATIME, os.ST_RELATIME: _MS_RELATIME,
             os.ST_RDONLY: _MS_RDONLY}  # fmt: skip
    return sum(flag for bit, flag in names.items() if flags & bit)


def _enable_loopback() -> None:
    """Enable the loopback interface, the only network: Java and Python communicate over it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _drop_privileges() -> None:
    for capability in range(_MAX_CAPABILITIES):
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for undefined capabilities
    _call_libc("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", type=Path, nargs=2, action="append", default=[])
    parser.add_argument("--write", type=Path, nargs=2, action="append", default=[])
    parser.add_argument("--tmp", type=int, required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    _enable_loopback()
    _build_root(arguments.read, arguments.write, arguments.tmp)
    _drop_privileges()
    os.execv(arguments.command[0], arguments.command)


if __name__ == "__main__":
    _main()
