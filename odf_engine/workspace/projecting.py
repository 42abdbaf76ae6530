"""Projections of a changelog, as files of rows that can be shown like any others: its current state by key,
also as at a block and as of an event time.

Two passes with little memory: one over the columns of the key, which finds the rows that stay, and one
over everything, which writes them. A file of the current state is the beginning of the next one: when only
slices came since, what stays is found among its rows and theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.chain.chain import Dataset
from odf_engine.chain.state import ChainState
from odf_engine.data.conform import find_columns
from odf_engine.data.kernels import pc
from odf_engine.errors import BadData, InvalidSchema, NotFound, UsageError
from odf_engine.metadata.model import Append, Ledger
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.by_key import SHARE_BYTES
from odf_engine.workspace.grouping import grouped_by
from odf_engine.workspace.kept import begun, keep_newest
from odf_engine.workspace.state_files import About, Projection, StateFile
from odf_engine.workspace.staying import Staying, rows_as_of, rows_left, rows_now
from odf_engine.workspace.stored import StoredRows

_FILES: Final = 40
_BYTES: Final = 1_000_000_000
_GROUP_ROWS: Final = 1 << 15  # a screen decodes a whole group to show some rows


def primary_key(state: ChainState) -> list[str]:
    """The primary key of the sources of a dataset; empty when they have none, or not the same."""
    sources = [state.polling_source, *state.push_sources.values()]
    found = {tuple(getattr(each.merge, "primary_key", ())) for each in sources if each is not None}
    return list(found.pop()) if len(found) == 1 else []


def key_of(dataset: Dataset) -> list[str]:
    """The columns that tell the rows of a dataset apart; empty when nothing says so.

    For a root dataset this is the primary key of its sources, for a derivative one what its query groups
    by, as long as that is no window.
    """
    state = dataset.state()
    return primary_key(state) or grouped_by(state.transform)


def project(
    odf: Path,
    dataset: Dataset,
    key: Sequence[str],
    reporter: Reporter,
    *,
    until: int | None = None,
    as_of: Timestamp | None = None,
) -> Projection:
    """Makes a projection of a dataset.

    It is its current state by key: of each key its newest row, unless that takes it away. With ``as_of`` it
    is what had happened until then, with all corrections known (:mod:`odf_engine.workspace.as_of`): by
    key what was the state, and where nothing tells rows apart all rows that were not taken back.

    Args:
        odf: the workspace's ``.odf`` folder; its cache keeps the result.
        dataset: the changelog.
        key: columns that tell rows apart; empty for those of :func:`key_of`.
        reporter: hears of rows, and is asked whether to stop.
        until: the last offset of the changelog that counts (-1: none); by default the newest.
        as_of: an event time.

    Raises:
        UsageError: there is no key.
        InvalidSchema: the key has columns that are not there, or cannot be a key; or there is no event time.
        NotFound: the dataset has no rows yet, or their files are not there.
        BadData: rows that cannot be read.
        OdfError: the file cannot be written.
        Cancelled: the reporter was cancelled.
    """
    rows = StoredRows.of_dataset(dataset, until)
    names = _columns(rows, key or key_of(dataset), optional=as_of is not None)
    events = _events(dataset.state())
    return project_rows(odf / "cache" / "projections", rows, names, reporter, as_of=as_of, events=events)


def project_rows(
    folder: Path,
    rows: StoredRows,
    key: Sequence[str],
    reporter: Reporter,
    *,
    as_of: Timestamp | None = None,
    events: bool = False,
) -> Projection:
    """The same of rows: a file that is there, or a new one, if possible from that of fewer slices.

    Args:
        folder: where the files are.
        rows, key, reporter, as_of, events: as of :func:`write_projection`.

    Raises:
        OdfError: as of :func:`project`.
    """
    file = StateFile.of(folder, rows, key, None if as_of is None else f"{as_of} {events}")
    found = file.known()
    if found is not None:
        return found
    if as_of is None:
        found = _extended(file, rows, key, reporter)
    if found is None:
        found = write_projection(file.path, rows, key, reporter, as_of=as_of, events=events)
    keep_newest(folder, _FILES, _BYTES)
    return found


def write_projection(
    path: Path,
    rows: StoredRows,
    key: Sequence[str],
    reporter: Reporter,
    share_bytes: int = SHARE_BYTES,
    *,
    as_of: Timestamp | None = None,
    events: bool = False,
) -> Projection:
    """Writes a projection of rows to a Parquet file.

    Args:
        path: the file.
        rows: a changelog.
        key: names of its columns; with ``as_of`` it may be empty.
        reporter: hears of rows, and is asked whether to stop.
        share_bytes: about how many bytes of keys are looked at at once.
        as_of: an event time; by default it is the current state.
        events: with ``as_of``, whether a correction says that a record was wrong, whatever its event time.

    Raises:
        OdfError: as of :func:`project`.
    """
    with begun(path) as temporary:
        reporter.phase("find newest")
        if as_of is None:
            stays = rows_now(rows, key, path.parent, reporter, share_bytes)
        elif key:
            stays = rows_as_of(rows, key, as_of, path.parent, reporter, share_bytes, events=events)
        else:
            stays = rows_left(rows, as_of, path.parent, reporter, share_bytes)
        about = About(list(key), rows.row_count)
        count = _write(temporary, rows, about, stays, reporter)
    return Projection(path, list(key), count, about.of)


def _extended(file: StateFile, rows: StoredRows, key: Sequence[str], reporter: Reporter) -> Projection | None:
    """The current state from that of fewer slices; None where there is no such file."""
    before = file.before()
    if before is None:
        return None
    state, more = before
    try:
        with begun(file.path) as temporary:
            reporter.phase("find newest")
            stays = rows_now(more, key, file.path.parent, reporter, SHARE_BYTES)
            about = About(list(key), rows.row_count)
            count = _write(temporary, more, about, stays, reporter)
    except (BadData, NotFound) as error:
        if error.where != state.name:
            raise
        state.unlink(missing_ok=True)  # what is damaged in the cache is made anew
        return None
    return Projection(file.path, list(key), count, about.of)


def _events(state: ChainState) -> bool:
    """Whether all sources say what happened, and none how things are."""
    sources = [each for each in (state.polling_source, *state.push_sources.values()) if each is not None]
    return bool(sources) and all(isinstance(each.merge, Append | Ledger) for each in sources)


def _columns(rows: StoredRows, key: Sequence[str], *, optional: bool) -> list[str]:
    """The columns of the key as the dataset writes them."""
    if not key and not optional:
        raise UsageError("the dataset has no primary key", hint="choose the columns that tell rows apart")
    available = rows.columns.names
    if not available:
        raise NotFound("the dataset has no rows yet", hint="odf pull or odf ingest brings some in")
    names: list[str] = []
    for name, place in zip(key, find_columns(available, list(key)), strict=True):
        if place is None:
            raise InvalidSchema(f"there is no column '{name}'", hint=f"there are {', '.join(available)}")
        names.append(available[place])
    return list(dict.fromkeys(names))


# --- Writing -----------------------------------------------------------------------------------------


def _write(path: Path, rows: StoredRows, about: About, stays: Staying, reporter: Reporter) -> int:
    reporter.phase("write")
    schema = rows.columns.with_metadata(about.metadata())
    done = 0
    often: Any = _often_the_same(rows)  # the types of Parquet know only True and False
    with pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, use_dictionary=often
    ) as writer:
        for group in _groups(_staying(rows, stays)):
            writer.write_batch(group.replace_schema_metadata(schema.metadata), row_group_size=_GROUP_ROWS)
            done += group.num_rows
            reporter.amount(rows=done)
            reporter.check()
    return done


def _often_the_same(rows: StoredRows) -> list[str]:
    """Columns for which a dictionary pays; for numbers and times it takes half of the time to write."""
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_boolean)
    texts = [field.name for field in rows.columns if any(is_kind(field.type) for is_kind in kinds)]
    return [*texts, *(name for name in rows.system_columns[1:] if name in rows.columns.names)]


def _staying(rows: StoredRows, stays: Staying) -> Iterator[pa.RecordBatch]:
    offset = rows.vocabulary.offset_column
    for batch in rows.batches(ranges=stays.ranges()):
        mask = stays.mask(batch.column(offset))
        if pc.any(mask).as_py():
            yield batch.filter(mask)


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in row groups of some size: what stays of a batch may be few."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= 16 << 20:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)
