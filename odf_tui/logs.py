"""The log of a job: a window on its lines in the journal, which follows them or stays where one reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from odf_engine.coordinator.protocol import Committed, Job, JobChanged, JournalEvent, LogLine

Entry = LogLine | Committed

PAGE: Final = 2000
MOST: Final = 10_000
"""Lines in memory; those beyond, on the other side, are let go and read again when they are wanted."""
CLIP: Final = 4000

_HASH: Final = re.compile(r"\bf1620[0-9a-f]{56}([0-9a-f]{8})\b")


class Written(msgspec.Struct, frozen=True):
    """A block that a job wrote: its dataset (id), number, hash, kind of event, and the rows it added."""

    dataset: str
    number: int
    hash: str
    event: str
    rows: int


class LogPage(msgspec.Struct, frozen=True):
    """Some events of a job, and whether the journal has more of them before and after."""

    events: list[JournalEvent]
    older: bool
    newer: bool


class LogWindow:
    """Lines of a job's log that follow each other without a gap.

    Attributes:
        lines: the lines; a block that was committed is one of them.
        older, newer: whether the journal has lines before the first and after the last.
    """

    def __init__(self, most: int = MOST) -> None:
        self.lines: list[Entry] = []
        self.older = self.newer = False
        self._most = most
        self._last = 0

    @property
    def first_seq(self) -> int:
        """The journal number of the first line."""
        return self.lines[0].seq if self.lines else 0

    @property
    def last_seq(self) -> int:
        """The journal number up to which lines are known."""
        return self._last

    def load(self, page: LogPage) -> None:
        """Takes a page in place of what there is."""
        self.lines = merged(page.events)
        self.older, self.newer = page.older, page.newer
        self._last = page.events[-1].seq if page.events else 0

    def add(self, events: Iterable[JournalEvent]) -> None:
        """Appends what is new, where the end of the log is in memory."""
        if not self.newer:
            self._append([event for event in events if event.seq > self._last])

    def extend(self, page: LogPage) -> None:
        """Appends the page that follows."""
        self.newer = page.newer
        self._append(page.events)

    def prepend(self, page: LogPage) -> None:
        """Puts the page that comes before in front."""
        self.lines = merged(page.events) + self.lines
        self.older = page.older
        if len(self.lines) > self._most:
            del self.lines[self._most :]
            self.newer = True
            self._last = self.lines[-1].seq

    def _append(self, events: Sequence[JournalEvent]) -> None:
        if not events:
            return
        self._last = events[-1].seq
        self.lines = self.lines[:-1] + merged([*self.lines[-1:], *events])
        gone = max(len(self.lines) - self._most, 0)
        if gone:
            del self.lines[:gone]
            self.older = True


def merged(events: Iterable[JournalEvent]) -> list[Entry]:
    """The lines among events. A block has one line: what the job said of it, if it said its hash."""
    lines: list[Entry] = []
    for event in events:
        if isinstance(event, JobChanged):
            continue
        said = lines[-1] if lines else None
        if isinstance(event, Committed) and isinstance(said, LogLine) and event.block in said.text:
            continue
        lines.append(event)
    return lines


def is_commit(entry: Entry) -> bool:
    """Whether a line tells of a block that was committed."""
    return isinstance(entry, Committed) or (entry.level == "info" and " block f1620" in f" {entry.text}")


def shown_text(entry: Entry) -> str:
    """What a line says on the screen: hashes are short there."""
    if isinstance(entry, Committed):
        rows = f", {entry.rows:,} rows" if entry.rows else ""
        return f"block …{entry.block[-8:]}, {entry.event}{rows}"
    return _HASH.sub(r"…\1", entry.text[:CLIP].rstrip("\r\n"))


def searched_text(entry: Entry) -> str:
    """What is searched, in lower case: hashes in full, and no time."""
    text = f"block {entry.block} {entry.event}" if isinstance(entry, Committed) else entry.text
    return text.lower()


def file_line(entry: Entry) -> str:
    """A line as a file has it."""
    if isinstance(entry, Committed):
        return f"{' ' * 24} block {entry.block}, {entry.event}, {entry.rows:,} rows"
    return f"{entry.time:<24} {entry.level:<7} {entry.text}"


def file_head(job: Job) -> list[str]:
    """What a file says of the job."""
    return [
        f"# {job.kind} {job.target}, job {job.id}: {job.state.value}",
        f"# made {job.created}, started {job.started or 'never'}, ended {job.ended or 'not yet'}",
    ]


def file_end(job: Job) -> list[str]:
    """What a file says of why the job failed."""
    error = job.error
    if error is None:
        return []
    lines = [f"# {job.state.value}: {error.message}"]
    lines += [f"# where: {error.where}"] if error.where else []
    lines += [f"# {line}" for line in error.excerpt]
    return lines + ([f"# try: {error.hint}"] if error.hint else [])


def file_name(job: Job) -> str:
    """What a saved log is called."""
    return f"{job.kind}-{re.sub(r'[^0-9A-Za-z._-]+', '-', job.target) or 'dataset'}-{job.id}.log"
