"""The process that reads data files with DuckDB (``python -m``). Its loss does not end the program.

It reads one request from standard input, writes events as JSON lines to standard output, and exits when its
input ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from odf_engine.base.config import FetchConfig
from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import Reporter, count_of
from odf_engine.errors import BadData, OdfError, disk_hint
from odf_engine.ingest.inference.file_sample import split_extensions
from odf_engine.ingest.read.file_relation import (
    DataFile,
    bad_lines_query,
    column_types,
    file_relation,
    invalid_counts_query,
    open_data_files,
    raw_relation,
)
from odf_engine.ingest.read.file_table import FileColumn, FileEvent, FileRequest, max_memory
from odf_engine.net.urls import is_url
from odf_engine.sql.duckdb_text import PREPARATION, SETTINGS, literal, quoted, storable_value

if TYPE_CHECKING:
    import duckdb

    from odf_engine.ingest.read import file_download
else:
    duckdb = LazyModule("duckdb")
    file_download = LazyModule("odf_engine.ingest.read.file_download")  # imports network libraries

FIRST_ROWS: Final = 1000
"""Number of rows that are written before all rows are."""
_GROUP_ROWS: Final = 1 << 14
_NO_LIMIT: Final = 1 << 62
_PROGRESS_SECONDS: Final = 0.2


def main() -> None:
    """Run the request, and exit with 0 after its last event."""
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=FileRequest)
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    try:
        with _open_connection(Path(request.scratch)) as connection:
            _FileRun(connection, request).run()
    except OdfError as error:
        _send_error(error)
    except duckdb.Error as error:
        _send_error(_translate(error))
    except OSError as error:
        where = error.filename and str(error.filename)
        _send_error(OdfError(error.strerror or str(error), where=where, hint=disk_hint(error)))
    except MemoryError:
        _send_error(OdfError("not enough memory", hint="close other programs to free memory"))
    sys.stdout.flush()
    os._exit(0)  # threads of the library, and the one that reads the input, could delay the end


def _exit_at_end_of_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _send(event: FileEvent) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


def _send_error(error: OdfError) -> None:
    kind = type(error).__name__
    _send(FileEvent(error=error.message, where=error.where, hint=error.hint, error_kind=kind))


@contextmanager
def _open_connection(scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    config = SETTINGS | {
        "memory_limit": f"{max_memory() >> 10}KiB",
        "threads": min(os.cpu_count() or 1, 4),
        "temp_directory": str(scratch / "temporary"),
    }
    with duckdb.connect(":memory:", config=config) as connection:
        for statement in PREPARATION:
            connection.execute(statement)
        yield connection


def _write(connection: duckdb.DuckDBPyConnection, query: str, output: Path) -> int:
    """Write the rows of a query to a file; return their number. Types that Parquet lacks become text."""
    columns = connection.execute(f"DESCRIBE {query}").fetchall()
    casts = [f"{storable_value(quoted(name), kind)} AS {quoted(name)}" for name, kind, *_ in columns]
    options = f"FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, ROW_GROUP_SIZE {_GROUP_ROWS}"
    with _progress(connection):
        connection.execute(
            f"COPY (SELECT {', '.join(casts)} FROM ({query})) TO {literal(str(output))} ({options})"
        )
        (rows,) = connection.fetchone() or (0,)
    return rows


@contextmanager
def _progress(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Send the progress of the running query."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(_PROGRESS_SECONDS):
            percent = connection.query_progress()
            if percent > 0:
                _send(FileEvent(percent=min(percent, 99.0)))

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Warnings(Reporter):
    """Collects the warnings of reading files.

    Attributes:
        texts: the warnings.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        """Collect a warning."""
        self.texts.append(text)


class _FileRun:
    """Writes the rows of files."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, request: FileRequest) -> None:
        self._connection = connection
        self._request = request
        self._scratch = Path(request.scratch)
        self._warnings = _Warnings()
        self._notes: list[str] = []
        self._texts: set[str] = set()

    def run(self) -> None:
        """Write the first rows, if requested, and the rows."""
        request = self._request
        paths = [self._local_path(location) for location in request.locations]
        states = {path: _state(path) for path in paths}
        files = open_data_files(paths, self._scratch, self._warnings)
        if request.first:
            self._write_rows(files, request.first, FIRST_ROWS)
            self._notes.clear()
            self._texts.clear()
        self._write_rows(files, request.output, request.limit)

        if any(_state(path) != state for path, state in states.items()):
            self._notes.append("the file changed while it was read: open it again to see all rows")
            _send(self._event(files, request.output, self._rows))

    def _local_path(self, location: str) -> Path:
        if not is_url(location):
            return Path(location)
        suffixes = "".join(split_extensions(location))
        path = self._scratch / f"download-{len(list(self._scratch.iterdir()))}{suffixes}"
        with path.open("wb") as file:
            for chunk in file_download.download_chunks(location, _NO_LIMIT, FetchConfig(), Reporter()):
                file.write(chunk)
        return path

    def _write_rows(self, files: list[DataFile], name: str, limit: int | None) -> None:
        """Write rows. If values are not of the types of their columns, these columns become text."""
        output = self._scratch / name
        if self._request.raw:
            rows = _write(self._connection, _limited(f"SELECT * FROM {raw_relation(files)}", limit), output)
            self._note_rejects()
        else:
            try:
                if any(column.invalid for file in files for column in file.inferred.columns):
                    self._find_invalid_values(files, limit)
                rows = self._write_typed(files, output, limit, skips_bad_lines=False)
            except (duckdb.InvalidInputException, duckdb.ConversionException):
                self._find_invalid_values(files, limit)
                self._find_bad_lines(files)
                rows = self._write_typed(files, output, limit, skips_bad_lines=True)
                self._note_rejects()
        self._rows = rows
        _send(self._event(files, name, rows))

    def _write_typed(
        self, files: list[DataFile], output: Path, limit: int | None, *, skips_bad_lines: bool
    ) -> int:
        relation = file_relation(files, texts=self._texts, skips_bad_lines=skips_bad_lines)
        return _write(self._connection, _limited(f"SELECT * FROM {relation}", limit), output)

    def _event(self, files: list[DataFile], name: str, rows: int) -> FileEvent:
        types = column_types(files, self._texts)
        if self._request.raw:
            types = dict.fromkeys(types, "STRING")
        columns = [FileColumn(column, kind) for column, kind in types.items()]
        return FileEvent(
            file=name,
            rows=rows,
            columns=columns,
            format=_format_text(files),
            notes=[*self._warnings.texts, *self._notes],
        )

    def _find_invalid_values(self, files: list[DataFile], limit: int | None) -> None:
        query = invalid_counts_query(files, limit)
        types = column_types(files)
        for name, invalid in self._connection.execute(query).fetchall() if query else ():
            if invalid and name not in self._texts:
                self._texts.add(name)
                are = "value is" if invalid == 1 else "values are"
                self._notes.append(f"column {name}: {invalid:,} {are} not {types[name]}, shown as text")

    def _find_bad_lines(self, files: list[DataFile]) -> None:
        if (query := bad_lines_query(files)) is not None:
            (count,) = self._connection.execute(query).fetchone() or (0,)
            if count:
                self._notes.append(f"{count_of(count, 'line')} skipped: not a JSON object")

    def _note_rejects(self) -> None:
        """Note the lines of CSV that were skipped."""
        with suppress(duckdb.CatalogException):  # no CSV was read
            query = "SELECT DISTINCT line, error_message FROM reject_errors ORDER BY line"
            rejects = self._connection.execute(query).fetchall()
            lines = {line for line, _ in rejects}
            if rejects:
                reason = rejects[0][1].splitlines()[0]
                skipped = count_of(len(lines), "line")
                self._notes.append(f"{skipped} skipped, the first is line {rejects[0][0]:,}: {reason}")


def _limited(query: str, limit: int | None) -> str:
    return query if limit is None else f"{query} LIMIT {limit}"


def _state(path: Path) -> tuple[int, int]:
    known = path.stat()
    return known.st_size, known.st_mtime_ns


def _format_text(files: list[DataFile]) -> str:
    """Describe the format of files, such as ``CSV, separator ;``."""
    inferred = files[0].inferred
    parts = [inferred.kind]
    if inferred.kind == "Csv":
        names = {"\t": "tab", " ": "space"}
        parts.append(f"separator {names.get(inferred.separator, inferred.separator)}")
        parts += ["no header"] if not inferred.header else []
        parts += inferred.evidence
    parts += [part for part in (inferred.encoding, inferred.compression, inferred.sub_path) if part]
    return ", ".join(parts)


def _translate(error: duckdb.Error) -> OdfError:
    """Return an error of DuckDB as an error of this program."""
    message = str(error).splitlines()[0].partition("Error: ")[2] or str(error).splitlines()[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        return OdfError(f"not enough memory: {message}", hint="close other programs, or read fewer rows")
    if isinstance(error, duckdb.IOException):
        return OdfError(message, hint="check the file, and free disk space for temporary files")
    return BadData(message)


if __name__ == "__main__":
    main()
