"""Several files as the source of one dataset: groups of similar names, and patterns."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from odf_engine.errors import NotFound
from odf_engine.net.urls import is_url

_NUMBERS: Final = re.compile(r"\d+(?:[-_.]\d+)*")


class FileGroup(NamedTuple):
    """Files of one folder whose names differ only in numbers, such as dates.

    Attributes:
        pattern: the pattern that only these files match, relative to the workspace.
        files: number of files.
        size: their size in bytes.
    """

    pattern: str
    files: int
    size: int


def group_files(files: Sequence[tuple[str, int]]) -> list[FileGroup]:
    """Return the groups of similar names among files, given as paths and sizes."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for path, size in files:
        pure = PurePath(path)
        if not glob.has_magic(path) and _NUMBERS.search(pure.stem):
            name = _NUMBERS.sub("*", pure.stem) + pure.suffix
            groups.setdefault(str(pure.with_name(name)), []).append((path, size))
    names = [PurePath(path) for path, _ in files]
    return [
        FileGroup(pattern, len(members), sum(size for _, size in members))
        for pattern, members in groups.items()
        if len(members) > 1 and len(members) == sum(_matches(name, PurePath(pattern)) for name in names)
    ]


def _matches(path: PurePath, pattern: PurePath) -> bool:
    return path.parent == pattern.parent and fnmatchcase(path.name, pattern.name)


def resolve_pattern(location: str, folder: Path) -> tuple[str, str]:
    """Return the file that represents a location, and the pattern if it is one.

    Args:
        location: a path, pattern or URL; paths are relative to the folder.
        folder: the folder of the workspace.

    Returns:
        Of a pattern the last file by name, and the pattern. Otherwise the location, and "".

    Raises:
        NotFound: no file matches the pattern.
    """
    if is_url(location) or not glob.has_magic(location) or (folder / Path(location).expanduser()).exists():
        return location, ""
    pattern = str(Path(location).expanduser())
    matches = glob.glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207
    files = sorted(name for name in matches if (folder / name).is_file())
    if not files:
        raise NotFound(f"no file matches {location}", hint="paths are relative to the workspace folder")
    return files[-1], location
