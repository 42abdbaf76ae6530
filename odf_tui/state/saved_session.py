"""What is kept between sessions: the layout, and a snapshot for a fast first paint."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypedDict

import msgspec

from odf_engine.coordinator.protocol import PROTOCOL_VERSION, Job
from odf_engine.errors import OdfError
from odf_engine.files import open_file
from odf_engine.settings import CONFIG_FILE, UiConfig, user_file, workspace_user_file
from odf_engine.storage.atomic_files import read_small_file
from odf_tui.state import model
from odf_tui.state.model import DatasetRow

MAX_RECENT: Final = 8
MAX_DATASETS: Final = 200
_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
MIN_SHARE: Final = 20
Share = Annotated[int, msgspec.Meta(ge=MIN_SHARE, le=100 - MIN_SHARE)]
"""A part of the screen in percent: all panes can be seen."""


class PaneShares(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How the panes share the screen, in percent; None: as usual.

    Attributes:
        left: the width of the left column.
        upper: the height of the upper row.
        single: the height of the datasets where the panes stand in one column.
    """

    left: Share | None = None
    upper: Share | None = None
    single: Share | None = None


class Columns(TypedDict, total=False):
    """How pane 3 shows the columns of a dataset; see :class:`odf_tui.widgets.row_table.ColumnArrangement`."""

    order: list[str]
    hidden: list[str]
    frozen: str


class SavedLayout(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """What is remembered.

    Attributes:
        theme: the theme that was chosen at the screen; ``theme_setting`` is what the settings said then:
            when they say something else by now, they win.
        pane, zoomed, shares: which pane had the keys, whether alone, and how large all are.
        dataset: the id of the selected one.
        filters: by pane.
        graph: how pane 1 shows the datasets, in its own terms.
        columns: how pane 3 shows the columns of datasets, by their ids; the newest last.
        wrap: whether the lines of logs are wrapped.
        recent: ids of what was chosen last in the list of everything, the newest first.
    """

    theme: str = ""
    theme_setting: str = ""
    pane: str = ""
    zoomed: bool = False
    shares: PaneShares = PaneShares()
    dataset: str = ""
    filters: dict[str, str] = {}
    graph: dict[str, Any] = {}
    columns: dict[str, Columns] = {}
    wrap: bool | None = None
    recent: list[str] = []


def layout_path(folder: Path) -> Path:
    """Where it is in a workspace."""
    return folder / ".odf" / "cache" / "ui.json"


def load_layout(folder: Path) -> SavedLayout:
    """What is remembered of a workspace; nothing, when it cannot be read."""
    try:
        parts = msgspec.json.decode(read_small_file(layout_path(folder)), type=dict[str, msgspec.Raw])
    except (OSError, *_DECODE_ERRORS):
        return SavedLayout()
    known: dict[str, Any] = {}
    for field in msgspec.structs.fields(SavedLayout):
        if field.encode_name in parts:
            with suppress(*_DECODE_ERRORS):
                known[field.name] = msgspec.json.decode(parts[field.encode_name], type=field.type)
    return SavedLayout(**known)


def encode_layout(layout: SavedLayout) -> bytes:
    """What is written."""
    return msgspec.json.encode(layout)


def save_layout(folder: Path, content: bytes) -> None:
    """Replaces the file in one step; where that is not possible, nothing is remembered."""
    path = layout_path(folder)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".ui-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise


def effective_theme(layout: SavedLayout, setting: str) -> str:
    """The theme to use: the one that was chosen, unless the settings were changed since."""
    return layout.theme if layout.theme and layout.theme_setting == setting else setting


_WATCHED_FILES: Final = (
    "version",
    CONFIG_FILE,
    "jobs.sqlite",
    "jobs.sqlite-wal",
    "trust",
    "keys",
    "datasets",
    "repositories.json",
)
_WATCHED_DATASET_FILES: Final = ("refs", "info")


class SnapshotSource(Protocol):
    """The reads that a snapshot is made of."""

    @property
    def ui(self) -> UiConfig:
        """Settings of the workstation."""
        ...

    @property
    def settings_problem(self) -> str:
        """Why the settings cannot be read; empty if they can."""
        ...

    def datasets(self) -> list[DatasetRow]:
        """Return every dataset, by name."""
        ...

    def jobs(self) -> tuple[list[Job], int]:
        """Return recent jobs, newest first, and the number of the last journal entry."""
        ...


class StartupSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """Datasets, jobs, the journal number up to which they are known, and the settings of the screen."""

    program: str
    stamp: str
    ui: UiConfig
    rows: list[DatasetRow]
    jobs: list[Job]
    last_seq: int


def workspace_fingerprint(folder: Path) -> str:
    """What says whether anything has changed in a workspace that the first screen shows."""
    odf = f"{folder}/.odf"
    paths = [f"{odf}/{name}" for name in _WATCHED_FILES]
    paths += [str(user_file()), str(workspace_user_file(Path(odf)))]
    paths += [f"{path}/{part}" for path in _child_paths(f"{odf}/datasets") for part in _WATCHED_DATASET_FILES]
    paths += [*_child_paths(f"{odf}/trust"), *_child_paths(f"{odf}/remotes")]
    found = blake2b(digest_size=16)
    for path in paths:
        try:
            known = os.stat(path)  # noqa: PTH116 (thousands of them, before the first paint)
            found.update(os.fsencode(f"{path} {known.st_mtime_ns} {known.st_size} {known.st_ino}\n"))
        except OSError:
            found.update(os.fsencode(f"{path} -\n"))
    return found.hexdigest()


def _child_paths(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries)
    except OSError:
        return []


def load_snapshot(folder: Path) -> StartupSnapshot | None:
    """The snapshot of a workspace, if it is still true."""
    found = _read(folder)
    return found if found is not None and found.stamp == workspace_fingerprint(folder) else None


def _read(folder: Path) -> StartupSnapshot | None:
    try:
        digest, content = msgspec.msgpack.decode(read_small_file(_path(folder)), type=tuple[bytes, bytes])
        if digest != _digest(content):
            return None
        found = msgspec.msgpack.decode(content, type=StartupSnapshot)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.program == _program_version() else None


def _digest(content: bytes) -> bytes:
    """What tells a damaged snapshot: its texts and numbers could be anything."""
    return blake2b(content, digest_size=16).digest()


def save_snapshot(folder: Path, source: SnapshotSource) -> None:
    """Write a snapshot of a workspace; write nothing if the workspace cannot be read."""
    before = workspace_fingerprint(folder)  # what changes while it is being read makes it untrue
    if (known := _read(folder)) is not None and known.stamp == before:
        return
    with suppress(OdfError, OSError):
        rows, (jobs, last_seq) = source.datasets(), source.jobs()
        if not source.settings_problem:
            found = StartupSnapshot(_program_version(), before, source.ui, rows, jobs, last_seq)
            path = _path(folder)
            path.parent.mkdir(exist_ok=True)
            new = path.with_name(f"{path.name}.{os.getpid()}")
            content = msgspec.msgpack.encode(found)
            with open_file(new, "wb") as file:
                file.write(msgspec.msgpack.encode((_digest(content), content)))
            new.replace(path)


def _path(folder: Path) -> Path:
    return folder / ".odf" / "cache" / "screen.msgpack"


def _program_version() -> str:
    """Which program has written it: another one may mean other things by the same words."""
    return f"{PROTOCOL_VERSION} {Path(model.__file__).stat().st_mtime_ns} {sys.version}"
