"""Data files as a table: typed rows in a temporary Parquet file, which a separate process writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from odf_engine import errors
from odf_engine.base.files import ensure_folder
from odf_engine.base.lazy import LazyModule
from odf_engine.base.processes import build_python_environment, is_process_running, read_memory
from odf_engine.base.progress import Reporter
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.ingest.inference.file_conversion import FORMATS
from odf_engine.ingest.inference.file_sample import (
    MAX_FILES,
    find_data_files,
    split_extensions,
)
from odf_engine.metadata.model import DatasetVocabulary, SqlQueryStep
from odf_engine.net.urls import is_url, without_login

if TYPE_CHECKING:
    from odf_engine.data.parquet import slices
    from odf_engine.query_process import client as query_process
    from odf_engine.rows import query_results
else:  # these import PyArrow
    slices = LazyModule("odf_engine.data.parquet.slices")
    query_process = LazyModule("odf_engine.query_process.client")
    query_results = LazyModule("odf_engine.rows.query_results")

_NO_VOCABULARY: Final = DatasetVocabulary("", "", "", "")
_MIN_MEMORY: Final = 512 << 20
_PROCESS: Final = "odf_engine.ingest.read.file_process"
_CHUNK: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
_SIGKILL: Final = -9


class FileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the process does: write the rows of files to a Parquet file.

    Attributes:
        locations: paths or URLs of files.
        scratch: the folder for the written and all temporary files.
        output: the name of the written file.
        first: the name of the file with the first rows, which is written before, or "".
        limit: the maximum number of rows, or None for all.
        raw: whether the cells are written as texts, as they are in the file.
    """

    scratch: str
    output: str
    locations: list[str] = []
    first: str = ""
    limit: int | None = None
    raw: bool = False


class FileColumn(msgspec.Struct, frozen=True):
    """A column and its type as DDL."""

    name: str
    type: str


class FileEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What the process reports.

    Attributes:
        percent: the progress, or None if it is unknown.
        file: the name of a complete file, or "".
        rows: the number of its rows.
        columns: the columns, with the types of the inference.
        format: the format of the files, in words.
        notes: what the reader must know: columns that became text, lines that were skipped.
        error, where, hint: why the process failed.
        error_kind: the class of the error.
    """

    percent: float | None = None
    file: str = ""
    rows: int = 0
    columns: list[FileColumn] = []
    format: str = ""
    notes: list[str] = []
    error: str = ""
    where: str | None = None
    hint: str | None = None
    error_kind: str = ""


class FileRows(msgspec.Struct, frozen=True):
    """Rows of data files, or of a query over them, in a Parquet file.

    Attributes:
        path: the Parquet file.
        row_count: the number of rows.
        columns: the columns with their inferred types, or () for a query.
        format: the format of the data files, in words, or "" for a query.
        notes: what the reader must know: columns that became text, lines that were skipped.
        complete: whether these are all rows.
    """

    path: Path
    row_count: int
    columns: Sequence[FileColumn] = ()
    format: str = ""
    notes: Sequence[str] = ()
    complete: bool = True

    def as_table(self, name: str) -> slices.TableFiles:
        """Return the rows as a table of a query."""
        columns = query_results.ResultRows(self.path).columns
        return slices.TableFiles(name, [self.path], columns, _NO_VOCABULARY)


class FileTable:
    """Data files of one format, as a table. Use :func:`open_file_table`.

    Attributes:
        locations: paths and URLs of the files.
        title: what the files are, in words.
        folder: the folder for temporary files.
    """

    def __init__(self, locations: Sequence[str], title: str, folder: Path) -> None:
        self.locations = locations
        self.title = title
        self.folder = folder
        self._numbers = count(1)

    def read(
        self,
        reporter: Reporter,
        *,
        limit: int | None = None,
        raw: bool = False,
        on_first: Callable[[FileRows], None] | None = None,
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> FileRows:
        """Read the rows with their inferred types. A column with a value of another type becomes text.

        Args:
            reporter: can cancel.
            limit: the maximum number of rows, or None for all.
            raw: whether the cells are read as texts, as they are in the file.
            on_first: called with the first rows before all rows are read.
            on_progress: called with the progress in percent.

        Raises:
            BadData: a file is damaged, or has no known format.
            OdfError: a file cannot be read, or the memory or the disk is full.
            Cancelled: the reporter was cancelled.
        """
        number = next(self._numbers)
        request = FileRequest(
            locations=list(self.locations),
            scratch=str(self.folder),
            output=f"rows-{number}.parquet",
            first=f"first-{number}.parquet" if on_first is not None else "",
            limit=limit,
            raw=raw,
        )

        def receive(event: FileEvent) -> None:
            if event.file and event.file == request.first and on_first is not None:
                on_first(self._rows_of(event, complete=False))

        return self._run(request, reporter, receive, on_progress)

    def query(self, sql: str, rows: FileRows, reporter: Reporter) -> FileRows:
        """Run a query in the dialect of DuckDB over rows of this table, whose name in the query is ``file``.

        Raises:
            InvalidQuery: the query is invalid.
            OdfError: the memory or the disk is full.
            Cancelled: the reporter was cancelled.
        """
        path = self.folder / f"query-{next(self._numbers)}.parquet"
        steps, tables = [SqlQueryStep(query=sql)], [rows.as_table("file")]
        options = query_process.QueryOptions(program=query_process.DUCKDB)
        with query_process.run_query(steps, tables, self.folder, max_memory(), reporter, options) as answer:
            schema, batches = query_process.storable_rows(answer)
            row_count, _ = query_results.write(path, schema, batches, query_results.NO_LIMIT)
        return FileRows(path, row_count)

    def _run(
        self,
        request: FileRequest,
        reporter: Reporter,
        receive: Callable[[FileEvent], None],
        on_progress: Callable[[float], None],
    ) -> FileRows:
        result: FileRows | None = None
        with _running(request, reporter) as process:
            assert process.stdout is not None
            for line in process.stdout:
                event = msgspec.json.decode(line, type=FileEvent)
                if event.error:
                    raise _error_of(event)
                if event.percent is not None:
                    on_progress(event.percent)
                elif event.file == request.output:
                    result = self._rows_of(event, complete=True)
                else:
                    receive(event)
        reporter.raise_if_cancelled()
        if result is None:
            killed = process.returncode == _SIGKILL
            raise OdfError(
                "the process that reads the file ended unexpectedly" + (": it was killed" if killed else ""),
                hint="close other programs to free memory"
                if killed
                else "check that the file is not damaged",
            )
        return result

    def _rows_of(self, event: FileEvent, *, complete: bool) -> FileRows:
        path = self.folder / event.file
        return FileRows(path, event.rows, event.columns, event.format, event.notes, complete)


@contextmanager
def _running(request: FileRequest, reporter: Reporter) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process, and end it at the end of the `with` body."""
    with tempfile.TemporaryFile() as log:  # messages of libraries
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=build_python_environment(),
        )
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError), reporter.on_cancel(process.kill):
                process.stdin.write(msgspec.json.encode(request) + b"\n")
                process.stdin.flush()
                yield process
        except BaseException:
            process.kill()
            raise
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()


def _error_of(event: FileEvent) -> OdfError:
    kind = getattr(errors, event.error_kind, OdfError)
    return kind(event.error, hint=event.hint, where=event.where)


@contextmanager
def open_file_table(
    locations: Sequence[str], stdin: BinaryIO | None, cache: Path | None = None
) -> Iterator[FileTable]:
    """Open data files of one format as a table. Temporary files are removed at the end of the `with` body.

    Args:
        locations: paths, URLs and folders, or ``-`` for ``stdin``.
        stdin: the stream that ``-`` names.
        cache: the folder for temporary files, or None for a folder in the user's cache.

    Raises:
        NotFound: a file does not exist, or a folder has no data files.
        UsageError: the files have several formats, or a folder has too many files.
    """
    with _scratch_folder(cache or _cache_folder()) as folder:
        paths: list[str] = []
        for location in locations:
            if location == "-" and stdin is not None:
                paths.append(str(_spool(stdin, folder)))
            elif is_url(location):
                paths.append(location)
            else:
                paths += _local_files(Path(location).expanduser())
        _check_formats(paths)
        yield FileTable(paths, _title_of(locations), folder)


def _title_of(locations: Sequence[str]) -> str:
    """Describe files: the name of the first one, and how many more there are."""
    first = locations[0]
    name = "standard input" if first == "-" else without_login(first) if is_url(first) else Path(first).name
    return (name or first) if len(locations) == 1 else f"{name} and {len(locations) - 1} more"


def _local_files(path: Path) -> list[str]:
    if path.is_dir():
        files = [str((path / name).absolute()) for name, _ in find_data_files(path)]
        if not files:
            hint = f"data files have the extensions {', '.join(FORMATS)}"
            raise NotFound(f"the folder has no data files: {path}", hint=hint)
        if len(files) >= MAX_FILES:  # the rest was not searched
            problem = f"the folder has {MAX_FILES} data files or more: {path}"
            raise UsageError(problem, hint=f"name the files, such as {path}/*{Path(files[0]).suffix}")
        return files
    if not path.exists():
        raise NotFound(f"file not found: {path}", hint="check the path")
    return [str(path.absolute())]


def _check_formats(paths: Sequence[str]) -> None:
    """Raise a UsageError if files have several formats."""
    kinds: dict[str, list[str]] = {}
    for path in paths:
        suffix, compression = split_extensions(path)
        kinds.setdefault(FORMATS.get(suffix, compression or "Csv"), []).append(path)
    if len(kinds) > 1:
        examples = ", ".join(f"{len(files)} {kind}" for kind, files in kinds.items())
        first = next(iter(kinds.values()))[0]
        raise UsageError(
            f"the files have several formats: {examples}",
            hint=f"name files of one format, such as {first}",
        )


def _spool(stdin: BinaryIO, folder: Path) -> Path:
    """Write a stream to a file."""
    path = folder / "stdin"
    with path.open("wb") as file:
        while chunk := getattr(stdin, "read1", stdin.read)(_CHUNK):
            file.write(chunk)
    with path.open("rb") as file:
        is_gzip = file.read(2) == _GZIP
    return path.rename(path.with_suffix(".gz")) if is_gzip else path


def max_memory() -> int:
    """Return the memory limit of a process that reads files, in bytes."""
    return max(read_memory()[0] // 4, _MIN_MEMORY)


def _cache_folder() -> Path:
    import platformdirs  # slow to import

    return platformdirs.user_cache_path("odf-workstation") / "files"


@contextmanager
def _scratch_folder(cache: Path) -> Iterator[Path]:
    """Create a folder that is removed at the end, as are the folders of processes that have ended."""
    ensure_folder(cache)
    for old in cache.iterdir():
        match = re.fullmatch(r"view-(\d+)-\w+", old.name)
        if match is not None and not is_process_running(int(match[1])):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"view-{os.getpid()}-", dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
