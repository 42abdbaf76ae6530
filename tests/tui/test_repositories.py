"""Repositories: search results, the browser, pulls of new datasets, typed addresses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from odf_engine.api import workspace as api
from odf_engine.api.model import DatasetRow, NamedUrl, Remote
from odf_engine.derive.verify.model import EngineReport, IntegrityFinding, OriginReport
from odf_engine.errors import OdfError
from odf_engine.jobs.pull import Pull, PullResult
from odf_engine.jobs.remotes import Search, SearchResult
from odf_engine.jobs.verify import Verify, VerifyResult
from odf_engine.worker.protocol import Failure, Job, JobState
from odf_engine.workspace.workspace import Workspace
from odf_tui.features.sharing.controller import SharingController
from odf_tui.features.sharing.repository_browser import (
    ChosenDatasets,
    ListedDataset,
    RepositoryBrowser,
    filter_by_words,
    match_search_result,
)
from odf_tui.state.job_book import JobBook
from odf_tui.widgets.dialogs import ConfirmDialog, PickerDialog, PromptDialog
from tests.call_count import max_calls
from tests.sync.builders import make_root
from tests.tui.conftest import driven
from tests.tui.context import Fakes
from tests.tui.haven import dataset, did
from tests.tui.scripted_worker import Scenario
from tests.tui.sharing_steps import compare_golden, confirm, open_dialog, pick, type_in
from tests.tui.waiting import until
from tests.tui.widget_app import WidgetApp, shown

AT = "2024-03-11T09:00:02Z"
BASE = "https://hospital.example/data/"


def entry(name: str, **more: Any) -> dict[str, Any]:
    """Return a dataset of a search result."""
    return {"repository": "hospital", "name": name, "url": f"{BASE}{name}/", **more}


VISITS = entry(
    "visits", id=did("visits"), kind="Root", head="f1620aa", blocks=12, records=12480, size=450_000,
    description="Visits of clinics by day\nsecond line", keywords=["health", "clinics"],
)  # fmt: skip
WARDS = entry("wards", kind="Derivative", head="f1620bb", records=31, description="Beds \x1b[31mby ward")
SHORT = entry("x-ray")
TAKEN = entry("harbour.tides")


def my_wards() -> DatasetRow:
    """Return a dataset of the workspace that is pulled from ``WARDS``."""
    return dataset("my-wards", remotes=(Remote(url=WARDS["url"], label="hospital/wards", pull=True),))


def add_repositories(source: Scenario) -> None:
    """Add two repositories."""
    for name in ("hospital", "lake"):
        source.remotes.add(name, f"https://{name}.example/data/")


def found_by_search(datasets: Sequence[dict[str, Any]], rows: list[DatasetRow]) -> Sequence[ListedDataset]:
    """Return what the browser shows of a search result."""
    return match_search_result(msgspec.convert({"datasets": datasets}, SearchResult), rows).found


def test_search_results_are_matched_with_the_workspace() -> None:
    remote = Remote(url=f"{BASE}wards/", label="hospital/wards", pull=True, relation="behind", theirs=4,
                    their_head="f1620bb", at=AT)  # fmt: skip
    rows = [
        dataset("visits", head="f1620aa"),
        dataset("wards", remotes=(remote,)),
        dataset("x-ray", missing=True),
    ]
    found = found_by_search([VISITS, WARDS, SHORT, {"name": "no address"}], rows)
    assert [each.local_relation for each in found] == ["up to date", "4 behind", ""]
    more = {**VISITS, "head": "f1620cc", "blocks": 30}
    (behind,) = found_by_search([more], rows)
    assert behind.local_relation == f"{30 - rows[0].blocks} blocks behind"
    (unknown,) = found_by_search([{**VISITS, "blocks": None, "records": None}], rows)
    assert (unknown.blocks, unknown.records) == (None, None)
    assert [each.name for each in filter_by_words(found, "CLINICS health")] == ["visits"]
    assert found_by_search([], rows) == []


class Searches:
    """Search jobs that a test ends.

    Attributes:
        book: the jobs.
        started: how many searches were started.
        cancelled: ids of the cancelled jobs.
        error: raised by the next searches.
    """

    def __init__(self, *repositories: str) -> None:
        self._repositories = repositories
        self.book, self.started, self.cancelled = JobBook(), 0, list[str]()
        self.error: OdfError | None = None

    async def start(self) -> dict[str, str]:
        if self.error is not None:
            raise self.error
        self.started += 1
        jobs = {name: f"{self.started}-{name}" for name in self._repositories}
        for name, job in jobs.items():
            queued = Job(job, "search", name, "", JobState.queued, AT)
            self.book.load([queued, *self.book.newest_first()], 0)
        return jobs

    async def cancel(self, job: str) -> None:
        self.cancelled.append(job)

    def end(self, job: str, *found: dict[str, Any], problems: Sequence[object] = (), **more: Any) -> None:
        """End a job; ``found`` and ``problems`` are its result."""
        result = json.dumps({"datasets": found, "problems": problems})
        known = {"state": JobState.done, "started": AT, "ended": AT, "result": result}
        ended = replace(self.book.jobs[job], **{**known, **more})
        self.book.load([ended if each.id == job else each for each in self.book.newest_first()], 0)

    def browser(self, rows: Sequence[DatasetRow] = ()) -> RepositoryBrowser:
        """Return the browser under test."""
        return RepositoryBrowser("Datasets", self.book, rows, self.start, self.cancel)


async def until_shown(app: WidgetApp, pilot: Pilot[None], *parts: str) -> None:
    """Wait until the screen has all of some texts."""
    await until(pilot, lambda: all(part in app.text() for part in parts))


async def until_closed(app: WidgetApp, pilot: Pilot[None]) -> None:
    """Wait until the dialog is closed."""
    await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_marked_datasets_are_chosen_together() -> None:
    searches = Searches("hospital", "lake")
    async with shown(searches.browser([my_wards(), dataset("harbour.tides")])) as (app, pilot):
        await until(pilot, lambda: searches.started)
        searches.end("1-hospital", VISITS, WARDS, SHORT, TAKEN)
        searches.end("1-lake")
        await until_shown(app, pilot, "4 datasets")
        await pilot.press("plus", "plus", "plus", "up", "plus", "plus")
        await until_shown(app, pilot, "3 marked")
        await pilot.press("ctrl+y")
        await until_closed(app, pilot)
    assert app.result.verifies
    assert [each.name for each in app.result.datasets] == ["visits", "wards", "harbour.tides"]
    assert [each.local.name if each.local else "" for each in app.result.datasets] == ["", "my-wards", ""]
    assert searches.cancelled == []


@pytest.mark.complete
async def test_failed_searches_are_shown_and_started_again() -> None:
    searches = Searches("hospital", "lake")
    async with shown(searches.browser()) as (app, pilot):
        await until_shown(app, pilot, "searching · 2 remaining")
        searches.end("1-lake", problems=[{"repository": "lake", "message": "access is denied"}])
        await until_shown(app, pilot, "lake: access is denied", "searching")  # hospital still runs
        await pilot.press("ctrl+r")  # no second search while one runs
        searches.end("1-hospital", SHORT)
        await until_shown(app, pilot, "x-ray", "1 dataset")
        await until(pilot, lambda: "searching" not in app.text())
        assert searches.started == 1
        await pilot.press("ctrl+r")
        await until(pilot, lambda: searches.started == 2)
        error = Failure("there is no network", hint="plug it in")
        for job in ("2-hospital", "2-lake"):
            searches.end(job, state=JobState.failed, error=error, result=None)
        await until_shown(app, pilot, "hospital: there is no network – plug it in", "lake: there is no")
        assert "x-ray" in app.text()  # the earlier result stays
        searches.error = OdfError("no connection to the worker", hint="press R to restart it")
        await pilot.press("ctrl+r")
        await until_shown(app, pilot, "no connection to the worker – press R to restart it")
        searches.error = None
        await pilot.press("ctrl+r")
        await until(pilot, lambda: searches.started == 3)
        searches.end("3-hospital", result="[]")
        await until_shown(app, pilot, "hospital: invalid search result")
        assert "no connection to the worker" not in app.text()
        denied = [{"repository": f"pond-{number}", "message": "access is denied"} for number in range(4)]
        searches.end("3-lake", SHORT, problems=denied)
        await until_shown(app, pilot, "pond-1: access is denied", " and 2 more failed")


async def test_searches_are_cancelled() -> None:
    searches = Searches("hospital")
    async with shown(searches.browser()) as (app, pilot):
        await until(pilot, lambda: searches.started)
        await pilot.press("ctrl+g")
        await until(pilot, lambda: searches.cancelled == ["1-hospital"])
        await pilot.press("escape")
        await until(pilot, lambda: searches.cancelled == ["1-hospital"] * 2)
        await until_closed(app, pilot)
    assert app.result is None


async def test_thousands_of_datasets_are_filtered_quickly() -> None:
    many = [
        entry(f"town{number:05d}.visits", description="x" * 200, records=number) for number in range(3000)
    ]
    searches = Searches("hospital")
    async with shown(searches.browser()) as (app, pilot):
        await until(pilot, lambda: searches.started)
        searches.end("1-hospital", *many)
        await until_shown(app, pilot, "3 000 datasets")
        line = app.screen.query_one(Input)
        with max_calls(500_000):
            line.value = "town02999"
            await until_shown(app, pilot, "1 of 3 000 datasets", "town02999.visits")
            line.value = "visits"
            await until(pilot, lambda: "1 of 3 000" not in app.text())
            assert "town02999.visits" in app.text()  # the cursor stays on its dataset
            await pilot.press("pagedown", "down")


async def browse(source: Scenario, *answers: object) -> Fakes:
    """Run the action that pulls new datasets from repositories and addresses."""
    results = {Pull: lambda pull: PullResult(name=pull.alias, url=pull.url)}
    fakes = Fakes(source, answers=answers, results=results)
    SharingController(fakes.context).browse()
    await fakes.host.stories()
    assert not fakes.host.answers
    return fakes


def choose(
    *datasets: dict[str, Any], rows: Sequence[DatasetRow] = (), verifies: bool = False
) -> Callable[[object], object]:
    """Return an answer that chooses datasets in the browser."""

    def answer(dialog: object) -> ChosenDatasets:
        assert isinstance(dialog, RepositoryBrowser)
        return ChosenDatasets(found_by_search(datasets, list(rows)), verifies)

    return answer


async def test_the_browser_searches_one_or_all_repositories(source: Scenario) -> None:
    add_repositories(source)
    for choice, names in (("in hospital", ["hospital"]), ("all", ["hospital", "lake"])):
        # A closed browser leads back to the choice of repositories.
        fakes = await browse(source, pick(choice, title="Import datasets"), None, None)
        browser = fakes.host.dialogs[1]
        async with shown(browser) as (app, pilot):
            await until(pilot, lambda fakes=fakes, names=names: len(fakes.jobs.requests) == len(names))
            assert ("hospital" in app.text()) == (choice != "all")
        assert fakes.jobs.submitted == [(Search(text="", repositories=[name]), name) for name in names]


async def test_chosen_datasets_are_pulled_under_new_names(source: Scenario) -> None:
    add_repositories(source)
    wards = my_wards()
    source.rows_ = [*source.rows_, wards]
    # Of several, only a name that exists already is asked for.
    chosen = choose(VISITS, WARDS, TAKEN, rows=source.rows_)
    name = type_in("other.tides", proposed="harbour.tides", wrong={"harbour.tides": "already exists"})
    fakes = await browse(source, pick("all"), chosen, name)
    visits = Pull(dataset=VISITS["url"], url=VISITS["url"], alias="visits")
    assert fakes.jobs.requests == [
        visits,
        Pull(dataset=wards.id, url=WARDS["url"]),
        Pull(dataset=TAKEN["url"], url=TAKEN["url"], alias="other.tides"),
    ]
    assert fakes.jobs.remarks == [""]
    fakes = await browse(source, pick("all"), chosen, None)
    assert len(fakes.jobs.requests) == 2
    assert fakes.jobs.remarks == ["; 1 skipped"]
    # The name of a single one is asked for; two datasets do not get the same name.
    fakes = await browse(source, pick("in lake"), choose(VISITS), type_in("visits", proposed="visits"))
    assert fakes.jobs.requests == [visits]
    twice = choose(VISITS, {**VISITS, "url": "https://lake.example/data/visits/"})
    fakes = await browse(source, pick("all"), twice, type_in("visits-2", proposed="visits"))
    assert [request.alias for request in fakes.jobs.requests] == ["visits", "visits-2"]


async def test_chosen_datasets_are_pulled_and_verified(source: Scenario) -> None:
    add_repositories(source)
    tides, daily = "harbour.tides", "air-by-day"
    report = VerifyResult(
        name=tides, head="f1620aa", valid=True, blocks=12, slices=5, intact=True,
        origins=[OriginReport(id="did", records=48210)],
        engines=[EngineReport("spark", "4.0", "4.0", 3, 90)], transforms=3,
    )  # fmt: skip
    results: dict[type, Any] = {
        Pull: lambda pull: PullResult(name=tides if pull.alias == "visits" else daily, url=pull.url),
        Verify: report,
    }

    async def pull_and_verify(*chosen: dict[str, Any], names: Sequence[object] = ()) -> Fakes:
        answers = [pick("all"), choose(*chosen, verifies=True), *names]
        fakes = Fakes(source, answers=answers, results=results)
        SharingController(fakes.context).browse()
        await fakes.host.stories()
        return fakes

    rows = {row.name: row.id for row in source.datasets()}
    fakes = await pull_and_verify(VISITS, names=["visits"])
    visits = Pull(dataset=VISITS["url"], url=VISITS["url"], alias="visits")
    assert fakes.jobs.requests == [visits, Verify(rows[tides])]
    valid = (
        "harbour.tides: valid (12 blocks, 48 210 rows in 5 slices, hashes match, "
        "3 transactions with 90 rows replayed by spark 4.0)"
    )
    assert fakes.host.notices == [(valid, "good")]
    # The worst verdict is shown, with the block; a pull that failed too.
    bad = replace(
        report, name=daily, valid=False, head=None, intact=False,
        findings=[IntegrityFinding("slice-hash", "f1620bb", "other bytes")],
    )  # fmt: skip
    results[Verify] = lambda verify: bad if verify.dataset == rows[daily] else report
    fakes = await pull_and_verify(VISITS, WARDS)
    assert fakes.host.notices == [
        (
            "air-by-day: INVALID (12 blocks, 5 slices, 3 transactions with 90 rows "
            "replayed by spark 4.0): 1 finding; slice-hash: block f1620bb: other bytes; 1 more valid",
            "bad",
        )
    ]
    results[Pull] = OdfError("no access", hint="log in")
    fakes = await pull_and_verify(VISITS, WARDS)
    assert [type(request) for request in fakes.jobs.requests] == [Pull, Pull]
    assert fakes.host.notices == [("pull visits: no access – log in", "bad")]


async def test_repositories_are_added_and_removed(source: Scenario) -> None:
    url = type_in("s3://lake/odf", wrong={"ftp://old.example/": "unsupported URL"})
    name = type_in("lake", wrong={"my lake": "invalid name: use letters"})
    lake = NamedUrl("lake", "s3://lake/odf/")
    fakes = await browse(source, pick("add", without=["forget", "all"]), url, name, None)
    assert source.repositories() == [lake]
    assert fakes.host.notices == [("added repository lake", "good")]
    name = type_in("pond", wrong={"Lake": "repository 'Lake' already exists"})
    await browse(source, pick("add"), type_in("file:///srv/pond"), name, pick("all"), None, None)
    assert [place.name for place in source.repositories()] == ["lake", "pond"]
    await browse(source, pick("add"), type_in("file:///srv/pool"), None, pick("add"), None, None)
    assert len(source.repositories()) == 2
    forget = (pick("forget"), pick("pond", title="Remove a repository"))
    await browse(source, *forget, confirm(False, "Remove the repository pond?"), pick("forget"), None, None)
    assert len(source.repositories()) == 2
    fakes = await browse(source, *forget, confirm(True), None)
    assert source.repositories() == [lake]
    assert fakes.host.last_notice == "removed repository pond"


async def test_a_typed_address_is_pulled(source: Scenario) -> None:
    add_repositories(source)
    here = dataset("visits", remotes=(Remote(url=f"{BASE}visits/", label="hospital/visits", pull=True),))
    source.rows_ = [*source.rows_, here]
    url = "ipns://k51/clinics/wards/"
    typed = type_in(url[:-1], wrong={"hospital": "invalid remote dataset alias"})
    fakes = await browse(source, pick("address"), typed, type_in("wards", proposed="wards"))
    assert fakes.jobs.requests == [Pull(dataset=url, url=url, alias="wards")]
    assert fakes.jobs.remarks == [f", from {url[:-1]}"]
    fakes = await browse(source, pick("address"), type_in("hospital/visits"))
    assert fakes.jobs.requests == [Pull(dataset=here.id, url=f"{BASE}visits/")]
    # Without an address or a name the choice of repositories opens again.
    fakes = await browse(source, pick("address"), None, pick("address"), typed, None, None)
    assert fakes.jobs.requests == []


async def test_the_datasets_of_a_crate_are_pulled_from_its_path(
    source: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Workspace.init(tmp_path / "publisher")
    make_root(folder, "city.people", slices=1)
    crate = tmp_path / "city" / "people.zip"
    crate.parent.mkdir()
    api.open(folder.folder)["city.people"].write_crate(crate, with_data=True)
    (tmp_path / "other.zip").write_bytes(b"no archive")
    monkeypatch.chdir(tmp_path)

    fakes = await browse(source, pick("address"), type_in("city/people.zip"))
    (request,) = fakes.jobs.requests
    assert request == Pull(
        dataset=request.url, url=request.url, alias="city.people", crate=f"{crate.as_uri()}#city.people"
    )
    assert fakes.jobs.remarks == [", from city/people.zip"]
    assert not Path(request.url.removeprefix("file://")).exists()  # it was unpacked until the job ended

    fakes = await browse(source, pick("address"), type_in("other.zip"))
    assert fakes.jobs.requests == []
    assert "other.zip" in fakes.host.last_notice and "archive" in fakes.host.last_notice

    make_root(Workspace(source.folder), "city.people")  # a different dataset
    address, name = pick("address"), type_in("people", proposed="city.people")
    fakes = await browse(source, address, type_in("city/people.zip"), name)
    assert [(request.alias, request.crate) for request in fakes.jobs.requests] == [
        ("people", f"{crate.as_uri()}#city.people")
    ]
    fakes = await browse(source, address, type_in("city/people.zip"), None, None)
    assert fakes.jobs.requests == []


@pytest.mark.app
async def test_a_dataset_of_a_repository_is_pulled(source: Scenario) -> None:
    """Golden text: the browser over the panes, with three datasets and the details of one."""
    add_repositories(source)
    source.rows_ = [*source.rows_[2:], my_wards()]
    async with driven(source, (80, 24)) as drive:
        await open_dialog(drive, "I", "1", kind=RepositoryBrowser)
        await drive.until(lambda: source.known[-1].kind == "search")
        assert source.link.submitted == [Search(text="", repositories=["hospital"])]
        result = json.dumps({"datasets": [VISITS, WARDS, SHORT], "problems": []})
        ended = replace(source.known[-1], state=JobState.done, started=AT, ended=AT, result=result)
        source.link.tell(source.changed(ended))
        await drive.until(lambda: "3 datasets" in drive.text() and "Visits of clinics by day" in drive.text())
        await drive.settle()
        compare_golden(drive, "browser")
        await drive.press("=ward", "down")
        text = drive.text()
        assert "1 of 3 datasets" in text
        assert "as my-wards" in text
        assert "x-ray" not in text
        assert "\x1b" not in text
        await drive.press("=", "=clinics")
        await open_dialog(drive, "enter", kind=PromptDialog)
        await drive.press("=port-haven.clinics", "enter")
        assert "already exists" in drive.text()
        await drive.press("=visits", "enter")
        url = VISITS["url"]
        assert source.link.submitted[1:] == [Pull(dataset=url, url=url, alias="visits")]
        assert drive.app.screen is drive.bench

        # Repositories are added and removed in dialogs that lead back to the choice.
        await open_dialog(drive, "I", "plus", kind=PromptDialog)
        await drive.press("=ftp://old.example/", "enter")
        assert "unsupported URL" in drive.text()
        await drive.press("=s3://depot/odf", "enter")
        await drive.until(lambda: "Repository name" in drive.text())
        await drive.press("=depot", "enter")
        await drive.until(lambda: isinstance(drive.app.screen, PickerDialog))
        await drive.settle()
        assert "s3://depot/odf/" in drive.text()
        await open_dialog(drive, "minus", kind=PickerDialog)
        await open_dialog(drive, "1", kind=ConfirmDialog)
        await drive.press("y")
        await drive.until(lambda: len(source.repositories()) == 2)
        await drive.until(lambda: isinstance(drive.app.screen, PickerDialog))
        await drive.press("escape")
        assert drive.app.screen is drive.bench
