"""Objects in a folder: stored whole or not at all, found under any spelling of their hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.errors import NotFound
from odf_engine.identity.multiformats import Multihash, base58btc_encode
from odf_engine.storage.object_store import LocalObjectStore, find_object_name

DATA = b"some bytes"
HASH = Multihash.sha3_256(DATA)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "blocks")


def test_stored_object_can_be_read_back(store: LocalObjectStore) -> None:
    assert list(store.names()) == []
    store.put(str(HASH), DATA)
    assert store.exists(str(HASH))
    assert store.read(str(HASH)) == DATA
    assert store.size(str(HASH)) == len(DATA)
    with store.open(str(HASH)) as file:
        assert file.read(4) == DATA[:4]
    assert list(store.names()) == [str(HASH)]
    assert [path.name for path in store.folder.iterdir()] == [str(HASH)]


def test_existing_object_is_not_overwritten(store: LocalObjectStore) -> None:
    store.put("name", DATA)
    before = store.path("name").stat()
    store.put("name", DATA[::-1])
    assert store.read("name") == DATA
    assert store.path("name").stat().st_ino == before.st_ino


def test_a_truncated_object_is_replaced(store: LocalObjectStore) -> None:
    staged = store.staging_path()
    staged.write_bytes(DATA)
    for put in (lambda: store.put("name", DATA), lambda: store.put_file("name", staged)):
        store.path("name").write_bytes(DATA[:4])
        put()
        assert store.read("name") == DATA


def test_a_staged_file_is_moved_to_its_name(store: LocalObjectStore) -> None:
    staged = store.staging_path()
    staged.write_bytes(DATA)
    assert staged.parent == store.folder
    assert list(store.names()) == []  # it is not an object yet
    inode = staged.stat().st_ino
    store.put_file("name", staged)
    assert store.path("name").stat().st_ino == inode
    assert not staged.exists()


def test_a_staged_file_whose_object_is_there_is_removed(store: LocalObjectStore) -> None:
    store.put("name", DATA)
    staged = store.staging_path()
    staged.write_bytes(DATA)
    store.put_file("name", staged)
    assert [path.name for path in store.folder.iterdir()] == ["name"]


def test_a_failed_write_leaves_nothing(store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    store.staging_path()  # makes the folder
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.put("name", DATA)
    assert list(store.folder.iterdir()) == []


def test_missing_object_is_not_found(store: LocalObjectStore) -> None:
    assert not store.exists("name")
    for ask in (store.read, store.size, store.open):
        with pytest.raises(NotFound, match="name"):
            ask("name")


@pytest.mark.parametrize("name", ["", "../refs/head", "a/b", ".pending-x", "."])
def test_names_stay_within_the_folder(store: LocalObjectStore, name: str) -> None:
    with pytest.raises(NotFound):
        store.read(name)


def test_a_deleted_dataset_does_not_come_back(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "gone" / "blocks")
    with pytest.raises(FileNotFoundError):
        store.put("name", DATA)
    assert not (tmp_path / "gone").exists()


def test_object_is_found_under_any_spelling_of_its_hash(store: LocalObjectStore) -> None:
    assert find_object_name(store, HASH) is None
    written = "F" + str(HASH)[1:].upper()
    for name in (base58btc_encode(bytes(HASH)), str(HASH), written):  # the later, the sooner
        store.put(name, DATA)
        assert find_object_name(store, HASH, written) == name
    assert find_object_name(store, HASH) == str(HASH)


def test_symlink_loops_are_reported_as_not_found(store: LocalObjectStore) -> None:
    store.put("f1", b"one")
    (store.folder / "f2").symlink_to("f2")
    assert list(store.names()) == ["f1"]
    assert not store.exists("f2")
    for read in (store.size, store.read):
        with pytest.raises(NotFound, match="object f2 cannot be read"):
            read("f2")
    loop = LocalObjectStore(store.folder.parent / "loop")
    loop.folder.symlink_to("loop")
    with pytest.raises(NotFound, match="the folder cannot be read"):
        list(loop.names())
    with pytest.raises(NotFound):
        loop.size("f1")
