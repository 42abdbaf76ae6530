"""Fetches S3 objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
from odf_engine.net.download import AttemptFailed, is_disk_error, run_cancellable

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import ObjectStore

_CHUNK: Final = 1 << 20
_LIST_PAGE: Final = 1000
_FOLDER: Final = re.compile(r"s3://([^/]+)/?(.*)", re.IGNORECASE | re.DOTALL)
_Result = TypeVar("_Result")
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


def list_s3_objects(
    url: str, name: str, after: str, context: FetchContext
) -> Iterator[tuple[str, Timestamp]]:
    """Yield the keys of objects below a prefix, relative to it, with the times when they were stored.

    Args:
        url: ``s3://BUCKET/PREFIX``, with its variables substituted.
        name: the URL for messages.
        after: the last relative key that is not needed, or "" for all keys.
        context: limits, reporter and address policy.

    Raises:
        SourceUnavailable: no access, no such bucket, no connection.
        InvalidManifest: the URL is not of this form.
    """
    import obstore  # deferred: few sources need the library

    match = _FOLDER.fullmatch(url)
    if match is None or not BUCKET.fullmatch(match[1]):
        raise InvalidManifest("invalid S3 URL", where=name, hint="use the form s3://BUCKET/PREFIX/")
    bucket, prefix = match[1], f"{match[2].strip('/')}/" if match[2].strip("/") else ""
    location, config, reporter = BucketLocation("s3", "", bucket, ""), context.config, context.reporter

    def attempt(work: Callable[[], _Result]) -> _Result:
        def translated() -> _Result:
            with _failures(name):
                return work()

        try:
            return run_cancellable(translated, lambda: None, reporter)
        except AttemptFailed as failure:  # the library retries
            raise failure.error from None

    store = attempt(lambda: open_store(location, config, untrusted=context.untrusted, retries=config.retries))
    offset = f"{prefix}{after}" if after else None
    pages = attempt(lambda: obstore.list(store, prefix or None, offset=offset, chunk_size=_LIST_PAGE))
    while page := attempt(lambda: next(pages, None)):
        for entry in page:
            yield entry["path"].removeprefix(prefix), Timestamp.from_datetime(entry["last_modified"])


class _S3Transfer(Transfer):
    """A download of an S3 object: one request, which also returns the version of the object."""

    def __init__(self, step: Url, bucket: str, key: str, context: FetchContext) -> None:
        super().__init__(step, step.url, context, [context.config.s3_endpoint, bucket, key])
        self._location = BucketLocation("s3", "", bucket, "")
        self._key = key
        self._is_stopped = False

    def attempt(self) -> Payload | None:
        # Deferred: few sources need the library.
        from obstore.exceptions import NotModifiedError, PreconditionError

        try:
            # The transfer retries, and logs it.
            config, untrusted = self.context.config, self.context.untrusted
            with _failures(self.name):
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


@contextmanager
def _failures(name: str) -> Iterator[None]:
    """Translate the errors of the library into :class:`AttemptFailed`, except for conditions that fail."""
    from obstore.exceptions import BaseError, NotModifiedError, PreconditionError  # deferred

    try:
        yield
    except (NotModifiedError, PreconditionError):
        raise
    except (BaseError, FileNotFoundError) as error:
        raise _failure(parse_store_error(error), name) from None
    except ValueError as error:
        problem = f"invalid key: {str(error)[:200]}"
        raise AttemptFailed(SourceUnavailable(problem, where=name), again=False) from None
    except OSError as error:
        if is_disk_error(error):
            raise
        raise _failure(parse_setup_error(error), name) from None


def _failure(error: StoreError, name: str) -> AttemptFailed:
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
    failure: OdfError = SourceUnavailable(text, where=name, hint=hint)
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
