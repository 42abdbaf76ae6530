"""In which format a pushed file is read: as the source says, unless the file is of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec.structs import replace

from odf_engine.errors import UsageError
from odf_engine.metadata.model import (
    Csv,
    EsriShapefile,
    GeoJson,
    Json,
    NdGeoJson,
    NdJson,
    Parquet,
    ReadStep,
    kind_of,
)
from odf_engine.progress import Reporter

FORMATS: Final[dict[str, type[ReadStep]]] = {
    "csv": Csv,
    "json": Json,
    "ndjson": NdJson,
    "geojson": GeoJson,
    "ndgeojson": NdGeoJson,
    "parquet": Parquet,
    "esrishapefile": EsriShapefile,
}
"""The formats by the names that people give them."""

_ENDINGS: Final[dict[str, type[ReadStep]]] = {
    ".csv": Csv,
    ".ndjson": NdJson,
    ".jsonl": NdJson,
    ".json": Json,
    ".geojson": GeoJson,
    ".parquet": Parquet,
}
_JSON: Final = (Json, NdJson, GeoJson, NdGeoJson)
_HEAD: Final = 4096


def format_named(name: str) -> type[ReadStep]:
    """The format of this name, in whatever case.

    Raises:
        UsageError: there is none.
    """
    try:
        return FORMATS[name.lower()]
    except KeyError:
        raise UsageError(f"there is no format '{name}'", hint="formats: " + ", ".join(FORMATS)) from None


def step_for(source: ReadStep, asked: str | None, path: Path, reporter: Reporter) -> ReadStep:
    """How to read a file: the source's own step, or the plain step of another format with its columns.

    Another format is one that is asked for, or else one that the end of the file's name tells. All that
    belongs to the source's format alone, such as separators, does not count then. A CSV file that is
    read in this way has a header if its first line has the name of a column; that is looked at when it
    is read.

    Raises:
        UsageError: there is no such format.
    """
    wanted = format_named(asked) if asked is not None else _by_name(type(source), path)
    if wanted is type(source):
        return source
    if asked is None:
        own, other = kind_of(source), wanted.__name__  # type: ignore[arg-type]
        reporter.line(f"{path.name} is read as {other}, as its name says, and not as {own}")
    return replace(wanted(), schema=source.schema, odf_schema=source.odf_schema)


def _by_name(own: type[ReadStep], path: Path) -> type[ReadStep]:
    """The format that the end of a name stands for, where that cannot be the source's own.

    Names ending in ``.json`` are given to JSON of all kinds: what is in the file decides then.
    """
    wanted = _ENDINGS.get(path.suffix.lower(), own)
    if wanted is not Json or own in (Json, GeoJson, NdGeoJson):
        return own if own is NdGeoJson and wanted in (NdJson, GeoJson) else wanted
    with path.open("rb") as file:
        head = file.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip()
    return Json if head.startswith(b"[") else NdJson
