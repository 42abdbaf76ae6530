"""Linked objects (RFC-017): transfer by all protocols, verification, orphans, size."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.linked_objects import linked_objects
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import BadData
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.object_links import LinkedTotals
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.storage.object_store import LocalObjectStore
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.push import push
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.fsck import check_workspace
from odf_engine.workspace.workspace import Workspace
from tests.ingest.recorder import Recorder
from tests.sync.file_server import FileServer
from tests.sync.in_process_server import Running, served
from tests.sync.linked import add_object, add_rows, make_linked

CENSUS = {
    b"census_a": "f1620ffd8538233905b7fb9a9c7bff1315bbb3f9eaecd1746c6562426328835785dcb",
    b"census_b": "f162068c16896aced6b7498e338dc150640a07a7330c0f158bcb3365795c3f4418976",
}
A, B = CENSUS.values()


@pytest.fixture
def photos(there: Workspace) -> DatasetEntry:
    """A dataset with two objects, one of which is linked twice."""
    entry = make_linked(there)
    assert [add_object(entry, content) for content in CENSUS] == [A, B]
    add_rows(entry, [A, None, B], LinkedTotals(2, 16))
    add_rows(entry, [A], LinkedTotals(1, 8))
    return entry


def objects_of(entry: DatasetEntry) -> dict[str, bytes | None]:
    """The linked objects and their bytes, or None for a missing one."""
    paths = {str(link): entry.dataset.slice_path(link) for link in linked_objects(entry.dataset, Reporter())}
    return {name: path.read_bytes() if path.is_file() else None for name, path in paths.items()}


BOTH = {name: content for content, name in CENSUS.items()}


@pytest.fixture
def server(there: Workspace) -> Iterator[Running]:
    with served(there, allow_push=True) as running:
        yield running


@pytest.mark.net
@pytest.mark.parametrize("protocol", ["folder", "http", "server", "smart"])
def test_a_pull_downloads_objects(
    here: Workspace,
    photos: DatasetEntry,
    files: FileServer,
    server: Running,
    access: RemoteAccess,
    protocol: str,
) -> None:
    folder = photos.dataset.folder
    url = {
        "folder": f"file://{folder}/",
        "http": f"{files.url}there/.odf/datasets/{folder.name}/",
        "server": f"{server.url}photos/",
        "smart": f"odf+{server.url}photos/",
    }[protocol]
    remote = open_remote(url, access)
    entry, pulled = clone_dataset(here, DatasetAlias.parse("copy"), remote, access.reporter, parallel=2)
    assert objects_of(entry) == BOTH
    assert pulled.bytes == photos.dataset.state().data_size + 16
    assert verify(entry.dataset, Reporter()).valid

    # New objects come with new blocks; --force restores missing ones.
    new = add_object(photos, b"new")
    add_rows(photos, [new, A], LinkedTotals(2, 11))
    entry.dataset.slice_path(Multihash.parse(B)).unlink()
    pull_dataset(entry, remote, access.reporter, force=False, parallel=2)
    assert objects_of(entry) == {**BOTH, B: None, new: b"new"}
    pull_dataset(entry, remote, access.reporter, force=True, parallel=2)
    assert objects_of(entry) == {**BOTH, new: b"new"}
    remote.close()


@pytest.mark.parametrize("problem", ["damaged", "missing"])
def test_damaged_object_fails_the_pull_and_missing_one_warns(
    here: Workspace, photos: DatasetEntry, access: RemoteAccess, problem: str
) -> None:
    path = photos.dataset.slice_path(Multihash.parse(B))
    path.unlink()
    remote, alias = open_remote(f"file://{photos.dataset.folder}/", access), DatasetAlias.parse("copy")
    if problem == "damaged":
        path.write_bytes(b"census_x")
        with pytest.raises(BadData, match=f"data/{B}"):
            clone_dataset(here, alias, remote, Reporter(), parallel=2)
        assert here.datasets() == []
    else:
        reporter = Recorder()
        entry, _ = clone_dataset(here, alias, remote, reporter, parallel=2)
        assert objects_of(entry) == {**BOTH, B: None}
        assert f"1 linked object missing at {remote.url}" in reporter.warnings
        (finding,) = verify(entry.dataset, Reporter()).findings
        assert (finding.kind, B in finding.message) == ("object-missing", True)


@pytest.mark.net
@pytest.mark.parametrize("protocol", ["folder", "smart"])
def test_a_push_uploads_objects(
    here: Workspace, there: Workspace, server: Running, access: RemoteAccess, tmp_path: Path, protocol: str
) -> None:
    access.credentials.set(server.url, Login(token=server.serving.tokens.create("laptop")[1]))
    url = f"file://{tmp_path}/usb/" if protocol == "folder" else f"odf+{server.url}photos/"
    remote = open_remote(url, access)
    entry = make_linked(here)
    names = [add_object(entry, content) for content in (*CENSUS, b"")]
    add_rows(entry, [names[0], names[1], names[0]], LinkedTotals(3, 24))

    def push_all() -> int:
        return push(entry, remote, access.reporter, force=False, parallel=2).objects

    assert push_all() == 3
    add_rows(entry, [names[2], names[1]], LinkedTotals(2, 8))
    assert push_all() == 2  # the slice and the new object
    target = tmp_path / "usb" if protocol == "folder" else there.resolve("photos").dataset.folder
    assert [(target / "data" / name).read_bytes() for name in names] == [*CENSUS, b""]
    # A damaged object is not sent; a missing one is left out.
    other = add_object(entry, b"other")
    add_rows(entry, [other], LinkedTotals(1, 5))
    entry.dataset.slice_path(Multihash.parse(other)).write_bytes(b"0ther")
    head = remote.head()
    with pytest.raises(Exception, match="damaged"):
        push_all()
    assert remote.head() == head
    entry.dataset.slice_path(Multihash.parse(other)).unlink()
    push_all()
    assert remote.head() == entry.dataset.head()
    remote.close()


def test_verify_finds_invalid_links_and_damaged_objects(here: Workspace, there: Workspace) -> None:
    entry = make_linked(there)
    add_object(entry, b"census_a")
    add_rows(entry, [A, A], LinkedTotals(2, 16))
    assert verify(entry.dataset, Reporter()).valid
    add_rows(entry, [A, "photo.jpg"], LinkedTotals(2, 16))
    kinds = {finding.kind: finding.message for finding in verify(entry.dataset, Reporter()).findings}
    assert set(kinds) == {"link-invalid", "linked-objects"}
    assert "row 2, column \"photo\": 'photo.jpg'" in kinds["link-invalid"]
    assert "declares 2 links to 16 bytes, the slice has 1 links to 8 bytes" in kinds["linked-objects"]
    entry.dataset.slice_path(Multihash.parse(A)).write_bytes(b"census_x")
    kinds = {finding.kind for finding in verify(entry.dataset, Reporter()).findings}
    assert "object-physical-hash" in kinds


def test_unlinked_objects_are_orphans_and_linked_ones_count_in_size(
    there: Workspace, photos: DatasetEntry
) -> None:
    state = photos.dataset.state()
    assert state.linked == LinkedTotals(3, 24)
    (summary,) = there.summaries()
    assert summary.size == state.data_size + 24
    orphan = add_object(photos, b"never linked")
    report = check_workspace(there, Reporter(), repair=True, now=True)
    assert [(finding.kind, finding.count, finding.repaired) for finding in report.findings] == [
        ("orphan-slice", 1, True)
    ]
    assert not photos.dataset.slice_path(Multihash.parse(orphan)).exists()
    assert objects_of(photos) == BOTH
    # Without the links of a slice nothing is an orphan.
    add_object(photos, b"never linked")
    photos.dataset.slice_path(photos.dataset.slices()[0]).write_bytes(b"damaged")
    report = check_workspace(there, Reporter(), repair=True, now=True)
    assert [finding.kind for finding in report.findings] == ["links-unknown"]
    assert {path.read_bytes() for path in (photos.dataset.folder / "data").iterdir()} >= set(CENSUS)


def test_a_damaged_object_is_replaced(photos: DatasetEntry) -> None:
    photos.dataset.slice_path(Multihash.parse(A)).write_bytes(b"census_x")
    assert add_object(photos, b"census_a") == A
    assert objects_of(photos) == BOTH


@pytest.mark.parametrize("step", ["put_file", "commit"])
def test_a_kill_before_the_commit_leaves_the_old_head(
    there: Workspace, photos: DatasetEntry, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    head = photos.dataset.head()
    child = os.fork()
    if not child:
        for kind in (LocalObjectStore, Dataset):
            with suppress(AttributeError):
                monkeypatch.setattr(kind, step, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        add_rows(photos, [add_object(photos, b"new")])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert photos.dataset.head() == head
    assert verify(photos.dataset, Reporter()).valid
    check_workspace(there, Reporter(), repair=True, now=True)
    assert len(list((photos.dataset.folder / "data").iterdir())) == 4
    add_rows(photos, [add_object(photos, b"new")])
    assert verify(photos.dataset, Reporter()).valid
