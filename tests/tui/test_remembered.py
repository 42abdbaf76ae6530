"""How large panes are, and how the screen was left in a workspace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odf_engine.settings import UiConfig
from odf_tui.main import DeferredGateway
from odf_tui.panes.pane_layout import resize_pane
from odf_tui.state import saved_session
from odf_tui.state.saved_session import MIN_SHARE, PaneShares, SavedLayout
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource

pytestmark = pytest.mark.app


def test_shares_stay_within_limits() -> None:
    shares = PaneShares()
    for _ in range(20):
        shares = resize_pane(shares, "datasets", 5, single=False)
    assert shares == PaneShares(left=100 - MIN_SHARE, upper=100 - MIN_SHARE)
    assert resize_pane(shares, "jobs", 5, single=False) == PaneShares(left=75, upper=75)
    assert resize_pane(PaneShares(), "blocks", 5, single=True) == PaneShares(single=35)


async def test_panes_grow_and_shrink(source: FakeSource) -> None:
    async with driven(source, (160, 50)) as drive:
        before = drive.front.size
        await drive.press("plus")
        grown_to = drive.front.size
        assert grown_to.width > before.width
        assert grown_to.height > before.height
        await drive.press("4", "minus", "minus")
        assert drive.front.size.width < 60
        await drive.pilot.resize_terminal(80, 24)  # two panes: they have shares of their own
        await drive.until(lambda: drive.front.size.width == 78)
        height = drive.front.size.height
        await drive.press("plus")
        assert drive.front.size.height > height
        await drive.press("z", "plus")
        assert "one pane is shown alone" in drive.hint()
        await drive.press("z", "equals_sign", "1")
        await drive.pilot.resize_terminal(160, 50)
        await drive.until(lambda: drive.front.size == before)


async def leave(drive: Driven) -> None:
    """Leaves as with q."""
    await drive.settle()
    drive.bench.perform("quit")


async def test_the_screen_is_as_it_was_left(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("slash", "=port", "enter", "j", "plus", "T", "j", "enter")
        await drive.press("3", "l", "l", "l", "l", "l", "H", "1", "L")
        await drive.press("4", "slash", "=pull", "enter", "z", "w")
        await leave(drive)
    async with driven(source) as drive:
        bench = drive
        assert bench.pane == "jobs"
        assert drive.bench.has_class("-zoomed")
        assert "/pull" in str(bench.jobs_pane.border_title)
        assert not bench.jobs_pane.log_view.wrap
        assert bench.datasets_pane.mode == "list"
        assert bench.data_pane.arrangement("did:odf:port-haven.stations") == {"hidden": ["pm25"]}
        await drive.press("z", "1")
        assert bench.graph.row is not None
        assert bench.graph.row.name == "port-haven.stations"
        assert "/port" in drive.text()
        assert bench.shares == PaneShares(left=65, upper=50)
        await drive.press("escape")  # the filter is there, and goes
        assert "harbour.tides" in drive.text()
        await leave(drive)
    assert saved_session.load_layout(source.folder).filters == {"jobs": "pull"}


async def test_a_filter_of_blocks_is_there_again_and_goes(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("2", "slash", "=Seed", "enter")
        assert drive.blocks_pane.view.count() == 1
        await leave(drive)
    async with driven(source) as drive:
        assert "/Seed" in drive.text()
        assert drive.blocks_pane.view.count() == 1
        assert "" not in [asked[0] for asked in source.asked]
        await drive.press("escape")
        assert drive.blocks_pane.view.count() > 1


async def test_changes_are_written_after_a_while_and_only_then(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odf_tui.panes import pane_layout

    monkeypatch.setattr(pane_layout, "SAVE_SECONDS", 0.02)
    path = saved_session.path_in(source.folder)
    async with driven(source) as drive:
        assert not path.exists()
        await drive.press("2")
        await drive.until(path.exists)
        assert json.loads(path.read_text())["pane"] == "blocks"
        path.unlink()
        await drive.press("question_mark", "escape")  # nothing that is remembered
        await drive.pilot.pause(0.1)
        await drive.settle()
        assert not path.exists()


def test_what_cannot_be_read_is_as_if_it_had_never_been_written(tmp_path: Path) -> None:
    path = saved_session.path_in(tmp_path)
    path.parent.mkdir(parents=True)
    usual = SavedLayout()
    assert saved_session.load_layout(tmp_path) == usual
    for broken in (b"", b"\xff\xfe", b"[1]", b'{"pane": "blocks"', b"null"):
        path.write_bytes(broken)
        assert saved_session.load_layout(tmp_path) == usual
    path.write_text(
        '{"pane": "blocks", "shares": {"left": "wide"}, "zoomed": 3, "recent": ["zoom"], "newer": {}}'
    )
    assert saved_session.load_layout(tmp_path) == SavedLayout(pane="blocks", recent=["zoom"])


async def test_a_disk_that_cannot_be_written_to_is_no_trouble(source: FakeSource) -> None:
    (source.folder / ".odf").write_text("not a folder")
    async with driven(source) as drive:
        await drive.press("2")
        await leave(drive)
    async with driven(source) as drive:
        assert drive.pane == "datasets"


async def test_what_is_no_more_is_not_restored(source: FakeSource) -> None:
    gone = SavedLayout(pane="kitchen", dataset="did:odf:gone", graph={"mode": "pie", "sort": 1}, theme="gone")
    saved_session.save_layout(source.folder, saved_session.encode(gone))
    async with driven(source) as drive:
        assert drive.pane == "datasets"
        assert drive.graph.row is not None


def test_a_theme_of_the_settings_wins_when_it_was_set_later() -> None:
    chosen = SavedLayout(theme="paper", theme_setting="auto")
    assert saved_session.effective_theme(chosen, "auto") == "paper"
    assert saved_session.effective_theme(chosen, "ember") == "ember"
    assert saved_session.effective_theme(SavedLayout(), "auto") == "auto"


def test_the_theme_is_remembered_before_the_engine_is_there(tmp_path: Path) -> None:
    saved_session.save_layout(
        tmp_path, saved_session.encode(SavedLayout(theme="paper", theme_setting="auto"))
    )
    assert DeferredGateway(tmp_path, UiConfig()).theme == "paper"
    assert DeferredGateway(tmp_path, UiConfig(theme="ember")).theme == "ember"
