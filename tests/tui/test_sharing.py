"""Remotes: badges, words, filters, push, pull, comparison, and diverged histories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from odf_engine.api.model import DatasetRow, Relation, Remote
from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.push import Push, PushedInput, PushResult
from odf_engine.jobs.remotes import Compare, CompareResult, RemoteProblem, RemoteRelation
from odf_engine.net.urls import short_url
from odf_engine.worker.protocol import (
    Failure,
    Job,
    JobProgress,
    JobState,
    Progress,
    Rate,
    Sample,
    Samples,
)
from odf_engine.workspace.remotes import DatasetRemotes, RemoteStatus
from odf_tui.actions.model import Situation
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.features.dataset_actions import DatasetActionsController
from odf_tui.features.sharing.controller import SharingController, divergence_lines, force_push_lines
from odf_tui.panes.datasets.dataset_filter import count_terms, matches_filter, parse_filter
from odf_tui.state.job_book import JobBook, dataset_healths, job_glyph
from odf_tui.state.model import Health
from odf_tui.text.job_text import JobRates, job_outcome, progress_text
from odf_tui.text.remotes import remote_badge, remote_badge_style, remote_text
from odf_tui.theming import ascii_fallback as few
from odf_tui.widgets.dialogs import ConfirmDialog, DecisionDialog, TypedConfirmation
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.haven import append, copy_haven, dataset, did
from tests.tui.scripted_worker import Scenario
from tests.tui.sharing_steps import (
    AT,
    BACKUP,
    HOSPITAL,
    REPOSITORIES,
    backup,
    build_visits,
    compare_golden,
    confirm,
    dialog_text,
    hospital,
    open_dialog,
    pick,
    spans_text,
    type_in,
    with_remotes,
)


@pytest.fixture
def source(tmp_path: Path) -> Scenario:
    """Visits, days derived from them, and tides."""
    made = Scenario(copy_haven(tmp_path / "haven", build_visits))
    made.story()
    return made


def test_badge_shows_relation_and_block_counts() -> None:
    assert remote_badge(()) == ""
    assert remote_badge([hospital()]) == "⇣3"
    assert remote_badge([backup()]) == "⇡2"
    assert remote_badge([hospital("equal", 0, 0), backup("equal", 0, 0)]) == "⇣=⇡="
    assert remote_badge([hospital(), backup()]) == "⇣3⇡2"
    assert remote_badge([hospital("diverged", 2, 3)]) == "÷⇣3"
    assert remote_badge([backup("diverged", 2, 1)]) == "÷⇣1⇡2"
    assert remote_badge([backup("new", 7)]) == "⇡7"
    assert remote_badge([hospital("ahead", 5, 0)]) == "⇣="  # no push remote
    assert remote_badge([hospital("behind", 0, 123_456)]) == "⇣123k"
    remotes = (hospital("diverged", 2, 3), backup(), hospital("equal", 0, 0))
    assert [remote_badge_style([remote]) for remote in remotes] == [
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
def test_badges_are_short(remotes: list[Remote]) -> None:
    found = remote_badge(remotes)
    assert bool(found) == bool(remotes)
    assert len(found) <= 13
    assert ("÷" in found) == any(remote.relation == "diverged" for remote in remotes)


def test_remote_text_describes_relation_and_comparison_time() -> None:
    assert remote_text(hospital()) == "hospital/visits · 3 behind · compared 2024-03-11 08:59 UTC"
    assert "2 ahead" in remote_text(backup())
    assert "diverged: 2 ahead, 3 behind" in remote_text(hospital("diverged", 2, 3))
    assert "not compared yet · m checks" in remote_text(Remote(url=BACKUP, label="backup/visits"))
    assert "changed locally" in remote_text(hospital("", 0, 0))
    assert short_url(BACKUP) == "backup/visits"
    assert short_url("odf+https://me@host.example:8443/a/b/visits/") == "host.example:8443/visits"


def test_filters_find_remotes() -> None:
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


def test_health_depends_on_pull_remotes() -> None:
    rows = [
        dataset("a", records=1, remotes=(hospital(),)),
        dataset("b", records=1, remotes=(hospital("diverged", 1, 1),)),
        dataset("c", records=1, remotes=(backup("diverged", 1, 1),)),
    ]
    assert list(dataset_healths(rows, JobBook()).values()) == [Health.stale, Health.diverged, Health.current]


def job(kind: str, result: dict[str, object] | None = None, **more: object) -> Job:
    known = {"state": JobState.done, "created": AT, "started": AT, "ended": "2024-03-11T08:59:04Z"}
    text = None if result is None else json.dumps(result)
    return Job("1", kind, "visits", did("visits"), result=text, **{**known, **more})  # type: ignore[arg-type]


def test_outcome_of_a_remote_job_names_blocks_and_remote() -> None:
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
    assert job_outcome(job("compare", {}))[0] == "no remotes to compare"
    glyphs = [job_glyph(job("compare", {"seen": found, "problems": problem}))[0] for found in (seen, [])]
    assert glyphs == ["✓", "↯"]  # no remote was compared
    running = job("push", state=JobState.running, progress=Progress("compare", files=8, total_files=10))
    assert "8 of 10 blocks" in progress_text(running, JobRates(), 80)


def test_pull_from_a_remote_requires_no_trust(source: Scenario) -> None:
    row = with_remotes(source, hospital(), standing="not trusted", polls=True)
    fakes = Fakes(source, "visits")
    controller = DatasetActionsController(fakes.context)
    controller.pull()
    assert fakes.jobs.submitted == [(Pull(dataset=row.id, url=HOSPITAL), "visits")]
    assert fakes.jobs.remarks == [", from hospital/visits"]
    controller.pull_all()
    assert Pull(dataset=row.id, url=HOSPITAL) in fakes.jobs.requests[1:]
    assert "not trusted" not in fakes.jobs.remarks[-1]


async def test_pull_asks_for_one_of_several_remotes(source: Scenario) -> None:
    other = replace(hospital("equal", 0, 0), url="ipns://k51/visits/", label="ipns://k51/visits/")
    row = with_remotes(source, hospital(), other)
    fakes = Fakes(source, "visits", answers=[pick(other.url, title="Pull visits from"), None])
    controller = DatasetActionsController(fakes.context)
    controller.pull()
    await fakes.host.stories()
    controller.pull()  # closed without a choice
    await fakes.host.stories()
    assert fakes.jobs.requests == [Pull(dataset=row.id, url=other.url)]


def test_pull_all_skips_diverged_datasets(source: Scenario) -> None:
    with_remotes(source, hospital("diverged", 2, 3))
    fakes = Fakes(source)
    DatasetActionsController(fakes.context).pull_all()
    assert "1 diverged from a remote: V shows the histories" in fakes.jobs.remarks[-1]
    assert fakes.jobs.requests
    assert did("visits") not in [request.dataset for request in fakes.jobs.requests]


async def push(source: Scenario, action: str, *answers: object) -> Fakes:
    """Run ``push`` or ``push_to_address`` on visits."""
    fakes = Fakes(source, "visits", answers=answers)
    getattr(SharingController(fakes.context), action)()
    await fakes.host.stories()
    assert not fakes.host.answers
    return fakes


async def test_push_goes_to_the_only_push_remote(source: Scenario) -> None:
    row = with_remotes(source, hospital(), backup())
    fakes = await push(source, "push")
    assert fakes.jobs.submitted == [(Push(dataset=row.id, url=BACKUP), "visits")]
    assert fakes.jobs.remarks == [", to backup/visits"]


async def test_push_offers_writable_repositories(source: Scenario) -> None:
    row = with_remotes(source)
    lake = "s3://lake/odf/visits/"
    read_only = [HOSPITAL]
    fakes = await push(source, "push", pick(lake, title="Push visits to", without=read_only))
    assert fakes.jobs.requests == [Push(dataset=row.id, url=lake)]
    assert fakes.jobs.remarks == [", to lake/visits"]
    choices = fakes.host.dialogs[0].find_choices("")
    assert [choice.title for choice in choices] == ["backup/visits", "lake/visits", "another address"]
    fakes = await push(source, "push", None)
    assert fakes.jobs.requests == []


async def test_push_offers_to_push_inputs_first(source: Scenario) -> None:
    lake = "s3://lake/odf/"
    with_remotes(source)
    days, heads = did("visits-by-day"), {each.name: each.head for each in source.datasets()}
    results: dict[type, Any] = {Push: PushResult(status="updated", blocks=3, label="lake/x")}

    async def push_days(*answers: object) -> Fakes:
        offered = [pick(f"{lake}visits-by-day/"), *answers]
        fakes = Fakes(source, "visits-by-day", answers=offered, results=results)
        SharingController(fakes.context).push()
        await fakes.host.stories()
        assert not fakes.host.answers
        return fakes

    question = "visits-by-day: the repository lacks the newest blocks of 1 input"
    fakes = await push_days(pick("inputs", title=question))
    assert [choice.title for choice in fakes.host.dialogs[-1].find_choices("")] == [
        "push inputs first: visits", "push only visits-by-day",
    ]  # fmt: skip
    alone = [Push(days, f"{lake}visits-by-day/")]
    needed = [PushedInput(did("visits"), f"{lake}visits/", heads["visits"])]
    assert fakes.jobs.requests == [
        Push(did("visits"), f"{lake}visits/"), replace(alone[0], inputs=needed),
    ]  # fmt: skip
    assert fakes.host.notices == [("pushed to lake: visits, visits-by-day", "good")]
    assert (await push_days(pick("alone"))).jobs.requests == alone
    assert (await push_days(None)).jobs.requests == []
    results[Push] = lambda push: OdfError("no access", hint="log in") if not push.inputs else PushResult()
    assert (await push_days(pick("inputs"))).host.notices == [
        ("not pushed to lake: visits; visits: no access – log in; pushed: visits-by-day", "bad")
    ]
    # The repository has the same blocks, or the input comes from it: nothing is asked.
    status = RemoteStatus(
        url=f"{lake}visits/", relation="equal", ours=0, theirs=0, common=None, our_head=heads["visits"],
        their_head=heads["visits"], at=AT,
    )  # fmt: skip
    source.remotes.record_status(DatasetId.parse(did("visits")), status, "push")
    assert (await push_days()).jobs.requests == alone
    source.remotes.set(DatasetId.parse(did("visits")), DatasetRemotes(pull=[f"{lake}elsewhere/"]))
    assert (await push_days()).jobs.requests == alone
    source.remotes.remove("lake")
    typed = "s3://lake/odf/visits-by-day/"
    fakes = Fakes(source, "visits-by-day", answers=[pick("typed"), type_in(typed)])
    SharingController(fakes.context).push_to_address()
    await fakes.host.stories()
    assert fakes.jobs.requests == alone
    assert f"the inputs of visits-by-day have no address: {typed} is in no repo" in fakes.jobs.remarks[0]


async def test_push_accepts_a_typed_address(source: Scenario) -> None:
    row = with_remotes(source, backup())
    wrong = {
        "ftp://x/y": "unsupported URL",
        "nowhere/visits": "repository 'nowhere' not found",
        "visits": "invalid remote dataset alias",
        "did:odf:fed01df230b49615d175307d580c33d6fda61fc7b9aec91df0f5c1a5ebe3b8cbfee02": "invalid address",
        HOSPITAL: "read-only address",
    }
    text = "odf+https://host.example/visits"
    fakes = await push(source, "push_to_address", pick("typed"), type_in(text, wrong=wrong))
    assert fakes.jobs.requests == [Push(dataset=row.id, url=f"{text}/")]
    fakes = await push(source, "push_to_address", pick("typed"), type_in("Lake/other/visits"))
    assert fakes.jobs.requests == [Push(dataset=row.id, url="s3://lake/odf/other/visits/")]
    for name, _ in REPOSITORIES:
        source.remotes.remove(name)
    fakes = await push(source, "push_to_address", pick("typed", without=["s3://lake/odf/visits/"]), None)
    assert fakes.jobs.requests == []
    source.rows_ = [replace(row, remotes=())]
    fakes = await push(source, "push", type_in(text))  # nothing to pick from
    assert fakes.jobs.requests == [Push(dataset=row.id, url=f"{text}/")]


async def test_compare_skips_datasets_that_are_being_compared(source: Scenario) -> None:
    row = with_remotes(source, hospital())
    fakes = Fakes(source, "visits")
    controller = SharingController(fakes.context)
    controller.compare()
    controller.compare_all()
    assert fakes.jobs.submitted == [(Compare(dataset=row.id), "visits")] * 2
    await fakes.jobs.submit_one(Compare(dataset=row.id), "visits")
    controller.compare_all()
    assert len(fakes.jobs.requests) == 3
    assert fakes.host.last_notice == "all remotes are being compared already"


@pytest.mark.parametrize("action", ["look", "branches", "detach"])
def test_remote_actions_require_a_remote(action: str) -> None:
    guard = DEFAULT_KEYMAP.by_id[action].guard
    assert guard(Situation(dataset=dataset("tides"))) == "tides has no remote: press u to push it"
    assert guard(Situation(dataset=dataset("visits", remotes=(hospital(),)))) is None


async def test_detach_requires_confirmation(source: Scenario) -> None:
    row = with_remotes(source, hospital())
    for yes in (False, True):
        consequence = "Then p uses the dataset's own source or inputs."
        fakes = Fakes(source, "visits", answers=[confirm(yes, "Detach from hospital/visits?", consequence)])
        outdated: list[None] = []
        fakes.state.datasets_outdated.connect(outdated.append)
        SharingController(fakes.context).detach()
        await fakes.host.stories()
        assert source.remotes.get(source.entry(row.id).id).pull == ([] if yes else [HOSPITAL])
        assert bool(outdated) is yes


async def test_detach_asks_for_one_of_several_remotes(source: Scenario) -> None:
    row = with_remotes(source, hospital(), backup())
    answers = [pick(BACKUP), confirm(True, "Pull and push no longer use this remote.")]
    fakes = Fakes(source, "visits", answers=answers)
    SharingController(fakes.context).detach()
    await fakes.host.stories()
    remotes = source.remotes.get(source.entry(row.id).id)
    assert (remotes.pull, remotes.push) == ([HOSPITAL], [])


def decide(answer: str, *parts: str, without: str = "\0") -> object:
    """Return an answer to the dialog of two histories, whose text must have parts and must not have one."""

    def decision(dialog: object) -> str:
        assert isinstance(dialog, DecisionDialog)
        text = dialog_text(dialog)
        assert all(part in text for part in parts) and without not in text, text
        assert f"answer({answer!r})" in [each.id for each in dialog.key_list()]
        return answer

    return decision


async def settle_divergence(
    source: Scenario,
    *answers: object,
    results: dict[type, object] | None = None,
    job: Job | None = None,
) -> Fakes:
    """Run the action that shows both histories, on visits or in the pane of jobs."""
    fakes = Fakes(source, "visits", answers=answers, results=results)
    if job is not None:
        fakes.state.focus_pane("jobs")
        fakes.host.now = Situation(pane="jobs", job=job)
    SharingController(fakes.context).show_branches()
    await fakes.host.stories()
    assert not fakes.host.answers
    return fakes


def compared(relation: Relation, url: str = HOSPITAL, **more: object) -> CompareResult:
    """Return the result of a comparison with one remote."""
    return CompareResult("visits", [RemoteRelation(url, relation, common="x", at=AT, **more)])  # type: ignore[arg-type]


async def test_their_history_is_pulled_after_confirmation(source: Scenario) -> None:
    row = with_remotes(source, hospital("diverged", 2, 3))
    theirs = decide("theirs", "2 more remote", without="push ours")
    warning = confirm(False, "Use the history of hospital/visits?", "Removes 2 local blocks from the chain.")
    fakes = await settle_divergence(source, theirs, warning)
    assert fakes.jobs.requests == []
    assert "answer('ours')" not in [each.id for each in fakes.host.dialogs[0].key_list()]  # read-only
    fakes = await settle_divergence(source, theirs, confirm(True))
    assert fakes.jobs.requests == [Pull(dataset=row.id, url=HOSPITAL, force=True)]
    fakes = await settle_divergence(source, decide("leave"))
    assert fakes.jobs.requests == []


async def test_our_history_is_pushed_after_the_name_was_typed(source: Scenario) -> None:
    for _ in range(18):
        append(source.entry(did("visits")).dataset, 1)
    row = with_remotes(source, backup("diverged", 20, 1))
    ours = decide("ours", "14 more local", "push ours (local): overwrites 1 remote block")
    for yes in (False, True):

        def answer(dialog: object, yes: bool = yes) -> bool:
            assert isinstance(dialog, TypedConfirmation)
            assert dialog._accepted == ["visits"]
            assert "1 block that only backup/visits has" in dialog_text(dialog)
            return yes

        fakes = await settle_divergence(source, ours, answer)
        assert fakes.jobs.requests == ([Push(dataset=row.id, url=BACKUP, force=True)] if yes else [])
        assert fakes.host.last_notice == ("" if yes else "backup/visits is unchanged")


async def test_both_histories_are_stored_by_a_push_before_the_pull(source: Scenario) -> None:
    row = with_remotes(source, hospital("diverged", 2, 3))
    push, pull = Push(dataset=row.id, url=BACKUP), Pull(dataset=row.id, url=HOSPITAL, force=True)
    answers = (decide("both"), pick(BACKUP, title="Push the local visits to", without=[HOSPITAL]))
    fakes = await settle_divergence(source, *answers, results={Push: OdfError("no room")})
    assert fakes.jobs.requests == [push]  # ours is stored nowhere else: theirs is not pulled
    assert fakes.host.last_notice == "no room"
    source.attach(row.id, BACKUP, "push")
    fakes = await settle_divergence(source, *answers, results={Push: PushResult()})
    assert fakes.jobs.requests == [push, pull]
    assert not source.remotes.get(source.entry(row.id).id).push  # later pushes must not change the copy
    assert fakes.jobs.remarks == [
        ", with the history of hospital/visits; the local history is at backup/visits"
    ]
    # The diverged remote itself is not offered.
    with_remotes(source, backup("diverged", 2, 1))
    source.attach(row.id, "s3://lake/odf/visits/", "push")
    answers = (decide("both"), pick("s3://lake/odf/visits/", without=[BACKUP]))
    fakes = await settle_divergence(source, *answers, results={Push: PushResult()})
    assert fakes.jobs.requests[-1] == Pull(dataset=row.id, url=BACKUP, force=True)


async def test_missing_blocks_are_pulled_from_a_push_remote(source: Scenario) -> None:
    row = with_remotes(source, backup("behind", 0, 2))
    result = {Compare: compared("behind", BACKUP, theirs=4)}
    fakes = await settle_divergence(source, confirm(True, "Pull 4 blocks into visits?"), results=result)
    assert fakes.jobs.requests == [
        Compare(dataset=row.id, urls=[BACKUP]),
        Pull(dataset=row.id, url=BACKUP),
    ]
    fakes = await settle_divergence(source, confirm(False), results=result)
    assert len(fakes.jobs.requests) == 1


async def test_a_comparison_on_request_replaces_the_saved_relation(source: Scenario) -> None:
    with_remotes(source, hospital("diverged", 2, 3))
    fakes = await settle_divergence(source, decide("again"), results={Compare: compared("ahead", ours=2)})
    assert fakes.host.last_notice == "visits and hospital/visits: 2 ahead"
    problem = CompareResult("visits", [], [RemoteProblem(HOSPITAL, message="cannot be reached")])
    fakes = await settle_divergence(source, decide("again"), results={Compare: problem})
    assert fakes.host.notices == [("hospital/visits: cannot be reached", "bad")]
    fakes = await settle_divergence(source, decide("again"), results={Compare: CompareResult()})
    assert fakes.host.last_notice == "no dataset found at hospital/visits"


async def test_failed_pull_compares_histories_with_its_remote(source: Scenario) -> None:
    row = with_remotes(source, hospital("equal", 0, 0), backup())
    failed = source.job(JobState.failed, "visits", error=Failure("the histories went apart", exit_code=4))
    source.changed(failed, Pull(dataset=row.id, url=HOSPITAL))
    result = {Compare: compared("diverged", ours=2, theirs=5)}
    shown = decide("leave", "visits and hospital/visits", "4 more remote")
    fakes = await settle_divergence(source, shown, results=result, job=failed)
    assert fakes.jobs.requests == [Compare(dataset=row.id, urls=[HOSPITAL])]
    # The dataset of the job was deleted.
    fakes = await settle_divergence(source, job=replace(failed, dataset=did("gone"), target="gone"))
    assert fakes.host.last_notice == "gone is not in this workspace"
    # Jobs of other kinds have no remote: the selected dataset is meant.
    with_remotes(source)
    fakes = await settle_divergence(source, job=replace(failed, kind="verify"))
    assert fakes.host.last_notice == "visits has no remote"


def test_divergence_lines_name_affected_blocks_and_datasets(source: Scenario) -> None:
    row = with_remotes(source)
    remote = backup("diverged", 2, 1)
    shared = str(source.entry(row.id).dataset.block(4).hash)
    branches = source.branches(row.id, shared, 6)
    text = spans_text(divergence_lines(row, remote, branches, ["visits-by-day"], writable=True))
    assert "visits-by-day may need a rebuild" in text
    assert "push ours (local): overwrites 1 remote block" in text
    assert "more remote" not in text
    lost = replace(branches, common=None)
    text = spans_text(divergence_lines(row, remote, lost, writable=False))
    assert "the common block is not in this workspace" in text
    assert "push ours" not in text
    text = spans_text(force_push_lines(row, remote))
    assert "1 block that only backup/visits has" in text
    assert "2 local blocks" in text


async def show_visits(drive: Driven, row: DatasetRow) -> None:
    """Replace the dataset visits, forget the jobs, and read both again."""
    drive.source.rows_ = [row, *drive.source.rows_[1:]]
    drive.source.forget_jobs()
    drive.source.link.submitted.clear()
    await drive.press("r")


@pytest.mark.app
async def test_workstation_shows_remotes_and_resolves_divergence(source: Scenario) -> None:
    """Golden texts: the histories dialog over the panes, and badges in the graph and in the list."""
    row = with_remotes(source, hospital("diverged", 2, 3))
    async with driven(source, (80, 24)) as drive:
        drive.bench.navigator.select_dataset(row.id)
        await drive.settle()

        # Both histories; theirs is pulled after a confirmation.
        await open_dialog(drive, "V", kind=DecisionDialog)
        compare_golden(drive, "histories")
        await drive.press("o")  # no answer: the remote is read-only
        assert isinstance(drive.app.screen, DecisionDialog)
        await open_dialog(drive, "t", kind=ConfirmDialog)
        await drive.press("y")
        assert source.link.submitted == [Pull(dataset=row.id, url=HOSPITAL, force=True)]

        # Badges and the card.
        row = replace(row, remotes=(hospital(), backup()))
        await show_visits(drive, row)
        await drive.press("z")
        assert "visits ⇣3⇡2" in drive.text()
        compare_golden(drive, "graph")
        await drive.press("L")
        compare_golden(drive, "list")
        await drive.resize(160, 50)
        await drive.settle()
        compare_golden(drive, "list")
        await drive.press("L")
        compare_golden(drive, "graph")
        await drive.press("z")

        # A pull from a remote requires no trust.
        await show_visits(drive, replace(row, standing="not trusted"))
        await drive.press("p")
        assert source.link.submitted == [Pull(dataset=row.id, url=HOSPITAL)]
        assert "from hospital/visits" in drive.hint()

        # Bytes and rate of a running push: in the card, the graph and pane 4.
        await show_visits(drive, row)
        running = source.job(JobState.running, "visits", "push", ended=None)
        rate = Rate(rows=0, bytes=12_000_000)
        samples = [Sample(float(at), {running.id: rate}) for at in range(1, 10)]
        moved = Progress("send", bytes=42_000_000, total_bytes=100_000_000, files=4, total_files=9)
        source.link.tell(source.changed(running), Samples(samples), JobProgress(running.id, moved))
        await drive.until(lambda: drive.book.active_jobs())
        drive.bench.state.second.send(None)
        await drive.settle()
        text = drive.text()
        assert "MB of 100.0 MB · 12.0 MB/s" in text
        assert "send · 42%" in text
        assert "~5 s left" in text
        await drive.press("z")
        assert "visits ⇣3⇡2 ▸ 42% · 12.0 MB/s" in drive.text()
        await drive.press("4")
        assert "42.0 MB of 100.0 MB · 12.0 MB/s" in drive.text()
        await drive.press("z", "1")
        done = {"status": "updated", "url": BACKUP, "blocks": 2, "bytes": 100_000_000}
        ended = replace(running, state=JobState.done, ended=AT, result=json.dumps(done))
        source.link.tell(source.changed(ended))
        await drive.until(lambda: not drive.book.active_jobs())
        assert "pushed 2 blocks, 100.0 MB to backup/visits" in drive.hint()
        assert "MB/s" not in drive.text().split("4 Jobs")[0]

        # A push remote with more blocks: V offers a pull.
        await show_visits(drive, replace(row, remotes=(backup("behind", 0, 2),)))
        assert "press V to pull" in drive.text()

        # A pull that failed leads to both histories, after a comparison.
        await show_visits(drive, replace(row, remotes=(hospital("equal", 0, 0),)))
        error = Failure("the histories went apart", exit_code=4, hint="…")
        failed = source.job(JobState.failed, "visits", error=error)
        source.link.tell(source.changed(failed, Pull(dataset=row.id, url=HOSPITAL)))
        await drive.until(lambda: "press V to compare histories" in drive.hint())
        await drive.until(lambda: "V compares histories, . retries" in drive.text())
        await drive.press("4", "V")
        await drive.until(lambda: source.link.submitted)
        assert source.link.submitted == [Compare(dataset=row.id, urls=[HOSPITAL])]
        seen = {"url": HOSPITAL, "relation": "diverged", "ours": 2, "theirs": 5, "common": "x", "at": AT}
        result = json.dumps({"name": "visits", "seen": [seen], "problems": []})
        compared = replace(source.known[-1], state=JobState.done, ended=AT, result=result)
        source.link.tell(source.changed(compared))
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        assert "4 more remote" in drive.text()
        await drive.press("escape", "1")
        assert len(source.link.submitted) == 1

        # Our history is pushed after the name of the dataset was typed.
        await show_visits(drive, replace(row, remotes=(backup("diverged", 2, 1),)))
        await open_dialog(drive, "V", "o", kind=TypedConfirmation)
        await drive.press("=yes", "enter")
        assert source.link.submitted == []
        assert "is unchanged" in drive.hint()
        await open_dialog(drive, "V", "o", kind=TypedConfirmation)
        await drive.press("=visits", "enter")
        assert source.link.submitted == [Push(dataset=row.id, url=BACKUP, force=True)]
