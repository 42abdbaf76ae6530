"""AutomationController opens the lists of checks, flows and alerts."""

from __future__ import annotations

from odf_tui.features.automation.alerts_screen import AlertsScreen
from odf_tui.features.automation.checks_screen import ChecksScreen
from odf_tui.features.automation.flows_screen import FlowsScreen
from odf_tui.services.controller import Controller


class AutomationController(Controller):
    """Opens the lists of checks, flows and alerts."""

    def show_checks(self) -> None:
        """Show the checks, with the results and the rejected rows of the selected dataset."""
        if (row := self.state.row) is not None:
            self.host.open(ChecksScreen(self.host, row))

    def show_alerts(self) -> None:
        """Show the alerts and their messages."""
        self.host.open(AlertsScreen(self.host))

    def show_flows(self) -> None:
        """Show the flows and their runs."""
        self.host.open(FlowsScreen(self.host))
