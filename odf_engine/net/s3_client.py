"""S3 client: file systems for buckets, cancellable requests, error classification."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from odf_engine.errors import BadData, NotFound, OdfError, SourceUnavailable
from odf_engine.net.download import run_cancellable
from odf_engine.progress import Reporter
from odf_engine.settings import FetchConfig

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem


BUCKET: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,253}[a-zA-Z0-9]")
"""Valid names of buckets."""
ACCESS_DENIED_CODES: Final = frozenset(
    {"ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN", "INVALID_TOKEN"}
)
"""Codes of errors that other credentials may avoid."""
_REASON: Final = re.compile(r"AWS Error ([A-Z_0-9]+)(?: \(HTTP status (\d+)\))?[^:]*: *(.*)", re.DOTALL)
_ANYWHERE: Final = "us-east-1"


class S3Credentials(NamedTuple):
    """Credentials for one bucket. Temporary ones have a session token."""

    access: str
    secret: str
    session: str | None

    def __repr__(self) -> str:
        return "S3Credentials(…)"


class S3Error(NamedTuple):
    """An error of the service, reported by Arrow: code in capitals, HTTP status, text."""

    code: str
    status: int | None
    text: str

    @property
    def is_permanent(self) -> bool:
        """Whether the same request would fail again."""
        return self.status is not None and self.status < 500


def endpoint_of(config: FetchConfig) -> str:
    """Return the endpoint of the settings or the environment; empty for Amazon."""
    return (
        config.s3_endpoint
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or ""
    )


def file_system(
    bucket: str,
    config: FetchConfig,
    *,
    endpoint: str,
    anonymous: bool = False,
    keys: S3Credentials | None = None,
    attempts: int = 1,
) -> S3FileSystem:
    """Return a file system for a bucket.

    Args:
        bucket: its region is determined if neither settings nor environment have one.
        config: region and timeouts.
        endpoint: URL or ``HOST:PORT`` of the service; empty for Amazon.
        anonymous: send no credentials.
        keys: credentials; by default those of the AWS environment.
        attempts: maximum number of attempts for a request that fails temporarily.

    Raises:
        OSError: the bucket does not exist, or the service cannot be reached.
    """
    # Deferred: Arrow is slow to import.
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    region = config.s3_region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    region = region or (_ANYWHERE if endpoint else resolve_s3_region(bucket))
    parts = urlsplit(endpoint) if "://" in endpoint else None
    return S3FileSystem(
        access_key=keys.access if keys else None,
        secret_key=keys.secret if keys else None,
        session_token=keys.session if keys else None,
        anonymous=anonymous and keys is None,
        region=region,
        endpoint_override=(parts.netloc if parts else endpoint) or None,
        scheme=parts.scheme if parts else "https",
        connect_timeout=config.connect_timeout_seconds,
        request_timeout=config.read_timeout_seconds,
        background_writes=False,  # else a large object is buffered in memory
        allow_delayed_open=True,  # a small object needs one request
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=attempts),
    )


def parse_s3_error(error: OSError) -> S3Error:
    """Return the code, status and text of an error; the code is empty if the service did not respond."""
    found = _REASON.search(str(error))
    if found is None:
        return S3Error("", None, str(error))
    code, status, text = found.groups()
    if code == "NETWORK_CONNECTION":
        text = f"connection failed: {text.rpartition('Details: ')[2].strip()}"
    return S3Error(code, int(status) if status else None, text)


_LOGIN: Final = "run odf repo login URL, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_HINTS: Final = {
    "NETWORK_CONNECTION": "check the URL and the network, then try again",
    "SLOW_DOWN": "try again later, or reduce sync.parallel",
    "NO_SUCH_BUCKET": "check the URL, or create the bucket first",
}
_Result = TypeVar("_Result")


class S3Bucket(NamedTuple):
    """A bucket of a service, with its credentials; ``endpoint`` is empty for Amazon."""

    bucket: str
    endpoint: str
    keys: S3Credentials | None
    config: FetchConfig


class S3Client:
    """Cancellable calls for one bucket; safe from several threads."""

    def __init__(self, url: str, service: S3Bucket, reporter: Reporter) -> None:
        self._url = url
        self._service = service
        self._reporter = reporter
        self._lock = threading.Lock()
        self._opened: S3FileSystem | None = None

    def run(self, what: str, work: Callable[[S3FileSystem], _Result]) -> _Result:
        """Call ``work`` in a thread, which is abandoned on cancellation.

        Args:
            what: the object, for errors.

        Raises:
            NotFound: the object or its bucket does not exist.
            SourceUnavailable: the service does not respond, or refuses, after the retries.
            BadData: the service sends names that are not UTF-8.
        """
        try:
            return run_cancellable(lambda: work(self._connection()), lambda: None, self._reporter)
        except FileNotFoundError:
            raise NotFound(f"{what} not found", where=self._url) from None
        except OSError as error:
            raise self._failure(what, parse_s3_error(error)) from None
        except UnicodeDecodeError:
            raise BadData("the service sent names that are not UTF-8 text", where=self._url) from None

    def close(self) -> None:
        """Release the connections."""
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

    def _failure(self, what: str, found: S3Error) -> OdfError:
        hint = _HINTS.get(found.code, "try again later")
        login = _LOGIN if self._service.keys is None else "check the stored login: odf repo login URL"
        if found.code == "EXPIRED_TOKEN" or "ExpiredToken" in found.text:
            text, hint = "the credentials have expired", login
        elif found.code in ACCESS_DENIED_CODES or found.status in (401, 403):
            text, hint = f"access to {what} denied", login
        elif found.code == "NO_SUCH_BUCKET" or found.text.startswith("Bucket "):
            problem = f"bucket {self._service.bucket} not found"
            return NotFound(problem, where=self._url, hint=_HINTS["NO_SUCH_BUCKET"])
        elif found.code == "SLOW_DOWN" or found.status == 503:
            text, hint = "too many requests", _HINTS["SLOW_DOWN"]
        elif found.status == 301:
            text = "the bucket is in another region"
            hint = "set the region: odf config set fetch.s3Region REGION"
        elif found.status == 400:  # of a HEAD request, which has no body
            text, hint = (
                f"the service returned 400 for {what}",
                f"check that the credentials have not expired: {login}",
            )
        elif found.status is not None or found.code == "INTERNAL_FAILURE":
            words = self._without_keys(found.text).replace("No response body.", "")
            text = f"the service failed for {what}" + (f": {words}" if words.strip() else "")
        else:
            text = self._without_keys(found.text)
        return SourceUnavailable(text, where=self._url, hint=hint)

    def _without_keys(self, text: str) -> str:
        for secret in self._service.keys or ():
            text = text.replace(secret, "…") if secret else text
        return text
