"""Pulling over real sockets: what was cut off goes on, and nothing that was whole comes twice."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from odf_engine.base.config import Config, FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Cancelled, NotFound, OdfError
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.sync.history import Relation
from odf_engine.sync.pull import ChainPull, clone_dataset, pull_dataset
from odf_engine.sync.remotes.http_remote import HttpRemote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.sync import builders
from tests.sync.file_server import Asked, FileServer

pytestmark = pytest.mark.net

ALIAS = DatasetAlias(None, "pulled")
IMPATIENT = Config(fetch=FetchConfig(retries=0, connect_timeout_seconds=5, read_timeout_seconds=5))


def url_of(files: FileServer, entry: DatasetEntry) -> str:
    return f"{files.url}{entry.dataset.folder.relative_to(files.folder)}/"


def pull(here: Workspace, url: str, reporter: Reporter | None = None, parallel: int = 2) -> ChainPull:
    """Pulls into the dataset named so, or makes it."""
    reporter = reporter or Reporter()
    remote = HttpRemote(url, RemoteAccess(IMPATIENT, Credentials(here.odf), reporter))
    try:
        for entry in here.datasets():
            if entry.alias == ALIAS:
                return pull_dataset(entry, remote, reporter, force=False, parallel=parallel)
        return clone_dataset(here, ALIAS, remote, reporter, parallel=parallel)[1]
    finally:
        remote.close()


def objects_of(asked: list[Asked]) -> Counter[tuple[str, str, int]]:
    """How often objects were asked for, by folder, name and first byte."""
    parts = [(each.path.split("/")[-2:], each.start) for each in asked]
    return Counter((kind, name, start) for (kind, name), start in parts if kind in ("blocks", "data"))


def arrived(here: Workspace, source: DatasetEntry) -> set[str]:
    """The objects that are whole of a dataset that is not."""
    sizes = {path.name: path.stat().st_size for path in source.dataset.folder.rglob("f1620*")}
    found = [path for path in (here.odf / "incoming").rglob("f1620*") if path.is_file()]
    return {path.name for path in found if path.stat().st_size == sizes[path.name]}


def holds_all(here: Workspace, source: DatasetEntry) -> None:
    """The dataset here is whole, and the same as the other."""
    (entry,) = here.datasets()
    assert entry.dataset.state() == source.dataset.state()
    for name in builders.objects(source.dataset.folder):
        assert (entry.dataset.folder / name).read_bytes() == (source.dataset.folder / name).read_bytes()
    assert not list((here.odf / "incoming").glob("*"))


def test_each_object_is_asked_for_once(here: Workspace, there: Workspace, files: FileServer) -> None:
    source = builders.make_root(there, slices=3, blocks=5)
    builders.add_files(source, 3, 300_000)
    pulled = pull(here, url_of(files, source))
    assert pulled.relation == Relation("equal", 0, 0, source.dataset.head())
    asked = objects_of(files.forget())
    assert set(asked.values()) == {1}
    assert len(asked) == 6 + pulled.blocks
    holds_all(here, source)

    builders.add_slices(source, 2)
    pulled = pull(here, url_of(files, source))
    assert (pulled.blocks, pulled.records) == (2, 6)
    assert len(objects_of(files.forget())) == 4
    holds_all(here, source)
    assert pull(here, url_of(files, source)).status == "up-to-date"
    assert not objects_of(files.forget())


@pytest.mark.parametrize(("prefix", "head"), [("z", True), ("b", True), ("u", False), ("F", False)])
def test_names_in_other_encodings_are_pulled_over_http(
    here: Workspace, there: Workspace, files: FileServer, tmp_path: Path, prefix: str, head: bool
) -> None:
    source = builders.make_root(there, slices=2)
    builders.as_old_repository(source.dataset.folder, tmp_path / "old", prefix, head=head)
    pull(here, f"{files.url}old/")
    holds_all(here, source)


@pytest.mark.usefixtures("hashing")
def test_an_interrupted_pull_goes_on_where_it_was(
    here: Workspace, there: Workspace, files: FileServer
) -> None:
    source = builders.make_root(there)
    names = [str(each) for each in builders.add_files(source, 6, 400_000)]
    url = url_of(files, source)

    def cut(path: str, data: bytes) -> bytes | None:
        return data[:150_000] if path.endswith(names[2]) else data

    files.fault = cut
    with pytest.raises(OdfError):
        pull(here, url)
    assert here.datasets() == []
    whole = arrived(here, source)
    files.forget()
    files.fault = lambda path, data: data
    pulled = pull(here, url)
    holds_all(here, source)
    again = objects_of(files.forget())
    assert again[("data", names[2], 150_000)] == 1
    assert not whole & {name for _, name, _ in again}
    fetched = sum(400_000 - start for kind, _, start in again if kind == "data")
    assert pulled.bytes == fetched < 6 * 400_000


@pytest.mark.usefixtures("hashing")
def test_changed_partial_file_is_fetched_again(here: Workspace, there: Workspace, files: FileServer) -> None:
    source = builders.make_root(there)
    (name,) = builders.add_files(source, 1, 400_000)
    files.fault = lambda path, data: data[:150_000] if "/data/" in path else data
    with pytest.raises(OdfError):
        pull(here, url_of(files, source))
    (half,) = (here.odf / "incoming").rglob(f"arriving/data/{name}")
    assert half.stat().st_size == 150_000
    half.write_bytes(b"x" * 150_000)
    files.fault = lambda path, data: data
    pull(here, url_of(files, source))
    holds_all(here, source)


FAULTS: dict[str, tuple[Callable[[str, bytes], bytes | None], type[OdfError]]] = {
    "wrong slice": (lambda path, data: bytes(len(data)) if "/data/" in path else data, BadData),
    "long slice": (lambda path, data: data + b"more" if "/data/" in path else data, BadData),
    "no slice": (lambda path, data: None if "/data/" in path else data, NotFound),
    "wrong block": (lambda path, data: bytes(len(data)) if "/blocks/" in path else data, BadData),
    "no block": (lambda path, data: None if "/blocks/" in path else data, NotFound),
    "a page": (lambda path, data: b"<html>".ljust(len(data)) if "/blocks/" in path else data, BadData),
}


@pytest.mark.usefixtures("hashing")
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.complete(after=2)
def test_faulty_server_changes_nothing_locally(
    here: Workspace, there: Workspace, files: FileServer, name: str
) -> None:
    files.fault, kind = FAULTS[name]
    source = builders.make_root(there, slices=2)
    with pytest.raises(kind):
        pull(here, url_of(files, source))
    assert here.datasets() == []
    files.fault = lambda path, data: data
    pull(here, url_of(files, source))
    builders.add_slices(source, 1)
    (entry,) = here.datasets()
    before = builders.objects(entry.dataset.folder)
    files.fault, _ = FAULTS[name]
    with pytest.raises(kind):
        pull(here, url_of(files, source))
    assert builders.objects(entry.dataset.folder) == before


@pytest.mark.parametrize("at", ["/refs/", "/blocks/", "/data/"])
def test_cancelled_pull_creates_nothing_and_can_be_repeated(
    here: Workspace, there: Workspace, files: FileServer, at: str
) -> None:
    source = builders.make_root(there)
    builders.add_files(source, 4, 300_000)
    reporter = Reporter()

    def cancelled(path: str, data: bytes) -> bytes:
        if at in path:
            reporter.cancel()
        return data

    files.fault = cancelled
    with pytest.raises(Cancelled):
        pull(here, url_of(files, source), reporter)
    assert here.datasets() == []
    files.fault = lambda path, data: data
    pull(here, url_of(files, source))
    holds_all(here, source)


@pytest.mark.parametrize("after", [3, 8, 11])
@pytest.mark.complete(after=1)
def test_killed_pull_resumes_without_repeating_downloads(
    here: Workspace, there: Workspace, files: FileServer, after: int
) -> None:
    source = builders.make_root(there, slices=1)
    builders.add_files(source, 5, 200_000)
    child = 0

    def killing(path: str, data: bytes) -> bytes:
        if len(objects_of(files.asked)) >= after:
            os.kill(child, signal.SIGKILL)
        return data

    files.fault = killing
    child = os.fork()
    if child == 0:
        try:
            pull(here, url_of(files, source))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it came to its end"
    files.fault = lambda path, data: data
    assert here.datasets() == []
    whole = arrived(here, source)
    files.forget()
    pull(here, url_of(files, source))
    assert not whole & {name for _, name, _ in objects_of(files.forget())}
    holds_all(here, source)
