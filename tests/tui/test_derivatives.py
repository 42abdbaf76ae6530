"""Derivative datasets: queries, transactions, health, and diverged inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from odf_engine.api.model import BlockDocument, DatasetRow, ShownTransaction, Target, TransactionInput
from odf_engine.api.text import QueryText
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.identity.multiformats import Multihash
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.model import Checkpoint, ExecuteTransform, ExecuteTransformInput, SetInfo
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.worker.protocol import Failure, JobState, Progress
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.panes.blocks.block_dialogs import BlockDialog, transaction_lines
from odf_tui.state.job_book import JobBook, dataset_healths
from odf_tui.state.model import Health
from odf_tui.text.highlight import sql_spans, value_lines, yaml_spans
from odf_tui.text.job_text import job_outcome, verification_spans
from odf_tui.widgets.dialogs import TypedConfirmation
from tests.tui.conftest import driven
from tests.tui.haven import AIR, DAYS, STATIONS, append, dataset, derive, did
from tests.tui.scripted_worker import Scenario
from tests.tui.test_blocks import NoNavigation, compare, dialog_text
from tests.tui.test_workspace_reads import MANIFEST, add_rows
from tests.tui.widget_app import shown

QUERY = "SELECT round(avg(t.start)) AS n, -- all\n  'it''s' AS `from`\nFROM air WHERE x IN(1) AND y > 1.5"


def test_queries_are_highlighted_alone_and_in_yaml() -> None:
    lines = sql_spans(QUERY)
    assert ("SELECT", "key") in lines[0]
    assert {("round", "name"), ("avg", "name")} <= set(lines[0])
    assert all("start" not in text or style != "key" for text, style in lines[0])
    assert lines[0][-1] == ("-- all", "muted")
    assert ("'it''s'", "good") in lines[1]
    assert ("`from`", "key") not in lines[1]
    assert {("IN", "key"), ("1.5", "title")} <= set(lines[2])
    assert ["".join(text for text, _ in line) for line in lines] == QUERY.splitlines()
    assert value_lines(QueryText(QUERY)) == lines
    assert value_lines(QUERY)[0] == [(QUERY.splitlines()[0], "")]
    # In YAML, up to the next key. Control characters are escaped.
    text = "transform:\n  query: |\n    SELECT 1\n\n    FROM x\x1b\n  engine: spark\nquery: SELECT 2\n"
    yaml = yaml_spans(text)
    assert len(yaml) == len(text.splitlines())
    assert yaml[2] == [("    ", ""), ("SELECT", "key"), (" ", ""), ("1", "title")]
    assert "\x1b" not in str(yaml[4])
    assert yaml[5][1] == ("engine:", "name")
    assert ("SELECT", "key") in yaml[6]


def test_transaction_lines_report_missing_inputs() -> None:
    parts = (
        TransactionInput("a", "air", "air", (0, 0), 4, None),
        TransactionInput("b", "boats", "b", None, 7, 7),
        TransactionInput("c", "clouds", "clouds", (5, 9), None, None),
        TransactionInput("d", did("d"), "dew", (5, 9), None, None, here=False),
    )
    made = ShownTransaction(parts, None, 0, None, 4096, True, (("query", QueryText("SELECT 1")),), "flushed")
    lines, links = transaction_lines("out", made)
    texts = ["".join(text for text, _ in line) for line in lines]
    assert list(links.values()) == [
        Target("a", "blocks", 4),
        Target("a", "data", 0),
        Target("b", "blocks", 7),
    ]
    text = "\n".join(texts)
    assert "4.1 kB in a checkpoint, unchanged" in text
    assert "the state of the query was flushed" in text
    assert "up to 4 →" in text
    assert "1, offset 0 →" in text
    assert "boats as b" in text
    assert "no new blocks after 7" in text
    assert "its chain lacks the blocks that were read" in text
    assert "this input is not in this workspace" in text
    assert texts[-1].endswith("SELECT 1")


PARTS = (
    TransactionInput(AIR, "port-haven.air-readings", "air", (1200, 2399), 6, 4),
    TransactionInput(did("port-haven.stations"), "port-haven.stations", "stations", None, 4, 4),
)
MADE = ShownTransaction(
    PARTS,
    (120, 239),
    4440,
    "2024-03-10T00:00:00Z",
    None,
    False,
    (("engine", "spark"), ("query", QueryText(QUERY))),
)


async def test_transaction_dialog_matches_golden_text_and_follows_links() -> None:
    block = BlockDocument("sequenceNumber: 4\n", MADE, "", 4, "f1620" + "04" * 32)
    navigation, size = NoNavigation(), (80, 24)
    async with shown(BlockDialog("air-by-day · block 4", DAYS, block, "", print, navigation), size) as (
        app,
        pilot,
    ):
        compare(dialog_text(app), size, "transaction")  # its rows, its inputs, its query
        await pilot.press("w")
        assert "sequenceNumber: 4" in app.text()
        await pilot.press("w", "enter", "j", "enter")
        assert navigation.calls == [Target(DAYS, "data", 120), Target(AIR, "blocks", 6)]


@pytest.mark.app
@pytest.mark.complete
async def test_transactions_lead_to_inputs_and_a_diverged_dataset_is_rebuilt(source: Scenario) -> None:
    readings, stations, days = (source.entry(each) for each in (AIR, STATIONS, DAYS))
    append(readings.dataset, 1200)
    append(stations.dataset, 1)
    derive(days.dataset, [readings, stations], 120)
    rows = [
        replace(row, diverged=("port-haven.stations",)) if row.id == DAYS else row for row in source.rows_
    ]
    # Of the downstream datasets only those with rows are named.
    source.rows_ = [
        replace(row, last_pulled="2024-03-11T08:15:00Z") if row.name == "smoke-and-breath" else row
        for row in rows
    ]
    async with driven(source, (80, 24)) as drive:
        bench = drive
        await drive.press("D")
        assert "port-haven.air-readings has not diverged" in drive.hint()
        await drive.press("slash", "=air-by-day", "enter")
        assert "◆ air-by-day ÷" in drive.text()
        await drive.press("2")
        await drive.press("enter")
        await drive.press("j", "enter")  # the block of the first input, which is read next
        assert "port-haven.air-readings · block 13" in drive.text()
        assert "sequenceNumber: 13" in drive.text()
        assert bench.pane == "blocks"
        assert bench.graph.selected == AIR
        assert bench.blocks_pane.view.block is not None
        assert bench.blocks_pane.view.block.sequence_number == 13
        assert bench.datasets_pane.filter == ""  # it would have hidden the input
        await drive.press("ctrl+o")
        assert "air-by-day · block 5" in drive.text()
        assert bench.graph.selected == DAYS
        await drive.press("j", "j", "enter")
        await drive.until(lambda: bench.data_pane.view.cursor == 7200)
        assert (bench.pane, bench.graph.selected) == ("data", AIR)
        assert "row 7 201 of 8 400" in drive.text()
        # The rows of the transaction are a link as well.
        await drive.press("backspace")
        await drive.press("enter")
        await drive.until(lambda: bench.data_pane.view.cursor == 240)
        await drive.press("2")
        await drive.press("enter")
        await drive.press("w", "left_square_bracket")
        assert "sequenceNumber: 4" in drive.text()
        await drive.press("escape")
        assert drive.app.screen is drive.bench
        # A diverged dataset is not pulled, but rebuilt after its name was typed.
        await drive.press("1")
        assert "÷ input port-haven.stations was reset or replaced: press D to rebuild it" in drive.text()
        await drive.press("p")
        assert "press D to rebuild air-by-day" in drive.hint()
        await drive.press("P")
        assert "1 diverged from upstream: D rebuilds them" in drive.hint()
        assert DAYS not in [request.dataset for request in source.link.submitted]
        source.link.submitted.clear()
        await drive.pilot.press("D")
        await drive.until(lambda: isinstance(drive.app.screen, TypedConfirmation))
        await drive.settle()
        assert "type air-by-day to rebuild it" in drive.text()
        assert "360 rows in 6 blocks" in drive.text()
        assert "rebuild smoke-and-breath too" in drive.text()
        await drive.press("=yes", "enter")
        assert "air-by-day is unchanged" in drive.hint()
        assert source.link.submitted == []
        await drive.press("enter")  # from its details
        assert "D rebuilds it" in drive.text()
        await drive.pilot.press("D")
        await drive.until(lambda: isinstance(drive.app.screen, TypedConfirmation))
        await drive.press("=air-by-day", "enter")
        (request,) = source.link.submitted
        assert isinstance(request, Pull)
        assert (request.dataset, request.reset_on_divergence) == (DAYS, True)
        assert AIR in request.after


def test_derivative_health_follows_jobs_inputs_and_divergence(source: Scenario) -> None:
    book = JobBook()

    def health(**more: object) -> Health:
        return dataset_healths([dataset("days", "air", records=3, **more)], book)[did("days")]

    assert health() is Health.current
    assert health(behind=True) is Health.stale
    job = source.job(JobState.running, "days")
    book.jobs[job.id] = job
    assert health(behind=True) is Health.running
    book.jobs[job.id] = replace(job, state=JobState.failed, error=Failure("division by zero"))
    assert health(behind=True) is Health.failed
    assert health(diverged=("air",)) is Health.diverged
    updated = source.job(JobState.done, "days", "update", id="99")
    book.jobs[updated.id] = updated
    assert health(behind=True) is Health.stale
    del book.jobs[updated.id]
    book.jobs[job.id] = replace(job, state=JobState.done)
    assert health() is Health.current


def test_replay_outcome_counts_transactions(source: Scenario) -> None:
    running = source.job(
        JobState.running, "days", "verify", progress=Progress(phase="replay", files=3, total_files=12)
    )
    assert job_outcome(running) == ("replay · transaction 3 of 12", "busy")
    skipped = {"kind": "input-missing", "block": "f1620", "message": "dew is not here"}
    result = {"valid": True, "findings": [], "transforms": 12, "unchecked": [skipped]}
    done = source.job(JobState.done, "days", "verify", result=json.dumps(result))
    assert job_outcome(done) == ("valid, 12 transactions replayed, 1 skipped", "good")
    result |= {"transforms": 1, "transforms_known": 1200, "blocks": 5}
    done = source.job(JobState.done, "days", "verify", result=json.dumps(result))
    assert job_outcome(done) == ("valid, 1 transaction replayed, 1 200 verified before, 1 skipped", "good")
    text = "".join(part for line in verification_spans(done) for part, _ in line)
    assert "1 200 transactions verified before" in text


def test_verification_spans_list_checks_engines_and_origins(source: Scenario) -> None:
    engine = {"engine": "spark", "version": "4.3.0", "made_by": "4.2.1", "transactions": 2, "records": 36}
    air: dict[str, object] = {
        "id": "a", "name": "air", "kind": "Root", "records": 7, "problem": None, "first": None, "last": None,
        "inputs": [],
    }  # fmt: skip
    load = {
        "since": "2024-03-01T00:00:00Z",
        "loads": 1,
        "records": 7,
        "first": "2024-03-01T00:00:00Z",
        "last": "2024-03-02T00:00:00Z",
    }
    air["sources"] = [{**load, "kind": "Url", "place": "air.csv\x1b", "block": "f16200000abcd1234"}]
    read = {"name": None, "id": did("a"), "alias": "", "offset": 6, "block": "f16200000abcd1234"}
    days = {**air, "id": "d", "name": "days", "kind": "Derivative", "engine": "spark", "version": None}
    days |= {"transactions": 2, "inputs": [read]}
    report = {
        "valid": False, "blocks": 5, "slices": 1, "transforms": 2, "engines": [engine],
        "origins": [days, air],
        "findings": [{"kind": "transform-data", "block": "f1620", "message": "record 3 is 7"}],
        "unchecked": [{"kind": "input-missing", "block": "f1620", "message": "dew is not here"}],
    }  # fmt: skip
    job = source.job(JobState.done, "days", "verify", result=json.dumps(report))
    text = "\n".join("".join(part for part, _ in line) for line in verification_spans(job))
    assert text.startswith("checked  5 blocks\n")
    assert "2 transactions with 36 rows replayed by spark 4.3.0, originally 4.2.1" in text
    assert "finding  transform-data: block f1620: record 3 is 7" in text
    assert "not checked: input-missing: dew is not here (1 transaction)" in text
    assert "air.csv␛: 7 rows in 1 commit (2024-03-01 to 2024-03-02 UTC), defined in block 0000abcd" in text
    assert f"{did('a')}: to offset 6, block 0000abcd" in text
    # Reports of earlier versions have fewer fields.
    assert verification_spans(source.job(JobState.done, "days", "verify", result='{"valid": true}')) == []
    assert verification_spans(source.job(JobState.done, "days", "verify", result="not JSON")) == []
    report["origins"] = [{"name": "days"}]
    assert verification_spans(source.job(JobState.done, "days", "verify", result=json.dumps(report))) == []


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Boats with six rows, and long boats with one transaction over the first three."""
    made = Workspace.init(tmp_path / "harbour")
    made.add(read_manifests(MANIFEST, "test"))
    boats, long = made.resolve("boats"), made.resolve("long-boats")
    add_rows(boats, batches=2, rows=3)
    transact(long, boats)
    return made


def transact(long: DatasetEntry, boats: DatasetEntry) -> None:
    """Commit a transaction that read the first slice of boats and has a checkpoint."""
    state, staged = long.dataset.state(), long.dataset.staging_path("checkpoints")
    staged.write_bytes(b"what a query keeps" * 100)
    first = boats.dataset.slices()[0]
    event = ExecuteTransform(
        query_inputs=[
            ExecuteTransformInput(
                boats.id,
                new_block_hash=boats.dataset.list_blocks(1, first.sequence_number + 1)[0].hash,
                new_offset=2,
            )
        ],
        new_checkpoint=Checkpoint(Multihash.sha3_256(staged.read_bytes()), staged.stat().st_size),
        new_watermark=Timestamp.parse("2024-03-10T00:00:00Z"),
    )
    long.dataset.commit([event], system_time=Timestamp.now(), expected_head=state.head, checkpoint=staged)


def test_transaction_shows_rows_state_and_replaced_input(workspace: Workspace) -> None:
    source = OpenWorkspace(workspace)
    boats, long = (workspace.resolve(name) for name in ("boats", "long-boats"))
    name = str(long.id)

    def row() -> DatasetRow:
        return next(row for row in source.datasets() if row.id == name)

    def transaction() -> tuple[str, list[Target]]:
        made = source.block(name, long.dataset.state().sequence_number).transaction
        assert made is not None
        lines, links = transaction_lines(name, made)
        return "\n".join("".join(text for text, _ in line) for line in lines), list(links.values())

    assert row().behind and not row().diverged  # the second slice of its input was not read yet
    detail = source.detail(name)
    assert ("state", "1.8 kB in a checkpoint") in [
        fact for section in detail.sections for fact in section.facts
    ]
    assert "SELECT * FROM boats" in str(detail)
    text, links = transaction()
    assert "rows          3, offsets 0 to 2 →" in text
    assert "watermark     2024-03-10" in text
    assert "1.8 kB in a checkpoint" in text
    assert Target(str(boats.id), "data", 0) in links
    # The input is replaced: its chain no longer has the blocks that were read.
    boats.dataset.restart_chain(
        [SetInfo(description="other boats")],
        system_time=Timestamp.now(),
        expected_head=boats.dataset.state().head,
    )
    assert row().diverged == ("boats",)
    assert "its chain lacks the blocks that were read" in transaction()[0]
