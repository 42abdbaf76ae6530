"""Materialized states of a changelog, cached as files, and the key of a dataset."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.atomic_files import atomic_file, evict_oldest
from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState
from odf_engine.data.arrow_compute import pc
from odf_engine.data.parquet.parquet_reader import parquet_errors
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.errors import BadData, InvalidSchema, NotFound, UsageError
from odf_engine.metadata.model import Append, Ledger, SetTransform, Snapshot
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows.live_rows import History, LiveRowSet, current_rows, rows_as_of, unretracted_rows
from odf_engine.rows.scan import Scan, ScanFile
from odf_engine.workspace.documents.private_source import local_state


def group_by_columns(transform: SetTransform | None) -> list[str]:
    """Return the output columns in the last GROUP BY of a query, or [] if they cannot be determined.

    A grouping by a window, or by the event time itself, makes final rows, which have no latest state. Steps
    after the grouping may filter rows and rename columns.
    """
    if transform is None:
        return []
    sql = transform.transform
    steps = [(step.alias, step.query) for step in sql.queries or []] or [(None, sql.query or "")]
    from sqlglot import exp, parse_one  # Deferred: sqlglot is slow to import.
    from sqlglot.dialects.spark import Spark
    from sqlglot.errors import SqlglotError

    from odf_engine.sql import expression_lineage

    known: dict[str, Any] = {}
    columns: list[str] | None = None
    try:
        for alias, text in steps:
            expression_lineage.check_joins(Spark().tokenize(text))
            query = parse_one(text, dialect="spark")
            columns = _query_keys(query, known, exp)
            if alias is not None:
                known[alias.casefold()] = columns
    except (SqlglotError, expression_lineage.LineageUnresolved, RecursionError):
        return []
    return columns or []


Known = Mapping[str, list[str] | None]
"""Key columns of earlier steps by their names in lower case, or None if they cannot be determined."""


def _query_keys(query: Any, known: Known, exp: Any) -> list[str] | None:
    if not isinstance(query, exp.Query):
        return None
    known = dict(known)
    for part in query.ctes:
        known[part.alias.casefold()] = _query_keys(part.this, known, exp)
    query = query.unnest()
    if not isinstance(query, exp.Select):
        return None
    group = query.args.get("group")
    return _mapped_query_keys(query, known, exp) if group is None else _grouping_columns(query, group, exp)


def _grouping_columns(query: Any, group: Any, exp: Any) -> list[str] | None:
    """Return the output columns that a SELECT groups by."""
    outputs = [(expression.unalias(), expression.alias_or_name) for expression in query.expressions]
    if any(group.args.get(kind) for kind in ("rollup", "cube", "grouping_sets")):
        return None
    if group.args.get("all"):
        return [name for term, name in outputs if not term.find(exp.AggFunc)]
    names: list[str] = []
    for expression in group.expressions:
        name = _output_name(expression, outputs, exp)
        if name is None:
            return None
        names.append(name)
    return names


def _output_name(term: Any, outputs: list[tuple[Any, str]], exp: Any) -> str | None:
    if isinstance(term, exp.Literal) and term.is_int:
        place = int(term.this) - 1
        return outputs[place][1] if 0 <= place < len(outputs) else None
    text = _normalized_sql(term, exp)
    matches = [name for expression, name in outputs if name and _normalized_sql(expression, exp) == text]
    named = [name for _, name in outputs if name.casefold() == term.name.casefold()]
    return next(iter(matches or (named if isinstance(term, exp.Column) else [])), None)


def _normalized_sql(term: Any, exp: Any) -> str:
    """Return the SQL of an expression, with one spelling for each column."""

    def bare(node: Any) -> Any:
        return exp.column(node.name.casefold(), quoted=True) if isinstance(node, exp.Column) else node

    return term.transform(bare).sql(dialect="spark")


def _mapped_query_keys(query: Any, known: Known, exp: Any) -> list[str] | None:
    """Return the key columns in the output of a SELECT that maps row by row."""
    if any(query.args.get(part) for part in ("joins", "laterals", "distinct", "pivots")):
        return None
    if any(expression.find(exp.AggFunc, exp.Explode) for expression in query.expressions):
        return None
    table = next((query.args[name] for name in ("from_", "from") if query.args.get(name)), None)
    if table is None or not isinstance(table.this, exp.Table | exp.Subquery):
        return None
    source = table.this
    if isinstance(source, exp.Table):
        below = known.get(source.name.casefold())
    else:
        below = _query_keys(source.this, known, exp)
    if below is None:
        return None
    names: dict[str, str] = {}
    for expression in query.expressions:
        if expression.is_star:
            names |= {name.casefold(): name for name in below}
        elif isinstance(expression.unalias(), exp.Column):
            names.setdefault(expression.unalias().name.casefold(), expression.alias_or_name)
    mapped = [names.get(name.casefold()) for name in below]
    return [name for name in mapped if name is not None] if None not in mapped else None


_METADATA_KEY: Final = b"odf.projection"


class Projection(msgspec.Struct, frozen=True):
    """A projection of a dataset: its file, its key, its number of rows, and the changelog's."""

    file: Path
    key: list[str]
    rows: int
    of: int


class ProjectionMetadata(msgspec.Struct):
    """Metadata in a projection file: its key, and the number of rows of the changelog."""

    key: list[str]
    of: int

    def metadata(self) -> dict[bytes, bytes]:
        """Return it as the metadata of the schema of the file."""
        return {_METADATA_KEY: msgspec.json.encode(self)}


class ProjectionFile:
    """The file of a projection, which may not exist yet.

    Attributes:
        path: its path.
    """

    def __init__(self, path: Path, family: str, marks: Sequence[str], rows: Scan) -> None:
        self.path = path
        self._family = family
        self._marks = marks
        self._rows = rows

    @classmethod
    def of(cls, folder: Path, rows: Scan, key: Sequence[str], more: str | None = None) -> Self:
        """Return the file of the latest state of rows by a key, or of the state that ``more`` describes."""
        columns = [f"{field.name} {field.type}" for field in rows.schema]
        words = [*rows.system_columns, rows.vocabulary.event_time_column, str(len(key)), *key, *columns]
        if more is not None:
            words.append(f"as of {more}")
        family = hashlib.sha256("\0".join(words).encode()).hexdigest()[:20]
        running = hashlib.sha256()
        marks = [running.hexdigest()[:20]]
        for part in rows.files:
            running.update(f"{part.fingerprint}\n".encode())
            marks.append(running.hexdigest()[:20])
        return cls(folder / _file_name(family, len(rows.files), marks[-1]), family, marks, rows)

    def cached(self) -> Projection | None:
        """Return the projection if its file exists."""
        metadata = _read_metadata(self.path)
        if metadata is not None:
            with suppress(OSError):
                os.utime(self.path)  # for eviction of the least recently used
        return metadata

    def predecessor(self) -> tuple[Path, Scan] | None:
        """Return the file for the longest prefix of the slices, and a scan of it and of the later slices.

        None if there is no such file.
        """
        known: list[tuple[int, Path]] = []
        for path in self.path.parent.glob(f"{self._family}-*.parquet"):
            count = path.stem.split("-")[1]
            if count.isdecimal() and int(count) < len(self._marks):
                known.append((int(count), path))
        for count, path in sorted(known, reverse=True):
            metadata = (
                _read_metadata(path)
                if path.name == _file_name(self._family, count, self._marks[count])
                else None
            )
            if metadata is not None and count:
                state = ScanFile(path, metadata.rows, path.stem, path.name)
                parts = [state, *self._rows.files[count:]]
                return path, self._rows.with_files(parts)
        return None


def _file_name(family: str, count: int, mark: str) -> str:
    return f"{family}-{count}-{mark}.parquet"


def _read_metadata(path: Path) -> Projection | None:
    with suppress(*parquet_errors(), msgspec.MsgspecError, KeyError, RecursionError):
        metadata = pq.read_metadata(path)
        about = msgspec.json.decode((metadata.metadata or {})[_METADATA_KEY], type=ProjectionMetadata)
        return Projection(path, about.key, metadata.num_rows, about.of)
    return None


_FILES: Final = 40
_BYTES: Final = 1_000_000_000
_GROUP_ROWS: Final = 1 << 15  # the user interface decodes a group to show a few rows


def primary_key(state: ChainState) -> list[str]:
    """Return the primary key of the sources of a dataset, or [] if they have none, or different ones."""
    sources = [state.polling_source, *state.push_sources.values()]
    keys = {tuple(getattr(source.merge, "primary_key", ())) for source in sources if source is not None}
    return list(keys.pop()) if len(keys) == 1 else []


def dataset_key(dataset: Dataset) -> list[str]:
    """Return the columns that identify the rows of a dataset, or [] if they are unknown.

    For a root dataset these are the primary key of its sources, for a derivative dataset the columns that
    its query groups by, unless they include a window.
    """
    state = local_state(dataset)
    return primary_key(state) or group_by_columns(state.transform)


def build_projection(
    odf: Path,
    dataset: Dataset,
    key: Sequence[str],
    reporter: Reporter,
    *,
    last_offset: int | None = None,
    as_of: Timestamp | None = None,
) -> Projection:
    """Build a projection of a dataset, or return it from the cache.

    It is the latest state by key, without retracted keys. With ``as_of`` it is the state as of an event
    time, with all corrections known now (:mod:`odf_engine.rows.live_rows`): by key if there is one,
    else all rows that are not retracted.

    Args:
        odf: the workspace's ``.odf`` folder, which contains the cache.
        dataset: the changelog.
        key: columns of the key, or () for :func:`dataset_key`.
        reporter: receives rows, and can cancel.
        last_offset: the last offset of the version (-1: no rows); by default the newest.
        as_of: an event time.

    Raises:
        UsageError: there is no key.
        InvalidSchema: a column of the key does not exist or cannot be a key, or there is no event time.
        NotFound: the dataset has no rows yet, or their files are missing.
        BadData: rows cannot be read.
        OdfError: the file cannot be written.
        Cancelled: the reporter was cancelled.
    """
    rows = Scan.of_dataset(dataset, last_offset)
    names = _columns(rows, key or dataset_key(dataset), optional=as_of is not None)
    history = _history_of(local_state(dataset))
    return build_projection_of(
        odf / "cache" / "projections", rows, names, reporter, as_of=as_of, history=history
    )


def build_projection_of(
    folder: Path,
    rows: Scan,
    key: Sequence[str],
    reporter: Reporter,
    *,
    as_of: Timestamp | None = None,
    history: History = "states",
) -> Projection:
    """Build a projection of rows, if possible from the cache or from a file of fewer slices.

    Args:
        folder: the cache.
        rows, key, reporter, as_of, history: as in :func:`write_projection`.

    Raises:
        OdfError: as in :func:`build_projection`.
    """
    file = ProjectionFile.of(folder, rows, key, None if as_of is None else f"{as_of} {history}")
    projection = file.cached()
    if projection is not None:
        return projection
    if as_of is None:
        projection = _extend_predecessor(file, rows, key, reporter)
    if projection is None:
        projection = write_projection(file.path, rows, key, reporter, as_of=as_of, history=history)
    evict_oldest(folder, _FILES, _BYTES)
    return projection


def write_projection(
    path: Path,
    rows: Scan,
    key: Sequence[str],
    reporter: Reporter,
    *,
    as_of: Timestamp | None = None,
    history: History = "states",
) -> Projection:
    """Write a projection of rows to a Parquet file.

    Args:
        path: the file.
        rows: a changelog.
        key: names of its columns; may be empty with ``as_of``.
        reporter: receives rows, and can cancel.
        as_of: an event time; by default the latest state is written.
        history: with ``as_of``, what the rows are.

    Raises:
        OdfError: as in :func:`build_projection`.
    """
    with atomic_file(path) as temporary:
        reporter.phase("find latest")
        if as_of is None:
            live = current_rows(rows, key, path.parent, reporter)
        elif key:
            live = rows_as_of(rows, key, as_of, path.parent, reporter, history)
        else:
            live = unretracted_rows(rows, as_of, path.parent, reporter)
        about = ProjectionMetadata(list(key), rows.row_count)
        count = _write(temporary, rows, about, live, reporter)
    return Projection(path, list(key), count, about.of)


def _extend_predecessor(
    file: ProjectionFile, rows: Scan, key: Sequence[str], reporter: Reporter
) -> Projection | None:
    """Build the latest state from the file of fewer slices, or None if there is no such file."""
    before = file.predecessor()
    if before is None:
        return None
    state, more = before
    try:
        with atomic_file(file.path) as temporary:
            reporter.phase("find latest")
            live = current_rows(more, key, file.path.parent, reporter)
            about = ProjectionMetadata(list(key), rows.row_count)
            count = _write(temporary, more, about, live, reporter)
    except (BadData, NotFound) as error:
        if error.where != state.name:
            raise
        state.unlink(missing_ok=True)  # a damaged cache file is rebuilt
        return None
    return Projection(file.path, list(key), count, about.of)


def _history_of(state: ChainState) -> History:
    """Return what the rows of a dataset are, by the merge strategies of its sources."""
    sources = [item for item in (state.polling_source, *state.push_sources.values()) if item is not None]
    if sources and all(isinstance(source.merge, Append | Ledger) for source in sources):
        return "events"
    is_snapshot = sources and all(isinstance(source.merge, Snapshot) for source in sources)
    return "snapshots" if is_snapshot else "states"


def _columns(rows: Scan, key: Sequence[str], *, optional: bool) -> list[str]:
    """Return the columns of the key as the dataset spells them."""
    if not key and not optional:
        raise UsageError("the dataset has no primary key", hint="specify the columns that identify a row")
    available = rows.schema.names
    if not available:
        raise NotFound("the dataset has no rows yet", hint="run odf pull or odf ingest to add rows")
    names: list[str] = []
    for name, place in zip(key, match_columns(available, list(key)), strict=True):
        if place is None:
            raise InvalidSchema(f"column '{name}' not found", hint=f"columns: {', '.join(available)}")
        names.append(available[place])
    return list(dict.fromkeys(names))


def _write(path: Path, rows: Scan, about: ProjectionMetadata, live: LiveRowSet, reporter: Reporter) -> int:
    reporter.phase("write")
    schema = rows.schema.with_metadata(about.metadata())
    done = 0
    often: Any = _dictionary_columns(rows)  # the type stubs allow only bool
    with pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, use_dictionary=often
    ) as writer:
        for group in _row_groups(_live_batches(rows, live)):
            writer.write_batch(group.replace_schema_metadata(schema.metadata), row_group_size=_GROUP_ROWS)
            done += group.num_rows
            reporter.set_amounts(rows=done)
            reporter.raise_if_cancelled()
    return done


def _dictionary_columns(rows: Scan) -> list[str]:
    """Return the columns worth a dictionary. For numbers and times it would double the time to write."""
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_boolean)
    texts = [field.name for field in rows.schema if any(is_kind(field.type) for is_kind in kinds)]
    return [*texts, *(name for name in rows.system_columns[1:] if name in rows.schema.names)]


def _live_batches(rows: Scan, live: LiveRowSet) -> Iterator[pa.RecordBatch]:
    offset = rows.vocabulary.offset_column
    for batch in rows.rows(live.ranges()).batches():
        mask = live.mask(batch.column(offset))
        if pc.any(mask).as_py():
            yield batch.filter(mask)


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in larger row groups: few rows of a batch may be live."""
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
