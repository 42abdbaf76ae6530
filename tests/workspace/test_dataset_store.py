"""Workspaces whose datasets are in an object store, and several machines that use one store."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import threading
import time
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.base.settings import set_value
from odf_engine.chain.compacted_history import find_current_number
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.chain.linked_objects import store_object
from odf_engine.chain.references import create_branch, delete_branch, list_branches, promote_branch
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import (
    AlreadyExists,
    BadData,
    Cancelled,
    Conflict,
    NotFound,
    OdfError,
    SourceUnavailable,
    Unsupported,
    UsageError,
)
from odf_engine.identity.multiformats import Multihash, base58btc_encode
from odf_engine.identity.names import DatasetAlias
from odf_engine.identity.ownership_proof import list_proof_files
from odf_engine.ingest.merge.merge_strategy import repeats_stored_rows
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.mirror.dataset_mirror import DatasetMirror, evict_slices
from odf_engine.mirror.heads_list import finish_all
from odf_engine.mirror.ranged_object import RANGES
from odf_engine.mirror.store_client import FolderClient
from odf_engine.rows.scan import Scan
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import record_origin
from odf_engine.workspace.fsck import check_workspace, collect_garbage
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared.root import odf as odf_group
from tests.cloud_stub import cloud_stub
from tests.s3_server import S3Server, refuse
from tests.sync.builders import add_slices, describe, make_root
from tests.workspace.store_race import run_store_race

HEAD = "/refs/head"


def machines(tmp_path: Path, url: str) -> tuple[Workspace, Workspace]:
    return Workspace.init(tmp_path / "a", url), Workspace.init(tmp_path / "b", url)


def again(workspace: Workspace) -> Workspace:
    """Open the workspace as a later command does, for which the store was read long ago."""
    workspace.close()
    finish_all()  # the earlier commands of this machine have ended
    for path in (
        *(workspace.odf / "cache").glob("store*.json"),
        *workspace.odf.glob("datasets/*/info/store.json"),
    ):
        if path.exists():
            os.utime(path, (0, 0))
    return Workspace.find(explicit=workspace.folder)


def stored(url: str, pattern: str) -> list[Path]:
    return sorted(Path(url.removeprefix("file://")).glob(pattern))


def age_unused(url: str) -> None:
    """Let more than an hour pass since the names of unused objects were stored."""
    for path in stored(url, "*/info/unused.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"since": 1.0}))


def findings(workspace: Workspace, *, repair: bool = False) -> list[str]:
    report = check_workspace(workspace, Reporter(), repair=repair)
    return sorted(each.kind for each in report.left)


def test_machines_see_each_others_commits(tmp_path: Path, url: str) -> None:
    a, b = machines(tmp_path, url)
    here = make_root(a, slices=2)
    there = again(b).resolve("numbers")
    assert there.dataset.head() == here.dataset.head()
    assert [summary.records for summary in again(b).summaries()] == [
        summary.records for summary in a.summaries()
    ]
    add_slices(there, city="Basel")
    with pytest.raises(Conflict, match="another machine"):
        add_slices(here)
    assert here.dataset.head() == there.dataset.head()  # the conflict has updated the mirror
    add_slices(here)
    assert again(b).resolve("numbers").dataset.state() == here.dataset.state()
    # The layout is the one of the specification: other clients can read the folder.
    (head,) = stored(url, f"{here.id.multibase}/refs/head")
    assert head.read_text() == str(here.dataset.head())


def test_branches_are_shared(tmp_path: Path, s3: S3Server) -> None:
    a, b = machines(tmp_path, f"s3+{s3.endpoint}/bucket/store")
    here = make_root(a, slices=2)
    head = here.dataset.state().head
    create_branch(here.dataset, "staging", head)
    mine = here.on_branch("staging")
    add_slices(mine)
    there = again(b).resolve("numbers")
    assert there.dataset.head() == head
    assert there.on_branch("staging").dataset.state() == mine.dataset.state()

    add_slices(there.on_branch("staging"), city="Basel")
    with pytest.raises(Conflict, match="another machine"):
        add_slices(mine)
    assert promote_branch(there.dataset, "staging").blocks == 2
    describe(mine, "not promoted")
    here = again(a).resolve("numbers")
    assert here.dataset.head() == there.dataset.head() != head
    assert [(branch.ahead, branch.behind) for branch in list_branches(here.dataset)] == [(1, 0)]
    assert findings(again(b)) == []
    delete_branch(here.dataset, "staging", force=True)
    assert list_branches(again(b).resolve("numbers").dataset) == []


def test_identical_commits_conflict(tmp_path: Path, s3: S3Server) -> None:
    for name, url in (
        ("s3", f"s3+{s3.endpoint}/bucket/store"),
        ("file", (tmp_path / "new").as_uri()),  # the folder is created
    ):
        a, b = machines(tmp_path / name, url)
        here = make_root(a)
        there = again(b).resolve("numbers")
        add_slices(there)
        with pytest.raises(Conflict, match="another machine"):
            add_slices(here)
        assert here.dataset.head() == there.dataset.head()


def test_commit_that_conflicts_leaves_no_signature(tmp_path: Path) -> None:
    a, b = machines(tmp_path, (tmp_path / "new").as_uri())
    a.config = set_value(a.config, "signing.commits", "true")
    here = make_root(a)
    add_slices(again(b).resolve("numbers"), city="Basel")
    signed = list(list_proof_files(here.dataset.folder))
    assert signed
    with pytest.raises(Conflict, match="another machine"):
        add_slices(here)
    assert list(list_proof_files(here.dataset.folder)) == signed


def test_lost_response_to_a_commit_is_no_conflict(tmp_path: Path, s3: S3Server) -> None:
    a, b = machines(tmp_path, f"s3+{s3.endpoint}/bucket/store")
    entry = make_root(a)
    lost: list[str] = []

    def lose_first(request: Any) -> bool:
        if request.command != "PUT" or not request.path.endswith(HEAD) or lost:
            return False
        lost.append(request.path)
        sent, request.wfile = request.wfile, io.BytesIO()
        request._forward(s3, request.content)
        request.wfile = sent
        return refuse(request, 500, "InternalError")  # the repeated request is refused with 412

    s3.before = lose_first
    add_slices(entry)
    assert lost and again(b).resolve("numbers").dataset.head() == entry.dataset.head()


def test_the_origin_of_a_later_definition_is_shared(tmp_path: Path, url: str) -> None:
    a, b = machines(tmp_path, url)
    here = make_root(a, slices=1)
    assert Trust(a).is_own(here)
    there = again(b).resolve("numbers")
    record_origin(there, "https://example.com/other")
    add_slices(there)
    found = again(a).resolve("numbers")
    assert found.dataset.head() == there.dataset.head()
    assert Trust(a).read_origin(found) == "https://example.com/other"
    assert not Trust(a).is_own(found)
    # Also for a machine that opens the store later, and imports the key.
    key = a.keys.private_key_pem(here.id)
    c = Workspace.init(tmp_path / "c", url)
    c.keys.store(here.id, key)
    assert not Trust(c).is_own(c.resolve("numbers"))


def test_a_refused_commit_reads_the_origin(tmp_path: Path, url: str) -> None:
    a, b = machines(tmp_path, url)
    here = make_root(a, slices=1)
    there = again(b).resolve("numbers")
    record_origin(there, "https://example.com/other")
    add_slices(there, city="Basel")
    with pytest.raises(Conflict):
        add_slices(here)
    assert not Trust(a).is_own(here)


def test_names_in_the_store_do_not_become_paths(tmp_path: Path, url: str) -> None:
    a, b = machines(tmp_path, url)
    entry = make_root(a, slices=1)
    (reference,) = stored(url, f"{entry.id.multibase}/refs/head")
    (reference.parent / "sub").mkdir()
    (reference.parent / "sub" / "outside").write_text(reference.read_text())
    found = again(b).resolve("numbers")
    assert found.dataset.head() == entry.dataset.head()
    assert not (found.dataset.folder / "refs" / "sub").exists()
    other = base58btc_encode(bytes(entry.id))
    catalog = Path(url.removeprefix("file://")) / "odf-store.json"
    catalog.write_text(catalog.read_text().replace(entry.id.multibase, other))
    again(b).datasets()
    assert not (b.odf / "datasets" / other).exists()


def test_names_and_deletions_are_shared(tmp_path: Path, url: str) -> None:
    a, b = machines(tmp_path, url)
    entry = make_root(a, slices=1)
    b = again(b)
    b.datasets()
    with pytest.raises(AlreadyExists):
        make_root(b)
    assert len(stored(url, "*/refs/head")) == 1, "a refused dataset left objects"
    b.rename(b.resolve("numbers"), DatasetAlias.parse("counts"))
    a = again(a)
    assert [str(dataset.alias) for dataset in a.datasets()] == ["counts"]
    a.delete(a.resolve("counts"))
    assert not stored(url, f"{entry.id.multibase}/*")
    assert again(b).datasets() == []
    with pytest.raises(NotFound):
        b.resolve("counts")


def test_lost_workspace_is_restored_from_the_store(tmp_path: Path, url: str) -> None:
    a, _ = machines(tmp_path, url)
    entry = make_root(a, slices=3)
    rows = entry.dataset.slices()
    a.close()
    shutil.rmtree(a.folder)
    new = Workspace.init(a.folder, url)
    dataset = new.resolve("numbers").dataset
    assert not (dataset.folder / "data").exists(), "listing must not fetch slices"
    assert dataset.slices() == rows
    assert all(dataset.slice_path(row).stat().st_size == row.size for row in rows)
    assert findings(new) == []


def test_damage_in_the_store_is_found(tmp_path: Path, url: str) -> None:
    a, _ = machines(tmp_path, url)
    entry = make_root(a, slices=2)
    assert not verify(entry.dataset, Reporter()).findings
    damaged, missing = stored(url, "*/data/*")
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    missing.unlink()
    kinds = sorted(finding.kind for finding in verify(entry.dataset, Reporter()).findings)
    assert kinds == ["slice-missing", "slice-physical-hash"]
    (entry.dataset.folder / "data" / damaged.name).unlink()
    with pytest.raises(BadData, match="damaged"):
        entry.dataset.slice_path(
            next(each for each in entry.dataset.slices() if str(each.physical_hash) == damaged.name)
        )
    # The mirror still has the missing one: fsck restores it.
    assert findings(again(a)) == ["missing-slice"]
    assert findings(again(a), repair=True) == []
    assert missing.exists()


def test_fsck_restores_a_missing_head(tmp_path: Path, url: str) -> None:
    a, b = machines(tmp_path, url)
    entry = make_root(a, slices=2)
    for path in (*stored(url, "*/refs/head"), *stored(url, "*/data/*"), *stored(url, "*/blocks/*")):
        path.unlink()
    assert "missing-head" in findings(again(a))
    assert findings(again(a), repair=True) == []
    there = again(b).resolve("numbers")
    assert there.dataset.head() == entry.dataset.head() and not verify(there.dataset, Reporter()).findings
    add_slices(again(a).resolve("numbers"))


def test_fsck_finds_orphans_of_interrupted_commits(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines(tmp_path, url)
    entry = make_root(a, slices=1)
    head = entry.dataset.head()
    assert entry.dataset.origin is not None
    monkeypatch.setattr(entry.dataset.origin, "_swap", _die)
    with pytest.raises(KeyboardInterrupt):
        add_slices(entry)
    monkeypatch.undo()
    assert again(b).resolve("numbers").dataset.head() == head
    assert findings(again(b)) == [], "recent objects may belong to a commit in progress"
    for path in stored(url, "*/*/f*"):
        os.utime(path, (1, 1))
    assert findings(again(b)) == ["orphan-block", "orphan-slice"]
    # The first repair stores their names, and another one deletes them an hour later.
    for _ in range(2):
        report = check_workspace(again(b), Reporter(), repair=True)
        assert [remark.kind for remark in report.remarks] == ["unused-block", "unused-slice"]
        assert not report.left and len(stored(url, "*/data/*")) == 2
    age_unused(url)
    assert findings(again(b), repair=True) == []
    assert len(stored(url, "*/data/*")) == 1
    add_slices(again(b).resolve("numbers"))


def drop_slices(a: Workspace, b: Workspace, url: str) -> tuple[DatasetEntry, Multihash]:
    """A dataset whose slices no reference uses; their names are stored. Also returns the head with them."""
    entry = make_root(a, slices=3)
    head, first = entry.dataset.state().head, entry.dataset.block(1).hash
    entry.dataset.reset(first, expected_head=head)
    entry.dataset.remove_reference(f"before-reset-{head.abbreviated}", head)
    for path in stored(url, "*/*/f*"):
        os.utime(path, (1, 1))
    check_workspace(again(b), Reporter(), repair=True)
    age_unused(url)
    return entry, head


def test_no_reference_to_deleted_objects(tmp_path: Path, url: str) -> None:
    a, b = machines(tmp_path, url)
    entry, head = drop_slices(a, b, url)
    check_workspace(again(b), Reporter(), repair=True)
    assert not stored(url, "*/data/*")
    shutil.rmtree(entry.dataset.folder / "data")
    here = entry.dataset.state().head
    with pytest.raises(NotFound, match="missing in the store"):
        entry.dataset.reset(head, expected_head=here)
    with pytest.raises(NotFound, match="missing in the store"):
        create_branch(entry.dataset, "trial", head)
    assert again(b).resolve("numbers").dataset.head() == here
    assert not stored(url, "*/refs/trial")


def test_a_suspended_machine_neither_commits_nor_deletes(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines(tmp_path, url)
    entry, head = drop_slices(a, b, url)
    suspended = 0.0
    clock = SimpleNamespace(time=lambda: time.time() + suspended, monotonic=time.monotonic)
    monkeypatch.setattr("odf_engine.mirror.dataset_mirror.time", clock)
    monkeypatch.setattr("odf_engine.mirror.unused_objects.time", clock)

    def suspend_before(name: str) -> None:
        method = getattr(DatasetMirror, name)

        def late(mirror: DatasetMirror, *arguments: Any, **options: Any) -> Any:
            nonlocal suspended
            suspended += 2000.0
            return method(mirror, *arguments, **options)

        monkeypatch.setattr(DatasetMirror, name, late)

    with monkeypatch.context() as monkeypatch:
        suspend_before("delete_unused")
        report = check_workspace(again(b), Reporter(), repair=True)
    assert [finding.left for finding in report.left if "interrupted" not in finding.left] == []
    assert report.left and len(stored(url, "*/data/*")) == 3
    suspended += 2000.0  # the claim expires
    here = entry.dataset.state().head
    with monkeypatch.context() as monkeypatch:
        suspend_before("_swap")
        with pytest.raises(Conflict, match="interrupted for too long"):
            entry.dataset.reset(head, expected_head=here)
    assert again(b).resolve("numbers").dataset.head() == here == entry.dataset.head()
    with monkeypatch.context() as monkeypatch:
        suspend_before("upload_used")  # the objects are checked again
        add_slices(entry, city="Basel")
    assert again(b).resolve("numbers").dataset.head() == entry.dataset.head() != here


def test_an_object_attached_during_a_collection_is_kept(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines(tmp_path, url)
    entry = make_root(a, slices=1)
    photo = tmp_path / "photo"
    photo.write_bytes(b"photo")
    link = store_object(entry.dataset, photo, Reporter())
    (path,) = stored(url, f"*/data/{link}")
    os.utime(path, (1, 1))
    check_workspace(again(b), Reporter(), repair=True)
    age_unused(url)
    claim_unused = DatasetMirror.claim_unused

    def attach_before(mirror: DatasetMirror, names: Collection[str], *, now: bool) -> list[str]:
        store_object(entry.dataset, photo, Reporter())
        return claim_unused(mirror, names, now=now)

    monkeypatch.setattr(DatasetMirror, "claim_unused", attach_before)
    check_workspace(again(b), Reporter(), repair=True)
    assert path.exists()


def test_other_machines_see_compaction_and_garbage_collection(tmp_path: Path, url: str) -> None:
    a, b = machines(tmp_path, url)
    entry = make_root(a, slices=6)
    rows, old_head = Scan.of_dataset(entry.dataset).to_arrow(), entry.dataset.head()
    assert old_head is not None
    there = again(b).resolve("numbers")
    assert Scan.of_dataset(there.dataset).to_arrow().equals(rows)
    # Another machine commits during the compaction.
    late = again(b).resolve("numbers")
    add_slices(late)
    with pytest.raises(Conflict, match="another machine"):
        compact(entry.dataset, CompactionPolicy(), Reporter())
    assert entry.dataset.head() == late.dataset.head()
    assert not list(entry.dataset.compactions.names())
    rows, old_head = Scan.of_dataset(entry.dataset).to_arrow(), entry.dataset.head()
    assert old_head is not None
    done = compact(entry.dataset, CompactionPolicy(), Reporter())
    assert (done.old_slices, done.new_slices) == (7, 1)
    # The other machine sees the new chain, and finds the replaced blocks.
    there = again(b).resolve("numbers")
    assert there.dataset.head() == done.new_head
    assert Scan.of_dataset(there.dataset).to_arrow().equals(rows)
    assert there.dataset.references() == {done.reference: old_head}
    assert find_current_number(there.dataset, old_head) == there.dataset.state().sequence_number
    assert len(stored(url, "*/data/*")) == 8
    assert findings(again(b)) == []
    # The old head expires.
    for path in (*stored(url, "*/*/*"), entry.dataset.folder / "refs" / done.reference):
        os.utime(path, (1, 1))
    report = collect_garbage(a, again(a).datasets(), Reporter(), dry_run=False, now=True)
    assert not report.left
    assert [path.name for path in stored(url, "*/data/*")] == [
        str(each.physical_hash) for each in there.dataset.slices()
    ]
    assert not stored(url, "*/refs/compacted-*")
    there = again(b).resolve("numbers")
    there.dataset.refresh_references()
    assert there.dataset.references() == {}
    assert not verify(there.dataset, Reporter()).findings
    add_slices(there)


def test_references_of_other_machines_keep_objects(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines(tmp_path, url)
    entry = make_root(a, slices=3)
    there = again(b).resolve("numbers")
    head, first = entry.dataset.head(), there.dataset.block(1).hash
    assert head is not None
    entry.dataset.reset(first, expected_head=head)
    for path in stored(url, "*/*/*"):
        os.utime(path, (1, 1))
    assert findings(again(b), repair=True) == []
    age_unused(url)
    assert findings(again(b), repair=True) == []
    assert len(stored(url, "*/data/*")) == 3, "objects of an earlier history were deleted"
    # A branch that is created after the check has read the references.
    entry.dataset.remove_reference(f"before-reset-{head.abbreviated}", head)
    check_workspace(again(b), Reporter(), repair=True)
    age_unused(url)
    check = DatasetMirror.check_objects

    def create_branch(*args: Any) -> Any:
        if not stored(url, "*/refs/trial"):
            entry.dataset.move_branch("trial", None, head)
        return check(*args)

    monkeypatch.setattr(DatasetMirror, "check_objects", create_branch)
    check_workspace(again(b), Reporter(), repair=True)
    assert len(stored(url, "*/data/*")) == 3, "objects of a new branch were deleted"


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_without_the_store_the_cache_can_be_browsed(tmp_path: Path, url: str) -> None:
    a, _ = machines(tmp_path, url)
    entry = make_root(a, slices=1)
    (tmp_path / "store").rename(tmp_path / "away")
    offline = again(a)
    (found,) = offline.datasets()
    assert found.dataset.slices() == entry.dataset.slices()
    assert offline.store_problem is not None
    run = CliRunner().invoke(odf_group, ["-w", str(offline.folder), "list"])
    assert (run.exit_code, "the datasets are shown as they were last read" in run.stderr) == (0, True)
    with pytest.raises(OdfError, match="store"):
        add_slices(found)
    with pytest.raises(OdfError, match="store"):
        make_root(offline, "others")
    (tmp_path / "away").rename(tmp_path / "store")
    assert len(add_slices(again(a).resolve("numbers"))) == 1


def test_eviction_keeps_recent_slices(tmp_path: Path, url: str) -> None:
    a, _ = machines(tmp_path, url)
    entry = make_root(a, slices=3)
    local = sorted((entry.dataset.folder / "data").iterdir())
    assert evict_slices(a.odf / "datasets", 0, time.time() - 3600) == 0
    for path in local[:2]:
        os.utime(path, (1, 1))
    assert evict_slices(a.odf / "datasets", 0, time.time() - 3600) == 2
    assert all(entry.dataset.slice_path(each).is_file() for each in entry.dataset.slices())


def test_slices_of_running_jobs_are_not_evicted(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = machines(tmp_path, url)
    entry = make_root(a, slices=3)
    rows = entry.dataset.slices()
    local = [entry.dataset.folder / "data" / str(row.physical_hash) for row in rows]
    origin = entry.dataset.origin
    assert isinstance(origin, DatasetMirror)
    monkeypatch.setattr(
        origin.store, "config", replace(a.config, store=replace(a.config.store, cache_bytes=0))
    )
    now = time.time()
    with job_scratch_folder(a.odf / "cache") as folder:
        started = now - 7200
        folder.rename(folder.with_name(f"pull-{os.getpid()}-{started:.0f}-job"))
        for path, used in zip(local, (started - 5, started + 5, 1), strict=True):
            os.utime(path, (used, 1))
        entry.dataset.slice_path(rows[2])  # a lookup is a use
        monkeypatch.setattr(DatasetMirror, "_evicted", 0.0)
        origin._evict()
        assert [path.exists() for path in local] == [False, True, True]
        shutil.rmtree(a.odf / "cache" / f"pull-{os.getpid()}-{started:.0f}-job")
    monkeypatch.setattr(DatasetMirror, "_evicted", 0.0)
    origin._evict()
    assert [path.exists() for path in local] == [False, False, True]


def test_interrupted_creation_is_completed(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = machines(tmp_path, url)
    monkeypatch.setattr(Workspace, "_complete_creation", _die)
    with pytest.raises(KeyboardInterrupt):
        make_root(a)
    monkeypatch.undo()
    (entry,) = again(a).datasets()
    assert again(a).keys.has_key(entry.id), "the key of the dataset was deleted"
    add_slices(entry)
    assert again(b).resolve("numbers").dataset.head() == entry.dataset.head()


def test_a_lost_response_does_not_lose_the_key(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = machines(tmp_path, url)
    write = FolderClient.write

    def lose_response(client: FolderClient, name: str, *rest: Any) -> Any:
        version = write(client, name, *rest)
        if name == "odf-store.json" and json.loads(rest[0])["datasets"]:
            (tmp_path / "store").rename(tmp_path / "away")
            raise SourceUnavailable("connection lost")
        return version

    monkeypatch.setattr(FolderClient, "write", lose_response)
    with pytest.raises(OdfError):
        make_root(a)
    monkeypatch.undo()
    assert "unfinished-dataset" in findings(again(a), repair=True)
    (tmp_path / "away").rename(tmp_path / "store")
    (entry,) = again(a).datasets()
    assert again(a).keys.has_key(entry.id)
    add_slices(entry)


def test_a_commit_needs_few_requests(tmp_path: Path, s3: S3Server) -> None:
    a, b = machines(tmp_path, f"s3+{s3.endpoint}/bucket/some/prefix")
    entry = make_root(a, slices=1)
    a.close()
    s3.forget()
    add_slices(entry)
    a.close()
    sent = [(each.command, each.path.split("/")[-2]) for each in s3.forget()]
    assert sent[:3] == [("PUT", "data"), ("PUT", "blocks"), ("PUT", "refs")]
    assert [command for command, _ in sent[3:] if command == "PUT"] == ["PUT"], "the list of heads"
    for number in range(3):
        make_root(a, f"more{number}")
    a.close()
    b = again(b)
    b.datasets()
    b.close()
    s3.forget()
    assert len(b.datasets()) == 4
    assert s3.forget() == [], "a warm list needs no request"
    assert len(again(b).datasets()) == 4
    assert [(each.command, bool(each.condition)) for each in s3.forget()] == [("GET", True)] * 2


def test_rows_are_read_by_ranges(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odf_engine.mirror.dataset_mirror.MIN_RANGED_BYTES", 1)
    monkeypatch.setattr("odf_engine.mirror.ranged_object._BLOCK_BYTES", 1 << 13)
    a, b = machines(tmp_path, f"s3+{s3.endpoint}/bucket/store")
    entry = make_root(a, slices=1, rows=600_000)
    (row,) = entry.dataset.slices()
    there = again(b).resolve("numbers")
    s3.forget()

    def read_rows(command: str, *options: str) -> int:
        run = CliRunner().invoke(odf_group, ["-w", str(b.folder), command, "numbers", *options, "--json"])
        assert run.exit_code == 0, run.stderr
        assert "599999" in run.stdout
        ranges = [each.range or "" for each in s3.forget() if "/data/" in each.path]
        ends = [each.removeprefix("bytes=").split("-") for each in ranges]
        return sum(int(last) - int(first) + 1 for first, last in ends)

    assert 0 < read_rows("tail", "-n", "3") < row.size / 2
    assert read_rows("tail", "-n", "2") == 0, "the ranges were not cached"
    path = there.dataset.folder / "data" / str(row.physical_hash)
    assert not path.exists()
    scan = Scan.of_dataset(there.dataset)
    assert scan.select(["city"]).to_arrow().column(0).unique().to_pylist() == ["Bern"]
    assert not path.exists()
    expected = Scan.of_dataset(entry.dataset).to_arrow()
    blocks = there.dataset.folder / RANGES
    for each in list(blocks.iterdir())[::2]:
        each.write_bytes(b"")
    columns = expected.schema.names[1:]
    assert scan.select(columns).to_arrow().equals(expected.select(columns))
    assert not path.exists()
    assert scan.to_arrow().equals(expected)
    assert path.stat().st_size == row.size, "all rows were read without a check of the hash"
    path.unlink()
    evict_slices(b.odf / "datasets", 0, time.time() + 1)
    assert not list(blocks.iterdir())
    del s3.objects[f"bucket/store/{entry.id.multibase}/data/{row.physical_hash}"]
    with pytest.raises(NotFound):
        scan.rows([(0, 1)]).to_arrow()


def test_missing_slices_are_fetched_at_the_same_time(tmp_path: Path, s3: S3Server) -> None:
    a, b = machines(tmp_path, f"s3+{s3.endpoint}/bucket/store")
    entry = make_root(a, slices=6, rows=10_000)
    there = again(b).resolve("numbers").dataset
    slices = there.slices()
    arrived = threading.Barrier(6)

    def before(request: BaseHTTPRequestHandler) -> bool:
        if "/data/" in request.path:
            arrived.wait(60)  # all requests are sent before one is answered
        return False

    s3.before = before
    reporter = Amounts()
    paths = there.slice_paths(slices, reporter)
    assert [path.read_bytes() for path in paths] == [
        entry.dataset.slice_path(row).read_bytes() for row in slices
    ]
    total = sum(row.size for row in slices)
    assert reporter.amounts[-1] == (total, total)
    s3.forget()
    assert there.slice_paths(slices, reporter) == paths
    assert s3.forget() == [], "slices of the mirror were fetched again"

    s3.before = lambda request: False
    shutil.rmtree(there.folder / "data")
    reporter.cancel()
    with pytest.raises(Cancelled):
        there.slice_paths(slices, reporter)
    assert not list((there.folder / "data").glob("*")), "an incomplete slice remained"
    s3.objects[f"bucket/store/{entry.id.multibase}/data/{slices[3].physical_hash}"] = b"damaged"
    with pytest.raises(BadData, match="do not match its hash"):
        there.slice_paths(slices, Reporter())


class Amounts(Reporter):
    def __init__(self) -> None:
        super().__init__()
        self.amounts: list[tuple[int | None, int | None]] = []

    def set_amounts(
        self, *, bytes: int | None = None, total_bytes: int | None = None, **_: int | None
    ) -> None:
        self.amounts.append((bytes, total_bytes))


def test_new_rows_are_compared_with_few_slices_of_the_store(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_engine.ingest.merge.merge_strategy._MAX_COMPARED", 10)
    a, b = machines(tmp_path, f"s3+{s3.endpoint}/bucket/store")
    entry = make_root(a, slices=6, rows=3)
    new = [entry.dataset.slice_path(entry.dataset.slices()[-1])]
    there = again(b).resolve("numbers").dataset
    event_time = ("event_time", Timestamp.now())
    system = ("offset", "op", "system_time")
    assert repeats_stored_rows(new, there, system, event_time, Reporter())
    fetched = {path.name for path in (there.folder / "data").iterdir()}
    assert fetched == {str(row.physical_hash) for row in there.slices()[-2:]}


def test_missing_blocks_are_fetched_at_the_same_time(tmp_path: Path, s3: S3Server) -> None:
    a, b = machines(tmp_path, f"s3+{s3.endpoint}/bucket/store")
    entry = make_root(a, blocks=40)
    s3.forget()
    there = again(b).resolve("numbers")
    assert there.dataset.state() == entry.dataset.state()
    read = [each.path for each in s3.forget() if "/blocks" in each.path or "blocks%2F" in each.path]
    assert len([each for each in read if "list-type" in each]) == 1
    assert len({*read}) == entry.dataset.state().sequence_number + 2


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_gcs_and_azure_stores_detect_conflicts(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cloud_stub() as stub:
        account = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        for name, value in {
            "GOOGLE_BASE_URL": stub.endpoint,
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**account, "gcs_base_url": stub.endpoint}),
            "AZURE_STORAGE_ENDPOINT": stub.endpoint,
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"key").decode(),
        }.items():
            monkeypatch.setenv(name, value)
        a, b = machines(tmp_path, f"{scheme}://box/store")
        here = make_root(a, slices=2)
        there = again(b).resolve("numbers")
        assert Scan.of_dataset(there.dataset).to_arrow().equals(Scan.of_dataset(here.dataset).to_arrow())
        add_slices(there)
        with pytest.raises(Conflict, match="another machine"):
            add_slices(here, city="Basel")
        add_slices(here)
        assert again(b).resolve("numbers").dataset.state() == here.dataset.state()


@pytest.mark.parametrize("status", [409, 412, 500, 503])
@pytest.mark.complete(after=1)
def test_failed_head_update_is_retried(tmp_path: Path, s3: S3Server, status: int) -> None:
    a, b = machines(tmp_path, f"s3+{s3.endpoint}/bucket/store")
    entry = make_root(a)
    head, refused = entry.dataset.head(), []

    def fail_once(request: BaseHTTPRequestHandler) -> bool:
        if request.command != "PUT" or not request.path.endswith(HEAD) or refused:
            return False
        refused.append(request.path)
        return refuse(request, status, "SlowDown" if status == 503 else "Fault")

    s3.before = fail_once
    add_slices(entry)  # the head is read again: nobody has moved it
    assert refused and again(b).resolve("numbers").dataset.head() == entry.dataset.head() != head


def test_unusable_store_is_reported_with_its_cause(tmp_path: Path, s3: S3Server) -> None:
    service = f"s3+{s3.endpoint}"  # a list of heads of another test can still be written to /bucket/store
    with pytest.raises(UsageError, match="unsupported URL"):
        Workspace.init(tmp_path / "w", "http://example.com/")
    with pytest.raises(NotFound, match="folder of the store does not exist"):
        Workspace.init(tmp_path / "w", "file:absent/store")
    with pytest.raises(NotFound, match="bucket absent not found"):
        Workspace.init(tmp_path / "w", f"{service}/absent/store")
    s3.key = "another-key"
    with pytest.raises(SourceUnavailable, match="denied"):
        Workspace.init(tmp_path / "w", f"{service}/bucket/unusable")
    s3.key = None
    s3.ignores_conditions = True
    with pytest.raises(Unsupported, match="conditional writes"):
        Workspace.init(tmp_path / "w", f"{service}/bucket/unusable")
    assert not (tmp_path / "w").exists() and not s3.objects
    s3.ignores_conditions = False
    entry = make_root(Workspace.init(tmp_path / "w", f"{service}/bucket/unusable"))
    head = entry.dataset.head()
    s3.before = lambda request: request.command == "PUT" and refuse(request, 403, "AccessDenied")
    with pytest.raises(SourceUnavailable, match="denied"):
        describe(entry, "read-only")
    reader = Workspace.init(tmp_path / "r", f"{service}/bucket/unusable")
    assert reader.resolve("numbers").dataset.head() == head == entry.dataset.head()


@pytest.mark.complete
def test_racing_commits_have_one_winner_per_round(tmp_path: Path, url: str, s3: S3Server) -> None:
    assert run_store_race(tmp_path / "file", url, 5) == (5, 0)
    assert run_store_race(tmp_path / "s3", f"s3+{s3.endpoint}/bucket/store", 5) == (5, 0)
