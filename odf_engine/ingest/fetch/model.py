"""Payload, FetchContext, and kinds of source state: shared by all fetchers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from odf_engine.base.config import EthereumConfig, FetchConfig, MqttConfig
from odf_engine.base.files import translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import SOURCE_NAME as SOURCE_NAME
from odf_engine.errors import BadData, SourceUnavailable
from odf_engine.identity.multiformats import SHA2_256, Multihash
from odf_engine.metadata.model import SourceState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.credentials import Credentials
from odf_engine.workspace.environment import collect_secrets, redact_secrets, substitute_variables

ETAG: Final = "odf/etag"
LAST_MODIFIED: Final = "odf/last-modified"
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Payload:
    """The result of a fetch.

    Attributes:
        path: the raw bytes; a file of the user unless it is in the folder of the job.
        name: a path or a URL, for messages.
        state: the state for the chain, or None if the source has no state.
        event_time: of rows without one; None means the time of ingestion.
        stamp: modification time and size of a file that is read in place.
        number: the place of the file in the pull, from 1, or 0 for a source without files.
        line_origins: the origin of each line, such as its topic, for messages, or () if all have the same.
        on_commit: called after the rows were committed.
        has_more: whether the source has more data.
        moved_to: the URL that the server permanently redirects to, or "" if there is none.
    """

    path: Path
    name: str
    state: SourceState | None
    event_time: Timestamp | None
    stamp: tuple[int, int] | None = None
    number: int = 0
    line_origins: Sequence[str] = ()
    on_commit: Callable[[], None] = lambda: None
    has_more: bool = False
    moved_to: str = ""

    def check_unchanged(self) -> None:
        """Check the file after its rows were read.

        Raises:
            BadData: it was modified in the meantime, so the rows may be a mixture.
        """
        if self.stamp is not None and (not self.path.exists() or file_stamp(self.path) != self.stamp):
            raise BadData("the file changed while it was read", where=self.name, hint="try again")


@dataclass(frozen=True)
class FetchContext:
    """Parameters of a fetch.

    Attributes:
        resolve: makes a path of a manifest absolute.
        root: base of relative globs.
        dataset: its chain lists the ingested files.
        state: the state of the source, in the chain; None to fetch unconditionally.
        job: folder for temporary files.
        force: fetch changed files again although they were ingested.
        environment: values of the request, for ``${{ env.NAME }}``.
        allowed: names of variables that the configuration allows for the dataset.
        name: the name of the dataset, for hints.
        untrusted: connect to public addresses only, since an untrusted author wrote the source.
        downloads: folder of partial downloads for the next pull; None to keep none.
        shares_download: several datasets probably read the file, so their pulls download it together.
        dataset_id: the dataset id of the dataset, for sources that identify their clients.
        credentials: the stored logins, or None if there are none.
        mqtt: limits of MQTT sources.
        ethereum: nodes and limits of EthereumLogs sources.
        whole_payload: the data must not be divided: rows that are missing in a payload are retracted.
        source_name: the name of the source in its states; a source outside the chain has a UUID.
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
    shares_download: bool = False
    dataset_id: str = ""
    credentials: Credentials | None = None
    mqtt: MqttConfig = field(default_factory=MqttConfig)
    ethereum: EthereumConfig = field(default_factory=EthereumConfig)
    whole_payload: bool = False
    source_name: str = SOURCE_NAME

    def substitute_variables(self, text: str) -> str:
        """Return a text with its variables substituted. It may have secrets: do not log or store it.

        Raises:
            OdfError: a variable that is not allowed or not set, or a template of another kind.
        """
        return substitute_variables(text, self.environment, self.allowed, self.name)

    def redact(self, text: str) -> str:
        """Return a text of a source without the values of variables, which a source may repeat."""
        return redact_secrets(text, collect_secrets(self.environment, self.allowed))


def infer_command(name: str) -> str:
    """Return the command that adapts the source of a dataset to its file."""
    return f"odf add --update --infer {name}"


def file_stamp(path: Path) -> tuple[int, int]:
    """Return modification time in nanoseconds and size in bytes, which identify a version."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def hash_file(path: Path, reporter: Reporter, total: int | None = None) -> str:
    """Return the SHA2-256 multihash of a file; ``total`` is its size, to report progress."""
    hasher, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            reporter.raise_if_cancelled()
            hasher.update(chunk)
            size += len(chunk)
            if total is not None:
                reporter.set_amounts(bytes=size, total_bytes=total)
    return str(Multihash(SHA2_256, hasher.digest()))


def require_readable(path: Path) -> None:
    """Check that a file can be read.

    Raises:
        SourceUnavailable: no such file, not a file, or no permission.
        OdfError: the disk has an error.
    """
    with translate_os_errors(path):
        if not path.exists():
            raise SourceUnavailable(
                "file not found",
                where=str(path),
                hint="check the path; relative paths start at the workspace folder",
            )
        if not path.is_file():
            raise SourceUnavailable(
                "not a regular file",
                where=str(path),
                hint="use fetch.kind FilesGlob for the files of a folder",
            )
        if not os.access(path, os.R_OK):
            raise SourceUnavailable("cannot be read: permission denied", where=str(path))
