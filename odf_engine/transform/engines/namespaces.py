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

_LIMIT: Final = """\
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

_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_PROBE_SECONDS: Final = 20


@dataclass(frozen=True)
class Limits:
    """Resource limits of processes in a sandbox.

    Attributes:
        memory: memory of each process, in bytes.
        file: size of each file, in bytes.
        tmp: size of ``/tmp`` and of ``/dev/shm``, in bytes of memory.
        processes: number of concurrent processes and threads. Some kernels do not enforce it, and none does
            for root: :class:`odf_engine.transform.engines.sandbox.Watch` does.
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
    limits: Limits

    def wrap_command(self, program: Program, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` in the sandbox; it ends with its parent process."""
        read = {place: each for place, each in self.read.items() if each.exists()}
        if program == "unshare":
            shut = ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "--user", "--map-root-user", "--net"]
            shut += ["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--"]
            shut += [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "--tmp", str(self.limits.tmp)]
            names, last = ("--read", "--write"), []
        else:
            shut = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
            shut += ["--proc", "/proc", "--dev", "/dev", "--chdir", "/"]
            for folder in ("/tmp", "/dev/shm"):
                shut += ["--size", str(self.limits.tmp), "--tmpfs", folder]
            names = "--ro-bind", "--bind"
            # /dev and / are in memory, without a limit. In /proc root could change settings of the machine.
            last = [part for folder in ("/dev", "/proc", "/") for part in ("--remount-ro", folder)]
        for name, places in zip(names, (read, self.write), strict=True):
            for place, each in places.items():
                shut += [name, str(each), str(place)]
        return [*shut, *last, "--", sys.executable, "-I", "-S", "-c", _LIMIT, self._limits(), *command]

    def _limits(self) -> str:
        """Return the limits that the kernel enforces per process, in the format of :data:`_LIMIT`."""
        limits = f"DATA={self.limits.memory} FSIZE={self.limits.file} CORE=0"
        release = re.match(r"(\d+)\.(\d+)", platform.release())
        # An older kernel would count all processes of the user on this machine.
        counts = release is not None and (int(release[1]), int(release[2])) >= (5, 14)
        return f"{limits} NPROC={self.limits.processes}" if counts else limits


def unavailable_reason(program: Program, walls: MountSandbox) -> str | None:
    """Return why a program cannot create a sandbox here, in a few words; None if it can."""
    if shutil.which(program) is None:
        return "not installed"
    command = walls.wrap_command(program, [sys.executable, "-I", "-S", "-c", ""])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else lines[-1] if lines else f"exit code {done.returncode}"


# --- Within the namespaces of `unshare` -------------------------------------------------------

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
_MS_NOATIME, _MS_NODIRATIME, _MS_BIND, _MS_REC = 0x400, 0x800, 0x1000, 0x4000
_MS_PRIVATE, _MS_RELATIME, _MNT_DETACH = 0x40000, 0x200000, 2
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
"""Number of the system call, for which C libraries have no function."""
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _MAX_CAPABILITIES = 24, 38, 64
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_OLD, _NEW = Path("/old"), Path("/new")


def _call(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    plain = [os.fsencode(each) if isinstance(each, str | Path) else each for each in arguments]
    if getattr(libc, function)(*plain) != 0:
        shown = " ".join(str(each) for each in arguments)
        raise SystemExit(f"{function} {shown}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str | Path, target: Path, kind: str, flags: int, data: str = "") -> None:
    _call("mount", source, target, kind, ctypes.c_ulong(flags), data)


def _pivot(root: Path, old: Path) -> None:
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise SystemExit(f"not known for {platform.machine()}")
    _call("syscall", ctypes.c_long(number), root, old)


def _build(read: Sequence[Sequence[Path]], write: Sequence[Sequence[Path]], tmp: int) -> None:
    """Build a file system of these paths alone, and make it the root."""
    _mount("none", Path("/"), "", _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", Path("/tmp"), "tmpfs", _MS_NOSUID | _MS_NODEV)
    for each in (_OLD, _NEW):
        (Path("/tmp") / each.name).mkdir()
    _pivot(Path("/tmp"), Path("/tmp") / _OLD.name)
    os.chdir("/")
    _mount("tmpfs", _NEW, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=64m,mode=0755")
    for name in ("proc", "tmp", "dev"):
        (_NEW / name).mkdir()
    _mount("tmpfs", _NEW / "tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={tmp}")
    # In /proc root could change settings of the machine.
    _mount("proc", _NEW / "proc", "proc", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    for name in _DEVICES:
        _bind(Path("/dev") / name, Path("/dev") / name, write=True)
    for each, place in read:
        _bind(each, place, write=False)
    for each, place in write:
        _bind(each, place, write=True)
    os.chdir(_NEW)
    _pivot(Path(), Path())
    _call("umount2", Path(), _MNT_DETACH)
    os.chdir("/")
    _mount("none", Path("/"), "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _bind(path: Path, place: Path, *, write: bool) -> None:
    """Mount a file or folder of the old root at a path of the new one."""
    # The kernel would resolve links relative to the current root.
    source, target = _followed(_OLD / path.relative_to("/")), _NEW / place.relative_to("/")
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(source, target, "", _MS_BIND | (_MS_REC if write else 0))
    flags = _MS_REMOUNT | _MS_BIND | _MS_NOSUID | _kept(target) | (0 if write else _MS_RDONLY)
    _mount("none", target, "", flags)


def _followed(path: Path) -> Path:
    for _ in range(40):
        if not path.is_symlink():
            return path
        link = path.readlink()
        path = _OLD / link.relative_to("/") if link.is_absolute() else path.parent / link
    raise SystemExit(f"{path}: too many links")


def _kept(target: Path) -> int:
    """Return the mount flags that must stay: only the owner of the mount may change them."""
    shown = os.statvfs(target).f_flag
    names = {os.ST_NODEV: _MS_NODEV, os.ST_NOEXEC: _MS_NOEXEC, os.ST_NOATIME: _MS_NOATIME,
             os.ST_NODIRATIME: _MS_NODIRATIME, os.ST_RELATIME: _MS_RELATIME,
             os.ST_RDONLY: _MS_RDONLY}  # fmt: skip
    return sum(flag for bit, flag in names.items() if shown & bit)


def _loopback() -> None:
    """Enable the loopback interface, the only network: Java and Python communicate over it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _give_up_rights() -> None:
    for capability in range(_MAX_CAPABILITIES):
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for undefined capabilities
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", type=Path, nargs=2, action="append", default=[])
    parser.add_argument("--write", type=Path, nargs=2, action="append", default=[])
    parser.add_argument("--tmp", type=int, required=True)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    _loopback()
    _build(given.read, given.write, given.tmp)
    _give_up_rights()
    os.execv(given.command[0], given.command)


if __name__ == "__main__":
    _main()
