"""`odf trust`: shows what an untrusted dataset would run, prompts, and is revoked by a changed source."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from odf_engine.errors import NotTrusted, OdfError, UsageError
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared.root import odf as odf_group

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: foreign
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: "https://host/x"}
      prepare:
        - kind: Pipe
          command: [sh, -c, rm -rf ~]
      read: {kind: NdJson}
      merge: {kind: Append}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A workspace with a dataset that was copied from another one."""
    workspace, other = Workspace.init(tmp_path / "ws"), Workspace.init(tmp_path / "other")
    (made,) = other.add(read_manifests(MANIFEST, "test.yaml"))
    shutil.copytree(made.dataset.folder, workspace.odf / "datasets" / made.dataset.folder.name)
    return workspace


def run(workspace: Workspace, *arguments: str) -> Result:
    return CliRunner().invoke(odf_group, ["-w", str(workspace.folder), *arguments])


def document(workspace: Workspace, *arguments: str) -> Any:
    result = run(workspace, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_trust_without_terminal_shows_programs_and_requires_yes(workspace: Workspace) -> None:
    result = run(workspace, "trust", "foreign")
    assert isinstance(result.exception, UsageError) and "--yes" in (result.exception.hint or "")
    assert "reads the URL                     https://host/x\n" in result.stdout
    assert "pipes the data through            sh -c 'rm -rf ~'\n" in result.stdout
    assert document(workspace, "show", "foreign")["trust"] == "not trusted"

    result = run(workspace, "trust", "foreign", "--json")
    assert isinstance(result.exception, UsageError)
    assert [each["kind"] for each in json.loads(result.stdout)["runs"]] == ["url", "pipe"]


def test_yes_grants_trust_and_untrust_revokes_it(workspace: Workspace) -> None:
    said = document(workspace, "trust", "foreign", "-y")
    assert (said["trust"], said["private_network"], len(said["runs"])) == ("trusted", False, 2)
    assert document(workspace, "trust", "foreign", "-y", "--private-network")["private_network"] is True
    assert document(workspace, "show", "foreign")["trust"] == "trusted"
    assert document(workspace, "untrust", "foreign")["trust"] == "not trusted"
    assert "was not trusted" in run(workspace, "untrust", "foreign").stderr


def test_trust_on_a_terminal_prompts(workspace: Workspace) -> None:
    for answer, trusted in (b"n\n", False), (b"y\n", True):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        done = subprocess.run(
            [sys.executable, "-m", "odf_tui", "-w", str(workspace.folder), "trust", "foreign"],
            stdin=theirs,
            capture_output=True,
            timeout=60,
        )
        assert b"Allow foreign to run this on each pull?" in done.stderr
        assert done.returncode == (0 if trusted else 130)
        assert Trust(workspace).is_trusted(workspace.resolve("foreign")) is trusted
        os.close(ours)
        os.close(theirs)


def test_definition_from_a_url_is_not_trusted(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "odf_tui.cli.shared.manifests._download",
        lambda workspace, url: MANIFEST.replace("foreign", "web") + "---",
    )
    result = run(workspace, "add", "https://host/manifest.yaml")
    assert result.exit_code == 0 and "odf trust web" in result.stderr
    shown = document(workspace, "show", "web")
    assert (shown["trust"], shown["origin"]) == ("not trusted", "https://host/manifest.yaml")

    path = workspace.folder / "mine.yaml"
    path.write_text(MANIFEST.replace("foreign", "mine"))
    run(workspace, "add", str(path))
    assert document(workspace, "show", "mine")["trust"] == "own"
    assert "is your own" in run(workspace, "trust", "mine").stderr
    assert not (workspace.odf / "trust").exists()


class TestWorkspaceOfSomebodyElse:
    """A workspace with private keys, as unpacked from an archive or made before there were seals."""

    @pytest.fixture
    def unpacked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
        """A workspace that another person made: an own dataset, and one that the person trusted."""
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "theirs"))
        workspace = Workspace.init(tmp_path / "ws")
        trust = Trust(workspace)
        workspace.add(read_manifests(MANIFEST, "test.yaml"))
        web = read_manifests(MANIFEST.replace("foreign", "web"), "test.yaml")
        workspace.add(web, {"web": "https://host/manifest.yaml"})
        trust.grant(workspace.resolve("web"), private_network=True)
        assert [trust.describe_status(entry) for entry in workspace.datasets()] == ["own", "trusted"]
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "mine"))
        return workspace

    def test_its_keys_and_permissions_do_not_run_anything(self, unpacked: Workspace) -> None:
        for name in ("foreign", "web"):
            shown = document(unpacked, "show", name)
            assert shown["trust"] == "not trusted"
            assert document(unpacked, "trust", name, "--yes")["trust"] == "trusted"
            assert document(unpacked, "untrust", name)["private_network"] is False
        with pytest.raises(NotTrusted) as caught:
            Trust(unpacked).require_trust(unpacked.resolve("foreign"))
        assert "not created by you" in caught.value.message
        assert "odf trust --own" in str(caught.value.hint)
        with pytest.raises(NotTrusted) as caught:
            Trust(unpacked).require_trust(unpacked.resolve("web"))
        assert "--own" not in str(caught.value.hint)  # it was added from a URL

    def test_the_own_workspace_is_confirmed_once(self, unpacked: Workspace) -> None:
        refused = run(unpacked, "trust", "--own")
        assert isinstance(refused.exception, UsageError) and "--yes" in str(refused.exception.hint)
        assert "rm -rf" in refused.stdout and "was not created by you here" in refused.stdout
        assert [each["name"] for each in document(unpacked, "trust", "--own", "--yes")] == ["foreign"]
        assert document(unpacked, "show", "foreign")["trust"] == "own"
        assert document(unpacked, "show", "web")["trust"] == "not trusted"
        assert "no dataset" in run(unpacked, "trust", "--own", "--yes").stderr
        Trust(Workspace(unpacked.folder)).require_trust(unpacked.resolve("foreign"))

    def test_moved_and_copied_workspaces_stay_trusted(self, unpacked: Workspace, tmp_path: Path) -> None:
        run(unpacked, "trust", "--own", "--yes")
        run(unpacked, "trust", "web", "--yes")
        moved = Workspace(unpacked.folder.rename(tmp_path / "moved"))
        copied = Workspace(Path(shutil.copytree(moved.folder, tmp_path / "copied")))
        for workspace in (moved, copied):
            assert document(workspace, "show", "foreign")["trust"] == "own"
            assert document(workspace, "show", "web")["trust"] == "trusted"

    def test_a_seal_is_only_valid_for_its_dataset_and_grant(self, unpacked: Workspace) -> None:
        run(unpacked, "trust", "--own", "--yes")
        run(unpacked, "trust", "web", "--yes")
        foreign, web = unpacked.resolve("foreign"), unpacked.resolve("web")
        trust = Trust(unpacked)
        path = unpacked.grant_path(web.id)
        path.write_text(path.read_text().replace('"private_network":false', '"private_network":true'))
        assert not trust.is_trusted(web)
        shutil.copy(unpacked.keys.own_path(foreign.id), unpacked.keys.own_path(web.id))
        (web.dataset.folder / "info" / "origin").unlink()
        assert not trust.is_own(web) and trust.is_own(foreign)
        unpacked.delete_key(foreign.id)
        assert not unpacked.keys.own_path(foreign.id).exists()

    def test_unwritable_configuration_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "odf" / "seal.key").mkdir(parents=True)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        workspace = Workspace.init(tmp_path / "ws")
        with pytest.raises(OdfError, match="the key that marks your datasets cannot be written") as caught:
            workspace.add(read_manifests(MANIFEST, "test.yaml"))
        assert "XDG_CONFIG_HOME" in str(caught.value.hint)
        assert workspace.datasets() == [] and list(workspace.keys.ids()) == []

    def test_either_name_or_own_is_required(self, workspace: Workspace) -> None:
        for words in ([], ["foreign", "--own", "--private-network"]):
            result = run(workspace, "trust", *words)
            assert isinstance(result.exception, UsageError) and "either NAME or --own" in str(
                result.exception
            )
        assert "no dataset" in run(workspace, "trust", "--own", "--yes").stderr  # its key is not here
