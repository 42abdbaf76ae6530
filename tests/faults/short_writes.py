"""Transfers on a disk that takes only a part of each write, as a program of its own.

    python -m tests.faults.short_writes

The file size limit of the process (``RLIMIT_FSIZE``) makes the writes short: the kernel takes the bytes up
to the limit, and refuses the next ones with an error. Later the limit is lifted, as on a disk on which
somebody frees space.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import OdfError
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Credentials, Login, RemoteAccess
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.push import push
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.sync import builders
from tests.sync.in_process_server import served

Fault = Callable[[], AbstractContextManager[None]]

LIMIT = 3000  # bytes in a file
LONG = "x" * (2 * LIMIT)


@contextmanager
def small_files() -> Iterator[None]:
    """Within it, no file grows beyond :data:`LIMIT`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def lost_bytes() -> Iterator[None]:
    """Within it, writes of large amounts succeed, and the disk holds only a part of the bytes."""
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) > LIMIT:
            write(descriptor, bytes(data)[: len(data) // 2])
            return len(data)
        return write(descriptor, data)

    with mock.patch("os.write", half):
        yield


def refused(work: Callable[[], object]) -> None:
    """Does something that has to end in an error with a hint; prints its message."""
    try:
        work()
    except OdfError as error:
        assert error.hint or error.where, error
        print(f"  refused: {error.message}", flush=True)
        return
    raise AssertionError("it was not refused")


def check(dataset: Dataset) -> None:
    """Verifies every byte of a dataset."""
    report = verify(Dataset(dataset.folder, BlockIndex(":memory:")), Reporter())
    assert report.valid, report.findings


def source(there: Workspace) -> DatasetEntry:
    entry = builders.make_root(there, slices=1)
    builders.describe(entry, LONG)
    return entry


def url_of(entry: DatasetEntry) -> str:
    return f"file://{entry.dataset.folder}/"


def pull(here: Workspace, there: Workspace, fault: Fault) -> None:
    """Into a new dataset, then into one that is there."""
    entry = source(there)
    remote = FolderRemote(url_of(entry))
    alias = DatasetAlias(None, "pulled")
    with fault():
        refused(lambda: clone_dataset(here, alias, remote, Reporter(), parallel=2))
    assert here.datasets() == []
    pulled, _ = clone_dataset(here, alias, remote, Reporter(), parallel=2)
    check(pulled.dataset)

    head = builders.describe(entry, LONG + "y")
    before = pulled.dataset.head()
    with fault():
        refused(lambda: pull_dataset(pulled, remote, Reporter(), force=False, parallel=2))
    assert pulled.dataset.head() == before
    check(pulled.dataset)
    assert pull_dataset(pulled, remote, Reporter(), force=False, parallel=2).new_head == head
    check(pulled.dataset)


def pull_slice(here: Workspace, there: Workspace, fault: Fault) -> None:
    entry = builders.make_root(there)
    builders.add_files(entry, 1, 10 * LIMIT)
    remote = FolderRemote(url_of(entry))
    alias = DatasetAlias(None, "pulled")
    with fault():
        refused(lambda: clone_dataset(here, alias, remote, Reporter(), parallel=2))
    pulled, _ = clone_dataset(here, alias, remote, Reporter(), parallel=2)
    [data] = (pulled.dataset.folder / "data").iterdir()
    assert data.stat().st_size == 10 * LIMIT


def push_to_folder(here: Workspace, there: Workspace) -> None:
    entry = source(there)
    remote = FolderRemote(f"file://{here.folder}/usb/")
    with small_files():
        refused(lambda: push(entry, remote, Reporter(), force=False, parallel=2))
    assert remote.head() is None
    push(entry, remote, Reporter(), force=False, parallel=2)
    check(Dataset(remote.folder, BlockIndex(":memory:")))


def push_to_server(here: Workspace, there: Workspace, fault: Fault) -> None:
    """First a block does not fit, then a slice."""
    entry = builders.make_root(there)
    with served(here, allow_push=True) as running:
        access = RemoteAccess(there.config, Credentials(there.odf), Reporter())
        access.credentials.set(running.url, Login(token=running.serving.tokens.create("laptop")[1]))
        remote = open_remote(f"odf+{running.url}pushed/", access)
        for add in (
            partial(builders.describe, entry, LONG),
            partial(builders.add_files, entry, 1, 10 * LIMIT),
        ):
            before = remote.head()
            add()
            with fault():
                refused(lambda: push(entry, remote, Reporter(), force=False, parallel=2))
            assert remote.head() == before
            push(entry, remote, Reporter(), force=False, parallel=2)
            assert remote.head() == entry.dataset.head()
        remote.close()
    [pushed] = here.datasets()
    assert [block.hash for block in pushed.dataset.blocks()] == [
        block.hash for block in entry.dataset.blocks()
    ]
    [data] = (pushed.dataset.folder / "data").iterdir()
    assert data.stat().st_size == 10 * LIMIT


SCENARIOS: dict[str, Callable[[Workspace, Workspace], None]] = {
    "pull on a full disk": lambda here, there: pull(here, there, small_files),
    "pull on a disk that loses bytes": lambda here, there: pull(here, there, lost_bytes),
    "pull of a slice on a full disk": lambda here, there: pull_slice(here, there, small_files),
    "pull of a slice on a disk that loses bytes": lambda here, there: pull_slice(here, there, lost_bytes),
    "push to a folder on a full disk": push_to_folder,
    "push to a server with a full disk": lambda here, there: push_to_server(here, there, small_files),
    "push to a server whose disk loses bytes": lambda here, there: push_to_server(here, there, lost_bytes),
}


def main() -> None:
    """Runs all scenarios, each with two workspaces of its own below the current folder."""
    for number, (name, run) in enumerate(SCENARIOS.items()):
        print(name, flush=True)
        here, there = (Workspace.init(Path(f"{number}/{each}").absolute()) for each in ("here", "there"))
        run(here, there)


if __name__ == "__main__":
    main()
