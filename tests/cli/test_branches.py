"""odf branch, and branches under other commands. Spark is not required."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_engine.chain.references import read_branch
from odf_engine.errors import Conflict
from odf_engine.metadata.model import SetInfo
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.sync.builders import add_slices, describe, make_derivative, make_root, read_input
from tests.sync.in_process_server import served


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    workspace = Workspace.init(tmp_path)
    make_root(workspace, slices=3)
    workspace.index.close()
    yield tmp_path
    call_odf("worker", "stop", cwd=tmp_path)


def test_branch_is_created_promoted_renamed_and_deleted(folder: Path) -> None:
    assert "no branches" in call_odf("branch", cwd=folder).err
    assert call_odf("branch", "numbers", "staging", cwd=folder).code == 0
    entry = Workspace(folder).resolve("numbers")
    head = entry.dataset.head()
    add_slices(entry.on_branch("staging"), 2)
    assert entry.dataset.head() == head
    (row,) = call_odf("branch", "numbers", "--json", cwd=folder).json
    assert (row["branch"], row["ahead"], row["behind"], row["records"]) == ("staging", 2, 0, 15)
    assert call_odf("show", "numbers", "--json", cwd=folder).json["branches"] == ["staging"]

    # A branch with blocks of its own is not deleted by mistake; gc and fsck need its files.
    refused = call_odf("branch", "numbers", "-d", "staging", cwd=folder)
    assert refused.code == 4 and "--force" in refused.err
    assert "0 files to remove" in call_odf("gc", "--dry-run", "--now", cwd=folder).err
    assert "clean" in call_odf("fsck", cwd=folder).out

    promoted = call_odf("branch", "numbers", "--promote", "staging", "--json", cwd=folder)
    assert (promoted.json["status"], promoted.json["blocks"], promoted.json["records"]) == ("updated", 2, 6)
    assert json.loads(call_odf("list", "--json", cwd=folder).out)[0]["records"] == 15
    assert "up to date" in call_odf("branch", "numbers", "--promote", "staging", cwd=folder).out
    assert call_odf("branch", "numbers", "-m", "staging", "next", cwd=folder).code == 0
    assert call_odf("branch", "numbers", "-d", "next", cwd=folder).code == 0
    assert call_odf("branch", "numbers", "--json", cwd=folder).json == []
    assert call_odf("verify", "numbers", "--integrity", cwd=folder).code == 0


def test_head_that_moved_is_a_conflict(folder: Path) -> None:
    assert call_odf("branch", "numbers", "staging", "--at", "2", cwd=folder).code == 0
    entry = Workspace(folder).resolve("numbers")
    branch = entry.on_branch("staging")
    describe(branch, "of the branch")
    refused = call_odf("branch", "numbers", "--promote", "staging", cwd=folder)
    assert refused.code == 4 and "2 behind, 1 ahead" in refused.err, refused.err
    assert "odf diff NAME --to staging" in refused.err

    # Each chain has its own index: reading one does not change what the other returns.
    assert [entry.dataset.state().blocks, branch.dataset.state().blocks] == [5, 4]
    assert "already exists" in call_odf("branch", "numbers", "staging", cwd=folder).err
    assert call_odf("branch", "numbers", "staging", "--force", cwd=folder).code == 0
    assert read_branch(entry.dataset, "staging").ahead == 0
    add_slices(branch)
    newest = branch.dataset.state()
    assert call_odf("branch", "numbers", "-d", "staging", "--force", cwd=folder).code == 0
    with pytest.raises(Conflict):  # a job that started before the deletion
        branch.dataset.commit([SetInfo("x")], system_time=newest.system_time, expected_head=newest.head)
    assert "orphan-slice" in call_odf("gc", "--dry-run", "--now", cwd=folder).out


def test_inputs_on_branches_require_a_branch_and_are_promoted_first(folder: Path) -> None:
    workspace = Workspace(folder)
    source = workspace.resolve("numbers")
    entry = make_derivative(workspace, source)
    workspace.index.close()
    without = call_odf("pull", "derived", "--inputs", "review", cwd=folder)
    assert without.code == 2 and "add --branch BRANCH" in without.err
    call_odf("branch", "derived", "review", cwd=folder)
    unknown = call_odf("pull", "derived", "--branch", "review", "--inputs", "review", cwd=folder)
    assert unknown.code == 1 and "odf branch INPUT review creates it" in unknown.err

    call_odf("branch", "numbers", "next", cwd=folder)
    add_slices(source.on_branch("next"))
    read_input(entry.on_branch("review"), source.on_branch("next"))
    refused = call_odf("branch", "derived", "--promote", "review", cwd=folder)
    assert refused.code == 4 and "promote numbers first: odf branch numbers --promote next" in refused.err
    assert call_odf("branch", "numbers", "--promote", "next", cwd=folder).code == 0
    assert call_odf("branch", "derived", "--promote", "review", cwd=folder).code == 0


def test_a_damaged_branch_is_deleted_only_by_force(folder: Path) -> None:
    call_odf("branch", "numbers", "staging", cwd=folder)
    entry = Workspace(folder).resolve("numbers")
    branch = entry.on_branch("staging")
    add_slices(branch)
    (entry.dataset.folder / "blocks" / str(branch.dataset.head())).write_bytes(b"damaged")
    (entry.dataset.folder / "info" / "branches" / "staging" / "index.sqlite").unlink(missing_ok=True)
    refused = call_odf("branch", "numbers", "-d", "staging", cwd=folder)
    assert refused.code == 4 and "--force" in refused.err, refused.err
    assert call_odf("branch", "numbers", "-d", "staging", "--force", cwd=folder).code == 0


def test_commands_read_a_branch(folder: Path) -> None:
    call_odf("branch", "numbers", "staging", cwd=folder)
    entry = Workspace(folder).resolve("numbers")
    add_slices(entry.on_branch("staging"), city="Chur")
    log = call_odf("log", "numbers", "--branch", "staging", "--json", cwd=folder).json
    assert len(log) == len(call_odf("log", "numbers", "--json", cwd=folder).json) + 1
    last = ("numbers", "-n", "1", "--json")
    assert call_odf("tail", *last, cwd=folder).json[0]["city"] == "Bern"
    assert call_odf("tail", *last, "--branch", "staging", cwd=folder).json[0]["city"] == "Chur"
    assert (
        call_odf("tail", *last, "--branch", "staging", "--as-at", "4", cwd=folder).json[0]["city"] == "Bern"
    )
    differing = call_odf("diff", "numbers", "staging", "--json", cwd=folder).json
    assert (differing["added"], differing["removed"]) == (3, 0)

    # Rows of the branch are traced there; the head has other rows, or none, at these offsets.
    why = call_odf("diff", "numbers@staging", "--why", "-n", "1", "--json", cwd=folder)
    (change,) = why.json["changes"]
    assert (change["offsets"], change["why"]["branch"]) == ({"new": 9}, "staging")
    traced = call_odf("provenance", "numbers", "9", "--branch", "staging", cwd=folder)
    assert traced.out.startswith("numbers@staging, row 9\n") and "city=Chur" in traced.out
    assert "has no row 9" in call_odf("provenance", "numbers", "9", cwd=folder).err
    added = call_odf("diff", "numbers", "--branch", "staging", "--csv", cwd=folder).out
    assert added == call_odf("diff", "numbers", "staging", "--csv", cwd=folder).out

    # The verification of a branch is not that of the dataset.
    done = call_odf("verify", "numbers", "--integrity", "--branch", "staging", "--json", cwd=folder).json
    assert (done["datasets"][0]["branch"], done["datasets"][0]["blocks"]) == ("staging", 6)
    assert call_odf("show", "numbers", "--json", cwd=folder).json["last_verification"] is None
    branch = entry.on_branch("staging").dataset
    branch.slice_path(branch.slices()[-1]).write_bytes(b"damaged")
    broken = call_odf("verify", "numbers", "--integrity", "--branch", "staging", cwd=folder)
    assert broken.code == 3 and "numbers@staging: INVALID" in broken.out
    assert call_odf("verify", "numbers", "--integrity", cwd=folder).code == 0

    missing = call_odf("pull", "numbers", "--branch", "stagign", cwd=folder)
    assert missing.code == 1 and "odf branch NAME stagign" in missing.err
    assert call_odf("verify", "numbers", "-r", "--branch", "staging", cwd=folder).code == 2


def test_trace_of_removed_blocks_hints_at_recovery(folder: Path) -> None:
    entry = Workspace(folder).resolve("numbers")
    call_odf("branch", "numbers", "staging", cwd=folder)
    add_slices(entry.on_branch("staging"))
    block = entry.on_branch("staging").dataset.head()
    assert call_odf("branch", "numbers", "-d", "staging", "--force", cwd=folder).code == 0
    assert call_odf("gc", "--now", "--yes", cwd=folder).code == 0
    gone = call_odf("provenance", "numbers@staging", "9", cwd=folder)
    assert gone.code == 1 and "branch 'staging' not found" in gone.err and "odf branch NAME" in gone.err
    (entry.dataset.folder / "refs/staging").write_text(str(block))  # a branch of a restored backup
    gone = call_odf("provenance", "numbers@staging", "9", cwd=folder)
    error, hint, _ = gone.err.splitlines()[-3:]
    assert gone.code == 1 and f"block {block}: the block is missing" in error
    assert "restore it from a copy" in hint


def test_branches_are_pushed_pulled_and_served(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copies = tmp_path_factory.mktemp("copies")
    shelf = f"file:{copies}/numbers"
    call_odf("branch", "numbers", "staging", cwd=folder)
    entry = Workspace(folder).resolve("numbers")
    branch = entry.on_branch("staging")
    add_slices(branch, 2)
    push = ("push", "numbers", "--to", shelf, "--json")
    alone = call_odf(*push, "--branch", "staging", cwd=folder)
    assert alone.code == 1 and "push the dataset first" in alone.err + alone.out
    assert call_odf(*push, cwd=folder).code == 0
    head = (copies / "numbers/refs/head").read_text()
    (sent,) = call_odf(*push, "--branch", "staging", cwd=folder).json
    assert (sent["status"], sent["blocks"], sent["branch"]) == ("updated", 2, "staging")
    assert (copies / "numbers/refs/head").read_text() == head
    assert (copies / "numbers/refs/staging").read_text() == str(branch.dataset.head())
    assert call_odf(*push, "--branch", "staging", cwd=folder).json[0]["status"] == "up-to-date"

    # A copy pulls the branch, which it creates; then new blocks of it, from a server.
    other = tmp_path_factory.mktemp("other")
    Workspace.init(other)
    try:
        assert call_odf("pull", "--from", shelf, "--as", "numbers", cwd=other).code == 0
        pull = ("pull", "numbers", "--remote-branch", "staging", "--json")
        (got,) = call_odf(*pull, cwd=other).json
        assert (got["status"], got["branch"], got["blocks"]) == ("updated", "staging", 2)
        (listed,) = call_odf("branch", "numbers", "--json", cwd=other).json
        assert (listed["ahead"], listed["behind"]) == (2, 0)
        assert call_odf("list", "--json", cwd=other).json[0]["records"] == 9
        missing = call_odf("pull", "numbers", "--remote-branch", "none", cwd=other)
        assert missing.code == 1 and "branch 'none' not found at the remote" in missing.err
        assert call_odf("branch", "numbers", "--json", cwd=other).json == [listed]
        add_slices(branch)
        with served(Workspace(folder), allow_push=True) as server:
            found = call_odf(*pull, "--from", f"odf+{server.url}numbers", cwd=other)
            assert found.code == 0, found.err
            assert found.json[0]["blocks"] == 1, found.err
            refused = call_odf(
                "push", "numbers", "--to", f"odf+{server.url}numbers", "--branch", "staging", cwd=other
            )
            assert refused.code == 1 and "smart transfer protocol has no branches" in refused.err
        assert call_odf("verify", "numbers", "--integrity", "--branch", "staging", cwd=other).code == 0
        assert call_odf("branch", "numbers", "--promote", "staging", cwd=other).code == 0
    finally:
        call_odf("worker", "stop", cwd=other)


@pytest.mark.parametrize("name", ["head", "HEAD", "compaction", "before-x", "1a", "a/b", "../x", ""])
def test_reserved_or_invalid_branch_name_is_rejected(folder: Path, name: str) -> None:
    refused = call_odf("branch", "numbers", name, cwd=folder)
    assert refused.code == 2 and not (folder / "x").exists()


def test_tag_names_a_version_and_cannot_move(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert "no tags" in call_odf("tag", cwd=folder).err
    tagged = call_odf("tag", "numbers", "v1", "--at", "3", "--json", cwd=folder)
    assert tagged.code == 0, tagged.err
    entry = Workspace(folder).resolve("numbers")
    assert (entry.dataset.folder / "refs/tag-v1").read_text() == tagged.json["head"]
    for arguments in (
        ("tag", "numbers", "v1"),
        ("tag", "numbers", "V1"),
        ("branch", "numbers", "v1", "--force"),
        ("branch", "numbers", "-m", "v1", "v2"),
        ("branch", "numbers", "-d", "v1", "--force"),
        ("pull", "numbers", "--branch", "v1"),
    ):
        refused = call_odf(*arguments, cwd=folder)
        assert refused.code and "is a tag, which cannot move" in refused.err, arguments
    with pytest.raises(Conflict, match="cannot move"):
        describe(entry.on_branch("v1"), "newer")
    call_odf("branch", "numbers", "staging", cwd=folder)
    assert "branch 'staging' already exists" in call_odf("tag", "numbers", "staging", cwd=folder).err
    assert "different branches" in call_odf("log", "numbers@v1", "--branch", "staging", cwd=folder).err

    # It is a reference for all commands, and gc keeps blocks that only the tag has.
    last = ("-n", "1", "--json")
    assert call_odf("tail", "numbers@v1", *last, cwd=folder).json[0]["people"] == 5
    assert call_odf("tail", "numbers", "--as-at", "v1", *last, cwd=folder).json[0]["people"] == 5
    assert call_odf("verify", "numbers@v1", "--integrity", cwd=folder).code == 0
    assert call_odf("diff", "numbers", "v1", "--json", cwd=folder).json["removed"] == 3
    add_slices(entry.on_branch("staging"), city="Chur")
    assert call_odf("tag", "numbers", "reviewed", "--at", "staging", cwd=folder).code == 0
    assert call_odf("branch", "numbers", "-d", "staging", "--force", cwd=folder).code == 0
    assert "0 files to remove" in call_odf("gc", "--dry-run", "--now", cwd=folder).err
    assert call_odf("branch", "numbers", "--json", cwd=folder).json == []
    listed = call_odf("tag", "numbers", "--json", cwd=folder).json
    assert [(tag["tag"], tag["ahead"], tag["behind"]) for tag in listed] == [("reviewed", 1, 0), ("v1", 0, 1)]

    shelf = f"file:{tmp_path_factory.mktemp('copies')}/numbers"
    assert call_odf("push", "numbers", "--to", shelf, cwd=folder).code == 0
    assert call_odf("push", "numbers@v1", "--to", shelf, cwd=folder).code == 0
    pushed = Path(shelf.removeprefix("file:")) / "refs/tag-v1"
    assert pushed.read_text() == tagged.json["head"]
    assert call_odf("tag", "numbers", "-d", "v1", cwd=folder).code == 0
    assert call_odf("tag", "numbers", "v1", cwd=folder).code == 0
    other = call_odf("push", "numbers@v1", "--to", shelf, "--force", cwd=folder)
    assert other.code and "another version under this tag" in other.err
    assert pushed.read_text() == tagged.json["head"]

    assert call_odf("tag", "numbers", "-d", "reviewed", cwd=folder).code == 0
    assert "tag 'reviewed' not found" in call_odf("tag", "numbers", "-d", "reviewed", cwd=folder).err
    assert "orphan-slice" in call_odf("gc", "--dry-run", "--now", cwd=folder).out


def test_pull_of_remote_tag_creates_local_tag(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A new dataset ends at the tagged version; for an existing one, only the tag is new."""
    call_odf("tag", "numbers", "v1", "--at", "3", cwd=folder)
    entry = Workspace(folder).resolve("numbers")
    call_odf("branch", "numbers", "staging", cwd=folder)
    add_slices(entry.on_branch("staging"), 2, city="Chur")
    call_odf("tag", "numbers", "draft", "--at", "staging", cwd=folder)
    other = tmp_path_factory.mktemp("other")
    Workspace.init(other)
    try:
        with served(Workspace(folder)) as server:
            missing = call_odf("pull", f"{server.url}numbers", "--tag", "v2", cwd=other)
            assert missing.code == 1 and "tag 'v2' not found at the remote" in missing.err
            (got,) = call_odf(
                "pull", "--from", f"{server.url}numbers", "--as", "cited", "--tag", "v1", "--json", cwd=other
            ).json
            assert (got["status"], got["records"], got["branch"]) == ("updated", 6, "v1")
            copy = Workspace(other).resolve("cited")
            v1 = entry.dataset.branch("v1").head()
            assert copy.dataset.tag_names() == ["v1"]
            assert (copy.dataset.head(), copy.dataset.branch("v1").head()) == (v1, v1)
            assert call_odf("pull", "cited", cwd=other).code == 0
            head = Workspace(other).resolve("cited").dataset.head()
            assert head == entry.dataset.head()

            # Blocks that the head lacks are pulled too, and checked. No branch remains.
            (got,) = call_odf("pull", "cited@draft", "--verify", "--json", cwd=other).json
            assert (got["status"], got["blocks"], got["records"]) == ("updated", 2, 6)
            assert (got["verification"]["valid"], got["verification"]["branch"]) == (True, "draft")
            assert call_odf("tail", "cited@draft", "-n", "1", "--json", cwd=other).json[0]["city"] == "Chur"
            copy = Workspace(other).resolve("cited")
            assert (copy.dataset.head(), copy.dataset.branch_names()) == (head, [])
            (again,) = call_odf("pull", "cited@draft", "--json", cwd=other).json
            assert again["status"] == "up-to-date"

            # A tag cannot move: a remote with another version is a conflict.
            call_odf("tag", "numbers", "-d", "v1", cwd=folder)
            call_odf("tag", "numbers", "v1", "--at", "2", cwd=folder)
            moved = call_odf("pull", "cited@v1", cwd=other)
            assert moved.code == 4 and "tag 'v1' points to a different version here" in moved.err
            assert "odf tag cited -d v1" in moved.err
            invalid = call_odf("pull", "cited", "--tag", "../head", cwd=other)
            assert "'../head' is not a valid tag name" in invalid.err
        own = call_odf("pull", "numbers", "--tag", "v1", cwd=folder)
        assert own.code == 2 and "numbers has no remote to pull tags from" in own.err
    finally:
        call_odf("worker", "stop", cwd=other)
