"""Text formatting, the job book, batches of events, and the health of datasets."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from odf_engine.api import Timestamp
from odf_engine.api import text as api_text
from odf_engine.jobs.base import JobRequest
from odf_engine.worker.protocol import Event, JobProgress, JobState, Request
from odf_tui.features.sql.sql_editor import state_spans
from odf_tui.panes.blocks.controller import parse_findings
from odf_tui.panes.datasets.dataset_filter import filter_graph
from odf_tui.services.jobs_client import EventBatcher
from odf_tui.state.job_book import JobBook, dataset_healths, job_glyph
from odf_tui.state.model import Health
from odf_tui.text import format
from odf_tui.text.format import wrapped
from odf_tui.text.job_text import job_outcome, verification_spans
from odf_tui.widgets.status_bar import format_worker
from tests.tui.haven import HAVEN, dataset, did
from tests.tui.scripted_worker import Scenario, open_haven, progress
from tests.waiting import wait_until_async


def test_short_counts_take_at_most_five_cells() -> None:
    counts = (9_999, 10_000, 99_949, 99_950, 999_499, 999_500, 99_950_000, 10**13)
    assert [format.format_count_short(count) for count in counts] == [
        "9999", "10.0k", "99.9k", "100k", "999k", "1.0M", "100M", "10.0T",
    ]  # fmt: skip


def test_numbers_are_formatted() -> None:
    assert [api_text.format_count(n) for n in (None, 7, 12480)] == ["", "7", "12 480"]
    assert [api_text.format_bytes(n) for n in (None, 0, 999, 1000, 1_234_567, 10**13)] == [
        "", "0 B", "999 B", "1.0 kB", "1.2 MB", "10.0 TB",
    ]  # fmt: skip
    assert [format.format_duration(s) for s in (0.04, 3.24, 42, 60, 64, 3600, 3700)] == [
        "40 ms",
        "3.2 s",
        "42 s",
        "1 m 00 s",
        "1 m 04 s",
        "1 h 00 m",
        "1 h 01 m",
    ]
    assert api_text.format_time("2024-03-01T00:00:00Z") == "2024-03-01"
    assert api_text.format_time("2024-03-01T14:02:33.120Z") == "2024-03-01 14:02"
    assert api_text.format_time(None) == ""
    assert api_text.format_zoned_time("2024-03-01T00:00:00Z") == "2024-03-01 00:00 UTC"


def test_times_are_formatted_in_the_configured_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_zone", "_zone_label"):
        monkeypatch.setattr(api_text, name, getattr(api_text, name))  # restored after the test
    api_text.set_timezone("America/New_York")
    assert api_text.zone_label() == "New York"
    assert api_text.format_time("2024-03-01T05:00:00.000Z") == "2024-03-01"
    assert api_text.format_time_seconds("2024-07-01T10:11:12.5Z") == "2024-07-01 06:11:12"
    assert api_text.format_clock("2024-07-01T10:11:12Z") == "06:11:12"
    assert api_text.format_zoned_time("2024-07-01T10:11:12Z") == "2024-07-01 06:11 New York"
    assert api_text.format_time("2024-07-01") == "2024-07-01"  # not a time
    assert format.format_summary("+3 rows, watermark → 2024-03-02, state unchanged") == (
        "+3 rows, watermark → 2024-03-01 19:00 New York, state unchanged"
    )
    assert format.format_summary("licence CC0-1.0") == "licence CC0-1.0"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        api_text.set_timezone("local")
        assert api_text.format_zoned_time("2024-07-01T20:11:12Z") == "2024-07-02 05:11 local"
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


def test_age_is_relative_for_a_week_and_a_day_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Timestamp.parse("2024-03-10T12:00:00Z")
    monkeypatch.setattr(Timestamp, "now", lambda: now)
    ages = {
        "2024-03-10T11:59:01Z": "just now",
        "2024-03-10T11:58:00Z": "2 min ago",
        "2024-03-10T11:00:00Z": "1 h ago",
        "2024-03-09T12:00:00Z": "1 day ago",
        "2024-03-03T12:00:01Z": "6 days ago",
        "2024-03-03T12:00:00Z": "2024-03-03",
        "2024-03-10T12:05:00Z": "2024-03-10",
        "": "",
    }
    assert {time: format.format_age(time) for time in ages} == ages
    assert max(map(len, ages.values())) <= format.AGE_WIDTH


@given(st.text())
def test_control_characters_are_never_printed(text: str) -> None:
    shown = api_text.printable(text)
    assert not any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in shown)
    assert not set(shown) & set(
        "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


@given(st.text(), st.integers(0, 40))
def test_clipped_text_has_its_width(text: str, width: int) -> None:
    assert cell_len(format.fit_width(api_text.printable(text), width)) == width


def test_shortened_names_keep_both_ends() -> None:
    assert format.ellipsize_middle("port-haven.air-readings", 12) == "port-h…dings"
    assert format.ellipsize_middle("short", 12) == "short"
    assert format.shorten_name("port-haven.air", 14) == "port-haven.air"
    assert format.shorten_name("port-haven.smoke-and-breath", 18) == "…smoke-and-breath"
    assert format.shorten_name("port-haven.smoke-and-breath", 12) == "port-h…reath"
    assert format.shorten_name("SELECT a.b FROM port-haven.air-…", 20) == "SELECT a.b FROM por…"
    assert format.shorten_name("SELECT 1", 20) == "SELECT 1"


def test_lines_are_wrapped_between_words() -> None:
    pieces = wrapped([("09:00:01 ", "muted"), ("one two three four", "")], 20)
    assert [text for _, text in [("", "".join(part for part, _ in piece)) for piece in pieces]] == [
        "09:00:01 one two ",
        "         three four",
    ]
    assert wrapped([("a", ""), ("b", "")], 20) == [[("a", ""), ("b", "")]]
    # Lines are broken between spans too, and indented; not before a word longer than a line.
    query = [("   q  ", "muted"), ("  ", ""), ("SELECT", "key"), (" one, two", ""), (" FROM", "key")]
    assert ["".join(text for text, _ in piece) for piece in wrapped(query, 20)] == [
        "   q    SELECT one, ",
        "        two FROM",
    ]
    broken = wrapped([("", ""), ("id:", "name"), (" " + "f" * 40, "")], 20)
    assert [len(piece[-1][0]) for piece in broken] == [17, 20, 4]


def test_dataset_health_follows_jobs_and_verifications(tmp_path: Path) -> None:
    source = open_haven(tmp_path)
    source.story()
    book = JobBook()
    book.load(*source.jobs())
    found = {row.name: dataset_healths(source.rows_, book)[row.id] for row in source.rows_}
    assert found == {
        "port-haven.air-readings": Health.current,
        "port-haven.stations": Health.current,
        "port-haven.clinic-visits": Health.current,
        "port-haven.clinics": Health.failed,
        "air-by-day": Health.current,
        "visits-by-day": Health.new,
        "smoke-and-breath": Health.new,
        "harbour.tides": Health.current,
    }
    stale = [replace(row, behind=row.derivative) for row in source.rows_]
    assert dataset_healths(stale, book)[did("air-by-day")] is Health.stale
    finding = {"kind": "slice-size", "block": "f1620", "message": "too short"}
    result = json.dumps({"valid": False, "findings": [finding, finding]})
    wrong = source.job(JobState.done, "harbour.tides", "verify", result=result)
    source.changed(wrong)
    book.load(*source.jobs())
    assert dataset_healths(source.rows_, book)[wrong.dataset] is Health.invalid
    assert job_glyph(wrong) == ("≠", "bad")
    assert job_outcome(wrong) == ("2 findings", "bad")


def test_every_health_and_state_has_its_own_glyph(tmp_path: Path) -> None:
    assert len({health.glyph for health in Health}) == len(Health)
    source = open_haven(tmp_path)
    states = [job_glyph(source.job(state, "a"))[0] for state in JobState]
    assert len(set(states)) == len(JobState)


def test_events_delivered_twice_are_applied_once(tmp_path: Path) -> None:
    source = open_haven(tmp_path)
    job = source.job(JobState.running, "harbour.tides")
    events: list[Event] = [
        source.changed(job),
        source.line(job.id, "one"),
        source.committed(job.id, job.dataset, 5),
    ]
    book = JobBook()
    book.load_log(job.id, [])
    changes = book.apply(events)
    assert changes.datasets == {job.dataset}
    book.apply(events)
    assert len(book.logs[job.id]) == 2
    assert book.last_seq == 3
    book.apply([JobProgress(job.id, progress(10))])
    assert book.jobs[job.id].progress.rows == 10
    done = replace(job, state=JobState.done)
    changes = book.apply([source.changed(done)])
    assert changes.ended == [done]
    assert book.active_job_of(job.dataset) is None
    book.apply([*events, JobProgress(job.id, progress(99))])  # outdated events
    assert book.jobs[job.id] == done


async def test_few_batches_contain_all_events() -> None:
    sent: list[list[Event]] = []
    batches = EventBatcher(sent.append, seconds=3600)
    for number in range(200):
        batches.add(JobProgress("1", progress(number)))
        await asyncio.sleep(0)
    await wait_until_async(lambda: sent)
    assert len(sent) == 1  # the others wait for an hour
    batches.flush()
    assert len(sent) == 2
    numbers = [event.progress.rows for batch in sent for event in batch]  # type: ignore[union-attr]
    assert numbers == list(range(200))
    batches = EventBatcher(sent.append, seconds=0.001)
    for count in (3, 4):
        batches.add(JobProgress("1", progress(count)))
        await wait_until_async(lambda count=count: len(sent) == count)


def test_a_filtered_graph_bridges_hidden_datasets() -> None:
    rows = [dataset("a1"), dataset("hidden", "a1"), dataset("a2", "hidden"), dataset("other")]
    shown, edges = filter_graph(rows, "A")
    assert [row.name for row in shown] == ["a1", "a2"]
    assert edges == [(did("a1"), did("a2"))]
    assert len(filter_graph(HAVEN, "")[1]) == 5


def test_worker_state_is_described_as_text(tmp_path: Path) -> None:
    status = open_haven(tmp_path).status
    assert format_worker("starting", None)[0] == "◦ starting the worker…"
    assert format_worker("connected", replace(status, spark="starting"))[0] == "◦ starting Spark…"
    assert format_worker("connected", status)[0] == "● ready"
    assert "no Java" in format_worker("connected", replace(status, spark="failed", spark_detail="no Java"))[0]
    assert format_worker("gone", status)[1] == "bad"


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"rows": "many"}', '{"valid": "yes", "status": []}'])
@pytest.mark.parametrize("request_kind", get_args(Request), ids=lambda kind: kind.__name__)
def test_a_result_of_another_version_does_not_break_the_screen(
    source: Scenario, request_kind: type[JobRequest[object]], text: str
) -> None:
    kind = str(request_kind.__struct_config__.tag)
    job = source.job(JobState.done, "harbour.tides", kind, result=text)
    source.changed(job)
    book = JobBook()
    book.load(*source.jobs())
    assert job_outcome(job)[0]
    assert len(job_glyph(job)) == 2
    assert verification_spans(job) == []
    assert parse_findings(text) == ()
    assert state_spans(job)
    assert dataset_healths(source.rows_, book)[job.dataset] is not Health.invalid
