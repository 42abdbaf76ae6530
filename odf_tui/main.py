"""Entry point: opens the workstation or runs a command, and imports only what that requires."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TextIO, cast

from odf_engine.api import escape_standard_streams, use_ascii
from odf_engine.errors import ChainRuleViolated, OdfError, disk_hint


def main() -> NoReturn:
    """Run the ``odf`` command."""
    _open_closed_streams()
    escape_standard_streams()
    code = 0
    try:
        if len(sys.argv) > 1 or "_ODF_COMPLETE" in os.environ:  # the latter: completion in a shell
            _run_command()
        else:
            _open_workstation(None)
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


def _open_workstation(folder: Path | None) -> None:
    gc.disable()  # until the first paint: the objects created until then stay
    from odf_tui.start import open_workstation

    open_workstation(folder)


def _run_command() -> None:
    # Imported here for a fast start of the workstation, which does not use it.
    import click

    from odf_tui.cli.shared.options import OpenFiles, OpenWorkstation
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
        _open_workstation(result.folder)
    elif isinstance(result, OpenFiles):
        from odf_tui.start import view_files

        view_files(result.locations, result.folder)


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
