"""Pushes to a folder: what is decided, in which order it goes, and what cannot be broken."""

from __future__ import annotations

import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.errors import BadData, Cancelled, Conflict, MalformedBlock, NotFound, OdfError, Unsupported
from odf_engine.identity import ownership_proof as proofs
from odf_engine.net.credentials import RemoteAccess
from odf_engine.sync.history import Relation
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import (
    add_blocks,
    add_files,
    add_slices,
    as_old_repository,
    copy_into,
    describe,
    forge,
    make_derivative,
    make_root,
    objects,
)
from tests.sync.push_helpers import Watching, chain, folder_remote, leftovers, read_whole, send
from tests.sync.pusher import Pusher
from tests.waiting import wait_until


@pytest.fixture
def target(tmp_path: Path) -> FolderRemote:
    """Where to; there is nothing yet."""
    return folder_remote(tmp_path / "usb")


def test_push_creates_and_updates_the_remote_dataset(here: Workspace, target: FolderRemote) -> None:
    entry = make_root(here, slices=3, blocks=2)
    reporter = Watching()
    pushed = send(entry, target, reporter)
    head = entry.dataset.head()
    assert (pushed.status, pushed.old_head, pushed.new_head) == ("updated", None, head)
    assert (pushed.blocks, pushed.objects) == (7, 3)
    assert pushed.relation == Relation("equal", 0, 0, head)
    assert pushed.bytes == sum(size for name, size in objects(target.folder).items() if name != "refs/head")
    assert read_whole(target) == chain(entry)
    assert (target.folder / "refs/head").read_bytes() == str(head).encode()
    assert reporter.phases == ["compare", "send", "commit"]
    assert reporter.amounts["bytes"] == reporter.amounts["total_bytes"] > 0
    assert reporter.amounts["files"] == reporter.amounts["total_files"] == 10

    before = objects(target.folder)
    pushed = send(entry, target)
    assert (pushed.status, pushed.blocks, pushed.objects, pushed.bytes) == ("up-to-date", 0, 0, 0)
    assert objects(target.folder) == before

    add_files(entry, 1, 5000)
    add_blocks(entry, 2)
    pushed = send(entry, target)
    assert (pushed.status, pushed.old_head, pushed.blocks, pushed.objects) == ("updated", head, 3, 1)
    assert read_whole(target) == chain(entry)
    assert leftovers(target.folder) == []


def test_checkpoints_are_pushed(here: Workspace, target: FolderRemote) -> None:
    entry = make_derivative(here, make_root(here))
    assert send(entry, target).objects == 2
    assert read_whole(target) == chain(entry)
    assert len(list((target.folder / "checkpoints").iterdir())) == 1


def test_the_head_comes_last(here: Workspace, target: FolderRemote) -> None:
    entry = make_root(here, slices=2)
    send(entry, target)
    make, seen = entry.dataset, []
    add_slices(entry, 2)

    class Spy(FolderRemote):
        def upload(self, file, source, told):
            super().upload(file, source, told)
            seen.append("data")
            read_whole(self)

        def write(self, kind, object_hash, data):
            super().write(kind, object_hash, data)
            seen.append(kind)
            assert len(read_whole(self)) == 4

        def set_head(self, expected, new):
            super().set_head(expected, new)
            seen.append("head")

    proofs.create_and_store_proof(make.folder, entry.id, here.keys.private_key_pem(entry.id), make.head())
    send(entry, Spy(target.url), parallel=1)
    assert seen == ["data", "data", "proofs", "blocks", "blocks", "head"]
    assert read_whole(target) == chain(entry)


def test_existing_objects_are_not_sent_again(here: Workspace, target: FolderRemote) -> None:
    entry = make_root(here)
    add_files(entry, 5, 100_000)
    reporter = Watching(cancel_at=250_000)
    with pytest.raises(Cancelled):
        send(entry, target, reporter, parallel=1)
    assert target.head() is None
    assert leftovers(target.folder) == []
    there = objects(target.folder)
    assert len(there) == 2
    times = {name: (target.folder / name).stat().st_mtime_ns for name in there}
    pushed = send(entry, target)
    assert pushed.objects == 3
    assert {name: (target.folder / name).stat().st_mtime_ns for name in there} == times
    assert read_whole(target) == chain(entry)


def test_remote_object_of_wrong_size_is_replaced(here: Workspace, target: FolderRemote) -> None:
    entry = make_root(here, slices=2)
    for name in list(objects(entry.dataset.folder)):
        if name.startswith(("data/", "blocks/")):
            (target.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (target.folder / name).write_bytes(b"half")
    send(entry, target)
    assert read_whole(target) == chain(entry)


def test_diverged_push_requires_force(here: Workspace, there: Workspace, target: FolderRemote) -> None:
    entry = make_root(here, slices=1)
    other = copy_into(there, entry)
    describe(other, "theirs")
    send(other, target)
    theirs = target.head()
    with pytest.raises(Conflict, match="the remote dataset is 1 block ahead") as caught:
        send(entry, target)
    assert caught.value.exit_code == 4
    add_slices(entry)
    describe(entry, "ours")
    before = objects(target.folder)
    with pytest.raises(
        Conflict, match="the histories have diverged: 2 blocks ahead, 1 block behind"
    ) as caught:
        send(entry, target)
    assert "--force" in str(caught.value.hint)
    assert objects(target.folder) == before

    pushed = send(entry, target, force=True)
    assert (pushed.status, pushed.old_head) == ("updated", theirs)
    assert read_whole(target) == chain(entry)
    assert theirs is not None
    assert (target.folder / "refs" / f"before-push-{theirs.abbreviated}").read_text() == str(theirs)
    assert target.holds("blocks", theirs)


def test_force_resets_a_remote_that_is_ahead(here: Workspace, there: Workspace, target: FolderRemote) -> None:
    entry = make_root(here, slices=1)
    other = copy_into(there, entry)
    describe(other, "one more")
    send(other, target)
    assert send(entry, target, force=True).blocks == 0
    assert target.head() == entry.dataset.head()


def test_another_dataset_is_refused_also_with_force(here: Workspace, target: FolderRemote) -> None:
    send(make_root(here, "one"), target)
    before = objects(target.folder)
    for force in (False, True):
        with pytest.raises(Conflict, match="a different dataset") as caught:
            send(make_root(here, f"two-{force}"), target, force=force)
        assert "another URL" in str(caught.value.hint)
    assert objects(target.folder) == before


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"x" * 100_000, "do not match its hash"), (b"x", "not have 100,000 bytes"), (None, "is missing")],
    ids=["other", "short", "none"],
)
def test_local_damage_does_not_spread(
    here: Workspace, target: FolderRemote, content: bytes | None, text: str
) -> None:
    entry = make_root(here)
    send(entry, target)
    head = target.head()
    bad = add_files(entry, 3, 100_000)[1]
    path = entry.dataset.slice_path(bad)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises((BadData, NotFound), match=text) as caught:
        send(entry, target)
    assert str(path) in str(caught.value)
    assert target.head() == head
    assert not target.holds("data", bad)
    assert leftovers(target.folder) == []
    assert read_whole(target) == chain(entry)[3:]


def test_damaged_local_block_is_not_pushed(here: Workspace, target: FolderRemote) -> None:
    entry = make_root(here, blocks=3)
    stored = entry.dataset.block(3)
    (entry.dataset.folder / "blocks" / str(stored.hash)).write_bytes(b"no block")
    with pytest.raises(MalformedBlock, match="damaged"):
        send(entry, target)
    assert objects(target.folder) == {}


def test_push_to_damaged_remote_is_rejected(here: Workspace, target: FolderRemote) -> None:
    entry = make_root(here)
    send(entry, target)
    head = str(target.head())
    (target.folder / "refs/head").write_text("<html>")
    with pytest.raises(BadData, match="does not contain the hash of a block"):
        send(entry, target, force=True)
    # A block that is not here, under a wrong name.
    (target.folder / "refs/head").write_text(head[:-1] + ("0" if head[-1] != "0" else "1"))
    with pytest.raises(NotFound, match=r"blocks/.* not found"):
        send(entry, target)
    assert objects(target.folder)["refs/head"] == len(head)


def test_valid_proofs_are_pushed_and_invalid_ones_not(here: Workspace, target: FolderRemote) -> None:
    entry = make_root(here, slices=1)
    head = entry.dataset.head()
    assert head is not None
    send(entry, target)
    proofs.create_and_store_proof(entry.dataset.folder, entry.id, here.keys.private_key_pem(entry.id), head)
    pushed = send(entry, target)
    assert (pushed.status, pushed.objects, pushed.blocks) == ("updated", 1, 0)
    assert proofs.read_proof(target.folder, head) == proofs.read_proof(entry.dataset.folder, head)
    assert send(entry, target).status == "up-to-date"
    # One that proves nothing stays here.
    for wrong in (b"nothing", bytes(proofs.create_proof(here.keys.private_key_pem(entry.id), head))):
        head = describe(entry, f"more than {head}")
        (entry.dataset.folder / "proofs" / str(head)).write_bytes(wrong)
        reporter = Watching()
        send(entry, target, reporter)
        assert not target.holds("proofs", head)
        assert any("not sent" in line for line in reporter.lines)


def test_push_to_http_url_is_rejected(here: Workspace, access: RemoteAccess) -> None:
    entry = make_root(here)
    with pytest.raises(Unsupported, match="cannot push to http: URLs") as caught:
        send(entry, open_remote("http://127.0.0.1:9/x/", access))
    assert "s3:" in str(caught.value.hint)


@pytest.mark.parametrize("prefix", ["z", "b"])
def test_remote_with_names_in_another_encoding_is_updated(
    here: Workspace, target: FolderRemote, prefix: str
) -> None:
    entry = make_root(here, slices=2)
    as_old_repository(entry.dataset.folder, target.folder, prefix)
    assert send(entry, target).status == "up-to-date"
    describe(entry, "more")
    pushed = send(entry, target)
    assert (pushed.blocks, pushed.objects) == (1, 0)
    assert read_whole(target) == chain(entry)


def test_head_moved_during_a_push_is_a_conflict(
    here: Workspace, there: Workspace, target: FolderRemote
) -> None:
    entry = make_root(here, slices=1)
    send(entry, target)
    other = copy_into(there, entry)
    describe(other, "theirs")
    describe(entry, "ours")

    class Slow(FolderRemote):
        def set_head(self, expected, new):
            send(other, target)
            super().set_head(expected, new)

    with pytest.raises(Conflict, match="changed by another process"):
        send(entry, Slow(target.url))
    assert target.head() == other.dataset.head()
    with pytest.raises(Conflict, match="the histories have diverged"):
        send(entry, target)


def test_interrupt_ends_the_uploads_that_are_running(here: Workspace, target: FolderRemote) -> None:
    entry = make_root(here, slices=1)
    ended: list[str] = []

    class Endless(FolderRemote):
        def upload(self, file, source, on_progress):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            deadline = time.monotonic() + 30
            try:
                while time.monotonic() < deadline:
                    on_progress(0)
            except Cancelled:
                ended.append(file.kind)
                raise

    with pytest.raises(KeyboardInterrupt):
        send(entry, Endless(target.url))
    wait_until(lambda: ended == ["data"])  # the pool does not wait for a thread that it is starting
    assert target.head() is None


@pytest.mark.complete
def test_two_pushers_one_conflict(here: Workspace, there: Workspace, target: FolderRemote) -> None:
    """Two processes at the same moment: one wins, the other is told, and nothing of either is lost."""
    entry = make_root(here, slices=1)
    send(entry, target)
    other = copy_into(there, entry)
    add_files(entry, 4, 50_000, seed=1)
    add_files(other, 4, 50_000, seed=2)
    racers = [Pusher(workspace, target.url) for workspace in (here, there)]
    for racer in racers:
        racer.go()
    results = [racer.outcome() for racer in racers]
    assert sorted(results) == ["Conflict", "updated"]
    winner, loser = (entry, other) if results[0] == "updated" else (other, entry)
    assert read_whole(target) == chain(winner)
    with pytest.raises(Conflict, match="the histories have diverged: 4 blocks ahead, 4 blocks behind"):
        send(loser, target)
    send(loser, target, force=True)
    assert read_whole(target) == chain(loser)
    kept = list((target.folder / "refs").glob("before-push-*"))
    assert [path.read_text() for path in kept] == [str(winner.dataset.head())]


def test_unsupported_hash_algorithm_in_a_block_is_rejected(here: Workspace, target: FolderRemote) -> None:
    from odf_engine.identity.multiformats import ARROW0_SHA3_256, Multihash
    from odf_engine.metadata.model import AddData, DataSlice, OffsetInterval

    entry = make_root(here)
    odd = Multihash(ARROW0_SHA3_256, bytes(32))
    forge(entry.dataset, AddData(prev_offset=None, new_data=DataSlice(odd, odd, OffsetInterval(0, 0), 5)))
    with pytest.raises(BadData, match="an unsupported hash algorithm"):
        send(entry, target)
    assert target.head() is None


@pytest.mark.complete
def test_killed_push_leaves_the_old_chain_or_the_new(here: Workspace, target: FolderRemote) -> None:
    """Readers see what was there or all that is new; the next push sends nothing whole again."""
    entry = make_root(here, slices=1)
    send(entry, target)
    old = chain(entry)
    add_files(entry, 40, 50_000)
    chance = random.Random(7)
    written: dict[str, int] = {}
    for _ in range(4):
        Pusher(here, target.url).kill(chance.uniform(0, 0.06))
        assert read_whole(target) in (old, chain(entry))
        times = {path.name: path.stat().st_mtime_ns for path in target.folder.rglob("f16*")}
        assert written.items() <= times.items()
        written = times
    send(entry, target)
    assert read_whole(target) == chain(entry)
    times = {path.name: path.stat().st_mtime_ns for path in target.folder.rglob("f16*")}
    assert written.items() <= times.items()


class Failing(FolderRemote):
    """Fails when so many things were written."""

    def __init__(self, url: str, left: int) -> None:
        super().__init__(url)
        self.left = left

    def _writing(self):
        self.left -= 1
        if self.left < 0:
            raise OdfError("it is over")
        return super()._writing()


STEPS = st.tuples(
    st.booleans(),  # whether the one here pushes, or the one there
    st.integers(0, 2),  # new slices
    st.integers(0, 9),  # things that can be written until it fails
    st.booleans(),  # force
)


@settings(max_examples=10)
@given(st.lists(STEPS, max_size=6))
@pytest.mark.complete
def test_readers_see_one_whole_chain_or_another(steps: list[tuple[bool, int, int, bool]]) -> None:
    """Whoever pushes what, with force or without, and wherever it breaks off."""
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        target = folder_remote(Path(folder) / "usb")
        here, there = (Workspace.init(Path(folder) / name) for name in ("here", "there"))
        entry = make_root(here, slices=1)
        other = copy_into(there, entry)
        send(entry, target)
        for number, (ours, slices, left, force) in enumerate(steps):
            pusher = entry if ours else other
            add_files(pusher, slices, 100, seed=number * 2 + ours)
            before, wanted = read_whole(target), chain(pusher)
            follows = wanted[-len(before) :] == before
            try:
                pushed = send(pusher, Failing(target.url, left), force=force, parallel=2)
            except Conflict:
                assert not force
                assert not follows
                assert read_whole(target) == before
            except OdfError:
                assert read_whole(target) == before
            else:
                assert force or follows
                assert read_whole(target) == wanted
                assert (pushed.status == "up-to-date") == (before == wanted)
                if not follows:
                    kept = [path.read_text() for path in (target.folder / "refs").glob("before-push-*")]
                    assert before[0] in kept
