"""AlertsScreen: the alerts of the workspace, and their newest messages."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Sequence
from typing import ClassVar, Final

from textual.binding import Binding, BindingType

from odf_engine.api import Alert, Delivery, DocumentEntry, Timestamp, Unreadable
from odf_engine.api.text import format_time_seconds, printable, zone_label
from odf_tui.features.automation.documents_screen import (
    STATE_STYLES,
    Column,
    DocumentLine,
    DocumentsScreen,
    Listing,
    entry_spans,
)
from odf_tui.features.automation.templates import Template, TemplateDataset, alert_templates
from odf_tui.services import tasks
from odf_tui.text.format import Span, fit_width
from odf_tui.widgets.dialogs import PromptDialog

_MESSAGES: Final = 50
_DELIVERY_STATE: Final = 8
_DELIVERY_STYLES: Final = {"sent": "good", "queued": "busy", "dead": "bad"}


class AlertsScreen(DocumentsScreen[Alert]):
    """Lists the alerts with the newest messages of one, and sends test messages."""

    kind = Alert
    columns = (
        Column("alert", 18),
        Column("state", 10),
        Column("target", 16, wide=True),
        Column("sink", 24),
        Column("events"),
    )
    advice = ("no alerts yet: press n", "An alert sends a message when an event occurs: odf help alerts")
    keys = "a accepts · t tests"
    poll_seconds = 2.0

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "test", "send a test message", show=False),
        Binding("s", "secret", "store the secret that signs the requests of a webhook", show=False),
    ]

    def heading(self) -> str:
        """Return the title."""
        return f"Alerts (times: {zone_label()})"

    def load(self, name: str) -> Listing:
        """Read the alerts, and the newest messages of one."""
        alerts = self.workspace.alerts
        entries = alerts.entries()
        entry = next((entry for entry in entries if entry.name == name), entries[0] if entries else None)
        lines = [self._line(entry) for entry in entries]
        if entry is None:
            return Listing(lines, "", alert_lines(self.workspace.alert_messages(_MESSAGES)))
        about = entry_spans(entry)
        if self._lacks_secret(entry):
            about.append([(" it has no secret to sign its requests: press s to store one", "warn")])
        return Listing(lines, entry.name, [*about, *alert_lines(alerts.messages(_MESSAGES, entry.name))])

    def _lacks_secret(self, entry: DocumentEntry[Alert] | Unreadable) -> bool:
        return (
            not isinstance(entry, Unreadable)
            and entry.state == "active"
            and self.workspace.alerts.lacks_secret(entry.document)
        )

    def _line(self, entry: DocumentEntry[Alert] | Unreadable) -> DocumentLine:
        word = "incomplete" if self._lacks_secret(entry) else entry.state
        state = (word, STATE_STYLES[word])
        if isinstance(entry, Unreadable):
            return DocumentLine(entry.name, [state, ("", ""), ("", ""), ("", "")])
        spec = entry.document.spec
        targets = ", ".join(map(str, spec.targets))
        return DocumentLine(
            entry.name, [state, (targets, "muted"), (spec.sink.address, ""), (", ".join(spec.kinds), "muted")]
        )

    def templates(self, dataset: TemplateDataset, used: Collection[str]) -> list[Template]:
        """Return the templates of alerts."""
        return alert_templates(dataset, used)

    def accept(self, document: Alert) -> None:
        """Accept an alert: it sends the events from now on."""
        self.workspace.alerts.accept(document)

    def delete(self, name: str) -> None:
        """Remove an alert."""
        self.workspace.alerts.remove(name)

    def remove_remark(self) -> str:
        """Return what else is removed."""
        return "Its secret and its messages are removed too."

    def action_test(self) -> None:
        """Send a test message of the alert under the cursor."""
        if name := self.selected:
            self.start(self._test(name))

    def action_secret(self) -> None:
        """Store the secret of the alert under the cursor."""
        if name := self.selected:
            self.start(self._store_secret(name))

    async def _store_secret(self, name: str) -> None:
        alerts = self.workspace.alerts
        await asyncio.to_thread(alerts.require_signed, name)
        remark = "The receiver needs the same secret. This one is random."
        dialog = PromptDialog(f"Secret of alert {name}", secrets.token_hex(32), remark, lambda _: "")
        secret = await tasks.ask(self.app, dialog)
        if secret is not None:
            await self.change(lambda: alerts.set_secret(name, secret), f"stored the secret of alert {name}")

    async def _test(self, name: str) -> None:
        self.say(f"sending a test message of {name}", "busy")
        address = await asyncio.to_thread(self.workspace.alerts.send_test, name)
        self.host.notice(f"{address} confirmed the test message of {name}")


def alert_lines(deliveries: Sequence[Delivery]) -> list[list[Span]]:
    """Return the lines about messages of alerts, newest first: time, alert, state, message, error."""
    lines: list[list[Span]] = [[]]
    if not deliveries:
        lines.append([(" no messages", "muted")])
    for delivery in deliveries:
        when = format_time_seconds(Timestamp.from_seconds(delivery.created))
        style = _DELIVERY_STYLES.get(delivery.state, "")
        lines.append(
            [
                (f" {when}  ", "muted"),
                (fit_width(delivery.state, _DELIVERY_STATE), style),
                (f"{printable(delivery.alert)}  ", "name"),
                (f"{delivery.kind}  {printable(delivery.message)}", ""),
            ]
        )
        if delivery.error:
            lines.append([(f"   {printable(delivery.error)}", style)])
    return lines
