"""Random keys and resizes do not break the workstation."""

from __future__ import annotations

import asyncio
import os
import random
import string
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from odf_engine.worker.protocol import JobState, LogLine, Progress
from odf_tui.actions import table
from tests.tui.conftest import Driven, driven
from tests.tui.scripted_worker import Scenario, open_haven

pytestmark = pytest.mark.app

PRESSES = 500
LEAVING = {"q", "ctrl+q", "ctrl+c"}
TYPED = [*string.ascii_letters, *string.digits, "space", "backspace", "minus", "full_stop", "less_than_sign"]
KEYS = sorted({*table.all_keys(), *TYPED} - LEAVING)
MOVES = ["j", "k", "h", "l", "1", "2", "3", "4", "tab"]
SIZES = [(80, 24), (160, 50), (40, 12), (120, 36), (20, 5), (200, 60)]

Step = str | tuple[int, int]

BAG: list[Step] = [*KEYS * 3, *MOVES * 12, *["escape", "enter"] * 20, *SIZES, *["news"] * 6]


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=int(os.environ.get("ODF_RANDOM_SESSIONS", "1")), deadline=None, derandomize=True,
          phases=[Phase.generate], database=None)  # fmt: skip
@pytest.mark.complete
def test_random_keys_and_resizes_do_not_crash(seed: int) -> None:
    """``ODF_RANDOM_SESSIONS`` sets the number of sessions; a failure reports its seed."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.chdir(folder)
        asyncio.run(session(Path(folder), random.Random(seed).choices(BAG, k=PRESSES)))


async def session(folder: Path, steps: list[Step]) -> None:
    """Run the steps. An exception of the workstation is raised by ``driven``."""
    source = open_haven(folder)
    source.story()
    async with driven(source, (80, 24)) as drive:
        for number, each in enumerate(steps):
            if isinstance(each, tuple):
                await drive.resize(*each)
            elif each == "news":
                send_events(source, number)
            else:
                await drive.pilot.press(each)
            if number % 50 == 49:
                await check_responsive(drive, steps[max(number - 49, 0) : number + 1])
        await check_responsive(drive, steps[-50:])


def send_events(source: Scenario, number: int) -> None:
    """Send events of a running job."""
    link = source.link
    running = [job for job in source.known if job.state is JobState.running]
    if not running:
        queued = [job for job in source.known if job.state is JobState.queued]
        running = [replace(job, state=JobState.running, started="2024-03-11T09:00:01Z") for job in queued[:1]]
    for job in running:
        done = replace(job, progress=Progress("read", rows=number * 100, total_rows=100_000))
        link.tell(source.changed(done))
        link.tell(LogLine(10_000 + number, job.id, "2024-03-11T09:00:02Z", "info", f"line {number}"))


async def check_responsive(drive: Driven, last: list[Step]) -> None:
    """Check that escape leads back to the workbench, and that keys still work."""
    await drive.resize(80, 24)
    for _ in range(12):
        if drive.app.screen is drive.bench and drive.bench.focused is None:
            break  # neither a dialog, nor the filter line or the SQL editor
        await drive.press("escape")
    assert drive.app.screen is drive.bench, f"escape does not lead back, after {last}"
    for key, pane in (("2", "blocks"), ("1", "datasets")):
        await drive.press(key)
        assert drive.pane == pane, f"{key} is not heard any more, after {last}"
    assert "1 Datasets" in drive.text(), f"the screen shows something else, after {last}"
