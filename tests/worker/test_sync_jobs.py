"""The jobs that exchange datasets: what they do, give back and remember. None of them asks for Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.errors import Cancelled, Conflict, NotFound, NotTrusted, OdfError, UsageError
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.push import Push
from odf_engine.jobs.query import Query
from odf_engine.jobs.remotes import Compare, Search
from odf_engine.jobs.verify import Verify
from odf_engine.metadata.yaml import read_manifests
from odf_engine.worker.protocol import Request
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from tests.log_lines import LogLines
from tests.sync.builders import add_blocks, as_repository, describe, make_root
from tests.worker.conftest import run_request

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: ports
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: "/etc/*"}
      read: {kind: Csv, schema: ["name STRING"]}
      merge: {kind: Append}
"""

PUSHED = """
    - kind: AddPushSource
      sourceName: ships
      read: {kind: NdJson, schema: ["name STRING"]}
      merge: {kind: Append}
"""


class Home:
    """No Spark at all: what is tested here must not ask for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def spark(self, reporter: Reporter):
        raise AssertionError("Spark was asked for")


@pytest.fixture
def here(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path / "there")


@pytest.fixture
def log() -> LogLines:
    return LogLines()


@pytest.fixture
def do(here: Workspace, log: LogLines) -> Any:
    """Does a job in the workspace ``here``."""
    return lambda request: run_request(request, JobContext(Home(here.folder)), log)


def url_of(entry: DatasetEntry) -> str:
    return f"file://{entry.dataset.folder}/"


def pull_new(url: str, alias: str = "numbers", **more: Any) -> Pull:
    return Pull(dataset=url, url=url, alias=alias, **more)


def test_pulled_dataset_remembers_its_remote(do, here, there, log) -> None:
    theirs = make_root(there, slices=2)
    url = url_of(theirs)
    found = do(pull_new(url, "lab/mine"))
    head = str(theirs.dataset.head())
    assert found.pop("bytes") > 1000
    assert found == {
        "name": "lab/mine", "status": "updated", "old_head": None, "new_head": head, "blocks": 4,
        "records": 6, "error": None, "url": url, "label": url, "ahead": 0, "added": 6,
    }  # fmt: skip
    assert log.lines[0] == f"pulling from {url}"
    entry, remotes = here.resolve("lab/mine"), Remotes(here.odf)
    assert entry.id == theirs.id
    assert remotes.get(entry.id).pull == [url]
    add_blocks(theirs, 2)
    found = do(Pull(dataset=str(entry.id)))
    assert (found["status"], found["old_head"], found["blocks"]) == ("updated", head, 2)
    assert do(Pull(dataset=str(entry.id)))["status"] == "up-to-date"
    seen = remotes.get(entry.id).find_status(url)
    assert seen is not None
    assert (seen.relation, seen.our_head, seen.their_head) == ("equal", *[str(theirs.dataset.head())] * 2)


def test_pulled_dataset_is_not_trusted(do, here, there) -> None:
    (theirs,) = there.add(read_manifests(MANIFEST, "ports.yaml"))
    do(pull_new(url_of(theirs), "ports"))
    entry, trust = here.resolve("ports"), Trust(here)
    assert trust.read_origin(entry) == url_of(theirs)
    assert trust.describe_status(entry) == "not trusted"
    Remotes(here.odf).detach(entry.id, url_of(theirs))
    with pytest.raises(NotTrusted, match="definition from file:"):
        do(Pull(dataset=str(entry.id)))


def test_second_pull_of_a_url_creates_no_second_dataset(do, here, there) -> None:
    theirs = make_root(there)
    url = url_of(theirs)
    do(pull_new(url))
    add_blocks(theirs)
    found = do(pull_new(url, "again"))  # as a retry, or two that asked at once
    assert (found["name"], found["blocks"]) == ("numbers", 1)
    assert len(here.datasets()) == 1


def test_pull_of_known_dataset_from_another_url_creates_no_copy(do, here, there, log, tmp_path) -> None:
    theirs = make_root(there)
    do(pull_new(url_of(theirs)))
    add_blocks(theirs, 3)
    copy = as_repository(theirs.dataset.folder, tmp_path / "copy")
    found = do(pull_new(copy, "copy"))
    assert (found["name"], found["blocks"], found["url"]) == ("numbers", 3, copy)
    assert "already in this workspace: numbers" in log.lines
    known = Remotes(here.odf).get(theirs.id)
    assert known.pull == [url_of(theirs)]  # a look elsewhere is no move
    assert known.find_status(copy) is not None


def test_pull_url_becomes_the_remote_of_a_detached_dataset(do, here, there, tmp_path) -> None:
    theirs = make_root(there)
    do(pull_new(url_of(theirs)))
    remotes = Remotes(here.odf)
    remotes.detach(theirs.id, url_of(theirs))
    copy = as_repository(theirs.dataset.folder, tmp_path / "copy")
    do(Pull(dataset=str(theirs.id), url=copy))
    assert remotes.get(theirs.id).pull == [copy]


def test_own_dataset_does_not_adopt_its_backup_as_pull_remote(do, here, tmp_path) -> None:
    mine = make_root(here, blocks=2)
    copy = as_repository(mine.dataset.folder, tmp_path / "copy")
    add_blocks(mine, 3)
    found = do(Pull(dataset=str(mine.id), url=copy))
    assert (found["status"], found["ahead"]) == ("up-to-date", 3)
    assert Remotes(here.odf).get(mine.id).pull == []
    assert Trust(here).is_own(mine)
    seen = Remotes(here.odf).get(mine.id).find_status(copy)
    assert seen is not None and (seen.relation, seen.ours) == ("ahead", 3)


def test_own_dataset_with_third_party_blocks_is_no_longer_own(do, here, tmp_path) -> None:
    mine = make_root(here)
    copy = as_repository(mine.dataset.folder, tmp_path / "copy")
    do(Push(str(mine.id), copy))
    other = Workspace.init(tmp_path / "other")
    run_request(pull_new(copy), JobContext(Home(other.folder)), Reporter())
    add_blocks(other.resolve("numbers"))
    run_request(Push(str(mine.id), copy), JobContext(Home(other.folder)), Reporter())
    do(Pull(dataset=str(mine.id), url=copy))
    assert not Trust(here).is_own(here.resolve("numbers"))


def test_diverged_histories_require_force(do, here, there) -> None:
    theirs = make_root(there, blocks=1)
    url = url_of(theirs)
    do(pull_new(url))
    entry = here.resolve("numbers")
    describe(theirs, "there")
    describe(entry, "here")
    add_blocks(entry)
    before = entry.dataset.head()
    with pytest.raises(Conflict) as caught:
        do(Pull(dataset=str(entry.id)))
    assert caught.value.exit_code == 4
    assert "2 blocks" in caught.value.message and "1" in caught.value.message
    assert "--force" in str(caught.value.hint)
    assert entry.dataset.head() == before
    seen = Remotes(here.odf).get(entry.id).find_status(url)
    assert seen is not None
    assert (seen.relation, seen.ours, seen.theirs) == ("diverged", 2, 1)
    with pytest.raises(Conflict):
        do(Push(str(entry.id), url))
    assert Remotes(here.odf).get(entry.id).push == []
    found = do(Pull(dataset=str(entry.id), force=True))
    assert found["new_head"] == str(theirs.dataset.head())
    assert [path.name for path in (entry.dataset.folder / "refs").iterdir() if "before" in path.name]


def test_pushing_is_remembered(do, here, log, tmp_path) -> None:
    mine = make_root(here, slices=1)
    url = f"file://{tmp_path}/copy/"
    found = do(Push(str(mine.id), url))
    assert found.pop("bytes") > 1000
    assert found == {
        "name": "numbers", "url": url, "label": url, "status": "updated", "old_head": None,
        "new_head": str(mine.dataset.head()), "blocks": 3, "objects": 1,
    }  # fmt: skip
    assert log.lines[0] == f"pushing to {url}"
    assert do(Push(str(mine.id), url))["status"] == "up-to-date"
    assert Remotes(here.odf).get(mine.id).push == [url]


def test_compare_continues_after_an_unreadable_remote(do, here, tmp_path) -> None:
    mine, remotes = make_root(here, blocks=2), Remotes(here.odf)
    copy = as_repository(mine.dataset.folder, tmp_path / "copy")
    add_blocks(mine)
    (tmp_path / "odd" / "refs").mkdir(parents=True)
    (tmp_path / "odd" / "refs" / "head").write_text("<html>")
    for url in (f"file://{tmp_path}/odd/", copy, f"file://{tmp_path}/none/"):
        remotes.attach(mine.id, url, "push")
    found = do(Compare(str(mine.id)))
    assert found["name"] == "numbers"
    assert [(each["relation"], each["ours"]) for each in found["seen"]] == [("ahead", 1), ("new", 5)]
    ((problem),) = found["problems"]
    assert problem["url"].endswith("/odd/")
    assert remotes.get(mine.id).push == [f"file://{tmp_path}/odd/", copy, f"file://{tmp_path}/none/"]


def test_search_continues_after_an_unreachable_repository(do, here, there, tmp_path) -> None:
    as_repository(make_root(there).dataset.folder, tmp_path / "shop" / "numbers")
    as_repository(make_root(there, "other").dataset.folder, tmp_path / "shop" / "joe" / "City.Numbers")
    remotes = Remotes(here.odf)
    remotes.add("gone", str(tmp_path / "gone"))
    remotes.add("shop", str(tmp_path / "shop"))
    found = do(Search("NUMBERS"))
    assert [(each["repository"], each["name"]) for each in found["datasets"]] == [
        ("shop", "joe/City.Numbers"), ("shop", "numbers"),
    ]  # fmt: skip
    assert [each["repository"] for each in found["problems"]] == ["gone"]
    assert do(Search("numbers city", ["SHOP"]))["datasets"][0]["url"].endswith("/shop/joe/City.Numbers/")
    assert do(Search("tides", ["shop"])) == {"datasets": [], "problems": []}
    with pytest.raises(NotFound):
        do(Search("numbers", ["lab"]))


def test_ingest_into_pulled_dataset_requires_trust_and_warns(do, here, there, log) -> None:
    text = MANIFEST.partition("    - kind")[0] + PUSHED
    (theirs,) = there.add(read_manifests(text, "ports.yaml"))
    do(pull_new(url_of(theirs), "ports"))
    entry = here.resolve("ports")
    with pytest.raises(NotTrusted):
        do(Ingest(str(entry.id), ["/tmp/x"]))
    Trust(here).grant(entry)
    for pushes, warned in ((False, True), (True, False)):
        if pushes:
            Remotes(here.odf).attach(entry.id, url_of(theirs), "push")
        log.lines.clear()
        with pytest.raises(AssertionError, match="Spark was asked for"):
            do(Ingest(str(entry.id), ["/tmp/x"]))
        assert any("blocks appended here diverge from" in line for line in log.lines) is warned


def test_invalid_pull_and_push_requests_are_rejected(do, here, there, tmp_path) -> None:
    theirs = make_root(there)
    url = url_of(theirs)
    with pytest.raises(UsageError, match="missing name"):
        do(Pull(dataset=url, url=url))
    do(pull_new(url))
    with pytest.raises(UsageError, match="the watermark cannot be set"):
        do(Pull(dataset=str(theirs.id), set_watermark="2024-01-01T00:00:00Z"))
    Remotes(here.odf).attach(theirs.id, "file:///b/", "pull")
    with pytest.raises(UsageError, match=r"several pull remotes: .*, file:///b/"):
        do(Pull(dataset=str(theirs.id)))
    for request in (Push(str(theirs.id), "https://joe:geheim@h/x"), Push(str(theirs.id), "gopher://h/x")):
        with pytest.raises(UsageError) as caught:
            do(request)
        assert "geheim" not in str(caught.value)


def test_pull_under_existing_name_is_rejected(do, here, there) -> None:
    make_root(here)
    with pytest.raises(OdfError, match="already exists"):
        do(pull_new(url_of(make_root(there))))
    assert len(here.datasets()) == 1


def test_a_cancelled_job_changes_nothing(here, there) -> None:
    theirs, reporter = make_root(there, slices=2), Reporter()
    reporter.cancel()
    with pytest.raises(Cancelled):
        run_request(pull_new(url_of(theirs)), JobContext(Home(here.folder)), reporter)
    assert here.datasets() == []
    assert Remotes(here.odf).find_by_url(url_of(theirs)) is None


@pytest.mark.parametrize(
    ("request_", "needs"),
    [
        (Pull("id"), True),
        (Pull("id", url="file:///x/"), False),
        (Push("id", "file:///x/"), False),
        (Compare("id"), False),
        (Search("x"), False),
        (Ingest("id", []), True),
        (Verify("id"), True),
        (Verify("id", integrity=True), False),
        (Query("SELECT 1"), True),
        (Query("SELECT 1", engine="duckdb"), False),
    ],
)
def test_needs_spark_depends_on_the_request(request_: Request, needs: bool) -> None:
    assert request_.needs_spark is needs
