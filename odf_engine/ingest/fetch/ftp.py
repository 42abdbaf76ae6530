"""Fetches FTP and FTPS URLs."""

from __future__ import annotations

import ftplib
from collections.abc import Iterator
from contextlib import contextmanager

from odf_engine.errors import BadData, SourceUnavailable
from odf_engine.ingest.fetch.model import FetchContext, Payload
from odf_engine.ingest.fetch.transfer import Transfer, source_state
from odf_engine.metadata.model import Url
from odf_engine.net.address_policy import AddressPolicy, PublicAddresses
from odf_engine.net.connector import Connector
from odf_engine.net.download import (
    AttemptFailed,
    RetryPolicy,
    connection_failure,
    is_disk_error,
    run_cancellable,
)
from odf_engine.net.ftp import FtpEntry, FtpFileVersion, FtpSession
from odf_engine.net.urls import without_login


def fetch_ftp(step: Url, context: FetchContext) -> Payload | None:
    """Download the file, unless it has the modification time of the source state.

    Without a modification time there is no source state.

    Raises:
        SourceUnavailable: with the URL and the response of the server, or the error of the connection.
        BadData: the file was modified during the download.
    """
    return _FtpTransfer(step, context.substitute_variables(step.url), context).fetch()


def list_ftp_folder(url: str, name: str, context: FetchContext) -> list[FtpEntry]:
    """Return the files and folders of a folder.

    Args:
        url: URL of the folder, with its variables substituted.
        name: the URL for messages.
        context: limits, reporter and address policy.

    Raises:
        SourceUnavailable: with the response of the server, or the error of the connection, after the retries.
    """
    config, reporter = context.config, context.reporter
    policy = PublicAddresses() if context.untrusted else AddressPolicy()
    connector = Connector(policy, config.connect_timeout_seconds, reporter)
    retries = RetryPolicy(config, reporter)

    def attempt() -> list[FtpEntry]:
        with (
            _failures(name, "the URL in fetch.args"),
            FtpSession(url, connector, config.read_timeout_seconds) as session,
        ):
            return session.list_folder()

    while True:
        try:
            return run_cancellable(attempt, connector.abort, reporter)
        except AttemptFailed as failure:
            retries.wait(failure)


class _FtpTransfer(Transfer):
    """A download over FTP; each attempt is a session."""

    def __init__(self, step: Url, url: str, context: FetchContext) -> None:
        super().__init__(step, without_login(step.url), context, [url])
        self._url = url
        timeout = context.config.connect_timeout_seconds
        self._connector = Connector(self.address_policy, timeout, context.reporter)

    def attempt(self) -> Payload | None:
        with _failures(self.name, "fetch.url in the manifest"):
            session = FtpSession(self._url, self._connector, self.context.config.read_timeout_seconds)
            self.reporter.log(f"connecting to {self.name}")
            with session:
                return self._exchange(session)

    def abort(self) -> None:
        self._connector.abort()

    def _exchange(self, session: FtpSession) -> Payload | None:
        version = session.version()
        modified = version.modified
        state = source_state(None, modified)
        if self.is_unchanged(state, f"since {modified}"):
            return None
        self._download(session, version)
        if session.version() != version:
            self.partial.restart()
            error = BadData("the file was modified during the download", where=self.name, hint="pull again")
            raise AttemptFailed(error, again=True)
        return self.finish(
            state,
            modified,
            f"modified {modified or 'at an unknown time'}",
            "the server reports no modification time",
        )

    def _download(self, session: FtpSession, version: FtpFileVersion) -> None:
        partial, total = self.partial, version.size
        facts = {"modified": str(version.modified), "size": total} if version.modified else {}
        if not facts or partial.facts != facts:
            partial.restart(**facts)
        if partial.size:
            self.reporter.log(f"RETR {self.name} from byte {partial.size:,}")
        sock = session.begin_transfer(partial.size)
        if sock is None:
            self.reporter.log(f"{self.name}: the download cannot be resumed; restarting")
            partial.restart(**partial.facts)
            sock = session.begin_transfer(0)
            assert sock is not None
        self.store(session.read_transfer(sock), total)
        if total is not None and partial.size < total:
            raise EOFError(f"closed after {partial.size:,} of {total:,} bytes")


@contextmanager
def _failures(name: str, field: str) -> Iterator[None]:
    """Translate the errors of a session into :class:`AttemptFailed`.

    Args:
        name: the URL for messages.
        field: the field of the URL in the manifest, for hints.
    """
    try:
        yield
    except (ftplib.error_perm, ftplib.error_temp) as error:
        raise _refused(str(error), name, field) from None
    except OSError as error:
        if is_disk_error(error):
            raise
        raise connection_failure(error, name) from None
    except (EOFError, ftplib.Error) as error:
        raise connection_failure(str(error) or "closed by the server", name) from None
    except ValueError:
        error = SourceUnavailable("the URL contains characters that FTP does not allow", where=name)
        raise AttemptFailed(error, again=False) from None


def _refused(answer: str, name: str, field: str) -> AttemptFailed:
    code = answer[:3]
    hint = "try again later"
    if code == "550":
        hint = f"check {field}; the file may be missing or not readable"
    elif code in ("530", "331", "332"):
        hint = "check the login in the URL: ftp://USER:PASSWORD@HOST/PATH"
    error = SourceUnavailable(f"the server returned {answer}", where=name, hint=hint)
    return AttemptFailed(error, again=code.startswith("4"))
