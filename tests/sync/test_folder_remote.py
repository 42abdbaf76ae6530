"""Datasets in folders: what is read there, and every way in which a folder cannot be written to."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_engine.errors import BadData, Conflict, NotFound, OdfError, SourceUnavailable, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.storage.refs import RefStore
from odf_engine.sync.remotes.base import ObjectFile
from odf_engine.sync.remotes.folder_remote import FolderRemote, FolderRepository
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import add_files, make_root, objects
from tests.sync.push_helpers import chain, folder_remote, leftovers, read_whole, send

CONTENT = bytes(range(256)) * 9000
NAME = Multihash.sha3_256(CONTENT)
FILE = ObjectFile("data", NAME, len(CONTENT))


@pytest.fixture
def remote(tmp_path: Path) -> FolderRemote:
    return folder_remote(tmp_path / "usb" / "numbers")


def put(remote: FolderRemote, content: bytes = CONTENT) -> Path:
    path = remote.folder / "data" / str(NAME)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_objects_are_read_within_size_limits(remote: FolderRemote) -> None:
    assert remote.head() is None
    assert not remote.holds("data", NAME)
    with pytest.raises(NotFound, match=f"data/{NAME} not found"):
        b"".join(remote.chunks(FILE))
    put(remote)
    assert remote.holds("data", NAME)
    assert remote.holds("data", NAME, len(CONTENT))
    assert not remote.holds("data", NAME, 5)
    assert b"".join(remote.chunks(FILE)) == CONTENT
    assert b"".join(remote.chunks(FILE, 2_000_000)) == CONTENT[2_000_000:]
    with pytest.raises(BadData, match="more than 1,000 bytes"):
        remote.read("data", NAME, 1000)
    put(remote, CONTENT + b"and no end")
    assert len(b"".join(remote.chunks(FILE))) == len(CONTENT) + 1


@pytest.mark.parametrize("name", ["lab/T.Push", "LAB/t.push", "Lab/T.PUSH"])
def test_names_of_datasets_and_accounts_are_found_in_any_case(
    here: Workspace, there: Workspace, tmp_path: Path, name: str
) -> None:
    entry = make_root(here, "t.push", slices=1)
    send(entry, folder_remote(tmp_path / "lab" / "t.push"))
    assert read_whole(folder_remote(tmp_path / name)) == chain(entry)
    with pytest.raises(Conflict, match="a different dataset"):
        send(make_root(there, "T.PUSH"), folder_remote(tmp_path / name))
    assert [path.name for path in (tmp_path / "lab").iterdir()] == ["t.push"]


def test_head_is_read_and_invalid_content_rejected(remote: FolderRemote) -> None:
    head = remote.folder / "refs" / "head"
    head.parent.mkdir(parents=True)
    head.write_text(f"{NAME}\n")
    assert remote.head() == NAME
    for text in ("", "<html>", "f1620", "x" * 100_000):
        head.write_text(text)
        with pytest.raises(BadData, match="does not contain the hash of a block"):
            remote.head()
    head.unlink()
    os.mkfifo(head)
    assert remote.head() is None
    os.mkfifo(remote.folder / "blocks")
    assert not remote.holds("blocks", NAME)


def test_objects_refs_and_head_are_written(remote: FolderRemote, tmp_path: Path) -> None:
    source = tmp_path / "slice"
    source.write_bytes(CONTENT)
    (tmp_path / "usb").mkdir()
    told: list[int] = []
    remote.upload(FILE, source, told.append)
    assert told[-1] == len(CONTENT)
    remote.write("blocks", NAME, b"block")
    remote.set_head(None, NAME)
    with pytest.raises(Conflict):
        remote.set_head(None, NAME)
    remote.set_ref("before-x", NAME)
    remote.set_ref("before-x", Multihash.sha3_256(b""))
    assert (remote.folder / "refs/before-x").read_text() == str(NAME)
    assert objects(remote.folder) == {
        f"blocks/{NAME}": 5, f"data/{NAME}": len(CONTENT), "refs/before-x": 69, "refs/head": 69,
    }  # fmt: skip


def test_files_of_killed_pushes_are_removed_after_a_day(here: Workspace, remote: FolderRemote) -> None:
    """What a killed push left is no object; after a day it goes."""
    entry = make_root(here, slices=1)
    send(entry, remote)
    old, new = (remote.folder / "info" / f".pending-{name}" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    (remote.folder / "data/.pending-theirs").write_bytes(b"of another program")
    add_files(entry, 1, 10)
    send(entry, remote)
    assert sorted(leftovers(remote.folder)) == [new.name, ".pending-theirs"]
    assert read_whole(remote) == chain(entry)


def test_repository_lists_datasets_with_accounts(here: Workspace, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    entry = make_root(here)
    for name in ("zoo", "acme/Numbers", "acme/cities", "with space"):
        send(entry, FolderRemote(f"file://{repo}/{name.replace(' ', '%20')}/"))
    (repo / "broken/refs").mkdir(parents=True)
    (repo / "broken/refs/head").write_text("nothing")
    (repo / "empty").mkdir()
    (repo / "notes.txt").write_text("no dataset")
    (repo / ".hidden/refs").mkdir(parents=True)
    (repo / ".hidden/refs/head").write_text(str(NAME))
    assert (repo / "with space/refs/head").is_file()
    listed = list(FolderRepository(f"file://{repo}/").datasets())
    head = str(entry.dataset.head())
    assert [(each.name, each.head) for each in listed] == [
        ("acme/cities", head), ("acme/Numbers", head), ("broken", None), ("zoo", head),
    ]  # fmt: skip
    assert listed[0].url == f"file://{repo}/acme/cities/"


def test_missing_or_invalid_folder_is_reported(here: Workspace, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"folder .* not found"):
        list(FolderRepository(f"file://{tmp_path}/none/").datasets())
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(SourceUnavailable, match="not a directory"):
        list(FolderRepository(f"file://{file}/").datasets())
    entry = make_root(here)
    for place in (file, file / "numbers"):
        assert folder_remote(place).head() is None
        with pytest.raises(OdfError, match="cannot be written to") as caught:
            send(entry, folder_remote(place))
        assert "it is a file, not a folder" in str(caught.value.hint)
    with pytest.raises(OdfError, match="cannot be written to: no such file") as caught:
        send(entry, folder_remote(tmp_path / "hmoe" / "me" / "numbers"))
    assert "create or mount" in str(caught.value.hint)
    assert not (tmp_path / "hmoe").exists()
    assert file.read_text() == "x"


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Path]:
    """A drive of its own with one megabyte."""
    folder = tmp_path / "drive"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("only root may mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_or_read_only_drive_is_reported(here: Workspace, drive: Path) -> None:
    entry = make_root(here)
    remote = folder_remote(drive / "numbers")
    send(entry, remote)
    head = remote.head()
    add_files(entry, 3, 400_000)
    with pytest.raises(OdfError, match="cannot be written to: no space left") as caught:
        send(entry, remote)
    assert "free disk space" in str(caught.value.hint)
    assert caught.value.where == remote.url
    assert remote.head() == head
    assert leftovers(remote.folder) == []
    assert len(read_whole(remote)) == 2
    subprocess.run(["mount", "-o", "remount,size=8m", str(drive)], check=True)
    assert send(entry, remote).objects < 3
    assert read_whole(remote) == chain(entry)

    add_files(entry, 1, 100)
    subprocess.run(["mount", "-o", "remount,ro", str(drive)], check=True)
    before = objects(remote.folder)
    with pytest.raises(OdfError, match="cannot be written to: read-only") as caught:
        send(entry, remote)
    assert "mount it with write access" in str(caught.value.hint)
    assert objects(remote.folder) == before
    assert read_whole(remote) == chain(entry)[1:]


@pytest.fixture
def foreign() -> Iterator[FolderRemote]:
    """The dataset of somebody else: it may be read in part, and not be written."""
    with tempfile.TemporaryDirectory() as place:
        remote = folder_remote(Path(place) / "numbers")
        remote.set_head(None, NAME)
        remote.write("blocks", NAME, b"block")
        Path(place).chmod(0o755)
        for folder, mode in (("blocks", 0o555), ("refs", 0), ("", 0o555)):
            (remote.folder / folder).chmod(mode)
        if was_root := os.geteuid() == 0:  # to whom nothing is forbidden
            os.setegid(65534)
            os.seteuid(65534)
        yield remote
        if was_root:
            os.seteuid(0)
            os.setegid(0)
        for folder in ("", "blocks", "refs"):
            (remote.folder / folder).chmod(0o755)


def test_permission_errors_are_reported(foreign: FolderRemote) -> None:
    assert foreign.read("blocks", NAME, 10) == b"block"
    with pytest.raises(SourceUnavailable, match="refs/head cannot be read: permission denied"):
        foreign.head()
    for kind in ("blocks", "proofs"):
        with pytest.raises(OdfError, match="cannot be written to: permission denied") as caught:
            foreign.write(kind, NAME, b"more")
        assert "check the owner" in str(caught.value.hint)
    assert list(FolderRepository(f"file://{foreign.folder.parent}/").datasets()) == []


def test_held_lock_is_a_conflict(remote: FolderRemote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odf_engine.storage.refs._LOCK_SECONDS", 0.05)
    remote.folder.mkdir(parents=True)
    with (
        RefStore(remote.folder / "refs").locked(),
        pytest.raises(Conflict, match="holds the dataset's lock"),
    ):
        remote.set_head(None, NAME)


def test_push_to_repository_root_is_rejected(here: Workspace, tmp_path: Path) -> None:
    entry = make_root(here, slices=1)
    repo = tmp_path / "repo"
    send(entry, folder_remote(repo / "numbers"))
    (repo / ".DS_Store").write_text("")
    with pytest.raises(UsageError, match="the target has other files, such as 'numbers'") as caught:
        send(entry, folder_remote(repo))
    assert f"file://{repo}/NAME/" in str(caught.value.hint)
    assert sorted(path.name for path in repo.iterdir()) == [".DS_Store", "numbers"]
