"""The ``odf`` command: opens the workstation or runs a verb; an error is a line and an exit code."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import NoReturn

from odf_engine.errors import ChainRuleViolated, OdfError
from odf_engine.terminal_text import escape_standard_streams


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
    from odf_tui.app import run

    run(workspace_folder(Path.cwd(), folder))


def _run_verb() -> None:
    # Not at the top: the workstation should not wait for a library that only verbs need.
    import click

    from odf_tui.cli.verbs import COMPLETION, cli

    try:
        cli.main(standalone_mode=False, complete_var=COMPLETION)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show(sys.stderr)
        sys.exit(error.exit_code)


def _fail(error: OdfError) -> None:
    """Shows an error: one line says what and where, one what to do."""
    rule = f" (rule {error.rule})" if isinstance(error, ChainRuleViolated) else ""
    sys.stderr.write(f"error: {error}{rule}\n")
    if error.hint:
        sys.stderr.write(f"  hint: {error.hint}\n")
