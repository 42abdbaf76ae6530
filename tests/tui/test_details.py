"""The detail of a dataset, what somebody else's would run, and datasets that are pushed into."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from odf_engine.coordinator.protocol import JobState, Pull
from odf_engine.errors import Conflict
from odf_engine.workspace.workspace import Workspace
from odf_tui.features.dataset_actions import DatasetDialog
from odf_tui.gateway.workspace_gateway import WorkspaceGateway
from odf_tui.state.model import Health
from odf_tui.text.job_text import job_outcome
from odf_tui.widgets.choice_list import Choices
from odf_tui.widgets.dialogs import TypedConfirmation
from odf_tui.widgets.status_bar import KeyHints
from tests.tui.conftest import driven
from tests.tui.fake import FakeSource, dataset
from tests.tui.test_pictures import compare

pytestmark = pytest.mark.app

TIDES = "did:odf:harbour.tides"


async def test_a_failed_dataset_says_why_and_what_to_do(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("G", "k")
        row = drive.graph.row
        assert row is not None
        assert row.name == "port-haven.clinics"
        # There is no room for the card: the lower border says it.
        assert "✗ column 'age' has the value 'forty' in row 212, which is no INT" in drive.text()
        await drive.press("enter")
        compare(drive, "80x24-detail")
        await drive.press("tab")
        assert "kind: Root" in drive.text()
        await drive.press("tab")
        assert "Last pull" in drive.text()
        await drive.press("escape", "slash", "=clinics", "enter")
        text = drive.text()  # now there is room
        assert "why  column 'age' has the value" in text
        assert "try  correct the file, or declare" in text
        await drive.press("enter", "p")  # what its keys say, they do
        assert source.link.submitted == [Pull(dataset=row.id)]


async def test_nothing_of_others_runs_before_it_was_shown(source: FakeSource) -> None:
    source.rows_ = [*source.rows_[:-1], replace(source.rows_[-1], standing="not trusted")]
    async with driven(source, (80, 24)) as drive:
        await drive.press("U")
        assert "is your own" in drive.hint()
        await drive.press("G")
        assert "◇ harbour.tides ⊘✓" in drive.text()
        await drive.press("U")
        assert "is not trusted" in drive.hint()
        await drive.press("P")  # all but this
        await drive.until(lambda: len(source.link.submitted) == 7)
        assert TIDES not in [request.dataset for request in source.link.submitted]
        assert "1 not trusted" in drive.hint()
        drive.bench.query_one(KeyHints).clear()  # a notice that time would take away
        await drive.until(lambda: "1 not trusted" not in drive.text())
        await drive.pilot.press("p")
        await drive.until(lambda: isinstance(drive.app.screen, TypedConfirmation))
        await drive.settle()
        compare(drive, "80x24-trust")
        assert "SELECT 19" not in drive.text()
        await drive.press("pagedown", "pagedown")
        assert "SELECT 19" in drive.text()
        await drive.press("y", "enter")  # not the word
        assert "harbour.tides is not trusted: nothing of it ran" in drive.hint()
        await drive.pilot.press("p")
        await drive.until(lambda: isinstance(drive.app.screen, TypedConfirmation))
        await drive.press("escape")
        assert len(source.link.submitted) == 7
        await drive.pilot.press("p")
        await drive.until(lambda: isinstance(drive.app.screen, TypedConfirmation))
        await drive.pilot.press(*"yes", "enter")
        await drive.until(lambda: source.link.submitted[-1] == Pull(dataset=TIDES))
        await drive.settle()
        assert "⊘" not in drive.text()
        await drive.press("t")
        assert "harbour.tides is trusted already" in drive.hint()
        await drive.pilot.press("U")
        await drive.until(lambda: "⊘" in drive.text())
        await drive.pilot.press("t")  # trust alone pulls nothing
        await drive.until(lambda: isinstance(drive.app.screen, TypedConfirmation))
        await drive.pilot.press(*"harbour.tides", "enter")
        await drive.until(lambda: "⊘" not in drive.text())
        assert len(source.link.submitted) == 8


async def test_pushed_datasets_say_how_and_show_their_jobs(source: FakeSource) -> None:
    source.rows_ = [
        dataset("events", polls=False, push_sources=("default",)),
        dataset("bare", polls=False),
        dataset("broken", polls=False, problem="block 3 is missing"),
    ]
    async with driven(source) as drive:
        await drive.press("colon", "=events", "enter", "p")
        assert "there is nothing to poll: data is pushed with odf ingest events FILE" in drive.hint()
        assert "They are pushed: odf ingest events FILE" in drive.text()
        await drive.press("P")
        assert "there is nothing to pull" in drive.hint()
        job = source.job(JobState.running, "events", "ingest")
        source.link.tell(source.changed(job))
        await drive.until(lambda: drive.healths["did:odf:events"] is Health.running)
        assert "▸ ingest events" in drive.text()
        result = '{"status": "updated", "records": 7, "blocks": 1}'
        done = replace(job, state=JobState.done, ended="2024-03-11T09:00:03Z", result=result)
        assert job_outcome(done) == ("+7 rows", "good")
        source.link.tell(source.changed(done))
        await drive.until(lambda: drive.healths["did:odf:events"] is Health.current)
        await drive.settle()
        await drive.press("enter")
        assert isinstance(drive.app.screen, DatasetDialog)
        assert "Last ingest" in drive.text()
        await drive.press("escape", "colon", "=bare", "enter", "p")
        assert "bare has no source: e edits its definition" in drive.hint()
        await drive.press("enter")
        assert "it has no source: e edits its definition" in drive.text()
        await drive.press("escape", "colon", "=broken", "enter", "e")
        assert "broken is damaged" in drive.hint()


MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: storms
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: Url
        url: https://weather.example/storms.csv.gz
        headers: [{name: X-Key, value: secret}]
        cache: {kind: Forever}
      prepare:
        - {kind: Decompress, format: Zip, subPath: "*.csv"}
        - {kind: Pipe, command: [sed, "s/a b/c/"]}
      read: {kind: Csv, header: true, separator: ";", encoding: ISO-8859-1, schema: [name STRING]}
      preprocess: {kind: Sql, engine: spark, query: SELECT name FROM input}
      merge: {kind: Snapshot, primaryKey: [name], compareColumns: [name]}
    - {kind: SetInfo, description: Storms at sea, keywords: [weather]}
    - {kind: SetLicense, shortName: CC0-1.0, name: CC0, websiteUrl: "https://cc.example"}
    - kind: SetAttachments
      attachments: {kind: Embedded, items: [{path: README.md, content: "# Storms"}]}
---
kind: DatasetSnapshot
version: 1
content:
  name: gauges
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: [id INT, level DOUBLE]}
      merge: {kind: Append}
    - kind: AddPushSource
      sourceName: old
      read: {kind: Parquet}
      merge: {kind: Ledger, primaryKey: [id]}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Two datasets."""
    made = Workspace.init(tmp_path_factory.mktemp("details") / "harbour")
    (made.folder / "all.yaml").write_text(MANIFEST)
    WorkspaceGateway(made).add(made.folder / "all.yaml")
    return made


def words(source: WorkspaceGateway, name: str) -> dict[str, dict[str, str]]:
    """Sections of a dataset's detail."""
    row = next(row for row in source.datasets() if row.name == name)
    return {section.title: dict(section.facts) for section in source.detail(row.id).sections}


def test_a_definition_in_words(workspace: Workspace) -> None:
    source = WorkspaceGateway(workspace)
    found = words(source, "storms")
    assert found["Source"] == {
        "fetch": "https://weather.example/storms.csv.gz",
        "headers": "X-Key",  # what they are set to may be a secret
        "cache": "fetched once, then never again",
        "prepare": "unpack zip, of it *.csv\npipe through sed 's/a b/c/'",
        "read": "CSV, with a header, separator ';', encoding ISO-8859-1, 1 column declared",
        "engine": "spark",
        "query": "SELECT name FROM input",
        "merge": "Snapshot: the whole list each time, compared by its key\nkey name\ncompares name",
        "state": "nothing was taken yet",
    }
    assert found["About"] == {
        "about": "Storms at sea",
        "keywords": "weather",
        "licence": "CC0 (CC0-1.0)\nhttps://cc.example",
        "attached": "README.md, 1 line",
    }
    assert found["Time"] == {"watermark": "none yet", "event time": "column event_time"}
    assert "Trust" not in found
    pushed = words(source, "gauges")
    assert pushed["Push source default"]["push"] == "odf ingest gauges FILE\n… | odf ingest gauges -"
    assert pushed["Push source default"]["read"] == "NDJSON, a document a line, 2 columns declared"
    assert pushed["Push source old"]["push"].startswith("odf ingest gauges FILE --source old\n")
    (row,) = (row for row in source.datasets() if row.name == "gauges")
    assert (row.polls, row.push_sources) == (False, ("default", "old"))
    path = workspace.folder / "gauges.yaml"
    without = source.definition(row.id).replace("AddPushSource\n    sourceName: old", "DisablePushSource")
    text = without[: without.index("    - kind: AddPushSource", without.index("default"))]
    path.write_text(text + "    - kind: DisablePushSource\n      sourceName: old\n")
    (change,) = source.update(row.id, path, dry_run=False)
    assert "old" in change.title + "".join(change.lines)
    assert words(source, "gauges")["Disabled"] == {"sources": "old"}


def test_what_somebody_else_wrote(workspace: Workspace, tmp_path: Path) -> None:
    own = WorkspaceGateway(workspace)
    storms = next(row for row in own.datasets() if row.name == "storms")
    theirs = Workspace.init(tmp_path / "theirs")
    folder = workspace.resolve("storms").dataset.folder
    shutil.copytree(folder, theirs.odf / "datasets" / folder.name)
    source = WorkspaceGateway(theirs)
    assert source.datasets()[0].untrusted
    assert words(source, "storms")["Trust"]["not trusted"].startswith("nothing of it runs here")
    standing = source.trust_request(storms.id)
    assert [(run.does, run.text) for run in standing.runs][:2] == [
        ("reads the address", "https://weather.example/storms.csv.gz"),
        ("sends the header", "X-Key: secret"),
    ]
    assert not standing.before
    with pytest.raises(Conflict, match="changed meanwhile"):
        source.trust(storms.id, replace(standing, runs=standing.runs[1:]))
    assert source.datasets()[0].standing == "not trusted"
    source.trust(storms.id, standing)
    path = theirs.folder / "storms.yaml"
    path.write_text(source.definition(storms.id).replace("storms.csv.gz", "other.csv.gz"))
    source.update(storms.id, path, dry_run=False)  # a block that changes the source takes the trust back
    assert source.datasets()[0].untrusted
    standing = source.trust_request(storms.id)
    assert standing.before
    source.trust(storms.id, standing)
    assert source.datasets()[0].standing == "trusted"
    assert words(source, "storms")["Trust"]["trusted"].endswith("until a block changes its source")
    assert source.untrust(storms.id)
    assert not source.untrust(storms.id)
    assert source.datasets()[0].untrusted


async def test_dialogs_keep_all_they_have_in_sight(source: FakeSource) -> None:
    source.rows_ = [replace(source.rows_[0], standing="not trusted"), *source.rows_[1:]]
    async with driven(source, (80, 24)) as drive:
        for size in ((80, 24), (60, 14), (80, 18)):
            await drive.pilot.resize_terminal(*size)
            await drive.pilot.press("p")
            await drive.until(lambda: isinstance(drive.app.screen, TypedConfirmation))
            await drive.settle()
            assert "type yes to allow exactly this" in drive.text()
            assert "esc closes" in drive.text()
            for key, last in (("question_mark", "leave; running jobs go on"), ("colon", "sixteen")):
                await drive.press("escape", key)
                drive.app.screen.query_one(Choices).move("last")
                await drive.settle()
                assert last in drive.text()
            await drive.press("escape")
