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

from odf_engine.errors import UsageError
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.verbs import odf as odf_group

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
    monkeypatch.setattr("odf_tui.cli.add._download", lambda url: MANIFEST.replace("foreign", "web") + "---")
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
