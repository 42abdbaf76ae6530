"""Warnings and messages that left the screen: marks, counts, lists, and what was seen."""

from __future__ import annotations

import re

import pytest

from odf_engine.base.progress import JobWarning
from odf_engine.worker.protocol import JobState
from odf_tui.panes.jobs.view import JobsView
from odf_tui.state.notice_log import MAX_NOTICES
from odf_tui.widgets.status_bar import StatusLine
from tests.tui.conftest import Driven, driven, until
from tests.tui.scripted_worker import Scenario

pytestmark = pytest.mark.app
NAME = "harbour.tides"
WARNINGS = [
    JobWarning("late-rows", "3 rows are older than the watermark", 3, NAME),
    JobWarning("duplicate-rows", "2 duplicate rows of the same batch were dropped", 2, NAME),
]


def job_line(drive: Driven, job: str) -> str:
    """Return the line of a job in pane 4."""
    view = drive.bench.query_one(JobsView)
    at = next(at for at, listed in enumerate(view._jobs) if listed.id == job)
    return "".join(text for text, _ in view.spans(at))


async def test_warnings_are_marked_counted_and_listed_until_they_are_seen(source: Scenario) -> None:
    first = source.job(
        JobState.done, NAME, result='{"status": "updated", "records": 9, "blocks": 1}', warnings=WARNINGS
    )
    source.changed(first)
    source.changed(source.job(JobState.done, "port-haven.stations", "verify", result='{"valid": true}'))
    async with driven(source, (80, 24)) as drive:
        assert "! 2 warnings" in drive.status()
        assert job_line(drive, first.id).startswith("!✓ pull")
        assert job_line(drive, str(int(first.id) + 1)).startswith(" ✓ verify")
        assert "!✓" in next(line for line in drive.text().splitlines() if NAME in line)
        await drive.press("semicolon", "w")
        await drive.until(lambda: f"! 2024-03-11  {first.id} pull" in drive.text())
        assert "2 duplicate rows" in drive.text() and WARNINGS[1].text not in drive.text()
        await drive.press("j")
        await drive.until(lambda: WARNINGS[1].text in drive.text())  # in full below the list
        assert "warning" not in drive.status()
        await drive.press("enter")
        assert drive.pane == "jobs"
        selected = drive.jobs_pane.view.job
        assert selected is not None and selected.id == first.id
        # A warning of a job that ends now is new, those of the first job are not.
        later = source.job(
            JobState.done, "port-haven.stations", warnings=WARNINGS[:1], ended="2024-03-12T01:00:00Z"
        )
        source.link.tell(source.changed(later))
        await drive.until(lambda: "! 1 warning " in drive.status())
        await drive.press("q")
    async with driven(source, (80, 24)) as drive:  # what was seen is known after a restart
        assert "! 1 warning " in drive.status()
        await drive.press("semicolon", "w")
        await drive.until(lambda: "Warnings" in drive.text())
        lines = [line for line in drive.text().splitlines() if "3 rows are older" in line]
        assert ["! 2024" in line for line in lines] == [True, False, False]  # the last one is the full text


async def test_error_stays_beside_later_notices_until_messages_are_listed(source: Scenario) -> None:
    async with driven(source, (80, 24)) as drive:
        status = drive.bench.query_one(StatusLine)
        drive.bench.notice("pull harbour.tides: the disk is full", "bad")
        drive.bench.notice("reloaded")
        await drive.until(lambda: "the disk is full (! shows) · reloaded" in drive.text())
        status.clear_notice()
        await drive.until(lambda: "the disk is full (! shows)" in drive.text())
        assert "reloaded" not in drive.text() and "ready" in drive.text()
        drive.bench.notice("no block is selected", "warn")
        await drive.press("exclamation_mark")
        await drive.until(lambda: "Messages" in drive.text())
        lines = [line for line in drive.text().splitlines() if re.search(r"│(•|  ) ?\d{4}-\d\d-\d\d ", line)]
        assert ["• " in line for line in lines] == [False, False, True]
        assert "the disk is full" in lines[2]
        await drive.press("escape")
        await until(drive.pilot, lambda: "full" not in drive.text())
        for number in range(MAX_NOTICES):
            drive.bench.notice(f"notice {number}")
        assert drive.bench.notices.notices[0].text == "notice 0"
