"""State saved between sessions: the layout, and a snapshot for a fast first paint."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict

import msgspec

from odf_engine.api import (
    CONFIG_FILE,
    PROTOCOL_VERSION,
    Job,
    UiConfig,
    model,
    open_file,
    read_small_file,
    user_file,
    workspace_user_file,
)
from odf_engine.api.model import DatasetRow
from odf_engine.api.readers.fingerprint import data_fingerprint, file_fingerprint
from odf_engine.errors import OdfError

TOUR: Final = ("differences", "trace", "verify")
"""The actions of the tour, in order."""
MAX_RECENT: Final = 8
MAX_DATASETS: Final = 200
_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
MIN_SHARE: Final = 20
Share = Annotated[int, msgspec.Meta(ge=MIN_SHARE, le=100 - MIN_SHARE)]
"""A share of the screen in percent, within limits that keep all panes visible."""


if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace


class PaneShares(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The shares of the panes, in percent of the screen, or None for the default.

    Attributes:
        left: the width of the left column.
        upper: the height of the upper row.
        single: the height of the datasets if the panes are arranged in one column.
    """

    left: Share | None = None
    upper: Share | None = None
    single: Share | None = None


class ColumnLayout(TypedDict, total=False):
    """A saved arrangement of columns, see :class:`odf_tui.widgets.row_table.ColumnArrangement`."""

    order: list[str]
    hidden: list[str]
    frozen: str


class SavedLayout(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The layout of the screen, saved per workspace.

    Attributes:
        theme: the theme chosen on the screen.
        theme_setting: the configured theme at that time; a changed setting overrides the choice.
        pane: the name of the focused pane.
        zoomed: whether that pane is shown alone.
        shares: the sizes of the panes.
        dataset: the id of the selected dataset.
        filters: the filters, by name of the pane.
        graph: mode and order of pane 1.
        columns: the arrangements of columns, by id of the dataset; the newest last.
        wrap: whether lines of logs are wrapped, or None for the default.
        recent: ids of the recent choices of the palette, the newest first.
        tour: the actions whose hints the tour still shows.
        query: the text of the SQL editor, if it differs from the first one.
        seen_warnings: when the jobs ended whose warnings the user has seen.
    """

    theme: str = ""
    theme_setting: str = ""
    pane: str = ""
    zoomed: bool = False
    shares: PaneShares = PaneShares()
    dataset: str = ""
    filters: dict[str, str] = {}
    graph: dict[str, Any] = {}
    columns: dict[str, ColumnLayout] = {}
    wrap: bool | None = None
    recent: list[str] = []
    tour: list[str] = []
    query: str = ""
    seen_warnings: list[str] = []


def layout_path(folder: Path) -> Path:
    """Return the path of the saved layout of a workspace."""
    return folder / ".odf" / "cache" / "ui.json"


def load_layout(folder: Path) -> SavedLayout:
    """Return the saved layout of a workspace. Invalid fields, or an unreadable file, get defaults."""
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
    """Return the content of the file of a layout."""
    return msgspec.json.encode(layout)


def save_layout(folder: Path, content: bytes) -> None:
    """Replace the saved layout atomically. A failure to write, or a deleted workspace, is ignored."""
    path = layout_path(folder)
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".ui-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise


def effective_theme(layout: SavedLayout, setting: str) -> str:
    """Return the theme to use: the chosen one, unless the setting has changed since."""
    return layout.theme if layout.theme and layout.theme_setting == setting else setting


_SETTINGS: Final = ("version", CONFIG_FILE)


class StartupSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The content of the first screen.

    Attributes:
        program: the version of the program that wrote it.
        settings: the fingerprint of the settings.
        data: the fingerprint of everything else that the first screen shows.
    """

    program: str
    settings: str
    data: str
    ui: UiConfig
    rows: list[DatasetRow]
    jobs: list[Job]
    last_seq: int


def _settings_fingerprint(folder: Path) -> str:
    """Return a fingerprint of the settings of a workspace and of its user."""
    odf = f"{folder}/.odf"
    return file_fingerprint(
        [*(f"{odf}/{name}" for name in _SETTINGS), str(user_file()), str(workspace_user_file(Path(odf)))]
    )


def load_snapshot(folder: Path) -> tuple[StartupSnapshot, bool] | None:
    """Return the snapshot of a workspace, and whether its data are current.

    None if there is no snapshot, or if another version or other settings were in use. A snapshot with old
    data is shown until the workspace is read: an aborted session could not write a new one.
    """
    snapshot = _read(folder)
    if snapshot is None or snapshot.settings != _settings_fingerprint(folder):
        return None
    return snapshot, snapshot.data == data_fingerprint(folder)


def _read(folder: Path) -> StartupSnapshot | None:
    try:
        digest, content = msgspec.msgpack.decode(read_small_file(_path(folder)), type=tuple[bytes, bytes])
        if digest != _digest(content):
            return None
        snapshot = msgspec.msgpack.decode(content, type=StartupSnapshot)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return snapshot if snapshot.program == _program_version() else None


def _digest(content: bytes) -> bytes:
    """Return the digest that detects a damaged snapshot."""
    return blake2b(content, digest_size=16).digest()


def save_snapshot(folder: Path, workspace: Workspace) -> None:
    """Write a snapshot of a workspace; write nothing if the workspace cannot be read."""
    before = _settings_fingerprint(folder), data_fingerprint(folder)  # before the reads: changes count
    if (known := _read(folder)) is not None and (known.settings, known.data) == before:
        return
    with suppress(OdfError, OSError):
        rows, (jobs, last_seq) = workspace.datasets(), workspace.jobs()
        if not workspace.settings_problem:
            startup_snapshot = StartupSnapshot(
                _program_version(), *before, workspace.ui, rows, jobs, last_seq
            )
            path = _path(folder)
            path.parent.mkdir(exist_ok=True)
            new = path.with_name(f"{path.name}.{os.getpid()}")
            content = msgspec.msgpack.encode(startup_snapshot)
            with open_file(new, "wb") as file:
                file.write(msgspec.msgpack.encode((_digest(content), content)))
            new.replace(path)


def _path(folder: Path) -> Path:
    return folder / ".odf" / "cache" / "screen.msgpack"


def _program_version() -> str:
    """Return the version of the program: another version may use another format."""
    return f"{PROTOCOL_VERSION} {Path(model.__file__).stat().st_mtime_ns} {sys.version}"
