"""Who stands behind a chain, on the screen: the mark, the words, and signing."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.errors import NotFound
from odf_engine.metadata.model import SetInfo
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.trust import prove_block
from odf_engine.workspace.workspace import Workspace
from odf_tui.gateway.workspace_gateway import WorkspaceGateway
from odf_tui.panes.blocks.view import PROVEN
from odf_tui.state.model import BlockDocument, BlockFilter
from odf_tui.text.format import Section
from odf_tui.theming import ascii_fallback
from tests.tui.conftest import driven
from tests.tui.fake import FakeSource
from tests.tui.fake_blocks import hash_of
from tests.tui.test_blocks import AIR, verified
from tests.tui.test_engine import MANIFEST


@pytest.mark.app
async def test_a_block_is_signed_after_a_question(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("2", "S")
        await drive.until(lambda: "as the owner?" in drive.text())
        assert "all blocks before it." in drive.text()
        await drive.press("n")
        assert not source.proven and PROVEN not in drive.text()
        await drive.press("S")
        await drive.until(lambda: "as the owner?" in drive.text())
        await drive.press("y")
        await drive.until(lambda: "is signed by" in drive.hint())
        await drive.settle()
        newest = hash_of(source.rows_[0].blocks - 1)
        assert source.proven == {newest}
        assert "block 11 of port-haven.air-readings is signed by its owner" in drive.hint()
        (line,) = [line for line in drive.text().splitlines() if f"{PROVEN}   11 " in line]
        assert newest[-8:] in line
        assert f"{PROVEN} signed by the dataset's owner" in str(drive.blocks_pane.border_subtitle)
        # What was found wrong matters more.
        verified(source, (11, "slice-offsets", "offsets overlap"))
        source.texts[AIR, 11] = BlockDocument(
            "kind: x\n", number=11, hash=newest, proof="signed by its owner"
        )
        await drive.press("r", "enter")
        assert drive.text().index("≠ slice-offsets") < drive.text().index(f"{PROVEN} signed by its owner")


@pytest.mark.app
async def test_nobody_signs_without_the_key(source: FakeSource) -> None:
    source.owned = False
    async with driven(source) as drive:
        await drive.press("2", "S")
        await drive.until(lambda: "only who has it can sign" in drive.hint())
        assert not source.proven


def test_the_mark_has_a_letter_of_its_own_on_every_terminal() -> None:
    others = {ascii_fallback.ASCII[sign] for sign in "◇◆✓✗·◦▸÷≠∅↯⊘●○"}
    assert ascii_fallback.with_ascii(PROVEN) not in others | {PROVEN}
    assert len(ascii_fallback.with_ascii(PROVEN, "console")) == 1


def test_proofs_of_a_real_chain(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "harbour")
    workspace.add(read_manifests(MANIFEST, "test"))
    boats = workspace.resolve("boats")
    source, dataset = WorkspaceGateway(workspace), str(boats.id)
    head = boats.dataset.head()
    number = boats.dataset.state().sequence_number
    assert head is not None and source.holds_key(dataset)
    assert source.blocks(dataset, None, 100, BlockFilter()).proven == frozenset()
    assert source.block(dataset, 0).proof == ""

    source.sign_block(dataset, str(head))
    boats.dataset.commit([SetInfo("later")], system_time=Timestamp.now(), expected_head=head)
    assert source.blocks(dataset, None, 100, BlockFilter()).proven == {str(head)}
    assert source.block(dataset, number).proof.startswith("signed by the dataset's owner")
    assert source.block(dataset, 0).proof == f"the dataset's owner stands behind it: block {number} is signed"
    assert source.block(dataset, number + 1).proof.startswith("newer than what")
    detail = source.detail(dataset)
    told = f"up to block {number}, 1 block is newer"
    assert ("proven", f"by its owner {told}") in detail.facts
    identity = next(each for each in detail.sections if each.title == "Identity")
    assert isinstance(identity, Section) and ("owner's proof", told) in identity.facts

    # A wrong proof is no mark.
    path = boats.dataset.folder / "proofs" / str(head)
    other = prove_block(workspace, boats, boats.dataset.block(0).hash)
    path.unlink()
    path.write_bytes(bytes(other))
    assert source.blocks(dataset, None, 100, BlockFilter()).proven == {str(other.head)}
    workspace.keys.delete(boats.id)
    assert not source.holds_key(dataset)
    try:
        source.sign_block(dataset, str(head))
    except NotFound as error:
        assert "key of boats is not in this workspace" in error.message
