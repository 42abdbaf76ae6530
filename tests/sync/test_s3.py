"""Datasets in buckets, at a server on this machine that speaks the real protocol."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote

import msgspec
import pytest

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
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.progress import Reporter
from odf_engine.settings import Config, FetchConfig
from odf_engine.sync import open_remote, open_repository
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.remotes.base import ObjectFile, WritableRemote
from odf_engine.sync.remotes.s3_remote import S3Location, S3Remote
from odf_engine.workspace.workspace import Workspace
from tests.s3_server import S3Server, refuse, s3_server
from tests.sync.builders import add_files, add_slices, copy_into, describe, in_base58, make_root
from tests.sync.pushing import Watching, chain, read_whole, send

pytestmark = pytest.mark.net

LARGE = 12 << 20  # two parts


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-environment")
    with s3_server() as server:
        server.buckets = {"bucket"}
        yield server


@pytest.fixture
def url(s3: S3Server) -> str:
    return f"s3+{s3.endpoint}/bucket/some folder/numbers/".replace(" ", "%20")


@pytest.fixture
def remote(url: str, access: RemoteAccess) -> S3Remote:
    return opened(url, access)


def opened(url: str, access: RemoteAccess, reporter: Reporter | None = None, **fetch: object) -> S3Remote:
    settings = msgspec.structs.replace(access.config.fetch, **{"retries": 0, **fetch})
    config = msgspec.structs.replace(access.config, fetch=settings)
    remote = open_remote(url, RemoteAccess(config, access.credentials, reporter or Reporter()))
    assert isinstance(remote, S3Remote)
    assert isinstance(remote, WritableRemote)
    return remote


def test_new_up_to_date_and_fast_forward(here: Workspace, s3: S3Server, remote: S3Remote) -> None:
    entry = make_root(here, slices=3, blocks=1)
    pushed = send(entry, remote)
    head = entry.dataset.head()
    assert (pushed.status, pushed.old_head, pushed.blocks, pushed.objects) == ("updated", None, 6, 3)
    assert s3.objects["bucket/some folder/numbers/refs/head"] == str(head).encode()
    assert read_whole(remote) == chain(entry)
    written = [each.path for each in s3.forget() if each.command == "PUT"]
    assert [path.split("/")[4] for path in written] == ["data"] * 3 + ["blocks"] * 6 + ["refs"]

    assert send(entry, remote).status == "up-to-date"
    assert {each.command for each in s3.forget()} == {"GET", "HEAD"}
    add_files(entry, 2, 1000)
    proofs.create_and_store_proof(
        entry.dataset.folder, entry.id, here.keys.private_key_pem(entry.id), entry.dataset.head()
    )
    pushed = send(entry, remote)
    assert (pushed.old_head, pushed.blocks, pushed.objects) == (head, 2, 3)
    written = [each.path.split("/")[4] for each in s3.forget() if each.command == "PUT"]
    assert written == ["data", "data", "proofs", "blocks", "blocks", "refs"]
    assert read_whole(remote) == chain(entry)


def test_from_one_workspace_to_another(
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


def test_large_objects_are_there_as_a_whole(here: Workspace, s3: S3Server, remote: S3Remote) -> None:
    entry = make_root(here)
    (name,) = add_files(entry, 1, LARGE)
    seen: list[str] = []

    def look(request: BaseHTTPRequestHandler) -> bool:
        seen.extend(key for key in list(s3.objects) if key.endswith(f"/data/{name}"))
        return bool(request.headers["x-amz-copy-source"]) and refuse(request, 400, "NotToday")

    s3.before = look
    reporter = Watching()
    with pytest.raises(SourceUnavailable, match="returned 400"):
        send(entry, remote, reporter)
    assert seen == []
    assert not any("/data/f" in key or ".pending" in key for key in s3.objects)
    s3.before = lambda request: False
    pushed = send(entry, remote, reporter)
    assert pushed.objects == 1
    assert reporter.amounts["bytes"] == LARGE
    assert (
        s3.objects[f"bucket/some folder/numbers/data/{name}"] == entry.dataset.slice_path(name).read_bytes()
    )
    assert not any(".pending" in key for key in s3.objects)
    assert s3.uploads == {}
    assert len([each for each in s3.forget() if "partNumber" in each.path]) == 4
    assert read_whole(remote) == chain(entry)
    assert [len(each) for each in remote.chunks(ObjectFile("data", name, LARGE), 10)] == [
        8 << 20,
        (4 << 20) - 10,
    ]


@pytest.mark.parametrize("size", [1000, LARGE])
def test_local_damage_does_not_spread(here: Workspace, s3: S3Server, remote: S3Remote, size: int) -> None:
    entry = make_root(here)
    (name,) = add_files(entry, 1, size)
    with entry.dataset.slice_path(name).open("r+b") as file:
        file.seek(size - 1)
        file.write(b"\0" if file.read(1) != b"\0" else b"\1")
        file.seek(size // 2)
        file.write(b"damage")
    with pytest.raises(BadData, match="is damaged"):
        send(entry, remote)
    assert [key for key in s3.objects if not key.endswith("/")] == []


def test_refused_and_forced(here: Workspace, there: Workspace, s3: S3Server, remote: S3Remote) -> None:
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


def test_somebody_moves_the_head_meanwhile(here: Workspace, s3: S3Server, remote: S3Remote) -> None:
    """Before the last look, and between writing and the look after it."""
    entry = make_root(here, slices=1)
    theirs = str(Multihash.sha3_256(b"theirs")).encode()
    key = "bucket/some folder/numbers/refs/head"

    def before(request: BaseHTTPRequestHandler) -> bool:
        if "/blocks/" in request.path and request.command == "PUT":
            s3.objects[key] = theirs
        return False

    def after(request: BaseHTTPRequestHandler) -> bool:
        if "/refs/head" in request.path and request.command != "PUT" and key in s3.objects:
            s3.objects[key] = theirs
        return False

    for meddle in (before, after):
        s3.before = meddle
        with pytest.raises(Conflict, match="the remote head was moved by another client"):
            send(entry, remote)
        assert s3.objects.pop(key) == theirs
    s3.before = lambda request: False
    assert send(entry, remote).blocks == 0


def test_lists(here: Workspace, s3: S3Server, access: RemoteAccess) -> None:
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
    with pytest.raises(NotFound):
        list(open_repository(f"s3+{s3.endpoint}/bucket/none/", access).datasets())
    with pytest.raises(NotFound, match="bucket bukcet not found"):
        list(open_repository(f"s3+{s3.endpoint}/bukcet/", access).datasets())


def test_old_names(here: Workspace, s3: S3Server, remote: S3Remote) -> None:
    entry = make_root(here, slices=2)
    for path in entry.dataset.folder.rglob("f16*"):
        name = f"{path.parent.name}/{in_base58(path.name)}"
        s3.objects[f"bucket/some folder/numbers/{name}"] = path.read_bytes()
    s3.objects["bucket/some folder/numbers/refs/head"] = in_base58(str(entry.dataset.head())).encode()
    assert read_whole(remote) == chain(entry)
    missed = [each for each in s3.forget() if each.command == "HEAD" and "/f16" in each.path]
    assert len(missed) < 3
    assert send(entry, remote).status == "up-to-date"


def test_what_is_not_there(here: Workspace, s3: S3Server, remote: S3Remote, access: RemoteAccess) -> None:
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
        with pytest.raises(UsageError, match="has no S3 bucket"):
            opened(bad, access)
    assert S3Location.of("s3://My.Bucket/a%20b/c/") == S3Location("", "My.Bucket", "My.Bucket/a b/c")
    assert S3Location.of("s3+https://[::1]:9000/bucket/") == S3Location(
        "https://[::1]:9000", "bucket", "bucket"
    )


def test_what_is_wrong_there(s3: S3Server, remote: S3Remote) -> None:
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


def test_logins(here: Workspace, s3: S3Server, url: str, access: RemoteAccess) -> None:
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


def test_services_of_the_settings(here: Workspace, s3: S3Server, access: RemoteAccess) -> None:
    """``s3:`` goes to Amazon's service, or to the one that the settings name."""
    s3.objects["bucket/numbers/refs/head"] = str(Multihash.sha3_256(b"")).encode()
    settings = FetchConfig(s3_endpoint=s3.endpoint, s3_anonymous=True)
    remote = S3Remote(
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
def test_refusals(s3: S3Server, remote: S3Remote, status: int, code: str, text: str, hint: str) -> None:
    s3.before = lambda request: request.command == "PUT" and refuse(request, status, code)
    with pytest.raises(SourceUnavailable, match=text) as caught:
        remote.write("blocks", Multihash.sha3_256(b""), b"block")
    assert hint in str(caught.value.hint)
    # What is only asked for its size has no words in the answer.
    s3.before = lambda request: refuse(request, status, code)
    with pytest.raises(SourceUnavailable, match=r"denied|400|region|too many|failed for") as caught:
        remote.head()
    assert hint in str(caught.value.hint)


def test_retries_and_no_network(s3: S3Server, url: str, access: RemoteAccess) -> None:
    s3.before = lambda request: len(s3.requests) == 1 and refuse(request, 503, "SlowDown")
    assert opened(url, access, retries=2).head() is None
    with pytest.raises(SourceUnavailable, match=r"connection failed: .*127.0.0.1"):
        opened("s3+http://127.0.0.1:9/bucket/x/", access).head()


def test_cancel_while_the_service_hangs(
    here: Workspace, s3: S3Server, url: str, access: RemoteAccess
) -> None:
    entry = make_root(here)
    add_files(entry, 2, 1000)
    reporter, held = Watching(), threading.Event()

    def hang(request: BaseHTTPRequestHandler) -> bool:
        if request.command == "PUT":
            threading.Timer(0.05, reporter.cancel).start()
            held.wait(60)
        return False

    s3.before = hang
    began = time.monotonic()
    with pytest.raises(Cancelled):
        send(entry, opened(url, access, reporter), reporter)
    assert time.monotonic() - began < 5
    held.set()


def test_broken_off_and_finished(here: Workspace, s3: S3Server, remote: S3Remote) -> None:
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
        written = {unquote(each.path[1:]) for each in s3.requests if each.command == "PUT"}
        assert written & stored <= {"bucket/some folder/numbers/refs/head"}
    s3.before = lambda request: False
    assert fails > 5
    assert read_whole(remote) == chain(entry)


def test_a_repository_is_no_place_for_a_dataset(
    here: Workspace, s3: S3Server, url: str, access: RemoteAccess
) -> None:
    entry = make_root(here)
    send(entry, opened(url, access))
    before = dict(s3.objects)
    with pytest.raises(UsageError, match="the target has other files, such as 'numbers'"):
        send(entry, opened(url.removesuffix("numbers/"), access))
    assert s3.objects == before
