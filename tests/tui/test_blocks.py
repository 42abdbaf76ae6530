"""Pane 2: finding blocks, reading them, following what they name, and what a verification found.

Captures are ``tests/golden/blocks-*.txt``; ``ODF_UPDATE_GOLDEN=1`` writes them anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from odf_engine.coordinator.protocol import JobState
from odf_tui.panes.blocks.block_dialogs import BlockBytesDialog, BlockDialog, EventKindsDialog, RevisionDialog
from odf_tui.panes.blocks.view import KEPT, PAGE
from odf_tui.state.model import (
    BlockBytes,
    BlockDocument,
    BlockLink,
    BlockSummary,
    ByteRange,
    Revision,
    Target,
)
from odf_tui.widgets.dialogs import GoToBlockDialog
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource, dataset
from tests.tui.fake_blocks import fake_line, hash_of

pytestmark = pytest.mark.app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
AIR = "did:odf:port-haven.air-readings"
SIZES = pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")


def compare(drive: Driven, size: tuple[int, int], name: str) -> None:
    """Compares the dialog, or the pane, with its golden: what is around it belongs to others."""
    path = GOLDEN / f"blocks-{size[0]}x{size[1]}-{name}.txt"
    screen = drive.app.screen
    shown = drive.blocks_pane if screen is drive.bench else screen.query_one(".dialog")
    x, y, width, height = shown.region
    lines = [line[x : x + width].rstrip() for line in drive.text().splitlines()[y : y + height]]
    text = "\n".join(lines) + "\n"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def verified(source: FakeSource, *findings: tuple[int | str, str, str], head: str | None = None) -> None:
    """A verification that is done."""
    found = [
        {"block": hash_of(at) if isinstance(at, int) else at, "kind": kind, "message": message}
        for at, kind, message in findings
    ]
    result = json.dumps({"valid": not found, "head": head, "blocks": 12, "slices": 8, "findings": found})
    source.changed(source.job(JobState.done, "port-haven.air-readings", "verify", result=result))


SLICE = "slice f16200c1d has other bytes: their hash is f1620ab12"
CHANGES = [
    BlockSummary(0, hash_of(0), "2024-03-01T08:00:00Z", "Seed", None, "root dataset did:odf:fed0107"),
    BlockSummary(
        1, hash_of(1), "2024-03-01T08:00:00Z", "SetPollingSource", None, "source air/*.csv, read csv"
    ),
    BlockSummary(2, hash_of(2), "2024-03-01T08:00:00Z", "SetLicense", None, "licence CC0-1.0"),
    BlockSummary(3, hash_of(3), "2024-03-01T08:00:04Z", "SetDataSchema", None, "schema of 9 columns"),
    BlockSummary(
        4, hash_of(4), "2024-03-01T08:00:05Z", "AddData", 1204, "+1 204 rows, watermark → 2024-03-01"
    ),
    BlockSummary(
        5, hash_of(5), "2024-03-02T08:00:05Z", "AddData", 996, "+996 rows, watermark → 2024-03-02 07:30"
    ),
    BlockSummary(6, hash_of(6), "2024-03-03T08:00:05Z", "AddData", None, "no new rows, source state kept"),
    BlockSummary(
        7, hash_of(7), "2024-03-03T09:12:00Z", "SetDataSchema", None, "schema: +2 columns no2, sensor"
    ),
    BlockSummary(
        8, hash_of(8), "2024-03-03T09:12:00Z", "SetPollingSource", None, "source changed: schema, query"
    ),
    BlockSummary(
        9, hash_of(9), "2024-03-04T08:00:05Z", "AddData", 5000, "+5 000 rows, watermark → 2024-03-04"
    ),
]


@SIZES
async def test_findings_stand_on_their_blocks(source: FakeSource, size: tuple[int, int]) -> None:
    source.lines[AIR] = CHANGES
    source.rows_[0] = replace(source.rows_[0], blocks=10)
    verified(source, (9, "slice-offsets", "offsets overlap"), (5, "slice-physical-hash", SLICE), head=None)
    async with driven(source, size) as drive:
        await drive.press("2", "n")
        view = drive.blocks_pane.view
        assert view.block is not None
        assert view.block.sequence_number == 5
        compare(drive, size, "findings")
        await drive.press("n")  # after the last comes the first
        assert view.cursor == 0
        await drive.press("right_curly_bracket", "N")
        assert view.cursor == 0
        await drive.press("enter")
        assert "≠ slice-offsets: offsets overlap" in drive.text()


async def test_a_chain_that_was_verified_up_to_its_head_says_so(source: FakeSource) -> None:
    verified(source, head=source.rows_[0].head)
    async with driven(source) as drive:
        pane = drive.blocks_pane
        assert "✓ verified" in str(pane.border_subtitle)
        await drive.press("2", "n")
        assert "nothing was found on these blocks" in drive.hint()
        # The chain grows: what was found says nothing about its end.
        source.rows_[0] = dataset("port-haven.air-readings", records=9000)
        await drive.press("r")
        assert "verified" not in str(pane.border_subtitle)
        # Another verification, while one looks on.
        result = json.dumps(
            {"valid": False, "findings": [{"block": "head", "kind": "head-missing", "message": "gone"}]}
        )
        job = source.job(JobState.done, "port-haven.air-readings", "verify", result=result)
        source.link.tell(source.changed(job))
        await drive.until(lambda: "≠ 1 finding" in str(pane.border_subtitle))
        await drive.press("n")
        assert "gone" in drive.hint()


async def test_kinds_of_events_are_chosen_and_left(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        pane = drive.blocks_pane
        await drive.press("2", "f")
        assert isinstance(drive.app.screen, EventKindsDialog)
        assert "AddData" in drive.text()
        await drive.press("j", "space", "space", "enter")
        assert pane.kinds == ("Seed", "SetDataSchema")
        assert pane.view.count() == 2
        assert "only Seed, SetDataSchema · 2 of 12" in drive.text()
        await drive.press("slash", "=seed", "enter")
        assert pane.view.count() == 1
        await drive.press("escape")
        assert pane.view.count() == 2
        await drive.press("f", "enter")  # as they are
        assert pane.kinds == ("Seed", "SetDataSchema")
        await drive.press("escape")
        assert pane.view.count() == 12
        await drive.press("f", "j", "j", "enter")  # one alone
        assert pane.kinds == ("SetDataSchema",)
        await drive.press("f", "a")
        assert pane.view.count() == 12
        await drive.press("escape")
        assert drive.pane == "datasets"


async def test_jumping_says_what_there_is(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        view = drive.blocks_pane.view
        await drive.press("2", "J")
        assert isinstance(drive.app.screen, GoToBlockDialog)
        await drive.press("=99", "enter")
        assert "there is no block 99: they go from 0 to 11" in drive.text()
        await drive.press("=yesterday", "enter")
        assert "'yesterday' is no number, hash, date or offset" in drive.text()
        await drive.press("=3", "enter")
        assert drive.app.screen is drive.bench
        assert view.block == fake_line(3)
        # What hides the block is taken away.
        await drive.press("f", "enter", "J", "=1", "enter")
        await drive.until(lambda: view.block == fake_line(1))
        assert drive.blocks_pane.kinds == ()


async def test_a_long_chain_takes_no_more_memory_than_a_few_pages(source: FakeSource) -> None:
    source.rows_[0] = dataset("port-haven.air-readings", records=9_996_000)
    source.lines[AIR] = [fake_line(number) for number in range(10_000)]
    async with driven(source) as drive:
        view = drive.blocks_pane.view
        await drive.press("2")
        for _ in range(2 * KEPT):
            view.go(view.cursor + PAGE)
            await drive.settle()
        assert len(view._pages) == KEPT
        assert view.block is not None
        await drive.press("g")
        await drive.until(lambda: view.block == fake_line(9999))
        await drive.press("G")
        await drive.until(lambda: view.block == fake_line(0))


@SIZES
async def test_links_are_walked_and_come_back(
    source: FakeSource, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tides = "did:odf:harbour.tides"
    yaml = (
        f"# {hash_of(11)}\n# 504 bytes\nkind: MetadataBlock\nversion: 3\ncontent:\n  sequenceNumber: 11\n"
        f"  prevBlockHash: {hash_of(10)}\n  event:\n    kind: ExecuteTransform\n    queryInputs:\n"
        f"      - datasetId: {tides}\n        newBlockHash: {hash_of(99)}\n        newOffset: 95\n"
        f"    newData:\n      physicalHash: {hash_of(77)}\n      offsetInterval:\n        start: 1200\n"
        f"        end: 2399\n    newCheckpoint:\n      physicalHash: {hash_of(55)}\n      size: 4096\n"
    )
    links = (
        BlockLink(hash_of(10), Target(AIR, "blocks", 10)),
        BlockLink(tides, Target(tides, "datasets")),
        BlockLink(hash_of(99), Target(tides, "blocks", 4)),
        BlockLink(hash_of(77), Target(AIR, "data", 1200)),
        BlockLink(hash_of(55), None),
    )
    source.texts[AIR, 11] = BlockDocument(yaml, None, "ExecuteTransform", 11, hash_of(11), links)
    async with driven(source, size) as drive:
        bench = drive
        await drive.press("2", "enter")
        copied: list[str] = []
        monkeypatch.setattr(drive.app, "copy", lambda text: copied.append(text) or "copied")
        await drive.press("y")
        assert copied == [yaml]  # without the arrows
        await drive.press("tab", "tab")
        compare(drive, size, "links")
        await drive.press("enter")  # a block of another dataset
        assert "harbour.tides · block 4" in drive.text()
        assert bench.graph.selected == tides
        await drive.press("enter")  # the block before it
        assert "harbour.tides · block 3" in drive.text()
        assert bench.blocks_pane.view.block is not None
        assert bench.blocks_pane.view.block.sequence_number == 3
        await drive.press("backspace", "backspace")
        assert "port-haven.air-readings · block 11" in drive.text()
        await drive.press("shift+tab", "enter")  # the last: a checkpoint
        assert "block 11 →" in drive.text()
        assert "is not here: the next pull makes the state again" in drive.text()
        await drive.press("backspace", "tab", "tab", "tab", "enter")  # its rows
        await drive.until(lambda: bench.data_pane.view.cursor == 1200)
        assert (drive.app.screen, bench.pane) == (drive.bench, "data")
        await drive.press("ctrl+o")
        assert "port-haven.air-readings · block 11" in drive.text()
        await drive.press("j", "enter")  # links in sight are walked line by line as well
        assert (drive.app.screen, bench.pane, bench.graph.selected) == (drive.bench, "datasets", tides)
        await drive.press("backspace", "escape", "ctrl+o")
        assert "no link was followed yet" in drive.hint()


@SIZES
async def test_a_revision_is_compared_with_the_one_before(source: FakeSource, size: tuple[int, int]) -> None:
    lines = (
        "  …", "      query: |-", "        SELECT event_time, station,", "-         avg(pm25) AS pm25",
        "+         round(avg(pm25), 1) AS pm25,", "+         count(*) AS readings", "        FROM air",
    )  # fmt: skip
    source.lines[AIR] = [*map(fake_line, range(11)), replace(fake_line(11), event="SetTransform")]
    source.revisions[AIR, 11] = Revision("SetTransform", 11, 6, 6, None, lines)
    source.revisions[AIR, 6] = Revision("SetTransform", 6, None, None, 11, ("+ kind: SetTransform",))
    async with driven(source, size) as drive:
        await drive.press("2", "d")
        assert isinstance(drive.app.screen, RevisionDialog)
        compare(drive, size, "diff")
        await drive.press("right_square_bracket")  # there is none
        await drive.press("left_square_bracket")
        assert "block 6 · SetTransform" in drive.text()
        assert "the first of its kind" in drive.text()
        assert "] newer" in drive.text()
        await drive.press("escape", "j", "d")
        assert "is AddData: only queries, sources, schemas and descriptions change" in drive.hint()
        await drive.press("k", "enter")
        await drive.press("d")  # from the block, and back to it
        assert isinstance(drive.app.screen, RevisionDialog)
        await drive.press("escape")
        assert isinstance(drive.app.screen, BlockDialog)


@SIZES
async def test_a_broken_chain_shows_what_can_be_read(source: FakeSource, size: tuple[int, int]) -> None:
    wrong = "its bytes are not those that its hash was made of"
    broken = BlockSummary(7, hash_of(7), "", "not readable", None, wrong, True)
    source.lines[AIR] = [broken, *CHANGES[8:]]
    source.broken.add(AIR)
    source.rows_[0] = dataset("port-haven.air-readings", blocks=0, problem=wrong)
    pieces = (
        ByteRange(0, 4, "manifest", "begins at 0x14", False),
        ByteRange(4, 24, "content.event.newData.physicalHash", "digest", True),
        ByteRange(24, 30, "", "was not read", False),
    )
    problem = (
        "these are not the bytes that its hash was made of; at 0x0018, content.event: it is not UTF-8 text"
    )
    source.bytes[AIR, hash_of(7)] = BlockBytes(None, hash_of(7), bytes(range(60, 90)), pieces, problem)
    async with driven(source, size) as drive:
        await drive.press("2")
        assert "the chain breaks: G" in drive.text()
        await drive.press("G")
        assert "the chain breaks here" in drive.text()
        compare(drive, size, "broken")
        await drive.press("enter")
        assert "This block cannot be read: its bytes are damaged" in drive.text()
        assert "get it again" in drive.text()
        await drive.press("b")
        assert isinstance(drive.app.screen, BlockBytesDialog)
        compare(drive, size, "bytes")
        await drive.press("y", "right_square_bracket", "escape", "escape")
        assert "bytes:" in drive.hint()
        await drive.press("k", "b")
        assert "manifest  begins" in drive.text()
