"""Fetches the local files that match a pattern, each once; event time from paths."""

from __future__ import annotations

import glob
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Final
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.block_summary import StoredBlock
from odf_engine.chain.compacted_history import find_replaced_blocks
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import glob_root
from odf_engine.errors import BadData, InvalidManifest, SourceUnavailable
from odf_engine.identity.multiformats import Multihash
from odf_engine.ingest.fetch.model import (
    ETAG,
    SOURCE_NAME,
    FetchContext,
    Payload,
    file_stamp,
    hash_file,
    require_readable,
)
from odf_engine.metadata.model import (
    AddData,
    FilesGlob,
    FromMetadata,
    FromPath,
    SetPollingSource,
    SourceOrdering,
    SourceState,
)
from odf_engine.metadata.time_formats import DEFAULT_FORMAT, parse_time
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.databases import connect_database


def event_time_from_path(step: FromPath, name: str) -> Timestamp:
    """Return the event time in the first group of the pattern, from the name of a file.

    Raises:
        BadData: the name does not match, or the group is not a time in the format of the step.
        InvalidManifest: the pattern or the format is invalid.
    """
    hint = "restrict fetch.path to the required files, or extend the pattern"
    return _find_event_time(step, [name.rsplit("/", 1)[-1], name], "file name", name, hint)


def event_time_from_url(step: FromPath, url: str, where: str) -> Timestamp:
    """Return the event time in the first group of the pattern, from a URL.

    The pattern is searched in the file name, in the path, and in the path with the query. They are decoded.

    Args:
        step: the pattern, and the format of the time.
        url: the URL, with its variables substituted.
        where: the URL as errors show it.

    Raises:
        BadData: the URL does not match, or the group is not a time in the format of the step.
        InvalidManifest: the pattern or the format is invalid.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    texts = [path.rsplit("/", 1)[-1], path, f"{path}?{unquote(parts.query)}"]
    hint = "the pattern is searched in the path and the query of the URL"
    return _find_event_time(step, texts, "URL", where, hint)


def _find_event_time(step: FromPath, texts: Sequence[str], kind: str, where: str, hint: str) -> Timestamp:
    """Return the event time from the first of the texts that matches the pattern."""
    try:
        pattern = re.compile(step.pattern)
    except re.error as error:
        raise InvalidManifest(
            f"eventTime.pattern '{step.pattern}' is not a valid regular expression: {error}"
        ) from None
    if pattern.groups < 1:
        raise InvalidManifest(
            f"eventTime.pattern '{step.pattern}' has no group",
            hint="enclose the time in parentheses, such as (\\d+-\\d+-\\d+)\\.csv",
        )
    match = next((match for text in texts if (match := pattern.search(text))), None)
    if match is None or match[1] is None:
        raise BadData(f"the {kind} does not match eventTime.pattern '{step.pattern}'", where=where, hint=hint)
    form = step.timestamp_format or DEFAULT_FORMAT
    try:
        return parse_time(match[1], form)
    except ValueError as error:
        if step.timestamp_format is None:
            try:
                return Timestamp.parse(match[1])
            except ValueError:
                pass
        raise BadData(f"{error} (eventTime from the {kind})", where=where) from None


_TABLES: Final = """
CREATE TABLE IF NOT EXISTS taken (
  name TEXT, folder TEXT, digest TEXT NOT NULL, PRIMARY KEY (name, folder)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS floors (folder TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS hashes (
  name TEXT PRIMARY KEY, mtime INTEGER, size INTEGER, digest TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""
_FLOOR: Final = """
INSERT INTO floors VALUES (?, ?) ON CONFLICT DO UPDATE SET name = max(name, excluded.name)
"""


class IngestedFiles:
    """The files ingested up to the newest blocks; :meth:`close` it.

    ``parse`` reads the value of a source state: names and their hashes, or a name and None, which means that
    every name up to it was ingested.

    Args:
        dataset: the dataset.
        parse: reads the value of a source state.
        source_name: the name of the source in its states.
        folder: the folder of the source, which is used if the source is not in the chain.
    """

    def __init__(
        self,
        dataset: Dataset,
        parse: Callable[[str], Sequence[tuple[str, str | None]]],
        source_name: str = SOURCE_NAME,
        folder: str = "",
    ) -> None:
        self._parse = parse
        self._source_name = source_name
        self._outside = folder if source_name != SOURCE_NAME else None
        path = dataset.cache_folder / "taken.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open(path)
            self._catch_up(dataset)
        except sqlite3.DatabaseError:
            with suppress(AttributeError):
                self._db.close()
            path.unlink(missing_ok=True)
            self._open(path)
            self._catch_up(dataset)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def any(self) -> bool:
        """Return whether any file was ingested."""
        return bool(self._taken) or self._floor is not None

    def has(self, name: str) -> bool:
        """Return whether a file was ingested."""
        return name in self._taken or (self._floor is not None and name <= self._floor)

    def digest(self, name: str) -> str | None:
        """Return the hash of a file when it was ingested, if known."""
        return self._taken.get(name)

    def known_in_other_folder(self, name: str) -> bool:
        """Return whether a file of this name was ingested from another folder."""
        return name in self._elsewhere

    def was_moved(self, name: str, digest: str) -> bool:
        """Return whether this file, with this content, was ingested from another folder."""
        return digest in self._elsewhere.get(name, ())

    def greatest(self) -> str | None:
        """Return the greatest name that was ingested."""
        return self._greatest

    def add(self, name: str, digest: str) -> None:
        """Record an ingested file; its block is read from the chain at the next opening."""
        self._taken[name] = digest
        self._greatest = max(name, self._greatest or name)

    def known_hash(self, name: str, stamp: tuple[int, int]) -> str | None:
        """Return the stored hash of a file with this modification time and size."""
        known = self._hashes.get(name)
        return known[2] if known is not None and known[:2] == stamp else None

    def note_hash(self, name: str, stamp: tuple[int, int], digest: str) -> None:
        """Store the hash of a file with this modification time and size."""
        self._hashes[name] = (*stamp, digest)
        with self._db:
            self._db.execute("REPLACE INTO hashes VALUES (?, ?, ?, ?)", (name, *stamp, digest))

    def _open(self, path: Path) -> None:
        self._db = connect_database(path, timeout=30)
        self._db.execute("PRAGMA synchronous = OFF")  # a cache: rebuilt when damaged
        self._db.executescript(_TABLES)
        facts = dict(self._db.execute("SELECT name, value FROM facts"))
        self._head: str | None = facts.get("head")
        self._folder: str | None = facts.get("folder")
        hashes = self._db.execute("SELECT name, mtime, size, digest FROM hashes")
        self._hashes: dict[str, tuple[int, int, str]] = {name: (*rest,) for name, *rest in hashes}

    def _catch_up(self, dataset: Dataset) -> None:
        """Read the blocks since the last known head."""
        head = dataset.head()
        if self._outside is not None and self._folder != self._outside:
            self._head = None  # another source: the states of this one are read again
        if head is not None and str(head) != self._head:
            self._walk(dataset, str(head))
        self._taken: dict[str, str] = {}
        self._elsewhere: dict[str, set[str]] = {}
        for name, folder, digest in self._db.execute("SELECT name, folder, digest FROM taken"):
            if folder == self._folder:
                self._taken[name] = digest
            else:
                self._elsewhere.setdefault(name, set()).add(digest)
        floors = dict(self._db.execute("SELECT folder, name FROM floors"))
        self._floor: str | None = floors.get(self._folder)
        names = [*self._taken, *([self._floor] if self._floor is not None else [])]
        self._greatest = max(names, default=None)

    def _walk(self, dataset: Dataset, head: str) -> None:
        states: list[tuple[str, str]] = []  # folders, and values of states, newest first
        pending: list[str] = []  # values whose source comes earlier in the chain
        folder: str | None = None
        source_met = reached = False
        replaced = find_replaced_blocks(dataset)
        for stored in dataset.blocks(newest_first=True):
            if str(stored.hash) == self._head:
                reached = True
                break
            event = stored.block.event
            if isinstance(event, AddData):
                pending += _states_of_block(stored, replaced, self._source_name)
            elif isinstance(event, SetPollingSource):
                its = glob_root(event.fetch.path) if isinstance(event.fetch, FilesGlob) else None
                folder, source_met = (folder if source_met else its), True
                states += [] if its is None else [(its, value) for value in pending]
                pending = []
        if self._outside is not None:
            folder, source_met = self._outside, True
            states += [(self._outside, value) for value in pending]
        elif reached and self._folder is not None:
            states += [(self._folder, value) for value in pending]
        self._store(states, head, folder if source_met or not reached else self._folder, keep=reached)

    def _store(self, states: list[tuple[str, str]], head: str, folder: str | None, *, keep: bool) -> None:
        with self._db:
            if not keep:
                self._db.execute("DELETE FROM taken")
                self._db.execute("DELETE FROM floors")
            for its, value in reversed(states):
                for name, digest in self._parse(value):
                    if digest is not None:
                        self._db.execute("REPLACE INTO taken VALUES (?, ?, ?)", (name, its, digest))
                    else:
                        self._db.execute(_FLOOR, (its, name))
            facts = {"head": head, "folder": folder}
            self._db.executemany("REPLACE INTO facts VALUES (?, ?)", facts.items())
        self._head, self._folder = head, folder


def _states_of_block(
    stored: StoredBlock, replaced: Mapping[Multihash, Sequence[StoredBlock]], source_name: str
) -> Iterator[str]:
    """Yield the values of the states of a block, and of the blocks that it replaced, newest first."""
    event = stored.block.event
    state = event.new_source_state if isinstance(event, AddData) else None
    if state is not None and (state.source_name, state.kind) == (source_name, ETAG):
        yield state.value
    for earlier in replaced.get(stored.hash, ()):
        yield from _states_of_block(earlier, replaced, source_name)


_HASH: Final = re.compile(r"\t(f1220[0-9a-f]{64})(?:\t|\Z)")


def fetch_files(step: FilesGlob, context: FetchContext) -> Iterator[Payload]:
    """Yield the files that have not been ingested, in the order of the step.

    Raises:
        SourceUnavailable: no file matches, and none was ever ingested.
        BadData: a name without a valid event time.
        InvalidManifest: order by event time without a source of event times.
    """
    reporter = context.reporter
    root, files = _matching(step.path, context.root)
    taken = IngestedFiles(context.dataset, read_state, context.source_name, glob_root(step.path))
    try:
        if not files and not taken.any():
            raise SourceUnavailable(
                f"no files match '{step.path}'",
                where=str(root),
                hint="check fetch.path in the manifest; relative paths start at the workspace folder",
            )
        new = [name for name in files if not taken.has(name)]
        new = [name for name in new if context.force or not _moved(root, name, taken, reporter)]
        reporter.log(f"{step.path}: {count_of(len(files), 'file')}, {len(files):,} new")
        if step.cache is None:
            changed = _changed(root, [name for name in files if taken.has(name)], taken, reporter)
            if context.force:
                new = sorted([*new, *changed])
            for name in () if context.force else changed:
                reporter.log(
                    f"{name} was ingested before and has changed: skipped (use --force to ingest it again)",
                    "warning",
                )
        for number, name in enumerate(_ordered(step, root, new), 1):
            reporter.raise_if_cancelled()
            path = root / name
            with _vanishing(path):
                require_readable(path)
                stamp = file_stamp(path)
                reporter.set_amounts(files=number, total_files=len(new), file=name)
                digest = hash_file(path, reporter, total=stamp[1])
            last_name = max(name, taken.greatest() or name)
            state = SourceState(SOURCE_NAME, ETAG, _value(last_name, name, digest))
            reporter.log(f"file {number} of {len(new)}: {path}, {stamp[1]:,} bytes")
            yield Payload(path, name, state, _event_time(step, root, name), stamp, number)
            # The caller requests the next file after the commit of this one, or commits several together.
            taken.add(name, digest)
            taken.note_hash(name, stamp, digest)
    finally:
        taken.close()


def read_state(value: str) -> list[tuple[str, str | None]]:
    """Return the files of the value of a state with their hashes, the last ingested file first.

    The value begins with the greatest name that was ingested, the hash of the last file, and the name of the
    last file if it is another one. A commit of several files adds the hashes and names of the others. In a
    value without a hash, which another program has written, all names up to it were ingested.
    """
    greatest, *parts = _HASH.split(value)
    if not parts:
        return [(value, None)]
    return [(name or greatest, digest) for digest, name in zip(parts[::2], parts[1::2], strict=True)]


def join_states(states: Sequence[SourceState]) -> SourceState:
    """Return the state after several files, from the states after each of them, oldest first."""
    *earlier, last = states
    greatest = _HASH.split(last.value)[0]
    ((last_name, digest),) = read_state(last.value)
    parts = [greatest, digest, last_name]
    for state in reversed(earlier):
        ((name, digest),) = read_state(state.value)
        parts += [digest, name]
    return replace(last, value="\t".join(map(str, parts))) if earlier else last


def _value(last_name: str, name: str, digest: str) -> str:
    return f"{last_name}\t{digest}" + ("" if name == last_name else f"\t{name}")


def glob_folder(pattern: str, base: Path) -> tuple[Path, str]:
    """Return the folder before the first wildcard of a pattern, and the rest of the pattern.

    Args:
        pattern: the pattern.
        base: the folder of a relative pattern.
    """
    path = Path(pattern).expanduser()
    parts = PurePath(base / path).parts
    # The path of the workspace may contain wildcards.
    own = 0 if path.is_absolute() else len(base.parts)
    magic = (at for at, part in enumerate(parts) if at >= own and glob.has_magic(part))
    fixed = next(magic, len(parts) - 1)
    return Path(*parts[:fixed]), str(Path(*parts[fixed:]))


def _matching(pattern: str, base: Path) -> tuple[Path, list[str]]:
    """Return the folder before the first wildcard, and the sorted relative names of matching files."""
    root, rest = glob_folder(pattern, base)
    names = glob.glob(rest, root_dir=root, recursive=True)  # noqa: PTH207
    names = sorted(name for name in names if (root / name).is_file())
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadData("the file name is not UTF-8", where=repr(name), hint="rename the file") from None
    return root, names


def _ordered(step: FilesGlob, root: Path, names: list[str]) -> list[str]:
    if step.order is not SourceOrdering.ByEventTime:
        return names
    if not isinstance(step.event_time, FromPath | FromMetadata):
        raise InvalidManifest(
            "order ByEventTime requires an event time for each file",
            hint="set fetch.eventTime to FromPath or FromMetadata, or use order ByName",
        )
    return sorted(names, key=lambda name: (_event_time(step, root, name), name))


def _event_time(step: FilesGlob, root: Path, name: str) -> Timestamp | None:
    if isinstance(step.event_time, FromPath):
        return event_time_from_path(step.event_time, name)
    if isinstance(step.event_time, FromMetadata):
        with _vanishing(root / name):
            return Timestamp.from_ms((root / name).stat().st_mtime_ns // 1_000_000)
    return None


def _moved(root: Path, name: str, taken: IngestedFiles, reporter: Reporter) -> bool:
    """Return whether a file was ingested from the previous folder of the source."""
    if not taken.known_in_other_folder(name):
        return False
    with _vanishing(root / name):
        moved = taken.was_moved(name, _known_hash(root, name, taken, reporter))
    if moved:
        reporter.log(f"{name} was ingested from another folder before and has not changed: skipped")
    return moved


def _known_hash(root: Path, name: str, taken: IngestedFiles, reporter: Reporter) -> str:
    """Return the hash of a file, which is read only if modification time or size changed."""
    stamp = file_stamp(root / name)
    digest = taken.known_hash(name, stamp)
    if digest is None:
        digest = hash_file(root / name, reporter)
        taken.note_hash(name, stamp, digest)
    return digest


def _changed(root: Path, names: list[str], taken: IngestedFiles, reporter: Reporter) -> list[str]:
    """Return the ingested files that have changed since."""
    changed: list[str] = []
    for name in names:
        reporter.raise_if_cancelled()
        before = taken.digest(name)
        if before is None:
            continue
        try:
            digest = _known_hash(root, name, taken, reporter)
        except FileNotFoundError:
            continue  # deleted after ingestion: nothing is missing
        if digest != before:
            changed.append(name)
    return changed


@contextmanager
def _vanishing(path: Path) -> Iterator[None]:
    """Translate errors for a file that was deleted after the folder was listed."""
    try:
        yield
    except (FileNotFoundError, SourceUnavailable) as error:
        if path.exists():
            raise
        raise SourceUnavailable(
            "the file was deleted during the pull", where=str(path), hint="pull again"
        ) from error
