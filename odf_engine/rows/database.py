"""Runs SQL of this program over streams of rows in DuckDB: groups, joins and sorts, in bounded memory.

DuckDB compares some values in another way than this program: it has ``-0.0`` equal to ``0.0``, and no types
for decimals of more than 38 digits, nanoseconds with a zone, or nested values in all operations. So columns
are passed as :func:`comparable` returns them. The streams are read by :mod:`odf_engine.rows.scan`, which
checks slices before DuckDB sees their rows.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odf_engine.base.arrow import pa, types
from odf_engine.base.files import ensure_folder
from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import decode_array, python_values
from odf_engine.errors import OdfError

if TYPE_CHECKING:
    import duckdb
else:
    duckdb = LazyModule("duckdb")  # takes 100 ms

MEMORY: Final = 384 << 20
"""Default limit of the memory of a database, in bytes. What exceeds it is in temporary files."""
_BATCH_ROWS: Final = 1 << 14  # limits the memory for rows with large values
_THREADS: Final = min(os.cpu_count() or 1, 4)


def comparable(column: pa.Array) -> pa.Array:
    """Return values that DuckDB compares as this program does: equal if and only if the originals are.

    Floats become their bits, so that NaN is equal to itself, and ``-0.0`` is not equal to ``0.0``. Texts
    become bytes, times become numbers, and nested values become texts.
    """
    column = decode_array(column)
    data_type = column.type
    if types.is_floating(data_type):
        return column.view(f"int{data_type.bit_width}")
    if types.is_string(data_type) or types.is_fixed_size_binary(data_type):
        return column.cast(pa.binary())
    if types.is_large_string(data_type):
        return column.cast(pa.large_binary())
    if types.is_date32(data_type) or types.is_time32(data_type):
        return column.cast(pa.int32())
    if types.is_temporal(data_type):
        return column.cast(pa.int64())
    if types.is_null(data_type):
        return column.cast(pa.int8())
    if types.is_nested(data_type) or types.is_decimal256(data_type):
        return pa.array([_text(value) for value in python_values(column)], pa.string())
    return column


def _text(value: object) -> str | None:
    return None if value is None else repr(value)


class Database:
    """A database in memory, for one operation. Use :func:`open_database`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, reporter: Reporter) -> None:
        self._connection = connection
        self._reporter = reporter

    def query(self, sql: str, **tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Run a query over streams of rows, and yield its result.

        Args:
            sql: the query. It can read each table once.
            tables: the tables by their names, each with at least one part.

        Raises:
            OdfError: the temporary files need more space than the disk has, or an error of a stream.
            Cancelled: the reporter was cancelled.
        """
        with self._registered(tables):
            for batch in self._connection.sql(sql).to_arrow_reader(_BATCH_ROWS):
                self._reporter.raise_if_cancelled()
                yield batch

    def execute(self, sql: str, **tables: Iterable[pa.Table]) -> None:
        """Run a statement without a result over streams of rows. See :meth:`query`."""
        with self._registered(tables):
            self._connection.execute(sql)

    @contextmanager
    def _registered(self, tables: Mapping[str, Iterable[pa.Table]]) -> Iterator[None]:
        streams = {name: _Stream(parts) for name, parts in tables.items()}
        try:
            for name, stream in streams.items():
                self._connection.register(name, stream.reader)
            with self._reporter.on_cancel(self._connection.interrupt):
                yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            for stream in streams.values():
                if stream.error is not None:
                    raise stream.error from None
            self._reporter.raise_if_cancelled()
            raise OdfError(
                f"the rows cannot be grouped or sorted: {str(error).splitlines()[0]}",
                hint="free disk space for temporary files, and close other programs to free memory",
            ) from error
        finally:
            for name in streams:
                self._connection.unregister(name)


@contextmanager
def open_database(folder: Path, reporter: Reporter, memory: int = MEMORY) -> Iterator[Database]:
    """Open a database in memory.

    Args:
        folder: for temporary files, which are removed at the end.
        reporter: can cancel.
        memory: limit of its memory in bytes.
    """
    ensure_folder(folder)
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=".rows-"))
        connection = stack.enter_context(
            duckdb.connect(
                ":memory:",
                config={
                    "memory_limit": f"{memory >> 10}KiB",
                    "threads": _THREADS,
                    "temp_directory": temporary,
                    "preserve_insertion_order": False,
                    "autoinstall_known_extensions": False,
                    "autoload_known_extensions": False,
                },
            )
        )
        connection.execute("SET enable_external_access = false")  # after the folder is set
        # The sizes of streams are unknown: the right side of a join is the smaller one, as written.
        connection.execute("SET disabled_optimizers = 'build_side_probe_side'")
        yield Database(connection, reporter)


class _Stream:
    """A table whose parts are read when the query needs them.

    Attributes:
        reader: the stream for DuckDB.
        error: the exception of a part, which Arrow and DuckDB pass on as a text.
    """

    def __init__(self, parts: Iterable[pa.Table]) -> None:
        self.error: BaseException | None = None
        rest = iter(parts)
        first = next(rest)
        self.reader = pa.RecordBatchReader.from_batches(first.schema, self._batches(first, rest))

    def _batches(self, first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        try:
            yield from first.to_batches()
            for table in rest:
                yield from table.to_batches()
        except BaseException as error:
            self.error = error
            raise
