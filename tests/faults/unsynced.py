"""Changes whose last step, the sync of a folder, fails, as a program of its own.

    python -m tests.faults.unsynced

``os.fsync`` fails for one folder. What was changed before it is changed: the error has to say so.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import yaml

from odf_engine.errors import NotSynced, OdfError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import SetInfo
from odf_engine.net.credentials import Credentials, Login, RemoteAccess
from odf_engine.progress import Reporter
from odf_engine.sync import open_remote
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.push import push
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.sync import builders
from tests.sync.serving_here import served

SAID = "committed, but could not be synced to disk: Input/output error"
ALIAS = DatasetAlias(None, "pulled")


@contextmanager
def failing(folder: str) -> Iterator[None]:
    """Within it, folders of this name cannot be synced."""
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == folder and path.is_dir():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with mock.patch("os.fsync", fail):
        yield


def unsynced(work: Callable[[], object], message: str = SAID) -> None:
    try:
        work()
    except NotSynced as error:
        assert error.message == message, error
        assert error.exit_code == 1
        return
    raise AssertionError("no error")


def failed(work: Callable[[], object]) -> None:
    """Does something of which nothing remains."""
    try:
        work()
    except OdfError as error:
        assert not isinstance(error, NotSynced), error
        assert "nothing was" in (error.hint or "") or "push again" in (error.hint or ""), error.hint
        return
    raise AssertionError("no error")


def url_of(entry: DatasetEntry) -> str:
    return f"file://{entry.dataset.folder}/"


def commit(here: Workspace, there: Workspace) -> None:
    entry = builders.make_root(here)

    def describe(text: str) -> None:
        state = entry.dataset.state()
        entry.dataset.commit([SetInfo(text)], system_time=state.system_time, expected_head=state.head)

    before = entry.dataset.state().sequence_number
    with failing("refs"):
        unsynced(lambda: describe("one"))
    assert entry.dataset.state().sequence_number == before + 1
    with failing("blocks"):
        failed(lambda: describe("two"))
    assert entry.dataset.state().sequence_number == before + 1
    describe("two")


def pull(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    remote = FolderRemote(url_of(source))

    with failing("refs"):
        failed(lambda: clone_dataset(here, ALIAS, remote, Reporter(), parallel=2))
    assert here.datasets() == []
    with failing("datasets"):
        unsynced(
            lambda: clone_dataset(here, ALIAS, remote, Reporter(), parallel=2),
            SAID.replace("committed", "the dataset was added"),
        )
    [entry] = here.datasets()
    assert entry.dataset.head() == source.dataset.head()

    before = entry.dataset.head()
    builders.add_slices(source)
    with failing("blocks"):
        failed(lambda: pull_dataset(entry, remote, Reporter(), force=False, parallel=2))
    assert entry.dataset.head() == before
    with failing("refs"):
        unsynced(lambda: pull_dataset(entry, remote, Reporter(), force=False, parallel=2))
    assert entry.dataset.head() == source.dataset.head()
    assert not (entry.dataset.folder / "info" / "arriving").exists()
    assert pull_dataset(entry, remote, Reporter(), force=False, parallel=2).status == "up-to-date"


def push_to_folder(here: Workspace, there: Workspace) -> None:
    entry = builders.make_root(here, slices=1)
    remote = FolderRemote(f"file://{here.folder}/usb/")
    with failing("blocks"):
        failed(lambda: push(entry, remote, Reporter(), force=False, parallel=2))
    assert remote.head() is None
    with failing("refs"):
        unsynced(lambda: push(entry, remote, Reporter(), force=False, parallel=2))
    assert remote.head() == entry.dataset.head()
    assert push(entry, remote, Reporter(), force=False, parallel=2).status == "up-to-date"


def push_to_server(here: Workspace, there: Workspace) -> None:
    entry = builders.make_root(there, slices=1)
    with served(here, allow_push=True) as running:
        access = RemoteAccess(there.config, Credentials(there.odf), Reporter())
        access.credentials.set(running.url, Login(token=running.serving.tokens.create("laptop")[1]))
        remote = open_remote(f"odf+{running.url}pushed/", access)

        def send() -> str:
            return push(entry, remote, Reporter(), force=False, parallel=2).status

        def told(said: str) -> None:
            try:
                send()
            except OdfError as error:
                assert said in error.message, error
                return
            raise AssertionError("no error")

        with failing("refs"):
            told("the disk could not be synced")
        assert here.datasets() == []
        with failing("datasets"):
            told("the dataset was added, but could not be synced")  # what ends a session is short
        assert send() == "up-to-date"
        builders.describe(entry, "more")
        with failing("refs"):
            told("committed, but could not be synced")
        assert remote.head() == entry.dataset.head()
        assert send() == "up-to-date"
        remote.close()


def command_line(here: Workspace, there: Workspace) -> None:
    manifest = {
        "kind": "DatasetSnapshot",
        "version": 1,
        "content": {"name": "boats", "kind": "Root", "metadata": [{"kind": "SetInfo", "description": "one"}]},
    }
    (here.folder / "boats.yaml").write_text(yaml.safe_dump(manifest))
    for folder in ("refs", "datasets"):
        with failing(folder):
            ran = call_odf("add", "boats.yaml", cwd=here.folder)
        assert (ran.code, here.datasets()) == (1, [])
        assert "committed" not in ran.err, ran.err
    assert call_odf("add", "boats.yaml", cwd=here.folder).code == 0

    [entry] = here.datasets()
    before = entry.dataset.head()
    manifest["content"]["metadata"][0]["description"] = "two"  # type: ignore[index]
    (here.folder / "boats.yaml").write_text(yaml.safe_dump(manifest))
    with failing("refs"):
        ran = call_odf("add", "--update", "boats.yaml", cwd=here.folder)
    assert ran.code == 1
    assert SAID in ran.err, ran.err
    assert "nothing was" not in ran.err, ran.err
    assert entry.dataset.head() != before
    before = entry.dataset.head()
    ran = call_odf("add", "--update", "boats.yaml", cwd=here.folder)
    assert (ran.code, entry.dataset.head()) == (0, before), ran.err

    with failing("info"):
        ran = call_odf("rename", "boats", "ships", cwd=here.folder)
    assert ran.code == 1
    assert "alias was written, but could not be synced to disk" in ran.err, ran.err
    assert [str(each.alias) for each in here.datasets()] == ["ships"]


SCENARIOS = (commit, pull, push_to_folder, push_to_server, command_line)


def main() -> None:
    """Runs all scenarios, each with two workspaces of its own below the current folder."""
    for scenario in SCENARIOS:
        print(scenario.__name__, flush=True)
        here, there = (
            Workspace.init(Path(f"{scenario.__name__}/{each}").absolute()) for each in ("here", "there")
        )
        scenario(here, there)


if __name__ == "__main__":
    main()
