"""The dialog of branches, with a real worker. Spark is not required."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.base.config import UiConfig
from odf_engine.chain.references import create_branch, read_branch
from odf_engine.checks.definition import CheckDefinition
from odf_engine.identity.multiformats import Multihash
from odf_engine.worker.client import Client, WorkerLost
from odf_engine.workspace.documents.store import Documents
from odf_engine.workspace.workspace import Workspace
from odf_tui.app import Workstation
from odf_tui.features.branches import BranchesScreen
from odf_tui.features.dataset_diff import DifferenceScreen
from odf_tui.features.provenance.trace_screen import TraceScreen
from odf_tui.panes.blocks.view import BlocksPane
from odf_tui.widgets.dialogs import ConfirmDialog
from odf_tui.widgets.line_view import MARK
from tests.sync.builders import add_slices, describe, make_derivative, make_root, read_input
from tests.tui.conftest import Driven

pytestmark = pytest.mark.app

CHECK = b"""\
headers: {name: named}
spec:
  target: numbers
  rules: [{kind: NotNull, columns: [city]}]
"""


class Source(OpenWorkspace):
    """A workspace that does not depend on the locale of the test."""

    ui: UiConfig = UiConfig(ascii="never", theme="tide")  # type: ignore[assignment]
    links: tuple[Any, ...] = (None,)


@pytest.fixture
async def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workspace]:
    """A dataset with a check, and one that reads it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    workspace = Workspace.init(tmp_path / "ws")
    entry = make_root(workspace, slices=2)
    make_derivative(workspace, entry, "totals")
    Documents(workspace.odf, CheckDefinition).write(CHECK, "check.yaml")
    yield workspace
    try:
        client = await Client.connect(workspace.folder, start=False)
    except WorkerLost:
        return
    await client.stop()


@asynccontextmanager
async def opened(
    workspace: Workspace, size: tuple[int, int] = (100, 30), name: str = "numbers"
) -> AsyncIterator[Driven]:
    """Open a workstation with the dialog."""
    source = Source(workspace)
    app = Workstation(source)
    async with app.run_test(size=size) as pilot:
        drive = Driven(app, pilot, source)  # type: ignore[arg-type]
        await drive.until(lambda: app.bench.state.worker == "connected")
        await drive.press("colon", f"={name}", "enter", "comma", "b")
        await drive.until(lambda: isinstance(app.screen, BranchesScreen))
        yield drive


def shown_head(drive: Driven) -> Multihash | None:
    """Return the newest block of the branch under the cursor, as shown."""
    assert isinstance(drive.app.screen, BranchesScreen)
    branch = drive.app.screen.list.branch
    return branch.head if branch else None


async def test_branch_is_created_checked_and_promoted_within_ten_keys(workspace: Workspace) -> None:
    entry = workspace.resolve("numbers")
    async with opened(workspace, (80, 24)) as drive:
        await drive.until(lambda: "no branches: n creates one" in drive.text())
        await drive.press("n", "enter")
        await drive.until(lambda: "created review" in drive.text())
        branch = entry.on_branch("review")
        add_slices(branch, 2, city="Chur")  # as a pull does
        await drive.press("c")
        await drive.until(lambda: "check of review: 1 rule passed" in drive.text())
        await drive.until(lambda: shown_head(drive) == branch.dataset.head())
        await drive.press("P")
        await drive.until(lambda: "numbers gets 2 blocks with 6 rows." in drive.text())
        assert "Their next pulls read them: totals." in drive.text()
        await drive.press("y")  # with ", b": eight keys
        await drive.until(lambda: "promoted review: 2 blocks with 6 rows" in drive.text())
        assert entry.dataset.head() == branch.dataset.head()
        await drive.until(lambda: "up to date" in drive.text())
        await drive.press("P")
        await drive.until(lambda: "nothing to promote" in drive.text())


async def test_branch_that_moved_during_the_question_is_not_promoted(workspace: Workspace) -> None:
    entry = workspace.resolve("numbers")
    head = entry.dataset.state().head
    create_branch(entry.dataset, "staging", head)
    branch = entry.on_branch("staging")
    add_slices(branch)
    async with opened(workspace) as drive:
        await drive.until(lambda: "staging" in drive.text())
        add_slices(branch)  # after the list was read
        await drive.press("j", "P")
        await drive.until(lambda: "'staging' has moved since it was read" in drive.text())
        assert isinstance(drive.app.screen, BranchesScreen)
        await drive.until(lambda: shown_head(drive) == branch.dataset.head())
        await drive.press("P")
        await drive.until(lambda: isinstance(drive.app.screen, ConfirmDialog))
        add_slices(branch)
        await drive.press("y")
        await drive.until(lambda: shown_head(drive) == branch.dataset.head())
        assert "'staging' has moved since it was read" in drive.text()
        assert entry.dataset.head() == head

        # After a commit to the head, the dialog names the keys that help. One of them asks first.
        describe(entry, "newer")
        await drive.press("P")
        await drive.until(lambda: "the head has 1 block that it lacks" in drive.text())
        await drive.until(lambda: "diverged" in drive.text())
        await drive.press("f")
        await drive.until(lambda: "Discards 3 blocks with 9 rows" in drive.text())
        await drive.press("n")
        await drive.until(lambda: isinstance(drive.app.screen, BranchesScreen))
        assert read_branch(entry.dataset, "staging").ahead == 3
        await drive.press("f", "y")
        await drive.until(lambda: "staging is at the head" in drive.text())


async def test_promotion_checks_inputs_before_asking(workspace: Workspace) -> None:
    entry, source = workspace.resolve("totals"), workspace.resolve("numbers")
    for dataset in (entry.dataset, source.dataset):
        create_branch(dataset, "next", dataset.state().head)
    add_slices(source.on_branch("next"))
    read_input(entry.on_branch("next"), source.on_branch("next"))
    async with opened(workspace, (80, 24), "totals") as drive:
        await drive.until(lambda: " next" in drive.text())
        await drive.press("j", "P")
        await drive.until(lambda: "odf branch numbers --promote next" in drive.text())
        assert "derived from blocks that the head of numbers lacks" in " ".join(drive.text().split())
        assert isinstance(drive.app.screen, BranchesScreen)


async def test_branch_is_compared_renamed_shown_and_deleted(workspace: Workspace) -> None:
    entry = workspace.resolve("numbers")
    create_branch(entry.dataset, "staging", entry.dataset.state().head)
    add_slices(entry.on_branch("staging"), city="Chur")
    async with opened(workspace) as drive:
        await drive.until(lambda: "staging" in drive.text())
        await drive.press("x")
        await drive.until(lambda: "this is the head, not a branch" in drive.text())
        await drive.press("j", "d")
        await drive.until(lambda: isinstance(drive.app.screen, DifferenceScreen))
        await drive.until(lambda: "Chur" in drive.text())
        await drive.press("w")
        await drive.until(lambda: isinstance(drive.app.screen, TraceScreen))
        await drive.until(lambda: "Provenance of row 6 of numbers@staging" in drive.text())
        await drive.until(lambda: "unknown source" in drive.text())
        await drive.press("escape")
        await drive.until(lambda: isinstance(drive.app.screen, DifferenceScreen))
        await drive.press("escape")
        await drive.until(lambda: isinstance(drive.app.screen, BranchesScreen))
        await drive.until(lambda: "newest block" in drive.text())  # the cursor is on the branch again

        # A name that is not valid is explained in the form, which stays open.
        await drive.press("r", "=before-x", "enter")
        await drive.until(lambda: "'before-x' is not a valid name" in drive.text())
        await drive.press("=next", "enter")
        await drive.until(lambda: "renamed staging to next" in drive.text())
        await drive.press("n", "=other", "down", "=99", "enter")
        await drive.until(lambda: "block 99 not found" in drive.text())
        await drive.press("escape")

        await drive.press("enter")
        blocks = drive.app.bench.query_one(BlocksPane)
        await drive.until(lambda: "numbers · branch next" in str(blocks._border_title))
        assert drive.pane == "blocks"
        await drive.press("B")
        await drive.until(lambda: "│ next" in drive.text())
        await drive.press("j", "x")
        await drive.until(lambda: "Only the branch has 1 block with 3 rows" in drive.text())
        await drive.press("n")
        await drive.press("t", *"cited", "enter")
        await drive.until(lambda: "tagged numbers@cited" in drive.text())
        tag = entry.dataset.branch("cited").head()
        assert tag == entry.dataset.branch("next").head()
        await drive.until(lambda: f"{MARK}cited" in drive.text())
        await drive.press("p")
        await drive.until(lambda: "'cited' is a tag, which cannot move" in drive.text())
        await drive.press("k")
        await drive.until(lambda: f"{MARK}next" in drive.text())
        await drive.press("x")
        await drive.until(lambda: "Delete numbers@next?" in drive.text())
        await drive.press("y")
        await drive.until(lambda: "deleted next" in drive.text())
        assert (entry.dataset.branch_names(), entry.dataset.tag_names()) == ([], ["cited"])
        await drive.press("j")
        await drive.until(lambda: f"{MARK}cited" in drive.text())
        await drive.press("x")
        await drive.until(lambda: "Delete numbers@cited?" in drive.text())
        await drive.press("y")
        await drive.until(lambda: "deleted cited" in drive.text())
        assert entry.dataset.tag_names() == []
