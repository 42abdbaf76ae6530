"""Blocks of real chains: revisions, links, bytes, checkpoints, and broken chains."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from odf_engine.api.model import BlockFilter, BlockLink, Target
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.chain.references import create_branch
from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.errors import OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    ExecuteTransform,
    ExecuteTransformInput,
    SetDataSchema,
    SetInfo,
    SetLicense,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace
from odf_tui.panes.blocks.block_dialogs import BlockDialog
from odf_tui.panes.blocks.view import PAGE, BlocksPane, BlocksRequested
from tests.tui.conftest import driven
from tests.tui.scripted_worker import Scenario
from tests.tui.test_blocks import NoNavigation
from tests.tui.test_derivatives import transact
from tests.tui.test_workspace_reads import MANIFEST, add_rows
from tests.tui.widget_app import shown


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Boats with two slices, and changes of all kinds of events with revisions."""
    made = Workspace.init(tmp_path / "harbour")
    made.add(read_manifests(MANIFEST, "test"))
    boats = made.resolve("boats")
    add_rows(boats, batches=2, rows=3)
    chain = boats.dataset
    state = chain.state()
    assert state.schema is not None
    assert state.polling_source is not None
    columns = decode_schema(state.schema)
    more = pa.schema([*columns, pa.field("crew", pa.int32(), metadata={"comment": "how many sail"})])
    fetch = replace(state.polling_source.fetch, url="file:sources/ships.csv")  # type: ignore[type-var]
    events = [
        SetDataSchema(encode_schema(more)),
        replace(state.polling_source, fetch=fetch),
        SetInfo("Boats and ships in the harbour"),
        SetLicense(short_name="CC0-1.0", name="CC0", website_url="https://cc.example"),
    ]
    for event in events:
        chain.commit([event], system_time=Timestamp.now(), expected_head=chain.head())
    return made


def test_revision_diffs_a_block_with_its_predecessor(workspace: Workspace) -> None:
    source, boats = OpenWorkspace(workspace), workspace.resolve("boats")
    name = str(boats.id)
    lines = {line.event: line for line in source.blocks(name, None, PAGE, BlockFilter()).lines}
    newest = source.blocks(name, None, 3, BlockFilter())
    assert (newest.total, newest.first, len(newest.lines)) == (10, 7, 3)
    assert [line.event for line in newest.lines] == ["SetPollingSource", "SetInfo", "SetLicense"]
    assert lines["SetPollingSource"].summary == "source changed: url"
    assert lines["SetDataSchema"].summary == "schema: +1 column crew"
    source_changed = source.revision(name, lines["SetPollingSource"].sequence_number)
    assert "- " + "    url: file:sources/boats.csv"[2:] in source_changed.lines
    assert (source_changed.before, source_changed.newer) == (1, None)
    first = source.revision(name, 1)
    assert (first.before, first.older, first.newer) == (None, None, source_changed.number)
    columns = source.revision(name, lines["SetDataSchema"].hash).lines
    assert [line[0] for line in columns] == [" "] * 6 + ["+"]
    assert columns[-1].split() == ["+", "crew", "INT", "comment=how", "many", "sail"]
    info = source.revision(name, lines["SetInfo"].sequence_number)
    assert info.lines == (
        "  kind: SetInfo", "- description: Boats in the harbour",
        "+ description: Boats and ships in the harbour",
    )  # fmt: skip
    with pytest.raises(UsageError, match="is AddData"):
        source.revision(name, lines["AddData"].sequence_number)
    assert source.block_kinds(name)["AddData"] == 2
    assert source.find_block(name, "#3") == lines["AddData"].sequence_number


def test_block_has_links_bytes_and_checkpoint_facts(workspace: Workspace) -> None:
    source, boats = OpenWorkspace(workspace), workspace.resolve("boats")
    name = str(boats.id)
    number = source.find_block(name, "#3")
    block = source.block(name, number)
    assert block.number == number
    targets = [link.target for link in block.links]
    assert targets == [Target(name, "blocks", number - 1), *[Target(name, "data", 3)] * 2]
    assert all(f": {link.text}" in block.yaml for link in block.links)
    found = source.block_bytes(name, block.hash)
    assert (found.problem, found.pieces[-1].end) == ("", len(found.data))
    assert any(piece.path == "content.event.newData.size" for piece in found.pieces)
    facts = source.checkpoint(name, "f1620" + "00" * 32, number)
    assert (facts.size, facts.made_by, facts.on_disk) == (None, None, None)
    long = workspace.resolve("long-boats")
    inputs = [link.target for link in source.block(str(long.id), 1).links]
    assert inputs[-1] == Target(name, "datasets")


def test_checkpoint_names_the_first_block_that_wrote_it(workspace: Workspace) -> None:
    long, boats = workspace.resolve("long-boats"), workspace.resolve("boats")
    transact(long, boats)
    first = long.dataset.state()
    made = first.last_checkpoint
    assert made is not None
    read = (first.last_inputs or [])[0]
    again = ExecuteTransformInput(read.dataset_id, read.new_block_hash, None, read.new_offset)
    kept = ExecuteTransform(
        query_inputs=[again],
        prev_checkpoint=made.physical_hash,
        new_checkpoint=made,
        new_watermark=Timestamp.parse("2024-03-11T00:00:00Z"),
    )
    long.dataset.commit([kept], system_time=Timestamp.now(), expected_head=first.head)
    source, name, number = OpenWorkspace(workspace), str(long.id), first.sequence_number
    checkpoint = str(made.physical_hash)
    for at in (number, number + 1):
        assert BlockLink(checkpoint, None) in source.block(name, at).links
        facts = source.checkpoint(name, checkpoint, at)
        assert (facts.made_by, facts.sure) == (number, True)
        assert facts.size == facts.on_disk == made.size
    long.dataset.checkpoint_path(made.physical_hash).unlink()
    assert source.checkpoint(name, checkpoint, number).on_disk is None
    assert (
        source.blocks(name, None, 1, BlockFilter()).lines[0].summary
        == "watermark → 2024-03-11, state unchanged"
    )


def test_a_block_of_a_newer_version_is_shown_as_unreadable(workspace: Workspace) -> None:
    boats = workspace.resolve("boats")
    source, name, chain = OpenWorkspace(workspace), str(boats.id), boats.dataset
    head = chain.head()
    assert head is not None
    data = chain.block_bytes(head)
    at = next(piece for piece in source.block_bytes(name, str(head)).pieces if piece.path == "version")
    newer = data[: at.start] + b"\x09" + data[at.start + 1 :]
    block = str(Multihash.sha3_256(newer))
    (chain.folder / "blocks" / block).write_bytes(newer)
    (chain.folder / "refs" / "head").write_text(block)
    (line,) = source.blocks(name, None, PAGE, BlockFilter()).lines
    assert (line.hash, line.broken) == (block, True)
    assert "block version 9" in line.summary
    shown = source.block(name, block)
    assert shown.problem.endswith("\nuse a newer version of odf")
    assert source.block_bytes(name, block).problem == ""
    # The head is invalid as well.
    (chain.folder / "refs" / "head").write_text("nonsense")
    (line,) = source.blocks(name, None, PAGE, BlockFilter()).lines
    assert (line.hash, line.broken) == ("", True)
    assert "refs/head" in source.block(name, line.hash).problem
    with pytest.raises(OdfError, match="refs/head"):
        source.block_bytes(name, line.hash)


async def test_damaged_block_is_listed_as_unreadable(workspace: Workspace) -> None:
    entry = workspace.resolve("boats")
    boats, name = entry.dataset, str(entry.id)
    hashes = [str(row.hash) for row in boats.list_blocks(20)]
    path = boats.folder / "blocks" / hashes[3]
    path.write_bytes(path.read_bytes()[:-40])
    workspace.index.close()
    (workspace.index._path or Path()).unlink()  # the cached chain is lost
    source = OpenWorkspace(workspace)
    page = source.blocks(name, None, PAGE, BlockFilter())
    assert page.broken
    assert page.lines[-1].summary == "licence CC0-1.0"
    damaged = page.lines[0]
    assert (damaged.hash, damaged.broken, damaged.event) == (hashes[3], True, "unreadable")
    assert [line.broken for line in page.lines[1:]] == [False] * 3
    block = source.block(name, damaged.hash)
    async with shown(BlockDialog("boats", name, block, "", print, NoNavigation())) as (app, _):
        assert "this block cannot be read" in app.text()
    found = source.block_bytes(name, damaged.hash)
    assert "the bytes do not match the hash" in found.problem
    # The blocks above it can be read by their numbers.
    assert "sequenceNumber: 8" in source.block(name, 8).yaml
    assert source.block_bytes(name, 8).problem == ""
    with pytest.raises(OdfError, match="damaged"):
        source.block_bytes(name, 5)
    # A filter shows the blocks that match, and where the chain breaks.
    assert source.blocks(name, None, PAGE, BlockFilter(text="licence")).total == 2
    # The pane marks it.
    async with shown(BlocksPane("blocks"), (80, 13)) as (app, pilot):
        view = app.query_one(BlocksPane).view
        view.open(name, 0)
        view.load(BlocksRequested(name, None, BlockFilter()), page, "")
        await pilot.pause()
        (line,) = [line for line in app.text().splitlines() if "unreadable" in line]
        assert "≠" in line


def test_histories_are_sorted_by_time(workspace: Workspace) -> None:
    boats = workspace.resolve("boats")
    chain, second = boats.dataset, Timestamp.now().ns // 10**9 + 1
    heads = [chain.head()]
    for milliseconds in (0, 1, 2):  # a whole second is written without a fraction
        moment = Timestamp(second * 10**9 + milliseconds * 10**6)
        chain.reset(chain.block(4).hash, expected_head=chain.head())
        chain.commit([SetInfo(str(moment))], system_time=moment, expected_head=chain.head())
        heads.append(chain.head())
    histories = Scenario(workspace).histories(str(boats.id))
    assert [version.block for _, version in histories] == [str(head) for head in heads[-2::-1]]


@pytest.mark.app
async def test_key_steps_through_histories_before_resets(workspace: Workspace) -> None:
    """The blocks of each by H, and its rows by its reference, before resets."""
    boats = workspace.resolve("boats")
    name, chain = str(boats.id), boats.dataset
    for number in (5, 4):  # of 10 blocks; the last two slices
        head = chain.head()
        assert head is not None
        chain.reset(chain.block(number).hash, expected_head=head)
        state = chain.state()
        later = Timestamp.from_ms(Timestamp.now().ns // 1_000_000 + 1)  # than the blocks that were removed
        chain.commit([SetInfo(f"after {number}")], system_time=later, expected_head=state.head)
    state, source = chain.state(), Scenario(workspace)
    newest, oldest = (f"before-reset-{version.block[5:13]}" for _, version in source.histories(name))
    async with driven(source, (120, 36)) as drive:
        blocks = drive.app.screen.query_one(BlocksPane)

        def shown_history() -> tuple[int, str]:
            return blocks.view.total, str(blocks._border_title)

        await drive.press("2")
        for total, reference in ((7, newest), (10, oldest)):
            await drive.press("H")
            await drive.until(lambda wanted=total: blocks.view.total == wanted)
            assert reference in shown_history()[1]
        await drive.press("enter")
        assert f"boats · {oldest} · block 9" in drive.text() and "CC0" in drive.text()
        await drive.press("escape", "escape")
        assert shown_history()[0] == state.blocks and "before" not in shown_history()[1]
        for total in (7, 10, state.blocks):
            await drive.press("H")
            await drive.until(lambda wanted=total: blocks.view.total == wanted)

        await drive.press("3", "at")
        await drive.until(lambda: drive.time_panel is not None)
        await drive.press("t", f"={oldest}", "enter")
        await drive.until(lambda: "block 9, another history · 6" in drive.text())
        await drive.press("escape", "escape")
        assert "another history" not in drive.text()


@pytest.mark.app
async def test_branch_dialog_shows_a_branch_and_follows_new_blocks(workspace: Workspace) -> None:
    """The badge in the graph, and the chain of a branch by B, which follows its new blocks."""
    boats = workspace.resolve("boats")
    name, state = str(boats.id), boats.dataset.state()
    async with driven(Scenario(workspace), (120, 36)) as drive:
        blocks = drive.app.screen.query_one(BlocksPane)
        await drive.press("2", "B")
        await drive.until(lambda: "no branches: n creates one" in drive.text())
        await drive.press("escape")

        create_branch(boats.dataset, "staging", state.head)
        branch = boats.on_branch("staging")
        (summary,) = [each for each in workspace.summaries() if str(each.id) == name]
        assert summary.branches == ["staging"] and summary.blocks == state.blocks

        def commit(text: str) -> None:
            before = branch.dataset.state()
            branch.dataset.commit([SetInfo(text)], system_time=before.system_time, expected_head=before.head)

        commit("of the branch")
        await drive.press("r")
        await drive.until(lambda: "⎇1" in drive.text())
        await drive.press("B")
        await drive.until(lambda: "staging" in drive.text())
        await drive.press("down", "enter")
        await drive.until(lambda: blocks.view.total == state.blocks + 1)
        assert "boats · branch staging" in str(blocks._border_title)
        await drive.press("enter")
        await drive.until(lambda: "of the branch" in drive.text())
        await drive.press("escape")
        commit("newer")
        await drive.press("r")
        await drive.until(lambda: blocks.view.total == state.blocks + 2)
        await drive.press("escape")
        assert blocks.view.total == state.blocks and "branch" not in str(blocks._border_title)
