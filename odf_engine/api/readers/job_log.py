"""Lines of job logs, for searches and files."""

from __future__ import annotations

from collections.abc import Iterable

from odf_engine.worker.protocol import Committed, Job, JobChanged, JournalEvent, LogLine

Entry = LogLine | Committed
"""A line of a job's log; a committed block is one, too."""


def merge_log_entries(events: Iterable[JournalEvent]) -> list[Entry]:
    """Return the lines of events. A block has one line: the job's, if it has the hash."""
    lines: list[Entry] = []
    for event in events:
        if isinstance(event, JobChanged):
            continue
        last = lines[-1] if lines else None
        if isinstance(event, Committed) and isinstance(last, LogLine) and event.block in last.text:
            continue
        lines.append(event)
    return lines


def log_search_text(entry: Entry) -> str:
    """Return the text of a line for searches: in lower case, with complete hashes, without the time."""
    text = f"block {entry.block} {entry.event}" if isinstance(entry, Committed) else entry.text
    return text.lower()


def format_log_line(entry: Entry) -> str:
    """Return a line for a file."""
    if isinstance(entry, Committed):
        return f"{' ' * 24} block {entry.block}, {entry.event}, {count_rows(entry)}"
    return f"{entry.time:<24} {entry.level:<7} {entry.text}"


def count_rows(entry: Committed) -> str:
    """Return the number of rows of a block, such as ``1,200 rows``."""
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
