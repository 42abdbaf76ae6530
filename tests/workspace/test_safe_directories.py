"""Workspaces of other users, and links in workspaces, are not opened."""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from odf_engine.errors import NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.worker import process as worker
from odf_engine.worker.client import Client
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf
from tests.sync.builders import make_root
from tests.sync.in_process_server import served

Open = Callable[..., Ran]


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace of another user: the current one has another number."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.delenv("SUDO_UID", raising=False)
    folder = Workspace.init(tmp_path / "foreign").folder
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    return folder


def refused(ran: Ran, folder: Path) -> bool:
    return (
        ran.code == 1
        and "belongs to another user" in ran.err
        and f"odf config set --user safeDirectories {folder}" in ran.err
    )


def test_every_command_refuses_a_workspace_of_another_user(
    foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = foreign / "a" / "b"
    inner.mkdir(parents=True)
    before = sorted(foreign.rglob("*"))
    assert refused(call_odf("list", cwd=inner), foreign)
    assert refused(call_odf("list", "-w", str(foreign), cwd=foreign.parent), foreign)
    assert refused(call_odf("list", cwd=foreign.parent, ODF_WORKSPACE=str(foreign)), foreign)
    assert refused(call_odf("worker", "start", cwd=inner), foreign)
    assert refused(call_odf("config", "set", "worker.maxJobs", "3", cwd=inner), foreign)
    assert refused(call_odf("engine", "serve", cwd=inner), foreign)
    assert refused(call_odf(cwd=inner), foreign)  # the workstation
    assert worker.main([str(foreign)]) == 1
    assert "belongs to another user" in capsys.readouterr().err
    assert sorted(foreign.rglob("*")) == before


async def test_worker_client_refuses_a_workspace_of_another_user(foreign: Path) -> None:
    with pytest.raises(OdfError, match="belongs to another user"):
        await Client.connect(foreign)


def test_safe_directories_allow_a_workspace_of_another_user(foreign: Path) -> None:
    other = foreign.with_name("a, b")
    allowed = call_odf("config", "set", "--user", "safeDirectories", f'["{other}"]', cwd=foreign.parent)
    assert allowed.code == 0, allowed.err
    ran = call_odf("list", cwd=foreign)
    assert f"""safeDirectories '["{other}", "{foreign}"]'""" in ran.err  # what was safe before stays so
    assert call_odf("config", "set", "--user", "safeDirectories", str(foreign), cwd=foreign).code == 0
    assert call_odf("list", cwd=foreign).code == 0
    assert call_odf("config", "set", "--user", "safeDirectories", "*", cwd=foreign).code == 0
    assert call_odf("list", cwd=foreign).code == 0
    assert call_odf("config", "set", "--user", "safeDirectories", cwd=foreign).code == 0
    assert call_odf("list", cwd=foreign).code == 1


def test_workspace_settings_cannot_declare_it_safe(foreign: Path) -> None:
    (foreign / ".odf" / "config.yaml").write_text("safeDirectories: ['*']\n")
    assert refused(call_odf("list", cwd=foreign), foreign)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("path", [".", ".odf", ".odf/config.yaml"])
def test_folder_and_settings_must_belong_to_the_user(tmp_path: Path, path: str) -> None:
    workspace = Workspace.init(tmp_path / "w")
    assert Workspace.find(explicit=workspace.folder)
    os.chown(workspace.folder / path, 4321, 4321)
    with pytest.raises(OdfError, match="belongs to another user"):
        Workspace.find(explicit=workspace.folder)
    with mock.patch.dict(os.environ, SUDO_UID="4321"):  # as git: of the one who called sudo
        assert Workspace.find(explicit=workspace.folder)


def test_no_workspace_is_made_in_a_folder_of_another_user(foreign: Path) -> None:
    assert refused(call_odf("init", ".", cwd=foreign.parent), foreign.parent)


def test_odf_may_be_a_link_to_a_folder_of_the_user(tmp_path: Path) -> None:
    made = Workspace.init(tmp_path / "made")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".odf").symlink_to(made.odf)
    assert call_odf("list", cwd=tmp_path / "linked").code == 0


def test_linked_folder_in_odf_requires_a_safe_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    workspace = Workspace.init(tmp_path / "w")
    large = tmp_path / "large"
    large.mkdir()
    (workspace.odf / "cache").symlink_to(large)
    ran = call_odf("list", cwd=workspace.folder)
    assert ran.code == 1 and ".odf/cache is a symbolic link" in ran.err
    assert f"odf config set --user safeDirectories {large}" in ran.err
    assert call_odf("config", "set", "--user", "safeDirectories", str(large), cwd=tmp_path).code == 0
    assert call_odf("list", cwd=workspace.folder).code == 0


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Workspace, Path]:
    """A workspace with a dataset, and a folder of the user outside of it."""
    workspace = Workspace.init(tmp_path / "w")
    make_root(workspace, "numbers", slices=2)
    victim = tmp_path / "victim"
    (victim / "work").mkdir(parents=True)
    (victim / "work" / "thesis.txt").write_text("precious")
    return workspace, victim


@pytest.mark.parametrize(
    "name", [
        "blocks", "data", "checkpoints", "refs", "refs/before-x", "info", "info/branches",
        "info/branches/work", "info/alias", "info/origin", "info/late", "proofs", "compactions", "checks",
    ],
)  # fmt: skip
def test_links_in_the_folder_of_a_dataset_are_not_followed(
    linked: tuple[Workspace, Path], name: str, tmp_path: Path
) -> None:
    workspace, victim = linked
    folder = workspace.resolve("numbers").dataset.folder
    path = folder / name
    if path.is_dir():
        shutil.copytree(path, victim, dirs_exist_ok=True)
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(victim)
    before = sorted(victim.rglob("*"))
    for command in (
        ["branch", "numbers", "-d", "work", "--force"], ["branch", "numbers", "work"], ["list"],
        ["verify", "numbers", "--integrity"], ["tail", "numbers"], ["delete", "numbers", "-y"],
        ["fsck", "--repair"],
    ):  # fmt: skip
        ran = call_odf(*command, cwd=workspace.folder)
        assert ran.code == 1 and "symbolic link" in ran.err and str(path) in ran.err, (command, ran.err)
    assert sorted(victim.rglob("*")) == before


@pytest.mark.net
def test_linked_objects_are_neither_served_nor_read(linked: tuple[Workspace, Path], tmp_path: Path) -> None:
    workspace, victim = linked
    entry = workspace.resolve("numbers")
    folder = entry.dataset.folder
    secret, fake = victim / "work" / "thesis.txt", Multihash.sha3_256(b"any")
    (folder / "data" / str(fake)).symlink_to(secret)
    slice_file = entry.dataset.slice_path(entry.dataset.slices()[0])
    moved = slice_file.rename(tmp_path / "slice")
    slice_file.symlink_to(moved)
    block = folder / "blocks" / str(entry.dataset.block(2).hash)
    with served(workspace) as server:
        for name in (str(fake), slice_file.name):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{server.url}numbers/data/{name}")
    for command in (["tail", "numbers"], ["push", "numbers", "--to", str(tmp_path / "copy")]):
        ran = call_odf(*command, cwd=workspace.folder)
        assert ran.code == 1 and "Traceback" not in ran.err, (command, ran.err)
    ran = call_odf("verify", "numbers", "--integrity", "--json", cwd=workspace.folder)
    assert ran.code == 3 and ran.json["datasets"][0]["findings"]
    block.rename(moved_block := tmp_path / "block")
    block.symlink_to(moved_block)
    with pytest.raises(NotFound, match="the block is missing"):
        Workspace(workspace.folder).resolve("numbers").dataset.block(2)


@pytest.mark.net
def test_link_in_an_arriving_dataset_is_not_followed(linked: tuple[Workspace, Path], tmp_path: Path) -> None:
    workspace, victim = linked
    other = make_root(Workspace.init(tmp_path / "other"), "there", slices=1)
    url = other.dataset.folder.as_uri() + "/"
    for source in (url, url.rstrip("/")):
        arriving = workspace.odf / "incoming" / hashlib.sha256(source.encode()).hexdigest()[:32]
        arriving.mkdir(parents=True)
        (arriving / "info").symlink_to(victim)
    before = sorted(victim.rglob("*"))
    ran = call_odf("pull", "--from", url, "--as", "there", cwd=workspace.folder)
    assert ran.code == 1 and "is a symbolic link" in ran.err
    assert sorted(victim.rglob("*")) == before
