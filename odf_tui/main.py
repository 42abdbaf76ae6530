"""Entry point: opens the workstation or runs a command, and imports only what that requires."""

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
    """Show a workspace until the user quits. Jobs and the worker continue.

    Raises:
        UsageError: the terminal does not support the workstation.
        Unsupported: the workspace was created by a newer version of this program.
    """
    from odf_tui.theming import terminal

    terminal.require_capable_terminal()
    terminal.configure_environment()
    gc.disable()  # until the first paint: the objects created until then stay

    from odf_tui.state import saved_session
    from odf_tui.state.app_state import EarlyRead

    with ThreadPoolExecutor(1) as pool:
        early: EarlyReads
        if (known := saved_session.load_snapshot(folder)) is not None:
            snapshot, current = known
            gateway = cast("Gateway", DeferredGateway(folder, snapshot.ui))
            early = Future()
            early.set_result(EarlyRead(snapshot.rows, snapshot.jobs, snapshot.last_seq, outdated=not current))
        else:
            gateway = _open_gateway(folder)
            # Datasets and jobs are read while Textual is imported.
            early = pool.submit(lambda: EarlyRead(gateway.datasets(), *gateway.jobs()))

        from odf_tui.app import Workstation

        app = Workstation(gateway, early, _resume_gc)
        app.run()
    if app.farewell:
        sys.stdout.write(app.farewell + "\n")
        sys.stdout.flush()
    if app.return_code:
        sys.exit(app.return_code)
    gateway.save_snapshot()


class DeferredGateway:
    """A gateway that loads the engine when it is first used.

    Attributes:
        folder, ui, theme, settings_problem: see :class:`odf_tui.gateway.protocol.Gateway`. They are
            available without the engine.
    """

    def __init__(self, folder: Path, ui: UiConfig) -> None:
        from odf_tui.state import saved_session

        self.folder = folder
        self.ui = ui
        self.theme = saved_session.effective_theme(saved_session.load_layout(folder), ui.theme)
        self.settings_problem = ""
        self._lock = threading.Lock()
        self._gateway: Gateway | None = None

    def _load_gateway(self) -> Gateway:
        with self._lock:
            if self._gateway is None:
                self._gateway = _open_gateway(self.folder)
            return self._gateway

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load_gateway(), name)

    async def connect(self) -> WorkerLink:
        """Connect to the worker. The engine is loaded in a thread."""
        gateway = await asyncio.to_thread(self._load_gateway)
        return await gateway.connect()


def _open_gateway(folder: Path) -> Gateway:
    from odf_engine.workspace.workspace import Workspace
    from odf_tui.gateway.workspace_gateway import WorkspaceGateway

    return WorkspaceGateway(Workspace.find(explicit=folder))


def _resume_gc() -> None:
    """Enable garbage collection after the first paint.

    Objects that exist already are exempt: they are permanent, and their collection takes 50 ms.
    """
    gc.freeze()
    gc.enable()


def main() -> NoReturn:
    """Run the ``odf`` command."""
    escape_standard_streams()
    try:
        if len(sys.argv) > 1 or "_ODF_COMPLETE" in os.environ:  # the latter: completion in a shell
            _run_verb()
        else:
            open_workstation(None)
    except OdfError as error:
        _print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output closed it, as `head` does. This is no error.
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        # Mostly a full or read-only disk.
        _print_error(OdfError(error.strerror or str(error), where=error.filename and str(error.filename)))
        sys.exit(1)
    sys.exit(0)


def open_workstation(folder: Path | None) -> None:
    """Open the workstation.

    Args:
        folder: the workspace; None: that of the environment, else of the current directory.
    """
    gc.disable()  # until the first paint: the objects created until then stay
    from odf_engine.workspace.discovery import workspace_folder

    run(workspace_folder(Path.cwd(), folder))


def _run_verb() -> None:
    # Imported here for a fast start of the workstation, which does not use it.
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


def _print_error(error: OdfError) -> None:
    """Print the message of an error, its excerpt of a query or file, and its hint."""
    rule = f" (rule {error.rule})" if isinstance(error, ChainRuleViolated) else ""
    sys.stderr.write(f"error: {error}{rule}\n")
    for line in error.excerpt:
        sys.stderr.write(f"  {line}\n")
    if error.hint:
        sys.stderr.write(f"  hint: {error.hint}\n")
