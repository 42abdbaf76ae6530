"""Served workspace: datasets, permissions, open pushes, cached messages."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from odf_engine.base.atomic_files import write_error
from odf_engine.base.config import ServeConfig
from odf_engine.base.files import write_all
from odf_engine.errors import Conflict, InvalidIdentity, NotFound, OdfError, SourceUnavailable, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias, DatasetPattern
from odf_engine.sync.remotes.base import ObjectFile
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.tokens import AccessToken, Tokens
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from aiohttp import web


PUSH_ORIGIN: Final = "pushed with the token"
"""Start of the origin of datasets that were pushed to this server."""
_MAX_MESSAGES: Final = 32
_MAX_CACHE_BYTES: Final = 256 << 20


class MessageFile:
    """A message in an unnamed file, which is deleted after its last use.

    Attributes:
        size: size in bytes.
    """

    def __init__(self, text: bytes, folder: Path) -> None:
        try:
            folder.mkdir(exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (it is kept)
            write_all(self._file.fileno(), text)
        except OSError as error:
            raise write_error(folder / "message", error) from error
        self.size = len(text)

    def read(self, start: int, count: int) -> bytes:
        """Return ``count`` bytes from offset ``start`` on; fewer at the end."""
        return os.pread(self._file.fileno(), count, start)


class MessageCache:
    """A cache of recent messages by their content key; for use in the event loop's thread only.

    Args:
        folder: folder of the files.
        run: runs a function in a thread.
        heavy: held while a message is in memory.
    """

    def __init__(
        self,
        folder: Path,
        run: Callable[..., Awaitable[MessageFile]],
        heavy: asyncio.Semaphore,
    ) -> None:
        self._folder = folder
        self._run = run
        self._heavy = heavy
        self._messages: OrderedDict[Hashable, MessageFile] = OrderedDict()
        self._making: dict[Hashable, asyncio.Task[MessageFile]] = {}

    async def get(self, key: Hashable, create: Callable[[], bytes]) -> MessageFile:
        """Return the message of this key; if it is not cached, ``create`` returns it in a thread."""
        cached = self._messages.get(key)
        if cached is not None:
            self._messages.move_to_end(key)
            return cached
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(self._make(key, create))
            task.add_done_callback(lambda _: self._making.pop(key))
        return await asyncio.shield(task)  # other tasks may wait for it too

    async def _make(self, key: Hashable, create: Callable[[], bytes]) -> MessageFile:
        async with self._heavy:
            message = await self._run(lambda: MessageFile(create(), self._folder))
        self._messages[key] = message
        while len(self._messages) > _MAX_MESSAGES or (
            len(self._messages) > 1 and sum(item.size for item in self._messages.values()) > _MAX_CACHE_BYTES
        ):
            self._messages.popitem(last=False)
        return message


ResultT = TypeVar("ResultT")
COMMON_HEADERS: Final = {"Server": "odf", "X-Content-Type-Options": "nosniff"}
"""Headers of every response."""
_MAX_THREADS: Final = 8
_MAX_LARGE_MESSAGES: Final = 4
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)


class Forbidden(OdfError):
    """The client lacks the permission for its request (403)."""


class Unauthorized(OdfError):
    """The request has no valid token (401)."""


class UnknownHost(OdfError):
    """The request is for a host name that is not one of this server (421)."""


@dataclass(frozen=True)
class ServedDataset:
    """A dataset that a client reads.

    Attributes:
        serving: the service.
        entry: the dataset.
        url: its URL for the client, with a trailing slash.
    """

    serving: DatasetService
    entry: DatasetEntry
    url: str


@dataclass(frozen=True)
class PushTarget:
    """The target of an authorized push.

    Attributes:
        serving: the service.
        alias: name of the dataset.
        entry: the dataset, or None if it does not exist yet.
        url: its URL for the client, with a trailing slash.
        token: token of the push; ``token.name`` is recorded as origin.
        authorization: the client's ``Authorization`` header, which its uploads need too.
    """

    serving: DatasetService
    alias: DatasetAlias
    entry: DatasetEntry | None
    url: str
    token: AccessToken
    authorization: str

    def check_seed(self, dataset_id: DatasetId) -> None:
        """Check that a pushed chain may be the target's; to be called before anything is stored.

        Raises:
            Conflict: the target is another dataset, or the dataset is in the workspace under another name.
            Forbidden: the dataset was created in this workspace; or the token does not cover it.
        """
        if self.entry is not None and self.entry.id != dataset_id:
            raise Conflict(f"{self.alias} is a different dataset on this server: {self.entry.id}")
        if self.entry is None:
            for other in self.serving.workspace.datasets():
                if other.id == dataset_id:
                    raise Conflict(f"the dataset already exists on this server, as {other.alias}")
        self.serving.check_push(self.token, self.alias, dataset_id)


@dataclass
class PushSession:
    """A push in progress: its announced objects, and their folder.

    Only announced objects are accepted, with the announced size.

    Attributes:
        target: target of the push.
        folder: folder of the dataset, or of a new one, in repository layout; must be set before objects are
            announced.
        announced: objects that may be uploaded, with their sizes.
        arrived: number of uploaded objects.
        bytes: size of the blocks and objects announced so far.
    """

    target: PushTarget
    folder: Path | None = None
    announced: dict[tuple[str, Multihash], int] = field(default_factory=dict)
    arrived: int = 0
    bytes: int = 0
    uploading: set[tuple[str, Multihash]] = field(default_factory=set)

    def announce(self, files: Iterable[ObjectFile]) -> None:
        """Allow the upload of these objects.

        Raises:
            Forbidden: more objects or bytes than one push may upload.
        """
        limits = self.target.serving.limits
        for file in files:
            if (key := (file.kind, file.hash)) in self.announced:
                continue
            if len(self.announced) >= limits.most_push_objects:
                raise Forbidden(f"a push has at most {limits.most_push_objects:,} objects")
            self.add_bytes(file.size)
            self.announced[key] = file.size

    def add_bytes(self, size: int) -> None:
        """Count received bytes of blocks or objects.

        Raises:
            Forbidden: more than one push may upload.
        """
        limits = self.target.serving.limits
        if size < 0 or self.bytes + size > limits.most_push_bytes:
            raise Forbidden(f"a push has at most {limits.most_push_bytes:,} bytes")
        self.bytes += size


class DatasetService:
    """A workspace that is being served.

    Attributes:
        workspace, limits, tokens: the workspace, limits and tokens of the service.
        allow_push: whether pushes are allowed.
        heavy: semaphore that limits the number of large messages in memory. It must not be held while waiting
            for a client.
        messages: cache of large messages.
        stopping: set when the server stops.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        limits: ServeConfig | None = None,
        allow_push: bool = False,
        patterns: Sequence[str] = (),
        tls: bool = False,
        host: str = "",
    ) -> None:
        """``patterns`` selects the served datasets, all if it is empty. ``host`` is the host listened on.

        Raises:
            InvalidIdentity: a pattern is malformed.
        """
        self.workspace = workspace
        self.limits = limits or workspace.config.serve
        self.allow_push = allow_push
        self.tokens = Tokens(workspace.odf)
        self.heavy = asyncio.Semaphore(_MAX_LARGE_MESSAGES)
        self.messages = MessageCache(workspace.odf / "cache", self.run, self.heavy)
        self.stopping = asyncio.Event()
        self._scheme = "https" if tls else "http"
        self._host_names = {
            normalize_host(name)
            for name in ("localhost", host, socket.gethostname(), *self.limits.host_names)
        }
        self._patterns = [DatasetPattern.parse(text) for text in patterns]
        self._pushes: dict[DatasetAlias, PushSession] = {}
        self._pulls: Counter[str] = Counter()
        self._records = 0
        self._threads = ThreadPoolExecutor(_MAX_THREADS, "serve")

    async def run(self, work: Callable[..., ResultT], *args: Any) -> ResultT:
        """Run a blocking function in a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    def close(self) -> None:
        """Shut down the thread pool."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def datasets(self) -> list[DatasetEntry]:
        """Return the served datasets by name."""
        return [dataset for dataset in self.workspace.datasets() if self.is_served(dataset.alias, dataset.id)]

    def is_served(self, alias: DatasetAlias, dataset_id: DatasetId) -> bool:
        """Return whether a dataset is served."""
        return not self._patterns or any(pattern.matches(alias, dataset_id) for pattern in self._patterns)

    def find(self, text: str) -> DatasetEntry:
        """Return the served dataset with this alias or id.

        Raises:
            UsageError: neither an alias nor an id.
            NotFound: it does not exist, or is not served.
        """
        try:
            entry = self.workspace.resolve(text)
        except InvalidIdentity:
            raise UsageError("invalid dataset name") from None
        except NotFound:
            entry = None  # the message contains local paths
        if entry is None or not self.is_served(entry.alias, entry.id):
            raise NotFound("dataset not found")
        return entry

    def authenticate(self, request: web.BaseRequest) -> AccessToken:
        """Return the token of a request.

        Raises:
            Unauthorized: it is missing, unknown, revoked or expired.
        """
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthorized("a token is required: Authorization: Bearer TOKEN")
        token = self.tokens.find(text.strip())
        if token is None:
            raise Unauthorized("the token is unknown, revoked or expired")
        self.tokens.record_use(token)
        return token

    def check_push(self, token: AccessToken, alias: DatasetAlias, dataset_id: DatasetId | None) -> None:
        """Check that a dataset may be pushed to; without its id, as far as possible.

        Raises:
            Forbidden: the push is not allowed; the message has the reason.
        """
        if not self.allow_push:
            raise Forbidden("this server is read-only")
        if not token.permits(alias, dataset_id) and (dataset_id is not None or not token.has_id_patterns):
            raise Forbidden(f"the token '{token.name}' does not permit pushing to {alias}")
        if dataset_id is not None and self._was_created_here(dataset_id):
            raise Forbidden(f"{alias} was created on this server, and cannot be pushed to")
        if dataset_id is not None and not self.is_served(alias, dataset_id):
            raise Forbidden(f"{alias} is not served")

    def _was_created_here(self, dataset_id: DatasetId) -> bool:
        """Return whether a dataset is one that was created in this workspace.

        Its key outlives it. A dataset that was deleted here can be pushed, as a new one; from then on its
        origin is a push.
        """
        if not self.workspace.keys.has_key(dataset_id):
            return False
        try:
            origin = Trust(self.workspace).read_origin(self.workspace.resolve(str(dataset_id)))
        except NotFound:
            return False
        return origin is None or not origin.startswith(PUSH_ORIGIN)

    def authorize_push(self, text: str, request: web.BaseRequest) -> PushTarget:
        """Return the target of a push; reads files.

        Raises:
            Unauthorized, Forbidden: the push is not allowed.
            UsageError: neither an alias nor an id.
            NotFound: an unknown id.
        """
        if not self.allow_push:
            raise Forbidden("this server is read-only")
        token = self.authenticate(request)
        try:
            entry = self.find(text)
        except NotFound:
            if text.lower().startswith("did:"):
                raise
            entry = None
        alias = DatasetAlias.parse(text) if entry is None else entry.alias
        self.check_push(token, alias, None if entry is None else entry.id)
        url = self.base_url(request) + text + "/"
        return PushTarget(self, alias, entry, url, token, request.headers["Authorization"])

    @contextmanager
    def push_session(self, target: PushTarget) -> Iterator[PushSession]:
        """Register a push for the duration of the block; one at a time for each dataset.

        Raises:
            Conflict: another push of the dataset is in progress.
            SourceUnavailable: too many pushes are in progress.
        """
        if target.alias in self._pushes:
            raise Conflict(f"another push of {target.alias} is in progress", hint="try again later")
        if len(self._pushes) >= self.limits.pushes:
            raise SourceUnavailable("too many concurrent pushes", hint="try again later")
        session = self._pushes[target.alias] = PushSession(target)
        try:
            yield session
        finally:
            del self._pushes[target.alias]

    def find_push(self, alias: DatasetAlias, token: AccessToken) -> PushSession | None:
        """Return the push of a dataset in progress with the same token."""
        session = self._pushes.get(alias)
        return session if session is not None and session.target.token.hash == token.hash else None

    @contextmanager
    def pull_session(self, address: str) -> Iterator[None]:
        """Register a smart pull for the duration of the block.

        Raises:
            SourceUnavailable: too many pulls are in progress, in total or from this address.
        """
        if self._pulls.total() >= self.limits.sessions or self._pulls[address] >= self.limits.sessions_each:
            raise SourceUnavailable("too many concurrent transfers", hint="try again later")
        self._pulls[address] += 1
        try:
            yield
        finally:
            self._pulls[address] -= 1
            self._pulls += Counter()  # removes addresses without pulls

    @contextmanager
    def record_upload(self) -> Iterator[None]:
        """Count the upload of a compaction record: each needs disk space before it is verified.

        Raises:
            SourceUnavailable: too many uploads are in progress.
        """
        if self._records >= self.limits.pushes:
            raise SourceUnavailable("too many concurrent pushes", hint="try again later")
        self._records += 1
        try:
            yield
        finally:
            self._records -= 1

    def client_address(self, request: web.BaseRequest) -> str:
        """Return the client address of a request, from the proxy's headers behind a proxy."""
        forwarded = _last_value(request.headers.get("X-Forwarded-For")) if self.limits.behind_proxy else ""
        return forwarded[:64] or request.remote or ""

    def check_host_and_origin(self, request: web.BaseRequest) -> None:
        """Check that a request does not come from a web page of another site.

        A page may open WebSockets to any server, and a DNS name that its author controls may resolve to this
        server. Programs send no ``Origin``.

        Raises:
            UsageError: the host is malformed.
            UnknownHost: the host is neither an IP address nor a name of this server.
            Forbidden: the origin is another site.
        """
        hosts = [host for host in (request.headers.get("Host", ""), self._public_host(request)) if host]
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise UsageError("the request has no valid host")
            if not self._is_own_host(host):
                name = _host_name(host)
                raise UnknownHost(
                    f"{name} is not a host name of this server; to allow it, start it with --host-name {name}"
                )
        origin = request.headers.get("Origin")
        if origin is None:
            return
        scheme, _, host = origin.partition("://")
        is_known = host in hosts or normalize_host(_host_name(host)) in map(
            normalize_host, self.limits.host_names
        )
        if scheme not in ("http", "https") or not is_known:
            raise Forbidden("web pages of other sites have no access to this server")

    def _is_own_host(self, host: str) -> bool:
        name = _host_name(host)
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            name = normalize_host(name)
            return name in self._host_names or name.endswith(".localhost")
        return True  # only DNS names can be directed to another server

    def _public_host(self, request: web.BaseRequest) -> str:
        """Return the host that the client used: the one that the proxy reports, or the ``Host`` header."""
        if self.limits.behind_proxy:
            headers = request.headers
            forwarded = _parse_forwarded(headers.get("Forwarded", ""))
            if host := _last_value(headers.get("X-Forwarded-Host")) or forwarded.get("host"):
                return host
        return request.headers.get("Host", "")

    def base_url(self, request: web.BaseRequest) -> str:
        """Return the server's URL for this client, with a trailing slash.

        ``Forwarded`` and ``X-Forwarded-…`` headers apply only behind a configured proxy.

        Raises:
            UsageError: the request has no valid host.
        """
        headers = request.headers
        scheme, host, prefix = self._scheme, self._public_host(request), ""
        if self.limits.behind_proxy:
            forwarded = _parse_forwarded(headers.get("Forwarded", ""))
            scheme = _last_value(headers.get("X-Forwarded-Proto")) or forwarded.get("proto") or scheme
            prefix = (_last_value(headers.get("X-Forwarded-Prefix")) or "").strip("/")
        if scheme not in ("http", "https") or not _HOST.fullmatch(host):
            raise UsageError("the request has no valid host")
        if prefix and not re.fullmatch(r"[A-Za-z0-9._~/-]{1,200}", prefix, re.ASCII):
            raise UsageError("X-Forwarded-Prefix is not a path")
        return f"{scheme}://{host}/" + (f"{prefix}/" if prefix else "")


def normalize_host(name: str) -> str:
    """Return a host name as host names are compared."""
    return name.lower().rstrip(".")


def _host_name(host: str) -> str:
    """Return the name or address in a ``Host`` header, without the port."""
    return host if host.endswith("]") else re.sub(r":[0-9]*$", "", host)


def _last_value(value: str | None) -> str:
    # The adjacent proxy has added the last value; earlier ones are not trustworthy.
    return (value or "").rpartition(",")[2].strip()


def _parse_forwarded(value: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in _last_value(value).split(";"))
    return {name.strip().lower(): text.strip().strip('"') for name, _, text in pairs}


def parse_hash(text: str) -> Multihash:
    """Parse the hash in a path, in any encoding.

    Raises:
        InvalidIdentity: it is not a hash.
    """
    if not text.isascii() or len(text) > 256:
        raise InvalidIdentity("not a hash")
    return Multihash.parse(text)
