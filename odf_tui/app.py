"""Opens the workstation. Light to import: what it needs comes with :func:`run`."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from odf_engine.settings import UiConfig
    from odf_tui.screens.base import Early
    from odf_tui.source import Link, Source


def run(folder: Path) -> None:
    """Shows the workspace of a folder until the person leaves; jobs and worker go on then.

    Raises:
        UsageError: the terminal cannot show it.
        Unsupported: the workspace was made by a newer version of this program.
    """
    from odf_tui import terminal

    terminal.check()
    terminal.set_switches()
    gc.disable()  # until the first paint: nothing of what is made before it goes away

    from odf_tui import snapshot

    with ThreadPoolExecutor(1) as pool:
        early: Early
        if (known := snapshot.load(folder)) is not None:
            source = cast("Source", LateSource(folder, known.ui))
            early = Future()
            early.set_result((known.rows, (known.jobs, known.last_seq)))
        else:
            source = _source(folder)
            # Read while Textual is being imported.
            early = pool.submit(lambda: (source.datasets(), source.jobs()))

        from odf_tui.workstation import Workstation

        app = Workstation(source, early, _painted)
        app.run()
    if app.farewell:
        sys.stdout.write(app.farewell + "\n")
        sys.stdout.flush()
    if app.return_code:
        sys.exit(app.return_code)
    source.keep()


class LateSource:
    """A source whose engine is loaded when something is first asked of it that is not known already.

    Attributes:
        folder, ui, theme, settings_problem: see :class:`odf_tui.source.Source`.
    """

    def __init__(self, folder: Path, ui: UiConfig) -> None:
        from odf_tui import remembered

        self.folder = folder
        self.ui = ui
        self.theme = remembered.theme(remembered.load(folder), ui.theme)
        self.settings_problem = ""
        self._lock = threading.Lock()
        self._found: Source | None = None

    def _source(self) -> Source:
        with self._lock:
            if self._found is None:
                self._found = _source(self.folder)
            return self._found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source(), name)

    async def connect(self) -> Link:
        """Attaches to the worker; the engine is loaded beside the event loop."""
        source = await asyncio.to_thread(self._source)
        return await source.connect()


def _source(folder: Path) -> Source:
    from odf_engine.workspace.workspace import Workspace
    from odf_tui.engine import WorkspaceSource

    return WorkspaceSource(Workspace.find(explicit=folder))


def _painted() -> None:
    """The collector works again, and leaves alone what stays: looking through that takes 50 ms each time."""
    gc.freeze()
    gc.enable()
