"""Workspaces of other users, and links in workspaces, are not opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from odf_engine.coordinator import worker
from odf_engine.coordinator.client import Client
from odf_engine.errors import OdfError
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf

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
