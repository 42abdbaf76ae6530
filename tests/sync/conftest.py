"""Two workspaces, and a server of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.data.sha3_lanes import compile_kernel
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.sync import object_downloads
from odf_engine.workspace.workspace import Workspace
from tests.sync.file_server import FileServer, serving


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The workspace that things come into."""
    monkeypatch.delenv("ODF_WORKSPACE", raising=False)
    return Workspace.init(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Workspace:
    """The workspace of somebody else."""
    return Workspace.init(tmp_path / "there")


@pytest.fixture
def access(here: Workspace) -> RemoteAccess:
    """How the workspace here speaks with other places."""
    return RemoteAccess(here.config, Credentials(here.odf), Reporter())


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FileServer]:
    """An HTTP server of the folder of the test: ``files.url + "there/.odf/datasets/…/"``."""
    with serving(tmp_path) as server:
        yield server


@pytest.fixture(params=["openssl", "lanes"])
def hashing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash downloads one by one, or several at the same time."""
    kernel = compile_kernel() if request.param == "lanes" else None
    monkeypatch.setattr(object_downloads, "find_kernel", lambda size=0: kernel)
