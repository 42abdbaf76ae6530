"""`odf fsck`: finds all leftovers, and removes nothing that is in use."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.derive.verify.integrity import verify
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.ownership_proof import create_proof, store_proof
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.model import SetInfo
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.databases import connect_database
from odf_engine.worker.job_log import JobLog
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.fsck import check_workspace
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf
from tests.sync.builders import add_slices, describe, make_derivative, make_root

Fsck = Callable[..., Ran]
STRANGER = DatasetId(bytes(range(32)))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """One root and one derivative dataset, as they should be."""
    made = Workspace.init(tmp_path)
    make_derivative(made, make_root(made, slices=3))
    return made


@pytest.fixture
def fsck(workspace: Workspace) -> Fsck:
    """Runs it, in JSON."""

    def run(*options: str) -> Ran:
        return call_odf("fsck", "--json", *options, cwd=workspace.folder)

    return run


def kinds(ran: Ran) -> list[str]:
    document = ran.json
    assert ran.code == (0 if document["clean"] else 3)
    return sorted(each["kind"] for each in document["findings"])


def age(*paths: Path, hours: float = 2) -> None:
    for path in paths:
        about = path.stat()
        os.utime(path, (about.st_atime, about.st_mtime - hours * 3600))


def write(path: Path, data: bytes = b"half", hours: float = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    age(path, hours=hours)
    return path


def content(entry: DatasetEntry) -> dict[str, bytes]:
    """What a dataset is: its references and objects."""
    folder = entry.dataset.folder
    names = [path for kind in ("refs", "blocks", "data", "checkpoints") for path in (folder / kind).glob("*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def sound(workspace: Workspace) -> bool:
    return all(verify(entry.dataset, Reporter()).blocks for entry in workspace.datasets())


def test_a_sound_workspace_is_clean(workspace: Workspace, fsck: Fsck) -> None:
    assert fsck().json == {"clean": True, "datasets": 2, "findings": [], "remarks": []}
    assert fsck("--repair", "--now").json["findings"] == []
    said = call_odf("fsck", cwd=workspace.folder)
    assert (said.code, said.out) == (0, "clean: 2 datasets, nothing to repair\n")
    assert call_odf("fsck", "--now", cwd=workspace.folder).code == 2


def test_a_read_only_journal_is_not_damaged(workspace: Workspace, fsck: Fsck, monkeypatch: Any) -> None:
    """SQLite opens a database of a read-only file system only with a mode without writing."""
    JobLog(workspace.odf / "jobs.sqlite").close()

    def connect(path: Path, query: str = "", **options: Any) -> sqlite3.Connection:
        if query in ("mode=rw", "mode=ro"):
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return connect_database(path, query, **options)

    monkeypatch.setattr("odf_engine.workspace.fsck.connect_database", connect)
    assert kinds(fsck()) == []


def test_leftovers_are_found_and_removed(workspace: Workspace, fsck: Fsck) -> None:
    """One of every kind."""
    entry, odf = workspace.resolve("numbers"), workspace.odf
    before, folder = content(entry), entry.dataset.folder
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [
        write(folder / "blocks" / str(Multihash.sha3_256(b"1")), b"1"),
        write(folder / "data" / str(Multihash.sha3_256(b"2")), b"22"),
        write(folder / "checkpoints" / str(Multihash.sha3_256(b"3")), b"3"),
        write(folder / "proofs" / str(Multihash.sha3_256(b"4")), b"{}"),
        write(folder / "data" / ".pending-0011"),
        write(folder / "data" / f".partial-{Multihash.sha3_256(b'4')}"),
        write(folder / "refs" / ".pending-0011"),
        write(folder / "info" / ".new-0011"),
        write(folder / "info" / "arriving" / "data" / str(Multihash.sha3_256(b"4"))),
        write(odf / "incoming" / ("0" * 32) / "data" / str(Multihash.sha3_256(b"5"))),
        write(odf / "datasets" / f".new-{STRANGER.multibase}" / "info" / "alias"),
        write(odf / "datasets" / f".gone-{STRANGER.multibase}" / "info" / "alias"),
        write(odf / "cache" / f"ingest-{dead.pid}-abc" / "stdin"),
        write(odf / "cache" / f"pull-{dead.pid}-abc" / "rows.parquet"),
        write(odf / "cache" / "statistics" / "x.json", b"{"),
        write(odf / "cache" / "screen.msgpack", b"\xc1"),
        write(odf / "cache" / "projections" / "x.parquet", b"PAR1 and then nothing"),
        write(odf / "cache" / "statistics" / ".x-1.part"),
        write(odf / "trust" / f"{STRANGER.multibase}.json", b"{}"),
        write(odf / "remotes" / f"{STRANGER.multibase}.json", b"{}"),
        write(odf / ".new-abc"),
    ]
    kept = [
        store_proof(
            folder, create_proof(workspace.keys.private_key_pem(entry.id), entry.dataset.block(1).hash)
        ),
        write(odf / "cache" / f"ingest-{os.getpid()}-abc" / "stdin"),
        write(odf / "trust" / f"{entry.id.multibase}.json", b"{}"),
        write(odf / "keys" / "logins.json", b"{}"),
    ]
    found = fsck()
    expected = [
        "arriving", "arriving", "cache-broken", "half-written", "half-written", "half-written", "left-over",
        "orphan-block", "orphan-checkpoint", "orphan-proof", "orphan-slice", "remotes-alone", "trust-alone",
        "unfinished-dataset",
    ]  # fmt: skip
    assert kinds(found) == expected and all(path.exists() for path in left)
    slices = next(each for each in found.json["findings"] if each["kind"] == "orphan-slice")
    assert (slices["where"], slices["count"], slices["size"]) == ("numbers", 1, 2)
    said = call_odf("fsck", cwd=workspace.folder)
    assert said.code == 3 and "odf fsck --repair" in said.err and "orphan-slice  numbers" in said.out

    repaired = fsck("--repair")
    assert kinds(repaired) == expected and repaired.code == 0
    assert all(each["repaired"] and not each["left"] for each in repaired.json["findings"])
    assert not [path for path in left if path.exists()] and all(path.exists() for path in kept)
    assert content(entry) == before and sound(workspace)
    assert fsck().json == {"clean": True, "datasets": 2, "findings": [], "remarks": []}


def test_recent_files_are_not_repaired_without_now(workspace: Workspace, fsck: Fsck) -> None:
    path = write(workspace.resolve("numbers").dataset.folder / "data" / ".pending-1", hours=0.5)
    (left,) = fsck("--repair").json["findings"]
    assert path.exists() and not left["repaired"] and "--now" in left["left"]
    assert kinds(fsck("--repair", "--now")) == ["half-written"] and not path.exists()


def test_kept_reference_protects_its_history(workspace: Workspace, fsck: Fsck) -> None:
    """A history that was given up is whole while a reference keeps it, and an orphan afterwards."""
    entry = workspace.resolve("numbers")
    dataset, first = entry.dataset, entry.dataset.block(1)
    old = content(entry)
    head = dataset.head()
    assert head is not None
    dataset.restart_chain([first.block.event], system_time=Timestamp.now(), expected_head=head)
    age(*(path for kind in ("blocks", "data") for path in (dataset.folder / kind).iterdir()))
    (kept,) = (dataset.folder / "refs").glob("before-*")
    assert kinds(fsck("--repair")) == [] and old.keys() <= content(entry).keys() | {"refs/head"}

    kept.unlink()
    found = {each["kind"]: each["count"] for each in fsck("--repair").json["findings"]}
    assert found == {"orphan-block": 4, "orphan-slice": 3}
    assert sound(workspace) and dataset.state().blocks == 2
    kept.write_text(str(head))
    age(kept)
    (broken,) = fsck("--repair").json["findings"]
    assert broken["kind"] == "reference-broken" and not broken["repaired"] and kept.exists()


def test_nothing_is_removed_from_a_damaged_chain(workspace: Workspace, fsck: Fsck) -> None:
    entry = workspace.resolve("numbers")
    orphan = write(entry.dataset.folder / "data" / str(Multihash.sha3_256(b"2")))
    block = entry.dataset.folder / "blocks" / str(entry.dataset.block(1).hash)
    block.write_bytes(block.read_bytes() + b"!")
    assert kinds(fsck("--repair")) == ["chain-damaged"]
    block.unlink()
    assert kinds(fsck("--repair")) == ["chain-damaged"]
    (entry.dataset.folder / "refs" / "head").write_text("nonsense")
    assert kinds(fsck("--repair")) == ["chain-damaged"] and orphan.exists()
    (entry.dataset.folder / "refs" / "head").unlink()
    assert kinds(fsck("--repair")) == ["chain-damaged"] and orphan.exists()


def test_nothing_is_removed_while_a_lock_is_held(workspace: Workspace, fsck: Fsck) -> None:
    entry = workspace.resolve("numbers")
    orphan = write(entry.dataset.folder / "data" / str(Multihash.sha3_256(b"2")))
    coming = write(workspace.odf / "incoming" / ("0" * 32) / "data" / "x")
    for lock in (
        entry.dataset.folder / "info" / "arriving.lock",
        workspace.odf / "incoming" / f"{'0' * 32}.lock",
    ):
        lock.touch()
    with (
        (entry.dataset.folder / "info" / "arriving.lock").open("rb") as one,
        (workspace.odf / "incoming" / f"{'0' * 32}.lock").open("rb") as other,
    ):
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)
        (left,) = fsck("--repair", "--now").json["findings"]
        assert left["kind"] == "orphan-slice" and "cannot be locked" in left["left"]
    checkup = check_workspace(workspace, Reporter(), repair=True, now=True, busy={str(entry.id)})
    assert [(finding.kind, finding.repaired) for finding in checkup.findings] == [
        ("orphan-slice", False),
        ("arriving", True),
    ]
    assert orphan.exists() and not coming.exists()
    assert kinds(fsck("--repair")) == ["orphan-slice"] and not orphan.exists()


def test_datasets_of_jobs_are_left_alone(workspace: Workspace, fsck: Fsck) -> None:
    entry, other = workspace.resolve("numbers"), workspace.resolve("derived")
    orphans = [write(each.dataset.folder / "data" / str(Multihash.sha3_256(b"2"))) for each in (entry, other)]
    broken = write(workspace.odf / "cache" / "statistics" / "x.json", b"{")
    with closing(JobLog(workspace.odf / "jobs.sqlite")) as journal:
        journal.create(Pull(str(entry.id)), "numbers")
    (workspace.odf / "worker.pid").touch()
    with (workspace.odf / "worker.pid").open("rb") as worker:  # whose lock says that it lives
        fcntl.flock(worker, fcntl.LOCK_EX)
        left = {(each["where"], each["left"]) for each in fsck("--repair", "--now").json["findings"]}
        assert left == {
            ("numbers", "a job is using the dataset"),
            ("derived", ""),
            ("cache", "a job is running"),
        }
        assert [path.exists() for path in orphans] == [True, False] and broken.exists()
        (workspace.odf / "jobs.sqlite").write_bytes(b"nothing of the kind" * 100)
        assert fsck("--repair").code == 4


@pytest.mark.parametrize("damage", ["file", "slices", "blocks"])
def test_wrong_or_damaged_index_is_rebuilt(workspace: Workspace, fsck: Fsck, damage: str) -> None:
    def shown() -> Any:
        return call_odf("list", "--json", cwd=workspace.folder).json

    path = workspace.odf / "index.sqlite"
    right, described = shown(), call_odf("log", "numbers", "--json", cwd=workspace.folder).json
    workspace.index.close()
    if damage == "file":
        for ending in ("", "-wal", "-shm"):  # another file: who has the old one open must not mend it
            path.with_name(path.name + ending).unlink(missing_ok=True)
        path.write_bytes(b"this is no database" * 1000)
    else:
        column = "last = last + 1" if damage == "slices" else "summary = 'nothing'"
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            assert database.execute(f"UPDATE {damage} SET {column} WHERE sequence = 2").rowcount
    expected = ["index-damaged" if damage == "file" else "index-wrong"]
    # Each dataset has a block of this number; the first of them has the whole index made anew.
    assert set(kinds(fsck())) == set(expected) and kinds(fsck("--repair")) == expected
    assert kinds(fsck()) == []
    assert shown() == right
    assert call_odf("log", "numbers", "--json", cwd=workspace.folder).json == described


def test_a_damaged_journal_is_moved_aside(workspace: Workspace, fsck: Fsck) -> None:
    journal = workspace.odf / "jobs.sqlite"
    journal.write_bytes(b"nothing of the kind" * 100)
    assert kinds(fsck()) == ["journal-damaged"] and journal.exists()
    assert kinds(fsck("--repair")) == ["journal-damaged"] and not journal.exists()
    assert kinds(fsck()) == [] and journal.with_name("jobs.sqlite.damaged").exists()


def test_keys_are_never_deleted(workspace: Workspace, fsck: Fsck) -> None:
    alone = workspace.keys.generate()
    path = workspace.keys.folder / f"{alone.multibase}.pem"
    (remark,) = fsck("--repair").json["remarks"]
    assert remark["kind"] == "key-alone" and path.exists()
    path.write_text("damaged")
    assert kinds(fsck()) == ["key-damaged"] and path.exists()
    damaged = fsck("--repair", "--now")
    assert kinds(damaged) == ["key-damaged"] and damaged.code == 0 and not path.exists()
    assert path.with_name(f"{path.name}.damaged").read_text() == "damaged"
    assert kinds(fsck()) == []


def test_the_damaged_key_of_a_dataset_stays_a_finding(workspace: Workspace, fsck: Fsck) -> None:
    path = workspace.keys.folder / f"{workspace.resolve('numbers').id.multibase}.pem"
    path.write_text("damaged")
    damaged = fsck("--repair", "--now")
    assert kinds(damaged) == ["key-damaged"] and damaged.code == 3 and path.read_text() == "damaged"


def test_key_of_unfinished_dataset_is_removed_with_it(workspace: Workspace, fsck: Fsck) -> None:
    lost, deleted = workspace.keys.generate(), workspace.keys.generate()
    left = write(workspace.odf / "datasets" / f".new-{lost.multibase}" / "info" / "alias")
    write(workspace.odf / "datasets" / f".gone-{deleted.multibase}" / "info" / "alias")
    assert kinds(fsck("--repair")) == ["unfinished-dataset"] and not left.exists()
    assert not workspace.keys.has_key(lost) and workspace.keys.has_key(deleted)
    assert [each["kind"] for each in fsck().json["remarks"]] == ["key-alone"]


def test_trust_is_kept_while_the_datasets_folder_is_missing(workspace: Workspace, fsck: Fsck) -> None:
    """As when their folder is on a disk that is not there at the moment."""
    trust = write(workspace.odf / "trust" / f"{STRANGER.multibase}.json", b"{}")
    (workspace.odf / "datasets").rename(workspace.odf / "elsewhere")
    assert kinds(fsck("--repair", "--now")) == ["datasets-missing"] and trust.exists()


@settings(max_examples=8)
@given(st.lists(st.sampled_from(["slices", "describe", "anew", "forget"]), max_size=6), st.binary(max_size=8))
def test_repair_never_removes_referenced_files(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], rest: bytes
) -> None:
    workspace = Workspace.init(tmp_path_factory.mktemp("w"))
    entry = make_root(workspace, slices=1)
    dataset = entry.dataset
    for step in steps:
        head = dataset.head()
        assert head is not None
        if step == "slices":
            add_slices(entry)
        elif step == "describe":
            describe(entry, str(head))
        elif step == "anew":
            schema = dataset.block(1).block.event
            dataset.restart_chain(
                [schema, SetInfo(f"anew {head}")], system_time=Timestamp.now(), expected_head=head
            )
        else:
            for path in (dataset.folder / "refs").glob("before-*"):
                path.unlink()
    write(dataset.folder / "data" / str(Multihash.sha3_256(rest)), rest)
    references = {path.name: path.read_text() for path in (dataset.folder / "refs").iterdir()}
    checkup = check_workspace(workspace, Reporter(), repair=True, now=True)
    assert not checkup.left
    assert {path.name: path.read_text() for path in (dataset.folder / "refs").iterdir()} == references
    for head in references.values():  # each history is whole
        (dataset.folder / "refs" / "head").write_text(head)
        assert verify(dataset, Reporter()).valid
    assert not check_workspace(workspace, Reporter()).findings or len(references) > 1
