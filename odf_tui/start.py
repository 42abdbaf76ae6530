"""Opens the workstation: from the snapshot of the last session, or while the workspace is read."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import odf_engine
from odf_engine.api import (
    ODF_FOLDER,
    load_config,
    load_workspace,
    open_file_table,
    user_file,
    workspace_folder,
)
from odf_engine.errors import OdfError
from odf_tui.state import saved_session
from odf_tui.state.app_state import EarlyRead, EarlyReads
from odf_tui.theming import terminal

if TYPE_CHECKING:
    from odf_engine.api import Client, UiConfig
    from odf_engine.api.workspace import Workspace


def open_workstation(folder: Path | None) -> None:
    """Open the workstation.

    Args:
        folder: the workspace, or None for the environment's, else the current directory's.
    """
    run(workspace_folder(Path.cwd(), folder))


def view_files(locations: Sequence[str], folder: Path | None) -> None:
    """Show data files until the user quits, then add the one that the user keeps as a dataset.

    Args:
        locations: paths, URLs and folders, or ``-`` for standard input.
        folder: the workspace for a kept file, or None for the environment's, else the current directory's.

    Raises:
        NotFound: a file does not exist.
        UsageError: the files have several formats, or the terminal does not support the screen.
    """
    terminal.configure_environment()
    with open_file_table(locations, sys.stdin.buffer) as table:
        if "-" in locations:
            _read_keys_from_terminal()
        terminal.require_capable_terminal()
        try:
            workspace = workspace_folder(Path.cwd(), folder)
            ui = load_workspace(workspace / ODF_FOLDER).ui
        except OdfError:
            if folder is not None:
                raise
            workspace, ui = Path.cwd(), load_config(user_file()).ui

        from odf_tui.file_viewer import FileViewer, ViewerSettings  # as in `run`

        app = FileViewer(ViewerSettings(workspace, ui), table)
        app.run(mouse=ui.mouse)
    if app.return_code:
        sys.exit(app.return_code)
    if app.kept:
        run(workspace, app.kept)


def _read_keys_from_terminal() -> None:
    """Replace standard input, which was read to its end, by the terminal."""
    with suppress(OSError):
        descriptor = os.open("/dev/tty", os.O_RDWR)
        os.dup2(descriptor, 0)
        os.close(descriptor)


def run(folder: Path, source: str = "") -> None:
    """Show a workspace until the user quits. Jobs and the worker continue.

    Args:
        folder: the workspace.
        source: a data file to add as a dataset, or "".

    Raises:
        UsageError: the terminal does not support the workstation.
        Unsupported: the workspace was created by a newer version of this program.
    """
    terminal.require_capable_terminal()
    terminal.configure_environment()
    gc.disable()  # until the first paint: the objects created until then stay

    with ThreadPoolExecutor(1) as pool:
        early: EarlyReads
        if (known := saved_session.load_snapshot(folder)) is not None:
            snapshot, current = known
            workspace = cast("Workspace", DeferredWorkspace(folder, snapshot.ui))
            early = Future()
            early.set_result(EarlyRead(snapshot.rows, snapshot.jobs, snapshot.last_seq, outdated=not current))
        else:
            workspace = _open_workspace(folder)
            # Datasets and jobs are read while Textual is imported.
            early = pool.submit(lambda: EarlyRead(workspace.datasets(), *workspace.jobs()))

        from odf_tui.app import Workstation  # Textual reads the environment when it is imported

        app = Workstation(workspace, early, _resume_gc, source)
        app.run(mouse=workspace.ui.mouse)
    if app.farewell:
        sys.stdout.write(app.farewell + "\n")
        sys.stdout.flush()
    if app.return_code:
        sys.exit(app.return_code)
    saved_session.save_snapshot(folder, workspace)


class DeferredWorkspace:
    """A workspace that loads the engine when it is first used.

    Attributes:
        folder, ui, settings_problem: see :class:`odf_engine.api.workspace.Workspace`. They are available
            without the engine.
    """

    def __init__(self, folder: Path, ui: UiConfig) -> None:
        self.folder = folder
        self.ui = ui
        self.settings_problem = ""
        self._lock = threading.Lock()
        self._workspace: Workspace | None = None

    def _load(self) -> Workspace:
        with self._lock:
            if self._workspace is None:
                self._workspace = _open_workspace(self.folder)
            return self._workspace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)

    async def connect(self) -> Client:
        """Connect to the worker. The engine is loaded in a thread."""
        workspace = await asyncio.to_thread(self._load)
        return await workspace.connect()


def _open_workspace(folder: Path) -> Workspace:
    return odf_engine.open(folder, progress=False)


def _resume_gc() -> None:
    """Enable garbage collection after the first paint.

    Objects that exist already are exempt: they are permanent, and their collection takes 50 ms.
    """
    gc.freeze()
    gc.enable()
