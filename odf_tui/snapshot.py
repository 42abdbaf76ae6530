"""What the screen showed when it was left, to be shown again at once if nothing has changed since.

Reading it spares the first paint the engine. Whether it is still true is told by the stamps (times, sizes and
inodes) of everything that it was made from; if one differs, it is as if there were none.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from odf_engine.coordinator.protocol import PROTOCOL_VERSION, Job
from odf_engine.errors import OdfError
from odf_engine.files import open_file
from odf_engine.settings import CONFIG_FILE, UiConfig, user_file, workspace_user_file
from odf_engine.storage.atomic_files import read_small_file
from odf_tui import state
from odf_tui.source import Source
from odf_tui.state import DatasetRow

_FILES: Final = (
    "version",
    CONFIG_FILE,
    "jobs.sqlite",
    "jobs.sqlite-wal",
    "trust",
    "keys",
    "datasets",
    "repositories.json",
)
_IN_DATASETS: Final = ("refs", "info")


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Datasets, jobs, the journal number up to which they are known, and the settings of the screen."""

    program: str
    stamp: str
    ui: UiConfig
    rows: list[DatasetRow]
    jobs: list[Job]
    last_seq: int


def stamp(folder: Path) -> str:
    """What says whether anything has changed in a workspace that the first screen shows."""
    odf = f"{folder}/.odf"
    paths = [f"{odf}/{name}" for name in _FILES]
    paths += [str(user_file()), str(workspace_user_file(Path(odf)))]
    paths += [f"{path}/{part}" for path in _within(f"{odf}/datasets") for part in _IN_DATASETS]
    paths += [*_within(f"{odf}/trust"), *_within(f"{odf}/remotes")]
    found = blake2b(digest_size=16)
    for path in paths:
        try:
            known = os.stat(path)  # noqa: PTH116 (thousands of them, before the first paint)
            found.update(os.fsencode(f"{path} {known.st_mtime_ns} {known.st_size} {known.st_ino}\n"))
        except OSError:
            found.update(os.fsencode(f"{path} -\n"))
    return found.hexdigest()


def _within(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries)
    except OSError:
        return []


def load(folder: Path) -> Snapshot | None:
    """The snapshot of a workspace, if it is still true."""
    found = _read(folder)
    return found if found is not None and found.stamp == stamp(folder) else None


def _read(folder: Path) -> Snapshot | None:
    try:
        digest, content = msgspec.msgpack.decode(read_small_file(_path(folder)), type=tuple[bytes, bytes])
        if digest != _digest(content):
            return None
        found = msgspec.msgpack.decode(content, type=Snapshot)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.program == _program() else None


def _digest(content: bytes) -> bytes:
    """What tells a damaged snapshot: its texts and numbers could be anything."""
    return blake2b(content, digest_size=16).digest()


def save(folder: Path, source: Source) -> None:
    """Writes a snapshot of what a source says now; where that is not possible, there is none."""
    before = stamp(folder)  # what changes while it is being read makes it untrue
    if (known := _read(folder)) is not None and known.stamp == before:
        return
    with suppress(OdfError, OSError):
        rows, (jobs, last_seq) = source.datasets(), source.jobs()
        if not source.settings_problem:
            found = Snapshot(_program(), before, source.ui, rows, jobs, last_seq)
            path = _path(folder)
            path.parent.mkdir(exist_ok=True)
            new = path.with_name(f"{path.name}.{os.getpid()}")
            content = msgspec.msgpack.encode(found)
            with open_file(new, "wb") as file:
                file.write(msgspec.msgpack.encode((_digest(content), content)))
            new.replace(path)


def _path(folder: Path) -> Path:
    return folder / ".odf" / "cache" / "screen.msgpack"


def _program() -> str:
    """Which program has written it: another one may mean other things by the same words."""
    return f"{PROTOCOL_VERSION} {Path(state.__file__).stat().st_mtime_ns} {sys.version}"
