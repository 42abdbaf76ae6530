"""Datasets in buckets, at a server on this machine that speaks the real protocol."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest

from odf_engine.base.config import Config, FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import (
    BadData,
    Cancelled,
    Conflict,
    NotFound,
    OdfError,
    SourceUnavailable,
    UsageError,
)
from odf_engine.identity import ownership_proof as proofs
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.bucket_client import BucketLocation
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.remotes.base import ObjectFile, WritableRemote
from odf_engine.sync.remotes.object_store_remote import ObjectStoreRemote
from odf_engine.sync.remotes.transports import open_remote, open_repository
from odf_engine.workspace.workspace import Workspace
from tests.s3_server import S3Server, refuse, s3_server
from tests.sync.builders import add_files, add_slices, copy_into, describe, encode_name, make_root
from tests.sync.push_helpers import Watching, chain, read_whole, send
from tests.sync.push_race import run_push_race
from tests.sync.pusher import Pusher
from tests.waiting import run_with_timeout, wait_until

pytestmark = pytest.mark.net

LARGE = 12 << 20  # two parts


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-environment")
    with s3_server() as server:
        yield server


@pytest.fixture
def url(s3: S3Server) -> str:
    return f"s3+{s3.endpoint}/bucket/some folder/numbers/".replace(" ", "%20")


@pytest.fixture
def remote(url: str, access: RemoteAccess) -> ObjectStoreRemote:
    return opened(url, access)


def opened(
    url: str, access: RemoteAccess, reporter: Reporter | None = None, **fetch: object
) -> ObjectStoreRemote:
    settings = msgspec.structs.replace(access.config.fetch, **{"retries": 0, **fetch})
    config = msgspec.structs.replace(access.config, fetch=settings)
    remote = open_remote(url, RemoteAccess(config, access.credentials, reporter or Reporter()))
    assert isinstance(remote, ObjectStoreRemote)
    assert isinstance(remote, WritableRemote)
    return remote


def test_push_creates_and_updates_the_remote_dataset(
    here: Workspace, s3: S3Server, remote: ObjectStoreRemote
) -> None:
    entry = make_root(here, slices=3, blocks=1)
    pushed = send(entry, remote)
    head = entry.dataset.head()
    assert (pushed.status, pushed.old_head, pushed.blocks, pushed.objects) == ("updated", None, 6, 3)
    assert s3.objects["bucket/some folder/numbers/refs/head"] == str(head).encode()
    assert read_whole(remote) == chain(entry)
    written = [each for each in s3.forget() if each.command == "PUT"]
    assert [each.path.split("/")[4] for each in written] == ["data"] * 3 + ["blocks"] * 7 + ["refs"]
    # The seventh block finds out whether the service supports the condition of the last request.
    assert [each.condition for each in written] == [None] * 9 + ["*"] * 2

    assert send(entry, remote).status == "up-to-date"
    assert {each.command for each in s3.forget()} == {"GET"}
    add_files(entry, 2, 1000)
    proofs.create_and_store_proof(
        entry.dataset.folder, entry.id, here.keys.private_key_pem(entry.id), entry.dataset.head()
    )
    pushed = send(entry, remote)
    assert (pushed.old_head, pushed.blocks, pushed.objects) == (head, 2, 3)
    written = [each.path.split("/")[4] for each in s3.forget() if each.command == "PUT"]
    assert written == ["data", "data", "proofs", "blocks", "blocks", "blocks", "refs"]
    describe(entry, "again")
    send(entry, remote)
    assert sum(each.command == "PUT" for each in s3.forget()) == 2  # the service is known
    assert read_whole(remote) == chain(entry)


def test_dataset_is_pushed_and_pulled_through_a_bucket(
    here: Workspace, there: Workspace, s3: S3Server, url: str, access: RemoteAccess
) -> None:
    entry = make_root(here, slices=2)
    send(entry, opened(url, access))
    theirs = opened(url, access)
    pulled, result = clone_dataset(there, DatasetAlias.parse("mine"), theirs, Reporter(), parallel=3)
    assert chain(pulled) == chain(entry)
    add_slices(entry, 2)
    send(entry, opened(url, access))
    result = pull_dataset(pulled, theirs, Reporter(), force=False, parallel=3)
    assert (result.status, result.blocks, result.records) == ("updated", 2, 6)
    assert pulled.dataset.head() == entry.dataset.head()


@pytest.mark.complete
def test_large_objects_are_complete_or_missing(
    here: Workspace, s3: S3Server, remote: ObjectStoreRemote
) -> None:
    entry = make_root(here)
    (name,) = add_files(entry, 1, LARGE)
    s3.before = lambda request: "partNumber=3" in request.path and refuse(request, 400, "NotToday")
    reporter = Watching()
    with pytest.raises(SourceUnavailable, match=r"the service failed for data/.*: NotToday it is"):
        send(entry, remote, reporter)
    assert (list(s3.objects), s3.uploads) == ([], 0)
    s3.before = lambda request: False
    pushed = send(entry, remote, reporter)
    assert pushed.objects == 1
    assert reporter.amounts["bytes"] == LARGE
    key = f"bucket/some folder/numbers/data/{name}"
    assert s3.objects[key] == entry.dataset.slice_path(name).read_bytes()
    assert s3.uploads == 0
    assert read_whole(remote) == chain(entry)
    s3.forget()
    rest = b"".join(remote.chunks(ObjectFile("data", name, LARGE), 10))
    assert rest == s3.objects[key][10:]
    assert s3.ranges == [f"bytes=10-{LARGE}"]


@pytest.mark.parametrize("size", [1000, LARGE])
def test_local_damage_does_not_spread(
    here: Workspace, s3: S3Server, remote: ObjectStoreRemote, size: int
) -> None:
    entry = make_root(here)
    (name,) = add_files(entry, 1, size)
    with entry.dataset.slice_path(name).open("r+b") as file:
        file.seek(size - 1)
        file.write(b"\0" if file.read(1) != b"\0" else b"\1")
        file.seek(size // 2)
        file.write(b"damage")
    with pytest.raises(BadData, match="is damaged"):
        send(entry, remote)
    assert (list(s3.objects), s3.uploads) == ([], 0)


def test_damage_is_reported_although_the_upload_cannot_be_aborted(
    here: Workspace, s3: S3Server, remote: ObjectStoreRemote
) -> None:
    entry = make_root(here)
    (name,) = add_files(entry, 1, 12 << 20)
    with entry.dataset.slice_path(name).open("r+b") as file:
        file.seek(6 << 20)
        file.write(b"damage")
    s3.before = lambda request: request.command == "DELETE" and refuse(request, 500, "InternalError")
    with pytest.raises(BadData, match="is damaged"):
        send(entry, remote)
    assert list(s3.objects) == []


def test_diverged_push_requires_force(
    here: Workspace, there: Workspace, s3: S3Server, remote: ObjectStoreRemote
) -> None:
    entry = make_root(here, slices=1)
    other = copy_into(there, entry)
    describe(other, "theirs")
    send(other, remote)
    theirs = remote.head()
    describe(entry, "ours")
    with pytest.raises(Conflict, match="the histories have diverged: 1 block ahead, 1 block behind"):
        send(entry, remote)
    assert send(entry, remote, force=True).old_head == theirs
    assert read_whole(remote) == chain(entry)
    assert theirs is not None
    kept = s3.objects[f"bucket/some folder/numbers/refs/before-push-{theirs.abbreviated}"]
    assert kept == str(theirs).encode()
    with pytest.raises(Conflict, match="a different dataset"):
        send(make_root(here, "other"), remote, force=True)


HEAD = "bucket/some folder/numbers/refs/head"
THEIRS = str(Multihash.sha3_256(b"theirs")).encode()


def is_head(request: BaseHTTPRequestHandler, command: str = "PUT") -> bool:
    return request.command == command and request.path.endswith("/refs/head")


@pytest.mark.parametrize("new", [True, False])
def test_head_moved_by_another_client_is_a_conflict(
    here: Workspace, s3: S3Server, remote: ObjectStoreRemote, new: bool
) -> None:
    """Before the last read of the head, and between this read and the write."""
    entry = make_root(here, slices=1)
    if not new:
        send(entry, remote)
        describe(entry, "more")
    old = s3.objects.get(HEAD)

    def early(request: BaseHTTPRequestHandler) -> bool:
        if "/blocks/" in request.path and request.command == "PUT":
            s3.objects[HEAD] = THEIRS
        return False

    def late(request: BaseHTTPRequestHandler) -> bool:
        if is_head(request):
            s3.objects[HEAD] = THEIRS
        return False

    for meddle in (early, late):
        s3.before = meddle
        with pytest.raises(Conflict, match="the remote head was moved by another client") as caught:
            send(entry, remote)
        assert caught.value.exit_code == 4
        assert s3.objects[HEAD] == THEIRS
        s3.before = lambda request: False
        if old is None:
            del s3.objects[HEAD]
        else:
            s3.objects[HEAD] = old
            describe(entry, "even more")
    assert send(entry, remote).status == "updated"
    assert read_whole(remote) == chain(entry)


@pytest.mark.parametrize(
    ("status", "code", "stored"),
    [(500, "InternalError", True), (503, "SlowDown", False), (409, "ConditionalRequestConflict", False)],
)
@pytest.mark.complete(after=1)
def test_failed_head_write_does_not_fail_the_push(
    here: Workspace, s3: S3Server, url: str, access: RemoteAccess, status: int, code: str, stored: bool
) -> None:
    """A write that was successful, but whose response was lost; and refusals that are no conflicts."""
    remote = opened(url, access, retries=1, longest_pause_seconds=0.01)
    entry = make_root(here, slices=1)
    for _ in range(2):
        failed: list[str] = []

        def fail(request: BaseHTTPRequestHandler, failed: list[str] = failed) -> bool:
            if not is_head(request) or failed:
                return False
            failed.append(request.path)
            if stored:
                s3.objects[HEAD] = request.content  # type: ignore[attr-defined]
            return refuse(request, status, code)

        s3.before = fail
        assert send(entry, remote).status == "updated"
        assert len(failed) == 1
        assert read_whole(remote) == chain(entry)
        describe(entry, "more")


@pytest.mark.parametrize("refused", [True, False])
def test_push_works_without_conditional_writes_and_warns(
    here: Workspace, s3: S3Server, url: str, access: RemoteAccess, refused: bool
) -> None:
    """It refuses them, or ignores the conditions: a warning, and the head is read again after the write."""
    s3.ignores_conditions = not refused
    s3.before = lambda request: (
        refused
        and bool(request.headers["If-None-Match"] or request.headers["If-Match"])
        and refuse(request, 501, "NotImplemented")
    )
    reporter = Watching()
    remote = opened(url, access, reporter)
    entry = make_root(here, slices=1)
    for _ in range(2):
        send(entry, remote)
        assert read_whole(remote) == chain(entry)
        assert [line for line in reporter.lines if "no conditional writes" in line] == reporter.lines[-1:]
        reporter.lines.clear()
        describe(entry, "more")

    before = s3.before

    def overwrite(request: BaseHTTPRequestHandler) -> bool:
        if (
            is_head(request, "GET")
            and s3.requests[-2].command == "PUT"
            and s3.requests[-2].path == request.path
        ):
            s3.objects[HEAD] = THEIRS
        return before(request)

    s3.before = overwrite
    with pytest.raises(Conflict, match="the remote head was moved by another client"):
        send(entry, remote)


@pytest.mark.complete
def test_concurrent_pushes_have_exactly_one_winner(
    here: Workspace, there: Workspace, s3: S3Server, url: str
) -> None:
    assert run_push_race(here, there, url, rounds=5) == (5, 0)


def test_repository_lists_its_datasets(here: Workspace, s3: S3Server, access: RemoteAccess) -> None:
    head = str(Multihash.sha3_256(b""))
    for name in ("zoo", "acme/Numbers", "acme/cities", "solo"):
        s3.objects[f"bucket/{name}/refs/head"] = head.encode()
        s3.objects[f"bucket/{name}/blocks/x"] = b"block"
    s3.objects["bucket/broken/refs/head"] = b"<html>"
    s3.objects["bucket/empty/x/y"] = s3.objects["bucket/notes.txt"] = b""
    s3.objects["bucket/-odd name/refs/head"] = head.encode()
    s3.page = 2
    listed = list(open_repository(f"s3+{s3.endpoint}/bucket/", access).datasets())
    assert [(each.name, each.head) for each in listed] == [
        ("acme/cities", head), ("acme/Numbers", head), ("broken", None), ("solo", head), ("zoo", head),
    ]  # fmt: skip
    assert listed[0].url == f"s3+{s3.endpoint}/bucket/acme/cities/"
    listed = list(open_repository(f"s3+{s3.endpoint}/bucket/acme/", access).datasets())
    assert [each.name for each in listed] == ["cities", "Numbers"]

    def delete(request: BaseHTTPRequestHandler) -> bool:
        if "list-type" not in request.path:
            s3.objects.pop("bucket/zoo/refs/head", None)
            s3.objects.pop("bucket/zoo/blocks/x", None)
        return False

    s3.before = delete  # a list may be older than the objects
    names = [dataset.name for dataset in open_repository(f"s3+{s3.endpoint}/bucket/", access).datasets()]
    assert names == ["acme/cities", "acme/Numbers", "broken", "solo"]
    s3.before = lambda request: False
    with pytest.raises(NotFound):
        list(open_repository(f"s3+{s3.endpoint}/bucket/none/", access).datasets())
    with pytest.raises(NotFound, match="bucket bukcet not found"):
        list(open_repository(f"s3+{s3.endpoint}/bukcet/", access).datasets())


@pytest.mark.parametrize("prefix", ["z", "b", "U"])
def test_objects_with_names_in_other_encodings_are_found(
    here: Workspace, s3: S3Server, remote: ObjectStoreRemote, prefix: str
) -> None:
    entry = make_root(here, slices=2)
    for path in entry.dataset.folder.rglob("f16*"):
        name = f"{path.parent.name}/{encode_name(path.name, prefix)}"
        s3.objects[f"bucket/some folder/numbers/{name}"] = path.read_bytes()
    s3.objects["bucket/some folder/numbers/refs/head"] = encode_name(
        str(entry.dataset.head()), prefix
    ).encode()
    assert read_whole(remote) == chain(entry)
    missed = [each for each in s3.forget() if each.command == "HEAD" and "/f16" in each.path]
    assert len(missed) < 3
    assert send(entry, remote).status == "up-to-date"


@pytest.mark.parametrize("name", ["lab/T.Push", "LAB/t.push", "Lab/T.PUSH"])
def test_names_of_datasets_and_accounts_are_found_in_any_case(
    here: Workspace, there: Workspace, s3: S3Server, access: RemoteAccess, name: str
) -> None:
    entry, bucket = make_root(here, "t.push", slices=1), f"s3+{s3.endpoint}/bucket"
    send(entry, opened(f"{bucket}/lab/t.push/", access))
    assert read_whole(opened(f"{bucket}/{name}/", access)) == chain(entry)
    with pytest.raises(Conflict, match="a different dataset"):
        send(make_root(there, "T.PUSH"), opened(f"{bucket}/{name}/", access))
    assert {key.split("/")[2] for key in s3.objects} == {"t.push"}


def test_missing_object_or_bucket_raises_not_found(
    here: Workspace, s3: S3Server, remote: ObjectStoreRemote, access: RemoteAccess
) -> None:
    assert remote.head() is None
    name = Multihash.sha3_256(b"")
    with pytest.raises(NotFound, match=f"blocks/{name} not found"):
        remote.read("blocks", name, 10)
    with pytest.raises(NotFound, match=f"data/{name} not found"):
        next(iter(remote.chunks(ObjectFile("data", name, 10))))
    missing = opened(f"s3+{s3.endpoint}/bukcet/x/", access)
    with pytest.raises(NotFound, match="bucket bukcet not found"):
        missing.head()
    with pytest.raises(NotFound, match="bucket bukcet not found"):
        missing.set_head(None, name)
    for bad in (f"s3+{s3.endpoint}/", "s3://b/x/", "s3+http://host/../x/"):
        with pytest.raises(UsageError, match="no valid bucket name"):
            opened(bad, access)
    assert BucketLocation.of("s3://My.Bucket/a%20b/c/") == BucketLocation("s3", "", "My.Bucket", "a b/c")
    assert BucketLocation.of("s3+https://[::1]:9000/bucket/") == BucketLocation(
        "s3", "https://[::1]:9000", "bucket", ""
    )
    assert BucketLocation.of("az://box/a/") == BucketLocation("az", "", "box", "a")


def test_invalid_head_or_oversized_object_is_rejected(s3: S3Server, remote: ObjectStoreRemote) -> None:
    folder, name = "bucket/some folder/numbers", Multihash.sha3_256(b"x")
    for content in (b"", b"<html>", b"f1620", b"x" * 1000):
        s3.objects[f"{folder}/refs/head"] = content
        with pytest.raises(BadData, match="refs/head"):
            remote.head()
    s3.objects[f"{folder}/refs/head"] = f"{name}\n".encode()
    assert remote.head() == name
    s3.objects[f"{folder}/blocks/{name}"] = s3.objects[f"{folder}/data/{name}"] = bytes(100)
    with pytest.raises(BadData, match="more than 99 bytes"):
        remote.read("blocks", name, 99)
    assert len(b"".join(remote.chunks(ObjectFile("data", name, 50)))) == 51


def test_stored_credentials_are_used_and_never_shown(
    here: Workspace, s3: S3Server, url: str, access: RemoteAccess
) -> None:
    entry = make_root(here)
    s3.key = "the-key"
    with pytest.raises(SourceUnavailable, match="access to refs/head denied") as caught:
        send(entry, opened(url, access))
    assert "odf repo login" in str(caught.value.hint)
    access.credentials.set(url, Login("the-key", "the-secret", "the-session"))
    send(entry, opened(url, access))
    assert "Credential=the-key/" in str(s3.requests[-1].authorization)

    s3.key = "another-key"
    with pytest.raises(SourceUnavailable) as caught:
        opened(url, access).head()
    for secret in ("the-key", "the-secret", "the-session"):
        assert secret not in caught.value.format_line
    assert "check the stored login" in str(caught.value.hint)


def test_s3_urls_use_the_configured_endpoint(here: Workspace, s3: S3Server, access: RemoteAccess) -> None:
    """``s3:`` goes to Amazon's service, or to the one that the settings name."""
    s3.objects["bucket/numbers/refs/head"] = str(Multihash.sha3_256(b"")).encode()
    s3.publish()
    settings = FetchConfig(s3_endpoint=s3.endpoint, s3_anonymous=True)
    remote = ObjectStoreRemote(
        "s3://bucket/numbers/", RemoteAccess(Config(fetch=settings), access.credentials, Reporter())
    )
    assert remote.head() == Multihash.sha3_256(b"")
    assert s3.requests[-1].authorization is None


@pytest.mark.parametrize(
    ("status", "code", "text", "hint"),
    [
        (403, "AccessDenied", "access to .* denied", "odf repo login"),
        (403, "SignatureDoesNotMatch", "access to .* denied", "odf repo login"),
        (400, "ExpiredToken", "the credentials have expired", "odf repo login"),
        (301, "PermanentRedirect", "the bucket is in another region", "s3Region"),
        (503, "SlowDown", "too many requests", "sync.parallel"),
        (500, "InternalError", "blocks/.*: InternalError it is", "later"),
    ],
)
def test_service_errors_have_message_and_hint(
    s3: S3Server, remote: ObjectStoreRemote, status: int, code: str, text: str, hint: str
) -> None:
    s3.before = lambda request: request.command == "PUT" and refuse(request, status, code)
    with pytest.raises(SourceUnavailable, match=text) as caught:
        remote.write("blocks", Multihash.sha3_256(b""), b"block")
    assert hint in str(caught.value.hint)
    # The response to a HEAD request has no text.
    s3.before = lambda request: refuse(request, status, code)
    with pytest.raises(SourceUnavailable, match=r"denied|400|region|too many|failed for") as caught:
        remote.holds("blocks", Multihash.sha3_256(b""))
    assert hint in str(caught.value.hint)


def test_temporary_errors_are_retried_and_failed_connection_reported(
    s3: S3Server, url: str, access: RemoteAccess
) -> None:
    for status in (429, 500, 503):
        s3.forget()
        s3.before = lambda request, status=status: (
            len(s3.requests) == 1 and refuse(request, status, "SlowDown")
        )
        assert opened(url, access, retries=1, longest_pause_seconds=0.1).head() is None
        assert [request.path.endswith("refs/head") for request in s3.requests[:2]] == [True, True]
    with pytest.raises(SourceUnavailable, match=r"connection failed: .*127.0.0.1"):
        opened("s3+http://127.0.0.1:9/bucket/x/", access).head()


def test_cancel_ends_a_hanging_push(here: Workspace, s3: S3Server, url: str, access: RemoteAccess) -> None:
    entry = make_root(here)
    add_files(entry, 2, 1000)
    reporter, held = Watching(), threading.Event()

    def hang(request: BaseHTTPRequestHandler) -> bool:
        if request.command == "PUT":
            threading.Timer(0.05, reporter.cancel).start()
            held.wait(600)
        return False

    s3.before = hang
    remote = opened(url, access, reporter, read_timeout_seconds=600)
    with pytest.raises(Cancelled):
        run_with_timeout(lambda: send(entry, remote, reporter))
    held.set()


@pytest.mark.complete
def test_a_cancelled_upload_is_aborted(here: Workspace, s3: S3Server, url: str, access: RemoteAccess) -> None:
    entry = make_root(here)
    add_files(entry, 1, 4 * LARGE)
    reporter = Watching()

    def cancel(request: BaseHTTPRequestHandler) -> bool:
        if "partNumber=1" in request.path:
            reporter.cancel()
        return False

    s3.before = cancel
    with pytest.raises(Cancelled):
        send(entry, opened(url, access, reporter), reporter)
    wait_until(lambda: s3.uploads == 0)
    assert list(s3.objects) == []


@pytest.mark.complete
def test_interrupted_push_resumes_without_resending_objects(
    here: Workspace, s3: S3Server, remote: ObjectStoreRemote
) -> None:
    """The service fails at any request: readers see what was there, and nothing whole is sent twice."""
    entry = make_root(here, slices=1)
    send(entry, remote)
    before = chain(entry)
    add_slices(entry, 2)
    for fails in range(1, 100):
        s3.forget()
        s3.before = lambda request, fails=fails: (
            len(s3.requests) == fails and refuse(request, 400, "NotToday")
        )
        stored = set(s3.objects)
        try:
            send(entry, remote, parallel=1)
        except OdfError:
            s3.before = lambda request: False
            assert read_whole(remote) in (before, chain(entry))
        else:
            break
        written = {
            unquote(each.path[1:]) for each in s3.requests if each.command == "PUT" and not each.condition
        }
        assert not written & stored
    s3.before = lambda request: False
    assert fails > 5
    assert read_whole(remote) == chain(entry)


@pytest.mark.parametrize("at", ["/blocks/", "/refs/head"])
@pytest.mark.complete
def test_a_killed_push_leaves_the_old_head(
    here: Workspace, s3: S3Server, url: str, access: RemoteAccess, at: str
) -> None:
    entry = make_root(here, slices=1)
    send(entry, opened(url, access))
    before = chain(entry)
    add_slices(entry, 1)
    pusher = Pusher(here, url)

    def kill(request: BaseHTTPRequestHandler) -> bool:
        if request.command == "PUT" and at in request.path and pusher.process.returncode is None:
            pusher.process.kill()
            pusher.process.wait()
            raise ConnectionError("the client is gone")
        return False

    s3.before = kill
    pusher.go()
    assert pusher.outcome() == ""
    remote = opened(url, access)
    assert read_whole(remote) == before
    assert send(entry, remote).status == "updated"
    assert read_whole(remote) == chain(entry)


@pytest.mark.complete
def test_silent_service_causes_a_timeout(
    here: Workspace, s3: S3Server, url: str, access: RemoteAccess
) -> None:
    entry = make_root(here)
    (name,) = add_files(entry, 1, 1 << 20)
    send(entry, opened(url, access))
    s3.cut = 1 << 19
    s3.held.clear()
    remote = opened(url, access, read_timeout_seconds=0.3)
    with pytest.raises(SourceUnavailable, match="no response: timeout"):
        b"".join(remote.chunks(ObjectFile("data", name, 1 << 20)))

    # Closing a remote ends its requests in other threads.
    remote = opened(url, access)
    threading.Timer(0.3, remote.close).start()
    with pytest.raises(Cancelled):
        b"".join(remote.chunks(ObjectFile("data", name, 1 << 20)))
    s3.held.set()


def test_push_to_read_only_bucket_is_denied(here: Workspace, s3: S3Server, remote: ObjectStoreRemote) -> None:
    s3.before = lambda request: request.command in ("PUT", "POST") and refuse(request, 403, "AccessDenied")
    with pytest.raises(SourceUnavailable, match=r"access to .* denied") as caught:
        send(make_root(here), remote)
    assert "check the permissions" in str(caught.value.hint)


def test_environment_sets_the_proxy_but_not_the_endpoint(
    s3: S3Server, remote: ObjectStoreRemote, access: RemoteAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not replace the endpoint of a URL. A proxy is not used for this machine."""
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert remote.head() is None
    proxy = s3.endpoint.replace("//", "//me:secret@")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy)
    logins: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> bool:
        logins.append(request.headers["Proxy-Authorization"])
        return refuse(request, 404, "NoSuchKey")

    s3.before = answer
    assert opened("s3+http://store.example/bucket/x/", access).head() is None
    assert "http://store.example/bucket/x/refs/head" in [request.path for request in s3.requests]
    assert set(logins) == {"Basic bWU6c2VjcmV0"}
    monkeypatch.setenv("no_proxy", "store.example")
    with pytest.raises(SourceUnavailable, match=r"cannot resolve host name store\.example"):
        opened("s3+http://store.example/bucket/x/", access).head()


def test_credentials_are_read_from_aws_profiles(
    s3: S3Server, url: str, access: RemoteAccess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("config", "credentials"):
        variable = "AWS_CONFIG_FILE" if name == "config" else "AWS_SHARED_CREDENTIALS_FILE"
        monkeypatch.setenv(variable, str(tmp_path / name))
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = key-1\naws_secret_access_key = secret\n"
    )
    command = f"{sys.executable} -c 'print({json.dumps(json.dumps(PROCESS))})'"
    (tmp_path / "config").write_text(f"[profile lab]\ncredential_process = {command}\n")
    s3.key = "key-1"
    assert opened(url, access).head() is None
    monkeypatch.setenv("AWS_PROFILE", "lab")
    s3.key = "key-2"
    assert opened(url, access).head() is None
    # Without any credentials, requests are not signed.
    monkeypatch.setenv("AWS_PROFILE", "none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SourceUnavailable, match="denied"):
        opened(url, access).head()
    assert s3.requests[-1].authorization is None


PROCESS = {
    "Version": 1, "AccessKeyId": "key-2", "SecretAccessKey": "x", "Expiration": "2100-01-01T00:00:00Z"
}  # fmt: skip


def test_push_to_repository_root_is_rejected(
    here: Workspace, s3: S3Server, url: str, access: RemoteAccess
) -> None:
    entry = make_root(here)
    send(entry, opened(url, access))
    before = dict(s3.objects)
    with pytest.raises(UsageError, match="the target has other files, such as 'numbers'"):
        send(entry, opened(url.removesuffix("numbers/"), access))
    assert s3.objects == before
