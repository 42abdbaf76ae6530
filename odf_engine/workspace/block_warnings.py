"""Warnings of the jobs that committed blocks. They are local: other copies of a dataset do not have them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from odf_engine.base.atomic_files import read_small_file, replace_file
from odf_engine.base.files import ensure_folder
from odf_engine.base.progress import JobWarning
from odf_engine.errors import OdfError

_FOLDER: Final = "info/warnings"
_NAME: Final = re.compile(r"(f[0-9a-f]+)\.json")


def store_block_warnings(folder: Path, block: str, warnings: Sequence[JobWarning]) -> None:
    """Store the warnings of a block in the folder of its dataset.

    Raises:
        OdfError: the file cannot be written.
    """
    path = folder / _FOLDER / f"{block}.json"
    ensure_folder(path.parent)
    replace_file(path, msgspec.json.encode(warnings))


def blocks_with_warnings(folder: Path) -> set[str]:
    """Return the hashes of the blocks of a dataset that have warnings."""
    try:
        names = [path.name for path in (folder / _FOLDER).iterdir()]
    except OSError:
        return set()
    return {match[1] for name in names if (match := _NAME.fullmatch(name)) is not None}


def read_block_warnings(folder: Path, block: str) -> list[JobWarning]:
    """Return the warnings of a block, or [] if it has none or the file is damaged."""
    try:
        return msgspec.json.decode(read_small_file(folder / _FOLDER / f"{block}.json"), type=list[JobWarning])
    except (OSError, OdfError, msgspec.MsgspecError):
        return []
