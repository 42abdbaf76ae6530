"""Opens the workstation. Light to import: what it needs comes with :func:`run`."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odf_engine.workspace.workspace import Workspace


def run(workspace: Workspace) -> None:
    """Shows a workspace until the person leaves; jobs and worker go on then.

    Raises:
        UsageError: the terminal cannot show it.
    """
    from odf_tui import terminal

    terminal.check()
    terminal.set_switches()
    gc.disable()  # until the first paint: nothing of what is made before it goes away

    from odf_tui.engine import WorkspaceSource

    source = WorkspaceSource(workspace)
    with ThreadPoolExecutor(1) as pool:
        # Read while Textual is being imported.
        early = pool.submit(lambda: (source.datasets(), source.jobs()))

        from odf_tui.workstation import Workstation

        app = Workstation(source, early, _painted)
        app.run()
    if app.farewell:
        sys.stdout.write(app.farewell + "\n")
    if app.return_code:
        sys.exit(app.return_code)


def _painted() -> None:
    """The collector works again, and leaves alone what stays: looking through that takes 50 ms each time."""
    gc.freeze()
    gc.enable()
