"""Fetches S3 objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from odf_engine.errors import BadData, InvalidManifest, SourceUnavailable
from odf_engine.ingest.fetch.model import FetchContext, Payload
from odf_engine.ingest.fetch.transfer import Transfer, source_state
from odf_engine.metadata.model import Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.address_policy import require_public_host
from odf_engine.net.download import AttemptFailed, is_disk_error
from odf_engine.net.s3_client import ACCESS_DENIED_CODES, BUCKET, endpoint_of, file_system, parse_s3_error

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_CHUNK: Final = 8 << 20
_URL: Final = re.compile(r"s3://([^/]+)/(.+)", re.IGNORECASE | re.DOTALL)
_VERSION_KEYS: Final = {"etag": "ETag", "modified": "Last-Modified"}


def fetch_s3(step: Url, context: FetchContext) -> Payload | None:
    """Download the object, unless it has the source state of the chain.

    Raises:
        SourceUnavailable: no such object, no access, no connection.
        BadData: the object was overwritten during the download.
        InvalidManifest: the URL is not of the form ``s3://BUCKET/KEY``.
    """
    found = _URL.fullmatch(context.substitute_variables(step.url))
    if found is None or not BUCKET.fullmatch(found[1]):
        raise InvalidManifest(
            "invalid S3 URL", where=step.url, hint="use the form s3://BUCKET/KEY in fetch.url"
        )
    return _S3Transfer(step, found[1], found[2], context).fetch()


class _S3Transfer(Transfer):
    """A download of an S3 object."""

    def __init__(self, step: Url, bucket: str, key: str, context: FetchContext) -> None:
        super().__init__(step, step.url, context, [context.config.s3_endpoint, bucket, key])
        self._bucket, self._key = bucket, key
        self._is_stopped = False

    def attempt(self) -> Payload | None:
        try:
            return self._exchange(_file_system(self._bucket, self.context))
        except FileNotFoundError:
            hint = "check bucket and key in fetch.url"
            error = SourceUnavailable("object not found", where=self.name, hint=hint)
            raise AttemptFailed(error, again=False) from None
        except OSError as error:
            if is_disk_error(error):
                raise
            raise self._failure(error) from None

    def abort(self) -> None:
        self._is_stopped = True

    def _exchange(self, service: S3FileSystem) -> Payload | None:
        self.reporter.log(f"GET {self.name}")
        path = f"{self._bucket}/{self._key}"
        with service.open_input_file(path) as source:
            facts = _version(source)
            state = source_state(facts.get("etag"), _modified(facts))
            if state is not None and self.is_unchanged(state, f"({state.kind} {state.value})"):
                return None
            if self.partial.facts != facts:
                self.partial.restart(**facts)
            if self.partial.size:
                self.reporter.log(f"resuming {self.name} from byte {self.partial.size:,}")
            self.store(self._pieces(source, int(facts["size"])), int(facts["size"]))
        with service.open_input_file(path) as source:
            if _version(source) != facts:
                self.partial.restart()
                error = BadData(
                    "the object was overwritten during the download", where=self.name, hint="pull again"
                )
                raise AttemptFailed(error, again=True)
        return self.finish(state, _modified(facts), f"modified {facts.get('modified', 'at an unknown time')}")

    def _pieces(self, source: Any, total: int) -> Iterator[bytes]:
        at = self.partial.size
        while at < total and not self._is_stopped:
            chunk = source.read_at(min(_CHUNK, total - at), at)
            if not chunk:
                raise OSError(f"connection error: closed after {at:,} of {total:,} bytes")
            at += len(chunk)
            yield chunk

    def _failure(self, error: OSError) -> AttemptFailed:
        found = parse_s3_error(error)
        text, again, hint = found.text, not found.is_permanent, "try again later"
        if found.code in ACCESS_DENIED_CODES:
            again, text = False, "access to the object denied"
            hint = (
                "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws);"
                " for a public bucket: odf config set fetch.s3Anonymous true"
            )
        elif found.code == "NETWORK_CONNECTION":
            hint = "check the network and fetch.s3Endpoint, then pull again"
        elif found.code == "INTERNAL_FAILURE":
            text = "the download was interrupted"
        elif found.status is not None:
            text = f"the service returned {found.status}"
            if found.status == 301:
                hint = "set the region of the bucket: odf config set fetch.s3Region REGION"
        return AttemptFailed(SourceUnavailable(text, where=self.name, hint=hint), again=again)


def _file_system(bucket: str, context: FetchContext) -> S3FileSystem:
    endpoint = endpoint_of(context.config)
    if context.untrusted and endpoint:
        require_public_host(urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or "")
    # Retries are those of the transfer, which logs them.
    anonymous = context.config.s3_anonymous or context.untrusted
    return file_system(bucket, context.config, endpoint=endpoint, anonymous=anonymous)


def _version(source: Any) -> dict[str, Any]:
    metadata: dict[str, bytes] = source.metadata() or {}
    facts: dict[str, Any] = {"size": source.size()}
    facts |= {name: metadata[key].decode() for name, key in _VERSION_KEYS.items() if key in metadata}
    return facts


def _modified(facts: dict[str, Any]) -> Timestamp | None:
    try:
        return Timestamp.parse(facts["modified"])
    except KeyError:
        return None
    except ValueError:
        return Timestamp.from_datetime(parsedate_to_datetime(facts["modified"]))
