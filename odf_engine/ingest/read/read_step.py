"""Reads a prepared file as a DataFrame, according to its ReadStep."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.base.progress import Reporter, count_of
from odf_engine.data.column_names import appearance, spell_out
from odf_engine.data.odf_schema import columns_of_step
from odf_engine.errors import BadData, InvalidSchema, NewColumns
from odf_engine.ingest.prep_step import PreparedFile, PrepareLimits
from odf_engine.ingest.read.error_location import (
    describe_csv_record,
    describe_json_record,
    explain_json,
    explain_parquet,
    locate_csv_error,
)
from odf_engine.ingest.read.file_kind import reject_binary
from odf_engine.ingest.read.json_lines import (
    JsonSource,
    array_to_lines,
    feature_lines_to_lines,
    features_to_lines,
)
from odf_engine.ingest.read.shapefile import shapefile_to_lines
from odf_engine.ingest.read.text_file import TextFile, csv_file, first_row, shorten
from odf_engine.metadata.model import Csv, EsriShapefile, GeoJson, Json, NdGeoJson, NdJson, Parquet, ReadStep
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.readers import ReadContext, read_csv, read_json, read_parquet
from odf_engine.spark.text_files import detect_encoding
from odf_engine.spark.time_digits import TimeDigits

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


_ID: Final = "id"
_READ_BYTES: Final = 512
CompareKeys = Callable[[TextFile, Reporter, Mapping[str, int]], None]
"""Checks the keys of all objects of a file, each with the first line that has it."""


@dataclass(frozen=True)
class ReadPlan:
    """A file as a DataFrame.

    Attributes:
        frame: its rows, in order; nothing has run yet.
        columns: as declared in the manifest, or None if they are inferred.
        explain: adds the location in the file to an error of reading the rows.
        place: names the record of a line in messages.
        describe: returns the column, if known, and the reason why a record cannot be parsed.
        digits: counts times that lose digits.
        header: the names in the header of CSV, if the columns are declared.
    """

    frame: DataFrame
    columns: pa.Schema | None
    explain: Callable[[BadData], BadData]
    place: Callable[[int], str] = "line {}".format
    describe: Callable[[str], tuple[str | None, str]] = lambda record: (None, "invalid record")
    digits: TimeDigits = field(default_factory=TimeDigits)
    header: Sequence[str] = ()


@dataclass(frozen=True)
class ReadOptions:
    """Options of a read besides its step.

    Attributes:
        limits: for unpacking a format that is an archive.
        known: columns to use if the step declares none.
        compare_keys: replaces the check of the keys of JSON objects.
        feature_ids: read the ids of GeoJSON features as the column ``id`` if no columns are given. Given
            columns decide it themselves.
    """

    limits: PrepareLimits
    known: pa.Schema | None = None
    compare_keys: CompareKeys | None = None
    feature_ids: bool = False


def read(
    session: SparkSession,
    step: ReadStep,
    prepared: PreparedFile,
    job: Path,
    reporter: Reporter,
    options: ReadOptions,
) -> ReadPlan | None:
    """Plan to read a prepared file; return None if it is empty.

    Args:
        session: Spark session.
        step: the read step.
        prepared: the file.
        job: folder for temporary files; the caller removes it.
        reporter: receives messages.
        options: the other options.

    Raises:
        BadData: the file is not of its format, or has no header.
        InvalidSchema: the declared columns are malformed, or differ from the header of the file.
    """
    declared = columns_of_step(step)
    columns = declared or options.known
    if prepared.path.stat().st_size == 0:
        reporter.log(f"{prepared.name}: empty file", "warning")
        return None
    if isinstance(step, Parquet):
        path, name = prepared.path, prepared.name
        digits = TimeDigits()
        frame = read_parquet(session, path, columns, scratch=job, name=name, reporter=reporter, digits=digits)
        explain = partial(explain_parquet, path=path, name=name, reporter=reporter)
        return ReadPlan(frame, columns, explain, digits=digits)
    if isinstance(step, Csv | NdJson | NdGeoJson) and _is_blank(step, prepared.path):
        if isinstance(step, Csv) and step.header:
            raise BadData(
                "the file has no header",
                where=prepared.name,
                hint="check the source: the file may be truncated; to pull files without a header, set"
                " read.header to false",
            )
        reporter.log(f"{prepared.name}: empty file", "warning")
        return None
    if isinstance(step, Csv):
        return _read_csv(session, step, columns, prepared, job, reporter)
    if isinstance(step, EsriShapefile):
        lines = _shape_lines(step, prepared, job, reporter, options.limits)
    else:
        feature_ids = options.feature_ids
        if columns is not None:
            feature_ids = any(name.casefold() == _ID for name in columns.names)
        lines = _json_lines(step, prepared, job, reporter, feature_ids)
    # Without a declaration, a column that the file lacks is null in all rows.
    compare = options.compare_keys or (None if declared is None else _compare_keys)
    return _read_lines(session, lines, columns, prepared, job, reporter, compare)


def _is_blank(step: Csv | NdJson | NdGeoJson, path: Path) -> bool:
    """Return whether a text file has only a byte order mark and blank lines."""
    encoding = detect_encoding(path, getattr(step, "encoding", None)) or "utf-8"
    with path.open(encoding=encoding, errors="replace") as text:
        return not any(part.strip("\ufeff \t\r\n") for part in iter(partial(text.read, _READ_BYTES), ""))


def _read_csv(
    session: SparkSession,
    step: Csv,
    columns: pa.Schema | None,
    prepared: PreparedFile,
    job: Path,
    reporter: Reporter,
) -> ReadPlan:
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
        names = (
            first if step.header else [f"_c{at}" for at in range(len(first))]
        )  # The names that Spark generates.
        file = dataclasses.replace(file, columns=tuple(names))
    digits = TimeDigits()
    frame = read_csv(
        session,
        prepared.path,
        replace(step, encoding=file.encoding),
        schema,
        ReadContext(
            scratch=job,
            name=prepared.name,
            reporter=reporter,
            selected=prepared.selected,
            lines=prepared.lines,
            digits=digits,
        ),
        names=file.columns,
    )
    return ReadPlan(
        frame,
        columns,
        lambda error: locate_csv_error(error, file, reporter),
        describe=partial(describe_csv_record, file=file),
        digits=digits,
        header=tuple(first) if step.header and columns is not None else (),
    )


def _check_header(header: list[str], columns: pa.Schema | None, name: str, reporter: Reporter) -> None:
    """Check the header. Declared columns go by position, so it must have their order.

    Raises:
        NewColumns: the header has further columns.
        InvalidSchema: the header differs from the columns, or has empty or repeated names.
    """
    place = f"{name}: line 1"
    folded = [text.strip().casefold() for text in header]
    if columns is None:
        duplicate = next((text for at, text in enumerate(header) if folded[at] in folded[:at]), None)
        if duplicate is not None or "" in folded:
            problem = (
                f"duplicate column '{duplicate}' in the header"
                if duplicate is not None
                else f"column {folded.index('') + 1} of {len(folded)} in the header has no name"
            )
            raise InvalidSchema(
                problem,
                where=place,
                hint="declare the columns in read.schema; they are then matched by position",
            )
        return
    declared = [text.casefold() for text in columns.names]
    both = f"header: {shorten(', '.join(header))}; manifest: {shorten(', '.join(columns.names))}"
    if len(header) != len(columns):
        new = [text for text, name in zip(header, folded, strict=True) if name not in declared]
        if folded[:-1] == declared and not folded[-1]:
            raise InvalidSchema(
                "the header ends with a separator, after which a column has no name",
                where=place,
                hint="remove the separator at the end of each line in the source or in a prepare step, or add"
                " a column such as `unused STRING` to the end of read.schema",
            )
        problem = f"the file has {count_of(len(header), 'column')}, read.schema declares {len(columns)}"
        if len(new) != len(header) - len(columns):
            raise InvalidSchema(problem, where=place, hint=both)
        if "" in folded:
            at = folded.index("") + 1
            hint = f"column {at} has no name in the header: add one for it to read.schema"
            raise InvalidSchema(problem, where=place, hint=hint)
        listed = shorten(", ".join(map(spell_out, new)))
        raise NewColumns(f"{problem}; new: {listed}", where=place)
    moved = [text for at, text in enumerate(header) if folded[at] in declared and folded[at] != declared[at]]
    if moved:
        raise InvalidSchema(
            f"column '{moved[0]}' has different positions in the file and in read.schema",
            where=place,
            hint=both,
        )
    if folded != declared:
        other = [f"{spell_out(text)} as {spell_out(column)}" if appearance(text) == appearance(column)
                 else f"{text} as {column}" for text, column in zip(header, columns.names, strict=True)
                 if text.strip().casefold() != column.casefold()]  # fmt: skip
        reporter.log(f"{name}: columns renamed by read.schema: {shorten(', '.join(other))}")


@dataclass(frozen=True)
class _Lines:
    """A file with one JSON object per line: the prepared file, or a conversion of it.

    Attributes:
        file: the file, and its name in messages.
        step: formats of its values.
        place: names the object of a line in messages.
        columns: declared by the file itself, or None if it declares none.
    """

    file: TextFile
    step: NdJson
    place: Callable[[int], str]
    columns: pa.Schema | None = None


def _json_lines(
    step: NdJson | Json | GeoJson | NdGeoJson,
    prepared: PreparedFile,
    job: Path,
    reporter: Reporter,
    feature_ids: bool,
) -> _Lines:
    encoding = detect_encoding(prepared.path, getattr(step, "encoding", None)) or "utf-8"
    reject_binary(prepared.path, prepared.name, encoding)
    if isinstance(step, NdJson):
        file = TextFile(prepared.path, prepared.name, encoding=encoding)
        return _Lines(file, replace(step, encoding=encoding), lambda line: f"line {line}")
    reporter.phase("prepare")
    source, path = JsonSource(prepared.path, prepared.name, encoding), job / "lines"
    file = TextFile(path, prepared.name, encoding="utf-8")
    if isinstance(step, Json):
        array_to_lines(source, step.sub_path, path, reporter, prepared.on_invalid)
        plain = NdJson(date_format=step.date_format, timestamp_format=step.timestamp_format)
        return _Lines(file, plain, lambda line: f"object {line}")
    convert = features_to_lines if isinstance(step, GeoJson) else feature_lines_to_lines
    convert(source, path, reporter, prepared.on_invalid, with_id=feature_ids)
    return _Lines(file, NdJson(), lambda line: f"feature {line}")


def _shape_lines(
    step: EsriShapefile, prepared: PreparedFile, job: Path, reporter: Reporter, limits: PrepareLimits
) -> _Lines:
    reporter.phase("prepare")
    lines = shapefile_to_lines(prepared.path, prepared.name, step.sub_path, job, reporter, limits)
    file = TextFile(lines.path, lines.name, encoding="utf-8")
    return _Lines(file, NdJson(), lambda line: f"record {lines.record(line)}", lines.columns)


def _read_lines(
    session: SparkSession,
    lines: _Lines,
    columns: pa.Schema | None,
    prepared: PreparedFile,
    job: Path,
    reporter: Reporter,
    compare_keys: CompareKeys | None,
) -> ReadPlan | None:
    file, schema = lines.file, columns or lines.columns
    compare = None
    if columns is not None:
        file = dataclasses.replace(file, columns=tuple(columns.names))
        compare = partial(compare_keys, file, reporter) if compare_keys is not None else None
    digits = TimeDigits()
    try:
        frame = read_json(
            session,
            file.path,
            lines.step,
            schema,
            ReadContext(
                scratch=job,
                name=file.name,
                reporter=reporter,
                selected=prepared.selected,
                lines=prepared.lines,
                digits=digits,
            ),
            on_keys=compare,
        )
    except RejectedRow as error:
        raise explain_json(error, file, reporter, lines.place) from None
    if schema is None and not frame.columns:
        reporter.log(f"{file.name}: no objects and no declared columns", "warning")
        return None
    return ReadPlan(
        frame,
        columns,
        lambda error: explain_json(error, file, reporter, lines.place),
        lines.place,
        partial(describe_json_record, schema=schema),
        digits,
    )


def _compare_keys(file: TextFile, reporter: Reporter, keys: Mapping[str, int]) -> None:
    """Report columns that no object has, and keys that are dropped.

    Raises:
        InvalidSchema: the file has none of the columns.
    """
    folded = {name.casefold(): name for name in file.columns}
    present = {key.casefold() for key in keys}
    if keys and not present & folded.keys():
        raise InvalidSchema(
            f"none of the declared columns found in the data: {shorten(', '.join(file.columns))}",
            where=file.name,
            hint=f"columns of the data: {shorten(', '.join(keys))}",
        )
    if keys and (absent := [name for name in file.columns if name.casefold() not in present]):
        reporter.log(f"{file.name}: {shorten(', '.join(absent))} not found, null in all rows", "warning")
    if left_out := [key for key in keys if _column_of(key, folded, keys) is None]:
        reporter.log(f"{file.name}: not in read.schema, dropped: {shorten(', '.join(left_out))}")


def _column_of(key: str, folded: Mapping[str, str], keys: Mapping[str, int]) -> str | None:
    """Return the column of a key, ignoring case, unless another key has the exact name of the column."""
    name = folded.get(key.casefold())
    return None if name is not None and name != key and name in keys else name
