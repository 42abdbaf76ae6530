"""Entry point: opens the workstation or runs a verb, and imports no more than that needs."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from odf_engine.errors import ChainRuleViolated, OdfError
from odf_engine.terminal_text import escape_standard_streams

if TYPE_CHECKING:
    from odf_engine.settings import UiConfig
    from odf_tui.gateway.protocol import Gateway, WorkerLink
    from odf_tui.state.app_state import EarlyReads


def run(folder: Path) -> None:
    """Shows the workspace of a folder until the person leaves; jobs and worker go on then.

    Raises:
        UsageError: the terminal cannot show it.
        Unsupported: the workspace was made by a newer version of this program.
    """
    from odf_tui.theming import terminal

    terminal.require_capable_terminal()
    terminal.configure_environment()
    gc.disable()  # until the first paint: nothing of what is made before it goes away

    from odf_tui.state import saved_session

    with ThreadPoolExecutor(1) as pool:
        early: EarlyReads
        if (known := saved_session.load_snapshot(folder)) is not None:
            source = cast("Gateway", DeferredGateway(folder, known.ui))
            early = Future()
            early.set_result((known.rows, (known.jobs, known.last_seq)))
        else:
            source = _source(folder)
            # Read while Textual is being imported.
            early = pool.submit(lambda: (source.datasets(), source.jobs()))

        from odf_tui.app import Workstation

        app = Workstation(source, early, _painted)
        app.run()
    if app.farewell:
        sys.stdout.write(app.farewell + "\n")
        sys.stdout.flush()
    if app.return_code:
        sys.exit(app.return_code)
    source.save_snapshot()


class DeferredGateway:
    """A source whose engine is loaded when something is first asked of it that is not known already.

    Attributes:
        folder, ui, theme, settings_problem: see :class:`odf_tui.gateway.protocol.Gateway`.
    """

    def __init__(self, folder: Path, ui: UiConfig) -> None:
        from odf_tui.state import saved_session

        self.folder = folder
        self.ui = ui
        self.theme = saved_session.effective_theme(saved_session.load_layout(folder), ui.theme)
        self.settings_problem = ""
        self._lock = threading.Lock()
        self._found: Gateway | None = None

    def _source(self) -> Gateway:
        with self._lock:
            if self._found is None:
                self._found = _source(self.folder)
            return self._found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source(), name)

    async def connect(self) -> WorkerLink:
        """Attaches to the worker; the engine is loaded beside the event loop."""
        source = await asyncio.to_thread(self._source)
        return await source.connect()


def _source(folder: Path) -> Gateway:
    from odf_engine.workspace.workspace import Workspace
    from odf_tui.gateway.workspace_gateway import WorkspaceGateway

    return WorkspaceGateway(Workspace.find(explicit=folder))


def _painted() -> None:
    """The collector works again, and leaves alone what stays: looking through that takes 50 ms each time."""
    gc.freeze()
    gc.enable()


def main() -> NoReturn:
    """Entry point of the ``odf`` command."""
    escape_standard_streams()
    try:
        if len(sys.argv) > 1 or "_ODF_COMPLETE" in os.environ:  # the latter: a shell completes
            _run_verb()
        else:
            open_workstation(None)
    except OdfError as error:
        _fail(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does: not worth a word.
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        # What no part of the program has made a sentence of: most often the disk, full or read-only.
        _fail(OdfError(error.strerror or str(error), where=error.filename and str(error.filename)))
        sys.exit(1)
    sys.exit(0)


def open_workstation(folder: Path | None) -> None:
    """Opens the workstation on a workspace: that of ``folder``, else of the environment or where we are."""
    gc.disable()  # until the first paint: what is loaded until then stays
    from odf_engine.workspace.discovery import workspace_folder

    run(workspace_folder(Path.cwd(), folder))


def _run_verb() -> None:
    # Not at the top: the workstation should not wait for a library that only verbs need.
    import click

    from odf_tui.cli.output import OpenWorkstation
    from odf_tui.cli.verbs import COMPLETION, odf

    try:
        result = odf.main(standalone_mode=False, complete_var=COMPLETION)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show(sys.stderr)
        sys.exit(error.exit_code)
    if isinstance(result, OpenWorkstation):
        open_workstation(result.folder)


def _fail(error: OdfError) -> None:
    """Shows an error: one line says what and where, one what to do."""
    rule = f" (rule {error.rule})" if isinstance(error, ChainRuleViolated) else ""
    sys.stderr.write(f"error: {error}{rule}\n")
    if error.hint:
        sys.stderr.write(f"  hint: {error.hint}\n")
