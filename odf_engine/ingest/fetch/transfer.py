"""Downloads of one URL with retries and resumption: what the fetchers of all protocols share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from msgspec.structs import replace

from odf_engine.errors import BadData, OdfError
from odf_engine.ingest.fetch.model import ETAG, LAST_MODIFIED, SOURCE_NAME, FetchContext, Payload
from odf_engine.metadata.model import FromMetadata, FromSystemTime, SourceState, Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.address_policy import AddressPolicy, PublicAddresses
from odf_engine.net.download import AttemptFailed, PartialDownload, run_with_retries


class Transfer:
    """The download of one URL. Subclasses implement :meth:`attempt` and :meth:`abort`.

    Attributes:
        name: the URL as the manifest has it, without a login; errors and log lines show it.
        partial: the bytes so far; see :class:`PartialDownload`.
    """

    def __init__(self, step: Url, name: str, context: FetchContext, key: list[object]) -> None:
        """``key`` identifies the bytes, across pulls."""
        self.step, self.name, self.context = step, name, context
        self.reporter = context.reporter
        self.partial = PartialDownload(context.downloads or context.job / "downloads", json.dumps(key))
        self.started = monotonic()

    def fetch(self) -> Payload | None:
        """Return the payload, or None if the source is unchanged.

        Raises:
            Cancelled: immediately.
            OdfError: the error of the last attempt, after the retries.
        """
        with self._named():
            return run_with_retries(
                self._named_attempt,
                partial=self.partial,
                abort=self.abort,
                config=self.context.config,
                reporter=self.reporter,
            )

    def attempt(self) -> Payload | None:
        """Make one attempt.

        Raises:
            AttemptFailed: with the error, and whether to try again.
        """
        raise NotImplementedError

    def abort(self) -> None:
        """End a running attempt soon; called from another thread."""
        raise NotImplementedError

    @property
    def address_policy(self) -> AddressPolicy:
        """The addresses that the author of the source may connect to."""
        return PublicAddresses() if self.context.untrusted else AddressPolicy()

    def is_unchanged(self, state: SourceState | None, version: str) -> bool:
        """Return whether the source has the state of the chain; if so, log ``version`` and drop the bytes."""
        if state is None or self.context.state not in (state, self._redacted(state)):
            return False
        self.partial.restart()
        self.reporter.log(f"{self.name} not modified {version}")
        return True

    def _redacted(self, state: SourceState | None) -> SourceState | None:
        return state and replace(state, value=self.context.redact(state.value))

    def store(self, pieces: Iterable[bytes], total: int | None) -> None:
        """Append bytes, and report the progress; ``total`` is the size of the file, if known.

        Raises:
            AttemptFailed: the file is larger than ``fetch.maxBytes``.
        """
        self._check_size(total or 0)
        for piece in pieces:
            self.reporter.raise_if_cancelled()
            self._check_size(self.partial.size + len(piece))
            self.partial.write(piece)
            self.reporter.set_amounts(bytes=self.partial.size, total_bytes=total)

    def finish(
        self, state: SourceState | None, modified: Timestamp | None, version: str, no_time: str | None = None
    ) -> Payload:
        """Move the bytes into the job's folder.

        Args:
            state: the state for the chain, which stores it without the values of variables.
            modified: modification time of the file.
            version: the version for the log.
            no_time: a text for the log, if event time should come from a modification time that is unknown.
        """
        path, size = self.path, self.partial.size
        self.partial.finish(path)
        self.reporter.log(f"{self.name}, {size:,} bytes in {monotonic() - self.started:.1f} s, {version}")
        return self.make_payload(state, modified, no_time)

    @property
    def path(self) -> Path:
        """The path of the downloaded file in the folder of the job."""
        return self.context.job / "fetched"

    def make_payload(
        self, state: SourceState | None, modified: Timestamp | None, no_time: str | None = None
    ) -> Payload:
        """Return the payload for the file at :attr:`path`; see :meth:`finish` for the arguments."""
        if no_time is not None and modified is None and isinstance(self.step.event_time, FromMetadata):
            self.reporter.log(f"{no_time}: using the time of ingestion as event time", "warning")
        event_time = None if isinstance(self.step.event_time, FromSystemTime) else modified
        return Payload(self.path, self.name, self._redacted(state), event_time)

    def _check_size(self, size: int) -> None:
        limit = self.context.config.max_bytes
        if size > limit:
            self.partial.restart()
            problem = f"the file is larger than {limit:,} bytes (fetch.maxBytes)"
            error = BadData(problem, where=self.name, hint="check the source, or increase fetch.maxBytes")
            raise AttemptFailed(error, again=False)

    def _named_attempt(self) -> Payload | None:
        self.started = monotonic()
        with self._named():
            return self.attempt()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OdfError as error:
            error.where = error.where or self.name
            raise


def source_state(etag: str | None, modified: Timestamp | None) -> SourceState | None:
    """Return the source state for the version of a file: its ETag, else its modification time."""
    if etag:
        return SourceState(SOURCE_NAME, ETAG, etag)
    return SourceState(SOURCE_NAME, LAST_MODIFIED, str(modified)) if modified else None
