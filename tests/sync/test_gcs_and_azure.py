"""Datasets in buckets of Google and containers of Azure, at a stub of both."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote

import pytest

from odf_engine.errors import Conflict, NotFound, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.sync.remotes.base import WritableRemote
from odf_engine.sync.remotes.transports import open_remote, open_repository
from odf_engine.workspace.workspace import Workspace
from tests.cloud_stub import CloudStub, cloud_stub
from tests.sync.builders import add_files, describe, make_root
from tests.sync.push_helpers import chain, read_whole, send

pytestmark = pytest.mark.net

LOGINS = {
    "gs": Login(token="my-token"),
    "az": Login("account", base64.b64encode(b"key").decode()),
}
HEADERS = {"gs": "Bearer my-token", "az": "SharedKey account:"}


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStub]:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    with cloud_stub() as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", server.endpoint)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.endpoint)
        yield server


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_dataset_is_pushed_listed_and_read(
    here: Workspace, stub: CloudStub, access: RemoteAccess, scheme: str
) -> None:
    access.credentials.set(f"{scheme}://box/", LOGINS[scheme])
    remote = open_remote(f"{scheme}://box/some%20folder/numbers/", access)
    assert isinstance(remote, WritableRemote)
    entry = make_root(here, slices=1)
    add_files(entry, 1, 11 << 20)  # three parts
    assert send(entry, remote).status == "updated"
    assert stub.uploads == {}
    assert read_whole(remote) == chain(entry)
    assert str(stub.authorizations[-1]).startswith(HEADERS[scheme])
    describe(entry, "more")
    assert send(entry, remote).blocks == 1
    (listed,) = open_repository(f"{scheme}://box/some%20folder/", access).datasets()
    assert (listed.name, listed.head) == ("numbers", str(entry.dataset.head()))

    # Another client moves the head between the last read and the write: of an old head, and of none.
    theirs = Multihash.sha3_256(b"theirs")

    def meddle(request: BaseHTTPRequestHandler) -> None:
        path = unquote(request.path)
        if request.command == "PUT" and path.endswith("/refs/head"):
            stub.objects[path.removeprefix("/box/")] = str(theirs).encode(), 1000

    stub.before = meddle
    describe(entry, "even more")
    other = open_remote(f"{scheme}://box/other/", access)
    for each in (remote, other):
        with pytest.raises(Conflict, match="the remote head was moved by another client"):
            send(entry, each)
        assert each.head() == theirs
    stub.before = lambda request: None
    with pytest.raises(NotFound, match="bucket bukcet not found"):
        access.credentials.set(f"{scheme}://bukcet/", LOGINS[scheme])
        open_remote(f"{scheme}://bukcet/x/", access).head()


def test_incomplete_credentials_are_rejected(stub: CloudStub, access: RemoteAccess) -> None:
    with pytest.raises(UsageError, match="missing storage account") as caught:
        open_remote("az://box/x/", access).head()
    assert "--user ACCOUNT" in str(caught.value.hint)
    access.credentials.set("gs://box/", Login("user", "password"))
    with pytest.raises(UsageError, match="gs: URLs require a token"):
        open_remote("gs://box/x/", access).head()
    assert stub.authorizations == []
