"""Whether two sources mean the same place, so that what is known of one holds for the other."""

from __future__ import annotations

import glob
from pathlib import PurePath
from typing import Any

from odf_engine.metadata.model import Container, FilesGlob, Url


def same_place(old: Any, new: Any) -> bool:
    """Whether two fetch steps bring the same data, as far as can be told from them.

    Then the state of the source lasts, although the step says otherwise how to get there: with which
    headers, in which order, how the event time is known, in which version of an image.
    """
    return place_of(old) == place_of(new)


def place_of(step: Any) -> Any:
    """What of a fetch step says where the data is."""
    match step:
        case Url():
            return Url(step.url)
        case FilesGlob():
            return FilesGlob(folder_of(step.path))
        case Container():
            name, _, _ = step.image.partition("@")
            head, slash, last = name.rpartition("/")
            image = head + slash + last.partition(":")[0]
            return Container(image, step.command, step.args, step.env)
        case _:
            return step


def folder_of(pattern: str) -> str:
    """The folder before the first wildcard: names of files are relative to it."""
    parts = PurePath(pattern).parts
    fixed = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return str(PurePath(*parts[:fixed]))
