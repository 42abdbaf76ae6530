"""The positions of ingested rows in the files that a publisher released."""

from __future__ import annotations

import csv
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from odf_engine.base.progress import Reporter
from odf_engine.data.odf_schema import columns_of_step
from odf_engine.errors import NotFound, Unsupported
from odf_engine.ingest.fetch.files_glob import glob_folder, read_state
from odf_engine.ingest.fetch.model import LAST_MODIFIED, file_stamp, hash_file
from odf_engine.ingest.prep_step import PreparedFile, PrepareLimits, is_filter
from odf_engine.ingest.read.error_location import line_excerpt
from odf_engine.ingest.read.json_lines import load
from odf_engine.ingest.read.text_file import csv_file, csv_rows, first_row
from odf_engine.ingest.source_lines import SourceLine, SourceLines
from odf_engine.metadata.model import (
    Csv,
    FilesGlob,
    NdJson,
    Pipe,
    ReadStep,
    SetPollingSource,
    SourceState,
    Url,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

_MAX_BYTES: Final = 1 << 29
_MAX_SECONDS: Final = 10.0
_MAX_LINES: Final = 3
"""Maximum number of lines that are reported for a row that a file repeats."""
_TRUE: Final = frozenset({"true", "t", "yes", "y", "1"})
_FALSE: Final = frozenset({"false", "f", "no", "n", "0"})


class RowPosition(NamedTuple):
    """The position of a row in a file.

    Attributes:
        path: the file.
        place: the line, such as ``line 7``, or the sheet and row, such as ``Cases row 7``. Lines with the
            same values are separated by commas. "" if the file does not contain the row.
        line: the first of these lines, or 0 in a file without lines.
        text: the line, truncated, or "" in a file without lines.
    """

    path: Path
    place: str
    line: int = 0
    text: str = ""


class SoughtRow(NamedTuple):
    """A row to find.

    Attributes:
        offset: its offset.
        values: the values of columns that the ingest does not change, by their names in the file.
        key: the names of those that are in the primary key.
    """

    offset: int
    values: Mapping[str, Any]
    key: frozenset[str]


def find_rows(
    workspace: Workspace,
    entry: DatasetEntry,
    source: SetPollingSource,
    state: SourceState | None,
    rows: Sequence[SoughtRow],
    reporter: Reporter,
) -> dict[int, RowPosition]:
    """Find rows of one commit in the local files of their source.

    Args:
        workspace: the workspace; relative paths start at its folder.
        entry: the root dataset.
        source: the source of the rows.
        state: the state of the source in the block of the rows.
        rows: the rows.
        reporter: can cancel.

    Returns:
        The positions by offset. A row that is in none of the files has the position "" in the last one.

    Raises:
        NotTrusted: the dataset is by a third party, and is not trusted.
        NotFound: a file does not exist, or differs from the ingested one.
        Unsupported: the source is not a local file, its format has no lines, or a command prepares it.
        OdfError: a file cannot be read.
        Cancelled: the job was cancelled.
    """
    Trust(workspace).require_trust(entry)
    for step in source.prepare or ():
        if isinstance(step, Pipe) and not is_filter(step):  # it may do more than convert the file
            raise Unsupported(f"the file was prepared by the command {shlex.join(step.command)}")
    positions: dict[int, RowPosition] = {}
    limits = PrepareLimits.of(workspace.config)
    for path in _source_files(workspace, source.fetch, state, reporter):
        missing = [row for row in rows if not positions.get(row.offset, _NOWHERE).place]
        if not missing:
            break
        with job_scratch_folder(workspace.odf / "cache") as folder:
            file = PreparedFile(path, path.name)
            lines = SourceLines(source.prepare or (), file, workspace.folder, folder, reporter, limits)
            positions |= _find_in_file(lines, source.read, missing)
    return positions


_NOWHERE: Final = RowPosition(Path(), "")


def _source_files(
    workspace: Workspace, fetch: Any, state: SourceState | None, reporter: Reporter
) -> Iterator[Path]:
    """Yield the files of a commit, which did not change since."""
    if isinstance(fetch, FilesGlob) and state is not None:
        folder, _ = glob_folder(fetch.path, workspace.folder)
        for name, digest in read_state(state.value):
            yield _unchanged(folder / name, lambda path: digest in (None, hash_file(path, reporter)))  # noqa: B023
    elif isinstance(fetch, Url) and urlsplit(fetch.url).scheme.lower() in ("", "file"):
        modified = state.value if state is not None and state.kind == LAST_MODIFIED else None
        yield _unchanged(
            workspace.resolve_path(fetch.url),
            lambda path: modified in (None, str(Timestamp.from_ms(file_stamp(path)[0] // 1_000_000))),
        )
    else:
        raise Unsupported("the fetched file is not kept")


def _unchanged(path: Path, is_same: Callable[[Path], bool]) -> Path:
    if not path.is_file():
        raise NotFound(f"{path} no longer exists")
    if not is_same(path):
        raise NotFound(f"{path} was modified after the rows were ingested")
    return path


def _find_in_file(lines: SourceLines, step: ReadStep, rows: Sequence[SoughtRow]) -> dict[int, RowPosition]:
    """Return the positions of rows in a file; "" for rows that it does not contain."""
    if lines.fetched.path.stat().st_size > _MAX_BYTES:
        raise Unsupported(f"{lines.fetched.name} is too large to find its lines")
    lines.reporter.phase("find lines")
    prepared = lines.prepare()
    candidates = _Candidates(rows)
    until = monotonic() + _MAX_SECONDS
    complete: dict[int, list[int]] = {row.offset: [] for row in rows}
    by_key: dict[int, list[int]] = {row.offset: [] for row in rows}
    for number, (line, record) in enumerate(_records(step, prepared)):
        if number % 1000 == 0:
            lines.reporter.raise_if_cancelled()
            if monotonic() > until:
                raise Unsupported(f"{lines.fetched.name} is too large to find its lines")
        for row in candidates.of(record):
            same = {
                name: is_same_value(record[name], value)
                for name, value in row.values.items()
                if name in record
            }
            if True in same.values() and False not in same.values():
                complete[row.offset].append(line)
            elif row.key and all(same.get(name) for name in row.key):
                by_key[row.offset].append(line)
    return {
        row.offset: _position(lines, prepared, complete[row.offset] or by_key[row.offset]) for row in rows
    }


class _Candidates:
    """Selects the rows that a record can be, by a column of texts if there is one."""

    def __init__(self, rows: Sequence[SoughtRow]) -> None:
        self._rows = rows
        names = sorted(rows[0].key) or list(rows[0].values) if rows else []
        texts = {name: [row.values[name] for row in rows] for name in names}
        self._column = next(
            (name for name, values in texts.items() if all(isinstance(value, str) for value in values)), ""
        )
        self._by_text: dict[str, list[SoughtRow]] = {}
        for row in rows if self._column else ():
            self._by_text.setdefault(row.values[self._column].strip(), []).append(row)

    def of(self, record: Mapping[str, Any]) -> Sequence[SoughtRow]:
        """Return the rows that a record can be."""
        text = record.get(self._column)
        return self._by_text.get(text.strip(), ()) if isinstance(text, str) else self._rows


def _position(lines: SourceLines, prepared: PreparedFile, numbers: Sequence[int]) -> RowPosition:
    path = lines.fetched.path
    places: list[SourceLine] = []
    for number in numbers[:_MAX_LINES]:
        place = lines.locate(number)
        if place is None:  # no filter that counts lines
            place = SourceLine(prepared.name, f"line {number}", line_excerpt(prepared.path, number, "utf-8"))
        places.append(place)
    more = [f"and {len(numbers) - _MAX_LINES} more"] if len(numbers) > _MAX_LINES else []
    text = places[0].excerpt[0].partition(" | ")[2] if places and places[0].excerpt else ""
    line = re.fullmatch(r"line (\d+)", places[0].place) if places else None
    texts = [place.place for place in places]
    texts = [texts[0], *(text.removeprefix("line ") for text in texts[1:])] if line else texts
    return RowPosition(path, ", ".join([*texts, *more]), int(line[1]) if line else 0, text)


def _records(step: ReadStep, file: PreparedFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the records of a file by column, each with its first line, from 1."""
    if isinstance(step, Csv):
        text = csv_file(step, file)
        first, declared = first_row(text), columns_of_step(step)
        names = first if text.header else [f"_c{at}" for at in range(len(first))]
        names = [name.casefold() for name in (names if declared is None else declared.names)]
        try:
            for number, (line, record) in enumerate(csv_rows(text)):
                if number or not text.header:
                    yield line, dict(zip(names, record, strict=False))
        except (csv.Error, UnicodeDecodeError) as error:
            raise Unsupported(f"{file.name} is not CSV: {error}") from error
    elif isinstance(step, NdJson):
        with file.path.open(encoding="utf-8-sig", errors="replace") as records:
            for line, record in enumerate(records, 1):
                with suppress(ValueError, RecursionError):
                    value = load(record)
                    if isinstance(value, dict):
                        yield line, {name.casefold(): item for name, item in value.items()}
    else:
        raise Unsupported("only CSV and NDJSON files have lines")


def is_same_value(source: Any, value: Any) -> bool | None:
    """Compare a value of a file with the value of a row.

    Args:
        source: the text of CSV, or the value of JSON.
        value: the value of a column, as Python represents it.

    Returns:
        Whether they are the same, or None if that depends on options of the read step, such as a format.
    """
    if source in (None, "") or value in (None, ""):
        return (source in (None, "")) == (value in (None, "")) or (None if value is None else False)
    text = str(source).strip()
    match value:
        case bool():
            return True if text.lower() in (_TRUE if value else _FALSE) else None
        case int() | float() | Decimal():
            return _is_same_number(text, value)
        case datetime() | date() | time():
            return _is_same_time(text, value)
        case str():
            return value.strip() == text
        case _:
            return True if source == value else None


def _is_same_number(text: str, value: float | Decimal) -> bool | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if number.is_nan():
        return isinstance(value, float) and math.isnan(value)
    return math.isclose(number, value, rel_tol=1e-6) if isinstance(value, float) else number == value


def _is_same_time(text: str, value: datetime | date | time) -> bool | None:
    try:
        parsed = type(value).fromisoformat(text)
    except ValueError:
        return None
    if isinstance(parsed, datetime) and isinstance(value, datetime):
        is_local = parsed.tzinfo is None
        parsed, value = (
            moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment for moment in (parsed, value)
        )
        return parsed == value or (None if is_local else False)
    return parsed == value
