"""Fetches S3 objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from odf_engine.errors import BadData, InvalidManifest, OdfError, SourceUnavailable
from odf_engine.ingest.fetch.model import ETAG, FetchContext, Payload
from odf_engine.ingest.fetch.transfer import Transfer, source_state
from odf_engine.metadata.model import Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.bucket_client import (
    BUCKET,
    BucketLocation,
    StoreError,
    open_store,
    parse_setup_error,
    parse_store_error,
)
from odf_engine.net.download import AttemptFailed, is_disk_error

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import ObjectStore

_CHUNK: Final = 1 << 20
_URL: Final = re.compile(r"s3://([^/]+)/(.+)", re.IGNORECASE | re.DOTALL)


def fetch_s3(step: Url, context: FetchContext) -> Payload | None:
    """Download the object, unless it has the source state of the chain.

    Raises:
        SourceUnavailable: no such object, no access, no connection.
        BadData: the object was overwritten during the download.
        InvalidManifest: the URL is not of the form ``s3://BUCKET/KEY``.
    """
    match = _URL.fullmatch(context.substitute_variables(step.url))
    if match is None or not BUCKET.fullmatch(match[1]):
        raise InvalidManifest(
            "invalid S3 URL", where=step.url, hint="use the form s3://BUCKET/KEY in fetch.url"
        )
    return _S3Transfer(step, match[1], match[2], context).fetch()


class _S3Transfer(Transfer):
    """A download of an S3 object: one request, which also returns the version of the object."""

    def __init__(self, step: Url, bucket: str, key: str, context: FetchContext) -> None:
        super().__init__(step, step.url, context, [context.config.s3_endpoint, bucket, key])
        self._location = BucketLocation("s3", "", bucket, "")
        self._key = key
        self._is_stopped = False

    def attempt(self) -> Payload | None:
        # Deferred: few sources need the library.
        from obstore.exceptions import BaseError, NotModifiedError, PreconditionError

        try:
            # The transfer retries, and logs it.
            config, untrusted = self.context.config, self.context.untrusted
            return self._exchange(open_store(self._location, config, untrusted=untrusted))
        except NotModifiedError:
            self.partial.restart()
            self.reporter.log(f"{self.name} not modified")
            return None
        except PreconditionError:
            self.partial.restart()
            problem = "the object was overwritten during the download"
            error = BadData(problem, where=self.name, hint="pull again")
            raise AttemptFailed(error, again=True) from None
        except (BaseError, FileNotFoundError) as error:
            raise self._failure(parse_store_error(error)) from None
        except ValueError as error:
            problem = f"invalid key: {str(error)[:200]}"
            raise AttemptFailed(SourceUnavailable(problem, where=self.name), again=False) from None
        except OSError as error:
            if is_disk_error(error):
                raise
            raise self._failure(parse_setup_error(error)) from None

    def abort(self) -> None:
        self._is_stopped = True

    def _exchange(self, store: ObjectStore) -> Payload | None:
        self.reporter.log(f"GET {self.name}")
        response = self._resume(store)
        if response is None:
            response = self._get(store, self._condition())
            facts = _version(response)
            state = source_state(facts.get("etag"), _modified(facts))
            if state is not None and self.is_unchanged(state, f"({state.kind} {state.value})"):
                return None
            self.partial.restart(**facts)
        facts = _version(response)
        self.store(self._pieces(response), int(facts["size"]))
        state = source_state(facts.get("etag"), _modified(facts))
        return self.finish(state, _modified(facts), f"modified {facts['modified']}")

    def _resume(self, store: ObjectStore) -> GetResult | None:
        """Request the rest of a partial download, if there is one of the present version."""
        first, etag = self.partial.size, self.partial.facts.get("etag")
        if not etag or not 0 < first < self.partial.facts["size"]:
            return None
        self.reporter.log(f"resuming {self.name} from byte {first:,}")
        return self._get(store, {"if_match": etag, "range": {"offset": first}})

    def _get(self, store: ObjectStore, options: GetOptions) -> GetResult:
        import obstore  # deferred: few sources need the library

        return obstore.get(store, self._key, options=options)

    def _condition(self) -> GetOptions:
        state = self.context.state
        return {"if_none_match": state.value} if state is not None and state.kind == ETAG else {}

    def _pieces(self, response: GetResult) -> Iterator[bytes]:
        for piece in response.stream(_CHUNK):
            if self._is_stopped:
                return
            yield bytes(piece)

    def _failure(self, error: StoreError) -> AttemptFailed:
        text, hint = error.text or f"the service returned {error.status}", "try again later"
        if error.status is not None and error.kind in ("busy", "service", "request"):
            text = f"the service returned {error.status}"
        if error.kind in ("missing", "no bucket"):
            text = "object not found" if error.kind == "missing" else "bucket not found"
            hint = "check bucket and key in fetch.url"
        elif error.kind in ("denied", "expired"):
            text = "access to the object denied"
            hint = (
                "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws);"
                " for a public bucket: odf config set fetch.s3Anonymous true"
            )
        elif error.kind == "connection":
            hint = "check the network and fetch.s3Endpoint, then pull again"
        elif error.kind == "region":
            text = "the service returned 301"
            hint = "set the region of the bucket: odf config set fetch.s3Region REGION"
        failure: OdfError = SourceUnavailable(text, where=self.name, hint=hint)
        return AttemptFailed(failure, again=error.is_temporary)


def _version(response: GetResult) -> dict[str, Any]:
    meta = response.meta
    facts: dict[str, Any] = {
        "size": meta["size"],
        "modified": str(Timestamp.from_datetime(meta["last_modified"])),
    }
    return facts | ({"etag": meta["e_tag"]} if meta["e_tag"] else {})


def _modified(facts: dict[str, Any]) -> Timestamp:
    return Timestamp.parse(facts["modified"])
