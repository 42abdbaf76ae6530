"""Sizes of panes, and the layout that is saved in a workspace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from odf_engine.worker.protocol import JobState
from odf_tui.panes.pane_layout import SAVE_SECONDS, PaneGrid, PaneLayout, resize_pane
from odf_tui.state import saved_session
from odf_tui.state.saved_session import MIN_SHARE, PaneShares, SavedLayout
from tests.tui.conftest import Driven, driven
from tests.tui.context import FakeHost, Fakes
from tests.tui.haven import did
from tests.tui.scripted_worker import Scenario


async def leave(drive: Driven) -> None:
    """Leave as with q."""
    await drive.settle()
    drive.bench.perform("quit")


@pytest.mark.app
@pytest.mark.complete
async def test_the_layout_is_saved_and_restored(source: Scenario) -> None:
    # What does not exist any more is not restored.
    gone = SavedLayout(pane="kitchen", dataset=did("gone"), graph={"mode": "pie", "sort": 1}, theme="gone")
    saved_session.save_layout(source.folder, saved_session.encode_layout(gone))
    async with driven(source, (160, 50)) as drive:
        assert drive.pane == "datasets"
        assert drive.graph.row is not None
        # Panes grow and shrink.
        before = drive.front.size
        await drive.press("plus")
        assert drive.front.size.width > before.width
        assert drive.front.size.height > before.height
        await drive.press("4", "minus", "minus")
        assert drive.front.size.width < 60
        await drive.resize(80, 24)  # two panes: they have shares of their own
        await drive.until(lambda: drive.front.size.width == 78)
        height = drive.front.size.height
        await drive.press("plus")
        assert drive.front.size.height > height
        await drive.press("z", "plus")
        assert "only one pane is shown" in drive.hint()
        await drive.press("z", "equals_sign", "1")
        await drive.resize(160, 50)
        await drive.until(lambda: drive.front.size == before)
        # What the next start shows.
        await drive.press("slash", "=port", "enter", "G", "plus", "T", "j", "enter")
        await drive.press("3", "l", "l", "l", "l", "l", "H", "1", "L")
        await drive.press("2", "slash", "=Seed", "enter")
        await drive.press("4", "slash", "=pull", "enter", "z", "w")
        await leave(drive)
    asked: list[str] = []
    read = source.blocks
    source.blocks = lambda *page: asked.append(page[0]) or read(*page)  # type: ignore[method-assign]
    async with driven(source) as drive:
        assert drive.pane == "jobs"
        assert drive.bench.has_class("-zoomed")
        assert "/pull" in str(drive.jobs_pane.border_title)
        assert not drive.jobs_pane.log_view.wrap
        assert drive.datasets_pane.mode == "list"
        assert drive.data_pane.arrangement(did("port-haven.stations")) == {"hidden": ["pm25"]}
        await drive.press("z", "1")
        assert drive.graph.row is not None
        assert drive.graph.row.name == "port-haven.stations"
        assert "/port" in drive.text()
        assert drive.shares == PaneShares(left=65, upper=50)
        await drive.press("escape")  # the filter is restored, and can be cleared
        assert "harbour.tides" in drive.text()
        await drive.press("2")
        assert "/Seed" in drive.text()
        assert drive.blocks_pane.view.count() == 1
        assert "" not in asked
        await drive.press("escape")
        assert drive.blocks_pane.view.count() > 1
        await leave(drive)
    assert saved_session.load_layout(source.folder).filters == {"jobs": "pull"}


class LayoutFakes:
    """The layout of panes over fakes."""

    def __init__(self, source: Scenario) -> None:
        panes = [
            SimpleNamespace(
                id=name,
                filter="",
                number=number,
                label=name.title(),
                set_filter=Mock(),
                set_class=Mock(),
                set_others=Mock(),
                apply_theme=Mock(),
            )
            for number, name in enumerate(("datasets", "blocks", "data", "jobs"), 1)
        ]
        self.grid = SimpleNamespace(panes=panes, set_tracks=Mock())
        self.fakes = Fakes(source, widgets={PaneGrid: self.grid})
        self.layout = PaneLayout(self.fakes.context)

    @property
    def host(self) -> FakeHost:
        """The host of the controller."""
        return self.fakes.host


def test_shares_stay_within_limits() -> None:
    shares = PaneShares()
    for _ in range(20):
        shares = resize_pane(shares, "datasets", 5, single=False)
    assert shares == PaneShares(left=100 - MIN_SHARE, upper=100 - MIN_SHARE)
    assert resize_pane(shares, "jobs", 5, single=False) == PaneShares(left=75, upper=75)
    assert resize_pane(PaneShares(), "blocks", 5, single=True) == PaneShares(single=35)


def test_growing_sets_the_tracks_of_the_grid(source: Scenario) -> None:
    fakes = LayoutFakes(source)
    fakes.layout.grow()
    assert fakes.layout.shares == PaneShares(left=65, upper=50)
    fakes.grid.set_tracks.assert_called_with("65fr 35fr", "50fr 50fr")
    fakes.fakes.state.focus_pane("jobs")
    fakes.layout.shrink()  # of the opposite corner: the first pane grows too
    fakes.grid.set_tracks.assert_called_with("70fr 30fr", "55fr 45fr")
    fakes.host.set_class(True, "-narrow")  # one column
    fakes.layout.grow()
    assert fakes.layout.shares == PaneShares(left=70, upper=55, single=35)
    fakes.grid.set_tracks.assert_called_with("", "35fr 65fr")
    fakes.layout.reset_sizes()
    assert fakes.layout.shares == PaneShares()
    fakes.grid.set_tracks.assert_called_with("", "")


def test_a_pane_does_not_grow_without_limit_or_while_it_is_alone(source: Scenario) -> None:
    fakes = LayoutFakes(source)
    for _ in range(10):
        fakes.layout.grow()
    assert fakes.host.last_notice == "the pane already has its maximum size"
    fakes.layout.toggle_zoom()
    before = fakes.layout.shares
    fakes.layout.shrink()
    assert "only one pane is shown" in fakes.host.last_notice
    assert fakes.layout.shares == before


def test_hidden_panes_are_named(source: Scenario) -> None:
    fakes = LayoutFakes(source)
    datasets, *_, jobs = fakes.grid.panes
    fakes.layout.arrange()
    datasets.set_others.assert_called_with(())
    fakes.host.set_class(True, "-narrow")
    fakes.layout.arrange()
    datasets.set_others.assert_called_with(["2 Blocks", "4 Jobs"])
    fakes.fakes.state.focus_pane("jobs")
    fakes.fakes.state.focus_pane("datasets")
    datasets.set_others.assert_called_with(["2 Blocks", "3 Data"])
    fakes.fakes.state.focus_pane("jobs")
    fakes.layout.toggle_zoom()
    jobs.set_others.assert_called_with(["1 Datasets", "2 Blocks", "3 Data"])
    datasets.set_others.assert_called_with(())


def test_sizes_zoom_and_filters_are_saved_and_restored(source: Scenario) -> None:
    layout = SavedLayout(
        zoomed=True, shares=PaneShares(left=70), filters={"jobs": "pull", "data": "x", "attic": "y"}
    )
    fakes = LayoutFakes(source)
    fakes.layout.restore(layout)
    assert fakes.host.has_class("-zoomed")
    *others, jobs = fakes.grid.panes
    jobs.set_filter.assert_called_once_with("pull")
    assert not any(pane.set_filter.called for pane in others)  # a search through rows is not started again
    jobs.filter = "pull"
    fakes.fakes.state.pane = "jobs"
    saved = fakes.layout.save(SavedLayout(recent=["zoom"]))
    assert saved == SavedLayout(
        pane="jobs", zoomed=True, shares=PaneShares(left=70), filters={"jobs": "pull"}, recent=["zoom"]
    )


def test_changes_are_saved_after_some_seconds_and_only_then(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes, path = LayoutFakes(source), saved_session.layout_path(source.folder)
    collected = [SavedLayout(pane="blocks")]
    monkeypatch.setattr(fakes.host, "collect_layout", lambda: collected[-1])
    delays: list[float] = []
    set_timer = fakes.host.set_timer
    monkeypatch.setattr(
        fakes.host, "set_timer", lambda delay, then: delays.append(delay) or set_timer(delay, then)
    )
    fakes.layout.save_soon()
    fakes.layout.save_soon()
    assert delays == [SAVE_SECONDS]
    assert not path.exists()
    fakes.host.timers[-1].callback()
    assert json.loads(path.read_text())["pane"] == "blocks"
    path.unlink()
    fakes.layout.save_soon()
    fakes.host.timers[-1].callback()
    assert len(delays) == 2
    assert not path.exists()  # nothing has changed
    collected.append(SavedLayout(pane="data"))
    fakes.layout.save_soon()
    fakes.host.timers[-1].callback()
    assert json.loads(path.read_text())["pane"] == "data"


def test_leaving_saves_the_layout_immediately(source: Scenario) -> None:
    fakes = LayoutFakes(source)
    source.changed(source.job(JobState.queued, "harbour.tides"))
    fakes.fakes.state.load_jobs(*source.jobs())
    fakes.layout.quit()
    assert saved_session.layout_path(source.folder).exists()
    assert fakes.host.terminal.left == ["pull harbour.tides"]


def test_a_folder_that_cannot_be_written_to_is_ignored(source: Scenario) -> None:
    fakes = LayoutFakes(source)
    shutil.rmtree(source.odf)
    source.odf.write_text("not a folder")
    fakes.layout.quit()
    assert fakes.host.terminal.left == []
    assert saved_session.load_layout(source.folder) == SavedLayout()


def test_invalid_fields_of_a_saved_layout_are_ignored(tmp_path: Path) -> None:
    path = saved_session.layout_path(tmp_path)
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


def test_a_later_theme_setting_overrides_the_chosen_theme() -> None:
    chosen = SavedLayout(theme="paper", theme_setting="auto")
    assert saved_session.effective_theme(chosen, "auto") == "paper"
    assert saved_session.effective_theme(chosen, "ember") == "ember"
    assert saved_session.effective_theme(SavedLayout(), "auto") == "auto"


def test_a_deleted_workspace_is_not_created_again(tmp_path: Path) -> None:
    saved_session.save_layout(tmp_path / "deleted", saved_session.encode_layout(SavedLayout()))
    assert not list(tmp_path.iterdir())


@pytest.mark.app
async def test_the_datasets_get_the_height_of_their_content(source: Scenario) -> None:
    async with driven(source, (120, 36)) as drive:
        graph, data = drive.datasets_pane, drive.data_pane
        assert graph.size.height == drive.graph.count() + 1  # with a scroll bar
        assert drive.blocks_pane.size.height > graph.size.height
        assert data.size.height > 2 * graph.size.height
        height = graph.size.height
        await drive.press("L")
        assert graph.size.height > height
        before = graph.region
        await drive.press("slash", "=air")  # nothing jumps during typing
        assert graph.region == before
        await drive.press("escape")
        # Sizes that the user chooses win.
        await drive.press("3", "plus")
        assert data.size.height > 34 - before.height - 2
        await drive.press("1", "plus", "plus", "plus", "plus", "plus")
        assert graph.size.height > 13
        assert graph.size.height == drive.blocks_pane.size.height
        await drive.press("equals_sign")
        assert graph.region == before


@pytest.mark.app
async def test_wide_screens_always_show_the_details(source: Scenario) -> None:
    async with driven(source, (200, 50)) as drive:
        assert drive.datasets_pane.card.display
        await drive.press("L")
        card = drive.datasets_pane.card
        assert card.display and card.region.x > drive.graph.region.x
        assert drive.graph.row is not None
        assert drive.graph.row.name in "".join(text for text, _ in card.source_lines[0])
        await drive.resize(160, 50)
        assert not card.display or card.region.x == drive.graph.region.x + 1
