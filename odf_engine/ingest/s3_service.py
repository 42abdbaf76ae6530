"""A connection to a service that speaks S3, and what its errors mean."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from odf_engine.workspace.config import FetchConfig

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

BUCKET: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,253}[a-zA-Z0-9]")
"""What a bucket may be called."""
NO_ACCESS: Final = frozenset(
    {"ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN", "INVALID_TOKEN"}
)
"""Codes of errors that better credentials would mend."""
_REASON: Final = re.compile(r"AWS Error ([A-Z_0-9]+)(?: \(HTTP status (\d+)\))?[^:]*: *(.*)", re.DOTALL)
_ANYWHERE: Final = "us-east-1"


class Keys(NamedTuple):
    """Credentials that were given for one bucket; ``session`` is the token of temporary ones."""

    access: str
    secret: str
    session: str | None

    def __repr__(self) -> str:
        return "Keys(…)"


class Reason(NamedTuple):
    """What an error of Arrow says of one of the service: its code in capitals, and the HTTP status."""

    code: str
    status: int | None
    text: str

    @property
    def is_lasting(self) -> bool:
        """Whether the same request would fail again."""
        return self.status is not None and self.status < 500


def endpoint_of(config: FetchConfig) -> str:
    """The service that settings or environment name; empty: Amazon's."""
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
    keys: Keys | None = None,
    attempts: int = 1,
) -> S3FileSystem:
    """A connection to the service that has a bucket.

    Args:
        bucket: its region is asked for where neither settings nor environment say it.
        config: region and patience.
        endpoint: URL or ``HOST:PORT`` of the service; empty: Amazon's.
        anonymous: show no credentials.
        keys: the credentials; by default those that every program of Amazon's finds.
        attempts: how often a request that may succeed the next time is made, in all.

    Raises:
        OSError: Amazon's service has no such bucket, or nothing answers.
    """
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
        background_writes=False,  # else all of a large object would wait in memory
        allow_delayed_open=True,  # what is small goes in one request
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=attempts),
    )


def reason(error: OSError) -> Reason:
    """What was wrong; without a code when the service had nothing to do with it."""
    found = _REASON.search(str(error))
    if found is None:
        return Reason("", None, str(error))
    code, status, text = found.groups()
    if code == "NETWORK_CONNECTION":
        text = f"the connection failed: {text.rpartition('Details: ')[2].strip()}"
    return Reason(code, int(status) if status else None, text)
