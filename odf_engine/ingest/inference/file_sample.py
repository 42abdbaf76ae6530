"""Data files: finds them, and reads their first rows, from the disk or a server, to infer a manifest."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import combinations, islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from odf_engine.base.arrow import pa
from odf_engine.base.config import FetchConfig
from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import Reporter, count_of
from odf_engine.base.settings import load_workspace
from odf_engine.data.arrow_compute import python_rows
from odf_engine.data.parquet.parquet_reader import (
    open_parquet,
    parquet_errors,
    read_bounded,
    read_parquet_schema,
)
from odf_engine.data.zip_archive import ARCHIVE_ERRORS, ZipArchive
from odf_engine.errors import BadData, has_surrogates
from odf_engine.filters.json_filter import find_items
from odf_engine.ingest.inference.archive_members import (
    data_files,
    is_visible,
    open_archive,
    suffix_of,
)
from odf_engine.ingest.inference.file_conversion import (
    FORMATS,
    SHEETS,
    Conversion,
    converted_beginning,
    find_conversion,
    is_workbook,
    items_conversion,
    json_conversion,
    listed,
    members_conversion,
)
from odf_engine.ingest.inference.file_inference import (
    MAX_ROWS,
    TIME_NAME,
    FileChoices,
    InferredColumn,
    InferredFile,
    UnreadableRow,
    infer_csv,
    infer_rows,
    parsed_text,
)
from odf_engine.ingest.inference.pagination import ListPaging, find_paging
from odf_engine.ingest.read.dbf import DbfTable
from odf_engine.ingest.read.file_kind import reject_binary, sniff_kind
from odf_engine.net.urls import is_url

if TYPE_CHECKING:
    from odf_engine.ingest.read import file_download
else:
    file_download = LazyModule("odf_engine.ingest.read.file_download")  # imports network libraries

SKIPPED: Final = {".odf", ".git", "node_modules", ".venv", "__pycache__"}
_SUFFIXES: Final = (
    *(FORMATS.keys() - {".txt", ".xml"}), ".csv.gz", ".json.gz", ".ndjson.gz", ".zip", ".tar.gz", ".tgz",
    ".csv.bz2", ".csv.xz", ".csv.zst",
)  # fmt: skip
MAX_FILES: Final = 200
_DEPTH: Final = 4
_MAX_BYTES: Final = 8 << 20
_MAX_DOCUMENT: Final = 64 << 20
"""Size limit of files that can only be read completely: JSON documents, archives and Parquet."""
_MAX_LINES: Final = 10_000
_SNIFFED_BYTES: Final = 1 << 12
_HEAD_BYTES: Final = 4096
_FEATURES: Final = re.compile(rb'"type"\s*:\s*"FeatureCollection"')
_WHOLE: Final = ("Json", "GeoJson", "Parquet")
_ZIP: Final = b"PK\x03\x04"
_GZIP: Final = b"\x1f\x8b"


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
            if len(found) >= MAX_FILES:
                return found
    return found


class FileSample(msgspec.Struct, frozen=True):
    """The beginning of a data file.

    Attributes:
        kind: kind of its read step.
        compression: ``Gzip``, ``Zip`` or empty.
        entry: the file in the archive.
        data: the first bytes; empty for a file with ``rows``.
        complete: whether the sample is the complete file.
        rows: the rows of a format that is not text.
        schema: their columns.
        filters: the arguments of each ``odf filter`` that wrote the data, in order.
        evidence: why the file needs the filters, or why this entry of the archive was chosen.
        url: the URL of the file, or "" for a local file.
        paging: the arguments of ``odf/pages`` after ``--url`` for a list in pages, whose items are the data.
    """

    kind: str
    compression: str = ""
    entry: str = ""
    data: bytes = b""
    complete: bool = True
    rows: Sequence[Mapping[str, Any]] | None = None
    schema: pa.Schema | None = None
    filters: tuple[tuple[str, ...], ...] = ()
    evidence: tuple[str, ...] = ()
    url: str = ""
    paging: tuple[str, ...] = ()


def split_extensions(location: str) -> tuple[str, str]:
    """Return the suffixes of the format and of the compression (``.gz``, ``.zip``); empty if missing."""
    path = PurePosixPath(urlsplit(location).path if "://" in location else location)
    compression = path.suffix.lower() if path.suffix.lower() in (".gz", ".zip") else ""
    return (PurePosixPath(path.stem).suffix if compression else path.suffix).lower(), compression


def load_sample(location: str, folder: Path, reporter: Reporter, home: str = "") -> FileSample:
    """Read the beginning of a file or URL; relative paths start at the workspace folder.

    Args:
        location: the path or URL.
        folder: the workspace folder.
        reporter: cancels the reading.
        home: the URL of the document that names the location, or "" if the user named it.

    Raises:
        OdfError: as in :func:`read_sample` and :func:`download_sample`.
        OSError: the file cannot be read.
    """
    if is_url(location):
        return download_sample(location, load_workspace(folder / ".odf").fetch, reporter, home)
    return read_sample(folder / Path(location).expanduser(), location, reporter)


def read_sample(
    path: Path, name: str, reporter: Reporter, entry: str = "", members: Sequence[str] = ()
) -> FileSample:
    """Read the beginning of a local file.

    Args:
        path: the file.
        name: a path or URL; its suffix determines the format.
        reporter: its cancellation ends the reading.
        entry: the file in the archive, or "" for the first data file.
        members: patterns of the files in the archive that are the rows, in place of an entry.

    Raises:
        BadData: the file is damaged, or too large to be inspected.
        OSError: it cannot be read.
    """
    suffix, compression = split_extensions(name)
    try:
        if members:
            return _members_sample(path, name, members, reporter)
        with path.open("rb") as file:
            head = file.read(_SNIFFED_BYTES)
            is_archive = head.startswith(_ZIP) and not is_workbook(file)
        if compression == ".zip" or is_archive:
            return _zip_sample(path, reporter, entry)
        if compression == ".gz" or head.startswith(_GZIP):
            with gzip.open(path) as file:
                return _stream_sample(suffix, cast("BinaryIO", file), "Gzip", "", reporter)
        if FORMATS.get(suffix, "") == "Parquet" or sniff_kind(head) == "Parquet":
            return _parquet_sample(path, "", "")
        with path.open("rb") as file:
            return _stream_sample(suffix, file, "", "", reporter, reject=lambda: reject_binary(path, name))
    except ARCHIVE_ERRORS as error:
        raise BadData(f"the archive cannot be read: {error}", where=name) from None
    except BadData as error:
        error.where = error.where or name
        raise


def _members_sample(path: Path, name: str, patterns: Sequence[str], reporter: Reporter) -> FileSample:
    """Read the beginning of the members of an archive that are one table.

    Raises:
        BadData: a pattern matches no member, or the members are not one table.
    """
    with open_archive(path) as archive:
        for pattern in patterns:
            if not archive.match([pattern]):
                raise BadData(
                    f"no member of the archive matches '{pattern}'",
                    where=name,
                    hint=f"choose one of {listed([member.name for member in archive.data])}",
                )
        members = sorted(archive.match(patterns))
        archive.require_one_table(members)
    names = [member.name for member in members]
    if suffix_of(names[0]) not in FORMATS:
        raise BadData(f"{names[0]} is not a data file", where=name, hint="choose another member")
    with path.open("rb") as file:
        conversion = members_conversion(names, patterns)
        return _stream_sample(suffix_of(names[0]), file, "", "", reporter, conversion=conversion)


def _stream_sample(
    suffix: str,
    stream: BinaryIO,
    compression: str,
    entry: str,
    reporter: Reporter,
    *,
    conversion: Conversion | None = None,
    reject: Callable[[], None] = lambda: None,
) -> FileSample:
    """Read the beginning of a file, through a filter if no reader can read it.

    Args:
        suffix: the suffix of the file name.
        compression: ``Gzip``, ``Zip`` or "".
        entry: the path in the archive, or "".
        stream: the file.
        reporter: its cancellation ends the reading.
        conversion: the filter, or None to find it.
        reject: raises an error if a file that no filter can convert has no format of a reader.
    """
    conversion = conversion or find_conversion(stream)
    if conversion is None:
        reject()
        kind = FORMATS.get(suffix) or sniff_kind(stream.read(_SNIFFED_BYTES))
        stream.seek(0)
        return _text_sample(kind, stream.read, compression, entry, reporter)
    data, complete = converted_beginning(stream, conversion, _MAX_BYTES)
    kind = conversion.kind or FORMATS.get(suffix) or sniff_kind(data)
    if kind in _WHOLE and not complete:
        data, complete = converted_beginning(stream, conversion, _MAX_DOCUMENT)
    sample = _text_sample(kind, io.BytesIO(data).read, compression, entry, reporter)
    return msgspec.structs.replace(
        sample,
        complete=complete and sample.complete,
        filters=(conversion.filter,),
        evidence=(conversion.evidence,),
    )


def _text_sample(
    kind: str, read: Callable[[int], bytes], compression: str, entry: str, reporter: Reporter
) -> FileSample:
    limit = _MAX_DOCUMENT if kind in _WHOLE else _MAX_BYTES
    pieces: list[bytes] = []
    size = 0
    while size <= limit and (piece := read(min(1 << 20, limit + 1 - size))):
        reporter.raise_if_cancelled()
        pieces.append(piece)
        size += len(piece)
    data = b"".join(pieces)
    if kind == "Parquet":
        with TemporaryDirectory() as folder:
            path = Path(folder) / "file.parquet"
            path.write_bytes(data)
            return _parquet_sample(path, compression, entry)
    if size > limit:
        if kind in _WHOLE and not _starts_with_object_lines(data):
            raise BadData(f"too large to be inspected: more than {limit:,} bytes")
        data = data[:limit]
    return FileSample(kind, compression, entry, data, size <= limit)


def _zip_sample(path: Path, reporter: Reporter, member: str) -> FileSample:
    with ZipArchive(path) as archive:
        entries = [entry for entry in archive.infolist() if not entry.filename.startswith("__MACOSX/")]
        entries = [entry for entry in entries if not member or entry.filename == member]
        for entry in entries:
            if entry.filename.lower().endswith(".shp"):
                return _shapefile_sample(archive, entry.filename)
        names = {entry.filename for entry in entries if is_visible(entry.filename)}
        names = set(data_files(sorted(names))) if not member else {member}
        data = [entry for entry in entries if entry.filename in names]
        if not data:
            if member:
                raise BadData(f"the archive has no member '{member}'", hint="choose a member again")
            raise BadData("the archive has no CSV, JSON, XML, Parquet, spreadsheet or shapefile")
        if len(data) > 1:
            with open_archive(path) as opened:
                groups = opened.groups()
            if groups and len(groups[0][1]) == len(data):
                return _members_sample(path, path.name, [groups[0][0]], reporter)
            raise BadData(
                f"the archive has {len(data)} data files: {listed(sorted(names))}",
                hint="choose one, or a pattern: odf new --from ARCHIVE --member NAME",
            )
        suffix = suffix_of(data[0].filename)
        with archive.open(data[0]) as file:
            return _stream_sample(suffix, cast("BinaryIO", file), "Zip", data[0].filename, reporter)


def _parquet_sample(path: Path, compression: str, entry: str) -> FileSample:
    try:
        schema, rows = read_parquet_schema(path), []
        for batch in read_bounded(path, stop=MAX_ROWS):
            rows += python_rows(batch)
        with open_parquet(path) as file:
            complete = file.metadata.num_rows <= MAX_ROWS
    except (*parquet_errors(), pa.ArrowException) as error:
        raise BadData(f"the file cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    return FileSample("Parquet", compression, entry, complete=complete, rows=rows, schema=schema)


def _shapefile_sample(archive: zipfile.ZipFile, name: str) -> FileSample:
    """Read the attributes of a shapefile. Its geometries are not read."""
    stem = name[:-4].lower()
    parts = {each[-4:].lower(): each for each in archive.namelist() if each[:-4].lower() == stem}
    if ".dbf" not in parts:
        raise BadData("missing .dbf file in the archive", where=name)
    if archive.getinfo(parts[".dbf"]).file_size > _MAX_DOCUMENT:
        raise BadData(f"too large to be inspected: more than {_MAX_DOCUMENT:,} bytes", where=name)
    code_page = archive.read(parts[".cpg"]).decode("latin-1") if ".cpg" in parts else None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.dbf"
        path.write_bytes(archive.read(parts[".dbf"]))
        table = DbfTable.open(path, parts[".dbf"], code_page)
        schema = pa.schema(
            [(column.name, column.type) for column in table.columns if column.type is not None]
        )
        names = [column.name for column in table.columns]
        found = (dict(zip(names, row, strict=True)) for row in table.rows() if row is not None)
        rows = [{each: row[each] for each in schema.names} for row in islice(found, MAX_ROWS)]
    schema = schema.append(pa.field("geometry", pa.string()))
    complete = table.count <= MAX_ROWS
    return FileSample("EsriShapefile", "", name, complete=complete, rows=rows, schema=schema)


def download_sample(url: str, config: FetchConfig, reporter: Reporter, home: str = "") -> FileSample:
    """Read the beginning of a file on a server. Only as much as needed is downloaded.

    Args:
        url, config, reporter, home: as in :func:`~odf_engine.ingest.read.file_download.download_chunks`.

    Raises:
        SourceUnavailable: the server does not respond, or refuses.
        BadData: as in :func:`read_sample`.
        Unsupported: the scheme of the URL is unknown.
        Cancelled: immediately.
    """
    suffix, compression = split_extensions(url)
    whole = compression == ".zip" or FORMATS.get(suffix) in _WHOLE or suffix in SHEETS
    limit = (_MAX_DOCUMENT if whole else _MAX_BYTES) + 1
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sample"
        with path.open("wb") as file:
            for piece in file_download.download_chunks(url, limit, config, reporter, home):
                reporter.raise_if_cancelled()
                file.write(piece)
        if path.stat().st_size >= limit and whole:
            raise BadData(f"too large to be inspected: more than {_MAX_DOCUMENT:,} bytes", where=url)
        if compression == ".gz" and path.stat().st_size >= limit:
            path = _gunzip_start(path, suffix)
            sample = read_sample(path, path.name, reporter)
            return msgspec.structs.replace(sample, compression="Gzip", complete=False)
        return msgspec.structs.replace(read_sample(path, url, reporter), url=url)


def _gunzip_start(path: Path, suffix: str) -> Path:
    """Decompress the beginning of a truncated file; return the new file."""
    target = path.with_name(f"start{suffix}")
    with gzip.open(path) as source, target.open("wb") as file, suppress(EOFError):
        while file.tell() <= _MAX_BYTES:
            file.write(source.read(1 << 16))
    return target


_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig", ""),
    (codecs.BOM_UTF32_LE, "utf-32", "utf-32"),  # has the same prefix as the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32", "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "utf-16"),
)
ENCODINGS: Final = ("utf-8", "windows-1252", "ISO-8859-1", "ISO-8859-15", "utf-16", "cp437", "cp850",
    "windows-1250", "windows-1251", "shift_jis", "gb18030")  # fmt: skip
"""Encodings that a user can choose."""


class _Text(NamedTuple):
    text: str
    encoding: str  # for the manifest
    bad_lines: Sequence[int]


def _decode(sample: FileSample, chosen: str | None) -> _Text:
    """Decode a sample. Lines that the encoding cannot decode are decoded as Windows-1252.

    Raises:
        BadData: the file is not text.
    """
    data = sample.data
    codec, encoding = _find_encoding(data, chosen)
    if codec in ("utf-8", "utf-8-sig"):
        data = data.removeprefix(codecs.BOM_UTF8)
        if not sample.complete:
            data = data[: data.rfind(b"\n") + 1] or data
        try:
            return _Text(data.decode(), encoding, ())
        except UnicodeDecodeError:
            pass
        lines = data.split(b"\n")
        bad = [number for number, line in enumerate(lines, 1) if not _is_utf8(line)]
        plain = sum(line.isascii() for line in lines)
        if chosen is not None or len(lines) - plain > 2 * len(bad):  # a few lines are damaged
            texts = [line.decode("cp1252" if not _is_utf8(line) else "utf-8", "replace") for line in lines]
            return _Text("\n".join(texts), encoding, bad)
        codec, encoding = _legacy_encoding(data)
    try:
        text = codecs.getincrementaldecoder(codec)("replace").decode(data, final=sample.complete)
    except LookupError:
        raise BadData(f"unknown encoding: {codec}", hint=f"use one of {', '.join(ENCODINGS)}") from None
    if not sample.complete:
        text = text[: text.rfind("\n") + 1] or text
    bad = [number for number, line in enumerate(text.split("\n"), 1) if "\ufffd" in line]
    return _Text(text, encoding, bad)


def _find_encoding(data: bytes, chosen: str | None) -> tuple[str, str]:
    """Return the codec, and the encoding for the manifest, which is empty for UTF-8."""
    if chosen:
        return ("utf-8", "") if chosen.lower() in ("utf-8", "utf8") else (chosen, chosen)
    for mark, codec, encoding in _MARKS:
        if data.startswith(mark):
            return codec, encoding
    head = data[:_HEAD_BYTES]
    if head.count(0) > len(head) // 4:
        return ("utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"), "utf-16"
    if head.count(0):
        raise BadData("not a text file", hint="choose a CSV, JSON, GeoJSON, Parquet or shapefile")
    return "utf-8", ""


def _legacy_encoding(data: bytes) -> tuple[str, str]:
    has_control = any(0x80 <= byte <= 0x9F for byte in set(data))
    return ("cp1252", "windows-1252") if has_control else ("latin-1", "ISO-8859-1")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def infer_file(sample: FileSample, choices: FileChoices, reporter: Reporter) -> InferredFile:
    """Infer format and columns of a sample.

    Raises:
        BadData: it has no rows, or is not in its format.
        Cancelled: the reporter was cancelled.
    """
    if sample.rows is not None:
        rows = list(enumerate(sample.rows, 1))
        found = infer_rows(
            sample.kind, rows, choices, reporter, schema=sample.schema, complete=sample.complete
        )
        found = msgspec.structs.replace(found, compression=sample.compression, entry=sample.entry)
        return _with_key(found, choices)
    if sample.kind == "Json" and (converted := _converted_items(sample)) is not None:
        return infer_file(converted, choices, reporter)
    is_utf8 = bool(sample.filters) and sample.filters[-1][0] != "unpack"
    decoded = _decode(sample, "utf-8" if is_utf8 else choices.encoding)
    lines = decoded.text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    kind, sub_path = sample.kind, ""
    if kind == "Json" and _starts_with_object_lines(sample.data):  # despite the suffix
        kind = "NdJson"
    if kind == "Json" and _FEATURES.search(sample.data[:_HEAD_BYTES]):
        kind = "GeoJson"
    if kind == "Csv":
        found = infer_csv(decoded.text, choices, reporter, encoding=decoded.encoding,
                          damaged=decoded.bad_lines, complete=sample.complete)  # fmt: skip
    elif kind in ("NdJson", "NdGeoJson"):
        objects, bad = _parse_lines(lines, kind, reporter)
        is_untyped = bool(sample.filters) and sample.filters[-1][0] == "xml"
        found = infer_rows(kind, objects, choices, reporter, bad_rows=bad, complete=sample.complete,
                           is_untyped=is_untyped)  # fmt: skip
    else:
        sub_path, values = _find_objects(decoded.text, kind)
        objects = [(number, value) for number, value in enumerate(values, 1) if isinstance(value, dict)]
        bad = [UnreadableRow(number, "not an object") for number, value in enumerate(values, 1)
               if not isinstance(value, dict)]  # fmt: skip
        if bad and len(bad) >= len(objects):
            raise BadData("not every row is an object")
        found = infer_rows(kind, objects, choices, reporter, bad_rows=bad)
    filters = (*sample.filters, *found.filters)
    if filters and filters[-1][0] == "sheet" and found.header:
        filters = (*filters[:-1], filters[-1][:-1])  # without --all-rows
    found = msgspec.structs.replace(
        found,
        compression=sample.compression,
        entry=sample.entry,
        sub_path=sub_path,
        filters=filters,
        paging=sample.paging,
        evidence=(*sample.evidence, *found.evidence),
        encoding=decoded.encoding,
        lines=[line.rstrip("\r") for line in lines[:_MAX_LINES]],
    )
    return _with_key(found, choices)


def _converted_items(sample: FileSample) -> FileSample | None:
    """Return the items of a JSON document that is a page, or that only a filter can read, or None."""
    try:
        document = json.loads(sample.data) if sample.complete else None
    except (ValueError, RecursionError):
        return None
    conversion = json_conversion(document)
    paging = _paging_of(sample, document, conversion)
    if paging is not None:
        path = paging.arguments[1] if paging.arguments[0] == "--items" else ""
        conversion = items_conversion(path)
    if conversion is None:
        return None
    data, complete = converted_beginning(io.BytesIO(sample.data), conversion, _MAX_DOCUMENT)
    sample = msgspec.structs.replace(sample, kind=conversion.kind, data=data, complete=complete)
    if paging is not None:
        evidence = (*sample.evidence, paging.evidence)
        return msgspec.structs.replace(sample, paging=paging.arguments, evidence=evidence, complete=False)
    return msgspec.structs.replace(
        sample,
        filters=(*sample.filters, conversion.filter),
        evidence=(*sample.evidence, conversion.evidence),
    )


def _paging_of(sample: FileSample, document: Any, conversion: Conversion | None) -> ListPaging | None:
    """Return the paging of a document from a server, or None if it is complete."""
    if not sample.url or sample.compression or sample.filters:
        return None
    path = conversion.filter[-1] if conversion is not None and len(conversion.filter) > 1 else ""
    if not path and isinstance(document, dict):
        path = ".".join(next(_find_lists(document, ()), ((), []))[0])
    try:
        items = find_items(document, path)
    except BadData:
        return None
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    return find_paging(document, sample.url, path, len(items))


def _starts_with_object_lines(data: bytes) -> bool:
    """Return whether the first of several lines is an object."""
    first, end, _ = data.strip().partition(b"\n")
    try:
        return bool(end) and first[:1] == b"{" and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _parse_lines(
    lines: Sequence[str], kind: str, reporter: Reporter
) -> tuple[list[tuple[int, dict[str, Any]]], list[UnreadableRow]]:
    objects: list[tuple[int, dict[str, Any]]] = []
    bad: list[UnreadableRow] = []
    for number, line in enumerate(lines, 1):
        if len(objects) > MAX_ROWS:
            break
        if number % 1000 == 0:
            reporter.raise_if_cancelled()
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            objects.append((number, _feature_row(value) if kind == "NdGeoJson" else _object(value)))
        except (ValueError, RecursionError) as error:
            bad.append(UnreadableRow(number, f"invalid JSON: {error}"))
    if len(bad) > len(objects):
        raise BadData(f"the file cannot be read as {kind}: line {bad[0].line}: {bad[0].reason}")
    return objects, bad


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _find_objects(text: str, kind: str) -> tuple[str, Sequence[Any]]:
    """Return the path and the objects of the first list in a JSON document."""
    try:
        found = json.loads(text)
        if kind == "GeoJson":
            return "", [_feature_row(each) for each in _object(found)["features"][:MAX_ROWS]]
        if isinstance(found, list):
            return "", found[:MAX_ROWS]
        path, rows = next(_find_lists(found, ()), ((), []))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"the file cannot be read as {kind}: {str(error).splitlines()[0]}") from None
    if not path:
        raise BadData("the document has no list of objects")
    return ".".join(path), rows[:MAX_ROWS]


def _find_lists(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Yield the lists of objects in a document, each with its path."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _find_lists(inner, (*path, name))


def _feature_row(feature: Any) -> dict[str, Any]:
    """Return the columns of a GeoJSON feature as the reader returns them.

    Raises:
        ValueError: it is not an object.
    """
    feature = _object(feature)
    row = dict(feature.get("properties") or {})
    if feature.get("id") is not None and not any(name.casefold() == "id" for name in row):
        row["id"] = feature["id"]
    geometry = feature.get("geometry")
    return {**row, "geometry": None if geometry is None else json.dumps(geometry)}


_KEY_NAME: Final = re.compile(r"(?i)(^|[_\W])(id|key|code|uuid|guid|no|nr|number)$|[a-z]Id$")
_KEY_TYPES: Final = ("STRING", "BIGINT", "INT", "DATE", "TIMESTAMP", "UUID")
_MAX_KEY_COLUMNS: Final = 8
_LONG_TEXT: Final = 60


def _with_key(found: InferredFile, choices: FileChoices) -> InferredFile:
    """Return the file with event time, key and merge strategy."""
    time = _find_time(found.columns) if choices.time is None else choices.time
    if found.column(time) is None:
        time = ""
    if choices.key is None:
        key, reason = _find_key(found, time)
    else:
        key = tuple(each for each in choices.key if found.column(each) is not None)
        repeated = _first_repeated(found, key) if key else None
        rows = count_of(len(found.rows), "row")
        reason = f"unique in {rows}" if repeated is None else f"NOT unique: {repeated} occurs more than once"
    merge = choices.merge or ("Append" if not key else "Ledger" if time else "Snapshot")
    return msgspec.structs.replace(
        found,
        time=time,
        key=key,
        merge=merge if key else "Append",
        reason=reason,
        is_forecast=_is_forecast(found, time),
    )


def _is_forecast(found: InferredFile, time: str) -> bool:
    """Return whether most event times are later than today, in UTC."""
    column = found.column(time)
    if column is None:
        return False
    place, today = found.columns.index(column), datetime.now(UTC).date().isoformat()
    epoch = {"epoch s": 1, "epoch ms": 1000}.get(column.form)
    later = 0
    for _, row in found.rows:
        value = row[place]
        if value is None or value in column.invalid:
            continue
        if epoch is None:
            later += parsed_text(value, column)[: len(today)] > today
        else:
            later += float(value) / epoch > datetime.now(UTC).timestamp()
    return 2 * later > len(found.rows)


def _find_time(columns: Sequence[InferredColumn]) -> str:
    """Return the column with the event time: a timestamp, else a date, without nulls, or "" for none."""
    complete = [column for column in columns if not column.nulls]
    for kind in ("TIMESTAMP", "DATE"):
        found = [each.name for each in complete if each.type.startswith(kind)]
        named = [each for each in found if TIME_NAME.search(each)]
        exact = [each for each in found if each.lower() == "event_time"]
        if found:
            return (exact or named or found)[0]
    return ""


def _find_key(found: InferredFile, time: str) -> tuple[tuple[str, ...], str]:
    """Return the columns that identify a row, and the reason."""
    rows = count_of(len(found.rows), "row") + ("" if found.complete else " at the beginning of the file")
    columns = [
        column
        for column in found.columns
        if column.type.partition("(")[0] in _KEY_TYPES
        and not column.nulls
        and all(len(example) <= _LONG_TEXT for example in column.examples)
    ]
    names = [column.name for column in columns]
    named = [each for each in names if _KEY_NAME.search(each)]
    first = [column.name for column in columns[:1] if column.name == found.columns[0].name]
    times = [each for each in names if each == time]
    texts = [column.name for column in columns if column.type == "STRING"]
    if len(found.rows) < 2:
        return (), "one row does not show what identifies a row"
    for name in dict.fromkeys((*named, *first, *times, *texts)):
        if _first_repeated(found, (name,)) is None:
            return (name,), f"unique in {rows}"
    repeated = _first_repeated(found, [column.name for column in found.columns])
    if repeated is None:
        usable = list(dict.fromkeys((*times, *named, *texts, *names)))[:_MAX_KEY_COLUMNS]
        for number in (2, 3):
            for key in combinations(usable, number):
                if _first_repeated(found, key) is None:
                    return key, f"unique together in {rows}"
        return (), f"no key of up to 3 columns is unique in {rows}"
    return (), f"no key: a row occurs more than once in {rows}"


def _first_repeated(found: InferredFile, key: Sequence[str]) -> str | None:
    """Return the first value of a key that occurs twice, or None if all are different."""
    at = [place for place, column in enumerate(found.columns) if column.name in key]
    seen: set[tuple[str | None, ...]] = set()
    invalid = {each.line for each in found.bad_rows}
    for line, row in found.rows:
        if line in invalid:
            continue
        value = tuple(row[place] for place in at)
        if value in seen:
            return ", ".join(each if each is not None else "null" for each in value)[:_LONG_TEXT]
        seen.add(value)
    return None
