"""The screens of flows and checks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from odf_engine.api.flows import WorkspaceFlows
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.base.progress import JobWarning
from odf_engine.checks.definition import CheckDefinition
from odf_engine.checks.reports import CheckReport, RuleResult, encode_report, store_rejected, store_report
from odf_engine.jobs.check import Check, CheckResult
from odf_engine.worker.protocol import Job, JobState
from odf_engine.workspace.documents.store import Documents
from odf_engine.workspace.workspace import Workspace
from odf_tui.features.automation.checks_screen import ChecksScreen
from odf_tui.features.automation.documents_screen import DocumentList
from odf_tui.features.automation.flows_screen import FlowsScreen
from odf_tui.panes.jobs.view import end_lines
from odf_tui.widgets.line_view import WrappedLines
from tests.sync.builders import make_root
from tests.tui.context import Fakes
from tests.tui.waiting import until
from tests.tui.widget_app import WidgetApp, shown

CHECK = b"""\
headers: {name: cases}
spec:
  target: my.rows
  rules:
    - {kind: NotNull, columns: [city]}
    - {kind: Sql, name: never, query: SELECT * FROM new_rows WHERE city IS NULL}
"""
FLOW = """\
headers: {{name: {name}}}
spec:
  target: my.rows
  triggers: [{{kind: Schedule, cron: 30 2 * * *}}]
  tasks: [{{kind: Pull}}]
"""


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkspaceFlows:
    """A workspace with two flows, one of which has a failed run."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    flows = WorkspaceFlows(Workspace.init(tmp_path / "ws").odf)
    for name in ("hourly", "nightly"):
        flows.documents.write(FLOW.format(name=name).encode(), name)
        flows.resume(name)
    state = flows.store.states()["nightly"]
    run = flows.store.begin(state, "Schedule", 1e9, 1e9)
    rows = "".join(f"row {at}\n" for at in range(30))
    flows.store.set_output(run.id, f"$ sh fetch.sh\n{rows}fetched \x1b 7\n")
    flows.store.set_warnings(run.id, [JobWarning("late-rows", "2 late rows", 2, "my.rows")])
    flows.store.end(run, "failed", "pull my.rows: no network (job 7)", 1e9 + 5, state)
    return flows


class Shown(WidgetApp):
    """An app with only this screen."""

    def __init__(self, odf: Path) -> None:
        opened: Any = OpenWorkspace(Workspace(odf.parent))
        self.fakes = Fakes(opened)
        self.shown = FlowsScreen(self.fakes.context)
        super().__init__(self.shown)

    def lines(self) -> list[str]:
        rows = self.shown.query_one(DocumentList)
        return ["".join(text for text, _ in rows.spans(at)) for at in range(rows.count())]

    def about(self) -> str:
        return about(self)


def about(app: WidgetApp) -> str:
    """Return the lines about the document under the cursor."""
    lines = app.screen.query_one("#about-document", WrappedLines).source_lines
    return "\n".join("".join(text for text, _ in line) for line in lines)


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_flow_list_shows_states_and_last_runs(flows: WorkspaceFlows, size: tuple[int, int]) -> None:
    app = Shown(flows.documents.folder.parent)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: len(app.lines()) == 2 and "no runs yet" in app.about())
        hourly, nightly = app.lines()
        assert "active" in hourly and "in " in hourly and "failed" in nightly
        assert ("30 2 * * *" in hourly) == (size[0] > 80)
        await pilot.press("j")
        await until(pilot, lambda: "no network (job 7)" in app.about())
        assert "newest 1 run, 1 failed" in app.about()
        assert "   fetched ␛ 7" in app.about() and "warning: 2 late rows" in app.about()
        assert "12 lines before: press o" in app.about() and "row 10\n" not in app.about()
        await pilot.press("o")
        await until(pilot, lambda: "Output of nightly: run 1" in app.text())
        assert "$ sh fetch.sh" in app.text() and "row 10" in app.text()
        await pilot.press("escape", "k", "o")
        await until(pilot, lambda: "no run of hourly has output" in app.text())


async def test_checks_dialog_lists_rules_reports_and_rejected_rows(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "ws")
    entry = make_root(workspace, "my.rows", slices=2)
    Documents(workspace.odf, CheckDefinition).write(CHECK, "check.yaml")
    last = entry.dataset.slices()[-1]
    sample = [{"offset": "4", "city": None}]
    result = RuleResult("cases", "1", "NotNull(city)", "NotNull", "block", 3, 1, "1 row with null", sample)
    passed = msgspec.structs.replace(result, failing=0, message="", sample=[])
    report = CheckReport(str(entry.id), str(last.physical_hash), 3, 5, "2024-05-01T00:00:00Z", [passed])
    key = workspace.keys.private_key_pem(entry.id)
    store_report(entry.dataset.folder, last.physical_hash, encode_report(report, key))
    staged = tmp_path / "staged"
    shutil.copy(entry.dataset.slice_path(last), staged)
    path = store_rejected(workspace.odf, staged, msgspec.structs.replace(report, results=[result]))

    opened: Any = OpenWorkspace(workspace)
    fakes = Fakes(opened, "my.rows", results={Check: CheckResult("my.rows", [result])})
    assert fakes.state.row is not None
    async with shown(ChecksScreen(fakes.context, fakes.state.row), (160, 50)) as (app, pilot):
        await until(pilot, lambda: "offset=4, city=None" in app.text())
        text = about(app)
        assert " cases  NotNull(city), never" in text and "new: press a to review and accept it" in text
        assert f"block {last.sequence_number}  1 passed  signed" in text
        assert f"3 rows  {path}" in text and "failed   cases: NotNull(city): 1 row with null" in text
        await pilot.press("r")
        await until(pilot, lambda: fakes.jobs.requests == [Check(dataset=str(entry.id))])
    marks = opened.rows(str(entry.id)).slices
    assert [mark.checks for mark in marks] == ["", "1 passed"]

    job = Job(
        id="1", kind="check", target="my.rows", dataset=str(entry.id), state=JobState.done,
        created="2024-05-01T00:00:00Z", result=msgspec.json.encode(CheckResult("my.rows", [result])).decode(),
    )  # fmt: skip
    spans = "\n".join("".join(part for part, _ in line) for line in end_lines(job))
    assert "failed   cases: NotNull(city): 1 row with null (3 rows examined)" in spans
    assert "offset=4, city=None" in spans


async def test_checks_dialog_shows_the_newest_check_of_all_rows(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "ws")
    entry = make_root(workspace, "my.rows")
    fakes = Fakes(OpenWorkspace(workspace), "my.rows")  # type: ignore[arg-type]
    assert fakes.state.row is not None
    async with shown(ChecksScreen(fakes.context, fakes.state.row), (160, 50)) as (app, pilot):
        await until(pilot, lambda: " results  none" in app.text())
    results = [RuleResult("cases", "1", "NotNull(city)", "NotNull", "block", 3, 1, "1 row with null")]
    jobs = [
        Job(
            str(number), "check", "my.rows", dataset, JobState.done, "2024-05-01T00:00:00Z",
            ended=f"2024-05-01T00:00:0{number}Z",
            result=msgspec.json.encode(CheckResult("my.rows", results)).decode(),
        )
        for number, dataset in enumerate([str(entry.id), str(entry.id), "another"])
    ]  # fmt: skip
    trial = CheckResult("my.rows", results, is_trial=True)
    jobs.append(
        msgspec.structs.replace(jobs[1], id="9", result=msgspec.json.encode(trial).decode(), target="trial")
    )
    fakes.state.jobs.load(jobs[::-1], 0)
    async with shown(ChecksScreen(fakes.context, fakes.state.row), (160, 50)) as (app, pilot):
        await until(pilot, lambda: "1 rule failed" in app.text())
        after = app.text()
    assert " results  none" not in after
    assert after.count("1 rule failed") == 1 and " 2024-05-01 00:00:01  all rows  1 rule failed" in after
    assert "failed   cases: NotNull(city): 1 row with null (3 rows examined)" in after


async def test_keys_pause_start_accept_and_remove_flows(flows: WorkspaceFlows) -> None:
    app = Shown(flows.documents.folder.parent)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(app.lines()) == 2)
        await pilot.press("p")
        await until(pilot, lambda: "paused" in app.lines()[0])
        assert flows.summary("hourly").reason == "paused by the user"
        await pilot.press("enter")
        await until(pilot, lambda: flows.store.states()["hourly"].requested)
        await pilot.press("p")
        await until(pilot, lambda: "active" in app.lines()[0])
        flows.documents.path("nightly").write_text(FLOW.format(name="nightly").replace("30 2", "31 2"))
        await pilot.press("j")
        await until(pilot, lambda: "changed" in app.lines()[1] and "press a" in app.about())
        await pilot.press("enter")
        await until(pilot, lambda: "nightly is changed: press p to accept it" in app.text())
        await pilot.press("p")
        await until(pilot, lambda: "active" in app.lines()[1])
        await pilot.press("x", "y")
        await until(pilot, lambda: len(app.lines()) == 1)
        assert flows.store.states().keys() == {"hourly"}
        flows.documents.path("bad").write_text("headers: {name: bad}\n")
        await until(pilot, lambda: len(app.lines()) == 2 and "invalid" in app.lines()[0])
        await pilot.press("k")
        await until(pilot, lambda: "missing required field `spec`" in app.about())
