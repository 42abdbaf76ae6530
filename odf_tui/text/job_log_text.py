"""Lines of job logs as text: on the screen, in files, on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from odf_engine.api import Committed, Job, LogLine
from odf_engine.api.readers.job_log import Entry, count_rows
from odf_engine.api.text import format_clock, short_hash

_MAX_LINE: Final = 4000
_HASH: Final = re.compile(r"\bf1620([0-9a-f]{8})[0-9a-f]{56}\b")


def log_display_text(entry: Entry) -> str:
    """Return the text of a line for the screen, with short hashes."""
    if isinstance(entry, Committed):
        rows = f", {count_rows(entry)}" if entry.rows else ""
        return f"block {short_hash(entry.block)}, {entry.event}{rows}"
    return _HASH.sub(r"\1", entry.text[:_MAX_LINE].rstrip("\r\n"))


def log_line_text(line: LogLine) -> str:
    """Return a line of a log for ``odf logs``: the time of day, the level, the text."""
    return f"{format_clock(line.time)} {line.level:7} {line.text}"


def log_failure_lines(job: Job) -> Iterator[str]:
    """Yield lines for ``odf logs`` that describe why a job failed; none if it has no error."""
    error = job.error
    if error is None:
        return
    location = f"{error.where}: " if error.where else ""
    yield f"{format_clock(job.ended)} {job.state.value:7} {location}{error.message}"
    for at, line in enumerate(error.excerpt):
        yield f"{'':8} {'' if at else 'line':7} {line}"
    if error.hint:
        yield f"{'':8} hint    {error.hint}"
