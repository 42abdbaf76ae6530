"""Our client of the smart protocol against nodes of both eras of the reference."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from odf_engine.errors import (
    AlreadyExists,
    BadData,
    Cancelled,
    Conflict,
    OdfError,
    SourceUnavailable,
    Unsupported,
)
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Login
from odf_engine.sync import chain_download
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.push import push
from odf_engine.sync.smart import smart_remote, websocket
from odf_engine.sync.smart.smart_remote import SmartRemote
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.sync.builders import add_slices, copy_into, describe, make_derivative, make_root, objects
from tests.sync.kamu_like import NEW, OLD, KamuServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.net

newer_only = pytest.mark.parametrize("node", [NEW], indirect=True)


@pytest.fixture(params=[OLD, NEW])
def node(request) -> Iterator[KamuServer]:
    """A node of the reference, without a dataset yet."""
    with KamuServer(request.param) as server:
        yield server


@pytest.fixture
def remote(node, access) -> Iterator[SmartRemote]:
    """Its dataset, with a login that may push."""
    access.credentials.set(node.url, Login(token=node.token))
    smart = SmartRemote(node.url, access)
    yield smart
    smart.close()


def pulled(here, remote, access) -> DatasetEntry:
    return clone_dataset(here, DatasetAlias.parse("numbers"), remote, access.reporter, parallel=3)[0]


def pushed(entry, remote, access, force=False):
    return push(entry, remote, access.reporter, force=force, parallel=3)


def test_pull_receives_all_blocks_in_one_message(here, there, node, remote, access):
    entry = make_derivative(there, make_root(there, "source", slices=1), "numbers")
    node.store.load(entry.dataset.folder)
    found = pulled(here, remote, access)
    assert objects(found.dataset.folder) == objects(entry.dataset.folder)
    assert not any("blocks/" in line for line in node.requests)  # all of them came in one message
    assert node.received[0] == {
        "begin_after": None,
        "stop_at": str(entry.dataset.head()),
        "force_update_if_diverged": False,
    }
    assert {each["object_type"] for each in node.received[2]["object_files"]} == {"DataSlice", "Checkpoint"}


def test_pull_requests_objects_while_blocks_are_read(here, there, node, remote, access, monkeypatch):
    monkeypatch.setattr(chain_download, "_FIRST_FILES", 2)
    entry = make_root(there, slices=7)
    node.store.load(entry.dataset.folder)
    found = pulled(here, remote, access)
    assert objects(found.dataset.folder) == objects(entry.dataset.folder)
    requests = [message["object_files"] for message in node.received if "object_files" in message]
    assert [len(files) for files in requests] == [2, 4, 1]
    assert sum("begin_after" in message for message in node.received) == 1  # one session


def test_pull_requests_only_new_blocks(here, there, node, remote, access):
    entry = make_root(there, slices=3)
    node.store.load(entry.dataset.folder)
    found = pulled(here, remote, access)
    before = entry.dataset.head()
    add_slices(entry, 2)
    node.store.load(entry.dataset.folder)
    del node.received[:]
    done = pull_dataset(found, remote, access.reporter, force=False, parallel=2)
    assert done.blocks == 2
    assert node.received[0]["begin_after"] == str(before)
    assert len(node.received[2]["object_files"]) == 2


def test_diverged_pull_requires_force(here, there, node, remote, access):
    entry = make_root(there, slices=1)
    node.store.load(entry.dataset.folder)
    found = copy_into(here, entry)
    describe(found, "here")
    add_slices(entry, 1, city="Basel")
    node.store.load(entry.dataset.folder)
    with pytest.raises(Conflict):
        pull_dataset(found, remote, access.reporter, force=False, parallel=2)
    done = pull_dataset(found, remote, access.reporter, force=True, parallel=2)
    assert done.new_head == entry.dataset.head()


def test_expired_signed_urls_are_requested_again(here, there, node, remote, access):
    entry = make_root(there, slices=2)
    node.store.load(entry.dataset.folder)
    told: list[str] = []

    def location(path: str) -> str:
        told.append(path)
        return f"{node.origin}/bucket/{path}?X-Sig={len(told)}%2F%3D&x=1"

    node.location = location
    node.denied = lambda path: 403 if path.endswith(("?X-Sig=1%2F%3D&x=1", "?X-Sig=2%2F%3D&x=1")) else None
    found = pulled(here, remote, access)
    assert objects(found.dataset.folder) == objects(entry.dataset.folder)
    assert [line for line in node.requests if line.startswith("GET /numbers/pull")] == [
        "GET /numbers/pull"
    ] * 2
    # For the second question, one block is enough.
    assert node.received[-3]["begin_after"] == str(
        entry.dataset.block(entry.dataset.head()).block.prev_block_hash
    )


@newer_only
def test_a_url_that_stays_forbidden_is_an_error(here, there, node, remote, access):
    node.store.load(make_root(there, slices=2).dataset.folder)
    node.denied = lambda path: 403 if "/data/" in path else None
    with pytest.raises(SourceUnavailable, match="403"):
        pulled(here, remote, access)
    assert here.datasets() == []


@newer_only
def test_objects_without_a_strategy_are_read_as_files(here, there, node, remote, access):
    entry = make_root(there, slices=2)
    node.store.load(entry.dataset.folder)
    node.said = lambda step, message: {"object_transfer_strategies": []} if step == "objects" else message
    found = pulled(here, remote, access)
    assert objects(found.dataset.folder) == objects(entry.dataset.folder)


@newer_only
@pytest.mark.parametrize("step", ["plan", "blocks"])
def test_failed_session_falls_back_to_reading_block_by_block(here, there, node, remote, access, step):
    entry = make_root(there, slices=2)
    node.store.load(entry.dataset.folder)
    wrong = {"Err": {"Internal": {"error_message": "no"}}}
    node.said = lambda at, message: message if at != step else wrong if step == "plan" else (1011, b"")
    found = pulled(here, remote, access)
    assert objects(found.dataset.folder) == objects(entry.dataset.folder)


@newer_only
def test_a_message_that_is_too_long_is_read_block_by_block(here, there, node, remote, access):
    entry = make_root(there, blocks=30)
    node.store.load(entry.dataset.folder)
    remote.most_bytes = 1000
    assert objects(pulled(here, remote, access).dataset.folder) == objects(entry.dataset.folder)


def as_files(folder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in objects(folder) if not name.startswith("refs/")}


def test_push_sends_blocks_and_objects_to_the_reference(here, node, remote, access):
    entry = make_derivative(here, make_root(here, "source", slices=1), "numbers")
    done = pushed(entry, remote, access)
    assert (done.status, done.blocks, done.objects, done.new_head) == ("updated", 4, 2, entry.dataset.head())
    assert node.store.files == as_files(entry.dataset.folder)
    assert node.store.head == str(entry.dataset.head())
    assert node.received[0]["current_head"] is None
    assert node.received[0]["transfer_plan"]["num_objects"] == 2
    assert node.received[-1] == {} and node.received[-2] == {"details": "Complete"}


def test_push_skips_objects_that_exist_remotely(here, node, remote, access):
    entry = make_root(here, slices=2)
    pushed(entry, remote, access)
    new = add_slices(entry, 2)
    node.store.files[f"data/{new[0]}"] = entry.dataset.slice_path(new[0]).read_bytes()
    del node.received[:]
    done = pushed(entry, remote, access)
    assert (done.blocks, done.objects) == (2, 1)
    assert len(node.received[2]["object_files"]) == 2
    assert node.store.head == str(entry.dataset.head())


def test_up_to_date_push_opens_no_session(here, node, remote, access):
    entry = make_root(here)
    pushed(entry, remote, access)
    del node.requests[:]
    assert pushed(entry, remote, access).status == "up-to-date"
    assert not any("push" in line for line in node.requests)


@newer_only
def test_push_without_objects_still_requests_strategies(here, node, remote, access):
    pushed(make_root(here, blocks=2), remote, access)
    assert node.received[2] == {"object_files": [], "is_truncated": False}


@newer_only
def test_many_objects_are_announced_in_rounds(here, node, remote, access, monkeypatch):
    monkeypatch.setattr(smart_remote, "_ROUND", 2)
    entry = make_root(here, slices=5)
    pushed(entry, remote, access)
    asked = [each for each in node.received if "object_files" in each]
    assert [len(each["object_files"]) for each in asked] == [2, 2, 1]
    assert [each["is_truncated"] for each in asked] == [True, True, False]
    assert node.store.head == str(entry.dataset.head())


def test_client_reports_progress_on_request(here, node, remote, access, monkeypatch):
    entry = make_root(here, slices=2)
    node.ask_every = 0.01
    answer = node._put

    def is_told():
        return any(isinstance(each.get("details"), dict) for each in node.received)

    async def slowly(request, path):
        await wait_until_async(is_told)
        return await answer(request, path)

    node._put = slowly
    monkeypatch.setattr(smart_remote.SmartPush, "quiet_seconds", 0.05)
    pushed(entry, remote, access)
    assert is_told()
    assert node.store.head == str(entry.dataset.head())


def test_forced_push_sends_the_whole_history(here, there, remote, node, access):
    entry = make_root(here, slices=1)
    pushed(entry, remote, access)
    other = copy_into(there, entry)
    describe(entry, "here")
    pushed(entry, remote, access)
    describe(other, "there")
    del node.received[:]
    if node.era == OLD:
        with pytest.raises(OdfError):
            pushed(other, remote, access, force=True)
        assert node.store.head == str(entry.dataset.head())
        node.wrong.clear()  # the older era knows no force: its last check fails
    else:
        pushed(other, remote, access, force=True)
        assert node.received[0]["force_update_if_diverged"] is True
        assert node.received[1]["new_blocks"]["num_blocks"] == other.dataset.state().blocks
        assert node.store.head == str(other.dataset.head())


ERRORS = [
    (
        "accepted",
        {"Err": {"InvalidHead": {"actual_head": None, "expected_head": None}}},
        Conflict,
        "the remote head has moved",
    ),
    ("accepted", {"Err": {"Internal": {"error_message": "disk full"}}}, SourceUnavailable, "disk full"),
    ("metadata", {"Err": {"SeedBlockOverwriteRestricted": {}}}, Conflict, "a different one"),
    (
        "metadata",
        (1011, b'{"Err":{"Internal":{"error_message":"disk full"}}}'),
        SourceUnavailable,
        "disk full",
    ),
    ("metadata", (1000, b""), SourceUnavailable, "connection closed by the peer"),
    ("objects", {"Err": {"RefCollision": {"dataset_id": "did:odf:x"}}}, Conflict, "did:odf:x"),
    ("objects", {"Err": {"NameCollision": {"dataset_alias": "numbers"}}}, AlreadyExists, "numbers"),
    ("objects", {"object_transfer_strategies": []}, BadData, "response of the server lacks"),
    ("objects", {"what": 1}, BadData, "PushStrategies"),
    ("confirmed", {"Err": {"Internal": {"error_message": "too late"}}}, SourceUnavailable, "too late"),
    ("metadata", "<html>", BadData, "smart protocol"),
    ("metadata", b"{}", BadData, "not text"),
]


@newer_only
@pytest.mark.parametrize(("step", "says", "kind", "words"), ERRORS)
def test_push_errors_are_reported_and_change_nothing(here, node, remote, access, step, says, kind, words):
    node.said = lambda at, message: says if at == step else message
    node.lazy = True
    entry = make_root(here, slices=1)
    before = objects(entry.dataset.folder)
    with pytest.raises(OdfError, match=words) as caught:
        pushed(entry, remote, access)
    assert isinstance(caught.value, kind)
    assert objects(entry.dataset.folder) == before


@newer_only
def test_push_fails_when_the_remote_head_is_not_new(here, node, remote, access, monkeypatch):
    monkeypatch.setattr(smart_remote.SmartPush, "quiet_seconds", 0.02)
    node.lazy = True
    with pytest.raises(SourceUnavailable, match="its head is not the new one"):
        pushed(make_root(here, slices=1), remote, access)


def test_an_upload_that_fails_ends_the_push(here, node, remote, access):
    node.denied = lambda path: 507 if "/data/" in path else None
    remote._plain.web.config = replace(access.config.fetch, retries=0)
    with pytest.raises(SourceUnavailable, match=r"failed: .*507"):
        pushed(make_root(here, slices=3), remote, access)
    assert node.store.head is None
    assert {"details": "Complete"} not in node.received


@newer_only
def test_a_damaged_slice_is_not_sent(here, node, remote, access):
    entry = make_root(here)
    (slice_hash,) = add_slices(entry, 1)
    path = entry.dataset.slice_path(slice_hash)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(BadData, match="is damaged"):
        pushed(entry, remote, access)
    assert node.store.head is None and not any(line.startswith("PUT") for line in node.requests)


@newer_only
def test_history_larger_than_one_message_is_rejected(here, node, remote, access):
    remote.most_bytes = 2000
    with pytest.raises(Unsupported, match="do not fit into one message"):
        pushed(make_root(here, blocks=20), remote, access)


def test_long_messages_go_in_several_frames(here, node, remote, access, monkeypatch):
    monkeypatch.setattr(websocket, "_FRAME_BYTES", 1000)
    entry = make_root(here, blocks=40)
    pushed(entry, remote, access)
    assert node.store.head == str(entry.dataset.head())


@newer_only
def test_access_is_denied_without_a_login(here, node, remote, access):
    access.credentials.forget(node.url)
    with pytest.raises(SourceUnavailable, match="denied") as caught:
        pushed(make_root(here), remote, access)
    assert "odf repo login" in caught.value.hint


@newer_only
def test_cancel_ends_a_waiting_pull(here, there, node, remote, access):
    node.store.load(make_root(there, slices=1).dataset.folder)
    waiting = threading.Event()

    def said(step, message):
        if step != "blocks":
            return message
        waiting.set()
        return None

    node.said = said
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            pulled(here, remote, access)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert waiting.wait(60)
    access.reporter.cancel()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(outcome[0], Cancelled)
    assert here.datasets() == []
