"""Bringing in datasets from elsewhere: repositories, their datasets, addresses.

Text captures are ``tests/golden/share-*.txt``; ``ODF_UPDATE_GOLDEN=1`` writes them anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from odf_engine.coordinator.protocol import Failure, JobState, Pull, Search
from odf_engine.coordinator.results import SearchResult
from odf_tui.features.sharing.repository_browser import (
    RemoteDataset,
    RepositoryBrowser,
    answer_of,
    matching_words,
)
from odf_tui.features.sharing.repository_browser import SearchResult as Answer
from odf_tui.gateway.protocol import NamedUrl
from odf_tui.state.model import DatasetRow
from odf_tui.text.remotes import Remote
from odf_tui.widgets.dialogs import ConfirmDialog, PickerDialog, PromptDialog
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource, dataset
from tests.tui.test_sharing import compare, until_asked

pytestmark = pytest.mark.app

AT = "2024-03-11T09:00:02Z"
BASE = "https://hospital.example/data/"


def entry(name: str, **more: Any) -> dict[str, Any]:
    """A dataset as a search finds it."""
    return {"repository": "hospital", "name": name, "url": f"{BASE}{name}/", **more}


VISITS = entry(
    "visits", id="did:odf:visits", kind="Root", head="f1620aa", blocks=12, records=12480, size=450_000,
    description="Visits of clinics by day\nsecond line", keywords=["health", "clinics"],
)  # fmt: skip
WARDS = entry("wards", kind="Derivative", head="f1620bb", records=31, description="Beds \x1b[31mby ward")
SHORT = entry("x-ray")


def prepared(source: FakeSource, *names: str) -> None:
    source.places = [
        NamedUrl(name, f"https://{name}.example/data/") for name in names or ("hospital", "lake")
    ]


async def in_browser(drive: Driven, *keys: str) -> RepositoryBrowser:
    """Opens the browser of a repository; the worker has got the search."""
    await until_asked(drive, "I", *(keys or ("1",)), by=RepositoryBrowser)
    await drive.until(lambda: drive.source.known and drive.source.known[-1].kind == "search")
    assert isinstance(drive.app.screen, RepositoryBrowser)
    return drive.app.screen


async def answered(drive: Driven, *found: dict[str, Any], problems: Any = ()) -> None:
    """The worker has searched."""
    result = json.dumps({"datasets": found, "problems": list(problems)})
    ended = replace(drive.source.known[-1], state=JobState.done, started=AT, ended=AT, result=result)
    drive.source.link.tell(drive.source.changed(ended))
    screen = drive.app.screen
    assert isinstance(screen, RepositoryBrowser)
    await drive.until(lambda: len(screen._answers.get(ended.target, Answer()).found) == len(found))
    await drive.settle()


def searched(datasets: list[dict[str, Any]], rows: list[DatasetRow]) -> Sequence[RemoteDataset]:
    """What the browser shows of a search with these datasets."""
    return answer_of(msgspec.convert({"datasets": datasets}, SearchResult), rows).found


def test_what_is_found_and_how_it_stands_to_what_is_here() -> None:
    remote = Remote(url=f"{BASE}wards/", label="hospital/wards", pull=True, relation="behind", theirs=4,
                    their_head="f1620bb", at=AT)  # fmt: skip
    rows = [
        dataset("visits", head="f1620aa"),
        dataset("wards", remotes=(remote,)),
        dataset("x-ray", missing=True),
    ]
    found = searched([VISITS, WARDS, SHORT, {"name": "no address"}], rows)
    assert [each.standing for each in found] == ["here, the same", "here, 4 behind", ""]
    more = {**VISITS, "head": "f1620cc", "blocks": 30}
    (behind,) = searched([more], rows)
    assert behind.standing == f"here, {30 - rows[0].blocks} blocks less"
    (unknown,) = searched([{**VISITS, "blocks": None, "records": None}], rows)
    assert (unknown.blocks, unknown.records) == (None, None)
    assert [each.name for each in matching_words(found, "CLINICS health")] == ["visits"]
    assert searched([], rows) == []


async def test_choosing_finding_and_pulling_one(source: FakeSource) -> None:
    prepared(source)
    source.rows_[1] = dataset(
        "my-wards", remotes=(Remote(url=WARDS["url"], label="hospital/wards", pull=True),)
    )
    async with driven(source, (80, 24)) as drive:
        await in_browser(drive)
        assert source.link.submitted == [Search(text="", repositories=["hospital"])]
        await answered(drive, VISITS, WARDS, SHORT)
        compare(drive, "browser")
        assert "3 datasets" in drive.text()
        await drive.press("=ward", "down")
        text = drive.text()
        assert "1 of 3 datasets" in text
        assert "as my-wards" in text
        assert "x-ray" not in text
        assert "\x1b" not in text
        await drive.press("=", "=clinics")
        await until_asked(drive, "enter", by=PromptDialog)
        await drive.press("=port-haven.clinics", "enter")
        assert "exists already" in drive.text()
        await drive.press("=visits", "enter")
        url = VISITS["url"]
        assert source.link.submitted[1:] == [Pull(dataset=url, url=url, alias="visits")]
        assert drive.app.screen is drive.bench


async def test_several_are_marked_and_what_is_here_is_brought_up_to_date(source: FakeSource) -> None:
    prepared(source)
    wards = dataset("my-wards", remotes=(Remote(url=WARDS["url"], label="hospital/wards", pull=True),))
    source.rows_.append(wards)
    taken = entry("harbour.tides")
    async with driven(source) as drive:
        await in_browser(drive, "a")
        await answered(drive, VISITS, WARDS, SHORT, taken)
        del source.link.submitted[0]
        await drive.press("plus", "plus", "plus", "up", "plus", "plus")
        assert "3 marked" in drive.text()
        await until_asked(drive, "enter", by=PromptDialog)  # of the name that is taken
        await drive.press("=other.tides", "enter")
        assert source.link.submitted[1:] == [
            Pull(dataset=VISITS["url"], url=VISITS["url"], alias="visits"),
            Pull(dataset=wards.id, url=WARDS["url"]),
            Pull(dataset=taken["url"], url=taken["url"], alias="other.tides"),
        ]


async def test_what_cannot_be_asked_is_told_in_place_and_asked_again(source: FakeSource) -> None:
    prepared(source)
    async with driven(source, (80, 24)) as drive:
        await in_browser(drive, "a")
        await drive.until(lambda: len(source.link.submitted) == 2)
        assert source.link.submitted == [
            Search(text="", repositories=[each]) for each in ("hospital", "lake")
        ]
        await drive.until(lambda: "asking · 2 still to answer" in drive.text())
        await answered(drive, problems=[{"repository": "lake", "message": "access is denied"}])
        await drive.until(lambda: "lake: access is denied" in drive.text())
        assert "asking" in drive.text()  # the other one
        result = json.dumps({"datasets": [SHORT], "problems": []})
        done = replace(source.known[-2], state=JobState.done, started=AT, ended=AT, result=result)
        source.link.tell(source.changed(done))
        await drive.until(lambda: "x-ray" in drive.text())
        assert "asking" not in drive.text()
        await drive.press("ctrl+r")
        await drive.until(lambda: len(source.link.submitted) == 4)
        error = Failure("there is no network", hint="plug it in")
        failed = [replace(each, state=JobState.failed, ended=AT, error=error) for each in source.known[-2:]]
        source.link.tell(*map(source.changed, failed))
        await drive.until(lambda: "plug it in" in drive.text())
        assert "x-ray" in drive.text()  # what was found before stays


async def test_leaving_stops_the_search(source: FakeSource) -> None:
    prepared(source)
    async with driven(source) as drive:
        await in_browser(drive)
        job = source.known[-1].id
        await drive.press("ctrl+g")
        await drive.until(lambda: source.link.cancelled == [job])
        await until_asked(drive, "escape", by=PickerDialog)
        await drive.until(lambda: source.link.cancelled == [job, job])
        await drive.press("escape")
        assert drive.app.screen is drive.bench


async def test_thousands_are_shown_and_narrowed_quickly(source: FakeSource) -> None:
    prepared(source)
    many = [
        entry(f"town{number:05d}.visits", description="x" * 200, records=number) for number in range(3000)
    ]
    async with driven(source) as drive:
        screen = await in_browser(drive)
        await answered(drive, *many)
        started = time.process_time()
        await drive.press("=town02999")
        assert [each.name for each in screen._list.shown] == ["town02999.visits"]
        await drive.press("=visits", "pagedown", "down")
        assert time.process_time() - started < 1
        assert "3 000 datasets" in drive.text()


async def test_repositories_are_added_and_forgotten(source: FakeSource) -> None:
    async with driven(source) as drive:
        await until_asked(drive, "I", by=PickerDialog)
        assert "forget" not in drive.text()
        await until_asked(drive, "plus", by=PromptDialog)
        await drive.press("=ftp://old.example/", "enter")
        assert "no address that is known" in drive.text()
        await drive.press("=s3://lake/odf", "enter")
        await drive.until(lambda: "Name of the repository" in drive.text())
        await drive.press("=my lake", "enter")
        assert "a name has letters" in drive.text()
        await drive.press("=lake", "enter")
        await drive.until(lambda: source.places == [NamedUrl("lake", "s3://lake/odf/")])
        await drive.until(lambda: isinstance(drive.app.screen, PickerDialog))
        await drive.settle()
        assert "s3://lake/odf/" in drive.text()
        await until_asked(drive, "minus", by=PickerDialog)
        await until_asked(drive, "1", by=ConfirmDialog)
        await drive.press("y")
        await drive.until(lambda: source.places == [])


async def test_a_typed_address(source: FakeSource) -> None:
    prepared(source)
    here = dataset("visits", remotes=(Remote(url=f"{BASE}visits/", label="hospital/visits", pull=True),))
    source.rows_.append(here)
    async with driven(source) as drive:
        await until_asked(drive, "I", "u", by=PromptDialog)
        await drive.press("=ipns://k51/clinics/wards", "enter")
        await drive.until(lambda: "Name of the dataset here" in drive.text())
        await drive.press("enter")
        url = "ipns://k51/clinics/wards/"
        assert source.link.submitted == [Pull(dataset=url, url=url, alias="wards")]
        await until_asked(drive, "I", "u", by=PromptDialog)
        await drive.press("=hospital/visits", "enter")
        assert source.link.submitted[1:] == [Pull(dataset=here.id, url=f"{BASE}visits/")]
        await until_asked(drive, "I", "u", by=PromptDialog)
        await drive.press("=hospital", "enter")
        assert isinstance(drive.app.screen, PromptDialog)  # a repository is no dataset
