"""Entry point: opens the workstation or runs a command, and imports only what that requires."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from odf_engine.api import escape_standard_streams, use_ascii
from odf_engine.errors import ChainRuleViolated, OdfError, disk_hint

if TYPE_CHECKING:
    from odf_engine.api import Client, UiConfig
    from odf_engine.api.workspace import Workspace
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
            workspace = cast("Workspace", DeferredWorkspace(folder, snapshot.ui))
            early = Future()
            early.set_result(EarlyRead(snapshot.rows, snapshot.jobs, snapshot.last_seq, outdated=not current))
        else:
            workspace = _open_workspace(folder)
            # Datasets and jobs are read while Textual is imported.
            early = pool.submit(lambda: EarlyRead(workspace.datasets(), *workspace.jobs()))

        from odf_tui.app import Workstation

        app = Workstation(workspace, early, _resume_gc)
        app.run()
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
    from odf_engine.api.workspace import open

    return open(folder, progress=False)


def _resume_gc() -> None:
    """Enable garbage collection after the first paint.

    Objects that exist already are exempt: they are permanent, and their collection takes 50 ms.
    """
    gc.freeze()
    gc.enable()


def main() -> NoReturn:
    """Run the ``odf`` command."""
    _open_closed_streams()
    escape_standard_streams()
    code = 0
    try:
        if len(sys.argv) > 1 or "_ODF_COMPLETE" in os.environ:  # the latter: completion in a shell
            _run_command()
        else:
            open_workstation(None)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except OdfError as error:
        _print_error(error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # The reader of the output closed it, as `head` does. This is no error.
        _discard_output(sys.stdout)
        code = 1
    except OSError as error:
        # Mostly a full or read-only disk.
        _print_os_error(error)
        code = 1
    sys.exit(_flush_output(code))


def _open_closed_streams() -> None:
    """Replace standard streams that the caller has closed.

    Otherwise, files that are opened later would get their descriptors, and receive the output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _flush_output(code: int) -> int:
    """Write the buffered output; return the exit code.

    Otherwise the interpreter would write it, and report an error as a traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            code = code or 1
            _discard_output(stream)
        except OSError as error:
            code = code or 1
            _discard_output(stream)
            if stream is sys.stdout:
                _print_os_error(error)
        except ValueError:  # it is closed
            continue
    return code


def _discard_output(stream: TextIO | None) -> None:
    """Redirect a stream that cannot be written, so that its buffer does not raise again at the exit."""
    with suppress(OSError, ValueError, AttributeError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, cast("TextIO", stream).fileno())
        os.close(descriptor)


def _print_os_error(error: OSError) -> None:
    location = error.filename and str(error.filename)
    problem = error.strerror or str(error)
    if location is None:
        problem = f"the output cannot be written: {problem}"
    _print_error(OdfError(problem, where=location, hint=disk_hint(error)))


def open_workstation(folder: Path | None) -> None:
    """Open the workstation.

    Args:
        folder: the workspace, or None for the environment's, else the current directory's.
    """
    gc.disable()  # until the first paint: the objects created until then stay
    from odf_engine.api import workspace_folder

    run(workspace_folder(Path.cwd(), folder))


def _run_command() -> None:
    # Imported here for a fast start of the workstation, which does not use it.
    import click

    from odf_tui.cli.shared.options import OpenWorkstation
    from odf_tui.cli.shared.root import COMPLETION, odf
    from odf_tui.text.format import ASCII
    from odf_tui.theming.terminal import supported_characters

    use_ascii(ASCII if supported_characters("auto") == "ascii" else None)

    try:
        result = odf.main(standalone_mode=False, complete_var=COMPLETION)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        with suppress(OSError):
            error.show(sys.stderr)
        sys.exit(error.exit_code)
    if isinstance(result, OpenWorkstation):
        open_workstation(result.folder)


def _print_error(error: OdfError) -> None:
    """Print the message of an error, its excerpt of a query or file, and its hint."""
    rule = f" (rule {error.rule})" if isinstance(error, ChainRuleViolated) else ""
    excerpt = "".join(f"  {line}\n" for line in error.excerpt)
    hint = f"  hint: {error.hint}\n" if error.hint else ""
    try:
        sys.stderr.write(f"error: {error}{rule}\n{excerpt}{hint}")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # it cannot be reported; the exit code remains
        _discard_output(sys.stderr)
