"""Fetch phase: brings the next piece of outside data to the local disk (specification: FetchStep).

:func:`fetch` yields :class:`Payload` after payload; each becomes at most one commit, and the caller
asks for the next only after that commit. What a payload's ``state`` says is committed with its rows,
so that nothing but the chain is needed to go on from there, on any machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from odf_engine.chain.chain import Dataset
from odf_engine.errors import BadData, InvalidManifest, SourceUnavailable, Unsupported
from odf_engine.ingest.variables import Redacting, fill, names_in, redacted_errors, secrets_of
from odf_engine.metadata.model import (
    Container,
    FetchStep,
    FilesGlob,
    FromMetadata,
    FromPath,
    SourceState,
    Url,
    kind_of,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.config import FetchConfig

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
        if self.stamp is not None and (not self.path.exists() or stamp_of(self.path) != self.stamp):
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

    def fill(self, text: str) -> str:
        """A text with its variables filled in: for use, not to be shown or kept.

        Raises:
            OdfError: a variable that is not allowed or not set, or a template of another kind.
        """
        return fill(text, self.environment, self.allowed, self.name)


def fetch(step: FetchStep, context: FetchContext) -> Iterator[Payload]:
    """Payloads that are new since ``context.state``, oldest first; none at all means up to date.

    Variables are filled in where they are used; log lines, errors and payloads show the text as the
    manifest has it.

    Raises:
        SourceUnavailable: a missing file, an HTTP status, a broken connection, a variable that is not set.
        BadData: an event time that cannot be read from a file's name.
        Unsupported: a kind of source that this version cannot fetch.
        InvalidManifest: the step contradicts itself.
    """
    secrets = secrets_of(context.environment, context.allowed)
    if secrets:
        context = replace(context, reporter=Redacting(context.reporter, secrets))
    with redacted_errors(secrets):
        yield from _payloads(step, context)


def _payloads(step: FetchStep, context: FetchContext) -> Iterator[Payload]:
    if isinstance(step, FilesGlob):
        from odf_engine.ingest.files_glob import fetch_files

        if names_in(step.path):
            raise InvalidManifest(
                f"'{step.path}': variables are filled into URLs and headers, not into paths",
                hint="write the path itself",
            )
        yield from fetch_files(step, context)
    elif isinstance(step, Url):
        payload = _fetch_url(step, context)
        if payload is not None:
            yield payload
    elif isinstance(step, Container):
        from odf_engine.ingest.container import fetch_container

        yield from fetch_container(step, context)
    else:
        kind = kind_of(step)  # type: ignore[arg-type]
        raise Unsupported(
            f"sources of kind {kind} cannot be fetched",
            hint="what can be fetched: Url (file, http, https, ftp, ftps, s3), FilesGlob, Container",
        )


def _fetch_url(step: Url, context: FetchContext) -> Payload | None:
    if isinstance(step.event_time, FromPath):
        raise InvalidManifest(
            "eventTime FromPath goes with FilesGlob, not with Url",
            hint="use fetch.kind FilesGlob, or take the time from a column in preprocess",
        )
    try:
        scheme = urlsplit(context.fill(step.url)).scheme.lower()
    except ValueError:
        raise InvalidManifest(f"'{step.url}' is no URL", hint="check fetch.url") from None
    if step.headers and scheme not in ("http", "https"):
        context.reporter.line("headers go with http and https only: they are not sent", "warning")
    if scheme in ("http", "https"):
        from odf_engine.ingest.http import fetch_http

        return fetch_http(step, context)
    if scheme in ("ftp", "ftps"):
        from odf_engine.ingest.ftp import fetch_ftp

        return fetch_ftp(step, context)
    if scheme == "s3":
        from odf_engine.ingest.s3 import fetch_s3

        return fetch_s3(step, context)
    if scheme in ("", "file"):
        return _fetch_file(step, context)
    raise Unsupported(
        f"'{step.url}': URLs of {scheme} cannot be fetched", hint="use file, http, https, ftp, ftps or s3"
    )


def _fetch_file(step: Url, context: FetchContext) -> Payload | None:
    """A local file, read in place; new when its modification time differs from the one remembered."""
    path = context.resolve(context.fill(step.url))
    check_readable(path)
    stamp = stamp_of(path)
    modified = Timestamp.from_ms(stamp[0] // 1_000_000)
    state = SourceState(SOURCE_NAME, LAST_MODIFIED, str(modified))
    if state == context.state:
        context.reporter.line(f"{path} has not changed since {modified}")
        return None
    context.reporter.line(f"file {path}, {stamp[1]:,} bytes, of {modified}")
    context.reporter.amount(bytes=stamp[1], total_bytes=stamp[1])
    from_file = step.event_time is None or isinstance(step.event_time, FromMetadata)
    return Payload(path, path.name, state, modified if from_file else None, stamp)


def stamp_of(path: Path) -> tuple[int, int]:
    """Modification time in nanoseconds and size in bytes: a file that keeps both is not read again."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def check_readable(path: Path) -> None:
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
