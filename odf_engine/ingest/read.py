"""Read phase: a prepared file as a frame of Spark (specification: ReadStep)."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.data.ddl import parse_ddl
from odf_engine.errors import BadData, InvalidSchema, Unsupported
from odf_engine.ingest.diagnose import (
    TextFile,
    conflict,
    explain_csv,
    explain_json,
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
from odf_engine.ingest.prepare import Prepared
from odf_engine.ingest.sniff import check_is_text, encoding_of
from odf_engine.metadata.model import Csv, GeoJson, Json, NdGeoJson, NdJson, Parquet, ReadStep, kind_of
from odf_engine.progress import Reporter
from odf_engine.spark.readers import read_csv, read_json, read_parquet

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

_SAMPLE: Final = 1 << 20


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
    check_keys: Callable[[TextFile, Reporter], None] | None = None,
) -> Reading | None:
    """Begins to read a prepared file; None when there is nothing in it at all.

    ``known`` are the columns to use when the step declares none; ``check_keys`` looks at JSON lines in
    another way than with a glance at the first of them.

    Raises:
        BadData: it can be seen already that the file is not what the manifest says.
        InvalidSchema: the declared columns are malformed, or do not go with the file's header.
        Unsupported: a format that this version cannot read.
    """
    columns = declared_columns(step) or known
    if prepared.path.stat().st_size == 0:
        reporter.line(f"{prepared.name} is empty", "warning")
        return None
    if isinstance(step, Parquet):
        frame = read_parquet(
            session, prepared.path, columns, scratch=job, name=prepared.name, reporter=reporter
        )
        return Reading(frame, columns, lambda error: _with_name(error, prepared.name))
    if isinstance(step, Csv):
        return _read_csv(session, step, columns, prepared, job, reporter)
    if isinstance(step, NdJson | Json | GeoJson | NdGeoJson):
        return _read_json(session, step, columns, prepared, job, reporter, check_keys or _check_keys)
    raise Unsupported(
        f"files of the format {kind_of(step)} cannot be read",  # type: ignore[arg-type]
        hint="what can be read: Csv, NdJson, Json, GeoJson, NdGeoJson, Parquet",
    )


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
    encoding = encoding_of(prepared.path, step.encoding)
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
        replace(step, encoding=encoding),
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
    if step.encoding is None:
        check_is_text(prepared.path, prepared.name)
    quote = '"' if step.quote is None else step.quote
    return TextFile(
        prepared.path,
        prepared.name,
        encoding=encoding_of(prepared.path, step.encoding) or "utf-8",
        header=bool(step.header),
        separator="," if step.separator is None else step.separator.replace("\\t", "\t"),
        quote=quote,
        escape=step.escape or quote,
    )


def first_row(file: TextFile) -> list[str]:
    """The first row, which may be a header; empty where only Spark can tell."""
    if len(file.separator) != 1:
        return []
    try:
        line, row = header_of(file)
    except (UnicodeDecodeError, csv.Error, LookupError):
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
        raise InvalidSchema(
            f"the file has {len(header)} columns and read.schema declares {len(columns)}",
            where=where,
            hint=both,
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


# --- JSON --------------------------------------------------------------------------------------


def _read_json(
    session: SparkSession,
    step: NdJson | Json | GeoJson | NdGeoJson,
    columns: pa.Schema | None,
    prepared: Prepared,
    job: Path,
    reporter: Reporter,
    check_keys: Callable[[TextFile, Reporter], None],
) -> Reading | None:
    declared_encoding = getattr(step, "encoding", None)
    if declared_encoding is None:
        check_is_text(prepared.path, prepared.name)
    encoding = encoding_of(prepared.path, declared_encoding)
    path = prepared.path
    if not isinstance(step, NdJson):
        reporter.phase("prepare")
        path = job / "lines"
        _to_lines(step, prepared, encoding or "utf-8", path, reporter)
        encoding = None
    dates = step if isinstance(step, NdJson | Json) else NdJson()
    plain = NdJson(encoding=encoding, date_format=dates.date_format, timestamp_format=dates.timestamp_format)
    file = TextFile(path, prepared.name, encoding=encoding or "utf-8")
    if columns is not None:
        file = dataclasses.replace(file, columns=tuple(columns.names))
        check_keys(file, reporter)
    frame = read_json(session, path, plain, columns, scratch=job, name=prepared.name, reporter=reporter)
    if columns is None and not frame.columns:
        reporter.line(f"{prepared.name} has no objects, and no columns are declared", "warning")
        return None
    return Reading(
        frame, columns, lambda error: explain_json(error, file, reporter, lines=isinstance(step, NdJson))
    )


def _to_lines(
    step: Json | GeoJson | NdGeoJson, prepared: Prepared, encoding: str, path: Path, reporter: Reporter
) -> None:
    source = JsonSource(prepared.path, prepared.name, encoding)
    if isinstance(step, Json):
        array_to_lines(source, step.sub_path, path, reporter)
    elif isinstance(step, GeoJson):
        features_to_lines(source, path, reporter)
    else:
        feature_lines_to_lines(source, path, reporter)


def _check_keys(file: TextFile, reporter: Reporter) -> None:
    """Looks at the first lines: a key that nobody has is left null, one that is not declared left out."""
    found: dict[str, None] = {}
    try:
        with file.path.open(encoding=file.encoding) as lines:
            for line in lines.readlines(_SAMPLE):
                found.update(dict.fromkeys(json.loads(line)) if line.strip() else {})
    except (ValueError, TypeError, RecursionError):
        return  # what is no JSON object is said when it is read
    if found and not any(name in found for name in file.columns):
        raise InvalidSchema(
            f"none of the declared columns is in the data: {shown(', '.join(file.columns))}",
            where=file.name,
            hint=f"the data has {shown(', '.join(found))}",
        )
    if left_out := [name for name in found if name not in file.columns]:
        reporter.line(f"{file.name}: not in read.schema, left out: {shown(', '.join(left_out))}")


def _with_name(error: BadData, name: str) -> BadData:
    return BadData(error.message, where=error.where or name, hint=error.hint)
