"""Checks, flows and alerts are created from templates, edited, tried, accepted and removed on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from odf_engine.api import Alert, Check, CheckDefinition, CheckResult, Flow
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.checks.reports import RuleResult
from odf_engine.workspace.workspace import Workspace
from odf_tui.features.automation.alerts_screen import AlertsScreen
from odf_tui.features.automation.checks_screen import ChecksScreen
from odf_tui.features.automation.document_editor import DocumentEditor
from odf_tui.features.automation.flows_screen import FlowsScreen
from odf_tui.features.automation.templates import (
    TemplateDataset,
    alert_templates,
    check_templates,
    flow_templates,
)
from odf_tui.widgets.code_editor import YamlEditor
from odf_tui.widgets.dialogs import PickerDialog
from tests.sync.builders import make_root
from tests.tui.context import Fakes
from tests.tui.waiting import press, until
from tests.tui.widget_app import WidgetApp, shown

RESULT = RuleResult("rows-key", "1", "NotNull(city)", "NotNull", "block", 3, 1, "1 row with null", [])


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """A workspace with the dataset my.rows."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    workspace = Workspace.init(tmp_path / "ws")
    make_root(workspace, "my.rows", slices=2)
    opened: Any = OpenWorkspace(workspace)
    return Fakes(opened, "my.rows", results={Check: CheckResult("my.rows", [RESULT])})


def documents(fakes: Fakes, kind: type) -> Any:
    return fakes.source.documents(kind)


def editor(app: WidgetApp) -> DocumentEditor:
    assert isinstance(app.screen, DocumentEditor)
    return app.screen


def flat(app: WidgetApp) -> str:
    """Return the screen without the line breaks of dialogs."""
    return " ".join(app.text().replace("│", " ").split())


def replace(app: WidgetApp, old: str, new: str) -> None:
    area = editor(app).editor
    assert old in area.text
    area.load_text(area.text.replace(old, new))


async def choose_template(app: WidgetApp, pilot: Pilot[None], key: str) -> None:
    """Choose the template of a new document in the list of templates, which is read first."""
    await press(pilot, "n")
    await until(pilot, lambda: isinstance(app.screen, PickerDialog))
    await press(pilot, key)


async def test_check_from_template_is_validated_tried_stored_and_edited(fakes: Fakes) -> None:
    assert fakes.state.row is not None
    async with shown(ChecksScreen(fakes.context, fakes.state.row)) as (app, pilot):
        await until(pilot, lambda: "no checks yet: press n" in app.text())
        await choose_template(app, pilot, "k")
        await until(pilot, lambda: "valid; for my.rows" in app.text())
        text = editor(app).text
        assert "target: my.rows" in text and "# columns: event_time, city, people" in text
        assert "{kind: Unique, columns: [city]}" in text

        replace(app, "NotNull, columns: [city]", "NotNull, columns: [citi]")
        await until(pilot, lambda: "line 7, column" in app.text())
        assert "unknown column 'citi' – did you mean city?" in app.text()
        await press(pilot, "ctrl+s")
        await until(pilot, lambda: editor(app).editor.cursor_location[0] == 6)
        assert not documents(fakes, CheckDefinition).stamps()

        replace(app, "citi", "city")
        replace(app, "my.rows", "my.rosw")
        await until(pilot, lambda: "not found – did you mean 'my.rows'?" in flat(app))
        assert "line 3, column 11: dataset 'my.rosw'" in flat(app)
        replace(app, "my.rosw", "my.rows")
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: "1 row with null" in app.text())
        (request,) = fakes.jobs.requests
        assert isinstance(request, Check) and request.definition == editor(app).text

        await press(pilot, "ctrl+s")
        await until(pilot, lambda: isinstance(app.screen, ChecksScreen) and "active" in app.text())
        assert fakes.host.last_notice == "added check rows-key"
        stored = documents(fakes, CheckDefinition)
        assert stored.text("rows-key").decode() == text

        fakes.host.terminal.edits.append(lambda path: path.write_text(text.replace("block", "warn")))
        await press(pilot, "e")
        await until(pilot, lambda: "valid; for my.rows" in app.text())
        await press(pilot, "ctrl+o")
        await until(pilot, lambda: "onFailure: warn" in editor(app).text)
        replace(app, "rows-key", "other")
        await until(pilot, lambda: "the check is named 'other' – write rows-key" in flat(app))
        replace(app, "name: other", "name: rows-key")
        path = stored.path("rows-key")
        path.write_text(text.replace("onFailure", "# by hand\n  onFailure"))
        await press(pilot, "ctrl+s")
        await until(pilot, lambda: "was changed meanwhile" in app.text())
        path.write_text(text)
        await press(pilot, "ctrl+s")
        await until(pilot, lambda: isinstance(app.screen, ChecksScreen))
        assert stored.text("rows-key").decode() == text.replace("block", "warn")

        await press(pilot, "d", "y")
        await until(pilot, lambda: "no checks yet" in app.text())


async def test_check_whose_column_is_gone_says_so_in_the_list(fakes: Fakes) -> None:
    text = b"headers: {name: a}\nspec: {target: my.rows, rules: [{kind: NotNull, columns: [town]}]}\n"
    documents(fakes, CheckDefinition).write(text, "a")
    assert fakes.state.row is not None
    async with shown(ChecksScreen(fakes.context, fakes.state.row), (160, 50)) as (app, pilot):
        await until(pilot, lambda: "unknown column 'town'" in app.text() and "press e to edit a" in flat(app))


async def test_missing_column_of_a_query_is_found_while_typing(fakes: Fakes) -> None:
    """Also of another dataset. What cannot be resolved without Spark is not reported."""
    assert fakes.state.row is not None
    async with shown(ChecksScreen(fakes.context, fakes.state.row)) as (app, pilot):
        await until(pilot, lambda: "no checks yet: press n" in app.text())
        await choose_template(app, pilot, "k")
        await until(pilot, lambda: "valid; for my.rows" in app.text())
        head = "headers: {name: a}\nspec:\n  target: my.rows\n  rules:\n    - kind: Sql\n      query: "
        for query, problem in (
            ("SELECT citi FROM new_rows", "line 6, column 14: unknown column 'citi' – did you mean city?"),
            ("SELECT n.city FROM new_rows n JOIN my.rows r ON n.city = r.town", "unknown column 'town'"),
            ("SELECT r.city, op, offset, current_date FROM my.rows AS r, new_rows n WHERE n.people > 1", ""),
            ("SELECT explode(array(people)) AS each FROM as_at(my.rows, 'x') WHERE each > 1", ""),
            ("WITH t AS (SELECT city AS c FROM new_rows) SELECT c FROM t GROUP BY c HAVING max(c) > ''", ""),
        ):
            editor(app).editor.load_text(f"{head}{query}\n")
            await until(pilot, lambda problem=problem: (problem or "valid; for my.rows") in flat(app))
            editor(app).editor.load_text("")
            await until(pilot, lambda: "✓" not in app.text() and "unknown" not in app.text())


async def test_unsaved_changes_are_discarded_only_after_a_question(fakes: Fakes) -> None:
    assert fakes.state.row is not None
    async with shown(ChecksScreen(fakes.context, fakes.state.row)) as (app, pilot):
        await choose_template(app, pilot, "s")
        await until(pilot, lambda: "valid; for my.rows" in app.text())
        await press(pilot, "escape")
        await until(pilot, lambda: isinstance(app.screen, ChecksScreen))
        await choose_template(app, pilot, "s")
        await until(pilot, lambda: isinstance(app.screen, DocumentEditor))
        editor(app).editor.move_cursor((6, 4))
        await press(pilot, "end", "enter", "x", "escape", "n")
        assert editor(app).text.splitlines()[7] == "    x"  # a new line has the indent of the one above
        await press(pilot, "escape", "y")
        await until(pilot, lambda: isinstance(app.screen, ChecksScreen))


async def test_new_check_with_a_query_is_reviewed_before_it_is_accepted(fakes: Fakes) -> None:
    (template,) = (entry for entry in check_templates(TemplateDataset("my.rows"), ()) if entry.key == "s")
    documents(fakes, CheckDefinition).write(template.text.encode(), "x")
    assert fakes.state.row is not None
    async with shown(ChecksScreen(fakes.context, fakes.state.row)) as (app, pilot):
        await until(pilot, lambda: "new: press a to review and accept it" in app.text())
        await press(pilot, "a")
        await until(pilot, lambda: "FROM new_rows" in app.text())
        await press(pilot, "a")
        await until(pilot, lambda: "active" in app.text())


def test_templates_are_valid_for_names_that_need_quotes(fakes: Fakes) -> None:
    columns = [("event_time", "TIMESTAMP"), ("größe in m", "DOUBLE"), ("no", "STRING"), ("a`b: c", "INT")]
    dataset = TemplateDataset("my.rows", columns, ["no", "größe in m"], derivative=True)
    for kind, make in ((CheckDefinition, check_templates), (Flow, flow_templates), (Alert, alert_templates)):
        templates = make(dataset, ("rows-key", "rows-hourly"))
        for template in templates:
            document = documents(fakes, kind).parse(template.text.encode(), template.title)
            assert document.name not in ("rows-key", "rows-hourly")
        assert len({template.key for template in templates}) == len(templates) >= 3


async def test_flow_from_template_is_stored_accepted_and_stays_paused_when_edited(fakes: Fakes) -> None:
    async with shown(FlowsScreen(fakes.context)) as (app, pilot):
        await until(pilot, lambda: "no flows yet: press n" in app.text())
        await choose_template(app, pilot, "d")
        await until(pilot, lambda: "valid; for my.rows" in app.text())
        replace(app, "0 6 * * *", "0 26 * * *")
        await until(pilot, lambda: "'0 26 * * *' is not a cron expression" in flat(app))
        assert "line 5, column 30" in flat(app)
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: editor(app).editor.cursor_location[0] == 4)
        replace(app, "0 26 * * *", "0 7 * * *")
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: "1. ✗ Pull: my.rows has no source to pull from" in flat(app))
        await until(pilot, lambda: "next runs: 20" in flat(app))
        replace(app, "kind: Pull", "kind: Verify")
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: "1. odf verify my.rows" in flat(app))
        assert not documents(fakes, Flow).stamps()
        text = editor(app).text
        await press(pilot, "ctrl+s")
        await until(pilot, lambda: isinstance(app.screen, FlowsScreen) and "active" in app.text())
        assert documents(fakes, Flow).text("rows-daily").decode() == text

        await press(pilot, "p")
        await until(pilot, lambda: "paused by the user" in app.text())
        await press(pilot, "e")
        await until(pilot, lambda: app.screen.query(YamlEditor))
        replace(app, "0 7 * * *", "0 8 * * *")
        await press(pilot, "ctrl+s")
        await until(pilot, lambda: fakes.host.last_notice == "changed flow rows-daily")
        assert documents(fakes, Flow).entry("rows-daily").state == "active"
        flows = fakes.source.flows()
        assert flows.store.states()["rows-daily"].paused
        await press(pilot, "p", "enter")
        await until(pilot, lambda: flows.store.states()["rows-daily"].requested)
        flows.close()

        await choose_template(app, pilot, "d")
        await until(pilot, lambda: "valid; for my.rows" in app.text())
        replace(app, "rows-daily-2", "rows-daily")
        await press(pilot, "ctrl+s")
        await until(pilot, lambda: "flow 'rows-daily' already exists" in flat(app))


async def test_alert_from_template_sends_a_test_message(fakes: Fakes) -> None:
    async with shown(AlertsScreen(fakes.context), (120, 30)) as (app, pilot):
        await until(pilot, lambda: "no alerts yet: press n" in app.text())
        await choose_template(app, pilot, "w")
        await until(pilot, lambda: "valid; for my.rows" in app.text())
        replace(app, "https://hooks.example.com/odf", "http://127.0.0.1:9/odf")
        await press(pilot, "ctrl+s")
        await until(
            pilot, lambda: isinstance(app.screen, AlertsScreen) and "http://127.0.0.1:9" in app.text()
        )
        await press(pilot, "t")
        await until(pilot, lambda: "Connection refused – check the address" in app.text())
        text = documents(fakes, Alert).text("webhook").replace(b"/odf}", b"/odf, signature: hmac-sha256}")
        fakes.source.alerts.accept(documents(fakes, Alert).write(text, "webhook", replace=True))
        await until(pilot, lambda: "press s to store one" in app.text())
        await press(pilot, "s", "ctrl+u", "x", "enter")
        await until(pilot, lambda: "invalid secret: fewer than 16 characters" in app.text())
        await press(pilot, "s", "enter")
        await until(pilot, lambda: "incomplete" not in app.text())
        await choose_template(app, pilot, "o")
        await until(pilot, lambda: "kind: Terminal" in app.text())
        await press(pilot, "ctrl+s")
        await until(pilot, lambda: "open workstations" in app.text())
        await press(pilot, "t")
        await until(pilot, lambda: "run a job that the alert selects" in flat(app))
        await press(pilot, "d", "y")
        await until(pilot, lambda: "open workstations" not in app.text())
