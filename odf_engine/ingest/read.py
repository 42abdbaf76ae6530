"""Read phase: a prepared file as a frame of Spark (specification: ReadStep)."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.data.ddl import parse_ddl
from odf_engine.errors import BadData, InvalidSchema, Unsupported
from odf_engine.ingest.diagnose import (
    TextFile,
    conflict,
    explain_csv,
    explain_json,
    explain_parquet,
    header_of,
    is_conflict,
    shown,
)
from odf_engine.ingest.json_lines import (
    JsonSource,
    array_to_lines,
    feature_lines_to_lines,
    features_to_lines,
)
from odf_engine.ingest.prepare import Limits, Prepared
from odf_engine.ingest.shapefile import shapefile_to_lines
from odf_engine.ingest.sniff import check_is_text
from odf_engine.metadata.model import (
    Csv,
    EsriShapefile,
    GeoJson,
    Json,
    NdGeoJson,
    NdJson,
    Parquet,
    ReadStep,
)
from odf_engine.progress import Reporter
from odf_engine.spark.encodings import encoding_of
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.readers import read_csv, read_json, read_parquet

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession


CompareKeys = Callable[[TextFile, Reporter, Mapping[str, int]], None]
"""Is told the keys of all objects of a file, each with the line where it comes first."""


@dataclass(frozen=True)
class Reading:
    """A file as Spark will read it.

    Attributes:
        frame: its rows, in order; nothing has run yet.
        columns: as the manifest declares them; None where they were inferred.
        explain: adds the place in the file to an error that came up while the rows were read.
    """

    frame: DataFrame
    columns: pa.Schema | None
    explain: Callable[[BadData], BadData]


def read(
    session: SparkSession,
    step: ReadStep,
    prepared: Prepared,
    job: Path,
    reporter: Reporter,
    known: pa.Schema | None = None,
    compare_keys: CompareKeys | None = None,
    limits: Limits | None = None,
) -> Reading | None:
    """Begins to read a prepared file; None when there is nothing in it at all.

    ``known`` are the columns to use when the step declares none; ``compare_keys`` compares the keys of
    JSON objects with the columns in another way than a poll; ``limits`` bound the unpacking of a format
    that is an archive.

    Raises:
        BadData: it can be seen already that the file is not what the manifest says.
        InvalidSchema: the declared columns are malformed, or do not go with the file's header.
        Unsupported: columns that are declared in the specification's newer terms.
    """
    declared = declared_columns(step)
    columns = declared or known
    if prepared.path.stat().st_size == 0:
        reporter.line(f"{prepared.name} is empty", "warning")
        return None
    if isinstance(step, Parquet):
        path, name = prepared.path, prepared.name
        frame = read_parquet(session, path, columns, scratch=job, name=name, reporter=reporter)
        return Reading(frame, columns, lambda error: explain_parquet(error, path, name, reporter))
    if isinstance(step, Csv):
        return _read_csv(session, step, columns, prepared, job, reporter)
    if isinstance(step, EsriShapefile):
        lines = _shape_lines(step, prepared, job, reporter, limits)
    else:
        lines = _json_lines(step, prepared, job, reporter)
    # Where nothing is declared, columns that a file lacks are those that are null throughout.
    compare = compare_keys or (None if declared is None else _compare_keys)
    return _read_lines(session, lines, columns, job, reporter, compare)


def declared_columns(step: ReadStep) -> pa.Schema | None:
    """The columns that a step declares; None when it declares none.

    Raises:
        InvalidSchema: the declaration is malformed.
        Unsupported: it is in the specification's newer terms.
    """
    if step.schema is None and step.odf_schema is not None:
        raise Unsupported(
            "a read schema in the specification's own terms is not understood yet",
            hint='declare the columns as DDL: schema: ["id BIGINT", …]',
        )
    return parse_ddl(step.schema) if step.schema else None


# --- CSV ---------------------------------------------------------------------------------------


def _read_csv(
    session: SparkSession,
    step: Csv,
    columns: pa.Schema | None,
    prepared: Prepared,
    job: Path,
    reporter: Reporter,
) -> Reading:
    file = csv_file(step, prepared)
    first = first_row(file)
    if step.header and first:
        _check_header(first, columns, file.name, reporter)
    schema = columns
    if columns is None and step.header and not step.infer_schema and first:
        schema = pa.schema([pa.field(name, pa.string()) for name in first])
    if schema is not None:
        file = dataclasses.replace(file, columns=tuple(schema.names))
    elif first:
        names = first if step.header else [f"_c{at}" for at in range(len(first))]  # as Spark calls them
        file = dataclasses.replace(file, columns=tuple(names))
    frame = read_csv(
        session,
        prepared.path,
        replace(step, encoding=file.encoding),
        schema,
        scratch=job,
        name=prepared.name,
        reporter=reporter,
    )
    return Reading(frame, columns, lambda error: explain_csv(error, file, reporter))


def csv_file(step: Csv, prepared: Prepared) -> TextFile:
    """The file with what the step says of its text.

    Raises:
        BadData: it is no text.
    """
    encoding = encoding_of(prepared.path, step.encoding)
    check_is_text(prepared.path, prepared.name, encoding)
    quote = '"' if step.quote is None else step.quote
    return TextFile(
        prepared.path,
        prepared.name,
        encoding=encoding or "utf-8",
        header=bool(step.header),
        separator="," if step.separator is None else step.separator.replace("\\t", "\t"),
        quote=quote,
        escape=step.escape or quote,
    )


def first_row(file: TextFile) -> list[str]:
    """The first row, which may be a header; empty where only Spark can tell."""
    if not file.separator:
        return []
    try:
        line, row = header_of(file)
    except (UnicodeError, csv.Error, TypeError):
        return []  # the reader has a better error for it
    if row and is_conflict(row[0]):
        raise conflict(f"{file.name}: line {line}", row[0])
    return row


def _check_header(header: list[str], columns: pa.Schema | None, name: str, reporter: Reporter) -> None:
    """A header is only skipped when columns are declared, so it has to be in their order."""
    where = f"{name}: line 1"
    folded = [text.strip().casefold() for text in header]
    if columns is None:
        double = next((text for at, text in enumerate(header) if folded[at] in folded[:at]), None)
        if double is not None or "" in folded:
            problem = f"the header has '{double}' twice" if double is not None else "the header lacks a name"
            raise InvalidSchema(
                problem, where=where, hint="declare the columns in read.schema: they go by position then"
            )
        return
    declared = [text.casefold() for text in columns.names]
    both = f"the header has {shown(', '.join(header))}; the manifest {shown(', '.join(columns.names))}"
    if len(header) != len(columns):
        new = [text for text, name in zip(header, folded, strict=True) if name not in declared]
        grown = f"{shown(', '.join(new))}: declare that in read.schema too, and run odf add --update"
        raise InvalidSchema(
            f"the file has {len(header)} columns and read.schema declares {len(columns)}",
            where=where,
            hint=f"new in the file: {grown}" if len(new) == len(header) - len(columns) else both,
        )
    moved = [text for at, text in enumerate(header) if folded[at] in declared and folded[at] != declared[at]]
    if moved:
        raise InvalidSchema(
            f"column '{moved[0]}' has another place in the file than in read.schema, which goes by position",
            where=where,
            hint=both,
        )
    if folded != declared:
        other = [f"{text} as {column}" for text, column in zip(header, columns.names, strict=True)
                 if text.strip().casefold() != column.casefold()]  # fmt: skip
        reporter.line(f"{name}: columns are renamed by read.schema: {shown(', '.join(other))}")


# --- formats that become lines of JSON ---------------------------------------------------------


@dataclass(frozen=True)
class _Lines:
    """A file with one JSON object a line, made from the prepared file or the file itself.

    Attributes:
        file: where it is, and what people call it.
        step: the formats of its values.
        place: what people call the object of a line.
        columns: as the file itself declares them; None where it does not.
    """

    file: TextFile
    step: NdJson
    place: Callable[[int], str]
    columns: pa.Schema | None = None


def _json_lines(
    step: NdJson | Json | GeoJson | NdGeoJson, prepared: Prepared, job: Path, reporter: Reporter
) -> _Lines:
    encoding = encoding_of(prepared.path, getattr(step, "encoding", None)) or "utf-8"
    check_is_text(prepared.path, prepared.name, encoding)
    if isinstance(step, NdJson):
        file = TextFile(prepared.path, prepared.name, encoding=encoding)
        return _Lines(file, replace(step, encoding=encoding), lambda line: f"line {line}")
    reporter.phase("prepare")
    source, path = JsonSource(prepared.path, prepared.name, encoding), job / "lines"
    file = TextFile(path, prepared.name, encoding="utf-8")
    if isinstance(step, Json):
        array_to_lines(source, step.sub_path, path, reporter)
        plain = NdJson(date_format=step.date_format, timestamp_format=step.timestamp_format)
        return _Lines(file, plain, lambda line: f"object {line}")
    (features_to_lines if isinstance(step, GeoJson) else feature_lines_to_lines)(source, path, reporter)
    return _Lines(file, NdJson(), lambda line: f"feature {line}")


def _shape_lines(
    step: EsriShapefile, prepared: Prepared, job: Path, reporter: Reporter, limits: Limits | None
) -> _Lines:
    reporter.phase("prepare")
    found = shapefile_to_lines(prepared.path, prepared.name, step.sub_path, job, reporter, limits)
    file = TextFile(found.path, found.name, encoding="utf-8")
    return _Lines(file, NdJson(), lambda line: f"record {found.record(line)}", found.columns)


def _read_lines(
    session: SparkSession,
    lines: _Lines,
    columns: pa.Schema | None,
    job: Path,
    reporter: Reporter,
    compare_keys: CompareKeys | None,
) -> Reading | None:
    file, schema = lines.file, columns or lines.columns
    compare = None
    if columns is not None:
        file = dataclasses.replace(file, columns=tuple(columns.names))
        compare = partial(compare_keys, file, reporter) if compare_keys is not None else None
    try:
        frame = read_json(
            session,
            file.path,
            lines.step,
            schema,
            scratch=job,
            name=file.name,
            reporter=reporter,
            on_keys=compare,
        )
    except RejectedRow as error:
        raise explain_json(error, file, reporter, lines.place) from None
    if schema is None and not frame.columns:
        reporter.line(f"{file.name} has no objects, and no columns are declared", "warning")
        return None
    return Reading(frame, columns, lambda error: explain_json(error, file, reporter, lines.place))


def _compare_keys(file: TextFile, reporter: Reporter, keys: Mapping[str, int]) -> None:
    """A column that no object has is said, and so is a key that is left out."""
    folded = {name.casefold(): name for name in file.columns}
    there = {key.casefold() for key in keys}
    if keys and not there & folded.keys():
        raise InvalidSchema(
            f"none of the declared columns is in the data: {shown(', '.join(file.columns))}",
            where=file.name,
            hint=f"the data has {shown(', '.join(keys))}",
        )
    if keys and (absent := [name for name in file.columns if name.casefold() not in there]):
        reporter.line(f"{file.name}: no object has {shown(', '.join(absent))}: null in all rows", "warning")
    if left_out := [key for key in keys if _column_of(key, folded, keys) is None]:
        reporter.line(f"{file.name}: not in read.schema, left out: {shown(', '.join(left_out))}")


def _column_of(key: str, folded: Mapping[str, str], keys: Mapping[str, int]) -> str | None:
    """The column that a key is read as: in any case, unless another key has the column's exact name."""
    name = folded.get(key.casefold())
    return None if name is not None and name != key and name in keys else name
