"""Data files that a dataset can be made of: where they are, and what it may be called."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from odf_engine.errors import has_surrogates
from odf_engine.identity.names import is_valid_name

SKIPPED: Final = {".odf", ".git", "node_modules", ".venv", "__pycache__"}
FORMATS: Final = {
    ".csv": "Csv", ".tsv": "Csv", ".txt": "Csv", ".json": "Json", ".ndjson": "NdJson", ".jsonl": "NdJson",
    ".parquet": "Parquet", ".geojson": "GeoJson",
}  # fmt: skip
"""The formats of files by their endings."""

_FOUND: Final = (*(FORMATS.keys() - {".txt"}), ".csv.gz", ".json.gz", ".ndjson.gz", ".zip")
_MOST_FILES: Final = 200
_DEPTH: Final = 4
_UNSAFE: Final = re.compile(r"[^a-z0-9.]+")
_USUAL_NAME: Final = "my.dataset"


def data_files(folder: Path) -> list[tuple[str, int]]:
    """Data files in a folder and some levels below: their paths from there, and their sizes in bytes.

    Files whose paths are not UTF-8 are left out: a manifest cannot name them.
    """
    found: list[tuple[str, int]] = []
    for root, folders, files in os.walk(folder):
        here = Path(root).relative_to(folder)
        folders[:] = [] if len(here.parts) >= _DEPTH else sorted(set(folders) - SKIPPED)
        for name in sorted(files):
            if name.lower().endswith(_FOUND) and not has_surrogates(str(here / name)):
                try:
                    found.append((str(here / name), (Path(root) / name).stat().st_size))
                except OSError:
                    continue  # it went meanwhile, or is a link to nowhere
            if len(found) >= _MOST_FILES:
                return found
    return found


def is_url(place: str) -> bool:
    """Whether a place is somewhere in a network."""
    return urlsplit(place).scheme.lower() in ("http", "https", "ftp", "ftps", "s3")


def endings(place: str) -> tuple[str, str]:
    """The ending that tells the format, and the one that tells how it is packed: ``.gz``, ``.zip``, none."""
    path = PurePosixPath(urlsplit(place).path.lower() if is_url(place) else place.lower())
    packed = path.suffix if path.suffix in (".gz", ".zip") else ""
    return (PurePosixPath(path.stem).suffix if packed else path.suffix), packed


def name_for(place: str, taken: Collection[str]) -> str:
    """A name for the dataset of a file or URL, which no other has; of nothing, some name."""
    path = PurePosixPath(urlsplit(place).path if is_url(place) else place)
    stem = path.name
    for ending in reversed(endings(place)):
        stem = stem[: len(stem) - len(ending)] if ending else stem
    name = _UNSAFE.sub("-", stem.lower()).strip("-.")
    name = name if is_valid_name(name) else _USUAL_NAME
    used = {each.lower() for each in taken}
    return next(
        each for number in count(1) if (each := name if number == 1 else f"{name}-{number}") not in used
    )
