"""What a connection that failed amounts to, and how often and how soon one tries again."""

from __future__ import annotations

import random
import socket
import ssl
import threading
from datetime import UTC
from email.utils import parsedate_to_datetime
from time import monotonic, time
from typing import Final

from odf_engine.errors import OdfError, SourceUnavailable
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.config import FetchConfig

_PAUSE: Final = 0.5
_WORTH: Final = 1 << 20
"""Bytes after which a transfer that broke off counts as one that gets on."""


class Failed(Exception):
    """An attempt that failed; ``again`` says whether another one makes sense, after ``pause`` seconds."""

    def __init__(self, error: OdfError, *, again: bool, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.again, self.pause = error, again, pause


class Retries:
    """The failures of one transfer so far."""

    def __init__(self, config: FetchConfig, reporter: Reporter) -> None:
        self._config, self._reporter = config, reporter
        self._failures = 0

    def wait(self, failure: Failed, got: int = 0) -> None:
        """Waits until it is time for another attempt.

        Args:
            failure: why there has to be another one.
            got: how many bytes the attempt brought before it failed.

        Raises:
            OdfError: that of the failure, when there should be no other attempt.
            Cancelled: at once.
        """
        self._failures = 1 if got >= _WORTH else self._failures + 1
        if not failure.again or self._failures > self._config.retries:
            raise failure.error from None
        _wait(failure, self._failures, self._config, self._reporter)


def broken(
    reason: object, where: str, hint: str = "check the URL and the network, then pull again"
) -> Failed:
    """What a connection that failed amounts to: a sentence, and whether it may go better next time."""
    again = True
    if isinstance(reason, ssl.SSLCertVerificationError):
        text, again = f"its certificate is not valid: {reason.verify_message}", False
    elif isinstance(reason, socket.gaierror):
        text, again = "its host name is not known", reason.errno == socket.EAI_AGAIN
    elif isinstance(reason, TimeoutError):
        text = "it did not answer in time"
    elif isinstance(reason, OSError):
        text = f"the connection failed: {reason.strerror or reason}"
    else:
        text = f"the connection broke: {reason}"
    return Failed(SourceUnavailable(text, where=where, hint=hint), again=again)


def retry_after(text: str | None) -> float | None:
    """Seconds that a ``Retry-After`` header asks to wait; None where there is none that can be read."""
    if not text:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        return float(text)
    then = http_moment(text)
    return max(0.0, then.ns / 1e9 - time()) if then else None


def http_moment(text: str | None) -> Timestamp | None:
    """The moment in a header such as ``Last-Modified``; None where there is none that can be read."""
    if not text:
        return None
    try:
        moment = parsedate_to_datetime(text)
        return Timestamp.from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def _wait(failure: Failed, failures: int, config: FetchConfig, reporter: Reporter) -> None:
    longest = config.longest_pause_seconds
    pause = failure.pause
    if pause is not None and pause > longest:
        error = failure.error
        raise SourceUnavailable(
            f"{error.message}, and asks to wait {pause:,.0f} s",
            where=error.where,
            hint="pull again after that time, or raise fetch.longestPauseSeconds",
        )
    if pause is None:
        pause = min(longest, _PAUSE * 2 ** (failures - 1) * random.uniform(1, 1.25))
    reporter.line(f"{failure.error}; trying again in {pause:.1f} s", "warning")
    woken = threading.Event()
    end = monotonic() + pause
    with reporter.on_cancel(woken.set):
        woken.wait(max(0.0, end - monotonic()))
    reporter.check()
