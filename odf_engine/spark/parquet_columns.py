"""Parquet files with column names that Spark does not tell apart, because they differ only in case."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.data.column_names import LOOKALIKE_HINT, find_lookalike, lookalike_problem
from odf_engine.data.parquet.parquet_reader import read_bounded
from odf_engine.errors import InvalidSchema
from odf_engine.spark.errors import truncate

INT96_UNIT: Final = "us"
"""Nanoseconds would overflow after the year 2262."""


def with_distinct_columns(
    path: Path, stored: pa.Schema, schema: pa.Schema | None, scratch: Path, name: str, reporter: Reporter
) -> Path:
    """Return a file without columns of the same name in another case: the file, or a copy.

    The copy has the declared columns only. Of several columns, it has the one with the declared spelling.

    Args:
        path: the file.
        stored: its columns.
        schema: the declared columns.
        scratch: folder for a copy; the caller removes it after the job.
        name: name of the file in errors.
        reporter: checked for cancellation.

    Raises:
        InvalidSchema: the names are ambiguous, or a column is missing.
    """
    if _duplicate(stored) is None:
        return path
    declared = [] if schema is None else [_column_of(field.name, stored, name) for field in schema]
    fields = [stored.field(position) for position in declared] or list(stored)
    if (pair := _duplicate(fields)) is not None:
        hint = "rename one of them in the source"
        if _duplicate_name(stored) == pair:
            hint = "declare the column to read in read.schema, in its exact spelling"
        raise InvalidSchema(
            f"the names `{pair[0]}` and `{pair[1]}` in the file differ only in case", where=name, hint=hint
        )
    left_out = [other for at, other in enumerate(stored.names) if at not in declared]
    reporter.log(ignored_columns(name, left_out))
    copy = Path(tempfile.mkdtemp(prefix="columns-", dir=scratch)) / "copy.parquet"
    with pq.ParquetWriter(copy, pa.schema(fields), compression="lz4", version="2.6") as writer:
        for batch in read_bounded(path, [field.name for field in fields], int96_unit=INT96_UNIT):
            reporter.raise_if_cancelled()
            writer.write_batch(batch.cast(pa.schema(fields)))
    return copy


def ignored_columns(name: str, columns: Iterable[str]) -> str:
    """Return the message about columns of a file that are not declared."""
    return f"{name}: ignored columns that are not in read.schema: {truncate(', '.join(columns))}"


def missing_column_error(column: str, names: Iterable[str], name: str) -> InvalidSchema:
    """Return the error for a declared column that a file lacks."""
    names = list(names)
    if (other := find_lookalike(column, names)) is not None:
        return InvalidSchema(lookalike_problem(other, column), where=name, hint=LOOKALIKE_HINT)
    return InvalidSchema(
        f"the file has no column `{column}`",
        where=name,
        hint=f"columns: {', '.join(f'`{other}`' for other in names)}",
    )


def _column_of(column: str, stored: pa.Schema, name: str) -> int:
    """Return the position of the column with this name. The exact spelling precedes other cases."""
    exact = stored.get_all_field_indices(column)
    matches = exact or [at for at, other in enumerate(stored.names) if other.lower() == column.lower()]
    if not matches:
        raise missing_column_error(column, stored.names, name)
    if len(matches) > 1:
        names = " and ".join(f"`{stored.names[at]}`" for at in matches)
        raise InvalidSchema(
            f"the file has several columns `{column}`: {names}",
            where=name,
            hint="rename one of them in the source"
            if exact
            else "declare the column to read in read.schema, in its exact spelling",
        )
    return matches[0]


def _duplicate(fields: Iterable[pa.Field]) -> tuple[str, str] | None:
    """Return two names of columns or struct members that differ only in case, or None if none do."""
    fields = list(fields)
    if (pair := _duplicate_name(fields)) is not None:
        return pair
    members = ([field.type.field(at) for at in range(field.type.num_fields)] for field in fields)
    return next((pair for pair in map(_duplicate, members) if pair is not None), None)


def _duplicate_name(fields: Iterable[pa.Field]) -> tuple[str, str] | None:
    seen: dict[str, str] = {}
    for field in fields:
        key = field.name.lower()
        if key in seen:
            return seen[key], field.name
        seen[key] = field.name
    return None
