"""The screen of the flows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from odf_engine.workspace.workspace import Workspace
from odf_tui.features.flows import FlowList, FlowsScreen
from odf_tui.gateway.flows import FlowGateway
from odf_tui.widgets.line_view import WrappedLines
from tests.tui.widget_app import WidgetApp

FLOW = """\
headers: {{name: {name}}}
spec:
  target: my.rows
  triggers: [{{kind: Schedule, cron: 30 2 * * *}}]
  tasks: [{{kind: Pull}}]
"""


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlowGateway:
    """A workspace with two flows, one of which has a failed run."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    gateway = FlowGateway(Workspace.init(tmp_path / "ws").odf)
    for name in ("hourly", "nightly"):
        gateway.add(FLOW.format(name=name).encode(), name, replace=False)
    state = gateway.store.states()["nightly"]
    run = gateway.store.begin(state, "Schedule", 1e9, 1e9)
    gateway.store.end(run, "failed", "pull my.rows: no network (job 7)", 1e9 + 5, state)
    return gateway


class Shown(WidgetApp):
    """An app with only this screen."""

    def __init__(self, odf: Path) -> None:
        self.notices: list[str] = []
        self.shown = FlowsScreen(odf, lambda text, style: self.notices.append(text))
        super().__init__(self.shown)

    def lines(self) -> list[str]:
        rows = self.shown.query_one(FlowList)
        return ["".join(text for text, _ in rows.spans(at)) for at in range(rows.count())]

    def about(self) -> str:
        lines = self.shown.query_one("#about-flow", WrappedLines).source_lines
        return "\n".join("".join(text for text, _ in line) for line in lines)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_the_flows_and_their_runs(flows: FlowGateway, size: tuple[int, int]) -> None:
    app = Shown(flows.files.folder.parent)
    async with app.run_test(size=size) as pilot:
        await wait_until(lambda: len(app.lines()) == 2 and "no runs yet" in app.about())
        hourly, nightly = app.lines()
        assert "active" in hourly and "in " in hourly and "failed" in nightly
        assert ("30 2 * * *" in hourly) == (size[0] > 80)
        await pilot.press("j")
        await wait_until(lambda: "no network (job 7)" in app.about())
        assert "newest 1 run, 1 failed" in app.about()


async def test_changes(flows: FlowGateway) -> None:
    app = Shown(flows.files.folder.parent)
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(lambda: len(app.lines()) == 2)
        await pilot.press("p")
        await wait_until(lambda: "paused" in app.lines()[0])
        assert flows.summary("hourly").reason == "paused by the user"
        await pilot.press("enter")
        await wait_until(lambda: flows.store.states()["hourly"].requested)
        await pilot.press("p")
        await wait_until(lambda: "active" in app.lines()[0])
        flows.files.path("nightly").write_text(FLOW.format(name="nightly").replace("30 2", "31 2"))
        await pilot.press("j")
        await wait_until(lambda: "changed" in app.lines()[1] and "odf flow resume" in app.about())
        await pilot.press("enter")
        assert app.notices[-1] == "nightly is changed: press p to accept it"
        await pilot.press("p")
        await wait_until(lambda: "active" in app.lines()[1])
        await pilot.press("x", "y")
        await wait_until(lambda: len(app.lines()) == 1)
        assert flows.store.states().keys() == {"hourly"}
        flows.files.path("bad").write_text("headers: {name: bad}\n")
        await wait_until(lambda: len(app.lines()) == 2 and "invalid" in app.lines()[0])
        await pilot.press("k")
        await wait_until(lambda: "missing required field `spec`" in app.about())
