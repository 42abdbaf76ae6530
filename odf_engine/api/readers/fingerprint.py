"""Fingerprints of the files of a workspace, which any change to them changes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final

_DATA: Final = (
    "jobs.sqlite",
    "jobs.sqlite-wal",
    "trust",
    "keys",
    "datasets",
    "repositories.json",
)
_WATCHED_DATASET_FILES: Final = ("refs", "info")


def data_fingerprint(folder: Path) -> str:
    """Return a fingerprint of the datasets, jobs, trust and remotes of a workspace."""
    odf = f"{folder}/.odf"
    paths = [f"{odf}/{name}" for name in _DATA]
    paths += [f"{path}/{part}" for path in _child_paths(f"{odf}/datasets") for part in _WATCHED_DATASET_FILES]
    return file_fingerprint([*paths, *_child_paths(f"{odf}/trust"), *_child_paths(f"{odf}/remotes")])


def file_fingerprint(paths: Iterable[str]) -> str:
    """Return a digest of the times, sizes and inode numbers of files."""
    digest = blake2b(digest_size=16)
    for path in paths:
        try:
            known = os.stat(path)  # noqa: PTH116 (thousands of them, before the first paint)
            digest.update(os.fsencode(f"{path} {known.st_mtime_ns} {known.st_size} {known.st_ino}\n"))
        except OSError:
            digest.update(os.fsencode(f"{path} -\n"))
    return digest.hexdigest()


def _child_paths(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries)
    except OSError:
        return []
