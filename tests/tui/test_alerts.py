"""Messages of alerts in the workstation: notices, terminal notifications, the list."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from odf_engine.automation.alerts.store import AlertStore, NewDelivery
from odf_engine.base.config import UiConfig
from odf_tui.features.automation.alerts_screen import AlertsScreen
from odf_tui.panes.jobs.controller import JobsController
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.widgets.status_bar import StatusLine
from tests.tui.context import Fakes
from tests.tui.scripted_worker import open_haven
from tests.tui.waiting import until
from tests.tui.widget_app import shown


@pytest.fixture
def store(tmp_path: Path) -> AlertStore:
    (tmp_path / ".odf").mkdir()
    return AlertStore(tmp_path / ".odf")


def queue(store: AlertStore, number: str, message: str, body: bytes = b"") -> None:
    store.enqueue([NewDelivery(number, "ops", "JobFailed", "my.rows", "", message, body)], time.time())


def confirm(store: AlertStore) -> None:
    for delivery in store.due("ops", time.time(), 10):
        store.finish(delivery, time.time())


def test_new_alert_is_shown_once_as_notice_and_terminal_notification(
    tmp_path: Path, store: AlertStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    queue(store, "1", "from an earlier day")
    confirm(store)
    source = open_haven(tmp_path)
    fakes = Fakes(source, widgets={JobsPane: Mock(), StatusLine: Mock()})
    controller = JobsController(fakes.context)
    read = controller._read_alerts
    read()
    assert fakes.host.notices == []
    queue(store, "2", "pull my.rows failed: \x1b[31mno network")
    queue(store, "3", "for a webhook", b"{}")
    read()
    assert fakes.host.notices == []  # the worker has not handled it
    confirm(store)
    read()
    read()
    assert fakes.host.notices == [("pull my.rows failed: ␛[31mno network", "bad")]
    assert fakes.host.terminal.written == ["\a\x1b]9;odf: pull my.rows failed: ␛[31mno network\a"]
    source.ui = UiConfig(notify_by="none")
    queue(store, "4", "again")
    confirm(store)
    read()
    assert fakes.host.last_notice == "again" and len(fakes.host.terminal.written) == 1


async def test_list_of_alerts_shows_delivery_state_and_error(tmp_path: Path, store: AlertStore) -> None:
    queue(store, "1", "pull my.rows failed: no network", b"{}")
    (delivery,) = store.due("ops", time.time(), 1)
    store.fail(delivery, "the server returned 503", time.time(), None)
    async with shown(AlertsScreen(Fakes(open_haven(tmp_path)).context), (160, 50)) as (app, pilot):
        await until(pilot, lambda: "the server returned 503" in app.text())
        assert "dead" in app.text() and "JobFailed  pull my.rows failed: no network" in app.text()
        assert "no alerts yet: press n" in app.text()
