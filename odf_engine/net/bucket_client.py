"""Client for buckets of object stores: S3, Google Cloud Storage and Azure Blob Storage.

Requests are sent by the library obstore. A blocking request runs in a thread, which is abandoned on
cancellation. The library resolves names and follows redirects itself, so the addresses of its connections
cannot be checked. Redirects to other hosts fail, unless a proxy of the environment is used. Therefore
repositories on web servers use `http_client`.
"""

from __future__ import annotations

import html
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from odf_engine.base.config import FetchConfig
from odf_engine.errors import (
    ConditionalWriteUnsupported,
    NotFound,
    ObjectUnchanged,
    OdfError,
    SourceUnavailable,
    UsageError,
    WriteConditionFailed,
)
from odf_engine.net.address_policy import require_public_host
from odf_engine.net.bucket_credentials import Options, azure_options, google_options, s3_options
from odf_engine.net.connector import find_proxy_url
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.net.download import StoppableReporter, run_cancellable
from odf_engine.net.http_connection import MIN_BYTES_PER_SECOND

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, PutResult, UpdateVersion
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

BUCKET: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,253}[a-zA-Z0-9]")
"""Valid names of buckets and containers."""
PART_BYTES: Final = 5 << 20
"""Larger objects are stored by a multipart upload, in parts of at least as many bytes."""
_MAX_PARTS: Final = 10_000
_PARALLEL_PARTS: Final = 2  # of one upload; several objects are sent at the same time
_MIN_UPLOAD_RATE: Final = 8 << 10  # bytes per second of one request
_PIECE_BYTES: Final = 1 << 18
_WRITER: Final = "odfwriter"  # services and proxies differ in the other characters that they allow
_MAX_SECONDS: Final = timedelta(days=30)  # of one request: a read timeout applies to each of its reads
_RETRY_SECONDS: Final = timedelta(minutes=10)
_NOWHERE: Final = "http://127.0.0.1:9"
"""A proxy that does not exist. Hosts to which only a redirect could lead are reached through it: they would
get the session token of the request, which the library does not remove."""
_METADATA_HOSTS: Final = "169.254.169.254,169.254.170.2,metadata.google.internal,localhost,127.0.0.0/8,::1"
_GOOGLE_HOSTS: Final = (
    *_METADATA_HOSTS.split(","),
    "accounts.google.com",
    "oauth2.googleapis.com",
    "sts.googleapis.com",
    "iamcredentials.googleapis.com",
)
_AZURE_HOSTS: Final = ("login.microsoftonline.com", "login.microsoftonline.us", "login.chinacloudapi.cn")
_AMAZON_REGION: Final = "us-east-1"
Provider = Literal["s3", "gs", "az"]
_Result = TypeVar("_Result")


class BucketLocation(NamedTuple):
    """The keys below a prefix in a bucket.

    Attributes:
        provider: protocol of the service.
        endpoint: URL of the service, or "" for the one of the provider or of the environment.
        bucket: bucket, or container of Azure.
        prefix: without slashes at its ends; may be empty.
    """

    provider: Provider
    endpoint: str
    bucket: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> BucketLocation:
        """Parse an ``s3:``, ``s3+http(s):``, ``gs:`` or ``az:`` URL.

        Raises:
            UsageError: it has no valid bucket name.
        """
        parts = urlsplit(url)
        scheme, _, transport = parts.scheme.partition("+")
        provider: Provider = "gs" if scheme == "gs" else "az" if scheme == "az" else "s3"
        path = unquote(parts.path).strip("/")
        endpoint, bucket, prefix = "", parts.netloc, path
        if transport:
            endpoint = f"{transport}://{parts.netloc}"
            bucket, _, prefix = path.partition("/")
        if not BUCKET.fullmatch(bucket):
            hint = "use s3://BUCKET/PREFIX/, s3+https://HOST/BUCKET/PREFIX/, gs://BUCKET/ or az://CONTAINER/"
            raise UsageError("the URL has no valid bucket name", where=url, hint=hint)
        return cls(provider, endpoint, bucket, prefix)

    def key(self, name: str) -> str:
        """Return the key of an object below the prefix."""
        return f"{self.prefix}/{name}".strip("/")


def open_store(
    location: BucketLocation,
    config: FetchConfig,
    *,
    login: Login | None = None,
    untrusted: bool = False,
    retries: int = 0,
    request_bytes: int = 0,
) -> ObjectStore:
    """Return the store of a bucket. May send requests to find region and credentials.

    Args:
        location: the bucket; its prefix is not used.
        config: timeouts, endpoint and region.
        login: credentials; by default from the environment.
        untrusted: send no credentials, use no proxy, and connect to public addresses only.
        retries: the retries of a request that failed temporarily.
        request_bytes: maximum size of an upload request; it extends the read timeout.

    Raises:
        SourceUnavailable: an address that is not public; a profile that cannot be used.
        UsageError: incomplete credentials.
        OSError: the bucket does not exist, or a host name cannot be resolved.
    """
    # Deferred: few commands need the library.
    from obstore.store import AzureStore, GCSStore, S3Store

    retry: RetryConfig = {
        "max_retries": retries,
        "retry_timeout": _RETRY_SECONDS,
        "backoff": {
            "init_backoff": timedelta(seconds=min(0.5, config.longest_pause_seconds)),
            "max_backoff": timedelta(seconds=config.longest_pause_seconds),
        },
    }
    endpoint = location.endpoint
    if location.provider == "s3":
        endpoint = endpoint or endpoint_of(config)
        region = config.s3_region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        region = region or (_AMAZON_REGION if endpoint else _find_region(location.bucket))
        # Else a variable of the environment would replace the endpoint of the URL.
        is_amazon, endpoint = not endpoint, _with_scheme(endpoint or _amazon(region, location.bucket))
        virtual = is_amazon and "." not in location.bucket
        options = s3_options(login, anonymous=untrusted or config.s3_anonymous)
        options["config"] |= {
            "endpoint": endpoint,
            "aws_endpoint_url_s3": endpoint,
            "region": region,
            "virtual_hosted_style_request": virtual,
        }
        hosts = _role_hosts(region) if _finds_credentials(options) else ()
        client = _client_options(endpoint, config, untrusted, request_bytes, hosts)
        return S3Store(location.bucket, client_options=client, retry_config=retry, **options)
    if location.provider == "gs":
        endpoint = os.environ.get("GOOGLE_BASE_URL") or "https://storage.googleapis.com"
        options = google_options(login, anonymous=untrusted)
        hosts = _GOOGLE_HOSTS if _finds_credentials(options) else ()
        client = _client_options(endpoint, config, untrusted, request_bytes, hosts)
        return GCSStore(location.bucket, client_options=client, retry_config=retry, **options)
    options = azure_options(login, anonymous=untrusted)
    endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT")
    if not endpoint and os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true"):
        endpoint = os.environ.get("AZURITE_BLOB_STORAGE_URL") or "http://127.0.0.1:10000"
    endpoint = endpoint or f"https://{options['config']['account_name']}.blob.core.windows.net"
    hosts = _azure_hosts() if _finds_credentials(options) else ()
    client = _client_options(endpoint, config, untrusted, request_bytes, hosts)
    return AzureStore(location.bucket, client_options=client, retry_config=retry, **options)


def read_start(url: str, config: FetchConfig, limit: int) -> Iterator[bytes]:
    """Yield the first ``limit`` bytes of the object at an ``s3:`` URL.

    Raises:
        SourceUnavailable: it cannot be read.
    """
    # Deferred: few commands need the library.
    import obstore
    from obstore.exceptions import BaseError

    location = BucketLocation.of(url)
    try:
        response = obstore.get(open_store(location, config, retries=config.retries), location.prefix)
        for chunk in response.stream(_PIECE_BYTES):
            yield bytes(chunk)[:limit]
            limit -= len(chunk)
            if limit <= 0:
                return
    except (BaseError, OSError) as error:
        known = isinstance(error, BaseError | FileNotFoundError)
        problem = parse_store_error(error) if known else parse_setup_error(error)
        text = problem.text or f"the service returned {problem.status}"
        raise SourceUnavailable(text, where=url, hint="check the URL and the credentials") from None


def endpoint_of(config: FetchConfig) -> str:
    """Return the S3 endpoint of the settings or the environment, or "" for Amazon."""
    return (
        config.s3_endpoint
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or ""
    )


def _with_scheme(endpoint: str) -> str:
    return endpoint if "://" in endpoint else f"https://{endpoint}"


def _amazon(region: str, bucket: str) -> str:
    """Return Amazon's endpoint. A certificate is not valid for a host with dots in the bucket's name."""
    host = f"s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
    return host if "." in bucket else f"{bucket}.{host}"


def _find_region(bucket: str) -> str:
    # Deferred: Arrow is slow to import. obstore cannot find the region of a bucket.
    from pyarrow.fs import resolve_s3_region

    return resolve_s3_region(bucket)


def _finds_credentials(options: Options) -> bool:
    """Return whether the library requests the credentials itself."""
    return "credential_provider" not in options and not options["config"].get("skip_signature")


def _role_hosts(region: str) -> tuple[str, ...]:
    """Return the hosts that give the library the credentials of a role."""
    names = ("AWS_ENDPOINT_URL_STS", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_METADATA_ENDPOINT")
    sts = ("sts.amazonaws.com", f"sts.{region}.amazonaws.com", f"sts.{region}.amazonaws.com.cn")
    return (
        *sts,
        "169.254.170.23",
        "fd00:ec2::23",
        "fd00:ec2::254",
        *_METADATA_HOSTS.split(","),
        *_hosts_of(names),
    )


def _azure_hosts() -> tuple[str, ...]:
    """Return the hosts that give the library the tokens of an identity."""
    names = ("AZURE_AUTHORITY_HOST", "IDENTITY_ENDPOINT", "AZURE_MSI_ENDPOINT")
    return (*_AZURE_HOSTS, *_METADATA_HOSTS.split(","), *_hosts_of(names))


def _hosts_of(variables: Iterable[str]) -> Iterator[str]:
    """Yield the hosts of URLs in the environment."""
    for name in variables:
        with suppress(ValueError):
            if host := urlsplit(os.environ.get(name, "")).hostname:
                yield host


def _client_options(
    endpoint: str, config: FetchConfig, untrusted: bool, request_bytes: int, hosts: Sequence[str]
) -> ClientConfig:
    """Return the options of the HTTP client; ``hosts`` give the credentials."""
    parts = urlsplit(endpoint)
    if untrusted:
        require_public_host(parts.hostname or "")
    proxy = None if untrusted else find_proxy_url(parts)
    direct = ",".join((parts.hostname or "", *hosts))
    url, excluded = (proxy, _METADATA_HOSTS) if proxy else (_NOWHERE, direct)
    patience = config.read_timeout_seconds + request_bytes / _MIN_UPLOAD_RATE
    return {
        "allow_http": endpoint.startswith("http:"),
        "connect_timeout": timedelta(seconds=config.connect_timeout_seconds),
        "read_timeout": timedelta(seconds=patience),
        "timeout": _MAX_SECONDS,
        "user_agent": "odf-workstation",
        "proxy_url": url,
        "proxy_excludes": excluded,
    }


ErrorKind = Literal[
    "missing", "no bucket", "denied", "expired", "busy", "region", "condition", "unsupported", "request",
    "service", "connection", "certificate",
]  # fmt: skip
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,80})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_REASON: Final = re.compile(r'(?:message|error): "([^"\\]{1,200})"')
_HOST: Final = re.compile(r"Error performing \w+ \w+://([^/\s?]+)")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\((?:\s*Other(?:Error)?\()*\s*(\w+)")
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"})
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_DENIED: Final = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"})
_CREDENTIAL_HOSTS: Final = ("169.254.169.254", "metadata.google.internal", "metadata")
"""The services of clouds that return the credentials of a machine."""


class StoreError(NamedTuple):
    """An error of a request, without URLs and credentials.

    Attributes:
        kind: ``condition`` is a failed condition of a write or read, ``unsupported`` a request that the
            service does not implement, ``request`` another refusal, ``service`` a failure of the service.
        status: HTTP status, or None if there was no response.
        text: reason that the service or the connection reported; may be empty.
    """

    kind: ErrorKind
    status: int | None
    text: str

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in ("busy", "service", "connection")


def parse_store_error(error: Exception) -> StoreError:
    """Return what an exception of the library reports."""
    text = str(error)
    summary = text.partition("\n\nDebug source:")[0]
    status = int(match[1]) if (match := _STATUS.search(summary)) else None
    if any(f"://{host}/" in summary for host in _CREDENTIAL_HOSTS):
        return StoreError("denied", None, "no credentials found")
    code = match[1] if (match := _CODE.search(text)) else ""
    reason = html.unescape(match[1]) if (match := _MESSAGE.search(summary)) else ""
    if code in _NO_BUCKET:
        return StoreError("no bucket", status, reason)
    if isinstance(error, FileNotFoundError):
        return StoreError("missing", status, reason)
    if code in _EXPIRED:
        return StoreError("expired", status, reason)
    if status in (401, 403) or code in _DENIED or type(error).__name__ in _DENIED_ERRORS:
        return StoreError("denied", status, reason)
    if "redirect without LOCATION" in summary or status in (301, 307):
        return StoreError("region", status or 301, reason)
    if status in (304, 409, 412) or type(error).__name__ in _CONDITION_ERRORS:
        return StoreError("condition", status, reason)
    if status == 501 or type(error).__name__ == "NotSupportedError":
        return StoreError("unsupported", status, reason)
    if status in (429, 503) or code == "SlowDown":
        return StoreError("busy", status, reason)
    if status is not None:
        return StoreError("service" if status >= 500 else "request", status, reason or code)
    return _connection_error(summary, text)


_DENIED_ERRORS: Final = ("PermissionDeniedError", "UnauthenticatedError")
_CONDITION_ERRORS: Final = ("PreconditionError", "AlreadyExistsError", "NotModifiedError")


def _connection_error(summary: str, text: str) -> StoreError:
    host = match[1].rpartition("@")[2] if (match := _HOST.search(summary)) else ""
    if (match := _CERTIFICATE.search(text)) is not None:
        return StoreError("certificate", None, f"invalid certificate: {match[1]}")
    if "kind: Timeout" in text or "TimedOut" in text:
        return StoreError("connection", None, "no response: timeout")
    if '"dns error"' in text:
        return StoreError("connection", None, f"cannot resolve host name {host}".rstrip())
    if "HTTP error" in summary or "kind: Connect" in text or "kind: Body" in text:
        reason = match[1].lower() if (match := _REASON.search(text)) else "closed by the server"
        return StoreError("connection", None, f"connection failed: {host}: {reason}")
    return StoreError("service", None, "invalid response")


_LOGIN: Final[dict[Provider, str]] = {
    "s3": "run odf repo login URL, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "run odf repo login URL, or set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "run odf repo login URL, or set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class StoredObject(NamedTuple):
    """A small object, or its first bytes.

    Attributes:
        data: the bytes.
        version: the version for a conditional write.
        writer: identifies the write, see :meth:`BucketClient.write`, or "" if that is not known.
    """

    data: bytes
    version: UpdateVersion
    writer: str = ""


class BucketClient:
    """Cancellable requests to one bucket, with retries; safe from several threads.

    Methods raise:
        NotFound: the bucket does not exist.
        SourceUnavailable: the service does not respond, or refuses, after the retries.
        Cancelled: immediately, also after :meth:`close`.
    """

    def __init__(self, url: str, access: RemoteAccess) -> None:
        self.location = BucketLocation.of(url)
        self.config = access.config.fetch
        self._url = url
        self._login = access.credentials.of(url)
        self._reporter = StoppableReporter(access.reporter)
        self._lock = threading.Lock()
        self._stores: dict[int, ObjectStore] = {}

    @property
    def service(self) -> str:
        """Identifies the service: its endpoint, or the provider."""
        location = self.location
        return (
            location.endpoint
            or (endpoint_of(self.config) if location.provider == "s3" else "")
            or location.provider
        )

    def close(self) -> None:
        """Cancel the requests in other threads; final."""
        self._reporter.end()

    def read(self, name: str, max_bytes: int) -> StoredObject | None:
        """Return an object, or more than ``max_bytes`` of its first bytes, or None if it does not exist."""
        import obstore  # deferred: few commands need the library

        def get(store: ObjectStore) -> StoredObject:
            response = obstore.get(store, self.location.key(name))
            data, chunks = b"", response.stream(max_bytes + 1)
            for chunk in chunks:
                data += bytes(chunk)
                if len(data) > max_bytes:
                    break
            writer = str(response.attributes.get(_WRITER, ""))
            return StoredObject(data[: max_bytes + 1], version_of(response.meta), writer)

        return self._run_if_exists(name, get)

    def read_changed(self, name: str, max_bytes: int, known: UpdateVersion) -> StoredObject | None:
        """Return an object as :meth:`read` does, unless it has the version ``known``.

        Raises:
            ObjectUnchanged: it has.
        """
        import obstore

        def get(store: ObjectStore) -> StoredObject:
            response = obstore.get(
                store, self.location.key(name), options={"if_none_match": known.get("e_tag") or "*"}
            )
            return StoredObject(bytes(response.bytes())[: max_bytes + 1], version_of(response.meta))

        if not known.get("e_tag"):
            return self.read(name, max_bytes)
        try:
            return self._run_if_exists(name, get, conditional=True)
        except WriteConditionFailed:
            raise ObjectUnchanged(f"{name} has not changed") from None

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""
        import obstore

        return self._run_if_exists(name, lambda store: obstore.head(store, self.location.key(name))["size"])

    def sign(self, names: Sequence[str], validity: timedelta) -> list[str] | None:
        """Return URLs that read objects without credentials, or None if they cannot be signed.

        Args:
            names: the objects.
            validity: the time after which the URLs expire.
        """
        import obstore

        sign: Any = obstore.sign
        keys = [self.location.key(name) for name in names]
        with suppress(OdfError):
            return self._run("objects", lambda store: sign(store, "GET", keys, validity))
        return None

    def chunks(self, name: str, start: int, end: int) -> Iterator[bytes] | None:
        """Yield the bytes of an object from ``start`` up to ``end``, or None if it does not exist.

        Stops early if the object has fewer bytes.

        Raises:
            SourceUnavailable: the connection broke, or the transfer rate is below the minimum.
        """
        import obstore

        def get(store: ObjectStore) -> Iterator[bytes]:
            response = obstore.get(store, self.location.key(name), options={"range": (start, end)})
            return iter(response.stream(_PIECE_BYTES))

        try:
            stream = self._run_if_exists(name, get)
        except _RangeNotSatisfiable:
            return iter(())
        if stream is None:
            return None

        def read() -> Iterator[bytes]:
            seconds = self.config.read_timeout_seconds + _PIECE_BYTES / MIN_BYTES_PER_SECOND
            while chunk := self._run(name, lambda _: next(stream, b""), seconds=seconds):
                yield bytes(chunk)

        return read()

    def write(self, name: str, data: bytes, mode: PutMode = "overwrite", writer: str = "") -> UpdateVersion:
        """Store a small object by one request, which is atomic; return its new version.

        Args:
            name: below the prefix.
            data: its bytes.
            mode: ``create``, or a version, for a conditional write.
            writer: is stored in the metadata of the object. If a response is lost, it shows whether the
                write was successful.

        Raises:
            WriteConditionFailed: the object exists, or has another version.
            ConditionalWriteUnsupported: the service does not implement the condition.
        """
        import obstore

        key = self.location.key(name)
        stored = self._run(
            name,
            lambda store: obstore.put(
                store,
                key,
                data,
                mode=mode,
                use_multipart=False,
                attributes={_WRITER: writer} if writer else None,
            ),
            request_bytes=0 if len(data) <= _PIECE_BYTES else PART_BYTES,
            conditional=mode != "overwrite",
        )
        return version_of(stored)

    def upload(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        """Store a large object by a multipart upload.

        It is aborted on cancellation, and if ``pieces`` raises an error, which this method then raises.
        """
        import obstore

        key, part = self.location.key(name), max(PART_BYTES, -(-size // _MAX_PARTS))
        failure: OdfError | None = None

        def put(store: ObjectStore) -> None:
            obstore.put(store, key, read(), chunk_size=part, max_concurrency=_PARALLEL_PARTS)

        def read() -> Iterator[bytes]:
            nonlocal failure
            try:
                for piece in pieces:
                    self._reporter.raise_if_cancelled()  # the thread of an abandoned upload would continue
                    yield piece
            except OdfError as error:
                failure = error
                raise

        try:
            self._run(name, put, request_bytes=part)
        except SourceUnavailable:
            if failure is not None:  # the service also failed to abort the upload
                raise failure from None
            raise

    def list(self, below: str) -> tuple[list[str], list[str]]:
        """Return the names of folders and of objects below a folder, without their parents.

        Raises:
            NotFound: there are none, and this is not the bucket itself.
        """
        import obstore

        prefix = self.location.key(below)
        listing = self._run(
            "the list of objects", lambda store: obstore.list_with_delimiter(store, prefix or None)
        )
        folders = [path.rpartition("/")[2] for path in listing["common_prefixes"]]
        names = [entry["path"].rpartition("/")[2] for entry in listing["objects"]]
        if prefix and not folders and not names:
            raise NotFound("no such folder", where=self._url)
        return folders, names

    def list_all(self, below: str) -> dict[str, datetime]:
        """Return the names of all objects below a folder, relative to it, and when they were stored."""
        import obstore

        prefix = self.location.key(below)

        def collect(store: ObjectStore) -> dict[str, datetime]:
            times: dict[str, datetime] = {}
            for page in obstore.list(store, prefix or None):
                self._reporter.raise_if_cancelled()
                times.update(
                    (entry["path"].removeprefix(prefix).lstrip("/"), entry["last_modified"]) for entry in page
                )
            return times

        return self._run("the list of objects", collect)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that do not exist are ignored."""
        import obstore

        keys = [self.location.key(name) for name in names]
        if keys:
            with suppress(NotFound):
                self._run("objects", lambda store: obstore.delete(store, keys))

    def _run_if_exists(
        self, what: str, work: Callable[[ObjectStore], _Result], *, conditional: bool = False
    ) -> _Result | None:
        try:
            return self._run(what, work, conditional=conditional)
        except _ObjectMissing:
            return None

    def _run(
        self,
        what: str,
        work: Callable[[ObjectStore], _Result],
        *,
        request_bytes: int = 0,
        seconds: float | None = None,
        conditional: bool = False,
    ) -> _Result:
        """Call ``work`` in a thread, which is abandoned on cancellation, or after so many seconds.

        Args:
            what: the object, for errors.
            work: sends requests.
            request_bytes: maximum size of one of them.
            seconds: maximum duration.
            conditional: whether the requests have a condition.
        """
        # Deferred: few commands need the library.
        from obstore.exceptions import BaseError

        try:
            return run_cancellable(
                lambda: work(self._store(request_bytes)), lambda: None, self._reporter, seconds=seconds
            )
        except TimeoutError:
            problem = "transfer too slow: less than 1 KiB/s"
            raise SourceUnavailable(problem, where=self._url, hint=_NETWORK_HINT) from None
        except (BaseError, FileNotFoundError) as error:
            raise self._failure(what, parse_store_error(error), conditional) from None
        except ValueError as error:
            # Keys with empty segments, such as a//b.
            raise SourceUnavailable(f"invalid key: {str(error)[:200]}", where=self._url) from None
        except OSError as error:
            raise self._failure(what, parse_setup_error(error), conditional) from None

    def _store(self, request_bytes: int) -> ObjectStore:
        with self._lock:
            if (known := self._stores.get(request_bytes)) is None:
                known = open_store(
                    self.location,
                    self.config,
                    login=self._login,
                    retries=self.config.retries,
                    request_bytes=request_bytes,
                )
                self._stores[request_bytes] = known
            return known

    def _failure(self, what: str, error: StoreError, conditional: bool) -> OdfError:
        bucket, url = self.location.bucket, self._url
        login = _LOGIN[self.location.provider]
        if self._login is not None:
            login = "check the stored login: odf repo login URL"
        match error.kind:
            case "missing":
                return _ObjectMissing(f"{what} not found", where=url)
            case "no bucket":
                hint = "check the URL, or create the bucket first"
                return NotFound(f"bucket {bucket} not found", where=url, hint=hint)
            case "condition" if conditional:
                return WriteConditionFailed(f"{what} was changed by another client", where=url)
            case "unsupported" if conditional:
                problem = f"the service does not support the request for {what}"
                return ConditionalWriteUnsupported(problem, where=url)
            case "expired":
                text, hint = "the credentials have expired", login
            case "denied":
                text, hint = f"access to {what} denied", f"{login}; check the permissions of the credentials"
                text = f"{text}: {error.text}" if error.status is None and error.text else text
            case "busy":
                text, hint = "too many requests", "try again later, or reduce sync.parallel"
            case "region":
                text = "the bucket is in another region"
                hint = "set the region: odf config set fetch.s3Region REGION"
            case "connection" | "certificate":
                text, hint = error.text, _NETWORK_HINT
            case _ if error.status == 416:
                return _RangeNotSatisfiable(f"{what} is shorter than expected", where=url)
            case _ if error.status == 400 and not error.text:  # of a HEAD request, which has no body
                text = f"the service returned 400 for {what}"
                hint = f"check that the credentials have not expired: {login}"
            case _:
                words = self._without_secrets(error.text)
                text = f"the service failed for {what}" + (f": {words}" if words else "")
                hint = "try again later"
        return SourceUnavailable(text, where=url, hint=hint)

    def _without_secrets(self, text: str) -> str:
        login = self._login
        for secret in (login.user, login.secret, login.token) if login else ():
            text = text.replace(secret, "…") if secret else text
        return "".join(char for char in text if char.isprintable())[:300]


_NETWORK_HINT: Final = "check the URL and the network, then try again"


class _ObjectMissing(NotFound):
    """An object does not exist."""


class _RangeNotSatisfiable(SourceUnavailable):
    """The range begins after the end of the object."""


def version_of(meta: ObjectMeta | PutResult) -> UpdateVersion:
    """Return what identifies the version of an object in a conditional write."""
    update_version: UpdateVersion = {}
    if meta["e_tag"] is not None:
        update_version["e_tag"] = meta["e_tag"]
    if meta["version"] is not None:
        update_version["version"] = meta["version"]
    return update_version


def parse_setup_error(error: OSError) -> StoreError:
    """Return what an error of :func:`open_store` reports."""
    if isinstance(error, socket.gaierror):
        return StoreError("connection", None, "cannot resolve host name")
    if str(error).startswith("Bucket "):
        return StoreError("no bucket", 404, "")
    return StoreError("connection", None, f"the region of the bucket cannot be found: {error}"[:200])
