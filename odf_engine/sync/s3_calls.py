"""Requests to a service that speaks S3: they end at once when cancelled, and fail in words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from odf_engine.errors import NotFound, OdfError, SourceUnavailable
from odf_engine.ingest.download import cancellable
from odf_engine.ingest.s3_service import NO_ACCESS, Keys, Reason, file_system, reason
from odf_engine.progress import Reporter
from odf_engine.workspace.config import FetchConfig

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_LOGIN: Final = "log in with odf repo login URL, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_HINTS: Final = {
    "NETWORK_CONNECTION": "check the address and the network, then try again",
    "SLOW_DOWN": "try again later, or with a smaller sync.parallel",
    "NO_SUCH_BUCKET": "check the address; a bucket is made by whoever owns it",
}
_Result = TypeVar("_Result")


class Service(NamedTuple):
    """Which service, and what opens it; ``endpoint`` is empty for Amazon's."""

    bucket: str
    endpoint: str
    keys: Keys | None
    config: FetchConfig


class Calls:
    """What is asked of one bucket; may be used from several threads."""

    def __init__(self, url: str, service: Service, reporter: Reporter) -> None:
        self._url = url
        self._service = service
        self._reporter = reporter
        self._lock = threading.Lock()
        self._opened: S3FileSystem | None = None

    def run(self, what: str, work: Callable[[S3FileSystem], _Result]) -> _Result:
        """Calls ``work`` in a thread of its own, which is left to itself when somebody cancels.

        Args:
            what: what it is about, for errors.

        Raises:
            NotFound: it is not there, or its bucket is not.
            SourceUnavailable: the service does not answer, or refuses; retries are over.
        """
        try:
            return cancellable(lambda: work(self._connection()), lambda: None, self._reporter)
        except FileNotFoundError:
            raise NotFound(f"there is no {what}", where=self._url) from None
        except OSError as error:
            raise self._failure(what, reason(error)) from None

    def close(self) -> None:
        """Lets go of the connections."""
        self._opened = None

    def _connection(self) -> S3FileSystem:
        with self._lock:
            if self._opened is None:
                service = self._service
                self._opened = file_system(
                    service.bucket,
                    service.config,
                    endpoint=service.endpoint,
                    anonymous=service.config.s3_anonymous,
                    keys=service.keys,
                    attempts=service.config.retries + 1,
                )
            return self._opened

    def _failure(self, what: str, found: Reason) -> OdfError:
        hint = _HINTS.get(found.code, "try again later")
        login = _LOGIN if self._service.keys is None else "check what is kept for it: odf repo login URL"
        if found.code == "EXPIRED_TOKEN" or "ExpiredToken" in found.text:
            text, hint = "the credentials have expired", login
        elif found.code in NO_ACCESS or found.status in (401, 403):
            text, hint = f"the service refuses access to {what}", login
        elif found.code == "NO_SUCH_BUCKET" or found.text.startswith("Bucket "):
            problem = f"there is no bucket {self._service.bucket}"
            return NotFound(problem, where=self._url, hint=_HINTS["NO_SUCH_BUCKET"])
        elif found.code == "SLOW_DOWN" or found.status == 503:
            text, hint = "the service is asked too much at once", _HINTS["SLOW_DOWN"]
        elif found.status == 301:
            text = "the bucket is in another region"
            hint = "say in which: odf config set fetch.s3Region REGION"
        elif found.status == 400:  # without more words, where only the size was asked for
            text, hint = f"the service answered 400 for {what}", f"the credentials may have expired: {login}"
        elif found.status is not None or found.code == "INTERNAL_FAILURE":
            words = self._without_keys(found.text).replace("No response body.", "")
            text = f"the service failed with {what}" + (f": {words}" if words.strip() else "")
        else:
            text = self._without_keys(found.text)
        return SourceUnavailable(text, where=self._url, hint=hint)

    def _without_keys(self, text: str) -> str:
        for secret in self._service.keys or ():
            text = text.replace(secret, "…") if secret else text
        return text
