"""Manifest files of datasets: where they are, how they differ, how they are rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.errors import InvalidManifest
from odf_engine.metadata.model import DatasetSnapshot
from odf_engine.metadata.yaml import read_manifests, snapshot_to_yaml
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition_update import (
    ManifestDrift,
    find_manifest,
    find_manifest_drift,
    read_own_manifest,
    record_manifest,
    replace_definition,
)
from odf_engine.workspace.workspace import Workspace
from tests.manifests import ROOT_WITH_INFO


def drift_of(workspace: Workspace, entry: DatasetEntry) -> ManifestDrift | None:
    return find_manifest_drift(workspace.folder, entry, workspace.datasets())


def test_drift_compares_the_recorded_manifest_with_the_chain(workspace: Workspace) -> None:
    folder = workspace.folder
    texts = ROOT_WITH_INFO.format(name="a", text="x"), ROOT_WITH_INFO.format(name="b", text="y")
    both = "---\n".join(("# Two datasets\n", *texts))
    a, b = workspace.add(read_manifests(both, "both"))
    assert (find_manifest(folder, a), drift_of(workspace, a)) == (None, None)
    # A file with the name of the dataset, then the recorded one.
    named, path = folder / "a.yaml", folder / "all.yaml"
    named.write_text(ROOT_WITH_INFO.format(name="a", text="x"))
    assert find_manifest(folder, a) == named
    path.write_text(both)
    record_manifest(folder, a, path)
    record_manifest(folder, b, path)
    assert (a.dataset.folder / "info" / "manifest").read_text() == "all.yaml"
    assert (find_manifest(folder, a), drift_of(workspace, a)) == (path, None)

    # The manifest as it was written, unless the chain has other events too.
    assert read_own_manifest(folder, a, workspace.datasets()) == texts[0]
    more = texts[0] + "    - {kind: SetLicense, shortName: X, name: Y, websiteUrl: 'x:y'}"
    workspace.update(read_manifests(more, "more"))
    assert drift_of(workspace, a) is None
    assert read_own_manifest(folder, a, workspace.datasets()) is None
    assert read_own_manifest(folder, b, workspace.datasets()) == texts[1]

    # The file changes: the change is that of an update.
    path.write_text(both.replace("description: y", "description: z"))
    assert drift_of(workspace, a) is None
    drift = drift_of(workspace, b)
    assert drift is not None
    assert (drift.path, [change.title for change in drift.changes], drift.problem) == (path, ["SetInfo"], "")
    changed = [line for line in drift.changes[0].lines if line[0] in "+-"]
    assert changed == ["- description: y", "+ description: z"]
    # The definition is written into its document only.
    text = replace_definition(path, b, ROOT_WITH_INFO.format(name="b", text="y") + "# Mine")
    assert text == both + "# Mine\n"

    # Files that do not define the dataset, or cannot be read.
    path.write_text(ROOT_WITH_INFO.format(name="c", text="x"))
    assert drift_of(workspace, a) == ManifestDrift(path, [], "it does not define a")
    with pytest.raises(InvalidManifest, match="does not define a"):
        replace_definition(path, a, "")
    path.write_text("kind: {")
    drift = drift_of(workspace, a)
    assert drift is not None
    assert "manifest:" in drift.problem
    path.unlink()
    assert find_manifest(folder, a) == named
    assert find_manifest(folder, b) is None


def test_manifest_outside_the_workspace_is_found(workspace: Workspace, tmp_path: Path) -> None:
    (a,) = workspace.add(read_manifests(ROOT_WITH_INFO.format(name="a", text="x"), "a"))
    path = tmp_path / "elsewhere" / "a.yaml"
    path.parent.mkdir()
    path.write_text(ROOT_WITH_INFO.format(name="a", text="z"))
    record_manifest(workspace.folder, a, path)
    assert find_manifest(workspace.folder, a) == path
    assert drift_of(workspace, a) is not None


SOURCE = """\
# The cities.
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: cities.csv}
      read:
        kind: Csv
        schema:
          - id INT  # the key
          # The name.
          - city STRING
      preprocess:
        kind: Sql
        engine: spark
        query: |
          SELECT id,
            city
          FROM input
      merge: {kind: Ledger, primaryKey: [id]}  # by id
    - kind: AddPushSource
      sourceName: more
      read: {kind: NdJson, schema: [id INT, city STRING]}
      preprocess: {kind: Sql, engine: spark, query: "SELECT id, city FROM input"}
      merge: {kind: Append}
    - kind: SetDataSchema
      schema: [id INT, city STRING]
"""


def test_columns_and_queries_are_edited_within_the_manifest(workspace: Workspace) -> None:
    (entry,) = workspace.add(read_manifests(SOURCE, "cities"))
    path = workspace.folder / "cities.yaml"
    path.write_text(SOURCE)
    wanted = SOURCE
    for old, new in (
        ("          # The name.\n", "          - '`Big lat` DECIMAL(4, 2)'\n          # The name.\n"),
        ("          - city STRING\n", "          - city STRING\n          - people BIGINT\n"),
        ("            city\n", "            city,\n            people\n"),
        ('"SELECT id, city FROM input"', "'SELECT id, city, people FROM input'"),
        ("schema: [id INT, city STRING]}", "schema: [id INT, 'lat DECIMAL(4, 2)', city STRING]}"),
        ("schema: [id INT, city STRING]\n", "schema: [id INT, city STRING, people BIGINT]\n"),
    ):
        assert wanted.count(old) == 1
        wanted = wanted.replace(old, new)
    (definition,) = read_manifests(wanted, "wanted")
    text = snapshot_to_yaml(definition)
    assert replace_definition(path, entry, text, keeps_comments=True) == wanted
    moved = text.replace("url: cities.csv", "url: towns.csv")
    assert replace_definition(path, entry, moved, keeps_comments=True) == wanted.replace(
        "url: cities.csv", "url: towns.csv"
    )
    # Other differences replace the whole document.
    other = text.replace("sourceName: more", "sourceName: less")
    assert other != text
    assert replace_definition(path, entry, other, keeps_comments=True) == other.removeprefix("---\n")


def test_drift_parses_only_documents_that_contain_the_name(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "---\n".join(ROOT_WITH_INFO.format(name=f"rows.{number:02}", text="x") for number in range(20))
    entries = workspace.add(read_manifests(text, "all"))
    path = workspace.folder / "all.yaml"
    record_manifest(workspace.folder, entries[7], path)
    parsed: list[str] = []

    def read(part: str, source: str) -> list[DatasetSnapshot]:
        parsed.append(part)
        return read_manifests(part, source)

    monkeypatch.setattr("odf_engine.workspace.definitions.definition_update.read_manifests", read)
    path.write_text(text)
    assert drift_of(workspace, entries[7]) is None
    assert len(parsed) == 1
    path.write_text(text.replace("name: rows.07", 'name: "ROWS.\\x307"'))  # an escape, and another case
    assert drift_of(workspace, entries[7]) is None
    path.write_text(text.replace("name: rows.07", "name: rows.99"))
    drift = drift_of(workspace, entries[7])
    assert drift is not None and drift.problem == "it does not define rows.07"
