"""Pulls and pushes between two workspaces by the smart protocol: our client and our server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from odf_engine.identity.refs import DatasetAlias
from odf_engine.sync.places import Access
from odf_engine.sync.pull import pull_into, pull_new
from odf_engine.sync.push import push
from odf_engine.sync.smart import SmartRemote
from odf_engine.workspace.credentials import Login
from odf_engine.workspace.workspace import DatasetEntry, Workspace
from tests.sync.builders import add_slices, make_derivative, make_root, objects
from tests.sync.serving_here import Running, served

NAME = "numbers"


@pytest.fixture
def server(there: Workspace) -> Iterator[Running]:
    """A server of the other workspace, which takes pushes."""
    with served(there, allow_push=True) as running:
        yield running


@pytest.fixture
def remote(server: Running, access: Access, there: Workspace) -> Iterator[SmartRemote]:
    """The dataset there, with a login that may push."""
    token = server.serving.tokens.new("laptop", ["%"])[1]
    access.credentials.set(server.url, Login(token=token))
    smart = SmartRemote(f"odf+{server.url}{NAME}/", access)
    yield smart
    smart.close()


def pulled(here: Workspace, remote: SmartRemote, access: Access, name: str = NAME) -> DatasetEntry:
    return pull_new(here, DatasetAlias.parse(name), remote, access.reporter, parallel=3)[0]


def pushed(entry: DatasetEntry, remote: SmartRemote, access: Access, force: bool = False):
    return push(entry, remote, access.reporter, force=force, parallel=3)


def test_a_dataset_is_pulled_and_brought_up_to_date(here, there, remote, access):
    entry = make_root(there, NAME, slices=5)
    found = pulled(here, remote, access)
    assert objects(found.dataset.folder) == objects(entry.dataset.folder)
    add_slices(entry, 2)
    done = pull_into(found, remote, access.reporter, force=False, parallel=2)
    assert (done.blocks, done.new_head) == (2, entry.dataset.head())
    assert objects(found.dataset.folder) == objects(entry.dataset.folder)


def test_a_dataset_is_pushed_and_brought_up_to_date(here, there, remote, access):
    source = make_derivative(here, make_root(here, "source", slices=1), NAME)
    done = pushed(source, remote, access)
    assert (done.status, done.blocks, done.objects) == ("updated", 4, 2)
    found = there.resolve(NAME)
    assert objects(found.dataset.folder) == objects(source.dataset.folder)
