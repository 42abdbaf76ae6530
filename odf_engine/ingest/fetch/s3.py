"""Fetches S3 objects."""

from __future__ import annotations

import json
import re
from email.utils import parsedate_to_datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from odf_engine.errors import BadData, InvalidManifest, SourceUnavailable
from odf_engine.ingest.fetch.model import ETAG, LAST_MODIFIED, SOURCE_NAME, FetchContext, Payload
from odf_engine.metadata.model import FromSystemTime, SourceState, Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.address_policy import require_public_host
from odf_engine.net.download import AttemptFailed, PartialDownload, is_disk_error, run_with_retries
from odf_engine.net.s3_client import ACCESS_DENIED_CODES, BUCKET, endpoint_of, file_system, parse_s3_error

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_CHUNK: Final = 8 << 20
_URL: Final = re.compile(r"s3://([^/]+)/(.+)", re.IGNORECASE | re.DOTALL)
_TOLD: Final = {"etag": "ETag", "modified": "Last-Modified"}


def fetch_s3(step: Url, context: FetchContext) -> Payload | None:
    """Downloads the object unless it is as the source state remembers it.

    Raises:
        SourceUnavailable: no such object, no access, no connection.
        BadData: the object was written anew all the while.
        InvalidManifest: the URL is not of the form ``s3://BUCKET/KEY``.
    """
    found = _URL.fullmatch(context.substitute_variables(step.url))
    if found is None or not BUCKET.fullmatch(found[1]):
        raise InvalidManifest("is not of the form s3://BUCKET/KEY", where=step.url, hint="check fetch.url")
    key = json.dumps([context.config.s3_endpoint, found[1], found[2]])
    partial = PartialDownload(context.downloads or context.job / "downloads", key)
    attempt = _Attempt(step, found[1], found[2], context, partial)
    return run_with_retries(
        attempt.run, partial=partial, abort=attempt.abort, config=context.config, reporter=context.reporter
    )


class _Attempt:
    """One look at the object and its download, as often as it takes."""

    def __init__(
        self, step: Url, bucket: str, key: str, context: FetchContext, partial: PartialDownload
    ) -> None:
        self.step = step
        self.bucket = bucket
        self.key = key
        self.context = context
        self.partial = partial
        self.stopped = False

    def run(self) -> Payload | None:
        try:
            return self._exchange(_file_system(self.bucket, self.context))
        except FileNotFoundError:
            error = SourceUnavailable(
                "there is no such object", where=self.step.url, hint="check bucket and key in fetch.url"
            )
            raise AttemptFailed(error, again=False) from None
        except OSError as error:
            if is_disk_error(error):
                raise
            raise self._failure(error) from None

    def abort(self) -> None:
        self.stopped = True

    def _exchange(self, service: S3FileSystem) -> Payload | None:
        reporter, partial, url = self.context.reporter, self.partial, self.step.url
        begun = monotonic()
        reporter.log(f"asking for {url}")
        path = f"{self.bucket}/{self.key}"
        with service.open_input_file(path) as source:
            facts = _version(source)
            state = _state_of(facts)
            if state is not None and state == self.context.state:
                partial.restart()
                reporter.log(f"{url} has not changed ({state.kind} {state.value})")
                return None
            if partial.facts != facts:
                partial.restart(**facts)
            self._download(source, int(facts["size"]))
        with service.open_input_file(path) as source:
            if _version(source) != facts:
                partial.restart()
                error = BadData("was written anew while it was downloaded", where=url, hint="pull again")
                raise AttemptFailed(error, again=True)
        target = self.context.job / "fetched"
        partial.finish(target)
        took = f"{facts['size']:,} bytes in {monotonic() - begun:.1f} s"
        reporter.log(f"{url}, {took}, of {facts.get('modified', 'an unknown time')}")
        by_clock = isinstance(self.step.event_time, FromSystemTime)
        return Payload(target, url, state, None if by_clock else _moment(facts))

    def _download(self, source: Any, total: int) -> None:
        reporter, partial = self.context.reporter, self.partial
        if partial.size:
            reporter.log(f"{self.step.url} from byte {partial.size:,} on")
        while partial.size < total and not self.stopped:
            chunk = source.read_at(min(_CHUNK, total - partial.size), partial.size)
            if not chunk:
                raise OSError(f"the connection ended after {partial.size:,} of {total:,} bytes")
            reporter.raise_if_cancelled()
            partial.write(chunk)
            reporter.set_amounts(bytes=partial.size, total_bytes=total)

    def _failure(self, error: OSError) -> AttemptFailed:
        found = parse_s3_error(error)
        text, again, hint = found.text, not found.is_permanent, "pull again later"
        if found.code in ACCESS_DENIED_CODES:
            again, text = False, "the service does not let this object be read"
            hint = (
                "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws);"
                " for a public bucket: odf config set fetch.s3Anonymous true"
            )
        elif found.code == "NETWORK_CONNECTION":
            hint = "check the network and fetch.s3Endpoint, then pull again"
        elif found.code == "INTERNAL_FAILURE":
            text = "the download broke off"
        elif found.status is not None:
            text = f"the service answered {found.status}"
            if found.status == 301:
                hint = "the bucket is in another region: odf config set fetch.s3Region REGION"
        return AttemptFailed(SourceUnavailable(text, where=self.step.url, hint=hint), again=again)


def _file_system(bucket: str, context: FetchContext) -> S3FileSystem:
    endpoint = endpoint_of(context.config)
    if context.untrusted and endpoint:
        require_public_host(urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or "")
    # Attempts are made, and told, by whoever called.
    anonymous = context.config.s3_anonymous or context.untrusted
    return file_system(bucket, context.config, endpoint=endpoint, anonymous=anonymous)


def _version(source: Any) -> dict[str, Any]:
    told: dict[str, bytes] = source.metadata() or {}
    facts: dict[str, Any] = {"size": source.size()}
    facts |= {name: told[key].decode() for name, key in _TOLD.items() if key in told}
    return facts


def _state_of(facts: dict[str, Any]) -> SourceState | None:
    if "etag" in facts:
        return SourceState(SOURCE_NAME, ETAG, facts["etag"])
    modified = _moment(facts)
    return SourceState(SOURCE_NAME, LAST_MODIFIED, str(modified)) if modified else None


def _moment(facts: dict[str, Any]) -> Timestamp | None:
    try:
        return Timestamp.parse(facts["modified"])
    except KeyError:
        return None
    except ValueError:
        return Timestamp.from_datetime(parsedate_to_datetime(facts["modified"]))
