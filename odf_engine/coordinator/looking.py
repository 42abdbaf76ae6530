"""Jobs that only look at what a dataset has: statistics, its current state by key, files of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from odf_engine.coordinator.protocol import Describe, Diff, Export, Project
from odf_engine.errors import UsageError
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.coordinator.operations import Context
    from odf_engine.metadata.timestamp import Timestamp
    from odf_engine.workspace.stored import StoredRows


def describe(request: Describe, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Computes statistics; the result is described with the request.

    Raises:
        OdfError: rows that cannot be read, or nothing can be written.
    """
    from odf_engine.workspace.statistics import describe

    rows, name = _rows(request.dataset, request.file, context)
    odf = context.workspace.odf
    with _memory_given_back():
        found = describe(odf, rows, reporter, None if request.file else request.dataset)
    return {"name": name, "rows": found.rows}


def project(request: Project, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Makes the current state by key; the result is described with the request.

    Raises:
        OdfError: there is no such key, rows cannot be read, or nothing can be written.
    """
    from odf_engine.workspace.pins import pin
    from odf_engine.workspace.projecting import project

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    of = None if request.as_of is None else _moment(request.as_of)
    at = pin(entry, request.as_at)
    until = -1 if at.last_offset is None else at.last_offset
    with _memory_given_back():
        found = project(workspace.odf, entry.dataset, request.key, reporter, until=until, as_of=of)
    return {
        "name": str(entry.alias),
        "key": found.key,
        "rows": found.rows,
        "of": found.of,
        "file": str(found.file),
        "pin": msgspec.to_builtins(at),
    }


def export(request: Export, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Writes rows to a file; the result is described with the request.

    Raises:
        OdfError: rows that cannot be read, or a file that cannot be written.
    """
    from odf_engine.workspace.exporting import export

    rows, name = _rows(request.dataset, request.file, context)
    with _memory_given_back():
        found = export(
            rows,
            Path(request.path),
            request.format,
            reporter,
            ranges=request.ranges,
            system=request.system,
            replace=request.replace,
        )
    reporter.line(f"wrote {found.path}")
    return {"name": name, "rows": found.rows, "size": found.size, "path": str(found.path)}


def diff(request: Diff, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Compares versions; the result is described with the request.

    Raises:
        OdfError: one of them is not there, both are the same, the key is wrong, or rows cannot be read.
    """
    from odf_engine.workspace.differing import compare

    with _memory_given_back():
        found = compare(
            context.workspace,
            request.dataset,
            request.other,
            as_at=request.as_at,
            other_as_at=request.other_as_at,
            key=request.key,
            reporter=reporter,
        )
    return msgspec.to_builtins(found)


@contextmanager
def _memory_given_back() -> Iterator[None]:
    """The worker lives on, and Arrow keeps what it had."""
    import pyarrow as pa

    try:
        yield
    finally:
        pa.default_memory_pool().release_unused()


def _moment(text: str) -> Timestamp:
    from odf_engine.metadata.timestamp import Timestamp

    try:
        return Timestamp.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _rows(dataset: str, file: str | None, context: Context) -> tuple[StoredRows, str]:
    """The rows that a request is about, and the name of their dataset, if they are of one."""
    from odf_engine.workspace.stored import StoredRows

    if not dataset:
        if file is None:
            raise UsageError("neither a dataset nor a file says which rows")
        return StoredRows.of_file(Path(file)), ""
    entry = context.workspace.resolve(dataset)
    if file is None:
        return StoredRows.of_dataset(entry.dataset), str(entry.alias)
    return StoredRows.of_file(Path(file), entry.dataset.state().vocabulary), str(entry.alias)
