"""The commands that flows, checks and alerts have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.sync.builders import make_root

SPECS = {
    "flow": "target: my.%, tasks: [{kind: Command, run: ['true']}]",
    "check": "target: my.rows, rules: [{kind: Sql, query: SELECT * FROM new_rows}]",
    "alert": "events: [JobFailed], sink: {kind: Terminal}",
}
ACCEPT = {"flow": "resume", "check": "accept", "alert": "accept"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty workspace."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "ws"
    folder.mkdir()
    assert call_odf("init", cwd=folder).code == 0
    yield folder
    call_odf("worker", "stop", cwd=folder)


def states(folder: Path, word: str) -> dict[str, str]:
    return {row["name"]: row["state"] for row in call_odf(word, "list", "--json", cwd=folder).json}


def test_a_dry_run_of_a_flow_prints_what_would_run(folder: Path) -> None:
    make_root(Workspace(folder), "my.cases")
    tasks = "[{kind: Compact}, {kind: Command, run: [PROGRAM]}]"
    flow = f"headers: {{name: a}}\nspec: {{target: my.%, tasks: {tasks}}}\n"
    call_odf("flow", "add", "-", cwd=folder, input=flow.replace("PROGRAM", "'true'"))
    tried = call_odf("flow", "run", "a", "--dry-run", cwd=folder)
    assert (tried.code, tried.out.splitlines()) == (
        0, ["1. odf compact my.cases", "2. true", "next runs: on request, or by other triggers"]
    )  # fmt: skip
    assert call_odf("flow", "history", "a", "--json", cwd=folder).json == []
    call_odf("flow", "add", "-", "--replace", cwd=folder, input=flow.replace("PROGRAM", "no-program"))
    tried = call_odf("flow", "run", "a", "--dry-run", cwd=folder)
    assert tried.code == 1 and "2. ✗ Command: program 'no-program' not found" in tried.out


@pytest.mark.parametrize("word", SPECS)
def test_a_document_is_added_changed_accepted_and_removed(folder: Path, word: str) -> None:
    def odf(*arguments: str) -> int:
        return call_odf(word, *arguments, cwd=folder).code

    text = f"headers: {{name: a}}\nspec: {{{SPECS[word]}}}\n"
    (folder / "a.yaml").write_text(text)
    stored = folder / ".odf" / f"{word}s" / "a.yaml"
    assert odf("add", "a.yaml") == 0 and states(folder, word) == {"a": "active"}
    (folder / "a.yaml").write_text(f"{text}# changed\n")
    assert odf("add", "a.yaml") == 1 and stored.read_text() == text
    assert odf("add", "--replace", "a.yaml") == 0 and states(folder, word) == {"a": "active"}
    stored.write_text(text)
    assert states(folder, word) == {"a": "changed"}
    (row,) = call_odf(word, "list", "--json", cwd=folder).json
    assert f"odf {word} {ACCEPT[word]} a accepts " in row["reason"]
    assert odf(ACCEPT[word], "a") == 0 and states(folder, word) == {"a": "active"}
    assert odf("remove", "a") == 0 and states(folder, word) == {}
    stored.write_text(text)
    assert states(folder, word) == {"a": "new"}, "the acceptance of a removed document was withdrawn"


@pytest.mark.parametrize("word", SPECS)
def test_an_invalid_document_is_listed_shown_and_removed(folder: Path, word: str) -> None:
    documents = folder / ".odf" / f"{word}s"
    documents.mkdir()
    (documents / "bad.yaml").write_text("no mapping\n")
    (row,) = call_odf(word, "list", "--json", cwd=folder).json
    assert (row["name"], row["state"]) == ("bad", "invalid")
    assert "expected `object`" in row["reason"] and "bad.yaml:1:1" in row["reason"]
    assert call_odf(word, "show", "bad", cwd=folder).out == "no mapping\n"
    refused = call_odf(word, ACCEPT[word], "bad", cwd=folder)
    assert refused.code == 1 and "bad.yaml:1:1" in refused.err
    assert call_odf(word, "remove", "bad", cwd=folder).code == 0 and states(folder, word) == {}
    missing = call_odf(word, "show", "bad", cwd=folder)
    assert missing.code == 1 and f"{word} 'bad' not found" in missing.err


@pytest.mark.parametrize("word", SPECS)
def test_a_document_for_an_unknown_dataset_is_added_with_a_warning(folder: Path, word: str) -> None:
    spec = SPECS[word].replace("my.%", "my.rows")
    spec = spec if "target" in spec else f"target: my.rows, {spec}"
    (folder / "a.yaml").write_text(f"headers: {{name: a}}\nspec: {{{spec}}}\n")
    added = call_odf(word, "add", "a.yaml", cwd=folder)
    assert added.code == 0 and f"added {word} a" in added.err
    assert "! dataset 'my.rows' not found" in added.err and "a.yaml:2:16" in added.err
