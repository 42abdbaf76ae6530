"""Conversion of zipped ESRI shapefiles to JSON lines with GeoJSON geometry."""

from __future__ import annotations

import fnmatch
import json
import re
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from odf_engine.base.progress import Reporter, count_of
from odf_engine.data.zip_archive import ZipArchive
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.ingest.prep_step import ZIP_ERRORS, PrepareLimits, is_disk_error
from odf_engine.ingest.read.dbf import DbfTable

if TYPE_CHECKING:
    import shapefile

GEOMETRY: Final = "geometry"
_CHUNK: Final = 1 << 18
_SHAPE_HEADER: Final = struct.Struct(">ii")
_FILE_HEADER: Final = 100
_WORD: Final = 2
_HEIGHTS: Final = (11, 13, 15, 18)
_MEASURES: Final = (21, 23, 25, 28)
_MAX_NAMES: Final = 10
_DEGREES: Final = re.compile(r'^\s*GEOGCS\s*\[\s*"[^"]*(WGS[_ ]?(19)?84|CRS84)[^"]*"', re.IGNORECASE)
_NAME: Final = re.compile(r'^\s*\w+\s*\[\s*"([^"]*)"')


@dataclass(frozen=True)
class ShapeLines:
    """A shapefile, converted to JSON lines.

    Attributes:
        path: one JSON object per line, with all values as text.
        name: name of the .shp file in messages.
        columns: the columns of the .dbf file, and the geometry.
        deleted: numbers, from 1, of the records that are marked as deleted and have no line.
    """

    path: Path
    name: str
    columns: pa.Schema
    deleted: tuple[int, ...]

    def record(self, line: int) -> int:
        """Return the number of the record of a line, both from 1."""
        for deleted in self.deleted:
            line += deleted <= line
        return line


def shapefile_to_lines(
    path: Path,
    name: str,
    sub_path: str | None,
    job: Path,
    reporter: Reporter,
    limits: PrepareLimits | None = None,
) -> ShapeLines:
    """Convert the shapefile in a zip archive to JSON lines.

    Args:
        path: the archive.
        name: its name in messages.
        sub_path: name or glob of the .shp file, or None if there is only one.
        job: folder for temporary files; the caller removes it.
        reporter: receives warnings, and cancels the conversion.
        limits: for unpacking.

    Raises:
        BadData: the archive has no shapefile or several, or a file is missing, damaged, truncated, or
            inconsistent with the others.
        InvalidSchema: two columns have the same name.
    """
    folder = Path(tempfile.mkdtemp(prefix="shapefile-", dir=job))
    with _open(path, name) as archive:
        chosen = _choose(archive, sub_path, name)
        parts = {
            kind: _unpack(archive, entry, folder / f"part{kind}", name, reporter, limits or PrepareLimits())
            for kind, entry in _siblings(archive, chosen).items()
        }
    shp_name = f"{name}/{chosen}"
    if ".dbf" not in parts:
        raise BadData(
            "missing .dbf file in the archive",
            where=shp_name,
            hint="add the .dbf file with the same name as the .shp file",
        )
    _check_projection(parts.get(".prj"), shp_name, reporter)
    code_page = parts[".cpg"].read_text("latin-1") if ".cpg" in parts else None
    table = DbfTable.open(parts[".dbf"], re.sub(r"(?i)\.shp$", ".dbf", shp_name), code_page)
    if table.guessed:
        reporter.log(f"{table.name}: no encoding declared, using {table.encoding}", "warning")
    columns = _columns(table, reporter)
    lines = folder / "lines"
    deleted = _write(table, columns, parts[".shp"], shp_name, lines, reporter)
    for part in parts.values():
        part.unlink()
    return ShapeLines(lines, shp_name, columns, deleted)


def _open(path: Path, name: str) -> zipfile.ZipFile:
    try:
        return ZipArchive(path)
    except BadData as error:
        error.where = name
        raise
    except zipfile.BadZipFile:
        with path.open("rb") as file:
            is_zip = file.read(4) == b"PK\x03\x04"
        raise BadData(
            "truncated zip archive" if is_zip else "not a zip archive",
            where=name,
            hint=(
                "check the fetched file; shapefiles must be zip archives and must not be"
                " decompressed in `prepare`"
            ),
        ) from None
    except ZIP_ERRORS as error:
        if is_disk_error(error):
            raise
        raise BadData(f"damaged zip archive: {error}", where=name, hint="fetch the archive again") from None


def _choose(archive: zipfile.ZipFile, sub_path: str | None, name: str) -> str:
    """Return the name of the .shp file to read.

    Raises:
        BadData: the archive has no or several such files.
    """
    names = [file for file in archive.namelist() if _suffix(file) == ".shp" and "__MACOSX/" not in file]
    matches = names
    if sub_path is not None:
        exact = [file for file in names if file == sub_path]
        matches = exact or [file for file in names if fnmatch.fnmatchcase(file, sub_path)]
    if len(matches) == 1:
        return matches[0]
    there = names if names else [file for file in archive.namelist() if not file.endswith("/")]
    listed = ", ".join(there[:_MAX_NAMES]) + (", …" if len(there) > _MAX_NAMES else "")
    wanted = f" matching subPath '{sub_path}'" if sub_path is not None else ""
    if not matches:
        raise BadData(
            f"the archive has no .shp file{wanted}",
            where=name,
            hint=f"files in the archive: {listed or 'nothing'}",
        )
    raise BadData(
        f"the archive has {len(matches)} .shp files{wanted}",
        where=name,
        hint=f"set read.subPath to one of: {', '.join(matches[:_MAX_NAMES])}",
    )


def _siblings(archive: zipfile.ZipFile, chosen: str) -> dict[str, zipfile.ZipInfo]:
    """Return the files of a shapefile by suffix. Names are compared ignoring case."""
    stem = str(PurePosixPath(chosen).with_suffix("")).casefold()
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        path = PurePosixPath(entry.filename)
        suffix = _suffix(entry.filename)
        if suffix in (".shp", ".dbf", ".prj", ".cpg") and str(path.with_suffix("")).casefold() == stem:
            entries[suffix] = entry
    return {**entries, ".shp": archive.getinfo(chosen)}


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _unpack(
    archive: zipfile.ZipFile,
    entry: zipfile.ZipInfo,
    target: Path,
    name: str,
    reporter: Reporter,
    limits: PrepareLimits,
) -> Path:
    max_bytes = min(limits.most_bytes, max(limits.ratio_from, limits.most_ratio * entry.compress_size))
    size = 0
    try:
        with archive.open(entry) as source, target.open("wb") as file:
            while chunk := source.read(_CHUNK):
                reporter.raise_if_cancelled()
                size += len(chunk)
                if size > max_bytes:
                    raise BadData(
                        f"decompression bomb suspected: {entry.filename} has more than {max_bytes:,} bytes",
                        where=name,
                        hint="if the file is valid, increase prepare.mostBytes or prepare.mostRatio",
                    )
                file.write(chunk)
    except ZIP_ERRORS as error:
        if is_disk_error(error):
            raise
        raise BadData(
            f"{entry.filename} cannot be extracted: {error}", where=name, hint="fetch the archive again"
        ) from None
    return target


def _check_projection(path: Path | None, name: str, reporter: Reporter) -> None:
    """Warn if the coordinates are not known to be WGS 84. They are not converted."""
    if path is None:
        reporter.warn(f"{name}: no .prj file, the coordinate system is unknown", "coordinates")
        return
    text = path.read_text("utf-8", errors="replace")
    if _DEGREES.match(text) is None:
        match = _NAME.match(text)
        system = match[1] if match is not None else text.strip()[:60]
        text = f"{name}: coordinates are in '{system}' (.prj), not WGS 84; not converted"
        reporter.warn(text, "coordinates")


def _columns(table: DbfTable, reporter: Reporter) -> pa.Schema:
    fields: dict[str, pa.Field] = {}
    for column in (*table.columns, None):
        name = GEOMETRY if column is None else column.name
        kind = pa.string() if column is None else column.type
        if kind is None:
            reporter.log(f"{table.name}: column '{name}' has an unsupported type, dropped", "warning")
        elif name.casefold() in fields:
            raise InvalidSchema(f"duplicate column '{name}'", where=table.name)
        else:
            fields[name.casefold()] = pa.field(name, kind)
    return pa.schema(list(fields.values()))


def _write(
    table: DbfTable, columns: pa.Schema, shp: Path, name: str, target: Path, reporter: Reporter
) -> tuple[int, ...]:
    """Write the lines; return the numbers of the records that are marked as deleted."""
    supported = set(columns.names)
    names = [column.name for column in table.columns]
    shapes = _shapes(shp, name, table.count, reporter)
    deleted: list[int] = []
    size = 0
    with target.open("w", encoding="utf-8") as file:
        for number, (values, geometry) in enumerate(zip(table.rows(), shapes, strict=True), 1):
            if values is None:
                deleted.append(number)
                continue
            row = {key: value for key, value in zip(names, values, strict=True) if key in supported}
            size += file.write(json.dumps({**row, GEOMETRY: geometry}, ensure_ascii=False) + "\n")
            reporter.set_amounts(bytes=size)
    if deleted:
        reporter.log(f"{table.name}: {count_of(len(deleted), 'deleted record')} dropped", "warning")
    return tuple(deleted)


def _shapes(path: Path, name: str, count: int, reporter: Reporter) -> Iterator[str | None]:
    """Yield the geometry of each record as GeoJSON text, or None for a record without geometry.

    Raises:
        BadData: the file is damaged, or has not ``count`` records.
    """
    # Deferred: only few sources are shapefiles.
    import shapefile

    number, size = 0, path.stat().st_size
    with path.open("rb") as headers, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The size in the header is checked below.
        head = headers.read(_FILE_HEADER)
        if len(head) < _FILE_HEADER or head[:4] != b"\0\0\x27\x0a":
            raise BadData("not a .shp file", where=name, hint="fetch the archive again")
        stated_size = int.from_bytes(head[24:28], "big") * _WORD
        with shapefile.ShpReader(path) as opened:
            reader = cast("shapefile.ShpReader", opened)
            if reader.shapeType in _MEASURES:
                reporter.log(f"{name}: measures (M) are not supported in GeoJSON, dropped")
            at = _FILE_HEADER
            while at < min(size, stated_size):
                reporter.raise_if_cancelled()
                number += 1
                headers.seek(at)
                head = headers.read(_SHAPE_HEADER.size)
                length = _SHAPE_HEADER.unpack(head)[1] * _WORD if len(head) == _SHAPE_HEADER.size else 0
                if length < 4 or at + _SHAPE_HEADER.size + length > size:
                    raise _cut(name, number, count)
                if number > count:
                    raise _other_count(name, f"more than {count:,}", count)
                yield _geometry(reader, number, at, length, f"{name}: record {number}")
                at += _SHAPE_HEADER.size + length
    if stated_size > size:
        raise _cut(name, number + 1, count)
    if number < count:
        raise _other_count(name, f"{number:,}", count)


def _cut(name: str, record: int, count: int) -> BadData:
    return BadData(
        f"truncated or damaged file: record {record:,} of {count:,} is incomplete",
        where=name,
        hint="fetch the archive again",
    )


def _other_count(name: str, shapes: str, count: int) -> BadData:
    return BadData(
        f"different numbers of shapes ({shapes}) and records in the .dbf file ({count:,})",
        where=name,
        hint="fetch the archive again, or report the error to its publisher",
    )


def _geometry(reader: shapefile.ShpReader, number: int, at: int, length: int, where: str) -> str | None:
    import shapefile

    try:
        shape = reader.shape(number - 1, at, length)
        return None if shape is None or shape.shapeType == shapefile.NULL else _geojson(shape)
    except shapefile.GeoJSON_Error as error:
        raise BadData(f"the shape cannot be converted to GeoJSON: {error}", where=where) from None
    except (shapefile.ShapefileException, struct.error, KeyError, IndexError, ValueError) as error:
        raise BadData(f"damaged shape: {error}", where=where, hint="fetch the archive again") from None


def _geojson(shape: Any) -> str:
    if shape.shapeType in _HEIGHTS:
        shape.points = shape.points_3D
    geometry = shape.__geo_interface__
    return json.dumps(geometry, sort_keys=True, separators=(",", ":"), allow_nan=False)
