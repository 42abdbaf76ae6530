"""Signatures of blocks: the mark in the list, the text on a block, and signing."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.api.model import BlockDocument, BlockFilter
from odf_engine.api.text import Section
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.errors import NotFound
from odf_engine.metadata.model import SetInfo
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.trust import prove_block
from odf_engine.workspace.workspace import Workspace
from odf_tui.panes.blocks.block_dialogs import BlockDialog
from odf_tui.panes.blocks.view import PROOF_MARK
from odf_tui.theming import ascii_fallback
from tests.tui.haven import AIR
from tests.tui.scripted_worker import Scenario
from tests.tui.test_blocks import NoNavigation, explored, hash_of, hashes
from tests.tui.test_workspace_reads import MANIFEST
from tests.tui.widget_app import shown


def proven(source: OpenWorkspace, dataset: str = AIR) -> frozenset[str]:
    """Return the hashes of the signed blocks."""
    return frozenset(source.blocks(dataset, None, 1, BlockFilter()).signers)


async def test_a_block_is_signed_after_a_confirmation(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "anna")
    async with explored(source) as explorer:
        outdated: list[None] = []
        explorer.state.datasets_outdated.connect(outdated.append)
        for answer in (False, True):
            explorer.host.answers.append(answer)
            explorer.controller.sign_block()
            await explorer.host.stories()
            await explorer.settle()
            assert bool(proven(source)) == answer
            assert (PROOF_MARK in explorer.app.text()) == answer
            assert bool(outdated) == answer
        newest = hashes(source)[-1]
        assert proven(source) == {newest}
        assert explorer.host.last_notice == "signed block 11 of port-haven.air-readings"
        (line,) = [line for line in explorer.app.text().splitlines() if f"{PROOF_MARK}   11 " in line]
        assert newest[5:13] in line
        assert f"{PROOF_MARK} signed by anna, with the dataset's key" in str(explorer.pane.border_subtitle)
        async with shown(explorer.host.dialogs[-1]) as (app, _):
            assert "Sign block 11 with the private key?" in app.text()
            assert "all earlier blocks." in app.text()
            assert "The proof is pushed with the dataset." in app.text()
        # Of an older block, the proof is not shared.
        explorer.host.answers.append(False)
        explorer.view.go(1)
        explorer.controller.sign_block()
        await explorer.host.stories()
        async with shown(explorer.host.dialogs[-1]) as (app, _):
            assert "Only the proof of the newest block" in app.text()


async def test_findings_are_above_proofs() -> None:
    block = BlockDocument("kind: x\n", number=11, hash=hash_of(11), proof="signed by its owner")
    wrong = "slice-offsets: offsets overlap"
    async with shown(BlockDialog("block 11", AIR, block, wrong, print, NoNavigation())) as (app, _):
        assert app.text().index("≠ slice-offsets") < app.text().index(f"{PROOF_MARK} signed by its owner")


async def test_a_block_is_not_signed_without_the_private_key(source: Scenario) -> None:
    source._workspace.keys.delete(source.entry(AIR).id)
    async with explored(source) as explorer:
        explorer.controller.sign_block()
        await explorer.host.stories()
        assert "is not in this workspace" in explorer.host.last_notice
        assert not proven(source) and not explorer.host.dialogs


def test_the_mark_has_its_own_character_on_every_terminal() -> None:
    others = {ascii_fallback.ASCII[sign] for sign in "◇◆✓✗·◦▸÷≠∅■↯⊘●○"}
    assert ascii_fallback.with_ascii(PROOF_MARK) not in others | {PROOF_MARK}
    assert len(ascii_fallback.with_ascii(PROOF_MARK, "console")) == 1


def test_real_chain_shows_which_blocks_are_signed(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "harbour")
    workspace.add(read_manifests(MANIFEST, "test"))
    boats = workspace.resolve("boats")
    source, dataset = OpenWorkspace(workspace), str(boats.id)
    head = boats.dataset.head()
    number = boats.dataset.state().sequence_number
    assert head is not None and source.holds_key(dataset)
    assert proven(source, dataset) == frozenset()
    assert source.block(dataset, 0).proof == ""

    source.sign_block(dataset, str(head))
    actor = workspace.actor
    boats.dataset.commit([SetInfo("later")], system_time=Timestamp.now(), expected_head=head)
    assert proven(source, dataset) == {str(head)}
    assert source.block(dataset, number).proof.startswith(f"signed by {actor}, with the dataset's key")
    assert source.block(dataset, 0).proof == f"covered by the owner's signature on block {number}"
    assert source.block(dataset, number + 1).proof.startswith("not signed: the owner")
    detail = source.detail(dataset)
    signed = f"up to block {number}, 1 newer block, signed by {actor}"
    assert ("proven", f"by its owner {signed}") in detail.facts
    identity = next(section for section in detail.sections if section.title == "Identity")
    assert isinstance(identity, Section) and ("owner's proof", signed) in identity.facts

    # A proof of another block under this name marks the other block.
    path = boats.dataset.folder / "proofs" / str(head)
    other = prove_block(workspace, boats, boats.dataset.block(0).hash)
    path.unlink()
    path.write_bytes(bytes(other))
    assert proven(source, dataset) == {str(other.head)}
    workspace.keys.delete(boats.id)
    assert not source.holds_key(dataset)
    with pytest.raises(NotFound, match="key of boats is not in this workspace"):
        source.sign_block(dataset, str(head))
