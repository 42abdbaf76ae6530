"""A derivative dataset begins anew: the same identity and settings, no data, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.derive.run import reset_dataset, settings_events
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import Conflict, NotFound
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import SetInfo, SetTransform
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

MANIFESTS = """
kind: DatasetSnapshot
version: 1
content: {name: input, kind: Root, metadata: []}
---
kind: DatasetSnapshot
version: 1
content:
  name: output
  kind: Derivative
  metadata:
    - {kind: SetVocab, eventTimeColumn: moment}
    - kind: SetTransform
      inputs: [{datasetRef: input}]
      transform: {kind: Sql, engine: spark, query: SELECT * FROM input}
    - {kind: SetLicense, shortName: X, name: X, websiteUrl: "https://example.org"}
    - {kind: SetAttachments, attachments: {kind: Embedded, items: [{path: a.md, content: b}]}}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace.init(tmp_path)
    workspace.add(read_manifests(MANIFESTS, "test"))
    return workspace


def put(entry: DatasetEntry, event: SetInfo | SetTransform) -> None:
    state = entry.dataset.state()
    entry.dataset.commit([event], system_time=Timestamp.now(), expected_head=state.head)


def test_settings_stay_and_the_old_head_is_kept(workspace: Workspace) -> None:
    entry = workspace.resolve("output")
    seed = entry.dataset.block(0)
    for text in ("one", "two"):
        put(entry, SetInfo(text, None))
    before = entry.dataset.state()
    assert before.transform is not None
    old = replace(before.transform, transform=replace(before.transform.transform, version="1.0"))
    put(entry, old)  # of an engine that was
    before = entry.dataset.state()

    head = reset_dataset(workspace, entry)
    state = entry.dataset.state()
    assert state.head == head == entry.dataset.head()
    assert entry.dataset.block(0).hash == seed.hash
    assert len(list(entry.dataset.blocks())) == state.blocks == 6  # Seed and five settings
    assert (state.info, state.license, state.attachments) == (
        SetInfo("two", None),
        before.license,
        before.attachments,
    )
    assert (state.vocabulary, state.inputs()) == (before.vocabulary, before.inputs())
    assert state.transform is not None and state.transform.transform.version != "1.0"
    assert verify(entry.dataset, Reporter()).valid

    kept = entry.dataset.folder / "refs" / f"before-reset-{before.head.abbreviated}"
    assert Multihash.parse(kept.read_text()) == before.head
    assert entry.dataset.contains_block(head) and not entry.dataset.contains_block(before.head)
    assert [row.hash for row in entry.dataset.list_blocks(99)] == [
        block.hash for block in entry.dataset.blocks()
    ]
    # Another process sees the same.
    assert Workspace(workspace.folder).resolve("output").dataset.state() == state


def test_reset_to_an_earlier_block_can_be_undone(workspace: Workspace) -> None:
    dataset = workspace.resolve("input").dataset
    for text in ("one", "two"):
        put(workspace.resolve("input"), SetInfo(text, None))
    seed, one, two = [block.hash for block in dataset.blocks(newest_first=False)]
    dataset.reset(one, expected_head=two)
    assert (dataset.state().info, dataset.references()) == (
        SetInfo("one", None),
        {f"before-reset-{two.abbreviated}": two},
    )
    put(workspace.resolve("input"), SetInfo("three", None))
    three = dataset.state().head
    assert [row.hash for row in dataset.list_blocks(99)] == [three, one, seed]
    with pytest.raises(Conflict):
        dataset.reset(two, expected_head=one)
    dataset.reset(two, expected_head=three)
    # Another process sees the same.
    again = Workspace(workspace.folder).resolve("input").dataset
    for each in (dataset, again):
        assert [row.hash for row in each.list_blocks(99)] == [two, one, seed]
        assert each.state().info == SetInfo("two", None)
    assert verify(again, Reporter()).valid


def test_concurrent_commit_prevents_the_reset(workspace: Workspace) -> None:
    entry = workspace.resolve("output")
    state = entry.dataset.state()
    put(entry, SetInfo("quicker", None))
    head = entry.dataset.head()
    with pytest.raises(Conflict):
        entry.dataset.restart_chain(
            list(settings_events(state)), system_time=Timestamp.now(), expected_head=state.head
        )
    assert entry.dataset.head() == head
    assert [path.name for path in (entry.dataset.folder / "refs").iterdir()] == ["head"]


def test_missing_input_prevents_the_reset(workspace: Workspace) -> None:
    entry, root = workspace.resolve("output"), workspace.resolve("input")
    head = entry.dataset.head()
    root.dataset.folder.rename(root.dataset.folder.with_name(".away"))
    with pytest.raises(NotFound):
        reset_dataset(workspace, entry)
    assert entry.dataset.head() == head
