"""Servers and clients of the smart protocol that mean ill: a clear error, a refusal, and nothing changed."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest
from msgspec.structs import replace

from odf_engine.errors import BadData, Conflict, OdfError, SourceUnavailable, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import AddData, SetInfo
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net import address_policy
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.sync.smart import smart_remote
from odf_engine.sync.smart.messages import HeaderRow, TransferUrl
from odf_engine.sync.smart.smart_remote import SmartRemote, parse_transfer_url
from tests.sync.builders import add_slices, copy_into, describe, forge, make_root, objects
from tests.sync.in_process_server import served
from tests.sync.kamu_like import NEW, OLD, KamuServer, batch, plan, talk
from tests.sync.test_smart_server import Pusher, left_behind, pulled, pushed, run
from tests.waiting import wait_until_async

Blocks = list[tuple[str, bytes]]
NAME = "numbers"


def tar_of(blocks: Blocks, change: Callable[[tarfile.TarInfo], None] = lambda info: None) -> list[int]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in blocks:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            change(info)
            tar.addfile(info, io.BytesIO(data))
    return list(gzip.compress(out.getvalue()))


def linked(blocks: Blocks) -> dict[str, Any]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"

    return {**batch(blocks), "payload": tar_of(blocks, change)}


def bomb(blocks: Blocks) -> dict[str, Any]:
    return {**batch([]), "num_blocks": len(blocks), "payload": bomb_payload()}


@lru_cache(1)
def bomb_payload() -> list[int]:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = []
    for number in range(100):
        info = tarfile.TarInfo(str(Multihash.sha3_256(b"%d" % number)))
        info.size = 1 << 20
        parts.append(packer.compress(info.tobuf(tarfile.GNU_FORMAT)) + packer.compress(bytes(1 << 20)))
    return list(b"".join(parts) + packer.flush())


BATCHES: dict[str, Callable[[Blocks], Any]] = {
    "a name that climbs": lambda blocks: batch([(f"../{blocks[0][0]}", blocks[0][1]), *blocks[1:]]),
    "a link": linked,
    "a bomb": bomb,
    "fewer than announced": lambda blocks: {**batch(blocks[:-1]), "num_blocks": len(blocks)},
    "more than announced": lambda blocks: {**batch(blocks), "num_blocks": len(blocks) - 1},
    "another order": lambda blocks: batch(blocks[::-1]),
    "a hole": lambda blocks: {**batch([blocks[0], *blocks[2:]]), "num_blocks": len(blocks) - 1},
    "a wrong block": lambda blocks: batch([*blocks[:-1], (blocks[-1][0], blocks[-2][1])]),
    "no block": lambda blocks: batch([(str(Multihash.sha3_256(b"x")), b"x"), *blocks[1:]]),
    "the same one twice": lambda blocks: batch([*blocks[:-1], blocks[0]]),
    "an endless block": lambda blocks: batch([*blocks[:-1], (blocks[-1][0], bytes((1 << 20) + 1))]),
    "another packing": lambda blocks: {**batch(blocks), "media_type": "application/zip"},
    "text": lambda blocks: {**batch(blocks), "payload": "H4sI"},
    "numbers that are no bytes": lambda blocks: {**batch(blocks), "payload": [31, 139, 256]},
    "no archive": lambda blocks: {**batch(blocks), "payload": [1, 2, 3]},
    "nothing": lambda blocks: None,
    "a list": lambda blocks: [],
}
batches = pytest.mark.parametrize("wrong", BATCHES.values(), ids=list(BATCHES))


@pytest.fixture
def node() -> Iterator[KamuServer]:
    """A node that can be made to say anything."""
    with KamuServer(NEW) as server:
        yield server


@pytest.fixture
def remote(node, access) -> Iterator[SmartRemote]:
    """Its dataset; what fails is not tried again."""
    yield from opened(node, access, 20.0)


@pytest.fixture
def hasty(node, access) -> Iterator[SmartRemote]:
    """The same; silence is borne for a moment only."""
    yield from opened(node, access, 0.3)


def opened(node: KamuServer, access: RemoteAccess, patience: float) -> Iterator[SmartRemote]:
    fetch = replace(access.config.fetch, read_timeout_seconds=patience, retries=0)
    access.credentials.set(node.url, Login(token=node.token))
    smart = SmartRemote(node.url, access._replace(config=replace(access.config, fetch=fetch)))
    yield smart
    smart.close()


@pytest.mark.net
@batches
@pytest.mark.complete(after=6)
def test_wrong_blocks_from_a_server_fail_the_pull(here, there, node, remote, access, wrong):
    entry = make_root(there, slices=1)
    blocks = node.store.load(entry.dataset.folder).chain()
    assert blocks is not None
    node.said = lambda step, message: {"blocks": wrong(blocks)} if step == "blocks" else message
    with pytest.raises(BadData) as caught:
        pulled(here, remote, access)
    assert caught.value.where and caught.value.message.isprintable()
    assert here.datasets() == []


@pytest.mark.net
@pytest.mark.parametrize("step", ["plan", "blocks", "objects"])
@pytest.mark.parametrize("says", ["<html>", "[]", "7", '{"Ok":[]}', b"{}", "{" * 100_000, '{"Ok":{"x":1}}'])
@pytest.mark.complete(after=6)
def test_malformed_server_messages_fail_the_pull(here, there, node, remote, access, step, says):
    node.store.load(make_root(there, slices=1).dataset.folder)
    node.said = lambda at, message: says if at == step else message
    with pytest.raises(BadData, match=r"smart protocol|not text"):
        pulled(here, remote, access)
    assert here.datasets() == []


@pytest.mark.net
@pytest.mark.parametrize("step", ["plan", "blocks", "objects"])
def test_silent_server_fails_the_pull(here, there, node, hasty, access, step):
    node.store.load(make_root(there, slices=1).dataset.folder)
    node.said = lambda at, message: None if at == step else message
    with pytest.raises(SourceUnavailable, match="no message for"):
        pulled(here, hasty, access)
    assert here.datasets() == []


@pytest.mark.net
def test_wrong_plan_size_does_not_affect_the_pull(here, there, node, remote, access):
    entry = make_root(there, slices=1)
    node.store.load(entry.dataset.folder)
    huge = {**plan(node.store, node.store.chain() or []), "num_blocks": 2**62, "bytes_in_raw_blocks": 2**62}
    node.said = lambda step, message: {"Ok": {"transfer_plan": huge}} if step == "plan" else message
    assert objects(pulled(here, remote, access).dataset.folder) == objects(entry.dataset.folder)


@pytest.mark.net
def test_credentials_are_not_sent_to_another_origin(here, there, node, remote, access):
    entry = make_root(there, slices=1)
    node.store.load(entry.dataset.folder)
    with KamuServer(NEW) as other:
        other.store.load(entry.dataset.folder)
        node.location = lambda path: f"{other.origin}/bucket/{path}?sig=1"
        access.credentials.set(other.origin, Login(token="of the other"))
        found = pulled(here, remote, access)
        assert other.requests and set(other.logins) == {None}
    assert objects(found.dataset.folder) == objects(entry.dataset.folder)


@pytest.mark.net
@pytest.mark.parametrize("what", ["pull", "push"])
def test_public_server_cannot_refer_to_a_private_network(
    here, there, node, remote, access, what, monkeypatch
):
    monkeypatch.setattr(address_policy, "is_public_address", lambda address: address != "127.0.0.2")
    entry = make_root(there if what == "pull" else here, slices=1)
    node.location = lambda path: f"http://127.0.0.2:{node.port}/{NAME}/{path}"
    if what == "pull":
        node.store.load(entry.dataset.folder)
    with pytest.raises(SourceUnavailable, match="in a private network"):
        pulled(here, remote, access) if what == "pull" else pushed(entry, remote, access)
    assert not any("/data/" in line for line in node.requests)


@pytest.mark.net
@pytest.mark.parametrize("what", ["pull", "push"])
def test_a_session_is_not_redirected_to_another_origin(here, there, node, remote, access, what):
    entry = make_root(there, slices=1)
    with KamuServer(NEW) as other:
        node.redirect = other.origin
        with pytest.raises(BadData, match="another origin"):
            if what == "pull":
                node.store.load(entry.dataset.folder)
                pulled(here, remote, access)
            else:
                pushed(entry, remote, access)
        assert other.requests == []


@pytest.mark.net
@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, SourceUnavailable, "denied"),
        (404, Unsupported, "does not accept pushes"),
        (409, Conflict, "another push"),
        (426, Unsupported, "proxy"),
        (200, Unsupported, "does not accept pushes"),
        (503, SourceUnavailable, "overloaded"),
        (500, SourceUnavailable, "500"),
    ],
)
def test_rejected_push_session_is_reported(here, node, remote, access, status, kind, words):
    node.denied = lambda path: status if path.endswith("/push") else None
    with pytest.raises(kind) as caught:
        pushed(make_root(here), remote, access)
    assert words in caught.value.format_line


URLS = [
    "file:///etc/passwd", "ftp://host/x", "//host/x", "", "http://", "http://user:pass@host/x", "http://host:x/",
    "http://host/\r\nX: y", "http://host/\x00", "http://hö.st/", "http://[::1/x", "http://" + "x" * 9000,
]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_invalid_transfer_url_is_rejected(url):
    with pytest.raises(BadData, match="invalid transfer URL") as caught:
        parse_transfer_url(TransferUrl(url, []), "http://host/numbers/")
    assert "pass" not in caught.value.message.replace("passwd", "")
    assert len(caught.value.message) < 500


def test_invalid_transfer_headers_are_rejected():
    for name, value in [("X\r\nY", "1"), ("X", "1\r\nY: 2"), ("", "1"), ("X", "y" * 9000)]:
        with pytest.raises(BadData, match="header"):
            parse_transfer_url(TransferUrl("http://host/x", [HeaderRow(name, value)]), "http://host/")
    many = [HeaderRow(f"X-{number}", "1") for number in range(100)]
    with pytest.raises(BadData, match="too many"):
        parse_transfer_url(TransferUrl("http://host/x", many), "http://host/")


def test_https_stays_https():
    base = "https://host:8443/numbers/"
    with pytest.raises(BadData, match="from https to http"):
        parse_transfer_url(TransferUrl("http://elsewhere/x", []), base)
    # An older server behind a proxy does not know better.
    assert (
        parse_transfer_url(TransferUrl("http://host/data/x?y=1", []), base).url
        == "https://host:8443/data/x?y=1"
    )


@pytest.mark.net
@pytest.mark.parametrize(
    ("url", "kind"), [("file:///etc/passwd", BadData), ("http://127.0.0.1:1/x", SourceUnavailable)]
)
def test_unusable_transfer_url_fails_the_pull(here, there, node, remote, access, url, kind):
    node.store.load(make_root(there, slices=1).dataset.folder)
    node.location = lambda path: url
    with pytest.raises(kind):
        pulled(here, remote, access)
    assert here.datasets() == []


@pytest.mark.net
def test_endless_push_confirmation_fails(here, there, node, remote, access, monkeypatch):
    monkeypatch.setattr(smart_remote, "_MAX_CONFIRMATIONS", 5)
    node.lazy = True

    async def said():
        for _ in range(50):
            await node.sockets[-1].send_str("{}")
        return {}

    node.said = lambda step, message: said() if step == "confirmed" else message
    with pytest.raises(SourceUnavailable, match="its head is not the new one"):
        pushed(make_root(here), remote, access)


@pytest.mark.net
@pytest.mark.parametrize("says", [None, "<html>", b"", '{"Ok":7}', {"Err": {"Internal": {}}}])
@pytest.mark.parametrize("step", ["accepted", "metadata", "objects"])
def test_wrong_push_responses_fail_the_push(here, node, hasty, access, step, says):
    entry = make_root(here, slices=1)
    before = objects(entry.dataset.folder)
    node.said = lambda at, message: says if at == step else message
    with pytest.raises(OdfError):
        pushed(entry, hasty, access)
    assert objects(entry.dataset.folder) == before


@pytest.fixture
def door(there) -> Iterator[tuple[str, str]]:
    """An impatient server that takes pushes: address and token."""
    with served(there, allow_push=True, idle_seconds=1.0, most_message_bytes=1 << 20) as server:
        yield f"{server.url}{NAME}/", server.serving.tokens.create("laptop")[1]


def refused(door, entry, changes: Callable[[Blocks], Any], era: str = NEW, head: str | None = None) -> Any:
    """What a client hears that sends wrong blocks."""

    async def go() -> Any:
        async with talk(door[0] + "push", era, door[1]) as session:
            pusher = Pusher(session, entry, era)
            await pusher.start(head)
            assert pusher.blocks is not None
            await session.say({"new_blocks": changes(pusher.blocks)})
            return await session.hear()

    return run(go())


@batches
@pytest.mark.complete(after=5)
def test_wrong_blocks_from_a_client_are_rejected(here, there, door, wrong):
    entry = make_root(here, slices=1)
    answer = refused(door, entry, wrong)
    assert "Err" in answer if isinstance(answer, dict) else answer[0] == 1011
    assert there.datasets() == [] and left_behind(there) == []
    # The next one gets in.
    assert refused(door, entry, batch) == {"Ok": {}}


def test_an_older_client_is_told_by_the_close_frame(here, there, door):
    code, reason = refused(door, make_root(here, slices=1), BATCHES["a hole"], OLD)
    assert code == 1011 and reason.startswith('{"Err":{"Internal"')
    assert there.datasets() == []


def test_pushed_blocks_that_violate_rules_are_rejected(here, there, door):
    entry = make_root(here, slices=1)
    time = Timestamp(0)
    forge(entry.dataset, SetInfo("from the past"), system_time=time)
    assert "Internal" in refused(door, entry, batch)["Err"]
    assert there.datasets() == [] and left_behind(there) == []


def test_pushed_blocks_without_predecessor_are_rejected(here, there, door, tmp_path):
    entry = make_root(here, slices=1)
    copy = copy_into(there, entry)
    head = str(copy.dataset.head())
    describe(entry, "one")
    describe(entry, "two")
    assert "Internal" in refused(door, entry, lambda blocks: batch(blocks[1:]), head=head)["Err"]
    assert str(copy.dataset.head()) == head


def test_pushed_blocks_with_wrong_offsets_are_rejected(here, there, door):
    entry = make_root(here, slices=1)
    forge(entry.dataset, AddData(prev_offset=77, new_watermark=Timestamp(10**18)))
    assert "Internal" in refused(door, entry, batch)["Err"]
    assert there.datasets() == []


@pytest.mark.parametrize("what", ["pull", "push"])
@pytest.mark.parametrize("says", ["<html>", "[]", "{}", b"\x00", "{" * 100_000, "x" * (2 << 20), "\u20ac"])
def test_malformed_client_messages_close_the_session(there, door, what, says):
    copy = make_root(there, NAME if what == "pull" else "other", slices=1)
    before = objects(copy.dataset.folder)

    async def go() -> Any:
        async with talk(door[0] + what, NEW, door[1]) as session:
            try:
                if isinstance(says, bytes):
                    await session.socket.send_bytes(says)
                else:
                    await session.say(says)
            except ConnectionError:
                return 1006  # the server closed the connection before the end of the message
            answer = await session.hear()
            if isinstance(answer, dict):  # a pull of everything is right
                await session.say("nonsense")
                answer = await session.hear()
            return answer[0]

    assert run(go()) in (1011, 1009, 1006)
    assert objects(copy.dataset.folder) == before
    assert left_behind(there) == []


@pytest.mark.parametrize("what", ["pull", "push"])
def test_silent_client_is_disconnected(there, what):
    make_root(there, NAME if what == "pull" else "other")
    with served(there, allow_push=True, idle_seconds=0.1) as server:
        token = server.serving.tokens.create("laptop")[1]

        async def go() -> Any:
            async with talk(f"{server.url}{NAME}/{what}", NEW, token) as session:
                return await session.hear()

        assert run(go())[0] == 1011


def test_push_without_uploads_is_ended(here, there):
    entry = make_root(here, NAME, slices=1)
    with served(there, allow_push=True, idle_seconds=0.2) as server:
        token = server.serving.tokens.create("laptop")[1]

        async def go() -> Any:
            async with talk(f"{server.url}{NAME}/push", NEW, token) as session:
                pusher = Pusher(session, entry, NEW)
                await pusher.start(None)
                await pusher.send_blocks()
                await pusher.ask()
                while (answer := await session.hear()) == {}:
                    await session.say({"details": {"Running": {"uploaded_objects_count": 0}}})
                return answer

        assert run(go())[0] == 1011
    assert there.datasets() == []


def test_files_of_interrupted_transfer_are_verified(here, there, door):
    entry = make_root(here, NAME)
    copy = copy_into(there, entry)
    head = str(copy.dataset.head())
    (new,) = add_slices(entry)
    left = copy.dataset.folder / "info" / "arriving" / "data" / str(new)
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(entry.dataset.slice_path(new).stat().st_size))

    async def go() -> Any:
        async with talk(door[0] + "push", NEW, door[1]) as session:
            pusher = Pusher(session, entry, NEW)
            await pusher.start(head)
            await pusher.send_blocks()
            await pusher.ask([])
            return await pusher.complete()

    assert run(go())[0] == 1011
    assert str(copy.dataset.head()) == head


def test_unreferenced_objects_are_rejected(here, there, door):
    entry = make_root(here, slices=1)

    async def go() -> Any:
        async with talk(door[0] + "push", NEW, door[1]) as session:
            pusher = Pusher(session, entry, NEW)
            await pusher.start(None)
            await pusher.send_blocks()
            other = {"object_type": "DataSlice", "physical_hash": "f1620" + "ab" * 32, "size": 1 << 40}
            await session.say({"object_files": [other], "is_truncated": False})
            return await session.hear()

    assert "no block refers to" in run(go())["Err"]["Internal"]["error_message"]


def test_request_for_missing_objects_is_rejected(there, door):
    make_root(there, NAME, slices=1)

    async def go() -> Any:
        async with talk(door[0] + "pull", OLD) as session:
            await session.say({"begin_after": None, "stop_at": None})
            await session.hear()
            await session.say({})
            await session.hear()
            other = {"object_type": "DataSlice", "physical_hash": "f1620" + "ab" * 32, "size": 5}
            await session.say({"object_files": [other]})
            return await session.hear()

    code, reason = run(go())
    assert code == 1011 and "data/" in reason


def test_push_beyond_the_limits_is_rejected(here, there):
    entry = make_root(here, NAME, slices=2)
    for limits in ({"most_push_blocks": 2}, {"most_push_bytes": 700}):
        with served(there, allow_push=True, **limits) as server:
            door = f"{server.url}{NAME}/", server.serving.tokens.create(f"laptop-{len(limits)}")[1]
            assert re.search("a push (must have|has at most)", str(refused(door, entry, batch)))
            server.serving.tokens.revoke(f"laptop-{len(limits)}")
    assert there.datasets() == [] and left_behind(there) == []


def test_abandoned_sessions_free_their_slots(here, there):
    make_root(there, NAME, slices=1)
    with served(there, sessions_each=3) as server:

        async def go() -> list[Any]:
            async with (
                talk(f"{server.url}{NAME}/pull", NEW) as one,
                talk(f"{server.url}{NAME}/pull", NEW) as two,
            ):
                async with talk(f"{server.url}{NAME}/pull", NEW):
                    with pytest.raises(Exception, match="503"):
                        async with talk(f"{server.url}{NAME}/pull", NEW):
                            pass
                one.socket._response.close()
                two.socket._response.close()
            await wait_until_async(lambda: server.serving._pulls.total() == 0)
            async with talk(f"{server.url}{NAME}/pull", NEW) as last:
                request = {"begin_after": None, "stop_at": None, "force_update_if_diverged": False}
                await last.say(request)
                return await last.hear()

        assert "Ok" in run(go())
