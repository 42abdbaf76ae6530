"""Pipe step: a file through a command (specification: PrepStep::Pipe).

Trusted datasets alone get this far. The command still gets no secrets: neither variables of the
environment beyond the harmless ones nor a folder other than the job's own.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from odf_engine.errors import BadData, InvalidManifest
from odf_engine.ingest.commands import clean_environment, run_command
from odf_engine.metadata.model import Pipe
from odf_engine.progress import Reporter


def run_pipe(step: Pipe, path: Path, name: str, target: Path, reporter: Reporter, most_bytes: int) -> None:
    """Writes what the command makes of ``path`` to ``target``; ``name`` is what people call the file.

    Raises:
        BadData: the command failed, or wrote more than ``most_bytes``.
        InvalidManifest: there is no command.
        Unsupported: the program is not installed.
        Cancelled: the command was killed, with everything that it had started.
    """
    if not step.command or not step.command[0]:
        raise InvalidManifest("a Pipe step has no command", where="prepare")
    reporter.line(f"{name} | {shlex.join(step.command)}")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="pipe-") as folder:
        ended = run_command(
            step.command,
            folder=Path(folder),
            environment=clean_environment(Path(folder)),
            reporter=reporter,
            stdin=path,
            target=target,
            most_bytes=most_bytes,
        )
    if ended.code != 0:
        raise BadData(f"the command {shlex.join(step.command)} {ended}", where=name)
