"""Detects format and schema of a data file, and writes a manifest for it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from odf_engine.errors import BadData, has_surrogates
from odf_engine.identity.names import is_valid_name

if TYPE_CHECKING:
    import pyarrow as pa


SKIPPED: Final = {".odf", ".git", "node_modules", ".venv", "__pycache__"}
FORMATS: Final = {
    ".csv": "Csv", ".tsv": "Csv", ".txt": "Csv", ".json": "Json", ".ndjson": "NdJson", ".jsonl": "NdJson",
    ".parquet": "Parquet", ".geojson": "GeoJson",
}  # fmt: skip
"""Formats by suffix."""
_SUFFIXES: Final = (*(FORMATS.keys() - {".txt"}), ".csv.gz", ".json.gz", ".ndjson.gz", ".zip")
_MAX_FILES: Final = 200
_DEPTH: Final = 4
_UNSAFE: Final = re.compile(r"[^a-z0-9.]+")
_DEFAULT_NAME: Final = "my.dataset"


def find_data_files(folder: Path) -> list[tuple[str, int]]:
    """Return the data files in a folder, at most 4 levels deep and 200 files.

    Files whose paths are not UTF-8 are skipped: a manifest cannot name them.

    Returns:
        Paths relative to the folder, with sizes in bytes.
    """
    found: list[tuple[str, int]] = []
    for root, folders, files in os.walk(folder):
        here = Path(root).relative_to(folder)
        folders[:] = [] if len(here.parts) >= _DEPTH else sorted(set(folders) - SKIPPED)
        for name in sorted(files):
            if name.lower().endswith(_SUFFIXES) and not has_surrogates(str(here / name)):
                try:
                    found.append((str(here / name), (Path(root) / name).stat().st_size))
                except OSError:
                    continue  # removed since, or a broken link
            if len(found) >= _MAX_FILES:
                return found
    return found


def is_url(location: str) -> bool:
    """Return whether a location is a URL of a network protocol."""
    return urlsplit(location).scheme.lower() in ("http", "https", "ftp", "ftps", "s3")


def split_extensions(location: str) -> tuple[str, str]:
    """Return the suffix of the format and that of the compression, each empty if missing.

    The suffix of the compression is ``.gz`` or ``.zip``.
    """
    path = PurePosixPath(urlsplit(location).path.lower() if is_url(location) else location.lower())
    compression = path.suffix if path.suffix in (".gz", ".zip") else ""
    return (PurePosixPath(path.stem).suffix if compression else path.suffix), compression


def suggest_name(location: str, used_names: Collection[str]) -> str:
    """Return an unused dataset name for a file or URL; a default name if none can be derived."""
    path = PurePosixPath(urlsplit(location).path if is_url(location) else location)
    stem = path.name
    for suffix in reversed(split_extensions(location)):
        stem = stem[: len(stem) - len(suffix)] if suffix else stem
    name = _UNSAFE.sub("-", stem.lower()).strip("-.")
    name = name if is_valid_name(name) else _DEFAULT_NAME
    used = {each.lower() for each in used_names}
    return next(
        each for number in count(1) if (each := name if number == 1 else f"{name}-{number}") not in used
    )


_MAX_BYTES: Final = 1_000_000
_MAX_DOCUMENT: Final = 20_000_000
_MAX_ROWS: Final = 5000
_SEPARATORS: Final = ",;\t|"
_PADDED: Final = re.compile(r"0\d+")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?")


class DetectedFile(msgspec.Struct, frozen=True):
    """Format and schema of a data file.

    Attributes:
        reader: the fields of the reader, as lines of YAML.
        prepare: the decompression step, as lines of YAML.
        columns: DDL of each column; None if the file contains its schema.
        key: the column with unique values; empty if there is none.
        time: the column with the event time, and whether it is a date. The name is empty if there is none.
    """

    reader: tuple[str, ...]
    prepare: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    key: str = ""
    time: tuple[str, bool] = ("", False)


def detect_file(path: Path) -> DetectedFile:
    """Detect format and schema from the beginning of a file.

    Raises:
        BadData: the file has no rows, or is not in the format of its suffix.
        OSError: the file cannot be read.
    """
    suffix, compression = split_extensions(path.name)
    prepare: tuple[str, ...] = ()
    if compression == ".zip":
        with zipfile.ZipFile(path) as archive:
            inner = next((name for name in archive.namelist() if Path(name).suffix.lower() in FORMATS), "")
            if not inner:
                raise BadData("the archive has no CSV, JSON or Parquet file")
            suffix = Path(inner).suffix.lower()
            prepare = (*decompression_lines(compression), f"  subPath: {json.dumps(inner)}")
            with archive.open(inner) as file:
                data = file.read(_MAX_DOCUMENT if suffix in (".json", ".geojson", ".parquet") else _MAX_BYTES)
    elif compression == ".gz":
        prepare = decompression_lines(compression)
        with gzip.open(path) as file:
            data = file.read(_MAX_BYTES)
    else:
        with path.open("rb") as file:
            data = file.read(_MAX_DOCUMENT if suffix in (".json", ".geojson") else _MAX_BYTES)
    source: Path | io.BytesIO = path if suffix == ".parquet" and not compression else io.BytesIO(data)
    reader, table = _read(FORMATS.get(suffix, "Csv"), source, data)
    if not table.num_rows:
        raise BadData("the file has no rows")
    return _describe(reader, table, prepare)


def decompression_lines(compression: str) -> tuple[str, ...]:
    """Return the decompression step for ``.gz`` or ``.zip`` as lines of YAML; empty for none."""
    if not compression:
        return ()
    return "- kind: Decompress", f"  format: {'Zip' if compression == '.zip' else 'Gzip'}"


def _read(kind: str, source: Path | io.BytesIO, data: bytes) -> tuple[tuple[str, ...], pa.Table]:
    import pyarrow as pa

    try:
        if kind == "Parquet":
            return ("kind: Parquet",), _read_parquet(source)
        if kind == "NdJson":
            return ("kind: NdJson",), _read_json_lines(data)
        if kind in ("Json", "GeoJson"):
            return _read_document(kind, data)
        return _read_csv(data)
    except (pa.ArrowException, ValueError, csv.Error) as error:
        raise BadData(f"the file cannot be read as {kind}: {str(error).splitlines()[0]}") from None


def _read_parquet(source: Path | io.BytesIO) -> pa.Table:
    import pyarrow as pa

    from odf_engine.data.parquet_reader import read_bounded, read_parquet_schema

    if isinstance(source, io.BytesIO):  # memory is bounded only for files
        with NamedTemporaryFile(suffix=".parquet") as file:
            file.write(source.getvalue())
            file.flush()
            return _read_parquet(Path(file.name))
    batch = next(read_bounded(source, max_rows=_MAX_ROWS), None)
    return pa.Table.from_batches([batch] if batch is not None else [], read_parquet_schema(source))


def _read_csv(data: bytes) -> tuple[tuple[str, ...], pa.Table]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    encoding = "utf-8"
    lines = _complete_lines(data)
    try:
        text = lines.decode("utf-8-sig")
    except UnicodeDecodeError:
        encoding, text = "ISO-8859-1", lines.decode("latin-1")
    first = text.partition("\n")[0]
    separator = max(_SEPARATORS, key=first.count)
    rows = [
        row for row, _ in zip(csv.reader(io.StringIO(text), delimiter=separator), range(200), strict=False)
    ]
    header = bool(rows) and len(set(rows[0])) == len(rows[0]) and all(map(_is_column_name, rows[0]))
    names = rows[0] if header else [f"c{number + 1}" for number in range(len(rows[0]) if rows else 0)]
    body = rows[1:] if header else rows
    padded = {
        name: pa.string()
        for at, name in enumerate(names)
        if any(at < len(row) and _PADDED.fullmatch(row[at]) for row in body)
    }  # leading zeros mark an identifier, such as a postal code
    table = arrow_csv.read_csv(
        io.BytesIO(text.encode()),
        arrow_csv.ReadOptions(column_names=names, skip_rows=int(header)),
        arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        arrow_csv.ConvertOptions(column_types=padded, strings_can_be_null=True),
    )
    reader = ["kind: Csv", f"header: {'true' if header else 'false'}"]
    reader += [f"separator: {json.dumps(separator)}"] * (separator != ",")
    reader += [f"encoding: {encoding}"] * (encoding != "utf-8")
    return tuple(reader), table.slice(0, _MAX_ROWS)


def _is_column_name(text: str) -> bool:
    """Return whether a cell can be the name of a column."""
    return bool(text) and re.search(r"[^\W\d_]", text) is not None and not _TIME.fullmatch(text)


def _complete_lines(data: bytes) -> bytes:
    """Return the bytes up to the last complete line, if the file is longer than the sample."""
    return data if len(data) < _MAX_BYTES else data[: data.rfind(b"\n") + 1] or data


def _read_json_lines(data: bytes) -> pa.Table:
    lines = [line for line in _complete_lines(data).splitlines() if line.strip()][:_MAX_ROWS]
    return _objects_to_table([json.loads(line) for line in lines])


def _read_document(kind: str, data: bytes) -> tuple[tuple[str, ...], pa.Table]:
    if kind == "Json" and data.lstrip()[:1] == b"{":  # newline-delimited JSON with the suffix .json
        first = data.strip().partition(b"\n")
        if first[2] and _is_object(first[0]):
            return ("kind: NdJson",), _read_json_lines(data)
    found = json.loads(data)
    if kind == "GeoJson":
        return ("kind: GeoJson",), _objects_to_table(
            [_feature_row(each) for each in found["features"][:_MAX_ROWS]]
        )
    if isinstance(found, list):
        return ("kind: Json",), _objects_to_table(found[:_MAX_ROWS])
    path, rows = next(_find_lists(found, ()), ((), []))
    if not path:
        raise ValueError("the document has no list of objects")
    return ("kind: Json", f"subPath: {json.dumps('.'.join(path))}"), _objects_to_table(rows[:_MAX_ROWS])


def _feature_row(feature: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a GeoJSON feature as the reader returns them."""
    row = dict(feature.get("properties") or {})
    if feature.get("id") is not None and not any(name.casefold() == "id" for name in row):
        row["id"] = feature["id"]
    geometry = feature.get("geometry")
    return {**row, "geometry": None if geometry is None else json.dumps(geometry)}


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _find_lists(value: Any, path: tuple[str, ...]) -> Any:
    """Yield the lists of objects in a document, each with its path."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _find_lists(inner, (*path, name))


def _objects_to_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return objects as a table. Columns of ISO 8601 texts become dates or timestamps.

    Raises:
        ValueError: a row is not an object.
    """
    import pyarrow as pa

    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("not every row is an object")
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, pa.Array] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        texts = [value for value in values if value is not None]
        if texts and all(isinstance(each, str) and _TIME.fullmatch(each) for each in texts):
            kind = pa.date32() if all(len(each) == 10 for each in texts) else pa.timestamp("ms", "UTC")
            columns[name] = (
                pa.nulls(len(values), kind) if len(texts) < len(values) else _time_array(values, kind)
            )
        else:
            columns[name] = _to_array(values)
    return pa.table(columns)


def _time_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return placeholder times that differ where the values differ. Only their uniqueness is used."""
    import pyarrow as pa

    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    storage = pa.int32() if kind == pa.date32() else pa.int64()
    return pa.array([numbers[value] for value in values], storage).cast(kind)


def _to_array(values: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # mixed types: encoded as JSON
        return pa.array([None if each is None else json.dumps(each) for each in values], pa.string())


# --- Key, event time and types ---


def _describe(reader: tuple[str, ...], table: pa.Table, prepare: tuple[str, ...]) -> DetectedFile:
    import pyarrow as pa

    from odf_engine.data.ddl import to_ddl

    key, time = _find_key(table), _find_time(table)
    fields: list[pa.Field] = []
    for field in table.schema:
        kind = _readable_type(field.type)
        fields.append(pa.field(field.name, kind, nullable=field.name != key))
    columns = (
        None
        if reader == ("kind: Parquet",)
        else tuple(column.replace("TIMESTAMP(3)", "TIMESTAMP") for column in to_ddl(pa.schema(fields)))
    )
    return DetectedFile(reader, prepare, columns, key, time)


def _readable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the column in the schema of a reader."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(kind):
        return pa.timestamp("ms", "UTC")
    if types.is_null(kind) or types.is_time(kind) or types.is_duration(kind):
        return pa.string()
    if types.is_list(kind):
        return pa.list_(_readable_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, _readable_type(each.type)) for each in kind])
    return kind


def _find_key(table: pa.Table) -> str:
    """Return a column whose values are unique and not null: one with the name of a key, or the first."""
    from pyarrow import types

    def is_unique(name: str) -> bool:
        column = table[name]
        kind = column.type
        if not (types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)):
            return False
        return not column.null_count and len(column.unique()) == len(column) > 1

    names = table.column_names
    named = [name for name in names if re.search(r"(^|[_\W])(id|key|code|uuid|no|nr)$", name, re.IGNORECASE)]
    return next((name for name in dict.fromkeys([*named, *names[:1]]) if is_unique(name)), "")


def _find_time(table: pa.Table) -> tuple[str, bool]:
    from pyarrow import types

    for test, is_day in ((types.is_timestamp, False), (types.is_date, True)):
        for name in table.column_names:
            if test(table[name].type) and not table[name].null_count:
                return name, is_day
    return "", False


_YAML_WORDS: Final = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


def infer_manifest(location: str, folder: Path, name: str) -> str:
    """Return a manifest for a data file or a URL.

    The schema of a URL, and of a file that cannot be read, is an example.

    Args:
        location: path relative to the folder, or URL.
        folder: the workspace.
        name: name of the dataset.
    """
    if is_url(location):
        return _manifest_text(
            location, name, _example_file(location), "Example columns: replace them by those of the file."
        )
    try:
        return _manifest_text(location, name, detect_file(folder / Path(location).expanduser()), "")
    except Exception as error:  # decoders raise any error for damaged files
        why = " ".join(str(error).split())
        return _manifest_text(location, name, _example_file(location), f"Example columns: {why}")


def _example_file(location: str) -> DetectedFile:
    """Return an example for a file that cannot be read."""
    suffix, compression = split_extensions(location)
    kind = FORMATS.get(suffix, "Csv")
    reader = (f"kind: {kind}", "header: true") if kind == "Csv" else (f"kind: {kind}",)
    columns = None if kind == "Parquet" else ("id BIGINT NOT NULL", "name STRING")
    return DetectedFile(reader, decompression_lines(compression), columns)


def _manifest_text(location: str, name: str, found: DetectedFile, problem: str) -> str:
    return "\n".join(_manifest_lines(location, name, found, problem)) + "\n"


def _manifest_lines(location: str, name: str, found: DetectedFile, problem: str) -> list[str]:
    lines = [
        "kind: DatasetSnapshot",
        "version: 1",
        "content:",
        f"  name: {name}",
        "  kind: Root",
        "  metadata:",
    ]
    url = location if is_url(location) else f"file:{location}"
    lines += [
        "    - kind: SetPollingSource",
        "      # Each pull checks the file for changes. Paths are relative to the workspace folder.",
        "      fetch:", "        kind: Url", f"        url: {_yaml_scalar(url)}",
    ]  # fmt: skip
    if found.prepare:
        lines += ["      prepare:", *(f"        {line}" for line in found.prepare)]
    lines += [f"      # {problem}"] if problem else []
    if found.columns is not None and not problem:
        lines.append("      # Columns inferred from the first rows. Check them.")
    lines += ["      read:", *(f"        {line}" for line in found.reader)]
    if found.columns is not None:
        lines += ["        schema:", *(f"          - {_yaml_scalar(column)}" for column in found.columns)]
    lines += [*_preprocess_lines(found), *_merge_lines(found)]
    return [
        *lines,
        "    - kind: SetInfo",
        "      description: Describe the dataset in one sentence",
    ]


def _preprocess_lines(found: DetectedFile) -> list[str]:
    name, is_day = found.time
    if not name or name == "event_time":
        return []
    quoted = "`" + name.replace("`", "``") + "`"  # the name may be a keyword of SQL
    rest = f"CAST({quoted} AS TIMESTAMP) AS event_time, *"
    what = rest if is_day else f"{quoted} AS event_time, * EXCEPT ({quoted})"
    return [
        "      # The event time of each row.",
        "      preprocess:", "        kind: Sql", "        engine: spark",
        f"        query: {_yaml_scalar(f'SELECT {what} FROM input')}",
    ]  # fmt: skip


def _merge_lines(found: DetectedFile) -> list[str]:
    lines = [
        "      # Merge strategies:",
        "      #   Append    every row is new",
        "      #   Ledger    rows with a new key are added",
        "      #   Snapshot  the complete list each time; differences become retractions and corrections",
        "      merge:",
    ]
    if not found.key or found.key == found.time[0]:
        return [*lines, "        kind: Append"]
    kind = "Ledger" if found.time[0] else "Snapshot"
    return [*lines, f"        kind: {kind}", f"        primaryKey: [{_yaml_scalar(found.key)}]"]


def _yaml_scalar(text: str) -> str:
    """Return a text as a YAML scalar, quoted if necessary."""
    plain = (
        text.lower() not in _YAML_WORDS
        and re.fullmatch(r"[A-Za-z_][\w ./:()<>*-]*", text, re.ASCII)
        and ": " not in text
        and text[-1] not in ": "
    )
    return text if plain else json.dumps(text, ensure_ascii=False)
