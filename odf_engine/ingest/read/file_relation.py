"""Data files as DuckDB relations: the rows of files that were inferred, as the text of a table expression.

A relation has the columns that the inference proposes for a new dataset. A value that is not of the type of
its column is an error, and never null. Nothing here starts DuckDB.
"""

from __future__ import annotations

import codecs
import gzip
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import msgspec

from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import Reporter
from odf_engine.data.zip_archive import ARCHIVE_ERRORS, ZipArchive
from odf_engine.errors import BadData
from odf_engine.filters.filter_process import run_contained
from odf_engine.ingest.inference.file_inference import (
    BOOLEANS,
    EPOCHS,
    INTEGER,
    NUMBER_FORMS,
    TYPES,
    FileChoices,
    InferredColumn,
    InferredFile,
    pattern_regex,
)
from odf_engine.ingest.inference.file_sample import infer_file, read_sample
from odf_engine.sql.duckdb_text import literal, path_list, quoted

if TYPE_CHECKING:
    from odf_engine.ingest.read import shapefile
else:
    shapefile = LazyModule("odf_engine.ingest.read.shapefile")

MAX_DOCUMENT: Final = 64 << 20
MAX_LINE: Final = 16 << 20
"""Size limits in bytes of a JSON document, and of a line of CSV or JSON."""
_CHUNK: Final = 1 << 20
_HEAD: Final = 1 << 14
_BLANKS: Final = " \t\n\r\f\v\u00a0\u202f"
_SPACES: Final = " \u00a0\u202f"
_ISO_DATE: Final = r"\d{4}-\d{1,2}-\d{1,2}"
_ISO_TIME: Final = _ISO_DATE + r"([T ]\d{1,2}:\d\d(:\d\d)?(\.\d{1,9})?( ?(Z|UTC|[+-]\d\d:\d\d))?)?"
_JSON_LINES: Final = ("NdJson", "NdGeoJson", "EsriShapefile")
_TRUE: Final = ("true", "yes", "t", "y")
_STRPTIME: Final = {
    "yyyy": ("%Y",), "yy": ("%y",), "MMMM": ("%B", "%b"), "MMM": ("%b", "%B"), "MM": ("%m",), "M": ("%m",),
    "dd": ("%d",), "d": ("%d",), "HH": ("%H",), "H": ("%H",), "hh": ("%I",), "h": ("%I",), "mm": ("%M",),
    "ss": ("%S",), "a": ("%p",), "X": ("%z",), "XX": ("%z",), "XXX": ("%z",), "z": ("%z",),
}  # fmt: skip
"""Specifiers of DuckDB by the letters of a Spark pattern."""


class DataFile(msgspec.Struct, frozen=True):
    """A file that DuckDB can read, and what was inferred of it.

    Attributes:
        path: the file, or a converted copy in the scratch folder.
        inferred: the format and columns.
    """

    path: Path
    inferred: InferredFile


def open_data_files(
    paths: Sequence[Path], scratch: Path, reporter: Reporter, choices: FileChoices | None = None
) -> list[DataFile]:
    """Infer files, and convert those that DuckDB cannot read. Files with the same header are inferred once.

    Args:
        paths: the files; gzip and zip archives are unpacked.
        scratch: the folder of converted files, which the caller removes.
        reporter: can cancel; gets warnings of records that were left out.
        choices: the choices of the user.

    Raises:
        BadData: a file is empty, damaged, or not in a known format.
        OSError: a file cannot be read.
    """
    known: dict[tuple[str, bytes], InferredFile] = {}
    files: list[DataFile] = []
    for path in paths:
        reporter.raise_if_cancelled()
        key = _header_of(path)
        inferred = known.get(key) if key is not None else None
        if inferred is None:
            sample = read_sample(path, path.name, reporter)
            inferred = infer_file(sample, choices or FileChoices(unpivot=False), reporter)
            if key is not None and inferred.header and not inferred.encoding and not inferred.filters:
                known[key] = inferred
        files.append(DataFile(_readable_file(path, inferred, scratch, reporter), inferred))
    return files


def _header_of(path: Path) -> tuple[str, bytes] | None:
    """Return the suffix and the first line of a text file, or None if it has no complete first line."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    line, end, _ = head.partition(b"\n")
    return (path.suffix.lower(), line.removeprefix(codecs.BOM_UTF8)) if end and b"\0" not in line else None


def _readable_file(path: Path, inferred: InferredFile, scratch: Path, reporter: Reporter) -> Path:
    """Return the file, or a copy that is unpacked, encoded in UTF-8 without a mark, and filtered."""
    if inferred.kind == "EsriShapefile":
        return shapefile.shapefile_to_lines(path, path.name, inferred.entry or None, scratch, reporter).path
    is_text = inferred.kind != "Parquet"
    with path.open("rb") as file:
        has_mark = is_text and file.read(3) == codecs.BOM_UTF8
    is_native = inferred.compression == "Gzip" and is_text
    is_plain = not inferred.encoding and not has_mark and not inferred.filters
    if is_plain and (not inferred.compression or is_native):
        return path
    descriptor, name = tempfile.mkstemp(dir=scratch, suffix=".parquet" if not is_text else ".txt")
    try:
        with (
            _open_plain(path, inferred) as source,
            _filtered(inferred, cast("BinaryIO", source), path.name, reporter) as filtered,
            os.fdopen(descriptor, "wb") as target,
        ):
            if is_text and not inferred.is_normalized:
                _copy_text(filtered, target, inferred.encoding, reporter)
            else:
                shutil.copyfileobj(filtered, target, _CHUNK)
    except ARCHIVE_ERRORS as error:
        raise BadData(f"the archive cannot be read: {error}", where=path.name) from None
    except BadData as error:
        where = ", ".join(filter(None, (path.name, error.where)))
        raise BadData(error.message, hint=error.hint, where=where) from None
    return Path(name)


@contextmanager
def _filtered(inferred: InferredFile, source: BinaryIO, name: str, reporter: Reporter) -> Iterator[BinaryIO]:
    """Run the filters of a file one after the other; yield the output of the last one.

    A look at a file leaves out the records that a pull refuses.
    """
    with ExitStack() as stack:
        for arguments in inferred.filters:
            lenient = ("--ragged", "skip") if arguments[0] == "csv" and "--ragged" not in arguments else ()
            output = cast("BinaryIO", stack.enter_context(tempfile.TemporaryFile()))
            if warning := run_contained((*arguments, *lenient), source, output):
                reporter.warn(f"{name}: {warning}", "skipped-records")
            output.seek(0)
            source = output
        yield source


class _ZipEntry:
    """An open entry of an archive, which is closed together with the archive."""

    def __init__(self, path: Path, entry: str) -> None:
        self._archive = ZipArchive(path)
        self._file = self._archive.open(entry)

    def __enter__(self) -> BinaryIO:
        return self._file  # pyright: ignore[reportReturnType]

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._archive.close()


def _open_plain(path: Path, inferred: InferredFile) -> BinaryIO | _ZipEntry | gzip.GzipFile:
    if inferred.compression == "Zip":
        return _ZipEntry(path, inferred.entry)
    return gzip.open(path) if inferred.compression == "Gzip" else path.open("rb")


def _copy_text(source: BinaryIO | gzip.GzipFile, target: BinaryIO, encoding: str, reporter: Reporter) -> None:
    """Copy a text as UTF-8. Bytes that the encoding cannot decode become replacement characters."""
    decoder = codecs.getincrementaldecoder(encoding or "utf-8-sig")("replace")
    while chunk := source.read(_CHUNK):
        reporter.raise_if_cancelled()
        target.write(decoder.decode(chunk).encode().removeprefix(codecs.BOM_UTF8))
    target.write(decoder.decode(b"", final=True).encode())


def file_relation(
    files: Sequence[DataFile], *, texts: Collection[str] = (), skips_bad_lines: bool = False
) -> str:
    """Return the rows of files as a table expression, which a query can have in FROM.

    Files with different columns are united by the names of their columns. A value that is not of the type
    of its column ends the query with an error. The connection needs
    :data:`odf_engine.sql.duckdb_text.PREPARATION`.

    Args:
        files: the files, at least one.
        texts: names of columns that are read as text.
        skips_bad_lines: whether lines that are not rows are skipped. Those of CSV are then in
            ``reject_errors``.
    """
    types = column_types(files, texts)
    parts: list[str] = []
    for inferred, paths in _groups(files):
        rows = _text_rows(paths, inferred, skips_bad_lines)
        parts.append(f"SELECT {', '.join(_typed_columns(inferred, types))} FROM {rows}")
    return f"({' UNION ALL BY NAME '.join(parts)})"


def raw_relation(files: Sequence[DataFile]) -> str:
    """Return the cells of files as texts, as they are in the files. See :func:`file_relation`."""
    parts: list[str] = []
    for inferred, paths in _groups(files):
        empty = "''" if inferred.kind == "Csv" else "NULL"
        cells = [
            f"coalesce(CAST(c{at} AS VARCHAR), {empty}) AS {quoted(column.name)}"
            for at, column in enumerate(inferred.columns)
        ]
        parts.append(f"SELECT {', '.join(cells)} FROM {_text_rows(paths, inferred, True)}")
    return f"({' UNION ALL BY NAME '.join(parts)})"


def invalid_counts_query(files: Sequence[DataFile], limit: int | None = None) -> str | None:
    """Return a query for the number of values of each column that are not of its type.

    The result has one row for each name of a column. Columns of text are absent.

    Args:
        files: the files.
        limit: the number of rows to count in, or None for all rows.

    Returns:
        The query, or None if all columns are text.
    """
    parts: list[str] = []
    for inferred, paths in _groups(files):
        counts = {
            column.name: f"count(*) FILTER ({text} IS NOT NULL AND {typed} IS NULL)"
            for at, column in enumerate(inferred.columns)
            if inferred.kind != "Parquet"
            for text in [_text(f"c{at}", column)]
            if (typed := _typed_value(column, text)) is not None
        }
        names = ", ".join(map(literal, counts))
        values = ", ".join(counts.values())
        if counts:
            rows = _limited(f"SELECT * FROM {_text_rows(paths, inferred, True)}", limit)
            parts.append(f"SELECT unnest([{names}]) AS name, unnest([{values}]) AS invalid FROM ({rows})")
    if not parts:
        return None
    return f"SELECT name, sum(invalid)::BIGINT FROM ({' UNION ALL '.join(parts)}) GROUP BY name"


def bad_lines_query(files: Sequence[DataFile]) -> str | None:
    """Return a query for the number of lines of JSON that are not objects, or None without such files."""
    parts = [
        f"SELECT json FROM {_json_objects(paths, inferred, True)}"
        for inferred, paths in _groups(files)
        if inferred.kind in _JSON_LINES
    ]
    rows = " UNION ALL ".join(parts)
    return (
        f"SELECT count(*) FROM ({rows}) WHERE json IS NULL OR json_type(json) <> 'OBJECT'" if parts else None
    )


def _limited(query: str, limit: int | None) -> str:
    return query if limit is None else f"{query} LIMIT {limit}"


def column_types(files: Sequence[DataFile], texts: Collection[str] = ()) -> dict[str, str]:
    """Return the columns of a relation with their types as DDL. Types that differ become STRING."""
    types: dict[str, str] = {}
    for file in files:
        for column in file.inferred.columns:
            is_text = file.inferred.kind != "Parquet" and column.type not in TYPES  # nested JSON
            kind = "STRING" if is_text or column.name in texts else column.type
            if not column.examples and file.inferred.kind != "Parquet":
                types.setdefault(column.name, "STRING")
            elif {types.get(column.name, kind), kind} == {"BIGINT", "DOUBLE"}:
                types[column.name] = "DOUBLE"
            else:
                types[column.name] = kind if types.get(column.name, kind) == kind else "STRING"
    return types


def _groups(files: Sequence[DataFile]) -> list[tuple[InferredFile, list[Path]]]:
    """Return the files that are read alike, in the order of the first of them."""
    groups: dict[int, tuple[InferredFile, list[Path]]] = {}
    for file in files:
        groups.setdefault(id(file.inferred), (file.inferred, []))[1].append(file.path)
    return list(groups.values())


def _typed_columns(inferred: InferredFile, types: dict[str, str]) -> Iterator[str]:
    """Yield the expression of each column."""
    for at, column in enumerate(inferred.columns):
        name, kind = quoted(column.name), types[column.name]
        if inferred.kind == "Parquet":
            cast = f"CAST(c{at} AS VARCHAR)" if kind != column.type else f"c{at}"
            yield f"{cast} AS {name}"
            continue
        text = _text(f"c{at}", column)
        typed = None if kind == "STRING" else _typed_value(column, text)
        if typed is None:
            yield f"{text} AS {name}"
            continue
        form = f" written {column.form}" if column.form else ""
        message = (
            f"{literal(f'column {column.name}: ')} || {text} || {literal(f' is not a {column.type}{form}')}"
        )
        checked = f"coalesce({typed}, CASE WHEN {text} IS NOT NULL THEN error({message}) END)"
        yield f"{checked if kind == column.type else f'CAST({checked} AS {kind})'} AS {name}"


def _text_rows(paths: Sequence[Path], inferred: InferredFile, skips_bad_lines: bool) -> str:
    """Return a table expression with the columns c0, c1 … of texts, or of values for Parquet."""
    columns = inferred.columns
    if inferred.kind == "Parquet":
        names = path_list(paths)
        values = ", ".join(f"{quoted(column.source)} AS c{at}" for at, column in enumerate(columns))
        return f"(SELECT {values} FROM read_parquet({names}))"
    if inferred.kind == "Csv":
        return _csv_rows(paths, inferred, skips_bad_lines)
    return _json_rows(paths, inferred, skips_bad_lines)


def _csv_rows(paths: Sequence[Path], inferred: InferredFile, skips_bad_lines: bool) -> str:
    is_filtered = inferred.is_normalized
    quote = '"' if is_filtered else inferred.quote
    options = {
        "auto_detect": "false",
        "delim": literal("," if is_filtered else inferred.separator),
        "quote": literal(quote),
        "escape": literal(quote),
        "header": str(is_filtered or inferred.header).lower(),
        "max_line_size": str(MAX_LINE),
        "columns": "{" + ", ".join(f"'c{at}': 'VARCHAR'" for at in range(len(inferred.columns))) + "}",
    }
    if inferred.compression == "Gzip" and not inferred.filters:
        options["compression"] = "'gzip'"
    if skips_bad_lines:
        options |= {"store_rejects": "true", "rejects_limit": "1000"}
    return f"read_csv({path_list(paths)}, {_settings(options)})"


def _settings(options: dict[str, str]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in options.items())


def _json_objects(paths: Sequence[Path], inferred: InferredFile, skips_bad_lines: bool) -> str:
    """Return the objects of JSON files, or the documents that contain a list of objects."""
    is_lines = inferred.kind in _JSON_LINES
    path = "features" if inferred.kind == "GeoJson" else inferred.sub_path
    options = {"format": literal("newline_delimited" if is_lines else "unstructured" if path else "array")}
    options["maximum_object_size"] = str(MAX_LINE if is_lines else MAX_DOCUMENT)
    if is_lines and skips_bad_lines:
        options["ignore_errors"] = "true"
    if inferred.compression == "Gzip" and not inferred.filters:
        options["compression"] = "'gzip'"
    rows = f"read_json_objects({path_list(paths)}, {_settings(options)})"
    if path:
        pointer = "".join(f"/{_pointer_part(part)}" for part in path.split("."))
        rows = f"(SELECT unnest(CAST(json_extract(json, {literal(pointer)}) AS JSON[])) AS json FROM {rows})"
    return rows


def _json_rows(paths: Sequence[Path], inferred: InferredFile, skips_bad_lines: bool) -> str:
    """Return the rows of objects. The JSON pointers of all columns are extracted together."""
    rows = _json_objects(paths, inferred, skips_bad_lines)
    if skips_bad_lines:
        rows = f"(SELECT json FROM {rows} WHERE json_type(json) = 'OBJECT')"
    else:
        error = "error('not an object: ' || left(json::VARCHAR, 80))"
        rows = f"(SELECT CASE WHEN json_type(json) = 'OBJECT' THEN json ELSE {error} END AS json FROM {rows})"
    is_geo = inferred.kind in ("GeoJson", "NdGeoJson")
    pointers: list[str] = []
    for column in inferred.columns:
        part = _pointer_part(column.source)
        pointers.append(f"/properties/{part}" if is_geo and part != "geometry" else f"/{part}")
    has_id = is_geo and "/properties/id" in pointers
    extracted = [*pointers, "/id"] if has_id else pointers
    values: list[str] = []
    for at, pointer in enumerate(pointers):
        value = f"v[{at + 1}] ->> '$'"
        if has_id and pointer == "/properties/id":
            value = f"coalesce({value}, v[{len(extracted)}] ->> '$')"
        values.append(f"({value}) AS c{at}")
    array = ", ".join(map(literal, extracted))
    return f"(SELECT {', '.join(values)} FROM (SELECT json_extract(json, [{array}]) AS v FROM {rows}))"


def _pointer_part(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _text(cell: str, column: InferredColumn) -> str:
    """Return the text of a cell, which is null for the texts that mean null."""
    nulls = ", ".join(literal(text) for text in sorted(column.null_texts))
    return f"CASE WHEN {cell} NOT IN ('', {nulls}) THEN {cell} END" if nulls else f"nullif({cell}, '')"


def _typed_value(column: InferredColumn, text: str) -> str | None:
    """Return the value of a text in the type of its column, null if it has another one.

    Returns:
        The expression, or None if the column has texts, or nested values as JSON.
    """
    if column.type == "BOOLEAN":
        return _boolean(f"trim({text}, {literal(_BLANKS)})")
    if column.type in ("BIGINT", "DOUBLE"):
        return _number(column, text)
    if column.type in ("DATE", "TIMESTAMP"):
        return _epoch(column.form, text) if column.form.startswith("epoch") else _time(column, text)
    return None


def _boolean(text: str) -> str:
    true, false = (", ".join(map(literal, words)) for words in (_TRUE, sorted(BOOLEANS.difference(_TRUE))))
    return f"CASE WHEN lower({text}) IN ({true}) THEN true WHEN lower({text}) IN ({false}) THEN false END"


def _number(column: InferredColumn, text: str) -> str:
    form = column.form
    plain = text
    if form:
        group = form[1]
        plain = f"translate({text}, {literal(_SPACES if group == ' ' else group)}, '')"
        plain = f"replace({plain}, ',', '.')" if form.endswith(",5") else plain
    pattern = INTEGER if column.type == "BIGINT" and not form else NUMBER_FORMS[form]
    # Blanks around a number are ignored by the cast. To trim them is slow.
    padded = re.compile(rf"\s*(?:{pattern.pattern})\s*")
    return _guarded(padded, text, f"TRY_CAST({plain} AS {column.type})")


def _guarded(pattern: re.Pattern[str], text: str, value: str) -> str:
    """Return a value that is null if the text does not match. The casts of DuckDB are more tolerant."""
    regex = re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), pattern.pattern)
    return f"CASE WHEN regexp_full_match({text}, {literal(regex)}) THEN {value} END"


def _epoch(form: str, text: str) -> str:
    first, last = next((first, last) for name, first, last in EPOCHS if name == form)
    number = f"TRY_CAST({text} AS BIGINT)"
    time = f"to_timestamp({number})" if form == "epoch s" else f"timezone('UTC', epoch_ms({number}))"
    inside = f"CASE WHEN {number} >= {first} AND {number} < {last} THEN {time} END"
    return _guarded(INTEGER, text, inside)


def _time(column: InferredColumn, text: str) -> str:
    kind = "DATE" if column.type == "DATE" else "TIMESTAMPTZ"
    if not column.form:
        iso = re.compile(_ISO_DATE if kind == "DATE" else _ISO_TIME)
        return _guarded(iso, text, f"TRY_CAST({text} AS {kind})")
    formats = _strptime_formats(column.form)
    has_zone = any("%z" in form for form in formats)
    zoned = f"regexp_replace({text}, '(Z|UTC)$', '+00')" if has_zone else text
    value = f"try_strptime({zoned}, [{', '.join(map(literal, formats))}])"
    if "yyyy" not in column.form:  # DuckDB has the years 69 to 99 in the last century
        value = f"CASE WHEN year({value}) < 2000 THEN {value} + INTERVAL 100 YEAR ELSE {value} END"
    if kind == "DATE":
        value = f"CAST({value} AS DATE)"
    elif not has_zone:
        value = f"timezone('UTC', {value})"
    return _guarded(pattern_regex(column.form), text, value)


def _strptime_formats(form: str) -> list[str]:
    """Return the formats of DuckDB for a Spark pattern, one for each combination of its optional parts."""
    formats: list[str] = []
    choices: list[Callable[[re.Match[str]], str]] = [lambda match: match[1], lambda _: ""]
    for choice in choices if "[" in form else choices[:1]:
        # Brackets are nested at most twice: seconds with an optional fraction.
        inner = re.sub(r"\[([^\[\]]*)\]", choice, form)
        formats += _strptime_formats(inner) if "[" in inner else _plain_formats(inner)
    return list(dict.fromkeys(formats))


def _plain_formats(form: str) -> list[str]:
    parts: list[tuple[str, ...]] = []
    for match in re.finditer(r"'([^']*)'|([A-Za-z])\2*|.", form, re.DOTALL):
        token = match[0]
        if match[1] is not None:
            parts.append((match[1].replace("%", "%%"),))
        elif token[0] == "S":
            parts.append(("%n" if len(token) > 6 else "%f",))
        else:
            parts.append(_STRPTIME.get(token, (token.replace("%", "%%"),)))
    return ["".join(part) for part in product(*parts)]
