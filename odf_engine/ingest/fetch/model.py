"""Payload, FetchContext, and source state kinds: what all fetchers share."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from odf_engine.chain.dataset import Dataset
from odf_engine.errors import BadData, SourceUnavailable
from odf_engine.metadata.model import SourceState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.settings import FetchConfig
from odf_engine.workspace.environment import substitute_variables

ETAG: Final = "odf/etag"
LAST_MODIFIED: Final = "odf/last-modified"
SOURCE_NAME: Final = "default"  # polling sources have no name of their own


@dataclass(frozen=True)
class Payload:
    """What one fetch brought.

    Attributes:
        path: the raw bytes; a file of the user's own unless it lies in the job's folder.
        name: what people call it: a path or a URL.
        state: what the chain shall remember; None when the source gives nothing to remember.
        event_time: of rows without one; None means the time of ingestion.
        stamp: modification time and size of a file that is read in place.
    """

    path: Path
    name: str
    state: SourceState | None
    event_time: Timestamp | None
    stamp: tuple[int, int] | None = None

    def check_unchanged(self) -> None:
        """Call after the rows were read.

        Raises:
            BadData: the file was written to meanwhile, so the rows may be a mixture.
        """
        if self.stamp is not None and (not self.path.exists() or file_stamp(self.path) != self.stamp):
            raise BadData("changed while it was being read", where=self.name, hint="try again")


@dataclass(frozen=True)
class FetchContext:
    """What fetching needs to know.

    Attributes:
        resolve: makes a path of a manifest absolute.
        root: relative globs start here.
        dataset: whose chain says which files were taken.
        state: of the source, as the chain has it; None asks to fetch regardless.
        job: folder for temporary files.
        force: fetch again what is known to have changed although it was taken.
        environment: values given along with the request, for ``${{ env.NAME }}``.
        allowed: the names that the configuration allows for the dataset.
        name: the dataset's, for hints.
        untrusted: connections go to public addresses only, since somebody else wrote the source.
        downloads: folder in which downloads that broke off are kept for the next pull; None: nowhere.
    """

    resolve: Callable[[str], Path]
    root: Path
    dataset: Dataset
    state: SourceState | None
    job: Path
    config: FetchConfig
    reporter: Reporter
    force: bool = False
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed: Collection[str] = ()
    name: str = "DATASET"
    untrusted: bool = False
    downloads: Path | None = None

    def substitute_variables(self, text: str) -> str:
        """A text with its variables filled in: for use, not to be shown or kept.

        Raises:
            OdfError: a variable that is not allowed or not set, or a template of another kind.
        """
        return substitute_variables(text, self.environment, self.allowed, self.name)


def file_stamp(path: Path) -> tuple[int, int]:
    """Modification time in nanoseconds and size in bytes: a file that keeps both is not read again."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def require_readable(path: Path) -> None:
    """Looks whether a file can be read.

    Raises:
        SourceUnavailable: no such file, not a file, or no permission.
    """
    if not path.exists():
        raise SourceUnavailable(
            "there is no such file", where=str(path), hint="relative paths start at the workspace's folder"
        )
    if not path.is_file():
        raise SourceUnavailable(
            "is not a file", where=str(path), hint="use fetch.kind FilesGlob for the files of a folder"
        )
    if not os.access(path, os.R_OK):
        raise SourceUnavailable("may not be read: permission denied", where=str(path))
