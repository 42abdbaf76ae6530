"""Our server of the smart protocol: with our client, and with clients of both eras of the reference."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from odf_engine.errors import Conflict, OdfError, SourceUnavailable
from odf_engine.identity import ownership_proof as proofs
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Login
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.push import push
from odf_engine.sync.server import receive_pack
from odf_engine.sync.smart import websocket
from odf_engine.sync.smart.smart_remote import SmartRemote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import (
    add_files,
    add_slices,
    copy_into,
    describe,
    make_derivative,
    make_root,
    objects,
)
from tests.sync.in_process_server import Running, served
from tests.sync.kamu_like import HEADER, NEW, OLD, Store, Talk, batch, plan, talk, unarchive
from tests.waiting import wait_until

pytestmark = pytest.mark.net

NAME = "numbers"
eras = pytest.mark.parametrize("era", [OLD, NEW])


@pytest.fixture
def server(there: Workspace) -> Iterator[Running]:
    """A server of the other workspace, which takes pushes."""
    with served(there, allow_push=True) as running:
        yield running


@pytest.fixture
def token(server: Running) -> str:
    """A token for all datasets."""
    return server.serving.tokens.create("laptop")[1]


@pytest.fixture
def remote(server, token, access) -> Iterator[SmartRemote]:
    """The dataset there, with a login that may push."""
    access.credentials.set(server.url, Login(token=token))
    smart = SmartRemote(f"odf+{server.url}{NAME}/", access)
    yield smart
    smart.close()


def pulled(here, remote, access, name: str = NAME) -> DatasetEntry:
    return clone_dataset(here, DatasetAlias.parse(name), remote, access.reporter, parallel=3)[0]


def pushed(entry, remote, access, force: bool = False):
    return push(entry, remote, access.reporter, force=force, parallel=3)


def left_behind(workspace: Workspace) -> list[str]:
    """Files of datasets that are on their way."""
    found = [*workspace.odf.glob("incoming/**/*"), *workspace.odf.glob("datasets/*/info/arriving/**/*")]
    return [str(path) for path in found if path.is_file() and path.suffix != ".lock"]


def test_a_dataset_is_pulled_and_brought_up_to_date(here, there, server, remote, access):
    entry = make_derivative(there, make_root(there, "source", slices=1), NAME)
    found = pulled(here, remote, access)
    assert objects(found.dataset.folder) == objects(entry.dataset.folder)
    assert not any("/blocks/" in line for line in server.lines)  # all of them came in one message
    describe(entry, "more")
    done = pull_dataset(found, remote, access.reporter, force=False, parallel=2)
    assert (done.blocks, done.new_head) == (1, entry.dataset.head())


def test_a_dataset_is_pushed_and_brought_up_to_date(here, there, remote, access):
    entry = make_derivative(here, make_root(here, "source", slices=1), NAME)
    done = pushed(entry, remote, access)
    assert (done.status, done.blocks, done.objects) == ("updated", 4, 2)
    found = there.resolve(NAME)
    assert objects(found.dataset.folder) == objects(entry.dataset.folder)
    assert "laptop" in (found.dataset.folder / "info" / "origin").read_text()
    describe(entry, "more")
    assert pushed(entry, remote, access).blocks == 1
    assert found.dataset.head() == entry.dataset.head()
    assert found.dataset.state() == entry.dataset.state()
    assert pushed(entry, remote, access).status == "up-to-date"
    assert left_behind(there) == []


def test_another_history_is_pushed_only_by_force(here, there, remote, access, tmp_path):
    entry = make_root(here, NAME, slices=1)
    pushed(entry, remote, access)
    other = copy_into(Workspace.init(tmp_path / "third"), entry)
    add_slices(entry, 2)
    pushed(entry, remote, access)
    add_slices(other, 1, city="Basel")
    with pytest.raises(Conflict):
        pushed(other, remote, access)
    found, before = there.resolve(NAME).dataset, entry.dataset.head()
    assert found.head() == before
    pushed(other, remote, access, force=True)
    assert found.head() == other.dataset.head()
    assert found.state() == other.dataset.state()
    kept = list((found.folder / "refs").glob("before-push-*"))
    assert [path.read_text() for path in kept] == [str(before)]


def test_a_shorter_history_is_pushed_by_force(here, there, remote, access, tmp_path):
    entry = make_root(here, NAME, slices=1)
    other = copy_into(Workspace.init(tmp_path / "third"), entry)
    describe(entry, "more")
    pushed(entry, remote, access)
    pushed(other, remote, access, force=True)
    assert there.resolve(NAME).dataset.head() == other.dataset.head()


def test_interrupted_push_resumes(here, there, server, remote, access):
    entry = make_root(here, NAME)
    add_files(entry, 3, 1000)
    gone = sorted((entry.dataset.folder / "data").iterdir())[-1]
    data = gone.read_bytes()
    gone.write_bytes(bytes(1000))
    with pytest.raises(OdfError, match="is damaged"):
        pushed(entry, remote, access)
    assert there.datasets() == []
    gone.write_bytes(data)
    wait_until(lambda: not server.serving._pushes, what="the server has seen that the client is gone")
    arrived = [path for path in left_behind(there) if "/data/" in path and ".pending" not in path]
    assert pushed(entry, remote, access).objects == 3 - len(arrived)
    assert objects(there.resolve(NAME).dataset.folder) == objects(entry.dataset.folder)


def test_a_proof_goes_with_the_head_it_is_for(here, there, remote, access):
    entry = make_root(here, NAME)
    pushed(entry, remote, access)
    found, head = there.resolve(NAME).dataset, entry.dataset.head()
    proof = proofs.create_proof(here.keys.private_key_pem(entry.id), head)
    proofs.store_proof(entry.dataset.folder, proof)
    pushed(entry, remote, access)  # the head there is the same
    assert proofs.read_proof(found.folder, head) == proof
    head = describe(entry, "more")
    proof = proofs.create_proof(here.keys.private_key_pem(entry.id), head)
    proofs.store_proof(entry.dataset.folder, proof)
    pushed(entry, remote, access)
    assert proofs.read_proof(found.folder, head) == proof


def test_long_messages_go_in_several_frames(here, there, remote, access, monkeypatch):
    monkeypatch.setattr(websocket, "_FRAME_BYTES", 1000)
    entry = make_root(there, NAME, blocks=40)
    assert objects(pulled(here, remote, access).dataset.folder) == objects(entry.dataset.folder)


def test_a_chain_too_long_for_a_message_is_read_block_by_block(here, there, access):
    entry = make_root(there, NAME, blocks=400)
    with served(there, most_message_bytes=1 << 16) as server:
        remote = SmartRemote(f"odf+{server.url}{NAME}/", access)
        found = pulled(here, remote, access)
        remote.close()
        assert any("/blocks/" in line for line in server.lines)
    assert found.dataset.head() == entry.dataset.head()


def test_push_requires_a_token_for_the_dataset(here, there, server, remote, access):
    entry = make_root(here, NAME)
    access.credentials.set(server.url, Login(token="odft_wrong"))
    with pytest.raises(SourceUnavailable, match="401"):
        pushed(entry, remote, access)
    access.credentials.set(server.url, Login(token=server.serving.tokens.create("other", ["other.%"])[1]))
    with pytest.raises(SourceUnavailable, match="403"):
        pushed(entry, remote, access)
    assert there.datasets() == []


def test_push_to_dataset_owned_by_the_server_is_rejected(here, there, remote, access):
    own = make_root(there, NAME)
    copy = copy_into(here, own)
    describe(copy, "stolen")
    with pytest.raises(SourceUnavailable, match="403"):
        pushed(copy, remote, access)
    assert there.resolve(NAME).dataset.head() == own.dataset.head()


def test_dataset_deleted_on_the_server_is_pushed_as_new(here, there, remote, access):
    """Its key remains there, and does not protect a dataset that is gone."""
    own = make_root(there, NAME)
    copy = copy_into(here, own)
    there.delete(own)
    assert pushed(copy, remote, access).blocks == 2
    describe(copy, "new")
    assert pushed(copy, remote, access).blocks == 1  # its origin is a push since then
    entry = there.resolve(NAME)
    assert entry.dataset.head() == copy.dataset.head() and there.keys.has_key(entry.id)
    assert Trust(there).describe_status(entry) == "not trusted"


def test_push_of_different_dataset_under_existing_name_is_rejected(here, there, remote, access, tmp_path):
    third = Workspace.init(tmp_path / "third")
    copy_into(there, make_root(third, NAME))
    with pytest.raises(Conflict):
        pushed(make_root(here, NAME), remote, access, force=True)


def test_push_under_another_name_is_rejected(here, there, remote, access):
    entry = make_root(here, NAME)
    copy_into(there, entry, "other")
    with pytest.raises(Conflict, match="under another name"):
        pushed(entry, remote, access)
    assert [str(dataset.alias) for dataset in there.datasets()] == ["other"]
    assert left_behind(there) == []


def run(work) -> Any:
    return asyncio.run(work)


async def kamu_pull(url: str, era: str, after: str | None = None) -> tuple[list, list]:
    async with talk(f"{url}{NAME}/pull", era) as session:
        request: dict[str, Any] = {"begin_after": after, "stop_at": None}
        await session.say(request if era == OLD else {**request, "force_update_if_diverged": False})
        announced = (await session.hear())["Ok"]["transfer_plan"]
        await session.say({})
        blocks = (await session.hear())["blocks"]
        assert (blocks["media_type"], blocks["encoding"]) == ("application/tar+gzip", "raw")
        found = unarchive(blocks["payload"])
        assert len(found) == blocks["num_blocks"] == announced["num_blocks"]
        references = Store().references(found)
        await session.say({"object_files": references})
        files = []
        for each in (await session.hear())["object_transfer_strategies"]:
            assert each["pull_strategy"] == "HttpDownload"
            assert each["download_from"]["expires_at"] is None
            async with session.http.get(each["download_from"]["url"]) as answer:
                assert answer.status == 200
                files.append((each["object_file"]["physical_hash"], await answer.read()))
        await session.socket.close(message=b"Client pull flow succeeded")
        return found, files


@eras
def test_reference_client_can_pull(there, server, era):
    entry = make_derivative(there, make_root(there, "source", slices=1), NAME)
    blocks, files = run(kamu_pull(server.url, era))
    store = Store().load(entry.dataset.folder)
    assert blocks == store.chain()
    assert dict(files) == {
        name.partition("/")[2]: data for name, data in store.files.items() if not name.startswith("blocks")
    }
    last, files = run(kamu_pull(server.url, era, after=blocks[-2][0]))
    assert last == blocks[-1:]


@eras
def test_invalid_interval_is_rejected(there, server, era):
    entry = make_root(there, NAME)
    head = str(entry.dataset.head())
    unknown = "f1620" + "00" * 32

    async def ask(after, stop):
        async with talk(f"{server.url}{NAME}/pull", era) as session:
            await session.say({"begin_after": after, "stop_at": stop, "force_update_if_diverged": False})
            return await session.hear()

    assert run(ask(unknown, None)) == {"Err": {"InvalidInterval": {"head": head, "tail": unknown}}}
    assert "InvalidInterval" in run(ask(head, str(entry.dataset.block(0).hash)))["Err"]
    assert run(ask(head, None))["Ok"]["transfer_plan"]["num_blocks"] == 0


class Pusher:
    """A push of the reference, step by step."""

    def __init__(self, session: Talk, entry: DatasetEntry, era: str) -> None:
        self.session, self.era = session, era
        self.store = Store().load(entry.dataset.folder)

    def result(self, message: Any) -> Any:
        """What an answer says."""
        if self.era == NEW:
            assert set(message) == {"Ok"}
            return message["Ok"]
        return message

    async def start(self, head: str | None, force: bool = False) -> Any:
        self.blocks = self.store.chain(None if force else head)
        assert self.blocks is not None
        request = {"current_head": head, "transfer_plan": plan(self.store, self.blocks)}
        if self.era == NEW:
            request |= {"force_update_if_diverged": force, "visibility_for_created_dataset": "Private"}
        await self.session.say(request)
        return await self.session.hear()

    async def send_blocks(self, **changes: Any) -> Any:
        assert self.blocks is not None
        await self.session.say({"new_blocks": {**batch(self.blocks), **changes}})
        return await self.session.hear()

    async def ask(self, references: list | None = None) -> list:
        assert self.blocks is not None
        wanted = self.store.references(self.blocks) if references is None else references
        await self.session.say({"object_files": wanted, "is_truncated": False})
        return self.result(await self.session.hear())["object_transfer_strategies"]

    async def upload(self, strategies: list) -> list[int]:
        statuses = []
        for strategy in strategies:
            if strategy["push_strategy"] == "SkipUpload":
                assert strategy["upload_to"] is None
                continue
            where, name = strategy["upload_to"], strategy["object_file"]["physical_hash"]
            kind = {"DataSlice": "data", "Checkpoint": "checkpoints"}[strategy["object_file"]["object_type"]]
            headers = {row["name"]: row["value"] for row in where["headers"]}
            data = self.store.files[f"{kind}/{name}"]
            async with self.session.http.put(where["url"], data=data, headers=headers) as answer:
                statuses.append(answer.status)
        return statuses

    async def complete(self) -> Any:
        await self.session.say({"details": "Complete"})
        await self.session.say({})
        return await self.session.hear()


@eras
def test_reference_client_can_push(here, there, server, token, era):
    entry = make_derivative(here, make_root(here, "source", slices=1), NAME)

    async def go(head: str | None) -> list[int]:
        async with talk(f"{server.url}{NAME}/push", era, token) as session:
            pusher = Pusher(session, entry, era)
            assert await pusher.start(head) == {"Ok": {}}
            assert pusher.result(await pusher.send_blocks()) == {}
            done = await pusher.upload(await pusher.ask())
            await session.say({"details": {"Running": {"uploaded_objects_count": 1}}})
            assert await pusher.complete() == {}
            return done

    assert run(go(None)) == [200, 200]
    found = there.resolve(NAME).dataset
    assert objects(found.folder) == objects(entry.dataset.folder)
    head = str(found.head())
    describe(entry, "more")
    wait_until(lambda: not server.serving._pushes, what="the server has seen that the client is gone")
    assert run(go(head)) == []
    assert found.head() == entry.dataset.head()


@eras
def test_push_after_the_head_moved_is_rejected(here, there, server, token, era):
    entry = make_root(here, NAME, blocks=2)
    copy = copy_into(there, entry)
    describe(copy, "moved")
    describe(entry, "here")
    known = str(entry.dataset.block(2).hash)

    async def go():
        async with talk(f"{server.url}{NAME}/push", era, token) as session:
            pusher = Pusher(session, entry, era)
            return await pusher.start(known), await session.hear()

    answer, close = run(go())
    # The names are the wrong way round, as the reference has them.
    assert answer == {
        "Err": {"InvalidHead": {"actual_head": known, "expected_head": str(copy.dataset.head())}}
    }
    assert close[0] == 1011


@eras
def test_head_moved_during_a_push_fails_the_push(here, there, server, token, era):
    entry = make_root(here, NAME, blocks=2)
    copy = copy_into(there, entry)
    before = str(copy.dataset.head())
    describe(entry, "here")

    async def go():
        async with talk(f"{server.url}{NAME}/push", era, token) as session:
            pusher = Pusher(session, entry, era)
            await pusher.start(before)
            await pusher.send_blocks()
            await pusher.ask()
            describe(copy, "moved")
            return await pusher.complete()

    code, reason = run(go())
    assert code == 1011 and "Err" in reason
    assert copy.dataset.head() != entry.dataset.head()
    assert left_behind(there) == []


@eras
def test_push_with_missing_objects_is_rejected(here, there, server, token, era):
    entry = make_root(here, NAME, slices=2)

    async def go():
        async with talk(f"{server.url}{NAME}/push", era, token) as session:
            pusher = Pusher(session, entry, era)
            await pusher.start(None)
            await pusher.send_blocks()
            await pusher.upload((await pusher.ask())[:1])
            return await pusher.complete()

    code, reason = run(go())
    assert code == 1011 and "data/" in reason
    assert there.datasets() == []


def test_server_requests_progress_during_a_push(here, there, server, token, monkeypatch):
    monkeypatch.setattr(receive_pack, "PROGRESS_SECONDS", 0.02)
    entry = make_root(here, NAME, slices=1)

    async def go():
        async with talk(f"{server.url}{NAME}/push", OLD, token) as session:
            pusher = Pusher(session, entry, OLD)
            await pusher.start(None)
            await pusher.send_blocks()
            strategies = await pusher.ask()
            assert await session.hear() == {}
            await session.say({"details": {"Running": {"uploaded_objects_count": 0}}})
            await pusher.upload(strategies)
            answer = await pusher.complete()
            while answer == {} and not there.datasets():
                answer = await session.hear()

    run(go())
    assert there.resolve(NAME).dataset.head() == entry.dataset.head()


def test_concurrent_push_of_one_dataset_is_rejected(here, there, server, token):
    entry = make_root(here, NAME)

    async def go():
        async with talk(f"{server.url}{NAME}/push", NEW, token) as session:
            await Pusher(session, entry, NEW).start(None)
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with talk(f"{server.url}{NAME}/push", NEW, token):
                    pass
            return caught.value.status

    assert run(go()) == 409


@pytest.mark.parametrize(("headers", "status"), [({HEADER: "2"}, 400), ({}, 426)])
def test_incompatible_session_request_is_rejected(there, server, headers, status):
    make_root(there, NAME)

    async def go():
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{server.url}{NAME}/pull", headers=headers) as answer,
        ):
            return answer.status, await answer.text()

    found, text = run(go())
    assert found == status
    assert json.loads(text) == {"message": "Incompatible client version"} if status == 400 else text


def test_a_session_ends_with_the_server(there):
    make_root(there, NAME)

    with served(there) as server:

        async def go():
            async with talk(f"{server.url}{NAME}/pull", NEW) as session:
                server._loop.call_soon_threadsafe(server.serving.stopping.set)
                return await session.hear()

        assert run(go())[0] == 1001


def test_server_sends_only_text_frames(there, server):
    """Older peers take a ping for a broken connection."""
    make_root(there, NAME)

    async def go():
        async with talk(f"{server.url}{NAME}/pull", OLD) as session:
            await session.say({"begin_after": None, "stop_at": None})
            return (await session.socket.receive(timeout=60)).type

    assert run(go()) == WSMsgType.TEXT
