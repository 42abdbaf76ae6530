"""Shell completion, and the keys of the workstation as settings."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Odf, run_odf


def test_key_bindings_are_listed_and_changed(
    fresh: Odf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert fresh("config", "keys", "--json").json["pull"] == ["p"]
    assert fresh("config", "set", "ui.keys.pull", "ctrl+l,ctrl+g").code == 0
    assert fresh("config", "keys", "--json").json["pull"] == ["ctrl+l", "ctrl+g"]
    assert "pull  " in fresh("config", "keys").out
    assert "^l ^g" in fresh("config", "keys").out
    for action, key, why in (
        ("pull", "ctrl+m", "terminals send it as enter"),
        ("pull", "e", "e is already used by edit"),
        ("pul", "e", "unknown action 'pul': did you mean pull?"),
    ):
        ran = fresh("config", "set", f"ui.keys.{action}", key)
        assert ran.code == 2
        assert why in ran.err
        assert "odf config keys" in ran.err
    assert fresh("config", "keys", "--json").json["pull"] == ["ctrl+l", "ctrl+g"]
    assert fresh("config", "set", "ui.keys.pull").code == 0
    assert fresh("config", "keys", "--json").json["pull"] == ["p"]


def complete(words: str, folder: Path) -> set[str]:
    """What bash is told for a line that is being typed."""
    number = str(len(words.split()) - (not words.endswith(" ")))
    ran = run_odf(cwd=folder, _ODF_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=number)
    assert ran.code == 0, ran.err
    return {line.partition(",")[2] for line in ran.out.splitlines() if line}


def test_shell_completes_commands_options_and_datasets(fresh: Odf, tmp_path: Path) -> None:
    manifest = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: NAME, kind: Root, metadata: []}\n"
    for name in ("boats", "tides.high"):
        assert fresh("add", "-", input=manifest.replace("NAME", name)).code == 0
    assert {"pull", "path"} <= complete("odf p", tmp_path)
    assert complete("odf pull ", tmp_path) == {"boats", "tides.high"}
    assert complete("odf show ti", tmp_path) == {"tides.high"}
    assert "--recursive" in complete("odf pull --rec", tmp_path)
    assert complete("odf add ", tmp_path) == {""}  # the shell completes names of files
    assert fresh("repo", "add", "backup", str(tmp_path)).code == 0
    assert complete("odf pull b", tmp_path) == {"backup/", "boats"}
    assert complete("odf repo remove ", tmp_path) == {"backup"}
    assert complete("odf push boats --to ", tmp_path) == {"backup"}
    assert complete("odf repo alias add ti", tmp_path) == {"tides.high"}
    assert complete("odf pull ", Path("/")) == set()  # no workspace there


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_valid_in_its_shell(fresh: Odf, shell: str) -> None:
    script = fresh("completions", shell)
    assert script.code == 0
    assert f"_ODF_COMPLETE={shell}_complete" in script.out
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script.out, text=True, check=True)
