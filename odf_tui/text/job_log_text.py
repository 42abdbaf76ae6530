"""Lines of job logs as text: on the screen, in files, on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from odf_engine.coordinator.protocol import Committed, Job, LogLine
from odf_tui.text.format import format_clock, short_hash

Entry = LogLine | Committed
"""A line of a job's log; a committed block is one, too."""

_MAX_LINE: Final = 4000
_HASH: Final = re.compile(r"\bf1620([0-9a-f]{8})[0-9a-f]{56}\b")


def log_display_text(entry: Entry) -> str:
    """Return the text of a line for the screen, with short hashes."""
    if isinstance(entry, Committed):
        rows = f", {_count_rows(entry)}" if entry.rows else ""
        return f"block {short_hash(entry.block)}, {entry.event}{rows}"
    return _HASH.sub(r"\1", entry.text[:_MAX_LINE].rstrip("\r\n"))


def format_log_line(entry: Entry) -> str:
    """Return a line for a file."""
    if isinstance(entry, Committed):
        return f"{' ' * 24} block {entry.block}, {entry.event}, {_count_rows(entry)}"
    return f"{entry.time:<24} {entry.level:<7} {entry.text}"


def _count_rows(entry: Committed) -> str:
    return f"{entry.rows:,} {'row' if entry.rows == 1 else 'rows'}"


def log_file_header(job: Job) -> list[str]:
    """Return the first lines of the file of a log, which describe the job."""
    return [
        f"# {job.kind} {job.target}, job {job.id}: {job.state.value}",
        f"# created {job.created}, started {job.started or 'never'}, ended {job.ended or 'not yet'}",
    ]


def log_file_footer(job: Job) -> list[str]:
    """Return the last lines of the file of a log, which describe why the job failed."""
    error = job.error
    if error is None:
        return []
    lines = [f"# {job.state.value}: {error.message}"]
    lines += [f"# where: {error.where}"] if error.where else []
    lines += [f"# {line}" for line in error.excerpt]
    return lines + ([f"# hint: {error.hint}"] if error.hint else [])


def log_line_text(line: LogLine) -> str:
    """Return a line of a log for ``odf logs``: the time of day, the level, the text."""
    return f"{format_clock(line.time)} {line.level:7} {line.text}"


def log_failure_lines(job: Job) -> Iterator[str]:
    """Yield lines for ``odf logs`` that describe why a job failed; none if it has no error."""
    error = job.error
    if error is None:
        return
    where = f"{error.where}: " if error.where else ""
    yield f"{format_clock(job.ended)} {job.state.value:7} {where}{error.message}"
    for at, line in enumerate(error.excerpt):
        yield f"{'':8} {'' if at else 'line':7} {line}"
    if error.hint:
        yield f"{'':8} hint    {error.hint}"
