"""Remotes of a real workspace, read without network access: relations, branches, repositories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odf_engine.api.model import DatasetRow, NamedUrl, Remote
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.errors import AlreadyExists, NotFound, OdfError
from odf_engine.jobs.remotes import Compare, Search
from odf_engine.worker.protocol import Job, JobState
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Remotes, RemoteStatus
from odf_engine.workspace.workspace import Workspace
from odf_tui.state.saved_session import load_snapshot, save_snapshot
from odf_tui.text.remotes import remote_badge
from tests.sync.builders import describe, make_root

HUB = "file:///srv/hub/visits/"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace.init(tmp_path / "here")
    Remotes(made.odf).add("hub", "file:///srv/hub/")
    return made


def note(workspace: Workspace, entry: DatasetEntry, relation: Any, kind: Any = "push", **more: Any) -> None:
    """Record the result of a comparison."""
    head = str(entry.dataset.head())
    known = {"ours": 0, "theirs": 0, "common": head, "our_head": head, "their_head": head}
    seen = RemoteStatus(url=HUB, relation=relation, at="2024-03-11T08:59:00Z", **{**known, **more})
    Remotes(workspace.odf).record_status(entry.id, seen, kind)


def row(workspace: Workspace) -> DatasetRow:
    return OpenWorkspace(workspace).datasets()[0]


def remote(workspace: Workspace) -> Remote:
    (found,) = row(workspace).remotes
    return found


def test_remote_relation_is_updated_by_local_blocks(workspace: Workspace) -> None:
    entry = make_root(workspace, "visits", slices=2)
    assert row(workspace).remotes == ()
    Remotes(workspace.odf).attach(entry.id, HUB, "push")
    assert remote(workspace) == Remote(url=HUB, label="hub/visits", push=True)
    note(workspace, entry, "equal")
    assert (remote(workspace).relation, remote_badge(row(workspace).remotes)) == ("equal", "⇡=")
    shared = str(entry.dataset.head())
    describe(entry, "one")
    describe(entry, "two")
    found = remote(workspace)
    assert (found.relation, found.ours, found.common) == ("ahead", 2, shared)
    # The remote was ahead at the comparison; local blocks were added since.
    note(workspace, entry, "behind", theirs=3, their_head="f1620" + "ab" * 32)
    assert (remote(workspace).relation, remote(workspace).theirs) == ("behind", 3)
    describe(entry, "three")
    found = remote(workspace)
    assert (found.relation, found.ours, found.theirs) == ("diverged", 1, 3)
    assert remote_badge(row(workspace).remotes) == "÷⇣3⇡1"
    # The remote was empty.
    note(workspace, entry, "new", common=None, their_head=None, ours=1, our_head=shared)
    assert (remote(workspace).relation, remote(workspace).ours) == ("new", row(workspace).blocks)
    # The shared block is not in the local chain.
    note(workspace, entry, "ahead", common="f1620" + "cd" * 32, their_head="f1620" + "cd" * 32, our_head="x")
    assert (remote(workspace).relation, remote(workspace).at) == ("", "2024-03-11T08:59:00Z")


def test_a_pulled_dataset_is_not_behind_its_inputs(workspace: Workspace) -> None:
    entry = make_root(workspace, "visits", slices=1)
    note(workspace, entry, "equal", "pull")
    found = row(workspace)
    assert found.has_pull_remote
    assert (found.behind, found.diverged) == (False, ())


def test_local_blocks_since_the_common_block_are_listed(workspace: Workspace) -> None:
    source = OpenWorkspace(workspace)
    entry = make_root(workspace, "visits", slices=1)
    common = str(entry.dataset.head())
    number = entry.dataset.state().blocks - 1
    assert source.branches(str(entry.id), common, 3).ours == ()
    for text in "abcde":
        describe(entry, text)
    found = source.branches(str(entry.id), common, 3)
    assert [line.sequence_number - number for line in found.ours] == [5, 4, 3]
    assert found.more == 2
    assert found.common is not None
    assert (found.common.sequence_number, found.common.hash) == (number, common)
    lost = source.branches(str(entry.id), "f1620" + "cd" * 32, 100)
    assert (len(lost.ours), lost.more, lost.common) == (number + 6, 0, None)


def test_repositories_and_remotes_are_removed(workspace: Workspace) -> None:
    source = OpenWorkspace(workspace)
    source.remotes.add("lake", "s3://lake/odf")
    assert source.repositories() == [NamedUrl("hub", "file:///srv/hub/"), NamedUrl("lake", "s3://lake/odf/")]
    with pytest.raises(AlreadyExists):
        source.remotes.add("lake", "s3://other/")
    source.remotes.remove("lake")
    entry = make_root(workspace, "visits")
    save_snapshot(workspace.folder, source)
    assert (found := load_snapshot(workspace.folder)) is not None and found[1]
    note(workspace, entry, "equal")
    assert (found := load_snapshot(workspace.folder)) is not None and not found[1]  # outdated, still shown
    assert row(workspace).remotes
    source.detach(str(entry.id), HUB)
    assert row(workspace).remotes == ()
    with pytest.raises(NotFound):
        source.detach(str(entry.id), HUB)


def test_datasets_are_read_although_the_repositories_are_damaged(workspace: Workspace) -> None:
    entry = make_root(workspace, "visits")
    note(workspace, entry, "equal")
    (workspace.odf / "repositories.json").write_text("{")
    assert remote(workspace).label == HUB
    with pytest.raises(OdfError):
        OpenWorkspace(workspace).repositories()


def test_only_some_jobs_can_be_submitted_again(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    source = OpenWorkspace(workspace)

    class Journal:
        def request(self, job: str) -> Any:
            return Compare(dataset="x") if job == "1" else Search(text="")

    monkeypatch.setattr(OpenWorkspace, "journal", Journal())
    done = Job("1", "compare", "visits", "x", JobState.done, "2024-03-11T09:00:00Z")
    assert source.request_of_job(done) == Compare(dataset="x")
    with pytest.raises(OdfError, match="screen"):
        source.request_of_job(Job("2", "search", "hub", "", JobState.done, "2024-03-11T09:00:00Z"))
