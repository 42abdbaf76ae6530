"""Pane 2: the list of blocks, jumps, filters, links, revisions, bytes, and findings of verifications.

Pictures are ``tests/golden/blocks-*.txt``; ``ODF_UPDATE_GOLDEN=1`` writes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from odf_engine.api.model import (
    BlockBytes,
    BlockDocument,
    BlockFilter,
    BlockLine,
    BlockLines,
    BlockLink,
    ByteRange,
    Revision,
    Target,
)
from odf_engine.worker.protocol import JobState
from odf_tui.actions.model import Situation
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.panes.blocks.block_dialogs import BlockBytesDialog, BlockDialog, EventKindsDialog, RevisionDialog
from odf_tui.panes.blocks.controller import BlocksController
from odf_tui.panes.blocks.view import MAX_PAGES, PAGE, BlocksPane, BlocksRequested, BlocksView
from odf_tui.services.navigation import TrailEntry
from odf_tui.widgets.dialogs import GoToBlockDialog
from tests.tui.conftest import driven
from tests.tui.context import FakeHost, Fakes
from tests.tui.haven import AIR, DAYS, TIDES, append, commit
from tests.tui.scripted_worker import Scenario
from tests.tui.waiting import until
from tests.tui.widget_app import WidgetApp, shown

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SIZES = pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")


def compare(text: str, size: tuple[int, int], name: str) -> None:
    """Compare a text with its picture: the pane, or a dialog, on a terminal of this size."""
    path = GOLDEN / f"blocks-{size[0]}x{size[1]}-{name}.txt"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def dialog_text(app: WidgetApp) -> str:
    """Return the dialog in front as text."""
    x, y, width, height = app.screen.query_one(".dialog").region
    lines = app.text().splitlines()[y : y + height]
    return "\n".join(line[x : x + width].rstrip() for line in lines) + "\n"


def pane_size(size: tuple[int, int]) -> tuple[int, int]:
    """Return the size of the pane on a terminal of this size, while it has the focus."""
    picture = (GOLDEN / f"blocks-{size[0]}x{size[1]}-findings.txt").read_text(encoding="utf-8")
    return len(picture.splitlines()[0]), len(picture.splitlines())


def hash_of(number: int) -> str:
    """Return the hash of a block that is not in a chain."""
    return f"f1620{number:08x}{number:056x}"


def block_line(number: int) -> BlockLine:
    """Return a block that is not in a chain."""
    return BlockLine(number, hash_of(number), "2024-03-05T08:04:00Z", "AddData", 1000, "+1 000 rows")


def hashes(source: Scenario) -> list[str]:
    """Return the hashes of the blocks of the air readings."""
    return [line.hash for line in source.blocks(AIR, None, 100, BlockFilter()).lines]


def show_blocks(
    source: Scenario,
    lines: Sequence[BlockLine],
    limits: list[int] | None = None,
    *,
    broken: bool = False,
) -> None:
    """Show these blocks instead of the blocks of the datasets, and note the limits of each page."""

    def blocks(dataset: str, first: int | None, limit: int, block_filter: BlockFilter) -> BlockLines:
        if limits is not None:
            limits.append(limit)
        start = max(len(lines) - limit, 0) if first is None else first
        return BlockLines(len(lines), start, tuple(lines[start : start + limit]), broken)

    source.blocks = blocks  # type: ignore[method-assign]
    source.block_numbers = lambda dataset, hashes: {  # type: ignore[method-assign]
        line.hash: line.sequence_number for line in lines if line.hash in hashes
    }
    source.rows_ = [replace(row, blocks=len(lines)) if row.id == AIR else row for row in source.rows_]


def change_source(source: Scenario) -> None:
    """Append a block that changes the source of the air readings."""
    chain = source.entry(AIR).dataset
    polling = chain.state().polling_source
    assert polling is not None
    commit(chain, replace(polling, fetch=replace(polling.fetch, url="file:sources/air.csv")))  # type: ignore[type-var]


def verified(source: Scenario, *findings: tuple[str, str, str], head: str | None = None) -> None:
    """Add a verification that is done."""
    found = [{"block": block, "kind": kind, "message": message} for block, kind, message in findings]
    result = json.dumps({"valid": not found, "head": head, "blocks": 12, "slices": 8, "findings": found})
    source.changed(source.job(JobState.done, "port-haven.air-readings", "verify", result=result))


class AppHost(FakeHost):
    """A host whose dialogs open in an app."""

    def __init__(self, app: WidgetApp) -> None:
        self._app = app
        super().__init__(widgets={BlocksPane: app.query_one(BlocksPane)})

    @property
    def top(self) -> Any:
        """The screen in front."""
        return self._app.screen

    @property
    def is_front(self) -> bool:
        """Whether no dialog is open."""
        return len(self._app.screen_stack) == 1

    @is_front.setter
    def is_front(self, value: bool) -> None: ...

    def open(self, dialog: Any, then: Callable[[Any], object] | None = None) -> None:
        """Open a dialog."""
        self._app.push_screen(dialog, cast("Any", then))

    async def ask(self, dialog: Any) -> Any:
        """Open a dialog, or take the next prepared answer."""
        return self._answer(dialog)


class Explorer:
    """Pane 2 with its controller, alone on the screen."""

    def __init__(self, app: WidgetApp, pilot: Pilot[None], source: Scenario) -> None:
        self.app, self.pilot, self.source = app, pilot, source
        self.pane = app.query_one(BlocksPane)
        self.fakes = Fakes(source, "port-haven.air-readings")
        self.host = self.fakes.host = AppHost(app)
        self.state = self.fakes.state
        self.controller = BlocksController(self.fakes.context)
        app.routes = self.controller.routes()
        self.state.focus_pane("blocks")

    @property
    def view(self) -> BlocksView:
        """The list."""
        return self.pane.view

    @property
    def number(self) -> int | None:
        """The number of the block under the cursor."""
        return None if self.view.block is None else self.view.block.sequence_number

    async def show(self) -> None:
        """Read the datasets, and show the selected one."""
        self.state.set_datasets(self.source.datasets())
        self.state.show(self.state.row)
        await self.settle()

    async def press(self, *keys: str) -> None:
        """Press keys in the dialog in front."""
        await self.pilot.press(*keys)
        await self.settle()

    async def settle(self) -> None:
        """Wait until the messages of a paint, and what they lead to, were handled."""
        for _ in range(3):
            await self.pilot.pause()

    def dialog(self) -> str:
        """Return the dialog in front as text."""
        return dialog_text(self.app)


@asynccontextmanager
async def explored(source: Scenario, size: tuple[int, int] = (80, 13)) -> AsyncIterator[Explorer]:
    """Show the blocks of the air readings."""
    async with shown(BlocksPane("blocks"), size) as (app, pilot):
        explorer = Explorer(app, pilot, source)
        await explorer.show()
        yield explorer


SLICE = "slice f16200c1d has other bytes: their hash is f1620ab12"
CHANGES = [
    BlockLine(0, hash_of(0), "2024-03-01T08:00:00Z", "Seed", None, "root dataset did:odf:fed0107"),
    BlockLine(1, hash_of(1), "2024-03-01T08:00:00Z", "SetPollingSource", None, "source air/*.csv, read csv"),
    BlockLine(2, hash_of(2), "2024-03-01T08:00:00Z", "SetLicense", None, "licence CC0-1.0"),
    BlockLine(3, hash_of(3), "2024-03-01T08:00:04Z", "SetDataSchema", None, "schema of 9 columns"),
    BlockLine(4, hash_of(4), "2024-03-01T08:00:05Z", "AddData", 1204, "+1 204 rows, watermark → 2024-03-01"),
    BlockLine(
        5, hash_of(5), "2024-03-02T08:00:05Z", "AddData", 996, "+996 rows, watermark → 2024-03-02 07:30"
    ),
    BlockLine(6, hash_of(6), "2024-03-03T08:00:05Z", "AddData", None, "no new rows, source state kept"),
    BlockLine(7, hash_of(7), "2024-03-03T09:12:00Z", "SetDataSchema", None, "schema: +2 columns no2, sensor"),
    BlockLine(
        8, hash_of(8), "2024-03-03T09:12:00Z", "SetPollingSource", None, "source changed: schema, query"
    ),
    BlockLine(9, hash_of(9), "2024-03-04T08:00:05Z", "AddData", 5000, "+5 000 rows, watermark → 2024-03-04"),
]


YAML = (
    f"# {hash_of(11)}\n# 504 bytes\nkind: MetadataBlock\nversion: 3\ncontent:\n  sequenceNumber: 11\n"
    f"  prevBlockHash: {hash_of(10)}\n  event:\n    kind: ExecuteTransform\n    queryInputs:\n"
    f"      - datasetId: {TIDES}\n        newBlockHash: {hash_of(99)}\n        newOffset: 95\n"
    f"    newData:\n      physicalHash: {hash_of(77)}\n      offsetInterval:\n        start: 1200\n"
    f"        end: 2399\n    newCheckpoint:\n      physicalHash: {hash_of(55)}\n      size: 4096\n"
)
LINKS = (
    BlockLink(hash_of(10), Target(AIR, "blocks", 10)),
    BlockLink(TIDES, Target(TIDES, "datasets")),
    BlockLink(hash_of(99), Target(TIDES, "blocks", 4)),
    BlockLink(hash_of(77), Target(AIR, "data", 1200)),
    BlockLink(hash_of(55), None),
)
LINKED = BlockDocument(YAML, None, "ExecuteTransform", 11, hash_of(11), LINKS)
DIFFERENCE = (
    "  …", "      query: |-", "        SELECT event_time, station,", "-         avg(pm25) AS pm25",
    "+         round(avg(pm25), 1) AS pm25,", "+         count(*) AS readings", "        FROM air",
)  # fmt: skip
REVISION = Revision("SetTransform", 11, 6, 6, None, DIFFERENCE)
WRONG_BYTES = "its bytes are not those that its hash was made of"
BROKEN = BlockLine(7, hash_of(7), "", "not readable", None, WRONG_BYTES, True)
DAMAGED = BlockBytes(
    None,
    hash_of(7),
    bytes(range(60, 90)),
    (
        ByteRange(0, 4, "manifest", "begins at 0x14", False),
        ByteRange(4, 24, "content.event.newData.physicalHash", "digest", True),
        ByteRange(24, 30, "", "was not read", False),
    ),
    "the bytes do not match the hash; at 0x0018, content.event: it is not UTF-8 text",
)


class NoNavigation:
    """A navigation that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def step_block(self, by: int) -> None:
        """Note it."""
        self.calls.append(by)

    def follow_link(self, reader: BlockDialog, link: BlockLink) -> None:
        """Note it."""
        self.calls.append(link.target)

    def back(self) -> None:
        """Note it."""
        self.calls.append("back")

    def open_revision(self) -> None:
        """Note it."""
        self.calls.append("revision")

    def open_bytes(self) -> None:
        """Note it."""
        self.calls.append("bytes")


@pytest.mark.app
async def test_blocks_are_found_read_and_followed_by_keys(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_source(source)
    known = hashes(source)
    verified(source, (known[9], "slice-offsets", "offsets overlap"), (known[5], "slice-physical-hash", SLICE))
    checkpoint = source.entry(DAYS).dataset.state().last_checkpoint
    assert checkpoint is not None
    source.entry(DAYS).dataset.checkpoint_path(checkpoint.physical_hash).unlink()
    async with driven(source, (80, 24)) as drive:
        pane, view = drive.blocks_pane, drive.blocks_pane.view

        def number() -> int | None:
            return None if view.block is None else view.block.sequence_number

        def proven() -> frozenset[str]:
            return frozenset(source.blocks(DAYS, None, 1, BlockFilter()).signers)

        # Findings, and the block of one of them.
        await drive.press("2", "n")
        assert number() == 9
        await drive.press("n")
        assert number() == 5
        await drive.press("enter")
        assert "≠ slice-physical-hash: slice f16200c1d" in drive.text()
        await drive.press("escape", "right_curly_bracket")
        assert number() == 9
        await drive.press("N")
        assert number() == 5
        # Kinds of events, with a filter on top of them.
        await drive.press("f")
        await drive.until(lambda: isinstance(drive.app.screen, EventKindsDialog))
        await drive.press("j", "j", "space", "space", "enter")
        assert pane.kinds == ("Seed", "SetDataSchema")
        assert "only Seed, SetDataSchema · 2 of 13" in drive.text()
        await drive.press("slash", "=seed", "enter")
        assert view.count() == 1
        await drive.press("escape")
        assert view.count() == 2
        await drive.press("escape")
        assert (view.count(), drive.pane) == (13, "blocks")
        # Jumps.
        await drive.press("J")
        assert isinstance(drive.app.screen, GoToBlockDialog)
        await drive.press("=99", "enter")
        assert "sequence numbers are 0 to 12" in drive.text()
        await drive.press("=3", "enter")
        assert (drive.app.screen, number()) == (drive.bench, 3)
        # Revisions, from the list and from a block.
        await drive.press("g", "d")
        assert isinstance(drive.app.screen, RevisionDialog)
        await drive.press("left_square_bracket")
        assert "block 1 · SetPollingSource" in drive.text()
        await drive.press("escape", "enter")
        await drive.press("d")
        assert isinstance(drive.app.screen, RevisionDialog)
        await drive.press("escape")
        assert isinstance(drive.app.screen, BlockDialog)
        await drive.press("b")
        assert isinstance(drive.app.screen, BlockBytesDialog)
        await drive.press("escape")
        # Links, to another dataset, a checkpoint and rows, and back.
        await drive.press("escape", "1", "slash", "=air-by-day", "enter", "escape", "2")
        await drive.press("enter")
        assert "air-by-day · block 4" in drive.text()
        copied: list[str] = []
        monkeypatch.setattr(drive.app, "copy", lambda text: copied.append(text) or "copied")
        await drive.press("w", "y")
        assert copied == [source.block(DAYS, 4).yaml]  # without the arrows
        await drive.press("tab", "tab", "enter")  # a block of another dataset
        assert "port-haven.air-readings · block 11" in drive.text()
        assert drive.graph.selected == AIR
        await drive.press("enter")  # the block before it
        assert "port-haven.air-readings · block 10" in drive.text()
        assert number() == 10
        await drive.press("backspace", "backspace")
        assert "air-by-day · block 4" in drive.text()
        await drive.press("shift+tab", "enter")  # the last: a checkpoint
        assert "block 4 →" in drive.text()
        assert "missing: the next pull rebuilds the state" in drive.text()
        await drive.press("backspace")
        await drive.until(lambda: "air-by-day · block 4" in drive.text())
        await drive.press("tab", "tab", "tab", "tab", "tab", "enter")  # its rows
        await drive.until(lambda: drive.pane == "data")
        assert (drive.app.screen, drive.graph.selected) == (drive.bench, DAYS)
        await drive.press("ctrl+o")
        assert "air-by-day · block 4" in drive.text()
        await drive.press("w", "j", "enter")  # visible links are stepped through line by line as well
        assert (drive.app.screen, drive.pane, drive.graph.selected) == (drive.bench, "datasets", AIR)
        await drive.press("backspace", "escape", "ctrl+o")
        await drive.until(lambda: "no link to go back from" in drive.hint())
        # A signature, after a confirmation.
        await drive.press("S")
        await drive.until(lambda: "with the private key?" in drive.text())
        await drive.press("n")
        assert not proven()
        await drive.press("S")
        await drive.until(lambda: "with the private key?" in drive.text())
        await drive.press("y")
        await drive.until(lambda: "signed block 4 of air-by-day" in drive.hint())
        assert proven() == {source.rows_[0].head}
        # The kinds are left with escape, then the pane.
        await drive.press("escape")
        assert drive.pane == "datasets"


@SIZES
async def test_list_with_findings_matches_golden_text(source: Scenario, size: tuple[int, int]) -> None:
    show_blocks(source, CHANGES)
    verified(
        source, (hash_of(9), "slice-offsets", "offsets overlap"), (hash_of(5), "slice-physical-hash", SLICE)
    )
    async with explored(source, pane_size(size)) as explorer:
        explorer.controller.next_finding()
        await explorer.settle()
        compare(explorer.app.text(), size, "findings")


@SIZES
async def test_broken_chain_matches_golden_text(source: Scenario, size: tuple[int, int]) -> None:
    show_blocks(source, [BROKEN, *CHANGES[8:]], broken=True)
    async with explored(source, pane_size(size)) as explorer:
        assert "the chain is broken: G" in explorer.app.text()
        explorer.view.move("last")
        await explorer.settle()
        assert "the chain is broken here" in explorer.app.text()
        compare(explorer.app.text(), size, "broken")


@SIZES
async def test_block_dialogs_match_golden_texts(size: tuple[int, int]) -> None:
    copied: list[str] = []
    name, navigation = "port-haven.air-readings · block 11", NoNavigation()
    async with shown(BlockDialog(name, AIR, LINKED, "", copied.append, navigation), size) as (app, pilot):
        await pilot.press("tab", "tab")
        await pilot.pause()
        compare(dialog_text(app), size, "links")  # the cursor on the third link
    revision = RevisionDialog(f"{name} · SetTransform", REVISION, copied.append, navigation.step_block)
    async with shown(revision, size) as (app, _):
        compare(dialog_text(app), size, "diff")  # removed and added lines, and which revisions there are
    title = "port-haven.air-readings · block 7 · 30 bytes"
    async with shown(BlockBytesDialog(title, DAMAGED, copied.append, navigation.step_block), size) as (
        app,
        _,
    ):
        compare(dialog_text(app), size, "bytes")  # the problem, the bytes and their fields


async def test_findings_are_stepped_through_in_both_directions(source: Scenario) -> None:
    known = hashes(source)
    verified(source, (known[9], "slice-offsets", "offsets overlap"), (known[5], "slice-physical-hash", SLICE))
    async with explored(source) as explorer:
        found = []
        for step in (explorer.controller.next_finding,) * 3 + (explorer.controller.previous_finding,) * 2:
            step()
            await explorer.settle()
            found.append(explorer.number)
        assert found == [9, 5, 9, 5, 9]  # after the last comes the first
        explorer.controller.open_block()
        await explorer.settle()
        assert "≠ slice-offsets: offsets overlap" in explorer.dialog()


async def test_a_verification_holds_for_the_head_that_it_verified(source: Scenario) -> None:
    (row,) = [row for row in source.datasets() if row.id == AIR]
    verified(source, head=row.head)
    refused = DEFAULT_KEYMAP.by_id["next_finding"].guard(
        Situation(pane="blocks", dataset=row, block=block_line(1), findings=False)
    )
    assert refused is not None and "no findings" in refused
    async with explored(source) as explorer:
        assert "✓ verified" in str(explorer.pane.border_subtitle)
        append(source.entry(AIR).dataset, 10)  # another head
        await explorer.show()
        assert "verified" not in str(explorer.pane.border_subtitle)
        # Another verification ends. Its finding is on no block of the list.
        result = json.dumps(
            {"valid": False, "findings": [{"block": "head", "kind": "head-missing", "message": "gone"}]}
        )
        job = source.job(JobState.done, "port-haven.air-readings", "verify", result=result)
        explorer.state.apply_events([source.changed(job)])
        assert "≠ 1 finding" in str(explorer.pane.border_subtitle)
        explorer.controller.next_finding()
        assert explorer.host.last_notice == "gone"


async def test_kinds_of_events_are_chosen_in_a_dialog() -> None:
    kinds = {"AddData": 8, "Seed": 1, "SetInfo": 1}

    async def result(chosen: tuple[str, ...], *keys: str) -> object:
        async with shown(EventKindsDialog(kinds, chosen)) as (app, pilot):
            assert "AddData" in app.text()
            await pilot.press(*keys)
            await pilot.pause()
            return app.result

    assert await result((), "j", "space", "space", "enter") == ("Seed", "SetInfo")
    assert await result(("Seed",), "enter") == ("Seed",)  # unchanged
    assert await result((), "j", "j", "enter") == ("SetInfo",)  # the one under the cursor
    assert await result(("Seed",), "a") == ()
    assert await result((), "space", "space", "space", "enter") == ()  # all of them
    assert await result(("Seed",), "escape") is None


async def test_kinds_and_filter_narrow_the_list(source: Scenario) -> None:
    async with explored(source) as explorer:
        pane, view = explorer.pane, explorer.view
        explorer.controller.choose_kinds()
        await explorer.settle()
        assert isinstance(explorer.app.screen, EventKindsDialog)
        await explorer.press("j", "enter")
        assert (pane.kinds, view.count()) == (("Seed",), 1)
        assert "only Seed · 1 of 12" in explorer.app.text()
        pane.set_filter("nothing like it")
        await explorer.settle()
        assert "No block contains nothing like it" in explorer.app.text()
        pane.set_filter("")
        assert explorer.controller.leave()
        await explorer.settle()
        assert (pane.kinds, view.count()) == ((), 12)
        assert not explorer.controller.leave()


async def test_a_jump_reports_what_is_wrong_and_clears_what_hides_the_block(source: Scenario) -> None:
    async with explored(source, (80, 24)) as explorer:
        explorer.pane.set_kinds(("Seed",))
        explorer.controller.jump()
        await explorer.settle()
        assert isinstance(explorer.app.screen, GoToBlockDialog)
        for typed, problem in (
            ("99", "sequence numbers are 0 to 11"),
            ("half past nine", "'half past nine' is not a number, hash, date or offset"),
        ):
            explorer.app.screen.query_one("Input").value = typed  # type: ignore[attr-defined]
            await explorer.press("enter")
            assert problem in explorer.dialog()
        explorer.app.screen.query_one("Input").value = "1"  # type: ignore[attr-defined]
        await explorer.press("enter")
        assert len(explorer.app.screen_stack) == 1
        assert explorer.pane.kinds == ()
        await until(explorer.pilot, lambda: explorer.number == 1)


@pytest.mark.complete
async def test_a_long_chain_takes_no_more_memory_than_a_few_pages(source: Scenario) -> None:
    show_blocks(source, [block_line(number) for number in range(10_000)])
    async with explored(source) as explorer:
        view = explorer.view
        for _ in range(2 * MAX_PAGES):
            view.go(view.cursor + PAGE)
            await explorer.settle()
        await until(explorer.pilot, lambda: view.block is not None)
        assert len(view._pages) == MAX_PAGES
        for move, number in (("first", 9999), ("last", 0)):
            view.move(move)
            await until(explorer.pilot, lambda number=number: view.block == block_line(number))


async def test_a_block_dialog_walks_links_and_passes_keys_on() -> None:
    copied: list[str] = []
    navigation = NoNavigation()
    dialog = BlockDialog("block 11", AIR, replace(LINKED, kind="SetTransform"), "", copied.append, navigation)
    async with shown(dialog) as (app, pilot):
        await pilot.press("enter", "tab", "enter", "shift+tab", "shift+tab", "enter", "backspace", "d", "b")
        await pilot.press("right_square_bracket", "y")
        await pilot.pause()
        assert navigation.calls == [LINKS[0].target, LINKS[1].target, None, "back", "revision", "bytes", 1]
        assert copied == [YAML]
        assert "d diff · b bytes" in app.text()


async def test_revision_dialog_steps_only_to_existing_revisions(source: Scenario) -> None:
    change_source(source)
    async with explored(source, (80, 24)) as explorer:
        explorer.controller.open_revision()
        await explorer.settle()
        await explorer.press("right_square_bracket")
        assert "block 12 compared with block 1" in explorer.dialog()  # there is no newer one
        assert not explorer.host.notices
        await explorer.press("left_square_bracket")
        assert "block 1 · SetPollingSource" in explorer.dialog()
        assert "first block of this kind" in explorer.dialog()
        assert "] newer" in explorer.dialog()
        await explorer.press("escape")
        explorer.view.move("down")
        explorer.controller.open_revision()
        assert (
            "is AddData: only queries, sources, schemas and descriptions have diffs"
            in explorer.host.last_notice
        )


async def test_a_damaged_block_shows_its_bytes(source: Scenario) -> None:
    chain = source.entry(AIR).dataset
    path = chain.folder / "blocks" / hashes(source)[7]
    damaged = path.read_bytes()[:-40]
    path.unlink()
    path.write_bytes(damaged)
    source._workspace.index.close()
    for path in source.odf.glob("index.sqlite*"):  # the cached chain is lost
        path.unlink()
    async with explored(source, (80, 24)) as explorer:
        explorer.view.move("last")
        explorer.controller.open_block()
        await explorer.settle()
        assert "this block cannot be read" in explorer.dialog()
        await explorer.press("b")
        assert isinstance(explorer.app.screen, BlockBytesDialog)
        await explorer.press("y", "right_square_bracket")  # its number is unknown: there is no next one
        assert explorer.host.last_notice == "bytes: copied"
        assert "the bytes do not match the hash" in explorer.host.terminal.copied[0]
        await explorer.press("escape", "escape")
        explorer.view.move("above")
        explorer.controller.open_block()
        await explorer.settle()
        assert "sequenceNumber: 8" in explorer.dialog()
        await explorer.press("escape")
        explorer.controller.open_bytes()
        await explorer.settle()
        assert "manifest  begins" in explorer.dialog()


async def test_the_trail_leads_back_to_an_open_block(source: Scenario) -> None:
    async with explored(source, (80, 24)) as explorer:
        navigator = explorer.fakes.navigator
        explorer.controller.open_block()
        await explorer.settle()
        await explorer.press("tab", "enter")  # the link to its rows
        assert len(explorer.app.screen_stack) == 1
        assert navigator.trail == (TrailEntry(AIR, "blocks", 11, reading=True),)
        explorer.controller.back()
        await explorer.settle()
        assert "port-haven.air-readings · block 11" in explorer.dialog()
        await explorer.press("escape")
        # From the list, the position of the cursor is on the trail.
        explorer.view.go(3)
        navigator.follow(Target(AIR, "blocks", 2))
        await until(explorer.pilot, lambda: explorer.number == 2)
        explorer.controller.back()
        await until(explorer.pilot, lambda: explorer.number == 8)


async def test_outdated_block_pages_are_ignored(source: Scenario) -> None:
    async with explored(source) as explorer:
        view = explorer.view
        page = BlockLines(1, 0, (block_line(0),))
        for outdated in (
            BlocksRequested(TIDES, 0, BlockFilter()),
            BlocksRequested(AIR, 0, BlockFilter(text="x")),
        ):
            view.load(outdated, page, "")
            assert (view.count(), explorer.number) == (12, 11)
        view.load(BlocksRequested(AIR, 0, BlockFilter()), None, "no such chain")
        await explorer.settle()
        assert "no such chain" in explorer.app.text()
