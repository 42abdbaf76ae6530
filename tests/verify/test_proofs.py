"""Verification checks who stands behind a chain, and up to where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.model import IntegrityReport
from odf_engine.errors import NotFound
from odf_engine.identity.did import KeyStore
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.identity.ownership_proof import OwnershipProof, create_proof, store_proof
from odf_engine.metadata.model import DatasetKind, SetInfo
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import ProvenBlock, find_newest_proven_block, prove_block
from odf_engine.workspace.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path / "w")


@pytest.fixture
def entry(workspace: Workspace) -> DatasetEntry:
    """A dataset of four blocks."""
    events = [SetInfo(f"version {number}") for number in range(3)]
    return workspace.create_dataset(DatasetAlias.parse("rain"), DatasetKind.Root, events)


def check(entry: DatasetEntry, *span: Any) -> IntegrityReport:
    return verify(entry.dataset, Reporter(), *span)


def hash_of(entry: DatasetEntry, number: int) -> Multihash:
    return entry.dataset.block(number).hash


def told(report: IntegrityReport) -> tuple[int, int | None, int]:
    return report.proofs, report.proven, report.newer


def test_a_proof_counts_up_to_its_block(workspace: Workspace, entry: DatasetEntry) -> None:
    actor = workspace.actor
    assert told(check(entry)) == (0, None, 0) and find_newest_proven_block(entry) is None
    prove_block(workspace, entry, hash_of(entry, 1))
    report = check(entry)
    assert report.valid and told(report) == (1, 1, 2)
    assert find_newest_proven_block(entry) == ProvenBlock(1, hash_of(entry, 1), 2, actor)
    head = entry.dataset.head()
    assert prove_block(workspace, entry).head == head and head is not None
    assert told(check(entry)) == (2, 3, 0) and find_newest_proven_block(entry) == ProvenBlock(
        3, head, 0, actor
    )
    later = entry.dataset.commit([SetInfo("later")], system_time=Timestamp.now(), expected_head=head)
    assert told(check(entry)) == (2, 3, 1) and find_newest_proven_block(entry) == ProvenBlock(
        3, head, 1, actor
    )
    assert told(check(entry, 2, 2)) == (2, 3, 1)
    assert entry.dataset.head() == later


def test_a_wrong_proof_is_found(workspace: Workspace, entry: DatasetEntry) -> None:
    actor = workspace.actor
    right = prove_block(workspace, entry)
    folder, head = entry.dataset.folder, right.head
    other = hash_of(entry, 2)
    stranger = KeyStore(folder.parent / "other")
    foreign = create_proof(stranger.private_key_pem(stranger.generate()), head)
    for wrong in (
        bytes(foreign),
        bytes(OwnershipProof(right.dataset_id, head, foreign.signature)),
        bytes(create_proof(workspace.keys.private_key_pem(entry.id), other)),
        b"nonsense",
    ):
        (folder / "proofs" / str(head)).write_bytes(wrong)
        report = check(entry)
        assert [(finding.kind, finding.block) for finding in report.findings] == [("proof-wrong", str(head))]
        assert not report.valid and told(report) == (0, None, 0)
        assert find_newest_proven_block(entry) is None
    prove_block(workspace, entry, other)
    assert told(check(entry)) == (1, 2, 1) and find_newest_proven_block(entry) == ProvenBlock(
        2, other, 1, actor
    )
    (folder / "proofs" / str(head)).unlink()
    (folder / "proofs" / "notes.txt").write_text("what is this?")
    assert [finding.block for finding in check(entry).findings] == ["notes.txt"]


def test_proof_of_another_history_is_reported_as_unchecked(workspace: Workspace, entry: DatasetEntry) -> None:
    elsewhere = Multihash.sha3_256(b"elsewhere")
    store_proof(entry.dataset.folder, create_proof(workspace.keys.private_key_pem(entry.id), elsewhere))
    report = check(entry)
    assert report.valid and told(report) == (0, None, 0) and find_newest_proven_block(entry) is None
    assert [(each.kind, each.block) for each in report.unchecked] == [("proof-elsewhere", str(elsewhere))]


def test_a_proof_counts_where_other_blocks_are_lost(workspace: Workspace, entry: DatasetEntry) -> None:
    """Also where the first block is, which says whose dataset it is: its folder says it too."""
    prove_block(workspace, entry)
    for number in (2, 0):
        (entry.dataset.folder / "blocks" / str(hash_of(entry, number))).unlink()
        report = check(entry)
        assert not report.valid and told(report) == (1, 3, 0)


def test_proving_requires_the_private_key(workspace: Workspace, entry: DatasetEntry) -> None:
    with pytest.raises(NotFound, match="not found in"):
        prove_block(workspace, entry, Multihash.sha3_256(b"elsewhere"))
    pem = workspace.keys.private_key_pem(entry.id)
    workspace.keys.delete(entry.id)
    with pytest.raises(NotFound, match="key of rain is not in this workspace"):
        prove_block(workspace, entry)
    other = workspace.keys.generate()
    path = workspace.keys.folder / f"{other.multibase}.pem"
    path.rename(workspace.keys.folder / f"{entry.id.multibase}.pem")
    with pytest.raises(NotFound, match="another key"):
        prove_block(workspace, entry)
    assert "PRIVATE KEY" in pem and not (entry.dataset.folder / "proofs").exists()
