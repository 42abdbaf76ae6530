"""Remotes on the screen: marks, words and filters, push and pull, and what is done about two histories.

Text captures are ``tests/golden/share-*.txt``; ``ODF_UPDATE_GOLDEN=1`` writes them anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.screen import Screen

from odf_engine.coordinator.protocol import (
    Compare,
    Failure,
    Job,
    JobProgress,
    JobState,
    Progress,
    Pull,
    Push,
    Rate,
    Sample,
    Samples,
)
from odf_tui.gateway.protocol import NamedUrl
from odf_tui.panes.datasets.dataset_filter import count_terms, matches_filter, parse_filter
from odf_tui.state.job_book import JobBook, dataset_healths, job_glyph
from odf_tui.state.model import DatasetRow, Health
from odf_tui.text.job_text import JobRates, job_outcome, progress_text
from odf_tui.text.remotes import Relation, Remote, remote_badge, remote_badge_style, remote_text, short_url
from odf_tui.theming import ascii_fallback as few
from odf_tui.widgets.dialogs import (
    ConfirmDialog,
    DecisionDialog,
    PickerDialog,
    PromptDialog,
    TypedConfirmation,
)
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource, dataset

pytestmark = pytest.mark.app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SIZES = [(80, 24), (160, 50)]
HOSPITAL = "https://hospital.example/data/visits/"
BACKUP = "file:///srv/backup/visits/"
AT = "2024-03-11T08:59:00Z"


def compare(drive: Driven, name: str) -> None:
    """Compares the screen without its two last lines with its golden text."""
    size = drive.app.size
    path = GOLDEN / f"share-{size.width}x{size.height}-{name}.txt"
    text = "\n".join(drive.text().splitlines()[:-2]) + "\n"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def hospital(relation: Relation = "behind", ours: int = 0, theirs: int = 3, **more: object) -> Remote:
    """Where visits come from."""
    known = {
        "url": HOSPITAL,
        "label": "hospital/visits",
        "pull": True,
        "at": AT,
        "their_head": "f1620abcdef12",
    }
    return Remote(**{**known, "relation": relation, "ours": ours, "theirs": theirs, **more})  # type: ignore[arg-type]


def backup(relation: Relation = "ahead", ours: int = 2, theirs: int = 0) -> Remote:
    """Where they go to."""
    return Remote(
        url=BACKUP,
        label="backup/visits",
        push=True,
        at=AT,
        relation=relation,
        ours=ours,
        theirs=theirs,
    )


def with_remotes(source: FakeSource, *remotes: Remote, **more: object) -> DatasetRow:
    """The dataset visits, and others that have none."""
    row = dataset("visits", records=900, remotes=remotes, **more)
    source.rows_ = [row, dataset("visits-by-day", "visits", records=9), dataset("tides", records=96)]
    source.places = [
        NamedUrl("hospital", "https://hospital.example/data/"),
        NamedUrl("backup", "file:///srv/backup/"),
        NamedUrl("lake", "s3://lake/odf/"),
    ]
    return row


async def until_asked(drive: Driven, *keys: str, by: type[Screen[Any]]) -> None:
    """Presses keys after which something is asked by a dialog."""
    for key in keys:
        before = drive.app.screen
        await drive.press(key)
        await drive.until(lambda before=before: drive.app.screen not in (before, drive.bench))
        await drive.settle()
    assert isinstance(drive.app.screen, by), drive.text()


async def on_visits(drive: Driven) -> None:
    drive.bench.context.navigator.select_dataset("did:odf:visits")
    await drive.settle()


# --- Marks and words ---


def test_marks_say_what_is_to_be_done_without_colours() -> None:
    assert remote_badge(()) == ""
    assert remote_badge([hospital()]) == "⇣3"
    assert remote_badge([backup()]) == "⇡2"
    assert remote_badge([hospital("equal", 0, 0), backup("equal", 0, 0)]) == "⇣⇡"
    assert remote_badge([hospital(), backup()]) == "⇣3⇡2"
    assert remote_badge([hospital("diverged", 2, 3)]) == "÷⇣3"
    assert remote_badge([backup("diverged", 2, 1)]) == "÷⇣1⇡2"
    assert remote_badge([backup("new", 7)]) == "⇡7"
    assert remote_badge([hospital("ahead", 5, 0)]) == "⇣"  # nobody pushes to where it comes from
    assert remote_badge([hospital("behind", 0, 123_456)]) == "⇣123k"
    remotes = (hospital("diverged", 2, 3), backup(), hospital("equal", 0, 0))
    assert [remote_badge_style([each]) for each in remotes] == [
        "bad", "warn", "muted",
    ]  # fmt: skip
    shown = [
        few.with_ascii(remote_badge([each])) for each in (hospital(), backup(), hospital("diverged", 2, 3))
    ]
    assert shown == ["<3", "^2", "%<3"]


@given(
    st.lists(
        st.builds(
            lambda relation, ours, theirs, pull: Remote(
                url="u", label="l", pull=pull, push=not pull, relation=relation, ours=ours, theirs=theirs
            ),
            st.sampled_from(get_args(Relation)),
            st.integers(1, 10**9),
            st.integers(1, 10**9),
            st.booleans(),
        ),
        max_size=4,
    )
)
@settings(max_examples=60, deadline=None)
def test_a_mark_is_short_and_there_whenever_there_are_remotes(remotes: list[Remote]) -> None:
    found = remote_badge(remotes)
    assert bool(found) == bool(remotes)
    assert len(found) <= 13
    assert ("÷" in found) == any(each.relation == "diverged" for each in remotes)


def test_words_of_remotes() -> None:
    assert remote_text(hospital()) == "hospital/visits · 3 behind · looked at 2024-03-11 08:59"
    assert "2 ahead" in remote_text(backup())
    assert "diverged: 2 here, 3 there" in remote_text(hospital("diverged", 2, 3))
    assert "not looked at yet · m looks" in remote_text(Remote(url=BACKUP, label="backup/visits"))
    assert "changed here since" in remote_text(hospital("", 0, 0))
    assert short_url(BACKUP) == "backup/visits"
    assert short_url("odf+https://me@host.example:8443/a/b/visits/") == "host.example:8443/visits"


def test_filters_know_remotes() -> None:
    row = dataset("visits", remotes=(hospital(), backup("equal", 0, 0)))
    other = dataset("tides")

    def found(text: str) -> list[str]:
        return [
            each.name for each in (row, other) if matches_filter(parse_filter(text), each, Health.current)
        ]

    assert found("remote:behind") == found("remote:hosp") == found("remote:from") == ["visits"]
    assert found("remote:ahead,diverged") == []
    assert found("remote:none") == found("!remote:to") == ["tides"]
    assert ("remote", "behind", 1) in count_terms([row, other], {})


def test_health_follows_where_it_comes_from() -> None:
    rows = [
        dataset("a", records=1, remotes=(hospital(),)),
        dataset("b", records=1, remotes=(hospital("diverged", 1, 1),)),
        dataset("c", records=1, remotes=(backup("diverged", 1, 1),)),
    ]
    assert list(dataset_healths(rows, JobBook()).values()) == [Health.stale, Health.diverged, Health.current]


# --- What jobs say ---


def job(kind: str, result: dict[str, object] | None = None, **more: object) -> Job:
    known = {"state": JobState.done, "created": AT, "started": AT, "ended": "2024-03-11T08:59:04Z"}
    text = None if result is None else json.dumps(result)
    return Job("1", kind, "visits", "did:odf:visits", result=text, **{**known, **more})  # type: ignore[arg-type]


def test_what_jobs_that_share_did() -> None:
    pushed = {"status": "updated", "url": BACKUP, "blocks": 12, "bytes": 34_100_000, "objects": 5}
    assert job_outcome(job("push", pushed)) == ("pushed 12 blocks, 34.1 MB to backup/visits", "good")
    assert (
        job_outcome(job("push", {"status": "up-to-date", "url": BACKUP}))[0] == "backup/visits is up to date"
    )
    pulled = {"status": "updated", "url": HOSPITAL, "blocks": 1, "records": 1200}
    assert job_outcome(job("pull", pulled))[0] == "+1 200 rows in 1 block from hospital.example/visits"
    ahead = {"status": "up-to-date", "url": HOSPITAL, "ahead": 2}
    assert job_outcome(job("pull", ahead))[0] == "up to date, 2 blocks ahead of hospital.example/visits"
    assert job_outcome(job("pull", {"status": "updated", "blocks": 1, "records": 3}))[0] == "+3 rows"
    seen = [{"url": HOSPITAL, "relation": "behind", "theirs": 3, "ours": 0}]
    problem = [{"url": BACKUP, "message": "cannot be reached"}]
    assert job_outcome(job("compare", {"seen": seen, "problems": []})) == (
        "3 behind · hospital.example/visits", "good",
    )  # fmt: skip
    words, how = job_outcome(job("compare", {"seen": seen, "problems": problem}))
    assert words.endswith("backup/visits: cannot be reached")
    assert how == "warn"
    assert job_outcome(job("search", {"datasets": [{}] * 2, "problems": []}))[0] == "2 datasets"
    assert job_outcome(job("search", {"datasets": [], "problems": [{"repository": "lake"}]}))[1] == "warn"
    assert job_outcome(job("compare", {}))[0] == "there is nothing to look at"
    glyphs = [job_glyph(job("compare", {"seen": found, "problems": problem}))[0] for found in (seen, [])]
    assert glyphs == ["✓", "↯"]  # what nobody answered is no success
    running = job("push", state=JobState.running, progress=Progress("compare", files=8, total_files=10))
    assert "8 of 10 blocks" in progress_text(running, JobRates(), 80)


async def test_bytes_and_rate_of_a_push_in_the_graph_the_card_and_pane_4(source: FakeSource) -> None:
    with_remotes(source, backup())
    async with driven(source, (160, 50)) as drive:
        await on_visits(drive)
        running = source.job(JobState.running, "visits", "push", ended=None)
        rate = Rate(rows=0, bytes=12_000_000)
        samples = [Sample(float(at), {running.id: rate}) for at in range(1, 10)]
        moved = Progress("send", bytes=42_000_000, total_bytes=100_000_000, files=4, total_files=9)
        source.link.tell(source.changed(running), Samples(samples), JobProgress(running.id, moved))
        await drive.until(lambda: drive.book.active_jobs())
        drive.bench.state.second.send(None)
        await drive.settle()
        text = drive.text()
        assert "MB of 100.0 MB · 12.0 MB/s" in text  # the card
        assert "send · 42%" in text
        assert "~5 s left" in text
        await drive.press("z")
        assert "visits ⇡2 ▸ 42% · 12.0 MB/s" in drive.text()
        await drive.press("4")
        assert "42.0 MB of 100.0 MB · 12.0 MB/s" in drive.text()
        await drive.press("z", "1")
        done = {"status": "updated", "url": BACKUP, "blocks": 2, "bytes": 100_000_000}
        ended = replace(running, state=JobState.done, ended=AT, result=json.dumps(done))
        source.link.tell(source.changed(ended))
        await drive.until(lambda: not drive.book.active_jobs())
        assert "pushed 2 blocks, 100.0 MB to backup/visits" in drive.hint()
        assert "MB/s" not in drive.text().split("4 Jobs")[0]


# --- What is done ---


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "160x50"])
async def test_pictures_of_remotes(source: FakeSource, size: tuple[int, int]) -> None:
    with_remotes(source, hospital(), backup())
    async with driven(source, size) as drive:
        await on_visits(drive)
        await drive.press("z")
        assert "visits ⇣3⇡2" in drive.text()
        compare(drive, "graph")
        await drive.press("L")
        compare(drive, "list")


async def test_p_takes_over_what_is_new_elsewhere_without_trust(source: FakeSource) -> None:
    row = with_remotes(source, hospital(), standing="not trusted", polls=True)
    async with driven(source) as drive:
        await on_visits(drive)
        assert "3 behind" in " ".join(drive.text().split())
        await drive.press("p")
        assert source.link.submitted[-1] == Pull(dataset=row.id, url=HOSPITAL)
        assert "from hospital/visits" in drive.hint()
        source.known.clear()
        await drive.press("r", "P")
        pulls = [each for each in source.link.submitted[1:] if isinstance(each, Pull)]
        assert Pull(dataset=row.id, url=HOSPITAL) in pulls
        assert "not trusted" not in drive.hint()


async def test_p_asks_which_of_several_places(source: FakeSource) -> None:
    other = replace(hospital("equal", 0, 0), url="ipns://k51/visits/", label="ipns://k51/visits/")
    row = with_remotes(source, hospital(), other)
    async with driven(source) as drive:
        await on_visits(drive)
        await until_asked(drive, "p", by=PickerDialog)
        await drive.press("2")
        assert source.link.submitted == [Pull(dataset=row.id, url=other.url)]


async def test_pull_all_leaves_out_what_went_apart(source: FakeSource) -> None:
    with_remotes(source, hospital("diverged", 2, 3))
    async with driven(source) as drive:
        await drive.press("P")
        assert "1 went apart from elsewhere: V shows how" in drive.hint()
        assert "did:odf:visits" not in [each.dataset for each in source.link.submitted]


async def test_push_goes_where_it_went_or_asks(source: FakeSource) -> None:
    row = with_remotes(source)
    async with driven(source) as drive:
        await on_visits(drive)
        await until_asked(drive, "u", by=PickerDialog)
        text = drive.text()
        assert "backup/visits" in text
        assert "lake/visits" in text
        assert "hospital" not in text  # there one can only read
        await drive.press("2")
        assert source.link.submitted == [Push(dataset=row.id, url="s3://lake/odf/visits/")]
        # A typed address: what is wrong with it is said there.
        source.known.clear()
        await drive.press("r")
        await until_asked(drive, "W", "a", by=PromptDialog)
        for wrong, why in (
            ("ftp://x/y", "no address"),
            ("nowhere/visits", "no repository"),
            (HOSPITAL, "only read"),
        ):
            await drive.press(f"={wrong}", "enter")
            assert why in drive.text()
        await drive.press("=odf+https://host.example/visits", "enter")
        await drive.until(lambda: len(source.link.submitted) == 2)
        assert source.link.submitted[-1] == Push(dataset=row.id, url="odf+https://host.example/visits/")
        source.rows_[0] = replace(row, remotes=(backup(),))
        source.known.clear()
        await drive.press("r", "u")
        assert source.link.submitted[-1] == Push(dataset=row.id, url=BACKUP)
        assert drive.app.screen is drive.bench


async def test_looking_and_detaching(source: FakeSource) -> None:
    row = with_remotes(source, hospital())
    async with driven(source) as drive:
        await on_visits(drive)
        await drive.press("m")
        assert source.link.submitted == [Compare(dataset=row.id)]
        await drive.press("M")
        assert len(source.link.submitted) == 1  # it is being looked at already
        await until_asked(drive, "X", by=ConfirmDialog)
        await drive.press("n")
        assert source.detached == []
        await until_asked(drive, "X", by=ConfirmDialog)
        assert "From then on p makes it here" in drive.text()
        await drive.press("y")
        assert source.detached == [(row.id, HOSPITAL)]
        drive.bench.context.navigator.select_dataset("did:odf:tides")
        await drive.press("m")
        assert "has no remote yet: u pushes it" in drive.hint()


# --- Two histories ---


async def test_both_histories_and_taking_theirs(source: FakeSource) -> None:
    row = with_remotes(source, hospital("diverged", 2, 3, common="f1620" + "04" * 32))
    async with driven(source, (80, 24)) as drive:
        await on_visits(drive)
        await until_asked(drive, "V", by=DecisionDialog)
        compare(drive, "histories")
        assert "push ours" not in drive.text()  # it cannot be written there
        await drive.press("o")
        assert isinstance(drive.app.screen, DecisionDialog)
        await until_asked(drive, "t", by=ConfirmDialog)
        await drive.press("n")
        assert source.link.submitted == []
        await until_asked(drive, "V", "t", by=ConfirmDialog)
        await drive.press("y")
        assert source.link.submitted == [Pull(dataset=row.id, url=HOSPITAL, force=True)]


async def test_pushing_over_theirs_takes_the_name(source: FakeSource) -> None:
    source.own_since = 20
    row = with_remotes(source, backup("diverged", 20, 1))
    async with driven(source) as drive:
        await on_visits(drive)
        await until_asked(drive, "V", by=DecisionDialog)
        assert "14 more of ours" in drive.text()
        await until_asked(drive, "o", by=TypedConfirmation)
        await drive.press("=yes", "enter")
        assert source.link.submitted == []
        assert "stays as it is" in drive.hint()
        await until_asked(drive, "V", "o", by=TypedConfirmation)
        await drive.press("=visits", "enter")
        assert source.link.submitted == [Push(dataset=row.id, url=BACKUP, force=True)]


async def test_keeping_both_pushes_ours_first(source: FakeSource) -> None:
    row = with_remotes(source, hospital("diverged", 2, 3))
    async with driven(source) as drive:
        await on_visits(drive)
        await until_asked(drive, "V", "b", by=PickerDialog)
        await drive.press("1")
        await drive.until(lambda: source.known and source.known[-1].kind == "push")
        assert source.link.submitted == [Push(dataset=row.id, url=BACKUP)]
        failed = replace(
            source.known[-1], state=JobState.failed, started=AT, ended=AT, error=Failure("no room")
        )
        source.link.tell(source.changed(failed))
        await drive.until(lambda: drive.app.screen is drive.bench and "no room" in drive.hint())
        assert len(source.link.submitted) == 1  # ours is nowhere: theirs is not taken
        await until_asked(drive, "V", "b", by=PickerDialog)
        await drive.press("1")
        await drive.until(lambda: len(source.link.submitted) == 2)
        source.link.tell(
            source.changed(replace(source.known[-1], state=JobState.done, ended=AT, result="{}"))
        )
        await drive.until(lambda: len(source.link.submitted) == 3)
        assert source.link.submitted[-1] == Pull(dataset=row.id, url=HOSPITAL, force=True)
        assert source.detached == [(row.id, BACKUP)]  # ours stays there as it is


async def test_what_only_the_place_has_where_it_goes_to_is_pulled(source: FakeSource) -> None:
    row = with_remotes(source, backup("behind", 0, 2))
    async with driven(source) as drive:
        await on_visits(drive)
        assert "V pulls" in drive.text()
        await drive.press("V")
        await drive.until(lambda: source.known[-1].kind == "compare")
        seen = {"url": BACKUP, "relation": "behind", "ours": 0, "theirs": 4, "common": "x", "at": AT}
        result = json.dumps({"name": "visits", "seen": [seen], "problems": []})
        ended = replace(source.known[-1], state=JobState.done, ended=AT, result=result)
        source.link.tell(source.changed(ended))
        await drive.until(lambda: "Pull 4 blocks into visits?" in drive.text())
        await drive.press("y")
        await drive.until(lambda: len(source.link.submitted) == 2)
        assert source.link.submitted[-1] == Pull(dataset=row.id, url=BACKUP)


async def test_a_pull_that_failed_leads_to_both_histories(source: FakeSource) -> None:
    row = with_remotes(source, hospital("equal", 0, 0))
    async with driven(source, (160, 50)) as drive:
        await on_visits(drive)
        error = Failure("the histories went apart", exit_code=4, hint="…")
        failed = source.job(JobState.failed, "visits", error=error)
        source.requests[failed.id] = Pull(dataset=row.id, url=HOSPITAL)
        source.link.tell(source.changed(failed))
        await drive.until(lambda: "V shows both histories" in drive.hint())
        assert "V shows both histories, . tries again" in drive.text()
        await drive.press("4", "V")
        await drive.until(lambda: source.link.submitted)
        assert source.link.submitted == [Compare(dataset=row.id, urls=[HOSPITAL])]
        seen = {"url": HOSPITAL, "relation": "diverged", "ours": 2, "theirs": 5, "common": "x", "at": AT}
        result = json.dumps({"name": "visits", "seen": [seen], "problems": []})
        source.link.tell(
            source.changed(replace(source.known[-1], state=JobState.done, ended=AT, result=result))
        )
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        assert "4 more of theirs" in drive.text()
        await drive.press("escape")
        assert len(source.link.submitted) == 1
